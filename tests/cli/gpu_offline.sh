#!/bin/sh
# Measuring on a GPU, on machines without one: a program beside the stand-in's library prints and writes what the CPU
# does, byte for byte; what cannot run there is refused by name, and a device that is lost ends the command with a
# message and no file. In the arithmetic of tensor cores numbers are the device's own, and certificates say so.
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
both "with what is foreseen" eval "$work/int4.moec" "$@" --precision fate:1
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
says stderr "not enough: dense weights" "is itemised"
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
# Its weights are random, and so it predicts by chance.
set -- --data "$work/text.txt" --seq-len 6 --anyway
written "an exact profile" exact.h5 profile "$tiny" "$@" --samples 33 --bits 2 --sensitivity exact
written "an estimated one, with a study" fast.h5 profile "$tiny" "$@" --samples 33 --bits 2 --sensitivity fast --study dense
written "a bundle" found.moec compile "$tiny" "$@" --samples 48 --max-loss 20%
written "decisions" tuned.moec tune "$work/found.moec" "$@" --samples 48 --reference "$tiny" --max-loss 30% --slots 2 --with route

written "a sparsity plan" sparse.moec sparsify "$work/found.moec" "$@" --samples 48 --reference "$tiny" --max-loss 40% --by-projection up
both "a planned sparsity" eval "$work/sparse.moec" --data "$work/text.txt" --seq-len 12 --samples 4 --json
both "a sparsity" eval "$work/sparse.moec" --data "$work/text.txt" --seq-len 12 --samples 4 --json --sparsity 0.5 --reference "$tiny"

lost() {
    name=$1 file=$work/lost.$2
    shift 2
    try 1 "a device that is lost in $name" env MOEC_STANDIN_LOSE_AT=1300 "$there" "$@" --device cuda -o "$file"
    says stderr "the device is lost" "is told"
    absent "$file" "and nothing is written"
}
lost "a profile" h5 profile "$tiny" "$@" --samples 33 --bits 2 --sensitivity exact
try 0 "the CPU goes on with it" "$moec" profile "$tiny" "$@" --samples 33 --bits 2 \
    --sensitivity exact --resume --quiet -o "$work/lost.h5"
cp "$work/exact.h5" "$work/lost.h5.cpu"
same "to the same bytes" "$work/lost.h5"
lost "a compile" moec compile "$tiny" "$@" --samples 48 --max-loss 20%
try 2 "a device without data" "$there" compile "$tiny" --policy uniform --bits 4 --device cuda -o "$work/no.moec"
says stderr "device" "is refused"

# ---- bf16: numbers of the device's own, with a certificate that says so ----

# holds NAME FILE PATTERN: the file has such a line.
holds() {
    if grep -Eq "$3" "$2"; then pass "$1"; else fail "$1"; fi
}
member() { sed -n 's/.*"'"$1"'": \([-0-9.e]*\).*/\1/p' "$2" | head -n 1; }
set -- --data "$work/text.txt" --seq-len 6
"$moec" eval "$tiny" "$@" --samples 8 --reference "$tiny" --json -q >"$work/canonical.json" 2>"$work/stderr"
try 0 "perplexity in bf16" "$there" eval "$tiny" "$@" --samples 8 --reference "$tiny" --json -q --device cuda --arithmetic bf16
cp "$work/stdout" "$work/bf16.json"
holds "names it" "$work/bf16.json" '"arithmetic": "bf16"'
if [ "$(member reference "$work/bf16.json")" = "$(member reference "$work/canonical.json")" ] &&
    [ "$(member value "$work/bf16.json")" != "$(member value "$work/canonical.json")" ]; then
    pass "against the canonical original, with other numbers"
else
    fail "against the canonical original, with other numbers"
fi
try 0 "in batches of few tokens" "$there" eval "$tiny" "$@" --samples 8 --reference "$tiny" --json -q --device cuda \
    --vram 256KiB --arithmetic bf16
cp "$work/stdout" "$work/bf16.json.cpu"
same "the same" "$work/bf16.json"
for verb in "eval $tiny --samples 4" "profile $tiny --samples 32 -o $work/no.h5" "compile $tiny --samples 48 --max-loss 20% -o $work/no.moec" \
    "tune $work/found.moec --samples 48 --reference $tiny --max-loss 30% -o $work/no.moec" \
    "sparsify $work/found.moec --samples 48 --reference $tiny --max-loss 40% -o $work/no.moec"; do
    # shellcheck disable=SC2086 # words
    try 1 "${verb%% *} in bf16 without a device" "$moec" $verb "$@" --arithmetic bf16
    says stderr "tensor cores, but no device is given: give --device cuda" "is refused"
done
for how in exact fast; do
    try 0 "a profile in bf16, $how" "$there" profile "$tiny" "$@" --anyway --samples 32 --bits 2,8 --sensitivity $how -q --device cuda \
        --arithmetic bf16 -o "$work/bf16-$how.h5"
    try 0 "canonically" "$moec" profile "$tiny" "$@" --anyway --samples 32 --bits 2,8 --sensitivity $how -q -o "$work/canonical-$how.h5"
    try 0 "both compared" "$moec" profile --compare "$work/canonical-$how.h5" "$work/bf16-$how.h5" --json
    if awk -v r="$(member pooled "$work/stdout")" 'BEGIN { exit !(r > 0.8 && r <= 1) }'; then pass "they rank experts alike"; else
        fail "they rank experts alike: $(member pooled "$work/stdout")"
    fi
    if cmp -s "$work/canonical-$how.h5" "$work/bf16-$how.h5"; then fail "they differ"; else pass "they differ"; fi
done
try 0 "the profile" "$moec" profile --show "$work/bf16-exact.h5"
says stdout "bf16[^ ]* arithmetic" "says so"
try 1 "bf16 on an older device" env MOEC_STANDIN_CAPABILITY=75 "$there" eval "$tiny" "$@" --samples 4 --device cuda --arithmetic bf16
says stderr "compute capability 7.5, but the arithmetic 'bf16' needs 8.0" "is refused with the reason"

try 0 "a bundle certified in bf16" "$there" compile "$tiny" "$@" --anyway --samples 48 --max-loss 20% --device cuda --arithmetic bf16 \
    -o "$work/bf16.moec" --journal "$work/journal"
says stdout "in bf16 arithmetic, with which moec run --device cuda computes" "says so"
try 0 "the same once more, from its journal" "$there" compile "$tiny" "$@" --anyway --samples 48 --max-loss 20% --device cuda \
    --arithmetic bf16 -o "$work/bf16.moec.cpu" --journal "$work/journal"
same "has the same bytes" "$work/bf16.moec"
try 0 "inspect" "$moec" inspect "$work/bf16.moec"
says stdout "arithmetic  *bf16" "shows it"

# runs_in NAME ARITHMETIC OPTION...: what it computes in, and for what.
runs_in() {
    name=$1 arithmetic=$2
    shift 2
    "$there" run "$work/bf16.moec" -p "ab" -n 6 --stats --ignore-eos "$@" >"$work/stdout" 2>"$work/stderr"
    holds "$name" "$work/stderr" "kernels .* $arithmetic arithmetic"
}
runs_in "it runs in bf16 on a device" bf16 --device cuda
says stderr "as certified" "as certified"
if grep -q "^note" "$work/stderr"; then fail "without a note"; else pass "without a note"; fi
runs_in "canonically on the processor" canonical
says stderr "note: the loss of .* is certified in the arithmetic 'bf16', which needs a GPU" "with a note"
cp "$work/stdout" "$work/words"
older=$(MOEC_STANDIN_CAPABILITY=75 "$there" run "$work/bf16.moec" -p "ab" -n 6 --ignore-eos --device cuda 2>"$work/stderr")
says stderr "note: the loss of .* is certified in the arithmetic 'bf16'" "and on an older device"
if [ "$older" = "$(cat "$work/words")" ]; then pass "in the same words"; else fail "in the same words"; fi
runs_in "and where that is asked for" canonical --arithmetic canonical
if grep -q "^note" "$work/stderr"; then fail "without one"; else pass "without one"; fi

try 0 "eval goes by the certificate" "$there" eval "$work/bf16.moec" "$@" --samples 4 --device cuda
says stdout "^arithmetic bf16$" "on a device"
try 0 "and on the processor" "$there" eval "$work/bf16.moec" "$@" --samples 4
says stdout "^arithmetic canonical .certified: bf16, which takes --device.$" "tells that it cannot"
try 0 "decisions are tuned in it" "$there" tune "$work/bf16.moec" "$@" --anyway --samples 48 --reference "$tiny" --max-loss 30% --slots 2 \
    --with route --device cuda -o "$work/tuned-bf16.moec"
says stdout "in bf16 arithmetic" "as their certificate says"
try 0 "a sparsity plan is proven in it" "$there" sparsify "$work/bf16.moec" "$@" --anyway --samples 48 --reference "$tiny" --max-loss 40% \
    --device cuda -o "$work/sparse-bf16.moec"
says stdout "in bf16 arithmetic" "as its certificate says"
try 0 "or canonically" "$there" sparsify "$work/bf16.moec" "$@" --anyway --samples 48 --reference "$tiny" --max-loss 40% --by-projection up \
    --arithmetic canonical -o "$work/sparse-canonical.moec"
try 0 "by which it runs" "$there" run "$work/sparse-canonical.moec" -p "ab" -n 4 --stats --device cuda
says stderr "kernels .* canonical arithmetic, " "on a device too"
try 0 "but with all neurons" "$there" run "$work/sparse-canonical.moec" -p "ab" -n 4 --stats --device cuda --sparsity none
says stderr "kernels .* bf16 arithmetic as certified" "it is the bundle's own"
cat >"$work/letters.lua" <<'END'
return {
  name = "letters", metric = "exact-match", prompt = "{text}", reference = "{summary}", answer = { tokens = 2 },
}
END
echo '{"text": "ab", "summary": "c"}' >"$work/letters.jsonl"
try 0 "answers in bf16" "$there" eval "$work/bf16.moec" --task "$work/letters.lua" --data "$work/letters.jsonl" --device cuda
says stdout "^arithmetic bf16$" "are told"

done_testing
