/* Three verbs certify on windows, with the same defaults: 95 %, and probabilities within --work-memory. */
#include "cli/settings/trial_options.h"

struct moec_trial_options cli_trial_options(const struct cli_measure_options *measure)
{
    return (struct moec_trial_options){.kernels = measure->by.kernels,
                                       .goes_on_by_chance = measure->data.goes_on_by_chance,
                                       .n_threads = measure->by.n_threads,
                                       .reference_bytes = measure->memory.work_bytes,
                                       .confidence = 0.95};
}

enum moec_status cli_need_reference(const struct cli_args *args, struct moec_error *err)
{
    if (cli_has(args, "reference"))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "losses are measured against the original model: "
                     "name its checkpoint with --reference MODEL");
}

struct moec_trial_inputs cli_trial_inputs(const struct cli_part_windows *data,
                                          const struct moec_source *bundle,
                                          const struct moec_source *original)
{
    return (struct moec_trial_inputs){.bundle = bundle,
                                      .original = original,
                                      .windows = &data->windows,
                                      .data_digest = data->rows.digest,
                                      .data_name = data->rows.name};
}
