#include "formats/bundle/bundle_strip.h"

#include "formats/base/memory.h"
#include "formats/bundle/bundle_format.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COPY_BYTES ((size_t)1 << 20)

struct stripping {
    const struct moec_bundle *bundle;
    const struct moec_contents *from;
    struct moec_contents to;
    uint32_t source[MOEC_BUNDLE_MAX_SECTIONS]; /* index in `from` of each section of `to` */
    uint8_t provenance[MOEC_PROVENANCE_BYTES];
    bool drop[MOEC_MAX_COPIES]; /* by level */
    struct moec_output output;
};

/* Number in the file of the copy level that stands as number `copy` among those that are there. */
static uint32_t level_of(const struct moec_contents *contents, uint32_t copy)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < contents->n_sections; i++)
        if (contents->sections[i].kind == MOEC_SECTION_RECORD_INDEX && seen++ == copy)
            return contents->sections[i].level;
    return 0;
}

static enum moec_status choose_levels(struct stripping *s, const uint32_t *bits, uint32_t n,
                                      struct moec_error *err)
{
    if (n == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "no copy level to drop from '%s'", s->bundle->file.path);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t copy = 0;
        MOEC_TRY(moec_bundle_find_copy(s->bundle, bits[i], &copy, err));
        s->drop[level_of(s->from, copy)] = true;
    }
    return MOEC_OK;
}

static enum moec_status note_provenance(struct stripping *s, const uint32_t *bits, uint32_t n,
                                        struct moec_error *err)
{
    struct moec_provenance provenance = s->bundle->provenance;
    char note[64] = "";
    for (uint32_t i = 0; i < n; i++) {
        const size_t used = strlen(note);
        (void)snprintf(note + used, sizeof note - used, "%s%" PRIu32, i == 0 ? "; stripped --copies " : ",",
                       bits[i]);
    }
    const size_t used = strlen(provenance.options);
    if (used + strlen(note) >= sizeof provenance.options)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the provenance of '%s' has no room to say what was dropped: %zu of "
                         "%zu bytes are taken",
                         s->bundle->file.path, used, sizeof provenance.options - 1);
    memcpy(provenance.options + used, note, strlen(note) + 1);
    return moec_provenance_encode(&provenance, s->provenance, err);
}

static void lay_out(struct stripping *s)
{
    struct moec_contents *to = &s->to;
    to->alignment = s->from->alignment;
    for (uint32_t i = 0; i < s->from->n_sections; i++) {
        const struct moec_section *section = &s->from->sections[i];
        bool is_level = section->kind == MOEC_SECTION_RECORD_INDEX || section->kind == MOEC_SECTION_RECORDS;
        if (is_level && s->drop[section->level])
            continue;
        s->source[to->n_sections] = i;
        to->sections[to->n_sections++] = *section;
    }
    uint64_t end = MOEC_BUNDLE_HEADER_BYTES + (uint64_t)to->n_sections * MOEC_BUNDLE_SECTION_BYTES;
    for (uint32_t i = 0; i < to->n_sections; i++) {
        struct moec_section *section = &to->sections[i];
        if (section->kind == MOEC_SECTION_PROVENANCE) {
            section->flags = 0;
            section->stored_bytes = section->content_bytes = MOEC_PROVENANCE_BYTES;
            moec_sha256(s->provenance, MOEC_PROVENANCE_BYTES, section->digest);
        }
        section->offset = moec_align_up(end, section->kind == MOEC_SECTION_RECORDS ? to->alignment
                                                                                   : MOEC_SECTION_ALIGNMENT);
        end = section->offset + section->stored_bytes;
    }
    to->file_bytes = end;
}

/* Appends the stored bytes of a section of the old file. */
static enum moec_status copy_section(struct stripping *s, const struct moec_section *section, uint8_t *buffer,
                                     struct moec_error *err)
{
    const struct moec_file *file = &s->bundle->file;
    uint8_t digest[MOEC_SHA256_BYTES];
    struct moec_sha256 sha;
    moec_sha256_init(&sha);
    for (uint64_t done = 0; done < section->stored_bytes;) {
        uint64_t left = section->stored_bytes - done;
        size_t n = left < COPY_BYTES ? (size_t)left : COPY_BYTES;
        MOEC_TRY(moec_file_read(file, section->offset + done, buffer, n, err));
        moec_sha256_update(&sha, buffer, n);
        MOEC_TRY(moec_output_append(&s->output, buffer, n, err));
        moec_file_drop(file, section->offset + done, n);
        done += n;
    }
    moec_sha256_finish(&sha, digest);
    if (memcmp(digest, section->digest, sizeof digest) != 0)
        return moec_fail(
            err, MOEC_ERR_CHECKSUM,
            "section '%s' of '%s' is damaged: its SHA-256 does not match; moec verify says where",
            section->name, file->path);
    return MOEC_OK;
}

static enum moec_status write_sections(struct stripping *s, struct moec_error *err)
{
    static const uint8_t
        zeros[MOEC_BUNDLE_HEADER_BYTES + MOEC_BUNDLE_MAX_SECTIONS * MOEC_BUNDLE_SECTION_BYTES];
    const size_t table_bytes = (size_t)s->to.n_sections * MOEC_BUNDLE_SECTION_BYTES;
    uint8_t header[MOEC_BUNDLE_HEADER_BYTES];
    uint8_t table[MOEC_BUNDLE_MAX_SECTIONS * MOEC_BUNDLE_SECTION_BYTES];
    void *buffer = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc(&buffer, COPY_BYTES, 1, "a copy buffer", err));
    MOEC_TRY_OUT(moec_output_append(&s->output, zeros, MOEC_BUNDLE_HEADER_BYTES + table_bytes, err));
    for (uint32_t i = 0; i < s->to.n_sections; i++) {
        const struct moec_section *section = &s->to.sections[i];
        MOEC_TRY_OUT(moec_output_align(
            &s->output, section->kind == MOEC_SECTION_RECORDS ? s->to.alignment : MOEC_SECTION_ALIGNMENT,
            err));
        if (section->kind == MOEC_SECTION_PROVENANCE)
            MOEC_TRY_OUT(moec_output_append(&s->output, s->provenance, MOEC_PROVENANCE_BYTES, err));
        else
            MOEC_TRY_OUT(copy_section(s, &s->from->sections[s->source[i]], buffer, err));
    }
    moec_contents_encode(&s->to, header, table);
    MOEC_TRY_OUT(moec_output_patch(&s->output, MOEC_BUNDLE_HEADER_BYTES, table, table_bytes, err));
    MOEC_TRY_OUT(moec_output_patch(&s->output, 0, header, sizeof header, err));
out:
    free(buffer);
    return status;
}

enum moec_status moec_bundle_strip(const char *path, const uint32_t *bits, uint32_t n, const char *out,
                                   struct moec_bundle_stripped *stripped, struct moec_error *err)
{
    struct moec_bundle *bundle = NULL;
    void *memory = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct stripping), "contents table", err));
    struct stripping *s = memory;
    s->output.fd = -1;
    MOEC_TRY_OUT(moec_bundle_open(path, &bundle, err));
    s->bundle = bundle;
    s->from = bundle->sections;
    MOEC_TRY_OUT(choose_levels(s, bits, n, err));
    MOEC_TRY_OUT(note_provenance(s, bits, n, err));
    lay_out(s);
    MOEC_TRY_OUT(moec_output_open(&s->output, out, err));
    MOEC_TRY_OUT(write_sections(s, err));
    MOEC_TRY_OUT(moec_output_commit(&s->output, err));
    *stripped = (struct moec_bundle_stripped){
        .before_bytes = bundle->file.n_bytes, .after_bytes = s->to.file_bytes, .n_copy = bundle->n_copy - n};
out:
    moec_output_abort(&s->output);
    moec_bundle_close(bundle);
    free(s);
    return status;
}
