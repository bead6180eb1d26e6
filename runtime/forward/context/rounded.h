/* Activations of a batch, rounded for the int8 arithmetic (runtime/kernels/int8.h), and who is given them
 * (internal to runtime/). A forward pass without this memory computes canonically. */
#ifndef MOEC_RUNTIME_ROUNDED_H
#define MOEC_RUNTIME_ROUNDED_H

#include "runtime/forward/context/context.h"
#include "runtime/kernels/int8.h"

#define MOEC_ROUNDED_INPUTS                                                                                  \
    2 /* matrices of rows that one step may read: of routed experts, of the shared one */

struct moec_rounded {
    const struct moec_int8_kernels *kernels;
    uint32_t max_rows;
    size_t row_spans; /* of the longest rows of dense products */
    /* Of the step that runs: where rows stand, and which of them are rounded. */
    const float *inputs[MOEC_ROUNDED_INPUTS];
    struct moec_int8_span *spans[MOEC_ROUNDED_INPUTS]; /* (max_rows, row_spans) */
    uint8_t *marks[MOEC_ROUNDED_INPUTS];               /* (max_rows) */
    uint32_t *list;                                    /* (MOEC_ROUNDED_INPUTS * max_rows) */
    struct moec_int8_tile
        *tiles; /* (max_rows / MOEC_LANES rounded up, row_spans): those of moec_rounded_fill */
};

/* Bytes that moec_rounded_create allocates. */
uint64_t moec_rounded_bytes(const struct moec_config *config, uint32_t max_rows);
/* Released with free(). `kernels` as the forward pass has them. */
MOEC_WARN_UNUSED enum moec_status moec_rounded_create(const struct moec_config *config, uint32_t max_rows,
                                                      const struct moec_kernels *kernels,
                                                      struct moec_rounded **out, struct moec_error *err);

/* Rounds n rows of k activations from x on, `stride` floats apart: row i is then moec_rounded_row(.., x, i),
 * and with as many as the kernels call many they stand side by side too, moec_rounded_tiles. What was rounded
 * before is forgotten. */
void moec_rounded_fill(const struct moec_forward *forward, const float *x, size_t stride, uint32_t n,
                       size_t k);

/* The tiles of rows row .. of k activations; row is a multiple of MOEC_LANES. */
static inline const struct moec_int8_tile *moec_rounded_tiles(const struct moec_forward *forward,
                                                              uint32_t row, size_t k)
{
    return forward->rounded->tiles + row / MOEC_LANES * moec_int8_spans(k);
}

/* The same for rows that are told one by one: begin, mark each (again is harmless), fill. */
void moec_rounded_begin(const struct moec_forward *forward);
void moec_rounded_mark(const struct moec_forward *forward, const float *input, uint32_t row);
void moec_rounded_fill_marked(const struct moec_forward *forward, size_t stride, size_t k);

/* The spans of a row of `input`, which is rounded. */
const struct moec_int8_span *moec_rounded_row(const struct moec_forward *forward, const float *input,
                                              uint32_t row);

/* Whether products with the matrix are those of integers in this pass. */
static inline bool moec_rounded_serves(const struct moec_forward *forward, const struct moec_matrix *matrix)
{
    return forward->rounded != NULL && moec_int8_serves(matrix->codec);
}

#endif
