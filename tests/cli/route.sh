#!/bin/sh
# Routing that prefers a logical cache: what it changes, what it costs, and that nothing else decides about it.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
sample=datasets/sample/model
text=datasets/sample/test.txt
check() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1: $2"; fi
}
number() {
    sed -n "s/^.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$work/stdout" | head -n 1
}

# ---- eval ----

evaluate() {
    try 0 "eval $*" "$moec" eval $sample --data $text --samples 8 --seq-len 128 --reference $sample --json -q --route "$@"
    missed=$(number experts_missed) taken=$(number experts_taken) loss=$(number loss)
    belady=$(number belady_missed) stay=$(number stay_tokens_mean)
}
evaluate top-k --slots 25%
check "Belady's rule gains nothing where the slots are those of one token" "$belady == $missed"
evaluate top-k
check "and misses less where there are more" "$belady < 0.9 * $missed && $belady > 0.3 * $missed"
check "an expert stays for slots / misses a token" "$stay > 0.95 * 8 * $taken / $missed / 4 && $stay < 1.05 * 8 * $taken / $missed / 4"
plain_stay=$stay
plain_missed=$missed plain_taken=$taken
check "top-k loses nothing" "$loss == 0 && $missed > 0 && $missed < $taken"
evaluate top-k --slots 100%
check "what a cache of all experts misses is there once" "$missed < $plain_missed / 2"
evaluate cache-prior:0
check "no prior changes nothing" "$loss == 0 && $missed == $plain_missed"
evaluate cache-prior:0.3
prior_missed=$missed prior_loss=$loss
check "with a prior experts stay longer" "$stay > $plain_stay && $belady <= $missed"
check "a prior misses less" "$missed < 0.8 * $plain_missed && $taken == $plain_taken && $loss != 0"
evaluate cache-prior:0.3 --keep-top 1
check "less so where the best is kept" "$missed > $prior_missed && $missed < $plain_missed"
evaluate cache-prior:0.3 --prompt-tokens 64
check "of half a window as prompt nothing counts" "$taken < 0.51 * $plain_taken && $taken > 0.49 * $plain_taken && $missed < $prior_missed && $loss < $prior_loss"
evaluate max-rank:5
check "the cached of the best five" "$missed < $plain_missed && $loss != 0"
evaluate cumsum:0.8
check "the cached of a share of 0.8" "$missed < $plain_missed && $loss != 0"
evaluate prune:1
check "one expert a token" "$taken * 4 == $plain_taken && $loss > 0"
evaluate cache-prior:0.3:skip:0.2
check "with a prior that skips misses of little weight fewer" "$missed < $prior_missed && $(number experts_skipped) + $taken == $plain_taken"
evaluate top-k:skip:1
check "what skips all misses takes only what the empty cache holds" "$missed == 0 && $taken == 0 && $loss > 0"
try 0 "in words" "$moec" eval $sample --data $text --samples 2 --route top-k:skip:0.2 -q
says stdout '^skipped *[1-9][0-9.]*% of the experts chosen' "says how many are skipped"
try 0 "eval in words" "$moec" eval $sample --data $text --samples 2 --route cache-prior:0.3 --slots 5 -q
says stdout "cache *an expert stays for [0-9.]+ tokens .*Belady's rule, .* would miss [0-9.]+% of" "says how long experts stay"
says stdout 'route *cache-prior:0.3 *[0-9.]+% of [0-9]+ experts taken miss a cache of 5 experts a layer' "says how many miss"

# ---- refusals ----

refused() {
    words=$1
    shift
    try 2 "refused: $*" "$moec" eval $sample --data $text --samples 2 -q "$@"
    says stderr "$words" "says why"
}
refused "unknown route 'prior'.*cache-prior:SHARE" --route prior
refused "cache-prior.*'2', expected a share of 0 to 1" --route cache-prior:2
refused "'skip:2', expected skip:W with a weight W above 0 and at most 1" --route top-k:skip:2
refused "prune:4 keeps all 4" --route prune:4
refused "cache has room for 1 experts.*expected 4" --route top-k --slots 1
refused "changes nothing" --route cache-prior:0.2 --keep-top 4
refused "slots does nothing without --route" --slots 4
refused "prompt-tokens does nothing without --route" --prompt-tokens 4

# ---- run ----

try 0 "a bundle" "$moec" compile $sample --policy uniform --bits 4 -q -o "$work/m.moec"
try 2 "all tokens, but nothing to decide" "$moec" run "$work/m.moec" -p x -n 1 --decide all
says stderr "without a route, a precision or a prefill" "says why"
generate() {
    "$moec" run "$work/m.moec" -p "The old miller had three sons and" -n 60 --ctx 128 --ignore-eos --stats json "$@" \
        >"$work/stdout" 2>"$work/stats"
}
generate && cp "$work/stdout" "$work/plain"
generate --route top-k
if cmp -s "$work/stdout" "$work/plain"; then pass "top-k changes no word"; else fail "top-k changes no word"; fi
generate --route cache-prior:0.5 && cp "$work/stdout" "$work/prior"
if cmp -s "$work/prior" "$work/plain"; then fail "a strong prior changes some"; else pass "a strong prior changes some"; fi
little=$(little_memory "$work/m.moec")
for how in "-t 1" "-t 3" "--cpu scalar" "--memory $little" "--memory $little --evict fifo --predict gate" "--draft lookup"; do
    # shellcheck disable=SC2086 # words
    generate --route cache-prior:0.5 $how
    if cmp -s "$work/stdout" "$work/prior"; then pass "the same with $how"; else fail "the same with $how"; fi
done
generate --route cache-prior:0.2:skip:0.3 && cp "$work/stdout" "$work/skipped"
if cmp -s "$work/skipped" "$work/plain"; then fail "skipping changes some"; else pass "skipping changes some"; fi
for how in "-t 1" "--cpu scalar" "--memory $little --evict fifo --predict gate" "--draft lookup"; do
    # shellcheck disable=SC2086 # words
    generate --route cache-prior:0.2:skip:0.3 $how
    if cmp -s "$work/stdout" "$work/skipped"; then pass "skips the same with $how"; else fail "skips the same with $how"; fi
done
generate --route cache-prior:0.5 --decide decode
if cmp -s "$work/stdout" "$work/prior"; then fail "a prompt that is not decided"; else pass "a prompt that is not decided"; fi
if grep -q '"route": "cache-prior:0.5", "decide": "decode", "experts_taken": [0-9]*, "experts_missed": [0-9]*' "$work/stats"; then
    pass "stats count"
else
    fail "stats count"
fi
# What is logically present is in memory, where the budget allows: whatever is evicted, no expert is read that
# the logical cache has.
stat() {
    sed -n "s/^.*\"$1\": *\([-0-9a-z.e+]*\).*/\1/p" "$work/stats" | head -n 1
}
# Experts of 16 bits: what a process takes by itself differs from one to the next by a part of what they do.
try 0 "a bundle of large experts" "$moec" compile $sample --policy uniform --bits 16 -q -o "$work/large.moec"
in_budget() {
    "$moec" run "$work/large.moec" -p "The old miller had three sons and" -n 60 --ctx 128 --ignore-eos --stats json \
        --route top-k --predict none "$@" >"$work/stdout" 2>"$work/stats"
}
in_budget --memory 1MiB
floor=$(named_floor <"$work/stats")
in_budget --memory $((floor + 1500000))
check "a small budget has no room for the logical cache" "\"$(stat keeps_logical_cache)\" == \"false\""
if grep -q '"note": "the expert buffer of [0-9.]* MiB is smaller than the experts in the logical cache' "$work/stats"; then
    pass "and says so"
else
    fail "and says so"
fi
budget=$(($(stat planned_bytes) - $(stat expert_buffer_bytes) + $(stat logical_cache_bytes) + $(stat logical_passing_bytes) + 1300000))
for evict in random lfu arc; do
    in_budget --evict $evict --memory $budget
    check "one that has it ($evict)" "\"$(stat keeps_logical_cache)\" == \"true\" && $(stat expert_buffer_bytes) >= $(stat logical_cache_bytes) + $(stat logical_passing_bytes) && $(stat expert_buffer_bytes) < $(stat expert_total_bytes)"
    reads=$(sed -n 's/.*"experts": {[^}]*"misses": \([0-9]*\).*/\1/p' "$work/stats")
    check "reads nothing again that the cache has" "$reads > 0 && $reads <= $(stat experts_missed)"
done
try 0 "in words" "$moec" run "$work/large.moec" -p x -n 4 --ctx 128 --route top-k --slots 75% --memory $((floor + 1500000)) --stats
says stderr "more than the buffer: some experts are read again; --memory [0-9.]+ MiB would hold them all" "with what would hold it"
try 0 "with room" "$moec" run "$work/m.moec" -p x -n 4 --ctx 64 --route top-k --stats
says stderr "it may hold [0-9.]+ [KM]iB, which stay in memory" "it says that"
try 0 "a bench with little memory" "$moec" bench "$work/m.moec" --samples 1 --data $text --memory 25% --route top-k -q
says stdout "has no room for all experts of the logical cache .[0-9.]+ [kKM]i?B.: this row is slower, but its output is the same" "names the rows"

try 0 "a bench" "$moec" bench "$work/m.moec" --samples 2 --data $text --memory 50% --route cache-prior:0.3 --json -q
missed_prior=$(number miss_rate)
says stdout '"route": "cache-prior:0.3"' "names its route"
try 0 "and without" "$moec" bench "$work/m.moec" --samples 2 --data $text --memory 50% --json -q
check "which misses more" "0$(number miss_rate) > 0$missed_prior && 0$missed_prior > 0"

# ---- what the cache holds at first ----

try 0 "a profile" "$moec" profile $sample --data datasets/sample/calibration.txt --seq-len 16 --samples 32 --bits 2 \
    --sensitivity none -q -o "$work/p.h5"
try 0 "a bundle that knows frequencies" "$moec" compile $sample --policy uniform --bits 4 --profile "$work/p.h5" -q -o "$work/p.moec"
begin() {
    try 0 "a cache that begins $*" "$moec" eval "$work/p.moec" --data $text --samples 8 --seq-len 32 --json -q --route "$@"
    missed=$(number experts_missed) value=$(number value)
}
begin top-k
empty=$missed plain=$value
begin top-k --cache-start empty
check "is empty by itself" "$missed == $empty && $value == $plain"
begin top-k --cache-start frequency
check "misses less with what is frequent" "$missed < $empty && $missed > 0.5 * $empty && $value == $plain"
begin cache-prior:0.4
empty=$missed plain=$value
begin cache-prior:0.4 --cache-start frequency
check "which a prior notices" "$missed < $empty && $value != $plain"
# What the prior is a share of.
begin cache-prior:0.4:running
check "is the running average by itself" "$missed == $empty && $value == $plain"
begin cache-prior:0.4:calibrated
check "calibration's range is another, and not far" "$missed != $empty && $missed < 1.2 * $empty && $missed > 0.8 * $empty"
calibrated=$missed
begin cache-prior:0.4:own
check "and a token's own another" "$missed != $empty && $missed != $calibrated"
refused "has no calibrated ranges of its routers' scores: use a bundle" --route cache-prior:0.2:calibrated
refused "has the range 'mean', expected running, calibrated or own" --route cache-prior:0.2:mean
refused "does not say how often experts are used: compile the model with a profile" --route top-k --cache-start frequency
refused "cache-start does nothing without --route" --cache-start frequency
start() {
    "$moec" run "$work/p.moec" -p "The old miller had three sons and" -n 60 --ctx 128 --ignore-eos --route cache-prior:0.5 \
        --cache-start frequency "$@" >"$work/stdout" 2>"$work/stats"
}
start && cp "$work/stdout" "$work/started"
little=$(little_memory "$work/p.moec")
for how in "-t 1" "--memory $little"; do
    # shellcheck disable=SC2086 # words
    start $how
    if cmp -s "$work/stdout" "$work/started"; then pass "it begins the same with $how"; else fail "it begins the same with $how"; fi
done

# Encoder and decoder have a cache each; one expert a token.
switch=datasets/switch-sample/model
try 0 "an encoder-decoder bundle" "$moec" compile $switch --policy uniform --bits 4 -q -o "$work/s.moec"
for how in "" "--route top-k" "--route cache-prior:0.4" "--route cache-prior:0.4 -t 3"; do
    # shellcheck disable=SC2086 # words
    try 0 "switch $how" "$moec" run "$work/s.moec" -p "Anna: Are you there? Ben: Yes, I am at home." -n 20 --beams 2 $how
    cp "$work/stdout" "$work/switch.$(echo "$how" | tr -dc 'a-z0-9')"
done
if cmp -s "$work/switch." "$work/switch.routetopk" && cmp -s "$work/switch.routecacheprior04" "$work/switch.routecacheprior04t3"; then
    pass "its texts are as they should be"
else
    fail "its texts are as they should be"
fi

done_testing
