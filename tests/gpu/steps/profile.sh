#!/bin/sh
# How long profiles take on the device. Usage: profile.sh quill|make|olmoe. quill: the exact profile of a small trained
# checkpoint, a folder that MOEC_QUILL names, with its calibration.txt; make, then olmoe: the fast one of a random model
# of the shape of OLMoE-1B-7B.
# shellcheck source=tests/gpu/steps/step.inc
. tests/gpu/steps/step.inc
moec=$(program moec) && make_checkpoint=$(program make_random_checkpoint) || exit 1
checkpoint=$work/olmoe

# profile SECONDS MODEL DATA SENSITIVITY: in at most so many, as a goal.
profile() {
    started=$(date +%s%N)
    "$moec" profile "$2" --data "$3" --sensitivity "$4" --device cuda -o "$work/profile.h5" --force --quiet || exit 1
    figure "profile" "$(awk -v ns="$(($(date +%s%N) - started))" 'BEGIN { print ns / 1e9 }')" "s" "<= $1"
    "$moec" profile --show "$work/profile.h5"
    rm "$work/profile.h5"
}
case $1 in
quill)
    [ -n "${MOEC_QUILL:-}" ] || impossible "MOEC_QUILL names no checkpoint"
    [ -r "$MOEC_QUILL/calibration.txt" ] || impossible "'$MOEC_QUILL' has no calibration.txt"
    profile 60 "$MOEC_QUILL" "$MOEC_QUILL/calibration.txt" exact
    ;;
make)
    "$make_checkpoint" --tokenizer datasets/sample/model/tokenizer.json --preset olmoe-1b-7b "$checkpoint" || exit 1
    figure "checkpoint" "$(du -sb "$checkpoint" | cut -f 1)" "bytes"
    ;;
olmoe)
    [ -d "$checkpoint" ] || impossible "there is no checkpoint: profile-make was not done"
    cat docs/*.md formats/*/*.md >"$work/calibration.txt"
    profile 300 "$checkpoint" "$work/calibration.txt" fast
    rm -rf "$checkpoint"
    ;;
*)
    echo "unknown profile '$1'"
    exit 2
    ;;
esac
