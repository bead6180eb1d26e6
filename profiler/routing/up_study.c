/* Which tokens an expert takes follows from window, layer and expert alone, by a generator seeded with the
 * three. So the sample is the same for any batches and ranks. Values are stored as they come, since only
 * their quantiles count, and each rank sorts its share of the experts. */
#include "profiler/routing/up_study.h"

#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/common/random.h"
#include "runtime/forward/pass/forward.h"

#include <math.h>
#include <string.h>

#define TILE_ROWS 64 /* neurons decoded at once */

const double moec_up_quantiles[MOEC_UP_QUANTILES] = {0, 0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1};

struct up_model {
    const struct moec_config *config;
    struct moec_experts *experts;
    const struct moec_kernels *kernels;
    const struct moec_rank_windows *windows;
    struct moec_pool pool;
    size_t stride;
    uint32_t n_moe;
};

/* Which tokens each expert takes. */
struct up_tokens {
    uint32_t *start;    /* (E + 1): first of each expert's tokens in a window */
    uint32_t *members;  /* (tokens of a window, k): tokens by expert */
    uint32_t *picked;   /* (E, max_tokens): rows of the batch that each expert takes */
    uint32_t *n_picked; /* (E) */
    uint32_t *active;   /* (E): experts that take any, increasing */
    uint32_t *n_taken;  /* (E): tokens whose values stand in `values` */
};

struct moec_up_study {
    struct up_model of;
    struct {
        uint32_t max_tokens; /* of one expert */
        uint32_t per_window; /* tokens of an expert from one window */
        uint32_t step;       /* of this many windows one gives tokens to an expert */
    } limits;
    struct up_tokens tokens;
    struct {
        float *values;  /* (E, max_tokens, n_ff) of one layer */
        float *input;   /* (max_tokens, stride) gathered */
        float *scratch; /* for each thread: decoded rows, or values while they are sorted */
        size_t scratch_floats;
    } room;
    double *found; /* (S, E, MOEC_UP_QUANTILES), borrowed */
    uint64_t multiply_adds;
};

static uint32_t tokens_of_expert(const struct moec_config *config)
{
    const uint32_t fit = MOEC_UP_VALUES / config->n_ff_expert;
    return fit > MOEC_UP_MAX_TOKENS   ? MOEC_UP_MAX_TOKENS
           : fit < MOEC_UP_MIN_TOKENS ? MOEC_UP_MIN_TOKENS
                                      : fit;
}

static size_t scratch_floats(const struct moec_config *config)
{
    const size_t sorted = (size_t)tokens_of_expert(config) * config->n_ff_expert;
    const size_t decoded = TILE_ROWS * moec_forward_stride(config);
    return moec_lanes_padded(sorted > decoded ? sorted : decoded);
}

uint64_t moec_up_study_bytes(const struct moec_config *config, int n_threads)
{
    const uint64_t n_tok = tokens_of_expert(config), n_expert = config->n_expert;
    const uint64_t n_thread = (uint64_t)moec_pool_make(n_threads).n_threads;
    return sizeof(float) * (n_expert * n_tok * (config->n_ff_expert + 1ull) + 4 * n_expert +
                            n_tok * moec_forward_stride(config) + n_thread * scratch_floats(config));
}

static void set_sizes(struct moec_up_study *study)
{
    const uint32_t n_window = study->of.windows->n_all;
    study->limits.max_tokens = tokens_of_expert(study->of.config);
    study->limits.step = (n_window + study->limits.max_tokens - 1) / study->limits.max_tokens;
    study->limits.per_window = n_window < study->limits.max_tokens ? study->limits.max_tokens / n_window : 1;
    study->room.scratch_floats = scratch_floats(study->of.config);
}

enum moec_status moec_up_study_create(const struct moec_forward *forward, struct moec_experts *experts,
                                      const struct moec_rank_windows *windows, double *found,
                                      struct moec_up_study **out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &forward->model->config;
    struct moec_up_study *study = NULL;
    MOEC_TRY(moec_alloc((void **)&study, 1, sizeof *study, "a study of up projections", err));
    *study = (struct moec_up_study){.of = {.config = config,
                                           .experts = experts,
                                           .kernels = forward->kernels,
                                           .windows = windows,
                                           .pool = forward->pool,
                                           .stride = moec_forward_stride(config),
                                           .n_moe = moec_config_moe_count(config)},
                                    .found = found};
    set_sizes(study);
    const uint64_t n_expert = config->n_expert, n_picked = n_expert * study->limits.max_tokens;
    uint64_t longest = 0;
    for (uint32_t w = 0; w < windows->own.n_window; w++)
        longest = windows->own.length[w] > longest ? windows->own.length[w] : longest;
    const struct {
        void **array;
        uint64_t count;
        size_t item_bytes;
    } arrays[] = {
        {(void **)&study->tokens.start, n_expert + 1, sizeof(uint32_t)},
        {(void **)&study->tokens.members, longest * config->top_k, sizeof(uint32_t)},
        {(void **)&study->tokens.picked, n_picked, sizeof(uint32_t)},
        {(void **)&study->tokens.n_picked, n_expert, sizeof(uint32_t)},
        {(void **)&study->tokens.active, n_expert, sizeof(uint32_t)},
        {(void **)&study->tokens.n_taken, n_expert, sizeof(uint32_t)},
        {(void **)&study->room.values, n_picked, config->n_ff_expert * sizeof(float)},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        MOEC_TRY_OUT(moec_alloc(arrays[i].array, arrays[i].count, arrays[i].item_bytes,
                                "a study of up projections", err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&study->room.input, study->limits.max_tokens,
                                    study->of.stride * sizeof(float), "a study of up projections", err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&study->room.scratch, (uint64_t)study->of.pool.n_threads,
                                    study->room.scratch_floats * sizeof(float), "a study of up projections",
                                    err));
    *out = study;
out:
    if (status != MOEC_OK)
        moec_up_study_free(study);
    return status;
}

void moec_up_study_free(struct moec_up_study *study)
{
    if (study == NULL)
        return;
    free(study->tokens.start);
    free(study->tokens.members);
    free(study->tokens.picked);
    free(study->tokens.n_picked);
    free(study->tokens.active);
    free(study->tokens.n_taken);
    free(study->room.values);
    free(study->room.input);
    free(study->room.scratch);
    free(study);
}

/* Tokens of one window by expert, increasing. What was full has none. */
static void group_window(struct moec_up_study *study, uint32_t n_tok, const uint32_t *experts)
{
    const uint32_t k = study->of.config->top_k, n_expert = study->of.config->n_expert;
    memset(study->tokens.start, 0, ((size_t)n_expert + 1) * sizeof *study->tokens.start);
    for (uint32_t i = 0; i < n_tok * k; i++)
        if (experts[i] < n_expert)
            study->tokens.start[experts[i] + 1]++;
    for (uint32_t e = 0; e < n_expert; e++)
        study->tokens.start[e + 1] += study->tokens.start[e];
    /* Filling moves each start to the next expert's; then they move back. */
    for (uint32_t i = 0; i < n_tok * k; i++)
        if (experts[i] < n_expert)
            study->tokens.members[study->tokens.start[experts[i]]++] = i / k;
    for (uint32_t e = n_expert; e > 0; e--)
        study->tokens.start[e] = study->tokens.start[e - 1];
    study->tokens.start[0] = 0;
}

static void pick_from_window(struct moec_up_study *study, uint32_t ordinal, uint32_t window, uint32_t row)
{
    const uint32_t n_expert = study->of.config->n_expert;
    for (uint32_t e = 0; e < n_expert; e++) {
        const uint32_t n = study->tokens.start[e + 1] - study->tokens.start[e];
        if (n == 0 || (window + e) % study->limits.step != 0)
            continue;
        struct moec_random random = {((uint64_t)window * study->of.n_moe + ordinal) * n_expert + e};
        const uint32_t from = (uint32_t)moec_random_below(&random, n);
        for (uint32_t i = 0; i < n && i < study->limits.per_window; i++) {
            const uint32_t member = study->tokens.members[study->tokens.start[e] + (from + i) % n];
            study->tokens.picked[(size_t)e * study->limits.max_tokens + study->tokens.n_picked[e]++] =
                row + member;
        }
    }
}

/* |up . x| of a tile of one expert's neurons. */
struct product {
    const struct moec_up_study *study;
    const struct moec_matrix *up;
    uint32_t n_tok;
    float *out; /* (n_tok, n_ff) */
};

static void multiply_tile(void *context, size_t item, int thread)
{
    const struct product *product = context;
    const struct moec_up_study *study = product->study;
    const uint32_t n_ff = study->of.config->n_ff_expert, first = (uint32_t)item * TILE_ROWS;
    const uint32_t n = n_ff - first < TILE_ROWS ? n_ff - first : TILE_ROWS;
    float *rows = study->room.scratch + (size_t)thread * study->room.scratch_floats;
    study->of.kernels->decode_rows(product->up, first, n, rows, study->of.stride);
    study->of.kernels->dot(study->room.input, study->of.stride, product->n_tok, rows, study->of.stride, n,
                           study->of.config->n_embd, product->out + first, n_ff);
    for (uint32_t t = 0; t < product->n_tok; t++) {
        float *values = product->out + (size_t)t * n_ff + first;
        for (uint32_t i = 0; i < n; i++)
            values[i] = fabsf(values[i]);
    }
}

static enum moec_status take_expert(struct moec_up_study *study, uint32_t ordinal, uint32_t expert,
                                    const float *input, struct moec_error *err)
{
    const uint32_t layer = moec_config_moe_layer(study->of.config, ordinal),
                   n = study->tokens.n_picked[expert];
    const uint32_t n_ff = study->of.config->n_ff_expert;
    const uint32_t *rows = study->tokens.picked + (size_t)expert * study->limits.max_tokens;
    const struct moec_expert_request request = moec_expert_request_of(layer, expert);
    struct moec_mlp mlp;
    for (uint32_t i = 0; i < n; i++)
        memcpy(study->room.input + i * study->of.stride, input + rows[i] * study->of.stride,
               study->of.stride * sizeof *input);
    MOEC_TRY(study->of.experts->ops->acquire(study->of.experts, request, &mlp, err));
    const size_t first = (size_t)expert * study->limits.max_tokens + study->tokens.n_taken[expert];
    struct product product = {study, &mlp.up, n, study->room.values + first * n_ff};
    moec_parallel_for(&study->of.pool, (n_ff + TILE_ROWS - 1) / TILE_ROWS, multiply_tile, &product);
    study->of.experts->ops->release(study->of.experts, request);
    study->tokens.n_taken[expert] += n;
    study->multiply_adds += (uint64_t)n * n_ff * study->of.config->n_embd;
    return MOEC_OK;
}

struct sorting {
    struct moec_up_study *study;
    uint32_t ordinal;
};

static void sort_expert(void *context, size_t item, int thread)
{
    const struct sorting *sorting = context;
    const struct moec_up_study *study = sorting->study;
    const size_t n_ff = study->of.config->n_ff_expert;
    if (!moec_ranks_has(study->of.windows->ranks, item))
        return;
    const size_t cell = (size_t)sorting->ordinal * study->of.config->n_expert + item;
    moec_quantiles(study->room.values + item * study->limits.max_tokens * n_ff,
                   study->room.scratch + (size_t)thread * study->room.scratch_floats,
                   study->tokens.n_taken[item] * n_ff, moec_up_quantiles, MOEC_UP_QUANTILES,
                   study->found + cell * MOEC_UP_QUANTILES);
}

enum moec_status moec_up_study_windows(struct moec_up_study *study, uint32_t ordinal,
                                       struct moec_window_range windows, const uint32_t *experts,
                                       const float *input, struct moec_error *err)
{
    const struct moec_config *config = study->of.config;
    const enum moec_stack stack = moec_config_stack(config, moec_config_moe_layer(config, ordinal));
    uint32_t row = 0;
    memset(study->tokens.n_picked, 0, config->n_expert * sizeof *study->tokens.n_picked);
    for (uint32_t w = windows.first; w < windows.first + windows.n; w++) {
        const uint32_t n_tok = moec_windows_read(&study->of.windows->own, stack, w);
        group_window(study, n_tok, experts + (size_t)row * config->top_k);
        pick_from_window(study, ordinal, moec_rank_windows_number(study->of.windows, w), row);
        row += n_tok;
    }
    uint32_t n_active = 0;
    for (uint32_t e = 0; e < config->n_expert; e++) {
        if (study->tokens.n_picked[e] > 0)
            study->tokens.active[n_active++] = e;
    }
    if (study->of.experts->ops->expect != NULL && n_active > 0) {
        const struct moec_router_answer answer = {.layer = moec_config_moe_layer(config, ordinal),
                                                  .n_tok = row,
                                                  .active = {.list = study->tokens.active, .n = n_active}};
        study->of.experts->ops->expect(study->of.experts, &answer);
    }
    for (uint32_t i = 0; i < n_active; i++)
        MOEC_TRY(take_expert(study, ordinal, study->tokens.active[i], input, err));
    return MOEC_OK;
}

/* ---- the end of a layer ---- */

/* What a rank has of the layer: the number of values of each expert, then these, without gaps. */
struct exchange {
    uint32_t *counts; /* (ranks, E): tokens */
    float *values;    /* (most, n_ff): of a rank */
    uint64_t most;    /* tokens of all experts of the rank that has most */
};

static uint64_t count_tokens(const uint32_t *counts, uint32_t n_expert)
{
    uint64_t n = 0;
    for (uint32_t e = 0; e < n_expert; e++)
        n += counts[e];
    return n;
}

/* From what a rank told to the experts' values, or back: the own ones stand there first. */
static void move_values(struct moec_up_study *study, const struct exchange *exchange, uint32_t rank,
                        bool is_back)
{
    const size_t n_ff = study->of.config->n_ff_expert, n_expert = study->of.config->n_expert;
    const uint32_t *counts = exchange->counts + rank * n_expert;
    float *packed = exchange->values;
    for (size_t e = 0; e < n_expert; e++) {
        const size_t first = e * study->limits.max_tokens + (is_back ? 0 : study->tokens.n_taken[e]);
        float *own = study->room.values + first * n_ff;
        memcpy(is_back ? packed : own, is_back ? own : packed, counts[e] * n_ff * sizeof(float));
        packed += counts[e] * n_ff;
        study->tokens.n_taken[e] += is_back ? 0 : counts[e];
    }
}

/* Everybody's values are then here; their order does not matter. */
static enum moec_status exchange_values(struct moec_up_study *study, struct moec_error *err)
{
    static const char what[] = "values of up projections";
    enum moec_status status = MOEC_OK;
    struct moec_ranks *ranks = study->of.windows->ranks;
    const uint32_t count = moec_ranks_count(ranks), own = moec_ranks_own(ranks),
                   n_expert = study->of.config->n_expert;
    const size_t row_bytes = study->of.config->n_ff_expert * sizeof(float);
    struct exchange exchange = {0};
    MOEC_TRY_OUT(
        moec_alloc((void **)&exchange.counts, (uint64_t)count * n_expert, sizeof(uint32_t), what, err));
    memcpy(exchange.counts + (size_t)own * n_expert, study->tokens.n_taken, n_expert * sizeof(uint32_t));
    MOEC_TRY_OUT(moec_ranks_gather(ranks, exchange.counts, count, n_expert * sizeof(uint32_t), err));
    for (uint32_t r = 0; r < count; r++) {
        const uint64_t n = count_tokens(exchange.counts + (size_t)r * n_expert, n_expert);
        exchange.most = n > exchange.most ? n : exchange.most;
    }
    if (exchange.most == 0)
        goto out;
    MOEC_TRY_OUT(moec_alloc((void **)&exchange.values, exchange.most, row_bytes, what, err));
    for (uint32_t r = 0; r < count; r++) {
        const uint64_t n = count_tokens(exchange.counts + (size_t)r * n_expert, n_expert);
        if (r == own)
            move_values(study, &exchange, r, true);
        MOEC_TRY_OUT(moec_ranks_spread(ranks, r, exchange.values, n * row_bytes, err));
        if (r != own)
            move_values(study, &exchange, r, false);
    }
out:
    free(exchange.counts);
    free(exchange.values);
    return status;
}

enum moec_status moec_up_study_finish(struct moec_up_study *study, uint32_t ordinal, struct moec_error *err)
{
    const uint32_t n_expert = study->of.config->n_expert;
    struct moec_ranks *ranks = study->of.windows->ranks;
    struct sorting sorting = {study, ordinal};
    if (ranks != NULL)
        MOEC_TRY(exchange_values(study, err));
    moec_parallel_for(&study->of.pool, n_expert, sort_expert, &sorting);
    memset(study->tokens.n_taken, 0, n_expert * sizeof *study->tokens.n_taken);
    return moec_ranks_gather(ranks, study->found + (size_t)ordinal * n_expert * MOEC_UP_QUANTILES, n_expert,
                             MOEC_UP_QUANTILES * sizeof(double), err);
}

uint64_t moec_up_study_multiply_adds(const struct moec_up_study *study)
{
    return study->multiply_adds;
}
