/* The parts of a pool of experts by their neurons, which its files share (internal to runtime/cuda):
 * gpu_neurons.c answers sessions, gpu_neurons_create.c makes the parts. One lock covers all of it. */
#ifndef MOEC_RUNTIME_GPU_NEURONS_INTERNAL_H
#define MOEC_RUNTIME_GPU_NEURONS_INTERNAL_H

#include "runtime/cuda/gpu_neurons.h"
#include "runtime/policy/schedule/residency.h"

#include <pthread.h>

#define MOEC_GPU_NEURON_FLIGHTS 32u /* records behind that copies under way read, at most */
#define MOEC_GPU_NEURON_MARKS   64u /* marks behind copies, and behind uses, that are told apart */

struct moec_gpu_neuron_entry {
    uint32_t slot;     /* of a present one */
    uint32_t expected; /* demands of answers for which it is present, and that nobody has taken yet */
    uint32_t held;
    uint64_t copy;         /* number of the last copy of what it has */
    uint64_t read;         /* of the last one that reads its record behind */
    uint64_t used;         /* mark behind its last use; 0 = none */
    const uint8_t *record; /* held behind, or NULL */
    bool is_asked;         /* the source behind was told of it, and nobody has taken it there */
};

/* A record in pinned memory that a copy under way reads. */
struct moec_gpu_neuron_flight {
    struct moec_expert_request request;
    uint64_t copy;
};

struct moec_gpu_neuron_keys {
    uint32_t n_layer, n_expert, n, n_ff;
    int32_t *ordinals;                     /* (config.n_layer): MoE ordinal or -1, owned */
    uint64_t *slot_bytes;                  /* (n): what the residency counts, owned */
    struct moec_gpu_neuron_entry *entries; /* (n), owned */
};

struct moec_gpu_neuron_pool {
    uint8_t *memory;                  /* the device's, owned: up projections, then rows, then places */
    uint8_t *rows;                    /* of it */
    uint32_t *device_places;          /* of it: (n_slot, n_ff) */
    uint32_t *places;                 /* the same here, owned; MOEC_CUDA_NOWHERE = that pair is not there */
    uint32_t *free_slots, *free_rows; /* owned */
    uint32_t n_free_slot, n_free_row;
};

/* The answer at work, (n_expert) each, owned. */
struct moec_gpu_neuron_answer {
    bool *was_present;
    uint32_t *missing, *takers, *order;
    bool was_told;  /* the source behind was told of it */
    bool is_whole;  /* it is of whole records */
    uint32_t *list; /* (2, n_ff): neurons that are to be copied, owned */
};

struct moec_gpu_neuron_copying {
    struct moec_gpu_gather *gather;
    struct moec_gpu_stream *stream;
    struct moec_gpu_event *landed[MOEC_GPU_NEURON_MARKS], *marks[MOEC_GPU_NEURON_MARKS];
    struct moec_gpu_neuron_flight flights[MOEC_GPU_NEURON_FLIGHTS]; /* a ring: n from `first` on */
    uint32_t first_flight, n_flight, n_record; /* records held behind, with those of flights */
    uint64_t n_copy, n_landed;
    uint64_t n_mark, freed, n_waited; /* marks made, behind which room was freed, that copies wait for */
};

struct moec_gpu_neurons {
    struct moec_experts experts; /* first: the source */
    struct moec_gpu_neurons_setup setup;
    const struct moec_gpu_ops *ops;
    struct moec_experts *behind;
    struct moec_gpu_experts *whole; /* owned: whole records, of larger batches */
    struct moec_gpu_neuron_keys keys;
    struct moec_residency *residency;
    struct moec_gpu_experts_counters counters;
    struct moec_gpu_neuron_pool pool;
    struct moec_gpu_neuron_answer answer;
    struct moec_gpu_neuron_copying copies;
    pthread_mutex_t lock;
};

static inline struct moec_gpu_event *moec_gpu_neurons_landed(const struct moec_gpu_neurons *n, uint64_t copy)
{
    return n->copies.landed[copy % MOEC_GPU_NEURON_MARKS];
}

static inline uint32_t *moec_gpu_neurons_places(const struct moec_gpu_neurons *n, uint32_t key)
{
    return n->pool.places + (size_t)n->keys.entries[key].slot * n->keys.n_ff;
}

/* ---- gpu_neurons.c: with the lock held ---- */

extern const struct moec_experts_ops moec_gpu_neurons_ops;

/* Of the residency: rows and slot of a key are free. */
void moec_gpu_neurons_leave(void *context, uint32_t key);
/* Gives back every record behind, when copies have landed, or will never land. */
void moec_gpu_neurons_settle(struct moec_gpu_neurons *neurons);

#endif
