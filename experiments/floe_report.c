/* Writes the report about sparsity inside experts from what experiments/floe.sh measured: FOLDER/report.html,
 * which needs nothing beside itself, and its tables as FOLDER/NAME.tsv. What was not measured does not
 * appear. */
#include "experiments/floe_speed.h"
#include "experiments/page.h"
#include "experiments/result.h"
#include "formats/profile/profile_h5.h"
#include "profiler/report/figures.h"
#include "profiler/report/report_html.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_LEVEL    5
#define N_BUNDLE   6
#define N_KIND     6
#define MAX_LAYER  64
#define GAIN       0.03 /* of recall, that what was learned must add to the gate */
#define PATH_BYTES 1024

static const char *const levels[N_LEVEL] = {"0.5", "0.6", "0.7", "0.8", "0.9"};
static const char *const bundles[N_BUNDLE] = {"int8", "int4", "int3", "int2", "mixed", "signs"};
static const char *const kinds[N_KIND] = {"neuron", "expert", "model", "floe", "cats", "chess"};

/* One evaluation on the test text. */
struct evaluated {
    double loss, low, high, bytes, dense_bytes, active;
};

/* A plan: its certificate, and its test. */
struct plan {
    bool is_at_gate; /* it compares the activated gate, else |up . x| */
    double loss, low, high, target, bytes, dense_bytes, plain_loss;
    struct evaluated test;
};

/* Fig. 4: of each MoE layer, and means. NaN where it was not measured. */
struct predictors {
    uint32_t n_layer;
    double layers[MAX_LAYER], cosine[MAX_LAYER], gate[MAX_LAYER], learned[MAX_LAYER]; /* precision at k */
    double neurons[N_LEVEL][MAX_LAYER];                                               /* recall */
    double gate_precision, learned_precision, gain, gain_low, gain_high, recall[N_LEVEL];
};

struct results {
    struct experiment_page page;
    char folder[PATH_BYTES]; /* of the model's results */
    bool has_profile;
    struct moec_profile profile;
    struct moec_json *kernels; /* NULL = not measured */
    struct evaluated plain[N_BUNDLE], sparse[N_BUNDLE][N_LEVEL], fixed;
    struct plan fixed_certificate; /* of the bundle of bits alone: loss, low and high */
    struct plan plans[N_KIND];
    struct floe_speed speed;
    struct predictors predictors;
};

/* ---- reading ---- */

static enum moec_status read_evaluated(const struct results *results, const char *name, struct evaluated *out,
                                       struct moec_error *err)
{
    struct moec_json *root = NULL;
    MOEC_TRY(experiment_load(results->folder, name, &root, err));
    *out = (struct evaluated){.loss = experiment_number(root, "loss"),
                              .low = experiment_number(root, "loss_low"),
                              .high = experiment_number(root, "loss_high"),
                              .bytes = experiment_number(root, "expert_bytes_per_token"),
                              .dense_bytes = experiment_number(root, "dense_expert_bytes_per_token"),
                              .active = experiment_number(root, "active_share")};
    moec_json_free(root);
    return MOEC_OK;
}

static enum moec_status read_plan(const struct results *results, const char *kind, struct plan *out,
                                  struct moec_error *err)
{
    char name[64], projection[16];
    struct moec_json *root = NULL;
    (void)snprintf(name, sizeof name, "plan-%s", kind);
    MOEC_TRY(experiment_load(results->folder, name, &root, err));
    const struct moec_json *plan = moec_json_find(root, "plan"), *without = moec_json_find(plan, "without");
    *out = (struct plan){.loss = experiment_number(plan, "loss"),
                         .low = experiment_number(plan, "loss_low"),
                         .high = experiment_number(plan, "loss_high"),
                         .target = experiment_number(plan, "target"),
                         .bytes = experiment_number(plan, "expert_bytes_per_token"),
                         .dense_bytes = experiment_number(without, "expert_bytes_per_token"),
                         .plain_loss = experiment_number(without, "loss")};
    experiment_text(plan, "projection", projection, sizeof projection);
    out->is_at_gate = strcmp(projection, "gate") == 0;
    moec_json_free(root);
    (void)snprintf(name, sizeof name, "plan-%s-test", kind);
    return read_evaluated(results, name, &out->test, err);
}

static enum moec_status read_levels(struct results *results, struct moec_error *err)
{
    char name[64];
    for (size_t b = 0; b < N_BUNDLE; b++) {
        (void)snprintf(name, sizeof name, "%s-0", bundles[b]);
        MOEC_TRY(read_evaluated(results, name, &results->plain[b], err));
        for (size_t l = 0; l < N_LEVEL; l++) {
            (void)snprintf(name, sizeof name, "%s-%s", bundles[b], levels[l]);
            MOEC_TRY(read_evaluated(results, name, &results->sparse[b][l], err));
        }
    }
    return MOEC_OK;
}

static double number_at(const struct moec_json *array, size_t i)
{
    const struct moec_json *item = array != NULL ? moec_json_at(array, i) : NULL;
    double value = NAN;
    struct moec_error ignored = {0};
    return item != NULL && moec_json_as_double(item, "a figure", -1e300, 1e300, &value, &ignored) == MOEC_OK
               ? value
               : (double)NAN;
}

static void read_shares(const struct moec_json *predictor, uint32_t n_layer, double *mean, double *layers)
{
    *mean = experiment_number(moec_json_at(moec_json_find(predictor, "precision"), 0), "value");
    for (uint32_t s = 0; s < n_layer; s++)
        layers[s] = number_at(moec_json_at(moec_json_find(predictor, "layer_precision"), s), 0);
}

static enum moec_status read_predictors(struct results *results, struct moec_error *err)
{
    struct predictors *out = &results->predictors;
    struct moec_json *root = NULL;
    char name[32];
    MOEC_TRY(experiment_load(results->folder, "predictors", &root, err));
    if (root == NULL)
        return MOEC_OK;
    const struct moec_json *list = moec_json_find(root, "predictors"),
                           *layers = moec_json_find(root, "layers"),
                           *gain = moec_json_at(moec_json_find(root, "gain"), 0),
                           *neurons = moec_json_find(root, "neurons");
    out->n_layer = (uint32_t)moec_json_length(layers);
    out->n_layer = out->n_layer < MAX_LAYER ? out->n_layer : MAX_LAYER;
    for (uint32_t s = 0; s < out->n_layer; s++) {
        out->layers[s] = number_at(layers, s);
        out->cosine[s] = number_at(moec_json_find(root, "cosine"), s);
    }
    for (size_t i = 0; i < moec_json_length(list); i++) {
        const struct moec_json *predictor = moec_json_at(list, i);
        experiment_text(predictor, "name", name, sizeof name);
        if (strcmp(name, "gate") == 0)
            read_shares(predictor, out->n_layer, &out->gate_precision, out->gate);
        if (strcmp(name, "learned") == 0)
            read_shares(predictor, out->n_layer, &out->learned_precision, out->learned);
    }
    out->gain = experiment_number(gain, "value");
    out->gain_low = experiment_number(gain, "low");
    out->gain_high = experiment_number(gain, "high");
    for (size_t l = 0; l < N_LEVEL; l++) {
        const struct moec_json *same =
            moec_json_find(neurons != NULL ? moec_json_at(neurons, l) : NULL, "same_thresholds");
        out->recall[l] = experiment_number(moec_json_at(moec_json_find(same, "recall"), 0), "value");
        for (uint32_t s = 0; s < out->n_layer; s++)
            out->neurons[l][s] = number_at(moec_json_find(same, "layer_recall"), s);
    }
    moec_json_free(root);
    return MOEC_OK;
}

static enum moec_status read_profile(struct results *results, struct moec_error *err)
{
    char path[PATH_BYTES + 16];
    uint8_t digest[MOEC_SHA256_BYTES];
    struct moec_error local = {0};
    (void)snprintf(path, sizeof path, "%s/profile.h5", results->folder);
    const enum moec_status status = moec_profile_read(path, false, &results->profile, digest, &local);
    results->has_profile = status == MOEC_OK;
    if (status != MOEC_OK && status != MOEC_ERR_NOT_FOUND)
        *err = local;
    return status == MOEC_ERR_NOT_FOUND ? MOEC_OK : status;
}

static enum moec_status read_all(struct results *results, struct moec_error *err)
{
    struct moec_json *root = NULL;
    MOEC_TRY(read_profile(results, err));
    MOEC_TRY(experiment_load(results->folder, "kernels", &results->kernels, err));
    MOEC_TRY(read_levels(results, err));
    MOEC_TRY(read_evaluated(results, "static", &results->fixed, err));
    MOEC_TRY(experiment_load(results->folder, "static-compile", &root, err));
    results->fixed_certificate = (struct plan){.loss = experiment_number(root, "loss"),
                                               .low = experiment_number(root, "loss_low"),
                                               .high = experiment_number(root, "loss_high")};
    moec_json_free(root);
    for (size_t k = 0; k < N_KIND; k++)
        MOEC_TRY(read_plan(results, kinds[k], &results->plans[k], err));
    MOEC_TRY(read_predictors(results, err));
    return floe_speed_read(results->folder, &results->speed, err);
}

/* The loss of a study of projections by levels or bits, or NaN. */
static double study_loss(const struct results *results, const char *name, const char *projection,
                         double level)
{
    const struct moec_study *study =
        results->has_profile ? moec_studies_find(&results->profile.studies, name) : NULL;
    for (uint64_t p = 0; study != NULL && study->n_axis == 2 && p < study->axes[0].n; p++)
        for (uint64_t l = 0; l < study->axes[1].n; l++)
            if (study->axes[0].labels != NULL && strcmp(study->axes[0].labels[p], projection) == 0 &&
                fabs(moec_study_axis_value(&study->axes[1], l) - level) < 1e-9)
                return study->values[p * study->axes[1].n + l];
    return NAN;
}

/* The least speedup of the experts at a sparsity over codecs and threads, or NaN, and the share of the bytes
 * that are read there. */
static double least_speedup(const struct results *results, double sparsity, double *bytes_share)
{
    const struct moec_json *experts = moec_json_find(results->kernels, "experts");
    double least = NAN;
    for (size_t i = 0; experts != NULL && i < moec_json_length(experts); i++) {
        const struct moec_json *rate = moec_json_at(experts, i);
        const double speedup = experiment_number(rate, "speedup");
        if (fabs(experiment_number(rate, "sparsity") - sparsity) > 1e-3 ||
            (isfinite(least) && speedup >= least))
            continue;
        least = speedup;
        *bytes_share = experiment_number(rate, "bytes_share");
    }
    return least;
}

/* ---- tables ---- */

static enum moec_status put_kernels(const struct results *results, struct moec_error *err)
{
    static const char *const headings[] = {"up",        "gate and down", "sparsity",    "threads",
                                           "dense, us", "bytes, %",      "times faster"};
    static const char *const paper[][2] = {{"H100", "1.26, 1.37, 1.48, 1.59, 1.64"},
                                           {"A100", "1.30, 1.35, 1.44, 1.52, 1.63"},
                                           {"A6000", "1.44, 1.56, 1.72, 1.89, 1.99"},
                                           {"RTX 3090", "1.43, 1.53, 1.72, 1.80, 1.92"}};
    const struct moec_json *experts = moec_json_find(results->kernels, "experts");
    struct experiment_table table;
    char name[64], word[64];
    if (experts == NULL)
        return MOEC_OK;
    experiment_page_heading(&results->page, "Table 1: one expert, sparse beside dense");
    MOEC_TRY(experiment_page_begin(&results->page, &table, name, "kernels", headings,
                                   sizeof headings / sizeof *headings, err));
    for (size_t i = 0; i < moec_json_length(experts); i++) {
        const struct moec_json *rate = moec_json_at(experts, i);
        experiment_text(rate, "up", word, sizeof word);
        experiment_table_cell(&table, "%s", word);
        experiment_text(rate, "gate_and_down", word, sizeof word);
        experiment_table_cell(&table, "%s", word);
        experiment_table_number(&table, experiment_number(rate, "sparsity"), 1, 1);
        experiment_table_number(&table, experiment_number(rate, "threads"), 1, 0);
        experiment_table_number(&table, experiment_number(rate, "dense_ns"), 1e-3, 1);
        experiment_table_number(&table, experiment_number(rate, "bytes_share"), 100, 1);
        experiment_table_number(&table, experiment_number(rate, "speedup"), 1, 2);
        experiment_table_end_row(&table);
    }
    for (size_t i = 0; i < sizeof paper / sizeof *paper; i++) {
        const char *const row[] = {"F16, the paper's", paper[i][0], "0.5 to 0.9", "–", "–", "–", paper[i][1]};
        for (size_t c = 0; c < sizeof row / sizeof *row; c++)
            experiment_table_cell(&table, "%s", row[c]);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(&results->page, &table, err);
}

/* A loss of projection/loss and its interval as a cell; "–" where it was not measured. */
static void put_projection_loss(const struct results *results, struct experiment_table *table,
                                const char *projection, double bits)
{
    const double loss = study_loss(results, "projection/loss", projection, bits),
                 low = study_loss(results, "projection/loss_low", projection, bits),
                 high = study_loss(results, "projection/loss_high", projection, bits);
    if (isfinite(loss))
        experiment_table_cell(table, "%.2f (%.2f to %.2f)", 100 * loss, 100 * low, 100 * high);
    else
        experiment_table_cell(table, "–");
}

/* Table 7 has perplexities, of which those at INT8 stand for the original's. */
static enum moec_status put_projections(const struct results *results, struct moec_error *err)
{
    static const char *const headings[] = {"model", "projection", "INT1, %", "INT2, %", "INT3, %", "INT4, %"};
    static const char *const projections[] = {"gate", "down", "up"};
    static const struct {
        const char *model, *projection;
        double perplexity[5]; /* INT8, INT4, INT3, INT2, INT1 */
    } paper[] = {{"Mixtral-8x7B, the paper's", "gate", {5.119, 5.158, 5.310, 6.245, 1130}},
                 {"", "down", {5.121, 5.270, 5.968, 14.36, 1910}},
                 {"", "up", {5.119, 5.151, 5.281, 6.177, 520.1}},
                 {"Qwen1.5-MoE-A2.7B, the paper's", "gate", {9.227, 9.258, 9.364, 10.72, 102.0}},
                 {"", "down", {9.224, 9.419, 9.655, 12.53, 138.4}},
                 {"", "up", {9.226, 9.270, 9.426, 10.19, 71.06}}};
    struct experiment_table table;
    char name[64];
    if (!isfinite(study_loss(results, "projection/loss", "up", 2)))
        return MOEC_OK;
    experiment_page_heading(&results->page, "Fig. 3b: bits, one projection at a time");
    MOEC_TRY(experiment_page_begin(&results->page, &table, name, "projections", headings,
                                   sizeof headings / sizeof *headings, err));
    for (size_t p = 0; p < sizeof projections / sizeof *projections; p++) {
        experiment_table_cell(&table, "%s", p == 0 ? results->page.sample : "");
        experiment_table_cell(&table, "%s", projections[p]);
        for (int bits = 1; bits <= 4; bits++)
            put_projection_loss(results, &table, projections[p], bits);
        experiment_table_end_row(&table);
    }
    for (size_t p = 0; p < sizeof paper / sizeof *paper; p++) {
        experiment_table_cell(&table, "%s", paper[p].model);
        experiment_table_cell(&table, "%s", paper[p].projection);
        for (int i = 4; i >= 1; i--)
            experiment_table_number(&table, paper[p].perplexity[i] / paper[p].perplexity[0] - 1, 100, 1);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(&results->page, &table, err);
}

static enum moec_status put_levels(const struct results *results, struct moec_error *err)
{
    static const char *const headings[] = {"experts",         "sparsity",          "loss on the test text, %",
                                           "its interval, %", "neurons active, %", "KiB a token"};
    struct experiment_table table;
    char name[64];
    experiment_page_heading(&results->page, "Fig. 9b: sparsity on top of bits");
    MOEC_TRY(experiment_page_begin(&results->page, &table, name, "levels", headings,
                                   sizeof headings / sizeof *headings, err));
    for (size_t b = 0; b < N_BUNDLE; b++) {
        for (size_t l = 0; l <= N_LEVEL; l++) {
            const struct evaluated *e = l == 0 ? &results->plain[b] : &results->sparse[b][l - 1];
            if (!isfinite(e->loss))
                continue;
            experiment_table_cell(&table, "%s",
                                  strcmp(bundles[b], "mixed") == 0   ? "up INT2, gate and down INT4"
                                  : strcmp(bundles[b], "signs") == 0 ? "up INT1, gate and down INT4"
                                                                     : bundles[b]);
            experiment_table_cell(&table, "%s", l == 0 ? "none" : levels[l - 1]);
            experiment_table_number(&table, e->loss, 100, 2);
            experiment_table_interval(&table, e->low, e->high);
            experiment_table_number(&table, e->active, 100, 1);
            experiment_table_number(&table, e->bytes, 1.0 / 1024, 1);
            experiment_table_end_row(&table);
        }
    }
    return experiment_page_end(&results->page, &table, err);
}

/* HQQ alone, which promises nothing: the bytes are those that a token reads of all neurons. */
static void put_quantised(const struct results *results, size_t bundle, struct experiment_table *table)
{
    const struct evaluated *plain = &results->plain[bundle];
    if (!isfinite(plain->loss))
        return;
    experiment_table_cell(table, "none: HQQ, %s, without a promise", bundles[bundle]);
    experiment_table_cell(table, "–");
    experiment_table_cell(table, "–");
    experiment_table_cell(table, "–");
    experiment_table_number(table, plain->loss, 100, 2);
    experiment_table_interval(table, plain->low, plain->high);
    for (int column = 0; column < 2; column++)
        experiment_table_number(table, results->sparse[bundle][0].dense_bytes, 1.0 / 1024, 1);
    experiment_table_end_row(table);
}

static enum moec_status put_plans(const struct results *results, struct moec_error *err)
{
    static const char *const headings[] = {"neurons left out", "compares",         "certificate, %",
                                           "its interval, %",  "on the test text", "its interval, %",
                                           "KiB a token",      "with all neurons"};
    static const char *const words[N_KIND] = {"by each neuron's harm and the token's gate weight",
                                              "by a threshold for each expert",
                                              "one share for all experts",
                                              "FloE: one share for all experts",
                                              "CATS: one share for all experts",
                                              "CHESS: by neuron, with the token's gate weight"};
    struct experiment_table table;
    char name[64];
    experiment_page_heading(&results->page, "Plans at one promise, and bits alone");
    MOEC_TRY(experiment_page_begin(&results->page, &table, name, "plans", headings,
                                   sizeof headings / sizeof *headings, err));
    if (isfinite(results->fixed.loss)) {
        experiment_table_cell(&table, "none: bits alone");
        experiment_table_cell(&table, "–");
        experiment_table_number(&table, results->fixed_certificate.loss, 100, 2);
        experiment_table_interval(&table, results->fixed_certificate.low, results->fixed_certificate.high);
        experiment_table_number(&table, results->fixed.loss, 100, 2);
        experiment_table_interval(&table, results->fixed.low, results->fixed.high);
        experiment_table_number(&table, results->fixed.dense_bytes, 1.0 / 1024, 1);
        experiment_table_number(&table, results->fixed.dense_bytes, 1.0 / 1024, 1);
        experiment_table_end_row(&table);
    }
    for (size_t k = 0; k < N_KIND; k++) {
        const struct plan *plan = &results->plans[k];
        if (!isfinite(plan->loss))
            continue;
        experiment_table_cell(&table, "%s", words[k]);
        experiment_table_cell(&table, plan->is_at_gate ? "the gate" : "|up . x|");
        experiment_table_number(&table, plan->loss, 100, 2);
        experiment_table_interval(&table, plan->low, plan->high);
        experiment_table_number(&table, plan->test.loss, 100, 2);
        experiment_table_interval(&table, plan->test.low, plan->test.high);
        experiment_table_number(&table, plan->bytes, 1.0 / 1024, 1);
        experiment_table_number(&table, plan->dense_bytes, 1.0 / 1024, 1);
        experiment_table_end_row(&table);
    }
    for (size_t b = 1; b <= 3; b++)
        put_quantised(results, b, &table);
    return experiment_page_end(&results->page, &table, err);
}

static enum moec_status put_predictors(const struct results *results, struct moec_error *err)
{
    static const char *const headings[] = {"layer",
                                           "similarity of the inputs",
                                           "precision of the gate, %",
                                           "of what was learned, %",
                                           "recall at 0.5, %",
                                           "at 0.6, %",
                                           "at 0.7, %",
                                           "at 0.8, %",
                                           "at 0.9, %"};
    const struct predictors *predictors = &results->predictors;
    struct experiment_table table;
    char name[64];
    if (predictors->n_layer == 0)
        return MOEC_OK;
    experiment_page_heading(&results->page, "Fig. 4: what a layer's input tells of the next layer");
    experiment_page_paragraph(&results->page,
                              "Experts of this layer, as many as a token takes, by the input of the layer "
                              "before: its router's choice, and a learned predictor's. Active neurons of "
                              "these experts at a sparsity, by their up projections on that input.");
    MOEC_TRY(experiment_page_begin(&results->page, &table, name, "predictors", headings,
                                   sizeof headings / sizeof *headings, err));
    for (uint32_t s = 0; s < predictors->n_layer; s++) {
        if (!isfinite(predictors->cosine[s]))
            continue;
        experiment_table_number(&table, predictors->layers[s], 1, 0);
        experiment_table_number(&table, predictors->cosine[s], 1, 3);
        experiment_table_number(&table, predictors->gate[s], 100, 1);
        experiment_table_number(&table, predictors->learned[s], 100, 1);
        for (size_t l = 0; l < N_LEVEL; l++)
            experiment_table_number(&table, predictors->neurons[l][s], 100, 1);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(&results->page, &table, err);
}

/* ---- claims ---- */

static void claim_speed(const struct results *results, double sparsity, double wanted,
                        struct experiment_claims *goals)
{
    char words[128];
    (void)snprintf(words, sizeof words,
                   "an expert of OLMoE's dimensions at sparsity %g: at least %g times faster", sparsity,
                   wanted);
    struct experiment_claim *claim = experiment_claim_add(goals, "Table 1", words);
    double bytes_share = NAN;
    const double least = least_speedup(results, sparsity, &bytes_share);
    if (!isfinite(least))
        return;
    experiment_claim_say(claim, "%.2f times, the least over bits and threads", least);
    experiment_claim_decide(claim, least >= wanted);
    if (least < wanted)
        experiment_claim_explain(claim, "its bytes alone would allow %.2f times", 1 / bytes_share);
}

static void make_goals(const struct results *results, struct experiment_claims *goals)
{
    const struct plan *neuron = &results->plans[0], *model = &results->plans[2];
    goals->n = 0;
    struct experiment_claim *claim = experiment_claim_add(
        goals, "section 4.2",
        "at least 1.25 times fewer bytes of experts a token than bits alone of the same promise");
    const double gain = results->fixed.dense_bytes / neuron->bytes;
    if (isfinite(gain)) {
        experiment_claim_say(
            claim,
            "%.2f times: %.1f KiB, proven to lose at most %.2f %%, and %.1f KiB, %.2f %%, of "
            "%.1f %% asked for",
            gain, neuron->bytes / 1024, 100 * neuron->high, results->fixed.dense_bytes / 1024,
            100 * results->fixed_certificate.high, 100 * neuron->target);
        experiment_claim_decide(claim, gain >= 1.25);
        if (gain < 1.25)
            experiment_claim_explain(claim, "up is read whole, and of all neurons %.1f KiB are",
                                     neuron->dense_bytes / 1024);
    }
    claim = experiment_claim_add(
        goals, "eq. 6",
        "a share of its own for each expert and neuron: at least 10 % fewer bytes than one "
        "share at the same promise");
    const double saved = 1 - neuron->bytes / model->bytes;
    if (isfinite(saved)) {
        experiment_claim_say(claim, "%.1f %% fewer by neuron, %.1f %% by expert", 100 * saved,
                             100 * (1 - results->plans[1].bytes / model->bytes));
        experiment_claim_decide(claim, saved >= 0.1);
        if (saved < 0.1)
            experiment_claim_explain(claim, "the plans leave out %.0f and %.0f %% of the bytes",
                                     100 * (1 - neuron->bytes / neuron->dense_bytes),
                                     100 * (1 - model->bytes / model->dense_bytes));
    }
    claim =
        experiment_claim_add(goals, "Fig. 4",
                             "a learned predictor names at least 3 points more of the next layer's experts "
                             "than its router asked early");
    if (results->predictors.n_layer > 0 && isfinite(results->predictors.gain)) {
        const struct predictors *predictors = &results->predictors;
        experiment_claim_say(claim, "%.1f points more (%.1f to %.1f)", 100 * predictors->gain,
                             100 * predictors->gain_low, 100 * predictors->gain_high);
        experiment_claim_decide(claim, predictors->gain >= GAIN);
        if (predictors->gain < GAIN)
            experiment_claim_explain(claim, "the router names %.0f %% already",
                                     100 * predictors->gate_precision);
    }
    claim_speed(results, 0.6, 1.35, goals);
    claim_speed(results, 0.9, 2, goals);
}

static void find_order(const struct results *results, const char *study, double level, const char *figure,
                       const char *words, bool up_is_least, struct experiment_claims *findings)
{
    struct experiment_claim *claim = experiment_claim_add(findings, figure, words);
    const double gate = study_loss(results, study, "gate", level),
                 up = study_loss(results, study, "up", level),
                 down = study_loss(results, study, "down", level);
    if (!isfinite(gate) || !isfinite(up) || !isfinite(down))
        return;
    const bool is_so = up_is_least ? up <= gate && up <= down : down <= up && up <= gate;
    experiment_claim_say(claim, "gate %.2f %%, up %.2f %%, down %.2f %%", 100 * gate, 100 * up, 100 * down);
    experiment_claim_decide(claim, is_so);
}

/* Table 3 has averages of tasks at sparsities 0.8 and 0.9: CATS 0.657 and 0.559, CHESS 0.657 and 0.568, up of
 * FloE 0.693 and 0.656. */
static void find_chess(const struct results *results, double level, struct experiment_claims *findings)
{
    char words[160];
    (void)snprintf(
        words, sizeof words,
        "at sparsity %g the choice by up loses least, that of CHESS (a threshold for each neuron) no "
        "more than that of CATS",
        level);
    struct experiment_claim *claim = experiment_claim_add(findings, "Fig. 10, Table 3", words);
    const double up = study_loss(results, "sparsity/loss", "up", level),
                 chess = study_loss(results, "sparsity/loss", "gate by neuron", level),
                 cats = study_loss(results, "sparsity/loss", "gate", level);
    if (!isfinite(up) || !isfinite(chess) || !isfinite(cats))
        return;
    const bool is_so = up <= chess && chess <= cats;
    experiment_claim_say(claim, "up %.2f %%, CHESS %.2f %%, CATS %.2f %%", 100 * up, 100 * chess, 100 * cats);
    experiment_claim_decide(claim, is_so);
}

/* The same as plans that run, at one promise: the fewer bytes the better. */
static void find_methods(const struct results *results, struct experiment_claims *findings)
{
    struct experiment_claim *claim = experiment_claim_add(
        findings, "Table 3",
        "FloE's choice outperforms those of CATS and CHESS; here plans that run, at one promise");
    const struct plan *floe = &results->plans[3], *cats = &results->plans[4], *chess = &results->plans[5];
    if (!isfinite(floe->bytes) || !isfinite(cats->bytes) || !isfinite(chess->bytes))
        return;
    experiment_claim_say(claim, "KiB a token: FloE %.1f, CATS %.1f, CHESS %.1f, of %.1f", floe->bytes / 1024,
                         cats->bytes / 1024, chess->bytes / 1024, floe->dense_bytes / 1024);
    experiment_claim_decide(claim, floe->bytes <= cats->bytes && floe->bytes <= chess->bytes);
}

/* FloE's mixture of bits and sparsity beside HQQ of fewer bits. */
static void find_quantised(const struct results *results, size_t level, size_t bundle, const char *words,
                           struct experiment_claims *findings)
{
    struct experiment_claim *claim = experiment_claim_add(findings, "Table 3", words);
    const struct evaluated *mixed = &results->sparse[4][level], *plain = &results->plain[bundle];
    if (!isfinite(mixed->loss) || !isfinite(plain->loss))
        return;
    experiment_claim_say(claim, "losses of %.2f and %.2f %%, %.1f and %.1f KiB a token", 100 * mixed->loss,
                         100 * plain->loss, mixed->bytes / 1024,
                         results->sparse[bundle][0].dense_bytes / 1024);
    experiment_claim_decide(claim, mixed->loss <= plain->loss);
}

/* What a sparsity adds, at each bitwidth beside INT8. */
static void find_additive(const struct results *results, struct experiment_claims *findings)
{
    struct experiment_claim *claim = experiment_claim_add(
        findings, "Fig. 9b",
        "losses of bits and of sparsity largely add up: sparsity 0.7 costs at INT3 and INT4 "
        "at most one and a half times what it costs at INT8");
    const double at_8 = results->sparse[0][2].loss - results->plain[0].loss,
                 at_4 = results->sparse[1][2].loss - results->plain[1].loss,
                 at_3 = results->sparse[2][2].loss - results->plain[2].loss;
    if (!isfinite(at_8) || !isfinite(at_4) || !isfinite(at_3))
        return;
    const bool is_so = at_4 <= 1.5 * at_8 && at_3 <= 1.5 * at_8;
    experiment_claim_say(claim, "INT8 %.2f %%, INT4 %.2f %%, INT3 %.2f %%", 100 * at_8, 100 * at_4,
                         100 * at_3);
    experiment_claim_decide(claim, is_so);
}

/* The paper's three averages. */
static void find_predictors(const struct results *results, struct experiment_claims *findings)
{
    const struct predictors *predictors = &results->predictors;
    struct experiment_claim *
        cosine = experiment_claim_add(
           findings, "Fig. 4",
           "inputs of neighbouring layers have a similarity above 0.95, but for the first"),
       *precision = experiment_claim_add(findings, "Fig. 4",
                                         "the learned predictor of experts has an average precision of 0.88"),
       *recall = experiment_claim_add(
           findings, "Fig. 4", "reused up projections name active neurons with an average recall of 0.95");
    double least = NAN;
    if (predictors->n_layer == 0)
        return;
    for (uint32_t s = 2; s < predictors->n_layer; s++)
        least = fmin(least, predictors->cosine[s]);
    if (isfinite(least)) {
        experiment_claim_say(cosine, "at least %.3f behind the first layer", least);
        experiment_claim_decide(cosine, least > 0.95);
    }
    if (isfinite(predictors->learned_precision)) {
        experiment_claim_say(precision, "%.3f with as many guesses as experts, %.3f by the gate",
                             predictors->learned_precision, predictors->gate_precision);
        experiment_claim_decide(precision, predictors->learned_precision >= 0.88);
        if (predictors->learned_precision < 0.88)
            experiment_claim_explain(precision, "the paper's model names two of eight experts");
    }
    if (isfinite(predictors->recall[0])) {
        experiment_claim_say(recall, "%.3f at sparsity 0.5, %.3f at 0.7, %.3f at 0.9", predictors->recall[0],
                             predictors->recall[2], predictors->recall[4]);
        experiment_claim_decide(recall, predictors->recall[2] >= 0.95);
        if (predictors->recall[2] < 0.95 && isfinite(least))
            experiment_claim_explain(
                recall, "inputs of neighbouring layers have a similarity of %.3f at least", least);
    }
}

static void make_findings(const struct results *results, struct experiment_claims *findings)
{
    findings->n = 0;
    find_order(results, "sparsity/loss", 0.7, "Fig. 3a",
               "at sparsity 0.7 zeros cost least in what down reads, more in up, most in "
               "silu(gate), which CATS compares",
               false, findings);
    find_order(results, "sparsity/loss", 0.9, "Fig. 3a", "the same at sparsity 0.9", false, findings);
    find_chess(results, 0.8, findings);
    find_chess(results, 0.9, findings);
    find_methods(results, findings);
    find_quantised(results, 3, 2, "FloE (up at two bits) at sparsity 0.8 loses less than HQQ INT3", findings);
    find_quantised(results, 4, 3, "FloE (up at two bits) at sparsity 0.9 loses less than HQQ INT2", findings);
    find_order(results, "projection/loss", 2, "Fig. 3b", "at INT2 up loses least of the three projections",
               true, findings);
    find_order(results, "projection/loss", 1, "Fig. 3b", "at INT1 too", true, findings);
    find_additive(results, findings);
    find_predictors(results, findings);
    floe_speed_find(&results->speed, findings);
}

/* ---- the page ---- */

static enum moec_status put_charts(const struct results *results, struct moec_error *err)
{
    static const char *const wanted[] = {"up_quantiles", "sparsity", "projection"};
    struct moec_figures figures = {0};
    enum moec_status status = MOEC_OK;
    if (!results->has_profile)
        return MOEC_OK;
    experiment_page_heading(&results->page, "Fig. 2 and 3: what small activations and few bits cost");
    MOEC_TRY(moec_figures_make(&results->profile, &figures, err));
    for (uint32_t f = 0; f < figures.n; f++) {
        for (uint32_t c = 0; c < figures.items[f].n_chart; c++) {
            struct moec_chart *chart = &figures.items[f].charts[c];
            char own[sizeof chart->name];
            bool is_wanted = false;
            for (size_t w = 0; w < sizeof wanted / sizeof *wanted; w++)
                is_wanted = is_wanted || strncmp(chart->name, wanted[w], strlen(wanted[w])) == 0;
            if (!is_wanted)
                continue;
            (void)snprintf(own, sizeof own, "%s", chart->name);
            (void)snprintf(chart->name, sizeof chart->name, "%.20s_%.40s", results->page.sample, own);
            MOEC_TRY_OUT(experiment_page_chart(&results->page, chart, err));
        }
    }
out:
    moec_figures_release(&figures);
    return status;
}

static enum moec_status put_page(const struct experiment_page *page, void *context, struct moec_error *err)
{
    struct results *results = context;
    struct experiment_claims goals, findings;
    make_goals(results, &goals);
    make_findings(results, &findings);
    moec_html_begin(page->stream, "FloE: sparsity inside experts");
    experiment_page_agreement(page, &findings);
    experiment_page_heading(page, "Figures to reach");
    MOEC_TRY(experiment_page_claims(page, &goals, true, err));
    experiment_page_heading(page, "What the paper shows, and what is seen here");
    MOEC_TRY(experiment_page_claims(page, &findings, false, err));
    MOEC_TRY(put_charts(results, err));
    MOEC_TRY(put_projections(results, err));
    MOEC_TRY(put_kernels(results, err));
    MOEC_TRY(put_predictors(results, err));
    MOEC_TRY(put_levels(results, err));
    MOEC_TRY(put_plans(results, err));
    MOEC_TRY(floe_speed_put(&results->speed, page, err));
    moec_html_end(page->stream);
    return MOEC_OK;
}

int main(int argc, char **argv)
{
    struct moec_error err = {0};
    if (argc != 3) {
        (void)fputs("usage: floe_report FOLDER NAME, where experiments/floe.sh measured\n", stderr);
        return 2;
    }
    struct results *results = calloc(1, sizeof *results);
    if (results == NULL)
        return 1;
    (void)snprintf(results->folder, sizeof results->folder, "%s/%s", argv[1], argv[2]);
    results->page = (struct experiment_page){.folder = argv[1], .sample = argv[2], .hides_unmeasured = true};
    enum moec_status status = read_all(results, &err);
    if (status == MOEC_OK)
        status = experiment_page_write(&results->page, put_page, results, &err);
    if (status != MOEC_OK)
        (void)fprintf(stderr, "floe_report: %s\n", err.message);
    moec_json_free(results->kernels);
    moec_profile_release(&results->profile);
    free(results);
    return status == MOEC_OK ? 0 : 1;
}
