#include "cli/verbs/simulate_decided.h"

#include "cli/settings/route_options.h"
#include "runtime/experts/low_copy.h"

#include <stdlib.h>
#include <string.h>

static enum moec_status read_route(const struct cli_args *args, const struct moec_bundle *bundle,
                                   struct simulate_decided *out, struct moec_error *err)
{
    const uint32_t copy = out->low;
    const struct moec_config *config = &bundle->config;
    const char *start = cli_text(args, "cache-start"), *path = bundle->file.path;
    uint32_t low_bits = 0;
    MOEC_TRY(cli_read_simulated_route(args, config, &out->route, &low_bits, err));
    moec_route_know_calibration(&out->route, config, &bundle->paths);
    MOEC_TRY(moec_route_know_ranges(&out->route, config, &bundle->paths, path, err));
    if (start != NULL && strcmp(start, "frequency") == 0)
        MOEC_TRY(moec_route_start_frequent(&out->route, config, &bundle->paths, path, err));
    return moec_route_takes_low(&out->route) ? moec_low_copy_find(bundle, copy, low_bits, &out->low, err)
                                             : MOEC_OK;
}

enum moec_status cli_decide_recorded(const struct cli_args *args, const struct moec_bundle *bundle,
                                     const char *path, const struct moec_recording *recording,
                                     struct simulate_decided *out, struct moec_error *err)
{
    const struct moec_replay *replay = recording->replay;
    const uint32_t copy = out->low;
    enum moec_status status = MOEC_OK;
    struct moec_dense dense = {0};
    struct moec_model *model = NULL;
    uint64_t *bytes[2] = {NULL, NULL};
    MOEC_TRY_OUT(moec_simulated_decisions_check(replay, &bundle->config, path, err));
    MOEC_TRY_OUT(read_route(args, bundle, out, err));
    MOEC_TRY_OUT(moec_copy_record_bytes(bundle, copy, &bytes[0], err));
    MOEC_TRY_OUT(moec_copy_record_bytes(bundle, out->low, &bytes[1], err));
    MOEC_TRY_OUT(moec_bundle_load_dense(bundle, &dense, err));
    MOEC_TRY_OUT(moec_model_create(&bundle->config, &dense, &model, err));
    const struct moec_simulated_decisions_setup setup = {.replay = replay,
                                                         .recording = recording,
                                                         .model = model,
                                                         .route = &out->route,
                                                         .record_bytes = {bytes[0], bytes[1]}};
    MOEC_TRY_OUT(moec_simulated_decisions_make(&setup, &out->decided, err));
out:
    moec_model_free(model);
    free(bytes[0]);
    free(bytes[1]);
    return status;
}
