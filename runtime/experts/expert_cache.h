/* The expert cache: records of a bundle, streamed into a buffer of fixed size.
 *
 * Three questions are answered in three places. Which records are in the buffer is decided by bytes and
 * policy alone (runtime/policy/schedule/residency.h), so that the simulator decides the same; where they lie is the
 * arena's business (runtime/experts/arena.h), which may have to wait for neighbours at work; when they are
 * read is the loader's (runtime/experts/loader.c):
 *
 *     absent --router's answer, prefetch--> queued --placed--> reading --checked--> ready <--> held
 *        ^                                  |                 |  | read failed     |
 *        +----------evicted-----------------+---(at its end)--+  +--> failed       |
 *        +-----------------------------------evicted-------------------------------+
 *
 * When a router has answered (expect), all its records are asked for together: what is missing begins to be
 * read at once, up to 32 at a time, and what is there is computed meanwhile. A session that needs a record
 * waits for the device itself; a thread of the cache reads what nobody asked for yet: prefetches
 * (runtime/policy/schedule/preload.h) and the warm start, one at a time and only while nothing demanded is missing. A
 * key that is evicted while its read is in flight frees its bytes when the read ends. Every read is
 * checked before a record is used; one that fails is tried again, up to three times, and then reported with
 * layer and expert. A prefetch that fails is forgotten.
 *
 * Several sessions may hold records at once, and no session waits forever. A session waits in acquire (1) for
 * a record that is being read, which ends; or (2) for room, in the order in which all sessions asked. One
 * session takes what an answer found present first, for which no room is needed, and the rest in the order of
 * asking, so that when it waits for room it has released all that it was admitted. With several sessions only
 * what one waits for or holds is safe from the others: what it merely expects is read, but may be given up
 * and read once more, or two could wait for each other's. As a session holds nothing while it waits, the
 * first in the queue is admitted at the latest when all of them wait. (3) A caller that acquires without an
 * answer may hold up to `max_held` records and wait for the next; within that number there is always room,
 * because other records are given up even beyond what bytes alone would ask for, where held ones cut the free
 * bytes apart. Nothing is allocated after creation.
 *
 * Thread rule: everything from any thread; acquire and release of one answer from one. */
#ifndef MOEC_RUNTIME_EXPERT_CACHE_H
#define MOEC_RUNTIME_EXPERT_CACHE_H

#include "runtime/policy/decide/logical_cache.h"
#include "runtime/policy/decide/precision.h"
#include "runtime/policy/evict/evict.h"
#include "runtime/policy/predict/predict.h"
#include "runtime/seam/experts.h"
#include "runtime/storage/record_reader.h"

struct moec_record_parts;
struct moec_trace;

struct moec_expert_cache;

#define MOEC_CACHE_FORMS 8 /* that one cache serves, at most */

/* A form beside form 0 that a cache serves: entries of its own in the same buffer, under the same policy. */
struct moec_cache_form {
    struct moec_expert_form form;
    const uint32_t *part_crc32c; /* of a part: struct moec_storage_setup; borrowed until the cache is freed */
};

/* The arena that records stay in. */
struct moec_cache_buffer {
    uint64_t n_bytes;     /* more than all records need is not allocated */
    uint64_t least_bytes; /* that it may be shrunk to; 0 = it is not */
    uint64_t most_bytes;  /* that it may grow to, of experts that come whole; 0 = it does not */
    /* Of it, for a pool of form 1's own, where there is one form beside: a low copy then makes room among
     * low ones alone and a high one among high ones. It is not shrunk. 0 = one buffer for all. */
    uint64_t low_pool_bytes;
};

/* The records that come there. */
struct moec_cache_records {
    uint32_t copy;                        /* form 0 is its whole records; 0 is the compiled assignment */
    const struct moec_cache_form *beside; /* forms 1 to n_beside of requests, borrowed for the call */
    uint32_t n_beside;
    /* Of copy 0: experts come in parts (runtime/experts/expert_units.h), in one form; NULL = whole.
     * Borrowed. */
    const struct moec_record_parts *parts;
    struct moec_record_io io; /* how they are read */
};

/* Which of them stay. */
struct moec_cache_keeping {
    const struct moec_evict_ops *policy; /* NULL: least recently used */
    const float *weights; /* of struct moec_evict_setup; NULL: the policy's; borrowed for the call */
    bool nothing;         /* a record goes when nobody needs it any more */
    bool is_warm;     /* the buffer is filled at creation, by the frequencies of the bundle's path table, and
                           * the records (form 0) are read in the background */
    bool is_resident; /* the buffer holds every record, and all are read before creation returns */
    /* Of sequences that decide by logical caches, in as many forms: kept while the buffer has room for all of
     * it (runtime/policy/schedule/residency.h); borrowed until freed, or NULL. */
    const struct moec_logical_cache *logical;
};

/* Which come before they are asked for. */
struct moec_cache_preload {
    const struct moec_predict_ops *predictor; /* NULL = nothing is prefetched */
    uint32_t count;                           /* prefetches after each answer; 0 = bounded by time */
    uint32_t ahead;                           /* layers that are predicted, at most; 0 = 1 */
    bool reads_on; /* for prompts, whatever is predicted: runtime/policy/schedule/prompt_prefetch.h */
    struct moec_precision precision; /* with a low copy in form 1: by which experts will ask for it */
};

/* Zero is a plain cache: least recently used first, no prefetches, empty at first. */
struct moec_expert_cache_options {
    struct moec_cache_buffer buffer;
    struct moec_cache_records records;
    struct moec_cache_keeping keeps;
    struct moec_cache_preload preload;
    uint32_t n_sessions;      /* that may hold records at once; 0 counts as 1 */
    struct moec_trace *trace; /* borrowed until freed, or NULL */
};

/* What records of a precision copy take in the buffer. */
struct moec_record_sizes {
    uint64_t largest_bytes; /* smallest buffer */
    uint64_t all_bytes;     /* buffer that holds every record */
    uint64_t token_bytes;   /* one token's working set: for each MoE layer (a decoder's, after an encoder),
                               top-k   times its mean record */
};
struct moec_record_sizes moec_record_sizes_of(const struct moec_bundle *bundle, uint32_t copy);

/* What `logical` may hold of copies[form] in each of its forms. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status
moec_record_logical_room(const struct moec_bundle *bundle, const struct moec_logical_cache *logical,
                         const uint32_t *copies, struct moec_logical_room *room, struct moec_error *err);

/* What reading experts in parts is expected to take where each token leaves out a share of an expert's
 * neurons: of a record of level 0 that is not in memory, on average. Which ones follows the turnover that the
 * parts have (formats/tables/neuron_turnover.h), and is drawn by lot where they have none. */
struct moec_parts_estimate {
    double whole_bytes;
    double read_bytes; /* up, and units with what lies between those that are read together */
    double n_reads;
    bool pays; /* more than twice the time that the requests cost is saved (MOEC_UNIT_GAP_BYTES, or emulated)
                */
};
struct moec_parts_estimate moec_parts_estimate_make(const struct moec_bundle *bundle,
                                                    const struct moec_record_parts *parts,
                                                    const struct moec_emulation *emulation, double share);

/* Bytes beside the arena, for a budget: tables, policy, predictor, reader, thread. */
uint64_t moec_expert_cache_table_bytes(const struct moec_bundle *bundle,
                                       const struct moec_expert_cache_options *options);

/* The bundle is borrowed until freed. Errors: MOEC_ERR_BUDGET when the buffer holds less than the largest
 * record (with keeps.is_resident: than all of them; a pool than the largest of its form), MOEC_ERR_USAGE for
 * a copy that is not there and for too many forms, MOEC_ERR_UNSUPPORTED for a part without sums and another
 * pool than the host's, those of moec_record_reader_create and of the predictor, MOEC_ERR_MEMORY when a
 * thread cannot be started. */
MOEC_WARN_UNUSED enum moec_status moec_expert_cache_create(const struct moec_bundle *bundle,
                                                           const struct moec_expert_cache_options *options,
                                                           struct moec_expert_cache **out,
                                                           struct moec_error *err);
/* Every record must have been released. NULL-safe. */
void moec_expert_cache_free(struct moec_expert_cache *cache);

/* The source to give to moec_forward_init; borrowed until the cache is freed. */
struct moec_experts *moec_expert_cache_experts(struct moec_expert_cache *cache);

/* Bytes of the arena: options.buffer.n_bytes, or less when all records fit into less. */
uint64_t moec_expert_cache_buffer_bytes(const struct moec_expert_cache *cache);
/* Where it begins, at a page: a cache that is not shrunk keeps it, so that a device can be told of it. */
uint8_t *moec_expert_cache_memory(const struct moec_expert_cache *cache);

/* Makes the arena smaller, to no less than options.buffer.least_bytes, and gives its memory back to the
 * system: what the policy chooses is evicted. Returns when that is done; records that are held or being read
 * then are waited for, so the caller holds none. Makes it larger, up to options.buffer.most_bytes: new
 * records fill it. */
void moec_expert_cache_resize(struct moec_expert_cache *cache, uint64_t buffer_bytes);

/* Returns when the records of the warm start have been read (or evicted, or failed); meanwhile they are read
 * many at a time. */
void moec_expert_cache_wait_warm(struct moec_expert_cache *cache);

/* Whether options.keeps.logical is kept. Of experts that come in parts this says it of their up sections. */
bool moec_expert_cache_keeps_logical(struct moec_expert_cache *cache);

/* The reader's description of itself. */
const char *moec_expert_cache_reader_description(const struct moec_expert_cache *cache);

/* Since creation. Each expert that an answer asks for (or, without one, an acquire) counts once: as a hit
 * (its bytes were there), late (present, and on its way) or miss. */
struct moec_cache_counters {
    uint64_t hits;
    uint64_t late;
    uint64_t misses;
    uint64_t useful_preloads; /* prefetched, and asked for before they left */
    uint64_t wasted_preloads; /* prefetched, and evicted or still present without having been asked for */
    uint64_t evictions;
    uint64_t n_reads;       /* requests that were answered */
    uint64_t read_bytes;    /* of all reads */
    uint64_t unit_bytes;    /* of these, for pairs of neurons alone */
    uint64_t preload_bytes; /* of these, for prefetches */
    uint64_t read_ns;       /* from asking the device until its answer was taken, summed over reads */
    uint64_t stall_ns;      /* sessions waited for records */
    uint64_t busy_ns;       /* of read_ns, while no read was under way that was counted before */
    uint64_t moved_bytes;   /* by compaction, counted where the record that needed the room belongs */
};

/* sum += one, member by member. */
void moec_cache_counters_add(struct moec_cache_counters *sum, const struct moec_cache_counters *one);

/* Of one MoE layer (ordinal), in all forms. */
struct moec_cache_counters moec_expert_cache_layer_counters(struct moec_expert_cache *cache,
                                                            uint32_t ordinal);

#endif
