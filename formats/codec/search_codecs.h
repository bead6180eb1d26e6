/* The codecs below 16 bits that moec compile's search stores weights in, whichever a bundle has: a fit
 * chooses among them, and the description of a device times experts in those of experts. Thread rule: pure
 * functions. */
#ifndef MOEC_FORMATS_SEARCH_CODECS_H
#define MOEC_FORMATS_SEARCH_CODECS_H

#include "formats/codec/codec.h"

#define MOEC_SEARCH_CODECS 6

struct moec_search_codec {
    uint8_t bits, scheme, group, quantizer;
    bool is_for_experts, is_for_dense;
};

/* By increasing bits. */
extern const struct moec_search_codec moec_search_codecs[MOEC_SEARCH_CODECS];

/* Codec `index` of the table, with its quantizer, for weights that are stored as `dtype`. Errors: none for
 * index < MOEC_SEARCH_CODECS. */
MOEC_WARN_UNUSED enum moec_status moec_search_codec_make(uint32_t index, enum moec_dtype dtype,
                                                         struct moec_codec *out, struct moec_error *err);

/* Those of experts, for who does not choose codes (quantizer 0): codecs (MOEC_SEARCH_CODECS) receives them by
 * increasing bits, `n` how many there are. */
MOEC_WARN_UNUSED enum moec_status
moec_search_codecs_of_experts(enum moec_dtype dtype, struct moec_codec codecs[static MOEC_SEARCH_CODECS],
                              uint32_t *n, struct moec_error *err);

#endif
