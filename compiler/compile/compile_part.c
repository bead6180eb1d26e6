/* The original is evaluated canonically and in its own order of neurons; plans in the bundle's arithmetic
 * and order. Where the profile has its losses too, they must be equal bit for bit, or another build made
 * the profile. Only a plan of the source's own weights may skip evaluation, and only where sums keep their
 * order. */
#include "compiler/compile/compile_part.h"

#include "compiler/certify/sequence.h"
#include "compiler/compile/compile_dense_plan.h"
#include "compiler/compile/compile_scope.h"
#include "compiler/compile/compile_units.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void moec_compile_part_release(struct moec_compile_part *part)
{
    moec_rank_block_release(&part->block);
    moec_measured_part_release(&part->measured);
    free(part->reference_scores);
    free(part->scores);
    free(part->record_bytes[0]);
    free(part->record_bytes[1]);
    memset(part, 0, sizeof *part);
}

/* The reference is evaluated again, not only taken from the profile: KL needs its hidden states, and equal
 * bits show that this build computes what the profile measured. */
static enum moec_status check_reference(const struct moec_compile_run *run,
                                        const struct moec_compile_part *part, struct moec_error *err)
{
    uint32_t at = 0;
    for (uint32_t w = 0; w < run->profile->n_window && at < part->measured.windows.n_window; w++) {
        if (!moec_part_has(part->which, run->profile->window_part, w))
            continue;
        if (part->measured.reference_nll[at] != run->profile->reference.nll[w])
            return moec_fail(err, MOEC_ERR_MISMATCH,
                             "the original model has NLL %.17g on window %" PRIu32 ", but the profile "
                             "has %.17g: the profile was made with other arithmetic. Profile again",
                             part->measured.reference_nll[at], w, run->profile->reference.nll[w]);
        at++;
    }
    return MOEC_OK;
}

/* For the first n_most windows of a part. */
static enum moec_status make_room(struct moec_compile_run *run, enum moec_part which, uint32_t n_most,
                                  struct moec_compile_part *part, struct moec_error *err)
{
    MOEC_TRY(moec_windows_from_profile(run->profile, which, &part->measured.windows, err));
    MOEC_TRY(moec_measured_part_begin(&part->measured, n_most, err));
    part->which = which;
    part->measured.windows.work = &run->memory.work;
    const uint64_t n_record = moec_plan_count(&run->report->plan);
    for (uint32_t form = 0; form < 2; form++)
        MOEC_TRY(moec_alloc((void **)&part->record_bytes[form], n_record, sizeof(uint64_t),
                            "sizes of records", err));
    return MOEC_OK;
}

static enum moec_status make_scorer(struct moec_compile_run *run, const struct moec_model *model,
                                    enum moec_arithmetic arithmetic, struct moec_ranks *ranks,
                                    struct moec_compile_part *part, struct moec_error *err)
{
    struct moec_scorer_options options = {
        .by = {.kernels = run->options->by.kernels,
               .n_threads = run->options->by.n_threads,
               .arithmetic = arithmetic,
               .ranks = ranks},
        /* The selection part is open beside the search part, and mostly for one plan: its probabilities are
         * made anew, which then costs nothing. */
        .reference_limit_bytes = part->which != MOEC_PART_SELECT ? run->memory.reference_bytes : 0,
        .decisions.record_bytes = {part->record_bytes[0], part->record_bytes[1]},
        .shown = part->block.ranks != NULL ? &part->measured.windows : NULL,
        .variants = run->variants,
    };
    MOEC_TRY(moec_scorer_create(model, moec_variants_experts(run->variants),
                                part->block.ranks != NULL ? &part->block.own : &part->measured.windows,
                                &options, &part->measured.scorer, err));
    return moec_variants_assign_all(run->variants, moec_variants_source_bits(run->variants), err);
}

enum moec_status moec_compile_part_make(struct moec_compile_run *run, enum moec_part which,
                                        const struct moec_model *model, struct moec_compile_part *part,
                                        struct moec_error *err)
{
    MOEC_TRY(make_room(run, which, which == MOEC_PART_SEARCH ? run->scope.n_fit : UINT32_MAX, part, err));
    return make_scorer(run, model, MOEC_ARITHMETIC_CANONICAL, NULL, part, err);
}

enum moec_status moec_compile_part_make_fit(struct moec_compile_run *run, struct moec_compile_part *part,
                                            struct moec_error *err)
{
    MOEC_TRY(make_room(run, MOEC_PART_SEARCH, run->scope.n_fit, part, err));
    if (run->options->by.ranks != NULL)
        MOEC_TRY(moec_rank_block_make(run->options->by.ranks, &part->measured.windows, &part->block, err));
    return make_scorer(run, run->original, MOEC_ARITHMETIC_CANONICAL, NULL, part, err);
}

const struct moec_rank_block *moec_compile_part_block(const struct moec_compile_part *part)
{
    return part->block.ranks != NULL ? &part->block : NULL;
}

static enum moec_status score_rows(struct moec_compile_run *run, const struct moec_compile_part *part,
                                   const struct moec_model *model, enum moec_arithmetic arithmetic,
                                   double *scores, struct moec_error *err)
{
    const struct moec_row_metric_means means = {.model = model,
                                                .experts = moec_variants_experts(run->variants),
                                                .kernels = run->options->by.kernels,
                                                .n_threads = run->options->by.n_threads,
                                                .arithmetic = arithmetic,
                                                .ranks = run->options->by.ranks};
    return moec_row_metric_measure(run->rows, part->which, &means, &run->stopper, scores, err);
}

/* Generated answers have no chance to compare with: an original that never scores is refused by the loss. */
static enum moec_status check_rows_chance(struct moec_compile_run *run, const struct moec_compile_part *part,
                                          struct moec_error *err)
{
    const uint32_t n = moec_row_metric_count(run->rows, part->which);
    struct moec_chance chance = {.is_accuracy = true,
                                 .guessing = moec_row_metric_guessing(run->rows, part->which),
                                 .data_name = moec_row_metric_rows(run->rows)->name};
    if (chance.guessing == 0)
        return MOEC_OK;
    for (uint32_t i = 0; i < n; i++)
        chance.original += part->reference_scores[i] / n;
    return moec_compile_check_chance(run, &chance, err);
}

/* A part of rows, with what the original scores on them. */
static enum moec_status open_rows(struct moec_compile_run *run, enum moec_part which,
                                  struct moec_compile_part *part, struct moec_error *err)
{
    const uint64_t n = moec_row_metric_count(run->rows, which);
    char key[MOEC_JOURNAL_MAX_KEY];
    uint64_t cost = 0;
    bool found = false;
    part->which = which;
    MOEC_TRY(moec_alloc((void **)&part->reference_scores, n, sizeof(double), "scores of rows", err));
    MOEC_TRY(moec_alloc((void **)&part->scores, n, sizeof(double), "scores of rows", err));
    const struct moec_unit_part kept = {part->reference_scores, n * sizeof(double)};
    (void)snprintf(key, sizeof key, "original/%d", (int)which);
    const struct moec_unit unit = {key, &kept, 1};
    MOEC_TRY(moec_unit_find(run->units, &unit, &cost, &found, err));
    if (found)
        return check_rows_chance(run, part, err);
    MOEC_TRY(moec_variants_assign_all(run->variants, moec_variants_source_bits(run->variants), err));
    moec_compile_order_leave(run);
    const enum moec_status status =
        score_rows(run, part, run->original, MOEC_ARITHMETIC_CANONICAL, part->reference_scores, err);
    moec_compile_order_return(run);
    if (status != MOEC_OK)
        return status;
    MOEC_TRY(check_rows_chance(run, part, err));
    return moec_unit_keep(run->units, &unit, 0, err);
}

/* ---- the original on windows that the profile did not measure ---- */

static struct moec_unit_part name_original(const struct moec_compile_part *part,
                                           char key[static MOEC_JOURNAL_MAX_KEY])
{
    (void)snprintf(key, MOEC_JOURNAL_MAX_KEY, "original/%d/%" PRIu32, (int)part->which,
                   part->measured.windows.n_window);
    return (struct moec_unit_part){part->measured.reference_nll,
                                   part->measured.windows.n_window * sizeof(double)};
}

static enum moec_status find_original(const struct moec_compile_run *run, struct moec_compile_part *part,
                                      bool *found, struct moec_error *err)
{
    char key[MOEC_JOURNAL_MAX_KEY];
    const struct moec_unit_part kept = name_original(part, key);
    uint64_t cost = 0;
    return moec_unit_find(run->units, &(struct moec_unit){key, &kept, 1}, &cost, found, err);
}

static enum moec_status keep_original(const struct moec_compile_run *run, struct moec_compile_part *part,
                                      struct moec_error *err)
{
    char key[MOEC_JOURNAL_MAX_KEY];
    const struct moec_unit_part kept = name_original(part, key);
    part->has_reference = true;
    return moec_unit_keep(run->units, &(struct moec_unit){key, &kept, 1}, 0, err);
}

enum moec_status moec_compile_part_open(struct moec_compile_run *run, enum moec_part which,
                                        struct moec_compile_part *part, struct moec_error *err)
{
    uint32_t at = 0;
    part->is_open = true;
    if (run->rows != NULL)
        return open_rows(run, which, part, err);
    MOEC_TRY(make_room(run, which, moec_compile_part_count(run, which), part, err));
    for (uint32_t w = 0; w < run->profile->n_window && at < part->measured.windows.n_window; w++)
        if (moec_part_has(which, run->profile->window_part, w))
            part->measured.reference_nll[at++] = run->profile->reference.nll[w];
    part->has_reference = at == part->measured.windows.n_window;
    return part->has_reference ? MOEC_OK : find_original(run, part, &part->has_reference, err);
}

enum moec_status moec_compile_part_ready(struct moec_compile_run *run, struct moec_compile_part *part,
                                         struct moec_error *err)
{
    if (run->rows != NULL || part->measured.scorer != NULL)
        return MOEC_OK;
    MOEC_TRY(make_scorer(run, run->compiled, run->options->by.arithmetic, run->options->by.ranks, part, err));
    moec_compile_order_leave(run);
    const enum moec_status status =
        moec_scorer_set_reference(part->measured.scorer, run->original, moec_variants_experts(run->variants),
                                  part->measured.reference_nll, &run->stopper, err);
    moec_compile_order_return(run);
    if (status != MOEC_OK)
        return status;
    MOEC_TRY(check_reference(run, part, err));
    return part->has_reference ? MOEC_OK : keep_original(run, part, err);
}

/* Whether a plan has the weights of the checkpoint: that it loses nothing is then no luck. */
static bool is_source(const struct moec_compile_run *run, const struct moec_plan *plan)
{
    const struct moec_variant source = moec_variant_uniform(16);
    for (size_t i = 0; i < moec_plan_count(plan); i++)
        if (!moec_variant_equal(plan->experts[i], source))
            return false;
    for (uint32_t i = 0; i < plan->n_dense; i++)
        if (plan->dense[i] != 16 && (plan->dense[i] != 0 || plan->dense_bits < 16))
            return false;
    return moec_variants_source_bits(run->variants) == 16 && !run->has_f32;
}

/* Windows first .. n - 1, or all rows, into the part's arrays. */
static enum moec_status run_on(struct moec_compile_run *run, struct moec_compile_part *part,
                               const struct moec_plan *plan, uint32_t first, uint32_t n,
                               struct moec_error *err)
{
    struct moec_scorer_variation variation = {.first_window = first, .n_window = n};
    MOEC_TRY(moec_compile_part_ready(run, part, err));
    MOEC_TRY(moec_variants_assign_plan(run->variants, plan, err));
    MOEC_TRY(moec_compile_dense_take(run, plan, &variation.model, err));
    if (run->rows != NULL)
        return score_rows(run, part, variation.model, run->options->by.arithmetic, part->scores, err);
    return moec_scorer_run_varied(part->measured.scorer, &variation, &part->measured.losses, &run->stopper,
                                  err);
}

enum moec_status moec_compile_part_run(struct moec_compile_run *run, struct moec_compile_part *part,
                                       const struct moec_plan *plan, struct moec_error *err)
{
    return run_on(run, part, plan, 0, part->measured.windows.n_window, err);
}

/* A plan of the source's own weights computes what the original does: nothing is left to evaluate. */
static enum moec_status copy_original(struct moec_compile_run *run, struct moec_compile_part *part,
                                      struct moec_error *err)
{
    const size_t n_bytes = part->measured.windows.n_window * sizeof(double);
    if (!part->has_reference)
        MOEC_TRY(moec_compile_part_ready(run, part, err));
    memcpy(part->measured.losses.nll, part->measured.reference_nll, n_bytes);
    memset(part->measured.losses.kl, 0, n_bytes);
    return MOEC_OK;
}

/* What is measured of a plan on the first n windows, or on all rows, to be kept. */
static uint32_t list_measured(const struct moec_compile_run *run, const struct moec_compile_part *part,
                              uint32_t n, struct moec_unit_part parts[static 2])
{
    const uint64_t n_bytes =
        sizeof(double) * (run->rows != NULL ? moec_row_metric_count(run->rows, part->which) : n);
    parts[0] = (struct moec_unit_part){run->rows != NULL ? part->scores : part->measured.losses.nll, n_bytes};
    parts[1] = (struct moec_unit_part){part->measured.losses.kl, n_bytes};
    return run->rows != NULL ? 1 : 2;
}

enum moec_status moec_compile_part_loss(const struct moec_compile_run *run,
                                        const struct moec_compile_part *part, bool is_promise,
                                        struct moec_loss *loss, struct moec_error *err)
{
    struct moec_loss_options options = moec_loss_options_default();
    options.confidence = run->options->target.confidence;
    options.is_promise = is_promise;
    if (run->rows == NULL)
        return moec_measured_part_loss(&part->measured, options.confidence, loss, err);
    return moec_loss_measure_scores(part->reference_scores, part->scores,
                                    moec_row_metric_count(run->rows, part->which), &options, loss, err);
}

/* Whether a plan computes what the original does. In another order of neurons sums are others. */
static bool is_original(const struct moec_compile_run *run, const struct moec_plan *plan)
{
    return run->rows == NULL && run->order.n_neuron == 0 &&
           run->options->by.arithmetic == MOEC_ARITHMETIC_CANONICAL && is_source(run, plan);
}

static enum moec_status find_measured(const struct moec_compile_run *run,
                                      const struct moec_compile_part *part, const struct moec_plan *plan,
                                      uint32_t n, bool *found, struct moec_error *err)
{
    struct moec_unit_part kept[2];
    char key[MOEC_JOURNAL_MAX_KEY];
    uint64_t cost = 0;
    const struct moec_unit unit = {key, kept, list_measured(run, part, n, kept)};
    moec_compile_units_name_first(run, part->which, n, plan, key);
    return moec_unit_find(run->units, &unit, &cost, found, err);
}

/* Measures on windows first .. n - 1, after those before, and keeps what there is of all n. */
static enum moec_status measure_rest(struct moec_compile_run *run, struct moec_compile_part *part,
                                     const struct moec_plan *plan, uint32_t first, uint32_t n,
                                     struct moec_error *err)
{
    struct moec_unit_part kept[2];
    char key[MOEC_JOURNAL_MAX_KEY];
    const struct moec_unit unit = {key, kept, list_measured(run, part, n, kept)};
    moec_compile_units_name_first(run, part->which, n, plan, key);
    MOEC_TRY(run_on(run, part, plan, first, n, err));
    return moec_unit_keep(run->units, &unit, 0, err);
}

static uint32_t count_measured(const struct moec_compile_run *run, const struct moec_compile_part *part)
{
    return run->rows != NULL ? moec_row_metric_count(run->rows, part->which)
                             : part->measured.windows.n_window;
}

enum moec_status moec_compile_part_measure(struct moec_compile_run *run, struct moec_compile_part *part,
                                           const struct moec_plan *plan, struct moec_loss *loss,
                                           struct moec_error *err)
{
    const uint32_t n = count_measured(run, part);
    bool found = is_original(run, plan);
    if (found)
        MOEC_TRY(copy_original(run, part, err));
    else
        MOEC_TRY(find_measured(run, part, plan, n, &found, err));
    if (!found)
        MOEC_TRY(measure_rest(run, part, plan, 0, n, err));
    if (run->rows == NULL && !part->has_reference)
        MOEC_TRY(moec_compile_part_ready(run, part, err));
    return moec_compile_part_loss(run, part, !is_source(run, plan), loss, err);
}

enum moec_status moec_compile_part_test(struct moec_compile_run *run, struct moec_compile_part *part,
                                        const struct moec_plan *plan, struct moec_loss *loss,
                                        struct moec_error *err)
{
    const uint32_t n = count_measured(run, part), look = moec_sequence_look(n);
    bool found = false, found_look = false;
    if (run->rows != NULL || look == 0 || is_original(run, plan))
        return moec_compile_part_measure(run, part, plan, loss, err);
    MOEC_TRY(find_measured(run, part, plan, n, &found, err));
    if (!found)
        MOEC_TRY(find_measured(run, part, plan, look, &found_look, err));
    if (!found && !found_look)
        MOEC_TRY(measure_rest(run, part, plan, 0, look, err));
    if (!part->has_reference)
        MOEC_TRY(moec_compile_part_ready(run, part, err));
    MOEC_TRY(
        moec_measured_part_loss_first(&part->measured, look, run->options->target.confidence, loss, err));
    if (moec_sequence_ends(loss, run->options->target.max_loss))
        return MOEC_OK;
    if (!found)
        MOEC_TRY(measure_rest(run, part, plan, look, n, err));
    return moec_compile_part_loss(run, part, true, loss, err);
}
