#include "profiler/profile/codes_words.h"

#include <stdio.h>

const char *moec_codes_words(const struct moec_profile *profile, uint32_t bits,
                             char text[static MOEC_CODES_WORDS])
{
    const struct moec_quantizer_choice choice = moec_profile_quantizer(profile, bits);
    const bool is_auto = bits == 0 && profile->quantizer == MOEC_QUANTIZER_AUTO;
    const bool is_trellis = bits == 0 && profile->quantizer == MOEC_QUANTIZER_TRELLIS;
    const char *name = moec_quantizer_name((enum moec_quantizer)choice.quantizer), *scheme = "", *space = "";
    char group[24] = "";
    if (profile->group > 0 && !moec_quantizer_makes_path((enum moec_quantizer)choice.quantizer, bits))
        (void)snprintf(group, sizeof group, " in groups of %u", (unsigned)profile->group);
    /* What a quantizer has by default, or alone, goes without saying. */
    const bool is_default = choice.scheme == (choice.quantizer == MOEC_QUANTIZER_HQQ ? MOEC_SCHEME_ASYMMETRIC
                                                                                     : MOEC_SCHEME_SYMMETRIC);
    if (!is_default && moec_quantizer_makes(MOEC_QUANTIZER_LINEAR, (enum moec_scheme)choice.scheme)) {
        scheme = moec_scheme_name((enum moec_scheme)choice.scheme);
        space = " ";
    }
    if (is_auto)
        (void)snprintf(text, MOEC_CODES_WORDS, "linear or hqq quantization%s", group);
    else if (is_trellis)
        (void)snprintf(text, MOEC_CODES_WORDS, "trellis and hqq quantization%s", group);
    else
        (void)snprintf(text, MOEC_CODES_WORDS, "%s%s%s quantization%s", name, space, scheme, group);
    return text;
}
