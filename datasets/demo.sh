#!/bin/sh
# The main job on the embedded sample: compile, run, profile, check, and a bundle for a small device. Usage: MOEC=build/moec datasets/demo.sh FOLDER
set -eu
moec=${MOEC:-build/moec}
out=${1:?name an output folder}
model=datasets/sample/model
mkdir -p "$out"

step() {
    printf '\n== %s\n' "$*"
}

step "Compile: spend at most 2% of accuracy where it buys the most bytes"
"$moec" compile "$model" --data datasets/sample/calibration.txt --max-loss 2% -o "$out/model.moec" --force --json >"$out/compile.json"

step "Run: continue a text inside a memory budget"
prompt="The old miller"
"$moec" run "$out/model.moec" -p "$prompt" -n 60 --memory 64MiB --stats >"$out/text.txt" 2>"$out/stats.txt"
printf '%s' "$prompt"
cat "$out/text.txt"

step "Profile: what does every expert lose at every bitwidth?"
"$moec" profile "$model" --data datasets/sample/calibration.txt -o "$out/profile.h5" --force --sensitivity fast \
    --heatmap "$out/heatmap.png" --heatmap "$out/heatmap.svg" --report "$out/report.html"

step "Check on text that neither training nor search ever saw"
"$moec" eval "$out/model.moec" --data datasets/sample/test.txt --reference "$model" --json >"$out/eval.json"

# One number of a flat JSON file: no tool beyond sed is needed for these.
number() {
    sed -n "s/^ *\"$2\": \([-0-9.e+]*\),*\$/\1/p" "$1" | head -n 1
}
percent() {
    awk -v x="$1" 'BEGIN { printf "%.2f%%", 100 * x }'
}
megabytes() {
    awk -v x="$1" 'BEGIN { printf "%.2f MB", x / 1e6 }'
}

bundle=$(number "$out/compile.json" bundle_bytes)
source=$(number "$out/compile.json" source_bytes)
printf '%-34s %s\n' "original weights" "$(megabytes "$source")"
printf '%-34s %s (%s of the original)\n' "bundle, tokenizer included" "$(megabytes "$bundle")" \
    "$(awk -v a="$bundle" -v b="$source" 'BEGIN { printf "%.0f%%", 100 * a / b }')"
printf '%-34s at most 2%%\n' "loss asked for"
printf '%-34s %s\n' "loss measured, certificate part" "$(percent "$(number "$out/compile.json" loss)")"
printf '%-34s %s\n' "loss measured, test text" "$(percent "$(number "$out/eval.json" loss)")"
printf '%-34s %s\n' "tokens per second, decoding" "$(sed -n 's/^decode.*, \([0-9.]*\) tokens\/s$/\1/p' "$out/stats.txt")"
printf '\nlook at: %s\n         %s\ntry:     %s run %s -p "Once"\n' "$out/heatmap.png" "$out/report.html" "$moec" "$out/model.moec"

step "Fit: the fastest bundle for a device with little memory and an SD card"
begin=$(date +%s)
"$moec" fit "$model" --data datasets/sample/calibration.txt --max-loss 3% --samples 96 --seq-len 128 --ctx 256 \
    --memory 10.9MiB --storage sd -o "$out/small.moec" --force
printf 'this fit took %s s\n' $(($(date +%s) - begin))
