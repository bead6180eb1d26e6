/* What is measured is a whole description, also where records stand closer than blocks of the device and memory holds
 * one expert of each layer. It compares times: runs alone. */
#include "tests/unit/temporary.h"

#include "profiler/device/device_measure.h"
#include "tests/unit/sample_bundle.h"

struct notes {
    uint32_t n_kept; /* that say how many experts are kept; others tell of this machine */
    bool is_cancelled;
};

static void take_note(void *context, const char *line)
{
    struct notes *notes = context;
    notes->n_kept += strstr(line, "1 of 6 experts") != NULL;
}

static enum moec_status take_progress(void *context, const char *phase, double done, double total)
{
    assert_true(phase[0] != '\0' && done >= 0 && done <= total);
    return ((const struct notes *)context)->is_cancelled ? MOEC_ERR_CANCELLED : MOEC_OK;
}

static void check_device(const struct moec_device *device)
{
    struct moec_error err = {0};
    struct moec_device back;
    char *text = NULL;
    assert_int_equal(device->n_layer, SAMPLE_LAYERS);
    assert_int_equal(device->n_threads, 1);
    assert_string_equal(device->instruction_set, "scalar");
    assert_true(device->n_expert_widths >= 2 && device->token_ns > 0 && device->head_ns > 0);
    assert_true(device->products_ns > 0 && device->products_ns < 4 * device->token_ns);
    for (uint32_t i = 0; i < device->n_layer; i++) {
        const struct moec_device_layer *layer = &device->layers[i];
        assert_int_equal(layer->is_moe, i != 1);
        assert_int_equal(layer->router_ns > 0, layer->is_moe);
        assert_true(layer->mlp_ns > 0);
    }
    assert_int_equal(device->n_waits, MOEC_DEVICE_WAITS);
    for (uint32_t i = 1; i < device->n_waits; i++)
        assert_true(device->waits[i - 1].stall_ns < device->waits[i].stall_ns);
    assert_true(device->move_ns_per_byte > 0);
    assert_status(moec_device_write(device, &text, &err), MOEC_OK, err);
    assert_status(moec_device_parse(text, strlen(text), "d.json", &back, &err), MOEC_OK, err);
    moec_device_release(&back);
    free(text);
}

static void test_device_measure__gives_a_whole_description(void **state)
{
    (void)state;
    struct sample sample;
    struct moec_error err = {0};
    struct moec_bundle *bundle = NULL;
    struct moec_device device;
    struct notes notes = {0};
    const struct moec_progress progress = {.report = take_progress, .note = take_note, .context = &notes};
    const struct moec_emulation storage = {.bytes_per_second = 50000000, .latency_ns = 7};
    struct moec_device_options options = {
        .n_threads = 1, .read_ns = 1000000, .compute_ns = 1000000, .experts_bytes = 1, .progress = &progress};
    char *folder = temporary_folder(), *path = temporary_path(folder, "sample.moec");
    sample_make(&sample, 6, 32, 16, 3);
    sample_write(&sample, path);
    assert_status(moec_bundle_open(path, &bundle, &err), MOEC_OK, err);
    assert_status(moec_kernels_find("scalar", &options.kernels, &err), MOEC_OK, err);

    assert_status(moec_device_measure(bundle, &options, &device, &err), MOEC_OK, err);
    check_device(&device);
    assert_int_equal(notes.n_kept, 1);
    uint32_t n_cached = 0;
    for (uint32_t i = 0; i < device.storage.n_reads; i++)
        n_cached += !device.storage.reads[i].is_direct;
    assert_true(n_cached > 0);
    moec_device_release(&device);

    options.emulation = &storage;
    options.experts_bytes = 0;
    assert_status(moec_device_measure(bundle, &options, &device, &err), MOEC_OK, err);
    check_device(&device);
    assert_int_equal(notes.n_kept, 1);
    assert_true(device.storage.is_emulated && device.storage.bytes_per_second == 50000000 &&
                device.storage.latency_ns == 7 && device.storage.n_reads == 0);
    moec_device_release(&device);

    notes.is_cancelled = true;
    assert_status(moec_device_measure(bundle, &options, &device, &err), MOEC_ERR_CANCELLED, err);
    moec_bundle_close(bundle);
    sample_release(&sample);
    free(path);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_measure__gives_a_whole_description),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
