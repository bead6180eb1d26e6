/* Active neurons are found by magnitude: a threshold by bisection over the bits of F32, so ties are all kept.
 * Bit t of a neuron stands for the expert's t-th token. A tile never straddles a word, and threads write the
 * words of different neurons. Tokens are those that pass first, in the order of the windows, whatever the
 * batch. */
#include "compiler/fit/coactivation.h"

#include "compiler/fit/seriation.h"
#include "formats/base/memory.h"

#include <math.h>
#include <string.h>

#define N_WORDS     (MOEC_COACTIVATION_TOKENS / 64)
#define TILE_TOKENS 64u /* of an expert, looked at together: the bits of a word */

_Static_assert(MOEC_COACTIVATION_TOKENS % TILE_TOKENS == 0, "tiles fill words");

struct looking {
    const struct moec_coactivation_request *request;
    struct moec_pool pool;
    struct moec_neuron_order *order;
    struct {
        uint32_t ordinal;
        size_t stride;
        uint64_t *bits;   /* (E, n_ff, N_WORDS): bit t: active for the expert's token t */
        uint32_t *n_seen; /* (E): tokens in them */
    } layer;              /* at work; arrays here and below are owned */
    struct {
        float *x, *up;     /* (TILE_TOKENS, stride), (TILE_TOKENS, n_ff) */
        float *weights;    /* (threads, MOEC_SUM_CHUNK, stride) */
        uint32_t *scratch; /* (threads, moec_seriation_scratch_count) */
    } room;
    struct {
        double *runs; /* (E, 2): sums over its tokens, before and after */
        double n_token, before, after;
    } found;
    struct {
        const struct moec_mlp *mlp;
        uint32_t expert, n_tok;
    } tile;
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- which neurons are active ---- */

static void multiply_chunk(void *context, size_t item, int thread)
{
    const struct looking *l = context;
    const struct moec_kernels *kernels = l->request->kernels;
    const uint32_t n_ff = l->order->n_neuron, first = (uint32_t)item * MOEC_SUM_CHUNK;
    const uint32_t n = least(MOEC_SUM_CHUNK, n_ff - first);
    float *weights = l->room.weights + (size_t)thread * MOEC_SUM_CHUNK * l->layer.stride;
    kernels->decode_rows(&l->tile.mlp->up, first, n, weights, l->layer.stride);
    kernels->dot(l->room.x, l->layer.stride, l->tile.n_tok, weights, l->layer.stride, n,
                 l->tile.mlp->up.columns, l->room.up + first, n_ff);
}

/* The largest magnitude, as bits of F32, that at least `wanted` of n values reach. */
static uint32_t find_limit(const float *values, uint32_t n, uint32_t wanted)
{
    uint32_t limit = 0;
    for (uint32_t bit = (uint32_t)1 << 30; bit > 0; bit >>= 1) {
        uint32_t n_reach = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t magnitude;
            memcpy(&magnitude, &values[i], sizeof magnitude);
            n_reach += (magnitude & 0x7fffffffu) >= (limit | bit);
        }
        limit |= n_reach >= wanted ? bit : 0;
    }
    return limit;
}

/* Zeroes the products of a token that are not among its largest. */
static void keep_largest(void *context, size_t item, int thread)
{
    const struct looking *l = context;
    const uint32_t n_ff = l->order->n_neuron;
    float *up = l->room.up + item * n_ff, limit;
    const uint32_t bits = find_limit(up, n_ff, (uint32_t)ceil(MOEC_COACTIVATION_SHARE * n_ff));
    (void)thread;
    memcpy(&limit, &bits, sizeof limit);
    for (uint32_t i = 0; i < n_ff; i++)
        up[i] = fabsf(up[i]) >= limit ? up[i] : 0;
}

/* Sets the bits of a chunk's neurons for the tile's tokens, which are those of one word. */
static void mark_chunk(void *context, size_t item, int thread)
{
    const struct looking *l = context;
    const uint32_t n_ff = l->order->n_neuron, first = (uint32_t)item * MOEC_SUM_CHUNK;
    const uint32_t end = first + least(MOEC_SUM_CHUNK, n_ff - first), seen = l->layer.n_seen[l->tile.expert];
    uint64_t *bits = l->layer.bits + (size_t)l->tile.expert * n_ff * N_WORDS + seen / 64;
    (void)thread;
    for (uint32_t i = first; i < end; i++)
        for (uint32_t t = 0; t < l->tile.n_tok; t++)
            bits[(size_t)i * N_WORDS] |= (uint64_t)(l->room.up[(size_t)t * n_ff + i] != 0)
                                         << ((seen + t) % 64);
}

static void take_expert(void *context, const struct moec_expert_inputs *in)
{
    struct looking *l = context;
    if (in->expert == MOEC_EXPERT_ALL)
        return;
    uint32_t *seen = &l->layer.n_seen[in->expert];
    const size_t n_chunk = (l->order->n_neuron + MOEC_SUM_CHUNK - 1) / MOEC_SUM_CHUNK;
    l->tile.mlp = in->mlp;
    l->tile.expert = in->expert;
    for (uint32_t first = 0; first < in->rows.n_pair && *seen < MOEC_COACTIVATION_TOKENS;
         first += l->tile.n_tok) {
        l->tile.n_tok = least(TILE_TOKENS - *seen % TILE_TOKENS, in->rows.n_pair - first);
        for (uint32_t t = 0; t < l->tile.n_tok; t++)
            memcpy(l->room.x + t * l->layer.stride,
                   in->rows.normed + in->rows.pairs[first + t] / in->rows.top_k * l->layer.stride,
                   l->layer.stride * sizeof(float));
        moec_parallel_for(&l->pool, n_chunk, multiply_chunk, l);
        moec_parallel_for(&l->pool, l->tile.n_tok, keep_largest, l);
        moec_parallel_for(&l->pool, n_chunk, mark_chunk, l);
        *seen += l->tile.n_tok;
    }
}

/* ---- the order ---- */

/* Runs of all tokens: each begins at a neuron where its bit differs from that of the one before, and ends so.
 */
static double count_runs(const uint64_t *bits, const uint16_t *order, uint32_t n)
{
    static const uint64_t none[N_WORDS];
    const uint64_t *before = none;
    uint64_t n_change = 0;
    for (uint32_t i = 0; i <= n; i++) {
        const uint64_t *here = i < n ? bits + (size_t)order[i] * N_WORDS : none;
        for (uint32_t w = 0; w < N_WORDS; w++)
            n_change += (uint64_t)__builtin_popcountll(before[w] ^ here[w]);
        before = here;
    }
    return (double)n_change / 2;
}

static void order_expert(void *context, size_t item, int thread)
{
    const struct looking *l = context;
    const uint32_t n_ff = l->order->n_neuron, expert = (uint32_t)item;
    const uint64_t *bits = l->layer.bits + (size_t)expert * n_ff * N_WORDS;
    uint16_t *order = moec_neuron_order_of(l->order, l->layer.ordinal, expert);
    if (l->layer.n_seen[expert] == 0)
        return;
    l->found.runs[2 * item] = count_runs(bits, order, n_ff);
    moec_seriation_make(bits, n_ff, N_WORDS,
                        l->room.scratch + (size_t)thread * moec_seriation_scratch_count(n_ff), order);
    l->found.runs[2 * item + 1] = count_runs(bits, order, n_ff);
}

static enum moec_status end_layer(void *context, uint32_t layer, struct moec_error *err)
{
    struct looking *l = context;
    const struct moec_config *config = l->request->config;
    (void)err;
    if (!moec_config_is_moe(config, layer))
        return MOEC_OK;
    l->layer.ordinal = (uint32_t)moec_config_moe_ordinal(config, layer);
    moec_parallel_for(&l->pool, config->n_expert, order_expert, l);
    for (uint32_t e = 0; e < config->n_expert; e++) {
        l->found.n_token += l->layer.n_seen[e];
        l->found.before += l->layer.n_seen[e] > 0 ? l->found.runs[(size_t)2 * e] : 0;
        l->found.after += l->layer.n_seen[e] > 0 ? l->found.runs[(size_t)2 * e + 1] : 0;
        l->layer.n_seen[e] = 0;
    }
    memset(l->layer.bits, 0,
           (size_t)config->n_expert * config->n_ff_expert * N_WORDS * sizeof *l->layer.bits);
    return MOEC_OK;
}

/* ---- life ---- */

uint64_t moec_coactivation_bytes(const struct moec_config *config, int n_threads)
{
    const uint64_t n_thread = (uint64_t)moec_pool_make(n_threads).n_threads, n_ff = config->n_ff_expert;
    const uint64_t row = moec_forward_stride(config) * sizeof(float);
    return config->n_expert * (n_ff * N_WORDS * sizeof(uint64_t) + sizeof(uint32_t) + 2 * sizeof(double)) +
           TILE_TOKENS * (row + n_ff * sizeof(float)) +
           n_thread *
               (MOEC_SUM_CHUNK * row + moec_seriation_scratch_count(config->n_ff_expert) * sizeof(uint32_t)) +
           (uint64_t)moec_config_moe_count(config) * config->n_expert * n_ff * sizeof(uint16_t);
}

enum moec_status moec_coactivation_order(const struct moec_coactivation_request *request,
                                         struct moec_neuron_order *order, struct moec_coactivation_runs *runs,
                                         struct moec_error *err)
{
    static const char what[] = "active neurons of a layer";
    const struct moec_config *config = request->config;
    const uint64_t n_expert = config->n_expert, n_ff = config->n_ff_expert;
    enum moec_status status = MOEC_OK;
    struct looking l = {.request = request,
                        .pool = moec_pool_make(request->n_threads),
                        .order = order,
                        .layer.stride = moec_forward_stride(config)};
    const uint64_t n_thread = (uint64_t)l.pool.n_threads, row = l.layer.stride * sizeof(float);
    MOEC_TRY_OUT(
        moec_alloc((void **)&l.layer.bits, n_expert * n_ff, N_WORDS * sizeof *l.layer.bits, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&l.layer.n_seen, n_expert, sizeof *l.layer.n_seen, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&l.found.runs, n_expert, 2 * sizeof *l.found.runs, what, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&l.room.x, TILE_TOKENS, row, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&l.room.up, TILE_TOKENS, n_ff * sizeof *l.room.up, what, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&l.room.weights, n_thread, MOEC_SUM_CHUNK * row, what, err));
    MOEC_TRY_OUT(moec_alloc_aligned(
        (void **)&l.room.scratch, n_thread,
        moec_seriation_scratch_count(config->n_ff_expert) * sizeof *l.room.scratch, what, err));
    const struct moec_scorer_watch watch = {
        .inputs = {.take_expert = take_expert, .context = &l}, .layer_done = end_layer, .context = &l};
    const struct moec_scorer_variation variation = {.watch = &watch};
    MOEC_TRY_OUT(
        moec_scorer_run_varied(request->scorer, &variation, request->measure, request->progress, err));
    *runs = (struct moec_coactivation_runs){0};
    if (l.found.n_token > 0)
        *runs = (struct moec_coactivation_runs){l.found.before / l.found.n_token,
                                                l.found.after / l.found.n_token};
out:
    free(l.layer.bits);
    free(l.layer.n_seen);
    free(l.found.runs);
    free(l.room.x);
    free(l.room.up);
    free(l.room.weights);
    free(l.room.scratch);
    return status;
}
