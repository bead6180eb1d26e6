/* Checksums of parts of a bundle's records, so that what is read of a record can be checked alone: one of the
 * up section, and one of each unit of the pair section, the whole pairs of neurons that fit into so many
 * bytes, at least one. They are of precision copy 0, whose sparsity leaves out pairs. Where neurons share
 * scales (MXFP4), all pairs are one unit. Thread rule: immutable once made. */
#ifndef MOEC_FORMATS_RECORD_PARTS_H
#define MOEC_FORMATS_RECORD_PARTS_H

#include "formats/bundle/bundle.h"
#include "formats/tables/neuron_turnover.h"

#define MOEC_PARTS_UNIT_BYTES 4096u /* what a writer takes */

struct moec_record_parts {
    uint32_t n_layer, n_expert; /* MoE layers and their experts; 0 = there are none */
    uint32_t unit_bytes;        /* that the pairs of a unit take at most, unless it is one pair */
    uint64_t *first;            /* (n_layer x n_expert + 1), owned: where each expert's checksums begin */
    uint32_t *crc32c;           /* owned: of each expert its up section, then its units */
    struct moec_neuron_turnover
        turnover; /* of records whose neurons are ordered, on the text of the thresholds */
};

/* Neurons of a unit; the last of a record may have fewer. */
uint32_t moec_parts_unit_neurons(const struct moec_record_parts *parts,
                                 const struct moec_record_layout *layout);
uint32_t moec_parts_unit_count(const struct moec_record_parts *parts,
                               const struct moec_record_layout *layout);

/* Where unit `unit` is in a record, and the neurons that it has. */
struct moec_record_range moec_parts_unit_range(const struct moec_record_parts *parts,
                                               const struct moec_record_layout *layout, uint32_t unit,
                                               struct moec_record_part *part);

/* Those of one expert: [0] of up, [1 + u] of unit u. */
static inline const uint32_t *moec_parts_of(const struct moec_record_parts *parts, uint32_t ordinal,
                                            uint32_t expert)
{
    return parts->crc32c + parts->first[(size_t)ordinal * parts->n_expert + expert];
}

/* Reads every record of precision copy 0, which is checked, and computes the checksums of its parts. Errors:
 * those of the records; MOEC_ERR_UNSUPPORTED for models whose neurons cannot be left out. */
MOEC_WARN_UNUSED enum moec_status moec_record_parts_make(const struct moec_bundle *bundle,
                                                         struct moec_record_parts *parts,
                                                         struct moec_error *err);
void moec_record_parts_release(struct moec_record_parts *parts);

/* Leaves `parts` empty where the bundle has none. Errors: those of the section. */
MOEC_WARN_UNUSED enum moec_status moec_bundle_load_parts(const struct moec_bundle *bundle,
                                                         struct moec_record_parts *parts,
                                                         struct moec_error *err);

/* Whether the checksums that a bundle has, if any, are those of its records. Errors: MOEC_ERR_CHECKSUM,
 * naming the record; those of reading it. */
MOEC_WARN_UNUSED enum moec_status moec_record_parts_check(const struct moec_bundle *bundle,
                                                          struct moec_error *err);

/* The section of a bundle: allocated, the caller frees it. */
MOEC_WARN_UNUSED enum moec_status moec_record_parts_encode(const struct moec_record_parts *parts,
                                                           uint8_t **bytes, size_t *n_bytes,
                                                           struct moec_error *err);
/* Errors: MOEC_ERR_FORMAT, MOEC_ERR_UNSUPPORTED for another version or a model without use for it,
 * MOEC_ERR_MEMORY; on failure `parts` is empty. */
MOEC_WARN_UNUSED enum moec_status moec_record_parts_decode(const uint8_t *bytes, size_t n_bytes,
                                                           const struct moec_bundle *bundle,
                                                           struct moec_record_parts *parts,
                                                           struct moec_error *err);

#endif
