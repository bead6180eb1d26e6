/* A correlation is judged against what two measurements of the same would have, which halves tell by the
 * Spearman-Brown formula. Within 0.02 of that there is no difference; from 0.9 on it is little. Words are of
 * the first bitwidth that both have, and of the target in the middle. */
#include "profiler/report/compare.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- in words ---- */

/* What the two differ in, as a subject for sentences. */
static const char *difference(const struct moec_compare *c)
{
    const int n = !c->same_model + !c->same_data + !c->same_quantizer + !c->same_mode;
    if (n == 0)
        return "the run";
    if (n > 1)
        return "what differs";
    return !c->same_model       ? "the model"
           : !c->same_data      ? "the data"
           : !c->same_quantizer ? "the quantiser"
                                : "estimating";
}

/* How two full measurements of the same thing would agree, from how halves of one profile do (Spearman-Brown:
 * 2 r / (1 + r)); the geometric mean of both profiles. 1 where halves say nothing. */
static double ceiling(const struct moec_compare_bits *bits)
{
    const double halves[] = {bits->halves_a, bits->halves_b};
    double product = 1;
    for (int i = 0; i < 2; i++)
        product *= isnan(halves[i]) ? 1 : halves[i] > 0 ? 2 * halves[i] / (1 + halves[i]) : 0;
    return sqrt(product);
}

/* Whether it matters which of the two is used: the order of experts, and what one's choice loses on the
 * other. */
static void describe_answer(const struct moec_compare *c, struct moec_paragraphs *text)
{
    const struct moec_compare_bits *bits = &c->bits[0];
    const struct moec_compare_cross *cross = &c->a_on_b[MOEC_MIXED_TARGETS / 2];
    if (isnan(bits->pooled))
        return;
    const double best = ceiling(bits);
    moec_paragraph_begin(
        text,
        "%s: A and B rank experts with a correlation of %.2f; two profiles of the same model and data would "
        "have about %.2f.",
        bits->pooled >= best - 0.02 ? "No difference to speak of"
        : bits->pooled >= 0.9       ? "Little difference"
                                    : "They differ",
        bits->pooled, best);
    if (!isnan(cross->loss) && !isnan(cross->planned_loss))
        moec_paragraph_begin(text,
                             "Bitwidths chosen on A for %.0f%% lose %.2f%% on B, where B's own choice of "
                             "that size loses %.2f%%.",
                             100 * cross->target, 100 * cross->loss, 100 * cross->planned_loss);
}

static void describe_conclusion(const struct moec_compare *c, struct moec_paragraphs *text)
{
    const struct moec_compare_bits *bits = &c->bits[0];
    moec_paragraph_begin(text, "Comparison of A, %s, with B, %s: ", c->name_a, c->name_b);
    if (isnan(bits->pooled)) {
        moec_paragraph_add(text, "too few experts were reached in both profiles to compare them.");
        return;
    }
    moec_paragraph_add(text,
                       "at %" PRIu32 " bit%s they rank experts with a correlation of %.3f (Spearman, %" PRIu32
                       " of %" PRIu32 " experts). ",
                       bits->bits, bits->bits == 1 ? "" : "s", bits->pooled, c->n_reached, c->n_expert);
    const double best = ceiling(bits);
    moec_paragraph_add(
        text,
        "Two profiles of the same model and data would have a correlation of about %.3f (estimated from the "
        "halves of each)",
        best);
    if (bits->pooled >= best - 0.02)
        moec_paragraph_add(text, ": for the order of experts %s does not matter.", difference(c));
    else if (bits->pooled >= 0.9)
        moec_paragraph_add(text, ": for the order of experts %s matters little.", difference(c));
    else
        moec_paragraph_add(text, ": for the order of experts %s matters.", difference(c));
}

static void describe_ranks(const struct moec_compare *c, struct moec_paragraphs *text)
{
    moec_paragraph_begin(text, "Rank correlation of sensitivities:");
    for (uint32_t i = 0; i < c->n_bits; i++) {
        const struct moec_compare_bits *bits = &c->bits[i];
        moec_paragraph_add(text,
                           "%s at %" PRIu32 " bit%s %.3f pooled (halves of A %.3f, of B %.3f), within layers "
                           "a median of %.3f and a lowest of %.3f (layer %" PRIu32
                           ", where the halves of A have %.3f and those of B %.3f)",
                           i > 0 ? ";" : "", bits->bits, bits->bits == 1 ? "" : "s", bits->pooled,
                           bits->halves_a, bits->halves_b, bits->layer_median, bits->layers[bits->lowest],
                           c->a->moe_layers[bits->lowest], bits->layer_halves_a[bits->lowest],
                           bits->layer_halves_b[bits->lowest]);
    }
    moec_paragraph_add(
        text,
        ". If the halves of one profile disagree, the order is noise; more windows (--samples) settle the "
        "order.");
}

static void describe_routing(const struct moec_compare *c, struct moec_paragraphs *text)
{
    moec_paragraph_begin(text,
                         "Routing: shares of load rank experts with a correlation of %.3f "
                         "and overlap by %.0f%%.",
                         c->activation_rank, 100 * c->activation_overlap);
    if (!isnan(c->path_coverage))
        moec_paragraph_add(text, " A's path table has the keys of %.0f%% of B's tokens",
                           100 * c->path_coverage);
    if (!isnan(c->path_overlap))
        moec_paragraph_add(text, " and predicts %.0f%% of the same experts there", 100 * c->path_overlap);
    if (!isnan(c->path_coverage))
        moec_paragraph_add(text, ".");
}

static void describe_cross(const struct moec_compare_cross *crosses, const char *from, const char *to,
                           struct moec_paragraphs *text)
{
    moec_paragraph_begin(text, "Bitwidths chosen from %s's sensitivities, applied to %s (predicted):", from,
                         to);
    for (uint32_t t = 0; t < MOEC_MIXED_TARGETS; t++) {
        const struct moec_compare_cross *c = &crosses[t];
        moec_paragraph_add(text, "%s for a limit of %.0f%% they lose %.2f%% on %s", t > 0 ? ";" : "",
                           100 * c->target, 100 * c->own_loss, from);
        if (isnan(c->loss)) {
            moec_paragraph_add(text, ", but use bitwidths that %s did not measure", to);
            continue;
        }
        moec_paragraph_add(text, " and %.2f%% on %s", 100 * c->loss, to);
        if (!isnan(c->planned_loss))
            moec_paragraph_add(text, ", where %s's own choice of the same size would lose %.2f%%", to,
                               100 * c->planned_loss);
        if (!isnan(c->blind_loss))
            moec_paragraph_add(text, " and bits assigned regardless of sensitivity %.2f%%",
                               100 * c->blind_loss);
    }
    moec_paragraph_add(text, ".");
}

static void describe_experts(const struct moec_compare *c, struct moec_paragraphs *text)
{
    if (c->n_listed == 0 || c->listed[0].rank_a == c->listed[0].rank_b)
        return;
    moec_paragraph_begin(text,
                         "Most different at %" PRIu32 " bit%s (rank in A and in B of %" PRIu32 ", 1 = most "
                         "sensitive):",
                         c->bits[0].bits, c->bits[0].bits == 1 ? "" : "s", c->n_reached);
    for (uint32_t i = 0; i < c->n_listed; i++)
        moec_paragraph_add(text, "%s layer %" PRIu32 " expert %" PRIu32 " (%.0f and %.0f)", i > 0 ? "," : "",
                           c->listed[i].layer, c->listed[i].expert, c->listed[i].rank_a, c->listed[i].rank_b);
    moec_paragraph_add(text, ".");
}

void moec_compare_describe(const struct moec_compare *compare, struct moec_paragraphs *paragraphs)
{
    describe_answer(compare, paragraphs);
    describe_conclusion(compare, paragraphs);
    describe_ranks(compare, paragraphs);
    describe_cross(compare->a_on_b, "A", "B", paragraphs);
    describe_cross(compare->b_on_a, "B", "A", paragraphs);
    describe_routing(compare, paragraphs);
    describe_experts(compare, paragraphs);
}

/* ---- figures ---- */

/* Effects of A against those of B, one series a bitwidth; only positive ones have a place on the scale. */
static enum moec_status draw_effects(const struct moec_compare *c, struct moec_chart *chart,
                                     struct moec_error *err)
{
    chart->kind = MOEC_CHART_POINTS;
    (void)snprintf(chart->name, sizeof chart->name, "compare_sensitivity");
    (void)snprintf(chart->title, sizeof chart->title, "Sensitivity of each expert, A against B");
    (void)snprintf(
        chart->caption, sizeof chart->caption,
        "One point an expert and bitwidth: the KL that it adds in A (%s) and in B (%s). The closer to the "
        "diagonal, the less it matters which of them is used; Spearman's rank correlation at %" PRIu32
        " bit%s is %.3f.",
        c->name_a, c->name_b, c->bits[0].bits, c->bits[0].bits == 1 ? "" : "s", c->bits[0].pooled);
    (void)snprintf(chart->source, sizeof chart->source, "EdgeMoE Table IV");
    chart->x = (struct moec_chart_axis){
        .name = "effect_a", .label = "KL that the expert adds in A, nats a token", .is_log = true};
    chart->y = (struct moec_chart_axis){
        .name = "effect_b", .label = "KL that the expert adds in B, nats a token", .is_log = true};
    for (uint32_t i = 0; i < c->n_bits && i < MOEC_CHART_MAX_SERIES; i++) {
        struct moec_chart_series *series = NULL;
        char name[MOEC_CHART_LABEL];
        (void)snprintf(name, sizeof name, "%" PRIu32 " bit%s", c->bits[i].bits,
                       c->bits[i].bits == 1 ? "" : "s");
        MOEC_TRY(moec_chart_add_series(chart, name, c->n_expert, &series, err));
        for (uint32_t at = 0; at < c->n_expert; at++) {
            const uint32_t s = at / c->a->n_expert, e = at % c->a->n_expert;
            series->x[at] = moec_compare_effect(c, c->a, s, e, c->bits[i].a_index);
            series->y[at] = moec_compare_effect(c, c->b, s, e, c->bits[i].b_index);
        }
    }
    return MOEC_OK;
}

static enum moec_status draw_layers(const struct moec_compare *c, struct moec_chart *chart,
                                    struct moec_error *err)
{
    chart->kind = MOEC_CHART_LINES;
    (void)snprintf(chart->name, sizeof chart->name, "compare_layers");
    (void)snprintf(chart->title, sizeof chart->title, "Agreement on the order of experts, layer by layer");
    (void)snprintf(
        chart->caption, sizeof chart->caption,
        "Spearman's rank correlation of sensitivities in A (%s) and B (%s) over the experts of each layer: "
        "1 is the same order. At %" PRIu32 " bit%s layer %" PRIu32 " agrees least (%.3f).",
        c->name_a, c->name_b, c->bits[0].bits, c->bits[0].bits == 1 ? "" : "s",
        c->a->moe_layers[c->bits[0].lowest], c->bits[0].layers[c->bits[0].lowest]);
    chart->x = (struct moec_chart_axis){.name = "layer", .label = "layer", .is_whole = true};
    chart->y = (struct moec_chart_axis){
        .name = "rank_correlation", .label = "rank correlation of A and B", .has_zero = true};
    for (uint32_t i = 0; i < c->n_bits && i < MOEC_CHART_MAX_SERIES; i++) {
        struct moec_chart_series *series = NULL;
        char name[MOEC_CHART_LABEL];
        (void)snprintf(name, sizeof name, "%" PRIu32 " bit%s", c->bits[i].bits,
                       c->bits[i].bits == 1 ? "" : "s");
        MOEC_TRY(moec_chart_add_series(chart, name, c->a->n_moe_layer, &series, err));
        for (uint32_t s = 0; s < c->a->n_moe_layer; s++) {
            series->x[s] = c->a->moe_layers[s];
            series->y[s] = c->bits[i].layers[s];
        }
    }
    return MOEC_OK;
}

enum moec_status moec_compare_figures(const struct moec_compare *compare, struct moec_figures *figures,
                                      struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    *figures = (struct moec_figures){0};
    MOEC_TRY(moec_alloc((void **)&figures->items, 1, sizeof *figures->items, "figures", err));
    figures->n = 1;
    struct moec_figure *figure = &figures->items[0];
    figure->title = "Comparison";
    figure->section = MOEC_FIGURE_SENSITIVITY;
    figure->study = figure->option = "";
    figure->n_chart = 2;
    MOEC_TRY_OUT(draw_effects(compare, &figure->charts[0], err));
    MOEC_TRY_OUT(draw_layers(compare, &figure->charts[1], err));
out:
    if (status != MOEC_OK)
        moec_figures_release(figures);
    return status;
}
