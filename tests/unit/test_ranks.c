/* Ranks as threads of one process: what they share, and how they end together. */
#include "profiler/evaluate/rank_windows.h"
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
    uint32_t n_closed, n_in_order;
    pthread_mutex_t lock;
};

struct member {
    struct place *place;
    uint32_t own;
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
                                                   .close = close_place};
    if (moec_ranks_create(&transport, &ranks, &member->err) != MOEC_OK)
        return NULL;
    member->work(member, ranks);
    moec_ranks_free(ranks);
    return NULL;
}

/* Runs `work` on so many ranks; members[r] has what rank r ended with. */
static void run_ranks(uint32_t count, void (*work)(struct member *, struct moec_ranks *),
                      struct member members[static MOST], uint32_t n_in_order)
{
    struct place place = {.count = count};
    pthread_t threads[MOST];
    pthread_barrier_init(&place.barrier, NULL, count);
    pthread_mutex_init(&place.lock, NULL);
    for (uint32_t r = 0; r < count; r++) {
        members[r] = (struct member){.place = &place, .own = r, .work = work};
        assert_int_equal(pthread_create(&threads[r], NULL, run_member, &members[r]), 0);
    }
    for (uint32_t r = 0; r < count; r++)
        pthread_join(threads[r], NULL);
    assert_int_equal(place.n_closed, count);
    assert_int_equal(place.n_in_order, n_in_order);
    pthread_barrier_destroy(&place.barrier);
    pthread_mutex_destroy(&place.lock);
}

/* ---- what is shared ---- */

#define N_ITEM 7u

static void share(struct member *member, struct moec_ranks *ranks)
{
    struct moec_error *err = &member->err;
    uint64_t items[N_ITEM] = {0}, sums[2] = {member->own, UINT64_MAX};
    uint8_t word[3] = {(uint8_t)member->own, 1, 2};
    uint64_t n_own = 0;
    member->status = MOEC_ERR_USAGE;
    for (uint32_t i = 0; i < N_ITEM; i++)
        if (moec_ranks_has(ranks, i)) {
            items[i] = 100 + i;
            n_own++;
        }
    if (n_own != moec_ranks_share(ranks, N_ITEM) ||
        moec_ranks_gather(ranks, items, N_ITEM, sizeof *items, err) != MOEC_OK)
        return;
    for (uint32_t i = 0; i < N_ITEM; i++)
        if (items[i] != 100 + i)
            return;
    const uint32_t last = moec_ranks_count(ranks) - 1;
    if (moec_ranks_spread(ranks, last, word, sizeof word, err) != MOEC_OK || word[0] != last ||
        moec_ranks_sum(ranks, sums, 2, err) != MOEC_OK || sums[0] != last * (last + 1) / 2 ||
        sums[1] != -(uint64_t)moec_ranks_count(ranks) ||
        moec_ranks_same(ranks, "another word", word, sizeof word, err) != MOEC_OK)
        return;
    member->status = moec_ranks_leave(ranks, NULL, err);
}

static void test_ranks__share_items(void **state)
{
    struct member members[MOST];
    (void)state;
    for (uint32_t count = 1; count <= MOST; count++) {
        run_ranks(count, share, members, count);
        for (uint32_t r = 0; r < count; r++)
            assert_status(members[r].status, MOEC_OK, members[r].err);
    }
}

/* A process alone has all of it. */
static void test_ranks__one_process(void **state)
{
    struct moec_error err = {0};
    uint64_t value = 3;
    (void)state;
    assert_int_equal(moec_ranks_count(NULL), 1);
    assert_int_equal(moec_ranks_share(NULL, 9), 9);
    assert_true(moec_ranks_has(NULL, 8));
    assert_status(moec_ranks_gather(NULL, &value, 1, sizeof value, &err), MOEC_OK, err);
    assert_status(moec_ranks_spread(NULL, 0, &value, sizeof value, &err), MOEC_OK, err);
    assert_status(moec_ranks_sum(NULL, &value, 1, &err), MOEC_OK, err);
    assert_status(moec_ranks_leave(NULL, NULL, &err), MOEC_OK, err);
    assert_int_equal(value, 3);
    moec_ranks_free(NULL);
}

/* ---- how they end ---- */

/* Rank 1 fails where the others go on. */
static void fail_one(struct member *member, struct moec_ranks *ranks)
{
    struct moec_error own = {0};
    double value = 1;
    if (member->own == 1) {
        (void)moec_fail(&own, MOEC_ERR_IO, "cannot open 'x'");
        member->status = moec_ranks_leave(ranks, &own, &member->err);
        return;
    }
    member->status = moec_ranks_gather(ranks, &value, 1, sizeof value, &member->err);
    /* Nobody waits any more. */
    struct moec_error later = {0};
    if (moec_ranks_gather(ranks, &value, 1, sizeof value, &later) != MOEC_ERR_CANCELLED ||
        moec_ranks_leave(ranks, NULL, &later) != MOEC_OK)
        member->status = MOEC_ERR_FORMAT;
}

static void test_ranks__fail_together(void **state)
{
    struct member members[MOST];
    (void)state;
    run_ranks(3, fail_one, members, 3);
    for (uint32_t r = 0; r < 3; r++)
        assert_status(members[r].status, MOEC_ERR_IO, members[r].err);
    assert_string_equal(members[0].err.message, "rank 1 of 3, on 'here': cannot open 'x'");
    assert_string_equal(members[2].err.message, members[0].err.message);
}

/* Who got to the end learns of another's failure there. */
static void fail_late(struct member *member, struct moec_ranks *ranks)
{
    struct moec_error own = {0};
    if (member->own == 0)
        (void)moec_fail(&own, MOEC_ERR_IO, "cannot write 'y'");
    member->status = moec_ranks_leave(ranks, &own, &member->err);
}

static void test_ranks__fail_at_the_end(void **state)
{
    struct member members[MOST];
    (void)state;
    run_ranks(2, fail_late, members, 2);
    assert_status(members[1].status, MOEC_ERR_IO, members[1].err);
    assert_message(members[1].err, "rank 0 of 2, on 'here': cannot write 'y'");
}

/* Ranks that are at different steps would wait for each other for ever. */
static void lose_the_way(struct member *member, struct moec_ranks *ranks)
{
    uint64_t value = 1;
    member->status = member->own == 0 ? moec_ranks_sum(ranks, &value, 1, &member->err)
                                      : moec_ranks_spread(ranks, 0, &value, sizeof value, &member->err);
}

static void differ(struct member *member, struct moec_ranks *ranks)
{
    const uint8_t word = member->own == 2;
    member->status = moec_ranks_same(ranks, "another checkpoint", &word, sizeof word, &member->err);
}

static void test_ranks__differ(void **state)
{
    struct member members[MOST];
    (void)state;
    run_ranks(2, lose_the_way, members, 2);
    assert_status(members[0].status, MOEC_ERR_MISMATCH, members[0].err);
    assert_message(members[0].err, "rank 1 of 2, on 'here', is at another step than rank 0");
    run_ranks(3, differ, members, 3);
    assert_status(members[0].status, MOEC_ERR_MISMATCH, members[0].err);
    assert_string_equal(members[0].err.message,
                        "rank 2 of 3, on 'here', has another checkpoint than rank 0, on 'here'");
}

/* ---- windows ---- */

#define N_WINDOW 4u

/* Windows have as many rows as tokens, each with the window's number and its own. */
static enum moec_status share_rows(const struct moec_rank_windows *shared, uint32_t n, const uint32_t *length,
                                   struct moec_error *err)
{
    uint64_t start[N_WINDOW + 1] = {0};
    uint16_t rows[N_WINDOW * 8] = {0};
    for (uint32_t w = 0; w < n; w++)
        start[w + 1] = start[w] + length[w];
    for (uint32_t own = 0; own < moec_rank_windows_count(shared, n); own++) {
        const uint32_t w = moec_rank_windows_number(shared, own);
        for (uint32_t t = 0; t < length[w]; t++)
            rows[start[w] + t] = (uint16_t)(100 * w + t + 1);
    }
    MOEC_TRY(moec_rank_windows_gather_rows(shared, n, start, rows, sizeof *rows, err));
    for (uint32_t w = 0; w < n; w++)
        for (uint32_t t = 0; t < length[w]; t++)
            if (rows[start[w] + t] != 100 * w + t + 1)
                return MOEC_ERR_FORMAT;
    return MOEC_OK;
}

/* Losses of windows are their lengths here, of the first n of them. */
static void share_windows(struct member *member, struct moec_ranks *ranks)
{
    uint32_t tokens[N_WINDOW * 8] = {0}, length[N_WINDOW] = {5, 6, 7, 8}, scored[N_WINDOW] = {4, 5, 6, 7};
    uint64_t index[N_WINDOW] = {0};
    const struct moec_windows windows = {.n_window = N_WINDOW,
                                         .seq_len_tokens = 8,
                                         .tokens = tokens,
                                         .length = length,
                                         .scored = scored,
                                         .index = index};
    struct moec_rank_windows shared;
    member->status = moec_rank_windows_make(ranks, &windows, &shared, &member->err);
    for (uint32_t n = 1; n <= N_WINDOW && member->status == MOEC_OK; n++) {
        double values[N_WINDOW] = {0};
        for (uint32_t w = 0; w < moec_rank_windows_count(&shared, n); w++)
            values[w] = shared.own.length[w];
        member->status = moec_rank_windows_gather(&shared, n, values, &member->err);
        for (uint32_t w = 0; w < n && member->status == MOEC_OK; w++)
            if (values[w] != length[w])
                member->status = MOEC_ERR_FORMAT;
    }
    for (uint32_t n = 1; n <= N_WINDOW && member->status == MOEC_OK; n++)
        member->status = share_rows(&shared, n, length, &member->err);
    moec_rank_windows_release(&shared);
    if (member->status == MOEC_OK)
        member->status = moec_ranks_leave(ranks, NULL, &member->err);
}

static void test_ranks__share_windows(void **state)
{
    struct member members[MOST];
    (void)state;
    for (uint32_t count = 1; count <= MOST; count++) {
        run_ranks(count, share_windows, members, count);
        for (uint32_t r = 0; r < count; r++)
            assert_status(members[r].status, MOEC_OK, members[r].err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks__share_items),   cmocka_unit_test(test_ranks__one_process),
        cmocka_unit_test(test_ranks__fail_together), cmocka_unit_test(test_ranks__fail_at_the_end),
        cmocka_unit_test(test_ranks__differ),        cmocka_unit_test(test_ranks__share_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
