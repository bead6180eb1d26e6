/* Paths that correct what follows them, on each instruction set that this processor has: the same codes and scales. The
 * source itself is included, since a processor chooses one set for a whole program. */
#include "compiler/fit/gptq_trellis.c"

#include "tests/unit/status.h"

#include <stdlib.h>

#define N_ROW   19u /* more than one tile */
#define N_TOKEN 96u

static float next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*seed >> 32) * 0x1p-31f;
}

static struct moec_gptq *inputs_of(uint32_t n_input, const struct moec_pool *pool)
{
    struct moec_gptq *gptq = NULL;
    const size_t stride = padded(n_input);
    float *x = calloc(N_TOKEN * stride, sizeof *x);
    uint64_t seed = n_input;
    for (uint32_t t = 0; t < N_TOKEN; t++) {
        const float common = next(&seed);
        for (uint32_t i = 0; i < n_input; i++)
            x[t * stride + i] = common + next(&seed) * (i % 7 == 0 ? 4 : 1);
    }
    MUST(moec_gptq_create(n_input, MOEC_GPTQ_QUICK, &gptq, &err));
    moec_gptq_add(gptq, pool, x, stride, NULL, N_TOKEN);
    MUST(moec_gptq_factor(gptq, MOEC_GPTQ_BY_COLUMN, pool, &err));
    free(x);
    return gptq;
}

/* Rows of a matrix; the caller's. */
static uint8_t *rows_by(walker *walk, const struct moec_gptq *gptq, uint32_t bits, const float *weights,
                        const struct moec_pool *pool)
{
    struct encoding e = {.gptq = gptq,
                         .kernels = moec_kernels_best(),
                         .weights = weights,
                         .shape = {.n_row = N_ROW, .columns = gptq->n, .n_output = N_ROW, .groups = 1}};
    MUST(moec_codec_for_bits(bits, MOEC_SCHEME_SHIFT, 0, MOEC_DTYPE_F32, &e.codec, &err));
    e.shape.row_bytes = moec_codec_row_bytes(e.codec, e.shape.columns);
    e.out.rows = calloc(N_ROW, e.shape.row_bytes);
    e.out.scales = calloc(N_ROW, sizeof *e.out.scales);
    e.out.codes = calloc(N_ROW, e.shape.columns);
    MUST(encode_outputs(&e, pool, walk, &err));
    free(e.out.scales);
    free(e.out.codes);
    return e.out.rows;
}

static void check_same(walker *other)
{
    static const uint32_t widths[] = {16, 32, 80,
                                      208}; /* a part, a block, more than a window, decided twice */
    const struct moec_pool pool = moec_pool_make(1);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        struct moec_gptq *gptq = inputs_of(widths[i], &pool);
        float *weights = malloc(N_ROW * widths[i] * sizeof *weights);
        uint64_t seed = 9;
        for (uint32_t k = 0; k < N_ROW * widths[i]; k++)
            weights[k] = next(&seed) * next(&seed) * (k % 97 == 0 ? 3 : 1);
        for (uint32_t bits = 2; bits <= 4; bits++) {
            uint8_t *rows = rows_by(walk_plain, gptq, bits, weights, &pool),
                    *others = rows_by(other, gptq, bits, weights, &pool);
            struct moec_codec codec;
            MUST(moec_codec_for_bits(bits, MOEC_SCHEME_SHIFT, 0, MOEC_DTYPE_F32, &codec, &err));
            assert_memory_equal(rows, others, N_ROW * moec_codec_row_bytes(codec, widths[i]));
            free(rows);
            free(others);
        }
        free(weights);
        moec_gptq_free(gptq);
    }
}

static void test_trellis_walk__avx2(void **state)
{
    (void)state;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        check_same(walk_avx2);
        return;
    }
#endif
    skip();
}

static void test_trellis_walk__avx512(void **state)
{
    (void)state;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) {
        check_same(walk_avx512);
        return;
    }
#endif
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trellis_walk__avx2),
        cmocka_unit_test(test_trellis_walk__avx512),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
