#!/bin/sh
# moec device: what it measures is written as JSON that the reader takes, and shown to people.
# It compares times: runs alone.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

fewer_layers 2
model=$sample
try 0 "a bundle with copies" "$moec" compile "$model" --policy uniform --bits 3 --copies 2,8,16 -o "$work/m.moec" --quiet
try 0 "measure" "$moec" device "$work/m.moec" -o "$work/d.json" --read-time 0.002 --compute-time 0.05 --quiet
says stdout "^Storage" "a table of storage"
says stdout "Records of 16 bits" "for each size of record"
says stdout "^ +32 " "up to 32 at once"
says stdout "at once: [0-9.]+ .position [0-9]+.$" "and of a token's parts"
says stdout "matrix products alone +[0-9.]+   a token takes -?[0-9]+% longer, or -?[0-9]+% without attention" "beside its products alone"
says stdout "a check takes [0-9.]+ ns a byte" "and the check"
says stdout "^  int8 asymmetric nested g64 +[0-9.]+ +[0-9.]+" "and each projection in each codec"
cp "$work/d.json" "$work/stdout"
says stdout '"format": "moec device"' "the description says what it is"
says stdout '"description": "(direct|cached) \(auto: .* through' "and what --io auto chose and why"
for bits in 2 3 8 16; do
    says stdout "\"bits\": $bits," "an expert of $bits bits was timed"
done
if [ "$(grep -c '"moe": ' "$work/d.json")" -eq "$("$moec" inspect "$work/m.moec" --json | awk '/"layers"/ { print $2 + 0; exit }')" ]; then
    pass "every layer is described"
else
    fail "every layer is described"
fi
# One loop for each processor takes what the measurement needs.
loops=
for _ in $(seq "$(nproc)"); do
    sh -c 'while :; do :; done' &
    loops="$loops $!"
done
try 0 "measure beside other programs" "$moec" device "$work/m.moec" -o "$work/busy.json" --read-time 0.002 --compute-time 0.2
# shellcheck disable=SC2086 # process numbers
kill $loops
says stderr "other programs took [0-9.]+ of this machine's [0-9]+ processors" "it is said that others ran"
try 0 "imagined storage" "$moec" device --file "$work/m.moec" -o "$work/e.json" --emulate-storage 550MB/s,80us \
    --compute-time 0.05 --threads 1 --cpu scalar
says stdout "emulated 550 MB/s, 80 us" "is named"
says stdout "scalar, 1 thread\)" "with the machine that computed"
cp "$work/e.json" "$work/stdout"
says stdout '"bytes_per_second": 550000000' "its bandwidth is written"
says stdout '"latency_ns": 80000' "and its latency"
says stdout '"threads": 1' "and the threads"

# moec-run, which links nothing of moec's own libraries, measures and writes the same.
names() {
    sed -n 's/^ *"\([a-z_0-9]*\)":.*/\1/p' "$1"
}
try 0 "moec-run describes a device" "$build/moec-run" --describe-device "$work/m.moec" -o "$work/r.json" --read-time 0.002 \
    --compute-time 0.05 --quiet
says stdout "^Storage" "with the same tables"
names "$work/d.json" >"$work/names"
names "$work/r.json" >"$work/names-of-run"
same "$work/names-of-run" "$work/names" "its description has the names of moec's, in their order"
try 0 "imagined storage, by moec-run" "$build/moec-run" --describe-device --file "$work/m.moec" -o "$work/f.json" \
    --emulate-storage 550MB/s,80us --compute-time 0.05 --threads 1 --cpu scalar
# Without what is measured they are the same bytes.
for name in e f; do
    sed 's/\(["_]ns\|_byte\|_position\)": [0-9.e-]*/\1": measured/' "$work/$name.json" >"$work/$name.rest"
done
same "$work/f.rest" "$work/e.rest" "is described as by moec"
try 0 "a trace to simulate" "$moec" run "$work/m.moec" -p "The old miller" -n 8 --trace "$work/t.json"
try 0 "moec simulate reads moec-run's description" "$moec" simulate "$work/t.json" --model "$work/m.moec" \
    --device-file "$work/r.json" --evict lru --predict none --memory 25% --quiet
says stdout "us|ms" "and predicts times from it"
try 2 "moec-run without a bundle" "$build/moec-run" "$work/m.moec" --file "$work/m.moec" --describe-device -o "$work/x.json"
says stderr "^moec-run --describe-device: name one bundle" "names itself"
try 0 "a prompt may be that word" "$build/moec-run" "$work/m.moec" -p --describe-device -n 2
try 0 "its help" "$build/moec-run" --describe-device --help
says stdout "^  moec-run --describe-device model.moec -o device.json" "names the program"

# ---- before there is a bundle: a model's shapes ----
try 0 "a folder with a config alone" mkdir "$work/shape"
cp "$model/config.json" "$work/shape"
try 0 "shapes of a model" "$moec" device --shape "$work/shape" -o "$work/s.json" --emulate-storage 100MB/s --compute-time 0.05 -q
says stdout "^  +8 +[0-9.]+ kB" "experts are timed in what a search would store"
names "$work/s.json" | sort -u >"$work/names-of-shape"
names "$work/e.json" | sort -u >"$work/names-of-emulated"
same "$work/names-of-shape" "$work/names-of-emulated" "the description has the names of a bundle's"
if [ "$(grep -c '"moe": ' "$work/s.json")" -eq 2 ]; then pass "of every layer"; else fail "of every layer"; fi
for codec in 'int2 shift channel' 'int4 shift channel' 'int8 asymmetric nested g64' bf16; do
    if [ "$(grep -c "\"codec\": \"$codec\"" "$work/s.json")" -eq 2 ]; then pass "$codec is timed by projection"; else fail "$codec"; fi
done
set -- "$work"/*.shape*
if [ -e "$1" ]; then fail "nothing is left beside it: $*"; else pass "nothing is left beside it"; fi
try 0 "a probe for another device" "$moec" device --shape "$work/shape/config.json" --probe "$work/p.moec"
says stdout "moec-run --describe-device .*p.moec" "names the command there"
try 0 "is a whole bundle" "$moec" verify "$work/p.moec"
try 0 "moec-run describes the device with it" "$build/moec-run" --describe-device "$work/p.moec" -o "$work/q.json" \
    --read-time 0.002 --compute-time 0.05 -q
for name in q s; do
    sed -n '/"compute"/,$p' "$work/$name.json" >"$work/$name.compute"
    names "$work/$name.compute" >"$work/names-of-$name"
done
same "$work/names-of-q" "$work/names-of-s" "as moec describes the shapes"
try 1 "shapes, by moec-run" "$build/moec-run" --describe-device --shape "$work/shape" -o "$work/x.json"
says stderr "write a probe with 'moec device --shape" "names what would do"
try 2 "a bundle and shapes" "$moec" device "$work/m.moec" --shape "$work/shape" -o "$work/x.json"
says stderr "name one bundle" "is refused"
try 2 "a probe of a bundle" "$moec" device "$work/m.moec" --probe "$work/x.moec" -o "$work/x.json"
says stderr "name the model with --shape" "is refused"
try 1 "shapes of what is no model" "$moec" device --shape "$work" -o "$work/x.json"

try 2 "without a bundle" "$moec" device -o "$work/x.json"
says stderr "name one bundle" "it says what is missing"
try 2 "without an output" "$moec" device "$work/m.moec"
says stderr "with -o DEVICE.json" "it says what is missing"
try 2 "storage that is none" "$moec" device "$work/m.moec" -o "$work/x.json" --emulate-storage fast
says stderr "cannot read 'fast' as storage" "it is quoted"
try 1 "a bundle that is none" "$moec" device "$model/config.json" -o "$work/x.json"
head -c 200000 "$work/m.moec" >"$work/cut.moec"
try 1 "a bundle that is cut off" "$moec" device "$work/cut.moec" -o "$work/x.json"
if [ -e "$work/x.json" ]; then
    fail "failures leave no description"
else
    pass "failures leave no description"
fi
done_testing
