/* Numbers are compared digit by digit, so no length rounds them. Commas and zeros that change nothing are
 * skipped, and -0 is 0. */
#include "profiler/tasks/answer.h"

#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static struct moec_answer trim(const char *bytes, size_t n)
{
    while (n > 0 && is_space(bytes[n - 1]))
        n--;
    for (; n > 0 && is_space(*bytes); n--)
        bytes++;
    return (struct moec_answer){bytes, n};
}

/* Bytes of digits at `at`; with commas, groups of three behind commas belong to them. */
static size_t digits(const char *text, size_t n, size_t at, bool commas)
{
    size_t end = at;
    while (end < n && is_digit(text[end]))
        end++;
    while (commas && end > at && end + 4 <= n && text[end] == ',' && is_digit(text[end + 1]) &&
           is_digit(text[end + 2]) && is_digit(text[end + 3]) && (end + 4 == n || !is_digit(text[end + 4])))
        end += 4;
    return end - at;
}

/* Bytes of a number that starts at `at`, 0 when none does. */
static size_t number_at(const char *text, size_t n, size_t at)
{
    size_t end = at;
    if (text[end] == '-' && (at == 0 || !is_word(text[at - 1])))
        end++;
    size_t whole = digits(text, n, end, true);
    end += whole;
    size_t part = end < n && text[end] == '.' ? digits(text, n, end + 1, false) : 0;
    if (part > 0)
        end += 1 + part;
    return whole + part > 0 ? end - at : 0;
}

static bool take_number(const char *text, size_t n, bool last, struct moec_answer *answer)
{
    for (size_t at = 0; at < n;) {
        size_t length = number_at(text, n, at);
        if (length > 0) {
            *answer = (struct moec_answer){text + at, length};
            if (!last)
                return true;
        }
        at += length > 0 ? length : 1;
    }
    return answer->n_bytes > 0;
}

bool moec_answer_take(const struct moec_task *task, const char *text, size_t n_bytes,
                      struct moec_answer *answer)
{
    *answer = (struct moec_answer){0};
    const size_t n_after = strlen(task->after);
    if (n_after > 0) {
        const char *marker = memmem(text, n_bytes, task->after, n_after);
        if (marker == NULL)
            return false;
        n_bytes -= (size_t)(marker - text) + n_after;
        text = marker + n_after;
    }
    const struct moec_answer all = trim(text, n_bytes);
    size_t n = 0;
    switch (task->take) {
    case MOEC_TASK_TAKE_TEXT:
        *answer = all;
        break;
    case MOEC_TASK_TAKE_LINE:
        while (n < all.n_bytes && all.bytes[n] != '\n')
            n++;
        *answer = trim(all.bytes, n);
        break;
    case MOEC_TASK_TAKE_WORD:
        while (n < all.n_bytes && !is_space(all.bytes[n]))
            n++;
        *answer = (struct moec_answer){all.bytes, n};
        break;
    case MOEC_TASK_TAKE_NUMBER:
    case MOEC_TASK_TAKE_LAST_NUMBER:
        return take_number(all.bytes, all.n_bytes, task->take == MOEC_TASK_TAKE_LAST_NUMBER, answer);
    }
    return answer->n_bytes > 0;
}

/* A number's digits before and behind the point, without zeros that change nothing. */
struct decimal {
    bool negative;
    const char *whole, *whole_end; /* commas may stand within */
    const char *part, *part_end;
};

static struct decimal read_decimal(const struct moec_answer *answer)
{
    const char *at = answer->bytes, *end = at + answer->n_bytes;
    struct decimal d = {.negative = at < end && *at == '-'};
    at += d.negative;
    const char *point = memchr(at, '.', (size_t)(end - at));
    d.whole = at;
    d.whole_end = point == NULL ? end : point;
    d.part = point == NULL ? end : point + 1;
    d.part_end = end;
    while (d.whole < d.whole_end && (*d.whole == '0' || *d.whole == ','))
        d.whole++;
    while (d.part_end > d.part && d.part_end[-1] == '0')
        d.part_end--;
    d.negative = d.negative && (d.whole < d.whole_end || d.part < d.part_end);
    return d;
}

static bool same_number(const struct moec_answer *a, const struct moec_answer *b)
{
    struct decimal x = read_decimal(a), y = read_decimal(b);
    if (x.negative != y.negative || x.part_end - x.part != y.part_end - y.part ||
        memcmp(x.part, y.part, (size_t)(x.part_end - x.part)) != 0)
        return false;
    for (;;) {
        x.whole += x.whole < x.whole_end && *x.whole == ',';
        y.whole += y.whole < y.whole_end && *y.whole == ',';
        if (x.whole == x.whole_end || y.whole == y.whole_end)
            return x.whole == x.whole_end && y.whole == y.whole_end;
        if (*x.whole++ != *y.whole++)
            return false;
    }
}

bool moec_answer_equal(const struct moec_task *task, const struct moec_answer *a, const struct moec_answer *b)
{
    if (a->n_bytes == 0 || b->n_bytes == 0)
        return false;
    if (task->take == MOEC_TASK_TAKE_NUMBER || task->take == MOEC_TASK_TAKE_LAST_NUMBER)
        return same_number(a, b);
    return a->n_bytes == b->n_bytes && memcmp(a->bytes, b->bytes, a->n_bytes) == 0;
}
