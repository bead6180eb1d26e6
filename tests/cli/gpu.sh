#!/bin/sh
# Without a GPU a program says so in one sentence, and its options are checked all the same; with one the text is the
# CPU's.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

try 0 "a bundle" "$moec" compile datasets/sample/model --policy uniform --bits 4 -o "$work/int4.moec" --quiet
# shellcheck disable=SC2317 # called by try
on_device() { "$moec" run "$work/int4.moec" -p "The old miller" -n 8 --ignore-eos "$@"; }

try 2 "a device that is not CUDA's" on_device --device vulkan
says stderr "device 'vulkan' is unknown, expected 'cuda' or 'cuda:N'" "is refused by name"
try 2 "a limit without a device" on_device --vram 1GiB
says stderr "give --device too" "is refused"

if on_device --device cuda >"$work/device.txt" 2>"$work/device.err"; then
    try 0 "the CPU" on_device
    if cmp -s "$work/device.txt" "$work/stdout"; then pass "writes the GPU's text"; else fail "writes the GPU's text"; fi
else
    try 1 "no GPU" on_device --device cuda
    says stderr "libmoert-cuda.so|CUDA" "is said by name"
    if [ "$(wc -l <"$work/stderr")" -eq 1 ]; then pass "in one sentence"; else fail "in one sentence"; fi
fi
done_testing
