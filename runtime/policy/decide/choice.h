/* Which experts a token takes: the second of routing's two steps, between the scores of the model's router
 * (runtime/forward/moe/router_scores.h) and the weights that are made of what was chosen. The router's own way,
 * top-k, is one choice among others, and the one that models are trained with; policies have their own (D9),
 * such as routing that prefers what is in memory (cache-conditional experts, arXiv:2412.00099).
 *
 * Choices decide, so they stay pure (D15): a function of what they are given. They are asked for every token
 * of a batch, in any order and from any thread of the pool, so nothing that a choice reads may change during
 * a call of moec_forward_mlp. */
#ifndef MOEC_RUNTIME_CHOICE_H
#define MOEC_RUNTIME_CHOICE_H

#include "formats/model/config.h"

/* A view of the experts that are in memory, or in a logical cache that stands for it.
 * First member of every implementation. */
struct moec_residents {
    bool (*has)(const struct moec_residents *self, uint32_t layer, uint32_t expert); /* layer: the model's */
};

/* What the choices of runtime/policy/decide/route.h look at besides. */
struct moec_ranked_experts {
    const float
        *compared;       /* (n_expert): what the router ranks by, -INFINITY for experts that it leaves out */
    const float *shares; /* (n_expert): how much it leans to each; they sum to 1 */
    float range;         /* of `compared`, by the route's way of averaging it */
};

/* One token in one MoE layer, scored. Arrays are borrowed for the call. */
struct moec_scored_token {
    uint32_t layer; /* the model's */
    uint32_t n_expert, top_k;
    const float *scores;                    /* (n_expert) */
    const float *bias;                      /* (n_expert), counts for the choice alone; NULL = none */
    const struct moec_residents *residents; /* NULL = unknown */
    struct moec_ranked_experts ranked;      /* zero for other choices than theirs */
};

struct moec_choice {
    /* experts (top_k) receives the choice, the best first, each expert once. skips (top_k) is all false at
     * first; an expert whose entry is set to true gets weight 0,
     * and the others get the weights of a smaller top-k. */
    void (*choose)(const void *context, const struct moec_scored_token *token, uint32_t *experts,
                   bool *skips);
    const void *context;
};

/* The router's own: the experts with the best scores, bias included, ties to the lower index. */
extern const struct moec_choice moec_choice_top_k;

/* The n_best highest of the token's scores, bias included, in falling order, ties to the lower index; NaN
 * counts as the lowest. values (n_best) receives the scores with bias. n_best <= n_expert. For choices that
 * begin with the router's. */
void moec_choose_best(const struct moec_scored_token *token, uint32_t n_best, uint32_t *experts,
                      float *values);

#endif
