/* Shift-coded rows: a trellis of two, three or four bits a weight whose levels follow from the last bits of a
 * stream (Tseng et al., "QTIP", 2024, the bit-shift trellis; the codes here are of this project).
 *
 * Two bits of each weight are *coded*: they go into a stream. The eight newest bits of the stream, those of
 * the weight and of the three before it, are the weight's *window*: bits 7 and 6 its own, bit 6 the lower of
 * its two, down to bits 1 and 0 of the weight three before; bits before the row are 0. An exclusive or of
 * columns, one for each bit of the window that is 1, is a number of `coded_bits` bits. Bits that are not
 * coded, none, one or two of them, stand above it:
 *
 *     level = levels[free << coded_bits | exclusive or of columns[j] with bit j of the window]
 *     weight = F32(level) * F32(scale of the row)
 *
 * which F32 holds exactly, for a level is an integer of 8 bits. So each weight has 4, 8 or 16 levels to choose
 * from, but the three before choose which of 64 or 128, and an encoder that looks ahead has them all. The mean
 * squared error of a normal distribution is 0.0737, 0.0191 and 0.0049, that of the best 4, 8 and 16 levels
 * 0.1175, 0.0345 and 0.0095, and no code of as many bits has less than 0.0625, 0.0156 and 0.0039.
 *
 * Columns are the best of some hundred drawn by chance, of which the newest and the oldest two weigh most
 * (Ungerboeck, 1982: paths that part or meet differ widely), and levels are those of least squared error for
 * them (tests/tools/shift_codes.c). A level's negative is a level: levels[i] = -levels[last - i].
 *
 * A block of 32 weights is its free bits, of 3 bits a weight a little-endian u32 whose bit i is weight i's, of 4
 * bits 8 bytes as INT2's codes; then 8 bytes of coded bits, those of weight i at bits 2 (i mod 4) and above of
 * byte i / 4. So what goes before a block is the byte in front of it. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_SHIFT_H
#define MOEC_FORMATS_SHIFT_H

#include <stddef.h>
#include <stdint.h>

#define MOEC_SHIFT_STATES 64u  /* the coded bits of the last three weights, the newest lowest */
#define MOEC_SHIFT_MOST   128u /* levels at most */
#define MOEC_SHIFT_CODED  3u   /* of a weight's code: its coded bits; its free bits stand above them */
#define MOEC_SHIFT_GRAINS 8u   /* sizes of levels told apart: those of number i are 16 i to 16 i + 15 */

/* The code of some bits a weight. */
struct moec_shift {
    uint32_t n_levels, coded_bits, free_bits;
    float unit; /* about the scale of least error for weights of root mean square 1, normally distributed */
    float grains[MOEC_SHIFT_GRAINS]; /* log2 of the squared error among levels of each size, in levels */
    uint8_t columns[8];              /* by bit of the window */
    int8_t levels[MOEC_SHIFT_MOST];
    uint8_t low[16], high[16]; /* exclusive or of columns, for each half of a window */
};

/* bits: 2, 3 or 4. */
const struct moec_shift *moec_shift_of(uint32_t bits);

/* The number made of a window. */
static inline uint32_t moec_shift_place(const struct moec_shift *shift, uint32_t window)
{
    return shift->low[window & 15] ^ shift->high[window >> 4 & 15];
}

/* The window of a weight in state `state` with these coded bits: the newest bits of states stand lowest,
 * those of windows highest. */
static inline uint32_t moec_shift_window(uint32_t state, uint32_t coded)
{
    return coded << 6 | (state & 3) << 4 | (state & 12) | state >> 4;
}

static inline uint32_t moec_shift_next(uint32_t state, uint32_t coded)
{
    return (state << 2 | coded) & (MOEC_SHIFT_STATES - 1);
}

/* Bytes of a block of 32 weights, and of the free bits that it begins with. */
static inline size_t moec_shift_block_bytes(uint32_t bits)
{
    return 4 * (size_t)bits;
}

static inline size_t moec_shift_free_bytes(uint32_t bits)
{
    return 4 * (size_t)bits - 8;
}

/* Level of weight i of a row: row[0..) are its blocks. */
int moec_shift_level(uint32_t bits, const uint8_t *row, size_t i);

/* Levels of n codes, times nothing yet. */
void moec_shift_values(uint32_t bits, const uint8_t *codes, size_t n, float *values);

/* The scale at which the error of the best codes of n weights is foretold to be least; costs (n) is what the
 * squared error of each counts, of geometric mean 1, or NULL, 1 each. 0 for zeros, not finite where a weight
 * is not. Source: this project, docs/measured/codes.md. */
float moec_shift_scale(uint32_t bits, const float *weights, const float *costs, size_t n);

/* The codes (n) for which the sum of (weights[i] - level * scale)^2 is least (Viterbi's algorithm); scale is
 * above 0. `choices` (n) is scratch. */
struct moec_shift_choices {
    uint32_t
        oldest[4]; /* bits 2 g and above of element x: the oldest bits of the best state before 4 g + x */
};
void moec_shift_search(uint32_t bits, const float *weights, size_t n, float scale,
                       struct moec_shift_choices *choices, uint8_t *codes);

#endif
