/* Likelihood, generation and scores of rows, on the embedded sample. */
#include "tests/unit/status.h"

#include "profiler/evaluate/row_scores.h"
#include "profiler/evaluate/source.h"
#include "runtime/forward/pass/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT "To make the bread, first"

static const char no_stops[MOEC_TASK_MAX_STOPS][MOEC_TASK_TEXT_BYTES];

static struct moec_source sample;
static const struct moec_kernels *kernels;
static struct moec_tokenizer *tokenizer;

static int open_sample(void **state)
{
    (void)state;
    struct moec_error err = {0};
    assert_ok(moec_kernels_find("auto", &kernels, &err), err);
    assert_ok(moec_source_open("datasets/sample/model", 64u << 20, 2, 0, &sample, &err), err);
    assert_ok(moec_tokenizer_create(sample.tokenizer, &tokenizer, &err), err);
    return 0;
}

static int close_sample(void **state)
{
    (void)state;
    moec_tokenizer_free(tokenizer);
    moec_source_close(&sample);
    return 0;
}

static struct moec_continuation *continuation(uint32_t n_context)
{
    struct moec_error err = {0};
    struct moec_continuation *made = NULL;
    const struct moec_continuation_options options = {
        .kernels = kernels, .n_threads = 2, .n_context = n_context, .generation = sample.generation};
    assert_ok(moec_continuation_create(sample.model, sample.experts, sample.tokenizer, &options, &made, &err),
              err);
    return made;
}

/* Logits of every position of a text, by a session of its own; `*tokens` and the result are the caller's. */
static float *all_logits(const char *text, uint32_t **tokens, size_t *n)
{
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_session *session = NULL;
    assert_ok(
        moec_tokenizer_encode(tokenizer, (struct moec_text){text, strlen(text)}, false, tokens, n, &err),
        err);
    float *logits = malloc(*n * sample.config->n_vocab * sizeof *logits);
    uint32_t *at = malloc(*n * sizeof *at);
    assert_true(logits != NULL && at != NULL);
    for (uint32_t i = 0; i < *n; i++)
        at[i] = i;
    assert_ok(moec_forward_init(&forward, sample.model, kernels, 1, sample.experts, (uint32_t)*n, &err), err);
    assert_ok(moec_session_create(&forward, (uint32_t)*n, &session, &err), err);
    assert_ok(moec_session_step(session, *tokens, (uint32_t)*n, at, (uint32_t)*n, logits, &err), err);
    moec_session_free(session);
    moec_forward_release(&forward);
    free(at);
    return logits;
}

static double log_probability(const float *logits, uint32_t token)
{
    double sum = 0, max = logits[0];
    for (uint32_t i = 0; i < sample.config->n_vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    for (uint32_t i = 0; i < sample.config->n_vocab; i++)
        sum += exp(logits[i] - max);
    return logits[token] - max - log(sum);
}

static void test_row_scores__likelihood_is_the_models(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_continuation_cost cost;
    struct moec_continuation *c = continuation(0);
    struct moec_candidate candidates[] = {
        {.prompt = PROMPT,
         .prompt_bytes = strlen(PROMPT),
         .bytes = " mix the flour with water",
         .n_bytes = 25},
        {.prompt = PROMPT, .prompt_bytes = strlen(PROMPT), .bytes = " x", .n_bytes = 2},
        {.prompt = PROMPT,
         .prompt_bytes = strlen(PROMPT),
         .bytes =
             " mix the flour with water, knead it, let it rest for an hour, then bake it in the oven until "
             "it is brown; serve it warm with butter and a pinch of salt",
         .n_bytes = 0},
    };
    candidates[2].n_bytes = strlen(candidates[2].bytes);
    assert_ok(moec_continuation_score(c, candidates, 3, &cost, &err), err);
    assert_int_equal(cost.n_cut, 0);
    for (size_t k = 0; k < 3; k++) {
        char text[512];
        uint32_t *tokens = NULL, *alone = NULL;
        size_t n = 0, n_alone = 0;
        (void)snprintf(text, sizeof text, "%s%.*s", PROMPT, (int)candidates[k].n_bytes, candidates[k].bytes);
        float *logits = all_logits(text, &tokens, &n);
        assert_ok(moec_tokenizer_encode(tokenizer, (struct moec_text){PROMPT, strlen(PROMPT)}, false, &alone,
                                        &n_alone, &err),
                  err);
        double sum = 0;
        for (size_t i = n_alone; i < n; i++)
            sum += log_probability(logits + (i - 1) * sample.config->n_vocab, tokens[i]);
        assert_int_equal(candidates[k].n_tokens, n - n_alone);
        assert_true(fabs(candidates[k].log_likelihood - sum) < 1e-5 * (double)n);
        /* Nobody beside it changes a bit. */
        struct moec_candidate again = candidates[k];
        again.log_likelihood = 0;
        assert_ok(moec_continuation_score(c, &again, 1, &cost, &err), err);
        assert_true(again.log_likelihood == candidates[k].log_likelihood);
        free(logits);
        free(tokens);
        free(alone);
    }
    assert_true(candidates[2].n_tokens > 32); /* more than one tile */
    moec_continuation_free(c);
}

/* Candidates with prompts of their own are scored as each alone, whatever their prompts share. */
static void test_row_scores__prompts_of_their_own(void **state)
{
    (void)state;
    static const char *const prompts[] = {"The miller fed the horse because the horse",
                                          "The miller fed the horse because the miller", "A cat"};
    struct moec_error err = {0};
    struct moec_continuation_cost cost;
    struct moec_continuation *c = continuation(0);
    struct moec_candidate candidates[3];
    for (size_t k = 0; k < 3; k++)
        candidates[k] = (struct moec_candidate){
            .prompt = prompts[k], .prompt_bytes = strlen(prompts[k]), .bytes = " was hungry.", .n_bytes = 12};
    assert_ok(moec_continuation_score(c, candidates, 3, &cost, &err), err);
    for (size_t k = 0; k < 3; k++) {
        struct moec_candidate alone = candidates[k];
        alone.log_likelihood = 0;
        assert_ok(moec_continuation_score(c, &alone, 1, &cost, &err), err);
        assert_true(alone.log_likelihood == candidates[k].log_likelihood);
        assert_int_equal(alone.n_tokens, candidates[k].n_tokens);
    }
    assert_true(candidates[0].log_likelihood != candidates[1].log_likelihood);
    moec_continuation_free(c);
}

/* A prompt that does not fit keeps its end. */
static void test_row_scores__long_prompts_lose_their_start(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_continuation_cost cost;
    struct moec_continuation *small = continuation(24), *large = continuation(0);
    char longer[2048] = "";
    for (int i = 0; i < 60; i++)
        (void)snprintf(longer + strlen(longer), sizeof longer - strlen(longer), "word%d ", i);
    (void)snprintf(longer + strlen(longer), sizeof longer - strlen(longer), "and %s", PROMPT);
    struct moec_candidate candidate = {
        .prompt = longer, .prompt_bytes = strlen(longer), .bytes = " mix the flour", .n_bytes = 14};
    assert_ok(moec_continuation_score(small, &candidate, 1, &cost, &err), err);
    assert_true(cost.n_cut > 0);
    /* The same tokens whole: the last 24 of the text, scored by a model with room for all. */
    char text[2304];
    uint32_t *tokens = NULL;
    size_t n = 0;
    (void)snprintf(text, sizeof text, "%s%s", longer, candidate.bytes);
    assert_ok(
        moec_tokenizer_encode(tokenizer, (struct moec_text){text, strlen(text)}, false, &tokens, &n, &err),
        err);
    assert_int_equal(n - cost.n_cut, 24);
    free(tokens);

    const char *answer = NULL;
    size_t n_answer = 0;
    assert_ok(moec_continuation_generate(small, &(struct moec_prompt){longer, strlen(longer), 8, no_stops},
                                         &answer, &n_answer, &cost, &err),
              err);
    assert_true(cost.n_cut > 0 && cost.n_tokens <= 24);
    assert_int_equal(moec_continuation_generate(small,
                                                &(struct moec_prompt){PROMPT, strlen(PROMPT), 24, no_stops},
                                                &answer, &n_answer, &cost, &err),
                     MOEC_ERR_LIMIT);
    assert_non_null(strstr(err.message, "--ctx"));
    err = (struct moec_error){0};
    struct moec_candidate huge = {
        .prompt = PROMPT, .prompt_bytes = strlen(PROMPT), .bytes = longer, .n_bytes = strlen(longer)};
    assert_int_equal(moec_continuation_score(small, &huge, 1, &cost, &err), MOEC_ERR_LIMIT);
    err = (struct moec_error){0};
    struct moec_candidate empty = {
        .prompt = PROMPT, .prompt_bytes = strlen(PROMPT), .bytes = "", .n_bytes = 0};
    assert_int_equal(moec_continuation_score(large, &empty, 1, &cost, &err), MOEC_ERR_USAGE);
    err = (struct moec_error){0};
    candidate.prompt_bytes = 0;
    assert_int_equal(moec_continuation_score(large, &candidate, 1, &cost, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "longer prompt"));
    moec_continuation_free(small);
    moec_continuation_free(large);
}

static void test_row_scores__text_is_greedy_and_stops(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_continuation_cost cost;
    struct moec_continuation *c = continuation(0);
    const char *answer = NULL;
    size_t n = 0;
    assert_ok(moec_continuation_generate(c, &(struct moec_prompt){PROMPT, strlen(PROMPT), 24, no_stops},
                                         &answer, &n, &cost, &err),
              err);
    assert_true(n > 8);
    char *whole = strndup(answer, n);
    char text[1024];
    (void)snprintf(text, sizeof text, "%s%s", PROMPT, whole);
    uint32_t *tokens = NULL, *alone = NULL;
    size_t n_tokens = 0, n_alone = 0;
    float *logits = all_logits(text, &tokens, &n_tokens);
    assert_ok(moec_tokenizer_encode(tokenizer, (struct moec_text){PROMPT, strlen(PROMPT)}, false, &alone,
                                    &n_alone, &err),
              err);
    for (size_t i = n_alone; i < n_tokens; i++) {
        const float *row = logits + (i - 1) * sample.config->n_vocab;
        for (uint32_t t = 0; t < sample.config->n_vocab; t++)
            assert_true(row[t] <= row[tokens[i]]);
    }
    /* A stop text in the middle ends the answer before it, wherever its bytes lie in tokens. */
    char stops[MOEC_TASK_MAX_STOPS][MOEC_TASK_TEXT_BYTES] = {"never found", ""};
    memcpy(stops[3], whole + n / 2, 3);
    const size_t first = (size_t)(strstr(whole, stops[3]) - whole);
    assert_ok(moec_continuation_generate(c,
                                         &(struct moec_prompt){PROMPT, strlen(PROMPT), 24,
                                                               (const char(*)[MOEC_TASK_TEXT_BYTES])stops},
                                         &answer, &n, &cost, &err),
              err);
    assert_int_equal(n, first);
    assert_memory_equal(answer, whole, n);
    free(whole);
    free(logits);
    free(tokens);
    free(alone);
    moec_continuation_free(c);
}

/* Rows of three choices whose likeliest differs by what the likelihood is divided by. */
static void test_row_scores__accuracies_are_their_definitions(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_task task = {.name = "test",
                             .metric = MOEC_TASK_METRIC_ACCURACY,
                             .prompt = "{q}",
                             .choices_field = "c",
                             .choice = " {choice}",
                             .label = "{a}"};
    const char *data =
        "{\"q\": \"The old man\", \"c\": [\"a\", \"went to the market\", \"zzqx\"], \"a\": 1}\n"
        "{\"q\": \"Add the salt\", \"c\": [\"and stir\", \"xyzzy\"], \"a\": \"A\"}\n"
        "{\"q\": \"The weather\", \"c\": [\"\", \"is cold today\"], \"a\": 0}\n";
    struct moec_rows rows;
    assert_ok(moec_rows_parse(&task,
                              &(struct moec_task_data){MOEC_TASK_FORMAT_JSONL, 0, data, strlen(data), "data"},
                              &rows, &err),
              err);
    struct moec_continuation *c = continuation(0);
    struct moec_row_scores_options options = {0};
    struct moec_row_scores scores;
    assert_ok(moec_row_scores_measure(c, &task, &rows, &options, &scores, &err), err);
    assert_int_equal(scores.n_row, 3);
    assert_int_equal(scores.n_metric, 4);
    for (uint32_t r = 0; r < 3; r++) {
        struct moec_candidate candidates[3];
        const struct moec_row *row = &rows.rows[r];
        struct moec_continuation_cost cost;
        for (uint32_t i = 0; i < row->n_choice; i++)
            candidates[i] =
                (struct moec_candidate){.prompt = rows.text + row->prompt_offset,
                                        .prompt_bytes = row->prompt_bytes,
                                        .bytes = rows.text + rows.choices[row->first_choice + i].offset,
                                        .n_bytes = rows.choices[row->first_choice + i].n_bytes};
        assert_ok(moec_continuation_score(c, candidates, row->n_choice, &cost, &err), err);
        for (uint32_t m = 0; m < 3; m++) {
            uint32_t best = 0;
            double most = -INFINITY;
            for (uint32_t i = 0; i < row->n_choice; i++) {
                double bytes = candidates[i].n_bytes > 1 ? (double)candidates[i].n_bytes - 1 : 1;
                double each = candidates[i].log_likelihood / (m == 0   ? 1
                                                              : m == 1 ? bytes
                                                                       : candidates[i].n_tokens);
                if (each > most) {
                    most = each;
                    best = i;
                }
            }
            assert_true(scores.values[r * 4 + m] == (best == row->label));
        }
    }
    /* Draws are of the seed, without replacement. */
    struct moec_row_scores drawn;
    options.n_sample = 2;
    options.seed = 7;
    assert_ok(moec_row_scores_measure(c, &task, &rows, &options, &drawn, &err), err);
    assert_int_equal(drawn.n_row, 2);
    assert_true(drawn.index[0] != drawn.index[1]);
    for (uint32_t i = 0; i < 2; i++)
        assert_memory_equal(drawn.values + (size_t)i * 3, scores.values + drawn.index[i] * 3,
                            3 * sizeof(double));
    moec_row_scores_release(&drawn);
    moec_row_scores_release(&scores);
    moec_rows_release(&rows);
    moec_continuation_free(c);
}

static void test_row_scores__answers_without_reference_are_refused(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_task task = {.name = "test",
                             .metric = MOEC_TASK_METRIC_EXACT_MATCH,
                             .prompt = "{q}",
                             .reference = "{a}",
                             .n_tokens = 4,
                             .take = MOEC_TASK_TAKE_NUMBER,
                             .after = "####"};
    const char *data = "{\"q\": \"1 + 1 =\", \"a\": \"#### 2\"}\n{\"q\": \"2 + 2 =\", \"a\": \"4\"}\n";
    struct moec_rows rows;
    assert_ok(moec_rows_parse(&task,
                              &(struct moec_task_data){MOEC_TASK_FORMAT_JSONL, 0, data, strlen(data), "data"},
                              &rows, &err),
              err);
    struct moec_continuation *c = continuation(0);
    const struct moec_row_scores_options options = {0};
    struct moec_row_scores scores;
    assert_int_equal(moec_row_scores_measure(c, &task, &rows, &options, &scores, &err), MOEC_ERR_FORMAT);
    assert_non_null(strstr(err.message, "line 2"));
    assert_non_null(strstr(err.message, "####"));
    assert_null(scores.values);
    moec_rows_release(&rows);
    moec_continuation_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_scores__likelihood_is_the_models),
        cmocka_unit_test(test_row_scores__prompts_of_their_own),
        cmocka_unit_test(test_row_scores__long_prompts_lose_their_start),
        cmocka_unit_test(test_row_scores__text_is_greedy_and_stops),
        cmocka_unit_test(test_row_scores__accuracies_are_their_definitions),
        cmocka_unit_test(test_row_scores__answers_without_reference_are_refused),
    };
    return cmocka_run_group_tests(tests, open_sample, close_sample);
}
