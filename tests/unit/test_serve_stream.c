/* What a stream holds between the thread that computes and its reader: order, waiting, the end, and a reader who does
 * not read. */
#include "tests/unit/status.h"

#include "server/serve_stream.h"

#include <stdlib.h>

static unsigned n_wake, n_suspend;

static void wake(struct serve_job *job)
{
    (void)job;
    n_wake++;
}

static void suspend(struct serve_job *job)
{
    (void)job;
    n_suspend++;
}

static struct serve_job *make_job(void)
{
    static const struct serve_limits limits = {
        .body_bytes = 4096, .tree_values = 200, .held_bytes = 1 << 20, .n_context = 64, .n_vocab = 100};
    static const char body[] = "{\"prompt\":\"a\",\"stream\":true}";
    struct serve_request request;
    struct serve_problem problem = {0};
    assert_true(serve_request_read(SERVE_COMPLETION, body, sizeof body - 1, &limits, &request, &problem));
    struct serve_job *job = serve_job_create(&request);
    assert_non_null(job);
    job->connection = (struct MHD_Connection *)job; /* any that is none */
    job->wake = wake;
    n_wake = n_suspend = 0;
    return job;
}

static void test_stream__order(void **state)
{
    (void)state;
    const struct serve_options options = {.model = "m"};
    struct serve_job *job = make_job();
    char text[64];
    assert_int_equal(serve_stream_take(job, text, sizeof text, suspend), 0);
    assert_int_equal(n_suspend, 1);
    serve_stream_put(job, strdup("data: one\n\n"));
    serve_stream_put(job, strdup("data: two\n\n"));
    assert_int_equal(n_wake, 1); /* it was waiting once */
    assert_int_equal(serve_stream_take(job, text, 5, suspend), 5);
    assert_memory_equal(text, "data:", 5);
    assert_int_equal(serve_stream_take(job, text, sizeof text, suspend), 17);
    assert_memory_equal(text, " one\n\ndata: two\n\n", 17);
    serve_stream_keep_alive(job); /* too early for a comment */
    assert_int_equal(job->n_out, 0);
    job->told_ns = 0;
    serve_stream_keep_alive(job);
    assert_int_equal(serve_stream_take(job, text, sizeof text, suspend), 11);
    assert_memory_equal(text, ": waiting\n\n", 11);
    serve_stream_end(&options, job);
    assert_int_equal(serve_stream_take(job, text, sizeof text, suspend), 14);
    assert_memory_equal(text, "data: [DONE]\n\n", 14);
    assert_int_equal(serve_stream_take(job, text, sizeof text, suspend), -1);
    serve_job_let_go(job);
}

static void test_stream__problem(void **state)
{
    (void)state;
    const struct serve_options options = {.model = "m"};
    struct serve_job *job = make_job();
    char text[512] = "";
    (void)serve_refuse(&job->problem, 500, NULL, "a read failed");
    serve_stream_end(&options, job);
    assert_true(serve_stream_take(job, text, sizeof text - 1, suspend) > 0);
    assert_non_null(
        strstr(text, "data: {\"error\":{\"message\":\"a read failed\",\"type\":\"server_error\""));
    assert_non_null(strstr(text, "data: [DONE]"));
    serve_job_let_go(job);
}

/* The queue is bounded: who lets it fill up is cut, and his job ends. */
static void test_stream__reader_who_does_not_read(void **state)
{
    (void)state;
    struct serve_job *job = make_job();
    char text[64];
    size_t n = 0;
    while (!job->is_cancelled && n < 2 * SERVE_QUEUE_BYTES) {
        char *event = malloc(1001);
        assert_non_null(event);
        memset(event, 'x', 1000);
        event[1000] = '\0';
        serve_stream_put(job, event);
        n += 1000;
    }
    assert_true(job->is_cut && job->is_cancelled && n <= SERVE_QUEUE_BYTES + 1000);
    assert_true(job->n_out <= SERVE_QUEUE_BYTES);
    assert_int_equal(serve_stream_take(job, text, sizeof text, suspend), -2);
    serve_job_let_go(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream__order),
        cmocka_unit_test(test_stream__problem),
        cmocka_unit_test(test_stream__reader_who_does_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
