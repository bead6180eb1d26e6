/* Thresholds of activation sparsity (FloE, eq. 5, 6 and 11): for each routed expert, the magnitudes that
 * given shares of its up products |up . x| stay under. A neuron whose up product is smaller counts as zero,
 * so that neither its gate row nor its down column is read.
 *
 * Shares are in thousandths, so that 0.6 is one number everywhere. Thread rule: immutable once made. */
#ifndef MOEC_FORMATS_SPARSITY_TABLE_H
#define MOEC_FORMATS_SPARSITY_TABLE_H

#include "formats/base/digest.h"
#include "formats/model/config.h"
#include "formats/tables/neuron_turnover.h"

struct moec_sparsity_table {
    uint32_t n_layer, n_expert; /* MoE layers and their experts; 0 = there is no table */
    uint32_t n_share;
    uint16_t shares[MOEC_SPARSITY_MAX_SHARES]; /* thousandths, rising, 1 to 999 */
    uint64_t n_token;                          /* that were counted in each layer */
    uint8_t data_digest[MOEC_SHA256_BYTES];    /* of the data that they come from */
    float *thresholds; /* (n_layer, n_expert, n_share), owned: finite, from 0 on, not falling in a row */
    /* Not in this section, but in that of parts (formats/bundle/record_parts.h). */
    struct moec_neuron_turnover turnover;
};

/* Whether leaving out neurons by their up products is possible for a model. Errors: MOEC_ERR_UNSUPPORTED with
 * the reason, where a neuron is not nothing at up . x = 0. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_check_config(const struct moec_config *config,
                                                             struct moec_error *err);

/* Room for n_share thresholds, all 0, of each expert of the model. Released with moec_sparsity_table_release.
 * Errors: MOEC_ERR_USAGE for shares that do not rise, as moec_sparsity_check_config, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_table_create(const struct moec_config *config,
                                                             const uint16_t *shares, uint32_t n_share,
                                                             struct moec_sparsity_table *table,
                                                             struct moec_error *err);
void moec_sparsity_table_release(struct moec_sparsity_table *table);

/* Those of one expert, (n_share). */
static inline float *moec_sparsity_table_at(const struct moec_sparsity_table *table, uint32_t ordinal,
                                            uint32_t expert)
{
    return table->thresholds + ((size_t)ordinal * table->n_expert + expert) * table->n_share;
}

/* The threshold of one expert for a share from 0, where it is 0, to the table's last. Between two shares of
 * the table it is interpolated linearly, below the first between it and 0. */
float moec_sparsity_table_threshold(const struct moec_sparsity_table *table, uint32_t ordinal,
                                    uint32_t expert, uint32_t share);

/* Those of all experts for one share: out (n_layer, n_expert). Errors: MOEC_ERR_USAGE for 0, or more than the
 * last share. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_table_choose(const struct moec_sparsity_table *table,
                                                             uint32_t share, float *out,
                                                             struct moec_error *err);

/* The section of a bundle: allocated, the caller frees it. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_table_encode(const struct moec_sparsity_table *table,
                                                             uint8_t **bytes, size_t *n_bytes,
                                                             struct moec_error *err);
/* Errors: MOEC_ERR_FORMAT, MOEC_ERR_UNSUPPORTED (version, a model without use for it), MOEC_ERR_MEMORY; on
 * failure `table` is empty. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_table_decode(const uint8_t *bytes, size_t n_bytes,
                                                             const struct moec_config *config,
                                                             struct moec_sparsity_table *table,
                                                             struct moec_error *err);

#endif
