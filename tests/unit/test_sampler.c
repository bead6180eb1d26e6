/* Which tokens the sampler draws from: the sets are those that transformers' warpers leave of these logits
 * (5.23: TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper, TypicalLogitsWarper
 * in this order), and each is drawn as often as its probability says. */
#include "tests/unit/status.h"

#include "runtime/generate/sampler.h"
#include "runtime/kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
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

/* ---- thresholds, by sorting ---- */

enum { MOST = 3000 };
static float sorted[MOST];

static int falling(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* What is not among the top_k largest, ties at the edge kept, becomes 0. Returns the sum of the whole numbers. */
static uint64_t keep_sorted(float *p, uint32_t n, const struct moert_sampler *sampler)
{
    const float scale = moec_draw_scale(n);
    uint64_t mass = 0, sum = 0;
    float least = 0;
    memcpy(sorted, p, n * sizeof *p);
    qsort(sorted, n, sizeof *sorted, falling);
    if (sampler->top_k > 0 && sampler->top_k < n)
        least = sorted[sampler->top_k - 1];
    for (uint32_t i = 0; i < n; i++)
        mass += sorted[i] >= least ? moec_draw_whole(sorted[i], scale) : 0;
    for (uint32_t i = 0; i < n && sampler->top_p < 1; i++)
        if ((sum += moec_draw_whole(sorted[i], scale)) >= moec_draw_part(mass, sampler->top_p)) {
            least = sorted[i] > least ? sorted[i] : least;
            break;
        }
    least = sampler->min_p > least ? sampler->min_p : least;
    mass = 0;
    for (uint32_t i = 0; i < n; i++) {
        p[i] = p[i] >= least ? p[i] : 0;
        mass += moec_draw_whole(p[i], scale);
    }
    return mass;
}

/* Whatever the logits, ties and small vocabularies among them, the token is that of sorted probabilities. */
static void test_sampler__draws_are_those_of_sorted_probabilities(void **state)
{
    (void)state;
    uint32_t seed = 3;
    for (uint32_t turn = 0; turn < 600; turn++) {
        static float values[MOST], p[MOST];
        const uint32_t n = turn % 3 == 0 ? 1 + turn % 7 : MOST - turn % 50;
        const float step = turn % 2 == 0 ? 0.5f : 1e-6f;
        float largest = -INFINITY;
        for (uint32_t i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            values[i] = (float)(seed >> 8) * (step == 0.5f ? 0 : step) + (float)(seed >> 27) * 0.5f;
            largest = values[i] > largest ? values[i] : largest;
        }
        struct moert_sampler sampler = {.temperature = 0.25f * (float)(1 + turn % 8),
                                        .top_k = turn % 5 * 9,
                                        .top_p = turn % 4 == 0    ? 1
                                                 : turn % 16 == 1 ? -1
                                                                  : 0.3f * (float)(turn % 4),
                                        .min_p = turn % 11 == 0 ? 0.1f : 0,
                                        .state = turn};
        struct moert_sampler same = sampler;
        const double uniform = moec_sampler_draw(&same).uniform;
        for (uint32_t i = 0; i < n; i++)
            p[i] = moec_exp_f32((values[i] - largest) / sampler.temperature);
        const uint64_t place = moec_draw_place(keep_sorted(p, n, &sampler), uniform);
        uint32_t want = 0;
        for (uint64_t sum = moec_draw_whole(p[0], moec_draw_scale(n)); sum <= place;)
            sum += moec_draw_whole(p[++want], moec_draw_scale(n));
        assert_int_equal(moert_sampler_next(&sampler, values, n), want);
    }
}

/* Logits that are not finite give no draw: the first of the largest is taken. */
static void test_sampler__logits_that_are_not_finite_are_not_drawn(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY};
    for (size_t i = 0; i < 2; i++)
        for (uint32_t n = 3; n < 40; n += 9) {
            float values[40] = {0};
            struct moert_sampler sampler = {.temperature = 1, .top_k = 2, .top_p = 0.5f};
            values[i == 0 ? 0 : 2] = bad[i];
            assert_int_equal(moert_sampler_next(&sampler, values, n), i == 0 ? 0 : 2);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampler__sets_are_those_of_transformers),
        cmocka_unit_test(test_sampler__alike_tokens_are_all_typical),
        cmocka_unit_test(test_sampler__greedy_takes_the_first_of_the_largest),
        cmocka_unit_test(test_sampler__draws_are_those_of_sorted_probabilities),
        cmocka_unit_test(test_sampler__logits_that_are_not_finite_are_not_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
