/* Launches of the kernels of a GPU, for C: the operations of a forward pass in the canonical arithmetic (D1),
 * and dense products and MLPs in the arithmetic bf16 too (runtime/cuda/kernels/bf16.cuh).
 *
 * Letters: T tokens (rows), N columns of a row. Pointers are of the device's memory, structs are read during
 * the call, and the work is done when the stream comes to it. Rows are F32. Sizes of 0 launch nothing. A
 * launch that fails shows in the device's check() (runtime/cuda/gpu.h); launches answer nothing themselves.
 *
 * Same bits as the CPU's scalar set, whatever T is and however a caller cuts it: a dot product's lane l is
 * one thread's (one of half a warp, or four of a thread's), and the tree is four steps over them; a column of
 * a weighted sum is one thread's; fma, division and root are IEEE's. NaN comes out where the scalar set has
 * one, of whatever payload.
 *
 * Thread rule: any thread, with a stream of its own. */
#ifndef MOEC_RUNTIME_CUDA_KERNELS_H
#define MOEC_RUNTIME_CUDA_KERNELS_H

#include "formats/base/both.h"
#include "runtime/kernels/draw.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct moec_gpu_stream; /* runtime/cuda/gpu.h */

/* Kinds of formats/model, which is for C alone; cuda_matrix.c compares them. */
enum moec_cuda_activation {
    MOEC_CUDA_ACTIVATION_SILU,
    MOEC_CUDA_ACTIVATION_RELU,
    MOEC_CUDA_ACTIVATION_GELU_TANH,
    MOEC_CUDA_ACTIVATION_CLAMPED_GLU,
    MOEC_CUDA_ACTIVATION_CLAMPED_SILU,
    MOEC_CUDA_ACTIVATION_RELU_SQUARED,
};
enum moec_cuda_projection { MOEC_CUDA_GATE, MOEC_CUDA_UP, MOEC_CUDA_DOWN };

/* ---- matrices and rows ---- */

/* How a row's codes are laid out (formats/codec/codec.h): what moec_cuda_matrix_make finds. */
enum moec_cuda_codec {
    MOEC_CUDA_F32,
    MOEC_CUDA_F16,
    MOEC_CUDA_BF16,
    MOEC_CUDA_INT1, /* evenly spaced codes: (code - zero) * scale */
    MOEC_CUDA_INT2,
    MOEC_CUDA_INT3,
    MOEC_CUDA_INT4,
    MOEC_CUDA_INT5,
    MOEC_CUDA_INT6,
    MOEC_CUDA_INT8,
    MOEC_CUDA_LEVELS2, /* gaussian and logarithmic: level of code * scale */
    MOEC_CUDA_LEVELS3,
    MOEC_CUDA_LEVELS4,
    MOEC_CUDA_LEVELS8,
    MOEC_CUDA_TRELLIS,
    MOEC_CUDA_SHIFT2,
    MOEC_CUDA_SHIFT3,
    MOEC_CUDA_SHIFT4,
    MOEC_CUDA_MXFP4,
    MOEC_CUDA_MXFP4_DOWN,
};

/* Encoded rows in the device's memory; every byte address will do. Made by moec_cuda_matrix_make
 * (runtime/cuda/kernels/cuda_matrix.h). */
struct moec_cuda_matrix {
    const uint8_t *data; /* row r at data + r * stride_bytes */
    size_t stride_bytes;
    size_t scales, zeros, outliers; /* offsets in a row, where it has such */
    uint32_t rows, columns;
    uint32_t n_group, n_outlier; /* of a row */
    uint8_t codec;               /* enum moec_cuda_codec */
    uint8_t group_shift;         /* weight i is of group i >> group_shift */
    bool is_nested, has_zeros, is_logarithmic;
    bool is_aligned; /* floats stand at multiples of their size */
};

/* T rows of floats: row t is at each[t], or with each NULL at first + t * stride. `each` lies in the device's
 * memory: so keys of several sequences are written to where each of them keeps its own. */
struct moec_cuda_rows {
    float *first;
    size_t stride;
    float *const *each;
};

/* ---- products ---- */

/* Inputs in the arithmetic bf16: rows of n, each at a multiple of 16 bytes. */
MOEC_BOTH size_t moec_cuda_rounded_stride(uint32_t n)
{
    return ((size_t)n + 7) / 8 * 8;
}
MOEC_BOTH size_t moec_cuda_rounded(uint32_t n, uint32_t n_tok)
{
    return moec_cuda_rounded_stride(n) * n_tok;
}

/* What becomes of an output, its bias added. */
enum moec_cuda_sink {
    MOEC_CUDA_STORE,
    MOEC_CUDA_ADD,              /* to what stands there */
    MOEC_CUDA_MULTIPLY,         /* what stands there, by the output */
    MOEC_CUDA_MULTIPLY_SIGMOID, /* what stands there, by the output's sigmoid */
    MOEC_CUDA_SIGMOID,          /* stored as its sigmoid */
    MOEC_CUDA_CAP,              /* stored as cap tanh(output / cap) */
    MOEC_CUDA_SILU,             /* stored as output times its sigmoid */
};

/* y[t][r] = dot(x[t], row first_row + r), r < n_rows. With n_batch above 1 that many products of one shape:
 * of each the first row is row_step further, inputs x_step floats, outputs and biases y_step floats. */
struct moec_cuda_product {
    struct moec_cuda_matrix matrix;
    uint32_t first_row, n_rows;
    uint32_t n_tok;
    const float *x; /* row t at x + t * x_stride, readable and zero from `columns` to a multiple of 16 */
    size_t x_stride;
    const float *bias; /* (n_rows) or NULL */
    struct moec_cuda_rows y;
    uint8_t sink; /* enum moec_cuda_sink */
    float cap;
    uint32_t n_batch; /* 0 counts as 1 */
    uint32_t row_step;
    size_t x_step, y_step;
    /* Room for moec_cuda_rounded(columns, n_tok) inputs at a multiple of 16 bytes: the product is in the
     * arithmetic bf16, and no batch. NULL: canonical. */
    uint16_t *rounded;
};
void moec_cuda_product_run(struct moec_gpu_stream *stream, const struct moec_cuda_product *product);

/* y[t][c] = sum over r < n_rows of h[t][r] * weight(first_row + r, c), c < columns: chunks of MOEC_SUM_CHUNK
 * rows, summed from 0 each and added in order. Batches as above; y_step is of outputs, h_step of inputs. */
struct moec_cuda_sum {
    struct moec_cuda_matrix matrix;
    uint32_t first_row, n_rows;
    uint32_t n_tok;
    const float *h;
    size_t h_stride;
    struct moec_cuda_rows y;
    uint32_t n_batch;
    uint32_t row_step;
    size_t h_step, y_step;
};
void moec_cuda_sum_run(struct moec_gpu_stream *stream, const struct moec_cuda_sum *sum);

/* out[i] = row ids[i] of the matrix as F32, times `scale` unless that is 0; zeros from `columns` to a
 * multiple of 16, which fits in out's rows. */
struct moec_cuda_lookup {
    struct moec_cuda_matrix matrix;
    const uint32_t *ids; /* (n) in the device's memory */
    uint32_t n;
    float scale;
    struct moec_cuda_rows out;
};
void moec_cuda_lookup_run(struct moec_gpu_stream *stream, const struct moec_cuda_lookup *lookup);

/* ---- rows ---- */

/* out = norm(x), part by part: a row has n_part parts of n floats, each normed by itself (heads; 1: the whole
 * row). RMS norm, or with `bias` LayerNorm. Without weights parts are copied. out may be x. */
struct moec_cuda_norm {
    struct moec_cuda_rows x, out;
    uint32_t n_tok, n_part, n;
    size_t x_step, out_step; /* floats from part to part; 0: n */
    const float *weight;     /* (n), or (n_part, n) with weight_step n; NULL: copied */
    const float *bias;       /* (n) or NULL */
    size_t weight_step;      /* 0: all parts have the same */
    float eps;
    uint32_t padded; /* floats of out's rows, those behind the last of n_part x n become 0; 0: they are left
                        alone */
};
void moec_cuda_norm_run(struct moec_gpu_stream *stream, const struct moec_cuda_norm *norm);

/* y[t][i] = y[t][i] + x[t][i] * scale; scale 0: x[t][i] alone. */
struct moec_cuda_addition {
    struct moec_cuda_rows x, y;
    uint32_t n_tok, n;
    float scale;
};
void moec_cuda_addition_run(struct moec_gpu_stream *stream, const struct moec_cuda_addition *addition);

/* x[t][i] = x[t][i] * factor, or factors[t]; with a limit, of magnitude no more than that instead. */
struct moec_cuda_scaling {
    struct moec_cuda_rows x;
    uint32_t n_tok, n;
    float factor;
    const float *factors; /* (n_tok) or NULL */
    float limit;          /* 0: none */
};
void moec_cuda_scaling_run(struct moec_gpu_stream *stream, const struct moec_cuda_scaling *scaling);

/* Turns pairs (i, i + n_pair), i < n_pair, of each head of rows; heads are head_dim floats apart. */
struct moec_cuda_rotation {
    struct moec_cuda_rows x;
    const float *angles;
    uint32_t n_tok, n_head, head_dim, n_pair;
};
void moec_cuda_rotation_run(struct moec_gpu_stream *stream, const struct moec_cuda_rotation *rotation);

/* ---- choosing a token ---- */

#define MOEC_CUDA_DRAW_PARTS 64u
#define MOEC_CUDA_DRAW_BINS  1024u

/* What a choice leaves in the device's memory, and what it needs there: undefined before. */
struct moec_cuda_draw_room {
    struct moec_chosen chosen; /* the answer */
    uint32_t least;            /* bits of a weight, below which none counts */
    uint32_t found;            /* the bits of a threshold, as far as they are found */
    bool is_found;
    uint64_t sum, wanted; /* above these bits, and above the threshold */
    float part_largest[MOEC_CUDA_DRAW_PARTS];
    uint32_t part_token[MOEC_CUDA_DRAW_PARTS];
    uint64_t part_mass[MOEC_CUDA_DRAW_PARTS];
    uint64_t bins[MOEC_CUDA_DRAW_BINS];
};

/* The token that moert_sampler_next chooses of n logits, and the largest of them, where it is the first;
 * logits are lost where one is drawn. */
struct moec_cuda_draw {
    float *logits; /* (n) in the device's memory */
    uint32_t n;
    struct moec_draw how;
    struct moec_cuda_draw_room *room; /* in the device's memory, at a multiple of 8 */
};
void moec_cuda_draw_run(struct moec_gpu_stream *stream, const struct moec_cuda_draw *draw);

/* ---- attention ---- */

/* Rows of a batch that belong to one sequence, as struct moec_span (runtime/forward/context/span.h) with addresses of
 * the device. Position p has its keys at k_prefix, p times kv_stride further, up to own_from; from there on
 * at k_own, p - own_from times kv_stride further. Values likewise. */
struct moec_cuda_span {
    uint32_t first_row, first_position;
    uint32_t own_from;
    uint32_t n_keys; /* that every row sees where attention is not causal */
    const float *k_prefix, *v_prefix, *k_own, *v_own;
};

/* softmax(q . k) v of every head, over the positions that its row sees (runtime/forward/attention/attention.c):
 * out[t][h * out_step + c], c < value_dim, from q[t][h * key_dim ..]. `group` query heads share a key and a
 * value, which stand at group * group_step in a position's floats. `out` is not `q`. */
struct moec_cuda_attention {
    const struct moec_cuda_span *spans; /* in the device's memory, as the following */
    const uint32_t *row_span;           /* (n_tok): the span of each row */
    uint32_t n_tok, n_head, group;
    uint32_t key_dim, value_dim;
    size_t kv_stride, group_step;
    const float *q;
    size_t q_stride;
    float *out;
    size_t out_stride, out_step;
    float scale;        /* of scores; 0: none */
    const float *sinks; /* (n_head) or NULL */
    /* By a key's position less the query's, from -bias_limit on: (n_head, bias_width) or NULL. */
    const float *position_bias;
    uint32_t bias_width, bias_limit;
    uint32_t window; /* 0: none */
    uint32_t chunk;  /* rows see their own chunk of so many positions alone; 0: not */
    bool is_causal;
};
void moec_cuda_attention_run(struct moec_gpu_stream *stream, const struct moec_cuda_attention *attention);

/* ---- running layers ---- */

/* A sequence in a layer that keeps a state instead of keys and values (runtime/forward/attention/running.h has its
 * layout): rows first_row .. first_row + n_rows - 1, n_rows > 0, begin with state_in (NULL: nothing) and
 * leave state_out, which may be the same memory and is never NULL; state_copy, if not NULL, gets what the
 * state is after n_before_copy rows, fewer than n_rows. */
struct moec_cuda_state {
    uint32_t first_row, n_rows, n_before_copy;
    const float *state_in;
    float *state_out, *state_copy;
};

/* Each channel's row replaced by the sum of it and the conv_size - 1 rows before, weighed, through SiLU or as
 * it is. The rows before are at the beginning of a state. */
struct moec_cuda_convolution {
    const struct moec_cuda_state *states; /* (n_state) in the device's memory */
    uint32_t n_state, n_channel, conv_size;
    const float *weights; /* (conv_size, weight_stride): of the newest row last */
    size_t weight_stride;
    const float *bias; /* (n_channel) or NULL */
    bool has_silu;
    float *x; /* (rows of all states, stride) */
    size_t stride;
};
#define MOEC_CUDA_MAX_CONVOLUTION 16 /* MOEC_MAX_CONVOLUTION */
void moec_cuda_convolution_run(struct moec_gpu_stream *stream,
                               const struct moec_cuda_convolution *convolution);

/* What value heads pass their state with, from products in the rows: dt = softplus(decay + bias), at least
 * step_min; decay exp(-e^log dt); rate dt of a state space, else the rate's sigmoid. */
struct moec_cuda_rates {
    float *rates;  /* (n_tok, stride): n_head floats each */
    float *decays; /* likewise, n_decay floats a head */
    size_t stride;
    uint32_t n_tok, n_head, n_decay;
    const float *decay_log;  /* (n_head) */
    const float *decay_bias; /* (n_head, n_decay) */
    float step_min;
    bool is_space;
};
void moec_cuda_rates_run(struct moec_gpu_stream *stream, const struct moec_cuda_rates *rates);

/* Tokens pass the matrices of value heads, one after the other: S decays, S += k delta^T, values become S^T q
 * (and in a state space skip times the value). Offsets are of floats in a row. */
struct moec_cuda_recurrence {
    const struct moec_cuda_state *states; /* (n_state) in the device's memory */
    uint32_t n_state, n_head, n_key_head, key_dim, value_dim;
    uint32_t n_decay;    /* 1, or key_dim: a decay for each row of S */
    size_t state_offset; /* of the first head's S in a state */
    size_t queries, keys, values, rates, decays;
    const float *skip; /* (n_head) of a state space; NULL: gated delta rule */
    float *x;          /* (rows of all states, stride) */
    size_t stride;
};
void moec_cuda_recurrence_run(struct moec_gpu_stream *stream, const struct moec_cuda_recurrence *recurrence);

/* y[t][i] = silu(gate[t][i]) * y[t][i], or y[t][i] * sigmoid(gate[t][i]). */
struct moec_cuda_gating {
    struct moec_cuda_rows gate, y;
    uint32_t n_tok, n;
    bool is_sigmoid;
};
void moec_cuda_gating_run(struct moec_gpu_stream *stream, const struct moec_cuda_gating *gating);

/* ---- experts ---- */

/* out[t][i] = sum over ranks of weights[t][rank] * outputs[t * top_k + rank][i], in rank order, plus the
 * shared expert's output times its factor, times `scale` (0: none); or that is added to out. */
struct moec_cuda_combination {
    const float *outputs; /* (n_tok * top_k, stride) */
    size_t stride;
    const float *weights;        /* (n_tok, top_k) */
    const uint8_t *passes_by;    /* (n_tok, top_k), not 0: the rank counts as zeros; or NULL */
    const float *shared;         /* (n_tok, stride) or NULL */
    const float *shared_factors; /* (n_tok) or NULL: 1 */
    uint32_t n_tok, top_k, n;
    float scale;
    bool adds;
    struct moec_cuda_rows out;
};
void moec_cuda_combination_run(struct moec_gpu_stream *stream,
                               const struct moec_cuda_combination *combination);

/* ---- MLPs ---- */

/* One MLP and its rows: struct moec_mlp_job (runtime/forward/context/scratch.h). Its pairs are n from pairs[first]
 * on. Matrices may be of any codec, and of another one in each job. */
struct moec_cuda_mlp_job {
    struct moec_cuda_matrix gate, up, down;       /* gate: no rows without a gate */
    const float *gate_bias, *up_bias, *down_bias; /* F32 or NULL */
    uint32_t first, n;
    const uint32_t *places; /* (n_ff) the row of gate and down that neuron i has; NULL = row i. Only where
                               neurons that a filter leaves out are not read (below) */
    float threshold;        /* of a filter (struct moec_mlp_filter) */
    const uint16_t *scales; /* (n_ff) BF16 of one at the up product, or NULL */
    uint8_t filter_at;      /* enum moec_projection */
    bool has_filter;
};

/* Jobs of one layer. Pair p reads row p / pairs_per_row of x and becomes row p - first_pair of out. */
struct moec_cuda_mlp {
    const struct moec_cuda_mlp_job *jobs; /* in the device's memory, as the following */
    const uint32_t *pairs;                /* NULL: pair i is i */
    uint32_t n_jobs, most;                /* the most rows of a job */
    /* Of filters at the up product: (rows of all jobs, in the order of `pairs`) what takes the threshold's
     * place, or NULL; and (n_jobs) counts that products which stay are added to, or NULL. */
    const float *limits;
    uint32_t *n_active;
    const float *ups; /* (rows of all jobs, h_stride): up . x, where it was computed already; or NULL */
    uint32_t n_ff, n_embd, pairs_per_row, first_pair;
    uint8_t activation; /* enum moec_activation */
    const float *x;     /* (rows, x_stride), zero from n_embd to a multiple of 16 */
    size_t x_stride;
    float *h; /* (rows of all jobs, h_stride): what down projections read, in the order of `pairs` */
    size_t h_stride;
    float *partials; /* (the same rows, chunks of n_ff, n_embd): with it, and where no job has more than
                        MOEC_CUDA_FEW rows, chunks are summed side by side; or NULL */
    float *out;      /* (pairs, out_stride), zero from n_embd to a multiple of 16, which fits */
    size_t out_stride;
    /* Room for moec_cuda_rounded(n_embd, n_x) inputs, as of a product: the arithmetic bf16, in which h has
     * room at a multiple of 16 bytes, and so has each of its rows. NULL: canonical. */
    uint16_t *rounded;
    uint32_t n_x; /* rows of x; needed for that alone */
};
/* h = activation(gate . x, up . x), then out = sum over neurons of h times their rows of down. Of neurons
 * that a filter of the up product leaves out gate rows are not read where no job has more than MOEC_CUDA_FEW
 * rows, nor down rows where chunks are summed side by side. */
#define MOEC_CUDA_FEW 2
void moec_cuda_mlp_run(struct moec_gpu_stream *stream, const struct moec_cuda_mlp *mlp);

/* The neurons that stay in some row of each job, none of which has more than MOEC_CUDA_FEW rows: bit i % 32
 * of word i / 32 of a job's, 0 on entry. Only up is read; up . x is left at mlp.ups, of the same job in the
 * same place, for a run that follows. */
struct moec_cuda_marking {
    struct moec_cuda_mlp mlp; /* h, partials, out and n_active are not looked at */
    float *ups;               /* (rows of all jobs, mlp.h_stride) */
    uint32_t *marks;          /* (n_jobs, n_words) */
    uint32_t n_words;
};
void moec_cuda_marking_run(struct moec_gpu_stream *stream, const struct moec_cuda_marking *marking);

/* Rows of n_bytes that came side by side go to their places: row i, of neuron list[2 i], to row list[2 i + 1]
 * of `to`, where MOEC_CUDA_NOWHERE means that it is not wanted; and places[neuron] says so. */
struct moec_cuda_scatter {
    const uint32_t *list; /* (n, 2) in the device's memory, as the following */
    const uint8_t *from;
    uint8_t *to;
    size_t from_step, to_step; /* from row to row */
    uint32_t n, n_bytes;
    uint32_t *places;
};
#define MOEC_CUDA_NOWHERE 0xffffffffu
void moec_cuda_scatter_run(struct moec_gpu_stream *stream, const struct moec_cuda_scatter *scatter);

#ifdef __cplusplus
}
#endif

#endif
