#!/bin/sh
# moec doctor: what it says of a model holds when the model is compiled and run, and what it refuses profile and
# compile refuse in the same words.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model

# number KEY: the first number of that name in the JSON on stdout of the last try.
number() {
    sed -n "s/^ *\"$1\": \([0-9.]*\),*\$/\1/p" "$work/stdout" | head -n 1
}

# near NAME VALUE EXPECTED PERCENT: the value is within so many percent of what is expected.
near() {
    if awk -v a="${2:-0}" -v b="${3:-0}" -v p="$4" 'BEGIN { exit !(a >= b * (1 - p / 100) && a <= b * (1 + p / 100)) }'; then
        pass "$1"
    else
        fail "$1 ($2, expected $3 within $4 percent)"
    fi
}

# equal NAME VALUE EXPECTED
equal() {
    if [ "$2" = "$3" ]; then
        pass "$1"
    else
        fail "$1 ($2, expected $3)"
    fi
}

try 0 "doctor of a folder" "$moec" doctor $model
says stdout ': supported$' "it says that the model is supported"
says stdout '16 experts a layer, top-4, 96 neurons each; no shared expert' "and what it is"
says stdout 'profile, measured +[0-9]+ passes' "and what a profile costs"
says stdout '^    moec compile datasets/sample/model .$' "and what to type next"
says stdout '^        --data mytext.txt --max-loss 2% -o model.moec$' "in lines that a terminal has room for"
says stdout '^    moec-run model.moec .* --ctx 512 --memory [0-9.]+MiB$' "with the program that needs least"

try 0 "doctor of a memory that holds some of the experts" "$moec" doctor $model --ctx 256 --memory 11MiB
says stdout '^    moec fit datasets/sample/model --data .* --memory 11MiB ' "names fit"

try 0 "doctor --json" "$moec" doctor $model --json
weights=$(number weight_bytes)
equal "parameters are the weights of the file" "$(number parameters)" $((weights / 2))
# 12 of 16 experts of 3 x 96 x 128 weights stand idle in each of 6 layers.
equal "active parameters leave out experts that are not chosen" "$(number active_parameters)" \
    $((weights / 2 - 6 * 12 * 3 * 96 * 128))
at_most=$(awk '/"bits": 4/ { on = 1 } on && /at_most/ { gsub(/[^0-9]/, ""); print; exit }' "$work/stdout")
least=$(awk '/"bits": 4/ { on = 1 } on && /memory_least/ { gsub(/[^0-9]/, ""); print; exit }' "$work/stdout")
token=$(awk '/"bits": 4/ { on = 1 } on && /token_expert/ { gsub(/[^0-9]/, ""); print; exit }' "$work/stdout")
if [ "$(number exact_passes | cut -d. -f1)" -gt 4 ] && [ "$(number fast_passes | cut -d. -f1)" -eq 2 ]; then
    pass "a fast profile takes less than three passes, since the certificate's windows are left alone"
else
    fail "a fast profile takes less than three passes, since the certificate's windows are left alone"
fi

try 0 "doctor of several machines" "$moec" doctor $model --ranks 4
says stdout 'each of 4 ranks: receives about .* and keeps' "says what each of them takes"

bundle=$work/model.moec
try 0 "the model is compiled" "$moec" compile $model --policy uniform --bits 4 -q -o "$bundle"
size=$(wc -c <"$bundle")
if [ "$at_most" -ge "$size" ]; then
    pass "the bundle is no larger than doctor said"
else
    fail "the bundle has $size bytes, doctor said at most $at_most"
fi
near "and not much smaller" "$at_most" "$size" 20
run=$build/moec-run
real_floor=$(floor_bytes "$run" "$bundle" -p Once -n 1024 --ctx 512) # a text as long as the context
# is_least NAME BYTES: it runs at every start, and what is named is the floor and what another start may take.
is_least() {
    if takes_memory; then
        skip "$1" "a sanitizer takes memory of its own"
    elif [ "${2:-0}" -ge "$real_floor" ] && [ "${2:-0}" -le $((real_floor + 1048576 + real_floor / 25)) ]; then
        pass "$1"
    else
        fail "$1 (${2:-nothing}, the floor is $real_floor)"
    fi
}
is_least "the least memory is what moec-run takes" "$least"

try 0 "doctor of a bundle" "$moec" doctor "$bundle" --json
equal "it knows the file's size" "$(number file_bytes)" "$size"
equal "and one token's experts" "$(number token_expert_bytes)" "$token"
is_least "and the least memory" "$(number memory_least_bytes)"
least=$(number memory_least_bytes)
whole=$(number memory_whole_bytes)
if takes_memory; then
    skip "it runs in that" "a sanitizer takes memory of its own"
else
    for _ in 1 2 3 4; do
        try 0 "it runs in that" "$run" "$bundle" -p Once -n 1024 --ctx 512 --memory "$least" --stats json
        within_budget "and stays within it" "$least"
    done
    # Floors of one program's starts lie up to a quarter of a mebibyte apart; is_least bounds what is on top of them.
    try 1 "and does not run far below" "$run" "$bundle" -p Once -n 1024 --ctx 512 \
        --memory $((least - 1572864 - real_floor / 25))
    says stderr 'below the floor' "for want of memory"
    try 0 "every expert stays in what it names for that" "$run" "$bundle" -p Once -n 500 --ctx 512 --ignore-eos \
        --memory "$whole" --stats json
    within_budget "and the peak is within it" "$whole"
    says stderr '"misses": 0, .*"evictions": 0, .*"layers"|"experts": \{"demands": [0-9]+, "hits": [0-9]+, "late": [0-9]+, "misses": 0, [^}]*"evictions": 0,' \
        "nothing is missed and nothing evicted"
fi
try 0 "doctor --memory" "$moec" doctor "$bundle" --memory 1MiB
says stdout '  -$' "a budget below the floor is too little to run"
says stdout 'moec-run .*model.moec -p "Once upon a time" --ctx 512 --memory [0-9.]+MiB' "and a larger one is proposed"
proposed=$(sed -n 's/.*--memory \([0-9.]*MiB\)$/\1/p' "$work/stdout")
try 0 "in which the model runs" "$run" "$bundle" -p Once -n 2 --ctx 512 --memory "$proposed"
try 0 "doctor -n" "$moec" doctor "$bundle" -n 40
says stdout 'needs for a context of 60 tokens' "counts a short text"
says stdout 'moec-run .* -n 40 --memory [0-9.]+MiB$' "and proposes it"
proposed=$(sed -n 's/.*--memory \([0-9.]*MiB\)$/\1/p' "$work/stdout")
try 0 "and it runs" "$run" "$bundle" -p "Once upon a time" -n 40 --memory "$proposed"
try 0 "doctor --ctx" "$moec" doctor "$bundle" --ctx 1000 --json
equal "counts a longer context" "$(number memory_context_tokens)" 1000
try 1 "doctor of a context that the model does not know" "$moec" doctor "$bundle" --ctx 5000
says stderr 'context of 5000 tokens is too long: the model has only 1024 positions' "is refused"
try 0 "doctor --memory of plenty" "$moec" doctor "$bundle" --memory 1GiB
says stdout ' 100%$' "every expert is kept in plenty"

mkdir "$work/talks"
cp $model/* "$work/talks"
cp tests/fixtures/chat/chatml.jinja "$work/talks/chat_template.jinja"
try 0 "doctor of a model with a chat template" "$moec" doctor "$work/talks"
says stdout 'chat template: yes' "says so"
echo '{% include "x" %}' >"$work/talks/chat_template.jinja"
try 0 "doctor of one whose template moec cannot use" "$moec" doctor "$work/talks"
says stdout 'chat template: refused; .*line 1, column 4' "names the place"
try 0 "doctor of a GGUF file" "$moec" doctor tests/fixtures/gguf/olmoe.gguf
says stdout 'olmoe.gguf: supported' "it is supported"
try 0 "doctor of an encoder-decoder model" "$moec" doctor datasets/switch-sample/model
says stdout 'the first 3 an encoder' "it names the stacks"
says stdout -- '--task samsum' "and proposes a task"

# refused NAME STATUS FOLDER: doctor, profile and compile refuse in the same words, and nothing appears.
refused() {
    try "$2" "doctor refuses $1" "$moec" doctor "$3"
    sed 's/^moec doctor: //' "$work/stderr" >"$work/words"
    try "$2" "profile refuses $1" "$moec" profile "$3" --data datasets/sample/test.txt -q -o "$work/no.h5"
    sed 's/^moec profile: //' "$work/stderr" >"$work/words.profile"
    try "$2" "compile refuses $1" "$moec" compile "$3" --data datasets/sample/test.txt --max-loss 2% -q -o "$work/no.moec"
    sed 's/^moec compile: //' "$work/stderr" >"$work/words.compile"
    if [ -s "$work/words" ] && cmp -s "$work/words" "$work/words.profile" &&
        cmp -s "$work/words" "$work/words.compile" && [ ! -e "$work/no.h5" ] && [ ! -e "$work/no.moec" ]; then
        pass "$1: all in the same words"
    else
        fail "$1: all in the same words"
    fi
}

mkdir "$work/other" "$work/pattern"
cp $model/* "$work/other"
sed 's/"olmoe"/"mamba"/' $model/config.json >"$work/other/config.json"
refused "an unknown family" 1 "$work/other"
says stderr "mamba" "the family is named"
try 1 "doctor --json of a refusal" "$moec" doctor "$work/other" --json
says stdout '"supported": false' "says so"
says stdout '"reason": ".*mamba' "and why"

cp $model/* "$work/pattern"
truncate -s 100 "$work/pattern/model.safetensors"
refused "weights that are cut short" 1 "$work/pattern"
cp $model/model.safetensors "$work/pattern"
awk '/"pre_tokenizer": \{/ {
         print "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(open\"}, \"behavior\": \"Isolated\", \"invert\": false},"
         skip = 1
     }
     !skip { print }
     skip && /^  \}/ { skip = 0 }' $model/tokenizer.json >"$work/pattern/tokenizer.json"
refused "a tokenizer that cannot be used" 1 "$work/pattern"

rm "$work"/pattern/tokenizer*
try 0 "doctor of a model without a tokenizer" "$moec" doctor "$work/pattern"
says stdout '--policy uniform --bits 4 -o model.moec' "proposes what needs no text"
if grep -q "moec-run model" "$work/stdout"; then
    fail "and nothing that needs some"
else
    pass "and nothing that needs some"
fi

# Before the weights are there: what does not come from measuring is the same.
mkdir "$work/begun"
cp $model/*.json "$work/begun"
# measured_not FILE: --json without what is measured, of weights that are there and of others.
measured_not() {
    grep -Ev '"(model|has_weights|multiply_adds_per_second|([a-z]*_)?seconds|memory_[a-z]*_bytes)"' "$work/stdout" >"$1"
}
try 0 "doctor of a folder with weights" "$moec" doctor $model --json
measured_not "$work/with"
try 0 "doctor of its JSON files alone" "$moec" doctor "$work/begun" --json
says stdout '"has_weights": false' "says that the weights are not there"
says stderr 'note: .*begun.* has no weights: .* for bfloat16 weights; .* not checked, because there is no index' "and what they are taken for"
measured_not "$work/without"
same "$work/with" "$work/without" "but for what is measured it says the same"
try 0 "doctor of a config.json" "$moec" doctor "$work/begun/config.json"
says stdout 'Next, with the weights in the same folder:' "names what is missing"
says stdout 'moec-run model.moec .* --ctx 512 --memory [0-9.]+MiB$' "and what to type next"
rm "$work"/begun/tokenizer*
try 0 "doctor without a tokenizer either" "$moec" doctor "$work/begun"
says stdout 'no tokenizer in this folder: add the tokenizer.s memory' "says what is not counted"
try 1 "other verbs need weights" "$moec" compile "$work/begun" --policy uniform --bits 4 -q -o "$work/no.moec"
echo '{"weight_map": {"lm_head.weight": "model.safetensors"}}' >"$work/begun/model.safetensors.index.json"
try 1 "doctor of an index of another model" "$moec" doctor "$work/begun"
says stderr "index.json' lists no tensor 'model.layers.0" "names what it lacks"
try 2 "doctor of a model of the Hub" "$moec" doctor Nobody/Nothing-1B
says stderr "hf download Nobody/Nothing-1B --include '\*.json' --local-dir Nothing-1B" "says how to get what it reads"

# What a compile costs, in doctor and at the beginning of a long one.
try 0 "doctor of what a compile costs" "$moec" doctor $model
says stdout 'compile +[0-9]+ passes and fitting, about ' "passes and time"
says stdout 'compile: [0-9.]+ core-hours, of which passes [0-9.]+, fitting quantised weights [0-9.]+' "and core-hours"
says stdout '^    about .* on 16 idle cores like these$' "and many cores"
says stdout '^  memory: about 1.00 GiB, plus .* for the weights of a layer' "and memory"
says stdout '^    certifying +1024 windows +[0-9.]+ core-hours' "by phase"
all=$(sed -n 's/^    all *\([0-9]*\) windows.*/\1/p' "$work/stdout")
if [ "$all" -le 2900 ]; then pass "in all at most 2,900 windows"; else fail "in all at most 2,900 windows: $all"; fi
try 0 "the same as JSON" "$moec" doctor $model --json
core_seconds=$(number core_seconds)
sum=$(awk '/"phases"/ { on = 1 } /"profile"/ { on = 0 } on && /core_seconds/ { gsub(/[^0-9.e-]/, "", $2); s += $2 } END { print s }' \
    "$work/stdout")
near "phases make up the core-hours" "$core_seconds" "$sum" 1
head -c 6000 datasets/sample/calibration.txt >"$work/short.txt"
try 0 "a small model" random_model "$work/small"
try 0 "a compile that could take hours" "$moec" compile "$work/small" --data "$work/short.txt" --samples 16777216 --seq-len 16 \
    --max-loss 90% --anyway -o "$work/short.moec"
says stderr 'moec compile: note: this takes about [0-9]+ (h|min) .* threads here if the data has 16777216 windows' "says so"
says stderr '--samples 256 takes about .*may prove only a larger loss' "and what fewer windows take"
try 0 "one that cannot" "$moec" compile $model --policy uniform --bits 4 -o "$work/quick.moec"
if grep -q 'takes about' "$work/stderr"; then fail "does not"; else pass "does not"; fi

try 1 "doctor of nothing" "$moec" doctor "$work/nothing"
try 2 "doctor with a budget of 0" "$moec" doctor $model --memory 0
done_testing
