/* Correlations leave out NaN, which is the effect of an expert that one of the data did not reach. An
 * assignment that a profile has measured is taken before one that it would plan. What the other profile would
 * choose of the same size is found by bisection of the KL that its plan may spend. Tables of paths are merged
 * in the order of their keys and weighted by B's counts. */
#include "profiler/report/compare.h"

#include "formats/base/memory.h"
#include "profiler/common/correlation.h"
#include "profiler/common/quantiles.h"
#include "profiler/evaluate/metrics.h"
#include "profiler/profile/mixed_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- may they be compared? ---- */

static enum moec_status check_shapes(const struct moec_profile *a, const struct moec_profile *b,
                                     struct moec_error *err)
{
    const struct {
        const char *what;
        uint32_t a, b;
    } pairs[] = {{"layers with experts", a->n_moe_layer, b->n_moe_layer},
                 {"experts per layer", a->n_expert, b->n_expert},
                 {"experts per token", a->top_k, b->top_k}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].a != pairs[i].b)
            return moec_fail(err, MOEC_ERR_MISMATCH,
                             "the profiles are of models of different shapes: %" PRIu32 " and %" PRIu32
                             " %s; compare profiles of models of the same shape",
                             pairs[i].a, pairs[i].b, pairs[i].what);
    for (uint32_t s = 0; s < a->n_moe_layer; s++)
        if (a->moe_layers[s] != b->moe_layers[s])
            return moec_fail(err, MOEC_ERR_MISMATCH,
                             "the profiles are of models of different shapes: MoE layer number %" PRIu32
                             " is layer %" PRIu32 " in the first and %" PRIu32 " in the second",
                             s, a->moe_layers[s], b->moe_layers[s]);
    return MOEC_OK;
}

static enum moec_status match_bits(struct moec_compare *c, struct moec_error *err)
{
    for (uint32_t i = 0; i < c->a->n_bits; i++)
        for (uint32_t j = 0; j < c->b->n_bits; j++)
            if (c->a->bits[i] == c->b->bits[j]) {
                struct moec_compare_bits *bits = &c->bits[c->n_bits];
                *bits = (struct moec_compare_bits){.bits = c->a->bits[i], .a_index = i, .b_index = j};
                MOEC_TRY(moec_alloc((void **)&bits->layers, 3 * (uint64_t)c->a->n_moe_layer,
                                    sizeof *bits->layers, "correlations of layers", err));
                bits->layer_halves_a = bits->layers + c->a->n_moe_layer;
                bits->layer_halves_b = bits->layer_halves_a + c->a->n_moe_layer;
                c->n_bits++;
            }
    if (c->n_bits == 0)
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "the profiles have no bitwidth in common at which single experts were measured "
                         "(lowest: %" PRIu32 " and %" PRIu32 " bits); profile one of the models again with a "
                         "bitwidth of the other",
                         c->a->bits[0], c->b->bits[0]);
    return MOEC_OK;
}

/* What tells the two apart, for people. */
static void name_profiles(struct moec_compare *c)
{
    const struct moec_profile *const profiles[] = {c->a, c->b};
    char *const names[] = {c->name_a, c->name_b};
    for (int i = 0; i < 2; i++) {
        const struct moec_profile *p = profiles[i];
        char *name = names[i];
        const size_t room = sizeof c->name_a;
        (void)snprintf(name, room, "'%.200s'", p->data_name);
        if (!c->same_model)
            (void)snprintf(name + strlen(name), room - strlen(name), ", model %02x%02x%02x%02x",
                           p->model_digest[0], p->model_digest[1], p->model_digest[2], p->model_digest[3]);
        if (!c->same_quantizer)
            (void)snprintf(name + strlen(name), room - strlen(name), ", %s, group %u, baseline %" PRIu32,
                           moec_scheme_name((enum moec_scheme)p->scheme), (unsigned)p->group,
                           p->baseline_bits);
        if (!c->same_mode)
            (void)snprintf(name + strlen(name), room - strlen(name), ", %s",
                           p->sensitivity == MOEC_SENSITIVITY_FAST ? "estimated" : "exact");
    }
}

/* ---- effects ---- */

/* KL that expert (s, e) adds to the baseline's at bits[b], nats a token of all windows, or of the even
 * (`part` SEARCH) or odd ones: halves of the same number, whatever the windows are for. */
static double effect(const struct moec_profile *p, enum moec_part part, uint32_t s, uint32_t e, uint32_t b)
{
    const double *kl = moec_profile_expert_row(p, p->expert_kl, s, e, b);
    double sum = 0, n_token = 0;
    for (uint32_t w = 0; w < p->n_sensitivity_window; w++) {
        if (!moec_part_has(part, NULL, w))
            continue;
        sum += kl[w] - p->baseline.kl[w];
        n_token += p->window_scored[w];
    }
    const double sign = p->bits[b] > p->baseline_bits ? -1 : 1;
    return n_token > 0 ? sign * sum / n_token : NAN;
}

static bool reached(const struct moec_compare *c, uint32_t s, uint32_t e)
{
    return moec_profile_expert_reached(c->a, s, e) && moec_profile_expert_reached(c->b, s, e);
}

/* Effects (S, E); NaN, which correlations leave out, where either data did not reach the expert. */
static void fill(const struct moec_compare *c, const struct moec_profile *p, enum moec_part part, uint32_t b,
                 double *effects)
{
    for (uint32_t s = 0; s < p->n_moe_layer; s++)
        for (uint32_t e = 0; e < p->n_expert; e++)
            effects[(size_t)s * p->n_expert + e] = reached(c, s, e) ? effect(p, part, s, e, b) : NAN;
}

double moec_compare_effect(const struct moec_compare *compare, const struct moec_profile *profile, uint32_t s,
                           uint32_t e, uint32_t b)
{
    return reached(compare, s, e) ? effect(profile, MOEC_PART_ALL, s, e, b) : NAN;
}

/* Correlation (S) of effects (S, E), layer by layer. */
static enum moec_status correlate_layers(const struct moec_compare *c, const double *a, const double *b,
                                         double *layers, struct moec_error *err)
{
    const uint32_t n_expert = c->a->n_expert;
    for (uint32_t s = 0; s < c->a->n_moe_layer; s++)
        MOEC_TRY(moec_correlation_spearman(a + (size_t)s * n_expert, b + (size_t)s * n_expert, n_expert,
                                           &layers[s], err));
    return MOEC_OK;
}

static void sum_up_layers(const struct moec_compare *c, struct moec_compare_bits *bits, double *scratch)
{
    uint32_t n = 0;
    bits->layer_median = NAN;
    for (uint32_t s = 0; s < c->a->n_moe_layer; s++) {
        const double rank = bits->layers[s];
        if (isnan(rank))
            continue;
        if (!(rank >= bits->layers[bits->lowest]))
            bits->lowest = s;
        scratch[n++] = rank;
    }
    moec_sort_doubles(scratch, n);
    if (n > 0)
        bits->layer_median = n % 2 ? scratch[n / 2] : (scratch[n / 2 - 1] + scratch[n / 2]) / 2;
}

static enum moec_status correlate_bits(struct moec_compare *c, struct moec_compare_bits *bits, double *a,
                                       double *b, struct moec_error *err)
{
    const struct {
        const struct moec_profile *p;
        uint32_t index;
        double *pooled, *layers;
    } halves[] = {{c->a, bits->a_index, &bits->halves_a, bits->layer_halves_a},
                  {c->b, bits->b_index, &bits->halves_b, bits->layer_halves_b}};
    for (int i = 0; i < 2; i++) {
        fill(c, halves[i].p, MOEC_PART_SEARCH, halves[i].index, a);
        fill(c, halves[i].p, MOEC_PART_CERTIFICATE, halves[i].index, b);
        MOEC_TRY(moec_correlation_spearman(a, b, c->n_expert, halves[i].pooled, err));
        MOEC_TRY(correlate_layers(c, a, b, halves[i].layers, err));
    }
    fill(c, c->a, MOEC_PART_ALL, bits->a_index, a);
    fill(c, c->b, MOEC_PART_ALL, bits->b_index, b);
    MOEC_TRY(moec_correlation_spearman(a, b, c->n_expert, &bits->pooled, err));
    return correlate_layers(c, a, b, bits->layers, err);
}

/* ---- experts that differ ---- */

static double gap(const struct moec_compare_expert *expert)
{
    return fabs(expert->rank_a - expert->rank_b);
}

static enum moec_status list_experts(struct moec_compare *c, const double *a, const double *b,
                                     struct moec_error *err)
{
    double *values = NULL;
    uint32_t *place = NULL;
    uint32_t n = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc((void **)&values, 4 * (uint64_t)c->n_expert, sizeof *values, "ranks", err));
    MOEC_TRY_OUT(moec_alloc((void **)&place, c->n_expert, sizeof *place, "ranks", err));
    double *x = values, *y = x + c->n_expert, *rank_x = y + c->n_expert, *rank_y = rank_x + c->n_expert;
    for (uint32_t i = 0; i < c->n_expert; i++)
        if (isfinite(a[i]) && isfinite(b[i])) {
            x[n] = -a[i];
            y[n] = -b[i];
            place[n++] = i;
        }
    c->n_reached = n;
    MOEC_TRY_OUT(moec_correlation_ranks(x, n, rank_x, err));
    MOEC_TRY_OUT(moec_correlation_ranks(y, n, rank_y, err));
    for (uint32_t i = 0; i < n; i++) {
        const struct moec_compare_expert expert = {.layer = c->a->moe_layers[place[i] / c->a->n_expert],
                                                   .expert = place[i] % c->a->n_expert,
                                                   .rank_a = rank_x[i],
                                                   .rank_b = rank_y[i],
                                                   .effect_a = a[place[i]],
                                                   .effect_b = b[place[i]]};
        uint32_t at = c->n_listed;
        if (at == MOEC_COMPARE_LISTED && gap(&expert) <= gap(&c->listed[at - 1]))
            continue;
        if (at == MOEC_COMPARE_LISTED)
            at--;
        else
            c->n_listed++;
        for (; at > 0 && gap(&expert) > gap(&c->listed[at - 1]); at--)
            c->listed[at] = c->listed[at - 1];
        c->listed[at] = expert;
    }
out:
    free(values);
    free(place);
    return status;
}

/* ---- routing ---- */

static enum moec_status compare_activations(struct moec_compare *c, double *a, double *b,
                                            struct moec_error *err)
{
    const uint32_t n_expert = c->a->n_expert;
    c->activation_overlap = 0;
    for (uint32_t s = 0; s < c->a->n_moe_layer; s++) {
        double sum_a = 0, sum_b = 0;
        for (uint32_t e = 0; e < n_expert; e++) {
            sum_a += (double)c->a->activations[(size_t)s * n_expert + e];
            sum_b += (double)c->b->activations[(size_t)s * n_expert + e];
        }
        for (uint32_t e = 0; e < n_expert; e++) {
            const size_t i = (size_t)s * n_expert + e;
            a[i] = sum_a > 0 ? (double)c->a->activations[i] / sum_a : NAN;
            b[i] = sum_b > 0 ? (double)c->b->activations[i] / sum_b : NAN;
            c->activation_overlap += fmin(a[i], b[i]) / c->a->n_moe_layer;
        }
    }
    return moec_correlation_spearman(a, b, c->n_expert, &c->activation_rank, err);
}

static int compare_keys(const struct moec_path_key *a, const struct moec_path_key *b)
{
    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return a->second < b->second ? -1 : a->second > b->second;
}

/* How many of the first k experts of one list stand among the first k of the other. */
static uint32_t common_values(const struct moec_path_value *a, const struct moec_path_value *b, uint32_t k)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < k; i++)
        for (uint32_t j = 0; j < k; j++)
            n += a[i].expert == b[j].expert && a[i].expert != MOEC_PATH_NONE;
    return n;
}

/* Both tables are sorted by key. */
static void compare_paths(struct moec_compare *c)
{
    const struct moec_path_table *a = &c->a->paths, *b = &c->b->paths;
    const uint32_t k = a->top_k < a->n_value ? a->top_k : a->n_value;
    double all = 0, common = 0, overlap = 0;
    for (uint32_t i = 0, j = 0; j < b->n_key; j++) {
        const double count = b->keys[j].count;
        all += count;
        while (i < a->n_key && compare_keys(&a->keys[i], &b->keys[j]) < 0)
            i++;
        if (i == a->n_key || compare_keys(&a->keys[i], &b->keys[j]) != 0)
            continue;
        common += count;
        overlap += count / k *
                   common_values(a->values + (size_t)i * a->n_value, b->values + (size_t)j * b->n_value, k);
    }
    c->path_coverage = all > 0 ? common / all : NAN;
    c->path_overlap = common > 0 ? overlap / common : NAN;
}

/* ---- what it costs ---- */

/* The assignment that a profile measured for a target, or would plan. (n_expert) bits; owned by the plan. */
static enum moec_status chosen(const struct moec_profile *p, const struct moec_mixed_model *model,
                               uint32_t target, struct moec_mixed_plan *plan, struct moec_error *err)
{
    const struct moec_study *study = moec_studies_find(&p->studies, "mixed/assignment");
    MOEC_TRY(moec_mixed_plan(model, moec_mixed_kl(model, moec_mixed_targets[target]), plan, err));
    if (study == NULL || moec_study_count(study) != (uint64_t)MOEC_MIXED_TARGETS * model->n_expert)
        return MOEC_OK;
    uint64_t n_bytes = 0;
    const double *stored = study->values + (size_t)target * model->n_expert;
    for (uint32_t i = 0; i < model->n_expert; i++) {
        const uint32_t option = stored[i] > 0 && stored[i] <= 16
                                    ? moec_mixed_option(model, (uint32_t)stored[i])
                                    : model->n_option;
        if (option == model->n_option)
            return MOEC_OK;
        n_bytes += model->record_bytes[option];
    }
    for (uint32_t i = 0; i < model->n_expert; i++)
        plan->assignment[i] = (uint8_t)stored[i];
    plan->n_bytes = n_bytes;
    plan->kl = moec_mixed_predict(model, plan->assignment);
    return MOEC_OK;
}

/* KL of the best plan of a model within these bytes, by bisection of what it may spend. */
static enum moec_status best_within(const struct moec_mixed_model *model, double n_bytes, double *kl,
                                    struct moec_error *err)
{
    double low = 0, high = fabs(model->baseline_kl);
    *kl = NAN;
    for (uint32_t o = 0; o < model->n_option; o++)
        high = model->kl[o] > high ? model->kl[o] : high;
    for (int i = 0; i < 40; i++) {
        struct moec_mixed_plan plan;
        const double middle = i == 0 ? high : (low + high) / 2;
        MOEC_TRY(moec_mixed_plan(model, middle, &plan, err));
        if ((double)plan.n_bytes <= n_bytes) {
            *kl = plan.kl;
            high = middle;
        } else {
            low = middle;
        }
        moec_mixed_plan_release(&plan);
    }
    return MOEC_OK;
}

/* KL at which mixing regardless of sensitivity takes these bytes; falls as bytes rise. */
static double blind_within(const struct moec_mixed_model *model, double n_bytes)
{
    double low = 0, high = 0;
    for (uint32_t o = 0; o < model->n_option; o++)
        high = model->kl[o] > high ? model->kl[o] : high;
    if (!(moec_mixed_blind_bytes(model, high) <= n_bytes))
        return NAN;
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        if (moec_mixed_blind_bytes(model, middle) <= n_bytes)
            high = middle;
        else
            low = middle;
    }
    return high;
}

static enum moec_status cross(const struct moec_profile *from, const struct moec_mixed_model *own,
                              const struct moec_mixed_model *other, struct moec_compare_cross *crosses,
                              struct moec_error *err)
{
    for (uint32_t t = 0; t < MOEC_MIXED_TARGETS; t++) {
        struct moec_mixed_plan plan;
        double kl = NAN, n_bytes = 0;
        MOEC_TRY(chosen(from, own, t, &plan, err));
        struct moec_compare_cross *c = &crosses[t];
        *c = (struct moec_compare_cross){.target = moec_mixed_targets[t],
                                         .own_loss = moec_mixed_loss(own, plan.kl)};
        const double there = moec_mixed_predict(other, plan.assignment);
        for (uint32_t i = 0; i < own->n_expert; i++) {
            const uint32_t option = moec_mixed_option(other, plan.assignment[i]);
            n_bytes += option < other->n_option ? (double)other->record_bytes[option] : NAN;
        }
        moec_mixed_plan_release(&plan);
        c->loss = moec_mixed_loss(other, there);
        MOEC_TRY(best_within(other, n_bytes, &kl, err));
        c->planned_loss = moec_mixed_loss(other, kl);
        c->blind_loss = moec_mixed_loss(other, blind_within(other, n_bytes));
    }
    return MOEC_OK;
}

static enum moec_status cross_both(struct moec_compare *c, struct moec_error *err)
{
    struct moec_mixed_model a = {0}, b = {0};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_mixed_model_make(c->a, &a, err));
    MOEC_TRY_OUT(moec_mixed_model_make(c->b, &b, err));
    MOEC_TRY_OUT(cross(c->a, &a, &b, c->a_on_b, err));
    MOEC_TRY_OUT(cross(c->b, &b, &a, c->b_on_a, err));
out:
    moec_mixed_model_release(&a);
    moec_mixed_model_release(&b);
    return status;
}

/* ---- the whole ---- */

enum moec_status moec_compare_make(const struct moec_profile *a, const struct moec_profile *b,
                                   struct moec_compare *compare, struct moec_error *err)
{
    struct moec_compare *c = compare;
    double *x = NULL, *y = NULL;
    enum moec_status status = MOEC_OK;
    *c = (struct moec_compare){.a = a, .b = b, .n_expert = a->n_moe_layer * a->n_expert};
    MOEC_TRY(check_shapes(a, b, err));
    c->same_model = memcmp(a->model_digest, b->model_digest, sizeof a->model_digest) == 0;
    c->same_data = memcmp(a->data_digest, b->data_digest, sizeof a->data_digest) == 0;
    c->same_quantizer =
        a->scheme == b->scheme && a->group == b->group && a->baseline_bits == b->baseline_bits;
    c->same_mode = a->sensitivity == b->sensitivity;
    name_profiles(c);
    MOEC_TRY_OUT(match_bits(c, err));
    const uint64_t room = c->n_expert > a->n_moe_layer ? c->n_expert : a->n_moe_layer;
    MOEC_TRY_OUT(moec_alloc((void **)&x, 2 * room, sizeof *x, "effects of experts", err));
    MOEC_TRY_OUT(moec_alloc((void **)&y, room, sizeof *y, "effects of experts", err));
    for (uint32_t i = 0; i < c->n_bits; i++) {
        MOEC_TRY_OUT(correlate_bits(c, &c->bits[i], x, y, err));
        sum_up_layers(c, &c->bits[i], x + room);
        if (i == 0)
            MOEC_TRY_OUT(list_experts(c, x, y, err));
    }
    MOEC_TRY_OUT(compare_activations(c, x, y, err));
    compare_paths(c);
    status = cross_both(c, err);
out:
    free(x);
    free(y);
    if (status != MOEC_OK)
        moec_compare_release(c);
    return status;
}

void moec_compare_release(struct moec_compare *compare)
{
    for (uint32_t i = 0; i < compare->n_bits; i++)
        free(compare->bits[i].layers);
    *compare = (struct moec_compare){0};
}
