/* Which expert records are in a buffer of a given size: the cache's decisions, without bytes, threads or
 * time (so that the simulator decides what the runtime decides).
 *
 * A key is one expert of one layer in one form (runtime/seam/experts.h): (MoE ordinal x n_form + form) x
 * n_expert + expert. Forms of one expert come and go by themselves; to policies they are experts of the
 * layer.
 *
 * Logical state of a key: absent or present. Present means that its bytes
 * count against the capacity; whether they are there already is the caller's business
 * (runtime/experts/expert_cache.c reads them meanwhile, and lays slots out in runtime/experts/arena.h). No
 * decision here depends on the progress of reads or on where slots lie: the same calls give the same victims,
 * whatever the timing. In addition a present key may be demanded: the router asked for it and it has not been
 * released yet; what is demanded is never evicted. And it may be hinted: a predictor named it for its
 * layer's next answer; until then no other prefetch evicts it, and a demand only where nothing else can go.
 *
 * Where decisions look at logical caches (runtime/policy/decide/route_state.h) and the capacity has room for three
 * quarters of what these may hold, what they do hold goes last: a demand takes its room from it only where
 * nothing else can go, and a prefetch never does. With room for all of it, as long as a layer's batch asks for
 * no more than passes beside it, what is logically present once it was read is present. A buffer that is a
 * little short then misses little more; in a much shorter one prefetches would find no room, so that its policy
 * alone decides there.
 *
 * Low copies may have a pool of their own beside that of the high ones, for all layers both (HOBBIT,
 * arXiv:2411.01433, section 3.4): each pool has its capacity and its instance of the policy, and a copy makes
 * room in its own pool alone.
 *
 *     absent --demand: admitted--> present, demanded --release--> present --evicted--> absent
 *        \---- prefetch: admitted -------------------------------------^
 *
 * The order of calls for one answer of a router, in the runtime as in a replay:
 *
 *   1. ask for all of its experts; those that were present are hits (or late);
 *   2. admit the others, in increasing order, until one finds no room; it and those after it wait;
 *   3. prefetch for the next layers (moec_preload_next with moec_residency_hint as is_present);
 *   4. release first those that were present, then the others, each group in increasing order; after each
 *      release admit those that wait, in order, until one finds no room.
 *
 * In 4 nothing is ever stuck: what was present needs no room, and the first of the others that was not
 * released was admitted, because none behind it was. Where nobody waits the order of releases changes
 * nothing.
 *
 * Thread rule: the caller's lock covers every call on one instance. */
#ifndef MOEC_RUNTIME_RESIDENCY_H
#define MOEC_RUNTIME_RESIDENCY_H

#include "formats/tables/path_table.h"
#include "runtime/policy/decide/logical_cache.h"
#include "runtime/policy/evict/evict.h"
#include "runtime/policy/schedule/layer_shares.h"

struct moec_residency;

/* Room for experts, (n_layer, n_form, n_expert) of them. */
struct moec_residency_pools {
    const uint64_t *slot_bytes; /* of each, borrowed until freed */
    uint64_t capacity_bytes;    /* at least the largest slot */
    /* Of a pool of form 1's own, where there are two forms; capacity_bytes is then that of form 0 alone, and
     * each at least the largest slot of its form. 0 = one pool. Not with a logical cache. */
    uint64_t low_capacity_bytes;
};

struct moec_residency_policy {
    const struct moec_evict_ops *ops;
    const float *weights;   /* of struct moec_evict_setup; NULL = the policy's, borrowed for the call */
    const float *frequency; /* (n_layer, n_form, n_expert) or NULL, borrowed for the call */
};

/* Called for each evicted key, inside the calls below. */
struct moec_residency_evicted {
    void (*call)(void *context, uint32_t key); /* or NULL */
    void *context;
};

struct moec_residency_setup {
    struct moec_expert_shape shape; /* n_form 0 counts as 1; n_shallow and top_k: for policies that share */
    struct moec_residency_pools pools;
    struct moec_residency_policy policy;
    const struct moec_logical_cache *logical; /* of the same shape, or NULL; borrowed until freed */
    struct moec_residency_evicted evicted;
};

/* (n_layer, n_form, n_expert) of what calibration used most, each expert's in all of its forms: what a setup
 * has as policy.frequency, from a path table of as many layers and experts. */
void moec_residency_frequencies(const struct moec_path_table *paths, uint32_t n_form, float *out);

/* Of one pool; a second one takes another state of the policy. */
uint64_t moec_residency_state_bytes(uint32_t n_key, const struct moec_evict_ops *policy);
MOEC_WARN_UNUSED enum moec_status moec_residency_create(const struct moec_residency_setup *setup,
                                                        struct moec_residency **out, struct moec_error *err);
void moec_residency_free(struct moec_residency *residency); /* NULL-safe */

/* Whether the capacity has room for what logical caches may hold; false without them. */
bool moec_residency_keeps_logical(const struct moec_residency *residency);

bool moec_residency_is_present(const struct moec_residency *residency, uint32_t key);

/* A sequence begins: policies that count within one start anew. */
void moec_residency_begin(struct moec_residency *residency);

/* Fills the empty buffer with the likeliest experts in form 0 by frequency (all layers together; ties to the
 * lower key), passing over those that no longer fit: keys (room for n_key) receives them, likeliest first;
 * returns how many. Where layers have shares, of a policy or of a logical cache that goes last, these
 * are filled first. Without frequencies all of them where they all fit, layer by layer, and else none. Policies
 * see the likeliest as the most recent. */
uint32_t moec_residency_warm(struct moec_residency *residency, uint32_t *keys);

/* A router asks for these experts of one layer (increasing), in one form. Every one that is present is
 * demanded and counts as used, all of them before any other makes room; is_present (n) receives which ones
 * were. The rest are admitted with moec_residency_admit, in the same order.
 * Ends what was hinted for this layer. */
void moec_residency_ask(struct moec_residency *residency, uint32_t ordinal, uint32_t form,
                        const uint32_t *experts, uint32_t n_experts, bool *is_present);
/* Makes an absent key present and demanded, giving up what the policy chooses. False, with nothing given up,
 * when what is demanded leaves no room; it is asked again after the next release. */
bool moec_residency_admit(struct moec_residency *residency, uint32_t key);
/* Demanded once more, for another session; present. */
void moec_residency_hold(struct moec_residency *residency, uint32_t key);
/* Ends one demand. */
void moec_residency_release(struct moec_residency *residency, uint32_t key);

/* A predictor names this key: true when it is present, and then hinted. What a preloader's view calls
 * is_present (its `context` is the residency). */
bool moec_residency_hint(void *residency, uint32_t key);
/* Makes an absent key present and hinted. False, with nothing given up, when what is demanded or hinted
 * leaves no room, or while a key waits for admission to its pool. Beside a logical cache that goes last, what
 * was given up on the way to False stays so. */
bool moec_residency_prefetch(struct moec_residency *residency, uint32_t key);
/* Evicts what the policy chooses in the pool of a key, although nothing asked for its room; false when
 * everything there is demanded. For a buffer with enough room in pieces that cannot be joined. */
bool moec_residency_shrink(struct moec_residency *residency, uint32_t key);
/* The same for a prefetch: nothing that is demanded or hinted is given up. */
bool moec_residency_shrink_for_prefetch(struct moec_residency *residency, uint32_t key);
/* Of one pool: lowers the capacity, to no less than the largest slot, and gives up what the policy chooses
 * until what is present fits. False when what is demanded does not yet: call it again after the next release.
 */
bool moec_residency_limit(struct moec_residency *residency, uint64_t capacity_bytes);
/* Gives up a present key that nobody demands (a read that failed, modes that keep nothing);
 * not reported as evicted. */
void moec_residency_drop(struct moec_residency *residency, uint32_t key);

#endif
