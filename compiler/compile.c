#include "compiler/compile.h"
#include "compiler/dense_fit.h"
#include "compiler/pack.h"
#include "formats/base/memory.h"
#include "profiler/evaluate/load_model.h"
#include "profiler/evaluate/score.h"
#include "profiler/evaluate/variants.h"
#include "profiler/profile/work_plan.h"
#include "profiler/routing/paths.h"
#include "runtime/engine/memory_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_WORK_BYTES ((uint64_t)1 << 30)

/* One part of the windows with what evaluates on it. */
struct compile_part {
    struct moec_windows windows;
    struct moec_scorer *scorer;
    double *reference_nll;        /* (W), owned */
    struct moec_measure measured; /* (W) each, owned: of the last run */
    double *reference_scores;     /* (rows of the part), owned; instead of all these where rows are scored */
    double *scores;               /* the same of the last run */
    enum moec_part which;
};

struct compile_run {
    const struct moec_checkpoint *checkpoint;
    const struct moec_profile *profile;
    const struct moec_compile_options *options;
    const struct moec_compile_hooks *hooks;
    struct moec_progress stopper; /* of measurements */
    struct moec_compile_report *report;
    uint32_t group; /* the profile's, else the options' */
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    uint32_t dense_bits[MOEC_MAX_DENSE_TRIALS]; /* (n_dense_bits) to be tried, increasing */
    uint32_t n_dense_bits;
    bool has_f32;                 /* among the checkpoint's dense weights */
    struct moec_row_metric *rows; /* NULL: perplexity is measured */
    struct moec_dense_fit *fit;   /* NULL: integers by the linear quantizer */
    struct moec_model *original;  /* dense weights as in the checkpoint; NULL without a profile */
    struct moec_model *compiled;  /* dense weights as in the bundle; the original when these are the same */
    struct moec_variants *variants;
    struct moec_work_plan memory;
    struct moec_path_table paths; /* the profile's, cut to its share of the bundle */
    struct moec_bundle_plan *plan;
    struct compile_part search;
    struct moec_loss search_loss; /* of the assignment that was evaluated last */
};

static void say(const struct compile_run *run, const char *format, ...) MOEC_PRINTF(2, 3);

static void say(const struct compile_run *run, const char *format, ...)
{
    if (run->hooks == NULL || run->hooks->log == NULL)
        return;
    char line[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    run->hooks->log(run->hooks->context, line);
}

static void show(const struct compile_run *run, const char *phase, uint64_t done, uint64_t total)
{
    if (run->hooks != NULL && run->hooks->progress != NULL)
        run->hooks->progress(run->hooks->context, phase, done, total);
}

static bool is_cancelled(const struct compile_run *run)
{
    return run->hooks != NULL && run->hooks->cancelled != NULL && run->hooks->cancelled(run->hooks->context);
}

/* Measurements go through here to be stopped. */
static enum moec_status ask_to_go_on(void *context, const char *phase, double done_passes,
                                     double total_passes)
{
    (void)phase;
    (void)done_passes;
    (void)total_passes;
    return is_cancelled(context) ? MOEC_ERR_CANCELLED : MOEC_OK;
}

/* ---- what the bundle will be made of ---- */

static enum moec_status check_profile(const struct moec_checkpoint *checkpoint,
                                      const struct moec_profile *profile,
                                      const uint8_t digest[static MOEC_SHA256_BYTES], struct moec_error *err)
{
    if (memcmp(digest, profile->model_digest, MOEC_SHA256_BYTES) == 0)
        return MOEC_OK;
    char theirs[2 * MOEC_SHA256_BYTES + 1], ours[2 * MOEC_SHA256_BYTES + 1];
    moec_sha256_hex(profile->model_digest, theirs);
    moec_sha256_hex(digest, ours);
    return moec_fail(
        err, MOEC_ERR_MISMATCH,
        "the profile was made from another model: it names SHA-256 %.16s..., '%s' has %.16s...; profile this "
        "model, or give --data",
        theirs, moec_checkpoint_folder(checkpoint), ours);
}

/* Whether dense weights at these bits are the checkpoint's own. */
static bool is_original(const struct compile_run *run, uint32_t dense_bits)
{
    return dense_bits == 32 || (dense_bits == 16 && !run->has_f32);
}

static enum moec_status list_dense_bits(struct compile_run *run, struct moec_error *err)
{
    static const uint32_t widths[MOEC_MAX_DENSE_TRIALS] = {4, 8, 16, 32};
    const uint32_t wanted = run->options->dense_bits;
    struct moec_dense stored;
    MOEC_TRY(moec_checkpoint_stream_dense_as(run->checkpoint, NULL, &stored, err));
    for (uint32_t i = 0; i < stored.n_entries; i++)
        if (moec_role_is_quantisable((enum moec_role)stored.entries[i].role) &&
            stored.entries[i].codec.dtype == MOEC_DTYPE_F32)
            run->has_f32 = true;
    moec_dense_release(&stored);
    if (wanted == 32 && !run->has_f32)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "dense weights at 32 bits need a checkpoint of F32 weights, those of '%s' have 16 "
                         "bits; --dense-bits 16 keeps them",
                         moec_checkpoint_folder(run->checkpoint));
    for (uint32_t i = 0; i < MOEC_MAX_DENSE_TRIALS; i++)
        if (wanted == widths[i] || (wanted == MOEC_DENSE_BITS_AUTO && (widths[i] < 32 || run->has_f32)))
            run->dense_bits[run->n_dense_bits++] = widths[i];
    return MOEC_OK;
}

/* The parts are measured one after the other: the larger one counts. */
static enum moec_status plan_memory(struct compile_run *run, struct moec_error *err)
{
    static const enum moec_part parts[] = {MOEC_PART_SEARCH, MOEC_PART_CERTIFICATE};
    const struct moec_compile_options *options = run->options;
    struct moec_windows windows[2] = {0};
    struct moec_work_request request = {.checkpoint = run->checkpoint,
                                        .work_bytes = options->work_bytes > 0 ? options->work_bytes
                                                                              : DEFAULT_WORK_BYTES,
                                        .n_threads = options->n_threads,
                                        .dense_bits = 16,
                                        .n_models = 1,
                                        .n_passes = 1,
                                        .folder = options->spill_folder};
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_memory_resident_bytes(&request.base_bytes, err));
    for (size_t i = 0; run->profile != NULL && i < 2; i++)
        MOEC_TRY_OUT(moec_windows_from_profile(run->profile, parts[i], &windows[i], err));
    if (run->profile == NULL && run->dense_bits[0] < 16)
        request.dense_bits = run->dense_bits[0];
    if (run->rows != NULL)
        request.result_bytes = moec_row_metric_bytes(run->rows, options->n_threads);
    if (options->dense_gptq)
        request.result_bytes +=
            moec_dense_fit_bytes(moec_checkpoint_config(run->checkpoint),
                                 options->dense_bits == MOEC_DENSE_BITS_AUTO ? 2 : 1, options->n_threads);
    if (run->profile != NULL) {
        const bool first = moec_windows_token_count(&windows[0]) >= moec_windows_token_count(&windows[1]);
        request.windows = first ? &windows[0] : &windows[1];
        request.n_models = run->n_dense_bits == 1 && is_original(run, run->dense_bits[0]) ? 1 : 2;
        request.n_passes = request.n_models;
        request.n_states = 2;
        request.n_reference = 1;
    }
    status = moec_work_plan_make(&request, &run->memory, err);
out:
    moec_windows_release(&windows[0]);
    moec_windows_release(&windows[1]);
    return status;
}

static enum moec_status choose_codecs(struct compile_run *run, struct moec_error *err)
{
    const struct moec_compile_options *options = run->options;
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    run->group = run->profile != NULL ? run->profile->group : options->group;
    if (run->profile != NULL)
        MOEC_TRY(moec_profile_codecs(run->profile, run->codecs, err));
    else
        MOEC_TRY(moec_codec_table(options->quantizer, options->scheme, run->group,
                                  (enum moec_dtype)config->expert_dtype, run->codecs, err));
    MOEC_TRY(moec_variants_create(run->checkpoint, MOEC_SCHEME_SYMMETRIC, run->group, run->memory.cache_bytes,
                                  options->n_threads, &run->variants, err));
    return moec_variants_set_codecs(run->variants, run->codecs, err);
}

static enum moec_status dense_codec(const struct compile_run *run, uint32_t bits, struct moec_codec *codec,
                                    struct moec_error *err)
{
    return moec_codec_for_bits(bits, MOEC_SCHEME_SYMMETRIC, run->group, MOEC_DTYPE_F32, codec, err);
}

static enum moec_status load_original(struct compile_run *run, struct moec_error *err)
{
    if (run->profile == NULL)
        return MOEC_OK;
    return moec_load_model(run->checkpoint, 16, 0, run->memory.dense_bytes, &run->original, err);
}

/* Codecs of the bitwidths that GPTQ is for, in the order of run->dense_bits. */
static enum moec_status list_fitted(const struct compile_run *run,
                                    struct moec_codec codecs[static MOEC_MAX_DENSE_TRIALS], uint32_t *n,
                                    struct moec_error *err)
{
    *n = 0;
    for (uint32_t i = 0; run->options->dense_gptq && i < run->n_dense_bits; i++)
        if (run->dense_bits[i] < 16)
            MOEC_TRY(dense_codec(run, run->dense_bits[i], &codecs[(*n)++], err));
    return MOEC_OK;
}

/* The dense weights of the bundle at these bits. */
static enum moec_status load_compiled(struct compile_run *run, uint32_t bits, struct moec_error *err)
{
    struct moec_dense dense = {0};
    struct moec_codec codec;
    if (is_original(run, bits) && run->original != NULL) {
        run->compiled = run->original;
        return MOEC_OK;
    }
    if (run->fit != NULL && bits < 16) {
        MOEC_TRY(moec_dense_fit_open(run->fit, bits == run->dense_bits[0] ? 0 : 1, &dense, err));
    } else {
        MOEC_TRY(dense_codec(run, is_original(run, bits) ? 16 : bits, &codec, err));
        MOEC_TRY(moec_checkpoint_stream_dense_as(run->checkpoint, is_original(run, bits) ? NULL : &codec,
                                                 &dense, err));
    }
    return moec_load_dense_model(moec_checkpoint_config(run->checkpoint), &dense, run->memory.dense_bytes,
                                 &run->compiled, err);
}

/* The path table may take 1 % of the bundle. What the bundle will weigh is not known before the search, but
 * never less than dense weights and every expert at 2 bits. */
static enum moec_status prune_paths(struct compile_run *run, struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    uint64_t least =
        run->compiled->dense.blob_bytes + (uint64_t)moec_config_moe_count(config) * config->n_expert *
                                              moec_record_layout_make(config, run->codecs[2]).n_bytes;
    return moec_paths_prune(&run->profile->paths, least / 100, &run->paths, err);
}

static enum moec_status make_plan(struct compile_run *run, struct moec_error *err)
{
    struct moec_routing_summary routing = {0};
    if (run->profile != NULL) {
        MOEC_TRY(prune_paths(run, err));
        routing = (struct moec_routing_summary){.activations = run->profile->activations,
                                                .mean_gate_weight = run->profile->mean_gate_weight};
    }
    struct moec_bundle_parts parts = {
        .config = moec_checkpoint_config(run->checkpoint),
        .generation = moec_checkpoint_generation(run->checkpoint),
        .tokenizer = moec_checkpoint_tokenizer(run->checkpoint),
        .paths = run->profile != NULL ? &run->paths : NULL,
        .routing = &routing,
        .dense = &run->compiled->dense,
        .codecs = run->codecs,
        .alignment = MOEC_BUNDLE_ALIGNMENT,
    };
    return moec_bundle_plan_create(&parts, &run->plan, err);
}

/* ---- measuring ---- */

static void release_part(struct compile_part *part)
{
    moec_scorer_free(part->scorer);
    moec_windows_release(&part->windows);
    free(part->reference_nll);
    free(part->measured.nll);
    free(part->measured.kl);
    free(part->reference_scores);
    free(part->scores);
    memset(part, 0, sizeof *part);
}

/* The reference is evaluated again, not only taken from the profile: KL needs its hidden states, and equal
 * bits show that this build computes what the profile measured. */
static enum moec_status check_reference(const struct compile_run *run, const struct compile_part *part,
                                        enum moec_part which, struct moec_error *err)
{
    uint32_t at = 0;
    for (uint32_t w = 0; w < run->profile->n_window; w++) {
        if (!moec_part_has(which, w))
            continue;
        if (part->reference_nll[at] != run->profile->reference.nll[w])
            return moec_fail(err, MOEC_ERR_MISMATCH,
                             "the original model gives NLL %.17g on window %" PRIu32
                             ", the profile says %.17g: it was made "
                             "with another arithmetic; profile again",
                             part->reference_nll[at], w, run->profile->reference.nll[w]);
        at++;
    }
    return MOEC_OK;
}

/* A part that `model` can be evaluated on; its experts are the original's until they are assigned. */
static enum moec_status make_part(struct compile_run *run, enum moec_part which,
                                  const struct moec_model *model, struct compile_part *part,
                                  struct moec_error *err)
{
    struct moec_scorer_options options = {
        .kernels = run->options->kernels,
        .n_threads = run->options->n_threads,
        .reference_limit_bytes = run->memory.reference_bytes,
    };
    struct moec_experts *experts = moec_variants_experts(run->variants);
    MOEC_TRY(moec_windows_from_profile(run->profile, which, &part->windows, err));
    part->windows.work = &run->memory.work;
    uint64_t n = part->windows.n_window;
    MOEC_TRY(moec_alloc((void **)&part->reference_nll, n, sizeof(double), "window losses", err));
    MOEC_TRY(moec_alloc((void **)&part->measured.nll, n, sizeof(double), "window losses", err));
    MOEC_TRY(moec_alloc((void **)&part->measured.kl, n, sizeof(double), "window losses", err));
    MOEC_TRY(moec_scorer_create(model, experts, &part->windows, &options, &part->scorer, err));
    return moec_variants_assign_all(run->variants, moec_variants_source_bits(run->variants), err);
}

static enum moec_status score_rows(struct compile_run *run, const struct compile_part *part,
                                   const struct moec_model *model, double *scores, struct moec_error *err)
{
    return moec_row_metric_measure(run->rows, part->which, model, moec_variants_experts(run->variants),
                                   run->options->kernels, run->options->n_threads, &run->stopper, scores,
                                   err);
}

/* A part of rows, with what the original scores on them. */
static enum moec_status open_rows(struct compile_run *run, enum moec_part which, struct compile_part *part,
                                  struct moec_error *err)
{
    const uint64_t n = moec_row_metric_count(run->rows, which);
    part->which = which;
    MOEC_TRY(moec_alloc((void **)&part->reference_scores, n, sizeof(double), "scores of rows", err));
    MOEC_TRY(moec_alloc((void **)&part->scores, n, sizeof(double), "scores of rows", err));
    MOEC_TRY(moec_variants_assign_all(run->variants, moec_variants_source_bits(run->variants), err));
    return score_rows(run, part, run->original, part->reference_scores, err);
}

static enum moec_status open_part(struct compile_run *run, enum moec_part which, struct compile_part *part,
                                  struct moec_error *err)
{
    struct moec_experts *experts = moec_variants_experts(run->variants);
    if (run->rows != NULL)
        return open_rows(run, which, part, err);
    MOEC_TRY(make_part(run, which, run->compiled, part, err));
    MOEC_TRY(moec_scorer_set_reference(part->scorer, run->original, experts, part->reference_nll,
                                       &run->stopper, err));
    return check_reference(run, part, which, err);
}

static enum moec_status measure_part(struct compile_run *run, struct compile_part *part,
                                     const uint8_t *assignment, struct moec_loss *loss,
                                     struct moec_error *err)
{
    struct moec_loss_options options = moec_loss_options_default();
    options.confidence = run->options->confidence;
    MOEC_TRY(moec_variants_assign(run->variants, assignment, err));
    if (run->rows != NULL) {
        MOEC_TRY(score_rows(run, part, run->compiled, part->scores, err));
        return moec_loss_measure_scores(part->reference_scores, part->scores,
                                        moec_row_metric_count(run->rows, part->which), &options, loss, err);
    }
    MOEC_TRY(moec_scorer_run(part->scorer, &part->measured, &run->stopper, err));
    return moec_loss_measure(part->reference_nll, part->measured.nll, part->measured.kl, part->windows.scored,
                             part->windows.n_window, MOEC_PART_ALL, &options, loss, err);
}

static bool meets_loss(const struct compile_run *run, const struct moec_loss *loss)
{
    return isnan(run->options->max_loss) || loss->high <= run->options->max_loss;
}

/* ---- the policy's questions ---- */

static enum moec_status answer_evaluate(void *context, const uint8_t *assignment, struct moec_evaluation *out,
                                        struct moec_error *err)
{
    struct compile_run *run = context;
    MOEC_TRY(measure_part(run, &run->search, assignment, &run->search_loss, err));
    *out = (struct moec_evaluation){
        .loss = run->search_loss.loss,
        .loss_low = run->search_loss.low,
        .loss_high = run->search_loss.high,
        .kl = run->search_loss.mean_kl,
        .accepted = meets_loss(run, &run->search_loss),
    };
    return MOEC_OK;
}

static enum moec_status answer_size(void *context, const uint8_t *assignment, uint64_t *n_bytes,
                                    struct moec_error *err)
{
    struct compile_run *run = context;
    return moec_bundle_plan_bytes(run->plan, assignment, run->options->copy_bits, run->options->n_copy_bits,
                                  n_bytes, err);
}

static void pass_log(void *context, const char *line)
{
    const struct compile_run *run = context;
    say(run, "%s", line);
}

static enum moec_status search(struct compile_run *run, struct moec_error *err)
{
    const struct moec_compile_options *options = run->options;
    struct moec_policy_request request = {
        .policy = options->policy,
        .config = moec_checkpoint_config(run->checkpoint),
        .profile = run->profile,
        .max_loss = options->max_loss,
        .max_bytes = options->max_bytes,
        .bits = options->bits,
        .seed = options->seed,
        .limits = moec_guest_limits_default,
        .ops = {.evaluate = answer_evaluate, .size = answer_size, .log = pass_log},
        .context = run,
    };
    enum moec_status status =
        moec_policy_run(&request, run->report->assignment, &run->report->n_evaluations, err);
    /* Ctrl-C reaches the policy's process too: its death is then no fault of the script. */
    if (status == MOEC_ERR_SCRIPT && is_cancelled(run)) {
        if (err != NULL)
            *err = (struct moec_error){0};
        status = moec_fail(err, MOEC_ERR_CANCELLED, "search: stopped; nothing was written");
    }
    MOEC_TRY(status);
    MOEC_TRY(answer_size(run, run->report->assignment, &run->report->n_bytes, err));
    if (options->max_bytes > 0 && run->report->n_bytes > options->max_bytes)
        return moec_fail(err, MOEC_ERR_TARGET,
                         "policy '%s' gave a bundle of %" PRIu64 " bytes, more than --max-size of %" PRIu64,
                         options->policy, run->report->n_bytes, options->max_bytes);
    return MOEC_OK;
}

/* The search part decides whether an assignment is accepted, whatever the policy believes. */
static enum moec_status confirm(struct compile_run *run, struct moec_error *err)
{
    MOEC_TRY(measure_part(run, &run->search, run->report->assignment, &run->search_loss, err));
    const struct moec_loss *loss = &run->search_loss;
    if (!isnan(run->options->max_loss) && loss->high - loss->loss > run->options->max_loss)
        say(run,
            "the interval (%.2f%% wide above the loss) is wider than the target; about %" PRIu64
            " windows in the search part would do (--samples)",
            100 * (loss->high - loss->loss), moec_loss_windows_needed(loss, run->options->max_loss));
    if (!meets_loss(run, loss))
        return moec_fail(
            err, MOEC_ERR_TARGET,
            "policy '%s' gave an assignment with a loss of %.3f%% (at most %.3f%%) on the search part, the "
            "target is %.3f%%",
            run->options->policy, 100 * loss->loss, 100 * loss->high, 100 * run->options->max_loss);
    return MOEC_OK;
}

/* ---- dense weights ---- */

static enum moec_status fit_dense(struct compile_run *run, struct moec_error *err)
{
    struct compile_part part = {0};
    struct moec_codec codecs[MOEC_MAX_DENSE_TRIALS];
    struct moec_dense_fit_request request = {.checkpoint = run->checkpoint,
                                             .measure = &part.measured,
                                             .codecs = codecs,
                                             .n_threads = run->options->n_threads,
                                             .folder = run->options->spill_folder,
                                             .progress = &run->stopper};
    MOEC_TRY(list_fitted(run, codecs, &request.n_codec, err));
    if (request.n_codec == 0)
        return MOEC_OK;
    enum moec_status status = make_part(run, MOEC_PART_SEARCH, run->original, &part, err);
    request.scorer = part.scorer;
    if (status == MOEC_OK)
        status = moec_dense_fit_create(&request, &run->fit, err);
    if (status == MOEC_OK)
        say(run, "GPTQ encoded %" PRIu32 " dense matrices on %" PRIu64 " tokens of the search part",
            moec_dense_fit_count(run->fit), moec_windows_scored_count(&part.windows));
    release_part(&part);
    return status;
}

static void unbind_dense(struct compile_run *run)
{
    release_part(&run->search);
    moec_bundle_plan_free(run->plan);
    run->plan = NULL;
    moec_path_table_release(&run->paths);
    if (run->compiled != run->original)
        moec_model_free(run->compiled);
    run->compiled = NULL;
}

/* The bundle's dense weights become those of these bits. */
static enum moec_status bind_dense(struct compile_run *run, uint32_t bits, struct moec_error *err)
{
    unbind_dense(run);
    run->report->dense_bits = bits;
    MOEC_TRY(load_compiled(run, bits, err));
    return make_plan(run, err);
}

/* An assignment for the dense weights that are bound. */
static enum moec_status solve(struct compile_run *run, struct moec_error *err)
{
    if (run->profile != NULL)
        MOEC_TRY(open_part(run, MOEC_PART_SEARCH, &run->search, err));
    MOEC_TRY(search(run, err));
    return run->profile != NULL ? confirm(run, err) : MOEC_OK;
}

/* The best trial so far: its place among the trials, its assignment and what was measured. */
struct best_dense {
    uint32_t trial; /* MOEC_MAX_DENSE_TRIALS: none */
    uint8_t *assignment;
    uint64_t n_bytes;
    struct moec_loss search_loss;
};

static enum moec_status try_dense(struct compile_run *run, uint32_t at, struct best_dense *best,
                                  struct moec_error *err)
{
    struct moec_compile_report *report = run->report;
    struct moec_dense_trial *trial = &report->dense_trials[at];
    const size_t n = (size_t)report->n_layer * report->n_expert;
    struct moec_error missed = {0};
    uint64_t least = 0;
    *trial = (struct moec_dense_trial){.bits = run->dense_bits[at]};
    report->n_dense_trial = at + 1;
    MOEC_TRY(bind_dense(run, trial->bits, err));
    memset(report->assignment, 2, n);
    MOEC_TRY(answer_size(run, report->assignment, &least, err));
    if (best->trial != MOEC_MAX_DENSE_TRIALS && least >= best->n_bytes) {
        say(run, "dense weights at %" PRIu32 " bits: left out, no bundle with them is smaller", trial->bits);
        return MOEC_OK;
    }
    trial->is_measured = true;
    report->n_evaluations = 0;
    const enum moec_status status = solve(run, &missed);
    trial->n_evaluations = report->n_evaluations;
    if (status == MOEC_ERR_TARGET) {
        say(run, "dense weights at %" PRIu32 " bits: %s", trial->bits, missed.message);
        return MOEC_OK;
    }
    if (status != MOEC_OK)
        return moec_fail(err, status, "%s", missed.message);
    trial->meets = true;
    trial->n_bytes = report->n_bytes;
    trial->loss = run->search_loss.loss;
    trial->loss_high = run->search_loss.high;
    say(run, "dense weights at %" PRIu32 " bits: %" PRIu64 " bytes, loss %.3f%% (at most %.3f%%)",
        trial->bits, trial->n_bytes, 100 * trial->loss, 100 * trial->loss_high);
    if (best->trial == MOEC_MAX_DENSE_TRIALS || trial->n_bytes < best->n_bytes) {
        memcpy(best->assignment, report->assignment, n);
        best->trial = at;
        best->n_bytes = trial->n_bytes;
        best->search_loss = run->search_loss;
    }
    return MOEC_OK;
}

/* EdgeMoE III-B, "Non-expert weights quantization decision". */
static enum moec_status choose_dense(struct compile_run *run, struct moec_error *err)
{
    struct moec_compile_report *report = run->report;
    const size_t n = (size_t)report->n_layer * report->n_expert;
    struct best_dense best = {.trial = MOEC_MAX_DENSE_TRIALS};
    enum moec_status status = MOEC_OK;
    uint32_t n_evaluations = 0;
    MOEC_TRY_OUT(moec_alloc((void **)&best.assignment, n, 1, "an assignment", err));
    for (uint32_t at = 0; at < run->n_dense_bits; at++) {
        MOEC_TRY_OUT(try_dense(run, at, &best, err));
        n_evaluations += report->dense_trials[at].n_evaluations;
    }
    report->n_evaluations = n_evaluations;
    if (best.trial == MOEC_MAX_DENSE_TRIALS) {
        status = moec_fail(err, MOEC_ERR_TARGET,
                           "no bitwidth of dense weights from %" PRIu32 " to %" PRIu32
                           " leaves an assignment within the target of %.3f%%; raise --max-loss",
                           run->dense_bits[0], run->dense_bits[run->n_dense_bits - 1],
                           100 * run->options->max_loss);
        goto out;
    }
    memcpy(report->assignment, best.assignment, n);
    report->n_bytes = best.n_bytes;
    run->search_loss = best.search_loss;
    status = bind_dense(run, report->dense_trials[best.trial].bits, err);
out:
    free(best.assignment);
    return status;
}

/* ---- the certificate ---- */

static void fill_certificate(struct compile_run *run, const struct moec_loss *loss)
{
    const struct moec_profile *profile = run->profile;
    struct moec_certificate *certificate = &run->report->certificate;
    *certificate = (struct moec_certificate){
        .present = true,
        .reference = loss->reference,
        .compiled = loss->compiled,
        .loss = loss->loss,
        .loss_low = loss->low,
        .loss_high = loss->high,
        .search_loss = run->search_loss.loss,
        .search_loss_high = run->search_loss.high,
        .target = run->options->max_loss,
        .confidence = run->options->confidence,
        .mean_kl = loss->mean_kl,
        .n_window = loss->n_window,
        .n_token = loss->n_token,
        .seq_len_tokens = profile->seq_len_tokens,
        .missed = !isnan(run->options->max_loss) && loss->loss > run->options->max_loss,
    };
    memcpy(certificate->metric, profile->metric, sizeof certificate->metric);
    memcpy(certificate->data_digest, profile->data_digest, sizeof certificate->data_digest);
    memcpy(certificate->data_name, profile->data_name, sizeof certificate->data_name);
    if (run->rows != NULL) {
        const struct moec_rows *rows = moec_row_metric_rows(run->rows);
        certificate->seq_len_tokens = 0;
        (void)snprintf(certificate->metric, sizeof certificate->metric, "%s",
                       moec_task_metric_name(run->options->rows->task.metric));
        memcpy(certificate->data_digest, rows->digest, sizeof certificate->data_digest);
        memcpy(certificate->data_name, rows->name, sizeof certificate->data_name);
    }
    memcpy(certificate->arithmetic, profile->arithmetic, sizeof certificate->arithmetic);
}

static enum moec_status certify(struct compile_run *run, struct moec_error *err)
{
    struct compile_part part = {0};
    struct moec_loss loss;
    enum moec_status status = open_part(run, MOEC_PART_CERTIFICATE, &part, err);
    if (status == MOEC_OK)
        status = measure_part(run, &part, run->report->assignment, &loss, err);
    release_part(&part);
    if (status != MOEC_OK)
        return status;
    fill_certificate(run, &loss);
    if (!run->report->certificate.missed)
        return MOEC_OK;
    if (run->options->accept_miss) {
        say(run, "the certificate misses the target; written all the same and marked (--accept-miss)");
        return MOEC_OK;
    }
    return moec_fail(err, MOEC_ERR_TARGET,
                     "the loss on the certificate part is %.3f%% (from %.3f%% to %.3f%%), the target is "
                     "%.3f%%; nothing was "
                     "written. Profile more samples, raise --confidence or --max-loss, or give --accept-miss",
                     100 * loss.loss, 100 * loss.low, 100 * loss.high, 100 * run->options->max_loss);
}

/* ---- writing ---- */

static void fill_provenance(const struct compile_run *run,
                            const uint8_t profile_digest[static MOEC_SHA256_BYTES],
                            const uint8_t model_digest[static MOEC_SHA256_BYTES], struct moec_provenance *out)
{
    *out = (struct moec_provenance){
        .source_bytes = moec_checkpoint_weight_bytes(run->checkpoint),
        .source_expert_bytes = moec_checkpoint_expert_bytes(run->checkpoint),
    };
    (void)snprintf(out->moec_version, sizeof out->moec_version, "%s", MOEC_VERSION);
    /* Only the file's name: the same inputs in another folder give the same bytes. */
    const char *slash = strrchr(run->options->policy, '/');
    (void)snprintf(out->policy, sizeof out->policy, "%s", slash != NULL ? slash + 1 : run->options->policy);
    /* What was found beside what was asked for. */
    char found[24] = "";
    if (run->options->dense_bits == MOEC_DENSE_BITS_AUTO)
        (void)snprintf(found, sizeof found, " dense-bits-found=%" PRIu32, run->report->dense_bits);
    (void)snprintf(out->options, sizeof out->options, "%s%s", run->options->options_text, found);
    (void)snprintf(out->source_name, sizeof out->source_name, "%s", run->options->source_name);
    memcpy(out->model_digest, model_digest, MOEC_SHA256_BYTES);
    if (run->profile != NULL)
        memcpy(out->profile_digest, profile_digest, MOEC_SHA256_BYTES);
}

static bool show_packing(void *context, uint64_t done, uint64_t total)
{
    const struct compile_run *run = context;
    show(run, "packing", done, total);
    return !is_cancelled(run);
}

static enum moec_status write_bundle(struct compile_run *run, const struct moec_provenance *provenance,
                                     const char *path, struct moec_error *err)
{
    const struct moec_compile_options *options = run->options;
    struct moec_bundle_writer *writer = NULL;
    MOEC_TRY(moec_bundle_writer_open(run->plan, path, run->report->assignment, options->copy_bits,
                                     options->n_copy_bits, &writer, err));
    uint64_t n_records = (uint64_t)run->report->n_layer * run->report->n_expert * (1 + options->n_copy_bits);
    enum moec_status status =
        moec_pack_records(run->checkpoint, writer, n_records, options->n_threads, show_packing, run, err);
    if (status != MOEC_OK) {
        moec_bundle_writer_abort(writer);
        return status;
    }
    MOEC_TRY(moec_bundle_writer_commit(writer, provenance, &run->report->certificate, err));
    run->report->is_written = true;
    return MOEC_OK;
}

static enum moec_status check_options(const struct moec_compile_options *options,
                                      const struct moec_profile *profile, struct moec_error *err)
{
    if (!isnan(options->max_loss) && profile == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a loss target needs something to measure on: give --profile or --data");
    if (options->rows != NULL && profile == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a metric of what the model writes needs a profile: give --profile or --data");
    if (options->dense_gptq && profile == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "GPTQ needs inputs to weigh errors by: give --profile or --data, or "
                         "--dense-quantizer linear");
    if (options->dense_bits == MOEC_DENSE_BITS_AUTO && isnan(options->max_loss))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--dense-bits auto takes the smallest bundle within a loss target: give --max-loss");
    for (uint32_t i = 0; i < options->n_copy_bits; i++)
        for (uint32_t j = 0; j < i; j++)
            if (options->copy_bits[i] == options->copy_bits[j])
                return moec_fail(err, MOEC_ERR_USAGE, "precision copy %u is given twice",
                                 options->copy_bits[i]);
    return MOEC_OK;
}

static void release_run(struct compile_run *run)
{
    unbind_dense(run);
    moec_model_free(run->original);
    moec_variants_free(run->variants);
    moec_dense_fit_free(run->fit);
    moec_row_metric_free(run->rows);
}

enum moec_status moec_compile(struct moec_checkpoint *checkpoint, const struct moec_profile *profile,
                              const uint8_t profile_digest[static MOEC_SHA256_BYTES],
                              const struct moec_compile_options *options,
                              const struct moec_compile_hooks *hooks, const char *path,
                              struct moec_compile_report *report, struct moec_error *err)
{
    struct compile_run run = {
        .checkpoint = checkpoint, .profile = profile, .options = options, .hooks = hooks, .report = report};
    run.stopper = (struct moec_progress){.report = ask_to_go_on, .context = &run};
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    enum moec_status status = MOEC_OK;
    uint8_t model_digest[MOEC_SHA256_BYTES];
    struct moec_provenance provenance;
    *report = (struct moec_compile_report){
        .n_layer = moec_config_moe_count(config),
        .n_expert = config->n_expert,
        .source_bytes = moec_checkpoint_weight_bytes(checkpoint),
    };
    MOEC_TRY_OUT(check_options(options, profile, err));
    MOEC_TRY_OUT(moec_checkpoint_digest(checkpoint, NULL, NULL, model_digest, err));
    if (profile != NULL)
        MOEC_TRY_OUT(check_profile(checkpoint, profile, model_digest, err));
    MOEC_TRY_OUT(moec_alloc((void **)&report->assignment, (uint64_t)report->n_layer * report->n_expert, 1,
                            "an assignment", err));
    if (options->rows != NULL)
        MOEC_TRY_OUT(moec_row_metric_open(options->rows, checkpoint, profile, &run.rows, err));
    MOEC_TRY_OUT(list_dense_bits(&run, err));
    MOEC_TRY_OUT(plan_memory(&run, err));
    MOEC_TRY_OUT(choose_codecs(&run, err));
    MOEC_TRY_OUT(load_original(&run, err));
    MOEC_TRY_OUT(fit_dense(&run, err));
    if (options->dense_bits == MOEC_DENSE_BITS_AUTO) {
        MOEC_TRY_OUT(choose_dense(&run, err));
    } else {
        MOEC_TRY_OUT(bind_dense(&run, options->dense_bits, err));
        MOEC_TRY_OUT(solve(&run, err));
    }
    if (path == NULL)
        goto out;
    release_part(&run.search);
    if (profile != NULL)
        MOEC_TRY_OUT(certify(&run, err));
    moec_variants_free(run.variants); /* packing encodes anew, with memory of its own */
    run.variants = NULL;
    fill_provenance(&run, profile_digest, model_digest, &provenance);
    MOEC_TRY_OUT(write_bundle(&run, &provenance, path, err));
out:
    release_run(&run);
    return status;
}

void moec_compile_report_release(struct moec_compile_report *report)
{
    free(report->assignment);
    report->assignment = NULL;
}
