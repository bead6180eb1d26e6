/* Experts in a GPU's memory by their neurons (FloE, sections 3.1 and 3.4): with a sparsity, a decoded token
 * needs of an expert its up projection and, of gate and down, the pairs of the neurons that stay. So an
 * expert takes as much of the device's memory as was needed of it, and what a later token needs beside that
 * is copied then:
 *
 *     absent --acquire--> up is copied --need: marked neurons--> their pairs follow --> used
 *     (evicted: absent)
 *
 * Up projections have slots of one size, pairs rows of one size, both of the pool's memory; a table on the
 * device says which row a neuron has (moec_cuda_mlp_job's places). Rows are taken one by one, so that nothing
 * is lost between them. Where there are none left, other experts are evicted, whole. How pairs come is
 * runtime/cuda/gpu_gather.h's.
 *
 * Batches of more tokens than a kernel leaves neurons out for (MOEC_CUDA_FEW) use whole records, of a small
 * pool of its own (runtime/cuda/gpu_experts.h), which they pass through. Answers tell which: each is used up
 * before the next.
 *
 * Thread rule: as a source of experts, for one session; all uses of experts are given to one stream. Nothing
 * is allocated after creation. */
#ifndef MOEC_RUNTIME_GPU_NEURONS_H
#define MOEC_RUNTIME_GPU_NEURONS_H

#include "runtime/cuda/gpu_experts.h"
#include "runtime/cuda/gpu_gather.h"

struct moec_gpu_neurons;

/* What a pool is made of. */
struct moec_gpu_neurons_plan {
    uint32_t n_slot;      /* experts; 0: a pool of whole records serves better, or there is no room */
    uint32_t n_row;       /* pairs */
    uint64_t whole_bytes; /* for whole records */
    uint64_t slot_bytes, row_bytes;
};

/* Of pool_bytes, for copy 0 of a bundle and a sparsity that leaves out a share of the neurons: slots for as
 * many experts as there are rows for, if each comes to hold twice what a token needs of it. */
struct moec_gpu_neurons_plan moec_gpu_neurons_plan_of(const struct moec_bundle *bundle, double share,
                                                      uint64_t pool_bytes);

struct moec_gpu_neurons_setup {
    struct moec_gpu_experts_setup experts;  /* with one form, without cooperation */
    const struct moec_gpu_kernels *kernels; /* borrowed until freed, as what follows */
    struct moec_gpu_neurons_plan plan;      /* with slots */
    struct moec_pool threads;               /* that gather */
    const uint8_t *memory;                  /* of struct moec_gpu_gather_setup, as memory_bytes and speed */
    uint64_t memory_bytes;
    struct moec_gpu_gather_speed speed;
};

/* Bytes of the process's memory, pinned ones included, for a budget: at most, whatever the pool is. */
uint64_t moec_gpu_neurons_table_bytes(const struct moec_bundle *bundle, const struct moec_evict_ops *policy);

/* Errors: the device's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_neurons_create(const struct moec_gpu_neurons_setup *setup,
                                                          struct moec_gpu_neurons **out,
                                                          struct moec_error *err);
/* Every expert must have been released. NULL-safe. */
void moec_gpu_neurons_free(struct moec_gpu_neurons *neurons);

/* The source to give to a forward pass; borrowed until freed. */
struct moec_experts *moec_gpu_neurons_source(struct moec_gpu_neurons *neurons);

/* Since creation, of batches in whole records too. A hit is an expert of which something was there. */
struct moec_gpu_experts_counters moec_gpu_neurons_counters(struct moec_gpu_neurons *neurons);
/* As it was told or measured. */
struct moec_gpu_gather_speed moec_gpu_neurons_speed(const struct moec_gpu_neurons *neurons);

#endif
