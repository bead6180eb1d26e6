/* Each expert's options are thinned to the lower convex hull of KL over bytes. Steps of all hulls are taken
 * by KL saved a byte, until the budget is met. Where a step ends on the budget, the plan is optimal. Ties go
 * to the lower expert, so that plans repeat. KL and loss are mapped by straight lines through the uniform
 * measurements, in log-loss. */
#include "profiler/profile/mixed_plan.h"

#include "formats/base/memory.h"
#include "formats/model/record.h"
#include "profiler/evaluate/metrics.h"

#include <math.h>
#include <string.h>

static double total(const double *values, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += values[i];
    return sum;
}

/* Of the first n windows. */
static double scored_tokens(const struct moec_profile *profile, uint32_t n_window)
{
    double n = 0;
    for (uint32_t w = 0; w < n_window; w++)
        n += profile->window_scored[w];
    return n;
}

/* ---- the model of losses ---- */

static enum moec_status list_options(const struct moec_profile *profile, struct moec_mixed_model *model,
                                     struct moec_error *err)
{
    uint32_t at = 0;
    for (uint32_t b = 0; b <= profile->n_bits; b++) {
        bool is_baseline = b == profile->n_bits;
        uint32_t bits = is_baseline ? profile->baseline_bits : profile->bits[b];
        for (at = model->n_option; at > 0 && model->bits[at - 1] > bits; at--)
            model->bits[at] = model->bits[at - 1];
        model->bits[at] = bits;
        model->n_option++;
    }
    for (uint32_t o = 0; o < model->n_option; o++) {
        struct moec_codec codec, codecs[MOEC_CODEC_TABLE];
        if (moec_quantizer_makes_path((enum moec_quantizer)profile->quantizer, model->bits[o])) {
            MOEC_TRY(moec_profile_codecs(profile, codecs, err));
            model->record_bytes[o] =
                moec_record_layout_make(&profile->config, codecs[model->bits[o]]).n_bytes;
            continue;
        }
        MOEC_TRY(moec_codec_for_bits(model->bits[o], (enum moec_scheme)profile->scheme, profile->group,
                                     (enum moec_dtype)profile->config.expert_dtype, &codec, err));
        model->record_bytes[o] = moec_record_layout_make(&profile->config, codec).n_bytes;
    }
    return MOEC_OK;
}

/* The whole model at an option's bits, NULL when it was not measured. */
static const struct moec_measure *whole_model(const struct moec_profile *profile, uint32_t bits)
{
    if (bits == profile->baseline_bits)
        return &profile->baseline;
    for (uint32_t u = 0; u < profile->n_uniform; u++)
        if (profile->uniform_bits[u] == bits)
            return &profile->uniform[u];
    return NULL;
}

/* Effects of single experts at bits[b] into column `option`; unreached ones as the largest of their layer. */
static void fill_effects(const struct moec_profile *profile, uint32_t b, uint32_t option,
                         struct moec_mixed_model *model)
{
    const uint32_t n_window = profile->n_sensitivity_window;
    const double n_token = scored_tokens(profile, n_window);
    const double baseline_kl = total(profile->baseline.kl, n_window) / n_token;
    double largest = 0;
    for (uint32_t s = 0; s < profile->n_moe_layer; s++) {
        double layer_largest = 0;
        bool any = false;
        for (uint32_t pass = 0; pass < 2; pass++)
            for (uint32_t e = 0; e < profile->n_expert; e++) {
                double *effect =
                    &model->effects[((size_t)s * profile->n_expert + e) * model->n_option + option];
                bool reached = moec_profile_expert_reached(profile, s, e);
                if (pass == 1 && !reached)
                    *effect = any ? layer_largest : largest;
                if (pass == 1 || !reached)
                    continue;
                const double *kl = moec_profile_expert_row(profile, profile->expert_kl, s, e, b);
                *effect = total(kl, n_window) / n_token - baseline_kl;
                layer_largest = any && layer_largest > *effect ? layer_largest : *effect;
                any = true;
            }
        largest = any && layer_largest > largest ? layer_largest : largest;
    }
}

/* Scales a column so that all experts together do what the whole model was measured to do. */
static void scale_effects(const struct moec_profile *profile, uint32_t option, struct moec_mixed_model *model)
{
    double sum = 0;
    for (uint32_t i = 0; i < model->n_expert; i++)
        sum += model->effects[(size_t)i * model->n_option + option];
    const double joint = model->kl[option] - model->baseline_kl;
    model->additivity[option] = 1;
    if (whole_model(profile, model->bits[option]) == NULL || !(joint * sum > 0))
        return;
    model->additivity[option] = joint / sum;
    for (uint32_t i = 0; i < model->n_expert; i++)
        model->effects[(size_t)i * model->n_option + option] *= model->additivity[option];
}

enum moec_status moec_mixed_model_make(const struct moec_profile *profile, struct moec_mixed_model *model,
                                       struct moec_error *err)
{
    const double n_token = scored_tokens(profile, profile->n_window);
    *model = (struct moec_mixed_model){.n_expert = profile->n_moe_layer * profile->n_expert};
    model->baseline_kl = total(profile->baseline.kl, profile->n_window) / n_token;
    MOEC_TRY(list_options(profile, model, err));
    MOEC_TRY(moec_alloc((void **)&model->effects, (uint64_t)model->n_expert * model->n_option, sizeof(double),
                        "effects of experts", err));
    for (uint32_t o = 0; o < model->n_option; o++) {
        const struct moec_measure *whole = whole_model(profile, model->bits[o]);
        model->kl[o] = whole == NULL ? NAN : total(whole->kl, profile->n_window) / n_token;
        model->loss[o] = whole == NULL ? NAN : moec_profile_loss(profile, whole->nll);
        for (uint32_t b = 0; b < profile->n_bits; b++)
            if (profile->bits[b] == model->bits[o]) {
                fill_effects(profile, b, o, model);
                scale_effects(profile, o, model);
            }
        if (model->bits[o] == profile->baseline_bits)
            model->additivity[o] = 1;
    }
    return MOEC_OK;
}

void moec_mixed_model_release(struct moec_mixed_model *model)
{
    free(model->effects);
    *model = (struct moec_mixed_model){0};
}

uint32_t moec_mixed_option(const struct moec_mixed_model *model, uint32_t bits)
{
    uint32_t option = 0;
    while (option < model->n_option && model->bits[option] != bits)
        option++;
    return option;
}

/* ---- planning ---- */

/* Points of a lower convex hull of falling y over rising x; the first point always belongs to it. */
static uint32_t lower_hull(const double *x, const double *y, uint32_t n, uint32_t *hull)
{
    uint32_t n_hull = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (n_hull > 0 && !(y[i] < y[hull[n_hull - 1]]))
            continue;
        while (n_hull > 1) {
            const uint32_t b = hull[n_hull - 1], a = hull[n_hull - 2];
            if ((y[a] - y[b]) * (x[i] - x[a]) > (y[a] - y[i]) * (x[b] - x[a]))
                break;
            n_hull--;
        }
        hull[n_hull++] = i;
    }
    return n_hull;
}

/* From one option of an expert to the next of its hull. */
struct step {
    double gain; /* fall of KL a byte */
    uint32_t expert;
    uint8_t from, to; /* options */
};

static int compare_steps(const void *a, const void *b)
{
    const struct step *x = a, *y = b;
    if (x->gain != y->gain)
        return x->gain > y->gain ? -1 : 1;
    if (x->expert != y->expert)
        return x->expert < y->expert ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

static size_t list_steps(const struct moec_mixed_model *model, struct step *steps)
{
    size_t n = 0;
    double bytes[MOEC_MIXED_MAX_OPTIONS];
    for (uint32_t o = 0; o < model->n_option; o++)
        bytes[o] = (double)model->record_bytes[o];
    for (uint32_t i = 0; i < model->n_expert; i++) {
        const double *effects = model->effects + (size_t)i * model->n_option;
        uint32_t hull[MOEC_MIXED_MAX_OPTIONS];
        const uint32_t n_hull = lower_hull(bytes, effects, model->n_option, hull);
        for (uint32_t h = 0; h + 1 < n_hull; h++) {
            const uint32_t from = hull[h], to = hull[h + 1];
            steps[n++] = (struct step){.gain = (effects[from] - effects[to]) / (bytes[to] - bytes[from]),
                                       .expert = i,
                                       .from = (uint8_t)from,
                                       .to = (uint8_t)to};
        }
    }
    qsort(steps, n, sizeof *steps, compare_steps);
    return n;
}

enum moec_status moec_mixed_plan(const struct moec_mixed_model *model, double kl_budget,
                                 struct moec_mixed_plan *plan, struct moec_error *err)
{
    struct step *steps = NULL;
    enum moec_status status = MOEC_OK;
    *plan = (struct moec_mixed_plan){.kl = model->baseline_kl};
    MOEC_TRY_OUT(moec_alloc((void **)&plan->assignment, model->n_expert, 1, "an assignment", err));
    MOEC_TRY_OUT(moec_alloc((void **)&steps, (uint64_t)model->n_expert * model->n_option, sizeof *steps,
                            "steps of a plan", err));
    for (uint32_t i = 0; i < model->n_expert; i++) {
        plan->assignment[i] = (uint8_t)model->bits[0];
        plan->kl += model->effects[(size_t)i * model->n_option];
        plan->n_bytes += model->record_bytes[0];
    }
    const size_t n = list_steps(model, steps);
    for (size_t i = 0; i < n && plan->kl > kl_budget; i++) {
        const double *effects = model->effects + (size_t)steps[i].expert * model->n_option;
        plan->assignment[steps[i].expert] = (uint8_t)model->bits[steps[i].to];
        plan->kl += effects[steps[i].to] - effects[steps[i].from];
        plan->n_bytes += model->record_bytes[steps[i].to] - model->record_bytes[steps[i].from];
    }
out:
    free(steps);
    if (status != MOEC_OK)
        moec_mixed_plan_release(plan);
    return status;
}

void moec_mixed_plan_release(struct moec_mixed_plan *plan)
{
    free(plan->assignment);
    *plan = (struct moec_mixed_plan){0};
}

double moec_mixed_predict(const struct moec_mixed_model *model, const uint8_t *assignment)
{
    double kl = model->baseline_kl;
    for (uint32_t i = 0; i < model->n_expert; i++) {
        const uint32_t option = moec_mixed_option(model, assignment[i]);
        if (option == model->n_option)
            return NAN;
        kl += model->effects[(size_t)i * model->n_option + option];
    }
    return kl;
}

/* ---- KL and loss ---- */

struct point {
    double x, y;
};

/* Points of the uniform measurements with x rising from the origin, y being the other of KL and log-loss. */
static uint32_t curve(const struct moec_mixed_model *model, bool from_kl, struct point *points)
{
    uint32_t n = 0;
    for (uint32_t o = 0; o < model->n_option; o++) {
        const double kl = model->kl[o], log_loss = log1p(model->loss[o]);
        if (!(kl > 0 && log_loss > 0))
            continue;
        const struct point point = {from_kl ? kl : log_loss, from_kl ? log_loss : kl};
        uint32_t at = n++;
        for (; at > 0 && points[at - 1].x > point.x; at--)
            points[at] = points[at - 1];
        points[at] = point;
    }
    return n;
}

static double follow(const struct point *points, uint32_t n, double x)
{
    struct point before = {0, 0};
    if (n == 0)
        return x;
    for (uint32_t i = 0; i < n; i++) {
        if (x <= points[i].x && points[i].x > before.x)
            return before.y + (x - before.x) / (points[i].x - before.x) * (points[i].y - before.y);
        before = points[i];
    }
    return x / before.x * before.y;
}

double moec_mixed_loss(const struct moec_mixed_model *model, double kl)
{
    struct point points[MOEC_MIXED_MAX_OPTIONS];
    const uint32_t n = curve(model, true, points);
    return expm1(follow(points, n, kl));
}

double moec_mixed_kl(const struct moec_mixed_model *model, double loss)
{
    struct point points[MOEC_MIXED_MAX_OPTIONS];
    const uint32_t n = curve(model, false, points);
    return follow(points, n, log1p(loss));
}

double moec_mixed_blind_bytes(const struct moec_mixed_model *model, double kl)
{
    double bytes[MOEC_MIXED_MAX_OPTIONS], kls[MOEC_MIXED_MAX_OPTIONS];
    uint32_t n = 0, hull[MOEC_MIXED_MAX_OPTIONS];
    for (uint32_t o = 0; o < model->n_option; o++)
        if (isfinite(model->kl[o])) {
            bytes[n] = (double)model->record_bytes[o] * model->n_expert;
            kls[n++] = model->kl[o];
        }
    const uint32_t n_hull = n == 0 ? 0 : lower_hull(bytes, kls, n, hull);
    for (uint32_t h = 0; h < n_hull; h++) {
        const uint32_t b = hull[h];
        if (kl < kls[b])
            continue;
        if (h == 0)
            return bytes[b];
        const uint32_t a = hull[h - 1];
        return bytes[a] + (kls[a] - kl) / (kls[a] - kls[b]) * (bytes[b] - bytes[a]);
    }
    return NAN;
}
