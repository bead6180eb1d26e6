/* The kernel tests on a real device. The compiler includes this before tests/unit/test_cuda_*.c (-include),
 * so that the same tests serve both: what they allocate is pinned memory, which the device reaches at the
 * same address as the processor, and each launch is waited for before its outputs are looked at. Their main
 * runs on a stack of pinned memory (pinned.cu), for the arrays that they have there. Memory of the program
 * itself, that of static variables, is not reached: tests give kernels none of it.
 *
 * Each allocation is one of CUDA's, so that compute-sanitizer knows where it ends. Thread rule: one thread.
 */
#ifndef MOEC_TESTS_GPU_PINNED_H
#define MOEC_TESTS_GPU_PINNED_H

#include "runtime/cuda/kernels/cuda_kernels.h"

#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Errors end the program. */
void *moec_pinned_alloc(size_t n_bytes);
void *moec_pinned_zeroed(size_t n, size_t size);
void moec_pinned_free(void *memory); /* of libraries too */
void moec_pinned_finish(void);       /* waits for what was launched */
int moec_pinned_main(void);          /* the test's main */

#ifdef __cplusplus
}
#else

#define main            moec_pinned_main
#define malloc(n_bytes) moec_pinned_alloc(n_bytes)
#define calloc(n, size) moec_pinned_zeroed((n), (size))
#define free(memory)    moec_pinned_free(memory)

#define moec_cuda_product_run(...)     (moec_cuda_product_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_sum_run(...)         (moec_cuda_sum_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_lookup_run(...)      (moec_cuda_lookup_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_norm_run(...)        (moec_cuda_norm_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_addition_run(...)    (moec_cuda_addition_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_scaling_run(...)     (moec_cuda_scaling_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_rotation_run(...)    (moec_cuda_rotation_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_draw_run(...)        (moec_cuda_draw_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_attention_run(...)   (moec_cuda_attention_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_convolution_run(...) (moec_cuda_convolution_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_rates_run(...)       (moec_cuda_rates_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_recurrence_run(...)  (moec_cuda_recurrence_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_gating_run(...)      (moec_cuda_gating_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_combination_run(...) (moec_cuda_combination_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_marking_run(...)     (moec_cuda_marking_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_scatter_run(...)     (moec_cuda_scatter_run(__VA_ARGS__), moec_pinned_finish())
#define moec_cuda_mlp_run(...)         (moec_cuda_mlp_run(__VA_ARGS__), moec_pinned_finish())

#endif

#endif
