/* The stages of a compile and what each is expected to cost, for forecasts, and so that progress tells how far the
 * whole is.
 *
 * Costs are in windows through the model; progress is in passes over those that the profile measured, as it
 * counts them itself: a compile from data does both under one progress. Encoding is no evaluation: what a fit
 * does is taken at the prices below, in multiply-adds of such a pass, which
 * tests/tools/fit_speed.c measured for hidden sizes from 256 to 2048 (2026-11). How often a policy measures is
 * not known before it has: a typical number stands for it. */
#include "compiler/compile/compile_stages.h"

#include "compiler/compile/compile_frequent.h"
#include "compiler/compile/compile_scope.h"
#include "compiler/fit/dense_inputs.h"
#include "compiler/fit/gptq.h"
#include "profiler/evaluate/cost.h"
#include "profiler/routing/up_study.h"
#include "profiler/sensitivity/fast_sensitivity.h"

#include <assert.h>
#include <math.h>

/* Evaluations. */
#define TYPICAL_SEARCH   6
#define TYPICAL_SEQUENCE 1    /* one plan of projections for all experts */
#define TYPICAL_TESTS    3    /* beside that of the source's own weights, which takes none */
#define TYPICAL_PROVEN   256  /* windows of the certificate part that are tested on */
#define WANTED_SHARE     0.36 /* of all variants of experts, where only wanted ones are fitted */
#define WANTED_ROOM      0.5  /* the same, where there must be room for them */
#define OTHER_MODELS     1    /* of harm, beside classes and roles: the original */
#define N_DENSE_PATHS    3    /* codecs that a dense matrix is fitted at: shift codes, and those of groups */
#define N_DENSE_GROUPS   2
/* Of a fit and its error, for two weights of a row and for each weight, by codes of either kind. */
#define PATH_PAIR    2.5
#define PATH_WEIGHT  7500.0
#define GROUP_PAIR   9.0
#define GROUP_WEIGHT 1350.0
#define FACTOR_PRICE 0.7  /* of factors, for the cube of the inputs */
#define MOMENT_PRICE 1.6  /* of what inputs have in common, for two inputs of a token */
#define PACKED_PRICE 40.0 /* multiply-adds for each weight that is encoded into the bundle */

static const char *const names[] = {
    "ordering neurons", "fitting dense weights", "weighing bitwidths", "fitting experts",
    "searching",        "ordering plans",        "certifying",         "packing"};

/* What costs follow from. */
struct basis {
    const struct moec_config *config;
    const struct moec_compile_options *options;
    struct moec_compile_scope scope;
    struct {
        double pass;
        double search, select, certificate; /* of the parts */
    } windows;
    double seq_len_tokens;
    uint32_t n_asked;
    uint32_t n_certify; /* 0: not chosen yet */
    struct {
        bool measured, written;
        bool wanted;         /* variants are weighed before they are fitted, and not all of them are */
        bool looked, fitted; /* experts were */
    } is;
};

static struct basis basis_of(const struct moec_compile_run *run)
{
    const struct moec_profile *profile = run->profile;
    struct basis basis = {.config = moec_checkpoint_config(run->checkpoint),
                          .options = run->options,
                          .scope = run->scope,
                          .windows.pass = 1,
                          .n_asked = run->n_asked,
                          .n_certify = run->n_certify,
                          .is = {.measured = profile != NULL,
                                 .written = run->path != NULL,
                                 .wanted = moec_compile_has_wanted(run->options),
                                 .looked = run->offer.look.experts != NULL,
                                 .fitted = run->offer.n_fit > 0}};
    if (profile == NULL)
        return basis;
    basis.windows.pass = profile->n_window;
    basis.seq_len_tokens = profile->seq_len_tokens;
    basis.windows.search = moec_profile_part_count(profile, MOEC_PART_SEARCH);
    basis.windows.select = moec_profile_part_count(profile, MOEC_PART_SELECT);
    basis.windows.certificate = moec_profile_part_count(profile, MOEC_PART_CERTIFICATE);
    return basis;
}

/* Multiply-adds of a window. */
static double window_cost(const struct basis *basis)
{
    return (basis->seq_len_tokens - 1) * (double)moec_cost_from_layer(basis->config, 0, 1, 0, 1);
}

static double expert_weights(const struct moec_config *config)
{
    return (double)moec_config_moe_count(config) * config->n_expert * config->n_embd * config->n_ff_expert *
           moec_config_mlp_matrices(config);
}

static double fitted_windows(const struct basis *basis)
{
    return fmin(basis->windows.search, basis->scope.n_fit);
}

/* Fits of all experts at all codecs, beside running the windows. */
static double expert_fit_cost(const struct basis *basis)
{
    const struct moec_config *config = basis->config;
    const double n_embd = config->n_embd, n_ff = config->n_ff_expert, n_layer = moec_config_moe_count(config);
    const double inner = (moec_config_mlp_matrices(config) - 1.0) * n_embd;
    const double n_token = fitted_windows(basis) * basis->seq_len_tokens;
    const double pairs = n_embd * n_ff * (inner + n_ff) / 2, weights = n_ff * (inner + n_embd);
    const double share = basis->is.wanted ? WANTED_SHARE : 1;
    const double n_fitted = basis->scope.n_expert_codec - 1.0; /* 8 bits are rounded */
    const double expert = share * n_fitted * (PATH_PAIR * pairs + PATH_WEIGHT * weights) +
                          FACTOR_PRICE * (n_embd * n_embd * n_embd + n_ff * n_ff * n_ff);
    const double moments = MOMENT_PRICE * n_token * config->top_k * (n_embd * n_embd + n_ff * n_ff) / 2;
    return n_layer * (config->n_expert * expert + moments);
}

/* The same of a dense matrix, which nobody else shares inputs with. */
static double matrix_fit_cost(const struct basis *basis, double n_input, double n_output)
{
    const double n_token = fitted_windows(basis) * basis->seq_len_tokens;
    if (n_input > MOEC_GPTQ_MAX_INPUTS)
        return 0;
    const double weights = n_output * n_input, pairs = weights * n_input / 2;
    return N_DENSE_PATHS * (PATH_PAIR * pairs + PATH_WEIGHT * weights) +
           N_DENSE_GROUPS * (GROUP_PAIR * pairs + GROUP_WEIGHT * weights) +
           FACTOR_PRICE * n_input * n_input * n_input + MOMENT_PRICE * n_token * n_input * n_input / 2;
}

/* Calls for each dense matrix that plans encode; returns the sum. */
static double sum_dense(const struct basis *basis,
                        double (*of)(const struct basis *basis, double n_input, double n_output))
{
    double sum = 0;
    for (struct moec_dense_walk at = {0}; moec_dense_next_matrix(basis->config, &at);)
        sum += moec_role_is_transposed(at.role) ? of(basis, at.rows, at.columns)
                                                : of(basis, at.columns, at.rows);
    return sum;
}

static double count_weights(const struct basis *basis, double n_input, double n_output)
{
    (void)basis;
    return n_input * n_output;
}

/* Roles of dense matrices, each of which harm measures a model for. */
static uint32_t count_roles(const struct moec_config *config)
{
    bool is_there[MOEC_ROLE_COUNT] = {false};
    uint32_t n = 0;
    for (struct moec_dense_walk at = {0}; moec_dense_next_matrix(config, &at);) {
        n += !is_there[at.role];
        is_there[at.role] = true;
    }
    return n;
}

/* Whole models that harm measures: the original, each projection at each fitted codec, and roles. Where not all are
 * fitted, each projection at one codec, before the fit, and the original and roles after it. */
static double harm_models(const struct basis *basis)
{
    const double roles = basis->options->dense.is_planned ? count_roles(basis->config) : 0;
    const double n_projection = moec_config_mlp_matrices(basis->config);
    if (!basis->is.wanted)
        return OTHER_MODELS + n_projection * basis->scope.n_expert_codec + roles;
    return (basis->is.looked ? 0 : OTHER_MODELS + n_projection) + OTHER_MODELS + roles;
}

/* Windows that the certificate is tested on. */
static double tested_windows(const struct basis *basis)
{
    const double typical = fmin(TYPICAL_PROVEN, basis->scope.n_certify);
    const double n = basis->n_certify > 0                           ? basis->n_certify
                     : basis->options->target.takes_all_certificate ? basis->windows.certificate
                                                                    : typical;
    return fmin(basis->windows.certificate, n);
}

/* What a stage does with weights, in multiply-adds. */
static double weights_cost(const struct basis *basis, enum moec_compile_stage stage)
{
    double cost = 0;
    if (stage == MOEC_STAGE_FIT_EXPERTS && basis->is.fitted)
        return 0;
    if (stage == MOEC_STAGE_FIT_EXPERTS && basis->options->search.offers_variants)
        cost += expert_fit_cost(basis);
    if (stage == (basis->options->dense.by_gptq ? MOEC_STAGE_FIT_DENSE : MOEC_STAGE_FIT_EXPERTS) &&
        (basis->options->dense.is_planned || basis->options->dense.by_gptq))
        cost += sum_dense(basis, matrix_fit_cost);
    if (stage == MOEC_STAGE_PACK && basis->is.written)
        cost += PACKED_PRICE * expert_weights(basis->config);
    return cost;
}

/* How often it takes windows through the model. */
static double windows_cost(const struct basis *basis, enum moec_compile_stage stage)
{
    const struct moec_compile_options *options = basis->options;
    const double searched = fmin(basis->windows.search, basis->scope.n_search);
    switch (stage) {
    case MOEC_STAGE_ORDER:
        return options->experts.orders_neurons ? basis->windows.search : 0;
    case MOEC_STAGE_FIT_EXPERTS:
        return options->search.offers_variants && !basis->is.fitted
                   ? fitted_windows(basis)
                   : 0; /* dense matrices in the same sweep */
    case MOEC_STAGE_FIT_DENSE:
        return options->dense.by_gptq ? fitted_windows(basis) : 0;
    case MOEC_STAGE_HARM:
        return options->search.offers_variants
                   ? (basis->is.looked
                          ? 0
                          : MOEC_FAST_PASSES * fmin(basis->windows.search, basis->scope.n_harm)) +
                         harm_models(basis) * fmin(basis->windows.search, basis->scope.n_class)
                   : 0;
    case MOEC_STAGE_SEARCH:
        return searched * fmax(1 + TYPICAL_SEARCH - (double)basis->n_asked, 1) +
               (options->search.offers_variants ? 2 * fmin(basis->windows.select, basis->scope.n_search)
                                                : 0); /* one plan, beside the original */
    case MOEC_STAGE_SEQUENCE:
        return basis->is.written ? searched * TYPICAL_SEQUENCE : 0;
    case MOEC_STAGE_CERTIFY:
        return basis->is.written ? tested_windows(basis) * (1 + TYPICAL_TESTS) : 0;
    case MOEC_STAGE_PACK:
    case MOEC_STAGE_COUNT:
        break;
    }
    return 0;
}

/* Beside these, in windows: the original's logits, which are computed once more to compare with where they do not
 * all fit into memory. */
static double logits_cost(const struct basis *basis, enum moec_compile_stage stage)
{
    const double head = (basis->seq_len_tokens - 1) * (double)moec_cost_head(basis->config, 1);
    return stage == MOEC_STAGE_HARM || (stage >= MOEC_STAGE_SEARCH && stage <= MOEC_STAGE_CERTIFY)
               ? windows_cost(basis, stage) * head / window_cost(basis)
               : 0;
}

static double stage_cost(const struct basis *basis, enum moec_compile_stage stage)
{
    if (!basis->is.measured)
        return stage == MOEC_STAGE_PACK;
    return (windows_cost(basis, stage) + logits_cost(basis, stage) +
            weights_cost(basis, stage) / window_cost(basis)) /
           basis->windows.pass;
}

static double cost_from(const struct basis *basis, enum moec_compile_stage first)
{
    double left = 0;
    for (int stage = (int)first; stage < MOEC_STAGE_COUNT; stage++)
        left += stage_cost(basis, (enum moec_compile_stage)stage);
    return left;
}

/* Of the codecs that are fitted, with their scales: 2, 3 and 4 bits, 2 and 4, or 2 alone. */
#define EXPERT_BITS(n) ((n) > 3 ? 9.1 : (n) > 2 ? 6.1 : 2.1)
#define DENSE_BITS     21.0
#define LOOK_BITS      3.2 /* of the codec that experts are weighed at before they are fitted */

/* What ranks tell each other beside encoded weights, and keep meanwhile. */
static void estimate_exchange(const struct basis *basis, struct moec_compile_forecast *forecast)
{
    const struct moec_config *config = basis->config;
    const struct moec_compile_options *options = basis->options;
    const double n_token = fmin(basis->windows.search, basis->scope.n_fit) * basis->seq_len_tokens,
                 n_moe = moec_config_moe_count(config), n_embd = config->n_embd;
    const double states = n_token * (double)moec_forward_stride(config) * sizeof(float);
    const struct moec_dense_input_floats inputs = moec_dense_inputs_floats(config);
    const double moments = n_embd <= MOEC_GPTQ_MAX_INPUTS ? n_embd * n_embd / 2 * sizeof(double) : 0;
    forecast->shared_bytes = forecast->fitted_bytes +
                             (uint64_t)(n_moe * (double)moec_up_study_bytes(config, 1)) +
                             (options->search.offers_variants ? (uint64_t)(n_moe * (states + moments)) : 0);
    /* Single experts and a model for each projection. */
    if (options->search.offers_variants && basis->is.wanted)
        forecast->weighed_bytes =
            (uint64_t)((1.0 + moec_config_mlp_matrices(config)) * expert_weights(config) * LOOK_BITS / 8);
    if (options->search.offers_variants || options->dense.by_gptq)
        forecast->state_bytes = (uint64_t)states;
    if (!options->dense.is_planned && !options->dense.by_gptq)
        return;
    forecast->passed_bytes = (uint64_t)(n_token * (double)inputs.all * sizeof(float));
    forecast->input_bytes = (uint64_t)(n_token * (double)inputs.most * sizeof(float));
}

struct moec_compile_rank_forecast moec_compile_rank_estimate(const struct moec_compile_forecast *forecast,
                                                             uint32_t n_rank)
{
    const double n = n_rank, others = (n - 1) / n;
    /* States of the own windows twice, and of all as they enter experts; inputs likewise, of the own matrices. */
    return (struct moec_compile_rank_forecast){
        .received_bytes =
            (uint64_t)(others * ((double)forecast->shared_bytes + (double)forecast->passed_bytes / n)),
        .state_bytes =
            (uint64_t)((double)forecast->state_bytes * (1 + 2 / n) + (double)forecast->input_bytes * 2 / n),
        .weighed_bytes = (uint64_t)(others * (double)forecast->weighed_bytes)};
}

struct moec_compile_forecast moec_compile_estimate(const struct moec_compile_request *request)
{
    struct moec_compile_forecast forecast = {0};
    struct moec_config config = *request->config;
    config.n_frequent = moec_compile_frequent_expect(&config, request->options);
    const struct basis basis = {
        .config = &config,
        .options = request->options,
        .scope = *moec_compile_scope_at(request->options->target.scope),
        .windows = {.pass = 1,
                    .search = request->n_part[MOEC_PART_SEARCH],
                    .select = request->n_part[MOEC_PART_SELECT],
                    .certificate = request->n_part[MOEC_PART_CERTIFICATE]},
        .seq_len_tokens = request->seq_len_tokens,
        .is = {.measured = true, .written = true, .wanted = moec_compile_has_wanted(request->options)}};
    forecast.window_multiply_adds = window_cost(&basis);
    static_assert((int)MOEC_STAGE_COUNT <= MOEC_COMPILE_MAX_PHASES, "stages fit");
    for (int stage = MOEC_STAGE_ORDER; stage < MOEC_STAGE_COUNT; stage++) {
        const double windows = windows_cost(&basis, (enum moec_compile_stage)stage),
                     others = logits_cost(&basis, (enum moec_compile_stage)stage),
                     weights = weights_cost(&basis, (enum moec_compile_stage)stage);
        if (windows + weights <= 0)
            continue;
        forecast.phases[forecast.n_phase].name = names[stage];
        forecast.phases[forecast.n_phase].windows = windows;
        forecast.phases[forecast.n_phase].others = others;
        forecast.phases[forecast.n_phase++].weights = weights;
        forecast.windows += windows;
        forecast.others += others;
        forecast.weights += weights;
    }
    if (request->options->search.offers_variants)
        forecast.fitted_bytes =
            (uint64_t)((basis.is.wanted ? WANTED_ROOM : 1) * expert_weights(request->config) *
                       EXPERT_BITS(basis.scope.n_expert_codec) / 8);
    if (request->options->dense.is_planned)
        forecast.fitted_bytes += (uint64_t)(sum_dense(&basis, count_weights) * DENSE_BITS / 8);
    estimate_exchange(&basis, &forecast);
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
    const double n = run->stage == MOEC_STAGE_CERTIFY ? tested_windows(&basis)
                     : run->stage == MOEC_STAGE_HARM  ? fmin(basis.windows.search, basis.scope.n_harm)
                                                      : fmin(basis.windows.search, basis.scope.n_search);
    show(run, n / basis.windows.pass * done, n / basis.windows.pass * total);
}

void moec_compile_show_whole(const struct moec_compile_run *run, double done, double total)
{
    const struct basis basis = basis_of(run);
    const double cost = stage_cost(&basis, run->stage), scale = total > 0 ? cost / total : 0;
    show(run, scale * done, cost);
}

static enum moec_status report_whole(void *context, const char *phase, double done, double total)
{
    const struct moec_compile_run *run = context;
    (void)phase;
    moec_compile_show_whole(run, done, total);
    return moec_compile_is_cancelled(run) ? MOEC_ERR_CANCELLED : MOEC_OK;
}

struct moec_progress moec_compile_whole_progress(struct moec_compile_run *run)
{
    return (struct moec_progress){.report = report_whole, .context = run};
}
