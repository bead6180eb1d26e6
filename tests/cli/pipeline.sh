#!/bin/sh
# The main job on the embedded sample, small: profile, show, compile with every policy, run, eval, inspect, verify.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model
small="--seq-len 32 --samples 96 --seed 1"
tiny="--seq-len 32 --samples 48 --bits 2,4 --seed 2"

# number FILE KEY: a number of flat JSON.
number() {
    sed -n "s/^ *\"$2\": \([-0-9.e+]*\),*\$/\1/p" "$1" | head -n 1
}
# holds NAME EXPRESSION: an awk expression is true.
holds() {
    if awk "BEGIN { exit !($2) }"; then
        pass "$1"
    else
        fail "$1 (not true: $2)"
    fi
}

# ---- profile ----

# shellcheck disable=SC2086 # options are words
try 0 "profile" "$moec" profile $model --data datasets/sample/calibration.txt $small -o "$work/profile.h5" \
    --heatmap "$work/map.png" --heatmap "$work/map.svg" --heatmap "$work/map.pdf" --heatmap "$work/map.csv" --json --threads 2
cp "$work/stdout" "$work/profile.json"
holds "the cost is at most 0.6 of the naive cost" \
    "$(number "$work/profile.json" cost_passes) <= 0.6 * $(number "$work/profile.json" naive_passes)"
says stdout '"next_layer_gate"' "the JSON has the recall of the next layer's gate"
holds "the load's entropy is a share" "0 < $(number "$work/profile.json" entropy) && $(number "$work/profile.json" entropy) <= 1"
holds "gate inputs of neighbouring layers are alike" "0 < $(number "$work/profile.json" cosine) && $(number "$work/profile.json" cosine) < 1"
holds "2k guesses find more than k" "$(number "$work/profile.json" 2k) > $(number "$work/profile.json" k)"
cp "$work/profile.json" "$work/stdout"
says stdout '"Verdict: with compile.s default quantization, all experts at one bitwidth need' "JSON has the verdict in words"
says stdout '"saving": -?0\.[0-9]' "and in numbers"
says stdout '"additivity": [0-9]' "and whether single losses add up"
says stdout '"median_tokens": [1-9]' "and the coverage"
for ending in png svg pdf csv; do
    try 0 "heatmap as $ending" test -s "$work/map.$ending"
done
# shellcheck disable=SC2086
try 0 "profile with few windows" "$moec" profile $model --data datasets/sample/calibration.txt $tiny -o "$work/tiny.h5" --quiet
try 0 "a model that takes less time" random_model "$work/random"
# shellcheck disable=SC2086
set -- "$moec" profile "$work/random" --data datasets/sample/calibration.txt $tiny --anyway --quiet
try 0 "profile on one thread" "$@" -o "$work/one.h5" --threads 1
no_room "a profile without room" "$@" -o "$work/again.h5" --threads 3
try 0 "the same on three threads with little working memory" "$@" -o "$work/again.h5" --threads 3 --work-memory "${bound}MiB"
same "$work/one.h5" "$work/again.h5" "profiles are equal byte for byte at any thread count and working memory"
try 0 "on as many as OpenMP is told of" env OMP_NUM_THREADS=4 OMP_SCHEDULE=static "$@" -o "$work/openmp.h5"
same "$work/one.h5" "$work/openmp.h5" "and the same again"
try 0 "profile --show" env LC_ALL=C "$moec" profile --show "$work/profile.h5"
if [ "$(wc -L <"$work/stdout")" -le 80 ]; then
    pass "--show stays within 80 columns"
else
    fail "--show stays within 80 columns"
fi
says stdout 'layer|Layer' "--show labels its axes"
says stdout '^Verdict: ' "--show says what to conclude"
says stdout '^loss    bits         size   mixing       bits         size   mixing$' "and what one plan for all experts takes"
if grep -qE '^(Spread|Noise|Coverage|routing of)' "$work/stdout"; then fail "and no more"; else pass "and no more"; fi
try 0 "profile --show --verbose" "$moec" profile --show "$work/profile.h5" --verbose
says stdout 'predicted by next-layer gate +[0-9.]+% +[0-9.]+% +[0-9.]+%' "says what predicts routing"
says stdout 'paths of [0-9]+ tokens' "counts paths"
says stdout '^Spread: ' "says how experts differ"
says stdout '^Coverage: 48 windows with [0-9]+ tokens' "and whether the data is enough"
try 0 "profile --show --json" "$moec" profile --show "$work/profile.h5" --json
if [ "$(number "$work/stdout" median_tokens)" = "$(number "$work/profile.json" median_tokens)" ]; then
    pass "the same from the file"
else
    fail "the same from the file"
fi
try 0 "profile --show in colour" "$moec" profile --show "$work/profile.h5" --color always
says stdout "$(printf '\033')\[" "colour is there when asked for"
try 0 "profile of a group size and scheme, F16 baseline" "$moec" profile $model --data datasets/sample/calibration.txt \
    --seq-len 16 --samples 32 --bits 2 --group 32 --scheme asymmetric --baseline 16 -o "$work/group.h5" --quiet

# ---- compile ----

for policy in edgemoe marginal uniform; do
    try 0 "compile --policy $policy" "$moec" compile $model --profile "$work/profile.h5" --max-loss 5% --policy $policy \
        -o "$work/$policy.moec" --json --quiet
    cp "$work/stdout" "$work/$policy.json"
    holds "$policy: the certificate keeps the promise" "$(number "$work/$policy.json" loss) <= 0.05"
    holds "$policy: the size that was promised is the size of the file" \
        "$(number "$work/$policy.json" bundle_bytes) == $(wc -c <"$work/$policy.moec")"
    try 0 "$policy: verify" "$moec" verify "$work/$policy.moec"
done
holds "edgemoe is at most as large as uniform" "$(wc -c <"$work/edgemoe.moec") <= $(wc -c <"$work/uniform.moec")"
try 0 "compile again" "$moec" compile $model --policy edgemoe --profile "$work/profile.h5" --max-loss 5% -o "$work/twice.moec" --quiet --threads 1
same "$work/edgemoe.moec" "$work/twice.moec" "the same inputs give the same bytes at any thread count"

# 24 windows of 32 tokens are few: what the search accepts on them may lose more than 5% on others, and safer plans are too
# large.
try 1 "a missed promise" "$moec" compile $model --policy edgemoe --profile "$work/tiny.h5" --max-loss 5% --max-size 2400KB \
    -o "$work/missed.moec" --quiet
says stderr 'safest of [0-9]+ plans has a loss of .* on the certificate part .* the target is 5.000%, so nothing was written' "is explained"
try 1 "and leaves nothing" test -e "$work/missed.moec"
try 0 "--accept-miss writes it" "$moec" compile $model --policy edgemoe --profile "$work/tiny.h5" --max-loss 5% --max-size 2400KB \
    --accept-miss -o "$work/missed.moec" --quiet
try 0 "inspect of it" "$moec" inspect "$work/missed.moec"
says stdout 'MISSED' "shows the mark"

try 0 "a plan only" "$moec" compile $model --policy edgemoe --profile "$work/profile.h5" --max-loss 5% --dry-run --quiet
says stdout 'plan \(nothing written\)' "and says so"
try 0 "compile --max-size" "$moec" compile $model --policy edgemoe --profile "$work/profile.h5" --max-size 3400KB -o "$work/size.moec" --quiet
holds "the size is kept" "$(wc -c <"$work/size.moec") <= 3400000"
try 1 "an impossible size" "$moec" compile $model --policy edgemoe --profile "$work/profile.h5" --max-size 100KB -o "$work/none.moec" --quiet
try 1 "leaves nothing" test -e "$work/none.moec"
try 1 "an impossible loss and size" "$moec" compile $model --policy edgemoe --profile "$work/profile.h5" --max-loss 0.01% --max-size 2MB \
    -o "$work/none.moec" --quiet
try 1 "leaves nothing either" test -e "$work/none.moec"
try 0 "compile with copies and dense weights at 8 bits" "$moec" compile $model --policy edgemoe --profile "$work/profile.h5" --max-loss 5% \
    --copies 2,8 --dense-bits 8 -o "$work/copies.moec" --quiet
try 0 "inspect" "$moec" inspect "$work/copies.moec"
says stdout 'copy 2:.* 8.00 bits' "inspect lists the copies"
try 0 "inspect --json" "$moec" inspect --json "$work/copies.moec"
says stdout '"loss":' "its certificate is in the JSON"
cat >"$work/mine.lua" <<'EOF'
local assignment = require "assignment"
return function(moec)
  local mine = assignment.uniform(moec, 8)
  mine[1][1] = 2
  assert(moec.evaluate(mine).loss_high < 1)
  return mine
end
EOF
try 0 "a policy of one's own" "$moec" compile $model --profile "$work/profile.h5" --max-loss 5% --policy "$work/mine.lua" \
    -o "$work/mine.moec" --quiet
# The worked examples of the documentation.
awk '/^```lua/ { on = ++n; next } /^```/ { on = 0 } on == 1' lua/README.md >"$work/documented.lua"
try 0 "the documented policy works" "$moec" compile $model --profile "$work/profile.h5" --max-loss 8% \
    --policy "$work/documented.lua" -o "$work/documented.moec" --quiet

refused() { # NAME PATTERN SOURCE
    printf '%s\n' "$3" >"$work/bad.lua"
    try 1 "policy: $1" timeout 120 "$moec" compile $model --profile "$work/profile.h5" --max-loss 5% \
        --policy "$work/bad.lua" -o "$work/bad.moec" --quiet
    says stderr "$2" "policy: $1 is explained"
    try 1 "policy: $1 leaves nothing" test -e "$work/bad.moec"
}
refused "wrong bitwidth" 'no valid bitwidth at \[1\]\[2\]' \
    'return function(m) local a = require("assignment").uniform(m, 4) a[1][2] = 7 return a end'
refused "a layer missing" 'layers, expected' 'return function(m) return {{4}} end'
refused "no function" 'expected a function' 'return 42'
refused "a syntax error" 'bad.lua:[12]:' 'return function('
refused "memory hog" 'MiB of memory' 'return function() local t = {} while true do t[#t + 1] = ("x"):rep(1e6) .. #t end end'
refused "an assignment that loses too much" 'the target is' 'return function(m) return require("assignment").uniform(m, 2) end'
try 1 "an unknown policy" "$moec" compile $model --profile "$work/profile.h5" --max-loss 5% --policy nope -o "$work/bad.moec"
says stderr 'edgemoe-literal, edgemoe, hull, marginal, uniform' "the message lists the built-in ones"
try 2 "a loss of 2 without percent" "$moec" compile $model --policy edgemoe --profile "$work/profile.h5" --max-loss 2 -o "$work/bad.moec"
says stderr "'2%' is 0.02" "the message says how to write it"

# ---- eval, run ----

try 0 "eval of the folder" "$moec" eval $model --data datasets/sample/test.txt --seq-len 64 --samples 40 --json --quiet
folder=$(number "$work/stdout" value)
try 0 "eval of a bundle against it" "$moec" eval "$work/edgemoe.moec" --data datasets/sample/test.txt --seq-len 64 --samples 40 \
    --reference $model --json --quiet
holds "the reference is the folder's value" "$(number "$work/stdout" reference) == $folder"
holds "the loss is what the values say" \
    "($(number "$work/stdout" value) / $folder - 1 - $(number "$work/stdout" loss)) ^ 2 < 1e-18"

try 0 "run" "$moec" run "$work/edgemoe.moec" -p "The old" -n 48
cp "$work/stdout" "$work/text"
floor=$(floor_bytes "$build/moec-run" "$work/edgemoe.moec" -p "The old" --ctx 128)
for above in 800000 2000000 50000000; do
    budget=$((floor + above))
    try 0 "run in $above bytes above the floor" "$build/moec-run" "$work/edgemoe.moec" -p "The old" -n 48 --memory $budget \
        --ctx 128 --stats json
    same "$work/text" "$work/stdout" "the text is the same there"
    within_budget "and the peak within the budget" $budget
done
# A budget that does not hold all experts is used up, but for half a mebibyte and 4 percent: the best of eight starts.
try 0 "a bundle of larger experts" "$moec" compile $model --policy uniform --bits 8 -q -o "$work/large.moec"
floor=$(floor_bytes "$build/moec-run" "$work/large.moec" -p "The old" --ctx 128)
best=0
budget=$((floor + 1048576))
for _ in 1 2 3 4 5 6 7 8; do
    "$build/moec-run" "$work/large.moec" -p "The old" -n 400 --ctx 128 --ignore-eos --memory $budget --stats json >"$work/stdout" 2>"$work/stderr"
    peak=$(grep -o '"peak_bytes": *[0-9]*' "$work/stderr" | head -n 1 | grep -o '[0-9]*$')
    [ "${peak:-0}" -gt "$best" ] && best=$peak
done
if takes_memory; then
    skip "a small budget is used up" "a sanitizer takes memory of its own"
elif [ "$best" -le "$budget" ] && [ "$best" -ge $((budget - 524288 - budget / 25)) ]; then
    pass "a small budget is used up"
else
    fail "a small budget is used up (peak $best of $budget)"
fi
for policy in fifo lru lfu edgemoe edgemoe-literal arc random hobbit lhu fate; do
    try 0 "run with eviction $policy" "$build/moec-run" "$work/edgemoe.moec" -p "The old" -n 48 --ctx 128 \
        --memory $((floor + 800000)) --stats --evict $policy
    same "$work/text" "$work/stdout" "the text is the same with eviction $policy"
    says stderr "eviction $policy\$" "the figures name eviction $policy"
    says stderr 'peak [0-9.]* MiB of budget [0-9.]* MiB' "and peak and budget"
done
try 2 "run with an unknown eviction" "$build/moec-run" "$work/edgemoe.moec" -p "The old" --evict belady
for cpu in scalar avx2 avx2-gfni avx512 avx512-vbmi; do
    "$moec" run "$work/edgemoe.moec" -p "The old" -n 48 --cpu $cpu --threads 1 >"$work/stdout" 2>"$work/stderr"
    if grep -q 'cannot run\|not support\|does not' "$work/stderr"; then
        skip "the text is the same with $cpu" "this machine has no $cpu"
    else
        same "$work/text" "$work/stdout" "the text is the same with $cpu"
    fi
done
try 1 "run in far too little memory" "$build/moec-run" "$work/edgemoe.moec" -p "The old" --memory 2MiB
says stderr 'dense' "the message itemises the floor"
# advised NAME COMMAND...: what is refused ends with a command, and that one works.
advised() {
    try 1 "$@"
    says stderr "$advice" "says how it would work"
    advised=$(tail -n 1 "$work/stderr")
    named=$(named_floor <"$work/stderr")
    try 0 "and so it does" sh -c "$advised"
}
advice='^this memory is enough:$'
advised "a quarter of what it takes" "$build/moec-run" "$work/edgemoe.moec" -p "The old" --memory $((floor / 4))
bytes=$(printf '%s\n' "$advised" | sed -n 's/.*--memory \([0-9.]*\)MiB.*/\1 * 1048576/p' | sed 's/^/BEGIN { print int(/; s/$/) }/')
bytes=$(awk "${bytes:-BEGIN { print 0 \}}")
if [ "$bytes" -ge $((named + 524288)) ] && [ "$bytes" -le $((named + 524288 + named / 25)) ]; then
    pass "with half a mebibyte to spare, and at most 4 percent more"
else
    fail "with half a mebibyte to spare, and at most 4 percent more (floor $named, advised $bytes)"
fi
refused=0
n=100
takes_memory && n=5
for _ in $(seq $n); do
    advised=$("$build/moec-run" "$work/edgemoe.moec" -p "The old" -n 2 --memory $((floor / 4)) 2>&1 | tail -n 1)
    sh -c "$advised" >/dev/null 2>&1 || refused=$((refused + 1))
done
if [ $refused -eq 0 ]; then
    pass "what each of $n refusals advises works"
else
    fail "what $refused of $n refusals advise is refused"
fi
advice='^the longest context that fits has [0-9]+ tokens:$'
beside=1400000
takes_memory && beside=4000000 # what the process itself takes differs from run to run under a sanitizer
advised "a text that is too long for the memory" "$build/moec-run" "$work/edgemoe.moec" -p "The old" -n 1000 --memory $((floor + beside))
full=$(floor_bytes "$moec" run "$work/edgemoe.moec" -p "The old" -n 48)
advice='^moec-run, a smaller program'
advised "what only the smaller program can do" "$moec" run "$work/edgemoe.moec" -p "The old" -n 48 --memory $((full - 4000000))
same "$work/text" "$work/stdout" "with the same text"
try 0 "prompt from standard input" sh -c "printf 'The old' | '$moec' run '$work/edgemoe.moec' - -n 48"
same "$work/text" "$work/stdout" "the same text from standard input"
first=$(head -c 12 "$work/text" | tail -c 4)
try 0 "run --stop" "$moec" run "$work/edgemoe.moec" -p "The old" -n 48 --stop "$first"
if [ "$(head -c 8 "$work/text")" = "$(head -c 8 "$work/stdout")" ] && ! grep -qF -e "$first" "$work/stdout"; then
    pass "output ends before the stop text"
else
    fail "output ends before the stop text '$first'"
fi
try 0 "sampling" "$moec" run "$work/edgemoe.moec" -p "The old" -n 32 --temp 0.9 --top-k 20 --top-p 0.9 --seed 3
cp "$work/stdout" "$work/sampled"
try 0 "sampling again" "$moec" run "$work/edgemoe.moec" -p "The old" -n 32 --temp 0.9 --top-k 20 --top-p 0.9 --seed 3 --threads 1
same "$work/sampled" "$work/stdout" "the same seed gives the same text"
try 0 "a precision copy" "$moec" run "$work/copies.moec" -p "The old" -n 8 --copy 2
try 2 "a copy that is not there" "$moec" run "$work/copies.moec" -p "The old" -n 8 --copy 5
try 1 "a prompt longer than the context" "$moec" run "$work/edgemoe.moec" -p "The old miller went to the mill." --ctx 2
try 2 "an empty prompt" "$moec" run "$work/edgemoe.moec" -p ""

done_testing
