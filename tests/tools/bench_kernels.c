/* How close the kernels come to what the processor can do, on one core.
 *
 * Products are reported in billions of multiply-adds a second beside the rate of a loop of independent fused
 * multiply-adds in registers; one token's encoded products in billions of weights a second on rows that stay
 * in the second-level cache: what computing alone allows. From memory, and of several tokens: moec bench
 * --kernels. The loops of the machine and of the kernel alternate, and each keeps its best time, because
 * other work shares the core. */
#include "runtime/kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ROUNDS 60

static double now_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *allocate(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == NULL) {
        (void)fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return memory;
}

static float *random_floats(size_t n)
{
    float *values = allocate(n * sizeof *values);
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(int32_t)state * 0x1p-32f;
    }
    return values;
}

/* ---- what the machine can do ---- */

static volatile float sink;

#if defined(__x86_64__)
#define PEAK_LOOP(type, zero, set, fma, chains)                                                              \
    type sums[chains];                                                                                       \
    const type a = set(0.999f), b = set(1e-3f);                                                              \
    for (int i = 0; i < (chains); i++)                                                                       \
        sums[i] = zero();                                                                                    \
    for (uint64_t r = 0; r < repeats; r++)                                                                   \
        _Pragma("GCC unroll 16") for (int i = 0; i < (chains); i++) sums[i] = fma(sums[i], a, b);            \
    float out[sizeof(type) / sizeof(float)];                                                                 \
    for (int i = 0; i < (chains); i++) {                                                                     \
        memcpy(out, &sums[i], sizeof out);                                                                   \
        sink = out[0];                                                                                       \
    }                                                                                                        \
    return (double)repeats * (chains) * (double)(sizeof(type) / sizeof(float))

__attribute__((target("avx2,fma"))) static double peak_avx2(uint64_t repeats)
{
    PEAK_LOOP(__m256, _mm256_setzero_ps, _mm256_set1_ps, _mm256_fmadd_ps, 12);
}

__attribute__((target("avx512f"))) static double peak_avx512(uint64_t repeats)
{
    PEAK_LOOP(__m512, _mm512_setzero_ps, _mm512_set1_ps, _mm512_fmadd_ps, 12);
}
#endif

/* Multiply-adds done. */
static double peak_work(const struct moec_kernels *set, uint64_t repeats)
{
#if defined(__x86_64__)
    if (strncmp(set->name, "avx512", 6) == 0)
        return peak_avx512(repeats);
    if (strcmp(set->name, "avx2") == 0)
        return peak_avx2(repeats);
#endif
    float sums[8] = {0};
    (void)set;
    for (uint64_t r = 0; r < repeats; r++)
        for (int i = 0; i < 8; i++)
            sums[i] = sums[i] * 0.999f + 1e-3f;
    for (int i = 0; i < 8; i++)
        sink = sums[i];
    return (double)repeats * 8;
}

/* ---- measuring ---- */

struct shape {
    uint32_t n_tok, n_rows, k;
};

struct operands {
    const float *x, *w;
    float *y;
    const struct moec_matrix *matrix;
};

typedef void bench_body(const struct moec_kernels *set, struct shape shape, const struct operands *operands);

static void run_dot(const struct moec_kernels *set, struct shape s, const struct operands *o)
{
    set->dot(o->x, s.k, s.n_tok, o->w, s.k, s.n_rows, s.k, o->y, s.n_rows);
}

/* n_rows neurons by k columns, in chunks, as a down projection is summed. */
static void run_sum_chunk(const struct moec_kernels *set, struct shape s, const struct operands *o)
{
    for (uint32_t n = 0; n < s.n_rows; n += MOEC_SUM_CHUNK)
        set->sum_chunk(o->x + n, s.n_rows, s.n_tok, o->w + (size_t)n * s.k, s.k, MOEC_SUM_CHUNK, s.k, o->y,
                       s.k);
}

static void run_dot_encoded(const struct moec_kernels *set, struct shape s, const struct operands *o)
{
    set->dot_encoded(o->matrix, 0, s.n_rows, o->x, o->y);
}

static void run_sum_chunk_encoded(const struct moec_kernels *set, struct shape s, const struct operands *o)
{
    for (uint32_t n = 0; n < s.n_rows; n += MOEC_SUM_CHUNK)
        set->sum_chunk_encoded(o->matrix, n, MOEC_SUM_CHUNK, o->x + n, o->y);
}

static void run_decode(const struct moec_kernels *set, struct shape s, const struct operands *o)
{
    set->decode_rows(o->matrix, 0, s.n_rows, o->y, s.k);
}

struct rates {
    double kernel; /* multiply-adds (or weights) a second */
    double peak;
};

static struct rates measure(bench_body *body, const struct moec_kernels *set, struct shape s,
                            const struct operands *o)
{
    struct rates best = {0};
    double work = (double)s.n_tok * s.n_rows * s.k;
    uint64_t peak_repeats = 400000;
    if (strcmp(set->name, "scalar") == 0)
        peak_repeats = 100000;
    body(set, s, o);
    double start = now_seconds();
    body(set, s, o);
    double once = now_seconds() - start;
    int repeats = once > 0.0007 ? 1 : (int)(0.0007 / (once + 1e-9)) + 1;
    for (int round = 0; round < ROUNDS; round++) {
        start = now_seconds();
        double done = peak_work(set, peak_repeats), rate = done / (now_seconds() - start);
        best.peak = rate > best.peak ? rate : best.peak;
        start = now_seconds();
        for (int i = 0; i < repeats; i++)
            body(set, s, o);
        rate = work * repeats / (now_seconds() - start);
        best.kernel = rate > best.kernel ? rate : best.kernel;
    }
    return best;
}

static void bench_products(const struct moec_kernels *set)
{
    static const struct shape shapes[] = {
        {64, 128, 256},  {64, 1024, 256},  {64, 6144, 256},  {512, 1024, 256}, {256, 512, 128},
        {64, 1024, 512}, {64, 1024, 2048}, {128, 256, 4096}, {1, 1024, 256},   {2, 1024, 256},
        {3, 1024, 256},  {4, 1024, 256},   {16, 1024, 256},  {8, 512, 64}};
    static const struct {
        const char *name;
        bench_body *body;
    } products[] = {{"dot", run_dot}, {"sum_chunk", run_sum_chunk}};
    for (size_t p = 0; p < 2; p++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            struct shape s = shapes[i];
            if (strcmp(set->name, "scalar") == 0 && i > 0)
                break;
            float *x = random_floats((size_t)s.n_tok * (s.k + s.n_rows)),
                  *w = random_floats((size_t)s.n_rows * s.k);
            float *y = allocate((size_t)s.n_tok * (s.n_rows + s.k) * sizeof *y);
            struct operands operands = {.x = x, .w = w, .y = y};
            struct rates rates = measure(products[p].body, set, s, &operands);
            (void)printf("%-8s %-18s T %4u  R %5u  K %5u  %7.2f GFMA/s of %7.2f  %3.0f %%\n", set->name,
                         products[p].name, s.n_tok, s.n_rows, s.k, rates.kernel * 1e-9, rates.peak * 1e-9,
                         100 * rates.kernel / rates.peak);
            free(x);
            free(w);
            free(y);
        }
    }
}

static struct moec_matrix encode(struct moec_codec codec, uint32_t rows, uint32_t columns)
{
    size_t stride = moec_codec_row_bytes(codec, columns);
    uint8_t *data = allocate(rows * stride);
    float *w = random_floats(columns);
    struct moec_error err = {0};
    for (uint32_t r = 0; r < rows; r++) {
        w[r % columns] = -w[r % columns];
        if (moec_codec_encode_row(codec, w, columns, data + r * stride, &err) != MOEC_OK) {
            (void)fprintf(stderr, "%s\n", err.message);
            exit(1);
        }
    }
    free(w);
    return (struct moec_matrix){
        .codec = codec, .rows = rows, .columns = columns, .stride_bytes = stride, .data = data};
}

static void bench_codec(const struct moec_kernels *set, struct moec_codec codec, uint32_t rows,
                        uint32_t columns)
{
    static const struct {
        const char *name;
        bench_body *body;
    } kernels[] = {{"dot_encoded", run_dot_encoded},
                   {"sum_chunk_encoded", run_sum_chunk_encoded},
                   {"decode_rows", run_decode}};
    struct shape s = {.n_tok = 1, .n_rows = rows, .k = columns};
    struct moec_matrix matrix = encode(codec, rows, columns);
    size_t bytes = rows * matrix.stride_bytes;
    float *x = random_floats(rows > columns ? rows : columns);
    float *y = allocate((size_t)rows * columns * sizeof *y);
    struct operands operands = {.x = x, .y = y, .matrix = &matrix};
    char name[40];
    for (size_t i = 0; i < 3; i++) {
        struct rates rates = measure(kernels[i].body, set, s, &operands);
        (void)printf("%-8s %-18s %-28s %4u x %4u  %6.2f Gweights/s  %6.2f GB/s  %5.2f weights/FMA\n",
                     set->name, kernels[i].name, moec_codec_name(codec, name), rows, columns,
                     rates.kernel * 1e-9, rates.kernel * 1e-9 * (double)bytes / ((double)rows * columns),
                     rates.kernel / rates.peak);
    }
    free(x);
    free(y);
    free((void *)(uintptr_t)matrix.data);
}

static void bench_encoded(const struct moec_kernels *set)
{
    static const struct moec_codec codecs[] = {{.dtype = MOEC_DTYPE_INT2},
                                               {.dtype = MOEC_DTYPE_INT3},
                                               {.dtype = MOEC_DTYPE_INT4},
                                               {.dtype = MOEC_DTYPE_INT4, .group = 32},
                                               {.dtype = MOEC_DTYPE_INT4, .scheme = 1, .group = 64},
                                               {.dtype = MOEC_DTYPE_INT5},
                                               {.dtype = MOEC_DTYPE_INT6},
                                               {.dtype = MOEC_DTYPE_INT8},
                                               {.dtype = MOEC_DTYPE_INT2, .scheme = 1, .group = 64},
                                               {.dtype = MOEC_DTYPE_INT2, .scheme = 5, .group = 64},
                                               {.dtype = MOEC_DTYPE_INT2, .scheme = 5, .group = 32},
                                               {.dtype = MOEC_DTYPE_INT2, .scheme = 5, .group = 16},
                                               {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_SHIFT},
                                               {.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_SHIFT},
                                               {.dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_SHIFT},
                                               {.dtype = MOEC_DTYPE_INT3, .scheme = 5, .group = 64},
                                               {.dtype = MOEC_DTYPE_INT4, .scheme = 5, .group = 64},
                                               {.dtype = MOEC_DTYPE_INT4, .scheme = 1, .group = 16},
                                               {.dtype = MOEC_DTYPE_INT5, .scheme = 5, .group = 64},
                                               {.dtype = MOEC_DTYPE_INT6, .scheme = 5, .group = 64},
                                               {.dtype = MOEC_DTYPE_BF16},
                                               {.dtype = MOEC_DTYPE_F16},
                                               {.dtype = MOEC_DTYPE_F32}};
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        bench_codec(set, codecs[i], 512, 256);
        bench_codec(set, codecs[i], 256, 2048);
    }
}

int main(int argc, char **argv)
{
    const struct moec_kernels *set = NULL;
    struct moec_error err = {0};
    if (argc > 2 || moec_kernels_find(argc == 2 ? argv[1] : "auto", &set, &err) != MOEC_OK) {
        (void)fprintf(stderr, "bench_kernels: %s\nusage: bench_kernels [scalar|avx2|avx512|auto]\n",
                      err.message);
        return 2;
    }
    bench_products(set);
    bench_encoded(set);
    return 0;
}
