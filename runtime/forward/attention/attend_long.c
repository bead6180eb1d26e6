/* Shared by heads, each thread would read a part of each position's row, and with F16 a part of a page:
 * prefetchers follow a page, and fetch what the other threads read too. Shared by positions, each reads on
 * where it stopped: two threads of a Xeon of 2024 read F16 rows of 4 KiB, in small pages, at 36 GB/s in place
 * of 25. So scores of all chunks come first, then the chunks' weighted values, each against the maximum that
 * it has among the chunks before it, and last the chunks are put together in order: the same operations as
 * moec_attend's, with the same bits. All of this is done for some chunks at a time, as many as the rows of
 * scratch that a token leaves free have room for.
 *
 * The calling thread begins with the first chunk, and puts chunks together as it goes; what the other threads
 * weigh waits for the end, as those lines then come from the caches of other cores. */
#include "runtime/forward/attention/attend_long.h"
#include "runtime/forward/context/steps.h"

#include <math.h>

/* Chunks at a time: what they leave behind for the last step stays in the second-level cache. */
#define MOST_CHUNKS 64u
/* With fewer, a thread waits for others longer than this gains: a model of 1 KiB a position was faster from
 * about 400 positions on. */
#define LEAST_CHUNKS 8u
/* Chunks ahead of the one that is joined, which are asked for. */
#define CHUNKS_AHEAD 4u

struct run {
    const struct moec_attention *attention;
    const struct moec_span *span;
    float *q;             /* (heads, dim), where outputs go */
    uint32_t n_rows, dim; /* query heads */
    uint32_t from, to;    /* positions that are seen */
    uint32_t first, n;    /* chunks at work */
    uint32_t n_joined;    /* of those the first ones, which are in the sums */
    bool is_last;         /* no chunks follow */
    /* Of each chunk at work: */
    float *scores; /* (rows, MOEC_SUM_CHUNK) */
    float *part;   /* (rows, dim) */
    float *max;    /* (rows) of its own scores, then of all up to it */
    float *total;  /* (rows) */
    /* Of the chunks before: */
    float *sum;       /* (rows, dim) */
    float *sum_max;   /* (rows) */
    float *sum_total; /* (rows) */
};

static struct moec_heads heads_of(const struct run *run, const float *rows, uint32_t position)
{
    const struct moec_attention *attention = run->attention;
    return moec_attention_heads(attention, rows + position * attention->kv_room, attention->n_group);
}

static void score_chunk(void *context, size_t item, int thread)
{
    const struct run *run = context;
    const struct moec_kernels *kernels = run->attention->forward->kernels;
    const uint32_t first = (run->first + (uint32_t)item) * MOEC_SUM_CHUNK;
    float *scores = run->scores + item * run->n_rows * MOEC_SUM_CHUNK;
    uint32_t begin = 0, end = 0;
    (void)thread;
    moec_attention_see(run->from, run->to, first, &begin, &end);
    const struct moec_heads keys = heads_of(run, run->span->k_prefix, first);
    kernels->dot_heads(&keys, end, run->q, scores, MOEC_SUM_CHUNK);
    for (uint32_t row = 0; row < run->n_rows; row++, scores += MOEC_SUM_CHUNK) {
        moec_scale_lanes(scores, end, run->attention->scale);
        run->max[item * run->n_rows + row] = kernels->max(scores + begin, end - begin);
    }
}

/* The maxima of chunks become those of all up to each. */
static void carry_maxima(const struct run *run)
{
    const float *before = run->sum_max;
    float *max = run->max;
    for (uint32_t i = 0; i < run->n; i++, before = max, max += run->n_rows)
        for (uint32_t row = 0; row < run->n_rows; row++)
            max[row] = max[row] > before[row] ? max[row] : before[row];
}

/* Puts what a row has of the next chunk, at work as number `at`, behind those before it. */
static void join_row_of(const struct run *run, size_t row, size_t at, const float *part)
{
    const size_t i = at * run->n_rows + row;
    float *sum = run->sum + row * run->dim;
    moec_attention_raise(run->max[i], &run->sum_max[row], &run->sum_total[row], sum, run->dim);
    run->sum_total[row] += run->total[i];
    run->attention->forward->kernels->add(part, run->dim, sum);
}

static void weigh_chunk(void *context, size_t item, int thread)
{
    struct run *run = context;
    const struct moec_kernels *kernels = run->attention->forward->kernels;
    const uint32_t first = (run->first + (uint32_t)item) * MOEC_SUM_CHUNK;
    const bool joins = thread == 0 && item == run->n_joined;
    float *scores = run->scores + item * run->n_rows * MOEC_SUM_CHUNK;
    float *part = run->part + (joins ? 0 : item * run->n_rows * run->dim);
    uint32_t begin = 0, end = 0;
    moec_attention_see(run->from, run->to, first, &begin, &end);
    for (uint32_t row = 0; row < run->n_rows; row++) {
        const size_t at = item * run->n_rows + row;
        float *s = scores + row * MOEC_SUM_CHUNK + begin;
        run->total[at] = kernels->exp_sum(s, run->max[at], end - begin, s);
    }
    const struct moec_heads values = heads_of(run, run->span->v_prefix, first + begin);
    kernels->sum_heads(&values, end - begin, scores + begin, MOEC_SUM_CHUNK, part);
    if (!joins)
        return;
    for (uint32_t row = 0; row < run->n_rows; row++)
        join_row_of(run, row, item, part + (size_t)row * run->dim);
    run->n_joined++;
}

/* What a row has of a chunk: inlined, as gcc drops calls of a function that does nothing else. */
__attribute__((always_inline)) static inline void ask_part(const struct run *run, size_t row, size_t at)
{
    const float *part = run->part + (at * run->n_rows + row) * run->dim;
    for (size_t i = 0; at < run->n && i < run->dim; i += MOEC_LANES)
        __builtin_prefetch(part + i);
}

/* Joins what is not yet, and makes a row's outputs where that was the last. */
static void join_row(void *context, size_t row, int thread)
{
    const struct run *run = context;
    const size_t dim = run->dim;
    const float *sum = run->sum + row * dim;
    (void)thread;
    for (size_t at = run->n_joined; at < run->n_joined + CHUNKS_AHEAD; at++)
        ask_part(run, row, at);
    for (size_t at = run->n_joined; at < run->n; at++) {
        ask_part(run, row, at + CHUNKS_AHEAD);
        join_row_of(run, row, at, run->part + (at * run->n_rows + row) * dim);
    }
    for (size_t i = 0; i < dim && run->is_last; i++)
        run->q[row * dim + i] = sum[i] / run->sum_total[row];
}

static void attend_chunks(struct run *run)
{
    const struct moec_forward *forward = run->attention->forward;
    const uint64_t row_work = (uint64_t)run->n_rows * run->dim;
    const uint64_t work = run->n * MOEC_SUM_CHUNK * row_work;
    moec_forward_run(forward, run->n, work, score_chunk, run);
    carry_maxima(run);
    run->n_joined = 0;
    moec_forward_run(forward, run->n, work, weigh_chunk, run);
    moec_forward_run(forward, run->n_rows, (run->n - run->n_joined) * row_work, join_row, run);
}

/* Floats that a chunk takes, and what goes with the sums. */
static size_t chunk_floats(const struct run *run)
{
    return run->n_rows * (MOEC_SUM_CHUNK + run->dim) + 2 * moec_lanes_padded(run->n_rows);
}

static size_t sum_floats(const struct run *run)
{
    return (size_t)run->n_rows * run->dim + 2 * moec_lanes_padded(run->n_rows);
}

static float *carve(float **room, size_t n)
{
    float *at = *room;
    *room += n;
    return at;
}

/* Places for n chunks. */
static void lay_out(struct run *run, float *room, uint32_t n)
{
    const size_t rows = moec_lanes_padded(run->n_rows);
    run->sum = carve(&room, (size_t)run->n_rows * run->dim);
    run->sum_max = carve(&room, rows);
    run->sum_total = carve(&room, rows);
    run->scores = carve(&room, (size_t)n * run->n_rows * MOEC_SUM_CHUNK);
    run->part = carve(&room, (size_t)n * run->n_rows * run->dim);
    run->max = carve(&room, (size_t)n * rows);
    run->total = carve(&room, (size_t)n * rows);
}

static void begin_sums(const struct run *run)
{
    const float *sinks = run->attention->weights.sinks;
    for (uint32_t row = 0; row < run->n_rows; row++) {
        run->sum_max[row] = sinks != NULL ? sinks[row] : -INFINITY;
        run->sum_total[row] = sinks != NULL ? 1 : 0; /* e^(sink - sink) */
    }
    for (size_t i = 0; i < (size_t)run->n_rows * run->dim; i++)
        run->sum[i] = 0;
}

bool moec_attend_long(const struct moec_attention *attention, uint32_t from, uint32_t to)
{
    const struct moec_span *span = attention->spans;
    const struct moec_scratch *scratch = moec_forward_scratch(attention->forward);
    struct run run = {.attention = attention,
                      .span = span,
                      .q = scratch->q,
                      .n_rows = attention->group * attention->n_group,
                      .dim = attention->key_dim,
                      .from = from,
                      .to = to};
    const uint32_t first = from / MOEC_SUM_CHUNK, end = (to + MOEC_SUM_CHUNK - 1) / MOEC_SUM_CHUNK;
    const size_t room = (attention->forward->max_tokens - attention->n_tok) * attention->q_stride;
    if (end - first < LEAST_CHUNKS || room < sum_floats(&run))
        return false;
    const size_t fit = (room - sum_floats(&run)) / chunk_floats(&run);
    if (fit < LEAST_CHUNKS)
        return false;
    const uint32_t most = fit < MOST_CHUNKS ? (uint32_t)fit : MOST_CHUNKS;
    lay_out(&run, scratch->q + attention->n_tok * attention->q_stride, most);
    begin_sums(&run);
    for (run.first = first; run.first < end; run.first += run.n) {
        run.n = moec_min_u32(most, end - run.first);
        run.is_last = run.first + run.n == end;
        attend_chunks(&run);
    }
    return true;
}
