#!/bin/sh
# Checkpoints that do not fit the work memory: the same profiles and bundles as with room for everything, within
# the bound. The checkpoint is random and small; tests/large/run.sh takes a large one.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

# peak FILE: what a report says, in MiB.
peak() {
    sed -n 's/^peak memory: \([0-9.]*\) MiB$/\1/p' "$1"
}
# within NAME MIB: the last command's peak.
within() {
    cp "$work/stdout" "$work/report"
    if takes_memory; then
        skip "$1" "the sanitizer takes memory of its own"
    elif awk "BEGIN { exit !($(peak "$work/report") > 0 && $(peak "$work/report") <= $2) }"; then
        pass "$1"
    else
        fail "$1 ($(peak "$work/report") MiB, at most $2)"
    fi
}

try 0 "a random checkpoint" "$build/tools/make_random_checkpoint" --preset small --layers 2 --hidden 512 --experts 4 \
    --ff 64 --vocab 8192 --shard 5 --tokenizer datasets/sample/model/tokenizer.json "$work/model"
says stdout '^.* bytes of weights in .* tensors and [2-9] files$' "in several shards"
try 0 "again" "$build/tools/make_random_checkpoint" --preset small --layers 2 --hidden 512 --experts 4 \
    --ff 64 --vocab 8192 --shard 5 --tokenizer datasets/sample/model/tokenizer.json "$work/twin"
try 0 "the same bytes" diff -r "$work/model" "$work/twin"
rm -rf "$work/twin"

data="--data datasets/sample/calibration.txt --samples 32 --seq-len 32 --bits 2 --anyway"
# shellcheck disable=SC2086 # options are words
try 0 "profile with room" "$moec" profile "$work/model" $data -o "$work/roomy.h5" --quiet
roomy=$(peak "$work/stdout")
# shellcheck disable=SC2086
no_room "profile without room" "$moec" profile "$work/model" $data -o "$work/none.h5" --quiet
says stderr 'work memory of 1.0 MiB is too little.*process .* buffers .* largest expert .* raise --work-memory to' \
    "the refusal itemises what is needed"
# shellcheck disable=SC2086
try 0 "profile with little" "$moec" profile "$work/model" $data -o "$work/tight.h5" --quiet --work-memory "${bound}MiB"
within "its peak stays within the work memory and a layer" "$((bound + 3))" # and the largest layer, 2.8 MiB
if takes_memory; then
    skip "with room it takes more" "the sanitizer takes memory of its own"
elif awk "BEGIN { exit !(${roomy:-0} > $bound + 3) }"; then
    pass "with room it takes more"
else
    fail "with room it takes more ($roomy MiB)"
fi
same "$work/roomy.h5" "$work/tight.h5" "the same profile, byte for byte"
if [ -z "$(find "$work" -name '*spill*')" ]; then
    pass "nothing is left beside the output"
else
    fail "nothing is left beside the output"
fi

# GPTQ holds what a layer's inputs have in common beside the weights, so it needs more.
for quantizer in linear gptq; do
    set -- "$moec" compile "$work/model" --profile "$work/roomy.h5" --policy uniform --bits 4 --dense-bits 8 \
        --dense-quantizer $quantizer --anyway --quiet
    try 0 "compile with room ($quantizer)" "$@" --force -o "$work/roomy.moec"
    no_room "compile without room ($quantizer)" "$@" -o "$work/none.moec"
    try 0 "compile with little ($quantizer)" "$@" --force -o "$work/tight.moec" --work-memory "${bound}MiB"
    within "its peak stays within the work memory and a layer" "$((bound + 3))"
    same "$work/roomy.moec" "$work/tight.moec" "the same bundle, byte for byte"
    try 0 "it is whole" "$moec" verify "$work/tight.moec"
done
# A policy may ask about two parts, one while the other is open. With this vocabulary the original's probabilities are
# most of what a part can keep.
try 0 "a checkpoint of a large vocabulary" "$build/tools/make_random_checkpoint" --preset small --layers 2 \
    --hidden 128 --experts 4 --ff 32 --vocab 16384 --tokenizer datasets/sample/model/tokenizer.json "$work/wide"
cat >"$work/both.lua" <<'END'
local assignment = require "assignment"
return function(moec)
  local plan = assignment.uniform(moec, 4)
  moec.evaluate(plan)
  moec.evaluate(plan, "select")
  return plan
end
END
try 0 "its profile" "$moec" profile "$work/wide" --data datasets/sample/calibration.txt --samples 128 --seq-len 64 \
    --bits 2 --sensitivity none --anyway -q -o "$work/wide.h5"
for memory in 300 400; do
    try 0 "a policy that asks about both parts, with $memory MiB" "$moec" compile "$work/wide" \
        --profile "$work/wide.h5" --policy "$work/both.lua" --max-loss 50% --accept-miss --anyway --dense-bits 8 \
        --threads 2 -q --force -o "$work/both.moec" --work-memory ${memory}MiB
    within "its peak stays within" "$((memory + 1))"
done

set -- "$moec" compile "$work/model" --policy uniform --bits 4 -o "$work/plain.moec" --quiet
no_room "compile that measures nothing, without room" "$@"
try 0 "it needs little" "$@" --work-memory "${bound}MiB"
within "its peak stays within" "$((bound + 3))"
done_testing
