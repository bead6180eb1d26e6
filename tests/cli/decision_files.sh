#!/bin/sh
# Precision by what memory holds: its decisions go into a file, and a replay of it gives the same text with other memory.
# That the logits are the same bit for bit is in tests/unit/test_shared_precision.c.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
sample=datasets/sample/model
prompt="The old miller had three sons and"
try 0 "a bundle with copies" "$moec" compile $sample --policy uniform --bits 8 --copies 2 -q -o "$work/m.moec"

# shellcheck disable=SC2317 # try calls it
generate() {
    "$moec" run "$work/m.moec" -p "$prompt" -n 60 --ctx 128 --ignore-eos "$@"
}
number() {
    sed -n "s/^.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$work/stderr" | head -n 1
}
tight=$(small_budget "$moec" run "$work/m.moec" -p "$prompt" -n 60 --ctx 128 --ignore-eos --precision shared:0.3:0.8)

# ---- recorded in little memory from a slow device, replayed with everything in memory ----

# replays NAME OPTIONS...: the text of a recording with these options and a replay without a limit are the same.
replays() {
    text=$1
    shift
    try 0 "record $text" generate --precision shared:0.3:0.8 --memory "$tight" --evict hobbit --emulate-storage 20MB/s,200us \
        --record-decisions "$work/$text.txt" --stats json "$@"
    if [ "$(number experts_low)" -gt 0 ] && [ "$(number experts_skipped)" -gt 0 ]; then
        pass "$text: memory decided"
    else
        fail "$text: memory decided"
    fi
    says stderr '"decisions_file": *"recorded"' "$text: the stats name a record"
    if takes_memory || [ "$(number peak_bytes)" -le "$tight" ]; then
        pass "$text: within the budget"
    else
        fail "$text: within the budget"
    fi
    cp "$work/stdout" "$work/$text"
    low=$(number experts_low)
}
same() {
    if cmp -s "$work/stdout" "$work/$1"; then pass "$2"; else fail "$2"; fi
}
replays greedy
try 0 "replay greedy" generate --replay-decisions "$work/greedy.txt" --stats json
same greedy "replay greedy: the same text"
says stderr '"decisions_file": *"replayed"' "the stats name a replay"
if [ "$(number experts_low)" -eq "$low" ]; then pass "and as many low copies"; else fail "and as many low copies"; fi
try 0 "replay in little memory" generate --replay-decisions "$work/greedy.txt" --memory "$tight" --threads 1 --stats
same greedy "replay in little memory: the same text"
says stderr "precision as recorded, [0-9.]+% of the experts high, [0-9.]+% low, [0-9.]+% skipped" "the stats in words"
try 0 "without the file" generate --precision shared:0.3:0.8 --stats
says stderr "the next run may give another text; --record-decisions FILE keeps the decisions" "it is said that nothing repeats the text"
if cmp -s "$work/stdout" "$work/greedy"; then fail "with more memory it is another one"; else pass "with more memory it is another one"; fi
# The pool of low copies: half as many as of high ones, or as asked.
replays pools --low-slots 1
one=$(number low_pool_bytes)
try 0 "a larger pool" generate --precision shared:0.3:0.8 --memory $((tight + 524288)) --low-slots 4 --stats json
if [ "$one" -gt 0 ] && [ "$(number low_pool_bytes)" -eq $((4 * one)) ] && [ "$(number low_pool_bytes)" -lt "$(number expert_buffer_bytes)" ]; then
    pass "--low-slots says how many low copies have room"
else
    fail "--low-slots says how many low copies have room"
fi
try 0 "replay pools" generate --replay-decisions "$work/pools.txt" --stats
same pools "replay pools: the same text"
says stderr "high copies have [0-9.]+ [KM]iB of memory, low ones [0-9.]+ [KM]iB" "the stats name both pools"
replays sampled --temp 0.8 --seed 7
try 0 "replay sampled" generate --temp 0.8 --seed 7 --replay-decisions "$work/sampled.txt"
same sampled "replay sampled: the same text"
replays drafted --draft lookup
try 0 "replay drafted" generate --replay-decisions "$work/drafted.txt"
same drafted "replay drafted: the same text"
tight=$(small_budget "$moec" run "$work/m.moec" -p "$prompt" -n 60 --ctx 128 --ignore-eos --precision shared:0.3:0.8 --beams 3)
replays beams --beams 3
if grep -q '^sequence 0 beam 2$' "$work/beams.txt"; then pass "beams have rows of their own"; else fail "beams have rows of their own"; fi
try 0 "replay beams" generate --beams 3 --replay-decisions "$work/beams.txt"
same beams "replay beams: the same text"
tight=$(small_budget "$moec" run "$work/m.moec" -p "$prompt" -n 60 --ctx 128 --ignore-eos --precision shared:0.3:0.8)
replays decoded --decide decode
if awk -F '\t' '$1 ~ /^[0-4]$/ { for (i = 3; i <= NF; i++) if ($i != "hhhh") exit 1 }' "$work/decoded.txt"; then
    pass "prompts are left alone"
else
    fail "prompts are left alone"
fi
try 0 "replay decoded" generate --replay-decisions "$work/decoded.txt"
same decoded "replay decoded: the same text"
if [ -x "$build/moec-run" ]; then
    try 0 "replay by moec-run" "$build/moec-run" "$work/m.moec" -p "$prompt" -n 60 --ctx 128 --ignore-eos \
        --replay-decisions "$work/greedy.txt"
    same greedy "replay by moec-run: the same text"
fi

# ---- refusals ----

# refused STATUS WORDS COMMAND...
refused() {
    status=$1 words=$2
    shift 2
    try "$status" "refused: $*" "$@"
    says stderr "$words" "says why"
}
try 0 "another bundle" "$moec" compile $sample --policy uniform --bits 4 --copies 2 -q -o "$work/other.moec"
refused 1 "was recorded with another bundle" "$moec" run "$work/other.moec" -p "$prompt" --replay-decisions "$work/greedy.txt"
refused 1 "position [0-9]+ of sequence 0 beam 0 has token" "$moec" run "$work/m.moec" -p "The old miller had four" -n 1 \
    --replay-decisions "$work/greedy.txt"
refused 1 "position [0-9]+ of sequence 0 beam 0 is not in" "$moec" run "$work/m.moec" -p "$prompt" -n 70 --ignore-eos \
    --replay-decisions "$work/greedy.txt"
refused 1 "no decisions for sequence 0 beam 1" generate --beams 3 --replay-decisions "$work/greedy.txt"
refused 1 "recorded with precision 'shared:0.3:0.8', expected 'shared:0.3:0.9'" generate --precision shared:0.3:0.9 \
    --replay-decisions "$work/greedy.txt"
refused 1 "arithmetic 'canonical', but this run uses 'int8'" generate --arithmetic int8 --replay-decisions "$work/greedy.txt"
refused 2 "replay without drafts" generate --draft lookup --replay-decisions "$work/greedy.txt"
refused 2 "cannot record to" generate --record-decisions "$work/new.txt" --replay-decisions "$work/greedy.txt"
sed '20s/h/l/' "$work/greedy.txt" >"$work/changed.txt"
refused 1 "was changed after it was written" generate --replay-decisions "$work/changed.txt"
head -n 30 "$work/greedy.txt" >"$work/short.txt"
refused 1 "ends early, after position 17 of sequence 0 beam 0" generate --replay-decisions "$work/short.txt"
head -c 500 "$work/greedy.txt" >"$work/cut.txt"
refused 1 "ends early, after position" generate --replay-decisions "$work/cut.txt"
refused 1 "is not a decision file" generate --replay-decisions "$work/m.moec"
refused 2 "recorded to .* only with precision shared:T1:T2" generate --precision hobbit --record-decisions "$work/new.txt"
refused 2 "slots and start of a logical cache have no effect" generate --precision shared --slots 4
refused 2 "the memory for low-precision copies .low_slots. has room for 17 experts per layer, expected 1 to 16" generate --precision shared --low-slots 17
refused 2 "low-slots does nothing without --precision" generate --low-slots 4
refused 2 "a route decides by a logical cache" generate --precision shared --route cache-prior:0.2
refused 2 "a prefill decides by a logical cache" generate --precision shared --prefill unpopular
refused 2 "unknown precision 'shared:0.9:0.2'" generate --precision shared:0.9:0.2
refused 2 "moec eval: precision shared:0.6:0.9 decides by the experts in memory.*hobbit" "$moec" eval "$work/m.moec" \
    --data datasets/sample/test.txt -q --precision shared
refused 2 "moec bench: precision shared:0.5:1 decides by the experts in memory" "$moec" bench "$work/m.moec" -q --precision shared:0.5:1
try 0 "a bundle without copies" "$moec" strip "$work/m.moec" --copies 2 -o "$work/one.moec"
refused 2 "no precision copy that is smaller.*--copies 2" "$moec" run "$work/one.moec" -p x --precision shared
if [ -e "$work/new.txt" ]; then fail "nothing was written by what was refused"; else pass "nothing was written by what was refused"; fi
refused 1 "nowhere" generate --precision shared --record-decisions "$work/nowhere/d.txt"
done_testing
