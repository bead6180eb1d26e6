/* The stages of a compile and what each is expected to cost, so that progress tells how far the whole is.
 *
 * Costs are in passes over all windows of the profile, as `moec profile` counts them: a compile from data
 * does both under one progress. An evaluation of a part costs its share of the windows. Encoding is no
 * evaluation: its multiply-adds are taken at the price that MAC_PRICE says, and the trellis, which tries
 * states instead of multiplying, at TRELLIS_PRICE, both measured on the sample models (2026-11). How often a
 * policy measures is not known before it has: a typical number stands for it. */
#include "compiler/compile/compile_internal.h"
#include "profiler/evaluate/cost.h"
#include "profiler/sensitivity/fast_sensitivity.h"

#include <math.h>

/* Evaluations. */
#define TYPICAL_WINDOWS  256
#define TYPICAL_SEARCH   8
#define TYPICAL_SEQUENCE 1 /* one plan of projections for all experts */
#define TYPICAL_TESTS    4
#define TYPICAL_PROVEN   256 /* windows of the certificate part that are tested on */
#define HARM_MODELS      22  /* whole models: the original, projections at each codec, and roles */
#define MAC_PRICE        3.0
#define TRELLIS_PRICE    85000.0 /* multiply-adds for each weight that is fitted at 2 bits */
#define PACKED_PRICE     40.0    /* multiply-adds for each weight that is encoded into the bundle */

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

/* Weights of experts, and multiply-adds of GPTQ for all at one codec: each column of a matrix changes those
 * behind it. */
static void weigh_experts(const struct moec_config *config, double *n_weight, double *gptq)
{
    const double n = (double)moec_config_moe_count(config) * config->n_expert;
    const double matrix = (double)config->n_embd * config->n_ff_expert;
    const double n_inner = moec_config_mlp_matrices(config) - 1.0;
    *n_weight = n * matrix * (n_inner + 1);
    *gptq = n * matrix * (n_inner * config->n_embd + config->n_ff_expert) / 2;
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

/* What a stage does with weights alone. */
static double weights_cost(const struct basis *basis, enum moec_compile_stage stage)
{
    double n_weight = 0, gptq = 0;
    weigh_experts(basis->config, &n_weight, &gptq);
    if (stage == MOEC_STAGE_FIT_EXPERTS && basis->options->offers_variants)
        return (4 * MAC_PRICE * gptq + TRELLIS_PRICE * n_weight) / pass_cost(basis);
    return stage == MOEC_STAGE_PACK && basis->is_written ? PACKED_PRICE * n_weight / pass_cost(basis) : 0;
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
