#include "formats/bundle/bundle_chat.h"
#include "formats/bundle/bundle_decisions.h"
#include "formats/bundle/bundle_evict.h"
#include "formats/bundle/bundle_fit.h"
#include "formats/bundle/bundle_format.h"
#include "formats/bundle/bundle_predictor.h"
#include "formats/bundle/bundle_sparsity.h"
#include "formats/bundle/record_parts.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/tables/score_shares.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* "MOEC" and line ends of both styles: a transfer as text that changes line ends breaks it. */
static const uint8_t magic[8] = {'M', 'O', 'E', 'C', '\r', '\n', 0x1a, '\n'};

/* ---- header and contents table ---- */

static bool is_known_kind(uint32_t kind)
{
    return (kind >= MOEC_SECTION_CONFIG && kind <= MOEC_SECTION_GENERATION) ||
           (kind >= MOEC_SECTION_SEQUENCE && kind <= MOEC_SECTION_DECISIONS);
}

static bool is_record_kind(uint32_t kind)
{
    return kind == MOEC_SECTION_RECORD_INDEX || kind == MOEC_SECTION_RECORDS;
}

static enum moec_status check_header(const struct moec_file *file, const uint8_t *header,
                                     struct moec_contents *contents, const char **place,
                                     struct moec_error *err)
{
    const char *path = file->path;
    uint32_t crc = moec_crc32c(0, header, MOEC_HEADER_CRC);
    bool intact = crc == moec_get_u32(header + MOEC_HEADER_CRC);
    if (memcmp(header, magic, sizeof magic) != 0) {
        *place = "header";
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "'%s' is not a moec bundle: its first bytes are not the magic number", path);
    }
    /* Before the CRC: another version may keep its checksum elsewhere. */
    uint32_t version = moec_get_u32(header + MOEC_HEADER_VERSION);
    if (version != MOEC_BUNDLE_VERSION) {
        *place = intact ? NULL : "header";
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "'%s' has bundle version %u, this moec reads version %u%s", path, version,
                         MOEC_BUNDLE_VERSION, intact ? "" : " (or the file's header is damaged)");
    }
    if (!intact) {
        *place = "header";
        return moec_fail(err, MOEC_ERR_CHECKSUM, "header of '%s' is damaged: CRC32C is %08x, expected %08x",
                         path, crc, moec_get_u32(header + MOEC_HEADER_CRC));
    }
    for (uint32_t i = MOEC_HEADER_N_SECTIONS + 4; i < MOEC_HEADER_CRC; i++)
        if ((i < MOEC_HEADER_CONTENTS || i >= MOEC_HEADER_RESERVED) && header[i] != 0)
            return moec_fail(err, MOEC_ERR_FORMAT, "header of '%s' has %u at reserved offset %u, expected 0",
                             path, header[i], i);
    contents->alignment = moec_get_u32(header + MOEC_HEADER_ALIGNMENT);
    contents->file_bytes = moec_get_u64(header + MOEC_HEADER_FILE_BYTES);
    contents->n_sections = moec_get_u32(header + MOEC_HEADER_N_SECTIONS);
    uint32_t alignment = contents->alignment;
    if (alignment < MOEC_MIN_ALIGNMENT || alignment > MOEC_MAX_ALIGNMENT ||
        (alignment & (alignment - 1)) != 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "'%s' has alignment %u, expected a power of two from %u to %u",
                         path, alignment, MOEC_MIN_ALIGNMENT, MOEC_MAX_ALIGNMENT);
    if (contents->n_sections == 0 || contents->n_sections > MOEC_BUNDLE_MAX_SECTIONS)
        return moec_fail(err, MOEC_ERR_FORMAT, "'%s' has %u sections, expected 1 to %u", path,
                         contents->n_sections, MOEC_BUNDLE_MAX_SECTIONS);
    return MOEC_OK;
}

static enum moec_status check_section(const struct moec_contents *contents, uint32_t index, uint64_t end,
                                      const char *path, struct moec_error *err)
{
    const struct moec_section *section = &contents->sections[index];
    bool records = section->kind == MOEC_SECTION_RECORDS;
    uint32_t alignment = records ? contents->alignment : MOEC_SECTION_ALIGNMENT;
    bool known = is_known_kind(section->kind);
    if (!known && section->kind < MOEC_SECTION_ANCILLARY)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "section %u of '%s' has unknown kind %u: a newer moec may know it", index, path,
                         section->kind);
    if (section->offset % alignment != 0 || section->offset < end || section->offset > contents->file_bytes ||
        section->stored_bytes > contents->file_bytes - section->offset)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "section '%s' of '%s' is at offset %" PRIu64 " with %" PRIu64 " bytes, expected an "
                         "offset that is a multiple of %u, and all bytes within %" PRIu64 "..%" PRIu64,
                         section->name, path, section->offset, section->stored_bytes, alignment, end,
                         contents->file_bytes);
    const bool is_cut = section->flags == (MOEC_SECTION_FLAG_COMPRESSED | MOEC_SECTION_FLAG_CUT);
    bool compressed = is_cut || section->flags == MOEC_SECTION_FLAG_COMPRESSED;
    if ((section->flags != 0 && !compressed) || (is_cut && section->kind != MOEC_SECTION_DENSE) ||
        (compressed && is_record_kind(section->kind)))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "section '%s' of '%s' has flags %u, which are not valid for its kind", section->name,
                         path, section->flags);
    uint64_t pieces =
        section->content_bytes / MOEC_PIECE_BYTES + (section->content_bytes % MOEC_PIECE_BYTES != 0);
    if (compressed ? section->stored_bytes / (MOEC_PIECE_HEADER_BYTES + 1) < pieces
                   : section->stored_bytes != section->content_bytes)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "section '%s' of '%s' has %" PRIu64 " stored bytes for %" PRIu64 " bytes of "
                         "content, which does not match its flags",
                         section->name, path, section->stored_bytes, section->content_bytes);
    if (section->level != 0 && known && !is_record_kind(section->kind))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "section '%s' of '%s' belongs to precision copy %u, expected 0: only records have copies",
            section->name, path, section->level);
    for (uint32_t i = 0; known && i < index; i++)
        if (contents->sections[i].kind == section->kind && contents->sections[i].level == section->level)
            return moec_fail(err, MOEC_ERR_FORMAT, "'%s' has two sections '%s', expected one", path,
                             section->name);
    return MOEC_OK;
}

static enum moec_status decode_section(const uint8_t *entry, uint32_t index, struct moec_section *section,
                                       const char *path, struct moec_error *err)
{
    *section = (struct moec_section){.kind = moec_get_u32(entry),
                                     .level = moec_get_u32(entry + 4),
                                     .flags = moec_get_u32(entry + 8),
                                     .offset = moec_get_u64(entry + 16),
                                     .stored_bytes = moec_get_u64(entry + 24),
                                     .content_bytes = moec_get_u64(entry + 32)};
    memcpy(section->digest, entry + 40, sizeof section->digest);
    moec_section_set_name(section);
    if (moec_get_u32(entry + 12) != 0 || moec_get_u64(entry + 72) != 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "section %u of '%s' has reserved bytes that are not 0", index,
                         path);
    return MOEC_OK;
}

enum moec_status moec_contents_read(const struct moec_file *file, struct moec_contents *contents,
                                    const char **place, struct moec_error *err)
{
    uint8_t header[MOEC_BUNDLE_HEADER_BYTES];
    uint8_t table[MOEC_BUNDLE_MAX_SECTIONS * MOEC_BUNDLE_SECTION_BYTES];
    uint8_t digest[MOEC_SHA256_BYTES];
    const char *unused = NULL, *path = file->path;
    if (place == NULL)
        place = &unused;
    *place = NULL;
    *contents = (struct moec_contents){0};
    if (file->n_bytes < MOEC_BUNDLE_HEADER_BYTES) {
        *place = "header";
        return moec_fail(err, MOEC_ERR_FORMAT, "'%s' has %" PRIu64 " bytes, too few for a moec bundle (%u)",
                         path, file->n_bytes, MOEC_BUNDLE_HEADER_BYTES);
    }
    MOEC_TRY(moec_file_read(file, 0, header, sizeof header, err));
    MOEC_TRY(check_header(file, header, contents, place, err));
    if (file->n_bytes != contents->file_bytes) {
        *place = "end of file";
        return moec_fail(err, MOEC_ERR_CHECKSUM, "'%s' has %" PRIu64 " bytes, expected %" PRIu64 ": it %s",
                         path, file->n_bytes, contents->file_bytes,
                         file->n_bytes < contents->file_bytes ? "is truncated" : "has bytes after its end");
    }
    size_t table_bytes = (size_t)contents->n_sections * MOEC_BUNDLE_SECTION_BYTES;
    if (table_bytes > file->n_bytes - MOEC_BUNDLE_HEADER_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, "'%s' ends within its contents table of %u sections", path,
                         contents->n_sections);
    MOEC_TRY(moec_file_read(file, MOEC_BUNDLE_HEADER_BYTES, table, table_bytes, err));
    moec_sha256(table, table_bytes, digest);
    if (memcmp(digest, header + MOEC_HEADER_CONTENTS, sizeof digest) != 0) {
        *place = "contents table";
        return moec_fail(err, MOEC_ERR_CHECKSUM,
                         "contents table of '%s' is damaged: its SHA-256 does not match", path);
    }
    uint64_t end = MOEC_BUNDLE_HEADER_BYTES + table_bytes;
    for (uint32_t i = 0; i < contents->n_sections; i++) {
        struct moec_section *section = &contents->sections[i];
        MOEC_TRY(decode_section(table + (size_t)i * MOEC_BUNDLE_SECTION_BYTES, i, section, path, err));
        MOEC_TRY(check_section(contents, i, end, path, err));
        end = section->offset + section->stored_bytes;
    }
    return MOEC_OK;
}

void moec_contents_encode(const struct moec_contents *contents, uint8_t *header, uint8_t *table)
{
    for (uint32_t i = 0; i < contents->n_sections; i++) {
        const struct moec_section *section = &contents->sections[i];
        uint8_t *entry = table + (size_t)i * MOEC_BUNDLE_SECTION_BYTES;
        memset(entry, 0, MOEC_BUNDLE_SECTION_BYTES);
        moec_put_u32(entry, section->kind);
        moec_put_u32(entry + 4, section->level);
        moec_put_u32(entry + 8, section->flags);
        moec_put_u64(entry + 16, section->offset);
        moec_put_u64(entry + 24, section->stored_bytes);
        moec_put_u64(entry + 32, section->content_bytes);
        memcpy(entry + 40, section->digest, sizeof section->digest);
    }
    memset(header, 0, MOEC_BUNDLE_HEADER_BYTES);
    memcpy(header, magic, sizeof magic);
    moec_put_u32(header + MOEC_HEADER_VERSION, MOEC_BUNDLE_VERSION);
    moec_put_u32(header + MOEC_HEADER_ALIGNMENT, contents->alignment);
    moec_put_u64(header + MOEC_HEADER_FILE_BYTES, contents->file_bytes);
    moec_put_u32(header + MOEC_HEADER_N_SECTIONS, contents->n_sections);
    moec_sha256(table, (size_t)contents->n_sections * MOEC_BUNDLE_SECTION_BYTES,
                header + MOEC_HEADER_CONTENTS);
    moec_put_u32(header + MOEC_HEADER_CRC, moec_crc32c(0, header, MOEC_HEADER_CRC));
}

const struct moec_section *moec_contents_find(const struct moec_contents *contents, uint32_t kind,
                                              uint32_t level)
{
    for (uint32_t i = 0; i < contents->n_sections; i++)
        if (contents->sections[i].kind == kind && contents->sections[i].level == level)
            return &contents->sections[i];
    return NULL;
}

/* ---- opening ---- */

enum moec_status moec_bundle_load_small(const struct moec_bundle *bundle, uint32_t kind, bool required,
                                        uint8_t **bytes, size_t *n_bytes, struct moec_error *err)
{
    const struct moec_contents *contents = bundle->sections;
    const struct moec_section *section = moec_contents_find(contents, kind, 0);
    if (section == NULL && required) {
        struct moec_section missing = {.kind = kind};
        moec_section_set_name(&missing);
        return moec_fail(err, MOEC_ERR_FORMAT, "'%s' has no section '%s'", bundle->file.path, missing.name);
    }
    if (section == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_section_load_alloc(&bundle->file, section, MOEC_SMALL_SECTION_MAX_BYTES, bytes, err));
    *n_bytes = (size_t)section->content_bytes;
    return MOEC_OK;
}

static enum moec_status open_config(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_CONFIG, true, &bytes, &n, err));
    enum moec_status status = moec_config_decode(bytes, n, &bundle->config, err);
    free(bytes);
    return status;
}

static enum moec_status open_tokenizer(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    void *memory = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_bundle_load_small(bundle, MOEC_SECTION_TOKENIZER, false, &bytes, &n, err));
    if (bytes == NULL)
        return MOEC_OK;
    MOEC_TRY_OUT(moec_alloc(&memory, 1, sizeof *bundle->tokenizer, "tokenizer", err));
    bundle->tokenizer = memory;
    MOEC_TRY_OUT(moec_tokenizer_model_decode(bytes, n, bundle->file.path, bundle->tokenizer, err));
    MOEC_TRY_OUT(
        moec_tokenizer_model_fits(bundle->tokenizer, bundle->config.n_vocab, bundle->file.path, err));
out:
    free(bytes);
    return status;
}

enum moec_status moec_bundle_load_chat(const struct moec_bundle *bundle, struct moec_chat_source *source,
                                       struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_CHAT, false, &bytes, &n, err));
    const enum moec_status status = bytes == NULL ? MOEC_OK : moec_chat_source_decode(bytes, n, source, err);
    free(bytes);
    return status;
}

/* What conversations need is read again by who holds any. */
static enum moec_status check_chat(const struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_chat_source source = {.n = 0};
    MOEC_TRY(moec_bundle_load_chat(bundle, &source, err));
    moec_chat_source_release(&source);
    return MOEC_OK;
}

enum moec_status moec_bundle_load_sparsity(const struct moec_bundle *bundle,
                                           struct moec_sparsity_table *table, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    *table = (struct moec_sparsity_table){0};
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_SPARSITY, false, &bytes, &n, err));
    const enum moec_status status =
        bytes == NULL ? MOEC_OK : moec_sparsity_table_decode(bytes, n, &bundle->config, table, err);
    free(bytes);
    return status;
}

enum moec_status moec_bundle_load_plan(const struct moec_bundle *bundle, struct moec_sparsity_plan *plan,
                                       struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    *plan = (struct moec_sparsity_plan){0};
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_SPARSITY_PLAN, false, &bytes, &n, err));
    const enum moec_status status =
        bytes == NULL ? MOEC_OK : moec_sparsity_plan_decode(bytes, n, &bundle->config, plan, err);
    free(bytes);
    return status;
}

enum moec_status moec_bundle_load_parts(const struct moec_bundle *bundle, struct moec_record_parts *parts,
                                        struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    *parts = (struct moec_record_parts){0};
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_RECORD_PARTS, false, &bytes, &n, err));
    const enum moec_status status =
        bytes == NULL ? MOEC_OK : moec_record_parts_decode(bytes, n, bundle, parts, err);
    free(bytes);
    return status;
}

/* Likewise. */
static enum moec_status check_sparsity(const struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_sparsity_table table;
    struct moec_sparsity_plan plan;
    MOEC_TRY(moec_bundle_load_sparsity(bundle, &table, err));
    moec_sparsity_table_release(&table);
    MOEC_TRY(moec_bundle_load_plan(bundle, &plan, err));
    moec_sparsity_plan_release(&plan);
    return MOEC_OK;
}

/* After the indices, which say how long parts are. */
static enum moec_status check_parts(const struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_record_parts parts;
    MOEC_TRY(moec_bundle_load_parts(bundle, &parts, err));
    moec_record_parts_release(&parts);
    return MOEC_OK;
}

enum moec_status moec_bundle_load_decisions(const struct moec_bundle *bundle,
                                            struct moec_bundle_decisions *decisions, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    memset(decisions, 0, sizeof *decisions);
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_DECISIONS, false, &bytes, &n, err));
    const enum moec_status status =
        bytes == NULL ? MOEC_OK : moec_decisions_decode(bytes, n, &bundle->config, decisions, err);
    free(bytes);
    return status;
}

static enum moec_status check_decisions(const struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_bundle_decisions decisions;
    struct moec_bundle_evict evict;
    MOEC_TRY(moec_bundle_load_decisions(bundle, &decisions, err));
    return moec_bundle_load_evict(bundle, &evict, err);
}

enum moec_status moec_bundle_load_fit(const struct moec_bundle *bundle, struct moec_bundle_fit *fit,
                                      struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    memset(fit, 0, sizeof *fit);
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_FIT, false, &bytes, &n, err));
    const enum moec_status status = bytes == NULL ? MOEC_OK : moec_bundle_fit_decode(bytes, n, fit, err);
    free(bytes);
    return status;
}

static enum moec_status take_fit(struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_bundle_fit fit;
    MOEC_TRY(moec_bundle_load_fit(bundle, &fit, err));
    bundle->fitted_memory_bytes = fit.memory_bytes;
    bundle->fitted_buffer_bytes = fit.buffer_bytes;
    bundle->fitted_bytes_per_second = fit.bytes_per_second;
    bundle->fitted_latency_ns = fit.latency_ns;
    (void)snprintf(bundle->fitted_evict, sizeof bundle->fitted_evict, "%s", fit.evict);
    (void)snprintf(bundle->fitted_predict, sizeof bundle->fitted_predict, "%s", fit.predict);
    return MOEC_OK;
}

enum moec_status moec_bundle_load_evict(const struct moec_bundle *bundle, struct moec_bundle_evict *evict,
                                        struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    memset(evict, 0, sizeof *evict);
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_EVICT_WEIGHTS, false, &bytes, &n, err));
    const enum moec_status status = bytes == NULL ? MOEC_OK : moec_bundle_evict_decode(bytes, n, evict, err);
    free(bytes);
    return status;
}

enum moec_status moec_bundle_load_predictor(const struct moec_bundle *bundle,
                                            struct moec_expert_predictor *predictor, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    *predictor = (struct moec_expert_predictor){0};
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_PREDICTOR, false, &bytes, &n, err));
    const enum moec_status status =
        bytes == NULL ? MOEC_OK : moec_expert_predictor_decode(bytes, n, &bundle->config, predictor, err);
    free(bytes);
    return status;
}

static enum moec_status check_predictor(struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_expert_predictor predictor;
    MOEC_TRY(moec_bundle_load_predictor(bundle, &predictor, err));
    bundle->has_predictor = predictor.n_layer > 0;
    moec_expert_predictor_release(&predictor);
    return MOEC_OK;
}

static enum moec_status open_generation(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    bundle->generation = moec_generation_default();
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_GENERATION, false, &bytes, &n, err));
    if (bytes == NULL)
        return MOEC_OK;
    enum moec_status status =
        moec_generation_decode(bytes, n, bundle->config.n_vocab, &bundle->generation, err);
    free(bytes);
    return status;
}

static enum moec_status open_paths(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    const struct moec_config *config = &bundle->config;
    struct moec_path_table *paths = &bundle->paths;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_PATHS, false, &bytes, &n, err));
    if (bytes == NULL)
        return MOEC_OK;
    enum moec_status status = moec_path_table_decode(bytes, n, paths, err);
    free(bytes);
    MOEC_TRY(status);
    if (paths->n_layer != moec_config_moe_count(config) || paths->n_expert != config->n_expert ||
        paths->top_k != config->top_k)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "path table has %u layers of %u experts with top-k %u, expected %u of %u with "
                         "top-k %u",
                         paths->n_layer, paths->n_expert, paths->top_k, moec_config_moe_count(config),
                         config->n_expert, config->top_k);
    return MOEC_OK;
}

static enum moec_status open_ranges(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_ROUTER_RANGES, false, &bytes, &n, err));
    if (bytes == NULL)
        return MOEC_OK;
    const enum moec_status status = moec_router_ranges_decode(
        bytes, n, moec_config_moe_count(&bundle->config), &bundle->paths.ranges, err);
    free(bytes);
    return status;
}

static enum moec_status open_scores(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_EXPERT_SCORES, false, &bytes, &n, err));
    const enum moec_status status =
        bytes == NULL ? MOEC_OK : moec_score_shares_decode(bytes, n, &bundle->paths.scores, err);
    free(bytes);
    return status;
}

static enum moec_status open_routing(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_ROUTING, false, &bytes, &n, err));
    if (bytes == NULL)
        return MOEC_OK;
    enum moec_status status = moec_routing_decode(bytes, n, moec_config_moe_count(&bundle->config),
                                                  bundle->config.n_expert, &bundle->routing, err);
    free(bytes);
    return status;
}

static enum moec_status open_statements(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_CERTIFICATE, true, &bytes, &n, err));
    enum moec_status status = moec_certificate_decode(bytes, n, &bundle->certificate, err);
    free(bytes);
    bytes = NULL;
    MOEC_TRY(status);
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_SEQUENCE, false, &bytes, &n, err));
    if (bytes != NULL)
        status = moec_sequence_decode(bytes, n, &bundle->certificate, err);
    free(bytes);
    bytes = NULL;
    MOEC_TRY(status);
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_PROVENANCE, true, &bytes, &n, err));
    status = moec_provenance_decode(bytes, n, &bundle->provenance, err);
    free(bytes);
    return status;
}

static enum moec_status open_level(struct moec_bundle *bundle, const struct moec_section *index,
                                   uint32_t copy, struct moec_error *err)
{
    const struct moec_config *config = &bundle->config;
    const struct moec_section *records =
        moec_contents_find(bundle->sections, MOEC_SECTION_RECORDS, index->level);
    size_t n = (size_t)moec_config_moe_count(config) * config->n_expert;
    uint8_t *bytes = NULL;
    if (records == NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "'%s' has no section 'records of copy %u'", bundle->file.path,
                         index->level);
    MOEC_TRY(moec_section_load_alloc(&bundle->file, index,
                                     MOEC_INDEX_HEADER_BYTES + n * MOEC_INDEX_MIXED_BYTES, &bytes, err));
    enum moec_status status =
        moec_record_index_decode(bytes, (size_t)index->content_bytes, config, records, bundle->alignment,
                                 bundle->codecs, &bundle->copy_bits[copy], bundle->records + copy * n, err);
    free(bytes);
    MOEC_TRY(status);
    if ((bundle->copy_bits[copy] == 0) != (copy == 0))
        return moec_fail(err, MOEC_ERR_FORMAT, "'%s' of '%s' states %u bits, expected %s", index->name,
                         bundle->file.path, bundle->copy_bits[copy],
                         copy == 0 ? "0 for the compiled assignment" : "2, 3, 4, 8 or 16");
    return MOEC_OK;
}

/* One layout for each variant that there is. Which one a variant has is looked up by all three numbers, so
 * that a file with as many variants as records takes no longer than others. */
static enum moec_status make_layouts(struct moec_bundle *bundle, struct moec_error *err)
{
    const struct moec_config *config = &bundle->config;
    const size_t n = (size_t)bundle->n_copy * moec_config_moe_count(config) * config->n_expert;
    const uint64_t n_variant = (uint64_t)MOEC_CODEC_TABLE * MOEC_CODEC_TABLE * MOEC_CODEC_TABLE;
    size_t capacity = 0;
    uint32_t *places = NULL; /* 1 + index of the layout; 0: none yet */
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc((void **)&places, n_variant, sizeof *places, "layouts of records", err));
    for (size_t i = 0; i < n; i++) {
        struct moec_record_entry *entry = &bundle->records[i];
        const uint8_t *codecs = entry->variant.codecs;
        uint32_t *place =
            &places[((size_t)codecs[0] * MOEC_CODEC_TABLE + codecs[1]) * MOEC_CODEC_TABLE + codecs[2]];
        if (*place == 0) {
            void *memory = bundle->layouts;
            status = moec_grow(&memory, &capacity, bundle->n_layout + (size_t)1, sizeof *bundle->layouts,
                               "layouts of records", err);
            bundle->layouts = memory;
            MOEC_TRY_OUT(status);
            bundle->layouts[bundle->n_layout++] =
                moec_record_layout_of(config, entry->variant, bundle->codecs);
            *place = bundle->n_layout;
        }
        entry->layout = *place - 1;
    }
out:
    free(places);
    return status;
}

/* Copy levels in increasing order; numbers may be missing where a level was stripped, but not level 0. */
static enum moec_status open_levels(struct moec_bundle *bundle, struct moec_error *err)
{
    const struct moec_contents *contents = bundle->sections;
    const struct moec_section *levels[MOEC_MAX_COPIES] = {NULL};
    size_t n = (size_t)moec_config_moe_count(&bundle->config) * bundle->config.n_expert;
    uint32_t n_records = 0;
    void *memory = NULL;
    for (uint32_t i = 0; i < contents->n_sections; i++) {
        const struct moec_section *section = &contents->sections[i];
        n_records += section->kind == MOEC_SECTION_RECORDS;
        if (section->kind != MOEC_SECTION_RECORD_INDEX)
            continue;
        uint32_t previous = bundle->n_copy > 0 ? levels[bundle->n_copy - 1]->level : 0;
        if (bundle->n_copy == MOEC_MAX_COPIES || section->level >= MOEC_MAX_COPIES ||
            (bundle->n_copy == 0 ? section->level != 0 : section->level <= previous))
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "'%s' has section '%s' as record index number %u, expected the one of copy level 0 first, "
                "then those of increasing levels below %d",
                bundle->file.path, section->name, bundle->n_copy, MOEC_MAX_COPIES);
        if (section->content_bytes != MOEC_INDEX_HEADER_BYTES + n * MOEC_INDEX_ENTRY_BYTES &&
            section->content_bytes != MOEC_INDEX_HEADER_BYTES + n * MOEC_INDEX_MIXED_BYTES)
            return moec_fail(err, MOEC_ERR_FORMAT, "'%s' of '%s' has %" PRIu64 " bytes, expected %zu",
                             section->name, bundle->file.path, section->content_bytes,
                             MOEC_INDEX_HEADER_BYTES + n * MOEC_INDEX_ENTRY_BYTES);
        levels[bundle->n_copy++] = section;
    }
    if (bundle->n_copy == 0 || n_records != bundle->n_copy)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "'%s' has %u record indices and %u sections of records, expected one index for "
                         "each such section",
                         bundle->file.path, bundle->n_copy, n_records);
    MOEC_TRY(moec_alloc(&memory, (uint64_t)bundle->n_copy * n, sizeof *bundle->records, "record index", err));
    bundle->records = memory;
    for (uint32_t copy = 0; copy < bundle->n_copy && levels[copy] != NULL; copy++)
        MOEC_TRY(open_level(bundle, levels[copy], copy, err));
    return make_layouts(bundle, err);
}

uint32_t moec_bundle_choose_alignment(const struct moec_config *config)
{
    const struct moec_codec least = {.dtype = MOEC_DTYPE_INT2};
    const uint64_t padding = MOEC_BUNDLE_ALIGNMENT / 2;
    return moec_record_layout_make(config, least).n_bytes < 100 * padding ? MOEC_BUNDLE_SMALL_ALIGNMENT
                                                                          : MOEC_BUNDLE_ALIGNMENT;
}

enum moec_status moec_bundle_open(const char *path, struct moec_bundle **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_bundle), "bundle", err));
    struct moec_bundle *bundle = memory;
    struct moec_contents *contents = NULL;
    bundle->file.fd = -1;
    enum moec_status status = MOEC_OK;
    memory = NULL;
    MOEC_TRY_OUT(moec_alloc(&memory, 1, sizeof *contents, "contents table", err));
    bundle->sections = contents = memory;
    MOEC_TRY_OUT(moec_file_open(&bundle->file, path, err));
    MOEC_TRY_OUT(moec_contents_read(&bundle->file, contents, NULL, err));
    bundle->alignment = contents->alignment;
    bundle->direct_unit = contents->alignment < MOEC_BUNDLE_ALIGNMENT ? moec_file_direct_unit(&bundle->file)
                                                                      : MOEC_BUNDLE_ALIGNMENT;
    MOEC_TRY_OUT(open_config(bundle, err));
    MOEC_TRY_OUT(open_statements(bundle, err));
    MOEC_TRY_OUT(open_generation(bundle, err));
    MOEC_TRY_OUT(check_chat(bundle, err));
    MOEC_TRY_OUT(check_sparsity(bundle, err));
    MOEC_TRY_OUT(check_decisions(bundle, err));
    MOEC_TRY_OUT(take_fit(bundle, err));
    MOEC_TRY_OUT(check_predictor(bundle, err));
    MOEC_TRY_OUT(open_tokenizer(bundle, err));
    MOEC_TRY_OUT(open_paths(bundle, err));
    MOEC_TRY_OUT(open_ranges(bundle, err));
    MOEC_TRY_OUT(open_scores(bundle, err));
    MOEC_TRY_OUT(open_routing(bundle, err));
    MOEC_TRY_OUT(moec_bundle_open_dense_table(bundle, err));
    MOEC_TRY_OUT(open_levels(bundle, err));
    MOEC_TRY_OUT(check_parts(bundle, err));
    *out = bundle;
    bundle = NULL;
out:
    if (status != MOEC_OK && bundle->file.path != NULL && err != NULL && strstr(err->message, path) == NULL)
        (void)moec_error_prefix(err, "'%s'", path);
    moec_bundle_close(bundle);
    return status;
}

void moec_bundle_close(struct moec_bundle *bundle)
{
    if (bundle == NULL)
        return;
    moec_file_close(&bundle->file);
    if (bundle->tokenizer != NULL)
        moec_tokenizer_model_release(bundle->tokenizer);
    free(bundle->tokenizer);
    moec_path_table_release(&bundle->paths);
    free(bundle->routing.activations);
    free(bundle->routing.mean_gate_weight);
    free(bundle->records);
    free(bundle->layouts);
    free(bundle->sections);
    free(bundle);
}

/* ---- records ---- */

const struct moec_record_entry *moec_bundle_record(const struct moec_bundle *bundle, uint32_t copy,
                                                   uint32_t ordinal, uint32_t expert)
{
    size_t row = (size_t)copy * moec_config_moe_count(&bundle->config) + ordinal;
    return &bundle->records[row * bundle->config.n_expert + expert];
}

const struct moec_record_layout *moec_bundle_layout(const struct moec_bundle *bundle, uint32_t copy,
                                                    uint32_t ordinal, uint32_t expert)
{
    return &bundle->layouts[moec_bundle_record(bundle, copy, ordinal, expert)->layout];
}

enum moec_status moec_bundle_check_record(const struct moec_bundle *bundle, uint32_t copy, uint32_t ordinal,
                                          uint32_t expert, const uint8_t *bytes, bool check_floats,
                                          struct moec_error *err)
{
    const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, ordinal, expert);
    uint32_t crc = moec_crc32c(0, bytes, entry->n_bytes);
    if (crc != entry->crc32c)
        return moec_fail(
            err, MOEC_ERR_CHECKSUM,
            "record of layer %u expert %u (copy %u) in '%s' is damaged: CRC32C is %08x, expected %08x (%u "
            "bytes at offset %" PRIu64 ")",
            moec_config_moe_layer(&bundle->config, ordinal), expert, copy, bundle->file.path, crc,
            entry->crc32c, entry->n_bytes, entry->offset);
    if (!check_floats)
        return MOEC_OK;
    if (!moec_record_is_finite(moec_bundle_layout(bundle, copy, ordinal, expert), bytes))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "record of layer %u expert %u (copy %u) in '%s' has a %s that is not finite",
                         moec_config_moe_layer(&bundle->config, ordinal), expert, copy, bundle->file.path,
                         entry->bits == 16 ? "weight" : "scale");
    return MOEC_OK;
}

enum moec_status moec_bundle_find_copy(const struct moec_bundle *bundle, uint32_t bits, uint32_t *copy,
                                       struct moec_error *err)
{
    char known[8 * MOEC_MAX_COPIES + 8] = "";
    for (uint32_t i = 1; i < bundle->n_copy; i++) {
        size_t used = strlen(known);
        if (bundle->copy_bits[i] == bits) {
            *copy = i;
            return MOEC_OK;
        }
        (void)snprintf(known + used, sizeof known - used, "%s%u", i == 1 ? "" : ", ", bundle->copy_bits[i]);
    }
    if (bundle->n_copy == 1)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "'%s' has no copy at %" PRIu32 " bits: it holds only the compiled assignment",
                         bundle->file.path, bits);
    return moec_fail(err, MOEC_ERR_USAGE,
                     "'%s' has no copy at %" PRIu32 " bits, only at %s, and the compiled assignment",
                     bundle->file.path, bits, known);
}

enum moec_status moec_bundle_read_record(const struct moec_bundle *bundle, uint32_t copy, uint32_t ordinal,
                                         uint32_t expert, uint8_t *buffer, struct moec_error *err)
{
    const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, ordinal, expert);
    enum moec_status status = moec_file_read(&bundle->file, entry->offset, buffer, entry->n_bytes, err);
    if (status != MOEC_OK) {
        (void)moec_error_prefix(err, "record of layer %u expert %u (copy %u)",
                                moec_config_moe_layer(&bundle->config, ordinal), expert, copy);
        return status;
    }
    return moec_bundle_check_record(bundle, copy, ordinal, expert, buffer, true, err);
}

uint32_t moec_bundle_section_count(const struct moec_bundle *bundle)
{
    const struct moec_contents *contents = bundle->sections;
    return contents->n_sections;
}

struct moec_bundle_section moec_bundle_section_get(const struct moec_bundle *bundle, uint32_t index)
{
    const struct moec_contents *contents = bundle->sections;
    const struct moec_section *section = &contents->sections[index];
    return (struct moec_bundle_section){.name = section->name,
                                        .offset = section->offset,
                                        .stored_bytes = section->stored_bytes,
                                        .content_bytes = section->content_bytes,
                                        .is_compressed =
                                            (section->flags & MOEC_SECTION_FLAG_COMPRESSED) != 0};
}
