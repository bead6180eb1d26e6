/* A model to measure, wherever it comes from: a Hugging Face folder or GGUF file (experts encoded on demand
 * at the source's own bits) or a bundle (its compiled assignment). Both give the same four things: config,
 * model, experts, tokenizer. Thread rule: one thread. */
#ifndef MOEC_PROFILER_SOURCE_H
#define MOEC_PROFILER_SOURCE_H

#include "formats/bundle/bundle.h"
#include "formats/checkpoint/checkpoint.h"
#include "profiler/evaluate/variants.h"
#include "runtime/cuda/gpu_place.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/forward/weights/model.h"

struct moec_source {
    char *path;                       /* owned */
    const struct moec_config *config; /* all below owned, or borrowed from what is */
    struct moec_model *model;
    struct moec_experts *experts;
    const struct moec_generation *generation;
    const struct moec_tokenizer_model *tokenizer; /* NULL when there is none */
    struct moec_checkpoint *checkpoint;           /* NULL for a bundle */
    struct moec_variants *variants;               /* NULL for a bundle */
    struct moec_bundle *bundle;                   /* NULL for a checkpoint */
    struct moec_expert_cache *cache;              /* NULL for a checkpoint */
    struct moec_gpu_place *place;                 /* borrowed; NULL: passes compute in the process's memory */
    uint64_t cache_bytes;
    uint64_t *record_bytes[2]; /* (MoE layers, n_expert) as assigned, and of the low copy that is served, NULL
                                * without */
};

/* Opens a folder as a checkpoint and a file as a bundle, for texts of up to n_tokens where rotary angles
 * depend on it (0: as the bundle says). Experts are kept in memory up to cache_bytes, and dense weights of a
 * checkpoint up to half of that. Errors: those of moec_checkpoint_open and moec_bundle_open; on failure
 * `source` is empty. */
MOEC_WARN_UNUSED enum moec_status moec_source_open(const char *path, uint64_t cache_bytes, int n_threads,
                                                   uint32_t n_tokens, struct moec_source *source,
                                                   struct moec_error *err);
void moec_source_close(struct moec_source *source);

/* From now on passes over the model compute on a device, which is borrowed until the source is closed. After
 * moec_source_serve_low. Errors: those of moec_gpu_place_load. */
MOEC_WARN_UNUSED enum moec_status moec_source_offload(struct moec_source *source,
                                                      struct moec_gpu_place *place, struct moec_error *err);

/* How its attention keeps keys and values. Nothing may be borrowed. Errors: those of moec_config_choose_kv.
 */
MOEC_WARN_UNUSED enum moec_status moec_source_keep_kv(struct moec_source *source, struct moec_codec kv,
                                                      struct moec_error *err);

/* Serves a low copy of every expert too, as form 1 of its experts: of a bundle the copy at these bits (0 =
 * its smallest), of a checkpoint one that is made on demand (0 = 4 bits). Nothing may be borrowed. Errors:
 * MOEC_ERR_USAGE where there is no smaller copy. */
MOEC_WARN_UNUSED enum moec_status moec_source_serve_low(struct moec_source *source, uint32_t bits,
                                                        struct moec_error *err);

#endif
