#!/bin/sh
# Help, man pages, completion and usage errors, all made from the option tables.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

verbs="profile compile run eval bench simulate device inspect verify export strip"

try 0 "moec --help" "$moec" --help
says stdout '^Verbs:' "the overview lists verbs"
try 2 "moec without a verb is wrong usage" "$moec"
try 2 "an unknown verb is wrong usage" "$moec" fly
says stderr "no verb 'fly'" "the message names it"
try 0 "moec --version" "$moec" --version
for library in HDF5 Lua zstd PCRE2 Cairo kernels; do
    says stdout "$library" "--version names $library"
done

for verb in $verbs; do
    try 0 "moec $verb --help" "$moec" "$verb" --help
    says stdout '^Examples:' "help of $verb has examples"
    grep -o -e '--[a-z][a-z-]*' "$work/stdout" | sort -u >"$work/options"
    try 2 "moec $verb refuses an unknown option" "$moec" "$verb" --no-such-option
    says stderr "unknown option '--no-such-option'" "and names it"
    "$moec" manual "$verb" >"$work/page.1"
    missing=
    while read -r option; do
        grep -q -e "$(printf '%s' "${option#--}" | sed 's/-/.-/g')\>" "$work/page.1" || missing="$missing $option"
    done <"$work/options"
    if [ -z "$missing" ]; then
        pass "man page of $verb has every option"
    else
        fail "man page of $verb lacks$missing"
    fi
    if command -v mandoc >/dev/null; then
        try 0 "man page of $verb is valid mdoc" mandoc -T lint -W error "$work/page.1"
    else
        skip "man page of $verb is valid mdoc" "mandoc is not installed"
    fi
done

try 0 "bash completion" "$moec" completion bash
cp "$work/stdout" "$work/completion.bash"
# shellcheck disable=SC2016 # expanded by the inner shell
try 0 "bash completion offers verbs" bash -c '. "$1"; COMP_WORDS=(moec co); COMP_CWORD=1; _moec; echo "${COMPREPLY[*]}"' - "$work/completion.bash"
says stdout 'compile completion' "compile is among them"
# shellcheck disable=SC2016
try 0 "bash completion offers options" bash -c '. "$1"; COMP_WORDS=(moec compile --max); COMP_CWORD=2; _moec; echo "${COMPREPLY[*]}"' - "$work/completion.bash"
says stdout 'max-loss' "--max-loss is among them"
try 0 "zsh completion" "$moec" completion zsh
try 0 "fish completion" "$moec" completion fish
try 2 "completion without a shell" "$moec" completion

done_testing
