#include "profiler/simulate/tune_evict.h"

#include "formats/base/memory.h"
#include "runtime/threads/parallel.h"

#include <math.h>

#define STEPS   5
#define N_TRIAL ((STEPS + 1) * (STEPS + 2) / 2) /* three weights that sum to 1, in steps */

struct trial {
    float weights[MOEC_EVICT_WEIGHTS];
    struct moec_simulated_result result;
    enum moec_status status;
    struct moec_error err;
};

struct tuning {
    struct moec_simulated_setup setup;
    struct trial trials[N_TRIAL];
};

static void run_trial(void *context, size_t item, int thread)
{
    struct tuning *tuning = context;
    struct trial *trial = &tuning->trials[item];
    struct moec_simulated_setup setup = tuning->setup;
    (void)thread;
    setup.evict_weights = trial->weights;
    trial->status = moec_simulated_run(&setup, &trial->result, NULL, &trial->err);
}

/* From recency alone on. */
static void plan(struct tuning *tuning)
{
    size_t n = 0;
    for (int lru = STEPS; lru >= 0; lru--)
        for (int lfu = STEPS - lru; lfu >= 0; lfu--, n++) {
            float *weights = tuning->trials[n].weights;
            weights[MOEC_EVICT_LRU] = (float)lru / STEPS;
            weights[MOEC_EVICT_LFU] = (float)lfu / STEPS;
            weights[MOEC_EVICT_FLD] = (float)(STEPS - lru - lfu) / STEPS;
        }
}

enum moec_status moec_tune_evict(const struct moec_recording *recording,
                                 const struct moec_simulated_model *model,
                                 const struct moec_simulated_device *device, uint64_t capacity_bytes,
                                 int n_threads, struct moec_tuned_evict *out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct tuning *tuning = NULL;
    const struct moec_pool pool = moec_pool_make(n_threads);
    MOEC_TRY(moec_alloc((void **)&tuning, 1, sizeof *tuning, "trials of weights", err));
    tuning->setup = (struct moec_simulated_setup){.recording = recording,
                                                  .model = model,
                                                  .device = device,
                                                  .capacity_bytes = capacity_bytes,
                                                  .policy = &moec_evict_hobbit,
                                                  .predictor = &moec_predict_none};
    plan(tuning);
    moec_parallel_for(&pool, N_TRIAL, run_trial, tuning);
    const struct trial *best = &tuning->trials[0];
    for (size_t i = 0; i < N_TRIAL; i++) {
        const struct trial *trial = &tuning->trials[i];
        if (trial->status != MOEC_OK) {
            *err = trial->err;
            status = trial->status;
            goto out;
        }
        if (trial->result.decode.read_bytes < best->result.decode.read_bytes)
            best = trial;
    }
    const struct moec_simulated_counts *decode = &best->result.decode;
    for (size_t i = 0; i < MOEC_EVICT_WEIGHTS; i++)
        out->weights[i] = best->weights[i];
    out->hit_rate = decode->asked > 0 ? (double)decode->hits / (double)decode->asked : NAN;
    out->read_bytes = decode->read_bytes;
out:
    free(tuning);
    return status;
}
