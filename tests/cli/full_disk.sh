#!/bin/sh
# What is written beside a result, on a disk that is full and in folders that take no files: each command fails, names the
# file, and leaves nothing half; what was measured is shown all the same.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

sample=datasets/sample/model
random=$work/random
text=datasets/sample/test.txt
moec_run=$build/moec-run
measure="--data $text --seq-len 16"
quick="$measure --samples 32 --bits 2 --anyway"
try 0 "a random model" random_model "$random"
# shellcheck disable=SC2086 # options and their values
try 0 "a profile" "$moec" profile "$random" $quick -q -o "$work/p.h5"
try 0 "a bundle" "$moec" compile $sample --policy uniform --bits 4 --copies 2 -q -o "$work/m.moec"
try 0 "a trace" "$moec" run "$work/m.moec" -p "The old" -n 8 --trace "$work/t.json"
printf 'plain' >"$work/plain"
cat >"$work/copy.lua" <<'EOF'
return { name = "copy", metric = "rouge-l", rows = { format = "text", split = "line" }, prompt = "{text}", reference = "{text}",
  answer = { tokens = 24 } }
EOF
grep -v '^$' $text | head -n 16 >"$work/lines.txt"

# Each row: a name, then the command, in which OUT is what is to be written. Commands are those that are quick.
cat >"$work/rows" <<EOF
a profile|$moec profile $random $quick -q -o OUT.h5
a heatmap as PNG|$moec profile --show $work/p.h5 --heatmap OUT.png
a heatmap as SVG|$moec profile --show $work/p.h5 --heatmap OUT.svg
a heatmap as PDF|$moec profile --show $work/p.h5 --heatmap OUT.pdf
a heatmap as CSV|$moec profile --show $work/p.h5 --heatmap OUT.csv
a table|$moec profile --show $work/p.h5 --table OUT.csv
a page|$moec profile --show $work/p.h5 --report OUT.html
plots of a profile|$moec profile --show $work/p.h5 --plots OUT
a bundle|$moec compile $sample --policy uniform --bits 4 -q -o OUT.moec
a page about a search|$moec compile $sample $measure --samples 32 --max-loss 60% --policy uniform -q --dry-run --report OUT.html
settings|$moec tune $work/m.moec $measure --samples 64 --reference $sample --max-loss 60% --slots 4 --with route -q -o OUT.moec
a predictor|$moec predict $work/m.moec --data $text --seq-len 64 --samples 32 -q -o OUT.moec
a sparsity|$moec sparsify $work/m.moec $measure --samples 48 --reference $sample --max-loss 60% -q -o OUT.moec
fewer copies|$moec strip $work/m.moec --copies 2 -o OUT.moec
a checkpoint|$moec export $work/m.moec -o OUT
a description|$moec device $work/m.moec --read-time 0.01 --compute-time 0.01 -q -o OUT.json
a trace|$moec run $work/m.moec -p The -n 8 --trace OUT.json
a trace of moec-run|$moec_run $work/m.moec -p The -n 8 --trace OUT.json
decisions|$moec run $work/m.moec -p The -n 200 --ignore-eos --precision shared:0.3:0.8 --record-decisions OUT.json
answers|$moec eval $work/m.moec --data $work/lines.txt --task $work/copy.lua -q --answers OUT.jsonl
a result of a bench|$moec bench $work/m.moec --modes cache --memory 50% --samples 1 -n 4 -q -o OUT.json
traces of a bench|$moec bench $work/m.moec --modes cache --memory 50% --samples 1 -n 4 -q --traces OUT
plots of a bench|$moec bench $work/m.moec --modes cache,edgemoe --memory 25%,50% --samples 1 -n 4 -q --plots OUT
plots of a simulation|$moec simulate $work/t.json --evict lru --predict none --memory 50% -q --plots OUT
EOF

# limited COMMAND...: no file grows beyond 1 KiB, as on a disk that is full there.
limited() (
    trap '' XFSZ
    ulimit -f 2
    exec "$@" >/dev/null
)

# no_halves FOLDER NAME: nothing has the output's name, and nothing temporary is left. Of plots those that fit are there, and
# a journal keeps finished work.
no_halves() {
    left=$(find "$1" -mindepth 1 -name '.*' && find "$1" -mindepth 1 -maxdepth 1 ! -type d ! -name '*.journal')
    if [ -z "$left" ]; then pass "$2: nothing half is left"; else fail "$2: nothing half is left: $left"; fi
}

# each WHERE STATUS FOLDER [RUNNER]: every row writes into the folder.
each() {
    where=$1 statuses=$2 folder=$3 runner=$4
    while IFS='|' read -r name command; do
        words=$(printf '%s' "$command" | sed "s|OUT|$folder/out|")
        # shellcheck disable=SC2086 # words of a command
        $runner $words >"$work/stdout" 2>"$work/stderr" </dev/null
        got=$?
        case " $statuses " in
        *" $got "*) pass "$name $where fails" ;;
        *) fail "$name $where fails (status $got)" ;;
        esac
        says stderr "$folder/out" "$name $where is named"
    done <"$work/rows"
}

mkdir "$work/full"
while IFS='|' read -r name command; do
    rm -rf "$work/full"
    mkdir "$work/full"
    words=$(printf '%s' "$command" | sed "s|OUT|$work/full/out|")
    # shellcheck disable=SC2086 # words of a command
    limited $words 2>"$work/stderr" </dev/null
    got=$?
    : >"$work/stdout"
    if [ $got -eq 1 ]; then pass "$name on a full disk fails"; else fail "$name on a full disk fails (status $got)"; fi
    says stderr "$work/full/(\.)?out" "$name on a full disk is named"
    no_halves "$work/full" "$name"
done <"$work/rows"

each "below a file" "1 2" "$work/plain" ""
each "in a folder that is not there" "1 2" "$work/none" ""

# As root permissions hold nobody back, so a file system that is mounted read-only shows it, where one can be mounted.
mkdir "$work/ro"
if unshare -rm mount -t tmpfs -o ro tmpfs "$work/ro" 2>"$work/stderr"; then
    # shellcheck disable=SC2016,SC2317 # expanded by the shell that mounts; called through "each"
    read_only() { unshare -rm sh -c 'mount -t tmpfs -o ro tmpfs "$0" && exec "$@"' "$work/ro" "$@"; }
    each "in a read-only folder" "1 2" "$work/ro" read_only
else
    skip "read-only folders" "nothing can be mounted here: $(head -n 1 "$work/stderr")"
fi

# ---- standard output ----

cat >"$work/rows" <<EOF
help|$moec --help
help of a verb|$moec run --help-all
a man page|$moec manual run
completion|$moec completion bash
a text|$moec run $work/m.moec -p The -n 8
a text of moec-run|$moec_run $work/m.moec -p The -n 8
a long text|$moec run $work/m.moec -p The -n 400 --ignore-eos
an inspection|$moec inspect $work/m.moec
a profile that is shown|$moec profile --show $work/p.h5
a verification|$moec verify $work/m.moec
an evaluation|$moec eval $work/m.moec --data $text --samples 4 --seq-len 16 -q
a bench as JSON|$moec bench $work/m.moec --modes cache --memory 50% --samples 1 -n 4 -q --json
a simulation|$moec simulate $work/t.json --evict lru --predict none --memory 50% -q
advice|$moec doctor $sample
EOF
if [ -w /dev/full ]; then
    while IFS='|' read -r name command; do
        # shellcheck disable=SC2086 # words of a command
        $command >/dev/full 2>"$work/stderr" </dev/null
        got=$?
        : >"$work/stdout"
        if [ $got -eq 1 ]; then pass "$name into a full stdout fails"; else fail "$name into a full stdout fails (status $got)"; fi
        says stderr "cannot write to standard output" "$name says so"
    done <"$work/rows"
    "$moec" run "$work/m.moec" -p The -n 400 --ignore-eos --stats >/dev/full 2>"$work/stderr"
    tokens=$(sed -n 's/^.*decod[a-z]* *\([0-9]*\) tokens.*/\1/p' "$work/stderr" | head -n 1)
    if [ "${tokens:-400}" -lt 10 ]; then pass "a text that nobody gets ends"; else fail "a text that nobody gets ends (${tokens:-no} tokens)"; fi
else
    skip "a full stdout" "there is no /dev/full"
fi
done_testing
