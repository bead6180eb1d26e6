#!/bin/sh
# The figures that the streaming runtime is built to reach, measured on a model: edgemoe against the baselines of
# EdgeMoE's evaluation, and against itself without preloads, on emulated storage. On a machine with nothing else to
# do; 5 to 10 minutes for a model of 60 MB.
#
#     tests/large/bench_quill.sh MODEL DATA CALIBRATION [FOLDER]
#
# MODEL is a Hugging Face folder, DATA the text that samples are cut from, CALIBRATION the text for profile and
# compile. FOLDER (default build/bench) keeps profile, bundles, JSON and plots; what is there is not made again. The
# sample's rows stand beside, without a mark to reach. Ends with 1 when a figure is missed.
# shellcheck disable=SC2016 # fields of awk
set -eu
[ $# -ge 3 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n '5,6p' >&2; exit 2; }
model=$1 data=$2 calibration=$3 folder=${4:-build/bench}
moec=${MOEC:-${MOEC_BUILD:-build}/moec}
mkdir -p "$folder"

# bundle NAME MODEL CALIBRATION: the compiled assignment with the copies of every mode.
bundle() {
    [ -e "$folder/$1.h5" ] || "$moec" profile "$2" --data "$3" --sensitivity fast -o "$folder/$1.h5"
    [ -e "$folder/$1.moec" ] ||
        "$moec" compile "$2" --profile "$folder/$1.h5" --max-loss 2% --copies 4,8,16 -o "$folder/$1.moec"
}

bench() {
    "$moec" bench "$folder/$1.moec" --memory 25%,50% --data "$2" --emulate-storage 550MB/s,80us \
        --emulate-storage 50MB/s,80us --against-none --samples "${SAMPLES:-8}" --tokens "${TOKENS:-32}" \
        --plots "$folder/$1-plots" -o "$folder/$1.json"
}

# The ratios of a JSON: "mode against memory storage speedup" and "pair name ratio hidden", one a line.
ratios() {
    awk -F'"' '/"ratios":/ { inside = 1 }
        inside && $2 == "against" { against = $4 }
        inside && $2 == "memory" { memory = $4 }
        inside && $2 == "storage" { storage = $4 }
        inside && $2 == "speedup" { sub(/^: /, "", $3); print against, memory, storage, $3 + 0 }' "$1"
}
pairs() {
    awk -F'"' '$2 == "name" { name = $4 }
        $2 == "tpot_of_no_preloads" { sub(/^: /, "", $3); ratio = $3 + 0 }
        $2 == "hidden_share" { sub(/^: /, "", $3); print ratio, $3, name }' "$1"
}

bundle quill "$model" "$calibration"
bundle sample datasets/sample/model datasets/sample/calibration.txt
bench sample datasets/sample/test.txt
bench quill "$data"

echo
missed=$(mktemp)
trap 'rm -f "$missed"' EXIT
ratios "$folder/quill.json" | while read -r against memory storage speedup; do
    case $against in
    io-exp) least=2.6 ;;
    io-qexp) least=1.2 ;;
    sti) least=1.3 ;;
    *) least=0 ;;
    esac
    verdict=$(awk -v a="$speedup" -v b="$least" 'BEGIN { print (b == 0 ? "no mark" : a >= b ? "reached" : "missed") }')
    [ "$verdict" != missed ] || echo x >>"$missed"
    printf '%-8s %4s at %-14s %6.2f times faster than %-12s (at least %s)\n' "$verdict" "$memory" "$storage" "$speedup" \
        "$against" "$least"
done
pairs "$folder/quill.json" | while read -r ratio hidden name; do
    verdict=$(awk -v a="$ratio" 'BEGIN { print (a <= 1.03 ? "reached" : "missed") }')
    [ "$verdict" != missed ] || echo x >>"$missed"
    printf '%-8s %s: %.3f of the time without preloads (at most 1.03), hidden share %s\n' "$verdict" "$name" "$ratio" \
        "${hidden%,}"
done
[ ! -s "$missed" ]
