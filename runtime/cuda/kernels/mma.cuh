/* Tensor cores: fragments of BF16 out of shared memory, and products of 16 rows by 8 columns over 16 places
 * of k, which a warp computes together (PTX ISA, mma.sync.m16n8k16 and ldmatrix). A word is two BF16, the one
 * of the lower k or column in its lower half.
 *
 * On the processor: sums in F32, k increasing, of products in F32, each rounded once; products of two BF16
 * are exact but where they leave the range of F32. On a device the order within the 16 places, and how their
 * sum is rounded, is the hardware's; one output depends on its own row, column and sum alone there too.
 *
 * All threads of a warp take part. */
#ifndef MOEC_RUNTIME_CUDA_MMA_CUH
#define MOEC_RUNTIME_CUDA_MMA_CUH

#include "formats/base/half.h"
#include "runtime/cuda/blocks/dialect.h"

#define MOEC_CUDA_WARP 32

__device__ static __forceinline__ uint32_t lane_of_warp()
{
    return threadIdx.x % MOEC_CUDA_WARP;
}

__device__ static __forceinline__ uint32_t warp_of_block()
{
    return threadIdx.x / MOEC_CUDA_WARP;
}

/* Two floats, rounded to the nearest BF16, ties to even. */
__device__ static __forceinline__ uint32_t bf16_word(float low, float high)
{
#if defined(__CUDACC__)
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return (uint32_t)moec_f32_to_bf16(high) << 16 | moec_f32_to_bf16(low);
#endif
}

/* ---- copies to shared memory ---- */

/* Eight BF16 from a multiple of 16 bytes, zeros behind the first n of them, to the four words from `to` on,
 * a multiple of 4. It is done when copies_finish returns, for the calling thread. */
template <typename WORDS>
__device__ static __forceinline__ void copy_eight(WORDS &words, uint32_t to, const uint16_t *from, uint32_t n)
{
#if defined(__CUDACC__)
    const uint32_t place = (uint32_t)__cvta_generic_to_shared(&words[to]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(2 * n)
                 : "memory");
#else
    for (uint32_t i = 0; i < 8; i += 2)
        words[to + i / 2] = (i < n ? from[i] : 0u) | (i + 1 < n ? (uint32_t)from[i + 1] << 16 : 0u);
#endif
}

__device__ static __forceinline__ void copies_finish()
{
#if defined(__CUDACC__)
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* ---- fragments ---- */

#if defined(__CUDACC__)
__device__ static __forceinline__ void load_matrices(const uint32_t *at, uint32_t out[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(at))
                 : "memory");
}

__device__ static __forceinline__ void load_transposed(const uint32_t *at, uint32_t out[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(at))
                 : "memory");
}
#endif

/* 16 rows of words, `pitch` apart, from word `at` on: 16 places of k of each. */
template <typename WORDS>
__device__ static __forceinline__ void load_inputs_of(WORDS &words, uint32_t at, uint32_t pitch,
                                                      uint32_t out[4])
{
    const uint32_t lane = lane_of_warp();
#if defined(__CUDACC__)
    load_matrices(&words[at + lane % 16 * pitch + lane / 16 * 4], out);
#else
    for (uint32_t i = 0; i < 4; i++)
        out[i] = words[at + (lane / 4 + i % 2 * 8) * pitch + i / 2 * 4 + lane % 4];
#endif
}

/* Two fragments of 8 columns each, whose weights stand in 16 rows as above: out[0..1] and out[2..3]. */
template <typename WORDS>
__device__ static __forceinline__ void load_weights_by_rows(WORDS &words, uint32_t at, uint32_t pitch,
                                                            uint32_t out[4])
{
    const uint32_t lane = lane_of_warp();
#if defined(__CUDACC__)
    load_matrices(&words[at + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 4], out);
#else
    for (uint32_t i = 0; i < 4; i++)
        out[i] = words[at + (lane / 4 + i / 2 * 8) * pitch + i % 2 * 4 + lane % 4];
#endif
}

/* The same of weights whose 16 rows are the places of k: 16 columns from word `at` of each on. */
template <typename WORDS>
__device__ static __forceinline__ void load_weights_by_columns(WORDS &words, uint32_t at, uint32_t pitch,
                                                               uint32_t out[4])
{
    const uint32_t lane = lane_of_warp();
#if defined(__CUDACC__)
    load_transposed(&words[at + lane % 16 * pitch + lane / 16 * 4], out);
#else
    const uint32_t column = lane / 4, shift = column % 2 * 16;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t place = at + (i % 2 * 8 + lane % 4 * 2) * pitch + i / 2 * 4 + column / 2;
        const uint32_t low = words[place], high = words[place + pitch];
        out[i] = (low >> shift & 0xffffu) | (high >> shift & 0xffffu) << 16;
    }
#endif
}

/* ---- products ---- */

#if !defined(__CUDACC__)
struct moec_cuda_fragments {
    const uint32_t *a, *b;
    float *sums;
};

static inline float bf16_of(const uint32_t *words, uint32_t word, uint32_t k)
{
    return moec_bf16_to_f32((uint16_t)(words[word] >> k % 2 * 16));
}

/* What the lanes of a warp hold of 16 rows, 8 columns and their sums, multiplied. */
static void multiply_fragments(void *const own[MOEC_BLOCKS_WARP])
{
    const moec_cuda_fragments *const *lanes = (const moec_cuda_fragments *const *)own;
    float b[16][8];
    for (uint32_t k = 0; k < 16; k++)
        for (uint32_t column = 0; column < 8; column++)
            b[k][column] = bf16_of(lanes[column * 4 + k % 8 / 2]->b, k / 8, k);
    for (uint32_t row = 0; row < 16; row++) {
        float sums[8];
        for (uint32_t column = 0; column < 8; column++)
            sums[column] = lanes[row % 8 * 4 + column / 2]->sums[row / 8 * 2 + column % 2];
        for (uint32_t k = 0; k < 16; k++) {
            const float a = bf16_of(lanes[row % 8 * 4 + k % 8 / 2]->a, row / 8 + k / 8 * 2, k);
            for (uint32_t column = 0; column < 8; column++)
                sums[column] = sums[column] + a * b[k][column];
        }
        for (uint32_t column = 0; column < 8; column++)
            lanes[row % 8 * 4 + column / 2]->sums[row / 8 * 2 + column % 2] = sums[column];
    }
}
#endif

/* sums += a by b. A lane's sums are of rows lane / 4 and, two further, that and 8; of columns lane % 4 * 2
 * and the next. */
__device__ static __forceinline__ void multiply_add(const uint32_t a[4], const uint32_t b[2], float sums[4])
{
#if defined(__CUDACC__)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    moec_cuda_fragments own = {a, b, sums};
    moec_blocks_together(0xffffffffu, multiply_fragments, &own);
#endif
}

#endif
