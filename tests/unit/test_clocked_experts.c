/* The time that a session computes: without waiting, by layer, and with every operation passed on. */
#include "tests/unit/temporary.h"

#include "runtime/experts/clocked_experts.h"

#include <time.h>

static const struct moec_config config = {.family = "sample",
                                          .n_layer = 3,
                                          .n_expert = 4,
                                          .top_k = 1,
                                          .kinds = {{.is_moe = true}, {0}},
                                          .layer_kind = {0, 1, 0}};

/* A source that counts, and takes its time to give an expert. */
struct slow {
    struct moec_experts experts;
    uint32_t n_acquired, n_released, n_expected, n_forgone;
    bool is_ready;
};

#define WAIT_NS 20000000u

static void pass_time(uint64_t ns)
{
    const struct timespec time = {.tv_nsec = (long)ns};
    (void)nanosleep(&time, NULL);
}

static enum moec_status slow_acquire(struct moec_experts *self, struct moec_expert_request request,
                                     struct moec_mlp *mlp, struct moec_error *err)
{
    (void)mlp;
    pass_time(WAIT_NS);
    ((struct slow *)self)->n_acquired++;
    return request.expert < config.n_expert
               ? MOEC_OK
               : moec_fail(err, MOEC_ERR_USAGE, "layer %u has no expert", request.layer);
}

static void slow_release(struct moec_experts *self, struct moec_expert_request request)
{
    ((struct slow *)self)->n_released += request.layer + request.expert;
}

static void slow_expect(struct moec_experts *self, const struct moec_router_answer *answer)
{
    ((struct slow *)self)->n_expected += answer->active.n;
}

static void slow_cancel(struct moec_experts *self, struct moec_expert_request request)
{
    ((struct slow *)self)->n_forgone += request.layer + request.expert;
}

static bool slow_ready(struct moec_experts *self, struct moec_expert_request request)
{
    return ((struct slow *)self)->is_ready && request.layer + request.expert > 0;
}

static void answer_layer(struct moec_experts *source, uint32_t layer)
{
    static const uint32_t active[] = {1};
    const struct moec_router_answer answer = {.layer = layer, .n_tok = 1, .active = {.list = active, .n = 1}};
    source->ops->expect(source, &answer);
}

static void test_clocked_experts__waiting_is_not_computing(void **state)
{
    (void)state;
    static const struct moec_experts_ops ops = {.acquire = slow_acquire, .release = slow_release};
    struct slow slow = {.experts = {.ops = &ops, .max_held = 3}};
    struct moec_clocked_experts clocked;
    struct moec_mlp mlp;
    struct moec_error err = {0};
    atomic_ullong compute_ns[2] = {0, 0};
    moec_clocked_experts_init(&clocked, &slow.experts, &config, compute_ns);
    struct moec_experts *source = &clocked.experts;
    assert_int_equal(source->max_held, 3);
    assert_true(source->ops->ready(
        source, moec_expert_request_of(0, 0))); /* a source without an answer is always ready */
    moec_clocked_experts_begin(&clocked);
    pass_time(1000000); /* belongs to the last layer: what it guesses for the first hides here */
    answer_layer(source, 0);
    assert_true(atomic_load(&compute_ns[1]) >= 1000000);
    const unsigned long long last_ns = atomic_load(&compute_ns[1]);
    assert_status(source->ops->acquire(source, moec_expert_request_of(0, 1), &mlp, &err), MOEC_OK, err);
    pass_time(1000000);
    answer_layer(source, 2);
    assert_true(atomic_load(&compute_ns[0]) >= 1000000);
    assert_true(atomic_load(&compute_ns[1]) == last_ns);
    assert_status(source->ops->acquire(source, moec_expert_request_of(2, 1), &mlp, &err), MOEC_OK, err);
    assert_int_equal(source->ops->acquire(source, moec_expert_request_of(2, 9), &mlp, &err), MOEC_ERR_USAGE);
    const uint64_t waited_ns = clocked.waited_ns;
    assert_true(waited_ns >= 2 * WAIT_NS);
    moec_clocked_experts_end(&clocked);
    assert_int_equal(clocked.waited_ns, 0);
    assert_true(atomic_load(&compute_ns[1]) >= last_ns);
}

static void test_clocked_experts__operations_are_passed_on(void **state)
{
    (void)state;
    static const struct moec_experts_ops ops = {.acquire = slow_acquire,
                                                .release = slow_release,
                                                .expect = slow_expect,
                                                .cancel = slow_cancel,
                                                .ready = slow_ready};
    struct slow slow = {.experts = {.ops = &ops, .wants_choices = true}};
    struct moec_clocked_experts clocked;
    atomic_ullong compute_ns[2] = {0, 0};
    moec_clocked_experts_init(&clocked, &slow.experts, &config, compute_ns);
    struct moec_experts *source = &clocked.experts;
    assert_true(source->wants_choices && !source->wants_next_gate);
    moec_clocked_experts_begin(&clocked);
    answer_layer(source, 2);
    source->ops->release(source, moec_expert_request_of(2, 1));
    source->ops->cancel(source, moec_expert_request_of(0, 3));
    assert_int_equal(slow.n_expected, 1);
    assert_int_equal(slow.n_released, 3);
    assert_int_equal(slow.n_forgone, 3);
    assert_false(source->ops->ready(source, moec_expert_request_of(0, 1)));
    slow.is_ready = true;
    assert_true(source->ops->ready(source, moec_expert_request_of(0, 1)));
    assert_false(source->ops->wants_prefetch(source, 1)); /* as the source behind it has none */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clocked_experts__waiting_is_not_computing),
        cmocka_unit_test(test_clocked_experts__operations_are_passed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
