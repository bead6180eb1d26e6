#!/bin/sh
# Bits and decisions of a checkpoint for no device in particular, by the bytes that tokens read: one bundle, one promise,
# and nothing else stays. moec tune of a checkpoint is the same command.
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
same() {
    if cmp -s "$2" "$3"; then pass "$1"; else fail "$1"; fi
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
measure='--samples 48 --seq-len 32'
# shellcheck disable=SC2086,SC2317 # words; called by try
tune() {
    "$moec" tune "$sample" --data "$data" $measure --slots 6 "$@"
}

# shellcheck disable=SC2086 # words
try 0 "a profile" "$moec" profile "$sample" --data "$data" $measure --sensitivity none -q -o "$work/p.h5"
# shellcheck disable=SC2317 # called by try
fit() {
    "$moec" fit "$sample" --profile "$work/p.h5" --objective bytes --slots 6 "$@"
}
try 0 "weights are fitted" fitted_journal
cp "$made" "$work/a.moec.journal"
refused 'nothing was written' 1 "a loss that nothing keeps" fit --max-loss 0.0001% -q -o "$work/a.moec" --report "$work/no.html"
says stderr "kept in '.*a.moec.journal'" "and what is kept"
try 0 "its page says so" grep -q '<strong>No bundle:</strong>' "$work/no.html"
if [ -e "$work/a.moec" ]; then fail "writes nothing"; else pass "writes nothing"; fi
cp "$work/a.moec.journal" "$work/kept.journal"
try 0 "bits with decisions" fit --max-loss 10% -v --json -o "$work/a.moec"
says stderr 'plan 1, none: loss' "plans alone are tried"
says stderr 'plan [1-5], cache-prior:[0-9.]*:skip:[0-9.]*: loss .*KiB read' "and with routes"
says stderr 'loss .* on the selection part' "the front is measured once more"
says stderr 'test 1 of' "and tested"
says stderr 'resuming from .*a.moec.journal.: [0-9]+ units of work are done' "what was fitted is not fitted again"
says stdout '"objective": "bytes"' "the result says what counted"
check "one promise" "$(number loss_high) <= 0.1"
check "less is read" "$(number read_bytes_per_token) < $(number compiled_read_bytes_per_token)"
alone "one file is left" "$work/a.moec"
try 0 "it is whole" "$moec" verify "$work/a.moec"
try 0 "inspect" "$moec" inspect "$work/a.moec"
says stdout 'limit 10.000%' "one promise of all"
says stdout '^  cache      6 experts a layer' "names the slots"
if grep -q '^Fit' "$work/stdout"; then fail "but no device"; else pass "but no device"; fi
try 0 "it runs" "$moec" run "$work/a.moec" -p "Once upon a time" -n 8 --stats
try 0 "tune has not been told of a device, and may go on" "$moec" tune "$work/a.moec" --data "$data" --reference "$sample" \
    --samples 48 --seq-len 32 --with rank --max-loss 30% -q -o "$work/tuned.moec"

# Stopped in its middle, and gone on with by one thread and other instructions.
timeout --preserve-status -s INT 3 "$moec" fit "$sample" --profile "$work/p.h5" --objective bytes --slots 6 --max-loss 10% \
    -q -o "$work/i.moec" 2>"$work/stderr"
check "a signal ends it" "$? == 130 || $? == 0"
if [ -z "$(find "$work" -name 'i.moec.draft*')" ]; then pass "drafts go"; else fail "drafts go"; fi
try 0 "the same command goes on" fit --max-loss 10% -q --force -t 1 --cpu avx2 -o "$work/i.moec"
same "to the same bytes" "$work/a.moec" "$work/i.moec"
alone "and leaves nothing else" "$work/i.moec"

# ---- moec tune of a checkpoint ----

cp "$work/kept.journal" "$work/t.moec.journal"
try 0 "moec tune of a checkpoint" "$moec" tune "$sample" --profile "$work/p.h5" --slots 6 --max-loss 10% --with route,skip \
    --decide decode -q -o "$work/t.moec"
says stderr "tune: for a checkpoint, 'moec fit .* --objective bytes' runs instead" "says what it is"
same "and gives the same bytes" "$work/a.moec" "$work/t.moec"
cp "$work/kept.journal" "$work/t.moec.journal"
try 0 "over a file" "$moec" tune "$sample" --profile "$work/p.h5" --slots 6 --max-loss 10% --force -q -o "$work/t.moec"
refused 'name the bundle with -o' 2 "no output" tune --max-loss 2%
refused "with does not apply to a checkpoint: run 'moec compile" 2 "what is searched of bundles alone" \
    tune --max-loss 2% --with route,sparsity -o "$work/x.moec"
refused 'reference does not apply to a checkpoint' 2 "a reference" tune --max-loss 2% --reference "$sample" -o "$work/x.moec"
refused 'arithmetic does not apply to a checkpoint' 2 "another arithmetic" \
    tune --max-loss 2% --arithmetic int8 -o "$work/x.moec"
refused 'keep-top does not apply to a checkpoint' 2 "experts that are kept" tune --max-loss 2% --keep-top 9 -o "$work/x.moec"
refused 'give either --data FILE or --profile' 2 "data twice" tune --max-loss 2% --profile "$work/p.h5" -o "$work/x.moec"
refused 'the logical cache has room for 2 experts in each layer, expected 4' 2 "too few slots" \
    "$moec" tune "$sample" --data "$data" --max-loss 2% --slots 2 -q -o "$work/x.moec"

# ---- what does not go together ----

refused 'memory describes a device, but --objective bytes' 2 "a memory" fit --max-loss 2% --memory 64MiB -o "$work/x.moec"
refused 'storage describes a device, but --objective bytes' 2 "a storage" fit --max-loss 2% --storage sd -o "$work/x.moec"
refused 'slots applies only to --objective bytes' 2 "slots for a device" "$moec" fit "$sample" --data "$data" --max-loss 2% \
    --memory 64MiB --storage sd --slots 6 -o "$work/x.moec"
if [ -e "$work/x.moec" ]; then fail "nothing is written"; else pass "nothing is written"; fi
done_testing
