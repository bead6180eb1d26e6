/* Windows through all layers of a model, layer by layer, many windows at a time: one sweep over the weights.
 *
 * Rows: the tokens of the windows one after the other, all of each window or all but the last (whose logits
 * nobody scores). Every layer is finished for all rows before the next begins, so that an expert source
 * larger than memory is read once for all windows.
 *
 * Of an encoder-decoder model the rows of a run are first those of all its sources, then those of what the
 * decoder reads, which never has a window's last token. The encoder's layers change the former and leave its
 * output there, normed; the decoder's read that and change the latter. Thread rule: one thread at a time, as
 * for its forward. */
#ifndef MOEC_PROFILER_SWEEP_H
#define MOEC_PROFILER_SWEEP_H

#include "profiler/evaluate/batch_sequences.h"
#include "profiler/evaluate/windows.h"
#include "runtime/forward/attention/kv_state.h"
#include "runtime/forward/pass/forward.h"

#define MOEC_SWEEP_TOKENS 4096 /* tokens that a forward takes at once */

/* A model and the windows that go through it. All borrowed. */
struct moec_swept {
    const struct moec_model *model;
    struct moec_experts *experts;
    const struct moec_windows *windows;
};

struct moec_sweep {
    const struct moec_forward *forward; /* borrowed */
    const struct moec_windows *windows; /* borrowed */
    bool whole;                         /* last tokens too */
    uint32_t n_prompt;   /* tokens of a window that are a prompt's, for a forward that decides; 0 at first */
    uint64_t *row_start; /* (W + 1), owned: first row of each window, sources not counted */
    uint64_t *source_start;  /* (W + 1), owned: first row of each source; NULL where windows have none */
    struct moec_kv_state kv; /* (max_tokens of the forward), owned: of one batch in the layer at work */
    struct moec_kv_state source_kv; /* the same of the batch's sources; empty where windows have none */
    struct moec_span *spans;        /* (W), owned */
    struct moec_batch_sequences sequences;
    /* (rows of all windows in the larger stack, words), owned: of struct moec_sequence_rows; NULL where the
     * forward has no precision that asks */
    uint64_t *predicted;
};

/* Rows of windows first .. first + n - 1: of their sources, and of the others. */
static inline uint64_t moec_sweep_source_rows(const struct moec_sweep *sweep, uint32_t first, uint32_t n)
{
    return sweep->source_start != NULL ? sweep->source_start[first + n] - sweep->source_start[first] : 0;
}
static inline uint64_t moec_sweep_rows(const struct moec_sweep *sweep, uint32_t first, uint32_t n)
{
    return sweep->row_start[first + n] - sweep->row_start[first];
}

/* What tokens chose in a MoE layer: (tokens, top_k) experts and their gate weights. */
struct moec_token_choices {
    const uint32_t *experts;
    const float *weights;
};

/* Windows that go through a layer together. */
struct moec_sweep_batch {
    uint32_t first, n;  /* windows */
    uint64_t first_row; /* among the rows of the layer's stack in this run */
    uint32_t n_rows;
};

/* Batch size for a forward that runs these windows: the longest one fits, and their work memory's bound is
 * kept otherwise. */
uint32_t moec_sweep_max_tokens(const struct moec_windows *windows);

/* Where the rows of layer `index` stand in an array that has those of each layer one after the other:
 * n_source rows of each of the first n_encoder, n_row of the others. */
static inline uint64_t moec_stacked_rows(uint32_t index, uint32_t n_encoder, uint64_t n_source,
                                         uint64_t n_row)
{
    return index <= n_encoder ? index * n_source : n_encoder * n_source + (index - n_encoder) * n_row;
}

/* What a caller wants to keep. NULL members are not filled. R = rows of the windows that are run: of sources
 * in layers of an encoder, else of the others. D = layers that are not an encoder's. */
struct moec_sweep_store {
    float *attention_out; /* (S, R, stride), moec_stacked_rows by MoE ordinal: hidden states of each MoE layer
                           * before its MLP */
    float *entered;       /* (R, stride): of the layer at work, what enters its MLP */
    float *attention_in;  /* (max_tokens of the forward, stride): those of the batch at work before its
                           * attention,  in MoE layers */
    const struct moec_kv_state *kv;        /* each of the D layers, at least R rows */
    const struct moec_kv_state *source_kv; /* the same of the sources */

    /* What `hidden` belongs to: each batch's rows are left behind when a layer is done with them. */
    const struct moec_states *states;

    /* MoE layers are traced into these arrays, which hold one batch; then `traced` is told the layer's MoE
     * ordinal and the batch. */
    const struct moec_mlp_trace *trace;
    enum moec_status (*traced)(void *context, uint32_t ordinal, const struct moec_sweep_batch *batch,
                               struct moec_error *err);

    /* Called between batches with the multiply-adds done since the last call; other than MOEC_OK stops. */
    enum moec_status (*worked)(void *context, uint64_t multiply_adds, struct moec_error *err);
    void *context;
};

/* Fails with MOEC_ERR_LIMIT when a window is longer than the forward's batch. */
MOEC_WARN_UNUSED enum moec_status moec_sweep_create(const struct moec_forward *forward,
                                                    const struct moec_windows *windows, bool whole,
                                                    struct moec_sweep *sweep, struct moec_error *err);
/* The same for moec_sweep_show alone, without room for what attention needs. */
MOEC_WARN_UNUSED enum moec_status moec_sweep_create_shown(const struct moec_forward *forward,
                                                          const struct moec_windows *windows,
                                                          struct moec_sweep *sweep, struct moec_error *err);
void moec_sweep_release(struct moec_sweep *sweep);

/* Batches in which some windows go through a layer of the decoder, or of the only stack. */
uint32_t moec_sweep_count_batches(const struct moec_sweep *sweep, struct moec_window_range windows);

/* Runs some windows; hidden (rows of sources and others, stride) receives the final hidden
 * states, before the final norm. `store` may be NULL. */
MOEC_WARN_UNUSED enum moec_status moec_sweep_run(struct moec_sweep *sweep, struct moec_window_range windows,
                                                 float *hidden, const struct moec_sweep_store *store,
                                                 struct moec_error *err);

/* The same step by step, for callers that take more than one state through each layer: the embeddings of
 * windows into hidden, and one layer on them. Of `store` only what belongs
 * to the layer is filled. */
MOEC_WARN_UNUSED enum moec_status moec_sweep_embed(struct moec_sweep *sweep, struct moec_window_range windows,
                                                   float *hidden, const struct moec_sweep_store *store,
                                                   struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_sweep_layer(struct moec_sweep *sweep, uint32_t layer,
                                                   struct moec_window_range windows, float *hidden,
                                                   const struct moec_sweep_store *store,
                                                   struct moec_error *err);

/* A MoE layer for all windows, where `entered` (rows of the layer's stack) enters its MLP and the forward's inputs hook
 * only shows experts. Of `store`, `states` is what `entered` belongs to, and `worked` is called with 0. */
MOEC_WARN_UNUSED enum moec_status moec_sweep_show(struct moec_sweep *sweep, uint32_t layer, float *entered,
                                                  const struct moec_sweep_store *store,
                                                  struct moec_error *err);

#endif
