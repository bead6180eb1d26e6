/* The forward pass, layer by layer, over a batch of tokens that may belong to many sequences.
 *
 * Sessions drive it for prefill and decoding; the profiler drives it directly, so that it can stop between
 * layers, keep activations and share one sweep over the weights among many variants. All results are
 * canonical (D1): a token's values depend only on the tokens before it in its own sequence, never on the
 * batch it came in.
 *
 * Batch layout: `hidden` is (n_tok, n_embd) F32 with a row stride of moec_forward_stride(); rows of one
 * sequence are consecutive and described by a span. Thread rule: a struct moec_forward belongs to one thread
 * at a time (it parallelises inside through its pool); several may share a model. */
#ifndef MOEC_RUNTIME_FORWARD_H
#define MOEC_RUNTIME_FORWARD_H

#include "runtime/forward/model.h"
#include "runtime/kernels/kernels.h"
#include "runtime/policy/choice.h"
#include "runtime/policy/experts.h"
#include "runtime/threads/parallel.h"
#include "runtime/trace/trace.h"

/* Rows first_row .. first_row + n_rows - 1 of the batch are positions first_position .. of one sequence.
 * Keys and values of one layer: rows of n_kv_head * head_dim floats, position-major. Positions before
 * first_position are read from k_prefix/v_prefix (row 0 = position 0; NULL when first_position is 0), those
 * of the span are written to and read from k_own/v_own (row 0 = first_position). A session points own right
 * behind its prefix.
 *
 * A row of a decoder layer sees the positions before it and itself; one of an encoder layer sees the whole
 * source, so there a span holds all of it, from position 0 on. Where n_source is not 0, the keys and values
 * of a source of so many positions are in k_prefix and v_prefix already, made by moec_forward_keys or
 * moec_forward_cross_keys: rows see all of them, none are written, and own is not looked at. Spans of one
 * call are alike in that. */
struct moec_span {
    uint32_t first_row;
    uint32_t n_rows;
    uint32_t first_position;
    uint32_t n_source; /* encoder layers and cross attention; 0 = the rows' own keys */
    const float *k_prefix;
    const float *v_prefix;
    float *k_own;
    float *v_own;
};

/* What a MoE layer did, for those who ask. Arrays are the caller's; NULL members are not filled. T = n_tok, k
 * = top_k. */
struct moec_mlp_trace {
    uint32_t *experts;    /* (T, k): chosen experts in order of choice */
    float *weights;       /* (T, k): gate weights as applied */
    float *margins;       /* (T): what the router compares (its probability), of rank k minus rank k + 1 */
    float *input;         /* (T, stride): normed input of router and experts */
    float *rank_outputs;  /* (T, k, stride): unweighted output of each chosen expert */
    float *rank_norms;    /* (T, k): Euclidean norms of those outputs */
    float *shared_output; /* (T, stride): shared expert's output times its gate; zero rows without one */
};

/* Sees what the products with dense weights are given (not those with routed experts and routers): quantisers
 * that weigh errors by the inputs collect them here. Both functions are called on the thread that drives the
 * forward pass. */
struct moec_inputs_hook {
    /* Rows x (n_tok, stride), zero from the matrices' columns to whole lanes, enter the products with these
     * tensors; of a matrix that comes in blocks of rows, once. */
    void (*take)(void *context, const struct moec_dense_entry *const *entries, uint32_t n_entries,
                 const float *x, size_t stride, uint32_t n_tok);
    /* Memory for (n_tok, stride) activations of an MLP, zero past its neurons, which its down projection will
     * be given; they are then taken like other inputs. NULL: not wanted. */
    float *(*room)(void *context, uint32_t n_tok, size_t stride);
    void *context;
};

/* Tokens that an expert has been sent in each sequence of a batch, where the config limits them
 * (expert_capacity; Switch Transformers, section 2.2). Rows of the batch belong to the spans in order. Every
 * token counts for the expert that its router chose, in order of position; from the expert_capacity-th on
 * they pass the layer by: their weight is 0, the expert does not compute them, and their rank output is 0.
 * Traces still name the router's choice.
 *
 * transformers counts over each sequence of one call: over a source whole, over a target whole when it is
 * teacher-forced, and over each step by itself in generation with a cache, where nothing is ever full. */
struct moec_capacity_span {
    uint32_t n_rows;
    uint32_t *counts; /* (n_expert), of the layer at work: earlier tokens; advanced by moec_forward_mlp */
};

struct moec_capacity {
    const struct moec_capacity_span *spans;
    uint32_t n_spans;
};

struct moec_forward {
    const struct moec_model *model;
    const struct moec_kernels *kernels;
    struct moec_pool pool;
    struct moec_experts *experts;           /* borrowed; may be swapped between calls */
    const struct moec_choice *choice;       /* borrowed; NULL = the router's; may be swapped between calls */
    const struct moec_residents *residents; /* likewise; what choices see as resident, NULL = nothing said */
    const struct moec_capacity *capacity;   /* borrowed; NULL = nothing is ever full; set for each layer */
    struct moec_trace *trace;               /* borrowed; NULL = nobody looks; may be swapped between calls */
    const struct moec_inputs_hook *inputs;  /* likewise */
    uint32_t max_tokens;                    /* largest batch, given at init */
    void *scratch;                          /* owned */
    uint64_t scratch_bytes;
};

/* Allocates scratch for batches of up to max_tokens; afterwards nothing allocates. The byte count for a
 * budget is known before: moec_forward_scratch_bytes. */
uint64_t moec_forward_scratch_bytes(const struct moec_config *config, uint32_t max_tokens, int n_threads);
MOEC_WARN_UNUSED enum moec_status moec_forward_init(struct moec_forward *forward,
                                                    const struct moec_model *model,
                                                    const struct moec_kernels *kernels, int n_threads,
                                                    struct moec_experts *experts, uint32_t max_tokens,
                                                    struct moec_error *err);
void moec_forward_release(struct moec_forward *forward);

/* n_embd rounded up to MOEC_LANES: row stride, in floats, of every (n, n_embd) buffer; the padding is zero.
 */
size_t moec_forward_stride(const struct moec_config *config);

/* hidden[t] = embedding row of tokens[t]. Errors: MOEC_ERR_LIMIT for an id outside the vocabulary. */
MOEC_WARN_UNUSED enum moec_status moec_forward_embed(struct moec_forward *forward, const uint32_t *tokens,
                                                     uint32_t n_tok, float *hidden, struct moec_error *err);

/* hidden += attention(norm(hidden)) for one layer; writes each span's own keys and values. */
MOEC_WARN_UNUSED enum moec_status moec_forward_attention(struct moec_forward *forward, uint32_t layer,
                                                         const struct moec_span *spans, uint32_t n_spans,
                                                         uint32_t n_tok, float *hidden,
                                                         struct moec_error *err);

/* Keys and values of one encoder layer for n_tok rows of `hidden`, (n_tok, n_kv_head * head_dim) each: for
 * sources that are longer than a batch, whose rows can only attend once all have keys. */
MOEC_WARN_UNUSED enum moec_status moec_forward_keys(struct moec_forward *forward, uint32_t layer,
                                                    uint32_t n_tok, const float *hidden, float *keys,
                                                    float *values, struct moec_error *err);

/* What decoders attend to: norm of the encoder's last hidden states. `encoded` may be `hidden`. */
MOEC_WARN_UNUSED enum moec_status moec_forward_encoded(struct moec_forward *forward, uint32_t n_tok,
                                                       const float *hidden, float *encoded,
                                                       struct moec_error *err);

/* Keys and values that a decoder layer's cross attention reads, for n_tok rows of an encoded source. */
MOEC_WARN_UNUSED enum moec_status moec_forward_cross_keys(struct moec_forward *forward, uint32_t layer,
                                                          uint32_t n_tok, const float *encoded, float *keys,
                                                          float *values, struct moec_error *err);

/* hidden += cross attention(norm(hidden)) for a decoder layer, after its self attention; spans have a source.
 */
MOEC_WARN_UNUSED enum moec_status moec_forward_cross(struct moec_forward *forward, uint32_t layer,
                                                     const struct moec_span *spans, uint32_t n_spans,
                                                     uint32_t n_tok, float *hidden, struct moec_error *err);

/* hidden += mlp(norm(hidden)): dense MLP, or router, experts (each acquired once for the whole batch, in
 * increasing index) and shared expert. `trace` may be NULL. Errors of the expert source pass through. */
MOEC_WARN_UNUSED enum moec_status moec_forward_mlp(struct moec_forward *forward, uint32_t layer,
                                                   uint32_t n_tok, float *hidden,
                                                   const struct moec_mlp_trace *trace,
                                                   struct moec_error *err);

/* Output of one MLP for n_tok given inputs (n_tok, stride), unweighted: out (n_tok, stride). */
void moec_forward_expert(struct moec_forward *forward, const struct moec_mlp *mlp, uint32_t n_tok,
                         const float *input, float *out);

/* The sum that ends a MoE layer for one token: hidden += (w_0 y_0, then fma in rank order, shared output
 * last). `rank_outputs` are k pointers to rows; `shared_output` may be NULL for models without a shared
 * expert. */
void moec_forward_combine(struct moec_forward *forward, const float *const *rank_outputs,
                          const float *weights, const float *shared_output, float *hidden);

/* logits[t] = head . norm(hidden[t]) for n_tok rows: (n_tok, n_vocab) with row stride `logits_stride` floats.
 */
MOEC_WARN_UNUSED enum moec_status moec_forward_head(struct moec_forward *forward, uint32_t n_tok,
                                                    const float *hidden, float *logits, size_t logits_stride,
                                                    struct moec_error *err);

#endif
