#include "runtime/forward/sparsity.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>

struct moec_sparsity {
    const struct moec_config *config;
    float *thresholds; /* (MoE layers, n_expert), owned */
    atomic_ullong n_neuron, n_active, dense_bytes, active_bytes;
};

enum moec_status moec_sparsity_create(const struct moec_sparsity_table *table,
                                      const struct moec_config *config, uint32_t share,
                                      struct moec_sparsity **out, struct moec_error *err)
{
    struct moec_sparsity *sparsity = NULL;
    MOEC_TRY(moec_alloc((void **)&sparsity, 1, sizeof *sparsity, "thresholds of sparsity", err));
    sparsity->config = config;
    enum moec_status status =
        moec_alloc((void **)&sparsity->thresholds, (uint64_t)moec_config_moe_count(config) * config->n_expert,
                   sizeof *sparsity->thresholds, "thresholds of sparsity", err);
    if (status == MOEC_OK)
        status = moec_sparsity_table_choose(table, share, sparsity->thresholds, err);
    if (status != MOEC_OK) {
        moec_sparsity_free(sparsity);
        return status;
    }
    *out = sparsity;
    return MOEC_OK;
}

enum moec_status moec_sparsity_open(const struct moec_bundle *bundle, uint32_t copy, double share,
                                    struct moec_sparsity **out, struct moec_error *err)
{
    const double thousandths = round(1000 * share);
    struct moec_sparsity_table table;
    if (!(thousandths >= 1 && thousandths <= 999))
        return moec_fail(err, MOEC_ERR_USAGE, "sparsity %g, expected a share of neurons from 0.001 to 0.999",
                         share);
    if (copy != 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "sparsity %g with copy %" PRIu32
                         ": the thresholds are those of the compiled assignment",
                         share, copy);
    MOEC_TRY(moec_sparsity_check_config(&bundle->config, err));
    MOEC_TRY(moec_bundle_load_sparsity(bundle, &table, err));
    if (table.n_layer == 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "'%s' has no thresholds of sparsity: make them with moec sparsify --data FILE",
                         bundle->file.path);
    const enum moec_status status =
        moec_sparsity_create(&table, &bundle->config, (uint32_t)thousandths, out, err);
    moec_sparsity_table_release(&table);
    return status;
}

void moec_sparsity_free(struct moec_sparsity *sparsity)
{
    if (sparsity == NULL)
        return;
    free(sparsity->thresholds);
    free(sparsity);
}

void moec_sparsity_filter(const struct moec_sparsity *sparsity, uint32_t layer, uint32_t expert,
                          struct moec_mlp *mlp)
{
    const size_t ordinal = (size_t)moec_config_moe_ordinal(sparsity->config, layer);
    mlp->filter = (struct moec_mlp_filter){
        .is_on = true,
        .at = MOEC_PROJECTION_UP,
        .threshold = sparsity->thresholds[ordinal * sparsity->config->n_expert + expert]};
}

static void add(atomic_ullong *count, uint64_t n)
{
    atomic_fetch_add_explicit(count, n, memory_order_relaxed);
}

void moec_sparsity_count(struct moec_sparsity *sparsity, const struct moec_mlp *mlp, uint64_t n_neuron,
                         uint64_t n_active)
{
    const uint64_t up = moec_codec_row_bytes(mlp->up.codec, mlp->up.columns);
    const uint64_t pair = moec_codec_row_bytes(mlp->gate.codec, mlp->gate.columns) +
                          moec_codec_row_bytes(mlp->down.codec, mlp->down.columns);
    add(&sparsity->n_neuron, n_neuron);
    add(&sparsity->n_active, n_active);
    add(&sparsity->dense_bytes, n_neuron * (up + pair));
    add(&sparsity->active_bytes, n_neuron * up + n_active * pair);
}

struct moec_sparsity_counts moec_sparsity_counts(const struct moec_sparsity *sparsity)
{
    return (struct moec_sparsity_counts){.n_neuron = atomic_load(&sparsity->n_neuron),
                                         .n_active = atomic_load(&sparsity->n_active),
                                         .dense_bytes = atomic_load(&sparsity->dense_bytes),
                                         .active_bytes = atomic_load(&sparsity->active_bytes)};
}
