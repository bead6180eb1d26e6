/* A source of experts that wraps another one and measures the computing time of its session.
 *
 * A layer's computing is the time from its router's answer to the next one, without the time spent waiting
 * for experts: reads for the next layer can hide behind it. The last layer's time continues into the next
 * step, up to the first answer there. Thread rule: one session's thread; the counters are shared. */
#ifndef MOEC_RUNTIME_CLOCKED_EXPERTS_H
#define MOEC_RUNTIME_CLOCKED_EXPERTS_H

#include "formats/model/config.h"
#include "runtime/seam/experts.h"

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
