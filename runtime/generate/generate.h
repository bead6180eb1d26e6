/* Text, token by token: greedy search, drawing, beam search.
 *
 * A model continues a prompt, or an encoder reads it and the decoder begins a text of its own. Token for
 * token what transformers 4.57 gives for the same settings (greedy and beam search; draws are our own). A
 * generator keeps what it needs, so that nothing is allocated while it generates, and serves any number of
 * texts, one after the other:
 *
 *     moec_generator_create(session, &options, &generator, err)
 *     moec_generator_start(generator, prompt, n_prompt, n_tokens, err)       reads the prompt
 *     moec_generator_next(generator, &token, &what, err) while what is MOEC_GENERATED_TOKEN
 *
 * Beams run as one batch, and share the keys and values of nothing but the prompt's contents: each has a
 * sequence of its own, and where a beam is continued twice, what it generated so far is copied. Their text is
 * known when the search is over, which is at the first moec_generator_next.
 *
 * With drafts, a step may run the last token together with guesses at those that follow (draft_lookup.h), as
 * many as pay (draft_pace.h). Each token is then chosen from the logits at its own position, by the same
 * rules and the same random numbers as without; the first that is not the guess ends the use of that step,
 * and what the session holds behind it is truncated. Logits do not depend on the batch, so the text is the
 * same. The session's last positions may be guesses while a text is being generated, not after it has ended.
 * Thread rule: that of the session. */
#ifndef MOEC_RUNTIME_GENERATE_H
#define MOEC_RUNTIME_GENERATE_H

#include "formats/model/generation.h"
#include "runtime/forward/pass/session.h"
#include "runtime/moert.h"

enum moec_generated {
    MOEC_GENERATED_TOKEN,   /* one more token */
    MOEC_GENERATED_END,     /* the end-of-text token, the last of the text */
    MOEC_GENERATED_LENGTH,  /* no token: there are as many as were asked for */
    MOEC_GENERATED_CONTEXT, /* no token: the context is full */
};

/* Called around every run of the model; members may be NULL. */
struct moec_step_hooks {
    void (*begin)(void *context);
    void (*end)(void *context);
    void *context;
};

struct moec_generator_options {
    const struct moec_generation *generation; /* copied; lengths are moec_generator_start's */
    bool ignore_eos;                          /* no text ends before its length */
    bool drafts;                              /* prompt lookup: see below; goes without beams */
    bool is_given; /* the caller runs the session (moec_generator_begin); without beams and drafts */
    struct moert_sampler sampler; /* greedy, or draws, which go without beams */
    struct moec_step_hooks hooks;
};

/* What a user of libmoert sees of a generation, and back; the greatest length, ignore_end and the sampler are
 * not part of it. */
struct moert_generation moec_generation_to_public(const struct moec_generation *generation);
void moec_generation_take_public(struct moec_generation *generation, const struct moert_generation *asked);

struct moec_generator;

/* Bytes beside the session, for a budget. */
uint64_t moec_generator_bytes(const struct moec_config *config, uint32_t n_context, uint32_t n_beam,
                              bool drafts);

/* Borrows `session` until freed; what it holds is lost with the first text. Errors: MOEC_ERR_USAGE for draws
 * or drafts with beams, those of moec_generation_check. */
MOEC_WARN_UNUSED enum moec_status moec_generator_create(struct moec_session *session,
                                                        const struct moec_generator_options *options,
                                                        struct moec_generator **out, struct moec_error *err);
void moec_generator_free(struct moec_generator *generator);

/* Reads a prompt: text to continue, or the source of an encoder-decoder model, with whatever the tokenizer
 * puts around it, whose target begins with decoder_start_id. At most n_tokens are generated, end-of-text
 * token included. Errors: MOEC_ERR_USAGE for no prompt, MOEC_ERR_LIMIT where it does not fit,
 * those of the session. */
MOEC_WARN_UNUSED enum moec_status moec_generator_start(struct moec_generator *generator,
                                                       const uint32_t *prompt, uint32_t n_prompt,
                                                       uint32_t n_tokens, struct moec_error *err);

/* The same for a prompt that may begin with what the session holds, such as the prompt and the text before:
 * that much is kept, and only the rest is read. `*n_kept` tokens are (less than n_prompt; 0 with beams and
 * with an encoder). The text is the same. */
MOEC_WARN_UNUSED enum moec_status moec_generator_continue(struct moec_generator *generator,
                                                          const uint32_t *prompt, uint32_t n_prompt,
                                                          uint32_t n_tokens, uint32_t *n_kept,
                                                          struct moec_error *err);

/* `*token` is set with MOEC_GENERATED_TOKEN and MOEC_GENERATED_END. Errors: MOEC_ERR_FORMAT where no token
 * has a finite score, those of the session. */
MOEC_WARN_UNUSED enum moec_status moec_generator_next(struct moec_generator *generator, uint32_t *token,
                                                      enum moec_generated *what, struct moec_error *err);

/* Of a generator with is_given, in place of start and next: takes a prompt, which the caller reads into the
 * session, and chooses one token after the other, each from the logits (n_vocab) behind the one before, which
 * are used as scratch. The text is that of start and next. Errors: as there; MOEC_ERR_USAGE of another
 * generator or for an encoder-decoder model. */
MOEC_WARN_UNUSED enum moec_status moec_generator_begin(struct moec_generator *generator,
                                                       const uint32_t *prompt, uint32_t n_prompt,
                                                       uint32_t n_tokens, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_generator_choose(struct moec_generator *generator, float *logits,
                                                        uint32_t *token, enum moec_generated *what,
                                                        struct moec_error *err);

/* Tokens that may still follow. */
uint32_t moec_generator_left(const struct moec_generator *generator);

/* Runs of the model since the prompt was read: one for a token, whatever the beams, but for accepted drafts.
 */
uint64_t moec_generator_steps(const struct moec_generator *generator);

/* Tokens that were drafted since the prompt was read, and those of them that saved a step. */
uint64_t moec_generator_drafted(const struct moec_generator *generator);
uint64_t moec_generator_accepted(const struct moec_generator *generator);

/* Tokens that the model was run on since the start, the prompt's included; each beam counts. */
uint64_t moec_generator_tokens_run(const struct moec_generator *generator);

/* What was decided about the tokens of all its sequences, beams included, since it was created, and about
 * those that others ran on its session; 0 where nothing decides (runtime/forward/moe/decide.h). */
struct moec_route_counts moec_generator_route_counts(const struct moec_generator *generator);

#endif
