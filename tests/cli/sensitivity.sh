#!/bin/sh
# moec profile --sensitivity and --time-limit: what is chosen, what it says, what it costs, and what compile makes of it.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

fewer_layers 4
model=$sample
data="--data datasets/sample/calibration.txt --seq-len 32 --samples 32"

# number FILE KEY: a number of flat JSON.
number() {
    sed -n "s/^ *\"$2\": \([-0-9.e+]*\),*\$/\1/p" "$1" | head -n 1
}

# shellcheck disable=SC2086 # options are words
try 0 "fast" "$moec" profile "$model" $data --sensitivity fast -o "$work/fast.h5" --threads 1 --json
says stdout '"sensitivity": "fast"' "the JSON says so"
says stdout '"sensitivity_choice": "asked for"' "and why"
if awk "BEGIN { exit !($(number "$work/stdout" cost_passes) <= 4 + 4 + 4) }"; then
    pass "it costs at most 4 + layers passes, and 4 for compile's codes"
else
    fail "it costs at most 4 + layers passes, and 4 for compile's codes"
fi
try 0 "show" "$moec" profile --show "$work/fast.h5"
says stdout 'estimated' "the terminal says estimated"
# shellcheck disable=SC2086
try 0 "fast again on three threads with less memory" "$moec" profile "$model" $data --sensitivity fast -o "$work/again.h5" \
    --threads 3 --work-memory "$(mebibytes 64)"
says stdout 'sensitivity: estimated' "the report says estimated"
if cmp -s "$work/fast.h5" "$work/again.h5"; then
    pass "the same bytes"
else
    fail "the same bytes"
fi
# So few windows say little about others: what counts is that the certificate is measured, not that it is kept.
try 0 "compile from estimates" "$moec" compile "$model" --profile "$work/fast.h5" --max-loss 20% --policy marginal \
    --accept-miss -o "$work/fast.moec" --quiet
says stdout 'certificate: perplexity' "certifies by measuring"

# shellcheck disable=SC2086
try 0 "auto with no time" "$moec" profile "$model" $data --bits 2,4 --time-limit 0.001s -o "$work/auto.h5"
says stderr "sensitivity 'fast' is used: 'exact' would take about [0-9]+ passes" "says what it chose and why"
says stdout 'sensitivity: estimated from local errors \(auto: exact was expected to take more than 0.001 s\)' "so does the report"
# shellcheck disable=SC2086
try 0 "auto with time" "$moec" profile "$model" $data --bits 2,4 --sensitivity-samples 4 --time-limit 10h -o "$work/auto.h5" --force
says stdout 'sensitivity: measured \(auto: exact was expected to take less than 36000 s\)' "measures"
# shellcheck disable=SC2086
try 0 "compile --data takes the options" "$moec" compile "$model" $data --sensitivity fast --max-loss 20% \
    --policy marginal --accept-miss -o "$work/data.moec"

# shellcheck disable=SC2086
try 2 "a duration without unit" "$moec" profile "$model" $data --time-limit 30 -o "$work/bad.h5"
says stderr '90s, 30m or 2h' "is explained"
# shellcheck disable=SC2086
try 2 "a duration of nothing" "$moec" profile "$model" $data --time-limit 0s -o "$work/bad.h5"
# shellcheck disable=SC2086
try 2 "a time limit for what was asked for" "$moec" profile "$model" $data --sensitivity exact --time-limit 2h -o "$work/bad.h5"
says stderr 'time-limit chooses between' "is explained"
# shellcheck disable=SC2086
try 2 "an unknown mode" "$moec" profile "$model" $data --sensitivity quick -o "$work/bad.h5"
try 1 "nothing is left" test -e "$work/bad.h5"

# ---- a first look, from weights alone ----

model=datasets/sample/model

try 0 "a first look" "$moec" profile $model --sensitivity weights --bits 2,4 --table "$work/look.csv" \
    --heatmap "$work/look.png" --heatmap "$work/look-map.csv"
says stdout "^A first look at 'model', from weights alone" "says what it is"
says stdout '^ 2 bits +[0-9.]+% +[0-9.]+% +[0-9.]+%' "with each bitwidth"
says stdout '^   5  [0-9]{16}$' "a digit for each expert"
says stdout '^next: moec profile datasets/sample/model --data FILE -o profile.h5$' "and what measures"
if [ "$(wc -l <"$work/look.csv")" -eq 193 ] && [ "$(wc -l <"$work/look-map.csv")" -eq 97 ] && [ -s "$work/look.png" ]; then
    pass "table and heatmap have all experts"
else
    fail "table and heatmap have all experts"
fi
try 0 "as JSON, on other codes" "$moec" profile $model --sensitivity weights --bits 2 --quantizer hqq --group 64 --json
says stdout '"first_look": true' "says what it is"
# shellcheck disable=SC2086
try 2 "a first look at data" "$moec" profile $model $data --sensitivity weights
says stderr 'looks at weights alone and makes no profile: leave out --data' "is refused"
try 2 "and as a profile" "$moec" profile $model --sensitivity weights -o "$work/bad.h5"
try 2 "compile needs more" "$moec" compile $model --sensitivity weights --max-loss 2% -o "$work/x.moec"
try 2 "no data at all" "$moec" profile $model -o "$work/bad.h5"
says stderr 'give --data FILE, or --sensitivity weights for a first look' "names the first look"

done_testing
