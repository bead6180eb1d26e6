/* Rules for the next token, applied to its scores before one is chosen.
 *
 * The rules of transformers 4.57 in its order: repetition penalty, no n-gram twice, least length, forced
 * first and last token, suppressed tokens, tokens suppressed at the beginning. What a rule forbids gets
 * -infinity; a forced token gets 0 and everything else -infinity. Greedy search applies them to logits, beam
 * search to log probabilities, so that the repetition penalty means different things there.
 * Thread rule: one thread. */
#ifndef MOEC_RUNTIME_TOKEN_RULES_H
#define MOEC_RUNTIME_TOKEN_RULES_H

#include "formats/model/generation.h"

/* The text so far: what the decoder was given, then what was generated. Lengths of struct moec_generation
 * count both. */
struct moec_text_ids {
    const uint32_t *prompt;
    uint32_t n_prompt;
    const uint32_t *generated;
    uint32_t n_generated;
};

struct moec_token_rules {
    const struct moec_generation *generation; /* borrowed */
    const uint32_t *eos_ids;                  /* borrowed (n_eos); none: no text ends early */
    uint32_t n_eos;
    uint32_t n_vocab;
    uint32_t max_length; /* of a text, prompt included */
    uint64_t *seen;      /* a bit for each token of the vocabulary, the caller's, zero between calls */
};

/* Changes scores (n_vocab) of the token after `text`. */
void moec_token_rules_apply(const struct moec_token_rules *rules, const struct moec_text_ids *text,
                            float *scores);

/* Whether they leave all scores of the token after `text` as they are. */
bool moec_token_rules_are_idle(const struct moec_token_rules *rules, const struct moec_text_ids *text);

/* Whether the token ends a text. */
bool moec_token_rules_is_end(const struct moec_token_rules *rules, uint32_t token);

#endif
