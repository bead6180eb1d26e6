/* An embedding and a head that a config divides (struct moec_config, n_frequent), as one matrix each again. Every row
 * is encoded by itself, so the rows of two matrices of one codec, one after the other, are those of one matrix. Thread
 * rule: that of the source. */
#ifndef MOEC_FORMATS_DENSE_JOIN_H
#define MOEC_FORMATS_DENSE_JOIN_H

#include "formats/model/dense.h"

/* Makes dense weights of `whole`, a config without frequent tokens, of those of the same config with them. `parts` is a
 * table with a source; both are taken over, and `parts` is empty then. On failure nothing has changed. Errors:
 * MOEC_ERR_MISMATCH for parts of a matrix that have two codecs or not its rows, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_dense_join(const struct moec_config *whole, struct moec_dense *parts,
                                                  struct moec_dense *dense, struct moec_error *err);

#endif
