/* Requests of OpenAI's protocol: what is read keeps to its limits, and what is refused says why, as JSON. The first
 * byte says which kind of request it is; guards see the rest as headers. */
#include "formats/json/json.h"
#include "server/serve_chat_values.h"
#include "server/serve_guard.h"
#include "server/serve_request.h"

#include <stdlib.h>
#include <string.h>

static void require(bool holds)
{
    if (!holds)
        abort();
}

static const struct serve_limits limits = {
    .body_bytes = 4096, .tree_values = 512, .held_bytes = 1 << 20, .n_context = 64, .n_vocab = 300};

static void check_problem(const struct serve_problem *problem)
{
    require(problem->status >= 400 && problem->message[0] != '\0' && problem->type != NULL);
    char *text = serve_problem_text(problem);
    struct moec_json *root = NULL;
    require(text != NULL &&
            moec_json_parse(text, strlen(text), 1 << 16, "a problem", &root, NULL) == MOEC_OK);
    moec_json_free(root);
    free(text);
}

static void check_messages(const struct serve_request *request)
{
    struct moert_values *values = NULL;
    struct moert_value *messages = NULL;
    struct serve_problem problem = {0};
    require(moert_values_create(&values, NULL) == MOERT_OK);
    if (!serve_chat_messages(values, request->messages, &messages, &problem))
        check_problem(&problem);
    moert_values_free(values);
}

static void check_request(struct serve_request *r)
{
    require(r->n >= 1 && r->n <= SERVE_MAX_CHOICES && r->n_prompt * r->n <= SERVE_MAX_SEQUENCES);
    require(r->n_stop <= SERVE_MAX_STOPS && r->n_logprobs <= SERVE_MAX_LOGPROBS);
    require(r->top_p >= 0 && r->top_p <= 1 && r->min_p >= 0 && r->min_p <= 1);
    require(r->temperature >= 0 && r->temperature <= 100);
    for (size_t i = 0; i < r->n_prompt; i++)
        for (size_t k = 0; k < r->prompts[i].n_ids; k++)
            require(r->prompts[i].ids[k] < limits.n_vocab);
    if (r->messages != NULL)
        check_messages(r);
    require(serve_request_shed(r, NULL) == MOEC_OK);
    size_t n_bytes = 0;
    for (size_t i = 0; i < r->n_stop; i++) {
        require(r->stops[i].n_bytes > 0 && r->stops[i].n_bytes <= SERVE_MAX_STOP_BYTES);
        n_bytes += (unsigned char)r->stops[i].bytes[r->stops[i].n_bytes - 1];
    }
    require(n_bytes <= SERVE_MAX_STOPS * 255u);
}

static void check_guards(const char *text)
{
    const struct serve_options options = {
        .names = {"a"}, .n_name = 1, .origins = {"http://b"}, .n_origin = 1, .n_key = 1};
    (void)serve_guard_host(&options, text);
    (void)serve_guard_origin(&options, text, text);
    (void)serve_guard_json(text);
    require(!serve_guard_key(&options, text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct serve_request request;
    struct serve_problem problem = {0};
    if (size == 0)
        return 0;
    const char *body = (const char *)data + 1;
    if (serve_request_read((enum serve_kind)(data[0] % 4), body, size - 1, &limits, &request, &problem)) {
        check_request(&request);
        serve_request_release(&request);
    } else {
        check_problem(&problem);
    }
    char *text = malloc(size);
    require(text != NULL);
    memcpy(text, body, size - 1);
    text[size - 1] = '\0';
    check_guards(text);
    free(text);
    return 0;
}
