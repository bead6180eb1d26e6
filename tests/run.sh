#!/bin/sh
# Runs test programs and scripts that speak TAP, shows what fails, and ends in one line:
#   N passed, N failed, N skipped
# Usage: tests/run.sh PROGRAM...   (from the repository root). Exit status 1 when anything failed.
set -u
passed=0
failed=0
skipped=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT TERM # which runs the trap above too
: "${TEST_TIMEOUT_SECONDS:=900}"

for program in "$@"; do
    name=$(basename "$program")
    start=$(date +%s)
    CMOCKA_MESSAGE_OUTPUT=TAP timeout "$TEST_TIMEOUT_SECONDS" "$program" >"$log" 2>&1
    status=$?
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
    passed=$((passed + ok - skip))
    skipped=$((skipped + skip))
    failed=$((failed + bad))
    printf '%-34s %4d passed %3d failed %3d skipped  %4d s\n' "$name" $((ok - skip)) "$bad" "$skip" $(($(date +%s) - start))
    if [ "$bad" -gt 0 ]; then
        sed 's/^/    /' "$log"
    elif [ "$skip" -gt 0 ]; then
        grep '^ok.*# [Ss][Kk][Ii][Pp]' "$log" | sed 's/^/    /'
    fi
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
