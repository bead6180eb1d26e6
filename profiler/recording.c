#include "profiler/recording.h"

#include "formats/memory.h"

void moec_recording_release(struct moec_recording *recording)
{
    free(recording->steps);
    *recording = (struct moec_recording){0};
}

/* Where the windows of a profile begin; of a trace where a prompt does. */
struct sequences {
    const struct moec_profile *profile;
    uint32_t window;
    uint64_t next; /* token that begins the next window */
    bool is_in_prompt;
};

static bool begins(struct sequences *sequences, uint64_t token, uint32_t n_tok)
{
    if (sequences->profile != NULL) {
        if (token != sequences->next)
            return false;
        sequences->next += sequences->profile->window_length[sequences->window++];
        return true;
    }
    const bool was_in_prompt = sequences->is_in_prompt;
    sequences->is_in_prompt = n_tok > 1;
    return sequences->is_in_prompt && !was_in_prompt;
}

enum moec_status moec_recording_make(const struct moec_replay *replay, const struct moec_profile *profile,
                                     uint32_t prompt_tokens, struct moec_recording *recording,
                                     struct moec_error *err)
{
    struct sequences sequences = {.profile = profile};
    uint32_t position = 0;
    *recording = (struct moec_recording){.replay = replay,
                                         .n_layer = replay->n_layer,
                                         .n_expert = replay->n_expert,
                                         .top_k = replay->top_k,
                                         .n_step = replay->n_step};
    MOEC_TRY(moec_alloc((void **)&recording->steps, replay->n_step, sizeof *recording->steps,
                        "recorded steps", err));
    for (uint64_t step = 0; step < replay->n_step; step++) {
        const uint32_t n_tok = replay->n_tok[step];
        const bool is_first = begins(&sequences, recording->n_token, n_tok);
        const bool is_prompt = n_tok > 1 || (profile != NULL && is_first && prompt_tokens > 0);
        position = is_first ? 0 : position;
        recording->steps[step] = (struct moec_recorded_step){
            .first_token = recording->n_token, .n_tok = n_tok, .position = position, .is_prefill = is_prompt};
        recording->n_token += n_tok;
        recording->n_decoded += is_prompt ? 0 : n_tok;
        position += n_tok;
    }
    for (uint64_t a = 0; a < replay->n_step * replay->n_layer; a++) {
        const uint64_t end = replay->answers[a].active + replay->answers[a].n_active;
        recording->n_active = end > recording->n_active ? end : recording->n_active;
    }
    return MOEC_OK;
}
