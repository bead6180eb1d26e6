#include "runtime/policy/predict_parts.h"

static enum moec_status token_create(const struct moec_predict_setup *setup, struct moec_predict **out,
                                     struct moec_error *err)
{
    return moec_predict_plain_create(&moec_predict_token, setup, out, err);
}

/* An answer says nothing about the next layer. */
static uint32_t token_rank(struct moec_predict *self, const struct moec_router_answer *answer, uint32_t next,
                           struct moec_scored_expert *out)
{
    (void)self;
    (void)answer;
    (void)next;
    (void)out;
    return 0;
}

const struct moec_predict_ops moec_predict_token = {
    .name = "token",
    .knows_tokens = true,
    .state_bytes = moec_predict_plain_bytes,
    .create = token_create,
    .destroy = moec_predict_plain_destroy,
    .rank = token_rank,
};
