#!/bin/sh
# The three parts of the data: their sizes by default and as asked, drawing by document, and profiles without
# sensitivities.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=$work/random
data="--data datasets/sample/calibration.txt --seq-len 16 --bits 2 --sensitivity fast --anyway --quiet"

profile() {
    # shellcheck disable=SC2086,SC2317 # options are words; try calls it
    "$moec" profile "$model" $data "$@"
}
try 0 "a random model" random_model "$model"

try 0 "by default" profile --samples 96 -o "$work/default.h5"
says stdout '^parts: 32 windows search, 16 select, 48 certify \(not measured\)$' "half certify, a third search, the rest selects"
try 0 "and more is said" "$moec" profile --show "$work/default.h5" --verbose
says stdout '^single experts: measured on the first 32 windows$' "single experts are measured where the search looks"
try 0 "sizes as asked" profile --search-samples 24 --select-samples 0 --certificate-samples 40 --sensitivity-samples 8 \
    --json -o "$work/asked.h5"
says stdout '"search": 24,' "the search part"
says stdout '"select": 0,' "no select part"
says stdout '"certificate": 40,' "the certificate part"
says stdout '"sensitivity": 8,' "and the windows of single experts"
try 0 "are shown" "$moec" profile --show "$work/asked.h5"
says stdout '^parts: 24 windows search, 0 select, 40 certify \(not measured\)$' "in words"
try 2 "too small a part" profile --search-samples 15 -o "$work/none.h5"
try 2 "more than --samples" profile --samples 64 --certificate-samples 60 -o "$work/none.h5"
says stderr 'to the search part, expected at least 16' "is explained"

# 40 rows of some windows each.
awk 'BEGIN { for (r = 0; r < 40; r++) { printf "{\"text\": \""; for (i = 0; i < 30 + r; i++) printf "word %d of row %d ", i, r;
    print "\"}" } }' >"$work/rows.jsonl"
cat >"$work/lines.lua" <<'EOF'
return { name = "lines", metric = "perplexity", prompt = "{text}" }
EOF
try 0 "rows" "$moec" profile "$model" --data "$work/rows.jsonl" --task "$work/lines.lua" --seq-len 32 --samples 90 --bits 2 \
    --sensitivity fast --anyway --quiet -o "$work/rows.h5"
says stdout '^parts: .*, no document in two parts$' "are drawn by document"

try 0 "no sensitivities" "$moec" profile "$model" --data datasets/sample/calibration.txt --seq-len 16 --samples 48 --bits 2,4 \
    --sensitivity none --anyway --quiet -o "$work/without.h5"
says stdout '^ 4 bits +[0-9.]+% ' "whole models are measured all the same"
says stdout '^sensitivity: not measured' "and the profile says so"
try 0 "are shown" "$moec" profile --show "$work/without.h5" --json
says stdout '"sensitivity": "none"' "in JSON"
try 0 "do for a policy that needs none" "$moec" compile "$model" --profile "$work/without.h5" --policy uniform --bits 8 \
    --anyway -o "$work/int8.moec" --quiet
for policy in edgemoe marginal; do
    try 1 "$policy" "$moec" compile "$model" --profile "$work/without.h5" --policy $policy --max-loss 5% --anyway \
        -o "$work/none.moec" --quiet
    says stderr 'needs a profile with sensitivities' "$policy asks for them"
done

done_testing
