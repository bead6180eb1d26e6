/* The log has positions first .. end - 1. Those before n_standing were decided in an earlier step: one that
 * runs again takes the same. What the step itself decides is never looked up, so a rejected draft is written
 * over. */
#include "runtime/policy/decide/decision_log.h"

#include "formats/base/memory.h"
#include "runtime/policy/decide/decision_book.h"

#include <inttypes.h>
#include <string.h>

uint64_t moec_decision_log_bytes(uint32_t n_layer, uint32_t top_k, uint32_t n_context)
{
    return (uint64_t)n_context * (sizeof(uint32_t) + (uint64_t)n_layer * top_k);
}

enum moec_status moec_decision_log_create(struct moec_decision_book *book, uint32_t sequence, uint32_t beam,
                                          struct moec_decision_log *log, struct moec_error *err)
{
    log->sequence = sequence;
    log->beam = beam;
    if (moec_decision_book_is_replay(book)) {
        log->given = moec_decision_book_find(book, sequence, beam);
        log->book = book;
        return MOEC_OK;
    }
    MOEC_TRY(moec_alloc((void **)&log->tokens, log->n_context, sizeof *log->tokens, "decisions", err));
    const enum moec_status status = moec_alloc((void **)&log->decided, log->n_context,
                                               (uint64_t)log->n_layer * log->top_k, "decisions", err);
    if (status == MOEC_OK) {
        log->book = book;
    } else {
        free(log->tokens);
        log->tokens = NULL;
    }
    return status;
}

void moec_decision_log_end(struct moec_decision_log *log, uint32_t length)
{
    if (log->book == NULL)
        return;
    moec_decision_log_truncate(log, length);
    if (log->tokens != NULL && log->end > log->first) {
        const struct moec_decision_rows rows = {.sequence = log->sequence,
                                                .beam = log->beam,
                                                .first = log->first,
                                                .n = log->end - log->first,
                                                .tokens = log->tokens + log->first,
                                                .decided = moec_decision_log_at(log, log->first, 0)};
        moec_decision_book_keep(log->book, &rows);
    }
    free(log->tokens);
    free(log->decided);
    *log = (struct moec_decision_log){0};
}

enum moec_status moec_decision_log_check(const struct moec_decision_log *log, uint32_t first,
                                         const uint32_t *tokens, uint32_t n, struct moec_error *err)
{
    const struct moec_decision_rows *given = log->given;
    if (log->book == NULL || !moec_decision_book_is_replay(log->book) || n == 0)
        return MOEC_OK;
    const char *path = moec_decision_book_path(log->book);
    if (given == NULL || given->n == 0)
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "the decision file '%s' has no decisions for sequence %" PRIu32 " beam %" PRIu32
                         ", which begins at position %" PRIu32 ": replay the recorded prompts in the same "
                         "order, with as many beams",
                         path, log->sequence, log->beam, first);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t position = first + i;
        if (position < given->first || position - given->first >= given->n)
            return moec_fail(err, MOEC_ERR_MISMATCH,
                             "position %" PRIu32 " of sequence %" PRIu32 " beam %" PRIu32 " is not in the "
                             "decision file '%s', which has only positions %" PRIu32 " to %" PRIu32
                             ": generate no more tokens than were recorded",
                             position, log->sequence, log->beam, path, given->first,
                             given->first + given->n - 1);
        if (given->tokens[position - given->first] != tokens[i])
            return moec_fail(err, MOEC_ERR_MISMATCH,
                             "position %" PRIu32 " of sequence %" PRIu32 " beam %" PRIu32 " has token "
                             "%" PRIu32 ", but the decision file '%s' has token %" PRIu32 " there: replay "
                             "the same prompt with the same options",
                             position, log->sequence, log->beam, tokens[i], path,
                             given->tokens[position - given->first]);
    }
    return MOEC_OK;
}

void moec_decision_log_begin_step(struct moec_decision_log *log, uint32_t first, const uint32_t *tokens,
                                  uint32_t n)
{
    if (log->tokens == NULL || n == 0)
        return;
    if (first < log->first || log->end == log->first)
        log->first = log->n_standing = first;
    else
        log->n_standing = log->end;
    memcpy(log->tokens + first, tokens, n * sizeof *tokens);
    log->end = first + n;
}

void moec_decision_log_truncate(struct moec_decision_log *log, uint32_t n)
{
    log->end = log->end < n ? log->end : n;
    log->first = log->first < log->end ? log->first : log->end;
}

void moec_decision_log_follow(struct moec_decision_log *log, const struct moec_decision_log *origin,
                              uint32_t n, bool with_decisions)
{
    log->first = log->end = n;
    if (!with_decisions || log->tokens == NULL || origin->tokens == NULL || origin->end <= origin->first)
        return;
    const uint32_t n_row = origin->end - origin->first;
    log->first = origin->first;
    log->end = origin->end;
    memcpy(log->tokens + log->first, origin->tokens + log->first, n_row * sizeof *log->tokens);
    memcpy(log->decided + (size_t)log->first * log->n_layer * log->top_k,
           origin->decided + (size_t)log->first * log->n_layer * log->top_k,
           (size_t)n_row * log->n_layer * log->top_k);
}

const uint8_t *moec_decision_log_find(const struct moec_decision_log *log, uint32_t position, uint32_t layer)
{
    const struct moec_decision_rows *given = log->given;
    if (given != NULL)
        return given->decided + ((size_t)(position - given->first) * log->n_layer + layer) * log->top_k;
    if (position < log->first || position >= log->n_standing)
        return NULL;
    return log->decided + ((size_t)position * log->n_layer + layer) * log->top_k;
}
