#!/bin/sh
# Policies in Lua that search settings of decisions: what evaluate tells them, what they return, and how that is certified.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
fewer_layers 4
data=datasets/sample/calibration.txt
check() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1: $2"; fi
}
number() {
    sed -n "s/^.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$work/stdout" | head -n 1
}
same() {
    if cmp -s "$2" "$3"; then pass "$1"; else fail "$1"; fi
}
loss=4%
# shellcheck disable=SC2317 # called by try
tune() {
    "$moec" tune "$work/m.moec" --data "$data" --reference "$sample" --samples 32 --seq-len "$length" --slots 6 \
        --max-loss "$loss" --force "$@"
}
length=32
policy() {
    printf 'return function(moec)\n%s\nend\n' "$1" >"$work/p.lua"
}
refused() {
    policy "$2"
    try "$1" "$2" tune --policy "$work/p.lua" -q -o "$work/no.moec"
    says stderr "$3" "$3"
    if [ -e "$work/no.moec" ]; then fail "nothing is written"; else pass "nothing is written"; fi
}

try 0 "a bundle with low copies" "$moec" compile "$sample" --policy uniform --bits 8 --copies 4 -q -o "$work/m.moec"

# ---- the built-in one ----

try 0 "the strongest prior" tune --policy prior -q --json -o "$work/t.moec"
check "is promised within the loss" "$(number loss_high) <= 0.04"
says stdout '"route": "cache-prior:0\.[0-9]+"' "names a prior"
try 0 "on other threads and instructions" tune --policy prior -v -t 1 --cpu avx2 -o "$work/again.moec"
same "the same bytes" "$work/t.moec" "$work/again.moec"
says stderr 'test 1 of [0-9], .*: proven' "after safer ones"
try 0 "inspect" "$moec" inspect "$work/t.moec"
says stdout '^  route      cache-prior:0' "shows it"
try 0 "run" "$moec" run "$work/t.moec" -p Once -n 4 --stats
says stderr "decided by the bundle's settings" "uses it"

# ---- what evaluate tells ----

policy 'local plain = moec.evaluate {}
local own = {route = "cache-prior:0.1", precision = "hobbit:0.6:0.9", slots = 8, low_slots = "25%", keep_top = 1}
local r = moec.evaluate(own)
assert(plain.accepted and plain.missed_share > 0.2 and plain.bytes_per_token > r.bytes_per_token)
assert(math.abs(plain.misses_per_token - plain.missed_share * moec.model.layers * moec.model.top_k) < 1e-9)
assert(r.loss_low <= r.loss and r.loss <= r.loss_high and r.kl > 0)
assert(moec.slots == 6 and moec.low_bits == 4 and moec.with.route and not moec.with.left_out and moec.drafts == 1)
moec.log(string.format("own: %.6f %.6f", r.missed_share, r.bytes_per_token))
return own'
try 0 "an own file" tune --policy "$work/p.lua" --json -o "$work/own.moec"
says stderr '^own: 0\.' "its log is shown"
says stdout '"slots": 8' "its slots are in the bundle"
says stdout '"keep_top": 1' "and its best experts"
check "what it was told is what the search measured" \
    "$(sed -n 's/^own: [0-9.]* //p' "$work/stderr") - $(sed -n '/"candidates"/,$s/.*"missed_bytes_per_token": *\([0-9.e+]*\).*/\1/p' "$work/stdout" | head -n 1) < 1e-3"
policy 'return {sequence = {{route = "cache-prior:0.02"}, {route = "cache-prior:0.05"}}}'
try 0 "a sequence" tune --policy "$work/p.lua" -v -o "$work/own.moec"
says stderr 'test 2 of 2, cache-prior:0.05' "is tested as it is"

policy 'return {sequence = {{route = "cache-prior:0.000001"}}}'
try 1 "settings that save nothing" tune --policy "$work/p.lua" -q -o "$work/idle.moec"
says stderr 'read [0-9.]+ KiB of experts per token, and the bundle without these settings reads [0-9.]+ KiB[.] This is not a gain, so nothing was written' "are no result"
if [ -e "$work/idle.moec" ]; then fail "nothing is written"; else pass "nothing is written"; fi
try 0 "where one insists" tune --policy "$work/p.lua" -q --accept-slower -o "$work/idle.moec"

# ---- with plans of sparsity, and drafts of a checkpoint ----

policy 'return {left_out = 0.4, route = "cache-prior:0.05"}'
loss=12%
try 0 "a plan with a route" tune --policy "$work/p.lua" --with route,sparsity -q --json -o "$work/both.moec"
says stdout '"left_out": 0.4' "is searched"
try 0 "a whole bundle" "$moec" verify "$work/both.moec"
loss=4%
try 0 "weights are fitted" fitted_journal
policy 'if moec.evaluate({draft = 1, route = "cache-prior:0.05"}).loss > moec.evaluate({draft = moec.drafts}).loss then
  return nil, "a milder draft loses more" end
return {draft = moec.drafts, route = "cache-prior:0.05"}'
cp "$made" "$work/drafts.moec.journal"
try 0 "drafts" "$moec" fit datasets/sample/model --data "$data" --samples 48 --seq-len 32 --objective bytes --slots 6 --max-loss 20% \
    --policy "$work/p.lua" -v -o "$work/drafts.moec"
says stderr 'plan [1-5], cache-prior:0.05: loss .* on the selection part' "are measured on the selection part"
says stdout "settings +cache-prior:0.05 by 6 experts" "and one is written"
policy 'local best, least
assert(#moec.draft_slots == moec.drafts and not moec.with.precision)
for draft = 1, moec.drafts do
  for _, route in ipairs {"top-k", "max-rank:6", "cumsum:0.6", "cache-prior:0.05:skip:0.05"} do
    if moec.draft_slots[draft] > 0 then
      local c = {draft = draft, route = route}
      local r = moec.evaluate(c)
      assert(r.token_ms > 0 and r.read_bytes > 0 and r.bytes_per_token > 0)
      if r.accepted and (not least or r.token_ms < least) then best, least = c, r.token_ms end
    end
  end
end
return best'
cp "$made" "$work/timed.moec.journal"
try 0 "by the time of a device" "$moec" fit datasets/sample/model --data "$data" --samples 48 --seq-len 32 --max-loss 20% --memory 10560KiB \
    --ctx 256 --storage 50MB/s,200us --policy "$work/p.lua" -q --json -o "$work/timed.moec"
check "is no slower than moec compile" "$(number token_ms) <= 1.02 * $(number compiled_token_ms)"
check "within the loss" "$(number loss_high) <= 0.2"
try 0 "a whole bundle" "$moec" verify "$work/timed.moec"
cp "$made" "$work/prior.moec.journal"
try 0 "the strongest prior of all drafts" "$moec" fit datasets/sample/model --data "$data" --samples 48 --seq-len 32 --max-loss 20% \
    --objective bytes --slots 6 --policy prior -q -o "$work/prior.moec"
says stdout "settings +cache-prior:0.[0-9]* by 6 experts" "is found"

# ---- bits by what tokens read: moec compile ----

cat >"$work/bits.lua" <<'EOF2'
local assignment = require "assignment"
return function(moec)
  local best, least
  for _, bits in ipairs {4, 8} do
    local a = assignment.uniform(moec, bits)
    local plain, r = moec.evaluate(a), moec.evaluate {assignment = a, route = "top-k", slots = 8}
    assert(r.loss == plain.loss and r.kl == plain.kl and not plain.bytes_per_token)
    local low = moec.evaluate {assignment = a, precision = "hobbit:0.6:0.9", slots = 8}
    assert(low.bytes_per_token < r.bytes_per_token)
    if r.accepted and (not least or r.bytes_per_token < least) then best, least = a, r.bytes_per_token end
  end
  return best
end
EOF2
try 0 "a policy of bits that counts what tokens read" "$moec" compile "$sample" --data "$data" --samples 32 --seq-len 48 \
    --max-loss 4% --copies 2 --sensitivity none --policy "$work/bits.lua" -q -o "$work/bits.moec"
says stdout "experts: +64 at 4 bits" "takes the smaller ones"

# ---- refusals ----

refused 1 'return 3' "the policy's answer is a number, expected a candidate"
refused 1 'return {}' 'decides nothing and leaves out no neurons'
refused 1 'return nil, "no luck"' "policy .*: no luck"
refused 1 'return {rout = "x"}' "has a member 'rout', expected route, precision"
refused 1 'return {route = "cache-prior:x"}' "has the parameter 'x', expected a share"
refused 1 'moec.evaluate {route = "cache-prior:0.1", slots = 99}' 'p.lua:2: .* the logical cache has room for 99 experts in each layer'
refused 1 'moec.evaluate {slots = 0}' 'a candidate has 0 slots for its logical cache'
refused 1 'moec.evaluate {low_slots = 2}' 'low_slots without precision or prefill'
refused 1 'moec.evaluate {left_out = 0.5}' 'uses left_out, which this search leaves out'
refused 1 'moec.evaluate {draft = 2}' 'as draft, expected a whole number up to 1'
refused 1 'return {route = "cache-prior:0.9"}' 'gave cache-prior:0.9, whose loss is .* the target is 4.000%'
refused 1 'return {sequence = {}}' 'a sequence of 0 candidates, expected 1 to 8'
length=8
refused 1 'for i = 1, 999 do moec.evaluate {route = "cache-prior:" .. i / 1e6, slots = 16} end' 'more than the limit of 240 different candidates'
length=32
try 1 "a policy of bits" tune --policy hull -q -o "$work/no.moec"
says stderr "'hull' is not among the built-in decisions \(prior\)" "is none of decisions"
try 1 "a policy that is not there" tune --policy prio -q -o "$work/no.moec"
says stderr "did you mean 'prior'" "is guessed"

done_testing
