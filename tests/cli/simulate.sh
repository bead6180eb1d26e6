#!/bin/sh
# moec simulate: routing of a profile replayed, on uniform sizes and on those of a bundle.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model
try 0 "profile" measured_profile "$work/profile.h5"
try 0 "compile" "$moec" compile $model --policy edgemoe --profile "$work/profile.h5" --max-loss 50% -o "$work/model.moec" --quiet

try 0 "simulate" "$moec" simulate "$work/profile.h5" --quiet
says stdout "^An expert buffer of .* has a hit rate of [0-9]+ % with --evict [a-z]+ --predict [a-z]+[.]" "begins with its answer"
head -n 5 "$work/stdout" >"$work/answer"
cp "$work/answer" "$work/stdout"
says stdout '^Make the buffer at least .* lru never hits' "the answer is its first lines"
try 2 "bytes without a unit" "$moec" simulate "$work/profile.h5" --memory 25 --quiet
says stderr "such as 25MiB" "are refused"
try 0 "simulate everything" "$moec" simulate "$work/profile.h5" --evict all --predict all --memory all \
    --plots "$work/plots" --plot-format svg,csv --quiet
says stdout "working set is" "names the working set"
says stdout "predictor 'none'" "a table without predictions"
says stdout "predictor 'path'" "and with the path table"
says stdout "gate' is left out" "says what the profile cannot feed"
says stdout "^ +100.0 % .* 100.0 +100.0 +100.0 " "everything fits at last"
says stdout "^fate keeps the experts of the first [1-5] of 6 MoE layers" "the profile knows shallow layers"
for file in simulate_hits_by_policy_none.svg simulate_hits_by_policy_path.csv; do
    try 0 "it drew $file" test -s "$work/plots/$file"
done

try 0 "fate with more of them" "$moec" simulate "$work/profile.h5" --evict fate:5 --predict none --memory 50% --quiet
says stdout "fate:5 keeps the experts of the first 5 of 6 MoE layers" "as asked for"
try 2 "with too many" "$moec" simulate "$work/profile.h5" --evict fate:7 --quiet
says stderr "has 'fate:7', expected 1 to 6 shallow layers" "is refused"
try 2 "with none that asks" "$moec" simulate "$work/profile.h5" --evict lru:2 --quiet
says stderr "'lru:2' gives parameters, but 'lru' takes none" "is refused too"
try 0 "the bundle knows them too" "$moec" inspect "$work/model.moec"
says stdout "MoE layers whose experts are hard to predict: the first [1-5] " "and says so"
try 0 "a run that keeps them" "$moec" run "$work/model.moec" -p "The old" -n 4 --evict fate --stats
says stderr "eviction fate" "names the policy"
try 0 "a bench" "$moec" bench "$work/model.moec" --modes cache --evict lru,fate:2 --memory 50% --samples 1 -n 4 --json -q
says stdout '"evict": "fate:2"' "says how many it was told"
try 0 "a bundle without a profile" "$moec" compile $model --policy uniform --bits 4 -q -o "$work/plain.moec"
try 2 "knows none" "$moec" run "$work/plain.moec" -p "The old" -n 4 --evict fate
says stderr "does not store how many layers are shallow, because it was compiled without a profile: give their number, such as fate:2" "and says what to do"
try 0 "is told" "$moec" run "$work/plain.moec" -p "The old" -n 4 --evict fate:2 --stats
says stderr "eviction fate:2" "and says so"
try 2 "of another policy" "$moec" run "$work/plain.moec" -p "The old" -n 4 --evict arc:2
says stderr "option '--evict' is 'arc:2', expected one of .*: did you mean 'arc'" "it is refused"
try 2 "too many" "$moec" run "$work/plain.moec" -p "The old" -n 4 --evict fate:7
says stderr "'fate:7' asks for 7 shallow layers, expected 1 to the 6 MoE layers" "likewise"

try 0 "one policy on a bundle" "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --evict lru \
    --predict none --memory 20%,50%,64KiB --quiet
says stdout "compiled bitwidths of the bundle" "sizes are the bundle's"
says stdout "useful" "every count"
try 0 "as JSON, at one thread" "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --json --threads 1 \
    --prompt-tokens 4
cp "$work/stdout" "$work/one.json"
says stdout '"cliff_from_bytes"' "JSON has the cliff"
says stdout '"hit_rate_bound": [0-9.]+' "and the bound"
for memory in 10%,25%,50% all; do
    "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --json --prompt-tokens 4 --memory $memory >"$work/$memory.json" 2>"$work/stderr"
done
same "$work/10%,25%,50%.json" "$work/one.json" "by default the same sizes as where they are asked for"
# The table of all sizes has runs that the curve of lru shares, which are not made again.
for memory in 10%,25%,50% all; do
    sed -n '/"curve"/,/]/p' "$work/$memory.json" >"$work/$memory.curve"
done
same "$work/all.curve" "$work/10%,25%,50%.curve" "lru's curve is the same beside every table"
try 0 "it has points" grep -q hit_rate "$work/all.curve"
try 0 "as JSON, at three" "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --json --threads 3 --prompt-tokens 4
cp "$work/stdout" "$work/three.json"
try 0 "the same" cmp "$work/one.json" "$work/three.json"

try 0 "a device" "$moec" device "$work/model.moec" -o "$work/device.json" --emulate-storage 50MB/s,100us --compute-time 0.1 \
    --quiet
try 0 "with times" "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --device-file "$work/device.json" \
    --evict lru,lfu --memory 20%,60% --plots "$work/times" --plot-format csv --quiet
says stdout "^Median ms a decoded token, predictor 'path'" "a table of times"
says stdout "is fastest" "and in words"
try 0 "it drew times" test -s "$work/times/simulate_tpot_by_policy_none.csv"
try 0 "on other storage" "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --device-file "$work/device.json" \
    --emulate-storage 1GB/s --evict lru --predict path --memory 50% --json
says stdout '"tpot_ms_median": [0-9.]+' "JSON has times"

# A GPU of made-up times: what moec device --device cuda would add.
{
    echo '{"gpu": {"version": 1, "name": "made up", "memory_bytes": 1000000, "launch_ns": 2000, "answer_ns": 9000,
        "token_ns": 200000, "ns_per_position": 10, "products": [], "gathers": [],
        "copies": [{"to_device": true, "pinned": true, "bytes": 1000, "ns": 3000},
                   {"to_device": true, "pinned": true, "bytes": 100000, "ns": 30000}],
        "experts": [{"bits": 4, "record_bytes": 5000, "compute_ns": 4000}]},'
    sed '1s/{//' "$work/device.json"
} >"$work/gpu.json"
# shellcheck disable=SC2317 # called by try
tiers() { "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --device-file "$work/gpu.json" "$@"; }
try 0 "three tiers" tiers --vram 20%,50% --memory 60% --evict lru --quiet
says stdout "GPU: made up" "name the GPU"
says stdout "preload predicts by 'path'" "and the predictor"
for mode in on-demand layer-wise cache preload cooperative resident; do
    says stdout "^ .* $mode +(lru|-) +[0-9.]+ +[0-9.]+ +[0-9.]+ " "mode $mode has a row"
done
says stdout "cooperative .*Fiddler" "and what compares with it"
try 0 "three tiers as JSON, at one thread" tiers --vram 20%,50% --json --threads 1
cp "$work/stdout" "$work/one.json"
says stdout '"mode": "layer-wise"' "have the modes"
says stdout '"floor_ms": [0-9.]+' "and the floor"
try 0 "at three" tiers --vram 20%,50% --json --threads 3
cp "$work/stdout" "$work/three.json"
try 0 "the same" cmp "$work/one.json" "$work/three.json"
try 2 "a mode that there is not" tiers --vram 20% --modes magic
says stderr "mode 'magic' is unknown" "is refused by name"
try 2 "a pool without a GPU" "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --device-file "$work/device.json" \
    --vram 20%
says stderr "moec device --device cuda" "is refused, with what to do"
try 2 "the name of a GPU's option" "$moec" simulate "$work/profile.h5" --device "$work/device.json"
says stderr "unknown option '--device': did you mean '--device-file'" "is refused with that of a description"
try 2 "a pool without a device" "$moec" simulate "$work/profile.h5" --vram 20%
says stderr "needs a device file of a GPU: give --device-file" "is refused"

row() { # NAME MODE TPOT [EVICTION]
    printf '{"name":"%s","mode":"%s","storage":"50MB/s","evict":"%s",' "$1" "$2" "${4:-lru}"
    printf '"predict":"none","copy":0,"error":null,'
    printf '"expert_buffer_bytes":200000,"tpot_ms_median":%s,"hit_rate":0.5,"bytes_per_token":1e5}' "$3"
}
against() {
    try "$1" "$2" "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --device-file "$work/device.json" \
        --against "$work/bench.json"
}
printf '{"rows":[%s,%s,%s]}' "$(row one cache 1e-9)" "$(row two sti 1e9)" "$(row three io-exp 1)" >"$work/bench.json"
against 0 "against a bench"
says stdout "^one at 50MB/s .*  \*$" "a row that differs is marked"
says stdout "of 3 rows within 15 %" "and those that agree are counted"
printf '{"rows":[%s]}' "$(row one cache 1 hobbit:0:1:0:0)" >"$work/bench.json"
against 0 "against weights of a row"
cp "$work/stdout" "$work/weighed"
printf '{"evict_weights":"0:2:0:0","rows":[%s]}' "$(row one cache 1 hobbit)" >"$work/bench.json"
against 0 "against those of an older bench"
same "$work/stdout" "$work/weighed" "is the same"
printf '{"rows":[%s]}' "$(row one cache 1 hobbit:1)" >"$work/bench.json"
against 2 "against wrong weights"
says stderr "row 'one': cannot read eviction weights '1'" "names the row"
printf '{"rows":[{"name":"one"}]}' >"$work/bench.json"
against 1 "rows that are none"
says stderr "row 0 of" "names it"
printf '{"rows":7}' >"$work/bench.json"
against 1 "no rows"
try 2 "against a bench without a device" "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --against "$work/bench.json"
says stderr "needs a bundle .*: give --model, and --device-file or a trace" "says what is missing"
try 1 "a trace that stopped" sh -c "printf '{\"traceEvents\":[\n' >'$work/trace.json'; '$moec' simulate '$work/trace.json'"
try 0 "weights of hobbit" "$moec" simulate "$work/profile.h5" --evict lru,hobbit --predict none --memory 30% --search-evict --quiet
says stdout '^ *30.0 % .* hobbit:[01][.0-9]*:[.0-9]+:0:[.0-9]+$' "are tuned"
weights=$(sed -n 's/^ *30.0 % .* \(hobbit:[01][.0-9]*:[.0-9]*:0:[.0-9]*\)$/\1/p' "$work/stdout")
try 0 "tuned as JSON" "$moec" simulate "$work/profile.h5" --evict hobbit --predict none --memory 30% --search-evict --json
says stdout "\"evict\": \"$weights\"" "are the same"
tuned=$(sed -n '/"tuned_evict"/,/]/s/.*"hit_rate": *\([0-9.]*\).*/\1/p' "$work/stdout")
equal=$(sed -n '/"rows"/,$s/.*"hit_rate": *\([0-9.]*\).*/\1/p' "$work/stdout")
try 0 "a run with them" "$moec" simulate "$work/profile.h5" --evict "$weights" --predict none --memory 30% --json
again=$(sed -n '/"rows"/,$s/.*"hit_rate": *\([0-9.]*\).*/\1/p' "$work/stdout")
if awk "BEGIN { exit !($again == $tuned && $tuned >= $equal && $equal > 0) }"; then
    pass "hits as often as was found: $equal, then $tuned"
else
    fail "hits $again, found $tuned, with equal weights $equal"
fi

# Weights by the time that misses cost, kept in a bundle.
evict=hobbit
# shellcheck disable=SC2317 # called by try
weigh() {
    "$moec" simulate "$@" --evict "$evict" --predict none --memory 30% --emulate-storage 50MB/s,200us
}
hits() {
    sed -n '/"rows"/,$s/.*"hit_rate": *\([0-9.]*\).*/\1/p' "$work/stdout"
}
try 0 "weights for a bundle" weigh "$work/profile.h5" --model "$work/model.moec" --device-file "$work/device.json" --search-evict \
    --json -o "$work/weighed.moec"
lost=$(sed -n 's/.*"lost_ms_per_token": *\([0-9.]*\).*/\1/p' "$work/stdout")
lost_by_lru=$(sed -n 's/.*"lost_by_lru_ms_per_token": *\([0-9.]*\).*/\1/p' "$work/stdout")
tuned=$(sed -n '/"tuned_evict"/,/]/s/.*"hit_rate": *\([0-9.]*\).*/\1/p' "$work/stdout")
if awk "BEGIN { exit !($lost > 0 && $lost <= $lost_by_lru) }"; then
    pass "lose no more time than recency"
else
    fail "lose $lost ms, by recency $lost_by_lru ms"
fi
try 0 "the bundle" "$moec" verify "$work/weighed.moec"
try 0 "inspect" "$moec" inspect "$work/weighed.moec"
weights=$(sed -n 's/.*--evict hobbit takes \([0-9.:]*\), found for a buffer of .*/\1/p' "$work/stdout")
says stdout 'a token lost [0-9.]* ms by misses, by recency alone [0-9.]* ms' "shows them"
try 0 "as JSON" "$moec" inspect "$work/weighed.moec" --json
says stdout '"lost_by_lru_ms_per_token"' "too"
try 0 "a run of it" weigh "$work/profile.h5" --model "$work/weighed.moec" --device-file "$work/device.json" --json
by_default=$(hits)
evict=hobbit:0:1:0:0
try 0 "and of others" weigh "$work/profile.h5" --model "$work/weighed.moec" --device-file "$work/device.json" --json
by_uses=$(hits)
evict=hobbit:$weights
try 0 "and of the first bundle" weigh "$work/profile.h5" --model "$work/model.moec" --device-file "$work/device.json" --json
if awk "BEGIN { exit !($by_default == $tuned && $by_default == $(hits) && $by_default != $by_uses) }"; then
    pass "takes the bundle's weights unless others are given"
else
    fail "hits $by_default by default, $tuned tuned, $(hits) with $weights, $by_uses with others"
fi
evict=lru,hobbit:0:1:0:0,$evict
try 0 "both at once" weigh "$work/profile.h5" --model "$work/model.moec" --device-file "$work/device.json" --json
says stdout '"evict": "hobbit:0:1:0:0"' "each stands for itself"
if [ "$(hits | sed -n '2,3p')" = "$(printf '%s\n' "$by_uses" "$tuned")" ]; then
    pass "with the hits that it has alone"
else
    fail "has hits of $(hits | tr '\n' ' '), expected $by_uses and $tuned behind lru's"
fi
evict=hobbit
try 2 "a bundle without times" "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --evict hobbit --memory 30% --search-evict \
    -o "$work/none.moec"
says stderr "so it needs the device's times" "says what is missing"
try 2 "a bundle for two sizes" "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --device-file "$work/device.json" \
    --evict hobbit --memory 30%,50% --search-evict -o "$work/none.moec"
says stderr "for a single buffer size" "says what is missing"
try 2 "a bundle without a model" weigh "$work/profile.h5" --device-file "$work/device.json" --search-evict -o "$work/none.moec"
says stderr "writes the compiled bundle of --model" "says what is missing"
try 2 "weights without hobbit" "$moec" simulate "$work/profile.h5" --evict lru:1:1:1:1
says stderr "'lru:1:1:1:1' gives parameters, but 'lru' takes none: leave them out" "are refused"
try 2 "tuning without hobbit" "$moec" simulate "$work/profile.h5" --evict lru --search-evict
try 2 "run refuses them too" "$moec" run "$work/model.moec" -p x --evict lru:1:1:1:1
says stderr "did you mean 'lru'" "and says what there is"
try 2 "wrong weights" "$moec" run "$work/model.moec" -p x --evict hobbit:1:2
says stderr "expected four numbers" "say what is expected"
try 0 "a run with weights" "$moec" run "$work/model.moec" -p x -n 2 --evict hobbit:2:1:0:1 --stats
says stderr "eviction hobbit:2:1:0:1" "takes weights"
try 0 "a bench of weights" "$moec" bench "$work/model.moec" --modes cache --memory 50% --samples 1 -n 2 \
    --evict hobbit:2:1:0:1,hobbit:0:1:0:0 -q
says stdout "^cache 50% hobbit:2:1:0:1 " "has a row of them"
says stdout "^cache 50% hobbit:0:1:0:0 " "and of others"
try 2 "a bench without mode cache" "$moec" bench "$work/model.moec" --modes edgemoe --memory 50% --evict hobbit:2:1:0:1 -q
says stderr "apply only to mode cache" "refuses them"
# Words of older versions.
for verb in "run $work/model.moec -p x" "chat $work/model.moec" "bench $work/model.moec" "simulate $work/profile.h5"; do
    # shellcheck disable=SC2086 # words
    try 2 "weights in ${verb%% *} as they were" "$moec" $verb --evict-weights 1:1:1:1
    says stderr "no option '--evict-weights' any more: .* --evict hobbit:0.4:0.3:0.1:0.2" "names the new word"
    # shellcheck disable=SC2086
    try 2 "shallow layers in ${verb%% *} as they were" "$moec" $verb --shallow-layers=2
    says stderr "no option '--shallow-layers' any more: .* --evict fate:3" "names the new word"
done
try 2 "a verb that evicts nothing" "$moec" verify "$work/model.moec" --evict-weights 1:1:1:1
says stderr "unknown option '--evict-weights'" "does not know it"
try 2 "a prompt's length as it was" "$moec" simulate "$work/profile.h5" --prefill 4
says stderr "give the length of a prompt as --prompt-tokens 4" "names the new word"
try 2 "a search for weights as it was" "$moec" simulate "$work/profile.h5" --evict hobbit --tune-evict
says stderr "no option '--tune-evict' any more: use --search-evict" "names the new word"
# ---- decisions ----

decided=datasets/sample/test.txt
try 0 "a bundle with low copies" "$moec" compile $model --policy uniform --bits 4 --copies 2 -o "$work/copies.moec" --quiet
try 2 "scores without a trace" "$moec" run "$work/copies.moec" -p x --trace-scores
says stderr "trace-scores does nothing without --trace" "are refused"
try 2 "nor without traces of a bench" "$moec" bench "$work/copies.moec" --trace-scores
head -c 600 $decided >"$work/prompt.txt"
# run NAME OPTIONS...: a run of the prompt, with its trace and its figures.
run() {
    what=$1
    shift
    try 0 "run $what" "$moec" run "$work/copies.moec" -f "$work/prompt.txt" -n 24 --ignore-eos --temp 0 --memory 40MiB \
        --trace "$work/$what.json" --trace-scores --stats json "$@"
    cp "$work/stderr" "$work/$what.stats"
}
# shellcheck disable=SC2317 # called by try
simulate() { "$moec" simulate "$work/plain.json" --model "$work/copies.moec" --evict lru --predict none --memory 50% "$@"; }
# counted NAME FILE: the number behind a key, of prompts and decoding together.
counted() { awk -v key="\"$1\":" '{ for (i = 1; i < NF; i++) if ($i == key) sum += $(i + 1) } END { print sum + 0 }' "$2"; }
# foretold NAME OPTIONS...: simulated from the trace of a run that decided so, whose counts are the same.
foretold() {
    what=$1
    shift
    run "$what" "$@"
    try 0 "simulate $what" "$moec" simulate "$work/$what.json" --model "$work/copies.moec" --evict lru --predict none --memory 50% \
        --json "$@"
    same=true
    for key in experts_taken experts_missed experts_low experts_low_missed experts_skipped; do
        [ "$(counted $key "$work/stdout")" -eq "$(counted $key "$work/$what.stats")" ] || same=false
    done
    taken=$(counted experts_taken "$work/stdout")
    if $same && [ "$taken" -gt 0 ] && [ "$(counted choices_changed "$work/stdout")" -eq 0 ]; then
        pass "$what: what $taken experts were taken as is decided again"
    else
        fail "$what: other counts than the run's"
    fi
}
foretold prior --route cache-prior:0.3 --slots 50%
foretold hobbit --precision hobbit:0.5:0.8 --slots 6 --low-slots 4
foretold both --route cumsum:0.6 --keep-top 1 --precision always:0.5:0.9 --decide decode
foretold fate --precision fate:4 --decide decode
run plain
try 0 "another run decides" simulate --route cache-prior:0.3
says stdout "decoding +[0-9.]+ % of the experts taken miss the logical cache, .* KiB a token" "what it misses"
says stdout "% of the recorded choices are dropped.* after its first MoE layer" "and that this is a first estimate"
try 0 "in two copies" simulate --precision hobbit:0.5:0.8 --json
cp "$work/stdout" "$work/one.json"
says stdout '"experts_low": [1-9]' "some are low"
try 0 "again" simulate --precision hobbit:0.5:0.8 --json --threads 3
cp "$work/stdout" "$work/three.json"
try 0 "the same" cmp "$work/one.json" "$work/three.json"
try 0 "a device of it" "$moec" device "$work/copies.moec" -o "$work/copies_device.json" --emulate-storage 50MB/s,100us \
    --compute-time 0.1 --quiet
try 0 "beside the real run" simulate --route cache-prior:0.3 --slots 50% --device-file "$work/copies_device.json" --against "$work/prior.stats"
says stdout "^moec run  +- +- +- +[0-9.]+ +[0-9.]+ +[-+][0-9.]+% +[0-9.]+ +[0-9.]+" "times"
says stdout "^moec run( +[0-9.]+){6} +0.0 +0.0 +0.0 +0.0$" "and what tokens took"
try 2 "beside the real run without times" simulate --route cache-prior:0.3 --slots 50% --against "$work/prior.stats"
says stderr "the time that storage takes is unknown" "says what is missing"
try 0 "with the trace's times" simulate --route cache-prior:0.3 --slots 50% --emulate-storage 50MB/s --against "$work/prior.stats"
try 0 "as JSON" simulate --precision hobbit:0.5:0.8 --slots 6 --low-slots 4 --device-file "$work/copies_device.json" \
    --against "$work/hobbit.stats" --json
says stdout '"predicted_decided"' "with what was predicted"
try 2 "beside a run that decided otherwise" simulate --route cache-prior:0.2 --device-file "$work/copies_device.json" --against "$work/prior.stats"
says stderr "measured with route 'cache-prior:0.3'" "is refused"
try 0 "a bench records scores" "$moec" bench "$work/copies.moec" --modes cache --memory 50% --samples 2 --prompt-tokens 16 --tokens 8 \
    --traces "$work/traces" --trace-scores --quiet
try 0 "and decides" "$moec" bench "$work/copies.moec" --modes cache --memory 50% --samples 2 --prompt-tokens 16 --tokens 8 \
    --route cache-prior:0.3 --slots 50% -o "$work/decided.json" --quiet
says "decided.json" '"decided_miss_rate": 0[.0-9]*' "and counts what tokens took"
trace=$(find "$work/traces" -name 'cache*.json' | head -n 1)
try 0 "both side by side" "$moec" simulate "$trace" --model "$work/copies.moec" --device-file "$work/copies_device.json" \
    --route cache-prior:0.3 --slots 50% --against "$work/decided.json"
says stdout "missed % +predicted +low %" "with what tokens took"
# On the bench's own routing counts are the bench's, and times what its tokens computed and the storage takes.
try 0 "a bench on slow storage" "$moec" bench "$work/copies.moec" --modes cache --memory 40% --samples 2 --prompt-tokens 16 --tokens 8 \
    --predict none --emulate-storage 4MB/s,100us --traces "$work/slow" -o "$work/slow.json" --quiet
trace=$(find "$work/slow" -name 'cache*.json' | head -n 1)
try 0 "foretold from its trace" "$moec" simulate "$trace" --model "$work/copies.moec" --against "$work/slow.json" --json
value() {
    sed -n "s/.*\"$1\": *\([0-9.e+-]*\).*/\1/p" "$work/stdout"
}
for key in hit_rate bytes_per_token; do
    if [ "$(value measured_$key)" = "$(value predicted_$key)" ]; then
        pass "$key is the bench's"
    else
        fail "$key: $(value predicted_$key) foretold, $(value measured_$key) measured"
    fi
done
for key in tpot_ms_mean stall_ms; do
    if awk "BEGIN { exit !($(value predicted_$key) > 0.6 * $(value measured_$key) && $(value predicted_$key) < 1.2 * $(value measured_$key)) }"; then
        pass "$key is near the bench's"
    else
        fail "$key: $(value predicted_$key) ms foretold, $(value measured_$key) measured"
    fi
done
# A trace of precision shared is replayed in two pools, as it ran.
# shellcheck disable=SC2317 # small_budget calls it
shared() { "$moec" run "$work/copies.moec" -f "$work/prompt.txt" -n 24 --ignore-eos --precision shared:0.3:0.8 --predict none "$@"; }
tight=$(small_budget shared --trace "$work/shared.json" --force)
by_buffer() {
    budget=$1
    shift
    try 0 "a run by what $budget bytes hold" shared --memory "$budget" "$@"
}
for evict in lru hobbit; do
    by_buffer "$tight" --trace "$work/shared.json" --force --stats json --evict $evict
    cp "$work/stderr" "$work/shared.stats"
    try 0 "two pools with $evict" "$moec" simulate "$work/shared.json" --model "$work/copies.moec" --emulate-storage 50MB/s \
        --against "$work/shared.stats" --json
    for key in hit_rate bytes_per_token; do
        if awk "BEGIN { d = $(value measured_$key) - $(value predicted_$key); exit !(d * d < 1e-12) }"; then
            pass "$evict in pools: $key is the run's"
        else
            fail "$evict in pools: $key: $(value predicted_$key) foretold, $(value measured_$key) measured"
        fi
    done
done
# Of a trace of two copies others follow the recording.
try 0 "two copies as they were" "$moec" simulate "$work/hobbit.json" --evict lru --predict none --memory 50%
try 2 "tiers of two copies" "$moec" simulate "$work/hobbit.json" --model "$work/copies.moec" --vram 20%
says stderr "in one precision" "are refused"
try 2 "decisions without a bundle" "$moec" simulate "$work/plain.json" --route top-k
says stderr "need the routers of a bundle: give --model" "are refused"
try 2 "decisions of a profile" "$moec" simulate "$work/profile.h5" --model "$work/copies.moec" --route top-k
says stderr "trace-scores" "say what to record"
try 2 "slots without decisions" simulate --slots 4
says stderr "slots does nothing without --route, --precision or --prefill" "are refused"
try 2 "decide without decisions" simulate --decide decode
try 2 "a shared buffer" simulate --precision shared
try 2 "fate for prompts" simulate --precision fate:4
says stderr "decide decode" "is refused, with what to do"

try 2 "unknown policy" "$moec" simulate "$work/profile.h5" --evict clock
says stderr "clock" "is named"
try 2 "unknown predictor" "$moec" simulate "$work/profile.h5" --predict oracle
try 2 "a predictor without its input" "$moec" simulate "$work/profile.h5" --predict gate
try 2 "a wrong size" "$moec" simulate "$work/profile.h5" --memory 10%,many
says stderr "many" "is named"
try 2 "storage without a device" "$moec" simulate "$work/profile.h5" --emulate-storage 550MB/s
try 2 "a copy that is not there" "$moec" simulate "$work/profile.h5" --model "$work/model.moec" --bits 8
try 1 "something else than a profile" "$moec" simulate README.md
try 1 "no such file" "$moec" simulate "$work/none.h5"
done_testing
