/* The memory plan: what is spent adds up, stays within the budget, and the floor is the floor. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

#include "formats/base/memory.h"
#include "runtime/engine/memory_plan.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/forward/pass/session.h"
#include "runtime/forward/weights/model_test_hook.h"

#define MIB ((uint64_t)1 << 20)

static const struct moec_config config = {
    .family = "sample",
    .n_layer = 8,
    .n_embd = 256,
    .n_kind = 1,
    .kinds = {{.n_head = 4, .n_kv_head = 2, .head_dim = 64, .rope_theta = 10000, .is_moe = true}},
    .n_vocab = 6144,
    .n_position = 2048,
    .rms_eps = 1e-6,
    .n_expert = 32,
    .top_k = 4,
    .n_ff_expert = 128,
    .n_ff_shared = 256};

#define RECORD ((uint64_t)49920)

static struct moec_memory_request make_request(uint64_t budget_bytes)
{
    return (struct moec_memory_request){.config = &config,
                                        .budget_bytes = budget_bytes,
                                        .process = {.base_bytes = 5 * MIB, .n_threads = 2},
                                        .bundle = {.dense_bytes = 9 * MIB,
                                                   .table_bytes = 20000,
                                                   .largest_record_bytes = RECORD,
                                                   .all_record_bytes = 256 * RECORD,
                                                   .token_record_bytes = 32 * RECORD},
                                        .sessions = {.n_context = 1024, .n = 1, .n_logits = 1}};
}

static uint64_t sum(const struct moec_memory_plan *plan)
{
    return plan->parts.base_bytes + plan->parts.dense_bytes + plan->parts.kv_bytes +
           plan->parts.scratch_bytes + plan->parts.logits_bytes + plan->parts.table_bytes +
           plan->parts.margin_bytes + plan->expert_buffer_bytes;
}

static uint64_t floor_of(const struct moec_memory_request *request)
{
    struct moec_memory_request unlimited = *request;
    struct moec_memory_plan plan;
    struct moec_error err = {0};
    unlimited.budget_bytes = 0;
    assert_status(moec_memory_plan_make(&unlimited, &plan, &err), MOEC_OK, err);
    return plan.floor_bytes;
}

static void test_memory_plan__every_budget_adds_up(void **state)
{
    (void)state;
    struct moec_memory_request request = make_request(0);
    uint64_t lowest = floor_of(&request), previous_buffer = 0;
    uint32_t previous_chunk = 0;
    for (uint64_t budget = lowest; budget < lowest + 60 * MIB; budget += 77777) {
        struct moec_memory_plan plan;
        struct moec_error err = {0};
        request.budget_bytes = budget;
        assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
        assert_int_equal(plan.total_bytes, sum(&plan));
        assert_true(plan.total_bytes <= budget);
        assert_true(plan.total_bytes == budget || plan.experts.all_stay);
        assert_true(plan.expert_buffer_bytes >= RECORD && plan.expert_buffer_bytes <= 256 * RECORD);
        assert_true(plan.parts.kv_bytes >= (uint64_t)8 * 2 * 1024 * 128 * 4);
        assert_int_equal(plan.parts.logits_bytes, 6144 * 4);
        assert_true(plan.parts.scratch_bytes >= moec_forward_scratch_bytes(&config, plan.max_tokens, 2));
        assert_true(plan.parts.dense_bytes > 9 * MIB && plan.parts.dense_bytes < 10 * MIB);
        assert_true(plan.max_tokens >= previous_chunk && plan.max_tokens <= MOEC_PLAN_MAX_TOKENS);
        /* the buffer shrinks only where a longer chunk takes its room */
        assert_true(plan.expert_buffer_bytes >= previous_buffer || plan.max_tokens > previous_chunk);
        assert_true(plan.experts.all_stay == (plan.expert_buffer_bytes == 256 * RECORD));
        assert_true(plan.experts.below_working_set == (plan.expert_buffer_bytes < 32 * RECORD));
        previous_buffer = plan.expert_buffer_bytes;
        previous_chunk = plan.max_tokens;
    }
    assert_int_equal(previous_chunk, MOEC_PLAN_MAX_TOKENS);
    assert_int_equal(previous_buffer, 256 * RECORD);
}

/* What logical caches hold is in memory from the smallest budget on that has room for it beside a short
 * chunk, and longer chunks do not take that room. */
static void test_memory_plan__logical_caches_have_their_room(void **state)
{
    (void)state;
    struct moec_memory_request request = make_request(0);
    request.buffer.logical =
        (struct moec_logical_room){.held_bytes = 128 * RECORD, .passing_bytes = 16 * RECORD};
    const uint64_t lowest = floor_of(&request);
    bool was_held = false;
    char text[512];
    for (uint64_t budget = lowest; budget < lowest + 60 * MIB; budget += 77777) {
        struct moec_memory_plan plan;
        struct moec_error err = {0};
        request.budget_bytes = budget;
        assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
        const bool is_held = plan.expert_buffer_bytes >= 144 * RECORD;
        assert_true(is_held || !was_held);
        assert_true(!is_held || was_held || plan.max_tokens >= MOEC_PLAN_SHORT_TOKENS);
        const bool holds = moec_memory_plan_holds_logical(&plan);
        assert_true(holds == (plan.expert_buffer_bytes >= 128 * RECORD));
        assert_true(moec_memory_plan_warning(&plan, text, sizeof text) == !holds);
        assert_true(holds ||
                    strstr(text, "smaller than the experts in the logical cache (6.09 MiB)") != NULL);
        was_held = is_held;
    }
    assert_true(was_held);
    /* The budget that the warning names holds it. */
    struct moec_memory_plan plan;
    struct moec_error err = {0};
    request.budget_bytes = lowest + 3 * MIB;
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
    assert_false(moec_memory_plan_holds_logical(&plan));
    request.budget_bytes = plan.total_bytes - plan.expert_buffer_bytes + 144 * RECORD;
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
    assert_true(plan.expert_buffer_bytes >= 144 * RECORD);
}

static void test_memory_plan__below_the_floor_is_itemised(void **state)
{
    (void)state;
    struct moec_memory_request request = make_request(0);
    struct moec_memory_plan plan;
    struct moec_error err = {0};
    uint64_t lowest = floor_of(&request);
    request.budget_bytes = lowest - 1;
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_ERR_BUDGET, err);
    char stated[32];
    (void)snprintf(stated, sizeof stated, "%llu", (unsigned long long)lowest);
    assert_message(err, stated);
    assert_message(err, "process 5.00");
    assert_message(err, "dense weights 9.");
    assert_message(err, "KV cache for 1024 positions 8.");
    assert_message(err, "largest expert 0.05");
    assert_message(err, "raise the budget");
    request.budget_bytes = lowest;
    err = (struct moec_error){0};
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
    assert_int_equal(plan.max_tokens, 1);
    assert_int_equal(plan.expert_buffer_bytes, RECORD);
    assert_int_equal(plan.total_bytes, lowest);
}

static uint64_t any_start_of(const struct moec_memory_request *request)
{
    const uint64_t floor = floor_of(request);
    return floor + moec_memory_start_bytes(floor);
}

/* The context that is promised fits at a start that takes more than this one, and one position more may not.
 */
static void test_memory_plan__a_promised_context_fits_at_any_start(void **state)
{
    (void)state;
    struct moec_memory_request request = make_request(0);
    const uint64_t whole = floor_of(&request);
    assert_int_equal(moec_memory_plan_context(&request), request.sessions.n_context);
    request.budget_bytes = whole + moec_memory_start_bytes(whole);
    assert_int_equal(moec_memory_plan_context(&request), request.sessions.n_context);
    request.budget_bytes = whole - 2 * MIB;
    const uint32_t n_fits = moec_memory_plan_context(&request);
    assert_in_range(n_fits, 1, request.sessions.n_context - 1);
    request.sessions.n_context = n_fits;
    assert_true(any_start_of(&request) <= request.budget_bytes);
    request.sessions.n_context = n_fits + 1;
    assert_true(any_start_of(&request) > request.budget_bytes);
}

/* Small budgets are used up: what a plan keeps back, and what is promised of another start, is half a
 * mebibyte and 4 %. */
static void test_memory_plan__margins_are_small(void **state)
{
    (void)state;
    struct moec_memory_request request = make_request(0);
    struct moec_memory_plan plan;
    struct moec_error err = {0};
    const uint64_t floor = floor_of(&request);
    for (request.budget_bytes = floor; request.budget_bytes < floor + 40 * MIB; request.budget_bytes += MIB) {
        assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
        assert_true(plan.parts.margin_bytes <= MIB / 2 + request.budget_bytes / 25);
    }
    for (uint64_t bytes = MIB; bytes < 4096 * MIB; bytes *= 2)
        assert_in_range(moec_memory_start_bytes(bytes), 0, MIB / 2 + bytes / 25);
    assert_true(moec_memory_start_bytes(8 * MIB) >= 11 * MIB / 20); /* which starts of moec differ by */
}

/* A budget that holds every expert is followed by none that does not, whatever the chunk. */
static void test_memory_plan__whole_from_there_on(void **state)
{
    (void)state;
    for (uint32_t n_together = 0; n_together < 600; n_together = 3 * n_together + 1) {
        struct moec_memory_request request = make_request(0);
        struct moec_memory_plan plan;
        struct moec_error err = {0};
        request.sessions.n_together = n_together;
        const uint64_t whole = moec_memory_plan_whole_bytes(&request), last = whole + 40 * MIB;
        for (request.budget_bytes = whole; request.budget_bytes < last; request.budget_bytes += 55555) {
            assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
            assert_true(plan.experts.all_stay);
            assert_true(n_together == 0 || plan.max_tokens < 2 * n_together);
        }
        request.budget_bytes = whole - 1;
        assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
        assert_false(plan.experts.all_stay);
    }
}

static void test_memory_plan__beams_have_keys_of_their_own(void **state)
{
    (void)state;
    struct moec_memory_request request = make_request(0);
    struct moec_memory_plan one, four;
    struct moec_error err = {0};
    assert_status(moec_memory_plan_make(&request, &one, &err), MOEC_OK, err);
    request.sessions.n_beams = 4;
    request.sessions.generator_bytes = 1000;
    assert_status(moec_memory_plan_make(&request, &four, &err), MOEC_OK, err);
    assert_int_equal(four.parts.kv_bytes - one.parts.kv_bytes, 3 * moec_session_beside_bytes(&config, 1024));
    assert_int_equal(four.parts.logits_bytes - one.parts.logits_bytes, 1000);
    assert_int_equal(four.parts.scratch_bytes, one.parts.scratch_bytes);
    assert_int_equal(four.total_bytes, sum(&four));
    request.sessions.n_beams = MOEC_MAX_BEAMS + 1;
    assert_status(moec_memory_plan_make(&request, &four, &err), MOEC_ERR_LIMIT, err);
}

static void test_memory_plan__no_limit_holds_everything(void **state)
{
    (void)state;
    struct moec_memory_request request = make_request(0);
    struct moec_memory_plan plan;
    struct moec_error err = {0};
    char text[512];
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
    assert_true(plan.experts.all_stay && !plan.experts.below_working_set);
    assert_int_equal(plan.max_tokens, MOEC_PLAN_MAX_TOKENS);
    assert_false(moec_memory_plan_warning(&plan, text, sizeof text));
}

static void test_memory_plan__warns_below_the_working_set(void **state)
{
    (void)state;
    struct moec_memory_request request = make_request(0);
    struct moec_memory_plan plan;
    struct moec_error err = {0};
    char text[512];
    request.budget_bytes = floor_of(&request) + 10 * RECORD;
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
    assert_true(plan.experts.below_working_set);
    assert_true(moec_memory_plan_warning(&plan, text, sizeof text));
    assert_non_null(strstr(text, "experts of one token (1.52 MiB)"));
}

static void test_memory_plan__sessions_and_context_count(void **state)
{
    (void)state;
    struct moec_memory_request request = make_request(0);
    uint64_t one = floor_of(&request);
    request.sessions.n = 3;
    uint64_t three = floor_of(&request);
    assert_true(three - one >= 2 * (uint64_t)8 * 2 * 1024 * 128 * 4);
    request.sessions.n = 1;
    request.sessions.n_context = 2048;
    assert_true(floor_of(&request) - one >= (uint64_t)8 * 2 * 1024 * 128 * 4);
    request.sessions.n_context = 4; /* a chunk is no longer than the context */
    struct moec_memory_plan plan;
    struct moec_error err = {0};
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
    assert_int_equal(plan.max_tokens, 4);
}

static void test_memory_plan__absurd_requests_are_refused(void **state)
{
    (void)state;
    struct moec_memory_request request = make_request(0);
    struct moec_memory_plan plan;
    struct moec_error err = {0};
    request.sessions.n_context = 0;
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_ERR_LIMIT, err);
    request = make_request(0);
    request.sessions.n_context = MOEC_MAX_POSITIONS;
    request.sessions.n = UINT32_MAX;
    err = (struct moec_error){0};
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_ERR_LIMIT, err);
    request = make_request(0);
    request.process.base_bytes = UINT64_MAX;
    err = (struct moec_error){0};
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_ERR_LIMIT, err);
}

/* The plan counts at least what model and session really allocate. */
static void test_memory_plan__covers_the_model(void **state)
{
    (void)state;
    struct moec_memory_request request = make_request(0);
    struct moec_memory_plan plan;
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    struct moec_model *model = NULL;
    struct moec_codec codecs[MOEC_CODEC_TABLE] = {0};
    struct moec_config biased = config;
    biased.kinds[0].qkv_bias = biased.mlp.shared_gate = true;
    assert_status(moec_codec_for_bits(16, MOEC_SCHEME_SYMMETRIC, 0, MOEC_DTYPE_BF16, &codecs[16], &err),
                  MOEC_OK, err);
    uint32_t rows = 0, columns = 0, n_entries = 0;
    uint64_t end = 0;
    struct moec_dense_entry entries[256] = {0};
    for (uint32_t i = 0; i < (biased.n_layer + 1) * MOEC_ROLE_COUNT; i++) {
        uint32_t layer = i / MOEC_ROLE_COUNT < biased.n_layer ? i / MOEC_ROLE_COUNT : MOEC_LAYER_NONE;
        if (!moec_role_expected(&biased, i % MOEC_ROLE_COUNT, layer))
            continue;
        moec_role_shape(&biased, i % MOEC_ROLE_COUNT, layer, &rows, &columns);
        entries[n_entries++] = (struct moec_dense_entry){.role = i % MOEC_ROLE_COUNT,
                                                         .layer = layer,
                                                         .codec = codecs[16],
                                                         .rows = rows,
                                                         .columns = columns,
                                                         .offset = end,
                                                         .n_bytes = (uint64_t)rows * columns * 2};
        end += ((uint64_t)rows * columns * 2 + 63) / 64 * 64;
    }
    void *memory = NULL;
    assert_status(moec_alloc(&memory, n_entries, sizeof *entries, "table", &err), MOEC_OK, err);
    dense.entries = memory;
    dense.n_entries = n_entries;
    memcpy(dense.entries, entries, n_entries * sizeof *entries);
    assert_status(moec_alloc_aligned(&memory, end, 1, "blob", &err), MOEC_OK, err);
    dense.blob = memory;
    dense.blob_bytes = end;
    memset(dense.blob, 0, end);
    request.config = &biased;
    request.bundle.dense_bytes = end;
    assert_status(moec_memory_plan_make(&request, &plan, &err), MOEC_OK, err);
    assert_status(moec_model_create(&biased, &dense, &model, &err), MOEC_OK, err);
    assert_true(plan.parts.dense_bytes >= moec_model_bytes(model));
    assert_true(plan.parts.dense_bytes < moec_model_bytes(model) + 256 * 1024);
    moec_model_free(model);
}

static void test_memory_plan__peak_is_measured(void **state)
{
    (void)state;
    uint64_t before = 0, after = 0;
    struct moec_error err = {0};
    assert_status(moec_memory_peak_bytes(&before, &err), MOEC_OK, err);
    assert_true(before > 100000);
    size_t n = 64 * MIB;
    volatile uint8_t *touched = malloc(n);
    assert_non_null(touched);
    for (size_t i = 0; i < n; i += 4096)
        touched[i] = 1;
    assert_status(moec_memory_peak_bytes(&after, &err), MOEC_OK, err);
    assert_true(after >= before + 48 * MIB);
    free((void *)(uintptr_t)touched);
}

/* Code that is not touched yet counts, and nothing else does. */
static void test_memory_plan__base_is_peak_and_code(void **state)
{
    (void)state;
    uint64_t base = 0, again = 0, peak = 0;
    struct moec_error err = {0};
    assert_status(moec_memory_base_bytes(&base, &err), MOEC_OK, err);
    assert_status(moec_memory_peak_bytes(&peak, &err), MOEC_OK, err);
    assert_true(base + MIB / 4 >= peak);
    assert_true(base < peak + 64 * MIB);
    assert_status(moec_memory_base_bytes(&again, &err), MOEC_OK, err);
    assert_true(again + MIB >= base && again < base + MIB);
}

/* Everything that a bundle takes: dense weights, what a late embedding takes beside them, tables, records. */
static void test_memory_plan__asks_for_all_of_a_bundle(void **state)
{
    (void)state;
    struct sample_fixture f = {0};
    struct moec_memory_request request = {0};
    sample_make(&f.sample, 5, 12, 7, 3);
    sample_open(&f);
    f.bundle->late_bytes = 4321;
    for (uint32_t copy = 0; copy < f.bundle->n_copy; copy++) {
        const struct moec_expert_cache_options options = {.records.copy = copy};
        uint64_t all = 0, largest = 0;
        for (uint32_t i = 0; i < SAMPLE_MOE * 5; i++) {
            const uint64_t n = moec_record_slot_bytes(f.bundle, copy, i / 5, i % 5);
            all += n;
            largest = n > largest ? n : largest;
        }
        moec_memory_request_bundle(&request, f.bundle, copy, NULL);
        assert_int_equal(request.bundle.dense_bytes, moec_bundle_dense_bytes(f.bundle) + 4321);
        assert_int_equal(request.bundle.table_bytes, moec_expert_cache_table_bytes(f.bundle, &options));
        assert_int_equal(request.bundle.all_record_bytes, all);
        assert_int_equal(request.bundle.largest_record_bytes, largest);
        assert_true(request.bundle.token_record_bytes >= SAMPLE_MOE * f.bundle->config.top_k &&
                    request.bundle.token_record_bytes <= SAMPLE_MOE * f.bundle->config.top_k * largest);
        assert_ptr_equal(request.config, &f.bundle->config);
    }
    sample_close(&f);
}

/* Pages of code go, and come when they are run. */
static void test_memory_plan__code_is_given_back(void **state)
{
    (void)state;
    struct moec_memory_pages before, after;
    struct moec_error err = {0};
    struct moec_memory_request request = make_request(0);
    uint64_t status_bytes = 0;
    (void)floor_of(&request);
    assert_status(moec_memory_pages_now(&before, &err), MOEC_OK, err);
    assert_status(moec_memory_resident_bytes(&status_bytes, &err), MOEC_OK, err);
    assert_in_range(before.resident_bytes, status_bytes - MIB / 2, status_bytes + MIB / 2);
    assert_true(before.file_bytes > 0 && before.file_bytes < before.resident_bytes);
    moec_memory_give_back_code();
    assert_status(moec_memory_pages_now(&after, &err), MOEC_OK, err);
    assert_true(after.file_bytes <= before.file_bytes);
    (void)floor_of(&request);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_plan__every_budget_adds_up),
        cmocka_unit_test(test_memory_plan__logical_caches_have_their_room),
        cmocka_unit_test(test_memory_plan__below_the_floor_is_itemised),
        cmocka_unit_test(test_memory_plan__a_promised_context_fits_at_any_start),
        cmocka_unit_test(test_memory_plan__margins_are_small),
        cmocka_unit_test(test_memory_plan__whole_from_there_on),
        cmocka_unit_test(test_memory_plan__code_is_given_back),
        cmocka_unit_test(test_memory_plan__beams_have_keys_of_their_own),
        cmocka_unit_test(test_memory_plan__no_limit_holds_everything),
        cmocka_unit_test(test_memory_plan__warns_below_the_working_set),
        cmocka_unit_test(test_memory_plan__sessions_and_context_count),
        cmocka_unit_test(test_memory_plan__absurd_requests_are_refused),
        cmocka_unit_test(test_memory_plan__covers_the_model),
        cmocka_unit_test(test_memory_plan__asks_for_all_of_a_bundle),
        cmocka_unit_test(test_memory_plan__peak_is_measured),
        cmocka_unit_test(test_memory_plan__base_is_peak_and_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
