#!/bin/sh
# Says which sources clang-format would write otherwise, or writes them. Versions of clang-format differ in what they
# write; without the one that the tree is written by there is nothing to compare with.
# Usage: tests/format.sh [-i] FILE...
set -eu
want=14
version_of() {
    "$1" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p'
}
for program in clang-format clang-format-$want; do
    found=$(version_of "$program")
    if [ "$found" = $want ]; then
        [ "$1" = -i ] || set -- --dry-run -Werror "$@"
        exec "$program" "$@"
    fi
done
have=$(version_of clang-format)
echo "skipped: the tree is formatted by clang-format $want, and here is ${have:-none}"
[ "$1" != -i ] || exit 1
