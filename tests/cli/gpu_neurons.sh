#!/bin/sh
# Neurons that come alone to a GPU, on machines without one: a program beside the stand-in's library writes the CPU's
# text, with the CPU's counts of neurons, and with whole records too; fewer bytes are copied, which stats and benches
# say beside those of whole records.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

mkdir "$work/bin"
ln -s "$(realpath "$build")/moec" "$work/bin/moec"
ln -s "$(realpath "$build")/standin/libmoert-cuda.so" "$work/bin/"
there=$work/bin/moec bundle=$work/sparse.moec
try 0 "a bundle" "$moec" compile datasets/sample/model --policy uniform --bits 8 -o "$bundle" --quiet
try 0 "with thresholds" "$moec" sparsify "$bundle" --data datasets/sample/test.txt --samples 32 --seq-len 32 --force

# write FILE PROGRAM [option...]: the text, its stats, and what they say of neurons.
# shellcheck disable=SC2317 # called by try
write() {
    file=$1 program=$2
    shift 2
    "$program" run "$bundle" -p "The old miller" -n 10 --ignore-eos --sparsity 0.9 --stats "$@" >"$work/$file" \
        2>"$work/$file.stats" || return
    grep -o '[0-9.]*% of neurons were active.*' "$work/$file.stats" >"$work/$file.neurons"
}
same() { # same NAME A B
    if cmp -s "$work/$2" "$work/$3"; then pass "$1"; else fail "$1"; fi
}

try 0 "the CPU" write cpu "$moec"
try 0 "a device" write alone "$there" --device cuda --vram 4MiB
try 0 "a device with whole records" write whole "$there" --device cuda --vram 4MiB --whole-records
same "neurons alone write the CPU's text" cpu alone
same "whole records too" cpu whole
if [ -s "$work/cpu.neurons" ]; then pass "neurons are counted"; else fail "neurons are counted"; fi
same "and as many are active" cpu.neurons alone.neurons
same "with whole records too" cpu.neurons whole.neurons
alone='of neurons alone, gathered .* at a time; whole records of these experts: '
if joined "$work/alone.stats" | grep -q "$alone" && ! joined "$work/whole.stats" | grep -q "$alone"; then
    pass "stats say what whole records would take"
else
    fail "stats say what whole records would take"
fi
try 0 "a bench" "$there" bench "$bundle" --device cuda --vram 4MiB --sparsity 0.9 --modes cache --memory 50% --samples 1 \
    --prompt-tokens 4 --tokens 3 --quiet
says stdout "copied +whole$" "shows both"
try 2 "whole records without a sparsity" "$there" run "$bundle" -p "The" -n 1 --device cuda --whole-records
says stderr "whole records .--whole-records. apply only to a device that runs with sparsity" "are refused"
done_testing
