/* A calibration takes two passes of the search part: what neurons cost, then a histogram of these costs. Then
 * a factor is measured for each layer. Any share is afterwards a plan without another pass. The fit has its
 * own copy of the config, because it may outlive the bundle it was made from. */
#include "compiler/sparsify/sparsity_fit.h"

#include "compiler/sparsify/layer_gain.h"
#include "formats/base/half.h"
#include "formats/base/memory.h"

#define MOST_SHARE 980

struct moec_sparsity_fit {
    enum moec_sparsity_by by;
    bool at_gate;
    const struct moec_sparsity_table *table; /* by model */
    struct moec_config config;               /* its own: the bundle may be closed before it */
    struct moec_neuron_harm *harm;           /* not by model */
    double *factors;                         /* (MoE layers) of its scores */
};

static enum moec_status calibrate(struct moec_sparsity_fit *fit, struct moec_trial *trial,
                                  struct moec_error *err)
{
    const struct moec_trial_options *options = trial->options;
    const struct moec_measure measure = {.nll = trial->measured.losses.nll, .kl = NULL};
    const char *phase = trial->phase;
    MOEC_TRY(moec_scorer_set_route(trial->measured.scorer, NULL, err));
    moec_scorer_keep_all(trial->measured.scorer);
    const struct moec_neuron_harm_options harm = {fit->by, fit->at_gate, options->kernels,
                                                  options->n_threads};
    MOEC_TRY(moec_neuron_harm_create(&fit->config, &harm, &fit->harm, err));
    MOEC_TRY(moec_alloc((void **)&fit->factors, moec_config_moe_count(&fit->config), sizeof *fit->factors,
                        "factors of layers", err));
    for (int turn = 0; turn < 2; turn++) {
        const struct moec_scorer_watch watch =
            turn == 0 ? moec_neuron_harm_measure(fit->harm) : moec_neuron_harm_count(fit->harm);
        const struct moec_scorer_variation variation = {.watch = &watch};
        trial->phase = turn == 0 ? "cost of single neurons" : "cost of shares of neurons";
        MOEC_TRY(moec_trial_run(trial, &variation, &measure, err));
    }
    trial->phase = phase;
    return moec_layer_gain_measure(trial, fit->harm, fit->factors, err);
}

enum moec_status moec_sparsity_fit_create(struct moec_trial *trial, enum moec_sparsity_by by, bool at_gate,
                                          const struct moec_sparsity_table *table,
                                          struct moec_sparsity_fit **out, struct moec_error *err)
{
    struct moec_sparsity_fit *fit = NULL;
    const struct moec_config *config = trial->inputs->bundle->config;
    *out = NULL;
    MOEC_TRY(moec_sparsity_check_config(config, err));
    MOEC_TRY(moec_alloc((void **)&fit, 1, sizeof *fit, "a fit of sparsity", err));
    *fit = (struct moec_sparsity_fit){.by = by, .at_gate = at_gate, .table = table, .config = *config};
    const enum moec_status status = by == MOEC_SPARSITY_BY_MODEL ? MOEC_OK : calibrate(fit, trial, err);
    if (status == MOEC_OK)
        *out = fit;
    else
        moec_sparsity_fit_free(fit);
    return status;
}

void moec_sparsity_fit_free(struct moec_sparsity_fit *fit)
{
    if (fit == NULL)
        return;
    moec_neuron_harm_free(fit->harm);
    free(fit->factors);
    free(fit);
}

/* One share for all experts, by the table's thresholds. */
static void plan_by_model(const struct moec_sparsity_table *table, uint32_t share,
                          struct moec_sparsity_plan *plan)
{
    plan->threshold = 1;
    for (uint32_t l = 0, i = 0; l < plan->n_layer; l++) {
        for (uint32_t e = 0; e < plan->n_expert; e++, i++) {
            const float threshold = moec_sparsity_table_threshold(table, l, e, share);
            plan->scales[i] = threshold > 1e-30f ? moec_f32_to_bf16(1 / threshold) : MOEC_SPARSITY_KEEP;
        }
    }
}

void moec_sparsity_fit_plan(const struct moec_sparsity_fit *fit, uint32_t share,
                            struct moec_sparsity_plan *plan)
{
    plan->is_at_gate = fit->at_gate;
    if (fit->by == MOEC_SPARSITY_BY_MODEL)
        plan_by_model(fit->table, share, plan);
    else
        moec_neuron_harm_plan(fit->harm, fit->factors,
                              moec_neuron_harm_threshold(fit->harm, fit->factors, share * 1e-3), plan);
}

uint32_t moec_sparsity_fit_most(const struct moec_sparsity_fit *fit)
{
    return fit->by == MOEC_SPARSITY_BY_MODEL ? fit->table->shares[fit->table->n_share - 1] : MOST_SHARE;
}
