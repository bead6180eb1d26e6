#!/bin/sh
# What somebody meets who tries moec for the first time: what a profile would take, how the work goes, what a simulation
# and a comparison say first.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
model=datasets/sample/model
data=datasets/sample/calibration.txt

# ---- before a profile ----

try 0 "what a profile would take" "$moec" profile $model --data $data --samples 40 --dry-run --quiet -o "$work/p.h5"
says stdout '^about .* on this machine as it is now: [0-9.]+ passes over 40 windows$' "begins with its answer"
says stdout '^  single experts +[0-9.]+ passes' "each phase has its passes"
says stdout '^memory: at most [0-9.]+ GiB' "memory is bounded"
says stdout '^disk: profile at most [0-9.]+ [kM]B' "and disk"
try 1 "nothing is written" test -e "$work/p.h5"
try 0 "the same as JSON" "$moec" profile $model --data $data --samples 40 --dry-run --quiet --json --sensitivity fast
foreseen=$(sed -n 's/^ *"passes": \([0-9.]*\),/\1/p' "$work/stdout")
try 0 "a profile" "$moec" profile $model --data $data --samples 40 --sensitivity fast -o "$work/p.h5" --json --verbose
taken=$(sed -n 's/^ *"cost_passes": \([0-9.]*\),/\1/p' "$work/stdout")
if awk "BEGIN { exit !($foreseen > 0.6 * $taken && $foreseen < 1.6 * $taken) }"; then
    pass "takes about what was foreseen"
else
    fail "takes about what was foreseen (foreseen $foreseen, taken $taken)"
fi
says stderr '^original: [0-9]+ s$' "--verbose says how long each phase took"
try 2 "quiet and verbose" "$moec" profile $model --data $data -o "$work/q.h5" --quiet --verbose
says stderr 'either --quiet or --verbose' "are refused together"
try 1 "data that is too little is found by a dry run too" "$moec" profile $model --data "$0" --dry-run --quiet

# ---- answers first ----

try 0 "a simulation" "$moec" simulate "$work/p.h5" --quiet -t 1
says stdout '^A buffer of .* answers [0-9]+ of 100 requests' "what to expect of a buffer"
head -n 2 "$work/stdout" >"$work/answer"
try 0 "is its answer in two lines" grep -q '^Give it at least .* lru finds nothing' "$work/answer"
try 0 "another profile" "$moec" profile $model --data $data --samples 40 --seed 7 --sensitivity fast -o "$work/q.h5" --quiet
try 0 "a comparison" "$moec" profile --compare "$work/p.h5" "$work/q.h5"
head -n 3 "$work/stdout" | tr '\n' ' ' >"$work/answer"
try 0 "begins with its answer" grep -Eq '(difference|differ).*: A and B rank experts with' "$work/answer"
done_testing
