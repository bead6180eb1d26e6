/* The header, the contents table and small sections: read with every offset checked against the file, written
 * back byte for byte. */
#include "formats/bundle/bundle_format.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* "MOEC" and line ends of both styles: a transfer as text that changes line ends breaks it. */
static const uint8_t magic[8] = {'M', 'O', 'E', 'C', '\r', '\n', 0x1a, '\n'};

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
                         "the bundle '%s' has version %u, this moec reads version %u%s", path, version,
                         MOEC_BUNDLE_VERSION, intact ? "" : " (or the file's header is damaged)");
    }
    if (!intact) {
        *place = "header";
        return moec_fail(err, MOEC_ERR_CHECKSUM,
                         "the header of the bundle '%s' is damaged: CRC32C is %08x, expected %08x", path, crc,
                         moec_get_u32(header + MOEC_HEADER_CRC));
    }
    for (uint32_t i = MOEC_HEADER_N_SECTIONS + 4; i < MOEC_HEADER_CRC; i++)
        if ((i < MOEC_HEADER_CONTENTS || i >= MOEC_HEADER_RESERVED) && header[i] != 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the header of the bundle '%s' has %u in the reserved byte at offset %u, "
                             "expected 0",
                             path, header[i], i);
    contents->alignment = moec_get_u32(header + MOEC_HEADER_ALIGNMENT);
    contents->file_bytes = moec_get_u64(header + MOEC_HEADER_FILE_BYTES);
    contents->n_sections = moec_get_u32(header + MOEC_HEADER_N_SECTIONS);
    uint32_t alignment = contents->alignment;
    if (alignment < MOEC_MIN_ALIGNMENT || alignment > MOEC_MAX_ALIGNMENT ||
        (alignment & (alignment - 1)) != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle '%s' has alignment %u, expected a power of two from %u to %u", path,
                         alignment, MOEC_MIN_ALIGNMENT, MOEC_MAX_ALIGNMENT);
    if (contents->n_sections == 0 || contents->n_sections > MOEC_BUNDLE_MAX_SECTIONS)
        return moec_fail(err, MOEC_ERR_FORMAT, "the bundle '%s' has %u sections, expected 1 to %u", path,
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
                         "section %u of the bundle '%s' has unknown kind %u: a newer moec may know it", index,
                         path, section->kind);
    if (section->offset % alignment != 0 || section->offset < end || section->offset > contents->file_bytes ||
        section->stored_bytes > contents->file_bytes - section->offset)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "section '%s' of the bundle '%s' is at offset %" PRIu64 " with %" PRIu64
                         " bytes, expected an offset that is a multiple of %u, and all bytes between "
                         "offsets %" PRIu64 " and %" PRIu64,
                         section->name, path, section->offset, section->stored_bytes, alignment, end,
                         contents->file_bytes);
    const bool is_cut = section->flags == (MOEC_SECTION_FLAG_COMPRESSED | MOEC_SECTION_FLAG_CUT);
    bool compressed = is_cut || section->flags == MOEC_SECTION_FLAG_COMPRESSED;
    if ((section->flags != 0 && !compressed) || (is_cut && section->kind != MOEC_SECTION_DENSE) ||
        (compressed && is_record_kind(section->kind)))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "section '%s' of the bundle '%s' has flags %u, which are not valid for its kind",
                         section->name, path, section->flags);
    uint64_t pieces =
        section->content_bytes / MOEC_PIECE_BYTES + (section->content_bytes % MOEC_PIECE_BYTES != 0);
    if (compressed ? section->stored_bytes / (MOEC_PIECE_HEADER_BYTES + 1) < pieces
                   : section->stored_bytes != section->content_bytes)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "section '%s' of the bundle '%s' has %" PRIu64 " stored bytes for %" PRIu64
            " bytes of content, but the section's flags say that it is %s: the bundle is damaged",
            section->name, path, section->stored_bytes, section->content_bytes,
            compressed ? "compressed" : "not compressed");
    if (section->level != 0 && known && !is_record_kind(section->kind))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "section '%s' of the bundle '%s' belongs to precision copy %u, expected 0: only sections of "
            "expert records have copies",
            section->name, path, section->level);
    for (uint32_t i = 0; known && i < index; i++)
        if (contents->sections[i].kind == section->kind && contents->sections[i].level == section->level)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the bundle '%s' has two sections named '%s', expected one", path,
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
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "section %u of the bundle '%s' has reserved bytes that are not 0", index, path);
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
        return moec_fail(err, MOEC_ERR_CHECKSUM,
                         "the bundle '%s' has %" PRIu64 " bytes, expected %" PRIu64 ": the file %s", path,
                         file->n_bytes, contents->file_bytes,
                         file->n_bytes < contents->file_bytes ? "is truncated" : "has bytes after its end");
    }
    size_t table_bytes = (size_t)contents->n_sections * MOEC_BUNDLE_SECTION_BYTES;
    if (table_bytes > file->n_bytes - MOEC_BUNDLE_HEADER_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle '%s' ends within its contents table of %u sections", path,
                         contents->n_sections);
    MOEC_TRY(moec_file_read(file, MOEC_BUNDLE_HEADER_BYTES, table, table_bytes, err));
    moec_sha256(table, table_bytes, digest);
    if (memcmp(digest, header + MOEC_HEADER_CONTENTS, sizeof digest) != 0) {
        *place = "contents table";
        return moec_fail(err, MOEC_ERR_CHECKSUM,
                         "the contents table of the bundle '%s' is damaged: its SHA-256 does not match",
                         path);
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

enum moec_status moec_bundle_load_small(const struct moec_bundle *bundle, uint32_t kind, bool required,
                                        uint8_t **bytes, size_t *n_bytes, struct moec_error *err)
{
    const struct moec_contents *contents = bundle->sections;
    const struct moec_section *section = moec_contents_find(contents, kind, 0);
    if (section == NULL && required) {
        struct moec_section missing = {.kind = kind};
        moec_section_set_name(&missing);
        return moec_fail(err, MOEC_ERR_FORMAT, "the bundle '%s' has no section '%s'", bundle->file.path,
                         missing.name);
    }
    if (section == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_section_load_alloc(&bundle->file, section, MOEC_SMALL_SECTION_MAX_BYTES, bytes, err));
    *n_bytes = (size_t)section->content_bytes;
    return MOEC_OK;
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
