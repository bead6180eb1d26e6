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
for verb in run bench chat; do
    try 2 "a description as a GPU of $verb" "$moec" $verb "$work/int4.moec" --device "$work/device.json"
    says stderr "device.json', expected a GPU such as 'cuda'; a file made by moec device goes with --device-file" "is refused"
done
try 2 "a limit without a device" on_device --vram 1GiB
says stderr "give --device too" "is refused"
try 2 "whole copies without a device" on_device --whole-records
says stderr "give --device too" "are refused"
try 2 "times of nothing" on_device --device cuda --device-file "$work/int4.moec"
says stderr "give --cooperate too" "are refused"
try 1 "times that are not there" on_device --device cuda --cooperate --device-file "$work/none.json"
says stderr "none.json" "are missed by name"
try 0 "a device file without a GPU" "$moec" device "$work/int4.moec" --emulate-storage 550MB/s,80us -o "$work/cpu.json" \
    --quiet
try 2 "times of no GPU" on_device --device cuda --cooperate --device-file "$work/cpu.json"
says stderr "cpu.json' has no GPU" "are refused"
try 2 "a limit of a bench without a device" "$moec" bench "$work/int4.moec" --vram 1GiB --memory 50%
says stderr "give --device too" "is refused too"

try 2 "measuring a device that is not CUDA's" "$moec" device "$work/int4.moec" --device vulkan -o "$work/d.json"
says stderr "device 'vulkan' is unknown" "is refused by name"

if on_device --device cuda >"$work/device.txt" 2>"$work/device.err"; then
    try 0 "the CPU" on_device
    if cmp -s "$work/device.txt" "$work/stdout"; then pass "writes the GPU's text"; else fail "writes the GPU's text"; fi
    try 0 "the GPU is measured" "$moec" device "$work/int4.moec" --device cuda -o "$work/d.json" --quiet
    says stdout "Products with one token" "and shown"
else
    try 1 "no GPU" on_device --device cuda
    says stderr "libmoert-cuda.so|CUDA" "is said by name"
    if [ "$(wc -l <"$work/stderr")" -eq 1 ]; then pass "in one sentence"; else fail "in one sentence"; fi
    sed 's/^moec [a-z]*: //' "$work/stderr" >"$work/sentence"
    try 1 "no GPU to talk on" "$moec" chat "$work/int4.moec" --device cuda </dev/null
    if sed 's/^moec [a-z]*: //' "$work/stderr" | cmp -s - "$work/sentence"; then pass "is the same sentence"; else fail "is the same sentence"; fi
    try 1 "no GPU to time" "$moec" bench "$work/int4.moec" --device cuda --modes edgemoe --memory 50% --samples 1 \
        --tokens 2 --quiet
    # Over lines of a terminal's width.
    tr -s '\n ' '  ' <"$work/stdout" >"$work/line"
    if grep -qF "failed: $(cat "$work/sentence")" "$work/line"; then pass "is said of each row"; else fail "is said of each row"; fi
    try 1 "nothing is measured" "$moec" device "$work/int4.moec" --device cuda -o "$work/d.json"
    says stderr "libmoert-cuda.so|CUDA" "for want of a GPU"
    absent "$work/d.json" "and nothing is written"
fi
done_testing
