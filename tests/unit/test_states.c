/* States keep what they hold, in memory or spilled, and evaluations do not see the difference. */
#include "tests/unit/fixture_model.h"
#include "tests/unit/temporary.h"

#include "profiler/evaluate/score.h"
#include "profiler/evaluate/states.h"
#include "profiler/routing/routing.h"

#include <dirent.h>

static size_t count_entries(const char *folder)
{
    size_t n = 0;
    DIR *entries = opendir(folder);
    assert_non_null(entries);
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries))
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(entries);
    return n;
}

static void fill(struct moec_states *states, uint64_t first, uint64_t n, uint32_t salt)
{
    for (uint64_t i = first * states->stride; i < (first + n) * states->stride; i++)
        states->rows[i] = (float)((i * 2654435761u + salt) & 0xffffff);
}

static void check(const struct moec_states *states, uint64_t first, uint64_t n, uint32_t salt)
{
    for (uint64_t i = first * states->stride; i < (first + n) * states->stride; i++)
        assert_true(states->rows[i] == (float)((i * 2654435761u + salt) & 0xffffff));
}

static void test_states__keep_rows_that_are_left(void **state)
{
    (void)state;
    enum { ROWS = 1000, STRIDE = 48, BATCH = 37 };
    char folder[] = "/tmp/moec-states-XXXXXX";
    assert_non_null(mkdtemp(folder));
    struct moec_error err = {0};
    struct moec_work_memory work = {.states_bytes = 4096, .folder = folder};
    struct moec_states states;
    assert_ok(moec_states_create(&work, ROWS, STRIDE, "a test", &states, &err), err);
    assert_true(states.is_spilled);
    assert_int_equal(work.spilled_bytes, ROWS * STRIDE * sizeof(float));
    assert_int_equal(work.used_bytes, 0);
    assert_int_equal(count_entries(folder), 0); /* it has no name */
    for (uint32_t pass = 0; pass < 3; pass++) {
        for (uint64_t row = 0; row < ROWS; row += BATCH) {
            const uint64_t n = ROWS - row < BATCH ? ROWS - row : BATCH;
            if (pass > 0)
                check(&states, row, n, pass - 1);
            fill(&states, row, n, pass);
            moec_states_leave(&states, row, n);
        }
    }
    check(&states, 0, ROWS, 2);
    moec_states_release(&states);
    assert_int_equal(work.spilled_bytes, 0);
    assert_int_equal(rmdir(folder), 0);
}

static void test_states__spill_what_does_not_fit(void **state)
{
    (void)state;
    struct moec_error err = {0};
    const uint64_t row_bytes = 16 * sizeof(float);
    struct moec_work_memory work = {.states_bytes = 10 * row_bytes, .folder = "/tmp"};
    struct moec_states a, b, c;
    assert_ok(moec_states_create(&work, 6, 16, "a test", &a, &err), err);
    assert_ok(moec_states_create(&work, 5, 16, "a test", &b, &err), err);
    assert_ok(moec_states_create(&work, 4, 16, "a test", &c, &err), err);
    assert_false(a.is_spilled);
    assert_true(b.is_spilled);
    assert_false(c.is_spilled);
    assert_int_equal(work.used_bytes, 10 * row_bytes);
    moec_states_leave(&a, 0, 6); /* nothing to leave */
    moec_states_release(&a);
    moec_states_release(&b);
    assert_ok(moec_states_create(&work, 5, 16, "a test", &b, &err), err);
    assert_false(b.is_spilled);
    moec_states_release(&b);
    moec_states_release(&c);
    moec_states_release(&c);
    assert_int_equal(work.used_bytes + work.spilled_bytes, 0);
    /* Without a folder, or without a bound, everything is in memory. */
    work = (struct moec_work_memory){.states_bytes = 1};
    assert_ok(moec_states_create(&work, 5, 16, "a test", &a, &err), err);
    assert_false(a.is_spilled);
    moec_states_release(&a);
    work = (struct moec_work_memory){.folder = "/tmp"};
    assert_ok(moec_states_create(&work, 5, 16, "a test", &a, &err), err);
    assert_false(a.is_spilled);
    moec_states_release(&a);
    assert_ok(moec_states_create(NULL, 5, 16, "a test", &a, &err), err);
    moec_states_release(&a);
}

static void test_states__say_where_there_is_no_room(void **state)
{
    (void)state;
    struct moec_states states;
    struct moec_error err = {0};
    struct moec_work_memory work = {.states_bytes = 1, .folder = "/tmp/moec-no-such-folder"};
    assert_int_equal(moec_states_create(&work, 5, 16, "hidden states", &states, &err), MOEC_ERR_IO);
    assert_non_null(strstr(err.message, "'/tmp/moec-no-such-folder' for hidden states"));
    assert_null(states.rows);
    work.folder = "/tmp";
    err = (struct moec_error){0};
    assert_int_equal(moec_states_create(&work, (uint64_t)1 << 50, 16, "hidden states", &states, &err),
                     MOEC_ERR_IO);
    assert_non_null(strstr(err.message, "cannot reserve"));
    err = (struct moec_error){0};
    assert_int_equal(moec_states_create(&work, UINT64_MAX / 2, 16, "hidden states", &states, &err),
                     MOEC_ERR_LIMIT);
    assert_int_equal(work.spilled_bytes, 0);
}

#define N_WINDOW 6
#define SEQ_LEN  20

struct measured {
    double reference[N_WINDOW], nll[N_WINDOW], kl[N_WINDOW];
    uint16_t experts[4096];
    uint16_t weights[4096];
    uint64_t activations[256];
    double gate[256];
};

static void measure(const struct fixture *fixture, struct moec_work_memory *work, struct measured *out)
{
    struct moec_error err = {0};
    struct moec_windows windows = {.n_window = N_WINDOW, .seq_len_tokens = SEQ_LEN, .work = work};
    uint32_t length[N_WINDOW], scored[N_WINDOW];
    uint64_t index[N_WINDOW];
    for (uint32_t w = 0; w < N_WINDOW; w++) {
        length[w] = SEQ_LEN - w;
        scored[w] = length[w] - 1;
        index[w] = w;
    }
    windows.tokens = fixture_long_tokens(fixture, N_WINDOW * SEQ_LEN);
    windows.length = length;
    windows.scored = scored;
    windows.index = index;
    struct moec_experts *experts = moec_variants_experts(fixture->variants);
    const struct moec_kernels *kernels = moec_kernels_best();
    const struct moec_scorer_options options = {.by = {.kernels = kernels, .n_threads = 2}};
    struct moec_scorer *scorer = NULL;
    assert_ok(moec_scorer_create(fixture->model, experts, &windows, &options, &scorer, &err), err);
    const uint32_t exact = moec_variants_source_bits(fixture->variants);
    assert_ok(moec_variants_assign_all(fixture->variants, exact, &err), err);
    assert_ok(moec_scorer_set_reference(scorer, fixture->model, experts, out->reference, NULL, &err), err);
    assert_int_equal(moec_scorer_reference_states(scorer)->is_spilled, work != NULL);
    assert_ok(moec_variants_assign_all(fixture->variants, 2, &err), err);
    const struct moec_measure measured = {out->nll, out->kl};
    assert_ok(moec_scorer_run(scorer, &measured, NULL, &err), err);
    struct moec_routing routing = {.experts = out->experts,
                                   .weights = out->weights,
                                   .activations = out->activations,
                                   .mean_gate_weight = out->gate};
    assert_ok(moec_routing_run(&(struct moec_runner){fixture->model, experts, kernels, 2}, &windows, &routing,
                               NULL, &err),
              err);
    moec_scorer_free(scorer);
    free(windows.tokens);
}

/* The same bits with everything spilled and batches of one window as with everything in memory at once. */
static void test_states__evaluations_do_not_see_the_difference(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FIXTURE_FAMILIES; f++) {
        struct fixture fixture = fixture_open(fixture_families[f]);
        struct moec_work_memory work = {.batch_tokens = 1, .states_bytes = 1, .folder = "/tmp"};
        struct measured *memory = calloc(2, sizeof *memory), *spilled = memory + 1;
        assert_non_null(memory);
        measure(&fixture, NULL, memory);
        measure(&fixture, &work, spilled);
        assert_memory_equal(memory, spilled, sizeof *memory);
        assert_true(memory->kl[0] != 0);
        assert_int_equal(work.used_bytes + work.spilled_bytes, 0);
        free(memory);
        fixture_close(&fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states__keep_rows_that_are_left),
        cmocka_unit_test(test_states__spill_what_does_not_fit),
        cmocka_unit_test(test_states__say_where_there_is_no_room),
        cmocka_unit_test(test_states__evaluations_do_not_see_the_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
