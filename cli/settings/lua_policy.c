#include "cli/settings/lua_policy.h"

#include "cli/options/nearest.h"
#include "compiler/lua/lua_host.h"

#include <string.h>

enum moec_status cli_check_policy(const char *folder, const char *policy,
                                  enum moec_status (*check)(const char *policy, struct moec_error *err),
                                  struct moec_error *err)
{
    struct moec_error own = {0};
    struct cli_nearest nearest = cli_nearest_of(policy, strlen(policy));
    const char *name = NULL;
    const enum moec_status status = check(policy, &own);
    if (status == MOEC_OK)
        return MOEC_OK;
    for (size_t i = 0; (name = moec_lua_library_name(folder, i)) != NULL; i++)
        cli_nearest_offer(&nearest, name, strlen(name));
    if (status == MOEC_ERR_NOT_FOUND && nearest.best != NULL)
        return moec_fail(err, status, "%s; did you mean '%s'?", own.message, nearest.best);
    return moec_fail(err, status, "%s", own.message);
}
