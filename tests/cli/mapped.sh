#!/bin/sh
# A bundle that is mapped from the page cache: the same words as by any other way of reading, within the budget, and
# what is said where the file is cut off while it is mapped.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

# Experts of these sizes stand at multiples of pages.
model=$work/model
bundle=$work/model.moec
try 0 "a random checkpoint" "$build/tools/make_random_checkpoint" --preset small --layers 2 --hidden 512 --experts 4 \
    --ff 640 --vocab 8192 --tokenizer datasets/sample/model/tokenizer.json "$model"
cp tests/fixtures/chat/chatml.jinja "$model/chat_template.jinja"
try 0 "a bundle of it" "$moec" compile "$model" --policy uniform --bits 4 -q -o "$bundle"

run() {
    "$build/moec-run" "$bundle" -p "The old miller" -n 30 --ctx 128 --ignore-eos --threads 2 "$@"
}
try 0 "read through the page cache" run --io cached --stats
says stderr '^ +cached through' "and says so"
cp "$work/stdout" "$work/text"
if run --io mapped >"$work/stdout" 2>"$work/stderr"; then
    same "$work/stdout" "$work/text" "the same words mapped"
else
    says stderr 'cannot be mapped|cannot wait for mapped pages|pages of this machine' "a machine that cannot map says why"
    try 0 "and reads by itself" run --stats
    same "$work/stdout" "$work/text" "the same words"
    done_testing
fi
cat "$bundle" >"$work/copy.moec" # which brings it there
try 0 "mapped where the bundle is in the page cache" run --stats
same "$work/stdout" "$work/text" "the same words"
says stderr '^ +mapped \(auto: in the page cache\) through' "figures say that it was mapped"
memory=$(small_budget run --mode cache)
for mode in cache sti; do
    try 0 "$mode in little memory, mapped" run --mode $mode --io mapped --memory "$memory" --stats json
    same "$work/stdout" "$work/text" "$mode has the same words there"
    within_budget "$mode keeps within its budget, mapped" "$memory"
done
try 0 "a slower device" run --emulate-storage 2GB/s,50us --stats
same "$work/stdout" "$work/text" "has the same words"
says stderr '^ +emulated 2000 MB/s, 50 us.* over cached' "and is never mapped"
try 2 "a slower device that is to be mapped" run --emulate-storage 2GB/s,50us --io mapped
says stderr 'emulated storage cannot map' "is refused"
try 0 "a bundle of small experts" "$moec" compile datasets/sample/model --policy uniform --bits 4 -q -o "$work/small.moec"
try 1 "mapped" "$moec" run "$work/small.moec" -p Once -n 4 --io mapped
says stderr 'aligned to 64 bytes, mapping needs 4096' "is refused"
try 0 "by itself" "$moec" run "$work/small.moec" -p Once -n 4 --stats
says stderr '^ +(direct|cached)' "it is read"

# ---- dense weights too ----

try 0 "a bundle is unpacked" "$moec" strip "$bundle" --unpack -o "$work/unpacked.moec"
says stdout 'more than the' "and is larger"
try 0 "it is intact" "$moec" verify "$work/unpacked.moec"
for io in auto mapped cached; do
    try 0 "it runs, $io" "$build/moec-run" "$work/unpacked.moec" -p "The old miller" -n 30 --ctx 128 --ignore-eos --io $io
    same "$work/stdout" "$work/text" "with the same words"
done
try 2 "strip with nothing to do" "$moec" strip "$bundle" -o "$work/none.moec"
says stderr 'or give --unpack' "says what there is"

# ---- cut off while it is mapped ----

# A conversation waits for its second message.
mkfifo "$work/in" "$work/out"
cat "$bundle" >"$work/copy.moec"
"$moec" chat "$bundle" -n 20 --stats <"$work/in" >"$work/out" 2>"$work/stderr" &
chat=$!
trap '' PIPE
exec 3>"$work/in" 4<"$work/out"
echo "Hello" >&3
i=0
while ! grep -q '^turn 1: ' "$work/stderr" && [ $i -lt 200 ]; do
    sleep 0.05
    i=$((i + 1))
done
says stderr '^turn 1: ' "a conversation begins"
: >"$bundle"
echo "And then?" >&3
exec 3>&-
cat <&4 >/dev/null
wait "$chat"
status=$?
if [ $status -eq 1 ]; then pass "it ends when its bundle is cut off"; else fail "it ends when its bundle is cut off (status $status)"; fi
says stderr "^moec chat: '.*model.moec' was changed or its device failed while it was in use$" "and says why"
exec 4<&-
if [ "$(wc -l <"$work/stderr")" -eq 3 ]; then pass "in one line"; else fail "in one line"; fi

# A text that is being written.
cp "$work/copy.moec" "$bundle"
"$build/moec-run" "$bundle" -p "The old miller" -n 480 --ctx 512 --ignore-eos --io mapped --cpu scalar --threads 1 \
    >"$work/out" 2>"$work/stderr" &
text=$!
exec 4<"$work/out"
dd bs=1 count=100 <&4 >/dev/null 2>&1
: >"$bundle"
cat <&4 >/dev/null
wait "$text"
status=$?
exec 4<&-
if [ $status -eq 1 ]; then pass "so does a text"; else fail "so does a text (status $status)"; fi
says stderr "^moec-run: '.*model.moec' was changed or its device failed while it was in use$" "and says why"

done_testing
