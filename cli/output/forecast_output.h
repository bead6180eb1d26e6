/* What a profile is going to take: moec profile --dry-run. */
#ifndef MOEC_CLI_FORECAST_OUTPUT_H
#define MOEC_CLI_FORECAST_OUTPUT_H

#include "cli/terminal/progress_line.h"
#include "profiler/doctor/forecast.h"
#include "profiler/profile/profile_run.h"

void cli_print_forecast(const struct moec_profile_forecast *forecast);
MOEC_WARN_UNUSED enum moec_status cli_print_forecast_json(const struct moec_profile_forecast *forecast,
                                                          struct moec_error *err);

/* Before a profile: a note where it takes over an hour if the data has n_window windows (0: as many as are drawn at
 * most), with what less takes. Measures the pace, about a second, only where it may take that long. Errors:
 * MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status cli_warn_long_profile(struct cli_progress *progress,
                                                        const struct moec_forecast_request *request,
                                                        uint32_t n_window, bool is_exact,
                                                        struct moec_error *err);

#endif
