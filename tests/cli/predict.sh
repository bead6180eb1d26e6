#!/bin/sh
# A bundle that was taught which experts its next layer needs: what it says of itself, and that words stay the same.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
sample=datasets/sample/model
data=datasets/sample/calibration.txt
text=datasets/sample/test.txt
check() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1: $2"; fi
}
number() {
    sed -n "s/^.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$work/stdout" | head -n 1
}

try 0 "a bundle" "$moec" compile $sample --policy uniform --bits 4 -q -o "$work/plain.moec"
# shellcheck disable=SC2317 # called by try
teach() {
    "$moec" predict "$work/plain.moec" --data "$data" --samples 64 --seq-len 128 --max-share 0.6% -q "$@"
}
try 0 "is taught" teach -o "$work/m.moec"
says stdout '^  gate +[0-9.]+% \(' "its report has the gate"
says stdout '^  learned +[0-9.]+% \(' "and what was learned"
says stdout "with 4 predicted experts, 'learned' finds [0-9.]+ percentage points more of the experts than 'gate' \(.*\): a significant gain" "which is better"
says stdout "wrote '$work/m.moec' with a predictor of [0-9]+ bytes, learned from [0-9]+ tokens" "and written"
bytes=$(sed -n 's/.*predictor of \([0-9]*\) bytes.*/\1/p' "$work/stdout")
check "within its share" "$bytes <= 0.006 * $(stat -c %s "$work/plain.moec") && $bytes > 5000"
try 0 "it is a whole bundle" "$moec" verify "$work/m.moec"
try 0 "on one thread, with other instructions" teach -t 1 --cpu avx2 --json -o "$work/again.moec"
check "its recall is above the gate's" "$(number value) > 0.5"
if cmp -s "$work/m.moec" "$work/again.moec"; then pass "the same bytes"; else fail "the same bytes"; fi
try 0 "inspect" "$moec" inspect "$work/m.moec"
says stdout '^Predictor \(moec predict\)' "shows it"
try 0 "inspect as JSON" "$moec" inspect "$work/m.moec" --json
check "with both recalls" "$(number recall) > $(number gate_recall) + 0.03"

# ---- judging alone ----

try 0 "a study of neurons" "$moec" predict "$work/m.moec" --test $text --certificate-samples 16 --seq-len 64 --study neurons -q
recall=$(sed -n 's/^ *50% *\([0-9.]*\)%.*/\1/p' "$work/stdout")
check "more than half of the active neurons are named" "${recall:-0} > 55 && ${recall:-0} < 100"
recall_9=$(sed -n 's/^ *90% *\([0-9.]*\)%.*/\1/p' "$work/stdout")
check "of few active ones fewer, but more than by lot" "${recall_9:-0} > 20 && ${recall_9:-0} < ${recall:-0}"

cp "$work/m.moec" "$work/kept.moec"
try 0 "judged on other text" "$moec" predict "$work/m.moec" --test $text --certificate-samples 16 --seq-len 128 -q
says stdout "'learned' finds [0-9.]+ percentage points more" "it is better there too"
if cmp -s "$work/m.moec" "$work/kept.moec"; then pass "nothing is written"; else fail "nothing is written"; fi
try 0 "a bundle without one is judged" "$moec" predict "$work/plain.moec" --test $text --certificate-samples 16 --seq-len 128 -q
if grep -q learned "$work/stdout"; then fail "by the others"; else pass "by the others"; fi

# ---- runs ----

# shellcheck disable=SC2317 # likewise
run() {
    "$moec" run "$work/m.moec" -p "The old miller" -n 40 --emulate-storage 50MB/s,80us --stats json "$@"
}
budget=$(small_budget run --predict learned --trace "$work/trace.json")
try 0 "a run without predictions" run --memory "$budget" --predict none
cp "$work/stdout" "$work/words"
try 0 "a run with what was learned" run --memory "$budget" --predict learned --preload-count 4 --trace "$work/trace.json"
if cmp -s "$work/stdout" "$work/words"; then pass "has the same words"; else fail "has the same words"; fi
if grep -q '"useful_preloads": *[1-9]' "$work/stderr"; then pass "and useful preloads"; else fail "and useful preloads"; fi
if grep -q '"next_learned":\[' "$work/trace.json"; then pass "its trace has what was predicted"; else fail "its trace has what was predicted"; fi
try 0 "a simulation of it" "$moec" simulate "$work/trace.json" --predict learned,gate --evict lru --memory 30% -q
says stdout 'learned' "knows the predictor"

try 0 "a run that names no predictor" run --memory "$budget"
says stderr '"predict": *"learned"' "has what was learned"
if cmp -s "$work/stdout" "$work/words"; then pass "has the same words"; else fail "has the same words"; fi
try 0 "a run that decides" run --memory "$budget" --route cache-prior:0.3 --slots 50%
says stderr '"predict": *"gate"' "asks gates, which know the logical cache"
try 0 "a bench" "$moec" bench "$work/m.moec" --modes cache --memory 50% --samples 1 -n 4 -q
says stdout "^mode cache predicts by 'learned', which moec predict trained for the bundle" "says so"
try 0 "a simulation of its trace" "$moec" simulate "$work/trace.json" --model "$work/m.moec" --evict lru --memory 30% -q --json
says stdout '"predict": *"learned"' "has it beside none"
if grep -Eq '"predict": *"(path|gate)"' "$work/stdout"; then fail "alone"; else pass "alone"; fi

for ahead in 2 4; do
    try 0 "a walk of $ahead layers" run --memory "$budget" --predict gate --preload-ahead $ahead --preload-count 2
    if cmp -s "$work/stdout" "$work/words"; then pass "has the same words"; else fail "has the same words"; fi
    if grep -q "\"preload_ahead\": *$ahead" "$work/stderr"; then pass "and says how far it goes"; else fail "and says how far it goes"; fi
done

# ---- refusals ----

try 2 "a walk without gates" run --predict learned --preload-ahead 2
says stderr "'learned' does not run the routers of later layers: use 'gate' or 'path.gate'" "is refused"
try 2 "a walk too far" run --predict gate --preload-ahead 5
says stderr "preload-ahead.*5" "is refused too"

try 2 "a run of a bundle without one" "$moec" run "$work/plain.moec" -p a -n 1 --predict learned
says stderr "predictor 'learned' must be trained first.*moec predict" "says how to teach it"
try 2 "no text" "$moec" predict "$work/m.moec"
says stderr 'give --data FILE to learn from, or --test FILE to test on' "is refused"
try 2 "a share without data" "$moec" predict "$work/m.moec" --test $text --max-share 1%
says stderr '\-\-max-share does nothing without --data' "is refused too"
try 2 "a checkpoint" "$moec" predict $sample --data $data -q -o "$work/none.moec"
says stderr 'is a folder, expected a bundle' "is none to be taught"
done_testing
