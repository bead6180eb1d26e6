/* Checkpoints of the families, and room for the weights of an expert. */
#ifndef MOEC_TESTS_FIXTURE_CHECKPOINT_H
#define MOEC_TESTS_FIXTURE_CHECKPOINT_H

#include "tests/unit/temporary.h"

#include "formats/checkpoint/checkpoint.h"

#define FAMILIES "tests/fixtures/families/"

static inline struct moec_checkpoint *open_good(const char *folder)
{
    struct moec_checkpoint *ck = NULL;
    struct moec_error err = {0};
    assert_status(moec_checkpoint_open(folder, &ck, &err), MOEC_OK, err);
    return ck;
}

struct expert_weights {
    size_t n;
    float *gate, *up, *down;
};

static inline struct expert_weights expert_weights(const struct moec_config *c)
{
    size_t n = (size_t)c->n_ff_expert * c->n_embd;
    float *memory = malloc(3 * n * sizeof *memory);
    assert_non_null(memory);
    return (struct expert_weights){n, memory, memory + n, memory + 2 * n};
}

#endif
