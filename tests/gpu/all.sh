#!/bin/sh
# Everything that only a real GPU can show, in steps of at most 8 minutes. Each step leaves a JSON file with its
# figures, the machine and the date, and is not run again once it has ended; a step that ran out of time is begun anew
# by the next call. tests/gpu/README.md says how to take it to a machine.
#
# Usage: tests/gpu/all.sh [options] [STEP...]   (from the repository root; all steps that are left, without STEP)
#   --programs FOLDER   from make gpu-programs (default build/gpu-programs)
#   --results FOLDER    where the files go, and what steps make for later ones (default build/gpu-results)
#   --steps FOLDER      other steps (default tests/gpu/steps)
#   --minutes N         begin no step that may not end within N minutes from now
#   --limit SECONDS     of a step (default 480)
#   --list              name the steps and what came of them
# Exit status: 0 all steps passed; 1 one failed or missed its goal; 2 wrong options; 3 steps are left; 77 no GPU.
set -u
programs=build/gpu-programs results=build/gpu-results steps=tests/gpu/steps minutes=100000 limit=480 list=false wanted=
wrong() {
    echo "all.sh: $1" >&2
    exit 2
}
number() {
    case $2 in '' | *[!0-9]*) wrong "$1 takes a number, got '$2'" ;; esac
}
while [ $# -gt 0 ]; do
    case $1 in
    --list) list=true ;;
    --programs | --results | --steps | --minutes | --limit)
        [ $# -gt 1 ] || wrong "$1 takes a value"
        case $1 in
        --programs) programs=$2 ;;
        --results) results=$2 ;;
        --steps) steps=$2 ;;
        --minutes) number "$1" "$2" && minutes=$2 ;;
        --limit) number "$1" "$2" && limit=$2 ;;
        esac
        shift
        ;;
    -*) wrong "unknown option '$1'" ;;
    *) wanted="$wanted $1" ;;
    esac
    shift
done
[ -r "$steps/steps.tab" ] || wrong "'$steps' has no steps.tab"
for name in $wanted; do
    grep -q "^$name " "$steps/steps.tab" || wrong "there is no step '$name': --list names them"
done

# json_text TEXT: TEXT as a string of JSON.
json_text() {
    printf '"%s"' "$(printf '%s' "$1" | tr '\n\t\r' '   ' | tr -cd '\40-\176' | sed 's/\\/\\\\/g; s/"/\\"/g')"
}

# verdict_of STEP: what its file says, or nothing.
verdict_of() {
    [ ! -r "$results/$1.json" ] || sed -n 's/^  "verdict": "\([a-z]*\)",$/\1/p' "$results/$1.json"
}

if $list; then
    while read -r name step_minutes command; do
        case $name in '' | '#'*) continue ;; esac
        printf '%-24s %s min  %-10s %s\n' "$name" "$step_minutes" "$(verdict_of "$name")" "$command"
    done <"$steps/steps.tab"
    exit 0
fi

# One line: name, driver, memory.
if ! device=$("$steps/device.sh"); then
    echo "there is no GPU here: $device" >&2
    exit 77
fi
[ -d "$programs" ] || wrong "there is no folder '$programs': make gpu-programs makes it, where nvcc is"
mkdir -p "$results/work" || exit 1
programs=$(cd "$programs" && pwd) results=$(cd "$results" && pwd)
export programs results work="$results/work" step_figures="$results/work/figures.tsv"
export LD_LIBRARY_PATH="$programs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
revision=$(git rev-parse HEAD 2>/dev/null || cat "$programs/revision" 2>/dev/null || echo unknown)
processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
begun=$(date +%s)

# write_result STEP VERDICT WHY SECONDS: the step's figures become its file. A goal that a figure misses makes a step
# that passed one that missed.
write_result() {
    awk -F '\t' -v OFS='' '
        function text(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return "\"" s "\"" }
        {
            holds = "null"
            if ($4 ~ /^>= /) holds = $2 >= substr($4, 4) + 0 ? "true" : "false"
            if ($4 ~ /^<= /) holds = $2 <= substr($4, 4) + 0 ? "true" : "false"
            print (NR > 1 ? ",\n" : ""), "    {\"name\": ", text($1), ", \"value\": ", $2, ", \"unit\": ", text($3),
                ", \"goal\": ", text($4), ", \"holds\": ", holds, "}"
        }' ORS='' "$step_figures" >"$work/figures.json" || exit 1
    verdict=$2
    if [ "$verdict" = passed ] && grep -q '"holds": false' "$work/figures.json"; then verdict=missed; fi
    {
        printf '{\n  "step": %s,\n  "verdict": "%s",\n  "why": %s,\n' "$(json_text "$1")" "$verdict" "$(json_text "$3")"
        printf '  "device": %s,\n  "processor": %s,\n' "$(json_text "$device")" "$(json_text "$processor")"
        printf '  "date": "%s",\n  "revision": "%s",\n  "seconds": %d,\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$revision" "$4"
        printf '  "figures": [\n%s\n  ]\n}\n' "$(cat "$work/figures.json")"
    } >"$results/$1.json.new" && mv "$results/$1.json.new" "$results/$1.json"
}

# run_step NAME COMMAND...: in at most so many seconds as are left.
run_step() {
    name=$1 script=$2
    shift 2
    left=$((minutes * 60 - ($(date +%s) - begun)))
    [ "$left" -lt "$limit" ] || left=$limit
    : >"$step_figures"
    started=$(date +%s)
    timeout --kill-after=10 "$left" "$steps/$script" "$@" >"$results/$name.log" 2>&1
    status=$?
    case $status in
    0) verdict=passed ;;
    77) verdict=impossible ;;
    124 | 137) verdict=unfinished ;;
    *) verdict=failed ;;
    esac
    why=
    [ "$status" -eq 0 ] || why="status $status: $(tail -n 1 "$results/$name.log")"
    write_result "$name" "$verdict" "$why" $(($(date +%s) - started))
    printf '%-24s %-10s %s\n' "$name" "$(verdict_of "$name")" "$why"
}

echo "$device"
n_left=0 n_bad=0
while read -r name step_minutes command; do
    case $name in '' | '#'*) continue ;; esac
    if [ -n "$wanted" ]; then
        case " $wanted " in *" $name "*) ;; *) continue ;; esac
    fi
    case $(verdict_of "$name") in
    passed | missed | failed | impossible) ;;
    *)
        if [ $((step_minutes * 60)) -le $((minutes * 60 - ($(date +%s) - begun))) ]; then
            # shellcheck disable=SC2086 # a command and its arguments
            run_step "$name" $command </dev/null
        fi
        ;;
    esac
    case $(verdict_of "$name") in
    passed | impossible) ;;
    missed | failed) n_bad=$((n_bad + 1)) ;;
    *) n_left=$((n_left + 1)) ;;
    esac
done <"$steps/steps.tab"
[ "$n_left" -eq 0 ] || echo "$n_left steps are left: call once more"
[ "$n_bad" -eq 0 ] || exit 1
[ "$n_left" -eq 0 ] || exit 3
