/* What chat templates are given, from JSON. Thread rule: that of the values. */
#ifndef MOEC_SERVER_SERVE_CHAT_VALUES_H
#define MOEC_SERVER_SERVE_CHAT_VALUES_H

#include "formats/json/json.h"
#include "runtime/moert.h"
#include "server/serve_problem.h"

/* Any JSON value; whole numbers are exact up to 2^53. Errors: MOEC_ERR_FORMAT for larger ones. */
MOEC_WARN_UNUSED enum moec_status serve_chat_value(struct moert_values *values, const struct moec_json *node,
                                                   struct moert_value **out, struct moec_error *err);
/* The messages of a request: objects with a role each, whose content is a text or parts that are texts. */
bool serve_chat_messages(struct moert_values *values, const struct moec_json *messages,
                         struct moert_value **out, struct serve_problem *problem);

#endif
