/* Names of the entries of a folder (internal to formats/). Thread rule: pure functions. */
#ifndef MOEC_FORMATS_FOLDER_NAMES_H
#define MOEC_FORMATS_FOLDER_NAMES_H

#include "formats/base/error.h"

#include <stddef.h>

struct moec_folder_names {
    char **names; /* (n) sorted; owned */
    size_t n;
};

/* Names that end in `suffix`, without hidden ones. Released by the caller. Errors: MOEC_ERR_IO. */
MOEC_WARN_UNUSED enum moec_status moec_folder_list(const char *folder, const char *suffix,
                                                   struct moec_folder_names *names, struct moec_error *err);
void moec_folder_names_release(struct moec_folder_names *names);

#endif
