/* A checkpoint and a bundle of it, on random windows whose parts differ in size: for tests of certificates. */
#ifndef MOEC_TESTS_BENCH_OF_PARTS_H
#define MOEC_TESTS_BENCH_OF_PARTS_H

#include "compiler/certify/trial.h"

#include "tests/unit/fixture_bundle.h"
#include "tests/unit/random_windows.h"

#define FAMILY   "tests/fixtures/families/olmoe"
#define SEQ_LEN  16u
#define N_SEARCH 7u
#define N_SELECT 2u
#define N_WINDOW 20u

/* A checkpoint and a bundle of it, on windows whose parts differ in size. */
struct bench_of_parts {
    char *folder;
    struct moec_source bundle, original;
    struct moec_windows windows;
    uint8_t parts[N_WINDOW];
    uint8_t data_digest[MOEC_SHA256_BYTES];
    struct moec_trial_inputs inputs;
};

static inline void open_parts(struct bench_of_parts *b, bool is_mixed)
{
    *b = (struct bench_of_parts){.folder = temporary_folder(), .data_digest = {1, 2, 3}};
    char *path = temporary_path(b->folder, "mixed.moec");
    fixture_bundle_write(FAMILY, path, 16, is_mixed);
    MUST(moec_source_open(path, 1 << 26, 1, 0, &b->bundle, &err));
    MUST(moec_source_open(FAMILY, 1 << 26, 1, 0, &b->original, &err));
    free(path);
    windows_make(b->original.config, N_WINDOW, SEQ_LEN, 11, &b->windows);
    b->windows.part = malloc(N_WINDOW);
    assert_non_null(b->windows.part);
    for (uint32_t w = 0; w < N_WINDOW; w++)
        b->windows.part[w] = w < N_SEARCH              ? MOEC_PART_SEARCH
                             : w < N_SEARCH + N_SELECT ? MOEC_PART_SELECT
                                                       : MOEC_PART_CERTIFICATE;
    b->inputs = (struct moec_trial_inputs){.bundle = &b->bundle,
                                           .original = &b->original,
                                           .windows = &b->windows,
                                           .data_digest = b->data_digest,
                                           .data_name = "random"};
}

static inline void close_parts(struct bench_of_parts *b)
{
    moec_windows_release(&b->windows);
    moec_source_close(&b->bundle);
    moec_source_close(&b->original);
    temporary_remove(b->folder);
}

static inline struct moec_trial_options trial_options(double max_loss)
{
    return (struct moec_trial_options){.kernels = &moec_kernels_scalar,
                                       .n_threads = 1,
                                       .reference_bytes = 1 << 24,
                                       .max_loss = max_loss,
                                       .confidence = 0.95,
                                       .goes_on_by_chance = true}; /* weights are random */
}

#endif
