/* Checksums of all records stand in one array, and first[i] is where those of record i begin: one of its up
 * section, then one for each unit of pairs. How many units a record has follows from its layout and
 * unit_bytes. So the section stores no offsets, and its length must equal what the bundle's layouts give. */
#include "formats/bundle/record_parts.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/tables/sparsity_table.h"

#include <inttypes.h>
#include <string.h>

#define VERSION        1u
#define VERSION_TURNS  2u /* with the turnover of neurons behind the checksums */
#define SHARE_BYTES    8u
#define HEADER_BYTES   24u
#define MAX_UNIT_BYTES (1u << 20)

static const char what[] = "checksums of record parts";

uint32_t moec_parts_unit_neurons(const struct moec_record_parts *parts,
                                 const struct moec_record_layout *layout)
{
    const uint64_t fit = parts->unit_bytes / layout->pair_stride_bytes;
    if (moec_codec_traits(layout->codecs[MOEC_PROJECTION_DOWN])->rows_together > 1 || fit >= layout->n_ff)
        return layout->n_ff;
    return fit > 1 ? (uint32_t)fit : 1;
}

uint32_t moec_parts_unit_count(const struct moec_record_parts *parts, const struct moec_record_layout *layout)
{
    return (layout->n_ff - 1) / moec_parts_unit_neurons(parts, layout) + 1;
}

struct moec_record_range moec_parts_unit_range(const struct moec_record_parts *parts,
                                               const struct moec_record_layout *layout, uint32_t unit,
                                               struct moec_record_part *part)
{
    const uint32_t each = moec_parts_unit_neurons(parts, layout), first = unit * each;
    const uint32_t n = layout->n_ff - first < each ? layout->n_ff - first : each;
    *part = (struct moec_record_part){.projections = 1u << MOEC_PROJECTION_GATE | 1u << MOEC_PROJECTION_DOWN,
                                      .first_neuron = first,
                                      .n_neuron = n};
    return (struct moec_record_range){layout->up_bytes + first * (uint64_t)layout->pair_stride_bytes,
                                      n * (uint64_t)layout->pair_stride_bytes};
}

static size_t record_count(const struct moec_record_parts *parts)
{
    return (size_t)parts->n_layer * parts->n_expert;
}

/* Room for the checksums of a bundle's records. */
static enum moec_status allocate(const struct moec_bundle *bundle, uint32_t unit_bytes,
                                 struct moec_record_parts *parts, struct moec_error *err)
{
    const struct moec_config *config = &bundle->config;
    struct moec_record_parts made = {
        .n_layer = moec_config_moe_count(config), .n_expert = config->n_expert, .unit_bytes = unit_bytes};
    const size_t n = record_count(&made);
    *parts = (struct moec_record_parts){0};
    MOEC_TRY(moec_sparsity_check_config(config, err));
    MOEC_TRY(moec_alloc((void **)&made.first, n + 1, sizeof *made.first, what, err));
    made.first[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const struct moec_record_layout *layout =
            moec_bundle_layout(bundle, 0, (uint32_t)(i / made.n_expert), (uint32_t)(i % made.n_expert));
        made.first[i + 1] = made.first[i] + 1 + moec_parts_unit_count(&made, layout);
    }
    const enum moec_status status =
        moec_alloc((void **)&made.crc32c, made.first[n], sizeof *made.crc32c, what, err);
    if (status == MOEC_OK)
        *parts = made;
    else
        moec_record_parts_release(&made);
    return status;
}

void moec_record_parts_release(struct moec_record_parts *parts)
{
    free(parts->first);
    free(parts->crc32c);
    *parts = (struct moec_record_parts){0};
}

/* ---- making and checking ---- */

static void sum_parts(const struct moec_record_parts *parts, const struct moec_record_layout *layout,
                      const uint8_t *record, uint32_t *crc32c)
{
    const uint32_t n_unit = moec_parts_unit_count(parts, layout);
    crc32c[0] = moec_crc32c(0, record, layout->up_bytes);
    for (uint32_t unit = 0; unit < n_unit; unit++) {
        struct moec_record_part part;
        const struct moec_record_range range = moec_parts_unit_range(parts, layout, unit, &part);
        crc32c[1 + unit] = moec_crc32c(0, record + range.offset, range.n_bytes);
    }
}

static uint64_t largest_record(const struct moec_bundle *bundle)
{
    uint64_t largest = 1;
    for (uint32_t i = 0; i < bundle->n_layout; i++)
        largest = bundle->layouts[i].n_bytes > largest ? bundle->layouts[i].n_bytes : largest;
    return largest;
}

/* Fills `parts` from the records. */
static enum moec_status fill(const struct moec_bundle *bundle, struct moec_record_parts *parts,
                             struct moec_error *err)
{
    uint8_t *record = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&record, largest_record(bundle), 1, "a record", err));
    for (size_t i = 0; i < record_count(parts) && status == MOEC_OK; i++) {
        const uint32_t ordinal = (uint32_t)(i / parts->n_expert), expert = (uint32_t)(i % parts->n_expert);
        status = moec_bundle_read_record(bundle, (struct moec_record_id){0, ordinal, expert}, record, err);
        if (status == MOEC_OK)
            sum_parts(parts, moec_bundle_layout(bundle, 0, ordinal, expert), record,
                      parts->crc32c + parts->first[i]);
    }
    free(record);
    return status;
}

enum moec_status moec_record_parts_make(const struct moec_bundle *bundle, struct moec_record_parts *parts,
                                        struct moec_error *err)
{
    MOEC_TRY(allocate(bundle, MOEC_PARTS_UNIT_BYTES, parts, err));
    const enum moec_status status = fill(bundle, parts, err);
    if (status != MOEC_OK)
        moec_record_parts_release(parts);
    return status;
}

static enum moec_status compare(const struct moec_bundle *bundle, const struct moec_record_parts *stated,
                                const struct moec_record_parts *found, struct moec_error *err)
{
    for (size_t i = 0; i < record_count(stated); i++)
        if (memcmp(stated->crc32c + stated->first[i], found->crc32c + stated->first[i],
                   (stated->first[i + 1] - stated->first[i]) * sizeof *stated->crc32c) != 0)
            return moec_fail(err, MOEC_ERR_CHECKSUM,
                             "the checksums of the parts of layer %" PRIu32 " expert %zu in the bundle "
                             "'%s' do not match the expert's record: make the checksums again with moec "
                             "sparsify --parts",
                             moec_config_moe_layer(&bundle->config, (uint32_t)(i / stated->n_expert)),
                             i % stated->n_expert, bundle->file.path);
    return MOEC_OK;
}

enum moec_status moec_record_parts_check(const struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_record_parts stated, found = {0};
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_bundle_load_parts(bundle, &stated, err));
    if (stated.n_layer == 0)
        return MOEC_OK;
    MOEC_TRY_OUT(allocate(bundle, stated.unit_bytes, &found, err));
    MOEC_TRY_OUT(fill(bundle, &found, err));
    status = compare(bundle, &stated, &found, err);
out:
    moec_record_parts_release(&stated);
    moec_record_parts_release(&found);
    return status;
}

/* ---- the section ---- */

enum moec_status moec_record_parts_encode(const struct moec_record_parts *parts, uint8_t **bytes,
                                          size_t *n_bytes, struct moec_error *err)
{
    const struct moec_neuron_turnover *turnover = &parts->turnover;
    const uint64_t n = parts->first[record_count(parts)];
    const uint64_t total =
        HEADER_BYTES + 4 * n + (turnover->n_share > 0 ? 4 + SHARE_BYTES * turnover->n_share : 0);
    MOEC_TRY(moec_alloc((void **)bytes, total, 1, what, err));
    uint8_t *at = *bytes;
    moec_put_u32(at, turnover->n_share > 0 ? VERSION_TURNS : VERSION);
    moec_put_u32(at + 4, parts->n_layer);
    moec_put_u32(at + 8, parts->n_expert);
    moec_put_u32(at + 12, parts->unit_bytes);
    moec_put_u64(at + 16, n);
    for (uint64_t i = 0; i < n; i++)
        moec_put_u32(at + HEADER_BYTES + 4 * i, parts->crc32c[i]);
    at += HEADER_BYTES + 4 * n;
    if (turnover->n_share > 0)
        moec_put_u32(at, turnover->n_share);
    for (uint32_t i = 0; i < turnover->n_share; i++) {
        moec_put_u32(at + 4 + SHARE_BYTES * i, turnover->shares[i]);
        moec_put_f32(at + 8 + SHARE_BYTES * i, turnover->turnover[i]);
    }
    *n_bytes = (size_t)total;
    return MOEC_OK;
}

/* Behind the checksums. */
static enum moec_status decode_turnover(const uint8_t *bytes, size_t n_bytes,
                                        struct moec_neuron_turnover *turnover, struct moec_error *err)
{
    const uint32_t n = n_bytes >= 4 ? moec_get_u32(bytes) : 0;
    if (n == 0 || n > MOEC_SPARSITY_MAX_SHARES || n_bytes - 4 != SHARE_BYTES * n)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the list of neuron shares at the end of the %s has %zu bytes and counts %" PRIu32
                         " shares, expected 1 to %u shares, and 4 bytes plus %u bytes for each share",
                         what, n_bytes, n, MOEC_SPARSITY_MAX_SHARES, (unsigned)SHARE_BYTES);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t share = moec_get_u32(bytes + 4 + SHARE_BYTES * i);
        const float value = moec_get_f32(bytes + 8 + SHARE_BYTES * i);
        if (share == 0 || share > 999 || (i > 0 && share <= turnover->shares[i - 1]) ||
            !(value >= 0 && value <= 1))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the %s state a turnover (chance that an inactive neuron follows an active one) "
                             "of %g at a share of %" PRIu32
                             " thousandths, expected a turnover of 0 to 1, and rising shares of at "
                             "least 1 and at most 999",
                             what, value, share);
        turnover->shares[i] = (uint16_t)share;
        turnover->turnover[i] = value;
    }
    turnover->n_share = n;
    return MOEC_OK;
}

static enum moec_status check_header(const uint8_t *bytes, size_t n_bytes, const struct moec_config *config,
                                     struct moec_error *err)
{
    if (n_bytes < HEADER_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, "the %s have %zu bytes, expected at least %u", what, n_bytes,
                         HEADER_BYTES);
    if (moec_get_u32(bytes) != VERSION && moec_get_u32(bytes) != VERSION_TURNS)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "the %s have version %" PRIu32 ", expected %u or %u",
                         what, moec_get_u32(bytes), VERSION, VERSION_TURNS);
    const uint32_t n_layer = moec_get_u32(bytes + 4), n_expert = moec_get_u32(bytes + 8),
                   unit_bytes = moec_get_u32(bytes + 12);
    if (n_layer != moec_config_moe_count(config) || n_expert != config->n_expert)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the %s are for %" PRIu32 " layers of %" PRIu32
                         " experts, but the model has %" PRIu32 " layers of %" PRIu32 " experts",
                         what, n_layer, n_expert, moec_config_moe_count(config), config->n_expert);
    if (unit_bytes == 0 || unit_bytes > MAX_UNIT_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, "the %s cover %" PRIu32 " bytes each, expected 1 to %u", what,
                         unit_bytes, MAX_UNIT_BYTES);
    return MOEC_OK;
}

enum moec_status moec_record_parts_decode(const uint8_t *bytes, size_t n_bytes,
                                          const struct moec_bundle *bundle, struct moec_record_parts *parts,
                                          struct moec_error *err)
{
    *parts = (struct moec_record_parts){0};
    MOEC_TRY(moec_sparsity_check_config(&bundle->config, err));
    MOEC_TRY(check_header(bytes, n_bytes, &bundle->config, err));
    MOEC_TRY(allocate(bundle, moec_get_u32(bytes + 12), parts, err));
    const uint64_t n = parts->first[record_count(parts)];
    const bool has_turnover = moec_get_u32(bytes) == VERSION_TURNS;
    const uint64_t n_word = (n_bytes - HEADER_BYTES) / 4;
    if (moec_get_u64(bytes + 16) != n || (n_bytes - HEADER_BYTES) % 4 != 0 ||
        (has_turnover ? n_word < n : n_word != n)) {
        const uint64_t stated = moec_get_u64(bytes + 16);
        moec_record_parts_release(parts);
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the %s count %" PRIu64 " checksums and hold %zu bytes of them, expected %" PRIu64
                         " checksums of 4 bytes each",
                         what, stated, n_bytes - HEADER_BYTES, n);
    }
    for (uint64_t i = 0; i < n; i++)
        parts->crc32c[i] = moec_get_u32(bytes + HEADER_BYTES + 4 * i);
    const size_t at = HEADER_BYTES + (size_t)(4 * n);
    const enum moec_status status =
        has_turnover ? decode_turnover(bytes + at, n_bytes - at, &parts->turnover, err) : MOEC_OK;
    if (status != MOEC_OK)
        moec_record_parts_release(parts);
    return status;
}
