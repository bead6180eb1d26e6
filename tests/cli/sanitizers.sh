#!/bin/sh
# tests/run.sh under a sanitizer: it skips what the sanitizer has nothing to look at in, says why, and runs the rest.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

# program NAME STATEMENT: a test in both builds, which passes.
program() {
    for folder in "$work/sanitize-thread" "$work/sanitize-address"; do
        mkdir -p "$folder/tests"
        printf '#include <pthread.h>\n#include <signal.h>\n#include <stdio.h>\nint main(void)\n{\n%s\nputs("ok 1 - it");\n}\n' "$2" |
            "${CC:-gcc}" -pthread -x c - -o "$folder/tests/$1" || fail "compiling $1"
    done
}
program test_plain ''
program test_thread 'pthread_t t; if (stdin == NULL) pthread_create(&t, 0, 0, 0);'
program test_lock 'static pthread_mutex_t m; pthread_mutex_lock(&m);'
program test_signal 'signal(SIGTERM, SIG_IGN);'
printf '#!/bin/sh\necho "ok 1 - it"\n' >"$work/words.sh"
# shellcheck disable=SC2016 # for that script
printf '#!/bin/sh\n[ -n "$moec" ] || echo "ok 1 - it"\n' >"$work/runs.sh"
chmod +x "$work/words.sh" "$work/runs.sh"

# under SANITIZER NAME PROGRAM: tests/run.sh with this program alone.
under() {
    try 0 "$2, $1" env moec= MOEC_BUILD="$work/sanitize-$1" tests/run.sh "$3"
}
runs() {
    under "$1" "$2" "$3"
    says stdout '^1 passed, 0 failed, 0 skipped$' "runs"
}
skips() {
    under "$1" "$2" "$3"
    says stdout "SKIP under this sanitizer: $4" "is skipped, with the reason"
}
skips thread "a program of one thread" "$work/sanitize-thread/tests/test_plain" 'its code has no threads, locks or signals'
runs address "a program of one thread" "$work/sanitize-address/tests/test_plain"
for name in thread lock signal; do
    runs thread "a program with a $name" "$work/sanitize-thread/tests/test_$name"
done
for sanitizer in thread address; do
    skips $sanitizer "a script without programs" "$work/words.sh" 'it runs no program of the build'
    runs $sanitizer "a script with moec" "$work/runs.sh"
done
try 0 "no sanitizer" env MOEC_BUILD=build tests/run.sh "$work/words.sh"
says stdout '^1 passed, 0 failed, 0 skipped$' "runs"
done_testing
