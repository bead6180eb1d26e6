/* Sensitivity by its definition: one full evaluation of each variant with a scorer. */
#ifndef MOEC_TESTS_NAIVE_SENSITIVITY_H
#define MOEC_TESTS_NAIVE_SENSITIVITY_H

#include "profiler/evaluate/score.h"
#include "profiler/sensitivity/sensitivity.h"

static enum moec_status naive_sensitivity(const struct moec_sensitivity_options *options,
                                          struct moec_sensitivity *result, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_scorer *scorer = NULL;
    struct moec_variants *variants = options->of.variants;
    const struct moec_config *config = &options->of.model->config;
    const struct moec_scorer_options scoring = {.by = {.kernels = options->by.kernels,
                                                       .n_threads = options->by.n_threads,
                                                       .arithmetic = options->by.arithmetic}};
    struct moec_experts *experts = moec_variants_experts(variants);
    MOEC_TRY_OUT(moec_scorer_create(options->of.model, experts, options->of.windows, &scoring, &scorer, err));
    MOEC_TRY_OUT(moec_variants_assign_all(variants, moec_variants_source_bits(variants), err));
    MOEC_TRY_OUT(moec_scorer_set_reference(scorer, options->of.model, experts, NULL, options->progress, err));
    MOEC_TRY_OUT(moec_variants_assign_all(variants, options->of.baseline_bits, err));
    MOEC_TRY_OUT(moec_scorer_run(scorer, &result->baseline, options->progress, err));
    for (uint32_t s = 0; s < moec_config_moe_count(config); s++) {
        const uint32_t layer = moec_config_moe_layer(config, s);
        for (uint32_t e = 0; e < config->n_expert; e++) {
            for (uint32_t b = 0; b < options->of.n_bits; b++) {
                const size_t at = (((size_t)s * config->n_expert + e) * options->of.n_bits + b) *
                                  options->of.windows->n_window;
                const struct moec_measure measure = {result->expert_nll + at, result->expert_kl + at};
                MOEC_TRY_OUT(moec_variants_assign_one(variants, layer, e, options->of.bits[b], err));
                MOEC_TRY_OUT(moec_scorer_run(scorer, &measure, options->progress, err));
            }
            MOEC_TRY_OUT(moec_variants_assign_one(variants, layer, e, options->of.baseline_bits, err));
        }
    }
    result->multiply_adds = moec_scorer_multiply_adds(scorer);
out:
    moec_scorer_free(scorer);
    return status;
}

#endif
