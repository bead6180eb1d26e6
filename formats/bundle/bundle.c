/* A record is read in one piece and checked by CRC32C, then its scales and floats for finite numbers. Both
 * happen before a caller sees the bytes. A model of small records gets a small alignment, so that padding stays
 * under one percent. */
#include "formats/bundle/bundle.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

uint32_t moec_bundle_choose_alignment(const struct moec_config *config)
{
    const struct moec_codec least = {.dtype = MOEC_DTYPE_INT2};
    const uint64_t n_bytes = moec_record_layout_make(config, least).n_bytes;
    if (n_bytes / 100 >= MOEC_BUNDLE_ALIGNMENT / 2)
        return MOEC_BUNDLE_ALIGNMENT;
    uint32_t alignment = MOEC_BUNDLE_SMALL_ALIGNMENT;
    while (alignment > MOEC_BUNDLE_LEAST_ALIGNMENT &&
           moec_align_up(n_bytes, alignment) - n_bytes > n_bytes / 200)
        alignment /= 2;
    return alignment;
}

uint64_t moec_bundle_slot_bytes(const struct moec_config *config, uint64_t n_bytes)
{
    const uint64_t alignment = moec_bundle_choose_alignment(config),
                   unit = alignment > MOEC_BUNDLE_SMALL_ALIGNMENT ? alignment : MOEC_BUNDLE_SMALL_ALIGNMENT;
    return moec_align_up(n_bytes, unit);
}

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

enum moec_status moec_bundle_check_record(const struct moec_bundle *bundle, struct moec_record_id record,
                                          const uint8_t *bytes, bool check_floats, struct moec_error *err)
{
    const uint32_t copy = record.copy, ordinal = record.ordinal, expert = record.expert;
    const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, ordinal, expert);
    uint32_t crc = moec_crc32c(0, bytes, entry->n_bytes);
    if (crc != entry->crc32c)
        return moec_fail(
            err, MOEC_ERR_CHECKSUM,
            "record of layer %u expert %u (copy %u) in '%s' is damaged: CRC32C is %08x, expected %08x "
            "(the record has %u bytes at offset %" PRIu64 ")",
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
                         "the bundle '%s' has no copy of its experts at %" PRIu32 " bits, only the "
                         "compiled assignment",
                         bundle->file.path, bits);
    return moec_fail(err, MOEC_ERR_USAGE,
                     "the bundle '%s' has no copy of its experts at %" PRIu32 " bits, only copies at %s "
                     "bits and the compiled assignment",
                     bundle->file.path, bits, known);
}

enum moec_status moec_bundle_read_record(const struct moec_bundle *bundle, struct moec_record_id record,
                                         uint8_t *buffer, struct moec_error *err)
{
    const uint32_t copy = record.copy, ordinal = record.ordinal, expert = record.expert;
    const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, ordinal, expert);
    enum moec_status status = moec_file_read(&bundle->file, entry->offset, buffer, entry->n_bytes, err);
    if (status != MOEC_OK) {
        (void)moec_error_prefix(err, "record of layer %u expert %u (copy %u)",
                                moec_config_moe_layer(&bundle->config, ordinal), expert, copy);
        return status;
    }
    return moec_bundle_check_record(bundle, record, buffer, true, err);
}
