/* Sections are chosen first, then laid out, then written, so the size is known before the output opens. New
 * sections stand before the first index of records, where opening reads. Levels keep their numbers when one
 * between them is dropped, and offsets of records count from their section, so no index changes. Every
 * copied section is hashed on the way: damage is not carried into the new file. */
#include "formats/bundle/bundle_rewrite.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COPY_BYTES ((size_t)1 << 20)
#define PUT_IN     0x80000000u /* added to the place in `puts` of a section that is put in */
#define N_PUT      (sizeof((struct moec_bundle_changes *)0)->puts / sizeof(struct moec_bundle_put))

struct rewriting {
    const struct moec_bundle *bundle;
    const struct moec_bundle_changes *changes;
    const struct moec_contents *from;
    struct moec_contents to;
    uint32_t source[MOEC_BUNDLE_MAX_SECTIONS]; /* index in `from` of each section of `to`, or PUT_IN + i */
    uint8_t provenance[MOEC_PROVENANCE_BYTES];
    struct moec_output output;
};

static enum moec_status note_provenance(struct rewriting *s, struct moec_error *err)
{
    struct moec_provenance provenance = s->bundle->provenance;
    const char *note = s->changes->note;
    const size_t used = strlen(provenance.options);
    if (used + strlen(note) >= sizeof provenance.options)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the provenance of the bundle '%s' (how it was made) has no room for the note "
                         "'%s': %zu of %zu bytes are used",
                         s->bundle->file.path, note, used, sizeof provenance.options - 1);
    memcpy(provenance.options + used, note, strlen(note) + 1);
    return moec_provenance_encode(&provenance, s->provenance, err);
}

static void set_content(struct moec_section *section, const uint8_t *bytes, size_t n)
{
    section->flags = 0;
    section->stored_bytes = section->content_bytes = n;
    moec_sha256(bytes, n, section->digest);
}

static uint32_t put_count(const struct moec_bundle_changes *changes)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_PUT; i++)
        n += changes->puts[i].kind != 0;
    return n;
}

static void put_in(struct rewriting *s)
{
    for (uint32_t i = 0; i < N_PUT; i++) {
        const struct moec_bundle_put *put = &s->changes->puts[i];
        if (put->kind == 0)
            continue;
        struct moec_section *section = &s->to.sections[s->to.n_sections];
        *section = (struct moec_section){.kind = put->kind};
        set_content(section, put->bytes, put->n_bytes);
        s->source[s->to.n_sections++] = PUT_IN + i;
    }
}

/* Whether it is left out, for good or for one that is put in. */
static bool is_dropped(const struct moec_bundle_changes *changes, const struct moec_section *section)
{
    if (section->kind == MOEC_SECTION_RECORD_INDEX || section->kind == MOEC_SECTION_RECORDS)
        return changes->drops[section->level];
    bool is_replaced = false;
    for (uint32_t i = 0; i < N_PUT; i++)
        is_replaced = is_replaced || section->kind == changes->puts[i].kind;
    return is_replaced || section->kind == changes->drop_kind;
}

static enum moec_status choose_sections(struct rewriting *s, struct moec_error *err)
{
    const uint32_t n_put = put_count(s->changes);
    bool is_in = n_put == 0;
    for (uint32_t i = 0; i < s->from->n_sections; i++) {
        const struct moec_section *section = &s->from->sections[i];
        const bool is_level =
            section->kind == MOEC_SECTION_RECORD_INDEX || section->kind == MOEC_SECTION_RECORDS;
        if (is_dropped(s->changes, section))
            continue;
        if (s->to.n_sections + (is_in ? 0u : n_put) >= MOEC_BUNDLE_MAX_SECTIONS)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "the bundle '%s' has no room for another section: it already has %" PRIu32
                             " sections",
                             s->bundle->file.path, s->from->n_sections);
        /* Small sections stand before the records. */
        if (is_level && !is_in) {
            put_in(s);
            is_in = true;
        }
        s->source[s->to.n_sections] = i;
        s->to.sections[s->to.n_sections++] = *section;
    }
    return MOEC_OK;
}

/* To a multiple of which a section stands: dense weights that are not compressed at a page's start, where
 * they can be mapped. */
static uint64_t alignment_of(const struct moec_contents *to, const struct moec_section *section)
{
    if (section->kind == MOEC_SECTION_RECORDS)
        return to->alignment;
    return section->kind == MOEC_SECTION_DENSE && section->flags == 0 ? MOEC_BUNDLE_ALIGNMENT
                                                                      : MOEC_SECTION_ALIGNMENT;
}

static void lay_out(struct rewriting *s)
{
    struct moec_contents *to = &s->to;
    to->alignment = s->from->alignment;
    uint64_t end = MOEC_BUNDLE_HEADER_BYTES + (uint64_t)to->n_sections * MOEC_BUNDLE_SECTION_BYTES;
    for (uint32_t i = 0; i < to->n_sections; i++) {
        struct moec_section *section = &to->sections[i];
        if (section->kind == MOEC_SECTION_PROVENANCE)
            set_content(section, s->provenance, MOEC_PROVENANCE_BYTES);
        section->offset = moec_align_up(end, alignment_of(to, section));
        end = section->offset + section->stored_bytes;
    }
    to->file_bytes = end;
}

/* Appends the stored bytes of a section of the old file. */
static enum moec_status copy_section(struct rewriting *s, const struct moec_section *section, uint8_t *buffer,
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
            "section '%s' of the bundle '%s' is damaged: its SHA-256 does not match; run moec verify to "
            "locate the damage",
            section->name, file->path);
    return MOEC_OK;
}

static enum moec_status write_sections(struct rewriting *s, struct moec_error *err)
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
        MOEC_TRY_OUT(moec_output_align(&s->output, alignment_of(&s->to, section), err));
        if (section->kind == MOEC_SECTION_PROVENANCE)
            MOEC_TRY_OUT(moec_output_append(&s->output, s->provenance, MOEC_PROVENANCE_BYTES, err));
        else if (s->source[i] >= PUT_IN)
            MOEC_TRY_OUT(moec_output_append(&s->output, s->changes->puts[s->source[i] - PUT_IN].bytes,
                                            (size_t)section->stored_bytes, err));
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

enum moec_status moec_bundle_rewrite(const struct moec_bundle *bundle,
                                     const struct moec_bundle_changes *changes, const char *out,
                                     uint64_t *n_bytes, struct moec_error *err)
{
    void *memory = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct rewriting), "contents table", err));
    struct rewriting *s = memory;
    *s = (struct rewriting){.bundle = bundle, .changes = changes, .from = bundle->sections};
    s->output.fd = -1;
    MOEC_TRY_OUT(note_provenance(s, err));
    MOEC_TRY_OUT(choose_sections(s, err));
    lay_out(s);
    MOEC_TRY_OUT(moec_output_open(&s->output, out, err));
    MOEC_TRY_OUT(write_sections(s, err));
    MOEC_TRY_OUT(moec_output_commit(&s->output, err));
    *n_bytes = s->to.file_bytes;
out:
    moec_output_abort(&s->output);
    free(s);
    return status;
}
