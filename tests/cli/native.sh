#!/bin/sh
# The program of make native and make demo: with one set of kernels it writes the bundle and says the text that all have.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

native=$build/native/moec
model=$work/model
try 0 "a model" random_model "$model"
set -- --data datasets/sample/calibration.txt --samples 32 --seq-len 32 --sensitivity-samples 4 --max-loss 50% --policy edgemoe \
    --accept-miss --anyway -q
try 0 "a bundle" "$moec" compile "$model" "$@" -o "$work/all.moec"
try 0 "the native program's" "$native" compile "$model" "$@" -o "$work/native.moec"
same "$work/all.moec" "$work/native.moec" "is the same, byte for byte"
for arithmetic in canonical int8; do
    try 0 "a text, $arithmetic" "$moec" run "$work/all.moec" -p "The old" -n 24 --arithmetic $arithmetic
    cp "$work/stdout" "$work/text"
    try 0 "the native program's, $arithmetic" "$native" run "$work/all.moec" -p "The old" -n 24 --arithmetic $arithmetic
    same "$work/text" "$work/stdout" "is the same"
done

# Of the sets of x86-64 it has one at most; which, --cpu tells.
runs() {
    for set in avx2 avx2-gfni avx512 avx512-vbmi; do
        "$1" run "$work/all.moec" -p "The old" -n 2 --cpu $set >"$work/stdout" 2>"$work/stderr" && echo $set
    done
}
best=$(runs "$moec" | tail -n 1)
runs "$native" >"$work/sets"
if [ "$(cat "$work/sets")" = "$best" ]; then
    pass "it has the best set of this processor and no other"
else
    fail "it has the best set of this processor and no other (has $(tr '\n' ' ' <"$work/sets"), best ${best:-none})"
fi
if [ -n "$best" ]; then
    other=avx2
    [ "$best" != avx2 ] || other=avx512
    try 1 "a set that it has not" "$native" run "$work/all.moec" -p "The old" -n 2 --cpu $other
    says stderr "this processor or this build does not support instruction set '$other'" "is refused"
else
    skip "a set that it has not" "this processor has none of x86-64's"
fi
done_testing
