/* What a profile's own codes are called: titles, verdict and heatmap name the quantization that they are
 * about. Thread rule: pure function. */
#ifndef MOEC_PROFILER_CODES_WORDS_H
#define MOEC_PROFILER_CODES_WORDS_H

#include "formats/profile/profile.h"

/* "linear quantization", "hqq quantization in groups of 64", "trellis quantization": those that the profile
 * measured at a bitwidth; bits 0: at all of them. */
#define MOEC_CODES_WORDS 80
const char *moec_codes_words(const struct moec_profile *profile, uint32_t bits,
                             char text[static MOEC_CODES_WORDS]);

#endif
