#!/bin/sh
# libmoert and moec-run built for 64-bit ARM, under qemu-user: the tests of the runtime, and the words of moec-run beside
# those of moec on this machine. ARM_BUILD has the programs, ARM_TESTS names those tests (make test-arm).
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc
arm=${ARM_BUILD:-build/aarch64}
processor=max

# As many side by side as there are cores: qemu takes ten times as long as a processor.
# shellcheck disable=SC2016,SC2086 # of the inner shell; words
printf '%s\n' ${ARM_TESTS-} | xargs -r -P "$(nproc)" -I '{}' sh -c '
    qemu-aarch64-static -cpu "$2" "$3/device-tests/$1" >"$4/$1.said" 2>&1; echo $? >"$4/$1.status"' \
    sh '{}' "$processor" "$arm" "$work"
# shellcheck disable=SC2317 # called by try
ended() {
    cat "$work/$1.said"
    return "$(cat "$work/$1.status")"
}
for name in ${ARM_TESTS-}; do
    try 0 "$name" ended "$name"
done

# words OPTION...: a text from the bundle, here and there.
words() {
    "$moec" run "$work/m.moec" -p "The old miller had three sons and" -n 24 --ctx 64 --ignore-eos "$@" >"$work/here" 2>"$work/stderr"
    try 0 "moec-run $*" qemu-aarch64-static -cpu "$processor" "$arm/moec-run-static" "$work/m.moec" -p "The old miller had three sons and" -n 24 --ctx 64 \
        --ignore-eos --stats json --cpu "$cpu" "$@"
    same "$work/stdout" "$work/here" "has the words of this machine"
    says stderr "\"cpu\": \"$cpu\"" "by $cpu"
}
cpu=neon
for bits in 2 3 4 8; do
    "$moec" compile datasets/sample/model --policy uniform --bits $bits --scheme asymmetric --group 64 --dense-bits 8 -q --force \
        -o "$work/m.moec" >"$work/stdout" 2>"$work/stderr"
    words
done
words --memory "$(mebibytes 24)" --predict gate
words --arithmetic int8
"$moec" compile datasets/sample/model --policy uniform --bits 2 --quantizer trellis --dense-bits 4 -q --force -o "$work/m.moec" \
    >"$work/stdout" 2>"$work/stderr"
words
# int8_of PROCESSOR SET: the words of int8 where that set is the best; test_int8 compares the numbers of all on max.
int8_of() {
    processor=$1
    words --arithmetic int8
    case " ${ARM_TESTS-} " in *" test_int8 "*)
        try 0 "$2 on $1" qemu-aarch64-static -cpu "$1" "$arm/device-tests/test_int8" "$2" ;;
    esac
}
int8_of max neon-i8mm
int8_of neoverse-n1 neon-dot # no products of matrices of bytes
int8_of cortex-a72 neon      # no dot products of bytes either
case " ${ARM_TESTS-} " in *" test_int8 "*) try 0 "test_int8 without dot products" qemu-aarch64-static -cpu "$processor" "$arm/device-tests/test_int8" ;; esac
cpu=scalar
words

# Its description of a device has the names of this machine's, and is read here.
try 0 "moec-run --describe-device" qemu-aarch64-static -cpu "$processor" "$arm/moec-run-static" --describe-device "$work/m.moec" \
    -o "$work/arm.json" --read-time 0.001 --compute-time 0.02 --threads 1 --quiet
"$moec" device "$work/m.moec" -o "$work/here.json" --read-time 0.001 --compute-time 0.02 --threads 1 --quiet >"$work/stdout"
for name in arm here; do
    sed -n 's/^ *"\([a-z_0-9]*\)":.*/\1/p' "$work/$name.json" >"$work/$name.names"
done
same "$work/arm.names" "$work/here.names" "has the names of this machine's"
"$moec" run "$work/m.moec" -p "The old miller" -n 8 --trace "$work/trace.json" >"$work/stdout" 2>"$work/stderr"
try 0 "moec simulate reads it" "$moec" simulate "$work/trace.json" --model "$work/m.moec" --device-file "$work/arm.json" --evict lru \
    --predict none --memory 25% --quiet

done_testing
