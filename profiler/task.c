#include "profiler/task.h"

#include <string.h>

struct moec_task moec_task_text(void)
{
    struct moec_task task = {.name = "text", .prompt = "{text}"};
    return task;
}

const char *moec_task_metric_name(enum moec_task_metric metric)
{
    switch (metric) {
    case MOEC_TASK_METRIC_PERPLEXITY:
        return "perplexity";
    }
    return "unknown";
}

static enum moec_status check_template(const struct moec_task *task, const char *member, const char *text,
                                       struct moec_error *err)
{
    if (memchr(text, '\0', MOEC_TASK_TEMPLATE_BYTES) == NULL)
        return moec_fail(err, MOEC_ERR_USAGE, "%s of task '%s' is longer than %d bytes", member, task->name,
                         MOEC_TASK_TEMPLATE_BYTES - 1);
    for (const char *c = text; *c != '\0'; c++) {
        if ((c[0] == '{' || c[0] == '}') && c[1] == c[0]) {
            c++;
            continue;
        }
        if (*c == '}')
            return moec_fail(
                err, MOEC_ERR_USAGE,
                "%s of task '%s' has a '}' without '{' at byte %zu; write '}}' for the character", member,
                task->name, (size_t)(c - text));
        if (*c != '{')
            continue;
        size_t n = strcspn(c + 1, "{}");
        if (n == 0 || c[1 + n] != '}')
            return moec_fail(
                err, MOEC_ERR_USAGE,
                "%s of task '%s' has no field name in braces at byte %zu; write '{{' for the character",
                member, task->name, (size_t)(c - text));
        c += n + 1;
    }
    return MOEC_OK;
}

enum moec_status moec_task_check(const struct moec_task *task, struct moec_error *err)
{
    if (task->name[0] == '\0' || memchr(task->name, '\0', sizeof task->name) == NULL)
        return moec_fail(err, MOEC_ERR_USAGE, "a task needs a name of 1..%d bytes", MOEC_TASK_NAME_BYTES - 1);
    if ((unsigned)task->format > MOEC_TASK_FORMAT_JSON)
        return moec_fail(err, MOEC_ERR_USAGE, "format of task '%s' is %u, expected 0..4", task->name,
                         (unsigned)task->format);
    if ((unsigned)task->split > MOEC_TASK_SPLIT_PARAGRAPH)
        return moec_fail(err, MOEC_ERR_USAGE, "split of task '%s' is %u, expected 0..2", task->name,
                         (unsigned)task->split);
    if (task->metric != MOEC_TASK_METRIC_PERPLEXITY)
        return moec_fail(err, MOEC_ERR_USAGE, "metric of task '%s' is %u, expected 0 (perplexity)",
                         task->name, (unsigned)task->metric);
    if (task->delimiter == '"' || task->delimiter == '\n' || task->delimiter == '\r')
        return moec_fail(err, MOEC_ERR_USAGE, "delimiter of task '%s' is a quote or a line end", task->name);
    if (task->prompt[0] == '\0')
        return moec_fail(err, MOEC_ERR_USAGE,
                         "prompt of task '%s' is empty, expected a template such as '{text}'", task->name);
    MOEC_TRY(check_template(task, "prompt", task->prompt, err));
    return check_template(task, "reference", task->reference, err);
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
