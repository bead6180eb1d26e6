/* No estimates of its own: sizes are the bundle plan's, and memory is the runtime's plan. Requests are filled
 * as moert_engine_open fills them; both must change together. The tokenizer's bytes are what the allocator
 * gained while one was made, rounded so that they are the same each time. */
#include "profiler/doctor/doctor.h"

#include "formats/base/memory.h"
#include "formats/bundle/bundle_writer.h"
#include "formats/checkpoint/checkpoint_chat.h"
#include "runtime/engine/memory_plan.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/generate/generate.h"
#include "runtime/text/tokenizer.h"

#include <malloc.h>
#include <string.h>

/* Beside a tokenizer's allocations, with half of the step to which the sum is rounded. */
#define PATTERN_BYTES  ((uint64_t)1 << 17)
#define TOKENIZER_STEP ((uint64_t)1 << 16)

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- parameters ---- */

static void count_parameters(const struct moec_config *config, const struct moec_dense *dense,
                             struct moec_doctor *doctor)
{
    const uint64_t expert = (uint64_t)moec_config_mlp_matrices(config) * config->n_ff_expert * config->n_embd;
    const uint64_t n_moe = moec_config_moe_count(config);
    uint64_t n = 0;
    for (uint32_t i = 0; i < dense->n_entries; i++)
        n += (uint64_t)dense->entries[i].rows * dense->entries[i].columns;
    doctor->n_parameter = n + n_moe * config->n_expert * expert;
    doctor->n_active = n + n_moe * config->top_k * expert;
}

/* ---- memory ---- */

static uint32_t context_of(const struct moec_config *config, const struct moec_doctor_request *request)
{
    const uint32_t asked = request->n_context > 0 ? request->n_context : MOEC_DOCTOR_CONTEXT_TOKENS;
    return (uint32_t)smaller(config->n_position, asked);
}

/* What the runtime would plan at no budget, and at the one that is asked about. */
static enum moec_status need(struct moec_memory_request *memory, uint64_t budget_bytes,
                             struct moec_doctor_need *out, struct moec_error *err)
{
    struct moec_memory_plan made;
    memory->budget_bytes = 0;
    MOEC_TRY(moec_memory_plan_make(memory, &made, err));
    const uint64_t whole_bytes = moec_memory_plan_whole_bytes(memory);
    out->least_bytes = made.floor_bytes + moec_memory_start_bytes(made.floor_bytes);
    out->whole_bytes = whole_bytes + moec_memory_start_bytes(whole_bytes);
    out->kept = 1;
    if (budget_bytes == 0)
        return MOEC_OK;
    out->kept = -1;
    if (budget_bytes < made.floor_bytes)
        return MOEC_OK;
    memory->budget_bytes = budget_bytes;
    MOEC_TRY(moec_memory_plan_make(memory, &made, err));
    out->kept = (double)made.expert_buffer_bytes / (double)memory->bundle.all_record_bytes;
    return MOEC_OK;
}

static enum moec_status plan(struct moec_memory_request *memory, const struct moec_doctor_request *request,
                             struct moec_doctor_plan *out, struct moec_error *err)
{
    for (int program = 0; program < MOEC_DOCTOR_N_PROGRAM; program++) {
        memory->process.base_bytes = request->base_bytes[program];
        MOEC_TRY(need(memory, request->budget_bytes, &out->needs[program], err));
    }
    return MOEC_OK;
}

/* One session, as moert_engine_open plans it. */
static struct moec_memory_request memory_of(const struct moec_config *config,
                                            const struct moec_generation *generation,
                                            const struct moec_doctor_request *request)
{
    const uint32_t n_context = context_of(config, request), n_beam = generation->n_beam;
    return (struct moec_memory_request){
        .config = config,
        .sessions = {.n_context = n_context,
                     .n = 1,
                     .n_beams = n_beam,
                     .n_logits = 1,
                     .generator_bytes = moec_generator_bytes(config, n_context, n_beam, false) -
                                        (n_beam - 1) * moec_session_beside_bytes(config, n_context) -
                                        config->n_vocab * sizeof(float)},
        .process.n_threads = request->n_threads,
    };
}

/* ---- a checkpoint ---- */

static const uint32_t widths[] = {2, 3, 4, 5, 6, 8, 16};
#define N_WIDTH (sizeof widths / sizeof *widths)
_Static_assert(N_WIDTH <= MOEC_DOCTOR_MAX_SIZES, "there is room for every bitwidth");

static enum moec_status choose_codecs(const struct moec_config *config,
                                      struct moec_codec codecs[static MOEC_CODEC_TABLE],
                                      struct moec_error *err)
{
    for (size_t w = 0; w < N_WIDTH; w++)
        MOEC_TRY(moec_codec_for_bits(widths[w], MOEC_SCHEME_SYMMETRIC, 0,
                                     (enum moec_dtype)config->expert_dtype, &codecs[widths[w]], err));
    return MOEC_OK;
}

/* Every bitwidth with these dense weights. */
static enum moec_status size_widths(const struct moec_bundle_plan *bundle, struct moec_memory_request *memory,
                                    const struct moec_doctor_request *request, uint32_t dense,
                                    struct moec_doctor *doctor, struct moec_error *err)
{
    const struct moec_config *config = memory->config;
    const uint64_t n_expert = (uint64_t)moec_config_moe_count(config) * config->n_expert;
    const uint64_t n_token =
        (uint64_t)config->top_k * (moec_config_moe_count(config) - moec_config_moe_encoder_count(config));
    struct moec_variant *experts = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&experts, n_expert, sizeof *experts, "an assignment", err));
    doctor->n_size = 0;
    for (size_t w = 0; w < N_WIDTH; w++) {
        const bool is_exact = moec_codec_traits((struct moec_codec){.dtype = config->expert_dtype})->is_exact;
        if (is_exact && widths[w] > 4 && widths[w] < 16) /* larger, and with a loss */
            continue;
        struct moec_doctor_size *size = &doctor->sizes[doctor->n_size++];
        const struct moec_variant variant = moec_variant_uniform(widths[w]);
        const uint64_t record_bytes =
            moec_bundle_slot_bytes(config, moec_bundle_plan_record_bytes(bundle, variant));
        for (uint64_t i = 0; i < n_expert; i++)
            experts[i] = variant;
        size->bits = widths[w];
        size->is_exact = is_exact && widths[w] == 16;
        size->expert_bytes = n_expert * record_bytes;
        size->token_bytes = n_token * record_bytes;
        MOEC_TRY_OUT(moec_bundle_plan_bytes(bundle, &(struct moec_bundle_assignment){.experts = experts},
                                            &size->plans[dense].bundle_bytes, err));
        memory->bundle.largest_record_bytes = record_bytes;
        memory->bundle.all_record_bytes = size->expert_bytes;
        memory->bundle.token_record_bytes = size->token_bytes;
        MOEC_TRY_OUT(plan(memory, request, &size->plans[dense], err));
    }
out:
    free(experts);
    return status;
}

static enum moec_status size_dense(const struct moec_checkpoint *checkpoint,
                                   const struct moec_doctor_request *request, uint32_t at,
                                   struct moec_doctor *doctor, struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    const struct moec_generation *generation = moec_checkpoint_generation(checkpoint);
    struct moec_codec codecs[MOEC_CODEC_TABLE] = {{0}};
    struct moec_dense dense = {0};
    struct moec_bundle_plan *bundle = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(choose_codecs(config, codecs, err));
    MOEC_TRY_OUT(moec_checkpoint_stream_dense(checkpoint, doctor->dense_bits[at], 0, &dense, err));
    const struct moec_bundle_parts parts = {.config = config,
                                            .generation = generation,
                                            .tokenizer = moec_checkpoint_tokenizer(checkpoint),
                                            .chat = moec_checkpoint_chat(checkpoint),
                                            .dense = &dense,
                                            .codecs = codecs,
                                            .cuts_dense = true,
                                            .dense_stored_bytes = dense.blob_bytes,
                                            .alignment = moec_bundle_choose_alignment(config)};
    MOEC_TRY_OUT(moec_bundle_plan_create(&parts, &bundle, err));
    struct moec_memory_request memory = memory_of(config, generation, request);
    memory.bundle.dense_bytes = dense.blob_bytes;
    /* The cache's tables depend on dimensions and on how many layouts records have. */
    const struct moec_bundle shape = {.config = *config, .n_layout = 1, .n_copy = 1};
    const struct moec_expert_cache_options options = {0};
    memory.bundle.table_bytes = moec_expert_cache_table_bytes(&shape, &options);
    if (at == 0)
        count_parameters(config, &dense, doctor);
    status = size_widths(bundle, &memory, request, at, doctor, err);
out:
    moec_bundle_plan_free(bundle);
    moec_dense_release(&dense);
    return status;
}

static uint64_t allocated_bytes(void)
{
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

enum moec_status moec_doctor_tokenizer_bytes(const struct moec_tokenizer_model *model, uint64_t *n_bytes,
                                             struct moec_error *err)
{
    struct moec_tokenizer *tokenizer = NULL;
    void *section = NULL;
    size_t section_bytes = 0;
    *n_bytes = 0;
    if (model == NULL)
        return MOEC_OK;
    const uint64_t before = allocated_bytes();
    MOEC_TRY(moec_tokenizer_create(model, &tokenizer, err));
    const uint64_t after = allocated_bytes();
    const enum moec_status status = moec_tokenizer_model_encode(model, &section, &section_bytes, err);
    const uint64_t bytes = section_bytes + (after > before ? after - before : 0);
    *n_bytes = (bytes + PATTERN_BYTES) / TOKENIZER_STEP * TOKENIZER_STEP;
    moec_tokenizer_free(tokenizer);
    free(section);
    return status;
}

enum moec_status moec_doctor_checkpoint(const struct moec_checkpoint *checkpoint,
                                        const struct moec_doctor_request *request, struct moec_doctor *doctor,
                                        struct moec_error *err)
{
    *doctor = (struct moec_doctor){.n_context = context_of(moec_checkpoint_config(checkpoint), request),
                                   .n_dense = 2,
                                   .dense_bits = {16, request->dense_bits > 0 ? request->dense_bits : 4}};
    for (uint32_t at = 0; at < doctor->n_dense; at++)
        MOEC_TRY(size_dense(checkpoint, request, at, doctor, err));
    return MOEC_OK;
}

/* ---- a bundle ---- */

/* The bitwidth that all experts of a copy have, 0 if they differ. */
static uint32_t bits_of(const struct moec_bundle *bundle, uint32_t copy)
{
    const struct moec_record_entry *first = moec_bundle_record(bundle, copy, 0, 0);
    const uint32_t n_layer = moec_config_moe_count(&bundle->config);
    for (uint32_t s = 0; s < n_layer; s++)
        for (uint32_t e = 0; e < bundle->config.n_expert; e++) {
            const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, s, e);
            if (entry->bits != first->bits || !moec_variant_is_uniform(entry->variant))
                return 0;
        }
    return first->bits;
}

enum moec_status moec_doctor_bundle(const struct moec_bundle *bundle,
                                    const struct moec_doctor_request *request, struct moec_doctor *doctor,
                                    struct moec_error *err)
{
    struct moec_dense dense = {0};
    *doctor = (struct moec_doctor){
        .n_context = context_of(&bundle->config, request), .n_dense = 1, .n_size = bundle->n_copy};
    MOEC_TRY(moec_bundle_load_dense_table(bundle, &dense, err));
    count_parameters(&bundle->config, &dense, doctor);
    moec_dense_release(&dense);
    _Static_assert(MOEC_MAX_COPIES <= MOEC_DOCTOR_MAX_SIZES, "there is room for every copy");
    for (uint32_t copy = 0; copy < bundle->n_copy; copy++) {
        struct moec_doctor_size *size = &doctor->sizes[copy];
        struct moec_memory_request memory = memory_of(&bundle->config, &bundle->generation, request);
        moec_memory_request_bundle(&memory, bundle, copy, NULL);
        size->bits = bits_of(bundle, copy);
        size->is_exact =
            size->bits == 16 &&
            moec_codec_traits((struct moec_codec){.dtype = bundle->config.expert_dtype})->is_exact;
        size->expert_bytes = memory.bundle.all_record_bytes;
        size->token_bytes = memory.bundle.token_record_bytes;
        size->plans[0].bundle_bytes = bundle->file.n_bytes;
        MOEC_TRY(plan(&memory, request, &size->plans[0], err));
    }
    return MOEC_OK;
}
