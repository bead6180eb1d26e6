#!/bin/sh
# Builds where nothing was installed before, on each system that README.md names: a bare root, the packages of make deps,
# the demo, then by gcc and by clang, as that system has them, everything with warnings as errors and a short suite that
# asks every library once. Speaks TAP, and ends in one line: N passed, N failed, N skipped
#     tests/distributions.sh [RELEASE...]     (as root, from the repository root; bookworm trixie noble)
# DEBIAN_MIRROR and UBUNTU_MIRROR name mirrors; without them this machine's own serves for its own distribution. What
# cannot be reached is skipped. In CCACHE_DIR objects are kept for the next time.
set -eu
# shellcheck source=packaging/bare_root.inc
. packaging/bare_root.inc
: "${JOBS:=$(nproc)}"
[ $# -gt 0 ] || set -- bookworm trixie noble

# What each library does, once: HDF5, jansson, PCRE2 and utf8proc, Lua, Cairo, zstd, nettle, liburing, OpenMP.
unit_tests="test_profile_h5 test_h5_text test_json test_tokenizer test_lua_host test_plot test_compress test_digest test_reader
    test_openmp test_codec test_kernels"
# Help by mandoc and completion by other shells; installing and building against libmoert; a server by libmicrohttpd.
cli_tests="tests/cli/help.sh tests/cli/library.sh tests/cli/packages.sh tests/cli/serve.sh"

work=$(mktemp -d)
root=$work/root
release=
trap 'remove_root ccache && rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
n_passed=0
n_failed=0
n_skipped=0

pass() {
    n_passed=$((n_passed + 1))
    echo "ok - $release: $1"
}
# fail NAME LOG
fail() {
    n_failed=$((n_failed + 1))
    echo "not ok - $release: $1"
    tail -n 40 "$2" | sed 's/^/# /'
}
skip() {
    n_skipped=$((n_skipped + 1))
    echo "ok - $release # SKIP $1"
}

# step NAME COMMAND: a line of sh in the copy of the tree.
step() {
    start=$(date +%s)
    if in_root "$environment cd /src && $2" >"$work/log" 2>&1; then
        pass "$1 ($(($(date +%s) - start)) s)"
    else
        fail "$1" "$work/log"
        return 1
    fi
}

# builds COMPILER: everything of one compiler, and the short suite of what it built.
builds() {
    folder=build
    [ "$1" = gcc ] || folder=build/$1
    version=$(in_root "$1 -dumpversion")
    programs=$(for test in $unit_tests; do echo "$folder/tests/$test"; done | tr '\n' ' ')
    step "$1 $version builds without a warning" "make -j$JOBS CC=$1 DEV=1 all $programs" || return 0
    step "the short suite, $1 $version" "MOEC_BUILD=$folder CC=$1 JOBS=$JOBS tests/run.sh $cli_tests $programs" || true
}

# The keyring of Ubuntu, which Debian has from 13 on: from here, or from a root that is there.
keep_ubuntu_keyring() {
    ubuntu_keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    [ ! -e "$ubuntu_keyring" ] || return 0
    if [ -d "$root" ] && in_root "apt-get install -y -qq ubuntu-keyring" >/dev/null 2>&1; then
        cp "$root$ubuntu_keyring" "$work/ubuntu.gpg"
    fi
    ubuntu_keyring=$work/ubuntu.gpg
}

# of_debian, of_ubuntu: makes the root, or skips.
of_debian() {
    mirror=${DEBIAN_MIRROR:-$(mirror_of debian)}
    [ -n "$mirror" ] || { skip "DEBIAN_MIRROR=URL names none" && return 1; }
    root_or_skip
}
of_ubuntu() {
    mirror=${UBUNTU_MIRROR:-$(mirror_of ubuntu)}
    [ -n "$mirror" ] || { skip "UBUNTU_MIRROR=URL names none" && return 1; }
    keep_ubuntu_keyring
    [ -e "$ubuntu_keyring" ] || { skip "no keyring of Ubuntu: Debian has it from 13 on, as ubuntu-keyring" && return 1; }
    root_or_skip --keyring="$ubuntu_keyring" --components=main,universe
}
root_or_skip() {
    mkdir "$root"
    make_root "$release" "$mirror" --force-check-gpg "$@" && return 0
    if grep -q 'Failed getting release file' "$root.log"; then
        skip "$mirror does not answer"
    else
        fail "a bare root" "$root.log"
    fi
    return 1
}

# try_release RELEASE: all of it, in a root that is gone afterwards.
try_release() {
    release=$1
    case $release in
    bookworm | trixie) of_debian || return 0 ;;
    noble) of_ubuntu || return 0 ;;
    *)
        echo "'$release' is none of bookworm, trixie, noble" >&2
        exit 2
        ;;
    esac
    mkdir "$root/src"
    git ls-files -z | tar --null -T - -cf - | tar -xf - -C "$root/src"
    environment="export CUDA=0;"
    in_root "apt-get update -qq && apt-get install -y -qq --no-install-recommends make" >/dev/null 2>&1
    if [ -n "${CCACHE_DIR:-}" ]; then
        in_root "apt-get install -y -qq --no-install-recommends ccache" >/dev/null 2>&1
        mkdir "$root/ccache"
        mount --bind "$CCACHE_DIR" "$root/ccache"
        environment="$environment export PATH=/usr/lib/ccache:\$PATH CCACHE_DIR=/ccache CCACHE_NOHASHDIR=1;"
    fi
    step "packages for building" "make deps" || return 0
    step "the demo" "make JOBS=$JOBS DEV=1 demo" || true
    step "packages for the tests, and what is checked beside them" "make JOBS=$JOBS DEV=1 check" || true
    builds gcc
    builds clang
    [ "$release" != trixie ] || keep_ubuntu_keyring
}

why=$(why_no_root)
for release in "$@"; do
    if [ -n "$why" ]; then
        skip "$why"
        continue
    fi
    try_release "$release"
    remove_root ccache
done
echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
[ "$n_failed" -eq 0 ]
