/* Work is cut as the forward pass cuts it: tiles of rows that are decoded and then multiplied. An item has
 * millions of multiply-adds, so that waking threads does not count. The first region warms up; the others run
 * until a quarter of a second is over. */
#include "profiler/doctor/pace.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/common/processor_time.h"
#include "profiler/device/made_up_rows.h"
#include "runtime/threads/parallel.h"

#include <string.h>

#define MEASURE_NS     ((uint64_t)250 * 1000 * 1000)
#define TILE_ROWS      16u
#define N_TILE         64u
#define ITEM_WORK      ((uint64_t)1 << 22) /* multiply-adds or so: a region lasts some milliseconds */
#define ITEMS_A_THREAD 8u

struct job {
    const struct moec_pace_request *request;
    struct moec_matrix matrix;
    size_t stride; /* floats of a decoded row, and of a token */
    uint32_t n_tok;
    uint32_t n_item, n_round; /* of a region; tiles that an item takes */
    struct {
        float *x;         /* (n_tok, stride) */
        float *weights;   /* (threads, TILE_ROWS, stride) */
        float *y;         /* (threads, n_tok, TILE_ROWS) */
        float *copy;      /* (threads, stride) */
        uint8_t *encoded; /* (threads) a row each */
        uint8_t *rows;    /* (N_TILE x TILE_ROWS) encoded */
    } room;
};

static void fill(float *values, size_t n, size_t columns, size_t stride)
{
    uint32_t state = 1;
    for (size_t r = 0; r < n; r++)
        for (size_t c = 0; c < stride; c++) {
            state = state * 1664525u + 1013904223u;
            values[r * stride + c] = c < columns ? (float)(int32_t)state * 0x1p-36f : 0.0f;
        }
}

static void product_item(void *context, size_t item, int thread)
{
    const struct job *job = context;
    const struct moec_kernels *kernels = job->request->kernels;
    float *weights = job->room.weights + (size_t)thread * TILE_ROWS * job->stride;
    float *y = job->room.y + (size_t)thread * job->n_tok * TILE_ROWS;
    for (uint32_t i = 0; i < job->n_round; i++) {
        const uint32_t tile = ((uint32_t)item * job->n_round + i) % N_TILE;
        kernels->decode_rows(&job->matrix, tile * TILE_ROWS, TILE_ROWS, weights, job->stride);
        kernels->dot(job->room.x, job->stride, job->n_tok, weights, job->stride, TILE_ROWS,
                     job->request->columns, y, TILE_ROWS);
    }
}

/* Rows of one thread after the other, so that none stays in the first cache. */
static void element_item(void *context, size_t item, int thread)
{
    const struct job *job = context;
    const struct moec_kernels *kernels = job->request->kernels;
    float *rows = job->room.weights + (size_t)thread * TILE_ROWS * job->stride;
    for (uint32_t i = 0; i < job->n_round; i++)
        for (uint32_t r = 0; r < TILE_ROWS; r++) {
            const uint32_t token =
                ((uint32_t)item * job->n_round * TILE_ROWS + i * TILE_ROWS + r) % job->n_tok;
            float *row = rows + r * job->stride;
            (void)kernels->exp_sum(job->room.x + token * job->stride, 0, job->stride, row);
            kernels->add(job->room.x + token * job->stride, job->stride, row);
            memcpy(job->room.copy + (size_t)thread * job->stride, row, job->stride * sizeof *row);
        }
}

/* Finite weights have codes in every codec but an exact one, which nothing is quantised to. */
static void encode_item(void *context, size_t item, int thread)
{
    const struct job *job = context;
    uint8_t *out = job->room.encoded + (size_t)thread * job->matrix.stride_bytes;
    (void)item;
    for (uint32_t r = 0; r < job->n_round * TILE_ROWS; r++) {
        const enum moec_status status = moec_codec_encode_row(
            job->matrix.codec, job->room.x + r % job->n_tok * job->stride, job->request->columns, out, NULL);
        (void)status;
    }
}

/* Regions of `amount` each, over at least MEASURE_NS; the first one is not counted. */
static struct moec_pace pace_of(struct job *job, moec_parallel_body *body, double amount)
{
    const struct moec_pool pool = moec_pool_make(job->request->n_threads);
    uint64_t n = 0;
    moec_parallel_for(&pool, job->n_item, body, job);
    const uint64_t begin_ns = moec_now_ns(), begin_processor_ns = moec_processor_ns();
    uint64_t now_ns = begin_ns;
    for (; now_ns - begin_ns < MEASURE_NS; n++) {
        moec_parallel_for(&pool, job->n_item, body, job);
        now_ns = moec_now_ns();
    }
    const double all = (double)n * amount * 1e9;
    return (struct moec_pace){all / (double)(now_ns - begin_ns),
                              all / (double)(moec_processor_ns() - begin_processor_ns)};
}

/* Weights that a region goes through. */
static double region_weights(const struct job *job)
{
    return (double)job->n_item * job->n_round * TILE_ROWS * job->request->columns;
}

static enum moec_status fill_matrix(struct job *job, struct moec_error *err)
{
    struct moec_made_up_rows rows = {0};
    job->matrix.data = job->room.rows;
    MOEC_TRY(moec_made_up_rows_make(job->matrix.codec, job->matrix.columns, &rows, err));
    moec_made_up_rows_fill(&rows, &job->matrix, 0, job->room.rows);
    moec_made_up_rows_release(&rows);
    return MOEC_OK;
}

static enum moec_status open(struct job *job, const struct moec_pace_request *request, struct moec_error *err)
{
    const char *what = "made-up weights";
    const uint64_t n_threads = (uint64_t)moec_pool_make(request->n_threads).n_threads;
    job->request = request;
    job->stride = moec_lanes_padded(request->columns);
    job->n_tok = request->n_tokens < 1                      ? 1
                 : request->n_tokens > MOEC_PACE_MAX_TOKENS ? MOEC_PACE_MAX_TOKENS
                                                            : request->n_tokens;
    const uint64_t tile_work = (uint64_t)TILE_ROWS * request->columns * job->n_tok;
    job->n_item = (uint32_t)n_threads * ITEMS_A_THREAD;
    job->n_round = (uint32_t)(ITEM_WORK / tile_work) + 1;
    job->matrix =
        (struct moec_matrix){.codec = request->codec,
                             .rows = N_TILE * TILE_ROWS,
                             .columns = request->columns,
                             .stride_bytes = moec_codec_row_bytes(request->codec, request->columns)};
    MOEC_TRY(moec_alloc_aligned((void **)&job->room.x, job->n_tok * job->stride, sizeof(float), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->room.weights, n_threads * TILE_ROWS * job->stride,
                                sizeof(float), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->room.y, n_threads * job->n_tok * TILE_ROWS, sizeof(float),
                                what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->room.copy, n_threads * job->stride, sizeof(float), what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&job->room.encoded, n_threads, job->matrix.stride_bytes, what, err));
    MOEC_TRY(
        moec_alloc_aligned((void **)&job->room.rows, job->matrix.rows, job->matrix.stride_bytes, what, err));
    fill(job->room.x, job->n_tok, request->columns, job->stride);
    return fill_matrix(job, err);
}

static void release(struct job *job)
{
    free(job->room.x);
    free(job->room.weights);
    free(job->room.y);
    free(job->room.copy);
    free(job->room.encoded);
    free(job->room.rows);
}

enum moec_status moec_pace_products(const struct moec_pace_request *request, struct moec_pace *pace,
                                    struct moec_error *err)
{
    struct job job = {0};
    const enum moec_status status = open(&job, request, err);
    if (status == MOEC_OK)
        *pace = pace_of(&job, product_item, region_weights(&job) * job.n_tok);
    release(&job);
    return status;
}

enum moec_status moec_pace_elements(const struct moec_pace_request *request, struct moec_pace *pace,
                                    struct moec_error *err)
{
    struct moec_pace_request many = *request;
    struct job job = {0};
    many.codec = (struct moec_codec){.dtype = MOEC_DTYPE_F32};
    many.n_tokens = MOEC_PACE_MAX_TOKENS;
    const enum moec_status status = open(&job, &many, err);
    if (status == MOEC_OK)
        *pace = pace_of(&job, element_item, region_weights(&job));
    release(&job);
    return status;
}

enum moec_status moec_pace_encoding(const struct moec_pace_request *request, struct moec_pace *pace,
                                    struct moec_error *err)
{
    struct job job = {0};
    const enum moec_status status = open(&job, request, err);
    if (status == MOEC_OK)
        *pace = pace_of(&job, encode_item, region_weights(&job));
    release(&job);
    return status;
}
