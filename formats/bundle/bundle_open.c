/* Opening a bundle: each small section is read and checked once, before anything trusts it. A section that readers
 * may skip is checked where it is there. */
#include "formats/bundle/bundle_chat.h"
#include "formats/bundle/bundle_decisions.h"
#include "formats/bundle/bundle_evict.h"
#include "formats/bundle/bundle_fit.h"
#include "formats/bundle/bundle_format.h"
#include "formats/bundle/bundle_predictor.h"
#include "formats/bundle/bundle_sparsity.h"
#include "formats/bundle/record_parts.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/tables/score_shares.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static enum moec_status open_config(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_CONFIG, true, &bytes, &n, err));
    enum moec_status status = moec_config_decode(bytes, n, &bundle->config, err);
    free(bytes);
    return status;
}

static enum moec_status open_tokenizer(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    void *memory = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_bundle_load_small(bundle, MOEC_SECTION_TOKENIZER, false, &bytes, &n, err));
    if (bytes == NULL)
        return MOEC_OK;
    MOEC_TRY_OUT(moec_alloc(&memory, 1, sizeof *bundle->tokenizer, "tokenizer", err));
    bundle->tokenizer = memory;
    MOEC_TRY_OUT(moec_tokenizer_model_decode(bytes, n, bundle->file.path, bundle->tokenizer, err));
    MOEC_TRY_OUT(
        moec_tokenizer_model_fits(bundle->tokenizer, bundle->config.n_vocab, bundle->file.path, err));
out:
    free(bytes);
    return status;
}

enum moec_status moec_bundle_load_chat(const struct moec_bundle *bundle, struct moec_chat_source *source,
                                       struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_CHAT, false, &bytes, &n, err));
    const enum moec_status status = bytes == NULL ? MOEC_OK : moec_chat_source_decode(bytes, n, source, err);
    free(bytes);
    return status;
}

/* What conversations need is read again by who holds any. */
static enum moec_status check_chat(const struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_chat_source source = {.n = 0};
    MOEC_TRY(moec_bundle_load_chat(bundle, &source, err));
    moec_chat_source_release(&source);
    return MOEC_OK;
}

enum moec_status moec_bundle_load_sparsity(const struct moec_bundle *bundle,
                                           struct moec_sparsity_table *table, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    *table = (struct moec_sparsity_table){0};
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_SPARSITY, false, &bytes, &n, err));
    const enum moec_status status =
        bytes == NULL ? MOEC_OK : moec_sparsity_table_decode(bytes, n, &bundle->config, table, err);
    free(bytes);
    return status;
}

enum moec_status moec_bundle_load_plan(const struct moec_bundle *bundle, struct moec_sparsity_plan *plan,
                                       struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    *plan = (struct moec_sparsity_plan){0};
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_SPARSITY_PLAN, false, &bytes, &n, err));
    const enum moec_status status =
        bytes == NULL ? MOEC_OK : moec_sparsity_plan_decode(bytes, n, &bundle->config, plan, err);
    free(bytes);
    return status;
}

enum moec_status moec_bundle_load_parts(const struct moec_bundle *bundle, struct moec_record_parts *parts,
                                        struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    *parts = (struct moec_record_parts){0};
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_RECORD_PARTS, false, &bytes, &n, err));
    const enum moec_status status =
        bytes == NULL ? MOEC_OK : moec_record_parts_decode(bytes, n, bundle, parts, err);
    free(bytes);
    return status;
}

/* Likewise. */
static enum moec_status check_sparsity(const struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_sparsity_table table;
    struct moec_sparsity_plan plan;
    MOEC_TRY(moec_bundle_load_sparsity(bundle, &table, err));
    moec_sparsity_table_release(&table);
    MOEC_TRY(moec_bundle_load_plan(bundle, &plan, err));
    moec_sparsity_plan_release(&plan);
    return MOEC_OK;
}

/* After the indices, which say how long parts are. */
static enum moec_status check_parts(const struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_record_parts parts;
    MOEC_TRY(moec_bundle_load_parts(bundle, &parts, err));
    moec_record_parts_release(&parts);
    return MOEC_OK;
}

enum moec_status moec_bundle_load_decisions(const struct moec_bundle *bundle,
                                            struct moec_bundle_decisions *decisions, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    memset(decisions, 0, sizeof *decisions);
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_DECISIONS, false, &bytes, &n, err));
    const enum moec_status status =
        bytes == NULL ? MOEC_OK : moec_decisions_decode(bytes, n, &bundle->config, decisions, err);
    free(bytes);
    return status;
}

static enum moec_status check_decisions(const struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_bundle_decisions decisions;
    struct moec_bundle_evict evict;
    MOEC_TRY(moec_bundle_load_decisions(bundle, &decisions, err));
    return moec_bundle_load_evict(bundle, &evict, err);
}

enum moec_status moec_bundle_load_fit(const struct moec_bundle *bundle, struct moec_bundle_fit *fit,
                                      struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    memset(fit, 0, sizeof *fit);
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_FIT, false, &bytes, &n, err));
    const enum moec_status status = bytes == NULL ? MOEC_OK : moec_bundle_fit_decode(bytes, n, fit, err);
    free(bytes);
    return status;
}

static enum moec_status take_fit(struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_bundle_fit fit;
    MOEC_TRY(moec_bundle_load_fit(bundle, &fit, err));
    bundle->fitted_memory_bytes = fit.memory_bytes;
    bundle->fitted_buffer_bytes = fit.buffer_bytes;
    bundle->fitted_bytes_per_second = fit.bytes_per_second;
    bundle->fitted_latency_ns = fit.latency_ns;
    (void)snprintf(bundle->fitted_evict, sizeof bundle->fitted_evict, "%s", fit.evict);
    (void)snprintf(bundle->fitted_predict, sizeof bundle->fitted_predict, "%s", fit.predict);
    return MOEC_OK;
}

enum moec_status moec_bundle_load_evict(const struct moec_bundle *bundle, struct moec_bundle_evict *evict,
                                        struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    memset(evict, 0, sizeof *evict);
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_EVICT_WEIGHTS, false, &bytes, &n, err));
    const enum moec_status status = bytes == NULL ? MOEC_OK : moec_bundle_evict_decode(bytes, n, evict, err);
    free(bytes);
    return status;
}

enum moec_status moec_bundle_load_predictor(const struct moec_bundle *bundle,
                                            struct moec_expert_predictor *predictor, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    *predictor = (struct moec_expert_predictor){0};
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_PREDICTOR, false, &bytes, &n, err));
    const enum moec_status status =
        bytes == NULL ? MOEC_OK : moec_expert_predictor_decode(bytes, n, &bundle->config, predictor, err);
    free(bytes);
    return status;
}

static enum moec_status check_predictor(struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_expert_predictor predictor;
    MOEC_TRY(moec_bundle_load_predictor(bundle, &predictor, err));
    bundle->has_predictor = predictor.n_layer > 0;
    moec_expert_predictor_release(&predictor);
    return MOEC_OK;
}

static enum moec_status open_generation(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    bundle->generation = moec_generation_default();
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_GENERATION, false, &bytes, &n, err));
    if (bytes == NULL)
        return MOEC_OK;
    enum moec_status status =
        moec_generation_decode(bytes, n, bundle->config.n_vocab, &bundle->generation, err);
    free(bytes);
    return status;
}

static enum moec_status open_paths(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    const struct moec_config *config = &bundle->config;
    struct moec_path_table *paths = &bundle->paths;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_PATHS, false, &bytes, &n, err));
    if (bytes == NULL)
        return MOEC_OK;
    enum moec_status status = moec_path_table_decode(bytes, n, paths, err);
    free(bytes);
    MOEC_TRY(status);
    if (paths->n_layer != moec_config_moe_count(config) || paths->n_expert != config->n_expert ||
        paths->top_k != config->top_k)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the path table (which experts follow which) has %u layers of %u experts with top-k "
                         "%u, expected %u layers of %u experts with top-k %u",
                         paths->n_layer, paths->n_expert, paths->top_k, moec_config_moe_count(config),
                         config->n_expert, config->top_k);
    return MOEC_OK;
}

static enum moec_status open_ranges(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_ROUTER_RANGES, false, &bytes, &n, err));
    if (bytes == NULL)
        return MOEC_OK;
    const enum moec_status status = moec_router_ranges_decode(
        bytes, n, moec_config_moe_count(&bundle->config), &bundle->paths.ranges, err);
    free(bytes);
    return status;
}

static enum moec_status open_scores(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_EXPERT_SCORES, false, &bytes, &n, err));
    const enum moec_status status =
        bytes == NULL ? MOEC_OK : moec_score_shares_decode(bytes, n, &bundle->paths.scores, err);
    free(bytes);
    return status;
}

static enum moec_status open_routing(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_ROUTING, false, &bytes, &n, err));
    if (bytes == NULL)
        return MOEC_OK;
    enum moec_status status = moec_routing_decode(bytes, n, moec_config_moe_count(&bundle->config),
                                                  bundle->config.n_expert, &bundle->routing, err);
    free(bytes);
    return status;
}

static enum moec_status open_statements(struct moec_bundle *bundle, struct moec_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_CERTIFICATE, true, &bytes, &n, err));
    enum moec_status status = moec_certificate_decode(bytes, n, &bundle->certificate, err);
    free(bytes);
    bytes = NULL;
    MOEC_TRY(status);
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_SEQUENCE, false, &bytes, &n, err));
    if (bytes != NULL)
        status = moec_sequence_decode(bytes, n, &bundle->certificate, err);
    free(bytes);
    bytes = NULL;
    MOEC_TRY(status);
    MOEC_TRY(moec_bundle_load_small(bundle, MOEC_SECTION_PROVENANCE, true, &bytes, &n, err));
    status = moec_provenance_decode(bytes, n, &bundle->provenance, err);
    free(bytes);
    return status;
}

static enum moec_status open_level(struct moec_bundle *bundle, const struct moec_section *index,
                                   uint32_t copy, struct moec_error *err)
{
    const struct moec_config *config = &bundle->config;
    const struct moec_section *records =
        moec_contents_find(bundle->sections, MOEC_SECTION_RECORDS, index->level);
    size_t n = (size_t)moec_config_moe_count(config) * config->n_expert;
    uint8_t *bytes = NULL;
    if (records == NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "the bundle '%s' has no section 'records of copy %u'",
                         bundle->file.path, index->level);
    MOEC_TRY(moec_section_load_alloc(&bundle->file, index,
                                     MOEC_INDEX_HEADER_BYTES + n * MOEC_INDEX_MIXED_BYTES, &bytes, err));
    const struct moec_record_home home = {config, records, bundle->alignment, bundle->codecs};
    struct moec_record_level level = {.entries = bundle->records + copy * n};
    enum moec_status status =
        moec_record_index_decode(bytes, (size_t)index->content_bytes, &home, &level, err);
    free(bytes);
    bundle->copy_bits[copy] = level.bits;
    MOEC_TRY(status);
    if ((bundle->copy_bits[copy] == 0) != (copy == 0))
        return moec_fail(err, MOEC_ERR_FORMAT, "section '%s' of the bundle '%s' states %u bits, expected %s",
                         index->name, bundle->file.path, bundle->copy_bits[copy],
                         copy == 0 ? "0 for the compiled assignment" : "2, 3, 4, 8 or 16");
    return MOEC_OK;
}

/* One layout for each variant that there is. Which one a variant has is looked up by all three numbers, so
 * that a file with as many variants as records takes no longer than others. */
static enum moec_status make_layouts(struct moec_bundle *bundle, struct moec_error *err)
{
    const struct moec_config *config = &bundle->config;
    const size_t n = (size_t)bundle->n_copy * moec_config_moe_count(config) * config->n_expert;
    const uint64_t n_variant = (uint64_t)MOEC_CODEC_TABLE * MOEC_CODEC_TABLE * MOEC_CODEC_TABLE;
    size_t capacity = 0;
    uint32_t *places = NULL; /* 1 + index of the layout; 0: none yet */
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc((void **)&places, n_variant, sizeof *places, "layouts of records", err));
    for (size_t i = 0; i < n; i++) {
        struct moec_record_entry *entry = &bundle->records[i];
        const uint8_t *codecs = entry->variant.codecs;
        uint32_t *place =
            &places[((size_t)codecs[0] * MOEC_CODEC_TABLE + codecs[1]) * MOEC_CODEC_TABLE + codecs[2]];
        if (*place == 0) {
            void *memory = bundle->layouts;
            status = moec_grow(&memory, &capacity, bundle->n_layout + (size_t)1, sizeof *bundle->layouts,
                               "layouts of records", err);
            bundle->layouts = memory;
            MOEC_TRY_OUT(status);
            bundle->layouts[bundle->n_layout++] =
                moec_record_layout_of(config, entry->variant, bundle->codecs);
            *place = bundle->n_layout;
        }
        entry->layout = *place - 1;
    }
out:
    free(places);
    return status;
}

/* Precision copies in increasing order; numbers may be missing where a copy was stripped, but not copy 0. */
static enum moec_status open_levels(struct moec_bundle *bundle, struct moec_error *err)
{
    const struct moec_contents *contents = bundle->sections;
    const struct moec_section *levels[MOEC_MAX_COPIES] = {NULL};
    size_t n = (size_t)moec_config_moe_count(&bundle->config) * bundle->config.n_expert;
    uint32_t n_records = 0;
    void *memory = NULL;
    for (uint32_t i = 0; i < contents->n_sections; i++) {
        const struct moec_section *section = &contents->sections[i];
        n_records += section->kind == MOEC_SECTION_RECORDS;
        if (section->kind != MOEC_SECTION_RECORD_INDEX)
            continue;
        uint32_t previous = bundle->n_copy > 0 ? levels[bundle->n_copy - 1]->level : 0;
        if (bundle->n_copy == MOEC_MAX_COPIES || section->level >= MOEC_MAX_COPIES ||
            (bundle->n_copy == 0 ? section->level != 0 : section->level <= previous))
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "the bundle '%s' has the section '%s' as record index number %u, expected the index of "
                "precision copy 0 first, then those of higher copies in rising order, all below %d",
                bundle->file.path, section->name, bundle->n_copy, MOEC_MAX_COPIES);
        if (section->content_bytes != MOEC_INDEX_HEADER_BYTES + n * MOEC_INDEX_ENTRY_BYTES &&
            section->content_bytes != MOEC_INDEX_HEADER_BYTES + n * MOEC_INDEX_MIXED_BYTES)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "section '%s' of the bundle '%s' has %" PRIu64 " bytes, expected %zu",
                             section->name, bundle->file.path, section->content_bytes,
                             MOEC_INDEX_HEADER_BYTES + n * MOEC_INDEX_ENTRY_BYTES);
        levels[bundle->n_copy++] = section;
    }
    if (bundle->n_copy == 0 || n_records != bundle->n_copy)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle '%s' has %u record indices and %u sections of records, expected at "
                         "least one index, and one for each section of records",
                         bundle->file.path, bundle->n_copy, n_records);
    MOEC_TRY(moec_alloc(&memory, (uint64_t)bundle->n_copy * n, sizeof *bundle->records, "record index", err));
    bundle->records = memory;
    for (uint32_t copy = 0; copy < bundle->n_copy && levels[copy] != NULL; copy++)
        MOEC_TRY(open_level(bundle, levels[copy], copy, err));
    return make_layouts(bundle, err);
}

enum moec_status moec_bundle_open(const char *path, struct moec_bundle **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_bundle), "bundle", err));
    struct moec_bundle *bundle = memory;
    struct moec_contents *contents = NULL;
    bundle->file.fd = -1;
    enum moec_status status = MOEC_OK;
    memory = NULL;
    MOEC_TRY_OUT(moec_alloc(&memory, 1, sizeof *contents, "contents table", err));
    bundle->sections = contents = memory;
    MOEC_TRY_OUT(moec_file_open(&bundle->file, path, err));
    MOEC_TRY_OUT(moec_contents_read(&bundle->file, contents, NULL, err));
    bundle->alignment = contents->alignment;
    bundle->direct_unit = contents->alignment < MOEC_BUNDLE_ALIGNMENT ? moec_file_direct_unit(&bundle->file)
                                                                      : MOEC_BUNDLE_ALIGNMENT;
    MOEC_TRY_OUT(open_config(bundle, err));
    MOEC_TRY_OUT(open_statements(bundle, err));
    MOEC_TRY_OUT(open_generation(bundle, err));
    MOEC_TRY_OUT(check_chat(bundle, err));
    MOEC_TRY_OUT(check_sparsity(bundle, err));
    MOEC_TRY_OUT(check_decisions(bundle, err));
    MOEC_TRY_OUT(take_fit(bundle, err));
    MOEC_TRY_OUT(check_predictor(bundle, err));
    MOEC_TRY_OUT(open_tokenizer(bundle, err));
    MOEC_TRY_OUT(open_paths(bundle, err));
    MOEC_TRY_OUT(open_ranges(bundle, err));
    MOEC_TRY_OUT(open_scores(bundle, err));
    MOEC_TRY_OUT(open_routing(bundle, err));
    MOEC_TRY_OUT(moec_bundle_open_dense_table(bundle, err));
    MOEC_TRY_OUT(open_levels(bundle, err));
    MOEC_TRY_OUT(check_parts(bundle, err));
    *out = bundle;
    bundle = NULL;
out:
    if (status != MOEC_OK && bundle->file.path != NULL && err != NULL && strstr(err->message, path) == NULL)
        (void)moec_error_prefix(err, "'%s'", path);
    moec_bundle_close(bundle);
    return status;
}

void moec_bundle_close(struct moec_bundle *bundle)
{
    if (bundle == NULL)
        return;
    moec_file_close(&bundle->file);
    if (bundle->tokenizer != NULL)
        moec_tokenizer_model_release(bundle->tokenizer);
    free(bundle->tokenizer);
    moec_path_table_release(&bundle->paths);
    free(bundle->routing.activations);
    free(bundle->routing.mean_gate_weight);
    free(bundle->records);
    free(bundle->layouts);
    free(bundle->sections);
    free(bundle);
}
