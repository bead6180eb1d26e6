#!/bin/sh
# Conversations: the template in the bundle, what is kept between turns, what a user types, and Ctrl-C.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=$work/model
bundle=$work/model.moec
mkdir "$model"
cp datasets/sample/model/* "$model"
cp tests/fixtures/chat/chatml.jinja "$model/chat_template.jinja"
try 0 "a model with a chat template is compiled" "$moec" compile "$model" --policy uniform --bits 4 -q -o "$bundle"
try 0 "its bundle is intact" "$moec" verify "$bundle"

# compiled TEMPLATE: a bundle with this template, its path in $other.
compiled() {
    printf '%s' "$1" >"$model/chat_template.jinja"
    other=$work/other.moec
    "$moec" compile "$model" --policy uniform --bits 4 -q --force -o "$other" >"$work/log" 2>&1 || cat "$work/log"
}

# ---- rendering ----

cat >"$work/messages.json" <<'EOF'
{"messages": [{"role": "system", "content": " Be kind "}, {"role": "user", "content": "Hello"}]}
EOF
printf '<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n' >"$work/expected"
try 0 "chat --render" "$moec" chat "$bundle" --messages "$work/messages.json" --render
if cmp -s "$work/stdout" "$work/expected"; then
    pass "it prints what Jinja would give"
else
    fail "it prints what Jinja would give"
fi
try 0 "chat --render of a list" sh -c "echo '[]' >'$work/empty.json'; '$moec' chat '$bundle' --system 'Be kind' --render"
echo '{"messages": 1}' >"$work/wrong.json"
try 1 "messages that are no list are refused" "$moec" chat "$bundle" --messages "$work/wrong.json" --render
says stderr "has no messages" "and it is said what is expected"

# ---- export ----

# exported BUNDLE: a folder made of it and a bundle made of that say the same as the bundle.
exported() {
    rm -rf "$work/exported"
    try 0 "export" "$moec" export "$1" -q -o "$work/exported"
    "$moec" chat "$1" --messages "$work/messages.json" --render >"$work/before" 2>&1
    "$moec" compile "$work/exported" --policy uniform --bits 4 -q --force -o "$work/again.moec" >"$work/log" 2>&1
    try 0 "chat with what was exported" "$moec" chat "$work/again.moec" --messages "$work/messages.json" --render
    same "$work/stdout" "$work/before" "the exported folder has the template"
}
exported "$bundle"
same "$work/exported/chat_template.jinja" "$model/chat_template.jinja" "as the file that it was"
rm "$model/chat_template.jinja"
printf '{"bos_token": "<|endoftext|>", "chat_template": [{"name": "default", "template": "[{{ bos_token }}]"},
    {"name": "tool_use", "template": "tools"}]}' >"$model/tokenizer_config.json"
try 0 "a model with two templates" "$moec" compile "$model" --policy uniform --bits 4 -q -o "$work/two.moec"
exported "$work/two.moec"
says exported/tokenizer_config.json '"tool_use"' "and the one for tools"
cp datasets/sample/model/tokenizer_config.json "$model" 2>/dev/null || rm "$model/tokenizer_config.json"

# ---- turns ----

printf 'The old miller\n' | "$moec" chat "$bundle" -n 12 >"$work/first" 2>/dev/null
try 0 "run --chat" "$moec" run "$bundle" --chat -p "The old miller" -n 12
if [ -s "$work/first" ] && cmp -s "$work/stdout" "$work/first"; then
    pass "answers as the first turn of a conversation"
else
    fail "answers as the first turn of a conversation"
fi
try 1 "too little memory" sh -c "echo Hello | '$moec' chat '$bundle' -n 4 --memory 2MiB"
says stderr '^this memory is enough:$' "says how it would work"
advised=$(tail -n 1 "$work/stderr")
try 0 "and so it does" sh -c "echo Hello | $advised"
try 2 "--system needs --chat" "$moec" run "$bundle" --system x -p y

printf 'The old miller\nAnd then?\n' >"$work/lines"
try 0 "two turns" sh -c "'$moec' chat '$bundle' -n 12 --stats <'$work/lines'"
first=$(sed -n 's/^turn 1: \([0-9]*\) tokens, 0 kept, \1 read, 12 generated$/\1/p' "$work/stderr")
kept=$(sed -n 's/^turn 2: [0-9]* tokens, \([0-9]*\) kept, .*/\1/p' "$work/stderr")
if [ -n "$first" ] && [ "$kept" -gt "$first" ]; then
    pass "the second turn keeps the first with its answer"
else
    fail "the second turn keeps the first with its answer (${kept:-nothing} kept, $first before)"
fi
# What is kept changes nothing: the same conversation read at once gives the same answer.
answer=$(sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' "$work/first" | awk 'NR > 1 { printf "\\n" } { printf "%s", $0 }')
printf '[{"role":"user","content":"The old miller"},{"role":"assistant","content":"%s"}]' "$answer" >"$work/turn.json"
printf 'And then?\n' | "$moec" chat "$bundle" -n 12 --messages "$work/turn.json" >"$work/whole" 2>"$work/log"
cat "$work/first" "$work/whole" >"$work/both"
if cmp -s "$work/stdout" "$work/both"; then
    pass "and answers as if it had read everything at once"
else
    fail "and answers as if it had read everything at once"
fi
budget=$(small_budget "$moec" run "$bundle" -p Once -n 1000 --ctx 1024)
if takes_memory; then
    skip "and within little memory" "a sanitizer takes memory of its own"
else
    try 0 "two turns within little memory" sh -c "'$moec' chat '$bundle' -n 12 --memory $budget <'$work/lines'"
    if cmp -s "$work/stdout" "$work/both"; then pass "answer the same"; else fail "answer the same"; fi
    for how in "--evict hobbit:0:1:0:0 --predict none" "--evict fate:2 --preload-count 1" "--mode edgemoe --io direct"; do
        try 0 "two turns with $how" sh -c "'$moec' chat '$bundle' -n 12 --memory $budget $how <'$work/lines'"
        if cmp -s "$work/stdout" "$work/both"; then pass "answer the same"; else fail "answer the same"; fi
    done
fi
try 2 "a mode that evicts nothing" "$moec" chat "$bundle" --mode sti --evict lru
says stderr "mode 'sti' evicts nothing" "is a contradiction in chat too"

printf '/system Be brief\nHello\n/reset\nHello\n//x\n/what\n/exit\nnever\n' >"$work/lines"
try 0 "commands" sh -c "'$moec' chat '$bundle' -n 4 --stats <'$work/lines'"
says stderr 'begins anew, with a system message' "/system sets a message"
says stderr '^note: the conversation begins anew$' "/reset begins anew"
says stderr '^turn 3: ' "two slashes begin a message with one"
says stderr '/reset begins anew, /system TEXT' "an unknown command lists them"
if grep -q '^turn 4' "$work/stderr"; then fail "/exit ends"; else pass "/exit ends"; fi
first=$(sed -n 's/^turn 1: \([0-9]*\) tokens.*/\1/p' "$work/stderr")
if grep -q "^turn 2: $first tokens" "$work/stderr"; then
    pass "the system message stays after /reset"
else
    fail "the system message stays after /reset"
fi
awk 'BEGIN { for (i = 0; i < 8; i++) print "Tell me of the old miller and his mill" }' >"$work/lines"
try 0 "a conversation longer than the context" sh -c "'$moec' chat '$bundle' -n 16 --ctx 192 <'$work/lines'"
says stderr 'oldest turn is forgotten' "forgets its oldest turns"
awk 'BEGIN { for (i = 0; i < 400; i++) printf "word "; print "" }' >"$work/lines"
try 0 "a message longer than the context" sh -c "'$moec' chat '$bundle' -n 16 --ctx 192 <'$work/lines'"
says stderr 'raise --ctx, or send less' "is refused, and the program goes on"

# ---- what a user types is text ----

# tokens_read: tokens of the first turn of the bundle $other, for the message <|endoftext|>.
tokens_read() {
    echo '<|endoftext|>' | "$moec" chat "$other" -n 1 --stats 2>&1 >/dev/null | sed -n 's/^turn 1: \([0-9]*\) tokens.*/\1/p'
}
compiled 'a<|endoftext|>'
own=$(tokens_read)
compiled 'a{{ messages[0].content }}'
typed=$(tokens_read)
if [ "$own" = 2 ] && [ "$typed" -gt 4 ]; then
    pass "a special token is one token in a template and text in a message"
else
    fail "a special token is one token in a template ($own) and text in a message ($typed)"
fi

# ---- templates that cannot be used ----

compiled 'a
{% include "x" %}'
try 1 "a template with more than moec knows is refused" "$moec" chat "$other" --render
says stderr "line 2, column 4: the statement 'include' is not supported" "with its place"
try 0 "and the bundle runs without it" "$moec" run "$other" -p Once -n 2
compiled "{{ raise_exception('only questions') }}"
try 0 "a message that the template refuses" sh -c "echo Hello | '$moec' chat '$other'"
says stderr 'the template raised an exception: only questions' "is refused in its words"
rm "$model/chat_template.jinja"
try 0 "a model without a template is compiled" "$moec" compile "$model" --policy uniform --bits 4 -q --force -o "$bundle.plain"
try 1 "chat without a template is refused" "$moec" chat "$bundle.plain"
says stderr 'has no chat template' "and says why"
if [ -x "$build/moec-run" ]; then
    try 1 "moec-run --chat too" "$build/moec-run" "$bundle.plain" --chat -p x
fi
# The list of templates in tokenizer_config.json, and the token that it names.
cat >"$model/tokenizer_config.json" <<'EOF'
{"eos_token": "<|endoftext|>", "chat_template": [{"name": "default", "template": "D{{ eos_token }}{{ messages|length }}"},
 {"name": "tool_use", "template": "T{{ tools[0].name }}"}]}
EOF
"$moec" compile "$model" --policy uniform --bits 4 -q --force -o "$other" >/dev/null
try 0 "a template in tokenizer_config.json" "$moec" chat "$other" --render
says stdout '^D<\|endoftext\|>0$' "is used, with the tokens that the folder names"
echo '{"messages": [], "tools": [{"name": "f"}]}' >"$work/tools.json"
try 0 "a conversation with tools" "$moec" chat "$other" --messages "$work/tools.json" --render
says stdout '^Tf$' "has the template for tools"

# ---- Ctrl-C ----

mkfifo "$work/fifo"
"$moec" chat "$bundle" -n 900 --ctx 1024 --cpu scalar -t 1 --temp 5 --seed 4 --stats <"$work/fifo" >"$work/answer" 2>"$work/notes" &
talker=$!
exec 3>"$work/fifo"
echo hi >&3
i=0
while [ ! -s "$work/answer" ] && [ $i -lt 200 ]; do
    sleep 0.05
    i=$((i + 1))
done
kill -INT $talker
echo '/exit' >&3
exec 3>&-
wait $talker
status=$?
if [ $status -eq 0 ] && grep -q '^note: stopped' "$work/notes" && grep -q '^turn 1: ' "$work/notes"; then
    pass "Ctrl-C stops an answer and not the program"
else
    cat "$work/notes"
    fail "Ctrl-C stops an answer and not the program (status $status)"
fi
done_testing
