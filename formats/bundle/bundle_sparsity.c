#include "formats/bundle/bundle_sparsity.h"

#include "formats/bundle/bundle_rewrite.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum moec_status moec_bundle_put_sparsity(const char *path, const struct moec_sparsity_table *table,
                                          const char *out, struct moec_error *err)
{
    static const char note[] = "; sparsify";
    struct moec_bundle *bundle = NULL;
    uint8_t *bytes = NULL;
    uint64_t n_written = 0;
    struct moec_bundle_changes changes = {.kind = MOEC_SECTION_SPARSITY};
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    const struct moec_config *config = &bundle->config;
    MOEC_TRY_OUT(moec_sparsity_check_config(config, err));
    if (table->n_layer != moec_config_moe_count(config) || table->n_expert != config->n_expert)
        status = moec_fail(err, MOEC_ERR_MISMATCH,
                           "thresholds of %" PRIu32 " layers of %" PRIu32 " experts do not belong to '%s'",
                           table->n_layer, table->n_expert, path);
    if (status == MOEC_OK)
        status = moec_sparsity_table_encode(table, &bytes, &changes.n_bytes, err);
    if (status == MOEC_OK) {
        changes.bytes = bytes;
        changes.note = strstr(bundle->provenance.options, note) != NULL ? "" : note;
        status = moec_bundle_rewrite(bundle, &changes, out, &n_written, err);
    }
out:
    free(bytes);
    moec_bundle_close(bundle);
    return status;
}
