/* The search of a row's path (formats/codec/shift.c) for vectors of WALK_LANES states, 4, 8 or 16, by an instruction
 * set's own operations. Included once for each set, with WALK_LANES, TARGET (a function's attribute, or nothing) and
 * NAMED(name) defined, which are taken back. Every state sees the same operations in the same order, so codes are the
 * same. */
#include "formats/codec/path_spread.h"

typedef float NAMED(vec) __attribute__((vector_size(WALK_LANES * sizeof(float))));
typedef uint32_t NAMED(bits) __attribute__((vector_size(WALK_LANES * sizeof(uint32_t))));

#define VEC   NAMED(vec)
#define BITS  NAMED(bits)
#define PARTS WALK_PARTS(STATES)

/* Where `other` is less than `cost` it takes its place, and `o` that of `oldest`. */
TARGET static inline __attribute__((always_inline)) void NAMED(take_lesser)(VEC *cost, BITS *oldest,
                                                                            VEC other, uint32_t o)
{
#if WALK_LANES == 16
    const __mmask16 is_less = _mm512_cmp_ps_mask(other, *cost, _CMP_LT_OQ);
    *cost = _mm512_min_ps(other, *cost); /* the second where they are equal */
    *oldest = (BITS)_mm512_mask_set1_epi32((__m512i)*oldest, is_less, (int)o);
#elif WALK_LANES == 8
    const VEC is_less = _mm256_cmp_ps(other, *cost, _CMP_LT_OQ);
    const BITS own = *oldest - *oldest + o;
    *cost = _mm256_min_ps(other, *cost); /* the second where they are equal */
    *oldest = (BITS)_mm256_blendv_ps((VEC)*oldest, (VEC)own, is_less);
#else
    const BITS is_less = (BITS)(other < *cost);
    *cost = (VEC)CHOSEN(is_less, (BITS)*cost, (BITS)other);
    *oldest = CHOSEN(is_less, *oldest, o);
#endif
}

/* The squared distance of v from the nearest of levels. */
TARGET static inline __attribute__((always_inline)) VEC NAMED(error_of)(const uint32_t n_free, float v,
                                                                        const float *levels, size_t stride)
{
    VEC error = v - *(const VEC *)levels;
    error *= error;
    _Pragma("GCC unroll 4") for (uint32_t f = 1; f < n_free; f++)
    {
        VEC other = v - *(const VEC *)(levels + f * stride);
        other *= other;
#if WALK_LANES == 16
        error = _mm512_min_ps(other, error);
#elif WALK_LANES == 8
        error = _mm256_min_ps(other, error);
#else
        error = (VEC)CHOSEN((BITS)(other < error), (BITS)error, (BITS)other);
#endif
    }
    return error;
}

#if WALK_LANES == 8
/* `turned` (TURNS) has the vector with element s in the place of s ^ t, t its number. */
TARGET static inline __attribute__((always_inline)) void NAMED(turn)(VEC v, VEC turned[static TURNS])
{
    const VEC far = _mm256_permute2f128_ps(v, v, 1);
    turned[0] = v;
    turned[1] = _mm256_permute_ps(v, 0xb1);
    turned[2] = _mm256_permute_ps(v, 0x4e);
    turned[3] = _mm256_permute_ps(v, 0x1b);
    turned[4] = far;
    turned[5] = _mm256_permute_ps(far, 0xb1);
    turned[6] = _mm256_permute_ps(far, 0x4e);
    turned[7] = _mm256_permute_ps(far, 0x1b);
}
#endif

/* The best of the steps to each state of part g: what a path costs with it, and the oldest bits of the state before,
 * whose costs `before` has by these bits. `least` has the errors by place where free bits leave so few that two
 * vectors of 16 hold them; for vectors of 8 they are turned. */
TARGET static inline __attribute__((always_inline)) void
NAMED(choose)(const struct table *table, const uint32_t n_free, float v, const VEC before[static OLDEST],
              uint32_t g, const VEC *least, VEC *cost, BITS *oldest)
{
    _Pragma("GCC unroll 4") for (uint32_t o = 0; o < OLDEST; o++)
    {
#if WALK_LANES == 16
        const VEC error =
            n_free == 1 ? NAMED(error_of)(1, v, table->of[0][o] + g * WALK_LANES, 0)
                        : (VEC)_mm512_permutex2var_ps(
                              least[0], *(const __m512i *)(table->places[o] + g * WALK_LANES), least[1]);
#elif WALK_LANES == 8
        const VEC error = n_free == 1 ? NAMED(error_of)(1, v, table->of[0][o] + g * WALK_LANES, 0)
                                      : least[table->turned[o][g]];
#else
        const VEC error = NAMED(error_of)(n_free, v, table->of[0][o] + g * WALK_LANES, OLDEST * STATES);
        (void)least;
#endif
        if (o == 0)
            *cost = before[o] + error;
        else
            NAMED(take_lesser)(cost, oldest, before[o] + error, o);
    }
}

/* The states of part g are reached from WALK_LANES / 4 states each of those that begin with the oldest bits o. */
#define STEP_TO(g, q)                                                                                        \
    do {                                                                                                     \
        const VEC before[OLDEST] = WALK_ALL_BEFORE(STATES, costs, g, q);                                     \
        BITS oldest = {0};                                                                                   \
        next[g] = (VEC){0};                                                                                  \
        NAMED(choose)(table, n_free, v, before, g, least, &next[g], &oldest);                                \
        chosen |= oldest << (2 * fourths + WALK_LANES / 2 * (g));                                            \
    } while (0)

/* One weight on. */
TARGET static inline __attribute__((always_inline)) void
NAMED(step)(const struct table *table, const uint32_t n_free, float v, const VEC costs[static PARTS],
            VEC next[static PARTS], struct moec_shift_choices *choices)
{
    const BITS fourths = WALK_FOURTHS;
    BITS chosen = {0};
#if WALK_LANES == 16
    VEC least[2] = {{0}};
    for (uint32_t half = 0; half < 2 && n_free > 1; half++)
        least[half] = NAMED(error_of)(n_free, v, table->by_place[0] + half * WALK_LANES, FEW_PLACES);
#elif WALK_LANES == 8
    VEC least[FEW_PLACES];
    for (uint32_t i = 0; i < FEW_PLACES && n_free > 1; i += TURNS)
        NAMED(turn)(NAMED(error_of)(n_free, v, table->by_turn[0] + i, FEW_PLACES), least + i);
#else
    const VEC *least = NULL;
#endif
    _Pragma("GCC unroll 4") for (uint32_t g = 0; g < PARTS; g += 4)
    {
        STEP_TO(g, 0);
        STEP_TO(g + 1, 1);
        STEP_TO(g + 2, 2);
        STEP_TO(g + 3, 3);
    }
#if WALK_LANES == 16
    chosen |= __builtin_shufflevector(chosen, chosen, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    chosen |= __builtin_shufflevector(chosen, chosen, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3);
#elif WALK_LANES == 8
    chosen |= __builtin_shufflevector(chosen, chosen, 4, 5, 6, 7, 0, 1, 2, 3);
#endif
    memcpy(choices->oldest, &chosen, sizeof choices->oldest);
}

TARGET static inline __attribute__((always_inline)) void
NAMED(walk_any)(const struct table *table, const uint32_t n_free, const float *weights, size_t n, float scale,
                float costs[2][STATES], struct moec_shift_choices *choices)
{
    for (size_t i = 0; i < n; i++) {
        NAMED(step)
        (table, n_free, weights[i] / scale, (const VEC *)costs[i % 2], (VEC *)costs[(i + 1) % 2],
         &choices[i]);
        if (i % SETTLED == SETTLED - 1)
            settle_costs(costs[(i + 1) % 2]);
    }
}

/* Choices before each of the weights, and the costs of all states before and behind the last. */
TARGET static void NAMED(walk)(const struct table *table, uint32_t n_free, const float *weights, size_t n,
                               float scale, float costs[2][STATES], struct moec_shift_choices *choices)
{
    if (n_free == 1)
        NAMED(walk_any)(table, 1, weights, n, scale, costs, choices);
    else if (n_free == 2)
        NAMED(walk_any)(table, 2, weights, n, scale, costs, choices);
    else
        NAMED(walk_any)(table, 4, weights, n, scale, costs, choices);
}

#undef VEC
#undef BITS
#undef PARTS
#undef STEP_TO
#undef WALK_LANES
#undef TARGET
#undef NAMED
