#!/bin/sh
# The library is found and opened, and the sample's text is the CPU's, for several codecs and pools.
# shellcheck source=tests/gpu/steps/step.inc
. tests/gpu/steps/step.inc
moec=$(program moec) || exit 1
n=0
for bits in 2 4 8; do
    bundle=$work/sample-int$bits.moec
    "$moec" compile datasets/sample/model --policy uniform --bits "$bits" -o "$bundle" --force --quiet || exit 1
    write() { "$moec" run "$bundle" -p "The old miller" -n 48 --ignore-eos "$@"; }
    write >"$work/cpu.txt" || exit 1
    # A pool of little more than one expert: what a refusal says is the least, and a mebibyte.
    least=$(write --device cuda --vram 1 2>&1 | sed -n 's/.* = \([0-9]*\)[.0-9]* MiB needed.*/\1/p')
    for vram in "" "--vram $((${least:-0} + 2))MiB"; do
        # shellcheck disable=SC2086 # an option and its value, or nothing
        write --device cuda $vram >"$work/gpu.txt" || exit 1
        cmp "$work/cpu.txt" "$work/gpu.txt" || exit 1
        n=$((n + 1))
    done
done
figure "texts that are the CPU's" "$n" "" ">= 6"
