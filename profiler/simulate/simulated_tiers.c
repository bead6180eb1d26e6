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
    {"on-demand", "copied when requested, not kept: load on demand (Fate), Transformers (HOBBIT)"},
    {"layer-wise", "all experts of the next layer copied ahead, none kept: DeepSpeed (HOBBIT, FloE)"},
    {"cache", "copied when requested, and kept: MoE-Offloading without predictions (HOBBIT, FloE)"},
    {"preload",
     "like cache, and predicted experts are copied ahead: MoE-Offloading by gates, MoE-Infinity and EAP by "
     "paths"},
    {"cooperative", "like cache, or computed by the CPU if that is sooner: Fiddler (HOBBIT, FloE)"},
    {"resident", "all experts stay on the GPU: Mixtral-GPU (FloE)"},
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

struct clock {
    double now_ns; /* the device */
    double storage_ns, bus_ns, cpu_ns;
};

struct prefetches {
    struct moec_preload *preload; /* NULL: nothing is predicted */
    uint32_t *keys;               /* (S, E), owned: that wait for the bus, in order */
    uint32_t n, n_begun;
    double made_ns; /* when they were */
};

/* What the router asked for, of the layer at work; (E) each, owned. */
struct asked {
    uint32_t *turns, *order, *missing, *takers;
    bool *is_present, *is_there, *is_behind;
    uint32_t n_present, n_admitted; /* of the turns */
};

struct run {
    const struct moec_simulated_tiers_setup *setup;
    const struct moec_simulated_model *model;
    struct {
        struct moec_residency *pool, *buffer;
        struct record *records; /* (S, E), owned */
        bool keeps_nothing;
    } tiers;
    struct clock clock;
    struct prefetches prefetches;
    struct {
        const struct moec_recorded_step *step;
        struct moec_tiers_counts *counts; /* of the phase */
        uint32_t ordinal;
        double uses; /* of each active expert, by the step's tokens */
    } at;
    struct asked asked;
};

static bool is_in_pool(const struct run *run, uint32_t key)
{
    return moec_residency_is_present(run->tiers.pool, key);
}

/* ---- storage and bus ---- */

/* Asks storage for a record that the buffer has made room for. */
static void read_record(struct run *run, uint32_t key)
{
    const struct moec_simulated_device *device = run->setup->device;
    run->clock.storage_ns =
        fmax(run->clock.now_ns + device->latency_ns, run->clock.storage_ns) + device->read_ns[key];
    run->tiers.records[key].ready_ns = run->clock.storage_ns + device->check_ns[key];
    run->at.counts->read_bytes += run->model->records.record_bytes[key];
}

static void begin_copy(struct run *run, uint32_t key, double from_ns)
{
    struct record *record = &run->tiers.records[key];
    run->clock.bus_ns =
        fmax(fmax(from_ns, record->ready_ns), run->clock.bus_ns) + run->setup->gpu->copy_ns[key];
    record->landed_ns = run->clock.bus_ns;
    run->at.counts->copied_bytes += run->model->records.record_bytes[key];
}

/* Begins the guesses for which the bus is free before a time. They wait for what storage still reads. */
static void copy_prefetches(struct run *run, double until_ns)
{
    for (; run->prefetches.n_begun < run->prefetches.n; run->prefetches.n_begun++) {
        const uint32_t key = run->prefetches.keys[run->prefetches.n_begun];
        if (fmax(run->clock.bus_ns, run->tiers.records[key].ready_ns) >= until_ns)
            return;
        run->at.counts->prefetches++;
        begin_copy(run, key, run->prefetches.made_ns);
    }
}

/* What has not begun when the router answers is taken back, but for what it asks for, which is demanded. */
static void take_prefetches_back(struct run *run)
{
    for (uint32_t i = run->prefetches.n_begun; i < run->prefetches.n; i++) {
        const uint32_t key = run->prefetches.keys[i];
        if (!is_in_pool(run, key) || run->tiers.records[key].landed_ns != INFINITY)
            continue;
        moec_residency_drop(run->tiers.pool, key);
        run->tiers.records[key].is_prefetch = false;
    }
    run->prefetches.n = run->prefetches.n_begun = 0;
}

/* The buffer's part of a demand that it was told of, or of a guess: makes the record come, and lets it go. */
static void take_behind(struct run *run, uint32_t key, bool is_asked)
{
    if (moec_residency_is_present(run->tiers.buffer, key)) {
        if (is_asked)
            moec_residency_release(run->tiers.buffer, key);
        return;
    }
    if (is_asked ? moec_residency_admit(run->tiers.buffer, key)
                 : moec_residency_prefetch(run->tiers.buffer, key)) {
        read_record(run, key);
        if (is_asked)
            moec_residency_release(run->tiers.buffer, key);
    }
}

/* ---- prefetches ---- */

static bool view_is_present(void *context, uint32_t key)
{
    const struct run *run = context;
    return moec_residency_hint(run->tiers.pool, key);
}

static uint64_t view_n_bytes_of(void *context, uint32_t key)
{
    const struct run *run = context;
    return run->model->records.record_bytes[key];
}

static void make_prefetch(struct run *run, uint32_t key)
{
    struct record *record = &run->tiers.records[key];
    if (!moec_residency_prefetch(run->tiers.pool, key))
        return;
    take_behind(run, key, false);
    if (!moec_residency_is_present(run->tiers.buffer, key)) {
        moec_residency_drop(run->tiers.pool, key);
        return;
    }
    record->is_prefetch = true;
    record->landed_ns = INFINITY;
    run->prefetches.keys[run->prefetches.n++] = key;
}

/* Behind the last layer comes the first one of the next token. */
static void prefetch(struct run *run, const struct moec_router_answer *answer)
{
    const uint32_t n_expert = run->model->shape.n_expert;
    const uint32_t next =
        run->at.ordinal + 1 < run->at.step->layers.end ? run->at.ordinal + 1 : run->model->shape.n_encoder;
    run->prefetches.made_ns = run->clock.now_ns;
    if (run->setup->mode == MOEC_TIERS_LAYER_WISE) {
        for (uint32_t e = 0; e < n_expert; e++)
            if (!moec_residency_hint(run->tiers.pool, next * n_expert + e))
                make_prefetch(run, next * n_expert + e);
    }
    if (run->prefetches.preload == NULL)
        return;
    moec_preload_answer(run->prefetches.preload, answer, run->at.ordinal, 0);
    for (uint32_t ahead = 1; moec_preload_wants_rank(run->prefetches.preload, ahead); ahead++)
        moec_preload_rank(run->prefetches.preload, answer, ahead);
    for (uint32_t key = moec_preload_next(run->prefetches.preload, 0); key != MOEC_EVICT_NONE;
         key = moec_preload_next(run->prefetches.preload, 0))
        make_prefetch(run, key);
}

/* ---- a layer ---- */

/* Whether the processor takes a missed expert, whose record is in memory. */
static bool goes_to_cpu(struct run *run, uint32_t key)
{
    const struct moec_cooperation of = {
        .now_ns = run->clock.now_ns,
        .cpu_free_ns = fmax(run->clock.cpu_ns, run->tiers.records[key].ready_ns),
        .cpu_ns = run->at.uses * run->setup->device->compute_ns[key],
        .bus_free_ns = fmax(run->clock.bus_ns, run->tiers.records[key].ready_ns),
        .copy_ns = run->setup->gpu->copy_ns[key],
        .gpu_ns = run->at.uses * run->setup->gpu->compute_ns[key]};
    if (run->setup->mode != MOEC_TIERS_COOPERATIVE || !moec_cooperation_takes_cpu(&of))
        return false;
    run->clock.cpu_ns = fmax(of.cpu_free_ns, of.now_ns) + of.cpu_ns;
    run->at.counts->computed_there++;
    return true;
}

/* Brings the missing ones in turn, as far as the pool has room. */
static void admit(struct run *run, uint32_t n_active)
{
    while (run->asked.n_admitted < n_active) {
        const uint32_t key = run->asked.turns[run->asked.n_admitted];
        struct record *record = &run->tiers.records[key];
        const bool is_behind = moec_residency_is_present(run->tiers.buffer, key);
        record->on_cpu = is_behind && goes_to_cpu(run, key);
        if (!record->on_cpu && !moec_residency_admit(run->tiers.pool, key))
            return;
        take_behind(run, key, true);
        run->asked.n_admitted++;
        if (record->on_cpu)
            continue;
        copy_prefetches(run, run->clock.now_ns);
        begin_copy(run, key, run->clock.now_ns);
    }
}

static void put_missing(struct run *run, const struct moec_router_answer *answer, uint32_t i, uint32_t at)
{
    run->asked.missing[at] = answer->active.list[i];
    run->asked.takers[at] = answer->active.n_takers != NULL ? answer->active.n_takers[i] : 1;
}

/* What the pool has, in the order in which it is there; then what it misses, as the buffer would hand it out.
 */
static void put_in_order(struct run *run, const struct moec_router_answer *answer)
{
    const uint32_t base = run->at.ordinal * run->model->shape.n_expert, n = answer->active.n;
    uint32_t n_missing = 0;
    moec_read_order(n, run->asked.is_present, run->asked.is_there, false, answer->active.n_takers,
                    run->asked.order);
    for (uint32_t i = 0; i < run->asked.n_present; i++)
        run->asked.turns[i] = base + answer->active.list[run->asked.order[i]];
    for (uint32_t i = 0; i < n; i++)
        if (!run->asked.is_present[i])
            put_missing(run, answer, i, n_missing++);
    if (n_missing == 0)
        return;
    moec_residency_ask(run->tiers.buffer, run->at.ordinal, 0, run->asked.missing, n_missing,
                       run->asked.is_behind);
    for (uint32_t i = 0; i < n_missing; i++) {
        run->at.counts->buffer_hits += run->asked.is_behind[i];
        run->asked.is_there[i] =
            run->asked.is_behind[i] &&
            run->tiers.records[base + run->asked.missing[i]].ready_ns <= run->clock.now_ns;
    }
    moec_read_order(n_missing, run->asked.is_behind, run->asked.is_there, false, run->asked.takers,
                    run->asked.order);
    for (uint32_t i = 0; i < n_missing; i++)
        run->asked.turns[run->asked.n_present + i] = base + run->asked.missing[run->asked.order[i]];
}

static void ask(struct run *run, const struct moec_router_answer *answer)
{
    const uint32_t base = run->at.ordinal * run->model->shape.n_expert;
    moec_residency_ask(run->tiers.pool, run->at.ordinal, 0, answer->active.list, answer->active.n,
                       run->asked.is_present);
    run->at.counts->asked += answer->active.n;
    run->asked.n_present = 0;
    for (uint32_t i = 0; i < answer->active.n; i++) {
        struct record *record = &run->tiers.records[base + answer->active.list[i]];
        record->on_cpu = false;
        if (!run->asked.is_present[i])
            continue;
        if (record->landed_ns == INFINITY) { /* a guess that has not begun, and is right */
            run->at.counts->prefetches++;
            begin_copy(run, base + answer->active.list[i], run->clock.now_ns);
        }
        run->asked.is_there[i] = record->landed_ns <= run->clock.now_ns;
        run->at.counts->hits += run->asked.is_there[i];
        run->at.counts->late += !run->asked.is_there[i];
        run->at.counts->useful += record->is_prefetch;
        record->is_prefetch = false;
        run->asked.n_present++;
    }
    run->at.counts->misses += answer->active.n - run->asked.n_present;
    run->asked.n_admitted = run->asked.n_present;
    put_in_order(run, answer);
    admit(run, answer->active.n);
}

static void wait_until(struct run *run, double ns)
{
    if (ns <= run->clock.now_ns)
        return;
    run->at.counts->stall_ns += ns - run->clock.now_ns;
    run->clock.now_ns = ns;
}

static void compute(struct run *run, const struct moec_router_answer *answer)
{
    bool has_waited = false;
    for (uint32_t i = 0; i < answer->active.n; i++) {
        const uint32_t key = run->asked.turns[i];
        if (run->tiers.records[key].on_cpu) {
            has_waited = true;
            continue;
        }
        wait_until(run, run->tiers.records[key].landed_ns);
        const double work_ns = run->at.uses * run->setup->gpu->compute_ns[key];
        run->at.counts->compute_ns += work_ns;
        run->clock.now_ns += work_ns;
        moec_residency_release(run->tiers.pool, key);
        if (run->tiers.keeps_nothing)
            moec_residency_drop(run->tiers.pool, key);
        admit(run, answer->active.n);
    }
    if (has_waited)
        wait_until(run, fmax(run->clock.cpu_ns, run->clock.now_ns) + run->setup->gpu->answer_ns);
}

/* Guesses of this layer that nobody asked for go where nothing is kept. */
static void clear_layer(struct run *run)
{
    const uint32_t base = run->at.ordinal * run->model->shape.n_expert;
    for (uint32_t key = base; run->tiers.keeps_nothing && key < base + run->model->shape.n_expert; key++)
        if (is_in_pool(run, key)) {
            moec_residency_drop(run->tiers.pool, key);
            run->tiers.records[key].is_prefetch = false;
        }
}

static void pass_time(struct run *run, bool is_last)
{
    const double position = run->at.step->position + (run->at.step->n_tok - 1) / 2.0;
    const uint32_t n_passed = run->model->shape.n_layer - run->model->shape.n_encoder;
    const double context_ns = is_last ? 0 : run->setup->gpu->ns_per_position * position / n_passed;
    const double ns = (run->setup->gpu->gap_ns + context_ns) * run->at.step->n_tok;
    run->at.counts->compute_ns += ns;
    run->clock.now_ns += ns;
}

static void run_layer(struct run *run, const struct moec_router_answer *answer)
{
    pass_time(run, false);
    if (answer->active.n == 0)
        return;
    copy_prefetches(run, run->clock.now_ns);
    run->at.uses = (double)answer->n_tok * run->model->shape.top_k / answer->active.n;
    /* Those among the guesses that it asks for are no guesses any more. */
    for (uint32_t i = run->prefetches.n_begun; i < run->prefetches.n; i++) {
        const uint32_t key = run->prefetches.keys[i];
        for (uint32_t a = 0; a < answer->active.n; a++)
            if (key == run->at.ordinal * run->model->shape.n_expert + answer->active.list[a])
                run->prefetches.keys[i] = run->prefetches.keys[run->prefetches.n_begun++];
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
        .predictor = run->setup->preload.predictor,
        .model = {.n_layer = model->shape.n_layer,
                  .n_encoder = model->shape.n_encoder,
                  .n_expert = model->shape.n_expert,
                  .top_k = model->shape.top_k,
                  .paths = model->paths},
        .view = {.is_present = view_is_present, .n_bytes_of = view_n_bytes_of, .context = run},
        .bounds.count = run->setup->preload.count > 0 ? run->setup->preload.count : model->shape.top_k};
    if (run->setup->mode != MOEC_TIERS_PRELOAD)
        return MOEC_OK;
    if (run->setup->preload.predictor == NULL ||
        !moec_simulated_can_predict(run->setup->recording, model, run->setup->preload.predictor))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "the recording or its bundle lacks the data that the predictor '%s' needs: choose another "
            "predictor",
            run->setup->preload.predictor == NULL ? "" : run->setup->preload.predictor->name);
    return moec_preload_create(&setup, &run->prefetches.preload, err);
}

static enum moec_status create(struct run *run, struct moec_error *err)
{
    const struct moec_simulated_tiers_setup *of = run->setup;
    const struct moec_simulated_model *model = run->model;
    const uint32_t n_key = model->shape.n_layer * model->shape.n_expert;
    struct moec_residency_setup setup = {.shape.n_layer = model->shape.n_layer,
                                         .shape.n_encoder = model->shape.n_encoder,
                                         .shape.n_shallow = of->evict.n_shallow > 0 ? of->evict.n_shallow
                                                                                    : model->shape.n_shallow,
                                         .shape.top_k = model->shape.top_k,
                                         .shape.n_expert = model->shape.n_expert,
                                         .pools.slot_bytes = model->records.slot_bytes,
                                         .pools.capacity_bytes = of->room.pool_bytes,
                                         .policy.ops = of->evict.policy,
                                         .policy.weights = of->evict.weights};
    struct {
        void **at;
        size_t n, size;
    } arrays[] = {{(void **)&run->tiers.records, n_key, sizeof *run->tiers.records},
                  {(void **)&run->prefetches.keys, n_key, sizeof *run->prefetches.keys},
                  {(void **)&run->asked.turns, model->shape.n_expert, sizeof *run->asked.turns},
                  {(void **)&run->asked.order, model->shape.n_expert, sizeof *run->asked.order},
                  {(void **)&run->asked.missing, model->shape.n_expert, sizeof *run->asked.missing},
                  {(void **)&run->asked.takers, model->shape.n_expert, sizeof *run->asked.takers},
                  {(void **)&run->asked.is_present, model->shape.n_expert, sizeof(bool)},
                  {(void **)&run->asked.is_there, model->shape.n_expert, sizeof(bool)},
                  {(void **)&run->asked.is_behind, model->shape.n_expert, sizeof(bool)}};
    if (of->room.pool_bytes < model->slots.largest_bytes ||
        of->room.buffer_bytes < model->slots.largest_bytes)
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "the GPU's pool of %" PRIu64 " bytes and the expert buffer of %" PRIu64
                         " bytes must each have room for the largest expert's record of %" PRIu64
                         " bytes; give a larger --vram or --memory",
                         of->room.pool_bytes, of->room.buffer_bytes, model->slots.largest_bytes);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        MOEC_TRY(moec_alloc(arrays[i].at, arrays[i].n, arrays[i].size, "simulated tiers", err));
    run->tiers.keeps_nothing = of->mode == MOEC_TIERS_ON_DEMAND || of->mode == MOEC_TIERS_LAYER_WISE;
    MOEC_TRY(moec_residency_create(&setup, &run->tiers.pool, err));
    setup.pools.capacity_bytes = of->room.buffer_bytes;
    setup.policy.frequency = model->records.frequency;
    MOEC_TRY(moec_residency_create(&setup, &run->tiers.buffer, err));
    (void)moec_residency_warm(run->tiers.buffer, run->prefetches.keys);
    if (of->mode == MOEC_TIERS_RESIDENT)
        (void)moec_residency_warm(run->tiers.pool, run->prefetches.keys);
    return create_preload(run, err);
}

static void release(struct run *run)
{
    moec_residency_free(run->tiers.pool);
    moec_residency_free(run->tiers.buffer);
    moec_preload_free(run->prefetches.preload);
    free(run->tiers.records);
    free(run->prefetches.keys);
    free(run->asked.turns);
    free(run->asked.order);
    free(run->asked.missing);
    free(run->asked.takers);
    free(run->asked.is_present);
    free(run->asked.is_there);
    free(run->asked.is_behind);
}

static double floor_of(const struct run *run, const struct moec_tiers_counts *counts, uint64_t n_decoded)
{
    double copy_ns = 0, read_ns = 0, n_bytes = 0;
    const uint32_t n_key = run->model->shape.n_layer * run->model->shape.n_expert;
    for (uint32_t key = 0; key < n_key; key++) {
        copy_ns += run->setup->gpu->copy_ns[key];
        read_ns += run->setup->device->read_ns[key];
        n_bytes += (double)run->model->records.record_bytes[key];
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
        const double begun_ns = run.clock.now_ns;
        run.at.step = &recording->steps[step];
        if (run.at.step->begins) {
            moec_residency_begin(run.tiers.pool);
            moec_residency_begin(run.tiers.buffer);
        }
        run.at.counts = run.at.step->is_prefill ? &result->prefill : &result->decode;
        for (run.at.ordinal = run.at.step->layers.first; run.at.ordinal < run.at.step->layers.end;
             run.at.ordinal++) {
            const struct moec_router_answer answer = moec_recording_answer(recording, step, run.at.ordinal);
            run_layer(&run, &answer);
        }
        if (run.at.step->layers.end == recording->shape.n_layer)
            pass_time(&run, true);
        if (!run.at.step->is_prefill)
            step_ns[n_decoded++] = (float)(run.clock.now_ns - begun_ns);
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
