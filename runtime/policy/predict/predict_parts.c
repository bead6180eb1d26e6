/* A path leads from the two MoE layers before the next one. Layer 0 has none before it, so it goes by
 * frequency, as does an answer without choices; layer 1 has one. Scores are sums over the tokens of a batch,
 * and experts of score 0 are never named. */
#include "runtime/policy/predict/predict_parts.h"

uint64_t moec_predict_plain_bytes(const struct moec_predict_setup *setup)
{
    (void)setup;
    return sizeof(struct moec_predict_plain);
}

enum moec_status moec_predict_plain_create(const struct moec_predict_ops *ops,
                                           const struct moec_predict_setup *setup, struct moec_predict **out,
                                           struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_predict_plain), "predictor", err));
    struct moec_predict_plain *plain = memory;
    plain->base.ops = ops;
    plain->setup = *setup;
    *out = &plain->base;
    return MOEC_OK;
}

void moec_predict_plain_destroy(struct moec_predict *self)
{
    free(self);
}

uint32_t moec_predict_rank_none(struct moec_predict *self, const struct moec_router_answer *answer,
                                uint32_t next, struct moec_scored_expert *out)
{
    (void)self;
    (void)answer;
    (void)next;
    (void)out;
    return 0;
}

enum moec_status moec_predict_check_paths(const struct moec_predict_ops *ops,
                                          const struct moec_predict_setup *setup, struct moec_error *err)
{
    const struct moec_path_table *paths = setup->paths;
    if (paths == NULL || paths->n_layer == 0)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "predictor '%s' needs a path table (which experts follow which), and this model has none: compile it with a "
            "profile, or use predictor 'gate'",
            ops->name);
    if (paths->n_layer != setup->n_layer || paths->n_expert != setup->n_expert ||
        paths->top_k != setup->top_k)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "the path table has %u layers, %u experts and top-k %u, but the model has %u, %u and %u",
            paths->n_layer, paths->n_expert, paths->top_k, setup->n_layer, setup->n_expert, setup->top_k);
    return MOEC_OK;
}

static void clear(struct moec_scored_expert *out, uint32_t n_expert)
{
    for (uint32_t e = 0; e < n_expert; e++)
        out[e] = (struct moec_scored_expert){e, 0};
}

void moec_predict_by_frequency(const struct moec_path_table *paths, uint32_t ordinal, uint32_t n_tok,
                               struct moec_scored_expert *out)
{
    const struct moec_path_value *row = paths->frequency + (size_t)ordinal * paths->n_expert;
    clear(out, paths->n_expert);
    for (uint32_t i = 0; i < paths->n_expert && row[i].expert != MOEC_PATH_NONE; i++)
        out[row[i].expert].score = (float)n_tok * ((float)row[i].probability / 65535.0f);
}

uint32_t moec_predict_order(const struct moec_predict_setup *setup, uint32_t n_tok,
                            struct moec_scored_expert *out)
{
    uint32_t n = n_tok == 1 ? moec_predicted_experts(setup->top_k, setup->n_expert) : setup->n_expert;
    moec_scored_order(out, setup->n_expert, n);
    while (n > 0 && !(out[n - 1].score > 0))
        n--;
    return n;
}

void moec_predict_by_paths(const struct moec_predict_setup *setup, const struct moec_router_answer *answer,
                           uint32_t next, float *scratch, struct moec_scored_expert *out)
{
    const uint32_t k = setup->top_k;
    uint16_t last[MOEC_MAX_TOP_K], before[MOEC_MAX_TOP_K];
    if (next == 0 || answer->choices.experts == NULL) {
        moec_predict_by_frequency(setup->paths, next, answer->n_tok, out);
        return;
    }
    /* The answer's choices are those of the layer before the next, its last ones those two before. */
    const bool has_before = next >= 2 && answer->last.experts != NULL;
    clear(out, setup->n_expert);
    for (uint32_t t = 0; t < answer->n_tok; t++) {
        const size_t at = (size_t)t * k;
        for (uint32_t rank = 0; rank < k; rank++) {
            last[rank] = (uint16_t)answer->choices.experts[at + rank];
            before[rank] = has_before ? (uint16_t)answer->last.experts[at + rank] : 0;
        }
        moec_path_table_predict(setup->paths, next,
                                (struct moec_path_choices){has_before ? before : NULL,
                                                           has_before ? answer->last.weights + at : NULL},
                                (struct moec_path_choices){last, answer->choices.weights + at}, scratch);
        for (uint32_t e = 0; e < setup->n_expert; e++)
            out[e].score += scratch[e];
    }
}
