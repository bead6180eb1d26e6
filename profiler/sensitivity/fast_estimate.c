/* From local errors to losses: gains are fitted to what perturbed models did to the same tokens, and a layer
 * without a perturbed model takes them from those around it. */
#include "profiler/sensitivity/fast_sensitivity_internal.h"

#include "formats/base/memory.h"

#include <math.h>
#include <string.h>

static double clip(double x, double low, double high)
{
    return x > low ? fmin(x, high) : low; /* NaN: low */
}

/* Error of a token of FULL at layer s: the sum over its experts. */
static double token_error(const struct fast *job, uint32_t s, uint64_t t)
{
    const float *errors = job->found.token_error + (s * job->passes.perturbed[FULL].n_row + t) * job->model.k;
    double error = 0;
    for (uint32_t r = 0; r < job->model.k; r++)
        error += errors[r];
    return error;
}

/* Turns the KL of a perturbed model's tokens into their gains. */
static void fit_tokens(struct fast *job, uint32_t g)
{
    const struct perturbed *full = &job->passes.perturbed[FULL];
    const uint32_t s = job->plan.gains.layers[g];
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
    const struct perturbed *full = &job->passes.perturbed[FULL];
    const struct moec_gain_place at = moec_gain_plan_place(&job->plan.gains, s);
    const float *errors = job->found.token_error + s * full->n_row * job->model.k;
    const uint16_t *experts = job->found.token_rank + s * full->n_row * job->model.k;
    double *gain = job->found.result->gain + (size_t)s * job->model.n_expert, *sums = NULL;
    double error_sum = 0, gained = 0;
    MOEC_TRY(moec_alloc((void **)&sums, job->model.n_expert, sizeof *sums, "errors of experts", err));
    memset(gain, 0, job->model.n_expert * sizeof *gain);
    for (uint64_t t = 0; t < full->n_row; t++) {
        const double token_gain = mix(at, full->kl + t, full->n_row);
        for (uint32_t r = 0; r < job->model.k; r++) {
            const double own = errors[t * job->model.k + r];
            gain[experts[t * job->model.k + r]] += token_gain * own;
            sums[experts[t * job->model.k + r]] += own;
            gained += token_gain * own;
            error_sum += own;
        }
    }
    for (uint32_t e = 0; e < job->model.n_expert; e++)
        gain[e] = sums[e] > 0 ? gain[e] / sums[e] : error_sum > 0 ? gained / error_sum : 0;
    free(sums);
    return MOEC_OK;
}

/* How a layer answers to changes of half the size: KL for a unit of squared change, relative to the whole
 * size on the same windows. Before KL becomes gains. */
static double fit_small(const struct fast *job, uint32_t g)
{
    const struct perturbed *full = &job->passes.perturbed[FULL], *small = &job->passes.perturbed[SMALL];
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
    const struct moec_fast_result *result = job->found.result;
    const double small = code == 0 ? 1 : result->small_gain[s];
    return result->gain[(size_t)s * job->model.n_expert + e] * small * result->bits_gain[code];
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
    job->found.result->bits_gain[code] = 1;
    if (code == 0 || measured == NULL)
        return 1;
    for (uint32_t w = 0; w < job->windows.n; w++) {
        kl += measured->kl[job->windows.order[w]];
        for (uint32_t s = 0; s < job->model.n_moe; s++)
            for (uint32_t e = 0; e < job->model.n_expert; e++)
                sum += gain_of(job, s, e, code) * job->found.local[fast_cell(job, w, s, e, code)].error;
    }
    return sum > 0 ? clip(kl / sum, 1.0 / 16, 16) : 1;
}

/* Change of NLL for one of KL, before KL becomes gains. */
static double fit_nll(const struct fast *job, uint32_t g)
{
    const struct perturbed *full = &job->passes.perturbed[FULL];
    double reference = 0, nll = 0, kl = 0;
    if (job->options->reference_nll == NULL)
        return 1;
    for (uint32_t w = 0; w < full->n_window; w++) {
        reference += job->options->reference_nll[job->windows.order[w]];
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
    const double baseline_gain = gain_of(job, s, e, n_bits), nll_ratio = job->found.result->nll_ratio[s];
    for (uint32_t b = 0; b < n_bits; b++) {
        const double gain = gain_of(job, s, e, b);
        const size_t at = (((size_t)s * job->model.n_expert + e) * n_bits + b) * job->windows.n;
        for (uint32_t i = 0; i < job->windows.n; i++) {
            const uint32_t w = job->windows.order[i];
            const double more = gain * job->found.local[fast_cell(job, i, s, e, b)].error -
                                baseline_gain * job->found.local[fast_cell(job, i, s, e, n_bits)].error;
            job->found.result->expert_kl[at + w] = fmax(options->baseline->kl[w] + more, 0);
            if (options->reference_nll != NULL)
                job->found.result->expert_nll[at + w] = fmax(options->baseline->nll[w] + nll_ratio * more, 0);
        }
    }
}

/* Squared error of an expert's outputs over the outputs, at all bitwidths. */
static void find_local_errors(const struct fast *job, uint32_t s, uint32_t e)
{
    struct local sums[MOEC_PROFILE_MAX_BITS + 1] = {{0}};
    double *local_error = job->found.result->local_error + fast_cell(job, 0, s, e, 0);
    for (uint32_t w = 0; w < job->windows.n; w++)
        for (uint32_t code = 0; code < job->plan.n_code; code++) {
            const struct local *local = &job->found.local[fast_cell(job, w, s, e, code)];
            sums[code].difference += local->difference;
            sums[code].output += local->output;
        }
    for (uint32_t code = 0; code < job->plan.n_code; code++) {
        const double outputs = sums[fast_is_source(job, code) ? 0 : code].output;
        local_error[code] = outputs > 0 ? sums[code].difference / outputs : NAN;
    }
}

enum moec_status moec_fast_estimate(struct fast *job, struct moec_error *err)
{
    struct moec_fast_result *result = job->found.result;
    double small[MOEC_MAX_LAYERS], ratio[MOEC_MAX_LAYERS];
    for (uint32_t g = 0; g < job->plan.gains.n_layer; g++) {
        small[g] = fit_small(job, g);
        ratio[g] = fit_nll(job, g);
        fit_tokens(job, g);
    }
    for (uint32_t s = 0; s < job->model.n_moe; s++) {
        MOEC_TRY(fit_layer(job, s, err));
        result->small_gain[s] = mix(moec_gain_plan_place(&job->plan.gains, s), small, 1);
        result->nll_ratio[s] = mix(moec_gain_plan_place(&job->plan.gains, s), ratio, 1);
    }
    for (uint32_t code = 0; code < job->plan.n_code; code++)
        result->bits_gain[code] = fit_bits(job, code);
    for (uint32_t s = 0; s < job->model.n_moe; s++)
        for (uint32_t e = 0; e < job->model.n_expert; e++) {
            estimate_expert(job, s, e);
            find_local_errors(job, s, e);
        }
    return MOEC_OK;
}
