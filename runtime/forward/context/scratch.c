/* One walk over all arrays counts bytes or hands out pointers, so both always agree. Attention and MLPs
 * overlay each other, as do the steps of a thread, since none is at work with another. An area ends where
 * the longest of its users ends. Pieces begin on cache lines, so no two threads share one. */
#include "runtime/forward/context/scratch.h"

#include "formats/base/memory.h"
#include "runtime/forward/context/context.h"
#include "runtime/forward/context/latent_row.h"
#include "runtime/forward/context/running_row.h"
#include "runtime/kernels/int8.h"

#include <string.h>

/* One walk decides the layout: without a base it counts, with one it hands out addresses. Pieces start on
 * cache lines, so that threads never share one. */
struct carver {
    uint8_t *base;
    uint64_t used_bytes;
};

#define CACHE_LINE 64u

/* Weights decoded at once by a dense product. All inputs pass by for each tile of rows, from the last cache
 * where they are many: with 64 rows of 2048 in the place of 16, prompts of 512 tokens take 0.9 of the time.
 */
#define LINEAR_TILE_FLOATS (128u * 1024)
#define LINEAR_TILE_MAX    64u
#define LINEAR_TILE_MIN    8u

/* The most heads of latent attention that are worked on together: enough to read keys once for many, few
 * enough that a single token keeps several threads busy. */
#define LATENT_GROUP 16u

/* Products with shorter rows are as fast or faster from inputs as they lie: up to 512 columns a row's sums
 * wait for nothing there. */
#define TRANSPOSED_COLUMNS 1024u

/* Inputs and outputs of a tile of rows as wide do not both stay in the second-level cache, so they take turns
 * in it after so many chunks of neurons. */
#define WIDE_STRIDE 1024u
#define WIDE_CHUNKS 8u

/* Tokens that attention takes through all its steps together. */
#define ATTENTION_BLOCK 2048u

/* Expert outputs of a block, in floats: what a last-level cache holds beside the rest. */
#define MOE_BLOCK_FLOATS (2u * 1024 * 1024)

/* Tokens that a block should bring to each expert, or decoding weights would cost more than the cache saves.
 */
#define MOE_BLOCK_EXPERT_TOKENS 256u

static void *carve(struct carver *carver, uint64_t count, uint64_t item_bytes)
{
    uint64_t at = carver->used_bytes;
    carver->used_bytes += (count * item_bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return carver->base == NULL ? NULL : carver->base + at;
}

static float *carve_floats(struct carver *carver, uint64_t rows, uint64_t columns)
{
    return carve(carver, rows * columns, sizeof(float));
}

uint32_t moec_linear_tile_rows(size_t k)
{
    size_t rows = LINEAR_TILE_FLOATS / moec_lanes_padded(k) / 8 * 8;
    if (rows < LINEAR_TILE_MIN)
        return LINEAR_TILE_MIN;
    return rows > LINEAR_TILE_MAX ? LINEAR_TILE_MAX : (uint32_t)rows;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint32_t moec_attention_group(const struct moec_layer_kind *kind)
{
    uint32_t group = kind->n_head / kind->n_kv_head;
    if (kind->latent_dim == 0)
        return group;
    for (group = LATENT_GROUP; kind->n_head % group != 0;)
        group--;
    return group;
}

uint32_t moec_attention_tile(const struct moec_layer_kind *kind, uint32_t max_tokens)
{
    const uint32_t queries = MOEC_ATTENTION_ROWS / moec_attention_group(kind);
    return moec_min_u32(queries > 0 ? queries : 1, max_tokens);
}

static uint32_t moe_block(const struct moec_config *config, size_t stride)
{
    uint64_t cached = MOE_BLOCK_FLOATS / (config->top_k * stride);
    uint64_t shared_decoding = (uint64_t)MOE_BLOCK_EXPERT_TOKENS * config->n_expert / config->top_k;
    return (uint32_t)(cached > shared_decoding ? cached : shared_decoding);
}

/* Neurons of the largest MLP of a layer without experts. */
static uint32_t largest_dense_size(const struct moec_config *config)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < config->n_kind; i++)
        largest = config->kinds[i].n_ff_dense > largest ? config->kinds[i].n_ff_dense : largest;
    return largest;
}

static size_t largest_rounded_kv(const struct moec_config *config)
{
    size_t largest = 0;
    for (uint32_t i = 0; i < config->n_kind; i++)
        if (moec_layer_rounds_kv(&config->kinds[i]))
            largest = larger(largest, moec_layer_kv_dim(&config->kinds[i]));
    return largest;
}

/* Tokens of a group that is laid; 0 where batches are too small. */
static uint64_t transposed_tokens(uint32_t max_tokens)
{
    return max_tokens < MOEC_TRANSPOSED_TOKENS ? 0 : moec_min_u32(max_tokens, MOEC_GROUP_TOKENS);
}

/* The longest inputs of a dense product that are laid. */
static size_t longest_inputs(const struct moec_config *config, size_t stride)
{
    size_t longest = stride;
    for (uint32_t i = 0; i < config->n_kind; i++) {
        if (!moec_layer_mixes(&config->kinds[i]))
            continue;
        longest = larger(longest, moec_lanes_padded(moec_layer_out_dim(&config->kinds[i])));
        longest = larger(longest, moec_lanes_padded(config->kinds[i].q_latent_dim));
    }
    return longest;
}

/* Rows that hold every chunk sum of a small batch, or as many as keep the threads busy in waves. */
static uint32_t partial_rows(const struct moec_config *config, uint32_t max_tokens, int n_threads)
{
    uint64_t chunks_expert = (config->n_ff_expert + MOEC_SUM_CHUNK - 1) / MOEC_SUM_CHUNK;
    uint64_t chunks_shared = (config->n_ff_shared + MOEC_SUM_CHUNK - 1) / MOEC_SUM_CHUNK;
    uint64_t chunks_dense = (largest_dense_size(config) + MOEC_SUM_CHUNK - 1) / MOEC_SUM_CHUNK;
    uint64_t moe = config->top_k * chunks_expert + chunks_shared;
    uint64_t all = max_tokens * (moe > chunks_dense ? moe : chunks_dense);
    uint64_t wave = MOEC_SPLIT_ROWS * (n_threads > 2 ? 2 * (uint64_t)n_threads : 4);
    return (uint32_t)(all < wave ? all : wave);
}

static void carve_attention(struct carver *carver, const struct moec_config *config, uint32_t max_tokens,
                            struct moec_attention_scratch *attention)
{
    uint64_t rows = 0, row_floats = 0;
    size_t head_stride = 0;
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const struct moec_layer_kind *kind = &config->kinds[i];
        if (!moec_layer_attends(kind))
            continue;
        const size_t stride_of_kind = moec_lanes_padded(moec_layer_score_dim(kind));
        const uint64_t n = (uint64_t)moec_attention_tile(kind, max_tokens) * moec_attention_group(kind);
        rows = larger(rows, n);
        row_floats = larger(row_floats, n * stride_of_kind);
        head_stride = larger(head_stride, stride_of_kind);
    }
    attention->q = carve_floats(carver, row_floats, 1);
    attention->k = carve_floats(carver, MOEC_SUM_CHUNK, head_stride);
    attention->v = carve_floats(carver, MOEC_SUM_CHUNK, head_stride);
    attention->scores = carve_floats(carver, rows, MOEC_SUM_CHUNK);
    attention->sum = carve_floats(carver, row_floats, 1);
    attention->part = carve_floats(carver, row_floats, 1);
    attention->max = carve_floats(carver, rows, 1);
    attention->total = carve_floats(carver, rows, 1);
}

/* A thread's decoded rows, and a tile's latents. */
static uint64_t latent_thread_floats(const struct moec_layer_kind *kind, uint32_t max_tokens)
{
    const uint64_t tile = moec_min_u32(MOEC_TILE_TOKENS, max_tokens);
    return kind->latent_dim == 0 ? 0 : (MOEC_SUM_CHUNK + tile) * moec_lanes_padded(kind->latent_dim);
}

/* Each step's pieces start where the thread's area starts; the area ends where the longest ends. */
static void carve_thread(struct carver *carver, const struct moec_config *config, uint32_t max_tokens,
                         const struct moec_scratch *sizes, struct moec_thread_scratch *thread)
{
    uint64_t start = carver->used_bytes;
    uint64_t end = start;
    bool decodes = max_tokens > 1;
    size_t stride = sizes->stride;

    const uint64_t n_transposed = transposed_tokens(max_tokens);
    uint64_t tile_floats = moec_linear_tile_rows(stride) * stride;
    for (uint32_t i = 0; i < config->n_kind; i++) {
        if (!moec_layer_mixes(&config->kinds[i]))
            continue;
        const size_t q_stride = moec_lanes_padded(moec_layer_out_dim(&config->kinds[i]));
        const size_t latent = moec_lanes_padded(config->kinds[i].q_latent_dim);
        tile_floats = larger(tile_floats, (uint64_t)moec_linear_tile_rows(q_stride) * q_stride);
        if (latent > 0)
            tile_floats = larger(tile_floats, (uint64_t)moec_linear_tile_rows(latent) * latent);
    }
    if (n_transposed > 0)
        tile_floats += LINEAR_TILE_MAX / MOEC_TRANSPOSED_ROWS * MOEC_LANES * MOEC_TRANSPOSED_PAD;
    thread->linear.weights = carve_floats(carver, decodes ? tile_floats : 0, 1);
    thread->linear.y = carve_floats(
        carver, larger(MOEC_ENCODED_ROWS, n_transposed * moec_transposed_rows((uint32_t)n_transposed)), 1);
    end = carver->used_bytes > end ? carver->used_bytes : end;

    carver->used_bytes = start;
    thread->mlp.weights = carve_floats(carver, decodes || config->n_expert > 0 ? MOEC_SUM_CHUNK : 0, stride);
    const uint64_t transposed_bytes =
        moec_int8_tiles(sizes->mlp.tile, moec_int8_spans(stride)) * sizeof(struct moec_int8_tile);
    thread->mlp.x =
        carve_floats(carver, larger(sizes->mlp.tile * stride, transposed_bytes / sizeof(float)), 1);
    thread->mlp.y = carve_floats(carver, sizes->mlp.tile, stride);
    thread->mlp.gate = carve_floats(carver, (uint64_t)sizes->mlp.chunks * sizes->mlp.tile, MOEC_SUM_CHUNK);
    thread->mlp.up = carve_floats(carver, sizes->mlp.tile, MOEC_SUM_CHUNK);
    const bool has_exponents = config->mlp.activation == MOEC_ACTIVATION_GELU_TANH ||
                               config->mlp.activation == MOEC_ACTIVATION_CLAMPED_GLU ||
                               (config->mlp.activation == MOEC_ACTIVATION_SILU && config->mlp.plain) ||
                               config->mlp.dense_silu;
    thread->mlp.exponents = carve_floats(carver, has_exponents ? sizes->mlp.tile : 0, MOEC_SUM_CHUNK);
    end = carver->used_bytes > end ? carver->used_bytes : end;

    carver->used_bytes = start;
    carve_attention(carver, config, max_tokens, &thread->attention);
    end = carver->used_bytes > end ? carver->used_bytes : end;

    carver->used_bytes = start;
    uint32_t router_tokens = moec_min_u32(MOEC_ROUTER_TOKENS, max_tokens);
    thread->router.weights = carve_floats(carver, decodes ? MOEC_ROUTER_ROWS : 0, stride);
    thread->router.logits =
        carve_floats(carver, router_tokens, moec_lanes_padded(moec_config_choices(config)));
    thread->router.bias =
        carve_floats(carver, config->router.n_group > 0, moec_lanes_padded(config->n_expert));
    end = carver->used_bytes > end ? carver->used_bytes : end;

    carver->used_bytes = start;
    uint64_t running_floats = 0;
    for (uint32_t i = 0; i < config->n_kind; i++)
        running_floats = larger(running_floats, moec_running_thread_floats(&config->kinds[i]));
    thread->running = carve_floats(carver, running_floats, 1);
    end = carver->used_bytes > end ? carver->used_bytes : end;

    carver->used_bytes = start;
    uint64_t latent_floats = 0;
    for (uint32_t i = 0; i < config->n_kind; i++)
        latent_floats = larger(latent_floats, latent_thread_floats(&config->kinds[i], max_tokens));
    thread->latent = carve_floats(carver, latent_floats, 1);
    end = carver->used_bytes > end ? carver->used_bytes : end;

    carver->used_bytes = start;
    thread->row = carve_floats(carver, 1, stride);
    end = carver->used_bytes > end ? carver->used_bytes : end;
    carver->used_bytes = end;
}

static void carve_groups(struct carver *carver, const struct moec_config *config, uint64_t n_pairs,
                         struct moec_group_scratch *groups)
{
    const uint64_t n_key = MOEC_MOE_FORMS * (uint64_t)config->n_expert;
    groups->pairs = carve(carver, n_pairs, sizeof(uint32_t));
    groups->expert_start = carve(carver, n_key + 2, sizeof(uint32_t));
    groups->active = carve(carver, n_key, sizeof(uint32_t));
    groups->order = carve(carver, n_key, sizeof(uint32_t));
    groups->n_takers = carve(carver, n_key, sizeof(uint32_t));
}

static void carve_rows(struct carver *carver, const struct moec_config *config, uint32_t max_tokens,
                       size_t stride, struct moec_expert_rows *rows)
{
    const bool own_norms = config->mlp.own_norms, scales = config->router.scales_input;
    const bool needs_row =
        config->n_ff_shared > 0 || config->mlp.has_bypass || largest_dense_size(config) > 0;
    rows->ranks = carve_floats(carver, (uint64_t)max_tokens * config->top_k, stride);
    rows->shared = carve_floats(carver, needs_row ? max_tokens : 0, stride);
    rows->router_input = carve_floats(carver, own_norms || scales ? max_tokens : 0, stride);
    rows->shared_input = carve_floats(carver, own_norms ? max_tokens : 0, stride);
}

static void carve_mlp(struct carver *carver, const struct moec_config *config, uint32_t max_tokens,
                      struct moec_scratch *scratch)
{
    const uint64_t n_pairs = (uint64_t)max_tokens * config->top_k;
    struct moec_choice_scratch *choices = &scratch->moe.choices;
    struct moec_gate_scratch *gates = &scratch->moe.gates;
    choices->experts = carve(carver, n_pairs, sizeof(uint32_t));
    choices->weights = carve_floats(carver, n_pairs, 1);
    choices->counted = carve_floats(carver, moec_config_passed_give_input(config) ? n_pairs : 0, 1);
    choices->shared_gate = carve_floats(carver, max_tokens, 1);
    carve_groups(carver, config, n_pairs, &scratch->moe.groups);
    gates->sums = carve_floats(carver, (max_tokens + MOEC_ROUTER_TOKENS - 1) / MOEC_ROUTER_TOKENS,
                               moec_lanes_padded(moec_config_choices(config)));
    gates->lists = carve(carver, (uint64_t)MOEC_GATES_AHEAD * config->n_expert, sizeof *gates->lists);
    carve_rows(carver, config, max_tokens, scratch->stride, &scratch->moe.rows);
    scratch->mlp.partials = carve_floats(carver, scratch->mlp.n_partials, scratch->stride);
}

static void carve_held(struct carver *carver, const struct moec_config *config,
                       struct moec_held_scratch *held)
{
    held->jobs = carve(carver, held->max_jobs, sizeof *held->jobs);
    held->mark_words = (config->n_ff_expert + MOEC_SUM_CHUNK - 1) / MOEC_SUM_CHUNK;
    held->n_kept_up = MOEC_ENCODED_TOKENS * config->top_k;
    held->kept_up = carve(carver, (uint64_t)held->n_kept_up * config->n_ff_expert, sizeof *held->kept_up);
    held->marks = carve(carver, (uint64_t)held->max_jobs * held->mark_words, sizeof *held->marks);
}

static void carve_ropes(struct carver *carver, const struct moec_config *config, uint32_t max_tokens,
                        struct moec_scratch *sizes)
{
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const uint32_t first = moec_config_rope_kind(config, i);
        const bool rotates = config->kinds[i].rope_theta > 0;
        if (first == i && rotates) {
            sizes->mixer.rope[i] = carve_floats(carver, max_tokens, moec_layer_rotary_dim(&config->kinds[i]));
            sizes->mixer.rope_position[i] = carve(carver, max_tokens, sizeof(uint32_t));
        } else {
            sizes->mixer.rope[i] = rotates ? sizes->mixer.rope[first] : NULL;
            sizes->mixer.rope_position[i] = rotates ? sizes->mixer.rope_position[first] : NULL;
        }
    }
}

static void carve_all(struct carver *carver, const struct moec_config *config, uint32_t max_tokens,
                      int n_threads, struct moec_scratch *sizes)
{
    struct moec_scratch *scratch = carve(carver, 1, sizeof *scratch);
    struct moec_thread_scratch *threads = carve(carver, (uint64_t)n_threads, sizeof *threads);
    sizes->threads = threads;
    carve_held(carver, config, &sizes->moe.held);
    sizes->normed = carve_floats(carver, max_tokens, sizes->stride);
    carve_ropes(carver, config, max_tokens, sizes);
    sizes->mixer.row_span = carve(carver, max_tokens, sizeof(uint32_t));
    sizes->moe.last.experts = carve(carver, (uint64_t)max_tokens * config->top_k, sizeof(uint32_t));
    sizes->moe.last.weights = carve_floats(carver, max_tokens, config->top_k);

    uint64_t start = carver->used_bytes;
    sizes->mixer.q = carve_floats(carver, max_tokens, sizes->mixer.q_stride);
    sizes->mixer.own_kv = carve_floats(carver, max_tokens, 2 * largest_rounded_kv(config));
    sizes->transposed.rows = carve_floats(carver, transposed_tokens(max_tokens), sizes->transposed.stride);
    uint64_t attention_end = carver->used_bytes;
    carver->used_bytes = start;
    carve_mlp(carver, config, max_tokens, sizes);
    if (carver->used_bytes < attention_end)
        carver->used_bytes = attention_end;

    for (int thread = 0; thread < n_threads; thread++) {
        struct moec_thread_scratch pieces;
        carve_thread(carver, config, max_tokens, sizes, &pieces);
        if (threads != NULL)
            threads[thread] = pieces;
    }
    if (scratch != NULL)
        *scratch = *sizes;
}

static struct moec_scratch scratch_sizes(const struct moec_config *config, uint32_t max_tokens, int n_threads)
{
    struct moec_scratch sizes = {.stride = moec_forward_stride(config)};
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const struct moec_layer_kind *kind = &config->kinds[i];
        sizes.mixer.q_stride =
            larger(sizes.mixer.q_stride, moec_layer_is_running(kind) ? moec_running_token_floats(kind)
                                         : kind->latent_dim > 0      ? moec_latent_token_floats(kind)
                                                                : moec_lanes_padded(moec_layer_q_dim(kind)));
    }
    sizes.transposed.columns = TRANSPOSED_COLUMNS;
    sizes.transposed.stride = longest_inputs(config, sizes.stride);
    sizes.mlp.tile = moec_min_u32(MOEC_MLP_TILE_MAX, max_tokens);
    sizes.mlp.chunks = sizes.stride >= WIDE_STRIDE ? WIDE_CHUNKS : 1;
    sizes.moe.held.max_jobs = moec_min_u32(config->n_expert, MOEC_HELD_EXPERTS) + 1;
    sizes.mixer.block = ATTENTION_BLOCK;
    sizes.moe.block = moe_block(config, sizes.stride);
    sizes.mlp.n_partials = partial_rows(config, max_tokens, n_threads);
    return sizes;
}

uint64_t moec_scratch_bytes(const struct moec_config *config, uint32_t max_tokens, int n_threads)
{
    struct carver carver = {0};
    struct moec_scratch sizes = scratch_sizes(config, max_tokens, n_threads);
    carve_all(&carver, config, max_tokens, n_threads, &sizes);
    return carver.used_bytes;
}

enum moec_status moec_scratch_create(const struct moec_config *config, uint32_t max_tokens, int n_threads,
                                     struct moec_scratch **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc_pages(&memory, moec_scratch_bytes(config, max_tokens, n_threads),
                              "working memory of the forward pass", err));
    struct carver carver = {.base = memory};
    struct moec_scratch sizes = scratch_sizes(config, max_tokens, n_threads);
    carve_all(&carver, config, max_tokens, n_threads, &sizes);
    for (uint32_t i = 0; i < config->n_kind; i++)
        if (sizes.mixer.rope_position[i] != NULL)
            memset(sizes.mixer.rope_position[i], 0xff, max_tokens * sizeof(uint32_t));
    *out = memory;
    return MOEC_OK;
}
