#!/bin/sh
# Whether two builds of moec write the same bytes: profiles, bundles, decoded folders, texts, losses and simulations of
# the samples, of every family's fixture, and of another model where one is named.
#
#     make && make build/tools/logits    # in both trees
#     tests/large/same_outputs.sh BEFORE AFTER [MODEL DATA]
#
# BEFORE and AFTER are build folders with moec and tools/logits; MODEL is a Hugging Face folder and DATA a text for it.
# Each output is a line: its digest, its name, and "same", "DIFFERS" or the reason why a difference is expected (below).
# Ends with 1 when anything differs that is not expected to. Two minutes on two cores; ten with a MODEL of 60 MB. What
# BEFORE writes stays in BEFORE/same-outputs for the next time.
set -eu
[ $# -eq 2 ] || [ $# -eq 4 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n '5p' >&2; exit 2; }
before=$(realpath "$1") after=$(realpath "$2")
model=${3:+$(realpath "$3")} data=${4:+$(realpath "$4")}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# same_numbers OUTPUT: whether both builds write the same numbers in the same order, whatever the words between them.
same_numbers() {
    for side in "$kept" "$work/after"; do
        tr -cs '0-9' '\n' <"$side/$1" >"$work/numbers.${side##*/}"
    done
    cmp -s "$work/numbers.${kept##*/}" "$work/numbers.after"
}

# expected OUTPUT: prints why this output may differ; nothing where it may not.
expected() {
    case $1 in
    *.show.txt | *.simulate.json)
        same_numbers "$1" && echo "words: the same numbers in other sentences"
        ;;
    *.inspect.json) echo "members: codecs of projections and dense matrices are listed" ;;
    *.html | *-plots/*.svg) echo "words: captions in plain sentences; the CSV beside a plot holds its numbers" ;;
    *) ;;
    esac
}

# What depends on the clock is left out of JSON.
without_times() {
    sed -E '/"[a-z_]*(_ns|_seconds|seconds|_per_second|peak_bytes|rss_bytes)": /d'
}

# Everything that one build makes, into the current folder. $1: the program. Words and errors go to the log.
decoder() {
    moec=$1 name=$2 from=$3 text=$4
    shift 4
    "$moec" profile "$from" --data "$text" -q -o "$name.h5" --report "$name.html" --plots "$name-plots" \
        --plot-format csv,svg "$@"
    "$moec" profile --show "$name.h5" >"$name.show.txt"
    for policy in edgemoe marginal; do
        "$moec" compile "$from" --profile "$name.h5" --max-loss 5% --accept-miss --policy $policy -q -o "$name.$policy.moec"
    done
    "$moec" compile "$from" --profile "$name.h5" --max-loss 5% --accept-miss --dense-bits 8 --copies 2,4,8,16 -q \
        -o "$name.copies.moec"
    "$moec" compile "$from" --policy uniform --bits 3 --quantizer hqq --group 32 -q -o "$name.hqq.moec"
    for mode in cache edgemoe io-free io-qexp+lru sti; do
        "$moec" run "$name.copies.moec" -p "The old" -n 60 --ctx 128 --mode $mode >"$name.run.$mode.txt"
    done
    "$moec" run "$name.edgemoe.moec" -p "The old" -n 40 --ctx 128 --beams 3 >"$name.beams.txt"
    "$moec" run "$name.edgemoe.moec" -p "The old" -n 40 --ctx 128 --temp 0.8 --seed 3 >"$name.drawn.txt"
    "$moec" eval "$name.marginal.moec" --data "$text" --samples 16 --reference "$from" --json -q |
        without_times >"$name.eval.json"
    "$moec" simulate "$name.h5" --model "$name.edgemoe.moec" --memory 25%,50% --json -q >"$name.simulate.json"
    "$moec" inspect "$name.copies.moec" --json | without_times >"$name.inspect.json"
    "$moec" export "$name.edgemoe.moec" -q -o "$name.exported"
    "$moec" strip "$name.copies.moec" --copies 2 -o "$name.stripped.moec"
}

encoder_decoder() {
    moec=$1
    rows=datasets/switch-sample/calibration.jsonl
    "$moec" profile "datasets/switch-sample/model" --task dialogues --data "$rows" --samples 32 --bits 2,4 -q \
        -o switch.h5
    "$moec" compile "datasets/switch-sample/model" --profile switch.h5 --max-loss 5% --accept-miss -q -o switch.moec
    "$moec" run switch.moec -p "Anna: Are you there? Ben: Yes, I am at home." --beams 2 >switch.run.txt
    "$moec" eval switch.moec --task dialogues --data "$rows" --samples 8 --json -q --answers switch.answers.jsonl |
        without_times >switch.eval.json
    "$moec" simulate switch.h5 --model switch.moec --memory 50% --json -q >switch.simulate.json
}

families() {
    moec=$1
    for family in fixtures/families/*/; do
        name=family.$(basename "$family")
        # A build refuses families that are newer than it.
        if ! "$moec" compile "$family" --policy uniform --bits 4 --group 32 --copies 16 -q -o "$name.moec"; then
            echo refused >"$name.refused"
            continue
        fi
        "$moec" export "$name.moec" --copy 16 -q -o "$name.exported"
        set -- "$family" "$family/tokens.u32" "$name.logits"
        [ ! -e "$family/source.u32" ] || set -- "$@" --source "$family/source.u32"
        "$(dirname "$moec")/tools/logits" "$@"
    done
}

# all PROGRAM FOLDER
all() {
    mkdir "$2"
    (
        cd "$2"
        # Relative names, so that outputs do not say where the tree stands.
        ln -s "$root/datasets" datasets
        ln -s "$root/tests/fixtures" fixtures
        [ -z "$model" ] || ln -s "$model" model
        decoder "$1" sample "datasets/sample/model" "datasets/sample/calibration.txt" \
            --samples 32 --seq-len 64 --study all
        decoder "$1" fast "datasets/sample/model" "datasets/sample/calibration.txt" \
            --samples 32 --seq-len 64 --sensitivity fast --quantizer auto --group 64
        encoder_decoder "$1"
        families "$1"
        [ -z "$model" ] || decoder "$1" model model "$data" --samples 32 --seq-len 128 --sensitivity fast
    )
}

root=$(cd "$(dirname "$0")/../.." && pwd)
kept=$before/same-outputs${model:+-$(basename "$model")}
if [ -n "$(find "$kept" -prune -newer "$before/moec" 2>/dev/null)" ]; then
    : &
else
    rm -rf "$kept" "$kept.new"
    { all "$before/moec" "$kept.new" && mv "$kept.new" "$kept"; } 2>"$work/before.log" &
fi
status=0
all "$after/moec" "$work/after" 2>"$work/after.log" || status=$?
wait $! || status=$?
if [ "$status" -ne 0 ]; then
    tail -n 3 "$work"/*.log >&2
    exit "$status"
fi

# is_new OUTPUT: whether it is of a family that BEFORE refuses and AFTER reads.
is_new() {
    of=$(echo "$1" | cut -d. -f1,2)
    [ -e "$kept/$of.refused" ] && [ ! -e "$work/after/$of.refused" ]
}

{ (cd "$kept" && find . -type f) && (cd "$work/after" && find . -type f); } | sed 's|^\./||' | sort -u >"$work/names"
differing=0
while read -r name; do
    verdict=same digest=----------------
    [ ! -e "$work/after/$name" ] || digest=$(sha256sum "$work/after/$name" | cut -c1-16)
    if is_new "$name"; then
        verdict="new: the build before refuses this family"
    elif ! cmp -s "$kept/$name" "$work/after/$name"; then
        verdict=$(expected "$name" || true)
        if [ -z "$verdict" ]; then
            verdict=DIFFERS
            differing=$((differing + 1))
        fi
    fi
    echo "$digest  $name  $verdict"
done <"$work/names"
echo "$(wc -l <"$work/names") outputs, $differing differ"
[ "$differing" -eq 0 ]
