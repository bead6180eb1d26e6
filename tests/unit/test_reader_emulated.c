/* A reader that takes the times of another device. It compares times: runs alone. */
#include "tests/unit/fixture_reader.h"

#include "formats/base/clock.h"
#include "runtime/storage/reader.h"

#include <errno.h>
#include <time.h>

static struct moec_reader *open_emulated(const struct place *place, struct moec_emulation emulation)
{
    struct moec_error err = {0};
    struct moec_reader *under = open_reader(place, MOEC_IO_CACHED, MOEC_IO_ENGINE_AUTO, 8), *reader = NULL;
    assert_status(moec_reader_emulate(under, &emulation, &reader, &err), MOEC_OK, err);
    return reader;
}

static void test_reader_emulated__times_follow_the_formula(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    struct moec_emulation device = {
        .bytes_per_second = 20000000, .latency_ns = 2000000, .request_ns = 500000};
    struct moec_reader *reader = open_emulated(&place, device);
    assert_non_null(strstr(reader->description, "emulated 20 MB/s, 2000 us, 500 us a request over cached"));
    struct moec_read reads[6];
    uint64_t issued_ns[7], due_ns = 0, n_exact = 0;
    for (uint32_t i = 0; i < 6; i++) {
        reads[i] = (struct moec_read){.offset = 7 * i,
                                      .n_bytes = 20000 * (i + 1), /* a millisecond each */
                                      .buffer = place.buffer + (size_t)i * MAX_BYTES};
        issued_ns[i] = moec_now_ns();
        reader->ops->submit(reader, &reads[i]);
    }
    issued_ns[6] = moec_now_ns();
    for (uint32_t i = 0; i < 6; i++) {
        assert_ptr_equal(wait_for(reader), &reads[i]); /* in order of issue */
        assert_true(moec_now_ns() >= reads[i].at.done_ns);
        /* Issued between two looks at the clock, so due between two moments; later only where the machine was
         * late with the bytes themselves. */
        uint64_t earliest_ns = moec_emulation_done_ns(&device, issued_ns[i], due_ns, reads[i].n_bytes);
        uint64_t latest_ns = moec_emulation_done_ns(&device, issued_ns[i + 1],
                                                    i > 0 ? reads[i - 1].at.done_ns : 0, reads[i].n_bytes);
        assert_true(reads[i].at.done_ns >= earliest_ns);
        n_exact += reads[i].at.done_ns <= latest_ns;
        due_ns = earliest_ns;
        assert_memory_equal(reads[i].buffer, place.content + reads[i].offset, reads[i].n_bytes);
    }
    assert_true(n_exact >= 1);
    assert_true(reads[5].at.done_ns - issued_ns[0] >= (2 + 21 + 3) * 1000000u);
    reader->ops->destroy(reader);
    place_release(&place);
}

/* Nobody waits: what is due is there for who looks. */
static void test_reader_emulated__requests_are_taken_when_they_are_due(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    struct moec_reader *reader =
        open_emulated(&place, (struct moec_emulation){.bytes_per_second = 100000000, .latency_ns = 0});
    struct moec_read reads[2];
    for (uint32_t i = 0; i < 2; i++) {
        reads[i] = (struct moec_read){.n_bytes = 100000, .buffer = place.buffer + (size_t)i * MAX_BYTES};
        reader->ops->submit(reader, &reads[i]);
    }
    struct moec_read *read = reader->ops->take(reader);
    assert_true(read == NULL || moec_now_ns() >= reads[0].at.begun_ns + 1000000u);
    while (read == NULL) {
        const struct timespec pause = {.tv_nsec = 100000};
        (void)nanosleep(&pause, NULL);
        read = reader->ops->take(reader);
    }
    assert_ptr_equal(read, &reads[0]);
    assert_true(moec_now_ns() >= reads[0].at.begun_ns + 1000000u);
    assert_memory_equal(reads[0].buffer, place.content, reads[0].n_bytes);
    assert_ptr_equal(wait_for(reader), &reads[1]);
    assert_null(reader->ops->take(reader));
    reader->ops->destroy(reader);
    place_release(&place);
}

static void test_reader_emulated__adds_up(void **state)
{
    (void)state;
    struct moec_emulation device = {.bytes_per_second = 550000000, .latency_ns = 80000};
    assert_int_equal(moec_emulation_done_ns(&device, 1000, 0, 550), 82000);
    assert_int_equal(moec_emulation_done_ns(&device, 1000, 500000, 550), 501000); /* latency hidden */
    assert_int_equal(moec_emulation_done_ns(&device, 0, 0, (uint64_t)55 << 30),
                     80000 + ((uint64_t)1 << 30) * 100);
    device.request_ns = 7000;
    assert_int_equal(moec_emulation_done_ns(&device, 1000, 500000, 550), 508000); /* never hidden */
}

static void test_reader_emulated__requests_are_cancelled_before_they_begin(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    struct moec_reader *reader =
        open_emulated(&place, (struct moec_emulation){.bytes_per_second = 1000000, .latency_ns = 0});
    struct moec_read reads[4];
    for (uint32_t i = 0; i < 4; i++) {
        reads[i] = (struct moec_read){.n_bytes = 100000, .buffer = place.buffer + (size_t)i * MAX_BYTES};
        reader->ops->submit(reader, &reads[i]);
    }
    assert_false(reader->ops->cancel(reader, &reads[0])); /* the device was idle: begun at once */
    bool is_taken = reader->ops->cancel(reader, &reads[2]);
    bool is_early = moec_now_ns() < reads[0].at.begun_ns + 200000000u;
    assert_true(is_taken || !is_early);
    assert_ptr_equal(wait_for(reader), &reads[0]);
    assert_ptr_equal(wait_for(reader), &reads[1]);
    if (is_taken)
        assert_false(reader->ops->cancel(reader, &reads[2])); /* gone already */
    else
        assert_ptr_equal(wait_for(reader), &reads[2]);
    assert_ptr_equal(wait_for(reader), &reads[3]);
    if (is_taken) /* it took no time of the device */
        assert_true(reads[3].at.begun_ns < reads[0].at.begun_ns + 300000000u);
    reader->ops->destroy(reader);
    place_release(&place);
}

static void test_reader_emulated__errors_come_through(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    struct moec_reader *reader =
        open_emulated(&place, (struct moec_emulation){.bytes_per_second = 1000000000, .latency_ns = 1000});
    struct moec_read reads[20];
    for (uint32_t i = 0; i < 20; i++) { /* more than the depth */
        reads[i] = (struct moec_read){.offset = i % 2 == 0 ? 0 : FILE_BYTES - 5,
                                      .n_bytes = 10,
                                      .buffer = place.buffer + (size_t)i * MAX_BYTES,
                                      .tag = i};
        reader->ops->submit(reader, &reads[i]);
    }
    for (uint32_t i = 0; i < 20; i++) {
        assert_ptr_equal(wait_for(reader), &reads[i]);
        assert_int_equal(reads[i].error, i % 2 == 0 ? 0 : ENODATA);
    }
    reader->ops->destroy(reader);
    place_release(&place);
}

static void test_reader_emulated__is_parsed(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes_per_second, latency_ns, request_ns;
    } good[] = {
        {"550MB/s,80us", 550000000, 80000, 10000},       {"50MB/s", 50000000, 0, 10000},
        {"1.5GB/s,0.1ms,0us", 1500000000, 100000, 0},    {"2MiB/s,250ns,2us", 2097152, 250, 2000},
        {"1000B/s,1s,1s", 1000, 1000000000, 1000000000}, {"1GiB/s,0us", 1073741824, 0, 10000},
    };
    static const char *const bad[] = {"",
                                      "550",
                                      "MB/s",
                                      "550MB/s,",
                                      "550MB/s,80",
                                      "550MB",
                                      "-1MB/s",
                                      "5..5MB/s",
                                      "0MB/s",
                                      "550MB/s,80us,",
                                      "550MB/s,80us,10",
                                      "550MB/s,80us,2s",
                                      "550MB/s,80us,1us,1us",
                                      "550MB/sx",
                                      "9999999GB/s",
                                      "550MB/s,2s",
                                      ".MB/s",
                                      "550 MB/s",
                                      "nanMB/s",
                                      "550MB/s,-80us",
                                      "1e9MB/s",
                                      ",80us",
                                      "999999999999999999999B/s"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct moec_error err = {0};
        struct moec_emulation got = {0};
        assert_status(moec_emulation_parse(good[i].text, &got, &err), MOEC_OK, err);
        assert_int_equal(got.bytes_per_second, good[i].bytes_per_second);
        assert_int_equal(got.latency_ns, good[i].latency_ns);
        assert_int_equal(got.request_ns, good[i].request_ns);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct moec_error err = {0};
        struct moec_emulation got = {0};
        assert_status(moec_emulation_parse(bad[i], &got, &err), MOEC_ERR_USAGE, err);
        assert_message(err, bad[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader_emulated__times_follow_the_formula),
        cmocka_unit_test(test_reader_emulated__requests_are_taken_when_they_are_due),
        cmocka_unit_test(test_reader_emulated__adds_up),
        cmocka_unit_test(test_reader_emulated__requests_are_cancelled_before_they_begin),
        cmocka_unit_test(test_reader_emulated__errors_come_through),
        cmocka_unit_test(test_reader_emulated__is_parsed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
