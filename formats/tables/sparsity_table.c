/* The thresholds of an expert rise with their shares, from 0 at share 0. Between two shares the threshold is
 * interpolated linearly. Decoding refuses a fall, a negative zero and a number that is not finite. */
#include "formats/tables/sparsity_table.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define VERSION      1u
#define HEADER_BYTES 56u
#define DIGEST_AT    24u

enum moec_status moec_sparsity_check_config(const struct moec_config *config, struct moec_error *err)
{
    if (moec_config_moe_count(config) == 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the model has no experts whose neurons could be left out");
    if (config->mlp.plain)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "the experts of family '%s' have no gate projection: skipping neurons by |up . x| would leave "
            "out only the down projection, which is not supported",
            config->family);
    if (config->mlp.activation == MOEC_ACTIVATION_CLAMPED_GLU || config->mlp.expert_bias)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "neurons of family '%s' contribute even if up . x is 0, so they cannot be skipped by |up . "
            "x|; other ways to read less: moec compile --max-loss (fewer bits), moec tune --with route "
            "(experts that are in memory)",
            config->family);
    return MOEC_OK;
}

static enum moec_status check_shares(const uint16_t *shares, uint32_t n_share, enum moec_status status,
                                     struct moec_error *err)
{
    if (n_share == 0 || n_share > MOEC_SPARSITY_MAX_SHARES)
        return moec_fail(err, status, "the sparsity thresholds have %" PRIu32 " shares, expected 1 to %u",
                         n_share, MOEC_SPARSITY_MAX_SHARES);
    for (uint32_t i = 0; i < n_share; i++) {
        if (shares[i] == 0 || shares[i] > 999 || (i > 0 && shares[i] <= shares[i - 1]))
            return moec_fail(err, status,
                             "share number %" PRIu32
                             " of the sparsity thresholds is %u thousandths, expected "
                             "1 to 999, and more than the share before",
                             i + 1, shares[i]);
    }
    return MOEC_OK;
}

static uint64_t threshold_count(const struct moec_sparsity_table *table)
{
    return (uint64_t)table->n_layer * table->n_expert * table->n_share;
}

enum moec_status moec_sparsity_table_create(const struct moec_config *config, const uint16_t *shares,
                                            uint32_t n_share, struct moec_sparsity_table *table,
                                            struct moec_error *err)
{
    *table = (struct moec_sparsity_table){0};
    MOEC_TRY(moec_sparsity_check_config(config, err));
    MOEC_TRY(check_shares(shares, n_share, MOEC_ERR_USAGE, err));
    struct moec_sparsity_table made = {
        .n_layer = moec_config_moe_count(config), .n_expert = config->n_expert, .n_share = n_share};
    memcpy(made.shares, shares, n_share * sizeof *shares);
    MOEC_TRY(moec_alloc((void **)&made.thresholds, threshold_count(&made), sizeof *made.thresholds,
                        "sparsity thresholds", err));
    *table = made;
    return MOEC_OK;
}

void moec_sparsity_table_release(struct moec_sparsity_table *table)
{
    free(table->thresholds);
    *table = (struct moec_sparsity_table){0};
}

float moec_sparsity_table_threshold(const struct moec_sparsity_table *table, uint32_t ordinal,
                                    uint32_t expert, uint32_t share)
{
    const float *row = moec_sparsity_table_at(table, ordinal, expert);
    uint32_t at = 0;
    if (share == 0)
        return 0;
    while (at + 1 < table->n_share && table->shares[at] < share)
        at++;
    if (table->shares[at] <= share)
        return row[at];
    const uint32_t below = at > 0 ? table->shares[at - 1] : 0;
    const float part = (float)(share - below) / (float)(table->shares[at] - below);
    const float from = at > 0 ? row[at - 1] : 0;
    return from + part * (row[at] - from);
}

enum moec_status moec_sparsity_table_choose(const struct moec_sparsity_table *table, uint32_t share,
                                            float *out, struct moec_error *err)
{
    const uint32_t most = table->n_share > 0 ? table->shares[table->n_share - 1] : 0;
    if (share == 0 || share > most)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "sparsity %.3f is outside the bundle's table of thresholds, expected 0.001 to %.3f",
                         share * 1e-3, most * 1e-3);
    for (uint32_t l = 0; l < table->n_layer; l++)
        for (uint32_t e = 0; e < table->n_expert; e++)
            *out++ = moec_sparsity_table_threshold(table, l, e, share);
    return MOEC_OK;
}

enum moec_status moec_sparsity_table_encode(const struct moec_sparsity_table *table, uint8_t **bytes,
                                            size_t *n_bytes, struct moec_error *err)
{
    const uint64_t n = threshold_count(table);
    const uint64_t total = HEADER_BYTES + 2 * (uint64_t)table->n_share + n * sizeof(float);
    MOEC_TRY(moec_alloc((void **)bytes, total, 1, "sparsity thresholds", err));
    uint8_t *at = *bytes;
    moec_put_u32(at, VERSION);
    moec_put_u32(at + 4, table->n_layer);
    moec_put_u32(at + 8, table->n_expert);
    moec_put_u32(at + 12, table->n_share);
    moec_put_u64(at + 16, table->n_token);
    memcpy(at + DIGEST_AT, table->data_digest, MOEC_SHA256_BYTES);
    at += HEADER_BYTES;
    for (uint32_t i = 0; i < table->n_share; i++, at += 2)
        moec_put_u16(at, table->shares[i]);
    for (uint64_t i = 0; i < n; i++, at += 4)
        moec_put_f32(at, table->thresholds[i]);
    *n_bytes = (size_t)total;
    return MOEC_OK;
}

static enum moec_status decode_thresholds(const uint8_t *at, struct moec_sparsity_table *table,
                                          struct moec_error *err)
{
    const uint64_t n = threshold_count(table);
    for (uint64_t i = 0; i < n; i++, at += 4) {
        const float value = moec_get_f32(at);
        const float least = i % table->n_share > 0 ? table->thresholds[i - 1] : 0;
        if (!isfinite(value) || signbit(value) || value < least)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "sparsity threshold %" PRIu64 " is %g, expected a finite number of at least %g",
                             i, (double)value, (double)least);
        table->thresholds[i] = value;
    }
    return MOEC_OK;
}

enum moec_status moec_sparsity_table_decode(const uint8_t *bytes, size_t n_bytes,
                                            const struct moec_config *config,
                                            struct moec_sparsity_table *table, struct moec_error *err)
{
    *table = (struct moec_sparsity_table){0};
    if (n_bytes < HEADER_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, "the sparsity thresholds have %zu bytes, expected at least %u",
                         n_bytes, HEADER_BYTES);
    if (moec_get_u32(bytes) != VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the sparsity thresholds have version %" PRIu32 ", expected %u", moec_get_u32(bytes),
                         VERSION);
    const uint32_t n_layer = moec_get_u32(bytes + 4), n_expert = moec_get_u32(bytes + 8),
                   n_share = moec_get_u32(bytes + 12);
    uint16_t shares[MOEC_SPARSITY_MAX_SHARES] = {0};
    if (n_layer != moec_config_moe_count(config) || n_expert != config->n_expert)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the sparsity thresholds are for %" PRIu32 " layers of %" PRIu32
                         " experts, but the model has %" PRIu32 " layers of %" PRIu32 " experts",
                         n_layer, n_expert, moec_config_moe_count(config), config->n_expert);
    const size_t left = n_bytes - HEADER_BYTES;
    for (uint32_t i = 0; i < n_share && i < MOEC_SPARSITY_MAX_SHARES && left / 2 > i; i++)
        shares[i] = moec_get_u16(bytes + HEADER_BYTES + 2 * i);
    MOEC_TRY(check_shares(shares, n_share, MOEC_ERR_FORMAT, err));
    const uint64_t expected = 2 * (uint64_t)n_share + 4 * (uint64_t)n_layer * n_expert * n_share;
    if (left != expected)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the sparsity thresholds have %zu bytes after their header, expected %" PRIu64, left,
                         expected);
    MOEC_TRY(moec_sparsity_table_create(config, shares, n_share, table, err));
    table->n_token = moec_get_u64(bytes + 16);
    memcpy(table->data_digest, bytes + DIGEST_AT, MOEC_SHA256_BYTES);
    const enum moec_status status = decode_thresholds(bytes + HEADER_BYTES + 2 * (size_t)n_share, table, err);
    if (status != MOEC_OK)
        moec_sparsity_table_release(table);
    return status;
}
