/* Exact match: the part of a text that is its answer, and whether two answers are the same.
 *
 * Solutions of GSM8K end in "#### 72", so its answer is the number after "####", both in the model's text and
 * in the reference. Texts are the same when their bytes are, numbers when their values are: "1,234.50",
 * "1234.5" and "01234.5" are one number. A number is digits with an optional decimal part, commas before
 * groups of three digits, and a minus that does not follow a letter or digit. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_ANSWER_H
#define MOEC_PROFILER_ANSWER_H

#include "profiler/tasks/task.h"

struct moec_answer {
    const char *bytes; /* within the text it was taken from */
    size_t n_bytes;
};

/* Finds task->take after the first task->after. False if the marker or the answer is missing; the answer is
 * then empty. */
bool moec_answer_take(const struct moec_task *task, const char *text, size_t n_bytes,
                      struct moec_answer *answer);

/* Whether two answers taken by this task are the same. */
bool moec_answer_equal(const struct moec_task *task, const struct moec_answer *a,
                       const struct moec_answer *b);

#endif
