/* Plans measured with decisions about each token, for a policy that chooses bits by what tokens read. Nothing
 * of it goes into the bundle: moec tune finds and certifies settings. */
#include "compiler/compile/compile_decide.h"

#include "compiler/compile/compile_dense_plan.h"
#include "compiler/compile/compile_part.h"
#include "compiler/compile/compile_stages.h"
#include "compiler/compile/compile_units.h"
#include "runtime/policy/decide/route_settings.h"

#include <stdio.h>
#include <string.h>

/* What is kept of a run beside losses. */
struct traffic {
    double missed_share, token_misses, token_bytes;
};

struct moec_evaluation moec_compile_evaluation(const struct moec_compile_run *run,
                                               const struct moec_loss *loss)
{
    return (struct moec_evaluation){
        .loss = loss->loss,
        .loss_low = loss->low,
        .loss_high = loss->high,
        .kl = loss->mean_kl,
        .accepted = moec_compile_meets(run, loss),
    };
}

enum moec_status moec_compile_rules(const struct moec_compile_run *run, struct moec_candidate_rules *rules,
                                    struct moec_error *err)
{
    const struct moec_compile_options *options = run->options;
    uint32_t low_bits = 0;
    *rules = (struct moec_candidate_rules){.config = moec_checkpoint_config(run->checkpoint),
                                           .paths = &run->paths,
                                           .path = options->source.model,
                                           .may_route = true,
                                           .n_draft = 1};
    MOEC_TRY(moec_route_read_slots(MOEC_ROUTE_SLOTS, rules->config, &rules->shared.n_slots, err));
    for (uint32_t i = 0; i < options->experts.n_copy_bits; i++)
        if (low_bits == 0 || options->experts.copy_bits[i] < low_bits)
            low_bits = options->experts.copy_bits[i];
    if (low_bits == 0 || options->memory.place != NULL)
        return MOEC_OK;
    rules->may_precise = rules->may_prefill = true;
    rules->shared.low_bits = low_bits;
    return moec_route_read_slots(MOEC_ROUTE_LOW_SLOTS, rules->config, &rules->shared.n_low_slots, err);
}

/* Sizes of the records of a plan and of their low copies, as a bundle pads them. */
static enum moec_status fill_sizes(struct moec_compile_run *run, const struct moec_plan *plan,
                                   uint32_t low_bits, struct moec_compile_part *part, struct moec_error *err)
{
    struct moec_bundle_plan *bundle = NULL;
    const struct moec_dense *dense = NULL;
    MOEC_TRY(moec_compile_bundle_of(run, plan, &bundle, &dense, err));
    for (size_t i = 0; i < moec_plan_count(plan); i++)
        part->record_bytes[0][i] = moec_bundle_plan_record_bytes(bundle, plan->experts[i]);
    for (size_t i = 0; i < moec_plan_count(plan) && low_bits > 0; i++)
        part->record_bytes[1][i] =
            moec_bundle_plan_record_bytes(bundle, moec_variant_uniform((uint8_t)low_bits));
    return MOEC_OK;
}

static enum moec_status measure(struct moec_compile_run *run, struct moec_compile_part *part,
                                const struct moec_plan *plan, const struct moec_decision_settings *settings,
                                struct traffic *traffic, struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    struct moec_route route;
    MOEC_TRY(
        moec_route_from_settings(settings, config, &run->paths, run->options->source.model, &route, err));
    MOEC_TRY(moec_compile_part_ready(run, part, err));
    MOEC_TRY(fill_sizes(run, plan, settings->low_bits, part, err));
    if (settings->low_bits > 0)
        MOEC_TRY(moec_variants_serve_low(run->variants, settings->low_bits, err));
    MOEC_TRY(moec_scorer_set_route(part->measured.scorer, &route, err));
    MOEC_TRY(moec_compile_part_run(run, part, plan, err));
    const struct moec_route_counts counts = moec_scorer_route_counts(part->measured.scorer);
    const uint32_t n_layer = moec_config_moe_count(config);
    *traffic = (struct traffic){.token_bytes = moec_route_token_bytes(&counts, n_layer)};
    if (counts.n_taken > 0)
        traffic->missed_share = (double)counts.n_missed / (double)counts.n_taken;
    if (counts.n_position > 0)
        traffic->token_misses = (double)counts.n_missed * n_layer / (double)counts.n_position;
    return moec_scorer_set_route(part->measured.scorer, NULL, err);
}

/* In the words and numbers of the settings, whatever a struct has between them. */
static void name_unit(const struct moec_compile_run *run, enum moec_part which, const struct moec_plan *plan,
                      const struct moec_decision_settings *settings, char key[static MOEC_JOURNAL_MAX_KEY])
{
    char words[4 * MOEC_DECISION_TEXT_BYTES + 80], hex[2 * MOEC_SHA256_BYTES + 1];
    uint8_t digest[MOEC_SHA256_BYTES];
    struct moec_sha256 sha;
    moec_compile_units_name(run, which, plan, key);
    (void)snprintf(words, sizeof words, "%s/%s/%s/%u/%u/%u/%u/%d", settings->route, settings->precision,
                   settings->prefill, settings->n_slots, settings->n_low_slots, settings->low_bits,
                   settings->keep_top, settings->starts_frequent);
    moec_sha256_init(&sha);
    moec_sha256_update(&sha, key, strlen(key));
    moec_sha256_update(&sha, words, strlen(words));
    moec_sha256_finish(&sha, digest);
    moec_sha256_hex(digest, hex);
    (void)snprintf(key, MOEC_JOURNAL_MAX_KEY, "decide/%d/%s", (int)which, hex);
}

static enum moec_status decide_on(struct moec_compile_run *run, struct moec_compile_part *part,
                                  const struct moec_plan *plan, const struct moec_decision_settings *settings,
                                  struct moec_evaluation *out, struct moec_error *err)
{
    char key[MOEC_JOURNAL_MAX_KEY];
    struct traffic traffic = {0};
    struct moec_loss loss;
    uint64_t cost = 0;
    bool found = false;
    const uint64_t n_bytes = part->measured.windows.n_window * sizeof(double);
    const struct moec_unit_part kept[] = {{part->measured.losses.nll, n_bytes},
                                          {part->measured.losses.kl, n_bytes},
                                          {&traffic, sizeof traffic}};
    name_unit(run, part->which, plan, settings, key);
    const struct moec_unit unit = {key, kept, 3};
    MOEC_TRY(moec_unit_find(run->units, &unit, &cost, &found, err));
    if (!found) {
        MOEC_TRY(measure(run, part, plan, settings, &traffic, err));
        MOEC_TRY(moec_unit_keep(run->units, &unit, 0, err));
    }
    MOEC_TRY(moec_compile_part_loss(run, part, true, &loss, err));
    *out = moec_compile_evaluation(run, &loss);
    out->has_traffic = true;
    out->missed_share = traffic.missed_share;
    out->token_misses = traffic.token_misses;
    out->token_bytes = traffic.token_bytes;
    return MOEC_OK;
}

enum moec_status moec_compile_decide(void *context, const struct moec_plan *plan,
                                     const struct moec_decision_settings *settings, enum moec_part which,
                                     struct moec_evaluation *out, struct moec_error *err)
{
    struct moec_compile_run *run = context;
    struct moec_compile_part part = {0};
    run->n_asked++;
    moec_compile_begin(run, MOEC_STAGE_SEARCH);
    if (which == MOEC_PART_SEARCH)
        return decide_on(run, &run->search, plan, settings, out, err);
    enum moec_status status = moec_compile_part_open(run, which, &part, err);
    if (status == MOEC_OK)
        status = decide_on(run, &part, plan, settings, out, err);
    moec_compile_part_release(&part);
    return status;
}
