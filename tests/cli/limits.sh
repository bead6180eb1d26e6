#!/bin/sh
# Limits that a shell or a container sets: file sizes, the stack, open files. Each ends with a sentence or is of no harm.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

sample=datasets/sample/model
data="--data datasets/sample/calibration.txt --samples 32 --seq-len 16"
# limited LIMITS COMMAND...: runs it in a shell of these limits, as in "-f 100".
# shellcheck disable=SC2317 # try calls it
limited() {
    limits=$1
    shift
    # shellcheck disable=SC2086 # options are words
    (ulimit $limits && exec "$@")
}
# nothing NAME PATTERN: no file of such a name is left.
nothing() {
    if [ -z "$(find "$work" -name "$2")" ]; then pass "$1"; else fail "$1: $(find "$work" -name "$2")"; fi
}

random=$work/random
try 0 "a random model" random_model "$random"

# ---- file sizes: blocks of 512 bytes ----

try 1 "a bundle beyond the limit of file sizes" limited "-f 500" "$moec" compile $sample --policy uniform --bits 4 \
    -o "$work/big.moec" --quiet
says stderr "big.moec.*File too large" "is refused by name"
nothing "and nothing of it stays" '*big.moec*'
# shellcheck disable=SC2086
try 1 "a profile beyond it" limited "-f 20" "$moec" profile "$random" $data --bits 2 --anyway -o "$work/big.h5" --quiet
says stderr "big.h5.*File too large" "is refused by name"
nothing "and no profile is there" 'big.h5'
printf 'old' >"$work/old.moec"
try 1 "an old output" limited "-f 500" "$moec" compile $sample --policy uniform --bits 4 -o "$work/old.moec" --force --quiet
if [ "$(cat "$work/old.moec")" = old ]; then pass "stays as it was"; else fail "stays as it was"; fi

# ---- the stack, in KiB ----

bundle=$work/small.moec
try 0 "a soft limit of the stack is raised" limited "-S -s 128" "$moec" compile $sample --policy uniform --bits 4 -o "$bundle" --quiet
try 0 "for the runtime too" limited "-S -s 64" "$build/moec-run" "$bundle" -p "The old" -n 4
cp "$work/stdout" "$work/text"
if takes_memory; then
    skip "hard limits of the stack" "the sanitizer takes stack of its own"
else
    # shellcheck disable=SC2086
    try 1 "a hard limit of 128 KiB" limited "-s 128" "$moec" profile $sample $data --bits 2 -o "$work/stack.h5"
    says stderr "^moec: the stack may take only 128 KiB, expected at least 384; raise its limit: ulimit -s 8192$" "is told in a sentence"
    nothing "before anything is written" 'stack.h5*'
    # shellcheck disable=SC2086
    try 0 "the least that is taken is enough for a profile" limited "-s 384" "$moec" profile "$random" $data --bits 2,4 \
        --anyway -o "$work/stack.h5" --plots "$work/plots" --report "$work/report.html" --quiet
    try 0 "and for a search" limited "-s 384" "$moec" compile "$random" --profile "$work/stack.h5" --max-loss 90% --policy edgemoe \
        --anyway -o "$work/searched.moec" --quiet
    try 0 "moec-run works with 112 KiB" limited "-s 112" "$build/moec-run" "$bundle" -p "The old" -n 4 --threads 4
    if cmp -s "$work/stdout" "$work/text"; then pass "and says the same"; else fail "and says the same"; fi
    try 1 "with 64" limited "-s 64" "$build/moec-run" "$bundle" -p "The old" -n 4
    says stderr "moec-run: the stack may take only 64 KiB" "it says what is missing"
fi

# ---- open files ----

try 0 "a checkpoint of many shards" "$build/tools/make_random_checkpoint" --preset small --layers 4 --hidden 256 --experts 8 \
    --ff 512 --vocab 2048 --shard 1 --tokenizer $sample/tokenizer.json "$work/model"
n=$(find "$work/model" -name '*.safetensors' | wc -l)
if [ "$n" -ge 24 ]; then pass "it has $n shards"; else fail "it has $n shards, expected 24"; fi
try 0 "a soft limit of open files is raised" limited "-S -n 16" "$moec" compile "$work/model" --policy uniform --bits 4 \
    -o "$work/shards.moec" --quiet
try 1 "a hard one" limited "-n 16" "$moec" compile "$work/model" --policy uniform --bits 4 -o "$work/none.moec" --quiet
says stderr "Too many open files" "is told"
nothing "and nothing is written" 'none.moec*'

done_testing
