/* A turn takes the rows after those of the turn before: the whole matrix is read before a row comes again.
 * Reading, dot and sum take turns. Each share is of the reading in the same turn, and medians are of shares,
 * not of rates. The first turn is not counted. */
#include "profiler/bench/kernel_bench.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/bench/bench_matrix.h"
#include "profiler/common/available_memory.h"
#include "profiler/common/quantiles.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/threads/parallel.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS        MOEC_BENCH_COLUMNS
#define TURNS          5
#define REGIONS        2000
#define LEAST_BYTES    ((uint64_t)128 << 20)
#define SCALAR_BYTES   ((uint64_t)256 << 10)
#define READ_STREAMS   4
#define READ_AHEAD     1024
#define ITEMS_A_THREAD 16
#define MIB(bytes)     ((double)(bytes) / (double)(1u << 20))

static const struct moec_codec codecs[] = {
    {.dtype = MOEC_DTYPE_INT1, .group = 64},
    {.dtype = MOEC_DTYPE_INT2},
    {.dtype = MOEC_DTYPE_INT2, .group = 32},
    {.dtype = MOEC_DTYPE_INT2, .group = 64},
    {.dtype = MOEC_DTYPE_INT2, .group = 64, .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED},
    {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_SHIFT},
    {.dtype = MOEC_DTYPE_INT3},
    {.dtype = MOEC_DTYPE_INT3, .group = 64},
    {.dtype = MOEC_DTYPE_INT3, .group = 64, .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED},
    {.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_SHIFT},
    {.dtype = MOEC_DTYPE_INT4},
    {.dtype = MOEC_DTYPE_INT4, .group = 32},
    {.dtype = MOEC_DTYPE_INT4, .group = 64},
    {.dtype = MOEC_DTYPE_INT4, .group = 128},
    {.dtype = MOEC_DTYPE_INT4, .group = 64, .scheme = MOEC_SCHEME_ASYMMETRIC},
    {.dtype = MOEC_DTYPE_INT4, .group = 64, .scheme = MOEC_SCHEME_SYMMETRIC_NESTED},
    {.dtype = MOEC_DTYPE_INT4, .group = 64, .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED},
    {.dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_SHIFT},
    {.dtype = MOEC_DTYPE_INT5},
    {.dtype = MOEC_DTYPE_INT6},
    {.dtype = MOEC_DTYPE_INT8},
    {.dtype = MOEC_DTYPE_INT8, .group = 32},
    {.dtype = MOEC_DTYPE_INT8, .group = 64, .scheme = MOEC_SCHEME_ASYMMETRIC},
    {.dtype = MOEC_DTYPE_MXFP4},
    {.dtype = MOEC_DTYPE_BF16},
};
enum { N_CODEC = sizeof codecs / sizeof *codecs };

struct job {
    struct moec_mlp_kernels kernels;
    const struct moec_int8_span *rounded; /* x in the int8 arithmetic */
    struct moec_matrix matrix;
    uint32_t first_row, n_rows; /* of this turn */
    uint32_t n_items;
    const float *x; /* (COLUMNS), also factors of a weighted sum */
    float *y;       /* (rows) results of dot */
    float *sums;    /* (n_threads, COLUMNS) */
    uint64_t *read; /* (n_threads), so that no load is left out */
};

struct meeting {
    int n_threads;
    atomic_int n_met;
};

/* ---- bodies: item i has its share of the turn's rows ---- */

static uint32_t share(const struct job *job, size_t item)
{
    return job->first_row + (uint32_t)((uint64_t)job->n_rows * item / job->n_items);
}

static void dot_item(void *context, size_t item, int thread)
{
    const struct job *job = context;
    (void)thread;
    const uint32_t first = share(job, item);
    const uint32_t n = share(job, item + 1) - first;
    if (job->kernels.int8 != NULL)
        job->kernels.int8->dot(&job->matrix, first, NULL, n, &job->rounded, 1, job->y + first, n);
    else
        job->kernels.all->dot_encoded(&job->matrix, first, n, job->x, job->y + first);
}

static void sum_item(void *context, size_t item, int thread)
{
    const struct job *job = context;
    const struct moec_matrix down = moec_bench_matrix_down(job->matrix);
    const uint32_t end = share(job, item + 1);
    float *sums = job->sums + (size_t)thread * COLUMNS;
    for (uint32_t row = share(job, item); row < end; row += MOEC_SUM_CHUNK) {
        const uint32_t n = end - row < MOEC_SUM_CHUNK ? end - row : MOEC_SUM_CHUNK;
        if (job->kernels.int8 != NULL)
            job->kernels.int8->sum_chunk(&down, row, NULL, n, job->x, n, 1, sums, COLUMNS);
        else
            job->kernels.all->sum_chunk_encoded(&down, row, n, job->x, sums);
    }
}

/* Four streams, because one is not read as fast as memory gives. */
static void read_item(void *context, size_t item, int thread)
{
    typedef uint64_t words __attribute__((vector_size(16)));
    const struct job *job = context;
    const uint32_t first = share(job, item), n_rows = share(job, item + 1) - first;
    const uint8_t *at = job->matrix.data + (size_t)first * job->matrix.stride_bytes;
    const size_t stream = n_rows * job->matrix.stride_bytes / READ_STREAMS / 64 * 64;
    words sums[READ_STREAMS] = {0};
    for (size_t i = 0; i < stream; i += 64) {
        for (size_t s = 0; s < READ_STREAMS; s++) {
            words line[4];
            __builtin_prefetch(at + s * stream + i + READ_AHEAD, 0, 2);
            memcpy(line, at + s * stream + i, sizeof line);
            sums[s] |= (line[0] | line[1]) | (line[2] | line[3]);
        }
    }
    for (size_t s = 0; s < READ_STREAMS; s++)
        job->read[thread] += sums[s][0] + sums[s][1];
}

/* Ends when all threads have one, or after a while: some may not exist. */
static void meeting_item(void *context, size_t item, int thread)
{
    struct meeting *meeting = context;
    (void)item;
    (void)thread;
    atomic_fetch_add(&meeting->n_met, 1);
    for (int i = 0; i < 100000 && atomic_load(&meeting->n_met) < meeting->n_threads; i++)
        continue;
}

/* ---- measuring ---- */

/* The rows behind those of the turn before: the whole matrix is read before any of it is read again. */
static double bytes_per_second(struct job *job, int n_threads, moec_parallel_body *body)
{
    const struct moec_pool pool = moec_pool_make(n_threads);
    const uint64_t rows = MOEC_BENCH_TURN_BYTES / job->matrix.stride_bytes;
    job->first_row += job->n_rows;
    job->n_rows = rows < job->matrix.rows ? (uint32_t)rows : job->matrix.rows;
    if (job->n_rows > job->matrix.rows - job->first_row)
        job->first_row = 0;
    job->n_items = (uint32_t)pool.n_threads * ITEMS_A_THREAD;
    const uint64_t begin_ns = moec_now_ns();
    moec_parallel_for(&pool, job->n_items, body, job);
    const double seconds = (double)(moec_now_ns() - begin_ns) * 1e-9;
    return (double)job->n_rows * (double)job->matrix.stride_bytes / seconds;
}

static double region_ns(int n_threads)
{
    const struct moec_pool pool = moec_pool_make(n_threads);
    double times[TURNS];
    for (int turn = 0; turn < TURNS; turn++) {
        const uint64_t begin_ns = moec_now_ns();
        for (int i = 0; i < REGIONS; i++) {
            struct meeting meeting = {.n_threads = pool.n_threads};
            moec_parallel_for(&pool, (size_t)pool.n_threads, meeting_item, &meeting);
        }
        times[turn] = (double)(moec_now_ns() - begin_ns) / REGIONS;
    }
    return moec_median(times, TURNS);
}

static void measure(struct job *job, int n_threads, struct moec_kernel_bench *bench, double *read_rate)
{
    static moec_parallel_body *const bodies[] = {read_item, dot_item, sum_item};
    static const char *const names[] = {"read", "dot", "sum"};
    double rates[3][TURNS], shares[3][TURNS];
    for (int turn = -1; turn < TURNS; turn++) { /* the first is not counted */
        for (int b = 0; b < 3; b++) {
            const double rate = bytes_per_second(job, n_threads, bodies[b]);
            if (turn < 0)
                continue;
            rates[b][turn] = rate;
            shares[b][turn] = rate / rates[0][turn];
        }
    }
    *read_rate = moec_median(rates[0], TURNS);
    for (int b = 1; b < 3; b++) {
        struct moec_kernel_rate *rate = &bench->rates[bench->n_rate++];
        *rate = (struct moec_kernel_rate){.kernel = names[b], .n_threads = n_threads};
        moec_bench_codec_name(job->matrix.codec, rate->codec);
        rate->bytes_per_second = moec_median(rates[b], TURNS);
        rate->read_share = moec_median(shares[b], TURNS);
        rate->weights_per_second = rate->bytes_per_second * COLUMNS / (double)job->matrix.stride_bytes;
    }
}

static enum moec_status measure_all(struct job *job, uint8_t *data, const struct moec_progress *progress,
                                    struct moec_kernel_bench *bench, struct moec_error *err)
{
    double reads[2][N_CODEC];
    size_t n = 0;
    for (size_t c = 0; c < N_CODEC; c++) {
        if (job->kernels.int8 != NULL && !moec_int8_serves(codecs[c]))
            continue;
        MOEC_TRY(moec_progress_report(progress, "kernels", (double)c, (double)N_CODEC, err));
        MOEC_TRY(moec_bench_matrix_fill(codecs[c], data, bench->matrix_bytes, &job->matrix, err));
        job->first_row = job->n_rows = 0;
        measure(job, 1, bench, &reads[0][n]);
        reads[1][n] = reads[0][n];
        if (bench->n_threads > 1)
            measure(job, bench->n_threads, bench, &reads[1][n]);
        n++;
    }
    bench->read_bytes_per_second[0] = moec_median(reads[0], n);
    bench->read_bytes_per_second[1] = moec_median(reads[1], n);
    return MOEC_OK;
}

/* The cache that the first processor reaches last, or 0. sysconf adds up those of some processors' parts. */
static uint64_t last_cache_bytes(void)
{
    uint64_t bytes = 0;
    for (int level = 0; level < 5; level++) {
        char path[64], text[32], *unit = text;
        (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", level);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            break;
        const unsigned long size = fgets(text, sizeof text, file) != NULL ? strtoul(text, &unit, 10) : 0;
        if (unit > text && size < 1ul << 22)
            bytes = (uint64_t)size * (*unit == 'M' ? 1u << 20 : 1u << 10);
        (void)fclose(file);
    }
    return bytes;
}

enum moec_status moec_kernel_bench_size(uint64_t cache_bytes, uint64_t available_bytes,
                                        uint64_t *matrix_bytes, struct moec_error *err)
{
    const uint64_t wanted = cache_bytes > LEAST_BYTES / 4 ? 4 * cache_bytes : LEAST_BYTES;
    const uint64_t most = available_bytes - available_bytes / 4; /* results and the system want some */
    *matrix_bytes = wanted;
    if (available_bytes == 0 || wanted <= most)
        return MOEC_OK;
    if (most < LEAST_BYTES)
        return moec_fail(
            err, MOEC_ERR_LIMIT,
            "--kernels needs at least %.0f MiB for its matrices, and a third more for everything else, but "
            "the "
            "system or its cgroup has only %.0f MiB free: end other programs or raise the cgroup's limit",
            MIB(LEAST_BYTES), MIB(available_bytes));
    *matrix_bytes = most;
    return MOEC_OK;
}

static enum moec_status choose_size(struct moec_kernel_bench *bench, const struct moec_progress *progress,
                                    struct moec_error *err)
{
    const uint64_t available_bytes = moec_available_bytes("/proc", "/sys/fs/cgroup");
    MOEC_TRY(moec_kernel_bench_size(bench->cache_bytes, available_bytes, &bench->matrix_bytes, err));
    bench->is_short = bench->matrix_bytes < 4 * bench->cache_bytes;
    if (bench->is_short)
        moec_progress_note(
            progress,
            "matrices of four times the last-level cache need %.0f MiB, but the system or its cgroup has "
            "only %.0f MiB free: the matrices are limited to %.0f MiB, so the cache may hold a part of them",
            MIB(4 * bench->cache_bytes), MIB(available_bytes), MIB(bench->matrix_bytes));
    return MOEC_OK;
}

enum moec_status moec_kernel_bench_run(const struct moec_mlp_kernels *kernels, int n_threads,
                                       const struct moec_progress *progress, struct moec_kernel_bench *bench,
                                       struct moec_error *err)
{
    const bool int8 = kernels->int8 != NULL;
    *bench = (struct moec_kernel_bench){
        .set = int8 ? kernels->int8->name : kernels->all->name,
        .arithmetic = moec_arithmetic_name(int8 ? MOEC_ARITHMETIC_INT8 : MOEC_ARITHMETIC_CANONICAL),
        .n_threads = moec_pool_make(n_threads).n_threads};
    bench->cache_bytes = last_cache_bytes();
    bench->matrix_bytes = SCALAR_BYTES;
    if (kernels->all != &moec_kernels_scalar)
        MOEC_TRY(choose_size(bench, progress, err));
    const size_t most_rows = bench->matrix_bytes / moec_codec_row_bytes(codecs[0], COLUMNS);
    void *data = NULL, *floats = NULL, *read = NULL;
    const size_t n_floats = COLUMNS + most_rows + (size_t)bench->n_threads * COLUMNS;
    enum moec_status status = moec_alloc_pages(&data, bench->matrix_bytes + READ_STREAMS * READ_AHEAD,
                                               "the matrix of the bench", err);
    if (status == MOEC_OK)
        status = moec_alloc_aligned(&floats, n_floats, sizeof(float), "the bench's vectors", err);
    if (status == MOEC_OK)
        status = moec_alloc(&read, (uint64_t)bench->n_threads, sizeof(uint64_t), "the bench's sums", err);
    if (status == MOEC_OK) {
        float *x = floats;
        memset(read, 0, (size_t)bench->n_threads * sizeof(uint64_t));
        for (uint32_t i = 0; i < COLUMNS; i++)
            x[i] = (float)(i % 37) * 0.01f;
        struct moec_int8_span rounded[COLUMNS / MOEC_INT8_SPAN];
        if (int8)
            kernels->int8->round(x, COLUMNS, rounded);
        struct job job = {.kernels = *kernels,
                          .rounded = rounded,
                          .x = x,
                          .sums = x + COLUMNS,
                          .y = x + COLUMNS * (1 + (size_t)bench->n_threads),
                          .read = read};
        bench->region_ns = region_ns(bench->n_threads);
        status = measure_all(&job, data, progress, bench, err);
    }
    free(data);
    free(floats);
    free(read);
    if (status == MOEC_OK)
        status = moec_progress_report(progress, "tokens", (double)N_CODEC, (double)N_CODEC, err);
    if (status == MOEC_OK)
        status = moec_token_bench_run(kernels, bench->n_threads, bench->token_rates, &bench->n_token_rate,
                                      &bench->peak_products_per_second, err);
    if (status == MOEC_OK)
        status = moec_progress_report(progress, "experts", (double)N_CODEC, (double)N_CODEC, err);
    if (status == MOEC_OK)
        status = moec_expert_bench_run(kernels, bench->n_threads, bench->matrix_bytes, bench->expert_rates,
                                       &bench->n_expert_rate, err);
    return status;
}

struct moec_json_out *moec_kernel_bench_json(const struct moec_kernel_bench *bench)
{
    struct moec_json_out *root = moec_json_out_object(), *rates = moec_json_out_array();
    moec_json_out_string(root, "cpu", bench->set);
    moec_json_out_string(root, "arithmetic", bench->arithmetic);
    moec_json_out_u64(root, "threads", (uint64_t)bench->n_threads);
    moec_json_out_u64(root, "matrix_bytes", bench->matrix_bytes);
    moec_json_out_u64(root, "cache_bytes", bench->cache_bytes);
    moec_json_out_bool(root, "memory_is_short", bench->is_short);
    moec_json_out_double(root, "read_bytes_per_second_one_thread", bench->read_bytes_per_second[0]);
    moec_json_out_double(root, "read_bytes_per_second", bench->read_bytes_per_second[1]);
    moec_json_out_double(root, "region_ns", bench->region_ns);
    for (uint32_t i = 0; i < bench->n_rate; i++) {
        const struct moec_kernel_rate *rate = &bench->rates[i];
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_string(node, "codec", rate->codec);
        moec_json_out_string(node, "kernel", rate->kernel);
        moec_json_out_u64(node, "threads", (uint64_t)rate->n_threads);
        moec_json_out_double(node, "bytes_per_second", rate->bytes_per_second);
        moec_json_out_double(node, "read_share", rate->read_share);
        moec_json_out_double(node, "weights_per_second", rate->weights_per_second);
        moec_json_out_node(rates, NULL, node);
    }
    moec_json_out_node(root, "kernels", rates);
    moec_json_out_double(root, "peak_products_per_second", bench->peak_products_per_second);
    struct moec_json_out *tokens = moec_json_out_array();
    for (uint32_t i = 0; i < bench->n_token_rate; i++) {
        const struct moec_token_rate *rate = &bench->token_rates[i];
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_string(node, "codec", rate->codec);
        moec_json_out_string(node, "kernel", rate->kernel);
        moec_json_out_u64(node, "tokens", rate->n_tokens);
        moec_json_out_double(node, "products_per_second", rate->products_per_second);
        moec_json_out_double(node, "peak_share", rate->peak_share);
        moec_json_out_node(tokens, NULL, node);
    }
    moec_json_out_node(root, "tokens", tokens);
    struct moec_json_out *experts = moec_json_out_array();
    for (uint32_t i = 0; i < bench->n_expert_rate; i++) {
        const struct moec_expert_rate *rate = &bench->expert_rates[i];
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_string(node, "up", rate->up);
        moec_json_out_string(node, "gate_and_down", rate->pairs);
        moec_json_out_double(node, "sparsity", rate->sparsity);
        moec_json_out_u64(node, "threads", (uint64_t)rate->n_threads);
        moec_json_out_double(node, "dense_ns", rate->dense_ns);
        moec_json_out_double(node, "speedup", rate->speedup);
        moec_json_out_double(node, "bytes_share", rate->bytes_share);
        moec_json_out_node(experts, NULL, node);
    }
    moec_json_out_node(root, "experts", experts);
    return root;
}
