/* Where the learned predictor says nothing, before the first layer, frequencies do, if the bundle has them.
 */
#include "runtime/policy/predict/predict_parts.h"

static enum moec_status learned_create(const struct moec_predict_setup *setup, struct moec_predict **out,
                                       struct moec_error *err)
{
    return moec_predict_plain_create(&moec_predict_learned, setup, out, err);
}

static uint32_t learned_rank(struct moec_predict *self, const struct moec_router_answer *answer,
                             uint32_t next, struct moec_scored_expert *out)
{
    const struct moec_predict_setup *setup = &((struct moec_predict_plain *)self)->setup;
    uint32_t n = 0;
    if (answer->next.learned.n == 0 && setup->paths != NULL && setup->paths->n_layer > 0) {
        moec_predict_by_frequency(setup->paths, next, answer->n_tok, out);
        return moec_predict_order(setup, answer->n_tok, out);
    }
    while (n < answer->next.learned.n && answer->next.learned.experts[n].score > 0) {
        out[n] = answer->next.learned.experts[n];
        n++;
    }
    return n;
}

const struct moec_predict_ops moec_predict_learned = {
    .name = "learned",
    .needs_learned = true,
    .state_bytes = moec_predict_plain_bytes,
    .create = learned_create,
    .destroy = moec_predict_plain_destroy,
    .rank = learned_rank,
};
