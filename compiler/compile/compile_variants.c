/* What moec.variants() offers a policy: experts and dense matrices fitted by GPTQ to the search part, at
 * several bitwidths, with what each is expected to cost. compile_wanted.c says which of them are fitted. */
#include "compiler/compile/compile_internal.h"
#include "compiler/fit/gptq.h"
#include "formats/base/memory.h"
#include "formats/codec/search_codecs.h"

#include <inttypes.h>
#include <string.h>

#define FIRST     MOEC_CODEC_FIRST_OTHER
#define N_FURTHER MOEC_SEARCH_CODECS

enum moec_status moec_compile_further_codecs(struct moec_codec codecs[static MOEC_CODEC_TABLE],
                                             struct moec_error *err)
{
    for (uint32_t i = 0; i < N_FURTHER; i++)
        MOEC_TRY(moec_search_codec_make(i, MOEC_DTYPE_F32, &codecs[FIRST + i], err));
    return MOEC_OK;
}

enum moec_status moec_compile_look_codec(struct moec_codec *codec, struct moec_error *err)
{
    MOEC_TRY(moec_codec_for_bits(3, MOEC_SCHEME_ASYMMETRIC_NESTED, 64, MOEC_DTYPE_F32, codec, err));
    codec->quantizer = MOEC_QUANTIZER_LINEAR;
    return MOEC_OK;
}

bool moec_compile_is_for_experts(uint32_t number)
{
    return number < FIRST ||
           (number < FIRST + N_FURTHER && moec_search_codecs[number - FIRST].is_for_experts);
}

uint32_t moec_compile_smallest_dense(void)
{
    uint32_t at = 0;
    while (!moec_search_codecs[at].is_for_dense) /* bits rise */
        at++;
    return FIRST + at;
}

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

/* ---- fitting ---- */

static enum moec_status show_fit(void *context, const char *phase, double done, double total)
{
    const struct moec_compile_run *run = context;
    (void)phase;
    moec_compile_show_whole(run, done, total);
    return moec_compile_is_cancelled(run) ? MOEC_ERR_CANCELLED : MOEC_OK;
}

enum moec_status moec_compile_fit_experts(struct moec_compile_run *run, const struct moec_compile_part *part,
                                          const uint8_t *wanted, const struct moec_scorer_watch *also,
                                          struct moec_error *err)
{
    struct moec_compile_offer *offer = &run->offer;
    struct moec_expert_fit_codec codecs[N_FURTHER];
    const struct moec_progress progress = {.report = show_fit, .context = run};
    struct moec_expert_fit *fit = NULL;
    struct moec_expert_fit_request request = {
        .checkpoint = run->checkpoint,
        .order = run->order.n_neuron > 0 ? &run->order : NULL,
        .scorer = part->measured.scorer,
        .windows = &part->measured.windows,
        .codecs = codecs,
        .wanted = wanted,
        .base = offer->n_fit > 0 ? moec_expert_fit_encoder(offer->experts[offer->n_fit - 1]) : NULL,
        .memory_bytes = run->fit_bytes,
        .n_threads = run->options->n_threads,
        .progress = &progress,
        .units = run->units,
        .block = moec_compile_part_block(part),
        .also = also,
        .measure = &part->measured.losses};
    for (uint32_t i = 0; i < N_FURTHER; i++)
        if (offer->fitted[FIRST + i] > 0)
            codecs[request.n_codec++] = (struct moec_expert_fit_codec){
                run->codecs[FIRST + i],
                1u << MOEC_PROJECTION_GATE | 1u << MOEC_PROJECTION_UP | 1u << MOEC_PROJECTION_DOWN};
    MOEC_TRY(moec_compile_look_codec(&request.plain, err));
    MOEC_TRY(moec_expert_fit_create(&request, &fit, err));
    offer->experts[offer->n_fit++] = fit;
    moec_variants_set_encoder(run->variants, moec_expert_fit_encoder(fit));
    struct moec_compile_fit_counts *counts = &run->report->fit;
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    const uint32_t n_expert = (uint32_t)moec_plan_count(&run->report->plan);
    const uint64_t n_all = (uint64_t)n_expert * moec_config_mlp_matrices(config) * request.n_codec;
    counts->n_expert = n_expert;
    counts->n_matrix += moec_expert_fit_count(fit);
    counts->n_unseen = offer->n_fit == 1 ? moec_expert_fit_unseen(fit) : counts->n_unseen;
    counts->has_wide_experts =
        config->n_embd > MOEC_GPTQ_MAX_INPUTS || config->n_ff_expert > MOEC_GPTQ_MAX_INPUTS;
    moec_compile_say(run,
                     "GPTQ encoded %" PRIu32 " experts on %" PRIu64 " tokens of the search part (%" PRIu32
                     " without tokens): %" PRIu64 " matrices, of %" PRIu64 " that all at %" PRIu32
                     " bitwidths would be",
                     counts->n_expert, moec_windows_scored_count(&part->measured.windows), counts->n_unseen,
                     counts->n_matrix, n_all, request.n_codec);
    if (counts->has_wide_experts)
        moec_compile_say(run,
                         "projections of experts with more than %u inputs are encoded by HQQ, without a look "
                         "at their inputs",
                         MOEC_GPTQ_MAX_INPUTS);
    return MOEC_OK;
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
                                             .codecs = codecs,
                                             .numbers = numbers,
                                             .n_threads = run->options->n_threads,
                                             .work = &run->memory.work,
                                             .progress = progress,
                                             .units = run->units,
                                             .block = moec_compile_part_block(part)};
    for (uint32_t i = 0; i < N_FURTHER; i++)
        if (moec_search_codecs[i].is_for_dense && moec_search_codecs[i].quantizer == MOEC_QUANTIZER_GPTQ)
            numbers[request.n_number++] = (uint8_t)(FIRST + i);
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
                     " others by HQQ: only looked up, or with more than %u inputs)",
                     run->report->fit.n_dense, n_bitwidth, run->report->fit.n_plain, MOEC_GPTQ_MAX_INPUTS);
    MOEC_TRY(list_matrices(run, err));
    return moec_compile_codecs_changed(run, err);
}

/* Experts and dense matrices see their inputs in one sweep. */
static enum moec_status fit(struct moec_compile_run *run, const uint8_t *wanted, struct moec_error *err)
{
    const struct moec_progress progress = {.report = show_fit, .context = run};
    struct moec_compile_part part = {0};
    struct moec_dense_fit *dense = NULL;
    struct moec_scorer_watch watch = {0};
    enum moec_status status = MOEC_OK;
    bool is_done = true;
    MOEC_TRY_OUT(moec_compile_part_make_fit(run, &part, err));
    if (run->options->plans_dense)
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

/* ---- harm ---- */

double moec_compile_expert_error(const struct moec_compile_run *run, uint32_t ordinal, uint32_t expert,
                                 enum moec_projection projection, uint32_t number, bool over_noise)
{
    const struct moec_compile_offer *offer = &run->offer;
    const uint32_t layer = moec_config_moe_layer(moec_checkpoint_config(run->checkpoint), ordinal);
    for (uint32_t i = 0; i < offer->n_fit && offer->fitted[number] > 0; i++) {
        const struct moec_expert_fit *fit = offer->experts[i];
        const double whole = over_noise ? moec_expert_fit_noise(fit, layer, expert, projection)
                                        : moec_expert_fit_energy(fit, layer, expert, projection);
        const double error =
            moec_expert_fit_error(fit, layer, expert, projection, offer->fitted[number] - 1u);
        if (error >= 0)
            return whole > 0 ? error / whole : 0;
    }
    return -1;
}

static double expert_error(void *context, uint32_t ordinal, uint32_t expert, enum moec_projection projection,
                           uint32_t number)
{
    return moec_compile_expert_error(context, ordinal, expert, projection, number, false);
}

static double dense_error(void *context, uint32_t index, uint32_t number)
{
    const struct moec_compile_run *run = context;
    return moec_dense_fit_error(run->fit, index, number);
}

static enum moec_status dense_model(void *context, const uint8_t *numbers, struct moec_model **model,
                                    struct moec_error *err)
{
    return moec_compile_dense_model(context, numbers, model, err);
}

enum moec_status moec_compile_measure_harm(struct moec_compile_run *run, const struct moec_compile_harm *what,
                                           struct moec_harm *harm, struct moec_error *err)
{
    const struct moec_compile_offer *offer = &run->offer;
    struct moec_windows windows;
    MOEC_TRY(moec_windows_from_profile(run->profile, MOEC_PART_SEARCH, &windows, err));
    windows.work = &run->memory.work;
    windows.n_window = windows.n_window < run->scope.n_harm ? windows.n_window : run->scope.n_harm;
    const struct moec_harm_request request = {
        .original = run->original,
        .variants = run->variants,
        .windows = &windows,
        .n_class_window = run->scope.n_class,
        .kernels = run->options->kernels,
        .n_threads = run->options->n_threads,
        .arithmetic = run->options->arithmetic,
        .numbers = what->numbers != NULL ? what->numbers : offer->numbers,
        .bits = what->numbers != NULL ? what->bits : offer->bits,
        .n_number = what->numbers != NULL ? what->n_number : offer->n_number,
        .activations = run->profile->activations,
        .dense = offer->harm_matrices,
        .n_dense = what->has_dense ? offer->n_matrix : 0,
        .dense_bits = offer->dense_bits,
        .experts = what->experts,
        .errors = {.expert = what->expert_error, .dense = dense_error, .model = dense_model, .context = run},
        .progress = &run->stopper,
        .units = run->units,
        .units_crc = what->is_look ? ~moec_compile_units_crc(run) : moec_compile_units_crc(run),
        .ranks = run->options->ranks,
    };
    const enum moec_status status = moec_harm_measure(&request, harm, err);
    moec_windows_release(&windows);
    return status;
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
        MOEC_TRY(moec_compile_has_wanted(run) ? fit_wanted(run, err) : fit_all(run, err));
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

const struct moec_expert_encoder *moec_compile_encoder(const struct moec_compile_run *run)
{
    if (run->offer.n_fit > 0)
        return moec_expert_fit_encoder(run->offer.experts[run->offer.n_fit - 1]);
    return run->order.n_neuron > 0 ? &run->ordered.encoder : NULL;
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
