/* `moec verify`: every byte of a bundle is covered by something, and what is damaged is named. */
#include "formats/bundle/bundle_format.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/bundle/record_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PLACE_BYTES 96

struct verifier {
    struct moec_file file;
    struct moec_contents contents;
    moec_damage_fn *report; /* may be NULL */
    void *context;
    uint8_t *buffer;
    size_t buffer_bytes; /* those of a piece, or of the file where they are fewer */
    uint64_t n_damage;
    char place[PLACE_BYTES]; /* of the first damage */
    uint64_t offset;
    uint64_t n_bytes;
};

static void found(struct verifier *v, const char *place, uint64_t offset, uint64_t n_bytes)
{
    if (v->n_damage++ == 0) {
        v->offset = offset;
        v->n_bytes = n_bytes;
        (void)snprintf(v->place, sizeof v->place, "%s", place);
    }
    if (v->report != NULL)
        v->report(v->context, place, offset, n_bytes);
}

/* ---- bytes ---- */

/* What one pass over a range gives. */
struct range {
    struct moec_sha256 *digest; /* updated too unless NULL */
    uint32_t crc32c;
    bool is_zero;
    uint64_t first_nonzero; /* offset in the file */
};

static enum moec_status scan(struct verifier *v, uint64_t offset, uint64_t n_bytes, struct range *range,
                             struct moec_error *err)
{
    range->crc32c = 0;
    range->is_zero = true;
    while (n_bytes > 0) {
        size_t n = n_bytes < v->buffer_bytes ? (size_t)n_bytes : v->buffer_bytes;
        MOEC_TRY(moec_file_read(&v->file, offset, v->buffer, n, err));
        moec_file_drop(&v->file, offset, n);
        if (range->digest != NULL)
            moec_sha256_update(range->digest, v->buffer, n);
        range->crc32c = moec_crc32c(range->crc32c, v->buffer, n);
        for (size_t i = 0; range->is_zero && i < n; i++)
            if (v->buffer[i] != 0) {
                range->is_zero = false;
                range->first_nonzero = offset + i;
            }
        offset += n;
        n_bytes -= n;
    }
    return MOEC_OK;
}

static enum moec_status check_padding(struct verifier *v, struct moec_sha256 *digest, uint64_t offset,
                                      uint64_t end, const char *after, struct moec_error *err)
{
    struct range range = {.digest = digest};
    MOEC_TRY(scan(v, offset, end - offset, &range, err));
    if (!range.is_zero) {
        char place[PLACE_BYTES + 16];
        (void)snprintf(place, sizeof place, "padding after %s", after);
        found(v, place, range.first_nonzero, end - range.first_nonzero);
    }
    return MOEC_OK;
}

/* ---- sections ---- */

static void section_place(const struct moec_section *section, char place[static PLACE_BYTES])
{
    (void)snprintf(place, PLACE_BYTES, "section '%s'", section->name);
}

/* Names the damaged pieces of a compressed section, as far as the sizes of pieces can be followed. */
static enum moec_status locate_pieces(struct verifier *v, const struct moec_section *section,
                                      struct moec_error *err)
{
    uint64_t end = section->offset + section->stored_bytes;
    char place[PLACE_BYTES];
    section_place(section, place);
    for (uint64_t at = section->offset; end - at >= MOEC_PIECE_HEADER_BYTES;) {
        uint8_t header[MOEC_PIECE_HEADER_BYTES];
        MOEC_TRY(moec_file_read(&v->file, at, header, sizeof header, err));
        uint32_t n = moec_get_u32(header) & ~MOEC_PIECE_RAW;
        if (n > MOEC_PIECE_BYTES || n > end - at - MOEC_PIECE_HEADER_BYTES)
            return MOEC_OK;
        struct range range = {0};
        MOEC_TRY(scan(v, at + MOEC_PIECE_HEADER_BYTES, n, &range, err));
        if (range.crc32c != moec_get_u32(header + 4))
            found(v, place, at, MOEC_PIECE_HEADER_BYTES + (uint64_t)n);
        at += MOEC_PIECE_HEADER_BYTES + (uint64_t)n;
    }
    return MOEC_OK;
}

static enum moec_status check_section(struct verifier *v, const struct moec_section *section,
                                      struct moec_error *err)
{
    struct moec_sha256 digest;
    uint8_t value[MOEC_SHA256_BYTES];
    struct range range = {.digest = &digest};
    uint64_t before = v->n_damage;
    moec_sha256_init(&digest);
    MOEC_TRY(scan(v, section->offset, section->stored_bytes, &range, err));
    moec_sha256_finish(&digest, value);
    if (memcmp(value, section->digest, sizeof value) == 0)
        return MOEC_OK;
    if ((section->flags & MOEC_SECTION_FLAG_COMPRESSED) != 0)
        MOEC_TRY(locate_pieces(v, section, err));
    if (v->n_damage == before) {
        char place[PLACE_BYTES];
        section_place(section, place);
        found(v, place, section->offset, section->stored_bytes);
    }
    return MOEC_OK;
}

/* ---- records ---- */

/* One precision copy whose index could be read. */
struct level {
    const struct moec_config *config;
    const struct moec_section *section;
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    struct moec_record_entry *entries; /* owned */
    uint8_t *record;                   /* owned, room for the largest */
    struct moec_sha256 digest;
};

static enum moec_status check_record(struct verifier *v, struct level *level, size_t index, const char *name,
                                     struct moec_error *err)
{
    const struct moec_record_entry *entry = &level->entries[index];
    MOEC_TRY(moec_file_read(&v->file, entry->offset, level->record, entry->n_bytes, err));
    moec_file_drop(&v->file, entry->offset, entry->n_bytes);
    moec_sha256_update(&level->digest, level->record, entry->n_bytes);
    if (moec_crc32c(0, level->record, entry->n_bytes) != entry->crc32c) {
        found(v, name, entry->offset, entry->n_bytes);
        return MOEC_OK;
    }
    struct moec_record_layout layout = moec_record_layout_of(level->config, entry->variant, level->codecs);
    if (!moec_record_is_finite(&layout, level->record))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s in '%s' has a scale or weight that is not finite", name,
                         v->file.path);
    return MOEC_OK;
}

static enum moec_status check_level(struct verifier *v, struct level *level, struct moec_error *err)
{
    const struct moec_section *section = level->section;
    uint32_t n_expert = level->config->n_expert;
    size_t n = (size_t)moec_config_moe_count(level->config) * n_expert;
    uint64_t end = section->offset, before = v->n_damage;
    uint8_t value[MOEC_SHA256_BYTES];
    char name[PLACE_BYTES] = "the start of the records";
    moec_sha256_init(&level->digest);
    for (size_t i = 0; i < n; i++) {
        MOEC_TRY(check_padding(v, &level->digest, end, level->entries[i].offset, name, err));
        (void)snprintf(name, sizeof name, "record of layer %u expert %zu (copy %u)",
                       moec_config_moe_layer(level->config, (uint32_t)(i / n_expert)), i % n_expert,
                       section->level);
        MOEC_TRY(check_record(v, level, i, name, err));
        end = level->entries[i].offset + level->entries[i].n_bytes;
    }
    MOEC_TRY(check_padding(v, &level->digest, end, section->offset + section->stored_bytes, name, err));
    moec_sha256_finish(&level->digest, value);
    if (v->n_damage == before && memcmp(value, section->digest, sizeof value) != 0) {
        section_place(section, name);
        found(v, name, section->offset, section->stored_bytes);
    }
    return MOEC_OK;
}

/* Reads config and index of a level; false when either is damaged,
 * and records can only be checked as a whole. */
static bool read_level(const struct verifier *v, struct level *level, struct moec_config *config)
{
    const struct moec_section *section = moec_contents_find(&v->contents, MOEC_SECTION_CONFIG, 0);
    const struct moec_section *index =
        moec_contents_find(&v->contents, MOEC_SECTION_RECORD_INDEX, level->section->level);
    uint8_t *config_bytes = NULL, *index_bytes = NULL;
    void *memory = NULL;
    bool done = false;
    if (section == NULL || index == NULL ||
        moec_section_load_alloc(&v->file, section, MOEC_SMALL_SECTION_MAX_BYTES, &config_bytes, NULL) !=
            MOEC_OK ||
        moec_config_decode(config_bytes, (size_t)section->content_bytes, config, NULL) != MOEC_OK)
        goto out;
    size_t n = (size_t)moec_config_moe_count(config) * config->n_expert;
    if (moec_section_load_alloc(&v->file, index, MOEC_INDEX_HEADER_BYTES + n * MOEC_INDEX_MIXED_BYTES,
                                &index_bytes, NULL) != MOEC_OK ||
        moec_alloc(&memory, n, sizeof *level->entries, "record index", NULL) != MOEC_OK)
        goto out;
    level->entries = memory;
    const struct moec_record_home home = {config, level->section, v->contents.alignment, level->codecs};
    struct moec_record_level records = {.entries = level->entries};
    if (moec_record_index_decode(index_bytes, (size_t)index->content_bytes, &home, &records, NULL) != MOEC_OK)
        goto out;
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = level->entries[i].n_bytes > largest ? level->entries[i].n_bytes : largest;
    done = moec_alloc(&memory, largest, 1, "a record", NULL) == MOEC_OK;
    level->record = done ? memory : NULL;
out:
    free(config_bytes);
    free(index_bytes);
    return done;
}

static enum moec_status check_records(struct verifier *v, const struct moec_section *section,
                                      struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_config), "config", err));
    struct moec_config *config = memory;
    struct level level = {.config = config, .section = section};
    enum moec_status status =
        read_level(v, &level, config) ? check_level(v, &level, err) : check_section(v, section, err);
    free(level.entries);
    free(level.record);
    free(config);
    return status;
}

/* ---- the whole file ---- */

static enum moec_status check_contents(struct verifier *v, struct moec_error *err)
{
    struct moec_error problem = {0};
    const char *place = NULL;
    enum moec_status status = moec_contents_read(&v->file, &v->contents, &place, &problem);
    if (status == MOEC_OK)
        return MOEC_OK;
    if (place == NULL)
        return moec_fail(err, status, "%s", problem.message);
    uint64_t offset = 0, n_bytes = MOEC_BUNDLE_HEADER_BYTES;
    if (strcmp(place, "contents table") == 0) {
        offset = MOEC_BUNDLE_HEADER_BYTES;
        n_bytes = (uint64_t)v->contents.n_sections * MOEC_BUNDLE_SECTION_BYTES;
    } else if (strcmp(place, "end of file") == 0) {
        uint64_t found_bytes = v->file.n_bytes, stated = v->contents.file_bytes;
        offset = found_bytes < stated ? found_bytes : stated;
        n_bytes = (found_bytes < stated ? stated : found_bytes) - offset;
    }
    found(v, place, offset, n_bytes);
    return moec_fail(err, MOEC_ERR_CHECKSUM, "%s", problem.message);
}

static enum moec_status check_bytes(struct verifier *v, struct moec_error *err)
{
    const struct moec_contents *contents = &v->contents;
    uint64_t end = MOEC_BUNDLE_HEADER_BYTES + (uint64_t)contents->n_sections * MOEC_BUNDLE_SECTION_BYTES;
    char name[PLACE_BYTES] = "the contents table";
    for (uint32_t i = 0; i < contents->n_sections; i++) {
        const struct moec_section *section = &contents->sections[i];
        MOEC_TRY(check_padding(v, NULL, end, section->offset, name, err));
        if (section->kind == MOEC_SECTION_RECORDS)
            MOEC_TRY(check_records(v, section, err));
        else
            MOEC_TRY(check_section(v, section, err));
        section_place(section, name);
        end = section->offset + section->stored_bytes;
    }
    return check_padding(v, NULL, end, contents->file_bytes, name, err);
}

/* Intact bytes can still mean nothing: what `run` would refuse, verify must not pass. */
static enum moec_status check_meaning(const char *path, struct moec_error *err)
{
    struct moec_bundle *bundle = NULL;
    struct moec_dense dense = {0};
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    enum moec_status status = moec_bundle_load_dense(bundle, &dense, err);
    moec_dense_release(&dense);
    if (status == MOEC_OK)
        status = moec_record_parts_check(bundle, err);
    moec_bundle_close(bundle);
    return status;
}

enum moec_status moec_bundle_verify(const char *path, moec_damage_fn *report, void *context,
                                    struct moec_error *err)
{
    void *memory = NULL, *buffer = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct verifier), "verifier", err));
    struct verifier *v = memory;
    v->report = report;
    v->context = context;
    v->file.fd = -1;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_file_open(&v->file, path, err));
    v->buffer_bytes = v->file.n_bytes < MOEC_PIECE_BYTES ? (size_t)v->file.n_bytes + 1 : MOEC_PIECE_BYTES;
    MOEC_TRY_OUT(moec_alloc(&buffer, v->buffer_bytes, 1, "a read buffer", err));
    v->buffer = buffer;
    MOEC_TRY_OUT(check_contents(v, err));
    MOEC_TRY_OUT(check_bytes(v, err));
    if (v->n_damage > 0)
        status = moec_fail(err, MOEC_ERR_CHECKSUM,
                           "the bundle '%s' is damaged: %s, %" PRIu64 " bytes at offset %" PRIu64 "%s", path,
                           v->place, v->n_bytes, v->offset, v->n_damage > 1 ? ", and more" : "");
    else
        status = check_meaning(path, err);
out:
    moec_file_close(&v->file);
    free(buffer);
    free(v);
    return status;
}
