#include "formats/codec/dictionary.h"

#include <math.h>

#define MAX_ROUNDS 20

/* clang-format off */
/* Positive levels of a Gaussian of variance 1, times 4096. */
#define GAUSSIAN2(X) \
    X(1855) X(6187)
#define GAUSSIAN3(X) \
    X(1004) X(3097) X(5505) X(8814)
#define GAUSSIAN4(X) \
    X(526) X(1589) X(2690) X(3860) X(5146) X(6628) X(8475) X(11193)
#define GAUSSIAN8(X) \
    X(35) X(104) X(173) X(242) X(311) X(381) X(450) X(519) X(589) X(658) X(728) X(797) X(867) X(937) \
    X(1007) X(1077) X(1147) X(1217) X(1287) X(1357) X(1428) X(1499) X(1570) X(1641) X(1712) X(1783) \
    X(1854) X(1926) X(1998) X(2070) X(2142) X(2215) X(2288) X(2361) X(2434) X(2508) X(2581) X(2655) \
    X(2730) X(2804) X(2879) X(2955) X(3030) X(3106) X(3183) X(3259) X(3336) X(3414) X(3492) X(3570) \
    X(3649) X(3728) X(3808) X(3888) X(3969) X(4050) X(4131) X(4214) X(4296) X(4380) X(4464) X(4549) \
    X(4634) X(4720) X(4807) X(4894) X(4982) X(5071) X(5161) X(5251) X(5343) X(5435) X(5528) X(5623) \
    X(5718) X(5814) X(5911) X(6010) X(6110) X(6210) X(6313) X(6416) X(6521) X(6627) X(6735) X(6844) \
    X(6955) X(7068) X(7183) X(7299) X(7418) X(7538) X(7661) X(7786) X(7914) X(8044) X(8177) X(8313) \
    X(8452) X(8594) X(8740) X(8890) X(9044) X(9202) X(9365) X(9533) X(9706) X(9886) X(10072) \
    X(10265) X(10466) X(10676) X(10896) X(11127) X(11370) X(11627) X(11901) X(12193) X(12508) \
    X(12850) X(13224) X(13639) X(14107) X(14646) X(15285) X(16079) X(17148) X(18856)

/* Sixteenths of an octave down from p. */
#define OCTAVE(X, p) \
    X(0x1.000000p+0f * (p)) X(0x1.ea4afap-1f * (p)) X(0x1.d5818ep-1f * (p)) X(0x1.c199bep-1f * (p)) \
    X(0x1.ae89fap-1f * (p)) X(0x1.9c4918p-1f * (p)) X(0x1.8ace54p-1f * (p)) X(0x1.7a1148p-1f * (p)) \
    X(0x1.6a09e6p-1f * (p)) X(0x1.5ab07ep-1f * (p)) X(0x1.4bfdaep-1f * (p)) X(0x1.3dea64p-1f * (p)) \
    X(0x1.306fe0p-1f * (p)) X(0x1.2387a6p-1f * (p)) X(0x1.172b84p-1f * (p)) X(0x1.0b5586p-1f * (p))
#define LOG2(X) X(0x1p-0f) X(0x1p-1f)
#define LOG3(X) LOG2(X) X(0x1p-2f) X(0x1p-3f)
#define LOG4(X) LOG3(X) X(0x1p-4f) X(0x1p-5f) X(0x1p-6f) X(0x1p-7f)
#define LOG8(X) \
    OCTAVE(X, 0x1p-0f) OCTAVE(X, 0x1p-1f) OCTAVE(X, 0x1p-2f) OCTAVE(X, 0x1p-3f) OCTAVE(X, 0x1p-4f) \
    OCTAVE(X, 0x1p-5f) OCTAVE(X, 0x1p-6f) OCTAVE(X, 0x1p-7f)

/* clang-format on */

/* By code: the high bit is the sign. */
#define AS_IS(level)          (level),
#define NEGATED(level)        -(level),
#define SCALED(level)         (level) / 4096.0f,
#define SCALED_NEGATED(level) -(level) / 4096.0f,
static const float gaussian2[] = {GAUSSIAN2(SCALED) GAUSSIAN2(SCALED_NEGATED)};
static const float gaussian3[] = {GAUSSIAN3(SCALED) GAUSSIAN3(SCALED_NEGATED)};
static const float gaussian4[] = {GAUSSIAN4(SCALED) GAUSSIAN4(SCALED_NEGATED)};
static const float gaussian8[] = {GAUSSIAN8(SCALED) GAUSSIAN8(SCALED_NEGATED)};
static const float log2_levels[] = {LOG2(AS_IS) LOG2(NEGATED)};
static const float log3_levels[] = {LOG3(AS_IS) LOG3(NEGATED)};
static const float log4_levels[] = {LOG4(AS_IS) LOG4(NEGATED)};
static const float log8_levels[] = {LOG8(AS_IS) LOG8(NEGATED)};
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

static struct sums sum_group(const struct moec_dictionary_group *group, const float *levels, uint32_t half,
                             bool rising, float scale)
{
    struct sums sums = {0};
    for (size_t i = group->first; i < group->first + group->n; i++) {
        if (is_skipped(group, i))
            continue;
        const float w = group->row[i], level = levels[nearest(levels, half, rising, w / scale)];
        const double error = (double)(w - level * scale);
        sums.error += error * error;
        sums.product += (double)w * (double)level;
        sums.square += (double)level * (double)level;
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
