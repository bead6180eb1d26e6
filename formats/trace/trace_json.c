/* A trace is read line by line, since a whole one may not fit into memory. Answers must come in the order of
 * layers, and every answer of a step must have its number of tokens. Items go into pools by index, because
 * pools move while they grow; the replay takes them at the end. A source that comes in chunks is recognised
 * when the first layer answers a second time. */
#include "formats/trace/trace_json.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/json/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TRACE_VERSION  2                   /* readers take those before it too */
#define LINE_MAX_BYTES ((size_t)192 << 20) /* a path table of 64 MiB in hexadecimal digits, and answers */
#define PIECE_BYTES    ((size_t)1 << 18)
#define TIME_MAX_US    9e12 /* a hundred days */
#define BYTES_MAX      ((uint64_t)1 << 50)
#define ANSWERS_MAX    ((uint64_t)1 << 26)

static const char first_line[] = "{\"traceEvents\":[", last_line[] = "],\"displayTimeUnit\":\"ns\"}";

/* A pool that answers point into, while it grows. */
struct pool {
    void *items;
    size_t n, capacity;
};

struct loader {
    struct moec_replay *replay;
    const char *path;
    uint64_t line;
    bool has_setup, has_end;
    bool has_encoder, is_chunked; /* the source at work goes through each layer in chunks */
    uint32_t next, end; /* MoE ordinals of the next answer and of the step's end; the same between steps */
    uint64_t last;      /* answer that was read last, + 1 */
    uint32_t *stamps, stamp; /* (n_form, n_expert) */
    struct pool n_tok, spans, answers, active, experts, weights, is_low, scored, logits;
    struct moec_error *err;
};

/* ---- pools ---- */

/* Room for n more items; *first is the index of the first. No items have a place too, to point to. */
static enum moec_status pool_add(struct pool *pool, uint64_t n, size_t item_bytes, uint64_t *first,
                                 struct moec_error *err)
{
    *first = pool->n;
    if (n > SIZE_MAX / 2 - pool->n)
        return moec_fail(err, MOEC_ERR_LIMIT, "the trace is too long to be replayed: record a shorter run");
    const size_t needed = pool->n + (size_t)n;
    MOEC_TRY(moec_grow(&pool->items, &pool->capacity, needed > 0 ? needed : 1, item_bytes, "a replay", err));
    pool->n += (size_t)n;
    return MOEC_OK;
}

static void pools_release(struct loader *loader)
{
    struct pool *pools[] = {&loader->n_tok,  &loader->spans,   &loader->answers,
                            &loader->active, &loader->experts, &loader->weights,
                            &loader->is_low, &loader->scored,  &loader->logits};
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++)
        free(pools[i]->items);
    free(loader->stamps);
}

/* The replay takes over what was read; a step that did not end is left out. */
static void pools_give(struct loader *loader)
{
    struct moec_replay *replay = loader->replay;
    replay->n_step = loader->n_tok.n - (loader->next != loader->end);
    replay->n_tok = loader->n_tok.items;
    replay->spans = loader->spans.items;
    replay->answers = loader->answers.items;
    replay->active = loader->active.items;
    replay->experts = loader->experts.items;
    replay->weights = loader->weights.items;
    replay->is_low = loader->is_low.items;
    replay->scored = loader->scored.items;
    replay->logits = loader->logits.items;
    loader->n_tok = loader->spans = loader->answers = loader->active = loader->experts = loader->weights =
        loader->is_low = loader->scored = loader->logits = (struct pool){0};
}

static struct moec_replay_answer *answer_at(struct loader *loader, size_t index)
{
    return (struct moec_replay_answer *)loader->answers.items + index;
}

/* ---- values ---- */

MOEC_PRINTF(2, 3) static enum moec_status refuse(struct loader *loader, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return moec_fail(loader->err, MOEC_ERR_FORMAT, "line %" PRIu64 " of trace '%s' %s", loader->line,
                     loader->path, text);
}

static enum moec_status get_u64(struct loader *loader, const struct moec_json *object, const char *key,
                                uint64_t min, uint64_t max, uint64_t *out)
{
    char where[96];
    (void)snprintf(where, sizeof where, "an event in line %" PRIu64 " of the trace", loader->line);
    return moec_json_get_u64(object, where, key, min, max, out, loader->err);
}

static enum moec_status get_u32(struct loader *loader, const struct moec_json *object, const char *key,
                                uint32_t min, uint32_t max, uint32_t *out)
{
    uint64_t value = 0;
    MOEC_TRY(get_u64(loader, object, key, min, max, &value));
    *out = (uint32_t)value;
    return MOEC_OK;
}

/* An array of exactly n items. */
static enum moec_status get_array(struct loader *loader, const struct moec_json *object, const char *key,
                                  size_t n, const struct moec_json **out)
{
    *out = moec_json_find(object, key);
    if (*out == NULL || moec_json_type(*out) != MOEC_JSON_ARRAY || moec_json_length(*out) != n)
        return refuse(loader, "has %s (%zu items) for '%s', expected an array of %zu items",
                      moec_json_type_name(*out), moec_json_length(*out), key, n);
    return MOEC_OK;
}

static enum moec_status get_indices(struct loader *loader, const struct moec_json *object, const char *key,
                                    size_t n, uint32_t limit, uint32_t *out)
{
    const struct moec_json *array = NULL;
    MOEC_TRY(get_array(loader, object, key, n, &array));
    for (size_t i = 0; i < n; i++) {
        uint64_t value = 0;
        MOEC_TRY(moec_json_as_u64(moec_json_at(array, i), key, 0, limit - 1, &value, loader->err));
        out[i] = (uint32_t)value;
    }
    return MOEC_OK;
}

static enum moec_status get_time(struct loader *loader, const struct moec_json *event, const char *key,
                                 uint64_t *ns)
{
    double us = 0;
    MOEC_TRY(moec_json_as_double(moec_json_find(event, key), key, 0, TIME_MAX_US, &us, loader->err));
    *ns = (uint64_t)llrint(us * 1000);
    return MOEC_OK;
}

/* ---- head ---- */

static enum moec_status get_name(struct loader *loader, const struct moec_json *args, const char *key,
                                 char out[static 32])
{
    const char *text = NULL;
    MOEC_TRY(moec_json_get_string(args, "the header of a trace", key, &text, NULL, loader->err));
    if (strlen(text) >= 32)
        return refuse(loader, "has %zu characters for '%s', expected fewer than 32", strlen(text), key);
    memcpy(out, text, strlen(text) + 1);
    return MOEC_OK;
}

static enum moec_status get_sizes(struct loader *loader, const struct moec_json *args, const char *key,
                                  uint64_t **out)
{
    const struct moec_replay *replay = loader->replay;
    const size_t n = (size_t)replay->n_layer * replay->n_form * replay->n_expert;
    const struct moec_json *array = NULL;
    void *memory = NULL;
    MOEC_TRY(get_array(loader, args, key, n, &array));
    MOEC_TRY(moec_alloc(&memory, n, sizeof(uint64_t), "a replay", loader->err));
    *out = memory;
    for (size_t i = 0; i < n; i++)
        MOEC_TRY(moec_json_as_u64(moec_json_at(array, i), key, 1, BYTES_MAX, &(*out)[i], loader->err));
    return MOEC_OK;
}

static enum moec_status read_setup(struct loader *loader, const struct moec_json *args)
{
    struct moec_replay *replay = loader->replay;
    uint32_t version = 0;
    void *memory = NULL;
    if (loader->has_setup)
        return refuse(loader, "is a second header, expected only one");
    MOEC_TRY(get_u32(loader, args, "version", 0, UINT32_MAX, &version));
    if (version < 1 || version > TRACE_VERSION)
        return moec_fail(loader->err, MOEC_ERR_UNSUPPORTED, "trace '%s' has version %u, expected 1 to %d",
                         loader->path, version, TRACE_VERSION);
    MOEC_TRY(get_u32(loader, args, "layers", 1, MOEC_MAX_LAYERS, &replay->n_layer));
    loader->has_encoder = moec_json_find(args, "encoder_layers") != NULL;
    if (loader->has_encoder)
        MOEC_TRY(get_u32(loader, args, "encoder_layers", 0, replay->n_layer, &replay->n_encoder));
    MOEC_TRY(get_u32(loader, args, "experts", 1, MOEC_MAX_EXPERTS, &replay->n_expert));
    MOEC_TRY(get_u32(loader, args, "top_k", 1,
                     replay->n_expert < MOEC_MAX_TOP_K ? replay->n_expert : MOEC_MAX_TOP_K, &replay->top_k));
    replay->n_form = version > 1 && moec_json_find(args, "low_copy") != NULL ? 2 : 1;
    if (replay->n_form > 1) {
        MOEC_TRY(get_u32(loader, args, "low_copy", 1, UINT8_MAX, &replay->low_copy));
        MOEC_TRY(get_name(loader, args, "precision", replay->precision));
    }
    if (version > 1 && moec_json_find(args, "choices") != NULL)
        MOEC_TRY(get_u32(loader, args, "choices", replay->n_expert, MOEC_MAX_EXPERTS, &replay->n_logit));
    MOEC_TRY(get_u64(loader, args, "buffer_bytes", 0, BYTES_MAX, &replay->buffer_bytes));
    MOEC_TRY(get_u32(loader, args, "preload_count", 0, UINT32_MAX, &replay->preload_count));
    if (moec_json_find(args, "preload_ahead") != NULL)
        MOEC_TRY(get_u32(loader, args, "preload_ahead", 0, 1 + MOEC_REPLAY_LATER, &replay->preload_ahead));
    MOEC_TRY(get_name(loader, args, "evict", replay->evict));
    MOEC_TRY(get_name(loader, args, "predict", replay->predict));
    MOEC_TRY(get_name(loader, args, "moec", replay->version));
    MOEC_TRY(moec_alloc(&memory, replay->n_layer, sizeof(uint32_t), "a replay", loader->err));
    replay->moe_layers = memory;
    MOEC_TRY(get_indices(loader, args, "moe_layers", replay->n_layer, MOEC_MAX_LAYERS, replay->moe_layers));
    for (uint32_t s = 1; s < replay->n_layer; s++) {
        if (replay->moe_layers[s] <= replay->moe_layers[s - 1])
            return refuse(loader, "does not list its MoE layers in increasing order");
    }
    MOEC_TRY(get_sizes(loader, args, "record_bytes", &replay->record_bytes));
    MOEC_TRY(get_sizes(loader, args, "slot_bytes", &replay->slot_bytes));
    for (size_t i = 0; i < (size_t)replay->n_layer * replay->n_form * replay->n_expert; i++) {
        if (replay->slot_bytes[i] < replay->record_bytes[i])
            return refuse(loader,
                          "has a cache slot of %" PRIu64 " bytes, too small for its expert of %" PRIu64
                          " bytes",
                          replay->slot_bytes[i], replay->record_bytes[i]);
    }
    MOEC_TRY(moec_alloc(&memory, (uint64_t)replay->n_form * replay->n_expert, sizeof(uint32_t), "a replay",
                        loader->err));
    loader->stamps = memory;
    loader->has_setup = true;
    return MOEC_OK;
}

static int digit_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static enum moec_status read_paths(struct loader *loader, const struct moec_json *args)
{
    enum moec_status status = MOEC_OK;
    struct moec_replay *replay = loader->replay;
    const char *hex = NULL;
    size_t n = 0;
    void *memory = NULL;
    if (!loader->has_setup || replay->own_paths.n_layer > 0)
        return refuse(loader, "has a path table before the header, or a second path table");
    MOEC_TRY(moec_json_get_string(args, "the path table of a trace", "hex", &hex, &n, loader->err));
    if (n % 2 != 0)
        return refuse(loader, "has an odd number of hexadecimal digits for the path table");
    MOEC_TRY(moec_alloc(&memory, n / 2, 1, "a path table", loader->err));
    uint8_t *bytes = memory;
    for (size_t i = 0; i < n / 2; i++) {
        const int high = digit_value(hex[2 * i]), low = digit_value(hex[2 * i + 1]);
        if (high < 0 || low < 0) {
            status =
                refuse(loader, "has characters other than lower-case hexadecimal digits for the path table");
            goto out;
        }
        bytes[i] = (uint8_t)(high * 16 + low);
    }
    MOEC_TRY_OUT(moec_path_table_decode(bytes, n / 2, &replay->own_paths, loader->err));
    if (replay->own_paths.n_layer != replay->n_layer || replay->own_paths.n_expert != replay->n_expert ||
        replay->own_paths.top_k != replay->top_k)
        status = refuse(loader, "has the path table of another model");
out:
    free(memory);
    return status;
}

/* ---- answers ---- */

/* Experts that a layer's tokens chose, top_k each. */
struct choices {
    uint64_t n_tok;
    const uint32_t *experts;
    const float *weights;
    const bool *is_low; /* NULL: none is of form 1 */
};

/* The active experts increase and are exactly those chosen, where a choice of weight 0 may have asked for
 * none: its expert was full, or it was one that gives its input. */
static enum moec_status check_choices(struct loader *loader, const uint32_t *active, uint32_t n_active,
                                      struct choices choices)
{
    const uint32_t *experts = choices.experts;
    const float *weights = choices.weights;
    const uint32_t k = loader->replay->top_k;
    const uint32_t is_active = ++loader->stamp, is_chosen = ++loader->stamp;
    uint32_t n_chosen = 0;
    for (uint32_t i = 0; i < n_active; i++) {
        if (i > 0 && active[i] <= active[i - 1])
            return refuse(loader, "does not list its active experts in increasing order");
        loader->stamps[active[i]] = is_active;
    }
    for (uint64_t i = 0; i < choices.n_tok * k; i++) {
        const bool low = choices.is_low != NULL && choices.is_low[i];
        uint32_t *stamp = &loader->stamps[experts[i] + (low ? loader->replay->n_expert : 0)];
        if (!isfinite(weights[i]))
            return refuse(loader, "has a router weight that is not a finite number");
        if (*stamp != is_active && *stamp != is_chosen && weights[i] != 0)
            return refuse(loader, "has chosen expert %u, which is not among the active ones", experts[i]);
        n_chosen += *stamp == is_active;
        if (*stamp == is_active)
            *stamp = is_chosen;
        for (uint64_t j = i - i % k; j < i && weights[i] != 0; j++) {
            if (experts[j] == experts[i] && weights[j] != 0)
                return refuse(loader, "has expert %u twice among the experts of a token", experts[i]);
        }
    }
    if (n_chosen != n_active)
        return refuse(loader, "has %u active experts, expected the %u that were chosen", n_active, n_chosen);
    return MOEC_OK;
}

static enum moec_status read_floats(struct loader *loader, const struct moec_json *args, const char *key,
                                    size_t n, float *out, size_t stride_bytes)
{
    const struct moec_json *array = NULL;
    MOEC_TRY(get_array(loader, args, key, n, &array));
    for (size_t i = 0; i < n; i++) {
        double value = 0;
        MOEC_TRY(moec_json_as_double(moec_json_at(array, i), key, -3e38, 3e38, &value, loader->err));
        memcpy((uint8_t *)out + i * stride_bytes, &(float){(float)value}, sizeof(float));
    }
    return MOEC_OK;
}

/* Which of n choices, the last that were read, are of form 1. */
static enum moec_status read_low(struct loader *loader, const struct moec_json *args, uint64_t n,
                                 const bool **out)
{
    const struct moec_json *array = NULL;
    uint64_t first = 0;
    MOEC_TRY(get_array(loader, args, "low", (size_t)n, &array));
    MOEC_TRY(pool_add(&loader->is_low, n, sizeof(bool), &first, loader->err));
    bool *is_low = (bool *)loader->is_low.items + first;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t value = 0;
        MOEC_TRY(moec_json_as_u64(moec_json_at(array, (size_t)i), "low", 0, 1, &value, loader->err));
        is_low[i] = value == 1;
    }
    *out = is_low;
    return MOEC_OK;
}

static enum moec_status read_choices(struct loader *loader, const struct moec_json *args, uint32_t n_tok,
                                     struct moec_replay_answer *answer)
{
    const uint32_t n_expert = loader->replay->n_expert;
    const uint64_t n = (uint64_t)n_tok * loader->replay->top_k;
    const struct moec_json *array = moec_json_find(args, "active"), *chosen = moec_json_find(args, "experts");
    const size_t n_active = moec_json_length(array);
    const uint32_t n_key = loader->replay->n_form * n_expert;
    uint64_t weights = 0;
    const bool *is_low = NULL;
    if (n_active > n_key)
        return refuse(loader, "has %zu active experts, expected at most %u", n_active, n_key);
    if (moec_json_length(chosen) != n)
        return refuse(loader, "has %zu entries in its list of chosen experts, expected %" PRIu64,
                      moec_json_length(chosen), n);
    answer->n_active = (uint32_t)n_active;
    MOEC_TRY(pool_add(&loader->active, n_active, sizeof(uint32_t), &answer->active, loader->err));
    MOEC_TRY(pool_add(&loader->experts, n, sizeof(uint32_t), &answer->choices, loader->err));
    MOEC_TRY(pool_add(&loader->weights, n, sizeof(float), &weights, loader->err));
    uint32_t *active = (uint32_t *)loader->active.items + answer->active;
    uint32_t *experts = (uint32_t *)loader->experts.items + answer->choices;
    float *floats = (float *)loader->weights.items + weights;
    MOEC_TRY(get_indices(loader, args, "active", n_active, n_key, active));
    MOEC_TRY(get_indices(loader, args, "experts", (size_t)n, n_expert, experts));
    MOEC_TRY(read_floats(loader, args, "weights", (size_t)n, floats, sizeof(float)));
    if (loader->replay->n_form > 1)
        MOEC_TRY(read_low(loader, args, n, &is_low));
    return check_choices(loader, active, answer->n_active, (struct choices){n_tok, experts, floats, is_low});
}

/* A number's eight digits. */
static bool read_bits(const char *digits, float *out)
{
    uint32_t bits = 0;
    for (size_t i = 0; i < 8; i++) {
        const int value = digit_value(digits[i]);
        if (value < 0)
            return false;
        bits = bits << 4 | (uint32_t)value;
    }
    memcpy(out, &bits, sizeof bits);
    return true;
}

static enum moec_status read_logits(struct loader *loader, const struct moec_json *args, uint32_t n_tok,
                                    struct moec_replay_answer *answer)
{
    const uint64_t n = (uint64_t)n_tok * loader->replay->n_logit;
    const char *hex = NULL;
    size_t n_digits = 0;
    if (n == 0)
        return MOEC_OK;
    MOEC_TRY(moec_json_get_string(args, "an answer of a trace", "logits", &hex, &n_digits, loader->err));
    if (n_digits != 8 * n)
        return refuse(loader, "has %zu digits for 'logits', expected %" PRIu64, n_digits, 8 * n);
    MOEC_TRY(pool_add(&loader->logits, n, sizeof(float), &answer->logits, loader->err));
    float *logits = (float *)loader->logits.items + answer->logits;
    for (uint64_t i = 0; i < n; i++)
        if (!read_bits(hex + 8 * i, &logits[i]))
            return refuse(loader, "has characters other than lower-case hexadecimal digits for 'logits'");
    return MOEC_OK;
}

/* The two members that list experts, the best first, and their scores. */
struct scored_names {
    const char *experts, *scores;
    bool is_marked; /* a score's sign says something else */
};

/* Of what routers after the next one say, the second from here first. */
static const struct scored_names later_gates[MOEC_REPLAY_LATER] = {
    {"gate_2", "gate_2_scores", true}, {"gate_3", "gate_3_scores", true}, {"gate_4", "gate_4_scores", true}};

/* A list of predicted experts under `name`, with its scores, of which a sign may be a mark; *n stays 0 where
 * there is none. */
static enum moec_status read_scored(struct loader *loader, const struct moec_json *args,
                                    struct scored_names names, uint64_t *first, uint32_t *n_out)
{
    const char *name = names.experts;
    const struct moec_json *array = moec_json_find(args, name), *node = NULL;
    const size_t n = moec_json_length(array);
    if (array == NULL)
        return MOEC_OK;
    if (n < 1 || n > loader->replay->n_expert)
        return refuse(loader, "has %zu experts for '%s', expected 1 to %u", n, name,
                      loader->replay->n_expert);
    MOEC_TRY(get_array(loader, args, name, n, &node));
    MOEC_TRY(pool_add(&loader->scored, n, sizeof(struct moec_scored_expert), first, loader->err));
    *n_out = (uint32_t)n;
    struct moec_scored_expert *list = (struct moec_scored_expert *)loader->scored.items + *first;
    MOEC_TRY(read_floats(loader, args, names.scores, n, &list->score, sizeof *list));
    const uint32_t stamp = ++loader->stamp;
    for (size_t i = 0; i < n; i++) {
        uint64_t expert = 0;
        MOEC_TRY(moec_json_as_u64(moec_json_at(array, i), name, 0, loader->replay->n_expert - 1, &expert,
                                  loader->err));
        list[i].expert = (uint32_t)expert;
        const float own = list[i].score, last = list[i > 0 ? i - 1 : 0].score;
        const float score = names.is_marked ? fabsf(own) : own, before = names.is_marked ? fabsf(last) : last;
        const bool is_falling =
            i == 0 || score < before || (!(score > before) && list[i].expert > list[i - 1].expert);
        if (!is_falling || loader->stamps[expert] == stamp)
            return refuse(
                loader, "has a list '%s' that names an expert twice or is not sorted by score, highest first",
                name);
        loader->stamps[expert] = stamp;
    }
    return MOEC_OK;
}

/* The layers of a step that begins with the answer of this layer: of the encoder's first one, of the one
 * behind the encoder, or of a chunk of a source in the layer at work or the next. A layer that is none of
 * them is seen by the caller. */
static struct moec_replay_span span_from(struct loader *loader, uint32_t layer)
{
    const struct moec_replay *replay = loader->replay;
    const uint32_t n_encoder = replay->n_encoder, passed = loader->end;
    if (loader->is_chunked) {
        const uint32_t first = layer == replay->moe_layers[passed - 1] ? passed - 1 : passed;
        if (first < n_encoder)
            return (struct moec_replay_span){first, first + 1};
        loader->is_chunked = false;
    }
    if (n_encoder > 0 && (layer == replay->moe_layers[0] || n_encoder == replay->n_layer))
        return (struct moec_replay_span){0, n_encoder};
    return (struct moec_replay_span){n_encoder, replay->n_layer};
}

/* It has answers for all layers, empty ones where it does not pass. */
static enum moec_status begin_step(struct loader *loader, uint32_t layer, uint32_t n_tok)
{
    const struct moec_replay *replay = loader->replay;
    const struct moec_replay_span span = span_from(loader, layer);
    uint64_t at = 0;
    if (loader->answers.n + replay->n_layer > ANSWERS_MAX)
        return moec_fail(loader->err, MOEC_ERR_LIMIT,
                         "trace '%s' is too long to be replayed: record a shorter run", loader->path);
    MOEC_TRY(pool_add(&loader->n_tok, 1, sizeof(uint32_t), &at, loader->err));
    ((uint32_t *)loader->n_tok.items)[at] = n_tok;
    if (loader->has_encoder) {
        MOEC_TRY(pool_add(&loader->spans, 1, sizeof span, &at, loader->err));
        ((struct moec_replay_span *)loader->spans.items)[at] = span;
    }
    MOEC_TRY(
        pool_add(&loader->answers, replay->n_layer, sizeof(struct moec_replay_answer), &at, loader->err));
    memset(answer_at(loader, (size_t)at), 0, replay->n_layer * sizeof(struct moec_replay_answer));
    loader->next = span.first;
    loader->end = span.end;
    return MOEC_OK;
}

/* The first layer answers once more: the source comes in chunks, and the step ends where it is. */
static void end_chunk(struct loader *loader, uint32_t layer)
{
    const struct moec_replay *replay = loader->replay;
    if (loader->next != 1 || loader->end != replay->n_encoder || layer != replay->moe_layers[0])
        return;
    loader->is_chunked = true;
    loader->end = 1;
    ((struct moec_replay_span *)loader->spans.items)[loader->spans.n - 1].end = 1;
}

static enum moec_status read_answer(struct loader *loader, const struct moec_json *event,
                                    const struct moec_json *args)
{
    struct moec_replay *replay = loader->replay;
    uint32_t layer = 0, n_tok = 0;
    if (!loader->has_setup)
        return refuse(loader, "has an 'answer' event before the header");
    MOEC_TRY(get_u32(loader, args, "layer", 0, MOEC_MAX_LAYERS, &layer));
    MOEC_TRY(get_u32(loader, args, "tokens", 1, MOEC_MAX_POSITIONS, &n_tok));
    end_chunk(loader, layer);
    if (loader->next == loader->end)
        MOEC_TRY(begin_step(loader, layer, n_tok));
    if (layer != replay->moe_layers[loader->next])
        return moec_fail(loader->err, MOEC_ERR_UNSUPPORTED,
                         "line %" PRIu64 " of trace '%s' has the 'answer' event of layer %u, expected layer "
                         "%u: only traces of one session without failures can be replayed",
                         loader->line, loader->path, layer, replay->moe_layers[loader->next]);
    if (((uint32_t *)loader->n_tok.items)[loader->n_tok.n - 1] != n_tok)
        return refuse(loader, "has %u tokens, expected %u as in earlier layers of its step", n_tok,
                      ((uint32_t *)loader->n_tok.items)[loader->n_tok.n - 1]);
    struct moec_replay_answer answer = {0};
    MOEC_TRY(read_choices(loader, args, n_tok, &answer));
    MOEC_TRY(read_logits(loader, args, n_tok, &answer));
    MOEC_TRY(read_scored(loader, args, (struct scored_names){"next_gate", "next_scores", true},
                         &answer.next_gate, &answer.n_next_gate));
    for (size_t i = 0; i < MOEC_REPLAY_LATER; i++)
        MOEC_TRY(read_scored(loader, args, later_gates[i], &answer.later_gates[i], &answer.n_later_gates[i]));
    MOEC_TRY(read_scored(loader, args, (struct scored_names){"next_learned", "next_learned_scores", false},
                         &answer.next_learned, &answer.n_next_learned));
    MOEC_TRY(get_time(loader, event, "ts", &answer.answered_ns));
    answer.done_ns = answer.answered_ns;
    if (answer.n_next_gate == 0 && loader->next + 1 < loader->end)
        replay->has_next_gate = false;
    for (uint32_t i = 0; i < MOEC_REPLAY_LATER; i++)
        if (answer.n_later_gates[i] == 0 && loader->next + 2 + i < loader->end && replay->gates_ahead > 1 + i)
            replay->gates_ahead = 1 + i;
    if (answer.n_next_learned == 0 && loader->next + 1 < loader->end)
        replay->has_next_learned = false;
    loader->last = loader->answers.n - replay->n_layer + loader->next++;
    *answer_at(loader, (size_t)loader->last++) = answer;
    return MOEC_OK;
}

/* Computing of experts and waiting, of the layer that answered last. */
static enum moec_status read_span(struct loader *loader, const struct moec_json *event,
                                  const struct moec_json *args)
{
    const char *lane = NULL, *name = NULL;
    uint32_t layer = 0;
    uint64_t begin_ns = 0, lasts_ns = 0;
    MOEC_TRY(moec_json_get_string_or(event, "an event of the trace", "cat", "", &lane, loader->err));
    MOEC_TRY(moec_json_get_string_or(event, "an event of the trace", "name", "", &name, loader->err));
    const bool is_stall = strcmp(lane, "stall") == 0;
    if (loader->last == 0 || (!is_stall && (strcmp(lane, "compute") != 0 || strcmp(name, "experts") != 0)))
        return MOEC_OK;
    MOEC_TRY(get_u32(loader, args, "layer", 0, MOEC_MAX_LAYERS, &layer));
    MOEC_TRY(get_time(loader, event, "ts", &begin_ns));
    MOEC_TRY(get_time(loader, event, "dur", &lasts_ns));
    const size_t last = (size_t)loader->last - 1;
    struct moec_replay_answer *answer = answer_at(loader, last);
    if (layer != loader->replay->moe_layers[last % loader->replay->n_layer])
        return MOEC_OK;
    if (is_stall)
        answer->stall_ns += lasts_ns;
    else if (begin_ns + lasts_ns > answer->done_ns)
        answer->done_ns = begin_ns + lasts_ns;
    return MOEC_OK;
}

static enum moec_status read_end(struct loader *loader, const struct moec_json *args)
{
    uint64_t n_lost = 0;
    MOEC_TRY(get_u64(loader, args, "lost_answers", 0, UINT64_MAX >> 1, &n_lost));
    if (n_lost > 0)
        return moec_fail(loader->err, MOEC_ERR_UNSUPPORTED,
                         "trace '%s' cannot be replayed: it lost %" PRIu64
                         " 'answer' events because its buffer was full",
                         loader->path, n_lost);
    loader->has_end = true;
    return MOEC_OK;
}

static enum moec_status read_event(struct loader *loader, const struct moec_json *event)
{
    const char *phase = NULL, *name = NULL;
    const struct moec_json *args = moec_json_find(event, "args");
    MOEC_TRY(moec_json_get_string_or(event, "an event of the trace", "ph", "", &phase, loader->err));
    MOEC_TRY(moec_json_get_string_or(event, "an event of the trace", "name", "", &name, loader->err));
    if (loader->has_end)
        return refuse(loader, "comes after the end of the trace, expected no more lines");
    if (strcmp(phase, "i") == 0 && strcmp(name, "answer") == 0)
        return read_answer(loader, event, args);
    if (strcmp(phase, "X") == 0)
        return read_span(loader, event, args);
    if (strcmp(phase, "M") != 0)
        return MOEC_OK;
    if (strcmp(name, "moec_trace") == 0)
        return read_setup(loader, args);
    if (strcmp(name, "moec_paths") == 0)
        return read_paths(loader, args);
    return strcmp(name, "moec_end") == 0 ? read_end(loader, args) : MOEC_OK;
}

/* ---- lines ---- */

static enum moec_status read_line(struct loader *loader, const char *line, size_t n, bool *is_last)
{
    struct moec_json *event = NULL;
    char subject[96];
    if (loader->line == 1) {
        if (n != strlen(first_line) || memcmp(line, first_line, n) != 0)
            return refuse(loader, "is not the first line of a trace, expected '%s'", first_line);
        return MOEC_OK;
    }
    if (n == strlen(last_line) && memcmp(line, last_line, n) == 0) {
        *is_last = true;
        return MOEC_OK;
    }
    if (n > 0 && line[n - 1] == ',')
        n--;
    (void)snprintf(subject, sizeof subject, "line %" PRIu64 " of the trace", loader->line);
    MOEC_TRY(moec_json_parse(line, n, LINE_MAX_BYTES, subject, &event, loader->err));
    const enum moec_status status = moec_json_type(event) == MOEC_JSON_OBJECT
                                        ? read_event(loader, event)
                                        : refuse(loader, "is not an event, expected a JSON object");
    moec_json_free(event);
    return status;
}

/* Every line that ends in bytes[0 .. n - 1]; *used counts what they take. */
static enum moec_status read_lines(struct loader *loader, const char *bytes, size_t n, size_t *used,
                                   bool *is_last)
{
    for (const char *end; (end = memchr(bytes + *used, '\n', n - *used)) != NULL;) {
        if (*is_last)
            break;
        loader->line++;
        const char *line = bytes + *used;
        *used = (size_t)(end - bytes) + 1;
        MOEC_TRY(read_line(loader, line, (size_t)(end - line), is_last));
    }
    return MOEC_OK;
}

static enum moec_status read_file(struct loader *loader, const struct moec_file *file)
{
    enum moec_status status = MOEC_OK;
    struct pool text = {0};
    bool is_last = false;
    for (uint64_t at = 0; at < file->n_bytes && !is_last;) {
        const size_t n =
            file->n_bytes - at < PIECE_BYTES ? (size_t)(file->n_bytes - at) : (size_t)PIECE_BYTES;
        uint64_t first = 0;
        size_t used = 0;
        if (text.n > LINE_MAX_BYTES) {
            status = moec_fail(loader->err, MOEC_ERR_LIMIT, "trace '%s' has a line of more than %zu bytes",
                               loader->path, LINE_MAX_BYTES);
            goto out;
        }
        MOEC_TRY_OUT(pool_add(&text, n, 1, &first, loader->err));
        char *bytes = text.items;
        MOEC_TRY_OUT(moec_file_read(file, at, bytes + first, n, loader->err));
        at += n;
        MOEC_TRY_OUT(read_lines(loader, bytes, text.n, &used, &is_last));
        memmove(bytes, bytes + used, text.n - used);
        text.n -= used;
        if (is_last && (at < file->n_bytes || text.n > 0))
            status = moec_fail(loader->err, MOEC_ERR_FORMAT,
                               "trace '%s' has more lines after its end, expected none", loader->path);
        MOEC_TRY_OUT(status);
    }
    if (!is_last || !loader->has_end || !loader->has_setup)
        status = moec_fail(loader->err, MOEC_ERR_FORMAT, "trace '%s' has no %s", loader->path,
                           !loader->has_setup ? "header" : "end: was the run that wrote it interrupted?");
out:
    free(text.items);
    return status;
}

enum moec_status moec_replay_load(const char *path, struct moec_replay *out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_file file = {.fd = -1};
    struct loader loader = {.replay = out, .path = path, .err = err};
    *out = (struct moec_replay){.has_next_gate = true,
                                .has_next_learned = true,
                                .gates_ahead = 1 + MOEC_REPLAY_LATER,
                                .has_times = true};
    MOEC_TRY(moec_file_open(&file, path, err));
    MOEC_TRY_OUT(read_file(&loader, &file));
    out->paths = &out->own_paths;
    pools_give(&loader);
    if (out->n_step == 0) {
        status = moec_fail(err, MOEC_ERR_FORMAT, "trace '%s' has no complete step", path);
        goto out;
    }
    out->has_next_gate = out->has_next_gate && out->n_layer > 1;
    out->has_next_learned = out->has_next_learned && out->n_layer > 1;
    if (!out->has_next_gate)
        out->gates_ahead = 0;
out:
    pools_release(&loader);
    if (status != MOEC_OK)
        moec_replay_release(out);
    moec_file_close(&file);
    return status;
}
