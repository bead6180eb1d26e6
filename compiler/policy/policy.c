/* A question is a byte of kind and a plan, and a candidate where there are decisions. The parent checks kind,
 * length and every codec again, and settles the plan before it is used. Evaluations are kept by the SHA-256
 * of the whole message, so kind and decisions are part of the key. Only those that were not found count
 * towards the limit. */
#include "compiler/policy/policy.h"

#include "compiler/policy/evaluation_cache.h"
#include "compiler/policy/policy_plan.h"
#include "compiler/policy/policy_push.h"
#include "compiler/policy/policy_variants.h"
#include "formats/base/memory.h"
#include "profiler/evaluate/metrics.h"

#include <inttypes.h>
#include <lauxlib.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const uint32_t assignable_bits[MOEC_N_ASSIGNABLE] = MOEC_ASSIGNABLE_BITS;

/* First byte of a question, and of a result. */
enum {
    ASK_EVALUATE = 'E',
    ASK_SELECT = 'F',  /* the same on the select part */
    ASK_DECIDED = 'D', /* evaluate with decisions, whose candidate follows the plan */
    ASK_DECIDED_SELECT = 'G',
    ASK_SIZE = 'S',
    ASK_VARIANTS = 'V',
    RESULT_PLANS = 'R',
    RESULT_NONE = 'N'
};

/* Both sides of the fork see the same image, so a struct is a message. */
struct size_answer {
    uint64_t n_bytes;
};

struct policy_run {
    const struct moec_policy_request *request;
    struct moec_policy_shape shape;
    const struct moec_policy_variants *variants; /* what was offered; NULL: the policy has not asked */
    struct moec_evaluation_cache *measured;      /* owned */
    struct moec_plan plan;                       /* of the question that is answered */
    /* Of the search part, NULL without a profile: */
    uint64_t *activations;    /* (S, E) */
    double *mean_gate_weight; /* (S, E) */
    double *loss;             /* (B, S, E), on windows that sensitivities are of */
    double *kl;               /* (B, S, E) */
};

/* ---- the child's side ---- */

static struct policy_run *run_of(lua_State *lua)
{
    return moec_guest_context(lua);
}

static const void *ask(lua_State *lua, char kind, const char *what, size_t expected)
{
    luaL_checkany(lua, 1);
    moec_policy_push_plan(lua, &run_of(lua)->shape, 1, kind, what);
    size_t n = 0;
    const char *question = lua_tolstring(lua, -1, &n);
    moec_guest_ask(lua, question, n);
    const char *answer = lua_tolstring(lua, -1, &n);
    if (n != expected)
        luaL_error(lua, "moec answered %d bytes, expected %d", (int)n, (int)expected);
    return answer;
}

/* An assignment with decisions about each token, as {assignment = .., route = ..}. */
static void ask_decided(lua_State *lua, char kind, struct moec_evaluation *out)
{
    const struct policy_run *run = run_of(lua);
    const char *what = "evaluate's candidate";
    struct moec_policy_candidate candidate;
    size_t n = 0;
    if (run->request->rules == NULL)
        luaL_error(lua, "%s has decisions, and their loss is measured only in perplexity: leave out --metric",
                   what);
    moec_policy_read_candidate(lua, run->request->rules, 1, true, what, &candidate);
    lua_pushliteral(lua, "assignment");
    (void)lua_rawget(lua, 1);
    moec_policy_push_plan(lua, &run->shape, lua_gettop(lua), kind, what);
    lua_pushlstring(lua, (const char *)&candidate, sizeof candidate);
    lua_concat(lua, 2);
    const char *question = lua_tolstring(lua, -1, &n);
    moec_guest_ask(lua, question, n);
    const char *answer = lua_tolstring(lua, -1, &n);
    if (n != sizeof *out)
        luaL_error(lua, "moec answered %d bytes, expected %d", (int)n, (int)sizeof *out);
    memcpy(out, answer, sizeof *out);
}

static bool is_candidate(lua_State *lua)
{
    bool has_assignment = false;
    if (lua_type(lua, 1) == LUA_TTABLE) {
        lua_pushliteral(lua, "assignment");
        has_assignment = lua_rawget(lua, 1) != LUA_TNIL;
        lua_pop(lua, 1);
    }
    return has_assignment;
}

static int policy_evaluate(lua_State *lua)
{
    if (run_of(lua)->request->profile == NULL)
        return luaL_error(lua, "evaluate needs data: give compile a --profile or --data");
    static const char *const parts[] = {"search", "select", NULL};
    const bool on_select = luaL_checkoption(lua, 2, "search", parts) == 1;
    if (on_select && run_of(lua)->request->given.n_part_window[MOEC_PART_SELECT] == 0)
        return luaL_error(lua, "the select part has no windows (moec.parts.select is 0)");
    struct moec_evaluation evaluation;
    if (is_candidate(lua))
        ask_decided(lua, on_select ? ASK_DECIDED_SELECT : ASK_DECIDED, &evaluation);
    else
        memcpy(&evaluation,
               ask(lua, on_select ? ASK_SELECT : ASK_EVALUATE, "evaluate's assignment", sizeof evaluation),
               sizeof evaluation);
    moec_policy_push_evaluation(lua, &evaluation);
    return 1;
}

static int policy_size(lua_State *lua)
{
    struct size_answer answer;
    memcpy(&answer, ask(lua, ASK_SIZE, "size's assignment", sizeof answer), sizeof answer);
    lua_pushinteger(lua, (lua_Integer)answer.n_bytes);
    return 1;
}

static int policy_variants(lua_State *lua)
{
    const char question = ASK_VARIANTS;
    size_t n = 0;
    if (run_of(lua)->request->profile == NULL || run_of(lua)->request->answers.ops.variants == NULL)
        return luaL_error(lua, "variants need data: give compile a --profile or --data");
    moec_guest_ask(lua, &question, 1);
    const char *answer = lua_tolstring(lua, -1, &n);
    moec_policy_variants_push(lua, &run_of(lua)->shape, (const uint8_t *)answer, n);
    return 1;
}

/* Pushes t[layer][expert] = value(s, e), 1-based. */
static void push_expert_table(lua_State *lua, void (*push)(lua_State *lua, const struct policy_run *run,
                                                           uint32_t s, uint32_t e))
{
    const struct policy_run *run = run_of(lua);
    lua_createtable(lua, (int)run->shape.n_layer, 0);
    for (uint32_t s = 0; s < run->shape.n_layer; s++) {
        lua_createtable(lua, (int)run->shape.n_expert, 0);
        for (uint32_t e = 0; e < run->shape.n_expert; e++) {
            push(lua, run, s, e);
            lua_rawseti(lua, -2, e + 1);
        }
        lua_rawseti(lua, -2, s + 1);
    }
}

static size_t expert_index(const struct policy_run *run, uint32_t s, uint32_t e)
{
    return (size_t)s * run->shape.n_expert + e;
}

static void push_activations(lua_State *lua, const struct policy_run *run, uint32_t s, uint32_t e)
{
    lua_pushinteger(lua, (lua_Integer)run->activations[expert_index(run, s, e)]);
}

static void push_gate_weight(lua_State *lua, const struct policy_run *run, uint32_t s, uint32_t e)
{
    lua_pushnumber(lua, run->mean_gate_weight[expert_index(run, s, e)]);
}

static void push_by_bits(lua_State *lua, const struct policy_run *run, const double *array, uint32_t s,
                         uint32_t e)
{
    const struct moec_profile *profile = run->request->profile;
    lua_createtable(lua, 0, (int)profile->n_bits);
    for (uint32_t b = 0; b < profile->n_bits; b++) {
        lua_pushnumber(lua,
                       array[(size_t)b * run->shape.n_layer * run->shape.n_expert + expert_index(run, s, e)]);
        lua_rawseti(lua, -2, profile->bits[b]);
    }
}

static void push_loss(lua_State *lua, const struct policy_run *run, uint32_t s, uint32_t e)
{
    push_by_bits(lua, run, run->loss, s, e);
}

static void push_kl(lua_State *lua, const struct policy_run *run, uint32_t s, uint32_t e)
{
    push_by_bits(lua, run, run->kl, s, e);
}

/* Loss and mean KL on those of the first n_window windows that are of the search part, without an interval.
 * Fails only for values that moec_profile_check refuses. */
static struct moec_loss search_part(const struct moec_profile *profile, uint32_t n_window, const double *nll,
                                    const double *kl)
{
    struct moec_loss_options options = moec_loss_options_default();
    options.confidence = MOEC_CONFIDENCE_POINT;
    struct moec_loss loss = {.loss = NAN, .mean_kl = NAN};
    struct moec_loss_windows windows = moec_profile_loss_windows(profile, MOEC_PART_SEARCH);
    windows.n_window = n_window;
    enum moec_status status = moec_loss_measure(
        &windows, &(struct moec_paired_nll){profile->reference.nll, nll, kl}, &options, &loss, NULL);
    (void)status;
    return loss;
}

static void push_measure(lua_State *lua, const struct moec_profile *profile, uint32_t n_window,
                         const struct moec_measure *measure)
{
    struct moec_loss loss = search_part(profile, n_window, measure->nll, measure->kl);
    lua_createtable(lua, 0, 2);
    moec_policy_set_number(lua, "loss", loss.loss);
    moec_policy_set_number(lua, "kl", loss.mean_kl);
}

static uint64_t search_tokens(const struct moec_profile *profile)
{
    uint64_t n = 0;
    for (uint32_t w = 0; w < profile->n_window; w++)
        if (moec_part_has(MOEC_PART_SEARCH, profile->window_part, w))
            n += moec_profile_traced(profile, w);
    return n;
}

static void push_profile(lua_State *lua)
{
    const struct moec_profile *profile = run_of(lua)->request->profile;
    lua_createtable(lua, 0, 10);
    moec_policy_set_integer(lua, "baseline_bits", profile->baseline_bits);
    lua_createtable(lua, (int)profile->n_bits, 0);
    for (uint32_t b = 0; b < profile->n_bits; b++) {
        lua_pushinteger(lua, profile->bits[b]);
        lua_rawseti(lua, -2, b + 1);
    }
    lua_setfield(lua, -2, "bits");
    push_measure(lua, profile, profile->n_sensitivity_window, &profile->baseline);
    lua_setfield(lua, -2, "baseline");
    lua_createtable(lua, 0, (int)profile->n_uniform);
    for (uint32_t u = 0; u < profile->n_uniform; u++) {
        push_measure(lua, profile, profile->n_window, &profile->uniform[u]);
        lua_rawseti(lua, -2, profile->uniform_bits[u]);
    }
    lua_setfield(lua, -2, "uniform");
    push_expert_table(lua, push_loss);
    lua_setfield(lua, -2, "loss");
    push_expert_table(lua, push_kl);
    lua_setfield(lua, -2, "kl");
    push_expert_table(lua, push_activations);
    lua_setfield(lua, -2, "activations");
    push_expert_table(lua, push_gate_weight);
    lua_setfield(lua, -2, "mean_gate_weight");
    moec_policy_set_integer(lua, "windows", moec_profile_part_count(profile, MOEC_PART_SEARCH));
    moec_policy_set_integer(lua, "tokens", search_tokens(profile));
}

static bool was_measured(const struct moec_profile *profile, uint32_t bits)
{
    for (uint32_t i = 0; profile != NULL && i < profile->n_uniform; i++)
        if (profile->uniform_bits[i] == bits)
            return true;
    return false;
}

/* A search that enumerates them measures a whole model for each: 1, 5 and 6 only where the user asked for
 * them. */
static void push_bitwidths(lua_State *lua, const struct moec_profile *profile)
{
    lua_Integer n = 0;
    lua_createtable(lua, MOEC_N_ASSIGNABLE, 0);
    for (size_t i = 0; i < MOEC_N_ASSIGNABLE; i++) {
        const uint32_t bits = assignable_bits[i];
        if ((bits == 1 || bits == 5 || bits == 6) && !was_measured(profile, bits))
            continue;
        lua_pushinteger(lua, bits);
        lua_rawseti(lua, -2, ++n);
    }
}

static void push_request(lua_State *lua)
{
    const struct policy_run *run = run_of(lua);
    const struct moec_policy_request *request = run->request;
    lua_createtable(lua, 0, 13);
    moec_policy_set_model(lua, request->config);
    push_bitwidths(lua, request->profile);
    lua_setfield(lua, -2, "bitwidths");
    if (!isnan(request->target.max_loss))
        moec_policy_set_number(lua, "max_loss", request->target.max_loss);
    if (request->target.max_bytes > 0)
        moec_policy_set_integer(lua, "max_size", request->target.max_bytes);
    if (request->target.pair_share > 0)
        moec_policy_set_number(lua, "pair_share", request->target.pair_share);
    if (request->target.loss_tolerance > 0)
        moec_policy_set_number(lua, "loss_tolerance", request->target.loss_tolerance);
    if (request->given.bits > 0)
        moec_policy_set_integer(lua, "bits", request->given.bits);
    if (request->rules != NULL)
        moec_policy_set_rules(lua, request->rules);
    if (request->profile != NULL) {
        push_profile(lua);
        lua_setfield(lua, -2, "profile");
        moec_policy_set_parts(lua, request->given.n_part_window);
    }
    lua_pushcfunction(lua, policy_variants);
    lua_setfield(lua, -2, "variants");
    lua_pushcfunction(lua, policy_evaluate);
    lua_setfield(lua, -2, "evaluate");
    lua_pushcfunction(lua, policy_size);
    lua_setfield(lua, -2, "size");
    lua_getglobal(lua, "log");
    lua_setfield(lua, -2, "log");
}

/* Leaves the result message. */
static int policy_body(lua_State *lua)
{
    moec_policy_expect_function(lua, run_of(lua)->request->policy);
    push_request(lua);
    lua_call(lua, 1, 2);
    if (lua_isnil(lua, -2) && lua_isstring(lua, -1)) { /* nil, reason */
        lua_pushfstring(lua, "%c%s", RESULT_NONE, lua_tostring(lua, -1));
        return 1;
    }
    lua_pop(lua, 1);
    moec_policy_push_answer(lua, &run_of(lua)->shape, lua_gettop(lua), RESULT_PLANS, "the policy's answer");
    return 1;
}

/* ---- the parent's side ---- */

static bool is_decided(uint8_t kind)
{
    return kind == ASK_DECIDED || kind == ASK_DECIDED_SELECT;
}

/* Decisions that follow the plan in `message`. */
static enum moec_status decide(const struct policy_run *run, const uint8_t *message, enum moec_part part,
                               struct moec_evaluation *out, struct moec_error *err)
{
    const struct moec_policy_request *request = run->request;
    struct moec_policy_candidate candidate;
    memcpy(&candidate, message + 1 + moec_policy_plan_bytes(&run->shape), sizeof candidate);
    MOEC_TRY(moec_policy_check_candidate(request->rules, &candidate, err));
    return request->answers.ops.decide(request->answers.context, &run->plan, &candidate.settings, part, out,
                                       err);
}

/* A part's evaluation of the plan that was read from `message`. One that was measured before is not measured
 * again: the same bits would come out. */
static enum moec_status evaluate(struct policy_run *run, const uint8_t *message, size_t n,
                                 struct moec_evaluation *out, struct moec_error *err)
{
    const struct moec_policy_request *request = run->request;
    const enum moec_part part =
        message[0] == ASK_SELECT || message[0] == ASK_DECIDED_SELECT ? MOEC_PART_SELECT : MOEC_PART_SEARCH;
    uint8_t key[MOEC_SHA256_BYTES];
    moec_sha256(message, n, key);
    if (moec_evaluation_cache_find(run->measured, key, out))
        return MOEC_OK;
    if (moec_evaluation_cache_count(run->measured) >= request->limits.max_evaluations)
        return moec_fail(err, MOEC_ERR_SCRIPT,
                         "policy '%s' evaluated more than the limit of %" PRIu32 " different assignments",
                         request->policy, request->limits.max_evaluations);
    MOEC_TRY(is_decided(message[0])
                 ? decide(run, message, part, out, err)
                 : request->answers.ops.evaluate(request->answers.context, &run->plan, part, out, err));
    return moec_evaluation_cache_add(run->measured, key, out, err);
}

static enum moec_status answer_variants(struct policy_run *run, uint8_t **answer, size_t *n_answer,
                                        struct moec_error *err)
{
    if (run->variants == NULL)
        MOEC_TRY(run->request->answers.ops.variants(run->request->answers.context, &run->variants, err));
    return moec_policy_variants_encode(run->variants, &run->shape, answer, n_answer, err);
}

static enum moec_status copy_answer(const void *from, size_t n, uint8_t **answer, size_t *n_answer,
                                    struct moec_error *err)
{
    MOEC_TRY(moec_alloc((void **)answer, 1, n, "an answer", err));
    memcpy(*answer, from, n);
    *n_answer = n;
    return MOEC_OK;
}

/* Whether a question needs data, which there must be then: the child checked it, but it is a guest. */
static bool has_data_for(const struct moec_policy_request *request, uint8_t kind)
{
    if (is_decided(kind) && request->rules == NULL)
        return false;
    if (kind == ASK_SELECT || kind == ASK_DECIDED_SELECT)
        return request->profile != NULL && request->given.n_part_window[MOEC_PART_SELECT] > 0;
    if (kind == ASK_VARIANTS)
        return request->profile != NULL && request->answers.ops.variants != NULL;
    return kind == ASK_SIZE || ((kind == ASK_EVALUATE || kind == ASK_DECIDED) && request->profile != NULL);
}

static enum moec_status read_plan(const struct policy_run *run, const uint8_t *bytes, struct moec_plan *plan,
                                  struct moec_error *err)
{
    const struct moec_policy_request *request = run->request;
    MOEC_TRY(moec_policy_read_plan(&run->shape, run->variants, request->policy, bytes, plan, err));
    if (request->answers.ops.settle != NULL)
        request->answers.ops.settle(request->answers.context, plan);
    return MOEC_OK;
}

static enum moec_status policy_answer(void *context, const uint8_t *question, size_t n, uint8_t **answer,
                                      size_t *n_answer, struct moec_error *err)
{
    struct policy_run *run = context;
    const struct moec_policy_request *request = run->request;
    size_t expected = moec_policy_plan_bytes(&run->shape);
    if (n == 0 || !has_data_for(request, question[0]))
        return moec_fail(err, MOEC_ERR_SCRIPT, "policy '%s' sent a request of unknown kind", request->policy);
    if (question[0] == ASK_VARIANTS)
        return answer_variants(run, answer, n_answer, err);
    if (is_decided(question[0]))
        expected += sizeof(struct moec_policy_candidate);
    if (n - 1 != expected)
        return moec_fail(err, MOEC_ERR_SCRIPT, "policy '%s' sent a request of %zu bytes, expected %zu bytes",
                         request->policy, n, expected + 1);
    MOEC_TRY(read_plan(run, question + 1, &run->plan, err));
    if (question[0] == ASK_SIZE) {
        struct size_answer size = {0};
        MOEC_TRY(request->answers.ops.size(request->answers.context, &run->plan, &size.n_bytes, err));
        return copy_answer(&size, sizeof size, answer, n_answer, err);
    }
    struct moec_evaluation evaluation = {0};
    MOEC_TRY(evaluate(run, question, n, &evaluation, err));
    return copy_answer(&evaluation, sizeof evaluation, answer, n_answer, err);
}

static void policy_log(void *context, const char *line)
{
    const struct policy_run *run = context;
    if (run->request->answers.ops.log != NULL)
        run->request->answers.ops.log(run->request->answers.context, line);
}

/* Mean KL of each expert at bits[b] on the search part, (S, E); experts that the data never reached get the
 * largest of their layer, as moec_profile_importance does for the loss. */
static void expert_divergences(const struct policy_run *run, uint32_t b, double *out)
{
    const struct moec_profile *profile = run->request->profile;
    for (uint32_t s = 0; s < run->shape.n_layer; s++) {
        double worst = 0;
        for (uint32_t e = 0; e < run->shape.n_expert; e++) {
            double *kl = &out[expert_index(run, s, e)];
            *kl = search_part(profile, profile->n_sensitivity_window,
                              moec_profile_expert_row(profile, profile->expert_nll, s, e, b),
                              moec_profile_expert_row(profile, profile->expert_kl, s, e, b))
                      .mean_kl;
            if (moec_profile_expert_reached(profile, s, e))
                worst = fmax(worst, *kl);
        }
        for (uint32_t e = 0; e < run->shape.n_expert; e++)
            if (!moec_profile_expert_reached(profile, s, e))
                out[expert_index(run, s, e)] = worst;
    }
}

static enum moec_status prepare_losses(struct policy_run *run, struct moec_error *err)
{
    const struct moec_profile *profile = run->request->profile;
    if (profile == NULL)
        return MOEC_OK;
    uint64_t n_experts = (uint64_t)run->shape.n_layer * run->shape.n_expert;
    MOEC_TRY(moec_alloc((void **)&run->activations, n_experts, sizeof(uint64_t), "routing of experts", err));
    MOEC_TRY(
        moec_alloc((void **)&run->mean_gate_weight, n_experts, sizeof(double), "routing of experts", err));
    moec_part_routing(profile, MOEC_PART_SEARCH, run->activations, run->mean_gate_weight);
    MOEC_TRY(
        moec_alloc((void **)&run->loss, n_experts * profile->n_bits, sizeof(double), "expert losses", err));
    MOEC_TRY(moec_alloc((void **)&run->kl, n_experts * profile->n_bits, sizeof(double), "expert divergences",
                        err));
    for (uint32_t b = 0; b < profile->n_bits; b++) {
        moec_profile_importance(profile, MOEC_PART_SEARCH, b, run->loss + b * n_experts);
        expert_divergences(run, b, run->kl + b * n_experts);
    }
    return MOEC_OK;
}

static enum moec_status take_result(const struct policy_run *run, const uint8_t *result, size_t n,
                                    struct moec_policy_answer *answer, struct moec_error *err)
{
    const struct moec_policy_request *request = run->request;
    const size_t n_bytes = moec_policy_plan_bytes(&run->shape);
    if (n > 0 && result[0] == RESULT_NONE)
        return moec_fail(err, MOEC_ERR_TARGET, "policy '%s': %.*s", request->policy, (int)(n - 1),
                         (const char *)result + 1);
    if (n < 1 + n_bytes || result[0] != RESULT_PLANS || (n - 1) % n_bytes != 0 ||
        (n - 1) / n_bytes > MOEC_POLICY_MAX_PLANS)
        return moec_fail(err, MOEC_ERR_SCRIPT, "policy '%s' gave an answer of unknown kind", request->policy);
    for (const uint8_t *at = result + 1; at < result + n; at += n_bytes) {
        struct moec_plan *plan = &answer->plans[answer->n_plan];
        MOEC_TRY(moec_plan_create(plan, request->config, err));
        answer->n_plan++;
        MOEC_TRY(read_plan(run, at, plan, err));
    }
    return MOEC_OK;
}

enum moec_status moec_policy_check(const char *policy, struct moec_error *err)
{
    return moec_policy_check_file("policies", policy, err);
}

enum moec_status moec_policy_run(const struct moec_policy_request *request, struct moec_policy_answer *answer,
                                 struct moec_error *err)
{
    struct policy_run run = {.request = request, .shape = moec_policy_shape_of(request->config)};
    char *source = NULL;
    uint8_t *result = NULL;
    size_t n_result = 0;
    enum moec_status status = MOEC_OK;
    struct moec_guest guest = {
        .script.name = request->policy,
        .seed = request->limits.seed,
        .limits = request->limits.guest,
        .inside = {.body = policy_body, .context = &run},
        .outside = {.answer = policy_answer, .log = policy_log, .context = &run},
    };
    *answer = (struct moec_policy_answer){0};
    MOEC_TRY_OUT(moec_lua_script_load("policies", request->policy, &source, &guest.script.n_text, err));
    guest.script.text = source;
    MOEC_TRY_OUT(moec_plan_create(&run.plan, request->config, err));
    MOEC_TRY_OUT(prepare_losses(&run, err));
    MOEC_TRY_OUT(moec_evaluation_cache_create(&run.measured, err));
    MOEC_TRY_OUT(moec_guest_run(&guest, &result, &n_result, err));
    MOEC_TRY_OUT(take_result(&run, result, n_result, answer, err));
    answer->n_evaluations = moec_evaluation_cache_count(run.measured);
out:
    free(result);
    free(source);
    moec_evaluation_cache_free(run.measured);
    free(run.activations);
    free(run.mean_gate_weight);
    free(run.loss);
    free(run.kl);
    moec_plan_release(&run.plan);
    return status;
}

void moec_policy_answer_release(struct moec_policy_answer *answer)
{
    for (uint32_t i = 0; i < answer->n_plan; i++)
        moec_plan_release(&answer->plans[i]);
    *answer = (struct moec_policy_answer){0};
}
