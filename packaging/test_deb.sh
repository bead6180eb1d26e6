#!/bin/sh
# Installs the packages in a bare Debian and does the main job there: profile and compile the sample, run the bundle, build and
# run a program against libmoert.
#     packaging/test_deb.sh FOLDER     (as root, from the repository root, after make deb)
set -eu
folder=$1
[ "$(id -u)" -eq 0 ] || { echo "installing packages into a root folder needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "debootstrap is not installed: apt-get install debootstrap" >&2; exit 1; }
root=$(mktemp -d)
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf "$root"' EXIT
trap 'exit 130' INT TERM

# The release and mirror that this machine's apt uses.
# shellcheck source=/dev/null
. /etc/os-release
# shellcheck disable=SC2016 # apt expands it
mirror=$(apt-get indextargets --format '$(SITE)' "Created-By: Packages" "Codename: $VERSION_CODENAME" | head -n 1)
echo "making a bare $VERSION_CODENAME"
debootstrap --variant=minbase "$VERSION_CODENAME" "$root" "$mirror" >"$root.log" 2>&1 || {
    tail "$root.log" >&2
    exit 1
}
rm -f "$root.log"
for file in /etc/apt/apt.conf.d/*; do
    cp "$file" "$root/etc/apt/apt.conf.d/"
done
mount -t proc proc "$root/proc"
cp "$folder"/*.deb "$root/tmp/"
cp -r datasets/sample "$root/tmp/sample"
cp docs/embed.c "$root/tmp/"
in_root() {
    chroot "$root" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root sh -euc "$1"
}
echo "installing"
echo 'APT::Sandbox::User "root";' >"$root/etc/apt/apt.conf.d/99root" # packages lie in a folder that _apt may not read
in_root 'apt-get update -qq && apt-get install -y -qq --no-install-recommends /tmp/*.deb gcc libc6-dev pkg-config \
    >/tmp/install.log 2>&1 || { tail /tmp/install.log >&2; exit 1; }'
echo "profile, compile, run"
in_root 'cd /tmp &&
    moec profile sample/model --data sample/calibration.txt --seq-len 64 --samples 96 --quiet -o p.h5 >/dev/null &&
    moec compile sample/model --profile p.h5 --max-loss 5% --quiet -o m.moec >/dev/null &&
    moec verify m.moec && moec-run m.moec -p "Once upon a time" -n 20 &&
    test -s /usr/share/man/man1/moec-compile.1.gz && test -s /usr/share/doc/moec/README.md'
echo "a program against libmoert"
# shellcheck disable=SC2016 # expanded in the root
in_root 'cd /tmp && gcc embed.c $(pkg-config --cflags --libs moert) -o embed && ./embed m.moec "Once upon a time"'
echo "the packages work in a bare $VERSION_CODENAME"
