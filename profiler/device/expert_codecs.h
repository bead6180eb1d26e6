/* The codecs that moec compile's search stores experts in below 16 bits: a description times experts in these,
 * whichever a bundle has, since a fit chooses among them. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_EXPERT_CODECS_H
#define MOEC_PROFILER_EXPERT_CODECS_H

#include "formats/codec/codec.h"

uint32_t moec_expert_codec_count(void);
/* By increasing bits. Errors: none for index < count. */
MOEC_WARN_UNUSED enum moec_status moec_expert_codec(uint32_t index, struct moec_codec *out,
                                                    struct moec_error *err);

#endif
