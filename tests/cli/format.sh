#!/bin/sh
# What make check and make format do with another clang-format than the one that the tree is written by.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

want=$(sed -n 's/^want=//p' tests/format.sh)
mkdir "$work/bin"
# clang_format PROGRAM VERSION: one that says so, and finds fault with every file.
clang_format() {
    # shellcheck disable=SC2016 # for that script
    printf '#!/bin/sh\n[ "$1" != --version ] || { echo "clang-format version %s.0.6 (1)"; exit 0; }\necho "%s $*"\nexit 1\n' \
        "$2" "$1" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
format() {
    # shellcheck disable=SC2317 # try calls it
    PATH="$work/bin:$PATH" tests/format.sh "$@"
}
clang_format clang-format $((want + 5))
clang_format "clang-format-$want" $((want + 5))
try 0 "another version checks nothing" format a.c
says stdout "^skipped: the tree is formatted by clang-format $want, and here is $((want + 5))\$" "and says both"
try 1 "nor does it write" format -i a.c
says stdout "^skipped" "and says so"
clang_format "clang-format-$want" "$want"
try 1 "one of that version beside it does" format a.c
says stdout "^clang-format-$want --dry-run -Werror a.c\$" "it is asked"
clang_format clang-format "$want"
try 1 "and is not needed where clang-format is that" format -i a.c
says stdout "^clang-format -i a.c\$" "it writes"
done_testing
