#!/bin/sh
# Whether promises are kept: 40 compiles of the sample and of another model, over draws, targets and policies, each checked
# on a quarter of the text that was held out before.
#
#     tests/large/promise.sh [-n N] [-o FOLDER] [MODEL DATA]
#
# MODEL is a Hugging Face folder and DATA a text for it; without them the 20 compiles of the sample are made. -n makes only
# the first N. Results are kept in FOLDER (build/promise): what is there already is not made again, so that an interrupted run
# goes on where it stopped, and a later one with a larger N makes the rest. Delete FOLDER after a change of moec.
#
# A text is cut into pieces of 8 KB at ends of lines; every fourth, from another one on with each draw, is held out. Prints a
# line for each compile and four counts, and ends with 1 when one of them fails (in proportion with fewer than 40 compiles):
#   bundles written                                                                  at least 38
#   bundles of less than half of the weights' bytes, since what is safe may be 16 bits   at least 38
#   held-out loss above the target beyond its own one-sided 95 % end                 at most 5
#   held-out loss minus the certificate's within their joint 90 % interval           at least 32
# About 20 s for a compile of the sample on two cores, 3 min for one of a model of 60 MB.
set -eu
count=40 folder=${MOEC_BUILD:-build}/promise
while getopts n:o: option; do
    case $option in
    n) count=$OPTARG ;;
    o) folder=$OPTARG ;;
    *) sed -n '5s/^# *//p' "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 0 ] || [ $# -eq 2 ] || { sed -n '5s/^# *//p' "$0" >&2; exit 2; }
moec=$(realpath "${MOEC_BUILD:-build}/moec")
model=${1:-} data=${2:-}
mkdir -p "$folder"
results=$folder/results.tsv
touch "$results"
trap 'exit 130' INT TERM

# split TEXT SHIFT NAME: NAME.held gets every fourth piece, NAME.text the others.
split_text() {
    awk -v shift="$2" -v held="$3.held" -v rest="$3.text" '
        { print > (int(bytes / 8192) % 4 == shift ? held : rest); bytes += length($0) + 1 }' "$1"
}

# number FILE KEY: the first number of this key in JSON.
number() {
    sed -n "s/^ *\"$2\": \([-0-9.e+]*\),*\$/\1/p" "$1" | head -n 1
}

# compile_one NAME FROM TEXT DRAW TARGET POLICY: adds a line to the results. The profile of a draw and what was measured and
# fitted for one compile serve all compiles of the draw.
compile_one() {
    name=$1 from=$2 text=$3 draw=$4 target=$5 policy=$6
    base=$folder/$name.$draw
    bundle=$base.$policy.$target.moec
    if [ ! -s "$base.h5" ]; then
        rm -f "$base.held" "$base.text"
        split_text "$text" $((draw % 4)) "$base"
        "$moec" profile "$from" --data "$base.text" --seed "$draw" --sensitivity fast --quiet -o "$base.h5" >/dev/null
    fi
    status=0
    "$moec" compile "$from" --profile "$base.h5" --seed "$draw" --max-loss "$target%" --policy "$policy" --json --quiet \
        --journal "$base.journal" -o "$bundle" >"$base.json" 2>"$base.log" || status=$?
    [ "$status" -le 1 ] || { cat "$base.log" >&2; exit "$status"; }
    if [ "$status" -eq 1 ]; then
        grep -q 'nothing was written\|--max-loss' "$base.log" || { cat "$base.log" >&2; exit 1; }
        printf '%s\t%s\t%s\t%s\tnothing\n' "$name" "$draw" "$target" "$policy" >>"$results"
        return
    fi
    "$moec" eval "$bundle" --reference "$from" --data "$base.held" --json --quiet >"$base.eval.json"
    passed=$(grep -c '"result": "passed"' "$base.json") planned=$(grep -c '"result": ' "$base.json")
    printf '%s\t%s\t%s\t%s\twritten\t%s\t%s/%s' "$name" "$draw" "$target" "$policy" "$(number "$base.json" bundle_bytes)" \
        "$passed" "$planned" >"$base.row"
    # The certificate's own members stand before those of its sequence.
    for file in "$base.json" "$base.eval.json"; do
        for key in loss loss_low loss_high; do
            printf '\t%s' "$(number "$file" $key)" >>"$base.row"
        done
    done
    printf '\t%s' "$(number "$base.json" source_bytes)" >>"$base.row"
    { cat "$base.row" && echo; } >>"$results"
    rm -f "$bundle"
}

# The compiles in their order, both models in turn: NAME DRAW TARGET POLICY.
list() {
    for draw in 1 2 3 4 5; do
        for pair in 2:hull 5:edgemoe 1:marginal 10:hull; do
            echo "sample $draw ${pair%%:*} ${pair#*:}"
            [ -z "$model" ] || echo "other $draw ${pair%%:*} ${pair#*:}"
        done
    done
}

list | head -n "$count" >"$folder/list"
while read -r name draw target policy; do
    grep -q "^$name	$draw	$target	$policy	" "$results" && continue
    echo "compiling $name, draw $draw, $target %, $policy" >&2
    if [ "$name" = sample ]; then
        compile_one sample datasets/sample/model datasets/sample/calibration.txt "$draw" "$target" "$policy"
    else
        compile_one other "$model" "$data" "$draw" "$target" "$policy"
    fi
done <"$folder/list"

# Only what this run asks for is counted.
awk -F'\t' '
    NR == FNR { split($0, f, " "); wanted[f[1] "\t" f[2] "\t" f[3] "\t" f[4]]; n++; next }
    !(($1 "\t" $2 "\t" $3 "\t" $4) in wanted) { next }
    BEGIN { printf "%-7s %4s %6s %-9s %9s %6s  %-24s %-24s %s\n", "model", "draw", "target", "policy", "bytes", "plans",
        "certificate", "held out", "" }
    $5 != "written" { printf "%-7s %4d %5s%% %-9s nothing was written\n", $1, $2, $3, $4; next }
    {
        written++
        small = 2 * $6 < $14
        smalls += small
        target = $3 / 100
        up = sqrt(($11 - $12) ^ 2 + ($10 - $8) ^ 2)
        down = sqrt(($13 - $11) ^ 2 + ($8 - $9) ^ 2)
        apart = $11 - $8
        agree = apart <= up && apart >= -down
        over = $12 > target
        agrees += agree
        overs += over
        printf "%-7s %4d %5s%% %-9s %9d %6s  %5.2f%% (%5.2f to %5.2f)  %5.2f%% (%5.2f to %5.2f) %s%s%s\n", $1, $2, $3, $4, $6, $7,
            100 * $8, 100 * $9, 100 * $10, 100 * $11, 100 * $12, 100 * $13, over ? " ABOVE THE TARGET" : "",
            agree ? "" : " DIFFERS FROM THE CERTIFICATE", small ? "" : " HARDLY SMALLER"
    }
    function need(share) { share *= n; return share == int(share) ? share : int(share) + 1 }
    END {
        least = need(38 / 40); most = int(n * 5 / 40); agreed = need(32 / 40)
        printf "\nbundles written: %d of %d, expected at least %d\n", written, n, least
        printf "bundles of less than half of the weights: %d, expected at least %d\n", smalls, least
        printf "held-out loss above the target: %d, expected at most %d\n", overs, most
        printf "held-out loss as certified: %d, expected at least %d\n", agrees, agreed
        exit !(written >= least && smalls >= least && overs <= most && agrees >= agreed)
    }' "$folder/list" "$results"
