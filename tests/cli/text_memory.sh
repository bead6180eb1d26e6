#!/bin/sh
# Text counts towards --work-memory while it is read and tokenised: what would pass it is refused before it is there.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
sample=datasets/sample/model

# One line of 64 MiB, and a file of a few kilobytes that unpacks to half a GiB.
head -c 67108864 /dev/zero | tr '\0' a >"$work/line.txt"
head -c 536870912 /dev/zero | tr '\0' a | zstd -q -1 -o "$work/bomb.txt.zst"
try 1 "a line as large as the work memory" "$moec" eval $sample --data "$work/line.txt" --work-memory 64MiB --quiet
says stderr "the text of 'line.txt' and its tokens take more than the 64.0 MiB that text may take; raise --work-memory" "says what it is"
try 1 "a larger one" "$moec" eval $sample --data "$work/line.txt" --work-memory 100MiB --quiet
says stderr "row at line 1 of 'line.txt': tokenising its 64.0 MiB of text takes more than the 36.0 MiB of work memory that are left; raise --work-memory" "says what it takes"
# Words are tokenised in pieces: a line of 24 MiB and its tokens take little more than themselves.
tr '\n' ' ' <datasets/sample/test.txt >"$work/words"
for _ in $(seq 60); do cat "$work/words"; done | head -c 25165824 >"$work/prose.txt"
try 0 "a long line of words" "$moec" eval $sample --data "$work/prose.txt" --samples 2 --work-memory "$(mebibytes 160)" --quiet
try 1 "the same of a profile" "$moec" profile $sample --data "$work/line.txt" --work-memory 48MiB -o "$work/none.h5" --quiet
says stderr "'.*line.txt' has 67108864 bytes, .* text may take 48.0 MiB: raise --work-memory" "says what it has"
try 1 "a small file that unpacks to a large one" "$moec" eval $sample --data "$work/bomb.txt.zst" --work-memory 64MiB --quiet
says stderr "more than the limit of .* bytes when decompressed; text may take 64.0 MiB: raise --work-memory" "says what it holds"
# A bench has no --work-memory: half a GiB that stands twice, as read and as the task's prompt, is too much for it.
echo 'return {name = "say", rows = {format = "text"}, prompt = "say {text}"}' >"$work/say.lua"
"$moec" compile $sample --policy uniform --bits 4 -o "$work/m.moec" --quiet >"$work/stdout" 2>"$work/stderr"
try 1 "the same of a bench" "$moec" bench "$work/m.moec" --data "$work/bomb.txt.zst" --task "$work/say.lua" --samples 3 --quiet
says stderr "reading '.*bomb.txt.zst' needs more than 1024 MiB, .* Give less text: the bench uses only 3 samples of 64 . 32 tokens" "says what works there"
if grep -q work-memory "$work/stderr"; then fail "names no option of others"; else pass "names no option of others"; fi
head -c 4096 $sample/model.safetensors >"$work/random.txt.zst"
try 1 "a .zst that is none" "$moec" eval $sample --data "$work/random.txt.zst" --quiet
says stderr "random.txt.zst' is not zstd data, although its name ends in .zst" "says so"
cat >"$work/copy.lua" <<'END'
return { name = "copy", metric = "rouge-l", rows = { format = "text", split = "line" }, prompt = "{text}", reference = "x",
  answer = { tokens = 4 } }
END
head -c 16777216 "$work/line.txt" >"$work/row.txt"
try 1 "a row that is scored" "$moec" eval $sample --task "$work/copy.lua" --data "$work/row.txt" --work-memory 64MiB --quiet
says stderr "tokenising 16.0 MiB of text takes more than the 48.0 MiB of work memory that are left; raise --work-memory" "says what it takes"
try 0 "text that fits" "$moec" eval $sample --data datasets/sample/test.txt --samples 2 --work-memory "$(mebibytes 64)" --quiet

done_testing
