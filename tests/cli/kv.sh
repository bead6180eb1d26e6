#!/bin/sh
# Keys and values as F16 and INT8 through the command line: one text on every instruction set, thread count, memory and
# chunk; a smaller KV cache; a loss near none; and what is refused.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
sample=datasets/sample/model

cp -r $sample "$work/model" && cp tests/fixtures/chat/chatml.jinja "$work/model/chat_template.jinja"
try 0 "a bundle" "$moec" compile "$work/model" --policy uniform --bits 4 -q -o "$work/m.moec"
generate() {
    "$moec" run "$work/m.moec" -p "The old miller had three sons and" -n 60 --ctx 128 --ignore-eos --stats json "$@" \
        >"$work/stdout" 2>"$work/stats"
}
check_same() {
    if cmp -s "$work/stdout" "$work/$2"; then pass "$1"; else fail "$1"; fi
}
member() { sed -n 's/.*"'"$1"'": \([-0-9.e]*\).*/\1/p' "$2" | head -n 1; }

generate && whole=$(member kv_bytes "$work/stats")
if grep -q '"kv": "f32"' "$work/stats"; then pass "F32 is the default"; else fail "F32 is the default"; fi
generate --kv f16 && cp "$work/stdout" "$work/f16" && half=$(member kv_bytes "$work/stats")
if grep -q '"kv": "f16"' "$work/stats"; then pass "stats name F16"; else fail "stats name F16"; fi
if [ "$half" -lt $((whole * 3 / 5)) ]; then pass "the KV cache takes half"; else fail "the KV cache takes $half of $whole bytes"; fi
generate --kv int8 && cp "$work/stdout" "$work/int8" && quarter=$(member kv_bytes "$work/stats")
if grep -q '"kv": "int8"' "$work/stats"; then pass "stats name INT8"; else fail "stats name INT8"; fi
if [ "$quarter" -lt $((whole * 3 / 10)) ]; then pass "takes a quarter"; else fail "takes $quarter of $whole bytes"; fi
little=$(little_memory "$work/m.moec")
for kv in f16 int8; do
    for how in "-t 1" "-t 3" "--cpu scalar" "--cpu avx2" "--memory $little" "--draft lookup" "--arithmetic canonical"; do
        # shellcheck disable=SC2086 # words
        generate --kv $kv $how
        check_same "$kv: the same with $how" $kv
    done
done
try 0 "the smaller program" "$(dirname "$moec")/moec-run" "$work/m.moec" -p "The old miller had three sons and" -n 60 --ctx 128 \
    --ignore-eos --kv f16
check_same "has the same words" f16
try 0 "in words" "$moec" run "$work/m.moec" -p "Once" -n 8 --kv f16 --stats
says stderr 'KV cache .*F16' "stats name it"
try 0 "INT8 in words" "$moec" run "$work/m.moec" -p "Once" -n 8 --kv int8 --stats
says stderr 'KV cache .*INT8' "stats name it"
echo "Once upon" >"$work/says"
try 0 "chat" "$moec" chat "$work/m.moec" --kv f16 -n 8 <"$work/says"

# check_loss KV MOST WORDS: what eval says of it beside F32.
check_loss() {
    try 0 "eval with $1" "$moec" eval "$work/m.moec" --data datasets/sample/test.txt --reference "$work/m.moec" --samples 24 \
        --kv "$1" --json -q
    says stdout "\"kv\": \"$1\"" "names it"
    if awk -v loss="$(member loss "$work/stdout")" -v kl="$(member mean_kl "$work/stdout")" -v most="$2" \
        'BEGIN { exit !(loss != 0 && loss < most && loss > -most && kl > 0) }'; then
        pass "loses $3, and not nothing"
    else
        fail "loses $3, and not nothing"
    fi
}
check_loss f16 0.001 "nearly nothing"
check_loss int8 0.01 "little"
try 0 "bench" "$moec" bench "$work/m.moec" --memory 50% --samples 1 --prompt-tokens 8 --tokens 8 --kv f16 --json -q
says stdout '"kv": "f16"' "names it"

try 2 "another way" "$moec" run "$work/m.moec" -p "Once" --kv int4
says stderr 'kv.*f32' "is refused with those there are"
"$moec" compile datasets/switch-sample/model --policy uniform --bits 4 -q -o "$work/s.moec" >"$work/stdout"
try 1 "a model with an encoder" "$moec" run "$work/s.moec" -p "Anna: hi" --kv f16
says stderr 'encoder.*F32' "is refused with the reason"
try 1 "a device" "$moec" run "$work/m.moec" -p "Once" --kv f16 --device cuda
says stderr "cuda.*F32" "is refused with the reason"
try 1 "INT8 on a device" "$moec" run "$work/m.moec" -p "Once" --kv int8 --device cuda
says stderr "cuda.*F32" "is refused with the reason"
try 1 "INT8 with an encoder" "$moec" run "$work/s.moec" -p "Anna: hi" --kv int8
says stderr 'encoder.*F32' "is refused with the reason"
try 1 "eval on a device" "$moec" eval "$work/m.moec" --data datasets/sample/test.txt --kv f16 --device cuda
says stderr "cuda.*F32" "is refused with the reason"

done_testing
