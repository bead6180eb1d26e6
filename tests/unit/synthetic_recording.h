/* Recordings and models made of arithmetic, for tests of the simulator. Needs temporary.h before it. */
#ifndef MOEC_TESTS_SYNTHETIC_RECORDING_H
#define MOEC_TESTS_SYNTHETIC_RECORDING_H

#include "formats/base/memory.h"
#include "profiler/simulate/simulated_model.h"

static inline uint32_t synthetic_draw(uint64_t seed, uint32_t n)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % n);
}

/* A replay of one token a step behind a prompt of so many (0: none); experts are 0 until they are set. */
TEMPORARY_UNUSED static void synthetic_steps(uint32_t n_layer, uint32_t n_expert, uint32_t top_k,
                                             uint32_t prompt, uint32_t n_decoded, struct moec_replay *replay)
{
    const uint64_t n_step = n_decoded + (prompt > 0), n_choice = (prompt + n_decoded) * n_layer * top_k;
    uint64_t at = 0;
    *replay = (struct moec_replay){
        .n_layer = n_layer, .n_expert = n_expert, .top_k = top_k, .n_form = 1, .n_step = n_step};
    replay->moe_layers = calloc(n_layer, sizeof *replay->moe_layers);
    replay->n_tok = calloc(n_step, sizeof *replay->n_tok);
    replay->answers = calloc(n_step * n_layer, sizeof *replay->answers);
    replay->active = calloc(n_choice, sizeof *replay->active);
    replay->experts = calloc(n_choice, sizeof *replay->experts);
    replay->weights = calloc(n_choice, sizeof *replay->weights);
    for (uint32_t layer = 0; layer < n_layer; layer++)
        replay->moe_layers[layer] = layer;
    for (uint64_t s = 0; s < n_step; s++) {
        replay->n_tok[s] = s == 0 && prompt > 0 ? prompt : 1;
        for (uint32_t layer = 0; layer < n_layer; layer++) {
            replay->answers[s * n_layer + layer].choices = at;
            at += (uint64_t)replay->n_tok[s] * top_k;
        }
    }
    for (uint64_t i = 0; i < n_choice; i++)
        replay->weights[i] = 1.0f / (float)top_k;
}

/* Each choice of a token another expert, drawn by the seed; low ones more often. */
TEMPORARY_UNUSED static void synthetic_choices(uint64_t seed, struct moec_replay *replay)
{
    const uint32_t k = replay->top_k, last = (uint32_t)(replay->n_step * replay->n_layer) - 1;
    const uint64_t n = replay->answers[last].choices / k + replay->n_tok[replay->n_step - 1];
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t first = synthetic_draw(seed + 3 * i, replay->n_expert);
        const uint32_t least = synthetic_draw(seed + 5 * i + 1, first + 1);
        for (uint32_t r = 0; r < k; r++)
            replay->experts[i * k + r] = (least + r) % replay->n_expert;
    }
}

/* Lists what each answer activates, and makes the recording. */
TEMPORARY_UNUSED static void synthetic_recording(struct moec_replay *replay, struct moec_recording *recording)
{
    uint64_t at = 0;
    for (uint64_t a = 0; a < replay->n_step * replay->n_layer; a++) {
        struct moec_replay_answer *answer = &replay->answers[a];
        const uint32_t n = replay->n_tok[a / replay->n_layer] * replay->top_k;
        answer->active = at;
        for (uint32_t expert = 0; expert < replay->n_expert; expert++) {
            bool is_active = false;
            for (uint32_t i = 0; i < n; i++)
                is_active = is_active || replay->experts[answer->choices + i] == expert;
            if (is_active)
                replay->active[at++] = expert;
        }
        answer->n_active = (uint32_t)(at - answer->active);
    }
    assert_int_equal(moec_recording_make(replay, NULL, 0, recording, NULL), MOEC_OK);
}

/* Slots and records of these sizes (S, E); NULL: 64 bytes each. */
TEMPORARY_UNUSED static void synthetic_model(const struct moec_recording *recording, const uint64_t *slots,
                                             struct moec_simulated_model *model)
{
    static const struct moec_path_table no_paths;
    const uint32_t n_key = recording->shape.n_layer * recording->shape.n_expert;
    *model = (struct moec_simulated_model){.shape = {.n_layer = recording->shape.n_layer,
                                                     .n_expert = recording->shape.n_expert,
                                                     .n_form = 1,
                                                     .n_layer_key = recording->shape.n_expert,
                                                     .top_k = recording->shape.top_k},
                                           .paths = &no_paths,
                                           .slots.is_equal = true};
    assert_int_equal(moec_alloc((void **)&model->records.slot_bytes, n_key, sizeof(uint64_t), "slots", NULL),
                     MOEC_OK);
    assert_int_equal(
        moec_alloc((void **)&model->records.record_bytes, n_key, sizeof(uint64_t), "slots", NULL), MOEC_OK);
    for (uint32_t key = 0; key < n_key; key++) {
        const uint64_t bytes = slots != NULL ? slots[key] : 64;
        model->records.slot_bytes[key] = model->records.record_bytes[key] = bytes;
        model->slots.is_equal = model->slots.is_equal && bytes == model->records.slot_bytes[0];
        model->slots.all_bytes += bytes;
        model->slots.every_bytes += bytes;
        model->slots.largest_bytes = bytes > model->slots.largest_bytes ? bytes : model->slots.largest_bytes;
    }
    model->slots.token_bytes = model->slots.all_bytes / recording->shape.n_expert * recording->shape.top_k;
}

#endif
