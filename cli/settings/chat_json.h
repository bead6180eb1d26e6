/* A conversation from a JSON file: an array of messages, or an object of messages, tools and other variables.
 * In `moec` alone, which has a JSON reader. Thread rule: main thread. */
#ifndef MOEC_CLI_CHAT_JSON_H
#define MOEC_CLI_CHAT_JSON_H

#include "formats/json/json.h"
#include "runtime/moert.h"

/* For cli_conversation's `begin`: `root` is a struct moec_json that cli_chat_json_check accepted. */
MOEC_WARN_UNUSED enum moec_status cli_chat_json_begin(void *root, struct moert_values *values,
                                                      struct moert_value *messages, struct moert_chat *chat,
                                                      struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status cli_chat_json_check(const struct moec_json *root, const char *path,
                                                      struct moec_error *err);

#endif
