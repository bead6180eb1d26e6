/* JSON files of a checkpoint's folder (internal to formats/). Thread rule: pure functions. */
#ifndef MOEC_FORMATS_FOLDER_JSON_H
#define MOEC_FORMATS_FOLDER_JSON_H

#include "formats/json/json.h"

/* Whether the folder has a file of this name. One that cannot be opened is there: opening it says why. */
MOEC_WARN_UNUSED enum moec_status moec_folder_has(const char *folder, const char *name, bool *has,
                                                  struct moec_error *err);

/* Loads and parses a file of at most `limit_bytes`. `*root` (moec_json_free) and `*where`, its path in
 * quotes, are the caller's. Errors: MOEC_ERR_NOT_FOUND, MOEC_ERR_IO, those of parsing. */
MOEC_WARN_UNUSED enum moec_status moec_folder_load_json(const char *folder, const char *name,
                                                        uint64_t limit_bytes, struct moec_json **root,
                                                        char **where, struct moec_error *err);

#endif
