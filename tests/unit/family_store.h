/* A folder for a test with a family's bundle in it and one file beside it. Tests include it once. */
#ifndef MOEC_TESTS_FAMILY_STORE_H
#define MOEC_TESTS_FAMILY_STORE_H

#include "tests/unit/fixture_bundle.h"

#include <stdio.h>

struct store {
    char *folder, *bundle, *file;
};

static int set_up(void **state)
{
    struct store *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->folder = temporary_folder();
    s->bundle = temporary_path(s->folder, "m.moec");
    s->file = temporary_path(s->folder, "file");
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    struct store *s = *state;
    temporary_remove(s->folder);
    free(s->bundle);
    free(s->file);
    free(s);
    return 0;
}

static void write_bundle(const struct store *s, const char *family)
{
    char path[80];
    (void)snprintf(path, sizeof path, "tests/fixtures/families/%s", family);
    fixture_bundle_write(path, s->bundle, 16, false);
}

#endif
