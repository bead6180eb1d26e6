/* What moec profile prints of a profile's routing. */
#ifndef MOEC_CLI_ROUTING_REPORT_H
#define MOEC_CLI_ROUTING_REPORT_H

#include "formats/json/json_write.h"
#include "formats/profile/profile.h"

/* A few lines within 80 columns on standard output, after `before`; nothing at all for profiles without
 * routing studies. */
void cli_print_routing(const struct moec_profile *profile, const char *before);

/* The same as an object; NULL for profiles without routing studies. */
struct moec_json_out *cli_json_routing(const struct moec_profile *profile);

#endif
