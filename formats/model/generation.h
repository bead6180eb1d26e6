/* How text is generated: search, lengths, and rules for single tokens.
 *
 * The fields are those of generation_config.json, with the defaults of transformers
 * (formats/family/generation_json.h reads and writes it); a bundle carries them as a section of its own
 * where any differs from its default (formats/bundle/FORMAT.md, "Generation"). End-of-text ids are the
 * config's. What runtime/generate/generate.h makes of them is what transformers 4.57 makes of them. Thread
 * rule: plain data. */
#ifndef MOEC_FORMATS_GENERATION_H
#define MOEC_FORMATS_GENERATION_H

#include "formats/model/config.h"

#define MOEC_MAX_BEAMS         64
#define MOEC_MAX_LISTED_TOKENS 256 /* of a list of ids */
#define MOEC_MAX_NGRAM         1024
#define MOEC_NO_TOKEN          UINT32_MAX

/* When a beam search ends before the greatest length. */
enum moec_early_stopping {
    MOEC_STOP_HEURISTIC = 0, /* false: when the best running beam, at its length now, is no better than the
                                worst finished one */
    MOEC_STOP_EARLY = 1,     /* true: likewise, and at once when as many are finished as there are beams */
    MOEC_STOP_NEVER = 2, /* "never": the running beam is judged at the greatest length where that is better */
};

struct moec_token_list {
    uint32_t n;
    uint32_t ids[MOEC_MAX_LISTED_TOKENS];
};

struct moec_generation {
    uint32_t n_beam;           /* num_beams, 1 = greedy */
    double length_penalty;     /* finished beams are compared by score / (generated tokens ^ this) */
    double repetition_penalty; /* of tokens that are already in the text; 1 = off */
    enum moec_early_stopping early_stopping;
    uint32_t no_repeat_ngram; /* no sequence of n tokens occurs twice; 0 = off */
    /* Lengths in tokens, 0 = not given. Those without "new" count the prompt too; of an encoder-decoder
     * model, the decoder's start. */
    uint32_t min_length, min_new_tokens;
    uint32_t max_length, max_new_tokens;
    uint32_t forced_bos;                   /* the second token of a text, MOEC_NO_TOKEN = any */
    struct moec_token_list forced_eos;     /* one of them ends a text of the greatest length; empty = any */
    struct moec_token_list suppress;       /* never generated */
    struct moec_token_list begin_suppress; /* not generated first */
};

struct moec_generation moec_generation_default(void);

/* Whether every field has its default. */
bool moec_generation_is_default(const struct moec_generation *generation);

/* Checks every limit; ids must be below n_vocab. `subject` names the source in messages. */
MOEC_WARN_UNUSED enum moec_status moec_generation_check(const struct moec_generation *generation,
                                                        uint32_t n_vocab, const char *subject,
                                                        struct moec_error *err);

/* Tokens to generate at most after a text of n_prompt tokens: what max_new_tokens, or else max_length, leaves
 * (0 where the prompt is that long already); `otherwise` where neither is given. */
uint32_t moec_generation_room(const struct moec_generation *generation, uint32_t n_prompt,
                              uint32_t otherwise);

/* The section of a bundle. encode gives malloc'ed bytes, owned by the caller; decode checks. */
MOEC_WARN_UNUSED enum moec_status moec_generation_encode(const struct moec_generation *generation,
                                                         uint8_t **bytes, size_t *n_bytes,
                                                         struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_generation_decode(const uint8_t *bytes, size_t n_bytes,
                                                         uint32_t n_vocab, struct moec_generation *generation,
                                                         struct moec_error *err);

#endif
