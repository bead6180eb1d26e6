#!/bin/sh
# GGUF files as models: the same logits and bundles as from the folder that they were converted from.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

fixtures=tests/fixtures/gguf
for pair in olmoe:olmoe parts-00001-of-00002:olmoe qwen2_moe:qwen2_moe mixtral:mixtral families/glm4_moe:glm4_moe \
    families/granitemoeshared:granitemoeshared families/exaone_moe:exaone_moe \
    families/lfm2_moe:lfm2_moe families/gpt_oss:gpt_oss families/deepseek_v3:deepseek_v3 \
    families/glm4_moe_lite:glm4_moe_lite families/gemma4:gemma4; do
    file=$fixtures/${pair%:*}.gguf
    folder=tests/fixtures/families/${pair#*:}
    for model in "$file" "$folder"; do
        "$build/tools/logits" "$model" "$folder/tokens.u32" "$work/$(basename "$model").logits" >/dev/null 2>"$work/stderr" ||
            fail "logits of $model"
    done
    if [ -s "$work/$(basename "$file").logits" ] &&
        cmp -s "$work/$(basename "$file").logits" "$work/$(basename "$folder").logits"; then
        pass "${pair%:*}: logits are those of the folder, bit for bit"
    else
        fail "${pair%:*}: logits differ from those of the folder"
    fi
    try 0 "compile $file" "$moec" compile "$file" --policy uniform --bits 3 --group 16 -q --force -o "$work/a.moec"
    try 0 "compile $folder" "$moec" compile "$folder" --policy uniform --bits 3 --group 16 -q --force -o "$work/b.moec"
    for bundle in a b; do
        rm -rf "${work:?}/$bundle"
        "$moec" export "$work/$bundle.moec" -q -o "$work/$bundle" >/dev/null 2>"$work/stderr" || fail "export $bundle"
        "$build/tools/logits" "$work/$bundle" "$folder/tokens.u32" "$work/$bundle.logits" >/dev/null 2>"$work/stderr"
    done
    if [ -s "$work/a.logits" ] && cmp -s "$work/a.logits" "$work/b.logits"; then
        pass "${pair%:*}: so are those of the bundle"
    else
        fail "${pair%:*}: logits of the bundle differ"
    fi
done

# The seed models of the fuzz target have a tokenizer, so that they go all the way.
seed=tests/fuzz/corpus/gguf/qwen2_moe.gguf
awk 'BEGIN { for (i = 0; i < 800; i++) printf "%s", i % 7 < 3 ? "ab" : i % 5 < 2 ? "b" : "a" }' >"$work/text.txt"
try 0 "profile a GGUF file" "$moec" profile "$seed" --data "$work/text.txt" --seq-len 16 --bits 3 --anyway -q -o "$work/p.h5"
try 0 "compile one with a tokenizer" "$moec" compile "$seed" --policy uniform --bits 3 -q -o "$work/c.moec"
try 0 "run the bundle" "$moec" run "$work/c.moec" -p ab -n 4 --ignore-eos
try 0 "measure it against the file" "$moec" eval "$work/c.moec" --reference "$seed" --data "$work/text.txt" --seq-len 16
says stdout "loss" "the loss is shown"

head -c 3000 $fixtures/olmoe.gguf >"$work/cut.gguf"
try 1 "a truncated file" "$moec" compile "$work/cut.gguf" --policy uniform -o "$work/x.moec"
says stderr "truncated" "is said to be truncated"
sed 's/olmoe/gemma/g' $fixtures/olmoe.gguf >"$work/other.gguf"
try 1 "another architecture" "$moec" compile "$work/other.gguf" --policy uniform -o "$work/x.moec"
says stderr "'general.architecture' 'gemma', supported architectures" "is named"

echo "1..$n_tests"
[ "$n_bad" -eq 0 ]
