#!/bin/sh
# Folders of weights as people have them: a fine-tune's overlay, the Hub's cache, and what a clone left out.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

sample=datasets/sample/model
data=datasets/sample/calibration.txt
index=model.safetensors.index.json
weights=$(wc -c <$sample/model.safetensors)

# perplexity_of FOLDER: evaluates it and leaves its figures in stdout.
perplexity_of() {
    "$moec" eval "$1" --data $data --samples 4 --seq-len 64 --json --quiet 2>"$work/stderr" | grep '"value"'
}
expected=$(perplexity_of $sample)
mkdir "$work/overlay"
cp $sample/*.json "$work/overlay"

# Two shards hold every tensor; the weights of the first are nonsense, with finite bytes.
cp $sample/model.safetensors "$work/overlay/base.safetensors"
chmod u+w "$work/overlay/base.safetensors"
head -c $((weights / 2)) $sample/model.safetensors | tail -c $((weights / 4)) |
    dd of="$work/overlay/base.safetensors" bs=65536 seek=$((weights / 2)) oflag=seek_bytes conv=notrunc 2>/dev/null
cp $sample/model.safetensors "$work/overlay/tuned.safetensors"
tensors=$(head -c 65536 $sample/model.safetensors | grep -ao '"[a-z_.0-9]*":{"dtype' | sed 's/:{"dtype//')
# name_shard FILE: an index that has every tensor in this file.
name_shard() {
    for tensor in $tensors; do
        printf '%s\n' "$tensor: \"$1\""
    done | sed '$!s/$/,/; 1s/^/{"weight_map": {/; $s/$/}}/' >"$work/overlay/$index"
}
name_shard tuned.safetensors
if [ -n "$expected" ] && [ "$(perplexity_of "$work/overlay")" = "$expected" ]; then
    pass "of two copies the one is read that the index names"
else
    fail "of two copies the one is read that the index names"
fi
name_shard base.safetensors
if [ "$(perplexity_of "$work/overlay")" = "$expected" ]; then
    fail "another index reads other weights"
else
    pass "another index reads other weights"
fi
rm "$work/overlay/$index"
mv "$work/overlay/base.safetensors" "$work/overlay/model-00001-of-00002.safetensors"
mv "$work/overlay/tuned.safetensors" "$work/overlay/model-00002-of-00002.safetensors"
try 1 "without an index" "$moec" doctor "$work/overlay"
says stderr "two shards have tensor '[^']*': '.*/model-00001-of-00002.safetensors' and '.*/model-00002-of-00002.safetensors'" \
    "two copies are refused by the names of both files"
mv "$work/overlay/model-00002-of-00002.safetensors" "$work/overlay/model.safetensors"
name_shard model-00001-of-00002.safetensors
try 0 "a file beside an index" "$moec" compile "$work/overlay" --policy uniform --bits 4 -o "$work/overlay.moec"
says stderr "^moec compile: note: '.*/overlay' has the file 'model.safetensors', but '$index' does not name this file: moec reads" \
    "compile says which is read"
try 0 "doctor sees it too" "$moec" doctor "$work/overlay"
says stderr "^moec doctor: note: .*does not name this file" "and says so"
try 0 "a quiet eval" "$moec" eval "$work/overlay" --data $data --samples 1 --seq-len 64 --quiet
if grep -q note "$work/stderr"; then
    fail "says nothing"
else
    pass "says nothing"
fi

# ---- other folders ----

root=$work/models--some--sample
mkdir -p "$root/refs" "$root/blobs" "$root/snapshots/a1b2"
for file in "$sample"/*; do
    cp "$file" "$root/blobs"
    ln -s "../../blobs/$(basename "$file")" "$root/snapshots/a1b2"
done
chmod u+w "$root/blobs/config.json"
sed -i 's/"vocab_size"/"time_step_limit": [0.0, Infinity],\n  "ignored": NaN,\n  "vocab_size"/' "$root/blobs/config.json"
try 0 "the root of a model in the Hub's cache, whose config.json has Infinity and NaN" "$moec" eval "$root" --data $data --samples 1 --seq-len 64
says stderr "^moec eval: note: '.*/models--some--sample' is a model in the Hub's cache: moec reads 'snapshots/a1b2' in it" "eval says which snapshot"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n' >"$root/blobs/model.safetensors"
try 1 "a pointer of git-lfs" "$moec" compile "$root" --policy uniform --bits 4 -o "$work/none.moec"
says stderr "model.safetensors' is a Git LFS pointer, not the file itself: run 'git lfs pull'" "the message says what to run"
rm "$root/blobs/model.safetensors"
try 1 "a link that leads nowhere" "$moec" doctor "$root"
says stderr "model.safetensors' is a link to '../../blobs/model.safetensors', which does not exist" "the message names both ends"

done_testing
