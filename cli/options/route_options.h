/* Options of routing that looks at a logical cache (runtime/policy/route.h): --route, --slots, --keep-top. */
#ifndef CLI_ROUTE_OPTIONS_H
#define CLI_ROUTE_OPTIONS_H

#include "cli/options/options.h"
#include "runtime/policy/route.h"

/* clang-format off */
#define CLI_ROUTE_OPTIONS(flags)                                                                              \
    {"route", 0, "HOW", NULL,                                                                                 \
     "Let tokens take other experts than the router's, which changes the output:\n"                           \
     "cache-prior:L\tprefer those in a logical cache, by L of the router's range\n"                           \
     "max-rank:M\tthose in the cache among the router's M best come first\n"                                  \
     "cumsum:P\tthe same among as many as make up the share P\n"                                              \
     "prune:N\tthe router's N best alone\n"                                                                   \
     "top-k\tno others: misses of the cache are counted", flags},                                             \
    {"slots", 0, "N|PERCENT", NULL,                                                                           \
     "With --route: experts of each layer that the logical cache holds (default " MOEC_ROUTE_SLOTS ").",      \
     flags},                                                                                                  \
    {"keep-top", 0, "J", NULL, "With --route: each token takes its J best in any case (default 0).", flags}
/* clang-format on */

bool cli_route_given(const struct cli_args *args);

/* Refuses options that do nothing without --route. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_check_route(const struct cli_args *args, struct moec_error *err);

/* Reads them for a model, into *route; all zero without --route. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_read_route(const struct cli_args *args,
                                                 const struct moec_config *config, struct moec_route *route,
                                                 struct moec_error *err);

#endif
