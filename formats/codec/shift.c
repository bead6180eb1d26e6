#include "formats/codec/shift.h"

#include "formats/base/bytes.h"
#include "formats/codec/path_costs.h"
#include "formats/codec/path_lanes.h"
#include "formats/codec/shift_search.h"

#include <string.h>

#define STATES MOEC_SHIFT_STATES
#define BLOCK  32
#define FREE   4u /* levels at most that the same coded bits leave */
#define OLDEST 4u /* states before that lead to a state */
#define LANES  MOEC_PATH_LANES
#define PARTS  (STATES / LANES)

#include "formats/codec/shift_levels.h"

#define OF_BITS(bits, of_level, of_window, of_code)                                                          \
    {                                                                                                        \
        .n_levels = (of_level), .coded_bits = (of_window), .free_bits = (of_code),                           \
        .unit = MOEC_SHIFT_##bits##_UNIT, .grains = {MOEC_SHIFT_##bits##_GRAINS},                            \
        .columns = {MOEC_SHIFT_##bits##_COLUMNS}, .levels = {MOEC_SHIFT_##bits##_LEVELS},                    \
        .low = {MOEC_SHIFT_##bits##_LOW}, .high = {                                                          \
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

/* A row to encode. */
struct row {
    const float *weights; /* (n) */
    size_t n;
    float scale;
    struct moec_shift_choices *choices; /* (n) */
};

/* Of the step to each state, by its free bits and the oldest bits of the state before. */
struct table {
    _Alignas(64) float of[FREE][OLDEST][STATES];
};

static void list_levels(const struct moec_shift *shift, struct table *table)
{
    for (uint32_t f = 0; f < 1u << shift->free_bits; f++)
        for (uint32_t o = 0; o < OLDEST; o++)
            for (uint32_t s = 0; s < STATES; s++) {
                const uint32_t from = STATES / OLDEST * o + s / OLDEST;
                const uint32_t place = moec_shift_place(shift, moec_shift_window(from, s & MOEC_SHIFT_CODED));
                table->of[f][o][s] = (float)shift->levels[f << shift->coded_bits | place];
            }
}

/* ---- four states at a time ---- */

/* One weight on: states 4 g .. 4 g + 3 are reached from the states 16 o + g, o the oldest of bits. */
static inline __attribute__((always_inline)) void step(const struct table *table, const uint32_t n_free,
                                                       float v, const float costs[static STATES],
                                                       float next[static STATES],
                                                       struct moec_shift_choices *choices)
{
    moec_four_masks chosen[LANES / 4] = {0};
    for (uint32_t g = 0; g < STATES / 4; g++) {
        moec_four least = {0};
        moec_four_masks which = {0};
        for (uint32_t o = 0; o < OLDEST; o++) {
            moec_four level;
            moec_four_masks is_second;
            memcpy(&level, &table->of[0][o][4 * g], sizeof level);
            moec_four error = (v - level) * (v - level);
            for (uint32_t f = 1; f < n_free; f++) {
                memcpy(&level, &table->of[f][o][4 * g], sizeof level);
                error = moec_four_lesser(error, (v - level) * (v - level), &is_second);
            }
            error += costs[STATES / OLDEST * o + g];
            least = o == 0 ? error : moec_four_lesser(least, error, &is_second);
            which = o == 0 ? which : (which & ~is_second) | (is_second & (int32_t)o);
        }
        memcpy(next + 4 * g, &least, sizeof least);
        chosen[g % (LANES / 4)] |= (moec_four_masks)(which << (int32_t)(g / (LANES / 4) * 2));
    }
    for (uint32_t q = 0; q < LANES / 4; q++) {
        const moec_four_bytes bytes = __builtin_convertvector(chosen[q], moec_four_bytes);
        memcpy(choices->oldest + 4 * q, &bytes, sizeof bytes);
    }
}

static inline __attribute__((always_inline)) void walk(const struct table *table, const uint32_t n_free,
                                                       const struct row *row, float costs[static STATES])
{
    float others[STATES];
    for (size_t i = 0; i < row->n; i++) {
        float *from = i % 2 == 0 ? costs : others, *to = i % 2 == 0 ? others : costs;
        step(table, n_free, row->weights[i] / row->scale, from, to, &row->choices[i]);
        if (i % MOEC_PATH_SETTLED == MOEC_PATH_SETTLED - 1)
            moec_path_settle(to);
    }
    if (row->n % 2 != 0)
        memcpy(costs, others, sizeof others);
}

static void walk_narrow(const struct table *table, uint32_t bits, const struct row *row,
                        float costs[static STATES])
{
    if (bits == 2)
        walk(table, 1, row, costs);
    else if (bits == 3)
        walk(table, 2, row, costs);
    else
        walk(table, 4, row, costs);
}

/* ---- sixteen states at a time: the same choices ---- */

#if MOEC_HAS_WIDE
#define WIDE __attribute__((target("avx512f")))

/* Of states 16 h .. 16 h + 15, reached from the states 16 o + 4 h .. 16 o + 4 h + 3; `before` is these states'
 * costs. */
WIDE static inline __attribute__((always_inline)) void find_least(const struct table *table,
                                                                  const uint32_t n_free, float v,
                                                                  const moec_lanes before[OLDEST], uint32_t h,
                                                                  moec_lanes *cost_of, moec_lane_bits *oldest)
{
    moec_lanes best = {0};
    moec_lane_bits chosen = {0};
    for (uint32_t o = 0; o < OLDEST; o++) {
        const moec_lanes off = v - *(const moec_lanes *)&table->of[0][o][LANES * h];
        moec_lanes error = off * off;
        for (uint32_t f = 1; f < n_free; f++) {
            const moec_lanes other = v - *(const moec_lanes *)&table->of[f][o][LANES * h],
                             square = other * other;
            error = MOEC_CHOSEN((moec_lane_bits)(square < error), error, square);
        }
        const moec_lanes cost = before[o] + error;
        const moec_lane_bits is_less = (moec_lane_bits)(cost < best), which = o + (moec_lane_bits){0};
        chosen = o == 0 ? which : MOEC_CHOSEN_BITS(is_less, chosen, which);
        best = o == 0 ? cost : MOEC_CHOSEN(is_less, best, cost);
    }
    *oldest |= chosen << 2 * h;
    *cost_of = best;
}

#define LIST_BEFORE(costs, h, before)                                                                        \
    for (uint32_t o = 0; o < OLDEST; o++)                                                                    \
        (before)[h][o] = MOEC_SPREAD((costs)[o], h);

WIDE static inline __attribute__((always_inline)) void walk_lanes(const struct table *table,
                                                                  const uint32_t n_free,
                                                                  const struct row *row,
                                                                  moec_lanes costs[static PARTS])
{
    for (size_t i = 0; i < row->n; i++) {
        const float v = row->weights[i] / row->scale;
        moec_lanes before[PARTS][OLDEST];
        moec_lane_bits oldest = {0};
        LIST_BEFORE(costs, 0, before)
        LIST_BEFORE(costs, 1, before)
        LIST_BEFORE(costs, 2, before)
        LIST_BEFORE(costs, 3, before)
        for (uint32_t h = 0; h < PARTS; h++)
            find_least(table, n_free, v, before[h], h, &costs[h], &oldest);
        const moec_lane_bytes bytes = __builtin_convertvector(oldest, moec_lane_bytes);
        memcpy(row->choices[i].oldest, &bytes, sizeof bytes);
        if (i % MOEC_PATH_SETTLED == MOEC_PATH_SETTLED - 1)
            moec_path_settle((float *)costs);
    }
}

WIDE static void walk_wide(const struct table *table, uint32_t bits, const struct row *row,
                           float costs[static STATES])
{
    moec_lanes *lanes = (moec_lanes *)(void *)costs;
    if (bits == 2)
        walk_lanes(table, 1, row, lanes);
    else if (bits == 3)
        walk_lanes(table, 2, row, lanes);
    else
        walk_lanes(table, 4, row, lanes);
}
#endif

/* ---- the path ---- */

/* The free bits of the level nearest to v on the step to a state. */
static uint32_t nearest_free(const struct table *table, uint32_t n_free, float v, uint32_t oldest,
                             uint32_t state)
{
    uint32_t best = 0;
    for (uint32_t f = 1; f < n_free; f++) {
        const float one = v - table->of[best][oldest][state], other = v - table->of[f][oldest][state];
        best = other * other < one * one ? f : best;
    }
    return best;
}

bool moec_shift_search_in(uint32_t lanes, uint32_t bits, const float *weights, size_t n, float scale,
                          struct moec_shift_choices *choices, uint8_t *codes)
{
    struct table table;
    _Alignas(64) float costs[STATES];
    const struct row row = {weights, n, scale, choices};
    const uint32_t n_free = 1u << moec_shift_of(bits)->free_bits;
    list_levels(moec_shift_of(bits), &table);
    moec_path_begin(costs);
    if (lanes != LANES)
        walk_narrow(&table, bits, &row, costs);
#if MOEC_HAS_WIDE
    else if (__builtin_cpu_supports("avx512f"))
        walk_wide(&table, bits, &row, costs);
#endif
    else
        return false;
    uint32_t state = moec_path_least(costs);
    for (size_t i = n; i-- > 0;) {
        const uint32_t oldest = choices[i].oldest[state % LANES] >> 2 * (state / LANES) & 3;
        codes[i] = (uint8_t)((state & MOEC_SHIFT_CODED) |
                             nearest_free(&table, n_free, weights[i] / scale, oldest, state) << 2);
        state = STATES / OLDEST * oldest + state / OLDEST;
    }
    return true;
}

void moec_shift_search(uint32_t bits, const float *weights, size_t n, float scale,
                       struct moec_shift_choices *choices, uint8_t *codes)
{
    if (!moec_shift_search_in(LANES, bits, weights, n, scale, choices, codes))
        (void)moec_shift_search_in(4, bits, weights, n, scale, choices, codes);
}
