#!/bin/sh
# libmoert as others use it: what it links, what it exports, installing, and a program that embeds it.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

for file in moec-run libmoert.so; do
    try 0 "$file has its libraries" ldd "$build/$file"
    if grep -Eiq 'hdf5|lua|cairo|jansson|blas' "$work/stdout"; then
        fail "$file links neither HDF5 nor Lua, Cairo, jansson"
    else
        pass "$file links neither HDF5 nor Lua, Cairo, jansson"
    fi
done

nm -D --defined-only "$build/libmoert.so" | awk '$2 ~ /[TDB]/ { print $3 }' >"$work/exports"
if grep -v '^moert_' "$work/exports" >"$work/stdout"; then
    fail "libmoert.so exports only moert_ symbols"
else
    pass "libmoert.so exports only moert_ symbols"
fi
missing=
for name in $(grep -o 'moert_[a-z_]*(' runtime/moert.h | tr -d '(' | sort -u); do
    grep -qx "$name" "$work/exports" || missing="$missing $name"
done
if [ -z "$missing" ]; then
    pass "every function of moert.h is exported"
else
    fail "not exported:$missing"
fi

if [ "$build" != build ]; then
    skip "installing and embedding" "only in the plain build"
    done_testing
fi

# Without what nvcc would build first, where it is: minutes.
root="$work/a root" prefix="/opt/moe & c"
installed="$root$prefix"
make_here() {
    # shellcheck disable=SC2317 # try calls it
    make --no-print-directory CUDA=0 DESTDIR="$root" PREFIX="$prefix" "$@"
}
try 0 "make install into a folder with spaces" make_here install
for file in bin/moec bin/moec-run lib/libmoert.so.0; do
    # The table of exported symbols stays in what is loaded.
    if readelf -SW "$installed/$file" 2>/dev/null | grep -Eq ' (\.symtab|\.debug_info) '; then
        fail "the installed $file is stripped"
    else
        pass "the installed $file is stripped"
    fi
done
if readelf -SW "$moec" | grep -q ' \.symtab '; then
    pass "the one that was built is not"
else
    fail "the one that was built is not"
fi
try 0 "make install without stripping" make_here STRIP= install
if readelf -SW "$installed/bin/moec" | grep -q ' \.symtab '; then
    pass "keeps symbols"
else
    fail "keeps symbols"
fi
try 0 "the installed moec runs" "$installed/bin/moec" --version
missing=
for verb in $("$moec" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p' | grep -vx -e help -e manual -e completion); do
    [ -s "$installed/share/man/man1/moec-$verb.1" ] || missing="$missing $verb"
done
if [ -z "$missing" ] && [ -s "$installed/share/man/man1/moec-compile.1" ]; then
    pass "a man page of every verb is installed"
else
    fail "no man page of:$missing"
fi
missing=$(for page in README.md docs/to-a-device.md docs/bench-and-simulate.md lua/README.md; do
    grep -o ']([^)#:]*\.md' "$page" | sed 's/](//' | while read -r link; do
        [ -e "$installed/share/doc/moec/$(dirname "$page")/$link" ] || echo "$link"
    done
done)
if [ -z "$missing" ]; then
    pass "so are the pages that pages refer to"
else
    fail "pages that are referred to and not installed: $missing"
fi
PKG_CONFIG_PATH=$installed/lib/pkgconfig
PKG_CONFIG_SYSROOT_DIR=$root
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
try 0 "pkg-config names the folder" pkg-config --variable=prefix moert
says stdout "^($root)?$prefix\$" "as it is"
try 0 "and what to compile and link with" pkg-config --cflags --libs moert
# Flags are words, with spaces escaped; the compiler may be words too (ccache gcc).
flags=$(cat "$work/stdout")
for program in embed branches; do
    try 0 "docs/$program.c builds through pkg-config" sh -c "${CC:-gcc} -Wall -Wextra -Werror docs/$program.c $flags -o '$work/$program'"
done
try 0 "a bundle for it" "$moec" compile datasets/sample/model --policy uniform --bits 4 -o "$work/model.moec"
try 0 "the embedding program runs" env LD_LIBRARY_PATH="$installed/lib" "$work/embed" "$work/model.moec" "The old miller"
cp "$work/stdout" "$work/embedded"
try 0 "moec-run says the same" "$build/moec-run" "$work/model.moec" -p "The old miller" -n 32
if [ "$(cat "$work/embedded")" = "$(cat "$work/stdout")" ]; then
    pass "text of the embedding program equals moec-run's"
else
    fail "text of the embedding program equals moec-run's"
fi
try 0 "the program of copied sessions runs" env LD_LIBRARY_PATH="$installed/lib" "$work/branches" "$work/model.moec" "The old miller"
head -n 1 "$work/stdout" >"$work/branch"
if [ "$(sort -u "$work/stdout" | wc -l)" = 3 ]; then
    pass "and writes three texts"
else
    fail "and writes three texts"
fi
try 0 "moec-run draws with the first one's seed" "$build/moec-run" "$work/model.moec" -p "The old miller" -n 24 --temp 0.8 --top-p 0.95 --seed 1
if [ "$(cat "$work/branch")" = "$(cat "$work/stdout")" ]; then
    pass "the same text"
else
    fail "the same text"
fi
# The header must also serve C++.
if command -v g++ >/dev/null; then
    printf '#include <moert.h>\nint main() { return moert_version() == 0; }\n' >"$work/header.cc"
    try 0 "moert.h compiles as C++" sh -c "g++ -Wall -Werror -fsyntax-only $(pkg-config --cflags moert) '$work/header.cc'"
else
    skip "moert.h compiles as C++" "g++ is not installed"
fi
try 0 "make uninstall" make_here uninstall
try 1 "leaves no file" sh -c "find '$root' -type f -o -type l | grep ."

done_testing
