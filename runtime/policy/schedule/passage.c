#include "runtime/policy/schedule/passage.h"

#include "runtime/policy/evict/evict.h"

/* What stands at a place of the layer's order; NULL without a path table of such a model. */
static const struct moec_path_value *value_at(const struct moec_passage *passage, uint32_t place)
{
    const struct moec_passage_setup *setup = &passage->setup;
    if (setup->paths->n_layer != setup->n_layer || setup->paths->n_expert != setup->n_expert)
        return NULL;
    return &setup->paths->frequency[passage->ordinal * setup->n_expert + place];
}

static float expected_takers(const struct moec_passage *passage, uint32_t place)
{
    const struct moec_passage_setup *setup = &passage->setup;
    const struct moec_path_value *value = value_at(passage, place);
    const float share = value != NULL ? (float)value->probability / 65535.0f
                                      : (float)setup->top_k / ((float)setup->n_expert * MOEC_PASSAGE_SKEW);
    return (float)passage->n_tok * share;
}

static bool is_expected(const struct moec_passage *passage, uint32_t place)
{
    return place < passage->setup.n_expert && expected_takers(passage, place) >= MOEC_PASSAGE_TAKERS;
}

static uint32_t key_at(const struct moec_passage *passage, uint32_t place)
{
    const struct moec_passage_setup *setup = &passage->setup;
    const struct moec_path_value *value = value_at(passage, place);
    const uint32_t n_form = setup->n_form > 1 ? setup->n_form : 1,
                   expert = value != NULL ? value->expert : place,
                   form = passage->is_low != NULL && passage->is_low[expert] ? 1 : 0;
    return (passage->ordinal * n_form + form) * setup->n_expert + expert;
}

void moec_passage_come(struct moec_passage *passage, uint32_t ordinal, uint32_t n_tok, const bool *is_low)
{
    const struct moec_passage_setup *setup = &passage->setup;
    passage->ordinal = ordinal;
    passage->n_tok = ordinal < setup->n_layer ? n_tok : 0;
    passage->next = 0;
    passage->is_low = setup->n_form > 1 ? is_low : NULL;
    if (passage->n_tok > 0 && !is_expected(passage, 0))
        passage->n_tok = 0;
    for (uint32_t place = 0; passage->n_tok > 0 && is_expected(passage, place); place++)
        (void)passage->view.is_present(passage->view.context, key_at(passage, place));
}

void moec_passage_answered(struct moec_passage *passage, uint32_t ordinal,
                           const struct moec_router_answer *answer)
{
    const struct moec_passage_setup *setup = &passage->setup;
    const bool is_known = answer->form == 0 && (answer->next_low != NULL ||
                                                answer->active[answer->n_active - 1] < setup->n_expert);
    const uint32_t end = ordinal < setup->n_encoder ? setup->n_encoder : setup->n_layer;
    moec_passage_come(passage, ordinal + 1 < end ? ordinal + 1 : setup->n_layer, is_known ? answer->n_tok : 0,
                      answer->next_low);
}

uint32_t moec_passage_next(struct moec_passage *passage)
{
    for (; moec_passage_is_open(passage) && is_expected(passage, passage->next); passage->next++) {
        const uint32_t key = key_at(passage, passage->next);
        if (!passage->view.is_present(passage->view.context, key))
            return key;
    }
    return MOEC_EVICT_NONE;
}
