/* Ranks as threads of one process: what they share, and how they end together. */
#include "profiler/evaluate/rank_block.h"
#include "profiler/evaluate/rank_windows.h"
#include "tests/unit/thread_ranks.h"

#include <stdlib.h>

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
    uint16_t notes[4] = {0}; /* the first two together */
    struct moec_ranks_part parts[] = {
        {0, &notes[0], 2}, {0, &notes[1], 2}, {last, &notes[2], 2}, {last, &notes[3], 0}};
    for (uint16_t i = 0; i < 3; i++)
        notes[i] = parts[i].from == member->own ? (uint16_t)(i + 3) : 0;
    if (moec_ranks_spread_parts(ranks, parts, 4, err) != MOEC_OK || notes[0] != 3 || notes[1] != 4 ||
        notes[2] != 5 || notes[3] != 0)
        return;
    for (uint32_t from = 0; from <= last; from++) {
        uint32_t note = member->own == from ? 7 + from : 0;
        if (moec_ranks_pass(ranks, from, last, member->own == from || member->own == last ? &note : NULL,
                            sizeof note, err) != MOEC_OK ||
            (member->own == last && note != 7 + from))
            return;
    }
    moec_ranks_tell(ranks, 10.0 * member->own);
    if (moec_ranks_same(ranks, "another word", word, sizeof word, err) != MOEC_OK ||
        moec_ranks_mean_done(ranks) != (member->own == 0 ? 5.0 * last : 10.0 * member->own))
        return;
    member->status = moec_ranks_leave(ranks, NULL, err);
}

static void test_ranks__share_items(void **state)
{
    struct member members[MOST] = {0};
    (void)state;
    for (uint32_t count = 1; count <= MOST; count++) {
        run_ranks(count, share, members, count);
        for (uint32_t r = 0; r < count; r++)
            assert_status(members[r].status, MOEC_OK, members[r].err);
    }
}

/* Items that go one of each rank at a time, and small ones that go in several turns. */
static void share_long(struct member *member, struct moec_ranks *ranks)
{
    const size_t sizes[] = {MOEC_RANKS_PIECE_BYTES / 2 + 1, MOEC_RANKS_PIECE_BYTES / 8};
    const uint64_t numbers[] = {4, 21};
    member->status = MOEC_OK;
    for (int i = 0; i < 2 && member->status == MOEC_OK; i++) {
        const size_t last = sizes[i] - 1;
        uint8_t *items = calloc(numbers[i], sizes[i]);
        for (uint64_t n = moec_ranks_own(ranks); n < numbers[i]; n += moec_ranks_count(ranks))
            items[n * sizes[i]] = items[n * sizes[i] + last] = (uint8_t)(n + 1);
        member->status = moec_ranks_gather(ranks, items, numbers[i], sizes[i], &member->err);
        for (uint64_t n = 0; n < numbers[i] && member->status == MOEC_OK; n++)
            if (items[n * sizes[i]] != n + 1 || items[n * sizes[i] + last] != n + 1)
                member->status = MOEC_ERR_FORMAT;
        free(items);
    }
    if (member->status == MOEC_OK)
        member->status = moec_ranks_leave(ranks, NULL, &member->err);
}

static void test_ranks__share_long_lists(void **state)
{
    struct member members[MOST] = {0};
    (void)state;
    for (uint32_t count = 2; count <= MOST; count += 3) {
        run_ranks(count, share_long, members, count);
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
    assert_status(moec_ranks_pass(NULL, 0, 0, &value, sizeof value, &err), MOEC_OK, err);
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
    struct member members[MOST] = {0};
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
    struct member members[MOST] = {0};
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
    struct member members[MOST] = {0};
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
            values[moec_rank_windows_number(&shared, w)] = shared.own.length[w];
        member->status = moec_ranks_gather(ranks, values, n, sizeof *values, &member->err);
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
    struct member members[MOST] = {0};
    (void)state;
    for (uint32_t count = 1; count <= MOST; count++) {
        run_ranks(count, share_windows, members, count);
        for (uint32_t r = 0; r < count; r++)
            assert_status(members[r].status, MOEC_OK, members[r].err);
    }
}

/* Rows of windows, each with its number among all. */
static enum moec_status gather_block(const struct moec_rank_block *block, struct moec_error *err)
{
    float rows[N_WINDOW * 8] = {0};
    const struct moec_states states = {.rows = rows, .n_row = N_WINDOW * 8, .stride = 1};
    uint64_t first = 0;
    const uint64_t n = moec_rank_block_rows(block, MOEC_STACK_DECODER, moec_ranks_own(block->ranks), &first);
    for (uint64_t row = first; row < first + n; row++)
        rows[row] = (float)(row + 1);
    MOEC_TRY(moec_rank_block_gather(block, MOEC_STACK_DECODER, &states, err));
    for (uint32_t row = 0; row < 4 + 5 + 6 + 7; row++)
        if (rows[row] != (float)(row + 1))
            return MOEC_ERR_FORMAT;
    return rows[4 + 5 + 6 + 7] == 0 ? MOEC_OK : MOEC_ERR_FORMAT;
}

static void share_block(struct member *member, struct moec_ranks *ranks)
{
    uint32_t tokens[N_WINDOW * 8] = {0}, length[N_WINDOW] = {5, 6, 7, 8}, scored[N_WINDOW] = {4, 5, 6, 7};
    uint64_t index[N_WINDOW] = {0};
    const struct moec_windows windows = {.n_window = N_WINDOW,
                                         .seq_len_tokens = 8,
                                         .tokens = tokens,
                                         .length = length,
                                         .scored = scored,
                                         .index = index};
    struct moec_rank_block block;
    member->status = moec_rank_block_make(ranks, &windows, &block, &member->err);
    const uint32_t first = moec_rank_block_first(&block, moec_ranks_own(ranks));
    if (block.own.n_window != (block.n_own > 0 ? block.n_own : 1))
        member->status = MOEC_ERR_FORMAT;
    for (uint32_t w = 0; w < block.n_own && member->status == MOEC_OK; w++)
        if (block.own.length[w] != length[first + w])
            member->status = MOEC_ERR_FORMAT;
    if (member->status == MOEC_OK)
        member->status = gather_block(&block, &member->err);
    moec_rank_block_release(&block);
    if (member->status == MOEC_OK)
        member->status = moec_ranks_leave(ranks, NULL, &member->err);
}

static void test_ranks__share_blocks(void **state)
{
    struct member members[MOST] = {0};
    (void)state;
    for (uint32_t count = 1; count <= MOST; count++) {
        run_ranks(count, share_block, members, count);
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
        cmocka_unit_test(test_ranks__share_blocks),  cmocka_unit_test(test_ranks__share_long_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
