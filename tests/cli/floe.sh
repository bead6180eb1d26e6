#!/bin/sh
# The experiment about sparsity inside experts, as short as it can be: its page and tables follow from what was measured.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
# shellcheck source=tests/cli/experiments.inc
. tests/cli/experiments.inc

folder=$work/experiment
report=$build/tools/paper_report
export WINDOWS=4 SEQ_LEN=48 TUNE_SAMPLES=32 BITS='8 4 3 2' LEVELS='0.5 0.7 0.8 0.9' \
    TARGET=40% HALF_TARGET=20% BENCH_SAMPLES=1 TOKENS=4 READ_SECONDS=0.02 TAUGHT=64

kept floe "$folder" || echo "# measures anew"
try 0 "the experiment" experiments/floe.sh "$folder"
says stdout "$folder/report.html" "names the page"
if grep -q 'Fig. 9b: sparsity on top of bits' "$folder/report.html" && ! grep -Eq '(src|href)="?https?:' "$folder/report.html"; then
    pass "the page needs nothing beside itself"
else
    fail "the page needs nothing beside itself"
fi

# What must be so of any model: the figures themselves depend on the windows.
rows=$folder/sample_levels.tsv
check "nine tenths left out read less than half" "$(cell "$rows" '^int4.0.9' 6) < $(cell "$rows" '^int4.0.5' 6)"
check "two bits of up read less than four" "$(cell "$rows" '^up INT2, gate and down INT4.0.9.' 6) < $(cell "$rows" '^int4.0.9' 6)"
check "and one bit fewer still" "$(cell "$rows" '^up INT1, gate and down INT4.0.9.' 6) < $(cell "$rows" '^up INT2, gate and down INT4.0.9.' 6)"
bits=$folder/sample_projections.tsv
check "one bit of the gate loses more than two" "$(cell "$bits" '^sample.gate' 3 | cut -d' ' -f1) > $(cell "$bits" '^sample.gate' 4 | cut -d' ' -f1)"
check "beside the paper's models" "$(cell "$bits" '^Mixtral' 4) > 20"
plans=$folder/sample_plans.tsv
check "a plan reads less than all neurons" "$(cell "$plans" "^by each neuron" 7) < $(cell "$plans" "^by each neuron" 8)"
check "and is beside the bundle of bits alone" "$(cell "$plans" "^none" 7) > 0"
for method in 'FloE:.*up . x' 'CATS:.*the gate' 'CHESS:.*the gate' 'none: HQQ, int4' 'none: HQQ, int3' 'none: HQQ, int2'; do
    check "and a method that runs: $method" "$(cell "$plans" "^$method" 7) > 0"
done
check "experts are predicted" "$(cell "$folder/sample_predictors.tsv" "^1.0" 4) > $(cell "$folder/sample_predictors.tsv" "^1.0" 3)"
check "and active neurons" "$(cell "$folder/sample_predictors.tsv" "^1.0" 5) > 50"
for share in 25 50 75 100; do
    check "times in $share % of the memory are told" "$(cell "$folder/sample_decoding.tsv" "^$share\\|" 2) > 0"
done
check "a length's, beside bits alone and two bits" "$(cell "$folder/sample_lengths.tsv" "^16:32" 3) > 0 && $(cell "$folder/sample_lengths.tsv" "^16:32" 4) > 0"
check "and of reads" "$(cell "$folder/sample_transfers.tsv" "^1024" 3) > 0 && $(cell "$folder/sample_transfers.tsv" "^4\\|" 4) <= 100"
goals=$(awk -F'\t' '$4 == "reached" || $4 == "not reached"' "$folder/sample_goals.tsv" | wc -l)
check "all goals were measured" "$goals == 5"
awk -F'\t' '$4 == "not reached" && $5 == ""' "$folder/sample_goals.tsv" >"$work/stdout"
check "what is not reached says why" "$(wc -l <"$work/stdout") == 0"
says_of_paper=$(awk -F'\t' 'NR > 1' "$folder/sample_findings.tsv" | wc -l)
check "all sentences of the paper were measured" "$says_of_paper == 18"

fails_without experiments/floe.sh "$work/nothing" studies kernels levels plans decoding transfers predictors

keep floe "$folder"
cp "$folder/report.html" "$work/first.html"
try 0 "a second run" experiments/floe.sh "$folder"
if grep -q 'build.*moec ' "$work/stderr"; then fail "measures nothing again"; else pass "measures nothing again"; fi
if cmp -s "$folder/report.html" "$work/first.html"; then pass "and gives the same page"; else fail "and gives the same page"; fi

# A learned predictor without a proven gain is a finding, a failure of the verb is not.
[ "${WHOLE:-0}" != 0 ] || "$moec" compile datasets/sample/model --policy uniform --bits 4 -q -o "$folder/sample/taught.moec"
cat >"$work/unproven" <<EOF
#!/bin/sh
"$build/moec" "\$@"
[ "\$1" != predict ] || exit 1
EOF
printf '#!/bin/sh\nexit 1\n' >"$work/failing"
chmod +x "$work/unproven" "$work/failing"
rm "$folder/sample/predictors.json"
MOEC=$work/failing PARTS=predictors try 1 "a predictor that cannot be taught" experiments/floe.sh "$folder"
MOEC=$work/unproven PARTS=predictors try 0 "one without a proven gain" experiments/floe.sh "$folder"
says stderr 'no proven gain of the learned predictor' "is told"
if cmp -s "$folder/report.html" "$work/first.html"; then pass "and reported"; else fail "and reported"; fi

mv "$folder/sample/profile.h5" "$work/profile.h5"
try 1 "results that the page does not find" experiments/floe.sh "$folder"
says stderr "sample_findings.tsv' has nothing measured of 'Fig. 3a'" "fail a whole run"
mv "$work/profile.h5" "$folder/sample/profile.h5"

echo '{"plan": [' >"$folder/sample/plan-neuron.json"
try 1 "a damaged measurement" "$report" floe "$folder" sample
says stderr 'plan-neuron.json' "is named"
try 2 "no folder" "$report"
done_testing
