/* Thresholds are quantiles of |up . x| for the very input that is used, so the share left out is exact. All
 * records have the same weights at different places, so every turn computes the same from cold memory. Ratios
 * are taken within a turn and then their median, for memory's rate changes between turns. */
#include "profiler/bench/expert_bench.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/bench/bench_matrix.h"
#include "profiler/common/quantiles.h"
#include "runtime/forward/moe/mlp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_EMBD   2048u
#define N_FF     1024u
#define N_FF_LOW 128u /* of the scalar set, which no memory is too slow for */
#define TURNS    5
#define N_SHARE  2

static const double sparsities[N_SHARE] = {0.6, 0.9};
static const struct moec_codec int4 = {.dtype = MOEC_DTYPE_INT4, .group = 64};
static const struct moec_codec up_codecs[] = {{.dtype = MOEC_DTYPE_INT4, .group = 64},
                                              {.dtype = MOEC_DTYPE_INT2, .group = 64}};
#define N_CODEC (sizeof up_codecs / sizeof *up_codecs)

struct bench {
    struct moec_mlp_kernels kernels;
    struct moec_int8_span rounded[N_EMBD / MOEC_INT8_SPAN]; /* x in the int8 arithmetic */
    struct moec_record_layout layout;
    uint32_t n_ff, n_expert, n_thread;
    struct {
        uint32_t first, n; /* experts */
    } turn;
    struct {
        uint8_t *records;                 /* (n_expert, layout.n_bytes) */
        struct moec_mlp *mlps;            /* (n_expert) */
        struct moec_mlp_scratch *scratch; /* (n_thread) */
        float *floats;                    /* of the scratches, x and what follows */
        float *x;                         /* (N_EMBD) */
        float *sums;                      /* (n_thread, N_EMBD) */
        float *up;                        /* (n_ff) */
    } room;                               /* owned */
};

static void release(struct bench *bench)
{
    free(bench->room.records);
    free(bench->room.mlps);
    free(bench->room.scratch);
    free(bench->room.floats);
}

/* Random weights in the first record, the same in the others; a random input. */
static enum moec_status fill(struct bench *bench, struct moec_error *err)
{
    const size_t n = (size_t)bench->n_ff * N_EMBD;
    float *weights = NULL;
    uint64_t state = 1;
    MOEC_TRY(moec_alloc_aligned((void **)&weights, 3 * n, sizeof *weights, "weights of the bench", err));
    for (size_t i = 0; i < 3 * n + N_EMBD; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const float value = (float)(int32_t)(state >> 32) * 0x1p-36f;
        if (i < 3 * n)
            weights[i] = value;
        else
            bench->room.x[i - 3 * n] = 32 * value;
    }
    const enum moec_status status =
        moec_record_encode(&bench->layout, weights, weights + n, weights + 2 * n, bench->room.records, err);
    free(weights);
    if (status != MOEC_OK)
        return status;
    for (uint32_t e = 0; e < bench->n_expert; e++) {
        uint8_t *record = bench->room.records + e * bench->layout.n_bytes;
        if (e > 0)
            memcpy(record, bench->room.records, bench->layout.n_bytes);
        moec_record_bind(&bench->layout, record, &bench->room.mlps[e]);
    }
    return MOEC_OK;
}

static enum moec_status create(struct bench *bench, struct moec_codec up, uint64_t memory_bytes,
                               uint64_t turn_bytes, int n_threads, struct moec_error *err)
{
    const struct moec_config config = {.n_embd = N_EMBD, .n_ff_expert = bench->n_ff};
    const struct moec_codec codecs[MOEC_CODEC_TABLE] = {[2] = up, [4] = int4};
    const struct moec_variant variant = {
        {[MOEC_PROJECTION_GATE] = 4, [MOEC_PROJECTION_UP] = 2, [MOEC_PROJECTION_DOWN] = 4}};
    bench->layout = moec_record_layout_of(&config, variant, codecs);
    bench->n_thread = (uint32_t)n_threads;
    bench->n_expert = (uint32_t)(memory_bytes / bench->layout.n_bytes);
    bench->n_expert += bench->n_expert == 0;
    bench->turn.n = (uint32_t)(turn_bytes / bench->layout.n_bytes);
    if (bench->turn.n == 0 || bench->turn.n > bench->n_expert)
        bench->turn.n = bench->n_expert;
    const uint64_t n_float = N_EMBD + bench->n_ff + (uint64_t)bench->n_thread * (N_EMBD + 3 * MOEC_SUM_CHUNK);
    MOEC_TRY(moec_alloc_pages((void **)&bench->room.records, bench->n_expert * bench->layout.n_bytes,
                              "the experts of the bench", err));
    MOEC_TRY(
        moec_alloc((void **)&bench->room.mlps, bench->n_expert, sizeof *bench->room.mlps, "the bench", err));
    MOEC_TRY(moec_alloc((void **)&bench->room.scratch, bench->n_thread, sizeof *bench->room.scratch,
                        "the bench", err));
    MOEC_TRY(moec_alloc_aligned((void **)&bench->room.floats, n_float, sizeof *bench->room.floats,
                                "the bench's vectors", err));
    float *at = bench->room.floats;
    bench->room.x = at;
    bench->room.sums = at += N_EMBD;
    at += (size_t)bench->n_thread * N_EMBD;
    for (uint32_t t = 0; t < bench->n_thread; t++, at += 3 * MOEC_SUM_CHUNK)
        bench->room.scratch[t] = (struct moec_mlp_scratch){
            .gate = at, .up = at + MOEC_SUM_CHUNK, .exponents = at + 2 * MOEC_SUM_CHUNK};
    bench->room.up = at;
    return fill(bench, err);
}

static void chunk_item(void *context, size_t item, int thread)
{
    const struct bench *bench = context;
    const size_t n_chunk = bench->n_ff / MOEC_SUM_CHUNK;
    const struct moec_mlp *mlp = &bench->room.mlps[bench->turn.first + item / n_chunk];
    const struct moec_mlp_token token = {
        .x = bench->room.x, .rounded = bench->rounded, .limit = mlp->filter.threshold};
    (void)moec_mlp_chunk(&bench->kernels, mlp, (uint32_t)(item % n_chunk) * MOEC_SUM_CHUNK, &token,
                         &bench->room.scratch[thread], bench->room.sums + (size_t)thread * N_EMBD);
}

/* Nanoseconds of an expert, of those behind the turn before; threshold 0: with all its neurons. */
static double time_experts(struct bench *bench, int n_threads, float threshold)
{
    const struct moec_pool pool = moec_pool_make(n_threads);
    bench->turn.first += bench->turn.n;
    if (bench->turn.first > bench->n_expert - bench->turn.n)
        bench->turn.first = 0;
    for (uint32_t e = 0; e < bench->n_expert; e++)
        bench->room.mlps[e].filter = (struct moec_mlp_filter){
            .is_on = threshold > 0, .at = MOEC_PROJECTION_UP, .threshold = threshold};
    const uint64_t begin_ns = moec_now_ns();
    moec_parallel_for(&pool, (size_t)bench->turn.n * (bench->n_ff / MOEC_SUM_CHUNK), chunk_item, bench);
    return (double)(moec_now_ns() - begin_ns) / bench->turn.n;
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void measure(struct bench *bench, int n_threads, struct moec_expert_rate *rates, uint32_t *n)
{
    double dense[TURNS], ratios[N_SHARE][TURNS];
    float thresholds[N_SHARE];
    const double up_bytes = (double)bench->layout.up_bytes, all_bytes = (double)bench->layout.n_bytes;
    bench->kernels.all->dot_encoded(&bench->room.mlps[0].up, 0, bench->n_ff, bench->room.x, bench->room.up);
    for (uint32_t i = 0; i < bench->n_ff; i++)
        bench->room.up[i] = fabsf(bench->room.up[i]);
    qsort(bench->room.up, bench->n_ff, sizeof *bench->room.up, compare_floats);
    for (uint32_t s = 0; s < N_SHARE; s++)
        thresholds[s] = bench->room.up[(uint32_t)(sparsities[s] * bench->n_ff)];
    for (int turn = -1; turn < TURNS; turn++) { /* the first is not counted */
        const double all_ns = time_experts(bench, n_threads, 0);
        for (uint32_t s = 0; s < N_SHARE; s++) {
            const double ratio = all_ns / time_experts(bench, n_threads, thresholds[s]);
            if (turn >= 0)
                ratios[s][turn] = ratio;
        }
        if (turn >= 0)
            dense[turn] = all_ns;
    }
    const double dense_ns = moec_median(dense, TURNS);
    for (uint32_t s = 0; s < N_SHARE && *n < MOEC_EXPERT_BENCH_MAX; s++) {
        struct moec_expert_rate *rate = &rates[(*n)++];
        *rate = (struct moec_expert_rate){
            .sparsity = sparsities[s],
            .n_threads = n_threads,
            .dense_ns = dense_ns,
            .speedup = moec_median(ratios[s], TURNS),
            .bytes_share = (up_bytes + (1 - sparsities[s]) * (all_bytes - up_bytes)) / all_bytes};
        moec_bench_codec_name(bench->layout.codecs[MOEC_PROJECTION_UP], rate->up);
        moec_bench_codec_name(bench->layout.codecs[MOEC_PROJECTION_GATE], rate->pairs);
    }
}

enum moec_status moec_expert_bench_run(const struct moec_mlp_kernels *kernels, int n_threads,
                                       uint64_t memory_bytes, struct moec_expert_rate *rates, uint32_t *n,
                                       struct moec_error *err)
{
    for (size_t c = 0; c < N_CODEC; c++) {
        struct bench bench = {.kernels = *kernels,
                              .n_ff = kernels->all == &moec_kernels_scalar ? N_FF_LOW : N_FF};
        const enum moec_status status =
            create(&bench, up_codecs[c], memory_bytes, MOEC_BENCH_TURN_BYTES, n_threads, err);
        if (status == MOEC_OK && kernels->int8 != NULL)
            kernels->int8->round(bench.room.x, N_EMBD, bench.rounded);
        if (status == MOEC_OK)
            measure(&bench, 1, rates, n);
        if (status == MOEC_OK && n_threads > 1)
            measure(&bench, n_threads, rates, n);
        release(&bench);
        MOEC_TRY(status);
    }
    return MOEC_OK;
}
