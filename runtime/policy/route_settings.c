#include "runtime/policy/route_settings.h"

enum moec_status moec_route_from_settings(const struct moec_decision_settings *settings,
                                          const struct moec_config *config,
                                          const struct moec_path_table *paths, const char *path,
                                          struct moec_route *route, struct moec_error *err)
{
    *route = (struct moec_route){.n_slots = settings->n_slots, .keep_top = settings->keep_top};
    if (settings->route[0] != '\0')
        MOEC_TRY(moec_route_read(settings->route, route, err));
    if (settings->precision[0] != '\0') {
        route->precision.n_low_slots = settings->n_low_slots;
        MOEC_TRY(moec_precision_read(settings->precision, &route->precision, err));
    }
    if (settings->starts_frequent)
        MOEC_TRY(moec_route_start_frequent(route, config, paths, path, err));
    return moec_route_check(route, config, err);
}
