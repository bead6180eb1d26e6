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
# plans decoding predictors"), BITS (of Fig. 9b), LEVELS (of sparsity), TARGET (of the plans) and HALF_TARGET (of bits that leave room
# for a plan), TUNE_SAMPLES, KINDS (of plans), BENCH_SAMPLES, TOKENS, TAUGHT (windows that
# predictors learn from and are chosen by).
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

# Table 1.
kernels() {
    json "$here/kernels.json" "$moec" bench --kernels
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
        calibrated "$bundle-thresholds" sparsify "$here/$bundle.moec"
        measured "$bundle-0" "$bundle"
        for level in ${LEVELS:-0.5 0.6 0.7 0.8 0.9}; do
            measured "$bundle-$level" "$bundle" --sparsity "$level"
        done
    done
}

# Bundles of one promise: bits alone, bits that leave room for a plan, and the paper's mixture.
plans() {
    calibrated static-compile compile "$model" --max-loss "$target" --force -o "$here/static.moec"
    calibrated static-thresholds sparsify "$here/static.moec"
    measured static static --sparsity 0.001
    calibrated half-compile compile "$model" --max-loss "$half_target" --force -o "$here/half.moec"
    for kind in ${KINDS:-neuron expert model}; do
        calibrated "plan-$kind" sparsify "$here/half.moec" --reference "$model" --max-loss "$target" --by "$kind" --force \
            -o "$here/plan-$kind.moec"
        measured "plan-$kind-test" "plan-$kind"
    done
}

# Fig. 6 and 8 on emulated storage: the plan, and the same bundle with all neurons.
decoding() {
    for memory in 25% 100%; do
        for how in plan none; do
            option='--sparsity none'
            [ "$how" = none ] || option=
            # shellcheck disable=SC2086 # an option and its word
            json "$here/decoding-$how-$memory.json" "$moec" bench "$here/plan-neuron.moec" --emulate-storage 550MB/s,80us \
                --memory "$memory" --modes cache --data "$test" --samples "${BENCH_SAMPLES:-8}" --tokens "${TOKENS:-32}" $option
        done
    done
}

# Fig. 4: the predictors, taught on one text and judged on the other.
predictors() {
    json "$here/taught-compile.json" "$moec" compile "$model" --policy uniform --bits 4 --force -o "$here/taught.moec"
    # What is learned may be no better than the router; the verb then says so, and its measurements count all the same.
    # shellcheck disable=SC2086 # an option and its number
    json "$here/predictors.json" "$moec" predict "$here/taught.moec" --data "$calibration" --test "$test" --study neurons \
        ${TAUGHT:+--samples $TAUGHT} $seq_len || {
        grep -q '"gain"' "$here/predictors.json.new"
        say "$name: no proven gain of the learned predictor"
        mv "$here/predictors.json.new" "$here/predictors.json"
    }
}

windows=
[ "${WINDOWS:-0}" -eq 0 ] || windows="--samples $WINDOWS"
seq_len=
[ -z "${SEQ_LEN:-}" ] || seq_len="--seq-len $SEQ_LEN"
mkdir -p "$here"
for part in ${PARTS:-studies kernels levels plans decoding predictors}; do
    say "$name: $part"
    "$part"
done
"$build/tools/floe_report" "$folder" "$name"
