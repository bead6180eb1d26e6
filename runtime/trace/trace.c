/* Two buffers: events are copied into one while the other is written out.
 *
 *   | event | its arrays | event | ...     each a multiple of 8 bytes
 */
#include "runtime/trace/trace.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "runtime/trace/trace_text.h"

#include <pthread.h>
#include <string.h>

#define CAPACITY_DEFAULT_BYTES (4u << 20)
#define CAPACITY_MIN_BYTES     (64u << 10)

struct event {
    uint64_t n_bytes; /* with arrays */
    bool is_answer;
    union {
        struct moec_trace_span span;
        struct {
            struct moec_router_answer head; /* pointers are set when it is read back */
            uint32_t top_k;
            bool has_choices;
            uint64_t now_ns;
        } answer;
    } of;
};

struct half {
    uint8_t *bytes; /* owned */
    uint64_t used;
};

struct moec_trace {
    pthread_mutex_t lock; /* what follows */
    struct half halves[2];
    uint32_t current;
    uint64_t half_bytes;
    uint64_t n_lost_spans, n_lost_answers;

    pthread_mutex_t writing; /* the text; taken before the lock */
    struct moec_trace_text text;
};

static uint64_t half_bytes(const struct moec_trace_setup *setup)
{
    const uint64_t capacity = setup->capacity_bytes > 0 ? setup->capacity_bytes : CAPACITY_DEFAULT_BYTES;
    return (capacity > CAPACITY_MIN_BYTES ? capacity : CAPACITY_MIN_BYTES) / 2 / 8 * 8;
}

/* Encoding the path table takes about as much as it does itself. */
uint64_t moec_trace_bytes(const struct moec_trace_setup *setup)
{
    const struct moec_path_table *paths = &setup->bundle->paths;
    return sizeof(struct moec_trace) + 2 * half_bytes(setup) + MOEC_TRACE_TEXT_BYTES +
           (uint64_t)paths->n_key * (sizeof *paths->keys + paths->n_value * sizeof *paths->values) +
           (uint64_t)paths->n_layer * paths->n_expert * sizeof *paths->frequency;
}

enum moec_status moec_trace_open(const struct moec_trace_setup *setup, struct moec_trace **out,
                                 struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_trace), "trace", err));
    struct moec_trace *trace = memory;
    trace->half_bytes = half_bytes(setup);
    for (size_t i = 0; i < 2; i++) {
        MOEC_TRY_OUT(moec_alloc(&memory, trace->half_bytes, 1, "trace", err));
        trace->halves[i].bytes = memory;
    }
    MOEC_TRY_OUT(moec_trace_text_open(&trace->text, setup, moec_now_ns(), err));
    (void)pthread_mutex_init(&trace->lock, NULL);
    (void)pthread_mutex_init(&trace->writing, NULL);
    *out = trace;
    return MOEC_OK;
out:
    free(trace->halves[0].bytes);
    free(trace->halves[1].bytes);
    free(trace);
    return status;
}

static void release(struct moec_trace *trace)
{
    (void)pthread_mutex_destroy(&trace->writing);
    (void)pthread_mutex_destroy(&trace->lock);
    free(trace->halves[0].bytes);
    free(trace->halves[1].bytes);
    free(trace);
}

enum moec_status moec_trace_close(struct moec_trace *trace, struct moec_error *err)
{
    if (trace == NULL)
        return MOEC_OK;
    moec_trace_flush(trace);
    const enum moec_status status =
        moec_trace_text_close(&trace->text, trace->n_lost_spans, trace->n_lost_answers, err);
    release(trace);
    return status;
}

void moec_trace_discard(struct moec_trace *trace)
{
    if (trace == NULL)
        return;
    moec_trace_text_discard(&trace->text);
    release(trace);
}

uint64_t moec_trace_now(const struct moec_trace *trace)
{
    return trace != NULL ? moec_now_ns() : 0;
}

/* Room for an event of n bytes, under the lock; NULL when there is none. */
static struct event *take(struct moec_trace *trace, uint64_t n_bytes)
{
    struct half *half = &trace->halves[trace->current];
    n_bytes = (n_bytes + 7) / 8 * 8;
    if (trace->half_bytes - half->used < n_bytes)
        return NULL;
    struct event *event = (struct event *)(void *)(half->bytes + half->used);
    event->n_bytes = n_bytes;
    half->used += n_bytes;
    return event;
}

void moec_trace_record(struct moec_trace *trace, const struct moec_trace_span *span)
{
    if (trace == NULL)
        return;
    (void)pthread_mutex_lock(&trace->lock);
    struct event *event = take(trace, sizeof *event);
    if (event != NULL) {
        event->is_answer = false;
        event->of.span = *span;
    } else {
        trace->n_lost_spans++;
    }
    (void)pthread_mutex_unlock(&trace->lock);
}

void moec_trace_compute(struct moec_trace *trace, const char *what, uint32_t layer, uint64_t begin_ns)
{
    if (trace != NULL)
        moec_trace_record(trace, &(struct moec_trace_span){.what = what,
                                                           .lane = MOEC_TRACE_COMPUTE,
                                                           .layer = layer,
                                                           .expert = MOEC_TRACE_NONE,
                                                           .begin_ns = begin_ns,
                                                           .end_ns = moec_now_ns()});
}

static void copy(uint8_t **at, const void *from, size_t n_bytes)
{
    if (n_bytes > 0)
        memcpy(*at, from, n_bytes);
    *at += n_bytes;
}

/* Lists of an answer, in the order in which they stand behind its event. */
#define N_SCORED (MOEC_GATES_AHEAD + 1)

static void list_scored(const struct moec_router_answer *answer, struct moec_gate_list lists[static N_SCORED])
{
    lists[0] = (struct moec_gate_list){answer->next.gate.experts, answer->next.gate.n};
    for (size_t i = 0; i < MOEC_GATES_AHEAD - 1; i++)
        lists[1 + i] = answer->next.later[i];
    lists[N_SCORED - 1] = (struct moec_gate_list){answer->next.learned.experts, answer->next.learned.n};
}

/* Bytes of what stands behind the choices: logits, row by row, and which are low. */
static size_t beside_bytes(const struct moec_router_answer *answer, size_t n_choice)
{
    const size_t n_logit = answer->logits.rows != NULL ? (size_t)answer->n_tok * answer->logits.n : 0;
    return n_logit * sizeof *answer->logits.rows +
           (answer->choices.is_low != NULL ? n_choice : 0) * sizeof(bool);
}

static void copy_beside(uint8_t **at, const struct moec_router_answer *answer, size_t n_choice)
{
    for (uint32_t t = 0; answer->logits.rows != NULL && t < answer->n_tok; t++)
        copy(at, answer->logits.rows + (size_t)t * answer->logits.stride,
             answer->logits.n * sizeof *answer->logits.rows);
    if (answer->choices.is_low != NULL)
        copy(at, answer->choices.is_low, n_choice * sizeof *answer->choices.is_low);
}

static bool record_answer(struct moec_trace *trace, const struct moec_router_answer *answer, uint32_t top_k,
                          uint64_t now_ns, bool is_last_try)
{
    const bool has_choices = answer->choices.experts != NULL && answer->choices.weights != NULL;
    const size_t n_choice = has_choices ? (size_t)answer->n_tok * top_k : 0;
    const size_t active_bytes = answer->active.n * sizeof *answer->active.list;
    struct moec_gate_list lists[N_SCORED];
    size_t scored_bytes = 0;
    list_scored(answer, lists);
    for (size_t i = 0; i < N_SCORED; i++)
        scored_bytes += lists[i].n * sizeof *lists[i].experts;
    (void)pthread_mutex_lock(&trace->lock);
    struct event *event =
        take(trace, sizeof *event + active_bytes + scored_bytes +
                        n_choice * (sizeof(uint32_t) + sizeof(float)) + beside_bytes(answer, n_choice));
    if (event != NULL) {
        uint8_t *at = (uint8_t *)(event + 1);
        event->is_answer = true;
        event->of.answer.head = *answer;
        event->of.answer.top_k = top_k;
        event->of.answer.has_choices = has_choices;
        event->of.answer.now_ns = now_ns;
        copy(&at, answer->active.list, active_bytes);
        for (size_t i = 0; i < N_SCORED; i++)
            copy(&at, lists[i].experts, lists[i].n * sizeof *lists[i].experts);
        if (has_choices) {
            copy(&at, answer->choices.experts, n_choice * sizeof(uint32_t));
            copy(&at, answer->choices.weights, n_choice * sizeof(float));
        }
        copy_beside(&at, answer, n_choice);
    } else if (is_last_try) {
        trace->n_lost_answers++;
    }
    (void)pthread_mutex_unlock(&trace->lock);
    return event != NULL;
}

void moec_trace_answer(struct moec_trace *trace, const struct moec_router_answer *answer, uint32_t top_k,
                       uint64_t now_ns)
{
    if (trace == NULL || record_answer(trace, answer, top_k, now_ns, false))
        return;
    moec_trace_flush(trace);
    (void)record_answer(trace, answer, top_k, now_ns, true);
}

static const struct moec_scored_expert *take_scored(const uint8_t **at, uint32_t n)
{
    const uint8_t *list = *at;
    *at += n * sizeof(struct moec_scored_expert);
    return (const struct moec_scored_expert *)(const void *)list;
}

static void write_answer(struct moec_trace_text *text, struct event *event)
{
    struct moec_router_answer answer = event->of.answer.head;
    const uint8_t *at = (const uint8_t *)(event + 1);
    const size_t n_choice = (size_t)answer.n_tok * event->of.answer.top_k;
    answer.active.n_takers = NULL; /* the choices say it */
    answer.active.list = (const uint32_t *)(const void *)at;
    at += answer.active.n * sizeof *answer.active.list;
    answer.next.gate.experts = take_scored(&at, answer.next.gate.n);
    for (size_t i = 0; i < MOEC_GATES_AHEAD - 1; i++)
        answer.next.later[i].experts = take_scored(&at, answer.next.later[i].n);
    answer.next.learned.experts = take_scored(&at, answer.next.learned.n);
    answer.choices.experts = event->of.answer.has_choices ? (const uint32_t *)(const void *)at : NULL;
    answer.choices.weights = (const float *)(const void *)(at + n_choice * sizeof(uint32_t));
    at += event->of.answer.has_choices ? n_choice * (sizeof(uint32_t) + sizeof(float)) : 0;
    if (answer.logits.rows != NULL) {
        answer.logits.rows = (const float *)(const void *)at;
        answer.logits.stride = answer.logits.n;
        at += (size_t)answer.n_tok * answer.logits.n * sizeof *answer.logits.rows;
    }
    if (answer.choices.is_low != NULL)
        answer.choices.is_low = (const bool *)(const void *)at;
    moec_trace_text_answer(text, &answer, event->of.answer.top_k, event->of.answer.now_ns);
}

void moec_trace_flush(struct moec_trace *trace)
{
    if (trace == NULL)
        return;
    (void)pthread_mutex_lock(&trace->writing);
    (void)pthread_mutex_lock(&trace->lock);
    struct half *half = &trace->halves[trace->current];
    trace->current = 1 - trace->current;
    (void)pthread_mutex_unlock(&trace->lock);
    for (uint64_t at = 0; at < half->used;) {
        struct event *event = (struct event *)(void *)(half->bytes + at);
        if (event->is_answer)
            write_answer(&trace->text, event);
        else
            moec_trace_text_span(&trace->text, &event->of.span);
        at += event->n_bytes;
    }
    moec_trace_text_flush(&trace->text);
    half->used = 0;
    (void)pthread_mutex_unlock(&trace->writing);
}
