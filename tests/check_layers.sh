#!/bin/sh
# The layer rule: a folder includes only what stands left of it, and each library has one home. Speaks TAP.
set -u
bad=0

# folder: folders that it may include
check_layer() {
    folder=$1
    shift
    allowed=$(printf '%s|' "$@")
    wrong=$(find "$folder" -name '*.[ch]' -exec grep -nE '^#include "(formats|runtime|profiler|compiler|cli|experiments)/' {} + |
        grep -vE "#include \"(${allowed%|})/")
    if [ -n "$wrong" ]; then
        bad=1
        echo "not ok - $folder includes what stands right of it"
        echo "$wrong" | sed 's/^/# /'
    else
        echo "ok - $folder includes only: $*"
    fi
}

# header pattern: files that are its home (a regular expression on paths)
check_home() {
    wrong=$(find formats runtime profiler compiler cli experiments -name '*.[ch]' -exec grep -lE "^#include <($1)" {} + |
        grep -vE "^($2)\$")
    if [ -n "$wrong" ]; then
        bad=1
        echo "not ok - <$1> is included outside its home"
        echo "$wrong" | sed 's/^/# /'
    else
        echo "ok - <$1> stays at home"
    fi
}

check_layer formats formats
check_layer runtime formats runtime
check_layer profiler formats runtime profiler
check_layer compiler formats runtime profiler compiler
check_layer cli formats runtime profiler compiler cli
check_layer experiments formats runtime profiler experiments
check_home 'hdf5' 'formats/(profile/)?h5\.[ch]'
check_home 'jansson' 'formats/(json/)?json(_write)?\.[ch]'
check_home 'zstd' 'formats/(base/)?compress\.[ch]'
check_home 'nettle' 'formats/(base/)?digest\.[ch]'
check_home 'pcre2|utf8proc' 'runtime/(text/)?(tokenizer[a-z_]*|unicode[a-z_]*)\.[ch]'
check_home 'liburing' 'runtime/(storage/)?reader_uring\.c'
check_home 'lua|lauxlib|lualib' 'compiler/(lua_host|policy|task_file)\.[ch]'
check_home 'cairo' 'profiler/(plot/)?plot[a-z_]*\.[ch]'
echo 1..14
exit $bad
