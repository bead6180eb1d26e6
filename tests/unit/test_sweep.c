/* Windows through layers in batches: shared evenly, and with the same bits as all at once. */
#include "tests/unit/fixture_model.h"

#include "profiler/evaluate/sweep.h"

struct seen {
    uint32_t rows[8];
    uint32_t n;
};

static enum moec_status note_batch(void *context, uint32_t ordinal, const struct moec_sweep_batch *batch,
                                   struct moec_error *err)
{
    struct seen *seen = context;
    (void)err;
    if (ordinal == 0 && seen->n < 8)
        seen->rows[seen->n++] = batch->n_rows;
    return MOEC_OK;
}

/* Hidden states of all windows by batches of at most max_tokens, owned by the caller. */
static float *run(const struct fixture *fixture, const struct moec_windows *windows, uint32_t max_tokens,
                  struct seen *seen)
{
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_sweep sweep = {0};
    const struct moec_config *config = &fixture->model->config;
    const size_t stride = moec_forward_stride(config), n_choice = (size_t)max_tokens * config->top_k;
    const struct moec_mlp_trace trace = {.experts = calloc(n_choice, sizeof *trace.experts),
                                         .weights = calloc(n_choice, sizeof *trace.weights)};
    const struct moec_sweep_store store = {.trace = &trace, .traced = note_batch, .context = seen};
    assert_ok(moec_forward_init(&forward, fixture->model, moec_kernels_best(), 2,
                                moec_variants_experts(fixture->variants), max_tokens, &err),
              err);
    assert_ok(moec_sweep_create(&forward, windows, false, &sweep, &err), err);
    float *hidden = calloc(moec_sweep_rows(&sweep, 0, windows->n_window) * stride, sizeof *hidden);
    assert_ok(moec_sweep_run(&sweep, (struct moec_window_range){0, windows->n_window}, hidden, &store, &err),
              err);
    moec_sweep_release(&sweep);
    moec_forward_release(&forward);
    free(trace.experts);
    free(trace.weights);
    return hidden;
}

static void test_sweep__shares_rows_evenly(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("olmoe");
    struct moec_windows windows;
    struct seen whole = {.n = 0}, two = {.n = 0};
    fixture_windows(&fixture, 3, &windows);
    const uint32_t n_row = 2 * windows.n_window;
    assert_true(windows.n_window >= 4);
    float *expected = run(&fixture, &windows, n_row, &whole);
    float *hidden = run(&fixture, &windows, n_row - 2, &two);
    assert_int_equal(whole.n, 1);
    assert_int_equal(whole.rows[0], n_row);
    assert_int_equal(two.n, 2); /* in place of all but one window, and that */
    assert_int_equal(two.rows[0] + two.rows[1], n_row);
    assert_true(two.rows[0] - two.rows[1] <= 2);
    assert_same_bits(hidden, expected, n_row * moec_forward_stride(&fixture.model->config), "hidden states");
    free(expected);
    free(hidden);
    moec_windows_release(&windows);
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sweep__shares_rows_evenly)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
