/* What the vector sets share: shapes of the tiles, and where rows and their parts lie. */
#ifndef MOEC_RUNTIME_KERNELS_SHAPE_H
#define MOEC_RUNTIME_KERNELS_SHAPE_H

#include "formats/codec/shift.h"
#include "formats/codec/shift_levels.h"
#include "formats/codec/trellis.h"
#include "runtime/kernels/kernels.h"
#include "runtime/kernels/kernels_exp.h"

#include <string.h>

#ifndef INLINE /* a test compiles one body of each for all codecs, in a tenth of the time */
#define INLINE static inline __attribute__((always_inline))
#endif
#define LANES        MOEC_LANES
#define BLOCK        MOEC_CODEC_BLOCK
#define NEVER_INLINE __attribute__((noinline))
/* Loops with a constant count over arrays of registers are unrolled whole; else the arrays live in memory. */
#if defined(__clang__)
#define UNROLL       _Pragma("clang loop unroll(full)")
#define NO_UNROLL    _Pragma("clang loop unroll(disable)")
#define UNROLL_TWICE _Pragma("clang loop unroll_count(2)")
#else
#define UNROLL       _Pragma("GCC unroll 32")
#define NO_UNROLL    _Pragma("GCC unroll 1")
#define UNROLL_TWICE _Pragma("GCC unroll 2")
#endif

#define DOT_ROWS   8   /* rows of a tile of dot: the results of one token fill a 256-bit register of x86 */
#define DOT_TOKENS 3   /* tokens of a tile */
#define DOT_DEPTH  512 /* longest k of a tile: 11 rows of 2 KiB in the first-level cache */
#define DOT_CUT    128 /* tokens whose sums wait between the cuts */
#define SUM_TOKENS 6   /* tokens of a tile of a weighted sum */
#define SUM_WIDTH  128 /* columns of a chunk's rows that stay in the first-level cache */

#define LINE 64 /* bytes of a cache line */

/* Added to a dtype where codes stand for levels (formats/codec/dictionary.h), where the scales of groups are
 * bytes under a scale of the row, and where a block has two groups of 16, nested or not. */
#define DICTIONARY 16
#define NESTED     32
#define HALVES     64

/* Added to INT8 where codes have one scale a group, lie around 128 and a set reads each as the second byte of
 * the float LIFT + code, whose last place then counts 1/256. (LIFT + 128) * scale has 20 bits, so that what a
 * fused operation takes off again is exact, as for no other zero. */
#define LIFTED 256
#define LIFT   32768

/* Beside the dtypes, where codes are a path and the int8 arithmetic takes their levels for codes of eight bits:
 * a trellis, and shift codes with so many bits a weight added. */
#define TRELLIS        128
#define SHIFT          128
#define IS_PATH(dtype) ((dtype) >= TRELLIS)
#define BEFORE         8 /* bytes of the block before, which a span of a path needs */

/* dtype without them. */
#define PLAIN(dtype) ((dtype) & (DICTIONARY - 1))

/* Of the decoders of a block that of its second half. */
#define UPPER(dtype) ((dtype)&HALVES ? 1 : 0)

/* Rows of codes are read faster than the hardware's prefetchers follow, which have to learn each row anew, so
 * rows are asked for ahead of time, into the second-level cache: one line or so with each block, since a
 * burst takes the places of lines on their way from the rows at work. Asked for are AHEAD_WAYS rows at a
 * time, which lie on different pages where rows are long: prefetchers that follow a page each then run ahead
 * of all of them. On a Xeon of 2024, INT4 and INT8 with groups of 32, rows of 2048 weights, one core read 8.5
 * and 9.8 GB/s with bursts for the next rows, 9.5 and 11.2 with these; without any, 4.8. A distance of 8 KiB
 * or of 32 is hardly worse. What is asked for past the last row of a call belongs to the next call's rows. */
#define AHEAD_BYTES 16384
#define AHEAD_WAYS  4
#define WHOLE_LINE  256 /* what a line counts when lines are shared out among blocks */

/* Rows of a weighted sum that lie apart, each beside one of another matrix, are asked for twice as far ahead:
 * INT4 with groups of 32 was read at 25 GB/s on two cores in place of 22, two ways instead of four included.
 */
#define AHEAD_BATCHES 2

/* Rows of a weighted sum that follow each other come in one order, so that those at work are neighbours, and
 * the streams which prefetchers follow run ahead of them: while a region of about REGION_BYTES is at work the
 * next one is asked for, its parts at the same time, into the second-level cache, and the next CODE_ROWS rows
 * from there into the first. Two cores read INT8 and INT4 with groups of 32 at 33 and 28 GB/s in place of 29
 * and 25. */
#define REGION_BYTES   81920
#define REGION_ROWS    128
#define REGION_STREAMS 4

/* Rows of a dot with one token may come in any order, so those at work lie far from each other: each is one
 * of a stream that goes on behind it, which prefetchers follow, and asks for what comes STREAM_BYTES later.
 * In the first-level cache, since that is soon. INT8 with groups of 32 was read at 34 GB/s on two cores in
 * place of 27 with rows that are neighbours, in the int8 arithmetic at 28 in place of 24. */
#define STREAM_BYTES 2048

/* A range of k of DOT_ROWS rows of the weights. */
struct slice {
    const float *w[DOT_ROWS];
    size_t k;
};

/* Which rows of a matrix a call is for: first, first + 1 and on, or first + some[0], first + some[1] and on.
 */
struct chosen {
    uint32_t first, n;
    const uint8_t *some; /* (n) rising, or NULL */
};

INLINE uint32_t chosen_row(const struct chosen *chosen, uint32_t i)
{
    return chosen->first + (chosen->some != NULL ? chosen->some[i] : i);
}

/* Rows at work lie `gap` apart, each at the start of a stream of as many rows. The number of the row that the
 * stream of row i comes to `ahead` rows later; behind its end it goes on with the next call's. */
INLINE uint32_t stream_later(const struct chosen *chosen, uint32_t i, uint32_t gap, uint32_t ahead)
{
    const uint32_t later = i + ahead;
    return later < gap ? later : later + chosen->n - gap;
}

/* The row of a matrix of n_rows with that number; the last stands for those behind it. */
INLINE uint32_t stream_row(const struct chosen *chosen, uint32_t n_rows, uint32_t later)
{
    const uint32_t last = chosen->some != NULL ? chosen->n - 1 : n_rows - chosen->first - 1;
    return chosen_row(chosen, later < last ? later : last);
}

/* Asks for a line, for the second-level cache. */
INLINE void ask_line(const void *at)
{
    __builtin_prefetch(at, 0, 2);
}

/* The same for the first-level cache. */
INLINE void ask_line_soon(const void *at)
{
    __builtin_prefetch(at, 0, 3);
}

INLINE uint16_t load_u16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* A block of a trellis as bits of words, for sets that decode it so. */
struct trellis_bits {
    struct moec_trellis_words words;
    uint32_t upper; /* the free bits, which choose the upper four levels */
};

/* `before` has the coded bits of the block before, and then those of this one. */
INLINE struct trellis_bits trellis_bits_at(const uint8_t *at, uint32_t *before)
{
    uint32_t coded, upper;
    memcpy(&coded, at, sizeof coded);
    memcpy(&upper, at + sizeof coded, sizeof upper);
    const struct trellis_bits bits = {moec_trellis_words(coded, *before), upper};
    *before = coded;
    return bits;
}

/* TRELLIS, or SHIFT and the bits; 0 of other codecs. */
INLINE int path_of(struct moec_codec codec)
{
    return codec.scheme == MOEC_SCHEME_SHIFT     ? SHIFT + (int)moec_codec_bits(codec)
           : codec.scheme == MOEC_SCHEME_TRELLIS ? TRELLIS
                                                 : 0;
}

INLINE const uint8_t *row_at(const struct moec_matrix *matrix, uint32_t row)
{
    return matrix->data + (size_t)row * matrix->stride_bytes;
}

#endif
