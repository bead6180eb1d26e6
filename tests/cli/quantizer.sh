#!/bin/sh
# --quantizer linear|hqq|auto|trellis: measured, stored, compiled, run; refused where it means nothing.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

fewer_layers 4
model=$sample
windows="--data datasets/sample/calibration.txt --seq-len 32 --samples 32"
whole="$windows --sensitivity none --bits 2,4" # what whole models lose
tiny="$windows --sensitivity fast --bits 2,4"

# number FILE KEY: the first number of this key in pretty JSON.
number() {
    sed -n "s/^ *\"$2\": \([-0-9.e+]*\),*\$/\1/p" "$1" | head -n 1
}
# attribute FILE NAME: a text attribute of the root of an HDF5 file.
attribute() {
    h5dump -a "$2" "$1" 2>/dev/null | sed -n 's/.*(0): "\(.*\)".*/\1/p'
}

# ---- profile ----

for quantizer in linear hqq auto; do
    options=$tiny
    [ $quantizer != linear ] || options=$whole
    # shellcheck disable=SC2086 # options are words
    try 0 "profile --quantizer $quantizer" "$moec" profile "$model" $options --quantizer $quantizer -o "$work/$quantizer.h5" --json --quiet
    cp "$work/stdout" "$work/$quantizer.json"
    if [ "$(attribute "$work/$quantizer.h5" quantizer)" = "$quantizer" ]; then
        pass "$quantizer: the profile says so"
    else
        fail "$quantizer: the profile says so"
    fi
done
# shellcheck disable=SC2086
try 0 "profile without it" "$moec" profile "$model" $whole -o "$work/default.h5" --quiet --threads 1
if cmp -s "$work/default.h5" "$work/linear.h5"; then
    pass "linear is the default"
else
    fail "linear is the default"
fi
for quantizer in hqq auto; do
    if awk "BEGIN { exit !($(number "$work/$quantizer.json" mean_kl) < $(number "$work/linear.json" mean_kl)) }"; then
        pass "$quantizer is nearer to the original than linear at the baseline's bits"
    else
        fail "$quantizer is nearer to the original than linear at the baseline's bits"
    fi
done
if [ "$(attribute "$work/hqq.h5" scheme)" = asymmetric ]; then
    pass "hqq is asymmetric by default"
else
    fail "hqq is asymmetric by default"
fi
if attribute "$work/auto.h5" quantizer_2 | grep -q '^hqq '; then
    pass "auto takes hqq at 2 bits"
else
    fail "auto takes hqq at 2 bits"
fi
try 0 "the candidates stay in the profile" h5dump -H -d /studies/candidate/kl "$work/auto.h5"
# shellcheck disable=SC2086
try 0 "auto among symmetric codes, on one thread" "$moec" profile "$model" $whole --quantizer auto --scheme symmetric \
    -o "$work/symmetric.h5" --quiet --threads 1
says stdout '^quantizer: .* at 2 bits, .* at 4 bits' "it says what it chose"
if attribute "$work/symmetric.h5" quantizer_2 | grep -q ' symmetric$'; then
    pass "and keeps to the scheme"
else
    fail "and keeps to the scheme"
fi
try 0 "--show of a chosen quantizer" "$moec" profile --show "$work/auto.h5" --heatmap "$work/map.svg"

# ---- compile ----

try 0 "compile from auto" "$moec" compile "$model" --profile "$work/auto.h5" --max-loss 20% --policy uniform --copies 3,8 \
    --accept-miss -o "$work/auto.moec" --quiet
try 0 "verify" "$moec" verify "$work/auto.moec"
try 0 "inspect" "$moec" inspect "$work/auto.moec"
says stdout 'quantizer=auto 2=hqq-(a?)symmetric' "provenance says what was chosen"
try 0 "run" "$moec" run "$work/auto.moec" --prompt "The" --tokens 4
# shellcheck disable=SC2086
try 0 "profile --quantizer trellis" "$moec" profile "$model" $tiny --quantizer trellis --group 64 -o "$work/trellis.h5" --quiet
try 0 "compile from it" "$moec" compile "$model" --profile "$work/trellis.h5" --policy uniform --bits 2 --copies 4 \
    -o "$work/trellis.moec" --quiet
try 0 "verify it" "$moec" verify "$work/trellis.moec"
try 0 "inspect it" "$moec" inspect "$work/trellis.moec"
says stdout 'quantizer=trellis' "provenance says trellis"
try 0 "run it" "$moec" run "$work/trellis.moec" --prompt "The" --tokens 4
try 0 "run it without vectors" "$moec" run "$work/trellis.moec" --prompt "The" --tokens 4 --cpu scalar
try 0 "export it" "$moec" export "$work/trellis.moec" -o "$work/trellis-folder"
try 0 "trellis without a profile" "$moec" compile "$model" --policy uniform --bits 2 --quantizer trellis --group 64 \
    -o "$work/trellis2.moec" --quiet
try 0 "hqq at as many bits" "$moec" compile "$model" --policy uniform --bits 2 --quantizer hqq --group 64 -o "$work/hqq2.moec" --quiet
if [ "$(wc -c <"$work/trellis2.moec")" -lt "$(wc -c <"$work/hqq2.moec")" ]; then
    pass "a trellis takes less room than groups"
else
    fail "a trellis takes less room than groups"
fi
for bits in 3 4; do
    try 0 "a trellis of $bits bits" "$moec" compile "$model" --policy uniform --bits $bits --quantizer trellis \
        -o "$work/trellis$bits.moec" --quiet
    try 0 "inspect it" "$moec" inspect "$work/trellis$bits.moec"
    says stdout "$bits bits: int$bits shift channel" "it has the codes that hull has"
done
try 2 "a trellis of 5 bits" "$moec" compile "$model" --policy uniform --bits 5 --quantizer trellis -o "$work/no.moec"
says stderr 'give --bits 2, 3 or 4' "it says what there is"
# shellcheck disable=SC2086
try 2 "a profile that has no use for a trellis" "$moec" profile "$model" --data datasets/sample/calibration.txt --seq-len 32 \
    --samples 32 --bits 6,8 --quantizer trellis -o "$work/no.h5" --quiet
try 0 "hqq without a profile" "$moec" compile "$model" --policy uniform --bits 3 --quantizer hqq --group 64 \
    -o "$work/hqq.moec" --quiet
try 0 "hqq on one thread" "$moec" compile "$model" --policy uniform --bits 3 --quantizer hqq --group 64 \
    -o "$work/again.moec" --quiet --threads 1
if cmp -s "$work/hqq.moec" "$work/again.moec"; then
    pass "the same bytes at any thread count"
else
    fail "the same bytes at any thread count"
fi
try 0 "inspect hqq" "$moec" inspect "$work/hqq.moec"
says stdout '3 bits: int3 asymmetric g64' "asymmetric codes in groups"
says stdout 'quantizer=hqq scheme=asymmetric group=64' "and who chose them"

# ---- outlier-aware and logarithmic ----

for quantizer in outlier log; do
    # shellcheck disable=SC2086
    try 0 "profile --quantizer $quantizer" "$moec" profile "$model" $tiny --quantizer $quantizer -o "$work/$quantizer.h5" --quiet
    if [ "$(attribute "$work/$quantizer.h5" quantizer)" = "$quantizer" ]; then
        pass "$quantizer: the profile says so"
    else
        fail "$quantizer: the profile says so"
    fi
    try 0 "compile from it" "$moec" compile "$model" --profile "$work/$quantizer.h5" --policy uniform --bits 4 --copies 2,8 \
        -o "$work/$quantizer.moec" --quiet
    try 0 "verify" "$moec" verify "$work/$quantizer.moec"
    try 0 "run on the best kernels" "$moec" run "$work/$quantizer.moec" --prompt "The" --tokens 8 --cpu auto
    cp "$work/stdout" "$work/best"
    try 0 "run on the definition" "$moec" run "$work/$quantizer.moec" --prompt "The" --tokens 8 --cpu scalar
    if cmp -s "$work/stdout" "$work/best"; then
        pass "$quantizer: the same text"
    else
        fail "$quantizer: the same text"
    fi
    try 0 "inspect" "$moec" inspect "$work/$quantizer.moec"
    says stdout "quantizer=$quantizer scheme=" "provenance says who chose codes"
done
says stdout '4 bits: int4 logarithmic channel' "and what they are"
try 2 "a scheme beside outlier" "$moec" profile "$model" --data datasets/sample/calibration.txt --quantizer outlier \
    --scheme symmetric -o "$work/x.h5"
says stderr "has its own" "is explained"

# ---- scales of scales, 5 and 6 bits, groups of 16 ----

nested="--scheme asymmetric-nested --group 16"
# shellcheck disable=SC2086
try 0 "profile in groups of 16 with scales of scales" "$moec" profile "$model" --data datasets/sample/calibration.txt \
    --seq-len 32 --samples 32 --bits 2,5,6 $nested --sensitivity fast -o "$work/nested.h5" --quiet
if [ "$(attribute "$work/nested.h5" scheme)" = asymmetric-nested ]; then
    pass "the profile says so"
else
    fail "the profile says so"
fi
try 0 "--show at 5 bits" "$moec" profile --show "$work/nested.h5" --show-bits 5
says stdout "asymmetric-nested quantisation, one scale per" "and how codes are scaled"
cat >"$work/five.lua" <<'END'
return function(moec)
  moec.log("to try: " .. table.concat(moec.bitwidths, ", "))
  return require("assignment").uniform(moec, 5)
end
END
try 0 "a policy is offered what was measured" "$moec" compile "$model" --profile "$work/nested.h5" --policy "$work/five.lua" \
    --max-loss 20% --accept-miss -o "$work/measured.moec"
says stderr "to try: 2, 3, 4, 5, 6, 8, 16" "with 5 and 6 bits"
try 0 "and no others" "$moec" compile "$model" --profile "$work/auto.h5" --policy "$work/five.lua" --max-loss 20% \
    --accept-miss --force -o "$work/measured.moec"
says stderr "to try: 2, 3, 4, 8, 16" "without them"
for bits in 5 6; do
    # shellcheck disable=SC2086
    try 0 "compile at $bits bits" "$moec" compile "$model" --policy uniform --bits $bits $nested -o "$work/$bits.moec" --quiet
    try 0 "verify" "$moec" verify "$work/$bits.moec"
    try 0 "inspect" "$moec" inspect "$work/$bits.moec"
    says stdout "$bits bits: int$bits asymmetric nested g16" "codes of $bits bits"
    try 0 "run on the best kernels" "$moec" run "$work/$bits.moec" --prompt "The" --tokens 8 --cpu auto
    cp "$work/stdout" "$work/best"
    try 0 "run on the definition" "$moec" run "$work/$bits.moec" --prompt "The" --tokens 8 --cpu scalar
    if cmp -s "$work/stdout" "$work/best"; then
        pass "$bits bits: the same text"
    else
        fail "$bits bits: the same text"
    fi
done
# shellcheck disable=SC2086
try 0 "auto at 5 bits" "$moec" profile "$model" --data datasets/sample/calibration.txt --seq-len 32 --samples 32 --bits 2,5 \
    --quantizer auto --sensitivity none -o "$work/five.h5" --quiet
case $(attribute "$work/five.h5" quantizer_5) in
*symmetric) pass "chooses there too" ;;
*) fail "chooses there too" ;;
esac
try 0 "compile from it" "$moec" compile "$model" --profile "$work/five.h5" --policy uniform --bits 5 -o "$work/auto5.moec" --quiet
try 0 "inspect" "$moec" inspect "$work/auto5.moec"
says stdout "5=(linear|hqq)-" "provenance says what was chosen"

# ---- one bit ----

try 0 "compile experts at 1 bit" "$moec" compile "$model" --policy uniform --bits 1 --quantizer hqq --group 32 -o "$work/one.moec" --quiet
try 0 "verify" "$moec" verify "$work/one.moec"
try 0 "inspect" "$moec" inspect "$work/one.moec"
says stdout '1 bit: [0-9]+ experts' "inspect counts them"
try 0 "eval with the scalar kernels" "$moec" eval "$work/one.moec" --data datasets/sample/test.txt --seq-len 32 --samples 4 --cpu scalar --json --quiet
cp "$work/stdout" "$work/scalar.json"
try 0 "and with the best" "$moec" eval "$work/one.moec" --data datasets/sample/test.txt --seq-len 32 --samples 4 --json --quiet
if [ "$(number "$work/stdout" perplexity)" = "$(number "$work/scalar.json" perplexity)" ]; then
    pass "give the same perplexity"
else
    fail "give the same perplexity"
fi
try 0 "eval in int8, which leaves 1 bit to the floats" "$moec" eval "$work/one.moec" --data datasets/sample/test.txt --seq-len 32 \
    --samples 16 --arithmetic int8 --json --quiet
# shellcheck disable=SC2086 # options are words
try 0 "profile with 1 bit" "$moec" profile "$model" $windows --bits 1,2,4 --quantizer auto --sensitivity none -o "$work/one.h5" --json --quiet
cat >"$work/up.lua" <<'EOF'
return function(moec)
  local assignment = {}
  assert(moec.bitwidths[1] == 1, "1 bit was measured, so it is offered")
  for l = 1, moec.model.layers do
    assignment[l] = {}
    for e = 1, moec.model.experts do assignment[l][e] = {gate = 4, up = 1, down = 4} end
  end
  return assignment
end
EOF
try 0 "compile up at 1 bit alone" "$moec" compile "$model" --profile "$work/one.h5" --policy "$work/up.lua" -o "$work/up.moec" --quiet
try 0 "inspect" "$moec" inspect "$work/up.moec"
says stdout 'gate 4, up 1, down 4 bits' "inspect names the mixture"
try 2 "a dictionary at 1 bit" "$moec" profile "$model" --data datasets/sample/calibration.txt --quantizer log --bits 1,2 \
    -o "$work/x.h5"
says stderr "log: the quantizers outlier and log have only 2, 3, 4 or 8 bits" "is explained"

# ---- refused ----

try 2 "scales of scales without groups" "$moec" compile "$model" --policy uniform --bits 4 --scheme symmetric-nested \
    -o "$work/x.moec"
says stderr "give --group 16" "is explained"
try 2 "scales of scales beside auto" "$moec" profile "$model" --data datasets/sample/calibration.txt --quantizer auto \
    --scheme symmetric-nested --group 32 -o "$work/x.h5"
says stderr "leave out --scheme" "is explained"
try 2 "a dictionary at 5 bits" "$moec" profile "$model" --data datasets/sample/calibration.txt --quantizer log --bits 2,5 \
    -o "$work/x.h5"
says stderr "log: the quantizers outlier and log have only 2, 3, 4 or 8 bits" "is explained"
try 2 "the study of quantisers in groups of 16" "$moec" profile "$model" --data datasets/sample/calibration.txt \
    --study quantizers --group 16 -o "$work/x.h5"
says stderr "study 'quantizers': the quantizers outlier and log have" "is explained"

try 2 "an unknown quantizer" "$moec" profile "$model" --data datasets/sample/calibration.txt --quantizer gptq -o "$work/x.h5"
says stderr "gptq.*linear" "names what there is"
try 2 "auto with nothing to measure on" "$moec" compile "$model" --policy uniform --bits 4 --quantizer auto -o "$work/x.moec"
says stderr "auto needs data to measure on" "is explained"
try 2 "a quantizer beside a profile" "$moec" compile "$model" --policy marginal --profile "$work/auto.h5" --quantizer hqq -o "$work/x.moec"
says stderr "--[a-z]+ has no effect: the profile .* already fixes its value" "is explained"
try 1 "and nothing was written" test -e "$work/x.moec"

# ---- bundles of the older trellis code ----

# Written before --quantizer trellis meant shift codes, from random weights: make_random_checkpoint --preset small --layers 1
# --hidden 72 --heads 4 --kv-heads 2 --experts 4 --top-k 2 --ff 40 --vocab 64. Its text and export are those of then.
old=tests/fixtures/bundles/trellis.moec
try 0 "an older bundle is whole" "$moec" verify $old
try 0 "and can be inspected" "$moec" inspect $old
says stdout 'int2 trellis channel: gate 4, up 4, down 4' "inspect names its code"
for cpu in auto scalar; do
    for arithmetic in canonical int8; do
        try 0 "it runs, $cpu, $arithmetic" "$moec" run $old -p "some words" -n 40 --ignore-eos --ctx 64 --cpu $cpu \
            --arithmetic $arithmetic
        says stdout '^v v v v v a g B g B g B g B g B g B g B g B g B X z a Q Z f D Q Z i P K$' "with the text of then"
    done
done
try 0 "it is exported" "$moec" export $old -q -o "$work/old"
if [ "$(sha256sum <"$work/old/model.safetensors" | cut -c1-16)" = 9e8bc04deadef4c1 ]; then
    pass "with the weights of then"
else
    fail "with the weights of then"
fi

done_testing
