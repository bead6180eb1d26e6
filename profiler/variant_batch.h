/* Changed rows of many variants on their way through the later layers together (internal to the sensitivity
 * sweep).
 *
 * A span holds the rows of one window from its first changed position to its end, under one variant. The
 * batch is filled at one layer's output, then run: later layers, head, token scores; each span's sums go to
 * its cells. */
#ifndef MOEC_PROFILER_VARIANT_BATCH_H
#define MOEC_PROFILER_VARIANT_BATCH_H

#include "profiler/token_score.h"
#include "profiler/variants.h"
#include "profiler/windows.h"

/* The baseline on one group of windows: what variants are compared with and continue from. R rows,
 * window-major. */
struct moec_baseline {
    const struct moec_windows *windows;
    uint32_t first_window;
    uint32_t n_window;
    const uint64_t *row_start; /* (n_window + 1) of the group, first is 0 */
    uint64_t n_row;            /* R */
    size_t stride;
    size_t kv_stride;
    float *attention_out;            /* (S, R, stride) */
    float *k, *v;                    /* (L, R, kv_stride) */
    float *final_hidden;             /* (R, stride) */
    uint32_t *targets;               /* (R) */
    double *nll, *kl;                /* (R) */
    struct moec_reference reference; /* rows 0..R-1 */
};

struct moec_variant_span {
    double *nll, *kl;        /* where the window's sums go */
    uint64_t *multiply_adds; /* what the span costs is added here; may be NULL */
    uint32_t window;         /* within the group */
    uint32_t first_position;
    uint32_t n_rows;
    uint32_t first_row; /* in the batch */
};

struct moec_variant_batch {
    struct moec_forward *forward;
    struct moec_variants *variants;
    struct moec_token_scorer *tokens;
    uint32_t capacity; /* rows */
    uint32_t n_row;
    uint32_t n_span;
    float *hidden;                   /* (capacity, stride) */
    struct moec_variant_span *items; /* (capacity) */
    struct moec_span *spans;         /* (max_tokens of the forward) */
    float *k, *v;                    /* (max_tokens, kv_stride) */
    uint32_t *changed;               /* (capacity): rows that go through the head, then */
    uint32_t *targets;               /* their targets, */
    uint32_t *reference_rows;        /* their rows in the reference, */
    double *nll, *kl;                /* and their scores */

    enum moec_status (*worked)(void *context, uint64_t multiply_adds, struct moec_error *err);
    void *context;
    uint64_t skipped; /* multiply-adds of the head that rows equal to the baseline's did not need */
};

/* Bytes of one row of capacity. */
uint64_t moec_variant_batch_row_bytes(const struct moec_config *config);
MOEC_WARN_UNUSED enum moec_status moec_variant_batch_create(struct moec_variant_batch *batch,
                                                            struct moec_forward *forward, uint32_t capacity,
                                                            struct moec_error *err);
void moec_variant_batch_release(struct moec_variant_batch *batch);

/* Room for one more span of n rows? */
static inline bool moec_variant_batch_fits(const struct moec_variant_batch *batch, uint32_t n)
{
    return batch->capacity - batch->n_row >= n;
}

/* Adds a span and returns its rows (n_rows, stride) to be filled with the hidden states that leave the
 * changed layer. */
float *moec_variant_batch_add(struct moec_variant_batch *batch, const struct moec_variant_span *span);

/* Takes all spans through layers first_layer.. and the head, writes their sums and empties the batch. */
MOEC_WARN_UNUSED enum moec_status moec_variant_batch_run(struct moec_variant_batch *batch,
                                                         const struct moec_baseline *baseline,
                                                         uint32_t first_layer, struct moec_error *err);

#endif
