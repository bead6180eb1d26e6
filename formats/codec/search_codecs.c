/* A codec's place here is its number in plans, from MOEC_CODEC_FIRST_OTHER on. Bits rise along the table, so
 * that the first of a kind is its smallest. */
#include "formats/codec/search_codecs.h"

/* 8 bits lose so little that GPTQ would change nothing. */
const struct moec_search_codec moec_search_codecs[MOEC_SEARCH_CODECS] = {
    {2, MOEC_SCHEME_SHIFT, 0, MOEC_QUANTIZER_GPTQ, true, true},
    {3, MOEC_SCHEME_SHIFT, 0, MOEC_QUANTIZER_GPTQ, true, true},
    {4, MOEC_SCHEME_SHIFT, 0, MOEC_QUANTIZER_GPTQ, true, true},
    {5, MOEC_SCHEME_ASYMMETRIC_NESTED, 64, MOEC_QUANTIZER_GPTQ, false, true},
    {6, MOEC_SCHEME_ASYMMETRIC_NESTED, 64, MOEC_QUANTIZER_GPTQ, false, true},
    {8, MOEC_SCHEME_ASYMMETRIC_NESTED, 64, MOEC_QUANTIZER_LINEAR, true, true},
};

enum moec_status moec_search_codec_make(uint32_t index, enum moec_dtype dtype, struct moec_codec *out,
                                        struct moec_error *err)
{
    const struct moec_search_codec *codec = &moec_search_codecs[index];
    MOEC_TRY(
        moec_codec_for_bits(codec->bits, (enum moec_scheme)codec->scheme, codec->group, dtype, out, err));
    out->quantizer = codec->quantizer;
    return MOEC_OK;
}

enum moec_status moec_search_codecs_of_experts(enum moec_dtype dtype,
                                               struct moec_codec codecs[static MOEC_SEARCH_CODECS],
                                               uint32_t *n, struct moec_error *err)
{
    *n = 0;
    for (uint32_t i = 0; i < MOEC_SEARCH_CODECS; i++) {
        if (!moec_search_codecs[i].is_for_experts)
            continue;
        MOEC_TRY(moec_search_codec_make(i, dtype, &codecs[*n], err));
        codecs[(*n)++].quantizer = 0;
    }
    return MOEC_OK;
}
