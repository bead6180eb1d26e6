#!/bin/sh
# The default policy: what it writes without any option, with a size, with fixed dense weights; a policy that asks for the
# same variants; the same bytes whatever threads and memory; a journal that one compile leaves to the next.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model
try 0 "profile" "$moec" profile $model --data datasets/sample/calibration.txt --seq-len 64 --samples 96 --bits 2 \
    --sensitivity fast -o "$work/p.h5" --quiet --json
# Of the plan that the profile says is needed for 1 % in compile's codes.
sed -n '/"compile_codes"/,/]/p' "$work/stdout" | sed -n '/"target": 0.01,/,/}/p' >"$work/verdict"

# number FILE KEY: the first number of this key in pretty JSON.
number() {
    sed -n "s/^ *\"$2\": \([-0-9.e+]*\),*\$/\1/p" "$1" | head -n 1
}
check() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1: $2"; fi
}

# ---- a loss ----

try 0 "compile with nothing but a loss" "$moec" compile $model --profile "$work/p.h5" --max-loss 5% -o "$work/a.moec" --json \
    --threads 2 --verbose --journal "$work/journal"
cp "$work/stdout" "$work/a.json"
says stderr "GPTQ encoded 96 experts" "experts are fitted"
says stderr "of the 864 that all experts have at 3 bitwidths" "and only what is wanted of them"
check "at most half of all variants" "2 * $(number "$work/a.json" expert_matrices) <= 864"
says stderr "GPTQ encoded 26 dense matrices" "dense matrices are fitted"
says stdout '"fit_multiply_adds": [1-9]' "the multiply-adds of fits are counted"
says stderr "under this model no plan of these variants" "the bound is said"
says stderr "one plan of projections for all experts" "the plan without mixing is said"
says stdout '"policy": "hull"' "the policy is the default"
says stdout '"experts_without_tokens": 0' "experts that no token reached are counted"
says stdout '"dense_matrices_not_fitted": 0' "and matrices that GPTQ cannot fit"
check "the plans that were measured on each part are counted" \
    "$(number "$work/a.json" search) > 1 && $(number "$work/a.json" select) == 1 && $(number "$work/a.json" certificate) > 1"
check "the promise is kept on the certificate part" "$(number "$work/a.json" loss_high) <= 0.05"
check "the bundle is less than a fifth of the weights" \
    "5 * $(number "$work/a.json" bundle_bytes) < $(number "$work/a.json" source_bytes)"
check "and has the size that is said" "$(number "$work/a.json" bundle_bytes) == $(wc -c <"$work/a.moec")"
try 0 "a smaller loss" "$moec" compile $model --profile "$work/p.h5" --max-loss 1% --dry-run --json --quiet \
    --journal "$work/journal"
cp "$work/stdout" "$work/less.json"
check "which takes more variants, at most half of all too" \
    "$(number "$work/less.json" expert_matrices) > $(number "$work/a.json" expert_matrices) && 2 * $(number "$work/less.json" expert_matrices) <= 864"
try 0 "what mixing gains over one plan for all experts is a number" grep -q '"saving": ' "$work/less.json"
check "of plans that the search measured" \
    "$(number "$work/less.json" saving) < 0.5 && $(number "$work/less.json" saving) > -0.5"
# The profile's verdict is about the same codes, without GPTQ.
single=$(sed -n '/"single"/,/}/p' "$work/less.json" | sed -n 's/^ *"bits": \([0-9]*\),*/\1/p')
check "one plan for all experts has at most the bits that the profile named" \
    "${single:-9} <= $(number "$work/verdict" bits)"
try 0 "smaller codes are left" grep -q '"smallest_codes_used_up": false' "$work/less.json"
try 0 "verify" "$moec" verify "$work/a.moec"
try 0 "run" "$moec" run "$work/a.moec" --prompt "The" --tokens 4
try 0 "inspect" "$moec" inspect "$work/a.moec"
says stdout "int2 shift channel" "codecs are listed"
says stdout "dense-bits=each" "provenance says that each matrix has its own"

set -- "$moec" compile $model --profile "$work/p.h5" --max-loss 5% -o "$work/b.moec" --quiet --threads 1
no_room "without room" "$@"
try 0 "with little room, on one thread" "$@" --work-memory "${bound}MiB"
same "$work/a.moec" "$work/b.moec" "the same bytes at any thread count and work memory"

# What was measured is what ships: the original's loss on any text is the same for the bundle and for its weights.
try 0 "export" "$moec" export "$work/a.moec" -o "$work/folder"
head -c 20000 datasets/sample/test.txt >"$work/test.txt"
try 0 "evaluate the bundle" "$moec" eval "$work/a.moec" --data "$work/test.txt" --seq-len 64 --json
cp "$work/stdout" "$work/bundle.json"
try 0 "evaluate its weights" "$moec" eval "$work/folder" --data "$work/test.txt" --seq-len 64 --json
check "the same perplexity" "$(number "$work/bundle.json" value) == $(number "$work/stdout" value)"

# ---- a size ----

try 0 "compile with nothing but a size" "$moec" compile $model --profile "$work/p.h5" --max-size 1700KB -o "$work/size.moec" \
    --quiet --json --journal "$work/journal"
check "what was fitted for the loss serves the size" "$(number "$work/stdout" resumed_units) > 100"
check "the size is kept" "$(number "$work/stdout" bundle_bytes) <= 1700000"
check "and used" "$(number "$work/stdout" bundle_bytes) > 1600000"
try 1 "a size that only compressing shows to be impossible" "$moec" compile $model --profile "$work/p.h5" --max-size 1100KB \
    -o "$work/none.moec" --quiet --journal "$work/journal"
says stderr "even with the smallest codes the bundle is larger than --max-size: it has about [0-9]+ bytes, but only 1100000" "the message says so"
least=$(sed -n 's/.*--max-size: it has about \([0-9]*\) bytes.*/\1/p' "$work/stderr")
try 0 "the size that it names, or a little more" "$moec" compile $model --profile "$work/p.h5" --max-size "$((least + 2000))" \
    --dry-run --quiet --json --journal "$work/journal"
check "is met" "$(number "$work/stdout" bundle_bytes) - $least <= 2000"
try 1 "one that no bundle has, before anything is measured" "$moec" compile $model --data datasets/sample/calibration.txt \
    --max-size 950KB -o "$work/none.moec" --quiet
says stderr "in every bundle of this model the experts alone take [0-9]+ bytes or more [(]all in int2 shift channel" "says so from the headers"
bound=$(sed -n 's/.*experts alone take \([0-9]*\) bytes.*/\1/p' "$work/stderr")
dense=$(sed -n 's/.*need at least \([0-9]*\) bytes.*/\1/p' "$work/stderr")
check "the smallest bundle is between its numbers" "$bound < $least && $least <= $bound + $dense + 20000"
try 1 "and leaves no journal" test -e "$work/none.moec.profile.journal"

# ---- a loss that buys nothing ----

try 0 "more loss than the smallest codes take" "$moec" compile $model --profile "$work/p.h5" --max-loss 90% --dry-run \
    --journal "$work/journal"
says stdout '^experts:  96 in int2 shift channel$' "where all experts have the smallest codes"
says stdout '^the smallest codes are in use at [0-9.]+% loss; a larger --max-loss gains nothing$' "is said"
lacks stdout '^next:' "a plan has no command that runs it"
try 0 "the same as JSON" "$moec" compile $model --profile "$work/p.h5" --max-loss 90% --dry-run --json --quiet \
    --journal "$work/journal"
says stdout '"smallest_codes_used_up": true' "is said"

# ---- a loss for which the search compares plans ----

try 0 "a smaller loss, as text" "$moec" compile $model --profile "$work/p.h5" --max-loss 1% --dry-run --journal "$work/journal"
says stdout '^mixing bitwidths by expert gains (nothing|[0-9.]+%) over one plan for all:$' "what mixing gains is said"
says stdout '^        all alike: 2 bits \(int2 shift channel\)$' "the smallest plan for all is named"

# ---- fixed dense weights ----

try 0 "dense weights at 8 bits" "$moec" compile $model --profile "$work/p.h5" --max-loss 5% --dense-bits 8 \
    -o "$work/dense.moec" --journal "$work/journal"
says stdout "^next: moec run $work/dense.moec -p \"...\"\$" "the last line says how to run it"
lacks stdout '^(mixing|        [^ ]|next|the smallest).{74}' "in lines of at most 80 columns"
try 0 "inspect them" "$moec" inspect "$work/dense.moec"
says stdout "dense-bits=8 dense-quantizer=gptq" "they are what was asked for"

# ---- a journal that is named ----

cp "$work/journal" "$work/kept"
try 1 "the journal of other windows" "$moec" compile $model --data datasets/sample/calibration.txt --seq-len 64 --samples 96 \
    --seed 7 --max-loss 5% -o "$work/none.moec" --quiet --journal "$work/journal"
says stderr "is the journal of another job: its windows" "is refused"
same "$work/kept" "$work/journal" "and left alone"
version=$("$moec" --version | sed -n 's/^moec \([0-9.]*\),.*/\1/p')
other=$(echo "$version" | tr 0123456789 9876543210)
LC_ALL=C sed "s/\\x00$version\\x00/\\x00$other\\x00/g" "$moec" >"$work/other-version"
chmod +x "$work/other-version"
try 1 "the journal of another version" "$work/other-version" compile $model --profile "$work/p.h5" --max-loss 5% \
    -o "$work/none.moec" --quiet --journal "$work/journal"
says stderr "is the journal of another job: its moec is '$version' [(]this run: '$other'[)]" "is refused"
same "$work/kept" "$work/journal" "and left alone, too"
echo 'a letter to the editor' >"$work/letter"
try 1 "what is no journal" "$moec" compile $model --profile "$work/p.h5" --max-loss 5% -o "$work/none.moec" \
    --journal "$work/letter"
says stderr "letter.* is not a journal of moec" "is refused"
try 2 "an input" "$moec" compile $model --profile "$work/p.h5" --max-loss 5% -o "$work/none.moec" --journal "$work/p.h5"
try 2 "nothing to keep" "$moec" compile $model --policy uniform --bits 4 -o "$work/none.moec" --journal "$work/other"

# ---- options that it does not use ----

for option in "--bits 4" "--group 64" "--quantizer hqq" "--scheme asymmetric" "--sensitivity fast"; do
    # shellcheck disable=SC2086 # an option and its value
    try 2 "hull refuses $option" "$moec" compile $model --data datasets/sample/calibration.txt --max-loss 5% $option \
        -o "$work/none.moec"
done

# ---- a policy of one's own ----

cat >"$work/own.lua" <<'LUA'
return function(moec)
  local variants = moec.variants()
  local a = require("assignment").uniform(moec, "int4-shift")
  a.dense = {}
  for i in ipairs(variants.dense) do a.dense[i] = "int8-g64-linear" end
  moec.log(string.format("harm %s", variants.harm.experts[1][1].down["int2-shift"] > 0))
  local result = moec.evaluate(a)
  moec.log(string.format("loss on %d windows %s", moec.parts.search, result.loss < 0.01))
  return a
end
LUA
try 0 "a policy that asks for variants" "$moec" compile $model --profile "$work/p.h5" --max-loss 5% \
    --policy "$work/own.lua" -o "$work/own.moec" --journal "$work/journal" --json
says stderr "harm true" "it is told the harm"
says stderr "loss on 32 windows true" "and may name them"
check "the bundle has the size that is said" "$(number "$work/stdout" bundle_bytes) == $(wc -c <"$work/own.moec")"
try 0 "inspect what it chose" "$moec" inspect "$work/own.moec"
says stdout "int4 shift channel" "experts"
says stdout "int8 asymmetric nested g64" "dense matrices"
lacks stdout "of rare tokens" "the embedding is one matrix where all its rows have one codec"

sed 's/^  moec.log(string.format("harm.*/  for i, m in ipairs(variants.dense) do if m.role == "embedding" then a.dense[i] = "int4-shift" end end/' \
    "$work/own.lua" >"$work/parts.lua"
try 0 "a policy that gives rows of frequent tokens other bits" "$moec" compile $model --profile "$work/p.h5" --max-loss 5% \
    --policy "$work/parts.lua" -o "$work/parts.moec" --journal "$work/journal" --json --quiet
check "the bundle has the size that is said" "$(number "$work/stdout" bundle_bytes) == $(wc -c <"$work/parts.moec")"
try 0 "inspect it" "$moec" inspect "$work/parts.moec"
says stdout "embedding of rare tokens" "the embedding is two matrices"

done_testing
