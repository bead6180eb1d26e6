/* Weights are loaded whole where they fit and streamed elsewhere; both give the same bits. A model for which
 * the device has no room goes on on the CPU only if the device computes canonically. Elsewhere the numbers
 * would differ, and it is an error. */
#include "profiler/evaluate/load_model.h"

enum moec_status moec_load_model(const struct moec_checkpoint *checkpoint, uint32_t dense_bits,
                                 uint32_t group, uint64_t keep_bytes, struct moec_model **out,
                                 struct moec_error *err)
{
    struct moec_dense dense = {0};
    MOEC_TRY(moec_checkpoint_stream_dense(checkpoint, dense_bits, group, &dense, err));
    return moec_load_dense_model(moec_checkpoint_config(checkpoint), &dense, keep_bytes, out, err);
}

enum moec_status moec_load_dense_model(const struct moec_config *config, struct moec_dense *dense,
                                       uint64_t keep_bytes, struct moec_model **out, struct moec_error *err)
{
    if (keep_bytes == 0 || dense->blob_bytes <= keep_bytes) {
        enum moec_status status = moec_dense_load(dense, err);
        if (status != MOEC_OK) {
            moec_dense_release(dense);
            return status;
        }
    }
    return moec_model_create_streamed(config, dense, keep_bytes, out, err);
}

enum moec_status moec_offload_if_room(struct moec_gpu_place *place, struct moec_model *model,
                                      const struct moec_progress *progress, struct moec_error *err)
{
    struct moec_error why = {0};
    const enum moec_status status = place != NULL ? moec_gpu_place_load(place, model, 0, &why) : MOEC_OK;
    if (status == MOEC_OK)
        return MOEC_OK;
    if ((status == MOEC_ERR_BUDGET || status == MOEC_ERR_UNSUPPORTED) && !moec_gpu_place_rounds(place)) {
        if (!moec_gpu_place_has_told(place))
            moec_progress_note(progress,
                               "variants of the model with changed dense weights run on the CPU instead of "
                               "the GPU: %s",
                               why.message);
        return MOEC_OK;
    }
    return moec_fail(err, status, "%s", why.message);
}
