/* Precision by what the expert buffer holds: it differs with memory, faults and delays, and a replay of what
 * was decided gives the same bits with everything resident, whatever was drafted, truncated, forked or
 * searched with beams. */
#include "tests/unit/family_store.h"

#include "runtime/engine/moert_internal.h"
#include "runtime/policy/decide/decision_book.h"
#include "runtime/policy/decide/decision_log.h"
#include "tests/unit/faulty_reader.h"

#include <stdio.h>

#define N_CONTEXT 40u
#define N_PROMPT  12u
#define N_TEXT    100u
#define N_VOCAB   128u /* of a fixture, at most */
#define PRECISION "shared:0.3:0.8"

/* Two sequences as they stand at the end, and the logits of each of their positions. */
struct texts {
    uint32_t tokens[2][N_CONTEXT];
    uint32_t n[2];
    float logits[2][N_CONTEXT][N_VOCAB];
    uint32_t n_vocab;
    struct moert_decided decided;
};

static struct moert_options options_of(void)
{
    struct moert_options options = moert_options_default();
    options.sessions.n_context = N_CONTEXT;
    options.sessions.n_sessions = 2;
    options.n_threads = 1;
    return options;
}

/* The next n tokens of a sequence, whose logits are kept. A device that fails three times at a record fails
 * the step, which is then tried again. */
static void read_on(struct moert_session *session, struct texts *texts, int which, uint32_t n)
{
    struct moert_error err = {0};
    uint32_t at[N_CONTEXT];
    float logits[N_CONTEXT * N_VOCAB];
    const uint32_t first = moert_session_length(session);
    for (uint32_t i = 0; i < n; i++)
        at[i] = i;
    enum moert_status status = MOERT_ERR_IO;
    for (int i = 0; i < 20 && (status == MOERT_ERR_IO || status == MOERT_ERR_CHECKSUM); i++) {
        err = (struct moert_error){0};
        status = moert_session_step_at(session, texts->tokens[which] + first, n, at, n, logits, &err);
        assert_true(status == MOERT_OK || moert_session_length(session) == first);
    }
    if (status != MOERT_OK)
        fail_msg("%s", err.message);
    for (uint32_t i = 0; i < n; i++)
        memcpy(texts->logits[which][first + i], logits + (size_t)i * texts->n_vocab,
               texts->n_vocab * sizeof *logits);
}

/* Chunks and single tokens, of which some are taken back and replaced by others. */
static void wander(struct moert_session *session, struct texts *texts, int which, uint32_t end,
                   uint64_t *seed)
{
    while (moert_session_length(session) < end) {
        const uint32_t length = moert_session_length(session), room = end - length;
        const uint32_t drawn = random_u32(seed) % 3 == 0 ? 1 + random_u32(seed) % 7 : 1;
        const uint32_t n = drawn < room ? drawn : room;
        for (uint32_t i = 0; i < n; i++)
            texts->tokens[which][length + i] = random_u32(seed) % texts->n_vocab;
        read_on(session, texts, which, n);
        if (random_u32(seed) % 4 == 0)
            moert_session_truncate(session, length + n - random_u32(seed) % (n < 4 ? n + 1 : 4));
    }
    texts->n[which] = end;
}

/* Reads drawn texts at a size of the buffer (0: a drawn one), through a device with drawn faults and delays.
 */
static void record(const struct store *s, uint64_t seed, uint64_t buffer_bytes, struct texts *texts)
{
    struct faults faults = {.errors = random_u32(&seed) % 6000,
                            .flips = random_u32(&seed) % 6000,
                            .delays = random_u32(&seed) % 20000,
                            .swaps = random_u32(&seed) % 20000,
                            .delay_ns = 200000,
                            .state = seed | 1};
    const struct moec_record_io io = {.depth = 1 + random_u32(&seed) % 4,
                                      .test_hook = {faulty_wrap, &faults}};
    struct moert_options options = options_of();
    struct moert_error err = {0};
    struct moert_engine *engine = NULL;
    struct moert_session *sessions[2] = {NULL};
    static const char *const predictors[] = {"none", "frequency", "gate"};
    static const char *const policies[] = {"lru", "hobbit", "arc", "fate:1"};
    options.buffer.size_bytes = buffer_bytes > 0 ? buffer_bytes : 1 + random_u32(&seed) % 60000;
    options.buffer.evict = policies[random_u32(&seed) % 4];
    options.buffer.predict = predictors[random_u32(&seed) % 2 * 2];
    static const char *const low_slots[] = {NULL, "1", "25%", "100%"};
    options.decisions.precision = PRECISION;
    options.decisions.low_slots = low_slots[random_u32(&seed) % 4];
    options.decisions.record = s->file;
    options.decisions.decode_only = random_u32(&seed) % 4 == 0;
    if (moert_engine_open_io(s->bundle, &options, &io, &engine, &err) != MOERT_OK)
        fail_msg("%s", err.message);
    *texts = (struct texts){.n_vocab = moert_engine_info(engine).model.n_vocab};
    assert_true(texts->n_vocab <= N_VOCAB);
    assert_int_equal(moert_session_create(engine, &sessions[0], &err), MOERT_OK);
    moert_session_set_prompt(sessions[0], 5);
    wander(sessions[0], texts, 0, 10 + random_u32(&seed) % 8, &seed);
    assert_int_equal(moert_session_fork(sessions[0], &sessions[1], &err), MOERT_OK);
    memcpy(texts->tokens[1], texts->tokens[0], sizeof texts->tokens[0]);
    memcpy(texts->logits[1], texts->logits[0], sizeof texts->logits[0]);
    wander(sessions[1], texts, 1, N_CONTEXT - random_u32(&seed) % 4, &seed);
    wander(sessions[0], texts, 0, N_CONTEXT, &seed);
    texts->decided = moert_session_decided(sessions[1]);
    for (int i = 1; i >= 0; i--)
        moert_session_free(sessions[i]);
    assert_int_equal(moert_engine_end(engine, &err), MOERT_OK);
}

/* The same texts from their beginning in chunks of a size, with everything resident. Counts the logits that
 * differ in any bit. */
static uint32_t count_different(const struct store *s, const struct texts *recorded, uint32_t chunk)
{
    struct moert_options options = options_of();
    struct moert_error err = {0};
    struct moert_engine *engine = NULL;
    struct texts *texts = calloc(1, sizeof *texts);
    uint32_t n_different = 0;
    assert_non_null(texts);
    options.decisions.replay = s->file;
    options.n_threads = 2;
    if (moert_engine_open(s->bundle, &options, &engine, &err) != MOERT_OK)
        fail_msg("%s", err.message);
    texts->n_vocab = recorded->n_vocab;
    for (int which = 0; which < 2; which++) {
        struct moert_session *session = NULL;
        assert_int_equal(moert_session_create(engine, &session, &err), MOERT_OK);
        memcpy(texts->tokens[which], recorded->tokens[which], sizeof texts->tokens[which]);
        for (uint32_t done = 0; done < recorded->n[which]; done += chunk) {
            const uint32_t left = recorded->n[which] - done;
            read_on(session, texts, which, left < chunk ? left : chunk);
        }
        for (uint32_t i = 0; i < recorded->n[which]; i++)
            n_different += memcmp(texts->logits[which][i], recorded->logits[which][i],
                                  texts->n_vocab * sizeof(float)) != 0;
        moert_session_free(session);
    }
    moert_engine_close(engine);
    free(texts);
    return n_different;
}

static void replays(struct store *s, const char *family, uint32_t n_trial)
{
    struct texts *texts = calloc(1, sizeof *texts);
    uint64_t n_low = 0, n_skipped = 0, least = UINT64_MAX, most = 0;
    assert_non_null(texts);
    write_bundle(s, family);
    for (uint32_t trial = 0; trial < n_trial; trial++) {
        record(s, 0x9e3779b97f4a7c15u * (trial + 1), 0, texts);
        assert_int_equal(count_different(s, texts, 1 + trial % 9), 0);
        n_low += texts->decided.n_low;
        n_skipped += texts->decided.n_skipped;
        least = texts->decided.n_low < least ? texts->decided.n_low : least;
        most = texts->decided.n_low > most ? texts->decided.n_low : most;
    }
    assert_true(n_low > 0 && n_skipped > 0);
    assert_true(least < most); /* the buffer decides */
    free(texts);
}

static void test_shared_precision__a_replay_gives_the_same_bits(void **state)
{
    replays(*state, "olmoe", 16);
}

/* Positions that running states pass a second time keep what they decided. */
static void test_shared_precision__with_running_states_too(void **state)
{
    replays(*state, "qwen3_next", 12);
}

static void test_shared_precision__without_a_replay_the_bits_differ(void **state)
{
    struct store *s = *state;
    struct texts *texts = calloc(1, sizeof *texts);
    struct moert_options options = options_of();
    struct moert_error err = {0};
    struct moert_engine *engine = NULL;
    struct moert_session *session = NULL;
    uint32_t n_different = 0;
    assert_non_null(texts);
    write_bundle(s, "olmoe");
    record(s, 77, 1, texts);
    struct texts *again = calloc(1, sizeof *again);
    assert_non_null(again);
    options.decisions.precision = PRECISION;
    assert_int_equal(moert_engine_open(s->bundle, &options, &engine, &err), MOERT_OK);
    moert_engine_warm(engine);
    assert_int_equal(moert_session_create(engine, &session, &err), MOERT_OK);
    memcpy(again->tokens, texts->tokens, sizeof texts->tokens);
    again->n_vocab = texts->n_vocab;
    read_on(session, again, 0, texts->n[0]);
    for (uint32_t i = 0; i < texts->n[0]; i++)
        n_different += memcmp(again->logits[0][i], texts->logits[0][i], texts->n_vocab * sizeof(float)) != 0;
    assert_true(n_different > 0);
    moert_session_free(session);
    moert_engine_close(engine);
    free(texts);
    free(again);
}

/* High and low copies have pools, whose sizes follow from memory and --low-slots. */
static void test_shared_precision__memory_has_two_pools(void **state)
{
    struct store *s = *state;
    struct moert_options options = options_of();
    uint64_t low_bytes[3];
    write_bundle(s, "olmoe");
    for (int i = 0; i < 3; i++) {
        struct moert_error err = {0};
        struct moert_engine *engine = NULL;
        options.decisions.precision = i < 2 ? PRECISION : "hobbit:0.3:0.8";
        options.decisions.low_slots = i == 1 ? "100%" : NULL;
        options.buffer.size_bytes = 20000;
        if (moert_engine_open(s->bundle, &options, &engine, &err) != MOERT_OK)
            fail_msg("%s", err.message);
        const struct moert_info info = moert_engine_info(engine);
        low_bytes[i] = info.buffer.low_pool_bytes;
        assert_true(info.buffer.low_pool_bytes < info.memory.expert_buffer_bytes);
        moert_engine_close(engine);
    }
    assert_true(low_bytes[0] > 0 && low_bytes[1] > low_bytes[0] && low_bytes[2] == 0);
}

/* ---- generators ---- */

struct text {
    uint32_t tokens[N_TEXT];
    uint32_t n;
    uint64_t n_drafted, n_accepted;
};

static void generate(const struct store *s, const struct moert_options *options, uint64_t seed,
                     struct text *text)
{
    struct moert_error err = {0};
    struct faults faults = {.delays = 20000, .swaps = 10000, .delay_ns = 100000, .state = seed | 1};
    const struct moec_record_io io = {.depth = 2, .test_hook = {faulty_wrap, &faults}}, plain = {0};
    struct moert_engine *engine = NULL;
    struct moert_session *session = NULL;
    struct moert_generator *generator = NULL;
    enum moert_generated what = MOERT_GENERATED_TOKEN;
    uint32_t prompt[N_PROMPT];
    const bool is_replay = options->decisions.replay != NULL;
    text->n = 0;
    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = i % 4 * 17 + 3; /* which repeats, so that drafts are found */
    if (moert_engine_open_io(s->bundle, options, is_replay ? &plain : &io, &engine, &err) != MOERT_OK)
        fail_msg("%s", err.message);
    assert_int_equal(moert_session_create(engine, &session, &err), MOERT_OK);
    struct moert_generation generation = moert_generation_default(engine);
    generation.n_beams = options->sessions.n_beams;
    generation.n_tokens = N_TEXT;
    generation.ignore_end = true;
    generation.draft = options->sessions.drafts ? MOERT_DRAFT_LOOKUP : MOERT_DRAFT_NONE;
    assert_int_equal(moert_generator_create(session, &generation, &generator, &err), MOERT_OK);
    if (moert_generator_start(generator, prompt, N_PROMPT, &err) != MOERT_OK)
        fail_msg("%s", err.message);
    while (what == MOERT_GENERATED_TOKEN) {
        if (moert_generator_next(generator, &text->tokens[text->n], &what, &err) != MOERT_OK)
            fail_msg("%s", err.message);
        text->n += what == MOERT_GENERATED_TOKEN;
    }
    text->n_drafted = moert_generator_drafted(generator);
    text->n_accepted = moert_generator_accepted(generator);
    moert_generator_free(generator);
    moert_session_free(session);
    assert_int_equal(moert_engine_end(engine, &err), MOERT_OK);
}

static void replays_generated(const struct store *s, uint32_t n_beams, bool drafts)
{
    struct text text, again;
    uint64_t n_rejected = 0;
    for (uint64_t trial = 0; trial < 8; trial++) {
        struct moert_options options = options_of();
        options.sessions.n_context = N_PROMPT + N_TEXT;
        options.sessions.n_sessions = 1;
        options.sessions.n_beams = n_beams;
        options.sessions.drafts = drafts;
        options.buffer.size_bytes = 1 + trial * 5000;
        options.decisions.precision = PRECISION;
        options.decisions.record = s->file;
        generate(s, &options, 31 * trial + 5, &text);
        options.buffer.size_bytes = 0;
        options.sessions.drafts = false;
        options.decisions = (struct moert_decisions){.replay = s->file};
        generate(s, &options, 0, &again);
        assert_int_equal(again.n, text.n);
        assert_memory_equal(again.tokens, text.tokens, text.n * sizeof *text.tokens);
        n_rejected += text.n_drafted - text.n_accepted;
    }
    assert_int_equal(n_rejected > 0, drafts);
}

static void test_shared_precision__drafts_leave_what_stands(void **state)
{
    write_bundle(*state, "olmoe");
    replays_generated(*state, 1, true);
    write_bundle(*state, "qwen3_next");
    replays_generated(*state, 1, true);
}

static void test_shared_precision__beams_are_told_apart(void **state)
{
    write_bundle(*state, "olmoe");
    replays_generated(*state, 3, false);
    write_bundle(*state, "qwen3_next");
    replays_generated(*state, 4, false);
}

/* ---- what a replay refuses ---- */

static void refuses_step(const struct store *s, const uint32_t *tokens, uint32_t n, uint32_t n_session,
                         const char *words)
{
    struct moert_options options = options_of();
    struct moert_error err = {0};
    struct moert_engine *engine = NULL;
    struct moert_session *sessions[3] = {NULL};
    options.sessions.n_sessions = 3;
    options.decisions.replay = s->file;
    assert_int_equal(moert_engine_open(s->bundle, &options, &engine, &err), MOERT_OK);
    for (uint32_t i = 0; i < n_session; i++)
        assert_int_equal(moert_session_create(engine, &sessions[i], &err), MOERT_OK);
    assert_int_equal(moert_session_step(sessions[n_session - 1], tokens, n, NULL, &err), MOERT_ERR_MISMATCH);
    if (strstr(err.message, words) == NULL)
        fail_msg("'%s' has no '%s'", err.message, words);
    assert_int_equal(moert_session_length(sessions[n_session - 1]), 0);
    for (uint32_t i = 0; i < n_session; i++)
        moert_session_free(sessions[i]);
    moert_engine_close(engine);
}

static void test_shared_precision__a_replay_knows_its_text(void **state)
{
    struct store *s = *state;
    struct texts *texts = calloc(1, sizeof *texts);
    uint32_t tokens[N_CONTEXT];
    char words[64];
    assert_non_null(texts);
    write_bundle(s, "olmoe");
    record(s, 123, 0, texts);
    memcpy(tokens, texts->tokens[0], sizeof tokens);
    tokens[17]++;
    (void)snprintf(words, sizeof words, "position 17 of sequence 0 beam 0 has token %u",
                   (unsigned)tokens[17]);
    refuses_step(s, tokens, N_CONTEXT, 1, words);
    refuses_step(s, tokens, 5, 3, "no decisions for sequence 2 beam 0");
    uint64_t seed = 123;
    do
        record(s, random_u32(&seed), 0, texts);
    while (texts->n[1] == N_CONTEXT);
    memcpy(tokens, texts->tokens[1], sizeof tokens);
    (void)snprintf(words, sizeof words, "position %u of sequence 1 beam 0 is not in", (unsigned)texts->n[1]);
    refuses_step(s, tokens, N_CONTEXT, 2, words);
    free(texts);
}

static void refuses_open(const struct store *s, const struct moert_options *options,
                         enum moert_status expected, const char *words)
{
    struct moert_error err = {0};
    struct moert_engine *engine = NULL;
    assert_int_equal(moert_engine_open(s->bundle, options, &engine, &err), expected);
    if (strstr(err.message, words) == NULL)
        fail_msg("'%s' has no '%s'", err.message, words);
}

static void test_shared_precision__a_replay_is_of_one_bundle_and_its_settings(void **state)
{
    struct store *s = *state;
    struct texts *texts = calloc(1, sizeof *texts);
    assert_non_null(texts);
    write_bundle(s, "olmoe");
    record(s, 9, 0, texts);
    free(texts);
    struct moert_options options = options_of();
    options.decisions.replay = s->file;
    options.arithmetic = "int8";
    refuses_open(s, &options, MOERT_ERR_MISMATCH,
                 "recorded with arithmetic 'canonical', but this run uses 'int8'");
    options.arithmetic = NULL;
    options.sessions.kv = "f16";
    refuses_open(s, &options, MOERT_ERR_MISMATCH, "keys and values in 'f32', but this run uses 'f16'");
    options.sessions.kv = NULL;
    options.decisions.precision = "shared:0.3:0.7";
    refuses_open(s, &options, MOERT_ERR_MISMATCH,
                 "with precision 'shared:0.3:0.8', expected 'shared:0.3:0.7'");
    options.decisions.precision = "hobbit:0.3:0.8";
    refuses_open(s, &options, MOERT_ERR_MISMATCH, "expected 'hobbit:0.3:0.8'");
    options.decisions.precision = NULL;
    options.decisions.record = s->file;
    refuses_open(s, &options, MOERT_ERR_USAGE, "cannot record to");
    options.decisions.record = NULL;
    options.sessions.drafts = true;
    refuses_open(s, &options, MOERT_ERR_USAGE, "replay without drafts");
    options.sessions.drafts = false;
    options.decisions.none = true;
    refuses_open(s, &options, MOERT_ERR_USAGE, "decisions are turned off");
    options.decisions.none = false;
    options.decisions.replay = s->bundle;
    refuses_open(s, &options, MOERT_ERR_FORMAT, "is not a decision file");
    options.decisions.replay = s->file;
    write_bundle(s, "qwen2_moe");
    refuses_open(s, &options, MOERT_ERR_MISMATCH, "was recorded with another bundle");
}

static void test_shared_precision__what_does_nothing_is_refused(void **state)
{
    struct store *s = *state;
    struct moert_options options = options_of();
    write_bundle(s, "olmoe");
    options.decisions.precision = "shared";
    options.decisions.slots = "50%";
    refuses_open(s, &options, MOERT_ERR_USAGE, "slots and start of a logical cache have no effect");
    options.decisions.slots = NULL;
    options.decisions.low_slots = "999";
    refuses_open(s, &options, MOERT_ERR_USAGE,
                 "the memory for low-precision copies (low_slots) has room for 999 experts per layer, "
                 "expected 1 to");
    options.decisions.precision = NULL;
    options.decisions.low_slots = "50%";
    refuses_open(s, &options, MOERT_ERR_USAGE,
                 "settings of low-precision copies (low_slots, low_bits) are given without a precision or a "
                 "prefill");
    options.decisions.low_slots = NULL;
    options.decisions.precision = "shared";
    options.decisions.route = "cache-prior:0.2";
    refuses_open(s, &options, MOERT_ERR_USAGE, "a route decides by a logical cache");
    options.decisions.route = NULL;
    options.decisions.prefill = "unpopular";
    refuses_open(s, &options, MOERT_ERR_USAGE, "a prefill decides by a logical cache");
    options.decisions.prefill = NULL;
    options.copy = 1;
    refuses_open(s, &options, MOERT_ERR_USAGE, "no precision copy that is smaller");
    options.copy = 0;
    options.decisions.precision = "hobbit";
    options.decisions.record = s->file;
    refuses_open(s, &options, MOERT_ERR_USAGE, "only with precision shared:T1:T2");
    options.decisions.precision = NULL;
    refuses_open(s, &options, MOERT_ERR_USAGE, "only with precision shared:T1:T2");
}

/* ---- the log ---- */

/* What stands is taken again; what was taken back, and what a beam did not compute itself, is not. */
static void test_shared_precision__a_log_knows_what_stands(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {5, 6, 7, 8};
    const struct moec_decision_header header = {.n_layer = 2, .top_k = 3};
    struct moec_error err = {0};
    struct moec_decision_book *book = NULL;
    struct moec_decision_log log = {.n_layer = 2, .top_k = 3, .n_context = 8}, other = log, beam = log;
    assert_ok(moec_decision_book_create(NULL, &header, &book, &err), err);
    assert_int_equal(moec_decision_book_next(book), 0);
    assert_int_equal(moec_decision_book_next(book), 1);
    assert_ok(moec_decision_log_create(book, 0, 0, &log, &err), err);
    assert_ok(moec_decision_log_create(book, 1, 0, &other, &err), err);
    assert_ok(moec_decision_log_create(book, 0, 1, &beam, &err), err);
    moec_decision_log_begin_step(&log, 0, tokens, 4);
    assert_null(moec_decision_log_find(&log, 0, 0));
    moec_decision_log_at(&log, 3, 1)[2] = MOEC_DECIDED_LOW;
    moec_decision_log_begin_step(&log, 2, tokens, 4); /* of which two run again */
    assert_ptr_equal(moec_decision_log_find(&log, 3, 1), moec_decision_log_at(&log, 3, 1));
    assert_null(moec_decision_log_find(&log, 4, 1));
    moec_decision_log_truncate(&log, 3);
    moec_decision_log_begin_step(&log, 3, tokens, 2);
    assert_null(moec_decision_log_find(&log, 3, 1));
    assert_true(log.first == 0 && log.end == 5);
    moec_decision_log_follow(&other, &log, 5, true);
    assert_true(other.first == 0 && other.end == 5 && other.tokens[4] == 6);
    assert_int_equal(moec_decision_log_at(&other, 3, 1)[2], MOEC_DECIDED_LOW);
    moec_decision_log_follow(&beam, &log, 5, false);
    moec_decision_log_begin_step(&beam, 5, tokens, 1);
    assert_true(beam.first == 5 && beam.end == 6);
    moec_decision_log_truncate(&beam, 4);
    moec_decision_log_begin_step(&beam, 4, tokens, 2);
    assert_true(beam.first == 4 && beam.end == 6);
    assert_null(moec_decision_log_find(&beam, 4, 0));
    moec_decision_log_end(&log, 5);
    moec_decision_log_end(&other, 5);
    moec_decision_log_end(&beam, 6);
    assert_ok(moec_decision_book_close(book, &err), err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_shared_precision__a_replay_gives_the_same_bits, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_shared_precision__with_running_states_too, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shared_precision__without_a_replay_the_bits_differ, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_shared_precision__memory_has_two_pools, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shared_precision__drafts_leave_what_stands, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shared_precision__beams_are_told_apart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shared_precision__a_replay_knows_its_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shared_precision__a_replay_is_of_one_bundle_and_its_settings,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_shared_precision__what_does_nothing_is_refused, set_up,
                                        tear_down),
        cmocka_unit_test(test_shared_precision__a_log_knows_what_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
