/* How a step goes, in the order that runtime/policy/schedule/residency.h prescribes: time passes until the router's
 * answer; what is there is a hit, what is on its way is late, the rest is admitted and read in order; the
 * preloader guesses; experts are computed, those that were present first, together where several are there,
 * and released; each release may let in another that waits.
 *
 * Reads begin by the rules of runtime/policy/schedule/read_order.h, threads as in runtime/experts/loader.c: the
 * computing thread collects what it asked for, and checks it, while it waits for something; guesses begin
 * behind what is demanded, and the loader's thread goes on with them from when the last demanded record was
 * collected until the next answer. */
#include "profiler/simulate/simulated_run.h"

#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"
#include "profiler/simulate/simulated_stream.h"
#include "runtime/experts/arena.h"
#include "runtime/policy/schedule/preload.h"
#include "runtime/policy/schedule/prompt_prefetch.h"
#include "runtime/policy/schedule/read_order.h"
#include "runtime/policy/schedule/residency.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Where the bytes of a key are. What is neither queued nor asked for may still be on its way: it was given up
 * meanwhile, and is taken back when it is wanted again before its read ends. */
enum place { NOWHERE = 0, QUEUED, ASKED };

struct record {
    double begun_ns, done_ns; /* of its read: asked of storage, and its bytes there */
    double ready_ns;          /* and checked; INFINITY until the computing thread has done it */
    uint64_t since_token;     /* when it became present */
    uint8_t place;
    bool is_prefetch;   /* came for a guess, not asked for yet */
    bool is_alone;      /* nothing else was on its way when it was asked for */
    bool is_measurable; /* its time tells of the device (rule 6 of runtime/policy/schedule/read_order.h) */
};

/* The expert buffer. */
struct buffer {
    struct moec_logical_cache *logical; /* NULL: none is known */
    struct moec_residency *residency;
    struct moec_arena *arenas[2]; /* where records would lie: in pools, or all in the first */
    struct record *records;       /* (S, F, E), owned */
};

struct clock {
    double now_ns;
    double storage_ns; /* the last read that was issued ends */
    double loader_ns;  /* nothing is on its way any more, and everything is checked */
    double last_done_ns;
    double owed_ns;       /* computing that reads of prefetches have cost, and that is still to pass */
    double lone_ns;       /* what the last wait costs more if the next layer has none */
    double expert_ns;     /* of the answer's, as recorded */
    uint64_t recorded_ns; /* when the layer before was done, as recorded */
    double answer_ns;     /* prefetches are not chosen before */
};

/* What is read because it will probably be asked for. */
struct prefetches {
    struct moec_preload *preload; /* NULL: nothing is predicted */
    struct moec_read_rules rules;
    double ready_ns[2]; /* of the last guess and of the one before it */
    uint32_t last;      /* its key */
    bool is_going;      /* time-bounded: the loader has not been told yet that nothing is worth it */
    uint32_t *queue;    /* ring of prefetches to be read whatever happens, owned; (n_key + 1) */
    uint32_t queue_first, queue_end;
};

/* The same for a prompt. */
struct passed {
    struct moec_prompt_prefetch prefetch;
    uint32_t *keys; /* (E), owned: what was read for it, in the order of issue */
    uint32_t n;
};

/* What the router asked for, of the layer at work; (F x E) each, owned. */
struct asked {
    bool *is_present;    /* of an answer's experts, before it made room */
    bool *is_there;      /* likewise, and read and checked */
    uint32_t *turns;     /* its keys, in the order in which they are computed and released */
    uint32_t n_admitted; /* of the turns */
    uint32_t *flying;    /* demanded keys that are on their way, in the order of their arrival */
    uint32_t n_flying, n_collected;
    uint32_t n_waits; /* for records of the answer */
};

struct run {
    const struct moec_simulated_setup *setup;
    const struct moec_simulated_model *model;
    struct buffer buffer;
    struct clock clock;
    struct prefetches prefetches;
    struct passed passed;
    struct {
        const struct moec_recorded_step *step; /* being computed */
        uint32_t ordinal;
        struct moec_simulated_counts *counts; /* of the phase */
        struct moec_simulated_counts *layers; /* (S) or NULL */
        double lifetime_tokens;
        uint64_t n_lifetime;
    } at;
    struct asked asked;
};

/* ---- counting ---- */

#define COUNT(run, ordinal, member, amount)                                                                  \
    do {                                                                                                     \
        (run)->at.counts->member += (amount);                                                                \
        if ((run)->at.layers != NULL)                                                                        \
            (run)->at.layers[ordinal].member += (amount);                                                    \
    } while (0)

/* For the preloader's clock; times of a damaged trace may add up to anything. */
static uint64_t whole_ns(double ns)
{
    return ns < 1e18 ? (uint64_t)ns : (uint64_t)1000000000000000000;
}

/* Computing, or what goes with it. */
static void spend(struct run *run, double ns)
{
    COUNT(run, run->at.ordinal, compute_ns, ns);
    run->clock.now_ns += ns;
}

/* ---- storage ---- */

static struct moec_arena *arena_of(const struct run *run, uint32_t key)
{
    return run->buffer.arenas[run->model->slots.has_pools &&
                              key % run->model->shape.n_layer_key >= run->model->shape.n_expert];
}

/* Time for moving what is in the way of a record. The runtime moves nothing that is in use or on its way, and
 * sometimes more of the rest for it. */
static double place(struct run *run, uint32_t key)
{
    uint64_t moved_bytes = 0;
    if (!moec_arena_has(arena_of(run, key), key))
        (void)moec_arena_place(arena_of(run, key), key, &moved_bytes);
    return run->setup->device->move_ns_per_byte * (double)moved_bytes;
}

static void unplace(struct run *run, uint32_t key)
{
    if (moec_arena_has(arena_of(run, key), key))
        moec_arena_remove(arena_of(run, key), key);
}

/* Asks storage for a record at a time; who checks it sets ready_ns. */
static void issue(struct run *run, uint32_t key, double at_ns)
{
    const struct moec_simulated_device *device = run->setup->device;
    struct record *record = &run->buffer.records[key];
    record->is_alone = at_ns >= run->clock.storage_ns;
    record->is_measurable = true;
    record->begun_ns = fmax(at_ns, run->clock.storage_ns);
    run->clock.storage_ns = fmax(at_ns + device->latency_ns, run->clock.storage_ns) + device->read_ns[key];
    record->done_ns = run->clock.storage_ns;
    record->ready_ns = INFINITY;
    record->place = ASKED;
    COUNT(run, key / run->model->shape.n_layer_key, read_bytes, run->model->records.record_bytes[key]);
}

/* Of a read that somebody began to wait for at waited_ns. */
static void learn_time(struct run *run, uint32_t key, double waited_ns)
{
    const struct record *record = &run->buffer.records[key];
    const double own_ns =
        moec_read_own_ns(record->begun_ns, record->done_ns, run->clock.last_done_ns, waited_ns);
    run->clock.last_done_ns = fmax(record->done_ns, run->clock.last_done_ns);
    if (run->prefetches.preload != NULL && record->is_measurable && own_ns > 0)
        moec_preload_timed(run->prefetches.preload, run->model->records.record_bytes[key], whole_ns(own_ns),
                           record->is_alone);
}

/* A demanded key has become present, or was queued: its bytes are asked for, or still on their way. */
static void demand(struct run *run, uint32_t key)
{
    struct record *record = &run->buffer.records[key];
    spend(run, place(run, key));
    if (record->ready_ns <= run->clock.now_ns || record->place == QUEUED || record->ready_ns == INFINITY)
        issue(run, key, run->clock.now_ns);
    record->place = ASKED;
    run->asked.flying[run->asked.n_flying++] = key;
}

/* What the wait costs beyond itself. */
static void pay_wait(struct run *run, double waited_ns)
{
    const struct moec_simulated_device *device = run->setup->device;
    const bool is_first = run->asked.n_waits++ == 0;
    const double cost_ns =
        moec_simulated_wait_cost(device, waited_ns, is_first ? MOEC_WAIT_FIRST : MOEC_WAIT_NEXT);
    if (is_first)
        run->clock.lone_ns = moec_simulated_wait_cost(device, waited_ns, MOEC_WAIT_LONE) - cost_ns;
    spend(run, cost_ns);
}

/* The layer has come to its end without a wait, or the step has: what slept since the last one is awake. */
static void pay_lone_wait(struct run *run)
{
    spend(run, run->clock.lone_ns);
    run->clock.lone_ns = 0;
}

/* The computing thread takes the next one that arrives, and checks it. */
static void collect(struct run *run)
{
    const uint32_t key = run->asked.flying[run->asked.n_collected++];
    struct record *record = &run->buffer.records[key];
    const double begun_ns = run->clock.now_ns;
    const bool is_read = record->ready_ns == INFINITY;
    const double waited_ns = fmax(0, (is_read ? record->done_ns : record->ready_ns) - begun_ns);
    run->clock.now_ns += waited_ns;
    if (is_read) {
        run->clock.now_ns += run->setup->device->check_ns[key];
        record->ready_ns = run->clock.now_ns;
        learn_time(run, key, begun_ns);
    }
    run->clock.loader_ns = fmax(run->clock.loader_ns, run->clock.now_ns);
    COUNT(run, run->at.ordinal, stall_ns, run->clock.now_ns - begun_ns);
    if (waited_ns > 0)
        pay_wait(run, waited_ns);
}

static void evicted(void *context, uint32_t key)
{
    struct run *run = context;
    struct record *record = &run->buffer.records[key];
    const uint32_t ordinal = key / run->model->shape.n_layer_key;
    COUNT(run, ordinal, evictions, 1);
    COUNT(run, ordinal, wasted, record->is_prefetch);
    run->at.lifetime_tokens += (double)(run->at.step->first_token - record->since_token);
    run->at.n_lifetime++;
    if (record->place == QUEUED)
        record->ready_ns = 0;
    record->place = NOWHERE;
    record->is_prefetch = false;
    unplace(run, key);
}

/* ---- prefetches ---- */

static bool view_is_present(void *context, uint32_t key)
{
    const struct run *run = context;
    return moec_residency_hint(run->buffer.residency, key);
}

static uint64_t view_n_bytes_of(void *context, uint32_t key)
{
    const struct run *run = context;
    return run->model->records.record_bytes[key];
}

/* The loader's thread waits for it and checks it, or the computing one finds it there. */
static void read_prefetch(struct run *run, uint32_t key, double at_ns)
{
    struct record *record = &run->buffer.records[key];
    (void)place(run, key);
    if (record->ready_ns <= at_ns) {
        issue(run, key, at_ns);
        record->is_measurable = record->is_alone;
        record->ready_ns = record->done_ns + run->setup->device->check_ns[key];
        learn_time(run, key, at_ns);
    }
    record->place = ASKED;
    run->clock.loader_ns = fmax(run->clock.loader_ns, record->ready_ns);
}

static bool make_prefetch(struct run *run, uint32_t key)
{
    struct record *record = &run->buffer.records[key];
    if (!moec_residency_prefetch(run->buffer.residency, key))
        return false;
    record->is_prefetch = true;
    record->since_token = run->at.step->first_token;
    COUNT(run, key / run->model->shape.n_layer_key, preloads, 1);
    return true;
}

/* Makes the next guess at a time, behind what is on its way then; false when nothing is worth it. */
static bool prefetch_at(struct run *run, double at_ns)
{
    uint32_t n_ahead = run->asked.n_flying - run->asked.n_collected;
    for (size_t i = 0; i < 2; i++)
        n_ahead += run->prefetches.ready_ns[i] > at_ns;
    const uint32_t key = moec_preload_next_behind(run->prefetches.preload, whole_ns(at_ns), n_ahead);
    if (key == MOEC_EVICT_NONE)
        return false;
    if (make_prefetch(run, key)) {
        read_prefetch(run, key, at_ns);
        run->prefetches.ready_ns[1] = run->prefetches.ready_ns[0];
        run->prefetches.ready_ns[0] = run->buffer.records[key].ready_ns;
        run->prefetches.last = key;
    }
    return true;
}

/* When the next guess may be made. */
static double prefetch_time(const struct run *run)
{
    return fmax(run->prefetches.ready_ns[moec_read_most_prefetches(&run->prefetches.rules) - 1],
                run->clock.answer_ns);
}

/* Reads what the loader begins to read up to a time: its thread takes some of the computing. */
static void load_until(struct run *run, double until_ns)
{
    const uint32_t n_queue = run->model->shape.n_layer * run->model->shape.n_layer_key + 1;
    while (run->asked.n_collected == run->asked.n_flying) {
        const bool is_queued = run->prefetches.queue_first != run->prefetches.queue_end;
        const double at_ns =
            is_queued ? fmax(run->clock.loader_ns, run->clock.answer_ns) : prefetch_time(run);
        if (at_ns > until_ns || (!is_queued && !run->prefetches.is_going))
            return;
        if (!is_queued && !moec_preload_has_time(run->prefetches.preload, whole_ns(at_ns)))
            return;
        if (!is_queued) {
            run->prefetches.is_going = prefetch_at(run, at_ns);
            run->clock.owed_ns += run->prefetches.is_going ? run->setup->device->preload_ns : 0;
            continue;
        }
        const uint32_t key = run->prefetches.queue[run->prefetches.queue_first];
        run->prefetches.queue_first = (run->prefetches.queue_first + 1) % n_queue;
        if (run->buffer.records[key].place != QUEUED)
            continue;
        read_prefetch(run, key, at_ns);
        run->clock.owed_ns += run->setup->device->preload_ns;
    }
}

static bool is_asked(const struct run *run, const struct moec_router_answer *answer, uint32_t key)
{
    for (uint32_t i = 0; i < answer->active.n; i++)
        if (key == run->at.ordinal * run->model->shape.n_layer_key + answer->active.list[i])
            return true;
    return false;
}

static void take_back(struct run *run, uint32_t key)
{
    struct record *record = &run->buffer.records[key];
    COUNT(run, key / run->model->shape.n_layer_key, read_bytes, -run->model->records.record_bytes[key]);
    COUNT(run, key / run->model->shape.n_layer_key, wasted, 1);
    moec_residency_drop(run->buffer.residency, key);
    unplace(run, key);
    record->place = NOWHERE;
    record->is_prefetch = false;
    record->ready_ns = 0;
}

/* The last guess is taken back if storage has not begun it and the router did not ask for it. */
static void cancel_prefetch(struct run *run, const struct moec_router_answer *answer)
{
    struct record *record = &run->buffer.records[run->prefetches.last];
    if (run->prefetches.preload == NULL || moec_read_most_prefetches(&run->prefetches.rules) < 2 ||
        !record->is_prefetch || record->place != ASKED || record->begun_ns <= run->clock.now_ns ||
        record->ready_ns <= run->clock.now_ns)
        return;
    if (is_asked(run, answer, run->prefetches.last))
        return;
    run->clock.storage_ns = run->clock.last_done_ns = record->begun_ns;
    run->prefetches.ready_ns[0] = run->prefetches.ready_ns[1];
    take_back(run, run->prefetches.last);
}

/* ---- prompts ---- */

/* What the next layer will ask for, as far as there is room. */
static void read_on(struct run *run)
{
    for (uint32_t key; (key = moec_prompt_prefetch_next(&run->passed.prefetch)) != MOEC_EVICT_NONE;) {
        if (!make_prefetch(run, key))
            return;
        moec_arena_make_hole(arena_of(run, key), run->buffer.residency, key);
        read_prefetch(run, key, run->clock.now_ns);
        run->passed.keys[run->passed.n++] = key;
    }
}

static void come_to_next(struct run *run, const struct moec_router_answer *answer)
{
    run->passed.n = 0;
    if (run->setup->preload.reads_on)
        moec_prompt_prefetch_answered(&run->passed.prefetch, run->at.ordinal, answer);
    read_on(run);
}

/* A step's tokens come to the first layer of a decoder's. */
static void begin_prompt(struct run *run)
{
    run->at.ordinal = run->at.step->layers.first;
    run->passed.n = 0;
    const struct moec_recording *recording = run->setup->recording;
    const uint64_t a =
        (uint64_t)(run->at.step - recording->steps) * recording->shape.n_layer + run->at.ordinal;
    const bool *is_low = moec_recording_low(recording, a);
    const bool is_known = recording->known.forms == NULL || is_low != NULL || !run->at.step->is_prefill;
    if (run->setup->preload.reads_on && run->at.step->n_tok > 1 &&
        run->at.ordinal == run->model->shape.n_encoder && is_known)
        moec_prompt_prefetch_begin(&run->passed.prefetch, run->at.ordinal, run->at.step->n_tok, is_low);
    read_on(run);
}

/* Of what storage has not begun only what the router asks for is read. */
static void take_back_passed(struct run *run, const struct moec_router_answer *answer)
{
    bool has_begun = true;
    for (uint32_t i = 0; run->prefetches.rules.begins_in_turn && i < run->passed.n; i++) {
        const uint32_t key = run->passed.keys[i];
        struct record *record = &run->buffer.records[key];
        if (!record->is_prefetch || record->place != ASKED || record->begun_ns <= run->clock.now_ns)
            continue;
        if (has_begun)
            run->clock.storage_ns = record->begun_ns;
        has_begun = false;
        if (!is_asked(run, answer, key)) {
            take_back(run, key);
            continue;
        }
        record->begun_ns = run->clock.storage_ns;
        run->clock.storage_ns = record->done_ns = record->begun_ns + run->setup->device->read_ns[key];
        record->ready_ns = record->done_ns + run->setup->device->check_ns[key];
    }
    run->passed.n = 0;
}

/* What the router of a later layer says is computed while demanded reads are on their way. */
static void predict(struct run *run)
{
    if (run->setup->device->is_recorded || !run->setup->preload.predictor->needs_next_gate)
        return;
    spend(run, run->setup->device->predict_ns);
}

/* The preloader learns the answer; what is bounded by number is queued at once. */
static void prefetch(struct run *run, const struct moec_router_answer *answer)
{
    const uint32_t n_queue = run->model->shape.n_layer * run->model->shape.n_layer_key + 1;
    if (run->prefetches.preload == NULL)
        return;
    run->clock.answer_ns = run->clock.now_ns;
    moec_preload_answer(run->prefetches.preload, answer, run->at.ordinal, whole_ns(run->clock.now_ns));
    for (uint32_t ahead = 1; moec_preload_wants_rank(run->prefetches.preload, ahead); ahead++) {
        predict(run);
        moec_preload_rank(run->prefetches.preload, answer, ahead);
        run->prefetches.is_going = run->setup->preload.count == 0;
        while (run->prefetches.is_going && prefetch_time(run) <= run->clock.now_ns)
            run->prefetches.is_going = prefetch_at(run, run->clock.now_ns);
    }
    if (run->setup->preload.count == 0)
        return;
    for (uint32_t key = moec_preload_next(run->prefetches.preload, whole_ns(run->clock.now_ns));
         key != MOEC_EVICT_NONE;
         key = moec_preload_next(run->prefetches.preload, whole_ns(run->clock.now_ns))) {
        if (!make_prefetch(run, key))
            continue;
        run->buffer.records[key].place = QUEUED;
        run->prefetches.queue[run->prefetches.queue_end] = key;
        run->prefetches.queue_end = (run->prefetches.queue_end + 1) % n_queue;
    }
}

/* ---- a layer ---- */

/* Of a present key: whether it is there. */
static bool judge(struct run *run, uint32_t key)
{
    struct record *record = &run->buffer.records[key];
    const bool is_there = record->place != QUEUED && record->ready_ns <= run->clock.now_ns;
    if (is_there)
        COUNT(run, run->at.ordinal, hits, 1);
    else
        COUNT(run, run->at.ordinal, late, 1);
    COUNT(run, run->at.ordinal, useful, record->is_prefetch);
    record->is_prefetch = false;
    return is_there;
}

/* Admits those that wait, in order, as far as there is room. */
static void admit(struct run *run, uint32_t n_active)
{
    while (run->asked.n_admitted < n_active &&
           moec_residency_admit(run->buffer.residency, run->asked.turns[run->asked.n_admitted])) {
        run->buffer.records[run->asked.turns[run->asked.n_admitted]].since_token = run->at.step->first_token;
        demand(run, run->asked.turns[run->asked.n_admitted++]);
    }
}

/* Puts an answer's keys in turns; is_tight: something waits for room. */
static void put_in_order(struct run *run, const struct moec_router_answer *answer, bool is_tight)
{
    const uint32_t base = run->at.ordinal * run->model->shape.n_layer_key;
    moec_read_order(answer->active.n, run->asked.is_present, run->asked.is_there, is_tight,
                    answer->active.n_takers, run->asked.turns);
    for (uint32_t i = 0; i < answer->active.n; i++)
        run->asked.turns[i] = base + answer->active.list[run->asked.turns[i]];
}

/* Judges what the router asks for, and begins to read what is missing. */
static void ask(struct run *run, const struct moec_router_answer *answer)
{
    const uint32_t base = run->at.ordinal * run->model->shape.n_layer_key;
    moec_residency_ask(run->buffer.residency, run->at.ordinal, 0, answer->active.list, answer->active.n,
                       run->asked.is_present);
    COUNT(run, run->at.ordinal, asked, answer->active.n);
    run->asked.n_flying = run->asked.n_collected = run->asked.n_waits = 0;
    run->asked.n_admitted = 0;
    for (uint32_t i = 0; i < answer->active.n; i++) {
        const uint32_t key = base + answer->active.list[i];
        if (!run->asked.is_present[i])
            continue;
        run->asked.n_admitted++;
        run->asked.is_there[i] = judge(run, key);
        if (!run->asked.is_there[i])
            demand(run, key);
    }
    COUNT(run, run->at.ordinal, misses, answer->active.n - run->asked.n_admitted);
    put_in_order(run, answer, true);
    admit(run, answer->active.n);
    if (run->asked.n_admitted == answer->active.n)
        put_in_order(run, answer, false);
}

static void release(struct run *run, uint32_t key)
{
    moec_residency_release(run->buffer.residency, key);
    if (run->setup->buffer.keeps_nothing) {
        moec_residency_drop(run->buffer.residency, key);
        unplace(run, key);
        run->buffer.records[key].place = NOWHERE;
    }
}

/* Tokens that take each of an answer's experts, on average. */
static double uses_of(const struct moec_router_answer *answer)
{
    uint64_t n = 0;
    if (answer->active.n_takers == NULL)
        return 1;
    for (uint32_t i = 0; i < answer->active.n; i++)
        n += answer->active.n_takers[i];
    return (double)n / answer->active.n;
}

static void compute(struct run *run, const struct moec_router_answer *answer)
{
    const double uses = uses_of(answer);
    double shared_ns = run->setup->device->shared_ns[run->at.ordinal] * answer->n_tok;
    for (uint32_t next = 0; next < answer->active.n;) {
        double work_ns = shared_ns + run->clock.owed_ns;
        uint32_t end = next;
        shared_ns = run->clock.owed_ns = 0;
        while (run->buffer.records[run->asked.turns[next]].ready_ns > run->clock.now_ns)
            collect(run);
        for (; end < run->asked.n_admitted &&
               run->buffer.records[run->asked.turns[end]].ready_ns <= run->clock.now_ns;
             end++)
            work_ns += run->setup->device->is_recorded
                           ? run->clock.expert_ns
                           : uses * run->setup->device->compute_ns[run->asked.turns[end]];
        COUNT(run, run->at.ordinal, compute_ns, work_ns);
        run->clock.now_ns += work_ns;
        load_until(run, run->clock.now_ns);
        for (; next < end; next++) {
            release(run, run->asked.turns[next]);
            admit(run, answer->active.n);
            read_on(run);
        }
    }
}

/* From the experts of the layer before until the answer, as recorded. */
static double recorded_gap_ns(struct run *run, const struct moec_replay_answer *answer)
{
    const uint64_t last_ns = run->clock.recorded_ns;
    run->clock.recorded_ns = answer->done_ns;
    return answer->answered_ns > last_ns ? (double)(answer->answered_ns - last_ns) : 0;
}

/* What computing an answer's experts took, each an equal part. */
static double recorded_expert_ns(const struct moec_replay_answer *answer)
{
    const uint64_t busy_ns = answer->answered_ns + answer->stall_ns;
    return answer->done_ns > busy_ns ? (double)(answer->done_ns - busy_ns) / answer->n_active : 0;
}

/* Each of the step's tokens, in the middle of which the context is so long. */
static void pass_time(struct run *run, double ns, double ns_per_position)
{
    const double position = run->at.step->position + (run->at.step->n_tok - 1) / 2.0;
    const double all_ns = (ns + ns_per_position * position) * run->at.step->n_tok + run->clock.owed_ns;
    run->clock.owed_ns = 0;
    COUNT(run, run->at.ordinal, compute_ns, all_ns);
    run->clock.now_ns += all_ns;
}

/* What tokens decide for an answer has changed what their logical caches hold. */
static void change_logical(struct run *run, uint64_t a)
{
    const struct moec_recorded_logical *recorded = run->setup->recording->known.logical;
    for (uint64_t i = run->buffer.logical != NULL ? recorded->first[a] : 0;
         run->buffer.logical != NULL && i < recorded->first[a + 1]; i++)
        moec_logical_cache_count(run->buffer.logical, recorded->keys[i],
                                 !moec_logical_cache_has(run->buffer.logical, recorded->keys[i]));
}

static void run_layer(struct run *run, const struct moec_router_answer *answer)
{
    const uint64_t a =
        (uint64_t)(run->at.step - run->setup->recording->steps) * run->setup->recording->shape.n_layer +
        run->at.ordinal;
    change_logical(run, a);
    if (run->setup->device->is_recorded) {
        const struct moec_replay_answer *recorded = &run->setup->recording->replay->answers[a];
        const double gap_ns = recorded_gap_ns(run, recorded);
        COUNT(run, run->at.ordinal, compute_ns, gap_ns);
        run->clock.now_ns += gap_ns;
        run->clock.expert_ns = answer->active.n > 0 ? recorded_expert_ns(recorded) : 0;
    } else {
        pass_time(run, run->setup->device->gap_ns[run->at.ordinal],
                  run->setup->device->gap_ns_per_position[run->at.ordinal]);
    }
    load_until(run, run->clock.now_ns);
    /* Every token found its expert full: the source of experts hears nothing. */
    if (answer->active.n == 0)
        return;
    run->prefetches.is_going = false;
    cancel_prefetch(run, answer);
    take_back_passed(run, answer);
    ask(run, answer);
    come_to_next(run, answer);
    prefetch(run, answer);
    compute(run, answer);
    if (run->asked.n_waits == 0)
        pay_lone_wait(run);
}

/* ---- a run ---- */

static enum moec_status create_preload(struct run *run, struct moec_error *err)
{
    const struct moec_preload_setup setup = {
        .predictor = run->setup->preload.predictor,
        .model = {.n_layer = run->model->shape.n_layer,
                  .n_encoder = run->model->shape.n_encoder,
                  .n_expert = run->model->shape.n_expert,
                  .top_k = run->model->shape.top_k,
                  .paths = run->model->paths},
        .view = {.is_present = view_is_present, .n_bytes_of = view_n_bytes_of, .context = run},
        .bounds.ahead = run->setup->preload.ahead,
        .bounds.count = run->setup->preload.count,
        .bounds.is_tried = true,
        .bounds.handling_ns = MOEC_PRELOAD_HANDLING_NS,
        .n_form = run->model->shape.n_form,
        .precision = run->setup->preload.precision};
    /* Nothing is guessed where everything stays anyway. */
    if (run->setup->preload.predictor == &moec_predict_none ||
        run->setup->buffer.capacity_bytes >= run->model->slots.every_bytes)
        return MOEC_OK;
    if (!moec_simulated_can_predict(run->setup->recording, run->model, run->setup->preload.predictor))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "the recording or its bundle lacks the data that the predictor '%s' needs: choose another "
            "predictor",
            run->setup->preload.predictor->name);
    if (run->setup->preload.ahead > 1 &&
        run->setup->preload.ahead > run->setup->recording->replay->gates_ahead)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the recording has gate predictions for only %" PRIu32 " layers ahead, but "
                         "--preload-ahead asks for %" PRIu32 ": ask for fewer, or record again with moec "
                         "run --trace",
                         run->setup->recording->replay->gates_ahead, run->setup->preload.ahead);
    return moec_preload_create(&setup, &run->prefetches.preload, err);
}

static enum moec_status check_capacity(const struct moec_simulated_setup *setup, struct moec_error *err)
{
    const uint64_t least = setup->model->slots.largest_bytes;
    if (setup->buffer.capacity_bytes < least)
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "an expert buffer of %" PRIu64 " bytes has no room for the largest expert's record "
                         "of %" PRIu64 " bytes; give a larger --memory",
                         setup->buffer.capacity_bytes, least);
    if (setup->buffer.low_pool_bytes == 0 ||
        (setup->model->slots.has_pools &&
         moec_simulated_pools_fit(setup->model, setup->buffer.capacity_bytes, setup->buffer.low_pool_bytes)))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_BUDGET,
                     "an expert buffer of %" PRIu64 " bytes, %" PRIu64 " of them for low-precision copies, "
                     "has no room for the largest expert of each precision; give a larger --memory",
                     setup->buffer.capacity_bytes, setup->buffer.low_pool_bytes);
}

static enum moec_status create(struct run *run, struct moec_error *err)
{
    const struct moec_simulated_model *model = run->model;
    const struct moec_recorded_logical *logical = run->setup->recording->known.logical;
    if (logical != NULL && !run->setup->buffer.keeps_nothing)
        MOEC_TRY(moec_logical_cache_create(
            &(struct moec_logical_shape){model->shape.n_layer,
                                         model->shape.n_form,
                                         model->shape.n_expert,
                                         {logical->n_slots[0], logical->n_slots[1]}},
            1, &run->buffer.logical, err));
    const size_t n_key = (size_t)model->shape.n_layer * model->shape.n_layer_key;
    MOEC_TRY(check_capacity(run->setup, err));
    const uint64_t low_bytes = run->setup->buffer.low_pool_bytes > 0
                                   ? run->setup->buffer.low_pool_bytes
                                   : moec_simulated_low_pool(model, run->setup->buffer.capacity_bytes);
    const struct moec_residency_setup setup = {
        .shape.n_layer = model->shape.n_layer,
        .shape.n_encoder = model->shape.n_encoder,
        .shape.n_shallow =
            run->setup->evict.n_shallow > 0 ? run->setup->evict.n_shallow : model->shape.n_shallow,
        .shape.top_k = model->shape.top_k,
        .shape.n_expert = model->shape.n_expert,
        .shape.n_form = model->shape.n_form,
        .pools.slot_bytes = model->records.slot_bytes,
        .pools.capacity_bytes = run->setup->buffer.capacity_bytes - low_bytes,
        .pools.low_capacity_bytes = low_bytes,
        .policy.ops = run->setup->evict.policy,
        .policy.weights = run->setup->evict.weights,
        .policy.frequency = model->records.frequency,
        .logical = run->buffer.logical,
        .evicted.call = evicted,
        .evicted.context = run};
    MOEC_TRY(moec_alloc((void **)&run->buffer.records, n_key, sizeof *run->buffer.records, "simulated buffer",
                        err));
    MOEC_TRY(moec_alloc((void **)&run->prefetches.queue, n_key + 1, sizeof *run->prefetches.queue,
                        "simulated buffer", err));
    MOEC_TRY(moec_alloc((void **)&run->asked.is_present, model->shape.n_layer_key, sizeof(bool),
                        "simulated buffer", err));
    MOEC_TRY(moec_alloc((void **)&run->asked.turns, model->shape.n_layer_key, sizeof *run->asked.turns,
                        "simulated buffer", err));
    MOEC_TRY(moec_alloc((void **)&run->asked.is_there, model->shape.n_layer_key, sizeof(bool),
                        "simulated buffer", err));
    MOEC_TRY(moec_alloc((void **)&run->asked.flying, model->shape.n_layer_key, sizeof *run->asked.flying,
                        "simulated buffer", err));
    MOEC_TRY(moec_alloc((void **)&run->passed.keys, model->shape.n_expert, sizeof *run->passed.keys,
                        "simulated buffer", err));
    run->passed.prefetch =
        (struct moec_prompt_prefetch){.setup = {.n_layer = model->shape.n_layer,
                                                .n_encoder = model->shape.n_encoder,
                                                .n_expert = model->shape.n_expert,
                                                .n_form = model->shape.n_form,
                                                .top_k = model->shape.top_k,
                                                .paths = model->paths},
                                      .view = {.is_present = view_is_present, .context = run}};
    MOEC_TRY(moec_residency_create(&setup, &run->buffer.residency, err));
    MOEC_TRY(moec_arena_create_empty(model->records.slot_bytes, (uint32_t)n_key, setup.pools.capacity_bytes,
                                     &run->buffer.arenas[0], err));
    if (low_bytes > 0)
        MOEC_TRY(moec_arena_create_empty(model->records.slot_bytes, (uint32_t)n_key, low_bytes,
                                         &run->buffer.arenas[1], err));
    return create_preload(run, err);
}

/* Filled by frequency, and read before the first token. */
static void warm(struct run *run)
{
    const uint32_t n =
        run->setup->buffer.is_cold ? 0 : moec_residency_warm(run->buffer.residency, run->prefetches.queue);
    for (uint32_t i = 0; i < n; i++) {
        run->buffer.records[run->prefetches.queue[i]].place = ASKED;
        (void)place(run, run->prefetches.queue[i]);
    }
}

void moec_simulated_set_times(float *step_ns, float *scratch, uint64_t n,
                              struct moec_simulated_result *result)
{
    static const double at[] = {0.5, 0.95};
    double quantiles[2], sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += step_ns[i];
    moec_quantiles(step_ns, scratch, n, at, 2, quantiles);
    result->tpot_ns_median = quantiles[0];
    result->tpot_ns_p95 = quantiles[1];
    result->tpot_ns_mean = n > 0 ? sum / (double)n : NAN;
}

/* What was counted so far is left out. */
static void forget(struct run *run, struct moec_simulated_result *result)
{
    *result = (struct moec_simulated_result){0};
    if (run->at.layers != NULL)
        memset(run->at.layers, 0, run->setup->recording->shape.n_layer * sizeof *run->at.layers);
    run->at.lifetime_tokens = 0;
    run->at.n_lifetime = 0;
}

enum moec_status moec_simulated_run(const struct moec_simulated_setup *setup,
                                    struct moec_simulated_result *result,
                                    struct moec_simulated_counts *layers, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_recording *recording = setup->recording;
    struct run run = {.setup = setup,
                      .model = setup->model,
                      .prefetches.rules = {.preload_count = setup->preload.count,
                                           .begins_in_turn = setup->device->begins_in_turn},
                      .at.layers = layers};
    float *step_ns = NULL;
    uint64_t n_decoded = 0;
    forget(&run, result);
    MOEC_TRY_OUT(create(&run, err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&step_ns, recording->n_step, 2 * sizeof *step_ns, "times of steps", err));
    warm(&run);
    for (uint64_t step = 0; step < recording->n_step; step++) {
        const double begun_ns = run.clock.now_ns;
        run.at.step = &recording->steps[step];
        if (step == recording->counted.first) {
            forget(&run, result);
            n_decoded = 0;
        }
        if (run.at.step->begins)
            moec_residency_begin(run.buffer.residency);
        run.at.counts = run.at.step->is_prefill ? &result->prefill : &result->decode;
        begin_prompt(&run);
        for (run.at.ordinal = run.at.step->layers.first; run.at.ordinal < run.at.step->layers.end;
             run.at.ordinal++) {
            const struct moec_router_answer answer = moec_recording_answer(recording, step, run.at.ordinal);
            run_layer(&run, &answer);
        }
        run.at.ordinal = recording->shape.n_layer - 1;
        pay_lone_wait(&run);
        if (run.at.step->layers.end == recording->shape.n_layer)
            pass_time(&run, setup->device->last_ns, setup->device->last_ns_per_position);
        if (!run.at.step->is_prefill)
            step_ns[n_decoded++] = (float)(run.clock.now_ns - begun_ns);
    }
    moec_simulated_set_times(step_ns, step_ns + recording->n_step, n_decoded, result);
    result->lifetime_tokens =
        run.at.n_lifetime > 0 ? run.at.lifetime_tokens / (double)run.at.n_lifetime : NAN;
out:
    moec_residency_free(run.buffer.residency);
    moec_logical_cache_free(run.buffer.logical);
    for (int pool = 0; pool < 2; pool++)
        moec_arena_free(run.buffer.arenas[pool]);
    moec_preload_free(run.prefetches.preload);
    free(run.buffer.records);
    free(run.prefetches.queue);
    free(run.passed.keys);
    free(run.asked.is_present);
    free(run.asked.turns);
    free(run.asked.is_there);
    free(run.asked.flying);
    free(step_ns);
    return status;
}

/* ---- what goes with it ---- */

bool moec_simulated_can_predict(const struct moec_recording *recording,
                                const struct moec_simulated_model *model,
                                const struct moec_predict_ops *predictor)
{
    return !predictor->knows_tokens &&
           (!predictor->needs_paths || model->paths->n_layer == model->shape.n_layer) &&
           (!predictor->needs_next_gate || recording->replay->has_next_gate) &&
           (!predictor->needs_learned || recording->replay->has_next_learned);
}

enum moec_status moec_simulated_warm_keys(const struct moec_simulated_model *model, uint64_t capacity_bytes,
                                          uint32_t *keys, uint32_t *n, struct moec_error *err)
{
    struct moec_residency *residency = NULL;
    const struct moec_residency_setup setup = {.shape.n_layer = model->shape.n_layer,
                                               .shape.n_encoder = model->shape.n_encoder,
                                               .shape.n_expert = model->shape.n_expert,
                                               .shape.n_form = model->shape.n_form,
                                               .pools.slot_bytes = model->records.slot_bytes,
                                               .pools.capacity_bytes = capacity_bytes,
                                               .policy.ops = &moec_evict_fifo,
                                               .policy.frequency = model->records.frequency};
    *n = 0;
    MOEC_TRY(moec_residency_create(&setup, &residency, err));
    *n = moec_residency_warm(residency, keys);
    moec_residency_free(residency);
    return MOEC_OK;
}
