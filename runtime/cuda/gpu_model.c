#include "runtime/cuda/gpu_model.h"

#include "formats/base/memory.h"
#include "runtime/kernels/kernels.h"

#include <string.h>

#define PIECE_BYTES ((uint64_t)4 << 20) /* of a copy; two pieces are under way */

/* ---- what can run ---- */

static enum moec_status refuse(const struct moec_config *config, const char *what, struct moec_error *err)
{
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "a model of family '%s' cannot run on a device yet: it has %s; run it on the CPU",
                     config->family, what);
}

static const char *layer_beyond(const struct moec_layer_kind *kind)
{
    if (moec_layer_is_running(kind))
        return "layers with running states (convolution, delta rule or state space)";
    if (kind->mixer != MOEC_MIXER_ATTENTION || kind->no_mlp)
        return "layers without attention or without an MLP";
    if (kind->latent_dim > 0)
        return "latent attention";
    if (kind->routes_by_token)
        return "layers that route by token";
    if (kind->v_norm || kind->keys_are_values)
        return "values that are normed or are the keys";
    if (kind->chunk > 0 || kind->qk_norm == MOEC_QK_NORM_PLAIN_AFTER)
        return "attention in chunks, or norms of queries and keys without weights";
    if (kind->adds_positions)
        return "learned positions";
    return NULL;
}

enum moec_status moec_gpu_model_check(const struct moec_config *config, struct moec_error *err)
{
    const char *beyond = NULL;
    if (moec_config_is_encoder_decoder(config))
        beyond = "an encoder";
    else if (config->n_bucket > 0)
        beyond = "biases of relative positions";
    else if (config->layer_norm)
        beyond = "LayerNorms";
    else if (config->norms != MOEC_NORMS_BEFORE)
        beyond = "norms after attention and MLPs";
    else if (config->own_norms || config->layer_scale)
        beyond = "norms of the router's and the experts' own";
    else if (config->expert_bias)
        beyond = "biases of experts";
    else if (config->has_bypass || config->projects_output || config->dense_bias || config->dense_silu ||
             config->full_keeps_input)
        beyond = "a bypass of the experts, a projection before the head or MLPs unlike the experts";
    else if (config->router_scales_input)
        beyond = "a router that scales what experts read";
    else if (config->query_growth != 0)
        beyond = "queries that grow with their position";
    for (uint32_t i = 0; i < config->n_kind && beyond == NULL; i++)
        beyond = layer_beyond(&config->kinds[i]);
    return beyond == NULL ? MOEC_OK : refuse(config, beyond, err);
}

/* ---- copying ---- */

/* Copies from the process's memory by way of two pinned pieces, one of which is filled while the other is
 * read. */
struct upload {
    struct moec_gpu_model *model;
    const struct moec_gpu_ops *ops;
    struct moec_gpu *gpu;
    uint8_t *pieces;
    struct moec_gpu_event *done[2];
    uint32_t next;
};

static enum moec_status upload_bytes(struct upload *upload, void *to, const void *from, uint64_t n_bytes,
                                     struct moec_error *err)
{
    for (uint64_t done = 0; done < n_bytes;) {
        const uint64_t n = n_bytes - done < PIECE_BYTES ? n_bytes - done : PIECE_BYTES;
        uint8_t *piece = upload->pieces + upload->next * PIECE_BYTES;
        struct moec_gpu_event *event = upload->done[upload->next];
        MOEC_TRY(upload->ops->finish_event(upload->gpu, event, err));
        memcpy(piece, (const uint8_t *)from + done, n);
        MOEC_TRY(upload->ops->copy(upload->gpu, upload->model->stream, MOEC_GPU_TO_DEVICE,
                                   (uint8_t *)to + done, piece, n, err));
        MOEC_TRY(upload->ops->record(upload->gpu, upload->model->stream, event, err));
        upload->next = 1 - upload->next;
        done += n;
    }
    return MOEC_OK;
}

/* ---- vectors ---- */

/* A walk over the vectors: with `upload` NULL it only counts them. */
struct walk {
    struct upload *upload;
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
    if (walk->upload != NULL) {
        float *to = walk->upload->model->vectors + walk->n_floats;
        MOEC_TRY(upload_bytes(walk->upload, to, *vector, n_padded * sizeof(float), walk->err));
        *vector = to;
    }
    walk->n_floats += n_padded;
    return MOEC_OK;
}

static enum moec_status take_layer(struct walk *walk, const struct moec_config *config, uint32_t at,
                                   struct moec_layer *layer)
{
    const struct moec_layer_kind *kind = moec_config_layer(config, at);
    const uint64_t q_dim = moec_layer_q_dim(kind), kv_dim = moec_layer_kv_dim(kind);
    struct {
        float **vector;
        uint64_t n;
    } all[] = {
        {&layer->attention_norm, config->n_embd},
        {&layer->mlp_norm, config->n_embd},
        {&layer->q_bias, q_dim},
        {&layer->k_bias, kv_dim},
        {&layer->v_bias, kv_dim},
        {&layer->o_bias, config->n_embd},
        {&layer->q_norm, moec_layer_norm_dim(kind, kind->n_head)},
        {&layer->k_norm, moec_layer_norm_dim(kind, kind->n_kv_head)},
        {&layer->sinks, kind->n_head},
        {&layer->shared_expert_gate, config->n_embd},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        MOEC_TRY(take(walk, all[i].n, all[i].vector));
    return MOEC_OK;
}

/* On copies of the model's pointers. */
static enum moec_status take_all(struct walk *walk, const struct moec_config *config,
                                 struct moec_layer *layers, float **final_norm, float **head_bias)
{
    for (uint32_t at = 0; at < config->n_layer; at++)
        MOEC_TRY(take_layer(walk, config, at, &layers[at]));
    MOEC_TRY(take(walk, config->n_embd, final_norm));
    return take(walk, config->n_vocab, head_bias);
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
        struct moec_matrix *matrices[] = {&layer->q, &layer->k,           &layer->v,
                                          &layer->o, &layer->output_gate, &layer->router};
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
            move_matrix(model, matrices[i]);
        move_mlp(model, &layer->shared);
        move_mlp(model, &layer->dense);
    }
    move_matrix(model, &model->embedding);
    move_matrix(model, &model->head);
}

/* ---- creation ---- */

static enum moec_status upload_all(struct moec_gpu_model *model, struct upload *upload,
                                   struct moec_error *err)
{
    const struct moec_config *config = &model->model->config;
    struct walk fill = {.upload = upload, .err = err};
    MOEC_TRY(upload->ops->alloc_pinned(upload->gpu, 2 * PIECE_BYTES, "copies of the dense weights",
                                       (void **)&upload->pieces, err));
    for (int i = 0; i < 2; i++)
        MOEC_TRY(upload->ops->event_create(upload->gpu, &upload->done[i], err));
    MOEC_TRY(take_all(&fill, config, model->layers, &model->final_norm, &model->head_bias));
    MOEC_TRY(
        upload_bytes(upload, model->blob, model->model->dense.blob, model->model->dense.blob_bytes, err));
    move_matrices(model);
    return upload->ops->finish(upload->gpu, model->stream, err);
}

static enum moec_status fill(struct moec_gpu_model *model, struct moec_error *err)
{
    const struct moec_gpu_ops *ops = model->gpu->ops;
    struct upload upload = {.model = model, .ops = ops, .gpu = model->gpu};
    const enum moec_status status = upload_all(model, &upload, err);
    if (status != MOEC_OK) /* what is under way reads the pieces */
        (void)ops->finish(model->gpu, model->stream, NULL);
    ops->free_pinned(model->gpu, upload.pieces);
    for (int i = 0; i < 2; i++)
        ops->event_free(model->gpu, upload.done[i]);
    return status;
}

/* The model's pointers, which become the device's one by one. */
static enum moec_status copy_pointers(struct moec_gpu_model *model, struct moec_error *err)
{
    const struct moec_model *from = model->model;
    const uint32_t n_layer = from->config.n_layer;
    MOEC_TRY(moec_alloc((void **)&model->layers, n_layer, sizeof *model->layers, "layers on a device", err));
    memcpy(model->layers, from->layers, n_layer * sizeof *model->layers);
    model->embedding = from->embedding;
    model->head = from->head;
    model->final_norm = from->final_norm;
    model->head_bias = from->head_bias;
    return MOEC_OK;
}

static enum moec_status create(struct moec_gpu_model *model, struct moec_error *err)
{
    const struct moec_gpu_ops *ops = model->gpu->ops;
    const struct moec_dense *dense = &model->model->dense;
    struct walk count = {.err = err};
    MOEC_TRY(copy_pointers(model, err));
    MOEC_TRY(take_all(&count, &model->model->config, model->layers, &model->final_norm, &model->head_bias));
    MOEC_TRY(ops->stream_create(model->gpu, &model->stream, err));
    MOEC_TRY(ops->alloc(model->gpu, dense->blob_bytes, "dense weights", (void **)&model->blob, err));
    MOEC_TRY(ops->alloc(model->gpu, count.n_floats * sizeof(float), "norms and biases",
                        (void **)&model->vectors, err));
    return fill(model, err);
}

uint64_t moec_gpu_model_bytes(const struct moec_config *config, uint64_t dense_bytes)
{
    uint64_t n_floats = config->n_embd + (uint64_t)config->n_vocab + (uint64_t)2 * MOEC_LANES;
    for (uint32_t at = 0; at < config->n_layer; at++) {
        const struct moec_layer_kind *kind = moec_config_layer(config, at);
        n_floats += 4 * (uint64_t)config->n_embd + 2 * moec_layer_q_dim(kind) + 3 * moec_layer_kv_dim(kind) +
                    kind->n_head + (uint64_t)10 * MOEC_LANES;
    }
    return dense_bytes + n_floats * sizeof(float);
}

enum moec_status moec_gpu_model_create(struct moec_gpu *gpu, const struct moec_model *model,
                                       struct moec_gpu_model **out, struct moec_error *err)
{
    struct moec_gpu_model *made = NULL;
    MOEC_TRY(moec_gpu_model_check(&model->config, err));
    if (model->dense.blob == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "a model that is streamed cannot run on a device");
    MOEC_TRY(moec_alloc((void **)&made, 1, sizeof *made, "a model on a device", err));
    made->model = model;
    made->gpu = gpu;
    const enum moec_status status = create(made, err);
    if (status != MOEC_OK) {
        moec_gpu_model_free(made);
        return status;
    }
    *out = made;
    return MOEC_OK;
}

void moec_gpu_model_free(struct moec_gpu_model *model)
{
    if (model == NULL)
        return;
    const struct moec_gpu_ops *ops = model->gpu->ops;
    ops->free(model->gpu, model->blob);
    ops->free(model->gpu, model->vectors);
    ops->stream_free(model->gpu, model->stream);
    free(model->layers);
    free(model);
}
