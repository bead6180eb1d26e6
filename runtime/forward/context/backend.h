/* Where a forward pass computes when that is not the process's own memory: the operations that a device has
 * in place of runtime/forward's own (D10, D19). The pass keeps what is not arithmetic over rows: sessions,
 * positions, routing from the router's logits, and the protocol with the source of experts.
 *
 * Rows of hidden states, and keys and values, are the backend's memory, whose pointers the pass only keeps,
 * adds to and passes back. The norm of a MoE layer's input, the outputs of its experts and everything else
 * that lives within a layer stays inside the backend. Weights are the backend's own copies, found by layer;
 * experts come from the forward's source, which then answers with matrices in the backend's memory.
 *
 * Results are those of the pass without a backend, bit for bit (D1). Errors are those of a device: after one
 * the step has failed, and MOEC_ERR_IO for good. Thread rule: one thread at a time, that of the forward pass.
 */
#ifndef MOEC_RUNTIME_BACKEND_H
#define MOEC_RUNTIME_BACKEND_H

#include "formats/model/record.h"
#include "runtime/forward/context/span.h"
#include "runtime/kernels/draw.h"
#include "runtime/seam/experts.h"

struct moec_backend;
struct moec_mlp_job;
struct moec_sparsity;

/* Of T rows that a MoE layer's router has looked at; valid until the backend's next call. */
struct moec_backend_scores {
    const float *logits; /* (T, logits_stride), without bias */
    size_t logits_stride;
    /* (T, moec_forward_stride): what the routed experts read, of a backend that leaves some of them to the
     * process; else NULL. */
    const float *inputs;
    const float *shared; /* (T): the shared expert's gate . x, before its sigmoid; NULL without such a gate */
};

/* What ends a MoE layer for T rows: hidden += their experts' outputs times weights, in rank order, then the
 * shared expert's output times its factor. */
struct moec_backend_sum {
    uint32_t n_tok, top_k;
    const float *weights;  /* (T, k) */
    const bool *passes_by; /* (T, k): experts that were not computed and count as zeros; NULL = none */
    /* Experts of weights of 0 or less were full and not computed: they count as zeros, or as their input
     * times the size of a weight below 0 (struct moec_sequence_rows). */
    bool is_limited;
    const float *shared_factor; /* (T), where the layer has a shared expert */
};

/* Rows of a MoE layer for those who trace it, in the process's memory; NULL members are not wanted. T =
 * n_tok, rows of moec_forward_stride. */
struct moec_backend_rows {
    float *router_input, *expert_input; /* (T): what the router reads, and the routed experts */
    float *ranks;                       /* (T, k): outputs of experts; those of no expert are undefined */
    float *shared;                      /* (T): of the shared expert or the bypass, before its factor */
};

struct moec_backend_ops {
    /* Memory for rows, keys and values, zero; `what` names it in messages. */
    enum moec_status (*alloc)(struct moec_backend *self, uint64_t n_bytes, const char *what, void **out,
                              struct moec_error *err);
    void (*free)(struct moec_backend *self, void *memory);
    /* Between two such places, after everything that was asked for and before what will be. An error shows in
     * the next step. */
    void (*copy)(struct moec_backend *self, void *to, const void *from, uint64_t n_bytes);

    /* Optional (NULL, all three), of backends that take rows of the process's memory: until let_go, the steps
     * that are given rows that begin here work on n_tok of them at most, nobody else writes them, and they
     * are up to date in the process's memory after `update` alone. One such place at a time. */
    void (*hold)(struct moec_backend *self, float *rows, uint32_t n_tok);
    enum moec_status (*update)(struct moec_backend *self, struct moec_error *err);
    void (*let_go)(struct moec_backend *self);

    /* As moec_forward_embed, for tokens that are in the vocabulary; begins a pass over the layers. */
    enum moec_status (*embed)(struct moec_backend *self, const uint32_t *tokens, uint32_t n_tok,
                              float *hidden, struct moec_error *err);
    /* As moec_forward_attention; spans stand one behind the other from row 0 on. */
    enum moec_status (*attention)(struct moec_backend *self, uint32_t layer, struct moec_batch batch,
                                  float *hidden, struct moec_error *err);
    /* Of encoder-decoder models: as moec_forward_encoded, _keys, _cross_keys and _cross; not looked at in
     * others. */
    enum moec_status (*encoded)(struct moec_backend *self, uint32_t n_tok, const float *hidden,
                                float *encoded, struct moec_error *err);
    enum moec_status (*keys)(struct moec_backend *self, uint32_t layer, uint32_t n_tok, const float *hidden,
                             struct moec_kv_rows out, struct moec_error *err);
    enum moec_status (*cross_keys)(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                   const float *encoded, struct moec_kv_rows out, struct moec_error *err);
    enum moec_status (*cross)(struct moec_backend *self, uint32_t layer, struct moec_batch batch,
                              float *hidden, struct moec_error *err);
    /* hidden += the dense MLP of norm(hidden). */
    enum moec_status (*dense)(struct moec_backend *self, uint32_t layer, uint32_t n_tok, float *hidden,
                              struct moec_error *err);

    /* A MoE layer: norms its input; says what the router of a layer, this one or another, makes of that;
     * computes some of the routed experts' rows, whose biases are the backend's own, or the shared expert's;
     * adds it all up. */
    enum moec_status (*norm)(struct moec_backend *self, uint32_t layer, uint32_t n_tok, const float *hidden,
                             struct moec_error *err);
    enum moec_status (*score)(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                              struct moec_backend_scores *out, struct moec_error *err);
    /* Routed experts of this layer read its normed input times factors (T), in models whose router scales
     * what they read; not looked at in others. */
    enum moec_status (*scale)(struct moec_backend *self, uint32_t n_tok, const float *factors,
                              struct moec_error *err);
    /* Optional (NULL: what the backend was made with): `experts` leaves out neurons by this sparsity of the
     * pass, which is borrowed until another is named; NULL: by none. */
    enum moec_status (*leave_out)(struct moec_backend *self, struct moec_sparsity *sparsity,
                                  struct moec_error *err);
    enum moec_status (*experts)(struct moec_backend *self, const struct moec_mlp_job *jobs, uint32_t n_jobs,
                                struct moec_error *err);
    /* As moec_mlp_mark, for jobs of which only up projections are there: bits of the neurons that job j needs
     * at neurons + j * n_words. The same jobs run next. */
    enum moec_status (*mark)(struct moec_backend *self, const struct moec_mlp_job *jobs, uint32_t n_jobs,
                             uint64_t *neurons, uint32_t n_words, struct moec_error *err);
    /* Outputs that the process computed: of pair pairs[i], i < n, the row pairs[i] of `rows` (T x k,
     * moec_forward_stride). Of backends that gave it inputs. */
    enum moec_status (*give)(struct moec_backend *self, const uint32_t *pairs, uint32_t n, const float *rows,
                             struct moec_error *err);
    enum moec_status (*shared)(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                               struct moec_error *err);
    /* Optional (NULL: not shown): before combine, what the layer at work has made. */
    enum moec_status (*show)(struct moec_backend *self, uint32_t n_tok, const struct moec_backend_rows *rows,
                             struct moec_error *err);
    enum moec_status (*combine)(struct moec_backend *self, uint32_t layer, const struct moec_backend_sum *sum,
                                float *hidden, struct moec_error *err);

    /* Optional, of backends that show: as moec_forward_expert, of a held expert, for rows of the process's
     * memory. */
    enum moec_status (*expert)(struct moec_backend *self, struct moec_expert_request request,
                               const struct moec_mlp *mlp, uint32_t n_tok, const float *input, float *out,
                               struct moec_error *err);

    /* As moec_forward_head, to logits in the process's memory. */
    enum moec_status (*head)(struct moec_backend *self, uint32_t n_tok, const float *hidden, float *logits,
                             size_t logits_stride, struct moec_error *err);
    /* Optional (NULL: tokens are chosen by the process): the head of one row, and the token that
     * moert_sampler_next chooses of its logits, which stay with the backend. */
    enum moec_status (*choose)(struct moec_backend *self, const float *hidden, const struct moec_draw *how,
                               struct moec_chosen *chosen, struct moec_error *err);
};

/* First member of every implementation. */
struct moec_backend {
    const struct moec_backend_ops *ops;
};

#endif
