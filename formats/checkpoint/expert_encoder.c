/* Both encoders take the checkpoint's rows as they are; the second puts the neurons of the finished
 * record in another order, so that codes do not depend on the order. */
#include "formats/checkpoint/expert_encoder.h"

#include "formats/base/memory.h"
#include "formats/base/work_tally.h"

enum moec_status moec_expert_encode(const struct moec_expert_encoder *encoder,
                                    const struct moec_expert_record *made, void *scratch, uint8_t *record,
                                    struct moec_error *err)
{
    const uint64_t begun_ns = moec_work_begin(MOEC_WORK_ENCODING);
    const enum moec_status status = encoder->encode(encoder, made, scratch, record, err);
    moec_work_end(MOEC_WORK_ENCODING, begun_ns, made->layout->n_bytes);
    return status;
}

static enum moec_status encode(const struct moec_expert_encoder *self, const struct moec_expert_record *made,
                               void *scratch, uint8_t *record, struct moec_error *err)
{
    const struct moec_checkpoint_encoder *encoder = (const struct moec_checkpoint_encoder *)self;
    return moec_checkpoint_encode_expert(encoder->checkpoint, made->layer, made->expert, made->layout,
                                         scratch, record, err);
}

struct moec_checkpoint_encoder moec_checkpoint_encoder_make(const struct moec_checkpoint *checkpoint)
{
    return (struct moec_checkpoint_encoder){.encoder = {.encode = encode}, .checkpoint = checkpoint};
}

static enum moec_status encode_ordered(const struct moec_expert_encoder *self,
                                       const struct moec_expert_record *made, void *scratch, uint8_t *record,
                                       struct moec_error *err)
{
    const struct moec_ordered_encoder *encoder = (const struct moec_ordered_encoder *)self;
    const int32_t ordinal = moec_config_moe_ordinal(moec_checkpoint_config(encoder->checkpoint), made->layer);
    const struct moec_record_layout *layout = made->layout;
    uint8_t *unordered = NULL;
    MOEC_TRY(moec_alloc_aligned((void **)&unordered, layout->n_bytes, 1, "an expert record", err));
    const enum moec_status status = moec_checkpoint_encode_expert(
        encoder->checkpoint, made->layer, made->expert, layout, scratch, unordered, err);
    if (status == MOEC_OK)
        moec_record_reorder(layout, moec_neuron_order_of(encoder->order, (uint32_t)ordinal, made->expert),
                            unordered, record);
    free(unordered);
    return status;
}

struct moec_ordered_encoder moec_ordered_encoder_make(const struct moec_checkpoint *checkpoint,
                                                      const struct moec_neuron_order *order)
{
    return (struct moec_ordered_encoder){
        .encoder = {.encode = encode_ordered, .reorders = true}, .checkpoint = checkpoint, .order = order};
}
