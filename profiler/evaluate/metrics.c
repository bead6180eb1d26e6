#include "profiler/evaluate/metrics.h"

#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/common/random.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct moec_loss_options moec_loss_options_default(void)
{
    return (struct moec_loss_options){
        .confidence = 0.95, .n_resample = MOEC_BOOTSTRAP_RESAMPLES, .seed = MOEC_BOOTSTRAP_SEED};
}

static enum moec_status check_options(const struct moec_loss_options *options, struct moec_error *err)
{
    double c = options->confidence;
    if (c == MOEC_CONFIDENCE_POINT)
        return MOEC_OK;
    if (!(c > 0.5 && c < 1))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "confidence is %g, expected more than 0.5 and less than 1, or point", c);
    if (options->n_resample < 100)
        return moec_fail(err, MOEC_ERR_USAGE, "%" PRIu32 " resamples, expected at least 100",
                         options->n_resample);
    return MOEC_OK;
}

/* One window of the part: what a resample adds up. */
struct pair {
    double difference; /* nll of the variant - nll of the reference */
    double n_token;
};

static enum moec_status bootstrap(const struct pair *pairs, uint32_t n,
                                  const struct moec_loss_options *options, struct moec_loss *loss,
                                  struct moec_error *err)
{
    double *means = NULL;
    MOEC_TRY(moec_alloc((void **)&means, options->n_resample, sizeof *means, "resamples", err));
    struct moec_random random = {options->seed};
    for (uint32_t r = 0; r < options->n_resample; r++) {
        double difference = 0, n_token = 0;
        for (uint32_t i = 0; i < n; i++) {
            const struct pair *drawn = &pairs[moec_random_below(&random, n)];
            difference += drawn->difference;
            n_token += drawn->n_token;
        }
        means[r] = difference / n_token;
    }
    /* exp is increasing, so the loss's quantiles are those of the mean difference. */
    moec_sort_doubles(means, options->n_resample);
    loss->high = expm1(moec_quantile_of_sorted(means, options->n_resample, options->confidence));
    loss->low = expm1(moec_quantile_of_sorted(means, options->n_resample, 1 - options->confidence));
    free(means);
    return MOEC_OK;
}

enum moec_status moec_loss_measure(const struct moec_loss_windows *windows, const double *nll_reference,
                                   const double *nll_variant, const double *kl,
                                   const struct moec_loss_options *options, struct moec_loss *loss,
                                   struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const uint32_t n_window = windows->n_window, *scored = windows->scored;
    struct pair *pairs = NULL;
    uint32_t n = 0;
    double reference = 0, compiled = 0, sum_kl = 0;
    *loss = (struct moec_loss){0};
    MOEC_TRY(check_options(options, err));
    MOEC_TRY(moec_alloc((void **)&pairs, n_window, sizeof *pairs, "windows of a part", err));
    for (uint32_t w = 0; w < n_window; w++) {
        if (!moec_part_has(windows->part, windows->parts, w))
            continue;
        if (!isfinite(nll_reference[w]) || !isfinite(nll_variant[w]) || scored[w] == 0) {
            status = moec_fail(err, MOEC_ERR_FORMAT,
                               "window %" PRIu32 " has NLL %g and %g over %" PRIu32
                               " tokens, expected finite ones over at least one",
                               w, nll_reference[w], nll_variant[w], scored[w]);
            goto out;
        }
        reference += nll_reference[w];
        compiled += nll_variant[w];
        sum_kl += kl != NULL ? kl[w] : 0;
        loss->n_token += scored[w];
        pairs[n++] = (struct pair){nll_variant[w] - nll_reference[w], scored[w]};
    }
    if (n == 0) {
        status = moec_fail(err, MOEC_ERR_USAGE, "the part has no windows");
        goto out;
    }
    const double n_token = (double)loss->n_token;
    loss->n_window = n;
    loss->reference = exp(reference / n_token);
    loss->compiled = exp(compiled / n_token);
    loss->loss = expm1((compiled - reference) / n_token);
    loss->mean_kl = sum_kl / n_token;
    loss->low = loss->high = loss->loss;
    if (options->confidence != MOEC_CONFIDENCE_POINT)
        status = bootstrap(pairs, n, options, loss, err);
out:
    free(pairs);
    return status;
}

static enum moec_status bootstrap_scores(const double *reference, const double *variant, uint32_t n,
                                         const struct moec_loss_options *options, struct moec_loss *loss,
                                         struct moec_error *err)
{
    double *losses = NULL;
    MOEC_TRY(moec_alloc((void **)&losses, options->n_resample, sizeof *losses, "resamples", err));
    struct moec_random random = {options->seed};
    for (uint32_t r = 0; r < options->n_resample;) {
        double theirs = 0, ours = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t drawn = moec_random_below(&random, n);
            theirs += reference[drawn];
            ours += variant[drawn];
        }
        if (theirs > 0)
            losses[r++] = (theirs - ours) / theirs;
    }
    moec_sort_doubles(losses, options->n_resample);
    loss->high = moec_quantile_of_sorted(losses, options->n_resample, options->confidence);
    loss->low = moec_quantile_of_sorted(losses, options->n_resample, 1 - options->confidence);
    free(losses);
    return MOEC_OK;
}

enum moec_status moec_loss_measure_scores(const double *reference, const double *variant, uint32_t n_row,
                                          const struct moec_loss_options *options, struct moec_loss *loss,
                                          struct moec_error *err)
{
    double theirs = 0, ours = 0;
    *loss = (struct moec_loss){.n_window = n_row};
    MOEC_TRY(check_options(options, err));
    for (uint32_t i = 0; i < n_row; i++) {
        if (!isfinite(reference[i]) || !isfinite(variant[i]) || reference[i] < 0 || variant[i] < 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "row %" PRIu32 " scores %g and %g, expected finite scores of 0 or more", i,
                             reference[i], variant[i]);
        theirs += reference[i];
        ours += variant[i];
    }
    if (n_row == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "no rows to compare on");
    if (!(theirs > 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the reference scores 0 on every row, so no loss can be computed");
    loss->reference = theirs / n_row;
    loss->compiled = ours / n_row;
    loss->loss = loss->low = loss->high = (theirs - ours) / theirs;
    return options->confidence == MOEC_CONFIDENCE_POINT
               ? MOEC_OK
               : bootstrap_scores(reference, variant, n_row, options, loss, err);
}

uint64_t moec_loss_windows_needed(const struct moec_loss *loss, double target)
{
    if (loss->high <= target)
        return loss->n_window;
    double room = target - loss->loss;
    if (!(room > 0))
        return 0;
    double ratio = (loss->high - loss->loss) / room;
    double needed = ceil(loss->n_window * ratio * ratio);
    return needed < 1e18 ? (uint64_t)needed : 0;
}

bool moec_profile_expert_reached(const struct moec_profile *profile, uint32_t s, uint32_t e)
{
    if (profile->activations[(size_t)s * profile->n_expert + e] == 0)
        return false;
    for (uint32_t b = 0; b < profile->n_bits; b++) {
        const double *nll = moec_profile_expert_row(profile, profile->expert_nll, s, e, b);
        if (memcmp(nll, profile->baseline.nll, profile->n_sensitivity_window * sizeof *nll) != 0)
            return true;
    }
    return profile->n_bits == 0;
}

/* On those windows of the part that sensitivities are of. */
static double part_loss(const struct moec_profile *profile, enum moec_part part, const double *nll)
{
    double difference = 0, n_token = 0;
    for (uint32_t w = 0; w < profile->n_sensitivity_window; w++) {
        if (!moec_part_has(part, profile->window_part, w))
            continue;
        difference += nll[w] - profile->reference.nll[w];
        n_token += profile->window_scored[w];
    }
    return n_token > 0 ? expm1(difference / n_token) : 0;
}

void moec_profile_importance(const struct moec_profile *profile, enum moec_part part, uint32_t b,
                             double *importance)
{
    const uint32_t n_expert = profile->n_expert;
    double largest = -INFINITY;
    for (uint32_t s = 0; s < profile->n_moe_layer; s++) {
        for (uint32_t e = 0; e < n_expert; e++) {
            double *out = &importance[(size_t)s * n_expert + e];
            *out = part_loss(profile, part, moec_profile_expert_row(profile, profile->expert_nll, s, e, b));
            if (moec_profile_expert_reached(profile, s, e) && *out > largest)
                largest = *out;
        }
    }
    if (isinf(largest))
        largest = part_loss(profile, part, profile->baseline.nll);
    for (uint32_t s = 0; s < profile->n_moe_layer; s++) {
        double *row = importance + (size_t)s * n_expert;
        double layer_largest = -INFINITY;
        for (uint32_t e = 0; e < n_expert; e++) {
            if (moec_profile_expert_reached(profile, s, e) && row[e] > layer_largest)
                layer_largest = row[e];
        }
        for (uint32_t e = 0; e < n_expert; e++) {
            if (!moec_profile_expert_reached(profile, s, e))
                row[e] = isinf(layer_largest) ? largest : layer_largest;
        }
    }
}
