#!/bin/sh
# Results for people fit a terminal of 80 columns, whatever a bundle holds.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model
try 0 "weights are fitted" fitted_journal
cp "$made" "$work/m.moec.journal"
try 0 "compile" "$moec" compile $model --data datasets/sample/calibration.txt --seq-len 32 --samples 48 --max-loss 60% --quiet \
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
    --sensitivity-samples 4 --verbose -o "$work/p.h5"
narrow stdout "the verdict of a profile has 80 columns"
says stderr "largest shares of time" "and its phases are shown"
try 0 "show" "$moec" profile --show "$work/p.h5" --verbose
narrow stdout "a heatmap has 80 columns"
try 0 "doctor" "$moec" doctor $model
narrow stdout "doctor has 80 columns"
try 0 "doctor with a budget" "$moec" doctor $model --memory 16MiB
narrow stdout "with a budget too"
try 0 "dry run" "$moec" profile $model --data datasets/sample/calibration.txt --samples 40 --dry-run --quiet
narrow stdout "what a profile takes has 80 columns"
try 0 "device" "$moec" device "$work/m.moec" --read-time 0.002 --compute-time 0.05 -q -o "$work/d.json"
narrow stdout "times of a device have 80 columns"
try 0 "simulate" "$moec" simulate "$work/p.h5" --evict all --predict all --memory 25%,50% -q
narrow stdout "simulations have 80 columns"
try 0 "simulate a device" "$moec" simulate "$work/p.h5" --model "$work/m.moec" --device-file "$work/d.json" --evict lru \
    --predict none --memory 25% -q
narrow stdout "in one setting too"
try 0 "bench" "$moec" bench "$work/m.moec" --modes cache,edgemoe --memory 25%,50% --samples 1 -n 4 -q
narrow stdout "benches have 80 columns"
set -- --data datasets/sample/test.txt --seq-len 16 --samples 64 --reference $model --max-loss 90% -q
try 0 "tune" "$moec" tune "$work/m.moec" "$@" --slots 4 --with route,sparsity -o "$work/t.moec"
narrow stdout "tuned settings have 80 columns"
try 0 "sparsify" "$moec" sparsify "$work/m.moec" "$@" -o "$work/s.moec"
narrow stdout "sparsity has 80 columns"
try 0 "inspect both" "$moec" inspect "$work/t.moec"
narrow stdout "inspect has 80 columns of them too"
try 0 "uniform" "$moec" compile $model --policy uniform --bits 4 -q -o "$work/u.moec"
try 0 "predict" "$moec" predict "$work/u.moec" --data datasets/sample/test.txt --seq-len 64 --samples 32 -q -o "$work/q.moec"
narrow stdout "a predictor has 80 columns"
for command in profile compile run chat serve eval bench simulate device inspect verify export strip sparsify predict tune fit doctor; do
    try 0 "help of $command" "$moec" "$command" --help-all
    narrow stdout "has 80 columns"
done
done_testing
