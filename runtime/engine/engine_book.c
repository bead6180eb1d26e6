/* A recorded file fits only the settings it was made with: the bundle's digest, thresholds, arithmetic, KV
 * type, copies and rotary context. Whatever could change a decision or a bit is compared before the first
 * token. A new such setting must be added to the header. Scores are written with the fewest digits that read
 * back as the same number. */
#include "runtime/engine/engine_book.h"

#include "formats/bundle/bundle_digest.h"
#include "runtime/forward/attention/kv_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void name_bundle(const struct moec_bundle *bundle, char *text)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    moec_bundle_digest(bundle, digest);
    moec_sha256_hex(digest, text);
}

/* What was recorded fits this bundle, before anything is asked of it. */
static enum moec_status check_bundle(const struct moert_engine *engine, struct moec_error *err)
{
    const struct moec_decision_header *header = &engine->decisions.replay.header;
    const struct moec_config *config = &engine->bundle->config;
    char bundle[sizeof header->bundle];
    name_bundle(engine->bundle, bundle);
    if (strcmp(bundle, header->bundle) != 0)
        return moec_fail(
            err, MOEC_ERR_MISMATCH,
            "the decision file '%s' was recorded with another bundle: the bundle '%s' has the digest "
            "%.16s..., expected %.16s...; replay the file with the bundle of the recording",
            engine->decisions.replay.path, engine->bundle->file.path, bundle, header->bundle);
    if (header->n_layer == moec_config_moe_count(config) && header->top_k == config->top_k &&
        header->low < engine->bundle->n_copy)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_MISMATCH,
                     "the decision file '%s' was recorded with top-k %" PRIu32 " in %" PRIu32
                     " layers and low-precision copy %" PRIu32 ", expected top-k %" PRIu32 " in %" PRIu32
                     " layers and a copy number below %" PRIu32 ": replay the file with the bundle of the "
                     "recording",
                     engine->decisions.replay.path, header->top_k, header->n_layer, header->low,
                     config->top_k, moec_config_moe_count(config), engine->bundle->n_copy);
}

static enum moec_status check_precision(const char *path, const char *recorded, const char *given,
                                        struct moec_error *err)
{
    struct moec_precision ours = {0}, theirs = {0};
    MOEC_TRY(moec_precision_read(recorded, &theirs, err));
    if (given != NULL)
        MOEC_TRY(moec_precision_read(given, &ours, err));
    const bool is_same =
        given == NULL ||
        (ours.kind == theirs.kind &&
         (ours.by_shares || (ours.high_score == theirs.high_score && ours.low_score == theirs.low_score)));
    if (is_same && theirs.kind == MOEC_PRECISION_SHARED)
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_MISMATCH,
        "the decisions in the file '%s' were recorded with precision '%s', expected '%s': a replay uses "
        "the recorded precision, so leave out any other precision",
        path, recorded, given != NULL ? given : "shared:T1:T2");
}

enum moec_status moec_engine_load_replay(struct moert_engine *engine, const struct moert_options *options,
                                         struct moert_decisions *decisions, struct moec_error *err)
{
    const char *path = options->decisions.replay;
    const struct moec_decision_header *header = &engine->decisions.replay.header;
    if (path == NULL)
        return MOEC_OK;
    if (decisions->record != NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a replay of the decision file '%s' only repeats its decisions and cannot record "
                         "to '%s': leave out one of the two",
                         path, decisions->record);
    if (decisions->none)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "decisions are turned off (--decide none), but a replay of the decisions in the file '%s' is "
            "requested: leave out one of the two",
            path);
    if (options->sessions.drafts)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "the decision file '%s' holds no decisions for the tokens of drafts: replay without drafts, "
            "which gives the same text",
            path);
    MOEC_TRY(moec_decision_file_load(path, &engine->decisions.replay, err));
    MOEC_TRY(check_bundle(engine, err));
    MOEC_TRY(check_precision(path, header->precision, decisions->precision, err));
    if (decisions->precision != NULL && decisions->decode_only != header->decode_only)
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "the decision file '%s' was recorded with decisions for %s tokens: replay the "
                         "file with the same --decide (decode_only)",
                         path, header->decode_only ? "generated" : "all");
    if (decisions->decode_only && !header->decode_only)
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "the decision file '%s' was recorded with decisions for all tokens: replay the "
                         "file with the same --decide (decode_only)",
                         path);
    decisions->precision = header->precision;
    decisions->decode_only = header->decode_only;
    if (decisions->low_bits == 0)
        decisions->low_bits = engine->bundle->copy_bits[header->low];
    return MOEC_OK;
}

/* As short as it can be written to be read as the same score. */
static int write_score(char *text, size_t capacity, float score)
{
    int n = 0;
    for (int digits = 1; digits <= 9; digits++) {
        n = snprintf(text, capacity, ":%.*g", digits, (double)score);
        if ((float)strtod(text + 1, NULL) == score)
            break;
    }
    return n;
}

static void write_precision(const struct moec_precision *precision, char *text, size_t capacity)
{
    int n = snprintf(text, capacity, "shared");
    n += write_score(text + n, capacity - (size_t)n, precision->high_score);
    (void)write_score(text + n, capacity - (size_t)n, precision->low_score);
}

static struct moec_decision_header header_of(const struct moert_engine *engine)
{
    const struct moec_precision *precision = &engine->decisions.route.precision;
    struct moec_config config = engine->bundle->config;
    struct moec_decision_header header = {.decode_only = engine->decisions.route.decode_only,
                                          .copy = engine->choice.copy,
                                          .low = engine->decisions.low.form.copy,
                                          .n_layer = moec_config_moe_count(&config),
                                          .top_k = config.top_k};
    moec_config_choose_rope(&config, engine->sessions.rope_tokens);
    header.rope_context = moec_config_rope_limit(&config) > 0 ? config.position.rope_context : 0;
    name_bundle(engine->bundle, header.bundle);
    write_precision(precision, header.precision, sizeof header.precision);
    (void)snprintf(header.arithmetic, sizeof header.arithmetic, "%s",
                   moec_arithmetic_name(engine->arithmetic.kind));
    (void)snprintf(header.kv, sizeof header.kv, "%s", moec_kv_name(&engine->bundle->config));
    return header;
}

static enum moec_status check_settings(const struct moert_engine *engine,
                                       const struct moec_decision_header *ours, struct moec_error *err)
{
    const struct moec_decision_header *theirs = &engine->decisions.replay.header;
    const char *path = engine->decisions.replay.path;
    if (strcmp(ours->arithmetic, theirs->arithmetic) != 0)
        return moec_fail(
            err, MOEC_ERR_MISMATCH,
            "the decision file '%s' was recorded with arithmetic '%s', but this run uses '%s': replay the "
            "file with the same --arithmetic",
            path, theirs->arithmetic, ours->arithmetic);
    if (strcmp(ours->kv, theirs->kv) != 0)
        return moec_fail(
            err, MOEC_ERR_MISMATCH,
            "the decision file '%s' was recorded with keys and values in '%s', but this run uses '%s': "
            "replay the file with the same --kv",
            path, theirs->kv, ours->kv);
    if (ours->copy != theirs->copy || ours->low != theirs->low)
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "the decision file '%s' was recorded with precision copy %" PRIu32
                         " and low-precision copy %" PRIu32 ", but this run uses copies %" PRIu32 " and "
                         "%" PRIu32 ": replay the file with the same --copy and --low-bits",
                         path, theirs->copy, theirs->low, ours->copy, ours->low);
    if (ours->rope_context != theirs->rope_context)
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "the decision file '%s' was recorded with rotary angles for a context of %" PRIu32
                         " tokens, but this run has %" PRIu32 " tokens: give the same --ctx",
                         path, theirs->rope_context, ours->rope_context);
    return MOEC_OK;
}

enum moec_status moec_engine_open_book(struct moert_engine *engine, const struct moert_decisions *decisions,
                                       struct moec_error *err)
{
    if (!moec_route_looks_at_buffer(&engine->decisions.route)) {
        if (decisions->record == NULL)
            return MOEC_OK;
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "decisions can be recorded to '%s' only with precision shared:T1:T2: decisions of other kinds "
            "depend only on the bundle, settings and tokens, so each run repeats them without a file",
            decisions->record);
    }
    if (engine->experts.on_device)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "precision 'shared' needs the expert buffer, but a device keeps experts in a pool "
                         "of its own: leave out the device, or use precision 'hobbit'");
    const struct moec_decision_header header = header_of(engine);
    if (engine->decisions.replay.path == NULL)
        return moec_decision_book_create(decisions->record, &header, &engine->decisions.book, err);
    MOEC_TRY(check_settings(engine, &header, err));
    return moec_decision_book_replay(&engine->decisions.replay, &engine->decisions.book, err);
}
