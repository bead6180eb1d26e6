#!/bin/sh
# Names and words of others never steer the terminal: escape sequences in tensors, configs, tokenizers, scripts, tasks,
# data and file names are shown as \x1b, in messages and in reports alike.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
sample=datasets/sample/model
data=datasets/sample/calibration.txt
escape=$(printf '\033')
colour="${escape}[31m"

# shows NAME: the output of the last command holds the sequence, and only escaped.
shows() {
    if grep -q "$escape" "$work/stdout" "$work/stderr"; then
        fail "$1: a raw escape"
    else
        pass "$1: no raw escape"
    fi
    if grep -qF '\x1b[31m' "$work/stdout" "$work/stderr"; then
        pass "$1: the escape is shown"
    else
        fail "$1: the escape is shown"
    fi
}

# ---- checkpoints ----

fresh() {
    rm -rf "$work/model"
    cp -r $sample "$work/model"
    chmod -R u+w "$work/model"
}
# compiles STATUS NAME
compiles() {
    try "$1" "$2" "$moec" compile "$work/model" --policy uniform --bits 4 -o "$work/none.moec" --force --quiet
    shows "$2"
}
fresh
LC_ALL=C sed 's/"model\.norm\.weight":{"dtype":"BF16"/"\\u001b[31mxxxxxxx":{"dtype":"F32" /' $sample/model.safetensors \
    >"$work/model/model.safetensors"
compiles 1 "a tensor's name"
fresh
sed 's/"model_type": *"[^"]*"/"model_type": "\\u001b[31mx"/' $sample/config.json >"$work/model/config.json"
compiles 1 "a config's model_type"
fresh
sed 's/"type": *"ByteLevel"/"type": "\\u001b[31mx"/' $sample/tokenizer.json >"$work/model/tokenizer.json"
compiles 1 "a tokenizer's type"

# ---- scripts ----

policy() { # STATUS NAME LUA
    printf '%s\n' "$3" >"$work/policy.lua"
    try "$1" "$2" "$moec" compile $sample --policy "$work/policy.lua" --bits 4 -o "$work/none.moec" --force
    shows "$2"
}
# shellcheck disable=SC2016
policy 0 "a line of a policy" 'local assignment = require "assignment"
return function(moec) moec.log("\27[31mred") return assignment.uniform(moec, 4) end'
policy 1 "an error of a policy" 'return function(moec) error("\27[31mred") end'
policy 1 "a reason of a policy" 'return function(moec) return nil, "\27[31mred" end'
policy 1 "an entry of an assignment" 'return function(moec) return {["\27[31mred"] = 1} end'

task() { # NAME LUA
    printf '%s\n' "$2" >"$work/task.lua"
    try 1 "$1" "$moec" eval $sample --task "$work/task.lua" --data $data --quiet
    shows "$1"
}
task "a key of a task" 'return {name = "x", ["\27[31mred"] = 1}'
task "a name of a task" 'return {name = "\27[31mred", prompt = "{"}'
task "a field of a task" 'return {name = "x", rows = {format = "text"}, prompt = "{\27[31mred}"}'

# ---- data ----

printf '{"goal": "bread", "sol1": "bake it", "sol2": "qq zx"}\n' >"$work/valid.jsonl"
echo "${colour}2" >"$work/valid-labels.lst"
try 1 "a label of the data" "$moec" eval $sample --task piqa --data "$work/valid.jsonl" --quiet
shows "a label of the data"
printf '{"%s": "x"}\n' '\u001b[31m' >"$work/keys.jsonl"
try 1 "keys of the data" "$moec" eval $sample --data "$work/keys.jsonl" --quiet
shows "keys of the data"

# ---- names that travel through files ----

named="$work/${colour}text.txt"
cp $data "$named"
try 0 "a random model" random_model "$work/${colour}model"
try 0 "a profile of named data" "$moec" profile "$work/${colour}model" --data "$named" --samples 32 --seq-len 32 --bits 2 \
    --anyway -o "$work/named.h5" --quiet
try 0 "profile --show" "$moec" profile --show "$work/named.h5" --color never
shows "profile --show"
try 0 "a bundle of it" "$moec" compile "$work/${colour}model" --profile "$work/named.h5" --policy uniform --bits 8 \
    --anyway -o "$work/named.moec" --quiet
shows "the report of compile"
try 0 "inspect" "$moec" inspect "$work/named.moec" --color never
shows "inspect"
try 0 "eval" "$moec" eval "$work/named.moec" --data "$named" --samples 2 --seq-len 32 --quiet
shows "eval"
try 2 "an unknown option" "$moec" inspect "--${colour}x"
shows "an unknown option"
try 2 "an unknown verb" "$moec" "${colour}x"
shows "an unknown verb"

done_testing
