#!/bin/sh
# What moec simulate counts on the trace of a run is what the run itself counted.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

# prepare MODEL CTX PROMPT OPTIONS...: profiles (with the options) and compiles what the following runs are of.
prepare() {
    model=$1
    ctx=$2
    prompt=$3
    shift 3
    try 0 "profile" "$moec" profile "$model" "$@" --seq-len 16 --samples 32 --bits 2 --sensitivity none --force \
        -o "$work/profile.h5" --quiet
    try 0 "compile" "$moec" compile "$model" --profile "$work/profile.h5" --policy uniform --bits 8 --force -o "$work/model.moec" --quiet
    find_floor
}

# find_floor: what a run of this prompt takes at least.
find_floor() {
    try 1 "its floor" "$moec" run "$work/model.moec" -p "$prompt" -n 40 --ctx "$ctx" --memory 2MiB \
        --predict path+gate --trace "$work/none.json"
    floor=$(named_floor <"$work/stderr")
}

# ran NAME: a total of the run's statistics, which are one line of JSON on standard error.
ran() {
    sed -n "s/.*\"experts\": *{[^}]*\"$1\": *\([0-9]*\).*/\1/p" "$work/stats"
}
# simulated NAME: the same of a simulation, of prompts and decoding together.
simulated() {
    awk -v key="\"$1\":" '$1 == key { sum += $2 } END { print sum + 0 }' "$work/simulated.json"
}

# agree NAME OPTIONS...: a run with these options, and the same simulated from its trace; with decisions by `decide`.
# Without --predict nothing is: guesses that time bounds differ from run to run.
decide=
shallow=
agree() {
    what=$1
    shift
    case " $* " in
    *" --predict "*) ;;
    *) set -- "$@" --predict none ;;
    esac
    # shellcheck disable=SC2086 # options without spaces
    try 0 "run with $what" "$moec" run "$work/model.moec" -p "$prompt" -n 40 --ignore-eos --temp 0 --ctx "$ctx" "$@" \
        $decide ${decide:+--trace-scores} --trace "$work/trace.json" --force --stats json
    cp "$work/stderr" "$work/stats"
    # The policies that ran, and the buffer, stand in the head of the trace.
    buffer=$(sed -n 's/.*"buffer_bytes":\([0-9]*\).*/\1/p' "$work/trace.json" | head -n 1)
    evict=$(sed -n 's/.*"evict":"\([a-z-]*\)".*/\1/p' "$work/trace.json" | head -n 1)
    predict=$(sed -n 's/.*"predict":"\([a-z+-]*\)".*/\1/p' "$work/trace.json" | head -n 1)
    count=$(sed -n 's/.*"preload_count":\([0-9]*\).*/\1/p' "$work/trace.json" | head -n 1)
    ahead=$(sed -n 's/.*"preload_ahead":\([0-9]*\).*/\1/p' "$work/trace.json" | head -n 1)
    [ "$count" = 0 ] && count=1
    set -- --preload-ahead "$ahead"
    [ "$ahead" -gt 1 ] || set --
    [ -z "$shallow" ] || evict=fate:$shallow
    # shellcheck disable=SC2086 # options without spaces
    try 0 "simulate it" "$moec" simulate "$work/trace.json" $decide ${decide:+--model "$work/model.moec"} --evict "$evict" --predict "$predict" --preload-count "$count" \
        --memory "$buffer" --json "$@"
    cp "$work/stdout" "$work/simulated.json"
    found=$(($(ran hits) + $(ran late)))
    expected=$(($(simulated hits) + $(simulated late)))
    if [ "$found" -gt 0 ] && [ "$(ran evictions)" -gt 0 ] && [ "$found" -eq "$expected" ] && [ "$(ran misses)" -eq "$(simulated misses)" ] &&
        [ "$(ran evictions)" -eq "$(simulated evictions)" ]; then
        pass "$what: $found hits, $(ran misses) misses and $(ran evictions) evictions are foretold"
    else
        fail "$what: $found hits, $(ran misses) misses, $(ran evictions) evictions, foretold $expected, $(simulated misses), $(simulated evictions)"
    fi
}

prepare datasets/sample/model 64 "The old man" --data datasets/sample/calibration.txt
small=$((floor + 1048576))
larger=$((floor + 2097152))
for policy in fifo lru lfu edgemoe edgemoe-literal arc random hobbit lhu; do
    agree "$policy" --memory $small --evict $policy
done
for shallow in 1 3; do
    agree "fate with $shallow shallow layers" --memory $larger --evict fate:$shallow
done
shallow=
agree "a larger buffer" --memory $larger --evict lru
for predictor in frequency path gate path+gate; do
    agree "two guesses by $predictor" --memory $small --evict edgemoe --predict $predictor --preload-count 2
done
half=$((floor + 3145728))
agree "a walk of two layers" --memory $half --evict lru --predict gate --preload-count 2 --preload-ahead 2
agree "a walk of four layers" --memory $half --evict hobbit --predict path+gate --preload-count 1 --preload-ahead 4
# Tokens that decide: experts in two copies, and some that nobody reads.
try 0 "compile with a low copy" "$moec" compile "$model" --profile "$work/profile.h5" --policy uniform --bits 8 --copies 2 --force \
    -o "$work/model.moec" --quiet
decide="--precision hobbit:0.5:0.8"
agree "two copies" --memory $small --evict lru
decide="--precision hobbit:0.5:0.8 --route cache-prior:0.2 --slots 4 --low-slots 4"
agree "two copies and guesses" --memory $larger --evict edgemoe --predict frequency --preload-count 1
# What tokens hold logically stays where there is room for it.
agree "two copies that are kept" --memory $((floor + 1572864)) --evict fifo
# Prompts have copies of their own, and more tokens than one block of them.
decide="--prefill unpopular:0.5:2 --slots 4 --low-slots 4"
agree "low copies of prompts" --memory $small --evict lru
decide="--prefill whole:0.5 --slots 4 --low-slots 4"
agree "counted ones" --memory $small --evict lru
try 2 "copies of a profile's windows" "$moec" simulate "$work/profile.h5" --prefill unpopular:0.5:2 --model "$work/model.moec"
says stderr "\-\-trace-scores" "need the scores of a trace"
try 2 "a prompt's length" "$moec" simulate "$work/trace.json" --prompt-tokens 4
says stderr "\-\-prompt-tokens applies only to profiles" "is of profiles"
try 2 "a way of prompts" "$moec" simulate "$work/trace.json" --model "$work/model.moec" --prefill often
says stderr "unknown prefill 'often'" "that there is not"
decide="--route cache-prior:0.2 --keep-top 1 --slots 5"
agree "other experts" --memory $small --evict lru
agree "other experts that are kept" --memory $((floor + 1572864)) --evict fifo
decide=
try 2 "a walk without gates" "$moec" simulate "$work/trace.json" --predict path --evict lru --memory 30% --preload-ahead 2
says stderr "\-\-preload-ahead applies only to --predict gate" "is refused"
sed 's/,"gate_[34]":.*_scores":\[[^]]*\]//' "$work/trace.json" >"$work/short.json"
try 2 "further than was recorded" "$moec" simulate "$work/short.json" --predict gate --evict lru --memory 30% --preload-ahead 3
says stderr "the recording has 2: record again with moec run --trace" "is refused too"
try 0 "the last trace on slow storage" "$moec" simulate "$work/trace.json" --evict lru --predict none,path --memory "$buffer" \
    --emulate-storage 50MB/s,100us
says stdout "Median ms a decoded token, predictor 'path'" "computing takes what it took in the trace"

# An encoder's layers once for the source, the decoder's for each token of the target.
prepare datasets/switch-sample/model 128 "Anna: did you see the bus? Ben: no, I am late and it is raining. Anna: take a taxi." \
    --data datasets/switch-sample/calibration.jsonl --task dialogues
small=$((floor + 600000))
for policy in lru edgemoe random; do
    agree "an encoder and $policy" --memory $small --evict $policy
done
agree "an encoder and guesses" --memory $small --evict edgemoe --predict path+gate --preload-count 1
prompt="$prompt $prompt $prompt"
find_floor
# What a process takes beside varies from run to run, most of all under a sanitizer.
slack=1000000
takes_memory && slack=1400000
agree "a source in chunks" --memory $((floor + slack)) --evict edgemoe
chunks=$(grep -c '"name":"answer".*"layer":0,' "$work/trace.json")
try 0 "which are several ($chunks)" test "$chunks" -gt 1
try 0 "its profile" "$moec" simulate "$work/profile.h5" --memory 50% --evict lru,edgemoe
says stdout " decoded one by one; 6 MoE layers, 8 experts, top-1" "is simulated too"
try 2 "with a prompt" "$moec" simulate "$work/profile.h5" --prompt-tokens 4
says stderr "source texts are the prompts" "which it has not"
done_testing
