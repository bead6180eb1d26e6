/* Working memory of a backend on a GPU (internal to runtime/cuda): one allocation of the device, carved once.
 * Letters as in runtime/forward/context/scratch.h; F: neurons of the largest MLP, padded; D: floats of a row of
 * `mixer`. Thread rule: plain data. */
#ifndef MOEC_RUNTIME_GPU_ROOM_H
#define MOEC_RUNTIME_GPU_ROOM_H

#include "formats/model/config.h"

#include <stddef.h>

/* (M, S) each: what is read. */
struct moec_gpu_inputs_room {
    float *normed;  /* by attention, router, experts and MLPs */
    float *experts; /* by experts, where they read something else than the router, else `normed` */
    float *shared;  /* likewise by the shared expert */
};

/* Of MLPs. */
struct moec_gpu_mlp_room {
    float *ranks;       /* (M, k, S) */
    float *shared;      /* (M, S); also the output of a dense MLP, and vectors of positions */
    float *h;           /* (M x k, F): activations */
    float *partials;    /* (moec_gpu_partial_rows, chunks of F, n_embd): sums of chunks */
    uint32_t *n_active; /* (MOEC_GPU_COUNTED) */
    float *ups;         /* (moec_gpu_marked_rows, F): up . x of neurons that were marked */
    uint32_t *marks;    /* (moec_gpu_mark_words) of experts, as bits */
};

struct moec_gpu_room {
    struct moec_gpu_inputs_room inputs;
    float *mixer; /* (M, D): struct moec_gpu_mixer_row, or that of running layers */
    struct moec_gpu_mlp_room mlp;
    float *logits; /* (M, E padded) of the router, then (M) of the shared expert's gate; or the head's */
    struct moec_cuda_draw_room *draw;  /* of the next token */
    float *rope[MOEC_MAX_LAYER_KINDS]; /* (M, rotary_dim) by kind, shared by kinds that rotate alike */
};

/* Where a token's row of `mixer` has what in layers with attention, in floats: queries as they attend, what
 * attention gives, and, of latent attention, queries before that, later outputs, and their latent. */
struct moec_gpu_mixer_row {
    size_t q, attended, queries, query_latent, end;
    size_t attended_step; /* from head to head of `attended` */
};
struct moec_gpu_mixer_row moec_gpu_mixer_row_of(const struct moec_layer_kind *kind);

#define MOEC_GPU_HEAD_ROWS 8u /* whose logits come from the device together */

size_t moec_gpu_mixer_stride(const struct moec_config *config);   /* D */
uint32_t moec_gpu_most_neurons(const struct moec_config *config); /* F, not padded */
/* Floats of the largest answer of the device: logits of the router, or of some rows of the head. */
uint64_t moec_gpu_answer_floats(const struct moec_config *config, uint32_t max_tokens);
/* Rows of experts whose chunks there is room for. */
uint64_t moec_gpu_partial_rows(const struct moec_config *config, uint32_t max_tokens);

/* Rows of experts whose neurons are marked, and words of 32 bits for the marks. */
uint32_t moec_gpu_marked_rows(const struct moec_config *config, uint32_t max_tokens);
uint64_t moec_gpu_mark_words(const struct moec_config *config, uint32_t max_tokens);

/* Runs of experts whose active neurons are counted before the process looks. */
#define MOEC_GPU_COUNTED 128u

/* Bytes of the room, which is carved from `base`, at a multiple of 256; NULL only counts. */
uint64_t moec_gpu_room_carve(const struct moec_config *config, uint32_t max_tokens, uint8_t *base,
                             struct moec_gpu_room *room);

#endif
