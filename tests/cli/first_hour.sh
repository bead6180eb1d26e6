#!/bin/sh
# What somebody meets who tries moec for the first time: what a profile would take, how the work goes, what a simulation
# and a comparison say first.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
fewer_layers 4
model=$sample
data=datasets/sample/calibration.txt

# ---- before a profile ----

try 0 "what a profile would take" "$moec" profile "$model" --data $data --samples 40 --seq-len 48 --dry-run --quiet -o "$work/p.h5"
says stdout '^about .* on this machine as it is now: [0-9.]+ passes over 40 windows$' "begins with its answer"
says stdout '^[0-9.]+ core-hours: .* on 16 idle cores like these$' "in core-hours too"
says stdout '^  single experts +[0-9.]+ passes' "each phase has its passes"
says stdout '^memory: about [0-9.]+ MiB, at most [0-9.]+ GiB' "memory is estimated and bounded"
says stdout '^disk: profile at most [0-9.]+ [kM]B' "and disk"
try 1 "nothing is written" test -e "$work/p.h5"
try 0 "the same as JSON" "$moec" profile "$model" --data $data --samples 40 --seq-len 48 --dry-run --quiet --json --sensitivity fast
foreseen=$(sed -n 's/^ *"passes": \([0-9.]*\),/\1/p' "$work/stdout")
memory=$(sed -n 's/^ *"memory_bytes": \([0-9]*\),/\1/p' "$work/stdout")
# within_memory NAME: the last profile took the memory that was foreseen, but for a seventh.
within_memory() {
    peak=$(sed -n 's/^ *"peak_bytes": \([0-9]*\),*/\1/p' "$work/stdout")
    if takes_memory; then
        skip "$1" "a sanitizer takes memory of its own"
    elif [ "$((100 * memory))" -ge "$((90 * peak))" ] && [ "$((100 * memory))" -le "$((115 * peak))" ]; then
        pass "$1"
    else
        fail "$1 (foreseen $memory, peak $peak)"
    fi
}
try 0 "a profile" "$moec" profile "$model" --data $data --samples 40 --seq-len 48 --sensitivity fast -o "$work/p.h5" --json --verbose
cp "$work/stderr" "$work/verbose"
cp "$work/stdout" "$work/measured"
taken=$(sed -n 's/^ *"cost_passes": \([0-9.]*\),/\1/p' "$work/stdout")
if awk "BEGIN { exit !($foreseen > 0.6 * $taken && $foreseen < 1.6 * $taken) }"; then
    pass "takes about what was foreseen"
else
    fail "takes about what was foreseen (foreseen $foreseen, taken $taken)"
fi
within_memory "and the memory"
for options in "--sensitivity fast --work-memory 96MiB" "--sensitivity exact --sensitivity-samples 4" "--sensitivity none"; do
    # shellcheck disable=SC2086 # options with spaces between them
    memory=$("$moec" profile "$model" --data $data --samples 32 --seq-len 32 --bits 2 $options --dry-run --json --quiet |
        sed -n 's/^ *"memory_bytes": \([0-9]*\),/\1/p')
    # shellcheck disable=SC2086
    try 0 "a profile with $options" "$moec" profile "$model" --data $data --samples 32 --seq-len 32 --bits 2 $options \
        -o "$work/r.h5" --force --json --quiet
    within_memory "takes the memory that was foreseen"
done
cp "$work/verbose" "$work/stderr"
says stderr '^original: [0-9]+ s$' "--verbose says how long each phase took"
says stderr '^local errors +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+  [0-9]+% [a-z0-9. ]+, [0-9]+% [a-z]' "and in a table what was computed in it"
says stderr '^all +[0-9.]+ +[0-9.]+ +[0-9.]*[1-9][0-9.]* ' "and in all"
cp "$work/measured" "$work/stdout"
says stdout '"peak_multiply_adds_per_second": [0-9.]*[1-9]' "--json has it too"
says stdout '"bound_by": "[a-z ]+"' "with what binds"
try 0 "the same profile, without" "$moec" profile "$model" --data $data --samples 40 --seq-len 48 --sensitivity fast -o "$work/p2.h5" \
    --json --quiet
if cmp -s "$work/p.h5" "$work/p2.h5"; then pass "is the same file"; else fail "is the same file"; fi
lacks stdout bound_by "and its JSON has no phases"
try 2 "quiet and verbose" "$moec" profile "$model" --data $data -o "$work/q.h5" --quiet --verbose
says stderr 'either --quiet or --verbose' "are refused together"
try 1 "data that is too little is found by a dry run too" "$moec" profile "$model" --data "$0" --dry-run --quiet

# ---- answers first ----

try 0 "a simulation" "$moec" simulate "$work/p.h5" --quiet -t 1
says stdout '^An expert buffer of .* has a hit rate of [0-9]+ % with' "what to expect of a buffer"
head -n 5 "$work/stdout" >"$work/answer"
cp "$work/answer" "$work/stdout"
says stdout '^Make the buffer at least .* lru never hits' "is its answer in few lines"
try 0 "another profile" "$moec" profile "$model" --data $data --samples 40 --seq-len 48 --seed 7 --sensitivity fast -o "$work/q.h5" --quiet
try 0 "a comparison" "$moec" profile --compare "$work/p.h5" "$work/q.h5"
head -n 3 "$work/stdout" | tr '\n' ' ' >"$work/answer"
try 0 "begins with its answer" grep -Eq '(difference|differ).*: A and B rank experts with' "$work/answer"
# A model of the hub that nobody has downloaded, and a checkpoint where a bundle belongs.
for verb in run chat eval bench inspect verify export strip; do
    case $verb in
    eval) set -- "$moec" eval Owner/model-1B --data $data ;;
    export) set -- "$moec" export Owner/model-1B -o "$work/exported" ;;
    strip) set -- "$moec" strip Owner/model-1B --copies 4 ;;
    *) set -- "$moec" $verb Owner/model-1B ;;
    esac
    try 2 "$verb of a model of the hub" "$@"
    says stderr 'hf download Owner/model-1B --local-dir model-1B' "says how to download it"
    [ $verb = eval ] || says stderr '&& moec compile model-1B --data mytext.txt' "and that it is compiled first"
done
try 2 "moec-run of a model of the hub" "$build/moec-run" Owner/model-1B -p x
try 1 "a bundle that is not there" "$moec" run folder/model.moec -p x
says stderr "cannot open 'folder/model.moec'" "is no model of the hub"
try 2 "a folder given to run" "$moec" run "$model" -p x
says stderr "Compile a checkpoint first: moec compile '$model'" "says how to compile it"

# A policy runs after minutes of measuring, and is looked for before.
try 1 "a policy that is misspelt" "$moec" compile "$model" --data $data --max-loss 2% --policy hul -o "$work/z.moec"
says stderr "did you mean 'hull'" "is answered with the one that was meant"
try 1 "and nothing is measured" test -e "$work/z.moec.profile.journal"
try 1 "a policy file that is not there" "$moec" compile "$model" --data $data --max-loss 2% --policy none.lua -o "$work/z.moec"
says stderr "'none.lua'" "is named"
printf 'local x = 1\nreturn function(moec)\n    return moec..\nend\n' >"$work/typo.lua"
try 1 "a policy file with a slip" "$moec" compile "$model" --data $data --max-loss 2% --policy "$work/typo.lua" -o "$work/z.moec"
says stderr "typo.lua:4: unexpected symbol near 'end'" "is told with its line"
try 1 "before anything is measured" test -e "$work/z.moec.profile.journal"
printf 'function assign(moec) return nil, "no" end\n' >"$work/typo.lua"
try 1 "a policy file without its return" "$moec" compile "$model" --data $data --max-loss 2% --policy "$work/typo.lua" -o "$work/z.moec"
says stderr "returned a nil, expected a function" "is told too"
echo 'while true do end' >"$work/loop.lua"
try 1 "a policy file that never ends" "$moec" compile "$model" --data $data --max-loss 2% --policy "$work/loop.lua" -o "$work/z.moec"
says stderr "loop.lua' used more than 5 s of CPU time" "is ended before anything is measured"
try 1 "before anything is measured" test -e "$work/z.moec.profile.journal"

done_testing
