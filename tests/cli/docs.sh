#!/bin/sh
# The documents: the length of README.md, links that lead somewhere, and a statement of every room of the source.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

# README.md is a page for someone in a hurry; everything else is in docs/.
size=$(awk '{ if (length($0) > wide) wide = length($0) } END { print NR, wide + 0 }' README.md)
if [ "${size% *}" -le 130 ] && [ "${size#* }" -le 110 ]; then
    pass "README.md has at most 130 lines of 110 columns"
else
    fail "README.md has ${size% *} lines of ${size#* } columns, expected at most 130 of 110"
fi

# First steps need no profile: README.md, the help and the man page begin by compiling from a text.
compile='moec compile MODEL --data mytext.txt --max-loss 2% -o model.moec'
sed -n '/^## The three steps/,/^1\./p' README.md | sed -n '/^```sh/{n;p;}' >"$work/first"
try 0 "README.md begins by compiling from a text" grep -qxF "$compile" "$work/first"
"$moec" help | sed -n '/^First steps:/,/^$/p' >"$work/help"
try 0 "so does the help" grep -qxF "  $compile" "$work/help"
"$moec" manual | tr -d '\134' | sed -n '/^.Sh EXAMPLES/,$p' | grep -v '^\.' | sed -n 2p >"$work/page"
try 0 "and the man page" grep -qxF "$compile" "$work/page"

# Relative links of a Markdown file, without their anchors.
links() {
    grep -oE '\]\([^)# ]+[^)]*\)' "$1" | sed -e 's/^](//' -e 's/)$//' -e 's/#.*//' | grep -vE '^[a-z]+:'
}

n_links=0
for page in $(find . -name '*.md' -not -path './build/*' | sort); do
    missing=
    for link in $(links "$page"); do
        n_links=$((n_links + 1))
        [ -e "$(dirname "$page")/$link" ] || missing="$missing $link"
    done
    if [ -z "$missing" ]; then
        pass "links of $page lead somewhere"
    else
        fail "$page links to files that do not exist:$missing"
    fi
done
if [ "$n_links" -ge 20 ]; then
    pass "links were found"
else
    fail "only $n_links links were found in all documents"
fi

for room in formats/*/ runtime/*/ runtime/*/*/ profiler/*/ server/ cli/*/ compiler/*/; do
    n_lines=$(wc -l <"${room}README.md" 2>/dev/null || echo 0)
    if [ "$n_lines" -ge 3 ] && [ "$n_lines" -le 8 ]; then
        pass "${room}README.md says in 3 to 8 lines what lives there"
    else
        fail "${room}README.md has $n_lines lines, expected 3 to 8"
    fi
done

# What the statement of a room says of its neighbours is what tests/rooms.tab holds.
layers=$(awk '$1 == "layer" { print $2 }' tests/rooms.tab)
while read -r kind room neighbours; do
    if [ "$kind" != room ] || [ ! -f "$room/README.md" ] || [ "$room" = experiments ]; then
        continue
    fi
    sentence=$(tr '\n' ' ' <"$room/README.md" | sed -n 's/.*\(It \(may \)\{0,1\}includes\{0,1\} .*\)Start reading.*/\1/p')
    printf '%s\n' "$neighbours" | tr ' ' '\n' | grep -vE '^(\.|)$' | sort >"$work/allowed"
    # shellcheck disable=SC2016 # backticks of Markdown
    printf '%s\n' "$sentence" | grep -oE '`[a-z/]+`' | tr -d '`' | grep -vxE "($(echo "$layers" | tr '\n' '|'))(/.*)?" |
        sort >"$work/named"
    case $sentence in
    *"every room"*) cp "$work/allowed" "$work/named" ;;
    esac
    if [ -n "$sentence" ] && cmp -s "$work/allowed" "$work/named"; then
        pass "$room/README.md names the rooms that it may include"
    else
        fail "$room/README.md names $(tr '\n' ' ' <"$work/named"), the table $(tr '\n' ' ' <"$work/allowed")"
    fi
done <tests/rooms.tab

# The roles of dense tensors in the format's page are those of the source.
sed -n 's/^ *X(\([A-Z_]*\), \([0-9]*\),.*/\1 \2/p' formats/model/dense.h | sort >"$work/numbers"
sed -n 's/.*\[MOEC_ROLE_\([A-Z_]*\)\] = "\(.*\)",$/\1 \2/p' formats/model/dense.c | sort >"$work/names"
missing=$(join "$work/numbers" "$work/names" | while read -r _ number name; do
    grep -qF "| $number | $name |" formats/bundle/FORMAT.md || echo "$number"
done)
if [ -z "$missing" ] && [ "$(join "$work/numbers" "$work/names" | wc -l)" -eq "$(wc -l <"$work/numbers")" ]; then
    pass "formats/bundle/FORMAT.md names every role"
else
    fail "formats/bundle/FORMAT.md lacks roles: $(echo "$missing" | tr '\n' ' ')"
fi

done_testing
