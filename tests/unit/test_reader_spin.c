/* Waiting awake. It compares times: runs alone. */
#include "tests/unit/fixture_reader.h"

#include "formats/base/clock.h"
#include "runtime/storage/reader.h"

#include <time.h>

static uint64_t thread_ns(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static struct moec_reader *open_emulated(const struct place *place, uint64_t latency_ns)
{
    struct moec_error err = {0};
    const struct moec_emulation device = {.bytes_per_second = 1000000000, .latency_ns = latency_ns};
    struct moec_reader *under = open_reader(place, MOEC_IO_CACHED, MOEC_IO_ENGINE_AUTO, 8), *reader = NULL;
    assert_status(moec_reader_emulate(under, &device, &reader, &err), MOEC_OK, err);
    return reader;
}

/* Of this thread's time that waiting for one request takes. */
static uint64_t wait_cost(const struct place *place, struct moec_reader *reader)
{
    struct moec_read read = {.n_bytes = 100, .buffer = place->buffer};
    reader->ops->submit(reader, &read);
    const uint64_t begun_ns = thread_ns();
    assert_ptr_equal(wait_for(reader), &read);
    const uint64_t took_ns = thread_ns() - begun_ns;
    assert_memory_equal(read.buffer, place->content, read.n_bytes);
    return took_ns;
}

static void test_reader_spin__is_for_short_waits(void **state)
{
    (void)state;
    struct place place;
    uint64_t spin_ns = 0;
    place_make(&place);
    struct moec_reader *reader = open_emulated(&place, MOEC_READER_SPIN_NS / 2);
    for (int i = 0; i < 3; i++)
        assert_true(wait_cost(&place, reader) < MOEC_READER_SPIN_NS / 4);
    reader->spins = true;
    for (int i = 0; i < 200 && spin_ns < MOEC_READER_SPIN_NS / 4; i++) /* others may have this core */
        spin_ns = wait_cost(&place, reader);
    assert_true(spin_ns >= MOEC_READER_SPIN_NS / 4);
    reader->ops->destroy(reader);
    reader = open_emulated(&place, 5 * (uint64_t)MOEC_READER_SPIN_NS);
    reader->spins = true;
    assert_true(wait_cost(&place, reader) < 2 * (uint64_t)MOEC_READER_SPIN_NS);
    reader->ops->destroy(reader);
    place_release(&place);
}

/* It watches for as many as it needs, and gives each of them. */
static void test_reader_spin__gives_all_that_is_needed(void **state)
{
    (void)state;
    static const enum moec_io ways[] = {MOEC_IO_DIRECT, MOEC_IO_CACHED};
    enum { N = 12 };
    struct place place;
    place_make(&place);
    for (uint32_t round = 0; round < 16; round++) {
        struct moec_reader *reader = open_reader(&place, ways[round & 1], MOEC_IO_ENGINE_AUTO, 4);
        struct moec_read reads[N];
        uint32_t begin_prompt = 0;
        reader->spins = true;
        for (uint32_t i = 0; i < N; i++) {
            reads[i] = (struct moec_read){
                .offset = i * BLOCK, .n_bytes = BLOCK, .buffer = place.buffer + i * BLOCK, .tag = i};
            reader->has_more = i + 1 < N;
            reader->ops->submit(reader, &reads[i]);
        }
        for (uint32_t n = 0; n < N; n++) {
            reader->n_needed = round & 2 ? N - n : 0;
            const struct moec_read *read = wait_for(reader);
            assert_memory_equal(read->buffer, place.content + read->offset, BLOCK);
            begin_prompt |= 1u << read->tag;
        }
        assert_int_equal(begin_prompt, (1u << N) - 1);
        reader->ops->destroy(reader);
    }
    place_release(&place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader_spin__is_for_short_waits),
        cmocka_unit_test(test_reader_spin__gives_all_that_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
