/* What generation needs of a sampler beside moert_sampler_next (runtime/moert.h). Thread rule: one thread for
 * each sampler. */
#ifndef MOEC_RUNTIME_SAMPLER_H
#define MOEC_RUNTIME_SAMPLER_H

#include "runtime/kernels/draw.h"
#include "runtime/moert.h"

/* Whether the sampler's next choice is a struct moec_draw: it is not with typical_p. */
bool moec_sampler_is_draw(const struct moert_sampler *sampler);

/* The next choice, for which the sampler gives a random number where it draws. */
struct moec_draw moec_sampler_draw(struct moert_sampler *sampler);

#endif
