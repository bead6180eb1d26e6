/* A loss is a ratio of sums over independent units: windows, documents that join their windows, or rows. Ends
 * of windows' losses are Student's with Hall's correction of skewness, and ends of scores are a studentised
 * bootstrap. A p-value uses the same transform as the ends, so that test and interval never disagree. Ends
 * map from the ratio by expm1; sums keep the units' order, and draws their seed. */
#include "profiler/evaluate/metrics.h"

#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/common/random.h"
#include "profiler/common/student.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
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
                         "confidence is %g, expected more than 0.5 and less than 1, or 'point'", c);
    if (options->n_resample < 100)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "%" PRIu32 " bootstrap resamples (random redraws of the data) are requested, "
                         "expected at least 100",
                         options->n_resample);
    return MOEC_OK;
}

/* A ratio of sums over n independent units, differences over sizes: a unit is a window, a document or a row.
 */
struct unit {
    uint64_t document;
    uint32_t window; /* its first */
    double difference, size;
};

static int compare_units(const void *a, const void *b)
{
    const struct unit *x = a, *y = b;
    if (x->document != y->document)
        return x->document < y->document ? -1 : 1;
    return (x->window > y->window) - (x->window < y->window);
}

/* Adds up the windows of each document. Returns the number of units that are left. */
static uint32_t join_documents(struct unit *units, uint32_t n)
{
    uint32_t n_joined = 0;
    qsort(units, n, sizeof *units, compare_units);
    for (uint32_t i = 0; i < n; i++) {
        struct unit *last = &units[n_joined > 0 ? n_joined - 1 : 0];
        if (n_joined > 0 && last->document == units[i].document) {
            last->difference += units[i].difference;
            last->size += units[i].size;
        } else {
            units[n_joined++] = units[i];
        }
    }
    return n_joined;
}

/* The ratio, its standard error and the skewness of what makes it up. To first order the error of a ratio is
 * the mean of the residuals difference - ratio * size over the mean size (Cochran, "Sampling Techniques",
 * 1977, 6.3): units of unequal size need no other care. */
static void estimate(const struct unit *units, uint32_t n, double *ratio, double *error, double *skewness)
{
    double difference = 0, size = 0, squares = 0, cubes = 0;
    for (uint32_t i = 0; i < n; i++) {
        difference += units[i].difference;
        size += units[i].size;
    }
    *ratio = difference / size;
    for (uint32_t i = 0; i < n; i++) {
        const double residual = units[i].difference - *ratio * units[i].size;
        squares += residual * residual;
        cubes += residual * residual * residual;
    }
    const double variance = squares / n;
    *error = n > 1 ? sqrt(squares / (n - 1) * n) / size : INFINITY;
    /* Fisher's and Pearson's estimate, and what few units of a skewed distribution (gamma) show too little.
     */
    const double adjust = n > 2 ? sqrt((double)n * (n - 1)) / (n - 2) * (1 + 6.0 / n) : 0;
    *skewness = variance > 0 ? adjust * cubes / n / (variance * sqrt(variance)) : 0;
}

/* Student's t for skewed units: Hall's monotone transformation of t (1992, "On the removal of skewness by
 * transformation") with a third of the skewness over the root of n. Only skewness that makes the end in
 * question too short is corrected: where it makes it too long, the end stays a bit too safe. */
static double skew(double skewness, uint32_t n)
{
    return skewness > 0 ? skewness / sqrt((double)n) : 0;
}

static double transform(double t, double g)
{
    return t + g * t * t / 3 + g * g * t * t * t / 27 + g / 6;
}

/* The t whose transform is x. */
static double transform_back(double x, double g)
{
    return g > 1e-9 ? 3 / g * (cbrt(1 + g * (x - g / 6)) - 1) : x;
}

/* Ends of the mean difference of NLL a token. */
static void find_ends(struct moec_loss *loss, double confidence)
{
    const double t = moec_student_quantile(confidence, loss->n_unit - 1);
    const double above = transform_back(-t, skew(loss->skewness, loss->n_unit)),
                 below = transform_back(-t, skew(-loss->skewness, loss->n_unit));
    loss->high = expm1(loss->difference - above * loss->error);
    loss->low = expm1(loss->difference + below * loss->error);
}

double moec_loss_p_value(const struct moec_loss *loss, double target)
{
    const double hypothesis = log1p(target), off = loss->difference - hypothesis;
    if (loss->n_unit < 2)
        return 1;
    if (!(loss->error > 0))
        return off < 0 ? 0 : 1;
    return moec_student_cdf(transform(off / loss->error, skew(loss->skewness, loss->n_unit)),
                            loss->n_unit - 1);
}

enum moec_status moec_loss_measure(const struct moec_loss_windows *windows, const struct moec_paired_nll *nll,
                                   const struct moec_loss_options *options, struct moec_loss *loss,
                                   struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const uint32_t n_window = windows->n_window, *scored = windows->scored;
    struct unit *units = NULL;
    uint32_t n = 0;
    double reference = 0, compiled = 0, sum_kl = 0;
    *loss = (struct moec_loss){0};
    MOEC_TRY(check_options(options, err));
    MOEC_TRY(moec_alloc((void **)&units, n_window, sizeof *units, "windows of a part", err));
    for (uint32_t w = 0; w < n_window; w++) {
        if (!moec_part_has(windows->part, windows->parts, w))
            continue;
        if (!isfinite(nll->reference[w]) || !isfinite(nll->variant[w]) || scored[w] == 0) {
            status = moec_fail(err, MOEC_ERR_FORMAT,
                               "window %" PRIu32 " has NLL %g (reference) and %g (variant) over %" PRIu32
                               " tokens, expected finite values over at least one token",
                               w, nll->reference[w], nll->variant[w], scored[w]);
            goto out;
        }
        reference += nll->reference[w];
        compiled += nll->variant[w];
        sum_kl += nll->kl != NULL ? nll->kl[w] : 0;
        loss->n_token += scored[w];
        units[n++] = (struct unit){.document = windows->documents != NULL ? windows->documents[w] : w,
                                   .window = w,
                                   .difference = nll->variant[w] - nll->reference[w],
                                   .size = scored[w]};
    }
    if (n == 0) {
        status = moec_fail(err, MOEC_ERR_USAGE,
                           "one of the compared parts of the data has no windows: give more text");
        goto out;
    }
    const double n_token = (double)loss->n_token;
    loss->n_window = n;
    loss->reference = exp(reference / n_token);
    loss->compiled = exp(compiled / n_token);
    loss->loss = expm1((compiled - reference) / n_token);
    loss->mean_kl = sum_kl / n_token;
    loss->low = loss->high = loss->loss;
    loss->n_unit = windows->documents != NULL ? join_documents(units, n) : n;
    estimate(units, loss->n_unit, &loss->difference, &loss->error, &loss->skewness);
    if (options->confidence != MOEC_CONFIDENCE_POINT && loss->n_unit > 1)
        find_ends(loss, options->confidence);
    else if (options->confidence != MOEC_CONFIDENCE_POINT) {
        loss->low = -1;
        loss->high = INFINITY;
    }
out:
    free(units);
    return status;
}

/* ---- scores ---- */

/* Resamples whose error is smaller than this share of the sample's count as if it were that: where few rows
 * change at all, some resamples have none of them and no error to divide by. */
#define LEAST_ERROR 0.5

static enum moec_status bootstrap_scores(const struct unit *rows, uint32_t n,
                                         const struct moec_loss_options *options, struct moec_loss *loss,
                                         struct moec_error *err)
{
    double *off = NULL, ratio, error, skewness;
    struct unit *drawn = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc((void **)&off, options->n_resample, sizeof *off, "resamples", err));
    MOEC_TRY_OUT(moec_alloc((void **)&drawn, n, sizeof *drawn, "a resample", err));
    struct moec_random random = {options->seed};
    for (uint32_t r = 0; r < options->n_resample;) {
        double size = 0;
        for (uint32_t i = 0; i < n; i++) {
            drawn[i] = rows[moec_random_below(&random, n)];
            size += drawn[i].size;
        }
        if (!(size > 0))
            continue;
        estimate(drawn, n, &ratio, &error, &skewness);
        off[r++] = (ratio - loss->difference) / fmax(error, LEAST_ERROR * loss->error);
    }
    moec_sort_doubles(off, options->n_resample);
    loss->high = loss->difference -
                 loss->error * moec_quantile_of_sorted(off, options->n_resample, 1 - options->confidence);
    loss->low = loss->difference -
                loss->error * moec_quantile_of_sorted(off, options->n_resample, options->confidence);
out:
    free(off);
    free(drawn);
    return status;
}

/* Rows of which none changed may all be luck: with this confidence fewer than the returned share change. */
static double unseen_share(uint32_t n, double confidence)
{
    return -expm1(log1p(-confidence) / n);
}

enum moec_status moec_loss_measure_scores(const double *reference, const double *variant, uint32_t n_row,
                                          const struct moec_loss_options *options, struct moec_loss *loss,
                                          struct moec_error *err)
{
    struct unit *rows = NULL;
    double theirs = 0, ours = 0;
    *loss = (struct moec_loss){.n_window = n_row};
    MOEC_TRY(check_options(options, err));
    for (uint32_t i = 0; i < n_row; i++) {
        if (!isfinite(reference[i]) || !isfinite(variant[i]) || reference[i] < 0 || variant[i] < 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "row %" PRIu32 " has scores %g (reference) and %g (variant), expected finite "
                             "scores of 0 or more",
                             i, reference[i], variant[i]);
        theirs += reference[i];
        ours += variant[i];
    }
    if (n_row == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "the data has no row, so the two models cannot be compared");
    if (!(theirs > 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the reference scores 0 on every row, so no loss can be computed");
    loss->reference = theirs / n_row;
    loss->compiled = ours / n_row;
    loss->loss = loss->low = loss->high = (theirs - ours) / theirs;
    loss->n_unit = n_row;
    if (options->confidence == MOEC_CONFIDENCE_POINT)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&rows, n_row, sizeof *rows, "rows of a part", err));
    for (uint32_t i = 0; i < n_row; i++)
        rows[i] = (struct unit){.difference = reference[i] - variant[i], .size = reference[i]};
    estimate(rows, n_row, &loss->difference, &loss->error, &loss->skewness);
    enum moec_status status = MOEC_OK;
    if (n_row == 1) {
        loss->low = -INFINITY;
        loss->high = 1;
    } else if (loss->error > 0) {
        status = bootstrap_scores(rows, n_row, options, loss, err);
    } else if (options->is_promise) {
        loss->high = fmax(loss->high, unseen_share(n_row, options->confidence));
    }
    free(rows);
    return status;
}

uint64_t moec_loss_windows_needed(const struct moec_loss *loss, double target, double n_errors)
{
    const double margin = n_errors * loss->error;
    if (loss->high + margin <= target)
        return loss->n_window;
    double room = target - loss->loss;
    if (!(room > 0))
        return 0;
    double ratio = (loss->high - loss->loss + margin) / room;
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
