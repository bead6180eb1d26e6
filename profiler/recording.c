#include "profiler/recording.h"

#include "formats/half.h"
#include "formats/memory.h"

#include <string.h>

void moec_recording_release(struct moec_recording *recording)
{
    free(recording->layers);
    free(recording->steps);
    free(recording->experts);
    free(recording->weights);
    free(recording->active_start);
    free(recording->active);
    free(recording->gate_start);
    free(recording->gate);
    *recording = (struct moec_recording){0};
}

enum moec_status moec_recording_allocate(struct moec_recording *recording, uint64_t n_step, uint64_t n_token,
                                         struct moec_error *err)
{
    const uint64_t row = (uint64_t)recording->n_layer * recording->top_k;
    uint64_t n_choice = 0, n_answer = 0;
    if (__builtin_mul_overflow(n_token, row, &n_choice) ||
        __builtin_mul_overflow(n_step, recording->n_layer, &n_answer) || n_answer == UINT64_MAX)
        return moec_fail(err, MOEC_ERR_LIMIT, "a recording of %llu tokens is too long",
                         (unsigned long long)n_token);
    recording->n_step = n_step;
    recording->n_token = n_token;
    MOEC_TRY(moec_alloc((void **)&recording->layers, recording->n_layer, sizeof(uint32_t), "recorded layers",
                        err));
    MOEC_TRY(moec_alloc((void **)&recording->steps, n_step, sizeof *recording->steps, "recorded steps", err));
    MOEC_TRY(moec_alloc((void **)&recording->experts, n_choice, sizeof(uint32_t), "recorded routing", err));
    MOEC_TRY(moec_alloc((void **)&recording->weights, n_choice, sizeof(float), "recorded routing", err));
    MOEC_TRY(moec_alloc((void **)&recording->active, n_choice, sizeof(uint32_t), "recorded routing", err));
    return moec_alloc((void **)&recording->active_start, n_answer + 1, sizeof(uint64_t), "recorded routing",
                      err);
}

/* Experts of n choices that differ, increasing; few choices are sorted in place, many are marked. */
static uint32_t collect_active(const uint32_t *experts, size_t n, uint32_t n_expert, bool *marks,
                               uint32_t *active)
{
    uint32_t n_active = 0;
    if (n > 64) {
        memset(marks, 0, n_expert * sizeof *marks);
        for (size_t i = 0; i < n; i++)
            marks[experts[i]] = true;
        for (uint32_t e = 0; e < n_expert; e++)
            if (marks[e])
                active[n_active++] = e;
        return n_active;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t at = n_active;
        while (at > 0 && active[at - 1] > experts[i])
            at--;
        if (at > 0 && active[at - 1] == experts[i])
            continue;
        memmove(active + at + 1, active + at, (n_active - at) * sizeof *active);
        active[at] = experts[i];
        n_active++;
    }
    return n_active;
}

enum moec_status moec_recording_finish(struct moec_recording *recording, struct moec_error *err)
{
    bool *marks = NULL;
    uint64_t at = 0, a = 0;
    recording->n_decoded = 0;
    MOEC_TRY(moec_alloc((void **)&marks, recording->n_expert, sizeof *marks, "recorded routing", err));
    for (uint64_t step = 0; step < recording->n_step; step++) {
        const struct moec_recorded_step *s = &recording->steps[step];
        const size_t n = (size_t)s->n_tok * recording->top_k;
        const uint32_t *experts = recording->experts + s->first_token * recording->n_layer * recording->top_k;
        for (uint32_t ordinal = 0; ordinal < recording->n_layer; ordinal++, experts += n) {
            recording->active_start[a++] = at;
            at += collect_active(experts, n, recording->n_expert, marks, recording->active + at);
        }
        recording->n_decoded += s->is_prefill ? 0 : s->n_tok;
    }
    recording->active_start[a] = at;
    free(marks);
    return MOEC_OK;
}

/* --- of a profile ------------------------------------------------------------------------------------------
 */

static uint64_t count_steps(const struct moec_profile *profile, uint32_t prefill_tokens)
{
    uint64_t n = 0;
    for (uint32_t w = 0; w < profile->n_window; w++) {
        const uint32_t length = profile->window_length[w];
        const uint32_t prompt = prefill_tokens < length ? prefill_tokens : length;
        n += (prompt > 0) + (uint64_t)(length - prompt);
    }
    return n;
}

/* Copies the choices of a step from (token, layer, rank) to (layer, token, rank). */
static void copy_step(const struct moec_profile *profile, const struct moec_recorded_step *step,
                      struct moec_recording *recording)
{
    const uint32_t n_layer = recording->n_layer, k = recording->top_k;
    size_t to = (size_t)step->first_token * n_layer * k;
    for (uint32_t s = 0; s < n_layer; s++)
        for (uint32_t t = 0; t < step->n_tok; t++) {
            const size_t from = ((step->first_token + t) * n_layer + s) * k;
            for (uint32_t r = 0; r < k; r++, to++) {
                recording->experts[to] = profile->trace_experts[from + r];
                recording->weights[to] = moec_f16_to_f32(profile->trace_weights[from + r]);
            }
        }
}

enum moec_status moec_recording_from_profile(const struct moec_profile *profile, uint32_t prefill_tokens,
                                             struct moec_recording *recording, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint64_t step = 0, token = 0;
    *recording = (struct moec_recording){
        .n_layer = profile->n_moe_layer, .n_expert = profile->n_expert, .top_k = profile->top_k};
    if (profile->n_trace_token == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the profile has no routing trace to replay; make a new one with moec profile");
    MOEC_TRY_OUT(moec_recording_allocate(recording, count_steps(profile, prefill_tokens),
                                         profile->n_trace_token, err));
    memcpy(recording->layers, profile->moe_layers, profile->n_moe_layer * sizeof(uint32_t));
    for (uint32_t w = 0; w < profile->n_window; w++) {
        const uint64_t end = token + profile->window_length[w];
        while (token < end) {
            const uint32_t position = profile->window_length[w] - (uint32_t)(end - token);
            struct moec_recorded_step *at = &recording->steps[step++];
            *at = (struct moec_recorded_step){.first_token = token, .n_tok = 1, .position = position};
            if (position == 0 && prefill_tokens > 0) {
                at->is_prefill = true;
                at->n_tok =
                    prefill_tokens < profile->window_length[w] ? prefill_tokens : profile->window_length[w];
            }
            copy_step(profile, at, recording);
            token += at->n_tok;
        }
    }
    MOEC_TRY_OUT(moec_recording_finish(recording, err));
out:
    if (status != MOEC_OK)
        moec_recording_release(recording);
    return status;
}
