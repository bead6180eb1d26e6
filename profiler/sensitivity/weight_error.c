/* Threads take whole experts and have records and rows of their own. Squared errors and squares are summed
 * over all projections before they are divided. The failure that is reported is the first expert's, whichever
 * thread met it. */
#include "profiler/sensitivity/weight_error.h"

#include "formats/base/memory.h"
#include "runtime/threads/parallel.h"

#include <stdlib.h>

/* Of one thread. */
struct worker {
    void *scratch;
    uint8_t *exact, *coded; /* records */
    float *rows[2];
    enum moec_status status; /* of the first expert of the layer that failed here */
    uint32_t expert;
    struct moec_error err;
};

struct look {
    const struct moec_weight_error_request *request;
    struct moec_record_layout exact, coded[MOEC_WEIGHT_ERROR_MAX_BITS];
    struct worker *workers; /* (n_worker) */
    uint32_t n_worker;
    uint32_t layer;
    double *errors; /* (E, n_bits): of the layer */
};

static enum moec_status create_worker(const struct look *look, struct worker *worker, struct moec_error *err)
{
    const char *what = "an expert's weights";
    const uint64_t row = look->exact.n_embd * sizeof(float);
    uint64_t most = 0;
    for (uint32_t b = 0; b < look->request->n_bits; b++)
        most = look->coded[b].n_bytes > most ? look->coded[b].n_bytes : most;
    const uint64_t scratch = moec_checkpoint_expert_scratch_bytes(look->request->checkpoint);
    MOEC_TRY(moec_alloc_aligned(&worker->scratch, scratch, 1, what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&worker->exact, look->exact.n_bytes, 1, what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&worker->coded, most, 1, what, err));
    MOEC_TRY(moec_alloc_aligned((void **)&worker->rows[0], row, 1, what, err));
    return moec_alloc_aligned((void **)&worker->rows[1], row, 1, what, err);
}

static void release(struct look *look)
{
    for (uint32_t i = 0; look->workers != NULL && i < look->n_worker; i++) {
        struct worker *worker = &look->workers[i];
        free(worker->scratch);
        free(worker->exact);
        free(worker->coded);
        free(worker->rows[0]);
        free(worker->rows[1]);
    }
    free(look->workers);
}

/* Adds a matrix's squares and those of its errors. */
static void compare(const struct moec_matrix *exact, const struct moec_matrix *coded, float *const rows[2],
                    double *error, double *energy)
{
    for (uint32_t r = 0; r < exact->rows; r++) {
        moec_codec_decode_row(exact->codec, exact->data + r * exact->stride_bytes, exact->columns, rows[0]);
        moec_codec_decode_row(coded->codec, coded->data + r * coded->stride_bytes, coded->columns, rows[1]);
        for (uint32_t c = 0; c < exact->columns; c++) {
            const double weight = rows[0][c], off = rows[1][c] - weight;
            *energy += weight * weight;
            *error += off * off;
        }
    }
}

static enum moec_status look_at(const struct look *look, struct worker *worker, uint32_t expert)
{
    const struct moec_checkpoint *checkpoint = look->request->checkpoint;
    struct moec_mlp exact, coded;
    MOEC_TRY(moec_checkpoint_encode_expert(checkpoint, look->layer, expert, &look->exact, worker->scratch,
                                           worker->exact, &worker->err));
    moec_record_bind(&look->exact, worker->exact, &exact);
    for (uint32_t b = 0; b < look->request->n_bits; b++) {
        double error = 0, energy = 0;
        MOEC_TRY(moec_checkpoint_encode_expert(checkpoint, look->layer, expert, &look->coded[b],
                                               worker->scratch, worker->coded, &worker->err));
        moec_record_bind(&look->coded[b], worker->coded, &coded);
        compare(&exact.gate, &coded.gate, worker->rows, &error, &energy);
        compare(&exact.up, &coded.up, worker->rows, &error, &energy);
        compare(&exact.down, &coded.down, worker->rows, &error, &energy);
        look->errors[(uint64_t)expert * look->request->n_bits + b] = energy > 0 ? error / energy : 0;
    }
    return MOEC_OK;
}

static void look_at_item(void *context, size_t item, int thread)
{
    const struct look *look = context;
    struct worker *worker = &look->workers[thread];
    if (worker->status != MOEC_OK)
        return;
    worker->expert = (uint32_t)item;
    worker->status = look_at(look, worker, (uint32_t)item);
}

/* That of the first expert that failed. */
static enum moec_status first_failure(const struct look *look, struct moec_error *err)
{
    const struct worker *first = NULL;
    for (uint32_t i = 0; i < look->n_worker; i++) {
        const struct worker *worker = &look->workers[i];
        if (worker->status != MOEC_OK && (first == NULL || worker->expert < first->expert))
            first = worker;
    }
    if (first == NULL)
        return MOEC_OK;
    if (err != NULL)
        *err = first->err;
    return first->status;
}

static enum moec_status run(struct look *look, const struct moec_pool *pool, double *errors,
                            struct moec_error *err)
{
    const struct moec_weight_error_request *request = look->request;
    const struct moec_config *config = moec_checkpoint_config(request->checkpoint);
    const uint32_t n_moe = moec_config_moe_count(config), n_expert = config->n_expert;
    for (uint32_t s = 0; s < n_moe; s++) {
        look->layer = moec_config_moe_layer(config, s);
        look->errors = errors + (uint64_t)s * n_expert * request->n_bits;
        moec_parallel_for(pool, n_expert, look_at_item, look);
        MOEC_TRY(first_failure(look, err));
        MOEC_TRY(moec_progress_report(request->progress, "weights", (double)(s + 1) * n_expert,
                                      (double)n_moe * n_expert, err));
    }
    return MOEC_OK;
}

enum moec_status moec_weight_error_measure(const struct moec_weight_error_request *request, double *errors,
                                           struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(request->checkpoint);
    const struct moec_pool pool = moec_pool_make(request->n_threads);
    const struct moec_codec f32 = {.dtype = MOEC_DTYPE_F32};
    struct look look = {.request = request,
                        .exact = moec_record_layout_make(config, f32),
                        .n_worker = (uint32_t)pool.n_threads};
    enum moec_status status = MOEC_OK;
    for (uint32_t b = 0; b < request->n_bits; b++)
        look.coded[b] = moec_record_layout_make(config, request->codecs[b]);
    MOEC_TRY_OUT(
        moec_alloc((void **)&look.workers, look.n_worker, sizeof *look.workers, "threads' memory", err));
    for (uint32_t i = 0; i < look.n_worker; i++)
        MOEC_TRY_OUT(create_worker(&look, &look.workers[i], err));
    status = run(&look, &pool, errors, err);
out:
    release(&look);
    return status;
}
