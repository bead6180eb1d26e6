#!/bin/sh
# The names under which this machine's pkg-config knows libraries, a line each: distributions differ.
# Usage: packaging/pc_names.sh LIBRARY...
# A library that it does not know keeps its name, so that whoever asks for it next can name it.
set -eu
known() {
    case $1 in
    # A plain lua is of any version, and Lua changes its interface with the second number.
    lua*) pkg-config --exists "$1 >= 5.4 $1 < 5.5" 2>/dev/null ;;
    *) pkg-config --exists "$1" 2>/dev/null ;;
    esac
}
for library in "$@"; do
    case $library in
    lua5.4) names='lua5.4 lua-5.4 lua54 lua' ;;
    hdf5) names='hdf5 hdf5-serial' ;;
    *) names=$library ;;
    esac
    found=$library
    for name in $names; do
        if known "$name"; then
            found=$name
            break
        fi
    done
    printf '%s\n' "$found"
done
