#include "tests/unit/temporary.h"

#include "formats/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* What follows takes the C library's place: folders cannot be synced while a test wants it so, and what was
 * synced before it got its name, and what after, is kept. */
static bool folders_fail;
static struct {
    ino_t synced[8]; /* the last that were, and the bytes that they had then */
    off_t n_bytes[8];
    size_t n_synced;
    size_t n_renamed, n_renamed_unsynced; /* since the test began */
    ino_t folder_synced;                  /* after the last rename; 0: none */
} seen;

int fsync(int fd)
{
    struct stat info;
    if (fstat(fd, &info) == 0) {
        if (folders_fail && S_ISDIR(info.st_mode)) {
            errno = EIO;
            return -1;
        }
        if (S_ISDIR(info.st_mode) && seen.n_renamed > 0)
            seen.folder_synced = info.st_ino;
        seen.synced[seen.n_synced % 8] = info.st_ino;
        seen.n_bytes[seen.n_synced++ % 8] = info.st_size;
    }
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    struct stat info;
    bool is_synced = false;
    assert_int_equal(lstat(from, &info), 0);
    for (size_t i = 0; i < seen.n_synced && i < 8; i++)
        is_synced = is_synced || (seen.synced[i] == info.st_ino && seen.n_bytes[i] == info.st_size);
    seen.n_renamed++;
    seen.n_renamed_unsynced += !is_synced;
    seen.folder_synced = 0;
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

static void test_file__open_refuses_what_is_no_file(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    char *missing = temporary_path(folder, "missing"), *fifo = temporary_path(folder, "fifo");
    struct moec_file file;
    struct moec_error err = {0};
    assert_status(moec_file_open(&file, missing, &err), MOEC_ERR_NOT_FOUND, err);
    assert_message(err, missing);
    assert_int_equal(file.fd, -1);
    err = (struct moec_error){0};
    assert_status(moec_file_open(&file, folder, &err), MOEC_ERR_IO, err);
    assert_message(err, "a directory");
    err = (struct moec_error){0};
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_status(moec_file_open(&file, fifo, &err), MOEC_ERR_IO, err);
    assert_message(err, "special file");
    moec_file_close(&file);
    moec_file_close(NULL);
    free(missing);
    free(fifo);
    temporary_remove(folder);
}

static void test_file__read_gives_exact_bytes_or_place(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    temporary_write(folder, "data", "0123456789", 10);
    char *path = temporary_path(folder, "data");
    struct moec_file file;
    struct moec_error err = {0};
    char buffer[16] = {0};
    assert_status(moec_file_open(&file, path, &err), MOEC_OK, err);
    assert_int_equal(file.n_bytes, 10);
    assert_status(moec_file_read(&file, 3, buffer, 7, &err), MOEC_OK, err);
    assert_string_equal(buffer, "3456789");
    assert_status(moec_file_read(&file, 10, buffer, 0, &err), MOEC_OK, err);
    assert_status(moec_file_read(&file, 8, buffer, 5, &err), MOEC_ERR_IO, err);
    assert_message(err, "ends at offset 10");
    assert_message(err, path);
    err = (struct moec_error){0};
    assert_status(moec_file_read(&file, UINT64_MAX - 1, buffer, 5, &err), MOEC_ERR_IO, err);
    moec_file_drop(&file, 0, 10);
    moec_file_close(&file);
    moec_file_close(&file);
    free(path);
    temporary_remove(folder);
}

static void test_file__load_has_a_limit_and_a_nul(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    temporary_write(folder, "data", "abc", 3);
    temporary_write(folder, "empty", "", 0);
    char *path = temporary_path(folder, "data"), *empty = temporary_path(folder, "empty"), *bytes = NULL;
    size_t n = 0;
    struct moec_error err = {0};
    assert_status(moec_file_load(path, 3, &bytes, &n, &err), MOEC_OK, err);
    assert_int_equal(n, 3);
    assert_string_equal(bytes, "abc");
    free(bytes);
    assert_status(moec_file_load(empty, 3, &bytes, &n, &err), MOEC_OK, err);
    assert_int_equal(n, 0);
    assert_string_equal(bytes, "");
    free(bytes);
    assert_status(moec_file_load(path, 2, &bytes, &n, &err), MOEC_ERR_LIMIT, err);
    assert_message(err, "3 bytes");
    free(path);
    free(empty);
    temporary_remove(folder);
}

static void test_file__output_appears_only_when_committed(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    char *path = temporary_path(folder, "out.bin");
    struct moec_output output;
    struct moec_error err = {0};
    size_t n = 0;
    assert_status(moec_output_open(&output, path, &err), MOEC_OK, err);
    assert_status(moec_output_append(&output, "abc", 3, &err), MOEC_OK, err);
    assert_status(moec_output_align(&output, 8, &err), MOEC_OK, err);
    assert_status(moec_output_align(&output, 8, &err), MOEC_OK, err);
    assert_int_equal(output.n_bytes, 8);
    assert_status(moec_output_append(&output, "def", 3, &err), MOEC_OK, err);
    assert_status(moec_output_patch(&output, 1, "X", 1, &err), MOEC_OK, err);
    assert_false(moec_path_exists(path));
    assert_status(moec_output_commit(&output, &err), MOEC_OK, err);
    uint8_t *bytes = temporary_read(folder, "out.bin", &n);
    assert_int_equal(n, 11);
    assert_memory_equal(bytes, "aXc\0\0\0\0\0def", 11);
    free(bytes);
    assert_int_equal(temporary_count(folder), 1);
    moec_output_abort(&output);
    moec_output_abort(NULL);
    assert_true(moec_path_exists(path));
    free(path);
    temporary_remove(folder);
}

static void test_file__abort_keeps_what_was_there(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    temporary_write(folder, "out", "old", 3);
    char *path = temporary_path(folder, "out");
    struct moec_output output;
    struct moec_error err = {0};
    size_t n = 0;
    assert_status(moec_output_open(&output, path, &err), MOEC_OK, err);
    assert_status(moec_output_append(&output, "new!", 4, &err), MOEC_OK, err);
    assert_status(moec_output_patch(&output, 2, "345", 3, &err), MOEC_ERR_IO, err);
    assert_message(err, "only its first 4 bytes");
    moec_output_abort(&output);
    moec_output_abort(&output);
    uint8_t *bytes = temporary_read(folder, "out", &n);
    assert_int_equal(n, 3);
    assert_memory_equal(bytes, "old", 3);
    free(bytes);
    assert_int_equal(temporary_count(folder), 1);
    free(path);
    temporary_remove(folder);
}

static void test_file__output_goes_where_a_link_leads(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    temporary_write(folder, "file", "old", 3);
    char *link = temporary_path(folder, "link"), target[64] = {0};
    struct moec_output output;
    struct moec_error err = {0};
    size_t n = 0;
    assert_int_equal(symlink("file", link), 0);
    assert_status(moec_output_open(&output, link, &err), MOEC_OK, err);
    assert_status(moec_output_append(&output, "new!", 4, &err), MOEC_OK, err);
    assert_status(moec_output_commit(&output, &err), MOEC_OK, err);
    assert_int_equal(readlink(link, target, sizeof target - 1), 4);
    assert_string_equal(target, "file");
    uint8_t *bytes = temporary_read(folder, "file", &n);
    assert_int_equal(n, 4);
    assert_memory_equal(bytes, "new!", 4);
    free(bytes);
    free(link);
    temporary_remove(folder);
}

static void test_file__output_refuses_impossible_targets(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    char *inside_missing = temporary_path(folder, "missing/out"), *slash = temporary_path(folder, "name/");
    const char *const targets[] = {"/dev/null", folder, inside_missing, slash, ""};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        struct moec_output output;
        struct moec_error err = {0};
        assert_status(moec_output_open(&output, targets[i], &err), MOEC_ERR_IO, err);
        assert_int_equal(output.fd, -1);
        moec_output_abort(&output);
    }
    struct stat info;
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    assert_int_equal(temporary_count(folder), 0);
    free(inside_missing);
    free(slash);
    temporary_remove(folder);
}

static void test_file__full_disk_is_reported(void **state)
{
    (void)state;
    if (access("/dev/full", W_OK) != 0)
        skip();
    struct moec_error err = {0};
    struct moec_output output = {.fd = open("/dev/full", O_WRONLY | O_CLOEXEC)};
    assert_true(output.fd >= 0);
    output.path = strdup("full");
    assert_status(moec_output_append(&output, "abc", 3, &err), MOEC_ERR_IO, err);
    assert_message(err, "'full'");
    assert_int_equal(output.n_bytes, 0);
    moec_output_abort(&output);
}

/* A child that opens an output, says so and then waits for a byte or ends at once. */
static pid_t writer(const char *path, int ready, int wait_for)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    struct moec_output output;
    struct moec_error err = {0};
    char byte = 0;
    if (moec_output_open(&output, path, &err) != MOEC_OK ||
        moec_output_append(&output, "x", 1, &err) != MOEC_OK)
        _exit(1);
    if (write(ready, "r", 1) != 1)
        _exit(1);
    if (wait_for >= 0 && read(wait_for, &byte, 1) < 0)
        _exit(1);
    _exit(0);
}

static void test_file__leftovers_of_dead_writers_are_removed(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    char *path = temporary_path(folder, "out");
    int ready[2], hold[2], result = -1;
    char byte;
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(hold), 0);
    pid_t dead = writer(path, ready[1], -1);
    assert_int_equal(waitpid(dead, &result, 0), dead);
    assert_int_equal(result, 0);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(temporary_count(folder), 1);

    pid_t alive = writer(path, ready[1], hold[0]); /* removes the leftover and stays */
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(temporary_count(folder), 1);

    struct moec_output output;
    struct moec_error err = {0};
    temporary_write(folder, ".out.moec-tmp-notes", "mine", 4); /* looks alike, but is no temporary */
    assert_status(moec_output_open(&output, path, &err), MOEC_OK, err);
    assert_int_equal(temporary_count(folder), 3);
    assert_status(moec_output_commit(&output, &err), MOEC_OK, err);
    assert_int_equal(temporary_count(folder), 3);
    assert_int_equal(write(hold[1], "e", 1), 1);
    assert_int_equal(waitpid(alive, &result, 0), alive);
    (void)close(hold[0]);
    (void)close(hold[1]);
    (void)close(ready[0]);
    (void)close(ready[1]);
    free(path);
    temporary_remove(folder);
}

/* Process ids are given again, and runs in containers may all have the same: only locks tell. */
static void test_file__leftovers_with_the_id_of_a_living_process_are_removed(void **state)
{
    (void)state;
    char *folder = temporary_folder(), name[64];
    char *path = temporary_path(folder, "out");
    const long ids[] = {(long)getpid(), (long)getppid()};
    struct moec_output output;
    struct moec_error err = {0};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        (void)snprintf(name, sizeof name, ".out.moec-tmp-%ld-77", ids[i]);
        temporary_write(folder, name, "left", 4);
    }
    assert_int_equal(temporary_count(folder), 2);
    assert_status(moec_output_open(&output, path, &err), MOEC_OK, err);
    assert_int_equal(temporary_count(folder), 1);
    struct moec_output second; /* a living writer's stays, of this process too */
    assert_status(moec_output_open(&second, path, &err), MOEC_OK, err);
    assert_int_equal(temporary_count(folder), 2);
    moec_output_abort(&second);
    temporary_write(folder, name, "left", 4);
    assert_status(moec_output_remove_abandoned(path, &err), MOEC_OK, err);
    assert_int_equal(temporary_count(folder), 1);
    moec_output_abort(&output);
    assert_int_equal(temporary_count(folder), 0);
    free(path);
    temporary_remove(folder);
}

static void test_file__a_folder_that_cannot_be_synced(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    char *path = temporary_path(folder, "out");
    struct moec_output output;
    struct moec_output_folder made;
    struct moec_error err = {0};
    assert_status(moec_output_open(&output, path, &err), MOEC_OK, err);
    assert_status(moec_output_append(&output, "whole", 5, &err), MOEC_OK, err);
    folders_fail = true;
    assert_status(moec_output_commit(&output, &err), MOEC_ERR_IO, err);
    folders_fail = false;
    assert_message(err, "out' is complete and in place");
    assert_message(err, "Input/output error");
    assert_true(moec_path_exists(path));
    assert_int_equal(temporary_count(folder), 1);
    assert_int_equal(unlink(path), 0);

    err = (struct moec_error){0};
    assert_status(moec_output_folder_open(&made, path, &err), MOEC_OK, err);
    folders_fail = true;
    assert_status(moec_output_folder_commit(&made, &err), MOEC_ERR_IO, err);
    folders_fail = false;
    assert_false(strstr(err.message, "in place") != NULL); /* it failed before the rename */
    assert_false(moec_path_exists(path));
    free(path);
    temporary_remove(folder);
}

/* A power cut after the rename must not leave a name without its bytes: first they are synced, then they get
 * the name, then the folder that holds it is synced. */
static void test_file__outputs_are_synced_before_they_get_their_name(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "out");
    struct stat info;
    struct moec_output output;
    struct moec_error err = {0};
    memset(&seen, 0, sizeof seen);
    assert_int_equal(stat(folder, &info), 0);
    assert_status(moec_output_open(&output, path, &err), MOEC_OK, err);
    assert_status(moec_output_append(&output, "0123456789", 10, &err), MOEC_OK, err);
    assert_status(moec_output_patch(&output, 0, "abc", 3, &err), MOEC_OK, err);
    assert_int_equal(seen.n_renamed, 0);
    assert_status(moec_output_commit(&output, &err), MOEC_OK, err);
    assert_int_equal(seen.n_renamed, 1);
    assert_int_equal(seen.n_renamed_unsynced, 0);
    assert_true(seen.folder_synced == info.st_ino);

    /* A folder of files: each of them, then the folder, then the one that it is in. */
    char *several = temporary_path(folder, "several");
    struct moec_output_folder outputs;
    memset(&seen, 0, sizeof seen);
    assert_status(moec_output_folder_open(&outputs, several, &err), MOEC_OK, err);
    char *file = temporary_path(outputs.temporary, "file");
    assert_status(moec_output_open(&output, file, &err), MOEC_OK, err);
    assert_status(moec_output_append(&output, "0123456789", 10, &err), MOEC_OK, err);
    assert_status(moec_output_commit(&output, &err), MOEC_OK, err);
    assert_status(moec_output_folder_commit(&outputs, &err), MOEC_OK, err);
    assert_int_equal(seen.n_renamed, 2);
    assert_int_equal(seen.n_renamed_unsynced, 0);
    assert_true(seen.folder_synced == info.st_ino);
    free(file);
    free(several);
    free(path);
    temporary_remove(folder);
}

static void test_file__paths(void **state)
{
    (void)state;
    struct moec_error err = {0};
    char *path = NULL;
    assert_status(moec_path_join(&path, "a", "b", &err), MOEC_OK, err);
    assert_string_equal(path, "a/b");
    free(path);
    assert_status(moec_path_join(&path, "a/", "b", &err), MOEC_OK, err);
    assert_string_equal(path, "a/b");
    free(path);
    assert_status(moec_path_join(&path, "/", "b", &err), MOEC_OK, err);
    assert_string_equal(path, "/b");
    free(path);
    assert_true(moec_path_is_folder("/"));
    assert_false(moec_path_is_folder("/dev/null"));
    assert_true(moec_path_exists("/dev/null"));
    assert_false(moec_path_exists("/no/such/path"));
}

static void test_file__find_tells_absent_from_broken(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    char *loop = temporary_path(folder, "loop"), *nowhere = temporary_path(folder, "nowhere");
    char *file = temporary_path(folder, "file"), *below = temporary_path(folder, "file/below");
    struct moec_error err = {0};
    bool found = false;
    assert_int_equal(symlink("loop", loop), 0);
    assert_int_equal(symlink("absent", nowhere), 0);
    temporary_write(folder, "file", "x", 1);
    const char *const there[] = {loop, nowhere, file, folder};
    for (size_t i = 0; i < 4; i++) {
        found = false;
        assert_status(moec_path_find(there[i], &found, &err), MOEC_OK, err);
        assert_true(found);
    }
    assert_int_equal(unlink(nowhere), 0);
    assert_status(moec_path_find(nowhere, &found, &err), MOEC_OK, err);
    assert_false(found);
    assert_status(moec_path_find(below, &found, &err), MOEC_ERR_IO, err);
    assert_message(err, below);
    free(loop);
    free(nowhere);
    free(file);
    free(below);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file__open_refuses_what_is_no_file),
        cmocka_unit_test(test_file__read_gives_exact_bytes_or_place),
        cmocka_unit_test(test_file__load_has_a_limit_and_a_nul),
        cmocka_unit_test(test_file__output_appears_only_when_committed),
        cmocka_unit_test(test_file__abort_keeps_what_was_there),
        cmocka_unit_test(test_file__output_goes_where_a_link_leads),
        cmocka_unit_test(test_file__output_refuses_impossible_targets),
        cmocka_unit_test(test_file__full_disk_is_reported),
        cmocka_unit_test(test_file__leftovers_of_dead_writers_are_removed),
        cmocka_unit_test(test_file__leftovers_with_the_id_of_a_living_process_are_removed),
        cmocka_unit_test(test_file__a_folder_that_cannot_be_synced),
        cmocka_unit_test(test_file__outputs_are_synced_before_they_get_their_name),
        cmocka_unit_test(test_file__paths),
        cmocka_unit_test(test_file__find_tells_absent_from_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
