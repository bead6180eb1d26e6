/* Every instruction set gives the bits of the scalar definition: what works element by element, exp and
 * its relatives, and which set is chosen. Products: test_kernels_dense.c, _encoded.c, _packed.c. */
#include "runtime/kernels/kernels.h"
#include "tests/unit/kernel_inputs.h"
#include "tests/unit/kernel_sets.h"

#include "formats/base/half.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- element by element ---- */

static const struct moec_codec int8_heads = {.dtype = MOEC_DTYPE_INT8, .group = 32};

/* What every element-wise kernel of a set makes of the same inputs: five outputs of n, two scalars. */
static void run_elements(const struct moec_kernels *set, const float *x, const float *z, size_t n, float *out)
{
    memcpy(out, z, n * sizeof *out);
    set->add(x, n, out);
    memcpy(out + n, z, n * sizeof *out);
    set->add_scaled(-1.7f, x, n, out + n);
    set->silu_mul(x, z, n, out + 2 * n);
    out[5 * n] = set->exp_sum(x, z[0], n, out + 3 * n);
    set->rms_norm(x, z, 1e-6f, n, out + 4 * n);
    out[5 * n + 1] = set->max(x, n);
}

/* A row of codes as scalar code makes it, and every other set as that. */
static void check_round_int8(const float *x, size_t n, uint8_t *want)
{
    const size_t n_bytes = moec_codec_row_bytes(int8_heads, n);
    moec_kernels_scalar.round_int8(x, n, want);
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        uint8_t *got = malloc(n_bytes + 1);
        assert_non_null(got);
        got[n_bytes] = 0xa5;
        kernel_set(s)->round_int8(x, n, got);
        if (memcmp(got, want, n_bytes) != 0)
            fail_msg("%s: other codes of %zu numbers", kernel_set(s)->name, n);
        assert_int_equal(got[n_bytes], 0xa5);
        free(got);
    }
}

/* The scalar set rounds as codecs do what they take, and every set as it does. */
static void test_kernels__round_to_int8(void **state)
{
    (void)state;
    enum { most = 200 };
    uint8_t want[2 * most], encoded[2 * most];
    for (size_t n = 1; n <= most; n++) {
        for (int kind = 0; kind < KIND_COUNT; kind++) {
            struct moec_error err = {0};
            float *x = random_floats(n, (enum kind)kind);
            check_round_int8(x, n, want);
            if (moec_codec_encode_row(int8_heads, x, n, encoded, &err) == MOEC_OK)
                assert_memory_equal(want, encoded, moec_codec_row_bytes(int8_heads, n));
            else
                assert_int_not_equal(kind, KIND_ORDINARY);
            free(x);
        }
    }
}

/* Beyond the range of scales to its ends; a NaN makes its group one and no other. */
static void test_kernels__round_to_int8_beyond(void **state)
{
    (void)state;
    static const float rounded[] = {0, 1, -INFINITY, 1e30f, 65504.0f * 127, -65504.0f * 12};
    static const float wanted[] = {0, 0, -65504.0f * 127, 65504.0f * 127, 65504.0f * 127, -65504.0f * 12};
    float x[96] = {0}, kept[96];
    uint8_t row[3 * 34];
    memcpy(x, rounded, sizeof rounded);
    x[40] = 2, x[41] = -1, x[70] = NAN, x[71] = 5;
    check_round_int8(x, 96, row);
    moec_codec_decode_row(int8_heads, row, 96, kept);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_true(kept[i] == wanted[i]);
    assert_true(fabsf(kept[40] - 2) < 2e-3f && fabsf(kept[41] + 1) < 2e-2f);
    for (size_t i = 64; i < 96; i++)
        assert_true(isnan(kept[i]));
}

/* The scalar set rounds as formats/base/half.h does within F16's range, and every set as it does. */
static void test_kernels__round_to_f16(void **state)
{
    (void)state;
    enum { n_special = 12 };
    static const float special[n_special] = {0,        -0.0f,     65504, 65519,   65520, -1e9f,
                                             INFINITY, -INFINITY, 1e-8f, 6.1e-5f, NAN,   1.00048828125f};
    for (size_t n = 1; n <= 70; n++) {
        float *x = random_floats(n, KIND_ORDINARY);
        uint8_t *want = malloc(2 * n);
        assert_non_null(want);
        for (size_t i = 0; i < n && i < n_special; i++)
            x[i] = special[(i + n) % n_special];
        moec_kernels_scalar.round_f16(x, n, want);
        for (size_t i = 0; i < n; i++) {
            uint16_t half = 0;
            memcpy(&half, want + 2 * i, sizeof half);
            const float kept = moec_f16_to_f32(half);
            assert_true(isnan(x[i]) ? isnan(kept) : isfinite(kept));
            if (fabsf(x[i]) < 65520)
                assert_int_equal(half, moec_f32_to_f16(x[i]));
        }
        for (size_t s = 0; s < n_kernel_sets(); s++) {
            uint8_t *got = malloc(2 * n + 1);
            assert_non_null(got);
            got[2 * n] = 0xa5;
            kernel_set(s)->round_f16(x, n, got);
            for (size_t i = 0; i < n; i++)
                if (!isnan(x[i]))
                    assert_memory_equal(got + 2 * i, want + 2 * i, 2);
            assert_int_equal(got[2 * n], 0xa5);
            free(got);
        }
        free(want);
        free(x);
    }
}

static void test_kernels__elements_have_same_bits(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 300; n++) {
        for (int kind = 0; kind < KIND_COUNT; kind++) {
            size_t total = 5 * n + 2;
            float *x = random_floats(n, (enum kind)kind), *z = random_floats(n, (enum kind)kind);
            float *want = guarded(total);
            run_elements(&moec_kernels_scalar, x, z, n, want);
            for (size_t s = 0; s < n_kernel_sets(); s++) {
                float *got = guarded(total);
                run_elements(kernel_set(s), x, z, n, got);
                expect_same(want, got, total, kernel_set(s)->name, "an element-wise kernel");
                release_guarded(got, total);
            }
            release_guarded(want, total);
            free(x);
            free(z);
        }
    }
}

static void test_kernels__elements_work_in_place(void **state)
{
    (void)state;
    const size_t n = 77;
    float *x = random_floats(n, KIND_ORDINARY), *z = random_floats(n, KIND_ORDINARY);
    float *want = guarded(5 * n + 2), *got = guarded(n);
    run_elements(&moec_kernels_scalar, x, z, n, want);
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        const struct moec_kernels *set = kernel_set(s);
        memcpy(got, x, n * sizeof *got);
        set->silu_mul(got, z, n, got);
        expect_same(want + 2 * n, got, n, set->name, "silu_mul over its gate");
        memcpy(got, z, n * sizeof *got);
        set->silu_mul(x, got, n, got);
        expect_same(want + 2 * n, got, n, set->name, "silu_mul over up");
        memcpy(got, x, n * sizeof *got);
        float sum = set->exp_sum(got, z[0], n, got);
        expect_same(want + 3 * n, got, n, set->name, "exp_sum over its input");
        expect_same(want + 5 * n, &sum, 1, set->name, "sum of exp_sum");
        memcpy(got, x, n * sizeof *got);
        set->rms_norm(got, z, 1e-6f, n, got);
        expect_same(want + 4 * n, got, n, set->name, "rms_norm over its input");
    }
    release_guarded(want, 5 * n + 2);
    release_guarded(got, n);
    free(x);
    free(z);
}

static void test_kernels__max_passes_over_nan(void **state)
{
    (void)state;
    const float values[] = {NAN, -3.0f, NAN, 2.0f, -INFINITY}, none[] = {NAN, -INFINITY};
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        assert_true(kernel_set(s)->max(values, 5) == 2.0f);
        assert_true(kernel_set(s)->max(none, 2) == -INFINITY);
    }
}

/* ---- exp and its relatives ---- */

/* |got - want| in units of the last place of an F32 (bits = 24) or F64 (53) near want. */
static double ulps(long double got, long double want, int bits)
{
    int exponent;
    (void)frexpl(want, &exponent);
    return (double)fabsl((got - want) / ldexpl(1.0L, exponent - bits));
}

static void test_kernels__exp_is_within_one_ulp(void **state)
{
    (void)state;
    enum { N = 4096 };
    float x[N], y[N];
    uint32_t bits = 0;
    double worst = 0;
    while (bits < 0x42b20000u) { /* every 1237th float from 0 to 89, both signs */
        for (int i = 0; i < N; i += 2, bits += 1237) {
            x[i] = moec_f32_from_bits(bits);
            x[i + 1] = -x[i];
        }
        (void)moec_kernels_best()->exp_sum(x, 0.0f, N, y);
        for (int i = 0; i < N; i++) {
            assert_int_equal(moec_f32_bits(y[i]), moec_f32_bits(moec_exp_f32(x[i])));
            double want = exp((double)x[i]);
            if (want > (double)FLT_MAX)
                continue;
            if (want < (double)FLT_MIN) {
                assert_true(y[i] == 0.0f);
                continue;
            }
            double error = ulps((long double)y[i], (long double)want, 24);
            worst = error > worst ? error : worst;
        }
    }
    print_message("largest error of exp: %.3f ulp\n", worst);
    assert_true(worst < 1.0);
}

static void test_kernels__exp_at_the_ends(void **state)
{
    (void)state;
    assert_true(moec_exp_f32(INFINITY) == INFINITY);
    assert_true(moec_exp_f32(89.5f) == INFINITY);
    assert_true(moec_exp_f32(88.72283f) < INFINITY);
    assert_true(moec_exp_f32(88.73f) == INFINITY);
    assert_int_equal(moec_f32_bits(moec_exp_f32(-INFINITY)), 0);
    assert_int_equal(moec_f32_bits(moec_exp_f32(-87.4f)), 0);
    assert_true(moec_exp_f32(-87.33f) >= FLT_MIN);
    assert_true(moec_exp_f32(0.0f) == 1.0f && moec_exp_f32(-0.0f) == 1.0f);
    assert_true(moec_exp_f32(NAN) != moec_exp_f32(NAN));
}

static double random_double(double from, double to)
{
    return from + (to - from) * ((double)random_u32() * 0x1p-32 + (double)random_u32() * 0x1p-64);
}

static void test_kernels__f64_functions_are_within_one_ulp(void **state)
{
    (void)state;
    double worst_exp = 0, worst_log = 0, worst_sine = 0, worst_cosine = 0;
    for (int i = 0; i < 300000; i++) {
        double x = random_double(-20, 20), error = ulps(moec_exp_f64(x), expl((long double)x), 53);
        worst_exp = error > worst_exp ? error : worst_exp;
        x = i % 4 == 0 ? random_double(0.99, 1.01) : exp(random_double(-60, 60));
        error = ulps(moec_log_f64(x), logl((long double)x), 53);
        worst_log = error > worst_log ? error : worst_log;
        x = random_double(-1, 1) * ldexp(1, (int)random_below(30) - 5);
        if (i % 3 == 0)
            x = rint(x);
        if (fabs(x) > 0x1p24)
            continue;
        double sine, cosine;
        moec_sincos_f64(x, &sine, &cosine);
        error = ulps(sine, sinl((long double)x), 53);
        worst_sine = error > worst_sine ? error : worst_sine;
        error = ulps(cosine, cosl((long double)x), 53);
        worst_cosine = error > worst_cosine ? error : worst_cosine;
    }
    print_message("largest errors: exp %.3f, log %.3f, sine %.3f, cosine %.3f ulp\n", worst_exp, worst_log,
                  worst_sine, worst_cosine);
    assert_true(worst_exp < 1.0 && worst_log < 1.0 && worst_sine < 1.0 && worst_cosine < 1.0);
}

static void test_kernels__f64_functions_at_the_ends(void **state)
{
    (void)state;
    double sine, cosine;
    moec_sincos_f64(0.0, &sine, &cosine);
    assert_true(sine == 0.0 && cosine == 1.0);
    assert_true(moec_exp_f64(0.0) == 1.0 && moec_exp_f64(-800.0) == 0.0 && isinf(moec_exp_f64(710.0)));
    assert_true(isnan(moec_exp_f64((double)NAN)) && isnan(moec_log_f64(-1.0)) &&
                isnan(moec_log_f64((double)NAN)));
    assert_true(moec_log_f64(1.0) == 0.0 && isinf(moec_log_f64(0.0)) &&
                isinf(moec_log_f64((double)INFINITY)));
    assert_true(ulps(moec_log_f64(0x1p-1074), logl(0x1p-1074L), 53) < 1.0);
}

/* Bits on record: another compiler, libm or processor must not change them. */
static void test_kernels__math_bits_are_pinned(void **state)
{
    (void)state;
    double sine, cosine;
    moec_sincos_f64(12345.678, &sine, &cosine);
    assert_true(sine == -0x1.687d5890974a5p-1 && cosine == 0x1.6b94c3bbe24b8p-1);
    assert_true(moec_exp_f64(-7.3) == 0x1.622d4792b6a8dp-11 && moec_log_f64(1e6) == 0x1.ba18a998fffap+3);
    assert_int_equal(moec_f32_bits(moec_exp_f32(-3.7f)), 0x3cca88feu);
}

/* ---- selection ---- */

static void test_kernels__find_knows_its_names(void **state)
{
    (void)state;
    const struct moec_kernels *set = NULL;
    struct moec_error err = {0};
    assert_int_equal(moec_kernels_find("scalar", &set, &err), MOEC_OK);
    assert_ptr_equal(set, &moec_kernels_scalar);
    assert_int_equal(moec_kernels_find("auto", &set, &err), MOEC_OK);
    assert_ptr_equal(set, moec_kernels_best());
    assert_int_equal(moec_kernels_find("sse9", &set, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "'sse9'"));
    static const char *const names[] = {"avx2", "avx2-gfni", "avx512", "avx512-vbmi", "neon"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct moec_error other = {0};
        enum moec_status status = moec_kernels_find(names[i], &set, &other);
        if (status == MOEC_OK)
            assert_string_equal(set->name, names[i]);
        else
            assert_int_equal(status, MOEC_ERR_UNSUPPORTED);
    }
}

int main(void)
{
    for (size_t s = 0; s < n_kernel_sets(); s++)
        print_message("set under test: %s\n", kernel_set(s)->name);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels__round_to_int8),
        cmocka_unit_test(test_kernels__round_to_int8_beyond),
        cmocka_unit_test(test_kernels__round_to_f16),
        cmocka_unit_test(test_kernels__elements_have_same_bits),
        cmocka_unit_test(test_kernels__elements_work_in_place),
        cmocka_unit_test(test_kernels__max_passes_over_nan),
        cmocka_unit_test(test_kernels__exp_is_within_one_ulp),
        cmocka_unit_test(test_kernels__exp_at_the_ends),
        cmocka_unit_test(test_kernels__f64_functions_are_within_one_ulp),
        cmocka_unit_test(test_kernels__f64_functions_at_the_ends),
        cmocka_unit_test(test_kernels__math_bits_are_pinned),
        cmocka_unit_test(test_kernels__find_knows_its_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
