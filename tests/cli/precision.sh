#!/bin/sh
# The precision of an expert at a miss: what it changes and costs, that nothing but the settings and the tokens decides
# about it, and that low copies are really read.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
fewer_layers 4
text=datasets/sample/test.txt
check() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1: $2"; fi
}
number() {
    sed -n "s/^.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$work/stdout" | head -n 1
}
try 0 "a bundle with copies" "$moec" compile "$sample" --policy uniform --bits 4 --copies 2,8 -q -o "$work/m.moec"

# ---- eval ----

evaluate() {
    try 0 "eval $*" "$moec" eval "$work/m.moec" --data $text --samples 8 --seq-len 128 --reference "$work/m.moec" --json -q "$@"
    missed=$(number experts_missed) taken=$(number experts_taken) loss=$(number loss) bytes=$(number missed_bytes_per_token)
    low=$(number experts_low) low_missed=$(number experts_low_missed) skipped=$(number experts_skipped)
}
evaluate --route top-k
plain_missed=$missed plain_taken=$taken plain_bytes=$bytes
check "the router's choice loses nothing" "$loss == 0 && $plain_bytes > 0"
evaluate --precision hobbit:1
check "nor does a threshold of 1" "$loss == 0 && $missed == $plain_missed && $low == 0 && $skipped == 0 && $bytes == $plain_bytes"
evaluate --precision hobbit:0.5:1
hobbit_loss=$loss hobbit_low=$low
check "low copies read less" "$bytes < 0.8 * $plain_bytes && $low > 0 && $low_missed < $low && $skipped == 0"
check "and take as many experts" "$taken == $plain_taken && $loss != 0"
evaluate --precision hobbit:0.5:1 --low-bits 2 --low-slots 4
check "as named one by one" "$loss == $hobbit_loss && $low == $hobbit_low"
evaluate --precision hobbit:0.5:0.5
check "skipping reads less still" "$skipped > 0 && $low == 0 && $taken + $skipped == $plain_taken && $bytes < $plain_bytes"
evaluate --precision always:0.5:1
check "without a look at the cache more are low" "$low > $hobbit_low && $loss > $hobbit_loss"
evaluate --precision fate
fate_low=$low fate_loss=$loss
check "what no layer foresees is low, however it weighs" "$low > 0 && $skipped == 0 && $taken == $plain_taken && $loss != 0"
check "and the missed experts that are foreseen are read as they are" "$bytes < $plain_bytes && $low < $plain_missed"
evaluate --precision fate:25%
check "a quarter is the width without one" "$low == $fate_low && $loss == $fate_loss"
evaluate --precision fate:1
check "of a narrower one more are low" "$low > $fate_low && $taken == $plain_taken"
evaluate --precision fate --prompt-tokens 64
check "and fewer after a prompt" "$low < $fate_low && $low > 0"
evaluate --precision fate --route cache-prior:0.3
check "or with a prior" "$low < $fate_low && $missed < 0.8 * $plain_missed"
evaluate --precision hobbit:0.5:1 --prompt-tokens 64
check "and fewer where half of a window is a prompt" "$low < $hobbit_low && $low > 0"
evaluate --precision hobbit:0.5:1 --route cache-prior:0.3
check "a prior leaves fewer to miss" "$missed < 0.8 * $plain_missed && $low < $hobbit_low && $low > 0"
try 0 "eval in words" "$moec" eval "$work/m.moec" --data $text --samples 2 --precision hobbit -q
says stdout 'precision *hobbit *[0-9.]+% of the experts high, [0-9.]+% low \([0-9.]+% misses of a cache of 4\), [0-9.]+% skipped' "says the shares"
says stdout 'missed *[0-9.]+ KiB of experts a token' "and the bytes"
try 0 "low copies of a checkpoint are made on demand" "$moec" eval "$sample" --data $text --samples 8 --reference "$sample" \
    --precision always:0:1 --low-bits 2 --json -q
coarse=$(number loss)
try 0 "at any bitwidth" "$moec" eval "$sample" --data $text --samples 8 --reference "$sample" --precision always:0:1 --low-bits 8 --json -q
check "of which more bits lose less" "0 + $(number loss) < $coarse / 4"

# ---- prompts ----

evaluate --prefill unpopular:0
block_bytes=$bytes
check "by block a prompt reads less" "$loss == 0 && $low == 0 && $bytes < $plain_bytes && $taken == $plain_taken"
evaluate --prefill unpopular:0.5:16
unpopular_loss=$loss unpopular_low=$low
check "unpopular experts in low copies cost accuracy" "$loss != 0 && $low > 0 && $skipped == 0 && $taken == $plain_taken"
evaluate --prefill unpopular:0.5:16 --prompt-tokens 64
check "in the prompt alone" "$low > 0 && $low < $unpopular_low && $loss != $unpopular_loss"
evaluate --prefill unpopular:0.5:128
check "the first block is unknown without calibration" "$low == 0 && $loss == 0"
evaluate --prefill whole:0.5 --slots 4 --low-slots 4
check "by the counts of the whole prompt it is known" "$low > 0 && $bytes < $block_bytes"
whole_low=$low
evaluate --prefill popular:0.5 --slots 4 --low-slots 4
check "popular experts in low copies are those of most tokens" "$low > $whole_low"
evaluate --precision hobbit:0.5:1:0
check "a prompt without blocks is as other tokens" "$loss == $hobbit_loss && $low == $hobbit_low"
evaluate --precision hobbit:0.5:1:32
check "a block's first token decides for it" "$low > 0 && $loss != $hobbit_loss && $taken == $plain_taken"
evaluate --precision hobbit:0.5:1:32 --prompt-tokens 64
check "of the prompt alone" "$low > 0 && $loss != $hobbit_loss && $low != $hobbit_low"
evaluate --prefill unpopular:0.5:16 --precision hobbit:0.5:1 --route cache-prior:0.2
check "with a precision and a prior more are low" "$low > 0 && $loss != $unpopular_loss"
try 0 "eval of a prompt in words" "$moec" eval "$work/m.moec" --data $text --samples 2 --prefill unpopular -q
says stdout 'prefill *unpopular' "names the prefill"

# ---- refusals ----

refused() {
    words=$1
    shift
    try 2 "refused: $*" "$@"
    says stderr "$words" "says why"
}
refused "unknown precision 'low'.*hobbit:T1:T2" "$moec" eval "$work/m.moec" --data $text -q --precision low
refused "unknown precision 'hobbit:0.8:0.2'" "$moec" eval "$work/m.moec" --data $text -q --precision hobbit:0.8:0.2
refused "unknown precision 'fate:0'.*fate:W" "$moec" eval "$work/m.moec" --data $text -q --precision fate:0
refused "takes all 16 experts.*fate:1 to fate:15" "$moec" eval "$work/m.moec" --data $text -q --precision fate:16
refused "low-bits does nothing without --precision or --prefill" "$moec" run "$work/m.moec" -p x --low-bits 2
refused "low-slots does nothing without --precision or --prefill" "$moec" run "$work/m.moec" -p x --route top-k --low-slots 4
refused "no precision copy at 8 bits that is smaller" "$moec" run "$work/m.moec" -p x --precision hobbit --low-bits 8
refused "cache has room for 1 low-precision copies.*expected 4" "$moec" run "$work/m.moec" -p x --precision hobbit --low-slots 1
refused "mode 'io-qfree' runs only one precision copy" "$moec" run "$work/m.moec" -p x --precision hobbit --mode io-qfree
refused "low-precision copies of experts at 16 bits are not smaller than.*which have 16 bits: give fewer bits" "$moec" eval "$sample" --data $text -q --precision hobbit --low-bits 16
refused "unknown prefill 'often'.*unpopular:SHARE:TOKENS" "$moec" eval "$work/m.moec" --data $text -q --prefill often
refused "a prefill applies to prompts" "$moec" run "$work/m.moec" -p x --prefill unpopular --decide decode
refused "mode 'io-qfree' runs only one precision copy: leave out prefill" "$moec" run "$work/m.moec" -p x --prefill unpopular --mode io-qfree
try 0 "a bundle without copies" "$moec" strip "$work/m.moec" --copies 2,8 -o "$work/one.moec"
refused "no precision copy that is smaller.*--copies 2" "$moec" run "$work/one.moec" -p x --precision hobbit
try 0 "a top-1 bundle" "$moec" compile datasets/switch-sample/model --policy uniform --bits 4 --copies 2 -q -o "$work/s.moec"
refused "uses one expert.*changes nothing" "$moec" run "$work/s.moec" -p x --precision hobbit

# ---- run ----

generate() {
    "$moec" run "$work/m.moec" -p "The old miller had three sons and" -n 60 --ctx 128 --ignore-eos --stats json "$@" \
        >"$work/text" 2>"$work/stdout"
}
same() {
    if cmp -s "$work/text" "$1"; then pass "$2"; else fail "$2"; fi
}
# With the decisions that take the most memory; what the process itself takes differs a little from run to run.
floor=$(floor_bytes "$moec" run "$work/m.moec" -p "The old miller had three sons and" -n 60 --ctx 128 --precision hobbit \
    --route cache-prior:0.2)
tight=$((floor + 1200000))
generate --memory $tight && cp "$work/text" "$work/plain"
generate --memory $tight --precision hobbit:0.3:1 && cp "$work/text" "$work/precise"
check "run takes low copies" "$(number experts_low) > 0"
check "and counts them" "$(number missed_bytes_per_token) > 0 && $(number experts_skipped) == 0"
generate --memory $tight --precision hobbit:1
same "$work/plain" "a threshold of 1 changes no word"
# In an expert buffer of one size, as a budget of the whole process leaves another one in each run.
timed() {
    "$moec" bench "$work/m.moec" --memory 50% --modes cache --samples 2 --prompt-tokens 8 --tokens 60 --json -q "$@" \
        >"$work/stdout" 2>"$work/stderr"
}
timed && plain_read=$(number bytes_per_token)
timed --precision hobbit:0.3:1
check "and reads fewer bytes" "$(number bytes_per_token) < 0.8 * $plain_read && $(number bytes_per_token) > 0"
generate --precision hobbit:0.3:0.6 --route cache-prior:0.2 && cp "$work/text" "$work/both"
generate --precision fate:1 && cp "$work/text" "$work/foreseen"
check "a width takes low copies" "$(number experts_low) > 0 && $(number experts_skipped) == 0"
for how in "" "-t 1" "-t 3" "--cpu scalar" "--memory $((floor + 700000))" "--memory $((floor + 1000000)) --evict fifo --predict gate" \
    "--memory $((floor + 800000)) --evict hobbit:2:3:4:1" "--draft lookup" \
    "--memory $((floor + 900000)) --predict gate --preload-count 4 --preload-ahead 3"; do
    # shellcheck disable=SC2086 # words
    generate --precision hobbit:0.3:1 $how
    same "$work/precise" "the same text with ${how:-all in memory}"
    # shellcheck disable=SC2086
    generate --precision hobbit:0.3:0.6 --route cache-prior:0.2 $how
    same "$work/both" "and with a prior"
    # shellcheck disable=SC2086
    generate --precision fate:1 $how
    same "$work/foreseen" "and by what is foreseen"
done
if cmp -s "$work/foreseen" "$work/plain"; then fail "which changes it"; else pass "which changes it"; fi
if cmp -s "$work/precise" "$work/both"; then fail "a prior and skips change it"; else pass "a prior and skips change it"; fi
generate --precision always:0:1 && cp "$work/text" "$work/always"
generate --precision always:0:1 --decide decode
if cmp -s "$work/text" "$work/always"; then fail "a prompt that is not decided"; else pass "a prompt that is not decided"; fi
# Blocks are counted from the text's beginning, whatever chunks it is read in.
generate --precision hobbit:0.2:1:4 && cp "$work/text" "$work/blocks"
for how in "-t 1" "--cpu scalar" "--memory $((floor + 700000))" "--draft lookup"; do
    # shellcheck disable=SC2086
    generate --precision hobbit:0.2:1:4 $how
    same "$work/blocks" "the same text by blocks with $how"
done
# A prompt of more than one block, whose second is partly low.
long=$(grep "^In the central uplands: rainy" "$text" | head -n 1)
prefill() {
    "$moec" run "$work/m.moec" -p "$long" -n 30 --ctx 256 --ignore-eos --stats json --prefill "$@" >"$work/text" 2>"$work/stdout"
}
prefill unpopular:1:4 && cp "$work/text" "$work/prefilled"
check "a prompt takes low copies" "$(number experts_low) > 0 && $(number experts_skipped) == 0"
for how in "-t 1" "-t 3" "--cpu scalar" "--memory $((floor + 600000))" "--memory $((floor + 1000000)) --predict gate" "--draft lookup"; do
    # shellcheck disable=SC2086
    prefill unpopular:1:4 $how
    same "$work/prefilled" "the same text with $how"
done
prefill unpopular:0
if cmp -s "$work/text" "$work/prefilled"; then fail "which changes the text"; else pass "which changes the text"; fi
prefill whole:0.5
check "by the whole prompt more of them" "$(number experts_low) > 0"
try 0 "a top-1 model" "$moec" run "$work/s.moec" -p "The old miller" -n 8 --prefill unpopular:0.5:4 --stats
says stderr 'prompt    with prefill unpopular:0.5:4' "has prompts too"

try 0 "stats in words" "$moec" run "$work/m.moec" -p "The old" -n 5 --precision hobbit --stats
says stderr 'precision hobbit, [0-9.]+% of the experts high, [0-9.]+% low, [0-9.]+% skipped' "say the shares"
try 0 "beams" "$moec" run "$work/m.moec" -p "The old" -n 20 --beams 3 --precision hobbit:0.3:1
cp "$work/stdout" "$work/beams"
try 0 "beams in little memory" "$moec" run "$work/m.moec" -p "The old" -n 20 --beams 3 --precision hobbit:0.3:1 -t 1 --memory $((floor + 2000000))
if cmp -s "$work/stdout" "$work/beams"; then pass "the same beams"; else fail "the same beams"; fi

try 0 "beams that foresee" "$moec" run "$work/m.moec" -p "The old" -n 20 --beams 3 --precision fate:1
cp "$work/stdout" "$work/beams"
try 0 "and in little memory" "$moec" run "$work/m.moec" -p "The old" -n 20 --beams 3 --precision fate:1 -t 1 --memory $((floor + 2000000))
if cmp -s "$work/stdout" "$work/beams"; then pass "the same of these"; else fail "the same of these"; fi
# A token's only expert is no less important than another, but may have come unforeseen.
try 0 "a top-1 model by what is foreseen" "$moec" run "$work/s.moec" -p "The old miller" -n 8 --precision fate:1 --low-slots 2 --stats
says stderr 'precision fate:1, [0-9.]+% of the experts high, [0-9.]+% low, 0.0% skipped' "has low experts"

# ---- thresholds of a bundle that knows its scores ----

try 0 "a bundle with calibration" "$moec" compile "$sample" --data datasets/sample/calibration.txt --samples 32 --seq-len 48 \
    --policy uniform --bits 4 --copies 2 -q -o "$work/d.moec"
try 0 "inspect" "$moec" inspect "$work/d.moec"
named=$(sed -n 's/.*--precision hobbit means \(hobbit:[0-9.]*:[0-9.]*\).*/\1/p' "$work/stdout")
check "names thresholds" "length(\"$named\") >= 10 && \"$named\" != \"hobbit:0.6:0.9\""
try 0 "inspect --json" "$moec" inspect "$work/d.moec" --json
says stdout '"expert_scores": \[' "has the spread"
by_scores() {
    try 0 "eval $*" "$moec" eval "$work/d.moec" --data $text --samples 8 --seq-len 128 --json -q "$@"
    value=$(number value) low=$(number experts_low)
}
by_scores --precision hobbit
value_of_shares=$value low_of_shares=$low
by_scores --precision "$named"
check "which it takes where none are given" "$value == $value_of_shares && $low == $low_of_shares"
by_scores --precision always
high_share="($(number experts_taken) - $low) / ($(number experts_taken) + $(number experts_skipped))"
check "so that about two thirds are high" "$high_share > 0.57 && $high_share < 0.77"
generate_of() {
    "$moec" run "$work/d.moec" -p "The old miller had three sons and" -n 40 --ignore-eos --precision "$@" 2>"$work/stderr" >"$work/text"
}
generate_of hobbit && cp "$work/text" "$work/shares"
generate_of "$named"
same "$work/shares" "a run takes them too"
generate_of hobbit:0.2:0.3
if cmp -s "$work/text" "$work/shares"; then fail "others change the text"; else pass "others change the text"; fi

# ---- bench ----

try 0 "a bench" "$moec" bench "$work/m.moec" --modes cache --samples 2 --data $text --memory 50% --precision hobbit:0.3:1 --json -q
says stdout '"precision": "hobbit:0.3:1"' "names its precision"
prompt_bytes() {
    "$moec" bench "$work/m.moec" --modes cache --evict lru --predict none --samples 2 --data $text --memory 50% --prompt-tokens 96 -n 1 \
        --json -q "$@" >"$work/stdout" && number prompt_bytes
}
by_token=$(prompt_bytes --precision hobbit:0.5:1:0 --slots 4 --low-slots 4) by_block=$(prompt_bytes --precision hobbit:0.5:1 --slots 4 --low-slots 4)
router=$(prompt_bytes)
check "a prompt whose tokens decide each for itself reads experts in both copies" "$by_token > 1.2 * $by_block"
check "by blocks it reads less than without decisions" "$by_block > 0 && $by_block < 0.9 * $router"
try 0 "a bench of prompts of its own length" "$moec" bench "$work/m.moec" --modes cache --memory 50% --samples 2 --data $text --prompt-tokens 8 -n 4 --json -q

done_testing
