/* What is done where flock fails: its own definition here stands for that of network file systems. */
#include "tests/unit/temporary.h"

#include "formats/base/claim.h"
#include "formats/base/file.h"
#include "formats/base/lock.h"
#include "profiler/common/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

static int answer;    /* errno of flock; 0: it succeeds */
static int n_refused; /* how often it still answers EINTR */

int flock(int fd, int operation)
{
    (void)fd;
    assert_int_equal(operation, LOCK_EX | LOCK_NB);
    errno = n_refused > 0 ? EINTR : answer;
    return n_refused-- > 0 || answer != 0 ? -1 : 0;
}

static const int without_locks[] = {ENOLCK, ENOSYS, EOPNOTSUPP};
#define N_WITHOUT (sizeof without_locks / sizeof *without_locks)

static void setup(int error)
{
    answer = error;
    n_refused = 0;
}

static void test_lock__answers(void **state)
{
    (void)state;
    struct moec_error err = {0};
    enum moec_lock lock = MOEC_LOCK_BUSY;
    setup(0);
    assert_status(moec_lock_try(1, "x", &lock, &err), MOEC_OK, err);
    assert_int_equal(lock, MOEC_LOCK_TAKEN);
    n_refused = 2; /* a signal is no answer */
    assert_status(moec_lock_try(1, "x", &lock, &err), MOEC_OK, err);
    assert_int_equal(lock, MOEC_LOCK_TAKEN);
    setup(EWOULDBLOCK);
    assert_status(moec_lock_try(1, "x", &lock, &err), MOEC_OK, err);
    assert_int_equal(lock, MOEC_LOCK_BUSY);
    for (size_t i = 0; i < N_WITHOUT; i++) {
        setup(without_locks[i]);
        assert_status(moec_lock_try(1, "x", &lock, &err), MOEC_OK, err);
        assert_int_equal(lock, MOEC_LOCK_NONE);
    }
    setup(EIO);
    assert_status(moec_lock_try(1, "x", &lock, &err), MOEC_ERR_IO, err);
    assert_message(err, "cannot lock 'x': Input/output error");
}

static char noted[1024];

static void note(void *context, const char *line)
{
    (void)context;
    (void)snprintf(noted, sizeof noted, "%s", line);
}

static void test_lock__work_goes_on_without(void **state)
{
    (void)state;
    const struct moec_progress progress = {.note = note};
    struct moec_job_text job = {0};
    moec_job_line(&job, "moec", "1");
    for (size_t i = 0; i < N_WITHOUT; i++) {
        char *folder = temporary_folder(), *path = temporary_path(folder, "x.journal"),
             *out = temporary_path(folder, "out");
        struct moec_units *units = NULL;
        struct moec_claim claim;
        struct moec_output output;
        struct moec_error err = {0};
        setup(without_locks[i]);
        noted[0] = '\0';
        assert_status(moec_units_open(path, MOEC_UNITS_NEW, &job, &progress, &units, &err), MOEC_OK, err);
        assert_non_null(strstr(noted, "x.journal' cannot be locked"));
        const double value = 3;
        const struct moec_unit_part part = {(void *)&value, sizeof value};
        assert_status(moec_unit_keep(units, &(struct moec_unit){"a", &part, 1}, 0, &err), MOEC_OK, err);
        moec_units_close(units);
        noted[0] = '\0';
        assert_status(moec_units_open(path, MOEC_UNITS_AUTO, &job, &progress, &units, &err), MOEC_OK, err);
        assert_int_equal(moec_units_found_count(units), 0);
        assert_non_null(strstr(noted, "cannot be locked"));
        moec_units_discard(units);

        assert_status(moec_claim_take(&claim, out, &err), MOEC_OK, err);
        assert_status(moec_output_open(&output, out, &err), MOEC_OK, err);
        assert_status(moec_output_append(&output, "done", 4, &err), MOEC_OK, err);
        assert_status(moec_output_commit(&output, &err), MOEC_OK, err);
        moec_claim_release(&claim);
        assert_true(moec_path_exists(out));
        free(out);
        free(path);
        temporary_remove(folder);
    }
}

static void test_lock__another_writer_and_other_errors(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "x.journal");
    struct moec_job_text job = {0};
    struct moec_units *units = NULL;
    struct moec_claim claim;
    struct moec_error err = {0};
    moec_job_line(&job, "moec", "1");
    setup(EWOULDBLOCK);
    assert_status(moec_units_open(path, MOEC_UNITS_NEW, &job, NULL, &units, &err), MOEC_ERR_IO, err);
    assert_message(err, "is being written by another process");
    err = (struct moec_error){0};
    assert_status(moec_claim_take(&claim, path, &err), MOEC_ERR_IO, err);
    assert_message(err, "another run is writing");
    setup(EIO);
    char *other = temporary_path(folder, "y.journal");
    err = (struct moec_error){0};
    assert_status(moec_units_open(other, MOEC_UNITS_NEW, &job, NULL, &units, &err), MOEC_ERR_IO, err);
    assert_message(err, "y.journal': Input/output error");
    err = (struct moec_error){0};
    assert_status(moec_claim_take(&claim, other, &err), MOEC_ERR_IO, err);
    assert_message(err, "moec-lock': Input/output error");
    setup(0);
    free(other);
    free(path);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock__answers),
        cmocka_unit_test(test_lock__work_goes_on_without),
        cmocka_unit_test(test_lock__another_writer_and_other_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
