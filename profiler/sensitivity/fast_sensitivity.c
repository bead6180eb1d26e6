/* Local errors are summed by window, so ranks and batches do not show in them. Where the limit leaves a part,
 * tokens of an expert are picked in equal steps, at least one a window. Their sum is scaled to all of its
 * tokens. A perturbed model begins as a copy of the original's states when its layer is traced, and lives
 * from there on. */
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

/* Models with one layer changed, one for each layer of the gain plan, on the first windows of the order. */
struct perturbed {
    float scale;              /* of the change */
    uint32_t n_window, n_own; /* of all ranks, of this one */
    uint64_t n_row, n_own_row;
    struct moec_windows windows; /* (n_own), and their sweep; none without */
    struct moec_sweep sweep;
    struct moec_states states; /* (n_gain * n_own_row, stride) */
    double *kl;                /* (n_gain, n_row): of each token */
    double *nll;               /* (n_gain, n_window): sums */
};

enum { FULL, SMALL, N_PERTURBED };

/* What a window adds to the sums of an expert at a bitwidth. */
struct local {
    double error;      /* u, of all of the expert's choices */
    double difference; /* sum of |d|^2, of those that were picked */
    double output;     /* and of |y|^2 */
};

/* Codes: the bitwidths at which local errors are measured, those of the options and the baseline's last.
 *
 * Windows are ordered here: those of the perturbed models at half the size first, then the others at the whole size,
 * then those without, so that each rank has its part of each. */
struct fast {
    const struct moec_fast_options *options;
    struct moec_fast_result *result;
    const struct moec_config *config;
    size_t stride;
    uint32_t n_moe, n_expert, n_code, n_window, k;
    uint32_t codes[MOEC_PROFILE_MAX_BITS + 1];
    double fraction; /* of an expert's tokens that are measured where not all must be */
    struct moec_gain_plan gains;
    uint32_t *order;             /* (W): the caller's number of each window, */
    struct moec_windows ordered; /* and these */
    uint64_t *row_start;         /* (W + 1): first row of each among all */
    struct moec_rank_windows shared;
    uint32_t n_own;
    struct moec_forward forward;
    struct moec_sweep sweep;   /* of this rank's windows */
    struct moec_states hidden; /* (rows, stride): the original */
    struct perturbed perturbed[N_PERTURBED];
    struct moec_token_scorer tokens;
    struct moec_reference reference;
    double *token_nll, *token_kl;    /* (rows of the reference) */
    uint32_t *row_numbers, *targets; /* (rows of the reference): 0, 1, .. and of those that are scored */

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

    struct local *local;  /* (W, S, E, codes) */
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
                                (double)job->result->multiply_adds / (double)job->pass *
                                    moec_ranks_count(job->options->by.ranks),
                                (double)job->planned / (double)job->pass, err);
}

/* At the bits of the source an expert has no error. */
static bool is_source(const struct fast *job, uint32_t code)
{
    return job->codes[code] == moec_variants_source_bits(job->options->of.variants);
}

/* Plans what is certain, then as large a part of each expert's tokens as the limit leaves for. */
static void plan(struct fast *job)
{
    const struct moec_config *config = job->config;
    const uint64_t n_row = job->row_start[job->n_window], n_full = job->perturbed[FULL].n_row;
    job->pass = moec_cost_pass(config, job->options->of.windows);
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

/* Windows 0, every, 2 every, .. of the caller are the first ones of the order. */
static enum moec_status create_perturbed(struct fast *job, float scale, uint32_t every,
                                         struct perturbed *perturbed, struct moec_error *err)
{
    const uint64_t n_gain = job->gains.n_layer;
    const char *what = "scores of perturbed models";
    perturbed->scale = scale;
    perturbed->n_window = (job->n_window + every - 1) / every;
    perturbed->n_own = moec_rank_windows_count(&job->shared, perturbed->n_window);
    perturbed->n_row = job->row_start[perturbed->n_window];
    MOEC_TRY(moec_alloc((void **)&perturbed->kl, n_gain * perturbed->n_row, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&perturbed->nll, n_gain * perturbed->n_window, sizeof(double), what, err));
    if (perturbed->n_own == 0)
        return MOEC_OK;
    MOEC_TRY(moec_windows_first(&job->shared.own, perturbed->n_own, &perturbed->windows, err));
    MOEC_TRY(moec_sweep_create(&job->forward, &perturbed->windows, false, &perturbed->sweep, err));
    perturbed->n_own_row = moec_windows_scored_count(&perturbed->windows);
    return moec_states_create(job->options->of.windows->work, n_gain * perturbed->n_own_row, job->stride,
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
    MOEC_TRY(moec_alloc((void **)&job->local, n_cell * job->n_window, sizeof *job->local, what, err));
    MOEC_TRY(moec_alloc((void **)&job->token_error, n_choice, sizeof(float), what, err));
    return moec_alloc((void **)&job->token_rank, n_choice, sizeof(uint16_t), what, err);
}

static enum moec_status allocate_scores(struct fast *job, struct moec_error *err)
{
    const struct moec_work_memory *work = job->options->of.windows->work;
    uint64_t n = (work != NULL && work->chunk_bytes > 0 ? work->chunk_bytes : REFERENCE_CHUNK_BYTES) /
                 moec_reference_row_bytes(job->config);
    n = n < job->tokens.n_row ? job->tokens.n_row : n;
    n = n < job->forward.max_tokens ? n : job->forward.max_tokens;
    MOEC_TRY(moec_alloc((void **)&job->token_nll, n, sizeof(double), "scores of perturbed models", err));
    MOEC_TRY(moec_alloc((void **)&job->token_kl, n, sizeof(double), "scores of perturbed models", err));
    MOEC_TRY(moec_alloc((void **)&job->row_numbers, n, sizeof(uint32_t), "reference rows", err));
    MOEC_TRY(moec_alloc((void **)&job->targets, n, sizeof(uint32_t), "reference rows", err));
    for (uint32_t i = 0; i < n; i++)
        job->row_numbers[i] = i;
    return moec_reference_create(job->config, (uint32_t)n, &job->reference, err);
}

/* Windows at half the size, then the others at the whole size, then those without perturbed models. */
static enum moec_status order_windows(struct fast *job, struct moec_error *err)
{
    const struct moec_windows *windows = job->options->of.windows;
    const uint32_t every = job->gains.every, small = job->gains.small_every;
    uint32_t n = 0;
    MOEC_TRY(moec_alloc((void **)&job->order, job->n_window, sizeof *job->order, "windows", err));
    MOEC_TRY(moec_alloc((void **)&job->row_start, (uint64_t)job->n_window + 1, sizeof *job->row_start,
                        "windows", err));
    for (int turn = 0; turn < 3; turn++)
        for (uint32_t w = 0; w < job->n_window; w++)
            if (turn == (w % small == 0 ? 0 : w % every == 0 ? 1 : 2))
                job->order[n++] = w;
    for (uint32_t i = 0; i < n; i++)
        job->row_start[i + 1] = job->row_start[i] + windows->scored[job->order[i]];
    MOEC_TRY(moec_windows_pick(windows, job->order, n, &job->ordered, err));
    MOEC_TRY(moec_rank_windows_make(job->options->by.ranks, &job->ordered, &job->shared, err));
    job->n_own = moec_rank_windows_count(&job->shared, n);
    return MOEC_OK;
}

static enum moec_status create(struct fast *job, struct moec_error *err)
{
    const struct moec_fast_options *options = job->options;
    moec_gain_plan_make(job->config, options->of.windows, &job->gains);
    MOEC_TRY(order_windows(job, err));
    const struct moec_windows *own = &job->shared.own;
    const uint32_t max_tokens = moec_sweep_max_tokens(own);
    MOEC_TRY(moec_forward_init(&job->forward, options->of.model, options->by.kernels, options->by.n_threads,
                               moec_variants_experts(options->of.variants), max_tokens, err));
    MOEC_TRY(moec_forward_use_arithmetic(&job->forward, options->by.arithmetic, err));
    MOEC_TRY(moec_sweep_create(&job->forward, own, false, &job->sweep, err));
    MOEC_TRY(moec_token_scorer_create(job->config, max_tokens, options->of.windows->work, &job->tokens, err));
    MOEC_TRY(moec_states_create(options->of.windows->work, moec_windows_scored_count(own), job->stride,
                                "hidden states of the windows", &job->hidden, err));
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
    moec_rank_windows_release(&job->shared);
    moec_windows_release(&job->ordered);
    void *const owned[] = {job->trace.experts, job->trace.weights, job->trace.input, job->trace.rank_outputs,
                           job->scale,         job->errors,        job->outputs,     job->start,
                           job->choices,       job->picked,        job->gathered,    job->changed,
                           job->local,         job->token_error,   job->token_rank,  job->token_nll,
                           job->token_kl,      job->row_numbers,   job->targets,     job->order,
                           job->row_start};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
}

/* ---- local errors of one batch of one layer ---- */

/* The batch that was traced, and the picked choices of one expert of it when its outputs are compared. */
struct batch {
    struct fast *job;
    uint32_t s, gain; /* ordinal, and its place among those with a perturbed model or NO_GAIN */
    uint32_t first_window, n_window; /* of this rank's */
    uint64_t first_row;
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

/* The first rows of this rank are those of its perturbed models. */
static bool has_window(const struct perturbed *perturbed, uint32_t w)
{
    return w < perturbed->n_own;
}

static float *perturbed_hidden(const struct batch *batch, const struct perturbed *perturbed, uint32_t row)
{
    return perturbed->states.rows +
           (batch->gain * perturbed->n_own_row + batch->first_row + row) * perturbed->states.stride;
}

/* Of a window's number in the order. */
static size_t cell(const struct fast *job, uint32_t w, uint32_t s, uint32_t e, uint32_t code)
{
    return (((size_t)w * job->n_moe + s) * job->n_expert + e) * job->n_code + code;
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
                memcpy(perturbed_hidden(batch, perturbed, first), batch->hidden + first * job->stride,
                       n * job->stride * sizeof(float));
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

/* Choices of expert e that are measured: of each window a share, evenly spread, and at least one. */
static uint32_t pick(const struct batch *batch, uint32_t e, uint32_t code)
{
    const struct fast *job = batch->job;
    uint32_t n_picked = 0, next = job->start[e];
    for (uint32_t w = batch->first_window; w < batch->first_window + batch->n_window; w++) {
        const uint32_t first = next, end_row = batch_row(batch, w + 1);
        while (next < job->start[e + 1] && job->choices[next] / job->k < end_row)
            next++;
        const uint32_t n = next - first, share = (uint32_t)(job->fraction * n);
        const bool takes_all = code == 0 && has_window(&job->perturbed[FULL], w);
        const uint32_t n_here = takes_all || n == 0 ? n : share > 0 ? share : 1;
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
        const uint32_t row = choice / job->k;
        if (batch->gain != NO_GAIN)
            job->forward.kernels->add_scaled(
                perturbed->scale * job->trace.weights[choice], difference, job->config->n_embd,
                perturbed_hidden(batch, perturbed, row) + moec_forward_late(job->config));
        if (p == FULL) {
            const uint64_t among_all =
                job->row_start[moec_rank_windows_number(&job->shared, w)] + row - batch_row(batch, w);
            const size_t at = (batch->s * perturbed->n_row + among_all) * job->k + choice % job->k;
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
    uint32_t next = job->start[e], i = 0;
    for (uint32_t w = batch->first_window; w < batch->first_window + batch->n_window; w++) {
        const uint32_t end_row = batch_row(batch, w + 1), number = moec_rank_windows_number(&job->shared, w);
        struct local *local = &job->local[cell(job, number, batch->s, e, code)];
        double all = 0, measured = 0, sum = 0;
        for (; next < job->start[e + 1] && job->choices[next] / job->k < end_row; next++)
            all += choice_weight(job, job->choices[next]);
        for (; i < batch->n_picked && job->picked[i] / job->k < end_row; i++) {
            const double weight = choice_weight(job, job->picked[i]);
            measured += weight;
            sum += weight * job->errors[i];
            local->difference += job->errors[i];
            local->output += job->outputs[i];
        }
        local->error = measured > 0 ? sum * (all / measured) : 0;
    }
}

static enum moec_status run_expert(struct batch *batch, uint32_t e, uint32_t code, struct moec_error *err)
{
    struct fast *job = batch->job;
    const uint32_t layer = moec_config_moe_layer(job->config, batch->s), bits = job->codes[code];
    const uint32_t source_bits = moec_variants_source_bits(job->options->of.variants);
    batch->is_lowest = code == 0;
    batch->n_picked = is_source(job, code) ? 0 : pick(batch, e, code);
    if (batch->n_picked == 0)
        return MOEC_OK;
    for (uint32_t i = 0; i < batch->n_picked; i++)
        memcpy(job->gathered + i * job->stride, job->trace.input + job->picked[i] / job->k * job->stride,
               job->stride * sizeof(float));
    MOEC_TRY(moec_variants_assign_one(job->options->of.variants, layer, e, bits, err));
    MOEC_TRY(moec_forward_routed(&job->forward, moec_expert_request_of(layer, e), batch->n_picked,
                                 job->gathered, job->changed, err));
    MOEC_TRY(moec_variants_assign_one(job->options->of.variants, layer, e, source_bits, err));
    moec_parallel_for(&job->forward.pool, (batch->n_picked + TILE - 1) / TILE, compare_tile, batch);
    add_errors(batch, e, code);
    return worked(job, moec_cost_expert(job->config, batch->n_picked), err);
}

/* At all bitwidths, which are made of the exact records that the layer ran with. */
static enum moec_status run_experts(struct batch *batch, uint32_t first, uint32_t n, struct moec_error *err)
{
    struct fast *job = batch->job;
    struct moec_variants *variants = job->options->of.variants;
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
        moec_states_leave(&perturbed->states,
                          batch->gain * perturbed->n_own_row + batch->first_row + batch_row(batch, w),
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
                          .first_row = rows->first_row,
                          .n_row = rows->n_rows,
                          .hidden = job->hidden.rows + rows->first_row * job->stride};
    begin_batch(&batch);
    group_choices(&batch);
    moec_variants_rank(job->options->of.variants, moec_config_moe_layer(job->config, ordinal), 0,
                       job->n_expert, moec_variants_source_bits(job->options->of.variants),
                       MOEC_VARIANTS_SOON);
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
    MOEC_TRY(moec_sweep_embed(&job->sweep, (struct moec_window_range){0, job->n_own}, job->hidden.rows,
                              &store, err));
    for (uint32_t layer = 0; layer < job->config->n_layer; layer++) {
        for (uint32_t p = 0; p < N_PERTURBED; p++) {
            struct perturbed *perturbed = &job->perturbed[p];
            const struct moec_sweep_store silent = {
                .states = &perturbed->states, .worked = worked, .context = job};
            for (uint32_t g = 0; g < n_changed && perturbed->n_own > 0; g++)
                MOEC_TRY(moec_sweep_layer(
                    &perturbed->sweep, layer, (struct moec_window_range){0, perturbed->n_own},
                    perturbed->states.rows + g * perturbed->n_own_row * job->stride, &silent, err));
        }
        MOEC_TRY(moec_sweep_layer(&job->sweep, layer, (struct moec_window_range){0, job->n_own},
                                  job->hidden.rows, &store, err));
        if (moec_config_is_moe(job->config, layer))
            n_changed += place_of(job, ordinal++) != NO_GAIN;
    }
    return MOEC_OK;
}

/* The window of this rank that has a row of its perturbed models. */
static uint32_t window_of(const struct fast *job, uint64_t row)
{
    uint32_t w = 0;
    while (job->sweep.row_start[w + 1] <= row)
        w++;
    return w;
}

static void list_targets(const struct fast *job, uint64_t first, uint32_t n)
{
    const uint64_t *start = job->sweep.row_start;
    uint32_t w = window_of(job, first);
    for (uint32_t t = 0; t < n; t++) {
        while (start[w + 1] <= first + t)
            w++;
        job->targets[t] = moec_windows_tokens(&job->shared.own, w)[first + t - start[w] + 1];
    }
}

/* The scores of n rows, from `first` on, to their places, and into their windows' sums in the order of the rows. */
static enum moec_status add_scores(const struct fast *job, struct perturbed *perturbed, uint32_t gain,
                                   uint64_t first, uint32_t n, struct moec_error *err)
{
    const uint64_t *start = job->sweep.row_start;
    double *kl = perturbed->kl + gain * perturbed->n_row;
    uint32_t w = window_of(job, first);
    for (uint32_t t = 0; t < n; t++) {
        while (start[w + 1] <= first + t)
            w++;
        const uint32_t number = moec_rank_windows_number(&job->shared, w);
        double *nll = &perturbed->nll[(size_t)gain * perturbed->n_window + number];
        *nll += job->token_nll[t];
        kl[job->row_start[number] + first + t - start[w]] = job->token_kl[t];
        if (t + 1 == n || first + t + 1 == start[w + 1])
            MOEC_TRY(moec_score_check(*nll, job->order[number], err));
    }
    return MOEC_OK;
}

/* Scores of the perturbed models on the rows first .. first + n - 1, of which the reference is there. */
static enum moec_status score_rows(struct fast *job, struct perturbed *perturbed, uint64_t first, uint32_t n,
                                   struct moec_error *err)
{
    const uint64_t left = perturbed->n_own_row > first ? perturbed->n_own_row - first : 0;
    const uint32_t n_own = left < n ? (uint32_t)left : n;
    if (n_own == 0)
        return MOEC_OK;
    list_targets(job, first, n_own);
    for (uint32_t g = 0; g < job->gains.n_layer; g++) {
        const uint64_t row = g * perturbed->n_own_row + first;
        MOEC_TRY(moec_token_scorer_run(
            &job->tokens, &job->forward,
            &(struct moec_final_states){n_own, perturbed->states.rows + row * job->stride},
            &(struct moec_scored_tokens){.targets = job->targets,
                                         .reference = &job->reference,
                                         .reference_rows = job->row_numbers,
                                         .nll = job->token_nll,
                                         .kl = job->token_kl},
            err));
        moec_states_leave(&perturbed->states, row, n_own);
        MOEC_TRY(add_scores(job, perturbed, g, first, n_own, err));
    }
    return worked(job, job->gains.n_layer * moec_cost_head(job->config, n_own), err);
}

/* Rows of many windows together, which share a decoding of the head. */
static enum moec_status score(struct fast *job, struct moec_error *err)
{
    for (uint64_t first = 0; first < job->hidden.n_row;) {
        const uint64_t left = job->hidden.n_row - first;
        const uint32_t n = left < job->reference.n_row ? (uint32_t)left : job->reference.n_row;
        MOEC_TRY(moec_token_scorer_refer(
            &job->tokens, &job->forward,
            &(struct moec_final_states){n, job->hidden.rows + first * job->stride}, &job->reference, 0, err));
        moec_states_leave(&job->hidden, first, n);
        MOEC_TRY(worked(job, moec_cost_head(job->config, n), err));
        for (uint32_t p = 0; p < N_PERTURBED; p++)
            MOEC_TRY(score_rows(job, &job->perturbed[p], first, n, err));
        first += n;
    }
    return MOEC_OK;
}

/* ---- what ranks measured, to all ---- */

static enum moec_status exchange_perturbed(const struct fast *job, const struct perturbed *perturbed,
                                           struct moec_error *err)
{
    for (uint32_t g = 0; g < job->gains.n_layer; g++) {
        MOEC_TRY(moec_rank_windows_gather_rows(&job->shared, perturbed->n_window, job->row_start,
                                               perturbed->kl + g * perturbed->n_row, sizeof(double), err));
        MOEC_TRY(moec_ranks_gather(job->shared.ranks, perturbed->nll + (size_t)g * perturbed->n_window,
                                   perturbed->n_window, sizeof(double), err));
    }
    return MOEC_OK;
}

static enum moec_status exchange(struct fast *job, struct moec_error *err)
{
    const struct perturbed *full = &job->perturbed[FULL];
    const uint64_t n_choice = full->n_row * job->k;
    if (job->shared.ranks == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_ranks_gather(job->shared.ranks, job->local, job->n_window,
                               cell(job, 1, 0, 0, 0) * sizeof *job->local, err));
    for (uint32_t p = 0; p < N_PERTURBED; p++)
        MOEC_TRY(exchange_perturbed(job, &job->perturbed[p], err));
    for (uint32_t s = 0; s < job->n_moe; s++) {
        MOEC_TRY(moec_rank_windows_gather_rows(&job->shared, full->n_window, job->row_start,
                                               job->token_error + s * n_choice,
                                               job->k * sizeof *job->token_error, err));
        MOEC_TRY(moec_rank_windows_gather_rows(&job->shared, full->n_window, job->row_start,
                                               job->token_rank + s * n_choice,
                                               job->k * sizeof *job->token_rank, err));
    }
    return moec_ranks_sum(job->shared.ranks, &job->result->multiply_adds, 1, err);
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
    for (uint64_t t = 0; t < small->n_row; t++) /* the same tokens */
        at_full += fmax(full->kl[g * full->n_row + t], 0);
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
        code == options->of.n_bits ? options->baseline : options->uniform[code];
    double kl = 0, sum = 0;
    job->result->bits_gain[code] = 1;
    if (code == 0 || measured == NULL)
        return 1;
    for (uint32_t w = 0; w < job->n_window; w++) {
        kl += measured->kl[job->order[w]];
        for (uint32_t s = 0; s < job->n_moe; s++)
            for (uint32_t e = 0; e < job->n_expert; e++)
                sum += gain_of(job, s, e, code) * job->local[cell(job, w, s, e, code)].error;
    }
    return sum > 0 ? clip(kl / sum, 1.0 / 16, 16) : 1;
}

/* Change of NLL for one of KL, before KL becomes gains. */
static double fit_nll(const struct fast *job, uint32_t g)
{
    const struct perturbed *full = &job->perturbed[FULL];
    double reference = 0, nll = 0, kl = 0;
    if (job->options->reference_nll == NULL)
        return 1;
    for (uint32_t w = 0; w < full->n_window; w++) {
        reference += job->options->reference_nll[job->order[w]];
        nll += full->nll[(size_t)g * full->n_window + w];
    }
    for (uint64_t t = 0; t < full->n_row; t++)
        kl += full->kl[g * full->n_row + t];
    return kl > 0 ? clip((nll - reference) / kl, 0.25, 4) : 1;
}

static void estimate_expert(const struct fast *job, uint32_t s, uint32_t e)
{
    const struct moec_fast_options *options = job->options;
    const uint32_t n_bits = options->of.n_bits;
    const double baseline_gain = gain_of(job, s, e, n_bits), nll_ratio = job->result->nll_ratio[s];
    for (uint32_t b = 0; b < n_bits; b++) {
        const double gain = gain_of(job, s, e, b);
        const size_t at = (((size_t)s * job->n_expert + e) * n_bits + b) * job->n_window;
        for (uint32_t i = 0; i < job->n_window; i++) {
            const uint32_t w = job->order[i];
            const double more = gain * job->local[cell(job, i, s, e, b)].error -
                                baseline_gain * job->local[cell(job, i, s, e, n_bits)].error;
            job->result->expert_kl[at + w] = fmax(options->baseline->kl[w] + more, 0);
            if (options->reference_nll != NULL)
                job->result->expert_nll[at + w] = fmax(options->baseline->nll[w] + nll_ratio * more, 0);
        }
    }
}

/* Squared error of an expert's outputs over the outputs, at all bitwidths. */
static void find_local_errors(const struct fast *job, uint32_t s, uint32_t e)
{
    struct local sums[MOEC_PROFILE_MAX_BITS + 1] = {{0}};
    double *local_error = job->result->local_error + cell(job, 0, s, e, 0);
    for (uint32_t w = 0; w < job->n_window; w++)
        for (uint32_t code = 0; code < job->n_code; code++) {
            const struct local *local = &job->local[cell(job, w, s, e, code)];
            sums[code].difference += local->difference;
            sums[code].output += local->output;
        }
    for (uint32_t code = 0; code < job->n_code; code++) {
        const double outputs = sums[is_source(job, code) ? 0 : code].output;
        local_error[code] = outputs > 0 ? sums[code].difference / outputs : NAN;
    }
}

static enum moec_status estimate(struct fast *job, struct moec_error *err)
{
    struct moec_fast_result *result = job->result;
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
        for (uint32_t e = 0; e < job->n_expert; e++) {
            estimate_expert(job, s, e);
            find_local_errors(job, s, e);
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
    const uint64_t sums = windows->n_window * (n_bits + 1) * config->n_expert * sizeof(struct local);
    return n_moe * (sums + n_row * (config->top_k * (sizeof(float) + sizeof(uint16_t)) + 2 * sizeof(double)));
}

enum moec_status moec_fast_sensitivity_run(const struct moec_fast_options *options,
                                           struct moec_fast_result *result, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &options->of.model->config;
    struct fast job = {.options = options,
                       .result = result,
                       .config = config,
                       .stride = moec_forward_stride(config),
                       .n_moe = moec_config_moe_count(config),
                       .n_expert = config->n_expert,
                       .n_code = options->of.n_bits + 1,
                       .n_window = options->of.windows->n_window,
                       .k = config->top_k};
    memcpy(job.codes, options->of.bits, options->of.n_bits * sizeof *options->of.bits);
    job.codes[options->of.n_bits] = options->of.baseline_bits;
    result->multiply_adds = 0;
    MOEC_TRY(
        moec_variants_assign_all(options->of.variants, moec_variants_source_bits(options->of.variants), err));
    MOEC_TRY_OUT(create(&job, err));
    plan(&job);
    if (job.n_own > 0) {
        MOEC_TRY_OUT(run_layers(&job, err));
        MOEC_TRY_OUT(score(&job, err));
    }
    MOEC_TRY_OUT(exchange(&job, err));
    MOEC_TRY_OUT(estimate(&job, err));
out:
    release(&job);
    return status;
}
