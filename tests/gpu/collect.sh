#!/bin/sh
# The results of tests/gpu/all.sh as one page of Markdown: a table of steps with their verdicts, and one of figures with
# their goals. Usage: tests/gpu/collect.sh FOLDER >docs/measured/gpu-NAME.md   (from the repository root)
set -eu
results=$1
steps=${2:-tests/gpu/steps}
field() {
    sed -n -e "s/^  \"$2\": \"\(.*\)\",\$/\1/p" -e "s/^  \"$2\": \([0-9]*\),\$/\1/p" "$1" |
        sed 's/\\\(.\)/\1/g; s/|/\\|/g'
}
set --
while read -r name _; do
    case $name in '' | '#'*) continue ;; esac
    [ ! -r "$results/$name.json" ] || set -- "$@" "$results/$name.json"
done <"$steps/steps.tab"
[ $# -gt 0 ] || {
    echo "collect.sh: '$results' has no result of a step" >&2
    exit 1
}
echo "# Measured on a GPU"
echo
for file in "$@"; do
    echo "$(field "$file" device), $(field "$file" processor), revision $(field "$file" revision)"
done | sort -u
echo
echo "| step | verdict | seconds | date | |"
echo "| --- | --- | --- | --- | --- |"
for file in "$@"; do
    echo "| $(field "$file" step) | $(field "$file" verdict) | $(field "$file" seconds) | $(field "$file" date) |" \
        "$(field "$file" why) |"
done
echo
echo "| step | figure | value | goal | |"
echo "| --- | --- | --- | --- | --- |"
for file in "$@"; do
    name=$(field "$file" step)
    sed -n 's/^    {"name": "\(.*\)", "value": \(.*\), "unit": "\(.*\)", "goal": "\(.*\)", "holds": \([a-z]*\)},*$/\1|\2 \3|\4|\5/p' \
        "$file" | sed 's/|true$/|held/; s/|false$/|missed/; s/|null$/|/' |
        awk -F '|' -v name="$name" '{ print "| " name " | " $1 " | " $2 " | " $3 " | " $4 " |" }'
done
