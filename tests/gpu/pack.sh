#!/bin/sh
# Puts programs into a folder with the shared libraries that they are linked with, all but those of the C library and
# the compiler, which the other machine has: for tests/gpu/all.sh on a machine where nothing can be installed.
# Usage: tests/gpu/pack.sh FOLDER FILE...
set -eu
folder=$1
shift
rm -rf "$folder"
mkdir -p "$folder/lib"
for file in "$@"; do
    strip -o "$folder/$(basename "$file")" "$file"
    ldd "$file" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
done | sort -u | grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s)\.so' |
    while read -r library; do
        cp -L "$library" "$folder/lib"
    done
git rev-parse HEAD >"$folder/revision"
du -sh "$folder" | sed 's/\t/ in /'
