#include "runtime/policy/predict_parts.h"

static enum moec_status none_create(const struct moec_predict_setup *setup, struct moec_predict **out,
                                    struct moec_error *err)
{
    return moec_predict_plain_create(&moec_predict_none, setup, out, err);
}

static uint32_t none_rank(struct moec_predict *self, const struct moec_router_answer *answer, uint32_t next,
                          struct moec_scored_expert *out)
{
    (void)self;
    (void)answer;
    (void)next;
    (void)out;
    return 0;
}

const struct moec_predict_ops moec_predict_none = {
    .name = "none",
    .state_bytes = moec_predict_plain_bytes,
    .create = none_create,
    .destroy = moec_predict_plain_destroy,
    .rank = none_rank,
};
