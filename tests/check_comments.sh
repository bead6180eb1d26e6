#!/bin/sh
# Refuses lists, tables and formulas in comments that run into the lines after them: an item or an indented line is
# followed by another, by an indented line, by an empty one or by the comment's end. A formatter that refills comments
# leaves such lines, and definitions become unreadable.
# Usage: tests/check_comments.sh FILE...
set -eu
awk '
# The text of a comment line, its margin taken away; MARGIN is where the stars stand.
function text_of(line) {
    match(line, /^ *\/?\*+ ?/)
    margin = index(line, "*")
    return substr(line, RLENGTH + 1)
}
function is_item(text) {
    return text ~ /^(-|\*|[0-9]+\.) /
}
FNR == 1 { inside = 0 }
inside {
    text = text_of($0)
    is_comment = $0 ~ /^ *\*/ && margin == star
    ends = $0 ~ /\*\//
    if (is_comment && $0 !~ /^ *\*\/ *$/ && hangs && text != "" && text !~ /^ / && !is_item(text)) {
        print FILENAME ":" FNR ": \"" text "\" stands under a list or an indented line: indent it, or leave a line empty before it"
        bad = 1
    }
    hangs = is_comment && !ends && (text ~ /^ +[^ ]/ || is_item(text))
    # What an item goes on with hangs as the item does.
    if (ends || !is_comment) inside = 0
    next
}
/^ *\/\*/ && !/\*\// {
    inside = 1
    text = text_of($0)
    star = margin
    hangs = is_item(text)
}
END { exit bad }
' "$@"
