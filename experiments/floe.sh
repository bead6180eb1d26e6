#!/bin/sh
# FloE's evaluation (arXiv:2505.05950) through moec: what small activations and few bits cost in each projection, how
# fast experts are that leave neurons out, and what plans of sparsity read at one promise. Writes FOLDER/report.html
# and FOLDER/*.tsv. What FOLDER holds already is not measured again, so that a run can be interrupted; remove a file
# to measure it anew. On a machine with nothing else to do.
#
#     experiments/floe.sh [FOLDER [MODEL CALIBRATION TEST]]        (default build/experiment-floe)
#
# The model is that of datasets/sample, or a Hugging Face folder with two texts: one to calibrate on, one to measure on.
#
# Shorter, for trying: WINDOWS (of the test text; 0 = all), SEQ_LEN (tokens of a window), PARTS ("studies kernels levels
# plans decoding transfers predictors"), BITS (of Fig. 9b), LEVELS (of sparsity), TARGET (of the plans) and HALF_TARGET
# (of bits that leave room for a plan), TUNE_SAMPLES, KINDS (of plans), BENCH_SAMPLES, LENGTHS (of Fig. 6: tokens of a
# prompt:decoded), TOKENS (decoded in Fig. 8), READ_SECONDS (of each size of Fig. 7), TAUGHT (windows that predictors
# learn from and are chosen by).
set -eu
build=${MOEC_BUILD:-build}
moec=${MOEC:-$build/moec}
folder=${1:-build/experiment-floe}
model=${2:-datasets/sample/model}
calibration=${3:-datasets/sample/calibration.txt}
test=${4:-datasets/sample/test.txt}
if [ $# -gt 1 ]; then name=$(basename "$model"); else name=sample; fi
here=$folder/$name
target=${TARGET:-2%}
half_target=${HALF_TARGET:-1%}
tune_samples=${TUNE_SAMPLES:-192}
# shellcheck source=experiments/measure.inc
. experiments/measure.inc

# calibrated VERB ARGUMENTS...: what a verb says of the calibration text.
calibrated() {
    file=$1 verb=$2
    shift 2
    # shellcheck disable=SC2086 # an option and its number
    json "$here/$file.json" "$moec" "$verb" "$@" --data "$calibration" --samples "$tune_samples" $seq_len
}

# measured NAME BUNDLE OPTIONS...: loss and bytes on the test text.
measured() {
    file=$1 bundle=$2
    shift 2
    # shellcheck disable=SC2086 # options and their numbers
    json "$here/$file.json" "$moec" eval "$here/$bundle.moec" --data "$test" --reference "$model" $windows $seq_len "$@"
}

# policy FILE BITS: as in the paper, up at few bits, gate and down at more.
policy() {
    echo 'return function(moec)
  local assignment = {}
  for l = 1, moec.model.layers do
    assignment[l] = {}
    for e = 1, moec.model.experts do assignment[l][e] = {gate = 4, up = '"$2"', down = 4} end
  end
  return assignment
end' >"$here/$1"
}

# Fig. 2 and 3: activations as zero, and bits, one projection at a time.
studies() {
    calibrated profile profile "$model" --bits 1,2,3,4,8 --quantizer hqq --group 32 --study projections,sparsity \
        --sensitivity fast --resume --force -o "$here/profile.h5"
}
leaves_studies() {
    echo profile
}

# Table 1.
kernels() {
    json "$here/kernels.json" "$moec" bench --kernels
}
leaves_kernels() {
    echo kernels
}

# Fig. 9b and the paper's mixture of bits: sparsity on top of bits.
levels() {
    for bits in ${BITS:-8 4 3 2}; do
        json "$here/int$bits-compile.json" "$moec" compile "$model" --policy uniform --bits "$bits" --quantizer hqq \
            --group 32 --force -o "$here/int$bits.moec"
    done
    policy narrow_up.lua 2
    json "$here/mixed-compile.json" "$moec" compile "$model" --policy "$here/narrow_up.lua" --quantizer hqq --group 32 \
        --force -o "$here/mixed.moec"
    policy signs_up.lua 1
    json "$here/signs-compile.json" "$moec" compile "$model" --policy "$here/signs_up.lua" --quantizer hqq --group 32 \
        --force -o "$here/signs.moec"
    # shellcheck disable=SC2086 # bitwidths
    for bundle in $(printf 'int%s ' ${BITS:-8 4 3 2}) mixed signs; do
        calibrated "$bundle-thresholds" sparsify "$here/$bundle.moec" --force
        measured "$bundle-0" "$bundle"
        for level in ${LEVELS:-0.5 0.6 0.7 0.8 0.9}; do
            measured "$bundle-$level" "$bundle" --sparsity "$level"
        done
    done
}
leaves_levels() {
    # shellcheck disable=SC2086 # bitwidths
    for bundle in $(printf 'int%s ' ${BITS:-8 4 3 2}) mixed signs; do
        for level in 0 ${LEVELS:-0.5 0.6 0.7 0.8 0.9}; do echo "$bundle-$level"; done
    done
}

# How plans choose: moec's own three, and the methods of Table 3 as they run. FloE gives all experts one share by
# |up . x|, CATS by the activated gate, CHESS each neuron a threshold of that.
plan_options() {
    case $1 in
    floe) echo --by model --by-projection up ;;
    cats) echo --by model --by-projection gate ;;
    chess) echo --by neuron --by-projection gate ;;
    *) echo --by "$1" ;;
    esac
}

# Bundles of one promise: bits alone, and bits that leave room for a plan.
plans() {
    calibrated static-compile compile "$model" --max-loss "$target" --force -o "$here/static.moec"
    calibrated static-thresholds sparsify "$here/static.moec" --force
    measured static static --sparsity 0.001
    calibrated half-compile compile "$model" --max-loss "$half_target" --force -o "$here/half.moec"
    for kind in ${KINDS:-neuron expert model floe cats chess}; do
        # shellcheck disable=SC2046 # options and their values
        calibrated "plan-$kind" sparsify "$here/half.moec" --reference "$model" --max-loss "$target" \
            $(plan_options "$kind") --force -o "$here/plan-$kind.moec"
        measured "plan-$kind-test" "plan-$kind"
    done
}
leaves_plans() {
    echo static-compile static half-compile
    for kind in ${KINDS:-neuron expert model floe cats chess}; do echo "plan-$kind" "plan-$kind-test"; done
}

# timed NAME BUNDLE SHARE PROMPT TOKENS OPTIONS...: decoding with SHARE % of the memory that the plan's experts take.
timed() {
    file=$1 bundle=$2 own=$(expert_bytes "$here/$2.moec") share=$3 prompt=$4 tokens=$5
    shift 5
    json "$here/$file.json" "$moec" bench "$here/$bundle.moec" --emulate-storage 550MB/s,80us --modes cache \
        --memory "$(awk -v share="$share" -v planned="$planned" -v own="$own" 'BEGIN {
            part = share * planned / own
            printf "%.1f%%", part < 100 ? part : 100 }')" \
        --data "$test" --samples "${BENCH_SAMPLES:-8}" --prompt-tokens "$prompt" --tokens "$tokens" "$@"
}

# Fig. 6 and 8 on emulated storage: the plan, the same bundle with all neurons, and in the same memory bits alone of the
# same promise with what others have, an LRU cache and the next layer's gate, or all experts at two bits in memory.
decoding() {
    planned=$(expert_bytes "$here/plan-neuron.moec")
    for share in 25 50 75 100; do
        timed "decoding-plan-$share" plan-neuron "$share" 64 "${TOKENS:-32}"
        timed "decoding-none-$share" plan-neuron "$share" 64 "${TOKENS:-32}" --sparsity none
        timed "decoding-static-$share" static "$share" 64 "${TOKENS:-32}" --predict gate
    done
    json "$here/int2-compile.json" "$moec" compile "$model" --policy uniform --bits 2 --quantizer hqq --group 32 \
        --force -o "$here/int2.moec"
    for length in ${LENGTHS:-16:32 64:64 128:64 64:128}; do
        timed "length-plan-$length" plan-neuron 25 "${length%:*}" "${length#*:}"
        timed "length-static-$length" static 25 "${length%:*}" "${length#*:}" --predict gate
        timed "length-int2-$length" int2 1000 "${length%:*}" "${length#*:}"
    done
}
leaves_decoding() {
    for share in 25 50 75 100; do echo "decoding-plan-$share" "decoding-none-$share" "decoding-static-$share"; done
    for length in ${LENGTHS:-16:32 64:64 128:64 64:128}; do
        echo "length-plan-$length" "length-static-$length" "length-int2-$length"
    done
}

# Fig. 7 on this machine's storage: random reads of the checkpoint in requests of so many bytes, 32 at once.
transfers() {
    [ ! -e "$here/transfers.json" ] || return 0
    for weights in "$model"/*.safetensors; do break; done
    : >"$here/transfers.new"
    for kib in 4 8 16 32 64 128 256 512 1024; do
        say "reads of $kib KiB"
        speed=$("$build/tools/read_bench" "$weights" --bytes $((kib * 1024)) --seconds "${READ_SECONDS:-2}")
        echo "$kib $speed" >>"$here/transfers.new"
    done
    awk 'BEGIN { printf "{\"reads\": [" }
        { printf "%s{\"bytes\": %d, \"bytes_per_second\": %.0f}", (NR > 1 ? ", " : ""), 1024 * $1, 1e6 * $2 }
        END { print "]}" }' "$here/transfers.new" >"$here/transfers.json.new"
    mv "$here/transfers.json.new" "$here/transfers.json"
    rm "$here/transfers.new"
}
leaves_transfers() {
    echo transfers
}

# Fig. 4: the predictors, taught on one text and judged on the other.
predictors() {
    json "$here/taught-compile.json" "$moec" compile "$model" --policy uniform --bits 4 --force -o "$here/taught.moec"
    # What is learned may be no better than the router; the verb then says so, and its measurements count all the same.
    # shellcheck disable=SC2086 # an option and its number
    json "$here/predictors.json" "$moec" predict "$here/taught.moec" --data "$calibration" --test "$test" \
        --study neurons --force ${TAUGHT:+--samples $TAUGHT} $seq_len || {
        grep -q '"gain"' "$here/predictors.json.new"
        say "$name: no proven gain of the learned predictor"
        mv "$here/predictors.json.new" "$here/predictors.json"
    }
}
leaves_predictors() {
    echo predictors
}

windows=
[ "${WINDOWS:-0}" -eq 0 ] || windows="--samples $WINDOWS"
seq_len=
[ -z "${SEQ_LEN:-}" ] || seq_len="--seq-len $SEQ_LEN"
mkdir -p "$here"
run_parts "${PARTS:-studies kernels levels plans decoding transfers predictors}"
"$build/tools/paper_report" floe "$folder" "$name"
[ -n "${PARTS:-}" ] || tells "$folder/${name}_goals.tsv" 'section 4.2' 'eq. 6' 'Fig. 4' 'Table 1'
[ -n "${PARTS:-}" ] || tells "$folder/${name}_findings.tsv" 'Fig. 3a' 'Fig. 3b' 'Fig. 4' 'Fig. 6' 'Fig. 7' 'Fig. 8' \
    'Fig. 9b' 'Fig. 10, Table 3' 'Table 3'
