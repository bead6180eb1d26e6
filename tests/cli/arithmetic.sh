#!/bin/sh
# The int8 arithmetic through the command line: one text on every instruction set, thread count and memory, in drafts and
# with fewer neurons; a loss near the canonical one's; both kinds of models; bundles that are certified in it and run in
# it by default; and what is refused.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
fewer_layers 4
text=datasets/sample/test.txt

try 0 "a bundle of 4 bits" "$moec" compile "$sample" --policy uniform --bits 4 --group 32 -q -o "$work/m.moec"
"$moec" compile "$sample" --policy uniform --bits 2 --scheme asymmetric --group 64 --dense-bits 8 -q -o "$work/m2.moec" >"$work/stdout" 2>"$work/stderr"

"$moec" compile "$sample" --policy uniform --bits 2 --quantizer trellis --dense-bits 4 -q -o "$work/mt.moec" >"$work/stdout" 2>"$work/stderr"

# ---- run ----

generate() {
    "$moec" run "$model" -p "The old miller had three sons and" -n 40 --ctx 128 --ignore-eos --stats json "$@" \
        >"$work/stdout" 2>"$work/stats"
}
check_same() {
    if cmp -s "$work/stdout" "$work/int8"; then pass "$1"; else fail "$1"; fi
}
for bits in 4 2 trellis; do
    model=$work/m2.moec
    [ $bits != 4 ] || model=$work/m.moec
    [ $bits != trellis ] || model=$work/mt.moec
    generate --arithmetic int8 && cp "$work/stdout" "$work/int8"
    little=$(little_memory "$model")
    if grep -q '"arithmetic": "int8"' "$work/stats"; then pass "$bits bits: stats name it"; else fail "$bits bits: stats name it"; fi
    for how in "-t 1" "-t 3" "--cpu scalar" "--cpu avx2" "--memory $little" "--memory $little --predict gate" "--draft lookup"; do
        # shellcheck disable=SC2086 # words
        generate --arithmetic int8 $how
        check_same "$bits bits: the same with $how"
    done
done
try 0 "the smaller program" "$(dirname "$moec")/moec-run" "$work/mt.moec" -p "The old miller had three sons and" -n 40 --ctx 128 \
    --ignore-eos --arithmetic int8
check_same "has the same words"
generate --arithmetic canonical && cp "$work/stdout" "$work/canonical"
generate && cp "$work/stdout" "$work/int8"
cp "$work/canonical" "$work/stdout"
check_same "canonical is the default"
try 0 "in words" "$moec" run "$work/m.moec" -p "Once" -n 8 --arithmetic int8 --stats
says stderr 'kernels .* int8 arithmetic' "stats name it"
try 2 "another" "$moec" run "$work/m.moec" -p "Once" --arithmetic int4
says stderr "canonical|int8|bf16|arithmetic" "is refused"
try 1 "that of tensor cores without a GPU" "$moec" run "$work/m.moec" -p "Once" --arithmetic bf16
says stderr "no device is given: give --device cuda, or choose --arithmetic canonical or int8" "is refused with the reason"
try 1 "and by a bench" "$moec" bench "$work/m.moec" --memory 50% --arithmetic bf16
says stderr "^moec bench: arithmetic 'bf16' runs only on a GPU's tensor cores" "before any row"
try 2 "and by a bench of the processor" "$moec" bench --kernels --arithmetic bf16
says stderr "--kernels times the processor, which does not have arithmetic 'bf16'" "too"

# ---- eval, bench, an encoder ----

samples=24
# evaluate FILE MODEL REFERENCE OPTION...: with a loss against the original.
evaluate() {
    out=$1 of=$2 original=$3
    shift 3
    "$moec" eval "$of" --reference "$original" --samples $samples --json -q "$@" >"$out" 2>"$work/stderr"
}
member() { sed -n 's/.*"'"$1"'": \([-0-9.e]*\).*/\1/p' "$2" | head -n 1; }
evaluate "$work/canonical.json" "$work/m.moec" "$sample" --data $text
evaluate "$work/int8.json" "$work/m.moec" "$sample" --data $text --arithmetic int8
if [ "$(member reference "$work/canonical.json")" = "$(member reference "$work/int8.json")" ]; then
    pass "the reference stays canonical"
else
    fail "the reference stays canonical"
fi
if awk -v a="$(member loss "$work/canonical.json")" -v b="$(member loss "$work/int8.json")" \
    'BEGIN { d = b - a; exit !(a > 0 && d != 0 && d < 0.001 && d > -0.001) }'; then
    pass "the loss changes by less than a tenth of a percent"
else
    fail "the loss changes by less than a tenth of a percent ($(member loss "$work/canonical.json"), $(member loss "$work/int8.json"))"
fi
if grep -q '"arithmetic": "int8"' "$work/int8.json" && ! grep -q arithmetic "$work/canonical.json"; then
    pass "eval names it"
else
    fail "eval names it"
fi
samples=2 # scalar code takes long
evaluate "$work/few.json" "$work/m.moec" "$sample" --data $text --seq-len 32 --arithmetic int8
evaluate "$work/again.json" "$work/m.moec" "$sample" --data $text --seq-len 32 --arithmetic int8 --threads 1 --cpu scalar
same "$work/few.json" "$work/again.json" "one thread and scalar code give the same"
try 0 "a bench" "$moec" bench "$work/m.moec" --samples 2 --data $text --memory 50% --modes cache --arithmetic int8 --json -q
says stdout '"arithmetic": "int8"' "names it"
try 0 "an encoder and a decoder" "$moec" compile datasets/switch-sample/model --policy uniform --bits 4 -q -o "$work/s.moec"
ask="Anna: did you see the bus? Ben: no, I am late and it is raining."
try 0 "run" "$moec" run "$work/s.moec" -p "$ask" -n 12 --arithmetic int8
cp "$work/stdout" "$work/first"
try 0 "run again" "$moec" run "$work/s.moec" -p "$ask" -n 12 --arithmetic int8 -t 1 --cpu scalar
same "$work/first" "$work/stdout" "has the same words"
try 0 "answers" "$moec" eval "$work/s.moec" --data datasets/switch-sample/test.jsonl --task dialogues --samples 4 --arithmetic int8 -q --json
says stdout '"arithmetic": "int8"' "are measured"

# ---- certified ----

few="--data $text --samples 64 --seq-len 32 -q --force"
# certified BUNDLE OPTION...: the weights of m.moec with a certificate, and what inspect says of it.
# shellcheck disable=SC2317 # called by try
certified() {
    out=$1
    shift
    # shellcheck disable=SC2086 # words
    "$moec" compile "$sample" --policy uniform --bits 4 --group 32 $few -o "$out" "$@" >"$work/stdout" 2>"$work/stderr" &&
        "$moec" inspect "$out" --json >"$out.json" 2>"$work/stderr"
}
try 0 "a canonical certificate" certified "$work/c.moec" --journal "$work/journal"
cp "$work/c.moec.json" "$work/stdout" && says stdout '"arithmetic": "canonical-f32"' "says so"
try 0 "one in int8, with the same journal" certified "$work/i.moec" --journal "$work/journal" --arithmetic int8
cp "$work/i.moec.json" "$work/stdout" && says stdout '"arithmetic": "int8-3"' "says so"
cp "$work/i.moec" "$work/first"
try 0 "without a journal" certified "$work/i.moec" --arithmetic int8
same "$work/first" "$work/i.moec" "nothing of the canonical one was taken for it"
if [ "$(member reference "$work/c.moec.json")" = "$(member reference "$work/i.moec.json")" ] &&
    [ "$(member compiled "$work/c.moec.json")" != "$(member compiled "$work/i.moec.json")" ]; then
    pass "both are against the same original, and differ"
else
    fail "both are against the same original, and differ"
fi

# runs_in BUNDLE ARITHMETIC CERTIFIED WORDS OPTION...: what run computes in, by its stats and its words.
runs_in() {
    model=$1 what="$(basename "$1") in $2, certified in $3$([ $# -gt 4 ] && shift 4 && echo ", with $*")"
    arithmetic=$2 of_certificate=$3 words=$4
    shift 4
    generate "$@"
    if grep -q "\"arithmetic\": \"$arithmetic\"" "$work/stats" &&
        grep -q "\"certified_arithmetic\": \"$of_certificate\"" "$work/stats" && cmp -s "$work/stdout" "$words"; then
        pass "$what"
    else
        fail "$what"
    fi
}
model=$work/m.moec
generate --arithmetic canonical && cp "$work/stdout" "$work/canonical"
generate --arithmetic int8 && cp "$work/stdout" "$work/int8"
runs_in "$work/i.moec" int8 int8 "$work/int8"
runs_in "$work/i.moec" canonical int8 "$work/canonical" --arithmetic canonical
runs_in "$work/c.moec" canonical canonical "$work/canonical"
runs_in "$work/c.moec" int8 canonical "$work/int8" --arithmetic int8
try 0 "its stats" "$moec" run "$work/i.moec" -p "Once" -n 8 --stats
says stderr 'kernels .*, int8 arithmetic as certified, ' "say it in words"
try 0 "and against the certificate" "$moec" run "$work/i.moec" -p "Once" -n 8 --stats --arithmetic canonical
says stderr 'kernels .*, canonical arithmetic \(certified: int8\), ' "too"
samples=4
evaluate "$work/few.json" "$work/m.moec" "$sample" --data $text --seq-len 32 --arithmetic int8
evaluate "$work/again.json" "$work/i.moec" "$sample" --data $text --seq-len 32
sed -i '/"model"/d' "$work/few.json" "$work/again.json"
same "$work/few.json" "$work/again.json" "eval goes by the certificate"
try 0 "so does bench" "$moec" bench "$work/i.moec" --samples 2 --data $text --memory 50% --modes cache --json -q
says stdout '"arithmetic": "int8"' "and says so"

# settings FROM TO OPTION...: those of moec tune.
# shellcheck disable=SC2317 # called by try
settings() {
    from=$1 to=$2
    shift 2
    # shellcheck disable=SC2086 # words
    "$moec" tune "$from" --reference "$sample" $few --max-loss 60% --with route --slots 6 -o "$to" "$@"
}
try 0 "settings of the bundle in int8" settings "$work/i.moec" "$work/ti.moec" --json
says stdout '"arithmetic": "int8-3"' "are certified in it"
try 0 "settings in int8 of the other one" settings "$work/c.moec" "$work/tc.moec" --arithmetic int8
says stdout 'in int8 arithmetic' "say so"
model=$work/tc.moec
generate --arithmetic int8 && cp "$work/stdout" "$work/tuned"
runs_in "$work/tc.moec" int8 int8 "$work/tuned"
runs_in "$work/tc.moec" canonical canonical "$work/canonical" --decide none
try 2 "nothing to measure" "$moec" compile "$sample" --policy uniform --bits 4 --arithmetic int8 -q -o "$work/n.moec"
says stderr "arithmetic has no effect when nothing is measured" "needs no arithmetic"

done_testing
