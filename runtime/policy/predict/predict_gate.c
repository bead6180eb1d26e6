/* A gate's score is a sum over tokens of shares that sum to 1. Times k it is how many tokens will take the
 * expert, at most all. A negative score marks an expert that a decided choice leaves out. */
#include "runtime/policy/predict/predict_parts.h"

static enum moec_status gate_create(const struct moec_predict_setup *setup, struct moec_predict **out,
                                    struct moec_error *err)
{
    return moec_predict_plain_create(&moec_predict_gate, setup, out, err);
}

static uint32_t gate_rank(struct moec_predict *self, const struct moec_router_answer *answer, uint32_t next,
                          struct moec_scored_expert *out)
{
    const struct moec_predict_setup *setup = &((struct moec_predict_plain *)self)->setup;
    const float most = (float)answer->n_tok;
    (void)next;
    uint32_t n = 0;
    for (uint32_t i = 0; i < answer->next.gate.n; i++) {
        const struct moec_scored_expert *gate = &answer->next.gate.experts[i];
        const float expected = (float)setup->top_k * gate->score;
        if (gate->score > 0)
            out[n++] = (struct moec_scored_expert){gate->expert, expected < most ? expected : most};
    }
    return n;
}

const struct moec_predict_ops moec_predict_gate = {
    .name = "gate",
    .needs_next_gate = true,
    .state_bytes = moec_predict_plain_bytes,
    .create = gate_create,
    .destroy = moec_predict_plain_destroy,
    .rank = gate_rank,
};
