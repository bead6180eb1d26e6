/* Items run from the last one, which takes longest. Each writes to its own place, so threads do not show.
 * Points of LRU's curve that the sweep has anyway are not run twice. Batches of four items a thread let
 * progress be told and work be stopped. Of a batch that fails, the first failing item is reported. */
#include "profiler/simulate/simulate.h"

#include "formats/base/memory.h"
#include "runtime/threads/parallel.h"

#include <math.h>
#include <string.h>

void moec_simulation_release(struct moec_simulation *simulation)
{
    free(simulation->results);
    free(simulation->belady);
    free(simulation->found);
    *simulation = (struct moec_simulation){0};
}

double moec_simulated_hit_rate(const struct moec_simulated_counts *counts, bool with_late)
{
    if (counts->asked == 0)
        return NAN;
    return (double)(counts->hits + (with_late ? counts->late : 0)) / (double)counts->asked;
}

/* ---- runs ---- */

struct work {
    struct moec_simulation *simulation;
    const struct moec_belady_future *future;
    size_t first;
    enum moec_status *status; /* of the items of a batch */
    struct moec_error *errors;
};

static enum moec_status run_bound(const struct work *work, uint32_t budget, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_simulate_sweep *sweep = &work->simulation->sweep;
    uint32_t *keys = NULL, n = 0;
    MOEC_TRY(moec_alloc((void **)&keys,
                        (uint64_t)sweep->model->shape.n_layer * sweep->model->shape.n_layer_key, sizeof *keys,
                        "warm start", err));
    MOEC_TRY_OUT(moec_simulated_warm_keys(sweep->model, sweep->budgets.bytes[budget], keys, &n, err));
    MOEC_TRY_OUT(moec_belady_run(work->future, sweep->budgets.bytes[budget], keys, n,
                                 &work->simulation->belady[budget], err));
out:
    free(keys);
    return status;
}

/* The run of the sweep that a point of the curve is too, NULL where there is none. */
static const struct moec_simulated_result *result_at(const struct moec_simulation *simulation, uint64_t bytes)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    if (sweep->preload.precision.kind != MOEC_PRECISION_ONE) /* the curve's is */
        return NULL;
    for (uint32_t p = 0; p < sweep->preload.n_predictor; p++)
        for (uint32_t e = 0; sweep->preload.predictors[p] == &moec_predict_none && e < sweep->evict.n; e++)
            for (uint32_t b = 0; sweep->evict.all[e].ops == &moec_evict_lru && b < sweep->budgets.n; b++)
                if (sweep->budgets.bytes[b] == bytes)
                    return &simulation->results[(p * sweep->evict.n + e) * sweep->budgets.n + b];
    return NULL;
}

static enum moec_status run_lru(const struct work *work, uint32_t point, struct moec_error *err)
{
    struct moec_simulate_lru *lru = &work->simulation->lru;
    const struct moec_simulate_sweep *sweep = &work->simulation->sweep;
    struct moec_simulated_result result;
    const struct moec_simulated_setup setup = {
        .recording = sweep->recording,
        .model = sweep->model,
        .device = sweep->device,
        .buffer.capacity_bytes = lru->budgets[point],
        .evict.policy = &moec_evict_lru,
        .preload = {.predictor = &moec_predict_none, .reads_on = true}};
    if (result_at(work->simulation, lru->budgets[point]) != NULL)
        return MOEC_OK; /* take_points has it */
    MOEC_TRY(moec_simulated_run(&setup, &result, NULL, err));
    lru->rates[point] = moec_simulated_hit_rate(&result.decode, false);
    return MOEC_OK;
}

static size_t count_items(const struct moec_simulation *simulation)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    return sweep->budgets.n * ((size_t)sweep->evict.n * sweep->preload.n_predictor + 1) + simulation->lru.n;
}

/* Points of the curve that were not run by themselves. */
static void take_points(struct moec_simulation *simulation)
{
    struct moec_simulate_lru *lru = &simulation->lru;
    for (uint32_t point = 0; point < lru->n; point++) {
        const struct moec_simulated_result *result = result_at(simulation, lru->budgets[point]);
        if (result != NULL)
            lru->rates[point] = moec_simulated_hit_rate(&result->decode, false);
    }
}

/* Items, the last first: the bounds of all budgets, the curve of lru, then all runs in the order of the
 * results. Those with predictions take longest, and no thread waits for one at the end. */
static void run_item(void *context, size_t item, int thread)
{
    const struct work *work = context;
    struct moec_simulation *simulation = work->simulation;
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    const size_t i = count_items(simulation) - 1 - (work->first + item);
    (void)thread;
    if (i < sweep->budgets.n) {
        work->status[item] = run_bound(work, (uint32_t)i, &work->errors[item]);
        return;
    }
    if (i < sweep->budgets.n + simulation->lru.n) {
        work->status[item] = run_lru(work, (uint32_t)i - sweep->budgets.n, &work->errors[item]);
        return;
    }
    const size_t at = i - sweep->budgets.n - simulation->lru.n;
    const struct moec_evict_choice *evict = &sweep->evict.all[at / sweep->budgets.n % sweep->evict.n];
    const struct moec_simulated_setup setup = {
        .recording = sweep->recording,
        .model = sweep->model,
        .device = sweep->device,
        .buffer.capacity_bytes = sweep->budgets.bytes[at % sweep->budgets.n],
        .evict = {.policy = evict->ops,
                  .weights = evict->has_weights ? evict->weights : sweep->evict.weights,
                  .n_shallow = evict->n_shallow},
        .preload = {.predictor = sweep->preload.predictors[at / sweep->budgets.n / sweep->evict.n],
                    .count = sweep->preload.count,
                    .ahead =
                        sweep->preload.predictors[at / sweep->budgets.n / sweep->evict.n]->needs_next_gate
                            ? sweep->preload.ahead
                            : 0,
                    .precision = sweep->preload.precision,
                    .reads_on = true}};
    work->status[item] = moec_simulated_run(&setup, &simulation->results[at], NULL, &work->errors[item]);
}

static enum moec_status run_all(struct moec_simulation *simulation, const struct moec_belady_future *future,
                                int n_threads, moec_simulate_progress_fn *progress, void *context,
                                struct moec_error *err)
{
    const struct moec_pool pool = moec_pool_make(n_threads);
    const size_t n = count_items(simulation);
    const size_t batch = 4 * (size_t)pool.n_threads;
    enum moec_status status = MOEC_OK;
    struct work work = {.simulation = simulation, .future = future};
    MOEC_TRY_OUT(moec_alloc((void **)&work.status, batch, sizeof *work.status, "simulated runs", err));
    MOEC_TRY_OUT(moec_alloc((void **)&work.errors, batch, sizeof *work.errors, "simulated runs", err));
    for (; work.first < n; work.first += batch) {
        const size_t n_item = n - work.first < batch ? n - work.first : batch;
        moec_parallel_for(&pool, n_item, run_item, &work);
        for (size_t i = 0; i < n_item; i++)
            if (work.status[i] != MOEC_OK) {
                *err = work.errors[i];
                status = work.status[i];
                goto out;
            }
        status = progress != NULL ? progress(context, work.first + n_item, n) : MOEC_OK;
        if (status != MOEC_OK) {
            status = moec_fail(err, status, "stopped after %zu of %zu runs", work.first + n_item, n);
            goto out;
        }
    }
out:
    free(work.status);
    free(work.errors);
    return status;
}

/* ---- what it means ---- */

/* Around the working set, as far as buffers of these sizes make sense. */
static void plan_lru(const struct moec_simulated_model *model, struct moec_simulate_lru *lru)
{
    static const double parts[MOEC_SIMULATE_CURVE] = {0.5, 0.9, 1, 1.1, 1.25, 1.5, 2, 3};
    for (size_t i = 0; i < MOEC_SIMULATE_CURVE; i++) {
        const double bytes = parts[i] * (double)model->slots.token_bytes;
        if (bytes >= (double)model->slots.largest_bytes && bytes <= (double)model->slots.all_bytes)
            lru->budgets[lru->n++] = (uint64_t)bytes;
    }
}

static void find_cliff(struct moec_simulate_lru *lru)
{
    double steepest = -1;
    for (uint32_t i = 0; i + 1 < lru->n; i++) {
        const double slope =
            (lru->rates[i + 1] - lru->rates[i]) / (double)(lru->budgets[i + 1] - lru->budgets[i]);
        if (slope > steepest) {
            steepest = slope;
            lru->cliff = i;
        }
    }
}

#define MOST_DISTANCE 65536

/* Distances in steps, which are tokens while decoding. */
static enum moec_status measure_reuse(const struct moec_belady_future *future,
                                      struct moec_simulate_reuse *reuse, struct moec_error *err)
{
    const struct moec_recording *recording = future->recording;
    const uint64_t n_answer = recording->n_step * recording->shape.n_layer;
    uint64_t *counts = NULL, n_asked = 0, n_again = 0, n = 0;
    MOEC_TRY(moec_alloc((void **)&counts, MOST_DISTANCE + 1, sizeof *counts, "reuse distances", err));
    for (uint64_t a = 0; a < n_answer; a++) {
        const uint64_t *nexts = moec_belady_nexts(future, a);
        uint32_t n_active = 0;
        (void)moec_recording_active(recording, a, &n_active);
        n_asked += recording->steps[a / recording->shape.n_layer].is_prefill ? 0 : n_active;
        for (uint32_t i = 0; i < n_active; i++) {
            const uint64_t next = nexts[i];
            if (next == MOEC_BELADY_NEVER || recording->steps[next / recording->shape.n_layer].is_prefill)
                continue;
            const uint64_t steps = (next - a) / recording->shape.n_layer;
            counts[steps < MOST_DISTANCE ? steps : MOST_DISTANCE]++;
            n_again++;
        }
    }
    *reuse = (struct moec_simulate_reuse){.next_token_share =
                                              n_asked > 0 ? (double)counts[1] / (double)n_asked : NAN};
    while (reuse->median_tokens < MOST_DISTANCE && 2 * (n += counts[reuse->median_tokens]) < n_again)
        reuse->median_tokens++;
    free(counts);
    return MOEC_OK;
}

static enum moec_status tune(struct moec_simulation *simulation, int n_threads, struct moec_error *err)
{
    const struct moec_simulate_sweep *sweep = &simulation->sweep;
    if (!sweep->evict.is_searched)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&simulation->found, sweep->budgets.n, sizeof *simulation->found,
                        "weights of evictions", err));
    for (uint32_t b = 0; b < sweep->budgets.n; b++) {
        const struct moec_simulated_setup setup = {.recording = sweep->recording,
                                                   .model = sweep->model,
                                                   .device = sweep->device,
                                                   .buffer.capacity_bytes = sweep->budgets.bytes[b]};
        MOEC_TRY(moec_search_evict(&setup, sweep->has_times, n_threads, &simulation->found[b], err));
    }
    return MOEC_OK;
}

enum moec_status moec_simulate(const struct moec_simulate_sweep *sweep, int n_threads,
                               moec_simulate_progress_fn *progress, void *context,
                               struct moec_simulation *simulation, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_belady_future future = {0};
    *simulation = (struct moec_simulation){.sweep = *sweep};
    for (uint32_t p = 0; p < sweep->preload.n_predictor; p++)
        if (sweep->preload.predictors[p] != &moec_predict_none && !sweep->has_times &&
            sweep->preload.count == 0)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "the predictor '%s' prefetches as long as time allows, so the simulation needs "
                             "a device description (--device-file) or a preload count (--preload-count)",
                             sweep->preload.predictors[p]->name);
    const uint64_t n_run = (uint64_t)sweep->preload.n_predictor * sweep->evict.n * sweep->budgets.n;
    MOEC_TRY_OUT(
        moec_alloc((void **)&simulation->results, n_run, sizeof *simulation->results, "simulation", err));
    MOEC_TRY_OUT(moec_alloc((void **)&simulation->belady, sweep->budgets.n, sizeof *simulation->belady,
                            "simulation", err));
    plan_lru(sweep->model, &simulation->lru);
    MOEC_TRY_OUT(moec_belady_look_ahead(sweep->recording, sweep->model, &future, err));
    MOEC_TRY_OUT(run_all(simulation, &future, n_threads, progress, context, err));
    take_points(simulation);
    MOEC_TRY_OUT(measure_reuse(&future, &simulation->reuse, err));
    find_cliff(&simulation->lru);
    MOEC_TRY_OUT(tune(simulation, n_threads, err));
out:
    moec_belady_release(&future);
    if (status != MOEC_OK)
        moec_simulation_release(simulation);
    return status;
}
