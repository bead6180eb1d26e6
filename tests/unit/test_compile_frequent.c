/* Where rows of the embedding are divided, by how often a text has each token. */
#include "compiler/compile/compile_frequent.h"
#include "tests/unit/status.h"

#include <stdlib.h>

enum { N_VOCAB = 4096 };

static struct moec_config with_vocabulary(uint32_t n_vocab)
{
    return (struct moec_config){.family = "qwen2_moe",
                                .n_layer = 2,
                                .n_embd = 64,
                                .n_vocab = n_vocab,
                                .head.is_tied = true,
                                .n_expert = 8,
                                .top_k = 2,
                                .n_ff_expert = 64,
                                .n_kind = 1,
                                .kinds = {{.n_head = 2, .n_kv_head = 1, .head_dim = 32, .is_moe = true}}};
}

/* As in text: the id i about 1 / (i + 3) as often as the first. */
static uint32_t *typical_counts(uint32_t n_vocab)
{
    uint32_t *counts = calloc(n_vocab, sizeof *counts);
    assert_non_null(counts);
    for (uint32_t i = 0; i < n_vocab; i++)
        counts[i] = 60000 / (i + 3);
    return counts;
}

static void test_compile_frequent__divides_typical_vocabularies(void **state)
{
    (void)state;
    const struct moec_config config = with_vocabulary(N_VOCAB);
    uint32_t *counts = typical_counts(N_VOCAB);
    const uint32_t n = moec_compile_frequent_count(&config, counts);
    assert_int_equal(n % 64, 0);
    assert_in_range(n, N_VOCAB / 8, N_VOCAB / 2);
    for (uint32_t i = 0; i < N_VOCAB; i++)
        counts[i] *= 3; /* more of the same text */
    assert_int_equal(moec_compile_frequent_count(&config, counts), n);
    free(counts);
}

static void test_compile_frequent__leaves_others_whole(void **state)
{
    (void)state;
    struct moec_config config = with_vocabulary(N_VOCAB);
    uint32_t *counts = typical_counts(N_VOCAB), *equal = calloc(N_VOCAB, sizeof *equal);
    assert_non_null(equal);
    assert_int_equal(moec_compile_frequent_count(&config, equal), 0); /* no text */
    for (uint32_t i = 0; i < N_VOCAB; i++)
        equal[i] = 7;
    assert_int_equal(moec_compile_frequent_count(&config, equal), 0);
    for (uint32_t i = 0; i < N_VOCAB; i++) /* rare ones first */
        equal[i] = counts[N_VOCAB - 1 - i];
    assert_int_equal(moec_compile_frequent_count(&config, equal), 0);
    config.n_vocab = 1023;
    assert_int_equal(moec_compile_frequent_count(&config, counts), 0);
    config.n_vocab = 1024;
    assert_true(moec_compile_frequent_count(&config, counts) > 0);
    config.n_expert = 128; /* most weights are theirs */
    config.n_ff_expert = 4096;
    assert_int_equal(moec_compile_frequent_count(&config, counts), 0);
    free(counts);
    free(equal);
}

static void test_compile_frequent__is_expected_of_plans_of_matrices(void **state)
{
    (void)state;
    struct moec_config config = with_vocabulary(N_VOCAB);
    struct moec_compile_options options = {.search.offers_variants = true, .dense.is_planned = true};
    assert_int_equal(moec_compile_frequent_expect(&config, &options), N_VOCAB / 4);
    options.dense.is_planned = false;
    assert_int_equal(moec_compile_frequent_expect(&config, &options), 0);
    options = (struct moec_compile_options){.dense.is_planned = true};
    assert_int_equal(moec_compile_frequent_expect(&config, &options), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compile_frequent__divides_typical_vocabularies),
        cmocka_unit_test(test_compile_frequent__leaves_others_whole),
        cmocka_unit_test(test_compile_frequent__is_expected_of_plans_of_matrices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
