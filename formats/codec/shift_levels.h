/* Made by tests/tools/shift_codes.c: columns, levels, exclusive ors of columns for both halves of a
 * window, and which of its bits each bit of these is made of, the lowest bit first
 * (formats/codec/shift.h). */
#ifndef MOEC_FORMATS_SHIFT_LEVELS_H
#define MOEC_FORMATS_SHIFT_LEVELS_H

/* clang-format off */
#define MOEC_SHIFT_2_COLUMNS 16, 32, 53, 45, 59, 33, 16, 32
#define MOEC_SHIFT_2_LEVELS \
    -127, -102, -85, -84, -74, -72, -67, -74, -50, -52, -50, -51, -44, -48, -42, -35, \
    -38, -33, -28, -29, -20, -24, -22, -23, -11, -12, -11, -13, -7, -7, -1, 4, \
    -4, 1, 7, 7, 13, 11, 12, 11, 23, 22, 24, 20, 29, 28, 33, 38, \
    35, 42, 48, 44, 51, 50, 52, 50, 74, 67, 72, 74, 84, 85, 102, 127
#define MOEC_SHIFT_2_LOW 0, 16, 32, 48, 53, 37, 21, 5, 45, 61, 13, 29, 24, 8, 56, 40
#define MOEC_SHIFT_2_HIGH 0, 59, 33, 26, 16, 43, 49, 10, 32, 27, 1, 58, 48, 11, 17, 42
#define MOEC_SHIFT_2_ROWS 0x3c100c1855be0000
#define MOEC_SHIFT_2_UNIT 0x1.4c031ap-6f
#define MOEC_SHIFT_2_GRAINS 5.834f, 6.830f, 7.461f, 7.461f, 8.234f, 10.634f, 13.034f, 13.034f

#define MOEC_SHIFT_3_COLUMNS 8, 16, 20, 2, 28, 31, 8, 16
#define MOEC_SHIFT_3_LEVELS \
    -127, -101, -85, -81, -69, -67, -64, -55, -54, -53, -47, -45, -40, -39, -37, -33, \
    -32, -31, -26, -25, -22, -19, -19, -15, -15, -13, -10, -9, -6, -4, -3, -1, \
    1, 3, 4, 6, 9, 10, 13, 15, 15, 19, 19, 22, 25, 26, 31, 32, \
    33, 37, 39, 40, 45, 47, 53, 54, 55, 64, 67, 69, 81, 85, 101, 127
#define MOEC_SHIFT_3_LOW 0, 8, 16, 24, 20, 28, 4, 12, 2, 10, 18, 26, 22, 30, 6, 14
#define MOEC_SHIFT_3_HIGH 0, 28, 31, 3, 8, 20, 23, 11, 16, 12, 15, 19, 24, 4, 7, 27
#define MOEC_SHIFT_3_ROWS 0x20283471b6000000
#define MOEC_SHIFT_3_UNIT 0x1.6f6c84p-6f
#define MOEC_SHIFT_3_GRAINS 3.427f, 4.830f, 4.297f, 7.230f, 7.230f, 8.634f, 11.034f, 11.034f

#define MOEC_SHIFT_4_COLUMNS 8, 16, 30, 2, 17, 7, 8, 16
#define MOEC_SHIFT_4_LEVELS \
    -127, -104, -90, -81, -75, -70, -68, -64, -59, -60, -58, -54, -52, -51, -50, -46, \
    -46, -43, -45, -42, -39, -38, -38, -37, -35, -34, -33, -32, -30, -30, -29, -28, \
    -27, -25, -25, -24, -23, -22, -21, -20, -19, -18, -17, -17, -16, -15, -13, -13, \
    -13, -12, -11, -10, -9, -8, -6, -6, -7, -6, -5, -3, -3, -1, 0, 0, \
    0, 0, 1, 3, 3, 5, 6, 7, 6, 6, 8, 9, 10, 11, 12, 13, \
    13, 13, 15, 16, 17, 17, 18, 19, 20, 21, 22, 23, 24, 25, 25, 27, \
    28, 29, 30, 30, 32, 33, 34, 35, 37, 38, 38, 39, 42, 45, 43, 46, \
    46, 50, 51, 52, 54, 58, 60, 59, 64, 68, 70, 75, 81, 90, 104, 127
#define MOEC_SHIFT_4_LOW 0, 8, 16, 24, 30, 22, 14, 6, 2, 10, 18, 26, 28, 20, 12, 4
#define MOEC_SHIFT_4_HIGH 0, 17, 7, 22, 8, 25, 15, 30, 16, 1, 23, 6, 24, 9, 31, 14
#define MOEC_SHIFT_4_ROWS 0x302c244596000000
#define MOEC_SHIFT_4_UNIT 0x1.99e438p-6f
#define MOEC_SHIFT_4_GRAINS 1.432f, 1.817f, 2.746f, 4.889f, 6.827f, 9.227f, 11.627f, 11.627f

/* clang-format on */

#endif
