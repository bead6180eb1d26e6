/* Changed rows of many variants on their way through the later layers together (internal to the sensitivity
 * sweep).
 *
 * A span holds the rows of one window from its first changed position to its end, under one variant. The
 * batch is filled at one layer's output, then run: later layers, head, token scores; each span's sums go to
 * its cells. Where the layer is an encoder's, spans hold all rows of the window's source, for in an encoder
 * everything sees a change, and then all rows of its target. */
#ifndef MOEC_PROFILER_VARIANT_BATCH_H
#define MOEC_PROFILER_VARIANT_BATCH_H

#include "profiler/evaluate/batch_sequences.h"
#include "profiler/evaluate/token_score.h"
#include "profiler/evaluate/variants.h"
#include "profiler/evaluate/windows.h"
#include "runtime/forward/attention/kv_state.h"

/* The baseline on one group of windows: what variants are compared with and continue from. R rows,
 * window-major, and as many of the sources as they have. D layers are not an encoder's. */
/* The windows of a group. */
struct moec_baseline_group {
    const struct moec_windows *windows;
    uint32_t first_window;
    uint32_t n_window;
    const uint64_t *row_start;    /* (n_window + 1) of the group, first is 0 */
    const uint64_t *source_start; /* the same of the sources; NULL without */
    uint64_t n_row;               /* R */
    uint64_t n_source;            /* rows of the sources */
};

struct moec_baseline_states {
    size_t stride;
    float *attention_out;           /* (S, R or rows of sources, stride): moec_stacked_rows */
    struct moec_kv_state kv;        /* each of the D layers, R rows */
    struct moec_kv_state source_kv; /* each of the D layers, rows of sources */
    float *hidden;                  /* (rows of sources + R, stride) */
    const float *final_hidden;      /* (R, stride): the last R of these */
};

/* Of the group's tokens, (R) each. */
struct moec_baseline_scores {
    uint32_t *targets;
    double *nll, *kl;
    struct moec_reference reference; /* rows 0..R-1 */
};

struct moec_baseline {
    struct moec_baseline_group group;
    struct moec_baseline_states states;
    struct moec_baseline_scores scores;
};

struct moec_variant_span {
    double *nll, *kl;        /* where the window's sums go */
    uint64_t *multiply_adds; /* what the span costs is added here; may be NULL */
    uint32_t window;         /* within the group */
    uint32_t n_source;       /* rows of its source where an encoder's layer is changed, else 0 */
    uint32_t first_position;
    uint32_t n_rows;
    uint32_t first_source; /* in the batch */
    uint32_t first_row;    /* in the batch */
};

/* Rows of the spans so far, and room for them. */
struct moec_variant_rows {
    uint32_t capacity; /* rows, and rows of sources */
    uint32_t n;
    uint32_t n_source;
    float *hidden;                  /* (capacity, stride) */
    float *sources;                 /* (capacity, stride); NULL without an encoder */
    struct moec_kv_state kv;        /* (max_tokens) in the layer at work */
    struct moec_kv_state source_kv; /* (max_tokens) in the layer at work; empty without an encoder */
};

/* (capacity) each. */
struct moec_variant_scores {
    uint32_t *changed;        /* rows that go through the head, then */
    uint32_t *targets;        /* their targets, */
    uint32_t *reference_rows; /* their rows in the reference, */
    double *nll, *kl;         /* and their scores */
    uint64_t skipped;         /* multiply-adds of the head that rows equal to the baseline's did not need */
};

struct moec_variant_batch {
    const struct moec_forward *forward;
    struct moec_variants *variants;
    struct moec_token_scorer *tokens;
    struct {
        uint32_t n;
        struct moec_variant_span *items; /* (capacity) */
        struct moec_span *of;            /* (max_tokens of the forward) */
        struct moec_batch_sequences sequences;
    } spans;
    struct moec_variant_rows rows;
    struct moec_variant_scores scores;

    enum moec_status (*worked)(void *context, uint64_t multiply_adds, struct moec_error *err);
    void *context;
};

/* Bytes of one row of capacity. */
uint64_t moec_variant_batch_row_bytes(const struct moec_config *config);
MOEC_WARN_UNUSED enum moec_status moec_variant_batch_create(struct moec_variant_batch *batch,
                                                            const struct moec_forward *forward,
                                                            uint32_t capacity, struct moec_error *err);
void moec_variant_batch_release(struct moec_variant_batch *batch);

/* Room for one more span of n rows, and n_source of a source? */
static inline bool moec_variant_batch_fits(const struct moec_variant_batch *batch, uint32_t n_source,
                                           uint32_t n)
{
    return batch->rows.capacity - batch->rows.n >= n &&
           batch->rows.capacity - batch->rows.n_source >= n_source;
}

/* Adds a span and returns the rows to be filled with the hidden states that leave the changed layer: those of
 * the source (n_source, stride) where it has one, else its own (n_rows, stride). */
float *moec_variant_batch_add(struct moec_variant_batch *batch, const struct moec_variant_span *span);

/* Takes all spans, of changes in `layer`, through the later layers and the head, writes their sums and
 * empties the batch. */
MOEC_WARN_UNUSED enum moec_status moec_variant_batch_run(struct moec_variant_batch *batch,
                                                         const struct moec_baseline *baseline, uint32_t layer,
                                                         struct moec_error *err);

#endif
