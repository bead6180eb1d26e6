#!/bin/sh
# Does the peak of memory stay within the budget for many tokens, and does every token have the logits of the resident run
# when reads fail? Goes through the run modes of a bundle with copies (moec compile --copies 4,8,16), at the least budget
# and with a quarter more, then with faults.
#
#     make build/moec-run build/tools/soak && tests/large/soak.sh model.moec
#     SOAK_TOKENS=2000 SOAK_FAULTS=1000 SOAK_MODES="cache edgemoe" tests/large/soak.sh model.moec
#     make SANITIZE=thread build/sanitize-thread/tools/soak, then MOEC_BUILD=build/sanitize-thread: races (no budgets then)
set -u
build=${MOEC_BUILD:-build}
: "${SOAK_TOKENS:=10000}" "${SOAK_FAULTS:=10000}" "${SOAK_MODES:=cache edgemoe io-exp io-qexp sti io-exp+lru io-qexp+lru}"
[ $# -eq 1 ] || { echo "usage: tests/large/soak.sh MODEL.moec" >&2; exit 2; }
bundle=$1
bad=0

# The least budget of a mode: what the refusal of a tiny one names, and what that differs from start to start.
floor() {
    "$build/tools/soak" "$bundle" --mode "$1" --memory 1MiB 2>&1 | sed -n 's/.*below the floor of \([0-9]*\) .*/\1/p' |
        awk '{ printf "%.0f", $1 + 262144 }'
}

for mode in $SOAK_MODES; do
    least=$(floor "$mode")
    if [ "$build" = build ] && [ -n "$least" ]; then
        for memory in "$least" $((least + least / 4)); do
            "$build/tools/soak" "$bundle" --mode "$mode" --memory "$memory" --tokens "$SOAK_TOKENS" || bad=$((bad + 1))
        done
    fi
    "$build/tools/soak" "$bundle" --mode "$mode" --buffer 1MiB --faults "$SOAK_FAULTS" --check || bad=$((bad + 1))
done
[ "$bad" -eq 0 ] || echo "$bad runs failed"
exit $((bad > 0))
