#!/bin/sh
# moec bench on the sample: rows, figures, what is refused, workers that fail, and signals.
# shellcheck disable=SC2016 # fields of awk
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model
data=datasets/sample/test.txt
bundle=$work/sample.moec

# field NAME: its values in the last JSON, one a line, in the order of the rows.
field() {
    sed '/^  "ratios"/q' "$work/stdout" | sed -n "s/^      \"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p"
}

# holds PROGRAM NAME: awk over "mode memory_bytes ttft tpot p95 hit_rate bytes floor prompt_floor" lines of the rows.
holds() {
    if awk "$1" "$work/rows"; then pass "$2"; else fail "$2"; fi
}

try 0 "a bundle with copies" "$moec" compile "$model" --policy uniform --bits 3 --copies 4,8,16 -o "$bundle" --quiet
try 0 "a bundle without" "$moec" compile "$model" --policy uniform --bits 3 -o "$work/single.moec" --quiet

short="--samples 2 --prompt-tokens 16 --tokens 8 --quiet"
# shellcheck disable=SC2086
try 0 "all modes" "$moec" bench "$bundle" --data "$data" --memory "25%,$(mebibytes 64)" $short --json -o "$work/out.json"
for name in mode memory_bytes ttft_ms tpot_ms_median tpot_ms_p95 hit_rate bytes_per_token floor_ms prompt_floor_ms; do
    field "$name" >"$work/field.$name"
done
(cd "$work" && paste -d' ' field.mode field.memory_bytes field.ttft_ms field.tpot_ms_median field.tpot_ms_p95 \
    field.hit_rate field.bytes_per_token field.floor_ms field.prompt_floor_ms) >"$work/rows"
holds 'NF != 9 { exit 1 } END { exit NR < 6 }' "every row has the nine fields"
holds '$3 <= 0 || $4 <= 0 || $5 < $4 || $2 <= 0 { exit 1 }' "times are positive, the p95 is not under the median"
holds '$6 < 0 || $6 > 1 { exit 1 }' "hit rates are rates"
holds '$1 == "io-free" && ($6 != 1 || $7 != 0) { exit 1 }' "io-free reads nothing"
holds '$1 == "io-exp+lru" && $2 < 1000000 && $7 <= 0 { exit 1 }' "a small buffer reads"
holds '$8 <= 0 || $4 < 0.2 * $8 { exit 1 }' "floors are there, and medians not far under them"
holds '$9 <= 0 || $3 < 0.2 * $9 { exit 1 }' "so are those of prompts"
says stdout '"teacher_forced": true' "JSON says how tokens were chosen"
says stdout '"data_sha256": "[0-9a-f]{64}"' "and which"
says stdout '"joules_per_token": (null|[0-9])' "energy is a number or null"
if cmp -s "$work/stdout" "$work/out.json"; then pass "-o writes the same JSON"; else fail "-o writes the same JSON"; fi

# shellcheck disable=SC2086
try 0 "a table, from moec's own text" "$moec" bench "$bundle" --memory 50% $short
says stdout '^io-free +[0-9.]+ +[0-9.]+' "has rows"
says stdout 'energy per token' "and speaks of energy"
# shellcheck disable=SC2086
try 0 "policies" "$moec" bench "$work/single.moec" --modes cache --evict lru,lfu --memory 30% $short --plots "$work/plots" \
    --plot-format png,csv
says stdout '^cache 30% lfu ' "are rows of their own"
says stdout 'wrote [0-9]+ plots' "and figures"
if [ "$(sed -n 1p "$work/plots/hits.csv")" = "series,buffer_percent,hits_percent,low,high" ] && [ -s "$work/plots/hits.png" ] &&
    [ "$(wc -l <"$work/plots/hits.csv")" -eq 3 ]; then
    pass "hits by policy are drawn and tabulated"
else
    fail "hits by policy are drawn and tabulated"
fi
# shellcheck disable=SC2086
try 0 "all modes of a bundle without copies" "$moec" bench "$work/single.moec" --memory 30% --evict lru $short
says stdout 'left out.*io-free' "names those left out"

# Everything that streams, on storage that is made slow, with what edgemoe guesses.
try 0 "a profile" "$moec" profile "$model" --data datasets/sample/calibration.txt --bits 3 --sensitivity none --samples 32 \
    --seq-len 32 -o "$work/sample.h5" --quiet
try 0 "a bundle with a path table" "$moec" compile "$model" --profile "$work/sample.h5" --policy uniform --bits 3 \
    --copies 4,8,16 -o "$work/paths.moec" --quiet
# shellcheck disable=SC2086
try 0 "all modes on slow storage" "$moec" bench "$work/paths.moec" --memory 40% --emulate-storage 200MB/s,50us --against-none \
    --ablation --traces "$work/traces" $short --json
field mode >"$work/modes"
for mode in io-free io-qfree io-exp io-qexp sti io-exp+lru io-qexp+lru edgemoe cache quantised quantised+preloads; do
    if grep -qxF -- "$mode" "$work/modes"; then pass "$mode has a row"; else fail "$mode has a row"; fi
done
if grep -qx lod "$work/modes"; then fail "baselines of other papers are asked for"; else pass "baselines of other papers are asked for"; fi
for name in mode hit_rate late_rate miss_rate bytes_per_token bandwidth_bytes_per_second floor_ms tpot_ms_median; do
    field "$name" >"$work/field.$name"
done
(cd "$work" && paste -d' ' field.mode field.hit_rate field.late_rate field.miss_rate field.bytes_per_token \
    field.bandwidth_bytes_per_second field.floor_ms field.tpot_ms_median) >"$work/rows"
holds '{ sum = $2 + $3 + $4; if (sum < 0.999 || sum > 1.001) exit 1 }' "hits, late and misses are all that was asked for"
holds '($1 == "io-free" || $1 == "io-qfree") && ($2 != 1 || $5 != 0) { exit 1 }' "resident modes read nothing"
holds '($1 == "io-exp" || $1 == "io-qexp" || $1 == "quantised") && ($2 != 0 || $5 <= 0) { exit 1 }' "modes that keep nothing hit nothing"
holds '$6 != "null" && ($6 != 200000000 || $7 < 0.999e3 * $5 / $6) { exit 1 }' "floors are not under bytes/bandwidth"
holds '$6 != "null" && $4 == 1 && $8 < 0.8e3 * $5 / $6 { exit 1 }' "what is read takes its time"
says stdout '"hidden_share"' "edgemoe stands beside itself without preloads"
if [ "$(find "$work/traces" -name '*.json' -size +1k | wc -l)" -ge 8 ]; then pass "traces are written"; else fail "traces are written"; fi
# shellcheck disable=SC2086
try 0 "two storages" "$moec" bench "$work/paths.moec" --modes edgemoe,io-exp,cache --predict gate --preload-count 2 --memory 40% \
    --emulate-storage 400MB/s --emulate-storage 200MB/s,50us --io cached $short
says stdout '^edgemoe 40% at 200MB/s,50us is faster per token than io-exp [0-9.]+ times' "are compared each"
# The device itself, whose rate is measured again after each sample.
# shellcheck disable=SC2086
if "$moec" bench "$work/single.moec" --modes cache --memory 25% --io direct $short --json >"$work/stdout" 2>"$work/stderr"; then
    for name in mode bandwidth_bytes_per_second floor_ms compute_ms bytes_per_token; do
        field "$name" >"$work/field.$name"
    done
    (cd "$work" && paste -d' ' field.mode field.bandwidth_bytes_per_second field.floor_ms field.compute_ms \
        field.bytes_per_token) >"$work/rows"
    holds '$1 == "cache" && $5 > 0 && $2 > 1e6 && $3 >= 0.999 * $4 { n++ } END { exit n != 1 }' "floors of the device itself"
    says stdout '"token_read_bytes"' "and what each token read"
elif grep -q 'refuse' "$work/stderr"; then
    skip "floors of the device itself" "this file system has no direct reads"
else
    fail "floors of the device itself"
fi
# shellcheck disable=SC2086
try 0 "baselines of other papers" "$moec" bench "$work/paths.moec" --modes lod,eap,moe-offloading,moe-infinity,sti --memory 40% \
    --emulate-storage 200MB/s,50us $short --json
for name in mode hit_rate bytes_per_token; do
    field "$name" >"$work/field.$name"
done
(cd "$work" && paste -d' ' field.mode field.hit_rate field.bytes_per_token) >"$work/rows"
for mode in lod eap moe-offloading moe-infinity sti; do
    if grep -q "^$mode " "$work/rows"; then pass "$mode has a row"; else fail "$mode has a row"; fi
done
says stdout '"evict": "fate"' "Fate's own cache is in eap"
holds '$1 == "lod" && ($2 != 0 || $3 <= 0) { exit 1 }' "load on demand hits nothing"
holds '($1 == "eap" || $1 ~ /^moe-/) && $2 <= 0 { exit 1 }' "the others do"

try 0 "kernels" "$moec" bench --kernels --cpu scalar --threads 2 --quiet --json -o "$work/kernels.json"
sed -n 's/^ *"\(weights_per_second\|read_share\|read_bytes_per_second\|region_ns\)": \([^,]*\),\{0,1\}$/\1 \2/p' \
    "$work/stdout" >"$work/rows"
holds '$2 <= 0 { exit 1 } END { exit NR < 80 }' "have rates above 0, on one thread and on two"
says stdout '"codec": "int4 symmetric g32"' "of each codec"
sed -n 's/^ *"\(products_per_second\|peak_share\)": \([^,]*\),\{0,1\}$/\1 \2/p' "$work/stdout" >"$work/rows"
holds '$2 <= 0 || $1 == "peak_share" && $2 > 20 { exit 1 } END { exit NR != 144 }' "of several tokens too"
if cmp -s "$work/stdout" "$work/kernels.json"; then pass "-o writes the same JSON"; else fail "-o writes the same JSON"; fi
try 0 "kernels as a table" "$moec" bench --kernels --cpu scalar --threads 1 --quiet
says stdout '^int3 symmetric channel +[0-9.]+ +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9]+ +[0-9.]+$' "have a line for each codec"
says stdout '^int4 symmetric g32 +dot( +[0-9]+){6}$' "products of 2 to 128 tokens a line for each kernel"
says stdout 'threads meet takes [0-9.]+ us on 1 thread\.' "and the cost of a region"
says stdout '^int2 symmetric g64 +int4 symmetric g64 +0\.9 +1 +[0-9.]+ +29% +[0-9.]+x$' "and experts that leave neurons out"
try 2 "kernels of a bundle" "$moec" bench "$bundle" --kernels
says stderr 'leave .* out' "are refused"
try 2 "samples of kernels" "$moec" bench --kernels --samples 2
says stderr '\-\-samples' "are refused"
try 2 "nothing to time" "$moec" bench
says stderr 'MODEL.moec, or --kernels' "is refused with what there is"

refuse() {
    name=$1 pattern=$2
    shift 2
    # shellcheck disable=SC2086
    try 2 "$name is refused" "$moec" bench "$@" $short
    says stderr "$pattern" "and named"
}
refuse "an unknown mode" "unknown mode 'fly'" "$bundle" --modes fly --memory 25%
refuse "a mode without its copy" "\-\-copies 16" "$work/single.moec" --modes io-free
refuse "no memory" "\-\-memory is missing" "$bundle" --modes cache
refuse "a share over 100 %" "'101%'" "$bundle" --memory 101%
refuse "no share" "'0%'" "$bundle" --memory 25%,0%
refuse "bytes without a unit" "such as 25MiB" "$bundle" --memory 50%,25
refuse "half a size" "'12x'" "$bundle" --memory 12x
refuse "an empty item" "separated by commas" "$bundle" --memory 25%,,50%
refuse "an unknown policy" "nosuch" "$bundle" --modes cache --evict lru,nosuch --memory 25%
refuse "an emulation of nothing" "fast" "$bundle" --memory 25% --emulate-storage fast
refuse "a predictor without its mode" "mode cache" "$bundle" --modes io-exp --predict gate
refuse "nothing to set beside" "against-none" "$bundle" --modes io-exp --against-none
refuse "an ablation without a path table" "compile the model with --profile" "$bundle" --memory 25% --ablation
refuse "a task without data" "\-\-task" "$bundle" --memory 25% --task text
try 1 "samples longer than the context" "$moec" bench "$bundle" --memory 25% --prompt-tokens 1020 --tokens 20 --samples 1 -q
says stderr '1040 tokens' "are refused with their length"
printf 'too short\n' >"$work/short.txt"
# shellcheck disable=SC2086
try 1 "too little data" "$moec" bench "$bundle" --memory 25% --data "$work/short.txt" $short
says stderr "expected 2" "is refused with what is needed"

# shellcheck disable=SC2086
try 1 "a row that cannot run" "$moec" bench "$bundle" --modes io-free,cache --memory 1MiB,25% $short
says stdout '^cache 1MiB hobbit +failed: ' "is reported"
says stdout '^cache 25% hobbit +[0-9]' "and the others go on"
says stderr '1 of [0-9]+ rows failed' "and the end says so"

# Workers are children of the bench: none may be left when it ends, however it ends.
workers() {
    pgrep -P "$1" 2>/dev/null | wc -l
}
"$moec" bench "$bundle" --memory 25% --samples 400 --tokens 64 -q >"$work/stdout" 2>"$work/stderr" &
bench=$!
n=0
while [ "$(workers $bench)" -lt 3 ] && [ $n -lt 100 ]; do
    sleep 0.1
    n=$((n + 1))
done
children=$(pgrep -P "$bench")
kill -TERM "$bench"
wait "$bench"
status=$?
if [ "$status" -eq 143 ]; then pass "a signal ends a bench"; else fail "a signal ends a bench (status $status)"; fi
left=0
for child in $children; do
    [ ! -d "/proc/$child" ] || left=$((left + 1))
done
if [ -n "$children" ] && [ "$left" -eq 0 ]; then pass "and its workers"; else fail "and its workers ($left left)"; fi
"$moec" bench "$bundle" --memory 25% --samples 400 --tokens 64 -q >"$work/stdout" 2>"$work/stderr" &
bench=$!
n=0
while [ "$(workers $bench)" -lt 3 ] && [ $n -lt 100 ]; do
    sleep 0.1
    n=$((n + 1))
done
victim=$(pgrep -P "$bench" | head -n 1)
kill -KILL "$victim"
n=0
while ! grep -q 'ended by signal 9' "$work/stderr" && [ $n -lt 100 ]; do
    sleep 0.1
    n=$((n + 1))
done
says stderr "failed: .*ended by signal 9" "a worker that is killed is reported at once"
children=$(pgrep -P "$bench")
kill -KILL "$bench"
wait "$bench" 2>/dev/null
n=0
left=1
while [ $left -gt 0 ] && [ $n -lt 50 ]; do
    left=0
    for child in $children; do
        [ ! -d "/proc/$child" ] || left=$((left + 1))
    done
    sleep 0.1
    n=$((n + 1))
done
if [ "$left" -eq 0 ]; then pass "workers of a bench that is killed end too"; else fail "workers of a bench that is killed end too ($left left)"; fi
done_testing
