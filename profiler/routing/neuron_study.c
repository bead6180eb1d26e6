/* Tokens of an expert are taken in equal steps of those that chose it, as they stand in the layer. Both
 * layers' inputs go through the same decoded rows. Thresholds are quantiles of the very values that are
 * counted, so active shares are exact. Counts are kept by layer and by window: the latter give intervals. */
#include "profiler/routing/neuron_study.h"

#include "formats/base/memory.h"
#include "formats/tables/sparsity_table.h"
#include "profiler/common/quantiles.h"
#include "profiler/routing/layer_pairs.h"

#include <math.h>
#include <string.h>

#define N_LEVEL   MOEC_NEURON_LEVELS
#define N_COUNT   (MOEC_NEURON_THRESHOLDS * N_LEVEL)
#define TILE_ROWS 64u

static const double levels[N_LEVEL] = {0.5, 0.6, 0.7, 0.8, 0.9};

/* Neurons of one layer or one window, by threshold and level. */
struct counts {
    double n_active[N_COUNT], n_predicted[N_COUNT], n_both[N_COUNT];
};

struct studying {
    const struct moec_neuron_study_job *job;
    const struct moec_progress *progress;
    struct moec_windows windows; /* that were run */
    struct moec_pool pool;
    struct {
        const struct moec_config *config;
        size_t stride; /* floats of a row of inputs */
    } shape;
    struct {
        uint32_t *window_of;      /* (T): of each token of the layer at work */
        uint32_t *picked;         /* (E, MOEC_NEURON_TOKENS) */
        uint32_t *n_picked;       /* (E) */
        uint64_t *n_seen, *n_all; /* (E): tokens that chose the expert, so far and in all */
    } tokens;
    struct {
        float *inputs[2];        /* (MOEC_NEURON_TOKENS, stride): of the layer before, of this one */
        float *products[2];      /* (MOEC_NEURON_TOKENS, n_ff): |up . x| of both */
        float *sorted, *scratch; /* (MOEC_NEURON_TOKENS, n_ff) */
        float *rows;             /* (threads, TILE_ROWS, stride) */
    } room;
    struct {
        struct moec_neuron_study *study;
        struct counts *by_layer, *by_window; /* (S), (W) */
    } found;
};

/* ---- which tokens ---- */

static void find_windows(struct studying *studying, enum moec_stack stack)
{
    uint32_t token = 0;
    for (uint32_t w = 0; w < studying->windows.n_window; w++)
        for (uint32_t i = 0; i < moec_windows_read(&studying->windows, stack, w); i++)
            studying->tokens.window_of[token++] = w;
}

/* In equal steps of those that chose each expert. */
static void pick_tokens(struct studying *studying, const struct moec_layer_side *side)
{
    const uint32_t k = studying->shape.config->top_k, n_expert = studying->shape.config->n_expert;
    memset(studying->tokens.n_picked, 0, n_expert * sizeof *studying->tokens.n_picked);
    memset(studying->tokens.n_seen, 0, n_expert * sizeof *studying->tokens.n_seen);
    memset(studying->tokens.n_all, 0, n_expert * sizeof *studying->tokens.n_all);
    for (size_t i = 0; i < (size_t)side->n_token * k; i++)
        if (moec_layer_side_chose(side, i, n_expert))
            studying->tokens.n_all[side->experts[i]]++;
    for (size_t i = 0; i < (size_t)side->n_token * k; i++) {
        if (!moec_layer_side_chose(side, i, n_expert))
            continue;
        const uint32_t e = side->experts[i], n = studying->tokens.n_picked[e];
        const uint64_t n_all = studying->tokens.n_all[e], n_seen = studying->tokens.n_seen[e]++;
        const uint64_t step = n_all > MOEC_NEURON_TOKENS ? n_all / MOEC_NEURON_TOKENS : 1;
        if (n < MOEC_NEURON_TOKENS && n_seen % step == 0)
            studying->tokens.picked[(size_t)e * MOEC_NEURON_TOKENS + studying->tokens.n_picked[e]++] =
                (uint32_t)(i / k);
    }
}

/* ---- one expert ---- */

struct product {
    const struct studying *studying;
    const struct moec_matrix *up;
    uint32_t n_token;
};

static void multiply_tile(void *context, size_t item, int thread)
{
    const struct product *product = context;
    const struct studying *studying = product->studying;
    const struct moec_kernels *kernels = studying->job->kernels;
    const uint32_t n_ff = studying->shape.config->n_ff_expert, first = (uint32_t)item * TILE_ROWS;
    const uint32_t n = n_ff - first < TILE_ROWS ? n_ff - first : TILE_ROWS;
    float *rows = studying->room.rows + (size_t)thread * TILE_ROWS * studying->shape.stride;
    kernels->decode_rows(product->up, first, n, rows, studying->shape.stride);
    for (int i = 0; i < 2; i++) {
        float *out = studying->room.products[i] + first;
        kernels->dot(studying->room.inputs[i], studying->shape.stride, product->n_token, rows,
                     studying->shape.stride, n, studying->shape.config->n_embd, out, n_ff);
        for (uint32_t t = 0; t < product->n_token; t++)
            for (uint32_t r = 0; r < n; r++)
                out[(size_t)t * n_ff + r] = fabsf(out[(size_t)t * n_ff + r]);
    }
}

static void count_token(struct studying *studying, uint32_t layer, uint32_t window, size_t row,
                        const double *real, const double *prefetched)
{
    const uint32_t n_ff = studying->shape.config->n_ff_expert;
    struct counts *of[] = {&studying->found.by_layer[layer], &studying->found.by_window[window]};
    for (uint32_t threshold = 0; threshold < MOEC_NEURON_THRESHOLDS; threshold++) {
        const double *limits = threshold == MOEC_NEURON_SAME ? real : prefetched;
        for (uint32_t l = 0; l < N_LEVEL; l++) {
            uint32_t n_active = 0, n_predicted = 0, n_both = 0;
            for (size_t i = row * n_ff; i < (row + 1) * n_ff; i++) {
                const bool is_active = (double)studying->room.products[1][i] >= real[l];
                const bool is_predicted = (double)studying->room.products[0][i] >= limits[l];
                n_active += is_active;
                n_predicted += is_predicted;
                n_both += is_active && is_predicted;
            }
            for (size_t i = 0; i < 2; i++) {
                of[i]->n_active[threshold * N_LEVEL + l] += n_active;
                of[i]->n_predicted[threshold * N_LEVEL + l] += n_predicted;
                of[i]->n_both[threshold * N_LEVEL + l] += n_both;
            }
        }
    }
}

static enum moec_status take_expert(struct studying *studying, const struct moec_layer_pair *pair,
                                    uint32_t expert, struct moec_error *err)
{
    const struct moec_config *config = studying->shape.config;
    const uint32_t layer = moec_config_moe_layer(config, pair->to->ordinal),
                   n = studying->tokens.n_picked[expert];
    const uint32_t *tokens = studying->tokens.picked + (size_t)expert * MOEC_NEURON_TOKENS;
    const struct moec_expert_request request = moec_expert_request_of(layer, expert);
    const struct moec_router_answer answer = {
        .layer = layer, .n_tok = n, .active = {.list = &expert, .n = 1, .n_takers = &n}};
    const uint64_t n_value = (uint64_t)n * config->n_ff_expert;
    double limits[2][N_LEVEL];
    struct moec_mlp mlp;
    for (uint32_t t = 0; t < n; t++) {
        const struct moec_layer_side *const sides[] = {pair->from, pair->to};
        for (int i = 0; i < 2; i++)
            memcpy(studying->room.inputs[i] + t * studying->shape.stride,
                   sides[i]->inputs + tokens[t] * pair->stride, studying->shape.stride * sizeof(float));
    }
    if (studying->job->experts->ops->expect != NULL)
        studying->job->experts->ops->expect(studying->job->experts, &answer);
    MOEC_TRY(studying->job->experts->ops->acquire(studying->job->experts, request, &mlp, err));
    const struct product product = {studying, &mlp.up, n};
    moec_parallel_for(&studying->pool, (config->n_ff_expert + TILE_ROWS - 1) / TILE_ROWS, multiply_tile,
                      (void *)&product);
    studying->job->experts->ops->release(studying->job->experts, request);
    for (int i = 0; i < 2; i++) {
        memcpy(studying->room.sorted, studying->room.products[i], n_value * sizeof(float));
        moec_quantiles(studying->room.sorted, studying->room.scratch, n_value, levels, N_LEVEL, limits[i]);
    }
    for (uint32_t t = 0; t < n; t++)
        count_token(studying, pair->to->ordinal, studying->tokens.window_of[tokens[t]], t, limits[1],
                    limits[0]);
    return MOEC_OK;
}

/* ---- one layer ---- */

static enum moec_status make_room(struct studying *studying, const struct moec_layer_pair *pair,
                                  struct moec_error *err)
{
    static const char what[] = "a study of neurons";
    const struct moec_config *config = studying->shape.config;
    const uint64_t n_token = MOEC_NEURON_TOKENS, n_ff = config->n_ff_expert;
    if (studying->found.by_window != NULL)
        return MOEC_OK;
    studying->shape.stride = pair->stride;
    MOEC_TRY(moec_windows_first(pair->windows, pair->windows->n_window, &studying->windows, err));
    const struct {
        void **array;
        uint64_t count;
        size_t item_bytes;
    } arrays[] = {
        {(void **)&studying->tokens.window_of, moec_windows_token_count(pair->windows), sizeof(uint32_t)},
        {(void **)&studying->tokens.picked, config->n_expert * n_token, sizeof(uint32_t)},
        {(void **)&studying->tokens.n_picked, config->n_expert, sizeof(uint32_t)},
        {(void **)&studying->tokens.n_seen, config->n_expert, sizeof(uint64_t)},
        {(void **)&studying->tokens.n_all, config->n_expert, sizeof(uint64_t)},
        {(void **)&studying->room.products[0], n_token * n_ff, sizeof(float)},
        {(void **)&studying->room.products[1], n_token * n_ff, sizeof(float)},
        {(void **)&studying->room.sorted, n_token * n_ff, sizeof(float)},
        {(void **)&studying->room.scratch, n_token * n_ff, sizeof(float)},
        {(void **)&studying->found.by_layer, studying->found.study->n_layer,
         sizeof *studying->found.by_layer},
        {(void **)&studying->found.by_window, pair->windows->n_window, sizeof *studying->found.by_window},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        MOEC_TRY(moec_alloc(arrays[i].array, arrays[i].count, arrays[i].item_bytes, what, err));
    for (int i = 0; i < 2; i++)
        MOEC_TRY(moec_alloc_aligned((void **)&studying->room.inputs[i], n_token, pair->stride * sizeof(float),
                                    what, err));
    return moec_alloc_aligned((void **)&studying->room.rows, (uint64_t)studying->pool.n_threads * TILE_ROWS,
                              pair->stride * sizeof(float), what, err);
}

static enum moec_status take_pair(void *context, const struct moec_layer_pair *pair, struct moec_error *err)
{
    struct studying *studying = context;
    MOEC_TRY(make_room(studying, pair, err));
    find_windows(studying,
                 moec_config_stack(studying->shape.config,
                                   moec_config_moe_layer(studying->shape.config, pair->to->ordinal)));
    pick_tokens(studying, pair->to);
    for (uint32_t e = 0; e < studying->shape.config->n_expert; e++)
        if (studying->tokens.n_picked[e] > 0)
            MOEC_TRY(take_expert(studying, pair, e, err));
    return MOEC_OK;
}

static enum moec_status worked(void *context, double share, struct moec_error *err)
{
    const struct studying *studying = context;
    return moec_progress_report(studying->progress, "neurons", share, 1, err);
}

/* ---- results ---- */

static void find_layers(struct studying *studying)
{
    struct moec_neuron_study *study = studying->found.study;
    for (uint32_t s = 0; s < study->n_layer; s++)
        for (uint32_t i = 0; i < N_COUNT; i++) { /* NaN of none */
            const struct counts *counts = &studying->found.by_layer[s];
            study->layer_recall[s * N_COUNT + i] = counts->n_both[i] / counts->n_active[i];
            study->layer_precision[s * N_COUNT + i] = counts->n_both[i] / counts->n_predicted[i];
        }
}

static enum moec_status find_shares(struct studying *studying, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const uint32_t n = studying->windows.n_window;
    double *both = NULL, *of[2] = {NULL, NULL};
    MOEC_TRY_OUT(moec_alloc((void **)&both, n, sizeof *both, "counts of neurons", err));
    for (int i = 0; i < 2; i++)
        MOEC_TRY_OUT(moec_alloc((void **)&of[i], n, sizeof *of[i], "counts of neurons", err));
    for (uint32_t i = 0; i < N_COUNT; i++) {
        for (uint32_t w = 0; w < n; w++) {
            both[w] = studying->found.by_window[w].n_both[i];
            of[0][w] = studying->found.by_window[w].n_active[i];
            of[1][w] = studying->found.by_window[w].n_predicted[i];
        }
        MOEC_TRY_OUT(moec_study_share_make(&studying->windows, both, of[0],
                                           &studying->found.study->recall[i / N_LEVEL][i % N_LEVEL], err));
        MOEC_TRY_OUT(moec_study_share_make(&studying->windows, both, of[1],
                                           &studying->found.study->precision[i / N_LEVEL][i % N_LEVEL], err));
    }
out:
    free(both);
    free(of[0]);
    free(of[1]);
    return status;
}

static void release(struct studying *studying)
{
    void *const arrays[] = {studying->tokens.window_of, studying->tokens.picked,    studying->tokens.n_picked,
                            studying->tokens.n_seen,    studying->tokens.n_all,     studying->room.inputs[0],
                            studying->room.inputs[1],   studying->room.sorted,      studying->room.scratch,
                            studying->room.products[0], studying->room.products[1], studying->room.rows,
                            studying->found.by_layer,   studying->found.by_window};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    moec_windows_release(&studying->windows);
}

enum moec_status moec_neuron_study_run(const struct moec_neuron_study_job *job,
                                       const struct moec_progress *progress, struct moec_neuron_study *out,
                                       struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct studying studying = {.job = job,
                                .progress = progress,
                                .shape.config = &job->model->config,
                                .found.study = out,
                                .pool = moec_pool_make(job->n_threads)};
    const struct moec_layer_pairs_job pairs = {
        .of = {.model = job->model, .experts = job->experts, .windows = job->windows},
        .kernels = job->kernels,
        .n_threads = job->n_threads,
        .of_experts = true,
        .work_bytes = job->work_bytes,
        .hooks = {.pair = take_pair, .worked = worked, .context = &studying}};
    *out = (struct moec_neuron_study){0};
    if (moec_sparsity_check_config(studying.shape.config, NULL) != MOEC_OK)
        return MOEC_OK;
    out->n_layer = moec_config_moe_count(studying.shape.config);
    memcpy(out->levels, levels, sizeof levels);
    MOEC_TRY_OUT(moec_alloc((void **)&out->layer_recall, out->n_layer, 2 * N_COUNT * sizeof(double),
                            "a study of neurons", err));
    out->layer_precision = out->layer_recall + (size_t)out->n_layer * N_COUNT;
    MOEC_TRY_OUT(moec_layer_pairs_run(&pairs, err));
    find_layers(&studying);
    status = find_shares(&studying, err);
out:
    release(&studying);
    return status;
}

void moec_neuron_study_release(struct moec_neuron_study *study)
{
    free(study->layer_recall);
    *study = (struct moec_neuron_study){0};
}
