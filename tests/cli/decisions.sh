#!/bin/sh
# The experiment about decisions per token, as short as it can be: its page and tables follow from what was measured.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
# shellcheck source=tests/cli/experiments.inc
. tests/cli/experiments.inc

folder=$work/experiment
report=$build/tools/paper_report
export WINDOWS=6 SEQ_LEN=48 SIZES='2 4' PRIORS='0.1 0.5' RANKS=2 SHARES=0.8 PAIRS=4:2 SCORES=0.6 ALWAYS='0.95 0.6' WIDTHS=4 \
    PRIORS_MIXED=0.1 SCORES_MIXED=0.6 TUNE_SAMPLES=32 TUNINGS=1 TARGET=30% \
    HALF_TARGET=20% PREDICTORS=none BENCH_SAMPLES=1 TOKENS=4 STUDY_SAMPLES=32 BOTH=0.6:0.9 UNPOPULAR=0.25 PROMPT=64 \
    PRIORS_TIMED='0.1 0.5' FATE_PROMPTS=128 SYSTEM_PAIRS=8:2 SYSTEM_PROMPTS=16 TASK_ROWS=32

if ! kept decisions "$folder"; then
    try 0 "tables of losses" env PARTS='studies routes starts ranges pairs' experiments/decisions.sh "$folder"
    try 0 "of times" env PARTS='prefills throughput dynamic systems blocks evictions fate' experiments/decisions.sh "$folder"
fi
try 0 "the whole experiment" experiments/decisions.sh "$folder"
says stdout "$folder/report.html" "names the page"
if grep -q '<h2>sample: olmoe, 4 of 16 experts a token in 6 layers' "$folder/report.html" &&
    ! grep -Eq '(src|href)="?https?:' "$folder/report.html"; then
    pass "the page needs nothing beside itself"
else
    fail "the page needs nothing beside itself"
fi

# What must be so of any model: the figures themselves depend on the windows.
routes=$folder/sample_routes_8.tsv
check "the router's own choice loses nothing" "$(cell "$routes" "^the router's own" 4) == 0"
check "Belady's rule misses less of it" "$(cell "$routes" "^the router's own" 6) < $(cell "$routes" "^the router's own" 3)"
check "a prior misses less" "$(cell "$routes" '^cache-prior:0.5' 3) < $(cell "$routes" "^the router's own" 3)"
check "experts stay longer with it" \
    "$(cell "$folder/sample_stays.tsv" '8 / 16.cache-prior:0.5' 4) > $(cell "$folder/sample_stays.tsv" '8 / 16.original' 4)"
pair=$folder/sample_pair_4_2.tsv
check "a precision reads less" "$(cell "$pair" '^hobbit:0.6:1.8.' 7) < $(cell "$pair" '^none.8.' 7)"
check "low copies at mispredictions read less too" "$(cell "$pair" '^fate:4.8.' 7) < $(cell "$pair" '^none.8.' 7)"
check "a cache filled at first misses less" \
    "$(cell "$folder/sample_starts.tsv" "own.by frequency" 3) < $(cell "$folder/sample_starts.tsv" "own.empty" 3)"
check "a prior takes three ranges" "$(awk -F'\t' 'NR > 1 && $2 > 0' "$folder/sample_ranges.tsv" | wc -l) == 6"
check "fifteen tunings have certificates and losses" \
    "$(awk -F'\t' 'NR > 1 && $3 ~ /^-?[0-9]/ && $5 ~ /^-?[0-9]/' "$folder/sample_tunings.tsv" | wc -l) == 15"
check "decoding was timed on two storages with two sizes of memory, in four ways" \
    "$(awk -F'\t' 'NR > 1 && $5 > 0' "$folder/sample_decoding.tsv" | wc -l) == 16"
awk -F'\t' '$4 == "not measured"' "$folder/sample_goals.tsv" "$folder/sample_findings.tsv" >"$work/stdout"
check "what was not measured is not mentioned" "$(wc -c <"$work/stdout") == 0"
check "all goals but the count of tunings are judged" "$(awk -F'\t' '$4 == "reached" || $4 == "not reached"' "$folder/sample_goals.tsv" | wc -l) == 17"
check "all sentences of the papers were measured" "$(awk 'NR > 1' "$folder/sample_findings.tsv" | wc -l) == 63"

# The parts about time: their figures are of this machine, their rows are not.
check "ranks are exchanged" "$(cell "$folder/sample_ranks.tsv" '^replaced by a random one.1.' 3) > 0"
check "the last choice is judged in six layers" \
    "$(awk -F'\t' '$1 ~ /^[0-9]+$/ && $2 >= 0 && $2 <= 100' "$folder/sample_choices.tsv" | wc -l) == 6"
throughput=$folder/sample_throughput.tsv
check "throughput has two sizes, two prompts and three priors" "$(awk 'NR > 1' "$throughput" | wc -l) == 12"
check "a prior hits more" "$(cell "$throughput" '^8.50.0.5.' 4) > $(cell "$throughput" '^8.50.0.[0-9]' 4)"
shares=$folder/sample_shares_4_2.tsv
check "scores share experts out" "$(cell "$shares" '^0.60.0.90.' 3) + $(cell "$shares" '^0.60.0.90.' 4) + \
    $(cell "$shares" '^0.60.0.90.' 5) > 99.8"
dynamic=$folder/sample_dynamic_4_2.tsv
check "dynamic loading is on and off, up to four layers ahead" "$(awk 'NR > 1' "$dynamic" | wc -l) == 20"
evictions=$folder/sample_evictions.tsv
check "nine evictions with two sizes of memory" "$(awk 'NR > 1' "$evictions" | wc -l) == 18"
check "lru of each window hits more than random eviction" \
    "$(cell "$evictions" '^50.window-lru' 3) > $(cell "$evictions" '^50.random' 3)"
popular=$folder/sample_popular.tsv
check "unpopular experts cover less than their share" "$(cell "$popular" '^1.' 4) > 0 && $(cell "$popular" '^1.' 4) < 30"
prefill=$folder/sample_prefill_4_2.tsv
check "low copies of unpopular experts read less" "$(cell "$prefill" '^whole' 5) < $(cell "$prefill" '^no low copies' 5)"
check "and of popular ones are taken by more tokens" "$(cell "$prefill" '^popular:0.25' 2) > $(cell "$prefill" '^whole:0.25' 2)"
check "the paper's two orders are compared" "$(grep -c 'in contrast popular ones' "$folder/sample_findings.tsv") == 1"
for rate in 550 50; do
    check "seven strategies with four sizes of memory at $rate MB/s" \
        "$(awk 'NR > 1' "$folder/sample_fate_$rate.tsv" | wc -l) == 28"
done
check "four systems on two storages" "$(awk 'NR > 1' "$folder/sample_systems.tsv" | wc -l) == 8"
blocks=$folder/sample_blocks.tsv
check "prompts were read in three ways, by two pairs of precisions" "$(awk -F'\t' 'NR > 1 && $3 > 0' "$blocks" | wc -l) == 6"
for bits in '8 and 2' '4 and 2'; do
    check "by blocks they read less than by tokens with $bits bits" \
        "$(cell "$blocks" "^$bits.*by blocks" 3) < $(cell "$blocks" "^$bits.*by itself" 3)"
    check "and their loss is told" "$(cell "$blocks" "^$bits.*by blocks" 7) != 0"
done
for figure in 14 16; do
    check "the sentences of Fig. $figure about what is read are judged" \
        "$(grep -c "^HOBBIT, Fig. $figure.*volume of data.*agree" "$folder/sample_findings.tsv") == 1"
done
tasks=$folder/sample_tasks.tsv
check "two tasks in full, at three bitwidths and with decisions" \
    "$(awk -F'\t' '$2 == 32 && $4 > 0' "$tasks" | wc -l) == 16"
check "eight bits answer as the original" "$(cell "$tasks" '^word.32.all experts INT8' 4) > \
    $(cell "$tasks" '^word.32.original' 4) - 10"
check "the tuned eviction names its weights" "$(grep -c '	tuned, [0-9.:]*	' "$evictions") == 2"

mkdir -p "$work/nothing/sample"
cp "$folder/sample/profile.json" "$folder/sample/int8.json" "$folder/sample/model.json" "$work/nothing/sample"
fails_without experiments/decisions.sh "$work/nothing" studies routes starts ranges pairs prefills throughput dynamic systems \
    blocks evictions fate tasks tunings decoding

keep decisions "$folder"
cp "$folder/report.html" "$work/first.html"
try 0 "a second run" experiments/decisions.sh "$folder"
if grep -q 'moec' "$work/stderr"; then fail "measures nothing again"; else pass "measures nothing again"; fi
if cmp -s "$folder/report.html" "$work/first.html"; then pass "and gives the same page"; else fail "and gives the same page"; fi

# A setting that nothing proves is a finding, another failure of the verb is not.
mv "$folder/sample/tunings/with-route.json" "$work/with-route.json"
printf '#!/bin/sh\nexit 2\n' >"$work/refusing"
printf '#!/bin/sh\nexit 1\n' >"$work/unproven"
chmod +x "$work/refusing" "$work/unproven"
MOEC=$work/refusing PARTS=tunings try 1 "a tuning that is refused" experiments/decisions.sh "$folder"
try 1 "counts as none" test -e "$folder/sample/tunings/with-route.unproven"
MOEC=$work/unproven PARTS=tunings try 0 "one that proves nothing" experiments/decisions.sh "$folder"
says stderr 'no settings of with-route are proven' "is told"
mv "$work/with-route.json" "$folder/sample/tunings/with-route.json"
rm "$folder/sample/tunings/with-route.unproven"

mv "$folder/sample/studies.h5" "$work/studies.h5"
try 1 "results that the page does not find" experiments/decisions.sh "$folder"
says stderr "sample_findings.tsv' has nothing measured of 'Fig. 2'" "fail a whole run"
mv "$work/studies.h5" "$folder/sample/studies.h5"

echo '{"loss": ' >"$folder/sample/routes/top-k-8.json"
try 1 "a damaged measurement" "$report" decisions "$folder"
says stderr 'top-k-8.json' "is named"
mkdir "$work/empty"
try 1 "a folder without measurements" "$report" decisions "$work/empty"
says stderr 'has no results' "says so"
try 2 "no folder" "$report"
done_testing
