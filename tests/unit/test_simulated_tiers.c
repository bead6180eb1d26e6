/* Simulated runs with three tiers: times worked out by hand for each mode, and what holds for every size. */
#include "tests/unit/temporary.h"

#include "profiler/simulate/simulated_run.h"
#include "profiler/simulate/simulated_tiers.h"
#include "tests/unit/synthetic_recording.h"

#include <math.h>

/* Two layers of four experts, of which tokens take 0 and 3. A read takes 100 behind a latency of 10, a check
 * 5, a copy 30, an expert 20 on the device and 60 on the processor; 50 pass before each answer and at the
 * end. */
struct made {
    struct moec_replay replay;
    struct moec_recording recording;
    struct moec_simulated_model model;
    struct moec_simulated_device device;
    struct moec_simulated_gpu gpu;
};

static void make(struct made *made, uint32_t n_decoded)
{
    static const struct moec_recording no_layers;
    synthetic_steps(2, 4, 2, 0, n_decoded, &made->replay);
    for (uint32_t i = 0; i < 2 * n_decoded; i++)
        made->replay.experts[2 * i] = 3;
    synthetic_recording(&made->replay, &made->recording);
    synthetic_model(&made->recording, NULL, &made->model);
    assert_int_equal(moec_simulated_device_make(&(struct moec_simulated_hardware){0}, &no_layers,
                                                &made->model, &made->device, NULL),
                     MOEC_OK);
    const struct moec_gpu_description gpu = {.name = "a GPU",
                                             .token_ns = 230,
                                             .answer_ns = 5,
                                             .n_copies = 1,
                                             .copies = {{true, true, 64, 30}},
                                             .n_experts = 1,
                                             .experts = {{4, 64, 20}}};
    assert_int_equal(moec_simulated_gpu_make(&gpu, &made->model, NULL, &made->gpu, NULL), MOEC_OK);
    for (uint32_t key = 0; key < 8; key++) {
        made->device.read_ns[key] = 100;
        made->device.check_ns[key] = 5;
        made->device.compute_ns[key] = 60;
    }
    made->device.latency_ns = 10;
}

static void release(struct made *made)
{
    moec_simulated_gpu_release(&made->gpu);
    moec_simulated_device_release(&made->device);
    moec_simulated_model_release(&made->model);
    moec_recording_release(&made->recording);
    moec_replay_release(&made->replay);
}

static struct moec_tiers_result run_with(const struct made *made, enum moec_tiers_mode mode, uint32_t n_pool,
                                         uint32_t n_buffer)
{
    const struct moec_simulated_tiers_setup setup = {
        .recording = &made->recording,
        .model = &made->model,
        .device = &made->device,
        .gpu = &made->gpu,
        .mode = mode,
        .room = {.pool_bytes = (uint64_t)n_pool * 64, .buffer_bytes = (uint64_t)n_buffer * 64},
        .evict.policy = &moec_evict_lru,
        .preload.predictor = &moec_predict_none};
    struct moec_tiers_result result;
    assert_int_equal(moec_simulated_tiers(&setup, &result, NULL), MOEC_OK);
    return result;
}

/* Of two tokens the longer and the shorter. */
static void expect_times(const struct moec_tiers_result *result, double longer, double shorter)
{
    assert_float_equal(result->tpot_ns_p95, longer, 1e-3);
    assert_float_equal(result->tpot_ns_median, shorter, 1e-3);
    assert_float_equal(result->tpot_ns_mean, (longer + shorter) / 2, 1e-3);
}

static void test_simulated_tiers__a_device_is_what_was_described(void **state)
{
    (void)state;
    struct made made;
    make(&made, 2);
    assert_float_equal(made.gpu.gap_ns, 50, 1e-9); /* (230 - 2 x 2 x 20) / 3 */
    assert_float_equal(made.gpu.copy_ns[7], 30, 1e-9);
    assert_float_equal(made.gpu.compute_ns[7], 20, 1e-9);
    /* Experts that are launched together take no more than the token: 40 for 80. */
    const struct moec_gpu_description quick = {.name = "a GPU",
                                               .token_ns = 40,
                                               .n_copies = 1,
                                               .copies = {{true, true, 64, 30}},
                                               .n_experts = 1,
                                               .experts = {{4, 64, 20}}};
    struct moec_simulated_gpu gpu;
    assert_int_equal(moec_simulated_gpu_make(&quick, &made.model, NULL, &gpu, NULL), MOEC_OK);
    assert_float_equal(gpu.compute_ns[0], 10, 1e-9);
    assert_float_equal(gpu.gap_ns, 0, 1e-9);
    moec_simulated_gpu_release(&gpu);
    struct moec_error err = {0};
    const struct moec_gpu_description none = {0};
    assert_status(moec_simulated_gpu_make(&none, &made.model, NULL, &gpu, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "--device cuda");
    release(&made);
}

/* The first token: layer 0 answers at 50, copies land at 80 and 110, experts end at 100 and 130; layer 1
 * answers at 180 and ends at 260, the token at 310. The second one hits: 50 + 40 + 50 + 40 + 50. */
static void test_simulated_tiers__what_is_missed_is_copied(void **state)
{
    (void)state;
    struct made made;
    make(&made, 2);
    struct moec_tiers_result result = run_with(&made, MOEC_TIERS_CACHE, 8, 8);
    expect_times(&result, 310, 230);
    assert_int_equal(result.decode.asked, 8);
    assert_int_equal(result.decode.hits, 4);
    assert_int_equal(result.decode.misses, 4);
    assert_int_equal(result.decode.buffer_hits, 4);
    assert_int_equal(result.decode.copied_bytes, 4 * 64);
    assert_int_equal(result.decode.read_bytes, 0);
    assert_float_equal(result.decode.stall_ns, 2 * (30 + 10), 1e-9);
    assert_float_equal(result.floor_ns, 230, 1e-9);
    result = run_with(&made, MOEC_TIERS_ON_DEMAND, 8, 8);
    expect_times(&result, 310, 310);
    assert_int_equal(result.decode.misses, 8);
    assert_int_equal(result.decode.copied_bytes, 8 * 64);
    result = run_with(&made, MOEC_TIERS_RESIDENT, 8, 8);
    expect_times(&result, 230, 230);
    assert_int_equal(result.decode.hits, 8);
    release(&made);
}

/* A buffer of two records begins empty: layer 0 answers at 50, its reads are there at 160 and 260, checked at
 * 165 and 265, copied at 195 and 295, computed at 215 and 315; layer 1 answers at 365, ends at 630, the token
 * at 680. */
static void test_simulated_tiers__storage_is_behind_the_buffer(void **state)
{
    (void)state;
    struct made made;
    make(&made, 2);
    const struct moec_tiers_result result = run_with(&made, MOEC_TIERS_CACHE, 8, 2);
    expect_times(&result, 680, 230);
    assert_int_equal(result.decode.buffer_hits, 0);
    assert_int_equal(result.decode.read_bytes, 4 * 64);
    assert_float_equal(result.decode.stall_ns, 2 * (145 + 80), 1e-9);
    release(&made);
}

/* Layer 0 answers at 50: a copy would be done with the first expert at 100, the processor at 110; with the
 * second one the processor at 110, a copy at 130. So the layer ends at 110, and 5 for the answer; the token
 * at 280. The next one finds the first and copies the second: 250. */
static void test_simulated_tiers__the_processor_helps_where_it_is_sooner(void **state)
{
    (void)state;
    struct made made;
    make(&made, 2);
    const struct moec_tiers_result result = run_with(&made, MOEC_TIERS_COOPERATIVE, 8, 8);
    expect_times(&result, 280, 250);
    assert_int_equal(result.decode.computed_there, 2);
    assert_int_equal(result.decode.copied_bytes, 4 * 64);
    release(&made);
}

/* Layer 0 answers at 50, copies until 110, ends at 130; layer 1's four follow, and begin at 110, 140 and 170
 * before it answers at 180: the first is a hit, the last begins then, behind the third, and lands at 230. The
 * layer ends at 250, the token at 300. Meanwhile layer 0's four are copied, from 230 to 350, when it answers:
 * two hits; of layer 1, which answers at 440, the last one lands at 470: it ends at 490, the token at 540. */
static void test_simulated_tiers__whole_layers_are_copied_ahead(void **state)
{
    (void)state;
    struct made made;
    make(&made, 2);
    const struct moec_tiers_result result = run_with(&made, MOEC_TIERS_LAYER_WISE, 8, 8);
    expect_times(&result, 300, 240);
    assert_int_equal(result.decode.prefetches, 12);
    assert_int_equal(result.decode.useful, 6);
    assert_int_equal(result.decode.hits, 4);
    assert_int_equal(result.decode.late, 2);
    assert_int_equal(result.decode.copied_bytes, 14 * 64);
    release(&made);
}

/* The pool decides as a buffer of its size does that nothing stands before, and the buffer as one that hears
 * of its misses alone. */
static void test_simulated_tiers__a_pool_hits_what_a_buffer_of_its_size_hits(void **state)
{
    (void)state;
    struct made made;
    static const struct moec_recording no_layers;
    synthetic_steps(5, 16, 3, 0, 60, &made.replay);
    synthetic_choices(9, &made.replay);
    synthetic_recording(&made.replay, &made.recording);
    synthetic_model(&made.recording, NULL, &made.model);
    assert_int_equal(moec_simulated_device_make(&(struct moec_simulated_hardware){0}, &no_layers, &made.model,
                                                &made.device, NULL),
                     MOEC_OK);
    const struct moec_gpu_description gpu = {.name = "a GPU",
                                             .n_copies = 1,
                                             .copies = {{true, true, 64, 30}},
                                             .n_experts = 1,
                                             .experts = {{4, 64, 20}}};
    assert_int_equal(moec_simulated_gpu_make(&gpu, &made.model, NULL, &made.gpu, NULL), MOEC_OK);
    for (uint32_t n = 1; n <= 80; n += 13) {
        const struct moec_simulated_setup alone = {.recording = &made.recording,
                                                   .model = &made.model,
                                                   .device = &made.device,
                                                   .buffer = {.capacity_bytes = n * 64, .is_cold = true},
                                                   .evict.policy = &moec_evict_lru,
                                                   .preload.predictor = &moec_predict_none};
        struct moec_simulated_result expected;
        assert_int_equal(moec_simulated_run(&alone, &expected, NULL, NULL), MOEC_OK);
        for (uint32_t n_buffer = 5; n_buffer <= 80; n_buffer += 25) {
            const struct moec_tiers_result result = run_with(&made, MOEC_TIERS_CACHE, n, n_buffer);
            if (n_buffer == 80 && n >= 3) {
                assert_int_equal(result.decode.misses, expected.decode.misses);
                assert_int_equal(result.decode.buffer_hits, result.decode.misses);
            }
            assert_int_equal(result.decode.hits + result.decode.late + result.decode.misses,
                             result.decode.asked);
            assert_int_equal(result.decode.copied_bytes, result.decode.misses * 64);
            assert_int_equal(result.decode.read_bytes,
                             (result.decode.misses - result.decode.buffer_hits) * 64);
            assert_true(result.tpot_ns_mean >= result.floor_ns - 1e-6);
        }
    }
    release(&made);
}

static void test_simulated_tiers__modes_have_names(void **state)
{
    (void)state;
    struct moec_error err = {0};
    enum moec_tiers_mode found = MOEC_TIERS_MODES;
    for (int mode = 0; mode < MOEC_TIERS_MODES; mode++) {
        assert_status(moec_tiers_mode_find(moec_tiers_mode_name((enum moec_tiers_mode)mode), &found, &err),
                      MOEC_OK, err);
        assert_int_equal(found, mode);
        assert_true(moec_tiers_mode_words(found)[0] != '\0');
    }
    assert_status(moec_tiers_mode_find("magic", &found, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "'magic'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulated_tiers__a_device_is_what_was_described),
        cmocka_unit_test(test_simulated_tiers__what_is_missed_is_copied),
        cmocka_unit_test(test_simulated_tiers__storage_is_behind_the_buffer),
        cmocka_unit_test(test_simulated_tiers__the_processor_helps_where_it_is_sooner),
        cmocka_unit_test(test_simulated_tiers__whole_layers_are_copied_ahead),
        cmocka_unit_test(test_simulated_tiers__a_pool_hits_what_a_buffer_of_its_size_hits),
        cmocka_unit_test(test_simulated_tiers__modes_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
