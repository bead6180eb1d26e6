/* A model ready to execute: config, dense weights bound to their roles, and tables derived from them (rotary
 * angles). Built alike from a checkpoint and from a bundle. Immutable after creation; any number of threads
 * may use it.
 *
 * A model is resident, or streamed: then norms, biases and routers are in memory, but attention, dense and
 * shared MLPs, head and embedding come from the source of the dense weights, a layer at a time. Those who
 * compute with a layer's matrices acquire it; everyone else may read `layers`. Results are the same bits. */
#ifndef MOEC_RUNTIME_MODEL_H
#define MOEC_RUNTIME_MODEL_H

#include "formats/model/config.h"
#include "runtime/forward/weights/layer_weights.h"

struct moec_model_stream;
struct moec_offload;

struct moec_model {
    struct moec_config config;
    struct moec_dense dense;          /* owned */
    struct moec_token_rows embedding; /* these two without data in a streamed model */
    struct moec_token_rows head;      /* the embedding when tied */
    float *final_norm; /* (n_embd), of the decoder; with biases behind it as a layer's norms; NULL
                                         where the last hidden state is projected: */
    struct moec_matrix output_projection; /* (n_embd, n_embd), resident in every model, or no rows */
    float *output_projection_bias;        /* (n_embd) or NULL */
    float *head_bias;                     /* (n_vocab) or NULL */
    float *encoder_norm;                  /* (n_embd), NULL without an encoder */
    /* By enum moec_stack: tables of runtime/forward/weights/position_bias.h; NULL without buckets. */
    float *position_bias[2];
    struct moec_layer *layers; /* (n_layer), owned; in a streamed model only vectors and router are bound */
    struct moec_model_stream *stream; /* owned; NULL in a resident model */
    struct moec_offload *offload;     /* owned, set once; NULL: passes compute in the process's memory */
    /* By kind of layer: (rotary_dim / 2), made by moec_rope_fill; kinds that rotate alike share it; NULL
     * where nothing is rotated. */
    float *inverse_frequency[MOEC_MAX_LAYER_KINDS];
};

/* Takes ownership of `dense` in every case (released on failure). Checks it against the config
 * (moec_dense_check). Weights with a source are streamed with the least memory. */
MOEC_WARN_UNUSED enum moec_status moec_model_create(const struct moec_config *config,
                                                    struct moec_dense *dense, struct moec_model **out,
                                                    struct moec_error *err);

/* The same for dense weights with a source, keeping up to keep_bytes of what was read, at least
 * moec_model_stream_floor (runtime/forward/weights/model_stream.h). */
MOEC_WARN_UNUSED enum moec_status moec_model_create_streamed(const struct moec_config *config,
                                                             struct moec_dense *dense, uint64_t keep_bytes,
                                                             struct moec_model **out, struct moec_error *err);
void moec_model_free(struct moec_model *model);

/* A layer with all its matrices, valid until it is released. Errors: only of a source. */
MOEC_WARN_UNUSED enum moec_status moec_model_acquire_layer(const struct moec_model *model, uint32_t layer,
                                                           const struct moec_layer **out,
                                                           struct moec_error *err);
void moec_model_release_layer(const struct moec_model *model, uint32_t layer);

/* Rows of the head from first_row on, of one matrix: all that are left of it in a resident model, some in a
 * streamed one.
 * first_row is 0 or where an earlier answer ended. */
MOEC_WARN_UNUSED enum moec_status moec_model_acquire_head(const struct moec_model *model, uint32_t first_row,
                                                          struct moec_matrix *rows, struct moec_error *err);
void moec_model_release_head(const struct moec_model *model, uint32_t first_row);

/* Makes a token's row of the embedding be there, where its weights come late (struct moec_dense_late), and
 * checks it. Whoever reads the embedding's rows in memory calls it before. Errors: those of the weights;
 * MOEC_ERR_FORMAT where a weight is not finite. */
MOEC_WARN_UNUSED enum moec_status moec_model_bring_embedding(const struct moec_model *model, uint32_t token,
                                                             struct moec_error *err);

#endif
