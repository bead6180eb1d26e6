#!/bin/sh
# Options of compile that go together: the preset of the paper, and what a policy or a profile ignores, which is refused
# before any work.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model
data=datasets/sample/calibration.txt

# Refused before any work: the model does not exist.
refused() { # TITLE PATTERN OPTION...
    title=$1
    pattern=$2
    shift 2
    try 2 "$title" "$moec" compile "$work/no-model" -o "$work/x.moec" "$@"
    says stderr "$pattern" "says why"
}

# ---- the paper's setting ----

refused "paper with another policy" "preset paper means --policy edgemoe-literal, but --policy marginal" \
    --preset paper --policy marginal --data $data --max-loss 5%
refused "paper with a policy of one's own" "but --policy edgemoe-literal.lua is given" \
    --preset paper --policy edgemoe-literal.lua --data $data --max-loss 5%
refused "paper with another quantizer" "means --quantizer linear" --preset paper --quantizer auto --data $data --max-loss 5%
refused "paper with zeros" "means --scheme symmetric" --preset paper --scheme asymmetric --data $data --max-loss 5%
refused "paper with groups" "means --group channel, but --group 64" --preset paper --group 64 --data $data --max-loss 5%
refused "paper with dense weights quantised" "means --dense-bits 16" --preset paper --dense-bits auto --data $data --max-loss 5%
refused "paper with an interval" "means --confidence point, but --confidence 0.95" \
    --preset paper --confidence 0.95 --data $data --max-loss 5%
refused "paper with bits" "policy 'edgemoe-literal' ignores --bits" --preset paper --bits 4 --data $data --max-loss 5%
refused "a preset that is none" "--preset.*rock" --preset rock --data $data --max-loss 5%

try 0 "profile" measured_profile "$work/p.h5"
try 0 "a profile in groups" "$moec" profile $model --data $data --seq-len 16 --samples 32 --bits 2 --group 32 \
    --sensitivity none -o "$work/g.h5" --quiet
try 1 "paper with that profile" "$moec" compile $model --preset paper --profile "$work/g.h5" --max-loss 5% -o "$work/x.moec"
says stderr "g.h5' measured others: profile with" "says what to do"
try 0 "paper with a profile" "$moec" compile $model --preset paper --profile "$work/p.h5" --max-loss 5% --accept-miss \
    -o "$work/paper.moec" --quiet
says stdout "search: policy edgemoe-literal" "has its policy"
says stdout "one evaluation, a point estimate: no interval is promised" "says what its certificate is"
try 0 "the same in single options" "$moec" compile $model --policy edgemoe-literal --confidence point --dense-bits 16 \
    --profile "$work/p.h5" --max-loss 5% --accept-miss -o "$work/single.moec" --quiet
same "$work/paper.moec" "$work/single.moec" "gives the same bundle"
try 0 "paper with the same options beside it" "$moec" compile $model --preset paper --policy edgemoe-literal \
    --confidence point --dense-bits 16 --profile "$work/p.h5" --max-loss 5% --dry-run --json --quiet
cp "$work/stdout" "$work/literal.json"
try 0 "edgemoe" "$moec" compile $model --policy edgemoe --confidence point --profile "$work/p.h5" --max-loss 5% --dry-run \
    --json --quiet
sed -n '/"assignment"/,/"dense"/p' "$work/stdout" >"$work/kl.txt"
sed -n '/"assignment"/,/"dense"/p' "$work/literal.json" >"$work/loss.txt"
differ "$work/kl.txt" "$work/loss.txt" "ranks otherwise"
try 0 "paper from data" "$moec" compile $model --preset paper --sensitivity fast --data $data --seq-len 32 --samples 32 \
    --max-loss 20% --dry-run --quiet

# ---- what a policy ignores ----

for policy in edgemoe edgemoe-literal marginal; do
    refused "bits for $policy" "policy '$policy' ignores --bits" --policy $policy --bits 4 --data $data --max-loss 5%
done
for option in "bits 4" "quantizer hqq" "scheme asymmetric" "group 32" "baseline 16" "sensitivity exact" \
    "sensitivity-samples 8"; do
    # shellcheck disable=SC2086 # name and value
    refused "${option% *} for hull" "policy 'hull' ignores --${option% *}: .*another --policy, such as marginal" \
        --policy hull --data $data --max-loss 5% --$option
done
refused "time without data" '--time-limit has no effect when nothing is measured' --policy hull --max-loss 5% --time-limit 1h
refused "bits for the default" "policy .hull. ignores --bits: .*another --policy" --bits 4 --data $data --max-loss 5%
refused "uniform with bits and a target" "policy 'uniform' ignores --max-loss when --bits is given" \
    --policy uniform --bits 4 --data $data --max-loss 5%
refused "uniform with bits and a size" "policy 'uniform' ignores --max-size" --policy uniform --bits 4 --max-size 20MB
try 0 "bits with a target that chooses dense weights" "$moec" compile $model --policy uniform --bits 4 --dense-bits auto \
    --profile "$work/p.h5" --max-loss 50% --dry-run --quiet
echo "return function(m) return require('assignment').uniform(m, m.bits) end" >"$work/own.lua"
try 0 "a policy of one's own may use all" "$moec" compile $model --policy "$work/own.lua" --bits 8 \
    --profile "$work/p.h5" --max-loss 50% --dry-run --quiet

# ---- what a profile has already, and what needs data ----

for option in "group 32" "quantizer hqq" "scheme asymmetric" "baseline 16" "sensitivity fast" "time-limit 1min" "seq-len 64"; do
    # shellcheck disable=SC2086 # name and value
    refused "${option% *} with a profile" "--${option% *} has no effect: the profile '$work/p.h5' already fixes its value" \
        --policy marginal --profile "$work/p.h5" --max-loss 5% --$option
done
for option in "baseline 16" "sensitivity fast" "time-limit 1min" "seq-len 64" "samples 32" "task text"; do
    # shellcheck disable=SC2086 # name and value
    refused "${option% *} without data" "--${option% *} has no effect w" --policy uniform --bits 4 --$option
done
refused "samples with a profile" "--samples has no effect without --data" --profile "$work/p.h5" --max-loss 5% --samples 64

# ---- time ----

try 2 "no time at all" "$moec" compile $model --data $data --max-loss 5% --time-limit 0.001s -o "$work/x.moec"
says stderr '--time-limit is 0 s, but the shortest compile of this model takes about .* here' "says how much it takes"
try 2 "a limit of what cannot be foretold" "$moec" compile $model --data $data --task samsum --metric rouge-1 --max-loss 5% \
    --time-limit 1h -o "$work/x.moec"
says stderr '--time-limit works only for compiles that measure perplexity' "is refused"
try 0 "what a compile costs" "$moec" compile $model --profile "$work/p.h5" --max-loss 30% --dry-run --time-limit 100h
says stdout '^forecast: about .* on [0-9]+ threads here, .* on 16 idle cores like these$' "is said before its search"
says stdout '^    certifying +[0-9]+ windows +[0-9.]+ core-hours$' "by phase"
says stdout '^  disk: about .* of fitted weights in the journal' "with what the disk needs"
if grep -q 'time-limit' "$work/stderr"; then fail "time enough leaves out nothing"; else pass "time enough leaves out nothing"; fi

done_testing
