#include "tests/unit/temporary.h"

#include "profiler/device/read_speed.h"

#define N_RANGES    12u
#define RANGE_BYTES 5000u
#define SLOT_BYTES  8192u
#define DEPTH       4u

struct place {
    char *folder, *path;
    struct moec_file file;
    struct moec_read_range ranges[N_RANGES];
    struct moec_read_speed_request request;
};

static void place_make(struct place *place, const struct moec_emulation *emulation)
{
    static uint8_t content[N_RANGES * SLOT_BYTES];
    struct moec_error err = {0};
    struct moec_reader_options options = {.io = MOEC_IO_CACHED, .depth = DEPTH};
    void *buffer = NULL;
    place->folder = temporary_folder();
    place->path = temporary_path(place->folder, "data");
    temporary_write(place->folder, "data", content, sizeof content);
    assert_status(moec_file_open(&place->file, place->path, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < N_RANGES; i++)
        place->ranges[i] = (struct moec_read_range){(uint64_t)i * SLOT_BYTES, RANGE_BYTES};
    assert_int_equal(posix_memalign(&buffer, 4096, (size_t)DEPTH * SLOT_BYTES), 0);
    place->request =
        (struct moec_read_speed_request){.cached = &place->file,
                                         .ranges = place->ranges,
                                         .n_ranges = N_RANGES,
                                         .room = {.depth = DEPTH, .buffer = buffer, .slot_bytes = SLOT_BYTES},
                                         .limits = {.ns = 1000000000000, .max_reads = 2 * N_RANGES + 1}};
    assert_status(moec_reader_create(&place->file, &options, &place->request.reader, &err), MOEC_OK, err);
    if (emulation != NULL)
        assert_status(moec_reader_emulate(place->request.reader, emulation, &place->request.reader, &err),
                      MOEC_OK, err);
}

static void place_release(struct place *place)
{
    place->request.reader->ops->destroy(place->request.reader);
    free(place->request.room.buffer);
    moec_file_close(&place->file);
    free(place->path);
    temporary_remove(place->folder);
}

static void test_read_speed__counts_what_was_read(void **state)
{
    (void)state;
    struct place place;
    struct moec_error err = {0};
    struct moec_read_speed speed;
    place_make(&place, NULL);
    for (int direct = 0; direct < 2; direct++) { /* rounds one after the other, and flowing into each other */
        place.request.cached = direct != 0 ? NULL : &place.file;
        assert_status(moec_read_speed_measure(&place.request, &speed, &err), MOEC_OK, err);
        assert_int_equal(speed.n_reads, 2 * N_RANGES + 1);
        assert_int_equal(speed.n_bytes, (2 * N_RANGES + 1) * RANGE_BYTES);
        assert_true(speed.latency_ns_median > 0 && speed.latency_ns_p95 >= speed.latency_ns_median);
        assert_true(speed.spent_ns > 0 && speed.bytes_per_second > 0);
    }
    uint64_t seen = 0;
    for (uint32_t i = 0; i < N_RANGES; i++)
        seen |= 1u << (place.ranges[i].offset / SLOT_BYTES);
    assert_int_equal(seen, (1u << N_RANGES) - 1); /* another order, the same ranges */
    place_release(&place);
}

static void test_read_speed__time_ends_it(void **state)
{
    (void)state;
    struct place place;
    struct moec_error err = {0};
    struct moec_read_speed speed;
    place_make(&place, NULL);
    place.request.limits.ns = 0;
    place.request.limits.min_reads = 7;
    assert_status(moec_read_speed_measure(&place.request, &speed, &err), MOEC_OK, err);
    assert_int_equal(speed.n_reads, 7);
    place_release(&place);
}

static void test_read_speed__sees_the_device(void **state)
{
    (void)state;
    struct moec_emulation device = {.bytes_per_second = 10000000, .latency_ns = 100000}; /* 0.5 ms each */
    struct place place;
    struct moec_error err = {0};
    struct moec_read_speed speed;
    place_make(&place, &device);
    assert_status(moec_read_speed_measure(&place.request, &speed, &err), MOEC_OK, err);
    assert_true(speed.bytes_per_second <= 10000000 && speed.latency_ns_median >= 499000);
    place_release(&place);
}

static void test_read_speed__a_failed_read_names_its_place(void **state)
{
    (void)state;
    struct place place;
    struct moec_error err = {0};
    struct moec_read_speed speed;
    place_make(&place, NULL);
    assert_int_equal(truncate(place.path, (N_RANGES - 1) * SLOT_BYTES), 0);
    assert_status(moec_read_speed_measure(&place.request, &speed, &err), MOEC_ERR_IO, err);
    assert_message(err, "5000 bytes at offset 90112 of the bundle: the file is too short");
    place_release(&place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_speed__counts_what_was_read),
        cmocka_unit_test(test_read_speed__time_ends_it),
        cmocka_unit_test(test_read_speed__sees_the_device),
        cmocka_unit_test(test_read_speed__a_failed_read_names_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
