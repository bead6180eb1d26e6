/* Switch Transformers' config.json (internal to formats/): every field but the end-of-text ids, which all
 * families share. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_FAMILY_SWITCH_H
#define MOEC_FORMATS_FAMILY_SWITCH_H

#include "formats/json/json.h"
#include "formats/json/json_write.h"
#include "formats/model/config.h"

/* `where` names the file in messages. Errors: MOEC_ERR_UNSUPPORTED, MOEC_ERR_FORMAT, MOEC_ERR_LIMIT. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_switch(const struct moec_json *root, const char *where,
                                                          struct moec_config *config, struct moec_error *err);
void moec_family_write_switch(const struct moec_config *config, struct moec_json_out *root);

#endif
