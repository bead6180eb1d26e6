#include "runtime/policy/predict/predict_parts.h"

static enum moec_status token_create(const struct moec_predict_setup *setup, struct moec_predict **out,
                                     struct moec_error *err)
{
    return moec_predict_plain_create(&moec_predict_token, setup, out, err);
}

const struct moec_predict_ops moec_predict_token = {
    .name = "token",
    .knows_tokens = true,
    .state_bytes = moec_predict_plain_bytes,
    .create = token_create,
    .destroy = moec_predict_plain_destroy,
    .rank = moec_predict_rank_none, /* an answer says nothing about the next layer */
};
