#!/bin/sh
# What reading experts in parts saves from storage: a random OLMoE-1B-7B with fewer layers, in a quarter of its
# experts' memory, on emulated 550 MB/s with 10 us a request, by the share of neurons that are left out, beside
# the same records with all neurons (0) and beside the least that could be read: up, and the rows of active neurons,
# of each miss. Runs take turns; the median is shown. `device` is bytes / bandwidth + requests x 10 us, whatever this
# machine does. UP and PAIRS are the bits of the up projection, and of gate and down.
#
#     make && make build/tools/make_random_checkpoint && tests/race/parts.sh [FOLDER [LAYERS [TURNS [UP [PAIRS]]]]]
set -eu
build=${MOEC_BUILD:-build}
layers=${2:-8}
turns=${3:-3}
up=${4:-4}
pairs=${5:-4}
tokens=32
checkpoint=${1:-$build/race-parts}/checkpoint-$layers
folder=${1:-$build/race-parts}/$layers-$up-$pairs
mkdir -p "$folder"

if [ ! -e "$folder/model.moec" ]; then
    [ -e "$checkpoint/config.json" ] || "$build/tools/make_random_checkpoint" \
        --tokenizer datasets/sample/model/tokenizer.json --preset olmoe-1b-7b --layers "$layers" "$checkpoint"
    cat >"$folder/bits.lua" <<EOF
return function(moec)
  local made = require("assignment").uniform(moec, $pairs)
  for layer = 1, moec.model.layers do
    for expert = 1, moec.model.experts do made[layer][expert] = {gate = $pairs, up = $up, down = $pairs} end
  end
  return made
end
EOF
    "$build/moec" compile "$checkpoint" --policy "$folder/bits.lua" --group 64 --dense-bits 4 -q -o "$folder/plain.moec"
    "$build/moec" sparsify "$folder/plain.moec" --data datasets/sample/calibration.txt --samples 32 --seq-len 64 --parts -q \
        -o "$folder/model.moec"
    rm "$folder/plain.moec"
fi
cat "$folder/model.moec" >/dev/null # into the page cache

# figure NAME FILE: of all experts together, or of the run.
figure() {
    sed -n "s/^.*\"experts\": {.*\"$1\": \([0-9.]*\).*/\1/p; t; s/^.*\"$1\": \([0-9.]*\).*/\1/p" "$2" | head -n 1
}
total=$("$build/moec" run "$folder/model.moec" -p x -n 1 --memory 8GiB --mode cache --stats json 2>&1 >/dev/null |
    sed -n 's/^.*"expert_total_bytes": \([0-9]*\).*/\1/p')
base=$("$build/moec" run "$folder/model.moec" -p x -n 1 --memory 8GiB --mode cache --stats json 2>&1 >/dev/null |
    sed -n 's/^.*"planned_bytes": \([0-9]*\).*"expert_buffer_bytes": \([0-9]*\).*/\1 \2/p' | awk '{ print $1 - $2 }')
memory=$((base + total / 4))

for turn in $(seq "$turns"); do
    for share in 0 0.7 0.8 0.9; do
        option="--sparsity $share"
        [ "$share" != 0 ] || option='--sparsity none'
        # shellcheck disable=SC2086 # an option and its word
        "$build/moec" run "$folder/model.moec" -p 'The old miller had three sons and a' -n $tokens --ctx 128 --ignore-eos \
            --memory "$memory" --mode cache --emulate-storage 550MB/s,80us,10us --stats json $option \
            >"$folder/words" 2>"$folder/$share.$turn.json"
    done
done
echo "up at $up bits, gate and down at $pairs, $layers layers, $((memory / 1000000)) MB for $((total / 1000000)) MB of experts"
printf 'left out\tMB read\trequests\tdevice, s\ttimes less\tms a token\ttimes faster\tideal: times fewer bytes\n'
for share in 0 0.7 0.8 0.9; do
    for turn in $(seq "$turns"); do
        echo "$(figure tpot_ms "$folder/$share.$turn.json") $(figure tpot_ms "$folder/0.$turn.json")"
    done | awk '{ print $1, $2 / $1 }' | sort -n >"$folder/times"
    time=$(awk -v n="$turns" 'NR == int((n + 1) / 2)' "$folder/times")
    echo "$(figure read_bytes "$folder/$share.1.json") $(figure reads "$folder/$share.1.json")" \
        "$(figure read_bytes "$folder/0.1.json") $(figure reads "$folder/0.1.json") $time" |
        awk -v share="$share" -v up="$up" -v pairs="$pairs" '{
            device = $1 / 550e6 + $2 * 1e-5
            whole = $3 / 550e6 + $4 * 1e-5
            printf "%s\t%.0f\t%d\t%.2f\t%.2f\t%.0f\t%.2f\t%.2f\n", share, $1 / 1e6, $2, device, whole / device, $5, $6, \
                (up + 2 * pairs) / (up + 2 * pairs * (1 - share))
        }'
done
