#!/bin/sh
# Generation settings through the command line: generation_config.json in a folder, a bundle and an export, options, beams
# inside a budget. That the tokens are those of transformers is in tests/unit/test_generate.c.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
sample=datasets/sample/model
prompt="The"

# text NAME OPTIONS...: what run writes, to $work/NAME.
text() {
    text=$1
    shift
    try 0 "run for $text" "$@" -p "$prompt"
    cp "$work/stdout" "$work/$text"
}

# ---- a model that asks for beams ----

cp -r $sample "$work/model"
cat >"$work/model/generation_config.json" <<'END'
{"eos_token_id": 0, "num_beams": 3, "length_penalty": 0.5, "early_stopping": true, "no_repeat_ngram_size": 3,
 "max_new_tokens": 21, "suppress_tokens": [5, 6], "forced_eos_token_id": 0}
END
try 0 "a plain bundle" "$moec" compile $sample --policy uniform --bits 8 -o "$work/plain.moec" --quiet
try 0 "a bundle with settings" "$moec" compile "$work/model" --policy uniform --bits 8 -o "$work/beams.moec" --quiet
try 0 "verify" "$moec" verify "$work/beams.moec"
try 0 "inspect" "$moec" inspect "$work/beams.moec"
says stdout "^  generation +[0-9]+ +76 +76\$" "lists the section"
says stdout '^  \{"num_beams":3,"length_penalty":0.5,"early_stopping":true,' "and says what it holds"
try 0 "inspect as JSON" "$moec" inspect "$work/beams.moec" --json
says stdout '"no_repeat_ngram_size": 3' "too"

text greedy "$moec" run "$work/plain.moec" -n 20
text settings "$moec" run "$work/beams.moec"
text options "$moec" run "$work/plain.moec" -n 21 --beams 3 --length-penalty 0.5 --early-stopping true --no-repeat-ngram 3
differ "$work/greedy" "$work/settings" "beams find another text"
differ "$work/greedy" "$work/options" "with options too"
text one "$moec" run "$work/beams.moec" --beams 1 --no-repeat-ngram 0 -n 21
same "$work/greedy" "$work/one" "options come before what the bundle says, but its last token is forced"
text scalar "$moec" run "$work/beams.moec" --cpu scalar --threads 1
same "$work/settings" "$work/scalar" "the same text from one thread and scalar code"
text alone "$build/moec-run" "$work/beams.moec"
same "$work/settings" "$work/alone" "and from moec-run"
budget=$(small_budget "$moec" run "$work/beams.moec" -p "$prompt" --ctx 64)
text budget "$moec" run "$work/beams.moec" --memory "$budget" --ctx 64
same "$work/settings" "$work/budget" "and inside a budget"
text emulated "$moec" run "$work/beams.moec" --memory "$budget" --ctx 64 --mode edgemoe
same "$work/settings" "$work/emulated" "and with another policy"
try 0 "its figures" "$moec" run "$work/beams.moec" -p "$prompt" --memory "$budget" --ctx 64 --stats json
steps=$(grep -o '"decode_tokens": *[0-9]*' "$work/stderr" | grep -o '[0-9]*$')
within_budget "beams stay within the budget" "$budget"
try 0 "steps are of tokens, not of beams" test "${steps:-99}" -le 21
try 0 "stop texts cut a beam's text" "$moec" run "$work/beams.moec" -p "$prompt" --stop "e"
lacks stdout e "no e is left"

# ---- back into a folder ----

try 0 "export" "$moec" export "$work/beams.moec" -o "$work/folder" --quiet
for member in '"num_beams": 3' '"length_penalty": 0.5' '"early_stopping": true' '"no_repeat_ngram_size": 3' \
    '"max_new_tokens": 21' '"forced_eos_token_id": 0'; do
    try 0 "generation_config.json has $member" grep -q "$member" "$work/folder/generation_config.json"
done
try 0 "a bundle of the export" "$moec" compile "$work/folder" --policy uniform --bits 16 -o "$work/again.moec" --quiet
text again "$moec" run "$work/again.moec"
same "$work/settings" "$work/again" "generates the same"

# ---- rows of tasks ----

cat >"$work/copy.lua" <<'END'
return {
  name = "copy",
  metric = "rouge-l",
  rows = { format = "text", split = "line" },
  prompt = "{text}",
  reference = "{text}",
  answer = { tokens = 10 },
}
END
grep -v '^$' datasets/sample/test.txt | head -n 3 >"$work/lines.txt"
answers() { # NAME MODEL OPTIONS...: texts of the rows, to $work/NAME
    text=$1
    shift
    try 0 "eval for $text" "$moec" eval "$@" --task "$work/copy.lua" --data "$work/lines.txt" --quiet --answers "$work/$text"
}
answers rows.folder "$work/folder"
answers rows.bundle "$work/again.moec"
same "$work/rows.folder" "$work/rows.bundle" "folder and bundle answer alike"
answers rows.greedy "$work/folder" --beams 1 --no-repeat-ngram 0
differ "$work/rows.folder" "$work/rows.greedy" "greedy answers are others"
answers rows.plain "$work/plain.moec" --beams 3 --length-penalty 0.5 --early-stopping true --no-repeat-ngram 3
answers rows.long "$work/plain.moec" --min-tokens 10 --repetition-penalty 1.2

# ---- drafts ----

# Twice the same words, so that there is something to look up.
head -c 700 datasets/sample/test.txt >"$work/once"
cat "$work/once" "$work/once" >"$work/twice"
drafted() { # NAME OPTIONS...: the text with and without drafts, and that some were accepted
    name=$1
    shift
    try 0 "$name, without drafts" "$moec" run "$work/plain.moec" -f "$work/twice" -n 150 --ignore-eos "$@"
    cp "$work/stdout" "$work/without"
    try 0 "$name, with drafts" "$moec" run "$work/plain.moec" -f "$work/twice" -n 150 --ignore-eos --draft lookup \
        --stats json "$@"
    same "$work/without" "$work/stdout" "$name: the same text"
    says stderr '"decode_tokens": 1[0-9]*, .*"draft": \{"drafted_tokens": [1-9][0-9]*, "accepted_tokens": [0-9]+\}' \
        "$name: drafts are counted"
}
drafted greedy
drafted drawn --temp 0.7 --top-k 20 --top-p 0.9 --seed 11
drafted "with rules" --repetition-penalty 1.2 --min-tokens 20
drafted "with little memory" --memory "$(($(small_budget "$moec" run "$work/plain.moec" -f "$work/twice" --draft lookup) + 1500000))"
try 0 "without a draft nothing is counted" "$moec" run "$work/plain.moec" -p The -n 5 --draft none --stats json
lacks stderr drafted "no count"
try 0 "a stop text ends a drafted text too" "$moec" run "$work/plain.moec" -f "$work/twice" -n 150 --stop " the" \
    --draft lookup
cp "$work/stdout" "$work/stopped"
try 0 "where it ends one without" "$build/moec-run" "$work/plain.moec" -f "$work/twice" -n 150 --stop " the"
same "$work/stopped" "$work/stdout" "the same text before it"
pair=datasets/switch-sample
try 0 "a bundle that summarises" "$moec" compile $pair/model --policy uniform --bits 8 -o "$work/pair.moec" --quiet
sed -n '1s/.*"dialogue": "\([^"]*\)".*/\1/p' $pair/test.jsonl >"$work/dialogue"
try 0 "a summary" "$moec" run "$work/pair.moec" -f "$work/dialogue" --beams 1 -n 60 --ignore-eos
cp "$work/stdout" "$work/without"
try 0 "with drafts from the dialogue" "$moec" run "$work/pair.moec" -f "$work/dialogue" --beams 1 -n 60 --ignore-eos \
    --draft lookup
same "$work/without" "$work/stdout" "the same summary"
try 2 "drafts of beams" "$moec" run "$work/beams.moec" -p x --draft lookup
says stderr "drafts need a single beam" "say why not"
try 2 "another way to draft" "$moec" run "$work/plain.moec" -p x --draft guess

# ---- wrong use ----

try 2 "no beams" "$moec" run "$work/plain.moec" -p x --beams 0
try 2 "too many beams" "$moec" run "$work/plain.moec" -p x --beams 65
try 2 "beams that draw" "$moec" run "$work/plain.moec" -p x --beams 2 --temp 0.5
says stderr "temperature needs a single beam" "says what goes together"
try 2 "another word for early stopping" "$moec" run "$work/plain.moec" -p x --early-stopping soon
try 2 "a penalty that is no number" "$moec" run "$work/plain.moec" -p x --length-penalty long
try 2 "beams of perplexity" "$moec" eval $sample --data "$work/lines.txt" --beams 2
says stderr "beams applies to tasks with generated answers" "says what beams are for"
try 1 "a budget too small for so many beams" "$moec" run "$work/plain.moec" -p x -n 1000 --memory "$budget" --ctx 1000 --beams 32
says stderr "KV cache for 1000 positions" "itemises it"
# Sampling is not a setting of the bundle: compile names what the file asks for, and run has options for it.
sed 's/"num_beams": 3/"do_sample": true, "temperature": 0.6, "top_p": 0.95, "num_beams": 3/' "$work/model/generation_config.json" >"$work/g.json"
mkdir "$work/sampling"
cp "$work"/model/* "$work/sampling/"
cp "$work/g.json" "$work/sampling/generation_config.json"
try 0 "compile a model that asks for sampling" "$moec" compile "$work/sampling" --policy uniform --bits 8 -o "$work/sampling.moec"
says stderr "recommends sampling .temperature 0.6, top_p 0.95.," "what a bundle does not carry is named"
try 0 "quietly" "$moec" compile "$work/sampling" --policy uniform --bits 8 -q --force -o "$work/sampling.moec"
lacks stderr sampling "-q is quiet"
try 0 "min-p and typical-p" "$moec" run "$work/sampling.moec" -p ab -n 4 --beams 1 --temp 1 --min-p 0.9 --typical-p 0.5 --ignore-eos
try 2 "min-p above 1" "$moec" run "$work/sampling.moec" -p ab --min-p 2

sed -i 's/"num_beams": 3/"num_beam_groups": 3/' "$work/model/generation_config.json"
try 1 "a setting that is not known" "$moec" eval "$work/model" --data "$work/lines.txt" --quiet
says stderr "'num_beam_groups', which moec does not support" "is named"

done_testing
