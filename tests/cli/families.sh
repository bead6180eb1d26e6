#!/bin/sh
# Families of today: each tiny model is profiled, compiled, run, exported and measured.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

# A tokenizer of letters for the vocabulary of the fixtures, and text of made-up words.
letter_tokenizer "$work/tokenizer.json"
letter_words 2600 "$work/text.txt"
measure="--data $work/text.txt --seq-len 32"

value() {
    # shellcheck disable=SC2086 # a list of options
    "$moec" eval "$1" $measure --samples 24 --json --quiet 2>/dev/null | sed -n 's/^ *"value": //p'
}

# The fuzzer of configs begins from one of each family.
missing=
for config in tests/fixtures/families/*/config.json; do
    type=$(sed -n 's/^.*"model_type": *"\([a-z0-9_-]*\)".*$/\1/p' "$config" | head -n 1)
    grep -q "\"model_type\": *\"${type:-none}\"" tests/fuzz/corpus/config/* || missing="$missing ${type:-$config}"
done
if [ -z "$missing" ]; then pass "each family has a seed of its config"; else fail "no seed of a config for$missing"; fi

for folder in tests/fixtures/families/*/; do
    family=$(basename "$folder")
    case $family in
    switch*) continue ;;   # an encoder and a decoder: tests/cli/seq2seq.sh
    olmoe-fp8*) continue ;; # too few words for a text: tests/unit/test_scaled.c
    esac
    model=$work/$family
    mkdir "$model"
    cp "$folder"*.json "$folder"model*.safetensors "$model"
    case $family in
    gptsan) cp tests/fixtures/tokenizers/gptsan/*.json tests/fixtures/tokenizers/gptsan/vocab.txt "$model" ;;
    *) cp "$work/tokenizer.json" "$model" ;;
    esac
    # shellcheck disable=SC2086
    try 0 "$family: profile" "$moec" profile "$model" $measure --samples 32 --bits 2,4 --anyway -q -o "$work/p.h5"
    # shellcheck disable=SC2086
    try 0 "$family: compile" "$moec" compile "$model" --profile "$work/p.h5" --max-loss 90% --policy edgemoe \
        --accept-miss --anyway -q -o "$model.moec"
    try 0 "$family: run" "$moec" run "$model.moec" -p "some words" -n 12 --ignore-eos --ctx 64
    try 0 "$family: export" "$moec" export "$model.moec" -q -o "$work/$family-folder"
    compiled=$(value "$model.moec")
    if [ -n "$compiled" ] && [ "$compiled" = "$(value "$work/$family-folder")" ]; then
        pass "$family: bundle and exported folder measure the same"
    else
        fail "$family: bundle and exported folder measure the same"
    fi
    # shellcheck disable=SC2086
    "$moec" eval "$model.moec" $measure --samples 8 --json -q --arithmetic int8 --threads 3 >"$work/int8" 2>"$work/stderr"
    # shellcheck disable=SC2086
    try 0 "$family: int8 arithmetic" "$moec" eval "$model.moec" $measure --samples 8 --json -q --arithmetic int8 --threads 1 \
        --cpu scalar
    same "$work/int8" "$work/stdout" "$family: is the same on one thread with scalar code"
    case $family in
    gptsan) # with its own tokenizer
        same "$work/$family-folder/vocab.txt" "$model/vocab.txt" "$family: an export has the vocabulary"
        ;;
    gpt_oss-mxfp4)
        original=$(value "$model")
        for options in "--bits 16" "--bits 8" "--bits 4 --group 32"; do
            # shellcheck disable=SC2086
            try 0 "$family: compile $options" "$moec" compile "$model" --policy uniform $options -q --force \
                -o "$work/kept.moec"
            "$moec" inspect "$work/kept.moec" >"$work/kept"
            if grep -q " 4 bits: mxfp4: gate 12, up 12, down 12" "$work/kept" && [ -n "$original" ] &&
                [ "$original" = "$(value "$work/kept.moec")" ]; then
                pass "$family: with $options experts stay MXFP4 and lose nothing"
            else
                fail "$family: with $options experts stay MXFP4 and lose nothing"
            fi
        done
        try 0 "$family: verify" "$moec" verify "$work/kept.moec"
        try 0 "$family: compile with fewer bits" "$moec" compile "$model" --policy uniform --bits 3 -q --force \
            -o "$work/kept.moec"
        if "$moec" inspect "$work/kept.moec" | grep -q "bits: mxfp4"; then
            fail "$family: a plan with fewer bits is what was asked for"
        else
            pass "$family: a plan with fewer bits is what was asked for"
        fi
        if "$moec" doctor "$model" | grep -q "^ *mxfp4 "; then
            pass "$family: doctor has a row for MXFP4"
        else
            fail "$family: doctor has a row for MXFP4"
        fi
        ;;
    longcat_flash) # half of what its routers choose among gives the token its input
        if "$moec" doctor "$model" | grep -q "6 experts a layer and 6 identity experts, top-4"; then
            pass "$family: doctor counts identity experts by themselves"
        else
            fail "$family: doctor counts identity experts by themselves"
        fi
        # shellcheck disable=SC2086
        try 0 "$family: profile with every study" "$moec" profile "$model" $measure --samples 48 --bits 2,4 -q \
            --study all --sensitivity fast --anyway -o "$work/studies.h5"
        try 0 "$family: a traced run" "$moec" run "$model.moec" -p "some words" -n 30 --ignore-eos --ctx 64 \
            --trace "$work/t.json"
        try 0 "$family: its trace is simulated" "$moec" simulate "$work/t.json" --quiet
        try 0 "$family: compile with a low copy" "$moec" compile "$model" --policy uniform --bits 4 --copies 2 -q \
            --force -o "$work/two.moec"
        for decided in "--route top-k" "--route cache-prior:0.5" "--route prune:2" "--precision always:0.4:0.7"; do
            # shellcheck disable=SC2086
            "$moec" eval "$work/two.moec" $measure --samples 24 $decided --slots 5 -q --json --threads 3 >"$work/decided"
            # shellcheck disable=SC2086
            "$moec" eval "$work/two.moec" $measure --samples 24 $decided --slots 5 -q --json --threads 1 --cpu scalar >"$work/stdout"
            same "$work/decided" "$work/stdout" "$family: $decided is the same on one thread with scalar code"
            # Of 4 choices in each of 2 layers those that give their input are neither taken nor skipped.
            tokens=$(sed -n 's/^ *"tokens": \([0-9]*\).*/\1/p' "$work/decided")
            counted=$(sed -n 's/^ *"experts_[ts][ak][a-z]*": \([0-9]*\).*/\1/p' "$work/decided" | awk '{ n += $1 } END { print n }')
            if [ "$counted" -gt "$tokens" ] && [ "$counted" -lt $((8 * tokens)) ]; then
                pass "$family: $decided counts experts alone"
            else
                fail "$family: $decided counts experts alone ($counted for $tokens tokens)"
            fi
        done
        ;;
    phimoe) # trained with 128 positions, measured on windows of 32
        for ctx in 128 129; do
            "$moec" run "$model.moec" -p "some words" -n 4 --ignore-eos --ctx $ctx --stats >"$work/$ctx" 2>&1
        done
        if grep -q "RoPE for contexts of up to 128 tokens" "$work/128" &&
            grep -q "RoPE for contexts of more than 128 tokens" "$work/129" &&
            "$moec" inspect "$model.moec" | grep -q "made for up to 128 tokens; a larger --ctx takes other angles" &&
            "$moec" doctor "$model" | grep -q "RoPE has other angles for contexts of more than 128 tokens"; then
            pass "phimoe: --ctx chooses the angles"
        else
            fail "phimoe: --ctx chooses the angles"
        fi
        ;;
    phimoe-long) # trained with 16
        if "$moec" inspect "$model.moec" | grep -q "made for more than 16 tokens" &&
            "$moec" run "$model.moec" -p "a" -n 4 --ignore-eos --ctx 16 --stats 2>&1 |
            grep -q "RoPE for contexts of more than 16 tokens"; then
            pass "phimoe-long: a bundle keeps the angles that it was measured with"
        else
            fail "phimoe-long: a bundle keeps the angles that it was measured with"
        fi
        ;;
    esac
    rm -f "$work/p.h5" "$model.moec"
done

# Every model_type has its row in the document, and every fixture is one of those whose logits are compared.
sed -n 's/^ *\.model_type = "\(.*\)",/\1/p' formats/family/family_*.c >"$work/types"
while read -r type; do
    if grep -q "^| ${type%_text}[ |]" docs/families.md; then
        pass "$type has a row in docs/families.md"
    else
        fail "$type has no row in docs/families.md"
    fi
done <"$work/types"
for folder in tests/fixtures/families/*/; do
    family=$(basename "$folder")
    if grep -qF "\"$family\"" tests/unit/test_families.c tests/unit/fixture_model.h tests/unit/test_scaled.c; then
        pass "$family: logits are compared"
    else
        fail "$family: no test compares its logits"
    fi
done
done_testing
