/* Who makes the record of an expert: what variants and the packer ask, so that both get the same bytes.
 *
 * The layout names a codec for each projection, quantizers included. The encoder that a checkpoint gives
 * encodes its weights row by row (moec_checkpoint_encode_expert); another one may choose codes by more than
 * the weights, as long as it gives the same bytes for the same layout each time. Thread rule: encode is
 * called from several threads at once, each with scratch of its own. */
#ifndef MOEC_FORMATS_EXPERT_ENCODER_H
#define MOEC_FORMATS_EXPERT_ENCODER_H

#include "formats/checkpoint/checkpoint.h"
#include "formats/tables/neuron_order.h"

/* An expert, and what its record is to look like. */
struct moec_expert_record {
    uint32_t layer, expert; /* of the model */
    const struct moec_record_layout *layout;
};

/* First member of every implementation. */
struct moec_expert_encoder {
    /* Fills made->layout->n_bytes of `record`. `scratch` has moec_checkpoint_expert_scratch_bytes bytes and
     * is 64-byte aligned. Errors: as moec_checkpoint_encode_expert. */
    enum moec_status (*encode)(const struct moec_expert_encoder *self, const struct moec_expert_record *made,
                               void *scratch, uint8_t *record, struct moec_error *err);
    bool reorders; /* neurons do not stand in the checkpoint's order, in records of any codec */
    bool copies;   /* it has the codes of most records already, so that encoding takes little */
};

/* As the encoder does, and counted as work (formats/base/work_tally.h). */
MOEC_WARN_UNUSED enum moec_status moec_expert_encode(const struct moec_expert_encoder *encoder,
                                                     const struct moec_expert_record *made, void *scratch,
                                                     uint8_t *record, struct moec_error *err);

/* The checkpoint's own. */
struct moec_checkpoint_encoder {
    struct moec_expert_encoder encoder;
    const struct moec_checkpoint *checkpoint; /* borrowed */
};

struct moec_checkpoint_encoder moec_checkpoint_encoder_make(const struct moec_checkpoint *checkpoint);

/* The checkpoint's weights with each expert's neurons in another order. Its errors: MOEC_ERR_MEMORY too. */
struct moec_ordered_encoder {
    struct moec_expert_encoder encoder;
    const struct moec_checkpoint *checkpoint; /* both borrowed */
    const struct moec_neuron_order *order;
};

struct moec_ordered_encoder moec_ordered_encoder_make(const struct moec_checkpoint *checkpoint,
                                                      const struct moec_neuron_order *order);

#endif
