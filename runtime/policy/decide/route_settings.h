/* Settings of decisions that a bundle keeps (formats/model/decision_settings.h), as a pass takes them: one
 * reading for who tunes, measures and runs. Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_ROUTE_SETTINGS_H
#define MOEC_RUNTIME_ROUTE_SETTINGS_H

#include "formats/model/decision_settings.h"
#include "runtime/policy/decide/route.h"

/* Fills a zero-initialised route. `paths` of the bundle at `path` say what was used in calibration; the
 * route borrows them. Errors: MOEC_ERR_USAGE for settings that do not fit the model. */
MOEC_WARN_UNUSED enum moec_status moec_route_from_settings(const struct moec_decision_settings *settings,
                                                           const struct moec_config *config,
                                                           const struct moec_path_table *paths,
                                                           const char *path, struct moec_route *route,
                                                           struct moec_error *err);

#endif
