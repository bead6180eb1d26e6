#!/bin/sh
# A test program of the kernels under a tool of compute-sanitizer. Usage: sanitize.sh memcheck|racecheck|synccheck NAME
# shellcheck source=tests/gpu/steps/step.inc
. tests/gpu/steps/step.inc
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) ||
    impossible "compute-sanitizer is not on this machine"
path=$(program "$2") || exit 1
"$sanitizer" --tool "$1" --error-exitcode 9 --print-limit 20 "$path" >"$work/$1-$2.log" 2>&1
status=$?
tail -n 60 "$work/$1-$2.log"
# It says "ERROR SUMMARY: N errors", racecheck "RACECHECK SUMMARY: N hazards displayed".
n=$(sed -n 's/^=* *[A-Z]* SUMMARY: \([0-9]*\) .*/\1/p' "$work/$1-$2.log" | tail -n 1)
[ -n "$n" ] || {
    echo "$1 gave no summary"
    exit 1
}
figure "errors or hazards" "$n" "" "<= 0"
exit $status
