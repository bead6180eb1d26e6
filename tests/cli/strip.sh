#!/bin/sh
# moec strip: copies go, the model stays.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model
try 0 "a bundle with two copies" "$moec" compile $model --policy uniform --bits 3 --copies 2,8 -o "$work/m.moec" --quiet
try 0 "strip one" "$moec" strip "$work/m.moec" --copies 8 -o "$work/less.moec" --json
before=$(wc -c <"$work/m.moec")
after=$(wc -c <"$work/less.moec")
says stdout "\"before_bytes\": $((before))," "it says what the file had"
says stdout "\"after_bytes\": $((after))," "and has"
if [ "$after" -lt "$before" ]; then
    pass "it is smaller"
else
    fail "it is smaller"
fi
try 0 "it is whole" "$moec" verify "$work/less.moec"
try 0 "strip the other in place" "$moec" strip "$work/less.moec" --copies 2 -o "$work/less.moec" --force
says stdout "less than the" "it says how much it saves"
try 0 "it is whole again" "$moec" verify "$work/less.moec"
try 0 "inspect" "$moec" inspect "$work/less.moec"
says stdout "stripped --copies 8; stripped --copies 2" "provenance says what was dropped"
"$moec" run "$work/m.moec" -p "Once upon a time" -n 20 >"$work/whole.txt" 2>"$work/stderr"
"$moec" run "$work/less.moec" -p "Once upon a time" -n 20 >"$work/less.txt" 2>"$work/stderr"
if [ -s "$work/whole.txt" ] && cmp -s "$work/whole.txt" "$work/less.txt"; then
    pass "it writes the same text"
else
    fail "it writes the same text"
fi
try 2 "a copy that is not there" "$moec" strip "$work/m.moec" --copies 3 -o "$work/none.moec"
says stderr "no copy of its experts at 3 bits, only copies at 2, 8 bits" "is refused with what is there, the assignment's own bits too"
try 2 "without --copies" "$moec" strip "$work/m.moec" -o "$work/none.moec"
try 2 "without -o" "$moec" strip "$work/m.moec" --copies 2
if [ ! -e "$work/none.moec" ]; then
    pass "nothing is left of a refusal"
else
    fail "nothing is left of a refusal"
fi
done_testing
