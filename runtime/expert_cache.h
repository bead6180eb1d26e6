/* The expert cache: records of a bundle, read on demand into a buffer of fixed size.
 *
 *     absent --acquire--> loading --read--> ready <--acquire/release--> pinned
 *        ^                   | read failed      |
 *        +-------------------+------evicted-----+
 *
 * One arena is allocated when the cache is created; nothing is allocated afterwards. Records have different
 * sizes (mixed bitwidths) and kernels need each in one piece, so the arena compacts: when the free bytes
 * suffice but lie apart, the records between neighbouring holes slide together, choosing the run that moves
 * the fewest bytes. Records that are pinned or loading never move. So no free byte is lost to fragmentation,
 * with any mix of sizes, and with equal sizes nothing ever moves. (Slots of the largest size would waste up
 * to seven eighths on INT2 beside BF16; slabs by size would let one size starve another and break the
 * policy's order.)
 *
 * Which record makes room is the policy's choice (runtime/evict.h). Every read is checked
 * (runtime/storage.h).
 *
 * Several sessions may hold records at once. `max_held` of the source says how many each may hold; within it
 * nobody waits for room. When the buffer is too small for that, max_held is 1 and an acquire waits until
 * other sessions release: they hold one record each and wait for none while they do, so somebody always goes
 * on.
 *
 * Thread rule: acquire, release and the counters from any thread (one lock inside, not held while reading).
 */
#ifndef MOEC_RUNTIME_EXPERT_CACHE_H
#define MOEC_RUNTIME_EXPERT_CACHE_H

#include "formats/bundle.h"
#include "runtime/evict.h"
#include "runtime/experts.h"

#define MOEC_CACHE_UNIT_BYTES 64u /* records stand at multiples of this in the arena: a cache line */

struct moec_expert_cache;

struct moec_expert_cache_options {
    uint64_t buffer_bytes;               /* of the arena; more than all records need is not allocated */
    uint32_t copy;                       /* copy level that is served; 0 is the compiled assignment */
    uint32_t n_sessions;                 /* that may hold records at once; 0 counts as 1 */
    const struct moec_evict_ops *policy; /* NULL: least recently used */
};

/* What records of a copy level take in the buffer. */
struct moec_record_sizes {
    uint64_t largest_bytes; /* smallest buffer */
    uint64_t all_bytes;     /* buffer that holds every record */
    uint64_t token_bytes;   /* one token's working set: for each MoE layer, top-k times its mean record */
};
struct moec_record_sizes moec_record_sizes_of(const struct moec_bundle *bundle, uint32_t copy);

/* Bytes beside the arena, for a budget. */
uint64_t moec_expert_cache_table_bytes(const struct moec_bundle *bundle, const struct moec_evict_ops *policy);

/* The bundle is borrowed until freed. Errors: MOEC_ERR_BUDGET when the buffer holds less than the largest
 * record, MOEC_ERR_USAGE for a copy that is not there. */
MOEC_WARN_UNUSED enum moec_status moec_expert_cache_create(const struct moec_bundle *bundle,
                                                           const struct moec_expert_cache_options *options,
                                                           struct moec_expert_cache **out,
                                                           struct moec_error *err);
/* Every record must have been released. NULL-safe. */
void moec_expert_cache_free(struct moec_expert_cache *cache);

/* The source to give to moec_forward_init; borrowed until the cache is freed. */
struct moec_experts *moec_expert_cache_experts(struct moec_expert_cache *cache);

/* Bytes of the arena: buffer_bytes, or less when all records fit into less. */
uint64_t moec_expert_cache_buffer_bytes(const struct moec_expert_cache *cache);

/* Since creation. An acquire counts once: as a hit (resident), late (another session was reading it) or miss
 * (read). */
struct moec_cache_counters {
    uint64_t hits;
    uint64_t late;
    uint64_t misses;
    uint64_t evictions;
    uint64_t read_bytes;
    uint64_t read_ns;         /* time in reads and their checks, summed over threads */
    uint64_t moved_bytes;     /* by compaction, counted where the record that needed the room belongs */
    uint64_t useful_preloads; /* asked for before the router answered, and needed then */
    uint64_t wasted_preloads; /* and not needed */
    uint64_t preload_bytes;   /* of both, part of read_bytes once they were read */
    uint64_t stall_ns;        /* acquires that waited */
};

/* Of one MoE layer (ordinal), and of all. */
struct moec_cache_counters moec_expert_cache_layer_counters(struct moec_expert_cache *cache,
                                                            uint32_t ordinal);
struct moec_cache_counters moec_expert_cache_counters(struct moec_expert_cache *cache);

#endif
