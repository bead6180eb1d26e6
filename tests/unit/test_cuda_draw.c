/* Tokens that a GPU's kernels choose, run on the processor, are those of moert_sampler_next: ties, logits
 * that are not finite, sets of all sizes, numbers at the ends of [0, 1). */
#include "runtime/cuda/kernels/cuda_kernels.h"
#include "runtime/generate/sampler.h"
#include "tests/unit/kernel_inputs.h"

#include <math.h>

enum { MAX_VOCAB = 5000 };

/* The device's memory of a choice, with bytes of no meaning. */
struct rig {
    float *logits, *kept, *scratch;
    struct moec_cuda_draw_room *room;
};

static void open_rig(struct rig *rig)
{
    rig->logits = malloc(MAX_VOCAB * sizeof *rig->logits);
    rig->kept = malloc(MAX_VOCAB * sizeof *rig->kept);
    rig->scratch = malloc(MAX_VOCAB * sizeof *rig->scratch);
    rig->room = malloc(sizeof *rig->room);
    assert_true(rig->logits != NULL && rig->kept != NULL && rig->scratch != NULL && rig->room != NULL);
}

static void close_rig(struct rig *rig)
{
    free(rig->logits);
    free(rig->kept);
    free(rig->scratch);
    free(rig->room);
}

/* As rig->kept, n of them, by both. */
static void check_choice(struct rig *rig, uint32_t n, struct moert_sampler sampler)
{
    struct moert_sampler other = sampler;
    const struct moec_draw how = moec_sampler_draw(&other);
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = rig->kept[i] > rig->kept[best] ? i : best;
    memcpy(rig->logits, rig->kept, n * sizeof *rig->logits);
    memcpy(rig->scratch, rig->kept, n * sizeof *rig->scratch);
    memset(rig->room, 0xab, sizeof *rig->room);
    const uint32_t want = moert_sampler_next(&sampler, rig->scratch, n);
    moec_cuda_draw_run(NULL, &(struct moec_cuda_draw){rig->logits, n, how, rig->room});
    if (rig->room->chosen.token != want)
        fail_msg(
            "of %u logits, temperature %g, top_k %u, top_p %.9g, min_p %g, number %.17g: token %u, not %u", n,
            (double)how.temperature, how.top_k, (double)how.top_p, (double)how.min_p, how.uniform,
            rig->room->chosen.token, want);
    expect_same(&rig->kept[best], &rig->room->chosen.largest, 1, "the GPU", "the largest logit");
    assert_true(sampler.state == other.state);
}

enum form { FORM_ORDINARY, FORM_FLAT, FORM_TIES, FORM_FORBIDDEN, FORM_STEEP, FORM_STRANGE, N_FORMS };

static void fill_logits(struct rig *rig, uint32_t n, enum form form)
{
    for (uint32_t i = 0; i < n; i++) {
        const float value = 4 * random_float(KIND_ORDINARY);
        rig->kept[i] = form == FORM_FLAT    ? 1.5f
                       : form == FORM_TIES  ? (float)random_below(4)
                       : form == FORM_STEEP ? 300 * value
                                            : value;
        if (form == FORM_FORBIDDEN && i != n / 2 && random_below(3) > 0)
            rig->kept[i] = -INFINITY;
        if (form == FORM_STRANGE && random_below(8) == 0)
            rig->kept[i] = random_below(2) == 0 ? NAN : random_below(2) == 0 ? INFINITY : -INFINITY;
    }
}

static const uint32_t sizes[] = {1, 2, 63, 64, 65, 100, 1000, MAX_VOCAB};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static void test_cuda_draw__the_largest_is_the_first_of_equals(void **state)
{
    (void)state;
    struct rig rig;
    open_rig(&rig);
    for (uint32_t s = 0; s < N_SIZES; s++)
        for (int form = 0; form < N_FORMS; form++) {
            fill_logits(&rig, sizes[s], (enum form)form);
            check_choice(&rig, sizes[s], moert_sampler_greedy());
            rig.kept[0] = NAN;
            check_choice(&rig, sizes[s], moert_sampler_greedy());
        }
    close_rig(&rig);
}

static void test_cuda_draw__draws_are_those_of_the_sampler(void **state)
{
    (void)state;
    static const float top_p[] = {1, 0.9f, 0.5f, 1e-9f, 0, -1, 0x1.fffffep-1f},
                       min_p[] = {0, 0.05f, 1, 2, 1e-30f}, temperature[] = {1, 0.3f, 3, 1e-3f};
    struct rig rig;
    uint32_t n_case = 0;
    open_rig(&rig);
    for (uint32_t s = 0; s < N_SIZES; s++)
        for (int form = 0; form < N_FORMS; form++)
            for (uint32_t i = 0; i < (sizes[s] > 100 ? 12u : 40u); i++, n_case++) {
                const uint32_t top_k[] = {0, 1, 5, sizes[s] - 1, sizes[s], sizes[s] / 2};
                fill_logits(&rig, sizes[s], (enum form)form);
                check_choice(&rig, sizes[s],
                             (struct moert_sampler){.temperature = temperature[n_case % 4],
                                                    .top_k = i % 2 == 0 ? 0 : top_k[random_below(6)],
                                                    .top_p = i % 3 == 0 ? 1 : top_p[random_below(7)],
                                                    .min_p = i % 5 > 1 ? 0 : min_p[random_below(5)],
                                                    .state = random_u32()});
            }
    close_rig(&rig);
}

/* Sets that end between tokens of one weight, whole in them or not, and at a sum that is hit to the last bit;
 * random numbers at both ends and at the borders of tokens. */
static void test_cuda_draw__borders_are_those_of_the_sampler(void **state)
{
    (void)state;
    static const double uniform[] = {0, 0x1p-53, 0.25, 0.5, 0.75, 1 - 0x1p-53};
    struct rig rig;
    open_rig(&rig);
    for (uint32_t n = 1; n <= 64; n *= 4) {
        for (uint32_t i = 0; i < n; i++)
            rig.kept[i] = i % 2 == 0 ? 0 : -INFINITY;
        const uint32_t n_kept = (n + 1) / 2;
        for (size_t u = 0; u < sizeof uniform / sizeof *uniform; u++)
            for (uint32_t quarter = 1; quarter <= 4; quarter++) {
                memcpy(rig.logits, rig.kept, n * sizeof *rig.logits);
                const struct moec_draw how = {
                    .temperature = 1, .top_p = (float)quarter / 4, .uniform = uniform[u]};
                moec_cuda_draw_run(NULL, &(struct moec_cuda_draw){rig.logits, n, how, rig.room});
                /* Equal weights: all are kept, and each has the same share of [0, 1). */
                assert_int_equal(rig.room->chosen.token, 2 * (uint32_t)(uniform[u] * n_kept));
            }
    }
    close_rig(&rig);
}

static void test_cuda_draw__no_logits_launch_nothing(void **state)
{
    (void)state;
    moec_cuda_draw_run(NULL, &(struct moec_cuda_draw){.n = 0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_draw__the_largest_is_the_first_of_equals),
        cmocka_unit_test(test_cuda_draw__draws_are_those_of_the_sampler),
        cmocka_unit_test(test_cuda_draw__borders_are_those_of_the_sampler),
        cmocka_unit_test(test_cuda_draw__no_logits_launch_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
