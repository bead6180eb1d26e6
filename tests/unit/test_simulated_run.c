/* Simulated runs: times worked out by hand, and what holds for every policy, buffer and clock. */
#include "tests/unit/temporary.h"

#include "profiler/simulate/simulated_run.h"
#include "tests/unit/synthetic_recording.h"

#include <math.h>

/* Every read 100 ns after a latency of 10, a check 5, an expert 20, the shared one 8, 50 before an answer, 30
 * at the end; times `slow`. */
static void make_device(const struct moec_simulated_model *model, double slow,
                        struct moec_simulated_device *device)
{
    static const struct moec_recording no_layers;
    assert_int_equal(
        moec_simulated_device_make(&(struct moec_simulated_hardware){0}, &no_layers, model, device, NULL),
        MOEC_OK);
    for (uint32_t key = 0; key < model->shape.n_layer * model->shape.n_expert; key++) {
        device->read_ns[key] = 100 * slow;
        device->check_ns[key] = 5 * slow;
        device->compute_ns[key] = 20;
    }
    for (uint32_t s = 0; s < model->shape.n_layer; s++) {
        device->gap_ns[s] = 50;
        device->shared_ns[s] = 8;
    }
    device->latency_ns = 10 * slow;
    device->last_ns = 30;
}

struct made {
    struct moec_replay replay;
    struct moec_recording recording;
    struct moec_simulated_model model;
    struct moec_simulated_device device;
};

static void release(struct made *made)
{
    moec_simulated_device_release(&made->device);
    moec_simulated_model_release(&made->model);
    moec_recording_release(&made->recording);
    moec_replay_release(&made->replay);
}

static struct moec_simulated_setup setup_of(const struct made *made, uint64_t capacity)
{
    return (struct moec_simulated_setup){.recording = &made->recording,
                                         .model = &made->model,
                                         .device = &made->device,
                                         .buffer.capacity_bytes = capacity,
                                         .evict.policy = &moec_evict_lru,
                                         .preload.predictor = &moec_predict_none};
}

/* Two layers of two choices, an empty buffer with room for all:
 *   layer 0 answers at 50, its reads are there at 50 + 10 + 100 = 160 and 260, checked at 165 and 265; shared
 *   and first expert end at 193, the second at 285; layer 1 answers at 335 and ends at 335 + 235 = 570; the
 *   token at 600. The next one hits everywhere: 2 (50 + 8 + 40) + 30 = 226. */
static void test_simulated_run__times_by_hand(void **state)
{
    (void)state;
    struct made made;
    struct moec_simulated_result result;
    struct moec_simulated_counts layers[2];
    synthetic_steps(2, 4, 2, 0, 2, &made.replay);
    for (uint32_t i = 0; i < 4; i++)
        made.replay.experts[2 * i] = 3;
    synthetic_recording(&made.replay, &made.recording);
    synthetic_model(&made.recording, NULL, &made.model);
    make_device(&made.model, 1, &made.device);
    struct moec_simulated_setup setup = setup_of(&made, 8 * 64);
    setup.buffer.is_cold = true;
    assert_int_equal(moec_simulated_run(&setup, &result, layers, NULL), MOEC_OK);
    assert_int_equal(result.decode.asked, 8);
    assert_int_equal(result.decode.misses, 4);
    assert_int_equal(result.decode.hits, 4);
    assert_int_equal(result.decode.read_bytes, 4 * 64);
    assert_float_equal(result.tpot_ns_p95, 600, 1e-9);
    assert_float_equal(result.tpot_ns_median, 226, 1e-9);
    assert_float_equal(result.decode.stall_ns, 2 * (115 + 72), 1e-9);
    assert_float_equal(result.decode.compute_ns, 2 * (2 * 98 + 30), 1e-9);
    assert_int_equal(layers[0].misses, 2);
    assert_int_equal(layers[1].hits, 2);
    assert_true(isnan(result.lifetime_tokens));
    release(&made);
}

/* The same with waits that cost: in each layer 110 at first, which is over the longest that was measured, and
 * 40, and so 27 for the second, of which 2.7. */
static void test_simulated_run__waits_cost(void **state)
{
    (void)state;
    struct made made;
    struct moec_simulated_result result;
    synthetic_steps(2, 4, 2, 0, 2, &made.replay);
    for (uint32_t i = 0; i < 4; i++)
        made.replay.experts[2 * i] = 3;
    synthetic_recording(&made.replay, &made.recording);
    synthetic_model(&made.recording, NULL, &made.model);
    make_device(&made.model, 1, &made.device);
    assert_float_equal(moec_simulated_wait_cost(&made.device, 50, MOEC_WAIT_FIRST), 0, 0);
    made.device.waits[0] = (struct moec_device_wait){100, 40, 10, 40};
    made.device.n_waits = 1;
    struct moec_simulated_setup setup = setup_of(&made, 8 * 64);
    setup.buffer.is_cold = true;
    assert_int_equal(moec_simulated_run(&setup, &result, NULL, NULL), MOEC_OK);
    assert_float_equal(result.tpot_ns_p95, 605.4f, 1e-3f);
    assert_float_equal(result.tpot_ns_median, 226, 1e-9);
    assert_float_equal(result.decode.stall_ns, 2 * (115 + 32), 1e-9);
    assert_float_equal(result.decode.compute_ns, 537.4f, 1e-3f);
    made.device.waits[0].lone_ns = 60; /* the last layer's */
    assert_int_equal(moec_simulated_run(&setup, &result, NULL, NULL), MOEC_OK);
    assert_float_equal(result.tpot_ns_p95, 625.4f, 1e-3f);
    assert_float_equal(result.decode.compute_ns, 557.4f, 1e-3f);
    made.device.waits[1] = (struct moec_device_wait){1000, 400, 10, 600};
    made.device.n_waits = 2;
    assert_float_equal(moec_simulated_wait_cost(&made.device, 25, MOEC_WAIT_FIRST), 10, 1e-9);
    assert_float_equal(moec_simulated_wait_cost(&made.device, 550, MOEC_WAIT_FIRST), 220, 1e-9);
    assert_float_equal(moec_simulated_wait_cost(&made.device, 550, MOEC_WAIT_NEXT), 10, 1e-9);
    assert_float_equal(moec_simulated_wait_cost(&made.device, 550, MOEC_WAIT_LONE), 330, 1e-9);
    assert_float_equal(moec_simulated_wait_cost(&made.device, 5000, MOEC_WAIT_FIRST), 400, 1e-9);
    release(&made);
}

/* In the second token the first layer alone waits: 287.7 until its experts are done, 98 in the other layer and
 * 20 for the lone wait, and 30. */
static void test_simulated_run__lone_waits_cost_more(void **state)
{
    (void)state;
    struct made made;
    struct moec_simulated_result result;
    struct moec_simulated_counts layers[2];
    synthetic_steps(2, 4, 2, 0, 2, &made.replay);
    for (uint32_t i = 0; i < 4; i++)
        made.replay.experts[2 * i] = 3;
    made.replay.experts[4] = 1;
    made.replay.experts[5] = 2;
    synthetic_recording(&made.replay, &made.recording);
    synthetic_model(&made.recording, NULL, &made.model);
    make_device(&made.model, 1, &made.device);
    made.device.waits[0] = (struct moec_device_wait){100, 40, 10, 60};
    made.device.n_waits = 1;
    struct moec_simulated_setup setup = setup_of(&made, 8 * 64);
    setup.buffer.is_cold = true;
    assert_int_equal(moec_simulated_run(&setup, &result, layers, NULL), MOEC_OK);
    assert_float_equal(result.tpot_ns_p95, 625.4f, 1e-3f);
    assert_float_equal(result.tpot_ns_median, 435.7f, 1e-3f);
    assert_float_equal(layers[0].compute_ns, 2 * (98 + 42.7f), 1e-3f);
    release(&made);
}

/* What the loader's thread reads takes time of computing, as often as it reads. */
static void test_simulated_run__reads_of_the_loader_cost(void **state)
{
    (void)state;
    struct moec_path_value frequency[2 * 4];
    const struct moec_path_table paths = {
        .n_layer = 2, .n_expert = 4, .top_k = 2, .n_value = 4, .frequency = frequency};
    for (uint16_t i = 0; i < 2 * 4; i++)
        frequency[i] =
            (struct moec_path_value){.expert = i % 4, .probability = (uint16_t)(50000 - 5000 * (i % 4))};
    struct made made;
    struct moec_simulated_result free_of_charge, result;
    synthetic_steps(2, 4, 2, 0, 20, &made.replay);
    synthetic_choices(1, &made.replay);
    synthetic_recording(&made.replay, &made.recording);
    synthetic_model(&made.recording, NULL, &made.model);
    made.model.paths = &paths;
    make_device(&made.model, 0.1, &made.device);
    struct moec_simulated_setup setup = setup_of(&made, 4 * 64);
    setup.preload.predictor = &moec_predict_frequency;
    setup.preload.count = 1;
    assert_int_equal(moec_simulated_run(&setup, &free_of_charge, NULL, NULL), MOEC_OK);
    made.device.preload_ns = 7;
    assert_int_equal(moec_simulated_run(&setup, &result, NULL, NULL), MOEC_OK);
    assert_true(result.decode.preloads > 0 && result.decode.preloads == free_of_charge.decode.preloads);
    const double more_ns = result.decode.compute_ns - free_of_charge.decode.compute_ns;
    assert_true(more_ns > 0 && more_ns <= 7 * (double)result.decode.preloads + 1e-6);
    release(&made);
}

/* Under one token's working set lru hits nothing, from there on everything. */
static void test_simulated_run__lru_falls_off_its_cliff(void **state)
{
    (void)state;
    struct made made;
    struct moec_simulated_result result;
    synthetic_steps(5, 8, 2, 0, 40, &made.replay);
    for (uint32_t i = 0; i < 40 * 5; i++)
        made.replay.experts[2 * i + 1] = 4;
    synthetic_recording(&made.replay, &made.recording);
    synthetic_model(&made.recording, NULL, &made.model);
    make_device(&made.model, 1, &made.device);
    assert_int_equal(made.model.slots.token_bytes, 10 * 64);
    struct moec_simulated_setup setup = setup_of(&made, 8 * 64);
    assert_int_equal(moec_simulated_run(&setup, &result, NULL, NULL), MOEC_OK);
    assert_int_equal(result.decode.hits, 0);
    assert_true(fabs(result.lifetime_tokens - 0.8) < 0.1);
    setup.buffer.capacity_bytes = 10 * 64;
    assert_int_equal(moec_simulated_run(&setup, &result, NULL, NULL), MOEC_OK);
    assert_int_equal(result.decode.misses, 10);
    release(&made);
}

static bool same_decisions(const struct moec_simulated_counts *a, const struct moec_simulated_counts *b)
{
    return a->asked == b->asked && a->hits + a->late == b->hits + b->late && a->misses == b->misses &&
           a->evictions == b->evictions;
}

static void check_counts(const struct moec_simulated_result *result, const struct moec_simulated_setup *setup)
{
    const struct moec_recording *recording = setup->recording;
    const struct moec_simulated_counts *prefill = &result->prefill, *decode = &result->decode;
    assert_int_equal(prefill->asked + decode->asked, recording->n_active);
    assert_int_equal(decode->hits + decode->late + decode->misses, decode->asked);
    assert_int_equal(prefill->hits + prefill->late + prefill->misses, prefill->asked);
    assert_true(prefill->useful + prefill->wasted + decode->useful + decode->wasted <=
                prefill->preloads + decode->preloads);
    if (setup->preload.predictor == &moec_predict_none) {
        assert_int_equal(prefill->preloads + decode->preloads, 0);
        assert_int_equal(decode->late, 0);
    }
}

/* Whatever the clock does, and also where a step needs more than the buffer holds. */
static void test_simulated_run__time_decides_nothing(void **state)
{
    (void)state;
    static const uint64_t slots[3 * 6] = {64, 128, 256, 64,  128, 256, 256, 64,  64,
                                          64, 64,  128, 128, 128, 64,  256, 256, 128};
    static const double clocks[] = {0, 0.1, 1, 10};
    struct moec_path_value frequency[3 * 6];
    const struct moec_path_table paths = {
        .n_layer = 3, .n_expert = 6, .top_k = 2, .n_value = 4, .frequency = frequency};
    for (uint16_t i = 0; i < 3 * 6; i++)
        frequency[i] =
            (struct moec_path_value){.expert = i % 6, .probability = (uint16_t)(50000 - 5000 * (i % 6))};
    for (uint64_t seed = 0; seed < 4; seed++)
        for (uint64_t capacity = 256; capacity <= 2048; capacity += 448)
            for (size_t p = 0; moec_evict_policies[p] != NULL; p++)
                for (uint32_t count = 0; count <= 2; count++) {
                    struct made made;
                    struct moec_simulated_result first = {0}, result;
                    synthetic_steps(3, 6, 2, 9, 60, &made.replay);
                    synthetic_choices(seed, &made.replay);
                    synthetic_recording(&made.replay, &made.recording);
                    synthetic_model(&made.recording, slots, &made.model);
                    made.model.paths = &paths;
                    struct moec_simulated_setup setup = setup_of(&made, capacity);
                    setup.evict.policy = moec_evict_policies[p];
                    setup.preload.predictor = count > 0 ? &moec_predict_frequency : &moec_predict_none;
                    setup.preload.count = count;
                    for (size_t c = 0; c < sizeof clocks / sizeof *clocks; c++) {
                        make_device(&made.model, clocks[c], &made.device);
                        assert_int_equal(moec_simulated_run(&setup, &result, NULL, NULL), MOEC_OK);
                        check_counts(&result, &setup);
                        if (c == 0)
                            first = result;
                        assert_true(same_decisions(&result.decode, &first.decode));
                        assert_true(same_decisions(&result.prefill, &first.prefill));
                        moec_simulated_device_release(&made.device);
                    }
                    release(&made);
                }
}

/* What comes before the first step that counts runs all the same. */
static void test_simulated_run__warming_up_does_not_count(void **state)
{
    (void)state;
    struct made made;
    struct moec_simulated_result all, first, rest;
    struct moec_simulated_counts layers[4];
    struct moec_recording *recording = &made.recording;
    synthetic_steps(4, 16, 3, 5, 60, &made.replay);
    synthetic_choices(7, &made.replay);
    synthetic_recording(&made.replay, recording);
    synthetic_model(recording, NULL, &made.model);
    make_device(&made.model, 1, &made.device);
    struct moec_simulated_setup setup = setup_of(&made, 20 * 64);
    const uint64_t n_step = recording->n_step, n_token = recording->counted.n_token,
                   n_decoded = recording->counted.n_decoded;
    assert_int_equal(moec_simulated_run(&setup, &all, layers, NULL), MOEC_OK);
    recording->n_step = 20;
    assert_int_equal(moec_simulated_run(&setup, &first, layers, NULL), MOEC_OK);
    recording->n_step = n_step;
    moec_recording_count_from(recording, 20);
    assert_int_equal(moec_simulated_run(&setup, &rest, layers, NULL), MOEC_OK);
    uint64_t n_asked = 0;
    for (uint32_t s = 0; s < 4; s++)
        n_asked += layers[s].asked;
    assert_int_equal(n_asked, rest.prefill.asked + rest.decode.asked);
    assert_int_equal(rest.decode.asked, all.decode.asked - first.decode.asked);
    assert_int_equal(rest.decode.misses, all.decode.misses - first.decode.misses);
    assert_int_equal(rest.decode.read_bytes, all.decode.read_bytes - first.decode.read_bytes);
    assert_true(fabs(rest.decode.stall_ns + first.decode.stall_ns - all.decode.stall_ns) < 1);
    assert_int_equal(rest.prefill.asked, 0);
    assert_true(recording->counted.n_token < n_token &&
                recording->counted.n_token == recording->counted.n_decoded);
    assert_true(recording->counted.n_decoded < n_decoded);
    const double n_first = (double)(n_decoded - recording->counted.n_decoded);
    assert_true(fabs(rest.tpot_ns_mean * (double)recording->counted.n_decoded + first.tpot_ns_mean * n_first -
                     all.tpot_ns_mean * (double)n_decoded) < 1);
    release(&made);
}

static void test_simulated_run__refusals(void **state)
{
    (void)state;
    struct made made;
    struct moec_error err = {0};
    struct moec_simulated_result result;
    synthetic_steps(2, 4, 2, 0, 2, &made.replay);
    synthetic_choices(1, &made.replay);
    synthetic_recording(&made.replay, &made.recording);
    synthetic_model(&made.recording, NULL, &made.model);
    make_device(&made.model, 1, &made.device);
    struct moec_simulated_setup setup = setup_of(&made, 63);
    assert_int_equal(moec_simulated_run(&setup, &result, NULL, &err), MOEC_ERR_BUDGET);
    setup = setup_of(&made, 64);
    setup.preload.predictor = &moec_predict_path;
    assert_int_equal(moec_simulated_run(&setup, &result, NULL, &err), MOEC_ERR_USAGE);
    setup.preload.predictor = &moec_predict_gate;
    assert_int_equal(moec_simulated_run(&setup, &result, NULL, &err), MOEC_ERR_USAGE);
    release(&made);
}

/* Two layers of four experts of two codecs, two of each; a layer was measured with experts that took 400 in all of
 * the 700 that are not the shared one's, or with such as took twice what there was. */
static void test_simulated_run__experts_take_what_their_codecs_take(void **state)
{
    (void)state;
    static const struct moec_config config = {.n_embd = 128, .n_ff_expert = 96, .mlp.plain = true};
    const struct moec_codec codecs[] = {{.dtype = MOEC_DTYPE_INT2, .group = 64}, {.dtype = MOEC_DTYPE_INT8}};
    struct moec_record_layout layouts[2];
    uint32_t layout_of[8];
    struct moec_device device = {.n_layer = 2, .n_products = 4, .decide_ns = 7};
    struct moec_recorded_logical logical = {0};
    struct made made;
    struct moec_error err = {0};
    synthetic_steps(2, 4, 2, 0, 2, &made.replay);
    synthetic_choices(1, &made.replay);
    synthetic_recording(&made.replay, &made.recording);
    synthetic_model(&made.recording, NULL, &made.model);
    for (uint32_t i = 0; i < 4; i++) { /* 100 and 20 of the first, 200 and 60 of the second */
        struct moec_device_product *product = &device.products[i];
        *product = (struct moec_device_product){
            .is_down = i % 2 > 0, .rows = 96, .columns = 128, .ns = (i % 2 > 0 ? 20 : 100) * (i / 2 + 1)};
        product->ns += i == 3 ? 20 : 0;
        char text[40];
        (void)snprintf(product->codec, sizeof product->codec, "%s", moec_codec_name(codecs[i / 2], text));
        layouts[i / 2] = moec_record_layout_make(&config, codecs[i / 2]);
    }
    for (uint32_t key = 0; key < 8; key++)
        layout_of[key] = key % 2;
    struct moec_device_layer layers[] = {
        {.is_moe = true, .mlp_ns = 800, .shared_ns = 100, .experts_ns = 400},
        {.is_moe = true, .mlp_ns = 300, .shared_ns = 100, .experts_ns = 400}};
    device.layers = layers;
    device.storage = (struct moec_device_storage){.is_emulated = true, .bytes_per_second = 1000};
    made.model.layouts.n = 2;
    made.model.layouts.all = layouts;
    made.model.layouts.of = layout_of;
    made.recording.known.logical = &logical;
    assert_status(moec_simulated_device_make(&(struct moec_simulated_hardware){.device = &device},
                                             &made.recording, &made.model, &made.device, &err),
                  MOEC_OK, err);
    for (uint32_t key = 0; key < 8; key++)
        assert_true(made.device.compute_ns[key] == (key % 2 == 0 ? 120 : 260) / (key < 4 ? 1.0 : 2.0));
    assert_true(made.device.shared_ns[0] == 400 && made.device.shared_ns[1] == 100);
    assert_true(made.device.gap_ns[0] == 7 && made.device.gap_ns[1] == 7); /* routes decide */
    made.recording.known.logical = NULL;
    made.model.layouts.n = 0;
    made.model.layouts.all = NULL;
    made.model.layouts.of = NULL;
    release(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulated_run__times_by_hand),
        cmocka_unit_test(test_simulated_run__waits_cost),
        cmocka_unit_test(test_simulated_run__lone_waits_cost_more),
        cmocka_unit_test(test_simulated_run__reads_of_the_loader_cost),
        cmocka_unit_test(test_simulated_run__lru_falls_off_its_cliff),
        cmocka_unit_test(test_simulated_run__time_decides_nothing),
        cmocka_unit_test(test_simulated_run__warming_up_does_not_count),
        cmocka_unit_test(test_simulated_run__refusals),
        cmocka_unit_test(test_simulated_run__experts_take_what_their_codecs_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
