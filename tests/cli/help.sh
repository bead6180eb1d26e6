#!/bin/sh
# Help, man pages, completion and usage errors, all made from the option tables.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

verbs="profile compile run eval bench simulate device inspect verify export strip doctor chat serve sparsify predict tune fit"

try 0 "moec help" "$moec" help
says stdout '^Verbs:' "the overview lists verbs"
try 2 "moec without a verb is wrong usage" "$moec"
try 2 "an unknown verb is wrong usage" "$moec" fly
says stderr "no verb 'fly'" "the message names it"
try 0 "moec --version" "$moec" --version
for library in HDF5 Lua zstd PCRE2 Cairo kernels; do
    says stdout "$library" "--version names $library"
done

# fits TITLE: stdout of the last try is at most 48 lines of 80 columns.
fits() {
    size=$(awk '{ if (length($0) > wide) wide = length($0) } END { print NR, wide + 0 }' "$work/stdout")
    if [ "${size% *}" -le 48 ] && [ "${size#* }" -le 80 ]; then
        pass "$1 fits 48 lines of 80 columns"
    else
        fail "$1 has ${size% *} lines of ${size#* } columns, expected at most 48 of 80"
    fi
}

fits_columns() {
    wide=$(awk 'length($0) > 80' "$work/stdout")
    if [ -z "$wide" ]; then
        pass "$1 fits 80 columns"
    else
        fail "$1 has lines of more than 80 columns: $wide"
    fi
}

# has_all TITLE FILE: each option listed in FILE, one "--name" a line, has a line of its own in the last help.
has_all() {
    missing=
    while read -r option; do
        grep -qE -e "^  (-., |    )$option( |\$)" "$work/stdout" || missing="$missing $option"
    done <"$2"
    if [ -z "$missing" ]; then
        pass "$1 has every option"
    else
        fail "$1 lacks$missing"
    fi
}

try 0 "moec --help" "$moec" --help
fits "the overview"
"$moec" completion fish >"$work/table"

for verb in $verbs; do
    # The table of the verb, as completion offers it.
    sed -n "s/^complete -c moec -n '__fish_seen_subcommand_from $verb' -l \([^ ]*\).*/--\1/p" "$work/table" >"$work/options"
    try 0 "moec $verb --help" "$moec" "$verb" --help
    says stdout '^Examples:' "help of $verb has examples"
    fits "help of $verb"
    grep -oE -e '^  (-., |    )--[a-z-]+' "$work/stdout" | grep -oE -e '--.*' | sort >"$work/usual"
    n_rare=$(sort "$work/options" | comm -23 - "$work/usual" | wc -l)
    if [ "$n_rare" -gt 0 ]; then
        says stdout "^'moec $verb --help-all' lists $n_rare more option" "help of $verb ends by naming --help-all and counts the rest"
    fi
    try 0 "moec $verb --help-all" "$moec" "$verb" --help-all
    fits_columns "whole help of $verb"
    grep -E '^[A-Z][a-z ]+:$' "$work/stdout" | sed 's/:$//' >"$work/headings"
    if [ "$(grep -cxE 'Options|General' "$work/headings")" -eq 1 ]; then
        pass "whole help of $verb has general options"
    else
        fail "whole help of $verb has the headings $(tr '\n' ',' <"$work/headings")"
    fi
    printf '%s\n' --help --help-all >>"$work/options"
    has_all "whole help of $verb" "$work/options"
    choices=$(sed -n "s/^complete -c moec -n '__fish_seen_subcommand_from $verb'.* -a '\([^']*\)' -d '.*/\1/p" "$work/table" |
        sed 's/^(__fish_append , \(.*\))$/\1/; s/:\( \|$\)/\1/g' | tr ' ' '\n' | sort -u)
    missing=
    for choice in $choices; do
        grep -qwF -e "$choice" "$work/stdout" || missing="$missing $choice"
    done
    if [ -z "$missing" ]; then
        pass "whole help of $verb has every choice"
    else
        fail "whole help of $verb lacks the choices$missing"
    fi
    try 2 "moec $verb refuses an unknown option" "$moec" "$verb" --no-such-option
    says stderr "unknown option '--no-such-option'" "and names it"
    "$moec" manual "$verb" >"$work/page.1"
    missing=
    while read -r option; do
        grep -qE -e "^\.It (Fl . , )?Fl $(printf '%s' "${option#-}" | sed 's/-/\\\\-/g')( |\$)" "$work/page.1" || missing="$missing $option"
    done <"$work/options"
    if [ -z "$missing" ]; then
        pass "man page of $verb has every option"
    else
        fail "man page of $verb lacks$missing"
    fi
    sed -n 's/^\.Ss //p' "$work/page.1" >"$work/sections"
    grep -vx 'Options\|Examples' "$work/headings" >"$work/expected"
    same "$work/sections" "$work/expected" "man page of $verb has the headings of its help"
    if command -v mandoc >/dev/null; then
        try 0 "man page of $verb is valid mdoc" mandoc -T lint -W error "$work/page.1"
    else
        skip "man page of $verb is valid mdoc" "mandoc is not installed"
    fi
done

"$moec" manual >"$work/page.1"
missing=
for verb in $verbs; do
    grep -q "^\.It Xr moec-$verb 1\$" "$work/page.1" || missing="$missing $verb"
done
if [ -z "$missing" ]; then
    pass "man page of moec names every verb"
else
    fail "man page of moec lacks$missing"
fi
if command -v mandoc >/dev/null; then
    try 0 "man page of moec is valid mdoc" mandoc -T lint -W error "$work/page.1"
else
    skip "man page of moec is valid mdoc" "mandoc is not installed"
fi

# ---- headings ----

# under HEADING: the lines of the last help below it.
under() {
    awk -v heading="$1:" '/^[A-Z]/ { is_in = $0 == heading; next } is_in' "$work/stdout"
}
# holds_under HEADING PATTERN TITLE
holds_under() {
    under "$1" >"$work/under"
    if grep -qE -e "$2" "$work/under"; then pass "$3"; else fail "$3: $2 is not under $1"; fi
}
# lacks_under HEADING PATTERN TITLE
lacks_under() {
    under "$1" >"$work/under"
    if grep -qE -e "$2" "$work/under"; then fail "$3: $2 is under $1"; else pass "$3"; fi
}
for program in "$moec run" "$moec-run" "$moec chat"; do
    # shellcheck disable=SC2086 # a verb
    try 0 "headings of $program" $program --help-all
    holds_under Text '^ +--temp T' "drawing is text"
    holds_under "Memory and storage" '^ +--memory SIZE' "memory"
    holds_under "Memory and storage" '^ +hobbit:R:U:H:D ' "evictions"
    holds_under "Decisions about each token" '^ +--route HOW' "decisions"
    holds_under Device '^ +--vram SIZE' "devices"
    holds_under General '^  -t, --threads N' "what is left is general"
    for word in fifo random lhu edgemoe-literal max-rank:M cumsum:P prune:N whole:P popular:P io-exp sti eap \
        shared:T1:T2; do
        holds_under Research "^ +$word  " "$word is research"
        for heading in "Memory and storage" "Decisions about each token"; do
            lacks_under "$heading" "^ +$word  " "and no more"
        done
    done
    if [ "$program" != "$moec chat" ]; then
        holds_under Research '^ +--record-decisions FILE' "files of decisions are research"
    fi
done
try 0 "headings of compile" "$moec" compile --help-all
holds_under Research '^ +edgemoe-literal  ' "a search as a paper has it is research"
holds_under Research '^ +outlier  ' "a quantiser of papers too"
holds_under "Bitwidths and codes" '^ +hqq  ' "others are not"
try 0 "headings of bench" "$moec" bench --help-all
holds_under Research '^ +--ablation' "rows of a figure are research"
try 0 "usual help of bench" "$moec" bench --help
if grep -q '^ *moe-infinity' "$work/stdout"; then fail "has no research"; else pass "has no research"; fi
try 0 "one heading" "$moec" verify --help-all
says stdout '^Options:$' "says that these are options"
try 2 "a choice that goes on" "$moec" run model.moec --evict hobit:1:1:1:1
says stderr "did you mean 'hobbit'" "the choice is proposed by its name"
try 2 "a renamed option" "$moec" run model.moec --decisions all
says stderr "no option '--decisions' any more: use --record-decisions FILE" "the new name is told"

sed -n "s/^complete -c moec -n '__fish_seen_subcommand_from run' -l \([^ ]*\).*/--\1/p" "$work/table" >"$work/options"
try 0 "moec-run --help" "$moec-run" --help
fits "help of moec-run"
says stdout "^'moec-run --help-all' lists" "help of moec-run names --help-all"
try 0 "moec-run --help-all" "$moec-run" --help-all
has_all "whole help of moec-run" "$work/options"

try 0 "bash completion" "$moec" completion bash
cp "$work/stdout" "$work/completion.bash"
# shellcheck disable=SC2016 # expanded by the inner shell
try 0 "bash completion offers verbs" bash -c '. "$1"; COMP_WORDS=(moec co); COMP_CWORD=1; _moec; echo "${COMPREPLY[*]}"' - "$work/completion.bash"
says stdout 'compile completion' "compile is among them"
# shellcheck disable=SC2016
try 0 "bash completion offers options" bash -c '. "$1"; COMP_WORDS=(moec compile --max); COMP_CWORD=2; _moec; echo "${COMPREPLY[*]}"' - "$work/completion.bash"
says stdout 'max-loss' "--max-loss is among them"

# shellcheck disable=SC2016
complete_bash='. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _moec; echo "${COMPREPLY[*]}"'
try 0 "bash completion offers values" bash -c "$complete_bash" - "$work/completion.bash" moec compile --policy h
says stdout '^hull$' "hull is what --policy h can mean"
try 0 "bash completion offers files" bash -c "$complete_bash" - "$work/completion.bash" moec profile --data READ
says stdout '^README.md$' "README.md is what --data READ can mean"
# offers EXPECTED WORD...: the values that bash offers for the last word.
offers() {
    offered=$1
    shift
    # shellcheck disable=SC2016
    try 0 "bash completes $*" bash -c "$complete_bash" - "$work/completion.bash" moec "$@"
    says stdout "^$offered\$" "with $offered"
}
offers samsum profile --task sam
offers samsum eval --task = sam
offers "png,svg,pdf" profile --plot-format png,svg,pd
offers "2,4,8" profile --bits 2,4,8
offers "4,16" compile --copies 4,1
offers "lru,lfu" bench --evict lru,lf
offers point compile --confidence po
offers "cache-prior:" run --route ca
offers "max-rank:" run --route max
offers "hobbit hobbit:" run --evict hob
offers "lru,fate lru,fate:" simulate --evict lru,fat
# shellcheck disable=SC2016
try 0 "bash completes moec-run" bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _moec_run; printf "%s\\n" "${COMPREPLY[@]}"' - \
    "$work/completion.bash" moec-run m.moec --evict lr
says stdout '^lru$' "as the verb"
# moec-run alone, as its package has it; after --describe-device it is moec device.
for program in "" moec-run; do
    # shellcheck disable=SC2086 # none or one
    try 0 "bash completion, $program" "$moec" completion bash $program
    cp "$work/stdout" "$work/run.bash"
    # run_offers WORD...: what bash completes moec-run with
    run_offers() {
        # shellcheck disable=SC2016
        try 0 "bash completes moec-run $*" bash -c '. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _moec_run; printf "%s\n" "${COMPREPLY[@]}"' - \
            "$work/run.bash" moec-run "$@"
    }
    run_offers m.moec --evict lr
    says stdout '^lru$' "as the verb run"
    run_offers --desc
    says stdout '^--describe-device$' "and with --describe-device"
    run_offers --describe-device --read
    says stdout '^--read-time$' "and as the verb device"
done
if grep -q 'moec compile\|complete -F _moec moec$' "$work/run.bash"; then
    fail "the completion of moec-run alone has no other verb"
else
    pass "the completion of moec-run alone has no other verb"
fi
try 2 "completion of another program" "$moec" completion bash moec-walk
try 0 "moec-run --help" "$(dirname "$moec")/moec-run" --help
says stdout '^  moec-run model.moec -p' "examples name the program"
# Options whose values are words have them: no word that the help of an option has in a table is left out.
try 2 "a list with a wrong word" "$moec" profile MODEL --bits 2,7
says stderr "option '--bits' has '7', expected 1, 2, 3, 4, 5, 6 or 8, separated by commas" "says which"

# ---- choices ----

# Every option that takes one of several words, as the completion lists them: two of its words are none.
awk '/^        [a-z]*\)$/ { verb = substr($1, 1, length($1) - 1) }
    /^ *--.*words="[^" ]+ [^"]+"; files=0/ {
        option = $1; sub(/\)$/, "", option); sub(/^--/, "", option); split($0, part, "\""); split(part[2], word, " ")
        print verb, option, word[1] "|" word[2] }' "$work/completion.bash" >"$work/choices"
try 0 "some options have choices" test -s "$work/choices"
while read -r verb option words; do
    try 2 "moec $verb --$option refuses '$words'" "$moec" "$verb" "--$option=$words" </dev/null
done <"$work/choices"
try 2 "a word that is near a choice" "$moec" run model.moec --evict lur
says stderr "expected one of .*: did you mean 'lru'?" "the choice is proposed"
try 2 "an option with a slip" "$moec" run model.moec --memroy 64MiB
says stderr "unknown option '--memroy': did you mean '--memory'?" "the option is proposed"
try 2 "a verb with a slip" "$moec" complie
says stderr "no verb 'complie': did you mean 'compile'?" "the verb is proposed"
try 2 "a verb like no other" "$moec" xyzzy
says stderr "no verb 'xyzzy'; 'moec help' lists them" "nothing is proposed"

if command -v fish >/dev/null; then
    # shellcheck disable=SC2016 # expanded by fish
    complete_fish='source $argv[1]; complete -C $argv[2]'
    try 0 "fish completes tasks" fish -N -c "$complete_fish" "$work/table" "moec profile --task sam"
    says stdout '^samsum' "with the built-in ones"
    try 0 "fish completes lists" fish -N -c "$complete_fish" "$work/table" "moec profile --plot-format png,sv"
    says stdout '^png,svg' "behind a comma"
    try 0 "fish completes shells" fish -N -c "$complete_fish" "$work/table" "moec completion z"
    says stdout '^zsh' "of completion"
    try 0 "fish completes moec-run" fish -N -c "$complete_fish" "$work/table" "moec-run m.moec --evict lr"
    says stdout '^lru' "as the verb"
    "$moec" completion fish moec-run >"$work/run.fish"
    try 0 "fish completes moec-run alone" fish -N -c "$complete_fish" "$work/run.fish" "moec-run --describe-device --read"
    says stdout '^--read-time' "as the verb device"
    try 0 "fish completes its options" fish -N -c "$complete_fish" "$work/run.fish" "moec-run --mem"
    says stdout '^--memory' "as the verb run"
else
    skip "fish completes tasks" "fish is not installed"
fi
for words in zsh fish "zsh moec-run" "fish moec-run"; do
    shell=${words% *}
    # shellcheck disable=SC2086 # words
    try 0 "completion $words" "$moec" completion $words
    if command -v "$shell" >/dev/null; then
        cp "$work/stdout" "$work/completion.$shell"
        try 0 "$shell can read it" "$shell" -n "$work/completion.$shell"
    else
        skip "$shell can read it" "$shell is not installed"
    fi
done
try 2 "completion without a shell" "$moec" completion

done_testing
