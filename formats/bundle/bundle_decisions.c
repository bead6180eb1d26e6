/* Decisions about tokens as a section of fixed length. The version follows from the settings: only settings
 * that treat prompts otherwise need version 2. So a bundle has the same bytes whoever wrote it, and a reader
 * refuses a version that its settings do not need. Both directions make the same checks of the figures;
 * words are checked when they are read and before they are put into a bundle. */
#include "formats/bundle/bundle_decisions.h"

#include "formats/base/bytes.h"
#include "formats/bundle/bundle_rewrite.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define VERSION         1u /* all tokens are decided about alike */
#define VERSION_PROMPT  2u
#define FLAG_FREQUENT   1u
#define FLAG_DECODE     2u
#define ROUTE_AT        24u
#define PRECISION_AT    56u
#define PLAIN_AT        88u
#define TRAFFIC_AT      112u
#define TRAFFIC_BYTES   24u
#define CERTIFICATE_AT  160u
#define SEQUENCE_AT     (CERTIFICATE_AT + MOEC_CERTIFICATE_BYTES)
#define PREFILL_AT      MOEC_DECISIONS_BYTES
#define PROMPT_AT       (PREFILL_AT + MOEC_DECISION_TEXT_BYTES)
#define N_PLAIN         3
#define ALLOWED_LETTERS "abcdefghijklmnopqrstuvwxyz0123456789.:-"

_Static_assert(SEQUENCE_AT + MOEC_SEQUENCE_BYTES == MOEC_DECISIONS_BYTES, "the parts make up the section");

/* ---- checks of both directions ---- */

/* A word of an option, with nothing but NULs behind it. */
static enum moec_status check_word(const char *word, const char *what, struct moec_error *err)
{
    const size_t length = strnlen(word, MOEC_DECISION_TEXT_BYTES);
    if (length == MOEC_DECISION_TEXT_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the %s in the bundle's decisions section does not end with a zero byte within %u "
                         "bytes",
                         what, MOEC_DECISION_TEXT_BYTES);
    for (size_t i = 0; i < MOEC_DECISION_TEXT_BYTES; i++)
        if (i < length ? strchr(ALLOWED_LETTERS, word[i]) == NULL : word[i] != '\0')
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "byte %zu of the %s in the bundle's decisions section is 0x%02x, expected a "
                             "word such as cache-prior:0.2, then only zero bytes",
                             i, what, (unsigned)(unsigned char)word[i]);
    return MOEC_OK;
}

static enum moec_status check_settings(const struct moec_decision_settings *settings,
                                       const struct moec_config *config, struct moec_error *err)
{
    const bool takes_low = moec_decision_settings_take_low(settings);
    MOEC_TRY(check_word(settings->route, "route", err));
    MOEC_TRY(check_word(settings->precision, "precision", err));
    MOEC_TRY(check_word(settings->prefill, "prefill", err));
    if (!moec_decision_settings_are_on(settings))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle's decisions section sets no route, precision or prefill, expected at "
                         "least one of the three");
    if (settings->n_slots == 0 || settings->n_slots > config->n_expert ||
        settings->n_low_slots > config->n_expert || settings->keep_top > config->top_k ||
        settings->low_bits > 16)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle's decisions section has %" PRIu32 " cache slots, %" PRIu32
                         " low-precision slots of %" PRIu32 " bits and keeps the first %" PRIu32
                         " experts of a token, expected 1 to %" PRIu32 " slots, up to %" PRIu32
                         " low-precision slots of at most 16 bits, and up to %" PRIu32 " kept experts",
                         settings->n_slots, settings->n_low_slots, settings->low_bits, settings->keep_top,
                         config->n_expert, config->n_expert, config->top_k);
    if (takes_low != (settings->n_low_slots > 0) || takes_low != (settings->low_bits > 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle's decisions section has %" PRIu32 " low-precision slots of %" PRIu32
                         " bits, precision '%s' and prefill '%s': expected slots and bits above 0 if a "
                         "precision or prefill is set, else 0",
                         settings->n_low_slots, settings->low_bits, settings->precision, settings->prefill);
    return MOEC_OK;
}

static enum moec_status check_traffic(const struct moec_decision_traffic *traffic, struct moec_error *err)
{
    if (traffic->n_missed <= traffic->n_taken && isfinite(traffic->token_bytes) && traffic->token_bytes >= 0)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "the bundle's decisions section states %" PRIu64 " misses of %" PRIu64
                     " experts and %g bytes per token, expected no more misses than experts, and a finite "
                     "number of bytes",
                     traffic->n_missed, traffic->n_taken, traffic->token_bytes);
}

static enum moec_status check_figures(const struct moec_bundle_decisions *decisions, struct moec_error *err)
{
    if (!isfinite(decisions->plain_loss) || !isfinite(decisions->plain_low) ||
        !isfinite(decisions->plain_high))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle's decisions section states a loss without decisions of %g (%g to %g), "
                         "expected finite numbers",
                         decisions->plain_loss, decisions->plain_low, decisions->plain_high);
    if (!decisions->certificate.present)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle's decisions section has no certificate, expected one");
    MOEC_TRY(check_traffic(&decisions->traffic, err));
    return check_traffic(&decisions->plain_traffic, err);
}

/* ---- bytes ---- */

static void put_traffic(uint8_t *at, const struct moec_decision_traffic *traffic)
{
    moec_put_u64(at, traffic->n_taken);
    moec_put_u64(at + 8, traffic->n_missed);
    moec_put_f64(at + 16, traffic->token_bytes);
}

static struct moec_decision_traffic get_traffic(const uint8_t *at)
{
    return (struct moec_decision_traffic){
        .n_taken = moec_get_u64(at), .n_missed = moec_get_u64(at + 8), .token_bytes = moec_get_f64(at + 16)};
}

enum moec_status moec_decisions_encode(const struct moec_bundle_decisions *decisions, uint8_t *bytes,
                                       struct moec_error *err)
{
    const struct moec_decision_settings *settings = &decisions->settings;
    const double plain[N_PLAIN] = {decisions->plain_loss, decisions->plain_low, decisions->plain_high};
    const size_t n_bytes = moec_decisions_bytes(settings);
    memset(bytes, 0, n_bytes);
    MOEC_TRY(check_figures(decisions, err));
    moec_put_u32(bytes, n_bytes == MOEC_DECISIONS_PROMPT_BYTES ? VERSION_PROMPT : VERSION);
    if (n_bytes == MOEC_DECISIONS_PROMPT_BYTES) {
        memcpy(bytes + PREFILL_AT, settings->prefill, sizeof settings->prefill);
        moec_put_u32(bytes + PROMPT_AT, decisions->prompt_tokens);
    }
    moec_put_u32(bytes + 4,
                 (settings->starts_frequent ? FLAG_FREQUENT : 0) | (settings->decode_only ? FLAG_DECODE : 0));
    moec_put_u32(bytes + 8, settings->n_slots);
    moec_put_u32(bytes + 12, settings->n_low_slots);
    moec_put_u32(bytes + 16, settings->low_bits);
    moec_put_u32(bytes + 20, settings->keep_top);
    memcpy(bytes + ROUTE_AT, settings->route, sizeof settings->route);
    memcpy(bytes + PRECISION_AT, settings->precision, sizeof settings->precision);
    for (size_t i = 0; i < N_PLAIN; i++)
        moec_put_f64(bytes + PLAIN_AT + 8 * i, plain[i]);
    put_traffic(bytes + TRAFFIC_AT, &decisions->traffic);
    put_traffic(bytes + TRAFFIC_AT + TRAFFIC_BYTES, &decisions->plain_traffic);
    MOEC_TRY(moec_certificate_encode(&decisions->certificate, bytes + CERTIFICATE_AT, err));
    return moec_sequence_encode(&decisions->certificate, bytes + SEQUENCE_AT, err);
}

static enum moec_status check_version(const uint8_t *bytes, size_t n_bytes, struct moec_error *err)
{
    const uint32_t version = n_bytes < 4 ? 0 : moec_get_u32(bytes);
    const size_t expected = version == VERSION_PROMPT ? MOEC_DECISIONS_PROMPT_BYTES : MOEC_DECISIONS_BYTES;
    if (version != VERSION && version != VERSION_PROMPT)
        return moec_fail(err, n_bytes < 4 ? MOEC_ERR_FORMAT : MOEC_ERR_UNSUPPORTED,
                         "the bundle's decisions section has %zu bytes and version %" PRIu32
                         ", expected version %u or %u",
                         n_bytes, version, VERSION, VERSION_PROMPT);
    if (n_bytes != expected)
        return moec_fail(err, MOEC_ERR_FORMAT, "the bundle's decisions section has %zu bytes, expected %zu",
                         n_bytes, expected);
    return MOEC_OK;
}

/* The end of version 2. */
static enum moec_status get_prompt(const uint8_t *bytes, struct moec_bundle_decisions *decisions,
                                   struct moec_error *err)
{
    memcpy(decisions->settings.prefill, bytes + PREFILL_AT, sizeof decisions->settings.prefill);
    decisions->prompt_tokens = moec_get_u32(bytes + PROMPT_AT);
    const uint32_t reserved = moec_get_u32(bytes + PROMPT_AT + 4);
    if (reserved != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle's decisions section of version %u ends with the number %" PRIu32
                         ", expected 0",
                         VERSION_PROMPT, reserved);
    return MOEC_OK;
}

/* Whether the version is the one of the settings, whose words were checked. */
static enum moec_status check_prompts(const struct moec_decision_settings *settings, size_t n_bytes,
                                      struct moec_error *err)
{
    if (settings->prefill[0] != '\0' && settings->decode_only)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle's decisions section of version %u has a prefill setting and also the "
                         "mark 'not for prompts', expected only one of them",
                         VERSION_PROMPT);
    if (n_bytes == moec_decisions_bytes(settings))
        return MOEC_OK;
    const bool is_plain = n_bytes == MOEC_DECISIONS_BYTES;
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "the bundle's decisions section has version %u, expected version %u, because it has %s",
                     is_plain ? VERSION : VERSION_PROMPT, is_plain ? VERSION_PROMPT : VERSION,
                     is_plain ? "a prefill setting, a precision with blocks or the mark 'not for prompts'"
                              : "no prefill setting, no precision with blocks and no mark 'not for prompts'");
}

enum moec_status moec_decisions_decode(const uint8_t *bytes, size_t n_bytes, const struct moec_config *config,
                                       struct moec_bundle_decisions *decisions, struct moec_error *err)
{
    struct moec_bundle_decisions made = {0};
    double *const plain[N_PLAIN] = {&made.plain_loss, &made.plain_low, &made.plain_high};
    memset(decisions, 0, sizeof *decisions);
    MOEC_TRY(check_version(bytes, n_bytes, err));
    const uint32_t flags = moec_get_u32(bytes + 4);
    if ((flags & ~(FLAG_FREQUENT | FLAG_DECODE)) != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle's decisions section has flags 0x%" PRIx32 ", expected 0 to 3", flags);
    made.settings.starts_frequent = (flags & FLAG_FREQUENT) != 0;
    made.settings.decode_only = (flags & FLAG_DECODE) != 0;
    made.settings.n_slots = moec_get_u32(bytes + 8);
    made.settings.n_low_slots = moec_get_u32(bytes + 12);
    made.settings.low_bits = moec_get_u32(bytes + 16);
    made.settings.keep_top = moec_get_u32(bytes + 20);
    memcpy(made.settings.route, bytes + ROUTE_AT, sizeof made.settings.route);
    memcpy(made.settings.precision, bytes + PRECISION_AT, sizeof made.settings.precision);
    if (n_bytes == MOEC_DECISIONS_PROMPT_BYTES)
        MOEC_TRY(get_prompt(bytes, &made, err));
    MOEC_TRY(check_settings(&made.settings, config, err));
    MOEC_TRY(check_prompts(&made.settings, n_bytes, err));
    for (size_t i = 0; i < N_PLAIN; i++)
        *plain[i] = moec_get_f64(bytes + PLAIN_AT + 8 * i);
    made.traffic = get_traffic(bytes + TRAFFIC_AT);
    made.plain_traffic = get_traffic(bytes + TRAFFIC_AT + TRAFFIC_BYTES);
    MOEC_TRY(moec_certificate_decode(bytes + CERTIFICATE_AT, MOEC_CERTIFICATE_BYTES, &made.certificate, err));
    MOEC_TRY(moec_sequence_decode(bytes + SEQUENCE_AT, MOEC_SEQUENCE_BYTES, &made.certificate, err));
    MOEC_TRY(check_figures(&made, err));
    *decisions = made;
    return MOEC_OK;
}

/* ---- into a bundle ---- */

enum moec_status moec_bundle_put_decisions(const char *path, const struct moec_bundle_decisions *decisions,
                                           const char *out, struct moec_error *err)
{
    static const char note[] = "; tune";
    struct moec_bundle *bundle = NULL;
    uint8_t bytes[MOEC_DECISIONS_PROMPT_BYTES];
    uint64_t n_written = 0;
    struct moec_bundle_changes changes = {.puts = {{.kind = MOEC_SECTION_DECISIONS,
                                                    .bytes = bytes,
                                                    .n_bytes = moec_decisions_bytes(&decisions->settings)}}};
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    MOEC_TRY_OUT(check_settings(&decisions->settings, &bundle->config, err));
    MOEC_TRY_OUT(moec_decisions_encode(decisions, bytes, err));
    changes.note = strstr(bundle->provenance.options, note) != NULL ? "" : note;
    status = moec_bundle_rewrite(bundle, &changes, out, &n_written, err);
out:
    moec_bundle_close(bundle);
    return status;
}
