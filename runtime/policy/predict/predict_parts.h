/* What predictors share (internal to runtime/). */
#ifndef MOEC_RUNTIME_PREDICT_PARTS_H
#define MOEC_RUNTIME_PREDICT_PARTS_H

#include "formats/base/memory.h"
#include "runtime/policy/predict/predict.h"
#include "runtime/policy/predict/scored.h"

#include <string.h>

/* A predictor that knows only the model. */
struct moec_predict_plain {
    struct moec_predict base;
    struct moec_predict_setup setup;
};

/* state_bytes, create and destroy of those. */
uint64_t moec_predict_plain_bytes(const struct moec_predict_setup *setup);
MOEC_WARN_UNUSED enum moec_status moec_predict_plain_create(const struct moec_predict_ops *ops,
                                                            const struct moec_predict_setup *setup,
                                                            struct moec_predict **out,
                                                            struct moec_error *err);
void moec_predict_plain_destroy(struct moec_predict *self);
/* rank of those that expect nothing of the next layer: 0 experts. */
uint32_t moec_predict_rank_none(struct moec_predict *self, const struct moec_router_answer *answer,
                                uint32_t next, struct moec_scored_expert *out);

/* MOEC_ERR_USAGE without a path table of the model. */
MOEC_WARN_UNUSED enum moec_status moec_predict_check_paths(const struct moec_predict_ops *ops,
                                                           const struct moec_predict_setup *setup,
                                                           struct moec_error *err);

/* How often a token chooses each expert of a layer: sets the scores of out (n_expert) for n_tok tokens. */
void moec_predict_by_frequency(const struct moec_path_table *paths, uint32_t ordinal, uint32_t n_tok,
                               struct moec_scored_expert *out);

/* Orders scores (n_expert) and returns how many of them a ranking holds. */
uint32_t moec_predict_order(const struct moec_predict_setup *setup, uint32_t n_tok,
                            struct moec_scored_expert *out);

/* The path table's scores of the next layer, for the tokens of an answer that carries choices: sets those of
 * out (n_expert). `scratch` (n_expert). Layer 0 has its frequencies. */
void moec_predict_by_paths(const struct moec_predict_setup *setup, const struct moec_router_answer *answer,
                           uint32_t next, float *scratch, struct moec_scored_expert *out);

#endif
