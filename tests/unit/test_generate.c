/* Generation: the texts that transformers generates from the same checkpoints, and what a generator promises
 * beside that. */
#include "tests/unit/fixture_model.h"

#include "tests/unit/fixture_bundle.h"
#include "tests/unit/session_fork.h"

#include "formats/family/family.h"
#include "formats/family/generation_json.h"
#include "runtime/generate/generate_test_hook.h"

#include <math.h>

#define N_CONTEXT 64

/* A fixture with a session on it. */
struct opened {
    struct fixture fixture;
    struct moec_forward forward;
    struct moec_session *session;
};

static void open_session(struct opened *opened, const char *name, uint32_t max_tokens, uint32_t n_context)
{
    struct moec_error err = {0};
    opened->fixture = fixture_open(name);
    assert_ok(moec_forward_init(&opened->forward, opened->fixture.model, moec_kernels_best(), 1,
                                moec_variants_experts(opened->fixture.variants), max_tokens, &err),
              err);
    assert_ok(moec_session_create(&opened->forward, n_context, &opened->session, &err), err);
}

static void close_session(struct opened *opened)
{
    moec_session_free(opened->session);
    moec_forward_release(&opened->forward);
    fixture_close(&opened->fixture);
}

static struct moec_generator *make_generator(const struct opened *opened,
                                             const struct moec_generation *generation)
{
    struct moec_generator *generator = NULL;
    struct moec_error err = {0};
    const struct moec_generator_options options = {.generation = generation,
                                                   .sampler = moert_sampler_greedy()};
    assert_ok(moec_generator_create(opened->session, &options, &generator, &err), err);
    return generator;
}

/* Generates a whole text, the end-of-text token included; returns how it ended. */
static enum moec_generated read_text(struct moec_generator *generator, const uint32_t *prompt,
                                     uint32_t n_prompt, uint32_t n_tokens, uint32_t *text, uint32_t *n)
{
    struct moec_error err = {0};
    enum moec_generated what = MOEC_GENERATED_TOKEN;
    assert_ok(moec_generator_start(generator, prompt, n_prompt, n_tokens, &err), err);
    *n = 0;
    while (what == MOEC_GENERATED_TOKEN) {
        uint32_t token = 0;
        assert_ok(moec_generator_next(generator, &token, &what, &err), err);
        if (what == MOEC_GENERATED_TOKEN || what == MOEC_GENERATED_END)
            text[(*n)++] = token;
    }
    return what;
}

/* ---- against transformers ---- */

static uint32_t read_ids(const struct moec_json *root, const char *key, uint32_t *ids)
{
    struct moec_error err = {0};
    const struct moec_json *list = NULL;
    assert_ok(moec_json_get(root, "case", key, MOEC_JSON_ARRAY, &list, &err), err);
    const uint32_t n = (uint32_t)moec_json_length(list);
    assert_true(n <= N_CONTEXT);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t id = 0;
        assert_ok(moec_json_as_u64(moec_json_at(list, i), key, 0, UINT32_MAX, &id, &err), err);
        ids[i] = (uint32_t)id;
    }
    return n;
}

static void check_text(const char *name, size_t number, const uint32_t *text, uint32_t n,
                       const uint32_t *expected, uint32_t n_expected)
{
    char line[1024] = "";
    size_t used = 0;
    if (n == n_expected && memcmp(text, expected, n * sizeof *text) == 0)
        return;
    for (uint32_t i = 0; i < n && used + 16 < sizeof line; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, " %u", text[i]);
    fail_msg("%s, case %zu: generated%s", name, number, line);
}

static void run_case(const struct opened *opened, size_t number, const struct moec_json *root)
{
    struct moec_error err = {0};
    const char *name = opened->fixture.name;
    struct moec_config *config = &opened->fixture.model->config;
    struct moec_generation generation = moec_generation_default();
    uint32_t prompt[N_CONTEXT], expected[N_CONTEXT], text[N_CONTEXT], n = 0;
    const struct moec_json *settings = moec_json_find(root, "settings");
    config->ids.n_eos = 0;
    assert_ok(moec_family_read_eos(settings, "case", config, &err), err);
    assert_ok(moec_generation_read(settings, "case", config->n_vocab, &generation, &err), err);
    const uint32_t n_prompt = read_ids(root, "prompt", prompt);
    const uint32_t n_expected = read_ids(root, "tokens", expected);
    struct moec_generator *generator = make_generator(opened, &generation);
    const bool has_encoder = moec_config_is_encoder_decoder(config);
    const uint32_t room = moec_generation_room(&generation, has_encoder ? 1 : n_prompt, 0);
    const enum moec_generated how = read_text(generator, prompt, n_prompt, room, text, &n);
    check_text(name, number, text, n, expected, n_expected);
    bool is_end = false;
    for (uint32_t i = 0; i < config->ids.n_eos; i++)
        is_end = is_end || config->ids.eos[i] == text[n - 1];
    assert_int_equal(how, is_end ? MOEC_GENERATED_END : MOEC_GENERATED_LENGTH);
    if (moec_json_find(root, "score") != NULL) {
        double score = 0;
        assert_ok(moec_json_get_double(root, "case", "score", -1e9, 1e9, &score, &err), err);
        assert_true(fabs(moec_generator_score(generator) - score) <= 1e-4 * (1 + fabs(score)));
    }
    moec_generator_free(generator);
}

static void run_cases(const char *name)
{
    char path[256], *bytes = NULL;
    size_t n_bytes = 0;
    struct moec_json *root = NULL;
    struct moec_error err = {0};
    struct opened opened;
    /* Batches of three, so that beams need more than one. */
    open_session(&opened, name, 3, N_CONTEXT);
    (void)snprintf(path, sizeof path, "tests/fixtures/generation/%s.json", name);
    assert_ok(moec_file_load(path, 1u << 20, &bytes, &n_bytes, &err), err);
    assert_ok(moec_json_parse(bytes, n_bytes, 1u << 20, path, &root, &err), err);
    assert_true(moec_json_length(root) > 20);
    for (size_t number = 0; number < moec_json_length(root); number++)
        run_case(&opened, number, moec_json_at(root, number));
    moec_json_free(root);
    free(bytes);
    close_session(&opened);
}

static void test_generate__texts_are_those_of_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FIXTURE_FAMILIES; i++)
        run_cases(fixture_families[i]);
}

static void test_generate__so_are_those_of_encoder_decoder_models(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FIXTURE_PAIRS; i++)
        run_cases(fixture_pairs[i]);
}

/* ---- what a generator promises ---- */

static void test_generate__serves_one_text_after_another(void **state)
{
    (void)state;
    struct opened opened;
    open_session(&opened, "qwen2_moe", 16, N_CONTEXT);
    struct moec_generation generation = moec_generation_default();
    const uint32_t *tokens = opened.fixture.tokens;
    uint32_t first[N_CONTEXT], other[N_CONTEXT], again[N_CONTEXT], n = 0, n_other = 0, n_again = 0;
    for (generation.n_beam = 1; generation.n_beam <= 4; generation.n_beam += 3) {
        generation.repetition_penalty = generation.n_beam == 1 ? 1.3 : 1;
        struct moec_generator *generator = make_generator(&opened, &generation);
        (void)read_text(generator, tokens, 9, 12, first, &n);
        (void)read_text(generator, tokens + 20, 4, 30, other, &n_other);
        (void)read_text(generator, tokens, 9, 12, again, &n_again);
        assert_int_equal(n, n_again);
        assert_memory_equal(first, again, n * sizeof *first);
        moec_generator_free(generator);
    }
    close_session(&opened);
}

static void test_generate__a_full_context_ends_a_text(void **state)
{
    (void)state;
    struct opened opened;
    open_session(&opened, "mixtral", 16, 12);
    struct moec_generation generation = moec_generation_default();
    struct moec_error err = {0};
    uint32_t long_text[N_CONTEXT], text[N_CONTEXT], n_long = 0, n = 0;
    struct opened roomy;
    open_session(&roomy, "mixtral", 16, N_CONTEXT);
    opened.fixture.model->config.ids.n_eos = roomy.fixture.model->config.ids.n_eos = 0;
    for (generation.n_beam = 1; generation.n_beam <= 3; generation.n_beam += 2) {
        struct moec_generator *tight = make_generator(&opened, &generation);
        struct moec_generator *free_one = make_generator(&roomy, &generation);
        /* 12 positions hold a prompt of 9 and three generated tokens; the fourth needs none. */
        assert_int_equal(read_text(tight, opened.fixture.tokens, 9, 20, text, &n), MOEC_GENERATED_CONTEXT);
        assert_int_equal(n, 4);
        assert_int_equal(read_text(free_one, opened.fixture.tokens, 9, 4, long_text, &n_long),
                         MOEC_GENERATED_LENGTH);
        assert_int_equal(n_long, 4);
        assert_memory_equal(text, long_text, 4 * sizeof *text);
        assert_int_equal(read_text(tight, opened.fixture.tokens, 9, 4, text, &n), MOEC_GENERATED_LENGTH);
        assert_int_equal(read_text(tight, opened.fixture.tokens, 12, 4, text, &n), MOEC_GENERATED_CONTEXT);
        assert_int_equal(n, 1);
        assert_int_equal(read_text(tight, opened.fixture.tokens, 12, 0, text, &n), MOEC_GENERATED_LENGTH);
        assert_int_equal(n, 0);
        assert_int_equal(moec_generator_start(tight, opened.fixture.tokens, 13, 4, &err), MOEC_ERR_LIMIT);
        assert_int_equal(moec_generator_start(tight, opened.fixture.tokens, 0, 4, &err), MOEC_ERR_USAGE);
        moec_generator_free(tight);
        moec_generator_free(free_one);
    }
    close_session(&opened);
    close_session(&roomy);
}

static void test_generate__refuses_what_cannot_be(void **state)
{
    (void)state;
    struct opened opened;
    open_session(&opened, "olmoe", 16, N_CONTEXT);
    struct moec_generation generation = moec_generation_default();
    struct moec_generator *generator = NULL;
    struct moec_error err = {0};
    struct moec_generator_options options = {.generation = &generation, .sampler = moert_sampler_greedy()};
    generation.n_beam = MOEC_MAX_BEAMS + 1;
    assert_int_equal(moec_generator_create(opened.session, &options, &generator, &err), MOEC_ERR_LIMIT);
    generation.n_beam = 2;
    options.sampler.temperature = 1;
    assert_int_equal(moec_generator_create(opened.session, &options, &generator, &err), MOEC_ERR_USAGE);
    /* Everything is suppressed. */
    options.sampler.temperature = 0;
    generation.suppress.n = opened.fixture.model->config.n_vocab;
    for (uint32_t i = 0; i < generation.suppress.n; i++)
        generation.suppress.ids[i] = i;
    for (generation.n_beam = 1; generation.n_beam <= 2; generation.n_beam++) {
        uint32_t token = 0;
        enum moec_generated what = MOEC_GENERATED_TOKEN;
        generator = make_generator(&opened, &generation);
        assert_ok(moec_generator_start(generator, opened.fixture.tokens, 3, 4, &err), err);
        assert_int_equal(moec_generator_next(generator, &token, &what, &err), MOEC_ERR_FORMAT);
        moec_generator_free(generator);
    }
    close_session(&opened);
}

/* One token for many sequences is one token for each. */
static void test_generate__sequences_beside_each_other(void **state)
{
    (void)state;
    enum { N = 5 };
    struct opened opened;
    open_session(&opened, "mixtral-window", 16, 48);
    struct moec_error err = {0};
    struct moec_session *sequences[N] = {opened.session};
    const size_t n_vocab = opened.fixture.model->config.n_vocab;
    float *together = calloc(N * n_vocab, sizeof *together), *alone = calloc(n_vocab, sizeof *alone);
    const uint32_t *tokens = opened.fixture.tokens, at = 0;
    uint32_t next[N];
    for (uint32_t i = 1; i < N; i++)
        assert_ok(moec_session_beside(opened.session, &sequences[i], &err), err);
    for (uint32_t i = 0; i < N; i++) {
        assert_ok(moec_session_step(sequences[i], tokens + i, 3 + 7 * i, NULL, 0, NULL, &err), err);
        next[i] = tokens[40 + i];
    }
    assert_ok(moec_session_step_each(sequences, next, N, together, &err), err);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(moec_session_length(sequences[i]), 4 + 7 * i);
        moec_session_truncate(sequences[i], 3 + 7 * i);
        assert_ok(moec_session_step(sequences[i], &next[i], 1, &at, 1, alone, &err), err);
        assert_same_bits(together + i * n_vocab, alone, n_vocab, "beside others");
    }
    /* What the last two share is not copied; what follows is. */
    moec_session_copy(sequences[1], sequences[2]);
    assert_ok(moec_session_step(sequences[1], tokens, 5, NULL, 0, NULL, &err), err);
    moec_session_copy_after(sequences[2], sequences[1], 18);
    assert_ok(moec_session_step(sequences[1], next, 1, &at, 1, together, &err), err);
    assert_ok(moec_session_step(sequences[2], next, 1, &at, 1, alone, &err), err);
    assert_same_bits(together, alone, n_vocab, "copied behind what is shared");
    /* One without room stops all. */
    moec_session_truncate(sequences[1], 0);
    assert_ok(moec_session_step(sequences[1], tokens, 48, NULL, 0, NULL, &err), err);
    const uint32_t length = moec_session_length(sequences[0]);
    assert_int_equal(moec_session_step_each(sequences, next, N, together, &err), MOEC_ERR_LIMIT);
    assert_int_equal(moec_session_length(sequences[0]), length);
    for (uint32_t i = 1; i < N; i++)
        moec_session_free(sequences[i]);
    free(together);
    free(alone);
    close_session(&opened);
}

/* The source of the first is that of all. */
static void test_generate__sequences_share_a_source(void **state)
{
    (void)state;
    struct opened opened;
    open_session(&opened, "switch-gated", 16, 48);
    struct moec_error err = {0};
    struct moec_session *first = opened.session, *second = NULL, *fork = NULL;
    const struct fixture *fixture = &opened.fixture;
    const size_t n_vocab = fixture->model->config.n_vocab;
    float *together = calloc(2 * n_vocab, sizeof *together), *alone = calloc(n_vocab, sizeof *alone);
    const uint32_t *tokens = fixture->tokens, at = 0;
    assert_ok(moec_session_beside(first, &second, &err), err);
    struct moec_session *const sequences[] = {second, first};
    assert_int_equal(moec_session_step(second, tokens, 1, NULL, 0, NULL, &err), MOEC_ERR_USAGE);
    err = (struct moec_error){0};
    assert_int_equal(moec_session_encode(second, fixture->source, 5, &err), MOEC_ERR_USAGE);
    for (uint32_t n_source = 7; n_source <= 12; n_source += 5) { /* a new source is everybody's too */
        assert_ok(moec_session_encode(first, fixture->source, n_source, &err), err);
        moec_session_truncate(second, 0);
        assert_ok(moec_session_step(first, tokens, 3, NULL, 0, NULL, &err), err);
        assert_ok(moec_session_step(second, tokens, 6, NULL, 0, NULL, &err), err);
        assert_ok(session_fork(second, &fork, &err), err);
        assert_ok(moec_session_step_each(sequences, tokens + 6, 2, together, &err), err);
        assert_ok(moec_session_step(fork, tokens + 6, 1, &at, 1, alone, &err), err);
        assert_same_bits(together, alone, n_vocab, "a fork of one beside others");
        moec_session_truncate(first, 3);
        moec_session_copy_after(second, first, 3);
        assert_int_equal(moec_session_length(second), 3);
        assert_ok(moec_session_step(second, tokens + 7, 1, &at, 1, alone, &err), err);
        assert_same_bits(together + n_vocab, alone, n_vocab, "copied from the first");
        moec_session_free(fork);
    }
    moec_session_count_capacity(first, true);
    assert_int_equal(moec_session_step_each(sequences, tokens, 2, together, &err), MOEC_ERR_USAGE);
    moec_session_free(second);
    free(together);
    free(alone);
    close_session(&opened);
}

/* ---- libmoert ---- */

static uint32_t read_public(struct moert_engine *engine, const struct moert_generation *generation,
                            const uint32_t *prompt, size_t n_prompt, uint32_t *text,
                            enum moert_generated *what)
{
    struct moert_error err = {0};
    struct moert_session *session = NULL;
    struct moert_generator *generator = NULL;
    uint32_t n = 0;
    assert_int_equal(moert_session_create(engine, &session, &err), MOERT_OK);
    assert_int_equal(moert_generator_create(session, generation, &generator, &err), MOERT_OK);
    assert_int_equal(moert_generator_start(generator, prompt, n_prompt, &err), MOERT_OK);
    *what = MOERT_GENERATED_TOKEN;
    while (*what == MOERT_GENERATED_TOKEN) {
        assert_int_equal(moert_generator_next(generator, &text[n], what, &err), MOERT_OK);
        n += *what == MOERT_GENERATED_TOKEN;
    }
    assert_true(moert_generator_steps(generator) <= 8);
    moert_generator_free(generator);
    moert_session_free(session);
    return n;
}

static void test_generate__the_library_asks_the_bundle(void **state)
{
    (void)state;
    static const char settings[] = "{\"num_beams\": 3, \"max_length\": 10, \"min_new_tokens\": 9}";
    struct moert_error err = {0};
    struct moert_options options = moert_options_default();
    struct moert_engine *engine = NULL;
    struct moert_session *session = NULL;
    struct moert_generator *generator = NULL;
    enum moert_generated what = MOERT_GENERATED_TOKEN;
    uint32_t beams[N_CONTEXT], greedy[N_CONTEXT], again[N_CONTEXT], n = 0;
    char *folder = temporary_folder(), *path = temporary_path(folder, "m.moec");
    struct fixture fixture = fixture_open("switch");
    temporary_copy("tests/fixtures/families/switch", folder);
    temporary_write(folder, "generation_config.json", settings, strlen(settings));
    fixture_bundle_write(folder, path, 16, false);

    assert_int_equal(moert_engine_open(path, &options, &engine, &err), MOERT_OK);
    struct moert_generation generation = moert_generation_default(engine);
    assert_int_equal(moert_engine_info(engine).compute.n_beams, 3);
    assert_int_equal(generation.n_beams, 3);
    /* The decoder's start is one of the ten. */
    assert_int_equal(read_public(engine, &generation, fixture.source, 9, beams, &what), 9);
    assert_int_equal(what, MOERT_GENERATED_LENGTH);
    generation.n_beams = 1;
    generation.n_tokens = 5;
    assert_int_equal(read_public(engine, &generation, fixture.source, 9, greedy, &what), 5);
    generation.n_beams = 3;
    generation.n_tokens = MOERT_TOKENS_OF_MODEL;
    n = read_public(engine, &generation, fixture.source, 9, again, &what);
    assert_int_equal(n, 9);
    assert_memory_equal(beams, again, n * sizeof *beams);
    assert_memory_not_equal(beams, greedy, 5 * sizeof *greedy);
    moert_engine_close(engine);

    /* Memory is kept for so many beams. */
    options.sessions.n_beams = 1;
    assert_int_equal(moert_engine_open(path, &options, &engine, &err), MOERT_OK);
    generation = moert_generation_default(engine);
    assert_int_equal(generation.n_beams, 1);
    generation.n_beams = 2;
    assert_int_equal(moert_session_create(engine, &session, &err), MOERT_OK);
    assert_int_equal(moert_generator_create(session, &generation, &generator, &err), MOERT_ERR_LIMIT);
    moert_session_free(session);
    moert_engine_close(engine);
    options.sessions.n_beams = MOEC_MAX_BEAMS + 1;
    assert_int_equal(moert_engine_open(path, &options, &engine, &err), MOERT_ERR_USAGE);
    fixture_close(&fixture);
    free(path);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate__texts_are_those_of_transformers),
        cmocka_unit_test(test_generate__so_are_those_of_encoder_decoder_models),
        cmocka_unit_test(test_generate__serves_one_text_after_another),
        cmocka_unit_test(test_generate__a_full_context_ends_a_text),
        cmocka_unit_test(test_generate__refuses_what_cannot_be),
        cmocka_unit_test(test_generate__sequences_beside_each_other),
        cmocka_unit_test(test_generate__sequences_share_a_source),
        cmocka_unit_test(test_generate__the_library_asks_the_bundle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
