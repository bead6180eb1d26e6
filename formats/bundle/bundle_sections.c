/* Sections of a bundle: stored form (pieces, checksums) and the contents that have no file of their own. */
#include "formats/bundle/bundle_format.h"

#include "formats/base/bytes.h"
#include "formats/base/compress.h"
#include "formats/base/memory.h"
#include "formats/bundle/section_hash.h"
#include "formats/bundle/section_pieces.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- names ---- */

void moec_section_set_name(struct moec_section *section)
{
    static const char *const names[] = {[MOEC_SECTION_CONFIG] = "config",
                                        [MOEC_SECTION_TOKENIZER] = "tokenizer",
                                        [MOEC_SECTION_PATHS] = "paths",
                                        [MOEC_SECTION_ROUTING] = "routing",
                                        [MOEC_SECTION_CERTIFICATE] = "certificate",
                                        [MOEC_SECTION_PROVENANCE] = "provenance",
                                        [MOEC_SECTION_DENSE_TABLE] = "dense table",
                                        [MOEC_SECTION_DENSE] = "dense weights",
                                        [MOEC_SECTION_GENERATION] = "generation"};
    /* Those that may be skipped, from MOEC_SECTION_ANCILLARY on. */
    static const char *const skipped[] = {
        NULL,           "sequence",  "chat",          "sparsity",      "decisions",     "sparsity plan",
        "record parts", "predictor", "router ranges", "expert scores", "evict weights", "dense sums",
        "fit"};
    const uint32_t kind = section->kind, beyond = kind - MOEC_SECTION_ANCILLARY;
    const size_t capacity = sizeof section->name;
    if (kind == MOEC_SECTION_RECORD_INDEX)
        (void)snprintf(section->name, capacity, "index of copy %u", section->level);
    else if (kind == MOEC_SECTION_RECORDS)
        (void)snprintf(section->name, capacity, "records of copy %u", section->level);
    else if (kind < sizeof names / sizeof *names && names[kind] != NULL)
        (void)snprintf(section->name, capacity, "%s", names[kind]);
    else if (kind > MOEC_SECTION_ANCILLARY && beyond < sizeof skipped / sizeof *skipped)
        (void)snprintf(section->name, capacity, "%s", skipped[beyond]);
    else
        (void)snprintf(section->name, capacity, "unknown kind %u", kind);
}

/* ---- stored form: compressed pieces ---- */

static enum moec_status encode_piece(const uint8_t *content, size_t n, moec_section_sink *sink, void *context,
                                     struct moec_error *err)
{
    uint8_t header[MOEC_PIECE_HEADER_BYTES];
    uint8_t *packed = NULL;
    size_t n_packed = 0;
    MOEC_TRY(moec_compress(content, n, &packed, &n_packed, err));
    bool pays = n_packed < n;
    const uint8_t *stored = pays ? packed : content;
    size_t n_stored = pays ? n_packed : n;
    moec_put_u32(header, (uint32_t)n_stored | (pays ? 0 : MOEC_PIECE_RAW));
    moec_put_u32(header + 4, moec_crc32c(0, stored, n_stored));
    enum moec_status status = sink(context, header, sizeof header, err);
    if (status == MOEC_OK)
        status = sink(context, stored, n_stored, err);
    free(packed);
    return status;
}

enum moec_status moec_pieces_push(struct moec_pieces *pieces, const uint8_t *bytes, size_t n,
                                  struct moec_error *err)
{
    while (n > 0) {
        if (pieces->used == 0 && n >= MOEC_PIECE_BYTES) {
            MOEC_TRY(encode_piece(bytes, MOEC_PIECE_BYTES, pieces->sink, pieces->context, err));
            bytes += MOEC_PIECE_BYTES;
            n -= MOEC_PIECE_BYTES;
            continue;
        }
        size_t room = MOEC_PIECE_BYTES - pieces->used, taken = n < room ? n : room;
        memcpy(pieces->buffer + pieces->used, bytes, taken);
        pieces->used += taken;
        bytes += taken;
        n -= taken;
        if (pieces->used == MOEC_PIECE_BYTES)
            MOEC_TRY(moec_pieces_finish(pieces, err));
    }
    return MOEC_OK;
}

enum moec_status moec_pieces_finish(struct moec_pieces *pieces, struct moec_error *err)
{
    size_t n = pieces->used;
    pieces->used = 0;
    return n == 0 ? MOEC_OK : encode_piece(pieces->buffer, n, pieces->sink, pieces->context, err);
}

enum moec_status moec_pieces_encode(const uint8_t *content, uint64_t content_bytes, moec_section_sink *sink,
                                    void *context, struct moec_error *err)
{
    for (uint64_t done = 0; done < content_bytes;) {
        uint64_t left = content_bytes - done;
        size_t n = left < MOEC_PIECE_BYTES ? (size_t)left : MOEC_PIECE_BYTES;
        MOEC_TRY(encode_piece(content + done, n, sink, context, err));
        done += n;
    }
    return MOEC_OK;
}

/* Less is hashed in less time than a thread takes. */
#define LEAST_BESIDE_BYTES ((uint64_t)4 << 20)

static enum moec_status load_plain(const struct moec_file *file, const struct moec_section *section,
                                   uint8_t *content, struct moec_sha256 *digest, struct moec_error *err)
{
    for (uint64_t done = 0; done < section->stored_bytes;) {
        const uint64_t left = section->stored_bytes - done;
        const size_t n = left < MOEC_PIECE_BYTES ? (size_t)left : MOEC_PIECE_BYTES;
        MOEC_TRY(moec_file_read(file, section->offset + done, content + done, n, err));
        moec_sha256_update(digest, content + done, n);
        done += n;
    }
    return MOEC_OK;
}

/* A large section is hashed by a thread of its own, meanwhile. */
static enum moec_status load_beside(const struct moec_file *file, const struct moec_section *section,
                                    uint8_t *content, struct moec_error *err)
{
    struct moec_section_hash hash;
    MOEC_TRY(moec_section_hash_begin(&hash, file, section, err));
    const enum moec_status status = moec_section_pieces_load(file, section, content, NULL, err);
    const enum moec_status hashed = moec_section_hash_end(&hash, status == MOEC_OK ? err : NULL);
    return status != MOEC_OK ? status : hashed;
}

enum moec_status moec_section_load(const struct moec_file *file, const struct moec_section *section,
                                   uint8_t *content, struct moec_error *err)
{
    const bool has_pieces = (section->flags & MOEC_SECTION_FLAG_COMPRESSED) != 0;
    if (has_pieces && section->stored_bytes >= LEAST_BESIDE_BYTES)
        return load_beside(file, section, content, err);
    struct moec_sha256 digest;
    uint8_t found[MOEC_SHA256_BYTES];
    moec_sha256_init(&digest);
    MOEC_TRY(has_pieces ? moec_section_pieces_load(file, section, content, &digest, err)
                        : load_plain(file, section, content, &digest, err));
    moec_sha256_finish(&digest, found);
    return moec_section_check_digest(file, section, found, err);
}

enum moec_status moec_section_load_alloc(const struct moec_file *file, const struct moec_section *section,
                                         uint64_t limit_bytes, uint8_t **content, struct moec_error *err)
{
    void *memory = NULL;
    if (section->content_bytes > limit_bytes)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "section '%s' of the bundle '%s' holds %" PRIu64 " bytes, expected at most "
                         "%" PRIu64,
                         section->name, file->path, section->content_bytes, limit_bytes);
    MOEC_TRY(moec_alloc(&memory, section->content_bytes, 1, section->name, err));
    enum moec_status status = moec_section_load(file, section, memory, err);
    if (status != MOEC_OK) {
        free(memory);
        return status;
    }
    *content = memory;
    return MOEC_OK;
}

/* ---- fixed text fields ---- */

/* Names are printed: control characters from a file must not reach a terminal. */
static enum moec_status check_text(const char *text, size_t capacity, const char *what,
                                   struct moec_error *err)
{
    size_t length = strnlen(text, capacity);
    if (length == capacity)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s does not end with a zero byte within %zu bytes", what,
                         capacity);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return moec_fail(err, MOEC_ERR_FORMAT, "%s has control character 0x%02x at byte %zu", what,
                             (unsigned)(unsigned char)text[i], i);
    return MOEC_OK;
}

static enum moec_status put_text(uint8_t *at, const char *text, size_t capacity, const char *what,
                                 struct moec_error *err)
{
    MOEC_TRY(check_text(text, capacity, what, err));
    memset(at, 0, capacity);
    memcpy(at, text, strnlen(text, capacity));
    return MOEC_OK;
}

static enum moec_status get_text(const uint8_t *at, char *text, size_t capacity, const char *what,
                                 struct moec_error *err)
{
    memcpy(text, at, capacity);
    MOEC_TRY(check_text(text, capacity, what, err));
    for (size_t i = strlen(text); i < capacity; i++)
        if (text[i] != 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s has nonzero bytes after its end, expected only zero bytes", what);
    return MOEC_OK;
}

static enum moec_status check_zero(const uint8_t *at, size_t n, const char *what, struct moec_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != 0)
            return moec_fail(err, MOEC_ERR_FORMAT, "%s has %u in a reserved byte, expected 0", what, at[i]);
    return MOEC_OK;
}

static enum moec_status check_size(size_t n_bytes, uint64_t expected, const char *what,
                                   struct moec_error *err)
{
    if (n_bytes != expected)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has %zu bytes, expected %" PRIu64, what, n_bytes,
                         expected);
    return MOEC_OK;
}

/* ---- certificate and provenance ---- */

#define CERTIFICATE_NUMBERS 10
#define CERTIFICATE_TARGET  7 /* the one number that may be NaN */

static enum moec_status check_number(double value, size_t index, struct moec_error *err)
{
    if (isfinite(value) || (index == CERTIFICATE_TARGET && isnan(value)))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "number %zu of the certificate is NaN or infinite, expected a finite number", index);
}

bool moec_provenance_orders_neurons(const struct moec_provenance *provenance)
{
    static const char word[] = " " MOEC_OPTION_ORDER_NEURONS;
    const char *found = strstr(provenance->options, word);
    return found != NULL && (found[sizeof word - 1] == '\0' || found[sizeof word - 1] == ' ');
}

enum moec_status moec_certificate_encode(const struct moec_certificate *certificate, uint8_t *bytes,
                                         struct moec_error *err)
{
    const struct moec_certificate *c = certificate;
    memset(bytes, 0, MOEC_CERTIFICATE_BYTES);
    if (c == NULL || !c->present)
        return MOEC_OK;
    bytes[0] = 1;
    bytes[1] = c->missed;
    bytes[2] = c->is_chance;
    MOEC_TRY(put_text(bytes + 8, c->metric, sizeof c->metric, "metric of the certificate", err));
    const double numbers[CERTIFICATE_NUMBERS] = {
        c->reference,   c->compiled,         c->loss,   c->loss_low,   c->loss_high,
        c->search_loss, c->search_loss_high, c->target, c->confidence, c->mean_kl};
    for (size_t i = 0; i < CERTIFICATE_NUMBERS; i++) {
        MOEC_TRY(check_number(numbers[i], i, err));
        /* One NaN for all: which NaN a computation gives differs between machines. */
        moec_put_f64(bytes + 40 + 8 * i, isnan(numbers[i]) ? (double)NAN : numbers[i]);
    }
    moec_put_u32(bytes + 120, c->n_window);
    moec_put_u32(bytes + 124, c->seq_len_tokens);
    moec_put_u64(bytes + 128, c->n_token);
    memcpy(bytes + 136, c->data_digest, sizeof c->data_digest);
    MOEC_TRY(put_text(bytes + 168, c->data_name, sizeof c->data_name, "data name of the certificate", err));
    return put_text(bytes + 424, c->arithmetic, sizeof c->arithmetic, "arithmetic of the certificate", err);
}

enum moec_status moec_certificate_decode(const uint8_t *bytes, size_t n_bytes,
                                         struct moec_certificate *certificate, struct moec_error *err)
{
    struct moec_certificate c = {0};
    MOEC_TRY(check_size(n_bytes, MOEC_CERTIFICATE_BYTES, "certificate", err));
    if (bytes[0] > 1 || bytes[1] > 1 || bytes[2] > 1)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the certificate has flags %u, %u and %u, expected each to be 0 or 1", bytes[0],
                         bytes[1], bytes[2]);
    if (bytes[0] == 0) {
        MOEC_TRY(check_zero(bytes, n_bytes, "absent certificate", err));
        *certificate = c;
        return MOEC_OK;
    }
    c.present = true;
    c.missed = bytes[1] != 0;
    c.is_chance = bytes[2] != 0;
    MOEC_TRY(check_zero(bytes + 3, 5, "certificate", err));
    MOEC_TRY(get_text(bytes + 8, c.metric, sizeof c.metric, "metric of the certificate", err));
    double *const numbers[CERTIFICATE_NUMBERS] = {
        &c.reference,   &c.compiled,         &c.loss,   &c.loss_low,   &c.loss_high,
        &c.search_loss, &c.search_loss_high, &c.target, &c.confidence, &c.mean_kl};
    for (size_t i = 0; i < CERTIFICATE_NUMBERS; i++) {
        *numbers[i] = moec_get_f64(bytes + 40 + 8 * i);
        MOEC_TRY(check_number(*numbers[i], i, err));
    }
    c.n_window = moec_get_u32(bytes + 120);
    c.seq_len_tokens = moec_get_u32(bytes + 124);
    c.n_token = moec_get_u64(bytes + 128);
    memcpy(c.data_digest, bytes + 136, sizeof c.data_digest);
    MOEC_TRY(get_text(bytes + 168, c.data_name, sizeof c.data_name, "data name of the certificate", err));
    MOEC_TRY(get_text(bytes + 424, c.arithmetic, sizeof c.arithmetic, "arithmetic of the certificate", err));
    *certificate = c;
    return MOEC_OK;
}

#define STEP_NUMBERS 7

static enum moec_status check_step(const struct moec_sequence_step *step, uint32_t i, struct moec_error *err)
{
    const double numbers[STEP_NUMBERS] = {step->search_loss, step->search_high, step->loss,   step->low,
                                          step->high,        step->kl,          step->p_value};
    for (size_t n = 0; n < STEP_NUMBERS; n++)
        if (isinf(numbers[n]))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "plan %u in the certificate's sequence of plans has an infinite number, "
                             "expected finite numbers",
                             i);
    if ((unsigned)step->result > MOEC_SEQUENCE_FAILED)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "plan %u in the certificate's sequence of plans has result %u, expected 0 to 2", i,
                         (unsigned)step->result);
    return MOEC_OK;
}

/* What a fixed sequence can have come to: plans that passed, one that failed, others that were not tested;
 * and the bundle has the last that passed, or what it was allowed to be where none did. */
static enum moec_status check_order(const struct moec_certificate *certificate, struct moec_error *err)
{
    const struct moec_sequence_step *steps = certificate->sequence;
    uint32_t n_passed = 0;
    while (n_passed < certificate->n_sequence && steps[n_passed].result == MOEC_SEQUENCE_PASSED)
        n_passed++;
    for (uint32_t i = n_passed; i < certificate->n_sequence; i++) {
        if (i > n_passed && steps[i].result != MOEC_SEQUENCE_NOT_TESTED)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "plan %u in the certificate's sequence of plans was tested although plan %u did "
                             "not pass: such a test proves nothing",
                             i, n_passed);
        if (steps[i].is_chosen && (n_passed > 0 || !certificate->missed))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "plan %u in the certificate's sequence of plans is marked as the bundle's plan, "
                             "but did not pass its test",
                             i);
    }
    return MOEC_OK;
}

enum moec_status moec_sequence_encode(const struct moec_certificate *certificate, uint8_t *bytes,
                                      struct moec_error *err)
{
    memset(bytes, 0, MOEC_SEQUENCE_BYTES);
    if (certificate == NULL || !certificate->present)
        return MOEC_OK;
    MOEC_TRY(check_order(certificate, err));
    bytes[0] = (uint8_t)certificate->n_sequence;
    memcpy(bytes + 8, certificate->part_digest, sizeof certificate->part_digest);
    for (uint32_t i = 0; i < certificate->n_sequence; i++) {
        const struct moec_sequence_step *step = &certificate->sequence[i];
        uint8_t *out = bytes + MOEC_SEQUENCE_HEADER_BYTES + (size_t)i * MOEC_SEQUENCE_STEP_BYTES;
        const double numbers[STEP_NUMBERS] = {step->search_loss, step->search_high, step->loss,   step->low,
                                              step->high,        step->kl,          step->p_value};
        MOEC_TRY(check_step(step, i, err));
        moec_put_u64(out, step->n_bytes);
        for (size_t n = 0; n < STEP_NUMBERS; n++)
            moec_put_f64(out + 8 + 8 * n, isnan(numbers[n]) ? (double)NAN : numbers[n]);
        out[64] = (uint8_t)step->result;
        out[65] = step->is_chosen;
    }
    return MOEC_OK;
}

enum moec_status moec_sequence_decode(const uint8_t *bytes, size_t n_bytes,
                                      struct moec_certificate *certificate, struct moec_error *err)
{
    MOEC_TRY(check_size(n_bytes, MOEC_SEQUENCE_BYTES, "sequence", err));
    if (bytes[0] > MOEC_MAX_SEQUENCE || (bytes[0] > 0 && !certificate->present))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the certificate's sequence of plans has %u plans, expected at most %d", bytes[0],
                         certificate->present ? MOEC_MAX_SEQUENCE : 0);
    MOEC_TRY(check_zero(bytes + 1, 7, "sequence", err));
    const size_t used = MOEC_SEQUENCE_HEADER_BYTES + (size_t)bytes[0] * MOEC_SEQUENCE_STEP_BYTES;
    MOEC_TRY(check_zero(bytes + used, MOEC_SEQUENCE_BYTES - used, "end of the sequence", err));
    memcpy(certificate->part_digest, bytes + 8, sizeof certificate->part_digest);
    certificate->n_sequence = bytes[0];
    for (uint32_t i = 0; i < certificate->n_sequence; i++) {
        struct moec_sequence_step *step = &certificate->sequence[i];
        const uint8_t *in = bytes + MOEC_SEQUENCE_HEADER_BYTES + (size_t)i * MOEC_SEQUENCE_STEP_BYTES;
        double *const numbers[STEP_NUMBERS] = {&step->search_loss, &step->search_high, &step->loss,
                                               &step->low,         &step->high,        &step->kl,
                                               &step->p_value};
        step->n_bytes = moec_get_u64(in);
        for (size_t n = 0; n < STEP_NUMBERS; n++)
            *numbers[n] = moec_get_f64(in + 8 + 8 * n);
        step->result = (enum moec_sequence_result)in[64];
        if (in[65] > 1)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "plan %u in the certificate's sequence of plans has flag %u, expected 0 or 1", i,
                             in[65]);
        step->is_chosen = in[65] != 0;
        MOEC_TRY(check_zero(in + 66, MOEC_SEQUENCE_STEP_BYTES - 66, "plan of the sequence", err));
        MOEC_TRY(check_step(step, i, err));
    }
    return check_order(certificate, err);
}

enum moec_status moec_provenance_encode(const struct moec_provenance *provenance, uint8_t *bytes,
                                        struct moec_error *err)
{
    const struct moec_provenance *p = provenance;
    MOEC_TRY(put_text(bytes, p->moec_version, sizeof p->moec_version, "version in the provenance", err));
    MOEC_TRY(put_text(bytes + 32, p->policy, sizeof p->policy, "policy in the provenance", err));
    MOEC_TRY(put_text(bytes + 96, p->options, sizeof p->options, "options in the provenance", err));
    MOEC_TRY(put_text(bytes + 608, p->source_name, sizeof p->source_name, "source in the provenance", err));
    memcpy(bytes + 864, p->model_digest, sizeof p->model_digest);
    memcpy(bytes + 896, p->profile_digest, sizeof p->profile_digest);
    moec_put_u64(bytes + 928, p->source_bytes);
    moec_put_u64(bytes + 936, p->source_expert_bytes);
    return MOEC_OK;
}

enum moec_status moec_provenance_decode(const uint8_t *bytes, size_t n_bytes,
                                        struct moec_provenance *provenance, struct moec_error *err)
{
    struct moec_provenance p = {0};
    MOEC_TRY(check_size(n_bytes, MOEC_PROVENANCE_BYTES, "provenance", err));
    MOEC_TRY(get_text(bytes, p.moec_version, sizeof p.moec_version, "version in the provenance", err));
    MOEC_TRY(get_text(bytes + 32, p.policy, sizeof p.policy, "policy in the provenance", err));
    MOEC_TRY(get_text(bytes + 96, p.options, sizeof p.options, "options in the provenance", err));
    MOEC_TRY(get_text(bytes + 608, p.source_name, sizeof p.source_name, "source in the provenance", err));
    memcpy(p.model_digest, bytes + 864, sizeof p.model_digest);
    memcpy(p.profile_digest, bytes + 896, sizeof p.profile_digest);
    p.source_bytes = moec_get_u64(bytes + 928);
    p.source_expert_bytes = moec_get_u64(bytes + 936);
    *provenance = p;
    return MOEC_OK;
}

/* ---- routing summary ---- */

void moec_routing_encode(const struct moec_routing_summary *routing, uint32_t n_layer, uint32_t n_expert,
                         uint8_t *bytes)
{
    size_t n = (size_t)n_layer * n_expert;
    moec_put_u32(bytes, n_layer);
    moec_put_u32(bytes + 4, n_expert);
    bytes += MOEC_ROUTING_HEADER_BYTES;
    for (size_t i = 0; i < n; i++) {
        moec_put_u64(bytes + 8 * i, routing->activations[i]);
        moec_put_f64(bytes + 8 * (n + i), routing->mean_gate_weight[i]);
    }
}

enum moec_status moec_routing_decode(const uint8_t *bytes, size_t n_bytes, uint32_t n_layer,
                                     uint32_t n_expert, struct moec_routing_summary *routing,
                                     struct moec_error *err)
{
    struct moec_routing_summary made = {0};
    void *activations = NULL, *weights = NULL;
    size_t n = (size_t)n_layer * n_expert;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(check_size(n_bytes, MOEC_ROUTING_HEADER_BYTES + (uint64_t)n * MOEC_ROUTING_ENTRY_BYTES,
                        "routing summary", err));
    if (moec_get_u32(bytes) != n_layer || moec_get_u32(bytes + 4) != n_expert)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the routing summary has %u layers of %u experts, expected %u layers of %u experts",
                         moec_get_u32(bytes), moec_get_u32(bytes + 4), n_layer, n_expert);
    MOEC_TRY_OUT(moec_alloc(&activations, n, sizeof *made.activations, "routing summary", err));
    MOEC_TRY_OUT(moec_alloc(&weights, n, sizeof *made.mean_gate_weight, "routing summary", err));
    made.activations = activations;
    made.mean_gate_weight = weights;
    bytes += MOEC_ROUTING_HEADER_BYTES;
    for (size_t i = 0; i < n; i++) {
        made.activations[i] = moec_get_u64(bytes + 8 * i);
        made.mean_gate_weight[i] = moec_get_f64(bytes + 8 * (n + i));
        if (!isfinite(made.mean_gate_weight[i])) {
            status =
                moec_fail(err, MOEC_ERR_FORMAT,
                          "the routing summary of MoE layer %zu has NaN or infinity as the gate weight of "
                          "expert %zu, expected a finite number",
                          i / n_expert, i % n_expert);
            goto out;
        }
    }
    *routing = made;
    activations = weights = NULL;
out:
    free(activations);
    free(weights);
    return status;
}

/* ---- codecs, dense table and record index ---- */

static void put_codec(uint8_t *at, struct moec_codec codec)
{
    at[0] = codec.dtype;
    at[1] = codec.scheme;
    moec_put_u16(at + 2, codec.group);
}

static struct moec_codec get_codec(const uint8_t *at)
{
    return (struct moec_codec){.dtype = at[0], .scheme = at[1], .group = moec_get_u16(at + 2)};
}

void moec_dense_table_encode(const struct moec_dense *dense, uint8_t *bytes)
{
    moec_put_u32(bytes, dense->n_entries);
    moec_put_u32(bytes + 4, 0);
    moec_put_u64(bytes + 8, dense->blob_bytes);
    bytes += MOEC_DENSE_HEADER_BYTES;
    for (uint32_t i = 0; i < dense->n_entries; i++, bytes += MOEC_DENSE_ENTRY_BYTES) {
        const struct moec_dense_entry *entry = &dense->entries[i];
        moec_put_u32(bytes, entry->role);
        moec_put_u32(bytes + 4, entry->layer);
        put_codec(bytes + 8, entry->codec);
        moec_put_u32(bytes + 12, entry->rows);
        moec_put_u32(bytes + 16, entry->columns);
        moec_put_u32(bytes + 20, 0);
        moec_put_u64(bytes + 24, entry->offset);
        moec_put_u64(bytes + 32, entry->n_bytes);
    }
}

enum moec_status moec_dense_table_decode(const uint8_t *bytes, size_t n_bytes,
                                         const struct moec_config *config, struct moec_dense *dense,
                                         struct moec_error *err)
{
    struct moec_dense made = {0};
    void *entries = NULL;
    if (n_bytes < MOEC_DENSE_HEADER_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the table of dense weights has %zu bytes, expected at least %u", n_bytes,
                         MOEC_DENSE_HEADER_BYTES);
    made.n_entries = moec_get_u32(bytes);
    made.blob_bytes = moec_get_u64(bytes + 8);
    MOEC_TRY(check_zero(bytes + 4, 4, "table of dense weights", err));
    MOEC_TRY(check_size(n_bytes, MOEC_DENSE_HEADER_BYTES + (uint64_t)made.n_entries * MOEC_DENSE_ENTRY_BYTES,
                        "table of dense weights", err));
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc(&entries, made.n_entries, sizeof *made.entries, "table of dense weights", err));
    made.entries = entries;
    bytes += MOEC_DENSE_HEADER_BYTES;
    for (uint32_t i = 0; i < made.n_entries; i++, bytes += MOEC_DENSE_ENTRY_BYTES) {
        MOEC_TRY_OUT(check_zero(bytes + 20, 4, "table of dense weights", err));
        made.entries[i] = (struct moec_dense_entry){.role = moec_get_u32(bytes),
                                                    .layer = moec_get_u32(bytes + 4),
                                                    .codec = get_codec(bytes + 8),
                                                    .rows = moec_get_u32(bytes + 12),
                                                    .columns = moec_get_u32(bytes + 16),
                                                    .offset = moec_get_u64(bytes + 24),
                                                    .n_bytes = moec_get_u64(bytes + 32)};
    }
    MOEC_TRY_OUT(moec_dense_check(&made, config, err));
    *dense = made;
    made = (struct moec_dense){0};
out:
    moec_dense_release(&made);
    return status;
}

void moec_record_index_encode(const struct moec_record_level *level, const struct moec_config *config,
                              const struct moec_codec *codecs, uint64_t records_offset, uint8_t *bytes)
{
    const uint32_t n_layer = moec_config_moe_count(config);
    const size_t entry_bytes = level->is_mixed ? MOEC_INDEX_MIXED_BYTES : MOEC_INDEX_ENTRY_BYTES;
    moec_put_u32(bytes, n_layer);
    moec_put_u32(bytes + 4, config->n_expert);
    moec_put_u32(bytes + 8, level->bits);
    moec_put_u32(bytes + 12, level->is_mixed);
    bytes += MOEC_INDEX_HEADER_BYTES;
    for (size_t i = 0; i < (size_t)n_layer * config->n_expert; i++, bytes += entry_bytes) {
        const struct moec_record_entry *entry = &level->entries[i];
        const uint8_t *numbers = entry->variant.codecs;
        memset(bytes, 0, entry_bytes);
        moec_put_u64(bytes, entry->offset - records_offset);
        moec_put_u32(bytes + 8, entry->n_bytes);
        moec_put_u32(bytes + 12, entry->crc32c);
        if (!level->is_mixed) {
            put_codec(bytes + 16, codecs[numbers[MOEC_PROJECTION_UP]]);
            continue;
        }
        if (!config->mlp.plain)
            put_codec(bytes + 16, codecs[numbers[MOEC_PROJECTION_GATE]]);
        put_codec(bytes + 20, codecs[numbers[MOEC_PROJECTION_UP]]);
        put_codec(bytes + 24, codecs[numbers[MOEC_PROJECTION_DOWN]]);
    }
}

/* What a record index is checked against while it is decoded. */
struct index_check {
    const struct moec_config *config;
    const struct moec_section *records;
    uint32_t alignment;
    uint32_t level_bits;
    bool is_mixed;
    struct moec_codec *codecs;                       /* by number */
    struct moec_codec level[MOEC_CODEC_FIRST_OTHER]; /* by bits: the level's first; F32: none yet */
    uint64_t end;                                    /* of the records so far, relative */
};

/* The number of a codec in the table, which takes it up if it is new. */
static enum moec_status number_codec(struct moec_codec *codecs, struct moec_codec codec, const char *where,
                                     uint8_t *number, struct moec_error *err)
{
    const uint32_t bits = moec_codec_bits(codec);
    uint32_t at = bits;
    if (codecs[bits].dtype != MOEC_DTYPE_F32 && !moec_codec_equal(codecs[bits], codec)) {
        at = MOEC_CODEC_FIRST_OTHER;
        while (at < MOEC_CODEC_TABLE && codecs[at].dtype != MOEC_DTYPE_F32 &&
               !moec_codec_equal(codecs[at], codec))
            at++;
    }
    if (at == MOEC_CODEC_TABLE)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has one codec too many: a bundle may have one codec for each bitwidth, and "
                         "at most %d others",
                         where, MOEC_CODEC_TABLE - MOEC_CODEC_FIRST_OTHER);
    codecs[at] = codec;
    *number = (uint8_t)at;
    return MOEC_OK;
}

static enum moec_status decode_codec(struct index_check *check, const uint8_t *bytes, const char *where,
                                     uint8_t *number, struct moec_error *err)
{
    const struct moec_codec codec = get_codec(bytes);
    MOEC_TRY(moec_codec_check(codec, where, err));
    const uint32_t bits = moec_codec_bits(codec);
    if (moec_codec_traits(codec)->is_exact && check->config->expert_dtype != codec.dtype)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s is in MXFP4, but the experts of the original checkpoint were not", where);
    if (bits > 16 || (check->level_bits != 0 && bits != check->level_bits))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has %" PRIu32 " bits, expected %s%" PRIu32, where, bits,
                         check->level_bits != 0 ? "" : "at most ",
                         check->level_bits != 0 ? check->level_bits : 16);
    if (check->level[bits].dtype == MOEC_DTYPE_F32)
        check->level[bits] = codec;
    if (!check->is_mixed && !moec_codec_equal(check->level[bits], codec))
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s has another codec than the other records of %" PRIu32
                         " bits in its precision copy, expected one codec",
                         where, bits);
    return number_codec(check->codecs, codec, where, number, err);
}

/* The codecs of an entry: of all projections, or gate, up and down. */
static enum moec_status decode_variant(struct index_check *check, const uint8_t *bytes, const char *where,
                                       struct moec_variant *variant, struct moec_error *err)
{
    uint8_t number = 0;
    if (!check->is_mixed) {
        MOEC_TRY(decode_codec(check, bytes + 16, where, &number, err));
        *variant = moec_variant_uniform(number);
        return check_zero(bytes + 20, 4, where, err);
    }
    MOEC_TRY(decode_codec(check, bytes + 20, where, &variant->codecs[MOEC_PROJECTION_UP], err));
    MOEC_TRY(decode_codec(check, bytes + 24, where, &variant->codecs[MOEC_PROJECTION_DOWN], err));
    if (check->config->mlp.plain) {
        variant->codecs[MOEC_PROJECTION_GATE] = variant->codecs[MOEC_PROJECTION_UP];
        MOEC_TRY(check_zero(bytes + 16, 4, where, err));
    } else {
        MOEC_TRY(decode_codec(check, bytes + 16, where, &variant->codecs[MOEC_PROJECTION_GATE], err));
    }
    return check_zero(bytes + 28, 4, where, err);
}

static enum moec_status decode_index_entry(struct index_check *check, const uint8_t *bytes, uint32_t layer,
                                           uint32_t expert, struct moec_record_entry *entry,
                                           struct moec_error *err)
{
    uint64_t offset = moec_get_u64(bytes);
    char where[96];
    (void)snprintf(where, sizeof where, "record of layer %u expert %u in '%s'", layer, expert,
                   check->records->name);
    MOEC_TRY(decode_variant(check, bytes, where, &entry->variant, err));
    entry->n_bytes = moec_get_u32(bytes + 8);
    uint64_t expected = moec_record_layout_of(check->config, entry->variant, check->codecs).n_bytes;
    if (entry->n_bytes != expected)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has %u bytes, expected %" PRIu64, where, entry->n_bytes,
                         expected);
    if (offset % check->alignment != 0 || offset < check->end || offset > check->records->stored_bytes ||
        moec_align_up(entry->n_bytes, check->alignment) > check->records->stored_bytes - offset)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s is at offset %" PRIu64 " of a section of %" PRIu64
                         " bytes, expected a multiple of %u that is at least %" PRIu64
                         ", with the end of the record inside the section",
                         where, offset, check->records->stored_bytes, check->alignment, check->end);
    check->end = offset + entry->n_bytes;
    entry->offset = check->records->offset + offset;
    entry->crc32c = moec_get_u32(bytes + 12);
    entry->bits = (uint8_t)moec_variant_bits(entry->variant, check->codecs);
    return MOEC_OK;
}

enum moec_status moec_record_index_decode(const uint8_t *bytes, size_t n_bytes,
                                          const struct moec_record_home *home,
                                          struct moec_record_level *level, struct moec_error *err)
{
    const struct moec_config *config = home->config;
    const struct moec_section *records = home->records;
    struct moec_record_entry *entry = level->entries;
    uint32_t n_layer = moec_config_moe_count(config), n_expert = config->n_expert;
    const uint32_t form = n_bytes >= MOEC_INDEX_HEADER_BYTES ? moec_get_u32(bytes + 12) : 0;
    const uint32_t entry_bytes = form == 1 ? MOEC_INDEX_MIXED_BYTES : MOEC_INDEX_ENTRY_BYTES;
    MOEC_TRY(check_size(n_bytes, MOEC_INDEX_HEADER_BYTES + (uint64_t)n_layer * n_expert * entry_bytes,
                        "record index", err));
    if (moec_get_u32(bytes) != n_layer || moec_get_u32(bytes + 4) != n_expert)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the record index has %u layers of %u experts, expected %u layers of %u experts",
                         moec_get_u32(bytes), moec_get_u32(bytes + 4), n_layer, n_expert);
    struct index_check check = {.config = config,
                                .records = records,
                                .alignment = home->alignment,
                                .level_bits = moec_get_u32(bytes + 8),
                                .is_mixed = form == 1,
                                .codecs = home->codecs};
    if (check.level_bits > 16)
        return moec_fail(err, MOEC_ERR_FORMAT, "the record index of '%s' states %u bits, expected at most 16",
                         records->name, check.level_bits);
    if (form > 1 || (form == 1 && check.level_bits != 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the record index of '%s' has entries of unknown form %u, expected 0%s",
                         records->name, form, check.level_bits == 0 ? " or 1" : "");
    bytes += MOEC_INDEX_HEADER_BYTES;
    for (uint32_t ordinal = 0; ordinal < n_layer; ordinal++) {
        uint32_t layer = moec_config_moe_layer(config, ordinal);
        for (uint32_t expert = 0; expert < n_expert; expert++, bytes += entry_bytes)
            MOEC_TRY(decode_index_entry(&check, bytes, layer, expert, entry++, err));
    }
    level->bits = (uint8_t)check.level_bits;
    level->is_mixed = check.is_mixed;
    return MOEC_OK;
}
