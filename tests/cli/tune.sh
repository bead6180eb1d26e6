#!/bin/sh
# Settings of decisions with a certificate: found by tune, kept in the bundle, used by what runs it.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
fewer_layers 4
data=datasets/sample/calibration.txt
text=datasets/sample/test.txt
check() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1: $2"; fi
}
number() {
    sed -n "s/^.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$work/stdout" | head -n 1
}
same() {
    if cmp -s "$2" "$3"; then pass "$1"; else fail "$1"; fi
}
differs() {
    if cmp -s "$2" "$3"; then fail "$1"; else pass "$1"; fi
}
refused() {
    words=$1
    shift
    try "$@"
    says stderr "$words" "says why"
}
# shellcheck disable=SC2317 # called by try
tune() {
    "$moec" tune "$work/m.moec" --data "$data" --reference "$sample" --samples 32 --seq-len "$length" --force "$@"
}
length=32

try 0 "a bundle with low copies" "$moec" compile "$sample" --policy uniform --bits 8 --copies 4 -q -o "$work/m.moec"
try 0 "settings for it" tune --max-loss 4% --slots 6 --with route,precision --decide all -q --json -o "$work/t.moec"
route=$(sed -n 's/^ *"route": *"\(cache-prior:[0-9.]*\)".*/\1/p' "$work/stdout" | head -n 1)
precision=$(sed -n 's/^ *"precision": *"\(hobbit:[0-9.]*:[0-9.]*:128\)".*/\1/p' "$work/stdout" | head -n 1)
loss=$(number loss) loss_high=$(number loss_high) bytes=$(number missed_bytes_per_token)
check "they name a route and a precision by blocks" "length(\"$route\") > 12 && length(\"$precision\") > 8"
check "their loss is proven" "$loss_high <= 0.04 && $loss <= $loss_high"
says stdout '"result": "passed"' "by tests"
says stdout '"chosen": true' "of which one is chosen"
plain_bytes=$(sed -n '/"without"/,/}/s/.*"missed_bytes_per_token": *\([0-9.e+]*\).*/\1/p' "$work/stdout" | head -n 1)
check "less than half as many bytes are read" "$bytes < 0.5 * $plain_bytes"
try 0 "of longer prompts" tune --max-loss 50% --slots 6 --with precision --decide all --prompt-tokens 31 -q --json -o "$work/l.moec"
longer_bytes=$(sed -n '/"without"/,/}/s/.*"missed_bytes_per_token": *\([0-9.e+]*\).*/\1/p' "$work/stdout" | head -n 1)
check "longer prompts read each expert once" "$longer_bytes < 0.75 * $plain_bytes"
try 0 "it is a whole bundle" "$moec" verify "$work/t.moec"
try 0 "on other threads and instructions, in words" tune --max-loss 4% --slots 6 --with route,precision --decide all -v \
    -t 1 --cpu avx2 -o "$work/again.moec"
same "the same bytes" "$work/t.moec" "$work/again.moec"
says stdout "wrote '$work/again.moec', which decides by $route with" "says what was found"
says stdout "^    $precision; [0-9]+ measurements" "of both kinds"
says stdout 'loss .* against the original, limit 4.000%' "and what is promised"
says stderr 'cache-prior:0.02: loss .*KiB a token' "verbose: each measurement"
says stderr 'hobbit:0.9:1: loss' "precisions from the mildest on"
says stderr 'hobbit:[0-9.]*:0.[0-9]*: loss' "and experts that are skipped"
says stderr 'hobbit:0.9:1:128: loss' "and a prompt's tokens by blocks"
says stderr 'test 1 of [0-9].* proven' "and each test"
try 0 "inspect" "$moec" inspect "$work/t.moec"
says stdout "^  route      $route" "shows them"
says stdout '^  cache      6 experts a layer, empty at first' "with the slots"
says stdout '^  prompts    are decided by blocks; certified for windows whose first 16' "and blocks of prompts"
try 0 "inspect --json" "$moec" inspect "$work/t.moec" --json
check "has the same loss" "$(sed -n '/"decisions"/,$p' "$work/stdout" | sed -n 's/.*"loss": *\([-0-9.e+]*\).*/\1/p' | head -n 1) == $loss"
cp "$work/m.moec" "$work/route.moec"
try 0 "a route alone, in place" "$moec" tune "$work/route.moec" --data "$data" --reference "$sample" --samples 32 --seq-len 32 \
    --max-loss 4% --with route --decide all --keep-top 1 --force -q
says stdout 'route      cache-prior:0.[0-9]*, the best 1 in any case' "keeps the best"

length=16
try 0 "by rank" tune --max-loss 30% --slots 6 --with rank -q -o "$work/r.moec"
says stdout 'route      max-rank:[0-9]+$' "another route"
length=32
try 0 "misses of little weight left out" tune --max-loss 4% --slots 6 --with route,skip --decide all -v --json \
    -o "$work/lean.moec"
says stderr 'top-k:skip:0.05: loss .*KiB a token' "alone"
says stderr 'cache-prior:0.02:skip:0.05: loss' "and with routes"
skip_route=$(sed -n 's/^ *"route": *"\([a-z]*-[a-z]*[0-9.:]*skip:[0-9.]*\)".*/\1/p' "$work/stdout" | head -n 1)
check "they read least" "length(\"$skip_route\") > 9 && $(number loss_high) <= 0.04"
try 0 "the bundle" "$moec" inspect "$work/lean.moec"
says stdout "^  route      $skip_route" "shows them"
try 0 "a whole one" "$moec" verify "$work/lean.moec"
try 2 "low slots with it alone" tune --max-loss 4% --with skip --low-slots 4 -q -o "$work/none.moec"
says stderr 'low-bits apply only to .* --with is skip' "are refused"
try 0 "of prompts too" tune --max-loss 4% --slots 6 --with prefill --block-tokens 8 -q --json -o "$work/p.moec"
prefill=$(sed -n 's/^ *"prefill": *"\(unpopular:[0-9.]*:8\)".*/\1/p' "$work/stdout" | head -n 1)
check "a share of the experts in low copies" "length(\"$prefill\") > 12 && $(number loss_high) <= 0.04 && $(number prompt_tokens) == 32"
tuned_bytes=$(number missed_bytes_per_token)
plain_bytes=$(sed -n '/"without"/,/}/s/.*"missed_bytes_per_token": *\([0-9.e+]*\).*/\1/p' "$work/stdout" | head -n 1)
check "reads less" "$tuned_bytes < $plain_bytes"
try 0 "a bundle with a prefill" "$moec" inspect "$work/p.moec"
says stdout "^  prefill    $prefill, certified for prompts of 32 tokens" "is shown"
length=20
try 0 "all together" tune --max-loss 20% --slots 6 --with route,precision,prefill --block-tokens 8 -v -o "$work/a.moec"
says stderr 'cache-prior:[0-9.]* with hobbit:[0-9.:]* with unpopular:[0-9.]*:8: loss' "are tried together"
length=32

try 0 "by default" tune --max-loss 4% --slots 6 -q --json -o "$work/d.moec"
says stdout '"decide": "decode"' "prompts are left out"
says stdout '"route": "cache-prior:0.02:skip:0.05"' "routes that skip are tried"
says stdout '"precision": "hobbit:0.9:1"' "and low copies, where there are some"
check "by half" "$(number prompt_tokens) == 16 && $(number loss_high) <= 0.04"
decode_route=$(sed -n 's/^ *"route": *"\([a-z0-9.:-]*\)".*/\1/p' "$work/stdout" | head -n 1)
decode_precision=$(sed -n 's/^ *"precision": *"\(hobbit:[0-9.]*:[0-9.]*\)".*/\1/p' "$work/stdout" | head -n 1)
try 0 "the bundle" "$moec" inspect "$work/d.moec"
says stdout 'prompts    keep the router.s choice; certified for windows whose first 16 tokens are a prompt' "says so"
try 0 "a whole one" "$moec" verify "$work/d.moec"
try 0 "shorter prompts" tune --max-loss 4% --slots 6 --decide decode --prompt-tokens 4 --with route -q --json -o "$work/d4.moec"
check "are certified" "$(number prompt_tokens) == 4"

# Its parts are compile's: the bundle alone loses what its own certificate says, and the promise is one of two.
try 0 "a bundle with a certificate" "$moec" compile "$sample" --data "$data" --policy uniform --bits 4 --samples 32 \
    --seq-len 32 -q -o "$work/c.moec"
own=$("$moec" inspect "$work/c.moec" --json | sed -n '/"certificate"/,$s/.*"loss": *\([-0-9.e+]*\).*/\1/p' | head -n 1)
try 0 "settings on the same windows" "$moec" tune "$work/c.moec" --data "$data" --reference "$sample" --samples 32 \
    --seq-len 32 --max-loss 25% --with route --force -q --json
without=$(sed -n '/"without"/,$s/.*"loss": *\([-0-9.e+]*\).*/\1/p' "$work/stdout" | head -n 1)
check "without decisions the loss is the certificate's" "$own == $without && $own != 0"
says stdout '"bundle_certified_on_same_windows": true' "says that the windows are the same"
try 0 "other windows" "$moec" tune "$work/c.moec" --data "$data" --reference "$sample" --samples 32 \
    --seq-len 32 --max-loss 25% --with rank --force -q --json --seed 3
says stdout '"bundle_certified_on_same_windows": false' "are others"
# What is said of a run is what a bench of the same samples reads.
said=$(number run_read_bytes_per_token)
try 0 "bench of its samples" "$moec" bench "$work/c.moec" --memory 50% --modes cache --predict none --data "$data" \
    --samples "$(number run_samples)" --prompt-tokens "$(number run_prompt_tokens)" -n "$(number run_tokens)" -q --json
measured=$(sed -n '/"name": "cache 50%/,$s/.*"bytes_per_token": *\([0-9.e+]*\).*/\1/p' "$work/stdout" | head -n 1)
check "reads what tune said" "$said > 0 && $measured > 0.97 * $said && $measured < 1.03 * $said"

# ---- with a sparsity plan ----

try 0 "a sparsity plan" tune --max-loss 6% --slots 6 --with sparsity -q --json -o "$work/k.moec"
says stdout '"decisions": null' "alone"
check "leaves out neurons" "$(number active_share) < 0.9"
check "within the loss" "$(number loss_high) <= 0.06"
check "so that less is computed of as much" "$(number computed_share) < 1 && $(number read_bytes_per_token) < 1.05 * \
$(sed -n '/"without": {/,/}/s/.*"missed_bytes_per_token": *\([0-9.e+]*\).*/\1/p' "$work/stdout" | head -n 1)"
check "and what was read before is told" "$(number read_bytes_per_token_before) > 0"
try 0 "the bundle" "$moec" inspect "$work/k.moec"
says stdout "times each neuron's harm" "shows it"
length=16
try 0 "with a route" tune --max-loss 20% --slots 6 --with route,sparsity -v -o "$work/both.moec"
says stderr 'cache-prior:[0-9.]* with [0-9.]*% left out: loss' "are tried together"
says stdout '^  (read|missed) +[0-9.]+ KiB of experts a token' "and what is read is told"
length=32
try 0 "a whole bundle" "$moec" verify "$work/both.moec"
try 2 "a second plan" "$moec" tune "$work/k.moec" --data "$data" --reference "$sample" --max-loss 9% --with sparsity --force -q
says stderr 'already has a sparsity plan' "is refused"

# ---- used ----

run() {
    bundle=$1
    shift
    "$moec" run "$bundle" -p "The old miller had three sons and" -n 100 --ctx 128 --ignore-eos "$@" 2>"$work/stats"
}
run "$work/t.moec" --stats json >"$work/tuned"
if grep -q '"decisions_of": "bundle", "route": "cache-prior' "$work/stats"; then pass "run uses them"; else fail "run uses them"; fi
low_slots=$("$moec" inspect "$work/t.moec" --json | sed -n 's/.*"low_slots": *\([0-9]*\).*/\1/p' | head -n 1)
run "$work/m.moec" --route "$route" --precision "$precision" --slots 6 --low-slots "$low_slots" >"$work/words"
same "as the options would" "$work/words" "$work/tuned"
echo 'return function() return {precision = "hobbit:0.4:0.9"} end' >"$work/policy.lua"
try 0 "settings that name no blocks" tune --max-loss 50% --slots 6 --decide all --policy "$work/policy.lua" -q -o "$work/n.moec"
run "$work/n.moec" >"$work/words"
run "$work/m.moec" --precision hobbit:0.4:0.9:0 --slots 6 --low-slots 4 >"$work/other"
same "have none" "$work/words" "$work/other"
run "$work/m.moec" >"$work/plain"
differs "which changes words" "$work/plain" "$work/tuned"
run "$work/lean.moec" >"$work/words"
run "$work/m.moec" --route "$skip_route" --slots 6 >"$work/other"
same "those that skip too" "$work/words" "$work/other"
run "$work/t.moec" --decide none >"$work/words"
same "--decide none turns them off" "$work/words" "$work/plain"
run "$work/t.moec" --route top-k --stats json >"$work/words"
same "options replace them" "$work/words" "$work/plain"
run "$work/t.moec" --decide decode >"$work/words"
differs "--decide decode leaves the prompt out" "$work/words" "$work/tuned"
cp "$work/words" "$work/decoded"
run "$work/d.moec" --stats json >"$work/words"
if grep -q '"decide": "decode"' "$work/stats"; then pass "settings without prompts leave them out"; else fail "settings without prompts leave them out"; fi
run "$work/m.moec" ${decode_route:+--route "$decode_route"} ${decode_precision:+--precision "$decode_precision"} --slots 6 --decide decode >"$work/other"
same "as the options would" "$work/words" "$work/other"
run "$work/d.moec" --decide all >"$work/other"
differs "--decide all takes prompts in" "$work/words" "$work/other"
run "$work/d.moec" --decide none >"$work/other"
same "--decide none takes none" "$work/other" "$work/plain"
run "$work/p.moec" --stats json >"$work/words"
if grep -q '"decisions_of": "bundle".*"prefill": "unpopular' "$work/stats"; then pass "run uses a prefill"; else fail "run uses a prefill"; fi
run "$work/m.moec" --prefill "$prefill" --slots 6 >"$work/other"
same "as the option would" "$work/words" "$work/other"
run "$work/t.moec" --copy 1 >"$work/words"
run "$work/m.moec" --copy 1 >"$work/other"
same "another copy has none" "$work/words" "$work/other"
little=$(little_memory "$work/t.moec")
for how in "-t 1" "--cpu scalar" "--memory $little" "--memory $little --evict fifo"; do
    # shellcheck disable=SC2086 # words
    run "$work/t.moec" $how >"$work/words"
    same "the same with $how" "$work/words" "$work/tuned"
done
try 0 "run --stats" "$moec" run "$work/t.moec" -p Once -n 4 --stats
says stderr "decided by the bundle's settings" "says who decides"
evaluate() {
    try 0 "eval $*" "$moec" eval "$@" --data "$text" --samples 4 --seq-len 64 --json -q
}
evaluate "$work/t.moec"
says stdout '"decisions_of": "bundle"' "eval uses them"
tuned=$(number value)
evaluate "$work/m.moec" --route "$route" --precision "$precision" --slots 6 --low-slots "$low_slots" --prompt-tokens 16
check "as the options would" "$(number value) == $tuned"
evaluate "$work/t.moec" --decide none
plain=$(number value)
evaluate "$work/m.moec"
check "not with --decide none" "$(number value) == $plain && $plain != $tuned"
evaluate "$work/d.moec"
decoded=$(number value)
evaluate "$work/m.moec" ${decode_route:+--route "$decode_route"} ${decode_precision:+--precision "$decode_precision"} --slots 6 --prompt-tokens 16
check "and prompts of the certificate's length are left out" "$(number value) == $decoded"
evaluate "$work/d.moec" --decide all
check "but not with --decide all" "$(number value) != $decoded"
refused '--decide all does nothing without' 2 "all tokens of a bundle without settings" "$moec" eval "$work/m.moec" --data "$text" --samples 4 \
    --decide all -q
try 0 "bench without prompts" "$moec" bench "$work/d.moec" --samples 1 -n 2 --prompt-tokens 4 --memory 50% --modes cache --decide all --json -q
try 0 "bench" "$moec" bench "$work/t.moec" --samples 1 -n 2 --prompt-tokens 4 --memory 50% --modes cache,sti --json -q
says stdout '"bundle_decisions": "cache-prior' "bench uses them"
try 0 "strip" "$moec" strip "$work/t.moec" --copies 4 -o "$work/s.moec"
says stdout 'decision settings need a dropped copy, so they were dropped too' "the copy takes settings with it"

# ---- refusals ----

writes_nothing() {
    if [ -e "$work/none.moec" ]; then fail "writes nothing"; else pass "writes nothing"; fi
}
try 0 "a bundle that loses" "$moec" compile "$sample" --policy uniform --bits 2 -q -o "$work/low.moec"
refused 'without decisions, the bundle itself loses .*No decision stays within .*nothing was written.*give this command --max-loss [0-9.]+%' \
    1 "more than the target" "$moec" tune "$work/low.moec" --data "$data" --reference "$sample" --samples 32 --seq-len 32 \
    --max-loss 0.5% -q -o "$work/none.moec"
writes_nothing
refused 'the loss with the mildest decisions, .* is .*nothing was written.*Without decisions, the loss is .*--max-loss' \
    1 "a loss that is not proven" tune --max-loss 0.02% -q -o "$work/none.moec"
writes_nothing
refused 'give --data FILE' 2 "no data" "$moec" tune "$work/m.moec" --reference "$sample" --force --max-loss 2%
refused '--reference MODEL' 2 "no original" "$moec" tune "$work/m.moec" --data "$data" --force --max-loss 2%
refused 'expected the checkpoint' 2 "a bundle as original" \
    "$moec" tune "$work/m.moec" --data "$data" --reference "$work/m.moec" --max-loss 2% --force -q
refused 'which has another SHA-256' 1 "another original" \
    "$moec" tune "$work/m.moec" --data "$data" --reference datasets/switch-sample/model --max-loss 2% --force -q
refused 'profile applies only to a checkpoint' 2 "a profile" tune --max-loss 2% --profile "$data" -q
refused 'combines low-precision copies of experts .precision or prefill. with sparsity' 2 "a plan with low copies" tune --max-loss 2% --with precision,sparsity -q
try 0 "a bundle without copies" "$moec" compile "$sample" --policy uniform --bits 8 -q -o "$work/one.moec"
refused '--copies' 2 "no low copy" \
    "$moec" tune "$work/one.moec" --data "$data" --reference "$sample" --max-loss 2% --with precision --force -q
for n_read in 500MB/s,1us 1KB/s,1s; do
    try 0 "a device that reads $n_read" "$moec" device --file "$work/m.moec" -o "$work/device-${n_read%/*}.json" --compute-time 0.02 \
        --emulate-storage "$n_read"
done
length=16
try 0 "widths without a device" tune --max-loss 20% --with precision -q --json -o "$work/f.moec"
cp "$work/stdout" "$work/free"
says stdout '"precision": "fate:4"' "begin with a quarter of the experts"
says stdout '"precision": "fate:1"' "and end with one"
try 0 "widths of a fast one" tune --max-loss 20% --with precision -q --json -o "$work/f.moec" --device-file "$work/device-500MB.json"
grep -o '"precision": "fate:[0-9]*"' "$work/stdout" | sort -u >"$work/capped"
check "are no wider" "$(grep -c . "$work/capped") <= $(grep -o '"precision": "fate:[0-9]*"' "$work/free" | sort -u | grep -c .)"
try 0 "widths of one that reads none in time" tune --max-loss 20% --with precision -q --json -o "$work/f.moec" \
    --device-file "$work/device-1KB.json"
if grep -q 'fate' "$work/stdout"; then fail "are none"; else pass "are none"; fi
refused 'device-file serves only .--with precision.: add' 2 "a device of no width" \
    tune --max-loss 2% --with route --device-file "$work/device-1KB.json" -q
refused 'has both route and rank' 2 "two routes" tune --max-loss 2% --with route,rank -q
refused 'expected route, rank, skip, precision, prefill or sparsity' 2 "another word" tune --max-loss 2% --with route,routes -q
refused 'does not record how often calibration used each expert' 2 "a prefill without a profile" tune --max-loss 2% --with prefill -q
refused 'prompt-tokens has no effect if prompts and generated tokens are decided alike' 2 "prompts that are no others" tune --max-loss 2% --with route --decide all --prompt-tokens 8 -q
refused 'leaves out prompts, but prefill in --with prefill applies only to prompts' 2 "a prefill without prompts" tune --max-loss 2% --with prefill --decide decode -q
refused 'decide decode applies only with .* --with is sparsity' 2 "a plan without prompts" tune --max-loss 2% --with sparsity --decide decode -q
refused 'low-bits apply only to .* --with is route' 2 "low slots of a route" tune --max-loss 2% --with route --low-slots 4 -q
refused 'without a route, a precision or a prefill' 2 "decisions of generated tokens, but none" \
    "$moec" run "$work/m.moec" -p x -n 1 --decide decode
refused 'leave out either --decide none' 2 "none and a route" "$moec" run "$work/t.moec" -p x -n 1 --decide none --route top-k
try 0 "a trace of two precisions" "$moec" run "$work/t.moec" -p x -n 1 --trace "$work/x.json"

done_testing
