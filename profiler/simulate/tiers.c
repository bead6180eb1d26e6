/* Rows are listed first: buffers, pools, modes, and policies in modes where these decide. Then they run
 * side by side, some for each thread at once, so that progress can be told between. Of several errors the
 * first row's is reported, whatever thread was sooner. */
#include "profiler/simulate/tiers.h"

#include "formats/base/memory.h"
#include "runtime/threads/parallel.h"

#include <inttypes.h>

void moec_tiers_release(struct moec_tiers *tiers)
{
    free(tiers->rows);
    *tiers = (struct moec_tiers){0};
}

/* Whether the eviction enters, beyond the order in which nothing is kept. */
static bool has_policies(enum moec_tiers_mode mode)
{
    return mode == MOEC_TIERS_CACHE || mode == MOEC_TIERS_PRELOAD || mode == MOEC_TIERS_COOPERATIVE;
}

/* Fills what rows are about, or counts them. */
static uint32_t list_rows(const struct moec_tiers_sweep *sweep, struct moec_tiers_row *rows)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < sweep->sizes.buffer.n; b++)
        for (uint32_t p = 0; p < sweep->sizes.pool.n; p++)
            for (uint32_t m = 0; m < sweep->modes.n; m++)
                for (uint32_t e = 0; e < (has_policies(sweep->modes.all[m]) ? sweep->evict.n : 1); e++, n++) {
                    if (rows == NULL)
                        continue;
                    const bool is_whole = sweep->modes.all[m] == MOEC_TIERS_RESIDENT;
                    rows[n] = (struct moec_tiers_row){
                        .mode = sweep->modes.all[m],
                        .policy = sweep->evict.all[e],
                        .pool_bytes = is_whole ? sweep->model->slots.all_bytes : sweep->sizes.pool.bytes[p],
                        .buffer_bytes =
                            is_whole ? sweep->model->slots.all_bytes : sweep->sizes.buffer.bytes[b]};
                }
    return n;
}

/* Rows that run at once. */
struct work {
    struct moec_tiers *tiers;
    size_t first;
    enum moec_status *status;  /* owned */
    struct moec_error *errors; /* owned */
};

static void run_item(void *context, size_t item, int thread)
{
    const struct work *work = context;
    const struct moec_tiers_sweep *sweep = &work->tiers->sweep;
    struct moec_tiers_row *row = &work->tiers->rows[work->first + item];
    const struct moec_evict_choice *evict = &row->policy;
    const float *weights = evict->has_weights ? evict->weights : sweep->evict.weights;
    const struct moec_simulated_tiers_setup setup = {
        .recording = sweep->recording,
        .model = sweep->model,
        .device = sweep->device,
        .gpu = sweep->gpu,
        .mode = row->mode,
        .room = {.pool_bytes = row->pool_bytes, .buffer_bytes = row->buffer_bytes},
        .evict = {.policy = evict->ops, .weights = weights, .n_shallow = evict->n_shallow},
        .preload = {.predictor = sweep->preload.predictor, .count = sweep->preload.count}};
    (void)thread;
    work->status[item] = moec_simulated_tiers(&setup, &row->result, &work->errors[item]);
}

static enum moec_status run_rows(struct moec_tiers *tiers, int n_threads, moec_simulate_progress_fn *progress,
                                 void *context, struct moec_error *err)
{
    const struct moec_pool pool = moec_pool_make(n_threads);
    const size_t batch = 4 * (size_t)pool.n_threads;
    struct work work = {.tiers = tiers};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc((void **)&work.status, batch, sizeof *work.status, "simulated runs", err));
    MOEC_TRY_OUT(moec_alloc((void **)&work.errors, batch, sizeof *work.errors, "simulated runs", err));
    for (; work.first < tiers->n; work.first += batch) {
        const size_t left = tiers->n - work.first, n = left < batch ? left : batch;
        moec_parallel_for(&pool, n, run_item, &work);
        for (size_t i = 0; i < n; i++)
            if (work.status[i] != MOEC_OK) {
                *err = work.errors[i];
                status = work.status[i];
                goto out;
            }
        status = progress != NULL ? progress(context, work.first + n, tiers->n) : MOEC_OK;
        if (status != MOEC_OK) {
            status =
                moec_fail(err, status, "stopped after %zu of %" PRIu32 " runs", work.first + n, tiers->n);
            goto out;
        }
    }
out:
    free(work.status);
    free(work.errors);
    return status;
}

enum moec_status moec_tiers_run(const struct moec_tiers_sweep *sweep, int n_threads,
                                moec_simulate_progress_fn *progress, void *context, struct moec_tiers *tiers,
                                struct moec_error *err)
{
    *tiers = (struct moec_tiers){.sweep = *sweep, .n = list_rows(sweep, NULL)};
    enum moec_status status =
        moec_alloc((void **)&tiers->rows, tiers->n, sizeof *tiers->rows, "simulated runs", err);
    if (status == MOEC_OK) {
        (void)list_rows(sweep, tiers->rows);
        status = run_rows(tiers, n_threads, progress, context, err);
    }
    if (status != MOEC_OK)
        moec_tiers_release(tiers);
    return status;
}
