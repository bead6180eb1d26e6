#!/bin/sh
# Run modes of `moec run`: the same text as the resident run of the same precisions, refusals, budgets, figures.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

# total FILE KEY: a counter of all layers in the JSON of --stats json.
total() {
    sed 's/.*"experts": {\([^}]*\)}.*/\1/' "$1" | sed "s/.*\"$2\": \([0-9]*\).*/\1/"
}
# number FILE KEY: the first number of that name.
number() {
    grep -o "\"$2\": [-0-9.e+]*" "$1" | head -n 1 | sed 's/.*: //'
}
holds() {
    if awk "BEGIN { exit !($2) }"; then
        pass "$1"
    else
        fail "$1 (not true: $2)"
    fi
}
run() {
    "$build/moec-run" "$bundle" -p "The old miller" -n 40 --ctx 128 --threads 2 "$@"
}

bundle=$work/model.moec
try 0 "profile" "$moec" profile datasets/sample/model --data datasets/sample/calibration.txt --seq-len 64 --samples 32 \
    --seed 1 --bits 2,4 --sensitivity fast -o "$work/profile.h5" --quiet
try 0 "compile with copies" "$moec" compile datasets/sample/model --policy edgemoe --profile "$work/profile.h5" --max-loss 10% \
    --copies 4,8,16 -o "$bundle" --quiet
try 0 "compile without copies" "$moec" compile datasets/sample/model --policy uniform --bits 4 -o "$work/plain.moec" --quiet

# ---- the same text ----

# Modes with the precision copy that holds what they run.
for level in 0 1 2 3; do
    try 0 "copy $level, resident" run --copy $level
    cp "$work/stdout" "$work/text.$level"
done
for pair in cache:0 edgemoe:0 io-free:3 io-qfree:2 io-exp:3 io-qexp:1 sti:0 io-exp+lru:3 io-qexp+lru:1 lod:0 eap:0 moe-offloading:0 moe-infinity:0; do
    mode=${pair%:*}
    level=${pair#*:}
    try 0 "$mode" run --mode "$mode" --stats json
    same "$work/stdout" "$work/text.$level" "$mode says what copy $level says"
    cp "$work/stderr" "$work/$mode.json"
done
for pair in cache:0 edgemoe:0 io-exp:3 io-qexp:1 sti:0 io-exp+lru:3 io-qexp+lru:1 lod:0 eap:0 moe-offloading:0 moe-infinity:0; do
    mode=${pair%:*}
    level=${pair#*:}
    memory=$(small_budget run --mode "$mode")
    try 0 "$mode in $memory bytes" run --mode "$mode" --memory "$memory" --stats json
    same "$work/stdout" "$work/text.$level" "$mode says the same there"
    within_budget "$mode keeps within its budget" "$memory"
    cp "$work/stderr" "$work/$mode-small.json"
done

memory=$(small_budget run --mode cache)
for predictor in none frequency path gate path+gate; do
    for count in 0 2; do
        case $predictor:$count in
        none:2) continue ;;
        *:0) set -- --predict $predictor ;;
        *) set -- --predict $predictor --preload-count $count ;;
        esac
        try 0 "prediction by $predictor, $count a layer" run --memory "$memory" --stats json "$@"
        same "$work/stdout" "$work/text.0" "the same text with prediction by $predictor, $count a layer"
        within_budget "within the budget with prediction by $predictor" "$memory"
        cp "$work/stderr" "$work/$predictor-$count.json"
    done
done
for way in direct cached auto; do
    if run --memory "$memory" --io $way --stats json >"$work/stdout" 2>"$work/stderr"; then
        same "$work/stdout" "$work/text.0" "the same text read $way"
        [ $way = auto ] || says stderr "\"io\": \"$way" "figures say that it was read $way"
    elif [ $way = direct ] && grep -q 'refuse' "$work/stderr"; then
        skip "the same text read $way" "this file system has no direct reads"
    else
        fail "the same text read $way"
    fi
done
for mode in cache edgemoe io-exp sti; do
    level=0
    [ $mode = io-exp ] && level=3
    try 0 "$mode on a slower device" run --memory "$(small_budget run --mode $mode)" --mode $mode --emulate-storage 40MB/s,50us --stats
    same "$work/stdout" "$work/text.$level" "the same text from a slower device in mode $mode"
    says stderr '^ +emulated 40 MB/s, 50 us, 10 us a request over' "figures name the device"
done
try 2 "a device that is none" run --emulate-storage fast
says stderr "such as 550MB/s,80us" "is refused with an example"
try 0 "a trace" run --memory "$((memory + 1500000))" --mode edgemoe --trace "$work/traced"
same "$work/stdout" "$work/text.0" "the same text with a trace"
head -n 1 "$work/traced" >"$work/stdout"
says stdout '^{"traceEvents":\[$' "a trace begins as it should"
tail -n 1 "$work/traced" >"$work/stdout"
says stdout '^\],"displayTimeUnit":"ns"}$' "and ends so"
try 1 "a trace into a folder that there is not" run --trace "$work/none/trace.json"
says stderr "none/" "names it"

# ---- figures ----

# One program reads them all; starting one for each would take seconds.
cat >"$work/read.py" <<'END'
import json, sys
for name in sys.argv[1:]:
    try:
        json.load(open(name))
        print(name)
    except ValueError as wrong:
        print(name, wrong, file=sys.stderr)
END
python3 "$work/read.py" "$work"/*.json >"$work/read" 2>"$work/stderr"
for file in "$work"/*.json; do
    figures=$(basename "$file" .json)
    if ! grep -qxF "$file" "$work/read"; then
        if command -v python3 >/dev/null; then
            fail "--stats json of $figures is JSON"
        else
            skip "--stats json of $figures is JSON" "python3 is not installed"
        fi
    else
        pass "--stats json of $figures is JSON"
    fi
    holds "hits, late and misses of $figures are what was asked for" \
        "$(total "$file" hits) + $(total "$file" late) + $(total "$file" misses) == $(total "$file" demands) && $(total "$file" demands) > 0"
    # One program for all counters: two thousand would take seconds.
    awk -v keys="demands hits late misses useful_preloads wasted_preloads evictions read_bytes preload_bytes stall_ns compute_ns" '
        { text = text $0 }
        END {
            layers = text; sub(/.*"layers": \[/, "", layers); sub(/\].*/, "", layers)
            all = text; sub(/.*"experts": \{/, "", all); sub(/\}.*/, "", all)
            n = split(keys, key, " ")
            for (i = 1; i <= n; i++) {
                total = all; sub(".*\"" key[i] "\": ", "", total); sub(/[^0-9].*/, "", total)
                n_part = split(layers, part, "\"" key[i] "\": ")
                for (sum = 0, j = 2; j <= n_part; j++) sum += part[j] + 0
                if (n_part < 2 || sprintf("%.0f", sum) != total) print key[i]
            }
        }' "$file" >"$work/unlike"
    while read -r key; do fail "$key of the layers of $figures add up"; done <"$work/unlike"
done
cp "$work/cache-small.json" "$work/stdout"
says stdout '"mode": "cache", "copy": 0, "bits": 0, "evict": "hobbit", "predict": "gate"' "JSON names mode, copy and policy"
cp "$work/io-free.json" "$work/stdout"
says stdout '"mode": "io-free", "copy": 3, "bits": 16, "evict": "none"' "io-free evicts nothing"
holds "and reads each expert once" "$(total "$work/io-free.json" read_bytes) <= $(number "$work/io-free.json" expert_total_bytes)"
holds "nothing is kept by io-exp" "$(total "$work/io-exp.json" hits) + $(total "$work/io-exp.json" late) == 0"
holds "two guesses a layer are made" "$(total "$work/frequency-2.json" useful_preloads) + $(total "$work/frequency-2.json" wasted_preloads) > 0"
holds "and read" "$(total "$work/frequency-2.json" preload_bytes) > 0"
holds "no guess is made where nothing is predicted" "$(total "$work/none-0.json" preload_bytes) == 0"
holds "experts were evicted in little memory" "$(total "$work/io-exp+lru-small.json" evictions) > 0"
try 0 "--stats alone is text" run --stats
says stderr 'experts +[0-9]+ hits, [0-9]+ late, [0-9]+ misses' "with how experts were found"
try 0 "--stats text" run --stats text
says stderr 'mode cache, eviction hobbit$' "with mode and policy"
says stderr '^preloads +0 useful, 0 wasted; prediction gate$' "and predictor"
says stderr '^ +(direct|cached)' "and the way of reading"
try 2 "--stats of another kind" run --stats=xml
says stderr "option '--stats' is 'xml', expected one of text|json" "is refused"

# ---- refusals ----

bundle=$work/plain.moec
for mode in io-free:16 io-qfree:8 io-exp:16 io-qexp:4 io-exp+lru:16 io-qexp+lru:4; do
    try 2 "${mode%:*} without its copy" run --mode "${mode%:*}"
    says stderr "compile it with --copies ${mode#*:}\$" "names the flag"
done
try 0 "edgemoe without a path table" run --mode edgemoe --stats
says stderr "note: mode 'edgemoe' predicts experts from a path table" "says that nothing is guessed"
says stderr 'prediction none$' "and guesses nothing"
try 2 "prediction by a path table that is not there" run --predict path
says stderr "predictor 'path' needs a path table .which experts follow which." "is refused"
bundle=$work/model.moec
try 1 "io-free in too little memory" run --mode io-free --memory "$(small_budget run --mode io-free)"
says stderr "mode 'io-free' keeps every expert in memory: they take [0-9.]+ MiB at 16 bits" "says how much it takes"
try 2 "io-free with an eviction" run --mode io-free --evict lru
says stderr "mode 'io-free' evicts nothing" "is a contradiction"
try 2 "io-exp+lru with another eviction" run --mode io-exp+lru --evict lfu
says stderr "use mode 'cache', which takes any" "is a contradiction"
try 0 "io-exp+lru with its own eviction" run --mode io-exp+lru --evict lru
try 2 "io-free with a copy" run --mode io-free --copy 1
says stderr "do not ask for copy 1" "is a contradiction"
try 2 "sti with an eviction" run --mode sti --evict lru
says stderr "mode 'sti' evicts nothing" "is a contradiction"
try 2 "edgemoe with another predictor" run --mode edgemoe --predict gate
says stderr "use mode 'cache', which takes any predictor" "is a contradiction"
try 2 "guesses where nothing is predicted" run --predict none --preload-count 2
says stderr "nothing is predicted" "is a contradiction"
try 2 "a predictor that there is not" run --predict oracle
try 2 "a policy that there is not" run --evict belady
try 2 "a way of reading that there is not" run --io fast
try 2 "a mode that there is not" run --mode turbo
try 1 "a budget under the floor" run --memory 2MiB
says stderr "below the floor of" "is itemised"

done_testing
