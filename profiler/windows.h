/* Windows: the pieces of tokenised text on which everything is measured (D5).
 *
 * Each row is tokenised by itself with the tokenizer's own post-processor and cut into consecutive windows of
 * seq_len_tokens without overlap, never across rows. Where the post-processor begins with a token (BOS), that
 * one token is taken off the row and put before every window instead, so that a window is BOS and up to
 * seq_len_tokens - 1 tokens of text. The first token of a window is context only; tokens 2..n are scored
 * given those before. A row's last window counts when it has at least 2 tokens.
 *
 * Windows are drawn without replacement with SplitMix64 (profiler/random.h): draw i swaps place i of the list
 * of all windows with a place in i..n-1 (Fisher and Yates). They are kept in the order of the draws: even
 * ones are the search part, odd ones the certificate part. Thread rule: immutable once made. */
#ifndef MOEC_PROFILER_WINDOWS_H
#define MOEC_PROFILER_WINDOWS_H

#include "formats/profile.h"
#include "profiler/rows.h"
#include "profiler/states.h"
#include "runtime/parallel.h"
#include "runtime/tokenizer.h"

#define MOEC_MIN_PART_WINDOWS 16 /* fewer windows a part are refused */

/* Windows are numbered in the order of the draws. */
enum moec_part {
    MOEC_PART_SEARCH = 0,      /* even ones */
    MOEC_PART_CERTIFICATE = 1, /* odd ones */
    MOEC_PART_ALL = 2,
};

/* Whether window w belongs to the part. */
static inline bool moec_part_has(enum moec_part part, uint32_t w)
{
    return part == MOEC_PART_ALL || (w & 1u) == (uint32_t)part;
}

struct moec_windows {
    uint32_t n_window; /* W */
    uint32_t seq_len_tokens;
    uint32_t *tokens; /* (W, seq_len_tokens), owned; unused tail MOEC_PROFILE_NO_TOKEN */
    uint32_t *length; /* (W): 2..seq_len_tokens, owned */
    uint32_t *scored; /* (W): length - 1, owned */
    uint64_t *index;  /* (W): which of the available windows it is, owned */
    uint64_t n_available;
    struct moec_work_memory *work; /* borrowed: what evaluations on these windows may take; NULL: no bound */
};

struct moec_windows_options {
    uint32_t seq_len_tokens; /* 2.. */
    uint32_t
        n_sample; /* windows to draw; fewer are taken when the data has fewer; 0 = all, in the data's order */
    uint64_t seed;
    uint32_t min_part_windows; /* windows that each part must have; 0 = no parts, any number from 1 */
};

/* Tokenises on all threads of the pool. `name` is the data's, for messages. Errors: MOEC_ERR_USAGE (options),
 * MOEC_ERR_LIMIT when the data has too few windows (the message says how much more text is needed), and those
 * of the tokenizer with the row's line. */
MOEC_WARN_UNUSED enum moec_status moec_windows_make(const struct moec_rows *rows,
                                                    const struct moec_tokenizer *tokenizer,
                                                    const struct moec_windows_options *options,
                                                    const struct moec_pool *pool,
                                                    struct moec_windows *windows, struct moec_error *err);

/* A part of the windows, in their order; a copy that shares their work memory. */
MOEC_WARN_UNUSED enum moec_status moec_windows_part(const struct moec_windows *windows, enum moec_part part,
                                                    struct moec_windows *out, struct moec_error *err);

/* The windows that a profile was made on, or a part of them; a copy. */
MOEC_WARN_UNUSED enum moec_status moec_windows_from_profile(const struct moec_profile *profile,
                                                            enum moec_part part, struct moec_windows *out,
                                                            struct moec_error *err);

void moec_windows_release(struct moec_windows *windows);

/* Tokens of all windows, and those of them that are scored. */
uint64_t moec_windows_token_count(const struct moec_windows *windows);
uint64_t moec_windows_scored_count(const struct moec_windows *windows);

#endif
