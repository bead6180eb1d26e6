#!/bin/sh
# A short run of every fuzz target over its seed corpus, what earlier runs found, and FUZZ_RUNS mutations. With
# FUZZ_KEEP=1 what it finds is kept (keep.sh). Speaks TAP.
set -u
: "${FUZZ_RUNS:=20000}"
: "${FUZZ_SECONDS:=20}"
: "${FUZZ_KEEP:=0}"
bad=0
n=0
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM # which runs the trap above too
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    target=build/fuzz/$name
    corpus=tests/fuzz/corpus/${name#fuzz_}
    found=tests/fuzz/found/${name#fuzz_}.tar.zst
    n=$((n + 1))
    mkdir -p "$work/$name"
    [ ! -e "$found" ] || zstd -dcq "$found" | tar -xf - -C "$work/$name"
    # New inputs go to the first folder; the committed seeds are only read. At most FUZZ_SECONDS, whatever the speed.
    if ! "$target" -runs="$FUZZ_RUNS" -max_total_time="$FUZZ_SECONDS" -seed=1 -rss_limit_mb=2048 -timeout=20 \
        -artifact_prefix="$work/$name-" "$work/$name" "$corpus" >"$work/log" 2>&1; then
        bad=1
        echo "not ok - $name"
        tail -n 40 "$work/log" | sed 's/^/# /'
    else
        echo "ok - $name: $(grep -o 'Done [0-9]* runs in [0-9]* second' "$work/log" | tail -n 1)"
        if [ "$FUZZ_KEEP" != 0 ]; then
            tests/fuzz/keep.sh "${name#fuzz_}" "$work/$name" >"$work/log" 2>&1 || bad=1
            sed 's/^/# keeping: /' "$work/log"
        fi
    fi
done
echo "1..$n"
exit $bad
