#include "formats/codec/shift.h"

#include "formats/base/bytes.h"
#include "formats/codec/path_costs.h"

#include <string.h>

#define STATES MOEC_SHIFT_STATES
#define BLOCK  32
#define FREE   4 /* levels at most that the same coded bits leave */

#include "formats/codec/shift_levels.h"

#define OF_BITS(bits, of_level, of_window, of_code)                                                          \
    {                                                                                                        \
        .n_levels = (of_level), .coded_bits = (of_window), .free_bits = (of_code),                           \
        .unit = MOEC_SHIFT_##bits##_UNIT, .columns = {MOEC_SHIFT_##bits##_COLUMNS},                          \
        .levels = {MOEC_SHIFT_##bits##_LEVELS}, .low = {MOEC_SHIFT_##bits##_LOW}, .high = {                  \
            MOEC_SHIFT_##bits##_HIGH                                                                         \
        }                                                                                                    \
    }
static const struct moec_shift shifts[] = {OF_BITS(2, 64, 6, 0), OF_BITS(3, 64, 5, 1), OF_BITS(4, 128, 5, 2)};

const struct moec_shift *moec_shift_of(uint32_t bits)
{
    return &shifts[bits - 2];
}

int moec_shift_level(uint32_t bits, const uint8_t *row, size_t i)
{
    const struct moec_shift *shift = moec_shift_of(bits);
    const uint8_t *free_at = row + i / BLOCK * moec_shift_block_bytes(bits);
    const uint8_t *coded = free_at + moec_shift_free_bytes(bits);
    const size_t place = i % BLOCK, at = place / 4;
    const uint32_t before = at > 0 ? coded[at - 1] : i >= BLOCK ? free_at[-1] : 0;
    const uint32_t window = ((uint32_t)coded[at] << 8 | before) >> (2 + 2 * (i % 4)) & 255;
    const uint32_t above = bits == 2   ? 0
                           : bits == 3 ? (uint32_t)free_at[place / 8] >> place % 8 & 1
                                       : (uint32_t)free_at[place % 8] >> place / 8 * 2 & 3;
    return shift->levels[above << shift->coded_bits | moec_shift_place(shift, window)];
}

void moec_shift_values(uint32_t bits, const uint8_t *codes, size_t n, float *values)
{
    const struct moec_shift *shift = moec_shift_of(bits);
    uint32_t state = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t coded = codes[i] & MOEC_SHIFT_CODED;
        const uint32_t place = moec_shift_place(shift, moec_shift_window(state, coded));
        values[i] = (float)shift->levels[(uint32_t)codes[i] >> 2 << shift->coded_bits | place];
        state = moec_shift_next(state, coded);
    }
}

/* ---- the search ---- */

/* Levels of the windows that begin in each state, by coded bits, and by free ones. */
struct table {
    moec_four of[FREE][STATES];
};

static void list_levels(const struct moec_shift *shift, struct table *table)
{
    for (uint32_t f = 0; f < 1u << shift->free_bits; f++)
        for (uint32_t s = 0; s < STATES; s++)
            for (uint32_t x = 0; x < 4; x++) {
                const uint32_t place = moec_shift_place(shift, moec_shift_window(s, x));
                table->of[f][s][x] = (float)shift->levels[f << shift->coded_bits | place];
            }
}

/* The squared distance of v from the nearest of the levels that each coded bits leave after state s. */
static inline __attribute__((always_inline)) moec_four errors_of(const struct table *table,
                                                                 const uint32_t n_free, float v, uint32_t s)
{
    moec_four least = v - table->of[0][s];
    least *= least;
    for (uint32_t f = 1; f < n_free; f++) {
        moec_four_masks is_second;
        const moec_four error = v - table->of[f][s];
        least = moec_four_lesser(least, error * error, &is_second);
    }
    return least;
}

/* One weight on: states 4 g .. 4 g + 3 are reached from the states 16 o + g, o the oldest of bits. */
static inline __attribute__((always_inline)) void step(const struct table *table, const uint32_t n_free,
                                                       float v, const float costs[static STATES],
                                                       float next[static STATES],
                                                       struct moec_shift_choices *choices)
{
    moec_four_masks chosen = {0};
    for (uint32_t g = 0; g < STATES / 4; g++) {
        moec_four least = costs[g] + errors_of(table, n_free, v, g);
        moec_four_masks which = {0};
        for (uint32_t o = 1; o < 4; o++) {
            moec_four_masks is_second;
            const uint32_t s = STATES / 4 * o + g;
            least = moec_four_lesser(least, costs[s] + errors_of(table, n_free, v, s), &is_second);
            which = (which & ~is_second) | (is_second & (int32_t)o);
        }
        memcpy(next + 4 * g, &least, sizeof least);
        chosen |= (moec_four_masks)((moec_four_masks)which << (int32_t)(2 * g));
    }
    memcpy(choices->oldest, &chosen, sizeof chosen);
}

static inline __attribute__((always_inline)) void walk(const struct table *table, const uint32_t n_free,
                                                       const float *weights, size_t n, float scale,
                                                       float costs[2][STATES],
                                                       struct moec_shift_choices *choices)
{
    for (size_t i = 0; i < n; i++) {
        step(table, n_free, weights[i] / scale, costs[i % 2], costs[(i + 1) % 2], &choices[i]);
        if (i % MOEC_PATH_SETTLED == MOEC_PATH_SETTLED - 1)
            moec_path_settle(costs[(i + 1) % 2]);
    }
}

static uint32_t nearest_free(const struct table *table, uint32_t n_free, float v, uint32_t state, uint32_t x)
{
    uint32_t best = 0;
    for (uint32_t f = 1; f < n_free; f++) {
        const float one = v - table->of[best][state][x], other = v - table->of[f][state][x];
        best = other * other < one * one ? f : best;
    }
    return best;
}

void moec_shift_search(uint32_t bits, const float *weights, size_t n, float scale,
                       struct moec_shift_choices *choices, uint8_t *codes)
{
    struct table table;
    float costs[2][STATES];
    const uint32_t n_free = 1u << moec_shift_of(bits)->free_bits;
    list_levels(moec_shift_of(bits), &table);
    moec_path_begin(costs[0]);
    if (bits == 2)
        walk(&table, 1, weights, n, scale, costs, choices);
    else if (bits == 3)
        walk(&table, 2, weights, n, scale, costs, choices);
    else
        walk(&table, 4, weights, n, scale, costs, choices);
    uint32_t state = moec_path_least(costs[n % 2]);
    for (size_t i = n; i-- > 0;) {
        const uint32_t x = state & MOEC_SHIFT_CODED, oldest = choices[i].oldest[x] >> (state / 4 * 2) & 3;
        state = STATES / 4 * oldest + state / 4;
        codes[i] = (uint8_t)(x | nearest_free(&table, n_free, weights[i] / scale, state, x) << 2);
    }
}
