#include "profiler/evaluate/expert_encoder.h"

static enum moec_status encode(const struct moec_expert_encoder *self, uint32_t layer, uint32_t expert,
                               const struct moec_record_layout *layout, void *scratch, uint8_t *record,
                               struct moec_error *err)
{
    const struct moec_checkpoint_encoder *encoder = (const struct moec_checkpoint_encoder *)self;
    return moec_checkpoint_encode_expert(encoder->checkpoint, layer, expert, layout, scratch, record, err);
}

struct moec_checkpoint_encoder moec_checkpoint_encoder_make(const struct moec_checkpoint *checkpoint)
{
    return (struct moec_checkpoint_encoder){.encoder = {encode}, .checkpoint = checkpoint};
}
