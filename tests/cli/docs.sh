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

for room in formats/*/ runtime/*/ profiler/*/ cli/*/ compiler/; do
    n_lines=$(wc -l <"${room}README.md" 2>/dev/null || echo 0)
    if [ "$n_lines" -ge 3 ] && [ "$n_lines" -le 8 ]; then
        pass "${room}README.md says in 3 to 8 lines what lives there"
    else
        fail "${room}README.md has $n_lines lines, expected 3 to 8"
    fi
done

done_testing
