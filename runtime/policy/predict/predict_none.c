#include "runtime/policy/predict/predict_parts.h"

static enum moec_status none_create(const struct moec_predict_setup *setup, struct moec_predict **out,
                                    struct moec_error *err)
{
    return moec_predict_plain_create(&moec_predict_none, setup, out, err);
}

const struct moec_predict_ops moec_predict_none = {
    .name = "none",
    .state_bytes = moec_predict_plain_bytes,
    .create = none_create,
    .destroy = moec_predict_plain_destroy,
    .rank = moec_predict_rank_none,
};
