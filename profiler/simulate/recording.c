/* A sequence begins where the replay says so, at a profile's windows, or where a source comes. Else it begins
 * where several tokens follow a single one. A source's chunk comes once for each layer and counts once. A
 * choice of weight 0 takes nothing. */
#include "profiler/simulate/recording.h"

#include "formats/base/memory.h"

#include <string.h>

void moec_recording_release(struct moec_recording *recording)
{
    free(recording->steps);
    free(recording->n_takers);
    *recording = (struct moec_recording){0};
}

/* Where the windows of a profile begin; of a trace where a prompt does. With an encoder, where a source does.
 */
struct sequences {
    const struct moec_profile *profile;
    bool have_sources; /* and show them: a trace shows none where the encoder has no MoE layers */
    uint32_t window;
    uint64_t next; /* token that begins the next window */
    bool is_in_prompt;
};

static bool begins(struct sequences *sequences, const struct moec_replay *replay, uint64_t step,
                   uint64_t token)
{
    if (sequences->have_sources)
        return moec_replay_is_source(replay, step) && (step == 0 || !moec_replay_is_source(replay, step - 1));
    if (replay->begins != NULL)
        return replay->begins[step];
    if (sequences->profile != NULL) {
        if (token != sequences->next)
            return false;
        sequences->next += sequences->profile->window_length[sequences->window++];
        return true;
    }
    const bool was_in_prompt = sequences->is_in_prompt;
    sequences->is_in_prompt = replay->n_tok[step] > 1;
    return sequences->is_in_prompt && !was_in_prompt;
}

/* A choice of weight 0 found its expert full and takes nothing. */
static enum moec_status count_takers(struct moec_recording *recording, struct moec_error *err)
{
    const struct moec_replay *replay = recording->replay;
    uint32_t *counts = NULL;
    MOEC_TRY(moec_alloc((void **)&recording->n_takers, recording->n_active, sizeof *recording->n_takers,
                        "recorded answers", err));
    MOEC_TRY(
        moec_alloc((void **)&counts, recording->shape.n_layer_key, sizeof *counts, "recorded answers", err));
    for (uint64_t a = 0; a < replay->n_step * replay->n_layer; a++) {
        const struct moec_replay_answer *answer = &replay->answers[a];
        const uint64_t n_choice = (uint64_t)replay->n_tok[a / replay->n_layer] * replay->top_k;
        if (answer->n_active == 0)
            continue;
        for (uint64_t c = answer->choices; c < answer->choices + n_choice; c++) {
            const bool is_low = replay->is_low != NULL && replay->is_low[c];
            counts[replay->experts[c] + (is_low ? replay->n_expert : 0)] += replay->weights[c] != 0;
        }
        for (uint32_t i = 0; i < answer->n_active; i++)
            recording->n_takers[answer->active + i] = counts[replay->active[answer->active + i]];
        memset(counts, 0, recording->shape.n_layer_key * sizeof *counts);
    }
    free(counts);
    return MOEC_OK;
}

enum moec_status moec_recording_make(const struct moec_replay *replay, const struct moec_profile *profile,
                                     uint32_t prompt_tokens, struct moec_recording *recording,
                                     struct moec_error *err)
{
    struct sequences sequences = {.profile = profile,
                                  .have_sources =
                                      replay->spans != NULL && (profile != NULL || replay->n_encoder > 0)};
    uint32_t position = 0;
    *recording = (struct moec_recording){.replay = replay,
                                         .shape = {.n_layer = replay->n_layer,
                                                   .n_encoder = replay->n_encoder,
                                                   .n_expert = replay->n_expert,
                                                   .n_layer_key = replay->n_form * replay->n_expert,
                                                   .top_k = replay->top_k},
                                         .n_step = replay->n_step};
    MOEC_TRY(moec_alloc((void **)&recording->steps, replay->n_step, sizeof *recording->steps,
                        "recorded steps", err));
    for (uint64_t step = 0; step < replay->n_step; step++) {
        const uint32_t n_tok = replay->n_tok[step];
        const bool is_first = begins(&sequences, replay, step, recording->counted.n_token);
        const bool is_source = moec_replay_is_source(replay, step);
        const bool is_prompt = sequences.have_sources
                                   ? is_source || (step > 0 && moec_replay_is_source(replay, step - 1))
                                   : n_tok > 1 || (replay->begins != NULL && is_first) ||
                                         (profile != NULL && is_first && prompt_tokens > 0);
        position = is_first ? 0 : position;
        const struct moec_replay_span layers = moec_replay_passed(replay, step);
        recording->steps[step] = (struct moec_recorded_step){.first_token = recording->counted.n_token,
                                                             .n_tok = n_tok,
                                                             .position = position,
                                                             .begins = is_first,
                                                             .is_prefill = is_prompt,
                                                             .layers = layers};
        /* A chunk of a source comes once for each layer. */
        recording->counted.n_token += is_source && layers.first > 0 ? 0 : n_tok;
        recording->counted.n_decoded += is_prompt ? 0 : n_tok;
        position += is_source ? 0 : n_tok;
    }
    for (uint64_t a = 0; a < replay->n_step * replay->n_layer; a++) {
        const uint64_t end = replay->answers[a].active + replay->answers[a].n_active;
        recording->n_active = end > recording->n_active ? end : recording->n_active;
    }
    return count_takers(recording, err);
}

void moec_recording_count_from(struct moec_recording *recording, uint64_t step)
{
    for (uint64_t i = recording->counted.first; i < step; i++) {
        recording->counted.n_token -= recording->steps[i].n_tok;
        recording->counted.n_decoded -= recording->steps[i].is_prefill ? 0 : recording->steps[i].n_tok;
    }
    recording->counted.first = step;
}
