/* Numbers at fixed places (FORMAT.md); what is reserved is 0 and refused otherwise. Policies are words of
 * small letters here: whether they exist is for the engine to know. */
#include "formats/bundle/bundle_fit.h"

#include "formats/base/bytes.h"
#include "formats/bundle/bundle_rewrite.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VERSION    1u
#define CONTEXT_AT 4u
#define MEMORY_AT  8u
#define BUFFER_AT  16u
#define RATE_AT    24u
#define LATENCY_AT 32u
#define TIMES_AT   40u
#define EVICT_AT   64u
#define PREDICT_AT 80u
#define END_AT     96u /* reserved up to MOEC_BUNDLE_FIT_BYTES */

static bool is_word(const char *name)
{
    size_t n = 0;
    while (n < MOEC_BUNDLE_FIT_NAME_BYTES &&
           ((name[n] >= 'a' && name[n] <= 'z') || name[n] == '-' || name[n] == '+'))
        n++;
    return n > 0 && n < MOEC_BUNDLE_FIT_NAME_BYTES && name[n] == '\0';
}

static bool is_time(double ns)
{
    return isfinite(ns) && ns >= 0;
}

static enum moec_status check(const struct moec_bundle_fit *fit, struct moec_error *err)
{
    if (fit->memory_bytes == 0 || fit->buffer_bytes > fit->memory_bytes)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle's fit section states a memory of %" PRIu64 " bytes, %" PRIu64
                         " of them for experts; expected more than 0 bytes of memory, and no more bytes "
                         "for experts than the memory has",
                         fit->memory_bytes, fit->buffer_bytes);
    if (!is_time(fit->token_ns) || !is_time(fit->compiled_ns) || !is_time(fit->resident_ns))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the bundle's fit section states times of %g, %g and %g ns per token, expected finite times of 0 "
            "or more",
            fit->token_ns, fit->compiled_ns, fit->resident_ns);
    if (is_word(fit->evict) && is_word(fit->predict))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "the bundle's fit section names an eviction or a predictor by something other than a "
                     "word of lower-case letters");
}

enum moec_status moec_bundle_fit_encode(const struct moec_bundle_fit *fit, uint8_t *bytes,
                                        struct moec_error *err)
{
    memset(bytes, 0, MOEC_BUNDLE_FIT_BYTES);
    MOEC_TRY(check(fit, err));
    moec_put_u32(bytes, VERSION);
    moec_put_u32(bytes + CONTEXT_AT, fit->n_context);
    moec_put_u64(bytes + MEMORY_AT, fit->memory_bytes);
    moec_put_u64(bytes + BUFFER_AT, fit->buffer_bytes);
    moec_put_u64(bytes + RATE_AT, fit->bytes_per_second);
    moec_put_u64(bytes + LATENCY_AT, fit->latency_ns);
    moec_put_f64(bytes + TIMES_AT, fit->token_ns);
    moec_put_f64(bytes + TIMES_AT + 8, fit->compiled_ns);
    moec_put_f64(bytes + TIMES_AT + 16, fit->resident_ns);
    memcpy(bytes + EVICT_AT, fit->evict, strlen(fit->evict));
    memcpy(bytes + PREDICT_AT, fit->predict, strlen(fit->predict));
    return MOEC_OK;
}

enum moec_status moec_bundle_fit_decode(const uint8_t *bytes, size_t n_bytes, struct moec_bundle_fit *fit,
                                        struct moec_error *err)
{
    struct moec_bundle_fit read = {0};
    memset(fit, 0, sizeof *fit);
    if (n_bytes >= 4 && moec_get_u32(bytes) != VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "the bundle's fit section has version %u, expected %u",
                         moec_get_u32(bytes), VERSION);
    if (n_bytes != MOEC_BUNDLE_FIT_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, "the bundle's fit section has %zu bytes, expected %u", n_bytes,
                         MOEC_BUNDLE_FIT_BYTES);
    for (size_t i = END_AT; i < MOEC_BUNDLE_FIT_BYTES; i++)
        if (bytes[i] != 0)
            return moec_fail(err, MOEC_ERR_FORMAT, "the bundle's fit section has %u in byte %zu, expected 0",
                             bytes[i], i);
    read.n_context = moec_get_u32(bytes + CONTEXT_AT);
    read.memory_bytes = moec_get_u64(bytes + MEMORY_AT);
    read.buffer_bytes = moec_get_u64(bytes + BUFFER_AT);
    read.bytes_per_second = moec_get_u64(bytes + RATE_AT);
    read.latency_ns = moec_get_u64(bytes + LATENCY_AT);
    read.token_ns = moec_get_f64(bytes + TIMES_AT);
    read.compiled_ns = moec_get_f64(bytes + TIMES_AT + 8);
    read.resident_ns = moec_get_f64(bytes + TIMES_AT + 16);
    memcpy(read.evict, bytes + EVICT_AT, sizeof read.evict);
    memcpy(read.predict, bytes + PREDICT_AT, sizeof read.predict);
    MOEC_TRY(check(&read, err));
    *fit = read;
    return MOEC_OK;
}

enum moec_status moec_bundle_put_fit(const char *path, const struct moec_bundle_fit *fit,
                                     const struct moec_bundle_decisions *decisions,
                                     const struct moec_certificate *certificate, const char *out,
                                     struct moec_error *err)
{
    static const char note[] = "; fit";
    struct moec_bundle *bundle = NULL;
    uint8_t bytes[MOEC_BUNDLE_FIT_BYTES], decided[MOEC_DECISIONS_PROMPT_BYTES],
        certified[MOEC_CERTIFICATE_BYTES], tested[MOEC_SEQUENCE_BYTES];
    uint64_t n_written = 0;
    struct moec_bundle_changes changes = {.note = ""};
    struct moec_bundle_put *put = changes.puts;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    if (fit != NULL) {
        MOEC_TRY_OUT(moec_bundle_fit_encode(fit, bytes, err));
        *put++ = (struct moec_bundle_put){.kind = MOEC_SECTION_FIT, .bytes = bytes, .n_bytes = sizeof bytes};
    }
    if (decisions != NULL) {
        MOEC_TRY_OUT(moec_decisions_encode(decisions, decided, err));
        *put++ = (struct moec_bundle_put){.kind = MOEC_SECTION_DECISIONS,
                                          .bytes = decided,
                                          .n_bytes = moec_decisions_bytes(&decisions->settings)};
    } else if (certificate != NULL) {
        MOEC_TRY_OUT(moec_certificate_encode(certificate, certified, err));
        MOEC_TRY_OUT(moec_sequence_encode(certificate, tested, err));
        *put++ = (struct moec_bundle_put){
            .kind = MOEC_SECTION_CERTIFICATE, .bytes = certified, .n_bytes = sizeof certified};
        *put++ = (struct moec_bundle_put){
            .kind = MOEC_SECTION_SEQUENCE, .bytes = tested, .n_bytes = sizeof tested};
    }
    changes.note = strstr(bundle->provenance.options, note) != NULL ? "" : note;
    status = moec_bundle_rewrite(bundle, &changes, out, &n_written, err);
out:
    moec_bundle_close(bundle);
    return status;
}
