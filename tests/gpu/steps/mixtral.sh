#!/bin/sh
# A random model of the shape of Mixtral-8x7B with 8 layers, in less memory of the device than it has.
# Usage: mixtral.sh make|compile|sparsify|device|MODE, in this order. MODE: resident, on-demand, lru, edgemoe, gate,
# hobbit, cooperate, floe-80, floe-90; all but the first have a quarter of the model's bytes, on-demand room for one
# token's experts of a layer. floe-N leaves out N % of an expert's neurons, of the same bits, and copies the others alone;
# its text is that of whole records. Each is beside its floor: the larger of the token with everything resident and the
# copied bytes over the bus.
# shellcheck source=tests/gpu/steps/step.inc
. tests/gpu/steps/step.inc
moec=$(program moec) && make_checkpoint=$(program make_random_checkpoint) || exit 1
checkpoint=$work/mixtral bundle=$work/mixtral.moec

# measured STEP NAME: a figure of an earlier step.
measured() {
    sed -n "s/^    {\"name\": \"$2\", \"value\": \([0-9.e+-]*\),.*/\1/p" "$results/$1.json" 2>/dev/null | head -n 1
}

case $1 in
make)
    "$make_checkpoint" --tokenizer datasets/sample/model/tokenizer.json --layers 8 --hidden 4096 --heads 32 --kv-heads 8 \
        --experts 8 --top-k 2 --ff 14336 --vocab 32000 "$checkpoint" || exit 1
    figure "checkpoint" "$(du -sb "$checkpoint" | cut -f 1)" "bytes"
    exit 0
    ;;
compile)
    [ -d "$checkpoint" ] || impossible "there is no checkpoint: mixtral-make was not done"
    "$moec" compile "$checkpoint" --policy uniform --bits 4 --copies 2 -o "$bundle" --force || exit 1
    rm -rf "$checkpoint"
    figure "bundle" "$(stat -c %s "$bundle")" "bytes"
    exit 0
    ;;
esac
[ -r "$bundle" ] || impossible "there is no bundle: mixtral-compile was not done"
if [ "$1" = sparsify ]; then
    cat docs/*.md >"$work/calibration.txt"
    "$moec" sparsify "$bundle" --data "$work/calibration.txt" --samples 64 --seq-len 64 --force || exit 1
    figure "bundle with thresholds" "$(stat -c %s "$bundle")" "bytes"
    exit 0
fi
if [ "$1" = device ]; then
    "$moec" device "$bundle" --device cuda -o "$results/mixtral-device.description" --quiet
    exit $?
fi

run() {
    "$moec" run "$bundle" --device cuda -p "Once" -n 65 --ignore-eos --stats json "$@" 2>"$work/stats" >"$work/text" || {
        cat "$work/stats"
        return 1
    }
    tail -n 1 "$work/stats" >"$work/stats.json"
}
of_stats() { # of_stats KEY: the first number of this name
    grep -o "\"$1\": [0-9.e+-]*" "$work/stats.json" | head -n 1 | sed 's/.*: //'
}
# What a refusal says: of the experts' record, and of all that there must be.
refusal=$("$moec" run "$bundle" --device cuda --vram 1 -p "Once" -n 1 2>&1)
record=$(echo "$refusal" | sed -n 's/.*largest expert \([0-9]*\).*/\1/p')
least=$(echo "$refusal" | sed -n 's/.* = \([0-9]*\)[.0-9]* MiB needed.*/\1/p')
if [ -z "$record" ] || [ -z "$least" ]; then
    echo "the refusal of a device without memory says: $refusal"
    exit 1
fi
quarter=$(($(stat -c %s "$bundle") / 4 / 1048576))
[ "$quarter" -gt "$least" ] || quarter=$((least + record))
resident=mixtral-resident
case $1 in
floe-*)
    share=0.${1#floe-}
    resident=
    [ -n "$(measured mixtral-sparsify 'bundle with thresholds')" ] ||
        impossible "there are no thresholds: mixtral-sparsify was not done"
    run --sparsity "$share" || exit 1
    resident_ms=$(of_stats tpot_ms)
    figure "token with everything resident" "$resident_ms" "ms"
    run --vram ${quarter}MiB --evict lru --sparsity "$share" --whole-records || exit 1
    mv "$work/text" "$work/whole.text"
    whole_ms=$(of_stats tpot_ms)
    ;;
esac
case $1 in
resident) run ;;
on-demand) run --vram $((least + record + 2))MiB --evict lru ;;
lru) run --vram ${quarter}MiB --evict lru ;;
edgemoe) run --vram ${quarter}MiB --evict edgemoe ;;
gate) run --vram ${quarter}MiB --evict lru --predict gate ;;
hobbit) run --vram ${quarter}MiB --evict hobbit --precision hobbit:0.6:0.9 ;;
cooperate) run --vram ${quarter}MiB --evict lru --cooperate --device-file "$results/mixtral-device.description" ;;
floe-*) run --vram ${quarter}MiB --evict lru --sparsity "$share" ;;
*)
    echo "unknown mode '$1'"
    exit 2
    ;;
esac || exit 1
token_ms=$(of_stats tpot_ms)
figure "token" "$token_ms" "ms"
figure "pool" "$(of_stats pool_bytes)" "bytes"
[ "$1" != resident ] || exit 0
copied=$(grep -o '"copied_bytes": [0-9]*' "$work/stats.json" | sed 's/.*: //')
[ -z "$resident" ] || resident_ms=$(measured "$resident" token)
on_demand_ms=$(measured mixtral-on-demand token)
bus=$(measured speeds-experts 'copy to the device')
if [ -z "$resident_ms" ] || [ -z "$bus" ]; then
    impossible "speeds-experts and mixtral-resident come first: the floor is made of them"
fi
# The prompt's copies count too, which makes the floor a little higher than that of the tokens.
floor_ms=$(awk -v c="$copied" -v b="$bus" -v r="$resident_ms" 'BEGIN { t = c / 65 / b / 1e6; print (t > r ? t : r) }')
figure "floor" "$floor_ms" "ms"
figure "share of the floor's speed" "$(awk -v f="$floor_ms" -v t="$token_ms" 'BEGIN { print f / t }')" "" ">= 0.80"
ratio() { # ratio A B
    awk -v a="$1" -v b="$2" 'BEGIN { print a / b }'
}
goal=
case $1 in
hobbit) goal=">= 2" ;;
floe-*) goal=">= 3" ;;
esac
[ -z "$on_demand_ms" ] || figure "beside on-demand" "$(ratio "$on_demand_ms" "$token_ms")" "times" "$goal"
case $1 in floe-*)
    cmp "$work/whole.text" "$work/text" || exit 1
    figure "beside whole records" "$(ratio "$whole_ms" "$token_ms")" "times"
    figure "copied beside whole records" "$(ratio "$copied" "$(of_stats record_bytes)")" ""
    figure "chunk" "$(of_stats chunk_bytes)" "bytes"
    gathered=$(of_stats gathered_bytes_per_second)
    figure "gathering and copying" "$(ratio "$gathered" 1e9)" "GB/s"
    figure "share of the bus's peak" "$(awk -v g="$gathered" -v b="$bus" 'BEGIN { print g / 1e9 / b }')" "" ">= 0.80"
    ;;
esac
