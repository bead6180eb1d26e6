/* How fast the device's kernels read weights, beside its own copies: experts and a prefill at the sizes of
 * OLMoE-1B-7B and Mixtral-8x7B, with random codes. Prints the figures of a step of tests/gpu/all.sh: name,
 * value, unit and goal between tabs.
 *
 *     speeds experts        16, 8, 4 and 2 bits, one token; and with neurons left out
 *     speeds prefill PEAK   4,096 tokens, beside PEAK TFLOP/s of F32 (build/gpu/peak f32): a product with a
 *                           dense matrix, and the experts of a layer, to which all tokens go equally often
 *     speeds bf16 PEAK      the same in the arithmetic bf16, beside that of tensor cores (peak bf16)
 *
 * The library of GPUs is looked for beside the program. Ends with 77 where there is no device. */
#include "formats/base/memory.h"
#include "profiler/device/gpu_speed.h"
#include "runtime/cuda/gpu_library.h"
#include "runtime/kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_NS     200000000u
#define CACHE_BYTES  ((uint64_t)256 << 20)
#define WITHIN_BYTES ((uint64_t)1 << 30)
#define PINNED_BYTES ((uint64_t)256 << 20)

struct shape {
    const char *name;
    uint32_t n_ff, n_embd, top_k, n_expert;
};

static const struct shape shapes[] = {{"OLMoE", 1024, 2048, 8, 64}, {"Mixtral", 14336, 4096, 2, 8}};

/* Goals: the share of copy bandwidth that a product with one token reads its weights with. */
static const struct {
    const char *name, *goal;
    struct moec_codec codec;
} codecs[] = {
    {"16 bits", ">= 0.85", {.dtype = MOEC_DTYPE_BF16}},
    {"8 bits", ">= 0.85", {.dtype = MOEC_DTYPE_INT8}},
    {"4 bits", ">= 0.60", {.dtype = MOEC_DTYPE_INT4, .group = 64}},
    {"2 bits", "", {.dtype = MOEC_DTYPE_INT2, .group = 64}},
};

enum { TOKENS = 4096 }; /* of a prompt */

static void figure(const char *shape, const char *name, const char *what, double value, const char *unit,
                   const char *goal)
{
    printf("%s %s%s%s\t%.4g\t%s\t%s\n", shape, name, what[0] != '\0' ? " " : "", what, value, unit, goal);
}

/* An expert of three matrices behind one another, of bytes of no pattern; *record is the caller's. */
static enum moec_status make_expert(const struct shape *shape, struct moec_codec codec, struct moec_mlp *mlp,
                                    uint8_t **record, uint64_t *n_bytes, struct moec_error *err)
{
    const size_t stride = moec_codec_row_bytes(codec, shape->n_embd);
    const uint64_t each = (uint64_t)shape->n_ff * stride;
    uint64_t state = 88172645463325252u;
    *n_bytes = 3 * each;
    MOEC_TRY(moec_alloc((void **)record, *n_bytes, 1, "an expert", err));
    for (uint64_t i = 0; i < *n_bytes; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (*record)[i] = (uint8_t)(state >> 40) & 0xbb; /* no float of 16 bits is infinite */
    }
    struct moec_matrix *const parts[] = {&mlp->gate, &mlp->up, &mlp->down};
    for (int i = 0; i < 3; i++)
        *parts[i] = (struct moec_matrix){.codec = codec,
                                         .rows = shape->n_ff,
                                         .columns = shape->n_embd,
                                         .stride_bytes = stride,
                                         .data = *record + (uint64_t)i * each};
    return MOEC_OK;
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The threshold that leaves this share of the neurons out for the input that measurements take. */
static enum moec_status find_threshold(const struct moec_mlp *mlp, double share, float *threshold,
                                       struct moec_error *err)
{
    float *x = NULL, *up = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc((void **)&x, moec_lanes_padded(mlp->up.columns), sizeof *x, "an input", err));
    MOEC_TRY_OUT(moec_alloc((void **)&up, mlp->up.rows, sizeof *up, "outputs", err));
    for (uint32_t i = 0; i < mlp->up.columns; i++)
        x[i] = moec_gpu_speed_input(i);
    moec_kernels_best()->dot_encoded(&mlp->up, 0, mlp->up.rows, x, up);
    for (uint32_t i = 0; i < mlp->up.rows; i++)
        up[i] = fabsf(up[i]);
    qsort(up, mlp->up.rows, sizeof *up, compare_floats);
    *threshold = up[(size_t)(share * mlp->up.rows)];
out:
    free(x);
    free(up);
    return status;
}

/* The same experts with neurons left out, beside all of them; `mlp` is the batch's. */
static enum moec_status measure_sparse(const struct moec_gpu_speed *speed, const struct shape *shape,
                                       const struct moec_gpu_speed_batch *batch, struct moec_mlp *mlp,
                                       uint64_t dense_ns, struct moec_error *err)
{
    static const struct {
        double share;
        const char *what, *goal;
    } cases[] = {{0.7, "with 70 % of the neurons left out", ">= 1.5"},
                 {0.9, "with 90 % of the neurons left out", ">= 2"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t ns = 0;
        mlp->filter = (struct moec_mlp_filter){.is_on = true, .at = MOEC_PROJECTION_UP};
        MOEC_TRY(find_threshold(mlp, cases[i].share, &mlp->filter.threshold, err));
        MOEC_TRY(moec_gpu_speed_experts(speed, batch, &ns, err));
        figure(shape->name, "4 bits", cases[i].what, (double)dense_ns / (double)ns, "times", cases[i].goal);
    }
    return MOEC_OK;
}

static enum moec_status measure_shape(const struct moec_gpu_speed *speed, const struct shape *shape,
                                      double copied, struct moec_error *err)
{
    double weight_ns[4] = {0};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        struct moec_mlp mlp = {.activation = MOEC_ACTIVATION_SILU};
        uint8_t *record = NULL;
        uint64_t n_bytes = 0, ns = 0;
        enum moec_status status = make_expert(shape, codecs[c].codec, &mlp, &record, &n_bytes, err);
        const struct moec_gpu_speed_batch batch = {&mlp, record, n_bytes, shape->top_k, 1, shape->top_k};
        if (status == MOEC_OK)
            status = moec_gpu_speed_experts(speed, &batch, &ns, err);
        if (status == MOEC_OK) {
            const double rate = (double)n_bytes * shape->top_k / (double)ns;
            weight_ns[c] = (double)ns / (3.0 * shape->n_ff * shape->n_embd * shape->top_k);
            figure(shape->name, codecs[c].name, "", (double)ns / 1e3, "us", "");
            figure(shape->name, codecs[c].name, "weights read", rate, "GB/s", "");
            figure(shape->name, codecs[c].name, "share of copy bandwidth", rate / copied, "", codecs[c].goal);
        }
        if (status == MOEC_OK && codecs[c].codec.dtype == MOEC_DTYPE_INT4)
            status = measure_sparse(speed, shape, &batch, &mlp, ns, err);
        free(record);
        MOEC_TRY(status);
    }
    figure(shape->name, "2 bits", "time of a weight beside 4 bits", weight_ns[3] / weight_ns[2], "", "<= 1");
    return MOEC_OK;
}

static enum moec_status measure_experts(const struct moec_gpu_speed *speed, struct moec_error *err)
{
    uint64_t within_ns = 0, to_ns = 0, from_ns = 0;
    MOEC_TRY(moec_gpu_speed_copy(speed, MOEC_GPU_WITHIN, true, WITHIN_BYTES, &within_ns, err));
    MOEC_TRY(moec_gpu_speed_copy(speed, MOEC_GPU_TO_DEVICE, true, PINNED_BYTES, &to_ns, err));
    MOEC_TRY(moec_gpu_speed_copy(speed, MOEC_GPU_TO_HOST, true, PINNED_BYTES, &from_ns, err));
    const double copied = 2.0 * (double)WITHIN_BYTES / (double)within_ns;
    figure("copy", "within the device", "(read and written)", copied, "GB/s", "");
    figure("copy", "to the device", "", (double)PINNED_BYTES / (double)to_ns, "GB/s", "");
    figure("copy", "from the device", "", (double)PINNED_BYTES / (double)from_ns, "GB/s", "");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        MOEC_TRY(measure_shape(speed, &shapes[s], copied, err));
    return MOEC_OK;
}

static void prefill_figures(const struct shape *shape, const char *codec, const char *what, double n_flop,
                            uint64_t ns, const char *peak_name, double peak)
{
    char rate_name[64], share_name[96];
    const double rate = n_flop / ((double)ns * 1e3);
    (void)snprintf(rate_name, sizeof rate_name, "%s with %d tokens", what, TOKENS);
    (void)snprintf(share_name, sizeof share_name, "%s, share of %s peak", rate_name, peak_name);
    figure(shape->name, codec, rate_name, rate, "TFLOP/s", "");
    figure(shape->name, codec, share_name, rate / peak, "", ">= 0.50");
}

static enum moec_status measure_prefill_of(const struct moec_gpu_speed *speed, const struct shape *shape,
                                           size_t c, const char *peak_name, double peak,
                                           struct moec_error *err)
{
    struct moec_mlp mlp = {.activation = MOEC_ACTIVATION_SILU};
    uint8_t *record = NULL;
    uint64_t n_bytes = 0, ns = 0;
    enum moec_status status = MOEC_OK;
    const double n_weight = (double)shape->n_embd * shape->n_embd;
    const double n_expert_weight = 3.0 * shape->n_ff * shape->n_embd * shape->top_k;
    MOEC_TRY(moec_gpu_speed_product(
        speed,
        &(struct moec_matrix){.codec = codecs[c].codec, .rows = shape->n_embd, .columns = shape->n_embd},
        TOKENS, &n_bytes, &ns, err));
    prefill_figures(shape, codecs[c].name, "product", 2 * TOKENS * n_weight, ns, peak_name, peak);
    MOEC_TRY(make_expert(shape, codecs[c].codec, &mlp, &record, &n_bytes, err));
    MOEC_TRY_OUT(moec_gpu_speed_experts(
        speed, &(struct moec_gpu_speed_batch){&mlp, record, n_bytes, shape->n_expert, TOKENS, shape->top_k},
        &ns, err));
    prefill_figures(shape, codecs[c].name, "experts", 2 * TOKENS * n_expert_weight, ns, peak_name, peak);
out:
    free(record);
    return status;
}

static enum moec_status measure_prefill(const struct moec_gpu_speed *speed, double peak,
                                        struct moec_error *err)
{
    const char *const peak_name = speed->arithmetic == MOEC_ARITHMETIC_BF16 ? "BF16" : "F32";
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
            MOEC_TRY(measure_prefill_of(speed, &shapes[s], c, peak_name, peak, err));
    return MOEC_OK;
}

int main(int argc, char **argv)
{
    const struct moec_gpu_entry *entry = NULL;
    struct moec_gpu_speed speed = {.limit_ns = LIMIT_NS, .cache_bytes = CACHE_BYTES};
    struct moec_error err = {0};
    const bool is_bf16 = argc == 3 && strcmp(argv[1], "bf16") == 0;
    const bool is_prefill = argc == 3 && strcmp(argv[1], "prefill") == 0;
    const double peak = is_bf16 || is_prefill ? strtod(argv[2], NULL) : 0;
    const bool is_experts = argc == 2 && strcmp(argv[1], "experts") == 0;
    if (!is_experts && !(peak > 0)) {
        fprintf(stderr, "usage: speeds experts | speeds prefill PEAK | speeds bf16 PEAK\n");
        return 2;
    }
    enum moec_status status = moec_gpu_library_open(&entry, &err);
    if (status == MOEC_OK)
        status = entry->open(0, &speed.gpu, &err);
    if (status == MOEC_OK) {
        speed.kernels = entry->kernels;
        speed.arithmetic = is_bf16 ? MOEC_ARITHMETIC_BF16 : MOEC_ARITHMETIC_CANONICAL;
        status = speed.gpu->ops->stream_create(speed.gpu, &speed.stream, &err);
        if (status == MOEC_OK)
            status = is_experts ? measure_experts(&speed, &err) : measure_prefill(&speed, peak, &err);
        speed.gpu->ops->stream_free(speed.gpu, speed.stream);
        speed.gpu->ops->close(speed.gpu);
    }
    if (status != MOEC_OK)
        fprintf(stderr, "speeds: %s\n", err.message);
    return status == MOEC_OK ? 0 : status == MOEC_ERR_UNSUPPORTED ? 77 : 1;
}
