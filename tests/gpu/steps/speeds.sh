#!/bin/sh
# Speeds of kernels beside what the device does at most. Usage: speeds.sh experts|prefill
# shellcheck source=tests/gpu/steps/step.inc
. tests/gpu/steps/step.inc
speeds=$(program speeds) && peak=$(program peak) || exit 1
if [ "$1" = prefill ]; then
    tflops=$("$peak") || exit $?
    figure "F32 peak" "$tflops" "TFLOP/s"
    set -- prefill "$tflops"
fi
"$speeds" "$@" >"$work/speeds.tsv"
status=$?
cat "$work/speeds.tsv"
cat "$work/speeds.tsv" >>"$step_figures"
exit $status
