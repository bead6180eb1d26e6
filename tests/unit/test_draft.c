/* Drafts: what the lookup finds, how long a draft is worth being, and that a text with drafts is the text
 * without. */
#include "tests/unit/fixture_model.h"

#include "tests/unit/fixture_bundle.h"

#include "runtime/generate/draft_pace.h"
#include "runtime/generate/generate.h"

#define N_CONTEXT 96

/* ---- lookup ---- */

static uint32_t find(const uint32_t *text, uint32_t n, uint32_t *draft)
{
    struct moec_draft_lookup lookup;
    struct moec_error err = {0};
    assert_ok(moec_draft_lookup_create(n, &lookup, &err), err);
    moec_draft_lookup_append(&lookup, text, n / 2);
    moec_draft_lookup_append(&lookup, text + n / 2, n - n / 2);
    const uint32_t n_equal = moec_draft_lookup_find(&lookup, 4, draft);
    moec_draft_lookup_release(&lookup);
    return n_equal;
}

#define FIND(draft, ...)                                                                                     \
    find((const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), draft)

static void test_draft__lookup_takes_the_longest_match(void **state)
{
    (void)state;
    uint32_t draft[4];
    /* 1 2 3 was followed by 7 8, later 2 3 by 9. */
    assert_int_equal(FIND(draft, 1, 2, 3, 7, 8, 6, 6, 2, 3, 9, 5, 1, 2, 3), 3);
    assert_memory_equal(draft, ((const uint32_t[]){7, 8, 6, 6}), sizeof draft);
    /* Of equal matches the later one. */
    assert_int_equal(FIND(draft, 2, 3, 4, 0, 2, 3, 5, 0, 2, 3), 3);
    assert_memory_equal(draft, ((const uint32_t[]){5, 0, 2, 3}), sizeof draft);
    assert_int_equal(FIND(draft, 9, 2, 3, 4, 4, 8, 2, 3, 5, 5, 7, 2, 3), 2);
    assert_memory_equal(draft, ((const uint32_t[]){5, 5, 7, 2}), sizeof draft);
}

static void test_draft__lookup_continues_a_repetition(void **state)
{
    (void)state;
    uint32_t draft[4];
    assert_int_equal(FIND(draft, 5, 1, 2, 1, 2), 2);
    assert_memory_equal(draft, ((const uint32_t[]){1, 2, 1, 2}), sizeof draft);
    assert_int_equal(FIND(draft, 7, 7, 7), 2);
    assert_memory_equal(draft, ((const uint32_t[]){7, 7, 7, 7}), sizeof draft);
    assert_int_equal(FIND(draft, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3), MOEC_LOOKUP_MOST);
}

static void test_draft__lookup_finds_nothing(void **state)
{
    (void)state;
    uint32_t draft[4];
    assert_int_equal(FIND(draft, 1), 0);
    assert_int_equal(FIND(draft, 1, 1), 0);
    assert_int_equal(FIND(draft, 1, 2, 3, 4, 3), 0);
}

/* ---- pace ---- */

static void test_draft__pace_takes_what_pays(void **state)
{
    (void)state;
    struct moec_draft_pace pace;
    moec_draft_pace_reset(&pace);
    assert_int_equal(moec_draft_pace_choose(&pace, 2, 8), 0); /* nothing was measured */
    moec_draft_pace_step(&pace, 0, 1000);
    assert_int_equal(moec_draft_pace_choose(&pace, 2, 1), 0);
    /* A guess: half are right, at a quarter of a step. */
    assert_int_equal(moec_draft_pace_choose(&pace, 2, 8), 2);
    for (uint32_t i = 0; i < 20; i++) {
        moec_draft_pace_step(&pace, 4, 1040);
        moec_draft_pace_answer(&pace, 5, true);
        moec_draft_pace_answer(&pace, 3, i % 2 == 0);
        moec_draft_pace_answer(&pace, 2, false);
    }
    assert_int_equal(moec_draft_pace_choose(&pace, 5, 8), 8);
    assert_int_equal(moec_draft_pace_choose(&pace, 5, 7), 4);
    assert_int_equal(moec_draft_pace_choose(&pace, 3, 8), 4);
    assert_int_equal(moec_draft_pace_choose(&pace, 2, 8), 0);
    /* Another length turns out to be cheaper than its neighbours. */
    for (uint32_t n = 2; n <= 8; n *= 2)
        for (int i = 0; i < 200; i++)
            moec_draft_pace_step(&pace, n, n == 4 ? 1500 : 1000 + 400 * n);
    assert_int_equal(moec_draft_pace_choose(&pace, 5, 8), 4);
    assert_int_equal(moec_draft_pace_choose(&pace, 5, 3), 2);
    /* A drafted token takes as long as a step: even a sure one gains nothing. */
    for (uint32_t n = 2; n <= 8; n *= 2)
        for (int i = 0; i < 200; i++)
            moec_draft_pace_step(&pace, n, 1000 + 1000 * n);
    assert_int_equal(moec_draft_pace_choose(&pace, 5, 8), 0);
    /* One step that something held up does not count for more than two. */
    moec_draft_pace_reset(&pace);
    for (int i = 0; i < 20; i++)
        moec_draft_pace_step(&pace, 0, 1000);
    moec_draft_pace_step(&pace, 0, 1000000);
    assert_true(pace.step_ns[0] < 1100);
}

static void test_draft__pace_measures_again(void **state)
{
    (void)state;
    struct moec_draft_pace pace;
    moec_draft_pace_reset(&pace);
    moec_draft_pace_step(&pace, 0, 1000);
    moec_draft_pace_step(&pace, 2, 5000);
    uint32_t n_tried = 0;
    for (uint32_t i = 0; i < 16 * MOEC_DRAFT_PROBE; i++)
        n_tried += moec_draft_pace_choose(&pace, 3, 8) > 0;
    assert_int_equal(n_tried, 4); /* after 8, 16, 32 and 64 */
    assert_int_equal(moec_draft_pace_choose(&pace, 3, 8), 0);
    for (uint32_t i = 0; i < 64 * MOEC_DRAFT_REST; i++)
        n_tried += moec_draft_pace_choose(&pace, 3, 8) > 0;
    assert_in_range(n_tried, 64, 72);
    moec_draft_pace_step(&pace, 4, 1010);
    uint32_t n_plain = 0;
    for (uint32_t i = 0; i < 16 * MOEC_DRAFT_PROBE; i++)
        n_plain += moec_draft_pace_choose(&pace, 3, 8) == 0;
    assert_int_equal(n_plain, 4);
}

/* ---- texts ---- */

struct text {
    uint32_t tokens[N_CONTEXT];
    uint32_t n;
    enum moec_generated how;
    uint64_t n_steps, n_drafted, n_accepted;
    uint32_t length; /* of the session afterwards */
};

struct subject {
    struct fixture fixture;
    struct moec_forward forward;
    struct moec_session *session;
    const uint32_t *prompt;
    uint32_t n_prompt;
};

static void open_subject(struct subject *s, const char *name, uint32_t max_tokens)
{
    struct moec_error err = {0};
    s->fixture = fixture_open(name);
    s->fixture.model->config.ids.n_eos = 0;
    assert_ok(moec_forward_init(&s->forward, s->fixture.model, moec_kernels_best(), 1,
                                moec_variants_experts(s->fixture.variants), max_tokens, &err),
              err);
    assert_ok(moec_session_create(&s->forward, N_CONTEXT, &s->session, &err), err);
    s->prompt = s->fixture.source != NULL ? s->fixture.source : s->fixture.tokens;
    s->n_prompt = 6;
}

static void close_subject(struct subject *s)
{
    moec_session_free(s->session);
    moec_forward_release(&s->forward);
    fixture_close(&s->fixture);
}

static void read_text(const struct subject *s, struct moec_generator *generator, uint32_t n_tokens,
                      struct text *text)
{
    struct moec_error err = {0};
    assert_ok(moec_generator_start(generator, s->prompt, s->n_prompt, n_tokens, &err), err);
    text->how = MOEC_GENERATED_TOKEN;
    for (text->n = 0; text->how == MOEC_GENERATED_TOKEN;) {
        uint32_t token = 0;
        assert_ok(moec_generator_next(generator, &token, &text->how, &err), err);
        if (text->how == MOEC_GENERATED_TOKEN || text->how == MOEC_GENERATED_END)
            text->tokens[text->n++] = token;
    }
    text->n_steps = moec_generator_steps(generator);
    text->n_drafted = moec_generator_drafted(generator);
    text->n_accepted = moec_generator_accepted(generator);
    text->length = moec_session_length(s->session);
}

/* A text without drafts and the same with them, which must be equal in everything but steps. */
static struct text compare(const struct subject *s, const struct moec_generation *generation,
                           struct moert_sampler sampler, uint32_t n_tokens)
{
    struct moec_error err = {0};
    struct text texts[2];
    for (int drafts = 0; drafts < 2; drafts++) {
        struct moec_generator *generator = NULL;
        const struct moec_generator_options options = {
            .generation = generation, .sampler = sampler, .drafts = drafts != 0};
        assert_ok(moec_generator_create(s->session, &options, &generator, &err), err);
        read_text(s, generator, n_tokens, &texts[drafts]);
        moec_generator_free(generator);
    }
    assert_int_equal(texts[0].n, texts[1].n);
    assert_int_equal(texts[0].how, texts[1].how);
    assert_int_equal(texts[0].length, texts[1].length);
    assert_memory_equal(texts[0].tokens, texts[1].tokens, texts[0].n * sizeof *texts[0].tokens);
    assert_int_equal(texts[0].n_drafted + texts[0].n_accepted, 0);
    assert_int_equal(texts[0].n_steps, texts[1].n_steps + texts[1].n_accepted);
    assert_true(texts[1].n_accepted <= texts[1].n_drafted);
    return texts[1];
}

static void check_family(const char *name, uint32_t max_tokens, uint64_t *n_drafted, uint64_t *n_accepted)
{
    struct subject s;
    open_subject(&s, name, max_tokens);
    struct moec_generation generation = moec_generation_default();
    for (int i = 0; i < 4; i++) {
        /* Random weights repeat themselves soon, so that drafts are right; cold draws too. */
        const struct moert_sampler sampler = {
            .temperature = i < 2 ? 0 : 0.05f * (float)i, .top_k = i == 3 ? 3 : 0, .top_p = 1, .state = 7};
        generation.repetition_penalty = i == 1 ? 1.02 : 1;
        const struct text text = compare(&s, &generation, sampler, 64);
        *n_drafted += text.n_drafted;
        *n_accepted += text.n_accepted;
    }
    close_subject(&s);
}

static void test_draft__texts_are_those_without(void **state)
{
    (void)state;
    uint64_t n_drafted = 0, n_accepted = 0;
    for (size_t i = 0; i < N_FIXTURE_FAMILIES; i++)
        check_family(fixture_families[i], 16, &n_drafted, &n_accepted);
    for (size_t i = 0; i < N_FIXTURE_PAIRS; i++)
        check_family(fixture_pairs[i], 16, &n_drafted, &n_accepted);
    check_family("lfm2_moe", 16, &n_drafted, &n_accepted);
    check_family("qwen3_next", 16, &n_drafted, &n_accepted);
    assert_true(n_drafted > n_accepted && n_accepted > 0);
    /* Chunks of one token leave no room for drafts. */
    n_drafted = 0;
    check_family("olmoe", 1, &n_drafted, &n_accepted);
    assert_int_equal(n_drafted, 0);
}

/* Texts of every length, and of every end-of-text token, so that some end where the draft would go on. */
static void test_draft__a_text_may_end_inside_a_draft(void **state)
{
    (void)state;
    struct subject s;
    open_subject(&s, "olmoe", 16);
    const struct moec_generation generation = moec_generation_default();
    uint64_t n_accepted = 0;
    for (uint32_t n_tokens = 0; n_tokens <= N_CONTEXT; n_tokens += n_tokens < 40 ? 1 : 7) {
        const struct text text = compare(&s, &generation, moert_sampler_greedy(), n_tokens);
        n_accepted += text.n_accepted;
        if (n_tokens > N_CONTEXT - s.n_prompt + 1)
            assert_int_equal(text.how, MOEC_GENERATED_CONTEXT);
    }
    assert_true(n_accepted > 0);
    /* Each token of the text in turn becomes the one that ends it. */
    const struct text whole = compare(&s, &generation, moert_sampler_greedy(), 40);
    struct moec_config *config = &s.fixture.model->config;
    uint32_t n_ended = 0;
    for (uint32_t i = 0; i < whole.n; i++) {
        config->ids.n_eos = 1;
        config->ids.eos[0] = whole.tokens[i];
        const struct text text = compare(&s, &generation, moert_sampler_greedy(), 40);
        n_ended += text.how == MOEC_GENERATED_END;
    }
    assert_int_equal(n_ended, whole.n);
    close_subject(&s);
}

static void test_draft__one_generator_serves_many_texts(void **state)
{
    (void)state;
    struct subject s;
    struct moec_error err = {0};
    struct moec_generator *generator = NULL;
    struct text first, other, again;
    open_subject(&s, "qwen2_moe", 16);
    const struct moec_generation generation = moec_generation_default();
    const struct moec_generator_options options = {
        .generation = &generation, .sampler = moert_sampler_greedy(), .drafts = true};
    assert_ok(moec_generator_create(s.session, &options, &generator, &err), err);
    read_text(&s, generator, 40, &first);
    s.prompt += 10;
    read_text(&s, generator, 50, &other);
    s.prompt -= 10;
    read_text(&s, generator, 40, &again);
    assert_int_equal(first.n, again.n);
    assert_memory_equal(first.tokens, again.tokens, first.n * sizeof *first.tokens);
    moec_generator_free(generator);
    close_subject(&s);
}

static void test_draft__refuses_beams(void **state)
{
    (void)state;
    struct subject s;
    struct moec_error err = {0};
    struct moec_generator *generator = NULL;
    open_subject(&s, "olmoe", 16);
    struct moec_generation generation = moec_generation_default();
    generation.n_beam = 2;
    const struct moec_generator_options options = {
        .generation = &generation, .sampler = moert_sampler_greedy(), .drafts = true};
    assert_int_equal(moec_generator_create(s.session, &options, &generator, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "drafts need a single beam"));
    const struct moec_config *config = &s.fixture.model->config;
    const uint64_t rows = (uint64_t)MOERT_DRAFT_TOKENS * config->n_vocab * sizeof(float);
    assert_true(moec_generator_bytes(config, 64, 1, true) >=
                moec_generator_bytes(config, 64, 1, false) + rows);
    close_subject(&s);
}

static void test_draft__the_library_has_room_only_if_asked(void **state)
{
    (void)state;
    struct moert_error err = {0};
    struct moert_options options = moert_options_default();
    struct moert_engine *engine = NULL;
    struct moert_session *session = NULL;
    struct moert_generator *generator = NULL;
    char *folder = temporary_folder(), *path = temporary_path(folder, "m.moec");
    fixture_bundle_write("tests/fixtures/families/olmoe", path, 16, false);
    uint64_t planned[2];
    for (int drafts = 0; drafts < 2; drafts++) {
        options.sessions.drafts = drafts != 0;
        assert_int_equal(moert_engine_open(path, &options, &engine, &err), MOERT_OK);
        planned[drafts] =
            moert_engine_info(engine).memory.total_bytes - moert_engine_info(engine).memory.base_bytes;
        assert_int_equal(moert_session_create(engine, &session, &err), MOERT_OK);
        struct moert_generation generation = moert_generation_default(engine);
        generation.draft = MOERT_DRAFT_LOOKUP;
        assert_int_equal(moert_generator_create(session, &generation, &generator, &err),
                         drafts != 0 ? MOERT_OK : MOERT_ERR_LIMIT);
        if (drafts != 0)
            moert_generator_free(generator);
        generation.draft = (enum moert_draft)7;
        assert_int_equal(moert_generator_create(session, &generation, &generator, &err), MOERT_ERR_USAGE);
        moert_session_free(session);
        moert_engine_close(engine);
    }
    assert_true(planned[1] > planned[0]);
    free(path);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draft__lookup_takes_the_longest_match),
        cmocka_unit_test(test_draft__lookup_continues_a_repetition),
        cmocka_unit_test(test_draft__lookup_finds_nothing),
        cmocka_unit_test(test_draft__pace_takes_what_pays),
        cmocka_unit_test(test_draft__pace_measures_again),
        cmocka_unit_test(test_draft__texts_are_those_without),
        cmocka_unit_test(test_draft__a_text_may_end_inside_a_draft),
        cmocka_unit_test(test_draft__one_generator_serves_many_texts),
        cmocka_unit_test(test_draft__refuses_beams),
        cmocka_unit_test(test_draft__the_library_has_room_only_if_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
