#!/bin/sh
# Experts that leave neurons out: thresholds in a bundle, what they change and what they spare.
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

try 0 "a bundle" "$moec" compile "$sample" --policy uniform --bits 4 -q -o "$work/plain.moec"
try 0 "thresholds beside it" "$moec" sparsify "$work/plain.moec" --data datasets/sample/calibration.txt --samples 48 -q -o "$work/m.moec"
says stdout "wrote '$work/m.moec' with thresholds of .up . x. from [0-9]+ tokens" "says so"
try 0 "which is a whole bundle" "$moec" verify "$work/m.moec"
cp "$work/m.moec" "$work/again.moec"
try 0 "in place, on other threads and instructions" \
    "$moec" sparsify "$work/again.moec" --force --data datasets/sample/calibration.txt --samples 48 -q -t 1 --cpu avx2 --json
check "its shares end at 0.95" "$(grep -c '0.95' "$work/stdout") > 0"
if cmp -s "$work/m.moec" "$work/again.moec"; then pass "the same bytes"; else fail "the same bytes"; fi

# ---- eval ----

evaluate() {
    try 0 "eval $*" "$moec" eval "$work/m.moec" --data $text --samples 8 --seq-len 128 --reference "$work/plain.moec" --json -q "$@"
    loss=$(number loss) kl=$(number mean_kl) active=$(number active_share)
    bytes=$(number expert_bytes_per_token) dense=$(number dense_expert_bytes_per_token)
}
evaluate
check "thresholds alone change nothing" "$loss == 0"
evaluate --sparsity 0.3
check "three tenths are left out" "$active > 0.65 && $active < 0.75 && $kl > 0"
kl_3=$kl bytes_3=$bytes
evaluate --sparsity 0.9
check "nine tenths cost more and read less" "$active > 0.06 && $active < 0.14 && $kl > $kl_3 && $bytes < 0.7 * $bytes_3"
check "about 1.2 thirds are read" "$bytes > 0.33 * $dense && $bytes < 0.5 * $dense"
evaluate --sparsity 0.55
check "between two shares of the table" "$active > 0.4 && $active < 0.5"
try 0 "eval in words" "$moec" eval "$work/m.moec" --data $text --samples 2 --sparsity 0.6 -q
says stdout 'sparsity *0.6 *[0-9.]+% of neurons active, .* of expert weights decoded a token instead of' "says how much is read"

# ---- a plan within a loss ----

# shellcheck disable=SC2317 # called by try
plan() {
    max_loss=$1
    shift
    "$moec" sparsify "$work/plain.moec" --data datasets/sample/calibration.txt --reference "$sample" \
        --samples 32 --seq-len 48 --max-loss "$max_loss" "$@"
}
try 0 "a plan" plan 6% --by-projection up -q --json -o "$work/p.moec"
loss=$(number loss) high=$(number loss_high) bytes=$(number expert_bytes_per_token) active=$(number active_share)
says stdout '"by": "neuron"' "by neuron"
check "its loss is proven" "$high <= 0.06 && $loss < $high"
check "it leaves out most neurons" "$active > 0.02 && $active < 0.4"
try 0 "a plan is a whole bundle" "$moec" verify "$work/p.moec"
try 0 "on one thread, in words" plan 6% --by-projection up -v -t 1 --cpu avx2 -o "$work/p1.moec"
says stdout "wrote '$work/p1.moec', which leaves out neurons; [0-9]+ measurements" "says so"
says stdout 'loss .* against the original, limit 6.000%' "and what is promised"
says stderr '[0-9.]+% left out: loss .*KiB a token' "verbose: each measurement"
says stderr 'test 1 of [0-9].* proven' "and each test"
if cmp -s "$work/p.moec" "$work/p1.moec"; then pass "a plan has the same bytes"; else fail "a plan has the same bytes"; fi
try 0 "a plan by model" plan 6% --by model --by-projection up -q --json -o "$work/pm.moec"
check "one share for all reads more at the same promise" "$(number expert_bytes_per_token) > $bytes"
try 0 "inspect" "$moec" inspect "$work/p.moec"
says stdout "^  left out   by .up . x. times each neuron's harm" "shows the plan"
try 0 "inspect --json" "$moec" inspect "$work/p.moec" --json
check "has the same loss" "$(sed -n '/"sparsity": {/,$s/.*"loss": *\([-0-9.e+]*\).*/\1/p' "$work/stdout" | head -n 1) == $loss"
try 0 "eval follows it" "$moec" eval "$work/p.moec" --data $text --samples 4 --seq-len 96 --json -q
says stdout '"sparsity": "plan"' "and says so"
check "about as many bytes are read" "$(number expert_bytes_per_token) < 1.15 * $bytes"
with=$(number value)
try 0 "eval --sparsity none" "$moec" eval "$work/p.moec" --data $text --samples 4 --seq-len 96 --json -q --sparsity none
check "leaves nothing out" "$(number value) != $with"
cp "$work/stdout" "$work/none"
try 0 "as the bundle did" "$moec" eval "$work/plain.moec" --data $text --samples 4 --seq-len 96 --json -q
check "to the last bit" "$(number value) == $(sed -n 's/^.*"value": *\([-0-9.e+]*\).*/\1/p' "$work/none")"
try 0 "run follows it" "$moec" run "$work/p.moec" -p "Once upon" -n 12 --ignore-eos --stats
says stderr "sparsity  the bundle's plan, [0-9.]+% of neurons were active" "and says so"
cp "$work/stdout" "$work/planned"
little=$(little_memory "$work/p.moec")
try 0 "in little memory" "$moec" run "$work/p.moec" -p "Once upon" -n 12 --ignore-eos -t 1 --memory "$little"
if cmp -s "$work/stdout" "$work/planned"; then pass "the same words"; else fail "the same words"; fi
try 0 "tune counts what it loses" "$moec" tune "$work/p.moec" --data datasets/sample/calibration.txt --reference "$sample" \
    --samples 32 --seq-len 48 --max-loss 60% --with route --slots 8 -q -o "$work/pt.moec"
try 1 "a target that is out of reach" plan 0.01% -q -o "$work/x.moec"
says stderr "nothing was written" "says so"
try 2 "a bundle with decisions" "$moec" sparsify "$work/pt.moec" --data $text --reference "$sample" --max-loss 6% -q -o "$work/x.moec"
says stderr "Sparsify the bundle that moec tune was given" "is refused"
try 2 "options of a target alone" "$moec" sparsify "$work/plain.moec" --data $text --by expert -q
says stderr "by does nothing without --max-loss" "says why"

# ---- by the gate ----

try 0 "a plan of whichever product loses less" plan 6% -q --json -o "$work/pa.moec"
by_up=$(number loss_by_up) by_gate=$(number loss_by_gate)
named=$(sed -n 's/.*"projection": "\([a-z]*\)".*/\1/p' "$work/stdout")
check "both are measured" "$by_up > 0 && $by_gate > 0"
check "and the better one is kept" "(\"$named\" == \"gate\") == ($by_gate < $by_up) && \"$named\" != \"\""
try 0 "a plan by the gate, in words" plan 6% --by-projection gate -q -o "$work/pg.moec"
says stdout "^  left out   by .act\(gate . x\). times each neuron's harm" "says what it compares"
try 0 "is a whole bundle" "$moec" verify "$work/pg.moec"
try 0 "run follows it" "$moec" run "$work/pg.moec" -p "Once upon" -n 12 --ignore-eos --stats
says stderr "sparsity  the bundle's plan, [0-9.]+% of neurons were active" "and says so"
cp "$work/stdout" "$work/gated"
for how in "-t 1" "--cpu scalar" "--memory $(little_memory "$work/pg.moec")" "--draft lookup"; do
    # shellcheck disable=SC2086 # words
    try 0 "run $how" "$moec" run "$work/pg.moec" -p "Once upon" -n 12 --ignore-eos $how
    same "$work/stdout" "$work/gated" "the same words with $how"
done
try 0 "eval follows it" "$moec" eval "$work/pg.moec" --data $text --samples 4 --seq-len 96 --json -q
check "and leaves neurons out" "$(number value) != $with && $(number active_share) < 0.5"
try 0 "CATS: one share, by the gate" plan 6% --by model --by-projection gate -q --json -o "$work/pc.moec"
says stdout '"projection": "gate"' "is named"
try 2 "parts are read by up" plan 6% --by-projection gate --parts -q -o "$work/none.moec"
says stderr "leave out one of the two" "says so"
try 0 "with parts the plan goes by up" plan 6% --parts -q --json -o "$work/pp.moec"
says stdout '"projection": "up"' "without asking the gate"

# ---- experts in parts ----

try 0 "checksums of parts" "$moec" sparsify "$work/p.moec" --data datasets/sample/calibration.txt --samples 48 --parts -q -o "$work/parts.moec"
try 0 "the bundle is whole" "$moec" verify "$work/parts.moec"
try 0 "inspect with parts" "$moec" inspect "$work/parts.moec"
says stdout 'parts .*up projection, and of up to [0-9]+ neurons' "says what can be checked alone"
says stdout 'whole records are read' "and that the sample's pairs are too small to save bytes"
try 0 "inspect --json with parts" "$moec" inspect "$work/parts.moec" --json
says stdout '"unit_bytes": 4096' "has them"
# Where requests cost nothing, parts are read; the words are the same with any memory and delay.
little=$(little_memory "$work/parts.moec")
memory=$(small_budget "$moec" run "$work/parts.moec" -p "Once upon" -n 12 --ignore-eos)
for how in "--memory $little" "--memory $memory --predict gate" "--memory $little -t 1 --cpu scalar"; do
    for storage in 2GB/s,0us,0us 100MB/s,50us,0us; do
        # shellcheck disable=SC2086 # words
        try 0 "run with $how on $storage" "$moec" run "$work/parts.moec" -p "Once upon" -n 12 --ignore-eos $how --emulate-storage $storage --stats json
        if cmp -s "$work/stdout" "$work/planned"; then pass "gives the same words"; else fail "gives the same words"; fi
        check "and reads neurons alone" "$(sed -n 's/^.*"experts": {.*"pair_bytes": *\([0-9]*\).*/\1/p' "$work/stderr") > 0"
    done
done
try 0 "run where requests cost something" "$moec" run "$work/parts.moec" -p "Once upon" -n 12 --ignore-eos --memory "$little" --emulate-storage 550MB/s,80us --stats json
check "reads whole records" "$(sed -n 's/^.*"experts": {.*"pair_bytes": *\([0-9]*\).*/\1/p' "$work/stderr") == 0"
try 0 "thresholds made again" "$moec" sparsify "$work/parts.moec" --data datasets/sample/calibration.txt --samples 48 -q -o "$work/kept.moec"
try 0 "keep the parts" "$moec" inspect "$work/kept.moec" --json
says stdout '"unit_bytes": 4096' "of the same records"
# Codes that are paths have pairs of 68 bytes here: they are read by the 60 that share a checksum, or whole, and parts say why.
try 0 "a bundle of paths" "$moec" compile "$sample" --policy uniform --bits 2 --quantizer trellis -q -o "$work/path.moec"
try 0 "with parts" "$moec" sparsify "$work/path.moec" --data datasets/sample/calibration.txt --samples 48 --parts --force -q
says stdout 'of up to 60 neurons, whose pairs take 68 bytes each' "says what is read at once"
says stdout '70% left out: whole records are read: .* requests cost more time' "and why whole records are read"
try 0 "run from memory" "$moec" run "$work/path.moec" -p "Once upon" -n 12 --ignore-eos --sparsity 0.9
cp "$work/stdout" "$work/paths"
try 0 "run where requests cost nothing" "$moec" run "$work/path.moec" -p "Once upon" -n 12 --ignore-eos --sparsity 0.9 \
    --memory "$(little_memory "$work/path.moec")" --emulate-storage 100MB/s,50us,0us --stats json
if cmp -s "$work/stdout" "$work/paths"; then pass "gives the same words"; else fail "gives the same words"; fi
check "and reads neurons alone" "$(sed -n 's/^.*"experts": {.*"pair_bytes": *\([0-9]*\).*/\1/p' "$work/stderr") > 0"

# ---- refusals ----

refused() {
    words=$1
    shift
    try "$@"
    says stderr "$words" "says why"
}
refused "with precision" 2 "two decisions about weights" \
    "$moec" run "$work/m.moec" -p x -n 1 --sparsity 0.5 --precision hobbit --slots 50%
refused "no sparsity thresholds: make them with moec sparsify" \
    1 "no table" "$moec" eval "$work/plain.moec" --data $text --samples 2 -q --sparsity 0.5
refused "needs a bundle" 2 "a checkpoint" "$moec" eval "$sample" --data $text --samples 2 -q --sparsity 0.5
refused "0.990 is outside the bundle.s table of thresholds, expected 0.001 to 0.950" 2 "too much" "$moec" run "$work/m.moec" -p x -n 1 --sparsity 0.99
refused "sparsity" 2 "no share" "$moec" run "$work/m.moec" -p x -n 1 --sparsity 0
refused "give --data FILE" 2 "no text" "$moec" sparsify "$work/m.moec"
refused "is a folder, expected a bundle" 2 "no bundle" "$moec" sparsify "$sample" --data $text -q -o "$work/x.moec"
try 0 "a bundle without gates" "$moec" compile datasets/switch-sample/model --policy uniform --bits 4 -q -o "$work/s.moec"
refused "have no gate" 1 "which is refused" "$moec" sparsify "$work/s.moec" --data $text -q -o "$work/none.moec"

# ---- run ----

generate() {
    "$moec" run "$work/m.moec" -p "The old miller had three sons and" -n 60 --ctx 128 --ignore-eos --stats json "$@" \
        >"$work/stdout" 2>"$work/stats"
}
generate && cp "$work/stdout" "$work/plain"
generate --sparsity 0.8 && cp "$work/stdout" "$work/sparse"
if cmp -s "$work/sparse" "$work/plain"; then fail "much sparsity changes words"; else pass "much sparsity changes words"; fi
if grep -q '"sparsity": 0.8[0-9]*, "neurons": [1-9][0-9]*, "active_neurons": [1-9]' "$work/stats"; then
    pass "stats count"
else
    fail "stats count"
fi
little=$(little_memory "$work/m.moec")
for how in "-t 1" "-t 3" "--cpu scalar" "--cpu avx2" "--memory $little" "--memory $little --evict fifo --predict gate" "--draft lookup"; do
    # shellcheck disable=SC2086 # words
    generate --sparsity 0.8 $how
    if cmp -s "$work/stdout" "$work/sparse"; then pass "the same with $how"; else fail "the same with $how"; fi
done
try 0 "in words" "$moec" run "$work/m.moec" -p "Once" -n 8 --sparsity 0.6 --stats
says stderr 'sparsity  0.6, [0-9.]+% of neurons were active' "stats say how many"
try 0 "a bench" "$moec" bench "$work/m.moec" --samples 2 --data $text --memory 50% --modes cache --sparsity 0.7 --json -q
says stdout '"sparsity": 0.(7|6999)' "names its sparsity"

done_testing
