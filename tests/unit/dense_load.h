/* The dense weights of a checkpoint, all in memory. */
#ifndef MOEC_TESTS_DENSE_LOAD_H
#define MOEC_TESTS_DENSE_LOAD_H

#include "formats/checkpoint/checkpoint.h"

/* As moec_checkpoint_stream_dense, and loaded. */
static inline enum moec_status dense_load(const struct moec_checkpoint *checkpoint, uint32_t dense_bits,
                                          uint32_t group, struct moec_dense *dense, struct moec_error *err)
{
    struct moec_dense made = {0};
    MOEC_TRY(moec_checkpoint_stream_dense(checkpoint, dense_bits, group, &made, err));
    const enum moec_status status = moec_dense_load(&made, err);
    if (status != MOEC_OK)
        moec_dense_release(&made);
    else
        *dense = made;
    return status;
}

#endif
