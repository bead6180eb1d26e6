/* The Viterbi search of trellis codes: 64 states of Ungerboeck's code, one coded bit a step. Each state has
 * two before it, and one bit for each state and weight keeps the better. Only differences of costs count:
 * now and then all are lowered by the least, or F32 would lose them. A tie takes the first, so that every
 * build finds the same codes. */
#include "formats/codec/trellis.h"

#include "formats/codec/levels.h"
#include "formats/codec/path_costs.h"

#include <string.h>

#define STATES MOEC_TRELLIS_STATES

const float moec_trellis_levels[MOEC_TRELLIS_LEVELS] = {MOEC_LEVELS_TRELLIS};

void moec_trellis_values(const uint8_t *codes, size_t n, float *values)
{
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        bits = (bits << 1 | (codes[i] & 1)) & 0x7f;
        values[i] = moec_trellis_levels[(uint32_t)(codes[i] >> 1 & 1) << 2 | moec_trellis_subset(bits)];
    }
}

static inline moec_four four_at(const float *costs)
{
    moec_four four;
    memcpy(&four, costs, sizeof four);
    return four;
}

/* The squared distance of v from the nearer of the two levels of each subset. */
static inline moec_four errors_of(float v)
{
    moec_four_masks is_upper;
    const moec_four low = v - four_at(moec_trellis_levels), high = v - four_at(moec_trellis_levels + 4);
    return moec_four_lesser(low * low, high * high, &is_upper);
}

/* Whether the upper level of a subset is the nearer. */
static uint32_t is_upper_nearer(float v, uint32_t subset)
{
    const float low = v - moec_trellis_levels[subset], high = v - moec_trellis_levels[subset + 4];
    return high * high < low * low;
}

/* Of state 4 g + lane, which of the two states before it is the better one: bit 16 lane + g of `choices`, as
 * four comparisons at a time give them. */
static uint32_t comes_from_one(uint64_t choices, uint32_t state)
{
    return (uint32_t)(choices >> (state % 4 * 16 + state / 4)) & 1;
}

/* One weight on: state s is reached from s / 2 and s / 2 + 32, which differ in the oldest of their bits, and
 * z1 follows that bit. Eight states at a time come from four and four. Of state 4 g + lane z1 is 0, 1, 1, 0
 * by lane, and z0 is bit 0 of g by bit 2 of g. */
static uint64_t step(moec_four errors, const float costs[static STATES], float next[static STATES])
{
    const moec_four even[2] = {{errors[0], errors[2], errors[2], errors[0]},
                               {errors[2], errors[0], errors[0], errors[2]}};
    const moec_four odd[2] = {{errors[1], errors[3], errors[3], errors[1]},
                              {errors[3], errors[1], errors[1], errors[3]}};
    moec_four_masks choices = {0}, is_one;
    for (uint32_t g = 0; g < STATES / 4; g += 2) {
        const moec_four zero = four_at(costs + 2 * g), one = four_at(costs + 2 * g + STATES / 2);
        const moec_four *first = (g & 4) == 0 ? even : odd, *second = (g & 4) == 0 ? odd : even;
        moec_four least = moec_four_lesser((moec_four){zero[0], zero[0], zero[1], zero[1]} + first[0],
                                           (moec_four){one[0], one[0], one[1], one[1]} + first[1], &is_one);
        choices |= is_one & (int32_t)(1u << g);
        memcpy(next + 4 * g, &least, sizeof least);
        least = moec_four_lesser((moec_four){zero[2], zero[2], zero[3], zero[3]} + second[0],
                                 (moec_four){one[2], one[2], one[3], one[3]} + second[1], &is_one);
        choices |= is_one & (int32_t)(2u << g);
        memcpy(next + 4 * g + 4, &least, sizeof least);
    }
    return (uint64_t)(uint32_t)choices[0] | (uint64_t)(uint32_t)choices[1] << 16 |
           (uint64_t)(uint32_t)choices[2] << 32 | (uint64_t)(uint32_t)choices[3] << 48;
}

void moec_trellis_search(const float *weights, size_t n, float scale, uint64_t *choices, uint8_t *codes)
{
    float costs[2][STATES];
    moec_path_begin(costs[0]);
    for (size_t i = 0; i < n; i++) {
        choices[i] = step(errors_of(weights[i] / scale), costs[i % 2], costs[(i + 1) % 2]);
        if (i % MOEC_PATH_SETTLED == MOEC_PATH_SETTLED - 1)
            moec_path_settle(costs[(i + 1) % 2]);
    }
    uint32_t state = moec_path_least(costs[n % 2]);
    for (size_t i = n; i-- > 0;) {
        const uint32_t seven = state | comes_from_one(choices[i], state) << 6;
        const uint32_t upper = is_upper_nearer(weights[i] / scale, moec_trellis_subset(seven));
        codes[i] = (uint8_t)((seven & 1) | upper << 1);
        state = seven >> 1;
    }
}
