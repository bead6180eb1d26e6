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

/* What groups of a row's codes are decoded with. */
struct moec_cuda_groups {
    size_t scales, zeros; /* offsets in a row, where it has such */
    uint32_t n;
    uint8_t shift; /* weight i is of group i >> shift */
    bool is_nested, has_zeros, is_logarithmic;
};
struct moec_cuda_outliers {
    size_t at; /* offset in a row */
    uint32_t n;
};

/* Encoded rows in the device's memory; every byte address will do. Made by moec_cuda_matrix_make
 * (runtime/cuda/kernels/cuda_matrix.h). */
struct moec_cuda_matrix {
    const uint8_t *data; /* row r at data + r * stride_bytes */
    size_t stride_bytes;
    uint32_t rows, columns;
    uint8_t codec;   /* enum moec_cuda_codec */
    bool is_aligned; /* floats stand at multiples of their size */
    struct moec_cuda_groups groups;
    struct moec_cuda_outliers outliers;
};

/* T rows of floats: row t is at each[t], or with each NULL at first + t * stride. `each` lies in the device's
 * memory: so keys of several sequences are written to where each of them keeps its own. */
struct moec_cuda_rows {
    float *first;
    size_t stride;
    float *const *each;
};

/* The same without `each`. */
struct moec_cuda_floats {
    float *first;
    size_t stride;
};
struct moec_cuda_inputs {
    const float *first;
    size_t stride;
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

/* Products or sums of one shape: of each the matrix's first row is row_step further, inputs x_step floats,
 * outputs and biases y_step floats. */
struct moec_cuda_batch {
    uint32_t n; /* 0 counts as 1 */
    uint32_t row_step;
    size_t x_step, y_step;
};

/* What becomes of a product's outputs. */
struct moec_cuda_outputs {
    struct moec_cuda_rows rows;
    const float *bias; /* (n_rows) or NULL */
    uint8_t sink;      /* enum moec_cuda_sink */
    float cap;
};

/* y[t][r] = dot(x[t], row first_row + r), r < n_rows. */
struct moec_cuda_product {
    struct moec_cuda_matrix matrix;
    uint32_t first_row, n_rows;
    uint32_t n_tok;
    struct moec_cuda_inputs x; /* readable and zero from `columns` to a multiple of 16 */
    struct moec_cuda_outputs y;
    struct moec_cuda_batch batch;
    /* Room for moec_cuda_rounded(columns, n_tok) inputs at a multiple of 16 bytes: the product is in the
     * arithmetic bf16, and no batch. NULL: canonical. */
    uint16_t *rounded;
};
void moec_cuda_product_run(struct moec_gpu_stream *stream, const struct moec_cuda_product *product);

/* y[t][c] = sum over r < n_rows of h[t][r] * weight(first_row + r, c), c < columns: chunks of MOEC_SUM_CHUNK
 * rows, summed from 0 each and added in order. */
struct moec_cuda_sum {
    struct moec_cuda_matrix matrix;
    uint32_t first_row, n_rows;
    uint32_t n_tok;
    struct moec_cuda_inputs h;
    struct moec_cuda_rows y;
    struct moec_cuda_batch batch; /* x_step is of h */
};
void moec_cuda_sum_run(struct moec_gpu_stream *stream, const struct moec_cuda_sum *sum);

/* out[i] = row ids[i] of the matrix as F32, times `scale` unless that is 0; zeros from `columns` to a
 * multiple of 16, which fits in out's rows. Ids from n_first on are rows ids[i] - n_first of `rest`, which has as many
 * columns. */
struct moec_cuda_lookup {
    struct moec_cuda_matrix matrix, rest;
    uint32_t n_first;
    const uint32_t *ids; /* (n) in the device's memory */
    uint32_t n;
    float scale;
    struct moec_cuda_rows out;
};
void moec_cuda_lookup_run(struct moec_gpu_stream *stream, const struct moec_cuda_lookup *lookup);

/* ---- rows ---- */

/* A row's parts: n_part of n floats each. */
struct moec_cuda_parts {
    uint32_t n_part, n;
    size_t x_step, out_step; /* floats from part to part; 0: n */
};

/* What parts are normed with: RMS norm, or with `bias` LayerNorm. */
struct moec_cuda_norm_weights {
    const float *weight; /* (n), or (n_part, n) with `step` n; NULL: parts are copied */
    const float *bias;   /* (n) or NULL */
    size_t step;         /* 0: all parts have the same */
    float eps;
};

/* out = norm(x), each part by itself (heads; 1: the whole row). out may be x. */
struct moec_cuda_norm {
    struct moec_cuda_rows x, out;
    uint32_t n_tok;
    struct moec_cuda_parts parts;
    struct moec_cuda_norm_weights by;
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

/* The rows of a batch, and whose they are. */
struct moec_cuda_attention_rows {
    const struct moec_cuda_span *spans; /* in the device's memory, as the following */
    const uint32_t *row_span;           /* (n_tok): the span of each row */
    uint32_t n_tok;
};

/* `group` query heads share a key and a value, which stand at group * group_step in a position's floats. */
struct moec_cuda_attention_heads {
    uint32_t n_head, group;
    uint32_t key_dim, value_dim;
    size_t kv_stride, group_step;
    size_t out_step; /* from head to head of outputs */
};

/* What becomes of scores. */
struct moec_cuda_scores {
    float scale;        /* 0: none */
    const float *sinks; /* (n_head) or NULL */
    /* By a key's position less the query's, from -bias_limit on: (n_head, bias_width) or NULL. */
    const float *position_bias;
    uint32_t bias_width, bias_limit;
};

/* Which positions a row sees. */
struct moec_cuda_sight {
    uint32_t window; /* 0: none */
    uint32_t chunk;  /* rows see their own chunk of so many positions alone; 0: not */
    bool is_causal;
};

/* softmax(q . k) v of every head, over the positions that its row sees (runtime/forward/attention/attention.c):
 * out[t][h * out_step + c], c < value_dim, from q[t][h * key_dim ..]. `out` is not `q`. */
struct moec_cuda_attention {
    struct moec_cuda_attention_rows rows;
    struct moec_cuda_attention_heads heads;
    struct moec_cuda_scores scores;
    struct moec_cuda_sight sight;
    struct moec_cuda_inputs q;
    struct moec_cuda_floats out;
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

struct moec_cuda_states {
    const struct moec_cuda_state *each; /* (n) in the device's memory */
    uint32_t n;
};

/* Each channel's row replaced by the sum of it and the conv_size - 1 rows before, weighed, through SiLU or as
 * it is. The rows before are at the beginning of a state. */
struct moec_cuda_convolution {
    struct moec_cuda_states states;
    uint32_t n_channel, conv_size;
    struct moec_cuda_inputs weights; /* conv_size rows: of the newest row last */
    const float *bias;               /* (n_channel) or NULL */
    bool has_silu;
    struct moec_cuda_floats x; /* rows of all states */
};
#define MOEC_CUDA_MAX_CONVOLUTION 16 /* MOEC_MAX_CONVOLUTION */
void moec_cuda_convolution_run(struct moec_gpu_stream *stream,
                               const struct moec_cuda_convolution *convolution);

/* How a state decays: n rates a head. */
struct moec_cuda_decay {
    uint32_t n;
    const float *log;  /* (n_head) */
    const float *bias; /* (n_head, n) */
};

/* What value heads pass their state with, from products in the rows: dt = softplus(decay + bias), at least
 * step_min; decay exp(-e^log dt); rate dt of a state space, else the rate's sigmoid. */
struct moec_cuda_rates {
    float *rates;  /* (n_tok, stride): n_head floats each */
    float *decays; /* likewise, decay.n floats a head */
    size_t stride;
    uint32_t n_tok, n_head;
    struct moec_cuda_decay decay;
    float step_min;
    bool is_space;
};
void moec_cuda_rates_run(struct moec_gpu_stream *stream, const struct moec_cuda_rates *rates);

struct moec_cuda_state_heads {
    uint32_t n_head, n_key_head, key_dim, value_dim;
    uint32_t n_decay; /* 1, or key_dim: a decay for each row of S */
};

/* Where a row's floats of each kind begin. */
struct moec_cuda_state_offsets {
    size_t queries, keys, values, rates, decays;
};

/* Tokens pass the matrices of value heads, one after the other: S decays, S += k delta^T, values become S^T q
 * (and in a state space skip times the value). */
struct moec_cuda_recurrence {
    struct moec_cuda_states states;
    struct moec_cuda_state_heads heads;
    size_t state_offset; /* of the first head's S in a state */
    struct moec_cuda_state_offsets at;
    const float *skip;         /* (n_head) of a state space; NULL: gated delta rule */
    struct moec_cuda_floats x; /* rows of all states */
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
struct moec_cuda_ranks {
    const float *outputs; /* (n_tok * top_k, stride) */
    uint32_t top_k;
    const float *weights;     /* (n_tok, top_k) */
    const uint8_t *passes_by; /* (n_tok, top_k), not 0: the rank counts as zeros; or NULL */
};
struct moec_cuda_shared {
    const float *outputs; /* (n_tok, stride) or NULL */
    const float *factors; /* (n_tok) or NULL: 1 */
};
struct moec_cuda_combination {
    struct moec_cuda_ranks ranks;
    struct moec_cuda_shared shared;
    size_t stride;
    uint32_t n_tok, n;
    float scale;
    bool adds;
    struct moec_cuda_rows out;
};
void moec_cuda_combination_run(struct moec_gpu_stream *stream,
                               const struct moec_cuda_combination *combination);

/* ---- MLPs ---- */

/* One MLP and its rows: struct moec_mlp_job (runtime/forward/context/scratch.h). Its pairs are n from pairs[first]
 * on. Matrices may be of any codec, and of another one in each job. */
struct moec_cuda_projected {
    struct moec_cuda_matrix matrix;
    const float *bias; /* F32 or NULL */
};
struct moec_cuda_filter { /* struct moec_mlp_filter */
    float threshold;
    const uint16_t *scales; /* (n_ff) BF16 of one at the up product, or NULL */
    uint8_t at;             /* enum moec_projection */
    bool is_set;
};
struct moec_cuda_mlp_job {
    struct moec_cuda_projected gate, up, down; /* gate: no rows without a gate */
    uint32_t first, n;
    const uint32_t *places; /* (n_ff) the row of gate and down that neuron i has; NULL = row i. Only where
                               neurons that a filter leaves out are not read (below) */
    struct moec_cuda_filter filter;
};

struct moec_cuda_mlp_jobs {
    const struct moec_cuda_mlp_job *each; /* in the device's memory */
    uint32_t n, most;                     /* the most rows of a job */
};

/* Pair p reads row p / per_row of x and becomes row p - first of out. */
struct moec_cuda_pairs {
    const uint32_t *list; /* in the device's memory; NULL: pair i is i */
    uint32_t per_row, first;
};

/* Of filters at the up product, in the device's memory. */
struct moec_cuda_filtered {
    const float *limits; /* (rows of all jobs, in the order of pairs) in the threshold's place, or NULL */
    uint32_t *n_active;  /* (jobs) counts that products which stay are added to, or NULL */
    const float *ups;    /* (rows of all jobs, h.stride): up . x, where it was computed already; or NULL */
};

struct moec_cuda_mlp_shape {
    uint32_t n_ff, n_embd;
    uint8_t activation; /* enum moec_activation */
};

/* Rows of inputs, zero from n_embd to a multiple of 16. */
struct moec_cuda_mlp_inputs {
    const float *first;
    size_t stride;
    /* Room for moec_cuda_rounded(n_embd, n) inputs, as of a product: the arithmetic bf16, in which h has room
     * at a multiple of 16 bytes, and so has each of its rows. NULL: canonical. */
    uint16_t *rounded;
    uint32_t n; /* rows; needed for that alone */
};

/* Jobs of one layer. */
struct moec_cuda_mlp {
    struct moec_cuda_mlp_jobs jobs;
    struct moec_cuda_pairs pairs;
    struct moec_cuda_filtered filtered;
    struct moec_cuda_mlp_shape shape;
    struct moec_cuda_mlp_inputs x;
    struct moec_cuda_floats h; /* rows of all jobs: what down projections read, in the order of pairs */
    float *partials; /* (the same rows, chunks of n_ff, n_embd): with it, and where no job has more than
                        MOEC_CUDA_FEW rows, chunks are summed side by side; or NULL */
    struct moec_cuda_floats out; /* of pairs, zero from n_embd to a multiple of 16, which fits */
};
/* h = activation(gate . x, up . x), then out = sum over neurons of h times their rows of down. Of neurons
 * that a filter of the up product leaves out gate rows are not read where no job has more than MOEC_CUDA_FEW
 * rows, nor down rows where chunks are summed side by side. */
#define MOEC_CUDA_FEW 2
void moec_cuda_mlp_run(struct moec_gpu_stream *stream, const struct moec_cuda_mlp *mlp);

/* The neurons that stay in some row of each job, none of which has more than MOEC_CUDA_FEW rows: bit i % 32
 * of word i / 32 of a job's, 0 on entry. Only up is read; up . x is left at `ups`, of the same job in the
 * same place, for a run that follows. */
struct moec_cuda_marking {
    struct moec_cuda_mlp mlp; /* h.first, partials, out and n_active are not looked at */
    float *ups;               /* (rows of all jobs, mlp.h.stride) */
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
