/* Plans by the model of harm and a price alone. */
#include "compiler/policy/harm.h"

#include <math.h>

#define STEPS       100    /* of halving */
#define LEAST_PRICE (-180) /* log2 of nats a byte: what no unit is worth */
#define MOST_PRICE  60

/* The place of least harm + price * bytes, of the fewest bits where several have it. */
static uint32_t cheapest(const double *harm, const uint64_t *bytes, uint32_t n, double price)
{
    double least = INFINITY;
    uint32_t best = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double cost = harm[i] + price * (double)bytes[i];
        if (cost < least) {
            least = cost;
            best = i;
        }
    }
    return best;
}

/* A matrix's numbers are those that have bytes. */
static double dense_harm(const double *harm, const uint64_t *bytes, double price)
{
    double least = INFINITY, own = 0;
    for (uint32_t number = 0; number < MOEC_CODEC_TABLE; number++)
        if (bytes[number] > 0 && harm[number] + price * (double)bytes[number] < least) {
            least = harm[number] + price * (double)bytes[number];
            own = harm[number];
        }
    return own;
}

/* The harm of the plan of a price; `chosen` may be NULL. */
static double choose_at(const struct moec_harm *harm, const struct moec_harm_bytes *bytes, double price,
                        uint8_t *chosen)
{
    double sum = 0;
    const size_t n = (size_t)harm->n_layer * harm->n_expert * MOEC_PROJECTION_COUNT;
    for (size_t at = 0; at < n; at++) {
        const double *own = harm->experts + at * harm->n_number;
        const uint32_t best =
            cheapest(own, bytes->experts[at % MOEC_PROJECTION_COUNT], harm->n_number, price);
        sum += own[best];
        if (chosen != NULL)
            chosen[at] = (uint8_t)best;
    }
    for (uint32_t d = 0; d < harm->n_dense; d++)
        sum += dense_harm(harm->dense + (size_t)d * MOEC_CODEC_TABLE,
                          bytes->dense + (size_t)d * MOEC_CODEC_TABLE, price);
    return sum;
}

void moec_harm_choose(const struct moec_harm *harm, const struct moec_harm_bytes *bytes, double kl,
                      uint8_t *chosen)
{
    double low = LEAST_PRICE, high = MOST_PRICE;
    for (int step = 0; step < STEPS; step++) {
        const double middle = (low + high) / 2;
        if (choose_at(harm, bytes, exp2(middle), NULL) <= kl)
            low = middle;
        else
            high = middle;
    }
    (void)choose_at(harm, bytes, exp2(low), chosen);
}
