/* Claims on outputs: one holder at a time, whatever name leads there, and none after a killed process. */
#include "tests/unit/temporary.h"

#include "formats/base/claim.h"
#include "formats/base/file.h"

#include <fcntl.h>
#include <sys/wait.h>

/* A process that claims `path`, says so and waits; it ends with 0 when it had the claim. */
static pid_t holder(const char *path, int ready, int hold)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0)
        return child;
    struct moec_claim claim;
    char byte;
    const bool has = moec_claim_take(&claim, path, NULL) == MOEC_OK;
    if (write(ready, "r", 1) != 1 || read(hold, &byte, 1) != 1)
        _exit(2);
    _exit(has ? 0 : 1); /* without releasing: as killed */
}

static void test_claim__one_at_a_time(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    char *path = temporary_path(folder, "out"), *link = temporary_path(folder, "link");
    int ready[2], hold[2], result = -1;
    char byte;
    struct moec_claim claim, second;
    struct moec_error err = {0};
    temporary_write(folder, "out", "old", 3);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(hold), 0);
    const pid_t child = holder(path, ready[1], hold[0]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_status(moec_claim_take(&claim, path, &err), MOEC_ERR_IO, err);
    assert_message(err, "another run is writing");
    moec_claim_release(&claim); /* of nothing */
    assert_status(moec_claim_take(&claim, link, &err), MOEC_ERR_IO, err);
    assert_int_equal(write(hold[1], "e", 1), 1);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);

    char *lock = temporary_path(folder, ".out.moec-lock");
    assert_true(moec_path_exists(lock)); /* left by the child */
    temporary_write(folder, ".out.moec-tmp-1-0", "left", 4);
    char *left = temporary_path(folder, ".out.moec-tmp-1-0");
    err = (struct moec_error){0};
    assert_status(moec_claim_take(&claim, link, &err), MOEC_OK, err);
    assert_false(moec_path_exists(left));
    assert_status(moec_claim_take(&second, path, &err), MOEC_ERR_IO, err);
    moec_claim_release(&second);
    assert_true(moec_path_exists(lock));
    moec_claim_release(&claim);
    moec_claim_release(&claim);
    assert_false(moec_path_exists(lock));
    for (int i = 0; i < 2; i++) {
        (void)close(ready[i]);
        (void)close(hold[i]);
    }
    free(path);
    free(link);
    free(lock);
    free(left);
    temporary_remove(folder);
}

static void test_claim__where_nothing_can_be_written(void **state)
{
    (void)state;
    struct moec_claim claim;
    struct moec_error err = {0};
    assert_status(moec_claim_take(&claim, "/no/such/folder/out", &err), MOEC_ERR_IO, err);
    assert_message(err, "cannot write '/no/such/folder/out'");
    moec_claim_release(&claim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claim__one_at_a_time),
        cmocka_unit_test(test_claim__where_nothing_can_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
