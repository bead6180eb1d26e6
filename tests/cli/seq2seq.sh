#!/bin/sh
# Encoder-decoder models: profile, interruption, compile, and what makes no sense for them.
# shellcheck disable=SC2086 # lists of options
. tests/cli/tap.inc

# A tokenizer of letters for the vocabulary of the fixture, and rows of made-up words.
model=$work/model
mkdir "$model"
cp tests/fixtures/families/switch-full/*.json tests/fixtures/families/switch-full/model.safetensors "$model"
awk 'BEGIN {
    printf "{\"version\":\"1.0\",\"added_tokens\":["
    for (i = 0; i < 2; i++)
        printf "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false," \
               "\"normalized\":false,\"special\":true}", i ? "," : "", i, i ? "</s>" : "<pad>"
    printf "],\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":{\"type\":\"TemplateProcessing\"," \
           "\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"</s>\"," \
           "\"type_id\":0}}],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"B\"," \
           "\"type_id\":1}}],\"special_tokens\":{\"</s>\":{\"id\":\"</s>\",\"ids\":[1],\"tokens\":[\"</s>\"]}}}," \
           "\"decoder\":null,\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"<pad>\":0,\"</s>\":1"
    for (i = 0; i < 26; i++)
        printf ",\"%c\":%d", 97 + i, 2 + i
    printf ",\" \":28}}}"
}' >"$model/tokenizer.json"
rows() {
    awk -v seed="$1" 'BEGIN {
        srand(seed)
        for (r = 0; r < 48; r++) {
            printf "{\"dialogue\": \""
            for (i = 0; i < 4 + r % 9; i++) printf "%c%s", 97 + int(26 * rand()), rand() < 0.3 ? " " : ""
            printf "\", \"summary\": \""
            for (i = 0; i < 1 + r % 5; i++) printf "%c", 97 + int(26 * rand())
            print "\"}"
        }
    }'
}
rows 1 >"$work/one.jsonl"
rows 2 >"$work/two.jsonl"
measure="--task dialogsum --samples 36 --seq-len 40 --anyway"

try 2 "a text without targets is refused" "$moec" profile "$model" --data "$work/one.jsonl" -q -o "$work/x.h5"
says stderr "samsum" "and a task with targets is advised"
try 1 "estimates are refused" "$moec" profile "$model" --data "$work/one.jsonl" $measure --sensitivity fast -q \
    -o "$work/x.h5"
says stderr "sensitivity exact" "and what to use instead is said"

try 0 "both stacks are profiled" "$moec" profile "$model" --data "$work/one.jsonl" $measure -o "$work/one.h5" \
    --study projections,layers
says stderr "sensitivity 'exact' is used" "auto says that it measures"
says stderr "study 'projections' is left out" "a study of gates is left out and said so"
says stdout "on 18 of 48 windows" "windows are rows"
try 0 "the profile is shown" "$moec" profile --show "$work/one.h5"
says stdout "^ *0e " "layers of the encoder are marked"
says stdout "^ *4d " "layers of the decoder are marked"
try 0 "one thread, scalar code and little memory" "$moec" profile "$model" --data "$work/one.jsonl" $measure \
    --study layers --threads 1 --cpu scalar --work-memory "$(mebibytes 64)" -q -o "$work/again.h5"
if cmp -s "$work/one.h5" "$work/again.h5"; then
    pass "give the same profile"
else
    fail "give the same profile"
fi

# A journal cut off somewhere is what an interrupted run leaves.
"$moec" profile "$model" --data "$work/one.jsonl" $measure --study layers --threads 1 --work-memory "$(mebibytes 44)" \
    -o "$work/stopped.h5" >"$work/stdout" 2>"$work/stderr" &
pid=$!
for _ in 1 2 3 4 5 6 7 8 9; do
    [ -s "$work/stopped.h5.journal" ] && break
    sleep 0.05
done
kill -INT "$pid" 2>/dev/null
wait "$pid"
try 0 "a run goes on" "$moec" profile "$model" --data "$work/one.jsonl" $measure --study layers -q --resume --force \
    -o "$work/stopped.h5"
if cmp -s "$work/one.h5" "$work/stopped.h5"; then
    pass "to the same profile"
else
    fail "to the same profile"
fi

for policy in edgemoe marginal uniform; do
    goal="--max-loss 20%"
    [ $policy = uniform ] && goal="--bits 4"
    try 0 "policy $policy compiles both stacks" "$moec" compile "$model" --anyway --profile "$work/one.h5" $goal \
        --policy $policy --accept-miss -q -o "$work/$policy.moec"
    says stdout "18 windows of 'one.jsonl'" "$policy: certified on the other half of the rows"
    try 0 "$policy: the bundle is whole" "$moec" verify "$work/$policy.moec"
done
cat >"$work/decoder.lua" <<'EOF'
-- Few bits for the encoder alone.
return function(moec)
  local assignment = {}
  for layer = 1, moec.model.layers do
    assignment[layer] = {}
    for expert = 1, moec.model.experts do
      assignment[layer][expert] = layer <= moec.model.encoder_layers and 2 or 8
    end
  end
  return assignment
end
EOF
try 0 "a policy of the user knows the stacks" "$moec" compile "$model" --anyway --profile "$work/one.h5" \
    --policy "$work/decoder.lua" -q -o "$work/own.moec"
says stdout "12 at 2 bits  8 at 8 bits" "and gives each its bits"
try 0 "figures are drawn" "$moec" profile --show "$work/one.h5" --plots "$work/plots" --plot-format csv
try 0 "with the paths of the encoder" grep -q "MoE layers of the encoder" "$work/plots/paths.csv"
try 0 "the bundle is inspected" "$moec" inspect "$work/edgemoe.moec"
says stdout "the first 3 an encoder's" "inspect tells the stacks"
says stdout "layer   3d" "and marks their layers"

printf 'return { name = "nll", prompt = "{dialogue}", reference = "{summary}" }\n' >"$work/nll.lua"
try 0 "perplexity of targets" "$moec" eval "$work/edgemoe.moec" --data "$work/two.jsonl" --task "$work/nll.lua" \
    --reference "$model" --seq-len 40 -q
says stdout "^perplexity .*48 windows" "every row is a window"
says stdout "^reference .*loss" "against the original"
try 0 "the bundle is exported" "$moec" export "$work/edgemoe.moec" -q -o "$work/folder"
for measured in "$work/edgemoe.moec" "$work/folder"; do
    "$moec" eval "$measured" --data "$work/two.jsonl" --task "$work/nll.lua" --seq-len 40 --json -q |
        sed -n 's/^ *"value": //p' >"$work/value-$(basename "$measured")"
done
try 0 "the folder holds a value" test -s "$work/value-folder"
try 0 "bundle and exported folder measure the same" cmp "$work/value-edgemoe.moec" "$work/value-folder"

# ---- generation: a row's prompt is the source ----

cat >"$work/letters.lua" <<'END'
return {
  name = "letters",
  metric = "rouge-1",
  prompt = "{dialogue}",
  reference = "a b c d e f g h i j k l m n o p q r s t u v w x y z {summary}",
  answer = { tokens = 12, stem = false },
}
END
printf '{"dialogue": "abc def", "summary": "abc"}\n' >"$work/row.jsonl"
try 0 "summaries and their loss" "$moec" eval "$work/edgemoe.moec" --task "$work/letters.lua" --data "$work/two.jsonl" \
    --reference "$model" --samples 12 -q
says stdout "^rouge-1 .*12 rows" "every row is answered"
says stdout "^reference .*loss" "and compared with the original's answers"
"$moec" compile "$model" --policy uniform --bits 16 --dense-bits 32 -q -o "$work/whole.moec" >"$work/stdout" 2>"$work/stderr"
for options in "" "--beams 3" "--beams 4 --length-penalty 2 --no-repeat-ngram 2"; do
    # shellcheck disable=SC2086
    try 0 "a row, '$options'" "$moec" eval "$model" --task "$work/letters.lua" --data "$work/row.jsonl" -q \
        --answers "$work/answers" --force $options
    # shellcheck disable=SC2086
    try 0 "the same by run" "$moec" run "$work/whole.moec" -p "abc def" -n 12 $options
    cp "$work/stdout" "$work/text"
    try 0 "gives the same text" grep -qF "\"text\":\"$(cat "$work/text")\"" "$work/answers"
    # shellcheck disable=SC2086
    set -- "$build/moec-run" "$work/whole.moec" -p "abc def" -n 12 --ctx 32 --threads 1 --cpu scalar $options
    try 0 "inside a budget" "$@" --memory "$(small_budget "$@")"
    if cmp -s "$work/stdout" "$work/text"; then
        pass "too"
    else
        fail "too"
    fi
done
try 0 "a prompt that is empty" "$moec" run "$work/whole.moec" -p "" -n 3
cat >"$work/choose.lua" <<'END'
return {
  name = "choose",
  metric = "accuracy",
  prompt = "{dialogue}",
  choices = { texts = { "{summary}", "qqqqqqq" }, text = "{choice}", label = "0" },
}
END
try 0 "choices are targets" "$moec" eval "$model" --task "$work/choose.lua" --data "$work/two.jsonl" --samples 8 -q \
    --answers "$work/choices"
says stdout "^accuracy [01]" "and scored"
try 0 "with the tokenizer's end" grep -q '"tokens":8,"bytes":7' "$work/choices"

# Losses of what the model prefers, on other data than the profile's: even draws are searched on, odd ones certified.
cat >"$work/pick.lua" <<'EOF'
return {
  name = "pick", metric = "accuracy", prompt = "{dialogue}",
  choices = { texts = { "{summary}", "abcd", "zz" }, text = "{choice}", label = "0" },
}
EOF
pick="--data $work/two.jsonl --task $work/pick.lua --samples 36 --seed 3"
try 2 "a metric needs rows" "$moec" compile "$model" --anyway --policy edgemoe --profile "$work/one.h5" --metric accuracy -o "$work/x.moec"
says stderr "give --data and --task" "which it says"
try 2 "a metric of another kind than the task's is refused" "$moec" compile "$model" --anyway --policy edgemoe --profile "$work/one.h5" \
    --metric rouge-2 $pick -o "$work/x.moec"
says stderr "does not fit task 'pick'" "which it says"
try 2 "data beside a profile is for a metric" "$moec" compile "$model" --anyway --policy edgemoe --profile "$work/one.h5" $pick -o "$work/x.moec"
try 0 "accuracy is certified on other rows" "$moec" compile "$model" --anyway --profile "$work/one.h5" --metric accuracy $pick \
    --policy uniform --bits 2 -q --json -o "$work/pick.moec"
cp "$work/stdout" "$work/pick.json"
# The last 18 draws of moec eval, which draws the same rows.
last_mean() {
    awk -F'"accuracy":' '{ n++; if (n > 18) { split($2, v, /[,} ]+/); for (i = 1; v[i] == ""; i++); sum += v[i]; k++ } }
        END { printf "%.6f\n", sum / k }' "$1"
}
json_number() { sed -n "s/.*\"$1\": *\([0-9.e-]*\).*/\1/p" "$work/pick.json" | head -n 1; }
for what in reference compiled; do
    measured=$model
    [ $what = compiled ] && measured=$work/pick.moec
    try 0 "rows of the $what model" "$moec" eval "$measured" $pick --answers "$work/$what.jsonl" -q
    if [ "$(last_mean "$work/$what.jsonl")" = "$(printf '%.6f' "$(json_number $what)")" ]; then
        pass "the certificate's $what score is that of the last draws"
    else
        fail "the certificate's $what score is $(json_number $what), of the last draws $(last_mean "$work/$what.jsonl")"
    fi
done
try 0 "the certificate is inspected" "$moec" inspect "$work/pick.moec"
says stdout "^  accuracy of the original" "and names its metric"
says stdout "18 rows of 'two.jsonl'" "and its rows"
try 0 "generated texts are searched and certified on" "$moec" compile "$model" --anyway --policy edgemoe --profile "$work/one.h5" \
    --metric rouge-1 --data "$work/two.jsonl" --task "$work/letters.lua" --samples 32 --max-loss 90% --accept-miss -q \
    -o "$work/rouge.moec"
says stdout "^certificate: rouge-1 0" "by ROUGE-1"
try 0 "rows that were profiled serve the metric too" "$moec" compile "$model" --anyway --policy edgemoe --profile "$work/one.h5" \
    --metric accuracy --data "$work/one.jsonl" --task "$work/pick.lua" --max-loss 90% --accept-miss -q \
    -o "$work/same.moec"
says stdout "18 rows of 'one.jsonl'" "the profile's rows in its order"
done_testing
