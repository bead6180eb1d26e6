#!/bin/sh
# A plan with bits of their own for gate, up and down: searched, measured, written, run, evaluated and exported; what the
# search measured is what ships.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

fewer_layers 4
model=$sample
data=datasets/sample/calibration.txt
windows="--seq-len 32 --samples 64 --seed 3"

# number FILE KEY: the first number of this key in JSON.
number() {
    sed -n "s/^ *\"$2\": \([-0-9.e+]*\),*\$/\1/p" "$1" | head -n 1
}
# holds NAME EXPRESSION: an awk expression is true.
holds() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1 (not true: $2)"; fi
}

# shellcheck disable=SC2086 # options are words
try 0 "profile" "$moec" profile "$model" --data $data $windows --select-samples 0 --certificate-samples 32 --bits 2,4 -o "$work/p.h5" --json --quiet
cp "$work/stdout" "$work/p.json"

# The up projections of every other expert at 3 bits and their down projections at 8, and one of every kind.
cat >"$work/mixed.lua" <<'EOF'
local assignment = require "assignment"
return function(moec)
  local plain, mixed = assignment.uniform(moec, 4), assignment.uniform(moec, 4)
  for layer = 1, moec.model.layers do
    for expert = 1, moec.model.experts, 2 do mixed[layer][expert] = { gate = 4, up = 3, down = 8 } end
  end
  mixed[1][2] = { gate = 16, up = 2, down = 3 }
  assert(table.concat(moec.model.projections, " ") == "gate up down")
  assert(moec.size(mixed) ~= moec.size(plain))
  local same = assignment.copy(mixed)
  same[1][1].up = 8
  assert(mixed[1][1].up == 3, "a copy has tables of its own")
  same[1][1] = { gate = 4, up = 4, down = 4 }
  for layer = 1, moec.model.layers do
    for expert = 1, moec.model.experts do same[layer][expert] = { gate = 4, up = 4, down = 4 } end
  end
  assert(moec.size(same) == moec.size(plain) and moec.evaluate(same).loss == moec.evaluate(plain).loss)
  moec.log(string.format("loss %.17g", moec.evaluate(mixed).loss))
  moec.log("experts: " .. assignment.describe(mixed))
  return mixed
end
EOF
try 0 "compile" "$moec" compile "$model" --profile "$work/p.h5" --policy "$work/mixed.lua" --max-loss 90% --copies 4 \
    -o "$work/m.moec" --json
cp "$work/stdout" "$work/m.json"
cp "$work/stderr" "$work/log"
loss=$(sed -n 's/.*loss \([-0-9.e+]*\)$/\1/p' "$work/log" | head -n 1)
says stderr 'experts: .*gate 16, up 2, down 3' "the policy can describe it"
holds "the size that was promised is the size of the file" "$(number "$work/m.json" bundle_bytes) == $(wc -c <"$work/m.moec")"
if tr -d ' \n' <"$work/m.json" | grep -q '"assignment":\[\[{"gate":4,"up":3,"down":8},{"gate":16,"up":2,"down":3},{"gate":4,'; then
    pass "the JSON has bits for each projection"
else
    fail "the JSON has bits for each projection"
fi
try 0 "compile again" "$moec" compile "$model" --profile "$work/p.h5" --policy "$work/mixed.lua" --max-loss 90% --copies 4 \
    -o "$work/again.moec" --quiet --threads 1
says stdout 'experts: .* at 4 bits +[0-9]+ whose projections differ, [0-9.]+ bits on average' "says so"
same "$work/m.moec" "$work/again.moec" "gives the same bytes"
try 0 "verify" "$moec" verify "$work/m.moec"
try 0 "inspect" "$moec" inspect "$work/m.moec"
says stdout '^  \* [0-9]+ experts: gate 4, up 3, down 8 bits' "inspect lists the mixtures"
says stdout '^  \* 1 experts: gate 16, up 2, down 3 bits' "each of them"
says stdout '^   3 bits: int3 symmetric channel: gate 0, up [0-9]+, down 1$' "how many projections have each codec"
says stdout '^  16 bits: bf16: [0-9]+ matrices, .*: embedding, q projection \([0-9]+\)' "and which dense matrices"
says stdout '^  layer +0 +\*\*\*4\*4' "the map marks them"
try 0 "inspect --json" "$moec" inspect "$work/m.moec" --json
if tr -d ' \n' <"$work/stdout" | grep -q '\[{"gate":4,"up":3,"down":8},{"gate":16,"up":2,"down":3},'; then
    pass "inspect's JSON has them too"
else
    fail "inspect's JSON has them too"
fi

# ---- measured = shipped ----

# All windows have as many tokens, so that the logarithm of perplexity on all is the mean of those of both parts.
# shellcheck disable=SC2086
try 0 "eval of the bundle against the folder" "$moec" eval "$work/m.moec" --data $data $windows --reference "$model" --json --quiet
cp "$work/stdout" "$work/eval.json"
holds "on the windows of profile and certificate" "(2 * log($(number "$work/eval.json" reference)) \
    - log($(number "$work/p.json" value)) - log($(number "$work/m.json" reference))) ^ 2 < 1e-24"
holds "it gives what search and certificate measured" "(2 * log($(number "$work/eval.json" value) / $(number "$work/eval.json" reference)) \
    - log(1 + $loss) - log($(number "$work/m.json" compiled) / $(number "$work/m.json" reference))) ^ 2 < 1e-24"
try 0 "export" "$moec" export "$work/m.moec" -o "$work/folder" --quiet
# shellcheck disable=SC2086
try 0 "eval of the folder that it exports" "$moec" eval "$work/folder" --data $data $windows --json --quiet
holds "gives the same" "$(number "$work/stdout" value) == $(number "$work/eval.json" value)"

# ---- running ----

try 0 "run" "$moec" run "$work/m.moec" -p "The old" -n 32 --ctx 128
cp "$work/stdout" "$work/text"
floor=$(floor_bytes "$build/moec-run" "$work/m.moec" -p "The old" --ctx 128)
for mode in cache edgemoe sti; do
    try 0 "run in little memory, mode $mode" "$build/moec-run" "$work/m.moec" -p "The old" -n 32 --ctx 128 --mode $mode \
        --memory $((floor + 800000))
    same "$work/text" "$work/stdout" "gives the same text"
done
try 0 "strip" "$moec" strip "$work/m.moec" --copies 4 -o "$work/stripped.moec"
try 0 "verify what is left" "$moec" verify "$work/stripped.moec"
try 0 "run it" "$moec" run "$work/stripped.moec" -p "The old" -n 32 --ctx 128
same "$work/text" "$work/stdout" "gives the same text too"

awk '/^```lua/ { on = ++n; next } /^```/ { on = 0 } on == 2' lua/README.md >"$work/documented.lua"
try 0 "the documented policy works" "$moec" compile "$model" --profile "$work/p.h5" --max-loss 90% --policy "$work/documented.lua" \
    --dry-run --json --quiet
if tr -d ' \n' <"$work/stdout" | grep -q '"assignment":\[\[{"gate":3,"up":3,"down":4},'; then
    pass "and gives what it says"
else
    fail "and gives what it says"
fi

# ---- damage ----

# byte OFFSET VALUE: what stands at this place of a copy.
byte() {
    cp "$work/stripped.moec" "$work/bad.moec"
    # shellcheck disable=SC2059 # the value is an octal escape
    printf "\\$2" | dd of="$work/bad.moec" bs=1 seek="$1" conv=notrunc 2>"$work/stderr"
}
index=$("$moec" inspect "$work/stripped.moec" | sed -n 's/^  index of copy 0 *\([0-9]*\) .*/\1/p')
case $index in
*[!0-9]* | '') fail "the record index is found" ;;
*)
    byte $((index + 12)) 2
    try 1 "a form of index that does not exist" "$moec" verify "$work/bad.moec"
    byte $((index + 16 + 16)) 4
    try 1 "another codec of one projection" "$moec" run "$work/bad.moec" -p "The old" -n 2
    ;;
esac

# ---- what is no assignment ----

refused() { # NAME PATTERN ENTRY
    echo "return function(m) local a = require('assignment').uniform(m, 4) a[1][2] = $3 return a end" >"$work/bad.lua"
    try 1 "policy: $1" "$moec" compile "$model" --profile "$work/p.h5" --max-loss 5% --policy "$work/bad.lua" --dry-run --quiet
    says stderr "$2" "policy: $1 is explained"
}
refused "a projection missing" 'no valid bitwidth for down at \[1\]\[2\]: the nil nil, expected one of the numbers' "{ gate = 2, up = 2 }"
refused "a projection that does not exist" "a member 'side' at \[1\]\[2\], expected gate, up and down" \
    "{ gate = 2, up = 2, down = 2, side = 2 }"
refused "a bitwidth that does not exist" 'no valid bitwidth for up at \[1\]\[2\]: the number 7' "{ gate = 2, up = 7, down = 2 }"
refused "a group for a projection" "a member 'group' at" "{ gate = 2, up = 2, down = 2, group = 32 }"
refused "a list" "a member '1' at" "{ 2, 2, 2 }"

done_testing
