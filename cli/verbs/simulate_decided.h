/* Recorded routing of moec simulate that decides anew, by --route, --precision and what belongs to them. */
#ifndef MOEC_CLI_SIMULATE_DECIDED_H
#define MOEC_CLI_SIMULATE_DECIDED_H

#include "cli/options/options.h"
#include "formats/bundle/bundle.h"
#include "profiler/simulate/simulated_decisions.h"

struct simulate_decided {
    struct moec_route route;
    uint32_t low; /* copy of the bundle that low experts are read in; that which runs where none are */
    struct moec_simulated_decisions decided; /* owned, borrows the replay */
};

/* Reads the options, loads the bundle's routers and decides. `copy` is what runs. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_decide_recorded(const struct cli_args *args,
                                                      const struct moec_bundle *bundle, uint32_t copy,
                                                      const char *path, const struct moec_replay *replay,
                                                      const struct moec_recording *recording,
                                                      struct simulate_decided *out, struct moec_error *err);

#endif
