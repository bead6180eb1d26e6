/* A task: how rows of a data file become text, and what is measured on them.
 *
 * The C side of a table in datasets/tasks/ (its README.md lists the members), filled by the compiler's Lua
 * host. Plain data without ownership.
 *
 * Templates are text in which {field} stands for the row's field of that name; {{ and }} are braces.
 * Plain text rows have one field, {text}. With a file of labels beside the data, {label} is the row's line of
 * it. Where a task has choices, {choice} and {letter} are a choice's text and its letter from A, within the
 * templates of a choice and of the list, and {choices} in the prompt is the list. A prompt with {choice} in it
 * is each choice's own. Thread rule: plain data. */
#ifndef MOEC_PROFILER_TASK_H
#define MOEC_PROFILER_TASK_H

#include "formats/base/digest.h"
#include "formats/base/error.h"

#include <stddef.h>

#define MOEC_TASK_NAME_BYTES     64
#define MOEC_TASK_TEMPLATE_BYTES 4096
#define MOEC_TASK_TEXT_BYTES     256 /* short templates, stop texts, markers */
#define MOEC_TASK_MAX_STOPS      8
#define MOEC_TASK_MAX_TEMPLATES  26 /* choices that a task itself lists */
#define MOEC_TASK_MAX_CHOICES    64 /* of a row; letters are of the first 26 */
#define MOEC_TASK_SCRIPT_BYTES   1024
#define MOEC_TASK_MAX_TOKENS     4096 /* of an answer */

enum moec_task_format {
    MOEC_TASK_FORMAT_AUTO =
        0, /* by the file's name: .jsonl .ndjson .json .csv .tsv (each also .zst), else text */
    MOEC_TASK_FORMAT_TEXT = 1,
    MOEC_TASK_FORMAT_JSONL = 2, /* one object (or string) a line */
    MOEC_TASK_FORMAT_CSV = 3,   /* RFC 4180 with a header line */
    MOEC_TASK_FORMAT_JSON = 4,  /* one array of objects (or strings) */
};

/* What a row of plain text is. */
enum moec_task_split {
    MOEC_TASK_SPLIT_FILE = 0,      /* the whole file */
    MOEC_TASK_SPLIT_LINE = 1,      /* each line that is not blank */
    MOEC_TASK_SPLIT_PARAGRAPH = 2, /* lines between blank lines */
};

/* The metric of a row. Each row is measured with all metrics of its kind; losses use the task's own. */
enum moec_task_metric {
    MOEC_TASK_METRIC_PERPLEXITY = 0, /* of the prompt; lower is better */
    /* The model continues the prompt greedily; its answer against the reference. Higher is better. */
    MOEC_TASK_METRIC_ROUGE_1 = 1, /* F1, mean over rows (profiler/tasks/rouge.h) */
    MOEC_TASK_METRIC_ROUGE_2 = 2,
    MOEC_TASK_METRIC_ROUGE_L = 3,
    MOEC_TASK_METRIC_EXACT_MATCH = 4, /* share of rows (profiler/tasks/answer.h) */
    /* The likeliest choice after the prompt against the label: share of rows. Higher is better. */
    MOEC_TASK_METRIC_ACCURACY = 5, /* by log-likelihood */
    MOEC_TASK_METRIC_ACCURACY_BYTES =
        6, /* by log-likelihood / bytes of the choice without white space before it */
    MOEC_TASK_METRIC_ACCURACY_TOKENS = 7, /* by log-likelihood / tokens scored */
    MOEC_TASK_METRIC_RIGHT_MASS = 8, /* of the likelihoods' sum the part of right choices, mean over rows */
    /* Texts for another program to judge, by the id that the reference gives: the share that is not blank. */
    MOEC_TASK_METRIC_COMPLETION = 9,
};
#define MOEC_TASK_METRICS 10

enum moec_task_kind {
    MOEC_TASK_KIND_WINDOWS,    /* running text: perplexity */
    MOEC_TASK_KIND_SUMMARY,    /* generated text: ROUGE */
    MOEC_TASK_KIND_ANSWER,     /* generated text: exact match */
    MOEC_TASK_KIND_CHOICE,     /* likelihood of given texts: accuracy */
    MOEC_TASK_KIND_COMPLETION, /* generated text that is written and not judged */
};

/* The part of a text that is its answer, taken behind the marker. */
enum moec_task_take {
    MOEC_TASK_TAKE_TEXT = 0, /* all of it, without white space around it */
    MOEC_TASK_TAKE_LINE = 1, /* its first line that is not blank */
    MOEC_TASK_TAKE_WORD = 2, /* its first word */
    MOEC_TASK_TAKE_NUMBER = 3,
    MOEC_TASK_TAKE_LAST_NUMBER = 4,
};

struct moec_task;

/* What a data file holds, uncompressed; borrowed. */
struct moec_task_data {
    enum moec_task_format format; /* not AUTO */
    char delimiter;               /* of CSV; 0 = comma */
    const char *bytes;            /* (n_bytes) */
    size_t n_bytes;
    const char *subject; /* names the data in messages */
};

/* Makes other rows of a file's: JSON, one object a line, in `*lines` (owned by the caller), the row of line
 * n in line n; the data's format is JSONL, CSV or JSON, of whose array row n is line n.
 * Errors: MOEC_ERR_FORMAT (the data), MOEC_ERR_SCRIPT, MOEC_ERR_UNSUPPORTED (another format). */
typedef enum moec_status moec_task_reshape(const struct moec_task *task, const struct moec_task_data *data,
                                           char **lines, size_t *n_lines, struct moec_error *err);

struct moec_task {
    char name[MOEC_TASK_NAME_BYTES];
    enum moec_task_format format;
    enum moec_task_split split;
    enum moec_task_metric metric;
    char delimiter; /* of CSV; 0 = comma, tab for .tsv */
    char prompt[MOEC_TASK_TEMPLATE_BYTES];
    char reference[MOEC_TASK_TEMPLATE_BYTES]; /* "" = rows have no reference */
    /* The field {label} is line n of a file beside the data, whose name is the data's without its endings and
     * with this one; "" = none. It may not contain '/' or "..". */
    char labels[MOEC_TASK_TEXT_BYTES];

    /* Rows that are made of the file's before templates see them, by a function of this script (a built-in
     * name or a path), which has this digest; NULL = the file's own. */
    moec_task_reshape *reshape;
    char script[MOEC_TASK_SCRIPT_BYTES];
    uint8_t script_digest[MOEC_SHA256_BYTES];

    /* generation */
    uint32_t n_tokens; /* of an answer at most */
    char stops[MOEC_TASK_MAX_STOPS]
              [MOEC_TASK_TEXT_BYTES]; /* the answer ends before the first of them; "" = none */
    uint32_t stem;                    /* of ROUGE: 1 = words are stemmed, 0 = not */
    enum moec_task_take take;         /* of an exact match, from answer and reference alike */
    char after[MOEC_TASK_TEXT_BYTES]; /* marker before what is taken; "" = none */

    /* choices */
    char choices_field[MOEC_TASK_TEXT_BYTES]; /* an array of strings in the row; "" = the templates below */
    uint32_t n_choice;                        /* templates */
    char choices[MOEC_TASK_MAX_TEMPLATES][MOEC_TASK_TEXT_BYTES];
    char choice[MOEC_TASK_TEXT_BYTES]; /* what follows the prompt, of {choice} and {letter} */
    char list[MOEC_TASK_TEXT_BYTES];   /* one line of {choices} in the prompt */
    char label[MOEC_TASK_TEXT_BYTES];  /* the right choice: its number, or its letter from A */
    uint32_t first_label;              /* number of the first choice, 0 or 1 */
    char right[MOEC_TASK_TEXT_BYTES]; /* an array in the row, a 1 for each right choice and a 0 for others, in
                                       * place of the label; "" = none */
};

/* The task `text`: perplexity of the field `text`, or of plain text taken as one row. */
struct moec_task moec_task_text(void);

/* "perplexity", "rouge-2", ... */
const char *moec_task_metric_name(enum moec_task_metric metric);
enum moec_task_kind moec_task_metric_kind(enum moec_task_metric metric);
/* The metrics of a kind are neighbours: the first of them, and how many. */
enum moec_task_metric moec_task_kind_first(enum moec_task_kind kind, uint32_t *count);

/* Checks what a script filled in: name, enums, delimiter, templates, the name of labels, what its metric
 * needs. Errors: MOEC_ERR_FORMAT naming the task and the member, and within a template the byte. */
MOEC_WARN_UNUSED enum moec_status moec_task_check(const struct moec_task *task, struct moec_error *err);

/* Refuses a task whose metric is not perplexity: `verb` ("a profile") can measure nothing else. */
MOEC_WARN_UNUSED enum moec_status moec_task_need_windows(const struct moec_task *task, const char *verb,
                                                         struct moec_error *err);

/* Walks a template: sets `*piece` and `*n_bytes` to the next piece, a literal or (with *is_field) the name of
 * a field, and returns true; false at the end. `*cursor` starts at the template. The template must have
 * passed moec_task_check. */
bool moec_task_template_next(const char **cursor, const char **piece, size_t *n_bytes, bool *is_field);

#endif
