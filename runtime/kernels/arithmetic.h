/* Arithmetics by name: how products are computed. The canonical one (runtime/kernels/kernels.h) is
 * everybody's reference; "int8" (runtime/kernels/int8.h) is the processor's faster one, "bf16"
 * (runtime/cuda/kernels/bf16.h) that of devices with tensor cores. Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_KERNELS_ARITHMETIC_H
#define MOEC_RUNTIME_KERNELS_ARITHMETIC_H

#include "formats/base/error.h"

struct moec_certificate;

enum moec_arithmetic {
    MOEC_ARITHMETIC_CANONICAL,
    MOEC_ARITHMETIC_INT8,
    MOEC_ARITHMETIC_BF16,
    MOEC_ARITHMETIC_COUNT,
};

/* By name; NULL is the canonical one. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_arithmetic_read(const char *name, enum moec_arithmetic *arithmetic,
                                                       struct moec_error *err);
const char *moec_arithmetic_name(enum moec_arithmetic arithmetic);
/* Whether the processor alone computes in it. Errors: MOEC_ERR_UNSUPPORTED for what needs a device. */
MOEC_WARN_UNUSED enum moec_status moec_arithmetic_check_processor(enum moec_arithmetic arithmetic,
                                                                  struct moec_error *err);

/* What a certificate's losses were measured in: the canonical one without a certificate, and where this
 * version does not know the name; and the name of an arithmetic there. */
enum moec_arithmetic moec_arithmetic_certified(const struct moec_certificate *certificate);
const char *moec_arithmetic_certificate_name(enum moec_arithmetic arithmetic);

#endif
