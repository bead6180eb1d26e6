#!/bin/sh
# Bytes at equal loss: moec against llama.cpp, and against simpler plans of its own, on one model and the same windows
# of text. Prints Markdown tables; ends with 1, and a line for each, when a figure that moec is built to reach is missed.
#
#     tests/race/size.sh MODEL CALIBRATION TEST [FOLDER]
#
# MODEL is a Hugging Face folder (BF16, qwen2_moe or olmoe), CALIBRATION the text for searches and importance matrix,
# TEST the text on which everything is scored by `moec eval`. FOLDER (default build/race) keeps GGUF files, bundles and
# results; what is there is not made again, except what another build of moec made.
#
#     LLAMA=FOLDER                 with llama-quantize, llama-imatrix and llama-perplexity (see tests/race/README.md)
#     PYTHON=python3               that has numpy and gguf
#     PARTS='llama gate-up moec uniform projections'     only these
#     TARGETS='1% 2% 5%'           losses to promise
#     TYPES='IQ2_XS IQ2_S Q2_K IQ3_XXS Q3_K_S IQ3_S Q3_K_M IQ4_XS Q4_K_M Q5_K_M Q6_K'      of llama.cpp
set -eu
[ $# -ge 3 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n '4,15p' >&2; exit 2; }
model=$1 calibration=$2 test=$3 folder=${4:-build/race}
here=$(dirname "$0")
build=${MOEC_BUILD:-build}
moec=${MOEC:-$build/moec}
python=${PYTHON:-python3}
: "${LLAMA:=}" "${PARTS:=llama gate-up moec uniform projections}" "${TARGETS:=1% 2% 5%}"
: "${TYPES:=IQ2_XS IQ2_S Q2_K IQ3_XXS Q3_K_S IQ3_S Q3_K_M IQ4_XS Q4_K_M Q5_K_M Q6_K}"
results=$folder/results
mkdir -p "$results"

skip() { echo "skipped: $*" | tee -a "$folder/skipped" >&2; }
wants() { case " $PARTS " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
gguf() { "$python" "$here/gguf_files.py" "$@"; }

# What another build of moec compiled says nothing about this one. Its scores of checkpoints stay: they are the same in
# every build.
: >"$folder/skipped"
digest=$(sha256sum "$moec" | cut -c1-16)
if [ "$(cat "$folder/moec.digest" 2>/dev/null)" != "$digest" ]; then
    rm -f "$folder"/*.moec "$results"/moec-* "$results"/uniform-* "$results"/projections-* "$results"/gate-up-moec-* \
        "$folder/journal"
    echo "$digest" >"$folder/moec.digest"
fi

# score NAME BYTES MODEL: the loss of a folder or bundle against the original, with its bytes, as results/NAME.json.
score() {
    "$moec" eval "$3" --data "$test" --reference "$model" --json -q >"$folder/eval.json"
    printf '{"name": "%s", "bytes": %s, "eval": %s}\n' "$1" "$2" "$(cat "$folder/eval.json")" >"$results/$1.json.new"
    mv "$results/$1.json.new" "$results/$1.json"
    echo "scored: $1" >&2
}

bytes() { wc -c <"$1" | tr -d ' '; }

# ---- llama.cpp ----

original() {
    [ -e "$folder/bf16.gguf" ] || { gguf write "$model" "$folder/bf16.new" && mv "$folder/bf16.new" "$folder/bf16.gguf"; }
    if [ ! -e "$results/llama-BF16.json" ]; then
        gguf read "$folder/bf16.gguf" "$model" "$folder/decoded"
        score llama-BF16 "$(bytes "$folder/bf16.gguf")" "$folder/decoded"
        grep -q '"loss": 0.0,' "$results/llama-BF16.json" ||
            { echo "the BF16 GGUF does not decode to the weights of '$model'" >&2; exit 1; }
    fi
    if [ ! -e "$folder/same-logits" ]; then
        if [ -x "$build/tools/logits" ]; then
            "$LLAMA/llama-perplexity" -m "$folder/bf16.gguf" -f "$test" -c 256 --chunks 8 --save-all-logits \
                "$folder/logits" >"$folder/perplexity.log" 2>&1
            "$python" "$here/same_logits.py" "$folder/logits" "$model" "$build/tools/logits" >"$folder/same-logits.new"
            mv "$folder/same-logits.new" "$folder/same-logits"
            rm "$folder/logits"
        else
            skip "comparison of logits: make $build/tools/logits first"
        fi
    fi
    [ -e "$folder/imatrix.gguf" ] || {
        "$LLAMA/llama-imatrix" -m "$folder/bf16.gguf" -f "$calibration" -c 256 -o "$folder/imatrix.new.gguf" \
            >"$folder/imatrix.log" 2>&1
        mv "$folder/imatrix.new.gguf" "$folder/imatrix.gguf"
    }
}

# quantise TYPE NAME [OPTIONS...]: FOLDER/NAME.gguf and what it holds; 1 where llama.cpp refuses.
quantise() {
    to=$1 file=$2
    shift 2
    [ ! -e "$results/$file.types" ] || [ ! -e "$folder/$file.gguf" ] || return 0
    if ! "$LLAMA/llama-quantize" "$@" "$folder/bf16.gguf" "$folder/$file.gguf" "$to" >"$folder/quantize.log" 2>&1; then
        rm -f "$folder/$file.gguf"
        skip "$file: llama-quantize refuses: $(grep -iE 'error|imatrix' "$folder/quantize.log" | tail -n 1)"
        return 1
    fi
    gguf types "$folder/$file.gguf" "$model" >"$results/$file.types"
}

llama() {
    for type in $TYPES; do
        for name in "llama-$type-imatrix" "llama-$type"; do
            [ ! -e "$results/$name.json" ] || continue
            set --
            [ "$name" = "llama-$type" ] || set -- --imatrix "$folder/imatrix.gguf"
            quantise "$type" "$name" "$@" || continue
            gguf read "$folder/$name.gguf" "$model" "$folder/decoded"
            score "$name" "$(bytes "$folder/$name.gguf")" "$folder/decoded"
        done
    done
}

# Gate and up of experts as llama.cpp has them, all else as in MODEL; bytes are those of these tensors.
llama_gate_up() {
    for type in $TYPES; do
        name=gate-up-llama-$type
        [ ! -e "$results/$name.json" ] || continue
        quantise "$type" "llama-$type-imatrix" --imatrix "$folder/imatrix.gguf" || continue
        gguf read "$folder/llama-$type-imatrix.gguf" "$model" "$folder/decoded" --only gate,up
        score "$name" "$("$python" "$here/table.py" --gate-up-bytes "$results/llama-$type-imatrix.types")" "$folder/decoded"
    done
}

if wants llama || wants gate-up; then
    if ! "$python" -c 'import gguf, numpy' 2>/dev/null; then
        skip "llama.cpp: '$python' has no gguf and numpy (PYTHON=...)"
    elif [ ! -x "$LLAMA/llama-quantize" ] || [ ! -x "$LLAMA/llama-imatrix" ] || [ ! -x "$LLAMA/llama-perplexity" ]; then
        skip "llama.cpp: no llama-quantize, llama-imatrix and llama-perplexity in LLAMA='$LLAMA'"
    else
        original
        ! wants llama || llama
        ! wants gate-up || llama_gate_up
        rm -rf "$folder/decoded"
    fi
fi

# ---- moec ----

# compiled NAME OPTIONS...: compiles and scores FOLDER/NAME.moec; nothing written is a result too. What was fitted to the
# calibration data for one bundle serves the next; the seconds of the first are those of a compile from nothing.
compiled() {
    name=$1
    shift
    [ ! -e "$results/$name.json" ] || return 0
    case " $* " in *" --data "*) set -- "$@" --journal "$folder/journal" ;; esac
    begin=$(date +%s)
    if "$moec" compile "$model" "$@" --json -q -o "$folder/$name.moec" >"$results/$name.compile" 2>"$folder/compile.log"; then
        echo $(($(date +%s) - begin)) >"$results/$name.seconds"
        score "$name" "$(bytes "$folder/$name.moec")" "$folder/$name.moec"
    else
        skip "$name: moec compile ends with $(tail -n 1 "$folder/compile.log")"
    fi
}

if wants moec; then
    for target in $TARGETS; do
        compiled "moec-$target" --data "$calibration" --max-loss "$target"
    done
fi

if wants projections; then
    for target in $TARGETS; do
        # One plan for all experts asks for no figure of a single expert.
        compiled "projections-$target" --data "$calibration" --max-loss "$target" --policy "$here/projections.lua" \
            --sensitivity none
    done
fi

# The smallest uniform setting without GPTQ whose loss on TEST itself is at most 2 %: settings by bytes, the first that
# meets it. Sizes need no data.
uniform_options() { # BITS GROUP DENSE, where GROUP may be 'shift'
    echo "--policy uniform --bits $1 --dense-bits $3"
    case $2 in
        shift) echo "--quantizer trellis" ;;
        channel) echo "--quantizer hqq --group channel" ;;
        *) echo "--quantizer hqq --group $2 --scheme asymmetric-nested" ;;
    esac
    [ "$3" -eq 16 ] || echo "--dense-quantizer linear"
}

uniform() {
    for bits in 2 3 4; do
        for group in shift channel 16 32 64 128; do
            for dense in 16 8 4; do
                # shellcheck disable=SC2046 # options are words
                size=$("$moec" compile "$model" $(uniform_options $bits $group $dense) --dry-run --json -q \
                    2>"$folder/compile.log" | sed -n 's/.*"bundle_bytes": \([0-9]*\).*/\1/p')
                [ -z "$size" ] || echo "$size $bits $group $dense"
            done
        done
    done | sort -n >"$folder/uniform.sizes"
    while read -r _ bits group dense; do
        name=uniform-INT$bits-$group-dense$dense
        # shellcheck disable=SC2046 # options are words
        compiled "$name" $(uniform_options "$bits" "$group" "$dense")
        "$python" "$here/table.py" --meets 0.02 "$results/$name.json" || continue
        break
    done <"$folder/uniform.sizes"
}
! wants uniform || uniform

if wants gate-up; then
    for bits in 2 3 4; do
        set -- "$results/gate-up-moec-int$bits-"*.json # whatever its codec is
        [ ! -e "$1" ] || continue
        bundle=$folder/gate-up-moec-$bits.moec
        if "$moec" compile "$model" --data "$calibration" --max-loss 90% --policy "$here/gate_up.lua" --bits "$bits" \
            --sensitivity none --dense-bits 16 --journal "$folder/journal" -q -o "$bundle" >"$folder/compile.log" 2>&1; then
            codec=$("$python" "$here/table.py" --gate-up-codec "$bundle" "$moec")
            score "gate-up-moec-$codec" "$("$python" "$here/table.py" --gate-up-records "$bundle" "$moec")" "$bundle"
        else
            skip "gate and up at $bits bits: moec compile ends with $(tail -n 1 "$folder/compile.log")"
        fi
    done
fi

# The sample's folder is called model.
name=$(basename "$(realpath "$model")")
[ "$name" != model ] || name=$(basename "$(dirname "$(realpath "$model")")")
"$python" "$here/table.py" "$folder" "$name"
