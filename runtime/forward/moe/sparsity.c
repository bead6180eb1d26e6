/* A scale of a whole expert is divided into its threshold, once; scales of neurons are kept beside one
 * threshold. Of scale 0 the threshold is FLT_MAX, which leaves out everything finite. Bytes are counted by
 * which row is read first: what the filter looks at is always read, the rest only of neurons that stay. */
#include "runtime/forward/moe/sparsity.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

struct moec_sparsity {
    const struct moec_config *config;
    float *thresholds; /* (MoE layers, n_expert), owned */
    uint16_t *scales;  /* (MoE layers, n_expert, n_ff_expert) BF16, owned; NULL = none */
    double share;      /* expected to be left out */
    bool is_at_gate;   /* by the activated gate, not by up */
    atomic_ullong n_neuron, n_active, dense_bytes, active_bytes;
};

static enum moec_status allocate(const struct moec_config *config, struct moec_sparsity **out,
                                 struct moec_error *err)
{
    static const char what[] = "sparsity thresholds";
    struct moec_sparsity *sparsity = NULL;
    MOEC_TRY(moec_alloc((void **)&sparsity, 1, sizeof *sparsity, what, err));
    sparsity->config = config;
    const enum moec_status status =
        moec_alloc((void **)&sparsity->thresholds, (uint64_t)moec_config_moe_count(config) * config->n_expert,
                   sizeof *sparsity->thresholds, what, err);
    if (status == MOEC_OK)
        *out = sparsity;
    else
        moec_sparsity_free(sparsity);
    return status;
}

enum moec_status moec_sparsity_create(const struct moec_sparsity_table *table,
                                      const struct moec_config *config, uint32_t share,
                                      struct moec_sparsity **out, struct moec_error *err)
{
    struct moec_sparsity *sparsity = NULL;
    MOEC_TRY(allocate(config, &sparsity, err));
    const enum moec_status status = moec_sparsity_table_choose(table, share, sparsity->thresholds, err);
    sparsity->share = share * 1e-3;
    if (status == MOEC_OK)
        *out = sparsity;
    else
        moec_sparsity_free(sparsity);
    return status;
}

enum moec_status moec_sparsity_create_planned(const struct moec_sparsity_plan *plan,
                                              const struct moec_config *config, struct moec_sparsity **out,
                                              struct moec_error *err)
{
    const uint64_t n = (uint64_t)plan->n_layer * plan->n_expert;
    const size_t n_bytes = n * plan->n_scale * sizeof *plan->scales;
    struct moec_sparsity *sparsity = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(allocate(config, &sparsity, err));
    sparsity->share = 1 - plan->traffic.active_share;
    sparsity->is_at_gate = plan->is_at_gate;
    if (plan->by == MOEC_SPARSITY_BY_NEURON) {
        MOEC_TRY_OUT(moec_alloc((void **)&sparsity->scales, n * plan->n_scale, sizeof *plan->scales,
                                "scales of neurons", err));
        memcpy(sparsity->scales, plan->scales, n_bytes);
    }
    for (uint64_t i = 0; i < n; i++) {
        const float scale = moec_bf16_to_f32(plan->scales[i * plan->n_scale]);
        /* Nothing is under 0, and of scale 0 everything finite under FLT_MAX. */
        sparsity->thresholds[i] = sparsity->scales != NULL || plan->threshold == 0 ? plan->threshold
                                  : scale > 0 ? fminf(plan->threshold / scale, FLT_MAX)
                                              : FLT_MAX;
    }
    *out = sparsity;
    sparsity = NULL;
out:
    moec_sparsity_free(sparsity);
    return status;
}

enum moec_status moec_sparsity_open_planned(const struct moec_bundle *bundle, struct moec_sparsity **out,
                                            struct moec_certificate *certificate, struct moec_error *err)
{
    struct moec_sparsity_plan plan;
    *out = NULL;
    MOEC_TRY(moec_bundle_load_plan(bundle, &plan, err));
    if (plan.n_layer == 0)
        return MOEC_OK;
    const enum moec_status status = moec_sparsity_create_planned(&plan, &bundle->config, out, err);
    *certificate = plan.certificate;
    moec_sparsity_plan_release(&plan);
    return status;
}

enum moec_status moec_sparsity_open(const struct moec_bundle *bundle, uint32_t copy, double share,
                                    struct moec_sparsity **out, struct moec_error *err)
{
    const double thousandths = round(1000 * share);
    struct moec_sparsity_table table;
    if (!(thousandths >= 1 && thousandths <= 999))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the sparsity is %g, expected a share of neurons from 0.001 to 0.999", share);
    if (copy != 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "sparsity %g cannot be combined with precision copy %" PRIu32 ": sparsity "
                         "thresholds hold only for the compiled assignment, which is copy 0",
                         share, copy);
    MOEC_TRY(moec_sparsity_check_config(&bundle->config, err));
    MOEC_TRY(moec_bundle_load_sparsity(bundle, &table, err));
    if (table.n_layer == 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the bundle '%s' has no sparsity thresholds: make them with moec sparsify --data "
                         "FILE",
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
    free(sparsity->scales);
    free(sparsity);
}

double moec_sparsity_share(const struct moec_sparsity *sparsity)
{
    return sparsity->share;
}

void moec_sparsity_filter(const struct moec_sparsity *sparsity, uint32_t layer, uint32_t expert,
                          struct moec_mlp *mlp)
{
    const struct moec_config *config = sparsity->config;
    const size_t at = (size_t)moec_config_moe_ordinal(config, layer) * config->n_expert + expert;
    mlp->filter = (struct moec_mlp_filter){
        .is_on = true,
        .at = sparsity->is_at_gate ? MOEC_PROJECTION_GATE : MOEC_PROJECTION_UP,
        .is_weighed = sparsity->is_at_gate,
        .threshold = sparsity->thresholds[at],
        .scales = sparsity->scales != NULL ? sparsity->scales + at * config->n_ff_expert : NULL};
}

bool moec_sparsity_is_at_gate(const struct moec_sparsity *sparsity)
{
    return sparsity->is_at_gate;
}

enum moec_status moec_sparsity_check_device(const struct moec_sparsity *sparsity, struct moec_error *err)
{
    if (!sparsity->is_at_gate)
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_UNSUPPORTED,
        "the bundle's sparsity plan skips neurons by their gate values, which only the CPU supports: make "
        "the plan with --by-projection up, or turn the plan off with --sparsity none");
}

const uint16_t *moec_sparsity_scales(const struct moec_sparsity *sparsity, uint64_t *n)
{
    const struct moec_config *config = sparsity->config;
    *n = sparsity->scales == NULL
             ? 0
             : (uint64_t)moec_config_moe_count(config) * config->n_expert * config->n_ff_expert;
    return sparsity->scales;
}

static void add(atomic_ullong *count, uint64_t n)
{
    atomic_fetch_add_explicit(count, n, memory_order_relaxed);
}

void moec_sparsity_count(struct moec_sparsity *sparsity, const struct moec_mlp *mlp, uint64_t n_neuron,
                         uint64_t n_active)
{
    const uint64_t scale = mlp->filter.scales != NULL ? sizeof *mlp->filter.scales : 0;
    const uint64_t up = moec_codec_row_bytes(mlp->up.codec, mlp->up.columns),
                   gate = moec_codec_row_bytes(mlp->gate.codec, mlp->gate.columns),
                   down = moec_codec_row_bytes(mlp->down.codec, mlp->down.columns);
    const bool is_at_gate = mlp->filter.at == MOEC_PROJECTION_GATE;
    const uint64_t first = is_at_gate ? gate : up, rest = (is_at_gate ? up : gate) + down;
    add(&sparsity->n_neuron, n_neuron);
    add(&sparsity->n_active, n_active);
    add(&sparsity->dense_bytes, n_neuron * (first + rest));
    add(&sparsity->active_bytes, n_neuron * (first + scale) + n_active * rest);
}

struct moec_sparsity_counts moec_sparsity_counts(const struct moec_sparsity *sparsity)
{
    return (struct moec_sparsity_counts){.n_neuron = atomic_load(&sparsity->n_neuron),
                                         .n_active = atomic_load(&sparsity->n_active),
                                         .dense_bytes = atomic_load(&sparsity->dense_bytes),
                                         .active_bytes = atomic_load(&sparsity->active_bytes)};
}

double moec_sparsity_token_bytes(const struct moec_sparsity_counts *counts, const struct moec_config *config,
                                 uint64_t n_bytes)
{
    const double of_token = (double)moec_config_moe_count(config) * config->top_k * config->n_ff_expert;
    return counts->n_neuron > 0 ? (double)n_bytes * of_token / (double)counts->n_neuron : 0;
}
