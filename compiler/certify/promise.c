/* A certificate is missed where the upper end is above the target: a comparison with NaN is false, so
 * without a target none is. */
#include "compiler/certify/promise.h"

#include "formats/base/digest.h"

#include <stdio.h>
#include <string.h>

void moec_promise_digest_windows(const uint8_t data_digest[static MOEC_SHA256_BYTES],
                                 const struct moec_windows *windows, uint8_t digest[static MOEC_SHA256_BYTES])
{
    struct moec_sha256 sha;
    moec_sha256_init(&sha);
    moec_sha256_update(&sha, data_digest, MOEC_SHA256_BYTES);
    moec_sha256_update_u64(&sha, windows->seq_len_tokens);
    for (uint32_t w = 0; w < windows->n_window; w++)
        moec_sha256_update_u64(&sha, windows->index[w]);
    moec_sha256_finish(&sha, digest);
}

void moec_promise_certify(const struct moec_promise *promise, const struct moec_loss *loss,
                          const struct moec_loss *search, struct moec_certificate *certificate)
{
    uint8_t part_digest[MOEC_SHA256_BYTES];
    memcpy(part_digest, certificate->part_digest, sizeof part_digest);
    *certificate = (struct moec_certificate){
        .present = true,
        .is_chance = promise->is_chance,
        .reference = loss->reference,
        .compiled = loss->compiled,
        .loss = loss->loss,
        .loss_low = loss->low,
        .loss_high = loss->high,
        .search_loss = search->loss,
        .search_loss_high = search->high,
        .target = promise->target,
        .confidence = promise->confidence,
        .mean_kl = loss->mean_kl,
        .n_window = loss->n_window,
        .n_token = loss->n_token,
        .seq_len_tokens = promise->seq_len_tokens,
        .missed = loss->high > promise->target, /* false without a target */
    };
    memcpy(certificate->part_digest, part_digest, sizeof part_digest);
    memcpy(certificate->data_digest, promise->data_digest, MOEC_SHA256_BYTES);
    (void)snprintf(certificate->metric, sizeof certificate->metric, "%s", promise->metric);
    (void)snprintf(certificate->data_name, sizeof certificate->data_name, "%s", promise->data_name);
    (void)snprintf(certificate->arithmetic, sizeof certificate->arithmetic, "%s",
                   moec_arithmetic_certificate_name(promise->arithmetic));
}

bool moec_promise_is_of_part(const struct moec_certificate *certificate,
                             const uint8_t part_digest[static MOEC_SHA256_BYTES])
{
    return certificate->present && certificate->n_sequence > 0 &&
           memcmp(certificate->part_digest, part_digest, MOEC_SHA256_BYTES) == 0;
}
