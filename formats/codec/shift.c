/* The Viterbi search of shift codes. A state is the coded bits of the last three weights, and a step appends
 * two. Each state has four before it, which differ in their oldest bits; the cheapest is kept. A step costs
 * the distance to the nearest level among its free bits, which are chosen on the way back. All instruction
 * sets find the same codes, ties included. */
#include "formats/codec/shift.h"

#include <pthread.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define STATES MOEC_SHIFT_STATES
#define BLOCK  32
#define FREE   4 /* levels at most that the same coded bits leave */

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

#define OLDEST     4u  /* what the oldest bits of a state may be: as many states come before each */
#define FEW_PLACES 32u /* of codes with free bits */
#define TURNS      8u  /* of a vector of 8: places of its states are those of another's, in another order */

/* b where the mask is set, else a. */
#define CHOSEN(mask, a, b) (((a) & ~(mask)) | ((b) & (mask)))

/* Levels of the steps to each state, by free bits and by the oldest bits of the state before; and where there are free
 * bits, the steps' places, and levels by place. Places are exclusive ors of columns, so those of eight states that
 * follow each other are those of the first eight, each exclusively or'ed with the same number. Numbers that differ by
 * the place of state t give the same eight places in other orders: that of state s is then in element s ^ t. So four
 * vectors have all levels, and a step's are vector `turned` / TURNS with its elements turned by `turned` % TURNS. */
struct table {
    _Alignas(64) float of[FREE][OLDEST][STATES];
    _Alignas(64) float by_place[FREE][FEW_PLACES], by_turn[FREE][FEW_PLACES];
    _Alignas(64) uint32_t places[OLDEST][STATES];
    uint8_t turned[OLDEST][STATES / TURNS];
};

static void list_levels(const struct moec_shift *shift, struct table *table)
{
    for (uint32_t f = 0; f < 1u << shift->free_bits; f++) {
        const int8_t *levels = shift->levels + (f << shift->coded_bits);
        for (uint32_t o = 0; o < OLDEST; o++)
            for (uint32_t s = 0; s < STATES; s++) {
                const uint32_t window = moec_shift_window(STATES / OLDEST * o + s / 4, s & MOEC_SHIFT_CODED);
                table->places[o][s] = moec_shift_place(shift, window);
                table->of[f][o][s] = (float)levels[table->places[o][s]];
            }
        for (uint32_t place = 0; place < FEW_PLACES; place++)
            table->by_place[f][place] = (float)levels[place];
    }
}

/* After list_levels, of codes with free bits. */
static void list_turns(const struct moec_shift *shift, struct table *table)
{
    uint8_t turned[FEW_PLACES];
    uint32_t n = 0;
    memset(turned, FEW_PLACES, sizeof turned);
    for (uint32_t o = 0; o < OLDEST; o++)
        for (uint32_t g = 0; g < STATES / TURNS; g++) {
            const uint32_t first = table->places[o][g * TURNS];
            if (turned[first] == FEW_PLACES) {
                for (uint32_t t = 0; t < TURNS; t++) {
                    const uint32_t place = first ^ table->places[0][t];
                    turned[place] = (uint8_t)(n * TURNS + t);
                    for (uint32_t f = 0; f < 1u << shift->free_bits; f++)
                        table->by_turn[f][n * TURNS + t] = table->by_place[f][place];
                }
                n++;
            }
            table->turned[o][g] = turned[first];
        }
}

/* Of 2, 3 and 4 bits: listing them takes as long as the search of thirty weights, and rows are short. */
static struct table tables[3];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void list_tables(void)
{
    for (uint32_t i = 0; i < 3; i++) {
        list_levels(&shifts[i], &tables[i]);
        if (shifts[i].free_bits > 0)
            list_turns(&shifts[i], &tables[i]);
    }
}

static const struct table *table_of(uint32_t bits)
{
    (void)pthread_once(&tables_once, list_tables);
    return &tables[bits - 2];
}

/* ---- costs of the states ---- */

#define SETTLED 32 /* weights after which costs are counted from the least again, or F32 would lose them */

/* Rows begin with bits of 0. */
static void begin_costs(float costs[static STATES])
{
    for (uint32_t s = 0; s < STATES; s++)
        costs[s] = s == 0 ? 0 : 1e30f;
}

static uint32_t least_cost(const float costs[static STATES])
{
    uint32_t best = 0;
    for (uint32_t s = 1; s < STATES; s++)
        best = costs[s] < costs[best] ? s : best;
    return best;
}

static void settle_costs(float costs[static STATES])
{
    const float least = costs[least_cost(costs)];
    for (uint32_t s = 0; s < STATES; s++)
        costs[s] -= least;
}

#define WALK_LANES 4
#define TARGET
#define NAMED(name) name##_plain
#include "formats/codec/shift_walk.h"

#ifdef __x86_64__
#define WALK_LANES  8
#define TARGET      __attribute__((target("avx2")))
#define NAMED(name) name##_avx2
#include "formats/codec/shift_walk.h"

#define WALK_LANES  16
#define TARGET      __attribute__((target("avx512f")))
#define NAMED(name) name##_avx512
#include "formats/codec/shift_walk.h"
#endif

static void walk(const struct table *table, uint32_t n_free, const float *weights, size_t n, float scale,
                 float costs[2][STATES], struct moec_shift_choices *choices)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f"))
        walk_avx512(table, n_free, weights, n, scale, costs, choices);
    else if (__builtin_cpu_supports("avx2"))
        walk_avx2(table, n_free, weights, n, scale, costs, choices);
    else
#endif
        walk_plain(table, n_free, weights, n, scale, costs, choices);
}

/* That of a window, which begins in `state`. */
static float level_of(const struct table *table, uint32_t free_bits, uint32_t state, uint32_t coded)
{
    return table->of[free_bits][state / (STATES / OLDEST)][moec_shift_next(state, coded)];
}

static uint32_t nearest_free(const struct table *table, uint32_t n_free, float v, uint32_t state, uint32_t x)
{
    uint32_t best = 0;
    for (uint32_t f = 1; f < n_free; f++) {
        const float one = v - level_of(table, best, state, x), other = v - level_of(table, f, state, x);
        best = other * other < one * one ? f : best;
    }
    return best;
}

void moec_shift_search(uint32_t bits, const float *weights, size_t n, float scale,
                       struct moec_shift_choices *choices, uint8_t *codes)
{
    const struct table *table = table_of(bits);
    _Alignas(64) float costs[2][STATES];
    const uint32_t n_free = 1u << moec_shift_of(bits)->free_bits;
    begin_costs(costs[0]);
    walk(table, n_free, weights, n, scale, costs, choices);
    uint32_t state = least_cost(costs[n % 2]);
    for (size_t i = n; i-- > 0;) {
        const uint32_t x = state & MOEC_SHIFT_CODED, oldest = choices[i].oldest[x] >> (state / 4 * 2) & 3;
        state = STATES / 4 * oldest + state / 4;
        codes[i] = (uint8_t)(x | nearest_free(table, n_free, weights[i] / scale, state, x) << 2);
    }
}
