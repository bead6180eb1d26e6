/* Windows add to sums of their own, which are folded in the order of windows once all ranks have them.
 * Sampled tokens are fixed by stretch and seed, before any routing is seen. `sample_input` holds the layer
 * before until the sample's turn in this one. Everything of a layer is exchanged and cleared at its end,
 * where every rank must take part. */
#include "profiler/routing/router_study.h"

#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/common/random.h"
#include "profiler/evaluate/parts.h"
#include "profiler/routing/paths.h"
#include "profiler/routing/position_study.h"
#include "profiler/routing/up_study.h"

#include <math.h>
#include <string.h>

#define TILE_TOKENS 32 /* tokens that meet a router together */

static const double margin_quantiles[] = {0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1};
#define N_MARGIN (sizeof margin_quantiles / sizeof *margin_quantiles)

/* Sums over the choices of one layer: x gate weight, y unweighted norm, z = x y. */
struct gate_sums {
    double n, x, y, z, xx, yy, zz, xy, xz;
    uint64_t bin_n[MOEC_GATE_BINS];
    double bin_y[MOEC_GATE_BINS], bin_z[MOEC_GATE_BINS];
};

/* What one window adds to the sums of the layer at work. */
struct window_sums {
    struct gate_sums gate;
    double range, cosine;
    uint64_t n_cosine;
};

struct study_shape {
    const struct moec_config *config;
    size_t stride, router_stride; /* floats of an input, of a row of router scores */
    uint32_t n_moe, n_listed;     /* S, experts kept of a prediction */
};

struct study_tokens {
    const struct moec_rank_windows *shared;
    const struct moec_windows *windows; /* all of them */
    uint64_t n;                         /* in all */
    uint64_t *layer_start;              /* (W + 1): first token of each window in the layer at work */
    uint32_t next_window;               /* of this rank's */
    struct moec_part_split split;
};

/* Traces of one batch. */
struct study_traces {
    float *input, *margins, *ranges, *norms;
    float *gate_input; /* what the router reads: `input`, or own_gate_input where that is not NULL */
    float *own_gate_input;
};

/* The layer at work. */
struct study_layer {
    float *margins, *sorted;  /* (T), and room to sort them */
    struct window_sums *sums; /* (W) */
    uint16_t *predicted;      /* (T, n_listed): by the next layer's router, of this rank's rows */
    float *router;            /* (E, stride): that router, decoded */
    float *scores;            /* (threads, TILE_TOKENS, router_stride) */
    uint64_t *hits;           /* (E) */
    /* tokens that predictions are tested on; those whose first prediction is right; their activations */
    struct {
        uint64_t n, n_top1, n_choice;
    } counted;
};

struct study_sample {
    uint64_t step; /* tokens in a stretch that gives one to the cosine */
    float *input;  /* (tokens of the sample, stride): gate inputs of the layer before */
    struct moec_position_sample *positions; /* (tokens of the sample): those of the batch at work */
    uint64_t *place_start; /* (W + 1): first place of each window in struct moec_path_gate_kept */
};

struct moec_router_study {
    const struct moec_forward *forward;
    struct {
        struct moec_up_study *up;
        struct moec_position_study *positions;
    } beside; /* of the same traces */
    struct study_shape shape;
    struct study_tokens tokens;
    struct study_traces traces;
    struct study_layer layer;
    struct study_sample sample;
    struct {
        struct gate_sums *gate; /* (S) */
        struct moec_router_results *results;
        uint64_t multiply_adds;
    } found;
};

/* ---- the layer at work: tokens are those of its stack ---- */

static enum moec_stack stack_of(const struct moec_router_study *study, uint32_t ordinal)
{
    return moec_config_stack(study->shape.config, moec_config_moe_layer(study->shape.config, ordinal));
}

static uint64_t layer_tokens(const struct moec_router_study *study)
{
    return study->tokens.layer_start[study->tokens.windows->n_window];
}

/* The token that stretch i gives. */
static uint64_t sample_token(const struct moec_router_study *study, uint64_t i)
{
    const uint64_t first = i * study->sample.step, left = layer_tokens(study) - first;
    struct moec_random random = {i};
    return first + moec_random_below(&random, left < study->sample.step ? left : study->sample.step);
}

/* One of so many sampled tokens is one that path and gate are counted on. */
static uint64_t place_step(const struct moec_router_study *study)
{
    const uint64_t n = (study->tokens.n + study->sample.step - 1) / study->sample.step;
    return (n + MOEC_PATH_GATE_TOKENS - 1) / MOEC_PATH_GATE_TOKENS;
}

static void find_places(struct moec_router_study *study)
{
    const uint64_t step = place_step(study) * study->sample.step;
    uint64_t place = 0;
    for (uint32_t w = 0; w < study->tokens.windows->n_window; w++) {
        study->sample.place_start[w] = place;
        while (place * step < layer_tokens(study) &&
               sample_token(study, place * place_step(study)) < study->tokens.layer_start[w + 1])
            place++;
    }
    study->sample.place_start[study->tokens.windows->n_window] = place;
}

static void start_layer(struct moec_router_study *study, uint32_t ordinal)
{
    const uint32_t n_window = study->tokens.windows->n_window;
    for (uint32_t w = 0; w < n_window; w++)
        study->tokens.layer_start[w + 1] =
            study->tokens.layer_start[w] +
            moec_windows_read(study->tokens.windows, stack_of(study, ordinal), w);
    find_places(study);
    study->tokens.next_window = 0;
    memset(&study->layer.counted, 0, sizeof study->layer.counted);
    memset(study->layer.hits, 0, study->shape.config->n_expert * sizeof *study->layer.hits);
    memset(study->layer.sums, 0, n_window * sizeof *study->layer.sums);
}

/* ---- life ---- */

static enum moec_status allocate(struct moec_router_study *study, uint32_t max_tokens, struct moec_error *err)
{
    static const char what[] = "a study of routers";
    const uint64_t n_expert = study->shape.config->n_expert, n_moe = study->shape.n_moe;
    const size_t row_bytes = study->shape.stride * sizeof(float);
    const uint64_t n_sample = (study->tokens.n + study->sample.step - 1) / study->sample.step;
    const struct {
        void **array;
        uint64_t count;
        size_t item_bytes;
    } arrays[] = {
        {(void **)&study->traces.margins, max_tokens, sizeof(float)},
        {(void **)&study->traces.ranges, max_tokens, sizeof(float)},
        {(void **)&study->traces.norms, (uint64_t)max_tokens * study->shape.config->top_k, sizeof(float)},
        {(void **)&study->layer.margins, study->tokens.n, sizeof(float)},
        {(void **)&study->layer.sorted, study->tokens.n, sizeof(float)},
        {(void **)&study->layer.predicted, study->tokens.n, study->shape.n_listed * sizeof(uint16_t)},
        {(void **)&study->layer.hits, n_expert, sizeof(uint64_t)},
        {(void **)&study->layer.sums, study->tokens.windows->n_window, sizeof *study->layer.sums},
        {(void **)&study->tokens.layer_start, (uint64_t)study->tokens.windows->n_window + 1,
         sizeof(uint64_t)},
        {(void **)&study->sample.place_start, (uint64_t)study->tokens.windows->n_window + 1,
         sizeof(uint64_t)},
        {(void **)&study->sample.positions, n_sample, sizeof *study->sample.positions},
        {(void **)&study->found.gate, n_moe, sizeof *study->found.gate},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        MOEC_TRY(moec_alloc(arrays[i].array, arrays[i].count, arrays[i].item_bytes, what, err));
    const uint64_t n_score = (uint64_t)study->forward->pool.n_threads * TILE_TOKENS;
    MOEC_TRY(moec_alloc_aligned((void **)&study->traces.input, max_tokens, row_bytes, what, err));
    study->traces.gate_input = study->traces.input;
    if (study->forward->model->config.mlp.own_norms || study->forward->model->config.router.scales_input)
        MOEC_TRY(
            moec_alloc_aligned((void **)&study->traces.own_gate_input, max_tokens, row_bytes, what, err));
    if (study->traces.own_gate_input != NULL)
        study->traces.gate_input = study->traces.own_gate_input;
    MOEC_TRY(moec_alloc_aligned((void **)&study->layer.router, moec_config_choices(study->shape.config),
                                row_bytes, what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&study->sample.input, n_sample, row_bytes, what, err));
    return moec_alloc_aligned((void **)&study->layer.scores, n_score,
                              study->shape.router_stride * sizeof(float), what, err);
}

static uint32_t listed_experts(const struct moec_config *config)
{
    return 2 * config->top_k < config->n_expert ? 2 * config->top_k : config->n_expert;
}

uint64_t moec_router_study_bytes(const struct moec_config *config, int n_threads, uint32_t n_window,
                                 uint64_t n_token, uint32_t max_tokens)
{
    const uint64_t stride = moec_forward_stride(config), n_expert = config->n_expert;
    const uint64_t n_thread = (uint64_t)moec_pool_make(n_threads).n_threads;
    const uint64_t n_sample = n_token < MOEC_COSINE_TOKENS ? n_token : MOEC_COSINE_TOKENS;
    const uint64_t n_float =
        max_tokens *
            ((config->mlp.own_norms || config->router.scales_input ? 2 : 1) * stride + config->top_k + 2) +
        2 * n_token + n_sample * stride + moec_config_choices(config) * stride +
        n_thread * TILE_TOKENS * moec_lanes_padded(moec_config_choices(config));
    return n_float * sizeof(float) + n_token * listed_experts(config) * sizeof(uint16_t) +
           moec_config_moe_count(config) * (n_expert * sizeof(uint64_t) + sizeof(struct gate_sums)) +
           n_window * (sizeof(struct window_sums) + (n_expert + 8) * sizeof(double)) +
           moec_config_moe_count(config) * MOEC_PATH_GATE_TOKENS * (n_expert + 1) * sizeof(double) +
           n_sample * sizeof(struct moec_position_sample) + moec_up_study_bytes(config, n_threads) +
           moec_position_study_bytes(config, n_threads, n_sample, max_tokens);
}

enum moec_status moec_router_study_create(const struct moec_forward *forward, struct moec_experts *experts,
                                          const struct moec_rank_windows *windows,
                                          struct moec_router_results *results, struct moec_router_study **out,
                                          struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_router_study *study = NULL;
    const struct moec_model *model = forward->model;
    const struct moec_config *config = &model->config;
    const uint64_t n_token = moec_windows_token_count(windows->all);
    MOEC_TRY(moec_alloc((void **)&study, 1, sizeof *study, "a study of routers", err));
    *study = (struct moec_router_study){
        .forward = forward,
        .shape = {.config = config,
                  .stride = moec_forward_stride(config),
                  .router_stride = moec_lanes_padded(moec_config_choices(config)),
                  .n_moe = moec_config_moe_count(config),
                  .n_listed = listed_experts(config)},
        .tokens = {.shared = windows,
                   .windows = windows->all,
                   .split = moec_part_split_make(windows->all->part, windows->n_all),
                   .n = n_token},
        .sample.step = (n_token + MOEC_COSINE_TOKENS - 1) / MOEC_COSINE_TOKENS,
        .found.results = results};
    MOEC_TRY_OUT(allocate(study, forward->max_tokens, err));
    MOEC_TRY_OUT(
        moec_up_study_create(forward, experts, windows, results->up_quantiles, &study->beside.up, err));
    MOEC_TRY_OUT(moec_position_study_create(forward, windows,
                                            (n_token + study->sample.step - 1) / study->sample.step,
                                            forward->max_tokens, &study->beside.positions, err));
    start_layer(study, 0);
    *out = study;
out:
    if (status != MOEC_OK)
        moec_router_study_free(study);
    return status;
}

void moec_router_study_free(struct moec_router_study *study)
{
    if (study == NULL)
        return;
    void *const owned[] = {study->traces.own_gate_input,
                           study->traces.input,
                           study->traces.margins,
                           study->traces.norms,
                           study->traces.ranges,
                           study->layer.margins,
                           study->layer.sorted,
                           study->layer.router,
                           study->layer.scores,
                           study->layer.hits,
                           study->found.gate,
                           study->sample.input,
                           study->layer.predicted,
                           study->sample.positions,
                           study->layer.sums,
                           study->tokens.layer_start,
                           study->sample.place_start};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    moec_up_study_free(study->beside.up);
    moec_position_study_free(study->beside.positions);
    free(study);
}

float *moec_router_study_attention(struct moec_router_study *study)
{
    return moec_position_study_attention(study->beside.positions);
}

void moec_router_study_trace(struct moec_router_study *study, struct moec_mlp_trace *trace)
{
    trace->input = study->traces.input;
    trace->gate_input = study->traces.own_gate_input;
    trace->margins = study->traces.margins;
    trace->ranges = study->traces.ranges;
    trace->rank_norms = study->traces.norms;
}

/* ---- layers ---- */

static bool is_first_of_stack(const struct moec_router_study *study, uint32_t ordinal)
{
    return ordinal == moec_config_moe_range(study->shape.config, ordinal).first;
}

static bool is_last_of_stack(const struct moec_router_study *study, uint32_t ordinal)
{
    const struct moec_moe_range range = moec_config_moe_range(study->shape.config, ordinal);
    return ordinal + 1 == range.first + range.count;
}

/* ---- gate inputs of neighbouring layers ---- */

static double dot(const struct moec_router_study *study, const float *a, const float *b)
{
    float sum = 0;
    study->forward->kernels->dot(a, study->shape.stride, 1, b, study->shape.stride, 1,
                                 study->shape.config->n_embd, &sum, 1);
    return sum;
}

/* Compares this layer's inputs of the sampled tokens of window w with those of the layer before, and keeps them.
 * The window is the rows from `row` on. `n`: how many study->samples has. */
static void compare_inputs(struct moec_router_study *study, uint32_t ordinal, uint32_t w, uint32_t row,
                           uint32_t *n)
{
    struct window_sums *sums = &study->layer.sums[w];
    const uint64_t first = study->tokens.layer_start[w], end = study->tokens.layer_start[w + 1];
    for (uint64_t i = first / study->sample.step; i * study->sample.step < end; i++) {
        const uint64_t token = sample_token(study, i);
        if (token < first || token >= end)
            continue;
        const uint32_t at = row + (uint32_t)(token - first);
        const float *input = study->traces.gate_input + at * study->shape.stride;
        float *before = study->sample.input + i * study->shape.stride;
        if (!is_first_of_stack(study, ordinal)) {
            const double norms = sqrt(dot(study, input, input)) * sqrt(dot(study, before, before));
            if (norms > 0) {
                sums->cosine += dot(study, input, before) / norms;
                sums->n_cosine++;
            }
            study->found.multiply_adds += 3 * (uint64_t)study->shape.config->n_embd;
        }
        memcpy(before, input, study->shape.stride * sizeof *input);
        study->sample.positions[(*n)++] = (struct moec_position_sample){(uint32_t)i, w, at};
    }
}

/* ---- the next layer's gate ---- */

/* The row of the profile's trace of a token of window w that the layer at work reads. In a trace the tokens of a
 * window's source come before the others. */
static uint64_t trace_row(const struct moec_router_study *study, uint32_t ordinal, uint32_t w, uint64_t token)
{
    uint64_t row = 0;
    for (uint32_t before = 0; before < w; before++)
        row += moec_windows_traced(study->tokens.windows, before);
    return row + token - study->tokens.layer_start[w] +
           (stack_of(study, ordinal) == MOEC_STACK_ENCODER ? 0
                                                           : moec_windows_source(study->tokens.windows, w));
}

/* Keeps what the next layer's router says of the sampled tokens that path and gate are counted on. */
static enum moec_status keep_gates(struct moec_router_study *study, uint32_t ordinal, uint32_t n_sample,
                                   struct moec_error *err)
{
    const uint64_t step = place_step(study);
    for (uint32_t i = 0; i < n_sample; i++) {
        const struct moec_position_sample *sample = &study->sample.positions[i];
        if (sample->sample % step != 0 || !moec_part_split_tests(&study->tokens.split, sample->window))
            continue;
        const struct moec_path_gate_token token = {
            .row = trace_row(study, ordinal, sample->window, sample_token(study, sample->sample)),
            .place = (uint32_t)(sample->sample / step),
            .input = study->traces.gate_input + sample->row * study->shape.stride,
        };
        MOEC_TRY(moec_path_gate_keep(study->forward, ordinal + 1, &token, study->layer.scores,
                                     &study->found.results->path_gate, err));
        study->found.multiply_adds += (uint64_t)study->shape.config->n_expert * study->shape.config->n_embd;
    }
    return MOEC_OK;
}

static void list_best(const float *scores, uint32_t n_expert, uint32_t n, uint16_t *list)
{
    uint32_t used = 0;
    for (uint32_t e = 0; e < n_expert; e++) {
        if (used == n && !(scores[e] > scores[list[n - 1]]))
            continue;
        uint32_t at = used < n ? used++ : n - 1;
        for (; at > 0 && scores[e] > scores[list[at - 1]]; at--)
            list[at] = list[at - 1];
        list[at] = (uint16_t)e;
    }
}

struct prediction {
    struct moec_router_study *study;
    uint64_t first_row;
    uint32_t n_rows;
};

static void predict_tile(void *context, size_t item, int thread)
{
    const struct prediction *prediction = context;
    const struct moec_router_study *study = prediction->study;
    const uint32_t n_expert = study->shape.config->n_expert, first = (uint32_t)item * TILE_TOKENS;
    const uint32_t left = prediction->n_rows - first, n = left < TILE_TOKENS ? left : TILE_TOKENS;
    float *scores = study->layer.scores + (size_t)thread * TILE_TOKENS * study->shape.router_stride;
    study->forward->kernels->dot(study->traces.gate_input + first * study->shape.stride, study->shape.stride,
                                 n, study->layer.router, study->shape.stride, n_expert,
                                 study->shape.config->n_embd, scores, study->shape.router_stride);
    for (uint32_t t = 0; t < n; t++)
        list_best(scores + t * study->shape.router_stride, n_expert, study->shape.n_listed,
                  study->layer.predicted + (prediction->first_row + first + t) * study->shape.n_listed);
}

static void predict_next(struct moec_router_study *study, uint32_t ordinal, uint64_t first_row,
                         uint32_t n_rows)
{
    const uint32_t next = moec_config_moe_layer(study->shape.config, ordinal + 1);
    const struct moec_matrix *router = &study->forward->model->layers[next].router;
    struct prediction prediction = {study, first_row, n_rows};
    if (first_row == 0)
        study->forward->kernels->decode_rows(router, 0, router->rows, study->layer.router,
                                             study->shape.stride);
    moec_parallel_for(&study->forward->pool, (n_rows + TILE_TOKENS - 1) / TILE_TOKENS, predict_tile,
                      &prediction);
    study->found.multiply_adds += (uint64_t)n_rows * router->rows * router->columns;
}

/* Where the experts that a token, a row of this rank's, chose stand in what was predicted for it. */
static void count_hits(struct moec_router_study *study, uint64_t row, const uint32_t *chosen)
{
    const uint16_t *predicted = study->layer.predicted + row * study->shape.n_listed;
    for (uint32_t i = 0; i < study->shape.n_listed; i++) {
        for (uint32_t rank = 0; rank < study->shape.config->top_k; rank++)
            study->layer.hits[i] += predicted[i] == chosen[rank];
    }
    for (uint32_t rank = 0; rank < study->shape.config->top_k; rank++)
        study->layer.counted.n_choice += chosen[rank] != MOEC_ROUTER_NO_EXPERT;
    study->layer.counted.n++;
    study->layer.counted.n_top1 += predicted[0] == chosen[0];
}

/* ---- gate weights and outputs ---- */

static void add_choice(struct gate_sums *sums, double weight, double norm)
{
    const double z = weight * norm;
    const double place = weight / MOEC_GATE_BIN_WIDTH;
    const uint32_t bin = place >= MOEC_GATE_BINS ? MOEC_GATE_BINS - 1 : (uint32_t)place;
    sums->n += 1;
    sums->x += weight;
    sums->y += norm;
    sums->z += z;
    sums->xx += weight * weight;
    sums->yy += norm * norm;
    sums->zz += z * z;
    sums->xy += weight * norm;
    sums->xz += weight * z;
    sums->bin_n[bin]++;
    sums->bin_y[bin] += norm;
    sums->bin_z[bin] += z;
}

static void add_sums(struct gate_sums *to, const struct gate_sums *from)
{
    to->n += from->n;
    to->x += from->x;
    to->y += from->y;
    to->z += from->z;
    to->xx += from->xx;
    to->yy += from->yy;
    to->zz += from->zz;
    to->xy += from->xy;
    to->xz += from->xz;
    for (uint32_t bin = 0; bin < MOEC_GATE_BINS; bin++) {
        to->bin_n[bin] += from->bin_n[bin];
        to->bin_y[bin] += from->bin_y[bin];
        to->bin_z[bin] += from->bin_z[bin];
    }
}

/* Pearson's correlation from sums; NaN where one side does not vary. */
static double correlation(double n, double x, double y, double xx, double yy, double xy)
{
    const double var_x = n * xx - x * x, var_y = n * yy - y * y;
    return var_x > 0 && var_y > 0 ? (n * xy - x * y) / sqrt(var_x) / sqrt(var_y) : (double)NAN;
}

/* Means over layers of what each bin has, in units of the layer's mean, weighted by choices. */
static void finish_gate(struct moec_router_study *study)
{
    struct moec_router_results *results = study->found.results;
    for (uint32_t bin = 0; bin < MOEC_GATE_BINS; bin++) {
        double n = 0, y = 0, z = 0;
        for (uint32_t s = 0; s < study->shape.n_moe; s++) {
            const struct gate_sums *sums = &study->found.gate[s];
            if (!(sums->y > 0 && sums->z > 0))
                continue;
            n += (double)sums->bin_n[bin];
            y += sums->bin_y[bin] / (sums->y / sums->n);
            z += sums->bin_z[bin] / (sums->z / sums->n);
        }
        results->output_norm[bin] = n > 0 ? y / n : (double)NAN;
        results->weighted_norm[bin] = n > 0 ? z / n : (double)NAN;
    }
    for (uint32_t s = 0; s < study->shape.n_moe; s++) {
        const struct gate_sums *sums = &study->found.gate[s];
        results->correlation[s] = correlation(sums->n, sums->x, sums->z, sums->xx, sums->zz, sums->xz);
        results->output_correlation[s] = correlation(sums->n, sums->x, sums->y, sums->xx, sums->yy, sums->xy);
    }
}

/* ---- batches ---- */

/* What a window, whose rows of the batch begin at `row`, adds to the layer's sums. */
static void add_window(struct moec_router_study *study, uint32_t ordinal, uint32_t w, uint64_t first_row,
                       uint32_t row, const struct moec_token_choices *choices)
{
    const uint32_t k = study->shape.config->top_k;
    const uint32_t end = row + (uint32_t)(study->tokens.layer_start[w + 1] - study->tokens.layer_start[w]);
    const bool counts = !is_first_of_stack(study, ordinal) && moec_part_split_tests(&study->tokens.split, w);
    struct window_sums *sums = &study->layer.sums[w];
    memcpy(study->layer.margins + study->tokens.layer_start[w], study->traces.margins + row,
           (end - row) * sizeof *study->traces.margins);
    for (; row < end; row++) {
        if (counts)
            count_hits(study, first_row + row, choices->experts + (size_t)row * k);
        for (size_t choice = (size_t)row * k; choice < ((size_t)row + 1) * k; choice++)
            if (choices->experts[choice] != MOEC_ROUTER_NO_EXPERT)
                add_choice(&sums->gate, choices->weights[choice], study->traces.norms[choice]);
        sums->range += study->traces.ranges[row];
    }
}

enum moec_status moec_router_study_batch(struct moec_router_study *study, uint32_t ordinal,
                                         uint64_t first_row, uint32_t n_rows,
                                         const struct moec_token_choices *choices, struct moec_error *err)
{
    const uint32_t first_window = study->tokens.next_window;
    uint32_t n_sample = 0;
    for (uint32_t row = 0; row < n_rows;) {
        const uint32_t w = moec_rank_windows_number(study->tokens.shared, study->tokens.next_window++);
        add_window(study, ordinal, w, first_row, row, choices);
        compare_inputs(study, ordinal, w, row, &n_sample);
        row += (uint32_t)(study->tokens.layer_start[w + 1] - study->tokens.layer_start[w]);
    }
    study->found.multiply_adds += (uint64_t)n_rows * study->shape.config->top_k * study->shape.config->n_embd;
    moec_position_study_batch(study->beside.positions, ordinal, study->sample.positions, n_sample,
                              study->traces.gate_input, choices->experts);
    if (!is_last_of_stack(study, ordinal)) {
        predict_next(study, ordinal, first_row, n_rows);
        MOEC_TRY(keep_gates(study, ordinal, n_sample, err));
    }
    const struct moec_window_range taken = {first_window, study->tokens.next_window - first_window};
    return moec_up_study_windows(study->beside.up, ordinal, taken, choices->experts, study->traces.input,
                                 err);
}

/* ---- the end of a layer ---- */

/* What the ranks' windows have, to all. */
static enum moec_status exchange(struct moec_router_study *study, uint32_t ordinal, struct moec_error *err)
{
    const struct moec_rank_windows *shared = study->tokens.shared;
    struct moec_ranks *ranks = shared->ranks;
    const uint32_t n_window = study->tokens.windows->n_window, n_expert = study->shape.config->n_expert;
    const struct moec_path_gate_kept *kept = &study->found.results->path_gate;
    const size_t at = ((size_t)ordinal + 1) * MOEC_PATH_GATE_TOKENS;
    MOEC_TRY(moec_ranks_gather(ranks, study->layer.sums, n_window, sizeof *study->layer.sums, err));
    MOEC_TRY(moec_ranks_sum(ranks, study->layer.hits, n_expert, err));
    MOEC_TRY(
        moec_ranks_sum(ranks, &study->layer.counted.n, sizeof study->layer.counted / sizeof(uint64_t), err));
    MOEC_TRY(moec_rank_windows_gather_rows(shared, n_window, study->tokens.layer_start, study->layer.margins,
                                           sizeof *study->layer.margins, err));
    if (is_last_of_stack(study, ordinal))
        return MOEC_OK;
    MOEC_TRY(moec_rank_windows_gather_rows(shared, n_window, study->sample.place_start, kept->tokens + at,
                                           sizeof *kept->tokens, err));
    return moec_rank_windows_gather_rows(shared, n_window, study->sample.place_start,
                                         kept->probabilities + at * n_expert,
                                         n_expert * sizeof *kept->probabilities, err);
}

/* Sums of the windows' sums. */
static struct window_sums fold(struct moec_router_study *study)
{
    struct window_sums all = {0};
    for (uint32_t w = 0; w < study->tokens.windows->n_window; w++) {
        add_sums(&all.gate, &study->layer.sums[w].gate);
        all.range += study->layer.sums[w].range;
        all.cosine += study->layer.sums[w].cosine;
        all.n_cosine += study->layer.sums[w].n_cosine;
    }
    return all;
}

enum moec_status moec_router_study_finish(struct moec_router_study *study, uint32_t ordinal,
                                          struct moec_error *err)
{
    const uint32_t n_expert = study->shape.config->n_expert;
    struct moec_router_results *results = study->found.results;
    MOEC_TRY(moec_up_study_finish(study->beside.up, ordinal, err));
    MOEC_TRY(moec_position_study_finish(
        study->beside.positions, ordinal,
        results->position_recall + (size_t)ordinal * MOEC_POSITION_COUNT * n_expert,
        results->position_cosine + (size_t)ordinal * MOEC_POSITION_COSINE, err));
    MOEC_TRY(exchange(study, ordinal, err));
    const struct window_sums all = fold(study);
    moec_quantiles(study->layer.margins, study->layer.sorted, layer_tokens(study), margin_quantiles, N_MARGIN,
                   results->margin + ordinal * N_MARGIN);
    study->found.gate[ordinal] = all.gate;
    results->range[ordinal] = all.range / (double)layer_tokens(study);
    if (!is_first_of_stack(study, ordinal)) {
        moec_paths_recall(study->layer.hits, 1, n_expert, study->shape.config->top_k,
                          study->layer.counted.n_choice, results->gate_recall + (size_t)ordinal * 3);
        if (study->layer.counted.n > 0)
            results->gate_top1[ordinal] =
                (double)study->layer.counted.n_top1 / (double)study->layer.counted.n;
        if (all.n_cosine > 0)
            results->cosine[ordinal - 1] = all.cosine / (double)all.n_cosine;
    }
    if (ordinal + 1 == study->shape.n_moe)
        finish_gate(study);
    else
        start_layer(study, ordinal + 1);
    return MOEC_OK;
}

/* ---- results ---- */

enum moec_status moec_router_results_create(const struct moec_config *config,
                                            struct moec_router_results *results, struct moec_error *err)
{
    const uint64_t n_moe = moec_config_moe_count(config), n_cell = n_moe * config->n_expert;
    const struct {
        double **array;
        uint64_t n;
    } parts[] = {
        {&results->range, n_moe},
        {&results->margin, n_moe * N_MARGIN},
        {&results->cosine, n_moe},
        {&results->gate_top1, n_moe},
        {&results->gate_recall, n_moe * 3},
        {&results->correlation, n_moe},
        {&results->output_correlation, n_moe},
        {&results->output_norm, MOEC_GATE_BINS},
        {&results->weighted_norm, MOEC_GATE_BINS},
        {&results->up_quantiles, n_cell * MOEC_UP_QUANTILES},
        {&results->position_recall, n_cell * MOEC_POSITION_COUNT},
        {&results->position_cosine, n_moe * MOEC_POSITION_COSINE},
        {&results->path_gate.tokens, n_moe * MOEC_PATH_GATE_TOKENS},
        {&results->path_gate.probabilities, n_cell * MOEC_PATH_GATE_TOKENS},
    };
    *results = (struct moec_router_results){.n_moe = (uint32_t)n_moe, .n_expert = config->n_expert};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        results->n_value += parts[i].n;
    MOEC_TRY(moec_alloc((void **)&results->values, results->n_value, sizeof(double), "what routers do", err));
    for (uint64_t i = 0; i < results->n_value; i++)
        results->values[i] = NAN;
    double *at = results->values;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].array = at;
        at += parts[i].n;
    }
    return MOEC_OK;
}

void moec_router_results_release(struct moec_router_results *results)
{
    free(results->values);
    *results = (struct moec_router_results){0};
}

enum moec_status moec_router_results_add(const struct moec_router_results *results,
                                         struct moec_profile *profile, struct moec_error *err)
{
    double margin_at[N_MARGIN], up_at[MOEC_UP_QUANTILES], centres[MOEC_GATE_BINS];
    memcpy(margin_at, margin_quantiles, sizeof margin_at);
    memcpy(up_at, moec_up_quantiles, sizeof up_at);
    for (uint32_t bin = 0; bin < MOEC_GATE_BINS; bin++)
        centres[bin] = (bin + 0.5) * MOEC_GATE_BIN_WIDTH;
    const struct moec_study_axis layer = {.name = "moe_layer", .n = results->n_moe};
    const struct moec_study_axis expert = {.name = "expert", .n = results->n_expert};
    const struct moec_study_axis weight = {.name = "gate_weight", .n = MOEC_GATE_BINS, .values = centres};
    const struct moec_study studies[] = {
        {.name = MOEC_ROUTER_RANGE_STUDY,
         .description =
             "largest of what the router compares (logits of a softmax, else scores and bias) minus "
             "the smallest, mean over tokens",
         .source = "cache-conditional experts, eq. 10",
         .n_axis = 1,
         .axes = {layer},
         .values = results->range},
        {.name = "routing/margin",
         .description = "router probability of rank k minus that of rank k + 1, quantiles over tokens",
         .n_axis = 2,
         .axes = {layer, {.name = "quantile", .n = N_MARGIN, .values = margin_at}},
         .values = results->margin},
        {.name = "predict/cosine",
         .description = "mean cosine similarity of the gate inputs of this MoE layer and the next, over a "
                        "sample of tokens",
         .source = "Fate Table 1, position 2; HOBBIT Fig. 7(a)",
         .n_axis = 1,
         .axes = {layer},
         .values = results->cosine},
        {.name = "predict/gate_top1",
         .description =
             "share of tokens (of windows kept for this) whose rank-1 expert is the one that the router "
             "prefers when it is fed with the gate input of the MoE layer before",
         .source = "HOBBIT Fig. 7(b)",
         .n_axis = 1,
         .axes = {layer},
         .values = results->gate_top1},
        {.name = "gate/correlation",
         .description = "Pearson's correlation of gate weight and norm of what the expert adds",
         .source = "HOBBIT III-B, Fig. 5(a)",
         .n_axis = 1,
         .axes = {layer},
         .values = results->correlation},
        {.name = "gate/output_correlation",
         .description = "Pearson's correlation of gate weight and norm of the expert's unweighted output",
         .n_axis = 1,
         .axes = {layer},
         .values = results->output_correlation},
        {.name = "gate/output_norm",
         .description = "mean norm of an expert's unweighted output by gate weight, relative to the mean of "
                        "its layer",
         .source = "HOBBIT III-B, Fig. 5(a)",
         .n_axis = 1,
         .axes = {weight},
         .values = results->output_norm},
        {.name = "gate/weighted_norm",
         .description = "mean norm of what an expert adds (gate weight times output) by gate weight, "
                        "relative to the mean of its layer",
         .source = "HOBBIT III-B, Fig. 5(a)",
         .n_axis = 1,
         .axes = {weight},
         .values = results->weighted_norm},
        {.name = "neurons/up_quantiles",
         .description = "quantiles of abs(up . x) over the neurons of an expert and a sample of the tokens "
                        "that chose it, original weights; NaN where no token did",
         .source = "FloE Fig. 2 and 3, eq. 6",
         .n_axis = 3,
         .axes = {layer, expert, {.name = "quantile", .n = MOEC_UP_QUANTILES, .values = up_at}},
         .values = results->up_quantiles},
    };
    for (size_t i = 0; i < sizeof studies / sizeof *studies; i++)
        MOEC_TRY(moec_profile_add_study(profile, &studies[i], NULL, err));
    return moec_position_study_add(profile, results->position_recall, results->position_cosine, err);
}

uint64_t moec_router_study_multiply_adds(const struct moec_router_study *study)
{
    return study->found.multiply_adds + moec_up_study_multiply_adds(study->beside.up) +
           moec_position_study_multiply_adds(study->beside.positions);
}
