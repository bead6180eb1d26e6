/* What a forward pass works with: the model, the source of its experts, its choice and its observers, its
 * threads and its memory. Every step of the pass (runtime/forward/pass/forward.h) is given one. */
#ifndef MOEC_RUNTIME_CONTEXT_H
#define MOEC_RUNTIME_CONTEXT_H

#include "runtime/forward/weights/model.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/kernels/int8.h"
#include "runtime/policy/decide/choice.h"
#include "runtime/seam/experts.h"
#include "runtime/threads/parallel.h"
#include "runtime/trace/trace.h"

struct moec_forward;

/* Rows of a batch or a part of one: n_pair, of which row i is the token pairs[i] / top_k of `normed` (tokens,
 * stride) and its output counts weights[pairs[i]] times. */
struct moec_paired_rows {
    const uint32_t *pairs;
    uint32_t n_pair, top_k;
    const float *normed;
    const float *weights;
};

/* What a routed expert is given. Before the first of a layer's experts it is told for all together: `expert`
 * is MOEC_EXPERT_ALL, `mlp` and rows.pairs are NULL, and there are n_pair / top_k tokens. Valid during the
 * call. */
#define MOEC_EXPERT_ALL UINT32_MAX
struct moec_expert_inputs {
    const struct moec_forward *forward; /* for moec_forward_activations */
    uint32_t layer, expert;
    const struct moec_mlp *mlp; /* as the expert source answered, with the layer's biases */
    struct moec_paired_rows rows;
};

/* Sees the inputs of products with dense weights and of routed experts, not those of routers: quantisers that
 * weigh errors by the inputs collect them here. All functions are called on the thread that drives the
 * forward pass. */
struct moec_inputs_hook {
    /* Rows x (n_tok, stride), zero from the matrices' columns to whole lanes, enter the products with these
     * tensors; of a matrix that comes in blocks of rows, once. NULL: dense weights are not wanted. */
    void (*take)(void *context, const struct moec_dense_entry *const *entries, uint32_t n_entries,
                 const float *x, size_t stride, uint32_t n_tok);
    /* Memory for (n_tok, stride) activations of an MLP, zero past its neurons, which its down projection will
     * be given; they are then taken like other inputs. NULL: not wanted. */
    float *(*room)(void *context, uint32_t n_tok, size_t stride);
    /* NULL: routed experts are not wanted. */
    void (*take_expert)(void *context, const struct moec_expert_inputs *inputs);
    /* (n_expert): of MoE layers these experts are shown, and nothing is computed: hidden states stay as they are. NULL:
     * all are shown while the layer is computed. */
    const bool *only_shown;
    void *context;
};

struct moec_scratch;
struct moec_decider;
struct moec_sparsity;
struct moec_kv_lender;
struct moec_rounded;
struct moec_learned_predictor;
struct moec_expert_predictor;
struct moec_backend;

/* A plain value that no step changes. To run the same pass with other experts, another choice or an observer,
 * copy it and set that in the copy: a second pass on the same working memory. Passes of one memory work one
 * after the other, a layer at a time or longer, and end with moec_forward_release of the one that was
 * initialised. Thread rule: one thread at a time for all of them (they parallelise inside through the pool);
 * several memories may share a model. All pointers but `scratch` are borrowed. */
struct moec_forward {
    const struct moec_model *model; /* of the config that the memory was made for */
    struct moec_experts *experts;
    const struct moec_choice *choice;       /* NULL = the router's own */
    const struct moec_residents *residents; /* what choices see as resident; NULL = unknown */
    struct moec_decider *decider; /* NULL = no choice looks at a logical cache; else `choice` is not asked */
    struct moec_sparsity
        *sparsity;            /* of routed experts (runtime/forward/moe/sparsity.h); NULL = all neurons */
    struct moec_trace *trace; /* NULL = nobody looks */
    const struct moec_inputs_hook *inputs; /* likewise */
    const struct moec_kv_lender *lender;   /* NULL = empty rows of sessions serve nobody else */
    struct moec_backend *backend;          /* NULL = the pass computes in the process's memory */
    /* Of a model with an offload (runtime/forward/weights/offload.h): the source that was given, of which `experts`
     * are copies on the device; else NULL. */
    struct moec_experts *experts_here;

    const struct moec_kernels *kernels;
    struct moec_pool pool;
    uint32_t max_tokens;          /* largest batch, given at init */
    struct moec_scratch *scratch; /* the working memory, owned: see above */
    uint64_t scratch_bytes;
    enum moec_arithmetic arithmetic; /* of moec_forward_use_arithmetic */
    struct moec_rounded *rounded;    /* owned as the scratch; NULL where no inputs are rounded to INT8 */
    struct moec_learned_predictor *
        learned_predictor; /* likewise (runtime/forward/context/learned_predictor.h); NULL = nothing learned predicts */
    /* Likewise: (max_tokens, choices padded to lanes) of the router at work, before anything is chosen; NULL
     * = they are not kept. */
    float *kept_logits;
};

static inline struct moec_scratch *moec_forward_scratch(const struct moec_forward *forward)
{
    return forward->scratch;
}

/* Row stride, in floats, of every (n, n_embd) buffer: n_embd rounded up to MOEC_LANES, the padding zero.
 * Where what experts give joins the hidden state a layer later, rows have as much again behind that, so that
 * whatever keeps hidden states between layers keeps it too: from moec_forward_late on, what is still to join,
 * else zeros. */
static inline size_t moec_forward_stride(const struct moec_config *config)
{
    return (config->mlp.joins_late ? 2 : 1) * moec_lanes_padded(config->n_embd);
}

/* Where in a hidden state's row the sum of the routed experts of a MoE layer goes. */
static inline size_t moec_forward_late(const struct moec_config *config)
{
    return config->mlp.joins_late ? moec_lanes_padded(config->n_embd) : 0;
}

#endif
