#!/bin/sh
# Writes the Debian packages of what is built: moec, moec-run, libmoert0, libmoert-dev and, where Open MPI is, moec-mpi.
#     packaging/deb.sh VERSION FOLDER     (from the repository root, after make)
set -eu
version=$1 folder=$2
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

make --no-print-directory CUDA=0 STRIP=strip install DESTDIR="$work/all" PREFIX=/usr >/dev/null
rm -f "$work/all/usr/lib/libmoert-cuda.so" # Debian has no package of what it is built with

# move PACKAGE PATH...: takes files of the whole installation into one package.
move() {
    package=$1
    shift
    for path in "$@"; do
        mkdir -p "$work/$package/$(dirname "$path")"
        mv "$work/all/$path" "$work/$package/$path"
    done
}
move moec-run usr/bin/moec-run usr/share/man/man1/moec-run.1 usr/share/bash-completion/completions/moec-run \
    usr/share/zsh/site-functions/_moec-run usr/share/fish/vendor_completions.d/moec-run.fish
move libmoert0 usr/lib/libmoert.so.0
move libmoert-dev usr/lib/libmoert.so usr/lib/libmoert.a usr/lib/pkgconfig usr/include
[ ! -e "$work/all/usr/lib/libmoec-mpi.so" ] || move moec-mpi usr/lib/libmoec-mpi.so
mv "$work/all" "$work/moec"
find "$work/moec/usr/share/man" "$work/moec-run/usr/share/man" -type f -exec gzip -9n {} +

# Packages that a program or library needs, as dpkg-shlibdeps finds them.
depends() {
    mkdir -p "$work/source/debian"
    printf 'Source: moec\n\nPackage: moec\nArchitecture: any\n' >"$work/source/debian/control"
    (cd "$work/source" && dpkg-shlibdeps -O "$@" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
}

# build PACKAGE SECTION DEPENDS SUMMARY: the files in the work folder as a package.
build() {
    package=$1 section=$2 needed=$3 summary=$4
    doc=$work/$package/usr/share/doc/$package
    mkdir -p "$work/$package/DEBIAN" "$doc"
    cp LICENSE "$doc/copyright"
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\nSection: %s\nPriority: optional\n' "$package" "$version" \
            "$architecture" "$section"
        printf 'Maintainer: the moec authors\n'
        [ -z "$needed" ] || printf 'Depends: %s\n' "$needed"
        # Its files were moec's once.
        [ "$package" != moec-run ] || printf 'Replaces: moec\nBreaks: moec (<< %s)\n' "$version"
        printf 'Installed-Size: %s\n' "$(du -sk "$work/$package" | cut -f1)"
        printf 'Description: %s\n' "$summary"
        printf ' moec measures what every expert of a Mixture-of-Experts language model loses at each bitwidth, searches\n'
        printf ' bitwidths under the accuracy loss that its user allows, and runs the result inside a memory budget.\n'
    } >"$work/$package/DEBIAN/control"
    if [ "$package" = libmoert0 ]; then
        printf 'libmoert 0 libmoert0 (>= %s)\n' "$version" >"$work/$package/DEBIAN/shlibs"
        printf 'activate-noawait ldconfig\n' >"$work/$package/DEBIAN/triggers"
    fi
    dpkg-deb --root-owner-group --build "$work/$package" "$folder/${package}_${version}_$architecture.deb" >/dev/null
    echo "$folder/${package}_${version}_$architecture.deb"
}

mkdir -p "$folder"
build moec-run science "$(depends "$work/moec-run/usr/bin/moec-run")" \
    'runs Mixture-of-Experts language models in little memory'
build moec science "$(depends "$work/moec/usr/bin/moec"), moec-run (= $version)" \
    'compiler and profiler for Mixture-of-Experts language models'
[ ! -d "$work/moec-mpi" ] || build moec-mpi science \
    "$(depends "$work/moec-mpi/usr/lib/libmoec-mpi.so"), moec (= $version), openmpi-bin" \
    'compiles Mixture-of-Experts language models on several machines'
build libmoert0 libs "$(depends "$work/libmoert0/usr/lib/libmoert.so.0")" \
    'runtime for Mixture-of-Experts language models in little memory'
build libmoert-dev libdevel "libmoert0 (= $version)" 'runtime for Mixture-of-Experts language models (development files)'
