/* Numbers at fixed places, then a scale for each expert or each of its neurons (FORMAT.md). The section's
 * size is compared with the model's numbers before anything is allocated, and each number is checked as it
 * is decoded. */
#include "formats/bundle/sparsity_plan.h"

#include "formats/base/bytes.h"
#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "formats/bundle/bundle_format.h"
#include "formats/tables/sparsity_table.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define VERSION        1u
#define AT_GATE        0x100u /* added to the kind */
#define FIGURES_AT     24u
#define N_FIGURE       6
#define CERTIFICATE_AT (FIGURES_AT + 8u * N_FIGURE)
#define SEQUENCE_AT    (CERTIFICATE_AT + MOEC_CERTIFICATE_BYTES)
#define SCALES_AT      (SEQUENCE_AT + MOEC_SEQUENCE_BYTES)

const char *moec_sparsity_by_name(enum moec_sparsity_by by)
{
    static const char *const names[MOEC_SPARSITY_BY_COUNT] = {"model", "expert", "neuron"};
    return names[by];
}

static uint64_t scale_count(const struct moec_sparsity_plan *plan)
{
    return (uint64_t)plan->n_layer * plan->n_expert * plan->n_scale;
}

enum moec_status moec_sparsity_plan_create(const struct moec_config *config, enum moec_sparsity_by by,
                                           struct moec_sparsity_plan *plan, struct moec_error *err)
{
    struct moec_sparsity_plan made = {.n_layer = moec_config_moe_count(config),
                                      .n_expert = config->n_expert,
                                      .n_scale = by == MOEC_SPARSITY_BY_NEURON ? config->n_ff_expert : 1,
                                      .by = by};
    *plan = (struct moec_sparsity_plan){0};
    MOEC_TRY(
        moec_alloc((void **)&made.scales, scale_count(&made), sizeof *made.scales, "a sparsity plan", err));
    *plan = made;
    return MOEC_OK;
}

void moec_sparsity_plan_release(struct moec_sparsity_plan *plan)
{
    free(plan->scales);
    *plan = (struct moec_sparsity_plan){0};
}

static enum moec_status check_figures(const struct moec_sparsity_plan *plan, struct moec_error *err)
{
    const struct moec_sparsity_traffic *traffic = &plan->traffic;
    if (!isfinite(plan->plain_loss) || !isfinite(plan->plain_low) || !isfinite(plan->plain_high))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the sparsity plan states a loss without sparsity of %g (%g to %g), expected finite "
                         "numbers",
                         plan->plain_loss, plan->plain_low, plan->plain_high);
    if (!(traffic->active_share >= 0 && traffic->active_share <= 1) || !(traffic->token_bytes >= 0) ||
        !(traffic->token_bytes <= traffic->dense_token_bytes) || !isfinite(traffic->dense_token_bytes))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the sparsity plan states a share of %g active neurons, and %g bytes per decoded token instead "
            "of %g: expected a share from 0 to 1, and no more bytes than without sparsity",
            traffic->active_share, traffic->token_bytes, traffic->dense_token_bytes);
    if (!plan->certificate.present)
        return moec_fail(err, MOEC_ERR_FORMAT, "the sparsity plan has no certificate, expected one");
    return MOEC_OK;
}

enum moec_status moec_sparsity_plan_encode(const struct moec_sparsity_plan *plan, uint8_t **bytes,
                                           size_t *n_bytes, struct moec_error *err)
{
    const struct moec_sparsity_traffic *traffic = &plan->traffic;
    const double figures[N_FIGURE] = {plan->plain_loss,     plan->plain_low,
                                      plan->plain_high,     traffic->active_share,
                                      traffic->token_bytes, traffic->dense_token_bytes};
    const uint64_t n = scale_count(plan);
    enum moec_status status = MOEC_OK;
    uint8_t *made = NULL;
    MOEC_TRY(check_figures(plan, err));
    MOEC_TRY(moec_alloc((void **)&made, SCALES_AT + 2 * n, 1, "a sparsity plan", err));
    moec_put_u32(made, VERSION);
    moec_put_u32(made + 4, plan->by + (plan->is_at_gate ? AT_GATE : 0));
    moec_put_u32(made + 8, plan->n_layer);
    moec_put_u32(made + 12, plan->n_expert);
    moec_put_u32(made + 16, plan->n_scale);
    moec_put_f32(made + 20, plan->threshold);
    for (size_t i = 0; i < N_FIGURE; i++)
        moec_put_f64(made + FIGURES_AT + 8 * i, figures[i]);
    MOEC_TRY_OUT(moec_certificate_encode(&plan->certificate, made + CERTIFICATE_AT, err));
    MOEC_TRY_OUT(moec_sequence_encode(&plan->certificate, made + SEQUENCE_AT, err));
    for (uint64_t i = 0; i < n; i++)
        moec_put_u16(made + SCALES_AT + 2 * i, plan->scales[i]);
    *bytes = made;
    *n_bytes = (size_t)(SCALES_AT + 2 * n);
    made = NULL;
out:
    free(made);
    return status;
}

/* The numbers before the figures, against the model and the section's size. */
static enum moec_status check_header(const uint8_t *bytes, size_t n_bytes, const struct moec_config *config,
                                     struct moec_error *err)
{
    if (n_bytes < SCALES_AT)
        return moec_fail(err, MOEC_ERR_FORMAT, "the sparsity plan has %zu bytes, expected at least %u",
                         n_bytes, SCALES_AT);
    if (moec_get_u32(bytes) != VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "the sparsity plan has version %" PRIu32 ", expected %u",
                         moec_get_u32(bytes), VERSION);
    const uint32_t by = moec_get_u32(bytes + 4) & ~AT_GATE, n_layer = moec_get_u32(bytes + 8),
                   n_expert = moec_get_u32(bytes + 12), n_scale = moec_get_u32(bytes + 16);
    const uint32_t wanted = by == MOEC_SPARSITY_BY_NEURON ? config->n_ff_expert : 1;
    if (by >= MOEC_SPARSITY_BY_COUNT)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the sparsity plan has kind %" PRIu32
                         ", expected 0 to %d, with or without 256 added",
                         by, MOEC_SPARSITY_BY_COUNT - 1);
    if (n_layer != moec_config_moe_count(config) || n_expert != config->n_expert || n_scale != wanted)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the sparsity plan has %" PRIu32 " layers of %" PRIu32 " experts with %" PRIu32
                         " scales, expected %" PRIu32 " layers of %" PRIu32 " experts with %" PRIu32
                         " scales",
                         n_layer, n_expert, n_scale, moec_config_moe_count(config), config->n_expert, wanted);
    const uint64_t expected = SCALES_AT + 2 * (uint64_t)n_layer * n_expert * n_scale;
    if (n_bytes != expected)
        return moec_fail(err, MOEC_ERR_FORMAT, "the sparsity plan has %zu bytes, expected %" PRIu64, n_bytes,
                         expected);
    return MOEC_OK;
}

static enum moec_status decode_scales(const uint8_t *bytes, struct moec_sparsity_plan *plan,
                                      struct moec_error *err)
{
    plan->threshold = moec_get_f32(bytes + 20);
    if (!isfinite(plan->threshold) || signbit(plan->threshold))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the threshold of the sparsity plan is %g, expected a finite number of 0 or more",
                         (double)plan->threshold);
    for (uint64_t i = 0; i < scale_count(plan); i++) {
        plan->scales[i] = moec_get_u16(bytes + SCALES_AT + 2 * i);
        const float scale = moec_bf16_to_f32(plan->scales[i]);
        if (!isfinite(scale) || signbit(scale))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "scale %" PRIu64 " of the sparsity plan is %g, expected a finite number of 0 "
                             "or more",
                             i, (double)scale);
    }
    return MOEC_OK;
}

static enum moec_status decode_into(const uint8_t *bytes, struct moec_sparsity_plan *plan,
                                    struct moec_error *err)
{
    struct moec_sparsity_traffic *traffic = &plan->traffic;
    double *const figures[N_FIGURE] = {&plan->plain_loss,     &plan->plain_low,
                                       &plan->plain_high,     &traffic->active_share,
                                       &traffic->token_bytes, &traffic->dense_token_bytes};
    for (size_t i = 0; i < N_FIGURE; i++)
        *figures[i] = moec_get_f64(bytes + FIGURES_AT + 8 * i);
    MOEC_TRY(decode_scales(bytes, plan, err));
    MOEC_TRY(
        moec_certificate_decode(bytes + CERTIFICATE_AT, MOEC_CERTIFICATE_BYTES, &plan->certificate, err));
    MOEC_TRY(moec_sequence_decode(bytes + SEQUENCE_AT, MOEC_SEQUENCE_BYTES, &plan->certificate, err));
    return check_figures(plan, err);
}

enum moec_status moec_sparsity_plan_decode(const uint8_t *bytes, size_t n_bytes,
                                           const struct moec_config *config, struct moec_sparsity_plan *plan,
                                           struct moec_error *err)
{
    *plan = (struct moec_sparsity_plan){0};
    MOEC_TRY(moec_sparsity_check_config(config, err));
    MOEC_TRY(check_header(bytes, n_bytes, config, err));
    const uint32_t kind = moec_get_u32(bytes + 4);
    MOEC_TRY(moec_sparsity_plan_create(config, (enum moec_sparsity_by)(kind & ~AT_GATE), plan, err));
    plan->is_at_gate = (kind & AT_GATE) != 0;
    const enum moec_status status = decode_into(bytes, plan, err);
    if (status != MOEC_OK)
        moec_sparsity_plan_release(plan);
    return status;
}
