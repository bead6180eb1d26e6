/* The clock of a GPU, from its description. */
#include "profiler/simulate/simulated_tiers.h"

#include "formats/base/memory.h"

#include <math.h>

void moec_simulated_gpu_release(struct moec_simulated_gpu *gpu)
{
    free(gpu->copy_ns);
    free(gpu->compute_ns);
    *gpu = (struct moec_simulated_gpu){0};
}

/* By the described bitwidth whose record is nearest in size. */
static double expert_ns(const struct moec_gpu_description *gpu, uint64_t n_bytes)
{
    double best = INFINITY, ns = 0;
    for (uint32_t i = 0; i < gpu->n_experts; i++) {
        const double distance = fabs(log((double)gpu->experts[i].record_bytes / (double)n_bytes));
        if (distance < best) {
            best = distance;
            ns = (double)gpu->experts[i].compute_ns;
        }
    }
    return ns;
}

/* Experts of a token by themselves, at the described sizes. */
static double token_experts_ns(const struct moec_gpu_description *gpu,
                               const struct moec_simulated_model *described)
{
    double sum_ns = 0;
    const uint32_t first = described->shape.n_encoder * described->shape.n_expert,
                   n_key = described->shape.n_layer * described->shape.n_expert;
    for (uint32_t key = first; key < n_key; key++)
        sum_ns += expert_ns(gpu, described->records.record_bytes[key]);
    return sum_ns / described->shape.n_expert * described->shape.top_k;
}

/* Experts of a layer are launched together and take less time than one after the other: their times are
 * scaled down where a measured token leaves no more. What is left of it is spread evenly before the answers
 * and behind the last layer. */
enum moec_status moec_simulated_gpu_make(const struct moec_gpu_description *gpu,
                                         const struct moec_simulated_model *model,
                                         const struct moec_simulated_model *described,
                                         struct moec_simulated_gpu *out, struct moec_error *err)
{
    const struct moec_simulated_model *sizes = described != NULL ? described : model;
    const uint32_t n_key = model->shape.n_layer * model->shape.n_expert,
                   n_passed = model->shape.n_layer - model->shape.n_encoder;
    enum moec_status status = MOEC_OK;
    *out = (struct moec_simulated_gpu){0};
    if (gpu->name[0] == '\0')
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the device description has no GPU: measure one with moec device --device cuda");
    if (gpu->n_experts == 0 || isnan(moec_gpu_copy_ns(gpu, true, 1)))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the description of the GPU '%s' has no times of %s: measure the GPU again with "
                         "moec device",
                         gpu->name, gpu->n_experts == 0 ? "experts" : "copies from pinned memory");
    MOEC_TRY_OUT(moec_alloc((void **)&out->copy_ns, n_key, sizeof(double), "simulated device", err));
    MOEC_TRY_OUT(moec_alloc((void **)&out->compute_ns, n_key, sizeof(double), "simulated device", err));
    const double token_ns = (double)gpu->token_ns, all_ns = token_experts_ns(gpu, sizes);
    const double factor = all_ns > token_ns && all_ns > 0 ? token_ns / all_ns : 1;
    for (uint32_t key = 0; key < n_key; key++) {
        out->copy_ns[key] = moec_gpu_copy_ns(gpu, true, model->records.record_bytes[key]);
        out->compute_ns[key] = factor * expert_ns(gpu, model->records.record_bytes[key]);
    }
    out->gap_ns = (token_ns - factor * all_ns) / (n_passed + 1);
    out->ns_per_position = gpu->ns_per_position;
    out->answer_ns = (double)gpu->answer_ns;
out:
    if (status != MOEC_OK)
        moec_simulated_gpu_release(out);
    return status;
}
