#!/bin/sh
# Results for people fit a terminal of 80 columns, whatever a bundle holds.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model
try 0 "compile" "$moec" compile $model --data datasets/sample/calibration.txt --seq-len 32 --samples 64 --max-loss 60% --quiet \
    -o "$work/m.moec"
try 0 "inspect" "$moec" inspect "$work/m.moec"
narrow stdout "inspect has 80 columns"
try 0 "run" "$moec" run "$work/m.moec" -p Once -n 8 --stats
narrow stderr "figures of a run have 80 columns"
try 0 "moec-run" "$build/moec-run" "$work/m.moec" -p Once -n 8 --stats --memory "$(little_memory "$work/m.moec")"
narrow stderr "in little memory too"
try 0 "eval" "$moec" eval "$work/m.moec" --data datasets/sample/test.txt --seq-len 32 --samples 16 --reference $model
narrow stdout "losses have 80 columns"
try 0 "verify" "$moec" verify "$work/m.moec"
narrow stdout "verify has 80 columns"
try 0 "profile" "$moec" profile $model --data datasets/sample/calibration.txt --seq-len 16 --samples 32 --bits 2 \
    --verbose -o "$work/p.h5"
narrow stdout "the verdict of a profile has 80 columns"
says stderr "largest shares of time" "and its phases are shown"
try 0 "show" "$moec" profile --show "$work/p.h5"
narrow stdout "a heatmap has 80 columns"
for command in profile compile run chat eval bench simulate device inspect verify export strip sparsify predict tune doctor; do
    try 0 "help of $command" "$moec" "$command" --help-all
    narrow stdout "has 80 columns"
done
done_testing
