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

# A smaller model, for what evaluates it many times.
letter_tokenizer "$work/tokenizer.json"
letter_words 1200 "$work/text.txt"
tiny=$work/tiny
"$build/tools/make_random_checkpoint" --tokenizer "$work/tokenizer.json" --layers 2 --hidden 32 --heads 2 --kv-heads 2 \
    --experts 3 --top-k 2 --ff 32 --vocab 64 --positions 64 "$tiny" >"$work/stdout" 2>"$work/stderr" || fail "a tiny model"

# written NAME FILE VERB ARGUMENTS...: the same for a file that the verb writes.
written() {
    what=$1 file=$work/$2
    shift 2
    "$moec" "$@" --quiet -o "$file.cpu" >"$work/stdout" 2>"$work/stderr" || fail "$what: the CPU"
    try 0 "$what: the device" "$there" "$@" --device cuda --quiet -o "$file"
    same "$what: the same bytes" "$file"
}
set -- --data "$work/text.txt" --seq-len 6
written "an exact profile" exact.h5 profile "$tiny" "$@" --samples 33 --bits 2 --sensitivity exact
written "an estimated one, with a study" fast.h5 profile "$tiny" "$@" --samples 33 --bits 2 --sensitivity fast --study dense
written "a bundle" found.moec compile "$tiny" "$@" --samples 48 --max-loss 20%
written "decisions" tuned.moec tune "$work/found.moec" "$@" --samples 48 --reference "$tiny" --max-loss 30% --slots 2 --with route

written "a plan of sparsity" sparse.moec sparsify "$work/found.moec" "$@" --samples 48 --reference "$tiny" --max-loss 40%
both "a planned sparsity" eval "$work/sparse.moec" --data "$work/text.txt" --seq-len 12 --samples 4 --json
both "a sparsity" eval "$work/sparse.moec" --data "$work/text.txt" --seq-len 12 --samples 4 --json --sparsity 0.5 --reference "$tiny"

lost() {
    name=$1 file=$work/lost.$2
    shift 2
    try 1 "a device that is lost in $name" env MOEC_STANDIN_LOSE_AT=1300 "$there" "$@" --device cuda -o "$file"
    says stderr "the device is lost" "is told"
    absent "$file" "and nothing is written"
}
lost "a profile" h5 profile "$tiny" --data "$work/text.txt" --seq-len 6 --samples 33 --bits 2 --sensitivity exact
try 0 "the CPU goes on with it" "$moec" profile "$tiny" --data "$work/text.txt" --seq-len 6 --samples 33 --bits 2 \
    --sensitivity exact --resume --quiet -o "$work/lost.h5"
cp "$work/exact.h5" "$work/lost.h5.cpu"
same "to the same bytes" "$work/lost.h5"
lost "a compile" moec compile "$tiny" --data "$work/text.txt" --seq-len 6 --samples 48 --max-loss 20%
try 2 "a device without data" "$there" compile "$tiny" --policy uniform --bits 4 --device cuda -o "$work/no.moec"
says stderr "device" "is refused"

done_testing
