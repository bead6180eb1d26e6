#!/bin/sh
# Plots and the report of a profile: written whole, the same every time, and laid out in a browser where there is one.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
# shellcheck source=tests/cli/page.tap
. tests/cli/page.tap

model=datasets/sample/model
# A name that would be markup, were it not escaped.
data="$work/a <b>&\"c'.txt"
head -c 60000 datasets/sample/calibration.txt >"$data"

# ---- writing ----

try 2 "a format that is none" "$moec" profile $model --data "$data" --plots "$work/plots" --plot-format png,gif
says stderr "'gif', expected png, svg, pdf or csv" "is named before anything is measured"
try 2 "formats without a folder" "$moec" profile $model --data "$data" --plot-format png -o "$work/p.h5"
says stderr 'needs --plots' "the message says what is missing"

try 0 "profile with plots and report" "$moec" profile $model --data "$data" --seq-len 32 --samples 32 --bits 2 \
    --sensitivity-samples 4 -o "$work/p.h5" --plots "$work/plots" --plot-format png,csv --report "$work/report.html" --quiet
says stdout "wrote '$work/report.html'" "says what it wrote"
for name in loss_by_bits sensitivity_int2 sorted_int2 tokens load; do
    try 0 "$name is there as PNG and CSV" test -s "$work/plots/$name.png" -a -s "$work/plots/$name.csv"
done
try 1 "and in no other format" test -e "$work/plots/load.svg"

try 0 "the same from the profile" "$moec" profile --show "$work/p.h5" --plots "$work/plots2" --report "$work/again.html"
if cmp -s "$work/report.html" "$work/again.html" && cmp -s "$work/plots/load.png" "$work/plots2/load.png"; then
    pass "is the same byte for byte"
else
    fail "is the same byte for byte"
fi
try 0 "plots are png, svg and csv unless asked otherwise" test -s "$work/plots2/load.svg"
try 1 "and not pdf" test -e "$work/plots2/load.pdf"
without=$(grep -L ',' "$work"/plots2/*.csv)
if [ -z "$without" ]; then
    pass "every CSV has columns"
else
    fail "every CSV has columns"
fi
try 1 "a folder that cannot be" "$moec" profile --show "$work/p.h5" --plots "$work/p.h5"
says stderr 'writes into a folder, but '.*' is not a folder' "is explained"
try 1 "a report that cannot be written" "$moec" profile --show "$work/p.h5" --report "$work/missing/r.html"
try 1 "leaves nothing" test -e "$work/missing"

# ---- the page ----

try 0 "names from outside are escaped" grep -q 'a &lt;b&gt;&amp;&quot;c&#39;.txt' "$work/report.html"
try 1 "and never stand as markup" grep -q '<b>&' "$work/report.html"
try 1 "the page needs no network" grep -Eq '(src|href|srcset)="?(https?:|//)|@import|url\(' "$work/report.html"
try 1 "and no scripts" grep -q '<script' "$work/report.html"
for section in measured verdict coverage sensitivity routing weights cost; do
    try 0 "section $section" grep -q "<section id=\"$section\"" "$work/report.html"
done
try 0 "what was not measured is listed" grep -q 'Not measured' "$work/report.html"

if fits_screens "$work/report.html"; then
    # The check sees what it should: a page that is too wide, and a picture that is none.
    sed 's|<h1>|<h1 style="width:3000px"><img alt="x" src="data:image/png;base64,AAAA">|' "$work/checked.html" >"$work/wide.html"
    mv "$work/wide.html" "$work/checked.html"
    browse 390
    says stdout 'BAD closed page is' "the check finds overflow"
    says stdout 'BAD broken picture' "and missing pictures"
fi

done_testing
