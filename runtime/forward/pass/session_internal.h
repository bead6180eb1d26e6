/* What a session is made of, for the files that work on it (internal to this room). */
#ifndef MOEC_RUNTIME_SESSION_INTERNAL_H
#define MOEC_RUNTIME_SESSION_INTERNAL_H

#include "runtime/forward/attention/kv_state.h"
#include "runtime/forward/moe/decide.h"
#include "runtime/forward/pass/session.h"
#include "runtime/policy/decide/decision_log.h"
#include "runtime/policy/decide/route_state.h"

struct moec_session {
    const struct moec_forward *forward; /* borrowed */
    uint32_t n_context;
    const struct moec_session *first; /* the session that this one stands beside, or itself */
    struct moec_kv_state kv;          /* of the decoder's layers; its length is the sequence's */
    uint32_t n_taken;                 /* positions of it that a lender has made room for */
    uint32_t *tokens; /* owned, (n_context), where running states may have to pass them again */
    float *hidden;    /* (max_tokens, stride), the first's */
    bool borrows_hidden;
    struct moec_route_state route; /* of all MoE layers; empty where the forward does not decide */
    uint64_t *predicted; /* owned, (n_context, words): of struct moec_sequence_rows; NULL where none asks */
    uint32_t n_prompt;   /* positions of a prompt */
    struct moec_decision_log log; /* where decisions look at the expert buffer, else all zero */
    uint32_t n_beside;            /* of the first: sessions that were made beside it */

    /* Encoder-decoder models alone, and the first's alone. */
    struct moec_kv_state source_kv;  /* of the source, as the decoder's layers attend to it */
    struct moec_kv_state encoder_kv; /* of the encoder's layer at work */
    uint64_t source_id;              /* equal in sessions that hold the same source; 0 = none */
    float *source;                   /* owned, (n_context, stride): hidden states of the encoder */

    /* With an expert capacity: of encoder-decoder models the first's alone, whose targets count where they
     * are asked to, and of a decoder alone each session's, which always count. */
    bool counts_capacity;
    uint32_t *counts;  /* owned, (MoE layers, n_expert): tokens of the sequence that each expert was sent */
    uint32_t *choices; /* owned, (decoder's MoE layers, n_context): experts that counted, to take them back */
};

/* Positions that are filled. */
static inline uint32_t moec_session_filled(const struct moec_session *session)
{
    return (uint32_t)session->kv.length;
}

/* Whether its tokens decide about experts (runtime/forward/moe/decide.h). */
static inline bool moec_session_decides(const struct moec_session *session)
{
    return session->forward->decider != NULL;
}

/* Where the choices of a decoder's MoE layer stand; NULL for a dense one. */
uint32_t *moec_session_choices(const struct moec_session *session, uint32_t layer);
/* Counts of the text as far as it goes, of the target where it has a source. */
void moec_session_count_again(struct moec_session *session);
/* The first n positions are about to be filled. */
void moec_session_take_memory(struct moec_session *session, uint32_t n);
/* Forgets what positions from n on decided; of decisions by the expert buffer too, which positions that run
 * again take once more. */
void moec_session_forget_decisions(struct moec_session *session, uint32_t n);

#endif
