#!/bin/sh
# The report of a compile: every part is there, with and without a bundle, and it is written whole, over no input.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
# shellcheck source=tests/cli/page.tap
. tests/cli/page.tap

# A name that would be markup, were it not escaped.
model="$work/a <b>&\"c'"
cp -r datasets/sample/model "$model"

# compile OPTION...: with the profile.
# shellcheck disable=SC2317 # called by try
compile() {
    "$moec" compile "$model" --profile "$work/p.h5" "$@"
}
# parts TITLE FILE: the page has its sections and needs nothing beside itself.
parts() {
    for part in result curve bytes bits certificate settings; do
        try 0 "$1: section $part" grep -q "<section id=\"$part\"" "$2"
    done
    try 1 "$1: no network" grep -Eq '(src|href|srcset)="?(https?:|//)|@import|url\(' "$2"
    try 1 "$1: no scripts" grep -q '<script' "$2"
    try 0 "$1: the model's name is escaped" grep -q 'a &lt;b&gt;&amp;&quot;c&#39;' "$2"
    try 1 "$1: and never stands as markup" grep -q '<b>&' "$2"
}

try 0 "profile" "$moec" profile "$model" --data datasets/sample/calibration.txt --seq-len 64 --samples 32 --bits 2 \
    --sensitivity none -o "$work/p.h5" --quiet

cat >"$work/mixed.lua" <<'EOF2'
return function(moec)
  local candidate = require("assignment").uniform(moec, 4)
  moec.evaluate(candidate)
  candidate[2][3] = {gate = 3, up = 4, down = 8}
  moec.evaluate(candidate)
  return candidate
end
EOF2
echo "return function(m) return require('assignment').uniform(m, 2) end" >"$work/two.lua"

# ---- a bundle ----

try 0 "a bundle with its report" compile --max-loss 10% --policy "$work/mixed.lua" -o "$work/m.moec" --report "$work/r.html" --quiet
says stdout "^report: $work/r.html" "says where it is"
parts "of a bundle" "$work/r.html"
try 0 "codes of single plans are named" grep -q 'that treat all experts alike, the smallest within the target on the search part has int[348] symmetric' "$work/r.html"
for figure in curve bytes bits bits_gate bits_down; do
    try 0 "figure $figure" grep -q "<figure id=\"figure-$figure\"" "$work/r.html"
done
for bits in 2 3 4 8; do
    try 0 "all experts at $bits bits" grep -q "<td>all in int$bits symmetric channel</td>" "$work/r.html"
done
try 0 "what the search did not measure is marked" grep -q '<td>search, for comparison</td>' "$work/r.html"
try 0 "the test of the certificate" grep -q '<td>passed, written</td>' "$work/r.html"
size=$(wc -c <"$work/m.moec")
try 0 "the parts add up to the size of the file" \
    grep -q "the whole file</th><td></td><td></td><td></td><td></td><td>$size</td>" "$work/r.html"
compile --max-loss 10% --policy "$work/mixed.lua" -o "$work/m2.moec" --report "$work/r2.html" --quiet >"$work/stdout" 2>&1
same "$work/r.html" "$work/r2.html" "the same compile gives the same page"
same "$work/m.moec" "$work/m2.moec" "and the same bundle"
compile --max-loss 10% --policy "$work/mixed.lua" -o "$work/m3.moec" --quiet >"$work/stdout" 2>&1
same "$work/m.moec" "$work/m3.moec" "a bundle does not depend on its report"

fits_screens "$work/r.html"

# The second plan of the sequence is written, as the third loses too much.
cat >"$work/sequence.lua" <<'EOF2'
return function(moec)
  local uniform = require("assignment").uniform
  return {sequence = {uniform(moec, 8), uniform(moec, 4), uniform(moec, 2)}}
end
EOF2
try 0 "a sequence of plans" compile --max-loss 10% --policy "$work/sequence.lua" -o "$work/s.moec" --report "$work/s.html" --quiet
for result in passed "passed, written" failed; do
    try 0 "a test that is $result" grep -q "<td>$result</td>" "$work/s.html"
done
size=$(wc -c <"$work/s.moec")
try 0 "the plan chosen is the one written" \
    grep -q "The plan chosen takes $(awk "BEGIN { printf \"%.3f\", $size / 1e6 }") MB" "$work/s.html"
try 0 "and so are its bytes" grep -q "the whole file</th><td></td><td></td><td></td><td></td><td>$size</td>" "$work/s.html"

# ---- none ----

try 0 "a plan with its report" compile --max-loss 10% --policy "$work/mixed.lua" --dry-run --report "$work/dry.html" --quiet
parts "of a plan" "$work/dry.html"
try 0 "there is no certificate" grep -q 'the certificate part of the data was not read' "$work/dry.html"
try 1 "a target that nothing meets" compile --max-loss 1% --policy "$work/two.lua" -o "$work/no.moec" --report "$work/miss.html" --quiet
says stderr "miss.html' was written" "names the report"
parts "of a miss" "$work/miss.html"
try 0 "with the reason" grep -q 'No bundle:</strong> .*gave an assignment with a loss of' "$work/miss.html"
try 0 "without data" "$moec" compile "$model" --policy uniform --bits 4 -o "$work/u.moec" --report "$work/u.html" --quiet
parts "without data" "$work/u.html"
try 0 "there is no loss" grep -q 'No loss was measured' "$work/u.html"
try 0 "but where the bytes go" grep -q '<figure id="figure-bytes"' "$work/u.html"

# ---- files ----

# refused TITLE PATTERN FILE: as a report.
refused() {
    before=$(cksum "$3" 2>/dev/null)
    try 2 "$1 as report" compile --max-loss 10% --policy "$work/mixed.lua" -o "$work/x.moec" --report "$3" --quiet
    says stderr "$2" "is refused with the reason"
    if [ "$(cksum "$3" 2>/dev/null)" = "$before" ]; then pass "and kept"; else fail "and kept"; fi
}
refused "the profile" "the same file as --profile" "$work/p.h5"
refused "the weights" "part of the input" "$model/model.safetensors"
refused "the bundle" "already an output" "$work/x.moec"
try 1 "a report in no folder" compile --max-loss 10% --policy "$work/mixed.lua" -o "$work/x.moec" --report "$work/none/r.html" --quiet
says stderr "none" "is refused before the search"
try 1 "and no bundle is written" test -e "$work/x.moec"
try 1 "a report that is a folder" compile --max-loss 10% --policy "$work/mixed.lua" --dry-run --report "$work" --quiet
left=$(find "$work" -maxdepth 1 -name '.*lock*')
if [ -z "$left" ]; then pass "no lock is left"; else fail "no lock is left: $left"; fi

done_testing
