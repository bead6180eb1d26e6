/* What a policy may assign, how often it may measure, and that nothing is measured twice. */
#include "compiler/policy/harm.h"
#include "compiler/policy/policy.h"

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
    uint32_t n_evaluate, n_size, n_variants;
    uint32_t n_dense; /* matrices of the model */
};

static enum moec_status count_evaluation(void *context, const struct moec_plan *plan, enum moec_part part,
                                         struct moec_evaluation *out, struct moec_error *err)
{
    (void)err;
    struct counted *counted = context;
    counted->n_evaluate++;
    *out = (struct moec_evaluation){.loss = plan->experts[0].codecs[0] + (part == MOEC_PART_SELECT ? 100 : 0),
                                    .accepted = true};
    return MOEC_OK;
}

/* What a candidate with decisions is told, by its settings. */
static enum moec_status count_decision(void *context, const struct moec_plan *plan,
                                       const struct moec_decision_settings *settings, enum moec_part part,
                                       struct moec_evaluation *out, struct moec_error *err)
{
    MOEC_TRY(count_evaluation(context, plan, part, out, err));
    out->has_traffic = true;
    out->missed_share = 1.0 / settings->n_slots;
    out->token_misses = settings->keep_top;
    out->token_bytes = settings->low_bits * 10 + settings->n_low_slots;
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

/* What moec.variants() offers here: two codecs for experts, 8 bits beside them, and one for each matrix. */
static enum moec_status offer_variants(void *context, const struct moec_policy_variants **out,
                                       struct moec_error *err)
{
    static const uint8_t numbers[] = {33, 34, 8}, dense_numbers[] = {34, 0};
    static struct moec_codec codecs[MOEC_CODEC_TABLE];
    static struct moec_policy_matrix matrices[MOEC_MAX_LAYERS];
    static double expert_harm[N_LAYER * N_EXPERT * MOEC_PROJECTION_COUNT * 3];
    static double dense_harm[MOEC_MAX_LAYERS * MOEC_CODEC_TABLE];
    static struct moec_harm harm = {
        .n_layer = N_LAYER, .n_expert = N_EXPERT, .n_number = 3, .experts = expert_harm, .dense = dense_harm};
    static struct moec_policy_variants variants = {
        .codecs = codecs, .numbers = numbers, .n_number = 3, .dense = matrices, .harm = &harm};
    struct counted *counted = context;
    (void)err;
    counted->n_variants++;
    codecs[33] = (struct moec_codec){.dtype = MOEC_DTYPE_INT2,
                                     .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED,
                                     .group = 64,
                                     .quantizer = MOEC_QUANTIZER_GPTQ};
    codecs[34] = codecs[33];
    codecs[34].dtype = MOEC_DTYPE_INT4;
    codecs[8] = (struct moec_codec){.dtype = MOEC_DTYPE_INT8};
    harm.n_dense = variants.n_dense = counted->n_dense;
    for (uint32_t i = 0; i < counted->n_dense; i++) {
        matrices[i] = (struct moec_policy_matrix){.role = MOEC_ROLE_Q,
                                                  .layer = i,
                                                  .rows = 8,
                                                  .columns = 4,
                                                  .numbers = dense_numbers,
                                                  .n_number = 2};
        dense_harm[i * MOEC_CODEC_TABLE + 34] = 100 + i;
    }
    for (size_t i = 0; i < sizeof expert_harm / sizeof *expert_harm; i++)
        expert_harm[i] = (double)i;
    *out = &variants;
    return MOEC_OK;
}

struct outcome {
    enum moec_status status;
    struct moec_error err;
    struct moec_policy_answer answer; /* owned; freed when the next policy runs */
    struct moec_variant *experts;     /* of the answer's first plan */
    uint32_t n_evaluations;
    struct counted counted;
};

/* The answer of the last run, to be freed. */
static struct moec_policy_answer last_answer;

/* Windows of the select part. */
static uint32_t n_select = 8;
/* What candidates may have; false: nothing. */
static bool has_rules = true;
/* Of what tokens read; 0: bundles are compared. */
static double pair_share;
/* Of the target, by which a plan may miss it; 0: as little as the policy can. */
static double loss_tolerance;

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
    const struct moec_candidate_rules rules = {
        .config = &profile.config,
        .path = "the model",
        .shared = {.n_slots = 2, .n_low_slots = 1, .low_bits = 4, .keep_top = 1},
        .may_route = true,
        .may_precise = true,
        .n_draft = 1};
    struct moec_policy_request request = {
        .policy = path,
        .rules = has_rules ? &rules : NULL,
        .config = &profile.config,
        .profile = &profile,
        .target = {.max_loss = 0.02, .pair_share = pair_share, .loss_tolerance = loss_tolerance},
        .given.n_part_window = {[MOEC_PART_SEARCH] = 16, [MOEC_PART_SELECT] = n_select},
        .limits = {.max_evaluations = 5, .guest = moec_guest_limits_default},
        .answers = {.ops = {.evaluate = count_evaluation,
                            .decide = count_decision,
                            .size = count_size,
                            .variants = offer_variants},
                    .context = &outcome.counted},
    };
    outcome.counted.n_dense = moec_plan_dense_count(&profile.config);
    outcome.status = moec_policy_run(&request, &outcome.answer, &outcome.err);
    outcome.experts = outcome.answer.plans[0].experts;
    outcome.n_evaluations = outcome.answer.n_evaluations;
    moec_policy_answer_release(&last_answer);
    last_answer = outcome.answer;
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

static void test_policy__is_told_what_tokens_read(void **state)
{
    (void)state;
    struct outcome outcome =
        run_policy("assert(moec.pair_share == nil and moec.loss_tolerance == nil) return uniform(4)");
    assert_ok(outcome.status, outcome.err);
    pair_share = 0.5;
    loss_tolerance = 0.15;
    outcome = run_policy("assert(moec.pair_share == 0.5 and moec.loss_tolerance == 0.15) return uniform(4)");
    pair_share = loss_tolerance = 0;
    assert_ok(outcome.status, outcome.err);
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
    expect_refusal("local a = uniform(4) a[2][1] = 7 return a",
                   "has no valid bitwidth at [2][1]: the number 7,");
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

static void test_policy__measures_on_two_parts(void **state)
{
    (void)state;
    struct outcome outcome = run_policy("assert(moec.parts.search == 16 and moec.parts.select == 8)\n"
                                        "local a = uniform(4)\n"
                                        "for i = 1, 2 do assert(moec.evaluate(a, 'select').loss == 104) end\n"
                                        "assert(moec.evaluate(a).loss == 4)\n"
                                        "return a");
    assert_ok(outcome.status, outcome.err);
    assert_int_equal(outcome.counted.n_evaluate, 2);
    expect_refusal("moec.evaluate(uniform(4), 'certificate') return uniform(4)",
                   "invalid option 'certificate'");
    n_select = 0;
    expect_refusal("moec.evaluate(uniform(4), 'select') return uniform(4)", "the select part has no windows");
    n_select = 8;
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
    assert_message(outcome.err, "more than the limit of 5 different assignments");
    assert_int_equal(outcome.counted.n_evaluate, 5);
}

static void test_policy__offers_variants_by_name(void **state)
{
    (void)state;
    struct outcome outcome = run_policy(
        "local v = moec.variants()\n"
        "assert(table.concat(v.names, ' ') == 'int2-g64 int4-g64 int8-row-symmetric-linear')\n"
        "assert(v.bits['int2-g64'] == 2 and v.bits['source'] == 32)\n"
        "assert(v.harm.experts[1][1].gate['int2-g64'] == 0 and v.harm.experts[1][1].up['int2-g64'] == 3)\n"
        "assert(v.harm.experts[2][4].down['int8-row-symmetric-linear'] == 71)\n"
        "assert(v.dense[1].role == 'q projection' and v.dense[1].layer == 1 and v.dense[1].rows == 8)\n"
        "assert(table.concat(v.dense[1].variants, ' ') == 'int4-g64 source')\n"
        "assert(v.harm.dense[2]['int4-g64'] == 101 and #v.dense == #v.harm.dense)\n"
        "assert(moec.variants().names[1] == 'int2-g64')\n"
        "local a = uniform('int2-g64') a[2][1] = {gate = 'int4-g64', up = 2, down = 'int2-g64'}\n"
        "a.dense = {[2] = 'int4-g64', [1] = 'source'}\n"
        "moec.size(a) moec.evaluate(a) a.dense[2] = nil moec.evaluate(a) a.dense[2] = 'int4-g64'\n"
        "return a");
    assert_ok(outcome.status, outcome.err);
    assert_int_equal(outcome.counted.n_variants, 1);
    assert_int_equal(outcome.counted.n_evaluate, 2);
    assert_true(moec_variant_equal(outcome.experts[0], moec_variant_uniform(33)));
    assert_true(moec_variant_equal(outcome.experts[N_EXPERT], (struct moec_variant){{34, 2, 33}}));
    assert_int_equal(outcome.answer.plans[0].dense[0], 0);
    assert_int_equal(outcome.answer.plans[0].dense[1], 34);
}

static void test_policy__refuses_variants_that_were_not_offered(void **state)
{
    (void)state;
    expect_refusal("return uniform('int2-g64')", "has no valid bitwidth at [1][1]: the string int2-g64,");
    expect_refusal("moec.variants() return uniform('int3-g64')", "or a name of moec.variants()");
    expect_refusal("moec.variants() return uniform('source')", "sent bitwidth 0");
    expect_refusal("local a = uniform(4) a.dense = 4 return a", "has a number as dense");
    expect_refusal("local a = uniform(4) a.dense = {[0] = 4} return a", "has an entry [0] in dense");
    expect_refusal("local a = uniform(4) a.dense = {4} return a", "sent codec 4 for dense matrix 1");
    expect_refusal("moec.variants() local a = uniform(4) a.dense = {'int2-g64'} return a",
                   "sent codec 33 for dense matrix 1");
}

static void test_policy__takes_a_sequence(void **state)
{
    (void)state;
    struct outcome outcome = run_policy("return {sequence = {uniform(8), uniform(4), uniform(2)}}");
    assert_ok(outcome.status, outcome.err);
    assert_int_equal(outcome.answer.n_plan, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(moec_variant_equal(outcome.answer.plans[i].experts[3], moec_variant_uniform(8u >> i)));
    expect_refusal("return {sequence = {}}", "a sequence of 0 assignments, expected 1 to 8");
    expect_refusal("local s = {} for i = 1, 9 do s[i] = uniform(4) end return {sequence = s}",
                   "a sequence of 9 assignments");
    expect_refusal("return {sequence = 4}", "has a number as sequence");
    expect_refusal("return {sequence = {uniform(4), x = 1}}", "has an entry [x] in sequence");
    expect_refusal("return {sequence = {uniform(4), 4}}", "is a number, expected an assignment");
}

static void test_policy__measures_candidates_with_decisions(void **state)
{
    (void)state;
    struct outcome outcome = run_policy(
        "local r = moec.evaluate {assignment = uniform(4), route = 'cache-prior:0.2', slots = 4}\n"
        "assert(r.loss == 4 and r.accepted and r.missed_share == 0.25 and r.misses_per_token == 1)\n"
        "assert(r.bytes_per_token == 0)\n"
        "r = moec.evaluate({assignment = uniform(4), route = 'cache-prior:0.2', slots = 4}, 'search')\n"
        "r = moec.evaluate({assignment = uniform(4), precision = 'hobbit', low_slots = '75%'}, 'select')\n"
        "assert(r.loss == 104 and r.bytes_per_token == 43 and r.misses_per_token == 0)\n"
        "assert(moec.evaluate(uniform(4)).missed_share == nil)\n"
        "assert(moec.slots == 2 and moec.low_slots == 1 and moec.low_bits == 4 and moec.keep_top == 1)\n"
        "assert(moec.with.route and not moec.with.prefill and moec.cache_start == 'empty')\n"
        "return uniform(4)");
    assert_ok(outcome.status, outcome.err);
    assert_int_equal(outcome.n_evaluations, 3); /* the second one was measured before */
    expect_refusal("moec.evaluate {assignment = uniform(4), slots = 5}",
                   "the logical cache has room for 5 experts");
    expect_refusal("moec.evaluate {assignment = uniform(4), slots = 1.5}",
                   "as slots, expected a whole number");
    expect_refusal("moec.evaluate {assignment = uniform(4), prefill = 'unpopular:0.5:8'}",
                   "uses prefill, which this search leaves out");
    expect_refusal("moec.evaluate {assignment = uniform(4), draft = 1}", "has a member 'draft'");
    expect_refusal("moec.evaluate {assignment = uniform(4), keep_top = 2}", "keep_top without route");
    expect_refusal("moec.evaluate {assignment = 4, route = 'top-k'}", "expected an assignment");
    expect_refusal("moec.evaluate {assignment = uniform(4), route = 'top-k\\0x'}",
                   "expected 1 to 31 characters");
    expect_refusal("moec.evaluate {assignment = uniform(4), route = ('x'):rep(40)}",
                   "expected 1 to 31 characters");
    has_rules = false;
    expect_refusal("moec.evaluate {assignment = uniform(4), route = 'top-k'}", "leave out --metric");
    has_rules = true;
}

static void test_policy__checks_candidates_of_a_guest(void **state)
{
    (void)state;
    struct moec_profile profile;
    MUST(synthetic_profile(&shape, &profile));
    struct moec_error err = {0};
    const struct moec_candidate_rules rules = {
        .config = &profile.config, .path = "the model", .may_route = true, .n_draft = 2};
    struct moec_policy_candidate candidate = {.settings = {.n_slots = 2}};
    assert_ok(moec_policy_check_candidate(&rules, &candidate, &err), err);
    memset(candidate.settings.route, 'x', sizeof candidate.settings.route);
    assert_status(moec_policy_check_candidate(&rules, &candidate, &err), MOEC_ERR_SCRIPT, err);
    assert_message(err, "a text that does not end with a zero byte");
    memset(candidate.settings.route, 0, sizeof candidate.settings.route);
    const struct moec_policy_candidate wrong[] = {{.settings = {.n_slots = 2}, .draft = 2},
                                                  {.settings = {.n_slots = 2}, .left_out = 1001},
                                                  {.settings = {.n_slots = 2, .low_bits = 4}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        err = (struct moec_error){0};
        assert_status(moec_policy_check_candidate(&rules, &wrong[i], &err), MOEC_ERR_SCRIPT, err);
    }
    moec_profile_release(&profile);
}

static void expect_checked(const char *source, enum moec_status expected, const char *part)
{
    char path[] = "/tmp/moec-policy-XXXXXX.lua";
    struct moec_error err = {0};
    const int fd = mkstemps(path, 4);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, source, strlen(source)), (ssize_t)strlen(source));
    (void)close(fd);
    assert_status(moec_policy_check(path, &err), expected, err);
    if (part != NULL)
        assert_message(err, part);
    (void)unlink(path);
}

/* Before anything is measured, and without calling what the file returns. */
static void test_policy__checks_a_file(void **state)
{
    (void)state;
    struct moec_error err = {0};
    assert_ok(moec_policy_check("hull", &err), err);
    assert_status(moec_policy_check("no-such-policy", &err), MOEC_ERR_NOT_FOUND, err);
    expect_checked("local target = require 'target'\nreturn function(moec) error('was called') end", MOEC_OK,
                   NULL);
    expect_checked("local x = 1\nreturn function(moec) return = 1 end", MOEC_ERR_SCRIPT,
                   ".lua:2: unexpected symbol");
    expect_checked("local function assign(moec) end", MOEC_ERR_SCRIPT, "returned a nil, expected a function");
    expect_checked("return {assign = function(moec) end}", MOEC_ERR_SCRIPT,
                   "returned a table, expected a function");
    expect_checked("\nlocal x = require 'nosuch'\nreturn function() end", MOEC_ERR_SCRIPT, ".lua:2: ");
    expect_checked("\n\nlocal x = nosuch.field\nreturn function() end", MOEC_ERR_SCRIPT, ".lua:3: ");
}

static int release_last(void **state)
{
    (void)state;
    moec_policy_answer_release(&last_answer);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy__takes_a_whole_assignment),
        cmocka_unit_test(test_policy__is_told_what_tokens_read),
        cmocka_unit_test(test_policy__takes_bits_for_each_projection),
        cmocka_unit_test(test_policy__refuses_what_is_no_assignment),
        cmocka_unit_test(test_policy__measures_an_assignment_once),
        cmocka_unit_test(test_policy__measures_on_two_parts),
        cmocka_unit_test(test_policy__ends_a_search_that_measures_for_ever),
        cmocka_unit_test(test_policy__offers_variants_by_name),
        cmocka_unit_test(test_policy__refuses_variants_that_were_not_offered),
        cmocka_unit_test(test_policy__takes_a_sequence),
        cmocka_unit_test(test_policy__measures_candidates_with_decisions),
        cmocka_unit_test(test_policy__checks_candidates_of_a_guest),
        cmocka_unit_test(test_policy__checks_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, release_last);
}
