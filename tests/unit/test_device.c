#include "tests/unit/temporary.h"

#include "formats/trace/device_description.h"

static struct moec_device sample(bool is_emulated)
{
    struct moec_device device = {.processor = "a processor",
                                 .instruction_set = "avx2",
                                 .n_threads = 2,
                                 .bundle = "quill.moec",
                                 .n_expert_widths = 2,
                                 .experts = {{2, 1000, 3000, 100}, {8, 4000, 9000, 400}},
                                 .embed_ns = 500,
                                 .head_ns = 70000,
                                 .token_ns = 600000,
                                 .token_position = 40,
                                 .products_ns = is_emulated ? 510000 : 0,
                                 .check_ns_per_byte = 0.125,
                                 .move_ns_per_byte = 0.25,
                                 .preload_ns = 77,
                                 .decide_ns = is_emulated ? 0 : 88,
                                 .n_products = is_emulated ? 0 : 2,
                                 .n_waits = 2,
                                 .predict_ns = 99,
                                 .waits = {{1000, 200, 30, 250}, {5000, 400, 0, 400}},
                                 .n_layer = 2};
    memset(device.model_sha256, 'a', 64);
    device.layers = calloc(2, sizeof *device.layers);
    assert_non_null(device.layers);
    device.layers[0] = (struct moec_device_layer){.attention_ns = 11, .mlp_ns = 12};
    device.layers[1] = (struct moec_device_layer){.is_moe = true,
                                                  .attention_ns = 21,
                                                  .attention_ns_per_position = 1.5,
                                                  .router_ns = 22,
                                                  .mlp_ns = 23,
                                                  .shared_ns = 4,
                                                  .experts_ns = is_emulated ? 0 : 17};
    if (is_emulated) {
        device.storage = (struct moec_device_storage){.is_emulated = true,
                                                      .bytes_per_second = 550000000,
                                                      .latency_ns = 80000,
                                                      .is_direct_faster = true};
        device.gpu = (struct moec_gpu_description){
            .name = "a GPU",
            .memory_bytes = 80000000000,
            .launch_ns = 2000,
            .answer_ns = 9000,
            .token_ns = 400000,
            .ns_per_position = 0.5,
            .n_copies = 3,
            .n_products = 1,
            .n_gathers = 1,
            .n_experts = 2,
            .copies = {{true, true, 4096, 900}, {true, true, 65536, 4000}, {false, false, 4096, 1100}},
            .products = {{"int4 g64", 4, 14336, 4096, 31000000, 70}},
            .gathers = {{256, 8000000, 400}},
            .experts = {{2, 1000, 3000}, {8, 4000, 9000}}};
    } else {
        device.products[0] = (struct moec_device_product){"int2 shift channel", false, 96, 128, 3264, 70};
        device.products[1] = (struct moec_device_product){"bf16", true, 96, 128, 24576, 90};
        device.storage.n_reads = 2;
        device.storage.reads = calloc(2, sizeof *device.storage.reads);
        assert_non_null(device.storage.reads);
        device.storage.reads[0] = (struct moec_device_read){true, 1, 4000, 90, 95, 1000000};
        device.storage.reads[1] = (struct moec_device_read){false, 32, 1000, 80, 80, 1};
    }
    (void)snprintf(device.storage.description, sizeof device.storage.description, "direct through io_uring");
    return device;
}

static char *text_of(const struct moec_device *device)
{
    struct moec_error err = {0};
    char *text = NULL;
    assert_status(moec_device_write(device, &text, &err), MOEC_OK, err);
    return text;
}

static void test_device__comes_back_as_it_was_written(void **state)
{
    (void)state;
    for (int emulated = 0; emulated < 2; emulated++) {
        struct moec_device device = sample(emulated != 0), back;
        struct moec_error err = {0};
        char *text = text_of(&device);
        assert_status(moec_device_parse(text, strlen(text), "d.json", &back, &err), MOEC_OK, err);
        assert_string_equal(back.processor, device.processor);
        assert_string_equal(back.model_sha256, device.model_sha256);
        assert_int_equal(back.n_threads, 2);
        assert_int_equal(back.storage.is_emulated, emulated);
        assert_int_equal(back.storage.bytes_per_second, device.storage.bytes_per_second);
        assert_int_equal(back.storage.latency_ns, device.storage.latency_ns);
        assert_int_equal(back.storage.is_direct_faster, device.storage.is_direct_faster);
        assert_string_equal(back.storage.description, device.storage.description);
        assert_int_equal(back.storage.n_reads, device.storage.n_reads);
        for (uint32_t i = 0; i < back.storage.n_reads; i++) {
            const struct moec_device_read *a = &device.storage.reads[i], *b = &back.storage.reads[i];
            assert_true(a->is_direct == b->is_direct && a->depth == b->depth &&
                        a->record_bytes == b->record_bytes && a->latency_ns_median == b->latency_ns_median &&
                        a->latency_ns_p95 == b->latency_ns_p95 && a->bytes_per_second == b->bytes_per_second);
        }
        assert_int_equal(back.n_expert_widths, 2);
        for (uint32_t i = 0; i < 2; i++) {
            const struct moec_device_expert *a = &device.experts[i], *b = &back.experts[i];
            assert_true(a->bits == b->bits && a->record_bytes == b->record_bytes &&
                        a->compute_ns == b->compute_ns && a->check_ns == b->check_ns);
        }
        assert_int_equal(back.n_layer, 2);
        for (uint32_t i = 0; i < 2; i++) {
            const struct moec_device_layer *a = &device.layers[i], *b = &back.layers[i];
            assert_true(a->is_moe == b->is_moe && a->attention_ns == b->attention_ns &&
                        a->attention_ns_per_position == b->attention_ns_per_position &&
                        a->router_ns == b->router_ns && a->mlp_ns == b->mlp_ns &&
                        a->shared_ns == b->shared_ns && a->experts_ns == b->experts_ns);
        }
        assert_true(back.embed_ns == 500 && back.head_ns == 70000 && back.token_ns == 600000 &&
                    back.token_position == 40 && back.products_ns == (emulated ? 510000 : 0) &&
                    back.check_ns_per_byte == 0.125 && back.move_ns_per_byte == 0.25 &&
                    back.preload_ns == 77 && back.decide_ns == device.decide_ns && back.predict_ns == 99);
        assert_int_equal(back.n_products, device.n_products);
        assert_memory_equal(back.products, device.products, sizeof back.products);
        assert_int_equal(back.n_waits, 2);
        assert_memory_equal(back.waits, device.waits, sizeof back.waits);
        assert_string_equal(back.gpu.name, emulated ? "a GPU" : "");
        assert_true(back.gpu.memory_bytes == device.gpu.memory_bytes &&
                    back.gpu.launch_ns == device.gpu.launch_ns &&
                    back.gpu.answer_ns == device.gpu.answer_ns && back.gpu.token_ns == device.gpu.token_ns &&
                    back.gpu.ns_per_position == device.gpu.ns_per_position);
        assert_int_equal(back.gpu.n_copies, emulated ? 3 : 0);
        for (uint32_t i = 0; i < back.gpu.n_copies; i++) {
            const struct moec_gpu_copy_time *a = &device.gpu.copies[i], *b = &back.gpu.copies[i];
            assert_true(a->is_to_device == b->is_to_device && a->is_pinned == b->is_pinned &&
                        a->n_bytes == b->n_bytes && a->ns == b->ns);
        }
        assert_int_equal(back.gpu.n_products, emulated ? 1 : 0);
        assert_memory_equal(back.gpu.products, device.gpu.products, sizeof back.gpu.products);
        assert_int_equal(back.gpu.n_gathers, emulated ? 1 : 0);
        assert_memory_equal(back.gpu.gathers, device.gpu.gathers, sizeof back.gpu.gathers);
        assert_int_equal(back.gpu.n_experts, emulated ? 2 : 0);
        assert_true(back.gpu.experts[1].bits == device.gpu.experts[1].bits &&
                    back.gpu.experts[1].record_bytes == device.gpu.experts[1].record_bytes &&
                    back.gpu.experts[1].compute_ns == device.gpu.experts[1].compute_ns);
        free(text);
        moec_device_release(&device);
        moec_device_release(&back);
        moec_device_release(&back);
    }
}

/* The text with the first `from` replaced by `to`, owned by the caller. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    char *out = NULL;
    assert_non_null(at);
    assert_true(asprintf(&out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    return out;
}

static void test_device__what_cannot_be_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        enum moec_status status;
        const char *message;
    } cases[] = {
        {"\"stall_ns\": 5000", "\"stall_ns\": 1000", MOEC_ERR_FORMAT, "stall_ns"},
        {"\"lone_ns\": 400", "\"lone_ns\": 399", MOEC_ERR_FORMAT, "lone_ns"},
        {"\"moec device\"", "\"moec profile\"", MOEC_ERR_FORMAT, "expected a 'moec device'"},
        {"\"version\": 1", "\"version\": 2", MOEC_ERR_UNSUPPORTED, "version 2"},
        {"\"threads\": 2", "\"threads\": 0", MOEC_ERR_FORMAT, "threads"},
        {"\"bundle\": \"quill.moec\",", "", MOEC_ERR_FORMAT, "bundle"},
        {"aaaaaaaa", "AAAAAAAA", MOEC_ERR_FORMAT, "64 hex digits"},
        {"aaaaaaaa", "aaaaaaaaa", MOEC_ERR_LIMIT, "model_sha256"},
        {"\"io\": \"direct\"", "\"io\": \"mmap\"", MOEC_ERR_FORMAT, "direct or cached"},
        {"\"cached\",\n        \"record_bytes\"", "\"direct\",\n        \"record_bytes\"", MOEC_ERR_FORMAT,
         "no entry for the storage's own 'io'"},
        {"\"latency_ns_p95\": 95", "\"latency_ns_p95\": 89", MOEC_ERR_FORMAT, "'reads'[0]"},
        {"\"depth\": 32", "\"depth\": 0", MOEC_ERR_FORMAT, "'reads'[1]"},
        {"\"record_bytes\": 4000", "\"record_bytes\": -1", MOEC_ERR_FORMAT, "record_bytes"},
        {"\"bits\": 8", "\"bits\": 2", MOEC_ERR_FORMAT, "'experts'[1]"},
        {"\"attention_ns_per_position\": 1.5", "\"attention_ns_per_position\": -1", MOEC_ERR_FORMAT,
         "'layers'[1]"},
        {"\"head_ns\": 70000", "\"head_ns\": 3600000000001", MOEC_ERR_FORMAT, "head_ns"},
        {"\"emulated\": false", "\"emulated\": true", MOEC_ERR_FORMAT, "bytes_per_second"},
        {"\"layers\": [", "\"layers\": [3, ", MOEC_ERR_FORMAT, "an object"},
        {"\"layers\"", "\"sheets\"", MOEC_ERR_FORMAT, "layers"},
        {"\"reads\"", "\"writes\"", MOEC_ERR_FORMAT, "reads"},
        {"{", "{{", MOEC_ERR_FORMAT, "d.json"},
    };
    struct moec_device device = sample(false);
    char *text = text_of(&device);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_error err = {0};
        struct moec_device back;
        char *bad = replaced(text, cases[i].from, cases[i].to);
        assert_status(moec_device_parse(bad, strlen(bad), "d.json", &back, &err), cases[i].status, err);
        assert_message(err, cases[i].message);
        assert_null(back.layers);
        free(bad);
    }
    free(text);
    moec_device_release(&device);
}

static void test_device__says_what_a_byte_of_an_expert_takes(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_device_expert_costs costs = {0};
    struct moec_device device = sample(true);
    const double cpu_ns = (double)device.experts[0].compute_ns + (double)device.experts[1].compute_ns,
                 cpu_bytes = (double)device.experts[0].record_bytes + (double)device.experts[1].record_bytes;
    assert_int_equal(device.n_expert_widths, 2);
    assert_status(moec_device_expert_costs_of(&device, "d.json", &costs, &err), MOEC_OK, err);
    assert_true(costs.cpu_byte_ns == cpu_ns / cpu_bytes);
    assert_true(costs.gpu_byte_ns == 12000.0 / 5000);
    const double copies_ns =
        moec_gpu_copy_ns(&device.gpu, true, 1000) + moec_gpu_copy_ns(&device.gpu, true, 4000);
    assert_true(costs.copy_byte_ns == copies_ns / 5000);
    device.gpu.n_copies = 0;
    assert_status(moec_device_expert_costs_of(&device, "d.json", &costs, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "'d.json' has no measurement of copies");
    moec_device_release(&device);
    device = sample(false);
    err = (struct moec_error){0};
    assert_status(moec_device_expert_costs_of(&device, "d.json", &costs, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "'d.json' has no GPU");
    moec_device_release(&device);
}

/* In the time of its only layer with experts. */
static void test_device__says_how_many_experts_are_read_ahead(void **state)
{
    (void)state;
    struct moec_device device = sample(false);
    device.layers[1].mlp_ns = 1000 - 43;
    assert_int_equal(moec_device_records_ahead(&device, 4000), 12); /* cached, as the runtime reads */
    device.storage.is_direct_faster = true;
    assert_int_equal(moec_device_records_ahead(&device, 1000), 11);
    device.storage.reads[0].latency_ns_median = 1001;
    assert_int_equal(moec_device_records_ahead(&device, 4000), 0);
    moec_device_release(&device);
    device = sample(true);
    device.layers[1].mlp_ns = 1000000 - 43;
    /* 80 us and 20 us of 11000 bytes at 550 MB/s. */
    assert_int_equal(moec_device_records_ahead(&device, 11000), 10);
    device.layers[1].is_moe = false;
    assert_int_equal(moec_device_records_ahead(&device, 11000), 0);
    moec_device_release(&device);
}

static void test_device__a_gpu_that_cannot_be_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        enum moec_status status;
        const char *message;
    } cases[] = {
        {"\"gpu\": {\n    \"version\": 1", "\"gpu\": {\n    \"version\": 2", MOEC_ERR_UNSUPPORTED,
         "'gpu' of 'd.json' has version 2"},
        {"\"a GPU\"", "\"\"", MOEC_ERR_FORMAT, "name"},
        {"\"memory_bytes\": 80000000000", "\"memory_bytes\": 0", MOEC_ERR_FORMAT, "memory_bytes"},
        {"\"ns_per_position\": 0.5", "\"ns_per_position\": -1", MOEC_ERR_FORMAT, "ns_per_position"},
        {"\"bytes\": 65536", "\"bytes\": 4096", MOEC_ERR_FORMAT, "'copies'[1]"},
        {"\"piece_bytes\": 256", "\"piece_bytes\": 0", MOEC_ERR_FORMAT, "'gathers'[0]"},
        {"\"rows\": 14336", "\"rows\": 0", MOEC_ERR_FORMAT, "'products'[0]"},
        {"\"copies\"", "\"moves\"", MOEC_ERR_FORMAT, "copies"},
        {"\"gpu\": {", "\"gpu\": 3, \"more\": {", MOEC_ERR_FORMAT, "gpu"},
    };
    struct moec_device device = sample(true);
    char *text = text_of(&device);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_error err = {0};
        struct moec_device back;
        char *bad = replaced(text, cases[i].from, cases[i].to);
        assert_status(moec_device_parse(bad, strlen(bad), "d.json", &back, &err), cases[i].status, err);
        assert_message(err, cases[i].message);
        free(bad);
    }
    free(text);
    moec_device_release(&device);
}

static void test_device__unknown_members_are_left_alone(void **state)
{
    (void)state;
    struct moec_device device = sample(true), back;
    struct moec_error err = {0};
    char *text = text_of(&device), *more = replaced(text, "{", "{\"note\": [\"a phone\"],");
    assert_status(moec_device_parse(more, strlen(more), "d.json", &back, &err), MOEC_OK, err);
    moec_device_release(&back);
    free(text);
    free(more);
    moec_device_release(&device);
}

/* Descriptions of earlier versions have no costs of predictions and lone waits. */
static void test_device__what_was_not_measured_costs_nothing_more(void **state)
{
    (void)state;
    struct moec_device device = sample(true), back;
    struct moec_error err = {0};
    char *text = text_of(&device), *without = replaced(text, "predict_ns", "-"),
         *old = replaced(without, "lone_ns", "-");
    assert_status(moec_device_parse(old, strlen(old), "d.json", &back, &err), MOEC_OK, err);
    assert_int_equal(back.predict_ns, 0);
    assert_int_equal(back.waits[0].lone_ns, back.waits[0].first_ns);
    moec_device_release(&back);
    free(old);
    free(without);
    free(text);
    moec_device_release(&device);
}

static void test_device__is_loaded_from_a_file(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "d.json");
    struct moec_device device = sample(false), back;
    struct moec_error err = {0};
    char *text = text_of(&device);
    assert_status(moec_device_load(path, &back, &err), MOEC_ERR_NOT_FOUND, err);
    temporary_write(folder, "d.json", text, strlen(text));
    err = (struct moec_error){0};
    assert_status(moec_device_load(path, &back, &err), MOEC_OK, err);
    assert_int_equal(back.n_layer, 2);
    moec_device_release(&back);
    temporary_write(folder, "d.json", text, strlen(text) / 2);
    assert_status(moec_device_load(path, &back, &err), MOEC_ERR_FORMAT, err);
    assert_message(err, path);
    free(text);
    free(path);
    moec_device_release(&device);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device__comes_back_as_it_was_written),
        cmocka_unit_test(test_device__what_cannot_be_is_refused),
        cmocka_unit_test(test_device__says_what_a_byte_of_an_expert_takes),
        cmocka_unit_test(test_device__says_how_many_experts_are_read_ahead),
        cmocka_unit_test(test_device__a_gpu_that_cannot_be_is_refused),
        cmocka_unit_test(test_device__unknown_members_are_left_alone),
        cmocka_unit_test(test_device__what_was_not_measured_costs_nothing_more),
        cmocka_unit_test(test_device__is_loaded_from_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
