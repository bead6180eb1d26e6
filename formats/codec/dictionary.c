/* The scale of a group of dictionary codes: nearest level for each weight, then the scale of least squares
 * for those levels, in turns. It stops when the squared error no longer falls, so the result is never worse
 * than the start. The start is the root mean square for Gaussian levels and the largest weight for
 * logarithmic ones. The result is rescaled to the weights' own length along the levels: sum of squares /
 * product. */
#include "formats/codec/dictionary.h"

#include "formats/codec/levels.h"

#include <math.h>
#include <string.h>

#define MAX_ROUNDS 20

static const float gaussian2[] = {MOEC_LEVELS_GAUSSIAN2};
static const float gaussian3[] = {MOEC_LEVELS_GAUSSIAN3};
static const float gaussian4[] = {MOEC_LEVELS_GAUSSIAN4};
static const float gaussian8[] = {MOEC_LEVELS_GAUSSIAN8};
static const float log2_levels[] = {MOEC_LEVELS_LOGARITHMIC2};
static const float log3_levels[] = {MOEC_LEVELS_LOGARITHMIC3};
static const float log4_levels[] = {MOEC_LEVELS_LOGARITHMIC4};
static const float log8_levels[] = {MOEC_LEVELS_LOGARITHMIC8};
_Static_assert(sizeof gaussian8 == 256 * sizeof(float) && sizeof log8_levels == 256 * sizeof(float),
               "a level for every code");

const float *moec_dictionary_levels(enum moec_scheme scheme, uint32_t bits)
{
    const bool gaussian = scheme == MOEC_SCHEME_GAUSSIAN;
    switch (bits) {
    case 2:
        return gaussian ? gaussian2 : log2_levels;
    case 3:
        return gaussian ? gaussian3 : log3_levels;
    case 4:
        return gaussian ? gaussian4 : log4_levels;
    default:
        return gaussian ? gaussian8 : log8_levels;
    }
}

/* Magnitudes in one direction; the nearest is where `value` passes the middle between two of them. */
static uint8_t nearest(const float *levels, uint32_t half, bool rising, float value)
{
    const bool negative = value < 0;
    const float magnitude = negative ? -value : value;
    uint32_t low = 0, high = half - 1;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        const float border = (levels[middle] + levels[middle + 1]) * 0.5f;
        if (rising ? magnitude > border : magnitude <= border)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint8_t)(low | (negative ? half : 0));
}

uint8_t moec_dictionary_code(enum moec_scheme scheme, uint32_t bits, float value)
{
    return nearest(moec_dictionary_levels(scheme, bits), 1u << (bits - 1), scheme == MOEC_SCHEME_GAUSSIAN,
                   value);
}

struct sums {
    double error;   /* sum of (w - s level)^2 */
    double product; /* sum of w level */
    double square;  /* sum of level^2 */
};

static bool is_skipped(const struct moec_dictionary_group *group, size_t i)
{
    return group->skip != NULL && group->skip[i / MOEC_CODEC_OUTLIER_SPAN] == i % MOEC_CODEC_OUTLIER_SPAN;
}

/* Levels up to which passing every border is faster than a search. */
#define FEW_LEVELS 8

/* The level nearest to each weight / scale. Borders of few levels are passed one after the other, all weights
 * at once: compilers turn loops of a constant count into vector instructions at -O2. */
static void nearest_levels(const float *levels, uint32_t half, bool rising, float scale,
                           const float weights[static MOEC_CODEC_BLOCK], float out[static MOEC_CODEC_BLOCK])
{
    float values[MOEC_CODEC_BLOCK], sizes[MOEC_CODEC_BLOCK], found[MOEC_CODEC_BLOCK];
    if (half > FEW_LEVELS) {
        for (size_t j = 0; j < MOEC_CODEC_BLOCK; j++)
            out[j] = levels[nearest(levels, half, rising, weights[j] / scale)];
        return;
    }
    for (size_t j = 0; j < MOEC_CODEC_BLOCK; j++) {
        values[j] = weights[j] / scale;
        sizes[j] = values[j] < 0 ? -values[j] : values[j];
        found[j] = levels[0];
    }
    for (uint32_t i = 0; i + 1 < half; i++) {
        const float border = (levels[i] + levels[i + 1]) * 0.5f, level = levels[i + 1];
        if (rising) {
            for (size_t j = 0; j < MOEC_CODEC_BLOCK; j++)
                found[j] = sizes[j] > border ? level : found[j];
        } else {
            for (size_t j = 0; j < MOEC_CODEC_BLOCK; j++)
                found[j] = sizes[j] <= border ? level : found[j];
        }
    }
    for (size_t j = 0; j < MOEC_CODEC_BLOCK; j++)
        out[j] = values[j] < 0 ? -found[j] : found[j];
}

static struct sums sum_group(const struct moec_dictionary_group *group, const float *levels, uint32_t half,
                             bool rising, float scale)
{
    struct sums sums = {0};
    const size_t end = group->first + group->n;
    for (size_t at = group->first; at < end; at += MOEC_CODEC_BLOCK) {
        const size_t n = end - at < MOEC_CODEC_BLOCK ? end - at : MOEC_CODEC_BLOCK;
        float weights[MOEC_CODEC_BLOCK] = {0}, nearest_to[MOEC_CODEC_BLOCK];
        memcpy(weights, group->row + at, n * sizeof *weights);
        nearest_levels(levels, half, rising, scale, weights, nearest_to);
        for (size_t j = 0; j < n; j++) {
            if (is_skipped(group, at + j))
                continue;
            const float w = weights[j], level = nearest_to[j];
            const double error = (double)(w - level * scale);
            sums.error += error * error;
            sums.product += (double)w * (double)level;
            sums.square += (double)level * (double)level;
        }
    }
    return sums;
}

struct moec_dictionary_fit moec_dictionary_fit(const struct moec_dictionary_group *group,
                                               enum moec_scheme scheme, uint32_t bits)
{
    const float *levels = moec_dictionary_levels(scheme, bits);
    const uint32_t half = 1u << (bits - 1);
    const bool rising = scheme == MOEC_SCHEME_GAUSSIAN;
    double squares = 0, n = 0;
    float top = 0;
    for (size_t i = group->first; i < group->first + group->n; i++) {
        if (is_skipped(group, i))
            continue;
        squares += (double)group->row[i] * (double)group->row[i];
        top = fabsf(group->row[i]) > top ? fabsf(group->row[i]) : top;
        n++;
    }
    float scale = rising && n > 0 ? (float)sqrt(squares / n) : top;
    if (!(scale > 0))
        return (struct moec_dictionary_fit){0};
    struct sums best = sum_group(group, levels, half, rising, scale);
    for (int round = 0; round < MAX_ROUNDS && best.product > 0; round++) {
        const float next = (float)(best.product / best.square);
        if (!(next > 0))
            break;
        const struct sums sums = sum_group(group, levels, half, rising, next);
        if (!(sums.error < best.error))
            break;
        best = sums;
        scale = next;
    }
    return (struct moec_dictionary_fit){scale, best.product > 0 ? (float)(squares / best.product) : scale};
}
