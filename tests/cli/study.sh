#!/bin/sh
# Studies of weights and ranks: asked for by name, announced, printed, kept, shown again.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

fewer_layers 4
model=$sample
data=datasets/sample/calibration.txt
tiny="--seq-len 12 --samples 32 --bits 2,4"

# shellcheck disable=SC2086 # options are words
try 0 "profile with studies" "$moec" profile "$model" --data $data $tiny --study ranks,dense -o "$work/p.h5"
says stderr 'studies: dense [0-9]+, ranks [0-9]+; in all [0-9]+ passes' "what studies cost is said before"
says stdout '^rank/loss: ' "a table of ranks is printed"
says stdout '^  replace  +[-0-9.]+%' "its rows are named"
says stdout '^cost: .*, and [0-9.]+ for studies' "their cost is told apart"
says stdout '^  all weights  +[-0-9.]+%' "a table of dense weights is printed"
# shellcheck disable=SC2086
try 0 "the same on one thread" "$moec" profile "$model" --data $data $tiny --study dense,ranks -o "$work/q.h5" --threads 1 -q
if cmp -s "$work/p.h5" "$work/q.h5"; then
    pass "profiles with studies are equal byte for byte"
else
    fail "profiles with studies are equal byte for byte"
fi

try 0 "--show --study list" "$moec" profile --show "$work/p.h5" --study list
says stdout '^rank/loss \(action 4, rank 4\): ' "every study has a line with its axes"
try 0 "--show --study of a group" "$moec" profile --show "$work/p.h5" --study rank,dense/loss
says stdout '^rank/kl \(nat\): ' "a group is all of its studies"
says stdout '^dense/loss: ' "and a name is one"
if [ "$(sed -n '/^ /p' "$work/stdout" | wc -L)" -le 80 ]; then
    pass "tables stay within 80 columns"
else
    fail "tables stay within 80 columns"
fi
try 0 "--show --study as JSON" "$moec" profile --show "$work/p.h5" --study rank/loss --json
says stdout '"name": "rank/loss"' "JSON names the study"
says stdout '"cut"' "JSON has the words of an axis"
try 2 "a study that the profile has not" "$moec" profile --show "$work/p.h5" --study sparsity
says stderr "no study 'sparsity' in this profile; --study list prints the names" "the message says where names are"
try 2 "a group of studies that is misspelt" "$moec" profile --show "$work/p.h5" --study rnak
says stderr "did you mean 'rank'" "the message has its name"
try 2 "a study that does not exist" "$moec" profile "$model" --data $data --study weights -o "$work/r.h5"
says stderr "unknown study 'weights', expected projections, layers," "the message names those that do"
try 2 "a study that is misspelt" "$moec" profile "$model" --data datasets/sample/calibration.txt --study layer,projektion -o "$work/z.h5"
says stderr "did you mean 'projections'" "the message has its name"

# shellcheck disable=SC2086
try 0 "projections of single experts, as JSON" "$moec" profile "$model" --data $data $tiny --projections --study sparsity \
    -o "$work/s.h5" --json
says stderr 'projections of single experts at most [0-9]+' "their cost is said to be a bound"
says stdout '"name": "projection/expert_loss"' "JSON of a run has what was asked for"
says stdout '"name": "sparsity/loss_high"' "with the ends of intervals"

done_testing
