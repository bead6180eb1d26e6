/* The stages of a compile and what each is expected to cost, so that progress tells how far the whole is.
 *
 * Costs are in passes over all windows of the profile, as `moec profile` counts them: a compile from data
 * does both under one progress. An evaluation of a part costs its share of the windows. Encoding is no
 * evaluation: what a fit does is taken at the prices below, in multiply-adds of a pass, which
 * tests/tools/fit_speed.c measured for hidden sizes from 256 to 2048 (2026-11). How often a policy measures is
 * not known before it has: a typical number stands for it. */
#include "compiler/compile/compile_internal.h"
#include "profiler/evaluate/cost.h"
#include "profiler/sensitivity/fast_sensitivity.h"

#include <math.h>

/* Evaluations. */
#define TYPICAL_WINDOWS  256
#define TYPICAL_SEARCH   8
#define TYPICAL_SEQUENCE 1 /* one plan of projections for all experts */
#define TYPICAL_TESTS    4
#define TYPICAL_PROVEN   256    /* windows of the certificate part that are tested on */
#define HARM_MODELS      22     /* whole models: the original, projections at each codec, and roles */
#define N_CODEC          4      /* that an expert is fitted at */
#define PAIR_PRICE       6.0    /* of a fit, for two weights of a row that one changes after the other */
#define WEIGHT_PRICE     4450.0 /* of a fit and its error, for each weight */
#define TRELLIS_PRICE    7000.0 /* the same of a trellis besides */
#define FACTOR_PRICE     3.75   /* of an expert's factors, for the cube of its inputs */
#define MOMENT_PRICE     2.8    /* of what inputs have in common, for two inputs of a token */
#define PACKED_PRICE     40.0   /* multiply-adds for each weight that is encoded into the bundle */

static const char *const names[] = {"ordering neurons",   "fitting experts", "fitting dense weights",
                                    "weighing bitwidths", "searching",       "ordering plans",
                                    "certifying",         "packing"};

/* What costs follow from. */
struct basis {
    const struct moec_config *config;
    const struct moec_compile_options *options;
    double n_window, seq_len_tokens;
    double search, select, certificate; /* shares of the windows */
    uint32_t n_asked;
    uint32_t n_certify; /* 0: not chosen yet */
    bool is_measured, is_written;
};

static struct basis basis_of(const struct moec_compile_run *run)
{
    const struct moec_profile *profile = run->profile;
    struct basis basis = {.config = moec_checkpoint_config(run->checkpoint),
                          .options = run->options,
                          .n_asked = run->n_asked,
                          .n_certify = run->n_certify,
                          .is_measured = profile != NULL,
                          .is_written = run->path != NULL};
    if (profile == NULL)
        return basis;
    basis.n_window = profile->n_window;
    basis.seq_len_tokens = profile->seq_len_tokens;
    basis.search = moec_profile_part_count(profile, MOEC_PART_SEARCH) / basis.n_window;
    basis.select = moec_profile_part_count(profile, MOEC_PART_SELECT) / basis.n_window;
    basis.certificate = moec_profile_part_count(profile, MOEC_PART_CERTIFICATE) / basis.n_window;
    return basis;
}

/* Multiply-adds of a pass. */
static double pass_cost(const struct basis *basis)
{
    return basis->n_window * (basis->seq_len_tokens - 1) *
           (double)moec_cost_from_layer(basis->config, 0, 1, 0, 1);
}

static double expert_weights(const struct moec_config *config)
{
    return (double)moec_config_moe_count(config) * config->n_expert * config->n_embd * config->n_ff_expert *
           moec_config_mlp_matrices(config);
}

/* Fits of all experts at all codecs, beside running the windows. */
static double fit_cost(const struct basis *basis)
{
    const struct moec_config *config = basis->config;
    const double n_embd = config->n_embd, n_ff = config->n_ff_expert, n_layer = moec_config_moe_count(config);
    const double inner = (moec_config_mlp_matrices(config) - 1.0) * n_embd;
    const double n_token = basis->n_window * basis->search * basis->seq_len_tokens;
    const double pairs = n_embd * n_ff * (inner + n_ff) / 2, weights = n_ff * (inner + n_embd);
    const double expert = N_CODEC * (PAIR_PRICE * pairs + WEIGHT_PRICE * weights) + TRELLIS_PRICE * weights +
                          FACTOR_PRICE * (n_embd * n_embd * n_embd + n_ff * n_ff * n_ff);
    const double moments = MOMENT_PRICE * n_token * config->top_k * (n_embd * n_embd + n_ff * n_ff) / 2;
    return n_layer * (config->n_expert * expert + moments);
}

/* The share of so many windows of the search part. */
static double first_windows(const struct basis *basis, double n)
{
    return fmin(basis->search, n / basis->n_window);
}

/* The share of the windows that the certificate is tested on. */
static double tested_share(const struct basis *basis)
{
    const double n = basis->n_certify > 0 ? basis->n_certify : TYPICAL_PROVEN;
    return fmin(basis->certificate, n / basis->n_window);
}

/* What a stage does with weights. */
static double weights_cost(const struct basis *basis, enum moec_compile_stage stage)
{
    if (stage == MOEC_STAGE_FIT_EXPERTS && basis->options->offers_variants)
        return fit_cost(basis) / pass_cost(basis);
    return stage == MOEC_STAGE_PACK && basis->is_written
               ? PACKED_PRICE * expert_weights(basis->config) / pass_cost(basis)
               : 0;
}

/* What it does with windows. */
static double windows_cost(const struct basis *basis, enum moec_compile_stage stage)
{
    const struct moec_compile_options *options = basis->options;
    switch (stage) {
    case MOEC_STAGE_ORDER:
        return options->orders_neurons ? basis->search : 0;
    case MOEC_STAGE_FIT_EXPERTS:
        return options->offers_variants ? basis->search : 0;
    case MOEC_STAGE_FIT_DENSE:
        return options->offers_variants || options->dense_gptq ? 2 * basis->search : 0;
    case MOEC_STAGE_HARM:
        return options->offers_variants ? MOEC_FAST_PASSES * first_windows(basis, MOEC_HARM_WINDOWS) +
                                              HARM_MODELS * first_windows(basis, MOEC_HARM_CLASS_WINDOWS)
                                        : 0;
    case MOEC_STAGE_SEARCH:
        return first_windows(basis, MOEC_SEARCH_WINDOWS) *
                   fmax(1 + TYPICAL_SEARCH - (double)basis->n_asked, 1) +
               (options->offers_variants ? 2 * basis->select : 0); /* one plan, beside the original */
    case MOEC_STAGE_SEQUENCE:
        return basis->is_written ? first_windows(basis, MOEC_SEARCH_WINDOWS) * TYPICAL_SEQUENCE : 0;
    case MOEC_STAGE_CERTIFY:
        return basis->is_written ? tested_share(basis) * (1 + TYPICAL_TESTS) : 0;
    case MOEC_STAGE_PACK:
    case MOEC_STAGE_COUNT:
        break;
    }
    return 0;
}

static double stage_cost(const struct basis *basis, enum moec_compile_stage stage)
{
    if (!basis->is_measured)
        return stage == MOEC_STAGE_PACK;
    return windows_cost(basis, stage) + weights_cost(basis, stage);
}

static double cost_from(const struct basis *basis, enum moec_compile_stage first)
{
    double left = 0;
    for (int stage = (int)first; stage < MOEC_STAGE_COUNT; stage++)
        left += stage_cost(basis, (enum moec_compile_stage)stage);
    return left;
}

struct moec_compile_forecast moec_compile_foresee(const struct moec_config *config,
                                                  const struct moec_compile_options *options,
                                                  uint32_t n_window, uint32_t seq_len_tokens)
{
    struct moec_compile_forecast forecast = {0};
    const struct basis basis = {.config = config,
                                .options = options,
                                .n_window = n_window > 0 ? n_window : TYPICAL_WINDOWS,
                                .seq_len_tokens = seq_len_tokens,
                                .search = 1 / 3.0,
                                .select = 1 / 6.0,
                                .certificate = 1 / 2.0,
                                .is_measured = true,
                                .is_written = true};
    for (int stage = MOEC_STAGE_ORDER; stage < MOEC_STAGE_COUNT; stage++) {
        forecast.passes += windows_cost(&basis, (enum moec_compile_stage)stage);
        forecast.weights += weights_cost(&basis, (enum moec_compile_stage)stage);
    }
    return forecast;
}

void moec_compile_begin(struct moec_compile_run *run, enum moec_compile_stage stage)
{
    const struct basis basis = basis_of(run);
    run->stage = stage;
    if (run->hooks != NULL && run->hooks->expect != NULL)
        run->hooks->expect(run->hooks->context, cost_from(&basis, stage));
}

static void show(const struct moec_compile_run *run, double done, double total)
{
    if (run->hooks != NULL && run->hooks->progress != NULL)
        run->hooks->progress(run->hooks->context, names[run->stage], done, total);
}

void moec_compile_show_part(const struct moec_compile_run *run, double done, double total)
{
    const struct basis basis = basis_of(run);
    const double share = run->stage == MOEC_STAGE_CERTIFY ? tested_share(&basis)
                         : run->stage == MOEC_STAGE_HARM  ? first_windows(&basis, MOEC_HARM_WINDOWS)
                                                          : first_windows(&basis, MOEC_SEARCH_WINDOWS);
    show(run, share * done, share * total);
}

void moec_compile_show_whole(const struct moec_compile_run *run, double done, double total)
{
    const struct basis basis = basis_of(run);
    const double cost = stage_cost(&basis, run->stage), scale = total > 0 ? cost / total : 0;
    show(run, scale * done, cost);
}
