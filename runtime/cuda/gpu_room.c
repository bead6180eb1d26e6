/* One carving: without a base it counts, with one it hands out addresses, so both always agree. Arrays that
 * a config does not need share the place of `normed`. Kinds of layers that rotate alike share one table of
 * angles. */
#include "runtime/cuda/gpu_room.h"

#include "runtime/cuda/gpu_staging.h"
#include "runtime/cuda/kernels/cuda_kernels.h"
#include "runtime/forward/attention/running.h"
#include "runtime/forward/context/context.h"
#include "runtime/kernels/kernels.h"

#define FEW_PAIRS 64u /* rows of experts whose chunks are summed side by side */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

struct moec_gpu_mixer_row moec_gpu_mixer_row_of(const struct moec_layer_kind *kind)
{
    const bool is_latent = kind->latent_dim > 0;
    struct moec_gpu_mixer_row row = {.attended = moec_lanes_padded(moec_layer_q_dim(kind))};
    row.attended_step = is_latent ? moec_lanes_padded(kind->latent_dim) : kind->head_dim;
    row.queries = row.attended + moec_lanes_padded(kind->n_head * row.attended_step);
    row.query_latent = row.queries;
    if (is_latent)
        row.query_latent += moec_lanes_padded(larger(moec_layer_q_rows(kind), moec_layer_out_dim(kind)));
    row.end = row.query_latent + moec_lanes_padded(kind->q_latent_dim);
    return row;
}

size_t moec_gpu_mixer_stride(const struct moec_config *config)
{
    size_t most = moec_lanes_padded(config->n_embd);
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const struct moec_layer_kind *kind = &config->kinds[i];
        most = larger(most, moec_layer_is_running(kind) ? moec_running_token_floats(kind)
                                                        : moec_gpu_mixer_row_of(kind).end);
    }
    return moec_lanes_padded(most);
}

uint32_t moec_gpu_most_neurons(const struct moec_config *config)
{
    uint32_t n = config->n_ff_expert > config->n_ff_shared ? config->n_ff_expert : config->n_ff_shared;
    for (uint32_t i = 0; i < config->n_kind; i++)
        n = config->kinds[i].n_ff_dense > n ? config->kinds[i].n_ff_dense : n;
    return n;
}

uint64_t moec_gpu_answer_floats(const struct moec_config *config, uint32_t max_tokens)
{
    const uint32_t n_rows = max_tokens < MOEC_GPU_HEAD_ROWS ? max_tokens : MOEC_GPU_HEAD_ROWS;
    const uint64_t router = max_tokens * ((uint64_t)moec_lanes_padded(moec_config_choices(config)) + 1);
    return larger((uint64_t)n_rows * config->n_vocab, router);
}

uint64_t moec_gpu_partial_rows(const struct moec_config *config, uint32_t max_tokens)
{
    const uint64_t pairs = (uint64_t)max_tokens * config->top_k;
    return pairs < FEW_PAIRS ? pairs : FEW_PAIRS;
}

uint32_t moec_gpu_marked_rows(const struct moec_config *config, uint32_t max_tokens)
{
    return (max_tokens < MOEC_CUDA_FEW ? max_tokens : MOEC_CUDA_FEW) * config->top_k;
}

uint64_t moec_gpu_mark_words(const struct moec_config *config, uint32_t max_tokens)
{
    return (uint64_t)moec_gpu_marked_rows(config, max_tokens) * 2 *
           ((moec_gpu_most_neurons(config) + 63u) / 64);
}

/* Floats of the chunks of a row of experts. */
static uint64_t partial_floats(const struct moec_config *config)
{
    return (moec_gpu_most_neurons(config) + (uint64_t)MOEC_SUM_CHUNK - 1) / MOEC_SUM_CHUNK * config->n_embd;
}

/* Carves n floats; base NULL only counts. */
static float *carve(uint8_t *base, uint64_t *used, uint64_t n)
{
    float *place = base == NULL ? NULL : (float *)(base + *used);
    *used += moec_gpu_staging_piece_bytes(n * sizeof(float));
    return place;
}

uint64_t moec_gpu_room_carve(const struct moec_config *config, uint32_t max_tokens, uint8_t *base,
                             struct moec_gpu_room *room)
{
    const uint64_t m = max_tokens, stride = moec_forward_stride(config);
    const bool experts_read_other = config->mlp.own_norms || config->router.scales_input;
    uint64_t used = 0;
    room->inputs.normed = carve(base, &used, m * stride);
    room->inputs.experts = experts_read_other ? carve(base, &used, m * stride) : room->inputs.normed;
    room->inputs.shared = config->mlp.own_norms ? carve(base, &used, m * stride) : room->inputs.normed;
    room->mixer = carve(base, &used, m * moec_gpu_mixer_stride(config));
    room->mlp.ranks = carve(base, &used, m * config->top_k * stride);
    room->mlp.shared = carve(base, &used, m * stride);
    room->mlp.h = carve(base, &used, m * config->top_k * moec_lanes_padded(moec_gpu_most_neurons(config)));
    room->mlp.partials =
        carve(base, &used, moec_gpu_partial_rows(config, max_tokens) * partial_floats(config));
    room->logits = carve(base, &used, moec_gpu_answer_floats(config, max_tokens));
    room->mlp.n_active = (uint32_t *)carve(base, &used, MOEC_GPU_COUNTED);
    room->mlp.ups =
        carve(base, &used,
              moec_gpu_marked_rows(config, max_tokens) * moec_lanes_padded(moec_gpu_most_neurons(config)));
    room->mlp.marks = (uint32_t *)carve(base, &used, moec_gpu_mark_words(config, max_tokens));
    room->draw = (struct moec_cuda_draw_room *)(void *)carve(
        base, &used, sizeof(struct moec_cuda_draw_room) / sizeof(float));
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const uint32_t first = moec_config_rope_kind(config, i);
        if (config->kinds[i].rope_theta <= 0)
            continue;
        room->rope[i] =
            first < i ? room->rope[first] : carve(base, &used, m * moec_layer_rotary_dim(&config->kinds[i]));
    }
    return used;
}
