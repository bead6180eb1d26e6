/* Predictors against direct computation. */
#include "tests/unit/status.h"

#include "runtime/policy/predict/predict.h"
#include "runtime/policy/predict/predict_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define S     3
#define E     6
#define K     2
#define N_TOK 5

static struct moec_path_value value(uint16_t expert, double probability)
{
    return (struct moec_path_value){expert, (uint16_t)lrint(65535 * probability)};
}

/* Layer 1 by single keys, layer 2 by the pair (1, 4) and some single keys; the rest falls back. */
static struct moec_path_key keys[] = {
    {1, MOEC_PATH_NONE, 0, 0, 10}, {1, MOEC_PATH_NONE, 3, 0, 10}, {2, 1, 4, 0, 5},
    {2, MOEC_PATH_NONE, 2, 0, 8},  {2, MOEC_PATH_NONE, 4, 0, 9},
};
static struct moec_path_value values[5][2 * K], frequency[S][E];

static struct moec_path_table table_make(void)
{
    for (uint32_t i = 0; i < 5; i++)
        for (uint32_t v = 0; v < 2 * K; v++)
            values[i][v] = value((uint16_t)((i + 2 * v) % (E - 1)), 0.9 / (1 + v));
    for (uint32_t s = 0; s < S; s++)
        for (uint32_t v = 0; v < E; v++)
            frequency[s][v] = value((uint16_t)((v + s) % E), 0.6 - 0.1 * v);
    return (struct moec_path_table){.n_layer = S,
                                    .n_expert = E,
                                    .top_k = K,
                                    .n_value = 2 * K,
                                    .n_key = 5,
                                    .keys = keys,
                                    .values = values[0],
                                    .frequency = frequency[0]};
}

static const uint32_t chosen[N_TOK * K] = {4, 2, 3, 0, 4, 1, 0, 5, 2, 4};
static const uint32_t last_chosen[N_TOK * K] = {1, 0, 2, 3, 5, 1, 1, 4, 0, 3};
static const float weights[N_TOK * K] = {.7f, .3f, .6f, .4f, .9f, .1f, .5f, .5f, .8f, .2f};
static const float last_weights[N_TOK * K] = {.5f, .5f, .7f, .3f, .8f, .2f, .6f, .4f, .9f, .1f};
static const uint32_t active[] = {0, 1, 2, 3, 4, 5};
static const struct moec_scored_expert gate[E] = {{3, 2.5f}, {0, 1.0f},   {5, .75f},
                                                  {1, .5f},  {2, .1875f}, {4, .0625f}};
static const struct moec_scored_expert gate_one[2 * K] = {{5, .625f}, {2, .25f}, {0, .0625f}, {1, 0}};

/* The answer of MoE layer `ordinal` for N_TOK tokens, or for the first one alone. */
static struct moec_router_answer answer_make(uint32_t ordinal, uint32_t n_tok)
{
    return (struct moec_router_answer){
        .layer = ordinal,
        .n_tok = n_tok,
        .active = {.list = active, .n = E},
        .choices = {.experts = chosen, .weights = weights},
        .last = {.experts = ordinal > 0 ? last_chosen : NULL, .weights = ordinal > 0 ? last_weights : NULL},
        .next = {.gate = {.experts = ordinal + 1 == S ? NULL
                                     : n_tok == 1     ? gate_one
                                                      : gate,
                          .n = ordinal + 1 == S ? 0
                               : n_tok == 1     ? 2 * K
                                                : E}}};
}

/* The scores of paths by moec_path_table_predict itself, token by token. */
static void paths_directly(const struct moec_path_table *table, const struct moec_router_answer *answer,
                           uint32_t next, double *scores)
{
    memset(scores, 0, E * sizeof *scores);
    for (uint32_t t = 0; t < answer->n_tok; t++) {
        uint16_t last[K], before[K];
        float one[E];
        for (uint32_t k = 0; k < K; k++) {
            last[k] = (uint16_t)answer->choices.experts[t * K + k];
            before[k] = answer->last.experts != NULL ? (uint16_t)answer->last.experts[t * K + k] : 0;
        }
        const bool pair = answer->last.experts != NULL;
        moec_path_table_predict(table, next,
                                (struct moec_path_choices){
                                    pair ? before : NULL, pair ? answer->last.weights + (size_t)t * K : NULL},
                                (struct moec_path_choices){last, answer->choices.weights + (size_t)t * K},
                                one);
        for (uint32_t e = 0; e < E; e++)
            scores[e] += (double)one[e];
    }
}

static void frequency_directly(const struct moec_path_table *table, uint32_t layer, uint32_t n_tok,
                               double *scores)
{
    for (uint32_t i = 0; i < E; i++) {
        const struct moec_path_value *one = &table->frequency[layer * E + i];
        scores[one->expert] = n_tok * one->probability / 65535.0;
    }
}

/* The ranking is the best of these scores. */
static void check_ranking(const struct moec_scored_expert *out, uint32_t n, uint32_t n_most,
                          const double *scores)
{
    bool seen[E] = {false};
    uint32_t n_positive = 0;
    for (uint32_t e = 0; e < E; e++)
        n_positive += scores[e] > 0;
    assert_int_equal(n, n_positive < n_most ? n_positive : n_most);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(out[i].expert < E && !seen[out[i].expert]);
        seen[out[i].expert] = true;
        assert_true(fabs((double)out[i].score - scores[out[i].expert]) < 1e-5);
        assert_true(i == 0 || out[i].score < out[i - 1].score ||
                    (out[i].score == out[i - 1].score && out[i].expert > out[i - 1].expert));
    }
    for (uint32_t e = 0; e < E; e++)
        assert_true(seen[e] || n == 0 || scores[e] <= (double)out[n - 1].score + 1e-5);
}

static struct moec_predict *predictor_make(const struct moec_predict_ops *ops,
                                           const struct moec_path_table *table)
{
    struct moec_error err = {0};
    struct moec_predict *predict = NULL;
    const struct moec_predict_setup setup = {.n_layer = S, .n_expert = E, .top_k = K, .paths = table};
    assert_true(ops->state_bytes(&setup) >= sizeof *predict);
    assert_ok(ops->create(&setup, &predict, &err), err);
    assert_ptr_equal(predict->ops, ops);
    return predict;
}

static void test_predict__paths_are_summed_over_tokens(void **state)
{
    (void)state;
    const struct moec_path_table table = table_make();
    struct moec_error err = {0};
    struct moec_scored_expert out[E];
    double scores[E];
    assert_ok(moec_path_table_check(&table, &err), err);
    struct moec_predict *predict = predictor_make(&moec_predict_path, &table);
    for (uint32_t n_tok = 1; n_tok <= N_TOK; n_tok += N_TOK - 1) {
        for (uint32_t next = 1; next < S; next++) {
            const struct moec_router_answer answer = answer_make(next - 1, n_tok);
            paths_directly(&table, &answer, next, scores);
            check_ranking(out, predict->ops->rank(predict, &answer, next, out), n_tok == 1 ? 2 * K : E,
                          scores);
        }
        const struct moec_router_answer answer = answer_make(S - 1, n_tok);
        frequency_directly(&table, 0, n_tok, scores);
        check_ranking(out, predict->ops->rank(predict, &answer, 0, out), n_tok == 1 ? 2 * K : E, scores);
    }
    predict->ops->destroy(predict);
}

static void test_predict__single_keys_serve_when_the_layer_before_is_unknown(void **state)
{
    (void)state;
    const struct moec_path_table table = table_make();
    struct moec_scored_expert out[E];
    double scores[E];
    struct moec_predict *predict = predictor_make(&moec_predict_path, &table);
    struct moec_router_answer answer = answer_make(1, N_TOK);
    answer.last.experts = NULL;
    answer.last.weights = NULL;
    paths_directly(&table, &answer, 2, scores);
    check_ranking(out, predict->ops->rank(predict, &answer, 2, out), E, scores);
    answer.choices.experts = NULL;
    answer.choices.weights = NULL;
    frequency_directly(&table, 2, N_TOK, scores);
    check_ranking(out, predict->ops->rank(predict, &answer, 2, out), E, scores);
    predict->ops->destroy(predict);
}

static void test_predict__frequency_is_the_layers(void **state)
{
    (void)state;
    const struct moec_path_table table = table_make();
    struct moec_scored_expert out[E];
    double scores[E];
    struct moec_predict *predict = predictor_make(&moec_predict_frequency, &table);
    for (uint32_t next = 0; next < S; next++) {
        const struct moec_router_answer answer = answer_make((next + S - 1) % S, 1);
        frequency_directly(&table, next, 1, scores);
        check_ranking(out, predict->ops->rank(predict, &answer, next, out), 2 * K, scores);
    }
    predict->ops->destroy(predict);
}

/* Probabilities of a token sum to k, and no expert is chosen by more tokens than there are. */
static void test_predict__gate_is_the_next_routers(void **state)
{
    (void)state;
    struct moec_scored_expert out[E];
    struct moec_predict *predict = predictor_make(&moec_predict_gate, NULL);
    const struct moec_router_answer one = answer_make(0, 1), many = answer_make(1, N_TOK),
                                    last = answer_make(2, 1);
    assert_int_equal(predict->ops->rank(predict, &one, 1, out), 3);
    const struct moec_scored_expert expected[] = {{5, 1}, {2, .5f}, {0, .125f}};
    assert_memory_equal(out, expected, sizeof expected);
    assert_int_equal(predict->ops->rank(predict, &many, 2, out), E);
    for (uint32_t i = 0; i < E; i++) {
        assert_int_equal(out[i].expert, gate[i].expert);
        assert_true(out[i].score == fminf(N_TOK, K * gate[i].score));
    }
    assert_int_equal(predict->ops->rank(predict, &last, 0, out), 0);
    predict->ops->destroy(predict);
}

/* What was learned is passed on; before layer 0, where it says nothing, the layer's frequencies speak. */
static void test_predict__learned_is_the_bundles(void **state)
{
    (void)state;
    static const struct moec_scored_expert learned[] = {{4, .75f}, {1, .5f}, {3, 0}};
    const struct moec_path_table table = table_make();
    struct moec_scored_expert out[E];
    double scores[E];
    struct moec_predict *predict = predictor_make(&moec_predict_learned, &table);
    struct moec_router_answer answer = answer_make(0, 1);
    answer.next.learned.experts = learned;
    answer.next.learned.n = 3;
    assert_int_equal(predict->ops->rank(predict, &answer, 1, out), 2);
    assert_memory_equal(out, learned, 2 * sizeof *learned);
    answer = answer_make(S - 1, 1);
    frequency_directly(&table, 0, 1, scores);
    check_ranking(out, predict->ops->rank(predict, &answer, 0, out), 2 * K, scores);
    predict->ops->destroy(predict);
    predict = predictor_make(&moec_predict_learned, NULL);
    assert_int_equal(predict->ops->rank(predict, &answer, 0, out), 0);
    predict->ops->destroy(predict);
}

static void test_predict__path_and_gate_agree_with_both(void **state)
{
    (void)state;
    const struct moec_path_table table = table_make();
    struct moec_scored_expert out[E];
    double scores[E], more[E];
    struct moec_predict *both = predictor_make(&moec_predict_path_gate, &table);
    struct moec_router_answer answer = answer_make(1, N_TOK);
    paths_directly(&table, &answer, 2, scores);
    assert_int_equal(both->ops->rank(both, &answer, 2, out), E);
    for (uint32_t i = 0; i < E; i++)
        more[out[i].expert] = (double)out[i].score;
    for (uint32_t i = 0; i < E; i++)
        for (uint32_t j = 0; j < E; j++)
            if (scores[gate[i].expert] > scores[gate[j].expert] && i < j)
                assert_true(more[gate[i].expert] > more[gate[j].expert]);
    answer = answer_make(S - 1, 1);
    frequency_directly(&table, 0, 1, scores);
    check_ranking(out, both->ops->rank(both, &answer, 0, out), 2 * K, scores);
    both->ops->destroy(both);
}

static void test_predict__names_are_found_and_tables_asked_for(void **state)
{
    (void)state;
    struct moec_error err = {0};
    const struct moec_predict_ops *ops = NULL;
    struct moec_predict *predict = NULL;
    struct moec_path_table other = table_make(), none = {0};
    const char *const names[] = {"none", "frequency", "path", "gate", "path+gate", "learned", "token"};
    other.n_expert = E + 1;
    for (size_t i = 0; i < 7; i++) {
        assert_ok(moec_predict_find(names[i], &ops, &err), err);
        assert_ptr_equal(ops, moec_predictors[i]);
        assert_string_equal(ops->name, names[i]);
        struct moec_predict_setup setup = {.n_layer = S, .n_expert = E, .top_k = K};
        const struct moec_path_table *const tables[] = {NULL, &none, &other};
        for (size_t t = 0; t < 3; t++) {
            setup.paths = tables[t];
            if (!ops->needs_paths) {
                assert_ok(ops->create(&setup, &predict, &err), err);
                ops->destroy(predict);
            } else {
                assert_int_equal(ops->create(&setup, &predict, &err), MOEC_ERR_USAGE);
            }
        }
        ops->destroy(NULL);
    }
    err = (struct moec_error){0};
    assert_null(moec_predictors[7]);
    assert_int_equal(moec_predict_find("oracle", &ops, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "path+gate"));
    predict = predictor_make(&moec_predict_none, NULL);
    const struct moec_router_answer answer = answer_make(0, 1);
    assert_int_equal(predict->ops->rank(predict, &answer, 1, NULL), 0);
    predict->ops->destroy(predict);
}

/* Twice a token's experts, or those from the 75th percentile on (15 of the 60 of Qwen1.5-MoE's). */
static void test_predict__width(void **state)
{
    (void)state;
    assert_int_equal(moec_predicted_experts(4, 60), 15);
    assert_int_equal(moec_predicted_experts(4, 61), 16);
    assert_int_equal(moec_predicted_experts(4, 32), 8);
    assert_int_equal(moec_predicted_experts(1, 3), 2);
    assert_int_equal(moec_predicted_experts(2, 3), 3);
    assert_int_equal(moec_predicted_experts(MOEC_MAX_TOP_K, MOEC_MAX_EXPERTS), MOEC_MOST_PREDICTED);
    /* A predictor of frequencies names as many of one token, and all of a batch. */
    enum { MANY = 60 };
    struct moec_scored_expert out[MANY];
    const struct moec_predict_setup setup = {.n_layer = 1, .n_expert = MANY, .top_k = 4};
    for (uint32_t n_tok = 1; n_tok <= 2; n_tok++) {
        for (uint32_t e = 0; e < MANY; e++)
            out[e] = (struct moec_scored_expert){e, 1 + (float)(e * 7 % MANY)};
        assert_int_equal(moec_predict_order(&setup, n_tok, out), n_tok == 1 ? 15 : MANY);
        for (uint32_t i = 0; i < 15; i++)
            assert_true(out[i].score == (float)(MANY - i));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predict__width),
        cmocka_unit_test(test_predict__paths_are_summed_over_tokens),
        cmocka_unit_test(test_predict__single_keys_serve_when_the_layer_before_is_unknown),
        cmocka_unit_test(test_predict__frequency_is_the_layers),
        cmocka_unit_test(test_predict__gate_is_the_next_routers),
        cmocka_unit_test(test_predict__learned_is_the_bundles),
        cmocka_unit_test(test_predict__path_and_gate_agree_with_both),
        cmocka_unit_test(test_predict__names_are_found_and_tables_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
