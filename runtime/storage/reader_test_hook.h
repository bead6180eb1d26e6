/* For tests: a reader of their own between storage and a source of experts, which breaks, damages or delays
 * reads. Zero, as everywhere but in tests, is none. */
#ifndef MOEC_RUNTIME_READER_TEST_HOOK_H
#define MOEC_RUNTIME_READER_TEST_HOOK_H

#include "runtime/storage/reader.h"

struct moec_reader_test_hook {
    /* Puts a reader on top of `base`, which it owns from then on; NULL = none. */
    struct moec_reader *(*wrap)(void *context, struct moec_reader *base);
    void *context; /* borrowed while the reader lives */
};

#endif
