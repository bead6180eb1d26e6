/* Scores, softmax and weighted values of a block's queries.
 *
 * Softmax runs over chunks of MOEC_SUM_CHUNK positions counted from position 0 of the sequence, with a
 * running maximum and total (Milakov and Gimelshein, arXiv 1805.02867, section 3): a chunk's scores are
 * exponentiated against the maximum so far, and when that grows, total and sum are scaled by exp(old - new).
 * Each query sees its chunks in increasing order and only the positions that it may see in each, so a result
 * depends on nothing but its own past, and working memory does not grow with the context. */
#include "runtime/forward/attention/attend_long.h"
#include "runtime/forward/context/steps.h"
#include "runtime/forward/weights/position_bias.h"

#include <math.h>
#include <string.h>

/* With at most so many queries a tile is bound by reading keys and values. Those of one head lie far apart,
 * where the hardware's prefetchers do not follow and each row may need a translation of its own; so heads
 * that stand side by side are worked on together, and what comes next is asked for: for one query, which is
 * what decoding has, by kernels of their own where heads have whole blocks (moec_attention's by_heads), else
 * in steps of KEY_ROWS positions. On Zen 4, 16 heads of 128 at 3,850 positions, a layer took 2.6 ms instead
 * of 4.2 with F32 and 1.8 instead of 2.9 with F16 on two threads, in decoding. Each head's positions in one
 * piece, (head, position, dim), was slower with F32: 6.2 ms on one thread, where this took 3.5 and one head
 * at a time 5.1.
 */
#define STREAMED_QUERIES 8
#define KEY_ROWS         8
/* Of one position, the most bytes that are worked on together: a chunk of keys then takes 256 KiB. */
#define STREAMED_BYTES 4096
#define LINE           64

/* A tile of queries of one span and of key/value heads that stand side by side. Rows of scratch: all queries
 * of the first head, of the second and so on, for each query those of its group. */
struct tile {
    const struct moec_attention *attention;
    const struct moec_attention_scratch *scratch;
    const struct moec_span *span;
    uint32_t kv_head, n_heads;
    uint32_t first; /* position of the first query */
    uint32_t n;     /* queries */
    struct {
        uint32_t n;        /* positions that any of them sees, from 0 on */
        uint32_t own_from; /* position of the first of the span's own */
    } keys;
};

/* The positions of a chunk, and the queries begin .. end - 1 that see something of it. */
struct chunk {
    uint32_t first, n_rows;
    uint32_t begin, end;
};

static uint32_t scratch_row(const struct tile *tile, uint32_t head, uint32_t q)
{
    return (head * tile->n + q) * tile->attention->items.group;
}

static uint32_t first_visible(const struct moec_attention *attention, uint32_t position)
{
    const uint32_t window = attention->kind->window, chunk = attention->kind->chunk;
    if (chunk > 0)
        return position / chunk * chunk;
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* What is kept of a position. */
static const float *kept_row(const struct tile *tile, bool value, uint32_t position)
{
    const struct moec_span *span = tile->span;
    const size_t room = tile->attention->layout.kv_room;
    if (position < tile->keys.own_from)
        return (value ? span->keys.v_prefix : span->keys.k_prefix) + position * room;
    return (value ? span->keys.v_own : span->keys.k_own) + (position - tile->keys.own_from) * room;
}

/* Where a head's numbers stand in a row, in bytes. */
static size_t head_offset(const struct tile *tile, uint32_t head)
{
    return (tile->kv_head + head) * tile->attention->layout.group_bytes;
}

/* What is kept of a position in a head. */
static const uint8_t *kept_head(const struct tile *tile, uint32_t head, bool value, uint32_t position)
{
    return (const uint8_t *)kept_row(tile, value, position) + head_offset(tile, head);
}

/* Those of positions first .. first + n - 1 that stand before the span's own. */
static uint32_t prefix_rows(const struct tile *tile, uint32_t first, uint32_t n)
{
    return first < tile->keys.own_from ? moec_min_u32(n, tile->keys.own_from - first) : 0;
}

/* Whether rows of positions first .. first + n - 1 follow each other in memory. */
static bool is_one_piece(const struct tile *tile, bool value, uint32_t first, uint32_t n)
{
    const struct moec_span *span = tile->span;
    const uint32_t n_prefix = prefix_rows(tile, first, n);
    const float *prefix = value ? span->keys.v_prefix : span->keys.k_prefix;
    return n_prefix == 0 || n_prefix == n ||
           prefix + tile->keys.own_from * tile->attention->layout.kv_room ==
               (value ? span->keys.v_own : span->keys.k_own);
}

/* Asks for keys or values of n_heads heads at up to n positions, for the second-level cache. Inlined, as gcc
 * takes calls of a function that does nothing else for calls without effect and drops them. */
__attribute__((always_inline)) static inline void ask_rows(const struct tile *tile, bool value, uint32_t head,
                                                           uint32_t n_heads, uint32_t first, uint32_t n)
{
    const struct moec_attention *attention = tile->attention;
    const size_t n_bytes = (n_heads - 1) * attention->layout.group_bytes + attention->layout.head_bytes;
    for (uint32_t i = first; i < tile->keys.n && i - first < n; i++) {
        const uint8_t *row = kept_head(tile, head, value, i);
        for (size_t at = 0; at < n_bytes; at += LINE)
            __builtin_prefetch(row + at, 0, 2);
    }
}

/* Columns of a head's rows that are rounded: of codes all, also where values are but the beginning of keys.
 */
static uint32_t rounded_columns(const struct moec_attention *attention, bool value)
{
    return value && attention->kind->kv.dtype == MOEC_DTYPE_F16 ? attention->layout.value_dim
                                                                : attention->layout.key_dim;
}

/* Those of n positions from `first` on, in one piece. */
static struct moec_matrix rounded_rows(const struct tile *tile, uint32_t head, bool value, uint32_t first,
                                       uint32_t n)
{
    const struct moec_attention *attention = tile->attention;
    return (struct moec_matrix){.codec = attention->kind->kv,
                                .rows = n,
                                .columns = rounded_columns(attention, value),
                                .stride_bytes = attention->layout.kv_room * sizeof(float),
                                .data = kept_head(tile, head, value, first)};
}

/* Keys or values of a head, `stride` floats apart. */
struct head_rows {
    const float *rows;
    size_t stride;
};

static struct head_rows decoded_rows(const struct tile *tile, uint32_t head, bool value, uint32_t first,
                                     uint32_t n, float *copy)
{
    const struct moec_attention *attention = tile->attention;
    const struct moec_kernels *kernels = attention->forward->kernels;
    const uint32_t n_prefix = prefix_rows(tile, first, n);
    const size_t stride = attention->layout.head_stride;
    if (n_prefix > 0) {
        const struct moec_matrix rows = rounded_rows(tile, head, value, first, n_prefix);
        kernels->decode_rows(&rows, 0, n_prefix, copy, stride);
    }
    if (n_prefix < n) {
        const struct moec_matrix rows = rounded_rows(tile, head, value, first + n_prefix, n - n_prefix);
        kernels->decode_rows(&rows, 0, n - n_prefix, copy + n_prefix * stride, stride);
    }
    return (struct head_rows){copy, stride};
}

/* Keys or values of positions first .. first + n - 1 of a head: in place where they lie in one piece and
 * whole lanes, else copied to `copy`, padded with zeros. */
static struct head_rows head_rows(const struct tile *tile, uint32_t head, bool value, uint32_t first,
                                  uint32_t n, float *copy)
{
    const struct moec_attention *attention = tile->attention;
    const uint32_t head_dim = value ? attention->layout.value_dim : attention->layout.key_dim;
    const size_t head_stride = value ? attention->layout.value_stride : attention->layout.head_stride;

    if (moec_layer_rounds_kv(attention->kind))
        return decoded_rows(tile, head, value, first, n, copy);
    if (head_dim == head_stride && is_one_piece(tile, value, first, n))
        return (struct head_rows){(const float *)(const void *)kept_head(tile, head, value, first),
                                  attention->layout.kv_stride};
    for (uint32_t i = 0; i < n; i++) {
        memcpy(copy + i * head_stride, kept_head(tile, head, value, first + i), head_dim * sizeof(float));
        memset(copy + i * head_stride + head_dim, 0, (head_stride - head_dim) * sizeof(float));
    }
    return (struct head_rows){copy, head_stride};
}

/* Folds one row's scores s[0..n-1] into its running maximum and total,
 * and scales its sum when the maximum grows. */
static void fold_scores(const struct tile *tile, uint32_t row, float *s, uint32_t n)
{
    const struct moec_attention_scratch *scratch = tile->scratch;
    const struct moec_kernels *kernels = tile->attention->forward->kernels;
    const size_t head_stride = tile->attention->layout.value_stride;
    moec_attention_raise(kernels->max(s, n), &scratch->max[row], &scratch->total[row],
                         scratch->sum + row * head_stride, head_stride);
    scratch->total[row] += kernels->exp_sum(s, scratch->max[row], n, s);
}

/* Adds the weighted values of n queries from that of scratch's row `row` on, which see positions from ..
 * from + n_rows - 1 of a chunk. */
static void add_values(const struct tile *tile, uint32_t row, uint32_t n, struct head_rows values,
                       uint32_t from, uint32_t n_rows)
{
    const struct moec_attention_scratch *scratch = tile->scratch;
    const struct moec_kernels *kernels = tile->attention->forward->kernels;
    uint32_t head_dim = tile->attention->layout.value_dim;
    size_t head_stride = tile->attention->layout.value_stride;
    uint32_t rows = n * tile->attention->items.group;
    kernels->sum_chunk(scratch->scores + row * MOEC_SUM_CHUNK + from, MOEC_SUM_CHUNK, rows,
                       values.rows + from * values.stride, values.stride, n_rows, head_dim, scratch->part,
                       head_stride);
    if (head_dim == head_stride) {
        kernels->add(scratch->part, rows * head_stride, scratch->sum + row * head_stride);
        return;
    }
    for (uint32_t i = 0; i < rows; i++)
        kernels->add(scratch->part + i * head_stride, head_dim, scratch->sum + (row + i) * head_stride);
}

/* Scores of a query's rows over positions from .. to - 1 of a chunk:
 * scaled, or with the biases of their distances. */
static void finish_scores(const struct tile *tile, uint32_t head, uint32_t q, const struct chunk *chunk,
                          uint32_t from, uint32_t to)
{
    const struct moec_attention *attention = tile->attention;
    const struct moec_config *config = &attention->forward->model->config;
    const uint32_t group = attention->items.group;
    for (uint32_t g = 0; g < group; g++) {
        const uint32_t row = scratch_row(tile, head, q) + g;
        float *scores = tile->scratch->scores + row * MOEC_SUM_CHUNK;
        if (config->position.n_bucket == 0)
            moec_scale_lanes(scores, to, attention->queries.scale);
        if (attention->positions.bias != NULL) {
            const size_t width = moec_position_bias_width(config, attention->positions.stack);
            const size_t query_head = (size_t)(tile->kv_head + head) * group + g;
            moec_position_bias_add(attention->forward->kernels, config, attention->positions.stack,
                                   attention->positions.bias + query_head * width,
                                   (struct moec_seen_keys){tile->first + q, chunk->first + from, to - from},
                                   scores + from);
        }
        fold_scores(tile, row, scores + from, to - from);
    }
}

/* Of a chunk, a query sees rows from .. to - 1. */
static void see_rows(const struct tile *tile, uint32_t q, const struct chunk *chunk, uint32_t *from,
                     uint32_t *to)
{
    const bool is_causal = tile->attention->positions.is_causal;
    const uint32_t position = tile->first + q;
    moec_attention_see(is_causal ? first_visible(tile->attention, position) : 0,
                       is_causal ? position + 1 : tile->keys.n, chunk->first, from, to);
}

/* Whether one row of scratch is for positions that are rounded: they are then read straight from there, with
 * the same bits. */
static bool is_encoded(const struct tile *tile, bool value, uint32_t first, uint32_t n)
{
    const struct moec_attention *attention = tile->attention;
    return moec_layer_rounds_kv(attention->kind) && tile->n * attention->items.group == 1 &&
           rounded_columns(attention, value) ==
               (value ? attention->layout.value_dim : attention->layout.key_dim) &&
           is_one_piece(tile, value, first, n);
}

static struct moec_heads rows_of_heads(const struct tile *tile, bool value, uint32_t first)
{
    const struct moec_attention *attention = tile->attention;
    return moec_attention_heads(attention, kept_head(tile, 0, value, first), tile->n_heads);
}

/* Whether kernels take positions first .. first + n - 1 of the tile's heads together. */
static bool takes_heads(const struct tile *tile, uint32_t first, uint32_t n)
{
    return tile->attention->items.by_heads && tile->n == 1 && is_one_piece(tile, false, first, n) &&
           is_one_piece(tile, true, first, n);
}

static void attend_heads(const struct tile *tile, const struct chunk *chunk)
{
    const struct moec_attention_scratch *scratch = tile->scratch;
    const struct moec_kernels *kernels = tile->attention->forward->kernels;
    uint32_t from = 0, to = 0;
    see_rows(tile, 0, chunk, &from, &to);
    const struct moec_heads keys = rows_of_heads(tile, false, chunk->first);
    kernels->dot_heads(&keys, to, scratch->q, scratch->scores, MOEC_SUM_CHUNK);
    for (uint32_t head = 0; head < tile->n_heads; head++)
        finish_scores(tile, head, 0, chunk, from, to);
    const struct moec_heads values = rows_of_heads(tile, true, chunk->first + from);
    kernels->sum_heads(&values, to - from, scratch->scores + from, MOEC_SUM_CHUNK, scratch->part);
    kernels->add(scratch->part, (size_t)values.n_heads * values.n_queries * values.dim, scratch->sum);
}

/* Products of the chunk's queries with keys at .. at + n - 1 of it. */
static void score_keys(const struct tile *tile, uint32_t head, const struct chunk *chunk, uint32_t at,
                       uint32_t n)
{
    const struct moec_attention *attention = tile->attention;
    const struct moec_attention_scratch *scratch = tile->scratch;
    const struct moec_kernels *kernels = attention->forward->kernels;
    const uint32_t row = scratch_row(tile, head, chunk->begin), first = chunk->first + at;
    const float *q = scratch->q + row * attention->layout.head_stride;
    float *scores = scratch->scores + row * MOEC_SUM_CHUNK + at;
    if (is_encoded(tile, false, first, n)) {
        const struct moec_matrix keys = rounded_rows(tile, head, false, first, n);
        kernels->dot_encoded(&keys, 0, n, q, scores);
        return;
    }
    const struct head_rows keys = head_rows(tile, head, false, first, n, scratch->k);
    kernels->dot(q, attention->layout.head_stride, (chunk->end - chunk->begin) * attention->items.group,
                 keys.rows, keys.stride, n, attention->layout.key_dim, scores, MOEC_SUM_CHUNK);
}

/* Adds the chunk's values by their scores, which are finished. */
static void weigh_values(const struct tile *tile, uint32_t head, const struct chunk *chunk)
{
    const struct moec_attention *attention = tile->attention;
    const struct moec_attention_scratch *scratch = tile->scratch;
    const struct moec_kernels *kernels = attention->forward->kernels;
    uint32_t from = 0, to = 0;
    if (is_encoded(tile, true, chunk->first, chunk->n_rows)) {
        const struct moec_matrix values = rounded_rows(tile, head, true, chunk->first, chunk->n_rows);
        const uint32_t row = scratch_row(tile, head, 0);
        see_rows(tile, 0, chunk, &from, &to);
        kernels->sum_chunk_encoded(&values, from, to - from, scratch->scores + row * MOEC_SUM_CHUNK + from,
                                   scratch->part);
        kernels->add(scratch->part, attention->layout.value_dim,
                     scratch->sum + row * attention->layout.value_stride);
        return;
    }
    const struct head_rows values = head_rows(tile, head, true, chunk->first, chunk->n_rows, scratch->v);
    uint32_t whole = 0; /* queries in a row that see the whole chunk: their values are added together */
    for (uint32_t q = chunk->begin; q < chunk->end; q++) {
        see_rows(tile, q, chunk, &from, &to);
        if (from == 0 && to == chunk->n_rows) {
            whole++;
            continue;
        }
        if (whole > 0)
            add_values(tile, scratch_row(tile, head, q - whole), whole, values, 0, chunk->n_rows);
        whole = 0;
        add_values(tile, scratch_row(tile, head, q), 1, values, from, to - from);
    }
    if (whole > 0)
        add_values(tile, scratch_row(tile, head, chunk->end - whole), whole, values, 0, chunk->n_rows);
}

static void attend_chunk(const struct tile *tile, const struct chunk *chunk)
{
    const struct moec_attention *attention = tile->attention;
    const uint32_t n_rows = chunk->n_rows, n_heads = tile->n_heads;
    const bool is_streamed = tile->n <= STREAMED_QUERIES;
    const uint32_t step = is_streamed ? KEY_ROWS : n_rows;
    if (takes_heads(tile, chunk->first, n_rows)) {
        attend_heads(tile, chunk);
        return;
    }
    for (uint32_t at = 0; at < n_rows; at += step) {
        for (uint32_t head = 0; head < n_heads; head++) {
            if (is_streamed && (head == 0 || attention->layout.group_bytes > 0))
                ask_rows(tile, false, head, 1, chunk->first + at + step, step);
            score_keys(tile, head, chunk, at, moec_min_u32(step, n_rows - at));
        }
    }
    for (uint32_t head = 0; head < n_heads; head++) {
        const uint32_t begin = n_rows * head / n_heads, end = n_rows * (head + 1) / n_heads;
        if (is_streamed && moec_layer_has_values(attention->kind))
            ask_rows(tile, true, 0, n_heads, chunk->first + begin, end - begin);
        for (uint32_t q = chunk->begin; q < chunk->end; q++) {
            uint32_t from = 0, to = 0;
            see_rows(tile, q, chunk, &from, &to);
            finish_scores(tile, head, q, chunk, from, to);
        }
    }
    for (uint32_t head = 0; head < n_heads; head++)
        weigh_values(tile, head, chunk);
}

static void attend_chunks(const struct tile *tile)
{
    const struct moec_attention *attention = tile->attention;
    const bool is_causal = attention->positions.is_causal;
    const uint32_t visible = is_causal ? first_visible(attention, tile->first) : 0;
    for (uint32_t first = visible / MOEC_SUM_CHUNK * MOEC_SUM_CHUNK; first < tile->keys.n;
         first += MOEC_SUM_CHUNK) {
        struct chunk chunk = {.first = first,
                              .n_rows = moec_min_u32(MOEC_SUM_CHUNK, tile->keys.n - first),
                              .begin = is_causal && first > tile->first ? first - tile->first : 0,
                              .end = tile->n};
        while (is_causal && chunk.end > chunk.begin &&
               first_visible(attention, tile->first + chunk.end - 1) >= first + MOEC_SUM_CHUNK)
            chunk.end--;
        if (chunk.begin < chunk.end)
            attend_chunk(tile, &chunk);
    }
}

static void divide_lanes(float *x, size_t n, float divisor)
{
    for (size_t at = 0; at < n; at += MOEC_LANES) {
        for (size_t i = 0; i < MOEC_LANES; i++)
            x[at + i] = x[at + i] / divisor;
    }
}

/* Where the queries of a row of scratch come from, and where its outputs go. */
static float *shared_row(const struct tile *tile, uint32_t row)
{
    const struct moec_attention *attention = tile->attention;
    const uint32_t group = attention->items.group, q = row / group % tile->n;
    const uint32_t head = (tile->kv_head + row / group / tile->n) * group + row % group;
    const uint32_t token =
        tile->span->first_row - attention->rows.first + (tile->first - tile->span->first_position) + q;
    return moec_forward_scratch(attention->forward)->mixer.q + token * attention->queries.stride +
           (size_t)head * attention->layout.key_dim;
}

static void attend_tile(const struct tile *tile)
{
    const struct moec_attention *attention = tile->attention;
    const struct moec_attention_scratch *scratch = tile->scratch;
    const uint32_t head_dim = attention->layout.key_dim, group = attention->items.group;
    const size_t head_stride = attention->layout.head_stride, value_stride = attention->layout.value_stride;
    const uint32_t rows = scratch_row(tile, tile->n_heads, 0);

    for (uint32_t row = 0; row < rows; row++) {
        float *to = scratch->q + row * head_stride;
        memcpy(to, shared_row(tile, row), head_dim * sizeof(float));
        memset(to + head_dim, 0, (head_stride - head_dim) * sizeof(float));
        scratch->max[row] = -INFINITY;
        scratch->total[row] = 0;
        if (attention->weights.sinks != NULL) { /* e^(sink - sink) */
            const uint32_t head = tile->kv_head + row / group / tile->n;
            scratch->max[row] = attention->weights.sinks[head * group + row % group];
            scratch->total[row] = 1;
        }
    }
    memset(scratch->sum, 0, rows * value_stride * sizeof(float));
    attend_chunks(tile);
    for (uint32_t row = 0; row < rows; row++) {
        float *sum = scratch->sum + row * value_stride;
        divide_lanes(sum, value_stride, scratch->total[row]);
        memcpy(shared_row(tile, row), sum, attention->layout.value_dim * sizeof(float));
    }
}

/* Positions of a source that every row of a span sees. */
static uint32_t visible_keys(const struct moec_span *span)
{
    return span->n_source > 0 ? span->n_source : span->first_position + span->n_rows;
}

/* The position of the first key of a span's own. */
static uint32_t own_from(const struct moec_span *span)
{
    return span->n_source > 0 ? span->n_source : span->first_position;
}

/* n in shares of `most`. */
static uint32_t shares(uint32_t n, uint32_t most)
{
    return (n + most - 1) / most;
}

/* Items that the heads of a tile's queries are divided into. */
static size_t head_parts(const struct moec_attention *attention)
{
    return shares(attention->items.n_group, attention->items.heads);
}

static void attend_item(void *context, size_t item, int thread)
{
    const struct moec_attention *attention = context;
    const struct moec_scratch *shared = moec_forward_scratch(attention->forward);
    const size_t n_parts = head_parts(attention);
    const uint32_t tile_queries = attention->items.tile,
                   kv_head = (uint32_t)(item % n_parts) * attention->items.heads;
    struct tile tile = {.attention = attention,
                        .scratch = &shared->threads[thread].attention,
                        .kv_head = kv_head,
                        .n_heads = moec_min_u32(attention->items.heads, attention->items.n_group - kv_head)};
    size_t unit = item / n_parts;
    uint32_t begin = 0;
    uint32_t end = 0;
    if (attention->items.whole_spans) {
        tile.span = &attention->rows.spans[unit];
        end = tile.span->n_rows;
    } else {
        tile.span = attention->rows.spans;
        for (size_t n; unit >= (n = (tile.span->n_rows + tile_queries - 1) / tile_queries); tile.span++)
            unit -= n;
        begin = (uint32_t)unit * tile_queries;
        end = begin + moec_min_u32(tile_queries, tile.span->n_rows - begin);
    }
    const struct moec_span *span = tile.span;
    tile.keys.own_from = own_from(span);
    for (; begin < end; begin += tile_queries) {
        tile.first = span->first_position + begin;
        tile.n = moec_min_u32(tile_queries, end - begin);
        tile.keys.n = attention->positions.is_causal ? tile.first + tile.n : visible_keys(span);
        attend_tile(&tile);
    }
}

/* Key/value heads of an item, when no span has more than `widest` rows: as many as scratch and cache hold,
 * with no more work for the busiest thread than if each head were an item. */
static uint32_t heads_at_once(const struct moec_attention *attention, uint32_t widest)
{
    const uint32_t n_threads = (uint32_t)attention->forward->pool.n_threads,
                   n_group = attention->items.n_group;
    if (widest == 0 || widest > STREAMED_QUERIES || widest > attention->items.tile)
        return 1;
    uint32_t heads = moec_min_u32(n_group, attention->items.tile / widest);
    if (attention->layout.group_bytes > 0 && !(attention->items.by_heads && widest == 1))
        heads = moec_min_u32(heads, (uint32_t)(STREAMED_BYTES / attention->layout.group_bytes));
    const uint32_t fair = shares(attention->rows.n_spans * n_group, n_threads);
    while (heads > 1 && shares(attention->rows.n_spans * shares(n_group, heads), n_threads) * heads > fair)
        heads--;
    return heads > 0 ? heads : 1;
}

/* Attends where there is one token with a past that is long enough to be shared by positions; else false. */
static bool attend_by_positions(const struct moec_attention *attention)
{
    const struct moec_span *span = attention->rows.spans;
    if (attention->rows.n_spans != 1 || span->n_rows != 1 || attention->forward->pool.n_threads == 1 ||
        attention->positions.bias != NULL || attention->forward->model->config.position.n_bucket > 0)
        return false;
    const struct tile tile = {.attention = attention, .span = span, .n = 1, .keys.own_from = own_from(span)};
    const uint32_t from = attention->positions.is_causal ? first_visible(attention, span->first_position) : 0;
    const uint32_t to = visible_keys(span);
    return takes_heads(&tile, from, to - from) && moec_attend_long(attention, from, to);
}

void moec_attend(struct moec_attention *attention)
{
    const struct moec_forward *forward = attention->forward;
    const struct moec_layer_kind *kind = attention->kind;
    size_t n_units = 0;
    uint64_t work = 0;
    uint32_t widest = 0;
    if (attend_by_positions(attention))
        return;
    for (uint32_t i = 0; i < attention->rows.n_spans; i++) {
        const struct moec_span *span = &attention->rows.spans[i];
        widest = span->n_rows > widest ? span->n_rows : widest;
        n_units += (span->n_rows + attention->items.tile - 1) / attention->items.tile;
        work += (uint64_t)span->n_rows * visible_keys(span);
    }
    attention->items.heads = heads_at_once(attention, widest);
    const size_t n_parts = head_parts(attention);
    attention->items.whole_spans = attention->rows.n_spans * n_parts >= 8 * (size_t)forward->pool.n_threads;
    if (attention->items.whole_spans)
        n_units = attention->rows.n_spans;
    work *= 2 * (uint64_t)moec_layer_q_dim(kind);
    moec_forward_run(forward, n_units * n_parts, work, attend_item, attention);
}
