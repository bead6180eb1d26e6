/* Dense products y = W x over a batch: tiles of rows by groups of tokens, shared among the threads (internal
 * to runtime/). Every output is one canonical dot product, so tiling never shows in a result. */
#ifndef MOEC_RUNTIME_LINEAR_H
#define MOEC_RUNTIME_LINEAR_H

#include "runtime/forward/context/context.h"

#define MOEC_LINEAR_PARTS 6

struct moec_linear;
struct moec_linear_part;

/* Receives outputs row .. row + n - 1 of one token; called from any thread, once for each output. */
typedef void moec_linear_sink(const struct moec_linear *linear, const struct moec_linear_part *part,
                              uint32_t token, uint32_t row, uint32_t n, const float *y);

/* One matrix of a product; all parts read the same inputs and have equally many columns. */
struct moec_linear_part {
    const struct moec_matrix *matrix;
    const float *bias; /* (rows) or NULL */
    moec_linear_sink *sink;
    float *out; /* for the sink */
    size_t out_stride;
};

struct moec_linear {
    const struct moec_forward *forward;
    const float *x; /* (n_tok, x_stride), zero from the matrices' columns to whole lanes */
    size_t x_stride;
    uint32_t n_tok;
    bool in_mlp;         /* while an MLP's scratch is at work, whose place inputs that are laid would take */
    const void *context; /* for sinks */
    uint32_t n_parts;
    struct moec_linear_part parts[MOEC_LINEAR_PARTS];
};

void moec_linear_run(const struct moec_linear *linear);

/* Whether to use the kernel of packed tokens (dot_transposed of moec_kernels) for products of the matrix with n_tok
 * tokens. */
bool moec_linear_transposes(const struct moec_forward *forward, const struct moec_matrix *matrix,
                            uint32_t n_tok);

/* One matrix alone over n_tok rows of whole strides (moec_scratch.stride) in and out, whatever the part says
 * of the latter; past the matrix's rows its `out` is zero. */
void moec_linear_run_one(const struct moec_forward *forward, const struct moec_linear_part *part,
                         uint32_t n_tok, const float *input);

/* out[i] = cap tanh(y[i] / cap), by tanh |z| = (1 - e^(-2 |z|)) / (1 + e^(-2 |z|)): for sinks. */
void moec_linear_tanh(const struct moec_linear *linear, float cap, const float *y, uint32_t n, float *out);

/* Sinks: out[token * out_stride + row ..] = y, and += y. */
void moec_linear_store(const struct moec_linear *linear, const struct moec_linear_part *part, uint32_t token,
                       uint32_t row, uint32_t n, const float *y);
void moec_linear_add(const struct moec_linear *linear, const struct moec_linear_part *part, uint32_t token,
                     uint32_t row, uint32_t n, const float *y);

#endif
