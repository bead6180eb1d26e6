/* Buckets of relative positions against those of transformers, and biases added to scores. */
#include "formats/base/file.h"
#include "runtime/forward/weights/position_bias.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_position_bias__buckets_of_transformers(void **state)
{
    (void)state;
    struct moec_error err = {0};
    char *bytes = NULL;
    size_t n_bytes = 0, n_config = 0;
    if (moec_file_load("tests/fixtures/position_buckets.u32", 1 << 24, &bytes, &n_bytes, &err) != MOEC_OK)
        fail_msg("%s", err.message);
    const uint32_t *at = (const uint32_t *)(const void *)bytes, *end = at + n_bytes / sizeof *at;
    for (; at < end; n_config++) {
        const struct moec_config config = {.position.n_bucket = at[0], .position.max_distance = at[1]};
        const int64_t n = at[2];
        at += 3;
        for (int64_t offset = -n; offset <= n; offset++, at++)
            if (moec_position_bucket(&config, MOEC_STACK_ENCODER, offset) != *at)
                fail_msg("%u buckets to %u, offset %d: bucket %u, expected %u", config.position.n_bucket,
                         config.position.max_distance, (int)offset,
                         moec_position_bucket(&config, MOEC_STACK_ENCODER, offset), *at);
        for (int64_t offset = -n; offset <= 0; offset++, at++)
            if (moec_position_bucket(&config, MOEC_STACK_DECODER, offset) != *at)
                fail_msg("decoder, %u buckets to %u, offset %d: bucket %u, expected %u",
                         config.position.n_bucket, config.position.max_distance, (int)offset,
                         moec_position_bucket(&config, MOEC_STACK_DECODER, offset), *at);
    }
    assert_ptr_equal(at, end);
    assert_true(n_config >= 8);
    free(bytes);
}

/* Ranges of keys before, around and after the query, near and far, one bias at a time. */
static void test_position_bias__adds_the_bias_of_each_distance(void **state)
{
    (void)state;
    enum { HEADS = 3, BUCKETS = 8, N = 64 };
    const struct moec_config config = {
        .kinds = {{.n_head = HEADS}}, .position.n_bucket = BUCKETS, .position.max_distance = 20};
    float weights[BUCKETS * HEADS];
    for (size_t i = 0; i < BUCKETS * HEADS; i++)
        weights[i] = (float)i + 0.25f;
    for (int s = 0; s < 2; s++) {
        const enum moec_stack stack = s == 0 ? MOEC_STACK_ENCODER : MOEC_STACK_DECODER;
        const size_t width = moec_position_bias_width(&config, stack);
        float *table = calloc(HEADS * width, sizeof *table);
        assert_non_null(table);
        moec_position_bias_fill(&config, stack, weights, table);
        for (uint32_t position = 0; position < 130; position += 13)
            for (uint32_t first = 0; first < 200; first += 11) {
                uint32_t n = first % 3 == 0 ? N : 1 + first % N;
                if (stack == MOEC_STACK_DECODER && first > position)
                    continue;
                if (stack == MOEC_STACK_DECODER && first + n > position + 1)
                    n = position + 1 - first;
                const uint32_t head = (first + position) % HEADS;
                float scores[N];
                for (uint32_t i = 0; i < N; i++)
                    scores[i] = 1000.0f;
                moec_position_bias_add(&moec_kernels_scalar, &config, stack, table + head * width,
                                       (struct moec_seen_keys){position, first, n}, scores);
                for (uint32_t i = 0; i < N; i++) {
                    const uint32_t bucket =
                        moec_position_bucket(&config, stack, (int64_t)first + i - (int64_t)position);
                    const float expected = i < n ? 1000.0f + weights[bucket * HEADS + head] : 1000.0f;
                    assert_true(scores[i] == expected);
                }
            }
        free(table);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_position_bias__buckets_of_transformers),
        cmocka_unit_test(test_position_bias__adds_the_bias_of_each_distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
