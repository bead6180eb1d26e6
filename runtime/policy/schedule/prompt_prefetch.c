/* Takers of an expert are tokens x its frequency, or without a path table tokens x k / experts, less for
 * skew. Places are in order of frequency, so the first that too few are expected to take ends the walk. When
 * a prompt begins all of them are named to the view, which notes those that are present. */
#include "runtime/policy/schedule/prompt_prefetch.h"

#include "runtime/policy/evict/evict.h"

/* What stands at a place of the layer's order; NULL without a path table of such a model. */
static const struct moec_path_value *value_at(const struct moec_prompt_prefetch *prompt_prefetch,
                                              uint32_t place)
{
    const struct moec_prompt_prefetch_setup *setup = &prompt_prefetch->setup;
    if (setup->paths->n_layer != setup->n_layer || setup->paths->n_expert != setup->n_expert)
        return NULL;
    return &setup->paths->frequency[prompt_prefetch->ordinal * setup->n_expert + place];
}

static float expected_takers(const struct moec_prompt_prefetch *prompt_prefetch, uint32_t place)
{
    const struct moec_prompt_prefetch_setup *setup = &prompt_prefetch->setup;
    const struct moec_path_value *value = value_at(prompt_prefetch, place);
    const float share = value != NULL
                            ? (float)value->probability / 65535.0f
                            : (float)setup->top_k / ((float)setup->n_expert * MOEC_PROMPT_PREFETCH_SKEW);
    return (float)prompt_prefetch->n_tok * share;
}

static bool is_expected(const struct moec_prompt_prefetch *prompt_prefetch, uint32_t place)
{
    return place < prompt_prefetch->setup.n_expert &&
           expected_takers(prompt_prefetch, place) >= MOEC_PROMPT_PREFETCH_TAKERS;
}

static uint32_t key_at(const struct moec_prompt_prefetch *prompt_prefetch, uint32_t place)
{
    const struct moec_prompt_prefetch_setup *setup = &prompt_prefetch->setup;
    const struct moec_path_value *value = value_at(prompt_prefetch, place);
    const uint32_t n_form = setup->n_form > 1 ? setup->n_form : 1,
                   expert = value != NULL ? value->expert : place,
                   form = prompt_prefetch->is_low != NULL && prompt_prefetch->is_low[expert] ? 1 : 0;
    return (prompt_prefetch->ordinal * n_form + form) * setup->n_expert + expert;
}

void moec_prompt_prefetch_begin(struct moec_prompt_prefetch *prompt_prefetch, uint32_t ordinal,
                                uint32_t n_tok, const bool *is_low)
{
    const struct moec_prompt_prefetch_setup *setup = &prompt_prefetch->setup;
    prompt_prefetch->ordinal = ordinal;
    prompt_prefetch->n_tok = ordinal < setup->n_layer ? n_tok : 0;
    prompt_prefetch->next = 0;
    prompt_prefetch->is_low = setup->n_form > 1 ? is_low : NULL;
    if (prompt_prefetch->n_tok > 0 && !is_expected(prompt_prefetch, 0))
        prompt_prefetch->n_tok = 0;
    for (uint32_t place = 0; prompt_prefetch->n_tok > 0 && is_expected(prompt_prefetch, place); place++)
        (void)prompt_prefetch->view.is_present(prompt_prefetch->view.context, key_at(prompt_prefetch, place));
}

void moec_prompt_prefetch_answered(struct moec_prompt_prefetch *prompt_prefetch, uint32_t ordinal,
                                   const struct moec_router_answer *answer)
{
    const struct moec_prompt_prefetch_setup *setup = &prompt_prefetch->setup;
    const bool is_known = answer->form == 0 && (answer->next.is_low != NULL ||
                                                answer->active.list[answer->active.n - 1] < setup->n_expert);
    const uint32_t end = ordinal < setup->n_encoder ? setup->n_encoder : setup->n_layer;
    moec_prompt_prefetch_begin(prompt_prefetch, ordinal + 1 < end ? ordinal + 1 : setup->n_layer,
                               is_known ? answer->n_tok : 0, answer->next.is_low);
}

uint32_t moec_prompt_prefetch_next(struct moec_prompt_prefetch *prompt_prefetch)
{
    for (;
         moec_prompt_prefetch_is_open(prompt_prefetch) && is_expected(prompt_prefetch, prompt_prefetch->next);
         prompt_prefetch->next++) {
        const uint32_t key = key_at(prompt_prefetch, prompt_prefetch->next);
        if (!prompt_prefetch->view.is_present(prompt_prefetch->view.context, key))
            return key;
    }
    return MOEC_EVICT_NONE;
}
