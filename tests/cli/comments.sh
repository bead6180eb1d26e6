#!/bin/sh
# Lists, tables and formulas in comments: tests/check_comments.sh refuses those that run into the lines after them.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

# comment TEXT: a.c with this comment, whose lines \n ends.
comment() {
    printf '/* Words.\n%b */\nint a;\n' "$1" >"$work/a.c"
}
# passes NAME, refuses NAME LINE
passes() {
    try 0 "$1" tests/check_comments.sh "$work/a.c"
}
refuses() {
    try 1 "$1" tests/check_comments.sh "$work/a.c"
    says stdout "a.c:$2: " "by its line"
}
comment ' *\n *  - an item that\n *    goes on\n *  - another\n *\n * Words.'
passes "a list, and a line apart from it"
comment ' * - an item that\n *   goes on\n * - another\n'
passes "items at the margin"
comment ' *     a = b\n *     c = d'
passes "a formula that the comment ends with"
comment ' *  1. an item that\n * goes on\n'
refuses "an item that goes on at the margin" 3
comment ' * - an item\n * and words\n'
refuses "words right under an item" 3
comment ' *   name   what it is\n * for name2  and this\n'
refuses "a table that was filled like words" 3
comment ' *     a = b\n * with b from above.'
refuses "words right under a formula" 3
printf 'struct a {\n    /* Words:\n     *   one\n     * two */\n    int b;\n};\n' >"$work/a.c"
refuses "the same in a comment further in" 4
printf '/* -1 or 2 * 3. */\nint a = 2\n    * 3;\n/* - one. */\nint b;\n' >"$work/a.c"
passes "code, and comments of a line"
done_testing
