/* What moec.variants() offers a policy: experts and dense matrices fitted by GPTQ to the search part, at
 * several bitwidths, with what each is expected to cost. compile_wanted.c says which of them are fitted. */
#include "compiler/compile/compile_offer.h"

#include "compiler/compile/compile_dense_plan.h"
#include "compiler/compile/compile_limits.h"
#include "compiler/compile/compile_part.h"
#include "compiler/compile/compile_scope.h"
#include "compiler/compile/compile_stages.h"
#include "compiler/compile/compile_variants.h"
#include "compiler/compile/compile_wanted.h"
#include "compiler/fit/gptq.h"
#include "formats/base/memory.h"
#include "formats/codec/search_codecs.h"

#include <inttypes.h>
#include <string.h>

#define FIRST     MOEC_CODEC_FIRST_OTHER
#define N_FURTHER MOEC_SEARCH_CODECS

/* Of the codecs that experts are fitted at, a scope with fewer leaves out that of 3 bits, then that of 4. */
static bool is_offered_experts(const struct moec_compile_run *run, uint32_t i)
{
    static const uint32_t needed[N_FURTHER] = {0, 4, 3};
    return moec_search_codecs[i].is_for_experts && run->scope.n_expert_codec >= needed[i];
}

static enum moec_status number_codecs(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_compile_offer *offer = &run->offer;
    MOEC_TRY(moec_compile_further_codecs(run->codecs, err));
    for (uint32_t i = 0; i < N_FURTHER; i++) {
        const uint8_t number = (uint8_t)(FIRST + i);
        MOEC_TRY(moec_variants_set_codec(run->variants, number, run->codecs[number], err));
        if (is_offered_experts(run, i))
            offer->numbers[offer->n_number++] = number;
        if (is_offered_experts(run, i) && moec_search_codecs[i].quantizer == MOEC_QUANTIZER_GPTQ)
            offer->fitted[number] = (uint8_t)(++offer->n_expert_codec);
        if (moec_search_codecs[i].is_for_dense)
            offer->dense_numbers[offer->n_dense_number++] = number;
    }
    offer->numbers[offer->n_number++] = 16;
    offer->dense_numbers[offer->n_dense_number++] = 0;
    for (uint32_t i = 0; i < offer->n_number; i++)
        offer->bits[i] = moec_codec_bits(run->codecs[offer->numbers[i]]);
    for (uint32_t number = 0; number < MOEC_CODEC_TABLE; number++)
        offer->dense_bits[number] = moec_codec_bits(run->codecs[number]);
    offer->dense_bits[0] = run->has_f32 ? 32 : 16;
    return moec_compile_codecs_changed(run, err);
}

/* Dense matrices that a plan may encode, each with the same codecs. */
static enum moec_status list_matrices(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_compile_offer *offer = &run->offer;
    const struct moec_dense *dense = &run->original->dense;
    const uint32_t n = run->report->plan.n_dense;
    MOEC_TRY(moec_alloc((void **)&offer->matrices, (uint64_t)n + 1, sizeof *offer->matrices, "dense matrices",
                        err));
    MOEC_TRY(moec_alloc((void **)&offer->harm_matrices, (uint64_t)n + 1, sizeof *offer->harm_matrices,
                        "dense matrices", err));
    for (uint32_t i = 0; i < dense->n_entries; i++) {
        const struct moec_dense_entry *entry = &dense->entries[i];
        if (!moec_role_is_quantisable((enum moec_role)entry->role))
            continue;
        offer->matrices[offer->n_matrix] = (struct moec_policy_matrix){.role = entry->role,
                                                                       .layer = entry->layer,
                                                                       .rows = entry->rows,
                                                                       .columns = entry->columns,
                                                                       .numbers = offer->dense_numbers,
                                                                       .n_number = offer->n_dense_number};
        offer->harm_matrices[offer->n_matrix++] =
            (struct moec_harm_matrix){entry->role, offer->dense_numbers, offer->n_dense_number};
    }
    return MOEC_OK;
}

/* Before the windows go through the model. */
static enum moec_status begin_dense(struct moec_compile_run *run, const struct moec_compile_part *part,
                                    const struct moec_progress *progress, struct moec_dense_fit **fit,
                                    bool *is_done, struct moec_error *err)
{
    uint8_t numbers[MOEC_DENSE_FIT_MAX_CODECS];
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    struct moec_dense_fit_request request = {.checkpoint = run->checkpoint,
                                             .codes = {.codecs = codecs, .numbers = numbers},
                                             .n_threads = run->options->by.n_threads,
                                             .work = &run->memory.work,
                                             .progress = progress,
                                             .units = run->units,
                                             .block = moec_compile_part_block(part)};
    for (uint32_t i = 0; i < N_FURTHER; i++)
        if (moec_search_codecs[i].is_for_dense && moec_search_codecs[i].quantizer == MOEC_QUANTIZER_GPTQ)
            numbers[request.codes.n_number++] = (uint8_t)(FIRST + i);
    MOEC_TRY(moec_compile_dense_codecs(run, codecs, err));
    return moec_dense_fit_begin(&request, fit, is_done, err);
}

/* The fit becomes the run's. */
static enum moec_status take_dense(struct moec_compile_run *run, struct moec_dense_fit *fit,
                                   struct moec_error *err)
{
    uint32_t n_bitwidth = 0;
    for (uint32_t i = 0; i < N_FURTHER; i++)
        n_bitwidth +=
            moec_search_codecs[i].is_for_dense && moec_search_codecs[i].quantizer == MOEC_QUANTIZER_GPTQ;
    run->fit = fit;
    run->report->fit.n_dense = moec_dense_fit_count(fit);
    run->report->fit.n_plain = run->report->plan.n_dense - run->report->fit.n_dense;
    moec_compile_say(run,
                     "GPTQ encoded %" PRIu32 " dense matrices at %" PRIu32 " bitwidths (%" PRIu32
                     " others by HQQ: lookup tables, or matrices with more than %u inputs)",
                     run->report->fit.n_dense, n_bitwidth, run->report->fit.n_plain, MOEC_GPTQ_MAX_INPUTS);
    MOEC_TRY(list_matrices(run, err));
    return moec_compile_codecs_changed(run, err);
}

/* Experts and dense matrices see their inputs in one sweep. */
static enum moec_status fit(struct moec_compile_run *run, const uint8_t *wanted, struct moec_error *err)
{
    const struct moec_progress progress = moec_compile_whole_progress(run);
    struct moec_compile_part part = {0};
    struct moec_dense_fit *dense = NULL;
    struct moec_scorer_watch watch = {0};
    enum moec_status status = MOEC_OK;
    bool is_done = true;
    MOEC_TRY_OUT(moec_compile_part_make_fit(run, &part, err));
    if (run->options->dense.is_planned)
        MOEC_TRY_OUT(begin_dense(run, &part, &progress, &dense, &is_done, err));
    if (!is_done)
        watch = moec_dense_fit_watch(dense);
    MOEC_TRY_OUT(moec_compile_fit_experts(run, &part, wanted, is_done ? NULL : &watch, err));
    if (!is_done)
        MOEC_TRY_OUT(moec_dense_fit_end(dense, err));
    if (dense != NULL) {
        struct moec_dense_fit *taken = dense;
        dense = NULL;
        status = take_dense(run, taken, err);
    }
out:
    moec_dense_fit_free(dense);
    moec_compile_part_release(&part);
    return status;
}

static double expert_error(void *context, uint32_t ordinal, uint32_t expert, enum moec_projection projection,
                           uint32_t number)
{
    return moec_compile_expert_error(context, ordinal, expert, projection, number, false);
}

/* Every variant, and then its harm. */
static enum moec_status fit_all(struct moec_compile_run *run, struct moec_error *err)
{
    const struct moec_compile_harm all = {.has_dense = true, .expert_error = expert_error};
    MOEC_TRY(fit(run, NULL, err));
    MOEC_TRY(moec_compile_check_offer(run, err));
    moec_compile_begin(run, MOEC_STAGE_HARM);
    return moec_compile_measure_harm(run, &all, &run->offer.harm, err);
}

/* Harm of experts, and then those variants that it says are needed. */
static enum moec_status fit_wanted(struct moec_compile_run *run, struct moec_error *err)
{
    uint8_t *wanted = NULL;
    moec_compile_begin(run, MOEC_STAGE_HARM);
    MOEC_TRY(moec_compile_wanted_foretell(run, &wanted, err));
    moec_compile_begin(run, MOEC_STAGE_FIT_EXPERTS);
    const enum moec_status status = fit(run, wanted, err);
    free(wanted);
    MOEC_TRY(status);
    return moec_compile_wanted_settle(run, err);
}

enum moec_status moec_compile_variants(void *context, const struct moec_policy_variants **out,
                                       struct moec_error *err)
{
    struct moec_compile_run *run = context;
    struct moec_compile_offer *offer = &run->offer;
    if (!offer->is_made) {
        MOEC_TRY(number_codecs(run, err));
        MOEC_TRY(moec_compile_has_wanted(run->options) ? fit_wanted(run, err) : fit_all(run, err));
        offer->variants = (struct moec_policy_variants){.codecs = run->codecs,
                                                        .numbers = offer->numbers,
                                                        .n_number = offer->n_number,
                                                        .dense = offer->matrices,
                                                        .n_dense = offer->n_matrix,
                                                        .harm = &offer->harm};
        offer->is_made = true;
    }
    *out = &offer->variants;
    return MOEC_OK;
}

void moec_compile_variants_release(struct moec_compile_run *run)
{
    for (uint32_t i = run->offer.n_fit; i-- > 0;)
        moec_expert_fit_free(run->offer.experts[i]);
    moec_harm_release(&run->offer.look);
    moec_harm_release(&run->offer.harm);
    free(run->offer.matrices);
    free(run->offer.harm_matrices);
    memset(&run->offer, 0, sizeof run->offer);
}
