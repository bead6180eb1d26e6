#!/bin/sh
# How many windows a certificate takes: the first of its part, as many as the other parts say that the target needs.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model
echo "return function(m) return require('assignment').uniform(m, 4) end" >"$work/4.lua"

# four_bits OPTION...
# shellcheck disable=SC2317 # called by try
four_bits() {
    "$moec" compile $model --profile "$work/p.h5" --policy "$work/4.lua" "$@"
}
# windows: of the last certificate that was printed as JSON.
windows() {
    sed -n 's/.*"windows": \([0-9]*\).*/\1/p' "$work/stdout" | tail -n 1
}
# taken: of as many windows as the last compile said.
taken() {
    sed -n 's/.*the certificate uses the first \([0-9]*\) of \([0-9]*\) windows.*/\1/p' "$work/stderr"
}

equal() {
    if [ "$2" = "$3" ]; then pass "$1"; else fail "$1: $2, expected $3"; fi
}

try 0 "profile" "$moec" profile $model --data datasets/sample/calibration.txt --seq-len 24 --samples 400 --bits 4 \
    --sensitivity none -o "$work/p.h5" --quiet

try 0 "a target that is easily shown" four_bits --max-loss 30% -o "$work/easy.moec" --json --verbose
equal "takes the fewest windows" "$(taken)" 64
equal "and the certificate says so" "$(windows)" 64
try 0 "a target that is not" four_bits --max-loss 1.5% --accept-miss -o "$work/hard.moec" --json --verbose
many=$(windows)
if [ "$many" -gt 64 ]; then pass "takes more"; else fail "takes more: $many"; fi
says stdout '"certified_before": 1' "and is told of the first bundle, on fewer windows of the same part"
try 0 "a point estimate" four_bits --max-loss 30% --confidence point -o "$work/point.moec" --json --verbose
equal "takes all windows" "$(windows)" 200
try 0 "the same target again" four_bits --max-loss 30% -o "$work/again.moec" --quiet
if cmp -s "$work/easy.moec" "$work/again.moec"; then pass "gives the same file"; else fail "gives the same file"; fi

# A target that these windows prove stays proven: a journal keeps how many were tested on.
size=$(four_bits --max-size 100MB --dry-run --json 2>/dev/null | sed -n 's/.*"bundle_bytes": \([0-9]*\).*/\1/p')
try 1 "a target under the upper end" four_bits --max-loss 0.2% --max-size "$size" --journal "$work/j" -o "$work/no.moec" --quiet
reach=$(sed -n 's/.*\(--max-loss\|prove --max-loss\) \([0-9.]*%\).*/\2/p' "$work/stderr")
try 0 "the target that the message names" four_bits --max-loss "$reach" --max-size "$size" --journal "$work/j" -o "$work/reached.moec" \
    --json
equal "is proven on the same windows" "$(windows)" 200

try 0 "--certificate-samples" "$moec" compile $model --data datasets/sample/calibration.txt --seq-len 24 --samples 200 \
    --certificate-samples 100 --sensitivity none --policy "$work/4.lua" --max-loss 30% -o "$work/asked.moec" --json
equal "are taken all" "$(windows)" 100

# A plan that loses far too much shows it on half of the windows.
echo "local uniform = require('assignment').uniform
return function(m) return {sequence = {uniform(m, 8), uniform(m, 2), uniform(m, 4)}} end" >"$work/three.lua"
try 0 "a sequence with such a plan" "$moec" compile $model --profile "$work/p.h5" --policy "$work/three.lua" \
    --max-loss 30% -o "$work/three.moec" --verbose
says stderr 'on the first 32 of 64 windows: above the target already, so not proven' "ends its test early"
says stdout 'loses [0-9.]+% on the first half of the windows' "and says so"
try 0 "inspect" "$moec" inspect "$work/three.moec"
says stdout 'on the first half of the windows: failed' "says so too"

done_testing
