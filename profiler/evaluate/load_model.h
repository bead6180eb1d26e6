/* The dense weights of a checkpoint as a model, resident or streamed as memory allows. */
#ifndef MOEC_PROFILER_LOAD_MODEL_H
#define MOEC_PROFILER_LOAD_MODEL_H

#include "formats/checkpoint/checkpoint.h"
#include "profiler/common/progress.h"
#include "runtime/cuda/gpu_place.h"
#include "runtime/forward/weights/model.h"

/* dense_bits and group as moec_checkpoint_stream_dense. Weights of up to keep_bytes (0 = any) are loaded whole;
 * larger ones are read layer by layer as they are needed, and keep_bytes of them kept, or what the largest
 * layer takes if that is more. A streamed model borrows the checkpoint until it is freed. */
MOEC_WARN_UNUSED enum moec_status moec_load_model(const struct moec_checkpoint *checkpoint,
                                                  uint32_t dense_bits, uint32_t group, uint64_t keep_bytes,
                                                  struct moec_model **out, struct moec_error *err);

/* The same for dense weights with a source, which are taken over in every case. */
MOEC_WARN_UNUSED enum moec_status moec_load_dense_model(const struct moec_config *config,
                                                        struct moec_dense *dense, uint64_t keep_bytes,
                                                        struct moec_model **out, struct moec_error *err);

/* Passes over one more model compute on a device (NULL: there is none) that has room for its weights; else in
 * the process's memory, of which the progress (or NULL) gets a note, once for each device. Errors: the
 * device's. */
MOEC_WARN_UNUSED enum moec_status moec_offload_if_room(struct moec_gpu_place *place, struct moec_model *model,
                                                       const struct moec_progress *progress,
                                                       struct moec_error *err);

#endif
