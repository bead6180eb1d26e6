/* Who may ask: hosts, origins and keys. Thread rule: pure functions. */
#ifndef MOEC_SERVER_SERVE_GUARD_H
#define MOEC_SERVER_SERVE_GUARD_H

#include "server/serve_options.h"

/* Whether a request for this host (the header Host; NULL = there is none) may pass: an IP address, localhost or
 * one of the names. A page elsewhere can make its own name point here, and no other. */
bool serve_guard_host(const struct serve_options *options, const char *host);
/* Whether a page of this origin (the header Origin) may ask: this server's own, or one that is named. */
bool serve_guard_origin(const struct serve_options *options, const char *origin, const char *host);
bool serve_guard_names_origin(const struct serve_options *options, const char *origin);
/* Whether a request with this header Authorization (NULL = none) may pass. Takes the same time for any key of
 * one length. */
bool serve_guard_key(const struct serve_options *options, const char *authorization);
/* Whether a header Content-Type (NULL = none) names application/json. */
bool serve_guard_json(const char *type);

#endif
