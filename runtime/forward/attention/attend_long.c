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

/* The chunks at work, one after the other. */
struct chunks {
    uint32_t first, n;
    uint32_t n_joined; /* of those the first ones, which are in the sums */
    bool is_last;      /* no chunks follow */
    float *scores;     /* (rows, MOEC_SUM_CHUNK) */
    float *part;       /* (rows, dim) */
    float *max;        /* (rows) of its own scores, then of all up to it */
    float *total;      /* (rows) */
};

/* Of the chunks before. */
struct sums {
    float *rows;  /* (rows, dim) */
    float *max;   /* (rows) */
    float *total; /* (rows) */
};

struct run {
    const struct moec_attention *attention;
    float *q;             /* (heads, dim), where outputs go */
    uint32_t n_rows, dim; /* query heads */
    uint32_t from, to;    /* positions that are seen */
    struct chunks chunks;
    struct sums sums;
};

static struct moec_heads heads_of(const struct run *run, const float *rows, uint32_t position)
{
    const struct moec_attention *attention = run->attention;
    return moec_attention_heads(attention, rows + position * attention->layout.kv_room,
                                attention->items.n_group);
}

static void score_chunk(void *context, size_t item, int thread)
{
    const struct run *run = context;
    const struct moec_kernels *kernels = run->attention->forward->kernels;
    const uint32_t first = (run->chunks.first + (uint32_t)item) * MOEC_SUM_CHUNK;
    float *scores = run->chunks.scores + item * run->n_rows * MOEC_SUM_CHUNK;
    uint32_t begin = 0, end = 0;
    (void)thread;
    moec_attention_see(run->from, run->to, first, &begin, &end);
    const struct moec_heads keys = heads_of(run, run->attention->rows.spans->keys.k_prefix, first);
    kernels->dot_heads(&keys, end, run->q, scores, MOEC_SUM_CHUNK);
    for (uint32_t row = 0; row < run->n_rows; row++, scores += MOEC_SUM_CHUNK) {
        moec_scale_lanes(scores, end, run->attention->queries.scale);
        run->chunks.max[item * run->n_rows + row] = kernels->max(scores + begin, end - begin);
    }
}

/* The maxima of chunks become those of all up to each. */
static void carry_maxima(const struct run *run)
{
    const float *before = run->sums.max;
    float *max = run->chunks.max;
    for (uint32_t i = 0; i < run->chunks.n; i++, before = max, max += run->n_rows)
        for (uint32_t row = 0; row < run->n_rows; row++)
            max[row] = max[row] > before[row] ? max[row] : before[row];
}

/* Puts what a row has of the next chunk, at work as number `at`, behind those before it. */
static void join_row_of(const struct run *run, size_t row, size_t at, const float *part)
{
    const size_t i = at * run->n_rows + row;
    float *sum = run->sums.rows + row * run->dim;
    moec_attention_raise(run->chunks.max[i], &run->sums.max[row], &run->sums.total[row], sum, run->dim);
    run->sums.total[row] += run->chunks.total[i];
    run->attention->forward->kernels->add(part, run->dim, sum);
}

static void weigh_chunk(void *context, size_t item, int thread)
{
    struct run *run = context;
    const struct moec_kernels *kernels = run->attention->forward->kernels;
    const uint32_t first = (run->chunks.first + (uint32_t)item) * MOEC_SUM_CHUNK;
    const bool joins = thread == 0 && item == run->chunks.n_joined;
    float *scores = run->chunks.scores + item * run->n_rows * MOEC_SUM_CHUNK;
    float *part = run->chunks.part + (joins ? 0 : item * run->n_rows * run->dim);
    uint32_t begin = 0, end = 0;
    moec_attention_see(run->from, run->to, first, &begin, &end);
    for (uint32_t row = 0; row < run->n_rows; row++) {
        const size_t at = item * run->n_rows + row;
        float *s = scores + row * MOEC_SUM_CHUNK + begin;
        run->chunks.total[at] = kernels->exp_sum(s, run->chunks.max[at], end - begin, s);
    }
    const struct moec_heads values = heads_of(run, run->attention->rows.spans->keys.v_prefix, first + begin);
    kernels->sum_heads(&values, end - begin, scores + begin, MOEC_SUM_CHUNK, part);
    if (!joins)
        return;
    for (uint32_t row = 0; row < run->n_rows; row++)
        join_row_of(run, row, item, part + (size_t)row * run->dim);
    run->chunks.n_joined++;
}

/* What a row has of a chunk: inlined, as gcc drops calls of a function that does nothing else. */
__attribute__((always_inline)) static inline void ask_part(const struct run *run, size_t row, size_t at)
{
    const float *part = run->chunks.part + (at * run->n_rows + row) * run->dim;
    for (size_t i = 0; at < run->chunks.n && i < run->dim; i += MOEC_LANES)
        __builtin_prefetch(part + i);
}

/* Joins what is not yet, and makes a row's outputs where that was the last. */
static void join_row(void *context, size_t row, int thread)
{
    const struct run *run = context;
    const size_t dim = run->dim;
    const float *sum = run->sums.rows + row * dim;
    (void)thread;
    for (size_t at = run->chunks.n_joined; at < run->chunks.n_joined + CHUNKS_AHEAD; at++)
        ask_part(run, row, at);
    for (size_t at = run->chunks.n_joined; at < run->chunks.n; at++) {
        ask_part(run, row, at + CHUNKS_AHEAD);
        join_row_of(run, row, at, run->chunks.part + (at * run->n_rows + row) * dim);
    }
    for (size_t i = 0; i < dim && run->chunks.is_last; i++)
        run->q[row * dim + i] = sum[i] / run->sums.total[row];
}

static void attend_chunks(struct run *run)
{
    const struct moec_forward *forward = run->attention->forward;
    const uint64_t row_work = (uint64_t)run->n_rows * run->dim;
    const uint64_t work = run->chunks.n * MOEC_SUM_CHUNK * row_work;
    moec_forward_run(forward, run->chunks.n, work, score_chunk, run);
    carry_maxima(run);
    run->chunks.n_joined = 0;
    moec_forward_run(forward, run->chunks.n, work, weigh_chunk, run);
    moec_forward_run(forward, run->n_rows, (run->chunks.n - run->chunks.n_joined) * row_work, join_row, run);
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
    run->sums.rows = carve(&room, (size_t)run->n_rows * run->dim);
    run->sums.max = carve(&room, rows);
    run->sums.total = carve(&room, rows);
    run->chunks.scores = carve(&room, (size_t)n * run->n_rows * MOEC_SUM_CHUNK);
    run->chunks.part = carve(&room, (size_t)n * run->n_rows * run->dim);
    run->chunks.max = carve(&room, (size_t)n * rows);
    run->chunks.total = carve(&room, (size_t)n * rows);
}

static void begin_sums(const struct run *run)
{
    const float *sinks = run->attention->weights.sinks;
    for (uint32_t row = 0; row < run->n_rows; row++) {
        run->sums.max[row] = sinks != NULL ? sinks[row] : -INFINITY;
        run->sums.total[row] = sinks != NULL ? 1 : 0; /* e^(sink - sink) */
    }
    for (size_t i = 0; i < (size_t)run->n_rows * run->dim; i++)
        run->sums.rows[i] = 0;
}

bool moec_attend_long(const struct moec_attention *attention, uint32_t from, uint32_t to)
{
    const struct moec_scratch *scratch = moec_forward_scratch(attention->forward);
    struct run run = {.attention = attention,
                      .q = scratch->mixer.q,
                      .n_rows = attention->items.group * attention->items.n_group,
                      .dim = attention->layout.key_dim,
                      .from = from,
                      .to = to};
    const uint32_t first = from / MOEC_SUM_CHUNK, end = (to + MOEC_SUM_CHUNK - 1) / MOEC_SUM_CHUNK;
    const size_t room = (attention->forward->max_tokens - attention->rows.n_tok) * attention->queries.stride;
    if (end - first < LEAST_CHUNKS || room < sum_floats(&run))
        return false;
    const size_t fit = (room - sum_floats(&run)) / chunk_floats(&run);
    if (fit < LEAST_CHUNKS)
        return false;
    const uint32_t most = fit < MOST_CHUNKS ? (uint32_t)fit : MOST_CHUNKS;
    lay_out(&run, scratch->mixer.q + attention->rows.n_tok * attention->queries.stride, most);
    begin_sums(&run);
    for (run.chunks.first = first; run.chunks.first < end; run.chunks.first += run.chunks.n) {
        run.chunks.n = moec_min_u32(most, end - run.chunks.first);
        run.chunks.is_last = run.chunks.first + run.chunks.n == end;
        attend_chunks(&run);
    }
    return true;
}
