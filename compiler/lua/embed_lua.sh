#!/bin/sh
# Writes a C file that holds the Lua library: lua/modules, lua/policies, lua/decisions and datasets/tasks, so that the installed program
# needs no search path. Usage: embed_lua.sh > lua_library.c
set -eu
echo '#include "compiler/lua/lua_host.h"'
echo '#include <string.h>'
i=0
entries=
for file in lua/modules/*.lua lua/policies/*.lua lua/decisions/*.lua datasets/tasks/*.lua; do
    [ -e "$file" ] || continue
    name=${file#lua/}
    name=${name#datasets/}
    echo "static const unsigned char file_${i}[] = {"
    od -An -v -tx1 "$file" | sed -e 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g'
    echo '0};'
    entries="$entries    {\"${name%.lua}\", file_$i, sizeof file_$i - 1},
"
    i=$((i + 1))
done
cat <<EOF
static const struct { const char *name; const unsigned char *text; size_t n; } library[] = {
$entries};
const char *moec_lua_library_find(const char *name, size_t *n)
{
    for (size_t i = 0; i < sizeof library / sizeof *library; i++)
        if (strcmp(library[i].name, name) == 0) {
            *n = library[i].n;
            return (const char *)library[i].text;
        }
    return NULL;
}
const char *moec_lua_library_name(const char *prefix, size_t index)
{
    size_t length = strlen(prefix);
    for (size_t i = 0; i < sizeof library / sizeof *library; i++)
        if (strncmp(library[i].name, prefix, length) == 0 && library[i].name[length] == '/' && index-- == 0)
            return library[i].name + length + 1;
    return NULL;
}
EOF
