/* Which precision of an expert a token takes (HOBBIT, arXiv:2411.01433, section 3.2): where an important
 * expert is missing its high copy is read, where a less important one is its low copy, and the least
 * important ones are skipped.
 *
 *   hobbit:T1:T2:L decided for experts whose high copy is missing; one that is there is used. In a block of L
 *                  positions of a prompt, counted from 0, the first token that takes an expert decides its copy
 *                  for the rest of the block, so that a prompt does not read one expert in both copies; with
 *                  L = 0 every token decides for itself, as generated tokens always do
 *   always:T1:T2   decided for every expert, whatever is there
 *   shared:T1:T2   as hobbit, but what is there is what the engine's expert buffer holds
 *
 * Or what Fate does where it is short of bandwidth (arXiv:2502.12224, sections 4.3 and 5.3): the experts that
 * the layer before foresees are on their way when they are asked for, and one that it did not foresee is read
 * in its low copy.
 *
 *   fate:W         low are the experts that are missing and not among the W best of this layer's router for
 *                  the input of the MoE layer before; in the first MoE layer of a stack, before which nothing
 *                  is foreseen, and in layers that route by token, where all is known, none is low
 *
 * A token's experts stand by falling weight, at equal weights the lower index first, weights summing to 1.
 * An expert's score is the sum of those before it (eq. 2), so the first one's is 0. Scores up to T1 ask for
 * the high copy, up to T2 for the low copy, beyond that the expert is skipped; a low copy is a miss where the
 * high one is asked for. What is there is asked of a logical cache (runtime/policy/decide/route_state.h), so a
 * decision is a function of bundle, settings and tokens (D15); not with `shared`, the paper's pools for all
 * layers, whose decisions are recorded to be taken again (runtime/policy/decide/decision_book.h). Thread rule: pure
 * functions. */
#ifndef MOEC_RUNTIME_PRECISION_H
#define MOEC_RUNTIME_PRECISION_H

#include "formats/model/config.h"
#include "runtime/policy/decide/choice.h"

enum moec_precision_kind {
    MOEC_PRECISION_ONE = 0, /* the high copy alone */
    MOEC_PRECISION_HOBBIT,
    MOEC_PRECISION_ALWAYS,
    MOEC_PRECISION_FATE,
    MOEC_PRECISION_SHARED,
    MOEC_PRECISION_COUNT
};

/* Zero-initialised: one precision. */
struct moec_precision {
    uint8_t kind;          /* enum moec_precision_kind */
    float high_score;      /* T1 */
    float low_score;       /* T2, at least T1 */
    bool by_shares;        /* neither was named: what a bundle knows of scores may take their place */
    uint32_t block_tokens; /* L of hobbit; 0 = none */
    bool names_block;      /* L was named */
    /* W of fate: moec_precision_width has it. */
    uint32_t width;    /* experts; 0 = by the share */
    float width_share; /* of a layer's experts; 0 = the paper's */
};

/* Where a user names none and the bundle does not know its scores: the paper's thresholds. */
#define MOEC_PRECISION_HIGH_SCORE 0.6f
#define MOEC_PRECISION_LOW_SCORE  0.9f

/* A block where a user names none, and the longest. */
#define MOEC_PRECISION_BLOCK     128u
#define MOEC_PRECISION_MAX_BLOCK 65536u

/* The copy that a block has of an expert. */
enum moec_block_copy {
    MOEC_BLOCK_NONE = 0, /* no token of it has taken the expert */
    MOEC_BLOCK_HIGH,
    MOEC_BLOCK_LOW
};

/* Reads "hobbit:0.6:0.9:128"; the block, one score or both may be left out. Likewise "fate:8", "fate:25%" and
 * "fate". Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_precision_read(const char *text, struct moec_precision *precision,
                                                      struct moec_error *err);

/* Where thresholds were left out: those that make as many of these experts high, low and skipped as the
 * paper's make of Mixtral's. `scores`: (MOEC_SCORE_COUNT) of formats/tables/score_shares.h. */
void moec_precision_know_scores(struct moec_precision *precision, const float *scores);

/* Whether the settings fit a model. Errors: MOEC_ERR_USAGE, where they would change nothing too. */
MOEC_WARN_UNUSED enum moec_status moec_precision_check(const struct moec_precision *precision,
                                                       const struct moec_config *config,
                                                       struct moec_error *err);

/* Of fate, the experts that the layer before foresees: without a number those from the 75th percentile of the
 * router's scores on, and at least those of one token. */
uint32_t moec_precision_width(const struct moec_precision *precision, const struct moec_config *config);

/* Words of 64 experts each that name what is foreseen for a token: the expert e by bit e % 64 of word e / 64.
 */
static inline size_t moec_precision_predicted_words(const struct moec_config *config)
{
    return ((size_t)config->n_expert + 63) / 64;
}

/* Whether decisions depend on bundle, settings and tokens alone, as `whose` (the message's subject) needs.
 * Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_precision_check_pure(const struct moec_precision *precision,
                                                            const char *whose, struct moec_error *err);

/* Scores (eq. 2) of a token's experts (top_k) of these weights, in their order by weight: 0 of the first, and
 * of all where every weight is 0. Those that are skipped take no part. Returns how many there are. */
uint32_t moec_precision_scores(uint32_t top_k, const uint32_t *experts, const float *weights,
                               const bool *skips, float *scores);

/* A token's experts in order of choice, and what is decided about them. Arrays (top_k) are the caller's. */
struct moec_token_experts {
    uint32_t top_k;
    const uint32_t *experts;
    const float *weights; /* as applied */
    bool *skips, *is_low;
};

/* Decides for a token's experts; those that are skipped already take no part. `skips` gains those beyond T2,
 * `is_low` receives which take the low copy. `residents` answers for the high copies of `layer`, with fate
 * for those that are foreseen too. `block`: enum moec_block_copy of n_block experts that the token's block
 * has taken, of which none is decided about; NULL = no block. */
void moec_precision_decide(const struct moec_precision *precision, const struct moec_token_experts *token,
                           const struct moec_residents *residents, uint32_t layer, const uint8_t *block,
                           uint32_t n_block);

#endif
