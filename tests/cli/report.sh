#!/bin/sh
# Plots and the report of a profile: written whole, the same every time, and laid out in a browser where there is one.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

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
    -o "$work/p.h5" --plots "$work/plots" --plot-format png,csv --report "$work/report.html" --quiet
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
says stderr 'it is a file, expected a folder' "is explained"
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

# The page reports on itself to a frame of the width in question: a window of the browser cannot be as narrow.
cat >"$work/check.js" <<'EOF2'
addEventListener("load", () => {
  const bad = [];
  const inBox = e => e.closest(".scroll") !== null && !e.classList.contains("scroll");
  const measure = when => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > width)
      bad.push(when + " page is " + document.documentElement.scrollWidth + " wide in " + width);
    for (const e of document.body.querySelectorAll("*")) {
      const box = e.getBoundingClientRect();
      if (!inBox(e) && e.tagName !== "SOURCE" && (box.right > width + 0.5 || box.left < -0.5))
        bad.push(when + " " + e.tagName + " " + (e.id || e.textContent.slice(0, 30)) + " from " + box.left + " to " + box.right);
    }
  };
  const images = [...document.images];
  Promise.all(images.map(i => i.decode().catch(() => bad.push("broken picture " + i.alt)))).then(() => {
    measure("closed");
    for (const i of images) {
      const box = i.getBoundingClientRect();
      if (i.naturalWidth === 0 || i.naturalHeight === 0 || box.width < 100 || box.height < 50)
        bad.push("missing picture " + i.alt);
      if (!i.alt || !document.getElementById(i.getAttribute("aria-describedby")))
        bad.push("picture without words " + i.alt);
      if (Math.abs(box.width / box.height / (i.naturalWidth / i.naturalHeight) - 1) > 0.02)
        bad.push("distorted picture " + i.alt);
      if (box.width > 1.02 * i.naturalWidth * (i.currentSrc.startsWith("data:image/png") ? 1 : 2))
        bad.push("enlarged picture " + i.alt);
    }
    for (const a of document.querySelectorAll("a[href^='#']"))
      if (!document.getElementById(a.getAttribute("href").slice(1)))
        bad.push("link to nowhere " + a.getAttribute("href"));
    const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
    if (new Set(ids).size !== ids.length)
      bad.push("an id twice");
    for (const d of document.querySelectorAll("details"))
      d.open = true;
    measure("open");
    for (const t of document.querySelectorAll("table"))
      if (t.rows.length < 2 || !t.querySelector("th[scope=col]"))
        bad.push("empty table");
    parent.postMessage("checked " + images.length + " pictures, " + document.querySelectorAll("table").length +
      " tables\n" + bad.map(b => "BAD " + b).join("\n"), "*");
  });
});
EOF2
{
    sed 's|</body>.*||' "$work/report.html"
    printf '<script>'
    cat "$work/check.js"
    printf '</script></body></html>\n'
} >"$work/checked.html"

browse() { # WIDTH
    cat >"$work/frame.html" <<EOF2
<!DOCTYPE html><body style="margin:0"><iframe src="checked.html" style="border:0" width="$1" height="900"></iframe><pre></pre>
<script>onmessage = m => document.querySelector("pre").textContent = m.data</script></body>
EOF2
    HOME="$work" timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
        --user-data-dir="$work/browser" --window-size=1400,1000 --virtual-time-budget=20000 --dump-dom \
        "file://$work/frame.html" >"$work/stdout" 2>"$work/stderr"
}

if ! command -v chromium >/dev/null; then
    skip "layout in a browser" "chromium is not installed"
elif ! browse 1280 || ! grep -q '<pre>' "$work/stdout"; then
    skip "layout in a browser" "chromium does not start here: $(tail -n 1 "$work/stderr" | cut -c 1-80)"
else
    for width in 1280 390; do
        browse $width
        says stdout 'checked [1-9][0-9]* pictures, [1-9][0-9]* tables' "the page loads at $width pixels"
        if grep -q 'BAD' "$work/stdout"; then
            fail "nothing overflows or is missing at $width pixels"
            grep 'BAD' "$work/stdout" | head -n 20 | sed 's/^/# /'
        else
            pass "nothing overflows or is missing at $width pixels"
        fi
    done
    # The check sees what it should: a page that is too wide, and a picture that is none.
    sed 's|<h1>|<h1 style="width:3000px"><img alt="x" src="data:image/png;base64,AAAA">|' "$work/checked.html" >"$work/wide.html"
    mv "$work/wide.html" "$work/checked.html"
    browse 390
    says stdout 'BAD closed page is' "the check finds overflow"
    says stdout 'BAD broken picture' "and missing pictures"
fi

done_testing
