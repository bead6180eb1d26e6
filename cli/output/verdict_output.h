/* Verdict and coverage of a profile on the terminal and under --json. */
#ifndef MOEC_CLI_VERDICT_OUTPUT_H
#define MOEC_CLI_VERDICT_OUTPUT_H

#include "formats/json/json_write.h"
#include "formats/profile/profile.h"
#include "profiler/common/paragraphs.h"

#include <stdbool.h>

/* Prints paragraphs in lines of at most 80 columns, each after an empty line. */
void cli_print_paragraphs(const struct moec_paragraphs *paragraphs);
/* The same as a list of texts. */
struct moec_json_out *cli_json_paragraphs(const struct moec_paragraphs *paragraphs);

/* What the profile says about mixing bitwidths: a table and the verdict. With is_verbose also what stands behind
 * it, and whether the data is enough. */
MOEC_WARN_UNUSED enum moec_status cli_print_verdict(const struct moec_profile *profile, bool is_verbose,
                                                    struct moec_error *err);
/* Members verdict and coverage: the numbers, and the texts under `text`. */
MOEC_WARN_UNUSED enum moec_status
cli_json_verdict(struct moec_json_out *node, const struct moec_profile *profile, struct moec_error *err);

#endif
