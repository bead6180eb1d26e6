/* Requests of OpenAI's protocol: what is read, what is neutral, and what is refused by its name. */
#include "server/serve_request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

static const struct serve_limits limits = {
    .body_bytes = 4096, .tree_values = 200, .held_bytes = 1 << 20, .n_context = 64, .n_vocab = 100};

static bool read_body(enum serve_kind kind, const char *body, struct serve_request *out,
                      struct serve_problem *problem)
{
    *problem = (struct serve_problem){0};
    return serve_request_read(kind, body, strlen(body), &limits, out, problem);
}

static void test_request__whole(void **state)
{
    (void)state;
    struct serve_request r;
    struct serve_problem problem;
    assert_true(
        read_body(SERVE_COMPLETION,
                  "{\"model\":\"m\",\"prompt\":[\"a\",[1,2,3]],\"n\":2,\"max_tokens\":5,\"temperature\":0.5,"
                  "\"top_p\":0.9,\"top_k\":-1,\"min_p\":0.1,\"repetition_penalty\":1.1,\"seed\":7,"
                  "\"stop\":[\"x\",\"yz\"],\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                  "\"echo\":true,\"logprobs\":3,\"best_of\":1,\"suffix\":null,\"logit_bias\":{},"
                  "\"presence_penalty\":0,\"user\":\"u\",\"metadata\":{\"a\":1}}",
                  &r, &problem));
    assert_int_equal(r.n_prompt, 2);
    assert_int_equal(r.prompts[0].n_bytes, 1);
    assert_int_equal(r.prompts[1].n_ids, 3);
    assert_int_equal(r.prompts[1].ids[2], 3);
    assert_true(r.n == 2 && r.has_tokens && r.max_tokens == 5 && r.has_temperature && r.top_k == 0);
    assert_true(r.temperature == 0.5 && r.top_p == 0.9 && r.min_p == 0.1 && r.repetition_penalty == 1.1);
    assert_true(r.seed == 7 && r.n_stop == 2 && r.is_stream && r.has_usage && r.echo);
    assert_true(r.has_logprobs && r.n_logprobs == 3);
    assert_int_equal(serve_request_shed(&r, NULL), MOEC_OK);
    assert_null(r.root);
    assert_memory_equal(r.stops[1].bytes, "yz", 2);
    assert_memory_equal(r.prompts[0].text, "a", 1);
    serve_request_release(&r);
}

static void test_request__kinds(void **state)
{
    (void)state;
    struct serve_request r;
    struct serve_problem problem;
    assert_true(read_body(SERVE_COMPLETION, "{\"prompt\":[4,5]}", &r, &problem));
    assert_true(r.n_prompt == 1 && r.prompts[0].n_ids == 2 && r.n == 1 && !r.has_tokens && !r.echo);
    serve_request_release(&r);
    assert_true(
        read_body(SERVE_CHAT,
                  "{\"messages\":[{\"role\":\"user\"}],\"logprobs\":true,\"top_logprobs\":2,\"tools\":[],"
                  "\"tool_choice\":\"none\",\"response_format\":{\"type\":\"text\"},\"n\":null}",
                  &r, &problem));
    assert_true(r.has_logprobs && r.n_logprobs == 2 && r.messages != NULL);
    serve_request_release(&r);
    assert_true(read_body(SERVE_TOKENIZE, "{\"prompt\":\"a b\",\"add_special_tokens\":false}", &r, &problem));
    assert_false(r.adds_special);
    serve_request_release(&r);
    assert_true(read_body(SERVE_DETOKENIZE, "{\"tokens\":[]}", &r, &problem));
    assert_int_equal(r.prompts[0].n_ids, 0);
    serve_request_release(&r);
}

static void test_request__refusals(void **state)
{
    (void)state;
    static const struct {
        enum serve_kind kind;
        const char *body, *param;
    } cases[] = {
        {SERVE_COMPLETION, "{", ""},
        {SERVE_COMPLETION, "[1]", ""},
        {SERVE_COMPLETION, "{}", "prompt"},
        {SERVE_COMPLETION, "{\"prompt\":1}", "prompt"},
        {SERVE_COMPLETION, "{\"prompt\":[1,\"a\"]}", "prompt"},
        {SERVE_COMPLETION, "{\"prompt\":[100]}", "prompt"},
        {SERVE_COMPLETION, "{\"prompt\":\"a\",\"unknown\":null}", "unknown"},
        {SERVE_COMPLETION, "{\"prompt\":\"a\",\"messages\":[]}", "messages"},
        {SERVE_COMPLETION, "{\"prompt\":\"a\",\"n\":0}", "n"},
        {SERVE_COMPLETION, "{\"prompt\":\"a\",\"logprobs\":21}", "logprobs"},
        {SERVE_COMPLETION, "{\"prompt\":\"a\",\"logprobs\":true}", "logprobs"},
        {SERVE_COMPLETION, "{\"prompt\":\"a\",\"temperature\":\"1\"}", "temperature"},
        {SERVE_COMPLETION, "{\"prompt\":\"a\",\"temperature\":NaN}", "temperature"},
        {SERVE_COMPLETION, "{\"prompt\":\"a\",\"stop\":\"\"}", "stop"},
        {SERVE_COMPLETION, "{\"prompt\":\"a\",\"frequency_penalty\":0.5}", "frequency_penalty"},
        {SERVE_COMPLETION, "{\"prompt\":\"a\",\"stream_options\":{\"x\":1}}", "stream_options"},
        {SERVE_COMPLETION, "{\"prompt\":\"a\",\"prompt\":\"b\"}", ""},
        {SERVE_CHAT, "{\"messages\":[]}", "messages"},
        {SERVE_CHAT, "{\"messages\":[1]}", "messages"},
        {SERVE_CHAT, "{\"messages\":[{}],\"top_logprobs\":1}", "top_logprobs"},
        {SERVE_CHAT, "{\"messages\":[{}],\"max_tokens\":1,\"max_completion_tokens\":1}",
         "max_completion_tokens"},
        {SERVE_CHAT, "{\"messages\":[{}],\"response_format\":{\"type\":\"json_object\"}}", "response_format"},
        {SERVE_TOKENIZE, "{\"prompt\":[1]}", "prompt"},
        {SERVE_DETOKENIZE, "{\"tokens\":[-1]}", "tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct serve_request r;
        struct serve_problem problem;
        assert_false(read_body(cases[i].kind, cases[i].body, &r, &problem));
        assert_int_equal(problem.status, 400);
        assert_string_equal(problem.param, cases[i].param);
        assert_true(problem.message[0] != '\0');
    }
}

/* Neither long bodies nor trees of many values are parsed. */
static void test_request__limits(void **state)
{
    (void)state;
    struct serve_request r;
    struct serve_problem problem;
    char body[6000];
    memset(body, ' ', sizeof body);
    memcpy(body, "{\"prompt\":\"a\"}", 14);
    body[sizeof body - 1] = '\0';
    assert_false(read_body(SERVE_COMPLETION, body, &r, &problem));
    assert_int_equal(problem.status, 413);
    size_t n = (size_t)sprintf(body, "{\"prompt\":[1");
    for (int i = 0; i < 250; i++)
        n += (size_t)sprintf(body + n, ",1");
    (void)sprintf(body + n, "]}");
    assert_false(read_body(SERVE_COMPLETION, body, &r, &problem));
    assert_int_equal(problem.status, 413);
    (void)sprintf(body, "{\"prompt\":\"%0300d,,,,::[[\\\"\"}", 0);
    assert_true(read_body(SERVE_COMPLETION, body, &r, &problem));
    serve_request_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request__whole),
        cmocka_unit_test(test_request__kinds),
        cmocka_unit_test(test_request__refusals),
        cmocka_unit_test(test_request__limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
