/* Measuring a GPU runs whole on the stand-in, and gives a section that can be written, read and simulated
 * with; a device that fails leaves a message and nothing else. */
#include "tests/unit/fixture_bundle.h"

#include "formats/bundle/bundle.h"
#include "formats/trace/device_description.h"
#include "profiler/device/gpu_measure.h"
#include "profiler/device/gpu_speed.h"
#include "runtime/cuda/blocks/blocks.h"
#include "runtime/cuda/gpu_kernels.h"
#include "runtime/cuda/host/host_gpu.h"

#include <math.h>

static struct moec_host_gpu_faults faults; /* of the next device */

static struct moec_gpu_ops counting;
static void (*close_host)(struct moec_gpu *gpu);

/* Whatever was measured, nothing is left over. */
static void close_counted(struct moec_gpu *gpu)
{
    const struct moec_host_gpu_counts counts = moec_host_gpu_counts(gpu);
    assert_int_equal(counts.allocations + counts.pinned + counts.streams + counts.events, 0);
    close_host(gpu);
}

static enum moec_status open_stand_in(uint32_t number, struct moec_gpu **out, struct moec_error *err)
{
    moec_blocks_divert(moec_host_gpu_launch);
    MOEC_TRY(moec_host_gpu_open(number + 3, out, err));
    moec_host_gpu_set_faults(*out, &faults);
    counting = *(*out)->ops;
    close_host = counting.close;
    counting.close = close_counted;
    (*out)->ops = &counting;
    return MOEC_OK;
}

static const struct moec_gpu_kernels kernels = MOEC_GPU_KERNELS;
static const struct moec_gpu_entry entry = {MOEC_VERSION, open_stand_in, &kernels};

struct notes {
    uint32_t n;
    bool is_cancelled;
};

static enum moec_status take_progress(void *context, const char *phase, double done, double total)
{
    struct notes *notes = context;
    assert_true(phase[0] != '\0' && done >= 0 && done <= total);
    notes->n++;
    return notes->is_cancelled && notes->n > 3 ? MOEC_ERR_CANCELLED : MOEC_OK;
}

struct made {
    char *folder, *path;
    struct moec_bundle *bundle;
};

static struct made make_bundle(const char *family)
{
    struct made made = {.folder = temporary_folder()};
    char fixture[256];
    snprintf(fixture, sizeof fixture, "tests/fixtures/families/%s", family);
    made.path = temporary_path(made.folder, "model.moec");
    fixture_bundle_write(fixture, made.path, 16, true);
    MUST(moec_bundle_open(made.path, &made.bundle, &err));
    return made;
}

static void release(struct made *made)
{
    moec_bundle_close(made->bundle);
    temporary_remove(made->folder);
    free(made->path);
}

static struct moec_gpu_measure_options small(const struct moec_progress *progress)
{
    return (struct moec_gpu_measure_options){.entry = &entry,
                                             .n_threads = 1,
                                             .limit_ns = 1,
                                             .largest_bytes = 64 << 10,
                                             .cache_bytes = 1,
                                             .progress = progress};
}

static void check_section(const struct moec_gpu_description *gpu, const struct moec_bundle *bundle)
{
    assert_string_equal(gpu->name, "stand-in for tests");
    assert_true(gpu->memory_bytes > 0 && gpu->launch_ns > 0 && gpu->answer_ns > 0 && gpu->token_ns > 0);
    assert_int_equal(gpu->n_copies, 4 * 3); /* 4, 16 and 64 KiB */
    for (uint32_t i = 0; i < gpu->n_copies; i++)
        assert_int_equal(gpu->copies[i].n_bytes, 4096u << i % 3 * 2);
    assert_int_equal(gpu->n_products, 13);
    for (uint32_t i = 0; i < gpu->n_products; i++) {
        assert_int_equal(gpu->products[i].rows, bundle->config.n_ff_expert);
        assert_int_equal(gpu->products[i].columns, bundle->config.n_embd);
        assert_true(gpu->products[i].ns > 0 && gpu->products[i].n_bytes > 0);
    }
    assert_int_equal(gpu->n_gathers, 4);
    assert_true(gpu->n_experts >= 2);
    for (uint32_t i = 0; i < gpu->n_experts; i++)
        assert_true(gpu->experts[i].compute_ns > 0 && gpu->experts[i].record_bytes > 0);
}

static void a_section_is_measured_whole(void **state)
{
    (void)state;
    struct notes notes = {0};
    const struct moec_progress progress = {.report = take_progress, .context = &notes};
    struct made made = make_bundle("olmoe");
    const struct moec_gpu_measure_options options = small(&progress);
    struct moec_gpu_description gpu;
    MUST(moec_gpu_measure(made.bundle, &options, &gpu, &err));
    check_section(&gpu, made.bundle);
    assert_true(notes.n > 20);
    notes = (struct notes){.is_cancelled = true};
    struct moec_error wrong = {0};
    assert_status(moec_gpu_measure(made.bundle, &options, &gpu, &wrong), MOEC_ERR_CANCELLED, wrong);
    release(&made);
}

/* One allocation after the other finds no room. */
static void a_device_without_room_is_told(void **state)
{
    (void)state;
    struct made made = make_bundle("olmoe");
    const struct moec_gpu_measure_options options = small(NULL);
    for (uint32_t at = 1; at < 40; at += 3) {
        struct moec_gpu_description gpu;
        struct moec_error wrong = {0};
        faults = (struct moec_host_gpu_faults){.fail_alloc_at = at};
        assert_status(moec_gpu_measure(made.bundle, &options, &gpu, &wrong), MOEC_ERR_MEMORY, wrong);
        assert_true(wrong.message[0] != '\0');
    }
    faults = (struct moec_host_gpu_faults){.lose_at = 30};
    struct moec_gpu_description gpu;
    struct moec_error wrong = {0};
    assert_status(moec_gpu_measure(made.bundle, &options, &gpu, &wrong), MOEC_ERR_IO, wrong);
    assert_message(wrong, "lost");
    faults = (struct moec_host_gpu_faults){0};
    release(&made);
}

/* What has no place in a section: copies within the device, several experts in a launch, neurons left out. */
static void parts_are_measured_by_themselves(void **state)
{
    (void)state;
    struct made made = make_bundle("olmoe");
    struct moec_gpu_speed speed = {.kernels = &kernels, .limit_ns = 1, .cache_bytes = 1};
    struct moec_mlp mlp = {0};
    uint64_t ns = 0;
    const uint64_t n_bytes = made.bundle->records[0].n_bytes;
    uint8_t *record = malloc(n_bytes);
    assert_non_null(record);
    MUST(moec_bundle_read_record(made.bundle, (struct moec_record_id){0, 0, 0}, record, &err));
    moec_record_bind(moec_bundle_layout(made.bundle, 0, 0, 0), record, &mlp);
    MUST(open_stand_in(0, &speed.gpu, &err));
    MUST(speed.gpu->ops->stream_create(speed.gpu, &speed.stream, &err));
    MUST(moec_gpu_speed_copy(&speed, MOEC_GPU_WITHIN, true, 100000, &ns, &err));
    assert_true(ns > 0);
    struct moec_gpu_speed_batch batch = {&mlp, record, n_bytes, 3, 1, 3};
    MUST(moec_gpu_speed_experts(&speed, &batch, &ns, &err));
    assert_true(ns > 0);
    batch = (struct moec_gpu_speed_batch){&mlp, record, n_bytes, 2, 9, 2};
    for (enum moec_arithmetic arithmetic = 0; arithmetic < MOEC_ARITHMETIC_COUNT; arithmetic++) {
        uint64_t product_bytes = 0;
        if (arithmetic == MOEC_ARITHMETIC_INT8)
            continue;
        speed.arithmetic = arithmetic;
        MUST(moec_gpu_speed_experts(&speed, &batch, &ns, &err));
        assert_true(ns > 0);
        MUST(moec_gpu_speed_product(&speed,
                                    &(struct moec_matrix){.codec = mlp.up.codec, .rows = 20, .columns = 33},
                                    5, &product_bytes, &ns, &err));
        assert_true(ns > 0);
    }
    speed.arithmetic = MOEC_ARITHMETIC_CANONICAL;
    mlp.filter = (struct moec_mlp_filter){.is_on = true, .at = MOEC_PROJECTION_UP, .threshold = INFINITY};
    batch = (struct moec_gpu_speed_batch){&mlp, record, n_bytes, 2, 1, 2};
    MUST(moec_gpu_speed_experts(&speed, &batch, &ns, &err));
    assert_true(ns > 0);
    for (uint32_t i = 0; i < 1000; i++)
        assert_true(fabsf(moec_gpu_speed_input(i)) <= 1);
    speed.gpu->ops->stream_free(speed.gpu, speed.stream);
    speed.gpu->ops->close(speed.gpu);
    free(record);
    release(&made);
}

/* Times by the line through the nearest two sizes. */
static void copies_between_sizes_take_what_lies_between(void **state)
{
    (void)state;
    const struct moec_gpu_description gpu = {.n_copies = 5,
                                             .copies = {{true, true, 1000, 200},
                                                        {false, true, 2000, 1},
                                                        {true, true, 3000, 400},
                                                        {true, false, 3000, 900},
                                                        {true, true, 5000, 1000}}};
    assert_float_equal(moec_gpu_copy_ns(&gpu, true, 1000), 200, 1e-9);
    assert_float_equal(moec_gpu_copy_ns(&gpu, true, 2000), 300, 1e-9);
    assert_float_equal(moec_gpu_copy_ns(&gpu, true, 500), 150, 1e-9);
    assert_float_equal(moec_gpu_copy_ns(&gpu, true, 4000), 700, 1e-9);
    assert_float_equal(moec_gpu_copy_ns(&gpu, true, 7000), 1600, 1e-9);
    assert_float_equal(moec_gpu_copy_ns(&gpu, false, 6000), 1800, 1e-9);
    assert_true(isnan(moec_gpu_copy_ns(&(struct moec_gpu_description){0}, true, 1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_section_is_measured_whole),
        cmocka_unit_test(a_device_without_room_is_told),
        cmocka_unit_test(parts_are_measured_by_themselves),
        cmocka_unit_test(copies_between_sizes_take_what_lies_between),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
