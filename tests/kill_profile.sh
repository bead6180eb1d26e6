#!/bin/sh
# Ends moec profile at random moments, again and again, until it has finished, and compares what it wrote with an
# uninterrupted run. Most ends are kill -9, some are Ctrl-C or kill. Speaks TAP. MODEL names another than the sample.
# Usage: tests/kill_profile.sh KILLS SEED PROFILE-OPTION...   (from the repository root)
set -u
moec=${MOEC_BUILD:-build}/moec
kills=$1
seed=$2
shift 2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM # which runs the trap above too
model=${MODEL:-datasets/sample/model}
data=datasets/sample/calibration.txt
out=$work/killed.h5

give_up() {
    echo "not ok 1 - $1"
    sed 's/^/# /' "$work/log"
    echo 1..1
    exit 1
}

start=$(date +%s%N)
"$moec" profile "$model" --data $data "$@" -o "$work/whole.h5" --quiet >"$work/log" 2>&1 || give_up "an uninterrupted run"
took=$((($(date +%s%N) - start) / 1000000))

# Ends of the job's runs: seconds and signal, one a line.
awk -v seed="$seed" -v n=$((kills * 4)) -v took=$took 'BEGIN {
    srand(seed)
    for (i = 0; i < n; i++) {
        kind = rand()
        printf "%.3f %s\n", 0.005 + rand() * 0.0009 * took, kind < 0.7 ? "KILL" : kind < 0.85 ? "INT" : "TERM"
    }
}' >"$work/ends"

least=64 # MiB
case $moec in
*address* | *thread*) least=256 ;; # sanitizers take memory of their own
esac
n_kill=0 n_int=0 n_term=0 n_job=0 n_run=0 n_resumed=0
while read -r seconds signal <&3 && [ $((n_kill + n_int + n_term)) -lt "$kills" ]; do
    n_run=$((n_run + 1))
    resume=
    if [ -e "$out.journal" ]; then
        resume=--resume
        n_resumed=$((n_resumed + 1))
    fi
    # Another number of threads and another working memory in every run.
    timeout --preserve-status -s "$signal" "$seconds" "$moec" profile "$model" --data $data "$@" -o "$out" --quiet $resume \
        --threads $((n_run % 3 + 1)) --work-memory $((n_run % 4 * 24 + least))MiB >"$work/log" 2>&1
    status=$?
    case $status in
    0) ;;
    137) n_kill=$((n_kill + 1)) ;;
    130) n_int=$((n_int + 1)) ;;
    143) n_term=$((n_term + 1)) ;;
    *) give_up "run $n_run, to be ended by $signal after $seconds s, ended with status $status" ;;
    esac
    if [ "$status" -eq 0 ]; then
        [ -e "$out" ] || give_up "run $n_run wrote a profile"
        [ ! -e "$out.journal" ] || give_up "a finished run removes its journal"
    fi
    # An end may also come between the last step and the exit.
    if [ -e "$out" ]; then
        cmp "$work/whole.h5" "$out" >"$work/log" 2>&1 || give_up "what stands under the final name after run $n_run is whole"
        n_job=$((n_job + 1))
        rm "$out"
    fi
done 3<"$work/ends"
resume=
[ ! -e "$out.journal" ] || resume=--resume
"$moec" profile "$model" --data $data "$@" -o "$out" --quiet $resume >"$work/log" 2>&1 || give_up "the last run"
cmp "$work/whole.h5" "$out" >"$work/log" 2>&1 || give_up "the last profile is that of an uninterrupted run"
left=$(find "$work" -name '.*' ! -path "$work" | wc -l)
[ "$left" -eq 0 ] || give_up "no temporary is left"
if [ $((n_kill + n_int + n_term)) -lt "$kills" ]; then
    give_up "only $((n_kill + n_int + n_term)) of $kills runs were ended before they finished"
fi
echo "ok 1 - $((n_job + 1)) profiles equal byte for byte after $n_kill kill -9, $n_int Ctrl-C, $n_term kill ($n_resumed resumed runs)"
echo 1..1
