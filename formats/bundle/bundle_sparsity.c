#include "formats/bundle/bundle_sparsity.h"

#include "formats/bundle/bundle_rewrite.h"
#include "formats/bundle/record_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static enum moec_status check_model(const struct moec_bundle *bundle, const struct moec_sparsity_table *table,
                                    struct moec_error *err)
{
    const struct moec_config *config = &bundle->config;
    MOEC_TRY(moec_sparsity_check_config(config, err));
    if (table->n_layer == moec_config_moe_count(config) && table->n_expert == config->n_expert)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_MISMATCH,
                     "the sparsity thresholds are for %" PRIu32 " layers of %" PRIu32 " experts, but the "
                     "bundle '%s' has other numbers of layers or experts",
                     table->n_layer, table->n_expert, bundle->file.path);
}

enum moec_status moec_bundle_put_sparsity(const char *path, const struct moec_sparsity_table *table,
                                          const struct moec_sparsity_plan *plan, bool with_parts,
                                          const char *out, struct moec_error *err)
{
    static const char note[] = "; sparsify";
    struct moec_bundle *bundle = NULL;
    struct moec_record_parts parts = {0};
    uint8_t *of_table = NULL, *of_plan = NULL, *of_parts = NULL;
    uint64_t n_written = 0;
    struct moec_bundle_changes changes = {0};
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    MOEC_TRY_OUT(check_model(bundle, table, err));
    MOEC_TRY_OUT(moec_sparsity_table_encode(table, &of_table, &changes.puts[0].n_bytes, err));
    changes.puts[0].kind = MOEC_SECTION_SPARSITY;
    changes.puts[0].bytes = of_table;
    if (plan != NULL) {
        MOEC_TRY_OUT(moec_sparsity_plan_encode(plan, &of_plan, &changes.puts[1].n_bytes, err));
        changes.puts[1].kind = MOEC_SECTION_SPARSITY_PLAN;
        changes.puts[1].bytes = of_plan;
    }
    if (with_parts) {
        MOEC_TRY_OUT(moec_record_parts_make(bundle, &parts, err));
        parts.turnover = table->turnover;
        MOEC_TRY_OUT(moec_record_parts_encode(&parts, &of_parts, &changes.puts[2].n_bytes, err));
        changes.puts[2].kind = MOEC_SECTION_RECORD_PARTS;
        changes.puts[2].bytes = of_parts;
    }
    changes.note = strstr(bundle->provenance.options, note) != NULL ? "" : note;
    status = moec_bundle_rewrite(bundle, &changes, out, &n_written, err);
out:
    free(of_table);
    free(of_plan);
    free(of_parts);
    moec_record_parts_release(&parts);
    moec_bundle_close(bundle);
    return status;
}
