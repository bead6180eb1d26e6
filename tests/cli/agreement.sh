#!/bin/sh
# What moec simulate counts on the trace of a run is what the run itself counted.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model
try 0 "profile" "$moec" profile $model --data datasets/sample/calibration.txt --seq-len 16 --samples 32 --bits 2 \
    -o "$work/profile.h5" --quiet
try 0 "compile" "$moec" compile $model --profile "$work/profile.h5" --policy uniform --bits 8 -o "$work/model.moec" --quiet
try 1 "its floor" "$moec" run "$work/model.moec" -p "The old man" -n 40 --ctx 64 --memory 2MiB \
    --predict path+gate --trace "$work/none.json"
floor=$(sed -n 's/.*below the floor of \([0-9]*\) .*/\1/p' "$work/stderr")
small=$((floor + 1048576))
larger=$((floor + 2097152))

# ran NAME: a total of the run's statistics, which are one line of JSON on standard error.
ran() {
    sed -n "s/.*\"experts\": *{[^}]*\"$1\": *\([0-9]*\).*/\1/p" "$work/stats"
}
# simulated NAME: the same of a simulation, of prompts and decoding together.
simulated() {
    awk -v key="\"$1\":" '$1 == key { sum += $2 } END { print sum + 0 }' "$work/simulated.json"
}

# agree NAME OPTIONS...: a run with these options, and the same simulated from its trace.
agree() {
    what=$1
    shift
    try 0 "run with $what" "$moec" run "$work/model.moec" -p "The old man" -n 40 --ignore-eos --temp 0 --ctx 64 "$@" \
        --trace "$work/trace.json" --stats json
    cp "$work/stderr" "$work/stats"
    # The policies that ran, and the buffer, stand in the head of the trace.
    buffer=$(sed -n 's/.*"buffer_bytes":\([0-9]*\).*/\1/p' "$work/trace.json" | head -n 1)
    evict=$(sed -n 's/.*"evict":"\([a-z-]*\)".*/\1/p' "$work/trace.json" | head -n 1)
    predict=$(sed -n 's/.*"predict":"\([a-z+-]*\)".*/\1/p' "$work/trace.json" | head -n 1)
    count=$(sed -n 's/.*"preload_count":\([0-9]*\).*/\1/p' "$work/trace.json" | head -n 1)
    [ "$count" = 0 ] && count=1
    try 0 "simulate it" "$moec" simulate "$work/trace.json" --evict "$evict" --predict "$predict" --preload-count "$count" \
        --memory "$buffer" --json
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

for policy in fifo lru lfu edgemoe edgemoe-literal arc random; do
    agree "$policy" --memory $small --evict $policy
done
agree "a larger buffer" --memory $larger --evict lru
for predictor in frequency path gate path+gate; do
    agree "two guesses by $predictor" --memory $small --evict edgemoe --predict $predictor --preload-count 2
done
try 0 "the last trace on slow storage" "$moec" simulate "$work/trace.json" --evict lru --predict none,path --memory "$buffer" \
    --emulate-storage 50MB/s,100us
says stdout "Median ms a decoded token, predictor 'path'" "computing takes what it took in the trace"
done_testing
