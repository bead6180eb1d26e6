/* The beginning of a window is one step, each later token a step of its own. Places of all answers are laid
 * out before the run, from lengths alone. So batches may come in any size, and the counts here and in lay_out
 * must agree. The lists of choices grow at their answer's place and are never moved. */
#include "profiler/evaluate/router_record.h"

#include "formats/base/memory.h"
#include "formats/model/neighbors.h"
#include "runtime/forward/moe/decide.h"
#include "runtime/forward/moe/moe.h"
#include "runtime/forward/moe/router.h"
#include "runtime/policy/predict/scored.h"

#include <string.h>

struct moec_router_record {
    const struct moec_model *model;
    const struct moec_windows *windows;
    struct moec_replay replay;
    uint32_t n_window;                  /* that are recorded */
    uint64_t *first_token, *first_step; /* (n_window + 1), owned: of each window */
    uint32_t n_prompt;
    /* of the batch at work, owned */
    float *inputs, *gate_inputs; /* (max_tokens, stride); the second NULL where routers read the first */
    float *sums;                 /* (tiles, padded choices) */
    struct moec_scored_expert *list;
    bool *is_active; /* (n_expert), clear between answers */
    struct moec_mlp_trace trace;
    struct moec_scorer_watch watch;
};

static uint32_t prompt_of(const struct moec_router_record *record, uint32_t window)
{
    const uint32_t n = record->windows->scored[window];
    const uint32_t n_prompt = record->n_prompt > 0 ? record->n_prompt : 1;
    return n_prompt < n ? n_prompt : n;
}

/* ---- what a batch says ---- */

/* Choices of the tokens of one answer, whose rows begin with `row`, and which experts they ask for. */
static void keep_choices(struct moec_router_record *record, uint64_t step, uint32_t ordinal, uint32_t row)
{
    struct moec_replay *replay = &record->replay;
    struct moec_replay_answer *answer = &replay->answers[step * replay->n_layer + ordinal];
    const uint32_t k = replay->top_k, n = replay->n_tok[step] * k;
    const uint32_t *experts = record->trace.experts + (size_t)row * k;
    const float *weights = record->trace.weights + (size_t)row * k;
    for (uint32_t c = 0; c < n; c++) {
        const bool is_passed = moec_choice_is_passed(&record->model->config, weights[c]);
        replay->experts[answer->choices + c] = experts[c];
        replay->weights[answer->choices + c] = is_passed ? 0 : weights[c];
        if (!is_passed && weights[c] != 0)
            record->is_active[experts[c]] = true;
    }
    for (uint32_t e = 0; e < replay->n_expert; e++) {
        if (record->is_active[e])
            replay->active[answer->active + answer->n_active++] = e;
        record->is_active[e] = false;
    }
}

/* What the next layer's router makes of these inputs. */
static enum moec_status keep_gate(struct moec_router_record *record, const struct moec_forward *forward,
                                  uint64_t step, uint32_t ordinal, uint32_t row, struct moec_error *err)
{
    const struct moec_config *config = &record->model->config;
    struct moec_replay *replay = &record->replay;
    struct moec_replay_answer *answer = &replay->answers[step * replay->n_layer + ordinal];
    const uint32_t n_tok = replay->n_tok[step], n_expert = config->n_expert;
    const uint32_t n = n_tok == 1 ? moec_predicted_experts(config->top_k, n_expert) : n_expert;
    const float *inputs = record->gate_inputs != NULL ? record->gate_inputs : record->inputs;
    float *logits = n_tok == 1 ? replay->next_logits + answer->logits : NULL;
    if (ordinal + 1 == replay->n_layer)
        return MOEC_OK;
    MOEC_TRY(moec_router_preview(forward, moec_config_moe_layer(config, ordinal + 1), n_tok,
                                 inputs + row * moec_forward_stride(config),
                                 (struct moec_router_preview){.sums = record->sums, .logits = logits}, err));
    for (uint32_t e = 0; e < n_expert; e++)
        record->list[e] = (struct moec_scored_expert){e, record->sums[e]};
    moec_scored_order(record->list, n_expert, n);
    memcpy(replay->scored + answer->next_gate, record->list, n * sizeof *record->list);
    answer->n_next_gate = n;
    return MOEC_OK;
}

static enum moec_status keep_answer(struct moec_router_record *record, const struct moec_forward *forward,
                                    uint64_t step, uint32_t ordinal, uint32_t row, struct moec_error *err)
{
    struct moec_replay *replay = &record->replay;
    const struct moec_replay_answer *answer = &replay->answers[step * replay->n_layer + ordinal];
    const uint32_t n_logit = replay->n_logit;
    keep_choices(record, step, ordinal, row);
    for (uint32_t t = 0; forward->decider != NULL && t < replay->n_tok[step]; t++)
        memcpy(replay->logits + answer->logits + (size_t)t * n_logit,
               forward->decider->logits + (row + t) * forward->decider->stride, n_logit * sizeof(float));
    return keep_gate(record, forward, step, ordinal, row, err);
}

static enum moec_status keep_batch(void *context, const struct moec_forward *forward, uint32_t ordinal,
                                   const struct moec_sweep_batch *batch, struct moec_error *err)
{
    struct moec_router_record *record = context;
    uint32_t row = 0;
    for (uint32_t w = batch->first; w < batch->first + batch->n && w < record->n_window; w++)
        for (uint64_t step = record->first_step[w]; step < record->first_step[w + 1]; step++) {
            MOEC_TRY(keep_answer(record, forward, step, ordinal, row, err));
            row += record->replay.n_tok[step];
        }
    return MOEC_OK;
}

/* ---- room ---- */

static enum moec_status count(struct moec_router_record *record, uint64_t most_tokens, struct moec_error *err)
{
    const struct moec_windows *windows = record->windows;
    const uint64_t n = (uint64_t)windows->n_window + 1;
    MOEC_TRY(moec_alloc((void **)&record->first_token, n, sizeof(uint64_t), "a recording", err));
    MOEC_TRY(moec_alloc((void **)&record->first_step, n, sizeof(uint64_t), "a recording", err));
    for (uint32_t w = 0; w < windows->n_window; w++) {
        if (w >= 2 && record->first_token[w] + windows->scored[w] > most_tokens)
            break;
        record->first_token[w + 1] = record->first_token[w] + windows->scored[w];
        record->first_step[w + 1] = record->first_step[w] + windows->scored[w] - prompt_of(record, w) + 1;
        record->n_window = w + 1;
    }
    record->replay.n_step = record->first_step[record->n_window];
    return MOEC_OK;
}

static enum moec_status allocate(struct moec_router_record *record, struct moec_error *err)
{
    static const char what[] = "a recording";
    const struct moec_config *config = &record->model->config;
    struct moec_replay *replay = &record->replay;
    const uint64_t n_token = record->first_token[record->n_window],
                   n_pair = n_token * replay->n_layer * replay->top_k,
                   n_logit = n_token * replay->n_layer * replay->n_logit,
                   n_gate = moec_predicted_experts(replay->top_k, replay->n_expert),
                   n_scored = replay->n_layer *
                              (replay->n_step * n_gate + (uint64_t)record->n_window * replay->n_expert);
    MOEC_TRY(
        moec_alloc((void **)&replay->moe_layers, replay->n_layer, sizeof *replay->moe_layers, what, err));
    MOEC_TRY(moec_alloc((void **)&replay->n_tok, replay->n_step, sizeof *replay->n_tok, what, err));
    MOEC_TRY(moec_alloc((void **)&replay->begins, replay->n_step, sizeof *replay->begins, what, err));
    MOEC_TRY(moec_alloc((void **)&replay->answers, replay->n_step * replay->n_layer, sizeof *replay->answers,
                        what, err));
    MOEC_TRY(moec_alloc((void **)&replay->active, n_pair, sizeof *replay->active, what, err));
    MOEC_TRY(moec_alloc((void **)&replay->experts, n_pair, sizeof *replay->experts, what, err));
    MOEC_TRY(moec_alloc((void **)&replay->weights, n_pair, sizeof *replay->weights, what, err));
    MOEC_TRY(moec_alloc((void **)&replay->logits, n_logit, sizeof *replay->logits, what, err));
    MOEC_TRY(moec_alloc((void **)&replay->next_logits, n_logit, sizeof *replay->next_logits, what, err));
    MOEC_TRY(moec_alloc((void **)&replay->scored, n_scored, sizeof *replay->scored, what, err));
    const uint64_t max_tokens = moec_sweep_max_tokens(record->windows), stride = moec_forward_stride(config);
    MOEC_TRY(moec_alloc((void **)&record->list, replay->n_expert, sizeof *record->list, what, err));
    MOEC_TRY(moec_alloc((void **)&record->is_active, replay->n_expert, sizeof(bool), what, err));
    MOEC_TRY(
        moec_alloc((void **)&record->trace.experts, max_tokens * replay->top_k, sizeof(uint32_t), what, err));
    MOEC_TRY(
        moec_alloc((void **)&record->trace.weights, max_tokens * replay->top_k, sizeof(float), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&record->sums,
                                max_tokens * moec_lanes_padded(moec_config_choices(config)), sizeof(float),
                                what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&record->inputs, max_tokens * stride, sizeof(float), what, err));
    if (config->mlp.own_norms || config->router.scales_input)
        return moec_alloc_aligned((void **)&record->gate_inputs, max_tokens * stride, sizeof(float), what,
                                  err);
    return MOEC_OK;
}

/* Where answers have their arrays. */
static void lay_out(struct moec_router_record *record)
{
    struct moec_replay *replay = &record->replay;
    const uint32_t n_gate = moec_predicted_experts(replay->top_k, replay->n_expert);
    uint64_t token = 0, scored = 0;
    for (uint32_t s = 0; s < replay->n_layer; s++)
        replay->moe_layers[s] = moec_config_moe_layer(&record->model->config, s);
    for (uint32_t w = 0; w < record->n_window; w++)
        for (uint64_t step = record->first_step[w]; step < record->first_step[w + 1]; step++) {
            const uint32_t n_tok = step == record->first_step[w] ? prompt_of(record, w) : 1;
            replay->n_tok[step] = n_tok;
            replay->begins[step] = step == record->first_step[w];
            for (uint32_t s = 0; s < replay->n_layer; s++) {
                const uint64_t at = token * replay->n_layer + (uint64_t)s * n_tok;
                replay->answers[step * replay->n_layer + s] =
                    (struct moec_replay_answer){.active = at * replay->top_k,
                                                .choices = at * replay->top_k,
                                                .logits = at * replay->n_logit,
                                                .next_gate = scored};
                scored += n_tok == 1 ? n_gate : replay->n_expert;
            }
            token += n_tok;
        }
}

enum moec_status moec_router_record_create(const struct moec_model *model, const struct moec_windows *windows,
                                           uint32_t n_prompt, uint64_t most_tokens,
                                           struct moec_router_record **out, struct moec_error *err)
{
    const struct moec_config *config = &model->config;
    struct moec_router_record *record = NULL;
    if (windows->source != NULL || moec_config_is_encoder_decoder(config) ||
        moec_config_routes_by_token(config))
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "routing of family '%s' cannot be recorded: it has an encoder, or layers that route by "
            "token",
            config->family);
    MOEC_TRY(moec_alloc((void **)&record, 1, sizeof *record, "a recording", err));
    *record = (struct moec_router_record){.model = model,
                                          .windows = windows,
                                          .n_prompt = n_prompt,
                                          .replay = {.n_layer = moec_config_moe_count(config),
                                                     .n_expert = config->n_expert,
                                                     .top_k = config->top_k,
                                                     .n_form = 1,
                                                     .n_logit = moec_config_choices(config),
                                                     .has_next_gate = true,
                                                     .gates_ahead = 1}};
    enum moec_status status = count(record, most_tokens, err);
    if (status == MOEC_OK)
        status = allocate(record, err);
    if (status != MOEC_OK) {
        moec_router_record_free(record);
        return status;
    }
    lay_out(record);
    record->trace.input = record->inputs;
    record->trace.gate_input = record->gate_inputs;
    record->watch =
        (struct moec_scorer_watch){.trace = &record->trace, .traced = keep_batch, .context = record};
    *out = record;
    return MOEC_OK;
}

const struct moec_scorer_watch *moec_router_record_watch(const struct moec_router_record *record)
{
    return &record->watch;
}

void moec_router_record_take(struct moec_router_record *record, struct moec_replay *out)
{
    *out = record->replay;
    record->replay = (struct moec_replay){0};
}

void moec_router_record_free(struct moec_router_record *record)
{
    if (record == NULL)
        return;
    moec_replay_release(&record->replay);
    free(record->first_token);
    free(record->first_step);
    free(record->inputs);
    free(record->gate_inputs);
    free(record->sums);
    free(record->list);
    free(record->is_active);
    free(record->trace.experts);
    free(record->trace.weights);
    free(record);
}
