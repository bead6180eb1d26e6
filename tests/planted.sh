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
# Both trees have a make of their own, without the one that may have started this.
unset MAKEFLAGS MAKELEVEL MFLAGS
folder=tests/planted

[ $# -gt 0 ] || set -- "$folder"/*.fault
mkdir -p build
work=$(mktemp -d build/planted.XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
tree=$work/tree
passed=0 failed=0 skipped=0
export CMOCKA_MESSAGE_OUTPUT=TAP OMP_WAIT_POLICY=passive

caught() {
    passed=$((passed + 1))
    echo "ok - $1: $2"
}
fail() {
    failed=$((failed + 1))
    echo "not ok - $1: $2"
    [ $# -lt 3 ] || tail -n 20 "$3" | sed 's/^/    /'
}

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
# build FOLDER TARGET...: of that tree. Warnings are no errors: a fault may leave a variable without use.
build() {
    in=$1
    shift
    make -C "$in" --no-print-directory -j"$JOBS" DEV=0 CUDA=0 "$@" >"$work/build" 2>&1
}
# run FOLDER TEST LOG: status and TAP of a test of that tree; what it says beside goes to LOG.err.
run() {
    (cd "$1" && MOEC_BUILD=build timeout "$TEST_TIMEOUT_SECONDS" "$(program "$2")") >"$3" 2>"$3.err"
}
# What makes a test's program; a script runs build/moec.
target() {
    case $1 in
    tests/*) echo all ;;
    *) echo "build/tests/$1" ;;
    esac
}
# says LOG WORD CASE: whether a line of TAP of this word, "ok" or "not ok", is of the case.
says() {
    awk -v word="$2" -v name="$3" 'index($0, word " ") == 1 {
        line = substr($0, length(word) + 2)
        sub(/^[0-9]+ /, "", line); sub(/^- /, "", line)
        if (line == name) found = 1
    } END { exit !found }' "$1"
}
# plant FAULT FROM: FROM with the fault. Status 1: the lines are not there exactly once, and `$work/places` says how often.
plant() {
    awk -v places="$work/places" '
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

# Every test that is named must pass as the tree is.
for fault in "$@"; do
    [ -e "$fault" ] || fault=$folder/$fault.fault
    [ ! -e "$fault" ] || field "$fault" test
done | sed 's/ .*//' | sort -u >"$work/tests"
targets=$(while read -r test; do target "$test"; done <"$work/tests" | sort -u)
# shellcheck disable=SC2086 # words
[ -z "$targets" ] || build . $targets || { tail -n 20 "$work/build"; echo 'the tests cannot be built without any fault'; exit 1; }
while read -r test; do
    without=$work/${test##*/}.without
    run . "$test" "$without" </dev/null || { cat "$without" "$without.err"; echo "$test fails without any fault"; exit 1; }
done <"$work/tests"

# A copy of the tree with what is built, so that only what a fault changes is built again.
mkdir "$tree" && tar -cf - --exclude=./build --exclude=./.git . | tar -xf - -C "$tree" && mkdir "$tree/build" || exit 1
for built in obj tests tools libcli.a libmoec.a libmoert.a libtests.a moec moec-run; do
    [ ! -e "build/$built" ] || cp -a "build/$built" "$tree/build/" || exit 1
done

for fault in "$@"; do
    [ -e "$fault" ] || fault=$folder/$fault.fault
    name=$(basename "$fault" .fault)
    [ -e "$fault" ] || { fail "$name" "there is no $fault"; continue; }
    what=$(head -n 1 "$fault")
    file=$(field "$fault" file) test=$(field "$fault" test)
    case=${test#* } test=${test%% *}
    without=$work/${test##*/}.without
    log=$work/log
    [ -f "$file" ] || { fail "$name" "its file '$file' is gone"; continue; }
    if says "$without" ok "$case # SKIP"; then
        skipped=$((skipped + 1))
        echo "ok - $name # SKIP $test skips it here"
        continue
    fi
    says "$without" ok "$case" || { fail "$name" "$test has no case '$case'"; continue; }
    if ! plant "$fault" "$file" >"$work/planted"; then
        fail "$name" "its lines are in '$file' $(cat "$work/places") times, expected once: name them anew in $fault"
        continue
    fi
    cat "$work/planted" >"$tree/$file"
    if ! build "$tree" "$(target "$test")"; then
        fail "$name" "does not compile" "$work/build"
    elif run "$tree" "$test" "$log"; then
        fail "$name" "SURVIVES $test: $what"
    elif says "$log" 'not ok' "$case"; then
        caught "$name" "$what Caught by $case"
    else
        fail "$name" "$test fails, but not in '$case'" "$log"
    fi
    # Newer than what was built from the fault.
    cat "$file" >"$tree/$file"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
