/* In which precision the experts of a prompt are read (Fate, arXiv:2502.12224, section 4.5): those that few
 * of its tokens take are read in a low copy.
 *
 *   unpopular:P:L   the least popular P of a layer's experts, by blocks of L tokens (0.25:512)
 *   whole:P         the same by the counts of the whole prompt, as the paper has it
 *   popular:P       the most popular P by these counts, which the paper's Fig. 10 compares with
 *
 * Popular is what tokens of the sequence took up to the end of the block before, and in calibration, which
 * counts as much as one block; at equal counts the lower index is more popular. So nothing depends on later
 * tokens, and a decision is a function of bundle, settings and tokens (D15). An expert whose high copy the
 * logical cache holds when a block begins is taken as it is, as the paper does with those in memory. Without
 * calibration the first block is high. Fate's own form, "whole", looks at tokens to come, and so does
 * "popular": they need the prompt in one call, and have no certificate. Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_PREFILL_H
#define MOEC_RUNTIME_PREFILL_H

#include "formats/base/error.h"
#include "formats/tables/path_table.h"

enum moec_prefill_kind {
    MOEC_PREFILL_SAME = 0, /* a prompt's experts are those of any token */
    MOEC_PREFILL_UNPOPULAR,
    MOEC_PREFILL_WHOLE,
    MOEC_PREFILL_POPULAR,
    MOEC_PREFILL_COUNT
};

/* Zero-initialised: none. */
struct moec_prefill {
    uint8_t kind;          /* enum moec_prefill_kind */
    float share;           /* P, 0 to 1 */
    uint32_t block_tokens; /* L; UINT32_MAX where tokens to come are looked at */
    /* (MoE layers, n_expert) by falling frequency in calibration; NULL = unknown. Borrowed. */
    const struct moec_path_value *frequency;
};

/* Whether experts of a prompt are counted before any of it is read. */
static inline bool moec_prefill_looks_ahead(const struct moec_prefill *prefill)
{
    return prefill->kind == MOEC_PREFILL_WHOLE || prefill->kind == MOEC_PREFILL_POPULAR;
}

/* The word before the numbers; NULL of none. */
const char *moec_prefill_name(const struct moec_prefill *prefill);

/* Where a user names none: the paper's share, and blocks as long as its longest prompts. A chunk of several
 * blocks reads an expert in both copies where their popularity differs. */
#define MOEC_PREFILL_SHARE  0.25f
#define MOEC_PREFILL_TOKENS 512u

/* Tokens of a window that are a prompt's, where all that can be are: those of a target are generated. */
static inline uint32_t moec_prefill_window(const struct moec_config *config)
{
    return moec_config_is_encoder_decoder(config) ? 0 : UINT32_MAX;
}

/* Reads "unpopular:0.25:512" and its like; `frequency` stays. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_prefill_read(const char *text, struct moec_prefill *prefill,
                                                    struct moec_error *err);

#endif
