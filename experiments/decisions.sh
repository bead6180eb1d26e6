#!/bin/sh
# Decisions per token measured through moec: routing that prefers a cache (cache-conditional experts), precision at a
# miss (HOBBIT), both together, settings with a certificate, and what they gain in time. Writes FOLDER/report.html and
# FOLDER/*.tsv. What FOLDER holds already is not measured again, so that a run can be interrupted; remove a file to
# measure it anew. On a machine with nothing else to do.
#
#     experiments/decisions.sh [FOLDER [MODEL CALIBRATION TEST]]        (default build/experiment-decisions)
#
# The model is that of datasets/sample, or a Hugging Face folder with two texts: one to tune on, one to measure on.
#
# Shorter, for trying: WINDOWS (of the test text; 0 = all), SEQ_LEN (tokens of a window), PARTS ("routes starts ranges
# pairs tunings decoding"), SIZES (slots in eighths of the experts; 2 and 4 must be there), PRIORS, RANKS (beyond the
# experts of a token), SHARES, KEEPS, PAIRS (bits:low bits), SCORES, ALWAYS, WIDTHS (foreseen by Fate), PRIORS_MIXED,
# SCORES_MIXED, TARGET (of the tunings) and HALF_TARGET (of bits that leave room for decisions), TUNE_SAMPLES, TUNINGS,
# PREDICTORS, BENCH_SAMPLES, TOKENS.
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
    [ -e "$here/model.json" ] || "$moec" inspect "$here/int8.moec" --json >"$here/model.json"
    n_expert=$(sed -n 's/^ *"experts": *\([0-9]*\).*/\1/p' "$here/model.json" | head -n 1)
    top_k=$(sed -n 's/^ *"top_k": *\([0-9]*\).*/\1/p' "$here/model.json" | head -n 1)
    # The best experts that the paper keeps in any case: 2 of many a token, else 1.
    usual_keep=$((top_k > 2 ? 2 : 1))
}

# Fig. 4, 9, 10 and Table 2 of cache-conditional experts: the checkpoint against itself.
routes() {
    mkdir -p "$here/routes"
    for eighths in ${SIZES:-2 3 4 6}; do
        slots=$((n_expert * eighths / 8))
        [ "$slots" -ge "$top_k" ] || continue
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
                    measure "$group/hobbit-$score-$second-$slots" "$bundle" "$bundle" --precision "hobbit:$score:$second" \
                        --slots "$slots" --low-slots "$low_slots"
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
                    measure "$group/prior-$prior-hobbit-$score-$slots" "$bundle" "$bundle" --route "cache-prior:$prior" \
                        --precision "hobbit:$score:1" --slots "$slots" --low-slots "$low_slots"
                done
            done
        done
        for score in ${ALWAYS:-0.97 0.95 0.9 0.8 0.6 0.4}; do
            for second in 1 "$score"; do
                measure "$group/always-$score-$second" "$bundle" "$bundle" --precision "always:$score:$second"
            done
        done
        measure "$group/always-0.6-0.9" "$bundle" "$bundle" --precision always:0.6:0.9
    done
}

# tuned NAME BUNDLE OPTIONS...: settings with a certificate, and what they lose on the test text.
tuned() {
    tuning=$1 bundle=$2
    shift 2
    mkdir -p "$here/tunings"
    # shellcheck disable=SC2086
    json "$here/tunings/$tuning.json" "$moec" tune "$here/$bundle.moec" --data "$calibration" --reference "$model" \
        --max-loss "${TARGET:-2%}" --samples "$tune_samples" $seq_len "$@" --force -o "$here/tunings/$tuning.moec" || {
        say "no settings of $tuning are proven"
        return 0
    }
    measure "tunings/$tuning-test" "$here/tunings/$tuning.moec" "$model"
}

# The eight combinations, and many tunings on windows that are drawn anew. Fate's prefill needs to know what calibration
# used, so the bundle has the profile; max-rank keeps the best experts as in the paper.
tunings() {
    json "$here/copies.json" "$moec" compile "$model" --policy uniform --bits 8 --copies 4 --profile "$here/profile.h5" --force \
        -o "$here/copies.moec"
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

# timed SIDE BUNDLE: time per token in as much memory as $share % of the static bundle's experts take, by each predictor.
timed() {
    memory=$(awk -v share="$share" -v static="$static" -v own="$(expert_bytes "$here/$2.moec")" 'BEGIN {
        part = share * static / own
        printf "%.1f%%", part < 100 ? part : 100 }')
    for rate in 550 50; do
        for predict in ${PREDICTORS:-none gate}; do
            json "$here/decoding/$1-$share-$rate-$predict.json" "$moec" bench "$here/$2.moec" --modes cache --evict lru \
                --predict "$predict" --memory "$memory" --emulate-storage "${rate}MB/s,80us" --data "$test" \
                --samples "${BENCH_SAMPLES:-4}" --prompt-tokens 32 --tokens "${TOKENS:-32}"
        done
    done
}

# Decoding on slow storage: a bundle that spends the whole target on bits, and one that leaves half of it to decisions,
# in the same memory. Of decisions with a precision a fifth of the memory goes to low copies.
decoding() {
    [ "$top_k" -gt 1 ] || return 0
    mkdir -p "$here/decoding"
    json "$here/static.json" "$moec" compile "$model" --profile "$here/profile.h5" --max-loss "${TARGET:-2%}" --force \
        -o "$here/static.moec"
    json "$here/base.json" "$moec" compile "$model" --profile "$here/profile.h5" --max-loss "${HALF_TARGET:-1%}" --copies 2 \
        --force -o "$here/base.moec"
    static=$(expert_bytes "$here/static.moec")
    for share in 25 50; do
        part=$(awk -v share="$share" -v static="$static" -v own="$(expert_bytes "$here/base.moec")" 'BEGIN { printf "%.0f", share * static / own }')
        tuned "decoding-route-$share" base --with route --slots "$part%"
        for with in precision route,precision; do
            tuned "decoding-$with-$share" base --with "$with" --slots "$((part * 4 / 5))%" --low-slots "$((part * 2 / 5))%"
        done
        timed static static
        for with in route precision route,precision; do
            timed "$with" "tunings/decoding-$with-$share"
        done
    done
}

windows=
[ "${WINDOWS:-60}" -eq 0 ] || windows="--samples ${WINDOWS:-60}"
seq_len=
[ -z "${SEQ_LEN:-}" ] || seq_len="--seq-len $SEQ_LEN"
tune_samples=${TUNE_SAMPLES:-96}
prepare
for part in ${PARTS:-routes starts ranges pairs tunings decoding}; do
    say "$name: $part"
    $part
done
"$build/tools/decisions_report" "$folder"
