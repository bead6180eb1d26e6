#!/bin/sh
# moec eval on tasks whose rows are scored: summaries, answers, choices; built-in tasks and task files.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
sample=datasets/sample/model

# number FILE KEY: the value of a JSON member on a line of its own.
number() { sed -n "s/^ *\"$2\": \\(-\\{0,1\\}[0-9.e+-]*\\),\\{0,1\\}\$/\\1/p" "$1" | head -n 1; }
# holds NAME CONDITION: awk finds it true.
holds() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1 ($2)"; fi
}

# ---- summaries ----

cat >"$work/val.csv" <<'END'
id,summary,dialogue
1,"Ann is late, ""again"".","Ann: I'm late, sorry!
Ben: Again?"
2,Karl brings 3 pies.,"Karl: I'll bring pies.
Lisa: How many?
Karl: 3"
3,It rains.,"Eve: Rain, rain.
"
END
zstd -q "$work/val.csv" -o "$work/val.csv.zst"
try 0 "samsum" "$moec" eval $sample --task samsum --data "$work/val.csv" --answers "$work/answers.jsonl" --quiet
says stdout "^rouge-2 [01]\\.[0-9]{4} \+- [0-9.]+   \\(3 rows, [0-9]+ tokens, 'val.csv'\\)\$" "the task's metric comes first"
says stdout "^rouge-l [01]" "the others follow"
try 0 "against a reference that scores 0" "$moec" eval $sample --task samsum --data "$work/val.csv" --reference $sample --quiet
says stdout "^rouge-2 0.0000 \+- 0 " "keeps its score"
says stdout "^reference  0   no loss" "and says that there is no loss"
holds "an answer for each row" "$(wc -l <"$work/answers.jsonl") == 3"
holds "rows are named by line" "$(grep -c '^{"line":[247],"text":"' "$work/answers.jsonl") == 3"
try 0 "the same from zstd, as JSON" "$moec" eval $sample --task samsum --data "$work/val.csv.zst" --json --quiet
cp "$work/stdout" "$work/plain.json"
says stdout '"metric": "rouge-2"' "JSON names the metric"
holds "the value is among the scores" "$(number "$work/stdout" rouge-2) == $(number "$work/stdout" value)"
try 0 "one thread and scalar code" "$moec" eval $sample --task samsum --data "$work/val.csv.zst" --json --quiet --threads 1 --cpu scalar
if cmp -s "$work/stdout" "$work/plain.json"; then pass "give the same bytes"; else fail "give the same bytes"; fi

cat >"$work/dialogue.jsonl" <<'END'
{"dialogue": "#Person1#: Hello.", "summary": "Someone says hello.", "document": "Hello.", "topic": "x"}
END
try 0 "dialogsum" "$moec" eval $sample --task dialogsum --data "$work/dialogue.jsonl" --quiet
try 0 "xsum" "$moec" eval $sample --task xsum --data "$work/dialogue.jsonl" --quiet

# ---- a task file of one's own: the sample copies what it has just read ----

cat >"$work/copy.lua" <<'END'
return {
  name = "copy",
  metric = "rouge-l",
  rows = { format = "text", split = "line" },
  prompt = "{text}",
  reference = "{text}",
  answer = { tokens = 12, stop = { "." }, stem = false },
}
END
grep -v '^$' datasets/sample/test.txt | head -n 12 >"$work/lines.txt"
try 0 "a task file" "$moec" eval $sample --task "$work/copy.lua" --data "$work/lines.txt" --samples 8 --seed 3 --json --quiet
holds "draws its rows" "$(number "$work/stdout" samples) == 8"
holds "and scores above 0" "$(number "$work/stdout" value) > 0"
folder=$(number "$work/stdout" value)

# ---- the loss of a bundle ----

try 0 "a bundle of few bits" "$moec" compile $sample --policy uniform --bits 2 -o "$work/int2.moec" --quiet
try 0 "its loss" "$moec" eval "$work/int2.moec" --task "$work/copy.lua" --data "$work/lines.txt" --samples 8 --seed 3 \
    --reference $sample --json --quiet
holds "the reference is the folder's value" "$(number "$work/stdout" reference) == $folder"
holds "higher is better" \
    "(1 - $(number "$work/stdout" value) / $folder - $(number "$work/stdout" loss)) ^ 2 < 1e-18"
holds "the interval holds the loss" \
    "$(number "$work/stdout" loss_low) <= $(number "$work/stdout" loss) && $(number "$work/stdout" loss) <= $(number "$work/stdout" loss_high)"
try 0 "a model against itself" "$moec" eval $sample --task "$work/copy.lua" --data "$work/lines.txt" --samples 8 --seed 3 \
    --reference $sample --quiet
says stdout "loss 0.000% \\(90% interval 0.000% to 0.000%\\)" "loses nothing"

# ---- answers ----

cat >"$work/sums.jsonl" <<'END'
{"question": "There are 136 shells in the packs. Viktor loses 42. How many remain?", "answer": "136 - 42 = 94\n#### 94"}
{"question": "How much is one and one?", "answer": "#### 2"}
END
try 0 "gsm8k" "$moec" eval $sample --task gsm8k --data "$work/sums.jsonl" --quiet
says stdout "^exact-match " "exact match"
cat >"$work/sum.lua" <<'END'
return {
  name = "sum",
  metric = "exact-match",
  prompt = "{question}",
  reference = "{answer}",
  answer = { tokens = 24, stop = { "\n" }, take = "last-number", after = "Answer:" },
}
END
# The sample cannot count, but what it writes is the same everywhere: " Answer: 10" behind this prompt.
cat >"$work/solved.jsonl" <<'END'
{"question": "Problem 1: There are 50 shells in the packs. Viktor loses 20. How many shells remain?\nSolution: 50 - 20 = 30. Answer: 30\nProblem 2: There are 50 shells in the packs. Viktor loses 20. How many shells remain?\nSolution: 50 - 20 = 30.", "answer": "Answer: 010.0"}
END
try 0 "an answer of the same value" "$moec" eval $sample --task "$work/sum.lua" --data "$work/solved.jsonl" --quiet
says stdout "^exact-match 1.0000" "is a match"
sed 's/010.0/11/' "$work/solved.jsonl" >"$work/other.jsonl"
try 0 "an answer of another value" "$moec" eval $sample --task "$work/sum.lua" --data "$work/other.jsonl" --quiet
says stdout "^exact-match 0.0000" "is none"

# ---- choices ----

cat >"$work/choices.jsonl" <<'END'
{"activity_label": "Baking", "ctx": "Once upon a time there lived a", "endings": ["lazy miller named Emil", "qx zz vw"], "label": 0}
{"activity_label": "Baking", "ctx": "Once upon a time there lived a", "endings": ["0 0 7 1", "poor fisherman named Karl"], "label": 1}
END
try 0 "hellaswag" "$moec" eval $sample --task hellaswag --data "$work/choices.jsonl" --quiet --answers "$work/choices.out"
says stdout "^accuracy-bytes 1.0000 \+- 0   \\(2 rows" "the likely endings are found"
says stdout "^accuracy 1.0000" "accuracy by likelihood"
says stdout "^accuracy-tokens 1.0000" "accuracy by tokens"
holds "likelihoods are written" "$(grep -c '"log_likelihood":-' "$work/choices.out") == 2"

# ---- decisions about each token ----

try 0 "a bundle with low copies" "$moec" compile $sample --policy uniform --bits 8 --copies 4 -o "$work/copies.moec" --quiet
# likelihoods ARGS..: of the choices, in the order of rows and choices.
likelihoods() {
    try 0 "choices with $*" "$moec" eval "$work/copies.moec" --task hellaswag --data "$work/choices.jsonl" --quiet --json \
        --answers "$work/decided.out" --force "$@"
    sed 's/"log_likelihood":/\n&/g' "$work/decided.out" | sed -n 's/^"log_likelihood":\([-0-9.e+]*\).*/\1/p' >"$work/decided"
}
likelihoods --decide none
cp "$work/decided" "$work/plain"
likelihoods --route top-k --slots 6
holds "the router's own are counted" "$(number "$work/stdout" experts_missed) > 0 && $(number "$work/stdout" missed_bytes_per_token) > 0"
if cmp -s "$work/decided" "$work/plain"; then pass "and change nothing"; else fail "and change nothing"; fi
top_k_bytes=$(number "$work/stdout" missed_bytes_per_token)
likelihoods --route cache-prior:0.3 --slots 6
cp "$work/decided" "$work/prior"
holds "a prior misses less" "$(number "$work/stdout" missed_bytes_per_token) < $top_k_bytes"
if cmp -s "$work/decided" "$work/plain"; then fail "and changes scores"; else pass "and changes scores"; fi
prior_taken=$(number "$work/stdout" experts_taken)
likelihoods --route cache-prior:0.3 --slots 6 --threads 1 --cpu scalar
if cmp -s "$work/decided" "$work/prior"; then pass "the same on one thread and in scalar code"; else fail "the same on one thread and in scalar code"; fi
likelihoods --route cache-prior:0.3 --slots 6 --decide decode
holds "experts of prompts that are left to the router do not count" \
    "0 < $(number "$work/stdout" experts_taken) && $(number "$work/stdout" experts_taken) < $prior_taken"
if cmp -s "$work/decided" "$work/prior"; then fail "and have scores of their own"; else pass "and have scores of their own"; fi
for how in "--precision hobbit:0.6:0.9" "--prefill unpopular:0.5:8"; do
    # shellcheck disable=SC2086 # words
    likelihoods $how --slots 6
    holds "reads low copies" "$(number "$work/stdout" experts_low) > 0"
    if cmp -s "$work/decided" "$work/plain"; then fail "which change scores"; else pass "which change scores"; fi
done
# What a row scores depends on no other row, and what a choice scores on no other choice.
sed -e '1!G;h;$!d' "$work/choices.jsonl" | sed 's/"endings": \[\("[^"]*"\), \("[^"]*"\)\]/"endings": [\2, \1]/' >"$work/turned.jsonl"
try 0 "rows and choices in another order" "$moec" eval "$work/copies.moec" --task hellaswag --data "$work/turned.jsonl" --quiet \
    --route cache-prior:0.3 --slots 6 --answers "$work/turned.out"
sed 's/"log_likelihood":/\n&/g' "$work/turned.out" | sed -n 's/^"log_likelihood":\([-0-9.e+]*\).*/\1/p' | sed '1!G;h;$!d' >"$work/decided"
if cmp -s "$work/decided" "$work/prior"; then pass "have the same scores"; else fail "have the same scores"; fi
try 0 "summaries with a prior" "$moec" eval "$work/copies.moec" --task samsum --data "$work/val.csv" --quiet \
    --route cache-prior:0.3 --slots 6 --reference $sample
says stdout "^route +cache-prior:0.3 +[0-9.]+% of [0-9]+ experts taken miss a cache of 6 experts a layer" "tell what was missed"
says stdout "^missed +[0-9.]+ KiB of experts a token" "and how much is read"
try 0 "with beams" "$moec" eval "$work/copies.moec" --task samsum --data "$work/val.csv" --quiet --route cache-prior:0.3 --beams 2
says stdout "^route +cache-prior:0.3" "too"
try 2 "tokens of a prompt" "$moec" eval "$work/copies.moec" --task samsum --data "$work/val.csv" --route top-k --prompt-tokens 4 --quiet
says stderr "each row has its own prompt" "are the row's"
try 2 "the whole prompt at once" "$moec" eval "$work/copies.moec" --task samsum --data "$work/val.csv" --prefill whole:0.5 --quiet
says stderr "use --prefill unpopular" "is not how rows are read"
try 2 "running text without prompts" "$moec" eval "$work/copies.moec" --data datasets/sample/test.txt --route top-k --decide decode --quiet
says stderr "running text has no prompts: say with --prompt-tokens" "has none to leave out"

cat >"$work/mmlu.jsonl" <<'END'
{"subject": "sums", "question": "1 + 1?", "choices": ["1", "2", "3", "4", "5"], "answer": 1}
END
try 0 "mmlu" "$moec" eval $sample --task mmlu --data "$work/mmlu.jsonl" --quiet
printf '{"goal": "bread", "sol1": "bake it", "sol2": "qq zx"}\n' >"$work/valid.jsonl"
try 1 "piqa without labels" "$moec" eval $sample --task piqa --data "$work/valid.jsonl" --quiet
says stderr "valid-labels.lst" "names the file that is missing"
echo 0 >"$work/valid-labels.lst"
try 0 "piqa" "$moec" eval $sample --task piqa --data "$work/valid.jsonl" --quiet
echo 2 >"$work/valid-labels.lst"
try 1 "piqa with a wrong label" "$moec" eval $sample --task piqa --data "$work/valid.jsonl" --quiet
says stderr "label in line 1 .* is '2', expected 0..1 or A..B" "says what is expected"
try 0 "wikitext" "$moec" eval $sample --task wikitext --data datasets/sample/test.txt --samples 2 --quiet
says stdout "^perplexity " "is perplexity"

# ---- wrong use ----

refuse() { # STATUS NAME LUA PATTERN
    printf '%s' "$3" >"$work/wrong.lua"
    try "$1" "$2" "$moec" eval $sample --task "$work/wrong.lua" --data "$work/lines.txt" --quiet
    says stderr "$4" "$2: the message"
}
refuse 1 "an unknown member" 'return {name = "x", answer = {token = 3}, metric = "rouge-1", reference = "r"}' "'answer' has an unknown member 'token'"
refuse 1 "choices of a summary" 'return {name = "x", metric = "rouge-1", reference = "r", choices = {field = "c"}}' "'choices' is only for accuracy.*'rouge-1'"
refuse 1 "an answer of perplexity" 'return {name = "x", answer = {tokens = 3}}' "'answer' is only for rouge-1.*'perplexity'"
refuse 1 "stems of an exact match" 'return {name = "x", metric = "exact-match", reference = "r", answer = {stem = true}}' "'stem' is only for rouge-1"
refuse 1 "a summary without reference" 'return {name = "x", metric = "rouge-1"}' "has no 'reference', which its metric 'rouge-1' needs"
refuse 1 "accuracy without choices" 'return {name = "x", metric = "accuracy"}' "has no 'choices'"
refuse 1 "too many tokens" 'return {name = "x", metric = "rouge-1", reference = "r", answer = {tokens = 5000}}' "'tokens' is 5000, expected a whole number in 0..4096"
refuse 1 "no tokens" 'return {name = "x", metric = "rouge-1", reference = "r", answer = {tokens = 0}}' "generates 0 tokens, expected 1..4096"
refuse 1 "a stop that is no text" 'return {name = "x", metric = "rouge-1", reference = "r", answer = {stop = {{}}}}' "text 1 of 'stop'"
refuse 1 "a brace that is not closed" 'return {name = "x", prompt = "say {"}' "'.*/wrong.lua': prompt of task 'x' has no field name .* at byte 4"
refuse 1 "a member with a NUL" 'return {name = "x", ["prompt\0"] = "a"}' "unknown member 'prompt"
mkdir -p "$work/lines"
echo 0 >"$work/elsewhere.lst"
refuse 1 "labels elsewhere" 'return {name = "x", prompt = "{label}", rows = {labels = "/../elsewhere.lst"}}' "field 'labels' of task 'x' is '/../elsewhere.lst'"
try 2 "windows of rows" "$moec" eval $sample --task "$work/copy.lua" --data "$work/lines.txt" --seq-len 64 --quiet
says stderr "ctx" "the message names --ctx"
try 2 "answers of windows" "$moec" eval $sample --data "$work/lines.txt" --answers "$work/none.jsonl" --quiet
says stderr "answers applies to tasks that score rows" "the message says why"
try 1 "a context without room" "$moec" eval $sample --task samsum --data "$work/val.csv" --ctx 32 --answers "$work/none.jsonl" --quiet
try 1 "leaves no answers" test -e "$work/none.jsonl"
try 1 "a profile of summaries" "$moec" profile $sample --task samsum --data "$work/val.csv" -o "$work/none.h5" --quiet
says stderr "a profile measures perplexity, but task 'samsum' measures rouge-2" "the message says what it measures"

done_testing
