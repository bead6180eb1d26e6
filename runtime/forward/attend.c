/* Scores, softmax and weighted values of a block's queries.
 *
 * Softmax runs over chunks of MOEC_SUM_CHUNK positions counted from position 0 of the sequence, with a
 * running maximum and total (Milakov and Gimelshein, arXiv 1805.02867, section 3): a chunk's scores are
 * exponentiated against the maximum so far, and when that grows, total and sum are scaled by exp(old - new).
 * Each query sees its chunks in increasing order and only the positions that it may see in each, so a result
 * depends on nothing but its own past, and working memory does not grow with the context. */
#include "runtime/forward/attention_block.h"
#include "runtime/forward/position_bias.h"
#include "runtime/forward/steps.h"

#include <math.h>
#include <string.h>

/* A tile of queries of one span and one key/value head. */
struct tile {
    const struct moec_attention *attention;
    const struct moec_attention_scratch *scratch;
    const struct moec_span *span;
    uint32_t kv_head;
    uint32_t first;    /* position of the first query */
    uint32_t n;        /* queries */
    uint32_t n_keys;   /* positions that any of them sees, from 0 on */
    uint32_t own_from; /* position of the first key of the span's own */
};

static uint32_t first_visible(const struct moec_attention *attention, uint32_t position)
{
    const uint32_t window = attention->kind->window, chunk = attention->kind->chunk;
    if (chunk > 0)
        return position / chunk * chunk;
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* Of n positions from `first` on that are kept as F16, in one piece: the columns of the tile's head. */
static struct moec_matrix f16_rows(const struct tile *tile, bool value, uint32_t first, uint32_t n)
{
    const struct moec_attention *attention = tile->attention;
    const struct moec_span *span = tile->span;
    const bool is_own = first >= tile->own_from;
    const float *rows =
        is_own ? (value ? span->v_own : span->k_own) + (first - tile->own_from) * attention->kv_room
               : (value ? span->v_prefix : span->k_prefix) + first * attention->kv_room;
    const uint8_t *data = (const uint8_t *)rows;
    return (struct moec_matrix){.codec = {.dtype = MOEC_DTYPE_F16},
                                .rows = n,
                                .columns = value ? attention->value_dim : attention->key_dim,
                                .stride_bytes = attention->kv_room * sizeof(float),
                                .data = data + tile->kv_head * attention->group_step * sizeof(uint16_t)};
}

/* Those of positions first .. first + n - 1 that stand before the span's own. */
static uint32_t prefix_rows(const struct tile *tile, uint32_t first, uint32_t n)
{
    return first < tile->own_from ? moec_min_u32(n, tile->own_from - first) : 0;
}

static const float *decoded_rows(const struct tile *tile, bool value, uint32_t first, uint32_t n, float *copy,
                                 size_t *stride)
{
    const struct moec_attention *attention = tile->attention;
    const struct moec_kernels *kernels = attention->forward->kernels;
    const uint32_t n_prefix = prefix_rows(tile, first, n);
    *stride = value ? attention->value_stride : attention->head_stride;
    if (n_prefix > 0) {
        const struct moec_matrix rows = f16_rows(tile, value, first, n_prefix);
        kernels->decode_rows(&rows, 0, n_prefix, copy, *stride);
    }
    if (n_prefix < n) {
        const struct moec_matrix rows = f16_rows(tile, value, first + n_prefix, n - n_prefix);
        kernels->decode_rows(&rows, 0, n - n_prefix, copy + n_prefix * *stride, *stride);
    }
    return copy;
}

/* Keys or values of positions first .. first + n - 1 of the tile's head: in place where they lie in one piece
 * and whole lanes, else copied to `copy`, padded with zeros. */
static const float *chunk_rows(const struct tile *tile, bool value, uint32_t first, uint32_t n, float *copy,
                               size_t *stride)
{
    const struct moec_attention *attention = tile->attention;
    const struct moec_span *span = tile->span;
    const float *prefix = value ? span->v_prefix : span->k_prefix;
    const float *own = value ? span->v_own : span->k_own;
    uint32_t head_dim = value ? attention->value_dim : attention->key_dim;
    size_t head_stride = value ? attention->value_stride : attention->head_stride;
    size_t offset = (size_t)tile->kv_head * attention->group_step;
    size_t row = attention->kv_stride;

    if (attention->kind->kv_f16)
        return decoded_rows(tile, value, first, n, copy, stride);
    if (head_dim == head_stride) {
        *stride = row;
        if (first >= tile->own_from)
            return own + (first - tile->own_from) * row + offset;
        bool joined = prefix + tile->own_from * row == own;
        if (joined || first + n <= tile->own_from)
            return prefix + first * row + offset;
    }
    *stride = head_stride;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t position = first + i;
        const float *from =
            position < tile->own_from ? prefix + position * row : own + (position - tile->own_from) * row;
        memcpy(copy + i * head_stride, from + offset, head_dim * sizeof(float));
        memset(copy + i * head_stride + head_dim, 0, (head_stride - head_dim) * sizeof(float));
    }
    return copy;
}

/* Folds one row's scores s[0..n-1] into its running maximum and total,
 * and scales its sum when the maximum grows. */
static void fold_scores(const struct tile *tile, uint32_t row, float *s, uint32_t n)
{
    const struct moec_attention_scratch *scratch = tile->scratch;
    const struct moec_kernels *kernels = tile->attention->forward->kernels;
    size_t head_stride = tile->attention->value_stride;
    float max = kernels->max(s, n);
    float old = scratch->max[row];
    if (max > old && scratch->total[row] > 0) {
        float shrink = moec_exp_f32(old - max);
        scratch->total[row] *= shrink;
        moec_scale_lanes(scratch->sum + row * head_stride, head_stride, shrink);
    }
    if (max > old)
        scratch->max[row] = max;
    scratch->total[row] += kernels->exp_sum(s, scratch->max[row], n, s);
}

/* Adds the weighted values of n queries from query `q` on,
 * which see positions from .. from + n_rows - 1 of a chunk. */
static void add_values(const struct tile *tile, uint32_t q, uint32_t n, const float *values, size_t stride,
                       uint32_t from, uint32_t n_rows)
{
    const struct moec_attention_scratch *scratch = tile->scratch;
    const struct moec_kernels *kernels = tile->attention->forward->kernels;
    uint32_t head_dim = tile->attention->value_dim;
    size_t head_stride = tile->attention->value_stride;
    uint32_t row = q * tile->attention->group;
    uint32_t rows = n * tile->attention->group;
    kernels->sum_chunk(scratch->scores + row * MOEC_SUM_CHUNK + from, MOEC_SUM_CHUNK, rows,
                       values + from * stride, stride, n_rows, head_dim, scratch->part, head_stride);
    if (head_dim == head_stride) {
        kernels->add(scratch->part, rows * head_stride, scratch->sum + row * head_stride);
        return;
    }
    for (uint32_t i = 0; i < rows; i++)
        kernels->add(scratch->part + i * head_stride, head_dim, scratch->sum + (row + i) * head_stride);
}

/* Scores of a query's rows over positions from .. to - 1 of a chunk:
 * scaled, or with the biases of their distances. */
static void finish_scores(const struct tile *tile, uint32_t q, uint32_t chunk, uint32_t from, uint32_t to)
{
    const struct moec_attention *attention = tile->attention;
    const struct moec_config *config = &attention->forward->model->config;
    const uint32_t group = attention->group;
    for (uint32_t g = 0; g < group; g++) {
        const uint32_t row = q * group + g;
        float *scores = tile->scratch->scores + row * MOEC_SUM_CHUNK;
        if (config->n_bucket == 0)
            moec_scale_lanes(scores, to, attention->scale);
        if (attention->position_bias != NULL) {
            const size_t width = moec_position_bias_width(config, attention->stack);
            const float *head = attention->position_bias + ((size_t)tile->kv_head * group + g) * width;
            moec_position_bias_add(attention->forward->kernels, config, attention->stack, head,
                                   tile->first + q, chunk + from, to - from, scores + from);
        }
        fold_scores(tile, row, scores + from, to - from);
    }
}

/* One query and one head, whose keys and values are kept as F16: straight from there, with the same bits. */
static void attend_one(const struct tile *tile, uint32_t chunk, uint32_t n_rows)
{
    const struct moec_attention_scratch *scratch = tile->scratch;
    const struct moec_attention *attention = tile->attention;
    const struct moec_kernels *kernels = attention->forward->kernels;
    const uint32_t visible = attention->is_causal ? first_visible(attention, tile->first) : 0;
    const uint32_t from = visible > chunk ? visible - chunk : 0;
    const struct moec_matrix keys = f16_rows(tile, false, chunk, n_rows);
    const struct moec_matrix values = f16_rows(tile, true, chunk, n_rows);
    kernels->dot_encoded(&keys, 0, n_rows, scratch->q, scratch->scores);
    finish_scores(tile, 0, chunk, from, n_rows);
    kernels->sum_chunk_encoded(&values, from, n_rows - from, scratch->scores + from, scratch->part);
    kernels->add(scratch->part, attention->value_dim, scratch->sum);
}

/* Whether a chunk is as attend_one wants it. */
static bool is_for_one(const struct tile *tile, uint32_t chunk, uint32_t n_rows)
{
    const struct moec_attention *attention = tile->attention;
    const uint32_t n_prefix = prefix_rows(tile, chunk, n_rows);
    const bool is_joined = tile->span->k_prefix + tile->own_from * attention->kv_room == tile->span->k_own &&
                           tile->span->v_prefix + tile->own_from * attention->kv_room == tile->span->v_own;
    return attention->kind->kv_f16 && tile->n * attention->group == 1 &&
           (n_prefix == 0 || n_prefix == n_rows || is_joined);
}

static void attend_chunk(const struct tile *tile, uint32_t chunk)
{
    const struct moec_attention *attention = tile->attention;
    const struct moec_attention_scratch *scratch = tile->scratch;
    size_t head_stride = attention->head_stride;
    uint32_t group = attention->group;
    uint32_t n_rows = moec_min_u32(MOEC_SUM_CHUNK, tile->n_keys - chunk);
    const bool is_causal = attention->is_causal;

    /* Queries begin .. end - 1 see something of this chunk. */
    uint32_t begin = is_causal && chunk > tile->first ? chunk - tile->first : 0;
    uint32_t end = tile->n;
    while (is_causal && end > begin &&
           first_visible(attention, tile->first + end - 1) >= chunk + MOEC_SUM_CHUNK)
        end--;
    if (begin == end)
        return;
    if (is_for_one(tile, chunk, n_rows)) {
        attend_one(tile, chunk, n_rows);
        return;
    }

    size_t stride = 0;
    const float *keys = chunk_rows(tile, false, chunk, n_rows, scratch->k, &stride);
    attention->forward->kernels->dot(scratch->q + begin * group * head_stride, head_stride,
                                     (end - begin) * group, keys, stride, n_rows, attention->key_dim,
                                     scratch->scores + begin * group * MOEC_SUM_CHUNK, MOEC_SUM_CHUNK);
    const float *values = chunk_rows(tile, true, chunk, n_rows, scratch->v, &stride);
    uint32_t whole = 0; /* queries in a row that see the whole chunk: their values are added together */
    for (uint32_t q = begin; q < end; q++) {
        uint32_t position = tile->first + q;
        uint32_t visible = is_causal ? first_visible(attention, position) : 0;
        uint32_t from = visible > chunk ? visible - chunk : 0;
        uint32_t to = is_causal ? moec_min_u32(n_rows, position + 1 - chunk) : n_rows;
        finish_scores(tile, q, chunk, from, to);
        if (from == 0 && to == n_rows) {
            whole++;
            continue;
        }
        if (whole > 0)
            add_values(tile, q - whole, whole, values, stride, 0, n_rows);
        whole = 0;
        add_values(tile, q, 1, values, stride, from, to - from);
    }
    if (whole > 0)
        add_values(tile, end - whole, whole, values, stride, 0, n_rows);
}

static void divide_lanes(float *x, size_t n, float divisor)
{
    for (size_t at = 0; at < n; at += MOEC_LANES) {
        for (size_t i = 0; i < MOEC_LANES; i++)
            x[at + i] = x[at + i] / divisor;
    }
}

static void attend_tile(const struct tile *tile)
{
    const struct moec_attention *attention = tile->attention;
    const struct moec_attention_scratch *scratch = tile->scratch;
    const struct moec_scratch *shared = moec_forward_scratch(attention->forward);
    uint32_t head_dim = attention->key_dim;
    size_t head_stride = attention->head_stride, value_stride = attention->value_stride;
    uint32_t group = attention->group;
    uint32_t rows = tile->n * group;
    uint32_t first_token =
        tile->span->first_row - attention->first_row + (tile->first - tile->span->first_position);
    float *q = shared->q + first_token * attention->q_stride + (size_t)tile->kv_head * group * head_dim;

    for (uint32_t row = 0; row < rows; row++) {
        float *to = scratch->q + row * head_stride;
        memcpy(to, q + (row / group) * attention->q_stride + (row % group) * head_dim,
               head_dim * sizeof(float));
        memset(to + head_dim, 0, (head_stride - head_dim) * sizeof(float));
        scratch->max[row] = -INFINITY;
        scratch->total[row] = 0;
        if (attention->weights.sinks != NULL) { /* e^(sink - sink) */
            scratch->max[row] = attention->weights.sinks[tile->kv_head * group + row % group];
            scratch->total[row] = 1;
        }
    }
    memset(scratch->sum, 0, rows * value_stride * sizeof(float));
    uint32_t visible = attention->is_causal ? first_visible(attention, tile->first) : 0;
    for (uint32_t chunk = visible / MOEC_SUM_CHUNK * MOEC_SUM_CHUNK; chunk < tile->n_keys;
         chunk += MOEC_SUM_CHUNK)
        attend_chunk(tile, chunk);
    for (uint32_t row = 0; row < rows; row++) {
        float *to = q + (row / group) * attention->q_stride + (row % group) * head_dim;
        float *sum = scratch->sum + row * value_stride;
        divide_lanes(sum, value_stride, scratch->total[row]);
        memcpy(to, sum, attention->value_dim * sizeof(float));
    }
}

/* Positions of a source that every row of a span sees. */
static uint32_t visible_keys(const struct moec_span *span)
{
    return span->n_source > 0 ? span->n_source : span->first_position + span->n_rows;
}

static void attend_item(void *context, size_t item, int thread)
{
    const struct moec_attention *attention = context;
    const struct moec_scratch *shared = moec_forward_scratch(attention->forward);
    uint32_t n_kv_head = attention->n_group;
    const uint32_t tile_queries = attention->tile;
    struct tile tile = {.attention = attention,
                        .scratch = &shared->threads[thread].attention,
                        .kv_head = (uint32_t)(item % n_kv_head)};
    size_t unit = item / n_kv_head;
    uint32_t begin = 0;
    uint32_t end = 0;
    if (attention->whole_spans) {
        tile.span = &attention->spans[unit];
        end = tile.span->n_rows;
    } else {
        tile.span = attention->spans;
        for (size_t n; unit >= (n = (tile.span->n_rows + tile_queries - 1) / tile_queries); tile.span++)
            unit -= n;
        begin = (uint32_t)unit * tile_queries;
        end = begin + moec_min_u32(tile_queries, tile.span->n_rows - begin);
    }
    const struct moec_span *span = tile.span;
    tile.own_from = span->n_source > 0 ? span->n_source : span->first_position;
    for (; begin < end; begin += tile_queries) {
        tile.first = span->first_position + begin;
        tile.n = moec_min_u32(tile_queries, end - begin);
        tile.n_keys = attention->is_causal ? tile.first + tile.n : visible_keys(span);
        attend_tile(&tile);
    }
}

void moec_attend(struct moec_attention *attention)
{
    const struct moec_forward *forward = attention->forward;
    const struct moec_layer_kind *kind = attention->kind;
    size_t n_units = 0;
    uint64_t work = 0;
    for (uint32_t i = 0; i < attention->n_spans; i++) {
        const struct moec_span *span = &attention->spans[i];
        n_units += (span->n_rows + attention->tile - 1) / attention->tile;
        work += (uint64_t)span->n_rows * visible_keys(span);
    }
    attention->whole_spans =
        (size_t)attention->n_spans * attention->n_group >= 8 * (size_t)forward->pool.n_threads;
    if (attention->whole_spans)
        n_units = attention->n_spans;
    work *= 2 * (uint64_t)moec_layer_q_dim(kind);
    moec_forward_run(forward, n_units * attention->n_group, work, attend_item, attention);
}
