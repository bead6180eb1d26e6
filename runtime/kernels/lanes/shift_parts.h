/* What nibbles of coded bits add to the numbers of shift codes' levels (formats/codec/shift.h).
 *
 * Byte i of the coded bits is of weights 4 i to 4 i + 3, whose windows lie in it and in the byte before. Windows need
 * not be cut out: a number is the exclusive or of what each bit of its window adds, so tables by nibble give what both
 * bytes add to the number of each weight. For 64 weights, that is 16 bytes and the bytes before each, it takes ten
 * lookups and six exclusive ors. */
#ifndef MOEC_RUNTIME_SHIFT_PARTS_H
#define MOEC_RUNTIME_SHIFT_PARTS_H

#include "runtime/kernels/lanes/kernels_shape.h"

typedef uint8_t shift_bytes __attribute__((vector_size(16)));

/* Which bits of a window a nibble is: 4 to 7, 0 to 3, with its lower two bits 6 and 7, 2 to 5, with its upper two 0
 * and 1. */
enum shift_part { SHIFT_UPPER, SHIFT_LOWER, SHIFT_NEWEST, SHIFT_MIDDLE, SHIFT_OLDEST };

/* Exclusive ors for the low and the high nibble of a window. */
INLINE shift_bytes shift_low_half(const uint32_t bits)
{
    return bits == 2   ? (shift_bytes){MOEC_SHIFT_2_LOW}
           : bits == 3 ? (shift_bytes){MOEC_SHIFT_3_LOW}
                       : (shift_bytes){MOEC_SHIFT_4_LOW};
}

INLINE shift_bytes shift_high_half(const uint32_t bits)
{
    return bits == 2   ? (shift_bytes){MOEC_SHIFT_2_HIGH}
           : bits == 3 ? (shift_bytes){MOEC_SHIFT_3_HIGH}
                       : (shift_bytes){MOEC_SHIFT_4_HIGH};
}

/* By nibble what it adds as that part, from what nibbles add as halves of a window. */
INLINE shift_bytes shift_part_of(const enum shift_part part, shift_bytes low, shift_bytes high)
{
    switch (part) {
    case SHIFT_UPPER:
        return high;
    case SHIFT_LOWER:
        return low;
    case SHIFT_NEWEST:
        return __builtin_shufflevector(high, high, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    case SHIFT_MIDDLE:
        return __builtin_shufflevector(high, high, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3) ^
               __builtin_shufflevector(low, low, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    default:
        return __builtin_shufflevector(low, low, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    }
}

#endif
