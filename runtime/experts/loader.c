/* Reading for the expert cache: who hands requests to the reader and waits for it. What is read next is
 * runtime/policy/schedule/read_order.h's to say.
 *
 * A computing thread that needs a record waits for the device itself, as with a plain read: a wake-up between
 * device and computation would cost as much as a fast device takes. It hands over the first prefetches too,
 * behind what it demands, so that no time passes between, and takes them when it comes by. The loader's thread
 * has the reader only when nobody asks for anything and there is time for more: it waits for prefetches, makes
 * more, and reads the warm start, one at a time. When a router answers meanwhile, it is woken to begin the
 * demanded reads, and leaves the reader to the session. What a prompt will ask of the next layer the session
 * hands over itself, all at once: all processors are computing, and a thread that was woken for each record
 * would take their time. */
#include "runtime/experts/expert_cache_internal.h"

#include "formats/base/clock.h"

#include <errno.h>
#include <string.h>

#define LOADER_STACK_BYTES ((size_t)256 << 10)

static uint32_t n_flying(const struct moec_expert_cache *cache)
{
    return cache->depth - cache->n_free + moec_units_n_flying(cache->units);
}

static bool demand_is_flying(const struct moec_expert_cache *cache)
{
    if (moec_units_n_flying(cache->units) > 0)
        return true;
    for (uint32_t i = 0; i < cache->depth; i++) {
        const struct moec_cache_read *read = &cache->reads[i];
        if (read->is_flying && moec_cache_is_demanded(&cache->entries[read->read.tag]))
            return true;
    }
    return false;
}

/* Whether the loader's thread may find time for more prefetches before the next answer. To hand the reader over
 * and back two threads would have to wake, which takes as long as a fast device: while one session decodes it
 * takes what has come when it comes by. */
static bool has_time(const struct moec_expert_cache *cache)
{
    if (!cache->keeps_expected || cache->units != NULL || cache->preload == NULL ||
        cache->options.preload.count > 0 || cache->options.preload.predictor->knows_tokens ||
        cache->reader->ops->take == NULL)
        return true;
    return moec_preload_has_time(cache->preload, moec_now_ns());
}

/* Whether what is in flight, which nobody has asked for, is left to the session: not while somebody waits. */
static bool is_left(const struct moec_expert_cache *cache)
{
    if (cache->n_free == 0 || cache->reader->holds_back)
        return false;
    return moec_prompt_prefetch_is_open(&cache->prompt_prefetch) ||
           (cache->n_sleeping == 0 && cache->n_hurried == 0 && cache->lists[MOEC_CACHE_WARMING].n == 0 &&
            !has_time(cache));
}

/* What the loader's thread, finding the reader free, would do something about. Demanded reads in flight are
 * the session's that needs them. */
static bool has_work(const struct moec_expert_cache *cache)
{
    const struct moec_key_list *lists = cache->lists;
    if (cache->is_stopping)
        return true;
    if (moec_units_can_begin(cache->units) && cache->n_waiting == 0)
        return true;
    if (lists[MOEC_CACHE_DEMANDED].n > 0)
        return !cache->is_blocked || cache->n_free == 0;
    if (demand_is_flying(cache))
        return false;
    if (n_flying(cache) > 0)
        return !is_left(cache);
    return !cache->is_blocked && ((!cache->is_prefetched_out && has_time(cache)) ||
                                  lists[MOEC_CACHE_PREFETCHED].n + lists[MOEC_CACHE_WARMING].n > 0);
}

void moec_loader_notify(struct moec_expert_cache *cache)
{
    if (cache->loader_sleeps && !cache->is_driven && has_work(cache))
        (void)pthread_cond_signal(&cache->work);
}

/* ---- choosing reads ---- */

/* Reads that are to be handed over together. */
struct batch {
    struct moec_cache_read *reads[MOEC_CACHE_DEPTH + MOEC_UNIT_READS];
    uint32_t n;
};

/* False when there is no place for it now. */
static bool place(struct moec_expert_cache *cache, uint32_t key)
{
    if (moec_arena_has(moec_cache_arena(cache, key), key))
        return true;
    cache->is_blocked = !moec_arena_place(moec_cache_arena(cache, key), key,
                                          &moec_cache_counters_of(cache, key)->moved_bytes);
    cache->blocked_key = key;
    return !cache->is_blocked;
}

/* Gives the oldest key of a list a slot and a request; false when there is no place for it now. */
static bool take(struct moec_expert_cache *cache, enum moec_cache_list list, struct batch *batch)
{
    const uint32_t key = cache->lists[list].oldest;
    const bool is_whole =
        cache->units == NULL || (list == MOEC_CACHE_WARMING && cache->units->frames == NULL);
    const struct moec_record_place from = (is_whole ? moec_storage_place_of : moec_storage_up_place_of)(
        moec_cache_storage(cache, key), moec_cache_ordinal(cache, key), moec_cache_expert(cache, key));
    if (list == MOEC_CACHE_PREFETCHED && moec_prompt_prefetch_is_open(&cache->prompt_prefetch))
        moec_arena_make_hole(moec_cache_arena(cache, key), cache->residency, key);
    if (!place(cache, key))
        return false;
    const bool is_alone = n_flying(cache) == 0;
    struct moec_cache_read *read = cache->free_reads[--cache->n_free];
    moec_cache_entry_begin(cache, key);
    *read = (struct moec_cache_read){.read = {.offset = from.offset,
                                              .n_bytes = from.n_bytes,
                                              .buffer = moec_arena_slot(moec_cache_arena(cache, key), key),
                                              .tag = key,
                                              .sum = {.is_wanted = is_whole, .skip = from.skip}},
                                     .is_flying = true,
                                     .is_alone = is_alone,
                                     .is_measurable = true,
                                     .is_whole = is_whole};
    batch->reads[batch->n++] = read;
    return true;
}

/* Finds places while no session has pinned its hits yet; somebody else will begin the reads. */
static void place_demanded(struct moec_expert_cache *cache)
{
    for (uint32_t key = cache->lists[MOEC_CACHE_DEMANDED].oldest;
         key != MOEC_EVICT_NONE && !cache->is_blocked && place(cache, key);)
        key = cache->links[key].newer;
}

void moec_loader_cancel(struct moec_expert_cache *cache)
{
    const struct moec_read_rules rules = moec_cache_read_rules(cache);
    if (cache->is_driven || !moec_read_takes_prefetches_back(&rules))
        return;
    for (uint32_t i = 0; i < cache->depth; i++) {
        struct moec_cache_read *read = &cache->reads[i];
        const uint32_t key = (uint32_t)read->read.tag;
        const struct moec_cache_entry *entry = &cache->entries[key];
        if (!read->is_flying || entry->kind != MOEC_CACHE_PREFETCHED || moec_cache_is_demanded(entry) ||
            !cache->reader->ops->cancel(cache->reader, &read->read))
            continue;
        read->is_flying = false;
        cache->free_reads[cache->n_free++] = read;
        if (!entry->is_doomed)
            moec_residency_drop(cache->residency, key);
        moec_cache_entry_take_back(cache, key);
    }
}

static void choose_demanded(struct moec_expert_cache *cache, struct batch *batch)
{
    if (cache->lists[MOEC_CACHE_DEMANDED].n > 0 || moec_units_are_wanted(cache->units))
        moec_loader_cancel(cache);
    while (cache->lists[MOEC_CACHE_DEMANDED].n > 0 && cache->n_free > 0 && !cache->is_blocked)
        if (!take(cache, MOEC_CACHE_DEMANDED, batch))
            break;
    for (struct moec_cache_read *read; (read = moec_units_take(cache)) != NULL;)
        batch->reads[batch->n++] = read;
    /* Its time is that of all of them, and its own latency is in it. */
    if (batch->n > 1 && batch->reads[0]->is_alone)
        batch->reads[0]->is_measurable = false;
}

/* Whatever the preloader finds worth reading now, as far as there is room for it. */
static void prefetch_next(struct moec_expert_cache *cache)
{
    while (cache->lists[MOEC_CACHE_PREFETCHED].n == 0 && !cache->is_prefetched_out) {
        const uint32_t key = moec_preload_next_behind(cache->preload, moec_now_ns(), n_flying(cache));
        cache->is_prefetched_out = key == MOEC_EVICT_NONE;
        if (key != MOEC_EVICT_NONE)
            (void)moec_cache_prefetch(cache, key);
    }
}

static uint32_t n_prefetches_flying(const struct moec_expert_cache *cache)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < cache->depth; i++) {
        const struct moec_cache_read *read = &cache->reads[i];
        const struct moec_cache_entry *entry = &cache->entries[read->read.tag];
        n += read->is_flying && entry->kind == MOEC_CACHE_PREFETCHED && !moec_cache_is_demanded(entry);
    }
    return n;
}

/* One prefetch, where there is one worth it. */
static bool take_prefetch(struct moec_expert_cache *cache, struct batch *batch)
{
    prefetch_next(cache);
    if (cache->lists[MOEC_CACHE_PREFETCHED].n == 0 || !take(cache, MOEC_CACHE_PREFETCHED, batch))
        return false;
    struct moec_cache_read *read = batch->reads[batch->n - 1];
    read->is_measurable = read->is_alone; /* or part of its latency may have passed while it waited */
    return true;
}

/* Chooses prefetches and the warm start, behind the demanded reads. */
static void choose_others(struct moec_expert_cache *cache, bool is_idle, struct batch *batch)
{
    const struct moec_read_rules rules = moec_cache_read_rules(cache);
    const struct moec_key_list *lists = cache->lists;
    struct moec_read_moment moment = {.n_demanded = lists[MOEC_CACHE_DEMANDED].n,
                                      .n_prefetch_flying = n_prefetches_flying(cache),
                                      .has_prefetch = true,
                                      .is_idle = is_idle,
                                      .is_hurried = cache->n_hurried > 0};
    while (cache->n_free > 0 && !cache->is_blocked) {
        moment.n_flying = n_flying(cache);
        moment.n_warming = lists[MOEC_CACHE_WARMING].n;
        switch (moec_read_next(&rules, &moment)) {
        case MOEC_READ_PREFETCH:
            moment.has_prefetch = take_prefetch(cache, batch);
            moment.n_prefetch_flying += moment.has_prefetch;
            break;
        case MOEC_READ_WARMING:
            (void)take(cache, MOEC_CACHE_WARMING, batch);
            break;
        case MOEC_READ_DEMANDED: /* finds no place */
        case MOEC_READ_NOTHING:
            return;
        }
    }
}

/* ---- what comes back ---- */

static double from(uint64_t base_ns, uint64_t ns)
{
    return (double)(int64_t)(ns - base_ns);
}

static void learn_time(struct moec_expert_cache *cache, const struct moec_cache_read *read,
                       uint64_t waited_ns)
{
    const uint64_t last_ns = cache->last_done_ns, begun_ns = read->read.at.begun_ns,
                   done_ns = read->read.at.done_ns;
    cache->last_done_ns = done_ns > last_ns ? done_ns : last_ns;
    if (cache->preload == NULL || read->read.error != 0 || !read->is_measurable)
        return;
    const double own_ns =
        moec_read_own_ns(0, from(begun_ns, done_ns), from(begun_ns, last_ns), from(begun_ns, waited_ns));
    moec_preload_timed(cache->preload, read->read.n_bytes, (uint64_t)own_ns, read->is_alone);
}

static void count_read(struct moec_expert_cache *cache, const struct moec_cache_read *read)
{
    const uint32_t key = (uint32_t)read->read.tag;
    const struct moec_cache_entry *entry = &cache->entries[key];
    struct moec_cache_counters *counters = moec_cache_counters_of(cache, key);
    const bool is_preload = !read->is_units && entry->kind == MOEC_CACHE_PREFETCHED;
    const bool is_demand = read->is_units || entry->kind == MOEC_CACHE_DEMANDED;
    const uint64_t begun_ns = read->read.at.begun_ns, done_ns = read->read.at.done_ns;
    counters->read_ns += done_ns > begun_ns ? done_ns - begun_ns : 0;
    counters->busy_ns += moec_read_busy_ns(&cache->busy_until_ns, begun_ns, done_ns);
    if (read->read.error == 0) {
        counters->n_reads++;
        counters->read_bytes += read->read.n_bytes;
        counters->unit_bytes += read->is_units ? read->read.n_bytes : 0;
        counters->preload_bytes += is_preload ? read->read.n_bytes : 0;
    }
    moec_cache_trace(cache, key,
                     (struct moec_trace_span){.what = is_demand    ? "read"
                                                      : is_preload ? "preload"
                                                                   : "warm start",
                                              .lane = is_demand ? MOEC_TRACE_DEMAND : MOEC_TRACE_PRELOAD,
                                              .n_bytes = read->read.n_bytes,
                                              .begin_ns = begun_ns,
                                              .end_ns = done_ns});
}

/* A prefetch that fails is forgotten. */
static void finish(struct moec_expert_cache *cache, struct moec_cache_read *read, enum moec_status check,
                   const struct moec_error *words)
{
    const uint32_t key = (uint32_t)read->read.tag;
    const int problem = read->read.error;
    count_read(cache, read);
    if (read->is_units) {
        moec_units_finish(cache, read, words);
        return;
    }
    read->is_flying = false;
    cache->free_reads[cache->n_free++] = read;
    switch (moec_cache_entry_end(cache, key, problem == 0 && check == MOEC_OK, problem)) {
    case MOEC_CACHE_END_FAILED:
        cache->failure = *words;
        cache->failure_key = key;
        break;
    case MOEC_CACHE_END_LOST:
        moec_residency_drop(cache->residency, key);
        break;
    case MOEC_CACHE_END_READY:
        if (read->is_whole)
            moec_units_complete(cache, key);
        break;
    case MOEC_CACHE_END_GONE:
    case MOEC_CACHE_END_AGAIN:
        break;
    }
}

/* ---- driving the reader ---- */

static enum moec_status check_read(const struct moec_expert_cache *cache, struct moec_cache_read *read,
                                   struct moec_error *words)
{
    const uint32_t key = (uint32_t)read->read.tag, ordinal = moec_cache_ordinal(cache, key),
                   expert = moec_cache_expert(cache, key);
    struct moec_storage *storage = moec_cache_storage(cache, key);
    if (read->is_units) {
        moec_units_check(cache, read, words);
        return MOEC_OK;
    }
    if (read->is_whole)
        return moec_storage_check(storage, ordinal, expert, read->read.buffer,
                                  read->read.sum.is_there ? &read->read.sum.crc32c : NULL, words);
    return moec_storage_check_up(storage, ordinal, expert,
                                 moec_parts_of(cache->units->parts, ordinal, expert)[0], read->read.buffer,
                                 words);
}

/* Reads that have come, taken together: each costs a turn of the lock and a look at all queues otherwise. */
#define MAX_ARRIVALS 16u

struct arrivals {
    struct moec_cache_read *reads[MAX_ARRIVALS];
    enum moec_status checks[MAX_ARRIVALS];
    struct moec_error words; /* of the last, where it is not right */
    uint32_t n;
    uint64_t waited_ns;
};

/* Takes a read and those that have come with it: units alone, or all. */
static void take_arrived(const struct moec_expert_cache *cache, struct moec_read *read,
                         struct arrivals *arrivals, bool takes_all)
{
    struct moec_reader *reader = cache->reader;
    while (read != NULL) {
        struct moec_cache_read *done = (struct moec_cache_read *)read;
        const uint32_t i = arrivals->n++;
        arrivals->reads[i] = done;
        arrivals->checks[i] = read->error == 0 ? check_read(cache, done, &arrivals->words) : MOEC_OK;
        const bool goes_on = (takes_all || done->is_units) && arrivals->words.status == MOEC_OK &&
                             arrivals->n < MAX_ARRIVALS && reader->ops->take != NULL;
        read = goes_on ? reader->ops->take(reader) : NULL;
    }
}

/* Waits for a read of any, and takes those that have come with it, but for whole records beside others:
 * whoever waits for one is not to wait for the checks of more. */
static void await_reads(const struct moec_expert_cache *cache, struct arrivals *arrivals)
{
    struct moec_reader *reader = cache->reader;
    arrivals->waited_ns = moec_now_ns();
    take_arrived(cache, reader->ops->wait(reader), arrivals, false);
}

/* How many reads must be done before this thread can go on: all units that are in flight, which are a
 * session's that waits for them one after the other. Half of them where more are to be handed over then. */
static uint32_t needed_count(const struct moec_expert_cache *cache)
{
    const uint32_t n = moec_units_n_flying(cache->units);
    return n < n_flying(cache) ? 0 : moec_units_are_wanted(cache->units) ? n / 2 : n;
}

static void finish_all(struct moec_expert_cache *cache, const struct arrivals *arrivals)
{
    for (uint32_t i = 0; i < arrivals->n; i++) {
        learn_time(cache, arrivals->reads[i], arrivals->waited_ns);
        finish(cache, arrivals->reads[i], arrivals->checks[i], &arrivals->words);
    }
    if (cache->n_sleeping > 0)
        (void)pthread_cond_broadcast(&cache->changed);
    moec_loader_notify(cache);
}

/* What a thread does behind handing over a batch. */
enum then {
    GO_ON,
    WAIT,          /* for one read of any */
    WAIT_SPINNING, /* likewise, and nothing else is computed meanwhile */
};

/* The lock is released meanwhile. */
static void drive(struct moec_expert_cache *cache, const struct batch *batch, enum then then)
{
    struct moec_reader *reader = cache->reader;
    struct arrivals arrivals = {.n = 0};
    cache->is_driven = true;
    reader->n_needed = then != GO_ON ? needed_count(cache) : 0;
    reader->spins = then == WAIT_SPINNING;
    (void)pthread_mutex_unlock(&cache->lock);
    for (uint32_t i = 0; i < batch->n; i++) {
        reader->has_more = i + 1 < batch->n;
        reader->ops->submit(reader, &batch->reads[i]->read);
    }
    if (then != GO_ON)
        await_reads(cache, &arrivals);
    (void)pthread_mutex_lock(&cache->lock);
    cache->is_driven = false;
    finish_all(cache, &arrivals);
}

void moec_loader_take(struct moec_expert_cache *cache)
{
    struct moec_reader *reader = cache->reader;
    struct arrivals arrivals = {.n = MAX_ARRIVALS};
    while ((cache->options.preload.reads_on || cache->keeps_expected) && arrivals.n == MAX_ARRIVALS &&
           !cache->is_driven && reader->ops->take != NULL && n_flying(cache) > 0) {
        arrivals.n = 0;
        cache->is_driven = true;
        (void)pthread_mutex_unlock(&cache->lock);
        arrivals.waited_ns = moec_now_ns();
        take_arrived(cache, reader->ops->take(reader), &arrivals, true);
        (void)pthread_mutex_lock(&cache->lock);
        cache->is_driven = false;
        finish_all(cache, &arrivals);
    }
}

void moec_loader_begin(struct moec_expert_cache *cache)
{
    struct batch batch = {.n = 0};
    if (cache->is_driven) {
        if (cache->lists[MOEC_CACHE_DEMANDED].n > 0)
            place_demanded(cache);
        if (cache->lists[MOEC_CACHE_DEMANDED].n > 0 || moec_units_are_wanted(cache->units))
            cache->reader->ops->wake(cache->reader);
        return;
    }
    choose_demanded(cache, &batch);
    choose_others(cache, false, &batch);
    if (batch.n > 0)
        drive(cache, &batch, GO_ON);
}

static void sleep_for_change(struct moec_expert_cache *cache)
{
    cache->n_sleeping++;
    (void)pthread_cond_wait(&cache->changed, &cache->lock);
    cache->n_sleeping--;
}

void moec_loader_wait(struct moec_expert_cache *cache)
{
    struct batch batch = {.n = 0};
    if (!cache->is_driven) {
        choose_demanded(cache, &batch);
        if (n_flying(cache) > 0) {
            drive(cache, &batch, cache->keeps_expected ? WAIT_SPINNING : WAIT);
            return;
        }
        /* Records that are held cut the free bytes into pieces, and nothing is on its way that would change
         * it: only a session that acquires while it holds others comes here. */
        if (cache->is_blocked && moec_residency_shrink(cache->residency, cache->blocked_key))
            return;
    } else if (cache->keeps_expected && demand_is_flying(cache)) {
        /* The loader waits asleep, for what was a prefetch when it began: it leaves the reader to this thread.
         */
        cache->reader->ops->wake(cache->reader);
    }
    sleep_for_change(cache);
}

void moec_loader_wait_change(struct moec_expert_cache *cache)
{
    const struct batch nothing = {.n = 0};
    if (!cache->is_driven && n_flying(cache) > 0)
        drive(cache, &nothing, WAIT);
    else
        sleep_for_change(cache);
}

/* ---- the loader's thread ---- */

static void step(struct moec_expert_cache *cache)
{
    struct batch batch = {.n = 0};
    if (!cache->is_stopping) {
        choose_demanded(cache, &batch);
        choose_others(cache, !demand_is_flying(cache), &batch);
    }
    const bool waits =
        n_flying(cache) > 0 && (cache->is_stopping || cache->n_free == 0 || !demand_is_flying(cache));
    if (batch.n > 0 || waits)
        drive(cache, &batch, waits ? WAIT : GO_ON);
}

static void *run_loader(void *argument)
{
    struct moec_expert_cache *cache = argument;
    (void)pthread_mutex_lock(&cache->lock);
    while (!cache->is_stopping || n_flying(cache) > 0) {
        if (!cache->is_driven && has_work(cache)) {
            step(cache);
            continue;
        }
        cache->loader_sleeps = true;
        (void)pthread_cond_wait(&cache->work, &cache->lock);
        cache->loader_sleeps = false;
    }
    (void)pthread_mutex_unlock(&cache->lock);
    return NULL;
}

enum moec_status moec_loader_start(struct moec_expert_cache *cache, struct moec_error *err)
{
    pthread_attr_t attributes;
    int problem = pthread_attr_init(&attributes);
    if (problem == 0) {
        (void)pthread_attr_setstacksize(&attributes, LOADER_STACK_BYTES);
        problem = pthread_create(&cache->loader, &attributes, run_loader, cache);
        (void)pthread_attr_destroy(&attributes);
    }
    if (problem != 0)
        return moec_fail(err, MOEC_ERR_MEMORY, "cannot start the thread that reads experts: %s",
                         strerror(problem));
    cache->has_loader = true;
    return MOEC_OK;
}

void moec_loader_stop(struct moec_expert_cache *cache)
{
    if (!cache->has_loader)
        return;
    (void)pthread_mutex_lock(&cache->lock);
    cache->is_stopping = true;
    (void)pthread_cond_signal(&cache->work);
    if (cache->is_driven)
        cache->reader->ops->wake(cache->reader);
    (void)pthread_mutex_unlock(&cache->lock);
    (void)pthread_join(cache->loader, NULL);
    cache->has_loader = false;
}
