#!/bin/sh
# Interruption of a compile: what it leaves, how the same command goes on, what a compile with other settings takes of it,
# and journals that are damaged or another job's.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=$work/random
target=30%
data=datasets/sample/calibration.txt
out=$work/model.moec
journal=$out.journal
profile_journal=$out.profile.journal

# compile OPTION...: profiles and compiles, with the default policy unless the options name one.
# shellcheck disable=SC2317,SC2086 # called by try; one word each
compile() {
    "$moec" compile "$model" --data "$data" --seq-len 32 --samples 48 --max-loss $target --anyway --force -o "$out" --json "$@"
}
cat >"$work/four.lua" <<'LUA'
return function(moec)
  local four = require("assignment").uniform(moec, 4)
  moec.evaluate(four)
  return four
end
LUA
# cheap OPTION...: the same where only the journal as a whole matters: nothing is fitted, and single experts not measured.
# shellcheck disable=SC2317 # called by try
cheap() {
    compile --policy "$work/four.lua" --sensitivity none "$@"
}
# same NAME [BUNDLE]: the bundle is that of an uninterrupted compile.
same() {
    if cmp -s "${2:-$work/whole.moec}" "$out"; then
        pass "$1"
    else
        fail "$1"
    fi
}
resumed() {
    sed -n 's/^ *"resumed_units": \([0-9]*\),*$/\1/p' "$work/stdout"
}
# takes N NAME: at least so many units came from the journal.
takes() {
    if [ "$(resumed)" -ge "$1" ]; then
        pass "$2 ($(resumed))"
    else
        fail "$2 ($(resumed), expected at least $1)"
    fi
}
check() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1: $2"; fi
}
now_ms() {
    echo $(($(date +%s%N) / 1000000))
}

try 0 "a random model" random_model "$model"
start=$(now_ms)
try 0 "an uninterrupted compile" compile
took=$(($(now_ms) - start))
mv "$out" "$work/whole.moec"
absent "$journal" "leaves no journal"
absent "$profile_journal" "nor one of the profile"
takes 0 "and took nothing from one"

# ---- kill -9 and Ctrl-C ----

# ended SIGNAL PERCENT THREADS: the compile, ended after this share of the time that the first one took.
ended() {
    timeout --preserve-status -s "$1" "$(awk "BEGIN { print $took * $2 / 100000 }")" "$moec" compile "$model" --data "$data" \
        --seq-len 32 --samples 48 --max-loss $target --anyway -o "$out" --json --threads "$3" >"$work/stdout" 2>"$work/stderr"
    status=$?
}
# Every kill finds more done; at last the compile ends. One that ends before the first kill is begun again, with less time.
n_kill=0 n_try=0 status=137
while [ "$status" -eq 137 ] && [ $n_try -lt 60 ]; do
    n_try=$((n_try + 1))
    ended KILL $((40 + n_kill % 3 * 10)) $((1 + n_kill % 3))
    n_kill=$((n_kill + (status == 137)))
    if [ "$status" -eq 0 ] && [ $n_kill -eq 0 ]; then
        rm "$out"
        took=$((took / 2))
        status=137
    elif [ "$status" -eq 137 ] && cmp -s "$work/whole.moec" "$out"; then
        rm "$out" # the kill came after the last byte, when only the journals were left to remove
        took=$((took * 9 / 10))
    elif [ "$status" -ne 0 ] && [ -e "$out" ]; then
        status=1
    fi
done
if [ "$status" -eq 0 ] && [ $n_kill -gt 0 ]; then
    pass "a compile that is killed goes on and on until it ends ($n_kill kills)"
else
    fail "a compile that is killed goes on and on until it ends (status $status, $n_kill kills)"
fi
says stderr "resuming from '.*journal': [0-9]+ units of work are done" "it says that it goes on"
# How far the last kill let it come depends on the machine; all of that must be taken.
kept=$(sed -n "s/.*resuming from '.*': \([0-9]*\) units of work are done.*/\1/p" "$work/stderr" | tail -n 1)
check "experts among it" "${kept:-0} > 1"
takes "${kept:-1}" "it took up what was kept"
same "the bundle is that of an uninterrupted run"
absent "$journal" "the journal is gone"
absent "$profile_journal" "and that of the profile"

status=0
for _ in 1 2 3 4 5 6; do
    [ "$status" -eq 0 ] || break
    rm -f "$out"
    ended INT 60 2
    [ "$status" -ne 0 ] || took=$((took / 2))
done
if [ "$status" -eq 130 ]; then
    pass "Ctrl-C ends with status 130"
else
    fail "Ctrl-C ends with status 130 (got $status)"
fi
says stderr "units of work are kept in '.*model.moec.*journal'.* continues from this file" "the message names the journal"
absent "$out" "nothing stands under the final name"
rm -f "$out" "$journal" "$profile_journal"

# ---- a search that fails ----

# Everything is fitted and measured, and then the script fails: a journal with known contents.
cat >"$work/fail.lua" <<'LUA'
return function(moec)
  local variants = moec.variants()
  moec.evaluate(require("assignment").uniform(moec, variants.names[1]))
  error("stopped on purpose")
end
LUA
start=$(now_ms)
try 1 "a policy that fails at its end" compile --policy "$work/fail.lua" --sensitivity fast
failing=$(($(now_ms) - start))
says stderr "units of work are kept in '.*'" "leaves what it measured"
cp "$journal" "$work/journal"
cp "$profile_journal" "$work/profile_journal"
start=$(now_ms)
try 1 "the same once more" compile --policy "$work/fail.lua" --sensitivity fast
again=$(($(now_ms) - start))
check "takes a fraction of the time" "$again < 0.6 * $failing"
# restore: the journals of the policy that failed.
restore() {
    rm -f "$out"
    cp "$work/journal" "$journal"
    cp "$work/profile_journal" "$profile_journal"
}
restore
try 0 "another policy, other threads and work memory" compile --threads 3 --work-memory "$(mebibytes 96)"
takes 110 "goes on from there"
same "to the same bundle"
restore
target=60%
try 0 "another target" compile
target=30%
takes 110 "goes on from there too"

# ---- journals that do not fit ----

try 0 "a compile that fits nothing" cheap
mv "$out" "$work/cheap.moec"
restore
try 0 "other data" cheap --seed 7
says stderr "model.moec.journal' is the journal of another job: its windows .*; starting over" "is said, and measured anew"
absent "$journal" "the other's journal is gone"
n=$(wc -c <"$work/journal")
flip() { # OFFSET
    restore
    byte=$(od -An -tu1 -j "$1" -N1 "$work/journal")
    printf '%b' "\\0$(printf '%o' $((byte ^ 64)))" | dd of="$journal" bs=1 seek="$1" conv=notrunc 2>"$work/stderr"
}
flip $((n / 2))
try 0 "a flipped byte in the middle" compile
says stderr 'an incomplete record and were cut off' "is said"
takes 20 "what stands before it is used"
same "and the bundle is right"
flip 50
try 0 "a flipped byte in the header" cheap
says stderr 'does not match its checksum.*; starting over' "is said"
same "and costs only time" "$work/cheap.moec"
restore
head -c $((n - 7)) "$work/journal" >"$journal"
try 0 "a torn record" compile
same "is measured again"
restore
echo 'a letter to the editor' >"$journal"
try 0 "what is no journal" cheap
says stderr 'is not a journal of moec \(name another file\): finished work is not saved in a journal' "is said"
same "does no harm" "$work/cheap.moec"
if [ "$(cat "$journal")" = 'a letter to the editor' ]; then
    pass "and is left alone"
else
    fail "and is left alone"
fi
rm "$journal"

# ---- fitted dense weights, and rows ----

sed 's/return four/error("stopped on purpose")/' "$work/four.lua" >"$work/late.lua"
try 0 "dense weights at 4 bits" cheap --dense-bits 4
mv "$out" "$work/whole.moec"
try 1 "the same, to be stopped" compile --policy "$work/late.lua" --sensitivity none --dense-bits 4
try 0 "the same again" cheap --dense-bits 4
takes 19 "takes fitted matrices from the journal"
same "and writes the same bundle"

awk 'BEGIN { for (r = 0; r < 60; r++) printf "{\"text\": \"The %d\", \"end\": \" word %d\"}\n", r, r }' >"$work/rows.jsonl"
cat >"$work/pick.lua" <<'LUA'
return { name = "pick", metric = "accuracy", prompt = "{text}",
  choices = { texts = { "{end}", " qqqq", " zz" }, text = "{choice}", label = "0" } }
LUA
try 0 "a profile" "$moec" profile "$model" --data "$data" --seq-len 32 --samples 48 --sensitivity none --bits 2 \
    --anyway -o "$work/p.h5" --quiet
rows="--metric accuracy --task $work/pick.lua --data $work/rows.jsonl --samples 40"
# shellcheck disable=SC2317,SC2086 # called by try; options are words
compile_rows() {
    "$moec" compile "$model" --profile "$work/p.h5" $rows --max-loss 90% --anyway --force -o "$out" --json --accept-miss "$@"
}
try 0 "rows" compile_rows --policy "$work/four.lua"
mv "$out" "$work/whole.moec"
try 1 "the same, to be stopped" compile_rows --policy "$work/late.lua"
try 0 "the same again" compile_rows --policy "$work/four.lua"
takes 2 "takes scores from the journal"
same "and writes the same bundle"
sed 's/zz/yy/' "$work/pick.lua" >"$work/pick2.lua" && mv "$work/pick2.lua" "$work/pick.lua"
try 1 "once more to be stopped" compile_rows --policy "$work/late.lua"
sed 's/yy/xx/' "$work/pick.lua" >"$work/pick2.lua" && mv "$work/pick2.lua" "$work/pick.lua"
try 0 "other choices" compile_rows --policy "$work/four.lua"
says stderr "another job: its task" "are another job"

# ---- a dry run ----

rm -f "$journal"
try 0 "a dry run" cheap --dry-run
absent "$journal" "has no journal"

done_testing
