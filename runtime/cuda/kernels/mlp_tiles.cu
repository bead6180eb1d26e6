/* MLPs over many rows, by tiles: what the down projections read, then their weighted sums. */
#include "runtime/cuda/kernels/neurons.cuh"
#include "runtime/cuda/kernels/tiles.cuh"

/* A half warp's rows of a job; rows behind the last read what that one does. */
__device__ static __forceinline__ uint32_t first_of_half(uint32_t tile)
{
    return tile * MOEC_CUDA_TILE_TOKENS + half_of_block() * MOEC_CUDA_TILE_OWN;
}

__device__ static __forceinline__ uint32_t row_within(const struct moec_cuda_mlp_job &job, uint32_t row)
{
    return row < job.n ? row : job.n - 1;
}

/* Sixteen neurons and a tile's rows, a block: the product of the gate, if there is one, then that of up. */
__global__ static void __launch_bounds__(MOEC_CUDA_BLOCK, MOEC_CUDA_TILES_AT_ONCE)
    activate_kernel(struct moec_cuda_mlp mlp)
{
    MOEC_CUDA_SHARED(float, weights, 2 * MOEC_CUDA_TILE_FLOATS);
    const struct moec_cuda_mlp_job &job = mlp.jobs.each[blockIdx.z];
    const uint32_t neuron = blockIdx.x * MOEC_CUDA_TILE_ROWS, first = first_of_half(blockIdx.y);
    if (job.n <= MOEC_CUDA_MLP_SOME || blockIdx.y * MOEC_CUDA_TILE_TOKENS >= job.n)
        return;
    const uint32_t n = neuron + lane_of_half();
    const bool has_gate = job.gate.matrix.rows > 0;
    float *h = mlp.h.first + (job.first + first) * mlp.h.stride + n;
    struct token_rows<MOEC_CUDA_TILE_OWN> x;
    float sums[MOEC_CUDA_TILE_OWN];
#pragma unroll
    for (uint32_t t = 0; t < MOEC_CUDA_TILE_OWN; t++)
        x.at[t] =
            mlp.x.first + pair_of(mlp, job, row_within(job, first + t)) / mlp.pairs.per_row * mlp.x.stride;
#pragma unroll 1
    for (uint32_t m = has_gate ? 0 : 1; m < 2; m++) {
        dot_tile(m == 0 ? job.gate.matrix : job.up.matrix, neuron, x, first < job.n, weights, sums);
#pragma unroll
        for (uint32_t t = 0; t < MOEC_CUDA_TILE_OWN; t++) {
            float *place = h + t * mlp.h.stride; /* of the gate's product until there is the other one */
            if (n < mlp.shape.n_ff && first + t < job.n)
                *place = m == 0 ? sums[t]
                                : neuron_of(mlp, job, first + t, n, false, sums[t], has_gate ? *place : 0);
        }
    }
}

/* A tile's columns and rows, a block. */
__global__ static void __launch_bounds__(MOEC_CUDA_BLOCK, MOEC_CUDA_TILES_AT_ONCE)
    sum_kernel(struct moec_cuda_mlp mlp)
{
    MOEC_CUDA_SHARED(float, weights, 2 * MOEC_CUDA_SUM_WEIGHTS);
    MOEC_CUDA_SHARED(float, factors, 2 * MOEC_CUDA_SUM_FACTORS);
    const struct moec_cuda_mlp_job &job = mlp.jobs.each[blockIdx.z];
    const uint32_t column = blockIdx.x * MOEC_CUDA_SUM_COLUMNS, first = first_of_half(blockIdx.y);
    const uint32_t padded = (mlp.shape.n_embd + MOEC_CUDA_LANES - 1) / MOEC_CUDA_LANES * MOEC_CUDA_LANES;
    if (job.n <= MOEC_CUDA_MLP_SOME || blockIdx.y * MOEC_CUDA_TILE_TOKENS >= job.n)
        return;
    struct token_rows<MOEC_CUDA_TILE_OWN> h;
    struct tile_sums sums;
#pragma unroll
    for (uint32_t t = 0; t < MOEC_CUDA_TILE_OWN; t++)
        h.at[t] = mlp.h.first + (job.first + row_within(job, first + t)) * mlp.h.stride;
    sum_tile(job.down.matrix, {0, mlp.shape.n_ff, job.down.bias}, column / MOEC_CUDA_WEIGHTS, h,
             first < job.n, weights, factors, sums);
#pragma unroll
    for (uint32_t t = 0; t < MOEC_CUDA_TILE_OWN; t++) {
        float *out = first + t < job.n ? output_of(mlp, job, first + t) : NULL;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t c = column + column_of_sum(i);
            if (out != NULL && c < padded)
                out[c] = c < mlp.shape.n_embd ? sums.at[t][i] : 0;
        }
    }
}

void moec_cuda_mlp_tiles(struct moec_gpu_stream *stream, const struct moec_cuda_mlp &mlp)
{
    const uint32_t n_token_blocks = moec_cuda_blocks(mlp.jobs.most, MOEC_CUDA_TILE_TOKENS);
    const dim3 neurons(moec_cuda_blocks(mlp.shape.n_ff, MOEC_CUDA_TILE_ROWS), n_token_blocks, mlp.jobs.n);
    const dim3 columns(moec_cuda_blocks(mlp.shape.n_embd, MOEC_CUDA_SUM_COLUMNS), n_token_blocks, mlp.jobs.n);
    MOEC_CUDA_LAUNCH(activate_kernel, neurons, stream, mlp);
    MOEC_CUDA_LAUNCH(sum_kernel, columns, stream, mlp);
}
