/* What the ways of encoding by GPTQ share (internal to compiler/fit/gptq*.c).
 *
 * Rows and columns are worked on in lanes: a constant inner count is what lets the compiler use vector
 * instructions at -O2. Every element sees its own operations in one order, so lanes never show in a result.
 */
#ifndef MOEC_COMPILER_GPTQ_INTERNAL_H
#define MOEC_COMPILER_GPTQ_INTERNAL_H

#include "compiler/fit/gptq.h"
#include "formats/base/work_tally.h"
#include "formats/codec/path_lanes.h"
#include "runtime/kernels/kernels.h"
#include "runtime/threads/parallel.h"

#define LANES      MOEC_PATH_LANES
#define GROUP_MOST 128u /* the longest groups that codecs have */
#define GPTQ_WIDTH 128u /* the most outputs that share a look at H or its factor */

/* The same source for each instruction set (formats/codec/path_lanes.h). */
#define GPTQ_CLONES MOEC_CLONES

/* LANES outputs or states, one in each element. */
typedef moec_lanes vec;
typedef moec_lane_bits vec_bits;
#define CHOSEN      MOEC_CHOSEN
#define CHOSEN_BITS MOEC_CHOSEN_BITS

struct moec_gptq {
    uint32_t n;     /* K */
    double n_token; /* of others mixed in, their share */
    double *h;      /* lower triangle: row i at row_offset(i), i + 1 values and padding to whole lanes */
    enum moec_gptq_order factored; /* what follows is in this order; NULL before moec_gptq_factor */
    double
        *factor;   /* as `h`: R_ji / R_ii at (i, j), j < i, R_ii at (i, i); NULL but for MOEC_GPTQ_BY_INPUT */
    float *unit;   /* (K, row_stride) R_ji / R_ii at (i, j), j < i, 1 at (i, i), else 0 */
    double *costs; /* (K) R_ii^2 */
    float *square; /* (K, row_stride) H with damping, where fitted codes are wanted; else NULL */
    double *inputs;        /* (K padded, CHUNK_TOKENS) that wait to be added; or, for quick sums: */
    float *waiting;        /* (CHUNK_TOKENS, K padded), and behind it the same transposed */
    uint32_t n_waiting;    /* tokens */
    uint32_t part, n_part; /* bands that are summed up: part, part + n_part, and so on */
    uint32_t *order;       /* (K) inputs in the order in which they are rounded */
};

static inline uint32_t padded(uint32_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* Row i has (i / LANES + 1) * LANES values. */
static inline uint64_t row_offset(uint32_t i)
{
    const uint64_t q = i / LANES;
    return LANES * (LANES * q * (q + 1) / 2 + (i % LANES) * (q + 1));
}

/* A matrix to encode: (n_row, columns) weights, `groups` scales a row. */
struct encoding {
    const struct moec_gptq *gptq;
    const struct moec_kernels *kernels;
    struct moec_codec codec;
    bool by_input;
    const float *weights;
    struct {
        uint32_t n_row, columns;
        uint32_t n_output;
        size_t groups;
        size_t row_bytes;
    } shape;
    struct {
        uint8_t *rows;
        float *scales;  /* (n_row, groups) */
        uint8_t *zeros; /* (n_row, groups) */
        uint8_t *codes; /* (n_row, columns) */
    } out;
    struct {
        double *scratch;           /* (threads, K, 2 LANES + 1): weights in order, errors of those that are
                                      rounded, and room for a row */
        struct moec_error *errors; /* (threads) */
    } room;
};

/* Floats from a row of `unit` or `square` to the next: one line more, for those of a power of two would share
 * their places in caches. */
static inline size_t row_stride(uint32_t n)
{
    return padded(n) + LANES;
}

/* Row i of `unit`. */
static inline const float *unit_row(const struct moec_gptq *gptq, uint32_t i)
{
    return gptq->unit + i * row_stride(gptq->n);
}

/* moec_parallel_for, whose items count as fitting with so many multiply-adds together. */
void moec_gptq_for(const struct moec_pool *pool, size_t n_item, moec_parallel_body *body, void *context,
                   uint64_t multiply_adds);

/* out (n_row, width) += n values of rows of H or its factor times `values` (n, width), n by chunks of
 * MOEC_SUM_CHUNK: each look at a row serves `width` outputs, a multiple of LANES. Rows of values and of out
 * stand `pitch` apart. `room` is for MOEC_SUM_CHUNK times width (gptq_product.c). */
struct moec_gptq_product {
    const struct moec_kernels *kernels;
    const float *rows; /* `stride` apart */
    size_t stride;
    const float *values;
    size_t pitch;
    struct {
        uint32_t n_row, n, width;
    } shape;
    float *room;
};
void moec_gptq_multiply(const struct moec_gptq_product *product, float *out);

/* Outputs of a tile, where it may have any number: as many as serve every thread. */
uint32_t moec_gptq_width(uint32_t n_output, int n_threads);

/* Of a thread that encodes tiles of so many outputs. */
uint64_t moec_gptq_tile_bytes(uint32_t n_input, uint32_t width);

/* Fills scales, zeros, codes and rows for a codec whose quantizer is GPTQ (gptq_fit.c). */
MOEC_WARN_UNUSED enum moec_status moec_gptq_encode_fitted(struct encoding *e, const struct moec_pool *pool,
                                                          struct moec_error *err);

/* The same for the trellis scheme (gptq_trellis.c), whose encoding takes so much memory, of outputs each
 * thread.
 */
MOEC_WARN_UNUSED enum moec_status moec_gptq_encode_trellis(struct encoding *e, const struct moec_pool *pool,
                                                           struct moec_error *err);
uint64_t moec_gptq_trellis_bytes(uint32_t n_row, uint32_t columns, bool by_input, int n_threads);

/* Where weight (input, output) stands in the matrix. */
struct place {
    size_t weight; /* of weights and codes */
    size_t group;  /* of scales and zeros */
};

static inline struct place place_of(const struct encoding *e, uint32_t input, uint32_t output)
{
    const size_t row = e->by_input ? input : output, column = e->by_input ? output : input;
    const size_t group = e->codec.group == 0 ? 0 : column / e->codec.group;
    return (struct place){row * e->shape.columns + column, row * e->shape.groups + group};
}

/* u = w + sum of factors times errors, for LANES outputs whose errors are `stride` apart. */
static inline __attribute__((always_inline)) void
compensate(const double *factors, uint32_t n, const double *errors, size_t stride, const double *w, double *u)
{
    double sums[LANES];
    for (uint32_t lane = 0; lane < LANES; lane++)
        sums[lane] = w[lane];
    for (uint32_t j = 0; j < n; j++, errors += stride) {
        const double factor = factors[j];
        for (uint32_t lane = 0; lane < LANES; lane++)
            sums[lane] += factor * errors[lane];
    }
    for (uint32_t lane = 0; lane < LANES; lane++)
        u[lane] = sums[lane];
}

#endif
