#!/bin/sh
# A test program on the device. Usage: program.sh NAME
# shellcheck source=tests/gpu/steps/step.inc
. tests/gpu/steps/step.inc
path=$(program "$1") || exit 1
CMOCKA_MESSAGE_OUTPUT=TAP "$path" >"$work/$1.tap" 2>&1
status=$?
cat "$work/$1.tap"
n_skipped=$(grep -c '^\(not \)\{0,1\}ok.*# SKIP' "$work/$1.tap")
figure "tests passed" $(($(grep -c '^ok' "$work/$1.tap") - $(grep -c '^ok.*# SKIP' "$work/$1.tap"))) "" ">= 1"
figure "tests failed" $(($(grep -c '^not ok' "$work/$1.tap") - $(grep -c '^not ok.*# SKIP' "$work/$1.tap"))) "" "<= 0"
figure "tests that only the stand-in can do" "$n_skipped"
exit $status
