/* What a learned predictor makes of a layer's inputs (internal to runtime/): formats/tables/expert_predictor.h
 * says how. A forward pass without this memory asks none. */
#ifndef MOEC_RUNTIME_LEARNED_PREDICTOR_H
#define MOEC_RUNTIME_LEARNED_PREDICTOR_H

#include "formats/tables/expert_predictor.h"
#include "formats/tables/path_table.h"
#include "runtime/kernels/kernels.h"
#include "runtime/seam/experts.h"

/* This many evenly spaced tokens stand for a longer batch: hardly an expert is left out, and a prediction that
 * costs more than it saves is useless. */
#define MOEC_LEARNED_PREDICTOR_TOKENS 16u

struct moec_learned_predictor {
    const struct moec_expert_predictor *predictor; /* borrowed */
    float *inputs, *hidden, *scores;               /* of one token */
    float *sums;                                   /* (E): over tokens */
    struct moec_scored_expert *list;               /* (E) */
};

/* Bytes that moec_learned_predictor_create allocates. */
uint64_t moec_learned_predictor_bytes(const struct moec_expert_predictor *predictor);
/* Released with free(). */
MOEC_WARN_UNUSED enum moec_status moec_learned_predictor_create(const struct moec_expert_predictor *predictor,
                                                                struct moec_learned_predictor **out,
                                                                struct moec_error *err);

/* Probabilities (E), in learned_predictor->scores, that one token chooses each expert of the MoE layer behind MoE
 * ordinal `ordinal`, whose predictor is known. `normed` is what the router of `ordinal` read (n_embd floats),
 * `experts` (n_choice) what it chose; numbers from E on are no experts. */
void moec_learned_predictor_token(const struct moec_learned_predictor *learned_predictor,
                                  const struct moec_kernels *kernels, uint32_t ordinal, const float *normed,
                                  const uint32_t *experts, uint32_t n_choice);

/* T tokens of a batch, and what their router read and chose. */
struct moec_predictor_batch {
    uint32_t n_tok;
    const float *normed; /* (T, stride) */
    size_t stride;
    const uint32_t *experts; /* (T, top_k) */
    uint32_t top_k;
};

/* The same summed over a batch. Puts into learned_predictor->list the n_best
 * experts, by falling score, ties to the lower index. Nothing, and false, where no predictor is known. */
bool moec_learned_predictor_batch(const struct moec_learned_predictor *learned_predictor,
                                  const struct moec_kernels *kernels, uint32_t ordinal,
                                  const struct moec_predictor_batch *batch, uint32_t n_best);

#endif
