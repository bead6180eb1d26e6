/* Hidden states move up layer by layer with all neurons, so each run computes only the layer tried and those
 * after it. The reference is the bundle itself, not the original: what is measured is the sparsity alone.
 * Factors multiply scores, which are magnitudes: hence the root of KL over squared error. */
#include "compiler/sparsify/layer_gain.h"

#include "formats/base/memory.h"
#include "runtime/forward/moe/sparsity.h"

#include <math.h>

#define TRIED_SHARE 0.7

struct measuring {
    const struct moec_trial_inputs *inputs;
    const struct moec_neuron_harm *harm;
    struct moec_windows windows;
    struct moec_scorer *scorer;
    struct moec_states hidden;      /* that enter the layer at work */
    struct moec_sparsity_plan plan; /* of one layer */
    struct moec_measure measured;   /* (W) each, owned */
};

static enum moec_status make_windows(struct measuring *m, struct moec_error *err)
{
    const struct moec_windows *all = m->inputs->windows;
    uint32_t n = 0;
    for (uint32_t w = 0; w < all->n_window; w++)
        n += moec_part_has(MOEC_PART_SEARCH, all->part, w);
    const uint32_t step = (n + MOEC_LAYER_GAIN_WINDOWS - 1) / MOEC_LAYER_GAIN_WINDOWS;
    return moec_windows_part_every(all, MOEC_PART_SEARCH, step, &m->windows, err);
}

/* KL of the model with neurons left out in one layer, over all tokens. */
static enum moec_status measure_layer(struct measuring *m, uint32_t layer, const double *only,
                                      double threshold, double *kl, struct moec_error *err)
{
    const struct moec_config *config = m->inputs->bundle->config;
    const struct moec_scorer_variation variation = {.first_layer = layer, .hidden = &m->hidden};
    struct moec_sparsity *sparsity = NULL;
    moec_neuron_harm_plan(m->harm, only, threshold, &m->plan);
    MOEC_TRY(moec_sparsity_create_planned(&m->plan, config, &sparsity, err));
    enum moec_status status = moec_scorer_set_sparsity(m->scorer, sparsity, err);
    if (status == MOEC_OK)
        status = moec_scorer_run_varied(m->scorer, &variation, &m->measured, NULL, err);
    moec_scorer_keep_all(m->scorer);
    moec_sparsity_free(sparsity);
    *kl = 0;
    for (uint32_t w = 0; w < m->windows.n_window && status == MOEC_OK; w++)
        *kl += m->measured.kl[w];
    return status;
}

static enum moec_status measure_all(struct measuring *m, const struct moec_progress *progress, double *only,
                                    double *factors, struct moec_error *err)
{
    const struct moec_config *config = m->inputs->bundle->config;
    const uint32_t n_moe = moec_config_moe_count(config);
    for (uint32_t l = 0; l < n_moe; l++)
        only[l] = -1;
    MOEC_TRY(moec_scorer_embed(m->scorer, &m->hidden, err));
    for (uint32_t layer = 0, l = 0; l < n_moe; layer++) {
        if (moec_config_moe_layer(config, l) == layer) {
            const double threshold = moec_neuron_harm_layer_threshold(m->harm, l, TRIED_SHARE);
            const double error = moec_neuron_harm_layer_error(m->harm, l, threshold);
            double kl = 0;
            only[l] = 1;
            MOEC_TRY(measure_layer(m, layer, only, threshold, &kl, err));
            only[l] = -1;
            /* A layer whose experts were never used, or change nothing: any factor will do. */
            factors[l] = kl > 0 && error > 0 ? sqrt(kl / error) : 1;
            l++;
        }
        MOEC_TRY(moec_progress_report(progress, "layers", (double)l, (double)n_moe, err));
        MOEC_TRY(moec_scorer_layer(m->scorer, layer, &m->hidden, NULL, err));
    }
    return MOEC_OK;
}

enum moec_status moec_layer_gain_measure(const struct moec_trial *trial, const struct moec_neuron_harm *harm,
                                         double *factors, struct moec_error *err)
{
    const struct moec_trial_options *options = trial->options;
    const struct moec_source *bundle = trial->inputs->bundle;
    struct measuring m = {.inputs = trial->inputs, .harm = harm};
    double *only = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(make_windows(&m, err));
    const uint64_t n = m.windows.n_window, n_state = moec_windows_state_count(&m.windows);
    const struct moec_scorer_options scorer = {.by = {.kernels = options->kernels,
                                                      .n_threads = options->n_threads,
                                                      .arithmetic = options->arithmetic},
                                               .reference_limit_bytes = options->reference_bytes};
    MOEC_TRY_OUT(moec_alloc((void **)&only, moec_config_moe_count(bundle->config), sizeof *only,
                            "factors of layers", err));
    MOEC_TRY_OUT(moec_alloc((void **)&m.measured.nll, n, sizeof(double), "window losses", err));
    MOEC_TRY_OUT(moec_alloc((void **)&m.measured.kl, n, sizeof(double), "window losses", err));
    MOEC_TRY_OUT(moec_neuron_harm_plan_create(harm, &m.plan, err));
    MOEC_TRY_OUT(moec_states_create(m.windows.work, n_state, moec_forward_stride(bundle->config),
                                    "hidden states of a layer", &m.hidden, err));
    MOEC_TRY_OUT(moec_scorer_create(bundle->model, bundle->experts, &m.windows, &scorer, &m.scorer, err));
    MOEC_TRY_OUT(moec_scorer_set_reference(m.scorer, bundle->model, bundle->experts, NULL, NULL, err));
    status = measure_all(&m, trial->progress, only, factors, err);
out:
    moec_scorer_free(m.scorer);
    moec_states_release(&m.hidden);
    moec_sparsity_plan_release(&m.plan);
    free(m.measured.kl);
    free(m.measured.nll);
    free(only);
    moec_windows_release(&m.windows);
    return status;
}
