/* Which tokens the sampler draws from: the sets are those that transformers' warpers leave of these logits
 * (5.23: TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper, TypicalLogitsWarper
 * in this order), and each is drawn as often as its probability says. */
#include "tests/unit/status.h"

#include "runtime/moert.h"

#include <math.h>
#include <string.h>

#define N 8
static const float logits[N] = {2.0f, 1.5f, 1.4f, 0.2f, 0.1f, -0.3f, -1.0f, -2.5f};

static void check_draws(struct moert_sampler sampler, const char *kept)
{
    enum { DRAWS = 20000 };
    uint32_t counts[N] = {0};
    double mass = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
        float scratch[N];
        memcpy(scratch, logits, sizeof logits);
        counts[moert_sampler_next(&sampler, scratch, N)]++;
    }
    for (uint32_t i = 0; i < N; i++)
        mass += strchr(kept, (int)('0' + i)) != NULL ? exp((double)(logits[i] / sampler.temperature)) : 0;
    for (uint32_t i = 0; i < N; i++) {
        const bool is_kept = strchr(kept, (int)('0' + i)) != NULL;
        const double p = is_kept ? exp((double)(logits[i] / sampler.temperature)) / mass : 0;
        if (fabs(counts[i] / (double)DRAWS - p) > 5 * sqrt(p * (1 - p) / (double)DRAWS))
            fail_msg("tokens %s: token %u was drawn %u times of %d, expected %.0f", kept, i, counts[i], DRAWS,
                     p * (double)DRAWS);
    }
}

static void test_sampler__sets_are_those_of_transformers(void **state)
{
    (void)state;
    const struct {
        struct moert_sampler sampler;
        const char *kept;
    } cases[] = {
        {{.temperature = 1, .top_p = 1, .min_p = 0.2f}, "012"},
        {{.temperature = 1, .top_p = 1, .min_p = 0.6f}, "01"},
        {{.temperature = 1, .top_p = 1, .min_p = 1}, "0"},
        {{.temperature = 1, .top_p = 1, .typical_p = 0.3f}, "12"},
        {{.temperature = 1, .top_p = 1, .typical_p = 0.6f}, "012"},
        {{.temperature = 1, .top_p = 1, .typical_p = 0.9f}, "01234"},
        {{.temperature = 1, .top_p = 1, .typical_p = 1}, "01234567"},
        {{.temperature = 2, .top_p = 1, .typical_p = 0.2f}, "12"},
        {{.temperature = 0.7f, .top_k = 6, .top_p = 1, .typical_p = 0.5f}, "012"},
        {{.temperature = 1, .top_p = 0.9f, .min_p = 0.15f, .typical_p = 0.7f}, "012"},
        {{.temperature = 1, .top_p = 1}, "01234567"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_draws(cases[i].sampler, cases[i].kept);
}

/* Where all tokens are alike, each is as typical as the others. */
static void test_sampler__alike_tokens_are_all_typical(void **state)
{
    (void)state;
    struct moert_sampler sampler = {.temperature = 1, .top_p = 1, .typical_p = 0.1f};
    uint32_t seen = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        float scratch[N] = {0};
        seen |= 1u << moert_sampler_next(&sampler, scratch, N);
    }
    assert_int_equal(seen, (1u << N) - 1);
}

/* Ties go to the first; what is no number is never larger, and nothing is larger than it. */
static void test_sampler__greedy_takes_the_first_of_the_largest(void **state)
{
    (void)state;
    struct moert_sampler sampler = moert_sampler_greedy();
    uint32_t seed = 7;
    for (uint32_t n = 1; n <= 70; n++)
        for (uint32_t turn = 0; turn < 40; turn++) {
            float values[70];
            uint32_t best = 0;
            for (uint32_t i = 0; i < n; i++) {
                seed = seed * 1664525u + 1013904223u;
                values[i] = seed >> 29 == 0 ? NAN : (float)(seed >> 27 & 7) - 4;
                best = values[i] > values[best] ? i : best;
            }
            assert_int_equal(moert_sampler_next(&sampler, values, n), best);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampler__sets_are_those_of_transformers),
        cmocka_unit_test(test_sampler__alike_tokens_are_all_typical),
        cmocka_unit_test(test_sampler__greedy_takes_the_first_of_the_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
