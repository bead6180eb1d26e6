/* Temporary folders and files for unit tests. Failures end the test through cmocka. */
#ifndef MOEC_TESTS_TEMPORARY_H
#define MOEC_TESTS_TEMPORARY_H

#include "tests/unit/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY_UNUSED __attribute__((unused))

/* A new empty folder; its name is the caller's (temporary_remove). */
TEMPORARY_UNUSED static char *temporary_folder(void)
{
    const char *base = getenv("TMPDIR");
    char *name = NULL;
    assert_true(asprintf(&name, "%s/moec-test-XXXXXX", base != NULL && base[0] != '\0' ? base : "/tmp") > 0);
    assert_non_null(mkdtemp(name));
    return name;
}

static int temporary_remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

/* Removes a folder with what it holds, and frees its name. */
TEMPORARY_UNUSED static void temporary_remove(char *folder)
{
    assert_int_equal(nftw(folder, temporary_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(folder);
}

/* "folder/name", owned by the caller. */
TEMPORARY_UNUSED static char *temporary_path(const char *folder, const char *name)
{
    char *path = NULL;
    assert_true(asprintf(&path, "%s/%s", folder, name) > 0);
    return path;
}

TEMPORARY_UNUSED static void temporary_write(const char *folder, const char *name, const void *bytes,
                                             size_t n)
{
    char *path = temporary_path(folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
    free(path);
}

/* Whole content with a NUL behind it, owned by the caller. */
TEMPORARY_UNUSED static uint8_t *temporary_read(const char *folder, const char *name, size_t *n)
{
    char *path = temporary_path(folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    struct stat info;
    assert_int_equal(fstat(fileno(file), &info), 0);
    uint8_t *bytes = malloc((size_t)info.st_size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)info.st_size, file), (size_t)info.st_size);
    bytes[info.st_size] = '\0';
    assert_int_equal(fclose(file), 0);
    free(path);
    *n = (size_t)info.st_size;
    return bytes;
}

/* Copies the files of a folder that has no folders inside. */
TEMPORARY_UNUSED static void temporary_copy(const char *from, const char *to)
{
    DIR *entries = opendir(from);
    assert_non_null(entries);
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        size_t n = 0;
        if (entry->d_name[0] == '.')
            continue;
        uint8_t *bytes = temporary_read(from, entry->d_name, &n);
        temporary_write(to, entry->d_name, bytes, n);
        free(bytes);
    }
    assert_int_equal(closedir(entries), 0);
}

/* Number of entries besides . and .. */
TEMPORARY_UNUSED static int temporary_count(const char *folder)
{
    int count = 0;
    DIR *entries = opendir(folder);
    assert_non_null(entries);
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries))
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    assert_int_equal(closedir(entries), 0);
    return count;
}

/* A small generator with a fixed sequence (xorshift, Marsaglia 2003). */
TEMPORARY_UNUSED static uint32_t random_u32(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state >> 32);
}

/* Uniform in [-1, 1). */
TEMPORARY_UNUSED static float random_float(uint64_t *state)
{
    return (float)(int32_t)random_u32(state) * 0x1p-31f;
}

#endif
