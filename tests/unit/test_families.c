/* Every family that transformers 5 has, and those that only remote code has, on the tiny checkpoints that
 * tests/fixtures/make_recent_families.py makes: logits in prefill and in decoding, the same bits however the
 * work is cut, greedy text, and the way through a bundle and an exported folder. */
#include "tests/unit/dense_load.h"
#include "tests/unit/fixture_bundle.h"
#include "tests/unit/fixture_model.h"
#include "tests/unit/kernel_sets.h"
#include "tests/unit/session_fork.h"

#include "formats/checkpoint/checkpoint_write.h"
#include "runtime/forward/attention/kv_state.h"
#include "runtime/forward/weights/rope.h"

#include <math.h>

#define FOLDER      "tests/fixtures/families/"
#define N_PROMPT    8
#define LONG_TOKENS 90

static const char *const families[] = {
    "qwen2_moe-window",
    "qwen3_moe",
    "qwen3_moe-yarn",
    "deepseek",
    "dots1",
    "glm4_moe",
    "ernie4_5_moe",
    "hunyuan_v1_moe",
    "minimax_m2",
    "granitemoe",
    "granitemoeshared",
    "minicpm",
    "flex_olmo",
    "exaone_moe",
    "afmoe",
    "lfm2_moe",
    "qwen3_next",
    "qwen3_5_moe",
    "gpt_oss",
    "gpt_oss-mxfp4",
    "gemma4",
    "granitemoehybrid",
    "nemotron_h",
    "kimi_linear",
    "longcat_flash",
    "granitemoehybrid-nope",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe_lite",
    "mistral4",
    "phimoe",
    "phimoe-long",
    "hash_moe",
    "qwen3_moe-longrope",
    "qwen3_moe-dynamic",
    "gptsan",
    "llama4",
};
#define N_FAMILIES (sizeof families / sizeof *families)

/* Those with running states. In float32 their prefill and decoding in transformers differ, the more the
 * longer a text is; tests/fixtures/make_exact.py has both in float64, where they do not. */
static const char *const running[] = {"qwen3_next", "qwen3_5_moe", "granitemoehybrid",
                                      "lfm2_moe",   "nemotron_h",  "kimi_linear"};

/* The largest difference at any position, as a part of the spread of theirs there. */
static float worst_difference(const float *all_theirs, const float *all_ours, uint32_t n_tok, size_t n_vocab)
{
    float worst = 0;
    for (uint32_t t = 0; t < n_tok; t++) {
        const float *theirs = all_theirs + t * n_vocab, *ours = all_ours + t * n_vocab;
        float low = theirs[0], high = theirs[0], differs = 0;
        for (size_t v = 0; v < n_vocab; v++) {
            low = fminf(low, theirs[v]);
            high = fmaxf(high, theirs[v]);
            assert_true(isfinite(ours[v]));
            differs = fmaxf(differs, fabsf(ours[v] - theirs[v]));
        }
        worst = fmaxf(worst, differs / (high - low));
    }
    return worst;
}

static void test_families__agree_with_their_reference(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        struct fixture fixture = fixture_open(families[f]);
        const uint32_t n = fixture.n_tok;
        float *prefill = fixture_run(&fixture, moec_kernels_best(), 2, n, fixture.tokens, n, n);
        float *steps = fixture_run(&fixture, moec_kernels_best(), 2, 1, fixture.tokens, n, 1);
        const float worst = worst_difference(fixture.logits, prefill, n, fixture.model->config.n_vocab);
        print_message("%s: logits differ by %.1e of their spread\n", families[f], (double)worst);
        assert_true(worst <= 1e-4f);
        assert_same_bits(steps, prefill, (size_t)n * fixture.model->config.n_vocab, families[f]);
        free(steps);
        free(prefill);
        fixture_close(&fixture);
    }
}

static void test_families__running_states_agree_with_float64(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof running / sizeof *running; f++) {
        struct fixture fixture = fixture_open(running[f]);
        const size_t n_vocab = fixture.model->config.n_vocab;
        size_t n_bytes = 0;
        uint32_t *tokens = fixture_load(running[f], "exact_tokens.u32", &n_bytes);
        const uint32_t n = (uint32_t)(n_bytes / sizeof *tokens);
        float *exact = fixture_load(running[f], "exact.f32", &n_bytes);
        assert_int_equal(n, 200);
        assert_int_equal(n_bytes, n * n_vocab * sizeof *exact);
        float *prefill = fixture_run(&fixture, moec_kernels_best(), 2, n, tokens, n, n);
        float *steps = fixture_run(&fixture, moec_kernels_best(), 2, 1, tokens, n, 1);
        const float worst = worst_difference(exact, prefill, n, n_vocab);
        print_message("%s: logits of %u tokens differ by %.1e of their spread from float64's\n", running[f],
                      n, (double)worst);
        assert_true(worst <= 1e-4f);
        assert_same_bits(steps, prefill, n * n_vocab, running[f]);
        free(steps);
        free(prefill);
        free(exact);
        free(tokens);
        fixture_close(&fixture);
    }
}

/* One token in a step: in a pass that has room for no more, where attention takes a head at a time, and in
 * one with room, where it takes several. */
static void check_steps(const struct fixture *fixture, const uint32_t *tokens, const float *expected,
                        const char *family)
{
    static const struct {
        uint32_t max_tokens;
        int n_threads;
    } cases[] = {{1, 2}, {LONG_TOKENS, 1}, {LONG_TOKENS, 2}, {LONG_TOKENS, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float *steps = fixture_run(fixture, moec_kernels_best(), cases[i].n_threads, cases[i].max_tokens,
                                   tokens, LONG_TOKENS, 1);
        assert_same_bits(steps, expected, LONG_TOKENS * (size_t)fixture->model->config.n_vocab, family);
        free(steps);
    }
}

static void keep_kv(struct fixture *fixture, const char *name)
{
    struct moec_error err = {0};
    struct moec_codec kv;
    assert_ok(moec_kv_read(name, &kv, &err), err);
    assert_ok(moec_config_choose_kv(&fixture->model->config, kv, &err), err);
}

/* In other chunks, on other threads and on every instruction set, however keys and values are kept. */
static void test_families__same_bits_however_they_are_cut(void **state)
{
    (void)state;
    static const char *const kv_names[] = {"f32", "f16", "int8"};
    for (size_t f = 0; f < 3 * N_FAMILIES; f++) {
        const char *family = families[f / 3];
        struct fixture fixture = fixture_open(family);
        const size_t n = LONG_TOKENS * (size_t)fixture.model->config.n_vocab;
        uint32_t *tokens = fixture_long_tokens(&fixture, LONG_TOKENS);
        keep_kv(&fixture, kv_names[f % 3]);
        float *expected =
            fixture_run(&fixture, &moec_kernels_scalar, 1, LONG_TOKENS, tokens, LONG_TOKENS, LONG_TOKENS);
        for (size_t s = 0; s < n_kernel_sets(); s++) {
            float *chunks = fixture_run(&fixture, kernel_set(s), 3, LONG_TOKENS, tokens, LONG_TOKENS, 7);
            assert_same_bits(chunks, expected, n, kernel_set(s)->name);
            free(chunks);
        }
        check_steps(&fixture, tokens, expected, family);
        free(expected);
        free(tokens);
        fixture_close(&fixture);
    }
}

/* Near the reference but for at most n_most positions, not the same as with F32, and as much one result as
 * that. */
static void check_rounded(const char *kv_name, float most, uint32_t n_most)
{
    for (size_t f = 0; f < N_FAMILIES; f++) {
        struct fixture fixture = fixture_open(families[f]);
        const uint32_t n = fixture.n_tok;
        const size_t n_floats = (size_t)n * fixture.model->config.n_vocab;
        float *exact = fixture_run(&fixture, moec_kernels_best(), 1, n, fixture.tokens, n, n);
        keep_kv(&fixture, kv_name);
        float *expected = fixture_run(&fixture, &moec_kernels_scalar, 1, n, fixture.tokens, n, n);
        const float worst = worst_difference(exact, expected, n, fixture.model->config.n_vocab);
        uint32_t n_far = 0;
        for (uint32_t t = 0; t < n; t++) {
            const size_t at = (size_t)t * fixture.model->config.n_vocab;
            n_far += worst_difference(exact + at, expected + at, 1, fixture.model->config.n_vocab) >= most;
        }
        print_message("%s: with %s, logits differ by %.1e of their spread, %u positions by %.0e\n",
                      families[f], kv_name, (double)worst, n_far, (double)most);
        assert_true(worst > 0 && n_far <= n_most);
        for (size_t s = 0; s < n_kernel_sets(); s++) {
            float *chunks = fixture_run(&fixture, kernel_set(s), 3, n, fixture.tokens, n, 3);
            assert_same_bits(chunks, expected, n_floats, kernel_set(s)->name);
            free(chunks);
        }
        float *steps = fixture_run(&fixture, moec_kernels_best(), 2, 1, fixture.tokens, n, 1);
        assert_same_bits(steps, expected, n_floats, families[f]);
        free(steps);
        free(expected);
        free(exact);
        fixture_close(&fixture);
    }
}

static void test_families__keys_and_values_as_f16(void **state)
{
    (void)state;
    check_rounded("f16", 1e-2f, 0);
}

static void test_families__keys_and_values_as_int8(void **state)
{
    (void)state;
    check_rounded("int8", 5e-2f, 6); /* far where a token takes other experts */
}

/* A session that is to give the logits of a run from the beginning. */
struct going_back {
    const struct fixture *fixture;
    const uint32_t *tokens;
    const float *expected; /* (LONG_TOKENS, n_vocab) */
    float *logits;         /* likewise */
    uint32_t at[LONG_TOKENS];
};

/* Goes on from the session's length to position `end`, `n_each` tokens at a time. */
static void go_on(struct going_back *g, struct moec_session *session, uint32_t n_each, uint32_t end)
{
    const size_t n_vocab = g->fixture->model->config.n_vocab;
    struct moec_error err = {0};
    for (uint32_t done = moec_session_length(session), n; done < end; done += n) {
        n = end - done < n_each ? end - done : n_each;
        assert_ok(moec_session_step(session, g->tokens + done, n, g->at, n, g->logits, &err), err);
        assert_same_bits(g->logits, g->expected + done * n_vocab, n * n_vocab, "a session that went back");
    }
}

/* One token each for sequences that stand beside each other, where some have to catch up first. */
static void go_beside(struct going_back *g, struct moec_session *first)
{
    const size_t n_vocab = g->fixture->model->config.n_vocab;
    struct moec_session *sessions[3] = {first, NULL, NULL};
    struct moec_error err = {0};
    for (int i = 1; i < 3; i++)
        assert_ok(moec_session_beside(first, &sessions[i], &err), err);
    go_on(g, first, 5, 20);
    moec_session_copy(sessions[1], first);
    moec_session_truncate(first, 13);
    moec_session_copy(sessions[2], first);
    go_on(g, sessions[1], 1, 22);
    for (int step = 0; step < 3; step++) {
        uint32_t next[3];
        for (int i = 0; i < 3; i++)
            next[i] = moec_session_length(sessions[i]);
        const uint32_t tokens[3] = {g->tokens[next[0]], g->tokens[next[1]], g->tokens[next[2]]};
        assert_ok(moec_session_step_each(sessions, tokens, 3, g->logits, &err), err);
        for (int i = 0; i < 3; i++)
            assert_same_bits(g->logits + (size_t)i * n_vocab, g->expected + next[i] * n_vocab, n_vocab,
                             "a sequence beside others");
    }
    moec_session_copy_after(sessions[2], sessions[1], 14);
    go_on(g, sessions[2], 1, 40);
    for (int i = 1; i < 3; i++)
        moec_session_free(sessions[i]);
}

/* Truncated sessions, forks and sequences beside others go on as if they had never read more. */
static void test_families__sessions_go_back(void **state)
{
    (void)state;
    static const uint32_t places[] = {88, 81, 80, 64, 63, 30, 29, 2, 1, 0};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        struct fixture fixture = fixture_open(families[f]);
        struct moec_error err = {0};
        struct moec_forward forward = {0};
        struct moec_session *session = NULL, *fork = NULL;
        const size_t n = LONG_TOKENS * (size_t)fixture.model->config.n_vocab;
        uint32_t *tokens = fixture_long_tokens(&fixture, LONG_TOKENS);
        float *expected =
            fixture_run(&fixture, moec_kernels_best(), 1, LONG_TOKENS, tokens, LONG_TOKENS, LONG_TOKENS);
        struct going_back g = {
            .fixture = &fixture, .tokens = tokens, .expected = expected, .logits = calloc(n, sizeof(float))};
        for (uint32_t i = 0; i < LONG_TOKENS; i++)
            g.at[i] = i;
        assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 2,
                                    moec_variants_experts(fixture.variants), 7, &err),
                  err);
        assert_ok(moec_session_create(&forward, LONG_TOKENS, &session, &err), err);
        go_on(&g, session, 40, 80);
        go_on(&g, session, 4, LONG_TOKENS);
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            moec_session_truncate(session, places[i]);
            assert_ok(session_fork(session, &fork, &err), err);
            go_on(&g, session, i % 2 == 0 ? 3 : 1, places[i] + 2 + (uint32_t)i % 3);
            moec_session_truncate(session, places[i] + 1);
            go_on(&g, session, 9, LONG_TOKENS);
            go_on(&g, fork, 6, places[i] + 1);
            moec_session_free(fork);
        }
        moec_session_truncate(session, 0);
        go_beside(&g, session);
        moec_session_free(session);
        moec_forward_release(&forward);
        free(g.logits);
        free(expected);
        free(tokens);
        fixture_close(&fixture);
    }
}

static uint32_t best_token(const float *logits, size_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static void test_families__greedy_text_is_the_same(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        struct fixture fixture = fixture_open(families[f]);
        const size_t n_vocab = fixture.model->config.n_vocab;
        struct moec_error err = {0};
        struct moec_forward forward = {0};
        struct moec_session *session = NULL;
        size_t n_bytes = 0;
        uint32_t *expected = fixture_load(families[f], "generated.u32", &n_bytes);
        const uint32_t n = (uint32_t)(n_bytes / sizeof *expected), last = N_PROMPT - 1, first = 0;
        assert_int_equal(n, 64);
        float *logits = calloc(n_vocab, sizeof *logits);
        assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 2,
                                    moec_variants_experts(fixture.variants), N_PROMPT, &err),
                  err);
        assert_ok(moec_session_create(&forward, N_PROMPT + n, &session, &err), err);
        assert_ok(moec_session_step(session, fixture.tokens, N_PROMPT, &last, 1, logits, &err), err);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t token = best_token(logits, n_vocab);
            if (token != expected[i])
                fail_msg("%s: word %u is %u, expected %u", families[f], i, token, expected[i]);
            assert_ok(moec_session_step(session, &token, 1, &first, 1, logits, &err), err);
        }
        moec_session_free(session);
        moec_forward_release(&forward);
        free(logits);
        free(expected);
        fixture_close(&fixture);
    }
}

/* Equal but for the type of the experts in files: MXFP4 is written as BF16, which holds it. */
static void assert_same_config(const struct moec_config *a, const struct moec_config *b)
{
    struct moec_error err = {0};
    struct moec_config like = *a;
    uint8_t *first = NULL, *second = NULL;
    size_t n_first = 0, n_second = 0;
    like.expert_dtype = b->expert_dtype;
    assert_ok(moec_config_encode(&like, &first, &n_first, &err), err);
    assert_ok(moec_config_encode(b, &second, &n_second, &err), err);
    assert_int_equal(n_first, n_second);
    assert_memory_equal(first, second, n_first);
    free(first);
    free(second);
}

/* Logits of a folder at its own precision. */
static float *folder_logits(const struct fixture *fixture, const char *folder)
{
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    struct fixture other = *fixture;
    assert_ok(moec_checkpoint_open(folder, &other.checkpoint, &err), err);
    moec_checkpoint_choose_rope(other.checkpoint, fixture->n_tok);
    assert_same_config(moec_checkpoint_config(other.checkpoint), moec_checkpoint_config(fixture->checkpoint));
    assert_ok(dense_load(other.checkpoint, 16, 0, &dense, &err), err);
    assert_ok(moec_model_create(moec_checkpoint_config(other.checkpoint), &dense, &other.model, &err), err);
    assert_ok(moec_variants_create(other.checkpoint,
                                   &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 0, 0, 1},
                                   &other.variants, &err),
              err);
    float *logits =
        fixture_run(&other, moec_kernels_best(), 1, other.n_tok, other.tokens, other.n_tok, other.n_tok);
    moec_variants_free(other.variants);
    moec_model_free(other.model);
    moec_checkpoint_close(other.checkpoint);
    return logits;
}

/* A bundle that keeps every weight, exported: the folder has the same config and computes the same bits. */
static void test_families__survive_bundle_and_export(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        struct fixture fixture = fixture_open(families[f]);
        struct moec_error err = {0};
        char *folder = temporary_folder(), path[256];
        char *bundle_path = temporary_path(folder, "m.moec"), *out = temporary_path(folder, "out");
        struct moec_bundle *bundle = NULL;
        struct moec_checkpoint_written written = {0};
        const struct moec_checkpoint_write_options options = {0};
        (void)snprintf(path, sizeof path, FOLDER "%s", families[f]);
        fixture_bundle_write(path, bundle_path, 16, false);
        assert_ok(moec_bundle_open(bundle_path, &bundle, &err), err);
        assert_ok(moec_checkpoint_write(bundle, &options, out, &written, &err), err);
        const uint32_t n = fixture.n_tok;
        float *expected = fixture_run(&fixture, moec_kernels_best(), 1, n, fixture.tokens, n, n);
        float *logits = folder_logits(&fixture, out);
        assert_same_bits(logits, expected, (size_t)n * fixture.model->config.n_vocab, families[f]);
        free(logits);
        free(expected);
        moec_bundle_close(bundle);
        free(bundle_path);
        free(out);
        temporary_remove(folder);
        fixture_close(&fixture);
    }
}

/* Llama 4 Scout has one bound for fast and slow pairs: of these four, whose turns take 6.28 to 6283
 * positions, two are shorter than 64. */
static void test_families__one_bound_of_rope(void **state)
{
    (void)state;
    static struct moec_config config;
    struct moec_layer_kind kind = {.n_head = 1, .head_dim = 8, .rope_theta = 10000};
    float plain[4], scaled[4];
    moec_rope_fill(&config, &kind, plain);
    kind.rope_scaling = (struct moec_rope_scaling){
        .kind = MOEC_ROPE_LLAMA3, .factor = 16, .beta_fast = 1, .beta_slow = 1, .original_positions = 64};
    moec_rope_fill(&config, &kind, scaled);
    for (int i = 0; i < 4; i++) {
        const float expected = i < 2 ? plain[i] : plain[i] / 16;
        assert_memory_equal(&scaled[i], &expected, sizeof expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families__agree_with_their_reference),
        cmocka_unit_test(test_families__running_states_agree_with_float64),
        cmocka_unit_test(test_families__same_bits_however_they_are_cut),
        cmocka_unit_test(test_families__keys_and_values_as_f16),
        cmocka_unit_test(test_families__keys_and_values_as_int8),
        cmocka_unit_test(test_families__sessions_go_back),
        cmocka_unit_test(test_families__greedy_text_is_the_same),
        cmocka_unit_test(test_families__survive_bundle_and_export),
        cmocka_unit_test(test_families__one_bound_of_rope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
