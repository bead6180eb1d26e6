/* The backend of offline work on a GPU: rows of either memory. Those of the process's are brought before a
 * step and taken down after it, keys and values too; everything else is the step of the backend behind. */
#include "runtime/cuda/gpu_pass.h"
#include "runtime/cuda/gpu_place_internal.h"
#include "runtime/forward/attention/running.h"

#include <string.h>

static const struct moec_gpu_offload_backend *in(const struct moec_backend *self)
{
    return (const struct moec_gpu_offload_backend *)self;
}

static struct moec_gpu_offload *of(const struct moec_backend *self)
{
    return in(self)->offload;
}

static const struct moec_config *config_of(const struct moec_gpu_offload *o)
{
    return &o->model->model->config;
}

/* The backend behind, turned to the model and the arithmetic. */
static enum moec_status turn(const struct moec_backend *self, struct moec_backend **inner,
                             struct moec_error *err)
{
    MOEC_TRY(moec_gpu_place_turn(in(self), err));
    *inner = moec_gpu_backend_of(of(self)->place->backend);
    return MOEC_OK;
}

/* ---- rows ---- */

/* Where rows are on the device: their own place, or the one of rows that are brought. */
static float *place_of(const struct moec_gpu_offload *o, const float *rows)
{
    return moec_gpu_place_has(o->place, rows) ? (float *)(uintptr_t)rows : o->place->rows;
}

static uint64_t bytes_of(const struct moec_gpu_offload *o, uint32_t n_tok)
{
    return n_tok * moec_forward_stride(config_of(o)) * sizeof(float);
}

/* Rows that are held are brought once, and taken down when the process wants them. */
static bool is_held(const struct moec_gpu_offload *o, const float *rows)
{
    return rows != NULL && rows == o->place->held;
}

static enum moec_status update(struct moec_gpu_offload *o, struct moec_error *err)
{
    struct moec_gpu_place *place = o->place;
    if (place->held == NULL || !place->held_has_changed)
        return MOEC_OK;
    place->held_has_changed = false;
    return moec_gpu_transfer_down(&place->transfer, place->held, place->rows, bytes_of(o, place->n_held),
                                  err);
}

/* Other rows take the place of those that are held. */
static enum moec_status leave_place(struct moec_gpu_offload *o, struct moec_error *err)
{
    MOEC_TRY(update(o, err));
    o->place->held_is_there = false;
    return MOEC_OK;
}

static enum moec_status bring(struct moec_gpu_offload *o, uint32_t n_tok, const float *rows, float **out,
                              struct moec_error *err)
{
    struct moec_gpu_place *place = o->place;
    *out = place_of(o, rows);
    if (*out == rows || (is_held(o, rows) && place->held_is_there))
        return MOEC_OK;
    if (!is_held(o, rows))
        MOEC_TRY(leave_place(o, err));
    place->held_is_there = is_held(o, rows);
    return moec_gpu_transfer_up(&o->place->transfer, *out, rows, bytes_of(o, n_tok), err);
}

static enum moec_status take_down(struct moec_gpu_offload *o, uint32_t n_tok, const float *from, float *rows,
                                  struct moec_error *err)
{
    struct moec_gpu_place *place = o->place;
    if (from == rows)
        return MOEC_OK;
    if (is_held(o, rows)) {
        place->held_has_changed = true;
        return MOEC_OK;
    }
    return moec_gpu_transfer_down(&o->place->transfer, rows, from, bytes_of(o, n_tok), err);
}

static void offload_hold(struct moec_backend *self, float *rows, uint32_t n_tok)
{
    struct moec_gpu_place *place = of(self)->place;
    place->held = moec_gpu_place_has(place, rows) ? NULL : rows;
    place->n_held = n_tok;
    place->held_is_there = false;
    place->held_has_changed = false;
}

static enum moec_status offload_update(struct moec_backend *self, struct moec_error *err)
{
    MOEC_TRY(moec_gpu_place_turn(in(self), err));
    return update(of(self), err);
}

static void offload_let_go(struct moec_backend *self)
{
    of(self)->place->held = NULL;
}

static enum moec_status offload_alloc(struct moec_backend *self, uint64_t n_bytes, const char *what,
                                      void **out, struct moec_error *err)
{
    return moec_gpu_place_alloc(of(self)->place, n_bytes, what, out, err);
}

static void offload_free(struct moec_backend *self, void *memory)
{
    moec_gpu_place_free_memory(of(self)->place, memory);
}

/* An error of turning is that of the next step too. */
static void offload_copy(struct moec_backend *self, void *to, const void *from, uint64_t n_bytes)
{
    struct moec_backend *inner = NULL;
    if (turn(self, &inner, NULL) == MOEC_OK)
        inner->ops->copy(inner, to, from, n_bytes);
}

static enum moec_status offload_embed(struct moec_backend *self, const uint32_t *tokens, uint32_t n_tok,
                                      float *hidden, struct moec_error *err)
{
    struct moec_gpu_offload *o = of(self);
    struct moec_backend *inner = NULL;
    float *rows = place_of(o, hidden);
    MOEC_TRY(turn(self, &inner, err));
    MOEC_TRY(leave_place(o, err));
    MOEC_TRY(inner->ops->embed(inner, tokens, n_tok, rows, err));
    return take_down(o, n_tok, rows, hidden, err);
}

static enum moec_status offload_encoded(struct moec_backend *self, uint32_t n_tok, const float *hidden,
                                        float *encoded, struct moec_error *err)
{
    struct moec_gpu_offload *o = of(self);
    struct moec_backend *inner = NULL;
    float *rows = NULL, *out = place_of(o, encoded);
    MOEC_TRY(turn(self, &inner, err));
    MOEC_TRY(bring(o, n_tok, hidden, &rows, err));
    if (encoded != hidden)
        MOEC_TRY(leave_place(o, err));
    MOEC_TRY(inner->ops->encoded(inner, n_tok, rows, out, err));
    return take_down(o, n_tok, out, encoded, err);
}

/* ---- attention ---- */

/* Spans that go through a layer together, whose rows are those of `rows` from the first span's on. */
struct batch {
    struct moec_gpu_offload *o;
    const struct moec_layer_kind *kind;
    const struct moec_span *spans;
    struct moec_span *there; /* the same with the device's pointers */
    uint32_t n, n_tok, n_past;
    struct {
        size_t stride;
        float *own[2], *past[2]; /* of keys, and of values, where they are brought */
    } kv;
};

/* Keys and values that a span reads and does not make. */
static uint32_t past_of(const struct moec_span *span)
{
    return span->n_source > 0 ? span->n_source : span->first_position;
}

static bool brings_past(const struct batch *batch, const struct moec_span *span)
{
    return past_of(span) > 0 && !moec_layer_is_running(batch->kind) &&
           !moec_gpu_place_has(batch->o->place, span->keys.k_prefix);
}

/* Adds a span's past to those that are brought, of which spans of one sequence share the longest. False where
 * there is no room for more rows. */
static bool add_past(struct batch *batch, uint32_t at, uint64_t *n_rows)
{
    struct moec_gpu_place *place = batch->o->place;
    const struct moec_span *span = &batch->spans[at];
    const uint32_t n = past_of(span);
    uint32_t i = batch->n_past;
    if (!brings_past(batch, span))
        return true;
    while (i > 0 && place->pasts[i - 1].keys != span->keys.k_prefix)
        i--;
    const uint32_t has = i > 0 ? place->pasts[i - 1].n : 0;
    if (n > has && *n_rows + n - has > place->max_tokens)
        return false;
    if (i == 0) {
        i = ++batch->n_past;
        place->pasts[i - 1] =
            (struct moec_gpu_place_past){.keys = span->keys.k_prefix, .values = span->keys.v_prefix};
    }
    if (n > has) {
        place->pasts[i - 1].n = n;
        *n_rows += n - has;
    }
    place->past_of[at] = i - 1;
    return true;
}

/* As many spans from the first on as there is room for what they bring. */
static void choose_spans(struct batch *batch, uint32_t n_left)
{
    const uint64_t most_bytes = batch->o->place->state_bytes;
    const uint64_t state_bytes =
        moec_layer_is_running(batch->kind) ? moec_running_floats(batch->kind) * sizeof(float) : 0;
    uint64_t n_rows = 0;
    batch->n = 0;
    batch->n_past = 0;
    while (batch->n < n_left && (batch->n == 0 || (batch->n + 1) * state_bytes <= most_bytes) &&
           add_past(batch, batch->n, &n_rows))
        batch->n++;
}

static enum moec_status bring_pasts(struct batch *batch, struct moec_error *err)
{
    struct moec_gpu_place *place = batch->o->place;
    const bool has_values = moec_layer_has_values(batch->kind);
    uint64_t used = 0;
    for (uint32_t i = 0; i < batch->n_past; i++) {
        struct moec_gpu_place_past *past = &place->pasts[i];
        const uint64_t n = past->n * batch->kv.stride;
        past->there[0] = batch->kv.past[0] + used;
        past->there[1] = has_values ? batch->kv.past[1] + used : past->there[0];
        MOEC_TRY(moec_gpu_transfer_up(&place->transfer, past->there[0], past->keys, n * sizeof(float), err));
        if (has_values)
            MOEC_TRY(
                moec_gpu_transfer_up(&place->transfer, past->there[1], past->values, n * sizeof(float), err));
        used += n;
    }
    for (uint32_t i = 0; i < batch->n; i++) {
        if (!brings_past(batch, &batch->spans[i]))
            continue;
        batch->there[i].keys.k_prefix = place->pasts[place->past_of[i]].there[0];
        batch->there[i].keys.v_prefix = place->pasts[place->past_of[i]].there[1];
    }
    return MOEC_OK;
}

/* Whether a span's own keys and values belong into the process's memory. */
static bool makes_own(const struct batch *batch, const struct moec_span *span)
{
    return span->n_source == 0 && !moec_layer_is_running(batch->kind) &&
           !moec_gpu_place_has(batch->o->place, span->keys.k_own);
}

static void place_own(struct batch *batch)
{
    const uint64_t state_floats = moec_layer_is_running(batch->kind) ? moec_running_floats(batch->kind) : 0;
    for (uint32_t i = 0; i < batch->n; i++) {
        struct moec_span *there = &batch->there[i];
        *there = batch->spans[i];
        there->first_row -= batch->spans[0].first_row;
        if (state_floats > 0 && there->state.out == NULL) /* what it ends with is not kept */
            there->state.out = batch->o->place->states + i * state_floats;
        if (!makes_own(batch, &batch->spans[i]))
            continue;
        there->keys.k_own = batch->kv.own[0] + there->first_row * batch->kv.stride;
        there->keys.v_own = moec_layer_has_values(batch->kind)
                                ? batch->kv.own[1] + there->first_row * batch->kv.stride
                                : there->keys.k_own;
    }
}

static enum moec_status take_own(const struct batch *batch, struct moec_error *err)
{
    struct moec_gpu_transfer *transfer = &batch->o->place->transfer;
    for (uint32_t i = 0; i < batch->n; i++) {
        const struct moec_span *span = &batch->spans[i], *there = &batch->there[i];
        const uint64_t n_bytes = span->n_rows * batch->kv.stride * sizeof(float);
        if (!makes_own(batch, span) || span->keys.forgets_own)
            continue;
        MOEC_TRY(moec_gpu_transfer_down(transfer, span->keys.k_own, there->keys.k_own, n_bytes, err));
        if (moec_layer_has_values(batch->kind))
            MOEC_TRY(moec_gpu_transfer_down(transfer, span->keys.v_own, there->keys.v_own, n_bytes, err));
    }
    return MOEC_OK;
}

static enum moec_status attend(struct moec_backend *self, uint32_t layer, bool is_cross,
                               struct moec_batch whole, float *hidden, struct moec_error *err)
{
    struct moec_gpu_offload *o = of(self);
    struct moec_gpu_place *place = o->place;
    struct moec_backend *inner = NULL;
    float *rows = NULL;
    struct batch batch = {.o = o, .kind = moec_config_layer(config_of(o), layer), .there = place->spans};
    batch.kv.stride = moec_layer_is_running(batch.kind) ? 0 : moec_layer_kv_dim(batch.kind);
    const size_t part = batch.kv.stride * place->max_tokens, stride = moec_forward_stride(config_of(o));
    for (int i = 0; i < 2; i++) {
        batch.kv.own[i] = place->kv + (size_t)i * part;
        batch.kv.past[i] = place->kv + (size_t)(2 + i) * part;
    }
    MOEC_TRY(turn(self, &inner, err));
    MOEC_TRY(bring(o, whole.n_tok, hidden, &rows, err));
    for (uint32_t done = 0; done < whole.n_spans; done += batch.n) {
        batch.spans = whole.spans + done;
        choose_spans(&batch, whole.n_spans - done);
        const struct moec_span *last = &batch.spans[batch.n - 1];
        const uint32_t first_row = batch.spans->first_row;
        batch.n_tok = last->first_row + last->n_rows - first_row;
        const struct moec_batch there = {batch.there, batch.n, batch.n_tok};
        place_own(&batch);
        MOEC_TRY(bring_pasts(&batch, err));
        float *own_rows = rows + first_row * stride;
        if (is_cross)
            MOEC_TRY(inner->ops->cross(inner, layer, there, own_rows, err));
        else
            MOEC_TRY(inner->ops->attention(inner, layer, there, own_rows, err));
        MOEC_TRY(take_own(&batch, err));
    }
    return take_down(o, whole.n_tok, rows, hidden, err);
}

static enum moec_status offload_attention(struct moec_backend *self, uint32_t layer, struct moec_batch batch,
                                          float *hidden, struct moec_error *err)
{
    return attend(self, layer, false, batch, hidden, err);
}

static enum moec_status offload_cross(struct moec_backend *self, uint32_t layer, struct moec_batch batch,
                                      float *hidden, struct moec_error *err)
{
    return attend(self, layer, true, batch, hidden, err);
}

/* Keys and values of n_tok rows, which go to either memory. */
struct made {
    struct moec_kv_rows there; /* on the device */
    uint64_t n_bytes;
};

static struct made made_of(const struct moec_gpu_offload *o, uint32_t layer, uint32_t n_tok,
                           struct moec_kv_rows out)
{
    const size_t n = n_tok * moec_layer_kv_dim(moec_config_layer(config_of(o), layer));
    const bool is_there = moec_gpu_place_has(o->place, out.keys);
    return (struct made){.there = {.keys = is_there ? out.keys : o->place->kv,
                                   .values = is_there ? out.values : o->place->kv + n},
                         .n_bytes = n * sizeof(float)};
}

static enum moec_status take_made(struct moec_gpu_offload *o, const struct made *made,
                                  struct moec_kv_rows out, struct moec_error *err)
{
    if (made->there.keys == out.keys)
        return MOEC_OK;
    MOEC_TRY(moec_gpu_transfer_down(&o->place->transfer, out.keys, made->there.keys, made->n_bytes, err));
    return moec_gpu_transfer_down(&o->place->transfer, out.values, made->there.values, made->n_bytes, err);
}

static enum moec_status offload_keys(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                     const float *hidden, struct moec_kv_rows out, struct moec_error *err)
{
    struct moec_gpu_offload *o = of(self);
    struct moec_backend *inner = NULL;
    const struct made made = made_of(o, layer, n_tok, out);
    float *rows = NULL;
    MOEC_TRY(turn(self, &inner, err));
    MOEC_TRY(bring(o, n_tok, hidden, &rows, err));
    MOEC_TRY(inner->ops->keys(inner, layer, n_tok, rows, made.there, err));
    return take_made(o, &made, out, err);
}

static enum moec_status offload_cross_keys(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                           const float *encoded, struct moec_kv_rows out,
                                           struct moec_error *err)
{
    struct moec_gpu_offload *o = of(self);
    struct moec_backend *inner = NULL;
    const struct made made = made_of(o, layer, n_tok, out);
    float *rows = NULL;
    MOEC_TRY(turn(self, &inner, err));
    MOEC_TRY(bring(o, n_tok, encoded, &rows, err));
    MOEC_TRY(inner->ops->cross_keys(inner, layer, n_tok, rows, made.there, err));
    return take_made(o, &made, out, err);
}

/* ---- MLPs ---- */

static enum moec_status offload_dense(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                      float *hidden, struct moec_error *err)
{
    struct moec_gpu_offload *o = of(self);
    struct moec_backend *inner = NULL;
    float *rows = NULL;
    MOEC_TRY(turn(self, &inner, err));
    MOEC_TRY(bring(o, n_tok, hidden, &rows, err));
    MOEC_TRY(inner->ops->dense(inner, layer, n_tok, rows, err));
    return take_down(o, n_tok, rows, hidden, err);
}

/* The rows stay where they are brought until the layer's experts are added up. */
static enum moec_status offload_norm(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                     const float *hidden, struct moec_error *err)
{
    struct moec_gpu_offload *o = of(self);
    struct moec_backend *inner = NULL;
    float *rows = NULL;
    MOEC_TRY(turn(self, &inner, err));
    MOEC_TRY(bring(o, n_tok, hidden, &rows, err));
    return inner->ops->norm(inner, layer, n_tok, rows, err);
}

static enum moec_status offload_score(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                      struct moec_backend_scores *out, struct moec_error *err)
{
    struct moec_backend *inner = NULL;
    MOEC_TRY(turn(self, &inner, err));
    return inner->ops->score(inner, layer, n_tok, out, err);
}

static enum moec_status offload_scale(struct moec_backend *self, uint32_t n_tok, const float *factors,
                                      struct moec_error *err)
{
    struct moec_backend *inner = NULL;
    MOEC_TRY(turn(self, &inner, err));
    return inner->ops->scale(inner, n_tok, factors, err);
}

static enum moec_status offload_leave_out(struct moec_backend *self, struct moec_sparsity *sparsity,
                                          struct moec_error *err)
{
    struct moec_offload *offload = &of(self)->offload;
    return offload->ops->leave_out(offload, sparsity, err);
}

static enum moec_status offload_run_experts(struct moec_backend *self, const struct moec_mlp_job *jobs,
                                            uint32_t n_jobs, struct moec_error *err)
{
    struct moec_backend *inner = NULL;
    MOEC_TRY(turn(self, &inner, err));
    return inner->ops->experts(inner, jobs, n_jobs, err);
}

static enum moec_status offload_give(struct moec_backend *self, const uint32_t *pairs, uint32_t n,
                                     const float *rows, struct moec_error *err)
{
    struct moec_backend *inner = NULL;
    MOEC_TRY(turn(self, &inner, err));
    return inner->ops->give(inner, pairs, n, rows, err);
}

static enum moec_status offload_shared(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                       struct moec_error *err)
{
    struct moec_backend *inner = NULL;
    MOEC_TRY(turn(self, &inner, err));
    return inner->ops->shared(inner, layer, n_tok, err);
}

static enum moec_status show_rows(struct moec_gpu_offload *o, float *to, const float *from, uint64_t n_row,
                                  struct moec_error *err)
{
    const uint64_t n_bytes = n_row * moec_forward_stride(config_of(o)) * sizeof(float);
    return to != NULL ? moec_gpu_transfer_down(&o->place->transfer, to, from, n_bytes, err) : MOEC_OK;
}

static enum moec_status offload_show(struct moec_backend *self, uint32_t n_tok,
                                     const struct moec_backend_rows *rows, struct moec_error *err)
{
    struct moec_gpu_offload *o = of(self);
    MOEC_TRY(moec_gpu_place_turn(in(self), err));
    const struct moec_gpu_room *room = &o->place->backend->room;
    MOEC_TRY(show_rows(o, rows->router_input, room->inputs.normed, n_tok, err));
    MOEC_TRY(show_rows(o, rows->expert_input, room->inputs.experts, n_tok, err));
    MOEC_TRY(show_rows(o, rows->ranks, room->mlp.ranks, (uint64_t)n_tok * config_of(o)->top_k, err));
    return show_rows(o, rows->shared, room->mlp.shared, n_tok, err);
}

static enum moec_status offload_expert(struct moec_backend *self, struct moec_expert_request request,
                                       const struct moec_mlp *mlp, uint32_t n_tok, const float *input,
                                       float *out, struct moec_error *err)
{
    struct moec_gpu_offload *o = of(self);
    float *rows = NULL;
    MOEC_TRY(moec_gpu_place_turn(in(self), err));
    struct moec_gpu_backend *b = o->place->backend;
    MOEC_TRY(bring(o, n_tok, input, &rows, err));
    MOEC_TRY(moec_gpu_run_expert(b, request, mlp, n_tok, rows, err));
    return show_rows(o, out, b->room.mlp.shared, n_tok, err);
}

static enum moec_status offload_combine(struct moec_backend *self, uint32_t layer,
                                        const struct moec_backend_sum *sum, float *hidden,
                                        struct moec_error *err)
{
    struct moec_gpu_offload *o = of(self);
    struct moec_backend *inner = NULL;
    float *rows = place_of(o, hidden);
    MOEC_TRY(turn(self, &inner, err));
    MOEC_TRY(inner->ops->combine(inner, layer, sum, rows, err));
    return take_down(o, sum->n_tok, rows, hidden, err);
}

static enum moec_status offload_head(struct moec_backend *self, uint32_t n_tok, const float *hidden,
                                     float *logits, size_t logits_stride, struct moec_error *err)
{
    struct moec_gpu_offload *o = of(self);
    struct moec_backend *inner = NULL;
    float *rows = NULL;
    MOEC_TRY(turn(self, &inner, err));
    MOEC_TRY(bring(o, n_tok, hidden, &rows, err));
    return inner->ops->head(inner, n_tok, rows, logits, logits_stride, err);
}

const struct moec_backend_ops moec_gpu_offload_ops = {.alloc = offload_alloc,
                                                      .free = offload_free,
                                                      .copy = offload_copy,
                                                      .hold = offload_hold,
                                                      .update = offload_update,
                                                      .let_go = offload_let_go,
                                                      .embed = offload_embed,
                                                      .attention = offload_attention,
                                                      .encoded = offload_encoded,
                                                      .keys = offload_keys,
                                                      .cross_keys = offload_cross_keys,
                                                      .cross = offload_cross,
                                                      .dense = offload_dense,
                                                      .norm = offload_norm,
                                                      .score = offload_score,
                                                      .scale = offload_scale,
                                                      .leave_out = offload_leave_out,
                                                      .experts = offload_run_experts,
                                                      .give = offload_give,
                                                      .shared = offload_shared,
                                                      .show = offload_show,
                                                      .expert = offload_expert,
                                                      .combine = offload_combine,
                                                      .head = offload_head};
