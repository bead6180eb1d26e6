#!/bin/sh
# How well moec simulate foretells moec bench on this machine: measures the device and the bench in turns, simulates
# every row of each bench with the device of its round, and prints for each row what was measured and foretold in the
# rounds, and the middle one of the differences. Ends with status 1 when fewer than 80 % of the rows are within 15 %.
# Anything else that the machine does meanwhile spoils it.
#
#   tests/large/agreement.sh MODEL.moec ROUTING [options of moec bench]
#
# ROUTING: a profile of the model, or a trace of moec run --trace or moec bench --traces; best of the text that the bench
# runs on. AGREEMENT_ROUNDS=3. Samples should be long: the first tokens of each find the processor's caches cold, as the
# rows take turns.
set -eu
[ $# -ge 2 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2; }
moec=${MOEC:-${MOEC_BUILD:-build}/moec}
model=$1
routing=$2
shift 2
[ $# -gt 0 ] || set -- --memory 25%,50% --emulate-storage 550MB/s,80us --emulate-storage 50MB/s --samples 2 --tokens 64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM # which runs the trap above too

# Positions count: a profile's windows begin with a prompt as long as the bench's.
prefill=
[ "$(head -c 1 "$routing")" = "{" ] || prefill="--prompt-tokens 64"

rounds=${AGREEMENT_ROUNDS:-3}
while [ "$rounds" -gt 0 ]; do
    rounds=$((rounds - 1))
    "$moec" device "$model" -o "$work/device.json" --quiet >/dev/null
    "$moec" bench "$model" "$@" --json --quiet >"$work/bench.json"
    # shellcheck disable=SC2086
    "$moec" simulate "$routing" --model "$model" --device-file "$work/device.json" --against "$work/bench.json" $prefill \
        >"$work/table"
    # The name ends where two blanks follow; the star of a row that differs much is left out.
    sed -e '1d' -e '/rows within/,$d' -e 's/ *\*$//' "$work/table" |
        awk '{ measured = match($0, /  +[0-9]/); print substr($0, 1, measured - 1) "|" substr($0, measured) }' \
            >>"$work/rows"
done

# name|median predicted differs% mean predicted differs% waiting predicted
awk -F'|' '
    { split($2, field, " "); ratio = field[2] / field[1]
      if (!($1 in n)) order[++n_row] = $1
      ratios[$1, ++n[$1]] = ratio
      pairs[$1] = pairs[$1] sprintf("  %.2f/%.2f", field[1], field[2]); waits[$1] = field[7] "/" field[8] }
    END {
        for (r = 1; r <= n_row; r++) {
            name = order[r]
            for (i = 2; i <= n[name]; i++)
                for (j = i; j > 1 && ratios[name, j - 1] > ratios[name, j]; j--) {
                    swap = ratios[name, j]; ratios[name, j] = ratios[name, j - 1]; ratios[name, j - 1] = swap
                }
            middle = ratios[name, int((n[name] + 1) / 2)] - 1
            is_within = middle <= 0.15 && middle >= -0.15
            n_within += is_within
            printf "%-44s %+6.1f%% %s  ms measured/foretold:%s; waiting %s ms\n", name, 100 * middle,
                is_within ? " " : "*", pairs[name], waits[name]
        }
        printf "%d of %d rows within 15 %%\n", n_within, n_row
        exit !(n_row > 0 && n_within >= 0.8 * n_row)
    }' "$work/rows"
