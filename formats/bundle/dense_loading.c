/* Three ways into memory, chosen by what the file allows. An uncompressed section that starts on a page is
 * mapped, privately, over the allocated range. A compressed one is decompressed by pieces; its embedding may
 * be left for later. In every way each byte is checked by a checksum and each weight for finite numbers
 * before its first use. The embedding of a tied head is never left, since every token reads all of it. */
#include "formats/bundle/dense_loading.h"

#include "formats/base/mapped_memory.h"
#include "formats/base/memory.h"
#include "formats/bundle/bundle_format.h"
#include "formats/bundle/late_pieces.h"
#include "formats/bundle/section_hash.h"
#include "formats/bundle/section_pieces.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* Decodes and checks the dense table; its blob stays NULL. */
static enum moec_status read_dense_table(const struct moec_bundle *bundle, struct moec_dense *dense,
                                         const struct moec_section **section, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    *section = moec_contents_find(bundle->sections, MOEC_SECTION_DENSE, 0);
    if (*section == NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "the bundle '%s' has no section 'dense weights'",
                         bundle->file.path);
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_DENSE_TABLE, true, &bytes, &n, err));
    enum moec_status status = moec_dense_table_decode(bytes, n, &bundle->config, dense, err);
    free(bytes);
    MOEC_TRY(status);
    if (dense->blob_bytes != (*section)->content_bytes) {
        status = moec_fail(err, MOEC_ERR_FORMAT,
                           "the dense weights of the bundle '%s' have %" PRIu64 " bytes, but their table "
                           "says %" PRIu64,
                           bundle->file.path, (*section)->content_bytes, dense->blob_bytes);
        moec_dense_release(dense);
    }
    return status;
}

/* Whether some of the entry comes late. */
static bool is_late(const struct moec_dense *dense, const struct moec_dense_entry *entry)
{
    return dense->late != NULL && entry->offset < dense->late->end &&
           entry->offset + entry->n_bytes > dense->late->from;
}

static enum moec_status check_dense_finite(const struct moec_bundle *bundle, const struct moec_dense *dense,
                                           struct moec_error *err)
{
    for (uint32_t i = 0; i < dense->n_entries; i++) {
        const struct moec_dense_entry *entry = &dense->entries[i];
        if (is_late(dense, entry))
            continue;
        const size_t row_bytes = moec_codec_row_bytes(entry->codec, entry->columns);
        const size_t row = moec_codec_find_not_finite(entry->codec, dense->blob + entry->offset, row_bytes,
                                                      entry->rows, entry->columns);
        if (row == entry->rows)
            continue;
        if (entry->layer == MOEC_LAYER_NONE)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the dense weights '%s' of the bundle '%s' have a weight that is not finite "
                             "in row %zu",
                             moec_role_name(entry->role), bundle->file.path, row);
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the dense weights '%s' of layer %u of the bundle '%s' have a weight that is not "
                         "finite in row %zu",
                         moec_role_name(entry->role), entry->layer, bundle->file.path, row);
    }
    return MOEC_OK;
}

uint64_t moec_bundle_dense_bytes(const struct moec_bundle *bundle)
{
    return moec_contents_find(bundle->sections, MOEC_SECTION_DENSE, 0)->content_bytes;
}

enum moec_status moec_bundle_load_dense_table(const struct moec_bundle *bundle, struct moec_dense *dense,
                                              struct moec_error *err)
{
    const struct moec_section *section = NULL;
    return read_dense_table(bundle, dense, &section, err);
}

/* A section of which less is in the page cache is read. */
#define MAPPED_SHARE 0.5

/* Whether the section could be used where it stands, and is. */
static bool map_blob(const struct moec_bundle *bundle, const struct moec_section *section, bool only_cached,
                     uint8_t *blob)
{
    const bool is_on_pages = section->flags == 0 && section->offset % MOEC_PAGE_BYTES == 0 &&
                             section->stored_bytes > 0 && sysconf(_SC_PAGESIZE) == (long)MOEC_PAGE_BYTES;
    if (!is_on_pages || (only_cached && moec_file_cached_share(&bundle->file, section->offset,
                                                               section->stored_bytes) < MAPPED_SHARE))
        return false;
    return moec_map_file(blob, bundle->file.fd, section->offset, section->stored_bytes) == 0;
}

/* Without a section of checksums the whole section's SHA-256 is asked, which one thread computes. */
static enum moec_status load_plain(const struct moec_bundle *bundle, const struct moec_section *section,
                                   bool is_mapped, uint8_t *blob, struct moec_error *err)
{
    uint8_t *sums = NULL, digest[MOEC_SHA256_BYTES];
    size_t n_sums = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_DENSE_SUMS, false, &sums, &n_sums, err));
    if (sums != NULL) {
        enum moec_status status = moec_section_sums_check(sums, n_sums, section->content_bytes, err);
        if (status == MOEC_OK)
            status = moec_section_plain_load(&bundle->file, section, sums, is_mapped, blob, err);
        free(sums);
        return status;
    }
    if (!is_mapped)
        return moec_section_load(&bundle->file, section, blob, err);
    moec_sha256(blob, (size_t)section->stored_bytes, digest);
    return moec_section_check_digest(&bundle->file, section, digest, err);
}

/* The entry that can come late; NULL where none can. Of an embedding in two matrices it is the larger one. */
static const struct moec_dense_entry *find_late(const struct moec_bundle *bundle,
                                                const struct moec_section *section,
                                                const struct moec_dense *dense)
{
    const struct moec_dense_entry *entry = moec_dense_entry_find(dense, MOEC_ROLE_EMBEDDING, MOEC_LAYER_NONE),
                                  *rest =
                                      moec_dense_entry_find(dense, MOEC_ROLE_EMBEDDING_REST, MOEC_LAYER_NONE);
    if (rest != NULL && rest->n_bytes > entry->n_bytes)
        entry = rest;
    const bool is_compressed = (section->flags & MOEC_SECTION_FLAG_COMPRESSED) != 0;
    return entry != NULL && is_compressed && !bundle->config.head.is_tied &&
                   entry->n_bytes >= MOEC_LATE_MIN_BYTES
               ? entry
               : NULL;
}

enum moec_status moec_bundle_open_dense_table(struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_dense dense = {0};
    const struct moec_section *section = NULL;
    MOEC_TRY(read_dense_table(bundle, &dense, &section, err));
    const struct moec_dense_entry *late = find_late(bundle, section, &dense);
    bundle->late_bytes = late != NULL ? moec_late_pieces_bytes(late->n_bytes) : 0;
    moec_dense_release(&dense);
    return MOEC_OK;
}

/* Pieces carry checksums of their own, which two threads check while they decompress: the section's SHA-256
 * would take one thread longer than all of that. */
static enum moec_status load_checked(const struct moec_bundle *bundle, const struct moec_section *section,
                                     bool leaves_embedding, struct moec_dense *dense, struct moec_error *err)
{
    const struct moec_dense_entry *late = leaves_embedding ? find_late(bundle, section, dense) : NULL;
    if (late != NULL)
        MOEC_TRY(moec_late_pieces_load(
            &bundle->file, section, (struct moec_content_range){late->offset, late->offset + late->n_bytes},
            dense->blob, &dense->late, err));
    else if ((section->flags & MOEC_SECTION_FLAG_COMPRESSED) != 0)
        MOEC_TRY(moec_section_pieces_load(&bundle->file, section, dense->blob, NULL, err));
    else
        MOEC_TRY(load_plain(bundle, section, dense->mapped_bytes > 0, dense->blob, err));
    return check_dense_finite(bundle, dense, err);
}

enum moec_status moec_bundle_open_dense(const struct moec_bundle *bundle,
                                        const struct moec_dense_loading *how, struct moec_dense *dense,
                                        struct moec_error *err)
{
    struct moec_dense made = {0};
    const struct moec_section *section = NULL;
    void *blob = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(read_dense_table(bundle, &made, &section, err));
    MOEC_TRY_OUT(moec_alloc_pages(&blob, made.blob_bytes, "dense weights", err));
    made.blob = blob;
    if (how->maps && map_blob(bundle, section, how->only_cached, made.blob))
        made.mapped_bytes = section->stored_bytes;
    MOEC_TRY_OUT(load_checked(bundle, section, how->leaves_embedding, &made, err));
    *dense = made;
    made = (struct moec_dense){0};
out:
    moec_dense_release(&made);
    return status;
}

enum moec_status moec_bundle_load_dense(const struct moec_bundle *bundle, struct moec_dense *dense,
                                        struct moec_error *err)
{
    static const struct moec_dense_loading whole = {0};
    return moec_bundle_open_dense(bundle, &whole, dense, err);
}
