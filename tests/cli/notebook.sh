#!/bin/sh
# The long table of experts, and docs/notebook.py, which draws the heatmap from the HDF5 file.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
model=datasets/sample/model

try 0 "a profile with its table" "$moec" profile $model --data datasets/sample/calibration.txt --samples 32 --seq-len 64 --bits 2,8 \
    --sensitivity exact --sensitivity-samples 4 -o "$work/p.h5" --table "$work/experts.csv" --quiet
try 0 "the columns" sh -c "head -n 1 '$work/experts.csv' | grep -qx 'layer,expert,bits,loss,low,high,kl,tokens'"
try 0 "a line for each of 96 experts at 2 bitwidths" sh -c "[ \"\$(wc -l <'$work/experts.csv')\" -eq 193 ]"
# shellcheck disable=SC2016 # awk's fields
try 0 "every loss is within its interval" awk -F, 'NR > 1 && $4 != "" && !($5 <= $4 && $4 <= $6) { exit 1 }' "$work/experts.csv"
# shellcheck disable=SC2016 # awk's fields
try 0 "layers and experts count from 0" awk -F, 'NR == 2 && !($1 == 0 && $2 == 0 && $3 == 2) { exit 1 }' "$work/experts.csv"
try 0 "the same table of the file" "$moec" profile --show "$work/p.h5" --table "$work/again.csv"
try 0 "is the same" cmp "$work/experts.csv" "$work/again.csv"
try 0 "figures without single experts" "$moec" profile $model --data datasets/sample/calibration.txt --samples 32 \
    --seq-len 64 --sensitivity none --plots "$work/plots" --plot-format csv --report "$work/r.html" --quiet
try 0 "are there" test -s "$work/plots/recall.csv" -a -s "$work/r.html"
try 2 "a table that is no CSV" "$moec" profile --show "$work/p.h5" --table "$work/experts.png"
try 0 "forty lines of Python" sh -c "[ \"\$(wc -l <docs/notebook.py)\" -le 40 ]"
if /usr/bin/python3 -c 'import h5py, pandas, matplotlib' 2>/dev/null; then
    try 0 "docs/notebook.py draws" /usr/bin/python3 docs/notebook.py "$work/p.h5" "$work/fig7a.png"
    says stdout '^calibration.txt: the baseline loses [-0-9.]+%' "and says what it read"
    # The most sensitive expert by KL is the one of the table.
    top=$(awk -F, 'NR > 1 && $3 == 2 && $7 > most { most = $7; top = $1 " +" $2 } END { print top }' "$work/experts.csv")
    says stdout "^$top " "with the same experts as the table"
    try 0 "a figure" test -s "$work/fig7a.png"
else
    skip "docs/notebook.py draws" "python3-h5py, python3-pandas or python3-matplotlib is not installed"
fi

if /usr/bin/python3 -c 'import h5py' 2>/dev/null; then
    cat >"$work/texts.py" <<'EOF'
import sys
import h5py

n = 0
def check(name, thing):
    global n
    for key, value in thing.attrs.items():
        kind = getattr(getattr(value, "dtype", None), "kind", "")
        # The standard of dimension scales gives these two a fixed length.
        if key not in ("CLASS", "NAME") and (isinstance(value, bytes) or kind == "S"):
            sys.exit(f"{name} {key}: {value!r} is not a str")
        n += isinstance(value, str)

with h5py.File(sys.argv[1], "r+") as f:
    check("/", f)
    f.visititems(check)
    if "labels" in f["studies/predict/recall.predictor"].attrs:
        print(*f["studies/predict/recall.predictor"].attrs["labels"], sep="|")
    for i in range(100):
        f.attrs[f"note_{i}"] = f"remark {i} \N{GREEK SMALL LETTER ALPHA}"
    f.attrs["data_name"] = "renamed \N{GREEK SMALL LETTER ALPHA}.txt"
print(n, "texts")
EOF
    cp "$work/p.h5" "$work/edited.h5"
    try 0 "h5py gives texts as str" /usr/bin/python3 "$work/texts.py" "$work/edited.h5"
    says stdout '^path table\|frequency\|next-layer gate$' "labels too"
    says stdout '^[1-9][0-9][0-9] texts$' "every attribute of every dataset"
    try 1 "an edited profile" "$moec" profile --show "$work/edited.h5"
    says stderr 'trust-profile' "needs trust"
    try 0 "and what h5py wrote is read" "$moec" profile --show "$work/edited.h5" --trust-profile --report "$work/edited.html"
    try 0 "the new name too" grep -q 'renamed α.txt' "$work/edited.html"
else
    skip "h5py gives texts as str" "python3-h5py is not installed"
fi

done_testing
