#!/bin/sh
# Does the runtime's reader reach what the device gives? Reads random expert records of a bundle with O_DIRECT,
# through the reader and through fio with the same sizes, places and depth, in turns, and prints both. fio registers
# its buffers when the reader could.
#
#     tests/large/bandwidth.sh BUNDLE.moec          that bundle; records of one size compare best
#     tests/large/bandwidth.sh                      one made for it: random, OLMoE-1B-7B's dimensions, INT4 (3.3 GB;
#                                                   20 GB of disk while it is made)
#     BANDWIDTH_DEPTHS='1 8 32'  BANDWIDTH_SECONDS=3  BANDWIDTH_ROUNDS=3   what is measured
# Exit status 1 when the reader stays below 85 % of fio at any depth.
set -u
build=${MOEC_BUILD:-build}
: "${BANDWIDTH_DEPTHS:=1 2 4 8 16 32}" "${BANDWIDTH_SECONDS:=2}" "${BANDWIDTH_ROUNDS:=3}"
if ! command -v fio >/dev/null; then
    echo "skipped, install fio"
    exit 0
fi
made=
if [ $# -gt 0 ]; then
    bundle=$1
else
    made=$(mktemp -d) || exit 1
    trap 'rm -rf "$made"' EXIT
    trap 'exit 130' INT TERM # which runs the trap above too
    bundle=$made/int4.moec
    "$build/tools/make_random_checkpoint" --preset olmoe-1b-7b \
        --tokenizer datasets/sample/model/tokenizer.json "$made/model" >/dev/null || exit 1
    "$build/moec" compile "$made/model" --policy uniform --bits 4 -o "$bundle" --quiet || exit 1
    rm -rf "$made/model"
fi

registered=
if "$build/tools/read_bench" "$bundle" --depth 32 --seconds 0.01 | grep -q ' registered buffers'; then
    registered='--fixedbufs=1 --registerfiles=1'
fi

# MB/s
with_fio() {
    # shellcheck disable=SC2046,SC2086 # options are words
    fio --name=records --filename="$bundle" --readonly --rw=randread --norandommap --direct=1 --ioengine=io_uring \
        $registered $("$build/tools/read_bench" "$bundle" --depth "$1" --pattern) --time_based --runtime="$BANDWIDTH_SECONDS" \
        --randseed="$2" --output-format=terse --terse-version=3 | awk -F ';' '{ printf "%.1f\n", $7 * 1.024 / 1000 }'
}

with_reader() {
    "$build/tools/read_bench" "$bundle" --depth "$1" --seconds "$BANDWIDTH_SECONDS" --seed "$2" | tee "$log" |
        awk '{ print $1 }'
}

middle() {
    sort -n | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'
}

log=$(mktemp) || exit 1
results=$(mktemp) || exit 1
trap 'rm -rf "$made" "$log" "$results"' EXIT
trap 'exit 130' INT TERM # which runs the trap above too
echo "$bundle: $("$build/tools/read_bench" "$bundle" --depth 1 --pattern | tr -d -- -)"
echo "depth       fio    reader   ratio   (MB/s, the middle one of $BANDWIDTH_ROUNDS rounds of $BANDWIDTH_SECONDS s)"
bad=0
for depth in $BANDWIDTH_DEPTHS; do
    : >"$results"
    for round in $(seq "$BANDWIDTH_ROUNDS"); do
        printf 'fio %s\nreader %s\n' "$(with_fio "$depth" "$round")" "$(with_reader "$depth" "$round")" >>"$results"
    done
    fio=$(sed -n 's/^fio //p' "$results" | middle)
    reader=$(sed -n 's/^reader //p' "$results" | middle)
    awk -v depth="$depth" -v fio="$fio" -v reader="$reader" 'BEGIN {
        printf "%5d %9.1f %9.1f   %4.0f%%\n", depth, fio, reader, 100 * reader / fio
        exit reader < 0.85 * fio }' || bad=1
done
cut -d ' ' -f 5- "$log"
exit $bad
