/* Ranks as threads of one process, which meet in its memory. */
#ifndef MOEC_TESTS_THREAD_RANKS_H
#define MOEC_TESTS_THREAD_RANKS_H

#include "profiler/ranks/ranks.h"
#include "tests/unit/status.h"

#include <pthread.h>
#include <string.h>

#define MOST 5u

/* A meeting place: everybody's bytes are put on a table. */
struct place {
    pthread_barrier_t barrier;
    uint32_t count;
    const void *own[MOST];
    const void *passed; /* from one to another; NULL: taken */
    double told[MOST];
    bool has_told[MOST];
    uint32_t n_closed, n_in_order;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

struct member {
    struct place *place;
    uint32_t own;
    void *context; /* the test's */
    void (*work)(struct member *member, struct moec_ranks *ranks);
    enum moec_status status; /* of what `work` tried last */
    struct moec_error err;
};

static enum moec_status gather(void *context, const void *own, void *all, uint64_t n_bytes,
                               struct moec_error *err)
{
    struct member *member = context;
    struct place *place = member->place;
    (void)err;
    place->own[member->own] = own;
    pthread_barrier_wait(&place->barrier);
    for (uint32_t r = 0; r < place->count; r++)
        memcpy((uint8_t *)all + r * n_bytes, place->own[r], n_bytes);
    pthread_barrier_wait(&place->barrier);
    return MOEC_OK;
}

static enum moec_status spread(void *context, uint32_t from, void *data, uint64_t n_bytes,
                               struct moec_error *err)
{
    struct member *member = context;
    struct place *place = member->place;
    (void)err;
    place->own[member->own] = data;
    pthread_barrier_wait(&place->barrier);
    if (member->own != from)
        memcpy(data, place->own[from], n_bytes);
    pthread_barrier_wait(&place->barrier);
    return MOEC_OK;
}

static enum moec_status pass(void *context, uint32_t from, uint32_t to, void *data, uint64_t n_bytes,
                             struct moec_error *err)
{
    struct member *member = context;
    struct place *place = member->place;
    (void)err;
    if (member->own == from) {
        pthread_mutex_lock(&place->lock);
        place->passed = data;
        pthread_cond_broadcast(&place->changed);
        while (place->passed != NULL)
            pthread_cond_wait(&place->changed, &place->lock);
        pthread_mutex_unlock(&place->lock);
        return MOEC_OK;
    }
    assert_int_equal(member->own, to);
    pthread_mutex_lock(&place->lock);
    while (place->passed == NULL)
        pthread_cond_wait(&place->changed, &place->lock);
    memcpy(data, place->passed, n_bytes);
    place->passed = NULL;
    pthread_cond_broadcast(&place->changed);
    pthread_mutex_unlock(&place->lock);
    return MOEC_OK;
}

static void tell(void *context, double done)
{
    struct member *member = context;
    pthread_mutex_lock(&member->place->lock);
    member->place->told[member->own] = done;
    member->place->has_told[member->own] = true;
    pthread_mutex_unlock(&member->place->lock);
}

static bool hear(void *context, uint32_t *from, double *done)
{
    struct member *member = context;
    struct place *place = member->place;
    bool has_heard = false;
    pthread_mutex_lock(&place->lock);
    for (uint32_t r = 0; r < place->count && !has_heard; r++) {
        has_heard = place->has_told[r];
        place->has_told[r] = false;
        *from = r;
        *done = place->told[r];
    }
    pthread_mutex_unlock(&place->lock);
    return has_heard;
}

static void on_wait(void *context, void (*waits)(void *), void *waiting)
{
    (void)context;
    (void)waits;
    (void)waiting;
}

static void close_place(void *context, bool in_order)
{
    struct member *member = context;
    pthread_mutex_lock(&member->place->lock);
    member->place->n_closed++;
    member->place->n_in_order += in_order;
    pthread_mutex_unlock(&member->place->lock);
}

static void *run_member(void *context)
{
    struct member *member = context;
    struct moec_ranks *ranks = NULL;
    const struct moec_ranks_transport transport = {.own = member->own,
                                                   .count = member->place->count,
                                                   .host = "here",
                                                   .context = member,
                                                   .gather = gather,
                                                   .spread = spread,
                                                   .pass = pass,
                                                   .tell = tell,
                                                   .hear = hear,
                                                   .on_wait = on_wait,
                                                   .close = close_place};
    if (moec_ranks_create(&transport, &ranks, &member->err) != MOEC_OK)
        return NULL;
    member->work(member, ranks);
    moec_ranks_free(ranks);
    return NULL;
}

/* Runs `work` on so many ranks with members[r].context; members[r] then has what rank r ended with. */
static void run_ranks(uint32_t count, void (*work)(struct member *, struct moec_ranks *),
                      struct member members[static MOST], uint32_t n_in_order)
{
    struct place place = {.count = count};
    pthread_t threads[MOST];
    pthread_barrier_init(&place.barrier, NULL, count);
    pthread_mutex_init(&place.lock, NULL);
    pthread_cond_init(&place.changed, NULL);
    for (uint32_t r = 0; r < count; r++) {
        members[r] = (struct member){.place = &place, .own = r, .context = members[r].context, .work = work};
        assert_int_equal(pthread_create(&threads[r], NULL, run_member, &members[r]), 0);
    }
    for (uint32_t r = 0; r < count; r++)
        pthread_join(threads[r], NULL);
    assert_int_equal(place.n_closed, count);
    assert_int_equal(place.n_in_order, n_in_order);
    pthread_barrier_destroy(&place.barrier);
    pthread_mutex_destroy(&place.lock);
    pthread_cond_destroy(&place.changed);
}

#endif
