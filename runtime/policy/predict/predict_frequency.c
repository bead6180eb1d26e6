#include "runtime/policy/predict/predict_parts.h"

static enum moec_status frequency_create(const struct moec_predict_setup *setup, struct moec_predict **out,
                                         struct moec_error *err)
{
    MOEC_TRY(moec_predict_check_paths(&moec_predict_frequency, setup, err));
    return moec_predict_plain_create(&moec_predict_frequency, setup, out, err);
}

static uint32_t frequency_rank(struct moec_predict *self, const struct moec_router_answer *answer,
                               uint32_t next, struct moec_scored_expert *out)
{
    const struct moec_predict_setup *setup = &((struct moec_predict_plain *)self)->setup;
    moec_predict_by_frequency(setup->paths, next, answer->n_tok, out);
    return moec_predict_order(setup, answer->n_tok, out);
}

const struct moec_predict_ops moec_predict_frequency = {
    .name = "frequency",
    .needs_paths = true,
    .state_bytes = moec_predict_plain_bytes,
    .create = frequency_create,
    .destroy = moec_predict_plain_destroy,
    .rank = frequency_rank,
};
