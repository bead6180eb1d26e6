/* Of a long batch only MOEC_LEARNED_PREDICTOR_TOKENS evenly spaced tokens are predicted, and the sums are
 * scaled to the batch. Scores are sigmoids, summed per expert. All arrays are one block, carved as
 * moec_learned_predictor_bytes counts. */
#include "runtime/forward/context/learned_predictor.h"

#include "formats/base/memory.h"
#include "runtime/kernels/kernels.h"
#include "runtime/policy/predict/scored.h"

#include <string.h>

static uint32_t most_hidden(const struct moec_expert_predictor *predictor)
{
    uint32_t most = 0;
    for (uint32_t s = 0; s < predictor->n_layer; s++)
        if (predictor->layers[s].n_hidden > most)
            most = predictor->layers[s].n_hidden;
    return most;
}

static size_t input_floats(const struct moec_expert_predictor *predictor)
{
    return moec_lanes_padded(moec_predictor_inputs(predictor->n_embd, predictor->n_expert));
}

uint64_t moec_learned_predictor_bytes(const struct moec_expert_predictor *predictor)
{
    const uint64_t n_expert = moec_lanes_padded(predictor->n_expert);
    return sizeof(struct moec_learned_predictor) + predictor->n_expert * sizeof(struct moec_scored_expert) +
           (input_floats(predictor) + moec_lanes_padded(most_hidden(predictor)) + 2 * n_expert) *
               sizeof(float);
}

enum moec_status moec_learned_predictor_create(const struct moec_expert_predictor *predictor,
                                               struct moec_learned_predictor **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, moec_learned_predictor_bytes(predictor), 1,
                        "predictions of a learned predictor", err));
    struct moec_learned_predictor *learned_predictor = memory;
    learned_predictor->predictor = predictor;
    learned_predictor->list = (struct moec_scored_expert *)(learned_predictor + 1);
    learned_predictor->inputs = (float *)(learned_predictor->list + predictor->n_expert);
    learned_predictor->hidden = learned_predictor->inputs + input_floats(predictor);
    learned_predictor->scores = learned_predictor->hidden + moec_lanes_padded(most_hidden(predictor));
    learned_predictor->sums = learned_predictor->scores + moec_lanes_padded(predictor->n_expert);
    *out = learned_predictor;
    return MOEC_OK;
}

void moec_learned_predictor_token(const struct moec_learned_predictor *learned_predictor,
                                  const struct moec_kernels *kernels, uint32_t ordinal, const float *normed,
                                  const uint32_t *experts, uint32_t n_choice)
{
    const struct moec_expert_predictor *predictor = learned_predictor->predictor;
    const struct moec_predictor_layer *layer = &predictor->layers[ordinal];
    const uint32_t n_embd = predictor->n_embd, n_expert = predictor->n_expert;
    memcpy(learned_predictor->inputs, normed, n_embd * sizeof *normed);
    memset(learned_predictor->inputs + n_embd, 0, (input_floats(predictor) - n_embd) * sizeof *normed);
    for (uint32_t i = 0; i < n_choice; i++)
        if (experts[i] < n_expert)
            learned_predictor->inputs[n_embd + experts[i]] = 1;
    kernels->dot_encoded(&layer->direct, 0, n_expert, learned_predictor->inputs, learned_predictor->scores);
    kernels->add(layer->bias, n_expert, learned_predictor->scores);
    if (layer->n_hidden > 0) {
        memset(learned_predictor->hidden, 0, moec_lanes_padded(layer->n_hidden) * sizeof(float));
        kernels->dot_encoded(&layer->hidden, 0, layer->n_hidden, learned_predictor->inputs,
                             learned_predictor->hidden);
        kernels->add(layer->hidden_bias, layer->n_hidden, learned_predictor->hidden);
        for (uint32_t u = 0; u < layer->n_hidden; u++)
            learned_predictor->hidden[u] =
                learned_predictor->hidden[u] > 0 ? learned_predictor->hidden[u] : 0;
        float more[MOEC_LANES];
        for (uint32_t e = 0; e < n_expert; e += MOEC_LANES) {
            const uint32_t n = n_expert - e < MOEC_LANES ? n_expert - e : MOEC_LANES;
            kernels->dot_encoded(&layer->out, e, n, learned_predictor->hidden, more);
            kernels->add(more, n, learned_predictor->scores + e);
        }
    }
    for (uint32_t e = 0; e < n_expert; e++)
        learned_predictor->scores[e] = 1 / (1 + moec_exp_f32(-learned_predictor->scores[e]));
}

bool moec_learned_predictor_batch(const struct moec_learned_predictor *learned_predictor,
                                  const struct moec_kernels *kernels, uint32_t ordinal,
                                  const struct moec_predictor_batch *batch, uint32_t n_best)
{
    const uint32_t n_tok = batch->n_tok;
    const uint32_t n_expert = learned_predictor->predictor->n_expert;
    const uint32_t n_asked = n_tok < MOEC_LEARNED_PREDICTOR_TOKENS ? n_tok : MOEC_LEARNED_PREDICTOR_TOKENS;
    if (!learned_predictor->predictor->layers[ordinal].is_known)
        return false;
    memset(learned_predictor->sums, 0, n_expert * sizeof *learned_predictor->sums);
    for (uint32_t i = 0; i < n_asked; i++) {
        const size_t t = (size_t)i * n_tok / n_asked;
        moec_learned_predictor_token(learned_predictor, kernels, ordinal, batch->normed + t * batch->stride,
                                     batch->experts + t * batch->top_k, batch->top_k);
        kernels->add(learned_predictor->scores, n_expert, learned_predictor->sums);
    }
    const float scale = (float)n_tok / (float)n_asked;
    for (uint32_t e = 0; e < n_expert; e++)
        learned_predictor->list[e] = (struct moec_scored_expert){e, scale * learned_predictor->sums[e]};
    moec_scored_order(learned_predictor->list, n_expert, n_best);
    return true;
}
