#!/bin/sh
# Makes sure that what building or testing needs is there. Usage: tests/install_packages.sh PACKAGE...
# Debian packages that are missing are installed, by sudo where not root. Where neither is possible, what they hold is
# looked for (libraries by pkg-config), and what is not there either is named.
set -eu
missing=
for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

# ---- without installing ----

c_compiler=${CC:-gcc}
c_compiler=${c_compiler%% *}
absent=
# add NAME: something that is not there.
add() {
    absent="$absent${absent:+, }$1"
}
program() {
    command -v "$1" >/dev/null || add "the program $1"
}
has_pkg_config=1
command -v pkg-config >/dev/null || has_pkg_config=0
library() {
    if [ "$has_pkg_config" -eq 0 ]; then
        unknown="$unknown${unknown:+, }$1"
    elif ! pkg-config --exists "$(packaging/pc_names.sh "$1")" 2>/dev/null; then
        add "$1"
    fi
}
unknown=
# compiles COMPILER PROGRAM FLAG...: the compiler makes a program of it.
compiles() {
    compiler=$1
    text=$2
    shift 2
    # shellcheck disable=SC2086 # the compiler may be words (ccache gcc)
    printf '%s\n' "$text" | $compiler "$@" -x c - -o /dev/null 2>/dev/null
}
# header NAME LIBRARY WHAT: an installed header.
header() {
    command -v "$c_compiler" >/dev/null || return 0 # which is named itself
    # shellcheck disable=SC2046 # flags are words
    compiles "${CC:-gcc}" "#include <$1>" -fsyntax-only $(pkg-config --cflags "$2" 2>/dev/null) || add "$1 ($3)"
}
# Whether tests go without the package, and the program of this name that it holds.
is_optional() {
    case $1 in
    mandoc | zsh | fish | chromium) return 0 ;;
    *) return 1 ;;
    esac
}
# look_for PACKAGE: the package is not installed; is what it holds there all the same?
look_for() {
    if is_optional "$1"; then
        command -v "$1" >/dev/null || echo "without $1: the tests that need it are skipped"
        return 0
    fi
    case $1 in
    gcc) program "$c_compiler" ;;
    make | pkg-config | zstd | curl | g++ | clang | clang-format | clang-tidy | shellcheck) program "$1" ;;
    gcc-aarch64-linux-gnu) program aarch64-linux-gnu-gcc ;;
    qemu-user-static) program qemu-aarch64-static ;;
    hdf5-tools) program h5dump ;;
    fonts-*) [ -n "$(fc-list 2>/dev/null)" ] || [ -d /usr/share/fonts ] || echo 'without a font: plots have no letters' ;;
    libhdf5-dev)
        library hdf5
        header hdf5_hl.h "$(packaging/pc_names.sh hdf5)" "HDF5's high-level library"
        ;;
    libpcre2-dev) library libpcre2-8 ;;
    libcairo2-dev) library cairo ;;
    liblua5.4-dev) library lua5.4 ;;
    libjansson-dev | libcmocka-dev) library "$(expr "$1" : 'lib\(.*\)-dev')" ;;
    libzstd-dev | libutf8proc-dev | libedit-dev | liburing-dev | nettle-dev | libmicrohttpd-dev) library "${1%-dev}" ;;
    libsimde-dev) header simde/x86/avx512.h libzstd SIMDe ;;
    libomp*-dev) compiles clang 'int main(void) { return 0; }' -fopenmp || add "clang's library of OpenMP" ;;
    libclang-rt-*) compiles clang 'int main(void) { return 0; }' -fsanitize=address || add "clang's library of sanitizers" ;;
    *) add "what Debian's package $1 holds" ;;
    esac
}
# go_without WHY: ends with success where everything is there all the same.
go_without() {
    for package in $missing; do
        look_for "$package"
    done
    if [ "$has_pkg_config" -eq 0 ]; then
        add "the program pkg-config${unknown:+, by which these libraries are found: $unknown}"
    fi
    [ -n "$absent" ] || exit 0
    echo "$1, and this machine lacks: $absent" >&2
    echo "$2" >&2
    exit 1
}
command -v apt-get >/dev/null ||
    go_without 'without apt-get nothing is installed' \
        'install them with what this system has for it (names without further words are those of pkg-config)'

# ---- with apt-get ----

as_root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || go_without 'not root and no sudo, so nothing is installed' "these packages have them:$missing"
    as_root=sudo
fi
# What tests go without (Ubuntu's chromium is a snap alone) is not asked of an apt that does not have it.
has_candidate() {
    LC_ALL=C apt-cache policy "$1" 2>/dev/null | grep -q '^ *Candidate: [^(]'
}
drop_unknown() {
    wanted=$missing
    missing=
    for package in $wanted; do
        if is_optional "$package" && ! has_candidate "$package"; then
            echo "apt has no package $package: the tests that need it are skipped"
        else
            missing="$missing $package"
        fi
    done
    [ -n "$missing" ] || exit 0
}
# Before the first update apt knows of no package at all.
if has_candidate make; then drop_unknown; fi
echo "installing:$missing"
# Of another architecture, as package:arm64. One that a mirror lacks would fail every update from then on.
added=
known=" $(dpkg --print-architecture) $(dpkg --print-foreign-architectures | tr '\n' ' ')"
give_up() {
    for architecture in $added; do
        $as_root dpkg --remove-architecture "$architecture" || true
    done
    exit 1
}
# shellcheck disable=SC2086 # both are lists of words
{
    for architecture in $(printf '%s\n' $missing | sed -n 's/.*://p' | sort -u); do
        case $known in *" $architecture "*) continue ;; esac
        $as_root dpkg --add-architecture "$architecture"
        added="$added $architecture"
    done
    $as_root apt-get update -qq || give_up
    drop_unknown
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null || give_up
}
