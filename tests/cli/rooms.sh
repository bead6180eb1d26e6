#!/bin/sh
# tests/check_rooms.sh finds what it is there for: each kind of violation is planted in a small tree of its own.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

check=$PWD/tests/check_rooms.sh

# A tree of two layers that keeps its table.
plant() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree/tests" "$work/tree/low/base" "$work/tree/low/text" "$work/tree/high/verbs"
    cat >"$work/tree/tests/rooms.tab" <<'TABLE'
layer low
layer high       low/text
room low/base
room low/text    base
room high/verbs
home zstd        low/base/pack.c
TABLE
    echo '#include <zstd.h>' >"$work/tree/low/base/pack.c"
    echo '/* nothing */' >"$work/tree/low/base/pack.h"
    echo '#include "low/base/pack.h"' >"$work/tree/low/text/words.h"
    echo '#include "low/text/words.h"' >"$work/tree/high/verbs/run.c"
}

plant
try 0 "a tree that keeps its table" "$check" "$work/tree"

# violation NAME PATTERN: the tree as it stands is refused with a line that matches.
violation() {
    try 1 "$1 is refused" "$check" "$work/tree"
    says stdout "$2" "$1 is named"
    plant
}

echo '#include "high/verbs/run.h"' >>"$work/tree/low/text/words.h"
echo >"$work/tree/high/verbs/run.h"
violation "a step up" 'words.h: includes "high/verbs/run.h": low may not include high/verbs'

echo '#include "low/text/words.h"' >>"$work/tree/low/base/pack.c"
violation "a room that is not in the list" 'pack.c: includes "low/text/words.h": low/base may not include low/text'

echo '#include "low/base/pack.h"' >>"$work/tree/high/verbs/run.c"
violation "a room that the layer is not given" 'run.c: includes "low/base/pack.h": high may not include low/base'

sed -i 's|^room low/base|& text|' "$work/tree/tests/rooms.tab"
echo '#include "low/text/words.h"' >>"$work/tree/low/base/pack.h"
violation "a circle of rooms" 'low/base: may only include rooms above it in the table, not low/text'

sed -i '/#include/d' "$work/tree/low/text/words.h"
violation "a line of the table that nothing uses" 'low/text: no longer includes low/base'

rm "$work/tree/high/verbs/run.c"
violation "an emptied room" 'high/verbs: holds no C file'

rm -r "$work/tree/low/text"
violation "a room that is gone" 'low/text: holds no C file'

rm -r "$work/tree/high"
violation "a layer that is gone" 'high: no such folder'

mkdir "$work/tree/low/new"
echo >"$work/tree/low/new/thing.c"
violation "a folder that the table lacks" 'low/new/thing.c: its folder is no room'

echo >"$work/tree/low/text/run.c"
violation "a second file of one name" 'low/text/run.c: has the name of high/verbs/run.c'

echo '#include "low/text/word.h"' >>"$work/tree/high/verbs/run.c"
violation "an include of no file" 'run.c: includes "low/text/word.h", which does not exist'

echo '#include <zstd_errors.h>' >>"$work/tree/high/verbs/run.c"
violation "a library outside its home" 'zstd: high/verbs/run.c includes it outside its home'

sed -i 's|low/base/pack.c|& low/base/unpack.c|' "$work/tree/tests/rooms.tab"
violation "a home that matches no file" 'zstd: low/base/unpack.c matches no file'

echo '#include "low/base/pack.h"' >"$work/tree/low/base/crate.h"
echo '#include "low/base/crate.h"' >>"$work/tree/low/base/pack.c"
cp -r "$work/tree" "$work/circle"
violation "a circle of modules" 'circle: low/base crate pack: these include each other'
echo 'circle low/base crate pack' >>"$work/circle/tests/rooms.tab"
try 0 "a circle that the table names passes" "$check" "$work/circle"
echo 'circle low/base pack unit' >>"$work/tree/tests/rooms.tab"
violation "a circle that is none any more" 'circle: low/base pack unit: no longer a circle'

done_testing
