#include "compiler/sparsify/sparsify_table.h"

#include "profiler/profile/thresholds.h"

#include <string.h>

/* Thousandths. Between them, thresholds of |up . x| are close to straight lines. */
static const uint16_t shares[] = {100, 200, 300, 400, 500, 600, 700, 800, 850, 900, 950};
#define N_SHARE (sizeof shares / sizeof *shares)

struct filling {
    const struct moec_progress *progress;
    double n_window;
};

/* Thresholds tell shares of 1. */
static enum moec_status show(void *context, const char *phase, double done, double total)
{
    const struct filling *filling = context;
    if (filling->progress->report == NULL)
        return MOEC_OK;
    return filling->progress->report(filling->progress->context, phase, done * filling->n_window,
                                     total * filling->n_window);
}

enum moec_status moec_sparsify_table_fill(const struct moec_trial_inputs *inputs,
                                          const struct moec_trial_options *options, bool at_gate,
                                          const struct moec_progress *progress,
                                          struct moec_sparsity_table *table, struct moec_error *err)
{
    const struct moec_source *bundle = inputs->bundle;
    /* Where neurons stand as the checkpoint has them they are active at random, as estimates take them to be. */
    const bool is_ordered =
        bundle->bundle != NULL && moec_provenance_orders_neurons(&bundle->bundle->provenance);
    struct moec_windows search = {0};
    MOEC_TRY(moec_sparsity_table_create(bundle->config, shares, N_SHARE, table, err));
    MOEC_TRY(moec_windows_part(inputs->windows, MOEC_PART_SEARCH, &search, err));
    struct filling filling = {progress, MOEC_SPARSIFY_TABLE_RUNS * search.n_window};
    const struct moec_progress shown = {.report = show, .context = &filling};
    const struct moec_thresholds_job job = {
        .of = {.model = bundle->model, .experts = bundle->experts, .windows = &search},
        .kernels = options->kernels,
        .n_threads = options->n_threads,
        .finds_turnover = is_ordered && !at_gate,
        .at_gate = at_gate};
    memcpy(table->data_digest, inputs->data_digest, sizeof table->data_digest);
    const enum moec_status status = moec_thresholds_fill(&job, &shown, table, err);
    moec_windows_release(&search);
    return status;
}
