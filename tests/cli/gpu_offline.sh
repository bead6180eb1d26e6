#!/bin/sh
# Measuring on a GPU, on machines without one: a program beside the stand-in's library prints and writes what the CPU
# does, byte for byte; what cannot run there is refused by name, and a device that is lost ends the command with a
# message and no file.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

mkdir "$work/bin"
ln -s "$(realpath "$build")/moec" "$work/bin/moec"
ln -s "$(realpath "$build")/standin/libmoert-cuda.so" "$work/bin/"
there=$work/bin/moec
model=datasets/sample/model data=datasets/sample/test.txt

# same NAME FILE...: these are as the CPU's, which stand beside them with .cpu behind their names.
same() {
    name=$1
    shift
    for file; do
        cmp "$file" "$file.cpu" >"$work/stdout" 2>&1 || {
            fail "$name"
            return
        }
    done
    pass "$name"
}

# both NAME VERB ARGUMENTS...: on the CPU and on the device, with the same answer.
both() {
    what=$1
    shift
    "$moec" "$@" --quiet >"$work/answer.cpu" 2>"$work/stderr" || fail "$what: the CPU"
    try 0 "$what: the device" "$there" "$@" --device cuda --vram "$vram" --quiet
    cp "$work/stdout" "$work/answer"
    same "$what: the same answer" "$work/answer"
}
vram=1GiB

"$moec" compile "$model" --policy uniform --bits 4 --copies 2 -o "$work/int4.moec" --quiet >"$work/stdout" 2>"$work/stderr" ||
    fail "a bundle"

set -- --data "$data" --samples 2 --seq-len 10 --json
both "a checkpoint's perplexity" eval "$model" "$@"
both "a bundle's, and its loss" eval "$work/int4.moec" "$@" --reference "$model"
both "with decisions" eval "$work/int4.moec" "$@" --route cumsum:0.6 --precision hobbit:0.5:1
vram=5MiB
both "in little of its memory" eval "$model" "$@"
vram=1GiB

echo '{"goal": "The old", "sol1": "miller", "sol2": "mill"}' >"$work/piqa.jsonl"
echo 0 >"$work/piqa-labels.lst"
both "choices" eval "$work/int4.moec" --task piqa --data "$work/piqa.jsonl" --json
cat >"$work/short.lua" <<'END'
return {
  name = "short", metric = "rouge-2", prompt = "{text}", reference = "{summary}", answer = { tokens = 3 },
}
END
echo '{"text": "The old", "summary": "The miller"}' >"$work/short.jsonl"
both "answers" eval "$work/int4.moec" --task "$work/short.lua" --data "$work/short.jsonl" --json

try 1 "too little of its memory" "$there" eval "$model" "$@" --device cuda --vram 64KiB
says stderr "too few: dense weights" "is itemised"
try 2 "a limit without a device" "$there" eval "$model" "$@" --vram 1GiB
says stderr "give --device too" "is refused"
try 1 "the int8 arithmetic" "$there" eval "$work/int4.moec" "$@" --device cuda --arithmetic int8
says stderr "int8 arithmetic does not run on a device yet" "is refused by name"

try 1 "a lost device" env MOEC_STANDIN_LOSE_AT=300 "$there" eval "$model" "$@" --device cuda
says stderr "the device is lost" "ends with a message"

done_testing
