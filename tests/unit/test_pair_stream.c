/* Encoder-decoder models from a bundle, with experts that come and go: the same bits at any budget, policy,
 * predictor and mode, and the encoder's experts are read once for each input. */
#include "tests/unit/cache_totals.h"
#include "tests/unit/fixture_bundle.h"

#include "formats/base/file.h"
#include "formats/bundle/bundle.h"
#include "formats/trace/trace_json.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/experts/expert_stream.h"
#include "runtime/forward/pass/session.h"
#include "runtime/moert.h"

#define MAX_SOURCE 64
#define MAX_TOK    64

struct pair {
    char *folder, *path;
    struct moec_bundle *bundle;
    struct moec_model *model;
    struct moec_record_sizes sizes;
    uint32_t *source, *tokens;
    uint32_t n_source, n_tok;
    size_t n_vocab;
    float *expected; /* (2, n_tok, n_vocab): after the fixture's source, and after its target as a source */
};

static uint32_t *load_tokens(const char *name, const char *file, uint32_t *n)
{
    struct moec_error err = {0};
    char path[128], *bytes = NULL;
    size_t n_bytes = 0;
    (void)snprintf(path, sizeof path, "tests/fixtures/families/%s/%s", name, file);
    assert_status(moec_file_load(path, 1 << 16, &bytes, &n_bytes, &err), MOEC_OK, err);
    *n = (uint32_t)(n_bytes / sizeof(uint32_t));
    return (uint32_t *)(void *)bytes;
}

/* Both inputs, one after the other in one session. */
static void run(const struct pair *pair, struct moec_experts *experts, uint32_t max_tokens, float *logits)
{
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_session *session = NULL;
    assert_status(moec_forward_init(&forward, pair->model, moec_kernels_best(), 2, experts, max_tokens, &err),
                  MOEC_OK, err);
    assert_status(moec_session_create(&forward, MAX_SOURCE, &session, &err), MOEC_OK, err);
    for (int input = 0; input < 2; input++) {
        const uint32_t *source = input == 0 ? pair->source : pair->tokens;
        assert_status(moec_session_encode(session, source, input == 0 ? pair->n_source : pair->n_tok, &err),
                      MOEC_OK, err);
        for (uint32_t i = 0; i < pair->n_tok; i++, logits += pair->n_vocab) {
            const uint32_t at = 0;
            assert_status(moec_session_step(session, pair->tokens + i, 1, &at, 1, logits, &err), MOEC_OK,
                          err);
        }
    }
    moec_session_free(session);
    moec_forward_release(&forward);
}

static float *room_for_logits(const struct pair *pair)
{
    float *logits = calloc(2 * pair->n_tok * pair->n_vocab, sizeof *logits);
    assert_non_null(logits);
    return logits;
}

static struct pair open_pair(const char *name)
{
    struct pair pair = {.folder = temporary_folder()};
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    char fixture[128];
    pair.path = temporary_path(pair.folder, "m.moec");
    (void)snprintf(fixture, sizeof fixture, "tests/fixtures/families/%s", name);
    fixture_bundle_write(fixture, pair.path, 16, true);
    assert_status(moec_bundle_open(pair.path, &pair.bundle, &err), MOEC_OK, err);
    assert_status(moec_bundle_load_dense(pair.bundle, &dense, &err), MOEC_OK, err);
    assert_status(moec_model_create(&pair.bundle->config, &dense, &pair.model, &err), MOEC_OK, err);
    pair.sizes = moec_record_sizes_of(pair.bundle, 0);
    pair.source = load_tokens(name, "source.u32", &pair.n_source);
    pair.tokens = load_tokens(name, "tokens.u32", &pair.n_tok);
    pair.n_vocab = pair.bundle->config.n_vocab;
    const struct moec_expert_cache_options options = {.buffer.n_bytes = pair.sizes.all_bytes,
                                                      .keeps.is_resident = true};
    struct moec_expert_cache *cache = NULL;
    assert_status(moec_expert_cache_create(pair.bundle, &options, &cache, &err), MOEC_OK, err);
    pair.expected = room_for_logits(&pair);
    run(&pair, moec_expert_cache_experts(cache), MAX_TOK, pair.expected);
    moec_expert_cache_free(cache);
    return pair;
}

static void close_pair(struct pair *pair)
{
    free(pair->expected);
    free(pair->source);
    free(pair->tokens);
    moec_model_free(pair->model);
    moec_bundle_close(pair->bundle);
    free(pair->path);
    temporary_remove(pair->folder);
}

static void check(const struct pair *pair, struct moec_experts *experts, uint32_t max_tokens)
{
    float *logits = room_for_logits(pair);
    run(pair, experts, max_tokens, logits);
    assert_memory_equal(logits, pair->expected, 2 * pair->n_tok * pair->n_vocab * sizeof *logits);
    free(logits);
}

static const char *const names[] = {"switch", "switch-gated", "switch-full", "switch-gelu"};

/* Buffers from one record to all, every policy, guesses of the next gate, chunks shorter than the source. */
static void test_pair_stream__same_bits_however_it_streams(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct pair pair = open_pair(names[f]);
        for (uint32_t i = 0; moec_evict_policies[i] != NULL; i++) {
            const uint64_t spare = pair.sizes.all_bytes - pair.sizes.largest_bytes;
            const struct moec_expert_cache_options options = {
                .buffer.n_bytes = pair.sizes.largest_bytes + spare * i / 8,
                .keeps = {.policy = moec_evict_policies[i], .nothing = i == 3},
                .preload = {.predictor = i % 2 == 0 ? &moec_predict_gate : NULL, .count = i % 3}};
            struct moec_error err = {0};
            struct moec_expert_cache *cache = NULL;
            assert_status(moec_expert_cache_create(pair.bundle, &options, &cache, &err), MOEC_OK, err);
            check(&pair, moec_expert_cache_experts(cache), i % 2 == 0 ? MAX_TOK : 9);
            moec_expert_cache_free(cache);
        }
        close_pair(&pair);
    }
}

/* In order, over the encoder once for each input and then round and round the decoder. */
static void test_pair_stream__same_bits_in_order(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct pair pair = open_pair(names[f]);
        for (uint32_t i = 0; i < 4; i++) {
            const uint64_t spare = pair.sizes.all_bytes - pair.sizes.largest_bytes;
            const struct moec_expert_stream_options options = {.buffer_bytes =
                                                                   pair.sizes.largest_bytes + spare * i / 3};
            struct moec_error err = {0};
            struct moec_expert_stream *stream = NULL;
            assert_status(moec_expert_stream_create(pair.bundle, &options, &stream, &err), MOEC_OK, err);
            check(&pair, moec_expert_stream_experts(stream), i % 2 == 0 ? MAX_TOK : 9);
            const uint32_t n_encoder = moec_config_moe_encoder_count(&pair.bundle->config);
            uint64_t record_bytes = 0;
            for (uint32_t e = 0; e < pair.bundle->config.n_expert; e++)
                record_bytes +=
                    moec_record_slot_bytes(pair.bundle, 0, 0, e); /* requests begin at the device's blocks */
            if (n_encoder > 0 && i % 2 == 0) /* what was begun and passed may have been read in part */
                assert_in_range(moec_expert_stream_layer_counters(stream, 0).read_bytes, 1, 2 * record_bytes);
            moec_expert_stream_free(stream);
        }
        close_pair(&pair);
    }
}

/* With room for one layer each expert of the encoder is read at most once for an input, whether that is read
 * whole or in parts. */
static void test_pair_stream__edgemoe_reads_the_encoder_once(void **state)
{
    (void)state;
    struct pair pair = open_pair("switch");
    const struct moec_config *config = &pair.bundle->config;
    const uint32_t n_encoder = moec_config_moe_encoder_count(config), n_moe = moec_config_moe_count(config);
    const struct moec_expert_cache_options options = {
        .buffer.n_bytes =
            (n_moe - n_encoder + 1) * config->n_expert * moec_record_slot_bytes(pair.bundle, 1, 0, 0),
        .records.copy = 1, /* records of one size leave no holes */
        .keeps.policy = &moec_evict_edgemoe};
    float *logits[] = {room_for_logits(&pair), room_for_logits(&pair)};
    uint64_t whole_misses[MOEC_MAX_LAYERS] = {0};
    assert_true(n_encoder > 1);
    for (uint32_t part = 0; part < 2; part++) {
        struct moec_error err = {0};
        struct moec_expert_cache *cache = NULL;
        assert_status(moec_expert_cache_create(pair.bundle, &options, &cache, &err), MOEC_OK, err);
        run(&pair, moec_expert_cache_experts(cache), part == 0 ? MAX_TOK : 1, logits[part]);
        for (uint32_t s = 0; s < n_encoder; s++) {
            const uint64_t misses = moec_expert_cache_layer_counters(cache, s).misses;
            assert_in_range(misses, 1, part == 0 ? 2 * config->n_expert : whole_misses[s]);
            whole_misses[s] = misses;
        }
        assert_true(cache_totals(cache).evictions > 0);
        moec_expert_cache_free(cache);
    }
    assert_memory_equal(logits[0], logits[1], 2 * pair.n_tok * pair.n_vocab * sizeof **logits);
    free(logits[0]);
    free(logits[1]);
    close_pair(&pair);
}

/* ---- the public interface ---- */

static void check_engine(const struct pair *pair, const struct moert_options *options)
{
    struct moert_error err = {0};
    struct moert_engine *engine = NULL;
    struct moert_session *session = NULL, *fork = NULL;
    float *logits = calloc(pair->n_vocab, sizeof *logits);
    assert_non_null(logits);
    if (moert_engine_open(pair->path, options, &engine, &err) != MOERT_OK)
        fail_msg("mode %s: %s", options->buffer.mode, err.message);
    const struct moert_info info = moert_engine_info(engine);
    assert_int_equal(info.layers.n_encoder, pair->bundle->config.n_encoder_layer);
    assert_int_equal(info.layers.n_moe_encoder, moec_config_moe_encoder_count(&pair->bundle->config));
    assert_int_equal(info.model.decoder_start_id, pair->bundle->config.ids.decoder_start);
    assert_int_equal(moert_session_create(engine, &session, &err), MOERT_OK);
    assert_int_equal(moert_session_step(session, pair->tokens, 1, logits, &err), MOERT_ERR_USAGE);
    err = (struct moert_error){0};
    assert_int_equal(moert_session_encode(session, pair->source, 1000, &err), MOERT_ERR_LIMIT);
    err = (struct moert_error){0};
    assert_int_equal(moert_session_encode(session, pair->source, pair->n_source, &err), MOERT_OK);
    assert_int_equal(moert_session_step(session, pair->tokens, 11, logits, &err), MOERT_OK);
    assert_memory_equal(logits, pair->expected + 10 * pair->n_vocab, pair->n_vocab * sizeof *logits);
    struct moert_session *last = session;
    if (options->sessions.n_sessions > 1) {
        assert_int_equal(moert_session_fork(session, &fork, &err), MOERT_OK);
        last = fork;
    }
    assert_int_equal(moert_session_step(last, pair->tokens + 11, 20, logits, &err), MOERT_OK);
    assert_memory_equal(logits, pair->expected + 30 * pair->n_vocab, pair->n_vocab * sizeof *logits);
    moert_session_free(fork);
    moert_session_free(session);
    moert_engine_close(engine);
    free(logits);
}

static void test_pair_stream__engine(void **state)
{
    (void)state;
    static const char *const modes[] = {"cache", "edgemoe", "sti"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct pair pair = open_pair(names[f]);
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            struct moert_options options = moert_options_default();
            options.sessions.n_context = 60;
            options.buffer.mode = modes[m];
            options.sessions.n_sessions = m < 2 ? 2 : 1;
            options.n_threads = 2;
            options.buffer.size_bytes = m == 1 ? pair.sizes.all_bytes / 2 : 0;
            check_engine(&pair, &options);
        }
        close_pair(&pair);
    }
}

/* What check_engine does: a source, which shows where the encoder has MoE layers, then 11 and 20 tokens of a
 * target. */
static void check_replay(const struct pair *pair, const struct moec_replay *replay)
{
    const uint32_t n_layer = moec_config_moe_count(&pair->bundle->config);
    const uint32_t first_target = replay->n_encoder > 0;
    assert_int_equal(replay->n_layer, n_layer);
    assert_int_equal(replay->n_encoder, moec_config_moe_encoder_count(&pair->bundle->config));
    assert_true(replay->has_next_gate && replay->has_times);
    assert_int_equal(replay->n_step, first_target + 2);
    for (uint32_t step = 0; step < replay->n_step; step++) {
        const struct moec_replay_span span = moec_replay_passed(replay, step);
        const bool is_source = step < first_target;
        assert_int_equal(moec_replay_is_source(replay, step), is_source);
        assert_int_equal(span.first, is_source ? 0 : replay->n_encoder);
        assert_int_equal(span.end, is_source ? replay->n_encoder : n_layer);
        assert_int_equal(replay->n_tok[step], is_source ? pair->n_source : step == first_target ? 11 : 20);
        for (uint32_t s = 0; s < n_layer; s++) {
            const uint32_t n_active = replay->answers[step * n_layer + s].n_active;
            assert_true(s < span.first || s >= span.end ? n_active == 0 : n_active > 0);
        }
    }
}

static void test_pair_stream__traces_are_replayed(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct pair pair = open_pair(names[f]);
        char *path = temporary_path(pair.folder, "trace.json");
        struct moert_options options = moert_options_default();
        struct moec_error err = {0};
        struct moec_replay replay;
        options.sessions.n_context = 60;
        options.trace.path = path;
        check_engine(&pair, &options);
        assert_status(moec_replay_load(path, &replay, &err), MOEC_OK, err);
        check_replay(&pair, &replay);
        moec_replay_release(&replay);
        free(path);
        close_pair(&pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pair_stream__same_bits_however_it_streams),
        cmocka_unit_test(test_pair_stream__same_bits_in_order),
        cmocka_unit_test(test_pair_stream__edgemoe_reads_the_encoder_once),
        cmocka_unit_test(test_pair_stream__engine),
        cmocka_unit_test(test_pair_stream__traces_are_replayed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
