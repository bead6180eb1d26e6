#!/bin/sh
# How well moec simulate foretells moec bench on this machine: measures the device and the bench one after the
# other, simulates every row of the bench, and prints both beside each other. Ends with status 1 when fewer than
# 80 % of the rows are within 15 %. Anything else that the machine does meanwhile spoils it.
#
#   tests/large/agreement.sh MODEL.moec ROUTING [options of moec bench]
#
# ROUTING: a profile of the model, or a trace of moec run --trace; best of the text that the bench runs on.
set -eu
[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
moec=${MOEC_BUILD:-build}/moec
model=$1
routing=$2
shift 2
[ $# -gt 0 ] || set -- --memory 25%,50% --emulate-storage 550MB/s,80us --emulate-storage 50MB/s
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

# Positions count: a profile's windows begin with a prompt as long as the bench's.
prefill=
[ "$(head -c 1 "$routing")" = "{" ] || prefill="--prefill 64"

"$moec" device "$model" -o "$work/device.json" --quiet >/dev/null
"$moec" bench "$model" "$@" --json --quiet >"$work/bench.json"
# shellcheck disable=SC2086
"$moec" simulate "$routing" --model "$model" --device "$work/device.json" --against "$work/bench.json" $prefill |
    tee "$work/table"
awk '/ of [0-9]+ rows within/ { exit !($1 >= 0.8 * $3) }' "$work/table"
