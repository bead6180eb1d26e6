/* One bitwidth of the dense weights is bound at a time: model, bundle plan and path table go and come
 * together. `auto` tries widths from the smallest. It skips a width whose bundle with all experts at 2 bits
 * is no smaller than the best so far. The winner is bound again at the end, and its sequence of candidates
 * with it. */
#include "compiler/compile/compile_dense.h"

#include "compiler/compile/compile_dense_plan.h"
#include "compiler/compile/compile_part.h"
#include "compiler/compile/compile_search.h"
#include "compiler/compile/compile_sequence.h"

#include <inttypes.h>
#include <string.h>

enum moec_status moec_compile_dense_list(struct moec_compile_run *run, struct moec_error *err)
{
    static const uint32_t widths[MOEC_MAX_DENSE_TRIALS] = {4, 8, 16, 32};
    const uint32_t wanted = run->options->dense.bits;
    struct moec_dense stored;
    MOEC_TRY(moec_checkpoint_stream_dense_as(run->checkpoint, NULL, &stored, err));
    for (uint32_t i = 0; i < stored.n_entries; i++)
        if (moec_role_is_quantisable((enum moec_role)stored.entries[i].role) &&
            stored.entries[i].codec.dtype == MOEC_DTYPE_F32)
            run->has_f32 = true;
    moec_dense_release(&stored);
    if (wanted == 32 && !run->has_f32)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "dense weights at 32 bits need a checkpoint with F32 weights, but "
                         "the weights of '%s' have 16 bits: give --dense-bits 16 to keep them",
                         moec_checkpoint_folder(run->checkpoint));
    for (uint32_t i = 0; i < MOEC_MAX_DENSE_TRIALS; i++)
        if (wanted == widths[i] || (wanted == MOEC_DENSE_BITS_AUTO && (widths[i] < 32 || run->has_f32)))
            run->dense_bits[run->n_dense_bits++] = widths[i];
    return MOEC_OK;
}

/* The dense weights of the bundle at these bits. */
static enum moec_status load_compiled(struct moec_compile_run *run, uint32_t bits, struct moec_error *err)
{
    if (!moec_compile_dense_is_original(run, bits) || run->original == NULL)
        return moec_compile_dense_model(run, NULL, &run->compiled, err);
    run->compiled = run->original;
    return MOEC_OK;
}

/* The path table may take 1 % of the bundle. What the bundle will weigh is not known before the search, but
 * never less than dense weights and every expert at 2 bits. */
static enum moec_status prune_paths(struct moec_compile_run *run, struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    uint64_t least =
        run->compiled->dense.blob_bytes + (uint64_t)moec_config_moe_count(config) * config->n_expert *
                                              moec_record_layout_make(config, run->codecs[2]).n_bytes;
    return moec_compile_take_paths(run, least, &run->paths, err);
}

static enum moec_status make_plan(struct moec_compile_run *run, struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    struct moec_bundle_parts parts = {.config = config, .dense = &run->compiled->dense};
    if (run->profile != NULL)
        MOEC_TRY(prune_paths(run, err));
    if (config->n_frequent > 0)
        return MOEC_OK;
    return moec_compile_bundle_make(run, &run->paths, &parts, &run->plan, err);
}

enum moec_status moec_compile_dense_fit(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_compile_part part = {0};
    struct moec_codec codecs[MOEC_CODEC_TABLE] = {0};
    uint8_t numbers[MOEC_MAX_DENSE_TRIALS];
    struct moec_dense_fit_request request = {.checkpoint = run->checkpoint,
                                             .evaluation.measure = &part.measured.losses,
                                             .codes = {.codecs = codecs, .numbers = numbers},
                                             .n_threads = run->options->by.n_threads,
                                             .work = &run->memory.work,
                                             .progress = &run->stopper,
                                             .units = run->units};
    for (uint32_t i = 0; run->options->dense.by_gptq && i < run->n_dense_bits; i++)
        if (run->dense_bits[i] < 16)
            numbers[request.codes.n_number++] = (uint8_t)run->dense_bits[i];
    if (request.codes.n_number == 0)
        return MOEC_OK;
    MOEC_TRY(moec_compile_dense_codecs(run, codecs, err));
    enum moec_status status = moec_compile_part_make_fit(run, &part, err);
    request.evaluation.scorer = part.measured.scorer;
    request.block = moec_compile_part_block(&part);
    if (status == MOEC_OK)
        status = moec_dense_fit_create(&request, &run->fit, err);
    if (status == MOEC_OK)
        moec_compile_say(run,
                         "GPTQ encoded %" PRIu32 " dense matrices on %" PRIu64 " tokens of the search part",
                         moec_dense_fit_count(run->fit), moec_windows_scored_count(&part.measured.windows));
    moec_compile_part_release(&part);
    return status;
}

void moec_compile_dense_unbind(struct moec_compile_run *run)
{
    moec_compile_part_release(&run->search);
    moec_compile_dense_forget(run);
    moec_bundle_plan_free(run->plan);
    run->plan = NULL;
    moec_path_table_release(&run->paths);
    if (run->compiled != run->original)
        moec_model_free(run->compiled);
    run->compiled = NULL;
}

enum moec_status moec_compile_dense_bind(struct moec_compile_run *run, uint32_t bits, struct moec_error *err)
{
    moec_compile_dense_unbind(run);
    run->report->plan.dense_bits = bits;
    memset(run->report->plan.dense, 0, run->report->plan.n_dense);
    MOEC_TRY(load_compiled(run, bits, err));
    return make_plan(run, err);
}

/* The best trial so far: its place among the trials, its plan and what was measured. */
struct best_dense {
    uint32_t trial; /* MOEC_MAX_DENSE_TRIALS: none */
    struct moec_plan plan;
    uint64_t n_bytes;
    struct moec_loss search_loss;
    struct moec_compile_candidates candidates;
};

static enum moec_status try_dense(struct moec_compile_run *run, uint32_t at, struct best_dense *best,
                                  struct moec_error *err)
{
    struct moec_compile_report *report = run->report;
    struct moec_dense_trial *trial = &report->dense_trials[at];
    struct moec_error missed = {0};
    uint64_t least = 0;
    *trial = (struct moec_dense_trial){.bits = run->dense_bits[at]};
    report->n_dense_trial = at + 1;
    MOEC_TRY(moec_compile_dense_bind(run, trial->bits, err));
    moec_plan_fill(&report->plan, 2);
    MOEC_TRY(moec_compile_size(run, &report->plan, &least, err));
    if (best->trial != MOEC_MAX_DENSE_TRIALS && least >= best->n_bytes) {
        moec_compile_say(run, "dense weights at %" PRIu32 " bits: left out, no bundle with them is smaller",
                         trial->bits);
        return MOEC_OK;
    }
    trial->is_measured = true;
    report->n_evaluations = 0;
    const enum moec_status status = moec_compile_search(run, &missed);
    trial->n_evaluations = report->n_evaluations;
    if (status == MOEC_ERR_TARGET) {
        moec_compile_say(run, "dense weights at %" PRIu32 " bits: %s", trial->bits, missed.message);
        return MOEC_OK;
    }
    if (status != MOEC_OK)
        return moec_fail(err, status, "%s", missed.message);
    trial->meets = true;
    trial->n_bytes = report->n_bytes;
    trial->loss = run->search_loss.loss;
    trial->loss_high = run->search_loss.high;
    moec_compile_say(run,
                     "dense weights at %" PRIu32 " bits: %" PRIu64 " bytes, loss %.3f%% (upper bound %.3f%%)",
                     trial->bits, trial->n_bytes, 100 * trial->loss, 100 * trial->loss_high);
    if (best->trial == MOEC_MAX_DENSE_TRIALS || trial->n_bytes < best->n_bytes) {
        moec_plan_copy(&best->plan, &report->plan);
        best->trial = at;
        best->n_bytes = trial->n_bytes;
        best->search_loss = run->search_loss;
        moec_compile_candidates_release(&best->candidates);
        best->candidates = run->candidates;
        run->candidates = (struct moec_compile_candidates){0};
    }
    return MOEC_OK;
}

enum moec_status moec_compile_dense_choose(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_compile_report *report = run->report;
    struct best_dense best = {.trial = MOEC_MAX_DENSE_TRIALS};
    enum moec_status status = MOEC_OK;
    uint32_t n_evaluations = 0;
    MOEC_TRY_OUT(moec_plan_create(&best.plan, moec_checkpoint_config(run->checkpoint), err));
    for (uint32_t at = 0; at < run->n_dense_bits; at++) {
        MOEC_TRY_OUT(try_dense(run, at, &best, err));
        n_evaluations += report->dense_trials[at].n_evaluations;
    }
    report->n_evaluations = n_evaluations;
    if (best.trial == MOEC_MAX_DENSE_TRIALS) {
        status = moec_fail(err, MOEC_ERR_TARGET,
                           "with dense weights at %" PRIu32 " to %" PRIu32 " bits, no "
                           "assignment is within the target of %.3f%%: raise --max-loss",
                           run->dense_bits[0], run->dense_bits[run->n_dense_bits - 1],
                           100 * run->options->target.max_loss);
        goto out;
    }
    MOEC_TRY_OUT(moec_compile_dense_bind(run, report->dense_trials[best.trial].bits, err));
    moec_plan_copy(&report->plan, &best.plan);
    report->n_bytes = best.n_bytes;
    run->search_loss = best.search_loss;
    moec_compile_candidates_release(&run->candidates);
    run->candidates = best.candidates;
    best.candidates = (struct moec_compile_candidates){0};
out:
    moec_compile_candidates_release(&best.candidates);
    moec_plan_release(&best.plan);
    return status;
}
