/* Choices of three layers and inputs of two are kept in rings, by ordinal modulo three and two. A pair is
 * handed on when the later layer is complete, before the ring comes round to the earlier one. Pairs never
 * cross from one stack to the other. As many windows are taken, the first ones, as memory has room for. */
#include "profiler/routing/layer_pairs.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/batch_sequences.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/sweep.h"

#include <inttypes.h>
#include <string.h>

#define N_SIDE 3u

struct sweeping {
    const struct moec_layer_pairs_job *job;
    const struct moec_config *config;
    struct moec_forward forward;
    struct moec_windows windows;
    struct moec_layer_side sides[N_SIDE]; /* of the layer at work and the two before, by ordinal */
    float *inputs[2];                     /* (T, stride), that sides take turns with */
    size_t stride;
    uint32_t *experts; /* (max_tokens, k): trace of a batch, as the next two */
    float *weights;
    float *input;     /* (max_tokens, stride of the forward) */
    uint32_t ordinal; /* layer at work */
    double done;
};

uint32_t moec_layer_pairs_tokens(const struct moec_windows *windows, enum moec_stack stack, uint32_t first,
                                 uint32_t n)
{
    uint32_t n_token = 0;
    for (uint32_t w = first; w < first + n; w++)
        n_token += moec_windows_read(windows, stack, w);
    return n_token;
}

static struct moec_layer_side *side_of(struct sweeping *sweeping, uint32_t ordinal)
{
    return &sweeping->sides[ordinal % N_SIDE];
}

/* The layer at work is done with. */
static enum moec_status close_layer(struct sweeping *sweeping, struct moec_error *err)
{
    const uint32_t ordinal = sweeping->ordinal;
    const uint32_t first = moec_config_moe_range(sweeping->config, ordinal).first;
    if (ordinal == first)
        return MOEC_OK;
    const struct moec_layer_pair pair = {.forward = &sweeping->forward,
                                         .windows = &sweeping->windows,
                                         .from = side_of(sweeping, ordinal - 1),
                                         .to = side_of(sweeping, ordinal),
                                         .before =
                                             ordinal > first + 1 ? side_of(sweeping, ordinal - 2) : NULL,
                                         .stride = sweeping->stride};
    return sweeping->job->hooks.pair(sweeping->job->hooks.context, &pair, err);
}

static void begin_layer(struct sweeping *sweeping, uint32_t ordinal)
{
    struct moec_layer_side *side = side_of(sweeping, ordinal);
    sweeping->ordinal = side->ordinal = ordinal;
    side->n_token = 0;
    side->inputs = sweeping->inputs[ordinal % 2];
}

static void take_token(const struct sweeping *sweeping, struct moec_layer_side *side, uint32_t row)
{
    const struct moec_config *config = sweeping->config;
    const uint32_t k = config->top_k;
    const size_t to = side->n_token++;
    float *inputs = side->inputs + to * sweeping->stride;
    memcpy(inputs, sweeping->input + row * moec_forward_stride(config), config->n_embd * sizeof *inputs);
    memset(inputs + config->n_embd, 0, (sweeping->stride - config->n_embd) * sizeof *inputs);
    for (uint32_t i = 0; i < k; i++) {
        const float weight = sweeping->weights[(size_t)row * k + i];
        side->experts[to * k + i] = sweeping->experts[(size_t)row * k + i];
        side->weights[to * k + i] = moec_choice_is_passed(config, weight) ? 0 : weight;
    }
}

static enum moec_status traced(void *context, uint32_t ordinal, const struct moec_sweep_batch *batch,
                               struct moec_error *err)
{
    struct sweeping *sweeping = context;
    if (ordinal != sweeping->ordinal) {
        MOEC_TRY(close_layer(sweeping, err));
        begin_layer(sweeping, ordinal);
    }
    for (uint32_t row = 0; row < batch->n_rows; row++)
        take_token(sweeping, side_of(sweeping, ordinal), row);
    return MOEC_OK;
}

static enum moec_status worked(void *context, uint64_t multiply_adds, struct moec_error *err)
{
    struct sweeping *sweeping = context;
    sweeping->done += (double)multiply_adds / (double)moec_cost_pass(sweeping->config, &sweeping->windows);
    if (sweeping->job->hooks.worked == NULL)
        return MOEC_OK;
    return sweeping->job->hooks.worked(sweeping->job->hooks.context, sweeping->done < 1 ? sweeping->done : 1,
                                       err);
}

/* As many windows as there is memory for. */
static enum moec_status choose_windows(struct sweeping *sweeping, struct moec_error *err)
{
    const struct moec_windows *all = sweeping->job->of.windows;
    const uint64_t bytes = sweeping->job->work_bytes;
    const uint64_t token_bytes =
        2 * sweeping->stride * sizeof(float) +
        N_SIDE * (uint64_t)sweeping->config->top_k * (sizeof(uint32_t) + sizeof(float));
    uint64_t n_token = 0;
    uint32_t n = 0;
    while (n < all->n_window && (bytes == 0 || n_token + all->length[n] <= bytes / token_bytes))
        n_token += all->length[n++];
    if (n < 2)
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "the inputs of two layers (%" PRIu64 " bytes per token) for two windows do not "
                         "fit into the %" PRIu64 " bytes allowed for these inputs: raise --work-memory",
                         token_bytes, bytes);
    return moec_windows_first(all, n, &sweeping->windows, err);
}

static enum moec_status allocate(struct sweeping *sweeping, uint32_t max_tokens, struct moec_error *err)
{
    static const char what[] = "inputs and choices of layers";
    const uint64_t k = sweeping->config->top_k, n_token = moec_windows_token_count(&sweeping->windows);
    for (uint32_t i = 0; i < N_SIDE; i++) {
        struct moec_layer_side *side = &sweeping->sides[i];
        MOEC_TRY(moec_alloc((void **)&side->experts, n_token, k * sizeof(uint32_t), what, err));
        MOEC_TRY(moec_alloc((void **)&side->weights, n_token, k * sizeof(float), what, err));
    }
    for (uint32_t i = 0; i < 2; i++)
        MOEC_TRY(moec_alloc_aligned((void **)&sweeping->inputs[i], n_token, sweeping->stride * sizeof(float),
                                    what, err));
    MOEC_TRY(moec_alloc((void **)&sweeping->experts, max_tokens * k, sizeof(uint32_t), what, err));
    MOEC_TRY(moec_alloc((void **)&sweeping->weights, max_tokens * k, sizeof(float), what, err));
    return moec_alloc_aligned((void **)&sweeping->input, max_tokens,
                              moec_forward_stride(sweeping->config) * sizeof(float), what, err);
}

static void release(struct sweeping *sweeping)
{
    for (uint32_t i = 0; i < N_SIDE; i++) {
        free(sweeping->sides[i].experts);
        free(sweeping->sides[i].weights);
    }
    free(sweeping->inputs[0]);
    free(sweeping->inputs[1]);
    free(sweeping->experts);
    free(sweeping->weights);
    free(sweeping->input);
    moec_windows_release(&sweeping->windows);
    moec_forward_release(&sweeping->forward);
}

static enum moec_status run(struct sweeping *sweeping, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_layer_pairs_job *job = sweeping->job;
    const struct moec_config *config = sweeping->config;
    const bool own = (config->mlp.own_norms || config->router.scales_input) && !job->of_experts;
    const uint32_t max_tokens = moec_sweep_max_tokens(&sweeping->windows);
    struct moec_sweep sweep = {0};
    struct moec_states hidden = {0};
    MOEC_TRY_OUT(moec_forward_init(&sweeping->forward, job->of.model, job->kernels, job->n_threads,
                                   job->of.experts, max_tokens, err));
    MOEC_TRY_OUT(moec_sweep_create(&sweeping->forward, &sweeping->windows, true, &sweep, err));
    MOEC_TRY_OUT(allocate(sweeping, max_tokens, err));
    MOEC_TRY_OUT(moec_states_create(sweeping->windows.work, moec_windows_token_count(&sweeping->windows),
                                    moec_forward_stride(config), "hidden states of the windows", &hidden,
                                    err));
    const struct moec_mlp_trace trace = {.experts = sweeping->experts,
                                         .weights = sweeping->weights,
                                         .input = own ? NULL : sweeping->input,
                                         .gate_input = own ? sweeping->input : NULL};
    const struct moec_sweep_store store = {
        .states = &hidden, .trace = &trace, .traced = traced, .worked = worked, .context = sweeping};
    begin_layer(sweeping, 0);
    MOEC_TRY_OUT(moec_sweep_run(&sweep, (struct moec_window_range){0, sweeping->windows.n_window},
                                hidden.rows, &store, err));
    status = close_layer(sweeping, err);
out:
    moec_states_release(&hidden);
    moec_sweep_release(&sweep);
    return status;
}

static enum moec_status check_model(const struct moec_config *config, struct moec_error *err)
{
    for (uint32_t s = 0; s < moec_config_moe_count(config); s++)
        if (moec_config_moe_range(config, s).count > 1)
            return MOEC_OK;
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "the model has no two consecutive MoE layers, so no layer's experts can be predicted "
                     "from the layer before");
}

enum moec_status moec_layer_pairs_run(const struct moec_layer_pairs_job *job, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &job->of.model->config;
    struct sweeping sweeping = {
        .job = job, .config = config, .stride = moec_lanes_padded((size_t)config->n_embd + job->n_spare)};
    MOEC_TRY(check_model(config, err));
    MOEC_TRY_OUT(choose_windows(&sweeping, err));
    MOEC_TRY_OUT(run(&sweeping, err));
out:
    release(&sweeping);
    return status;
}
