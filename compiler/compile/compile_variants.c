/* Experts and dense matrices at the codecs of a search: numbers, fits, errors and harm. compile_offer.c
 * drives them. */
#include "compiler/compile/compile_variants.h"

#include "compiler/compile/compile_dense_plan.h"
#include "compiler/compile/compile_part.h"
#include "compiler/compile/compile_stages.h"
#include "compiler/compile/compile_units.h"
#include "compiler/fit/gptq.h"
#include "formats/codec/search_codecs.h"

#include <inttypes.h>

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

/* ---- fitting ---- */

enum moec_status moec_compile_fit_experts(struct moec_compile_run *run, const struct moec_compile_part *part,
                                          const uint8_t *wanted, const struct moec_scorer_watch *also,
                                          struct moec_error *err)
{
    struct moec_compile_offer *offer = &run->offer;
    struct moec_expert_fit_codec codecs[N_FURTHER];
    const struct moec_progress progress = moec_compile_whole_progress(run);
    struct moec_expert_fit *fit = NULL;
    struct moec_expert_fit_request request = {
        .of = {.checkpoint = run->checkpoint,
               .order = run->order.n_neuron > 0 ? &run->order : NULL,
               .scorer = part->measured.scorer,
               .windows = &part->measured.windows},
        .codes = {.codecs = codecs,
                  .wanted = wanted,
                  .base =
                      offer->n_fit > 0 ? moec_expert_fit_encoder(offer->experts[offer->n_fit - 1]) : NULL},
        .memory_bytes = run->fit_bytes,
        .n_threads = run->options->by.n_threads,
        .progress = &progress,
        .units = run->units,
        .block = moec_compile_part_block(part),
        .also = {.watch = also, .measure = &part->measured.losses}};
    for (uint32_t i = 0; i < N_FURTHER; i++)
        if (offer->fitted[FIRST + i] > 0)
            codecs[request.codes.n_codec++] = (struct moec_expert_fit_codec){
                run->codecs[FIRST + i],
                1u << MOEC_PROJECTION_GATE | 1u << MOEC_PROJECTION_UP | 1u << MOEC_PROJECTION_DOWN};
    MOEC_TRY(moec_compile_look_codec(&request.codes.plain, err));
    MOEC_TRY(moec_expert_fit_create(&request, &fit, err));
    offer->experts[offer->n_fit++] = fit;
    moec_variants_set_encoder(run->variants, moec_expert_fit_encoder(fit));
    struct moec_compile_fit_counts *counts = &run->report->fit;
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    const uint32_t n_expert = (uint32_t)moec_plan_count(&run->report->plan);
    const uint64_t n_all = (uint64_t)n_expert * moec_config_mlp_matrices(config) * request.codes.n_codec;
    counts->n_expert = n_expert;
    counts->n_matrix += moec_expert_fit_count(fit);
    counts->n_unseen = offer->n_fit == 1 ? moec_expert_fit_unseen(fit) : counts->n_unseen;
    counts->has_wide_experts =
        config->n_embd > MOEC_GPTQ_MAX_INPUTS || config->n_ff_expert > MOEC_GPTQ_MAX_INPUTS;
    moec_compile_say(run,
                     "GPTQ encoded %" PRIu32 " experts on %" PRIu64 " tokens of the search part (%" PRIu32
                     " without tokens): %" PRIu64 " matrices of the %" PRIu64
                     " that all experts have at %" PRIu32 " bitwidths",
                     counts->n_expert, moec_windows_scored_count(&part->measured.windows), counts->n_unseen,
                     counts->n_matrix, n_all, request.codes.n_codec);
    if (counts->has_wide_experts)
        moec_compile_say(
            run,
            "projections of experts with more than %u inputs are encoded by HQQ, which does not use their "
            "inputs",
            MOEC_GPTQ_MAX_INPUTS);
    return MOEC_OK;
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
        .of = {.original = run->original,
               .variants = run->variants,
               .windows = &windows,
               .n_class_window = run->scope.n_class,
               .activations = run->profile->activations},
        .by = run->options->by,
        .codecs = {.numbers = what->numbers != NULL ? what->numbers : offer->numbers,
                   .bits = what->numbers != NULL ? what->bits : offer->bits,
                   .n = what->numbers != NULL ? what->n_number : offer->n_number},
        .matrices = {.all = offer->harm_matrices,
                     .n = what->has_dense ? offer->n_matrix : 0,
                     .bits = offer->dense_bits},
        .experts = what->experts,
        .errors = {.expert = what->expert_error, .dense = dense_error, .model = dense_model, .context = run},
        .progress = &run->stopper,
        .journal = {.units = run->units,
                    .crc = what->is_look ? ~moec_compile_units_crc(run) : moec_compile_units_crc(run)},
    };
    const enum moec_status status = moec_harm_measure(&request, harm, err);
    moec_windows_release(&windows);
    return status;
}
