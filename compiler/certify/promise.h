/* What a certificate says: a loss that was tested on a part of data that nothing before has looked at, by
 * whom else the same part was used, and in which arithmetic. Thread rule: pure functions. */
#ifndef MOEC_COMPILER_PROMISE_H
#define MOEC_COMPILER_PROMISE_H

#include "formats/bundle/bundle.h"
#include "profiler/evaluate/metrics.h"
#include "profiler/evaluate/windows.h"
#include "runtime/kernels/arithmetic.h"

/* SHA-256 of the data's and of which of its windows these are: bundles whose certificates have the same one
 * were certified on the same windows. */
void moec_promise_digest_windows(const uint8_t data_digest[static MOEC_SHA256_BYTES],
                                 const struct moec_windows *windows,
                                 uint8_t digest[static MOEC_SHA256_BYTES]);

/* What is promised, and on which data. Borrowed. */
struct moec_promise {
    const char *metric, *data_name;
    const uint8_t *data_digest; /* (MOEC_SHA256_BYTES) */
    uint32_t seq_len_tokens;    /* 0: of rows */
    enum moec_arithmetic arithmetic;
    double target, confidence; /* target NaN: none */
    bool is_chance;            /* the original was found to be no better than chance */
};

/* The certificate of a loss on the certificate part; `search` is what another part said before. Its digest of
 * the part stays, and it has no sequence. */
void moec_promise_certify(const struct moec_promise *promise, const struct moec_loss *loss,
                          const struct moec_loss *search, struct moec_certificate *certificate);

/* Whether a certificate's tests were on the part of this digest. */
bool moec_promise_is_of_part(const struct moec_certificate *certificate,
                             const uint8_t part_digest[static MOEC_SHA256_BYTES]);

#endif
