/* The KL of a class is divided by the sum of its members' shares, gain * error. The scale of the last
 * measured codec serves those above it, which have no error of their own. An expert that no token reached
 * takes its layer's mean, or it would seem free. Every measured number is a unit of the journal. The scorer
 * is opened only when one is missing. */
#include "compiler/policy/harm.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/score.h"
#include "profiler/sensitivity/fast_sensitivity.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct harm_job {
    const struct moec_harm_request *request;
    struct moec_harm *harm;
    const struct moec_config *config;
    struct moec_windows windows;   /* of whole models: the first of the request's; owned */
    struct moec_progress progress; /* of these */
    struct moec_scorer *scorer;
    struct moec_measure measured; /* (W) each, owned */
    double *reference_nll;        /* (W), owned */
    double *local;        /* (S, E, MOEC_PROJECTION_COUNT), owned: gain * local error at the lowest codec */
    int first_projection; /* a plain MLP has no gate */
};

static double sum_of(const double *values, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += values[i];
    return sum;
}

/* Mean KL of what was measured last, nats a token. */
static double mean_kl(const struct harm_job *job)
{
    return fmax(sum_of(job->measured.kl, job->windows.n_window), 0) /
           (double)moec_windows_scored_count(&job->windows);
}

/* Passes are those of the request's windows. */
static enum moec_status show_model(void *context, const char *phase, double done, double total)
{
    const struct harm_job *job = context;
    const struct moec_progress *progress = job->request->progress;
    const double share = job->windows.n_window / (double)job->request->of.windows->n_window;
    if (progress == NULL || progress->report == NULL)
        return MOEC_OK;
    return progress->report(progress->context, phase, share * done, share * total);
}

static size_t cell(const struct harm_job *job, uint32_t s, uint32_t e, int projection)
{
    return ((size_t)s * job->harm->n_expert + e) * MOEC_PROJECTION_COUNT + (size_t)projection;
}

/* ---- what an interrupted run has measured ---- */

struct kept {
    char key[MOEC_JOURNAL_MAX_KEY];
    struct moec_unit_part part;
};

MOEC_PRINTF(4, 5)
static struct kept keep_as(const struct harm_job *job, void *values, uint64_t n_bytes, const char *format,
                           ...)
{
    struct kept kept = {.part = {values, n_bytes}};
    char name[64];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(name, sizeof name, format, args);
    va_end(args);
    (void)snprintf(kept.key, sizeof kept.key, "harm/%08" PRIx32 "/%" PRIu32 "/%s", job->request->journal.crc,
                   job->windows.n_window, name);
    return kept;
}

static enum moec_status find(const struct harm_job *job, const struct kept *kept, bool *found,
                             struct moec_error *err)
{
    uint64_t cost = 0;
    return moec_unit_find(job->request->journal.units, &(struct moec_unit){kept->key, &kept->part, 1}, &cost,
                          found, err);
}

static enum moec_status keep(const struct harm_job *job, const struct kept *kept, struct moec_error *err)
{
    return moec_unit_keep(job->request->journal.units, &(struct moec_unit){kept->key, &kept->part, 1}, 0,
                          err);
}

/* The scorer, with the original as its reference: only for what has to be measured. */
static enum moec_status open_scorer(struct harm_job *job, struct moec_error *err)
{
    const struct moec_harm_request *request = job->request;
    const struct moec_scorer_options options = {.by = request->by, .variants = request->of.variants};
    struct moec_experts *experts = moec_variants_experts(request->of.variants);
    if (job->scorer != NULL)
        return MOEC_OK;
    MOEC_TRY(moec_scorer_create(request->of.original, experts, &job->windows, &options, &job->scorer, err));
    MOEC_TRY(
        moec_variants_assign_all(request->of.variants, moec_variants_source_bits(request->of.variants), err));
    return moec_scorer_set_reference(job->scorer, request->of.original, experts, job->reference_nll,
                                     &job->progress, err);
}

/* ---- what each expert feels ---- */

/* Without local errors: each expert by its tokens. */
static void share_by_tokens(struct harm_job *job)
{
    for (uint32_t s = 0; s < job->harm->n_layer; s++)
        for (uint32_t e = 0; e < job->harm->n_expert; e++)
            for (int p = job->first_projection; p < MOEC_PROJECTION_COUNT; p++)
                job->local[cell(job, s, e, p)] =
                    (double)job->request->of.activations[(size_t)s * job->harm->n_expert + e];
}

static enum moec_status allocate_fast(const struct harm_job *job, uint32_t n_bits,
                                      struct moec_fast_result *result, struct moec_error *err)
{
    const uint64_t n_expert = (uint64_t)job->harm->n_layer * job->harm->n_expert;
    const uint64_t n_window = job->request->of.windows->n_window;
    const char *what = "sensitivities of experts";
    MOEC_TRY(
        moec_alloc((void **)&result->expert_kl, n_expert * n_bits * n_window, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&result->local_error, n_expert * (n_bits + 1), sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&result->gain, n_expert, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&result->small_gain, job->harm->n_layer, sizeof(double), what, err));
    MOEC_TRY(moec_alloc((void **)&result->nll_ratio, job->harm->n_layer, sizeof(double), what, err));
    return moec_alloc((void **)&result->bits_gain, (uint64_t)n_bits + 1, sizeof(double), what, err);
}

static void release_fast(struct moec_fast_result *result)
{
    free(result->expert_kl);
    free(result->local_error);
    free(result->gain);
    free(result->small_gain);
    free(result->nll_ratio);
    free(result->bits_gain);
}

/* Whole experts at the lowest codec, then one projection of each. */
static enum moec_status measure_locally(struct harm_job *job, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_harm_request *request = job->request;
    const uint32_t n_window = request->of.windows->n_window, lowest = request->codecs.numbers[0];
    uint32_t codes[1 + MOEC_PROJECTION_COUNT] = {lowest}, n_code = 1;
    struct moec_fast_result result = {0};
    const struct moec_measure *unmeasured[1 + MOEC_PROJECTION_COUNT] = {NULL};
    struct moec_measure baseline = {NULL, NULL}; /* the original */
    const uint64_t n_cell = (uint64_t)job->harm->n_layer * job->harm->n_expert * MOEC_PROJECTION_COUNT;
    struct kept kept = keep_as(job, job->local, n_cell * sizeof *job->local, "local");
    bool found = false;
    if (moec_config_is_encoder_decoder(job->config)) {
        share_by_tokens(job);
        return MOEC_OK;
    }
    MOEC_TRY(find(job, &kept, &found, err));
    if (found)
        return MOEC_OK;
    for (int p = job->first_projection; p < MOEC_PROJECTION_COUNT; p++)
        codes[n_code++] = moec_variants_projection_code(lowest, (enum moec_projection)p);
    MOEC_TRY_OUT(allocate_fast(job, n_code, &result, err));
    MOEC_TRY_OUT(moec_alloc((void **)&baseline.kl, n_window, sizeof(double), "window losses", err));
    const struct moec_fast_options options = {
        .of.model = request->of.original,
        .of.variants = request->of.variants,
        .by.kernels = request->by.kernels,
        .of.windows = request->of.windows,
        .by.n_threads = request->by.n_threads,
        .of.baseline_bits = moec_variants_source_bits(request->of.variants),
        .of.bits = codes,
        .of.n_bits = n_code,
        .baseline = &baseline,
        .uniform = unmeasured,
        .limit_multiply_adds = moec_fast_sensitivity_limit(job->config, request->of.windows),
        .by.ranks = request->by.ranks,
        .progress = request->progress,
    };
    MOEC_TRY_OUT(moec_fast_sensitivity_run(&options, &result, err));
    for (uint32_t s = 0; s < job->harm->n_layer; s++)
        for (uint32_t e = 0; e < job->harm->n_expert; e++)
            for (uint32_t code = 1; code < n_code; code++) {
                const double *kl =
                    result.expert_kl + (((size_t)s * job->harm->n_expert + e) * n_code + code) * n_window;
                job->local[cell(job, s, e, job->first_projection + (int)code - 1)] = sum_of(kl, n_window);
            }
    status = keep(job, &kept, err);
out:
    free(baseline.kl);
    release_fast(&result);
    return status;
}

/* ---- classes of experts ---- */

/* An unreached expert would seem free: it counts as its layer's mean of those that were. */
static void fill_unreached(struct harm_job *job)
{
    for (uint32_t s = 0; s < job->harm->n_layer; s++)
        for (int p = job->first_projection; p < MOEC_PROJECTION_COUNT; p++) {
            double sum = 0;
            uint32_t n = 0;
            for (uint32_t e = 0; e < job->harm->n_expert; e++)
                if (job->local[cell(job, s, e, p)] > 0) {
                    sum += job->local[cell(job, s, e, p)];
                    n++;
                }
            for (uint32_t e = 0; e < job->harm->n_expert; e++)
                if (!(job->local[cell(job, s, e, p)] > 0))
                    job->local[cell(job, s, e, p)] = n > 0 ? sum / n : 1;
        }
}

/* Squared error at numbers[i] relative to that at the lowest codec. */
static double error_ratio(const struct harm_job *job, uint32_t s, uint32_t e, int projection, uint32_t i)
{
    const struct moec_harm_request *request = job->request;
    const struct moec_harm_errors *errors = &request->errors;
    const enum moec_projection p = (enum moec_projection)projection;
    const double lowest = errors->expert(errors->context, s, e, p, request->codecs.numbers[0]);
    const double error = errors->expert(errors->context, s, e, p, request->codecs.numbers[i]);
    if (lowest > 0 && error >= 0)
        return error / lowest;
    return pow(0.25, (double)request->codecs.bits[i] - request->codecs.bits[0]);
}

/* The class of one projection at one codec is measured if all its members have errors of their own. */
static bool is_measured(const struct harm_job *job, int projection, uint32_t i)
{
    const struct moec_harm_errors *errors = &job->request->errors;
    return errors->expert(errors->context, 0, 0, (enum moec_projection)projection,
                          job->request->codecs.numbers[i]) >= 0;
}

static enum moec_status measure_class(struct harm_job *job, int projection, uint32_t i, double *kl,
                                      struct moec_error *err)
{
    const struct moec_harm_request *request = job->request;
    const uint8_t code =
        moec_variants_projection_code(request->codecs.numbers[i], (enum moec_projection)projection);
    struct kept kept = keep_as(job, kl, sizeof *kl, "class/%d/%u", projection, request->codecs.numbers[i]);
    bool found = false;
    MOEC_TRY(find(job, &kept, &found, err));
    if (found)
        return MOEC_OK;
    MOEC_TRY(open_scorer(job, err));
    MOEC_TRY(moec_variants_assign_all(request->of.variants, code, err));
    MOEC_TRY(moec_scorer_run(job->scorer, &job->measured, &job->progress, err));
    *kl = mean_kl(job);
    return keep(job, &kept, err);
}

static enum moec_status measure_projection(struct harm_job *job, int p, struct moec_error *err)
{
    const struct moec_harm *harm = job->harm;
    double last_scale = 0;
    for (uint32_t i = 0; i < harm->n_number; i++) {
        double kl = 0, sum = 0;
        for (uint32_t s = 0; s < harm->n_layer; s++)
            for (uint32_t e = 0; e < harm->n_expert; e++) {
                double *own = &moec_harm_expert(harm, s, e, (enum moec_projection)p)[i];
                *own = job->local[cell(job, s, e, p)] * error_ratio(job, s, e, p, i);
                sum += *own;
            }
        if (is_measured(job, p, i)) {
            MOEC_TRY(measure_class(job, p, i, &kl, err));
            last_scale = sum > 0 ? kl / sum : 0;
        }
        for (uint32_t s = 0; s < harm->n_layer; s++)
            for (uint32_t e = 0; e < harm->n_expert; e++)
                moec_harm_expert(harm, s, e, (enum moec_projection)p)[i] *= last_scale;
    }
    return MOEC_OK;
}

/* ---- roles of dense matrices ---- */

static double dense_error(const struct harm_job *job, uint32_t index, uint32_t number)
{
    const struct moec_harm_request *request = job->request;
    const struct moec_harm_errors *errors = &request->errors;
    const struct moec_harm_matrix *matrix = &request->matrices.all[index];
    if (number == 0)
        return 0;
    const double error = errors->dense(errors->context, index, number);
    if (error >= 0)
        return error;
    const double lowest = errors->dense(errors->context, index, matrix->numbers[0]);
    return (lowest > 0 ? lowest : 1) *
           pow(0.25, (double)request->matrices.bits[number] - request->matrices.bits[matrix->numbers[0]]);
}

/* The KL of the model with these numbers of its dense matrices. */
static enum moec_status measure_model(struct harm_job *job, uint32_t role, const uint8_t *numbers, double *kl,
                                      struct moec_error *err)
{
    const struct moec_harm_request *request = job->request;
    struct kept kept = keep_as(job, kl, sizeof *kl, "role/%" PRIu32, role);
    struct moec_model *model = NULL;
    bool found = false;
    MOEC_TRY(find(job, &kept, &found, err));
    if (found)
        return MOEC_OK;
    MOEC_TRY(open_scorer(job, err));
    MOEC_TRY(
        moec_variants_assign_all(request->of.variants, moec_variants_source_bits(request->of.variants), err));
    MOEC_TRY(request->errors.model(request->errors.context, numbers, &model, err));
    const struct moec_scorer_variation variation = {.model = model};
    const enum moec_status status =
        moec_scorer_run_varied(job->scorer, &variation, &job->measured, &job->progress, err);
    moec_model_free(model);
    MOEC_TRY(status);
    *kl = mean_kl(job);
    return keep(job, &kept, err);
}

static enum moec_status measure_role(struct harm_job *job, uint32_t role, uint8_t *numbers,
                                     struct moec_error *err)
{
    const struct moec_harm_request *request = job->request;
    double sum = 0, kl = 0;
    for (uint32_t i = 0; i < request->matrices.n; i++) {
        const bool is_member = request->matrices.all[i].role == role;
        numbers[i] = is_member ? request->matrices.all[i].numbers[0] : 0;
        if (is_member)
            sum += dense_error(job, i, numbers[i]);
    }
    MOEC_TRY(measure_model(job, role, numbers, &kl, err));
    const double scale = sum > 0 ? kl / sum : 0;
    for (uint32_t i = 0; i < request->matrices.n; i++)
        for (uint32_t n = 0; request->matrices.all[i].role == role && n < request->matrices.all[i].n_number;
             n++) {
            const uint8_t number = request->matrices.all[i].numbers[n];
            job->harm->dense[(size_t)i * MOEC_CODEC_TABLE + number] = scale * dense_error(job, i, number);
        }
    return MOEC_OK;
}

static enum moec_status measure_dense(struct harm_job *job, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_harm_request *request = job->request;
    uint8_t *numbers = NULL;
    MOEC_TRY(moec_alloc((void **)&numbers, request->matrices.n, 1, "codecs of dense matrices", err));
    for (uint32_t role = 0; role < MOEC_ROLE_COUNT; role++) {
        bool is_there = false;
        for (uint32_t i = 0; i < request->matrices.n; i++)
            is_there |= request->matrices.all[i].role == role;
        if (is_there)
            MOEC_TRY_OUT(measure_role(job, role, numbers, err));
    }
out:
    free(numbers);
    return status;
}

/* ---- all of it ---- */

static enum moec_status allocate(struct harm_job *job, struct moec_error *err)
{
    struct moec_harm *harm = job->harm;
    const uint64_t n_expert = (uint64_t)harm->n_layer * harm->n_expert, n_window = job->windows.n_window;
    MOEC_TRY(moec_alloc((void **)&harm->experts, n_expert * MOEC_PROJECTION_COUNT * harm->n_number,
                        sizeof(double), "the model of harm", err));
    MOEC_TRY(moec_alloc((void **)&harm->dense, (uint64_t)harm->n_dense * MOEC_CODEC_TABLE, sizeof(double),
                        "the model of harm", err));
    MOEC_TRY(moec_alloc((void **)&job->local, n_expert * MOEC_PROJECTION_COUNT, sizeof(double),
                        "local errors", err));
    MOEC_TRY(moec_alloc((void **)&job->measured.nll, n_window, sizeof(double), "window losses", err));
    MOEC_TRY(moec_alloc((void **)&job->measured.kl, n_window, sizeof(double), "window losses", err));
    return moec_alloc((void **)&job->reference_nll, n_window, sizeof(double), "window losses", err);
}

static size_t count_values(const struct moec_harm *harm)
{
    return (size_t)harm->n_layer * harm->n_expert * MOEC_PROJECTION_COUNT * harm->n_number;
}

static enum moec_status measure_experts(struct harm_job *job, struct moec_error *err)
{
    MOEC_TRY(measure_locally(job, err));
    fill_unreached(job);
    for (int p = job->first_projection; p < MOEC_PROJECTION_COUNT; p++)
        MOEC_TRY(measure_projection(job, p, err));
    return MOEC_OK;
}

enum moec_status moec_harm_measure(const struct moec_harm_request *request, struct moec_harm *harm,
                                   struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &request->of.original->config;
    *harm = (struct moec_harm){.n_layer = moec_config_moe_count(config),
                               .n_expert = config->n_expert,
                               .n_number = request->codecs.n,
                               .n_dense = request->matrices.n};
    struct harm_job job = {.request = request,
                           .harm = harm,
                           .config = config,
                           .first_projection = moec_config_mlp_matrices(config) == 3 ? MOEC_PROJECTION_GATE
                                                                                     : MOEC_PROJECTION_UP};
    const uint32_t n_window = request->of.windows->n_window, n_class = request->of.n_class_window;
    job.progress = (struct moec_progress){.report = show_model, .context = &job};
    MOEC_TRY_OUT(
        moec_windows_first(request->of.windows, n_window < n_class ? n_window : n_class, &job.windows, err));
    MOEC_TRY_OUT(allocate(&job, err));
    if (request->experts != NULL)
        memcpy(harm->experts, request->experts, count_values(harm) * sizeof *harm->experts);
    else
        MOEC_TRY_OUT(measure_experts(&job, err));
    if (request->matrices.n > 0)
        MOEC_TRY_OUT(measure_dense(&job, err));
    status =
        moec_variants_assign_all(request->of.variants, moec_variants_source_bits(request->of.variants), err);
out:
    moec_scorer_free(job.scorer);
    moec_windows_release(&job.windows);
    free(job.measured.nll);
    free(job.measured.kl);
    free(job.reference_nll);
    free(job.local);
    if (status != MOEC_OK)
        moec_harm_release(harm);
    return status;
}

void moec_harm_release(struct moec_harm *harm)
{
    free(harm->experts);
    free(harm->dense);
    *harm = (struct moec_harm){0};
}
