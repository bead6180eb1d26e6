#!/bin/sh
# Decisions per token measured through moec: routing that prefers a cache (cache-conditional experts), precision at a
# miss, preloading and eviction (HOBBIT), prompts and mispredictions (Fate), tasks, settings with a certificate, and
# what all of them gain in time. Writes FOLDER/report.html and FOLDER/*.tsv. What FOLDER holds already is not measured
# again, so that a run can be interrupted; remove a file to measure it anew. On a machine with nothing else to do.
#
#     experiments/decisions.sh [FOLDER [MODEL CALIBRATION TEST]]        (default build/experiment-decisions)
#
# The model is that of datasets/sample, or a Hugging Face folder with two texts: one to tune on, one to measure on.
#
# TASKS ("mmlu:FILE gsm8k:FILE") measures tasks of published data, too, besides those that are made of the test text.
#
# Shorter, for trying: WINDOWS (of the test text; 0 = all), SEQ_LEN (tokens of a window), PARTS (as in the last lines),
# STUDY_SAMPLES (windows of the studies), SIZES (slots in eighths of the experts; 2 and 4 must be there), PRIORS, RANKS
# (beyond the experts of a token), SHARES, KEEPS, PAIRS (bits:low bits), QUANTIZER (of bundles that are timed; Fate's),
# SCORES, ALWAYS, BOTH, WIDTHS (foreseen by Fate), PRIORS_MIXED, SCORES_MIXED, UNPOPULAR (shares of a prefill), PROMPT
# (its tokens), PRIORS_TIMED, SYSTEM_PAIRS, SYSTEM_PROMPTS, FATE_PROMPTS, TASK_ROWS (0 = all), TARGET (of the tunings)
# and HALF_TARGET (of bits that leave room for decisions), TUNE_SAMPLES, TUNINGS, PREDICTORS, BENCH_SAMPLES, TOKENS.
set -eu
build=${MOEC_BUILD:-build}
moec=${MOEC:-$build/moec}
folder=${1:-build/experiment-decisions}
model=${2:-datasets/sample/model}
calibration=${3:-datasets/sample/calibration.txt}
test=${4:-datasets/sample/test.txt}
if [ $# -gt 1 ]; then name=$(basename "$model"); else name=sample; fi
here=$folder/$name
# shellcheck source=experiments/measure.inc
. experiments/measure.inc

# measure GROUP/NAME MODEL REFERENCE OPTIONS...: loss and misses on the test text.
measure() {
    file=$1 what=$2 reference=$3
    shift 3
    # shellcheck disable=SC2086 # options and their numbers
    json "$here/$file.json" "$moec" eval "$what" --data "$test" --reference "$reference" $windows $seq_len "$@"
}

# model.json: what the model is; int8.moec knows how often calibration used each expert.
prepare() {
    mkdir -p "$here"
    # shellcheck disable=SC2086
    json "$here/profile.json" "$moec" profile "$model" --data "$calibration" --samples "$tune_samples" $seq_len \
        --sensitivity fast --resume --force -o "$here/profile.h5"
    json "$here/int8.json" "$moec" compile "$model" --policy uniform --bits 8 --profile "$here/profile.h5" --force \
        -o "$here/int8.moec"
    [ -e "$here/model.json" ] || {
        "$moec" inspect "$here/int8.moec" --json >"$here/model.json.new"
        mv "$here/model.json.new" "$here/model.json"
    }
    n_expert=$(sed -n 's/^ *"experts": *\([0-9]*\).*/\1/p' "$here/model.json" | head -n 1)
    top_k=$(sed -n 's/^ *"top_k": *\([0-9]*\).*/\1/p' "$here/model.json" | head -n 1)
    # The best experts that the paper keeps in any case: 2 of many a token, else 1.
    usual_keep=$((top_k > 2 ? 2 : 1))
}

# Fig. 2 and appendix A of the same: experts dropped and exchanged by rank, and every expert in the place of a token's
# last; few windows, since these take a pass for nearly every expert of a layer.
studies() {
    # shellcheck disable=SC2086
    json "$here/studies.json" "$moec" profile "$model" --data "$calibration" --samples "${STUDY_SAMPLES:-32}" $seq_len \
        --sensitivity none --study ranks,choices --force -o "$here/studies.h5"
}
leaves_studies() {
    echo studies
}

# Fig. 4, 9, 10 and Table 2 of cache-conditional experts: the checkpoint against itself. A cache holds at least the
# experts of a token.
routes() {
    mkdir -p "$here/routes"
    for eighths in ${SIZES:-0 1 2 3 4 6 7}; do
        slots=$((n_expert * eighths / 8))
        [ "$slots" -ge "$top_k" ] || slots=$top_k
        measure "routes/top-k-$slots" "$model" "$model" --route top-k --slots "$slots"
        for prior in ${PRIORS:-0.05 0.1 0.15 0.2 0.3 0.5 0.8}; do
            measure "routes/prior-$prior-$slots" "$model" "$model" --route "cache-prior:$prior" --slots "$slots"
        done
        [ "$eighths" -eq 2 ] || [ "$eighths" -eq 4 ] || continue
        for n in $(seq 1 $((top_k - 1))); do
            measure "routes/prune-$n-$slots" "$model" "$model" --route "prune:$n" --slots "$slots"
        done
        for keep in ${KEEPS:-0 $usual_keep}; do
            [ "$keep" -lt "$top_k" ] || continue
            for prior in ${PRIORS:-0.05 0.1 0.15 0.2 0.3 0.5 0.8}; do
                [ "$keep" -eq 0 ] || measure "routes/prior-$prior-$slots-keep-$keep" "$model" "$model" \
                    --route "cache-prior:$prior" --slots "$slots" --keep-top "$keep"
            done
            for beyond in ${RANKS:-1 2 4 8}; do
                [ $((top_k + beyond)) -le "$n_expert" ] || continue
                measure "routes/rank-$((top_k + beyond))-$slots-keep-$keep" "$model" "$model" \
                    --route "max-rank:$((top_k + beyond))" --slots "$slots" --keep-top "$keep"
            done
            for share in ${SHARES:-0.4 0.6 0.8 0.9 0.95}; do
                measure "routes/cumsum-$share-$slots-keep-$keep" "$model" "$model" --route "cumsum:$share" \
                    --slots "$slots" --keep-top "$keep"
            done
        done
    done
}
leaves_routes() {
    for eighths in ${SIZES:-0 1 2 3 4 6 7}; do
        slots=$((n_expert * eighths / 8))
        [ "$slots" -ge "$top_k" ] || slots=$top_k
        for prior in ${PRIORS:-0.05 0.1 0.15 0.2 0.3 0.5 0.8}; do
            echo "routes/top-k-$slots" "routes/prior-$prior-$slots"
        done
    done
}

# Fig. 18 of the same: the cache empty or filled at first; the best expert is kept in any case.
starts() {
    mkdir -p "$here/starts"
    [ "$top_k" -gt 1 ] || return 0
    for start in empty frequency; do
        measure "starts/top-k-$start" "$here/int8.moec" "$model" --route top-k --cache-start $start
        for prior in ${PRIORS:-0.2 0.5 0.8}; do
            measure "starts/prior-$prior-$start" "$here/int8.moec" "$model" --route "cache-prior:$prior" \
                --keep-top 1 --cache-start $start
        done
    done
}
leaves_starts() {
    [ "$top_k" -eq 1 ] || echo starts/top-k-empty starts/top-k-frequency
}

# Fig. 15 of the same: the range that a prior is a share of.
ranges() {
    mkdir -p "$here/ranges"
    [ "$top_k" -gt 1 ] || return 0
    for range in running calibrated own; do
        for prior in ${PRIORS:-0.1 0.2 0.3 0.5}; do
            measure "ranges/prior-$prior-$range" "$here/int8.moec" "$model" --route "cache-prior:$prior:$range"
        done
    done
}
leaves_ranges() {
    [ "$top_k" -gt 1 ] || return 0
    for prior in ${PRIORS:-0.1 0.2 0.3 0.5}; do
        for range in running calibrated own; do echo "ranges/prior-$prior-$range"; done
    done
}

# HOBBIT's precisions and Fate's, bundles of BITS with copies of LOW bits: against the bundle without decisions. Fate
# foresees a quarter of the experts (its 75th percentile), here also half and a quarter of that. The low slots are
# half as many as the others, and at least those of a token; "equal" has as many slots as the same memory holds without
# low copies. A token's only expert is never low.
pairs() {
    [ "$top_k" -gt 1 ] || return 0
    widths=${WIDTHS:-$((n_expert / 4)) $(((n_expert + 7) / 8)) $(((n_expert + 15) / 16))}
    for pair in ${PAIRS:-8:4 4:2}; do
        bits=${pair%:*} low=${pair#*:}
        group=pair-$bits-$low bundle=$here/pair-$bits-$low.moec
        mkdir -p "$here/$group"
        json "$here/$group.json" "$moec" compile "$model" --policy uniform --bits "$bits" --copies "$low" \
            --group "${GROUP:-32}" --force -o "$bundle"
        for eighths in 2 4; do
            slots=$((n_expert * eighths / 8)) low_slots=$((n_expert * eighths / 16))
            [ "$slots" -ge "$top_k" ] || continue
            [ "$low_slots" -ge "$top_k" ] || low_slots=$top_k
            equal=$((slots + (low_slots * low + bits - 1) / bits))
            measure "$group/none-$slots" "$bundle" "$bundle" --route top-k --slots "$slots"
            measure "$group/equal-$slots" "$bundle" "$bundle" --route top-k --slots "$equal"
            for score in ${SCORES:-0.9 0.8 0.6 0.4}; do
                for second in 1 "$score"; do
                    measure "$group/hobbit-$score-$second-$slots" "$bundle" "$bundle" \
                        --precision "hobbit:$score:$second" --slots "$slots" --low-slots "$low_slots"
                done
            done
            measure "$group/hobbit-0.6-0.9-$slots" "$bundle" "$bundle" --precision hobbit:0.6:0.9 --slots "$slots" \
                --low-slots "$low_slots"
            for width in $widths; do
                measure "$group/fate-$width-$slots" "$bundle" "$bundle" --precision "fate:$width" --slots "$slots" \
                    --low-slots "$low_slots"
            done
            for prior in ${PRIORS_MIXED:-0.1 0.2}; do
                measure "$group/prior-$prior-$slots" "$bundle" "$bundle" --route "cache-prior:$prior" --slots "$slots"
                for score in ${SCORES_MIXED:-0.8 0.6}; do
                    measure "$group/prior-$prior-hobbit-$score-$slots" "$bundle" "$bundle" \
                        --route "cache-prior:$prior" --precision "hobbit:$score:1" --slots "$slots" \
                        --low-slots "$low_slots"
                done
            done
        done
        for score in ${ALWAYS:-0.97 0.95 0.9 0.8 0.6 0.4}; do
            for second in 1 "$score"; do
                measure "$group/always-$score-$second" "$bundle" "$bundle" --precision "always:$score:$second"
            done
        done
        for both in ${BOTH:-0.4:0.9 0.6:0.8 0.6:0.9 0.8:0.95}; do
            measure "$group/always-${both%:*}-${both#*:}" "$bundle" "$bundle" --precision "always:$both"
        done
    done
}
leaves_pairs() {
    [ "$top_k" -gt 1 ] || return 0
    for pair in ${PAIRS:-8:4 4:2}; do
        group=pair-${pair%:*}-${pair#*:}
        echo "$group" "$group/always-0.6-0.6"
    done
}

# tuned NAME BUNDLE OPTIONS...: settings with a certificate, and what they lose on the test text.
tuned() {
    tuning=$1 bundle=$2
    shift 2
    mkdir -p "$here/tunings"
    # shellcheck disable=SC2086
    json "$here/tunings/$tuning.json" "$moec" tune "$here/$bundle.moec" --data "$calibration" --reference "$model" \
        --max-loss "${TARGET:-2%}" --decide all --samples "$tune_samples" $seq_len "$@" --force \
        -o "$here/tunings/$tuning.moec" || {
        [ $? -eq 1 ] || exit 1 # another error than that nothing is proven
        say "no settings of $tuning are proven"
        : >"$here/tunings/$tuning.unproven"
        return 0
    }
    measure "tunings/$tuning-test" "$here/tunings/$tuning.moec" "$model"
}

# judged TUNING: what it leaves, unless nothing was proven.
judged() {
    [ -e "$here/tunings/$1.unproven" ] || echo "tunings/$1"
}

# The eight combinations, and many tunings on windows that are drawn anew. Fate's prefill needs to know what calibration
# used, so the bundle has the profile; max-rank keeps the best experts as in the paper.
tunings() {
    json "$here/copies.json" "$moec" compile "$model" --policy uniform --bits 8 --copies 4 \
        --profile "$here/profile.h5" --force -o "$here/copies.moec"
    for with in route precision prefill rank route,precision route,prefill precision,prefill route,precision,prefill; do
        case $top_k,$with in 1,*precision*) continue ;; esac
        if [ "$with" = rank ] && [ "$top_k" -gt 1 ]; then
            tuned "with-$with" copies --with "$with" --keep-top "$usual_keep"
        else
            tuned "with-$with" copies --with "$with"
        fi
    done
    for seed in $(seq 1 "${TUNINGS:-20}"); do
        tuned "seed-$seed" copies --with route --seed "$seed"
        rm -f "$here/tunings/seed-$seed.moec"
    done
}
leaves_tunings() {
    echo copies
    for tuning in with-route seed-1; do judged "$tuning"; done
}

# timings GROUP/NAME BUNDLE OPTIONS...: rows of moec bench.
timings() {
    file=$1 what=$2
    shift 2
    json "$here/$file.json" "$moec" bench "$what" --data "$test" --samples "${BENCH_SAMPLES:-16}" "$@"
}

# A bundle of BITS with copies, which knows how often calibration used each expert.
known() {
    file=$1 bits=$2 copies=$3
    json "$here/$file.json" "$moec" compile "$model" --policy uniform --bits "$bits" --copies "$copies" \
        --group "${GROUP:-32}" --quantizer "$quantizer" --data "$calibration" --samples "$tune_samples" --force \
        -o "$here/$file.moec"
}

# Fate's Fig. 10 and Table 3, and a prompt's time in a quarter of the memory: the share of each layer's experts that few
# tokens of a prompt take, in a low copy, and the loss where it is those that most take, the figure's other line. Loss
# on windows as long as the prompt that is timed; for the table's two machines half of a window is a prompt.
prefills() {
    prompt=${PROMPT:-512}
    for pair in ${PAIRS:-8:4 4:2}; do
        bits=${pair%:*} low=${pair#*:}
        group=prefill-$bits-$low bundle=$here/prefill-$bits-$low.moec
        known "$group" "$bits" "$low"
        mkdir -p "$here/$group" "$here/$group-times"
        timings "$group-times/none" "$bundle" --modes cache --evict lru --predict none --memory 25% --tokens 8 \
            --prompt-tokens "$prompt" --emulate-storage 550MB/s,80us --emulate-storage 50MB/s,80us
        for share in ${UNPOPULAR:-0.25 0.3125 0.5 0.75 1}; do
            for how in "whole:$share" "unpopular:$share:$prompt"; do
                # shellcheck disable=SC2086
                json "$here/$group/${how%%:*}-$share.json" "$moec" eval "$bundle" --data "$test" --reference "$bundle" \
                    $windows --seq-len "$prompt" --prefill "$how" --slots 25%
                timings "$group-times/${how%%:*}-$share" "$bundle" --modes cache --evict lru --predict none \
                    --memory 25% --tokens 8 --prompt-tokens "$prompt" --emulate-storage 550MB/s,80us \
                    --emulate-storage 50MB/s,80us --prefill "$how" --slots 25%
            done
            # shellcheck disable=SC2086
            json "$here/$group/popular-$share.json" "$moec" eval "$bundle" --data "$test" --reference "$bundle" \
                $windows --seq-len "$prompt" --prefill "popular:$share" --slots 25%
        done
        [ "$top_k" -gt 1 ] || continue
        for machine in high low; do
            precision=
            [ $machine = high ] || precision="--precision fate"
            # shellcheck disable=SC2086
            json "$here/$group/$machine-end-0.25.json" "$moec" eval "$bundle" --data "$test" --reference "$bundle" \
                $windows --seq-len "$prompt" --prompt-tokens $((prompt / 2)) \
                --prefill "unpopular:0.25:$((prompt / 2))" $precision --slots 25%
        done
    done
}
leaves_prefills() {
    for pair in ${PAIRS:-8:4 4:2}; do
        group=prefill-${pair%:*}-${pair#*:}
        for share in ${UNPOPULAR:-0.25 0.3125 0.5 0.75 1}; do
            echo "$group/whole-$share" "$group/unpopular-$share" "$group-times/whole-$share" "$group/popular-$share"
        done
    done
}

# Fig. 8 of cache-conditional experts: tokens a second by hits and by the length of the prompt.
throughput() {
    [ "$top_k" -gt 1 ] || return 0
    mkdir -p "$here/throughput"
    for eighths in 4 6; do
        slots=$((n_expert * eighths / 8)) memory=$(awk -v n="$eighths" 'BEGIN { print 12.5 * n "%" }')
        for prompt in 50 350; do
            timings "throughput/prior-0-$slots-$prompt" "$here/int8.moec" --modes cache --evict lru --predict none \
                --memory "$memory" --emulate-storage 550MB/s,80us --prompt-tokens "$prompt" --tokens "${TOKENS:-32}" \
                --route top-k --slots "$slots"
            for prior in ${PRIORS_TIMED:-0.1 0.3 0.5 0.7 0.9}; do
                timings "throughput/prior-$prior-$slots-$prompt" "$here/int8.moec" --modes cache --evict lru \
                    --predict none --memory "$memory" --emulate-storage 550MB/s,80us --prompt-tokens "$prompt" \
                    --tokens "${TOKENS:-32}" --route "cache-prior:$prior" --slots "$slots" --keep-top "$usual_keep"
            done
        done
    done
}
leaves_throughput() {
    [ "$top_k" -gt 1 ] || return 0
    for slots in $((n_expert * 4 / 8)) $((n_expert * 6 / 8)); do
        for prompt in 50 350; do echo "throughput/prior-0-$slots-$prompt"; done
    done
}

# Slots of HOBBIT in half of the memory, of which a fifth goes to low copies.
divide_half() {
    slots=$((n_expert * 4 / 10)) low_slots=$((n_expert * 2 / 10))
    [ "$slots" -ge "$top_k" ] || slots=$top_k
    [ "$low_slots" -ge "$top_k" ] || low_slots=$top_k
}

# HOBBIT's Fig. 16 and 17: its precisions on and off, preloads by the gates of none to four layers ahead, in equal
# memory, of which a fifth goes to low copies; and what asking the gates costs where everything is in memory.
dynamic() {
    [ "$top_k" -gt 1 ] || return 0
    for pair in ${PAIRS:-8:4 4:2}; do
        bits=${pair%:*} low=${pair#*:}
        group=dynamic-$bits-$low bundle=$here/prefill-$bits-$low.moec
        known "prefill-$bits-$low" "$bits" "$low"
        mkdir -p "$here/$group"
        divide_half
        for ahead in 0 1 2 3 4; do
            predict="--predict none"
            [ "$ahead" -eq 0 ] || predict="--predict gate --preload-ahead $ahead"
            # shellcheck disable=SC2086 # options and their numbers
            timings "$group/off-$ahead" "$bundle" --modes cache --evict lru $predict --memory 50%,100% \
                --emulate-storage 550MB/s,80us --emulate-storage 50MB/s,80us --prompt-tokens 128 \
                --tokens "${TOKENS:-32}"
            # shellcheck disable=SC2086
            timings "$group/on-$ahead" "$bundle" --modes cache --evict lru $predict --memory 50% \
                --emulate-storage 550MB/s,80us --emulate-storage 50MB/s,80us --prompt-tokens 128 \
                --tokens "${TOKENS:-32}" --precision hobbit:0.6:0.9 --slots "$slots" --low-slots "$low_slots"
        done
    done
}
leaves_dynamic() {
    [ "$top_k" -gt 1 ] || return 0
    for pair in ${PAIRS:-8:4 4:2}; do
        for ahead in 0 1 2 3 4; do
            for side in on off; do echo "dynamic-${pair%:*}-${pair#*:}/$side-$ahead"; done
        done
    done
}

# HOBBIT's Fig. 14 in half of the memory: every expert for every token (as Transformers and DeepSpeed-Inference do),
# MoE-Offloading and MoE-Infinity by name, and HOBBIT with its thresholds, prompts by blocks, a fifth of the memory for
# low copies. Precisions as on its two machines.
systems() {
    [ "$top_k" -gt 1 ] || return 0
    mkdir -p "$here/systems"
    divide_half
    for pair in ${SYSTEM_PAIRS:-16:4 8:2}; do
        bits=${pair%:*} low=${pair#*:}
        bundle=$here/system-$bits-$low.moec
        known "system-$bits-$low" "$bits" "$low"
        for prompt in ${SYSTEM_PROMPTS:-16 128}; do
            for side in others hobbit; do
                decided="--modes cache --evict hobbit --predict gate --precision hobbit:0.6:0.9 --slots $slots"
                decided="$decided --low-slots $low_slots"
                [ $side = hobbit ] || decided="--modes sti,moe-offloading,moe-infinity"
                # shellcheck disable=SC2086 # options and their values
                timings "systems/$side-$bits-$low-$prompt" "$bundle" $decided --memory 50% \
                    --emulate-storage 550MB/s,80us --emulate-storage 50MB/s,80us --prompt-tokens "$prompt" \
                    --tokens "${TOKENS:-32}"
            done
        done
    done
}
leaves_systems() {
    [ "$top_k" -gt 1 ] || return 0
    for pair in ${SYSTEM_PAIRS:-16:4 8:2}; do
        for prompt in ${SYSTEM_PROMPTS:-16 128}; do
            for side in others hobbit; do echo "systems/$side-${pair%:*}-${pair#*:}-$prompt"; done
        done
    done
}

# What a prompt reads in half of the memory, of the same figures: without decisions, where each of its tokens decides by
# itself, and by blocks; and what its own tokens lose. Windows are as long as a block, so that each is one prompt.
blocks() {
    [ "$top_k" -gt 1 ] || return 0
    divide_half
    for pair in ${SYSTEM_PAIRS:-16:4 8:2} ${PAIRS:-8:4 4:2}; do
        bits=${pair%:*} low=${pair#*:}
        bundle=$(blocks_bundle "$bits" "$low") group=blocks-$bits-$low
        known "$bundle" "$bits" "$low"
        mkdir -p "$here/$group" "$here/$group-times"
        for way in none:none tokens:0 blocks:128; do
            decided=
            [ $way = none:none ] || decided="--precision hobbit:0.6:0.9:${way#*:} --slots $slots --low-slots $low_slots"
            # shellcheck disable=SC2086 # options and their values
            timings "$group-times/${way%:*}" "$here/$bundle.moec" --modes cache --evict lru --predict none \
                --memory 50% --emulate-storage 550MB/s,80us --emulate-storage 50MB/s,80us --prompt-tokens 128 \
                --tokens 4 $decided
            # shellcheck disable=SC2086
            [ -z "$decided" ] || json "$here/$group/${way%:*}.json" "$moec" eval "$here/$bundle.moec" --data "$test" \
                --reference "$here/$bundle.moec" $windows --seq-len 128 $decided
        done
    done
}
leaves_blocks() {
    [ "$top_k" -gt 1 ] || return 0
    for pair in ${SYSTEM_PAIRS:-16:4 8:2} ${PAIRS:-8:4 4:2}; do
        group=blocks-${pair%:*}-${pair#*:}
        for way in none tokens blocks; do echo "$group-times/$way"; done
        echo "$group/tokens" "$group/blocks"
    done
}

# Bundles that other parts time: those of Fig. 14 are called system-*.
blocks_bundle() {
    case $1-$2 in
    16-4 | 8-2) echo "system-$1-$2" ;;
    *) echo "prefill-$1-$2" ;;
    esac
}

# replayed NAME OPTIONS...: routing of the test text, token by token, on an emulated device.
replayed() {
    file=$1
    shift
    json "$here/evictions/$file.json" "$moec" simulate "$here/routing.h5" --model "$here/int8.moec" --predict none \
        --device-file "$here/device.json" --emulate-storage 550MB/s,80us "$@"
}

# HOBBIT's Fig. 18: evictions on the test text; its weights are tuned on calibration. Weights of uses or of
# recency alone are lfu and lru that forget at the end of each window.
evictions() {
    mkdir -p "$here/evictions"
    # shellcheck disable=SC2086
    json "$here/routing.json" "$moec" profile "$model" --data "$test" --samples "${STUDY_SAMPLES:-32}" $seq_len \
        --sensitivity none --force -o "$here/routing.h5"
    [ -e "$here/device.json" ] || "$moec" device "$here/int8.moec" --quiet -o "$here/device.json" >/dev/null
    for memory in 25 50; do
        json "$here/tuned-evict-$memory.json" "$moec" simulate "$here/profile.h5" --model "$here/int8.moec" \
            --predict none --evict hobbit --search-evict --memory "$memory%" --device-file "$here/device.json" \
            --emulate-storage 550MB/s,80us
        weights=$(sed -n 's/^ *"evict_weights": *"\([0-9.:]*\)".*/\1/p' "$here/tuned-evict-$memory.json" | head -n 1)
        replayed "policies-$memory" --evict random,lru,lfu,arc,edgemoe,hobbit --memory "$memory%"
        replayed "tuned-$memory" --evict "hobbit:$weights" --memory "$memory%"
        replayed "window-lfu-$memory" --evict hobbit:0:1:0:0 --memory "$memory%"
        replayed "window-lru-$memory" --evict hobbit:1:0:0:0 --memory "$memory%"
    done
}
leaves_evictions() {
    for memory in 25 50; do echo "tuned-evict-$memory" "evictions/policies-$memory" "evictions/tuned-$memory"; done
}

# Fate's Fig. 11 to 14: prompts and tokens by memory. Load on demand and activation paths by name (lod, eap), the first
# in 16 bits, too; Fate keeps shallow layers and preloads by the next gate, with unpopular experts of prompts in a low
# copy, and on its slower machine mispredicted ones too.
fate() {
    [ "$top_k" -gt 1 ] || return 0
    mkdir -p "$here/fate"
    known fate-bundle 4 2,16
    for prompt in ${FATE_PROMPTS:-128 256 512}; do
        for side in others none gate low; do
            decided="--modes cache --evict fate --predict gate --slots 25% --prefill unpopular:0.25:$prompt"
            case $side in
            others) decided="--modes lod,eap,io-exp,io-exp+lru" ;;
            none) decided="--modes cache --evict fate --predict none" ;;
            low) decided="$decided --precision fate" ;;
            esac
            # shellcheck disable=SC2086 # options and their values
            timings "fate/$side-$prompt" "$here/fate-bundle.moec" $decided --memory 12.5%,25%,50%,75% \
                --emulate-storage 550MB/s,80us --emulate-storage 50MB/s,80us --prompt-tokens "$prompt" --tokens 16
        done
    done
}
leaves_fate() {
    [ "$top_k" -gt 1 ] || return 0
    for prompt in ${FATE_PROMPTS:-128 256 512}; do
        for side in others none gate low; do echo "fate/$side-$prompt"; done
    done
}

# scored TASK DESCRIPTION DATA: a task with all experts at one bitwidth and with decisions, against the checkpoint.
scored() {
    task=$1 description=$2 data=$3
    for side in int8 int4 int2 fate-high fate-low hobbit-16-4 hobbit-8-2; do
        bundle=task-$side decided=
        case $side in
        fate-*) bundle=prefill-4-2 decided="--prefill unpopular:0.25:64 --slots 25%" ;;
        hobbit-*) bundle=system-${side#hobbit-} decided="--precision hobbit" ;;
        esac
        [ $side != fate-low ] || decided="$decided --precision fate"
        # shellcheck disable=SC2086 # options and their values
        json "$here/tasks/$task-$side.json" "$moec" eval "$here/$bundle.moec" --task "$description" --data "$data" \
            --reference "$model" $task_rows $decided
    done
}

# Fate's Tables 2 and 3 and HOBBIT's Table 3. Which of four lines follows, and which word, can be asked of any text, so
# that a model too small for the papers' tasks has something to lose.
tasks() {
    [ "$top_k" -gt 1 ] || return 0
    mkdir -p "$here/tasks"
    for bits in 8 4 2; do
        json "$here/task-int$bits.json" "$moec" compile "$model" --policy uniform --bits "$bits" \
            --group "${GROUP:-32}" --quantizer "$quantizer" --force -o "$here/task-int$bits.moec"
    done
    known prefill-4-2 4 2
    known system-16-4 16 4
    known system-8-2 8 2
    for task in line word; do
        LC_ALL=C awk -v task=$task -f experiments/text_rows.awk "$test" >"$here/tasks/$task.jsonl"
        scored $task "experiments/$task.lua" "$here/tasks/$task.jsonl"
    done
    for task in ${TASKS:-}; do
        scored "${task%%:*}" "${task%%:*}" "${task#*:}"
    done
}
leaves_tasks() {
    [ "$top_k" -gt 1 ] || return 0
    for side in int8 int4 int2 fate-high fate-low hobbit-16-4 hobbit-8-2; do
        for task in line word ${TASKS:-}; do echo "tasks/${task%%:*}-$side"; done
    done
}

# As much memory as $share % of the static bundle's experts take, in percent of a bundle's own.
equal_memory() {
    awk -v share="$share" -v static="$static" -v own="$(expert_bytes "$here/$1.moec")" 'BEGIN {
        part = share * static / own
        printf "%.1f%%", part < 100 ? part : 100 }'
}

# timed SIDE BUNDLE: time per token in equal memory, by each predictor.
timed() {
    memory=$(equal_memory "$2")
    for rate in 550 50; do
        for predict in ${PREDICTORS:-none gate}; do
            json "$here/decoding/$1-$share-$rate-$predict.json" "$moec" bench "$here/$2.moec" --modes cache \
                --evict lru --predict "$predict" --memory "$memory" --emulate-storage "${rate}MB/s,80us" \
                --data "$test" --samples "${BENCH_SAMPLES:-8}" --prompt-tokens 32 --tokens "${TOKENS:-64}"
        done
    done
}

# fitting BUNDLE OPTIONS...: sets $slots, the most of a logical cache that stay in equal memory by these decisions, and
# $low_slots, half as many. Records of several sizes make fewer than the share of the bytes. Asked once.
fitting() {
    found=$here/decoding/slots-$share$(printf %s "$*" | tr -c 'a-z0-9.-' _)
    [ -s "$found" ] || fit_slots "$@"
    read -r slots low_slots <"$found"
}
fit_slots() {
    bundle=$1 own=$(expert_bytes "$here/$1.moec")
    shift
    slots=$(((n_expert * share * static + 100 * own - 1) / (100 * own) + 1))
    [ "$slots" -le "$n_expert" ] || slots=$((n_expert + 1))
    while [ "$slots" -gt "$top_k" ]; do
        slots=$((slots - 1)) low_slots=$((slots / 2)) low=
        [ "$low_slots" -ge "$top_k" ] || low_slots=$top_k
        case $* in *hobbit*) low="--low-slots $low_slots" ;; esac
        # shellcheck disable=SC2086
        if "$moec" bench "$here/$bundle.moec" --modes cache --evict lru --predict none \
            --memory "$(equal_memory "$bundle")" "$@" --slots "$slots" $low --data "$test" --samples 1 \
            --prompt-tokens 1 --tokens 1 --quiet --json |
            grep -m 1 '"keeps_logical_cache"' | grep -q true; then
            echo "$slots $low_slots" >"$found"
            return
        fi
    done
    echo "$top_k $top_k" >"$found"
}

# Decoding on slow storage: a bundle that spends the whole target on bits, and one that leaves half of it to decisions,
# in the same memory. Settings are certified on other windows than bits, so that one promise is kept. Precisions need
# high copies of more bits than the low ones: where two bits lose next to nothing, half of the target buys no more, so
# they start from four bits. A third of their slots are low copies.
decoding() {
    [ "$top_k" -gt 1 ] || return 0
    mkdir -p "$here/decoding"
    json "$here/static.json" "$moec" compile "$model" --profile "$here/profile.h5" --max-loss "${TARGET:-2%}" --force \
        -o "$here/static.moec"
    json "$here/base.json" "$moec" compile "$model" --profile "$here/profile.h5" --max-loss "${HALF_TARGET:-1%}" \
        --force -o "$here/base.moec"
    known base-4-2 4 2
    static=$(expert_bytes "$here/static.moec")
    for share in 25 50; do
        fitting base --route top-k
        tuned "decoding-route-$share" base --with route,skip --slots "$slots" --seed 11
        fitting base-4-2 --precision hobbit:0.6:0.9
        for with in precision route,precision; do
            tuned "decoding-$with-$share" base-4-2 --with "$with" --slots "$slots" --low-slots "$low_slots" --seed 11
        done
        timed static static
        for with in route precision route,precision; do
            [ ! -e "$here/tunings/decoding-$with-$share.moec" ] || timed "$with" "tunings/decoding-$with-$share"
        done
    done
}
leaves_decoding() {
    [ "$top_k" -gt 1 ] || return 0
    echo base base-4-2
    for share in 25 50; do
        for with in route precision route,precision; do judged "decoding-$with-$share"; done
        for predict in ${PREDICTORS:-none gate}; do echo "decoding/static-$share-550-$predict"; done
    done
}

windows=
[ "${WINDOWS:-0}" -eq 0 ] || windows="--samples $WINDOWS"
task_rows=
[ "${TASK_ROWS:-0}" -eq 0 ] || task_rows="--samples $TASK_ROWS"
seq_len=
[ -z "${SEQ_LEN:-}" ] || seq_len="--seq-len $SEQ_LEN"
tune_samples=${TUNE_SAMPLES:-96}
quantizer=${QUANTIZER:-hqq}
prepare
run_parts "${PARTS:-studies routes starts ranges pairs prefills throughput dynamic systems blocks evictions fate \
    tasks tunings decoding}"
"$build/tools/paper_report" decisions "$folder"
[ -z "${PARTS:-}" ] && [ "$top_k" -gt 1 ] || exit 0
tells "$folder/${name}_goals.tsv" cache-prior certificates combinations decoding HOBBIT prompts Fate
tells "$folder/${name}_findings.tsv" 'Fig. 2' 'appendix A' 'Fig. 4' 'Fig. 8' 'Fig. 8 and 17' 'Fig. 9' 'Fig. 10' \
    'Fig. 14' 'Fig. 15' 'Fig. 18' 'Table 2' 'section 4.5' 'section 4.8' abstract
for figure in 'Fig. 3b' 'Fig. 5b' 'Fig. 14' 'Fig. 16' 'Fig. 17a' 'Fig. 17b' 'Fig. 18a' 'Fig. 18b' 'Table 3' \
    'section 2.2'; do
    tells "$folder/${name}_findings.tsv" "HOBBIT, $figure"
done
for figure in 'Fig. 9' 'Fig. 10' 'Fig. 11' 'Fig. 12' 'Fig. 13' 'Fig. 14' 'Table 2' 'Table 3'; do
    tells "$folder/${name}_findings.tsv" "Fate, $figure"
done
