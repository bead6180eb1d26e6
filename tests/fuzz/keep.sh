#!/bin/sh
# Keeps what long runs found: adds the inputs of a folder that reach something new to tests/fuzz/found/, from where
# every later run of the target starts. The inputs are run under the sanitizers on the way.
# Usage: tests/fuzz/keep.sh TARGET FOLDER   (from the repository root, after `make fuzz-programs`; TARGET as in
# tests/fuzz/fuzz_TARGET.c)
set -eu
build=${FUZZ_BUILD:-build/fuzz}
if [ $# -ne 2 ] || [ ! -x "$build/fuzz_$1" ] || [ ! -d "$2" ]; then
    echo "usage: tests/fuzz/keep.sh TARGET FOLDER; $build/fuzz_TARGET comes from 'make fuzz-programs'" >&2
    exit 2
fi
found=tests/fuzz/found/$1.tar.zst
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM # which runs the trap above too
mkdir "$work/before" "$work/kept"
[ ! -e "$found" ] || zstd -dcq "$found" | tar -xf - -C "$work/before"
cp "tests/fuzz/corpus/$1"/* "$work/kept"
"$build/fuzz_$1" -merge=1 -max_len=8192 -rss_limit_mb=2048 "$work/kept" "$work/before" "$2" 2>"$work/log" ||
    { tail -n 40 "$work/log" >&2 && exit 1; }
for seed in "tests/fuzz/corpus/$1"/*; do
    rm "$work/kept/$(basename "$seed")"
done
mkdir -p tests/fuzz/found
tar -cf - --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=u=rwX,go=rX -C "$work/kept" . \
    >"$work/kept.tar"
zstd -19 --long=24 -q -f "$work/kept.tar" -o "$found"
echo "$1: $(find "$work/kept" -type f | wc -l) inputs, $(wc -c <"$found") bytes"
