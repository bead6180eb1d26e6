/* What a sequence's tokens decided by the expert buffer: in which precision they took each expert, position
 * by position, so that it can be written to a file (runtime/policy/decide/decision_book.h) and taken again. The last
 * decision about a position counts: a draft that was rejected is followed by the token that stands. Thread
 * rule: its session's. */
#ifndef MOEC_RUNTIME_DECISION_LOG_H
#define MOEC_RUNTIME_DECISION_LOG_H

#include "formats/decisions/decision_file.h"

struct moec_decision_book;

struct moec_decision_log {
    struct moec_decision_book *book; /* borrowed; NULL = nothing is kept */
    uint32_t sequence, beam;
    uint32_t n_layer, top_k, n_context;
    uint32_t first, end; /* positions that were decided here */
    uint32_t n_standing; /* below it they were decided before the step at work, and are not again */
    uint32_t *tokens;    /* (n_context), owned */
    uint8_t *decided;    /* (n_context, n_layer, top_k) of enum moec_decided, owned */
    /* Of a replay, else NULL: what is taken, borrowed, in place of the two above. */
    const struct moec_decision_rows *given;
};

uint64_t moec_decision_log_bytes(uint32_t n_layer, uint32_t top_k, uint32_t n_context);

/* Of the book's sequence and beam, empty. `log` holds the numbers of layers, ranks and positions. Errors:
 * MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_decision_log_create(struct moec_decision_book *book, uint32_t sequence,
                                                           uint32_t beam, struct moec_decision_log *log,
                                                           struct moec_error *err);
/* What stands up to position `length` goes into the book; then it is released. */
void moec_decision_log_end(struct moec_decision_log *log, uint32_t length);

/* Whether a replay knows these tokens at these positions; true where there is none. Errors: MOEC_ERR_MISMATCH
 * with the first position that differs or is missing. */
MOEC_WARN_UNUSED enum moec_status moec_decision_log_check(const struct moec_decision_log *log, uint32_t first,
                                                          const uint32_t *tokens, uint32_t n,
                                                          struct moec_error *err);

/* The positions from `first` on, n of them, are about to be decided, or again; nothing behind them stands. */
void moec_decision_log_begin_step(struct moec_decision_log *log, uint32_t first, const uint32_t *tokens,
                                  uint32_t n);
/* Positions from n on are forgotten. */
void moec_decision_log_truncate(struct moec_decision_log *log, uint32_t n);
/* A copied sequence of n positions goes on from there, with its origin's decisions or without. */
void moec_decision_log_follow(struct moec_decision_log *log, const struct moec_decision_log *origin,
                              uint32_t n, bool with_decisions);

/* What a position took in a layer, (top_k); NULL where it is to be decided. */
const uint8_t *moec_decision_log_find(const struct moec_decision_log *log, uint32_t position, uint32_t layer);
/* Where it is noted. Not in a replay. */
static inline uint8_t *moec_decision_log_at(struct moec_decision_log *log, uint32_t position, uint32_t layer)
{
    return log->decided + ((size_t)position * log->n_layer + layer) * log->top_k;
}

#endif
