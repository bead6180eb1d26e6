/* Each of device, storage, bus and processor has a clock that only moves forward. In a layer guesses are
 * copied for which the bus was free; the others are taken back, but for those asked for. Then the pool is
 * asked, and the buffer for what it misses. Guesses for the next layer come before this layer's experts are
 * computed and released. A release lets in what waited for room. */
#include "profiler/simulate/simulated_tiers.h"

#include "formats/base/memory.h"
#include "profiler/simulate/simulated_run.h"
#include "profiler/simulate/simulated_stream.h"
#include "runtime/policy/schedule/cooperation.h"
#include "runtime/policy/schedule/preload.h"
#include "runtime/policy/schedule/read_order.h"
#include "runtime/policy/schedule/residency.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- modes ---- */

static const struct {
    const char *name, *words;
} modes[MOEC_TIERS_MODES] = {
    {"on-demand", "copied when asked for, not kept: load on demand (Fate), Transformers (HOBBIT)"},
    {"layer-wise", "all of the next layer ahead, none kept: DeepSpeed (HOBBIT, FloE)"},
    {"cache", "copied when asked for and kept: MoE-Offloading without predictions (HOBBIT, FloE)"},
    {"preload",
     "and the next layer's predicted ahead: MoE-Offloading by gates, MoE-Infinity and EAP by paths"},
    {"cooperative", "or computed by the processor where that is sooner: Fiddler (HOBBIT, FloE)"},
    {"resident", "all on the GPU: Mixtral-GPU (FloE)"},
};

const char *moec_tiers_mode_name(enum moec_tiers_mode mode)
{
    return modes[mode].name;
}

const char *moec_tiers_mode_words(enum moec_tiers_mode mode)
{
    return modes[mode].words;
}

enum moec_status moec_tiers_mode_find(const char *name, enum moec_tiers_mode *mode, struct moec_error *err)
{
    for (int i = 0; i < MOEC_TIERS_MODES; i++)
        if (strcmp(modes[i].name, name) == 0) {
            *mode = (enum moec_tiers_mode)i;
            return MOEC_OK;
        }
    return moec_fail(err, MOEC_ERR_USAGE,
                     "mode '%s' is unknown, expected on-demand, layer-wise, cache, "
                     "preload, cooperative or resident",
                     name);
}

/* ---- a run ---- */

struct record {
    double landed_ns; /* its copy, once it has begun; INFINITY for a guess that waits */
    double ready_ns;  /* its bytes are in pinned memory, and checked */
    bool is_prefetch; /* copied for one, and not asked for yet */
    bool on_cpu;      /* of the answer at work: the processor computes it */
};

struct run {
    const struct moec_simulated_tiers_setup *setup;
    const struct moec_simulated_model *model;
    struct moec_residency *pool, *buffer;
    struct moec_preload *preload; /* NULL: nothing is predicted */
    struct record *records;       /* (S, E), owned */
    bool keeps_nothing;

    double now_ns; /* the device */
    double storage_ns, bus_ns, cpu_ns;
    uint32_t *prefetches; /* (S, E), owned: keys that wait for the bus, in order */
    uint32_t n_prefetches, n_begun;
    double prefetched_ns; /* when they were made */

    const struct moec_recorded_step *step;
    struct moec_tiers_counts *counts; /* of the phase */
    uint32_t ordinal;
    uint32_t *keys;                             /* (S, E), owned */
    uint32_t *turns, *order, *missing, *takers; /* (E), owned */
    bool *is_present, *is_there, *is_behind;    /* (E), owned */
    uint32_t n_present, n_admitted;             /* of the turns */
    double uses;                                /* of each active expert, by the step's tokens */
};

static bool is_in_pool(const struct run *run, uint32_t key)
{
    return moec_residency_is_present(run->pool, key);
}

/* ---- storage and bus ---- */

/* Asks storage for a record that the buffer has made room for. */
static void read_record(struct run *run, uint32_t key)
{
    const struct moec_simulated_device *device = run->setup->device;
    run->storage_ns = fmax(run->now_ns + device->latency_ns, run->storage_ns) + device->read_ns[key];
    run->records[key].ready_ns = run->storage_ns + device->check_ns[key];
    run->counts->read_bytes += run->model->record_bytes[key];
}

static void begin_copy(struct run *run, uint32_t key, double from_ns)
{
    struct record *record = &run->records[key];
    run->bus_ns = fmax(fmax(from_ns, record->ready_ns), run->bus_ns) + run->setup->gpu->copy_ns[key];
    record->landed_ns = run->bus_ns;
    run->counts->copied_bytes += run->model->record_bytes[key];
}

/* Begins the guesses for which the bus is free before a time. They wait for what storage still reads. */
static void copy_prefetches(struct run *run, double until_ns)
{
    for (; run->n_begun < run->n_prefetches; run->n_begun++) {
        const uint32_t key = run->prefetches[run->n_begun];
        if (fmax(run->bus_ns, run->records[key].ready_ns) >= until_ns)
            return;
        run->counts->prefetches++;
        begin_copy(run, key, run->prefetched_ns);
    }
}

/* What has not begun when the router answers is taken back, but for what it asks for, which is demanded. */
static void take_prefetches_back(struct run *run)
{
    for (uint32_t i = run->n_begun; i < run->n_prefetches; i++) {
        const uint32_t key = run->prefetches[i];
        if (!is_in_pool(run, key) || run->records[key].landed_ns != INFINITY)
            continue;
        moec_residency_drop(run->pool, key);
        run->records[key].is_prefetch = false;
    }
    run->n_prefetches = run->n_begun = 0;
}

/* The buffer's part of a demand that it was told of, or of a guess: makes the record come, and lets it go. */
static void take_behind(struct run *run, uint32_t key, bool is_asked)
{
    if (moec_residency_is_present(run->buffer, key)) {
        if (is_asked)
            moec_residency_release(run->buffer, key);
        return;
    }
    if (is_asked ? moec_residency_admit(run->buffer, key) : moec_residency_prefetch(run->buffer, key)) {
        read_record(run, key);
        if (is_asked)
            moec_residency_release(run->buffer, key);
    }
}

/* ---- guesses ---- */

static bool view_is_present(void *context, uint32_t key)
{
    const struct run *run = context;
    return moec_residency_hint(run->pool, key);
}

static uint64_t view_n_bytes_of(void *context, uint32_t key)
{
    const struct run *run = context;
    return run->model->record_bytes[key];
}

static void make_prefetch(struct run *run, uint32_t key)
{
    struct record *record = &run->records[key];
    if (!moec_residency_prefetch(run->pool, key))
        return;
    take_behind(run, key, false);
    if (!moec_residency_is_present(run->buffer, key)) {
        moec_residency_drop(run->pool, key);
        return;
    }
    record->is_prefetch = true;
    record->landed_ns = INFINITY;
    run->prefetches[run->n_prefetches++] = key;
}

/* Behind the last layer comes the first one of the next token. */
static void prefetch(struct run *run, const struct moec_router_answer *answer)
{
    const uint32_t n_expert = run->model->n_expert;
    const uint32_t next = run->ordinal + 1 < run->step->layers.end ? run->ordinal + 1 : run->model->n_encoder;
    run->prefetched_ns = run->now_ns;
    if (run->setup->mode == MOEC_TIERS_LAYER_WISE) {
        for (uint32_t e = 0; e < n_expert; e++)
            if (!moec_residency_hint(run->pool, next * n_expert + e))
                make_prefetch(run, next * n_expert + e);
    }
    if (run->preload == NULL)
        return;
    moec_preload_answer(run->preload, answer, run->ordinal, 0);
    for (uint32_t ahead = 1; moec_preload_wants_rank(run->preload, ahead); ahead++)
        moec_preload_rank(run->preload, answer, ahead);
    for (uint32_t key = moec_preload_next(run->preload, 0); key != MOEC_EVICT_NONE;
         key = moec_preload_next(run->preload, 0))
        make_prefetch(run, key);
}

/* ---- a layer ---- */

/* Whether the processor takes a missed expert, whose record is in memory. */
static bool goes_to_cpu(struct run *run, uint32_t key)
{
    const struct moec_cooperation of = {.now_ns = run->now_ns,
                                        .cpu_free_ns = fmax(run->cpu_ns, run->records[key].ready_ns),
                                        .cpu_ns = run->uses * run->setup->device->compute_ns[key],
                                        .bus_free_ns = fmax(run->bus_ns, run->records[key].ready_ns),
                                        .copy_ns = run->setup->gpu->copy_ns[key],
                                        .gpu_ns = run->uses * run->setup->gpu->compute_ns[key]};
    if (run->setup->mode != MOEC_TIERS_COOPERATIVE || !moec_cooperation_takes_cpu(&of))
        return false;
    run->cpu_ns = fmax(of.cpu_free_ns, of.now_ns) + of.cpu_ns;
    run->counts->computed_there++;
    return true;
}

/* Brings the missing ones in turn, as far as the pool has room. */
static void admit(struct run *run, uint32_t n_active)
{
    while (run->n_admitted < n_active) {
        const uint32_t key = run->turns[run->n_admitted];
        struct record *record = &run->records[key];
        const bool is_behind = moec_residency_is_present(run->buffer, key);
        record->on_cpu = is_behind && goes_to_cpu(run, key);
        if (!record->on_cpu && !moec_residency_admit(run->pool, key))
            return;
        take_behind(run, key, true);
        run->n_admitted++;
        if (record->on_cpu)
            continue;
        copy_prefetches(run, run->now_ns);
        begin_copy(run, key, run->now_ns);
    }
}

static void put_missing(struct run *run, const struct moec_router_answer *answer, uint32_t i, uint32_t at)
{
    run->missing[at] = answer->active[i];
    run->takers[at] = answer->n_takers != NULL ? answer->n_takers[i] : 1;
}

/* What the pool has, in the order in which it is there; then what it misses, as the buffer would hand it out.
 */
static void put_in_order(struct run *run, const struct moec_router_answer *answer)
{
    const uint32_t base = run->ordinal * run->model->n_expert, n = answer->n_active;
    uint32_t n_missing = 0;
    moec_read_order(n, run->is_present, run->is_there, false, answer->n_takers, run->order);
    for (uint32_t i = 0; i < run->n_present; i++)
        run->turns[i] = base + answer->active[run->order[i]];
    for (uint32_t i = 0; i < n; i++)
        if (!run->is_present[i])
            put_missing(run, answer, i, n_missing++);
    if (n_missing == 0)
        return;
    moec_residency_ask(run->buffer, run->ordinal, 0, run->missing, n_missing, run->is_behind);
    for (uint32_t i = 0; i < n_missing; i++) {
        run->counts->buffer_hits += run->is_behind[i];
        run->is_there[i] = run->is_behind[i] && run->records[base + run->missing[i]].ready_ns <= run->now_ns;
    }
    moec_read_order(n_missing, run->is_behind, run->is_there, false, run->takers, run->order);
    for (uint32_t i = 0; i < n_missing; i++)
        run->turns[run->n_present + i] = base + run->missing[run->order[i]];
}

static void ask(struct run *run, const struct moec_router_answer *answer)
{
    const uint32_t base = run->ordinal * run->model->n_expert;
    moec_residency_ask(run->pool, run->ordinal, 0, answer->active, answer->n_active, run->is_present);
    run->counts->asked += answer->n_active;
    run->n_present = 0;
    for (uint32_t i = 0; i < answer->n_active; i++) {
        struct record *record = &run->records[base + answer->active[i]];
        record->on_cpu = false;
        if (!run->is_present[i])
            continue;
        if (record->landed_ns == INFINITY) { /* a guess that has not begun, and is right */
            run->counts->prefetches++;
            begin_copy(run, base + answer->active[i], run->now_ns);
        }
        run->is_there[i] = record->landed_ns <= run->now_ns;
        run->counts->hits += run->is_there[i];
        run->counts->late += !run->is_there[i];
        run->counts->useful += record->is_prefetch;
        record->is_prefetch = false;
        run->n_present++;
    }
    run->counts->misses += answer->n_active - run->n_present;
    run->n_admitted = run->n_present;
    put_in_order(run, answer);
    admit(run, answer->n_active);
}

static void wait_until(struct run *run, double ns)
{
    if (ns <= run->now_ns)
        return;
    run->counts->stall_ns += ns - run->now_ns;
    run->now_ns = ns;
}

static void compute(struct run *run, const struct moec_router_answer *answer)
{
    bool has_waited = false;
    for (uint32_t i = 0; i < answer->n_active; i++) {
        const uint32_t key = run->turns[i];
        if (run->records[key].on_cpu) {
            has_waited = true;
            continue;
        }
        wait_until(run, run->records[key].landed_ns);
        const double work_ns = run->uses * run->setup->gpu->compute_ns[key];
        run->counts->compute_ns += work_ns;
        run->now_ns += work_ns;
        moec_residency_release(run->pool, key);
        if (run->keeps_nothing)
            moec_residency_drop(run->pool, key);
        admit(run, answer->n_active);
    }
    if (has_waited)
        wait_until(run, fmax(run->cpu_ns, run->now_ns) + run->setup->gpu->answer_ns);
}

/* Guesses of this layer that nobody asked for go where nothing is kept. */
static void clear_layer(struct run *run)
{
    const uint32_t base = run->ordinal * run->model->n_expert;
    for (uint32_t key = base; run->keeps_nothing && key < base + run->model->n_expert; key++)
        if (is_in_pool(run, key)) {
            moec_residency_drop(run->pool, key);
            run->records[key].is_prefetch = false;
        }
}

static void pass_time(struct run *run, bool is_last)
{
    const double position = run->step->position + (run->step->n_tok - 1) / 2.0;
    const uint32_t n_passed = run->model->n_layer - run->model->n_encoder;
    const double context_ns = is_last ? 0 : run->setup->gpu->ns_per_position * position / n_passed;
    const double ns = (run->setup->gpu->gap_ns + context_ns) * run->step->n_tok;
    run->counts->compute_ns += ns;
    run->now_ns += ns;
}

static void run_layer(struct run *run, const struct moec_router_answer *answer)
{
    pass_time(run, false);
    if (answer->n_active == 0)
        return;
    copy_prefetches(run, run->now_ns);
    run->uses = (double)answer->n_tok * run->model->top_k / answer->n_active;
    /* Those among the guesses that it asks for are no guesses any more. */
    for (uint32_t i = run->n_begun; i < run->n_prefetches; i++) {
        const uint32_t key = run->prefetches[i];
        for (uint32_t a = 0; a < answer->n_active; a++)
            if (key == run->ordinal * run->model->n_expert + answer->active[a])
                run->prefetches[i] = run->prefetches[run->n_begun++];
    }
    take_prefetches_back(run);
    ask(run, answer);
    prefetch(run, answer);
    compute(run, answer);
    clear_layer(run);
}

/* ---- all of it ---- */

static enum moec_status create_preload(struct run *run, struct moec_error *err)
{
    const struct moec_simulated_model *model = run->model;
    const struct moec_preload_setup setup = {
        .predictor = run->setup->predictor,
        .model = {.n_layer = model->n_layer,
                  .n_encoder = model->n_encoder,
                  .n_expert = model->n_expert,
                  .top_k = model->top_k,
                  .paths = model->paths},
        .view = {.is_present = view_is_present, .n_bytes_of = view_n_bytes_of, .context = run},
        .count = run->setup->preload_count > 0 ? run->setup->preload_count : model->top_k};
    if (run->setup->mode != MOEC_TIERS_PRELOAD)
        return MOEC_OK;
    if (run->setup->predictor == NULL ||
        !moec_simulated_can_predict(run->setup->recording, model, run->setup->predictor))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the recording or its bundle lacks the data that the predictor '%s' needs",
                         run->setup->predictor == NULL ? "" : run->setup->predictor->name);
    return moec_preload_create(&setup, &run->preload, err);
}

static enum moec_status create(struct run *run, struct moec_error *err)
{
    const struct moec_simulated_tiers_setup *of = run->setup;
    const struct moec_simulated_model *model = run->model;
    const uint32_t n_key = model->n_layer * model->n_expert;
    struct moec_residency_setup setup = {.n_layer = model->n_layer,
                                         .n_encoder = model->n_encoder,
                                         .n_shallow = of->n_shallow > 0 ? of->n_shallow : model->n_shallow,
                                         .top_k = model->top_k,
                                         .n_expert = model->n_expert,
                                         .slot_bytes = model->slot_bytes,
                                         .capacity_bytes = of->pool_bytes,
                                         .policy = of->policy,
                                         .evict_weights = of->evict_weights};
    struct {
        void **at;
        size_t n, size;
    } arrays[] = {{(void **)&run->records, n_key, sizeof *run->records},
                  {(void **)&run->prefetches, n_key, sizeof *run->prefetches},
                  {(void **)&run->keys, n_key, sizeof *run->keys},
                  {(void **)&run->turns, model->n_expert, sizeof *run->turns},
                  {(void **)&run->order, model->n_expert, sizeof *run->order},
                  {(void **)&run->missing, model->n_expert, sizeof *run->missing},
                  {(void **)&run->takers, model->n_expert, sizeof *run->takers},
                  {(void **)&run->is_present, model->n_expert, sizeof(bool)},
                  {(void **)&run->is_there, model->n_expert, sizeof(bool)},
                  {(void **)&run->is_behind, model->n_expert, sizeof(bool)}};
    if (of->pool_bytes < model->largest_bytes || of->buffer_bytes < model->largest_bytes)
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "the GPU's pool of %" PRIu64 " bytes and the expert buffer of %" PRIu64 " bytes "
                         "must each have room for the largest expert's record of %" PRIu64 " bytes",
                         of->pool_bytes, of->buffer_bytes, model->largest_bytes);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        MOEC_TRY(moec_alloc(arrays[i].at, arrays[i].n, arrays[i].size, "simulated tiers", err));
    run->keeps_nothing = of->mode == MOEC_TIERS_ON_DEMAND || of->mode == MOEC_TIERS_LAYER_WISE;
    MOEC_TRY(moec_residency_create(&setup, &run->pool, err));
    setup.capacity_bytes = of->buffer_bytes;
    setup.frequency = model->frequency;
    MOEC_TRY(moec_residency_create(&setup, &run->buffer, err));
    (void)moec_residency_warm(run->buffer, run->keys);
    if (of->mode == MOEC_TIERS_RESIDENT)
        (void)moec_residency_warm(run->pool, run->keys);
    return create_preload(run, err);
}

static void release(struct run *run)
{
    moec_residency_free(run->pool);
    moec_residency_free(run->buffer);
    moec_preload_free(run->preload);
    free(run->records);
    free(run->prefetches);
    free(run->keys);
    free(run->turns);
    free(run->order);
    free(run->missing);
    free(run->takers);
    free(run->is_present);
    free(run->is_there);
    free(run->is_behind);
}

static double floor_of(const struct run *run, const struct moec_tiers_counts *counts, uint64_t n_decoded)
{
    double copy_ns = 0, read_ns = 0, n_bytes = 0;
    const uint32_t n_key = run->model->n_layer * run->model->n_expert;
    for (uint32_t key = 0; key < n_key; key++) {
        copy_ns += run->setup->gpu->copy_ns[key];
        read_ns += run->setup->device->read_ns[key];
        n_bytes += (double)run->model->record_bytes[key];
    }
    return fmax(counts->compute_ns, fmax((double)counts->copied_bytes * copy_ns / n_bytes,
                                         (double)counts->read_bytes * read_ns / n_bytes)) /
           (double)n_decoded;
}

enum moec_status moec_simulated_tiers(const struct moec_simulated_tiers_setup *setup,
                                      struct moec_tiers_result *result, struct moec_error *err)
{
    const struct moec_recording *recording = setup->recording;
    struct run run = {.setup = setup, .model = setup->model};
    struct moec_simulated_result times;
    float *step_ns = NULL;
    uint64_t n_decoded = 0;
    enum moec_status status = MOEC_OK;
    *result = (struct moec_tiers_result){0};
    MOEC_TRY_OUT(create(&run, err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&step_ns, recording->n_step, 2 * sizeof *step_ns, "times of steps", err));
    for (uint64_t step = 0; step < recording->n_step; step++) {
        const double begun_ns = run.now_ns;
        run.step = &recording->steps[step];
        if (run.step->begins) {
            moec_residency_begin(run.pool);
            moec_residency_begin(run.buffer);
        }
        run.counts = run.step->is_prefill ? &result->prefill : &result->decode;
        for (run.ordinal = run.step->layers.first; run.ordinal < run.step->layers.end; run.ordinal++) {
            const struct moec_router_answer answer = moec_recording_answer(recording, step, run.ordinal);
            run_layer(&run, &answer);
        }
        if (run.step->layers.end == recording->n_layer)
            pass_time(&run, true);
        if (!run.step->is_prefill)
            step_ns[n_decoded++] = (float)(run.now_ns - begun_ns);
    }
    moec_simulated_set_times(step_ns, step_ns + recording->n_step, n_decoded, &times);
    result->tpot_ns_median = times.tpot_ns_median;
    result->tpot_ns_p95 = times.tpot_ns_p95;
    result->tpot_ns_mean = times.tpot_ns_mean;
    result->floor_ns = n_decoded > 0 ? floor_of(&run, &result->decode, n_decoded) : NAN;
out:
    release(&run);
    free(step_ns);
    return status;
}
