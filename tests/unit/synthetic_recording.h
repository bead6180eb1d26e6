/* Recordings and models made of arithmetic, for tests of the simulator. Needs temporary.h before it. */
#ifndef MOEC_TESTS_SYNTHETIC_RECORDING_H
#define MOEC_TESTS_SYNTHETIC_RECORDING_H

#include "formats/memory.h"
#include "profiler/simulated_model.h"

static inline uint32_t synthetic_draw(uint64_t seed, uint32_t n)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % n);
}

/* The first step has `prompt` tokens (0: none), the others one each. Choices are left at expert 0. */
TEMPORARY_UNUSED static void synthetic_steps(uint32_t n_layer, uint32_t n_expert, uint32_t top_k,
                                             uint32_t prompt, uint32_t n_decoded,
                                             struct moec_recording *recording)
{
    *recording = (struct moec_recording){.n_layer = n_layer, .n_expert = n_expert, .top_k = top_k};
    assert_int_equal(moec_recording_allocate(recording, n_decoded + (prompt > 0), prompt + n_decoded, NULL),
                     MOEC_OK);
    for (uint32_t s = 0; s < recording->n_step; s++) {
        const uint32_t first = prompt == 0 ? s : s > 0 ? prompt + s - 1 : 0;
        recording->steps[s] = (struct moec_recorded_step){.first_token = first,
                                                          .n_tok = s == 0 && prompt > 0 ? prompt : 1,
                                                          .position = first,
                                                          .is_prefill = s == 0 && prompt > 0};
    }
    for (uint32_t layer = 0; layer < n_layer; layer++)
        recording->layers[layer] = layer;
    for (uint64_t i = 0; i < recording->n_token * n_layer * top_k; i++)
        recording->weights[i] = 1.0f / (float)top_k;
}

/* Each choice of a token another expert, drawn by the seed; low ones more often. */
TEMPORARY_UNUSED static void synthetic_choices(uint64_t seed, struct moec_recording *recording)
{
    const uint32_t k = recording->top_k;
    for (uint64_t i = 0; i < recording->n_token * recording->n_layer; i++) {
        const uint32_t first = synthetic_draw(seed + 3 * i, recording->n_expert);
        const uint32_t least = synthetic_draw(seed + 5 * i + 1, first + 1);
        for (uint32_t r = 0; r < k; r++)
            recording->experts[i * k + r] = (least + r) % recording->n_expert;
    }
    assert_int_equal(moec_recording_finish(recording, NULL), MOEC_OK);
}

/* Slots and records of these sizes (S, E); NULL: 64 bytes each. */
TEMPORARY_UNUSED static void synthetic_model(const struct moec_recording *recording, const uint64_t *slots,
                                             struct moec_simulated_model *model)
{
    static const struct moec_path_table no_paths;
    const uint32_t n_key = recording->n_layer * recording->n_expert;
    *model = (struct moec_simulated_model){.n_layer = recording->n_layer,
                                           .n_expert = recording->n_expert,
                                           .top_k = recording->top_k,
                                           .paths = &no_paths,
                                           .is_equal = true};
    assert_int_equal(moec_alloc((void **)&model->slot_bytes, n_key, sizeof(uint64_t), "slots", NULL),
                     MOEC_OK);
    assert_int_equal(moec_alloc((void **)&model->record_bytes, n_key, sizeof(uint64_t), "slots", NULL),
                     MOEC_OK);
    for (uint32_t key = 0; key < n_key; key++) {
        const uint64_t bytes = slots != NULL ? slots[key] : 64;
        model->slot_bytes[key] = model->record_bytes[key] = bytes;
        model->is_equal = model->is_equal && bytes == model->slot_bytes[0];
        model->all_bytes += bytes;
        model->largest_bytes = bytes > model->largest_bytes ? bytes : model->largest_bytes;
    }
    model->token_bytes = model->all_bytes / recording->n_expert * recording->top_k;
}

#endif
