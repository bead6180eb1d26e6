/* score = k (gate + GATE_LEAST n_tok) (path / n_tok + PATH_LEAST)^(1/8), where gate and path are sums over
 * n_tok tokens. The root is three square roots, which IEEE 754 rounds alike everywhere. An expert that the
 * gate does not name has gate = 0, and one of negative score is left out. Without a gate, before layer 0,
 * the paths speak alone. */
#include "runtime/policy/predict/predict_parts.h"

#include <math.h>

/* Probabilities below which neither says anything. */
#define GATE_LEAST 1e-4f
#define PATH_LEAST 0.01f

struct path_gate {
    struct moec_predict base;
    struct moec_predict_setup setup;
    float scratch[]; /* (n_expert) */
};

static uint64_t path_gate_bytes(const struct moec_predict_setup *setup)
{
    return sizeof(struct path_gate) + setup->n_expert * sizeof(float);
}

static enum moec_status path_gate_create(const struct moec_predict_setup *setup, struct moec_predict **out,
                                         struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_predict_check_paths(&moec_predict_path_gate, setup, err));
    MOEC_TRY(moec_alloc(&memory, path_gate_bytes(setup), 1, "predictor", err));
    struct path_gate *path_gate = memory;
    path_gate->base.ops = &moec_predict_path_gate;
    path_gate->setup = *setup;
    *out = &path_gate->base;
    return MOEC_OK;
}

static void path_gate_destroy(struct moec_predict *self)
{
    free(self);
}

static uint32_t path_gate_rank(struct moec_predict *self, const struct moec_router_answer *answer,
                               uint32_t next, struct moec_scored_expert *out)
{
    struct path_gate *path_gate = (struct path_gate *)self;
    const struct moec_predict_setup *setup = &path_gate->setup;
    moec_predict_by_paths(setup, answer, next, path_gate->scratch, out);
    if (answer->next.gate.n > 0) {
        const float n_tok = (float)answer->n_tok, least = GATE_LEAST * n_tok, top_k = (float)setup->top_k;
        for (uint32_t e = 0; e < setup->n_expert; e++) {
            path_gate->scratch[e] = sqrtf(sqrtf(sqrtf(out[e].score / n_tok + PATH_LEAST)));
            out[e].score = least * top_k * path_gate->scratch[e];
        }
        for (uint32_t i = 0; i < answer->next.gate.n; i++) {
            const struct moec_scored_expert *gate = &answer->next.gate.experts[i];
            if (gate->score < 0)
                out[gate->expert].score = 0;
            else
                out[gate->expert].score += top_k * gate->score * path_gate->scratch[gate->expert];
        }
    }
    return moec_predict_order(setup, answer->n_tok, out);
}

const struct moec_predict_ops moec_predict_path_gate = {
    .name = "path+gate",
    .needs_paths = true,
    .needs_next_gate = true,
    .state_bytes = path_gate_bytes,
    .create = path_gate_create,
    .destroy = path_gate_destroy,
    .rank = path_gate_rank,
};
