#!/bin/sh
# What compile says when the loss target cannot be met: how many windows would do, or that no number would, and which
# target is within reach.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=datasets/sample/model

# reach: the target that the last message names as within reach, such as 12.345%.
reach() {
    sed -n 's/.*--max-loss \([0-9.]*%\) would be met.*/\1/p' "$work/stderr"
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
    -o "$work/p.h5" --quiet

# ---- the loss itself is over the target ----

try 1 "2 bits under a target of 1%" with_bits 2 --max-loss 1% -o "$work/no.moec"
says stderr 'target is 1.000%: the loss itself is not under the target, so no number of windows will do' \
    "no number of windows will do"
try 1 "nothing was written" test -e "$work/no.moec"
with_bits 2 --max-loss 1% --dry-run 2>"$work/stderr"
try 0 "the target that the message names is met" with_bits 2 --max-loss "$(reach)" --dry-run

# ---- only its interval is ----

try 1 "4 bits under a target between loss and upper end" with_bits 4 --max-loss 0.05% --dry-run
says stderr 'about [1-9][0-9]* windows in this part would do \(--samples [1-9][0-9]*\); with these 16, --max-loss [0-9.]+% would be met' \
    "the message says how many windows would do, and what these do"
try 0 "the target that the message names is met" with_bits 4 --max-loss "$(reach)" --dry-run

# ---- a policy that finds nothing says so, compile what was measured ----

cat >"$work/none.lua" <<'EOF'
return function(m)
  m.evaluate(require("assignment").uniform(m, 3))
  m.evaluate(require("assignment").uniform(m, 2))
  return nil, "nothing will do"
end
EOF
try 1 "a policy gives up" "$moec" compile $model --profile "$work/p.h5" --policy "$work/none.lua" --max-loss 0.01% --dry-run -q
says stderr "nothing will do; the safest assignment measured has a loss of -?[0-9.]+% \(at most [0-9.]+%\) on the search part" \
    "the safest assignment is named"
says stderr "the target is 0.010%: the loss itself is not under" "and what would do"

# ---- a size alone is met whatever is lost, which is said ----

loud='WARNING: the loss on the (search|certificate) part is [0-9.]+%, at most [0-9.]+%, which is above 10%'
try 0 "2 bits, as a plan" with_bits 2 --max-size 100MB --dry-run
says stderr "$loud.*--max-loss 10% in place of --max-size" "are warned about, with what to do"
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
says stderr "the smallest bundle measured within 10% has $size bytes" "the warning names the size that is known to do"
if with_bits 2 --max-loss 500% --dry-run 2>&1 | grep -q WARNING; then fail "a loss that was allowed"; else pass "a loss that was allowed"; fi

done_testing
