/* Experts that come in parts (internal to runtime/experts): the up section is read when an expert is asked
 * for, and of its pairs those units (formats/bundle/record_parts.h) whose neurons a token needs (FloE,
 * section 3.1).
 *
 * Units stand in frames (runtime/experts/unit_frames.h), or, where there are none, in a slot that is as large
 * as the record, each where it lies in the record. Which units are there is kept for each key; a later token
 * reads only those that are missing. Units are read into buffers of their own, checked there, and copied to
 * their place under the lock, where nobody reads them yet: neither a read that fails nor one that ends after
 * the expert has left can harm what is used. Units that lie close together are read with what is between
 * them: a request costs a device about as much as reading MOEC_UNIT_GAP_BYTES does.
 *
 * A unit is absent, wanted (to be read), flying (in flight) or resident. One that was needed and is absent
 * when nothing of its expert is wanted or flying has failed MOEC_RECORD_TRIES times. All with the cache's
 * lock held, except where said otherwise. */
#ifndef MOEC_RUNTIME_EXPERT_UNITS_H
#define MOEC_RUNTIME_EXPERT_UNITS_H

#include "formats/bundle/record_parts.h"
#include "runtime/experts/unit_frames.h"
#include "runtime/policy/evict/key_list.h"

struct moec_expert_cache;
struct moec_expert_cache_options;
struct moec_cache_read;

/* 550 MB/s at 100,000 requests a second, or 3 GB/s at 500,000, give this in the time of a request. An
 * emulated device says itself what a request costs. */
#define MOEC_UNIT_GAP_BYTES  6144u
#define MOEC_UNIT_READ_BYTES ((uint64_t)128 << 10) /* of one request, unless a unit is larger */
#define MOEC_UNIT_READS      256u                  /* in flight, at most: the device is not to wait for us */
#define MOEC_UNIT_RING_READS 16u                   /* of the largest size for which there is room */
#define MOEC_READ_MAX_UNITS  64u

struct moec_unit_entry {
    uint32_t n_pending; /* units that are wanted or flying */
    uint32_t visit;     /* counts the slots that the key has had: a read that began in another is stale */
    uint8_t tries;      /* that failed since nothing was pending */
    int problem;        /* of the last one: an errno, or 0 for bytes that are not the unit */
    bool is_listed;     /* some are wanted */
    bool is_finite;     /* what is absent of a slot holds zeros or an earlier part of the same record */
};

struct moec_expert_units {
    const struct moec_record_parts *parts; /* borrowed */
    uint32_t n_words;                      /* of a key's bits */
    uint64_t *resident, *wanted, *flying;  /* (n_key, n_words), owned */
    struct moec_unit_entry *entries;       /* (n_key), owned */
    struct moec_key_link *links;           /* likewise */
    struct moec_key_list list;             /* keys of which units are wanted */
    struct moec_unit_frames *frames;       /* owned; NULL: slots hold whole records */
    uint64_t gap_bytes;                    /* that are read rather than making another request */
    /* What is read stands in a ring until it is checked; reads leave it in the order in which they began. */
    struct moec_cache_read *reads; /* (MOEC_UNIT_READS), owned: n from `first` on, going round */
    uint32_t first, n, n_flying;
    uint8_t *ring;                               /* owned */
    uint64_t ring_bytes, read_bytes, head, tail; /* positions since creation */
};

/* What one request reads. */
struct moec_unit_read {
    uint32_t first, n; /* units */
    uint32_t visit;
    uint32_t skip;  /* bytes before the first */
    uint64_t end;   /* position in the ring */
    uint64_t asked; /* bit i: unit first + i was wanted; the others lie between */
    uint64_t good;  /* set by moec_units_check */
};

/* Of a cache whose options name parts. Errors: MOEC_ERR_USAGE with forms beside form 0, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_units_create(struct moec_expert_cache *cache, struct moec_error *err);
void moec_units_free(struct moec_expert_cache *cache);
uint64_t moec_units_table_bytes(const struct moec_bundle *bundle,
                                const struct moec_expert_cache_options *options);

static inline uint64_t *moec_units_resident(const struct moec_expert_units *units, uint32_t key)
{
    return units->resident + (size_t)key * units->n_words;
}

/* The key's slot was freed, or its whole record was read. */
void moec_units_forget(struct moec_expert_cache *cache, uint32_t key);
void moec_units_complete(struct moec_expert_cache *cache, uint32_t key);

/* Wants what is absent of the units that hold these neurons (bits). With touches_all what the slot holds of
 * the others is finite from then on. */
void moec_units_need(struct moec_expert_cache *cache, uint32_t key, const uint64_t *neurons,
                     bool touches_all);
/* Whether some of the key's are on their way; and, when none are, whether what was needed is there. */
bool moec_units_are_coming(const struct moec_expert_cache *cache, uint32_t key);
bool moec_units_are_there(const struct moec_expert_cache *cache, uint32_t key, const uint64_t *neurons,
                          bool touches_all);

static inline bool moec_units_are_wanted(const struct moec_expert_units *units)
{
    return units != NULL && units->list.n > 0;
}

static inline uint32_t moec_units_n_flying(const struct moec_expert_units *units)
{
    return units != NULL ? units->n_flying : 0;
}

/* Whether some are wanted and one more request has room. */
bool moec_units_can_begin(const struct moec_expert_units *units);
/* Makes it; NULL where there is none. */
struct moec_cache_read *moec_units_take(struct moec_expert_cache *cache);
/* Without the lock: which of the units that were read are right. `words` say what is wrong with one. */
void moec_units_check(const struct moec_expert_cache *cache, struct moec_cache_read *read,
                      struct moec_error *words);
void moec_units_finish(struct moec_expert_cache *cache, struct moec_cache_read *read,
                       const struct moec_error *words);

#endif
