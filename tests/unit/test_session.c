/* Sessions: steps, truncation, forks, limits. That results do not depend on chunking is in test_forward.c. */
#include "tests/unit/fixture_model.h"
#include "tests/unit/session_fork.h"

#include "formats/base/mapped_memory.h"
#include "runtime/forward/attention/kv_lender.h"
#include "runtime/forward/attention/kv_state.h"

#include <sys/mman.h>

struct opened {
    struct fixture fixture;
    struct moec_forward forward;
    struct moec_session *session;
    size_t n_vocab;
    float *expected; /* logits of every position */
};

static struct opened open_session(const char *name, uint32_t max_tokens)
{
    struct opened opened = {.fixture = fixture_open(name)};
    struct moec_error err = {0};
    const struct fixture *fixture = &opened.fixture;
    opened.n_vocab = fixture->model->config.n_vocab;
    opened.expected = fixture_run(fixture, moec_kernels_best(), 1, fixture->n_tok, fixture->tokens,
                                  fixture->n_tok, fixture->n_tok);
    assert_ok(moec_forward_init(&opened.forward, fixture->model, moec_kernels_best(), 1,
                                moec_variants_experts(fixture->variants), max_tokens, &err),
              err);
    return opened;
}

static void start(struct opened *opened, uint32_t n_context)
{
    struct moec_error err = {0};
    assert_ok(moec_session_create(&opened->forward, n_context, &opened->session, &err), err);
}

static void close_session(struct opened *opened)
{
    moec_session_free(opened->session);
    moec_forward_release(&opened->forward);
    free(opened->expected);
    fixture_close(&opened->fixture);
}

/* Reads tokens from..to-1 and checks the logits of the last against the reference run. */
static void read_and_check(const struct opened *opened, struct moec_session *session, uint32_t from,
                           uint32_t to)
{
    struct moec_error err = {0};
    uint32_t at = to - from - 1;
    float *logits = calloc(opened->n_vocab, sizeof *logits);
    assert_int_equal(moec_session_length(session), from);
    assert_ok(moec_session_step(session, opened->fixture.tokens + from, to - from, &at, 1, logits, &err),
              err);
    assert_int_equal(moec_session_length(session), to);
    assert_same_bits(logits, opened->expected + (to - 1) * opened->n_vocab, opened->n_vocab, "last position");
    free(logits);
}

static void test_session__gives_logits_at_chosen_positions(void **state)
{
    (void)state;
    static const uint32_t at[] = {0, 3, 4, 5, 15, 16, 17, 33, 47};
    const uint32_t n_at = sizeof at / sizeof *at;
    struct opened opened = open_session("qwen2_moe", 16);
    struct moec_error err = {0};
    start(&opened, 48);
    float *logits = calloc(n_at * opened.n_vocab, sizeof *logits);
    assert_ok(moec_session_step(opened.session, opened.fixture.tokens, 48, at, n_at, logits, &err), err);
    for (uint32_t i = 0; i < n_at; i++)
        assert_same_bits(logits + i * opened.n_vocab, opened.expected + at[i] * opened.n_vocab,
                         opened.n_vocab, "chosen position");
    free(logits);
    close_session(&opened);
}

static void test_session__refuses_offsets_out_of_order(void **state)
{
    (void)state;
    static const uint32_t wrong[][2] = {{3, 3}, {4, 2}, {1, 8}};
    struct opened opened = open_session("mixtral", 8);
    start(&opened, 48);
    float *logits = calloc(2 * opened.n_vocab, sizeof *logits);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct moec_error err = {0};
        assert_int_equal(
            moec_session_step(opened.session, opened.fixture.tokens, 8, wrong[i], 2, logits, &err),
            MOEC_ERR_USAGE);
        assert_int_equal(moec_session_length(opened.session), 0);
    }
    free(logits);
    close_session(&opened);
}

static void test_session__a_full_context_changes_nothing(void **state)
{
    (void)state;
    struct opened opened = open_session("olmoe", 8);
    struct moec_error err = {0};
    start(&opened, 20);
    read_and_check(&opened, opened.session, 0, 18);
    assert_int_equal(moec_session_step(opened.session, opened.fixture.tokens, 3, NULL, 0, NULL, &err),
                     MOEC_ERR_LIMIT);
    assert_non_null(strstr(err.message, "20"));
    assert_int_equal(moec_session_length(opened.session), 18);
    assert_int_equal(moec_session_context(opened.session), 20);
    read_and_check(&opened, opened.session, 18, 20);
    close_session(&opened);
}

static void test_session__forgets_what_is_truncated(void **state)
{
    (void)state;
    struct opened opened = open_session("mixtral-window", 16);
    struct moec_error err = {0};
    start(&opened, 48);
    read_and_check(&opened, opened.session, 0, 30);
    moec_session_truncate(opened.session, 12);
    assert_ok(moec_session_step(opened.session, opened.fixture.tokens, 20, NULL, 0, NULL, &err), err);
    moec_session_truncate(opened.session, 12);
    read_and_check(&opened, opened.session, 12, 48);
    moec_session_truncate(opened.session, 0);
    read_and_check(&opened, opened.session, 0, 7);
    close_session(&opened);
}

static void test_session__forks_go_their_own_ways(void **state)
{
    (void)state;
    struct opened opened = open_session("qwen2_moe-tied", 16);
    struct moec_error err = {0};
    struct moec_session *fork = NULL;
    start(&opened, 48);
    read_and_check(&opened, opened.session, 0, 21);
    assert_ok(session_fork(opened.session, &fork, &err), err);
    assert_ok(moec_session_step(opened.session, opened.fixture.tokens, 20, NULL, 0, NULL, &err), err);
    read_and_check(&opened, fork, 21, 48);
    assert_int_equal(moec_session_length(opened.session), 41);
    moec_session_free(fork);
    close_session(&opened);
}

static void test_session__a_foreign_token_leaves_the_state(void **state)
{
    (void)state;
    struct opened opened = open_session("olmoe-b", 4);
    struct moec_error err = {0};
    uint32_t tokens[10];
    start(&opened, 48);
    read_and_check(&opened, opened.session, 0, 9);
    memcpy(tokens, opened.fixture.tokens, sizeof tokens);
    tokens[9] = 1u << 30;
    assert_int_equal(moec_session_step(opened.session, tokens, 10, NULL, 0, NULL, &err), MOEC_ERR_LIMIT);
    assert_int_equal(moec_session_length(opened.session), 9);
    read_and_check(&opened, opened.session, 9, 48);
    close_session(&opened);
}

static void test_session__counts_its_bytes(void **state)
{
    (void)state;
    struct opened opened = open_session("mixtral", 4);
    const struct moec_config *config = &opened.fixture.model->config;
    struct moec_error err = {0};
    uint64_t per_position =
        2ull * config->n_layer * moec_layer_kv_dim(moec_config_layer(config, 0)) * sizeof(float);
    uint64_t per_token = moec_forward_stride(config) * sizeof(float);
    uint64_t base = moec_session_bytes(config, 10, 1);
    assert_int_equal(moec_session_bytes(config, 11, 1) - base, per_position);
    assert_int_equal(moec_session_bytes(config, 10, 3) - base, 2 * per_token);
    assert_int_equal(moec_session_create(&opened.forward, 0, &opened.session, &err), MOEC_ERR_LIMIT);
    start(&opened, 48);
    close_session(&opened);
}

/* ---- memory that is taken as rows fill ---- */

static uint64_t resident_bytes(const struct moec_kv_state *state)
{
    uint64_t n_bytes = 0;
    const uint64_t n_pages = (state->n_bytes + MOEC_PAGE_BYTES - 1) / MOEC_PAGE_BYTES;
    unsigned char *resident = malloc(n_pages);
    assert_non_null(resident);
    assert_int_equal(mincore(state->floats, state->n_bytes, resident), 0);
    for (uint64_t i = 0; i < n_pages; i++)
        n_bytes += (resident[i] & 1u) * MOEC_PAGE_BYTES;
    free(resident);
    return n_bytes;
}

static void test_session__rows_take_memory_as_they_fill(void **state)
{
    (void)state;
    struct opened opened = open_session("mixtral", 4);
    const struct moec_config *config = &opened.fixture.model->config;
    struct moec_error err = {0};
    struct moec_kv_state kv;
    const uint64_t n_rows = 3000;
    assert_ok(moec_kv_state_create(config,
                                   (struct moec_kv_layers){0, config->n_layer, MOEC_KV_EACH_LAYER, n_rows},
                                   "a test", &kv, &err),
              err);
    assert_int_equal(resident_bytes(&kv), 0);
    for (uint64_t row = 0; row < n_rows; row++) {
        for (uint32_t layer = 0; layer < config->n_layer; layer++) {
            const struct moec_kv_rows rows = moec_kv_state_rows(&kv, layer, row);
            memset(rows.keys, 1, rows.stride * sizeof(float));
            memset(rows.values, 2, rows.stride * sizeof(float));
        }
        if (row % 100 == 0)
            assert_in_range(
                moec_kv_state_filled_bytes(config, 0, config->n_layer, MOEC_KV_EACH_LAYER, n_rows, row + 1),
                row * kv.n_bytes / n_rows, kv.n_bytes);
        if (row % 100 == 0)
            assert_true(resident_bytes(&kv) <= moec_kv_state_filled_bytes(config, 0, config->n_layer,
                                                                          MOEC_KV_EACH_LAYER, n_rows,
                                                                          row + 1) +
                                                   MOEC_PAGE_BYTES);
    }
    moec_kv_state_release(&kv);
    close_session(&opened);
}

static void fill_rows(const struct moec_kv_state *kv, uint64_t begin, uint64_t end)
{
    for (uint32_t layer = 0; layer < kv->layers.n_layer; layer++) {
        const struct moec_kv_rows rows = moec_kv_state_rows(kv, layer, begin);
        memset(rows.keys, 1, (end - begin) * rows.stride * sizeof(float));
        memset(rows.values, 2, (end - begin) * rows.stride * sizeof(float));
    }
}

/* Memory of a state with room for n_rows is no more than what n_filled fill, and n_huge huge pages for each
 * layer's keys, and values. */
static void check_huge_pages(const struct moec_config *config, uint64_t n_rows, uint64_t n_filled,
                             uint64_t n_huge)
{
    struct moec_error err = {0};
    struct moec_kv_state kv;
    const uint64_t row_bytes =
        moec_kv_state_row_bytes(config, 0, config->n_layer, MOEC_KV_EACH_LAYER) / (2 * config->n_layer);
    assert_ok(moec_kv_state_create(config,
                                   (struct moec_kv_layers){0, config->n_layer, MOEC_KV_EACH_LAYER, n_rows},
                                   "a test", &kv, &err),
              err);
    moec_kv_state_take_huge_pages(&kv);
    fill_rows(&kv, 0, n_filled);
    const uint64_t most =
        moec_kv_state_filled_bytes(config, 0, config->n_layer, MOEC_KV_EACH_LAYER, n_rows, n_filled) +
        2 * config->n_layer * n_huge * MOEC_HUGE_PAGE_BYTES;
    assert_true(resident_bytes(&kv) <= (most < kv.n_bytes ? most : kv.n_bytes) + MOEC_PAGE_BYTES);
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const struct moec_kv_rows first = moec_kv_state_rows(&kv, layer, 0);
        const struct moec_kv_rows last = moec_kv_state_rows(&kv, layer, n_filled - 1);
        assert_int_equal(*(const unsigned char *)first.keys, 1);
        assert_int_equal(((const unsigned char *)last.keys)[row_bytes - 1], 1);
        assert_int_equal(((const unsigned char *)last.values)[row_bytes - 1], 2);
    }
    moec_kv_state_release(&kv);
}

static void test_session__rows_in_huge_pages_take_little_more(void **state)
{
    (void)state;
    struct opened opened = open_session("mixtral", 4);
    const struct moec_config *config = &opened.fixture.model->config;
    const uint64_t row_bytes =
        moec_kv_state_row_bytes(config, 0, config->n_layer, MOEC_KV_EACH_LAYER) / (2 * config->n_layer);
    const uint64_t few = MOEC_HUGE_PAGE_BYTES / row_bytes;
    check_huge_pages(config, 2 * few - 1, 1, 0); /* too few for any */
    check_huge_pages(config, 5 * few + 7, 1, 2);
    check_huge_pages(config, 5 * few + 7, 3 * few, 2);
    check_huge_pages(config, 5 * few + 7, 5 * few + 7, 0);
    close_session(&opened);
}

struct account {
    uint64_t taken_bytes;
    uint32_t n_takes;
};

static void count_take(void *context, uint64_t n_bytes)
{
    struct account *account = context;
    account->taken_bytes += n_bytes;
    account->n_takes++;
}

static void count_give(void *context, uint64_t n_bytes)
{
    struct account *account = context;
    assert_true(n_bytes <= account->taken_bytes);
    account->taken_bytes -= n_bytes;
}

/* Sequences take their memory before they fill it, in a few steps, at most what they were planned with, and
 * give all of it back. */
static void test_session__takes_what_is_lent(void **state)
{
    (void)state;
    struct opened opened = open_session("mixtral", 16);
    const struct moec_config *config = &opened.fixture.model->config;
    struct moec_error err = {0};
    struct account account = {0};
    const struct moec_kv_lender lender = {.take = count_take, .give = count_give, .context = &account};
    struct moec_session *fork = NULL, *beside = NULL;
    const uint32_t n_context = 3000;
    const uint64_t all = moec_session_filled_bytes(config, n_context, n_context, false);
    float *logits = calloc(2 * opened.n_vocab, sizeof *logits);
    opened.forward.lender = &lender;
    start(&opened, n_context);
    assert_int_equal(account.taken_bytes, 0);
    read_and_check(&opened, opened.session, 0, 20);
    assert_int_equal(account.taken_bytes, moec_session_filled_bytes(config, n_context, 20, false));
    assert_true(account.taken_bytes < all / 8);
    for (uint32_t n = 20; n + 48 <= n_context; n += 48) {
        assert_ok(moec_session_step(opened.session, opened.fixture.tokens, 48, NULL, 0, NULL, &err), err);
        assert_int_equal(account.taken_bytes, moec_session_filled_bytes(config, n_context, n + 48, false));
    }
    assert_true(account.n_takes <= 17);
    assert_int_equal(account.taken_bytes, all);
    assert_ok(session_fork(opened.session, &fork, &err), err);
    assert_int_equal(account.taken_bytes, 2 * all);
    moec_session_truncate(opened.session, 0);
    assert_ok(moec_session_beside(opened.session, &beside, &err), err);
    struct moec_session *const both[] = {opened.session, beside};
    assert_ok(moec_session_step_each(both, opened.fixture.tokens, 2, logits, &err), err);
    assert_int_equal(account.taken_bytes, 2 * all + moec_session_filled_bytes(config, n_context, 1, true));
    moec_session_free(beside);
    moec_session_free(fork);
    assert_int_equal(account.taken_bytes, all);
    free(logits);
    close_session(&opened);
    assert_int_equal(account.taken_bytes, 0);
}

/* ---- a source and its target ---- */

static void start_pair(struct opened *opened, uint32_t n_context, bool counts)
{
    struct moec_error err = {0};
    start(opened, n_context);
    moec_session_count_capacity(opened->session, counts);
    assert_ok(moec_session_encode(opened->session, opened->fixture.source, opened->fixture.n_source, &err),
              err);
    assert_int_equal(moec_session_length(opened->session), 0);
}

static void test_session__a_target_needs_its_source(void **state)
{
    (void)state;
    struct opened opened = open_session("switch", 16);
    struct moec_error err = {0};
    const uint32_t *source = opened.fixture.source;
    start(&opened, 53);
    assert_int_equal(moec_session_step(opened.session, opened.fixture.tokens, 1, NULL, 0, NULL, &err),
                     MOEC_ERR_USAGE);
    err = (struct moec_error){0};
    assert_int_equal(moec_session_encode(opened.session, source, 0, &err), MOEC_ERR_USAGE);
    err = (struct moec_error){0};
    assert_int_equal(moec_session_encode(opened.session, source, 54, &err), MOEC_ERR_LIMIT);
    assert_non_null(strstr(err.message, "53"));
    err = (struct moec_error){0};
    const uint32_t foreign[] = {1, 2, 1u << 30};
    assert_int_equal(moec_session_encode(opened.session, foreign, 3, &err), MOEC_ERR_LIMIT);
    err = (struct moec_error){0};
    assert_int_equal(moec_session_step(opened.session, opened.fixture.tokens, 1, NULL, 0, NULL, &err),
                     MOEC_ERR_USAGE); /* there still is none */
    close_session(&opened);
    opened = open_session("mixtral", 16);
    err = (struct moec_error){0};
    start(&opened, 48);
    assert_int_equal(moec_session_encode(opened.session, opened.fixture.tokens, 3, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "mixtral"));
    close_session(&opened);
}

/* Counts go back with what is truncated, and start anew with each source. */
static void test_session__full_experts_are_counted_over_the_target(void **state)
{
    (void)state;
    struct opened opened = open_session("switch-full", 16);
    struct moec_error err = {0};
    start_pair(&opened, 60, true);
    read_and_check(&opened, opened.session, 0, 30);
    moec_session_truncate(opened.session, 12);
    assert_ok(moec_session_step(opened.session, opened.fixture.tokens, 25, NULL, 0, NULL, &err), err);
    moec_session_truncate(opened.session, 12);
    read_and_check(&opened, opened.session, 12, 48);
    assert_ok(moec_session_encode(opened.session, opened.fixture.tokens, 40, &err), err);
    assert_int_equal(moec_session_length(opened.session), 0);
    assert_ok(moec_session_encode(opened.session, opened.fixture.source, opened.fixture.n_source, &err), err);
    read_and_check(&opened, opened.session, 0, 48);
    /* What fails leaves the counts where they were. */
    moec_session_truncate(opened.session, 20);
    uint32_t tokens[28];
    memcpy(tokens, opened.fixture.tokens + 20, sizeof tokens);
    tokens[27] = 1u << 30;
    assert_int_equal(moec_session_step(opened.session, tokens, 28, NULL, 0, NULL, &err), MOEC_ERR_LIMIT);
    read_and_check(&opened, opened.session, 20, 48);
    close_session(&opened);
}

/* Without counting no target token is passed by: the logits after the first eight, when experts can be full,
 * differ. */
static void test_session__generation_finds_no_expert_full(void **state)
{
    (void)state;
    struct opened opened = open_session("switch-full", 48);
    struct moec_error err = {0};
    const size_t n_vocab = opened.n_vocab;
    const uint32_t at[] = {6, 47};
    float *whole = calloc(2 * n_vocab, sizeof *whole), *single = calloc(n_vocab, sizeof *single);
    start_pair(&opened, 60, false);
    assert_ok(moec_session_step(opened.session, opened.fixture.tokens, 48, at, 2, whole, &err), err);
    assert_same_bits(whole, opened.expected + 6 * n_vocab, n_vocab, "before any expert is full");
    assert_memory_not_equal(whole + n_vocab, opened.expected + 47 * n_vocab, n_vocab * sizeof *whole);
    moec_session_truncate(opened.session, 0);
    for (uint32_t i = 0; i < 48; i++) {
        uint32_t first = 0;
        assert_ok(moec_session_step(opened.session, opened.fixture.tokens + i, 1, &first, 1, single, &err),
                  err);
    }
    assert_same_bits(single, whole + n_vocab, n_vocab, "step by step");
    free(whole);
    free(single);
    close_session(&opened);
}

static void test_session__copies_share_a_source(void **state)
{
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        struct opened opened = open_session(f == 0 ? "switch-full" : "switch-gated", 16);
        struct moec_error err = {0};
        struct moec_session *fork = NULL;
        start_pair(&opened, 60, true);
        read_and_check(&opened, opened.session, 0, 9);
        assert_ok(session_fork(opened.session, &fork, &err), err);
        assert_ok(moec_session_step(opened.session, opened.fixture.tokens, 20, NULL, 0, NULL, &err), err);
        read_and_check(&opened, fork, 9, 30);
        moec_session_copy(opened.session, fork);
        read_and_check(&opened, opened.session, 30, 48);
        /* another source, then the first one again by copying */
        assert_ok(moec_session_encode(opened.session, opened.fixture.tokens, 33, &err), err);
        moec_session_copy(opened.session, fork);
        read_and_check(&opened, opened.session, 30, 48);
        moec_session_free(fork);
        close_session(&opened);
    }
}

static void test_session__counts_the_bytes_of_a_source(void **state)
{
    (void)state;
    struct opened opened = open_session("switch-full", 4);
    const struct moec_config *config = &opened.fixture.model->config;
    const uint64_t n_decoder = config->n_layer - config->n_encoder_layer;
    const uint64_t kv =
        2ull * (2 * n_decoder + 1) * moec_layer_kv_dim(moec_config_layer(config, 0)) * sizeof(float);
    const uint64_t hidden = moec_forward_stride(config) * sizeof(float),
                   choices = n_decoder * sizeof(uint32_t);
    assert_int_equal(moec_session_bytes(config, 11, 1) - moec_session_bytes(config, 10, 1),
                     kv + hidden + choices);
    start(&opened, 48);
    close_session(&opened);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session__gives_logits_at_chosen_positions),
        cmocka_unit_test(test_session__refuses_offsets_out_of_order),
        cmocka_unit_test(test_session__a_full_context_changes_nothing),
        cmocka_unit_test(test_session__forgets_what_is_truncated),
        cmocka_unit_test(test_session__forks_go_their_own_ways),
        cmocka_unit_test(test_session__a_foreign_token_leaves_the_state),
        cmocka_unit_test(test_session__counts_its_bytes),
        cmocka_unit_test(test_session__rows_take_memory_as_they_fill),
        cmocka_unit_test(test_session__rows_in_huge_pages_take_little_more),
        cmocka_unit_test(test_session__takes_what_is_lent),
        cmocka_unit_test(test_session__a_target_needs_its_source),
        cmocka_unit_test(test_session__full_experts_are_counted_over_the_target),
        cmocka_unit_test(test_session__generation_finds_no_expert_full),
        cmocka_unit_test(test_session__copies_share_a_source),
        cmocka_unit_test(test_session__counts_the_bytes_of_a_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
