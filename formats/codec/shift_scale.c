/* The scale that a row of shift codes begins with.
 *
 * The error of weights within reach of the levels follows from how near to each other the levels are where
 * the weights lie. A path of many weights spreads its error evenly over them, so the geometric mean counts. A
 * weight beyond the last level adds the square of what is cut off. The sum of both is foretold for many scales
 * from a histogram, and the scale of the least is taken. With the root mean square times a constant instead,
 * rows of long tails lose two to three times as much at 4 bits, for searches that improve a scale do not leave
 * its neighbourhood.
 *
 * The extremes of a row say little of those that corrected weights will have: normally distributed ones are
 * added. */
#include "formats/codec/shift.h"

#include <math.h>
#include <string.h>

#define BINS     1024u
#define A_MEAN   16u  /* bins of weights below the root mean square: 64 times as large ones are told apart */
#define LEAST    0.75 /* the first scale, that for a normal distribution being 1 */
#define STEP     1.0625 /* from a scale to the next */
#define STRETCH  1.04   /* of the scale found: measured, for what is foretold rises too fast with it */
#define LAST     127.0  /* level */
#define NORMALS  0.5    /* normally distributed weights added for each there is */
#define NORMAL   6      /* root mean squares: there are none above */
#define DOUBLED  10     /* squares of 1 + x / 1024 are 2^x, in the same bits everywhere */
#define LOG_OF_2 0.69314718055994531

/* A bin's share of a normal distribution is FALL^b, b its number, of that before: the density is e^(-z^2 / 2), bins are
 * 1 / 16 wide. */
#define FALL  0.9961013694701175                             /* e^(-1 / 256) */
#define FIRST (0.7978845608028654 / 16 * 0.9995118379398894) /* root of 2 / pi; e^(-1 / 2048) */

/* Of weights in a bin and all behind it. */
struct tail {
    double n[BINS + 1];                                        /* weights */
    double costs[BINS + 1], sums[BINS + 1], squares[BINS + 1]; /* each times what its error costs */
    uint32_t used;                                             /* bins */
};

static double two_to(double x)
{
    double power = 1 + x * LOG_OF_2 / (1 << DOUBLED);
    for (int i = 0; i < DOUBLED; i++)
        power *= power;
    return power;
}

static void add(struct tail *tail, uint32_t bin, double n, double cost, double size)
{
    tail->n[bin] += n;
    tail->costs[bin] += n * cost;
    tail->sums[bin] += n * cost * size;
    tail->squares[bin] += n * cost * size * size;
    tail->used = bin >= tail->used ? bin + 1 : tail->used;
}

/* `mean` is the root mean square. */
static void list_tail(const float *weights, const float *costs, size_t n, double mean, struct tail *tail)
{
    double share = FIRST * NORMALS * (double)n, fall = FALL;
    memset(tail, 0, sizeof *tail);
    for (uint32_t bin = 0; bin < NORMAL * A_MEAN; bin++) {
        add(tail, bin, share, 1, (bin + 0.5) * mean / A_MEAN);
        share *= fall;
        fall *= FALL;
    }
    for (size_t i = 0; i < n; i++) {
        const double size = fabs((double)weights[i]), at = size * A_MEAN / mean;
        add(tail, at < BINS - 1 ? (uint32_t)at : BINS - 1, 1, costs != NULL ? (double)costs[i] : 1, size);
    }
    for (uint32_t bin = tail->used; bin-- > 0;) {
        tail->n[bin] += tail->n[bin + 1];
        tail->costs[bin] += tail->costs[bin + 1];
        tail->sums[bin] += tail->sums[bin + 1];
        tail->squares[bin] += tail->squares[bin + 1];
    }
}

/* Weights that are larger than `at` bins. */
static double count_above(const struct tail *tail, double at)
{
    const uint32_t bin = (uint32_t)at;
    return bin < tail->used ? tail->n[bin] - (tail->n[bin] - tail->n[bin + 1]) * (at - bin) : 0;
}

/* The error of the weights at a scale; `per` bins are 1. */
static double foretell(const struct moec_shift *shift, const struct tail *tail, double per, double scale)
{
    const double width = (LAST + 1) / MOEC_SHIFT_GRAINS * scale, reach = LAST * scale, n = tail->n[0];
    double grain = (double)shift->grains[0], cut = 0;
    for (uint32_t g = 1; g < MOEC_SHIFT_GRAINS; g++)
        grain += (double)(shift->grains[g] - shift->grains[g - 1]) * count_above(tail, g * width * per) / n;
    if (reach * per + 1 < tail->used) {
        const uint32_t bin = (uint32_t)(reach * per) + 1;
        cut = tail->squares[bin] - 2 * reach * tail->sums[bin] + reach * reach * tail->costs[bin];
    }
    return n * scale * scale * two_to(grain) + cut;
}

float moec_shift_scale(uint32_t bits, const float *weights, const float *costs, size_t n)
{
    const struct moec_shift *shift = moec_shift_of(bits);
    double squares = 0, least = INFINITY, best = 0;
    struct tail tail;
    for (size_t i = 0; i < n; i++)
        squares += (double)weights[i] * (double)weights[i];
    const double mean = sqrt(squares / (double)n), per = A_MEAN / mean;
    if (!(mean > 0 && isfinite(mean)))
        return (float)mean;
    list_tail(weights, costs, n, mean, &tail);
    const double first = LEAST * (double)shift->unit * mean;
    for (double scale = first; LAST / STEP * scale * per < tail.used + 1; scale *= STEP) {
        const double error = foretell(shift, &tail, per, scale);
        best = error < least ? scale : best;
        least = error < least ? error : least;
    }
    return (float)(best * STRETCH);
}
