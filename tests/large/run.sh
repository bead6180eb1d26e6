#!/bin/sh
# A checkpoint larger than memory from end to end: random weights with the dimensions of OLMoE-1B-7B (6.9 B
# parameters, 13.8 GB) are made, profiled, compiled, verified and run. Says for each step how long it took, the
# peak of memory, and what was asked of files and read from the disk; removes everything.
#
#     make large                                    everything, under an hour on two cores, 25 GB of disk
#     LARGE_LAYERS=4 make large                     the same width, a quarter of the depth
#     LARGE_FOLDER=/big/disk  LARGE_KEEP=1          where, and whether it stays
#     LARGE_PROFILE='--samples 64 --seq-len 128'    more windows
# To be sure that page cache does not help, run it under a limit: systemd-run --scope -p MemoryMax=4G make large
set -u
build=${MOEC_BUILD:-build}
moec=$build/moec
folder=${LARGE_FOLDER:-$(mktemp -d)}
: "${LARGE_LAYERS:=16}" "${LARGE_KEEP:=0}"
: "${LARGE_PROFILE:=--samples 32 --seq-len 32 --bits 2,4 --sensitivity fast}"
mkdir -p "$folder" || exit 1
model=$folder/model
log=$folder/log
clean() {
    [ "$LARGE_KEEP" -eq 1 ] || rm -rf "$model" "$folder/profile.h5" "$folder/int4.moec" "$log" "$log.io"
    [ "$LARGE_KEEP" -eq 1 ] || rmdir "$folder" 2>/dev/null
}
trap clean EXIT INT TERM
begin=$(date +%s)

# Bytes of the step's io counters, in GB.
gigabytes() {
    awk -v key="$1:" '$1 == key { printf "%.1f", $2 / 1e9 }' "$log.io"
}

# step NAME COMMAND...: runs it; what it says about its peak is its own.
step() {
    name=$1
    shift
    start=$(date +%s)
    # The counters of a shell have those of the children that it waited for.
    # shellcheck disable=SC2016
    sh -c 'io=$1; shift; "$@"; status=$?; cat "/proc/$$/io" >"$io"; exit $status' sh "$log.io" "$@" >"$log" 2>&1
    status=$?
    peak=$(sed -n 's/.*peak\( memory:\)* \([0-9.]* [KMG]iB\).*/\2/p' "$log" | tail -n 1)
    printf '%-10s %5d s   peak %-10s   asked %6s GB, disk %6s GB read, %6s GB written   free %s\n' "$name" \
        $(($(date +%s) - start)) "${peak:--}" "$(gigabytes rchar)" "$(gigabytes read_bytes)" \
        "$(gigabytes write_bytes)" "$(df -h "$folder" | awk 'END { print $4 }')"
    if [ "$status" -ne 0 ]; then
        sed 's/^/    /' "$log"
        echo "failed: $name ended with status $status"
        exit 1
    fi
    sed 's/^/    /' "$log" | tail -n 12
}

echo "folder $folder, $(nproc) cores, $(awk '/MemTotal/ { printf "%.1f", $2 / 1048576 }' /proc/meminfo) GiB of memory"
step generate "$build/tools/make_random_checkpoint" --preset olmoe-1b-7b --layers "$LARGE_LAYERS" \
    --tokenizer datasets/sample/model/tokenizer.json "$model"
# shellcheck disable=SC2086 # options are words
step profile "$moec" profile "$model" --data datasets/sample/calibration.txt $LARGE_PROFILE -o "$folder/profile.h5" --anyway --force --quiet
step compile "$moec" compile "$model" --policy uniform --bits 4 -o "$folder/int4.moec" --force --quiet
step verify "$moec" verify "$folder/int4.moec"
step run "$moec" run "$folder/int4.moec" --prompt "The" --tokens 32 --ignore-eos --ctx 128 --memory 3.4GB --stats
step eval "$moec" eval "$folder/int4.moec" --data datasets/sample/test.txt --samples 4 --seq-len 32 --quiet
echo "everything: $(($(date +%s) - begin)) s"
