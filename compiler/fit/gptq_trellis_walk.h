/* One output's paths by some weights on (compiler/fit/gptq_trellis.c) in vectors of WALK_LANES elements, 4, 8 or 16, by
 * an instruction set's own operations. Included once for each set, with WALK_LANES, TARGET (a function's attribute, or
 * nothing) and NAMED(name) defined, which are taken back. Every state sees the same operations in the same order, so
 * codes are the same. */
#include "formats/codec/path_spread.h"

typedef float NAMED(lanes) __attribute__((vector_size(WALK_LANES * sizeof(float))));
typedef uint32_t NAMED(lane_bits) __attribute__((vector_size(WALK_LANES * sizeof(uint32_t))));

#define VEC    NAMED(lanes)
#define BITS   NAMED(lane_bits)
#define PIECES (LANES / WALK_LANES) /* of the LANES weights of a part */

/* LESS(a, b) tells where a is less, and TAKEN(where, a, b) and TAKEN_BITS take b there, else a. */
#if WALK_LANES == 16
#define WHERE                   __mmask16
#define LESS(a, b)              _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define TAKEN(where, a, b)      _mm512_mask_mov_ps(a, where, b)
#define TAKEN_BITS(where, a, b) (BITS) _mm512_mask_mov_epi32((__m512i)(a), where, (__m512i)(b))
#elif WALK_LANES == 8
#define WHERE                   VEC
#define LESS(a, b)              _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define TAKEN(where, a, b)      _mm256_blendv_ps(a, b, where)
#define TAKEN_BITS(where, a, b) (BITS) _mm256_blendv_ps((VEC)(a), (VEC)(b), where)
#else
#define WHERE                   BITS
#define LESS(a, b)              (BITS)((a) < (b))
#define TAKEN(where, a, b)      (VEC) CHOSEN_BITS(where, (BITS)(a), (BITS)(b))
#define TAKEN_BITS(where, a, b) CHOSEN_BITS(where, a, b)
#endif

/* Element i of the vectors from `rows` on, one each. A scalar stored into a vector that is read next would stall it. */
#if WALK_LANES == 16
#define COLUMN_OF(rows, i)                                                                                   \
    {                                                                                                        \
        (rows)[0][i], (rows)[1][i], (rows)[2][i], (rows)[3][i], (rows)[4][i], (rows)[5][i], (rows)[6][i],    \
            (rows)[7][i], (rows)[8][i], (rows)[9][i], (rows)[10][i], (rows)[11][i], (rows)[12][i],           \
            (rows)[13][i], (rows)[14][i], (rows)[15][i]                                                      \
    }
#elif WALK_LANES == 8
#define COLUMN_OF(rows, i)                                                                                   \
    {                                                                                                        \
        (rows)[0][i], (rows)[1][i], (rows)[2][i], (rows)[3][i], (rows)[4][i], (rows)[5][i], (rows)[6][i],    \
            (rows)[7][i]                                                                                     \
    }
#else
#define COLUMN_OF(rows, i)                                                                                   \
    {                                                                                                        \
        (rows)[0][i], (rows)[1][i], (rows)[2][i], (rows)[3][i]                                               \
    }
#endif

/* Of a vector of states, each with the best of the steps to it. */
struct NAMED(best) {
    VEC cost, level;
    BITS start, code;
};

/* The best of the steps to each state of vector g from those before it, which stand by the oldest of their bits. */
TARGET static inline __attribute__((always_inline)) struct NAMED(best)
    NAMED(choose)(const struct paths *paths, const uint32_t n_free, uint32_t g, float price,
                  const VEC targets[static OLDEST], const VEC costs[static OLDEST],
                  const BITS starts[static OLDEST])
{
    struct NAMED(best) best = {0};
    _Pragma("GCC unroll 4") for (uint32_t o = 0; o < OLDEST; o++)
    {
        VEC level = ((const VEC *)paths->levels[0][o])[g];
        BITS code = {0};
        code += o;
        _Pragma("GCC unroll 4") for (uint32_t f = 1; f < n_free; f++)
        {
            const BITS above = code - code + (f << 2 | o);
            const WHERE is_above = LESS(((const VEC *)paths->middles[f - 1][o])[g], targets[o]);
            level = TAKEN(is_above, level, ((const VEC *)paths->levels[f][o])[g]);
            code = TAKEN_BITS(is_above, code, above);
        }
        const VEC off = targets[o] - level, cost = costs[o] + price * (off * off);
        if (o == 0) {
            best = (struct NAMED(best)){cost, level, starts[o], code};
            continue;
        }
        const WHERE is_less = LESS(cost, best.cost);
        best.cost = TAKEN(is_less, best.cost, cost);
        best.level = TAKEN(is_less, best.level, level);
        best.start = TAKEN_BITS(is_less, best.start, starts[o]);
        best.code = TAKEN_BITS(is_less, best.code, code);
    }
    return best;
}

/* Vector g of the states, q = g % 4. */
#define STEP_TO(g, q)                                                                                        \
    do {                                                                                                     \
        const VEC targets[OLDEST] = WALK_ALL_BEFORE(STATES, all_targets, g, q);                              \
        const VEC before[OLDEST] = WALK_ALL_BEFORE(STATES, costs, g, q);                                     \
        const BITS origins[OLDEST] = WALK_ALL_BEFORE(STATES, all_origins, g, q);                             \
        const struct NAMED(best) best = NAMED(choose)(paths, n_free, g, price, targets, before, origins);    \
        ((VEC *)paths->costs)[g] = best.cost;                                                                \
        ((BITS *)starts)[g] = best.start;                                                                    \
        ((VEC *)choices->errors)[g] = w - best.level;                                                        \
        ((BITS *)choices->froms)[g] = (best.code & 3) * (STATES / OLDEST) + fourths + WALK_LANES / 4 * (g);  \
        packed[(g) % PIECES] |= best.code << 8 * ((g) / PIECES);                                             \
    } while (0)

/* One weight on. */
TARGET static inline __attribute__((always_inline)) void
NAMED(step)(struct paths *paths, vec_bits starts[static PARTS], const uint32_t n_free, float w, float price,
            struct choices *choices, vec_bits *steps)
{
    const BITS fourths = WALK_FOURTHS;
    const VEC *all_targets = (const VEC *)paths->targets;
    VEC costs[WALK_PARTS(STATES)];
    BITS all_origins[WALK_PARTS(STATES)], packed[PIECES] = {{0}};
    _Pragma("GCC unroll 16") for (uint32_t g = 0; g < WALK_PARTS(STATES); g++)
    {
        costs[g] = ((const VEC *)paths->costs)[g];
        all_origins[g] = ((const BITS *)starts)[g];
    }
    for (uint32_t g = 0; g < WALK_PARTS(STATES); g += 4) {
        STEP_TO(g, 0);
        STEP_TO(g + 1, 1);
        STEP_TO(g + 2, 2);
        STEP_TO(g + 3, 3);
    }
    _Pragma("GCC unroll 4") for (uint32_t h = 0; h < PIECES; h++)((BITS *)steps)[h] = packed[h];
}

/* to = from + what the errors of a part make of the weights of a later one; from: NULL for 0. */
TARGET static inline __attribute__((always_inline)) void
NAMED(add_errors)(const vec *errors, const VEC *factors, const vec *from, vec *to)
{
    const float *error = (const float *)errors;
    VEC added[PIECES];
    _Pragma("GCC unroll 4") for (uint32_t h = 0; h < PIECES; h++) added[h] =
        from != NULL ? ((const VEC *)from)[h] : (VEC){0};
    _Pragma("GCC unroll 16") for (uint32_t k = 0; k < LANES; k++)
        _Pragma("GCC unroll 4") for (uint32_t h = 0; h < PIECES; h++) added[h] +=
        error[k] * factors[k * PIECES + h];
    _Pragma("GCC unroll 4") for (uint32_t h = 0; h < PIECES; h++)((VEC *)to)[h] = added[h];
}

/* Part t begins: what the errors of the parts before it make of its weights, of the block at work and the one before
 * it. Most paths share what is older than the last part, which is added up once for each state that was in between. */
TARGET static inline __attribute__((always_inline)) void NAMED(open_part)(const struct tile *tile,
                                                                          struct paths *paths, uint32_t t)
{
    const uint32_t part = t % BLOCK_PARTS;
    const VEC *factors = (const VEC *)(tile->arrays.factors[part] + (BLOCK_PARTS + part - 1) * LANES);
    VEC last[LANES * PIECES];
    const uint32_t *starts = (const uint32_t *)paths->starts[(t + 2) % KEPT],
                   *before = (const uint32_t *)paths->starts[(t + 1) % KEPT];
    uint64_t seen = 0;
    memcpy(last, factors, sizeof last);
    for (uint32_t s = 0; s < STATES; s++) {
        const uint32_t start = starts[s];
        if ((seen >> start & 1) != 0)
            continue;
        seen |= (uint64_t)1 << start;
        vec *sum = &tile->states.older[start];
        if (part > 0)
            NAMED(add_errors)
        (&paths->errors[t % KEPT][before[start]], factors - 2 * LANES * PIECES, NULL, sum);
        NAMED(add_errors)
        (&paths->errors[(t + 1) % KEPT][start], factors - LANES * PIECES, part > 0 ? sum : NULL, sum);
    }
    for (uint32_t s = 0; s < STATES; s++) {
        NAMED(add_errors)
        (&paths->errors[(t + 2) % KEPT][s], last, &tile->states.older[starts[s]],
         &paths->errors[t % KEPT][s]);
        ((uint32_t *)paths->starts[t % KEPT])[s] = s;
    }
}

/* Each state takes the errors and sums of the state before it: the error of the step in the place of weight i of the
 * part, its sum gone, and what it makes of those after it. */
TARGET static inline __attribute__((always_inline)) void NAMED(extend)(const struct choices *choices,
                                                                       uint32_t i, const vec *factors,
                                                                       const vec from[static STATES],
                                                                       vec next[static STATES])
{
    static const uint32_t places[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const float *errors = (const float *)choices->errors;
    const uint32_t *froms = (const uint32_t *)choices->froms;
    BITS stays[PIECES];
    VEC factor[PIECES];
    memcpy(factor, factors, sizeof factor);
    memcpy(stays, places, sizeof stays);
    for (uint32_t h = 0; h < PIECES; h++)
        stays[h] = (BITS)(stays[h] != i);
    _Pragma("GCC unroll 8") for (uint32_t s = 0; s < STATES; s++)
        _Pragma("GCC unroll 4") for (uint32_t h = 0; h < PIECES; h++)((VEC *)&next[s])[h] =
            (VEC)(((const BITS *)&from[froms[s]])[h] & stays[h]) + errors[s] * factor[h];
}

TARGET static inline __attribute__((always_inline)) void
NAMED(list_targets)(struct paths *paths, const vec *sums, uint32_t i, float base)
{
    for (uint32_t g = 0; g < WALK_PARTS(STATES); g++) {
        const vec *rows = sums + (size_t)g * WALK_LANES;
        const VEC column = COLUMN_OF(rows, i);
        ((VEC *)paths->targets)[g] = base + column;
    }
}

TARGET static inline __attribute__((always_inline)) void
NAMED(walk_any)(const struct tile *tile, const uint32_t n_free, uint32_t lane, uint32_t begin, uint32_t n)
{
    const struct encoding *e = tile->e;
    struct paths *paths = &tile->paths[lane];
    for (uint32_t first = 0; first < n; first += LANES) {
        const uint32_t t = (begin + first) / LANES, length = n - first < LANES ? n - first : LANES;
        vec *sums = paths->errors[t % KEPT], *next = tile->states.others;
        NAMED(open_part)(tile, paths, t);
        NAMED(list_targets)(paths, sums, 0, tile->arrays.bases[first][lane]);
        for (uint32_t k = 0; k < length; k++) {
            const uint32_t i = begin + first + k;
            vec *const last = sums;
            struct choices choices;
            NAMED(step)
            (paths, paths->starts[t % KEPT], n_free, tile->arrays.weights[i][lane],
             (float)(e->gptq->costs[i] / tile->largest), &choices, &paths->steps[i % WINDOW]);
            NAMED(extend)(&choices, k, &tile->arrays.factors[first / LANES][DECIDED + first + k], sums, next);
            if (k + 1 < length)
                NAMED(list_targets)(paths, next, k + 1, tile->arrays.bases[first + k + 1][lane]);
            sums = next;
            next = last;
        }
    }
}

TARGET static void NAMED(walk)(const struct tile *tile, uint32_t lane, uint32_t begin, uint32_t n)
{
    if (tile->shift->free_bits == 0)
        NAMED(walk_any)(tile, 1, lane, begin, n);
    else if (tile->shift->free_bits == 1)
        NAMED(walk_any)(tile, 2, lane, begin, n);
    else
        NAMED(walk_any)(tile, 4, lane, begin, n);
}

#undef VEC
#undef BITS
#undef PIECES
#undef WHERE
#undef LESS
#undef TAKEN
#undef TAKEN_BITS
#undef STEP_TO
#undef COLUMN_OF
#undef WALK_LANES
#undef TARGET
#undef NAMED
