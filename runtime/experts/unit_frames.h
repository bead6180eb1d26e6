/* The memory of experts that come in parts (internal to runtime/experts). The buffer is divided: up sections
 * stand in the arena, whose slots have room for nothing else, and units in frames of one size, each wherever
 * one was free. A table says which frame each unit of an expert has; moec_unit_frames_bind hands it to those
 * who compute. So an expert takes the memory of what was read of it, and memory that was taken from the
 * system once goes from unit to unit.
 *
 * The residency decides about up sections. When no frame is free, units of the expert that was needed the
 * longest ago give theirs, while its up section stays: of that a token that takes the expert needs all, of
 * the units only some, so a byte of it saves more. Up sections have three quarters of the buffer at most.
 *
 * What is held gives nothing, so this is for one session and for buffers with room for all units of as many
 * experts as a token takes; with other sessions or sizes a slot holds a whole record. All with the cache's
 * lock held; frames of held experts are read without it. */
#ifndef MOEC_RUNTIME_UNIT_FRAMES_H
#define MOEC_RUNTIME_UNIT_FRAMES_H

#include "formats/model/record.h"
#include "runtime/policy/evict/key_list.h"

struct moec_expert_cache;

struct moec_unit_frames {
    uint64_t *slot_bytes; /* (n_key), owned: of an up section */
    uint64_t up_bytes;    /* of all slots */
    uint32_t max_held;    /* experts that a session may hold at once */

    uint8_t *bytes; /* (n_frame, frame_bytes), owned */
    uint64_t frame_bytes;
    uint32_t n_frame, n_used;
    uint32_t n_begun;   /* those behind were never used */
    uint32_t free;      /* 1 + one of those begun that holds no unit but the next of them; 0 = none */
    uint32_t n_unit;    /* of a key, at most */
    uint32_t *of_units; /* (n_key, n_unit), owned: 1 + the frame, or 0 */
    uint32_t *n_taken;  /* (n_key), owned */
    struct moec_key_link *links; /* (n_key), owned */
    struct moec_key_list list;   /* keys that have frames, in the order in which they were needed last */
};

/* Leaves *out NULL where slots hold whole records. Errors: MOEC_ERR_LIMIT, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_unit_frames_create(const struct moec_expert_cache *cache,
                                                          struct moec_unit_frames **out,
                                                          struct moec_error *err);
void moec_unit_frames_free(struct moec_unit_frames *frames); /* NULL-safe */
/* Bytes beside the buffer, for a budget. */
uint64_t moec_unit_frames_table_bytes(uint32_t n_key, uint32_t n_unit);

/* Units of a key are needed now. */
void moec_unit_frames_need(struct moec_expert_cache *cache, uint32_t key);
/* A frame for an absent unit, which is resident from now on: free, or from a unit that is absent from now on.
 * NULL where everything is held. */
uint8_t *moec_unit_frames_take(struct moec_expert_cache *cache, uint32_t key, uint32_t unit);
/* All of the key's units are about to be absent. */
void moec_unit_frames_release(struct moec_expert_cache *cache, uint32_t key);

/* Leaves no more frames than fit into a buffer of n_bytes; units behind become absent, and their memory goes
 * back. False, to be called again, where such are held. */
bool moec_unit_frames_limit(struct moec_expert_cache *cache, uint64_t n_bytes);

/* Tells an MLP whose up section is bound where its pairs are. */
void moec_unit_frames_bind(const struct moec_expert_cache *cache, uint32_t key, struct moec_mlp *mlp);

#endif
