#!/bin/sh
# Bad input through the command line: a clear message that names file and place, exit status 1, no crash, nothing half
# written, earlier outputs intact.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

sample=datasets/sample/model
data=datasets/sample/calibration.txt
"$moec" compile $sample --policy uniform --bits 4 -o "$work/good.moec" --quiet >"$work/stdout" 2>"$work/stderr" || {
    fail "a bundle to damage"
    done_testing
}
cp "$work/good.moec" "$work/kept.moec"

# A fresh copy of the checkpoint to damage.
fresh() {
    rm -rf "$work/model"
    cp -r $sample "$work/model"
    chmod -R u+w "$work/model"
}
# refuses NAME PATTERN: compiling the damaged checkpoint fails, says why, and leaves the earlier bundle alone.
refuses() {
    try 1 "$1" "$moec" compile "$work/model" --policy uniform --bits 4 -o "$work/kept.moec" --force --quiet
    says stderr "$2" "$1: the message"
    if cmp -s "$work/good.moec" "$work/kept.moec"; then
        pass "$1: the earlier output is intact"
    else
        fail "$1: the earlier output is intact"
        cp "$work/good.moec" "$work/kept.moec"
    fi
}
# poke FILE OFFSET BYTES(octal escapes)
poke() {
    # shellcheck disable=SC2059 # the escapes are meant
    printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# ---- checkpoints ----

rm -rf "$work/model"
refuses "a folder that is not there" "model"
mkdir "$work/model"
refuses "an empty folder" "config.json"
fresh
rm "$work/model/model.safetensors"
refuses "no weights" "safetensors"
touch "$work/model/pytorch_model.bin"
refuses "pytorch_model.bin" "pytorch_model.bin.*convert the model"
fresh
size=$(wc -c <"$work/model/model.safetensors")
head -c $((size - 1000)) $sample/model.safetensors >"$work/model/model.safetensors"
refuses "truncated safetensors" "model.safetensors"
head -c 5 $sample/model.safetensors >"$work/model/model.safetensors"
refuses "safetensors of five bytes" "model.safetensors"
fresh
poke "$work/model/model.safetensors" 0 '\377\377\377\377\377\377\377\177'
refuses "an oversized header" "header"
fresh
poke "$work/model/model.safetensors" 8 'X'
refuses "a header that is no JSON" "model.safetensors"
fresh
sed -i 's/"BF16"/"I32" /' "$work/model/model.safetensors"
refuses "a wrong dtype" "model.safetensors"
fresh
echo '{"model_type": "olmoe", ' >"$work/model/config.json"
refuses "malformed config.json" "config.json"
fresh
sed -i 's/"hidden_size": *[0-9]*/"hidden_size": 99999999999/' "$work/model/config.json"
refuses "absurd dimensions" "hidden_size"
fresh
sed -i 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 9/' "$work/model/config.json"
refuses "more layers than tensors" "model.layers"
fresh
sed -i 's/"intermediate_size": *[0-9]*/"intermediate_size": 64/' "$work/model/config.json"
refuses "a wrong shape" "shape"
fresh
sed -i 's/"model_type": *"[a-z_]*"/"model_type": "llama"/' "$work/model/config.json"
refuses "an unknown family" "olmoe"
fresh
poke "$work/model/model.safetensors" $((size - 300)) '\300\177\300\177\300\177\300\177'
try 1 "NaN weights" "$moec" eval "$work/model" --data $data --samples 2 --quiet
says stderr "nan|NaN|finite" "NaN weights: the message"
refuses "NaN weights, before any work" "tensor '[^']*' in '.*/model.safetensors' has NaN at \\[[0-9]+, [0-9]+\\]"
try 1 "NaN weights in a profile" "$moec" profile "$work/model" --data $data --seq-len 16 -o "$work/nan.h5" --quiet
says stderr "has NaN at \\[[0-9]+, [0-9]+\\] \\(offset $((size - 300))\\), expected finite numbers" "the message has its place"
fresh
echo '{"version": "1.0"' >"$work/model/tokenizer.json"
refuses "malformed tokenizer.json" "tokenizer.json"
sed '0,/"type": *"ByteLevel"/s//"type":"Split","pattern":{"Regex":"(open"},"behavior":"Isolated","invert":false/' \
    $sample/tokenizer.json >"$work/model/tokenizer.json"
refuses "a tokenizer pattern that is no regular expression" "model' has a tokenizer that cannot be used: .*'\(open'"
try 1 "a profile with it" "$moec" profile "$work/model" --data "$work" --seq-len 16 -o "$work/pattern.h5" --quiet
says stderr "model' has a tokenizer that cannot be used: .*'\(open'" "is refused before the data are read"
fresh
sed -i 's/: 2047$/: 999999/' "$work/model/tokenizer.json"
refuses "a tokenizer whose ids exceed the vocabulary" "tokenizer.json.*999999"

# ---- data ----

: >"$work/empty.txt"
try 1 "empty data" "$moec" eval $sample --data "$work/empty.txt" --quiet
says stderr "empty.txt" "empty data: the message"
echo "Too little." >"$work/tiny.txt"
try 1 "tiny data" "$moec" profile $sample --data "$work/tiny.txt" -o "$work/none.h5" --quiet
says stderr "windows" "tiny data: the message"
try 1 "leaves no profile" test -e "$work/none.h5"
printf '{"text": "fine"}\n{"text": \n' >"$work/broken.jsonl"
try 1 "broken JSONL" "$moec" eval $sample --data "$work/broken.jsonl" --quiet
says stderr "line 2 of .*broken.jsonl" "broken JSONL: file and line"
refuses_data() { # NAME FILE PATTERN
    try 1 "$1" "$moec" eval $sample --data "$work/$2" --samples 2 --quiet
    says stderr "$3" "$1: the message"
}
printf 'PAR1\025\000\025\200PAR1' >"$work/rows.parquet"
refuses_data "Parquet" rows.parquet "is a Parquet file.*pyarrow.*python3 -c .*rows.parquet' > '.*rows.jsonl'"
iconv -f UTF-8 -t UTF-16LE $data >"$work/wide.txt"
refuses_data "UTF-16 without a mark" wide.txt "is UTF-16 text.*iconv -f UTF-16LE -t UTF-8 .*wide.txt' > '.*wide-utf8.txt'"
printf 'un caf\351 tr\350s fort\n' >"$work/latin.txt"
refuses_data "Latin-1" latin.txt "not UTF-8.*offset 6.*iconv -f WINDOWS-1252"
gzip -c $data >"$work/data.txt.gz"
refuses_data "gzip" data.txt.gz "gzip -dc .*data.txt.gz' > '.*data.txt'"
printf ' \n\t\r\n' >"$work/blank.txt"
refuses_data "white space alone" blank.txt "blank.txt' has nothing but white space"
head -n 40 $data >"$work/lf.txt"
sed 's/$/\r/' "$work/lf.txt" >"$work/crlf.txt"
try 0 "line ends of Windows" "$moec" eval $sample --data "$work/crlf.txt" --seq-len 32 --samples 4
says stderr "crlf.txt': 40 line ends of Windows" "line ends of Windows: a note"
cp "$work/stdout" "$work/of_crlf"
try 0 "line ends of Unix" "$moec" eval $sample --data "$work/lf.txt" --seq-len 32 --samples 4 --quiet
if [ "$(awk '/^perplexity/ { print $2, $4 }' "$work/stdout" "$work/of_crlf" | uniq | grep -c .)" = 1 ]; then
    pass "give the same perplexity"
else
    fail "give the same perplexity"
fi
# Text of which the model knows nothing: nothing is promised, unless that is asked for and marked.
awk 'BEGIN { s = 1; for (i = 0; i < 2000; i++) { t = ""
    for (k = 0; k < 12; k++) { s = (s * 1103515245 + 12345) % 2147483648; t = t sprintf("%c", 97 + int(s / 65536) % 26) }
    print t } }' >"$work/noise.txt"
noise="--data $work/noise.txt --seq-len 16 --samples 32"
chance="no better than chance: its perplexity is [0-9.e+]+, and guessing evenly among all tokens of its vocabulary gives 2048"
# shellcheck disable=SC2086 # options are words
for verb in "profile $sample --bits 2 -o $work/chance.h5" "compile $sample --max-loss 50% -o $work/chance.moec" \
    "sparsify $work/good.moec --reference $sample --max-loss 50% -o $work/chance.moec" \
    "tune $work/good.moec --reference $sample --max-loss 50% -o $work/chance.moec"; do
    try 1 "${verb%% *} of noise" "$moec" $verb $noise --quiet
    says stderr "the original predicts 'noise.txt' $chance.*--anyway" "${verb%% *} of noise: the message"
done
if [ -z "$(find "$work" -name '*chance*')" ]; then pass "nothing is written"; else fail "nothing is written"; fi
# shellcheck disable=SC2086
try 0 "a profile of noise anyway" "$moec" profile $sample --bits 2 $noise --sensitivity none --anyway -o "$work/chance.h5"
says stderr "$chance" "a note says so"
try 0 "it is marked" h5dump -a /reference/no_better_than_chance "$work/chance.h5"
try 0 "shown" "$moec" profile --show "$work/chance.h5"
says stdout "no better than chance|Nothing here says how well" "and says so"
set -- compile $sample --profile "$work/chance.h5" --policy uniform --max-loss 300% -o "$work/chance.moec"
try 1 "a compile of that profile" "$moec" "$@" --quiet
says stderr "$chance" "is refused too"
try 0 "and anyway" "$moec" "$@" --anyway --quiet
says stdout "the certificate promises nothing: the original predicts this text no better than chance" "with words beside the certificate"
try 0 "the bundle" "$moec" inspect "$work/chance.moec"
says stdout "promises nothing .*no better than chance" "is marked"
try 0 "in JSON" "$moec" inspect "$work/chance.moec" --json
says stdout '"no_better_than_chance": true' "too"
try 1 "no data file" "$moec" eval $sample --data "$work/nothing.txt" --quiet
says stderr "nothing.txt" "no data file: the message"
echo 'return {name = "x", metric = "bleu"}' >"$work/task.lua"
try 1 "a task with an unknown metric" "$moec" eval $sample --data $data --task "$work/task.lua" --quiet
says stderr "bleu.*perplexity" "the message lists the metrics"

# ---- profiles ----

"$moec" profile $sample --data $data --seq-len 16 --samples 32 --bits 2 --sensitivity none -o "$work/profile.h5" --quiet \
    >"$work/stdout" 2>"$work/stderr" ||
    fail "a profile to damage"
cp "$work/profile.h5" "$work/damaged.h5"
poke "$work/damaged.h5" 3000 '\001\002\003'
try 1 "a damaged profile" "$moec" compile $sample --policy edgemoe --profile "$work/damaged.h5" --max-loss 5% -o "$work/kept.moec" --force --quiet
says stderr "damaged.h5" "a damaged profile: the message"
try 1 "a damaged profile cannot be shown" "$moec" profile --show "$work/damaged.h5"
head -c 2000 "$work/profile.h5" >"$work/short.h5"
try 1 "a truncated profile" "$moec" compile $sample --policy edgemoe --profile "$work/short.h5" --max-loss 5% -o "$work/kept.moec" --force --quiet
try 1 "a profile that is something else" "$moec" compile $sample --policy edgemoe --profile README.md --max-loss 5% -o "$work/kept.moec" --force --quiet
fresh
poke "$work/model/model.safetensors" $((size - 300)) '\001\002'
try 1 "a profile of another model" "$moec" compile "$work/model" --policy edgemoe --profile "$work/profile.h5" --max-loss 5% -o "$work/kept.moec" --force --quiet
says stderr "another model" "a profile of another model: the message"
try 0 "the earlier bundle is intact" cmp "$work/good.moec" "$work/kept.moec"

# ---- bundles ----

length=$(wc -c <"$work/good.moec")
i=0
while [ $i -lt 24 ]; do
    offset=$((length * i / 24 + i * 37))
    cp "$work/good.moec" "$work/flipped.moec"
    byte=$(od -An -tu1 -j $offset -N1 "$work/good.moec")
    poke "$work/flipped.moec" $offset "\\$(printf '%03o' $((255 - byte)))"
    "$moec" verify "$work/flipped.moec" >"$work/stdout" 2>"$work/stderr"
    [ $? -eq 1 ] || fail "verify finds the byte at $offset"
    "$build/moec-run" "$work/flipped.moec" -p "The" -n 2 >"$work/stdout" 2>"$work/stderr"
    [ $? -le 1 ] || fail "run survives the byte at $offset"
    i=$((i + 1))
done
pass "verify found 24 flipped bytes, run survived them"
for cut in 0 100 4096 100000 $((length - 1)); do
    head -c "$cut" "$work/good.moec" >"$work/cut.moec"
    try 1 "a bundle of $cut bytes" "$build/moec-run" "$work/cut.moec" -p "The" -n 2
done
# Not damaged, and still of no use.
try 0 "a bundle whose tokenizer is of no use" "$build/tools/make_refused_bundle" "$work/pattern.moec"
try 1 "verify refuses a tokenizer that run refuses" "$moec" verify "$work/pattern.moec"
says stderr "pattern.moec' is not damaged, but .moec run. cannot use it: .*'\(open'" "the message names the pattern"
try 1 "run refuses it" "$build/moec-run" "$work/pattern.moec" -p "The" -n 2
says stderr "'\(open'" "the message names it too"
try 1 "a text file as a bundle" "$build/moec-run" README.md -p "The" -n 2
says stderr "README.md" "the message names it"

# ---- a full disk ----

if [ "$(id -u)" -eq 0 ] && mkdir "$work/disk" && mount -t tmpfs -o size=1m tmpfs "$work/disk" 2>/dev/null; then
    try 1 "compile to a full disk" "$moec" compile $sample --policy uniform --bits 4 -o "$work/disk/x.moec" --quiet
    says stderr "space|x.moec" "a full disk: the message"
    if [ -z "$(ls -A "$work/disk")" ]; then
        pass "a full disk: nothing is left"
    else
        fail "a full disk: nothing is left"
    fi
    umount "$work/disk"
else
    skip "compile to a full disk" "a small tmpfs cannot be mounted here"
fi
if [ -e /dev/full ]; then
    try 1 "run to a full device" sh -c "'$moec' run '$work/good.moec' -p The -n 4 >/dev/full"
fi

# ---- kill -9 ----

n=0
while [ $n -lt 8 ]; do
    n=$((n + 1))
    "$moec" compile $sample --policy uniform --bits $((n % 2 * 4 + 4)) -o "$work/kept.moec" --force --quiet >/dev/null 2>&1 &
    sleep "0.0$n"
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
    "$moec" verify --quiet "$work/kept.moec" || fail "kill -9 number $n left a damaged bundle"
done
pass "after 8 kills the bundle is whole"
n=0
while [ $n -lt 4 ]; do
    n=$((n + 1))
    "$moec" profile $sample --data $data --seq-len 16 --samples 32 --bits 2 -o "$work/profile.h5" --quiet >/dev/null 2>&1 &
    sleep "0.$n"
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
    "$moec" profile --show "$work/profile.h5" >/dev/null 2>&1 || fail "kill -9 number $n left a damaged profile"
done
pass "after 4 kills the profile is whole"
try 0 "the next compile works" "$moec" compile $sample --policy uniform --bits 4 -o "$work/kept.moec" --force --quiet
if find "$work" -maxdepth 1 -name '.*moec-tmp*' | grep -q .; then
    fail "and clears what killed ones left"
else
    pass "and clears what killed ones left"
fi

done_testing
