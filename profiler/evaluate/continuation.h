/* A model that continues prompts: generated text, or the likelihood of given texts.
 *
 * A prompt is the tokenizer's own start (BOS) and the tokens of its text, without what the post-processor
 * would put behind it. One that does not fit into the context loses tokens from the left, behind the start.
 * An encoder-decoder model reads it as its source: with what the post-processor puts behind it, and losing
 * tokens from the right before that; answers and candidates are targets.
 * By D1 the numbers depend on model and tokens alone. Thread rule: one thread at a time;
 * it parallelises inside. */
#ifndef MOEC_PROFILER_CONTINUATION_H
#define MOEC_PROFILER_CONTINUATION_H

#include "formats/model/generation.h"
#include "profiler/tasks/task.h"
#include "runtime/forward/pass/forward.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/policy/decide/route_state.h"
#include "runtime/text/tokenizer.h"

#define MOEC_CONTINUATION_CONTEXT 2048 /* default, in tokens */

struct moec_continuation; /* opaque */

struct moec_continuation_options {
    const struct moec_kernels *kernels;
    int n_threads; /* as moec_pool_make */
    /* Tokens of prompt and answer; 0 = MOEC_CONTINUATION_CONTEXT, or what the model allows. */
    uint32_t n_context;
    const struct moec_generation *generation; /* but for its greatest length; copied */
    enum moec_arithmetic arithmetic;
    uint64_t text_bytes; /* that tokenising a text may take; 0 = no bound */
    /* Decisions about each token: borrowed, NULL = none. The tokens before an answer or a candidate are a
     * prompt's; of an encoder-decoder model a target has none. */
    const struct moec_route *route;
    const uint64_t *record_bytes[2]; /* of struct moec_decider: for counts of bytes, borrowed, or NULL */
};

/* Borrows model, experts and tokenizer until free. Errors: MOEC_ERR_LIMIT (a context beyond the model's),
 * MOEC_ERR_MISMATCH (tokens outside the model's vocabulary), those of the tokenizer. */
MOEC_WARN_UNUSED enum moec_status moec_continuation_create(const struct moec_model *model,
                                                           struct moec_experts *experts,
                                                           const struct moec_tokenizer_model *tokenizer,
                                                           const struct moec_continuation_options *options,
                                                           struct moec_continuation **out,
                                                           struct moec_error *err);
void moec_continuation_free(struct moec_continuation *continuation);

/* Bytes that one takes at most. */
uint64_t moec_continuation_bytes(const struct moec_config *config,
                                 const struct moec_continuation_options *options);

/* What was decided about all tokens that were run so far; 0 without a route. What candidates share was run
 * once. */
struct moec_route_counts moec_continuation_route_counts(const struct moec_continuation *continuation);

/* What one prompt took. */
struct moec_continuation_cost {
    uint64_t n_tokens; /* run through the model */
    uint32_t n_cut;    /* tokens that the prompt lost */
};

/* A prompt, and where its answer ends at the latest. */
struct moec_prompt {
    const char *text; /* (n_bytes) */
    size_t n_bytes;
    uint32_t n_tokens;                         /* of the answer at most */
    const char (*stops)[MOEC_TASK_TEXT_BYTES]; /* (MOEC_TASK_MAX_STOPS) */
};

/* Continues the prompt (runtime/generate/generate.h) until an end-of-text token, a text of `stops` (which is
 * left out; of a beam search's text, with what follows it) or n_tokens tokens. `*text` (owned by the
 * continuation, valid until its next call) is UTF-8 without special tokens. Errors: MOEC_ERR_USAGE (a prompt
 * without tokens), MOEC_ERR_LIMIT (no room for a prompt beside n_tokens), MOEC_ERR_BUDGET (text_bytes), those
 * of the expert source. */
MOEC_WARN_UNUSED enum moec_status moec_continuation_generate(struct moec_continuation *continuation,
                                                             const struct moec_prompt *prompt,
                                                             const char **text, size_t *n_bytes,
                                                             struct moec_continuation_cost *cost,
                                                             struct moec_error *err);

/* A text that may follow a prompt. */
struct moec_candidate {
    const char *prompt; /* of one source for all candidates, where the model has an encoder */
    size_t prompt_bytes;
    const char *bytes;
    size_t n_bytes;
    /* results */
    double log_likelihood; /* nats: sum over its tokens, each given all before it */
    uint32_t n_tokens;     /* scored, at least 1 */
};

/* Scores each candidate behind its prompt. Prompt and candidate are tokenised as one text; what is scored
 * begins at the first token that differs from those of the prompt alone, so that a token across the border
 * counts with the candidate. A target is scored by itself, with the tokenizer's end, expert capacity counted
 * over it. Errors: MOEC_ERR_USAGE (an empty candidate, no token before it), MOEC_ERR_LIMIT
 * (a candidate longer than the context), MOEC_ERR_BUDGET (text_bytes), MOEC_ERR_FORMAT (logits that are not
 * finite), those of the expert source. */
MOEC_WARN_UNUSED enum moec_status
moec_continuation_score(struct moec_continuation *continuation, struct moec_candidate *candidates,
                        size_t n_candidate, struct moec_continuation_cost *cost, struct moec_error *err);

#endif
