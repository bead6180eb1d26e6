/* CRC32C by carry-less products of whole cache lines (AVX-512 with VPCLMULQDQ): many times as fast as the CRC
 * instruction, which takes eight bytes (internal to formats/base/digest.c). */
#ifndef MOEC_CRC32C_FOLD_H
#define MOEC_CRC32C_FOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOEC_CRC32C_FOLD_BYTES ((size_t)256)

/* Whether this processor can. */
bool moec_crc32c_folds(void);

/* The state (a CRC with its bits inverted) behind n bytes, a multiple of MOEC_CRC32C_FOLD_BYTES and not 0.
 * Only where moec_crc32c_folds. */
uint32_t moec_crc32c_fold(uint32_t state, const uint8_t *bytes, size_t n);

#endif
