/* What a policy may assign, how often it may measure, and that nothing is measured twice. */
#include "compiler/policy.h"

#include "tests/unit/status.h"
#include "tests/unit/synthetic_profile.h"

#include <stdlib.h>
#include <unistd.h>

#define N_LAYER  2
#define N_EXPERT 4

static const struct synthetic_shape shape = {.n_moe_layer = N_LAYER,
                                             .n_expert = N_EXPERT,
                                             .top_k = 2,
                                             .n_window = 32,
                                             .seq_len_tokens = 8,
                                             .n_bits = 2,
                                             .n_uniform = 2,
                                             .n_key = 4};

struct counted {
    uint32_t n_evaluate, n_size;
};

static enum moec_status count_evaluation(void *context, const struct moec_plan *plan,
                                         struct moec_evaluation *out, struct moec_error *err)
{
    (void)err;
    struct counted *counted = context;
    counted->n_evaluate++;
    *out = (struct moec_evaluation){.loss = plan->experts[0].codecs[0], .accepted = true};
    return MOEC_OK;
}

static enum moec_status count_size(void *context, const struct moec_plan *plan, uint64_t *n_bytes,
                                   struct moec_error *err)
{
    (void)err;
    struct counted *counted = context;
    counted->n_size++;
    *n_bytes = 1000u * plan->experts[0].codecs[0];
    return MOEC_OK;
}

struct outcome {
    enum moec_status status;
    struct moec_error err;
    struct moec_variant experts[N_LAYER * N_EXPERT];
    uint32_t n_evaluations;
    struct counted counted;
};

/* Runs a policy whose function has this body; `uniform(bits)` makes an assignment. */
static struct outcome run_policy(const char *body)
{
    struct outcome outcome = {0};
    struct moec_profile profile;
    char path[] = "/tmp/moec_policy_XXXXXX.lua";
    int fd = mkstemps(path, 4);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    assert_non_null(file);
    fprintf(file,
            "local assignment = require 'assignment'\nreturn function(moec)\n"
            "local function uniform(bits) return assignment.uniform(moec, bits) end\n%s\nend\n",
            body);
    assert_int_equal(fclose(file), 0);
    MUST(synthetic_profile(&shape, &profile));
    struct moec_policy_request request = {
        .policy = path,
        .config = &profile.config,
        .profile = &profile,
        .max_loss = 0.02,
        .max_evaluations = 5,
        .limits = moec_guest_limits_default,
        .ops = {.evaluate = count_evaluation, .size = count_size},
        .context = &outcome.counted,
    };
    struct moec_plan plan = {.n_layer = N_LAYER, .n_expert = N_EXPERT, .experts = outcome.experts};
    outcome.status = moec_policy_run(&request, &plan, &outcome.n_evaluations, &outcome.err);
    moec_profile_release(&profile);
    (void)unlink(path);
    return outcome;
}

static void expect_refusal(const char *body, const char *part)
{
    struct outcome outcome = run_policy(body);
    assert_status(outcome.status, MOEC_ERR_SCRIPT, outcome.err);
    assert_message(outcome.err, part);
}

static void test_policy__takes_a_whole_assignment(void **state)
{
    (void)state;
    struct outcome outcome = run_policy("local a = uniform(4) a[2][3] = 8.0 return a");
    assert_ok(outcome.status, outcome.err);
    static const uint8_t expected[] = {4, 4, 4, 4, 4, 4, 8, 4};
    for (size_t i = 0; i < sizeof expected; i++)
        assert_true(moec_variant_equal(outcome.experts[i], moec_variant_uniform(expected[i])));
}

static void test_policy__takes_bits_for_each_projection(void **state)
{
    (void)state;
    struct outcome outcome = run_policy("local a = uniform(4)\n"
                                        "a[1][2] = {gate = 2, up = 16, down = 3}\n"
                                        "a[2][1] = {gate = 4, up = 4, down = 4}\n"
                                        "moec.evaluate(a) a[2][1] = 4 moec.evaluate(a)\n" /* the same plan */
                                        "return a");
    assert_ok(outcome.status, outcome.err);
    assert_int_equal(outcome.counted.n_evaluate, 1);
    assert_true(moec_variant_equal(outcome.experts[1], (struct moec_variant){{2, 16, 3}}));
    assert_true(moec_variant_equal(outcome.experts[N_EXPERT], moec_variant_uniform(4)));
    expect_refusal("local a = uniform(4) a[1][2] = {gate = 2, up = 2} return a",
                   "has no valid bitwidth for down at [1][2]: the nil nil");
    expect_refusal("local a = uniform(4) a[1][2] = {gate = 2, up = '2', down = 2} return a",
                   "has no valid bitwidth for up at [1][2]: the string 2");
    expect_refusal("local a = uniform(4) a[1][2] = {gate = 2, up = 2, down = 2, group = 32} return a",
                   "has a member 'group' at [1][2], expected gate, up and down");
    expect_refusal("local a = uniform(4) a[1][2] = {2, 2, 2} return a", "has a member '1' at [1][2]");
}

static void test_policy__refuses_what_is_no_assignment(void **state)
{
    (void)state;
    expect_refusal("return 4", "is a number, expected an assignment");
    expect_refusal("local a = uniform(4) a[3] = a[1] return a", "has an entry [3], expected layers 1..2");
    expect_refusal("local a = uniform(4) a.note = 1 return a", "has an entry [note], expected layers 1..2");
    expect_refusal("local a = uniform(4) a[2][5] = 4 return a",
                   "has an entry [5] in layer [2], expected experts 1..4");
    expect_refusal("local a = uniform(4) a[1][0] = 4 return a",
                   "has an entry [0] in layer [1], expected experts 1..4");
    expect_refusal("local a = uniform(4) a[1]['2'] = 4 return a", "has an entry [2] in layer [1]");
    expect_refusal("local a = uniform(4) a[2] = nil return a", "has 1 layers, expected 2");
    expect_refusal("local a = uniform(4) a[2] = 4 return a", "has a number at [2], expected a table");
    expect_refusal("local a = uniform(4) a[2][1] = nil return a", "has nothing at [2][1]");
    expect_refusal("local a = uniform(4) a[2][1] = '4' return a",
                   "has no valid bitwidth at [2][1]: the string 4,");
    expect_refusal("local a = uniform(4) a[2][1] = 5 return a",
                   "has no valid bitwidth at [2][1]: the number 5,");
    expect_refusal("local a = uniform(4) a[2][1] = 4.5 return a",
                   "has no valid bitwidth at [2][1]: the number 4.5,");
    expect_refusal("local a = uniform(4) a[1][5] = 4 moec.evaluate(a) return uniform(4)", "evaluate's");
    expect_refusal("local a = uniform(4) a[1][5] = 4 moec.size(a) return uniform(4)", "size's");
}

static void test_policy__measures_an_assignment_once(void **state)
{
    (void)state;
    struct outcome outcome =
        run_policy("local a, b = uniform(4), uniform(8)\n"
                   "for i = 1, 200 do\n"
                   "  assert(moec.evaluate(a).loss == 4 and moec.evaluate(b).loss == 8)\n"
                   "  assert(moec.size(a) == 4000)\n"
                   "end\n"
                   "return a");
    assert_ok(outcome.status, outcome.err);
    assert_int_equal(outcome.counted.n_evaluate, 2);
    assert_int_equal(outcome.n_evaluations, 2);
    assert_int_equal(outcome.counted.n_size, 200);
}

static void test_policy__ends_a_search_that_measures_for_ever(void **state)
{
    (void)state;
    static const char body[] = "for i = 0, 100 do\n"
                               "  local a = uniform(4)\n"
                               "  a[1][1 + i % 4], a[2][1 + i // 4 % 4] = 8, 2\n"
                               "  moec.evaluate(a)\n"
                               "end\n"
                               "return uniform(4)";
    struct outcome outcome = run_policy(body);
    assert_status(outcome.status, MOEC_ERR_SCRIPT, outcome.err);
    assert_message(outcome.err, "more than its 5 different assignments");
    assert_int_equal(outcome.counted.n_evaluate, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy__takes_a_whole_assignment),
        cmocka_unit_test(test_policy__takes_bits_for_each_projection),
        cmocka_unit_test(test_policy__refuses_what_is_no_assignment),
        cmocka_unit_test(test_policy__measures_an_assignment_once),
        cmocka_unit_test(test_policy__ends_a_search_that_measures_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
