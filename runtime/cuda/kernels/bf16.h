/* The arithmetic by name "bf16", for devices with tensor cores: products of BF16 with F32 sums. It is for
 * many tokens (prompts, evaluation), where the canonical products take the time. It changes the output a
 * little, and a loss or a certificate means one arithmetic.
 *
 *     dot over K:          y = sum over k of b(x[k]) b(w[k])
 *     weighted sum over N: y[c] = sum over n of b(h[n]) b(w[n][c]), a bias after it
 *
 * b() is the nearest BF16, ties to even; a weight is decoded to F32 as everywhere, (code - zero) * scale for
 * evenly spaced codes, and then rounded. k and n rise in steps of 16 places into one F32 sum for each output,
 * from +0 on, with zeros up to a multiple of 32. A step is one product of a tensor core (mma.sync.m16n8k16,
 * runtime/cuda/kernels/mma.cuh): the order within it is the hardware's. So an output depends on its token's
 * row and its weights alone: on one kind of device it is the same at every chunking, batch, memory and thread
 * count (D1). Kinds of devices may differ.
 *
 * It serves all codecs, in projections of attention and of running layers, MLPs, experts and the head.
 * Routers, gates of shared experts, rates of running layers, attention itself with the products of latents
 * per head, norms, activations, sums over ranks, embeddings and sampling stay canonical.
 *
 * Source: products of BF16 with F32 sums are how these models were trained (Kalamkar et al., 2019). */
#ifndef MOEC_RUNTIME_CUDA_BF16_H
#define MOEC_RUNTIME_CUDA_BF16_H

#include "runtime/cuda/kernels/cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whose `rounded` is not NULL (internal to runtime/cuda/kernels: callers launch moec_cuda_product_run and
 * moec_cuda_mlp_run). */
void moec_cuda_bf16_product(struct moec_gpu_stream *stream, const struct moec_cuda_product *product);
void moec_cuda_bf16_mlp(struct moec_gpu_stream *stream, const struct moec_cuda_mlp *mlp);

#ifdef __cplusplus
}
#endif

#endif
