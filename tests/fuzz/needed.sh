#!/bin/sh
# Names the sources that fuzz programs need of the library, so that no others are compiled for them: what a linker takes
# of the archives of a plain build. Usage: tests/fuzz/needed.sh FOLDER OBJECT...   (FOLDER has libmoec.a and libmoert.a)
set -eu
folder=$1
shift
# Each program by itself: some bring stand-ins of what others need. What neither archive has is libFuzzer's, the
# sanitizers' or a library's.
for object in "$@"; do
    ld --unresolved-symbols=ignore-all --entry=0 -M -o /dev/null "$object" "$folder/libmoec.a" "$folder/libmoert.a" ||
        echo "error: $object"
done | sed -n -e 's/.*libmoe\(c\|rt\)\.a(\(.*\)\.o)$/\2.c/p' -e '/^error: /p' | sort -u | while read -r name; do
    case $name in
    error:*)
        echo "tests/fuzz/needed.sh: ${name#error: } cannot be linked" >&2
        exit 1
        ;;
    esac
    find formats runtime profiler compiler server -name "$name"
done
