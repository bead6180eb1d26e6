/* Finds the columns and levels of shift codes (formats/codec/shift.h) and prints them as
 * formats/codec/shift_levels.h:
 *
 *     build/tools/shift_codes 500 > formats/codec/shift_levels.h
 *
 * Of so many columns drawn by chance, those whose levels leave the least squared error of numbers with a
 * normal distribution are kept. Levels are trained in turns: the best path through the trellis for the
 * numbers, then each level the mean of the numbers that took it (Lloyd, 1957), made symmetric. The error that
 * standard error shows is that of other numbers, with levels rounded to 8 bits. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATES  64
#define WINDOWS 256
#define LEVELS  128
#define MOST    200000
#define KEPT    6
#define GRAINS  8

struct code {
    int bits, coded_bits, n_free, n_levels;
    uint8_t columns[8]; /* by bit of the window, the oldest bit lowest */
    float levels[LEVELS];
    double error;
};

/* ---- numbers ---- */

static uint64_t seed = 88172645463325252u;

static uint64_t draw(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static void draw_normal(float *numbers, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const double u = ((double)(draw() >> 11) + 0.5) * 0x1p-53, v = (double)(draw() >> 11) * 0x1p-53;
        numbers[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
}

/* The number below which this share of a normal distribution lies. */
static double quantile(double share)
{
    double low = -8, high = 8;
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        if (0.5 * erfc(-middle / sqrt(2)) < share)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- a path ---- */

static uint32_t place_of(const struct code *code, uint32_t window)
{
    uint32_t place = 0;
    for (int bit = 0; bit < 8; bit++)
        place ^= (window >> bit & 1) * code->columns[bit];
    return place;
}

/* Of state s, its newest bits lowest, with coded bits x. */
static uint32_t window_of(uint32_t s, uint32_t x)
{
    return x << 6 | (s & 3) << 4 | (s & 12) | s >> 4;
}

/* Squared distances from v of the nearest level at each place, and which free bits it has. */
static void errors_of(const struct code *code, float v, float errors[LEVELS], uint8_t nearest[LEVELS])
{
    const int n_place = 1 << code->coded_bits;
    for (int place = 0; place < n_place; place++) {
        errors[place] = INFINITY;
        for (int f = 0; f < code->n_free; f++) {
            const float off = v - code->levels[f * n_place + place];
            if (off * off < errors[place]) {
                errors[place] = off * off;
                nearest[place] = (uint8_t)f;
            }
        }
    }
}

/* The mean squared error of the best path; sums and counts of numbers by the level that they take. */
static double walk(const struct code *code, const float *numbers, size_t n, double sums[LEVELS],
                   double counts[LEVELS])
{
    static uint8_t oldest[MOST][STATES], places[STATES][4];
    float costs[2][STATES], errors[LEVELS];
    uint8_t nearest[LEVELS];
    double error = 0;
    for (uint32_t s = 0; s < STATES; s++)
        for (uint32_t x = 0; x < 4; x++)
            places[s][x] = (uint8_t)place_of(code, window_of(s, x));
    for (uint32_t s = 0; s < STATES; s++)
        costs[0][s] = s == 0 ? 0 : 1e30f;
    for (size_t i = 0; i < n; i++) {
        const float *old = costs[i % 2];
        float *new = costs[(i + 1) % 2], least = INFINITY;
        errors_of(code, numbers[i], errors, nearest);
        for (uint32_t s = 0; s < STATES; s++) {
            new[s] = INFINITY;
            for (uint32_t o = 0; o < 4; o++) {
                const uint32_t from = 16 * o + s / 4;
                const float cost = old[from] + errors[places[from][s % 4]];
                oldest[i][s] = cost < new[s] ? (uint8_t)o : oldest[i][s];
                new[s] = cost < new[s] ? cost : new[s];
            }
            least = new[s] < least ? new[s] : least;
        }
        for (uint32_t s = 0; s < STATES; s++)
            new[s] -= least;
    }
    uint32_t state = 0;
    for (uint32_t s = 1; s < STATES; s++)
        state = costs[n % 2][s] < costs[n % 2][state] ? s : state;
    for (size_t i = n; i-- > 0;) {
        const uint32_t from = 16u * oldest[i][state] + state / 4, place = places[from][state % 4];
        errors_of(code, numbers[i], errors, nearest);
        const uint32_t level = (uint32_t)nearest[place] << code->coded_bits | place;
        error += (double)errors[place];
        sums[level] += (double)numbers[i];
        counts[level]++;
        state = from;
    }
    return error / (double)n;
}

static double error_on(const struct code *code, const float *numbers, size_t n)
{
    double sums[LEVELS] = {0}, counts[LEVELS] = {0};
    return walk(code, numbers, n, sums, counts);
}

static void train(struct code *code, const float *numbers, size_t n, int turns)
{
    for (int turn = 0; turn < turns; turn++) {
        double sums[LEVELS] = {0}, counts[LEVELS] = {0};
        code->error = walk(code, numbers, n, sums, counts);
        for (int i = 0, j = code->n_levels - 1; i < j; i++, j--)
            if (counts[i] + counts[j] > 0) {
                code->levels[i] = (float)((sums[i] - sums[j]) / (counts[i] + counts[j]));
                code->levels[j] = -code->levels[i];
            }
    }
}

/* ---- codes ---- */

/* Paths that part differ in the two newest bits and those that meet in the two oldest: these choose between
 * levels far apart. */
static struct code drawn(int bits)
{
    struct code code = {.bits = bits, .coded_bits = bits == 2 ? 6 : 5, .n_free = 1 << (bits - 2)};
    const int top = code.coded_bits - 2;
    code.n_levels = code.n_free << code.coded_bits;
    for (int bit = 0; bit < 8; bit++)
        code.columns[bit] =
            (uint8_t)(bit >= 2 && bit < 6 ? draw() % (1u << code.coded_bits) : 1u << (top + bit % 2));
    for (int i = 0; i < code.n_levels; i++)
        code.levels[i] = (float)(0.96 * quantile((i + 0.5) / code.n_levels));
    return code;
}

static void keep(struct code kept[KEPT], const struct code *code)
{
    struct code moving = *code;
    for (int i = 0; i < KEPT; i++)
        if (kept[i].bits == 0 || moving.error < kept[i].error) {
            const struct code other = kept[i];
            kept[i] = moving;
            moving = other;
            if (moving.bits == 0)
                return;
        }
}

/* Levels as integers of 8 bits; returns the scale of least error. */
static double round_levels(struct code *code, const float *numbers, size_t n)
{
    float top = 0;
    for (int i = 0; i < code->n_levels; i++)
        top = fmaxf(top, code->levels[i]);
    for (int i = 0; i < code->n_levels; i++)
        code->levels[i] = roundf(code->levels[i] * 127 / top) * (top / 127);
    code->error = error_on(code, numbers, n);
    return (double)top / 127;
}

/* For formats/codec/shift_scale.c: the squared error of the numbers, in levels of 8 bits, is near 2^(mean of grains). A
 * grain falls with the number of levels around as 2 * 1.2 times its logarithm: what numbers of other scales and other
 * distributions have shown. The error of numbers a little smaller than the levels' gives the sum. */
static void print_grains(const struct code *code, const float *numbers, size_t n, double unit)
{
    const double wide = 1.15;
    int counts[GRAINS] = {0};
    double grains[GRAINS], mean = 0;
    struct code other = *code;
    for (int i = 0; i < code->n_levels; i++) {
        counts[abs((int)lround((double)code->levels[i] / unit)) * GRAINS / 128]++;
        other.levels[i] *= (float)wide;
    }
    for (int g = 0; g < GRAINS; g++)
        grains[g] = 2 * 1.2 * log2(256.0 / GRAINS / counts[g]);
    for (size_t i = 0; i < n; i++) {
        const int g = (int)(fabs((double)numbers[i]) / (wide * unit) * GRAINS / 128);
        mean += grains[g < GRAINS ? g : GRAINS - 1] / (double)n;
    }
    const double rest = log2(error_on(&other, numbers, n) / (wide * wide * unit * unit)) - mean;
    printf("\n#define MOEC_SHIFT_%d_GRAINS", code->bits);
    for (int g = 0; g < GRAINS; g++)
        printf("%s%.3ff", g > 0 ? ", " : " ", grains[g] + rest);
}

static void print_code(const struct code *code, const float *numbers, size_t n, double unit)
{
    uint32_t halves[2][16] = {{0}};
    for (uint32_t i = 0; i < 16; i++) {
        halves[0][i] = place_of(code, i);
        halves[1][i] = place_of(code, i << 4);
    }
    printf("#define MOEC_SHIFT_%d_COLUMNS", code->bits);
    for (int bit = 0; bit < 8; bit++)
        printf("%s%d", bit > 0 ? ", " : " ", code->columns[bit]);
    printf("\n#define MOEC_SHIFT_%d_LEVELS", code->bits);
    for (int i = 0; i < code->n_levels; i++)
        printf("%s%s%d", i > 0 ? "," : "", i % 16 == 0 ? " \\\n    " : " ",
               (int)lround((double)code->levels[i] / unit));
    for (int half = 0; half < 2; half++) {
        printf("\n#define MOEC_SHIFT_%d_%s", code->bits, half == 0 ? "LOW" : "HIGH");
        for (int i = 0; i < 16; i++)
            printf("%s%u", i > 0 ? ", " : " ", halves[half][i]);
    }
    printf("\n#define MOEC_SHIFT_%d_ROWS 0x", code->bits);
    for (int bit = 0; bit < 8; bit++) {
        uint32_t row = 0;
        for (int column = 0; column < 8; column++)
            row |= (code->columns[column] >> bit & 1u) << column;
        printf("%02x", row);
    }
    printf("\n#define MOEC_SHIFT_%d_UNIT %af", code->bits, (double)(float)unit);
    print_grains(code, numbers, n, unit);
    printf("\n\n");
}

int main(int n_arguments, char **arguments)
{
    static float numbers[MOST], others[MOST];
    const int n_draw = n_arguments > 1 ? atoi(arguments[1]) : 500;
    draw_normal(numbers, MOST);
    draw_normal(others, MOST);
    printf(
        "/* Made by tests/tools/shift_codes.c: columns, levels, exclusive ors of columns for both halves of a\n"
        " * window, and which of its bits each bit of these is made of, the lowest bit first\n"
        " * (formats/codec/shift.h). */\n#ifndef MOEC_FORMATS_SHIFT_LEVELS_H\n"
        "#define MOEC_FORMATS_SHIFT_LEVELS_H\n\n/* clang-format off */\n");
    for (int bits = 2; bits <= 4; bits++) {
        struct code kept[KEPT] = {{0}};
        int best = 0;
        for (int i = 0; i < n_draw; i++) {
            struct code code = drawn(bits);
            train(&code, numbers, 5000, 3);
            keep(kept, &code);
        }
        for (int i = 0; i < KEPT; i++) {
            train(&kept[i], numbers, 20000, 10);
            best = kept[i].error < kept[best].error ? i : best;
        }
        train(&kept[best], numbers, MOST, 20);
        const double unit = round_levels(&kept[best], others, MOST);
        fprintf(stderr, "%d bits: mean squared error %.5f\n", bits, kept[best].error);
        print_code(&kept[best], others, MOST, unit);
    }
    printf("/* clang-format on */\n\n#endif\n");
    return 0;
}
