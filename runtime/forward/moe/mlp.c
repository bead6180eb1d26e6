/* Few rows are split by chunks of neurons. Each chunk's sum goes to a partial row, and a wave of chunks that
 * fills the partial rows is folded in order. Many rows are cut into tiles of tokens, each of which adds its
 * chunks in order itself. best_tile takes the size with the least bound on the time: all work, and the
 * longest tile on the other threads. Few rows go one by one where each leaves other neurons out. Rows of
 * gate and down that stand in frames are gathered first; a pair that is not there reads as zeros. */
#include "runtime/forward/moe/mlp.h"

#include "formats/base/half.h"
#include "runtime/forward/context/activation.h"
#include "runtime/forward/context/linear.h"
#include "runtime/forward/context/rounded.h"
#include "runtime/forward/context/steps.h"
#include "runtime/forward/moe/sparsity.h"

#include <string.h>

struct mlp_run {
    const struct moec_forward *forward;
    const struct moec_mlp_job *jobs;
    uint32_t n_jobs;
    uint32_t tile;   /* tokens in a tile */
    bool is_rounded; /* inputs of all jobs stand in spans */

    /* Split by neurons: a wave is the chunks that fit into the partial rows,
     * from (first_job, first_chunk) on. */
    uint32_t first_job;
    uint32_t first_chunk;
    uint32_t n_items;
    uint32_t fold_columns;

    /* Of the one job with dense weights, where somebody looks at what its down projection is given. */
    float *activations; /* (n of that job, activation_stride) or NULL */
    size_t activation_stride;
};

static uint32_t chunk_count(const struct moec_mlp_job *job)
{
    return (job->mlp.up.rows - 1) / MOEC_SUM_CHUNK + 1;
}

static uint32_t tile_count(const struct mlp_run *run, const struct moec_mlp_job *job)
{
    return (job->pairs.n + run->tile - 1) / run->tile;
}

static uint32_t pair_of(const struct moec_mlp_job *job, uint32_t i)
{
    return job->pairs.list == NULL ? i : job->pairs.list[i];
}

static const float *input_row(const struct moec_mlp_job *job, uint32_t i, size_t stride)
{
    return job->input + pair_of(job, i) / job->pairs.per_row * stride;
}

static float *output_row(const struct moec_mlp_job *job, uint32_t i, size_t stride)
{
    return job->out + (pair_of(job, i) - job->pairs.first) * stride;
}

/* values[i] += bias[first + i]; `first` is a multiple of MOEC_SUM_CHUNK. */
static void add_bias(const struct moec_kernels *kernels, const struct moec_matrix *bias, size_t first,
                     size_t n, float *values)
{
    float piece[MOEC_SUM_CHUNK];
    for (size_t done = 0; bias->rows > 0 && done < n; done += MOEC_SUM_CHUNK) {
        const size_t count = n - done < MOEC_SUM_CHUNK ? n - done : MOEC_SUM_CHUNK;
        moec_codec_decode_span(bias->codec, bias->data, bias->columns, first + done, count, piece);
        kernels->add(piece, count, values + done);
    }
}

/* Products of n neurons of up. */
static void take_up(const struct moec_mlp_kernels *kernels, const struct moec_mlp *mlp, uint32_t neuron,
                    uint32_t n, const struct moec_mlp_token *token, float *up)
{
    if (token->up != NULL)
        memcpy(up, token->up + neuron, n * sizeof *up);
    else
        moec_mlp_dot_one(kernels, (struct moec_mlp_rows){&mlp->up, neuron, n, NULL}, token, up);
}

static uint32_t chunk_active(const struct moec_mlp_kernels *kernels, const struct moec_mlp *mlp,
                             uint32_t neuron, const struct moec_mlp_token *token,
                             const struct moec_mlp_scratch *scratch, float *y)
{
    uint8_t active[MOEC_SUM_CHUNK];
    const uint32_t n = moec_min_u32(MOEC_SUM_CHUNK, mlp->up.rows - neuron);
    take_up(kernels, mlp, neuron, n, token, scratch->up);
    const uint32_t n_active =
        moec_mlp_find_active(&mlp->filter, neuron, token->limit, n, scratch->up, active);
    const struct moec_mlp_pairs rows = moec_mlp_pairs_of(mlp, neuron, active, n_active, scratch->weights);
    moec_mlp_dot_one(kernels, moec_mlp_gate_rows(&rows), token, scratch->gate);
    (void)moec_mlp_activate_gated(kernels->all, mlp, scratch, (struct moec_neurons){neuron, n_active},
                                  &token->limit, n_active);
    moec_mlp_sum_one(kernels, moec_mlp_down_rows(&rows), scratch->gate, y);
    return n_active;
}

/* The same by a filter at the gate, whose rows are all computed first. */
static uint32_t chunk_by_gate(const struct moec_mlp_kernels *kernels, const struct moec_mlp *mlp,
                              uint32_t neuron, const struct moec_mlp_token *token,
                              const struct moec_mlp_scratch *scratch, float *y)
{
    uint8_t active[MOEC_SUM_CHUNK];
    struct moec_mlp chosen = *mlp;
    const uint32_t n = moec_min_u32(MOEC_SUM_CHUNK, mlp->up.rows - neuron);
    const struct moec_mlp_pairs all = moec_mlp_pairs_of(mlp, neuron, NULL, n, scratch->weights);
    moec_mlp_dot_one(kernels, moec_mlp_gate_rows(&all), token, scratch->gate);
    const uint32_t n_active = moec_mlp_find_by_gate(kernels->all, mlp, scratch,
                                                    (struct moec_neurons){neuron, n}, token->limit, active);
    moec_mlp_dot_one(kernels, (struct moec_mlp_rows){&mlp->up, neuron, n_active, active}, token, scratch->up);
    chosen.filter.is_on = false; /* what stays has been found */
    (void)moec_mlp_activate_gated(kernels->all, &chosen, scratch, (struct moec_neurons){neuron, n_active},
                                  &token->limit, n_active);
    const struct moec_mlp_pairs rows = moec_mlp_pairs_of(mlp, neuron, active, n_active, scratch->weights);
    moec_mlp_sum_one(kernels, moec_mlp_down_rows(&rows), scratch->gate, y);
    return n_active;
}

uint32_t moec_mlp_chunk(const struct moec_mlp_kernels *kernels, const struct moec_mlp *mlp, uint32_t neuron,
                        const struct moec_mlp_token *token, const struct moec_mlp_scratch *scratch, float *y)
{
    if (moec_mlp_leaves_out(mlp))
        return chunk_active(kernels, mlp, neuron, token, scratch, y);
    if (moec_mlp_leaves_out_by_gate(mlp))
        return chunk_by_gate(kernels, mlp, neuron, token, scratch, y);
    uint32_t n = moec_min_u32(MOEC_SUM_CHUNK, mlp->up.rows - neuron);
    const bool has_gate = moec_mlp_has_gate(mlp);
    const struct moec_mlp_pairs rows = moec_mlp_pairs_of(mlp, neuron, NULL, n, scratch->weights);
    if (has_gate)
        moec_mlp_dot_one(kernels, moec_mlp_gate_rows(&rows), token, scratch->gate);
    take_up(kernels, mlp, neuron, n, token, has_gate ? scratch->up : scratch->gate);
    (void)moec_mlp_activate(kernels->all, mlp, scratch, (struct moec_neurons){neuron, n}, &token->limit, 1);
    moec_mlp_sum_one(kernels, moec_mlp_down_rows(&rows), scratch->gate, y);
    return n;
}

/* Rows that a tile of an MLP works on: n_tok rows x (n_tok, S), and in spans where products are those of
 * integers. Where tokens are many they are laid instead of rows: spans, or the rows' numbers. */
struct tile {
    uint32_t first; /* of the job's rows */
    uint32_t n_tok;
    const float *x;                          /* NULL where they are laid */
    const struct moec_int8_tile *transposed; /* or NULL */
    const float *numbers;                    /* laid for dot_transposed, or NULL */
    const struct moec_int8_span *rounded[MOEC_MLP_TILE_MAX];
    float limits[MOEC_MLP_TILE_MAX]; /* as moec_mlp_limit */
};

static struct moec_mlp_kernels kernels_of(const struct moec_forward *forward)
{
    return (struct moec_mlp_kernels){forward->kernels,
                                     forward->rounded != NULL ? forward->rounded->kernels : NULL};
}

/* y (n_tok, n) = products of a tile with n rows of up or gate. */
static void dot_tile(const struct mlp_run *run, const struct moec_mlp *mlp, struct moec_mlp_rows rows,
                     const struct tile *tile, const struct moec_mlp_scratch *scratch, float *y)
{
    const struct moec_mlp_kernels kernels = kernels_of(run->forward);
    const size_t stride = moec_forward_scratch(run->forward)->stride;
    const uint32_t n = rows.n;
    if (moec_mlp_serves(&kernels, rows.matrix)) {
        const struct moec_mlp_pairs pair = moec_mlp_up_or_gate(mlp, rows, scratch->weights);
        if (tile->transposed != NULL)
            kernels.int8->dot_tiles(&pair.gate, pair.first, n, tile->transposed, tile->n_tok, y, n);
        else
            kernels.int8->dot(&pair.gate, pair.first, NULL, n, tile->rounded, tile->n_tok, y, n);
        return;
    }
    if (tile->numbers != NULL)
        kernels.all->dot_transposed(rows.matrix, rows.first, n, tile->numbers, tile->n_tok, scratch->weights,
                                    y, n);
    else
        moec_mlp_dot_many(kernels.all, mlp, rows, (struct moec_mlp_inputs){tile->x, stride, tile->n_tok},
                          scratch->weights, y);
}

/* Whether the sum of a tile's chunk can be added to those before as it is made. What stands in frames takes
 * the room that this needs. */
static bool adds_chunks(const struct mlp_run *run, const struct moec_mlp *mlp)
{
    const struct moec_mlp_kernels kernels = kernels_of(run->forward);
    return !moec_mlp_serves(&kernels, &mlp->down) && !moec_mlp_is_framed(mlp, &mlp->down);
}

/* Where the sums of a chunk go, one row of moec_scratch.stride for each of n_tok tokens; where they add to
 * what is there, as adds_chunks says. */
struct sums {
    float *y;
    uint32_t n_tok;
    bool adds;
};

static void sum_tile(const struct mlp_run *run, const struct moec_mlp *mlp, struct moec_neurons neurons,
                     const struct moec_mlp_scratch *scratch, struct sums sums)
{
    const struct moec_matrix *matrix = &mlp->down;
    const uint32_t n = neurons.n_row, n_tok = sums.n_tok;
    const struct moec_mlp_kernels kernels = kernels_of(run->forward);
    const size_t stride = moec_forward_scratch(run->forward)->stride;
    if (moec_mlp_serves(&kernels, matrix)) {
        const struct moec_mlp_pairs rows = moec_mlp_pairs_of(mlp, neurons.first, NULL, n, scratch->weights);
        kernels.int8->sum_chunk(&rows.down, rows.first, NULL, n, scratch->gate, n, n_tok, sums.y, stride);
        return;
    }
    if (!moec_mlp_is_framed(mlp, matrix) || moec_kernels_decode_parts(matrix->codec)) {
        const struct moec_mlp_pairs rows = moec_mlp_pairs_of(mlp, neurons.first, NULL, n, scratch->weights);
        kernels.all->sum_chunk_tokens(&rows.down, rows.first, n, scratch->gate, n, n_tok, sums.adds,
                                      scratch->weights, sums.y, stride);
        return;
    }
    moec_mlp_decode_framed(kernels.all, mlp, (struct moec_mlp_rows){matrix, neurons.first, n, NULL},
                           scratch->weights, stride);
    kernels.all->sum_chunk(scratch->gate, n, n_tok, scratch->weights, stride, n, matrix->columns, sums.y,
                           stride);
}

/* What the down projection takes of a chunk of neurons for a tile, to scratch->gate; returns the sum over
 * tokens of neurons that stay. */
static uint64_t products_of_tile(const struct mlp_run *run, const struct moec_mlp *mlp, uint32_t neuron,
                                 const struct tile *tile, const struct moec_mlp_scratch *scratch)
{
    const uint32_t n_tok = tile->n_tok, n = moec_min_u32(MOEC_SUM_CHUNK, mlp->up.rows - neuron);
    const bool has_gate = moec_mlp_has_gate(mlp);
    if (has_gate)
        dot_tile(run, mlp, (struct moec_mlp_rows){&mlp->gate, neuron, n, NULL}, tile, scratch, scratch->gate);
    dot_tile(run, mlp, (struct moec_mlp_rows){&mlp->up, neuron, n, NULL}, tile, scratch,
             has_gate ? scratch->up : scratch->gate);
    const uint32_t n_left = moec_mlp_activate(run->forward->kernels, mlp, scratch,
                                              (struct moec_neurons){neuron, n}, tile->limits, n_tok);
    return moec_mlp_leaves_out(mlp) || moec_mlp_leaves_out_by_gate(mlp) ? n_left : (uint64_t)n_tok * n;
}

/* The same and the chunk's sum, to y. */
static uint64_t chunk_of_tile(const struct mlp_run *run, const struct moec_mlp *mlp, uint32_t neuron,
                              const struct tile *tile, const struct moec_mlp_scratch *scratch, float *y)
{
    const uint64_t n_left = products_of_tile(run, mlp, neuron, tile, scratch);
    const struct moec_neurons neurons = {neuron, moec_min_u32(MOEC_SUM_CHUNK, mlp->up.rows - neuron)};
    sum_tile(run, mlp, neurons, scratch, (struct sums){.y = y, .n_tok = tile->n_tok});
    return n_left;
}

/* Tells who counts what the filter left of n_neuron neurons. */
static void count_neurons(const struct mlp_run *run, const struct moec_mlp *mlp, uint64_t n_neuron,
                          uint64_t n_active)
{
    if (run->forward->sparsity != NULL && mlp->filter.is_on)
        moec_sparsity_count(run->forward->sparsity, mlp, n_neuron, n_active);
}

/* The row of a job's input, in spans; NULL where no product is one of integers. */
static const struct moec_int8_span *rounded_row(const struct mlp_run *run, const struct moec_mlp_job *job,
                                                uint32_t i)
{
    return run->is_rounded ? moec_rounded_row(run->forward, job->input, pair_of(job, i) / job->pairs.per_row)
                           : NULL;
}

/* What a filter asks of row i of a job. */
static float limit_of(const struct moec_mlp_job *job, uint32_t i)
{
    return moec_mlp_limit(&job->mlp.filter,
                          job->pairs.weights != NULL ? job->pairs.weights[pair_of(job, i)] : 1);
}

/* What was kept of row i of a job. */
static const float *kept_row(const struct moec_mlp_job *job, uint32_t i)
{
    return job->up != NULL ? job->up + (size_t)i * job->mlp.up.rows : NULL;
}

/* Inputs of rows first .. first + n - 1 of a job, gathered where they do not lie together. */
static const float *gather(const struct moec_mlp_job *job, uint32_t first, uint32_t n, size_t stride,
                           float *copy)
{
    if (job->pairs.list == NULL && job->pairs.per_row == 1)
        return job->input + first * stride;
    for (uint32_t i = 0; i < n; i++)
        memcpy(copy + i * stride, input_row(job, first + i, stride), stride * sizeof(float));
    return copy;
}

/* Whether products of a matrix with n tokens are best made of those laid. */
static bool takes_transposed(const struct mlp_run *run, const struct moec_mlp *mlp,
                             const struct moec_matrix *matrix, uint32_t n)
{
    const struct moec_scratch *shared = moec_forward_scratch(run->forward);
    return moec_linear_transposes(run->forward, matrix, n) && !moec_mlp_is_framed(mlp, matrix) &&
           moec_transposed_room_floats(moec_transposed_rows(n), matrix->columns) <=
               MOEC_SUM_CHUNK * shared->stride;
}

/* Lays rows first .. first + n - 1 of a job. */
static const float *lay(const struct moec_kernels *kernels, const struct moec_mlp_job *job, uint32_t first,
                        uint32_t n, size_t stride, float *transposed)
{
    const float *rows[MOEC_MLP_TILE_MAX];
    for (uint32_t i = 0; i < n; i++)
        rows[i] = input_row(job, first + i, stride);
    kernels->transpose_tokens(rows, n, job->mlp.up.columns, transposed);
    return transposed;
}

/* Rows first .. first + n - 1 of a job. */
static void open_tile(const struct mlp_run *run, const struct moec_mlp_job *job, uint32_t first, uint32_t n,
                      const struct moec_mlp_scratch *scratch, struct tile *tile)
{
    const struct moec_mlp_kernels kernels = kernels_of(run->forward);
    const size_t stride = moec_forward_scratch(run->forward)->stride;
    const bool has_gate = moec_mlp_has_gate(&job->mlp);
    tile->first = first;
    tile->n_tok = n;
    tile->x = NULL;
    tile->transposed = NULL;
    tile->numbers = NULL;
    for (uint32_t i = 0; i < n; i++) {
        tile->rounded[i] = rounded_row(run, job, first + i);
        tile->limits[i] = limit_of(job, first + i);
    }
    if (run->is_rounded && n >= kernels.int8->many_tokens && moec_mlp_serves(&kernels, &job->mlp.up) &&
        (!has_gate || moec_mlp_serves(&kernels, &job->mlp.gate))) {
        struct moec_int8_tile *transposed = (struct moec_int8_tile *)(void *)scratch->x;
        moec_int8_lay(tile->rounded, n, moec_int8_spans(job->mlp.up.columns), transposed);
        tile->transposed = transposed;
    } else if (takes_transposed(run, &job->mlp, &job->mlp.up, n) &&
               (!has_gate || takes_transposed(run, &job->mlp, &job->mlp.gate, n))) {
        tile->numbers = lay(kernels.all, job, first, n, stride, scratch->x);
    } else {
        tile->x = gather(job, first, n, stride, scratch->x);
    }
}

/* What row i of a job is computed with. */
static struct moec_mlp_token token_of(const struct mlp_run *run, const struct moec_mlp_job *job, uint32_t i)
{
    return (struct moec_mlp_token){.x = input_row(job, i, moec_forward_scratch(run->forward)->stride),
                                   .rounded = rounded_row(run, job, i),
                                   .limit = limit_of(job, i),
                                   .up = kept_row(job, i)};
}

/* Copies columns to an output row of `width` floats, whose padding becomes zero. */
static void put_row(const float *sum, size_t columns, size_t width, float *out)
{
    memcpy(out, sum, columns * sizeof(float));
    memset(out + columns, 0, (width - columns) * sizeof(float));
}

/* Floats from .. from + width - 1 of output rows, of which the first n are the MLP's columns and the others
 * padding. */
struct columns {
    size_t from, n, width;
};

/* Adds a chunk's sum to columns of an output row; the first is the output itself, with the bias. Padding
 * becomes zero. */
static void add_chunk(const struct moec_kernels *kernels, const struct moec_mlp *mlp, bool first,
                      const float *sum, struct columns columns, float *out)
{
    if (!first) {
        kernels->add(sum, columns.n, out);
        return;
    }
    put_row(sum, columns.n, columns.width, out);
    add_bias(kernels, &mlp->biases[MOEC_PROJECTION_DOWN], columns.from, columns.n, out);
}

/* Keeps the activations of a chunk (n_tok rows of `n` neurons) for those who look. */
static void keep_activations(const struct mlp_run *run, const struct moec_mlp_job *job, uint32_t first,
                             uint32_t n_tok, uint32_t neuron, const float *activations)
{
    uint32_t n = moec_min_u32(MOEC_SUM_CHUNK, job->mlp.up.rows - neuron);
    if (run->activations == NULL || job->mlp.down.entry == NULL)
        return;
    for (uint32_t i = 0; i < n_tok; i++)
        memcpy(run->activations + (first + i) * run->activation_stride + neuron, activations + (size_t)i * n,
               n * sizeof(float));
}

/* Whether n rows of a job are computed one after the other: where a row leaves neurons out that another
 * reads. */
static bool goes_one_by_one(const struct mlp_run *run, const struct moec_mlp_job *job, uint32_t n)
{
    if (n == 1 || n > MOEC_ENCODED_TOKENS)
        return n == 1;
    return run->is_rounded || moec_mlp_leaves_out(&job->mlp) || job->up != NULL;
}

/* Adds a chunk's sums of a tile's rows to their outputs. */
static void add_chunk_of_tile(const struct mlp_run *run, const struct moec_mlp_job *job, uint32_t neuron,
                              const struct tile *tile, const float *y)
{
    const size_t stride = moec_forward_scratch(run->forward)->stride;
    const struct columns columns = {0, job->mlp.down.columns, stride};
    for (uint32_t i = 0; i < tile->n_tok; i++)
        add_chunk(run->forward->kernels, &job->mlp, neuron == 0, y + i * stride, columns,
                  output_row(job, tile->first + i, stride));
}

/* A chunk of neurons for a tile's rows, one after the other. */
static uint64_t chunk_of_rows(const struct mlp_run *run, const struct moec_mlp_job *job, uint32_t neuron,
                              const struct tile *tile, const struct moec_mlp_scratch *scratch)
{
    const struct moec_mlp_kernels kernels = kernels_of(run->forward);
    const size_t stride = moec_forward_scratch(run->forward)->stride;
    uint64_t n_active = 0;
    for (uint32_t i = 0; i < tile->n_tok; i++) {
        const struct moec_mlp_token token = {tile->x + i * stride, tile->rounded[i], tile->limits[i],
                                             kept_row(job, tile->first + i)};
        n_active += moec_mlp_chunk(&kernels, &job->mlp, neuron, &token, scratch, scratch->y + i * stride);
        keep_activations(run, job, tile->first + i, 1, neuron, scratch->gate);
    }
    add_chunk_of_tile(run, job, neuron, tile, scratch->y);
    return n_active;
}

/* Some chunks of neurons for a tile, each matrix decoded once: first what all give to the down projection,
 * so that inputs leave the cache to outputs once. */
static uint64_t chunks_of_tile(const struct mlp_run *run, const struct moec_mlp_job *job, uint32_t neuron,
                               bool adds, const struct tile *tile, const struct moec_mlp_scratch *scratch)
{
    const struct moec_scratch *shared = moec_forward_scratch(run->forward);
    const uint32_t end = moec_min_u32(neuron + shared->mlp.chunks * MOEC_SUM_CHUNK, job->mlp.up.rows);
    struct moec_mlp_scratch of_chunk = *scratch;
    uint64_t n_active = 0;
    for (uint32_t at = neuron; at < end; at += MOEC_SUM_CHUNK) {
        n_active += products_of_tile(run, &job->mlp, at, tile, &of_chunk);
        keep_activations(run, job, tile->first, tile->n_tok, at, of_chunk.gate);
        of_chunk.gate += shared->mlp.tile * MOEC_SUM_CHUNK;
    }
    of_chunk.gate = scratch->gate;
    for (uint32_t at = neuron; at < end; at += MOEC_SUM_CHUNK) {
        const struct moec_neurons neurons = {at, moec_min_u32(MOEC_SUM_CHUNK, end - at)};
        sum_tile(run, &job->mlp, neurons, &of_chunk, (struct sums){scratch->y, tile->n_tok, adds && at > 0});
        for (uint32_t i = 0; i < tile->n_tok && adds && at == 0; i++)
            add_bias(run->forward->kernels, &job->mlp.biases[MOEC_PROJECTION_DOWN], 0, job->mlp.down.columns,
                     scratch->y + i * shared->stride);
        if (!adds)
            add_chunk_of_tile(run, job, at, tile, scratch->y);
        of_chunk.gate += shared->mlp.tile * MOEC_SUM_CHUNK;
    }
    return n_active;
}

static void tile_item(void *context, size_t item, int thread)
{
    const struct mlp_run *run = context;
    const struct moec_scratch *shared = moec_forward_scratch(run->forward);
    const struct moec_mlp_scratch *scratch = &shared->threads[thread].mlp;
    size_t stride = shared->stride;
    const struct moec_mlp_job *job = run->jobs;
    size_t n_tiles = 0;
    for (; item >= (n_tiles = tile_count(run, job)); job++)
        item -= n_tiles;
    /* Tiles of one job are equally long: a short rest would decode the weights for few rows. */
    uint32_t tile = (uint32_t)((job->pairs.n + n_tiles - 1) / n_tiles);
    uint32_t first = moec_min_u32((uint32_t)item * tile, job->pairs.n);
    uint32_t n = moec_min_u32(tile, job->pairs.n - first);
    uint32_t columns = job->mlp.down.columns;

    struct tile of_tokens;
    open_tile(run, job, first, n, scratch, &of_tokens);
    const bool one_by_one = goes_one_by_one(run, job, n);
    const bool adds = !one_by_one && adds_chunks(run, &job->mlp);
    const uint32_t step = one_by_one ? MOEC_SUM_CHUNK : shared->mlp.chunks * MOEC_SUM_CHUNK;
    uint64_t n_active = 0;
    for (uint32_t neuron = 0; neuron < job->mlp.up.rows; neuron += step) {
        if (one_by_one)
            n_active += chunk_of_rows(run, job, neuron, &of_tokens, scratch);
        else
            n_active += chunks_of_tile(run, job, neuron, adds, &of_tokens, scratch);
    }
    for (uint32_t i = 0; i < n && adds; i++)
        put_row(scratch->y + i * stride, columns, stride, output_row(job, first + i, stride));
    count_neurons(run, &job->mlp, (uint64_t)n * job->mlp.up.rows, n_active);
}

/* Decoding a weight takes as long as its products with about so many rows. */
#define DECODED_ROWS 5

/* Rows in a tile: as many as let the threads be done first. Larger tiles decode weights less often, smaller
 * ones leave no thread without work where few experts are computed at once. */
static uint32_t best_tile(const struct mlp_run *run, uint32_t largest)
{
    const uint64_t n_threads = (uint64_t)run->forward->pool.n_threads;
    uint32_t best = largest;
    uint64_t least = UINT64_MAX;
    for (uint32_t tile = largest; tile > 0; tile = tile > 8 ? (tile - 1) / 8 * 8 : 0) {
        uint64_t all = 0, longest = 0;
        for (uint32_t j = 0; j < run->n_jobs; j++) {
            const uint64_t n = run->jobs[j].pairs.n, n_tiles = (n + tile - 1) / tile;
            const uint64_t of_tile = n > 0 ? DECODED_ROWS + (n + n_tiles - 1) / n_tiles : 0;
            all += n_tiles * of_tile;
            longest = of_tile > longest ? of_tile : longest;
        }
        const uint64_t last =
            all + (n_threads - 1) * longest; /* times threads: the longest tile may begin last */
        if (last < least) {
            least = last;
            best = tile;
        }
    }
    return best;
}

static void run_tiles(struct mlp_run *run, uint64_t work)
{
    const struct moec_scratch *shared = moec_forward_scratch(run->forward);
    run->tile = best_tile(run, shared->mlp.tile);
    size_t n_items = 0;
    for (uint32_t j = 0; j < run->n_jobs; j++)
        n_items += tile_count(run, &run->jobs[j]);
    moec_forward_run(run->forward, n_items, work, tile_item, run);
}

/* Finds chunk `item` of the wave and its first partial row. */
static const struct moec_mlp_job *find_chunk(const struct mlp_run *run, uint32_t item, uint32_t *chunk,
                                             uint32_t *partial)
{
    const struct moec_mlp_job *job = run->jobs + run->first_job;
    uint32_t start = run->first_chunk;
    *partial = 0;
    for (uint32_t n; item >= (n = chunk_count(job) - start); job++) {
        item -= n;
        *partial += n * job->pairs.n;
        start = 0;
    }
    *chunk = start + item;
    *partial += item * job->pairs.n;
    return job;
}

static void split_item(void *context, size_t item, int thread)
{
    const struct mlp_run *run = context;
    const struct moec_scratch *shared = moec_forward_scratch(run->forward);
    const struct moec_mlp_scratch *scratch = &shared->threads[thread].mlp;
    size_t stride = shared->stride;
    uint32_t chunk = 0;
    uint32_t partial = 0;
    const struct moec_mlp_job *job = find_chunk(run, (uint32_t)item, &chunk, &partial);
    uint32_t neuron = chunk * MOEC_SUM_CHUNK;
    float *y = shared->mlp.partials + partial * stride;
    const struct moec_mlp_kernels kernels = kernels_of(run->forward);
    uint64_t n_active = 0;
    for (uint32_t first = 0; first < job->pairs.n; first += shared->mlp.tile) {
        uint32_t n = moec_min_u32(shared->mlp.tile, job->pairs.n - first);
        if (goes_one_by_one(run, job, job->pairs.n)) {
            for (uint32_t i = 0; i < n; i++) {
                const struct moec_mlp_token token = token_of(run, job, first + i);
                n_active +=
                    moec_mlp_chunk(&kernels, &job->mlp, neuron, &token, scratch, y + (first + i) * stride);
                keep_activations(run, job, first + i, 1, neuron, scratch->gate);
            }
        } else {
            struct tile tile;
            open_tile(run, job, first, n, scratch, &tile);
            n_active += chunk_of_tile(run, &job->mlp, neuron, &tile, scratch, y + first * stride);
            keep_activations(run, job, first, n, neuron, scratch->gate);
        }
    }
    count_neurons(run, &job->mlp,
                  (uint64_t)job->pairs.n * moec_min_u32(MOEC_SUM_CHUNK, job->mlp.up.rows - neuron), n_active);
}

/* Adds the wave's partial sums to the outputs, over a range of columns. */
static void fold_item(void *context, size_t item, int thread)
{
    (void)thread;
    const struct mlp_run *run = context;
    const struct moec_scratch *shared = moec_forward_scratch(run->forward);
    size_t stride = shared->stride;
    size_t from = item * run->fold_columns;
    size_t n = stride - from < run->fold_columns ? stride - from : run->fold_columns;
    size_t columns = run->jobs->mlp.down.columns;
    size_t n_add = columns <= from ? 0 : columns - from < n ? columns - from : n;
    const struct moec_mlp_job *job = run->jobs + run->first_job;
    uint32_t chunk = run->first_chunk;
    const float *partial = shared->mlp.partials;
    for (uint32_t i = 0; i < run->n_items; i++) {
        if (chunk == chunk_count(job)) {
            job++;
            chunk = 0;
        }
        for (uint32_t row = 0; row < job->pairs.n; row++, partial += stride) {
            float *out = output_row(job, row, stride);
            add_chunk(run->forward->kernels, &job->mlp, chunk == 0, partial + from,
                      (struct columns){from, n_add, n}, out + from);
        }
        chunk++;
    }
}

static void run_split(struct mlp_run *run, uint64_t work)
{
    const struct moec_scratch *shared = moec_forward_scratch(run->forward);
    uint32_t job = 0;
    uint32_t chunk = 0;
    while (job < run->n_jobs) {
        run->first_job = job;
        run->first_chunk = chunk;
        run->n_items = 0;
        uint32_t rows = 0;
        while (job < run->n_jobs && rows + run->jobs[job].pairs.n <= shared->mlp.n_partials) {
            rows += run->jobs[job].pairs.n;
            run->n_items++;
            if (++chunk == chunk_count(&run->jobs[job])) {
                job++;
                chunk = 0;
            }
        }
        moec_forward_run(run->forward, run->n_items, work, split_item, run);
        uint64_t adds = (uint64_t)rows * shared->stride;
        run->fold_columns = adds < (1u << 17) ? (uint32_t)shared->stride : 512;
        moec_forward_run(run->forward, (shared->stride + run->fold_columns - 1) / run->fold_columns, adds,
                         fold_item, run);
    }
}

/* The job with dense weights: the shared expert or a dense MLP, whose rows lie together. NULL without one. */
static const struct moec_mlp_job *dense_job(const struct moec_mlp_job *jobs, uint32_t n_jobs)
{
    for (uint32_t j = 0; j < n_jobs; j++) {
        if (jobs[j].mlp.down.entry != NULL && jobs[j].pairs.n > 0)
            return &jobs[j];
    }
    return NULL;
}

static void show_inputs(struct mlp_run *run, const struct moec_mlp_job *job)
{
    const struct moec_inputs_hook *hook = run->forward->inputs;
    const struct moec_dense_entry *entries[] = {job->mlp.up.entry, job->mlp.gate.entry};
    const uint32_t n_entries = entries[1] != NULL ? 2 : 1;
    hook->take(hook->context, entries, n_entries, job->input, moec_forward_scratch(run->forward)->stride,
               job->pairs.n);
    run->activation_stride = moec_lanes_padded(job->mlp.up.rows);
    run->activations = hook->room(hook->context, job->pairs.n, run->activation_stride);
}

static void show_activations(const struct mlp_run *run, const struct moec_mlp_job *job)
{
    const struct moec_inputs_hook *hook = run->forward->inputs;
    if (run->activations != NULL)
        hook->take(hook->context, &job->mlp.down.entry, 1, run->activations, run->activation_stride,
                   job->pairs.n);
}

/* Rounds what the jobs read, if a product of integers reads it. */
static void round_inputs(struct mlp_run *run)
{
    const struct moec_forward *forward = run->forward;
    bool is_read = false;
    for (uint32_t j = 0; j < run->n_jobs; j++)
        is_read =
            is_read || moec_rounded_serves(forward, &run->jobs[j].mlp.up) ||
            (moec_mlp_has_gate(&run->jobs[j].mlp) && moec_rounded_serves(forward, &run->jobs[j].mlp.gate));
    if (!is_read)
        return;
    moec_rounded_begin(forward);
    for (uint32_t j = 0; j < run->n_jobs; j++)
        for (uint32_t i = 0; i < run->jobs[j].pairs.n; i++)
            moec_rounded_mark(forward, run->jobs[j].input,
                              pair_of(&run->jobs[j], i) / run->jobs[j].pairs.per_row);
    moec_rounded_fill_marked(forward, moec_forward_scratch(forward)->stride, run->jobs[0].mlp.up.columns);
    run->is_rounded = true;
}

/* ---- which neurons are needed ---- */

_Static_assert(MOEC_SUM_CHUNK == 64, "a chunk's neurons are the bits of a word");

/* With more rows hardly a neuron is left out by all: of 0.95 by each row, 4 % are. */
#define MARK_ROWS 64

struct mark_run {
    const struct mlp_run *run; /* of one job */
    uint64_t *neurons;
    float *up; /* NULL = not kept */
};

static void mark_item(void *context, size_t item, int thread)
{
    const struct mark_run *mark = context;
    const struct mlp_run *run = mark->run;
    const struct moec_mlp_job *job = run->jobs;
    const struct moec_scratch *shared = moec_forward_scratch(run->forward);
    const struct moec_mlp_scratch *scratch = &shared->threads[thread].mlp;
    const struct moec_mlp_kernels kernels = kernels_of(run->forward);
    const uint32_t neuron = (uint32_t)item * MOEC_SUM_CHUNK;
    const uint32_t n = moec_min_u32(MOEC_SUM_CHUNK, job->mlp.up.rows - neuron);
    const struct moec_mlp_rows up = {&job->mlp.up, neuron, n, NULL};
    const bool is_few = moec_mlp_mark_keeps(job);
    const uint32_t most = is_few ? 1 : shared->mlp.tile;
    uint64_t word = 0;
    for (uint32_t first = 0, n_tok; first < job->pairs.n; first += n_tok) {
        n_tok = moec_min_u32(most, job->pairs.n - first);
        if (is_few) {
            const struct moec_mlp_token token = token_of(run, job, first);
            moec_mlp_dot_one(&kernels, up, &token, scratch->up);
        } else {
            struct tile tile;
            open_tile(run, job, first, n_tok, scratch, &tile);
            dot_tile(run, &job->mlp, up, &tile, scratch, scratch->up);
        }
        if (mark->up != NULL && is_few)
            memcpy(mark->up + (size_t)first * job->mlp.up.rows + neuron, scratch->up, n * sizeof(float));
        for (uint32_t t = 0; t < n_tok; t++) {
            const float limit = limit_of(job, first + t);
            for (uint32_t i = 0; i < n; i++)
                word |= (uint64_t)moec_mlp_stays(&job->mlp.filter, neuron + i, scratch->up[t * n + i], limit)
                        << i;
        }
    }
    mark->neurons[item] = word;
}

bool moec_mlp_mark(const struct moec_forward *forward, const struct moec_mlp_job *job, uint64_t *neurons,
                   float *up)
{
    struct mlp_run run = {.forward = forward, .jobs = job, .n_jobs = 1};
    const uint32_t n_chunk = chunk_count(job);
    const struct mark_run mark = {&run, neurons, up};
    if (!moec_mlp_leaves_out(&job->mlp) || job->pairs.n > MARK_ROWS) {
        memset(neurons, 0xff, n_chunk * sizeof *neurons);
        return true;
    }
    round_inputs(&run);
    moec_forward_run(forward, n_chunk, (uint64_t)job->pairs.n * job->mlp.up.rows * job->mlp.up.columns,
                     mark_item, (void *)&mark);
    return !moec_mlp_mark_keeps(job);
}

/* ---- activations alone ---- */

struct activation_run {
    const struct moec_forward *forward;
    const struct moec_mlp *mlp;
    uint32_t n_tok, tile;
    const float *input;
    float *out;
    size_t out_stride;
};

static void activation_item(void *context, size_t item, int thread)
{
    const struct activation_run *run = context;
    const struct moec_mlp *mlp = run->mlp;
    const struct moec_kernels *kernels = run->forward->kernels;
    const struct moec_mlp_scratch *scratch = &moec_forward_scratch(run->forward)->threads[thread].mlp;
    const size_t stride = moec_forward_scratch(run->forward)->stride;
    const uint32_t first = (uint32_t)item * run->tile, n_tok = moec_min_u32(run->tile, run->n_tok - first);
    const bool has_gate = moec_mlp_has_gate(mlp);
    const struct moec_mlp_inputs tokens = {run->input + first * stride, stride, n_tok};
    float limits[MOEC_MLP_TILE_MAX];
    for (uint32_t i = 0; i < n_tok; i++)
        limits[i] = moec_mlp_limit(&mlp->filter, 1);
    for (uint32_t neuron = 0; neuron < mlp->up.rows; neuron += MOEC_SUM_CHUNK) {
        const uint32_t n = moec_min_u32(MOEC_SUM_CHUNK, mlp->up.rows - neuron);
        if (has_gate)
            moec_mlp_dot_many(kernels, mlp, (struct moec_mlp_rows){&mlp->gate, neuron, n, NULL}, tokens,
                              scratch->weights, scratch->gate);
        moec_mlp_dot_many(kernels, mlp, (struct moec_mlp_rows){&mlp->up, neuron, n, NULL}, tokens,
                          scratch->weights, has_gate ? scratch->up : scratch->gate);
        (void)moec_mlp_activate(kernels, mlp, scratch, (struct moec_neurons){neuron, n}, limits, n_tok);
        for (uint32_t i = 0; i < n_tok; i++)
            memcpy(run->out + (first + i) * run->out_stride + neuron, scratch->gate + (size_t)i * n,
                   n * sizeof(float));
    }
}

void moec_mlp_activations(const struct moec_forward *forward, const struct moec_mlp *mlp, uint32_t n_tok,
                          const float *input, float *out, size_t out_stride)
{
    struct activation_run run = {forward, mlp, n_tok,     moec_forward_scratch(forward)->mlp.tile,
                                 input,   out, out_stride};
    const uint64_t work = 2 * (uint64_t)n_tok * mlp->up.rows * mlp->up.columns;
    moec_forward_run(forward, (n_tok + run.tile - 1) / run.tile, work, activation_item, &run);
}

void moec_mlp_run(const struct moec_forward *forward, const struct moec_mlp_job *jobs, uint32_t n_jobs)
{
    struct mlp_run run = {.forward = forward, .jobs = jobs, .n_jobs = n_jobs};
    uint64_t rows = 0;
    uint64_t work = 0;
    for (uint32_t j = 0; j < n_jobs; j++) {
        rows += jobs[j].pairs.n;
        work += (moec_mlp_has_gate(&jobs[j].mlp) ? 3 : 2) * (uint64_t)jobs[j].pairs.n * jobs[j].mlp.up.rows *
                jobs[j].mlp.up.columns;
    }
    const struct moec_mlp_job *watched =
        forward->inputs != NULL && forward->inputs->take != NULL ? dense_job(jobs, n_jobs) : NULL;
    if (watched != NULL)
        show_inputs(&run, watched);
    round_inputs(&run);
    uint32_t split = moec_min_u32(MOEC_SPLIT_ROWS, moec_forward_scratch(forward)->mlp.n_partials);
    if (rows <= split)
        run_split(&run, work);
    else
        run_tiles(&run, work);
    if (watched != NULL)
        show_activations(&run, watched);
}
