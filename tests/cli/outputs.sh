#!/bin/sh
# Outputs: never an input under whatever name, never two at once, nothing left of killed runs, and said to be in place
# when only the last message fails.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

model=$work/model
try 0 "a random model" random_model "$model"
rm "$model/model.safetensors.index.json"
mv "$model"/model-*.safetensors "$model/model.safetensors"
cp datasets/sample/test.txt "$work/data.txt"
set -- --seq-len 16 --samples 32 --bits 2 --anyway --quiet
try 0 "a profile" "$moec" profile "$model" --data "$work/data.txt" "$@" -o "$work/p.h5"
try 0 "a bundle" "$moec" compile "$model" --policy uniform --bits 4 --copies 2 -o "$work/m.moec" --quiet
echo "return function(m) return require('assignment').uniform(m, 4) end" >"$work/my.lua"
ln "$model/model.safetensors" "$work/hard.bin"
ln -s "$work/p.h5" "$work/soft.h5"
ln -s "$model" "$work/link"
sums() {
    (cd "$work" && sha256sum model/* data.txt p.h5 m.moec my.lua)
}
sums >"$work/before"

# ---- an output that is an input ----

# refused NAME PATTERN VERB...: wrong usage, and every input is as it was.
refused() {
    name=$1
    pattern=$2
    shift 2
    try 2 "$name is refused" "$moec" "$@"
    says stderr "$pattern" "$name is explained"
    sums >"$work/after"
    same "$work/before" "$work/after" "$name leaves the inputs alone"
}
refused "weights" "would overwrite '.*', which is part of the input '.*model'" \
    compile "$model" --policy uniform --bits 4 -o "$model/model.safetensors"
refused "weights by another way" "is part of the input" \
    compile "$work/link" --policy uniform --bits 4 -o "$model/model.safetensors"
refused "a hard link to weights" "is part of the input" compile "$model" --policy uniform --bits 4 -o "$work/hard.bin"
refused "the config" "is part of the input" profile "$model" --data "$work/data.txt" "$@" --report "$model/config.json"
refused "the bundle as folder" "the same file as the input" export "$work/m.moec" -o "$work/m.moec"
refused "the profile" "the same file as --profile '.*p.h5'" compile "$model" --policy edgemoe --profile "$work/p.h5" --max-loss 5% -o "$work/p.h5"
refused "a link to the profile" "the same file as --profile" \
    compile "$model" --policy edgemoe --profile "$work/p.h5" --max-loss 5% -o "$work/soft.h5"
refused "the policy" "the same file as --policy" compile "$model" --policy "$work/my.lua" -o "$work/my.lua"
refused "the data" "the same file as --data" profile "$model" --data "$work/data.txt" "$@" -o "$work/data.txt"
refused "the data as heatmap" "^moec profile: --heatmap would" \
    profile "$model" --data "$work/data.txt" "$@" -o "$work/q.h5" --heatmap "$work/data.txt"
refused "the profile that is shown" "the same file as --show" profile --show "$work/p.h5" --heatmap "$work/p.h5"
refused "the bundle as trace" "the same file as the input" run "$work/m.moec" -p "The" -n 2 --trace "$work/m.moec"
try 2 "moec-run too" "$build/moec-run" "$work/m.moec" -p "The" -n 2 --trace "$work/m.moec"
refused "the prompt as trace" "the same file as --file" run "$work/m.moec" -f "$work/data.txt" -n 2 --trace "$work/data.txt"
refused "the bundle as answers" "the same file as the input" \
    eval "$work/m.moec" --data "$work/data.txt" --answers "$work/m.moec"
refused "the reference as answers" "is part of --reference" \
    eval "$work/m.moec" --data "$work/data.txt" --reference "$model" --answers "$model/config.json"
refused "the bundle as description" "the same file as the input" device "$work/m.moec" -o "$work/m.moec"
refused "the bundle as result" "the same file as the input" bench "$work/m.moec" -o "$work/m.moec"
ln "$work/m.moec" "$work/hard.moec"
ln -s "$work/m.moec" "$work/soft.moec"
for verb in "strip --copies 2" "predict --data $work/data.txt" "sparsify --data $work/data.txt" \
    "tune --data $work/data.txt --reference $model --max-loss 5%"; do
    for name in m hard soft; do
        # shellcheck disable=SC2086 # a verb and its options
        refused "${verb%% *} onto its input ($name)" "'.*$name.moec' exists: give --force" \
            ${verb%% *} "$work/m.moec" ${verb#* } -o "$work/$name.moec"
    done
    [ "${verb%% *}" != strip ] || continue
    # shellcheck disable=SC2086 # likewise
    refused "${verb%% *} without an output" "name the new bundle with -o OUT.moec, or give --force to write into" \
        ${verb%% *} "$work/m.moec" ${verb#* }
done
(
    trap '' XFSZ
    ulimit -f 2
    exec "$moec" strip "$work/m.moec" --copies 2 -o "$work/m.moec" --force 2>"$work/stderr"
)
try 0 "a full disk fails in place too" test $? -eq 1
sums >"$work/after"
same "$work/before" "$work/after" "and the input is as it was"
refused "one file twice" "which is already an output" \
    profile "$model" --data "$work/data.txt" "$@" -o "$work/new.h5" --report "$work/../$(basename "$work")/new.h5"
refused "the journal as heatmap" "output would overwrite '.*new.h5.journal', which --heatmap writes too" \
    profile "$model" --data "$work/data.txt" "$@" -o "$work/new.h5" --heatmap "$work/new.h5.journal"
try 1 "none of them wrote" test -e "$work/new.h5"

# A figure may be named as the data that stand beside it.
mkdir "$work/plots"
awk 'BEGIN { print "text" } { gsub(/"/, "\"\""); print "\"" $0 "\"" }' "$work/data.txt" >"$work/plots/recall.csv"
cp "$work/plots/recall.csv" "$work/recall.csv"
try 2 "a figure of the name of the data" "$moec" profile "$model" --data "$work/plots/recall.csv" "$@" -o "$work/r.h5" \
    --plots "$work/plots"
says stderr "plots would overwrite '.*recall.csv'" "is refused"
same "$work/recall.csv" "$work/plots/recall.csv" "and the data are as they were"

# A figure may not be what another option writes, nor may a trace; a trace has its row's name.
try 2 "a figure of the name of the heatmap" "$moec" profile --show "$work/p.h5" --heatmap "$work/plots/recall.svg" \
    --plots "$work/plots" --force
says stderr "plots would overwrite '.*recall.svg', which --heatmap writes too" "is refused"
try 2 "one file for many figures" "$moec" profile --show "$work/p.h5" --plots "$work/figure.png"
says stderr 'is the name of a single file: give a folder' "is refused"
mkdir "$work/traces"
trace=$work/traces/cache_25__hobbit.json
cp "$work/m.moec" "$trace"
# timed STATUS NAME BUNDLE OPTIONS...: a bench with traces ends with this status.
timed() {
    status=$1
    name=$2
    bundle=$3
    shift 3
    try "$status" "$name" "$moec" bench "$bundle" --modes cache --memory 25% --samples 1 --prompt-tokens 4 --tokens 2 --quiet \
        --traces "$work/traces" "$@"
}
timed 2 "a trace of the name of the bundle" "$trace"
says stderr "traces would overwrite '.*cache_25__hobbit.json', which is the same file as the input" "is refused"
same "$work/m.moec" "$trace" "and the bundle is as it was"
rm "$trace"
ln -s "$work/data.txt" "$trace"
cp "$work/data.txt" "$work/data.copy"
timed 2 "a trace of the name of a link to the data" "$work/m.moec" --data "$work/data.txt"
says stderr "traces would overwrite '.*cache_25__hobbit.json', which is the same file as --data" "is refused"
same "$work/data.copy" "$work/data.txt" "and the data are as they were"
rm "$trace"
timed 2 "a trace of the name of the result" "$work/m.moec" -o "$trace"
says stderr "traces would overwrite '.*cache_25__hobbit.json', which --output writes too" "is refused"
try 1 "and nothing was written" test -e "$trace"
timed 0 "a result beside the traces" "$work/m.moec" -o "$work/traces/result.json"
timed 0 "over traces of another run" "$work/m.moec"
try 0 "the trace" grep -q traceEvents "$trace"

try 0 "strip onto the bundle itself" "$moec" strip "$work/m.moec" --copies 2 -o "$work/m.moec" --force
try 0 "a new file in the model's folder" "$moec" compile "$model" --policy uniform --bits 4 -o "$model/new.moec" --quiet
try 2 "and again over it" "$moec" compile "$model" --policy uniform --bits 4 -o "$model/new.moec" --quiet
says stderr "'.*new.moec' exists: give --force to overwrite it" "takes --force"
try 0 "which says that the old one can go" "$moec" compile "$model" --policy uniform --bits 4 -o "$model/new.moec" --quiet --force
try 0 "a dry run writes nothing" "$moec" compile "$model" --policy uniform --bits 4 -o "$model/new.moec" --dry-run --quiet
: >"$work/empty.moec"
try 0 "an empty file holds nothing to lose" "$moec" compile "$model" --policy uniform --bits 4 -o "$work/empty.moec" --quiet
try 2 "a profile that is named like a plot" "$moec" profile "$model" --data "$work/data.txt" -o "$work/p.pdf"
says stderr "--output writes PROFILE.h5, but '.*p.pdf' ends with .pdf: choose a name that ends with .h5" "the ending is explained"
try 1 "a folder that is not there" "$moec" profile "$model" --data "$work/data.txt" -o "$work/none/p.h5"
says stderr "cannot write '.*none/p.h5' \(--output\): folder '.*none': No such file" "the folder is named"

# ---- two at once ----

flock "$work/.p.h5.moec-lock" true # the lock of a killed run is nobody's
try 0 "a lock that a killed run left is taken over" "$moec" profile "$model" --data "$work/data.txt" "$@" --sensitivity none \
    -o "$work/p.h5" --force
try 1 "and is gone afterwards" test -e "$work/.p.h5.moec-lock"
mkfifo "$work/go" "$work/held"
flock "$work/.p.h5.moec-lock" sh -c ": >'$work/held'; read -r _ <'$work/go'" &
holder=$!
read -r _ <"$work/held"
try 1 "a profile that another run is writing" "$moec" profile "$model" --data "$work/data.txt" "$@" -o "$work/p.h5" --force
says stderr "another run is writing '.*p.h5'" "says so"
: >"$work/p.h5.journal"
try 1 "its journal is the other's too" "$moec" profile "$model" --data "$work/data.txt" "$@" -o "$work/soft.h5" --force
says stderr "another run is writing" "whatever link leads to it"
rm "$work/p.h5.journal"
echo >"$work/go"
wait "$holder"
flock "$work/.c.moec.moec-lock" sh -c ": >'$work/held'; read -r _ <'$work/go'" &
holder=$!
read -r _ <"$work/held"
try 1 "a bundle that another run is writing" "$moec" compile "$model" --policy uniform --bits 4 -o "$work/c.moec" --force
says stderr "another run is writing '.*c.moec'" "says so too"
echo >"$work/go"
wait "$holder"

# ---- what killed runs left ----

# Its process id is that of a living process, as in a container where all runs have the same.
echo left >"$work/.c.moec.moec-tmp-$$-0"
try 2 "a compile that fails at once" "$moec" compile "$model" --policy edgemoe --profile "$work/p.h5" --max-loss 5% --group 32 -o "$work/c.moec"
try 0 "a compile to the same file" "$moec" compile "$model" --policy uniform --bits 4 -o "$work/c.moec" --quiet
try 1 "removes what a killed one left" test -e "$work/.c.moec.moec-tmp-$$-0"

# ---- the last message cannot be written ----

for verb in compile profile strip device; do
    rm -f "$work/out"
    case $verb in
    compile) set -- compile "$model" --policy uniform --bits 4 --copies 2 -q -o "$work/out" ;;
    profile) set -- profile "$model" --data "$work/data.txt" --seq-len 16 --samples 32 --bits 2 --anyway -q -o "$work/out" ;;
    strip) set -- strip "$work/closed.moec" --copies 2 -o "$work/out" ;;
    device) set -- device "$work/m.moec" --read-time 0.01 --compute-time 0.01 -q -o "$work/out" ;;
    esac
    if [ -w /dev/full ]; then
        "$moec" "$@" >/dev/full 2>"$work/full"
        try 0 "$verb with a full stdout fails with 1" test $? -eq 1
        cp "$work/full" "$work/stderr"
        says stderr "cannot write to standard output: No space left" "$verb says why"
    fi
    rm -f "$work/out"
    "$moec" "$@" >&- 2>"$work/closed"
    try 0 "$verb with a closed stdout fails with 1" test $? -eq 1
    cp "$work/closed" "$work/stderr"
    says stderr "cannot write to standard output: Bad file descriptor" "$verb says why"
    says stderr "'.*/out' was written and is complete" "$verb says that the file is in place"
    try 0 "$verb: and so it is" test -s "$work/out"
    [ $verb != compile ] || cp "$work/out" "$work/closed.moec"
done
try 0 "the bundle is whole" "$moec" verify "$work/closed.moec"
try 0 "the profile is whole" "$moec" profile --show "$work/p.h5"
try 1 "a failure before anything is written" "$moec" compile "$model" --policy "$work/none.lua" -o "$work/c.moec" --force
if grep -q 'in place' "$work/stderr"; then fail "says nothing of the file that was there"; else pass "says nothing of the file that was there"; fi

done_testing
