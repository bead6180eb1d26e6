/* A task is checked whole before anything is read with it. Then each text ends within its array, each
 * template's braces pair up, and what the metric needs is there. moec_task_template_next relies on that and
 * checks nothing itself. */
#include "profiler/tasks/task.h"

#include <string.h>

struct moec_task moec_task_text(void)
{
    struct moec_task task = {.name = "text", .prompt = "{text}"};
    return task;
}

static const struct {
    const char *name;
    enum moec_task_kind kind;
} metrics[MOEC_TASK_METRICS] = {
    [MOEC_TASK_METRIC_PERPLEXITY] = {"perplexity", MOEC_TASK_KIND_WINDOWS},
    [MOEC_TASK_METRIC_ROUGE_1] = {"rouge-1", MOEC_TASK_KIND_SUMMARY},
    [MOEC_TASK_METRIC_ROUGE_2] = {"rouge-2", MOEC_TASK_KIND_SUMMARY},
    [MOEC_TASK_METRIC_ROUGE_L] = {"rouge-l", MOEC_TASK_KIND_SUMMARY},
    [MOEC_TASK_METRIC_EXACT_MATCH] = {"exact-match", MOEC_TASK_KIND_ANSWER},
    [MOEC_TASK_METRIC_ACCURACY] = {"accuracy", MOEC_TASK_KIND_CHOICE},
    [MOEC_TASK_METRIC_ACCURACY_BYTES] = {"accuracy-bytes", MOEC_TASK_KIND_CHOICE},
    [MOEC_TASK_METRIC_ACCURACY_TOKENS] = {"accuracy-tokens", MOEC_TASK_KIND_CHOICE},
    [MOEC_TASK_METRIC_RIGHT_MASS] = {"right-mass", MOEC_TASK_KIND_CHOICE},
    [MOEC_TASK_METRIC_COMPLETION] = {"completion", MOEC_TASK_KIND_COMPLETION},
};

const char *moec_task_metric_name(enum moec_task_metric metric)
{
    return (unsigned)metric < MOEC_TASK_METRICS ? metrics[metric].name : "unknown";
}

enum moec_task_kind moec_task_metric_kind(enum moec_task_metric metric)
{
    return metrics[metric].kind;
}

enum moec_task_metric moec_task_kind_first(enum moec_task_kind kind, uint32_t *count)
{
    enum moec_task_metric first = MOEC_TASK_METRIC_PERPLEXITY;
    *count = 0;
    for (unsigned m = 0; m < MOEC_TASK_METRICS; m++) {
        if (metrics[m].kind != kind)
            continue;
        if (*count == 0)
            first = (enum moec_task_metric)m;
        ++*count;
    }
    return first;
}

/* `capacity`: of the array that the text stands in. */
static enum moec_status check_text(const struct moec_task *task, const char *member, const char *text,
                                   size_t capacity, struct moec_error *err)
{
    if (memchr(text, '\0', capacity) == NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s of task '%s' is longer than %zu bytes", member, task->name,
                         capacity - 1);
    return MOEC_OK;
}

static enum moec_status check_template(const struct moec_task *task, const char *member, const char *text,
                                       size_t capacity, struct moec_error *err)
{
    MOEC_TRY(check_text(task, member, text, capacity, err));
    for (const char *c = text; *c != '\0'; c++) {
        if ((c[0] == '{' || c[0] == '}') && c[1] == c[0]) {
            c++;
            continue;
        }
        if (*c == '}')
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "%s of task '%s' has a '}' without '{' at byte %zu; write '}}' for a literal '}'", member,
                task->name, (size_t)(c - text));
        if (*c != '{')
            continue;
        size_t n = strcspn(c + 1, "{}");
        if (n == 0 || c[1 + n] != '}')
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "%s of task '%s' has no field name in braces at byte %zu; write '{{' for a literal '{'",
                member, task->name, (size_t)(c - text));
        c += n + 1;
    }
    return MOEC_OK;
}

/* The labels' name is the data's with this ending: with a separator or ".." it would be a file elsewhere. */
static enum moec_status check_labels(const struct moec_task *task, struct moec_error *err)
{
    MOEC_TRY(check_text(task, "labels", task->labels, sizeof task->labels, err));
    if (strchr(task->labels, '/') == NULL && strstr(task->labels, "..") == NULL)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "field 'labels' of task '%s' is '%s', expected the ending of a file name in the data's "
                     "folder, without '/' and '..'",
                     task->name, task->labels);
}

static enum moec_status need(const struct moec_task *task, const char *member, bool holds,
                             struct moec_error *err)
{
    if (holds)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "task '%s' has no '%s', which its metric '%s' needs: add this field to the task file",
                     task->name, member, moec_task_metric_name(task->metric));
}

static enum moec_status check_generation(const struct moec_task *task, struct moec_error *err)
{
    MOEC_TRY(need(task, "reference", task->reference[0] != '\0', err));
    if (task->n_tokens == 0 || task->n_tokens > MOEC_TASK_MAX_TOKENS)
        return moec_fail(err, MOEC_ERR_FORMAT, "task '%s' generates %u tokens, expected 1..%d", task->name,
                         (unsigned)task->n_tokens, MOEC_TASK_MAX_TOKENS);
    if (task->stem > 1)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "field 'stem' of task '%s' is %u, expected 0 or 1 (compare word stems)", task->name,
                         (unsigned)task->stem);
    if ((unsigned)task->take > MOEC_TASK_TAKE_LAST_NUMBER)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "field 'take' of task '%s' is %u, expected 0 (text) to 4 (last number)", task->name,
                         (unsigned)task->take);
    for (size_t i = 0; i < MOEC_TASK_MAX_STOPS; i++)
        MOEC_TRY(check_text(task, "a stop text", task->stops[i], sizeof task->stops[i], err));
    return check_text(task, "after", task->after, sizeof task->after, err);
}

static enum moec_status check_choices(const struct moec_task *task, struct moec_error *err)
{
    const size_t capacity = MOEC_TASK_TEXT_BYTES;
    if (task->n_choice > MOEC_TASK_MAX_TEMPLATES || task->n_choice == 1)
        return moec_fail(err, MOEC_ERR_FORMAT, "task '%s' has %u choices, expected 2..%d", task->name,
                         (unsigned)task->n_choice, MOEC_TASK_MAX_TEMPLATES);
    MOEC_TRY(check_text(task, "choices", task->choices_field, capacity, err));
    MOEC_TRY(need(task, "choices", (task->n_choice > 0) != (task->choices_field[0] != '\0'), err));
    for (uint32_t i = 0; i < task->n_choice; i++)
        MOEC_TRY(check_template(task, "a choice", task->choices[i], capacity, err));
    MOEC_TRY(check_template(task, "choice", task->choice, capacity, err));
    MOEC_TRY(need(task, "choice", task->choice[0] != '\0', err));
    MOEC_TRY(check_template(task, "list", task->list, capacity, err));
    MOEC_TRY(check_template(task, "label", task->label, capacity, err));
    MOEC_TRY(check_text(task, "right", task->right, capacity, err));
    MOEC_TRY(need(task, "label", task->label[0] != '\0' || task->right[0] != '\0', err));
    if (task->first_label > 1)
        return moec_fail(err, MOEC_ERR_FORMAT, "field 'first_label' of task '%s' is %u, expected 0 or 1",
                         task->name, (unsigned)task->first_label);
    return MOEC_OK;
}

enum moec_status moec_task_check(const struct moec_task *task, struct moec_error *err)
{
    if (task->name[0] == '\0' || memchr(task->name, '\0', sizeof task->name) == NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "a task needs a name of 1..%d bytes",
                         MOEC_TASK_NAME_BYTES - 1);
    if ((unsigned)task->format > MOEC_TASK_FORMAT_JSON)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "field 'format' of task '%s' is %u, expected 0 (auto) to 4 (json)", task->name,
                         (unsigned)task->format);
    if ((unsigned)task->split > MOEC_TASK_SPLIT_PARAGRAPH)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "field 'split' of task '%s' is %u, expected 0 (file) to 2 (paragraph)", task->name,
                         (unsigned)task->split);
    if ((unsigned)task->metric >= MOEC_TASK_METRICS)
        return moec_fail(err, MOEC_ERR_FORMAT, "field 'metric' of task '%s' is %u, expected 0..%d",
                         task->name, (unsigned)task->metric, MOEC_TASK_METRICS - 1);
    if (task->delimiter == '"' || task->delimiter == '\n' || task->delimiter == '\r')
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "field 'delimiter' of task '%s' is a quote or a line end, expected another "
                         "character",
                         task->name);
    if (task->prompt[0] == '\0')
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "field 'prompt' of task '%s' is empty, expected a template such as '{text}'",
                         task->name);
    MOEC_TRY(check_template(task, "prompt", task->prompt, sizeof task->prompt, err));
    MOEC_TRY(check_template(task, "reference", task->reference, sizeof task->reference, err));
    MOEC_TRY(check_text(task, "script", task->script, sizeof task->script, err));
    MOEC_TRY(check_labels(task, err));
    switch (moec_task_metric_kind(task->metric)) {
    case MOEC_TASK_KIND_SUMMARY:
    case MOEC_TASK_KIND_ANSWER:
    case MOEC_TASK_KIND_COMPLETION:
        return check_generation(task, err);
    case MOEC_TASK_KIND_CHOICE:
        return check_choices(task, err);
    case MOEC_TASK_KIND_WINDOWS:
        break;
    }
    return MOEC_OK;
}

enum moec_status moec_task_need_windows(const struct moec_task *task, const char *verb,
                                        struct moec_error *err)
{
    if (task->metric == MOEC_TASK_METRIC_PERPLEXITY)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "%s measures perplexity, but task '%s' measures %s; write a task file with this data's "
                     "prompt and metric = \"perplexity\", or measure %s with moec eval",
                     verb, task->name, moec_task_metric_name(task->metric), task->name);
}

bool moec_task_template_next(const char **cursor, const char **piece, size_t *n_bytes, bool *is_field)
{
    const char *at = *cursor;
    if (*at == '\0')
        return false;
    *is_field = false;
    *piece = at;
    if (at[0] == '{' && at[1] != '{') {
        *is_field = true;
        *piece = at + 1;
        *n_bytes = strcspn(at + 1, "}");
        *cursor = at + *n_bytes + 2;
    } else if (at[0] == '{' || at[0] == '}') {
        *n_bytes = 1;
        *cursor = at + 2;
    } else {
        *n_bytes = strcspn(at, "{}");
        *cursor = at + *n_bytes;
    }
    return true;
}
