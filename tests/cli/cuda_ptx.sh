#!/bin/sh
# What nvcc makes of the kernels keeps the canonical arithmetic: every addition, multiplication, fused multiply-add,
# division and root rounds to nearest, nothing is approximated or flushed to zero, nothing is fused that the source has
# apart, no float is added in an order of chance. Tensor cores multiply in the arithmetic bf16 alone. Reads the PTX that
# the build keeps.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

ptx=$build/cuda/ptx
if [ ! -d "$ptx" ]; then
    skip "kernels of a GPU keep the canonical arithmetic" "this build has none: CUDA=1 makes them, where nvcc is"
    done_testing
fi

# instructions_of FILE...: one a line, without predicates.
instructions_of() {
    cat "$@" | sed 's/^[[:space:]]*//; s/^@[^ ]* //'
}

# holds NAME PATTERN [ALLOWED]: no instruction matches the pattern, but those that are allowed.
holds() {
    instructions_of "$ptx"/*.ptx | grep -E "^$2" | grep -Ev "${3:-^$}" | sort | uniq -c |
        head -n 20 >"$work/stdout"
    if [ -s "$work/stdout" ]; then
        fail "$1"
    else
        pass "$1"
    fi
}

# counts NAME PATTERN: some instruction matches, so that the patterns above are those of this nvcc.
counts() {
    if cat "$ptx"/*.ptx | grep -Eq "$2"; then
        pass "$1"
    else
        fail "$1"
    fi
}

for kernels in runtime/cuda/kernels/*.cu; do
    name=$(basename "$kernels" .cu)
    if [ -s "$ptx/$name.ptx" ]; then
        pass "$name has PTX"
    else
        fail "$name has PTX"
    fi
done
counts "products are fused multiply-adds" 'fma\.rn\.f32'
counts "sums are additions" 'add\.rn\.f32'
counts "rotations are of double precision" 'fma\.rn\.f64'
counts "softmax divides" 'div\.rn\.f32'
counts "norms take roots" 'sqrt\.rn\.f32'
holds "arithmetic rounds to nearest" '(add|sub|mul|fma|mad|div|sqrt|rcp|rsqrt)\.[a-z0-9.]*f(32|64)' \
    '^(add|sub|mul|fma|div|sqrt|rcp)\.rn\.f(32|64)'
holds "nothing is approximated or flushed" '[a-z0-9_.]+\.(approx|ftz|full)'
holds "no float is added in an order of chance" '(atom|red)\.[a-z0-9_.:]*f(16|32|64)'
tensor='^(wmma|mma|wgmma|tcgen05)\.'
for kernels in "$ptx"/*.ptx; do
    name=$(basename "$kernels" .ptx)
    n=$(instructions_of "$kernels" | grep -Ec "$tensor")
    case $name in
    bf16) n_allowed=$(instructions_of "$kernels" | grep -Ec '^mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32') ;;
    peak) n_allowed=$n ;; # of tests/gpu, which measures them
    *) n_allowed=0 ;;
    esac
    if [ "$n" -eq "$n_allowed" ]; then
        pass "$name: tensor cores take part in the arithmetic bf16 alone"
    else
        fail "$name: tensor cores take part in the arithmetic bf16 alone"
    fi
done
counts "the arithmetic bf16 is the tensor cores'" 'mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32'
# Of a number and minus infinity the larger is the same either way.
holds "the largest is found by comparison" '(max|min)\.[a-z0-9.]*f(32|64)' '0fFF800000;$'
done_testing
