/* A profile's windows become steps: first the source or the prompt, then one token each. Each step has an
 * answer of every layer that it passes: choices in token order, and the distinct experts in rising order. A
 * choice of weight 0 without an expert stays an empty place, so that every token has top_k choices. */
#include "formats/trace/replay.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"

#include <string.h>

void moec_replay_release(struct moec_replay *replay)
{
    if (replay == NULL)
        return;
    free(replay->moe_layers);
    free(replay->record_bytes);
    free(replay->slot_bytes);
    free(replay->n_tok);
    free(replay->begins);
    free(replay->spans);
    free(replay->answers);
    free(replay->active);
    free(replay->experts);
    free(replay->weights);
    free(replay->is_low);
    free(replay->scored);
    free(replay->logits);
    free(replay->next_logits);
    moec_path_table_release(&replay->own_paths);
    *replay = (struct moec_replay){0};
}

/* Tokens of a window's first step: its source, or its prompt. */
static uint32_t first_step(const struct moec_profile *profile, uint32_t window, uint32_t prompt_tokens)
{
    const uint32_t length = profile->window_length[window];
    const uint32_t prompt = prompt_tokens > 0 ? prompt_tokens : 1;
    if (profile->window_source != NULL)
        return moec_profile_source(profile, window);
    return prompt < length ? prompt : length;
}

static enum moec_status allocate(const struct moec_profile *profile, struct moec_replay *replay,
                                 struct moec_error *err)
{
    static const char what[] = "a replay";
    const uint64_t n_choice = profile->n_trace_token * replay->n_layer * replay->top_k;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, replay->n_layer, sizeof *replay->moe_layers, what, err));
    replay->moe_layers = memory;
    MOEC_TRY(moec_alloc(&memory, replay->n_step, sizeof *replay->n_tok, what, err));
    replay->n_tok = memory;
    if (profile->window_source != NULL) {
        MOEC_TRY(moec_alloc(&memory, replay->n_step, sizeof *replay->spans, what, err));
        replay->spans = memory;
    }
    MOEC_TRY(moec_alloc(&memory, replay->n_step * replay->n_layer, sizeof *replay->answers, what, err));
    replay->answers = memory;
    MOEC_TRY(moec_alloc(&memory, n_choice, sizeof *replay->active, what, err));
    replay->active = memory;
    MOEC_TRY(moec_alloc(&memory, n_choice, sizeof *replay->experts, what, err));
    replay->experts = memory;
    MOEC_TRY(moec_alloc(&memory, n_choice, sizeof *replay->weights, what, err));
    replay->weights = memory;
    return MOEC_OK;
}

/* What has been appended so far. */
struct filled {
    uint64_t n_choice, n_active;
    bool *seen; /* (n_expert) clear between answers */
};

/* Tokens of a profile that pass the layers in one step. */
struct step_tokens {
    uint64_t first;
    uint32_t n;
};

/* Appends the answer of one layer to a step. */
static void add_answer(const struct moec_profile *profile, struct moec_replay *replay, struct filled *filled,
                       struct step_tokens tokens, uint32_t ordinal, struct moec_replay_answer *answer)
{
    const uint32_t k = replay->top_k;
    *answer = (struct moec_replay_answer){.active = filled->n_active, .choices = filled->n_choice};
    for (uint32_t t = 0; t < tokens.n; t++) {
        const uint64_t from = ((tokens.first + t) * replay->n_layer + ordinal) * k;
        for (uint32_t rank = 0; rank < k; rank++, filled->n_choice++) {
            const uint16_t expert = profile->trace_experts[from + rank];
            if (expert == MOEC_PROFILE_NO_EXPERT) /* a choice of weight 0 */
                continue;
            replay->experts[filled->n_choice] = expert;
            replay->weights[filled->n_choice] = moec_f16_to_f32(profile->trace_weights[from + rank]);
            filled->seen[expert] = true;
        }
    }
    for (uint32_t e = 0; e < replay->n_expert; e++) {
        if (filled->seen[e])
            replay->active[filled->n_active++] = e;
        filled->seen[e] = false;
    }
    answer->n_active = (uint32_t)(filled->n_active - answer->active);
}

static void add_steps(const struct moec_profile *profile, uint32_t prompt_tokens, struct moec_replay *replay,
                      bool *seen)
{
    uint64_t step = 0, token = 0;
    struct filled filled = {.seen = seen};
    for (uint32_t window = 0; window < profile->n_window; window++) {
        const uint64_t begin = token, end = token + moec_profile_traced(profile, window);
        for (uint32_t n_tok = first_step(profile, window, prompt_tokens); token < end; n_tok = 1) {
            replay->n_tok[step] = n_tok;
            if (replay->spans != NULL)
                replay->spans[step] = token == begin
                                          ? (struct moec_replay_span){0, replay->n_encoder}
                                          : (struct moec_replay_span){replay->n_encoder, replay->n_layer};
            const struct moec_replay_span span = moec_replay_passed(replay, step);
            for (uint32_t ordinal = span.first; ordinal < span.end; ordinal++)
                add_answer(profile, replay, &filled, (struct step_tokens){token, n_tok}, ordinal,
                           &replay->answers[step * replay->n_layer + ordinal]);
            token += n_tok;
            step++;
        }
    }
}

enum moec_status moec_replay_from_profile(const struct moec_profile *profile, uint32_t prompt_tokens,
                                          struct moec_replay *out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    void *seen = NULL;
    *out = (struct moec_replay){.n_layer = profile->n_moe_layer,
                                .n_encoder = moec_config_moe_encoder_count(&profile->config),
                                .n_expert = profile->n_expert,
                                .top_k = profile->top_k,
                                .n_form = 1,
                                .paths = &profile->paths};
    if (profile->window_source != NULL && prompt_tokens > 0)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "the profile is from an encoder-decoder model, whose source texts are the prompts already: "
            "leave out --prompt-tokens");
    if (profile->n_trace_token == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the profile has no routing of tokens to replay: make one with moec profile --data");
    for (uint32_t window = 0; window < profile->n_window; window++)
        out->n_step += moec_profile_traced(profile, window) - first_step(profile, window, prompt_tokens) + 1;
    MOEC_TRY_OUT(allocate(profile, out, err));
    MOEC_TRY_OUT(moec_alloc(&seen, out->n_expert, sizeof(bool), "a replay", err));
    memcpy(out->moe_layers, profile->moe_layers, out->n_layer * sizeof *out->moe_layers);
    add_steps(profile, prompt_tokens, out, seen);
out:
    free(seen);
    if (status != MOEC_OK)
        moec_replay_release(out);
    return status;
}
