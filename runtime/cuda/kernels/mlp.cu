/* MLPs over the rows that are given to each: routed experts at work, shared experts, dense MLPs. First what
 * the down projections read, a half warp for some neurons and rows; then their weighted sums, a half warp for
 * a block of columns. With few rows chunks of neurons are summed side by side, and added in order afterwards;
 * jobs of many rows are computed by tiles (tiles.cuh). */
#include "runtime/cuda/kernels/bf16.h"
#include "runtime/cuda/kernels/neurons.cuh"
#include "runtime/cuda/kernels/tiles.cuh"

#define MANY_ROWS    8 /* tokens of a half warp, with more than MOEC_CUDA_FEW */
#define MANY_NEURONS 2

/* ---- activations ---- */

/* Leaves what the down projection reads of one neuron and row. */
__device__ static __forceinline__ void put_neuron(const struct moec_cuda_mlp &mlp,
                                                  const struct moec_cuda_mlp_job &job, uint32_t row,
                                                  uint32_t neuron, bool is_idle, float up, float gate)
{
    mlp.h.first[(job.first + row) * mlp.h.stride + neuron] =
        neuron_of(mlp, job, row, neuron, is_idle, up, gate);
}

__device__ static __forceinline__ const float *input_of(const struct moec_cuda_mlp &mlp,
                                                        const struct moec_cuda_mlp_job &job, uint32_t row)
{
    return mlp.x.first + pair_of(mlp, job, row) / mlp.pairs.per_row * mlp.x.stride;
}

/* The row of gate and down that a neuron has. */
__device__ static __forceinline__ uint32_t place_of(const struct moec_cuda_mlp_job &job, uint32_t neuron)
{
    return job.places != NULL ? job.places[neuron] : neuron;
}

/* One neuron and one row, four threads. */
__global__ static void activate_few_kernel(struct moec_cuda_mlp mlp)
{
    const struct moec_cuda_mlp_job &job = mlp.jobs.each[blockIdx.z];
    const uint32_t neuron = blockIdx.x * MOEC_CUDA_QUADS + quad_of_block(), row = blockIdx.y;
    if (neuron >= mlp.shape.n_ff || row >= job.n)
        return;
    const float *x = input_of(mlp, job, row);
    const float up = mlp.filtered.ups != NULL ? mlp.filtered.ups[(job.first + row) * mlp.h.stride + neuron]
                                              : dot_quad(job.up.matrix, neuron, x);
    const bool is_idle = skips_neurons(job, mlp.shape.activation) && leaves_up(mlp, job, row, neuron, up);
    const float gate =
        job.gate.matrix.rows > 0 && !is_idle ? dot_quad(job.gate.matrix, place_of(job, neuron), x) : 0;
    if (lane_of_quad() == 0)
        put_neuron(mlp, job, row, neuron, is_idle, up, gate);
}

/* Likewise, of the up product alone. */
__global__ static void mark_kernel(struct moec_cuda_marking marking)
{
    const struct moec_cuda_mlp &mlp = marking.mlp;
    const struct moec_cuda_mlp_job &job = mlp.jobs.each[blockIdx.z];
    const uint32_t neuron = blockIdx.x * MOEC_CUDA_QUADS + quad_of_block(), row = blockIdx.y;
    if (neuron >= mlp.shape.n_ff || row >= job.n)
        return;
    const float up = dot_quad(job.up.matrix, neuron, input_of(mlp, job, row));
    if (lane_of_quad() != 0)
        return;
    marking.ups[(job.first + row) * mlp.h.stride + neuron] = up;
    if (!leaves_up(mlp, job, row, neuron, up))
        atomicOr(&marking.marks[blockIdx.z * marking.n_words + neuron / 32], 1u << (neuron % 32));
}

/* Several of both, a half warp. */
__global__ static void activate_kernel(struct moec_cuda_mlp mlp)
{
    const struct moec_cuda_mlp_job &job = mlp.jobs.each[blockIdx.z];
    const uint32_t neuron = (blockIdx.x * MOEC_CUDA_HALVES + half_of_block()) * MANY_NEURONS,
                   first = blockIdx.y * MANY_ROWS;
    if (neuron >= mlp.shape.n_ff || first >= job.n || job.n > MOEC_CUDA_MLP_SOME)
        return;
    uint32_t neurons[MANY_NEURONS];
    struct token_rows<MANY_ROWS> x;
    float up[MANY_NEURONS][MANY_ROWS], gate[MANY_NEURONS][MANY_ROWS];
#pragma unroll
    for (uint32_t i = 0; i < MANY_NEURONS; i++)
        neurons[i] = neuron + i < mlp.shape.n_ff ? neuron + i : mlp.shape.n_ff - 1;
#pragma unroll
    for (uint32_t t = 0; t < MANY_ROWS; t++)
        x.at[t] = input_of(mlp, job, first + t < job.n ? first + t : job.n - 1);
    dot_rows<MANY_NEURONS, MANY_ROWS>(job.up.matrix, neurons, x, up);
    if (job.gate.matrix.rows > 0)
        dot_rows<MANY_NEURONS, MANY_ROWS>(job.gate.matrix, neurons, x, gate);
#pragma unroll
    for (uint32_t i = 0; i < MANY_NEURONS * MANY_ROWS; i++) {
        const uint32_t t = i % MANY_ROWS, n = neuron + i / MANY_ROWS;
        if (i % MOEC_CUDA_LANES == lane_of_half() && n < mlp.shape.n_ff && first + t < job.n)
            put_neuron(mlp, job, first + t, n, false, up[i / MANY_ROWS][t],
                       job.gate.matrix.rows > 0 ? gate[i / MANY_ROWS][t] : 0);
    }
}

/* ---- sums ---- */

__host__ __device__ static inline uint32_t chunks_of(const struct moec_cuda_mlp &mlp)
{
    return moec_cuda_blocks(mlp.shape.n_ff, MOEC_CUDA_CHUNK);
}

template <uint32_t ROWS>
__device__ static struct token_rows<ROWS>
activations_of(const struct moec_cuda_mlp &mlp, const struct moec_cuda_mlp_job &job, uint32_t first) {
    struct token_rows<ROWS> h;
#pragma unroll
    for (uint32_t t = 0; t < ROWS; t++)
        h.at[t] = mlp.h.first + (job.first + (first + t < job.n ? first + t : job.n - 1)) * mlp.h.stride;
    return h;
}

/* All chunks of a block of columns, for MANY_ROWS rows of a job. */
__global__ static void
sum_kernel(struct moec_cuda_mlp mlp)
{
    const struct moec_cuda_mlp_job &job = mlp.jobs.each[blockIdx.z];
    const uint32_t block = blockIdx.x * MOEC_CUDA_HALVES + half_of_block(), first = blockIdx.y * MANY_ROWS;
    if (block * MOEC_CUDA_WEIGHTS >= mlp.shape.n_embd || first >= job.n || job.n > MOEC_CUDA_MLP_SOME)
        return;
    const struct summed_rows neurons = {0, mlp.shape.n_ff, job.down.bias};
    const uint32_t padded = (mlp.shape.n_embd + MOEC_CUDA_LANES - 1) / MOEC_CUDA_LANES * MOEC_CUDA_LANES;
    struct column_sums<MANY_ROWS> sums;
    sum_rows<MANY_ROWS>(job.down.matrix, neurons, block, activations_of<MANY_ROWS>(mlp, job, first), sums);
#pragma unroll
    for (uint32_t i = 0; i < 2 * MANY_ROWS; i++) {
        const uint32_t t = first + i / 2,
                       column = block * MOEC_CUDA_WEIGHTS + i % 2 * MOEC_CUDA_LANES + lane_of_half();
        if (t < job.n && column < padded)
            output_of(mlp, job, t)[column] = column < mlp.shape.n_embd ? sums.at[i / 2][i % 2] : 0;
    }
}

/* One chunk of a block of columns, for one row, four threads: blockIdx.z counts the chunks of the jobs. */
__global__ static void chunk_kernel(struct moec_cuda_mlp mlp)
{
    const uint32_t n_chunk = chunks_of(mlp), chunk = blockIdx.z % n_chunk, first = chunk * MOEC_CUDA_CHUNK;
    const struct moec_cuda_mlp_job &job = mlp.jobs.each[blockIdx.z / n_chunk];
    const uint32_t block = blockIdx.x * MOEC_CUDA_QUADS + quad_of_block(), row = blockIdx.y;
    if (block * MOEC_CUDA_WEIGHTS >= mlp.shape.n_embd || row >= job.n)
        return;
    const uint32_t n = mlp.shape.n_ff - first < MOEC_CUDA_CHUNK ? mlp.shape.n_ff - first : MOEC_CUDA_CHUNK;
    const float *h = mlp.h.first + (job.first + row) * mlp.h.stride + first;
    float *partial = mlp.partials + ((size_t)(job.first + row) * n_chunk + chunk) * mlp.shape.n_embd;
    struct quad_sums sums;
    const uint32_t *places = job.places != NULL ? job.places + first : NULL;
    sum_quad(job.down.matrix, {first, n, places, skips_neurons(job, mlp.shape.activation)}, block, h, sums);
#pragma unroll
    for (uint32_t i = 0; i < 2 * MOEC_CUDA_QUAD; i++) {
        const uint32_t half = i / MOEC_CUDA_QUAD, at = i % MOEC_CUDA_QUAD;
        const uint32_t column = block * MOEC_CUDA_WEIGHTS + half * MOEC_CUDA_LANES + lane_of_quad() + at;
        if (column < mlp.shape.n_embd)
            partial[column] = sums.at[half][at];
    }
}

/* Chunks of a row in order, the bias after the first. */
__global__ static void fold_kernel(struct moec_cuda_mlp mlp)
{
    const struct moec_cuda_mlp_job &job = mlp.jobs.each[blockIdx.z];
    const uint32_t column = blockIdx.x * MOEC_CUDA_BLOCK + threadIdx.x, row = blockIdx.y,
                   n_chunk = chunks_of(mlp);
    const uint32_t padded = (mlp.shape.n_embd + MOEC_CUDA_LANES - 1) / MOEC_CUDA_LANES * MOEC_CUDA_LANES;
    if (row >= job.n || column >= padded)
        return;
    float sum = 0;
    if (column < mlp.shape.n_embd) {
        const float *partial = mlp.partials + (size_t)(job.first + row) * n_chunk * mlp.shape.n_embd + column;
        sum = job.down.bias != NULL ? partial[0] + job.down.bias[column] : partial[0];
        for (uint32_t chunk = 1; chunk < n_chunk; chunk++)
            sum = sum + partial[(size_t)chunk * mlp.shape.n_embd];
    }
    output_of(mlp, job, row)[column] = sum;
}

/* ---- rows that came side by side ---- */

/* Bytes at multiples of one word's size. */
template <typename WORD>
__device__ static __forceinline__ void copy_words(const uint8_t *from, uint8_t *to, uint32_t n_bytes)
{
    for (uint32_t i = threadIdx.x; i < n_bytes / (uint32_t)sizeof(WORD); i += MOEC_CUDA_BLOCK)
        ((WORD *)to)[i] = ((const WORD *)from)[i];
}

/* One row, a block. */
__global__ static void scatter_kernel(struct moec_cuda_scatter scatter)
{
    const uint32_t row = scatter.list[2 * blockIdx.x + 1];
    const uint8_t *from = scatter.from + blockIdx.x * scatter.from_step;
    uint8_t *to = scatter.to + row * scatter.to_step;
    if (row == MOEC_CUDA_NOWHERE)
        return;
    const uint32_t low = (uint32_t)((uintptr_t)from | (uintptr_t)to | scatter.n_bytes) & 7u;
    if (low == 0)
        copy_words<uint64_t>(from, to, scatter.n_bytes);
    else if (low % 4 == 0)
        copy_words<uint32_t>(from, to, scatter.n_bytes);
    else if (low % 2 == 0)
        copy_words<uint16_t>(from, to, scatter.n_bytes);
    else
        copy_words<uint8_t>(from, to, scatter.n_bytes);
    if (threadIdx.x == 0)
        scatter.places[scatter.list[2 * blockIdx.x]] = row;
}

/* ---- launches ---- */

/* Blocks of MANY_ROWS that a job has at most which is not computed by tiles. */
static uint32_t blocks_of_rows(const struct moec_cuda_mlp &mlp)
{
    return moec_cuda_blocks(mlp.jobs.most < MOEC_CUDA_MLP_SOME ? mlp.jobs.most : MOEC_CUDA_MLP_SOME,
                            MANY_ROWS);
}

static void activate(struct moec_gpu_stream *stream, const struct moec_cuda_mlp &mlp)
{
    if (mlp.jobs.most <= MOEC_CUDA_FEW) {
        const dim3 grid(moec_cuda_blocks(mlp.shape.n_ff, MOEC_CUDA_QUADS), mlp.jobs.most, mlp.jobs.n);
        MOEC_CUDA_LAUNCH(activate_few_kernel, grid, stream, mlp);
        return;
    }
    const dim3 grid(moec_cuda_blocks(mlp.shape.n_ff, MOEC_CUDA_HALVES * MANY_NEURONS), blocks_of_rows(mlp),
                    mlp.jobs.n);
    MOEC_CUDA_LAUNCH(activate_kernel, grid, stream, mlp);
}

static void add_up(struct moec_gpu_stream *stream, const struct moec_cuda_mlp &mlp)
{
    const uint32_t n_blocks = moec_cuda_blocks(mlp.shape.n_embd, MOEC_CUDA_WEIGHTS * MOEC_CUDA_HALVES);
    if (mlp.jobs.most > MOEC_CUDA_FEW || mlp.partials == NULL) {
        const dim3 grid(n_blocks, blocks_of_rows(mlp), mlp.jobs.n);
        MOEC_CUDA_LAUNCH(sum_kernel, grid, stream, mlp);
        return;
    }
    const uint32_t n_columns = moec_cuda_blocks(mlp.shape.n_embd + MOEC_CUDA_LANES - 1, MOEC_CUDA_BLOCK);
    const uint32_t n_pieces = moec_cuda_blocks(mlp.shape.n_embd, MOEC_CUDA_WEIGHTS * MOEC_CUDA_QUADS);
    MOEC_CUDA_LAUNCH(chunk_kernel, dim3(n_pieces, mlp.jobs.most, mlp.jobs.n * chunks_of(mlp)), stream, mlp);
    MOEC_CUDA_LAUNCH(fold_kernel, dim3(n_columns, mlp.jobs.most, mlp.jobs.n), stream, mlp);
}

extern "C" void moec_cuda_mlp_run(struct moec_gpu_stream *stream, const struct moec_cuda_mlp *mlp)
{
    if (mlp->jobs.n == 0 || mlp->jobs.most == 0)
        return;
    if (mlp->x.rounded != NULL) {
        moec_cuda_bf16_mlp(stream, mlp);
        return;
    }
    activate(stream, *mlp);
    add_up(stream, *mlp);
    if (mlp->jobs.most > MOEC_CUDA_MLP_SOME)
        moec_cuda_mlp_tiles(stream, *mlp);
}

extern "C" void moec_cuda_marking_run(struct moec_gpu_stream *stream, const struct moec_cuda_marking *marking)
{
    const struct moec_cuda_mlp *mlp = &marking->mlp;
    if (mlp->jobs.n == 0 || mlp->jobs.most == 0)
        return;
    const dim3 grid(moec_cuda_blocks(mlp->shape.n_ff, MOEC_CUDA_QUADS), mlp->jobs.most, mlp->jobs.n);
    MOEC_CUDA_LAUNCH(mark_kernel, grid, stream, *marking);
}

extern "C" void moec_cuda_scatter_run(struct moec_gpu_stream *stream, const struct moec_cuda_scatter *scatter)
{
    if (scatter->n > 0)
        MOEC_CUDA_LAUNCH(scatter_kernel, dim3(scatter->n), stream, *scatter);
}
