#!/bin/sh
# Installs the packages in a bare Debian and does the main job there: moec-run alone first, with a bundle made here; then
# profile and compile the sample, run the bundle, build and run a program against libmoert.
#     packaging/test_deb.sh FOLDER     (as root, from the repository root, after make deb)
set -eu
folder=$1
moec=${MOEC:-$(dirname "$folder")/moec}
# shellcheck source=packaging/bare_root.inc
. packaging/bare_root.inc
why=$(why_no_root)
[ -z "$why" ] || { echo "$why" >&2; exit 1; }
root=$(mktemp -d)
trap remove_root EXIT
trap 'exit 130' INT TERM

echo "making a bare $host_release"
make_root "$host_release" "$(mirror_of "$host_distribution")" || { tail "$root.log" >&2; exit 1; }
cp "$folder"/*.deb "$root/tmp/"
cp -r datasets/sample "$root/tmp/sample"
cp docs/embed.c "$root/tmp/"
echo 'APT::Sandbox::User "root";' >"$root/etc/apt/apt.conf.d/99root" # packages lie in a folder that _apt may not read
# install_in_root PACKAGES: names and patterns, as one text.
install_in_root() {
    in_root "apt-get update -qq && apt-get install -y -qq --no-install-recommends $1 \
        >/tmp/install.log 2>&1 || { tail /tmp/install.log >&2; exit 1; }"
}
echo "moec-run alone"
needed=$(for package in "$folder"/moec-run_*.deb; do dpkg-deb -f "$package" Depends; done)
case $needed in
*hdf5* | *cairo* | *lua* | *jansson* | *edit* | "") echo "moec-run depends on: $needed" >&2 && exit 1 ;;
esac
"$moec" compile datasets/sample/model --policy uniform --bits 4 --quiet -o "$root/tmp/small.moec" >/dev/null
"$moec" run "$root/tmp/small.moec" -p "Once upon a time" -n 20 >"$root/tmp/expected.txt"
install_in_root '/tmp/moec-run_*.deb'
in_root 'cd /tmp && ! command -v moec && ! ls /usr/lib/*/ | grep -E "hdf5|cairo|lua|jansson" &&
    moec-run small.moec -p "Once upon a time" -n 20 >text.txt && cmp text.txt expected.txt &&
    moec-run --describe-device small.moec -o device.json --read-time 0.01 --compute-time 0.1 --quiet >/dev/null &&
    grep -q "\"format\": \"moec device\"" device.json && test -s /usr/share/man/man1/moec-run.1.gz'
# shellcheck disable=SC2016 # expanded in the root
in_root "bash -c '. /usr/share/bash-completion/completions/moec-run; COMP_WORDS=(moec-run m.moec --mem); COMP_CWORD=2
    _moec_run; echo \"\${COMPREPLY[*]}\"' | grep -q -e --memory"
echo "installing all"
install_in_root '/tmp/*.deb gcc libc6-dev pkg-config'
echo "profile, compile, run"
in_root 'cd /tmp &&
    moec profile sample/model --data sample/calibration.txt --seq-len 64 --samples 96 --quiet -o p.h5 >/dev/null &&
    moec compile sample/model --profile p.h5 --max-loss 5% --quiet -o m.moec >/dev/null &&
    moec verify m.moec && moec-run m.moec -p "Once upon a time" -n 20 &&
    test -s /usr/share/man/man1/moec-compile.1.gz && test -s /usr/share/doc/moec/README.md'
echo "a program against libmoert"
# shellcheck disable=SC2016 # expanded in the root
in_root 'cd /tmp && gcc embed.c $(pkg-config --cflags --libs moert) -o embed && ./embed m.moec "Once upon a time"'
echo "the packages work in a bare $host_release"
