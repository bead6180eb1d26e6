/* It compares times: runs alone. */
#include "tests/unit/fixture_reader.h"

#include "formats/base/digest.h"
#include "runtime/storage/reader.h"
#include "runtime/storage/reader_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const enum moec_io_engine engines[] = {MOEC_IO_ENGINE_AUTO, MOEC_IO_ENGINE_URING,
                                              MOEC_IO_ENGINE_THREADS};
static const enum moec_io ways[] = {MOEC_IO_DIRECT, MOEC_IO_CACHED};

static void test_reader__reads_what_the_file_holds(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    static const uint32_t depths[] = {1, 3, 32};
    uint64_t random = 5;
    uint32_t n_readers = 0;
    for (size_t e = 0; e < 3; e++)
        for (size_t w = 0; w < 2; w++)
            for (size_t d = 0; d < 3; d++) {
                struct moec_reader *reader = open_reader(&place, ways[w], engines[e], depths[d]);
                if (reader == NULL)
                    continue;
                n_readers++;
                assert_int_equal(reader->alignment, ways[w] == MOEC_IO_DIRECT ? BLOCK : 1);
                assert_non_null(strstr(reader->description, ways[w] == MOEC_IO_DIRECT ? "direct" : "cached"));
                for (uint32_t n = 1; n <= MAX_READS; n += 1 + random_u32(&random) % 20)
                    read_batch(&place, reader, &random, n);
                reader->ops->destroy(reader);
            }
    assert_true(n_readers >= 6); /* threads and AUTO through the page cache work everywhere */
    place_release(&place);
}

static void test_reader__cancel_takes_back_what_has_not_begun(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    uint64_t random = 11;
    for (size_t e = 1; e < 3; e++)
        for (int round = 0; round < 50; round++) {
            struct moec_reader *reader = open_reader(&place, MOEC_IO_CACHED, engines[e], 1);
            if (reader == NULL)
                break;
            struct moec_read reads[6];
            uint32_t expected = 0, begin_prompt = 0;
            for (uint32_t i = 0; i < 6; i++) {
                expected |= 1u << i;
                reads[i] = (struct moec_read){
                    .n_bytes = MAX_BYTES, .buffer = place.buffer + (size_t)i * MAX_BYTES, .tag = i};
                reader->ops->submit(reader, &reads[i]);
            }
            for (int i = 0; i < 4; i++) {
                uint32_t at = random_u32(&random) % 6;
                bool is_taken = reader->ops->cancel(reader, &reads[at]);
                if (engines[e] ==
                    MOEC_IO_ENGINE_URING) /* one at once, and none is done before wait says so */
                    assert_int_equal(is_taken, at > 0 && (expected >> at & 1) != 0);
                if (is_taken) {
                    assert_true((expected >> at & 1) != 0);
                    expected &= ~(1u << at);
                }
            }
            while (begin_prompt != expected)
                begin_prompt |= 1u << wait_for(reader)->tag;
            struct moec_read last = {.n_bytes = 10, .buffer = place.buffer, .tag = 9};
            reader->ops->submit(reader, &last);
            assert_ptr_equal(wait_for(reader), &last); /* nothing that was taken back comes behind it */
            reader->ops->destroy(reader);
        }
    place_release(&place);
}

/* Requests that the caller says are followed by more, and needs all of; what has come is taken without
 * waiting. Consumes the reader. */
static void check_together(const struct place *place, struct moec_reader *reader)
{
    enum { N = 24 };
    struct moec_read reads[N];
    for (int round = 0; round < 3; round++) {
        uint32_t begin_prompt = 0;
        assert_null(reader->ops->take(reader));
        for (uint32_t i = 0; i < N; i++) {
            reads[i] = (struct moec_read){
                .offset = i * BLOCK, .n_bytes = BLOCK, .buffer = place->buffer + i * BLOCK, .tag = i};
            reader->has_more = i + 1 < N;
            reader->ops->submit(reader, &reads[i]);
        }
        for (uint32_t n = 0; n < N;) {
            reader->n_needed = round == 1 ? 0 : N - n;
            for (const struct moec_read *read = wait_for(reader); read != NULL;
                 read = reader->ops->take(reader), n++) {
                assert_int_equal(read->error, 0);
                assert_memory_equal(read->buffer, place->content + read->offset, BLOCK);
                begin_prompt |= 1u << read->tag;
            }
        }
        assert_int_equal(begin_prompt, (1u << N) - 1);
    }
    reader->ops->destroy(reader);
}

static void test_reader__several_are_taken_together(void **state)
{
    (void)state;
    static const uint32_t depths[] = {4, 32};
    const struct moec_emulation device = {
        .bytes_per_second = 1000000000, .latency_ns = 1000, .request_ns = 2000};
    struct place place;
    place_make(&place);
    for (size_t i = 0; i < 12; i++) {
        struct moec_error err = {0};
        struct moec_reader *reader = open_reader(&place, ways[i & 1], engines[i / 2 % 3], depths[i / 6]);
        if (reader != NULL)
            check_together(&place, reader);
        reader = open_reader(&place, ways[i & 1], engines[i / 2 % 3], depths[i / 6]);
        if (reader == NULL)
            continue;
        assert_status(moec_reader_emulate(reader, &device, &reader, &err), MOEC_OK, err);
        check_together(&place, reader);
    }
    place_release(&place);
}

struct waker {
    struct moec_reader *reader;
    atomic_bool is_over;
};

static void *wake_later(void *context)
{
    struct waker *waker = context;
    struct timespec pause = {.tv_nsec = 3000000};
    (void)nanosleep(&pause, NULL);
    atomic_store(&waker->is_over, true);
    waker->reader->ops->wake(waker->reader);
    return NULL;
}

/* Consumes the reader. */
static void check_waking(const struct place *place, struct moec_reader *reader)
{
    for (int round = 0; round < 5; round++) {
        struct waker waker = {.reader = reader};
        pthread_t thread;
        reader->spins = (round & 1) != 0;
        assert_int_equal(pthread_create(&thread, NULL, wake_later, &waker), 0);
        assert_null(reader->ops->wait(reader));
        assert_true(atomic_load(&waker.is_over));
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    reader->ops->wake(reader);
    reader->ops->wake(reader);
    struct moec_read read = {.n_bytes = 100, .buffer = place->buffer};
    reader->ops->submit(reader, &read);
    assert_null(reader->ops->wait(reader)); /* once, however often it was woken */
    assert_ptr_equal(wait_for(reader), &read);
    assert_memory_equal(read.buffer, place->content, 100);
    reader->ops->destroy(reader);
}

/* Few large requests are at work at once, so that the first is done long before the last. */
static void test_reader__large_requests_begin_in_turn(void **state)
{
    (void)state;
    enum { N = 5 };
    struct place place;
    struct moec_read reads[N];
    void *memory = NULL;
    place_make(&place);
    struct moec_reader *reader = open_reader(&place, MOEC_IO_CACHED, MOEC_IO_ENGINE_URING, 8);
    if (reader == NULL) {
        place_release(&place);
        skip();
    }
    assert_int_equal(posix_memalign(&memory, BLOCK, (size_t)N * FILE_BYTES), 0);
    for (uint32_t i = 0; i < N; i++) {
        reads[i] = (struct moec_read){
            .n_bytes = FILE_BYTES, .buffer = (uint8_t *)memory + (size_t)i * FILE_BYTES, .tag = i};
        reader->ops->submit(reader, &reads[i]);
    }
    assert_false(reader->ops->cancel(reader, &reads[0]));
    assert_false(reader->ops->cancel(reader, &reads[1])); /* one behind the one at work */
    assert_true(reader->ops->cancel(reader, &reads[3]));
    for (uint32_t i = 0; i < N - 1; i++)
        assert_memory_equal(wait_for(reader)->buffer, place.content, FILE_BYTES);
    assert_true(reads[2].at.begun_ns >= reads[0].at.done_ns || reads[2].at.begun_ns >= reads[1].at.done_ns);
    reader->ops->destroy(reader);
    free(memory);
    place_release(&place);
}

/* Whole files beside each other, from wherever their sums begin; the last one ends behind the file. */
static void check_sums(const struct place *place, struct moec_reader *reader, uint8_t *memory)
{
    enum { N = 4 };
    static const uint32_t skips[N] = {0, 4095, 600000, 0};
    const uint64_t slot = (FILE_BYTES / BLOCK + 3) * BLOCK;
    struct moec_read reads[N];
    for (uint32_t i = 0; i < N; i++) {
        reads[i] = (struct moec_read){.n_bytes = FILE_BYTES + (i == N - 1 ? BLOCK : 0),
                                      .buffer = memory + i * slot,
                                      .tag = i,
                                      .sum = {.is_wanted = i != 1, .skip = skips[i]}};
        reader->has_more = i + 1 < N;
        reader->ops->submit(reader, &reads[i]);
    }
    for (uint32_t n = 0; n < N; n++) {
        const struct moec_read *read = wait_for(reader);
        const uint32_t skip = skips[read->tag];
        assert_int_equal(read->error, read->tag == N - 1 ? ENODATA : 0);
        assert_int_equal(read->sum.is_there, read->tag == 0 || read->tag == 2);
        if (read->error == 0)
            assert_memory_equal(read->buffer, place->content, FILE_BYTES);
        if (read->sum.is_there)
            assert_int_equal(read->sum.crc32c,
                             moec_crc32c_portable(0, place->content + skip, FILE_BYTES - skip));
    }
    reader->ops->destroy(reader);
}

static void test_reader__sums_come_with_the_bytes(void **state)
{
    (void)state;
    static const struct moec_emulation device = {.bytes_per_second = 4000000000, .latency_ns = 1000};
    static const uint32_t depths[] = {1, 32};
    struct place place;
    void *memory = NULL;
    place_make(&place);
    assert_int_equal(posix_memalign(&memory, BLOCK, 4 * (size_t)(FILE_BYTES + 3 * BLOCK)), 0);
    for (size_t i = 0; i < 12; i++) {
        struct moec_error err = {0};
        struct moec_reader *reader = open_reader(&place, ways[i & 1], engines[i / 2 % 3], depths[i / 6]);
        if (reader != NULL)
            check_sums(&place, reader, memory);
        struct moec_reader *under = open_reader(&place, ways[i & 1], engines[i / 2 % 3], depths[i / 6]);
        if (under == NULL)
            continue;
        assert_status(moec_reader_emulate(under, &device, &reader, &err), MOEC_OK, err);
        check_sums(&place, reader, memory);
    }
    free(memory);
    place_release(&place);
}

/* A request of more bytes than the usual parts hold, of a file that is empty but for its end. */
static void test_reader__a_huge_request_comes_whole(void **state)
{
    (void)state;
    const uint64_t n_bytes = ((uint64_t)65 << 19) + 5; /* 65 parts of 512 KiB, and 5 bytes */
    struct place place;
    struct moec_error err = {0};
    void *memory = NULL;
    place_make(&place);
    assert_int_equal(truncate(place.path, (off_t)n_bytes), 0);
    moec_file_close(&place.file);
    assert_status(moec_file_open(&place.file, place.path, &err), MOEC_OK, err);
    assert_int_equal(posix_memalign(&memory, BLOCK, n_bytes + BLOCK), 0);
    struct moec_reader *reader = open_reader(&place, MOEC_IO_DIRECT, MOEC_IO_ENGINE_URING, 32);
    if (reader != NULL) {
        struct moec_read read = {.n_bytes = n_bytes, .buffer = memory, .sum.is_wanted = true};
        memset(memory, 0xee, n_bytes);
        reader->ops->submit(reader, &read);
        assert_false(reader->ops->cancel(reader, &read));
        assert_ptr_equal(wait_for(reader), &read);
        assert_int_equal(read.error, 0);
        assert_memory_equal(read.buffer, place.content, FILE_BYTES);
        for (uint64_t i = FILE_BYTES; i < n_bytes; i++)
            assert_int_equal(read.buffer[i], 0);
        assert_true(read.sum.is_there);
        assert_int_equal(read.sum.crc32c, moec_crc32c_portable(0, memory, n_bytes));
        reader->ops->destroy(reader);
    }
    free(memory);
    place_release(&place);
}

static void test_reader__wake_ends_a_wait(void **state)
{
    (void)state;
    static const struct moec_emulation fast = {.bytes_per_second = 1000000000, .latency_ns = 1000};
    struct place place;
    place_make(&place);
    for (size_t e = 0; e < 3; e++) {
        struct moec_reader *reader = open_reader(&place, MOEC_IO_CACHED, engines[e], 4);
        if (reader == NULL)
            continue;
        check_waking(&place, reader);
        struct moec_error err = {0};
        struct moec_reader *under = open_reader(&place, MOEC_IO_CACHED, engines[e], 4), *emulated = NULL;
        assert_status(moec_reader_emulate(under, &fast, &emulated, &err), MOEC_OK, err);
        check_waking(&place, emulated);
    }
    place_release(&place);
}

struct storm {
    struct moec_reader *reader;
    atomic_bool is_over;
};

static void *wake_all_the_time(void *context)
{
    struct storm *storm = context;
    while (!atomic_load(&storm->is_over)) {
        storm->reader->ops->wake(storm->reader);
        struct timespec pause = {.tv_nsec = 20000};
        (void)nanosleep(&pause, NULL);
    }
    return NULL;
}

static void test_reader__no_request_is_lost_among_wakes(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    for (size_t e = 1; e < 3; e++) {
        struct storm storm = {.reader = open_reader(&place, MOEC_IO_CACHED, engines[e], 8)};
        pthread_t thread;
        if (storm.reader == NULL)
            continue;
        assert_int_equal(pthread_create(&thread, NULL, wake_all_the_time, &storm), 0);
        for (int round = 0; round < 100; round++) {
            struct moec_read reads[16];
            storm.reader->spins = (round & 1) != 0;
            for (uint32_t i = 0; i < 16; i++) {
                reads[i] = (struct moec_read){
                    .offset = i, .n_bytes = BLOCK, .buffer = place.buffer + (size_t)i * BLOCK, .tag = i};
                storm.reader->ops->submit(storm.reader, &reads[i]);
            }
            for (int n = 0; n < 16;)
                n += storm.reader->ops->wait(storm.reader) != NULL;
        }
        atomic_store(&storm.is_over, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        storm.reader->ops->destroy(storm.reader);
    }
    place_release(&place);
}

static void test_reader__a_file_that_shrinks_ends_in_enodata(void **state)
{
    (void)state;
    for (size_t e = 0; e < 3; e++)
        for (size_t w = 0; w < 2; w++) {
            struct place place;
            place_make(&place);
            struct moec_reader *reader = open_reader(&place, ways[w], engines[e], 4);
            if (reader != NULL) {
                assert_int_equal(truncate(place.path, 3 * BLOCK + 100), 0);
                struct moec_read reads[] = {
                    {.offset = 2 * BLOCK, .n_bytes = 3 * BLOCK, .buffer = place.buffer, .tag = ENODATA},
                    {.offset = 9 * BLOCK, .n_bytes = 10, .buffer = place.buffer + 4 * BLOCK, .tag = ENODATA},
                    {.offset = 3 * BLOCK, .n_bytes = 101, .buffer = place.buffer + 6 * BLOCK, .tag = ENODATA},
                    {.offset = 3 * BLOCK, .n_bytes = 100, .buffer = place.buffer + 8 * BLOCK, .tag = 0},
                    {.offset = 0, .n_bytes = 2 * BLOCK, .buffer = place.buffer + 10 * BLOCK, .tag = 0}};
                for (size_t i = 0; i < 5; i++)
                    reader->ops->submit(reader, &reads[i]);
                for (size_t i = 0; i < 5; i++) {
                    const struct moec_read *read = wait_for(reader);
                    assert_int_equal(read->error, read->tag);
                    if (read->error == 0)
                        assert_memory_equal(read->buffer, place.content + read->offset, read->n_bytes);
                }
                reader->ops->destroy(reader);
            }
            place_release(&place);
        }
}

static void test_reader__short_reads_go_on(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    struct moec_read read = {.offset = BLOCK, .n_bytes = 5 * BLOCK + 10, .buffer = place.buffer};
    struct moec_read_piece piece = moec_read_next_piece(&read, BLOCK);
    assert_int_equal(piece.skip, 0);
    assert_int_equal(piece.n_bytes, 6 * BLOCK); /* whole blocks */
    assert_false(moec_read_take_answer(&read, piece, -EINTR, place.file.fd));
    assert_false(moec_read_take_answer(&read, piece, -EAGAIN, place.file.fd));
    assert_false(moec_read_take_answer(&read, piece, 2 * BLOCK + 512, place.file.fd));
    piece = moec_read_next_piece(&read, BLOCK);
    assert_int_equal(piece.skip, 2 * BLOCK); /* the broken block once more */
    assert_int_equal(piece.n_bytes, 4 * BLOCK);
    assert_false(moec_read_take_answer(&read, piece, 2 * BLOCK, place.file.fd));
    piece = moec_read_next_piece(&read, BLOCK);
    assert_int_equal(piece.skip, 4 * BLOCK);
    assert_true(moec_read_take_answer(&read, piece, BLOCK + 10, place.file.fd));
    assert_int_equal(read.error, 0);

    /* Without getting further: an input or output error before the file's end. */
    read = (struct moec_read){.n_bytes = 2 * BLOCK, .buffer = place.buffer};
    assert_false(moec_read_take_answer(&read, moec_read_next_piece(&read, BLOCK), 512, place.file.fd));
    assert_true(moec_read_take_answer(&read, moec_read_next_piece(&read, BLOCK), 512, place.file.fd));
    assert_int_equal(read.error, EIO);
    read = (struct moec_read){.offset = FILE_BYTES, .n_bytes = 10};
    assert_true(moec_read_take_answer(&read, moec_read_next_piece(&read, 1), 0, place.file.fd));
    assert_int_equal(read.error, ENODATA);
    read = (struct moec_read){.n_bytes = 10};
    assert_true(moec_read_take_answer(&read, moec_read_next_piece(&read, 1), -EIO, place.file.fd));
    assert_int_equal(read.error, EIO);

    read = (struct moec_read){.n_bytes = (uint64_t)5 << 30};
    piece = moec_read_next_piece(&read, BLOCK);
    assert_int_equal(piece.n_bytes, 1u << 30);
    read.progress.done_bytes = (uint64_t)9 << 29;
    piece = moec_read_next_piece(&read, BLOCK);
    assert_int_equal(piece.n_bytes, 1u << 29);
    place_release(&place);
}

/* ---- in a process of its own ---- */

/* A reader whose description holds `expected` reads the file: 0, otherwise which step failed. */
static int read_in_child(const struct place *place, enum moec_io_engine engine, const char *expected)
{
    struct moec_error err = {0};
    struct moec_reader *reader = NULL;
    struct moec_reader_options options = {
        .io = MOEC_IO_CACHED,
        .engine = engine,
        .buffer = {.bytes = place->buffer, .n_bytes = (uint64_t)MAX_READS * MAX_BYTES}};
    if (moec_reader_create(&place->file, &options, &reader, &err) != MOEC_OK)
        return 2;
    if (strstr(reader->description, expected) == NULL) {
        fprintf(stderr, "'%s' is not in '%s'\n", expected, reader->description);
        return 3;
    }
    struct moec_read read = {.offset = 12345, .n_bytes = MAX_BYTES, .buffer = place->buffer};
    reader->ops->submit(reader, &read);
    if (reader->ops->wait(reader) != &read || read.error != 0 ||
        memcmp(read.buffer, place->content + 12345, MAX_BYTES) != 0)
        return 4;
    reader->ops->destroy(reader);
    return 0;
}

/* As a user without privileges who may lock this much. */
static int limit_locked_memory(uint64_t n_bytes)
{
    struct rlimit limit = {n_bytes, n_bytes};
    return setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && (geteuid() != 0 || setuid(65534) == 0) ? 0 : 77;
}

/* Room for the rings, which some kernels count too, and not for the buffer. */
static int read_with_little_memlock(const struct place *place)
{
    struct moec_error err = {0};
    struct moec_reader *reader = NULL;
    struct moec_reader_options options = {.io = MOEC_IO_CACHED, .engine = MOEC_IO_ENGINE_URING};
    if (limit_locked_memory((uint64_t)256 * 1024) != 0 ||
        moec_reader_create(&place->file, &options, &reader, &err) != MOEC_OK)
        return 77;
    reader->ops->destroy(reader);
    return read_in_child(place, MOEC_IO_ENGINE_AUTO, "io_uring, ");
}

static int read_without_memlock(const struct place *place)
{
    return limit_locked_memory(0) != 0 ? 77 : read_in_child(place, MOEC_IO_ENGINE_AUTO, "cached through ");
}

static void test_reader__works_without_locked_memory(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    bool was_run = in_child(read_with_little_memlock, &place);
    was_run = in_child(read_without_memlock, &place) && was_run;
    place_release(&place);
    if (!was_run)
        skip();
}

/* From here on io_uring_setup fails with EPERM, as under the filters of container hosts. */
static int read_where_uring_is_refused(const struct place *place)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof code / sizeof *code, .filter = code};
    struct moec_error err = {0};
    struct moec_reader *reader = NULL;
    struct moec_reader_options options = {.io = MOEC_IO_CACHED, .engine = MOEC_IO_ENGINE_URING};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        return 77;
    if (moec_reader_create(&place->file, &options, &reader, &err) != MOEC_ERR_UNSUPPORTED)
        return 5;
    return read_in_child(place, MOEC_IO_ENGINE_AUTO, "32 threads (the kernel refuses io_uring: Operation");
}

static void test_reader__threads_read_where_io_uring_is_refused(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    bool was_run = in_child(read_where_uring_is_refused, &place);
    place_release(&place);
    if (!was_run)
        skip();
}

static atomic_int n_signals;
static atomic_ullong handler_thread;

static void count_signal(int number)
{
    (void)number;
    atomic_fetch_add(&n_signals, 1);
    atomic_store(&handler_thread, (unsigned long long)pthread_self());
}

static void test_reader__workers_leave_signals_to_the_host(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    struct sigaction action = {.sa_handler = count_signal}, before;
    struct moec_reader *reader = open_reader(&place, MOEC_IO_CACHED, MOEC_IO_ENGINE_THREADS, 4);
    assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
    sigset_t set;
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &set), 0);
    assert_false(sigismember(&set, SIGUSR1)); /* creating workers left this thread's mask alone */
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    assert_int_equal(atomic_load(&n_signals), 1);
    assert_true(atomic_load(&handler_thread) == (unsigned long long)pthread_self());
    assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
    reader->ops->destroy(reader);
    place_release(&place);
}

/* ---- choosing ---- */

static void test_reader__auto_measures_once_and_says_so(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    struct moec_error err = {0};
    struct moec_reader *reader = NULL, *again = NULL;
    char description[sizeof reader->description];
    struct moec_reader_options options = {.sample = {.n_bytes = 20000, .offset = 100, .end = FILE_BYTES}};
    assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_OK, err);
    assert_non_null(strstr(reader->description, " (auto: direct "));
    assert_true(strncmp(reader->description, "direct", 6) == 0 ||
                strncmp(reader->description, "cached", 6) == 0);
    assert_status(moec_reader_create(&place.file, &options, &again, &err), MOEC_OK, err);
    assert_string_equal(reader->description, again->description); /* figures and all: not measured again */
    memcpy(description, reader->description, sizeof description);
    uint64_t random = 3;
    read_batch(&place, again, &random, 20);
    reader->ops->destroy(reader);
    again->ops->destroy(again);

    /* Records of about that size have the same answer, much larger ones another: here none, as the file has
     * too few of them. */
    options.sample.n_bytes = 30000;
    assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_OK, err);
    assert_non_null(strstr(reader->description, description));
    reader->ops->destroy(reader);
    options.sample.n_bytes = FILE_BYTES;
    assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_OK, err);
    assert_non_null(strstr(reader->description, "(auto: not measured)"));
    reader->ops->destroy(reader);

    /* A buffer for two records: measured two at once, into that buffer and no other. */
    options = (struct moec_reader_options){.engine = MOEC_IO_ENGINE_THREADS,
                                           .sample = {.n_bytes = 20000, .end = FILE_BYTES},
                                           .buffer = {.bytes = place.buffer, .n_bytes = 11 * BLOCK}};
    memset(place.buffer, 0xee, 20 * BLOCK);
    assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_OK, err);
    assert_non_null(strstr(reader->description, " (auto: direct "));
    for (uint32_t i = 10 * BLOCK; i < 20 * BLOCK; i++)
        assert_int_equal(place.buffer[i], 0xee);
    reader->ops->destroy(reader);
    reader = NULL;

    /* Another engine has another answer; a file of a few records has none. */
    options = (struct moec_reader_options){.engine = MOEC_IO_ENGINE_URING,
                                           .sample = {.n_bytes = FILE_BYTES, .end = FILE_BYTES}};
    enum moec_status status = moec_reader_create(&place.file, &options, &reader, &err);
    if (status != MOEC_ERR_UNSUPPORTED) { /* where the kernel has io_uring */
        assert_status(status, MOEC_OK, err);
        assert_non_null(strstr(reader->description, "(auto: not measured)"));
        reader->ops->destroy(reader);
    }
    place_release(&place);
}

/* Read from the page cache while the file is in it, and measured with what is there. */
static void test_reader__auto_knows_the_page_cache(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    struct moec_error err = {0};
    struct moec_reader *reader = NULL;
    const struct moec_reader_options options = {.sample = {.n_bytes = 50000, .end = FILE_BYTES}};
    assert_int_equal(fsync(place.file.fd), 0);
    assert_true(moec_file_cached_share(&place.file, 0, FILE_BYTES) == 1);
    assert_true(moec_file_cached_share(&place.file, FILE_BYTES, 1) < 0);
    assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_OK, err);
    assert_non_null(strstr(reader->description, ", in the page cache "));
    assert_true(moec_file_cached_share(&place.file, 0, FILE_BYTES) == 1); /* and it still is */
    reader->ops->destroy(reader);
    moec_file_drop(&place.file, 0, 2 * FILE_BYTES);
    if (moec_file_cached_share(&place.file, 0, FILE_BYTES) < 0.5) { /* not on a file system of memory alone */
        assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_OK, err);
        assert_null(strstr(reader->description, "in the page cache"));
        reader->ops->destroy(reader);
    }
    place_release(&place);
}

static void test_reader__a_replaced_file_is_refused(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    struct moec_error err = {0};
    struct moec_reader *reader = NULL;
    struct moec_reader_options options = {.io = MOEC_IO_CACHED};
    assert_int_equal(unlink(place.path), 0);
    temporary_write(place.folder, "data", place.content, FILE_BYTES);
    assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_ERR_IO, err);
    assert_message(err, "was replaced");
    err = (struct moec_error){0};
    assert_int_equal(unlink(place.path), 0);
    assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_ERR_IO, err);
    assert_message(err, place.path);
    place_release(&place);
}

static void test_reader__names_and_sizes(void **state)
{
    (void)state;
    struct moec_error err = {0};
    enum moec_io io = MOEC_IO_AUTO;
    assert_status(moec_io_find("direct", &io, &err), MOEC_OK, err);
    assert_int_equal(io, MOEC_IO_DIRECT);
    assert_status(moec_io_find("cached", &io, &err), MOEC_OK, err);
    assert_int_equal(io, MOEC_IO_CACHED);
    assert_status(moec_io_find("auto", &io, &err), MOEC_OK, err);
    assert_int_equal(io, MOEC_IO_AUTO);
    assert_status(moec_io_find("mmap", &io, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "auto, direct, cached, mapped or auto+mapped");
    assert_status(moec_io_find("mapped", &io, &err), MOEC_OK, err);
    assert_int_equal(io, MOEC_IO_MAPPED);
    assert_status(moec_io_find("auto+mapped", &io, &err), MOEC_OK, err);
    assert_int_equal(io, MOEC_IO_AUTO_MAPPED);
    assert_true(moec_reader_bytes(1) < moec_reader_bytes(0));
    assert_true(moec_reader_bytes(0) == moec_reader_bytes(32) && moec_reader_bytes(32) < 2000000);
}

static void test_reader__busy_times_overlap(void **state)
{
    (void)state;
    uint64_t until = 0;
    assert_int_equal(moec_read_busy_ns(&until, 100, 200), 100);
    assert_int_equal(moec_read_busy_ns(&until, 110, 300), 100); /* of it, beside the first */
    assert_int_equal(moec_read_busy_ns(&until, 120, 250), 0);
    assert_int_equal(moec_read_busy_ns(&until, 400, 450), 50);
    assert_int_equal(moec_read_busy_ns(&until, 460, 455), 0);
    assert_int_equal(until, 455);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader__reads_what_the_file_holds),
        cmocka_unit_test(test_reader__cancel_takes_back_what_has_not_begun),
        cmocka_unit_test(test_reader__large_requests_begin_in_turn),
        cmocka_unit_test(test_reader__several_are_taken_together),
        cmocka_unit_test(test_reader__sums_come_with_the_bytes),
        cmocka_unit_test(test_reader__a_huge_request_comes_whole),
        cmocka_unit_test(test_reader__wake_ends_a_wait),
        cmocka_unit_test(test_reader__no_request_is_lost_among_wakes),
        cmocka_unit_test(test_reader__a_file_that_shrinks_ends_in_enodata),
        cmocka_unit_test(test_reader__short_reads_go_on),
        cmocka_unit_test(test_reader__works_without_locked_memory),
        cmocka_unit_test(test_reader__threads_read_where_io_uring_is_refused),
        cmocka_unit_test(test_reader__workers_leave_signals_to_the_host),
        cmocka_unit_test(test_reader__auto_measures_once_and_says_so),
        cmocka_unit_test(test_reader__auto_knows_the_page_cache),
        cmocka_unit_test(test_reader__a_replaced_file_is_refused),
        cmocka_unit_test(test_reader__names_and_sizes),
        cmocka_unit_test(test_reader__busy_times_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
