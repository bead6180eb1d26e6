/* The int8 arithmetic (runtime/kernels/int8.h), written once for the vector sets over 16 floats (`lanes`),
 * 64 bytes (`words`) and the codes of a span (`codes`, whose half[h] holds the codes 32 b + 16 h + i at
 * 16 b + i). A set (runtime/kernels/int8/int8_avx2.h, ...) defines the primitives of runtime/kernels/lanes_*.h and
 * these, then includes runtime/kernels/int8/int8_set.h, which defines INT8_KERNELS(name), its table:
 *
 * words_load, words_store, words_zero, words_set(int32), words_and, words_or, words_top (of 32-bit integers),
 * words_sub; words_up(w, bits) and words_down(w, bits) shift 32-bit integers to the left and to the right
 *
 * words_store_low_bytes(at, w): the low bytes of the 32-bit integers
 *
 * words_of_lanes(v): to integers, ties to even; lanes_of_words; lanes_as_words and words_as_lanes: the bits
 *
 * words_quads(w, out): of four rows' bytes w[0..4) column by column: out[u], 32-bit integer 4 b + k, holds
 * the bytes 16 b + 4 u + k of w[0], w[1], w[2], w[3]
 *
 * spread_places(per_span): for words_spread(at, places) and lanes_spread(v, places), 32-bit integer and lane
 * i / (16 / per_span) of the first four, at each i; per_span is 1, 2 or 4
 *
 * blocks_store(f, out): lanes 4 b + k of f[u] to out[32 b + 4 u + k]
 *
 * lanes_of_packed(at, n, bits): n numbers of so many bits each, the first n lanes
 *
 * words_by_fours(w): 32-bit integer 4 b + r is the sum of integers 4 b .. 4 b + 3 of w[r]; words_totals(w): the
 * sum of all of w[r] as float r of four; lanes_by_fours(v, out): lane 4 l + r of out[k] is lane 4 l + k of v[r]; fours are four floats side by side, with the
 * operators of C: lanes_four(v, b) lanes 4 b .. 4 b + 3, fours_fma(a, b, c)
 *
 * codes_at(dtype, bytes, is_first): the codes of a whole span, the first of its row or one that has BEFORE
 * bytes of its row in front of it; nibbles_of(bytes): low and high half of each byte
 *
 * MIXES_HALVES(dtype): whether words_dot takes whole bytes for codes of 4 bits, so that the products of the
 * second half are had by a subtraction
 *
 * OFFSET(dtype) and words_dot(dtype, sums, codes, q): each 32-bit integer of sums plus four products of bytes
 * q with codes less OFFSET; words_sum_quads(sums, q): plus the four bytes alone
 *
 * HAS_QUADS, where a set takes shift codes of four rows apart at once, which saves words_quads: shift_quads(bits, at,
 * is_first, out) gives codes of a span of the rows at at[0..4) as words_quads does, columns in an order of the set;
 * shift_quads_products(bits, at, is_first, q, sums) multiplies them at once; shift_quads_order(sums) puts sums of them
 * into the order that words_quads has
 *
 * HAS_FOURTHS, where a set multiplies one token and rows of shift codes by int8_fourths.h
 *
 * codes_store(codes, less, at): the codes of a span less a number, TILE_OFFSET less OFFSET, in their order
 *
 * ROWS_OF_TILE rows are multiplied with a tile of tokens at once, whose sums are ROWS_OF_TILE registers. A
 * tile takes as long for one token as for 16, and is faster from MANY_TOKENS on */
#ifndef MOEC_RUNTIME_KERNELS_INT8_LANES_H
#define MOEC_RUNTIME_KERNELS_INT8_LANES_H

#include "formats/base/half.h"
#include "runtime/kernels/int8.h"
#include "runtime/kernels/lanes/kernels_shape.h"

#define SPAN   MOEC_INT8_SPAN
#define CHUNK  MOEC_SUM_CHUNK
#define QUADS  (CHUNK / 4)
#define GROUPS 64   /* of columns, whose rounded activations are held together */
#define PANEL  2048 /* columns of a chunk's sum that are held together */
#if !defined(HELD)
#define HELD 4 /* tokens whose rounded activations are held together */
#endif

/* Where the parts of a matrix's rows lie. */
struct plan {
    size_t columns;
    size_t whole;      /* spans */
    size_t tail_bytes; /* codes of an incomplete last span */
    size_t span_bytes;
    size_t step;                     /* bytes of a row for each of its spans */
    size_t groups, group;            /* group: 0 = channel */
    int per_span;                    /* groups of a span; 1 also where a group has many spans */
    size_t scales, zeros, row_bytes; /* offsets in a row */
    float unit;                      /* what the scales that are read are multiplied with */
    bool nested, has_zeros;
};

INLINE uint32_t bits_of(const int dtype)
{
    return dtype == MOEC_DTYPE_INT2   ? 2
           : dtype == MOEC_DTYPE_INT3 ? 3
           : dtype == MOEC_DTYPE_INT4 ? 4
           : dtype == MOEC_DTYPE_INT5 ? 5
           : dtype == MOEC_DTYPE_INT6 ? 6
                                      : 8;
}

static struct plan plan_of(const struct moec_matrix *matrix)
{
    const struct moec_codec codec = matrix->codec;
    const size_t n = matrix->columns, blocks = (n + BLOCK - 1) / BLOCK;
    const size_t block_bytes = 4 * (size_t)moec_codec_bits(codec);
    struct plan plan = {.columns = n, .whole = n / SPAN};
    plan.span_bytes = SPAN / BLOCK * block_bytes;
    plan.scales = blocks * block_bytes;
    plan.tail_bytes = plan.scales - plan.whole * plan.span_bytes;
    plan.groups = moec_codec_row_groups(codec, n);
    plan.group = codec.group;
    plan.per_span = codec.group == 0 ? 1 : SPAN / codec.group;
    plan.zeros = plan.scales + moec_codec_scales_bytes(codec, n);
    plan.row_bytes = moec_codec_row_bytes(codec, n);
    plan.step = (plan.row_bytes + moec_int8_spans(n) - 1) / moec_int8_spans(n);
    plan.nested = moec_scheme_is_nested((enum moec_scheme)codec.scheme);
    plan.has_zeros = moec_scheme_has_zeros((enum moec_scheme)codec.scheme);
    plan.unit = plan.nested ? 0x1p-8f : codec.scheme == MOEC_SCHEME_TRELLIS ? MOEC_INT8_TRELLIS_STEP : 1.0f;
    return plan;
}

/* What the bytes of a row's scales are multiplied with, where scales are nested; else the first scale. */
INLINE float row_factor(const struct plan *plan, const uint8_t *row)
{
    return f16_at(row + plan->scales) * plan->unit;
}

/* The one zero, less OFFSET, of a row without groups. */
INLINE int row_zero(const int dtype, const struct plan *plan, const uint8_t *row)
{
    const int zero = row[plan->zeros];
    return (plan->nested ? zero & ((1 << bits_of(dtype)) - 1) : zero) - OFFSET(dtype);
}

/* Scales, and zeros less OFFSET, of 16 groups from g on; 0 for those past the row's end. */
INLINE lanes scales_at(const struct plan *plan, const uint8_t *row, float factor, size_t g)
{
    const size_t left = g < plan->groups ? plan->groups - g : 0, n = left < LANES ? left : LANES;
    if (n == 0)
        return lanes_zero();
    return plan->nested ? lanes_mul(lanes_of_bytes(row + plan->scales + 2 + g, n), lanes_set(factor))
                        : lanes_of_halves(row + plan->scales + 2 * g, n);
}

INLINE lanes zeros_at(const int dtype, const struct plan *plan, const uint8_t *row, size_t g)
{
    const size_t left = g < plan->groups ? plan->groups - g : 0, n = left < LANES ? left : LANES;
    const uint8_t *zeros = row + plan->zeros;
    const uint32_t bits = bits_of(dtype);
    return lanes_sub(plan->nested ? lanes_of_packed(zeros + g * bits / 8, n, bits)
                                  : lanes_of_bytes(zeros + g, n),
                     lanes_set((float)OFFSET(dtype)));
}

/* ---- rounding ---- */

INLINE lanes magnitudes_top(lanes top, lanes v)
{
    return words_as_lanes(
        words_top(lanes_as_words(top), words_and(lanes_as_words(v), words_set(0x7fffffff))));
}

INLINE words rounded(lanes v, lanes inverse)
{
    v = lanes_min(lanes_mul(v, inverse), lanes_set(127.0f));
    return words_of_lanes(lanes_max(v, lanes_set(-127.0f)));
}

INLINE float inverse_of(float top)
{
    return top > MOEC_INT8_SMALL ? 127.0f / top : 0.0f;
}

/* The largest of 16 magnitudes, as bits. */
INLINE float magnitude_of(lanes top)
{
    uint32_t bits[LANES], most = 0;
    words_store(bits, lanes_as_words(top));
    for (int i = 0; i < LANES; i++)
        most = bits[i] > most ? bits[i] : most;
    return moec_f32_from_bits(most);
}

/* An incomplete last span, with zeros past its end and what it may need before it. */
INLINE const uint8_t *tail_copied(const int dtype, const struct plan *plan, const uint8_t *at,
                                  const bool is_first, uint8_t copy[static BEFORE + SPAN])
{
    memset(copy, 0, BEFORE + SPAN);
    memcpy(copy + BEFORE, at, plan->tail_bytes);
    if (IS_PATH(dtype) && !is_first)
        memcpy(copy, at - BEFORE, BEFORE);
    return copy + BEFORE;
}

/* ---- by codec ---- */

/* Each codec has a function of its own: in one for all, GCC's passes over registers take twice as long. */

#define UNPACKED(...) __VA_ARGS__
/* clang-format off */
#define OF_DTYPES(macro, ...)                                                                                \
    macro(int2, MOEC_DTYPE_INT2, __VA_ARGS__)                                                                \
    macro(int3, MOEC_DTYPE_INT3, __VA_ARGS__)                                                                \
    macro(int4, MOEC_DTYPE_INT4, __VA_ARGS__)                                                                \
    macro(int5, MOEC_DTYPE_INT5, __VA_ARGS__)                                                                \
    macro(int6, MOEC_DTYPE_INT6, __VA_ARGS__)                                                                \
    macro(int8, MOEC_DTYPE_INT8, __VA_ARGS__)

/* Of codes that are a path, which have dtypes of their own here. */
#define OF_PATHS(macro, ...)                                                                                 \
    macro(trellis, TRELLIS, __VA_ARGS__)                                                                     \
    macro(shift2, SHIFT + 2, __VA_ARGS__)                                                                    \
    macro(shift3, SHIFT + 3, __VA_ARGS__)                                                                    \
    macro(shift4, SHIFT + 4, __VA_ARGS__)
/* clang-format on */

#define OWN(name, dtype, function, parameters, arguments)                                                    \
    static NEVER_INLINE void function##_##name parameters                                                    \
    {                                                                                                        \
        function(dtype, UNPACKED arguments);                                                                 \
    }
#define OWN_PLAIN(name, dtype, function, parameters, arguments)                                              \
    static NEVER_INLINE void function##_##name parameters                                                    \
    {                                                                                                        \
        function(dtype, false, UNPACKED arguments);                                                          \
    }
#define OWN_ZEROS(name, dtype, function, parameters, arguments)                                              \
    static NEVER_INLINE void function##_zeros_##name parameters                                              \
    {                                                                                                        \
        function(dtype, true, UNPACKED arguments);                                                           \
    }
#define CASE_OF(name, dtype, function, arguments)                                                            \
    case dtype:                                                                                              \
        function##_##name arguments;                                                                         \
        break;
#define SWITCH_OF(value, set, function, arguments)                                                           \
    switch (value) {                                                                                         \
    default:                                                                                                 \
        break;                                                                                               \
        set(CASE_OF, function, arguments)                                                                    \
    }

/* Defines function_any(parameters), which calls function(dtype, arguments) with the matrix's dtype as a constant. Both
 * lists are in parentheses, and `matrix` is one of the parameters. */
#define FOR_ANY_DTYPE(function, parameters, arguments)                                                       \
    OF_PATHS(OWN, function, parameters, arguments)                                                           \
    OF_DTYPES(OWN, function, parameters, arguments)                                                          \
    static void function##_any parameters                                                                    \
    {                                                                                                        \
        if (path_of(matrix->codec) != 0)                                                                     \
            SWITCH_OF(path_of(matrix->codec), OF_PATHS, function, arguments)                                 \
        else                                                                                                 \
            SWITCH_OF(matrix->codec.dtype, OF_DTYPES, function, arguments)                                   \
    }

/* The same with function(dtype, has_zeros, arguments) and both as constants. */
#define FOR_ANY_CODEC(function, parameters, arguments)                                                       \
    OF_PATHS(OWN_PLAIN, function, parameters, arguments)                                                     \
    OF_DTYPES(OWN_PLAIN, function, parameters, arguments)                                                    \
    OF_DTYPES(OWN_ZEROS, function, parameters, arguments)                                                    \
    static void function##_any parameters                                                                    \
    {                                                                                                        \
        if (path_of(matrix->codec) != 0)                                                                     \
            SWITCH_OF(path_of(matrix->codec), OF_PATHS, function, arguments)                                 \
        else if (moec_scheme_has_zeros((enum moec_scheme)matrix->codec.scheme))                              \
            SWITCH_OF(matrix->codec.dtype, OF_DTYPES, function##_zeros, arguments)                           \
        else                                                                                                 \
            SWITCH_OF(matrix->codec.dtype, OF_DTYPES, function, arguments)                                   \
    }

#endif
