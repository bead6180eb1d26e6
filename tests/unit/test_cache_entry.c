/* What runtime/experts/cache_entry.h promises of every entry of an expert cache holds whenever the lock is
 * free: sessions, guesses and faults run beside a thread that looks. */
#include "tests/unit/temporary.h"

#include "tests/unit/faulty_reader.h"
#include "tests/unit/sample_bundle.h"

#include "runtime/experts/expert_cache_internal.h"

#define N_EXPERT   12
#define N_SESSION  3
#define N_ANSWER   250
#define MAX_ACTIVE 4

static const uint32_t layers[SAMPLE_MOE] = {0, 2}; /* model layers with experts */

/* What was seen in any of the looks. */
struct seen {
    uint32_t states[MOEC_CACHE_FAILED + 1], lists[MOEC_CACHE_N_LIST];
    uint32_t n_doomed, n_broken;
    char broken[128]; /* the first one that does not hold */
};

static void hold_true(struct seen *seen, bool is_true, const char *what, uint32_t key)
{
    if (!is_true && seen->n_broken++ == 0)
        (void)snprintf(seen->broken, sizeof seen->broken, "%s, key %u", what, key);
}

static uint32_t n_reads_of(const struct moec_expert_cache *cache, uint32_t key)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < cache->depth; i++)
        n += cache->reads[i].is_flying && cache->reads[i].read.tag == key;
    return n;
}

static void look_at(const struct moec_expert_cache *cache, uint32_t key, struct seen *seen)
{
    const struct moec_cache_entry *entry = &cache->entries[key];
    const enum moec_cache_state state = entry->state;
    const enum moec_cache_list list = entry->list;
    const bool has_slot = moec_arena_has(moec_cache_arena(cache, key), key),
               is_reading = state == MOEC_CACHE_READING;
    const bool is_present = state != MOEC_CACHE_ABSENT && !entry->is_doomed;
    const bool is_listed = list != MOEC_CACHE_NO_LIST;
    seen->states[state]++;
    seen->n_doomed += entry->is_doomed;
    if (is_listed)
        seen->lists[list]++;
    if (state == MOEC_CACHE_ABSENT)
        hold_true(seen, !has_slot && (!is_listed || list == MOEC_CACHE_WAITING), "1: absent", key);
    if (state == MOEC_CACHE_QUEUED)
        hold_true(seen, is_listed && list != MOEC_CACHE_WAITING, "2: queued", key);
    hold_true(seen, n_reads_of(cache, key) == is_reading, "3: a read for each key that is being read", key);
    if (is_reading)
        hold_true(seen, has_slot && (!is_listed || (entry->is_doomed && list == MOEC_CACHE_WAITING)),
                  "3: reading", key);
    hold_true(seen, is_reading || !entry->is_doomed, "3: doomed only while reading", key);
    if (state == MOEC_CACHE_READY)
        hold_true(seen, has_slot && !is_listed, "4: ready", key);
    hold_true(seen, state == MOEC_CACHE_READY || entry->held == 0, "4: held only when ready", key);
    if (state == MOEC_CACHE_FAILED)
        hold_true(seen, !has_slot && !is_listed && moec_cache_wishes(entry) > 0, "5: failed", key);
    hold_true(seen, moec_residency_is_present(cache->residency, key) == is_present, "6: present", key);
    hold_true(seen, is_present || !entry->is_prefetched, "7: guessed", key);
}

static void merge(struct seen *seen, const struct seen *more)
{
    for (uint32_t i = 0; i <= MOEC_CACHE_FAILED; i++)
        seen->states[i] += more->states[i];
    for (uint32_t i = 0; i < MOEC_CACHE_N_LIST; i++)
        seen->lists[i] += more->lists[i];
    seen->n_doomed += more->n_doomed;
    if (seen->n_broken == 0)
        memcpy(seen->broken, more->broken, sizeof seen->broken);
    seen->n_broken += more->n_broken;
}

/* Each queue holds as many keys as say that they are in it. */
static void look(struct moec_expert_cache *cache, struct seen *seen)
{
    struct seen now = {0};
    (void)pthread_mutex_lock(&cache->lock);
    for (uint32_t key = 0; key < cache->n_key; key++)
        look_at(cache, key, &now);
    for (uint32_t list = 0; list < MOEC_CACHE_N_LIST; list++)
        hold_true(&now, now.lists[list] == cache->lists[list].n, "a queue's length", list);
    (void)pthread_mutex_unlock(&cache->lock);
    merge(seen, &now);
}

struct session {
    struct moec_expert_cache *cache;
    uint64_t random;
    uint32_t n_failed;
    struct seen seen; /* between its own answers, should nobody else come to look */
    atomic_uint *n_running;
};

/* Answers as a forward pass gives them, each expert acquired, used and released; after a failure the rest is
 * forgone. */
static void run_answer(struct session *session)
{
    struct moec_experts *source = moec_expert_cache_experts(session->cache);
    uint32_t active[MAX_ACTIVE], order[MAX_ACTIVE], n = 0;
    for (uint32_t expert = 0; expert < N_EXPERT && n < MAX_ACTIVE; expert++)
        if (random_u32(&session->random) % 4 == 0)
            active[n++] = expert;
    if (n == 0)
        return;
    const uint32_t layer = layers[random_u32(&session->random) % SAMPLE_MOE];
    memcpy(order, active, sizeof order);
    const struct moec_router_answer answer = {
        .layer = layer, .n_tok = 2, .active = {.list = active, .n = n, .order = order}};
    source->ops->expect(source, &answer);
    if (source->ops->wants_prefetch(source, 1))
        source->ops->prefetch(source, &answer, 1);
    for (uint32_t i = 0; i < n; i++) {
        struct moec_mlp mlp;
        struct moec_error err = {0};
        if (source->ops->acquire(source, moec_expert_request_of(layer, order[i]), &mlp, &err) != MOEC_OK) {
            session->n_failed++;
            for (i++; i < n; i++)
                source->ops->cancel(source, moec_expert_request_of(layer, order[i]));
            return;
        }
        if (random_u32(&session->random) % 4 == 0)
            (void)usleep(50);
        source->ops->release(source, moec_expert_request_of(layer, order[i]));
    }
}

static void *run_session(void *context)
{
    struct session *session = context;
    for (uint32_t i = 0; i < N_ANSWER; i++) {
        run_answer(session);
        look(session->cache, &session->seen);
    }
    atomic_fetch_sub(session->n_running, 1);
    return NULL;
}

static void run_and_look(const struct moec_bundle *bundle, const struct moec_expert_cache_options *options,
                         uint32_t n_session, struct seen *seen, uint32_t *n_failed)
{
    struct moec_expert_cache *cache = NULL;
    struct session sessions[N_SESSION];
    pthread_t threads[N_SESSION];
    atomic_uint n_running = n_session;
    MUST(moec_expert_cache_create(bundle, options, &cache, &err));
    for (uint32_t i = 0; i < n_session; i++) {
        sessions[i] = (struct session){.cache = cache, .random = 71 + i, .n_running = &n_running};
        assert_int_equal(pthread_create(&threads[i], NULL, run_session, &sessions[i]), 0);
    }
    while (atomic_load(&n_running) > 0) {
        look(cache, seen);
        (void)usleep(30);
    }
    for (uint32_t i = 0; i < n_session; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        *n_failed += sessions[i].n_failed;
        merge(seen, &sessions[i].seen);
    }
    look(cache, seen);
    moec_expert_cache_free(cache);
}

static void test_cache_entry__promises_hold_all_the_time(void **state)
{
    (void)state;
    struct sample_fixture f = {0};
    struct seen seen = {0};
    uint32_t n_failed = 0;
    sample_make(&f.sample, N_EXPERT, 40, 24, 53);
    sample_open(&f);
    const uint64_t largest = moec_record_sizes_of(f.bundle, 0).largest_bytes;
    for (uint32_t round = 0; round < 8; round++) {
        struct faults faults = {.errors = 14000,
                                .flips = 14000,
                                .delays = 30000,
                                .swaps = 20000,
                                .delay_ns = 100000,
                                .state = 61 + round};
        const struct moec_expert_cache_options options = {
            .buffer.n_bytes = (1 + round) * largest,
            .n_sessions = round % 2 == 0 ? 1 : N_SESSION,
            .preload.predictor = &moec_predict_frequency,
            .preload.count = round % 4 < 2 ? 2 : 0,
            .keeps.is_warm = round % 3 != 0,
            .keeps.nothing = round == 5,
            .records.io = {.depth = 4, .test_hook = {faulty_wrap, &faults}}};
        run_and_look(f.bundle, &options, options.n_sessions, &seen, &n_failed);
    }
    sample_close(&f);
    if (seen.n_broken > 0)
        fail_msg("%u times something does not hold, first: %s", seen.n_broken, seen.broken);
    for (uint32_t i = MOEC_CACHE_ABSENT; i <= MOEC_CACHE_READY; i++)
        assert_true(seen.states[i] > 0);
    assert_true(seen.lists[MOEC_CACHE_WAITING] > 0 && seen.lists[MOEC_CACHE_DEMANDED] > 0);
    assert_true(n_failed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache_entry__promises_hold_all_the_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
