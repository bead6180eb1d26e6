/* Studies of a profile for people and for programs. */
#ifndef MOEC_CLI_STUDY_OUTPUT_H
#define MOEC_CLI_STUDY_OUTPUT_H

#include "formats/json/json_write.h"
#include "formats/profile/study.h"

/* Prints tables of the studies that a comma-separated list names, by name, by group or "all"; "list" prints
 * what there is. Errors: MOEC_ERR_USAGE for a word that names nothing, with what there is. */
MOEC_WARN_UNUSED enum moec_status cli_print_studies(const struct moec_studies *studies, const char *list,
                                                    uint32_t columns, struct moec_error *err);

/* The same as an array of objects: name, units, description, source, axes (name, units, and labels or
 * values), values (row-major, null where there is nothing to say). */
MOEC_WARN_UNUSED enum moec_status cli_json_studies(const struct moec_studies *studies, const char *list,
                                                   struct moec_json_out **out, struct moec_error *err);

#endif
