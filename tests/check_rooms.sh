#!/bin/sh
# The rule of layers, rooms and libraries, as tests/rooms.tab states it. Speaks TAP.
# Usage: tests/check_rooms.sh [FOLDER]   (a tree with a tests/rooms.tab of its own; default: this one)
set -uf
cd "${1:-$(dirname "$0")/..}" || exit 1
table=tests/rooms.tab
[ -r "$table" ] || { echo "Bail out! no '$table' in '$PWD'"; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM # which runs the trap above too

# Every source file below a layer: "folder file".
layers=$(awk '$1 == "layer" { print $2 }' "$table")
for layer in $layers; do
    if [ -d "$layer" ]; then
        find "$layer" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'
    else
        printf '%s\tno such folder\n' "$layer" >>"$work/wrong"
    fi
done | sort | sed 's|^\(.*\)/\([^/]*\)$|\1 \1/\2|' >"$work/files"
# "folder file <library" and "folder file name" for every include.
while read -r folder file; do
    sed -nE "s|^#include ([<\"])([^>\"]+)[>\"].*|$folder $file \1\2|p" "$file"
done <"$work/files" | sed 's| "| |' >"$work/includes"

# One line for each violation: "subject<TAB>what is wrong".
awk '
    function layer_of(folder) { sub(/\/.*/, "", folder); return folder }
    function folder_of(file) { sub(/\/[^\/]*$/, "", file); return file }
    function wrong(subject, what) { printf "%s\t%s\n", subject, what }
    FILENAME == ARGV[1] && $1 == "layer" {
        is_layer[$2] = 1
        for (i = 3; i <= NF; i++) layer_may[$2, $i] = 1
    }
    FILENAME == ARGV[1] && $1 == "room" {
        if ($2 in is_room) wrong($2, "stands in the table twice")
        for (i = 3; i <= NF; i++) {
            target = $i == "." ? layer_of($2) : layer_of($2) "/" $i
            if (!(target in is_room)) wrong($2, "may only include rooms above it in the table, not " target)
            room_may[$2, target] = 1
        }
        is_room[$2] = 1
        if (!(layer_of($2) in is_layer)) wrong($2, "is a room of no layer")
    }
    FILENAME == ARGV[2] {
        holds[$1]++
        exists[$2] = 1
        if (!($1 in is_room)) wrong($2, "its folder is no room of the table")
        name = $2
        sub(/.*\//, "", name)
        if (name in named) wrong($2, "has the name of " named[name])
        named[name] = $2
    }
    FILENAME == ARGV[3] && $3 !~ /^</ {
        target = folder_of($3)
        if (!(layer_of(target) in is_layer)) next
        if (!($3 in exists)) wrong($2, "includes \"" $3 "\", which does not exist")
        else if (target == $1) next
        else if (layer_of(target) == layer_of($1)) {
            used[$1, target] = 1
            if (!(($1, target) in room_may)) wrong($2, "includes \"" $3 "\": " $1 " may not include " target)
        } else if (!((layer_of($1), layer_of(target)) in layer_may) && !((layer_of($1), target) in layer_may) &&
                 !((layer_of($1), target "/.") in layer_may))
            wrong($2, "includes \"" $3 "\": " layer_of($1) " may not include " target)
    }
    END {
        for (room in is_room) if (!(room in holds)) wrong(room, "holds no C file")
        for (pair in room_may) {
            split(pair, ends, SUBSEP)
            if (!(pair in used)) wrong(ends[1], "no longer includes " ends[2] ", which the table allows")
        }
    }' "$table" "$work/files" "$work/includes" >>"$work/wrong"

# Libraries: who includes one, and each pattern of its home.
awk '$1 == "home"' "$table" | while read -r _ library patterns; do
    awk -v start="<$library" 'index($3, start) == 1 { print $2 }' "$work/includes" | sort -u >"$work/users"
    for pattern in $patterns; do
        while read -r file; do
            # shellcheck disable=SC2254 # a pattern on purpose
            case $file in $pattern) echo "$file" ;; esac
        done <"$work/users" >"$work/at-home"
        if [ -s "$work/at-home" ]; then
            cat "$work/at-home" >>"$work/homes-$library"
        else
            printf '%s\t%s matches no file that includes <%s...>\n' "$library" "$pattern" "$library"
        fi
    done
    touch "$work/homes-$library"
    sort -u "$work/homes-$library" | comm -13 - "$work/users" | while read -r file; do
        printf '%s\t%s includes it outside its home (%s)\n' "$library" "$file" "$patterns"
    done
done >>"$work/wrong"

# Circles of modules inside a room. A module is a header and its .c file; where NAME has a NAME_internal.h beside its
# NAME.h, the .c file is that of the first, and a test hook belongs to what it hooks into.
awk '
    function stem(file) { sub(/\.[a-z]+$/, "", file); sub(/_test_hook$/, "", file); return file }
    function module(file) { 
        return file ~ /\.c$/ && (stem(file) ".h") in exists && (stem(file) "_internal.h") in exists ? stem(file) "_internal" : stem(file)
    }
    function folder_of(file) { sub(/\/[^\/]*$/, "", file); return file }
    function base(name) { sub(/.*\//, "", name); return name }
    function visit(from, name, i, n, next_ones) {
        n = split(edges[name], next_ones, " ")
        for (i = 1; i <= n; i++) if (!((from, next_ones[i]) in reaches)) {
            reaches[from, next_ones[i]] = 1
            visit(from, next_ones[i])
        }
    }
    FILENAME == ARGV[1] && $1 == "circle" {
        line = $2
        for (i = 3; i <= NF; i++) line = line " " $i
        allowed[line] = 1
    }
    FILENAME == ARGV[2] { exists[$2] = 1 }
    FILENAME == ARGV[3] && $3 in exists && folder_of($3) == $1 {
        a = module($2)
        b = stem($3)
        if (a != b) edges[a] = edges[a] " " b
        known[a]
        known[b]
    }
    END {
        n = 0
        for (name in known) { names[++n] = name; visit(name, name) }
        for (i = 2; i <= n; i++) { # sorted, so that a circle has one spelling
            name = names[i]
            for (j = i - 1; j > 0 && names[j] > name; j--) names[j + 1] = names[j]
            names[j + 1] = name
        }
        for (i = 1; i <= n; i++) {
            if (!((names[i], names[i]) in reaches) || names[i] in told) continue
            line = folder_of(names[i])
            for (j = i; j <= n; j++) if (((names[i], names[j]) in reaches) && ((names[j], names[i]) in reaches)) {
                line = line " " base(names[j])
                told[names[j]]
            }
            if (line in allowed) seen[line]
            else printf "circle\t%s: these include each other\n", line
        }
        for (line in allowed) if (!(line in seen)) printf "circle\t%s: no longer a circle, which the table allows\n", line
    }' "$table" "$work/files" "$work/includes" >"$work/circles"

cat "$work/circles" >>"$work/wrong"
n=0
bad=0
# Reports what is wrong with a subject, or that nothing is. $1: the subject; $2: a pattern on the first field.
report() {
    n=$((n + 1))
    if grep -E "^$2	" "$work/wrong" >"$work/here"; then
        bad=1
        echo "not ok $n - $1"
        sed 's/^/# /; s/	/: /' "$work/here"
        grep -vE "^$2	" "$work/wrong" >"$work/rest"
        mv "$work/rest" "$work/wrong"
    else
        echo "ok $n - $1"
    fi
}
awk '$1 == "room" || $1 == "home" { print $1, $2 }' "$table" >"$work/subjects"
while read -r kind name; do
    if [ "$kind" = room ]; then
        report "$name includes what it may" "$name(/[^/	]*)?"
    else
        report "<$name> stays at home" "$name"
    fi
done <"$work/subjects"
report "modules of a room include each other in circles only where the table says why" "circle"
report "every folder is a room, and every room a folder" ".*"
echo "1..$n"
exit "$bad"
