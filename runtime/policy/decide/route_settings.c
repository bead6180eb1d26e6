#include "runtime/policy/decide/route_settings.h"

enum moec_status moec_route_from_settings(const struct moec_decision_settings *settings,
                                          const struct moec_config *config,
                                          const struct moec_path_table *paths, const char *path,
                                          struct moec_route *route, struct moec_error *err)
{
    *route = (struct moec_route){
        .n_slots = settings->n_slots, .keep_top = settings->keep_top, .decode_only = settings->decode_only};
    if (settings->route[0] != '\0')
        MOEC_TRY(moec_route_read(settings->route, route, err));
    if (settings->precision[0] != '\0')
        MOEC_TRY(moec_precision_read(settings->precision, &route->precision, err));
    if (!route->precision.names_block) /* as it was certified */
        route->precision.block_tokens = 0;
    MOEC_TRY(moec_precision_check_pure(&route->precision, path, err));
    if (settings->prefill[0] != '\0')
        MOEC_TRY(moec_prefill_read(settings->prefill, &route->prefill, err));
    if (moec_prefill_looks_ahead(&route->prefill))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the bundle '%s' has the prefill setting '%s', whose loss cannot be certified, "
                         "because it looks at later tokens",
                         path, settings->prefill);
    if (moec_decision_settings_take_low(settings))
        route->n_low_slots = settings->n_low_slots;
    moec_route_know_calibration(route, config, paths);
    MOEC_TRY(moec_route_know_ranges(route, config, paths, path, err));
    if (settings->starts_frequent)
        MOEC_TRY(moec_route_start_frequent(route, config, paths, path, err));
    return moec_route_check(route, config, err);
}
