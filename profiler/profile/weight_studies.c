/* Each study begins with the original's weights everywhere, which the run restores before it. A cell of a
 * study is a unit of the journal, by the study's name and place. Prices in passes are for progress and repeat
 * what the studies do, so that a changed study needs a changed price. */
#include "profiler/profile/weight_studies.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/profile/activations.h"
#include "profiler/profile/weight_study.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *group;
    moec_weight_study_fn *run;
} studies_of[MOEC_WEIGHT_STUDY_COUNT] = {
    [MOEC_WEIGHT_STUDY_PROJECTIONS] = {"projections", "projection", moec_projection_study_run},
    [MOEC_WEIGHT_STUDY_LAYERS] = {"layers", "layer", moec_layer_study_run},
    [MOEC_WEIGHT_STUDY_DENSE] = {"dense", "dense", moec_dense_study_run},
    [MOEC_WEIGHT_STUDY_QUANTIZERS] = {"quantizers", "quantizer", moec_quantizer_study_run},
    [MOEC_WEIGHT_STUDY_RANKS] = {"ranks", "rank", moec_rank_study_run},
    [MOEC_WEIGHT_STUDY_SPARSITY] = {"sparsity", "sparsity", moec_sparsity_study_run},
    [MOEC_WEIGHT_STUDY_CHOICES] = {"choices", "choice", moec_choice_study_run},
    [MOEC_WEIGHT_STUDY_EXPERT_PROJECTIONS] = {"projections of single experts", "projection",
                                              moec_expert_projection_study_run},
};

const char *moec_weight_study_name(enum moec_weight_study study)
{
    return studies_of[study].name;
}

const char *moec_weight_study_group(enum moec_weight_study study)
{
    return studies_of[study].group;
}

static bool is_word(const char *name, const char *word, size_t n)
{
    return strlen(name) == n && strncmp(name, word, n) == 0;
}

enum moec_status moec_weight_studies_parse(const char *list, uint32_t *studies, struct moec_error *err)
{
    const uint32_t all = (1u << MOEC_WEIGHT_STUDY_CHOICES) - 1; /* choices cost as much as all others */
    uint32_t found = 0;
    for (const char *word = list;; word++) {
        const size_t n = strcspn(word, ",");
        uint32_t set = 0;
        for (uint32_t s = 0; s < MOEC_WEIGHT_STUDY_EXPERT_PROJECTIONS; s++) {
            if (is_word(studies_of[s].name, word, n) || is_word(studies_of[s].group, word, n))
                set = 1u << s;
        }
        if (is_word("all", word, n))
            set = all;
        if (set == 0 && !is_word("none", word, n))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "unknown study '%.*s', expected projections, layers, dense, quantizers, ranks, "
                             "sparsity, choices, all or none",
                             (int)(n > 60 ? 60 : n), word);
        found |= set;
        word += n;
        if (*word == '\0')
            break;
    }
    *studies = found;
    return MOEC_OK;
}

/* ---- cost ---- */

struct price {
    const struct moec_config *config;
    uint32_t n_token;  /* scored tokens of a window */
    uint32_t n_source; /* tokens of its source; 0 without an encoder */
    double pass;
};

static uint64_t cost_from(const struct price *price, uint32_t first_layer)
{
    return moec_cost_from_layer(price->config, first_layer, price->n_source, 0, price->n_token);
}

/* An evaluation from a layer on, with the original's head beside its own, in passes. */
static double price_from(const struct price *price, uint32_t first_layer)
{
    return (double)(cost_from(price, first_layer) + moec_cost_head(price->config, price->n_token)) /
           price->pass;
}

/* n evaluations from each MoE layer on, behind those before it. */
static double price_of_layers(const struct price *price, double n)
{
    const uint32_t n_moe = moec_config_moe_count(price->config);
    const uint32_t last = moec_config_moe_layer(price->config, n_moe - 1);
    double cost = price_from(price, 0) - price_from(price, last);
    for (uint32_t s = 0; s < n_moe; s++)
        cost += n * price_from(price, moec_config_moe_layer(price->config, s));
    return cost;
}

static double price_of_expert_projections(const struct price *price,
                                          const struct moec_profile_options *options)
{
    const struct moec_config *config = price->config;
    double variants = 0, cost = 1;
    for (uint32_t b = 0; b < options->codes.n_bits; b++)
        variants += options->codes.bits[b] != options->codes.baseline_bits ? 3 : 0;
    variants *= config->n_expert;
    for (uint32_t s = 0; s < moec_config_moe_count(config); s++)
        cost += variants * (double)cost_from(price, moec_config_moe_layer(config, s) + 1) / price->pass;
    return cost;
}

double moec_weight_study_passes(enum moec_weight_study study, const struct moec_config *config,
                                const struct moec_profile_options *options)
{
    struct price price = {.config = config, .n_token = options->data.seq_len_tokens - 1};
    price.n_source = moec_config_is_encoder_decoder(config) ? options->data.seq_len_tokens : 0;
    price.pass = (double)cost_from(&price, 0);
    const double one = price_from(&price, 0), n_bits = options->codes.n_bits;
    const uint32_t k = config->top_k, n_replaced = k < config->n_expert ? k : 0;
    const uint32_t n_kind = moec_sparsity_study_kinds(options);
    switch (study) {
    case MOEC_WEIGHT_STUDY_PROJECTIONS:
        return (double)MOEC_PROJECTION_COUNT * n_bits * one;
    case MOEC_WEIGHT_STUDY_LAYERS:
        return price_of_layers(&price, n_bits);
    case MOEC_WEIGHT_STUDY_DENSE:
        return n_bits * one;
    case MOEC_WEIGHT_STUDY_QUANTIZERS: /* the profile's own is measured already */
        return (MOEC_STUDY_QUANTIZERS - 1) * n_bits * one;
    case MOEC_WEIGHT_STUDY_RANKS:
        return (2.0 * k - 1 + 2.0 * n_replaced) * one;
    case MOEC_WEIGHT_STUDY_SPARSITY:
        return 1 + (double)(n_kind - MOEC_PROJECTION_COUNT) + n_kind * MOEC_STUDY_SPARSITY_LEVELS * one;
    case MOEC_WEIGHT_STUDY_CHOICES:
        return one + price_of_layers(&price, moec_config_choices(config));
    case MOEC_WEIGHT_STUDY_EXPERT_PROJECTIONS:
        return price_of_expert_projections(&price, options);
    case MOEC_WEIGHT_STUDY_COUNT:
        break;
    }
    return 0;
}

uint64_t moec_weight_studies_bytes(const struct moec_profile *profile,
                                   const struct moec_profile_options *options)
{
    const uint64_t n_expert = (uint64_t)profile->n_moe_layer * profile->n_expert;
    uint64_t bytes = 0;
    if (moec_weight_study_wanted(MOEC_WEIGHT_STUDY_SPARSITY, options))
        bytes = moec_activations_bytes(&profile->config) +
                n_expert * MOEC_STUDY_SPARSITY_KINDS * MOEC_STUDY_SPARSITY_LEVELS *
                    sizeof(struct moec_mlp_filter) +
                n_expert * profile->config.n_ff_expert * sizeof(uint16_t);
    if (moec_weight_study_wanted(MOEC_WEIGHT_STUDY_CHOICES, options)) {
        const uint64_t sums = 2 * (uint64_t)profile->n_window * options->data.seq_len_tokens * sizeof(double);
        bytes = sums > bytes ? sums : bytes;
    }
    if (moec_weight_study_wanted(MOEC_WEIGHT_STUDY_EXPERT_PROJECTIONS, options)) {
        const uint64_t sums = 2 * n_expert * MOEC_PROJECTION_COUNT * profile->n_bits *
                              profile->n_sensitivity_window * sizeof(double);
        bytes = sums > bytes ? sums : bytes;
    }
    return bytes;
}

/* ---- a run ---- */

static enum moec_status report(void *context, const char *phase, double done, double total)
{
    struct moec_weight_run *run = context;
    const struct moec_progress *to = run->job->options->progress;
    (void)phase;
    (void)total;
    run->now = done;
    const double all = run->done + done;
    return to == NULL || to->report == NULL
               ? MOEC_OK
               : to->report(to->context, run->phase, all, all > run->total ? all : run->total);
}

struct moec_study_axis moec_weight_run_bits(struct moec_weight_run *run)
{
    const struct moec_profile *profile = run->job->profile;
    for (uint32_t u = 0; u < profile->n_uniform; u++)
        run->bits[u] = profile->uniform_bits[u];
    return (struct moec_study_axis){
        .name = "bits", .units = "bit", .n = profile->n_uniform, .values = run->bits};
}

void moec_weight_run_ended(struct moec_weight_run *run)
{
    run->done += run->now;
    run->now = 0;
}

/* A cell of a study is a unit of work: "layers/17". */
enum moec_status moec_weight_run_measure(struct moec_weight_run *run,
                                         const struct moec_scorer_variation *variation,
                                         struct moec_loss_study *study, uint64_t at, struct moec_error *err)
{
    static const struct moec_scorer_variation none = {0};
    struct moec_profile_job *job = run->job;
    const uint64_t n_bytes = job->windows.n_window * sizeof(double);
    const struct moec_unit_part parts[] = {{run->measure.nll, n_bytes}, {run->measure.kl, n_bytes}};
    const uint64_t before = moec_scorer_multiply_adds(job->scorer);
    char key[MOEC_JOURNAL_MAX_KEY];
    bool found = false;
    (void)snprintf(key, sizeof key, "%s/%" PRIu64, study->shape.name, at);
    const struct moec_unit unit = {key, parts, 2};
    MOEC_TRY(moec_unit_find(job->units, &unit, &job->multiply_adds, &found, err));
    if (!found) {
        MOEC_TRY(moec_scorer_run_varied(job->scorer, variation != NULL ? variation : &none, &run->measure,
                                        &run->progress, err));
        MOEC_TRY(moec_unit_keep(job->units, &unit, moec_scorer_multiply_adds(job->scorer) - before, err));
        moec_weight_run_ended(run);
    }
    return moec_loss_study_set(study, at, job->profile, &run->measure, err);
}

enum moec_status moec_weight_run_restore(struct moec_weight_run *run, struct moec_error *err)
{
    struct moec_variants *variants = run->job->variants;
    return moec_variants_assign_all(variants, moec_variants_source_bits(variants), err);
}

bool moec_weight_study_wanted(enum moec_weight_study study, const struct moec_profile_options *options)
{
    if (study == MOEC_WEIGHT_STUDY_EXPERT_PROJECTIONS)
        return options->measures.projections;
    return (options->measures.studies >> study & 1u) != 0;
}

/* Why a study says nothing about a model; NULL where it does. */
static const char *reason_to_omit(const struct moec_config *config, enum moec_weight_study study)
{
    const bool is_sparsity = study == MOEC_WEIGHT_STUDY_SPARSITY;
    if (study == MOEC_WEIGHT_STUDY_CHOICES && config->top_k == moec_config_choices(config))
        return "a token takes all experts";
    if (config->mlp.plain && (study == MOEC_WEIGHT_STUDY_PROJECTIONS || is_sparsity))
        return "it compares gate, up and down projection, and the experts of this model have no gate";
    if (is_sparsity && config->mlp.activation == MOEC_ACTIVATION_CLAMPED_GLU)
        return "it treats small products as zero, but a neuron of this model contributes even if its up "
               "product is zero";
    if (is_sparsity && config->mlp.expert_bias)
        return "it treats small products as zero, but the experts of this model add biases to these products";
    return NULL;
}

void moec_weight_studies_limit(const struct moec_config *config, struct moec_profile_options *options)
{
    if (options->memory.place != NULL && moec_weight_study_wanted(MOEC_WEIGHT_STUDY_SPARSITY, options))
        moec_progress_note(options->progress, "study 'sparsity' leaves out CHESS's neuron thresholds, which "
                                              "only the CPU can compare");
    for (uint32_t s = 0; s < MOEC_WEIGHT_STUDY_EXPERT_PROJECTIONS; s++) {
        const char *reason = reason_to_omit(config, (enum moec_weight_study)s);
        if (reason == NULL || !moec_weight_study_wanted((enum moec_weight_study)s, options))
            continue;
        moec_progress_note(options->progress, "study '%s' is left out: %s", studies_of[s].name, reason);
        options->measures.studies &= ~(1u << s);
    }
    if (!config->mlp.plain)
        return;
    if (options->measures.projections)
        moec_progress_note(options->progress, "--projections is ignored: the experts of this model have no "
                                              "gate projection to compare with");
    options->measures.projections = false;
}

static enum moec_status add_cost(struct moec_profile_job *job, uint64_t multiply_adds, struct moec_error *err)
{
    double passes = (double)multiply_adds / (double)job->pass;
    const struct moec_study study = {
        .name = "cost/studies",
        .units = "pass",
        .description = "what the studies of weights and ranks cost, of all that the profile cost",
        .values = &passes};
    return moec_profile_add_study(job->profile, &study, NULL, err);
}

enum moec_status moec_weight_studies_run(struct moec_profile_job *job, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const uint64_t before = moec_job_multiply_adds(job);
    const uint32_t n_window = job->profile->n_window;
    struct moec_weight_run run = {.job = job};
    run.progress = (struct moec_progress){.report = report, .context = &run};
    MOEC_TRY_OUT(moec_alloc((void **)&run.measure.nll, n_window, sizeof(double), "losses of a study", err));
    MOEC_TRY_OUT(moec_alloc((void **)&run.measure.kl, n_window, sizeof(double), "losses of a study", err));
    for (uint32_t s = 0; s < MOEC_WEIGHT_STUDY_COUNT; s++) {
        if (!moec_weight_study_wanted((enum moec_weight_study)s, job->options))
            continue;
        run.phase = studies_of[s].name;
        run.total = moec_weight_study_passes((enum moec_weight_study)s, job->config, job->options);
        run.done = run.now = 0;
        MOEC_TRY_OUT(moec_weight_run_restore(&run, err));
        MOEC_TRY_OUT(studies_of[s].run(&run, err));
    }
    if (moec_job_multiply_adds(job) > before)
        status = add_cost(job, moec_job_multiply_adds(job) - before, err);
out:
    free(run.measure.nll);
    free(run.measure.kl);
    return status;
}
