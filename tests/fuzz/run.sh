#!/bin/sh
# A short run of every fuzz target over its seed corpus, what earlier runs found, and FUZZ_RUNS mutations, JOBS targets
# side by side. With FUZZ_KEEP=1 what it finds is kept (keep.sh). Speaks TAP. It keeps every core busy: runs alone.
set -u
: "${FUZZ_RUNS:=20000}"
: "${FUZZ_SECONDS:=10}"
: "${FUZZ_KEEP:=0}"
: "${FUZZ_BUILD:=build/fuzz}"
: "${JOBS:=$(nproc 2>/dev/null || echo 2)}"
export FUZZ_RUNS FUZZ_SECONDS FUZZ_KEEP FUZZ_BUILD
# UBSan prints what it finds and goes on unless it is told to stop: a target then passes with undefined behaviour.
export UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"

# run_one FOLDER SOURCE: one target, its answer in one piece.
run_one() {
    work=$1
    name=$(basename "$2" .c)
    target=$FUZZ_BUILD/$name
    corpus=tests/fuzz/corpus/${name#fuzz_}
    [ "$name" != fuzz_gguf ] || corpus="$corpus tests/fixtures/gguf/families"
    [ "$name" != fuzz_chat_template ] || corpus=tests/fixtures/chat
    found=tests/fuzz/found/${name#fuzz_}.tar.zst
    log=$work/$name.log
    mkdir -p "$work/$name"
    [ ! -e "$found" ] || zstd -dcq "$found" | tar -xf - -C "$work/$name"
    # New inputs go to the first folder; the committed seeds are only read. At most FUZZ_SECONDS, whatever the speed.
    # shellcheck disable=SC2086 # folders without spaces
    if ! "$target" -runs="$FUZZ_RUNS" -max_total_time="$FUZZ_SECONDS" -seed=1 -rss_limit_mb=2048 -timeout=20 \
        -artifact_prefix="$work/$name-" "$work/$name" $corpus >"$log" 2>&1; then
        { echo "not ok - $name" && tail -n 40 "$log" | sed 's/^/# /'; } >"$work/$name.tap"
    else
        echo "ok - $name: $(grep -o 'Done [0-9]* runs in [0-9]* second' "$log" | tail -n 1)" >"$work/$name.tap"
        if [ "$FUZZ_KEEP" != 0 ]; then
            tests/fuzz/keep.sh "${name#fuzz_}" "$work/$name" >"$log" 2>&1 || echo "not ok - keeping what $name found"
            sed 's/^/# keeping: /' "$log"
        fi >>"$work/$name.tap"
    fi
    cat "$work/$name.tap"
}

if [ "${1:-}" = --one ]; then
    run_one "$2" "$3"
    exit 0
fi

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM # which runs the trap above too
printf '%s\n' tests/fuzz/fuzz_*.c | xargs -P "$JOBS" -n 1 "$0" --one "$work"
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    [ -s "$work/$name.tap" ] || echo "not ok - $name did not end" | tee "$work/$name.tap"
done
echo "1..$(cat "$work"/*.tap | grep -cE '^(not )?ok')"
! grep -q '^not ok' "$work"/*.tap
