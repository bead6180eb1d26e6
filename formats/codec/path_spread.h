/* How the states of a path that lead on stand in vectors of WALK_LANES elements, 4, 8 or 16: each of the states before
 * leads to four, so elements are taken four times. To be included once for each number, which
 * takes back what was defined for the number before. */
#undef WALK_FOUR_TIMES
#undef WALK_SPREAD
#undef WALK_FOURTHS
#undef WALK_PARTS
#undef WALK_BEFORE
#undef WALK_ALL_BEFORE

#define WALK_FOUR_TIMES(i) i, i, i, i

/* WALK_SPREAD(v, q): elements (WALK_LANES / 4) q and on of a vector, each four times. */
#if WALK_LANES == 16
#define WALK_SPREAD(v, q)                                                                                    \
    __builtin_shufflevector(v, v, WALK_FOUR_TIMES(4 * (q)), WALK_FOUR_TIMES(4 * (q) + 1),                    \
                            WALK_FOUR_TIMES(4 * (q) + 2), WALK_FOUR_TIMES(4 * (q) + 3))
#define WALK_FOURTHS                                                                                         \
    {                                                                                                        \
        0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3                                                       \
    }
#elif WALK_LANES == 8
#define WALK_SPREAD(v, q)                                                                                    \
    __builtin_shufflevector(v, v, WALK_FOUR_TIMES(2 * (q)), WALK_FOUR_TIMES(2 * (q) + 1))
#define WALK_FOURTHS                                                                                         \
    {                                                                                                        \
        0, 0, 0, 0, 1, 1, 1, 1                                                                               \
    }
#else
#define WALK_SPREAD(v, q) __builtin_shufflevector(v, v, WALK_FOUR_TIMES(q))
#define WALK_FOURTHS                                                                                         \
    {                                                                                                        \
        0                                                                                                    \
    }
#endif

/* Vectors of n states, of which a quarter each begins with the same oldest bits; and the elements of them that lead to
 * the states of vector g, of those with the oldest bits o, where q is g % 4. */
#define WALK_PARTS(n)              ((n) / WALK_LANES)
#define WALK_BEFORE(n, v, g, q, o) WALK_SPREAD((v)[(o)*WALK_PARTS(n) / 4 + (g) / 4], q)
#define WALK_ALL_BEFORE(n, v, g, q)                                                                          \
    {                                                                                                        \
        WALK_BEFORE(n, v, g, q, 0), WALK_BEFORE(n, v, g, q, 1), WALK_BEFORE(n, v, g, q, 2),                  \
            WALK_BEFORE(n, v, g, q, 3)                                                                       \
    }
