/* The runtime's own predictor is asked, so that the study cannot differ from it. It is told of each token
 * twice, as of one token it would rank only the 2k experts that preloads take. Tokens come from a journal too
 * and are checked against the trace before use. */
#include "profiler/routing/path_gate_study.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "runtime/forward/moe/router.h"
#include "runtime/policy/predict/predict.h"
#include "runtime/policy/predict/scored.h"

#include <math.h>

#define N_TOKEN MOEC_PATH_GATE_TOKENS

enum moec_status moec_path_gate_keep(const struct moec_forward *forward, uint32_t ordinal,
                                     const struct moec_path_gate_token *token, float *shares,
                                     const struct moec_path_gate_kept *kept, struct moec_error *err)
{
    const struct moec_config *config = &forward->model->config;
    const size_t at = (size_t)ordinal * N_TOKEN + token->place;
    struct moec_forward here = *forward;
    here.backend = NULL; /* which would ask its router about its own rows */
    MOEC_TRY(moec_router_preview(&here, moec_config_moe_layer(config, ordinal), 1, token->input,
                                 (struct moec_router_preview){.sums = shares}, err));
    kept->tokens[at] = (double)token->row;
    for (uint32_t e = 0; e < config->n_expert; e++)
        kept->probabilities[at * config->n_expert + e] = (double)shares[e];
    return MOEC_OK;
}

/* ---- counting ---- */

struct counting {
    const struct moec_profile *profile;
    const struct moec_path_gate_kept *kept;
    struct moec_predict *predict;
    struct moec_scored_expert *gate, *ranking; /* (E) */
    uint64_t *hits;                            /* (E): of the layer at work, by place in the ranking */
    uint64_t n_choice;                         /* its activations */
};

/* What a token chose in a layer, as a router's answer has it of two tokens alike: of one a predictor orders
 * no more than the 2k experts that its preloads may take. */
struct choices {
    uint32_t experts[2 * MOEC_MAX_TOP_K];
    float weights[2 * MOEC_MAX_TOP_K];
};

static void read_choices(const struct moec_profile *profile, uint64_t token, uint32_t ordinal,
                         struct choices *out)
{
    const size_t first = ((size_t)token * profile->n_moe_layer + ordinal) * profile->top_k;
    for (uint32_t i = 0; i < profile->top_k; i++) {
        const uint16_t expert = profile->trace_experts[first + i];
        const uint32_t at[2] = {i, profile->top_k + i};
        for (uint32_t t = 0; t < 2; t++) {
            out->experts[at[t]] = expert == MOEC_PROFILE_NO_EXPERT ? UINT32_MAX : expert;
            out->weights[at[t]] = moec_f16_to_f32(profile->trace_weights[first + i]);
        }
    }
}

static void count_token(struct counting *counting, uint32_t ordinal, uint32_t place)
{
    const struct moec_profile *profile = counting->profile;
    const uint32_t n_expert = profile->n_expert;
    const size_t at = (size_t)ordinal * N_TOKEN + place;
    const uint64_t token = (uint64_t)counting->kept->tokens[at];
    const bool has_before = ordinal - 1 > moec_config_moe_range(&profile->config, ordinal).first;
    struct choices chosen, last, before = {0};
    read_choices(profile, token, ordinal, &chosen);
    read_choices(profile, token, ordinal - 1, &last);
    if (has_before)
        read_choices(profile, token, ordinal - 2, &before);
    for (uint32_t e = 0; e < n_expert; e++)
        counting->gate[e] =
            (struct moec_scored_expert){e, 2 * (float)counting->kept->probabilities[at * n_expert + e]};
    moec_scored_order(counting->gate, n_expert, n_expert);
    const struct moec_router_answer answer = {.layer = moec_config_moe_layer(&profile->config, ordinal - 1),
                                              .n_tok = 2,
                                              .choices = {.experts = last.experts, .weights = last.weights},
                                              .last = {.experts = has_before ? before.experts : NULL,
                                                       .weights = has_before ? before.weights : NULL},
                                              .next = {.gate = {.experts = counting->gate, .n = n_expert}}};
    const uint32_t n = counting->predict->ops->rank(counting->predict, &answer, ordinal, counting->ranking);
    for (uint32_t rank = 0; rank < profile->top_k; rank++) {
        counting->n_choice += chosen.experts[rank] != UINT32_MAX;
        for (uint32_t i = 0; i < n; i++)
            counting->hits[i] += counting->ranking[i].expert == chosen.experts[rank];
    }
}

/* recall (E) of a layer, left alone where no token was kept. */
static void count_layer(struct counting *counting, uint32_t ordinal, double *recall)
{
    const uint32_t n_expert = counting->profile->n_expert;
    uint64_t n_hit = 0;
    counting->n_choice = 0;
    for (uint32_t e = 0; e < n_expert; e++)
        counting->hits[e] = 0;
    for (uint32_t place = 0; place < N_TOKEN; place++)
        if (isfinite(counting->kept->tokens[(size_t)ordinal * N_TOKEN + place]))
            count_token(counting, ordinal, place);
    for (uint32_t e = 0; e < n_expert && counting->n_choice > 0; e++) {
        n_hit += counting->hits[e];
        recall[e] = (double)n_hit / (double)counting->n_choice;
    }
}

/* ---- the study ---- */

/* Tokens come out of a journal too. */
static enum moec_status check_tokens(const struct moec_profile *profile,
                                     const struct moec_path_gate_kept *kept, struct moec_error *err)
{
    for (size_t i = 0; i < (size_t)profile->n_moe_layer * N_TOKEN; i++)
        if (kept->tokens[i] < 0 || kept->tokens[i] >= (double)profile->n_trace_token)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "a sample of the routers has token number %g, expected less than %llu",
                             kept->tokens[i], (unsigned long long)profile->n_trace_token);
    return MOEC_OK;
}

static enum moec_status add_study(struct moec_profile *profile, double **recall, struct moec_error *err)
{
    double *widths = NULL;
    struct moec_study *added = NULL;
    MOEC_TRY(moec_alloc((void **)&widths, profile->n_expert, sizeof *widths, "an axis of a study", err));
    for (uint32_t i = 0; i < profile->n_expert; i++)
        widths[i] = i + 1;
    const struct moec_study study = {
        .name = "predict/path_gate",
        .description =
            "recall of the activated experts among the first n that path table and next-layer gate "
            "predict together, over a sample of tokens (of windows that the table was not made from)",
        .source = "EdgeMoE III-C1 with Fate Table 1, position 2",
        .n_axis = 2,
        .axes = {{.name = "moe_layer", .n = profile->n_moe_layer},
                 {.name = "width", .n = profile->n_expert, .values = widths}}};
    const enum moec_status status = moec_profile_add_study(profile, &study, &added, err);
    free(widths);
    MOEC_TRY(status);
    for (uint64_t i = 0; i < moec_study_count(added); i++)
        added->values[i] = NAN;
    *recall = added->values;
    return MOEC_OK;
}

enum moec_status moec_path_gate_run(struct moec_profile *profile, const struct moec_path_table *table,
                                    const struct moec_path_gate_kept *kept, struct moec_error *err)
{
    const uint32_t n_expert = profile->n_expert;
    const struct moec_predict_setup setup = {.n_layer = profile->n_moe_layer,
                                             .n_encoder = moec_config_moe_encoder_count(&profile->config),
                                             .n_expert = n_expert,
                                             .top_k = profile->top_k,
                                             .paths = table};
    struct counting counting = {.profile = profile, .kept = kept};
    enum moec_status status = MOEC_OK;
    double *recall = NULL;
    MOEC_TRY(check_tokens(profile, kept, err));
    MOEC_TRY(add_study(profile, &recall, err));
    MOEC_TRY_OUT(moec_alloc((void **)&counting.gate, n_expert, sizeof *counting.gate, "a ranking", err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&counting.ranking, n_expert, sizeof *counting.ranking, "a ranking", err));
    MOEC_TRY_OUT(moec_alloc((void **)&counting.hits, n_expert, sizeof *counting.hits, "hits", err));
    MOEC_TRY_OUT(moec_predict_path_gate.create(&setup, &counting.predict, err));
    for (uint32_t ordinal = 1; ordinal < profile->n_moe_layer; ordinal++)
        count_layer(&counting, ordinal, recall + (size_t)ordinal * n_expert);
out:
    if (counting.predict != NULL)
        moec_predict_path_gate.destroy(counting.predict);
    free(counting.gate);
    free(counting.ranking);
    free(counting.hits);
    return status;
}
