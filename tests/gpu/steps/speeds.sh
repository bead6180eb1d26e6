#!/bin/sh
# Speeds of kernels beside what the device does at most. Usage: speeds.sh experts|prefill|bf16
# shellcheck source=tests/gpu/steps/step.inc
. tests/gpu/steps/step.inc
speeds=$(program speeds) && peak=$(program peak) || exit 1
case $1 in
prefill)
    tflops=$("$peak" f32) || exit $?
    figure "F32 peak" "$tflops" "TFLOP/s"
    ;;
bf16)
    tflops=$("$peak" bf16) || exit $?
    figure "BF16 peak (mma.sync)" "$tflops" "TFLOP/s"
    ;;
esac
[ "$1" = experts ] || set -- "$1" "$tflops"
"$speeds" "$@" >"$work/speeds.tsv"
status=$?
cat "$work/speeds.tsv"
cat "$work/speeds.tsv" >>"$step_figures"
exit $status
