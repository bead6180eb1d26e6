/* Everything goes to one stream, so steps need no order but the order of their launches. One function of
 * gpu_room.c both counts and carves the working memory. moec_gpu_backend_turn may only carve anew when all
 * of it is idle. An error of a copy that has no way to be reported is kept in `lost`, and the next step
 * reports it. The head works on a few rows at a time, since logits of all would not fit. */
#include "runtime/cuda/gpu_pass.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static struct moec_gpu_backend *of(struct moec_backend *self)
{
    return moec_gpu_backend_self(self);
}

#define BF16_CAPABILITY 80u /* mma of m16n8k16 on BF16 */

/* ---- sizes ---- */

/* Of the tables of all steps of a layer. */
static uint64_t staging_bytes(const struct moec_config *config, uint32_t max_tokens)
{
    return moec_gpu_mixer_staging_bytes(config, max_tokens) + moec_gpu_mlp_staging_bytes(config, max_tokens);
}

static uint64_t given_bytes(const struct moec_config *config)
{
    return (uint64_t)MOEC_COOPERATION_TOKENS * config->top_k * moec_forward_stride(config) * sizeof(float);
}

static uint64_t answer_bytes(const struct moec_config *config, uint32_t max_tokens)
{
    return (moec_gpu_answer_floats(config, max_tokens) + MOEC_GPU_COUNTED +
            MOEC_COOPERATION_TOKENS * moec_forward_stride(config) + moec_gpu_mark_words(config, max_tokens)) *
           sizeof(float);
}

struct moec_gpu_backend_sizes moec_gpu_backend_sizes_of(const struct moec_config *config, uint32_t max_tokens)
{
    struct moec_gpu_room room = {0};
    const uint64_t staged = staging_bytes(config, max_tokens);
    return (struct moec_gpu_backend_sizes){
        .device_bytes = moec_gpu_room_carve(config, max_tokens, NULL, &room) + staged,
        .host_bytes = sizeof(struct moec_gpu_backend) + staged + answer_bytes(config, max_tokens) +
                      max_tokens * sizeof(uint32_t)};
}

/* ---- memory ---- */

static enum moec_status backend_alloc(struct moec_backend *self, uint64_t n_bytes, const char *what,
                                      void **out, struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    void *memory = NULL;
    MOEC_TRY(b->ops->alloc(b->gpu, n_bytes, what, &memory, err));
    const enum moec_status status = b->ops->clear(b->gpu, b->stream, memory, n_bytes, err);
    if (status != MOEC_OK)
        b->ops->free(b->gpu, memory);
    else
        *out = memory;
    return status;
}

static void backend_free(struct moec_backend *self, void *memory)
{
    of(self)->ops->free(of(self)->gpu, memory);
}

static void backend_copy(struct moec_backend *self, void *to, const void *from, uint64_t n_bytes)
{
    struct moec_gpu_backend *b = of(self);
    if (b->lost.status == MOEC_OK && n_bytes > 0)
        b->lost.status = b->ops->copy(
            b->gpu, b->stream, (struct moec_gpu_move){MOEC_GPU_WITHIN, to, from, n_bytes}, &b->lost.words);
}

/* ---- embedding ---- */

static enum moec_status backend_embed(struct moec_backend *self, const uint32_t *tokens, uint32_t n_tok,
                                      float *hidden, struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    const void *ids = NULL;
    if (b->lost.status != MOEC_OK)
        return moec_fail(err, b->lost.status, "%s", b->lost.words.message);
    MOEC_TRY(moec_gpu_staging_begin(&b->staging, moec_gpu_staging_piece_bytes(n_tok * sizeof *tokens), err));
    MOEC_TRY(moec_gpu_staging_put(&b->staging, tokens, n_tok * sizeof *tokens, &ids, err));
    const struct moec_cuda_lookup step = {.matrix = moec_gpu_matrix(&b->model->embedding.first),
                                          .rest = moec_gpu_matrix(&b->model->embedding.rest),
                                          .n_first = b->model->embedding.first.rows,
                                          .ids = ids,
                                          .n = n_tok,
                                          .scale = b->config->scale.embedding,
                                          .out = moec_gpu_rows(hidden, b->strides.row)};
    b->kernels->lookup(b->stream, &step);
    moec_gpu_clear_late(b, n_tok, hidden);
    return moec_gpu_check(b, err);
}

/* ---- the head ---- */

static void scale_normed(const struct moec_gpu_backend *b, uint32_t n_tok, float factor)
{
    const struct moec_cuda_scaling step = {.x = moec_gpu_rows(b->room.inputs.normed, b->strides.row),
                                           .n_tok = n_tok,
                                           .n = b->config->n_embd,
                                           .factor = factor};
    b->kernels->scaling(b->stream, &step);
}

/* What the head multiplies, to room.normed. */
static void norm_outputs(struct moec_gpu_backend *b, uint32_t n_tok, const float *hidden)
{
    const struct moec_config *config = b->config;
    const struct moec_cuda_rows normed = moec_gpu_rows(b->room.inputs.normed, b->strides.row);
    if (config->head.projects_output) {
        moec_gpu_multiply(
            b, (struct moec_gpu_dense){&b->model->output_projection, b->model->output_projection_bias}, n_tok,
            moec_gpu_rows(hidden, b->strides.row), normed, MOEC_CUDA_SILU);
        moec_gpu_pad(b, n_tok, config->n_embd, normed);
    } else {
        moec_gpu_norm(b, b->model->final_norm, n_tok, hidden, b->room.inputs.normed);
    }
    if (config->head.is_scaled)
        scale_normed(b, n_tok, (float)(1 / sqrt((double)config->n_embd)));
    if (config->scale.logit_divisor != 0)
        scale_normed(b, n_tok, 1.0f / config->scale.logit_divisor);
}

/* Logits of a few rows for the tokens of one of the head's matrices, from token `token` on, to room.logits. */
static void multiply_part(struct moec_gpu_backend *b, const struct moec_matrix *part, uint32_t token,
                          uint32_t first, uint32_t n)
{
    const struct moec_cuda_product step = {
        .matrix = moec_gpu_matrix(part),
        .n_rows = part->rows,
        .n_tok = n,
        .x = {.first = b->room.inputs.normed + first * b->strides.row, .stride = b->strides.row},
        .y = {.bias = b->model->head_bias != NULL ? b->model->head_bias + token : NULL,
              .rows = moec_gpu_rows(b->room.logits + token, b->config->n_vocab),
              .sink = b->config->scale.logit_cap > 0 ? MOEC_CUDA_CAP : MOEC_CUDA_STORE,
              .cap = b->config->scale.logit_cap},
        .rounded = b->rounded.rows};
    b->kernels->product(b->stream, &step);
}

/* Logits of a few rows, to room.logits. */
static void multiply_head(struct moec_gpu_backend *b, uint32_t first, uint32_t n)
{
    const struct moec_token_rows *head = &b->model->head;
    multiply_part(b, &head->first, 0, first, n);
    if (head->rest.rows > 0)
        multiply_part(b, &head->rest, head->first.rows, first, n);
}

/* A few rows at a time, which come to the process before they go to their places. */
static enum moec_status backend_head(struct moec_backend *self, uint32_t n_tok, const float *hidden,
                                     float *logits, size_t logits_stride, struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    const size_t n_vocab = b->config->n_vocab;
    uint32_t n = 0;
    norm_outputs(b, n_tok, hidden);
    for (uint32_t done = 0; done < n_tok; done += n) {
        n = n_tok - done < MOEC_GPU_HEAD_ROWS ? n_tok - done : MOEC_GPU_HEAD_ROWS;
        multiply_head(b, done, n);
        MOEC_TRY(moec_gpu_answer(b, n * n_vocab, err));
        for (uint32_t i = 0; i < n; i++)
            memcpy(logits + (done + i) * logits_stride, b->memory.answers + i * n_vocab,
                   n_vocab * sizeof(float));
    }
    return MOEC_OK;
}

static enum moec_status backend_choose(struct moec_backend *self, const float *hidden,
                                       const struct moec_draw *how, struct moec_chosen *chosen,
                                       struct moec_error *err)
{
    struct moec_gpu_backend *b = of(self);
    const struct moec_cuda_draw step = {
        .logits = b->room.logits, .n = b->config->n_vocab, .how = *how, .room = b->room.draw};
    norm_outputs(b, 1, hidden);
    multiply_head(b, 0, 1);
    b->kernels->draw(b->stream, &step);
    MOEC_TRY(moec_gpu_check(b, err));
    MOEC_TRY(b->ops->copy(
        b->gpu, b->stream,
        (struct moec_gpu_move){MOEC_GPU_TO_HOST, b->memory.answers, &b->room.draw->chosen, sizeof *chosen},
        err));
    MOEC_TRY(moec_gpu_answer(b, 0, err));
    memcpy(chosen, b->memory.answers, sizeof *chosen);
    return MOEC_OK;
}

/* ---- creation ---- */

static void set_model(struct moec_gpu_backend *b, const struct moec_gpu_model *model, uint32_t max_tokens)
{
    const struct moec_config *config = &model->model->config;
    b->model = model;
    b->config = config;
    b->stream = model->stream;
    b->max_tokens = max_tokens;
    b->strides.row = moec_forward_stride(config);
    b->strides.mixer = moec_gpu_mixer_stride(config);
    b->strides.h = moec_lanes_padded(moec_gpu_most_neurons(config));
    b->strides.logits = moec_lanes_padded(moec_config_choices(config));
    b->positions.n = 0;
}

static enum moec_status create(struct moec_gpu_backend *b, struct moec_error *err)
{
    const uint64_t n_bytes = moec_gpu_room_carve(b->config, b->max_tokens, NULL, &b->room);
    b->memory.room_bytes = n_bytes;
    b->memory.answer_bytes = answer_bytes(b->config, b->max_tokens);
    MOEC_TRY(moec_alloc((void **)&b->positions.of, b->max_tokens, sizeof *b->positions.of, "positions", err));
    MOEC_TRY(b->ops->alloc(b->gpu, n_bytes, "working memory", (void **)&b->memory.room, err));
    (void)moec_gpu_room_carve(b->config, b->max_tokens, b->memory.room, &b->room);
    MOEC_TRY(
        b->ops->clear(b->gpu, b->stream, b->room.mlp.n_active, MOEC_GPU_COUNTED * sizeof(uint32_t), err));
    MOEC_TRY(
        b->ops->alloc_pinned(b->gpu, b->memory.answer_bytes, "logits", (void **)&b->memory.answers, err));
    if (b->cooperates)
        MOEC_TRY(b->ops->alloc_pinned(b->gpu, given_bytes(b->config), "experts of the processor",
                                      (void **)&b->memory.given, err));
    return moec_gpu_staging_create(b->gpu, b->stream, staging_bytes(b->config, b->max_tokens), &b->staging,
                                   err);
}

enum moec_status moec_gpu_backend_create(const struct moec_gpu_model *model,
                                         const struct moec_gpu_kernels *kernels, uint32_t max_tokens,
                                         bool cooperates, struct moec_gpu_backend **out,
                                         struct moec_error *err)
{
    static const struct moec_backend_ops ops = {.alloc = backend_alloc,
                                                .free = backend_free,
                                                .copy = backend_copy,
                                                .embed = backend_embed,
                                                .attention = moec_gpu_attention,
                                                .encoded = moec_gpu_encoded,
                                                .keys = moec_gpu_keys,
                                                .cross_keys = moec_gpu_cross_keys,
                                                .cross = moec_gpu_cross,
                                                .dense = moec_gpu_dense,
                                                .norm = moec_gpu_norm_inputs,
                                                .score = moec_gpu_score,
                                                .scale = moec_gpu_scale,
                                                .experts = moec_gpu_run_experts,
                                                .mark = moec_gpu_mark,
                                                .give = moec_gpu_give,
                                                .shared = moec_gpu_shared,
                                                .combine = moec_gpu_combine,
                                                .head = backend_head,
                                                .choose = backend_choose};
    struct moec_gpu_backend *b = NULL;
    MOEC_TRY(moec_alloc((void **)&b, 1, sizeof *b, "a backend", err));
    *b = (struct moec_gpu_backend){.backend = {.ops = &ops},
                                   .kernels = kernels,
                                   .gpu = model->gpu,
                                   .ops = model->gpu->ops,
                                   .cooperates = cooperates};
    set_model(b, model, max_tokens);
    const enum moec_status status = create(b, err);
    if (status != MOEC_OK) {
        moec_gpu_backend_free(b);
        return status;
    }
    *out = b;
    return MOEC_OK;
}

static void release(struct moec_gpu_backend *b)
{
    moec_gpu_staging_release(&b->staging);
    b->ops->free_pinned(b->gpu, b->memory.answers);
    b->ops->free_pinned(b->gpu, b->memory.given);
    b->ops->free(b->gpu, b->memory.room);
    b->ops->free(b->gpu, b->rounded.memory);
    free(b->positions.of);
    b->memory.answers = NULL;
    b->memory.given = NULL;
    b->memory.room = NULL;
    b->rounded.memory = NULL;
    b->positions.of = NULL;
}

/* Whether the working memory serves this model too. */
static bool has_room(const struct moec_gpu_backend *b, const struct moec_gpu_model *model)
{
    struct moec_gpu_room room = {0};
    const struct moec_config *config = &model->model->config;
    return !b->cooperates &&
           moec_gpu_room_carve(config, b->max_tokens, NULL, &room) <= b->memory.room_bytes &&
           staging_bytes(config, b->max_tokens) <= b->staging.n_bytes &&
           answer_bytes(config, b->max_tokens) <= b->memory.answer_bytes;
}

enum moec_status moec_gpu_backend_turn(struct moec_gpu_backend *b, const struct moec_gpu_model *model,
                                       uint32_t max_tokens, struct moec_error *err)
{
    if (model == b->model && max_tokens <= b->max_tokens)
        return MOEC_OK;
    MOEC_TRY(moec_gpu_answer(b, 0, err));
    b->rounded.rows = NULL;
    if (max_tokens > b->max_tokens || !has_room(b, model)) {
        release(b);
        set_model(b, model, max_tokens);
        return create(b, err);
    }
    set_model(b, model, b->max_tokens);
    memset(&b->room, 0, sizeof b->room);
    (void)moec_gpu_room_carve(b->config, b->max_tokens, b->memory.room, &b->room);
    b->staging.stream = b->stream;
    return b->ops->clear(b->gpu, b->stream, b->room.mlp.n_active, MOEC_GPU_COUNTED * sizeof(uint32_t), err);
}

enum moec_status moec_gpu_check_arithmetic(const struct moec_gpu_info *info, enum moec_arithmetic arithmetic,
                                           struct moec_error *err)
{
    const uint32_t has = info->capability;
    if (arithmetic == MOEC_ARITHMETIC_INT8)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "the int8 arithmetic does not run on a device yet: choose 'canonical' or 'bf16', or leave out "
            "the device");
    if (arithmetic != MOEC_ARITHMETIC_BF16 || has >= BF16_CAPABILITY)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "the device '%s' has compute capability %" PRIu32 ".%" PRIu32
                     ", but the arithmetic 'bf16' needs %u.%u: choose 'canonical'",
                     info->name, has / 10, has % 10, BF16_CAPABILITY / 10, BF16_CAPABILITY % 10);
}

uint64_t moec_gpu_backend_bf16_bytes(const struct moec_config *config, uint32_t max_tokens)
{
    return moec_cuda_rounded((uint32_t)moec_gpu_mixer_stride(config), max_tokens) * sizeof(uint16_t);
}

enum moec_status moec_gpu_backend_use_bf16(struct moec_gpu_backend *b, struct moec_error *err)
{
    const uint64_t n_bytes = moec_gpu_backend_bf16_bytes(b->config, b->max_tokens);
    if (b->rounded.memory == NULL || b->rounded.n_bytes < n_bytes) {
        b->ops->free(b->gpu, b->rounded.memory);
        b->rounded.memory = NULL;
        MOEC_TRY(b->ops->alloc(b->gpu, n_bytes, "inputs in the arithmetic bf16", (void **)&b->rounded.memory,
                               err));
        b->rounded.n_bytes = n_bytes;
    }
    b->rounded.rows = b->rounded.memory;
    return MOEC_OK;
}

void moec_gpu_backend_use_canonical(struct moec_gpu_backend *b)
{
    b->rounded.rows = NULL;
}

void moec_gpu_backend_free(struct moec_gpu_backend *b)
{
    if (b == NULL)
        return;
    if (b->memory.answers == NULL || moec_gpu_answer(b, 0, NULL) != MOEC_OK)
        (void)b->ops->finish(b->gpu, b->stream, NULL);
    release(b);
    free(b);
}

struct moec_backend *moec_gpu_backend_of(struct moec_gpu_backend *backend)
{
    return &backend->backend;
}
