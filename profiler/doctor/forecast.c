/* Passes are expected values over even routing, summed over layers. Seconds divide three amounts by paces of
 * their own: products of few tokens, of many, and elements in between. The numbers of models below follow the
 * phases of profile_run.c and must change with them. */
#include "profiler/doctor/forecast.h"

#include "profiler/doctor/pace.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/parts.h"
#include "profiler/evaluate/sweep.h"
#include "profiler/profile/codes_study.h"
#include "profiler/profile/profile_run.h"
#include "profiler/sensitivity/fast_sensitivity.h"

#define CODES_MODELS 2.0 /* of at most 4 for the codes that compile takes */
#define MIXED_MODELS 6.0 /* of at most 12 for assignments at three targets: the usual number */
/* How often a layer goes through a token's hidden state, each of its experts through that and through its own
 * neurons, and the end of the model through logits: what the sample and a model of twice its width take. */
#define STATE_TIMES         16
#define EXPERT_STATE_TIMES  4
#define EXPERT_NEURON_TIMES 3
#define LOGIT_TIMES         4
#define UNLIKELY            1e-3 /* what is left of a probability when its tail no longer counts */

/* Tokens that a window scores, and those of its source. */
struct window {
    uint32_t scored, source;
};

static double pass_cost(const struct moec_config *config, struct window window)
{
    return (double)moec_cost_from_layer(config, 0, window.source, 0, window.scored);
}

/* One layer's experts at one other bitwidth each, in one window, as an exact sweep does it. */
static double layer_cost(const struct moec_config *config, uint32_t layer, struct window window)
{
    const double p = (double)config->top_k / config->n_expert;
    const bool is_encoder = moec_config_stack(config, layer) == MOEC_STACK_ENCODER;
    const uint32_t n = is_encoder ? window.source : window.scored;
    double cost = 0, never = 1;
    for (uint32_t t = 0; t < n && never > UNLIKELY; t++) {
        const uint32_t first = is_encoder ? 0 : t;
        cost += never * p *
                (double)moec_cost_after_layer(config, layer, window.source, first, window.scored - first);
        never *= 1 - p;
    }
    return config->n_expert * (cost + p * (double)moec_cost_expert(config, n));
}

/* Floats of a window that kernels go through one by one between products, each time counted: norms, sums and
 * copies of a layer's states, an expert's inputs, activations and outputs, weights of attention, and what the
 * logits of a token are compared by. In small models they take a third of the time. */
static double pass_elements(const struct moec_config *config, struct window window)
{
    double elements = 0;
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const bool is_encoder = moec_config_stack(config, layer) == MOEC_STACK_ENCODER;
        const double n = is_encoder ? window.source : window.scored;
        const double k = moec_config_is_moe(config, layer) ? config->top_k : 1;
        elements += n * STATE_TIMES * config->n_embd + n * n * moec_config_layer(config, layer)->n_head +
                    n * k * (EXPERT_STATE_TIMES * config->n_embd + EXPERT_NEURON_TIMES * config->n_ff_expert);
    }
    return elements + (double)LOGIT_TIMES * window.scored * config->n_vocab;
}

/* An evaluation of a window: products of experts with the tokens that chose them in a batch, all others, and what
 * stands between them. */
static enum moec_status time_window(const struct moec_forecast_request *request, struct window window,
                                    struct moec_forecast_time *time, struct moec_error *err)
{
    const struct moec_config *config = request->config;
    struct moec_pace_request pace = {
        .kernels = request->kernels,
        .n_threads = request->n_threads,
        .codec = {.dtype = config->expert_dtype},
        .columns = config->n_embd,
        .n_tokens = (uint32_t)((uint64_t)MOEC_SWEEP_TOKENS * config->top_k / config->n_expert),
    };
    struct moec_pace few, many, between;
    double experts = 0;
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const uint32_t n =
            moec_config_stack(config, layer) == MOEC_STACK_ENCODER ? window.source : window.scored;
        if (moec_config_is_moe(config, layer))
            experts += config->top_k * (double)moec_cost_expert(config, n);
    }
    const double others = pass_cost(config, window) - experts, elements = pass_elements(config, window);
    MOEC_TRY(moec_pace_products(&pace, &few, err));
    pace.n_tokens = MOEC_PACE_MAX_TOKENS;
    pace.codec = (struct moec_codec){.dtype = MOEC_DTYPE_BF16}; /* whatever experts are stored as */
    MOEC_TRY(moec_pace_products(&pace, &many, err));
    MOEC_TRY(moec_pace_elements(&pace, &between, err));
    *time = (struct moec_forecast_time){
        .seconds = experts / few.per_second + others / many.per_second + elements / between.per_second,
        .core_seconds = experts / few.per_core_second + others / many.per_core_second +
                        elements / between.per_core_second,
        .product_seconds = 1 / many.per_second,
        .product_core_seconds = 1 / many.per_core_second,
    };
    return MOEC_OK;
}

static struct window window_of(const struct moec_forecast_request *request)
{
    const struct moec_config *config = request->config;
    const uint32_t length =
        request->seq_len_tokens < config->n_position ? request->seq_len_tokens : config->n_position;
    return (struct window){.scored = length - 1,
                           .source = moec_config_is_encoder_decoder(config) ? length : 0};
}

enum moec_status moec_forecast_window(const struct moec_forecast_request *request,
                                      struct moec_forecast_time *time, struct moec_error *err)
{
    return time_window(request, window_of(request), time, err);
}

enum moec_status moec_forecast_make(const struct moec_forecast_request *request,
                                    struct moec_forecast *forecast, struct moec_error *err)
{
    const struct moec_config *config = request->config;
    const bool has_encoder = moec_config_is_encoder_decoder(config);
    const uint32_t n_moe = moec_config_moe_count(config);
    const struct window window = window_of(request);
    const double n_other = request->n_bits - 1;
    *forecast = (struct moec_forecast){
        .n_window =
            MOEC_DEFAULT_SEARCH_WINDOWS + MOEC_DEFAULT_SELECT_WINDOWS + MOEC_DEFAULT_CERTIFICATE_WINDOWS,
        .n_sensitivity_window = MOEC_DEFAULT_SENSITIVITY_WINDOWS,
        .window_tokens = window.scored + 1,
        .naive_passes = (double)n_moe * config->n_expert * n_other,
    };
    const double pass = pass_cost(config, window),
                 share = MOEC_DEFAULT_SENSITIVITY_WINDOWS / (double)forecast->n_window;
    struct moec_pace encoding_pace;
    double variants = 0;
    for (uint32_t s = 0; s < n_moe; s++)
        variants += n_other * layer_cost(config, moec_config_moe_layer(config, s), window);
    /* The original with its routing, whole models at each bitwidth, all on the windows that do not certify, and
     * the codes of compile; the sweep's baseline and variants. */
    const double measured =
                     (MOEC_DEFAULT_SEARCH_WINDOWS + MOEC_DEFAULT_SELECT_WINDOWS) / (double)forecast->n_window,
                 codes = CODES_MODELS * MOEC_CODES_WINDOWS / forecast->n_window;
    forecast->exact_passes =
        measured * (1 + request->n_bits + MIXED_MODELS) + codes + share * (2 + variants / pass);
    forecast->fast_passes =
        has_encoder ? 0 : measured * (1 + request->n_bits) + codes + share * MOEC_FAST_PASSES;
    forecast->n_sweep = 2 * request->n_bits;
    forecast->pass_multiply_adds = pass * forecast->n_window;
    MOEC_TRY(time_window(request, window, &forecast->window, err));
    const double seconds = forecast->n_window * forecast->window.seconds;
    forecast->multiply_adds_per_second = forecast->pass_multiply_adds / seconds;
    const struct moec_pace_request encoding = {.kernels = request->kernels,
                                               .n_threads = request->n_threads,
                                               .codec = {.dtype = MOEC_DTYPE_INT4},
                                               .columns = config->n_embd,
                                               .n_tokens = MOEC_PACE_MAX_TOKENS};
    MOEC_TRY(moec_pace_encoding(&encoding, &encoding_pace, err));
    const double weights = (double)n_moe * config->n_expert * (double)moec_cost_expert(config, 1);
    const double quantising = forecast->n_sweep * weights / encoding_pace.per_second;
    forecast->exact_seconds = forecast->exact_passes * seconds + quantising;
    forecast->fast_seconds = has_encoder ? 0 : forecast->fast_passes * seconds + quantising;
    return MOEC_OK;
}
