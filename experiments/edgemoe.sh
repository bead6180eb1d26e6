#!/bin/sh
# EdgeMoE's evaluation (section IV of the paper) repeated on the two samples: measures everything through moec, then
# writes FOLDER/report.html and FOLDER/*.tsv. What FOLDER holds already is not measured again, so that a run can be
# interrupted; remove a file to measure it anew. On a machine with nothing else to do.
#
#     experiments/edgemoe.sh [FOLDER]        (default build/experiment-edgemoe)
#
# Shorter, for trying: SAMPLES="switch decoder" (which), PARTS ("profiles uniforms targets papers quantizers
# calibrations modes limits latencies evictions"), ROWS (to profile on), TEST_ROWS (to evaluate on; 0 = all),
# BENCH_SAMPLES, TARGETS ("2 5 10 20"; 2 must be there), SENSITIVITY (fast), STUDIES (none: Fig. 6 on the test alone),
# SEQ_LEN (tokens of a window), QUANTIZERS (of Fig. 7b), DENSE (bitwidth of dense weights; auto tries all).
set -eu
build=${MOEC_BUILD:-build}
moec=${MOEC:-$build/moec}
folder=${1:-build/experiment-edgemoe}
storage=550MB/s,80us slow_storage=50MB/s,80us
buffer=10 # experts, as in the paper
targets=${TARGETS:-2 5 10 20}
quantizers=${QUANTIZERS:-linear hqq outlier log}
evictions=random,fifo,lru,lfu,arc,edgemoe,hobbit

# shellcheck source=experiments/measure.inc
. experiments/measure.inc

# experts N: the share of the expert bytes that N experts of the model have.
experts() {
    awk -v n="$1" -v all="$n_expert" 'BEGIN { printf "%.2f%%", n < all ? 100 * n / all : 100 }'
}

profile() { # NAME DATA
    # shellcheck disable=SC2086 # the option and its number
    json "$here/$1.json" "$moec" profile "$model" --data "$2" --task "$task" --samples "$rows" --bits 2,4,8 $windows \
        --sensitivity "${SENSITIVITY:-exact}" --study "${STUDIES:-dense}" --resume --force -o "$here/$1.h5"
}

evaluate() { # NAME DATA: a bundle against the original model
    # shellcheck disable=SC2086 # options and their numbers
    json "$here/$1-test.json" "$moec" eval "$here/$1.moec" --data "$2" --task "$task" --reference "$model" \
        $test_rows $windows
}

uniform() { # BITS DENSE_BITS NAME
    json "$here/$3.json" "$moec" compile "$model" --policy uniform --bits "$1" --dense-bits "$2" --force \
        -o "$here/$3.moec"
    evaluate "$3" "$test"
}

# compiled NAME PROFILE TARGET DATA OPTIONS...: the loss is of the metric that the test has.
compiled() {
    name=$1 measured=$2 target=$3 of=
    [ -z "$metric" ] || of="--metric $metric --task $task --data $4 ${ROWS:+--samples $ROWS}"
    shift 4
    # shellcheck disable=SC2086 # options and their values
    json "$here/$name.json" "$moec" compile "$model" --profile "$here/$measured.h5" --max-loss "$target%" $of "$@" \
        --accept-miss --force -o "$here/$name.moec"
}

timed() { # NAME BUNDLE OPTIONS...
    name=$1 bundle=$2
    shift 2
    json "$here/$name.json" "$moec" bench "$here/$bundle.moec" --emulate-storage "$storage" --data "$test" \
        --task "$task" --samples "${BENCH_SAMPLES:-8}" --tokens "$tokens" "$@"
}

# limited NAME BUNDLE: Table III, how many experts fit into limits of the whole process, a quarter of all experts apart.
limited() {
    [ ! -e "$here/$1.json" ] || return 0
    floor=$("$moec" bench "$here/$2.moec" --modes edgemoe --memory 1MiB --samples 1 --tokens 4 --quiet --json \
        2>/dev/null | sed -n 's/.*below the floor of \([0-9]*\) .*/\1/p' | head -n 1)
    all=$(expert_bytes "$here/$2.moec")
    sizes=$(awk -v floor="$floor" -v all="$all" 'BEGIN {
        for (i = 1; i <= 3; i++) printf "%s%.0fKiB", (i > 1 ? "," : ""), (floor + all * i / 4) / 1024 }')
    json "$here/$1.json" "$moec" bench "$here/$2.moec" --modes edgemoe --memory "$sizes" --samples 1 --tokens 4
}

described() { # NAME: what one expert of a bundle takes to compute
    [ ! -e "$here/$1-device.json" ] || return 0
    say "$moec" device "$here/$1.moec"
    "$moec" device "$here/$1.moec" --emulate-storage "$storage" --quiet -o "$here/$1-device.json" >"$here/$1-device.txt"
}

# ---- parts; leaves_PART names the files that it leaves, without .json ----

profiles() {
    profile profile "$calibration"
}
leaves_profiles() {
    echo profile
}

uniforms() {
    for bits in 2 3 4 8; do uniform $bits 16 uniform-$bits; done
    for bits in 4 8; do uniform $bits $bits all-$bits; done
}
leaves_uniforms() {
    for name in uniform-2 uniform-3 uniform-4 uniform-8 all-4 all-8; do echo $name $name-test; done
}

# Ours: moec's own search. The paper's procedure beside it is papers.
targets() {
    for target in $targets; do
        compiled "ours-$target" profile "$target" "$calibration" --dense-bits 16
        evaluate "ours-$target" "$test"
    done
    compiled ours-dense profile 2 "$calibration" --dense-bits "${DENSE:-auto}"
    evaluate ours-dense "$test"
}
leaves_targets() {
    for target in $targets dense; do echo "ours-$target" "ours-$target-test"; done
}

papers() {
    for target in $targets; do
        compiled "paper-$target" profile "$target" "$calibration" --preset paper
        evaluate "paper-$target" "$test"
    done
}
leaves_papers() {
    for target in $targets; do echo "paper-$target" "paper-$target-test"; done
}

# Fig. 7b: all experts at INT4, and with a copy that needs no decoding.
quantizers() {
    for quantizer in $quantizers; do
        json "$here/quantizer-$quantizer.json" "$moec" compile "$model" --policy uniform --bits 4 --copies 16 \
            --quantizer "$quantizer" --force -o "$here/quantizer-$quantizer.moec"
        evaluate "quantizer-$quantizer" "$test"
        described "quantizer-$quantizer"
    done
}
leaves_quantizers() {
    for quantizer in $quantizers; do
        echo "quantizer-$quantizer" "quantizer-$quantizer-test" "quantizer-$quantizer-device"
    done
}

# Table IV: calibrated on data like the test's, and on other data.
calibrations() {
    for data in like other; do
        profile "profile-$data" "$here/calibration-$data.$ending"
        compiled "table-$data" "profile-$data" 2 "$here/calibration-$data.$ending" --dense-bits 16
        compiled "table-paper-$data" "profile-$data" 2 "$here/calibration-$data.$ending" --preset paper
        evaluate "table-$data" "$here/test-like.$ending"
        evaluate "table-paper-$data" "$here/test-like.$ending"
    done
}
leaves_calibrations() {
    for name in like other paper-like paper-other; do echo table-$name table-$name-test; done
}

# Fig. 11 and 16, Table II's modes on the clock; the paper's bundle by its own mode beside them.
modes() {
    json "$here/fast.json" "$moec" compile "$model" --profile "$here/profile.h5" --max-loss 2% --accept-miss \
        --copies 4,8,16 --force -o "$here/fast.moec"
    timed bench fast --memory "$(experts $buffer),25%,50%,100%" --against-none
    timed bench-paper paper-2 --memory "$(experts $buffer),25%,50%,100%" --modes edgemoe
    fast_storage=$storage storage=$slow_storage
    timed bench-slow fast --memory "$(experts $buffer)" --modes io-free,io-exp,io-qexp,sti,edgemoe
    timed bench-slow-paper paper-2 --memory "$(experts $buffer)" --modes edgemoe
    storage=$fast_storage
}
leaves_modes() {
    echo fast bench bench-paper bench-slow bench-slow-paper
}

limits() {
    limited limits fast
    limited limits-paper paper-2
}
leaves_limits() {
    echo limits limits-paper
}

# Fig. 17.
latencies() {
    for target in $targets; do
        timed "bench-$target" "ours-$target" --modes edgemoe --memory "$(experts $buffer)"
        timed "bench-paper-$target" "paper-$target" --modes edgemoe --memory "$(experts $buffer)"
    done
}
leaves_latencies() {
    for target in $targets; do echo "bench-$target" "bench-paper-$target"; done
}

# Fig. 14.
evictions() {
    buffers="$(experts 5),$(experts 10),$(experts 15),$(experts 20),$(experts 30),$(experts 40)"
    for bundle in ours paper; do
        json "$here/evictions-$bundle.json" "$moec" simulate "$here/profile.h5" --model "$here/$bundle-2.moec" \
            --predict none --evict $evictions --memory "$buffers"
    done
}
leaves_evictions() {
    echo evictions-ours evictions-paper
}

# Names of the sample: model, task, calibration, test, n_expert, tokens; rows to profile on; metric of the search
# (empty: the profile's).
measure() {
    run_parts "${PARTS:-profiles uniforms targets papers quantizers calibrations modes limits latencies evictions}"
}

measure_switch() {
    here=$folder/switch model=datasets/switch-sample/model task=dialogues ending=jsonl n_expert=48 tokens=14
    calibration=datasets/switch-sample/calibration.jsonl test=datasets/switch-sample/test.jsonl
    rows=${ROWS:-256} metric=rouge-2
    mkdir -p "$here"
    grep '"style": "friends"' $calibration >"$here/calibration-like.jsonl"
    grep '"style": "service"' $calibration >"$here/calibration-other.jsonl"
    grep '"style": "friends"' $test >"$here/test-like.jsonl"
    measure
}

# Paragraphs of the kinds with more figures than words, and of the others.
measure_decoder() {
    here=$folder/decoder model=datasets/sample/model task=text ending=txt n_expert=96 tokens=32
    calibration=datasets/sample/calibration.txt test=datasets/sample/test.txt
    rows=${ROWS:-64} metric=''
    mkdir -p "$here"
    counted='BEGIN { RS = ""; ORS = "\n\n" } (/^(\[Game|Problem)/) == counted'
    awk -v counted=1 "$counted" $calibration >"$here/calibration-like.txt"
    awk -v counted=0 "$counted" $calibration >"$here/calibration-other.txt"
    awk -v counted=1 "$counted" $test >"$here/test-like.txt"
    measure
}

test_rows=
[ "${TEST_ROWS:-0}" -eq 0 ] || test_rows="--samples $TEST_ROWS"
windows=
[ -z "${SEQ_LEN:-}" ] || windows="--seq-len $SEQ_LEN"
mkdir -p "$folder"
for sample in ${SAMPLES:-switch decoder}; do
    say "the $sample sample"
    "measure_$sample"
done
"$build/tools/paper_report" edgemoe "$folder"

# A whole run leaves no sentence of the page unmeasured.
[ -z "${PARTS:-}${TARGETS:-}" ] || exit 0
for sample in ${SAMPLES:-switch decoder}; do
    awk -F'\t' '$4 == "not measured" { print $1 ": " $2 }' "$folder/${sample}_goals.tsv" \
        "$folder/${sample}_findings.tsv"
done >"$folder/unmeasured"
[ ! -s "$folder/unmeasured" ] || {
    sed 's/^/edgemoe.sh: not measured: /' "$folder/unmeasured" >&2
    exit 1
}
