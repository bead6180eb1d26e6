#!/bin/sh
# Interruption: what an interrupted profile leaves, how it goes on, and journals that are damaged or another job's.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=$work/model
data=datasets/sample/calibration.txt
out=$work/p.h5
journal=$out.journal

# profile MODEL OPTION...: a small profile.
# shellcheck disable=SC2317 # called by try
profile() {
    "$moec" profile "$@" --seq-len 16 --samples 32 --bits 2 --anyway --quiet --force
}
same() {
    if cmp -s "$work/whole.h5" "$out"; then
        pass "$1"
    else
        fail "$1"
    fi
}

try 0 "a random model" random_model "$model"
start=$(date +%s%N)
try 0 "an uninterrupted run" profile "$model" --data $data -o "$work/whole.h5"
took=$((($(date +%s%N) - start) / 1000000))
absent "$work/whole.h5.journal" "leaves no journal"

# ---- the end comes early ----

# interrupt SIGNAL: ends the run when something is finished; a slow machine gets more time.
interrupt() {
    wait_ms=$((took * 4 / 10))
    status=none
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        rm -f "$out" "$journal"
        timeout --preserve-status -s "$1" "$(awk "BEGIN { print $wait_ms / 1000 }")" "$moec" profile "$model" --data $data \
            -o "$out" --seq-len 16 --samples 32 --bits 2 --anyway --quiet >"$work/stdout" 2>"$work/stderr"
        status=$?
        if [ "$status" -eq 0 ]; then
            wait_ms=$((wait_ms / 2))
        elif grep -q 'units of work are kept' "$work/stderr"; then
            return
        else
            wait_ms=$((wait_ms * 13 / 10))
        fi
    done
}
interrupt INT
if [ "$status" -eq 130 ]; then
    pass "Ctrl-C ends with status 130"
else
    fail "Ctrl-C ends with status 130 (got $status)"
fi
says stderr 'stopped after [0-9.]+ of [0-9.]+ passes' "the message says how far the run was"
says stderr "^  $moec profile .*--resume" "and what to type"
absent "$out" "nothing stands under the final name"
command=$(sed -n 's/^  //p' "$work/stderr")
cp "$journal" "$work/journal"

try 2 "a run that finds a journal" profile "$model" --data $data -o "$out"
says stderr "left '.*' with [0-9]+ units of work \(.* passes\)" "is told how much is in it"
says stderr 'continue with --resume, or delete this file' "and what to do"
try 0 "the command that the message gave" sh -c "$command"
says stderr "resuming from '.*': [0-9]+ units of work are done" "says where it goes on"
same "the profile is that of an uninterrupted run"
absent "$journal" "the journal is gone"

interrupt TERM
if [ "$status" -eq 143 ]; then
    pass "kill ends with status 143"
else
    fail "kill ends with status 143 (got $status)"
fi
try 0 "--resume with other threads and working memory" profile "$model" --data $data -o "$out" --resume --threads 3 \
    --work-memory "$(mebibytes 64)"
same "gives the same bytes"
try 0 "--resume without a journal" profile "$model" --data $data -o "$out" --resume
says stderr "no journal '.*' to resume: starting over" "says that it starts over"
try 2 "--resume without -o" profile "$model" --data $data --resume --heatmap "$work/map.csv"
says stderr 'give -o PROFILE.h5' "is refused"

# ---- journals that do not fit ----

# refused NAME PATTERN STATUS: the last try's journal is as it was.
refused() {
    says stderr "$2" "$1 is explained"
    if cmp -s "$work/journal" "$journal"; then
        pass "$1 leaves the journal alone"
    else
        fail "$1 leaves the journal alone"
    fi
}
cp "$work/journal" "$journal"
try 1 "another seed" profile "$model" --data $data -o "$out" --resume --seed 7
refused "another seed" "another job: its seed is '0' \(this run: '7'\)"
try 1 "other bitwidths and baseline" "$moec" profile "$model" --data $data -o "$out" --resume --seq-len 16 --samples 32 \
    --bits 3 --baseline 16 --anyway --quiet --force
refused "other bitwidths" "its bits is '2' \(this run: '3'\), baseline is '4' \(this run: '16'\)"
try 1 "other data" profile "$model" --data datasets/sample/test.txt -o "$out" --resume
refused "other data" "its data is '[0-9a-f]{64}' \(this run: '[0-9a-f]{64}'\), data-name"
mkdir "$work/other"
cp "$model"/* "$work/other/"
# Another weight: the last byte of the last tensor.
weights=$(basename "$model"/*.safetensors)
printf '\001' | dd of="$work/other/$weights" bs=1 seek=$(($(wc -c <"$model/$weights") - 1)) conv=notrunc 2>"$work/stderr"
try 1 "another model" profile "$work/other" --data $data -o "$out" --resume
refused "another model" "its model is '[0-9a-f]{64}'"

# ---- damaged journals ----

n=$(wc -c <"$work/journal")
flip() { # OFFSET
    cp "$work/journal" "$journal"
    byte=$(od -An -tu1 -j "$1" -N1 "$work/journal")
    printf '%b' "\\0$(printf '%o' $((byte ^ 64)))" | dd of="$journal" bs=1 seek="$1" conv=notrunc 2>"$work/stderr"
}
flip $((n - 100))
try 0 "a flipped byte in the last record" profile "$model" --data $data -o "$out" --resume
says stderr 'an incomplete record and were cut off' "is said"
same "and costs only that record"
flip 50
try 1 "a flipped byte in the header" profile "$model" --data $data -o "$out" --resume
says stderr 'header of .* does not match its checksum; delete the file' "is refused"
head -c $((n - 7)) "$work/journal" >"$journal"
try 0 "a torn record" profile "$model" --data $data -o "$out" --resume
same "is measured again"
head -c 30 "$work/journal" >"$journal"
try 0 "a torn header" profile "$model" --data $data -o "$out" --resume
same "begins anew"
echo 'a letter to the editor' >"$journal"
try 1 "what is no journal" profile "$model" --data $data -o "$out" --resume
says stderr 'is not a journal of moec' "is refused"
rm "$journal"
try 1 "a run that fails before it has finished anything" profile "$model" --data $data -o "$out" --work-memory 1MiB
absent "$journal" "leaves no journal"

# ---- compile ----

start=$(date +%s%N)
try 0 "compile" "$moec" compile "$model" --policy edgemoe --profile "$work/whole.h5" --max-loss 90% --anyway \
    -o "$work/whole.moec" --accept-miss --quiet
took=$((($(date +%s%N) - start) / 1000000))
bad=
for percent in 5 15 30 45 60 75 90; do
    timeout --preserve-status -s INT "$(awk "BEGIN { print $took * $percent / 100000 }")" "$moec" compile "$model" --policy edgemoe \
        --profile "$work/whole.h5" --max-loss 90% --anyway -o "$work/c.moec" --accept-miss --quiet >"$work/stdout" 2>"$work/stderr"
    status=$?
    if [ "$status" -eq 0 ]; then
        cmp -s "$work/whole.moec" "$work/c.moec" || bad="$bad $percent%: another bundle;"
        rm "$work/c.moec"
    elif [ "$status" -ne 130 ] || [ -e "$work/c.moec" ] || [ -n "$(find "$work" -name '.*moec-tmp*')" ]; then
        bad="$bad $percent%: status $status;"
    fi
    rm -f "$work/c.moec.journal"
done
if [ -z "$bad" ]; then
    pass "compile that is interrupted leaves no bundle"
else
    fail "compile that is interrupted leaves no bundle ($bad)"
fi

# ---- kills at random moments; make kill-test does more of them ----

if MODEL=$model MOEC_BUILD=$build tests/kill_profile.sh 5 11 --seq-len 16 --samples 32 --bits 2 --anyway >"$work/stdout"; then
    pass "five ends at random moments: $(sed -n 's/^ok 1 - //p' "$work/stdout")"
else
    fail "five ends at random moments"
fi

done_testing
