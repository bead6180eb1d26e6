#!/bin/sh
# docs/to-a-device.md, word by word: its commands in an empty folder, in one shell, with less text and a larger loss. What
# needs a network or another machine is read by a shell, and what it says of make holds.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
page=docs/to-a-device.md
if [ "$build" != build ]; then
    skip "the page" "only in the plain build, with whose library a program is linked"
    done_testing
fi

# blocks PATTERN: the page's commands, but for blocks that match.
blocks() {
    awk -v pattern="$1" '
        /^```sh/ { inside = 1; block = ""; next }
        /^```/ && inside { inside = 0; if (block !~ pattern) printf "%s", block; next }
        inside { block = block $0 "\n" }' "$page"
}
away='(^|\n)(hf|scp|adb|sudo)[ ]|sudo make'
blocks NONE >"$work/all.sh"
blocks "$away" >"$work/here.sh"
try 0 "every command of the page is one" sh -n "$work/all.sh"
try 0 "most of them run here" test "$(wc -l <"$work/here.sh")" -ge 14

# What it says of make: targets, and what they write.
for target in deps deb static dist-aarch64; do
    try 0 "the page has make $target" grep -Eq "make (-C .* )?$target" "$page"
    try 0 "which is a target" grep -Eq "^([a-z -]* )?$target:" Makefile
done
# shellcheck disable=SC2016 # of make
try 0 "make dist-aarch64 writes what is copied" grep -qF '$(BUILD)/moec-run-$(VERSION)-aarch64' Makefile
try 0 "and the page copies it" grep -q 'SOURCE"/build/moec-run-\*-aarch64 ' "$page"
for file in docs/embed.c datasets/sample/model datasets/sample/calibration.txt datasets/sample/test.txt; do
    try 0 "$file is there" test -e "$file"
done

# An installed moec.
mkdir -p "$work/home" "$work/prefix/bin" "$work/prefix/lib" "$work/prefix/include"
ln -s "$PWD/$moec" "$PWD/$build/moec-run" "$work/prefix/bin"
ln -s "$PWD/$build/libmoert.so" "$work/prefix/lib/libmoert.so"
ln -s "$PWD/$build/libmoert.so" "$work/prefix/lib/libmoert.so.0"
ln -s "$PWD/runtime/moert.h" "$work/prefix/include"
sed -e "s|@PREFIX@|$work/prefix|" -e 's|@VERSION@|1|' runtime/moert.pc.in >"$work/prefix/lib/moert.pc"

# With a text that takes seconds, from where the page takes its sample; and fit takes over what compile fitted.
# shellcheck disable=SC2016 # of the page
sed -e 's/--max-loss 2%/--max-loss 60% --seq-len 64 --quiet/' -e 's/--describe-device/& --read-time 0.002 --compute-time 0.05 --quiet/' \
    -e 's/^cp -r "$SOURCE\/datasets\/sample" .$/&; for text in calibration test; do head -c 8000 "$SOURCE\/datasets\/sample\/$text.txt" >sample\/$text.txt; done/' \
    -e 's/-o model\.moec$/& --journal fitted/' -e 's/^moec fit /cp fitted fast.moec.journal; &/' \
    "$work/here.sh" >"$work/small.sh"
try 1 "which is what is made smaller" cmp -s "$work/here.sh" "$work/small.sh"
try 0 "the page's commands" env HOME="$work/home" PATH="$work/prefix/bin:$PATH" PKG_CONFIG_PATH="$work/prefix/lib" \
    LD_LIBRARY_PATH="$work/prefix/lib" sh -eu "$work/small.sh"
says stdout "supported" "doctor answers"
says stdout "whole|every|sections" "verify answers"
says stdout "^One token's working set" "simulate answers"
try 0 "they leave a bundle, a program and a description" test -s "$work/home/moec-try/model.moec" -a -x "$work/home/moec-try/embed" -a \
    -s "$work/home/moec-try/device.json"
done_testing
