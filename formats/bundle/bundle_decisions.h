/* The decisions section of a bundle: settings of decisions about each token, and what is promised of the
 * bundle with them. Thread rule: reading from several threads is fine; writing: one thread. */
#ifndef MOEC_FORMATS_BUNDLE_DECISIONS_H
#define MOEC_FORMATS_BUNDLE_DECISIONS_H

#include "formats/bundle/bundle.h"
#include "formats/model/decision_settings.h"

/* What tokens took on the certificate part, by the logical cache. */
struct moec_decision_traffic {
    uint64_t n_taken, n_missed; /* experts, and those of them that the cache had not */
    double token_bytes;         /* of the missed records, for each token */
};

/* Missed experts of those taken, 0 to 1. */
static inline double moec_decision_missed_share(const struct moec_decision_traffic *traffic)
{
    return traffic->n_taken > 0 ? (double)traffic->n_missed / (double)traffic->n_taken : 0;
}

struct moec_bundle_decisions {
    struct moec_decision_settings settings; /* all zero: the bundle has none */
    /* Where prompts are told apart: of each window the first so many were a prompt's; 0 with a source. */
    uint32_t prompt_tokens;
    /* Of the bundle with these settings against the original model, so that the loss of its own bits counts.
     * In the sequence, n_bytes are those of missed records a token, on the search part; of them what a plan
     * leaves that was searched together with them. */
    struct moec_certificate certificate;
    double plain_loss, plain_low, plain_high; /* of the bundle without decisions, on the same windows */
    struct moec_decision_traffic traffic, plain_traffic;
};

/* Leaves `decisions` all zero where the bundle has none. Errors: those of the section. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_load_decisions(const struct moec_bundle *bundle,
                                                             struct moec_bundle_decisions *decisions,
                                                             struct moec_error *err);

/* Writes to `out` the bundle at `path` with these decisions, in place of others that it may have; `out` may
 * be `path`. The other sections keep their bytes, provenance but for a note. Errors: as moec_bundle_strip. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_put_decisions(const char *path,
                                                            const struct moec_bundle_decisions *decisions,
                                                            const char *out, struct moec_error *err);

/* The section: encode writes moec_decisions_bytes, version 2 where a prompt is told apart, else version 1.
 * Decoding checks
 * numbers against the model and that words are words; what they mean is checked where they are used. Errors:
 * MOEC_ERR_FORMAT, MOEC_ERR_UNSUPPORTED for another version. */
#define MOEC_DECISIONS_BYTES        1232u
#define MOEC_DECISIONS_PROMPT_BYTES 1272u

static inline size_t moec_decisions_bytes(const struct moec_decision_settings *settings)
{
    return moec_decision_settings_tell_prompts(settings) ? MOEC_DECISIONS_PROMPT_BYTES : MOEC_DECISIONS_BYTES;
}

MOEC_WARN_UNUSED enum moec_status moec_decisions_encode(const struct moec_bundle_decisions *decisions,
                                                        uint8_t *bytes, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_decisions_decode(const uint8_t *bytes, size_t n_bytes,
                                                        const struct moec_config *config,
                                                        struct moec_bundle_decisions *decisions,
                                                        struct moec_error *err);

#endif
