#!/bin/sh
# Neurons in the order in which data activates them together: the same model, in a bundle that says so.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
model=$work/model
text=datasets/sample/calibration.txt

compile() {
    # shellcheck disable=SC2317 # try calls it
    "$moec" compile "$model" --data "$text" --samples 48 --seq-len 32 --policy uniform --group 64 --anyway -q "$@"
}
number() {
    sed -n "s/^.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$work/stdout" | head -n 1
}
check() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1: $2"; fi
}

try 0 "a model with pairs of some hundred bytes" "$build/tools/make_random_checkpoint" --preset small --layers 2 --hidden 512 \
    --experts 4 --tokenizer datasets/sample/model/tokenizer.json "$model"
try 0 "in the checkpoint's order" compile --bits 4 -o "$work/plain.moec"
try 0 "ordered" compile --bits 4 --order-neurons -o "$work/ordered.moec"
says stdout '^neurons: the 20% of an expert that a token needs most lie in [0-9.]+ ranges on average' "says what it gives"
try 0 "again, on one thread" compile --bits 4 --order-neurons -t 1 --cpu avx2 --json -o "$work/again.moec"
check "fewer ranges" "$(number active_ranges) < $(number active_ranges_before)"
if cmp -s "$work/ordered.moec" "$work/again.moec"; then pass "the same bytes"; else fail "the same bytes"; fi
if cmp -s "$work/ordered.moec" "$work/plain.moec"; then fail "others than unordered"; else pass "others than unordered"; fi
check "of the same size" "$(wc -c <"$work/ordered.moec") == $(wc -c <"$work/plain.moec")"
try 0 "is whole" "$moec" verify "$work/ordered.moec"
try 0 "inspect" "$moec" inspect "$work/ordered.moec"
says stdout 'neurons of an expert that are active together stand together' "shows it"
try 0 "inspect" "$moec" inspect "$work/ordered.moec" --json
says stdout '"neurons_ordered": true' "in JSON"
try 0 "inspect of the other" "$moec" inspect "$work/plain.moec" --json
says stdout '"neurons_ordered": false' "shows none"

# The same model but for the order of sums, in the engine and when exported.
perplexity() {
    try 0 "eval $1" "$moec" eval "$1" --data datasets/sample/test.txt --samples 16 --seq-len 64 --json -q
    value=$(number value)
}
perplexity "$work/plain.moec"
plain=$value
perplexity "$work/ordered.moec"
ordered=$value
check "loses the same" "($ordered - $plain) ^ 2 < (1e-4 * $plain) ^ 2"
try 0 "16 bits" compile --bits 16 --order-neurons -o "$work/source.moec"
check "are the original" "$(sed -n 's/^certificate: perplexity \([0-9.]*\) -> \([0-9.]*\),.*/(\1 - \2) ^ 2/p' "$work/stdout") < 1e-6"
perplexity "$work/source.moec"
source=$value
try 0 "export" "$moec" export "$work/source.moec" -o "$work/exported"
perplexity "$work/exported"
check "writes the order" "$value == $source"

try 0 "thresholds and parts" "$moec" sparsify "$work/ordered.moec" --data "$text" --samples 48 --seq-len 32 --parts -q -o "$work/parts.moec"
try 0 "run from storage" "$moec" run "$work/parts.moec" -p "Once upon" -n 8 --sparsity 0.9 --memory "$(mebibytes 32)" --mode cache --ignore-eos \
    --emulate-storage 550MB/s,0us,0us
cp "$work/stdout" "$work/words"
try 0 "run from memory" "$moec" run "$work/parts.moec" -p "Once upon" -n 8 --sparsity 0.9 --ignore-eos
if cmp -s "$work/stdout" "$work/words"; then pass "the same words"; else fail "the same words"; fi

# What reading in parts is expected to take goes by how active neurons stood together, where they were put so.
try 0 "inspect" "$moec" inspect "$work/parts.moec"
says stdout 'as neurons were active together on the text of the thresholds' "estimates from what was measured"
try 0 "inspect as JSON" "$moec" inspect "$work/parts.moec" --json
says stdout '"turnover_measured": true' "says so too"
try 0 "verify" "$moec" verify "$work/parts.moec"
try 0 "parts of the checkpoint's order" "$moec" sparsify "$work/plain.moec" --data "$text" --samples 48 --seq-len 32 --parts -q -o "$work/plain-parts.moec"
try 0 "inspect" "$moec" inspect "$work/plain-parts.moec"
says stdout 'assuming that neurons are active at random' "estimates them at random"

# What a compile had found is taken up, and another order's is not.
try 0 "with a journal" compile --bits 4 --order-neurons --journal "$work/journal" -o "$work/kept.moec"
try 0 "from the journal" compile --bits 4 --order-neurons --journal "$work/journal" --json -o "$work/resumed.moec"
check "takes it up" "$(number resumed_units) >= 2"
if cmp -s "$work/ordered.moec" "$work/resumed.moec"; then pass "the same bytes again"; else fail "the same bytes again"; fi
try 1 "the journal of another order" compile --bits 4 --journal "$work/journal" -o "$work/none.moec"

try 2 "without data" "$moec" compile "$model" --policy uniform --bits 4 --order-neurons -o "$work/none.moec"
says stderr 'shows which neurons are active together: give --data or --profile' "is explained"
try 1 "small pairs" "$moec" compile datasets/sample/model --data "$text" --policy uniform --bits 4 --order-neurons -o "$work/none.moec"
says stderr 'so reading them whole is faster than reading parts' "are refused"

done_testing
