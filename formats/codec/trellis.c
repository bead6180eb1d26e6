#include "formats/codec/trellis.h"

#include "formats/codec/levels.h"

#define STATES  MOEC_TRELLIS_STATES
#define SETTLED 32 /* weights after which costs are counted from the least again */

const float moec_trellis_levels[MOEC_TRELLIS_LEVELS] = {MOEC_LEVELS_TRELLIS};

void moec_trellis_values(const uint8_t *codes, size_t n, float *values)
{
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        bits = (bits << 1 | (codes[i] & 1)) & 0x7f;
        values[i] = moec_trellis_levels[(uint32_t)(codes[i] >> 1 & 1) << 2 | moec_trellis_subset(bits)];
    }
}

/* Of the two levels of each subset the nearer: its squared distance from v, and whether it is the upper. */
static void measure_subsets(float v, float errors[static 4], uint32_t *uppers)
{
    *uppers = 0;
    for (uint32_t z = 0; z < 4; z++) {
        const float low = v - moec_trellis_levels[z], high = v - moec_trellis_levels[z + 4];
        const float low_error = low * low, high_error = high * high;
        *uppers |= (uint32_t)(high_error < low_error) << z;
        errors[z] = high_error < low_error ? high_error : low_error;
    }
}

/* One weight on: each state is reached from two that differ in the oldest of their bits, which z1 follows.
 * Bit s of the answer: state s is reached from the one where that bit is 1. */
static uint64_t step(const float errors[static 4], const float costs[static STATES],
                     float next[static STATES])
{
    uint64_t choices = 0;
    for (uint32_t s = 0; s < STATES; s++) {
        const uint32_t z = moec_trellis_subset(s);
        const float zero = costs[s / 2] + errors[z], one = costs[s / 2 + STATES / 2] + errors[z ^ 2];
        choices |= (uint64_t)(one < zero) << s;
        next[s] = one < zero ? one : zero;
    }
    return choices;
}

static uint32_t least_of(const float costs[static STATES])
{
    uint32_t best = 0;
    for (uint32_t s = 1; s < STATES; s++)
        best = costs[s] < costs[best] ? s : best;
    return best;
}

static void settle(float costs[static STATES])
{
    const float least = costs[least_of(costs)];
    for (uint32_t s = 0; s < STATES; s++)
        costs[s] -= least;
}

void moec_trellis_search(const float *weights, size_t n, float scale, uint64_t *choices, uint8_t *codes)
{
    float costs[2][STATES], errors[4];
    uint32_t uppers;
    for (uint32_t s = 0; s < STATES; s++)
        costs[0][s] = s == 0 ? 0 : 1e30f; /* rows begin with bits of 0 */
    for (size_t i = 0; i < n; i++) {
        measure_subsets(weights[i] / scale, errors, &uppers);
        choices[i] = step(errors, costs[i % 2], costs[(i + 1) % 2]);
        if (i % SETTLED == SETTLED - 1)
            settle(costs[(i + 1) % 2]);
    }
    uint32_t state = least_of(costs[n % 2]);
    for (size_t i = n; i-- > 0;) {
        const uint32_t seven = state | (uint32_t)(choices[i] >> state & 1) << 6;
        measure_subsets(weights[i] / scale, errors, &uppers);
        codes[i] = (uint8_t)((seven & 1) | (uppers >> moec_trellis_subset(seven) & 1) << 1);
        state = seven >> 1;
    }
}
