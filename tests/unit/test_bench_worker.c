/* A bench's worker processes and what they stand on: frames, energy counters, token sequences. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

#include "formats/base/pipe.h"
#include "profiler/bench/bench_tokens.h"
#include "profiler/bench/energy.h"

#include <math.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

struct fixture {
    struct sample_fixture of;
    struct moec_bench_tokens tokens;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    sample_make(&f->of.sample, 4, 8, 4, 12);
    sample_open(&f->of);
    f->tokens = (struct moec_bench_tokens){.n_sample = 3, .prompt_tokens = 5, .n_tokens = 4};
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    moec_bench_tokens_release(&f->tokens);
    sample_close(&f->of);
    free(f);
    return 0;
}

/* ---- frames ---- */

static void test_bench_worker__frames(void **state)
{
    int sockets[2];
    uint8_t kind = 0, payload[3];
    uint32_t n = 0;
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    assert_true(moec_pipe_send(sockets[0], 'S', "abc", 3));
    assert_int_equal(moec_pipe_read_head(sockets[1], &kind, &n, -1), MOEC_PIPE_OK);
    assert_int_equal(kind, 'S');
    assert_int_equal(n, 3);
    assert_int_equal(moec_pipe_read(sockets[1], payload, 3, -1), MOEC_PIPE_OK);
    assert_memory_equal(payload, "abc", 3);
    assert_int_equal(moec_pipe_read(sockets[1], payload, 1, moec_pipe_now_ms() + 5), MOEC_PIPE_LATE);
    assert_true(moec_pipe_write(sockets[0], "xy", 2));
    assert_int_equal(close(sockets[0]), 0);
    assert_int_equal(moec_pipe_read(sockets[1], payload, 3, -1), MOEC_PIPE_CLOSED);
    assert_false(moec_pipe_send(sockets[1], 'S', "abc", 3)); /* and no signal */
    assert_int_equal(close(sockets[1]), 0);
}

/* ---- energy ---- */

static void write_zone(const char *folder, const char *zone, const char *name, const char *energy)
{
    char *path = temporary_path(folder, zone);
    (void)mkdir(path, 0755);
    temporary_write(path, "name", name, strlen(name));
    temporary_write(path, "max_energy_range_uj", "1000000\n", 8);
    temporary_write(path, "energy_uj", energy, strlen(energy));
    free(path);
}

static void test_bench_worker__energy(void **state)
{
    const struct fixture *f = *state;
    struct moec_energy energy;
    write_zone(f->of.folder, "intel-rapl:0", "package-0\n", "900000\n");
    write_zone(f->of.folder, "intel-rapl:0:0", "core\n", "1\n"); /* part of the package: not counted twice */
    write_zone(f->of.folder, "intel-rapl:0:1", "dram\n", "100\n");
    moec_energy_open(&energy, f->of.folder);
    assert_int_equal(energy.n, 2);
    write_zone(f->of.folder, "intel-rapl:0", "package-0\n", "50000\n"); /* went round */
    write_zone(f->of.folder, "intel-rapl:0:0", "core\n", "500000\n");
    write_zone(f->of.folder, "intel-rapl:0:1", "dram\n", "200100\n");
    assert_true(fabs(moec_energy_take(&energy) - 0.35) < 1e-9);
    assert_true(fabs(moec_energy_take(&energy)) < 1e-9);
    moec_energy_close(&energy);
    moec_energy_open(&energy, "/nowhere");
    assert_int_equal(energy.n, 0);
    assert_true(isnan(moec_energy_take(&energy)));
    moec_energy_close(&energy);
}

/* ---- tokens ---- */

static void test_bench_worker__own_text(void **state)
{
    struct fixture *f = *state;
    struct moec_bench_tokens again = f->tokens;
    struct moec_error err = {0};
    assert_status(moec_bench_tokens_make(f->of.bundle, NULL, &f->tokens, &err), MOEC_OK, err);
    assert_status(moec_bench_tokens_make(f->of.bundle, NULL, &again, &err), MOEC_OK, err);
    assert_memory_equal(again.digest, f->tokens.digest, sizeof again.digest);
    for (uint32_t i = 0; i < 4 * 9; i++)
        assert_true(f->tokens.tokens[i] < f->of.bundle->config.n_vocab);
    moec_bench_tokens_release(&again);
}

static void test_bench_worker__data(void **state)
{
    struct fixture *f = *state;
    const struct moec_task task = moec_task_text();
    struct moec_rows rows;
    struct moec_error err = {0};
    /* 36 tokens "a": four windows of nine, three samples and the one that is not counted. */
    static const char text[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    assert_status(
        moec_rows_parse(&task, &(struct moec_task_data){MOEC_TASK_FORMAT_TEXT, 0, text, sizeof text - 1, "a"},
                        &rows, &err),
        MOEC_OK, err);
    assert_status(moec_bench_tokens_make(f->of.bundle, &rows, &f->tokens, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < 4 * 9; i++)
        assert_int_equal(f->tokens.tokens[i], 0);
    moec_bench_tokens_release(&f->tokens);
    f->tokens.n_sample = 5;
    assert_int_equal(moec_bench_tokens_make(f->of.bundle, &rows, &f->tokens, &err), MOEC_ERR_LIMIT);
    assert_non_null(strstr(err.message, "4 windows of 9 tokens, expected 5"));
    assert_null(f->tokens.tokens);
    err = (struct moec_error){0};
    f->tokens.n_sample = 0;
    assert_int_equal(moec_bench_tokens_make(f->of.bundle, &rows, &f->tokens, &err), MOEC_ERR_USAGE);
    moec_rows_release(&rows);
}

/* ---- workers ---- */

static void start(struct fixture *f, const char *path, struct moec_bench_worker_setup *setup,
                  struct moec_bench_worker *worker)
{
    struct moec_error err = {0};
    assert_status(moec_bench_tokens_make(f->of.bundle, NULL, &f->tokens, &err), MOEC_OK, err);
    *setup = (struct moec_bench_worker_setup){
        .path = path, .engine = {.cpu = "auto", .n_threads = 1}, .tokens = &f->tokens};
    assert_status(moec_bench_worker_start(setup, NULL, 0, worker, &err), MOEC_OK, err);
}

static void test_bench_worker__computes(void **state)
{
    struct fixture *f = *state;
    struct moec_bench_worker_setup setup;
    struct moec_bench_worker worker;
    struct moec_bench_opened opened;
    struct moec_bench_sample sample, again;
    struct moec_bench_token decoded[4];
    struct moec_error err = {0};
    start(f, f->of.path, &setup, &worker);
    assert_status(moec_bench_worker_opened(&worker, NULL, &opened, &err), MOEC_OK, err);
    assert_int_equal(opened.n_threads, 1);
    assert_true(opened.expert_total_bytes > 0);
    for (uint32_t s = 0; s <= f->tokens.n_sample; s++) {
        assert_status(moec_bench_worker_run(&worker, s, NULL, &sample,
                                            &(struct moec_bench_decoded){decoded, f->tokens.n_tokens}, &err),
                      MOEC_OK, err);
        assert_true(sample.prefill_ns > 0 && sample.peak_bytes > 0);
        for (uint32_t i = 0; i < f->tokens.n_tokens; i++)
            assert_true(decoded[i].ns > 0);
        /* two MoE layers, top-2 */
        assert_int_equal(sample.decode.hits + sample.decode.late + sample.decode.misses,
                         4 * f->tokens.n_tokens);
    }
    assert_status(moec_bench_worker_run(&worker, 3, NULL, &again,
                                        &(struct moec_bench_decoded){decoded, f->tokens.n_tokens}, &err),
                  MOEC_OK, err);
    assert_int_equal(again.logits_crc, sample.logits_crc);
    const pid_t pid = worker.pid;
    assert_status(moec_bench_worker_finish(&worker, &err), MOEC_OK, err);
    assert_status(moec_bench_worker_finish(&worker, &err), MOEC_OK, err);
    moec_bench_worker_end(&worker);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), -1); /* no zombie */
}

/* A folder that takes the trace's name meanwhile is the kind of a disk that is full at the end. */
static void test_bench_worker__reports_a_missing_trace(void **state)
{
    struct fixture *f = *state;
    struct moec_bench_worker_setup setup = {
        .path = f->of.path, .engine = {.cpu = "auto", .n_threads = 1}, .tokens = &f->tokens};
    struct moec_bench_worker worker;
    struct moec_bench_opened opened;
    struct moec_error err = {0};
    char *trace = temporary_path(f->of.folder, "trace.json");
    assert_status(moec_bench_tokens_make(f->of.bundle, NULL, &f->tokens, &err), MOEC_OK, err);
    setup.engine.trace.path = trace;
    assert_status(moec_bench_worker_start(&setup, NULL, 0, &worker, &err), MOEC_OK, err);
    assert_status(moec_bench_worker_opened(&worker, NULL, &opened, &err), MOEC_OK, err);
    assert_int_equal(mkdir(trace, 0755), 0);
    assert_int_equal(moec_bench_worker_finish(&worker, &err), MOEC_ERR_IO);
    assert_non_null(strstr(err.message, "trace.json"));
    assert_int_equal(worker.pid, 0);
    assert_int_equal(rmdir(trace), 0);
    free(trace);
}

static void test_bench_worker__reports_failure(void **state)
{
    struct fixture *f = *state;
    struct moec_bench_worker_setup setup;
    struct moec_bench_worker worker;
    struct moec_bench_opened opened;
    struct moec_error err = {0};
    start(f, "/nowhere/x.moec", &setup, &worker);
    assert_int_equal(moec_bench_worker_opened(&worker, NULL, &opened, &err), MOEC_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nowhere/x.moec"));
    moec_bench_worker_end(&worker);
}

static void test_bench_worker__dies(void **state)
{
    struct fixture *f = *state;
    struct moec_bench_worker_setup setup;
    struct moec_bench_worker worker;
    struct moec_bench_opened opened;
    struct moec_bench_sample sample;
    struct moec_bench_token decoded[4];
    struct moec_error err = {0};
    start(f, f->of.path, &setup, &worker);
    assert_status(moec_bench_worker_opened(&worker, NULL, &opened, &err), MOEC_OK, err);
    assert_int_equal(kill(worker.pid, SIGABRT), 0);
    assert_int_equal(moec_bench_worker_run(&worker, 0, NULL, &sample,
                                           &(struct moec_bench_decoded){decoded, f->tokens.n_tokens}, &err),
                     MOEC_ERR_IO);
    assert_non_null(strstr(err.message, "ended by signal 6"));
    assert_int_equal(worker.pid, 0);
    err = (struct moec_error){0};
    assert_int_equal(moec_bench_worker_run(&worker, 0, NULL, &sample,
                                           &(struct moec_bench_decoded){decoded, f->tokens.n_tokens}, &err),
                     MOEC_ERR_IO);
    moec_bench_worker_end(&worker);
}

static enum moec_status refuse(void *context, struct moec_error *err)
{
    (void)context;
    return moec_fail(err, MOEC_ERR_CANCELLED, "enough");
}

static void test_bench_worker__is_stopped(void **state)
{
    struct fixture *f = *state;
    const struct moec_bench_wait wait = {.poll = refuse};
    struct moec_bench_worker_setup setup;
    struct moec_bench_worker worker;
    struct moec_bench_opened opened;
    struct moec_bench_sample sample;
    struct moec_bench_token decoded[4];
    struct moec_error err = {0};
    start(f, f->of.path, &setup, &worker);
    assert_status(moec_bench_worker_opened(&worker, NULL, &opened, &err), MOEC_OK, err);
    assert_int_equal(kill(worker.pid, SIGSTOP), 0); /* as one that never answers */
    assert_int_equal(moec_bench_worker_run(&worker, 0, &wait, &sample,
                                           &(struct moec_bench_decoded){decoded, f->tokens.n_tokens}, &err),
                     MOEC_ERR_CANCELLED);
    const pid_t pid = worker.pid;
    moec_bench_worker_end(&worker);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bench_worker__frames),
        cmocka_unit_test_setup_teardown(test_bench_worker__energy, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bench_worker__own_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bench_worker__data, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bench_worker__computes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bench_worker__reports_a_missing_trace, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bench_worker__reports_failure, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bench_worker__dies, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bench_worker__is_stopped, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
