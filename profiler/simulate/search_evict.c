/* All weights in fifths that sum to 1 are tried, recency alone first. Only a penalty that is less replaces
 * the best, so equal ones stay with recency. */
#include "profiler/simulate/search_evict.h"

#include "formats/base/memory.h"
#include "runtime/threads/parallel.h"

#include <math.h>

#define STEPS 5
/* Four weights that sum to 1, in steps. */
#define MAX_TRIALS ((STEPS + 1) * (STEPS + 2) * (STEPS + 3) / 6)

struct trial {
    float weights[MOEC_EVICT_WEIGHTS];
    struct moec_simulated_result result;
    enum moec_status status;
    struct moec_error err;
};

struct tuning {
    struct moec_simulated_setup setup;
    struct trial trials[MAX_TRIALS];
    size_t n_trial;
};

static void run_trial(void *context, size_t item, int thread)
{
    struct tuning *tuning = context;
    struct trial *trial = &tuning->trials[item];
    struct moec_simulated_setup setup = tuning->setup;
    (void)thread;
    setup.evict.weights = trial->weights;
    trial->status = moec_simulated_run(&setup, &trial->result, NULL, &trial->err);
}

/* From recency alone on. */
static void plan(struct tuning *tuning, bool has_low)
{
    for (int lru = STEPS; lru >= 0; lru--)
        for (int lfu = STEPS - lru; lfu >= 0; lfu--)
            for (int lhu = has_low ? STEPS - lru - lfu : 0; lhu >= 0; lhu--) {
                float *weights = tuning->trials[tuning->n_trial++].weights;
                weights[MOEC_EVICT_LRU] = (float)lru / STEPS;
                weights[MOEC_EVICT_LFU] = (float)lfu / STEPS;
                weights[MOEC_EVICT_LHU] = (float)lhu / STEPS;
                weights[MOEC_EVICT_FLD] = (float)(STEPS - lru - lfu - lhu) / STEPS;
            }
}

/* What misses cost. */
static double penalty_of(const struct moec_simulated_counts *decode, bool has_times)
{
    return has_times ? decode->stall_ns : (double)decode->read_bytes;
}

enum moec_status moec_search_evict(const struct moec_simulated_setup *setup, bool has_times, int n_threads,
                                   struct moec_found_weights *out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct tuning *tuning = NULL;
    const struct moec_pool pool = moec_pool_make(n_threads);
    MOEC_TRY(moec_alloc((void **)&tuning, 1, sizeof *tuning, "trials of weights", err));
    tuning->setup =
        (struct moec_simulated_setup){.recording = setup->recording,
                                      .model = setup->model,
                                      .device = setup->device,
                                      .buffer.capacity_bytes = setup->buffer.capacity_bytes,
                                      .evict.policy = &moec_evict_hobbit,
                                      .preload = {.reads_on = true, .predictor = &moec_predict_none}};
    plan(tuning, setup->model->shape.n_form > 1);
    moec_parallel_for(&pool, tuning->n_trial, run_trial, tuning);
    const struct trial *best = &tuning->trials[0];
    for (size_t i = 0; i < tuning->n_trial; i++) {
        const struct trial *trial = &tuning->trials[i];
        if (trial->status != MOEC_OK) {
            *err = trial->err;
            status = trial->status;
            goto out;
        }
        if (penalty_of(&trial->result.decode, has_times) < penalty_of(&best->result.decode, has_times))
            best = trial;
    }
    const struct moec_simulated_counts *decode = &best->result.decode;
    for (size_t i = 0; i < MOEC_EVICT_WEIGHTS; i++)
        out->weights[i] = best->weights[i];
    out->hit_rate = decode->asked > 0 ? (double)decode->hits / (double)decode->asked : NAN;
    out->read_bytes = decode->read_bytes;
    out->lost_ns = decode->stall_ns;
    out->lost_by_lru_ns = tuning->trials[0].result.decode.stall_ns;
out:
    free(tuning);
    return status;
}
