/* What a profile's own codes are called: titles, verdict and heatmap name the codes that they are about.
 * Thread rule: pure function. */
#ifndef MOEC_PROFILER_CODES_WORDS_H
#define MOEC_PROFILER_CODES_WORDS_H

#include "formats/profile/profile.h"

/* "linear codes", "hqq codes in groups of 64", "trellis codes": those that the profile measured at a
 * bitwidth; bits 0: at all of them. */
#define MOEC_CODES_WORDS 64
const char *moec_codes_words(const struct moec_profile *profile, uint32_t bits,
                             char text[static MOEC_CODES_WORDS]);

#endif
