/* A GPU as offline work uses it: models whose forward passes compute there while rows, keys, values and
 * experts stand in the process's memory (runtime/forward/weights/offload.h).
 *
 * One working memory serves all passes, one after the other: each of their steps turns it to its model,
 * brings the rows that it reads, and takes down the ones that it writes. What is left of the budget is for
 * copies of experts. Thread rule: one thread at a time for a place and its models. */
#ifndef MOEC_RUNTIME_GPU_PLACE_H
#define MOEC_RUNTIME_GPU_PLACE_H

#include "runtime/cuda/gpu_backend.h"
#include "runtime/cuda/gpu_copies.h"
#include "runtime/cuda/gpu_library.h"
#include "runtime/forward/weights/offload.h"

struct moec_gpu_place;

/* The device of this name ("cuda:1") by an entry, or NULL: that of libmoert-cuda.so. vram_bytes bounds what
 * is allocated of its memory; 0: what is free, less a sixteenth. Errors: MOEC_ERR_USAGE, MOEC_ERR_UNSUPPORTED
 * where there is none, MOEC_ERR_BUDGET for a bound above what is free. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_place_open(const char *device, const struct moec_gpu_entry *entry,
                                                      uint64_t vram_bytes, struct moec_gpu_place **out,
                                                      struct moec_error *err);
/* The same on a device that is open already, which is borrowed. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_place_create(struct moec_gpu *gpu,
                                                        const struct moec_gpu_kernels *kernels,
                                                        uint64_t vram_bytes, struct moec_gpu_place **out,
                                                        struct moec_error *err);
/* NULL-safe. Models with an offload there have been freed. */
void moec_gpu_place_free(struct moec_gpu_place *place);

/* Copies a model's dense weights and gives it its offload; later passes over it compute there. largest_bytes:
 * of an expert that they will ask for. Errors: MOEC_ERR_UNSUPPORTED for a streamed model, MOEC_ERR_BUDGET,
 * itemised; the device's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_place_load(struct moec_gpu_place *place, struct moec_model *model,
                                                      uint64_t largest_bytes, struct moec_error *err);

/* From now on passes may be in this arithmetic too, for which room is planned. Before models are loaded, so
 * that they find what is left. Errors: those of moec_gpu_check_arithmetic. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_place_take_arithmetic(struct moec_gpu_place *place,
                                                                 enum moec_arithmetic arithmetic,
                                                                 struct moec_error *err);
/* Whether passes may be in an arithmetic that the device alone has. */
bool moec_gpu_place_rounds(const struct moec_gpu_place *place);
/* The device's name and capability, as it was opened. */
const struct moec_gpu_info *moec_gpu_place_info(const struct moec_gpu_place *place);

/* Tokens that a batch over a loaded model may have for working memory to take half of the budget at most
 * beside weights and the largest expert; at least 1. */
uint32_t moec_gpu_place_batch_tokens(const struct moec_gpu_place *place, const struct moec_model *model);

/* Whether this was asked before: what goes for all models on a device is told once. */
bool moec_gpu_place_has_told(struct moec_gpu_place *place);

#endif
