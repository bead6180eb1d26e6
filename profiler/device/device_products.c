/* A token's pieces are walked twice: once to count them, once to fill them, and both walks must add the same.
 * Pieces of dense matrices are cut by threads, those of experts by chunks of neurons, as the forward pass
 * cuts them. All go into one parallel region, so waits between layers are left out. */
#include "profiler/device/device_products.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/common/random.h"

#include <string.h>

#define LEAST_ROWS    16u /* of a dense matrix in one piece, */
#define MOST_ROWS     4096u
#define THREAD_PIECES 4u /* of it for each thread */

/* Rows of a dense matrix, or a chunk of an expert's neurons. */
struct piece {
    struct moec_matrix matrix;
    const struct moec_mlp *mlp; /* NULL: of the matrix */
    uint32_t first, n;
    bool is_sum;
};

struct run {
    const struct moec_device_products_setup *setup;
    struct moec_random random;
    struct piece *pieces; /* (most), owned, as all below */
    uint32_t n, most;
    struct moec_mlp *mlps; /* (n_layer, top_k) of a token */
    float *x;              /* (widest row) */
    float *floats;         /* (n_threads, thread_floats): results, then sums */
    size_t thread_floats;
};

static void piece_item(void *context, size_t item, int thread)
{
    const struct run *run = context;
    const struct moec_kernels *kernels = run->setup->forward->kernels;
    const struct piece *piece = &run->pieces[item];
    float *y = run->floats + (size_t)thread * run->thread_floats, *sums = y + MOST_ROWS;
    if (piece->mlp != NULL) {
        if (moec_mlp_has_gate(piece->mlp))
            kernels->dot_encoded(&piece->mlp->gate, piece->first, piece->n, run->x, y);
        kernels->dot_encoded(&piece->mlp->up, piece->first, piece->n, run->x, y);
        kernels->sum_chunk_encoded(&piece->mlp->down, piece->first, piece->n, run->x, sums);
    } else if (piece->is_sum) {
        for (uint32_t row = piece->first, end = row + piece->n; row < end; row += MOEC_SUM_CHUNK)
            kernels->sum_chunk_encoded(&piece->matrix, row,
                                       end - row < MOEC_SUM_CHUNK ? end - row : MOEC_SUM_CHUNK, run->x, sums);
    } else {
        kernels->dot_encoded(&piece->matrix, piece->first, piece->n, run->x, y);
    }
}

/* ---- which ---- */

/* Whether a token that is decoded is multiplied with the entry's rows. */
static bool is_multiplied(const struct moec_config *config, const struct moec_dense_entry *entry)
{
    if (entry->layer != MOEC_LAYER_NONE && entry->layer < config->n_encoder_layer)
        return false;
    switch (entry->role) {
    case MOEC_ROLE_EMBEDDING:
    case MOEC_ROLE_EMBEDDING_REST:
        return config->head.is_tied;
    case MOEC_ROLE_CROSS_K: /* of the source, once */
    case MOEC_ROLE_CROSS_V:
        return false;
    case MOEC_ROLE_ROUTER:
        return true;
    default:
        return moec_role_is_quantisable(entry->role);
    }
}

static uint32_t rows_of_piece(const struct run *run, uint32_t rows)
{
    const uint32_t share = rows / ((uint32_t)run->setup->forward->pool.n_threads * THREAD_PIECES);
    const uint32_t whole = (share + LEAST_ROWS - 1) / LEAST_ROWS * LEAST_ROWS;
    return whole < LEAST_ROWS ? LEAST_ROWS : whole > MOST_ROWS ? MOST_ROWS : whole;
}

static void add_rows(struct run *run, struct piece piece, uint32_t rows, uint32_t at_once)
{
    for (piece.first = 0; piece.first < rows; piece.first += at_once) {
        piece.n = rows - piece.first < at_once ? rows - piece.first : at_once;
        if (run->pieces != NULL)
            run->pieces[run->n] = piece;
        run->n++;
    }
}

static void add_dense(struct run *run, uint32_t layer)
{
    const struct moec_dense *dense = run->setup->dense;
    for (uint32_t i = 0; i < dense->n_entries; i++) {
        const struct moec_dense_entry *entry = &dense->entries[i];
        struct piece piece = {.is_sum = moec_role_is_transposed((enum moec_role)entry->role)};
        if (entry->layer == layer && is_multiplied(&run->setup->forward->model->config, entry) &&
            moec_dense_find(dense, (enum moec_role)entry->role, layer, &piece.matrix))
            add_rows(run, piece, entry->rows, rows_of_piece(run, entry->rows));
    }
}

static enum moec_status add_experts(struct run *run, uint32_t layer, struct moec_error *err)
{
    const struct moec_config *config = &run->setup->forward->model->config;
    struct moec_experts *experts = run->setup->resident;
    const uint32_t first = (uint32_t)moec_random_below(&run->random, config->n_expert);
    for (uint32_t k = 0; moec_config_is_moe(config, layer) && k < config->top_k; k++) {
        const struct moec_expert_request request = {
            .layer = layer, .expert = (first + k * (config->n_expert / config->top_k)) % config->n_expert};
        struct piece piece = {.mlp = run->mlps + (size_t)layer * config->top_k + k};
        MOEC_TRY(experts->ops->acquire(experts, request, run->mlps + (size_t)layer * config->top_k + k, err));
        add_rows(run, piece, piece.mlp->up.rows, MOEC_SUM_CHUNK);
        experts->ops->release(experts, request); /* what is resident stays where it is */
    }
    return MOEC_OK;
}

/* Fills the pieces of one token, or counts them while there is no room. */
static enum moec_status take_token(struct run *run, struct moec_error *err)
{
    const struct moec_config *config = &run->setup->forward->model->config;
    run->n = 0;
    for (uint32_t layer = config->n_encoder_layer; layer < config->n_layer; layer++) {
        add_dense(run, layer);
        MOEC_TRY(add_experts(run, layer, err));
    }
    add_dense(run, MOEC_LAYER_NONE);
    return MOEC_OK;
}

/* ---- around it ---- */

static enum moec_status create(struct run *run, struct moec_error *err)
{
    const struct moec_forward *forward = run->setup->forward;
    const struct moec_config *config = &forward->model->config;
    size_t widest = config->n_embd > config->n_ff_expert ? config->n_embd : config->n_ff_expert;
    for (uint32_t i = 0; i < run->setup->dense->n_entries; i++) {
        const struct moec_dense_entry *entry = &run->setup->dense->entries[i];
        widest = entry->columns > widest ? entry->columns : widest;
        if (moec_role_is_transposed((enum moec_role)entry->role))
            widest = entry->rows > widest ? entry->rows : widest;
    }
    widest = moec_lanes_padded(widest);
    run->thread_floats = MOST_ROWS + widest;
    void *mlps = NULL, *x = NULL, *floats = NULL, *pieces = NULL;
    MOEC_TRY(moec_alloc(&mlps, (uint64_t)config->n_layer * config->top_k + 1, sizeof *run->mlps,
                        "experts of a token", err));
    run->mlps = mlps;
    MOEC_TRY(moec_alloc_aligned(&x, widest, sizeof *run->x, "activations", err));
    run->x = x;
    for (size_t i = 0; i < widest; i++)
        run->x[i] = i % 3 == 0 ? 1.0f : -0.5f;
    MOEC_TRY(moec_alloc_aligned(&floats, (uint64_t)forward->pool.n_threads,
                                run->thread_floats * sizeof(float), "activations", err));
    run->floats = floats;
    memset(run->floats, 0, (size_t)forward->pool.n_threads * run->thread_floats * sizeof(float));
    MOEC_TRY(take_token(run, err));
    MOEC_TRY(moec_alloc(&pieces, run->n, sizeof *run->pieces, "pieces of a token", err));
    run->pieces = pieces;
    return MOEC_OK;
}

static void release(struct run *run)
{
    free(run->pieces);
    free(run->mlps);
    free(run->x);
    free(run->floats);
}

enum moec_status moec_device_measure_products(const struct moec_device_products_setup *setup,
                                              uint64_t *products_ns, struct moec_error *err)
{
    struct run run = {.setup = setup, .random = {3}};
    double *times = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(create(&run, err));
    MOEC_TRY_OUT(moec_alloc((void **)&times, setup->n_tokens, sizeof *times, "measured times", err));
    for (uint32_t i = 0; i < setup->n_tokens; i++) {
        MOEC_TRY_OUT(take_token(&run, err));
        const uint64_t begun_ns = moec_now_ns();
        moec_parallel_for(&setup->forward->pool, run.n, piece_item, &run);
        times[i] = (double)(moec_now_ns() - begun_ns);
    }
    moec_sort_doubles(times, setup->n_tokens);
    *products_ns = setup->n_tokens > 0 ? (uint64_t)moec_quantile_of_sorted(times, setup->n_tokens, 0.5) : 0;
out:
    free(times);
    release(&run);
    return status;
}
