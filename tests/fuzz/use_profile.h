/* What the fuzz targets of profiles share: the profile that they edit, bytes taken from the input one after
 * the other, and what must hold for whatever is read. */
#ifndef MOEC_TESTS_FUZZ_USE_PROFILE_H
#define MOEC_TESTS_FUZZ_USE_PROFILE_H

#include "formats/profile/profile_h5.h"
#include "profiler/report/terminal_heatmap.h"
#include "tests/unit/synthetic_profile.h"

#include <stdlib.h>

static const struct synthetic_shape fuzz_shape = {.n_dense = 1,
                                                  .n_moe_layer = 2,
                                                  .n_expert = 4,
                                                  .top_k = 2,
                                                  .n_window = 3,
                                                  .seq_len_tokens = 6,
                                                  .n_bits = 2,
                                                  .n_uniform = 2,
                                                  .every_unreached = 0,
                                                  .n_key = 3,
                                                  .has_studies = true};

struct input {
    const uint8_t *at;
    size_t left;
};

static inline uint64_t take(struct input *input, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n && input->left > 0; i++, input->at++, input->left--)
        value |= (uint64_t)*input->at << (8 * i);
    return value;
}

static inline void show(const struct moec_profile *profile)
{
    char *text = NULL;
    const struct moec_terminal terminal = {.columns = 80, .colour = MOEC_TERMINAL_256, .utf8 = true};
    if (moec_terminal_heatmap(profile, 0, &terminal, &text, NULL) == MOEC_OK)
        free(text);
}

/* What passes the check survives writing and reading. */
static inline void write_and_read(const struct moec_profile *p)
{
    const size_t n = (size_t)p->n_moe_layer * p->n_expert * p->n_bits * p->n_window;
    struct moec_profile again;
    uint8_t *bytes = NULL, digest[MOEC_SHA256_BYTES];
    size_t n_bytes = 0;
    if (moec_profile_encode(p, &bytes, &n_bytes, NULL) != MOEC_OK ||
        moec_profile_decode(bytes, n_bytes, "again", false, &again, digest, NULL) != MOEC_OK ||
        memcmp(again.expert_nll, p->expert_nll, n * sizeof(double)) != 0)
        abort();
    show(&again);
    moec_profile_release(&again);
    free(bytes);
}

/* Reads a file that someone gives; `trust` as moec_profile_decode. With `writes`, what was read is written.
 */
static inline void read_profile(const uint8_t *data, size_t size, bool trust, bool writes)
{
    struct moec_profile profile;
    struct moec_error err = {0};
    uint8_t digest[MOEC_SHA256_BYTES];
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL)
        return;
    memcpy(copy, data, size);
    if (moec_profile_decode(copy, size, "profile 'fuzz.h5'", trust, &profile, digest, &err) == MOEC_OK) {
        show(&profile);
        if (writes)
            write_and_read(&profile);
        moec_profile_release(&profile);
    } else if (err.message[0] == '\0') {
        abort();
    }
    free(copy);
}

#endif
