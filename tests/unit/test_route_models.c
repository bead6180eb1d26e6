/* Whole models that route and choose precisions by a logical cache: one result at every chunking, thread
 * count, instruction set, truncation, copy and batch. */
#include "tests/unit/fixture_model.h"
#include "tests/unit/kernel_sets.h"
#include "tests/unit/session_fork.h"

#include "profiler/evaluate/score.h"
#include "runtime/forward/moe/decide.h"

#include <math.h>

#define PRECISION(how, high, low)                                                                            \
    .n_low_slots = 4, .precision = {.kind = MOEC_PRECISION_##how, .high_score = high, .low_score = low}
/* A prompt's blocks of so many tokens have one copy of an expert. */
#define BLOCKS(tokens, high, low)                                                                            \
    .n_low_slots = 4, .precision = {.kind = MOEC_PRECISION_HOBBIT,                                           \
                                    .high_score = high,                                                      \
                                    .low_score = low,                                                        \
                                    .block_tokens = tokens,                                                  \
                                    .names_block = true}
#define FATE(experts) .n_low_slots = 4, .precision = {.kind = MOEC_PRECISION_FATE, .width = experts}
/* Of half of the experts, in blocks of so many tokens. */
#define UNPOPULAR(tokens)                                                                                    \
    .n_low_slots = 4, .prefill = {.kind = MOEC_PREFILL_UNPOPULAR, .share = 0.5f, .block_tokens = tokens}

static const struct moec_route routes[] = {
    {.kind = MOEC_ROUTE_TOP_K, .n_slots = 4},
    {.kind = MOEC_ROUTE_CACHE_PRIOR, .share = 0.4f, .n_slots = 4},
    {.kind = MOEC_ROUTE_CACHE_PRIOR, .share = 0.6f, .n_slots = 4, .keep_top = 1, .decode_only = true},
    {.kind = MOEC_ROUTE_MAX_RANK, .n_expert = 4, .n_slots = 4},
    {.kind = MOEC_ROUTE_CUMSUM, .share = 0.8f, .n_slots = 4},
    {.kind = MOEC_ROUTE_PRUNE, .n_expert = 1, .n_slots = 4},
    {.skip = 0.5f, .n_slots = 4},
    {.kind = MOEC_ROUTE_CACHE_PRIOR,
     .share = 0.2f,
     .skip = 0.6f,
     .n_slots = 4,
     .keep_top = 1,
     .decode_only = true},
    {.n_slots = 4, PRECISION(HOBBIT, 0, 1)},
    {.n_slots = 4, PRECISION(ALWAYS, 0, 0.7f), .decode_only = true},
    {.kind = MOEC_ROUTE_CACHE_PRIOR, .share = 0.2f, .n_slots = 4, PRECISION(HOBBIT, 0, 0.8f)},
    {.n_slots = 4, BLOCKS(4, 0, 1)},
    {.kind = MOEC_ROUTE_CACHE_PRIOR, .share = 0.2f, .n_slots = 4, BLOCKS(5, 0.2f, 0.7f)},
    {.n_slots = 4, FATE(2)},
    {.kind = MOEC_ROUTE_CACHE_PRIOR, .share = 0.2f, .n_slots = 4, FATE(3), .decode_only = true},
    {.n_slots = 4, UNPOPULAR(2)},
    {.kind = MOEC_ROUTE_CACHE_PRIOR, .share = 0.2f, .n_slots = 4, UNPOPULAR(3)},
};
#define N_ROUTE  (sizeof routes / sizeof *routes)
#define N_PROMPT 9

struct opened {
    struct fixture fixture;
    struct moec_decider decider;
    struct moec_forward forward;
    struct moec_session *session;
};

static struct opened open_model(const char *name, const struct moec_route *route,
                                const struct moec_kernels *kernels, int n_threads, uint32_t max_tokens)
{
    struct opened opened = {.fixture = fixture_open(name)};
    const struct moec_config *config = &opened.fixture.model->config;
    struct moec_error err = {0};
    assert_ok(moec_route_check(route, config, &err), err);
    assert_ok(moec_variants_serve_low(opened.fixture.variants, 2, &err), err);
    assert_ok(moec_forward_init(&opened.forward, opened.fixture.model, kernels, n_threads,
                                moec_variants_experts(opened.fixture.variants), max_tokens, &err),
              err);
    moec_forward_scratch(&opened.forward)->test_hook.shares_all_work = true;
    assert_ok(moec_decider_create(config, route, max_tokens, &opened.decider, &err), err);
    return opened;
}

/* Where the value will stay. */
static void start(struct opened *opened)
{
    struct moec_error err = {0};
    opened->forward.decider = &opened->decider;
    assert_ok(moec_session_create(&opened->forward, opened->fixture.n_tok + 4, &opened->session, &err), err);
    moec_session_set_prompt(opened->session, N_PROMPT);
}

static void close_model(struct opened *opened)
{
    moec_session_free(opened->session);
    moec_forward_release(&opened->forward);
    moec_decider_release(&opened->decider);
    fixture_close(&opened->fixture);
}

/* Logits of all positions, stepped `chunk` tokens at a time, with a detour: half-way some other tokens are
 * read and taken back. */
static float *run(const char *name, const struct moec_route *route, const struct moec_kernels *kernels,
                  int n_threads, uint32_t chunk, bool detour, struct moec_route_counts *counts)
{
    struct opened opened = open_model(name, route, kernels, n_threads, chunk);
    struct moec_error err = {0};
    const struct fixture *fixture = &opened.fixture;
    const size_t n_vocab = fixture->model->config.n_vocab;
    float *logits = calloc(fixture->n_tok * n_vocab, sizeof *logits);
    uint32_t *at = calloc(fixture->n_tok, sizeof *at);
    start(&opened);
    for (uint32_t i = 0; i < fixture->n_tok; i++)
        at[i] = i;
    for (uint32_t done = 0, n = 0; done < fixture->n_tok; done += n) {
        n = fixture->n_tok - done < chunk ? fixture->n_tok - done : chunk;
        if (detour && done >= fixture->n_tok / 2) {
            assert_ok(moec_session_step(opened.session, fixture->tokens, 4, NULL, 0, NULL, &err), err);
            moec_session_truncate(opened.session, done);
            detour = false;
        }
        assert_ok(moec_session_step(opened.session, fixture->tokens + done, n, at, n, logits + done * n_vocab,
                                    &err),
                  err);
    }
    *counts = moec_session_route_counts(opened.session);
    free(at);
    close_model(&opened);
    return logits;
}

static const char *const families[] = {"qwen2_moe", "olmoe", "dots1", "granitemoe", "lfm2_moe", "qwen3_next"};
#define N_FAMILY (sizeof families / sizeof *families)

static void test_route_models__one_result_however_it_is_run(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILY; f++) {
        const struct fixture fixture = fixture_open(families[f]);
        const size_t n = (size_t)fixture.n_tok * fixture.model->config.n_vocab;
        struct fixture closed = fixture;
        size_t n_differ = 0;
        fixture_close(&closed);
        for (size_t r = 0; r < N_ROUTE; r++) {
            struct moec_route_counts counts, others;
            float *expected =
                run(families[f], &routes[r], &moec_kernels_scalar, 1, fixture.n_tok, false, &counts);
            float *plain =
                run(families[f], &routes[0], &moec_kernels_scalar, 1, fixture.n_tok, false, &others);
            n_differ += memcmp(expected, plain, n * sizeof *plain) != 0;
            free(plain);
            assert_true(counts.n_taken > 0 && counts.n_missed > 0 && counts.n_missed <= counts.n_taken);
            for (uint32_t chunk = 1; chunk <= 20; chunk += chunk == 1 ? 4 : 15) {
                float *got = run(families[f], &routes[r],
                                 kernel_set(chunk % 3) != NULL ? kernel_set(chunk % 3) : &moec_kernels_scalar,
                                 1 + (int)chunk % 3, chunk, false, &others);
                assert_same_bits(got, expected, n, families[f]);
                assert_int_equal(others.n_missed, counts.n_missed);
                free(got);
                got = run(families[f], &routes[r], &moec_kernels_scalar, 2, chunk, true, &others);
                assert_same_bits(got, expected, n, families[f]);
                free(got);
            }
            free(expected);
        }
        assert_int_equal(n_differ, N_ROUTE - 1); /* each but the first decides something */
    }
}

/* Scores that take every expert high, or the first one alone, are the router's own choice and its pruned one.
 */
static void test_route_models__precisions_at_their_ends(void **state)
{
    (void)state;
    static const struct moec_route ends[][2] = {
        {{.n_slots = 4, PRECISION(ALWAYS, 1, 1)}, {.n_slots = 4}},
        {{.n_slots = 4, PRECISION(HOBBIT, 1, 1)}, {.n_slots = 4}},
        {{.n_slots = 4, PRECISION(ALWAYS, 0, 0)}, {.kind = MOEC_ROUTE_PRUNE, .n_expert = 1, .n_slots = 4}},
    };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct moec_route_counts counts[2];
        const struct fixture fixture = fixture_open("qwen2_moe");
        struct fixture closed = fixture;
        const size_t n = (size_t)fixture.n_tok * fixture.model->config.n_vocab;
        fixture_close(&closed);
        float *got = run("qwen2_moe", &ends[i][0], moec_kernels_best(), 2, 7, true, &counts[0]);
        float *plain = run("qwen2_moe", &ends[i][1], moec_kernels_best(), 2, 7, true, &counts[1]);
        assert_same_bits(got, plain, n, "one end");
        assert_int_equal(counts[0].n_missed, counts[1].n_missed);
        free(got);
        free(plain);
    }
    /* Of a token's three experts the first one is high. */
    struct moec_route_counts counts;
    const struct moec_route low = {.n_slots = 4, PRECISION(ALWAYS, 0, 1)};
    float *got = run("qwen2_moe", &low, moec_kernels_best(), 2, 7, false, &counts);
    assert_int_equal(counts.n_low * 3, counts.n_taken * 2);
    assert_true(counts.n_skipped == 0 && counts.n_low_missed > 0 && counts.n_low_missed < counts.n_missed);
    free(got);
}

/* Sequences in one batch have a cache each, forks take theirs along, and top-k is the router's own. */
static void test_route_models__sequences_do_not_share(void **state)
{
    (void)state;
    struct opened opened = open_model("qwen2_moe", &routes[1], moec_kernels_best(), 2, 16);
    struct moec_error err = {0};
    start(&opened);
    const uint32_t *tokens = opened.fixture.tokens;
    const size_t n_vocab = opened.fixture.model->config.n_vocab;
    struct moec_session *sessions[3] = {NULL};
    float *logits = calloc(3 * n_vocab, sizeof *logits), *one = calloc(n_vocab, sizeof *one);
    assert_ok(moec_session_step(opened.session, tokens, 20, NULL, 0, NULL, &err), err);
    for (uint32_t i = 0; i < 3; i++) {
        assert_ok(session_fork(opened.session, &sessions[i], &err), err);
        assert_ok(moec_session_step(sessions[i], tokens + 3 * i, 3 * i, NULL, 0, NULL, &err), err);
    }
    for (uint32_t step = 0; step < 5; step++) {
        const uint32_t next[3] = {tokens[step], tokens[step + 9], tokens[step + 20]};
        struct moec_session *alone[3];
        for (uint32_t i = 0; i < 3; i++)
            assert_ok(session_fork(sessions[i], &alone[i], &err), err);
        assert_ok(moec_session_step_each(sessions, next, 3, logits, &err), err);
        for (uint32_t i = 0; i < 3; i++) {
            const uint32_t at = 0;
            assert_ok(moec_session_step(alone[i], &next[i], 1, &at, 1, one, &err), err);
            assert_same_bits(logits + i * n_vocab, one, n_vocab, "one of a batch");
            moec_session_free(alone[i]);
        }
    }
    for (uint32_t i = 0; i < 3; i++)
        moec_session_free(sessions[i]);
    free(one);
    free(logits);
    close_model(&opened);

    struct moec_route_counts counts;
    opened = open_model("olmoe", &routes[0], &moec_kernels_scalar, 1, 4);
    float *counted = run("olmoe", &routes[0], moec_kernels_best(), 1, 16, false, &counts);
    float *plain = fixture_run(&opened.fixture, moec_kernels_best(), 1, 16, opened.fixture.tokens,
                               opened.fixture.n_tok, opened.fixture.n_tok);
    assert_same_bits(counted, plain, opened.fixture.n_tok * opened.fixture.model->config.n_vocab, "top-k");
    free(counted);
    free(plain);
    close_model(&opened);
}

/* A prompt's precision ends with the prompt, and counts of all of it need it in one chunk. */
static void check_whole_prompts(enum moec_prefill_kind kind)
{
    const struct moec_route whole = {
        .n_slots = 4,
        .n_low_slots = 4,
        .prefill = {.kind = (uint8_t)kind, .share = 0.5f, .block_tokens = UINT32_MAX}};
    struct opened opened = open_model("qwen2_moe", &whole, moec_kernels_best(), 2, N_PROMPT);
    struct moec_error err = {0};
    const uint32_t *tokens = opened.fixture.tokens;
    start(&opened);
    assert_status(moec_session_step(opened.session, tokens, N_PROMPT - 1, NULL, 0, NULL, &err),
                  MOEC_ERR_USAGE, err);
    assert_message(err, "needs the whole prompt of 9 tokens in one call");
    err = (struct moec_error){0};
    assert_ok(moec_session_step(opened.session, tokens, N_PROMPT, NULL, 0, NULL, &err), err);
    const struct moec_route_counts prompt = moec_session_route_counts(opened.session);
    assert_true(prompt.n_low > 0 && prompt.n_low < prompt.n_taken);
    assert_ok(moec_session_step(opened.session, tokens, 5, NULL, 0, NULL, &err), err);
    assert_int_equal(moec_session_route_counts(opened.session).n_low, prompt.n_low);
    moec_session_truncate(opened.session, N_PROMPT + 2);
    assert_ok(moec_session_step(opened.session, tokens, 5, NULL, 0, NULL, &err), err);
    moec_session_truncate(opened.session, 2);
    assert_status(moec_session_step(opened.session, tokens, N_PROMPT, NULL, 0, NULL, &err), MOEC_ERR_USAGE,
                  err);
    close_model(&opened);
    opened = open_model("qwen2_moe", &whole, moec_kernels_best(), 2, N_PROMPT - 1);
    start(&opened);
    err = (struct moec_error){0};
    assert_status(moec_session_step(opened.session, tokens, N_PROMPT, NULL, 0, NULL, &err), MOEC_ERR_USAGE,
                  err);
    close_model(&opened);
}

static void test_route_models__whole_prompts(void **state)
{
    (void)state;
    check_whole_prompts(MOEC_PREFILL_WHOLE);
    check_whole_prompts(MOEC_PREFILL_POPULAR);
}

static double nll_of(const float *logits, size_t n_vocab, uint32_t target)
{
    double sum = 0;
    for (size_t i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - (double)logits[target]);
    return log(sum);
}

/* Windows of an evaluation, all in one batch, are sequences of their own that begin with an empty cache. */
static void test_route_models__evaluations_agree_with_sessions(void **state)
{
    (void)state;
    enum { LENGTH = 16, N_WINDOW = 3 };
    for (size_t r = 0; r < N_ROUTE; r++) {
        struct opened opened = open_model("qwen2_moe", &routes[r], moec_kernels_best(), 2, LENGTH);
        const size_t n_vocab = opened.fixture.model->config.n_vocab;
        uint32_t length[N_WINDOW] = {LENGTH, LENGTH, LENGTH},
                 scored[N_WINDOW] = {LENGTH - 1, LENGTH - 1, LENGTH - 1};
        const struct moec_windows windows = {.n_window = N_WINDOW,
                                             .seq_len_tokens = LENGTH,
                                             .tokens = opened.fixture.tokens,
                                             .length = length,
                                             .scored = scored};
        const struct moec_scorer_options options = {.by = {.kernels = moec_kernels_best(), .n_threads = 2},
                                                    .decisions = {.route = &routes[0], .n_prompt = N_PROMPT}};
        struct moec_scorer *scorer = NULL;
        struct moec_error err = {0};
        double nll[N_WINDOW];
        const struct moec_measure measure = {.nll = nll};
        uint32_t at[LENGTH];
        float *logits = calloc(LENGTH * n_vocab, sizeof *logits);
        uint64_t n_missed = 0;
        start(&opened);
        assert_ok(moec_scorer_create(opened.fixture.model, moec_variants_experts(opened.fixture.variants),
                                     &windows, &options, &scorer, &err),
                  err);
        assert_ok(moec_scorer_run(scorer, &measure, NULL, &err), err);
        /* A scorer takes one route after the other, and keeps nothing of the one before. */
        assert_ok(moec_scorer_set_route(scorer, NULL, &err), err);
        assert_int_equal(moec_scorer_route_counts(scorer).n_taken, 0);
        assert_ok(moec_scorer_set_route(scorer, &routes[r], &err), err);
        assert_ok(moec_scorer_run(scorer, &measure, NULL, &err), err);
        for (uint32_t i = 0; i < LENGTH; i++)
            at[i] = i;
        for (uint32_t w = 0; w < N_WINDOW; w++) {
            const uint32_t *tokens = opened.fixture.tokens + w * LENGTH;
            double sum = 0;
            moec_session_truncate(opened.session, 0);
            assert_ok(moec_session_step(opened.session, tokens, LENGTH - 1, at, LENGTH - 1, logits, &err),
                      err);
            for (uint32_t i = 0; i + 1 < LENGTH; i++)
                sum += nll_of(logits + i * n_vocab, n_vocab, tokens[i + 1]);
            assert_true(fabs(sum - nll[w]) < 1e-4);
        }
        n_missed = moec_session_route_counts(opened.session).n_missed;
        assert_int_equal(moec_scorer_route_counts(scorer).n_missed, n_missed);
        moec_scorer_free(scorer);
        free(logits);
        close_model(&opened);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_route_models__one_result_however_it_is_run),
        cmocka_unit_test(test_route_models__precisions_at_their_ends),
        cmocka_unit_test(test_route_models__sequences_do_not_share),
        cmocka_unit_test(test_route_models__whole_prompts),
        cmocka_unit_test(test_route_models__evaluations_agree_with_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
