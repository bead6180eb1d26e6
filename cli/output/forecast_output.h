/* What a profile is going to take: moec profile --dry-run. */
#ifndef MOEC_CLI_FORECAST_OUTPUT_H
#define MOEC_CLI_FORECAST_OUTPUT_H

#include "profiler/profile/profile_run.h"

void cli_print_forecast(const struct moec_profile_forecast *forecast);
MOEC_WARN_UNUSED enum moec_status cli_print_forecast_json(const struct moec_profile_forecast *forecast,
                                                          struct moec_error *err);

#endif
