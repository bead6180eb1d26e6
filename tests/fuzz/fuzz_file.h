/* A file for parsers that read by path: one a process, in memory where the system has such a folder, gone
 * when the process ends. */
#ifndef MOEC_TESTS_FUZZ_FILE_H
#define MOEC_TESTS_FUZZ_FILE_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void require(bool holds)
{
    if (!holds)
        abort();
}

static char path[40];

static void remove_file(void)
{
    (void)unlink(path);
}

/* The file of this process with these bytes; `name` is the target's. */
static void write_file(const char *name, const void *bytes, size_t n)
{
    if (path[0] == '\0') {
        (void)snprintf(path, sizeof path, "%s/fuzz-%s-%ld",
                       access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", name, (long)getpid());
        (void)atexit(remove_file);
    }
    FILE *file = fopen(path, "wb");
    require(file != NULL && fwrite(bytes, 1, n, file) == n);
    require(fclose(file) == 0);
}

#endif
