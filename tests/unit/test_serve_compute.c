/* Which jobs the thread that computes is given: as many as may wait, and none once all were cancelled. */
#include "tests/unit/status.h"

#include "server/serve_compute.h"

#include <stdlib.h>

static struct serve_job *make_job(void)
{
    static const struct serve_limits limits = {
        .body_bytes = 4096, .tree_values = 200, .held_bytes = 1 << 20, .n_context = 64, .n_vocab = 100};
    static const char body[] = "{\"prompt\":[1,2],\"n\":2}";
    struct serve_request request;
    struct serve_problem problem = {0};
    struct moec_error err = {0};
    void *prompts = calloc(1, sizeof(struct serve_prompt_tokens));
    assert_true(serve_request_read(SERVE_COMPLETION, body, sizeof body - 1, &limits, &request, &problem));
    struct serve_job *job = serve_job_create(&request);
    assert_true(job != NULL && prompts != NULL);
    job->prompts = prompts;
    job->n_prompt = 1;
    assert_status(serve_job_make_sequences(job, &err), MOEC_OK, err);
    return job;
}

/* A compute without its thread: what it is given stays. */
static void begin(struct serve_compute *compute, const struct serve_options *options,
                  struct serve_metrics *metrics)
{
    *compute = (struct serve_compute){.options = options, .metrics = metrics};
    compute->incoming_end = &compute->incoming;
    compute->jobs_end = &compute->jobs;
    pthread_mutex_init(&compute->lock, NULL);
    pthread_cond_init(&compute->change, NULL);
}

static void test_compute__takes_what_may_wait(void **state)
{
    (void)state;
    const struct serve_options options = {.n_queue = 4};
    struct serve_metrics metrics = {0};
    struct serve_compute compute;
    struct serve_job *jobs[3];
    begin(&compute, &options, &metrics);
    for (size_t i = 0; i < 3; i++) {
        jobs[i] = make_job(); /* of two sequences */
        assert_true(serve_compute_submit(&compute, jobs[i]) == (i < 2));
        assert_int_equal(jobs[i]->n_users, i < 2 ? 2 : 1);
    }
    assert_int_equal(serve_compute_count(&compute), 2);
    assert_int_equal(serve_compute_cancel(&compute), 2);
    for (size_t i = 0; i < 3; i++) {
        assert_true(jobs[i]->is_cancelled == (i < 2));
        if (i < 2)
            serve_job_let_go(jobs[i]);
        serve_job_let_go(jobs[i]);
    }
}

/* Whoever waits for a job that nobody computes waits for ever. */
static void test_compute__takes_none_at_the_end(void **state)
{
    (void)state;
    const struct serve_options options = {.n_queue = 4};
    struct serve_metrics metrics = {0};
    struct serve_compute compute;
    begin(&compute, &options, &metrics);
    assert_int_equal(serve_compute_cancel(&compute), 0);
    struct serve_job *job = make_job();
    assert_false(serve_compute_submit(&compute, job));
    assert_int_equal(job->n_users, 1);
    assert_int_equal(serve_compute_count(&compute), 0);
    assert_int_equal(metrics.n_waiting, 0);
    serve_job_let_go(job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compute__takes_what_may_wait),
        cmocka_unit_test(test_compute__takes_none_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
