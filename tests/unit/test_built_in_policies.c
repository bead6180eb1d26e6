/* What the policies of lua/policies/ choose where the right answer is known: models of four experts whose
 * harm is given, bundles whose size is a sum. Nothing is measured with a model here. */
#include "compiler/policy/harm.h"
#include "compiler/policy/policy.h"

#include "tests/unit/status.h"
#include "tests/unit/synthetic_profile.h"

#include <math.h>

#define N_LAYER  2u
#define N_EXPERT 2u
#define INT2     33u /* numbers of variants beside bitwidths */
#define INT4     34u
#define INT8     35u

static const uint8_t numbers[] = {INT2, INT4, INT8};
#define N_NUMBER (sizeof numbers)

static const struct synthetic_shape shape = {.n_moe_layer = N_LAYER,
                                             .n_expert = N_EXPERT,
                                             .top_k = 1,
                                             .n_window = 32,
                                             .seq_len_tokens = 8,
                                             .n_bits = 3,
                                             .n_uniform = 2,
                                             .n_key = 2};

/* Bytes of a projection by its number; up is ten times smaller than gate and down. */
static uint64_t projection_bytes(enum moec_projection projection, uint32_t number)
{
    const uint64_t bits = number == INT2 ? 2 : number == INT4 ? 4 : number == INT8 ? 8 : number;
    return bits * (projection == MOEC_PROJECTION_UP ? 10 : 100);
}

struct world {
    double harm[N_LAYER * N_EXPERT][MOEC_PROJECTION_COUNT][N_NUMBER];
    struct moec_harm made;
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    struct moec_policy_variants variants;
    double truth;     /* what plans lose, beside what the model of harm says; 0: the same */
    double tolerance; /* of drafts */
    uint32_t n_evaluate;
};

static uint64_t size_of(const struct moec_plan *plan)
{
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++)
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
            n_bytes += projection_bytes((enum moec_projection)p, plan->experts[i].codecs[p]);
    return n_bytes;
}

static enum moec_status tell_size(void *context, const struct moec_plan *plan, uint64_t *n_bytes,
                                  struct moec_error *err)
{
    (void)context;
    (void)err;
    *n_bytes = size_of(plan);
    return MOEC_OK;
}

/* What a plan loses is what the model of harm says, times `truth`. */
static enum moec_status tell_loss(void *context, const struct moec_plan *plan, enum moec_part part,
                                  struct moec_evaluation *out, struct moec_error *err)
{
    struct world *world = context;
    double kl = 0;
    (void)part;
    (void)err;
    world->n_evaluate++;
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++)
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
            for (size_t n = 0; n < N_NUMBER; n++)
                kl += plan->experts[i].codecs[p] == numbers[n] ? world->harm[i][p][n] : 0;
    kl *= world->truth > 0 ? world->truth : 1;
    *out = (struct moec_evaluation){.loss = exp(kl) - 1, .loss_low = exp(kl) - 1, .kl = kl};
    out->loss_high = out->loss + 0.02;
    return MOEC_OK;
}

static enum moec_status offer(void *context, const struct moec_policy_variants **out, struct moec_error *err)
{
    struct world *world = context;
    static const uint32_t bits[N_NUMBER] = {2, 4, 8};
    for (uint32_t n = 0; n < N_NUMBER; n++)
        MOEC_TRY(moec_codec_for_bits(bits[n], MOEC_SCHEME_ASYMMETRIC, 32, MOEC_DTYPE_BF16,
                                     &world->codecs[numbers[n]], err));
    world->made = (struct moec_harm){
        .n_layer = N_LAYER, .n_expert = N_EXPERT, .n_number = N_NUMBER, .experts = &world->harm[0][0][0]};
    world->variants = (struct moec_policy_variants){
        .codecs = world->codecs, .numbers = numbers, .n_number = N_NUMBER, .harm = &world->made};
    *out = &world->variants;
    return MOEC_OK;
}

/* Every step down costs this much for each byte, and nothing is lost at 8 bits. */
static void fill_harm(struct world *world, double price)
{
    *world = (struct world){0};
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++)
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
            for (size_t n = 0; n < N_NUMBER; n++)
                world->harm[i][p][n] =
                    price * (double)(projection_bytes((enum moec_projection)p, INT8) -
                                     projection_bytes((enum moec_projection)p, numbers[n]));
}

static void run(const char *policy, struct world *world, struct moec_profile *profile, double max_loss,
                uint64_t max_bytes, struct moec_policy_answer *answer)
{
    const struct moec_policy_request request = {
        .policy = policy,
        .config = &profile->config,
        .profile = profile,
        .target = {.max_loss = max_loss, .max_bytes = max_bytes, .loss_tolerance = world->tolerance},
        .given.n_part_window = {[MOEC_PART_SEARCH] = 16, [MOEC_PART_CERTIFICATE] = 16},
        .limits = {.max_evaluations = 100, .guest = moec_guest_limits_default},
        .answers = {.ops = {.evaluate = tell_loss, .size = tell_size, .variants = offer}, .context = world},
    };
    MUST(moec_policy_run(&request, answer, &err));
}

/* A step of a large projection does more harm, and less for each byte, than one of a small projection. */
static void test_built_in_policies__hull_goes_by_harm_for_each_byte(void **state)
{
    (void)state;
    struct world world;
    struct moec_profile profile;
    struct moec_policy_answer answer = {0};
    MUST(synthetic_profile(&shape, &profile));
    fill_harm(&world, 1e-3);
    double *down = world.harm[1][MOEC_PROJECTION_DOWN], *up = world.harm[2][MOEC_PROJECTION_UP];
    down[0] = 0.03, down[1] = 0.029; /* 600 bytes at 5e-5, all in one step: 4 bits are off the front */
    up[0] = 0.01, up[1] = 0.0099;    /* 60 bytes at 1.7e-4 */
    struct moec_plan all;
    MUST(moec_plan_create(&all, &profile.config, &err));
    moec_plan_fill(&all, INT8);
    const uint64_t most = size_of(&all);
    run("hull", &world, &profile, (double)NAN, most - 600, &answer);
    all.experts[1].codecs[MOEC_PROJECTION_DOWN] = INT2;
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++)
        assert_true(moec_variant_equal(answer.plans[0].experts[i], all.experts[i]));
    assert_int_equal(world.n_evaluate, 0);
    moec_policy_answer_release(&answer);

    /* With room for one more the small step is next. */
    run("hull", &world, &profile, (double)NAN, most - 660, &answer);
    all.experts[2].codecs[MOEC_PROJECTION_UP] = INT2;
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++)
        assert_true(moec_variant_equal(answer.plans[0].experts[i], all.experts[i]));
    moec_policy_answer_release(&answer);
    moec_plan_release(&all);
    moec_profile_release(&profile);
}

/* From the safest plan on; none is expected to lose more than the target, and the last comes near it. */
static void test_built_in_policies__hull_ends_its_sequence_under_the_target(void **state)
{
    (void)state;
    struct world world;
    struct moec_profile profile;
    struct moec_policy_answer answer = {0};
    const double target = 0.05;
    MUST(synthetic_profile(&shape, &profile));
    fill_harm(&world, 2e-5); /* 8 bits to 2 of everything: exp(0.1) - 1 */
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++)
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
            for (size_t n = 0; n < N_NUMBER; n++)
                world.harm[i][p][n] *= 1 + 0.01 * (i * MOEC_PROJECTION_COUNT + (unsigned)p);
    run("hull", &world, &profile, target, 0, &answer);
    assert_true(answer.n_plan > 2);
    double before = -1, loss = 0;
    for (uint32_t i = 0; i < answer.n_plan; i++) {
        struct moec_evaluation told;
        MUST(tell_loss(&world, &answer.plans[i], MOEC_PART_SEARCH, &told, &err));
        loss = told.loss;
        assert_true(loss > before && loss <= target);
        assert_true(i == 0 || size_of(&answer.plans[i]) < size_of(&answer.plans[i - 1]));
        before = loss;
    }
    assert_true(loss > target / 2);
    moec_policy_answer_release(&answer);
    moec_profile_release(&profile);
}

/* Where about the target will do, a plan that loses a little more ends the search; the sequence stays under it. */
static void test_built_in_policies__hull_takes_what_is_near_enough(void **state)
{
    (void)state;
    const double target = 0.05;
    uint32_t n_evaluate[2];
    for (int is_tolerant = 0; is_tolerant < 2; is_tolerant++) {
        struct world world;
        struct moec_profile profile;
        struct moec_policy_answer answer = {0};
        struct moec_evaluation told;
        MUST(synthetic_profile(&shape, &profile));
        fill_harm(&world, 2e-5);
        world.truth = 1.12;
        world.tolerance = is_tolerant ? 0.15 : 0;
        run("hull", &world, &profile, target, 0, &answer);
        n_evaluate[is_tolerant] = world.n_evaluate;
        MUST(tell_loss(&world, &answer.plans[answer.n_plan - 1], MOEC_PART_SEARCH, &told, &err));
        assert_true(told.loss <= target && told.loss > target / 2);
        moec_policy_answer_release(&answer);
        moec_profile_release(&profile);
    }
    assert_true(n_evaluate[1] < n_evaluate[0]);
}

/* A prefix has no room for the last step, of 600 bytes; with two small projections left at 8 bits there is room for it. */
static void test_built_in_policies__hull_exchanges_small_steps_for_a_large_one(void **state)
{
    (void)state;
    struct world world;
    struct moec_profile profile;
    struct moec_policy_answer answer = {0};
    const double target = 0.1445; /* less 1.4 standard errors of the certificate, a KL of 0.12 */
    MUST(synthetic_profile(&shape, &profile));
    fill_harm(&world, 2e-5); /* without what follows, 0.084 */
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++)
        for (size_t n = 0; n < N_NUMBER; n++)
            world.harm[i][MOEC_PROJECTION_UP][n] *= 2; /* 0.0096 in all */
    double *down = world.harm[0][MOEC_PROJECTION_DOWN];
    down[0] = 0.03, down[1] = 0.0299;
    run("hull", &world, &profile, target, 0, &answer);
    const struct moec_plan *last = &answer.plans[answer.n_plan - 1];
    struct moec_evaluation told;
    MUST(tell_loss(&world, last, MOEC_PART_SEARCH, &told, &err));
    assert_int_equal(last->experts[0].codecs[MOEC_PROJECTION_DOWN], INT2);
    assert_true(told.kl > 0.115 && told.kl <= 0.1205);
    assert_int_equal(size_of(last), 8 * 200 + 2 * 20 + 2 * 80);
    assert_true(size_of(last) < size_of(&answer.plans[answer.n_plan - 2]));
    moec_policy_answer_release(&answer);
    moec_profile_release(&profile);
}

/* ---- marginal ---- */

/* What expert i loses at the profiled bits {2, 3, 8}, over the baseline of 4. */
static void set_damage(struct moec_profile *profile, uint32_t i, const double damage[3])
{
    for (uint32_t w = 0; w < profile->n_window; w++) {
        profile->baseline.kl[w] = 0.01 * profile->window_scored[w];
        for (uint32_t b = 0; b < 3; b++)
            moec_profile_expert_row(profile, profile->expert_kl, i / N_EXPERT, i % N_EXPERT, b)[w] =
                (0.01 + damage[b]) * profile->window_scored[w];
    }
}

static void test_built_in_policies__marginal_passes_over_what_is_off_the_front(void **state)
{
    (void)state;
    struct world world = {0};
    struct moec_profile profile;
    struct moec_policy_answer answer = {0};
    MUST(synthetic_profile(&shape, &profile));
    /* At 3 bits the third loses hardly less than at 2: by price it goes to 2 at once. The second is next. */
    static const double damage[N_LAYER * N_EXPERT][3] = {
        {3, 1.4, 0}, {0.6, 0.2, 0}, {0.3, 0.29, 0}, {5, 2.4, 0}};
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++)
        set_damage(&profile, i, damage[i]);
    static const struct {
        uint64_t saved; /* bits of experts under 4 of all */
        uint8_t bits[N_LAYER * N_EXPERT];
    } cases[] = {{0, {4, 4, 4, 4}}, {1, {4, 4, 2, 4}}, {2, {4, 4, 2, 4}},
                 {3, {4, 3, 2, 4}}, {4, {4, 2, 2, 4}}, {5, {3, 2, 2, 4}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        run("marginal", &world, &profile, (double)NAN, (16 - cases[c].saved) * 210, &answer);
        for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++)
            assert_true(
                moec_variant_equal(answer.plans[0].experts[i], moec_variant_uniform(cases[c].bits[i])));
        moec_policy_answer_release(&answer);
    }
    moec_profile_release(&profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_built_in_policies__hull_goes_by_harm_for_each_byte),
        cmocka_unit_test(test_built_in_policies__hull_ends_its_sequence_under_the_target),
        cmocka_unit_test(test_built_in_policies__hull_takes_what_is_near_enough),
        cmocka_unit_test(test_built_in_policies__hull_exchanges_small_steps_for_a_large_one),
        cmocka_unit_test(test_built_in_policies__marginal_passes_over_what_is_off_the_front),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
