/* Recorded routing of moec simulate that decides anew, by --route, --precision and what belongs to them. */
#ifndef MOEC_CLI_SIMULATE_DECIDED_H
#define MOEC_CLI_SIMULATE_DECIDED_H

#include "cli/options/options.h"
#include "formats/bundle/bundle.h"
#include "profiler/simulate/simulated_decisions.h"

struct simulate_decided {
    struct moec_route route;
    /* Copy of the bundle that low experts are read in; before the call, and where none are, that which
     * runs. */
    uint32_t low;
    struct moec_simulated_decisions decided; /* owned, borrows the replay */
};

/* Reads the options, loads the bundle's routers and decides, at a trace of `path`. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_decide_recorded(const struct cli_args *args,
                                                      const struct moec_bundle *bundle, const char *path,
                                                      const struct moec_recording *recording,
                                                      struct simulate_decided *out, struct moec_error *err);

#endif
