/* One layout function serves planning, size and writing, so the size that a search minimises is the size of
 * the file. Small sections are encoded by the plan, dense weights and records are streamed. Places of
 * header, table, indices and statements are filled with zeros first and patched at the end. The writer
 * compares each section's end with the layout and refuses to go on after a difference. */
#include "formats/bundle/bundle_writer.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/bundle/bundle_dense.h"
#include "formats/tables/score_shares.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A section whose stored bytes the plan holds. */
struct planned_section {
    uint32_t kind;
    uint32_t flags;
    uint64_t content_bytes;
    /* Owned; NULL for dense weights, written piece by piece, and for statements, written last. */
    const uint8_t *stored;
    uint64_t stored_bytes;
};

#define MAX_PLANNED 13 /* kinds before the record sections */

struct moec_bundle_plan {
    struct moec_config config;
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    uint32_t alignment;
    uint32_t n_layer;               /* MoE layers */
    const struct moec_dense *dense; /* borrowed */
    bool cuts_dense;
    struct planned_section sections[MAX_PLANNED];
    uint32_t n_sections;
};

/* ---- plan ---- */

/* Where pieces go while a plan is made: into memory, or only counted. */
struct piece_memory {
    void *bytes;
    size_t capacity;
    size_t used;
};

static enum moec_status keep_bytes(void *context, const uint8_t *bytes, size_t n, struct moec_error *err)
{
    struct piece_memory *memory = context;
    MOEC_TRY(moec_grow(&memory->bytes, &memory->capacity, memory->used + n, 1, "a compressed section", err));
    memcpy((uint8_t *)memory->bytes + memory->used, bytes, n);
    memory->used += n;
    return MOEC_OK;
}

static enum moec_status count_bytes(void *context, const uint8_t *bytes, size_t n, struct moec_error *err)
{
    (void)bytes;
    (void)err;
    *(uint64_t *)context += n;
    return MOEC_OK;
}

/* Takes ownership of `content` in every case; stores it as it is. */
static void plan_plain(struct moec_bundle_plan *plan, uint32_t kind, const uint8_t *content, uint64_t n)
{
    plan->sections[plan->n_sections++] =
        (struct planned_section){.kind = kind, .content_bytes = n, .stored = content, .stored_bytes = n};
}

/* The same, compressed. */
static enum moec_status plan_compressed(struct moec_bundle_plan *plan, uint32_t kind, uint8_t *content,
                                        uint64_t n, struct moec_error *err)
{
    struct piece_memory memory = {0};
    enum moec_status status = MOEC_OK;
    if (n > MOEC_SMALL_SECTION_MAX_BYTES)
        status = moec_fail(err, MOEC_ERR_LIMIT,
                           "a section of the bundle has %" PRIu64 " bytes, more than the limit of %" PRIu64,
                           n, MOEC_SMALL_SECTION_MAX_BYTES);
    else
        status = moec_pieces_encode(content, n, keep_bytes, &memory, err);
    free(content);
    if (status != MOEC_OK) {
        free(memory.bytes);
        return status;
    }
    plan->sections[plan->n_sections++] = (struct planned_section){.kind = kind,
                                                                  .flags = MOEC_SECTION_FLAG_COMPRESSED,
                                                                  .content_bytes = n,
                                                                  .stored = memory.bytes,
                                                                  .stored_bytes = memory.used};
    return MOEC_OK;
}

enum moec_status moec_bundle_plan_set_codecs(struct moec_bundle_plan *plan, const struct moec_codec *codecs,
                                             struct moec_error *err)
{
    struct moec_codec checked[MOEC_CODEC_TABLE] = {0};
    for (uint32_t number = 0; number < MOEC_CODEC_TABLE; number++) {
        const struct moec_codec codec = codecs[number];
        char subject[64];
        (void)snprintf(subject, sizeof subject, "codec %" PRIu32 " of the records", number);
        MOEC_TRY(moec_codec_check(codec, subject, err));
        if (codec.dtype == MOEC_DTYPE_F32)
            continue;
        const uint32_t bits = moec_codec_bits(codec);
        if (number < MOEC_CODEC_FIRST_OTHER && bits != number)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "%s has %" PRIu32 " bits, expected %" PRIu32 ", which is the codec's number",
                             subject, bits, number);
        uint64_t n_bytes = moec_record_layout_make(&plan->config, codec).n_bytes;
        if (n_bytes > UINT32_MAX)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "an expert has %" PRIu64 " bytes at %" PRIu32 " bits, more than the limit of %u",
                             n_bytes, bits, UINT32_MAX);
        checked[number] = codec;
    }
    memcpy(plan->codecs, checked, sizeof checked);
    return MOEC_OK;
}

static enum moec_status plan_model(struct moec_bundle_plan *plan, const struct moec_bundle_parts *parts,
                                   struct moec_error *err)
{
    uint8_t *content = NULL;
    size_t n = 0;
    MOEC_TRY(moec_config_encode(parts->config, &content, &n, err));
    plan_plain(plan, MOEC_SECTION_CONFIG, content, n);
    plan_plain(plan, MOEC_SECTION_PROVENANCE, NULL, MOEC_PROVENANCE_BYTES);
    plan_plain(plan, MOEC_SECTION_CERTIFICATE, NULL, MOEC_CERTIFICATE_BYTES);
    if (parts->has_sequence)
        plan_plain(plan, MOEC_SECTION_SEQUENCE, NULL, MOEC_SEQUENCE_BYTES);
    if (parts->generation != NULL && !moec_generation_is_default(parts->generation)) {
        MOEC_TRY(moec_generation_check(parts->generation, parts->config->n_vocab, "generation of the bundle",
                                       err));
        MOEC_TRY(moec_generation_encode(parts->generation, &content, &n, err));
        plan_plain(plan, MOEC_SECTION_GENERATION, content, n);
    }
    if (parts->tokenizer != NULL) {
        void *encoded = NULL;
        MOEC_TRY(moec_tokenizer_model_fits(parts->tokenizer, parts->config->n_vocab, "tokenizer", err));
        MOEC_TRY(moec_tokenizer_model_encode(parts->tokenizer, &encoded, &n, err));
        MOEC_TRY(plan_compressed(plan, MOEC_SECTION_TOKENIZER, encoded, n, err));
    }
    if (parts->chat != NULL && parts->chat->n > 0) {
        MOEC_TRY(moec_chat_source_encode(parts->chat, &content, &n, err));
        MOEC_TRY(plan_compressed(plan, MOEC_SECTION_CHAT, content, n, err));
    }
    return MOEC_OK;
}

static enum moec_status plan_statistics(struct moec_bundle_plan *plan, const struct moec_bundle_parts *parts,
                                        struct moec_error *err)
{
    const struct moec_config *config = parts->config;
    const struct moec_path_table *paths = parts->paths;
    if (paths != NULL && paths->n_layer > 0) {
        uint8_t *content = NULL;
        size_t n = 0;
        if (paths->n_layer != plan->n_layer || paths->n_expert != config->n_expert ||
            paths->top_k != config->top_k)
            return moec_fail(
                err, MOEC_ERR_MISMATCH,
                "the path table (which experts follow which) has %u layers of %u experts with top-k %u, but "
                "the model has %u layers of %u experts with top-k %u",
                paths->n_layer, paths->n_expert, paths->top_k, plan->n_layer, config->n_expert,
                config->top_k);
        MOEC_TRY(moec_path_table_encode(paths, &content, &n, err));
        MOEC_TRY(plan_compressed(plan, MOEC_SECTION_PATHS, content, n, err));
    }
    if (parts->router_ranges != NULL) {
        void *content = NULL;
        MOEC_TRY(moec_alloc(&content, moec_router_ranges_bytes(plan->n_layer), 1, "router ranges", err));
        moec_router_ranges_encode(parts->router_ranges, plan->n_layer, content);
        plan_plain(plan, MOEC_SECTION_ROUTER_RANGES, content, moec_router_ranges_bytes(plan->n_layer));
    }
    if (parts->expert_scores != NULL) {
        void *content = NULL;
        MOEC_TRY(moec_alloc(&content, MOEC_SCORES_BYTES, 1, "expert scores", err));
        moec_score_shares_encode(parts->expert_scores, content);
        plan_plain(plan, MOEC_SECTION_EXPERT_SCORES, content, MOEC_SCORES_BYTES);
    }
    if (parts->routing != NULL && parts->routing->activations != NULL) {
        void *content = NULL;
        uint64_t n =
            MOEC_ROUTING_HEADER_BYTES + (uint64_t)plan->n_layer * config->n_expert * MOEC_ROUTING_ENTRY_BYTES;
        MOEC_TRY(moec_alloc(&content, n, 1, "routing summary", err));
        moec_routing_encode(parts->routing, plan->n_layer, config->n_expert, content);
        MOEC_TRY(plan_compressed(plan, MOEC_SECTION_ROUTING, content, n, err));
    }
    return MOEC_OK;
}

static enum moec_status plan_dense_table(struct moec_bundle_plan *plan, const struct moec_dense *dense,
                                         struct moec_error *err)
{
    void *table = NULL;
    uint64_t n = MOEC_DENSE_HEADER_BYTES + (uint64_t)dense->n_entries * MOEC_DENSE_ENTRY_BYTES;
    MOEC_TRY(moec_dense_check(dense, &plan->config, err));
    MOEC_TRY(moec_alloc(&table, n, 1, "table of dense weights", err));
    moec_dense_table_encode(dense, table);
    return plan_compressed(plan, MOEC_SECTION_DENSE_TABLE, table, n, err);
}

static void plan_dense_weights(struct moec_bundle_plan *plan, const struct moec_dense *dense,
                               uint64_t stored_bytes)
{
    const uint32_t flags = MOEC_SECTION_FLAG_COMPRESSED | (plan->cuts_dense ? MOEC_SECTION_FLAG_CUT : 0);
    plan->dense = dense;
    plan->sections[plan->n_sections++] = (struct planned_section){.kind = MOEC_SECTION_DENSE,
                                                                  .flags = flags,
                                                                  .content_bytes = dense->blob_bytes,
                                                                  .stored_bytes = stored_bytes};
}

/* The last two sections of a plan. */
static enum moec_status plan_dense(struct moec_bundle_plan *plan, const struct moec_bundle_parts *parts,
                                   struct moec_error *err)
{
    uint64_t stored = parts->dense_stored_bytes;
    MOEC_TRY(plan_dense_table(plan, parts->dense, err));
    if (!parts->cuts_dense) {
        stored = 0;
        MOEC_TRY(moec_bundle_dense_encode(parts->dense, false, count_bytes, &stored, err));
    }
    plan_dense_weights(plan, parts->dense, stored);
    return MOEC_OK;
}

enum moec_status moec_bundle_plan_set_dense(struct moec_bundle_plan *plan, const struct moec_dense *dense,
                                            uint64_t stored_bytes, struct moec_error *err)
{
    struct planned_section *table = &plan->sections[plan->n_sections - 2];
    const struct planned_section old[2] = {table[0], table[1]};
    if (!plan->cuts_dense)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the plan of the bundle cannot take new dense weights, because it stores each dense "
                         "matrix whole");
    plan->n_sections -= 2;
    const enum moec_status status = plan_dense_table(plan, dense, err);
    if (status != MOEC_OK) {
        memcpy(table, old, sizeof old);
        plan->n_sections += 2;
        return status;
    }
    free((void *)(uintptr_t)old[0].stored);
    plan_dense_weights(plan, dense, stored_bytes);
    return MOEC_OK;
}

enum moec_status moec_bundle_plan_create(const struct moec_bundle_parts *parts, struct moec_bundle_plan **out,
                                         struct moec_error *err)
{
    void *memory = NULL;
    uint32_t alignment = parts->alignment;
    if (alignment < MOEC_MIN_ALIGNMENT || alignment > MOEC_MAX_ALIGNMENT ||
        (alignment & (alignment - 1)) != 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the bundle's alignment %u is invalid, expected a power of two from %u to %u",
                         alignment, MOEC_MIN_ALIGNMENT, MOEC_MAX_ALIGNMENT);
    MOEC_TRY(moec_config_check(parts->config, "config of the bundle", err));
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_bundle_plan), "plan of the bundle", err));
    struct moec_bundle_plan *plan = memory;
    plan->config = *parts->config;
    plan->alignment = alignment;
    plan->n_layer = moec_config_moe_count(parts->config);
    plan->cuts_dense = parts->cuts_dense;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_bundle_plan_set_codecs(plan, parts->codecs, err));
    MOEC_TRY_OUT(plan_model(plan, parts, err));
    MOEC_TRY_OUT(plan_statistics(plan, parts, err));
    MOEC_TRY_OUT(plan_dense(plan, parts, err));
    *out = plan;
    plan = NULL;
out:
    moec_bundle_plan_free(plan);
    return status;
}

void moec_bundle_plan_free(struct moec_bundle_plan *plan)
{
    if (plan == NULL)
        return;
    for (uint32_t i = 0; i < plan->n_sections; i++)
        free((void *)(uintptr_t)plan->sections[i].stored);
    free(plan);
}

/* ---- layout ---- */

uint64_t moec_bundle_plan_record_bytes(const struct moec_bundle_plan *plan, struct moec_variant variant)
{
    if (!moec_variant_exists(variant, plan->codecs))
        return 0;
    return moec_align_up(moec_record_layout_of(&plan->config, variant, plan->codecs).n_bytes,
                         plan->alignment);
}

/* Whether form 0 of the index, one codec an entry and one codec a bitwidth, does not suffice for level 0. */
static bool is_mixed(const struct moec_bundle_plan *plan, const struct moec_variant *experts)
{
    struct moec_codec seen[MOEC_CODEC_FIRST_OTHER] = {0}; /* by bits; F32: none yet */
    for (size_t i = 0; i < (size_t)plan->n_layer * plan->config.n_expert; i++) {
        const struct moec_codec *codecs = plan->codecs, up = codecs[experts[i].codecs[MOEC_PROJECTION_UP]];
        struct moec_codec *first = &seen[moec_codec_bits(up)];
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
            if (!moec_codec_equal(codecs[experts[i].codecs[p]], up))
                return true;
        if (first->dtype == MOEC_DTYPE_F32)
            *first = up;
        if (!moec_codec_equal(*first, up))
            return true;
    }
    return false;
}

static uint64_t index_bytes(const struct moec_bundle_plan *plan, bool mixed)
{
    return MOEC_INDEX_HEADER_BYTES + (uint64_t)plan->n_layer * plan->config.n_expert *
                                         (mixed ? MOEC_INDEX_MIXED_BYTES : MOEC_INDEX_ENTRY_BYTES);
}

/* Adds a section, but for its offset and name, at the end of the file. */
static void place(struct moec_contents *contents, uint64_t *end, struct moec_section added)
{
    struct moec_section *section = &contents->sections[contents->n_sections++];
    uint32_t alignment = added.kind == MOEC_SECTION_RECORDS ? contents->alignment : MOEC_SECTION_ALIGNMENT;
    added.offset = moec_align_up(*end, alignment);
    *section = added;
    moec_section_set_name(section);
    *end = section->offset + section->stored_bytes;
}

/* One of a precision copy, stored as it is. */
static struct moec_section level_section(uint32_t kind, uint32_t level, uint64_t n_bytes)
{
    return (struct moec_section){
        .kind = kind, .level = level, .stored_bytes = n_bytes, .content_bytes = n_bytes};
}

static enum moec_status level_bytes(const struct moec_bundle_plan *plan, const struct moec_variant *experts,
                                    uint32_t level, uint8_t bits, uint64_t *n_bytes, struct moec_error *err)
{
    size_t n = (size_t)plan->n_layer * plan->config.n_expert;
    if (level > 0) {
        const uint64_t padded = moec_bundle_plan_record_bytes(plan, moec_variant_uniform(bits));
        if (padded == 0)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "precision copy %u has %u bits, but no codec has this bitwidth", level, bits);
        *n_bytes = n * padded;
        return MOEC_OK;
    }
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t padded = moec_bundle_plan_record_bytes(plan, experts[i]);
        const uint8_t *wanted = experts[i].codecs;
        if (padded == 0)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "layer %u expert %zu uses codecs %u, %u and %u (gate, up, down), but not all "
                             "of them exist",
                             moec_config_moe_layer(&plan->config, (uint32_t)(i / plan->config.n_expert)),
                             i % plan->config.n_expert, wanted[0], wanted[1], wanted[2]);
        total += padded;
    }
    *n_bytes = total;
    return MOEC_OK;
}

/* Where everything will stand: known before anything is written. All record indices stand before the first
 * records, so that opening reads the start of the file. */
static enum moec_status lay_out(const struct moec_bundle_plan *plan,
                                const struct moec_bundle_assignment *assignment,
                                struct moec_contents *contents, struct moec_error *err)
{
    const struct moec_variant *experts = assignment->experts;
    const uint8_t *copy_bits = assignment->copy_bits;
    const uint32_t n_extra = assignment->n_extra;
    if (n_extra >= MOEC_MAX_COPIES)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the bundle would hold extra copies of its experts at %u bitwidths, expected at "
                         "most %d",
                         n_extra, MOEC_MAX_COPIES - 1);
    memset(contents, 0, sizeof *contents);
    contents->alignment = plan->alignment;
    uint32_t n_sections = plan->n_sections + 2 * (1 + n_extra);
    uint64_t end = MOEC_BUNDLE_HEADER_BYTES + (uint64_t)n_sections * MOEC_BUNDLE_SECTION_BYTES;
    for (uint32_t i = 0; i < plan->n_sections; i++) {
        const struct planned_section *section = &plan->sections[i];
        place(contents, &end,
              (struct moec_section){.kind = section->kind,
                                    .flags = section->flags,
                                    .stored_bytes = section->stored_bytes,
                                    .content_bytes = section->content_bytes});
    }
    uint64_t n_bytes[MOEC_MAX_COPIES] = {0};
    for (uint32_t level = 0; level <= n_extra; level++)
        MOEC_TRY(
            level_bytes(plan, experts, level, level > 0 ? copy_bits[level - 1] : 0, &n_bytes[level], err));
    for (uint32_t level = 0; level <= n_extra; level++) {
        const uint64_t index = index_bytes(plan, level == 0 && is_mixed(plan, experts));
        place(contents, &end, level_section(MOEC_SECTION_RECORD_INDEX, level, index));
    }
    for (uint32_t level = 0; level <= n_extra; level++)
        place(contents, &end, level_section(MOEC_SECTION_RECORDS, level, n_bytes[level]));
    contents->file_bytes = end;
    return MOEC_OK;
}

enum moec_status moec_bundle_plan_bytes(const struct moec_bundle_plan *plan,
                                        const struct moec_bundle_assignment *assignment, uint64_t *n_bytes,
                                        struct moec_error *err)
{
    struct moec_contents contents;
    MOEC_TRY(lay_out(plan, assignment, &contents, err));
    *n_bytes = contents.file_bytes;
    return MOEC_OK;
}

enum moec_status moec_bundle_plan_sections(const struct moec_bundle_plan *plan,
                                           const struct moec_bundle_assignment *assignment,
                                           moec_bundle_section_sink *sink, void *context,
                                           struct moec_error *err)
{
    struct moec_contents contents;
    MOEC_TRY(lay_out(plan, assignment, &contents, err));
    for (uint32_t i = 0; i < contents.n_sections; i++) {
        const struct moec_section *section = &contents.sections[i];
        const struct moec_bundle_section shown = {
            .name = section->name,
            .offset = section->offset,
            .stored_bytes = section->stored_bytes,
            .content_bytes = section->content_bytes,
            .is_compressed = (section->flags & MOEC_SECTION_FLAG_COMPRESSED) != 0,
        };
        MOEC_TRY(sink(context, &shown, err));
    }
    return MOEC_OK;
}

/* ---- writer ---- */

struct moec_bundle_writer {
    const struct moec_bundle_plan *plan; /* borrowed */
    struct moec_output output;
    struct moec_contents contents;
    uint32_t n_copy;
    uint8_t copy_bits[MOEC_MAX_COPIES];
    bool is_mixed;                     /* the index of level 0 has form 1 */
    struct moec_record_entry *records; /* (n_copy, S, E), owned; variants are set at opening */
    size_t n_record;                   /* appended so far */
    struct moec_sha256 level_digest;   /* of the records of the current level */
};

static size_t experts_per_level(const struct moec_bundle_writer *writer)
{
    return (size_t)writer->plan->n_layer * writer->plan->config.n_expert;
}

static struct moec_section *find_section(struct moec_bundle_writer *writer, uint32_t kind, uint32_t level)
{
    for (uint32_t i = 0; i < writer->contents.n_sections; i++)
        if (writer->contents.sections[i].kind == kind && writer->contents.sections[i].level == level)
            return &writer->contents.sections[i];
    return NULL;
}

/* Appends and hashes; the sink of dense weights. */
struct hashed_output {
    struct moec_output *output;
    struct moec_sha256 digest;
};

static enum moec_status append_hashed(void *context, const uint8_t *bytes, size_t n, struct moec_error *err)
{
    struct hashed_output *hashed = context;
    moec_sha256_update(&hashed->digest, bytes, n);
    return moec_output_append(hashed->output, bytes, n, err);
}

/* Appends zero bytes up to an offset: padding, and room for what is patched in at the end. */
static enum moec_status fill_to(struct moec_output *output, uint64_t offset, struct moec_error *err)
{
    static const uint8_t zeros[4096];
    while (output->n_bytes < offset) {
        uint64_t missing = offset - output->n_bytes;
        MOEC_TRY(
            moec_output_append(output, zeros, missing < sizeof zeros ? (size_t)missing : sizeof zeros, err));
    }
    return MOEC_OK;
}

static enum moec_status write_planned(struct moec_bundle_writer *writer,
                                      const struct planned_section *planned, struct moec_section *section,
                                      struct moec_error *err)
{
    MOEC_TRY(fill_to(&writer->output, section->offset, err));
    struct hashed_output hashed = {.output = &writer->output};
    moec_sha256_init(&hashed.digest);
    if (planned->stored != NULL) {
        MOEC_TRY(append_hashed(&hashed, planned->stored, (size_t)planned->stored_bytes, err));
    } else if (planned->kind == MOEC_SECTION_DENSE) {
        MOEC_TRY(moec_bundle_dense_encode(writer->plan->dense, writer->plan->cuts_dense, append_hashed,
                                          &hashed, err));
    } else {
        return fill_to(&writer->output, section->offset + section->stored_bytes, err);
    }
    moec_sha256_finish(&hashed.digest, section->digest);
    return MOEC_OK;
}

static enum moec_status check_length(const struct moec_bundle_writer *writer, uint64_t expected,
                                     struct moec_error *err)
{
    if (writer->output.n_bytes != expected)
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "the bundle '%s' has %" PRIu64 " bytes, but %" PRIu64 " bytes were planned: the "
                         "dense weights changed while the bundle was written",
                         writer->output.path, writer->output.n_bytes, expected);
    return MOEC_OK;
}

enum moec_status moec_bundle_writer_open(const struct moec_bundle_plan *plan, const char *path,
                                         const struct moec_bundle_assignment *assignment,
                                         struct moec_bundle_writer **out, struct moec_error *err)
{
    const struct moec_variant *experts = assignment->experts;
    const uint8_t *copy_bits = assignment->copy_bits;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_bundle_writer), "bundle writer", err));
    struct moec_bundle_writer *writer = memory;
    writer->plan = plan;
    writer->output.fd = -1;
    writer->n_copy = 1 + assignment->n_extra;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(lay_out(plan, assignment, &writer->contents, err));
    writer->is_mixed = is_mixed(plan, experts);
    size_t n = experts_per_level(writer);
    MOEC_TRY_OUT(
        moec_alloc(&memory, (uint64_t)writer->n_copy * n, sizeof *writer->records, "record index", err));
    writer->records = memory;
    for (uint32_t copy = 0; copy < writer->n_copy; copy++) {
        writer->copy_bits[copy] = copy > 0 ? copy_bits[copy - 1] : 0;
        for (size_t i = 0; i < n; i++)
            writer->records[copy * n + i].variant =
                copy > 0 ? moec_variant_uniform(copy_bits[copy - 1]) : experts[i];
    }
    MOEC_TRY_OUT(moec_output_open(&writer->output, path, err));
    for (uint32_t i = 0; i < plan->n_sections; i++) {
        struct moec_section *section = &writer->contents.sections[i];
        MOEC_TRY_OUT(write_planned(writer, &plan->sections[i], section, err));
        MOEC_TRY_OUT(check_length(writer, section->offset + section->stored_bytes, err));
    }
    *out = writer;
    writer = NULL;
out:
    moec_bundle_writer_abort(writer);
    return status;
}

bool moec_bundle_writer_next(const struct moec_bundle_writer *writer, struct moec_bundle_next *next)
{
    return moec_bundle_writer_ahead(writer, 0, next);
}

bool moec_bundle_writer_ahead(const struct moec_bundle_writer *writer, size_t ahead,
                              struct moec_bundle_next *next)
{
    const struct moec_bundle_plan *plan = writer->plan;
    size_t n = experts_per_level(writer), at = writer->n_record;
    if (ahead >= writer->n_copy * n - at)
        return false;
    at += ahead;
    next->copy = (uint32_t)(at / n);
    next->ordinal = (uint32_t)(at % n / plan->config.n_expert);
    next->layer = moec_config_moe_layer(&plan->config, next->ordinal);
    next->expert = (uint32_t)(at % plan->config.n_expert);
    next->layout = moec_record_layout_of(&plan->config, writer->records[at].variant, plan->codecs);
    return true;
}

enum moec_status moec_bundle_writer_append(struct moec_bundle_writer *writer, const uint8_t *record,
                                           size_t n_bytes, struct moec_error *err)
{
    struct moec_bundle_next next;
    if (!moec_bundle_writer_next(writer, &next))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "cannot append an expert's record: the bundle already has all its records");
    struct moec_record_entry *entry = &writer->records[writer->n_record];
    if (n_bytes != next.layout.n_bytes)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "record of layer %u expert %u has %zu bytes, expected %" PRIu64
                         " for codecs %u, %u and %u (gate, up, down)",
                         next.layer, next.expert, n_bytes, next.layout.n_bytes, entry->variant.codecs[0],
                         entry->variant.codecs[1], entry->variant.codecs[2]);
    if (!moec_record_is_finite(&next.layout, record))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "record of layer %u expert %u has a scale or weight that is not finite", next.layer,
                         next.expert);
    bool first = next.ordinal == 0 && next.expert == 0;
    struct moec_section *section = find_section(writer, MOEC_SECTION_RECORDS, next.copy);
    if (first) {
        MOEC_TRY(fill_to(&writer->output, section->offset, err));
        moec_sha256_init(&writer->level_digest);
    }
    struct hashed_output hashed = {.output = &writer->output, .digest = writer->level_digest};
    static const uint8_t zeros[4096];
    entry->offset = writer->output.n_bytes;
    entry->n_bytes = (uint32_t)n_bytes;
    entry->crc32c = moec_crc32c(0, record, n_bytes);
    MOEC_TRY(append_hashed(&hashed, record, n_bytes, err));
    for (uint64_t left = moec_bundle_plan_record_bytes(writer->plan, entry->variant) - n_bytes; left > 0;) {
        size_t n = left < sizeof zeros ? (size_t)left : sizeof zeros;
        MOEC_TRY(append_hashed(&hashed, zeros, n, err));
        left -= n;
    }
    writer->level_digest = hashed.digest;
    writer->n_record++;
    if (writer->output.n_bytes == section->offset + section->stored_bytes)
        moec_sha256_finish(&writer->level_digest, section->digest);
    return MOEC_OK;
}

static enum moec_status patch_section(struct moec_bundle_writer *writer, struct moec_section *section,
                                      const uint8_t *bytes, struct moec_error *err)
{
    moec_sha256(bytes, (size_t)section->stored_bytes, section->digest);
    return moec_output_patch(&writer->output, section->offset, bytes, (size_t)section->stored_bytes, err);
}

static enum moec_status write_indices(struct moec_bundle_writer *writer, struct moec_error *err)
{
    const struct moec_bundle_plan *plan = writer->plan;
    size_t n = experts_per_level(writer);
    void *bytes = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc(&bytes, index_bytes(plan, writer->is_mixed), 1, "record index", err));
    for (uint32_t copy = 0; copy < writer->n_copy; copy++) {
        const struct moec_record_level level = {.entries = writer->records + copy * n,
                                                .bits = writer->copy_bits[copy],
                                                .is_mixed = copy == 0 && writer->is_mixed};
        moec_record_index_encode(&level, &plan->config, plan->codecs,
                                 find_section(writer, MOEC_SECTION_RECORDS, copy)->offset, bytes);
        MOEC_TRY_OUT(
            patch_section(writer, find_section(writer, MOEC_SECTION_RECORD_INDEX, copy), bytes, err));
    }
out:
    free(bytes);
    return status;
}

static enum moec_status write_statements(struct moec_bundle_writer *writer,
                                         const struct moec_provenance *provenance,
                                         const struct moec_certificate *certificate, struct moec_error *err)
{
    uint8_t bytes[MOEC_PROVENANCE_BYTES > MOEC_CERTIFICATE_BYTES ? MOEC_PROVENANCE_BYTES
                                                                 : MOEC_CERTIFICATE_BYTES];
    MOEC_TRY(moec_provenance_encode(provenance, bytes, err));
    MOEC_TRY(patch_section(writer, find_section(writer, MOEC_SECTION_PROVENANCE, 0), bytes, err));
    MOEC_TRY(moec_certificate_encode(certificate, bytes, err));
    MOEC_TRY(patch_section(writer, find_section(writer, MOEC_SECTION_CERTIFICATE, 0), bytes, err));
    struct moec_section *sequence = find_section(writer, MOEC_SECTION_SEQUENCE, 0);
    if (sequence == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_sequence_encode(certificate, bytes, err));
    return patch_section(writer, sequence, bytes, err);
}

enum moec_status moec_bundle_writer_commit(struct moec_bundle_writer *writer,
                                           const struct moec_provenance *provenance,
                                           const struct moec_certificate *certificate, struct moec_error *err)
{
    struct moec_bundle_next next;
    uint8_t header[MOEC_BUNDLE_HEADER_BYTES];
    uint8_t table[MOEC_BUNDLE_MAX_SECTIONS * MOEC_BUNDLE_SECTION_BYTES];
    enum moec_status status = MOEC_OK;
    if (moec_bundle_writer_next(writer, &next)) {
        status = moec_fail(err, MOEC_ERR_USAGE,
                           "the bundle is incomplete: the record of layer %u expert %u (copy %u) is missing",
                           next.layer, next.expert, next.copy);
        goto out;
    }
    MOEC_TRY_OUT(check_length(writer, writer->contents.file_bytes, err));
    MOEC_TRY_OUT(write_indices(writer, err));
    MOEC_TRY_OUT(write_statements(writer, provenance, certificate, err));
    moec_contents_encode(&writer->contents, header, table);
    MOEC_TRY_OUT(moec_output_patch(&writer->output, MOEC_BUNDLE_HEADER_BYTES, table,
                                   (size_t)writer->contents.n_sections * MOEC_BUNDLE_SECTION_BYTES, err));
    MOEC_TRY_OUT(moec_output_patch(&writer->output, 0, header, sizeof header, err));
    status = moec_output_commit(&writer->output, err);
out:
    moec_bundle_writer_abort(writer);
    return status;
}

void moec_bundle_writer_abort(struct moec_bundle_writer *writer)
{
    if (writer == NULL)
        return;
    moec_output_abort(&writer->output);
    free(writer->records);
    free(writer);
}
