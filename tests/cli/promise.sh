#!/bin/sh
# The promise of compile: plans are tested from the safest on; and what it says when the loss target cannot be met: how many
# windows would do, or that no number would, and which target is within reach.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model

# reach: the target that the last message names as within reach, such as 12.345%.
reach() {
    sed -n 's/.*\(--max-loss\|prove --max-loss\) \([0-9.]*%\).*/\2/p' "$work/stderr"
}
# with_bits BITS OPTION...: all experts at these bits.
# shellcheck disable=SC2317 # called by try
with_bits() {
    bits=$1
    shift
    "$moec" compile $model --profile "$work/p.h5" --policy "$work/$bits.lua" --quiet "$@"
}
for bits in 2 4; do
    echo "return function(m) return require('assignment').uniform(m, $bits) end" >"$work/$bits.lua"
done

try 0 "profile" "$moec" profile $model --data datasets/sample/calibration.txt --seq-len 64 --samples 32 --bits 2,4 \
    --sensitivity none -o "$work/p.h5" --quiet

# ---- the loss itself is over the target ----

try 1 "2 bits under a target of 1%" with_bits 2 --max-loss 1% -o "$work/no.moec"
says stderr 'target is 1.000%: the loss itself is not below the target, so more windows do not help' \
    "more windows do not help"
try 1 "nothing was written" test -e "$work/no.moec"
with_bits 2 --max-loss 1% --dry-run 2>"$work/stderr"
over=$(reach)
try 0 "the target that the message names is met" with_bits 2 --max-loss "$over" --dry-run

# ---- only its interval is ----

# The safest plan, 8 or 16 bits, does not fit the size: there is nothing to fall back to.
size=$(with_bits 4 --max-size 100MB --dry-run --json 2>/dev/null | sed -n 's/.*"bundle_bytes": \([0-9]*\).*/\1/p')
try 1 "4 bits under a target between loss and upper end" with_bits 4 --max-loss 0.5% --max-size "$size" -o "$work/no.moec"
says stderr 'the safest of 1 plans has a loss of [0-9.]+% on the certificate part of the data [(]upper bound with 95% confidence: [0-9.]+%[)], but the target is 0.500%, so nothing was written' \
    "the message says what was measured"
says stderr 'about [1-9][0-9]* windows would prove the target in four of five cases \(--certificate-samples [1-9][0-9]*\); the 16 measured ones prove --max-loss [0-9.]+%' \
    "and how many windows would do, and what these do"
proven=$(reach)
try 1 "nothing was written" test -e "$work/no.moec"
try 0 "the target that the message names is met" with_bits 4 --max-loss "$proven" --max-size "$size" -o "$work/four.moec"
try 0 "a point estimate is met before" with_bits 4 --max-loss 0.5% --max-size "$size" --confidence point -o "$work/point.moec"
says stdout 'one evaluation, a point estimate: no interval is promised' "and says what it is"
try 0 "more confidence" with_bits 4 --max-loss 20% --confidence 0.99 -o "$work/sure.moec"
try 0 "inspect of it" "$moec" inspect "$work/sure.moec"
says stdout '\(98% interval -?[0-9.]+% to [0-9.]+%\)' "names an interval each end of which has it"
try 0 "--accept-miss writes it" with_bits 4 --max-loss 0.5% --max-size "$size" --accept-miss -o "$work/missed.moec"
says stdout 'target at most 0.500%: MISSED' "and marks it"
says stdout 'none of 1 plans is proven with 95% confidence' "and says why"
try 0 "inspect" "$moec" inspect "$work/missed.moec"
says stdout 'MISSED \(written under --accept-miss\)' "shows the mark"

# ---- plans are tested from the safest on, and the last that passes is written ----

try 0 "2 bits under a target that they just meet on the search part" with_bits 2 --max-loss "$over" -o "$work/fallback.moec" --json
says stdout '"result": "failed"' "may fail the certificate"
says stdout '"result": "passed"' "after plans that pass it"
cp "$work/stdout" "$work/sequence.json"
if [ "$(sed -n 's/.*"bundle_bytes": \([0-9]*\).*/\1/p' "$work/sequence.json" | head -n 1)" -eq "$(wc -c <"$work/fallback.moec")" ]; then
    pass "what is written has the size of the last that passed"
else
    fail "what is written has the size of the last that passed"
fi
try 0 "inspect" "$moec" inspect "$work/fallback.moec"
says stdout 'proven with +95% confidence, by plan [0-9] of [0-9]' "says how it was proven"
says stdout 'plan 1 .* passed' "with every test"
try 0 "inspect --json" "$moec" inspect --json "$work/fallback.moec"
says stdout '"sequence":' "in the JSON too"
try 0 "another promise on the same part" with_bits 4 --max-loss 30% -o "$work/again.moec"
says stdout '[1-9] other bundles? in this folder \(.*\) certified on the same part' "is told of the ones before"

# ---- a policy that finds nothing says so, compile what was measured ----

cat >"$work/none.lua" <<'EOF'
return function(m)
  m.evaluate(require("assignment").uniform(m, 3))
  m.evaluate(require("assignment").uniform(m, 2))
  return nil, "nothing will do"
end
EOF
try 1 "a policy gives up" "$moec" compile $model --profile "$work/p.h5" --policy "$work/none.lua" --max-loss 0.01% --dry-run -q
says stderr "nothing will do; the safest assignment measured has a loss of -?[0-9.]+% \(upper bound [0-9.]+%\) on the search part" \
    "the safest assignment is named"
says stderr "the target is 0.010%: the loss itself is not below the target" "and what would do"

# ---- a size alone is met whatever is lost, which is said ----

loud='WARNING: the loss on the (search|certificate) part is [0-9.]+% [(]upper bound [0-9.]+%[)], which is above 10%'
try 0 "2 bits, as a plan" with_bits 2 --max-size 100MB --dry-run
says stderr "$loud.*--max-loss 10% instead of --max-size" "are warned about, with what to do"
says stderr "loss on the search part" "on the search part"
try 0 "2 bits, as a bundle" with_bits 2 --max-size 100MB -o "$work/two.moec" --json
says stderr "$loud" "are warned about"
says stdout '"warning": "the loss on the certificate part is' "in the JSON too"
cat >"$work/both.lua" <<'EOF'
return function(m)
  local uniform = require("assignment").uniform
  m.evaluate(uniform(m, 4))
  m.evaluate(uniform(m, 16))
  return uniform(m, 2)
end
EOF
with_bits 4 --max-size 100MB --dry-run --json >"$work/stdout" 2>"$work/stderr"
size=$(sed -n 's/.*"bundle_bytes": \([0-9]*\).*/\1/p' "$work/stdout")
if grep -q 'WARNING\|"warning"' "$work/stderr" "$work/stdout"; then fail "4 bits are fine"; else pass "4 bits are fine"; fi
try 0 "a search that also measured more" with_bits both --max-size 100MB --dry-run
says stderr "the smallest measured bundle that loses at most 10% has $size bytes" "the warning names the size that is known to do"
if with_bits 2 --max-loss 500% --dry-run 2>&1 | grep -q WARNING; then fail "a loss that was allowed"; else pass "a loss that was allowed"; fi

done_testing
