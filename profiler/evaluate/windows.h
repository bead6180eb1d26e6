/* Windows: the pieces of tokenised text on which everything is measured (D5).
 *
 * Each row is tokenised by itself with the tokenizer's own post-processor and cut into consecutive windows of
 * seq_len_tokens without overlap, never across rows. Where the post-processor begins with a token (BOS), that
 * one token is taken off the row and put before every window instead, so that a window is BOS and up to
 * seq_len_tokens - 1 tokens of text. The first token of a window is context only; tokens 2..n are scored
 * given those before. A row's last window counts when it has at least 2 tokens.
 *
 * An encoder-decoder model reads a source and writes a target: its window is one row, the source's tokens
 * (the task's prompt) first, then the token that starts every target and the target's (the task's reference,
 * or the right one of its choices). Source and target each end with the end-of-text token, which the
 * tokenizer adds or, where it does not, this does; what is longer than seq_len_tokens, the start counted,
 * loses its tail and ends with that token all the same. The target's tokens are scored, each given the source
 * and the target before it (teacher forcing); the source and the start are context. Every row is a window.
 *
 * Windows are drawn without replacement with SplitMix64 (profiler/common/random.h): draw i swaps place i of
 * the list of all windows with a place in i..n-1 (Fisher and Yates). They are kept in the order of the draws,
 * those of the search part first, then those that select, then those that certify
 * (profiler/evaluate/parts.h). Thread rule: immutable once made. */
#ifndef MOEC_PROFILER_WINDOWS_H
#define MOEC_PROFILER_WINDOWS_H

#include "formats/profile/profile.h"
#include "profiler/evaluate/parts.h"
#include "profiler/evaluate/states.h"
#include "profiler/tasks/rows.h"
#include "runtime/text/tokenizer.h"
#include "runtime/threads/parallel.h"

/* Windows first .. first + n - 1. */
struct moec_window_range {
    uint32_t first, n;
};

struct moec_windows {
    uint32_t n_window; /* W */
    uint32_t seq_len_tokens;
    uint32_t *tokens;   /* (W, moec_windows_stride), owned; unused tail MOEC_PROFILE_NO_TOKEN */
    uint32_t *length;   /* (W): 2..moec_windows_stride, owned */
    uint32_t *source;   /* (W): how many of them are the source, owned; NULL = there are no sources */
    uint32_t *scored;   /* (W): length - source - 1, owned */
    uint64_t *index;    /* (W): which of the available windows it is, owned */
    uint64_t *document; /* (W): row of the data that it comes from, owned; NULL = not known */
    uint8_t *part;      /* (W): enum moec_part, owned; NULL = as moec_part_has says of NULL */
    uint64_t n_available;
    uint64_t n_document;           /* rows of the data; 0 = not known */
    bool by_document;              /* there are many documents, none with windows in two parts */
    struct moec_work_memory *work; /* borrowed: what evaluations on these windows may take; NULL: no bound */
};

struct moec_windows_options {
    uint32_t seq_len_tokens; /* 2.. */
    bool has_parts;
    /* With parts. A part that is smaller than min_part_windows of it is refused. */
    struct moec_part_request parts;
    /* Without: windows to draw; fewer are taken when the data has fewer; 0 = all, in the data's order. */
    uint32_t n_sample;
    uint64_t seed;
    bool has_source;       /* windows of an encoder-decoder model */
    uint32_t start_token;  /* of its targets */
    uint32_t end_token;    /* of its sources and targets */
    uint64_t memory_bytes; /* of the rows and their tokens, and of tokenising; 0 = no bound */
};

/* Places of a window. */
static inline uint32_t moec_windows_stride(const struct moec_windows *windows)
{
    return windows->source != NULL ? 2 * windows->seq_len_tokens : windows->seq_len_tokens;
}

/* Tokens of the source of window w; 0 without one. */
static inline uint32_t moec_windows_source(const struct moec_windows *windows, uint32_t w)
{
    return windows->source != NULL ? windows->source[w] : 0;
}

/* Tokens of window w, and of those the ones that its last stack reads: of an encoder-decoder model the start
 * and the target. */
static inline const uint32_t *moec_windows_tokens(const struct moec_windows *windows, uint32_t w)
{
    return windows->tokens + (size_t)w * moec_windows_stride(windows);
}

static inline const uint32_t *moec_windows_target(const struct moec_windows *windows, uint32_t w)
{
    return moec_windows_tokens(windows, w) + moec_windows_source(windows, w);
}

/* Tokens of window w that a forward pass traces: all, but of an encoder-decoder model's the last, which it
 * only ever writes. */
static inline uint32_t moec_windows_traced(const struct moec_windows *windows, uint32_t w)
{
    return windows->length[w] - (windows->source != NULL);
}

/* Those of them that the layers of one stack read: the source in the encoder, the others in the decoder. */
static inline uint32_t moec_windows_read(const struct moec_windows *windows, enum moec_stack stack,
                                         uint32_t w)
{
    const uint32_t source = moec_windows_source(windows, w);
    return stack == MOEC_STACK_ENCODER ? source : moec_windows_traced(windows, w) - source;
}

/* Sets what the model says of its windows: whether they have sources, and with which tokens. */
void moec_windows_options_for(const struct moec_config *config, struct moec_windows_options *options);

/* Refuses a task on whose rows no window of this model can be made by `verb` ("a profile"): a decoder alone
 * needs the task's perplexity, an encoder-decoder model references or choices. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_windows_need_task(const struct moec_config *config,
                                                         const struct moec_task *task, const char *verb,
                                                         struct moec_error *err);

/* Tokenises on all threads of the pool. `name` is the data's, for messages. Errors: MOEC_ERR_USAGE (options),
 * MOEC_ERR_LIMIT when the data has too few windows (the message says how much more text is needed),
 * MOEC_ERR_BUDGET before memory_bytes are passed, and those of the tokenizer with the row's line. */
MOEC_WARN_UNUSED enum moec_status moec_windows_make(const struct moec_rows *rows,
                                                    const struct moec_tokenizer *tokenizer,
                                                    const struct moec_windows_options *options,
                                                    const struct moec_pool *pool,
                                                    struct moec_windows *windows, struct moec_error *err);

/* A part of the windows, in their order; a copy that shares their work memory. And of those every step-th,
 * the first among them. */
MOEC_WARN_UNUSED enum moec_status moec_windows_part(const struct moec_windows *windows, enum moec_part part,
                                                    struct moec_windows *out, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_windows_part_every(const struct moec_windows *windows,
                                                          enum moec_part part, uint32_t step,
                                                          struct moec_windows *out, struct moec_error *err);

/* The first n of the windows; a copy that shares their work memory. */
MOEC_WARN_UNUSED enum moec_status moec_windows_first(const struct moec_windows *windows, uint32_t n,
                                                     struct moec_windows *out, struct moec_error *err);

/* Windows first, first + step, and so on: at least one, first < step; a copy likewise. */
MOEC_WARN_UNUSED enum moec_status moec_windows_every(const struct moec_windows *windows, uint32_t first,
                                                     uint32_t step, struct moec_windows *out,
                                                     struct moec_error *err);

/* The windows of these numbers (n), in this order; a copy likewise. */
MOEC_WARN_UNUSED enum moec_status moec_windows_pick(const struct moec_windows *windows,
                                                    const uint32_t *numbers, uint32_t n,
                                                    struct moec_windows *out, struct moec_error *err);

/* The windows that were drawn for a profile, or a part of them; a copy. */
MOEC_WARN_UNUSED enum moec_status moec_windows_from_profile(const struct moec_profile *profile,
                                                            enum moec_part part, struct moec_windows *out,
                                                            struct moec_error *err);

void moec_windows_release(struct moec_windows *windows);

/* Tokens of all windows that a forward pass traces (moec_windows_traced), those of them that are sources,
 * those that are scored, and how many hidden states an evaluation has:
 * those of sources and of what is scored. */
uint64_t moec_windows_token_count(const struct moec_windows *windows);
uint64_t moec_windows_source_count(const struct moec_windows *windows);
uint64_t moec_windows_scored_count(const struct moec_windows *windows);
uint64_t moec_windows_state_count(const struct moec_windows *windows);

#endif
