/* Pieces of at most 512 bytes are put into the buffer, which is written when less than a piece is free. A
 * lane's spans that overlap stand in rows: each takes the first row whose last span has ended. Numbers keep
 * all their bits: nine digits, or eight hexadecimal ones for logits. */
#include "runtime/trace/trace_text.h"

#include "formats/base/memory.h"
#include "runtime/storage/record_reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define PIECE_BYTES     512u        /* longest piece put at once */
#define PATHS_MAX_BYTES (64u << 20) /* of a path table that a trace carries */
#define TRACE_VERSION   2

static const char *const lane_names[MOEC_TRACE_N_LANE] = {"compute", "stall", "demand", "preload"};
static const char *const lane_titles[MOEC_TRACE_N_LANE] = {"computing", "waiting for storage",
                                                           "demanded reads", "preloads"};

void moec_trace_text_flush(struct moec_trace_text *text)
{
    if (text->status == MOEC_OK)
        text->status = moec_output_append(&text->output, text->bytes, text->used, &text->err);
    text->used = 0;
}

MOEC_PRINTF(2, 3) static void put(struct moec_trace_text *text, const char *format, ...)
{
    va_list arguments;
    if (MOEC_TRACE_TEXT_BYTES - text->used < PIECE_BYTES)
        moec_trace_text_flush(text);
    va_start(arguments, format);
    const int n = vsnprintf(text->bytes + text->used, PIECE_BYTES, format, arguments);
    va_end(arguments);
    if (n > 0)
        text->used += (size_t)n < PIECE_BYTES ? (size_t)n : PIECE_BYTES - 1;
}

/* Nine digits read back exactly; a program's locale may have another decimal point. */
static void put_float(struct moec_trace_text *text, float value)
{
    char digits[32];
    (void)snprintf(digits, sizeof digits, "%.9g", isfinite(value) ? (double)value : 0.0);
    for (char *c = digits; *c != '\0'; c++) {
        if (strchr("0123456789+-e", *c) == NULL)
            *c = '.';
    }
    put(text, "%s", digits);
}

/* What a JSON string can hold as it is; the rest becomes question marks. */
static void put_name(struct moec_trace_text *text, const char *name)
{
    char plain[256];
    size_t n = 0;
    for (; name[n] != '\0' && n + 1 < sizeof plain; n++) {
        plain[n] = name[n];
        if (name[n] < 0x20 || name[n] > 0x7e || name[n] == '"' || name[n] == '\\')
            plain[n] = '?';
    }
    plain[n] = '\0';
    put(text, "\"%s\"", plain);
}

/* Microseconds with three decimals since the trace began. */
static void put_time(struct moec_trace_text *text, const char *key, uint64_t ns)
{
    put(text, "\"%s\":%" PRIu64 ".%03" PRIu64, key, ns / 1000, ns % 1000);
}

static uint64_t since_start(const struct moec_trace_text *text, uint64_t ns)
{
    return ns > text->start_ns ? ns - text->start_ns : 0;
}

static void put_integers(struct moec_trace_text *text, const char *key, const uint32_t *values, size_t n)
{
    put(text, ",\"%s\":[", key);
    for (size_t i = 0; i < n; i++)
        put(text, "%s%" PRIu32, i > 0 ? "," : "", values[i]);
    put(text, "]");
}

static void put_floats(struct moec_trace_text *text, const char *key, const float *values, size_t n)
{
    put(text, ",\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        put(text, "%s", i > 0 ? "," : "");
        put_float(text, values[i]);
    }
    put(text, "]");
}

/* ---- head ---- */

static void put_layer_sizes(struct moec_trace_text *text, const struct moec_trace_setup *setup,
                            uint32_t ordinal, uint32_t copy, bool slots)
{
    for (uint32_t expert = 0; expert < setup->bundle->config.n_expert; expert++) {
        const struct moec_record_entry *entry = moec_bundle_record(setup->bundle, copy, ordinal, expert);
        const uint64_t n_bytes =
            slots ? moec_record_slot_bytes(setup->bundle, copy, ordinal, expert)
                  : moec_record_place_of(setup->bundle, entry->offset, entry->n_bytes).n_bytes;
        put(text, "%s%" PRIu64, ordinal + expert > 0 || copy != setup->copies.copy ? "," : "", n_bytes);
    }
}

static void put_sizes(struct moec_trace_text *text, const struct moec_trace_setup *setup, bool slots)
{
    const struct moec_config *config = &setup->bundle->config;
    const uint32_t n_layer = moec_config_moe_count(config);
    put(text, ",\"%s\":[", slots ? "slot_bytes" : "record_bytes");
    for (uint32_t ordinal = 0; ordinal < n_layer; ordinal++) {
        put_layer_sizes(text, setup, ordinal, setup->copies.copy, slots);
        if (setup->copies.low > 0)
            put_layer_sizes(text, setup, ordinal, setup->copies.low, slots);
    }
    put(text, "]");
}

static const char *file_name(const struct moec_bundle *bundle)
{
    const char *slash = strrchr(bundle->file.path, '/');
    return slash != NULL ? slash + 1 : bundle->file.path;
}

/* What a replay needs to know. */
static void put_setup(struct moec_trace_text *text, const struct moec_trace_setup *setup)
{
    const struct moec_config *config = &setup->bundle->config;
    const uint32_t n_layer = moec_config_moe_count(config);
    put(text,
        "{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"moec_trace\",\"args\":{\"version\":%d,\"moec\":\"%s\"",
        TRACE_VERSION, MOEC_VERSION);
    put(text, ",\"bundle\":");
    put_name(text, file_name(setup->bundle));
    put(text, ",\"copy\":%" PRIu32 ",\"layers\":%" PRIu32 ",\"experts\":%" PRIu32 ",\"top_k\":%" PRIu32,
        setup->copies.copy, n_layer, config->n_expert, config->top_k);
    if (setup->copies.low > 0)
        put(text, ",\"low_copy\":%" PRIu32, setup->copies.low);
    if (setup->copies.low > 0) {
        put(text, ",\"precision\":");
        put_name(text, setup->copies.precision != NULL ? setup->copies.precision : "");
    }
    if (setup->has_logits)
        put(text, ",\"choices\":%" PRIu32, moec_config_choices(config));
    put(text, ",\"moe_layers\":[");
    for (uint32_t ordinal = 0; ordinal < n_layer; ordinal++)
        put(text, "%s%" PRIu32, ordinal > 0 ? "," : "", moec_config_moe_layer(config, ordinal));
    put(text, "]");
    if (moec_config_is_encoder_decoder(config))
        put(text, ",\"encoder_layers\":%" PRIu32, moec_config_moe_encoder_count(config));
    put(text,
        ",\"buffer_bytes\":%" PRIu64 ",\"preload_count\":%" PRIu32 ",\"preload_ahead\":%" PRIu32
        ",\"evict\":",
        setup->policy.buffer_bytes, setup->policy.preload_count, setup->policy.preload_ahead);
    put_name(text, setup->policy.evict != NULL ? setup->policy.evict : "");
    put(text, ",\"predict\":");
    put_name(text, setup->policy.predict != NULL ? setup->policy.predict : "");
    put_sizes(text, setup, false);
    put_sizes(text, setup, true);
    put(text, "}},\n{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":");
    put_name(text, file_name(setup->bundle));
    put(text, "}}");
}

/* The table's bytes as in a bundle, in hexadecimal digits. */
static enum moec_status put_paths(struct moec_trace_text *text, const struct moec_path_table *paths,
                                  struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    if (paths->n_layer == 0)
        return MOEC_OK;
    MOEC_TRY(moec_path_table_encode(paths, &bytes, &n_bytes, err));
    if (n_bytes <= PATHS_MAX_BYTES) {
        put(text, ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"moec_paths\",\"args\":{\"hex\":\"");
        for (size_t i = 0; i < n_bytes; i++)
            put(text, "%02x", bytes[i]);
        put(text, "\"}}");
    }
    free(bytes);
    return MOEC_OK;
}

enum moec_status moec_trace_text_open(struct moec_trace_text *text, const struct moec_trace_setup *setup,
                                      uint64_t start_ns, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    void *memory = NULL;
    *text = (struct moec_trace_text){.output = {.fd = -1}, .start_ns = start_ns};
    MOEC_TRY_OUT(moec_alloc(&memory, MOEC_TRACE_TEXT_BYTES, 1, "trace", err));
    text->bytes = memory;
    MOEC_TRY_OUT(moec_output_open(&text->output, setup->path, err));
    put(text, "{\"traceEvents\":[\n");
    put_setup(text, setup);
    MOEC_TRY_OUT(put_paths(text, &setup->bundle->paths, err));
    moec_trace_text_flush(text);
    if (text->status == MOEC_OK)
        return MOEC_OK;
    *err = text->err;
    status = text->status;
out:
    moec_output_abort(&text->output);
    free(text->bytes);
    return status;
}

/* ---- events ---- */

/* The first row that is free, and its name when it is used for the first time. */
static uint32_t take_row(struct moec_trace_text *text, const struct moec_trace_span *span)
{
    uint64_t *ends = text->row_end_ns[span->lane];
    uint32_t row = 0;
    while (row + 1 < MOEC_TRACE_N_ROW && ends[row] > span->begin_ns)
        row++;
    const uint32_t id = span->lane * MOEC_TRACE_N_ROW + row + 1;
    if (ends[row] == 0) {
        put(text,
            ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%" PRIu32 ",\"name\":\"thread_name\",\"args\":{\"name\":\"%s",
            id, lane_titles[span->lane]);
        if (row > 0)
            put(text, " %" PRIu32, row + 1);
        put(text,
            "\"}},\n{\"ph\":\"M\",\"pid\":1,\"tid\":%" PRIu32
            ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%" PRIu32 "}}",
            id, id);
    }
    if (span->end_ns > ends[row])
        ends[row] = span->end_ns;
    return id;
}

static void put_form(struct moec_trace_text *text, const struct moec_expert_form *form)
{
    static const char *const names[] = {
        [MOEC_PROJECTION_GATE] = "gate", [MOEC_PROJECTION_UP] = "up", [MOEC_PROJECTION_DOWN] = "down"};
    const struct moec_record_part *part = &form->part;
    put(text, ",\"copy\":%" PRIu32 ",\"part\":\"%s", form->copy, part->projections == 0 ? "all" : "");
    for (uint32_t i = 0, left = part->projections; left != 0; i++, left >>= 1)
        if ((left & 1u) != 0)
            put(text, "%s%s", names[i], left > 1 ? "+" : "");
    put(text, "\"");
    if (part->first_neuron > 0 || part->n_neuron > 0)
        put(text, ",\"first_neuron\":%" PRIu32 ",\"neurons\":%" PRIu32, part->first_neuron, part->n_neuron);
}

void moec_trace_text_span(struct moec_trace_text *text, const struct moec_trace_span *span)
{
    const uint32_t id = take_row(text, span);
    put(text, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%" PRIu32 ",", id);
    put_time(text, "ts", since_start(text, span->begin_ns));
    put(text, ",");
    put_time(text, "dur", span->end_ns > span->begin_ns ? span->end_ns - span->begin_ns : 0);
    put(text, ",\"cat\":\"%s\",\"name\":\"%s\",\"args\":{\"bytes\":%" PRIu64, lane_names[span->lane],
        span->what, span->n_bytes);
    if (span->layer != MOEC_TRACE_NONE)
        put(text, ",\"layer\":%" PRIu32, span->layer);
    if (span->expert != MOEC_TRACE_NONE)
        put(text, ",\"expert\":%" PRIu32, span->expert);
    if (span->has_form)
        put_form(text, &span->form);
    put(text, "}}");
}

static void put_scored(struct moec_trace_text *text, const char *experts, const char *scores,
                       const struct moec_scored_expert *list, uint32_t n)
{
    put(text, ",\"%s\":[", experts);
    for (uint32_t i = 0; i < n; i++)
        put(text, "%s%" PRIu32, i > 0 ? "," : "", list[i].expert);
    put(text, "],\"%s\":[", scores);
    for (uint32_t i = 0; i < n; i++) {
        put(text, "%s", i > 0 ? "," : "");
        put_float(text, list[i].score);
    }
    put(text, "]");
}

/* Eight hexadecimal digits a number, which keep every bit of what is no number too, in half the text. */
static void put_logits(struct moec_trace_text *text, const struct moec_router_answer *answer)
{
    put(text, ",\"logits\":\"");
    for (uint32_t t = 0; t < answer->n_tok; t++)
        for (uint32_t i = 0; i < answer->logits.n; i++) {
            uint32_t bits = 0;
            memcpy(&bits, answer->logits.rows + (size_t)t * answer->logits.stride + i, sizeof bits);
            put(text, "%08" PRIx32, bits);
        }
    put(text, "\"");
}

/* Names of what routers behind the next one say, the second from here first. */
static const struct {
    const char *experts, *scores;
} later_gates[MOEC_GATES_AHEAD - 1] = {
    {"gate_2", "gate_2_scores"}, {"gate_3", "gate_3_scores"}, {"gate_4", "gate_4_scores"}};

void moec_trace_text_answer(struct moec_trace_text *text, const struct moec_router_answer *answer,
                            uint32_t top_k, uint64_t now_ns)
{
    const size_t n = (size_t)answer->n_tok * top_k;
    put(text, ",\n{\"ph\":\"i\",\"s\":\"t\",\"pid\":1,\"tid\":1,");
    put_time(text, "ts", since_start(text, now_ns));
    put(text, ",\"cat\":\"answer\",\"name\":\"answer\",\"args\":{\"layer\":%" PRIu32 ",\"tokens\":%" PRIu32,
        answer->layer, answer->n_tok);
    put_integers(text, "active", answer->active.list, answer->active.n);
    if (answer->choices.experts != NULL) {
        put_integers(text, "experts", answer->choices.experts, n);
        put_floats(text, "weights", answer->choices.weights, n);
    }
    for (size_t i = 0; answer->choices.experts != NULL && answer->choices.is_low != NULL && i < n; i++)
        put(text, "%s%d", i > 0 ? "," : ",\"low\":[", answer->choices.is_low[i]);
    if (answer->choices.experts != NULL && answer->choices.is_low != NULL)
        put(text, "]");
    if (answer->logits.rows != NULL)
        put_logits(text, answer);
    if (answer->next.gate.n > 0)
        put_scored(text, "next_gate", "next_scores", answer->next.gate.experts, answer->next.gate.n);
    for (size_t i = 0; i < MOEC_GATES_AHEAD - 1; i++)
        if (answer->next.later[i].n > 0)
            put_scored(text, later_gates[i].experts, later_gates[i].scores, answer->next.later[i].experts,
                       answer->next.later[i].n);
    if (answer->next.learned.n > 0)
        put_scored(text, "next_learned", "next_learned_scores", answer->next.learned.experts,
                   answer->next.learned.n);
    put(text, "}}");
}

enum moec_status moec_trace_text_close(struct moec_trace_text *text, uint64_t n_lost_spans,
                                       uint64_t n_lost_answers, struct moec_error *err)
{
    put(text,
        ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"moec_end\",\"args\":{\"lost_spans\":%" PRIu64
        ",\"lost_answers\":%" PRIu64 "}}\n],\"displayTimeUnit\":\"ns\"}\n",
        n_lost_spans, n_lost_answers);
    moec_trace_text_flush(text);
    if (text->status == MOEC_OK)
        text->status = moec_output_commit(&text->output, &text->err);
    moec_output_abort(&text->output);
    free(text->bytes);
    if (text->status != MOEC_OK)
        return moec_fail(err, text->status, "%s", text->err.message);
    return MOEC_OK;
}

void moec_trace_text_discard(struct moec_trace_text *text)
{
    moec_output_abort(&text->output);
    free(text->bytes);
}
