/* Local errors are summed by window, so ranks and batches do not show in them. Where the limit leaves a part,
 * tokens of an expert are picked in equal steps, at least one a window. Their sum is scaled to all of its
 * tokens. A perturbed model begins as a copy of the original's states when its layer is traced, and lives
 * from there on. */
#include "profiler/sensitivity/fast_sensitivity_internal.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/score.h"
#include "profiler/evaluate/shared_variants.h"

#include <string.h>

#define REFERENCE_CHUNK_BYTES ((uint64_t)64 << 20)
#define TILE                  64 /* rows that a thread compares at once */
#define TOGETHER              8  /* experts that are encoded at once, at least */
#define PHASE                 "local errors"

#define NO_GAIN UINT32_MAX

/* ---- progress and cost ---- */

static enum moec_status worked(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    struct fast *job = context;
    job->found.result->multiply_adds += multiply_adds;
    return moec_progress_report(job->options->progress, PHASE,
                                (double)job->found.result->multiply_adds / (double)job->plan.pass *
                                    moec_ranks_count(job->options->by.ranks),
                                (double)job->plan.multiply_adds / (double)job->plan.pass, err);
}

/* Plans what is certain, then as large a part of each expert's tokens as the limit leaves for. */
static void plan(struct fast *job)
{
    const struct moec_config *config = job->model.config;
    const uint64_t n_row = job->windows.row_start[job->windows.n], n_full = job->passes.perturbed[FULL].n_row;
    job->plan.pass = moec_cost_pass(config, job->options->of.windows);
    job->plan.multiply_adds = job->plan.pass - moec_cost_head(config, n_row) +
                              moec_cost_head(config, n_full) + job->plan.gains.cost;
    const uint64_t choices = (uint64_t)job->model.n_moe * job->model.k;
    uint32_t n_measured = 0;
    for (uint32_t code = 0; code < job->plan.n_code; code++)
        n_measured += !fast_is_source(job, code);
    job->plan.multiply_adds += moec_cost_expert(config, choices * n_full);
    const uint64_t rest = moec_cost_expert(config, choices * (n_measured * n_row - n_full));
    const uint64_t limit = job->options->limit_multiply_adds;
    const uint64_t left = limit > job->plan.multiply_adds ? limit - job->plan.multiply_adds : 0;
    job->plan.fraction = left >= rest ? 1 : (double)left / (double)rest;
    job->plan.multiply_adds += (uint64_t)(job->plan.fraction * (double)rest);
    job->found.result->fraction = job->plan.fraction;
}

/* ---- memory ---- */

/* Windows 0, every, 2 every, .. of the caller are the first ones of the order. */
static enum moec_status create_perturbed(struct fast *job, float scale, uint32_t every,
                                         struct perturbed *perturbed, struct moec_error *err)
{
    const uint64_t n_gain = job->plan.gains.n_layer;
    const char *what = "scores of perturbed models";
    perturbed->scale = scale;
    perturbed->n_window = (job->windows.n + every - 1) / every;
    perturbed->own.n_window = moec_rank_windows_count(&job->windows.shared, perturbed->n_window);
    perturbed->n_row = job->windows.row_start[perturbed->n_window];
    MOEC_TRY(moec_alloc((void **)&perturbed->kl, n_gain * perturbed->n_row, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&perturbed->nll, n_gain * perturbed->n_window, sizeof(double), what, err));
    if (perturbed->own.n_window == 0)
        return MOEC_OK;
    MOEC_TRY(
        moec_windows_first(&job->windows.shared.own, perturbed->own.n_window, &perturbed->own.windows, err));
    MOEC_TRY(
        moec_sweep_create(&job->passes.forward, &perturbed->own.windows, false, &perturbed->own.sweep, err));
    perturbed->own.n_row = moec_windows_scored_count(&perturbed->own.windows);
    return moec_states_create(job->options->of.windows->work, n_gain * perturbed->own.n_row,
                              job->model.stride, "hidden states of perturbed models", &perturbed->own.states,
                              err);
}

static enum moec_status allocate_batch(struct fast *job, struct moec_error *err)
{
    const uint64_t n = job->passes.forward.max_tokens, row = job->model.stride * sizeof(float);
    const char *what = "the trace of a layer";
    MOEC_TRY(moec_alloc((void **)&job->batch.trace.experts, n * job->model.k, sizeof(uint32_t), what, err));
    MOEC_TRY(moec_alloc((void **)&job->batch.trace.weights, n * job->model.k, sizeof(float), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->batch.trace.input, n, row, what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->batch.trace.rank_outputs, n * job->model.k, row, what, err));
    MOEC_TRY(moec_alloc((void **)&job->batch.scale, n, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&job->batch.picked.errors, n, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&job->batch.picked.outputs, n, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&job->batch.start, (uint64_t)job->model.n_expert + 1, sizeof(uint32_t), what,
                        err));
    MOEC_TRY(moec_alloc((void **)&job->batch.choices, n * job->model.k, sizeof(uint32_t), what, err));
    MOEC_TRY(moec_alloc((void **)&job->batch.picked.choices, n, sizeof(uint32_t), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->batch.picked.gathered, n, row, what, err));
    return moec_alloc_aligned((void **)&job->batch.picked.changed, n, row, what, err);
}

static enum moec_status allocate_sums(struct fast *job, struct moec_error *err)
{
    const uint64_t n_cell = (uint64_t)job->model.n_moe * job->model.n_expert * job->plan.n_code;
    const uint64_t n_choice = job->model.n_moe * job->passes.perturbed[FULL].n_row * job->model.k;
    const char *what = "local errors";
    MOEC_TRY(
        moec_alloc((void **)&job->found.local, n_cell * job->windows.n, sizeof *job->found.local, what, err));
    MOEC_TRY(moec_alloc((void **)&job->found.token_error, n_choice, sizeof(float), what, err));
    return moec_alloc((void **)&job->found.token_rank, n_choice, sizeof(uint16_t), what, err);
}

static enum moec_status allocate_scores(struct fast *job, struct moec_error *err)
{
    const struct moec_work_memory *work = job->options->of.windows->work;
    uint64_t n = (work != NULL && work->chunk_bytes > 0 ? work->chunk_bytes : REFERENCE_CHUNK_BYTES) /
                 moec_reference_row_bytes(job->model.config);
    n = n < job->scores.tokens.n_row ? job->scores.tokens.n_row : n;
    n = n < job->passes.forward.max_tokens ? n : job->passes.forward.max_tokens;
    MOEC_TRY(moec_alloc((void **)&job->scores.nll, n, sizeof(double), "scores of perturbed models", err));
    MOEC_TRY(moec_alloc((void **)&job->scores.kl, n, sizeof(double), "scores of perturbed models", err));
    MOEC_TRY(moec_alloc((void **)&job->scores.row_numbers, n, sizeof(uint32_t), "reference rows", err));
    MOEC_TRY(moec_alloc((void **)&job->scores.targets, n, sizeof(uint32_t), "reference rows", err));
    for (uint32_t i = 0; i < n; i++)
        job->scores.row_numbers[i] = i;
    return moec_reference_create(job->model.config, (uint32_t)n, &job->scores.reference, err);
}

/* Windows at half the size, then the others at the whole size, then those without perturbed models. */
static enum moec_status order_windows(struct fast *job, struct moec_error *err)
{
    const struct moec_windows *windows = job->options->of.windows;
    const uint32_t every = job->plan.gains.every, small = job->plan.gains.small_every;
    uint32_t n = 0;
    MOEC_TRY(
        moec_alloc((void **)&job->windows.order, job->windows.n, sizeof *job->windows.order, "windows", err));
    MOEC_TRY(moec_alloc((void **)&job->windows.row_start, (uint64_t)job->windows.n + 1,
                        sizeof *job->windows.row_start, "windows", err));
    for (int turn = 0; turn < 3; turn++)
        for (uint32_t w = 0; w < job->windows.n; w++)
            if (turn == (w % small == 0 ? 0 : w % every == 0 ? 1 : 2))
                job->windows.order[n++] = w;
    for (uint32_t i = 0; i < n; i++)
        job->windows.row_start[i + 1] = job->windows.row_start[i] + windows->scored[job->windows.order[i]];
    MOEC_TRY(moec_windows_pick(windows, job->windows.order, n, &job->windows.ordered, err));
    MOEC_TRY(
        moec_rank_windows_make(job->options->by.ranks, &job->windows.ordered, &job->windows.shared, err));
    job->windows.n_own = moec_rank_windows_count(&job->windows.shared, n);
    return MOEC_OK;
}

/* Experts whose records take a small part of the limit: exact ones that made room would be read again. */
static uint32_t count_fitting(const struct fast *job)
{
    const uint64_t limit = moec_variants_limit_bytes(job->options->of.variants);
    uint64_t one = 0;
    for (uint32_t code = 0; code < job->plan.n_code; code++)
        one += fast_is_source(job, code)
                   ? 0
                   : moec_variants_record_bytes(job->options->of.variants, job->plan.codes[code]);
    const uint64_t n = limit == 0 || one == 0 ? job->model.n_expert : limit / 8 / one;
    return n < job->model.n_expert ? (uint32_t)n : job->model.n_expert;
}

/* Together: the steps that all ranks take. They wait for each other at each, so these are few. */
static enum moec_status plan_steps(struct fast *job, struct moec_error *err)
{
    struct moec_ranks *ranks = job->options->by.ranks;
    struct fast_steps own = {.n_expert = (uint32_t)job->passes.forward.pool.n_threads}, *all = NULL;
    own.n_expert = own.n_expert > TOGETHER ? own.n_expert : TOGETHER;
    job->steps = own;
    if (ranks == NULL)
        return MOEC_OK;
    const uint32_t count = moec_ranks_count(ranks), n_fitting = count_fitting(job);
    own.n_expert = n_fitting > own.n_expert ? n_fitting : own.n_expert;
    own.n_batch =
        moec_sweep_count_batches(&job->passes.sweep, (struct moec_window_range){0, job->windows.n_own});
    MOEC_TRY(moec_alloc((void **)&all, count, sizeof *all, "steps of ranks", err));
    all[moec_ranks_own(ranks)] = own;
    const enum moec_status status = moec_ranks_gather(ranks, all, count, sizeof *all, err);
    for (uint32_t r = 0; r < count && status == MOEC_OK; r++) {
        own.n_expert = all[r].n_expert < own.n_expert ? all[r].n_expert : own.n_expert;
        own.n_batch = all[r].n_batch > own.n_batch ? all[r].n_batch : own.n_batch;
    }
    job->steps = own;
    free(all);
    return status;
}

static enum moec_status create(struct fast *job, struct moec_error *err)
{
    const struct moec_fast_options *options = job->options;
    moec_gain_plan_make(job->model.config, options->of.windows, &job->plan.gains);
    MOEC_TRY(order_windows(job, err));
    const struct moec_windows *own = &job->windows.shared.own;
    const uint32_t max_tokens = moec_sweep_max_tokens(own);
    MOEC_TRY(moec_forward_init(&job->passes.forward, options->of.model, options->by.kernels,
                               options->by.n_threads, moec_variants_experts(options->of.variants), max_tokens,
                               err));
    MOEC_TRY(moec_forward_use_arithmetic(&job->passes.forward, options->by.arithmetic, err));
    MOEC_TRY(moec_sweep_create(&job->passes.forward, own, false, &job->passes.sweep, err));
    MOEC_TRY(moec_token_scorer_create(job->model.config, max_tokens, options->of.windows->work,
                                      &job->scores.tokens, err));
    MOEC_TRY(moec_states_create(options->of.windows->work, moec_windows_scored_count(own), job->model.stride,
                                "hidden states of the windows", &job->passes.hidden, err));
    MOEC_TRY(create_perturbed(job, 1, job->plan.gains.every, &job->passes.perturbed[FULL], err));
    MOEC_TRY(create_perturbed(job, 0.5f, job->plan.gains.small_every, &job->passes.perturbed[SMALL], err));
    MOEC_TRY(allocate_batch(job, err));
    MOEC_TRY(allocate_sums(job, err));
    MOEC_TRY(allocate_scores(job, err));
    return plan_steps(job, err);
}

static void release(struct fast *job)
{
    for (uint32_t p = 0; p < N_PERTURBED; p++) {
        struct perturbed *perturbed = &job->passes.perturbed[p];
        moec_states_release(&perturbed->own.states);
        moec_sweep_release(&perturbed->own.sweep);
        moec_windows_release(&perturbed->own.windows);
        free(perturbed->kl);
        free(perturbed->nll);
    }
    moec_states_release(&job->passes.hidden);
    moec_reference_release(&job->scores.reference);
    moec_token_scorer_release(&job->scores.tokens);
    moec_sweep_release(&job->passes.sweep);
    moec_forward_release(&job->passes.forward);
    moec_rank_windows_release(&job->windows.shared);
    moec_windows_release(&job->windows.ordered);
    void *const owned[] = {job->batch.trace.experts,
                           job->batch.trace.weights,
                           job->batch.trace.input,
                           job->batch.trace.rank_outputs,
                           job->batch.scale,
                           job->batch.picked.errors,
                           job->batch.picked.outputs,
                           job->batch.start,
                           job->batch.choices,
                           job->batch.picked.choices,
                           job->batch.picked.gathered,
                           job->batch.picked.changed,
                           job->found.local,
                           job->found.token_error,
                           job->found.token_rank,
                           job->scores.nll,
                           job->scores.kl,
                           job->scores.row_numbers,
                           job->scores.targets,
                           job->windows.order,
                           job->windows.row_start};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
}

/* ---- local errors of one batch of one layer ---- */

/* The batch that was traced, and the picked choices of one expert of it when its outputs are compared. */
struct batch {
    struct fast *job;
    uint32_t s, gain; /* ordinal, and its place among those with a perturbed model or NO_GAIN */
    const struct moec_sweep_batch *rows; /* of this rank's windows */
    const float *hidden;                 /* (n_rows, stride): what leaves the layer */
    bool is_lowest;                      /* at the lowest bits, which perturb */
    uint32_t n_picked;
};

/* First row of window w within the batch. */
static uint32_t batch_row(const struct batch *batch, uint32_t w)
{
    const uint64_t *start = batch->job->passes.sweep.row_start;
    return (uint32_t)(start[w] - start[batch->rows->first]);
}

/* The first rows of this rank are those of its perturbed models. */
static bool has_window(const struct perturbed *perturbed, uint32_t w)
{
    return w < perturbed->own.n_window;
}

static float *perturbed_hidden(const struct batch *batch, const struct perturbed *perturbed, uint32_t row)
{
    return perturbed->own.states.rows +
           (batch->gain * perturbed->own.n_row + batch->rows->first_row + row) * perturbed->own.states.stride;
}

static void group_choices(const struct batch *batch)
{
    const struct fast *job = batch->job;
    const uint32_t n_choice = batch->rows->n_rows * job->model.k;
    uint32_t *start = job->batch.start;
    memset(start, 0, ((size_t)job->model.n_expert + 1) * sizeof *start);
    for (uint32_t c = 0; c < n_choice; c++)
        if (!moec_choice_is_passed(job->model.config, job->batch.trace.weights[c]))
            start[job->batch.trace.experts[c] + 1]++;
    for (uint32_t e = 0; e < job->model.n_expert; e++)
        start[e + 1] += start[e];
    for (uint32_t c = 0; c < n_choice; c++)
        if (!moec_choice_is_passed(job->model.config, job->batch.trace.weights[c]))
            job->batch.choices[start[job->batch.trace.experts[c]]++] = c;
    memmove(start + 1, start, job->model.n_expert * sizeof *start);
    start[0] = 0;
}

static float square_of(const struct fast *job, const float *row)
{
    float square = 0;
    job->passes.forward.kernels->dot(row, job->model.stride, 1, row, job->model.stride, 1,
                                     job->model.config->n_embd, &square, 1);
    return square;
}

/* The perturbed models of the layer begin as the original; scales of the rows. */
static void begin_batch(const struct batch *batch)
{
    const struct fast *job = batch->job;
    for (uint32_t w = batch->rows->first; w < batch->rows->first + batch->rows->n; w++) {
        const uint32_t first = batch_row(batch, w), n = batch_row(batch, w + 1) - first;
        for (uint32_t p = 0; p < N_PERTURBED; p++) {
            const struct perturbed *perturbed = &job->passes.perturbed[p];
            if (batch->gain != NO_GAIN && has_window(perturbed, w))
                memcpy(perturbed_hidden(batch, perturbed, first), batch->hidden + first * job->model.stride,
                       n * job->model.stride * sizeof(float));
        }
    }
    for (uint32_t t = 0; t < batch->rows->n_rows; t++) {
        const double square = square_of(job, batch->hidden + t * job->model.stride);
        job->batch.scale[t] = square > 0 ? 1 / square : 0;
    }
}

/* What a choice counts for before its error: g^2 / |x|^2. */
static double choice_weight(const struct fast *job, uint32_t choice)
{
    const double g = job->batch.trace.weights[choice];
    return g * g * job->batch.scale[choice / job->model.k];
}

/* Choices of expert e that are measured: of each window a share, evenly spread, and at least one. */
static uint32_t pick(const struct batch *batch, uint32_t e, uint32_t code)
{
    const struct fast *job = batch->job;
    uint32_t n_picked = 0, next = job->batch.start[e];
    for (uint32_t w = batch->rows->first; w < batch->rows->first + batch->rows->n; w++) {
        const uint32_t first = next, end_row = batch_row(batch, w + 1);
        while (next < job->batch.start[e + 1] && job->batch.choices[next] / job->model.k < end_row)
            next++;
        const uint32_t n = next - first, share = (uint32_t)(job->plan.fraction * n);
        const bool takes_all = code == 0 && has_window(&job->passes.perturbed[FULL], w);
        const uint32_t n_here = takes_all || n == 0 ? n : share > 0 ? share : 1;
        for (uint32_t i = 0; i < n_here; i++)
            job->batch.picked.choices[n_picked++] =
                job->batch.choices[first + (uint32_t)((uint64_t)i * n / n_here)];
    }
    return n_picked;
}

/* The change of one choice at the lowest bits goes to the perturbed models. */
static void perturb(const struct batch *batch, uint32_t w, uint32_t choice, const float *difference,
                    float square)
{
    const struct fast *job = batch->job;
    for (uint32_t p = 0; p < N_PERTURBED; p++) {
        const struct perturbed *perturbed = &job->passes.perturbed[p];
        if (!has_window(perturbed, w))
            continue;
        const uint32_t row = choice / job->model.k;
        if (batch->gain != NO_GAIN)
            job->passes.forward.kernels->add_scaled(
                perturbed->scale * job->batch.trace.weights[choice], difference, job->model.config->n_embd,
                perturbed_hidden(batch, perturbed, row) + moec_forward_late(job->model.config));
        if (p == FULL) {
            const uint64_t among_all =
                job->windows.row_start[moec_rank_windows_number(&job->windows.shared, w)] + row -
                batch_row(batch, w);
            const size_t at =
                (batch->s * perturbed->n_row + among_all) * job->model.k + choice % job->model.k;
            job->found.token_error[at] = (float)(choice_weight(job, choice) * square);
            job->found.token_rank[at] = (uint16_t)job->batch.trace.experts[choice];
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
    uint32_t w = batch->rows->first;
    for (uint32_t i = first; i < end; i++) {
        const uint32_t choice = job->batch.picked.choices[i];
        const float *output = job->batch.trace.rank_outputs + choice * job->model.stride;
        float *difference = job->batch.picked.changed + i * job->model.stride;
        job->passes.forward.kernels->add_scaled(-1, output, job->model.config->n_embd, difference);
        const float square = square_of(job, difference);
        job->batch.picked.errors[i] = square;
        job->batch.picked.outputs[i] = square_of(job, output);
        while (choice / job->model.k >= batch_row(batch, w + 1))
            w++;
        if (batch->is_lowest)
            perturb(batch, w, choice, difference, square);
    }
}

/* Sums of the picked choices, scaled to all of the expert's in each window. */
static void add_errors(const struct batch *batch, uint32_t e, uint32_t code)
{
    const struct fast *job = batch->job;
    uint32_t next = job->batch.start[e], i = 0;
    for (uint32_t w = batch->rows->first; w < batch->rows->first + batch->rows->n; w++) {
        const uint32_t end_row = batch_row(batch, w + 1),
                       number = moec_rank_windows_number(&job->windows.shared, w);
        struct local *local = &job->found.local[fast_cell(job, number, batch->s, e, code)];
        double all = 0, measured = 0, sum = 0;
        for (; next < job->batch.start[e + 1] && job->batch.choices[next] / job->model.k < end_row; next++)
            all += choice_weight(job, job->batch.choices[next]);
        for (; i < batch->n_picked && job->batch.picked.choices[i] / job->model.k < end_row; i++) {
            const double weight = choice_weight(job, job->batch.picked.choices[i]);
            measured += weight;
            sum += weight * job->batch.picked.errors[i];
            local->difference += job->batch.picked.errors[i];
            local->output += job->batch.picked.outputs[i];
        }
        local->error = measured > 0 ? sum * (all / measured) : 0;
    }
}

static enum moec_status run_expert(struct batch *batch, uint32_t e, uint32_t code, struct moec_error *err)
{
    struct fast *job = batch->job;
    const uint32_t layer = moec_config_moe_layer(job->model.config, batch->s), bits = job->plan.codes[code];
    const uint32_t source_bits = moec_variants_source_bits(job->options->of.variants);
    batch->is_lowest = code == 0;
    batch->n_picked = fast_is_source(job, code) ? 0 : pick(batch, e, code);
    if (batch->n_picked == 0)
        return MOEC_OK;
    for (uint32_t i = 0; i < batch->n_picked; i++)
        memcpy(job->batch.picked.gathered + i * job->model.stride,
               job->batch.trace.input + job->batch.picked.choices[i] / job->model.k * job->model.stride,
               job->model.stride * sizeof(float));
    MOEC_TRY(moec_variants_assign_one(job->options->of.variants, layer, e, bits, err));
    MOEC_TRY(moec_forward_routed(&job->passes.forward, moec_expert_request_of(layer, e), batch->n_picked,
                                 job->batch.picked.gathered, job->batch.picked.changed, err));
    MOEC_TRY(moec_variants_assign_one(job->options->of.variants, layer, e, source_bits, err));
    moec_parallel_for(&job->passes.forward.pool, (batch->n_picked + TILE - 1) / TILE, compare_tile, batch);
    add_errors(batch, e, code);
    return worked(job, moec_cost_expert(job->model.config, batch->n_picked), err);
}

/* Together: the records of a step. */
static enum moec_status share_step(struct fast *job, uint32_t layer, uint32_t first, struct moec_error *err)
{
    const struct moec_variants_range range = {.layer = layer,
                                              .first = first,
                                              .n = job->steps.n_expert,
                                              .codes = job->plan.codes,
                                              .n_code = job->plan.n_code};
    if (job->options->by.ranks == NULL)
        return MOEC_OK;
    MOEC_TRY(worked(job, 0, err));
    return moec_variants_share(job->options->of.variants, job->options->by.ranks, &range, err);
}

/* A step, at all bitwidths, which are made of the exact records that the layer ran with. */
static enum moec_status run_experts(struct batch *batch, uint32_t first, struct moec_error *err)
{
    struct fast *job = batch->job;
    struct moec_variants *variants = job->options->of.variants;
    const uint32_t layer = moec_config_moe_layer(job->model.config, batch->s), n = job->steps.n_expert;
    const uint32_t end = n < job->model.n_expert - first ? first + n : job->model.n_expert;
    MOEC_TRY(share_step(job, layer, first, err));
    for (uint32_t code = 0; code < job->plan.n_code; code++)
        MOEC_TRY(moec_variants_prepare_some(variants, layer, first, n, job->plan.codes[code], err));
    for (uint32_t e = first; e < end; e++)
        for (uint32_t code = 0; code < job->plan.n_code; code++)
            MOEC_TRY(run_expert(batch, e, code, err));
    for (uint32_t code = 0; code < job->plan.n_code; code++)
        moec_variants_rank(variants, layer, first, n, job->plan.codes[code], MOEC_VARIANTS_DONE);
    moec_variants_rank(variants, layer, first, n, moec_variants_source_bits(variants), MOEC_VARIANTS_DONE);
    return MOEC_OK;
}

static void leave_batch(const struct batch *batch, const struct perturbed *perturbed)
{
    for (uint32_t w = batch->rows->first; w < batch->rows->first + batch->rows->n; w++) {
        if (batch->gain == NO_GAIN || !has_window(perturbed, w))
            continue;
        moec_states_leave(&perturbed->own.states,
                          batch->gain * perturbed->own.n_row + batch->rows->first_row + batch_row(batch, w),
                          batch_row(batch, w + 1) - batch_row(batch, w));
    }
}

/* Place of a layer among those with a perturbed model. */
static uint32_t place_of(const struct fast *job, uint32_t s)
{
    const struct moec_gain_place place = moec_gain_plan_place(&job->plan.gains, s);
    return job->plan.gains.layers[place.before] == s ? place.before : NO_GAIN;
}

static enum moec_status traced(void *context, uint32_t ordinal, const struct moec_sweep_batch *rows,
                               struct moec_error *err)
{
    struct fast *job = context;
    struct batch batch = {.job = job,
                          .s = ordinal,
                          .gain = place_of(job, ordinal),
                          .rows = rows,
                          .hidden = job->passes.hidden.rows + rows->first_row * job->model.stride};
    begin_batch(&batch);
    group_choices(&batch);
    moec_variants_rank(job->options->of.variants, moec_config_moe_layer(job->model.config, ordinal), 0,
                       job->model.n_expert, moec_variants_source_bits(job->options->of.variants),
                       MOEC_VARIANTS_SOON);
    for (uint32_t e = 0; e < job->model.n_expert; e += job->steps.n_expert)
        MOEC_TRY(run_experts(&batch, e, err));
    job->steps.n_done++;
    for (uint32_t p = 0; p < N_PERTURBED; p++)
        leave_batch(&batch, &job->passes.perturbed[p]);
    return MOEC_OK;
}

/* ---- the sweep ---- */

/* The steps of batches that other ranks have and this one does not. */
static enum moec_status follow_others(struct fast *job, uint32_t layer, struct moec_error *err)
{
    for (; job->steps.n_done < job->steps.n_batch; job->steps.n_done++)
        for (uint32_t e = 0; e < job->model.n_expert; e += job->steps.n_expert)
            MOEC_TRY(share_step(job, layer, e, err));
    job->steps.n_done = 0;
    return MOEC_OK;
}

/* Of a rank without windows only the steps of the others. */
static enum moec_status run_layers(struct fast *job, struct moec_error *err)
{
    const struct moec_sweep_store store = {.states = &job->passes.hidden,
                                           .trace = &job->batch.trace,
                                           .traced = traced,
                                           .worked = worked,
                                           .context = job};
    uint32_t n_changed = 0, ordinal = 0;
    MOEC_TRY(moec_sweep_embed(&job->passes.sweep, (struct moec_window_range){0, job->windows.n_own},
                              job->passes.hidden.rows, &store, err));
    for (uint32_t layer = 0; layer < job->model.config->n_layer; layer++) {
        for (uint32_t p = 0; p < N_PERTURBED; p++) {
            struct perturbed *perturbed = &job->passes.perturbed[p];
            const struct moec_sweep_store silent = {
                .states = &perturbed->own.states, .worked = worked, .context = job};
            for (uint32_t g = 0; g < n_changed && perturbed->own.n_window > 0; g++)
                MOEC_TRY(moec_sweep_layer(
                    &perturbed->own.sweep, layer, (struct moec_window_range){0, perturbed->own.n_window},
                    perturbed->own.states.rows + g * perturbed->own.n_row * job->model.stride, &silent, err));
        }
        MOEC_TRY(moec_sweep_layer(&job->passes.sweep, layer,
                                  (struct moec_window_range){0, job->windows.n_own}, job->passes.hidden.rows,
                                  &store, err));
        if (!moec_config_is_moe(job->model.config, layer))
            continue;
        MOEC_TRY(follow_others(job, layer, err));
        n_changed += place_of(job, ordinal++) != NO_GAIN;
    }
    return MOEC_OK;
}

/* The window of this rank that has a row of its perturbed models. */
static uint32_t window_of(const struct fast *job, uint64_t row)
{
    uint32_t w = 0;
    while (job->passes.sweep.row_start[w + 1] <= row)
        w++;
    return w;
}

static void list_targets(const struct fast *job, uint64_t first, uint32_t n)
{
    const uint64_t *start = job->passes.sweep.row_start;
    uint32_t w = window_of(job, first);
    for (uint32_t t = 0; t < n; t++) {
        while (start[w + 1] <= first + t)
            w++;
        job->scores.targets[t] = moec_windows_tokens(&job->windows.shared.own, w)[first + t - start[w] + 1];
    }
}

/* The scores of n rows, from `first` on, to their places, and into their windows' sums in the order of the rows. */
static enum moec_status add_scores(const struct fast *job, struct perturbed *perturbed, uint32_t gain,
                                   uint64_t first, uint32_t n, struct moec_error *err)
{
    const uint64_t *start = job->passes.sweep.row_start;
    double *kl = perturbed->kl + gain * perturbed->n_row;
    uint32_t w = window_of(job, first);
    for (uint32_t t = 0; t < n; t++) {
        while (start[w + 1] <= first + t)
            w++;
        const uint32_t number = moec_rank_windows_number(&job->windows.shared, w);
        double *nll = &perturbed->nll[(size_t)gain * perturbed->n_window + number];
        *nll += job->scores.nll[t];
        kl[job->windows.row_start[number] + first + t - start[w]] = job->scores.kl[t];
        if (t + 1 == n || first + t + 1 == start[w + 1])
            MOEC_TRY(moec_score_check(*nll, job->windows.order[number], err));
    }
    return MOEC_OK;
}

/* Scores of the perturbed models on the rows first .. first + n - 1, of which the reference is there. */
static enum moec_status score_rows(struct fast *job, struct perturbed *perturbed, uint64_t first, uint32_t n,
                                   struct moec_error *err)
{
    const uint64_t left = perturbed->own.n_row > first ? perturbed->own.n_row - first : 0;
    const uint32_t n_own = left < n ? (uint32_t)left : n;
    if (n_own == 0)
        return MOEC_OK;
    list_targets(job, first, n_own);
    for (uint32_t g = 0; g < job->plan.gains.n_layer; g++) {
        const uint64_t row = g * perturbed->own.n_row + first;
        MOEC_TRY(moec_token_scorer_run(
            &job->scores.tokens, &job->passes.forward,
            &(struct moec_final_states){n_own, perturbed->own.states.rows + row * job->model.stride},
            &(struct moec_scored_tokens){.targets = job->scores.targets,
                                         .reference = &job->scores.reference,
                                         .reference_rows = job->scores.row_numbers,
                                         .nll = job->scores.nll,
                                         .kl = job->scores.kl},
            err));
        moec_states_leave(&perturbed->own.states, row, n_own);
        MOEC_TRY(add_scores(job, perturbed, g, first, n_own, err));
    }
    return worked(job, job->plan.gains.n_layer * moec_cost_head(job->model.config, n_own), err);
}

/* Rows of many windows together, which share a decoding of the head. */
static enum moec_status score(struct fast *job, struct moec_error *err)
{
    for (uint64_t first = 0; first < job->passes.hidden.n_row;) {
        const uint64_t left = job->passes.hidden.n_row - first;
        const uint32_t n = left < job->scores.reference.n_row ? (uint32_t)left : job->scores.reference.n_row;
        MOEC_TRY(moec_token_scorer_refer(
            &job->scores.tokens, &job->passes.forward,
            &(struct moec_final_states){n, job->passes.hidden.rows + first * job->model.stride},
            &job->scores.reference, 0, err));
        moec_states_leave(&job->passes.hidden, first, n);
        MOEC_TRY(worked(job, moec_cost_head(job->model.config, n), err));
        for (uint32_t p = 0; p < N_PERTURBED; p++)
            MOEC_TRY(score_rows(job, &job->passes.perturbed[p], first, n, err));
        first += n;
    }
    return MOEC_OK;
}

/* ---- what ranks measured, to all ---- */

static enum moec_status exchange_perturbed(const struct fast *job, const struct perturbed *perturbed,
                                           struct moec_error *err)
{
    for (uint32_t g = 0; g < job->plan.gains.n_layer; g++) {
        MOEC_TRY(moec_rank_windows_gather_rows(&job->windows.shared, perturbed->n_window,
                                               job->windows.row_start, perturbed->kl + g * perturbed->n_row,
                                               sizeof(double), err));
        MOEC_TRY(moec_ranks_gather(job->windows.shared.ranks,
                                   perturbed->nll + (size_t)g * perturbed->n_window, perturbed->n_window,
                                   sizeof(double), err));
    }
    return MOEC_OK;
}

static enum moec_status exchange(struct fast *job, struct moec_error *err)
{
    const struct perturbed *full = &job->passes.perturbed[FULL];
    const uint64_t n_choice = full->n_row * job->model.k;
    if (job->windows.shared.ranks == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_ranks_gather(job->windows.shared.ranks, job->found.local, job->windows.n,
                               fast_cell(job, 1, 0, 0, 0) * sizeof *job->found.local, err));
    for (uint32_t p = 0; p < N_PERTURBED; p++)
        MOEC_TRY(exchange_perturbed(job, &job->passes.perturbed[p], err));
    for (uint32_t s = 0; s < job->model.n_moe; s++) {
        MOEC_TRY(moec_rank_windows_gather_rows(&job->windows.shared, full->n_window, job->windows.row_start,
                                               job->found.token_error + s * n_choice,
                                               job->model.k * sizeof *job->found.token_error, err));
        MOEC_TRY(moec_rank_windows_gather_rows(&job->windows.shared, full->n_window, job->windows.row_start,
                                               job->found.token_rank + s * n_choice,
                                               job->model.k * sizeof *job->found.token_rank, err));
    }
    return moec_ranks_sum(job->windows.shared.ranks, &job->found.result->multiply_adds, 1, err);
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
    const uint64_t sums = windows->n_window * (n_bits + 1) * config->n_expert * sizeof(struct local);
    return n_moe * (sums + n_row * (config->top_k * (sizeof(float) + sizeof(uint16_t)) + 2 * sizeof(double)));
}

enum moec_status moec_fast_sensitivity_run(const struct moec_fast_options *options,
                                           struct moec_fast_result *result, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &options->of.model->config;
    struct fast job = {.options = options,
                       .found.result = result,
                       .model = {.config = config,
                                 .stride = moec_forward_stride(config),
                                 .n_moe = moec_config_moe_count(config),
                                 .n_expert = config->n_expert,
                                 .k = config->top_k},
                       .plan.n_code = options->of.n_bits + 1,
                       .windows.n = options->of.windows->n_window};
    memcpy(job.plan.codes, options->of.bits, options->of.n_bits * sizeof *options->of.bits);
    job.plan.codes[options->of.n_bits] = options->of.baseline_bits;
    result->multiply_adds = 0;
    MOEC_TRY(
        moec_variants_assign_all(options->of.variants, moec_variants_source_bits(options->of.variants), err));
    MOEC_TRY_OUT(create(&job, err));
    plan(&job);
    MOEC_TRY_OUT(run_layers(&job, err));
    if (job.windows.n_own > 0)
        MOEC_TRY_OUT(score(&job, err));
    MOEC_TRY_OUT(exchange(&job, err));
    MOEC_TRY_OUT(moec_fast_estimate(&job, err));
out:
    release(&job);
    return status;
}
