/* Policies in Lua, as --policy names them: a built-in one or a file. */
#ifndef MOEC_CLI_LUA_POLICY_H
#define MOEC_CLI_LUA_POLICY_H

#include "formats/base/error.h"

/* A policy runs after minutes of measuring: one that is not there or is no Lua is told before, by `check`.
 * `folder` of lua/ has the built-in ones, of which the error names one that is spelt almost so. Errors: those
 * of `check`. */
MOEC_WARN_UNUSED enum moec_status cli_check_policy(const char *folder, const char *policy,
                                                   enum moec_status (*check)(const char *policy,
                                                                             struct moec_error *err),
                                                   struct moec_error *err);

#endif
