#!/bin/sh
# Bundles of encoder-decoder models without data: compile, verify, inspect, export, device and bench.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

for fixture in switch switch-gated switch-full switch-gelu; do
    checkpoint=tests/fixtures/families/$fixture
    try 0 "$fixture: compile" "$moec" compile $checkpoint --policy uniform --bits 4 --copies 8,16 -o "$work/$fixture.moec" --quiet
    try 0 "$fixture: verify" "$moec" verify "$work/$fixture.moec"
    try 0 "$fixture: inspect" "$moec" inspect "$work/$fixture.moec"
    says stdout "switch_transformers: .* an encoder's" "$fixture: and the encoder is told apart"
    try 0 "$fixture: export" "$moec" export "$work/$fixture.moec" -o "$work/$fixture" --quiet
    try 0 "$fixture: the folder compiles" "$moec" compile "$work/$fixture" --policy uniform --bits 16 -o "$work/again.moec" --force --quiet
done

try 0 "inspect for programs" "$moec" inspect "$work/switch.moec" --json
says stdout '"encoder_layers": 4' "names the encoder's layers"
try 0 "device" "$moec" device "$work/switch-full.moec" -o "$work/d.json" --read-time 0.002 --compute-time 0.05 --quiet
says stdout "at once: [0-9.]+ .position [0-9]+.$" "measures tokens of a target"
try 0 "bench" "$moec" bench "$work/switch-full.moec" --memory 50% --samples 2 --prompt-tokens 20 -n 4 --quiet
for row in io-free io-exp edgemoe sti; do
    says stdout "^$row " "with a row of $row"
done

done_testing
