#include "tests/unit/temporary.h"

#include "formats/base/half.h"
#include "formats/codec/encode_loops.h"

#include <float.h>
#include <math.h>

#define N 512

/* Of -1 .. 1, the same in every run. */
static float next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

static uint8_t naive_code(const struct moec_coding *coding, float weight)
{
    const double quotient = (double)(weight / coding->divisor);
    return (uint8_t)(nearbyint(fmin(fmax(quotient, (double)coding->low), (double)coding->high)) +
                     coding->zero);
}

static void check_quantise(const struct moec_encode_loops *loops, const struct moec_coding *coding,
                           const float *weights)
{
    uint8_t codes[N];
    memset(codes, 0xee, sizeof codes);
    loops->quantise(coding, weights, N, codes);
    for (int i = 0; i < N; i++)
        if (codes[i] != naive_code(coding, weights[i]))
            fail_msg("weight %d, %a / %a: code %d, expected %d", i, (double)weights[i],
                     (double)coding->divisor, codes[i], naive_code(coding, weights[i]));
}

/* Weights all over the range and beyond it, in the middles of codes, and next to them. */
static void fill_weights(const struct moec_coding *coding, uint32_t *state, float *weights)
{
    for (int i = 0; i < N; i++) {
        const float place = coding->low - 2 + (coding->high - coding->low + 4) * (next_random(state) + 1) / 2;
        const float middle = (floorf(place) + 0.5f) * coding->divisor;
        weights[i] = i % 4 == 0   ? place * coding->divisor
                     : i % 4 == 1 ? middle
                     : i % 4 == 2 ? nextafterf(middle, INFINITY)
                                  : nextafterf(middle, -INFINITY);
    }
    for (int i = 0; i < N; i++)
        weights[i] = fminf(fmaxf(weights[i], -FLT_MAX), FLT_MAX);
    weights[0] = 0;
    weights[1] = -0.0f;
}

static void test_encode_loops__quotients_round_as_a_division_does(void **state)
{
    static const float sizes[] = {1,         0x1p-12f, 0x1p-24f, 0x1p-101f, 0x1p-130f,
                                  0x1p-149f, 0x1p101f, 0x1p118f, 0x1.9p126f};
    static const uint32_t zeros[] = {0, 1, 2, 128};
    (void)state;
    uint32_t random = 7;
    for (enum moec_encode_set set = 0; set < MOEC_ENCODE_SETS; set++) {
        const struct moec_encode_loops *loops = moec_encode_loops_of(set);
        for (uint32_t turn = 0; loops != NULL && turn < 2000; turn++) {
            const uint32_t levels = (2u << turn % 8) - 1, zero = zeros[turn / 8 % 4];
            struct moec_coding coding = {.zero = zero < levels ? zero : levels};
            coding.divisor = sizes[turn / 32 % 9] * (turn % 3 == 0 ? 1 : 1 + fabsf(next_random(&random)));
            coding.low = -(float)coding.zero;
            coding.high = (float)(levels - coding.zero);
            float weights[N];
            fill_weights(&coding, &random, weights);
            check_quantise(loops, &coding, weights);
        }
    }
}

static void check_range(const struct moec_encode_loops *loops, const float *weights, size_t n)
{
    struct moec_range expected = {0};
    for (size_t i = 0; i < n; i++) {
        const uint32_t magnitude = moec_f32_bits(weights[i]) & 0x7fffffffu;
        expected.top_bits = magnitude > expected.top_bits ? magnitude : expected.top_bits;
        expected.min = weights[i] < expected.min ? weights[i] : expected.min;
        expected.max = weights[i] > expected.max ? weights[i] : expected.max;
    }
    const struct moec_range range = loops->range(weights, n);
    assert_int_equal(range.top_bits, expected.top_bits);
    assert_int_equal(moec_f32_bits(range.min), moec_f32_bits(expected.min));
    assert_int_equal(moec_f32_bits(range.max), moec_f32_bits(expected.max));
}

static void test_encode_loops__ranges_hold_every_weight(void **state)
{
    static const float special[] = {NAN, -NAN, INFINITY, -INFINITY, 0x1p-149f, -0x1p-149f, 3e38f, -3e38f};
    (void)state;
    uint32_t random = 11;
    for (enum moec_encode_set set = 0; set < MOEC_ENCODE_SETS; set++) {
        const struct moec_encode_loops *loops = moec_encode_loops_of(set);
        if (loops == NULL)
            continue;
        float weights[N] = {0};
        check_range(loops, weights, 0);
        for (size_t place = 0; place < N; place++) {
            const size_t n = place / 32 * 32 + 32;
            for (size_t i = 0; i < n; i++)
                weights[i] = next_random(&random) + (place % 3 == 0 ? 1 : place % 3 == 1 ? -1 : 0);
            check_range(loops, weights, n);
            weights[place] = special[place % 8];
            check_range(loops, weights, n);
        }
    }
}

/* Every half comes out as itself, and what lies between two as the nearer one. */
static void test_encode_loops__bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (enum moec_encode_set set = 0; set < MOEC_ENCODE_SETS; set++) {
        const struct moec_encode_loops *loops = moec_encode_loops_of(set);
        for (uint32_t first = 0; loops != NULL && first < 0x10000; first += 32) {
            static const uint32_t low_bits[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
            uint8_t stored[64], encoded[64];
            float decoded[32], weights[32];
            for (uint32_t i = 0; i < 32; i++) {
                stored[2 * i] = (uint8_t)(first + i);
                stored[2 * i + 1] = (uint8_t)((first + i) >> 8);
            }
            loops->from_bf16(stored, 32, decoded);
            for (uint32_t i = 0; i < 32; i++)
                assert_int_equal(moec_f32_bits(decoded[i]), (first + i) << 16);
            if ((first & 0x7fff) >= 0x7f60)
                continue;
            for (size_t l = 0; l < 6; l++) {
                for (uint32_t i = 0; i < 32; i++)
                    weights[i] = moec_f32_from_bits((first + i) << 16 | low_bits[l]);
                loops->to_bf16(weights, 32, encoded);
                for (uint32_t i = 0; i < 32; i++) {
                    const uint32_t up = low_bits[l] > 0x8000 || (low_bits[l] == 0x8000 && i % 2 == 1);
                    assert_int_equal(encoded[2 * i] | encoded[2 * i + 1] << 8, first + i + up);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_loops__quotients_round_as_a_division_does),
        cmocka_unit_test(test_encode_loops__ranges_hold_every_weight),
        cmocka_unit_test(test_encode_loops__bf16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests_name("encode_loops", tests, NULL, NULL);
}
