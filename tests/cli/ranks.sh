#!/bin/sh
# Ranks of mpirun, over TCP on the loopback: what they measure and compile is what one process does, byte for byte.
# shellcheck source=tests/cli/tap.inc
# shellcheck disable=SC2317 # functions that try calls
. tests/cli/tap.inc

data=datasets/sample/calibration.txt
cp datasets/sample/model/tokenizer.json "$work/tokenizer.json"
try 0 "a random model" "$build/tools/make_random_checkpoint" --tokenizer "$work/tokenizer.json" --layers 2 --hidden 64 \
    --heads 2 --kv-heads 2 --experts 6 --top-k 2 --ff 64 --vocab 4096 --positions 128 "$work/model"

if [ ! -e "$build/libmoec-mpi.so" ] || ! command -v mpirun >/dev/null; then
    skip "ranks" "mpirun is missing, or this build has no libmoec-mpi.so"
    done_testing
fi

# Ranks are as many as asked for, whatever the machine has; a container's only user may be root.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# ranks N COMMAND...
ranks() {
    count=$1
    shift
    timeout 120 mpirun --mca btl tcp,self --mca btl_tcp_if_include lo --oversubscribe -n "$count" "$@"
}
# same NAME FILE FILE
same() {
    if cmp -s "$2" "$3"; then pass "$1"; else fail "$1"; fi
}

# ---- eval ----

evaluate() {
    "$@" "$moec" eval "$work/model" --data "$data" --seq-len 32 --json --samples "$samples" --reference "$work/model"
}
samples=9
try 0 "one process measures" evaluate env
cp "$work/stdout" "$work/alone.json"
for n in 2 3; do
    try 0 "$n ranks measure" evaluate ranks $n
    says stderr "^$n ranks share the work, $n of them here" "and say so"
    same "the same of $n ranks" "$work/alone.json" "$work/stdout"
done
samples=2
try 0 "one process measures little" evaluate env
cp "$work/stdout" "$work/alone.json"
try 0 "more ranks than windows" evaluate ranks 4
same "the same of them" "$work/alone.json" "$work/stdout"

# ---- eval of a task ----

for i in 1 2 3 4 5; do
    printf '{"goal": "Number %d is", "sol1": "one %d", "sol2": "two"}\n' $i $i
    echo $((i % 2)) >>"$work/piqa-labels.lst"
done >"$work/piqa.jsonl"
answer() {
    "$@" "$moec" eval "$work/model" --task piqa --data "$work/piqa.jsonl" --json --reference "$work/model"
}
try 0 "one process scores rows" answer env
cp "$work/stdout" "$work/alone.json"
try 0 "two ranks score them" answer ranks 2
same "the same" "$work/alone.json" "$work/stdout"

# ---- eval of a bundle that decides ----

try 0 "a bundle" "$moec" compile "$work/model" --policy uniform --bits 4 -o "$work/four.moec"
decide() {
    "$@" "$moec" eval "$work/four.moec" --data "$data" --seq-len 32 --samples 7 --json --route cache-prior:0.3 --slots 3 \
        --decide all
}
try 0 "one process decides" decide env
cp "$work/stdout" "$work/alone.json"
try 0 "ranks decide" decide ranks 3
same "the same losses and counts of them" "$work/alone.json" "$work/stdout"

# ---- compile ----

compile() {
    output=$1
    shift
    "$@" "$moec" compile "$work/model" --data "$data" --samples 48 --seq-len 32 --max-loss 10% --anyway --quiet -t 1 \
        -o "$work/$output"
}
try 0 "one process compiles" compile one.moec env
try 0 "two ranks compile" compile two.moec ranks 2
same "the same bundle" "$work/one.moec" "$work/two.moec"
if [ -e "$work/two.moec.journal" ]; then fail "no journal is left"; else pass "no journal is left"; fi

# killed FILE UNIT: kills rank 1 of the work at FILE, which $mpirun has started, once its journal has the unit.
killed() {
    i=0
    while [ $i -lt 600 ] && ! grep -aq "$2" "$work/$1.journal" 2>/dev/null; do
        sleep 0.05
        i=$((i + 1))
    done
    victim=$(pgrep -f "moec .* $work/model .*$1" | while read -r pid; do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx OMPI_COMM_WORLD_RANK=1 && echo "$pid"
    done | head -n 1)
    start=$(date +%s)
    [ -z "$victim" ] || kill -9 "$victim"
    wait "$mpirun"
    status=$?
    if [ -n "$victim" ] && [ $status -ne 0 ] && [ $(($(date +%s) - start)) -le 10 ]; then
        pass "a killed rank ends all"
    else
        fail "a killed rank ends all (rank '$victim', status $status)"
    fi
    if [ -s "$work/$1.journal" ] && [ ! -e "$work/$1" ]; then
        pass "the journal stays, and no output"
    else
        fail "the journal stays, and no output"
    fi
}

# A rank is killed: all end, and another number goes on from the first one's journal.
compile three.moec ranks 2 >"$work/stdout" 2>"$work/stderr" &
mpirun=$!
killed three.moec 'expert/0/1'
resume() {
    ranks 3 "$moec" compile "$work/model" --data "$data" --samples 48 --seq-len 32 --max-loss 10% --anyway -t 1 \
        -o "$work/three.moec"
}
try 0 "three ranks go on" resume
says stderr "resuming from '.*three.moec.journal'" "from where the two were"
same "to the same bundle" "$work/one.moec" "$work/three.moec"

# ---- profile ----

# profile OUTPUT STARTER... -- OPTIONS...
profile() {
    output=$1 starter=
    shift
    while [ "$1" != -- ]; do
        starter="$starter $1"
        shift
    done
    shift
    # shellcheck disable=SC2086 # the starter's words
    $starter "$moec" profile "$work/model" --data "$data" --samples 40 --seq-len 16 --bits 2,4 --baseline 16 -t 1 \
        --anyway -o "$work/$output" "$@"
}
for how in "fast --study layers,choices,sparsity" "exact --projections"; do
    # shellcheck disable=SC2086 # options
    set -- --quiet --sensitivity $how
    rm -f "$work/one.h5"
    try 0 "one process profiles: $how" profile one.h5 env -- "$@"
    for n in 2 3; do
        try 0 "$n ranks profile" profile some.h5 ranks $n -- "$@"
        same "the same profile of $n ranks" "$work/one.h5" "$work/some.h5"
        rm -f "$work/some.h5"
    done
done
# Experts are encoded by one rank for all, but for those that are only copied.
# encoded KEY: bytes from the list of this name on
encoded() {
    sed -n "/\"$1\": \\[/,\$p" "$work/stdout" | awk '/"encoded_bytes"/ { sum += $2 } END { printf "%.0f\n", sum }'
}
try 0 "one process tells what it encodes" profile told.h5 env -- --sensitivity fast --json --verbose
alone=$(($(encoded phases) / 2)) # each phase, and their sum
try 0 "two ranks tell it" profile some.h5 ranks 2 -- --sensitivity fast --json --verbose
together=$(encoded ranks)
if [ "$alone" -gt 0 ] && [ "$together" -gt "$alone" ] && [ "$together" -lt $((2 * alone)) ]; then
    pass "each encodes a part"
else
    fail "each encodes a part ($alone bytes alone, $together together)"
fi
same "of the same profile" "$work/told.h5" "$work/some.h5"
rm -f "$work/some.h5"

try 0 "the phases of ranks" profile some.h5 ranks 2 -- --sensitivity none --verbose
says stderr "^rank  phase .* MB received" "are told"
says stderr "^   1  all " "of each"
says stderr "^peak memory: .* of the largest rank, .* of all$" "with the peak of memory"
says stdout "^peak memory: .* of the largest of 2 ranks, .* of all$" "which is told without phases too"
rm -f "$work/some.h5"

profile cut.h5 ranks 2 -- --sensitivity exact --projections >"$work/stdout" 2>"$work/stderr" &
mpirun=$!
killed cut.h5 'sensitivity/variants'
try 0 "three ranks go on" profile cut.h5 ranks 3 -- --sensitivity exact --projections --resume
says stderr "resuming from '.*cut.h5.journal'" "from where the two were"
same "to the same profile" "$work/one.h5" "$work/cut.h5"

# Fast or exact, the first rank's clock says.
sensitive() {
    output=$1
    shift
    "$@" "$moec" compile "$work/model" --data "$data" --policy marginal --max-loss 10% --anyway --samples 40 \
        --seq-len 16 --time-limit 1h --quiet -t 1 -o "$work/$output"
}
try 0 "one process measures experts for a compile" sensitive alone.moec env
try 0 "two ranks do" sensitive five.moec ranks 2
same "the same bundle of that" "$work/alone.moec" "$work/five.moec"

# ---- what differs is named, and nothing written ----

# Two seconds pass until mpirun has ended ranks of which one failed, so those that fail begin together.
# aside WORD COMMAND...: begins the command.
aside() {
    word=$1
    shift
    {
        "$@" >"$work/$word.stdout" 2>"$work/$word.stderr"
        echo $? >"$work/$word.status"
    } &
}
# ended WORD: what that command said, and its status.
ended() {
    cat "$work/$1.stdout"
    cat "$work/$1.stderr" >&2
    return "$(cat "$work/$1.status")"
}

# Each pair of folders has what one rank reads and what the other does.
for pair in alike data none weights; do
    for rank in 0 1; do
        mkdir -p "$work/$pair/$rank"
        cp -R "$work/model" "$work/$pair/$rank/model"
        cp "$data" "$work/$pair/$rank/text"
    done
done
printf 'more' >>"$work/data/1/text"
rm "$work/none/1/text"
for weights in "$work"/weights/1/model/*.safetensors; do
    printf '\377' | dd of="$weights" bs=1 seek=1000000 conv=notrunc 2>/dev/null
done
# apart PAIR COMMAND...: two ranks, each in a folder of its own.
program=$(cd "$build" && pwd)/moec
apart() {
    pair=$1
    shift
    # shellcheck disable=SC2016 # the ranks' shells expand it
    ranks 2 sh -c 'cd "$1/$OMPI_COMM_WORLD_RANK" && shift && exec "$@"' sh "$work/$pair" "$program" "$@"
}
compile_apart() {
    apart "$1" compile model --data text --samples 48 --seq-len 32 --max-loss 10% --anyway -o x.moec
}
try 0 "ranks in folders of their own" apart alike eval model --data text --seq-len 32 --samples 2
mkdir "$work/bin"
cp "$moec" "$work/bin/moec"
aside data apart data eval model --data text --seq-len 32 --samples 2
aside none compile_apart none
aside weights compile_apart weights
aside verb ranks 2 "$moec" verify "$work/one.moec"
aside device ranks 2 "$moec" eval "$work/model" --data "$data" --device cuda
aside answers ranks 2 "$moec" eval "$work/model" --task piqa --data "$work/piqa.jsonl" --answers "$work/answers"
aside show ranks 2 "$moec" profile --show "$work/one.h5"
aside library ranks 2 "$work/bin/moec" eval "$work/model" --data "$data"
wait
try 1 "other data" ended data
says stderr "^moec eval: rank 1 of 2, on '.*', has other data than rank 0" "is named"
try 1 "no data" ended none
says stderr "^moec compile: rank 1 of 2, on '.*': cannot open 'text'" "is named with its rank"
try 1 "another checkpoint" ended weights
says stderr "^moec compile: rank 1 of 2, on '.*', has another checkpoint than rank 0" "is named"
if [ "$(grep -c '^moec compile:' "$work/stderr")" -eq 1 ]; then pass "once"; else fail "once"; fi
if ls "$work"/*/?/x.moec* >/dev/null 2>&1; then fail "nothing is written"; else pass "nothing is written"; fi

# ---- refusals ----

try 2 "a verb that shares nothing" ended verb
says stderr "mpirun started 2 ranks, but 'moec verify' runs in one process only" "is refused"
try 2 "a device" ended device
says stderr "several ranks can work only on CPUs" "is refused"
try 2 "answers" ended answers
says stderr "leave out --answers" "are refused"
try 2 "a look at a profile" ended show
says stderr "--show runs in one process only" "is refused"
try 1 "without the library" ended library
says stderr "'libmoec-mpi.so' cannot be opened" "says so"

done_testing
