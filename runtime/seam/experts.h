/* Where the engine gets a routed expert's weights from: the seam between computing and storage.
 *
 * A request names an expert of a layer and one of the forms that the source offers. A form is a precision
 * copy, a part of its records, and the memory pool that holds it. The forward pass asks for one expert of one
 * layer at a time in form 0, uses it and gives it back. Behind the seam are the bundle's cache within the
 * memory budget (runtime/experts/expert_cache.h) and the profiler's table of encoded variants. Thread rule:
 * acquire and release are called from one thread for each session; an implementation that several sessions
 * share locks inside. */
#ifndef MOEC_RUNTIME_EXPERTS_H
#define MOEC_RUNTIME_EXPERTS_H

#include "formats/model/record.h"
#include "formats/tables/path_table.h"

struct moec_experts;

/* The memory that weights are computed from. */
enum moec_expert_pool {
    MOEC_POOL_HOST = 0, /* the process's own */
};

/* What a source can deliver of an expert. */
struct moec_expert_form {
    uint32_t copy; /* level in the bundle; 0 is the compiled assignment */
    struct moec_record_part part;
    enum moec_expert_pool pool;
};

struct moec_expert_request {
    uint32_t layer; /* model layer, an encoder's before a decoder's */
    uint32_t expert;
    uint32_t form; /* index of one of the source's; 0 is the default, and the only one of most */
};

/* What the forward pass asks for. */
static inline struct moec_expert_request moec_expert_request_of(uint32_t layer, uint32_t expert)
{
    return (struct moec_expert_request){.layer = layer, .expert = expert};
}

/* Routers of the next MoE layers that may be asked with one layer's input, at most. */
#define MOEC_GATES_AHEAD 4u

/* How many experts of a layer a prediction names for one token: twice as many as it takes, or those from the
 * 75th percentile on where these are more (Fate, arXiv:2502.12224, section 4.2). At most so many in all: */
#define MOEC_MOST_PREDICTED                                                                                  \
    (MOEC_MAX_EXPERTS / 4 > 2 * MOEC_MAX_TOP_K ? MOEC_MAX_EXPERTS / 4 : 2 * MOEC_MAX_TOP_K)
static inline uint32_t moec_predicted_experts(uint32_t top_k, uint32_t n_expert)
{
    const uint32_t quarter = (n_expert + 3) / 4, n = 2 * top_k > quarter ? 2 * top_k : quarter;
    return n < n_expert ? n : n_expert;
}

/* Scored experts, by falling score, ties to the lower index. */
struct moec_gate_list {
    const struct moec_scored_expert *experts; /* NULL where nothing is said */
    uint32_t n;
};

/* The experts that any token takes. */
struct moec_active_experts {
    /* (n), increasing; n_expert x j + e is expert e in the j-th form behind the answer's `form`. An expert is
     * active in several forms where tokens take it in such. */
    const uint32_t *list;
    uint32_t n;               /* 1 .. n_expert, in each form */
    const uint32_t *n_takers; /* (n): tokens that take each; NULL for one token */
    /* (n) holds what `list` holds, or NULL: a source may put them into the order in which it wants them to be
     * acquired, such as what it has before what it must read. */
    uint32_t *order;
};

/* What each token takes of one layer. */
struct moec_answer_choices {
    const uint32_t *experts; /* (T, k) in order of weight, or NULL */
    const float *weights;    /* (T, k) as applied, or NULL */
    const bool *is_low;      /* (T, k): taken in the form behind the answer's `form`; NULL = none */
};

/* For predictions. */
struct moec_next_experts {
    /* The next MoE layer's router applied to this layer's input (its gate input, after this layer's norm):
     * probabilities summed over the T tokens. For one token the moec_predicted_experts best, else every
     * expert. Of a token that decides by a logical cache, what that would not let it take, as it stands, has
     * the negative of its score. NULL in a stack's last MoE layer. */
    struct moec_gate_list gate;
    /* The same of the MoE layers behind the next one, the second from here first (HOBBIT, arXiv:2411.01433,
     * section 3.3): those that were asked. */
    struct moec_gate_list later[MOEC_GATES_AHEAD - 1];
    /* The same by the bundle's learned predictor: how likely each token chooses them, summed over the tokens.
     * NULL too where the bundle has none. */
    struct moec_gate_list learned;
    /* (n_expert) of a prompt: those that its tokens will take of the next MoE layer in the form behind
     * `form`. NULL where that is not known, or none are. */
    const bool *is_low;
};

/* For a trace that keeps them, else NULL: what the router said of each choice before anything was chosen, its
 * bias included. */
struct moec_answer_logits {
    const float *rows; /* (T, n) */
    uint32_t n, stride;
};

/* What the router of one MoE layer answered for a batch of T tokens with k choices each. Arrays are borrowed
 * for the call; those that may be NULL are there where the source asked for them. */
struct moec_router_answer {
    uint32_t layer; /* model layer */
    uint32_t form;  /* in which the active experts below n_expert will be acquired */
    uint32_t n_tok; /* T */
    struct moec_active_experts active;
    struct moec_answer_choices choices;
    struct moec_answer_choices last; /* in the MoE layer before; NULL in a stack's first one, is_low always */
    struct moec_next_experts next;
    struct moec_answer_logits logits;
};

/* What a source answers a request with, for those who keep a copy of it elsewhere: as long as `content` is
 * the same, so are the weights. */
#define MOEC_EXPERT_RANGES 2
struct moec_expert_bytes {
    uint64_t content;
    struct moec_mlp_filter filter;
    /* Where the matrices stand, one behind the other or mixed; NULL where the expert is not held. */
    const uint8_t *from[MOEC_EXPERT_RANGES];
    uint64_t n_bytes[MOEC_EXPERT_RANGES];
    uint32_t n_range;
};

struct moec_experts_ops {
    /* Points `mlp` at the expert's weights, which stay valid and unchanged until release of the same request;
     * projections that are no part of the form have no rows. Errors name layer and expert; MOEC_ERR_USAGE for
     * a form that the source does not offer. */
    enum moec_status (*acquire)(struct moec_experts *self, struct moec_expert_request request,
                                struct moec_mlp *mlp, struct moec_error *err);
    void (*release)(struct moec_experts *self, struct moec_expert_request request);

    /* Optional (NULL): the router has answered (unless every token found its expert full and none is needed);
     * the active experts will be acquired in the answer's order, each once, and each released; waiting for
     * one, a session holds no other. A streaming source starts loading what is missing. */
    void (*expect)(struct moec_experts *self, const struct moec_router_answer *answer);

    /* Optional (NULL, both): whether the source would now predict what the MoE layer so many ahead needs,
     * asked after expect for the next one (1), and after each prefetch for the one behind it; and if so the same
     * answer with the gates up to that layer and next.learned, where the source wants them. */
    bool (*wants_prefetch)(struct moec_experts *self, uint32_t ahead);
    void (*prefetch)(struct moec_experts *self, const struct moec_router_answer *answer, uint32_t ahead);

    /* Optional (NULL): the tokens that are about to pass the layers will ask for these experts of a layer
     * that routes by token (increasing, n of them, in form 0). Called before the first layer, in the order of
     * the layers; takes the place of what was hinted for the layer before. A streaming source may read them
     * ahead. */
    void (*hint)(struct moec_experts *self, uint32_t layer, const uint32_t *experts, uint32_t n);

    /* Optional (NULL): so many tokens begin to pass the layers, and come to this MoE layer first. `is_low`
     * (n_expert) names experts that they will take in form 1, NULL: none; it stays as it is until the layer's
     * answer. */
    void (*begin_prompt)(struct moec_experts *self, uint32_t layer, uint32_t n_tok, const bool *is_low);

    /* Optional (NULL): a sequence begins, or another input of an encoder. */
    void (*begin)(struct moec_experts *self);

    /* Optional (NULL): an expert that was expected will not be acquired after all, because another one could
     * not be. (The one whose acquire failed is not expected any more.) */
    void (*cancel)(struct moec_experts *self, struct moec_expert_request request);

    /* Optional (NULL: none) of a source whose weights are in a backend's memory: whether those of a held
     * expert are in the process's all the same, to be computed with there. */
    bool (*is_here)(struct moec_experts *self, struct moec_expert_request request);

    /* Optional (NULL): holds a record as acquire does if it is there now, and nothing else: nobody asked for
     * it, and policies see no use. Whether it was; it is released like others. */
    bool (*borrow)(struct moec_experts *self, struct moec_expert_request request, struct moec_mlp *mlp);

    /* Optional (NULL: not told): what the request is answered with now; `held` is the answer of acquire, or
     * NULL. The request is one that acquire takes. */
    void (*bytes)(struct moec_experts *self, struct moec_expert_request request, const struct moec_mlp *held,
                  struct moec_expert_bytes *out);

    /* Optional (NULL = always): whether acquire would answer at once. The forward pass computes experts that
     * are ready together and never waits for one while it could compute another. Results that depend on the
     * answer are those of a mode that says so alone (D15; runtime/policy/decide/precision.h, shared). Of a source
     * that gives parts: whether acquire needs no more room, as the expert is there or on its way. */
    bool (*ready)(struct moec_experts *self, struct moec_expert_request request);

    /* Both where the source gives parts: an acquired expert has its up projection, and gate and down rows of
     * some neurons. `need` asks for those of the neurons whose bits are set (neuron i: bit i % 64 of word i /
     * 64) and does not wait; with touches_all the rows of all other neurons are finite too, so that they give
     * nothing times 0. `await` returns when what was needed is there; errors name layer and expert. */
    void (*need)(struct moec_experts *self, struct moec_expert_request request, const uint64_t *neurons,
                 bool touches_all);
    enum moec_status (*await)(struct moec_experts *self, struct moec_expert_request request,
                              const uint64_t *neurons, bool touches_all, struct moec_error *err);
};

/* First member of every implementation. */
struct moec_experts {
    const struct moec_experts_ops *ops;
    /* Experts that may be held at once; 0 and 1 mean that each is released before the next. */
    uint32_t max_held;
    uint32_t n_form;         /* forms that may be asked for; 0 and 1 mean form 0 alone */
    bool wants_choices;      /* answers carry choices and last */
    bool wants_next_gate;    /* answers that are to be prefetched from carry next.gate and next.later */
    bool wants_next_learned; /* and next.learned */
    bool gives_parts;        /* gate and down rows are there after need and await alone */
};

/* Whether the source offers the request's form. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED static inline enum moec_status moec_experts_check_form(const struct moec_experts *self,
                                                                        struct moec_expert_request request,
                                                                        struct moec_error *err)
{
    const uint32_t n_form = self->n_form > 1 ? self->n_form : 1;
    if (request.form < n_form)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "layer %u expert %u is requested in form (precision) %u, expected a form below %u",
                     request.layer, request.expert, request.form, n_form);
}

#endif
