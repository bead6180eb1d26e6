#!/bin/sh
# --dense-bits and --dense-quantizer: GPTQ against rounding, and the bitwidth that auto finds.
# shellcheck source=tests/cli/tap.inc
# shellcheck disable=SC2317 # functions that try calls
. tests/cli/tap.inc

model=datasets/sample/model

# number FILE KEY: the first number of this key in pretty JSON.
number() {
    sed -n "s/^ *\"$2\": \([-0-9.e+]*\),*\$/\1/p" "$1" | head -n 1
}
# check NAME EXPRESSION: an awk condition holds.
check() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1: $2"; fi
}

try 0 "profile" "$moec" profile "$model" --data datasets/sample/calibration.txt --seq-len 64 --samples 32 --bits 2,4 \
    --sensitivity none -o "$work/p.h5" --quiet

# ---- 4 bits: by GPTQ, by rounding ----

compile() {
    "$moec" compile "$model" --profile "$work/p.h5" --policy uniform --bits 8 --json --quiet "$@"
}
try 0 "GPTQ is the default where there is a profile" compile --dense-bits 4 -o "$work/gptq.moec" --threads 2
cp "$work/stdout" "$work/gptq.json"
says stdout '"quantizer": "gptq"' "it says so"
try 0 "linear" compile --dense-bits 4 --dense-quantizer linear -o "$work/linear.moec"
cp "$work/stdout" "$work/linear.json"
check "GPTQ is nearer to the original" "$(number "$work/gptq.json" mean_kl) < 0.9 * $(number "$work/linear.json" mean_kl)"
check "at the same size but for compression" \
    "$(number "$work/gptq.json" bundle_bytes) < 1.01 * $(number "$work/linear.json" bundle_bytes)"
set -- compile --dense-bits 4 --dense-quantizer gptq -o "$work/again.moec" --threads 1
no_room "GPTQ without room" "$@"
try 0 "GPTQ on one thread" "$@" --work-memory "${bound}MiB"
if cmp -s "$work/gptq.moec" "$work/again.moec"; then
    pass "the same bytes at any thread count and work memory"
else
    fail "the same bytes at any thread count and work memory"
fi
try 0 "verify" "$moec" verify "$work/gptq.moec"
try 0 "run" "$moec" run "$work/gptq.moec" --prompt "The" --tokens 4
try 0 "inspect" "$moec" inspect "$work/gptq.moec"
says stdout 'dense-bits=4 dense-quantizer=gptq' "provenance says who encoded dense weights"

# ---- auto ----

auto() {
    "$moec" compile "$model" --profile "$work/p.h5" --dense-bits auto --policy uniform --quiet "$@"
}
try 0 "auto with room" auto --max-loss 20% --accept-miss -o "$work/auto.moec" --json
cp "$work/stdout" "$work/auto.json"
bits=$(sed -n '/"dense"/,$s/^ *"bits": \([0-9]*\),*$/\1/p' "$work/auto.json" | head -n 1)
smallest=$(sed -n '/"trials"/,$s/^ *"bundle_bytes": \([0-9]*\),*$/\1/p' "$work/auto.json" | sort -n | head -n 1)
check "auto takes the smallest bundle" "$(number "$work/auto.json" bundle_bytes) == $smallest"
check "fewer bits than the checkpoint has" "$bits < 16"
try 0 "inspect auto" "$moec" inspect "$work/auto.moec"
says stdout "dense-bits=auto dense-quantizer=gptq .*dense-bits-found=$bits" "provenance says what auto found"
try 0 "the plan of auto under a hard target" auto --max-loss 0.4% --dry-run
says stdout "^dense weights: .* bits.*[(]auto; 4 bits: .*, 8 bits: .* MB, 16 bits: .*[)]" "it says what each bitwidth came to"
try 1 "a target that nothing meets" auto --max-loss 0.02% --bits 2 --dry-run
says stderr "with dense weights at 4 to 16 bits, no assignment is within the target" "is explained"

# ---- refused ----

try 2 "auto without a loss target" "$moec" compile "$model" --profile "$work/p.h5" --dense-bits auto -o "$work/x.moec"
says stderr "give --max-loss" "is explained"
try 2 "GPTQ with nothing to look at" "$moec" compile $model --policy uniform --bits 4 --dense-bits 4 --dense-quantizer gptq \
    -o "$work/x.moec"
says stderr "give --profile or --data" "is explained"
try 2 "a quantizer of 16 bits" "$moec" compile $model --policy uniform --bits 4 --dense-quantizer linear -o "$work/x.moec"
says stderr "8 or 4 bits" "is explained"
try 2 "32 bits of a checkpoint that has 16" "$moec" compile $model --policy uniform --bits 4 --dense-bits 32 -o "$work/x.moec"
says stderr "give --dense-bits 16 to keep them" "is explained"
try 0 "F32 weights become BF16" "$moec" compile tests/fixtures/families/olmoe --policy uniform --bits 4 -o "$work/half.moec" --quiet
try 0 "or stay" "$moec" compile tests/fixtures/families/olmoe --policy uniform --bits 4 --dense-bits 32 \
    -o "$work/whole.moec" --quiet
check "which is larger" "$(wc -c <"$work/whole.moec") > $(wc -c <"$work/half.moec")"
try 1 "and nothing refused was written" test -e "$work/x.moec"

done_testing
