#!/bin/sh
# EdgeMoE's experiment, as short as it can be: everything is measured once, the page and the tables follow from it.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
# shellcheck source=tests/cli/experiments.inc
. tests/cli/experiments.inc

# holds NAME COMMAND...: the command succeeds.
holds() {
    name=$1
    shift
    if "$@"; then pass "$name"; else fail "$name"; fi
}

folder=$work/experiment
report=$build/tools/paper_report
export SAMPLES=decoder ROWS=32 TEST_ROWS=8 SEQ_LEN=32 SENSITIVITY=fast STUDIES=none BENCH_SAMPLES=1 QUANTIZERS='linear hqq' DENSE=8

if ! kept edgemoe "$folder"; then
    # Ended in the middle of a search, whose journal then lies there.
    setsid experiments/edgemoe.sh "$folder" >"$work/log" 2>&1 &
    pid=$!
    for _ in $(seq 9000); do # much longer than it takes, for machines that are busy and sanitizers
        [ ! -s "$folder/decoder/ours-2.moec.journal" ] || break
        sleep 0.1
    done
    holds "the search has a journal" test -s "$folder/decoder/ours-2.moec.journal"
    kill -s KILL -- "-$pid"
    wait "$pid" 2>"$work/log"
fi
try 0 "the experiment" experiments/edgemoe.sh "$folder"
says stdout "$folder/report.html" "names the page"

# The goals name what was measured; figures follow from the machine, so only their presence is checked.
if grep -q '<h2>The decoder sample' "$folder/report.html" && ! grep -Eq '(src|href)="?https?:' "$folder/report.html"; then
    pass "the page needs nothing beside itself"
else
    fail "the page needs nothing beside itself"
fi
rows=$(awk -F'\t' 'NR > 1 && NF == 10 && $2 > 0' "$folder/decoder_table2.tsv" | wc -l)
holds "Table II has seven rows of ten columns" test "$rows" -eq 7
measured=$(awk -F'\t' '$4 == "reached" || $4 == "not reached"' "$folder/decoder_goals.tsv" | wc -l)
holds "all goals were measured" test "$measured" -eq 9
awk -F'\t' '$4 == "not reached" && $5 == ""' "$folder/decoder_goals.tsv" >"$work/stdout"
holds "what is not reached says why" test ! -s "$work/stdout"
awk -F'\t' '$4 == "agrees" || $4 == "does not agree"' "$folder/decoder_findings.tsv" >"$work/stdout"
for figure in 'Fig. 4' 'Fig. 8' 'Fig. 6' 'Fig. 7a' 'Fig. 7b' 'Fig. 11	Jetson TX2, SSD' 'Fig. 11	Jetson TX2, HDD' \
    'Fig. 11	both devices' 'Fig. 14' 'Fig. 14.*its procedure' 'Fig. 15' 'Fig. 17' 'Table II' 'Table III' 'Table IV'; do
    says stdout "^$figure" "$figure is judged"
done
awk -F'\t' '$4 == "not measured" { print $1 }' "$folder/decoder_findings.tsv" >"$work/stdout"
holds "and nothing is not measured" test ! -s "$work/stdout"
holds "Table III has three limits of two bundles" test "$(grep -c '^[0-9]' "$folder/decoder_table3.tsv")" -eq 6
for table in table2 table3 table4 targets modes modes_slow; do
    holds "the paper's procedure is in $table" grep -q "the paper's procedure" "$folder/decoder_$table.tsv"
done
for policy in random fifo lru lfu arc edgemoe hobbit; do
    holds "Fig. 14 has $policy" grep -Eq "^(.*	)?$policy(	|\$)" "$folder/decoder_evictions.tsv"
done
left=$(grep -c '	not measured	' "$folder/switch_goals.tsv")
holds "a sample without measurements is shown as not measured" test "$left" -eq 9

keep edgemoe "$folder"
cp "$folder/report.html" "$work/first.html"
try 0 "a second run" experiments/edgemoe.sh "$folder"
if grep -q 'moec' "$work/stderr"; then
    fail "measures nothing again"
else
    pass "measures nothing again"
fi
holds "and gives the same page" cmp -s "$folder/report.html" "$work/first.html"

fails_without experiments/edgemoe.sh "$work/nothing" profiles uniforms targets papers quantizers calibrations modes limits \
    latencies evictions

mv "$folder/decoder/profile.h5" "$work/profile.h5"
try 1 "results that the page does not find" experiments/edgemoe.sh "$folder"
says stderr 'edgemoe.sh: not measured: Fig. 4' "fail a whole run"
mv "$work/profile.h5" "$folder/decoder/profile.h5"

echo '{"rows": [' >"$folder/decoder/bench.json"
try 1 "a damaged measurement" "$report" edgemoe "$folder"
says stderr 'bench.json' "is named"
try 2 "no folder" "$report"
try 1 "a paper that is none" "$report" nothing "$folder"
says stderr "paper_report: there is no 'experiments/nothing.lua' here: papers are" "says which there are"
done_testing
