#!/bin/sh
# Layers that route by token: what they ask for is known when the token is, beside what paths predict.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

# A random model of which four layers of five route by token; a tokenizer of letters, and text of made-up words.
letter_tokenizer "$work/tokenizer.json"
letter_words 1600 "$work/text.txt"
try 0 "a random model" "$build/tools/make_random_checkpoint" --tokenizer "$work/tokenizer.json" --hash-layers 4 --layers 5 \
    --hidden 128 --heads 4 --kv-heads 4 --experts 16 --top-k 2 --ff 128 --vocab 64 --positions 256 "$work/model"
try 0 "profile" "$moec" profile "$work/model" --data "$work/text.txt" --seq-len 32 --samples 48 --bits 4,8 --sensitivity none \
    --anyway -q -o "$work/profile.h5"
bundle=$work/model.moec
try 0 "compile" "$moec" compile "$work/model" --profile "$work/profile.h5" --policy uniform --bits 16 --anyway -q -o "$bundle"
run() {
    "$build/moec-run" "$bundle" -p "some words" -n 48 --ignore-eos --ctx 64 --threads 1 "$@"
}
count() {
    sed 's/.*"experts": {\([^}]*\)}.*/\1/' "$work/$1.json" | sed "s/.*\"$2\": \([0-9]*\).*/\1/"
}
try 0 "run with every expert in memory" run
cp "$work/stdout" "$work/text"

# Room for about a fifth of the 80 records of 96 KiB, which come from an emulated device.
memory=$(($(floor_bytes run) + 2000000))
for predictor in none path token; do
    try 0 "run with --predict $predictor" run --memory "$memory" --predict $predictor --emulate-storage 200MB/s,200us --stats json
    same "$work/stdout" "$work/text" "the same text with --predict $predictor"
    within_budget "within the budget with --predict $predictor" "$memory"
    cp "$work/stderr" "$work/$predictor.json"
    echo "# $predictor: $(count $predictor hits) hits, $(count $predictor late) late, $(count $predictor misses) misses, waited" \
        "$(count $predictor stall_ns) ns"
done
# What is known is asked for before its layer is reached, and nothing of it in vain.
if [ $((2 * $(count token misses))) -lt "$(count path misses)" ] && [ "$(count token useful_preloads)" -gt 100 ] &&
    [ "$(count token wasted_preloads)" -le 8 ]; then
    pass "few experts are missing when the token tells them, and few are read in vain"
else
    fail "missing $(count token misses) experts with tokens known, $(count path misses) with paths; $(count token useful_preloads) read ahead, $(count token wasted_preloads) in vain"
fi
run --memory "$memory" --stats >"$work/stdout" 2>"$work/stderr"
says stderr "prediction token" "a model with such layers knows its tokens by default"
try 2 "a number of guesses where nothing is guessed" run --memory "$memory" --predict token --preload-count 2
says stderr "nothing is predicted" "is refused"
done_testing
