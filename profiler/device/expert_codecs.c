#include "profiler/device/expert_codecs.h"

/* As compiler/compile/compile_variants.c offers them to a search. */
static const struct {
    uint8_t bits, scheme, group;
} codecs[] = {{2, MOEC_SCHEME_SHIFT, 0},
              {3, MOEC_SCHEME_SHIFT, 0},
              {4, MOEC_SCHEME_SHIFT, 0},
              {8, MOEC_SCHEME_ASYMMETRIC_NESTED, 64}};

uint32_t moec_expert_codec_count(void)
{
    return sizeof codecs / sizeof *codecs;
}

enum moec_status moec_expert_codec(uint32_t index, struct moec_codec *out, struct moec_error *err)
{
    return moec_codec_for_bits(codecs[index].bits, (enum moec_scheme)codecs[index].scheme,
                               codecs[index].group, MOEC_DTYPE_BF16, out, err);
}
