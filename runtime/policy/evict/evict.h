/* Eviction policies: tables of functions, one policy a file (D9). The expert cache of the runtime and the
 * cache simulator run the same code.
 *
 * A policy sees keys, key = MoE ordinal x n_expert + expert, and keeps what it needs for each. It never sees
 * bytes: the cache asks for victims until a record fits. Equal calls give equal victims, on every machine.
 * Thread rule: the caller's lock covers every call on one instance. */
#ifndef MOEC_RUNTIME_EVICT_H
#define MOEC_RUNTIME_EVICT_H

#include "formats/base/error.h"

#include <stddef.h>
#include <stdint.h>

#define MOEC_EVICT_NONE 0xffffffffu

/* What is known before the first token. */
struct moec_evict_setup {
    uint32_t n_layer;       /* MoE layers: S of EdgeMoE in a model of one stack */
    uint32_t n_expert;      /* experts a layer; n_key = n_layer * n_expert */
    const float *frequency; /* (n_layer, n_expert): share of calibration tokens that activated each expert;
                             * NULL = unknown, borrowed for the call */
    /* How many layers, counted from the first, are an encoder's, which reads each input once. */
    uint32_t n_encoder;
    uint32_t n_low;       /* of n_expert, the last ones: records of low precision; 0 = none */
    const float *weights; /* (MOEC_EVICT_WEIGHTS) of policies that have them; NULL = their own; borrowed */
};

/* What moec_evict_hobbit weighs. */
enum moec_evict_weight {
    MOEC_EVICT_LRU = 0,
    MOEC_EVICT_LFU,
    MOEC_EVICT_LHU,
    MOEC_EVICT_FLD,
    MOEC_EVICT_WEIGHTS
};

/* First member of every policy's state. */
struct moec_evict {
    const struct moec_evict_ops *ops;
};

/* Whether the cache may give up this key now (it is resident and nobody uses it). */
typedef bool moec_evictable_fn(void *context, uint32_t key);

#define MOEC_EVICT_WORD_BYTES 96 /* of a policy with its parameters, and a NUL */

struct moec_evict_ops;

/* A policy with the parameters of its word, as moec_evict_read takes it. */
struct moec_evict_choice {
    const struct moec_evict_ops *ops;  /* NULL = nothing is evicted */
    bool has_weights;                  /* of moec_evict_hobbit; else they are the bundle's, or equal */
    float weights[MOEC_EVICT_WEIGHTS]; /* that sum to 1 */
    uint32_t n_shallow;                /* of moec_evict_fate: layers that are shallow; 0 = not said */
    char word[MOEC_EVICT_WORD_BYTES];  /* as it was read */
};

struct moec_evict_ops {
    const char *name;
    /* Optional (NULL: it has none): reads what follows the name and a colon. Errors: MOEC_ERR_USAGE. */
    enum moec_status (*read)(const char *parameters, struct moec_evict_choice *choice,
                             struct moec_error *err);
    /* Bytes of state for n_key keys, for a budget. */
    uint64_t (*state_bytes)(uint32_t n_key);
    /* Everything absent. Owned by the caller, released with destroy. */
    enum moec_status (*create)(const struct moec_evict_setup *setup, struct moec_evict **out,
                               struct moec_error *err);
    void (*destroy)(struct moec_evict *self); /* NULL-safe */

    /* Optional (NULL): how many keys of each layer (n_layer) the buffer is to keep; told before anything is
     * present, and again when the buffer shrinks. */
    void (*shared)(struct moec_evict *self, const uint32_t *shares);
    /* Optional (NULL): a sequence begins. */
    void (*began)(struct moec_evict *self);
    /* Optional (NULL): the layer (MoE ordinal) whose experts are being asked for. */
    void (*reached)(struct moec_evict *self, uint32_t ordinal);
    /* Optional (NULL): an absent key is asked for; room is made for it next. */
    void (*wanted)(struct moec_evict *self, uint32_t key);

    void (*inserted)(struct moec_evict *self, uint32_t key); /* absent -> present; counts as a use */
    /* Optional (NULL: as inserted): absent -> present on a guess, which is no use yet. Counting it as one
     * would keep what was guessed wrongly in place of what is used. */
    void (*prefetched)(struct moec_evict *self, uint32_t key);
    void (*used)(struct moec_evict *self, uint32_t key); /* present */
    /* Optional (NULL): the expert of a key, present or not, was used in another copy, which a pool with an
     * instance of its own holds. */
    void (*used_beside)(struct moec_evict *self, uint32_t key, bool is_high);
    void (*removed)(struct moec_evict *self, uint32_t key); /* present -> absent */

    /* The key to give up next among those present that `evictable` accepts, or MOEC_EVICT_NONE. Does not
     * remove it. */
    uint32_t (*victim)(struct moec_evict *self, moec_evictable_fn *evictable, void *context);
};

extern const struct moec_evict_ops moec_evict_fifo;    /* longest in the cache first */
extern const struct moec_evict_ops moec_evict_lru;     /* least recently used first */
extern const struct moec_evict_ops moec_evict_lfu;     /* least often used first, ties to the least recent */
extern const struct moec_evict_ops moec_evict_edgemoe; /* EdgeMoE III-C2, as its text says */
extern const struct moec_evict_ops moec_evict_edgemoe_literal; /* EdgeMoE III-C2, as its formula says */
extern const struct moec_evict_ops moec_evict_arc;    /* adaptive replacement (Megiddo and Modha, 2003) */
extern const struct moec_evict_ops moec_evict_random; /* any, drawn with a fixed seed */
extern const struct moec_evict_ops moec_evict_hobbit; /* HOBBIT 3.4: by weighted recency, uses and distance */
extern const struct moec_evict_ops moec_evict_lhu;    /* its least often used in high precision first */
extern const struct moec_evict_ops moec_evict_fate;   /* Fate 4.4: ARC within each layer's share */

/* All of them, in the order of the list above, ended by NULL. */
extern const struct moec_evict_ops *const moec_evict_policies[];

/* By name. Errors: MOEC_ERR_USAGE, naming the policies that exist. */
MOEC_WARN_UNUSED enum moec_status moec_evict_find(const char *name, const struct moec_evict_ops **out,
                                                  struct moec_error *err);

/* A policy by its word: its name, or with parameters "hobbit:0.4:0.3:0.1:0.2" (weights of recency, uses, uses
 * in high precision and distance of the layer, scaled to sum to 1) or "fate:3" (so many shallow layers).
 * Errors: MOEC_ERR_USAGE, for a policy without parameters too. */
MOEC_WARN_UNUSED enum moec_status moec_evict_read(const char *word, struct moec_evict_choice *out,
                                                  struct moec_error *err);

#endif
