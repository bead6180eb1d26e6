#!/bin/sh
# Bits, decisions and sparsity of a checkpoint under one target: one bundle, one promise, and nothing else stays.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
sample=datasets/sample/model
data=datasets/sample/calibration.txt
check() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1: $2"; fi
}
number() {
    sed -n "s/^.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$work/stdout" | head -n 1
}
# shellcheck disable=SC2317 # called by try
tune() {
    "$moec" tune "$sample" --data "$data" --samples 48 --seq-len 32 --slots 6 "$@"
}
# alone NAME FILE: nothing stands beside the file but what is meant to.
alone() {
    if [ "$(find "$work" -name "$(basename "$2")*" | wc -l)" -eq 1 ] && [ -z "$(find "$work" -name '.*lock')" ]; then
        pass "$1"
    else
        fail "$1: $(ls -a "$work")"
    fi
}

refused() {
    words=$1
    shift
    try "$@"
    says stderr "$words" "says why"
}
try 0 "a profile" "$moec" profile "$sample" --data "$data" --samples 48 --seq-len 32 --sensitivity none -q -o "$work/p.h5"
# shellcheck disable=SC2317 # called by try
by_profile() {
    "$moec" tune "$sample" --profile "$work/p.h5" --slots 6 --with route,sparsity "$@"
}
refused 'nothing was written' 1 "a loss that nothing keeps" by_profile --max-loss 0.0001% -q -o "$work/a.moec"
says stderr "kept in '.*a.moec.journal'" "and what is kept"
if [ -e "$work/a.moec" ]; then fail "writes nothing"; else pass "writes nothing"; fi
try 0 "bits with decisions and a plan" by_profile --max-loss 10% -v --json -o "$work/a.moec"
says stderr 'draft 1, cache-prior:[0-9.]*: loss' "routes are tried"
says stderr 'draft [23], [0-9.]*% left out: loss' "plans too, of several drafts"
says stderr 'loss .* on the selection part' "the front is measured once more"
says stderr 'test 1 of' "and tested"
says stderr 'resuming from .*a.moec.journal.: [0-9]+ units of work are done' "what was fitted is not fitted again"
check "one promise" "$(number loss_high) <= 0.1"
check "less is read" "$(number read_bytes_per_token) < \
$(sed -n '/"without": {/,/}/s/.*"missed_bytes_per_token": *\([0-9.e+]*\).*/\1/p' "$work/stdout" | tail -n 1)"
alone "one file is left" "$work/a.moec"
try 0 "it is whole" "$moec" verify "$work/a.moec"
try 0 "inspect" "$moec" inspect "$work/a.moec"
says stdout 'none of the bits alone' "has no certificate of the bits"
says stdout 'limit 10.000%' "but one of all"
says stdout 'up (2|int2 [a-z0-9 ]+), down (int)?[3-8]' "up has fewer bits than its pairs"
try 0 "it runs" "$moec" run "$work/a.moec" -p "Once upon a time" -n 8 --stats

# Stopped in its middle, and gone on with by one thread and other instructions.
timeout --preserve-status -s INT 3 "$moec" tune "$sample" --profile "$work/p.h5" --slots 6 --max-loss 10% \
    --with route,sparsity -q -o "$work/i.moec" 2>"$work/stderr"
check "a signal ends it" "$? == 130 || $? == 0"
if [ -z "$(find "$work" -name 'i.moec.draft*')" ]; then pass "drafts go"; else fail "drafts go"; fi
try 0 "the same command goes on" by_profile --max-loss 10% -q --force -t 1 --cpu avx2 -o "$work/i.moec"
if cmp -s "$work/a.moec" "$work/i.moec"; then pass "to the same bytes"; else fail "to the same bytes"; fi
alone "and leaves nothing else" "$work/i.moec"

try 0 "data in place of a profile, and low copies" tune --max-loss 10% --with precision -q -o "$work/low.moec"
says stdout 'precision  hobbit:[0-9.]*:[0-9.]*, low copies of 2 bits' "are made and used"

refused 'name the bundle with -o' 2 "no output" tune --max-loss 2%
refused 'leave out --reference' 2 "a reference" tune --max-loss 2% --reference "$sample" -o "$work/x.moec"
refused 'only in canonical arithmetic' 1 "another arithmetic" tune --max-loss 2% --arithmetic int8 -o "$work/x.moec"
refused 'give either --data FILE or --profile' 2 "data twice" tune --max-loss 2% --profile "$work/p.h5" -o "$work/x.moec"
refused 'combines low-precision copies of experts .precision or prefill. with sparsity' 2 "low copies with a plan" tune --max-loss 2% --with prefill,sparsity -o "$work/x.moec"
refused 'the logical cache has room for 2 experts in each layer, expected 4' 2 "too few slots" \
    "$moec" tune "$sample" --data "$data" --max-loss 2% --slots 2 -o "$work/x.moec"
refused 'the logical cache has room for 1 low-precision copies in each layer' 2 "too few low slots" \
    tune --max-loss 2% --with precision --low-slots 1 -o "$work/x.moec"
refused 'best 9 experts of a token cannot all be used .* with route cache-prior' 2 "more kept than taken" \
    tune --max-loss 2% --keep-top 9 -o "$work/x.moec"
refused 'up . x' 1 "neurons that are not nothing" "$moec" tune tests/fixtures/families/gpt_oss --data "$data" --max-loss 2% \
    --with sparsity -o "$work/x.moec"
done_testing
