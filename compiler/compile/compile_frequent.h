/* Which tokens are frequent: rows of the embedding and the head below some id, which a plan may then encode in more
 * bits than the rest. Thread rule: pure functions, but for the checkpoint's config. */
#ifndef MOEC_COMPILER_COMPILE_FREQUENT_H
#define MOEC_COMPILER_COMPILE_FREQUENT_H

#include "compiler/compile/compile_run.h"

/* How many ids are frequent, by how often the text has each id, counts (n_vocab); 0 where two codecs would save too
 * little of a bundle. */
uint32_t moec_compile_frequent_count(const struct moec_config *config, const uint32_t *counts);

/* About the same before there are counts, for forecasts; 0 where plans have no codecs for dense matrices. */
uint32_t moec_compile_frequent_expect(const struct moec_config *config,
                                      const struct moec_compile_options *options);

/* Sets them in the checkpoint's config by the text of the search part, or to 0 where plans have no codecs for dense
 * matrices. Before anything else of the run uses the config. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_compile_frequent_choose(struct moec_compile_run *run,
                                                               struct moec_error *err);

#endif
