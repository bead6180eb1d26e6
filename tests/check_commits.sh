#!/bin/sh
# Refuses commits whose subject is over 72 characters: what a log shows on a line. Why a change was made and its figures
# are the body's. Says nothing where there is no git, as in a tarball.
# Usage: tests/check_commits.sh [FROM]   (commits after FROM, by default those since the rule)
set -u
most=72
from=${1:-530af77415f6bcaacfa7ff1df9a6ecfe0a389a2b}
top=$(git rev-parse --show-toplevel 2>/dev/null) || exit 0
[ "$top" = "$(pwd -P)" ] || exit 0
if ! git cat-file -e "$from^{commit}" 2>/dev/null; then
    echo "skipped: this clone does not go back to $from"
    exit 0
fi
long=$(git log --no-merges --format='%h %s' "$from..HEAD" | LC_ALL=C.UTF-8 sed -nE "/^[^ ]+ .{$((most + 1)),}/p")
[ -z "$long" ] && exit 0
echo "$long" | while read -r commit subject; do
    echo "$commit: a subject of $(printf %s "$subject" | LC_ALL=C.UTF-8 wc -m) characters, expected at most $most: $subject"
done
echo "say what the commit does in a line, and why in the lines below: git rebase -i, reword"
exit 1
