#!/bin/sh
# Runs test programs and scripts that speak TAP, JOBS of them side by side, a line for each; shows what fails, and ends
# in one line:
#   N passed, N failed, N skipped
# Those that tests/longest names begin first, in its order, so that no core waits for them at the end. Programs that say
# "runs alone" in their first ten lines, because they measure time, run by themselves after all others.
# In a sanitizer's build it skips those in which the sanitizer has nothing to look at, and says why (nothing_in).
# Usage: tests/run.sh PROGRAM...   (from the repository root). Exit status 1 when anything failed.
set -u
: "${TEST_TIMEOUT_SECONDS:=900}"
: "${JOBS:=$(nproc 2>/dev/null || echo 2)}"
export TEST_TIMEOUT_SECONDS
# Programs run side by side: a thread of OpenMP that waits must not keep a core from its neighbour.
export OMP_WAIT_POLICY=passive

# nothing_in PROGRAM: why the sanitizer of this build has nothing to look at in it; says nothing where it may have.
nothing_in() {
    case ${MOEC_BUILD:-build} in
    */sanitize-*) ;;
    *) return ;;
    esac
    case $1 in
    # A script finds programs of the build by these names alone (tests/cli/tap.inc).
    *.sh) grep -Eq '[$]moec|[$]build|MOEC_BUILD' "$1" || echo 'it runs no program of the build' ;;
    # A program can call none of these unless its table of symbols has it.
    */sanitize-thread/*)
        symbols=$(nm "$1") || return
        echo "$symbols" | grep -Eq ' (pthread_(create|mutex_|cond_)|sigaction|signal)' ||
            echo 'its code has no threads, locks or signals'
        ;;
    esac
}

# One program: what it says goes to FOLDER/NAME.log, its counts to FOLDER/NAME.counts, and one line to the terminal.
run_one() {
    folder=$1 program=$2
    name=$(basename "$program")
    log=$folder/$name.log
    start=$(date +%s)
    why=$(nothing_in "$program")
    if [ -n "$why" ]; then
        echo "ok 1 - $name # SKIP under this sanitizer: $why" >"$log"
        status=0
    else
        CMOCKA_MESSAGE_OUTPUT=TAP timeout "$TEST_TIMEOUT_SECONDS" "$program" >"$log" 2>&1
        status=$?
    fi
    # cmocka says "not ok 6 # SKIP" of what it skips.
    sed -i 's/^not ok \([0-9]*\) # SKIP/ok \1 # SKIP/' "$log"
    ok=$(grep -c '^ok' "$log")
    skip=$(grep -c '^ok.*# [Ss][Kk][Ii][Pp]' "$log")
    bad=$(grep -c '^not ok' "$log")
    # A program that crashed, hung or ended badly without saying which case failed is a failure of its own.
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
        echo "not ok - $name ended with status $status" >>"$log"
    fi
    if [ $((ok + bad)) -eq 0 ]; then
        bad=1
        echo "not ok - $name reported no test" >>"$log"
    fi
    echo "$((ok - skip)) $bad $skip" >"$folder/$name.counts"
    # In one piece, so that lines of programs that end together do not mix.
    {
        printf '%-34s %4d passed %3d failed %3d skipped  %4d s\n' "$name" $((ok - skip)) "$bad" "$skip" \
            $(($(date +%s) - start))
        if [ "$bad" -gt 0 ]; then
            sed 's/^/    /' "$log"
        elif [ "$skip" -gt 0 ]; then
            grep '^ok.*# [Ss][Kk][Ii][Pp]' "$log" | sed 's/^/    /'
        fi
    } >"$folder/$name.shown"
    cat "$folder/$name.shown"
}

if [ "${1:-}" = --one ]; then
    run_one "$2" "$3"
    exit 0
fi

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM # which runs the trap above too
# What scripts make alike, one of them makes for all (tests/cli/tap.inc).
mkdir "$work/shared" || exit 1
export MOEC_TESTS_SHARED="$work/shared"
: >"$work/together"
: >"$work/alone"
# in_order PROGRAM...: a line each.
in_order() {
    while read -r name; do
        for program in "$@"; do
            [ "$(basename "$program")" != "$name" ] || echo "$program"
        done
    done <tests/longest
    for program in "$@"; do
        grep -qxF "$(basename "$program")" tests/longest || echo "$program"
    done
}
in_order "$@" >"$work/order"
while read -r program; do
    # Of a compiled test the words stand in its source.
    text=$program
    [ ! -e "tests/unit/$(basename "$program").c" ] || text=tests/unit/$(basename "$program").c
    if head -n 10 "$text" | grep -aq 'runs alone'; then
        echo "$program" >>"$work/alone"
    else
        echo "$program" >>"$work/together"
    fi
done <"$work/order"
# Tests wait a tenth of their time, for storage and for other processes: with two jobs or more, one more runs beside them.
pool=$JOBS
[ "$JOBS" -le 1 ] || pool=$((JOBS + 1))
xargs -r -P "$pool" -n 1 "$0" --one "$work" <"$work/together"
xargs -r -n 1 "$0" --one "$work" <"$work/alone"

# A runner that was killed has left no counts: its program counts as failed.
for program in "$@"; do
    name=$(basename "$program")
    [ -e "$work/$name.counts" ] || { echo "not ok - $name did not end"; echo "0 1 0" >"$work/$name.counts"; }
done
cat "$work"/*.counts | awk '{ passed += $1; failed += $2; skipped += $3 }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 }'
