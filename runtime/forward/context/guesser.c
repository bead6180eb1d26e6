#include "runtime/forward/context/guesser.h"

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

uint64_t moec_guesser_bytes(const struct moec_expert_predictor *predictor)
{
    const uint64_t n_expert = moec_lanes_padded(predictor->n_expert);
    return sizeof(struct moec_guesser) + predictor->n_expert * sizeof(struct moec_scored_expert) +
           (input_floats(predictor) + moec_lanes_padded(most_hidden(predictor)) + 2 * n_expert) *
               sizeof(float);
}

enum moec_status moec_guesser_create(const struct moec_expert_predictor *predictor, struct moec_guesser **out,
                                     struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, moec_guesser_bytes(predictor), 1, "guesses of a learned predictor", err));
    struct moec_guesser *guesser = memory;
    guesser->predictor = predictor;
    guesser->list = (struct moec_scored_expert *)(guesser + 1);
    guesser->inputs = (float *)(guesser->list + predictor->n_expert);
    guesser->hidden = guesser->inputs + input_floats(predictor);
    guesser->scores = guesser->hidden + moec_lanes_padded(most_hidden(predictor));
    guesser->sums = guesser->scores + moec_lanes_padded(predictor->n_expert);
    *out = guesser;
    return MOEC_OK;
}

void moec_guesser_token(const struct moec_guesser *guesser, const struct moec_kernels *kernels,
                        uint32_t ordinal, const float *normed, const uint32_t *experts, uint32_t n_choice)
{
    const struct moec_expert_predictor *predictor = guesser->predictor;
    const struct moec_predictor_layer *layer = &predictor->layers[ordinal];
    const uint32_t n_embd = predictor->n_embd, n_expert = predictor->n_expert;
    memcpy(guesser->inputs, normed, n_embd * sizeof *normed);
    memset(guesser->inputs + n_embd, 0, (input_floats(predictor) - n_embd) * sizeof *normed);
    for (uint32_t i = 0; i < n_choice; i++)
        if (experts[i] < n_expert)
            guesser->inputs[n_embd + experts[i]] = 1;
    kernels->dot_encoded(&layer->direct, 0, n_expert, guesser->inputs, guesser->scores);
    kernels->add(layer->bias, n_expert, guesser->scores);
    if (layer->n_hidden > 0) {
        memset(guesser->hidden, 0, moec_lanes_padded(layer->n_hidden) * sizeof(float));
        kernels->dot_encoded(&layer->hidden, 0, layer->n_hidden, guesser->inputs, guesser->hidden);
        kernels->add(layer->hidden_bias, layer->n_hidden, guesser->hidden);
        for (uint32_t u = 0; u < layer->n_hidden; u++)
            guesser->hidden[u] = guesser->hidden[u] > 0 ? guesser->hidden[u] : 0;
        float more[MOEC_LANES];
        for (uint32_t e = 0; e < n_expert; e += MOEC_LANES) {
            const uint32_t n = n_expert - e < MOEC_LANES ? n_expert - e : MOEC_LANES;
            kernels->dot_encoded(&layer->out, e, n, guesser->hidden, more);
            kernels->add(more, n, guesser->scores + e);
        }
    }
    for (uint32_t e = 0; e < n_expert; e++)
        guesser->scores[e] = 1 / (1 + moec_exp_f32(-guesser->scores[e]));
}

bool moec_guesser_batch(const struct moec_guesser *guesser, const struct moec_kernels *kernels,
                        uint32_t ordinal, uint32_t n_tok, const float *normed, size_t stride,
                        const uint32_t *experts, uint32_t top_k, uint32_t n_best)
{
    const uint32_t n_expert = guesser->predictor->n_expert;
    const uint32_t n_asked = n_tok < MOEC_GUESSER_TOKENS ? n_tok : MOEC_GUESSER_TOKENS;
    if (!guesser->predictor->layers[ordinal].is_known)
        return false;
    memset(guesser->sums, 0, n_expert * sizeof *guesser->sums);
    for (uint32_t i = 0; i < n_asked; i++) {
        const size_t t = (size_t)i * n_tok / n_asked;
        moec_guesser_token(guesser, kernels, ordinal, normed + t * stride, experts + t * top_k, top_k);
        kernels->add(guesser->scores, n_expert, guesser->sums);
    }
    const float scale = (float)n_tok / (float)n_asked;
    for (uint32_t e = 0; e < n_expert; e++)
        guesser->list[e] = (struct moec_scored_expert){e, scale * guesser->sums[e]};
    moec_scored_order(guesser->list, n_expert, n_best);
    return true;
}
