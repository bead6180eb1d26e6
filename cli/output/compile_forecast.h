/* What a compile from data is going to take: for `moec doctor`, and said by a long `moec compile` before it
 * begins. Passes are those of compile.h with the original and its routing, at the pace of this machine.
 * Thread rule: main thread. */
#ifndef MOEC_CLI_COMPILE_FORECAST_H
#define MOEC_CLI_COMPILE_FORECAST_H

#include "cli/output/progress_line.h"
#include "compiler/compile/compile.h"

struct cli_compile_forecast {
    uint32_t n_window;
    double passes, weights; /* struct moec_compile_forecast's; passes with the profile's */
    double seconds;
};

/* `pass_seconds` is what an evaluation of n_window windows takes. */
struct cli_compile_forecast cli_forecast_compile(const struct moec_config *config,
                                                 const struct moec_compile_options *options,
                                                 uint32_t n_window, uint32_t seq_len_tokens,
                                                 double pass_seconds);

/* A note before a compile that will take over an hour if the data has as many as n_window windows (0: as many
 * as are drawn by default), and what fewer would take. Measures the pace, most of a second, only where it may
 * be that long. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status cli_warn_long_compile(struct cli_progress *progress,
                                                        const struct moec_config *config,
                                                        const struct moec_compile_options *options,
                                                        uint32_t n_window, uint32_t seq_len_tokens,
                                                        struct moec_error *err);

#endif
