/* Codecs whose codes stand for levels that are not evenly spaced: logarithmic ones, and those of a Gaussian
 * with outliers kept apart. EdgeMoE surveyed both beside linear quantisation (III-B, Fig. 7(b)).
 *
 *   logarithmic  The high bit of a code is the sign, the others count down from 1 in steps of an octave, at
 *                8 bits of a sixteenth (log-based quantisation as in Miyashita, Lee & Murmann, "Convolutional
 *                Neural Networks using Logarithmic Data Representation", 2016). 0 has no code.
 *   gaussian     Levels are those of least squared error for a normal distribution (Lloyd, 1957; Max, 1960),
 *                in increasing order. Of every MOEC_CODEC_OUTLIER_SPAN weights of a row the largest is kept
 *                apart as F16 (after GOBO: Zadeh, Edo, Awad & Moshovos, 2020, which fits a Gaussian to a
 *                layer, keeps what lies outside it, and has one dictionary for the rest; here rows must
 *                decode alone and be equally long, so each has its scales and as many outliers as any other).
 *
 * A decoded weight is level x F32(scale), rounded once; an outlier is its F16. Scales are fitted by least
 * squares over a group without its outliers, codes and scale in turn (Lloyd's way, from a start); what is
 * stored is then lengthened as with HQQ (formats/codec/hqq.h), so that decoded weights have the same product
 * with the weights as these have with themselves. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_DICTIONARY_H
#define MOEC_FORMATS_DICTIONARY_H

#include "formats/codec/codec.h"

/* Level of each code, 2^bits of them; bits 2, 3, 4 or 8, scheme gaussian or logarithmic. */
const float *moec_dictionary_levels(enum moec_scheme scheme, uint32_t bits);

/* One group of a row: weights first .. first + n - 1, of which those at skip[span] within their span of the
 * row are outliers (skip NULL: there are none). */
struct moec_dictionary_group {
    const float *row;
    size_t first;
    size_t n;
    const uint8_t *skip;
};

struct moec_dictionary_fit {
    float code_scale; /* codes are those of the levels nearest to w / code_scale; 0: all weights are 0 */
    float scale;      /* to store; not rounded to F16 */
};

struct moec_dictionary_fit moec_dictionary_fit(const struct moec_dictionary_group *group,
                                               enum moec_scheme scheme, uint32_t bits);

/* Code of the level nearest to `value`. */
uint8_t moec_dictionary_code(enum moec_scheme scheme, uint32_t bits, float value);

#endif
