#include "runtime/policy/predict/predict_parts.h"

struct path {
    struct moec_predict base;
    struct moec_predict_setup setup;
    float scratch[]; /* (n_expert) */
};

static uint64_t path_bytes(const struct moec_predict_setup *setup)
{
    return sizeof(struct path) + setup->n_expert * sizeof(float);
}

static enum moec_status path_create(const struct moec_predict_setup *setup, struct moec_predict **out,
                                    struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_predict_check_paths(&moec_predict_path, setup, err));
    MOEC_TRY(moec_alloc(&memory, path_bytes(setup), 1, "predictor", err));
    struct path *path = memory;
    path->base.ops = &moec_predict_path;
    path->setup = *setup;
    *out = &path->base;
    return MOEC_OK;
}

static void path_destroy(struct moec_predict *self)
{
    free(self);
}

static uint32_t path_rank(struct moec_predict *self, const struct moec_router_answer *answer, uint32_t next,
                          struct moec_scored_expert *out)
{
    struct path *path = (struct path *)self;
    moec_predict_by_paths(&path->setup, answer, next, path->scratch, out);
    return moec_predict_order(&path->setup, answer->n_tok, out);
}

const struct moec_predict_ops moec_predict_path = {
    .name = "path",
    .needs_paths = true,
    .state_bytes = path_bytes,
    .create = path_create,
    .destroy = path_destroy,
    .rank = path_rank,
};
