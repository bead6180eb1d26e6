/* A file of numbers that a reference made (tests/fixtures), read from its beginning. Failures end the test.
 */
#ifndef MOEC_TESTS_NUMBER_FIXTURE_H
#define MOEC_TESTS_NUMBER_FIXTURE_H

#include "tests/unit/temporary.h"

struct fixture {
    uint8_t *bytes; /* owned */
    size_t n_bytes;
    size_t at; /* read so far */
};

static struct fixture fixture_open(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    struct fixture fixture = {.bytes = malloc(1 << 20)};
    fixture.n_bytes = fread(fixture.bytes, 1, 1 << 20, file);
    fclose(file);
    assert_true(fixture.n_bytes > 1000);
    return fixture;
}

static void fixture_take(struct fixture *fixture, void *to, size_t n_bytes)
{
    assert_true(n_bytes <= fixture->n_bytes - fixture->at);
    memcpy(to, fixture->bytes + fixture->at, n_bytes);
    fixture->at += n_bytes;
}

#endif
