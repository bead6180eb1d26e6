#include "cli/options/route_options.h"

#include <stdlib.h>

bool cli_route_given(const struct cli_args *args)
{
    return cli_has(args, "route");
}

enum moec_status cli_check_route(const struct cli_args *args, struct moec_error *err)
{
    static const char *const others[] = {"slots", "keep-top", "decide"};
    for (size_t i = 0; !cli_route_given(args) && i < sizeof others / sizeof *others; i++)
        if (cli_offers(args, others[i]) && cli_has(args, others[i]))
            return moec_fail(err, MOEC_ERR_USAGE, "--%s does nothing without --route", others[i]);
    return MOEC_OK;
}

enum moec_status cli_read_route(const struct cli_args *args, const struct moec_config *config,
                                struct moec_route *route, struct moec_error *err)
{
    *route = (struct moec_route){0};
    MOEC_TRY(cli_check_route(args, err));
    if (!cli_route_given(args))
        return MOEC_OK;
    const char *slots = cli_has(args, "slots") ? cli_text(args, "slots") : MOEC_ROUTE_SLOTS;
    MOEC_TRY(moec_route_read(cli_text(args, "route"), route, err));
    MOEC_TRY(cli_u32(args, "keep-top", 0, MOEC_MAX_TOP_K, &route->keep_top, err));
    MOEC_TRY(moec_route_read_slots(slots, config, &route->n_slots, err));
    return moec_route_check(route, config, err);
}
