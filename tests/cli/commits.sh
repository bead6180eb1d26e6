#!/bin/sh
# Subjects of commits: tests/check_commits.sh refuses long ones after the commit that it begins with.
# shellcheck source=tests/cli/tap.inc
. tests/cli/tap.inc

if ! command -v git >/dev/null; then
    skip "subjects of commits" "git is not installed"
    done_testing
fi
check=$(pwd)/tests/check_commits.sh
# A repository of its own, whatever its user has told git.
unset GIT_DIR GIT_WORK_TREE
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
mkdir "$work/tree"
cd "$work/tree" || exit 1
silent() {
    if [ -s "$work/stdout" ]; then fail "$1"; else pass "$1"; fi
}
commit() {
    git -c user.name=t -c user.email=t@example.org commit -q --allow-empty -m "$1"
}
long=$(printf '%073d' 0)
fits=$(printf '%072d' 0 | sed 's/0/é/g')
try 0 "without git" "$check"
silent "nothing is said"
git init -q .
commit "$long"
first=$(git rev-parse HEAD)
commit "$fits"
try 0 "72 characters, after a commit of more before the rule" "$check" "$first"
silent "are passed in silence"
commit "$long"
commit "Short again"
try 1 "73 characters" "$check" "$first"
says stdout "a subject of 73 characters, expected at most 72: 0000" "are refused with their number"
try 0 "a clone without the first" "$check" 0123456789012345678901234567890123456789
says stdout "^skipped: this clone does not go back" "says that it looks at none"
done_testing
