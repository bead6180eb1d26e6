#!/bin/sh
# moec export: a bundle as a Hugging Face folder that measures the same to the last bit.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model
data=$work/text.txt
head -c 12000 datasets/sample/test.txt >"$data"

# value: what eval measures, all digits.
value() {
    "$moec" eval "$1" --data "$data" --seq-len 64 --json --quiet 2>/dev/null | sed -n 's/^ *"value": //p'
}
same_value() {
    first=$(value "$1")
    if [ -n "$first" ] && [ "$first" = "$(value "$2")" ]; then
        pass "$3"
    else
        fail "$3"
    fi
}

try 0 "a bundle with a copy" "$moec" compile $model --policy uniform --bits 3 --dense-bits 8 --copies 2 \
    -o "$work/m.moec" --quiet
try 0 "export" "$moec" export "$work/m.moec" -o "$work/folder/" --quiet
says stdout "experts as f32" "export says what it wrote"
for file in config.json generation_config.json tokenizer.json tokenizer_config.json model.safetensors; do
    try 0 "the folder has $file" test -s "$work/folder/$file"
done
same_value "$work/m.moec" "$work/folder" "the folder measures what the bundle does, bit for bit"
try 0 "a folder of many small files" "$moec" export "$work/m.moec" -o "$work/shards" --shard-size 4MB --json --quiet
says stdout '"safetensors_files": [1-9][0-9]*' "JSON says how many"
try 0 "the index is there" test -s "$work/shards/model.safetensors.index.json"
same_value "$work/m.moec" "$work/shards" "the same from many files"
try 0 "export of a precision copy" "$moec" export "$work/m.moec" --copy 2 -o "$work/two" --quiet
"$moec" compile $model --policy uniform --bits 2 --dense-bits 8 -o "$work/two.moec" --quiet >"$work/stdout" 2>"$work/stderr"
same_value "$work/two.moec" "$work/two" "the copy measures what a bundle of these bits does"
try 0 "16 bits" "$moec" compile $model --policy uniform --bits 16 -o "$work/whole.moec" --quiet
try 0 "export of it" "$moec" export "$work/whole.moec" -o "$work/whole" --quiet
says stdout "experts as bf16" "they stay in the checkpoint's type"
if [ "$(value $model)" = "$(value "$work/whole")" ]; then
    pass "and measure what the checkpoint does"
else
    fail "and measure what the checkpoint does"
fi

try 1 "an existing folder is refused" "$moec" export "$work/m.moec" -o "$work/folder"
says stderr "'$work/folder': it exists" "and named"
try 2 "a copy that is not there is refused" "$moec" export "$work/m.moec" --copy 4 -o "$work/none"
says stderr "no copy of its experts at 4 bits, only copies at 2 bits" "naming what is there"
try 2 "the name of a file for the folder" "$moec" export "$work/m.moec" -o "$work/m.gguf"
says stderr "writes a folder, but '$work/m.gguf' ends with .gguf like a file: choose another name" "is refused"
try 2 "without a name" "$moec" export "$work/m.moec"
says stderr "-o FOLDER" "says which option is missing"
try 1 "something else than a bundle" "$moec" export "$data" -o "$work/none"
cp "$work/m.moec" "$work/damaged.moec"
size=$(wc -c <"$work/damaged.moec")
printf 'damage' | dd of="$work/damaged.moec" bs=1 seek=$((size / 2)) conv=notrunc 2>/dev/null
try 1 "a damaged bundle" "$moec" export "$work/damaged.moec" -o "$work/none" --quiet
if [ ! -e "$work/none" ] && [ -z "$(find "$work" -maxdepth 1 -name '.none*')" ]; then
    pass "nothing is left of a failed export"
else
    fail "nothing is left of a failed export"
fi
done_testing
