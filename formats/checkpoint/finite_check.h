/* Looks for weights that are no numbers while the files of a checkpoint are read for another reason, so that
 * hours of work do not end with them (internal to formats/).
 *
 * Of every tensor that the model uses the stored bytes are looked at as they pass: floats, and the scales of
 * all others, of which each makes its whole block NaN or infinite. Thread rule: one thread. */
#ifndef MOEC_FORMATS_FINITE_CHECK_H
#define MOEC_FORMATS_FINITE_CHECK_H

#include "formats/checkpoint/checkpoint_internal.h"

#define MOEC_FINITE_BLOCK_BYTES 512 /* the largest block that is put together of two pieces */

/* Weights that stand one after the other in a file. */
struct moec_finite_range {
    uint64_t begin, end; /* bytes of the file, whole blocks */
    uint64_t first;      /* weight of the tensor at `begin` */
    uint64_t line;       /* of the tensor's last dimension */
    const struct moec_tensor_coding *coding;
    struct moec_checkpoint_tensor tensor; /* of messages */
    uint32_t file;
    bool are_factors; /* of the tensor */
};

struct moec_finite_check {
    const struct moec_checkpoint *checkpoint;
    struct moec_finite_range *ranges; /* (n_range) by file and offset, without overlap; owned */
    size_t n_range, at;
    uint8_t carry[MOEC_FINITE_BLOCK_BYTES]; /* the begin of a block that the last piece ended in */
};

/* Lists what is to be looked at. Released by the caller. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_finite_check_begin(const struct moec_checkpoint *checkpoint,
                                                          struct moec_finite_check *check,
                                                          struct moec_error *err);

/* The next n bytes of a weight file: files in their order, each from its begin to its end. Errors:
 * MOEC_ERR_FORMAT with tensor, place and value of the first weight that is no finite number. */
MOEC_WARN_UNUSED enum moec_status moec_finite_check_bytes(struct moec_finite_check *check, uint32_t file,
                                                          uint64_t offset, const uint8_t *bytes, size_t n,
                                                          struct moec_error *err);

void moec_finite_check_release(struct moec_finite_check *check);

#endif
