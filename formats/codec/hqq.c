/* Half-quadratic splitting in two stages. The zero point moves at the scale of the extremes until the sum of
 * |e| no longer falls. Then the two whole numbers around it are tried, each with a scale by least squares in
 * turns with the codes. The smaller squared error wins. Sums run in 32 lanes that are added in order, so
 * that every build gives the same bits. */
#include "formats/codec/hqq.h"

#include "formats/base/elementary.h"
#include "formats/base/half.h"

#include <math.h>
#include <string.h>

/* Loops run over whole blocks of 32 lanes: a constant trip count is what lets the compiler use vector
 * instructions at -O2, and lanes fix the order of every sum. */
#define BLOCK 32
#define ROUND 0x1.8p23f /* adding and subtracting it rounds to an integer, half to even */

/* In all rounds beta < 12.3, and shrink(x) is 0 up to |x| = beta^(-1 / (2 - p)) > 0.145. */
#define SHRINK_FROM 0.145f

static double sum_lanes(const float lanes[static BLOCK])
{
    double sum = 0;
    for (int j = 0; j < BLOCK; j++)
        sum += (double)lanes[j];
    return sum;
}

/* Up to 32 weights and, past the end, zeros. */
static size_t load_block(const float *weights, size_t left, float block[static BLOCK])
{
    size_t n = left < BLOCK ? left : BLOCK;
    memset(block + n, 0, (BLOCK - n) * sizeof *block);
    memcpy(block, weights, n * sizeof *block);
    return n;
}

static void code_block(const float w[static BLOCK], float inverse, float zero, float levels,
                       float codes[static BLOCK])
{
    for (int j = 0; j < BLOCK; j++) {
        float q = w[j] * inverse + zero;
        q = q < 0 ? 0 : q;
        q = q > levels ? levels : q;
        codes[j] = (q + ROUND) - ROUND;
    }
}

/* ---- the zero point ---- */

struct zero_pass {
    double error; /* sum of |e| */
    double shift; /* sum of q - w / s: n times the next zero point, were nothing shrunk */
    float top;    /* largest |e| */
};

static struct zero_pass pass_over_zero(const float *weights, size_t n, float scale, float zero, float levels)
{
    const float inverse = 1 / scale;
    float errors[BLOCK] = {0}, shifts[BLOCK] = {0}, tops[BLOCK] = {0};
    for (size_t i = 0; i < n; i += BLOCK) {
        float w[BLOCK], q[BLOCK], e[BLOCK], shift[BLOCK];
        size_t filled = load_block(weights + i, n - i, w);
        code_block(w, inverse, zero, levels, q);
        for (int j = 0; j < BLOCK; j++) {
            float error = w[j] - (q[j] - zero) * scale;
            e[j] = error < 0 ? -error : error;
            shift[j] = q[j] - w[j] * inverse;
        }
        memset(e + filled, 0, (BLOCK - filled) * sizeof *e);
        memset(shift + filled, 0, (BLOCK - filled) * sizeof *shift);
        for (int j = 0; j < BLOCK; j++) {
            errors[j] += e[j];
            shifts[j] += shift[j];
            tops[j] = e[j] > tops[j] ? e[j] : tops[j];
        }
    }
    struct zero_pass pass = {.error = sum_lanes(errors), .shift = sum_lanes(shifts)};
    for (int j = 0; j < BLOCK; j++)
        pass.top = tops[j] > pass.top ? tops[j] : pass.top;
    return pass;
}

/* Sum of shrink(e): in units of weights, so that only models with large errors have any. */
static double sum_shrunk(const float *weights, size_t n, float scale, float zero, float levels, double beta)
{
    const float inverse = 1 / scale;
    double sum = 0;
    for (size_t i = 0; i < n; i += BLOCK) {
        float w[BLOCK], q[BLOCK];
        size_t filled = load_block(weights + i, n - i, w);
        code_block(w, inverse, zero, levels, q);
        for (size_t j = 0; j < filled; j++) {
            double error = (double)(w[j] - (q[j] - zero) * scale), size = fabs(error);
            if (size <= (double)SHRINK_FROM)
                continue;
            double shrunk = size - moec_exp_f64((MOEC_HQQ_P - 1) * moec_log_f64(size)) / beta;
            if (shrunk > 0)
                sum += error < 0 ? -shrunk : shrunk;
        }
    }
    return sum;
}

float moec_hqq_zero(const float *weights, size_t n, uint32_t bits, float scale, float zero)
{
    const float levels = (float)((1 << bits) - 1);
    double beta = MOEC_HQQ_BETA, least = INFINITY;
    float best = zero;
    for (int round = 0; round <= MOEC_HQQ_ROUNDS; round++, beta *= MOEC_HQQ_KAPPA) {
        struct zero_pass pass = pass_over_zero(weights, n, scale, zero, levels);
        if (!(pass.error < least))
            break;
        least = pass.error;
        best = zero;
        if (pass.top > SHRINK_FROM)
            pass.shift += sum_shrunk(weights, n, scale, zero, levels, beta) / (double)scale;
        zero = (float)(pass.shift / (double)n);
    }
    return best;
}

/* ---- the scale ---- */

struct scale_pass {
    double error;   /* sum of e^2 */
    double product; /* sum of w (q - z) */
    double square;  /* sum of (q - z)^2 */
};

/* Zeros past the end of the weights add nothing, for the code of 0 is the zero point. */
static struct scale_pass pass_over_scale(const float *weights, size_t n, float scale, float zero,
                                         float levels)
{
    const float inverse = 1 / scale;
    float errors[BLOCK] = {0}, products[BLOCK] = {0}, squares[BLOCK] = {0};
    for (size_t i = 0; i < n; i += BLOCK) {
        float w[BLOCK], q[BLOCK];
        (void)load_block(weights + i, n - i, w);
        code_block(w, inverse, zero, levels, q);
        for (int j = 0; j < BLOCK; j++) {
            float c = q[j] - zero, error = w[j] - c * scale;
            errors[j] += error * error;
            products[j] += w[j] * c;
            squares[j] += c * c;
        }
    }
    return (struct scale_pass){sum_lanes(errors), sum_lanes(products), sum_lanes(squares)};
}

struct scale_fit {
    float scale;
    struct scale_pass pass;
};

/* Alternates codes and scale until the error no longer falls. */
static struct scale_fit fit_scale(const float *weights, size_t n, float scale, float zero, float levels)
{
    struct scale_fit best = {.scale = scale, .pass = pass_over_scale(weights, n, scale, zero, levels)};
    for (int round = 0; round < MOEC_HQQ_ROUNDS && best.pass.product > 0; round++) {
        float next = (float)(best.pass.product / best.pass.square);
        struct scale_pass pass = pass_over_scale(weights, n, next, zero, levels);
        if (!(pass.error < best.pass.error))
            break;
        best = (struct scale_fit){.scale = next, .pass = pass};
    }
    return best;
}

static double sum_squares(const float *weights, size_t n)
{
    float squares[BLOCK] = {0};
    for (size_t i = 0; i < n; i += BLOCK) {
        float w[BLOCK];
        (void)load_block(weights + i, n - i, w);
        for (int j = 0; j < BLOCK; j++)
            squares[j] += w[j] * w[j];
    }
    return sum_lanes(squares);
}

struct moec_hqq_fit moec_hqq_fit(const float *weights, size_t n, uint32_t bits, bool moves_zero, float scale,
                                 uint8_t zero)
{
    const float levels = (float)((1 << bits) - 1);
    float below = zero, above = zero;
    if (moves_zero) {
        float place = moec_hqq_zero(weights, n, bits, scale, zero);
        place = place < 0 ? 0 : place;
        place = place > levels ? levels : place;
        below = (float)(int)place;
        above = below < levels ? below + 1 : below;
    }
    struct scale_fit best = fit_scale(weights, n, scale, below, levels);
    zero = (uint8_t)below;
    if (above != below) {
        struct scale_fit other = fit_scale(weights, n, scale, above, levels);
        if (other.pass.error < best.pass.error) {
            best = other;
            zero = (uint8_t)above;
        }
    }
    struct moec_hqq_fit fit = {.code_scale = best.scale, .scale = best.scale, .zero = zero};
    if (best.pass.product > 0)
        fit.scale = (float)(sum_squares(weights, n) / best.pass.product);
    return fit;
}
