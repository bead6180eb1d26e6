/* Batches of one record a thread, encoded in parallel and appended in the writer's order. The file's bytes
 * therefore do not depend on the number of threads. An error waits in its slot, so the first in file order is
 * reported. */
#include "compiler/pack/pack.h"
#include "formats/base/memory.h"
#include "runtime/threads/parallel.h"

#include <inttypes.h>
#include <string.h>

/* One batch: each thread encodes a record, then they are appended in order. */
struct pack_slot {
    struct moec_bundle_next next;
    uint8_t *record; /* owned; capacity of the largest record */
    void *scratch;   /* owned */
    struct moec_error err;
};

struct pack_batch {
    const struct moec_expert_encoder *encoder;
    struct pack_slot *slots;
};

static void encode_slot(void *context, size_t item, int thread)
{
    (void)thread;
    struct pack_batch *batch = context;
    struct pack_slot *slot = &batch->slots[item];
    enum moec_status status = moec_expert_encode(
        batch->encoder, &(struct moec_expert_record){slot->next.layer, slot->next.expert, &slot->next.layout},
        slot->scratch, slot->record, &slot->err);
    (void)status; /* kept in the slot's error, looked at in order */
}

static enum moec_status make_slots(const struct moec_checkpoint *checkpoint, int n, struct pack_slot *slots,
                                   struct moec_error *err)
{
    /* No codec takes more than F32 or 8 bits with a scale for each 32 weights;
     * 16 bits is the largest assignable. */
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    struct moec_codec widest = {.dtype = MOEC_DTYPE_BF16};
    uint64_t bytes = moec_record_layout_make(config, widest).n_bytes;
    for (int i = 0; i < n; i++) {
        MOEC_TRY(moec_alloc_aligned((void **)&slots[i].record, bytes, 1, "an expert record", err));
        MOEC_TRY(moec_alloc_aligned(&slots[i].scratch, moec_checkpoint_expert_scratch_bytes(checkpoint), 1,
                                    "scratch to encode an expert", err));
    }
    return MOEC_OK;
}

static enum moec_status append_batch(struct moec_bundle_writer *writer, struct pack_slot *slots, size_t n,
                                     struct moec_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (slots[i].err.status != MOEC_OK)
            return moec_fail(err, slots[i].err.status, "%s", slots[i].err.message);
        MOEC_TRY(
            moec_bundle_writer_append(writer, slots[i].record, (size_t)slots[i].next.layout.n_bytes, err));
    }
    return MOEC_OK;
}

enum moec_status moec_pack_records(const struct moec_checkpoint *checkpoint,
                                   const struct moec_expert_encoder *encoder,
                                   struct moec_bundle_writer *writer, int n_threads,
                                   const struct moec_pack_progress *progress, struct moec_error *err)
{
    const struct moec_checkpoint_encoder own = moec_checkpoint_encoder_make(checkpoint);
    struct moec_pool pool = moec_pool_make(n_threads);
    struct pack_slot *slots = NULL;
    uint64_t done = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc((void **)&slots, (uint64_t)pool.n_threads, sizeof *slots, "packing slots", err));
    MOEC_TRY_OUT(make_slots(checkpoint, pool.n_threads, slots, err));
    for (;;) {
        size_t n = 0;
        while (n < (size_t)pool.n_threads && moec_bundle_writer_ahead(writer, n, &slots[n].next))
            n++;
        if (n == 0)
            break;
        struct pack_batch batch = {encoder != NULL ? encoder : &own.encoder, slots};
        moec_parallel_for(&pool, n, encode_slot, &batch);
        MOEC_TRY_OUT(append_batch(writer, slots, n, err));
        done += n;
        if (progress == NULL || progress->report(progress->context, done, progress->total))
            continue;
        status = moec_fail(err, MOEC_ERR_CANCELLED,
                           "packing: stopped after %" PRIu64 " of %" PRIu64 " experts; nothing was written",
                           done, progress->total);
        goto out;
    }
out:
    for (int i = 0; slots != NULL && i < pool.n_threads; i++) {
        free(slots[i].record);
        free(slots[i].scratch);
    }
    free(slots);
    return status;
}
