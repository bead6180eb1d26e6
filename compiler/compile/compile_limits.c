/* The smallest bundle that a search may end with: a bound from headers before any work, exactly when the
 * variants are fitted, and whether a plan is it.
 *
 * Experts are not compressed, so their records are known from the shapes. Dense matrices are, and what
 * compressing leaves of codes that are not chosen yet is not known: the bound counts them as nothing. */
#include "compiler/compile/compile_limits.h"

#include "compiler/compile/compile_dense_plan.h"
#include "compiler/compile/compile_variants.h"
#include "formats/base/memory.h"
#include "formats/checkpoint/checkpoint_chat.h"

#include <inttypes.h>
#include <string.h>

/* Policies of moec that give experts nothing but the variants they are offered. */
static bool takes_variants_alone(const struct moec_compile_options *options)
{
    return options->search.offers_variants && strcmp(options->search.policy, "hull") == 0;
}

static bool was_measured(const struct moec_profile *profile, uint32_t bits)
{
    for (uint32_t i = 0; profile != NULL && i < profile->n_uniform; i++)
        if (profile->uniform_bits[i] == bits)
            return true;
    return false;
}

/* Whether the policy may give experts this number. A file of the user's may name 1 bit unasked. */
static bool may_have(const struct moec_compile_options *options, const struct moec_profile *profile,
                     uint32_t number)
{
    if (options->search.bits > 0)
        return number == options->search.bits;
    if (number >= MOEC_CODEC_FIRST_OTHER)
        return options->search.offers_variants && moec_compile_is_for_experts(number);
    if (takes_variants_alone(options))
        return number == 16;
    return number != 1 || strchr(options->search.policy, '.') != NULL || was_measured(profile, 1);
}

/* The number whose record is the smallest. */
static uint8_t smallest_number(const struct moec_config *config, const struct moec_compile_options *options,
                               const struct moec_profile *profile,
                               const struct moec_codec codecs[static MOEC_CODEC_TABLE])
{
    uint64_t least = UINT64_MAX;
    uint8_t best = 16;
    for (uint32_t number = 1; number < MOEC_CODEC_TABLE; number++) {
        if (codecs[number].dtype == MOEC_DTYPE_F32 || !may_have(options, profile, number))
            continue;
        const uint64_t n_bytes = moec_record_layout_make(config, codecs[number]).n_bytes;
        if (n_bytes < least) {
            least = n_bytes;
            best = (uint8_t)number;
        }
    }
    return best;
}

/* ---- before any work ---- */

static enum moec_status list_codecs(const struct moec_config *config, const struct moec_profile *profile,
                                    const struct moec_compile_options *options,
                                    struct moec_codec codecs[static MOEC_CODEC_TABLE], struct moec_error *err)
{
    /* Of what AUTO will choose from, linear symmetric codes are the smallest. */
    const bool is_auto = options->experts.quantizer == MOEC_QUANTIZER_AUTO;
    if (profile != NULL)
        MOEC_TRY(moec_profile_codecs(profile, codecs, err));
    else
        MOEC_TRY(moec_codec_table(is_auto ? MOEC_QUANTIZER_LINEAR : options->experts.quantizer,
                                  is_auto ? MOEC_SCHEME_SYMMETRIC : options->experts.scheme,
                                  options->experts.group, (enum moec_dtype)config->expert_dtype, codecs,
                                  err));
    MOEC_TRY(moec_codec_for_bits(16, MOEC_SCHEME_SYMMETRIC, 0, (enum moec_dtype)config->expert_dtype,
                                 &codecs[16], err));
    return options->search.offers_variants ? moec_compile_further_codecs(codecs, err) : MOEC_OK;
}

/* Of the matrices that hull encodes, at the fewest bits that it offers. */
static enum moec_status measure_dense(const struct moec_checkpoint *checkpoint, struct moec_codec codec,
                                      uint64_t *n_bytes, struct moec_error *err)
{
    struct moec_dense dense = {0};
    MOEC_TRY(moec_checkpoint_stream_dense_as(checkpoint, &codec, &dense, err));
    for (uint32_t i = 0; i < dense.n_entries; i++)
        if (moec_role_is_quantisable((enum moec_role)dense.entries[i].role))
            *n_bytes += dense.entries[i].rows * moec_codec_row_bytes(codec, dense.entries[i].columns);
    moec_dense_release(&dense);
    return MOEC_OK;
}

static enum moec_status measure_experts(const struct moec_checkpoint *checkpoint,
                                        const struct moec_compile_options *options,
                                        const struct moec_codec *codecs, uint32_t number, uint64_t *n_bytes,
                                        struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    struct moec_dense dense = {0};
    struct moec_plan plan = {0};
    struct moec_bundle_plan *bundle = NULL;
    struct moec_bundle_parts parts = {.config = config,
                                      .generation = moec_checkpoint_generation(checkpoint),
                                      .tokenizer = moec_checkpoint_tokenizer(checkpoint),
                                      .chat = moec_checkpoint_chat(checkpoint),
                                      .dense = &dense,
                                      .codecs = codecs,
                                      .cuts_dense = true,
                                      .alignment = moec_bundle_choose_alignment(config)};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_plan_create(&plan, config, err));
    moec_plan_fill(&plan, number);
    MOEC_TRY_OUT(moec_checkpoint_stream_dense_as(checkpoint, NULL, &dense, err));
    MOEC_TRY_OUT(moec_compile_dense_rest_bytes(&dense, &parts.dense_stored_bytes, err));
    MOEC_TRY_OUT(moec_bundle_plan_create(&parts, &bundle, err));
    status = moec_bundle_plan_bytes(bundle,
                                    &(struct moec_bundle_assignment){.experts = plan.experts,
                                                                     .copy_bits = options->experts.copy_bits,
                                                                     .n_extra = options->experts.n_copy_bits},
                                    n_bytes, err);
out:
    moec_bundle_plan_free(bundle);
    moec_dense_release(&dense);
    moec_plan_release(&plan);
    return status;
}

enum moec_status moec_compile_find_least(const struct moec_checkpoint *checkpoint,
                                         const struct moec_profile *profile,
                                         const struct moec_compile_options *options,
                                         struct moec_compile_least *out, struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    struct moec_codec codecs[MOEC_CODEC_TABLE] = {0};
    *out = (struct moec_compile_least){0};
    MOEC_TRY(list_codecs(config, profile, options, codecs, err));
    const uint8_t number = smallest_number(config, options, profile, codecs);
    char text[40];
    (void)snprintf(out->codes, sizeof out->codes, "%s", moec_codec_name(codecs[number], text));
    MOEC_TRY(measure_experts(checkpoint, options, codecs, number, &out->least_bytes, err));
    if (!options->dense.is_planned)
        return MOEC_OK;
    return measure_dense(checkpoint, codecs[moec_compile_smallest_dense()], &out->dense_bytes, err);
}

/* ---- of a run ---- */

/* The bytes of the smallest plan of this run, with dense weights as in report->plan where no plan changes
 * them. */
static enum moec_status measure_smallest(struct moec_compile_run *run, uint64_t *n_bytes,
                                         struct moec_error *err)
{
    struct moec_plan plan = {0};
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    MOEC_TRY(moec_plan_create(&plan, config, err));
    moec_plan_copy(&plan, &run->report->plan);
    moec_plan_fill(&plan, smallest_number(config, run->options, run->profile, run->codecs));
    for (uint32_t i = 0; run->options->dense.is_planned && i < run->offer.n_matrix; i++)
        plan.dense[i] = run->offer.dense_numbers[0];
    const enum moec_status status = moec_compile_size(run, &plan, n_bytes, err);
    moec_plan_release(&plan);
    return status;
}

enum moec_status moec_compile_check_offer(struct moec_compile_run *run, struct moec_error *err)
{
    const uint64_t most = run->options->target.max_bytes;
    uint64_t least = 0;
    if (most == 0 || !takes_variants_alone(run->options))
        return MOEC_OK;
    MOEC_TRY(measure_smallest(run, &least, err));
    if (least <= most)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_TARGET,
                     "even with the smallest codes the bundle is larger than --max-size: "
                     "it has about %" PRIu64 " bytes, but only %" PRIu64 " are allowed",
                     least, most);
}

/* Plans come in steps, and one as good as the smallest may have a few bytes more in its index. */
#define SMALLEST_SHARE 1.005

enum moec_status moec_compile_note_smallest(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_compile_report *report = run->report;
    uint64_t least = 0;
    report->uses_smallest = false;
    if (run->profile == NULL || run->options->search.bits > 0 ||
        (run->options->dense.bits == MOEC_DENSE_BITS_AUTO && report->plan.dense_bits != run->dense_bits[0]))
        return MOEC_OK;
    MOEC_TRY(measure_smallest(run, &least, err));
    report->uses_smallest = (double)report->n_bytes <= SMALLEST_SHARE * (double)least;
    return MOEC_OK;
}
