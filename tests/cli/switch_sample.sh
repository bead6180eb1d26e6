#!/bin/sh
# The Switch sample does what its card says, and an encoder-decoder bundle is benched: a source, then the target's tokens.
# shellcheck source=tests/cli/tap.inc
# shellcheck disable=SC2086 # lists of options
. tests/cli/tap.inc

model=datasets/switch-sample/model
test=datasets/switch-sample/test.jsonl

# above NUMBER KEY NAME: the number of a key in the JSON of the last command is larger.
above() {
    if awk -F'[:,]' -v least="$1" -v key="\"$2\"" '$1 ~ key { found = $2 > least; exit } END { exit !found }' "$work/stdout"; then
        pass "$3"
    else
        fail "$3"
    fi
}

try 0 "summaries" "$moec" eval $model --task dialogues --data $test --samples 32 --json --quiet
above 0.5 value "ROUGE-2 is above 0.5"
try 0 "few bits" "$moec" compile $model --policy uniform --bits 2 -o "$work/int2.moec" --quiet
try 0 "are measured against the original" "$moec" eval "$work/int2.moec" --task dialogues --data $test --samples 32 \
    --reference $model --json --quiet
above 0.02 loss "INT2 costs more than 2 %"

try 0 "a bundle for every mode" "$moec" compile $model --policy uniform --bits 3 --copies 4,8,16 -o "$work/all.moec" --quiet
short="--samples 2 --tokens 8 --prompt-tokens 48"
try 0 "is benched in every mode" "$moec" bench "$work/all.moec" --task dialogues --data $test --memory 25% $short \
    --emulate-storage 550MB/s,80us -o "$work/bench.json" --quiet
says stdout "2 samples of 48 \+ 8 tokens from 'test.jsonl'" "on sources and targets of the data"
says stdout "^edgemoe 25%" "with a buffer"
says stdout "edgemoe 25% is faster per token than io-exp" "and compared with the others"
try 0 "runs" "$moec" run "$work/all.moec" -p "summarize: hello" -n 8 --stats text
says stderr 'mode cache, eviction edgemoe$' "and evicts as suits an encoder with experts"
try 0 "without data" "$moec" bench "$work/all.moec" --modes edgemoe,io-free --memory 25% $short --quiet
says stdout "from 'moec's own text'" "on moec's own text"
try 1 "targets that are too short" "$moec" bench "$work/all.moec" --task dialogues --data $test --samples 2 --tokens 60 --memory 25% --quiet
says stderr 'a target of 60 or more' "are refused by name"
try 1 "a text without targets" "$moec" bench "$work/all.moec" --data datasets/sample/test.txt --memory 25% --quiet
done_testing
