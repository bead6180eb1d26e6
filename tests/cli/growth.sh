#!/bin/sh
# KV caches grow out of the expert buffer: a run that was admitted goes on to the end of its context, inside its budget
# and with the same words as where everything is resident.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
run=$(dirname "$moec")/moec-run
model="$work/m.moec"
# Experts of 16 bits: a floor may be some megabytes more than a run then takes, which experts of few bits would all fit into.
"$moec" compile datasets/sample/model --policy uniform --bits 16 -o "$model" --quiet >"$work/stdout" 2>"$work/stderr"

# The value of a member of "memory" in the figures of a run.
figure() { sed -n 's/.*"'"$1"'": \([0-9]*\).*/\1/p' "$work/stderr"; }
evictions() { sed -n 's/.*"experts": {[^}]*"evictions": \([0-9]*\).*/\1/p' "$work/stderr"; }

# shellcheck disable=SC2317 # called by try
generate() { "$run" "$model" -p "Once upon a time" --ctx 1024 --ignore-eos "$@"; }

try 0 "a whole context with everything resident" generate -n 1018 --stats json
cp "$work/stdout" "$work/resident"
if [ "$(figure kv_lent_bytes)" = 0 ]; then pass "lends nothing"; else fail "lends nothing"; fi

# What a whole context takes at least, from the refusal of a budget that is too small.
try 1 "far too little" generate -n 1018 --memory 8MiB
floor=$(floor_bytes generate -n 1018)
budget=$((floor + 524288))

try 0 "a short text inside a small budget" generate -n 1018 --memory $budget --stats json --stop " "
lent=$(figure kv_lent_bytes)
# A megabyte, or all that the experts can use.
if [ "$lent" -gt 1000000 ] || [ $((lent + $(figure expert_buffer_bytes))) -eq "$(figure expert_total_bytes)" ]; then
    pass "experts have what KV does not fill"
else
    fail "experts have what KV does not fill ($lent)"
fi

try 0 "the whole context inside it" generate -n 1018 --memory $budget --stats json
if cmp -s "$work/stdout" "$work/resident"; then pass "has the same words"; else fail "has the same words"; fi
if [ "$(figure kv_lent_bytes)" = 0 ]; then pass "has taken everything back"; else fail "has taken everything back"; fi
within_budget "stays inside" "$budget"
if [ "$(evictions)" -gt 0 ]; then pass "gives experts up for it"; else fail "gives experts up for it"; fi

try 0 "the same with a trace, where the buffer keeps its size" generate -n 1018 --memory $((budget + 1572864)) --stats json --trace "$work/t.json"
if cmp -s "$work/stdout" "$work/resident"; then pass "has the same words too"; else fail "has the same words too"; fi
if [ "$(figure kv_lent_bytes)" = 0 ]; then pass "lends nothing"; else fail "lends nothing"; fi

try 0 "beams inside a small budget" generate -n 300 --beams 3 --memory "$(small_budget generate -n 300 --beams 3)" --stats json
cp "$work/stdout" "$work/beams"
try 0 "beams with everything resident" generate -n 300 --beams 3
if cmp -s "$work/stdout" "$work/beams"; then pass "say the same"; else fail "say the same"; fi

try 0 "a preloader inside it" generate -n 1018 --memory $((budget + 262144)) --predict gate --stats json
if cmp -s "$work/stdout" "$work/resident"; then pass "has the same words"; else fail "has the same words"; fi
within_budget "stays inside" $((budget + 262144))

done_testing
