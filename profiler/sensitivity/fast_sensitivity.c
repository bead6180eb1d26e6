#include "profiler/sensitivity/fast_sensitivity.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/score.h"
#include "profiler/evaluate/sweep.h"
#include "profiler/evaluate/token_score.h"
#include "profiler/sensitivity/gain_plan.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define REFERENCE_CHUNK_BYTES ((uint64_t)64 << 20)
#define TILE                  64 /* rows that a thread compares at once */
#define TOGETHER              8  /* experts that are encoded at once */
#define PHASE                 "local errors"

#define NO_GAIN UINT32_MAX

/* Models with one layer changed, one for each layer of the gain plan, on every so-many-th window. */
struct perturbed {
    float scale;    /* of the change */
    uint32_t every; /* windows 0, every, 2 every, ... */
    struct moec_windows windows;
    struct moec_sweep sweep;
    uint64_t n_row;
    struct moec_states states; /* (n_gain * n_row, stride) */
    double *kl;                /* (n_gain, n_row): of each token */
    double *nll;               /* (n_gain): sums */
};

enum { FULL, SMALL, N_PERTURBED };

/* Codes: the bitwidths at which local errors are measured, those of the options and the baseline's last. */
struct fast {
    const struct moec_fast_options *options;
    struct moec_fast_result *result;
    const struct moec_config *config;
    size_t stride;
    uint32_t n_moe, n_expert, n_code, n_window, k;
    uint32_t codes[MOEC_PROFILE_MAX_BITS + 1];
    double fraction; /* of an expert's tokens that are measured where not all must be */
    struct moec_gain_plan gains;
    struct moec_forward forward;
    struct moec_sweep sweep;
    struct moec_states hidden; /* (rows, stride): the original */
    struct perturbed perturbed[N_PERTURBED];
    struct moec_token_scorer tokens;
    struct moec_reference reference;
    double *token_nll;               /* (rows of the reference) */
    uint32_t *row_numbers, *targets; /* (rows of the reference): of those that are scored */

    /* one batch of one layer */
    struct moec_mlp_trace trace;
    double *scale;     /* (max_tokens): 1 / |x|^2 */
    double *errors;    /* (max_tokens): |d|^2 of the picked choices */
    double *outputs;   /* (max_tokens): |y|^2 */
    uint32_t *start;   /* (E + 1): first choice of each expert in */
    uint32_t *choices; /* (max_tokens * k): row * k + rank, by expert, rows increasing */
    uint32_t *picked;  /* (max_tokens): those of one expert that are measured */
    float *gathered;   /* (max_tokens, stride) */
    float *changed;    /* (max_tokens, stride) */

    double *due;          /* (E, codes): choices of the layer that are due to be picked */
    double *error;        /* (S, E, codes, W): u of the windows; until the end, where nothing was picked, the
                             negative of what it counts for */
    double *weight_sum;   /* (S, E, codes): what the picked choices count for, */
    double *weighted_sum; /* (S, E, codes): and the same times |d|^2 */
    double *error_sum;    /* (S, E, codes): sum of |d|^2 */
    double *output_sum;   /* (S, E, codes): sum of |y|^2 */
    float *token_error;   /* (S, rows of FULL, k): u at the lowest bits of each choice, */
    uint16_t *token_rank; /* (S, rows of FULL, k): and its expert */
    uint64_t pass;
    uint64_t planned;
};

/* ---- progress and cost ---- */

static enum moec_status worked(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    struct fast *job = context;
    job->result->multiply_adds += multiply_adds;
    return moec_progress_report(job->options->progress, PHASE,
                                (double)job->result->multiply_adds / (double)job->pass,
                                (double)job->planned / (double)job->pass, err);
}

/* At the bits of the source an expert has no error. */
static bool is_source(const struct fast *job, uint32_t code)
{
    return job->codes[code] == moec_variants_source_bits(job->options->variants);
}

/* Plans what is certain, then as large a part of each expert's tokens as the limit leaves for. */
static void plan(struct fast *job)
{
    const struct moec_config *config = job->config;
    const uint64_t n_row = job->hidden.n_row, n_full = job->perturbed[FULL].n_row;
    job->pass = moec_cost_pass(config, job->options->windows);
    job->planned =
        job->pass - moec_cost_head(config, n_row) + moec_cost_head(config, n_full) + job->gains.cost;
    const uint64_t choices = (uint64_t)job->n_moe * job->k;
    uint32_t n_measured = 0;
    for (uint32_t code = 0; code < job->n_code; code++)
        n_measured += !is_source(job, code);
    job->planned += moec_cost_expert(config, choices * n_full);
    const uint64_t rest = moec_cost_expert(config, choices * (n_measured * n_row - n_full));
    const uint64_t limit = job->options->limit_multiply_adds;
    const uint64_t left = limit > job->planned ? limit - job->planned : 0;
    job->fraction = left >= rest ? 1 : (double)left / (double)rest;
    job->planned += (uint64_t)(job->fraction * (double)rest);
    job->result->fraction = job->fraction;
}

/* ---- memory ---- */

static enum moec_status create_perturbed(struct fast *job, float scale, uint32_t every,
                                         struct perturbed *perturbed, struct moec_error *err)
{
    perturbed->scale = scale;
    perturbed->every = every;
    MOEC_TRY(moec_windows_part_every(job->options->windows, MOEC_PART_ALL, every, &perturbed->windows, err));
    MOEC_TRY(moec_sweep_create(&job->forward, &perturbed->windows, false, &perturbed->sweep, err));
    perturbed->n_row = moec_windows_scored_count(&perturbed->windows);
    const uint64_t n = job->gains.n_layer * perturbed->n_row;
    MOEC_TRY(moec_alloc((void **)&perturbed->kl, n, sizeof(double), "scores of perturbed models", err));
    MOEC_TRY(moec_alloc((void **)&perturbed->nll, job->gains.n_layer, sizeof(double),
                        "scores of perturbed models", err));
    return moec_states_create(job->options->windows->work, n, job->stride,
                              "hidden states of perturbed models", &perturbed->states, err);
}

static enum moec_status allocate_batch(struct fast *job, struct moec_error *err)
{
    const uint64_t n = job->forward.max_tokens, row = job->stride * sizeof(float);
    const char *what = "the trace of a layer";
    MOEC_TRY(moec_alloc((void **)&job->trace.experts, n * job->k, sizeof(uint32_t), what, err));
    MOEC_TRY(moec_alloc((void **)&job->trace.weights, n * job->k, sizeof(float), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->trace.input, n, row, what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->trace.rank_outputs, n * job->k, row, what, err));
    MOEC_TRY(moec_alloc((void **)&job->scale, n, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&job->errors, n, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&job->outputs, n, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&job->start, (uint64_t)job->n_expert + 1, sizeof(uint32_t), what, err));
    MOEC_TRY(moec_alloc((void **)&job->choices, n * job->k, sizeof(uint32_t), what, err));
    MOEC_TRY(moec_alloc((void **)&job->picked, n, sizeof(uint32_t), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->gathered, n, row, what, err));
    return moec_alloc_aligned((void **)&job->changed, n, row, what, err);
}

static enum moec_status allocate_sums(struct fast *job, struct moec_error *err)
{
    const uint64_t n_cell = (uint64_t)job->n_moe * job->n_expert * job->n_code;
    const uint64_t n_choice = job->n_moe * job->perturbed[FULL].n_row * job->k;
    const char *what = "local errors";
    MOEC_TRY(moec_alloc((void **)&job->error, n_cell * job->n_window, sizeof(double), what, err));
    MOEC_TRY(
        moec_alloc((void **)&job->due, (uint64_t)job->n_expert * job->n_code, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&job->weight_sum, n_cell, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&job->weighted_sum, n_cell, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&job->error_sum, n_cell, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&job->output_sum, n_cell, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&job->token_error, n_choice, sizeof(float), what, err));
    return moec_alloc((void **)&job->token_rank, n_choice, sizeof(uint16_t), what, err);
}

static enum moec_status allocate_scores(struct fast *job, struct moec_error *err)
{
    const struct moec_work_memory *work = job->options->windows->work;
    uint64_t n = (work != NULL && work->chunk_bytes > 0 ? work->chunk_bytes : REFERENCE_CHUNK_BYTES) /
                 moec_reference_row_bytes(job->config);
    n = n < job->tokens.n_row ? job->tokens.n_row : n;
    n = n < job->forward.max_tokens ? n : job->forward.max_tokens;
    MOEC_TRY(moec_alloc((void **)&job->token_nll, n, sizeof(double), "scores of perturbed models", err));
    MOEC_TRY(moec_alloc((void **)&job->row_numbers, n, sizeof(uint32_t), "reference rows", err));
    MOEC_TRY(moec_alloc((void **)&job->targets, n, sizeof(uint32_t), "reference rows", err));
    return moec_reference_create(job->config, (uint32_t)n, &job->reference, err);
}

static enum moec_status create(struct fast *job, struct moec_error *err)
{
    const struct moec_fast_options *options = job->options;
    const uint32_t max_tokens = moec_sweep_max_tokens(options->windows);
    MOEC_TRY(moec_forward_init(&job->forward, options->model, options->kernels, options->n_threads,
                               moec_variants_experts(options->variants), max_tokens, err));
    MOEC_TRY(moec_forward_use_arithmetic(&job->forward, options->arithmetic, err));
    MOEC_TRY(moec_sweep_create(&job->forward, options->windows, false, &job->sweep, err));
    MOEC_TRY(moec_token_scorer_create(job->config, max_tokens, options->windows->work, &job->tokens, err));
    MOEC_TRY(moec_states_create(options->windows->work, moec_windows_scored_count(options->windows),
                                job->stride, "hidden states of the windows", &job->hidden, err));
    moec_gain_plan_make(job->config, options->windows, &job->gains);
    MOEC_TRY(create_perturbed(job, 1, job->gains.every, &job->perturbed[FULL], err));
    MOEC_TRY(create_perturbed(job, 0.5f, job->gains.small_every, &job->perturbed[SMALL], err));
    MOEC_TRY(allocate_batch(job, err));
    MOEC_TRY(allocate_sums(job, err));
    return allocate_scores(job, err);
}

static void release(struct fast *job)
{
    for (uint32_t p = 0; p < N_PERTURBED; p++) {
        struct perturbed *perturbed = &job->perturbed[p];
        moec_states_release(&perturbed->states);
        moec_sweep_release(&perturbed->sweep);
        moec_windows_release(&perturbed->windows);
        free(perturbed->kl);
        free(perturbed->nll);
    }
    moec_states_release(&job->hidden);
    moec_reference_release(&job->reference);
    moec_token_scorer_release(&job->tokens);
    moec_sweep_release(&job->sweep);
    moec_forward_release(&job->forward);
    void *const owned[] = {job->trace.experts, job->trace.weights, job->trace.input,  job->trace.rank_outputs,
                           job->scale,         job->errors,        job->outputs,      job->start,
                           job->choices,       job->picked,        job->gathered,     job->changed,
                           job->due,           job->weight_sum,    job->weighted_sum, job->error,
                           job->error_sum,     job->output_sum,    job->token_error,  job->token_rank,
                           job->token_nll,     job->row_numbers,   job->targets};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
}

/* ---- local errors of one batch of one layer ---- */

/* The batch that was traced, and the picked choices of one expert of it when its outputs are compared. */
struct batch {
    struct fast *job;
    uint32_t s, gain; /* ordinal, and its place among those with a perturbed model or NO_GAIN */
    uint32_t first_window, n_window;
    uint32_t n_row;
    const float *hidden; /* (n_row, stride): what leaves the layer */
    bool is_lowest;      /* at the lowest bits, which perturb */
    uint32_t n_picked;
};

/* First row of window w within the batch. */
static uint32_t batch_row(const struct batch *batch, uint32_t w)
{
    const uint64_t *start = batch->job->sweep.row_start;
    return (uint32_t)(start[w] - start[batch->first_window]);
}

static bool has_window(const struct perturbed *perturbed, uint32_t w)
{
    return w % perturbed->every == 0;
}

/* The row among the perturbed model's own of the batch's row `row`, which is of window w. */
static uint64_t perturbed_row(const struct batch *batch, const struct perturbed *perturbed, uint32_t w,
                              uint32_t row)
{
    return perturbed->sweep.row_start[w / perturbed->every] + row - batch_row(batch, w);
}

static float *perturbed_hidden(const struct batch *batch, const struct perturbed *perturbed, uint64_t row)
{
    return perturbed->states.rows + (batch->gain * perturbed->n_row + row) * perturbed->states.stride;
}

static size_t cell(const struct fast *job, uint32_t s, uint32_t e, uint32_t code)
{
    return ((size_t)s * job->n_expert + e) * job->n_code + code;
}

static void group_choices(const struct batch *batch)
{
    const struct fast *job = batch->job;
    const uint32_t n_choice = batch->n_row * job->k;
    uint32_t *start = job->start;
    memset(start, 0, ((size_t)job->n_expert + 1) * sizeof *start);
    for (uint32_t c = 0; c < n_choice; c++)
        if (!moec_choice_is_passed(job->config, job->trace.weights[c]))
            start[job->trace.experts[c] + 1]++;
    for (uint32_t e = 0; e < job->n_expert; e++)
        start[e + 1] += start[e];
    for (uint32_t c = 0; c < n_choice; c++)
        if (!moec_choice_is_passed(job->config, job->trace.weights[c]))
            job->choices[start[job->trace.experts[c]]++] = c;
    memmove(start + 1, start, job->n_expert * sizeof *start);
    start[0] = 0;
}

static float square_of(const struct fast *job, const float *row)
{
    float square = 0;
    job->forward.kernels->dot(row, job->stride, 1, row, job->stride, 1, job->config->n_embd, &square, 1);
    return square;
}

/* The perturbed models of the layer begin as the original; scales of the rows. */
static void begin_batch(const struct batch *batch)
{
    const struct fast *job = batch->job;
    for (uint32_t w = batch->first_window; w < batch->first_window + batch->n_window; w++) {
        const uint32_t first = batch_row(batch, w), n = batch_row(batch, w + 1) - first;
        for (uint32_t p = 0; p < N_PERTURBED; p++) {
            const struct perturbed *perturbed = &job->perturbed[p];
            if (batch->gain != NO_GAIN && has_window(perturbed, w))
                memcpy(perturbed_hidden(batch, perturbed, perturbed_row(batch, perturbed, w, first)),
                       batch->hidden + first * job->stride, n * job->stride * sizeof(float));
        }
    }
    for (uint32_t t = 0; t < batch->n_row; t++) {
        const double square = square_of(job, batch->hidden + t * job->stride);
        job->scale[t] = square > 0 ? 1 / square : 0;
    }
}

/* What a choice counts for before its error: g^2 / |x|^2. */
static double choice_weight(const struct fast *job, uint32_t choice)
{
    const double g = job->trace.weights[choice];
    return g * g * job->scale[choice / job->k];
}

/* Choices of expert e that are measured, evenly spread over those of each window. What a window leaves of its
 * share is due in the next; the first choice of a layer is always picked. */
static uint32_t pick(const struct batch *batch, uint32_t e, uint32_t code)
{
    const struct fast *job = batch->job;
    double *due = &job->due[(size_t)e * job->n_code + code];
    uint32_t n_picked = 0, next = job->start[e];
    for (uint32_t w = batch->first_window; w < batch->first_window + batch->n_window; w++) {
        const uint32_t first = next, end_row = batch_row(batch, w + 1);
        while (next < job->start[e + 1] && job->choices[next] / job->k < end_row)
            next++;
        const uint32_t n = next - first;
        uint32_t n_here = n;
        if (code > 0 || !has_window(&job->perturbed[FULL], w)) {
            *due += job->fraction * n;
            n_here = *due < n ? (uint32_t)*due : n;
            *due -= n_here;
        }
        for (uint32_t i = 0; i < n_here; i++)
            job->picked[n_picked++] = job->choices[first + (uint32_t)((uint64_t)i * n / n_here)];
    }
    return n_picked;
}

/* The change of one choice at the lowest bits goes to the perturbed models. */
static void perturb(const struct batch *batch, uint32_t w, uint32_t choice, const float *difference,
                    float square)
{
    const struct fast *job = batch->job;
    for (uint32_t p = 0; p < N_PERTURBED; p++) {
        const struct perturbed *perturbed = &job->perturbed[p];
        if (!has_window(perturbed, w))
            continue;
        const uint64_t row = perturbed_row(batch, perturbed, w, choice / job->k);
        if (batch->gain != NO_GAIN)
            job->forward.kernels->add_scaled(
                perturbed->scale * job->trace.weights[choice], difference, job->config->n_embd,
                perturbed_hidden(batch, perturbed, row) + moec_forward_late(job->config));
        if (p == FULL) {
            const size_t at = (batch->s * perturbed->n_row + row) * job->k + choice % job->k;
            job->token_error[at] = (float)(choice_weight(job, choice) * square);
            job->token_rank[at] = (uint16_t)job->trace.experts[choice];
        }
    }
}

static void compare_tile(void *context, size_t item, int thread)
{
    (void)thread;
    const struct batch *batch = context;
    const struct fast *job = batch->job;
    const uint32_t first = (uint32_t)item * TILE, left = batch->n_picked - first;
    const uint32_t end = first + (left < TILE ? left : TILE);
    uint32_t w = batch->first_window;
    for (uint32_t i = first; i < end; i++) {
        const uint32_t choice = job->picked[i];
        const float *output = job->trace.rank_outputs + choice * job->stride;
        float *difference = job->changed + i * job->stride;
        job->forward.kernels->add_scaled(-1, output, job->config->n_embd, difference);
        const float square = square_of(job, difference);
        job->errors[i] = square;
        job->outputs[i] = square_of(job, output);
        while (choice / job->k >= batch_row(batch, w + 1))
            w++;
        if (batch->is_lowest)
            perturb(batch, w, choice, difference, square);
    }
}

/* Sums of the picked choices, scaled to all of the expert's in each window. */
static void add_errors(const struct batch *batch, uint32_t e, uint32_t code)
{
    const struct fast *job = batch->job;
    const size_t at = cell(job, batch->s, e, code);
    uint32_t next = job->start[e], i = 0;
    for (uint32_t w = batch->first_window; w < batch->first_window + batch->n_window; w++) {
        const uint32_t end_row = batch_row(batch, w + 1);
        double all = 0, measured = 0, sum = 0;
        for (; next < job->start[e + 1] && job->choices[next] / job->k < end_row; next++)
            all += choice_weight(job, job->choices[next]);
        for (; i < batch->n_picked && job->picked[i] / job->k < end_row; i++) {
            const double weight = choice_weight(job, job->picked[i]);
            measured += weight;
            sum += weight * job->errors[i];
            job->error_sum[at] += job->errors[i];
            job->output_sum[at] += job->outputs[i];
        }
        job->error[at * job->n_window + w] = measured > 0 ? sum * (all / measured) : all > 0 ? -all : 0;
        job->weight_sum[at] += measured;
        job->weighted_sum[at] += sum;
    }
}

static enum moec_status run_expert(struct batch *batch, uint32_t e, uint32_t code, struct moec_error *err)
{
    struct fast *job = batch->job;
    const uint32_t layer = moec_config_moe_layer(job->config, batch->s), bits = job->codes[code];
    const uint32_t source_bits = moec_variants_source_bits(job->options->variants);
    batch->is_lowest = code == 0;
    batch->n_picked = is_source(job, code) ? 0 : pick(batch, e, code);
    if (batch->n_picked == 0) {
        add_errors(batch, e, code);
        return MOEC_OK;
    }
    for (uint32_t i = 0; i < batch->n_picked; i++)
        memcpy(job->gathered + i * job->stride, job->trace.input + job->picked[i] / job->k * job->stride,
               job->stride * sizeof(float));
    MOEC_TRY(moec_variants_assign_one(job->options->variants, layer, e, bits, err));
    MOEC_TRY(moec_forward_routed(&job->forward, layer, e, batch->n_picked, job->gathered, job->changed, err));
    MOEC_TRY(moec_variants_assign_one(job->options->variants, layer, e, source_bits, err));
    moec_parallel_for(&job->forward.pool, (batch->n_picked + TILE - 1) / TILE, compare_tile, batch);
    add_errors(batch, e, code);
    return worked(job, moec_cost_expert(job->config, batch->n_picked), err);
}

/* At all bitwidths, which are made of the exact records that the layer ran with. */
static enum moec_status run_experts(struct batch *batch, uint32_t first, uint32_t n, struct moec_error *err)
{
    struct fast *job = batch->job;
    struct moec_variants *variants = job->options->variants;
    const uint32_t layer = moec_config_moe_layer(job->config, batch->s);
    const uint32_t end = n < job->n_expert - first ? first + n : job->n_expert;
    for (uint32_t code = 0; code < job->n_code; code++)
        MOEC_TRY(moec_variants_prepare_some(variants, layer, first, n, job->codes[code], err));
    for (uint32_t e = first; e < end; e++)
        for (uint32_t code = 0; code < job->n_code; code++)
            MOEC_TRY(run_expert(batch, e, code, err));
    for (uint32_t code = 0; code < job->n_code; code++)
        moec_variants_rank(variants, layer, first, n, job->codes[code], MOEC_VARIANTS_DONE);
    moec_variants_rank(variants, layer, first, n, moec_variants_source_bits(variants), MOEC_VARIANTS_DONE);
    return MOEC_OK;
}

static void leave_batch(const struct batch *batch, const struct perturbed *perturbed)
{
    for (uint32_t w = batch->first_window; w < batch->first_window + batch->n_window; w++) {
        if (batch->gain == NO_GAIN || !has_window(perturbed, w))
            continue;
        const uint64_t row = perturbed_row(batch, perturbed, w, batch_row(batch, w));
        moec_states_leave(&perturbed->states, batch->gain * perturbed->n_row + row,
                          batch_row(batch, w + 1) - batch_row(batch, w));
    }
}

/* Place of a layer among those with a perturbed model. */
static uint32_t place_of(const struct fast *job, uint32_t s)
{
    const struct moec_gain_place place = moec_gain_plan_place(&job->gains, s);
    return job->gains.layers[place.before] == s ? place.before : NO_GAIN;
}

static enum moec_status traced(void *context, uint32_t ordinal, const struct moec_sweep_batch *rows,
                               struct moec_error *err)
{
    struct fast *job = context;
    const uint32_t n_thread = (uint32_t)job->forward.pool.n_threads;
    const uint32_t n_together = n_thread > TOGETHER ? n_thread : TOGETHER;
    struct batch batch = {.job = job,
                          .s = ordinal,
                          .gain = place_of(job, ordinal),
                          .first_window = rows->first,
                          .n_window = rows->n,
                          .n_row = rows->n_rows,
                          .hidden = job->hidden.rows + rows->first_row * job->stride};
    begin_batch(&batch);
    group_choices(&batch);
    for (uint32_t i = 0; rows->first_row == 0 && i < job->n_expert * job->n_code; i++)
        job->due[i] = 1;
    moec_variants_rank(job->options->variants, moec_config_moe_layer(job->config, ordinal), 0, job->n_expert,
                       moec_variants_source_bits(job->options->variants), MOEC_VARIANTS_SOON);
    for (uint32_t e = 0; e < job->n_expert; e += n_together)
        MOEC_TRY(run_experts(&batch, e, n_together, err));
    for (uint32_t p = 0; p < N_PERTURBED; p++)
        leave_batch(&batch, &job->perturbed[p]);
    return MOEC_OK;
}

/* ---- the sweep ---- */

static enum moec_status run_layers(struct fast *job, struct moec_error *err)
{
    const struct moec_sweep_store store = {
        .states = &job->hidden, .trace = &job->trace, .traced = traced, .worked = worked, .context = job};
    uint32_t n_changed = 0, ordinal = 0;
    MOEC_TRY(moec_sweep_embed(&job->sweep, 0, job->n_window, job->hidden.rows, &store, err));
    for (uint32_t layer = 0; layer < job->config->n_layer; layer++) {
        for (uint32_t p = 0; p < N_PERTURBED; p++) {
            struct perturbed *perturbed = &job->perturbed[p];
            const struct moec_sweep_store silent = {
                .states = &perturbed->states, .worked = worked, .context = job};
            for (uint32_t g = 0; g < n_changed; g++)
                MOEC_TRY(moec_sweep_layer(&perturbed->sweep, layer, 0, perturbed->windows.n_window,
                                          perturbed->states.rows + g * perturbed->n_row * job->stride,
                                          &silent, err));
        }
        MOEC_TRY(moec_sweep_layer(&job->sweep, layer, 0, job->n_window, job->hidden.rows, &store, err));
        if (moec_config_is_moe(job->config, layer))
            n_changed += place_of(job, ordinal++) != NO_GAIN;
    }
    return MOEC_OK;
}

/* Lists what a perturbed model has of the rows first .. first + n - 1 of all windows, of which the reference
 * is there: their places in it, and their targets. Its own rows follow each other; *own_first is the first.
 */
static uint32_t list_rows(struct fast *job, const struct perturbed *perturbed, uint64_t first, uint32_t n,
                          uint64_t *own_first)
{
    const uint64_t *all = job->sweep.row_start, *own = perturbed->sweep.row_start;
    uint32_t n_own = 0;
    for (uint32_t at = 0; at < perturbed->windows.n_window; at++) {
        const uint32_t w = at * perturbed->every;
        const uint32_t *targets = moec_windows_tokens(&perturbed->windows, at) + 1;
        const uint64_t begin = all[w] > first ? all[w] : first,
                       end = all[w + 1] < first + n ? all[w + 1] : first + n;
        for (uint64_t row = begin; row < end; row++) {
            if (n_own == 0)
                *own_first = own[at] + row - all[w];
            job->row_numbers[n_own] = (uint32_t)(row - first);
            job->targets[n_own++] = targets[row - all[w]];
        }
    }
    return n_own;
}

/* Adds the scores of n rows to a perturbed model's sum, in the order of the rows. */
static enum moec_status add_scores(const struct fast *job, struct perturbed *perturbed, uint32_t gain,
                                   uint64_t own_first, uint32_t n, struct moec_error *err)
{
    const uint64_t *own = perturbed->sweep.row_start;
    uint32_t at = 0;
    for (uint32_t t = 0; t < n; t++) {
        while (own[at + 1] <= own_first + t)
            at++;
        perturbed->nll[gain] += job->token_nll[t];
        if (t + 1 == n || own_first + t + 1 == own[at + 1])
            MOEC_TRY(moec_score_check(perturbed->nll[gain], at * perturbed->every, err));
    }
    return MOEC_OK;
}

/* Scores of the perturbed models on the rows first .. first + n - 1 of all windows. */
static enum moec_status score_rows(struct fast *job, struct perturbed *perturbed, uint64_t first, uint32_t n,
                                   struct moec_error *err)
{
    uint64_t own_first = 0;
    const uint32_t n_own = list_rows(job, perturbed, first, n, &own_first);
    for (uint32_t g = 0; n_own > 0 && g < job->gains.n_layer; g++) {
        const uint64_t row = g * perturbed->n_row + own_first;
        MOEC_TRY(moec_token_scorer_run(
            &job->tokens, &job->forward, n_own, perturbed->states.rows + row * job->stride, job->targets,
            &job->reference, job->row_numbers, job->token_nll, perturbed->kl + row, err));
        moec_states_leave(&perturbed->states, row, n_own);
        MOEC_TRY(add_scores(job, perturbed, g, own_first, n_own, err));
    }
    return worked(job, job->gains.n_layer * moec_cost_head(job->config, n_own), err);
}

/* Rows of many windows together, which share a decoding of the head. */
static enum moec_status score(struct fast *job, struct moec_error *err)
{
    for (uint64_t first = 0; first < job->hidden.n_row;) {
        const uint64_t left = job->hidden.n_row - first;
        const uint32_t n = left < job->reference.n_row ? (uint32_t)left : job->reference.n_row;
        MOEC_TRY(moec_token_scorer_refer(&job->tokens, &job->forward, n,
                                         job->hidden.rows + first * job->stride, &job->reference, 0, err));
        moec_states_leave(&job->hidden, first, n);
        MOEC_TRY(worked(job, moec_cost_head(job->config, n), err));
        for (uint32_t p = 0; p < N_PERTURBED; p++)
            MOEC_TRY(score_rows(job, &job->perturbed[p], first, n, err));
        first += n;
    }
    return MOEC_OK;
}

/* ---- from local errors to losses ---- */

static double clip(double x, double low, double high)
{
    return x > low ? fmin(x, high) : low; /* NaN: low */
}

/* Error of a token of FULL at layer s: the sum over its experts. */
static double token_error(const struct fast *job, uint32_t s, uint64_t t)
{
    const float *errors = job->token_error + (s * job->perturbed[FULL].n_row + t) * job->k;
    double error = 0;
    for (uint32_t r = 0; r < job->k; r++)
        error += errors[r];
    return error;
}

/* Turns the KL of a perturbed model's tokens into their gains. */
static void fit_tokens(struct fast *job, uint32_t g)
{
    const struct perturbed *full = &job->perturbed[FULL];
    const uint32_t s = job->gains.layers[g];
    double *kl = full->kl + g * full->n_row, kl_sum = 0, error_sum = 0;
    for (uint64_t t = 0; t < full->n_row; t++) {
        kl_sum += fmax(kl[t], 0);
        error_sum += token_error(job, s, t);
    }
    const double typical = error_sum > 0 ? kl_sum / error_sum / 2 : 0;
    const double mean_error = error_sum / (double)full->n_row;
    for (uint64_t t = 0; t < full->n_row; t++)
        kl[t] = error_sum > 0
                    ? (fmax(kl[t], 0) + typical * mean_error) / (token_error(job, s, t) + mean_error)
                    : 0;
}

/* Of the layers with gains of their own around one. */
static double mix(struct moec_gain_place at, const double *values, uint64_t stride)
{
    return (1 - at.share) * values[at.before * stride] + at.share * values[at.after * stride];
}

/* Gains of the experts of a layer at the lowest bits, from those of tokens in perturbed models. */
static enum moec_status fit_layer(struct fast *job, uint32_t s, struct moec_error *err)
{
    const struct perturbed *full = &job->perturbed[FULL];
    const struct moec_gain_place at = moec_gain_plan_place(&job->gains, s);
    const float *errors = job->token_error + s * full->n_row * job->k;
    const uint16_t *experts = job->token_rank + s * full->n_row * job->k;
    double *gain = job->result->gain + (size_t)s * job->n_expert, *sums = NULL;
    double error_sum = 0, gained = 0;
    MOEC_TRY(moec_alloc((void **)&sums, job->n_expert, sizeof *sums, "errors of experts", err));
    memset(gain, 0, job->n_expert * sizeof *gain);
    for (uint64_t t = 0; t < full->n_row; t++) {
        const double token_gain = mix(at, full->kl + t, full->n_row);
        for (uint32_t r = 0; r < job->k; r++) {
            const double own = errors[t * job->k + r];
            gain[experts[t * job->k + r]] += token_gain * own;
            sums[experts[t * job->k + r]] += own;
            gained += token_gain * own;
            error_sum += own;
        }
    }
    for (uint32_t e = 0; e < job->n_expert; e++)
        gain[e] = sums[e] > 0 ? gain[e] / sums[e] : error_sum > 0 ? gained / error_sum : 0;
    free(sums);
    return MOEC_OK;
}

/* How a layer answers to changes of half the size: KL for a unit of squared change, relative to the whole
 * size on the same windows. Before KL becomes gains. */
static double fit_small(const struct fast *job, uint32_t g)
{
    const struct perturbed *full = &job->perturbed[FULL], *small = &job->perturbed[SMALL];
    double at_full = 0, at_small = 0;
    for (uint32_t i = 0; i < small->windows.n_window; i++) {
        const uint64_t from = full->sweep.row_start[i * (small->every / full->every)];
        for (uint32_t t = 0; t < small->windows.scored[i]; t++)
            at_full += fmax(full->kl[g * full->n_row + from + t], 0);
    }
    for (uint64_t t = 0; t < small->n_row; t++)
        at_small += fmax(small->kl[g * small->n_row + t], 0);
    const double squares = (double)small->scale * small->scale;
    return at_full > 0 ? clip(at_small / squares / at_full, 0.05, 2) : 1;
}

/* nats of KL for a unit of u. */
static double gain_of(const struct fast *job, uint32_t s, uint32_t e, uint32_t code)
{
    const struct moec_fast_result *result = job->result;
    const double small = code == 0 ? 1 : result->small_gain[s];
    return result->gain[(size_t)s * job->n_expert + e] * small * result->bits_gain[code];
}

/* Whole models at these bits lose about what their experts lose one by one: on the search part the sum of all
 * experts is scaled to what was measured. The lowest bits are far from additive and have gains of their own.
 */
static double fit_bits(const struct fast *job, uint32_t code)
{
    const struct moec_fast_options *options = job->options;
    const struct moec_measure *measured =
        code == options->n_bits ? options->baseline : options->uniform[code];
    double kl = 0, sum = 0;
    job->result->bits_gain[code] = 1;
    if (code == 0 || measured == NULL)
        return 1;
    for (uint32_t w = 0; w < job->n_window; w++) {
        kl += measured->kl[w];
        for (uint32_t s = 0; s < job->n_moe; s++)
            for (uint32_t e = 0; e < job->n_expert; e++)
                sum += gain_of(job, s, e, code) * job->error[cell(job, s, e, code) * job->n_window + w];
    }
    return sum > 0 ? clip(kl / sum, 1.0 / 16, 16) : 1;
}

/* Change of NLL for one of KL, before KL becomes gains. */
static double fit_nll(const struct fast *job, uint32_t g)
{
    const struct perturbed *full = &job->perturbed[FULL];
    double reference = 0, kl = 0;
    if (job->options->reference_nll == NULL)
        return 1;
    for (uint32_t w = 0; w < job->n_window; w += full->every)
        reference += job->options->reference_nll[w];
    for (uint64_t t = 0; t < full->n_row; t++)
        kl += full->kl[g * full->n_row + t];
    return kl > 0 ? clip((full->nll[g] - reference) / kl, 0.25, 4) : 1;
}

static void estimate_expert(const struct fast *job, uint32_t s, uint32_t e)
{
    const struct moec_fast_options *options = job->options;
    const uint32_t n_bits = options->n_bits, n_window = job->n_window;
    const double *baseline = job->error + cell(job, s, e, n_bits) * n_window;
    const double baseline_gain = gain_of(job, s, e, n_bits), nll_ratio = job->result->nll_ratio[s];
    for (uint32_t b = 0; b < n_bits; b++) {
        const double *error = job->error + cell(job, s, e, b) * n_window;
        const double gain = gain_of(job, s, e, b);
        const size_t at = (((size_t)s * job->n_expert + e) * n_bits + b) * n_window;
        for (uint32_t w = 0; w < n_window; w++) {
            const double more = gain * error[w] - baseline_gain * baseline[w];
            job->result->expert_kl[at + w] = fmax(options->baseline->kl[w] + more, 0);
            if (options->reference_nll != NULL)
                job->result->expert_nll[at + w] = fmax(options->baseline->nll[w] + nll_ratio * more, 0);
        }
    }
}

/* Windows in which nothing of an expert was picked get its mean error. */
static void fill_windows(const struct fast *job, size_t at)
{
    const double mean = job->weight_sum[at] > 0 ? job->weighted_sum[at] / job->weight_sum[at] : 0;
    for (uint32_t w = 0; w < job->n_window; w++) {
        double *error = &job->error[at * job->n_window + w];
        *error = *error < 0 ? -*error * mean : *error;
    }
}

static enum moec_status estimate(struct fast *job, struct moec_error *err)
{
    struct moec_fast_result *result = job->result;
    const size_t n_cell = (size_t)job->n_moe * job->n_expert * job->n_code;
    for (size_t at = 0; at < n_cell; at++)
        fill_windows(job, at);
    double small[MOEC_MAX_LAYERS], ratio[MOEC_MAX_LAYERS];
    for (uint32_t g = 0; g < job->gains.n_layer; g++) {
        small[g] = fit_small(job, g);
        ratio[g] = fit_nll(job, g);
        fit_tokens(job, g);
    }
    for (uint32_t s = 0; s < job->n_moe; s++) {
        MOEC_TRY(fit_layer(job, s, err));
        result->small_gain[s] = mix(moec_gain_plan_place(&job->gains, s), small, 1);
        result->nll_ratio[s] = mix(moec_gain_plan_place(&job->gains, s), ratio, 1);
    }
    for (uint32_t code = 0; code < job->n_code; code++)
        result->bits_gain[code] = fit_bits(job, code);
    for (uint32_t s = 0; s < job->n_moe; s++)
        for (uint32_t e = 0; e < job->n_expert; e++)
            estimate_expert(job, s, e);
    for (size_t i = 0; i < n_cell; i++) {
        const uint32_t code = (uint32_t)(i % job->n_code);
        const double outputs = job->output_sum[is_source(job, code) ? i - code : i];
        result->local_error[i] = outputs > 0 ? job->error_sum[i] / outputs : NAN;
    }
    return MOEC_OK;
}

uint64_t moec_fast_sensitivity_limit(const struct moec_config *config, const struct moec_windows *windows)
{
    return MOEC_FAST_PASSES * moec_cost_pass(config, windows);
}

uint64_t moec_fast_sensitivity_bytes(const struct moec_config *config, const struct moec_windows *windows,
                                     uint32_t n_bits)
{
    struct moec_gain_plan gains;
    moec_gain_plan_make(config, windows, &gains);
    const uint64_t n_moe = moec_config_moe_count(config), n_row = moec_gain_plan_layer_rows(&gains, windows);
    const uint64_t sums = (windows->n_window + 4) * (n_bits + 1) * config->n_expert * sizeof(double);
    return n_moe * (sums + n_row * (config->top_k * (sizeof(float) + sizeof(uint16_t)) + 2 * sizeof(double)));
}

enum moec_status moec_fast_sensitivity_run(const struct moec_fast_options *options,
                                           struct moec_fast_result *result, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &options->model->config;
    struct fast job = {.options = options,
                       .result = result,
                       .config = config,
                       .stride = moec_forward_stride(config),
                       .n_moe = moec_config_moe_count(config),
                       .n_expert = config->n_expert,
                       .n_code = options->n_bits + 1,
                       .n_window = options->windows->n_window,
                       .k = config->top_k};
    memcpy(job.codes, options->bits, options->n_bits * sizeof *options->bits);
    job.codes[options->n_bits] = options->baseline_bits;
    result->multiply_adds = 0;
    MOEC_TRY(moec_variants_assign_all(options->variants, moec_variants_source_bits(options->variants), err));
    MOEC_TRY_OUT(create(&job, err));
    plan(&job);
    MOEC_TRY_OUT(run_layers(&job, err));
    MOEC_TRY_OUT(score(&job, err));
    MOEC_TRY_OUT(estimate(&job, err));
out:
    release(&job);
    return status;
}
