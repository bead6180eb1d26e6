/* Attention of one layer: norm, q/k/v products, rotation, softmax over the positions that a query sees,
 * output product. In a decoder these are the past; in an encoder and across from a decoder to it they are the
 * whole source.
 *
 * Softmax runs over chunks of MOEC_SUM_CHUNK positions counted from position 0 of the sequence, with a
 * running maximum and total (Milakov and Gimelshein, arXiv 1805.02867, section 3): a chunk's scores are
 * exponentiated against the maximum so far, and when that grows, total and sum are scaled by exp(old - new).
 * Each query sees its chunks in increasing order and only the positions that it may see in each, so a result
 * depends on nothing but its own past, and working memory does not grow with the context.
 *
 * Latent attention is the same with one key/value head for all query heads, whose keys are latent and rotated
 * part and whose values are the latent (runtime/forward/latent.h). */
#include "runtime/forward/attention.h"

#include "runtime/forward/backend.h"
#include "runtime/forward/latent.h"
#include "runtime/forward/linear.h"
#include "runtime/forward/position_bias.h"
#include "runtime/forward/rope.h"
#include "runtime/forward/running.h"
#include "runtime/forward/steps.h"

#include <math.h>
#include <string.h>

/* The weights of one of a layer's attentions. */
struct projections {
    const float *norm;
    const struct moec_matrix *q, *k, *v, *o; /* v: NULL where keys are values */
    const struct moec_matrix *gate;          /* or NULL, as all that follow */
    const float *q_bias, *k_bias, *v_bias, *o_bias, *q_norm, *k_norm, *v_norm, *sinks, *post_norm;
    const struct moec_matrix *q_down, *kv_down, *kv_up; /* with a latent, in place of k and v */
    const float *q_down_norm, *kv_down_norm;
};

/* One block; tokens are counted from its first row. */
struct attention {
    const struct moec_forward *forward;
    const struct moec_layer_kind *kind;
    struct projections weights;
    enum moec_stack stack;
    const float *position_bias; /* the stack's table, or NULL */
    bool is_causal;
    bool has_own_keys; /* the batch's rows make keys and values */
    const struct moec_span *spans;
    uint32_t n_spans;
    uint32_t first_row;
    uint32_t n_tok;
    size_t kv_stride;            /* floats of one position's keys */
    size_t q_stride;             /* of the queries of a token in scratch */
    uint32_t key_dim, value_dim; /* of a head */
    size_t head_stride;          /* key_dim, padded */
    size_t value_stride;         /* value_dim, padded */
    size_t group_step;           /* floats from one group's key to the next's in a row; 0 = all share one */
    uint32_t tile;               /* queries in a tile */
    uint32_t group, n_group;     /* query heads that are worked on together */
    const float *inverse_frequency; /* this and the two that follow: NULL where nothing is rotated */
    float *rope;
    uint32_t *rope_position;
    float scale;
    size_t outputs;   /* where a token's row of scratch holds its outputs */
    bool whole_spans; /* an item is a whole span, not a tile of it */
    float *hidden;
};

/* A tile of queries of one span and one key/value head. */
struct tile {
    const struct attention *attention;
    const struct moec_attention_scratch *scratch;
    const struct moec_span *span;
    uint32_t kv_head;
    uint32_t first;    /* position of the first query */
    uint32_t n;        /* queries */
    uint32_t n_keys;   /* positions that any of them sees, from 0 on */
    uint32_t own_from; /* position of the first key of the span's own */
};

static void norm_rows(void *context, size_t item, int thread)
{
    (void)thread;
    const struct attention *attention = context;
    const struct moec_forward *forward = attention->forward;
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    uint32_t n = moec_min_u32(MOEC_TILE_TOKENS, attention->n_tok - first);
    moec_forward_norm(forward, attention->weights.norm, n, attention->hidden + first * scratch->stride,
                      scratch->normed + first * scratch->stride);
}

static float *own_row(const struct attention *attention, uint32_t token, bool value)
{
    const struct moec_span *span =
        &attention->spans[moec_forward_scratch(attention->forward)->row_span[token]];
    return (value ? span->v_own : span->k_own) +
           (attention->first_row + token - span->first_row) * attention->kv_stride;
}

static void store_key(const struct moec_linear *linear, const struct moec_linear_part *part, uint32_t token,
                      uint32_t row, uint32_t n, const float *y)
{
    (void)part;
    memcpy(own_row(linear->context, token, false) + row, y, n * sizeof(float));
}

static void store_value(const struct moec_linear *linear, const struct moec_linear_part *part, uint32_t token,
                        uint32_t row, uint32_t n, const float *y)
{
    (void)part;
    memcpy(own_row(linear->context, token, true) + row, y, n * sizeof(float));
}

static void clip(float limit, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
}

/* Positions into a token's queries and keys. */
static void rotate_token(const struct attention *attention, uint32_t token, uint32_t position, float *q,
                         float *k)
{
    const struct moec_layer_kind *kind = attention->kind;
    const uint32_t dim = moec_layer_rotary_dim(kind);
    float *cosine = attention->rope + (size_t)token * dim;
    float *sine = cosine + dim / 2;
    if (attention->rope_position[token] != position) {
        moec_rope_angles(&attention->forward->model->config, kind, attention->inverse_frequency, position,
                         cosine, sine);
        attention->rope_position[token] = position;
    }
    moec_rope_rotate(kind, cosine, sine, kind->n_head, q);
    moec_rope_rotate(kind, cosine, sine, kind->n_kv_head, k);
}

static void grow_queries(const struct attention *attention, uint32_t position, size_t n, float *q)
{
    const float factor =
        moec_rope_query_factor(&attention->forward->model->config, attention->kind, position);
    for (size_t i = 0; i < n && factor != 1; i++)
        q[i] *= factor;
}

/* A latent (n) by its norm, and times what the model multiplies it by. */
static void norm_latent(const struct attention *attention, const float *weight, float scale, size_t n,
                        float *latent)
{
    attention->forward->kernels->rms_norm(latent, weight, MOEC_LATENT_NORM_EPS, n, latent);
    for (size_t i = 0; scale != 0 && i < n; i++)
        latent[i] *= scale;
}

/* The latent of queries is normed before their product, so that has a step of its own. */
static void norm_query_latent(void *context, size_t item, int thread)
{
    (void)thread;
    const struct attention *attention = context;
    const struct moec_layer_kind *kind = attention->kind;
    const size_t n = kind->q_latent_dim, room = moec_lanes_padded(n);
    const uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    const uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, attention->n_tok - first);
    float *latents = moec_forward_scratch(attention->forward)->q + moec_latent_query_latent(kind);
    for (uint32_t token = first; token < end; token++) {
        float *latent = latents + token * attention->q_stride;
        norm_latent(attention, attention->weights.q_down_norm,
                    attention->forward->model->config.q_latent_scale, n, latent);
        memset(latent + n, 0, (room - n) * sizeof *latent);
    }
}

/* The latent is normed; what follows it, and the ends of query heads, are rotated where the model rotates. */
static void place_latents(void *context, size_t item, int thread)
{
    (void)thread;
    const struct attention *attention = context;
    const struct moec_layer_kind *kind = attention->kind;
    const struct moec_scratch *scratch = moec_forward_scratch(attention->forward);
    const uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS, n = kind->latent_dim;
    const uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, attention->n_tok - first);
    for (uint32_t token = first; token < end; token++) {
        const struct moec_span *span = &attention->spans[scratch->row_span[token]];
        const uint32_t position = span->first_position + (attention->first_row + token - span->first_row);
        float *queries = scratch->q + token * attention->q_stride + moec_latent_queries(kind);
        float *latent = own_row(attention, token, false);
        norm_latent(attention, attention->weights.kv_down_norm,
                    attention->forward->model->config.latent_scale, n, latent);
        if (attention->rope != NULL)
            rotate_token(attention, token, position, queries + moec_layer_plain_dim(kind), latent + n);
        grow_queries(attention, position, (size_t)kind->n_head * kind->head_dim, queries);
    }
}

/* q and k of a token, each head by itself or all together. */
static void norm_token(const struct attention *attention, float *q, float *k)
{
    const struct moec_forward *forward = attention->forward;
    const struct moec_layer_kind *kind = attention->kind;
    const struct projections *weights = &attention->weights;
    const float eps = (float)forward->model->config.rms_eps;
    const bool is_whole = kind->qk_norm == MOEC_QK_NORM_WHOLE;
    const uint32_t n_q = is_whole ? 1 : kind->n_head, n_k = is_whole ? 1 : kind->n_kv_head;
    const size_t q_dim = moec_layer_q_dim(kind) / n_q, k_dim = moec_layer_kv_dim(kind) / n_k;
    for (uint32_t head = 0; head < n_q; head++)
        forward->kernels->rms_norm(q + head * q_dim, weights->q_norm, eps, q_dim, q + head * q_dim);
    for (uint32_t head = 0; head < n_k; head++)
        forward->kernels->rms_norm(k + head * k_dim, weights->k_norm, eps, k_dim, k + head * k_dim);
}

static void norm_values(const struct attention *attention, float *v)
{
    const struct moec_forward *forward = attention->forward;
    const uint32_t dim = attention->kind->head_dim;
    for (uint32_t head = 0; head < attention->kind->n_kv_head; head++)
        forward->kernels->rms_norm(v + (size_t)head * dim, attention->weights.v_norm,
                                   (float)forward->model->config.rms_eps, dim, v + (size_t)head * dim);
}

static void place_rows(void *context, size_t item, int thread)
{
    (void)thread;
    const struct attention *attention = context;
    const struct moec_forward *forward = attention->forward;
    const struct moec_layer_kind *kind = attention->kind;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    const bool norms_after = kind->qk_norm >= MOEC_QK_NORM_HEAD_AFTER;
    uint32_t first = (uint32_t)item * MOEC_TILE_TOKENS;
    uint32_t end = first + moec_min_u32(MOEC_TILE_TOKENS, attention->n_tok - first);
    const size_t n_q = moec_layer_q_dim(kind);
    for (uint32_t token = first; token < end; token++) {
        const struct moec_span *span = &attention->spans[scratch->row_span[token]];
        uint32_t position = span->first_position + (attention->first_row + token - span->first_row);
        float *q = scratch->q + token * attention->q_stride;
        float *k = own_row(attention, token, false);
        if (attention->weights.v == NULL)
            memcpy(own_row(attention, token, true), k, attention->kv_stride * sizeof(float));
        if (attention->weights.v_norm != NULL)
            norm_values(attention, own_row(attention, token, true));
        if (attention->weights.q_norm != NULL && !norms_after)
            norm_token(attention, q, k);
        if (kind->clip_qkv > 0) {
            clip(kind->clip_qkv, n_q, q);
            clip(kind->clip_qkv, attention->kv_stride, k);
            clip(kind->clip_qkv, attention->kv_stride, own_row(attention, token, true));
        }
        if (attention->rope != NULL)
            rotate_token(attention, token, position, q, k);
        grow_queries(attention, position, moec_layer_q_dim(kind), q);
        if (norms_after)
            norm_token(attention, q, k);
    }
}

static uint32_t first_visible(const struct attention *attention, uint32_t position)
{
    const uint32_t window = attention->kind->window, chunk = attention->kind->chunk;
    if (chunk > 0)
        return position / chunk * chunk;
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* Keys or values of positions first .. first + n - 1 of the tile's head: in place where they lie in one piece
 * and whole lanes, else copied to `copy`, padded with zeros. */
static const float *chunk_rows(const struct tile *tile, bool value, uint32_t first, uint32_t n, float *copy,
                               size_t *stride)
{
    const struct attention *attention = tile->attention;
    const struct moec_span *span = tile->span;
    const float *prefix = value ? span->v_prefix : span->k_prefix;
    const float *own = value ? span->v_own : span->k_own;
    uint32_t head_dim = value ? attention->value_dim : attention->key_dim;
    size_t head_stride = value ? attention->value_stride : attention->head_stride;
    size_t offset = (size_t)tile->kv_head * attention->group_step;
    size_t row = attention->kv_stride;

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
    const struct attention *attention = tile->attention;
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

static void attend_chunk(const struct tile *tile, uint32_t chunk)
{
    const struct attention *attention = tile->attention;
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
    const struct attention *attention = tile->attention;
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
    const struct attention *attention = context;
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

static void attend(struct attention *attention)
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

static void mark_rows(const struct attention *attention)
{
    struct moec_scratch *scratch = moec_forward_scratch(attention->forward);
    for (uint32_t i = 0; i < attention->n_spans; i++) {
        const struct moec_span *span = &attention->spans[i];
        for (uint32_t row = 0; row < span->n_rows; row++)
            scratch->row_span[span->first_row - attention->first_row + row] = i;
    }
}

/* q of the batch's inputs `x` into scratch, and their keys and values to where the spans want them. */
static void project(const struct attention *attention, const float *x)
{
    const struct moec_forward *forward = attention->forward;
    const struct projections *weights = &attention->weights;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    const size_t n_q = moec_layer_q_dim(attention->kind);
    struct moec_linear qkv = {.forward = forward,
                              .x = x,
                              .x_stride = scratch->stride,
                              .n_tok = attention->n_tok,
                              .context = attention,
                              .n_parts = !attention->has_own_keys ? 1
                                         : weights->v != NULL     ? 3
                                                                  : 2};
    qkv.parts[0] = (struct moec_linear_part){weights->q, weights->q_bias, moec_linear_store, scratch->q,
                                             attention->q_stride};
    qkv.parts[1] = (struct moec_linear_part){weights->k, weights->k_bias, store_key, NULL, 0};
    qkv.parts[2] = (struct moec_linear_part){weights->v, weights->v_bias, store_value, NULL, 0};
    moec_linear_run(&qkv);
    for (uint32_t token = 0; token < attention->n_tok && n_q < attention->q_stride; token++)
        memset(scratch->q + token * attention->q_stride + n_q, 0,
               (attention->q_stride - n_q) * sizeof(float));
}

/* The same with a latent: its row to where the spans want it, and queries that attend to latents. */
static void project_latent(struct attention *attention, const float *x)
{
    const struct moec_forward *forward = attention->forward;
    const struct moec_layer_kind *kind = attention->kind;
    const struct projections *weights = &attention->weights;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    const size_t n_tiles = moec_tile_count(attention->n_tok);
    const struct moec_linear_part queries = {weights->q, NULL, moec_linear_store,
                                             scratch->q + moec_latent_queries(kind), attention->q_stride};
    struct moec_linear down = {.forward = forward,
                               .x = x,
                               .x_stride = scratch->stride,
                               .n_tok = attention->n_tok,
                               .context = attention,
                               .n_parts = 2};
    float *query_latents = scratch->q + moec_latent_query_latent(kind);
    down.parts[0] = (struct moec_linear_part){weights->kv_down, NULL, store_key, NULL, 0};
    down.parts[1] = kind->q_latent_dim == 0
                        ? queries
                        : (struct moec_linear_part){weights->q_down, NULL, moec_linear_store, query_latents,
                                                    attention->q_stride};
    moec_linear_run(&down);
    if (kind->q_latent_dim > 0) {
        moec_forward_run(forward, n_tiles, (uint64_t)attention->n_tok * kind->q_latent_dim, norm_query_latent,
                         attention);
        struct moec_linear up = {.forward = forward,
                                 .x = query_latents,
                                 .x_stride = attention->q_stride,
                                 .n_tok = attention->n_tok,
                                 .n_parts = 1,
                                 .parts = {queries}};
        moec_linear_run(&up);
    }
    moec_forward_run(forward, n_tiles, (uint64_t)attention->n_tok * attention->kv_stride, place_latents,
                     attention);
    moec_latent_absorb(forward, kind, weights->kv_up, attention->n_tok);
}

/* Outputs in scratch times the sigmoid of their gate. */
static void multiply_sigmoid(const struct moec_linear *linear, const struct moec_linear_part *part,
                             uint32_t token, uint32_t row, uint32_t n, const float *y)
{
    (void)linear;
    float *out = part->out + token * part->out_stride + row;
    for (uint32_t i = 0; i < n; i++)
        out[i] *= 1.0f / (1.0f + moec_exp_f32(-y[i]));
}

static void gate_outputs(const struct attention *attention, const float *x)
{
    const struct moec_scratch *scratch = moec_forward_scratch(attention->forward);
    struct moec_linear gate = {.forward = attention->forward,
                               .x = x,
                               .x_stride = scratch->stride,
                               .n_tok = attention->n_tok,
                               .n_parts = 1};
    gate.parts[0] = (struct moec_linear_part){attention->weights.gate, NULL, multiply_sigmoid, scratch->q,
                                              attention->q_stride};
    moec_linear_run(&gate);
}

/* The output product into the hidden state: at once, or by way of `normed`, whose inputs are used up. */
static void add_outputs(const struct attention *attention)
{
    const struct moec_forward *forward = attention->forward;
    const struct projections *weights = &attention->weights;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    const bool is_plain = moec_forward_adds_plainly(forward, weights->post_norm);
    struct moec_linear o = {.forward = forward,
                            .x = scratch->q + attention->outputs,
                            .x_stride = attention->q_stride,
                            .n_tok = attention->n_tok,
                            .n_parts = 1};
    o.parts[0] =
        (struct moec_linear_part){weights->o, weights->o_bias, is_plain ? moec_linear_add : moec_linear_store,
                                  is_plain ? attention->hidden : scratch->normed, scratch->stride};
    moec_linear_run(&o);
    if (!is_plain)
        moec_forward_add_batch(forward, weights->post_norm, attention->n_tok, scratch->normed,
                               attention->hidden);
}

static void run_block(const struct attention *whole, const struct moec_span *spans, uint32_t n_spans,
                      uint32_t first_row, uint32_t n_tok)
{
    const struct moec_forward *forward = whole->forward;
    const struct moec_config *config = &forward->model->config;
    struct moec_scratch *scratch = moec_forward_scratch(forward);
    struct attention attention = *whole;
    attention.spans = spans;
    attention.n_spans = n_spans;
    attention.first_row = first_row;
    attention.n_tok = n_tok;
    attention.hidden += first_row * scratch->stride;
    mark_rows(&attention);
    const size_t n_tiles = (n_tok + MOEC_TILE_TOKENS - 1) / MOEC_TILE_TOKENS;
    moec_forward_run(forward, n_tiles, (uint64_t)n_tok * config->n_embd, norm_rows, &attention);
    const bool is_latent = attention.kind->latent_dim > 0;
    if (is_latent)
        project_latent(&attention, scratch->normed);
    else
        project(&attention, scratch->normed);
    if (config->n_bucket == 0 && !is_latent)
        moec_forward_run(forward, n_tiles, n_tok * (uint64_t)moec_layer_q_dim(attention.kind), place_rows,
                         &attention);
    attend(&attention);
    if (is_latent)
        moec_latent_expand(forward, attention.kind, attention.weights.kv_up, n_tok);
    if (attention.weights.gate != NULL)
        gate_outputs(&attention, scratch->normed);
    add_outputs(&attention);
}

/* Whether each span begins where the one before it ends, from row 0 on. */
static bool spans_are_in_order(const struct moec_span *spans, uint32_t n_spans)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < n_spans; i++) {
        if (spans[i].first_row != row)
            return false;
        row += spans[i].n_rows;
    }
    return true;
}

static void run_blocks(const struct attention *attention, const struct moec_span *spans, uint32_t n_spans)
{
    const struct moec_scratch *scratch = moec_forward_scratch(attention->forward);
    const uint32_t block = scratch->test_hook.attention_block > 0 ? scratch->test_hook.attention_block
                                                                  : scratch->attention_block;
    for (uint32_t first = 0, next = 0; first < n_spans; first = next) {
        uint32_t rows = spans[next++].n_rows;
        while (next < n_spans && rows + spans[next].n_rows <= block)
            rows += spans[next++].n_rows;
        run_block(attention, spans + first, next - first, spans[first].first_row, rows);
    }
}

static void run(const struct attention *attention, const struct moec_span *spans, uint32_t n_spans,
                uint32_t n_tok)
{
    if (spans_are_in_order(spans, n_spans))
        run_blocks(attention, spans, n_spans);
    else
        run_block(attention, spans, n_spans, 0, n_tok);
}

/* What both attentions of a layer have in common. */
static struct attention attention_of(const struct moec_forward *forward, uint32_t layer, float *hidden)
{
    const struct moec_config *config = &forward->model->config;
    const uint32_t at = config->layer_kind[layer];
    const struct moec_layer_kind *kind = &config->kinds[at];
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    const bool is_latent = kind->latent_dim > 0;
    const uint32_t key_dim = moec_layer_score_dim(kind), value_dim = moec_layer_weighed_dim(kind);
    const uint32_t group = moec_attention_group(kind);
    return (struct attention){
        .forward = forward,
        .kind = kind,
        .stack = moec_config_stack(config, layer),
        .kv_stride = moec_layer_kv_dim(kind),
        .q_stride = is_latent ? moec_latent_token_floats(kind) : moec_lanes_padded(moec_layer_q_dim(kind)),
        .outputs = is_latent ? moec_latent_queries(kind) : 0,
        .key_dim = key_dim,
        .value_dim = value_dim,
        .head_stride = moec_lanes_padded(key_dim),
        .value_stride = moec_lanes_padded(value_dim),
        .group_step = is_latent ? 0 : key_dim,
        .tile = moec_attention_tile(kind, forward->max_tokens),
        .group = group,
        .n_group = kind->n_head / group,
        .inverse_frequency = forward->model->inverse_frequency[at],
        .rope = scratch->rope[at],
        .rope_position = scratch->rope_position[at],
        .scale = kind->score_scale > 0 ? kind->score_scale : 1.0f / sqrtf((float)kind->head_dim),
        .hidden = hidden};
}

static struct projections self_weights(const struct moec_layer *layer)
{
    return (struct projections){.norm = layer->attention_norm,
                                .q = &layer->q,
                                .k = &layer->k,
                                .v = layer->v.rows > 0 ? &layer->v : NULL,
                                .o = &layer->o,
                                .q_bias = layer->q_bias,
                                .k_bias = layer->k_bias,
                                .v_bias = layer->v_bias,
                                .o_bias = layer->o_bias,
                                .v_norm = layer->v_norm,
                                .sinks = layer->sinks,
                                .q_down = &layer->q_down,
                                .kv_down = &layer->kv_down,
                                .kv_up = &layer->kv_up,
                                .q_down_norm = layer->q_down_norm,
                                .kv_down_norm = layer->kv_down_norm,
                                .post_norm = layer->attention_post_norm,
                                .gate = layer->output_gate.rows > 0 ? &layer->output_gate : NULL,
                                .q_norm = layer->q_norm,
                                .k_norm = layer->k_norm};
}

/* The learned vectors of the spans' positions. */
static void add_positions(const struct moec_forward *forward, const struct moec_matrix *positions,
                          const struct moec_span *spans, uint32_t n_spans, float *hidden)
{
    const struct moec_scratch *scratch = moec_forward_scratch(forward);
    float *row = scratch->threads[0].row;
    for (uint32_t i = 0; i < n_spans; i++) {
        for (uint32_t t = 0; t < spans[i].n_rows; t++) {
            const uint32_t position = moec_min_u32(spans[i].first_position + t, positions->rows - 1);
            forward->kernels->decode_rows(positions, position, 1, row, scratch->stride);
            forward->kernels->add(row, positions->columns,
                                  hidden + (spans[i].first_row + t) * scratch->stride);
        }
    }
}

static void run_self(const struct moec_forward *forward, uint32_t layer, const struct moec_layer *weights,
                     const struct moec_span *spans, uint32_t n_spans, uint32_t n_tok, float *hidden)
{
    struct attention attention = attention_of(forward, layer, hidden);
    if (weights->positions.rows > 0)
        add_positions(forward, &weights->positions, spans, n_spans, hidden);
    attention.weights = self_weights(weights);
    attention.position_bias = forward->model->position_bias[attention.stack];
    attention.is_causal = attention.stack == MOEC_STACK_DECODER;
    attention.has_own_keys = n_spans == 0 || spans[0].n_source == 0;
    run(&attention, spans, n_spans, n_tok);
}

static enum moec_status run_on_backend(const struct moec_forward *forward, uint32_t layer,
                                       const struct moec_span *spans, uint32_t n_spans, uint32_t n_tok,
                                       float *hidden, struct moec_error *err)
{
    struct moec_backend *backend = forward->backend;
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    MOEC_TRY(backend->ops->attention(backend, layer, spans, n_spans, n_tok, hidden, err));
    moec_trace_compute(forward->trace, "attention", layer, begin_ns);
    return MOEC_OK;
}

enum moec_status moec_forward_attention(const struct moec_forward *forward, uint32_t layer,
                                        const struct moec_span *spans, uint32_t n_spans, uint32_t n_tok,
                                        float *hidden, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    const struct moec_layer *weights = NULL;
    if (!moec_layer_mixes(moec_config_layer(&forward->model->config, layer)))
        return MOEC_OK;
    if (forward->backend != NULL)
        return run_on_backend(forward, layer, spans, n_spans, n_tok, hidden, err);
    MOEC_TRY(moec_model_acquire_layer(forward->model, layer, &weights, err));
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    if (moec_layer_is_running(moec_config_layer(&forward->model->config, layer)))
        moec_running_run(forward, layer, weights, spans, n_spans, n_tok, hidden);
    else
        run_self(forward, layer, weights, spans, n_spans, n_tok, hidden);
    moec_trace_compute(forward->trace, "attention", layer, begin_ns);
    moec_model_release_layer(forward->model, layer);
    return MOEC_OK;
}

enum moec_status moec_forward_cross(const struct moec_forward *forward, uint32_t layer,
                                    const struct moec_span *spans, uint32_t n_spans, uint32_t n_tok,
                                    float *hidden, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    const struct moec_layer *weights = NULL;
    if (forward->backend != NULL)
        return forward->backend->ops->cross(forward->backend, layer, spans, n_spans, n_tok, hidden, err);
    MOEC_TRY(moec_model_acquire_layer(forward->model, layer, &weights, err));
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    struct attention attention = attention_of(forward, layer, hidden);
    attention.weights =
        (struct projections){.norm = weights->cross_norm, .q = &weights->cross_q, .o = &weights->cross_o};
    run(&attention, spans, n_spans, n_tok);
    moec_trace_compute(forward->trace, "cross", layer, begin_ns);
    moec_model_release_layer(forward->model, layer);
    return MOEC_OK;
}

/* Keys and values of inputs `x`. */
static void run_keys(const struct moec_forward *forward, const struct moec_matrix *k,
                     const struct moec_matrix *v, uint32_t n_tok, const float *x, float *keys, float *values)
{
    struct moec_linear linear = {.forward = forward,
                                 .x = x,
                                 .x_stride = moec_forward_scratch(forward)->stride,
                                 .n_tok = n_tok,
                                 .n_parts = 2};
    linear.parts[0] = (struct moec_linear_part){k, NULL, moec_linear_store, keys, k->rows};
    linear.parts[1] = (struct moec_linear_part){v, NULL, moec_linear_store, values, v->rows};
    moec_linear_run(&linear);
}

enum moec_status moec_forward_keys(const struct moec_forward *forward, uint32_t layer, uint32_t n_tok,
                                   const float *hidden, float *keys, float *values, struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    const struct moec_layer *weights = NULL;
    if (forward->backend != NULL)
        return forward->backend->ops->keys(forward->backend, layer, n_tok, hidden, keys, values, err);
    MOEC_TRY(moec_model_acquire_layer(forward->model, layer, &weights, err));
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    float *normed = moec_forward_scratch(forward)->normed;
    moec_forward_norm_batch(forward, weights->attention_norm, n_tok, hidden, normed);
    run_keys(forward, &weights->k, &weights->v, n_tok, normed, keys, values);
    moec_trace_compute(forward->trace, "attention", layer, begin_ns);
    moec_model_release_layer(forward->model, layer);
    return MOEC_OK;
}

enum moec_status moec_forward_cross_keys(const struct moec_forward *forward, uint32_t layer, uint32_t n_tok,
                                         const float *encoded, float *keys, float *values,
                                         struct moec_error *err)
{
    MOEC_TRY(moec_forward_check(forward, n_tok, err));
    const struct moec_layer *weights = NULL;
    if (forward->backend != NULL)
        return forward->backend->ops->cross_keys(forward->backend, layer, n_tok, encoded, keys, values, err);
    MOEC_TRY(moec_model_acquire_layer(forward->model, layer, &weights, err));
    const uint64_t begin_ns = moec_trace_now(forward->trace);
    run_keys(forward, &weights->cross_k, &weights->cross_v, n_tok, encoded, keys, values);
    moec_trace_compute(forward->trace, "cross", layer, begin_ns);
    moec_model_release_layer(forward->model, layer);
    return MOEC_OK;
}
