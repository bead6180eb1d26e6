#!/bin/sh
# Mutation tests: whether the tests see what they are there for. Each file of tests/planted/ is one fault that a careless
# edit could make, and names the test case that must fail with it. All is done in a copy of the tree under build/:
# one fault at a time is planted, the test that it names is built and run, and the fault is taken back.
# Usage: tests/planted.sh [NAME...]   (from the repository root; a NAME is a file of tests/planted/, without .fault)
# The last line is "N passed, N failed, N skipped"; exit status 1 when anything failed.
#
# A .fault file says what goes wrong in its first line, then
#   file PATH          which file has the fault
#   test NAME CASE     build/tests/NAME and its case, or a script of tests/cli/ and the words of its case
# and then the lines that change: "-" before a line that goes, "+" before one that comes, " " before one that stays.
# White space at both ends of a line does not count. A fault whose lines are not in its file exactly once fails: whoever
# changed them says in the .fault file where it is now.
set -u
: "${JOBS:=$(nproc 2>/dev/null || echo 2)}"
: "${TEST_TIMEOUT_SECONDS:=300}"
# Trees have a make of their own, without the one that may have started this.
unset MAKEFLAGS MAKELEVEL MFLAGS
export JOBS TEST_TIMEOUT_SECONDS CMOCKA_MESSAGE_OUTPUT=TAP OMP_WAIT_POLICY=passive
folder=tests/planted
MOST_LANES=4 # trees that faults are planted into side by side, of a few hundred megabytes each

# field FAULT KEY: the rest of its line.
field() {
    sed -n "s/^$2 //p" "$1" | head -n 1
}
# A test's program.
program() {
    case $1 in
    tests/*) echo "$1" ;;
    *) echo "build/tests/$1" ;;
    esac
}
# What makes a test's program; a script runs build/moec.
target() {
    case $1 in
    tests/*) echo all ;;
    *) echo "build/tests/$1" ;;
    esac
}
# build FOLDER LOG JOBS TARGET...: of that tree. Warnings are no errors: a fault may leave a variable without use.
build() {
    in=$1 build_log=$2 jobs=$3
    shift 3
    make -C "$in" --no-print-directory -j"$jobs" DEV=0 CUDA=0 "$@" >"$build_log" 2>&1
}
# run FOLDER TEST LOG: status and TAP of a test of that tree; what it says beside goes to LOG.err.
run() {
    (cd "$1" && MOEC_BUILD=build timeout "$TEST_TIMEOUT_SECONDS" "$(program "$2")") >"$3" 2>"$3.err"
}
# says LOG WORD CASE: whether a line of TAP of this word, "ok" or "not ok", is of the case; a script says in brackets why.
says() {
    awk -v word="$2" -v name="$3" 'index($0, word " ") == 1 {
        line = substr($0, length(word) + 2)
        sub(/^[0-9]+ /, "", line); sub(/^- /, "", line)
        if (line == name || index(line, name " (") == 1) found = 1
    } END { exit !found }' "$1"
}
# plant FAULT FROM PLACES: FROM with the fault. Status 1: the lines are not there exactly once, and PLACES says how often.
plant() {
    awk -v places="$3" '
        function bare(line) { gsub(/^[ \t]+|[ \t]+$/, "", line); return line }
        FNR == NR {
            sign = substr($0, 1, 1); rest = substr($0, 2)
            if (sign == "-" || sign == " ") old[++n_old] = bare(rest)
            if (sign == "+" || sign == " ") new[++n_new] = rest
            next
        }
        { line[++n] = $0 }
        END {
            for (i = 1; i + n_old - 1 <= n; i++) {
                for (j = 1; j <= n_old && bare(line[i + j - 1]) == old[j]; j++);
                if (j > n_old) { at = i; found++ }
            }
            print found + 0 >places
            if (n_old == 0 || found != 1) exit 1
            for (i = 1; i < at; i++) print line[i]
            for (j = 1; j <= n_new; j++) print new[j]
            for (i = at + n_old; i <= n; i++) print line[i]
        }' "$1" "$2"
}

# ---- one fault in the tree of a lane, $lane ----

passed() {
    echo "$1" >>"$lane/passed"
    echo "ok - $1: $2"
}
failed() {
    echo "$1" >>"$lane/failed"
    echo "not ok - $1: $2"
    [ $# -lt 3 ] || tail -n 20 "$3" | sed 's/^/    /'
}

try_fault() {
    fault=$1 name=$(basename "$1" .fault)
    [ -e "$fault" ] || { failed "$name" "there is no $fault"; return; }
    what=$(head -n 1 "$fault")
    file=$(field "$fault" file) test=$(field "$fault" test)
    case=${test#* } test=${test%% *}
    without=$work/${test##*/}.without
    [ -f "$file" ] || { failed "$name" "its file '$file' is gone"; return; }
    if says "$without" ok "$case # SKIP"; then
        echo "$name" >>"$lane/skipped"
        echo "ok - $name # SKIP $test skips it here"
        return
    fi
    says "$without" ok "$case" || { failed "$name" "$test has no case '$case'"; return; }
    if ! plant "$fault" "$file" "$lane/places" >"$lane/planted"; then
        failed "$name" "its lines are in '$file' $(cat "$lane/places") times, expected once: name them anew in $fault"
        return
    fi
    cat "$lane/planted" >"$lane/tree/$file"
    if ! build "$lane/tree" "$lane/build" 1 "$(target "$test")"; then
        failed "$name" "does not compile" "$lane/build"
    elif run "$lane/tree" "$test" "$lane/log"; then
        failed "$name" "SURVIVES $test: $what"
    elif says "$lane/log" 'not ok' "$case"; then
        passed "$name" "$what Caught by $case"
    else
        failed "$name" "$test fails, but not in '$case'" "$lane/log"
    fi
    # Newer than what was built from the fault.
    cat "$file" >"$lane/tree/$file"
}

# Parts of this script that it runs side by side.
case ${1:-} in
--without) # WORK TEST
    run . "$3" "$2/${3##*/}.without" || echo "$3" >>"$2/broken"
    exit 0
    ;;
--lane) # WORK NUMBER OF FAULT...: every OFth of the faults, from this number on
    work=$2 lane=$2/lane$3 i=0 number=$3 n_lane=$4
    shift 4
    # A copy of the tree with what is built, so that only what a fault changes is built again.
    mkdir "$lane" "$lane/tree" && tar -cf - --exclude=./build --exclude=./.git . | tar -xf - -C "$lane/tree" &&
        mkdir "$lane/tree/build" || exit 1
    for built in obj tests tools libcli.a libmoec.a libmoert.a libtests.a moec moec-run; do
        [ ! -e "build/$built" ] || cp -a "build/$built" "$lane/tree/build/" || exit 1
    done
    for fault in "$@"; do
        [ $((i % n_lane)) -ne "$number" ] || try_fault "$fault"
        i=$((i + 1))
    done
    exit 0
    ;;
esac

# ---- all of it ----

for fault in "$@"; do
    shift
    [ -e "$fault" ] || fault=$folder/$fault.fault
    set -- "$@" "$fault"
done
[ $# -gt 0 ] || set -- "$folder"/*.fault
mkdir -p build
work=$(mktemp -d build/planted.XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Every test that is named must pass as the tree is.
for fault in "$@"; do
    [ ! -e "$fault" ] || field "$fault" test
done | sed 's/ .*//' | sort -u >"$work/tests"
targets=$(while read -r test; do target "$test"; done <"$work/tests" | sort -u)
# shellcheck disable=SC2086 # words
[ -z "$targets" ] || build . "$work/build" "$JOBS" $targets || {
    tail -n 20 "$work/build"
    echo 'the tests cannot be built as the tree is'
    exit 1
}
xargs -P "$JOBS" -n 1 "$0" --without "$work" <"$work/tests"
if [ -e "$work/broken" ]; then
    while read -r test; do
        cat "$work/${test##*/}.without" "$work/${test##*/}.without.err"
        echo "$test fails as the tree is"
    done <"$work/broken"
    exit 1
fi

n_lane=$((JOBS < MOST_LANES ? JOBS : MOST_LANES))
n_lane=$((n_lane < $# ? n_lane : $#))
seq 0 $((n_lane - 1)) | xargs -P "$n_lane" -I{} "$0" --lane "$work" {} "$n_lane" "$@"
count() {
    cat "$work"/lane*/"$1" 2>/dev/null | wc -l
}
n_passed=$(count passed) n_skipped=$(count skipped)
# A lane that ended early leaves faults of which nothing is said: they count as failed.
n_failed=$(($# - n_passed - n_skipped))
echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
[ "$n_failed" -eq 0 ]
