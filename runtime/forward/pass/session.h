/* One sequence being read or written: KV cache and position (D10). Of an encoder-decoder model: a source,
 * encoded once, and the target that is read or written for it.
 *
 * step() runs any number of tokens in chunks of at most the forward's max_tokens; by D1 the chunking never
 * changes a result. Thread rule: one thread at a time for each session. */
#ifndef MOEC_RUNTIME_SESSION_H
#define MOEC_RUNTIME_SESSION_H

#include "runtime/forward/pass/forward.h"
#include "runtime/policy/decide/route_state.h"

struct moec_session;

/* Bytes of keys and values for `n_context` positions (of a source and of a target each, where there are
 * both), for a budget. */
uint64_t moec_session_bytes(const struct moec_config *config, uint32_t n_context, uint32_t max_tokens);

/* Of these, keys and values of a sequence that has room for n_context positions and has filled n_filled of
 * them, as a lender is asked for them (runtime/forward/attention/kv_lender.h); beside: of one beside others. */
uint64_t moec_session_filled_bytes(const struct moec_config *config, uint32_t n_context, uint32_t n_filled,
                                   bool beside);

/* Borrows `forward` until freed. Memory is reserved for n_context positions (--ctx) and touched as they fill.
 */
MOEC_WARN_UNUSED enum moec_status moec_session_create(const struct moec_forward *forward, uint32_t n_context,
                                                      struct moec_session **out, struct moec_error *err);
void moec_session_free(struct moec_session *session);

/* The same of sessions that share their activations: `hidden` is (max_tokens, stride) from
 * moec_session_rows_create on the same forward, and borrowed. One thread for all of them. */
MOEC_WARN_UNUSED enum moec_status moec_session_create_with(const struct moec_forward *forward,
                                                           uint32_t n_context, float *hidden,
                                                           struct moec_session **out, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_session_rows_create(const struct moec_forward *forward, float **out,
                                                           struct moec_error *err);
void moec_session_rows_free(const struct moec_forward *forward, float *hidden);

/* Bytes of what sequences keep beside that where the forward decides (runtime/forward/moe/decide.h). */
uint64_t moec_session_route_bytes(const struct moec_config *config, const struct moec_route *route,
                                  uint32_t n_context);

/* Another sequence, empty, of the same size as `first`, which is freed last, on its forward, its activations
 * and its source: beams. Capacity is not counted in it. One thread for all of them. */
MOEC_WARN_UNUSED enum moec_status moec_session_beside(struct moec_session *first, struct moec_session **out,
                                                      struct moec_error *err);
uint64_t moec_session_beside_bytes(const struct moec_config *config, uint32_t n_context);

/* Reads a source: runs the encoder over all of it, keeps what the decoder's layers attend to, and starts an
 * empty target. Must come before the first step of an encoder-decoder model. Expert capacity counts over the
 * whole source. Errors: MOEC_ERR_USAGE without an encoder or without tokens; MOEC_ERR_LIMIT when the source
 * is longer than the context (nothing has changed); after any other error there is no source. */
MOEC_WARN_UNUSED enum moec_status moec_session_encode(struct moec_session *session, const uint32_t *tokens,
                                                      uint32_t n_tokens, struct moec_error *err);

/* Whether steps count expert capacity over the target from its first token on, as transformers does for a
 * target that it reads in one call, or nothing is ever full, as in its generation with a cache (at first).
 * Starts an empty target. */
void moec_session_count_capacity(struct moec_session *session, bool counts);

/* Appends n tokens; an encoder-decoder model's target begins with its decoder_start_id. `logits_at` (may be
 * NULL) lists increasing offsets into `tokens` whose logits are wanted; `logits` receives (n_logits,
 * n_vocab). Errors: MOEC_ERR_LIMIT when the context would overflow, MOEC_ERR_USAGE where a source is missing
 * (state unchanged); after any other error the session is truncated to where it stood. */
MOEC_WARN_UNUSED enum moec_status moec_session_step(struct moec_session *session, const uint32_t *tokens,
                                                    uint32_t n_tokens, const uint32_t *logits_at,
                                                    uint32_t n_logits, float *logits, struct moec_error *err);

/* The same of n_tokens > 0, after which the next token is chosen where the forward computes; only where
 * moec_forward_chooses. */
MOEC_WARN_UNUSED enum moec_status
moec_session_step_choose(struct moec_session *session, const uint32_t *tokens, uint32_t n_tokens,
                         const struct moec_draw *how, struct moec_chosen *chosen, struct moec_error *err);

/* Who reads the logits of a step, some rows at a time: after tokens first .. first + n - 1 of it, (n, n_vocab),
 * which it may change. */
struct moec_logits_reader {
    void (*take)(void *context, uint32_t first, uint32_t n, float *logits);
    void *context;
    float *rows; /* (n_rows, n_vocab), borrowed */
    uint32_t n_rows;
};

/* The same with logits after each of the tokens, in order. */
MOEC_WARN_UNUSED enum moec_status moec_session_step_reading(struct moec_session *session,
                                                            const uint32_t *tokens, uint32_t n_tokens,
                                                            const struct moec_logits_reader *reader,
                                                            struct moec_error *err);

/* Appends one token to each of n sequences that stand beside each other or share one forward, in one batch:
 * every weight is read once for all. tokens (n), logits (n, n_vocab); by D1 the same as n steps. Errors as
 * above, for all. */
MOEC_WARN_UNUSED enum moec_status moec_session_step_each(struct moec_session *const *sessions,
                                                         const uint32_t *tokens, uint32_t n, float *logits,
                                                         struct moec_error *err);

/* Positions below n_prompt are a prompt's, which keep the router's choice where routes decide for decoding
 * alone and may have a precision of their own (struct moec_route). 0 at first; copies take it over. */
void moec_session_set_prompt(struct moec_session *session, uint32_t n_prompt);

/* How many of its first n positions may begin another prompt, as they stand: not those that were decided about
 * in another way than a prompt's. None of an encoder-decoder model, nor where a prompt is looked at whole. */
uint32_t moec_session_keepable(const struct moec_session *session, uint32_t n);

/* Experts taken by this session's tokens, and those that its logical cache had not. */
struct moec_route_counts moec_session_route_counts(const struct moec_session *session);

uint32_t moec_session_length(const struct moec_session *session);                    /* positions filled */
uint32_t moec_session_context(const struct moec_session *session);                   /* positions reserved */
const struct moec_forward *moec_session_forward(const struct moec_session *session); /* borrowed */

/* Forgets everything from position n on; n must not be past the length. In models with running states
 * (runtime/forward/attention/kv_state.h) the next step may have to read again what comes before n: it takes longer, and
 * its result is the same. */
void moec_session_truncate(struct moec_session *session, uint32_t n);

/* Makes `to`, of the same model and at least as large a context, stand where `from` stands. They may have
 * different forwards. A source that `to` has from an earlier copy is not copied again; of an encoder-decoder
 * model a sequence beside others is copied into from these alone. */
void moec_session_copy(struct moec_session *to, const struct moec_session *from);

/* The same of the first n positions, as if `from` had been truncated there. */
void moec_session_copy_first(struct moec_session *to, const struct moec_session *from, uint32_t n);

/* The same where both hold the same up to position `shared`: only what follows is copied. */
void moec_session_copy_after(struct moec_session *to, const struct moec_session *from, uint32_t shared);

#endif
