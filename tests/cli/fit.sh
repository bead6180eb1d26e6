#!/bin/sh
# A bundle for a device, by one command: what memory it is refused in, what it finds, that what is found is run, and
# that an interrupted fit ends with the same bytes.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
# shellcheck source=tests/cli/page.tap
. tests/cli/page.tap
sample=datasets/sample/model
data=datasets/sample/calibration.txt
check() {
    if awk "BEGIN { exit !($2) }"; then pass "$1"; else fail "$1: $2"; fi
}
number() {
    sed -n "s/^ *\"$1\": *\([-0-9.e+]*\).*/\1/p" "$work/stdout" | head -n 1
}
refused() {
    words=$1
    shift
    try "$@"
    says stderr "$words" "says why"
}
measure='--max-loss 5% --samples 48 --seq-len 32 --ctx 128 -q'
# shellcheck disable=SC2086,SC2317 # words; called by try
fit() {
    fit_model "$sample" "$@"
}
# shellcheck disable=SC2086,SC2317 # as above
fit_model() {
    model=$1
    shift
    "$moec" fit "$model" --data "$data" $measure "$@"
}

# steady FILE: the times of computing that a description has become those of an idle machine, so that fits by it choose
# alike under any load.
steady() {
    for time in attention_ns=12000 attention_ns_per_position=30 router_ns=750 mlp_ns=18000 experts_ns=27000 embed_ns=130 \
        head_ns=31000 token_ns=236000 products_ns=153000 compute_ns=5000 check_ns=530 check_ns_per_byte=0.054 \
        move_ns_per_byte=0.052 ns=2500 decide_ns=460 predict_ns=900 preload_ns=16000 first_ns=3400 next_ns=2200 lone_ns=3400; do
        echo "s/\"${time%=*}\": *[-0-9.e+]*/\"${time%=*}\": ${time#*=}/"
    done >"$work/steady.sed"
    sed -i -f "$work/steady.sed" "$1"
}

# ---- what is refused ----
refused 'memory is missing: give the memory' 2 "no memory" "$moec" fit "$sample" --data "$data" --max-loss 2% --storage sd -o "$work/x"
refused 'one of two options' 2 "no device" "$moec" fit "$sample" --data "$data" --max-loss 2% --memory 64MiB -o "$work/x"
refused "cannot read --storage 'tape'" 2 "an unknown storage" fit --memory 64MiB --storage tape -o "$work/x.moec"
refused 'moec-run takes at least .*; give --memory [0-9.]*MiB' 1 "a memory below the floor" fit --memory 4MiB --storage sd -o "$work/x.moec"
least=$(sed -n 's/.*moec-run takes at least \([0-9.]*\) MiB.*/\1/p' "$work/stderr")
refused ', or --ctx ' 1 "a context that is too long for it" "$moec" fit "$sample" --data "$data" --max-loss 5% --ctx 1024 \
    --memory 11MiB --storage sd -o "$work/x.moec"
refused "the experts of a fit have hardly more than 2 bits.* --bits 4 --copies 2', then 'moec tune'" 2 "a prefill" \
    fit --memory 64MiB --storage sd --with route,skip,prefill -o "$work/x.moec"
refused 'searches route and skip together' 2 "a route alone" fit --memory 64MiB --storage sd --with route -o "$work/x.moec"
head -c 2000 "$data" >"$work/short.txt"
refused 'short.txt' 1 "a text that is too short" "$moec" fit "$sample" --data "$work/short.txt" --max-loss 5% --memory 64MiB \
    --storage sd -q -o "$work/x.moec"
until_says stderr 'note: this takes' "$moec" fit "$sample" --data "$work/short.txt" --max-loss 5% --samples 16777216 --seq-len 16 \
    --memory 64MiB --storage sd -o "$work/long.moec"
says stderr 'moec fit: note: this takes about [0-9]+ h .* if the data has 16777216 windows .*; --samples 256 takes about ' \
    "one that could take hours says so"
refused 'does not support models with an encoder' 1 "a model with an encoder" "$moec" fit tests/fixtures/families/switch \
    --data "$data" --max-loss 5% --memory 64MiB --storage sd -q -o "$work/x.moec"
refused 'or with layers that route by token' 1 "a model that routes by token" "$moec" fit tests/fixtures/families/hash_moe \
    --data "$data" --max-loss 5% --memory 64MiB --storage sd -q -o "$work/x.moec"
if [ -e "$work/x.moec" ]; then fail "nothing is written"; else pass "nothing is written"; fi

# ---- what the refusal of a prefill names ----
try 0 "a bundle of more bits, with a copy" "$moec" compile "$sample" --data "$data" --policy uniform --bits 4 --copies 2 \
    --samples 32 --seq-len 32 -q -o "$work/copy.moec"
try 0 "is tuned with a prefill" "$moec" tune "$work/copy.moec" --reference "$sample" --data "$data" --samples 32 --seq-len 32 \
    --with prefill --max-loss 50% --force -q
says stdout '^  prefill  *unpopular:' "which it has"

# ---- everything fits into memory ----

# begun OUTPUT: its weights were fitted before.
begun() {
    cp "$made" "$1.journal"
}
try 0 "weights are fitted" fitted_journal
begun "$work/whole.moec"
try 0 "a device that holds every expert" fit --memory 64MiB --storage 100MB/s,200us --with skip,route --json -o "$work/whole.moec"
says stdout '"route": ""' "nothing decides"
check "the loss is proven" "$(number loss_high) <= 0.05"
check "nothing is read" "$(number read_bytes_per_token) == 0"
try 0 "verify" "$moec" verify "$work/whole.moec"
try 0 "inspect" "$moec" inspect "$work/whole.moec"
says stdout '^Fit .moec fit.' "shows what it was fitted for"
says stdout '^  for        --memory 64.0 MiB' "with the memory"

refused 'moec fit made .* for one device' 2 "tune has nothing to add" "$moec" tune "$work/whole.moec" --reference "$sample" \
    --data "$data" --max-loss 5% -q -o "$work/x.moec"

# ---- less than that, by a description ----
"$moec" doctor "$work/whole.moec" --ctx 128 --json >"$work/need.json"
floor=$(sed -n 's/.*"memory_least_bytes": *\([0-9]*\).*/\1/p' "$work/need.json" | head -n 1)
memory=$((floor / 1024 + 200))KiB
check "a fit asks for no more memory than the least that its bundle runs in" "$least > 5 && $least <= $floor / 1048576 + 0.05"
try 0 "a device as moec device describes it" "$moec" device "$work/whole.moec" --emulate-storage 50MB/s,200us \
    --compute-time 0.2 -q -o "$work/card.json"
steady "$work/card.json"
begun "$work/some.moec"
try 0 "a device that holds some" fit --memory $memory --device-file "$work/card.json" -o "$work/some.moec"
says stdout '^next: moec-run .* --memory' "names the next command"
says stdout 'with half the memory' "and what other devices would take"
check "on twenty lines" "$(wc -l <"$work/stdout") <= 20"
says stdout '^  [* ] plan [1-5]  .*  none$' "bits alone are tested first"
evict=$(sed -n 's/.*--evict \([a-z]*\) --predict.*/\1/p' "$work/stdout")
try 0 "moec-run takes the settings" "$build/moec-run" "$work/some.moec" -p "Once" -n 8 --ctx 128 --memory $memory --stats
says stderr "eviction $evict" "the eviction of the fit"
try 0 "what it has" "$moec" inspect "$work/some.moec"
if grep -Eq '^  copy 1: |^  precision ' "$work/stdout"; then fail "no low copies"; else pass "no low copies"; fi
# shellcheck disable=SC2317 # called by try
slow() {
    "$build/moec-run" "$work/some.moec" -p "Once upon a time" -n 32 --ctx 128 --memory "$memory" --emulate-storage 5MB/s,5ms "$@"
}
try 0 "on slower storage than it was fitted for" slow --stats
says stderr 'less than half as fast as the storage .* fitted for: [0-9.]+ MB/s here, fitted for 50 MB/s after 200 us' "says so"
says stderr 'most of the time is waiting: moec fit makes the fastest bundle for this device' "and that it waits"
try 0 "as JSON" slow --stats json
says stderr '"fitted_storage": {"bytes_per_second": 50000000, "latency_ns": 200000, "here": "slower"}' "says which"
try 0 "on faster storage" "$build/moec-run" "$work/some.moec" -p "Once upon a time" -n 32 --ctx 128 --memory $memory \
    --emulate-storage 1GB/s --stats json
# On a busy machine reads take longer than the storage does (test_run_stats has the rule).
says stderr '"fitted_storage": {"bytes_per_second": 50000000, "latency_ns": 200000, "here": "(faster|alike)"}' "is not slower"
try 0 "bench takes them too" "$moec" bench "$work/some.moec" --memory 60% --modes cache --samples 2 --tokens 4 -q
says stdout "^cache 60% $evict" "in its row"

begun "$work/unsure.moec"
refused 'the safest of [1-8] combinations, plan [1-5] without decisions, has a loss of .*would prove the target in four of five' 1 \
    "a proof that few windows do not give" "$moec" fit "$sample" --data "$data" --samples 48 --seq-len 32 --ctx 128 \
    --max-loss 0.6% --confidence 0.9999 --memory 64MiB --device-file "$work/card.json" -q -o "$work/unsure.moec"

# ---- one expert a token: bits alone ----

# Fewer layers take less time. The least memory, $least in MiB, holds some of their experts; of three layers it held all.
cp -r "$sample" "$work/less"
sed 's/"num_hidden_layers": 6/"num_hidden_layers": 4/' "$sample/config.json" >"$work/less/config.json"
cp -r "$work/less" "$work/one"
sed 's/"num_experts_per_tok": 4/"num_experts_per_tok": 1/' "$work/less/config.json" >"$work/one/config.json"
least_memory() {
    least=$(fit_model "$1" --memory 4MiB --storage sd -o "$work/x.moec" 2>&1 | sed -n 's/.*give --memory \([0-9.]*\)MiB.*/\1/p')
}
least_memory "$work/one"
try 0 "a model with one expert a token" fit_model "$work/one" --memory "${least}MiB" --storage 50MB/s,200us --json \
    -o "$work/single.moec"
if grep -q 'cache-prior' "$work/stdout"; then fail "plans of bits are compared alone"; else pass "plans of bits are compared alone"; fi
check "within the loss" "$(number loss_high) <= 0.05"
try 0 "a whole bundle" "$moec" verify "$work/single.moec"

# ---- a description by the model's shapes ----
try 0 "a description without a bundle" "$moec" device --shape "$work/less/config.json" --emulate-storage 50MB/s,200us \
    --compute-time 0.2 -q -o "$work/shape.json"
steady "$work/shape.json"
least_memory "$work/less"
# shellcheck disable=SC2317 # called by try
fit_less() {
    fit_model "$work/less" --memory "${least}MiB" --device-file "$work/shape.json" "$@"
}
try 0 "weights of fewer layers are fitted" fit_weights "$work/less" "$work/less.journal"
cp "$work/less.journal" "$work/shaped.moec.journal"
try 0 "will do" fit_less --json -o "$work/shaped.moec"
check "for a time" "$(number token_ms) > $(number resident_token_ms) && $(number resident_token_ms) > 0"

# ---- an interrupted fit ----
cp "$work/less.journal" "$work/stopped.moec.journal"
# shellcheck disable=SC2086 # words
"$moec" fit "$work/less" --data "$data" $measure --memory "${least}MiB" --device-file "$work/shape.json" \
    -o "$work/stopped.moec" >"$work/log" 2>&1 &
pid=$!
ended_at "$work/stopped.moec.search.journal" 'run/' # where a loss is kept
check "an interruption ends it" "$? != 0"
if [ -e "$work/stopped.moec" ]; then fail "nothing is written"; else pass "nothing is written"; fi
for journal in journal profile.journal search.journal; do
    cp "$work/stopped.moec.$journal" "$work/other.moec.$journal"
done
try 0 "another memory goes on with what was fitted" "$moec" fit "$work/less" --data "$data" --max-loss 5% --samples 48 \
    --seq-len 32 --ctx 128 --memory "$(awk "BEGIN { printf \"%d\", 1024 * $least + 20 }")KiB" --device-file "$work/shape.json" \
    -o "$work/other.moec"
says stderr "other.moec.search.journal' is the journal of another job: its memory .*; starting over" "but not with what was searched"
try 0 "the same command goes on" fit_less -o "$work/stopped.moec" --report "$work/page.html"
says stdout "^report: $work/page.html" "and names its page"
if cmp -s "$work/stopped.moec" "$work/shaped.moec"; then pass "to the same bytes"; else fail "to the same bytes"; fi
for part in result curve tests elsewhere candidates settings; do
    try 0 "the page: section $part" grep -q "<section id=\"$part\"" "$work/page.html"
done
try 1 "no network, no scripts" grep -Eq '(src|href|srcset)="?(https?:|//)|@import|url\(|<script' "$work/page.html"
try 0 "the test that chose" grep -q '<td>passed, written</td>' "$work/page.html"
try 0 "other memories" grep -q '<th[^>]*>with twice the memory</th>' "$work/page.html"
fits_screens "$work/page.html"
set -- "$work"/stopped.moec.*
if [ -e "$1" ]; then fail "nothing else is left: $*"; else pass "nothing else is left"; fi
done_testing
