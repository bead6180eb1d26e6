/* Sessions of one thread: steps of several together, scores, kept and copied beginnings, and generators whose
 * caller gives the logits, against what each gives alone, bit for bit. */
#include "tests/unit/fixture_bundle.h"

#include "runtime/cuda/blocks/blocks.h"
#include "runtime/cuda/gpu_kernels.h"
#include "runtime/cuda/gpu_library.h"
#include "runtime/cuda/host/host_gpu.h"
#include "runtime/engine/moert_internal.h"

#include <math.h>

#define N_SESSIONS 3u
#define N_TOK      20u

static enum moec_status open_stand_in(uint32_t number, struct moec_gpu **out, struct moec_error *err)
{
    moec_blocks_divert(moec_host_gpu_launch);
    return moec_host_gpu_open(number + 7, out, err);
}

static const struct moec_gpu_kernels kernels = MOEC_GPU_KERNELS;
static const struct moec_gpu_entry entry = {MOEC_VERSION, open_stand_in, &kernels};

struct fixture {
    char *folder, *path;
    struct moert_options options;
    struct moert_engine *engine;
    struct moert_session *sessions[N_SESSIONS], *alone;
    uint32_t n_vocab;
};

static uint32_t token_of(uint32_t sequence, uint32_t i)
{
    return (i * 37 + 11 + sequence * (i / 8) * 5) % 60; /* the first eight are everybody's */
}

static void open_fixture(struct fixture *f, const char *family, const struct moert_decisions *decisions,
                         const char *device)
{
    const struct moec_record_io io = {0};
    struct moert_error err = {0};
    char *source = NULL;
    assert_true(asprintf(&source, "tests/fixtures/families/%s", family) > 0);
    f->folder = temporary_folder();
    f->path = temporary_path(f->folder, "model.moec");
    fixture_bundle_write(source, f->path, 4, true);
    free(source);
    f->options = moert_options_default();
    f->options.n_threads = 1;
    f->options.sessions.n_context = 40;
    f->options.sessions.n_sessions = N_SESSIONS + 1;
    f->options.sessions.one_thread = true;
    if (decisions != NULL)
        f->options.decisions = *decisions;
    f->options.device.name = device;
    const enum moert_status status =
        moert_engine_open_on(f->path, &f->options, &io, &entry, &f->engine, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(status, MOERT_OK);
    f->n_vocab = moert_engine_info(f->engine).model.n_vocab;
    for (uint32_t i = 0; i < N_SESSIONS; i++)
        assert_int_equal(moert_session_create(f->engine, &f->sessions[i], &err), MOERT_OK);
    assert_int_equal(moert_session_create(f->engine, &f->alone, &err), MOERT_OK);
}

static void close_fixture(struct fixture *f)
{
    for (uint32_t i = 0; i < N_SESSIONS; i++)
        moert_session_free(f->sessions[i]);
    moert_session_free(f->alone);
    moert_engine_close(f->engine);
    temporary_remove(f->folder);
    free(f->path);
}

static void read_tokens(struct moert_session *session, uint32_t sequence, uint32_t first, uint32_t n,
                        float *logits)
{
    struct moert_error err = {0};
    uint32_t tokens[N_TOK];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = token_of(sequence, first + i);
    assert_int_equal(moert_session_step(session, tokens, n, logits, &err), MOERT_OK);
}

static float *rows_of(const struct fixture *f, uint32_t n)
{
    float *rows = calloc((size_t)n * f->n_vocab, sizeof *rows);
    assert_non_null(rows);
    return rows;
}

/* Families with other attention, and with running states; routes that decide about all tokens and about
 * generated ones; on a device. */
static const struct {
    const char *family;
    struct moert_decisions decisions;
    const char *device;
} cases[] = {
    {"qwen2_moe", {0}, NULL},
    {"qwen3_next", {0}, NULL},
    {"qwen2_moe", {.route = "cache-prior:0.5", .slots = "50%"}, NULL},
    {"qwen2_moe", {.route = "cache-prior:0.5", .slots = "50%", .decode_only = true}, NULL},
    {"qwen2_moe", {0}, "cuda"},
};
#define N_CASE (sizeof cases / sizeof *cases)

/* One after the other, and each step of all together: prompts of other lengths, then a token each. */
static void test_together__steps(void **state)
{
    (void)state;
    for (size_t c = 0; c < N_CASE; c++) {
        struct fixture f = {0};
        struct moert_error err = {0};
        open_fixture(&f, cases[c].family, &cases[c].decisions, cases[c].device);
        float *rows = rows_of(&f, N_SESSIONS), *row = rows_of(&f, 1);
        float *expected = rows_of(&f, N_SESSIONS * N_TOK);
        for (uint32_t s = 0; s < N_SESSIONS; s++) {
            moert_session_truncate(f.alone, 0);
            moert_session_set_prompt(f.alone, 5 + s);
            read_tokens(f.alone, s, 0, 5 + s, row);
            for (uint32_t i = 5 + s; i < N_TOK; i++)
                read_tokens(f.alone, s, i, 1, expected + (size_t)(s * N_TOK + i) * f.n_vocab);
            moert_session_set_prompt(f.sessions[s], 5 + s);
            read_tokens(f.sessions[s], s, 0, 5 + s, row);
        }
        for (uint32_t i = 0; i + 5 + N_SESSIONS - 1 < N_TOK; i++) {
            uint32_t tokens[N_SESSIONS];
            for (uint32_t s = 0; s < N_SESSIONS; s++)
                tokens[s] = token_of(s, 5 + s + i);
            assert_int_equal(moert_step_each(f.sessions, tokens, N_SESSIONS, rows, &err), MOERT_OK);
            for (uint32_t s = 0; s < N_SESSIONS; s++)
                assert_memory_equal(rows + (size_t)s * f.n_vocab,
                                    expected + (size_t)(s * N_TOK + 5 + s + i) * f.n_vocab,
                                    f.n_vocab * sizeof *rows);
        }
        free(rows);
        free(row);
        free(expected);
        close_fixture(&f);
    }
}

/* A beginning that is kept, or copied from another, goes on as if it had been read here. */
static void test_together__beginnings(void **state)
{
    (void)state;
    for (size_t c = 0; c < N_CASE; c++) {
        struct fixture f = {0};
        open_fixture(&f, cases[c].family, &cases[c].decisions, cases[c].device);
        float *row = rows_of(&f, 1), *expected = rows_of(&f, 1);
        moert_session_set_prompt(f.alone, 12);
        read_tokens(f.alone, 1, 0, 12, expected);
        moert_session_set_prompt(f.sessions[0], 10);
        read_tokens(f.sessions[0], 0, 0, 10, row);
        read_tokens(f.sessions[0], 0, 10, 1, row);
        const uint32_t n_most = cases[c].decisions.decode_only ? 10 : 11;
        assert_int_equal(moert_session_copy(f.sessions[1], f.sessions[0], 40), n_most);
        assert_int_equal(moert_session_length(f.sessions[1]), n_most);
        assert_int_equal(moert_session_copy(f.sessions[1], f.sessions[0], 8), 8);
        assert_int_equal(moert_session_keep(f.sessions[0], 8), 8);
        for (uint32_t s = 0; s < 2; s++) {
            moert_session_set_prompt(f.sessions[s], 12);
            read_tokens(f.sessions[s], 1, 8, 4, row);
            assert_memory_equal(row, expected, f.n_vocab * sizeof *row);
        }
        free(row);
        free(expected);
        close_fixture(&f);
    }
}

static double log_prob_of(const float *logits, uint32_t n, uint32_t token)
{
    double largest = logits[0], sum = 0;
    for (uint32_t i = 0; i < n; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(logits[i] - largest);
    return logits[token] - largest - log(sum);
}

static uint32_t rank_of(const float *logits, uint32_t n, uint32_t token)
{
    uint32_t rank = 1;
    for (uint32_t i = 0; i < n; i++)
        rank += logits[i] > logits[token] || (logits[i] == logits[token] && i < token);
    return rank;
}

/* Scores in parts of any length, by any number of rows, are those of the logits. */
static void check_scores(const char *device)
{
    struct fixture f = {0};
    struct moert_error err = {0};
    struct moert_score scores[N_TOK][4];
    uint32_t tokens[N_TOK + 1], at[N_TOK];
    open_fixture(&f, "qwen2_moe", NULL, device);
    float *logits = rows_of(&f, N_TOK), *rows = rows_of(&f, 3), *last = rows_of(&f, 1);
    for (uint32_t i = 0; i <= N_TOK; i++) {
        tokens[i] = token_of(1, i);
        if (i < N_TOK)
            at[i] = i;
    }
    assert_int_equal(moert_session_step_at(f.alone, tokens, N_TOK, at, N_TOK, logits, &err), MOERT_OK);
    for (uint32_t n_part = 1; n_part <= N_TOK; n_part += 6) {
        moert_session_truncate(f.sessions[0], 0);
        for (uint32_t done = 0; done < N_TOK; done += n_part) {
            const uint32_t n = N_TOK - done < n_part ? N_TOK - done : n_part;
            const struct moert_scoring scoring = {.tokens = tokens + done,
                                                  .next = tokens + done + 1,
                                                  .n_tokens = n,
                                                  .n_next = n,
                                                  .n_best = 3,
                                                  .rows = rows,
                                                  .n_rows = 1 + n_part % 3};
            assert_int_equal(moert_session_score(f.sessions[0], &scoring, scores[done], last, &err),
                             MOERT_OK);
        }
        assert_memory_equal(last, logits + (size_t)(N_TOK - 1) * f.n_vocab, f.n_vocab * sizeof *last);
        for (uint32_t i = 0; i < N_TOK; i++) {
            const float *row = logits + (size_t)i * f.n_vocab;
            assert_int_equal(scores[i][0].token, tokens[i + 1]);
            assert_int_equal(scores[i][0].rank, rank_of(row, f.n_vocab, tokens[i + 1]));
            assert_true(fabs(scores[i][0].log_prob - log_prob_of(row, f.n_vocab, tokens[i + 1])) < 1e-5);
            for (uint32_t k = 1; k <= 3; k++) {
                assert_int_equal(scores[i][k].rank, k);
                assert_int_equal(rank_of(row, f.n_vocab, scores[i][k].token), k);
                assert_true(scores[i][k].token != scores[i][0].token ||
                            scores[i][k].log_prob == scores[i][0].log_prob);
            }
        }
    }
    struct moert_scoring wrong = {.tokens = tokens,
                                  .next = tokens,
                                  .n_tokens = 1,
                                  .n_next = 1,
                                  .n_best = 21,
                                  .rows = rows,
                                  .n_rows = 1};
    assert_int_equal(moert_session_score(f.sessions[1], &wrong, scores[0], NULL, &err), MOERT_ERR_LIMIT);
    assert_int_equal(moert_session_length(f.sessions[1]), 0);
    free(logits);
    free(rows);
    free(last);
    close_fixture(&f);
}

static void test_together__scores(void **state)
{
    (void)state;
    check_scores(NULL);
    check_scores("cuda");
}

/* A generator that is given logits chooses what one that runs the model does. */
static void test_together__generators(void **state)
{
    (void)state;
    struct fixture f = {0};
    struct moert_error err = {0};
    open_fixture(&f, "qwen2_moe", NULL, NULL);
    float *row = rows_of(&f, 1);
    struct moert_generation generation = moert_generation_default(f.engine);
    generation.n_tokens = 12;
    generation.ignore_end = true;
    generation.repetition_penalty = 1.3;
    generation.sampler.temperature = 0.9f;
    generation.sampler.top_k = 20;
    generation.sampler.state = 5;
    uint32_t prompt[6], token = 0, other = 0;
    for (uint32_t i = 0; i < 6; i++)
        prompt[i] = token_of(0, i);
    struct moert_generator *own = NULL, *given = NULL;
    enum moert_generated what = MOERT_GENERATED_TOKEN, what_else = MOERT_GENERATED_TOKEN;
    assert_int_equal(moert_generator_create(f.alone, &generation, &own, &err), MOERT_OK);
    assert_int_equal(moert_generator_start(own, prompt, 6, &err), MOERT_OK);
    generation.is_given = true;
    assert_int_equal(moert_generator_create(f.sessions[0], &generation, &given, &err), MOERT_OK);
    assert_int_equal(moert_generator_begin(given, prompt, 6, &err), MOERT_OK);
    read_tokens(f.sessions[0], 0, 0, 6, row);
    for (uint32_t i = 0; i < 13; i++) {
        assert_int_equal(moert_generator_left(given), 12 - i);
        assert_int_equal(moert_generator_next(own, &token, &what, &err), MOERT_OK);
        assert_int_equal(moert_generator_choose(given, row, &other, &what_else, &err), MOERT_OK);
        assert_int_equal(token, other);
        assert_int_equal(what, what_else);
        if (i < 12)
            assert_int_equal(moert_session_step(f.sessions[0], &other, 1, row, &err), MOERT_OK);
    }
    assert_int_equal(what, MOERT_GENERATED_LENGTH);
    assert_int_equal(moert_generator_start(given, prompt, 6, &err), MOERT_ERR_USAGE);
    err = (struct moert_error){0};
    assert_int_equal(moert_generator_begin(own, prompt, 6, &err), MOERT_ERR_USAGE);
    moert_generator_free(own);
    moert_generator_free(given);
    free(row);
    close_fixture(&f);
}

/* One scratch is paid for all sessions, and what the program reserves is part of the plan. */
static void test_together__budget(void **state)
{
    (void)state;
    struct fixture f = {0};
    struct moert_error err = {0};
    struct moert_engine *other = NULL;
    open_fixture(&f, "qwen2_moe", NULL, NULL);
    struct moert_options options = f.options;
    const struct moert_info all = moert_engine_info(f.engine);
    options.sessions.one_thread = false;
    options.reserve_bytes = 1000000;
    assert_int_equal(moert_engine_open(f.path, &options, &other, &err), MOERT_OK);
    const struct moert_info each = moert_engine_info(other);
    struct moert_session *session = NULL;
    uint32_t token = 1;
    assert_int_equal(moert_session_create(other, &session, &err), MOERT_OK);
    float *row = rows_of(&f, 1);
    assert_int_equal(moert_step_each(&session, &token, 1, row, &err), MOERT_ERR_USAGE);
    assert_int_equal(each.memory.kv_bytes, all.memory.kv_bytes);
    assert_true(each.memory.scratch_bytes > 2 * all.memory.scratch_bytes);
    assert_true(each.memory.total_bytes - all.memory.total_bytes >= 1000000);
    free(row);
    moert_session_free(session);
    moert_engine_close(other);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together__steps),  cmocka_unit_test(test_together__beginnings),
        cmocka_unit_test(test_together__scores), cmocka_unit_test(test_together__generators),
        cmocka_unit_test(test_together__budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
