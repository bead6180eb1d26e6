/* One walk over all vectors counts them first and copies them second, so the memory is exactly what the walk
 * takes. The model's structs are copied and their pointers moved: matrices to the same offset in the
 * device's blob, vectors to their place in the walk. moec_gpu_model_bytes is an upper bound by dimensions
 * alone, for plans made before the model is there. A field that is added to a layer must be in all three. */
#include "runtime/cuda/gpu_model.h"

#include "formats/base/memory.h"
#include "runtime/forward/weights/position_bias.h"
#include "runtime/kernels/kernels.h"

#include <string.h>

/* ---- vectors ---- */

/* A walk over the vectors: with `model` NULL it only counts them. */
struct walk {
    struct moec_gpu_model *model;
    struct moec_gpu_transfer *transfer;
    uint64_t n_floats;
    struct moec_error *err;
};

/* A vector of n floats, or NULL, whose copy has its place in the device's memory; what is there takes the
 * place of the process's. */
static enum moec_status take(struct walk *walk, uint64_t n, float **vector)
{
    const uint64_t n_padded = moec_lanes_padded(n);
    if (*vector == NULL)
        return MOEC_OK;
    if (walk->model != NULL) {
        float *to = walk->model->vectors + walk->n_floats;
        MOEC_TRY(moec_gpu_transfer_up(walk->transfer, to, *vector, n_padded * sizeof(float), walk->err));
        *vector = to;
    }
    walk->n_floats += n_padded;
    return MOEC_OK;
}

/* A norm of the model's layers, with its biases behind it. */
static uint64_t norm_floats(const struct moec_config *config)
{
    return (config->layer_norm ? moec_lanes_padded(config->n_embd) : 0) + config->n_embd;
}

static enum moec_status take_mixer(struct walk *walk, const struct moec_layer_kind *kind,
                                   struct moec_layer *layer)
{
    const uint64_t q_dim = moec_layer_q_dim(kind), kv_dim = moec_layer_kv_dim(kind),
                   n_channel = moec_layer_is_running(kind) ? moec_layer_channels(kind) : 0;
    struct {
        float **vector;
        uint64_t n;
    } all[] = {
        {&layer->q_bias, q_dim},
        {&layer->k_bias, kv_dim},
        {&layer->v_bias, kv_dim},
        {&layer->q_norm, moec_layer_norm_dim(kind, kind->n_head)},
        {&layer->k_norm, moec_layer_norm_dim(kind, kind->n_kv_head)},
        {&layer->v_norm, kind->head_dim},
        {&layer->sinks, kind->n_head},
        {&layer->q_down_norm, kind->q_latent_dim},
        {&layer->kv_down_norm, kind->latent_dim},
        {&layer->convolution, kind->conv_size * moec_lanes_padded(n_channel)},
        {&layer->convolution_bias, n_channel},
        {&layer->decay_log, kind->n_head},
        {&layer->decay_bias, moec_layer_decays(kind)},
        {&layer->delta_norm, moec_layer_state_norm(kind)},
        {&layer->skip, kind->n_head},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        MOEC_TRY(take(walk, all[i].n, all[i].vector));
    return MOEC_OK;
}

static enum moec_status take_layer(struct walk *walk, const struct moec_config *config, uint32_t at,
                                   struct moec_layer *layer)
{
    float **norms[] = {&layer->attention_norm, &layer->mlp_norm, &layer->attention_post_norm,
                       &layer->mlp_post_norm};
    float **others[] = {&layer->o_bias,      &layer->shared_expert_gate, &layer->router_norm,
                        &layer->expert_norm, &layer->expert_post_norm,   &layer->shared_post_norm,
                        &layer->cross_norm};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        MOEC_TRY(take(walk, norm_floats(config), norms[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        MOEC_TRY(take(walk, config->n_embd, others[i]));
    return take_mixer(walk, moec_config_layer(config, at), layer);
}

/* Biases of one projection, an expert's behind the one before, as F32. */
static enum moec_status take_biases(struct walk *walk, const struct moec_matrix *from, float **to,
                                    size_t *stride)
{
    void *row = NULL;
    enum moec_status status = MOEC_OK;
    *stride = moec_lanes_padded(from->columns);
    if (from->rows == 0)
        return MOEC_OK;
    if (walk->model == NULL) {
        walk->n_floats += from->rows * *stride;
        return MOEC_OK;
    }
    MOEC_TRY(moec_alloc(&row, *stride, sizeof(float), "a bias of an MLP", walk->err));
    *to = walk->model->vectors + walk->n_floats;
    for (uint32_t r = 0; r < from->rows && status == MOEC_OK; r++) {
        float *vector = row;
        moec_codec_decode_row(from->codec, from->data + r * from->stride_bytes, from->columns, vector);
        status = take(walk, from->columns, &vector);
    }
    free(row);
    return status;
}

static enum moec_status take_layer_biases(struct walk *walk, const struct moec_layer *layer,
                                          struct moec_gpu_biases *biases)
{
    const struct moec_matrix *from = layer->is_moe ? layer->expert_biases : layer->dense.biases;
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
        MOEC_TRY(take_biases(walk, &from[p], &biases->at[p], &biases->stride[p]));
    return MOEC_OK;
}

/* On copies of the model's pointers; biases of MLPs are the model's until they are taken. */
static enum moec_status take_all(struct walk *walk, struct moec_gpu_model *model)
{
    const struct moec_config *config = &model->model->config;
    for (uint32_t at = 0; at < config->n_layer; at++) {
        MOEC_TRY(take_layer(walk, config, at, &model->layers[at]));
        MOEC_TRY(take_layer_biases(walk, &model->model->layers[at], &model->biases[at]));
    }
    for (int stack = MOEC_STACK_ENCODER; config->position.n_bucket > 0 && stack <= MOEC_STACK_DECODER;
         stack++)
        MOEC_TRY(take(walk,
                      moec_config_layer(config, 0)->n_head *
                          moec_position_bias_width(config, (enum moec_stack)stack),
                      &model->position_bias[stack]));
    MOEC_TRY(take(walk, norm_floats(config), &model->final_norm));
    MOEC_TRY(take(walk, config->n_embd, &model->encoder_norm));
    MOEC_TRY(take(walk, config->n_embd, &model->output_projection_bias));
    return take(walk, config->n_vocab, &model->head_bias);
}

/* ---- matrices ---- */

static void move_matrix(const struct moec_gpu_model *model, struct moec_matrix *matrix)
{
    if (matrix->rows > 0)
        matrix->data = model->blob + (matrix->data - model->model->dense.blob);
}

static void move_mlp(const struct moec_gpu_model *model, struct moec_mlp *mlp)
{
    move_matrix(model, &mlp->gate);
    move_matrix(model, &mlp->up);
    move_matrix(model, &mlp->down);
}

static void move_matrices(struct moec_gpu_model *model)
{
    for (uint32_t at = 0; at < model->model->config.n_layer; at++) {
        struct moec_layer *layer = &model->layers[at];
        struct moec_matrix *matrices[] = {&layer->q,
                                          &layer->k,
                                          &layer->v,
                                          &layer->o,
                                          &layer->output_gate,
                                          &layer->router,
                                          &layer->q_down,
                                          &layer->kv_down,
                                          &layer->kv_up,
                                          &layer->input_gate,
                                          &layer->delta_rate,
                                          &layer->delta_decay,
                                          &layer->cross_q,
                                          &layer->cross_k,
                                          &layer->cross_v,
                                          &layer->cross_o,
                                          &layer->positions,
                                          &layer->bypass,
                                          &layer->delta_decay_down,
                                          &layer->output_gate_down};
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
            move_matrix(model, matrices[i]);
        move_mlp(model, &layer->shared);
        move_mlp(model, &layer->dense);
    }
    move_matrix(model, &model->embedding.first);
    move_matrix(model, &model->embedding.rest);
    move_matrix(model, &model->head.first);
    move_matrix(model, &model->head.rest);
    move_matrix(model, &model->output_projection);
}

/* ---- creation ---- */

static uint64_t scale_bytes(const struct moec_sparsity *sparsity)
{
    uint64_t n = 0;
    if (sparsity != NULL)
        (void)moec_sparsity_scales(sparsity, &n);
    return n * sizeof(uint16_t);
}

static enum moec_status upload_all(struct moec_gpu_model *model, struct moec_gpu_transfer *transfer,
                                   struct moec_error *err)
{
    const struct moec_dense *dense = &model->model->dense;
    struct walk fill = {.model = model, .transfer = transfer, .err = err};
    uint64_t n_scale = 0;
    MOEC_TRY(take_all(&fill, model));
    MOEC_TRY(moec_gpu_transfer_up(transfer, model->blob, dense->blob, dense->blob_bytes, err));
    if (model->scales != NULL)
        MOEC_TRY(moec_gpu_transfer_up(transfer, model->scales,
                                      moec_sparsity_scales(model->sparsity, &n_scale),
                                      scale_bytes(model->sparsity), err));
    move_matrices(model);
    return model->gpu->ops->finish(model->gpu, model->stream, err);
}

static enum moec_status fill(struct moec_gpu_model *model, struct moec_error *err)
{
    struct moec_gpu_transfer transfer;
    MOEC_TRY(moec_gpu_transfer_create(model->gpu, model->stream, &transfer, err));
    const enum moec_status status = upload_all(model, &transfer, err);
    moec_gpu_transfer_release(&transfer);
    return status;
}

/* The model's pointers, which become the device's one by one. */
static enum moec_status copy_pointers(struct moec_gpu_model *model, struct moec_error *err)
{
    const struct moec_model *from = model->model;
    const uint32_t n_layer = from->config.n_layer;
    MOEC_TRY(moec_alloc((void **)&model->layers, n_layer, sizeof *model->layers, "layers on a device", err));
    MOEC_TRY(moec_alloc((void **)&model->biases, n_layer, sizeof *model->biases, "layers on a device", err));
    memcpy(model->layers, from->layers, n_layer * sizeof *model->layers);
    model->embedding = from->embedding;
    model->head = from->head;
    model->output_projection = from->output_projection;
    model->final_norm = from->final_norm;
    model->head_bias = from->head_bias;
    model->output_projection_bias = from->output_projection_bias;
    model->encoder_norm = from->encoder_norm;
    memcpy(model->position_bias, from->position_bias, sizeof model->position_bias);
    return MOEC_OK;
}

static enum moec_status create(struct moec_gpu_model *model, struct moec_error *err)
{
    const struct moec_gpu_ops *ops = model->gpu->ops;
    const struct moec_dense *dense = &model->model->dense;
    struct walk count = {.err = err};
    MOEC_TRY(copy_pointers(model, err));
    MOEC_TRY(take_all(&count, model));
    MOEC_TRY(ops->stream_create(model->gpu, &model->stream, err));
    MOEC_TRY(ops->alloc(model->gpu, dense->blob_bytes, "dense weights", (void **)&model->blob, err));
    MOEC_TRY(ops->alloc(model->gpu, count.n_floats * sizeof(float), "norms and biases",
                        (void **)&model->vectors, err));
    if (scale_bytes(model->sparsity) > 0)
        MOEC_TRY(ops->alloc(model->gpu, scale_bytes(model->sparsity), "scales of neurons",
                            (void **)&model->scales, err));
    return fill(model, err);
}

/* Floats of biases of a layer's MLPs, at most. */
static uint64_t bias_floats(const struct moec_config *config, const struct moec_layer_kind *kind)
{
    const uint64_t n_expert = kind->is_moe ? config->n_expert : 1,
                   n_ff = kind->is_moe ? config->n_ff_expert : kind->n_ff_dense;
    const bool has_biases = kind->is_moe ? config->mlp.expert_bias : config->mlp.dense_bias;
    return has_biases ? n_expert * (2 * moec_lanes_padded(n_ff) + moec_lanes_padded(config->n_embd)) : 0;
}

/* Floats of a layer's other vectors, at most: lanes that they are padded with, norms, what mixers have. */
static uint64_t vector_floats(const struct moec_config *config, const struct moec_layer_kind *kind)
{
    const uint64_t n_channel = moec_layer_is_running(kind) ? moec_layer_channels(kind) : 0;
    const uint64_t n_norm = config->norms == MOEC_NORMS_AROUND ? 4 : 2, n_own = config->mlp.own_norms ? 4 : 0;
    const uint64_t norms = n_norm * norm_floats(config) + (n_own + 3) * config->n_embd;
    const uint64_t running = n_channel == 0 ? 0
                                            : (kind->conv_size + (uint64_t)1) * moec_lanes_padded(n_channel) +
                                                  moec_layer_decays(kind) + moec_layer_state_norm(kind);
    return (uint64_t)32 * MOEC_LANES + norms + 2 * moec_layer_q_dim(kind) + 3 * moec_layer_kv_dim(kind) +
           3 * (uint64_t)kind->n_head + kind->head_dim + kind->q_latent_dim + kind->latent_dim + running;
}

uint64_t moec_gpu_model_bytes(const struct moec_config *config, uint64_t dense_bytes,
                              const struct moec_sparsity *sparsity)
{
    uint64_t n_floats = norm_floats(config) + 2 * (uint64_t)config->n_embd + config->n_vocab +
                        moec_position_bias_floats(config) + (uint64_t)8 * MOEC_LANES;
    for (uint32_t at = 0; at < config->n_layer; at++)
        n_floats += vector_floats(config, moec_config_layer(config, at)) +
                    bias_floats(config, moec_config_layer(config, at));
    return dense_bytes + n_floats * sizeof(float) + scale_bytes(sparsity);
}

enum moec_status moec_gpu_model_create(struct moec_gpu *gpu, const struct moec_model *model,
                                       struct moec_sparsity *sparsity, struct moec_gpu_model **out,
                                       struct moec_error *err)
{
    struct moec_gpu_model *made = NULL;
    if (model->dense.blob == NULL)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "a model whose dense weights are streamed from storage cannot run on a GPU: give the run enough "
            "memory for all dense weights");
    MOEC_TRY(moec_alloc((void **)&made, 1, sizeof *made, "a model on a device", err));
    made->model = model;
    made->gpu = gpu;
    made->sparsity = sparsity;
    const enum moec_status status = create(made, err);
    if (status != MOEC_OK) {
        moec_gpu_model_free(made);
        return status;
    }
    *out = made;
    return MOEC_OK;
}

void moec_gpu_model_keep_all(struct moec_gpu_model *model)
{
    model->gpu->ops->free(model->gpu, model->scales);
    model->scales = NULL;
    model->sparsity = NULL;
}

enum moec_status moec_gpu_model_leave_out(struct moec_gpu_model *model, struct moec_gpu_transfer *transfer,
                                          struct moec_sparsity *sparsity, struct moec_error *err)
{
    const struct moec_gpu_ops *ops = model->gpu->ops;
    const uint64_t n_bytes = scale_bytes(sparsity);
    uint64_t n_scale = 0;
    moec_gpu_model_keep_all(model);
    if (n_bytes > 0) {
        MOEC_TRY(ops->alloc(model->gpu, n_bytes, "scales of neurons", (void **)&model->scales, err));
        MOEC_TRY(moec_gpu_transfer_up(transfer, model->scales, moec_sparsity_scales(sparsity, &n_scale),
                                      n_bytes, err));
    }
    model->sparsity = sparsity;
    return MOEC_OK;
}

void moec_gpu_model_free(struct moec_gpu_model *model)
{
    if (model == NULL)
        return;
    const struct moec_gpu_ops *ops = model->gpu->ops;
    ops->free(model->gpu, model->blob);
    ops->free(model->gpu, model->vectors);
    ops->free(model->gpu, model->scales);
    ops->stream_free(model->gpu, model->stream);
    free(model->layers);
    free(model->biases);
    free(model);
}
