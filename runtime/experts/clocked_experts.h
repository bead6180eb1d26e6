/* A source of experts that another one stands behind, and the time that its session computes.
 *
 * A layer's computing is the time from its router's answer to the next one, without what was spent waiting
 * for experts: as long as that, reads for the next layer can hide. The last layer's goes on from the end of
 * one step into the next, to the first answer there. Thread rule: one session's thread; the counters are
 * shared. */
#ifndef MOEC_RUNTIME_CLOCKED_EXPERTS_H
#define MOEC_RUNTIME_CLOCKED_EXPERTS_H

#include "formats/model/config.h"
#include "runtime/policy/experts.h"

#include <stdatomic.h>

struct moec_clocked_experts {
    struct moec_experts experts; /* first: the source to give to moec_forward_init */
    struct moec_experts *inner;  /* borrowed */
    const struct moec_config *config;
    atomic_ullong *compute_ns; /* (MoE layers), borrowed */
    uint32_t ordinal;          /* MoE layer that answered last */
    uint64_t since_ns;         /* when what is not yet counted began */
    uint64_t waited_ns;        /* of that */
};

void moec_clocked_experts_init(struct moec_clocked_experts *clocked, struct moec_experts *inner,
                               const struct moec_config *config, atomic_ullong *compute_ns);

/* Around every step of the session. */
void moec_clocked_experts_begin(struct moec_clocked_experts *clocked);
void moec_clocked_experts_end(struct moec_clocked_experts *clocked);

#endif
