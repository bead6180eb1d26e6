# Rows of a task made of text: every sixth line, and of four lines the one that follows (task=line), or the word that
# follows in the middle of a line (task=word). JSON, one row a line. In the locale C.

function quoted(text) {
    gsub(/\\/, "&&", text)
    gsub(/"/, "\\\"", text)
    gsub(/\n/, "\\n", text)
    gsub(/\t/, "\\t", text)
    gsub(/[\001-\037]/, " ", text)
    return "\"" text "\""
}

# The lines before line `at`, as the prompt begins.
function before(at,    text, i) {
    text = line[at - n_before]
    for (i = at - n_before + 1; i < at; i++)
        text = text "\n" line[i]
    return text
}

# The line, and the next three others of its kind: the right one comes first, second, third and fourth in turn.
function put_lines(at,    other, n, i, label, list) {
    for (i = at + 1; i <= NR && n < 3; i++)
        if (length(line[i]) > least && line[i] != line[at] && line[i] != other[0] && line[i] != other[1])
            other[n++] = line[i]
    if (n < 3)
        return
    label = n_row++ % 4
    n = 0
    for (i = 0; i < 4; i++)
        list = list (i > 0 ? ", " : "") quoted("\n" (i == label ? line[at] : other[n++]))
    printf "{\"text\": %s, \"choices\": [%s], \"label\": %d}\n", quoted(before(at)), list, label
}

function put_word(at,    word, n, i, half) {
    n = split(line[at], word, " ")
    half = word[1]
    for (i = 2; i <= n / 2; i++)
        half = half " " word[i]
    if (n > 3)
        printf "{\"text\": %s, \"word\": %s}\n", quoted(before(at) "\n" half), quoted(word[i])
}

BEGIN {
    n_before = 6
    least = 15 # bytes of a line that says something
}

{ line[NR] = $0 }

END {
    for (at = n_before + 1; at <= NR; at++)
        if (length(line[at]) > least) {
            if (task == "line")
                put_lines(at)
            else
                put_word(at)
            at += n_before
        }
}
