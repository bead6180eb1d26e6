/* Windows through all layers of a model, layer by layer, many windows at a time: one sweep over the weights.
 *
 * Rows: the tokens of the windows one after the other, all of each window or all but the last (whose logits
 * nobody scores). Every layer is finished for all rows before the next begins, so that an expert source
 * larger than memory is read once for all windows. Thread rule: one thread at a time, as for its forward. */
#ifndef MOEC_PROFILER_SWEEP_H
#define MOEC_PROFILER_SWEEP_H

#include "profiler/windows.h"
#include "runtime/forward.h"

#define MOEC_SWEEP_TOKENS 4096 /* tokens that a forward takes at once */

struct moec_sweep {
    struct moec_forward *forward;       /* borrowed */
    const struct moec_windows *windows; /* borrowed */
    bool whole;                         /* last tokens too */
    uint64_t *row_start;                /* (W + 1), owned: first row of each window */
    size_t kv_stride;                   /* floats of one position's keys */
    float *k, *v;            /* (max_tokens of the forward, kv_stride), owned: those of one batch */
    struct moec_span *spans; /* (W), owned */
};

/* Batch size for a forward that runs these windows: the longest one fits, and their work memory's bound is
 * kept otherwise. */
uint32_t moec_sweep_max_tokens(const struct moec_windows *windows);

/* What a caller wants to keep. NULL members are not filled. R = rows of the windows that are run. */
struct moec_sweep_store {
    float
        *attention_out; /* (S, R, stride): hidden states of each MoE layer after attention, before its MLP */
    float *k, *v;       /* (L, R, kv_stride) */

    /* What `hidden` belongs to: each batch's rows are left behind when a layer is done with them. */
    const struct moec_states *states;

    /* MoE layers are traced into these arrays, which hold one batch; then `traced` is told the layer's MoE
     * ordinal and the batch's first row and number of rows. */
    const struct moec_mlp_trace *trace;
    enum moec_status (*traced)(void *context, uint32_t ordinal, uint64_t first_row, uint32_t n_rows,
                               struct moec_error *err);

    /* Called between batches with the multiply-adds done since the last call; other than MOEC_OK stops. */
    enum moec_status (*worked)(void *context, uint64_t multiply_adds, struct moec_error *err);
    void *context;
};

/* Fails with MOEC_ERR_LIMIT when a window is longer than the forward's batch. */
MOEC_WARN_UNUSED enum moec_status moec_sweep_create(struct moec_forward *forward,
                                                    const struct moec_windows *windows, bool whole,
                                                    struct moec_sweep *sweep, struct moec_error *err);
void moec_sweep_release(struct moec_sweep *sweep);

/* Runs windows first .. first + n - 1; hidden (R, stride) receives the final hidden states, before the final
 * norm. `store` may be NULL. */
MOEC_WARN_UNUSED enum moec_status moec_sweep_run(struct moec_sweep *sweep, uint32_t first, uint32_t n,
                                                 float *hidden, const struct moec_sweep_store *store,
                                                 struct moec_error *err);

/* The same step by step, for callers that take more than one state through each layer: the embeddings of
 * windows first .. first + n - 1 into hidden (R, stride), and one layer on them. Of `store` only what belongs
 * to the layer is filled. */
MOEC_WARN_UNUSED enum moec_status moec_sweep_embed(struct moec_sweep *sweep, uint32_t first, uint32_t n,
                                                   float *hidden, const struct moec_sweep_store *store,
                                                   struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_sweep_layer(struct moec_sweep *sweep, uint32_t layer, uint32_t first,
                                                   uint32_t n, float *hidden,
                                                   const struct moec_sweep_store *store,
                                                   struct moec_error *err);

#endif
