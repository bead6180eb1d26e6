/* A level of copies is its index and its records, dropped together by the level's number in the file. That
 * number is not the position among the levels that are there. Decisions that need a dropped copy are dropped
 * with it. Unpacked dense weights bring a section of their checksums, or loading would hash them on one
 * thread. */
#include "formats/bundle/bundle_strip.h"

#include "formats/base/memory.h"
#include "formats/bundle/bundle_decisions.h"
#include "formats/bundle/bundle_rewrite.h"
#include "formats/bundle/section_pieces.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Number in the file of the precision copy that stands as number `copy` among those that are there. */
static uint32_t level_of(const struct moec_contents *contents, uint32_t copy)
{
    uint32_t seen = 0;
    for (uint32_t i = 0; i < contents->n_sections; i++)
        if (contents->sections[i].kind == MOEC_SECTION_RECORD_INDEX && seen++ == copy)
            return contents->sections[i].level;
    return 0;
}

static enum moec_status choose_levels(const struct moec_bundle *bundle, const uint32_t *bits, uint32_t n,
                                      struct moec_bundle_changes *changes, struct moec_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t copy = 0;
        MOEC_TRY(moec_bundle_find_copy(bundle, bits[i], &copy, err));
        bool *drops = &changes->drops[level_of(bundle->sections, copy)];
        if (*drops)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "the copies to drop name %" PRIu32 " bits twice, expected each bitwidth once",
                             bits[i]);
        *drops = true;
    }
    return MOEC_OK;
}

/* Settings that take experts in a copy that is dropped cannot be used any more. */
static enum moec_status find_decisions(const struct moec_bundle *bundle, const uint32_t *bits, uint32_t n,
                                       bool *drops, struct moec_error *err)
{
    struct moec_bundle_decisions decisions;
    *drops = false;
    MOEC_TRY(moec_bundle_load_decisions(bundle, &decisions, err));
    for (uint32_t i = 0; i < n; i++)
        *drops = *drops || decisions.settings.low_bits == bits[i];
    return MOEC_OK;
}

/* What a copy of a bundle has no more. */
struct removed {
    const uint32_t *bits; /* (n): those of precision copies */
    uint32_t n;
    bool unpacks; /* the compression of its dense weights */
};

static enum moec_status strip(const char *path, const struct removed *removed, const char *out,
                              struct moec_bundle_stripped *stripped, struct moec_error *err)
{
    const uint32_t *bits = removed->bits, n = removed->n;
    struct moec_bundle *bundle = NULL;
    struct moec_dense dense = {0};
    uint8_t *sums = NULL;
    char note[64] = "";
    struct moec_bundle_changes changes = {.note = note};
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    MOEC_TRY_OUT(choose_levels(bundle, bits, n, &changes, err));
    for (uint32_t i = 0; i < n; i++) {
        const size_t used = strlen(note);
        (void)snprintf(note + used, sizeof note - used, "%s%" PRIu32, i == 0 ? "; stripped --copies " : ",",
                       bits[i]);
    }
    if (removed->unpacks) {
        const size_t used = strlen(note);
        (void)snprintf(note + used, sizeof note - used, "; unpacked");
        MOEC_TRY_OUT(moec_bundle_load_dense(bundle, &dense, err));
        MOEC_TRY_OUT(moec_alloc((void **)&sums, moec_section_sums_bytes(dense.blob_bytes), 1,
                                "checksums of dense weights", err));
        moec_section_sums_encode(dense.blob, dense.blob_bytes, sums);
        changes.puts[0] = (struct moec_bundle_put){MOEC_SECTION_DENSE, dense.blob, (size_t)dense.blob_bytes};
        changes.puts[1] = (struct moec_bundle_put){MOEC_SECTION_DENSE_SUMS, sums,
                                                   moec_section_sums_bytes(dense.blob_bytes)};
    }
    *stripped =
        (struct moec_bundle_stripped){.before_bytes = bundle->file.n_bytes, .n_copy = bundle->n_copy - n};
    MOEC_TRY_OUT(find_decisions(bundle, bits, n, &stripped->drops_decisions, err));
    if (stripped->drops_decisions)
        changes.drop_kind = MOEC_SECTION_DECISIONS;
    MOEC_TRY_OUT(moec_bundle_rewrite(bundle, &changes, out, &stripped->after_bytes, err));
out:
    free(sums);
    moec_dense_release(&dense);
    moec_bundle_close(bundle);
    return status;
}

enum moec_status moec_bundle_strip(const char *path, const uint32_t *bits, uint32_t n, const char *out,
                                   struct moec_bundle_stripped *stripped, struct moec_error *err)
{
    if (n == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "no precision copy of the bundle '%s' was named: name at least one copy to drop",
                         path);
    return strip(path, &(struct removed){bits, n, false}, out, stripped, err);
}

enum moec_status moec_bundle_unpack(const char *path, const uint32_t *bits, uint32_t n, const char *out,
                                    struct moec_bundle_stripped *stripped, struct moec_error *err)
{
    return strip(path, &(struct removed){bits, n, true}, out, stripped, err);
}
