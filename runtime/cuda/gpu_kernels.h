/* The kernels that the backend of a GPU launches, as a table: libmoert links none of them. libmoert-cuda.so
 * has one made by nvcc, tests one made by the C++ compiler. Members are functions of
 * runtime/cuda/kernels/cuda_kernels.h, where thread rule and errors are. */
#ifndef MOEC_RUNTIME_GPU_KERNELS_H
#define MOEC_RUNTIME_GPU_KERNELS_H

#include "runtime/cuda/kernels/cuda_kernels.h"

struct moec_gpu_kernels {
    void (*product)(struct moec_gpu_stream *stream, const struct moec_cuda_product *product);
    void (*sum)(struct moec_gpu_stream *stream, const struct moec_cuda_sum *sum);
    void (*lookup)(struct moec_gpu_stream *stream, const struct moec_cuda_lookup *lookup);
    void (*norm)(struct moec_gpu_stream *stream, const struct moec_cuda_norm *norm);
    void (*addition)(struct moec_gpu_stream *stream, const struct moec_cuda_addition *addition);
    void (*scaling)(struct moec_gpu_stream *stream, const struct moec_cuda_scaling *scaling);
    void (*rotation)(struct moec_gpu_stream *stream, const struct moec_cuda_rotation *rotation);
    void (*attention)(struct moec_gpu_stream *stream, const struct moec_cuda_attention *attention);
    void (*convolution)(struct moec_gpu_stream *stream, const struct moec_cuda_convolution *convolution);
    void (*rates)(struct moec_gpu_stream *stream, const struct moec_cuda_rates *rates);
    void (*recurrence)(struct moec_gpu_stream *stream, const struct moec_cuda_recurrence *recurrence);
    void (*gating)(struct moec_gpu_stream *stream, const struct moec_cuda_gating *gating);
    void (*mlp)(struct moec_gpu_stream *stream, const struct moec_cuda_mlp *mlp);
    void (*marking)(struct moec_gpu_stream *stream, const struct moec_cuda_marking *marking);
    void (*scatter)(struct moec_gpu_stream *stream, const struct moec_cuda_scatter *scatter);
    void (*combination)(struct moec_gpu_stream *stream, const struct moec_cuda_combination *combination);
    void (*draw)(struct moec_gpu_stream *stream, const struct moec_cuda_draw *draw);
};

/* All of them, in the order of the members, for whoever links them. */
#define MOEC_GPU_KERNELS                                                                                     \
    {                                                                                                        \
        moec_cuda_product_run, moec_cuda_sum_run, moec_cuda_lookup_run, moec_cuda_norm_run,                  \
            moec_cuda_addition_run, moec_cuda_scaling_run, moec_cuda_rotation_run, moec_cuda_attention_run,  \
            moec_cuda_convolution_run, moec_cuda_rates_run, moec_cuda_recurrence_run, moec_cuda_gating_run,  \
            moec_cuda_mlp_run, moec_cuda_marking_run, moec_cuda_scatter_run, moec_cuda_combination_run,      \
            moec_cuda_draw_run                                                                               \
    }

#endif
