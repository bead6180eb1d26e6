/* Run modes: what a bundle can run, and what contradicts a mode. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

#include "runtime/engine/mode.h"

static int set_up(void **state)
{
    struct sample_fixture *f = calloc(1, sizeof *f);
    sample_make(&f->sample, 8, 40, 24, 5);
    sample_open(f);
    *state = f;
    return 0;
}

static struct moec_mode_choice choose(const struct sample_fixture *f, struct moec_mode_request request)
{
    struct moec_mode_choice choice = {0};
    struct moec_error err = {0};
    assert_status(moec_mode_choose(f->bundle, &request, &choice, &err), MOEC_OK, err);
    return choice;
}

static void refuse(const struct sample_fixture *f, struct moec_mode_request request, const char *message)
{
    struct moec_mode_choice choice = {0};
    struct moec_error err = {0};
    assert_status(moec_mode_choose(f->bundle, &request, &choice, &err), MOEC_ERR_USAGE, err);
    assert_message(err, message);
}

static void test_mode__nothing_asked_is_the_cache(void **state)
{
    const struct moec_mode_choice choice = choose(*state, (struct moec_mode_request){0});
    assert_string_equal(choice.mode->name, "cache");
    assert_int_equal(choice.copy, 0);
    assert_ptr_equal(choice.evict.ops, &moec_evict_hobbit);
    assert_ptr_equal(choice.predict, &moec_predict_gate);
    assert_int_equal(choice.preload_ahead, 1);
    const struct moec_mode_choice on_device = choose(*state, (struct moec_mode_request){.has_device = true});
    assert_ptr_equal(on_device.predict, &moec_predict_none);
}

static void test_mode__edgemoe_is_its_policy_and_the_path_table(void **state)
{
    const struct moec_mode_choice choice =
        choose(*state, (struct moec_mode_request){.mode = "edgemoe", .preload_count = 2});
    assert_int_equal(choice.copy, 0);
    assert_ptr_equal(choice.evict.ops, &moec_evict_edgemoe);
    assert_ptr_equal(choice.predict, &moec_predict_path);
    assert_int_equal(choice.preload_count, 2);
    assert_false(choice.lacks_paths);
    refuse(*state, (struct moec_mode_request){.mode = "edgemoe", .predict = "gate"}, "use mode 'cache'");
    refuse(*state, (struct moec_mode_request){.mode = "edgemoe", .evict = "lru"}, "evicts by 'edgemoe'");
    (void)choose(*state,
                 (struct moec_mode_request){.mode = "edgemoe", .evict = "edgemoe", .predict = "path"});
}

/* A bundle that was compiled without a profile. */
static void test_mode__without_a_path_table(void **state)
{
    const struct sample_fixture *f = *state;
    const struct moec_path_table paths = f->bundle->paths;
    f->bundle->paths = (struct moec_path_table){0};
    const struct moec_mode_choice choice = choose(f, (struct moec_mode_request){.mode = "edgemoe"});
    assert_ptr_equal(choice.predict, &moec_predict_none);
    assert_true(choice.lacks_paths);
    (void)choose(f, (struct moec_mode_request){.predict = "gate"});
    refuse(f, (struct moec_mode_request){.predict = "path"}, "needs a path table (which");
    refuse(f, (struct moec_mode_request){.mode = "edgemoe", .preload_count = 2}, "nothing is predicted");
    f->bundle->paths = paths;
}

static void test_mode__cache_takes_any(void **state)
{
    for (size_t i = 0; moec_evict_policies[i] != NULL; i++) {
        const struct moec_mode_choice choice =
            choose(*state, (struct moec_mode_request){.evict = moec_evict_policies[i]->name, .copy = 2});
        assert_ptr_equal(choice.evict.ops, moec_evict_policies[i]);
        assert_int_equal(choice.copy, 2);
    }
    for (size_t i = 0; moec_predictors[i] != NULL; i++) {
        if (moec_predictors[i]->needs_learned) {
            refuse(*state, (struct moec_mode_request){.predict = moec_predictors[i]->name}, "moec predict");
            continue;
        }
        const struct moec_mode_choice choice =
            choose(*state, (struct moec_mode_request){.predict = moec_predictors[i]->name});
        assert_ptr_equal(choice.predict, moec_predictors[i]);
    }
    refuse(*state, (struct moec_mode_request){.copy = 3}, "precision copy 3");
    refuse(*state, (struct moec_mode_request){.evict = "belady"}, "unknown eviction 'belady'");
    refuse(*state, (struct moec_mode_request){.evict = "lru:3"}, "'lru:3' gives parameters");
    refuse(*state, (struct moec_mode_request){.mode = "edgemoe", .evict = "hobbit:1:1:1:1"},
           "leave out the eviction 'hobbit:1:1:1:1'");
    assert_int_equal(
        choose(*state, (struct moec_mode_request){.mode = "eap", .evict = "fate:2"}).evict.n_shallow, 2);
    refuse(*state, (struct moec_mode_request){.predict = "oracle"}, "oracle");
    refuse(*state, (struct moec_mode_request){.predict = "none", .preload_count = 2}, "nothing is predicted");
}

static void test_mode__gates_alone_are_asked_further_ahead(void **state)
{
    assert_int_equal(choose(*state, (struct moec_mode_request){.predict = "none"}).preload_ahead, 0);
    assert_int_equal(choose(*state, (struct moec_mode_request){.predict = "path"}).preload_ahead, 1);
    assert_int_equal(choose(*state, (struct moec_mode_request){.predict = "gate"}).preload_ahead, 1);
    assert_int_equal(
        choose(*state, (struct moec_mode_request){.predict = "path+gate", .preload_ahead = 4}).preload_ahead,
        4);
    refuse(*state, (struct moec_mode_request){.predict = "path", .preload_ahead = 2},
           "does not run the routers of later layers");
    refuse(*state, (struct moec_mode_request){.predict = "gate", .preload_ahead = 5}, "expected 1 to 4");
}

/* Systems that Fate and HOBBIT compare with: the assignment, and an empty buffer at first. */
static void test_mode__baselines_of_other_papers(void **state)
{
    static const struct {
        const char *mode;
        const struct moec_evict_ops *evict;
        const struct moec_predict_ops *predict;
    } rows[] = {{"lod", NULL, &moec_predict_none},
                {"eap", &moec_evict_fate, &moec_predict_path},
                {"moe-offloading", &moec_evict_lru, &moec_predict_gate},
                {"moe-infinity", &moec_evict_lfu, &moec_predict_path}};
    struct moec_path_table *paths = &((const struct sample_fixture *)*state)->bundle->paths;
    paths->n_shallow = 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct moec_mode_choice choice =
            choose(*state, (struct moec_mode_request){.mode = rows[i].mode});
        assert_ptr_equal(choice.evict.ops, rows[i].evict);
        assert_ptr_equal(choice.predict, rows[i].predict);
        assert_int_equal(choice.copy, 0);
        assert_true(choice.mode->by_name && !choice.mode->is_warm);
        assert_int_equal(choice.mode->keeps, rows[i].evict != NULL);
    }
    paths->n_shallow = 0; /* which layers are shallow is unknown */
    assert_ptr_equal(choose(*state, (struct moec_mode_request){.mode = "eap"}).evict.ops, &moec_evict_arc);
    assert_ptr_equal(choose(*state, (struct moec_mode_request){.mode = "eap", .evict = "fate"}).evict.ops,
                     &moec_evict_fate);
    refuse(*state, (struct moec_mode_request){.mode = "moe-offloading", .predict = "path"},
           "use mode 'cache'");
    refuse(*state, (struct moec_mode_request){.mode = "lod", .evict = "lru"}, "evicts nothing");
}

/* The sample holds copies at 2 and at 8 bits. */
static void test_mode__copies_are_found_by_their_bits(void **state)
{
    const struct moec_mode_choice choice = choose(*state, (struct moec_mode_request){.mode = "io-qfree"});
    assert_int_equal(choice.copy, 2);
    assert_null(choice.evict.ops);
    assert_true(choice.mode->is_resident);
    refuse(*state, (struct moec_mode_request){.mode = "io-free"}, "--copies 16");
    refuse(*state, (struct moec_mode_request){.mode = "io-exp"}, "--copies 16");
    refuse(*state, (struct moec_mode_request){.mode = "io-qexp"}, "--copies 4");
    refuse(*state, (struct moec_mode_request){.mode = "io-exp+lru"}, "only copies at 2, 8 bits");
    refuse(*state, (struct moec_mode_request){.mode = "io-qexp+lru"}, "--copies 4");
}

static void test_mode__contradictions_are_refused(void **state)
{
    refuse(*state, (struct moec_mode_request){.mode = "io-qfree", .evict = "lru"}, "evicts nothing");
    refuse(*state, (struct moec_mode_request){.mode = "io-qfree", .copy = 2}, "do not ask for copy 2");
    refuse(*state, (struct moec_mode_request){.mode = "turbo"},
           "unknown mode 'turbo', expected one of cache");
}

/* Whatever the table says, it says it with words that are there. */
static void test_mode__the_table_is_whole(void **state)
{
    (void)state;
    for (const struct moec_mode *mode = moec_modes; mode->name != NULL; mode++) {
        struct moec_error err = {0};
        const struct moec_evict_ops *evict = NULL;
        const struct moec_predict_ops *predict = NULL;
        assert_status(moec_predict_find(mode->predict, &predict, &err), MOEC_OK, err);
        if (mode->evict != NULL)
            assert_status(moec_evict_find(mode->evict, &evict, &err), MOEC_OK, err);
        assert_true(!mode->is_resident || mode->evict == NULL);
        assert_true(!mode->takes_any || mode->bits == 0);
        for (const struct moec_mode *other = moec_modes; other != mode; other++)
            assert_string_not_equal(mode->name, other->name);
    }
}

static void test_mode__resident_modes_need_room_for_all(void **state)
{
    const struct sample_fixture *f = *state;
    const struct moec_mode_choice choice = choose(f, (struct moec_mode_request){.mode = "io-qfree"});
    struct moec_memory_request request = {.process = {.base_bytes = 1 << 20, .n_threads = 1},
                                          .sessions = {.n_context = 8, .n = 1},
                                          .buffer.keeps_all = true};
    moec_memory_request_bundle(&request, f->bundle, choice.copy, choice.evict.ops);
    struct moec_memory_plan plan = {0};
    struct moec_error err = {0};
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
    assert_status(moec_mode_check_plan(choice.mode, &plan, &err), MOEC_OK, err);
    const uint64_t needed =
        plan.floor_bytes + request.bundle.all_record_bytes - request.bundle.largest_record_bytes;
    request.budget_bytes = needed;
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
    assert_status(moec_mode_check_plan(choice.mode, &plan, &err), MOEC_OK, err);
    request.budget_bytes = needed - 1;
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
    assert_status(moec_mode_check_plan(choice.mode, &plan, &err), MOEC_ERR_BUDGET, err);
    assert_message(err, "keeps every expert in memory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_mode__nothing_asked_is_the_cache, set_up, sample_tear_down),
        cmocka_unit_test_setup_teardown(test_mode__edgemoe_is_its_policy_and_the_path_table, set_up,
                                        sample_tear_down),
        cmocka_unit_test_setup_teardown(test_mode__without_a_path_table, set_up, sample_tear_down),
        cmocka_unit_test_setup_teardown(test_mode__cache_takes_any, set_up, sample_tear_down),
        cmocka_unit_test_setup_teardown(test_mode__gates_alone_are_asked_further_ahead, set_up,
                                        sample_tear_down),
        cmocka_unit_test_setup_teardown(test_mode__baselines_of_other_papers, set_up, sample_tear_down),
        cmocka_unit_test_setup_teardown(test_mode__copies_are_found_by_their_bits, set_up, sample_tear_down),
        cmocka_unit_test_setup_teardown(test_mode__contradictions_are_refused, set_up, sample_tear_down),
        cmocka_unit_test(test_mode__the_table_is_whole),
        cmocka_unit_test_setup_teardown(test_mode__resident_modes_need_room_for_all, set_up,
                                        sample_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
