#!/bin/sh
# moec profile --compare: two data sets on one model, in words, JSON and plots.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=$work/random
try 0 "a random model" random_model "$model"
for data in calibration test; do
    try 0 "profile on $data.txt" "$moec" profile "$model" --data datasets/sample/$data.txt --seq-len 16 --samples 32 \
        --bits 2 --anyway -o "$work/$data.h5" --quiet
done
try 0 "compare" "$moec" profile --compare "$work/calibration.h5" "$work/test.h5" --plots "$work/plots" --plot-format svg,csv
says stdout "^Comparison of A, 'calibration.txt', with B, 'test.txt'" "both are named"
says stdout "^Rank correlation of sensitivities: at 2 bits -?[0-9.]+ pooled" "correlations are given"
says stdout "^Bitwidths chosen from A's sensitivities, applied to B" "and what a choice loses on the other data"
says stdout "^Routing: shares of load" "and routing"
for file in compare_sensitivity.svg compare_sensitivity.csv compare_layers.svg; do
    try 0 "it drew $file" test -s "$work/plots/$file"
done
try 0 "compare as JSON" "$moec" profile --compare "$work/calibration.h5" "$work/test.h5" --json
says stdout '"pooled": -?[0-9.]+' "JSON has correlations"
says stdout '"same_data": false' "and what is the same"
says stdout '"layer_halves_a": \[' "and how well each layer agrees with itself"
try 0 "with itself" "$moec" profile --compare "$work/test.h5" "$work/test.h5"
says stdout "correlation of 1.000" "they agree"
try 2 "one profile is not enough" "$moec" profile --compare "$work/test.h5"
says stderr "A.h5 B.h5" "says what is missing"
try 2 "nothing is measured beside" "$moec" profile --compare "$work/test.h5" "$work/test.h5" --data README.md
try 1 "something else than a profile" "$moec" profile --compare "$work/test.h5" README.md
done_testing
