/* The stand-in for a GPU: it keeps the rules of order of runtime/cuda/gpu.h and no others, so that a wait
 * that is missing shows; what goes wrong is a status; and nothing is left over. */
#include "tests/unit/status.h"

#include "runtime/cuda/host/host_gpu.h"

#define N_SEED  64u
#define N_BYTES 4096u

/* A device with two streams, and some memory of each sort. */
struct fixture {
    struct moec_gpu *gpu;
    const struct moec_gpu_ops *ops;
    struct moec_gpu_stream *streams[2];
    struct moec_gpu_event *event;
    uint8_t *device[2], *pinned[2];
};

static void open_gpu(struct fixture *f, uint64_t seed)
{
    MUST(moec_host_gpu_open(seed, &f->gpu, &err));
    f->ops = f->gpu->ops;
    for (int i = 0; i < 2; i++) {
        MUST(f->ops->stream_create(f->gpu, &f->streams[i], &err));
        MUST(f->ops->alloc(f->gpu, N_BYTES, "a test", (void **)&f->device[i], &err));
        MUST(f->ops->alloc_pinned(f->gpu, N_BYTES, "a test", (void **)&f->pinned[i], &err));
        memset(f->pinned[i], 0x10 + i, N_BYTES);
    }
    MUST(f->ops->event_create(f->gpu, &f->event, &err));
}

static void close_gpu(struct fixture *f)
{
    for (int i = 0; i < 2; i++) {
        f->ops->stream_free(f->gpu, f->streams[i]);
        f->ops->free(f->gpu, f->device[i]);
        f->ops->free_pinned(f->gpu, f->pinned[i]);
    }
    f->ops->event_free(f->gpu, f->event);
    const struct moec_host_gpu_counts counts = moec_host_gpu_counts(f->gpu);
    assert_int_equal(counts.allocations, 0);
    assert_int_equal(counts.bytes, 0);
    assert_int_equal(counts.pinned, 0);
    assert_int_equal(counts.streams, 0);
    assert_int_equal(counts.events, 0);
    f->ops->close(f->gpu);
}

static void copy(struct fixture *f, int stream, enum moec_gpu_copy kind, void *to, const void *from)
{
    MUST(f->ops->copy(f->gpu, f->streams[stream], (struct moec_gpu_move){kind, to, from, N_BYTES}, &err));
}

/* A launch: every byte one more. */
struct increment {
    uint8_t *bytes;
};

static void increment(void *arguments)
{
    const struct increment *job = arguments;
    for (uint32_t i = 0; i < N_BYTES; i++)
        job->bytes[i]++;
}

static void launch(struct fixture *f, int stream, uint8_t *bytes)
{
    const struct increment job = {bytes};
    moec_host_gpu_launch(f->streams[stream], increment, &job, sizeof job);
}

static void assert_all(const uint8_t *bytes, int value)
{
    for (uint32_t i = 0; i < N_BYTES; i++)
        assert_int_equal(bytes[i], value);
}

static void work_of_a_stream_is_done_in_order(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < N_SEED; seed++) {
        struct fixture f;
        open_gpu(&f, seed);
        copy(&f, 0, MOEC_GPU_TO_DEVICE, f.device[0], f.pinned[0]);
        launch(&f, 0, f.device[0]);
        copy(&f, 0, MOEC_GPU_WITHIN, f.device[1], f.device[0]);
        launch(&f, 0, f.device[0]);
        copy(&f, 0, MOEC_GPU_TO_HOST, f.pinned[1], f.device[1]);
        copy(&f, 0, MOEC_GPU_TO_HOST, f.pinned[0], f.device[0]);
        MUST(f.ops->finish(f.gpu, f.streams[0], &err));
        assert_all(f.pinned[1], 0x11);
        assert_all(f.pinned[0], 0x12);
        MUST(f.ops->clear(f.gpu, f.streams[0], f.device[0], N_BYTES, &err));
        copy(&f, 0, MOEC_GPU_TO_HOST, f.pinned[0], f.device[0]);
        MUST(f.ops->finish(f.gpu, f.streams[0], &err));
        assert_all(f.pinned[0], 0);
        close_gpu(&f);
    }
}

/* A copy in one stream and a kernel in another that reads what it brings. Whether the kernel read it. */
static bool reads_the_copy(uint32_t seed, bool waits)
{
    struct fixture f;
    open_gpu(&f, seed);
    copy(&f, 0, MOEC_GPU_TO_DEVICE, f.device[0], f.pinned[0]);
    MUST(f.ops->record(f.gpu, f.streams[0], f.event, &err));
    if (waits)
        MUST(f.ops->wait(f.gpu, f.streams[1], f.event, &err));
    copy(&f, 1, MOEC_GPU_WITHIN, f.device[1], f.device[0]);
    launch(&f, 1, f.device[1]);
    copy(&f, 1, MOEC_GPU_TO_HOST, f.pinned[1], f.device[1]);
    MUST(f.ops->finish(f.gpu, f.streams[1], &err));
    const bool is_read = f.pinned[1][0] == 0x11 && f.pinned[1][N_BYTES - 1] == 0x11;
    close_gpu(&f);
    return is_read;
}

static void a_missing_wait_shows(void **state)
{
    (void)state;
    uint32_t n_wrong = 0;
    for (uint32_t seed = 0; seed < N_SEED; seed++) {
        assert_true(reads_the_copy(seed, true));
        n_wrong += !reads_the_copy(seed, false);
        assert_int_equal(reads_the_copy(seed, false), reads_the_copy(seed, false)); /* a seed decides */
    }
    assert_in_range(n_wrong, N_SEED / 16, N_SEED - 1);
}

/* The source of a copy is read when it is made: a caller that writes to it too early is seen. */
static void a_source_that_changes_too_early_shows(void **state)
{
    (void)state;
    uint32_t n_wrong = 0;
    for (uint32_t seed = 0; seed < N_SEED; seed++) {
        struct fixture f;
        open_gpu(&f, seed);
        copy(&f, 0, MOEC_GPU_TO_DEVICE, f.device[0], f.pinned[0]);
        memset(f.pinned[0], 0x55, N_BYTES);
        copy(&f, 0, MOEC_GPU_TO_HOST, f.pinned[1], f.device[0]);
        MUST(f.ops->finish(f.gpu, f.streams[0], &err));
        n_wrong += f.pinned[1][0] == 0x55;
        close_gpu(&f);
    }
    assert_in_range(n_wrong, 1, N_SEED);
}

/* A wait holds for the mark that the event had when it was given, not for later ones; and what is waited for
 * may have been recorded in another stream each time. */
static void a_wait_is_for_the_mark_of_its_time(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < N_SEED; seed++) {
        struct fixture f;
        open_gpu(&f, seed);
        bool done = false;
        MUST(f.ops->is_done(f.gpu, f.event, &done, &err)); /* without a mark */
        assert_true(done);
        MUST(f.ops->wait(f.gpu, f.streams[1], f.event, &err));
        copy(&f, 0, MOEC_GPU_TO_DEVICE, f.device[0], f.pinned[0]);
        MUST(f.ops->record(f.gpu, f.streams[0], f.event, &err));
        MUST(f.ops->wait(f.gpu, f.streams[1], f.event, &err));
        copy(&f, 1, MOEC_GPU_TO_HOST, f.pinned[1], f.device[0]);
        MUST(f.ops->record(f.gpu, f.streams[1], f.event, &err));
        MUST(f.ops->wait(f.gpu, f.streams[0], f.event, &err)); /* the copy back was made */
        launch(&f, 0, f.device[0]);
        MUST(f.ops->finish_event(f.gpu, f.event, &err));
        MUST(f.ops->is_done(f.gpu, f.event, &done, &err));
        assert_true(done);
        assert_all(f.pinned[1], 0x10);
        MUST(f.ops->record(f.gpu, f.streams[0], f.event, &err));
        for (done = false; !done;)
            MUST(f.ops->is_done(f.gpu, f.event, &done, &err));
        assert_int_equal(f.device[0][0], 0x11);
        close_gpu(&f);
    }
}

static void memory_is_poisoned_until_it_is_written(void **state)
{
    (void)state;
    struct fixture f;
    open_gpu(&f, 1);
    assert_all(f.device[0], MOEC_HOST_GPU_POISON);
    float value;
    memcpy(&value, f.device[0], sizeof value);
    assert_true(value != value);
    close_gpu(&f);
}

static void copies_keep_to_their_memory(void **state)
{
    (void)state;
    static uint8_t plain[2 * N_BYTES] __attribute__((aligned(4096)));
    struct moec_error wrong = {0};
    struct fixture f;
    open_gpu(&f, 1);
    assert_status(f.ops->copy(f.gpu, f.streams[0],
                              (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, f.device[0], plain, N_BYTES},
                              &wrong),
                  MOEC_ERR_IO, wrong);
    assert_message(wrong, "not pinned");
    MUST(f.ops->pin(f.gpu, plain, sizeof plain, "a test", &err));
    memset(plain, 7, sizeof plain);
    copy(&f, 0, MOEC_GPU_TO_DEVICE, f.device[0], plain + N_BYTES);
    copy(&f, 0, MOEC_GPU_TO_HOST, f.pinned[0], f.device[0]);
    MUST(f.ops->finish(f.gpu, f.streams[0], &err));
    assert_all(f.pinned[0], 7);
    f.ops->unpin(f.gpu, plain);
    wrong = (struct moec_error){0};
    assert_status(
        f.ops->copy(f.gpu, f.streams[0],
                    (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, f.device[0] + 1, f.pinned[0], N_BYTES},
                    &wrong),
        MOEC_ERR_IO, wrong);
    assert_message(wrong, "not the device's");
    wrong = (struct moec_error){0};
    assert_status(f.ops->clear(f.gpu, f.streams[0], f.pinned[0], N_BYTES, &wrong), MOEC_ERR_IO, wrong);
    wrong = (struct moec_error){0};
    assert_status(f.ops->pin(f.gpu, plain + 1, N_BYTES, "a test", &wrong), MOEC_ERR_USAGE, wrong);
    close_gpu(&f);
}

static void a_full_device_says_so_and_goes_on(void **state)
{
    (void)state;
    struct moec_error wrong = {0};
    struct moec_gpu_info info;
    void *memory = NULL;
    struct fixture f;
    open_gpu(&f, 1);
    moec_host_gpu_set_faults(f.gpu, &(struct moec_host_gpu_faults){.capacity_bytes = 4 * N_BYTES});
    MUST(f.ops->info(f.gpu, &info, &err));
    assert_int_equal(info.free_bytes, 2 * N_BYTES);
    assert_status(f.ops->alloc(f.gpu, 3 * N_BYTES, "weights", &memory, &wrong), MOEC_ERR_MEMORY, wrong);
    assert_message(wrong, "no room for weights: 12288 bytes are asked for, 8192 of 16384 are in use");
    MUST(f.ops->alloc(f.gpu, 2 * N_BYTES, "weights", &memory, &err));
    f.ops->free(f.gpu, memory);
    moec_host_gpu_set_faults(f.gpu, &(struct moec_host_gpu_faults){.fail_alloc_at = 2});
    MUST(f.ops->alloc_pinned(f.gpu, 1, "a pool", &memory, &err));
    f.ops->free_pinned(f.gpu, memory);
    wrong = (struct moec_error){0};
    assert_status(f.ops->alloc_pinned(f.gpu, 1, "a pool", &memory, &wrong), MOEC_ERR_MEMORY, wrong);
    assert_message(wrong, "a pool");
    copy(&f, 0, MOEC_GPU_TO_DEVICE, f.device[0], f.pinned[0]);
    MUST(f.ops->finish(f.gpu, f.streams[0], &err));
    close_gpu(&f);
}

static void refused_work_is_reported_once(void **state)
{
    (void)state;
    struct moec_error wrong = {0};
    struct fixture f;
    open_gpu(&f, 1);
    moec_host_gpu_set_faults(f.gpu, &(struct moec_host_gpu_faults){.fail_copy_at = 2, .fail_launch_at = 1});
    copy(&f, 0, MOEC_GPU_TO_DEVICE, f.device[0], f.pinned[0]);
    assert_status(f.ops->copy(f.gpu, f.streams[0],
                              (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, f.device[0], f.pinned[1], N_BYTES},
                              &wrong),
                  MOEC_ERR_IO, wrong);
    launch(&f, 0, f.device[0]);
    launch(&f, 0, f.device[0]);
    wrong = (struct moec_error){0};
    assert_status(f.ops->check(f.gpu, &wrong), MOEC_ERR_IO, wrong);
    assert_message(wrong, "kernel");
    MUST(f.ops->check(f.gpu, &err));
    MUST(f.ops->finish(f.gpu, f.streams[0], &err));
    assert_all(f.device[0], 0x11); /* of all that, what was not refused */
    close_gpu(&f);
}

/* Lost at each piece of work in turn: every call from then on says so, none hangs, and all can be freed. */
static void a_lost_device_answers_and_lets_go(void **state)
{
    (void)state;
    for (uint32_t lose_at = 1; lose_at <= 6; lose_at++) {
        struct moec_error wrong = {0};
        struct fixture f;
        bool done = true;
        open_gpu(&f, lose_at);
        moec_host_gpu_set_faults(f.gpu, &(struct moec_host_gpu_faults){.lose_at = lose_at});
        enum moec_status status = MOEC_OK;
        for (int i = 0; i < 4 && status == MOEC_OK; i++) {
            launch(&f, i % 2, f.device[i % 2]);
            status = f.ops->record(f.gpu, f.streams[i % 2], f.event, &wrong);
            if (status == MOEC_OK)
                status = f.ops->wait(f.gpu, f.streams[1 - i % 2], f.event, &wrong);
        }
        if (status == MOEC_OK)
            status = f.ops->finish_event(f.gpu, f.event, &wrong);
        assert_status(status, MOEC_ERR_IO, wrong);
        assert_message(wrong, "lost");
        assert_status(f.ops->is_done(f.gpu, f.event, &done, &wrong), MOEC_ERR_IO, wrong);
        assert_status(f.ops->finish(f.gpu, f.streams[0], &wrong), MOEC_ERR_IO, wrong);
        assert_status(f.ops->check(f.gpu, &wrong), MOEC_ERR_IO, wrong);
        launch(&f, 0, f.device[0]);
        close_gpu(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_of_a_stream_is_done_in_order),
        cmocka_unit_test(a_missing_wait_shows),
        cmocka_unit_test(a_source_that_changes_too_early_shows),
        cmocka_unit_test(a_wait_is_for_the_mark_of_its_time),
        cmocka_unit_test(memory_is_poisoned_until_it_is_written),
        cmocka_unit_test(copies_keep_to_their_memory),
        cmocka_unit_test(a_full_device_says_so_and_goes_on),
        cmocka_unit_test(refused_work_is_reported_once),
        cmocka_unit_test(a_lost_device_answers_and_lets_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
