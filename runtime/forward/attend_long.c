/* Shared by heads, each thread would read a part of each position's row, and with F16 a part of a page:
 * prefetchers follow a page, and fetch what the other threads read too. Shared by positions, each reads on
 * where it stopped: two threads of a Xeon of 2024 read F16 rows of 4 KiB at 36 GB/s in place of 25. So scores
 * of all chunks come first, then the chunks' weighted values, each against the maximum that it has among the
 * chunks before it, and last the chunks are put together in order: the same operations as moec_attend's, with
 * the same bits. All of this is done for some chunks at a time, as many as the rows of scratch that a token
 * leaves free have room for. */
#include "runtime/forward/attend_long.h"
#include "runtime/forward/steps.h"

#include <math.h>

/* Chunks at a time: what they leave behind for the last step stays in the second-level cache. */
#define MOST_CHUNKS 64u
/* With fewer, a thread waits for others longer than this gains: a model of 1 KiB a position was faster from
 * about 400 positions on. */
#define LEAST_CHUNKS 8u

struct run {
    const struct moec_attention *attention;
    const struct moec_span *span;
    float *q;             /* (heads, dim), where outputs go */
    uint32_t n_rows, dim; /* query heads */
    uint32_t from, to;    /* positions that are seen */
    uint32_t first, n;    /* chunks at work */
    uint32_t n_shares;    /* of the rows, when chunks are joined */
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

/* Of a chunk, the rows begin .. end - 1 are seen. */
static void see_rows(const struct run *run, uint32_t chunk, uint32_t *begin, uint32_t *end)
{
    const uint32_t first = chunk * MOEC_SUM_CHUNK;
    *begin = run->from > first ? run->from - first : 0;
    *end = moec_min_u32(MOEC_SUM_CHUNK, run->to - first);
}

static struct moec_heads heads_of(const struct run *run, const float *rows, uint32_t position)
{
    const struct moec_attention *attention = run->attention;
    return moec_attention_heads(attention, rows + position * attention->kv_room, attention->n_group);
}

static void score_chunk(void *context, size_t item, int thread)
{
    const struct run *run = context;
    const struct moec_kernels *kernels = run->attention->forward->kernels;
    const uint32_t chunk = run->first + (uint32_t)item;
    float *scores = run->scores + item * run->n_rows * MOEC_SUM_CHUNK;
    uint32_t begin = 0, end = 0;
    (void)thread;
    see_rows(run, chunk, &begin, &end);
    const struct moec_heads keys = heads_of(run, run->span->k_prefix, chunk * MOEC_SUM_CHUNK);
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

static void weigh_chunk(void *context, size_t item, int thread)
{
    const struct run *run = context;
    const struct moec_kernels *kernels = run->attention->forward->kernels;
    const uint32_t chunk = run->first + (uint32_t)item;
    float *scores = run->scores + item * run->n_rows * MOEC_SUM_CHUNK;
    const size_t at = item * run->n_rows;
    uint32_t begin = 0, end = 0;
    (void)thread;
    see_rows(run, chunk, &begin, &end);
    for (uint32_t row = 0; row < run->n_rows; row++) {
        float *s = scores + row * MOEC_SUM_CHUNK + begin;
        run->total[at + row] = kernels->exp_sum(s, run->max[at + row], end - begin, s);
    }
    const struct moec_heads values = heads_of(run, run->span->v_prefix, chunk * MOEC_SUM_CHUNK + begin);
    kernels->sum_heads(&values, end - begin, scores + begin, MOEC_SUM_CHUNK, run->part + at * run->dim);
}

/* Puts a row's next chunk behind those before it. */
static void join_chunk(const struct run *run, size_t row, size_t at)
{
    const struct moec_kernels *kernels = run->attention->forward->kernels;
    float *sum = run->sum + row * run->dim;
    if (run->max[at] > run->sum_max[row] && run->sum_total[row] > 0) {
        const float shrink = moec_exp_f32(run->sum_max[row] - run->max[at]);
        run->sum_total[row] *= shrink;
        moec_scale_lanes(sum, run->dim, shrink);
    }
    run->sum_max[row] = run->max[at];
    run->sum_total[row] += run->total[at];
    kernels->add(run->part + at * run->dim, run->dim, sum);
}

/* A share of the rows: what they have of a chunk lies in one piece. */
static void join_rows(void *context, size_t item, int thread)
{
    const struct run *run = context;
    const size_t begin = item * run->n_rows / run->n_shares, end = (item + 1) * run->n_rows / run->n_shares;
    (void)thread;
    for (size_t chunk = 0; chunk < run->n; chunk++)
        for (size_t row = begin; row < end; row++)
            join_chunk(run, row, chunk * run->n_rows + row);
}

static void attend_chunks(struct run *run)
{
    const struct moec_forward *forward = run->attention->forward;
    const uint64_t work = (uint64_t)run->n * MOEC_SUM_CHUNK * run->n_rows * run->dim;
    moec_forward_run(forward, run->n, work, score_chunk, run);
    carry_maxima(run);
    moec_forward_run(forward, run->n, work, weigh_chunk, run);
    moec_forward_run(forward, run->n_shares, (uint64_t)run->n * run->n_rows * run->dim, join_rows, run);
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
                      .n_shares = (uint32_t)attention->forward->pool.n_threads,
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
        attend_chunks(&run);
    }
    for (uint32_t row = 0; row < run.n_rows; row++)
        for (uint32_t i = 0; i < run.dim; i++)
            run.q[row * run.dim + i] = run.sum[row * run.dim + i] / run.sum_total[row];
    return true;
}
