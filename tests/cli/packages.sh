#!/bin/sh
# What make deps does where nothing can be installed: libraries are looked for by pkg-config, what lacks is named, and
# nothing is said where all is there.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

# A PATH of these programs alone: no apt-get, no dpkg-query, no sudo.
mkdir "$work/bin" "$work/pc"
for program in sh env sed grep expr sort cat id make tr touch rm nproc as ld pkg-config pkgconf fc-list uname; do
    found=$(command -v "$program") && ln -s "$found" "$work/bin/$program"
done
# The compiler may be ccache's, which looks for another in the PATH.
printf '#!/bin/sh\nPATH="%s" exec gcc "$@"\n' "$PATH" >"$work/bin/gcc"
chmod +x "$work/bin/gcc"
without_apt() {
    # shellcheck disable=SC2317 # try calls it
    env -u CC -u MAKEFLAGS -u MAKELEVEL PATH="$work/bin" "$@"
}
make_deps() {
    # shellcheck disable=SC2317 # try calls it
    without_apt make --no-print-directory CUDA=0 BUILD="$work/build" "$@"
}
try 0 "make deps without apt-get, everything there" make_deps deps
if [ -s "$work/stdout" ] || [ -s "$work/stderr" ]; then
    fail "it says nothing"
else
    pass "it says nothing"
fi

# pc_folder NAME=VERSION...: the libraries that pkg-config knows.
pc_folder() {
    rm -f "$work/pc"/*
    for pair in "$@"; do
        printf 'Name: %s\nDescription: a library\nVersion: %s\n' "${pair%=*}" "${pair#*=}" >"$work/pc/${pair%=*}.pc"
    done
}
limited() {
    # shellcheck disable=SC2317 # try calls it
    without_apt env PKG_CONFIG_LIBDIR="$work/pc" PKG_CONFIG_PATH= "$@"
}
others='libzstd=1.5 jansson=2.14 libpcre2-8=10.42 libutf8proc=2.8 libedit=3.1 liburing=2.3 cairo=1.16 nettle=3.8 libmicrohttpd=0.9'
packages=$(make --no-print-directory -pn help 2>/dev/null | sed -n 's/^PACKAGES := //p')
try 0 "packages of the demo are known" [ -n "$packages" ]
for package in libcmocka-dev hdf5-tools zstd; do
    case " $packages " in
    *" $package "*) fail "the demo asks for no $package" ;;
    *) pass "the demo asks for no $package" ;;
    esac
done
# shellcheck disable=SC2086 # lists of words
{
    pc_folder $others lua5.3=5.3
    try 1 "libraries lack" limited tests/install_packages.sh $packages
    says stderr "lacks: hdf5, .*lua5\.4" "they have pkg-config's names"
    says stderr "lacks: hdf5, hdf5_hl\.h \(HDF5's high-level library\)|lacks: hdf5, lua5\.4" "and headers without one their own"
    try 2 "make demo stops there" limited make --no-print-directory CUDA=0 BUILD="$work/build" demo
    says stderr "this machine lacks: hdf5" "with the same words"
    if [ -e "$work/build" ]; then fail "before it compiles"; else pass "before it compiles"; fi

    headers=$(pkg-config --cflags "$(packaging/pc_names.sh hdf5)")
    for lua in lua5.4=5.4.4 lua-5.4=5.4.6 lua54=5.4.7 lua=5.4.8; do
        pc_folder $others "$lua"
        printf 'Name: hdf5\nDescription: a library\nVersion: 1.10\nCflags: %s\n' "$headers" >"$work/pc/hdf5-serial.pc"
        try 0 "everything there, with ${lua%=*} and hdf5-serial" limited tests/install_packages.sh $packages
        try 0 "its name" limited packaging/pc_names.sh hdf5 lua5.4
        says stdout "^${lua%=*}$" "is the one that pkg-config has"
    done
    for lua in lua=5.3.6 lua=5.5.0; do
        pc_folder $others hdf5=1.14 "$lua"
        try 1 "Lua of another version, $lua" limited tests/install_packages.sh $packages
        says stderr "lacks: .*lua5\.4" "does not do"
    done

    # Debian, but neither root nor sudo.
    # shellcheck disable=SC2016 # for that script
    printf '#!/bin/sh\n[ "$1" = -u ] && echo 1000\n' >"$work/bin/id.new"
    printf '#!/bin/sh\nexit 1\n' >"$work/bin/dpkg-query"
    printf '#!/bin/sh\necho "apt-get was called"\nexit 1\n' >"$work/bin/apt-get"
    rm "$work/bin/id"
    mv "$work/bin/id.new" "$work/bin/id"
    chmod +x "$work/bin/id" "$work/bin/dpkg-query" "$work/bin/apt-get"
    try 0 "not root, without packages, everything there" without_apt tests/install_packages.sh $packages
    pc_folder $others lua5.4=5.4
    try 1 "not root, without packages, a library lacks" limited tests/install_packages.sh $packages
    says stderr "not root and no sudo.* lacks: hdf5" "it is named"
    says stderr "these packages have them: .*libhdf5-dev" "and so are the packages"
    rm "$work/bin/pkg-config"
    try 1 "without pkg-config" without_apt tests/install_packages.sh $packages
    says stderr "the program pkg-config, by which these libraries are found: .*libzstd" "it is named"
}

# Root, with an apt that has no chromium and whose mirror has no other architecture. What is done is written down.
cat >"$work/bin/apt-cache" <<'EOF'
#!/bin/sh
case $2 in
chromium) echo '  Candidate: (none)' ;;
*) echo '  Candidate: 1.0' ;;
esac
EOF
cat >"$work/bin/apt-get" <<EOF
#!/bin/sh
echo "apt-get \$*" >>"$work/done"
[ "\$1" = install ] || [ ! -e "$work/foreign" ]
EOF
cat >"$work/bin/dpkg" <<EOF
#!/bin/sh
case \$1 in
--print-architecture) echo amd64 ;;
--print-foreign-architectures) [ ! -e "$work/foreign" ] || echo arm64 ;;
--add-architecture) touch "$work/foreign" ;;
--remove-architecture) rm "$work/foreign" ;;
esac
EOF
printf '#!/bin/sh\necho 0\n' >"$work/bin/id"
chmod +x "$work/bin"/apt-* "$work/bin/dpkg"
try 0 "a package that tests go without, and apt has not" without_apt tests/install_packages.sh fish chromium
says stdout "apt has no package chromium: the tests that need it are skipped" "it is named"
try 0 "apt is asked for the other alone" grep -q 'install.* fish$' "$work/done"
rm "$work/done"
try 0 "that one alone" without_apt tests/install_packages.sh chromium
try 1 "apt is not asked at all" [ -e "$work/done" ]
try 1 "an architecture that the mirror lacks" without_apt tests/install_packages.sh zstd:arm64
try 1 "it does not stay, so that apt works afterwards" [ -e "$work/foreign" ]
touch "$work/foreign"
try 1 "one that was there before" without_apt tests/install_packages.sh zstd:arm64
try 0 "stays" [ -e "$work/foreign" ]

# Another folder than build.
try 0 "make help" make --no-print-directory help
says stdout "BUILD=FOLDER" "names it"
try 0 "what the demo would do elsewhere" make --no-print-directory -n CUDA=0 BUILD="$work/b" demo
says stdout "MOEC=$work/b/native/moec datasets/demo.sh $work/b/demo" "is done there"
if grep -Eq '[ =]build/' "$work/stdout"; then fail "and nowhere else"; else pass "and nowhere else"; fi
try 0 "what make clean would do" make --no-print-directory -n CUDA=0 BUILD="$work/b" clean
says stdout "^rm -rf $work/b$" "is that folder's"
done_testing
