#!/bin/sh
# tests/gpu/all.sh without a GPU: it says that there is none; and with steps of this test's own, which look at no device
# and whose results name none: what ended is not run again, what ran out of time is, a goal that is missed is told from
# a step that failed, and what a machine cannot do from both.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

if command -v nvidia-smi >/dev/null; then
    skip "a machine without a GPU" "this one has nvidia-smi"
else
    try 77 "a machine without a GPU" tests/gpu/all.sh --results "$work/none"
    says stderr "^there is no GPU here: " "is told by a sentence"
    absent "$work/none" "and nothing is written"
fi
try 2 "a wrong option" tests/gpu/all.sh --step text
says stderr "unknown option '--step'" "is named"
try 2 "an unknown step" tests/gpu/all.sh txt
says stderr "there is no step 'txt'" "is named"

steps=$work/steps results=$work/results
mkdir -p "$steps" "$work/programs"
cat >"$steps/steps.tab" <<'END'
# name, minutes, command
good    1 good.sh two words
misses  1 misses.sh
broken  1 broken.sh
cannot  1 cannot.sh
slow    1 slow.sh
END
make_step() {
    { echo '#!/bin/sh' && cat; } >"$steps/$1" && chmod +x "$steps/$1"
}
make_step device.sh <<'END'
echo 'no device: a test of all.sh with "stubs"'
END
cat >"$steps/count.inc" <<'END'
. tests/gpu/steps/step.inc
echo >>"$work/$(basename "$0").ran"
END
make_step good.sh <<'END'
. "$(dirname "$0")/count.inc"
[ "$1 $2" = 'two words' ] || exit 1
figure "reached" 0.9 share ">= 0.85"
figure "without a goal" 12 GB/s
END
make_step misses.sh <<'END'
. "$(dirname "$0")/count.inc"
figure "reached" 0.5 share ">= 0.85"
figure "not above" 3 "" "<= 0"
END
make_step broken.sh <<'END'
. "$(dirname "$0")/count.inc"
echo 'the \ product is "wrong"'
exit 1
END
make_step cannot.sh <<'END'
. "$(dirname "$0")/count.inc"
impossible "there is no tool"
END
make_step slow.sh <<'END'
. "$(dirname "$0")/count.inc"
[ -e "$work/quick" ] || exec sleep 60
END

# shellcheck disable=SC2317 # called by try
all() { tests/gpu/all.sh --programs "$work/programs" --results "$results" --steps "$steps" "$@"; }
holds() { # holds FILE PATTERN NAME
    if grep -Eq -e "$2" "$results/$1"; then pass "$3"; else fail "$3"; fi
}
ran() { # ran STEP TIMES
    n=$(wc -l <"$results/work/$1.sh.ran")
    if [ "$n" -eq "$2" ]; then pass "step $1 ran $2 times"; else fail "step $1 ran $2 times (ran $n)"; fi
}

try 3 "no minutes" all --minutes 0
says stdout "^5 steps are left: call once more" "begin no step"
try 1 "all steps" all --limit 1
says stdout "^1 steps are left" "leave the one that ran out of time"
holds good.json '"verdict": "passed"' "a step passes"
holds good.json '"name": "reached", "value": 0.9, "unit": "share", "goal": ">= 0.85", "holds": true' "with its goal"
holds good.json '"value": 12, "unit": "GB/s", "goal": "", "holds": null' "and a figure without one"
holds good.json '"device": "no device: a test of all.sh with \\"stubs\\""' "on a device that no result is taken for"
holds good.json '"date": "[0-9]{4}-[0-9]{2}-[0-9]{2}T' "with the date"
holds misses.json '"verdict": "missed"' "a goal is missed"
holds misses.json '"name": "not above", .*"holds": false' "by name"
holds broken.json '"verdict": "failed"' "a step fails"
holds broken.json '"why": "status 1: the \\\\ product is \\"wrong\\""' "with its last words"
holds cannot.json '"verdict": "impossible"' "what cannot be done is neither"
holds slow.json '"verdict": "unfinished"' "what ran out of time is unfinished"
if command -v jq >/dev/null; then
    try 0 "the files are JSON" jq -e . "$results"/good.json "$results"/broken.json "$results"/slow.json
else
    skip "the files are JSON" "there is no jq"
fi

touch "$results/work/quick"
try 1 "the next call" all
ran good 1
ran broken 1
ran slow 2
holds slow.json '"verdict": "passed"' "ends what was left"
rm "$results/misses.json" "$results/broken.json"
try 0 "a step by name" all good
ran good 1

try 0 "the page" tests/gpu/collect.sh "$results" "$steps"
says stdout '^no device: a test of all.sh with "stubs", ' "names the device"
says stdout '^\| good \| passed \| [0-9]+ \| [0-9T:Z-]+ \|' "has the verdicts"
says stdout '^\| good \| reached \| 0.9 share \| >= 0.85 \| held \|$' "and the figures with their goals"
says stdout '^\| cannot \| impossible \|.*there is no tool' "and why"
try 1 "no results" tests/gpu/collect.sh "$work/programs" "$steps"
# The steps of a Mixtral's shape, with a program that answers for the device and has the real one read each run's
# options: they are right where all that is wrong is that there is no device.
programs=$work/stubs results=$work/mixtral
mkdir -p "$programs" "$results"
try 0 "a bundle" "$moec" compile datasets/sample/model --policy uniform --bits 4 --copies 2 -o "$work/s.moec" --quiet
try 0 "with thresholds" "$moec" sparsify "$work/s.moec" --data README.md --samples 32 --seq-len 32 --force
try 0 "a device file" "$moec" device "$work/s.moec" --emulate-storage 550MB/s,80us -o "$work/cpu.description" --quiet
# A GPU's section, of which only costs are read.
sed 's/^{/{"gpu": {"version": 1, "name": "a GPU", "memory_bytes": 1, "launch_ns": 1, "answer_ns": 1, "token_ns": 1,\
    "ns_per_position": 0, "copies": [{"to_device": true, "pinned": true, "bytes": 4096, "ns": 900}], "products": [],\
    "gathers": [], "experts": [{"bits": 4, "record_bytes": 4096, "compute_ns": 10}]},/' "$work/cpu.description" \
    >"$work/gpu.description"
cat >"$programs/moec" <<'END'
#!/bin/sh
case $1 in
--tokenizer)
    for checkpoint; do :; done
    mkdir "$checkpoint"
    ;;
compile) head -c 100000000 /dev/zero >"$work/mixtral.moec" ;;
sparsify) ;;
profile)
    [ "$2" != --show ] || exit 0
    model=$2
    shift 2
    "$stub_moec" profile "$stub_model" "$@" 2>"$work/refused" && exit 1
    grep -Eq 'libmoert-cuda.so|CUDA' "$work/refused" || { cat "$work/refused" >&2 && exit 1; }
    echo "$model" >"$work/profile.h5"
    ;;
device) cp "$stub_description" "$results/mixtral-device.description" ;;
run)
    case $* in
    *"--vram 1 "*)
        echo "largest expert 3.00 = 5.00 MiB needed; 9 MiB are free on the device" >&2
        exit 1
        ;;
    esac
    shift 2
    "$stub_moec" run "$stub_bundle" "$@" 2>"$work/refused" && exit 1
    grep -Eq 'libmoert-cuda.so|CUDA' "$work/refused" || { cat "$work/refused" >&2 && exit 1; }
    echo "a text"
    ms=10 copied=650000
    case $* in *--vram*) ms=12 ;; esac
    case $* in *--sparsity*) ms=4 ;; esac
    case $* in *--vram\ 1[0-9]MiB*) ms=100 copied=58500000000 ;; esac # on demand
    echo "{\"tpot_ms\": $ms, \"pool_bytes\": 7, \"copied_bytes\": $copied, \"record_bytes\": 6500000, \"chunk_bytes\": 9," \
        "\"gathered_bytes_per_second\": 9.1e9}" >&2
    ;;
esac
END
chmod +x "$programs/moec"
cp "$programs/moec" "$programs/make_random_checkpoint"
steps=$work/shape
mkdir "$steps"
cp tests/gpu/steps/mixtral.sh tests/gpu/steps/profile.sh "$steps"
printf '#!/bin/sh\necho "no device: a stub"\n' >"$steps/device.sh"
printf '#!/bin/sh\n. tests/gpu/steps/step.inc\nfigure "copy to the device" 10 GB/s\n' >"$steps/speeds.sh"
chmod +x "$steps/device.sh" "$steps/speeds.sh"
{ echo "speeds-experts 1 speeds.sh" && grep -E '^(mixtral|profile)-' tests/gpu/steps/steps.tab; } >"$steps/steps.tab"
stub_moec=$moec stub_bundle=$work/s.moec stub_description=$work/gpu.description stub_model=datasets/sample/model
export stub_moec stub_bundle stub_description stub_model
if command -v nvidia-smi >/dev/null; then
    skip "all modes of a Mixtral's shape" "this machine has a GPU"
else
    try 0 "all modes of a Mixtral's shape" tests/gpu/all.sh --programs "$programs" --results "$results" --steps "$steps"
    for mode in resident on-demand lru edgemoe gate hobbit cooperate floe-80 floe-90; do
        holds "mixtral-$mode.json" '"verdict": "passed"' "mode $mode passes"
    done
    holds mixtral-hobbit.json '"name": "beside on-demand", "value": 8.33333, .*">= 2", "holds": true' "beside loading on demand"
    holds mixtral-floe-90.json '"name": "beside on-demand", "value": 25, .*">= 3", "holds": true' "with neurons alone too"
    holds mixtral-floe-90.json '"name": "copied beside whole records", "value": 0.1,' "with the bytes that are saved"
    holds mixtral-floe-90.json '"name": "share of the bus.s peak", "value": 0.91, .*">= 0.80", "holds": true' \
        "and how fast they are gathered"
    holds profile-quill.json '"verdict": "impossible"' "a checkpoint that nobody names is not profiled"
    holds profile-olmoe.json '"name": "profile", .*"<= 300", "holds": true' "a random one is"
    rm "$results/profile-quill.json"
    mkdir "$work/quill" && cp README.md "$work/quill/calibration.txt"
    try 0 "a checkpoint that is named" env MOEC_QUILL="$work/quill" tests/gpu/all.sh --programs "$programs" \
        --results "$results" --steps "$steps" profile-quill
    holds profile-quill.json '"name": "profile", .*"<= 60", "holds": true' "is profiled"
fi
done_testing
