/* Magnitudes are counted by the upper bits of F32, so bins grow with the value. A quantile is interpolated
 * within its bin. Tokens are sorted by expert (counting sort) and computed in tiles. Products run on all
 * threads but one thread counts, so counts need no atomics. They are of one layer: whoever goes on to the
 * next clears them. */
#include "profiler/profile/activations.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "profiler/evaluate/batch_sequences.h"
#include "runtime/forward/context/activation.h"

#include <math.h>
#include <string.h>

#define BIN_SHIFT   16 /* a bin is what F32 magnitudes share but for their last bits */
#define N_BIN       ((uint32_t)1 << (31 - BIN_SHIFT))
#define TILE_TOKENS 256

struct moec_activations {
    const struct moec_forward *forward;
    struct moec_experts *experts;
    struct {
        const struct moec_config *config;
        size_t stride;
    } shape;
    struct {
        uint64_t *counts;  /* (E, projections, N_BIN) */
        uint64_t *n_count; /* (E): activations of each kind */
        double *up;        /* (E, n_ff) of |up . x| */
    } sums;
    struct {
        uint32_t *start;   /* (E + 2) */
        uint32_t *members; /* (max_tokens of the forward, k): tokens by expert */
        float *kept;       /* (E, n_kept, n_ff): |up . x| of the first tokens; NULL = none */
        uint32_t n_kept;
    } tokens;
    const uint16_t *gate_scales; /* (E, n_ff), borrowed, or NULL */
    struct {
        float *input;     /* (TILE_TOKENS, stride) gathered */
        float *gate, *up; /* (TILE_TOKENS, n_ff) */
        float *down;      /* likewise */
        float *weights;   /* (n_threads, MOEC_SUM_CHUNK, stride) */
    } room;
    uint64_t multiply_adds;
};

enum moec_status moec_activations_create(const struct moec_forward *forward, struct moec_experts *experts,
                                         struct moec_activations **out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &forward->model->config;
    const char *what = "the distribution of activations";
    struct moec_activations *a = NULL;
    MOEC_TRY(moec_alloc((void **)&a, 1, sizeof *a, what, err));
    *a = (struct moec_activations){.forward = forward,
                                   .experts = experts,
                                   .shape = {.config = config, .stride = moec_forward_stride(config)}};
    const uint64_t n_expert = config->n_expert, row = a->shape.stride * sizeof(float);
    const uint64_t n_weight = (uint64_t)forward->pool.n_threads * MOEC_SUM_CHUNK;
    const uint64_t n_member = (uint64_t)forward->max_tokens * config->top_k;
    const uint64_t ff = config->n_ff_expert * sizeof(float);
    MOEC_TRY_OUT(moec_alloc((void **)&a->sums.counts, n_expert * MOEC_PROJECTION_COUNT,
                            N_BIN * sizeof *a->sums.counts, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&a->sums.n_count, n_expert, sizeof *a->sums.n_count, what, err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&a->sums.up, n_expert * config->n_ff_expert, sizeof *a->sums.up, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&a->tokens.start, n_expert + 2, sizeof *a->tokens.start, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&a->tokens.members, n_member, sizeof *a->tokens.members, what, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&a->room.input, TILE_TOKENS, row, what, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&a->room.gate, TILE_TOKENS, ff, what, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&a->room.up, TILE_TOKENS, ff, what, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&a->room.down, TILE_TOKENS, ff, what, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&a->room.weights, n_weight, row, what, err));
    *out = a;
    a = NULL;
out:
    moec_activations_free(a);
    return status;
}

void moec_activations_free(struct moec_activations *activations)
{
    if (activations == NULL)
        return;
    free(activations->sums.counts);
    free(activations->sums.n_count);
    free(activations->sums.up);
    free(activations->tokens.kept);
    free(activations->tokens.start);
    free(activations->tokens.members);
    free(activations->room.input);
    free(activations->room.gate);
    free(activations->room.up);
    free(activations->room.down);
    free(activations->room.weights);
    free(activations);
}

static uint64_t *counts_of(const struct moec_activations *activations, uint32_t expert,
                           enum moec_projection projection)
{
    return activations->sums.counts + ((size_t)expert * MOEC_PROJECTION_COUNT + (size_t)projection) * N_BIN;
}

void moec_activations_clear(struct moec_activations *activations)
{
    const size_t n_expert = activations->shape.config->n_expert;
    memset(activations->sums.counts, 0,
           n_expert * MOEC_PROJECTION_COUNT * N_BIN * sizeof *activations->sums.counts);
    memset(activations->sums.n_count, 0, n_expert * sizeof *activations->sums.n_count);
    memset(activations->sums.up, 0,
           n_expert * activations->shape.config->n_ff_expert * sizeof *activations->sums.up);
}

enum moec_status moec_activations_keep_up(struct moec_activations *activations, uint32_t n_token,
                                          struct moec_error *err)
{
    const struct moec_config *config = activations->shape.config;
    activations->tokens.n_kept = n_token;
    return moec_alloc((void **)&activations->tokens.kept, (uint64_t)config->n_expert * config->n_ff_expert,
                      n_token * sizeof *activations->tokens.kept, "up products of some tokens", err);
}

/* Up products of n_tok tokens that follow those of the expert so far. */
static void keep_some(struct moec_activations *activations, uint32_t expert, uint32_t n_tok)
{
    const size_t n_ff = activations->shape.config->n_ff_expert;
    const uint64_t before = moec_activations_tokens(activations, expert);
    float *kept = activations->tokens.kept + expert * activations->tokens.n_kept * n_ff;
    for (uint64_t t = 0; t < n_tok && before + t < activations->tokens.n_kept; t++)
        for (size_t i = 0; i < n_ff; i++)
            kept[(before + t) * n_ff + i] = fabsf(activations->room.up[t * n_ff + i]);
}

void moec_activations_count_turns(const struct moec_activations *activations, uint32_t expert,
                                  float threshold, uint64_t *n_active, uint64_t *n_turn)
{
    const size_t n_ff = activations->shape.config->n_ff_expert;
    const uint64_t n_token = moec_activations_tokens(activations, expert);
    const float *kept = activations->tokens.kept + expert * activations->tokens.n_kept * n_ff;
    for (uint64_t t = 0; t < n_token && t < activations->tokens.n_kept; t++, kept += n_ff)
        for (size_t i = 0; i + 1 < n_ff; i++) {
            *n_active += kept[i] >= threshold;
            *n_turn += kept[i] >= threshold && kept[i + 1] < threshold;
        }
}

void moec_activations_scale_gate(struct moec_activations *activations, const uint16_t *scales)
{
    activations->gate_scales = scales;
}

/* Tokens by expert, increasing, choices that reach none left out: those of expert e are members[start[e]] ..
 * members[start[e + 1] - 1]. */
static void group_tokens(struct moec_activations *activations, uint32_t n_tok, const uint32_t *chosen,
                         const float *weights)
{
    const uint32_t k = activations->shape.config->top_k, n_expert = activations->shape.config->n_expert;
    uint32_t *start = activations->tokens.start;
    memset(start, 0, ((size_t)n_expert + 2) * sizeof *start);
    for (uint32_t i = 0; i < n_tok * k; i++)
        start[chosen[i] + 2] += moec_choice_is_passed(activations->shape.config, weights[i]) ? 0 : 1;
    for (uint32_t e = 0; e < n_expert; e++)
        start[e + 2] += start[e + 1];
    for (uint32_t i = 0; i < n_tok * k; i++)
        if (!moec_choice_is_passed(activations->shape.config, weights[i]))
            activations->tokens.members[start[chosen[i] + 1]++] = i / k;
}

/* A tile of tokens in one expert. */
struct tile {
    struct moec_activations *activations;
    const struct moec_mlp *mlp;
    uint32_t n_tok;
};

/* Activations of one chunk of neurons. */
static void run_chunk(void *context, size_t item, int thread)
{
    const struct tile *tile = context;
    const struct moec_activations *a = tile->activations;
    const struct moec_kernels *kernels = a->forward->kernels;
    const uint32_t n_ff = a->shape.config->n_ff_expert, first = (uint32_t)item * MOEC_SUM_CHUNK;
    const uint32_t n = n_ff - first < MOEC_SUM_CHUNK ? n_ff - first : MOEC_SUM_CHUNK;
    float *weights = a->room.weights + (size_t)thread * MOEC_SUM_CHUNK * a->shape.stride;
    kernels->decode_rows(&tile->mlp->gate, first, n, weights, a->shape.stride);
    kernels->dot(a->room.input, a->shape.stride, tile->n_tok, weights, a->shape.stride, n,
                 a->shape.config->n_embd, a->room.gate + first, n_ff);
    kernels->decode_rows(&tile->mlp->up, first, n, weights, a->shape.stride);
    kernels->dot(a->room.input, a->shape.stride, tile->n_tok, weights, a->shape.stride, n,
                 a->shape.config->n_embd, a->room.up + first, n_ff);
    for (uint32_t t = 0; t < tile->n_tok; t++) {
        const size_t at = (size_t)t * n_ff + first;
        moec_mlp_factors(kernels, tile->mlp->activation, n, a->room.gate + at, a->room.up + at,
                         a->room.down + at);
    }
}

static uint32_t bin_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x7fffffffu) >> BIN_SHIFT;
}

static void count_tile(struct moec_activations *activations, uint32_t expert, uint32_t n_tok)
{
    const size_t n_ff = activations->shape.config->n_ff_expert, n = n_tok * n_ff;
    const uint16_t *scales = activations->gate_scales;
    double *up_sums = activations->sums.up + expert * n_ff;
    uint64_t *gate = counts_of(activations, expert, MOEC_PROJECTION_GATE);
    uint64_t *up = counts_of(activations, expert, MOEC_PROJECTION_UP);
    uint64_t *down = counts_of(activations, expert, MOEC_PROJECTION_DOWN);
    for (size_t i = 0; i < n; i++) {
        const size_t neuron = i % n_ff;
        const float scale = scales == NULL ? 1 : moec_bf16_to_f32(scales[expert * n_ff + neuron]);
        gate[bin_of(activations->room.gate[i] * scale)]++;
        up_sums[neuron] += fabs((double)activations->room.up[i]);
        up[bin_of(activations->room.up[i])]++;
        down[bin_of(activations->room.down[i])]++;
    }
    activations->sums.n_count[expert] += n;
}

static void add_expert(struct moec_activations *activations, const struct moec_mlp *mlp, uint32_t expert,
                       const float *input)
{
    const uint32_t end = activations->tokens.start[expert + 1], n_ff = activations->shape.config->n_ff_expert;
    const size_t stride = activations->shape.stride;
    for (uint32_t first = activations->tokens.start[expert]; first < end; first += TILE_TOKENS) {
        struct tile tile = {activations, mlp, end - first < TILE_TOKENS ? end - first : TILE_TOKENS};
        for (uint32_t i = 0; i < tile.n_tok; i++)
            memcpy(activations->room.input + i * stride,
                   input + activations->tokens.members[first + i] * stride, stride * sizeof *input);
        moec_parallel_for(&activations->forward->pool, (n_ff + MOEC_SUM_CHUNK - 1) / MOEC_SUM_CHUNK,
                          run_chunk, &tile);
        if (activations->tokens.kept != NULL)
            keep_some(activations, expert, tile.n_tok);
        count_tile(activations, expert, tile.n_tok);
        activations->multiply_adds += 2 * (uint64_t)tile.n_tok * n_ff * activations->shape.config->n_embd;
    }
}

enum moec_status moec_activations_add(struct moec_activations *activations, uint32_t layer, uint32_t n_tok,
                                      const float *input, const struct moec_token_choices *choices,
                                      struct moec_error *err)
{
    struct moec_experts *source = activations->experts;
    group_tokens(activations, n_tok, choices->experts, choices->weights);
    for (uint32_t e = 0; e < activations->shape.config->n_expert; e++) {
        struct moec_mlp mlp;
        if (activations->tokens.start[e] == activations->tokens.start[e + 1])
            continue;
        MOEC_TRY(source->ops->acquire(source, moec_expert_request_of(layer, e), &mlp, err));
        add_expert(activations, &mlp, e, input);
        source->ops->release(source, moec_expert_request_of(layer, e));
    }
    return MOEC_OK;
}

static double magnitude(double bin)
{
    const uint32_t whole = (uint32_t)bin, low = whole << BIN_SHIFT, high = (whole + 1) << BIN_SHIFT;
    float from, to;
    memcpy(&from, &low, sizeof from);
    memcpy(&to, &high, sizeof to);
    return from + (bin - whole) * ((double)to - from);
}

/* Over experts first .. first + n - 1. */
static double quantile_of(const struct moec_activations *activations, uint32_t first, uint32_t n,
                          enum moec_projection projection, double q)
{
    uint64_t all = 0;
    for (uint32_t e = first; e < first + n; e++)
        all += activations->sums.n_count[e];
    const double wanted = q * (double)all;
    double below = 0;
    for (uint32_t bin = 0; bin + 1 < N_BIN && wanted > 0; bin++) {
        uint64_t count = 0;
        for (uint32_t e = first; e < first + n; e++)
            count += counts_of(activations, e, projection)[bin];
        if (below + (double)count >= wanted)
            return magnitude(bin + (wanted - below) / (double)count);
        below += (double)count;
    }
    return 0;
}

double moec_activations_quantile(const struct moec_activations *activations, uint32_t expert,
                                 enum moec_projection projection, double q)
{
    return quantile_of(activations, expert, 1, projection, q);
}

double moec_activations_layer_quantile(const struct moec_activations *activations,
                                       enum moec_projection projection, double q)
{
    return quantile_of(activations, 0, activations->shape.config->n_expert, projection, q);
}

uint64_t moec_activations_tokens(const struct moec_activations *activations, uint32_t expert)
{
    return activations->sums.n_count[expert] / activations->shape.config->n_ff_expert;
}

void moec_activations_up_means(const struct moec_activations *activations, uint32_t expert, double *out)
{
    const size_t n_ff = activations->shape.config->n_ff_expert;
    const uint64_t n_token = moec_activations_tokens(activations, expert);
    for (size_t i = 0; i < n_ff; i++)
        out[i] = n_token == 0 ? 0 : activations->sums.up[expert * n_ff + i] / (double)n_token;
}

uint64_t moec_activations_bytes(const struct moec_config *config)
{
    const uint64_t of_expert =
        MOEC_PROJECTION_COUNT * N_BIN * sizeof(uint64_t) + config->n_ff_expert * sizeof(double);
    return config->n_expert * of_expert;
}

uint64_t moec_activations_multiply_adds(const struct moec_activations *activations)
{
    return activations->multiply_adds;
}
