/* How much a compile looks at. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_SCOPE_H
#define MOEC_COMPILER_COMPILE_SCOPE_H

#include "compiler/compile/compile_run.h"

/* Sets scope and report->scope to the journal's level, else to that of the options, which the journal then
 * keeps; one that holds n_kept units and no level is of all. Errors: MOEC_ERR_FORMAT for a level that is
 * none. */
MOEC_WARN_UNUSED enum moec_status moec_compile_scope_take(struct moec_compile_run *run, uint64_t n_kept,
                                                          struct moec_error *err);

/* Windows, or rows, that plans are measured on in a part: the first of the search and of the selection part,
 * as many as the scope has, the first n_certify of the certificate part, and of either all before they are
 * known. */
uint32_t moec_compile_part_count(const struct moec_compile_run *run, enum moec_part which);

/* Whether only some variants are fitted: where the policy is moec's own (NULL: hull), and losses alone say what its
 * plans may take. */
bool moec_compile_has_wanted(const struct moec_compile_options *options);

#endif
