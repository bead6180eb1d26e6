/* The order of a compile: memory, codecs, the original, neuron order, dense fit, search, sequence,
 * certificate, packing. Memory is planned before anything is measured, for what is open together at most. The
 * certificate part is read last and only to test. Packing frees the variants and encodes anew, on the first
 * rank alone. */
#include "compiler/compile/compile_internal.h"

#include "compiler/compile/compile_certificate.h"
#include "compiler/compile/compile_dense.h"
#include "compiler/compile/compile_dense_plan.h"
#include "compiler/compile/compile_frequent.h"
#include "compiler/compile/compile_limits.h"
#include "compiler/compile/compile_note.h"
#include "compiler/compile/compile_offer.h"
#include "compiler/compile/compile_order.h"
#include "compiler/compile/compile_part.h"
#include "compiler/compile/compile_search.h"
#include "compiler/compile/compile_sequence.h"
#include "compiler/compile/compile_stages.h"
#include "compiler/compile/compile_units.h"
#include "compiler/compile/compile_windows.h"
#include "compiler/pack/pack.h"
#include "formats/base/memory.h"
#include "profiler/evaluate/load_model.h"
#include "profiler/profile/model_check.h"
#include "runtime/engine/memory_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_WORK_BYTES ((uint64_t)1 << 30)

/* Measurements go through here to be shown and stopped. */
static enum moec_status ask_to_go_on(void *context, const char *phase, double done_passes,
                                     double total_passes)
{
    (void)phase;
    moec_compile_show_part(context, done_passes, total_passes);
    return moec_compile_is_cancelled(context) ? MOEC_ERR_CANCELLED : MOEC_OK;
}

static void note(void *context, const char *line)
{
    moec_compile_tell(context, line);
}

/* ---- before the search ---- */

static enum moec_status check_profile_chance(struct moec_compile_run *run, struct moec_error *err)
{
    const struct moec_profile *profile = run->profile;
    const struct moec_chance chance = {.original = moec_profile_perplexity(
                                           profile->reference.nll, profile->window_scored, profile->n_window),
                                       .guessing = profile->config.n_vocab,
                                       .data_name = profile->data_name};
    return moec_compile_check_chance(run, &chance, err);
}

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
        "the profile is of another model: it was made from a model with SHA-256 %.16s..., but the model "
        "'%s' has %.16s...; profile this model, or give --data",
        theirs, moec_checkpoint_folder(checkpoint), ours);
}

/* What fitting variants takes: moments of experts get a quarter of the work memory, if they need as much. */
static uint64_t plan_variants(struct moec_compile_run *run, uint64_t work_bytes)
{
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    const int n_threads = run->options->by.n_threads;
    const struct moec_expert_fit_memory memory = moec_expert_fit_bytes(config, n_threads);
    run->fit_bytes = memory.most_bytes < work_bytes / 4 ? memory.most_bytes : work_bytes / 4;
    run->fit_bytes = run->fit_bytes > memory.least_bytes ? run->fit_bytes : memory.least_bytes;
    return run->fit_bytes + (run->options->dense.is_planned ? moec_dense_fit_bytes(config, n_threads) : 0);
}

/* Rows of hidden states of the first n_most windows. */
static uint64_t count_rows(const struct moec_windows *windows, uint32_t n_most)
{
    uint64_t n = 0;
    for (uint32_t w = 0; w < windows->n_window && w < n_most; w++)
        n += moec_windows_traced(windows, w);
    return n;
}

/* Dense weights that are in memory at once: the original's, the bundle's where they are others, and those of
 * a plan that gives matrices codecs of their own, as the safest plan of a sequence may. */
static uint32_t count_models(const struct moec_compile_run *run, bool is_original)
{
    const struct moec_compile_options *options = run->options;
    const bool has_sequence = run->path != NULL && !isnan(options->target.max_loss) &&
                              options->target.confidence != MOEC_CONFIDENCE_POINT;
    const bool has_plans = options->search.offers_variants && options->dense.is_planned;
    uint32_t n = is_original ? 1 : 2;
    if (has_plans || (has_sequence && !is_original))
        n++;
    return n;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* What is open together. A part takes a pass of a plan, with one of the original where that is another model,
 * and the final states of both; a fit has the states of its windows three times. The certificate part is open
 * alone. The search part stays open where a policy may ask for more: for the selection part, or for variants,
 * which are fitted. */
static void count_open(const struct moec_compile_run *run, const struct moec_windows *windows,
                       struct moec_work_request *request)
{
    const struct moec_compile_options *options = run->options;
    const bool is_original =
        run->n_dense_bits == 1 && moec_compile_dense_is_original(run, run->dense_bits[0]);
    const uint32_t n_part = options->search.offers_variants ? 2 : 1;
    const uint64_t search = count_rows(&windows[MOEC_PART_SEARCH], run->scope.n_search),
                   select = count_rows(&windows[MOEC_PART_SELECT], run->scope.n_search),
                   fitted = count_rows(&windows[MOEC_PART_SEARCH], run->scope.n_fit);
    const uint64_t n_search = moec_windows_token_count(&windows[MOEC_PART_SEARCH]),
                   n_certify = moec_windows_token_count(&windows[MOEC_PART_CERTIFICATE]);
    uint64_t n_row = 2 * larger(n_certify, search);
    if (options->dense.by_gptq || options->experts.orders_neurons)
        n_row = larger(n_row, 3 * fitted);
    if (options->search.offers_variants)
        n_row = larger(n_row, 2 * search + larger(3 * fitted, 2 * select));
    request->windows = &windows[n_search >= n_certify ? MOEC_PART_SEARCH : MOEC_PART_CERTIFICATE];
    const uint64_t n_each = larger(larger(n_search, n_certify), 1);
    request->evaluations.n_states = (uint32_t)((n_row + n_each - 1) / n_each);
    request->evaluations.n_models = count_models(run, is_original);
    request->evaluations.n_passes = n_part * (is_original ? 1 : 2);
    request->evaluations.n_arithmetic = n_part;
    request->evaluations.n_reference = 1; /* nothing is kept for the selection part (compile_part.c) */
}

static enum moec_status plan_memory(struct moec_compile_run *run, struct moec_error *err)
{
    const struct moec_compile_options *options = run->options;
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    const struct moec_row_metric_means means = {.kernels = options->by.kernels,
                                                .n_threads = options->by.n_threads,
                                                .arithmetic = options->by.arithmetic};
    struct moec_windows windows[MOEC_PART_COUNT] = {0};
    struct moec_work_request request = {
        .checkpoint = run->checkpoint,
        .bytes = {.work = options->memory.work_bytes > 0 ? options->memory.work_bytes : DEFAULT_WORK_BYTES,
                  .exchange = moec_ranks_buffer_bytes(options->by.ranks)},
        .n_threads = options->by.n_threads,
        .evaluations = {.dense_bits = 16, .n_models = 1, .n_passes = 1, .arithmetic = options->by.arithmetic},
        .folder = options->memory.spill_folder};
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_memory_resident_bytes(&request.bytes.base, err));
    for (int part = 0; run->profile != NULL && part < MOEC_PART_COUNT; part++)
        MOEC_TRY_OUT(moec_windows_from_profile(run->profile, (enum moec_part)part, &windows[part], err));
    if (run->profile == NULL && run->dense_bits[0] < 16)
        request.evaluations.dense_bits = run->dense_bits[0];
    if (run->rows != NULL)
        request.bytes.result = moec_row_metric_bytes(run->rows, &means);
    if (options->dense.by_gptq)
        request.bytes.result += moec_dense_fit_bytes(config, options->by.n_threads);
    if (options->experts.orders_neurons)
        request.bytes.result += moec_coactivation_bytes(config, options->by.n_threads);
    if (run->profile != NULL)
        count_open(run, windows, &request);
    if (run->profile != NULL && options->search.offers_variants)
        request.bytes.result += plan_variants(run, request.bytes.work);
    status = moec_work_plan_make(&request, &run->memory, err);
out:
    for (int part = 0; part < MOEC_PART_COUNT; part++)
        moec_windows_release(&windows[part]);
    return status;
}

static enum moec_status choose_codecs(struct moec_compile_run *run, struct moec_error *err)
{
    const struct moec_compile_options *options = run->options;
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    run->group = run->profile != NULL ? run->profile->group : options->experts.group;
    if (run->profile != NULL)
        MOEC_TRY(moec_profile_codecs(run->profile, run->codecs, err));
    else
        MOEC_TRY(moec_codec_table(options->experts.quantizer, options->experts.scheme, run->group,
                                  (enum moec_dtype)config->expert_dtype, run->codecs, err));
    /* Profiles from before experts stayed MXFP4 say F32. */
    MOEC_TRY(moec_codec_for_bits(16, MOEC_SCHEME_SYMMETRIC, 0, (enum moec_dtype)config->expert_dtype,
                                 &run->codecs[16], err));
    memcpy(run->report->codecs, run->codecs, sizeof run->codecs);
    MOEC_TRY(
        moec_variants_create(run->checkpoint,
                             &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, run->group,
                                                             run->memory.cache_bytes, options->by.n_threads},
                             &run->variants, err));
    return moec_variants_set_codecs(run->variants, run->codecs, err);
}

/* An expert whose projections differ may come from two records. */
static enum moec_status enter_device(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_gpu_place *place = run->options->memory.place;
    const uint64_t record =
        moec_variants_record_bytes(run->variants, moec_variants_source_bits(run->variants));
    uint32_t *planned = &run->memory.work.batch_tokens;
    if (place == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_gpu_place_load(place, run->original, 2 * record, err));
    const uint32_t n_tok = moec_gpu_place_batch_tokens(place, run->original);
    *planned = *planned > 0 && *planned < n_tok ? *planned : n_tok;
    return MOEC_OK;
}

static enum moec_status load_original(struct moec_compile_run *run, struct moec_error *err)
{
    if (run->profile == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_load_model(run->checkpoint, 16, 0, run->memory.dense_bytes, &run->original, err));
    return enter_device(run, err);
}

/* ---- writing ---- */

static void fill_provenance(const struct moec_compile_run *run,
                            const uint8_t profile_digest[static MOEC_SHA256_BYTES],
                            struct moec_provenance *out)
{
    *out = (struct moec_provenance){
        .source_bytes = moec_checkpoint_weight_bytes(run->checkpoint),
        .source_expert_bytes = moec_checkpoint_expert_bytes(run->checkpoint),
    };
    (void)snprintf(out->moec_version, sizeof out->moec_version, "%s", MOEC_VERSION);
    /* Only the file's name: the same inputs in another folder give the same bytes. */
    const char *slash = strrchr(run->options->search.policy, '/');
    (void)snprintf(out->policy, sizeof out->policy, "%s",
                   slash != NULL ? slash + 1 : run->options->search.policy);
    /* What was found beside what was asked for. */
    char found[48] = "", left_out[24] = "";
    if (run->options->dense.bits == MOEC_DENSE_BITS_AUTO)
        (void)snprintf(found, sizeof found, " dense-bits-found=%" PRIu32, run->report->plan.dense_bits);
    if (run->report->scope > 0)
        (void)snprintf(left_out, sizeof left_out, " scope=%" PRIu32, run->report->scope);
    (void)snprintf(out->options, sizeof out->options, "%s%s%s", run->options->source.options, found,
                   left_out);
    (void)snprintf(out->source_name, sizeof out->source_name, "%s", run->options->source.model);
    memcpy(out->model_digest, run->model_digest, MOEC_SHA256_BYTES);
    if (run->profile != NULL)
        memcpy(out->profile_digest, profile_digest, MOEC_SHA256_BYTES);
}

static bool show_packing(void *context, uint64_t done, uint64_t total)
{
    const struct moec_compile_run *run = context;
    moec_compile_show_whole(run, (double)done, (double)total);
    return !moec_compile_is_cancelled(run);
}

enum moec_status moec_compile_write(struct moec_compile_run *run,
                                    const uint8_t profile_digest[static MOEC_SHA256_BYTES], const char *path,
                                    struct moec_error *err)
{
    struct moec_provenance provenance;
    const struct moec_compile_options *options = run->options;
    struct moec_bundle_writer *writer = NULL;
    struct moec_bundle_plan *bundle = NULL;
    const struct moec_dense *dense = NULL;
    fill_provenance(run, profile_digest, &provenance);
    MOEC_TRY(moec_compile_bundle_of(run, &run->report->plan, &bundle, &dense, err));
    MOEC_TRY(
        moec_bundle_writer_open(bundle, path,
                                &(struct moec_bundle_assignment){.experts = run->report->plan.experts,
                                                                 .copy_bits = options->experts.copy_bits,
                                                                 .n_extra = options->experts.n_copy_bits},
                                &writer, err));
    const struct moec_pack_progress progress = {
        show_packing, run, moec_plan_count(&run->report->plan) * (1 + options->experts.n_copy_bits)};
    enum moec_status status = moec_pack_records(run->checkpoint, moec_compile_encoder(run), writer,
                                                options->by.n_threads, &progress, err);
    if (status != MOEC_OK) {
        moec_bundle_writer_abort(writer);
        return status;
    }
    MOEC_TRY(moec_bundle_writer_commit(writer, &provenance, &run->report->certificate, err));
    run->report->is_written = true;
    return MOEC_OK;
}

static enum moec_status check_options(const struct moec_compile_options *options,
                                      const struct moec_profile *profile, struct moec_error *err)
{
    if (!isnan(options->target.max_loss) && profile == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a loss target needs data to measure on: give --profile or --data");
    if (options->experts.orders_neurons && profile == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--order-neurons needs data that shows which neurons "
                         "are active together: give --profile or --data");
    if (options->target.rows != NULL && profile == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a --metric measured on rows needs data to rank experts: give --profile or --data");
    if (options->dense.by_gptq && profile == NULL)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "GPTQ needs data to weigh errors: give --profile or --data, or --dense-quantizer linear");
    if (options->dense.bits == MOEC_DENSE_BITS_AUTO && isnan(options->target.max_loss))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--dense-bits auto looks for the smallest bundle within a loss target: give --max-loss");
    for (uint32_t i = 0; i < options->experts.n_copy_bits; i++)
        for (uint32_t j = 0; j < i; j++)
            if (options->experts.copy_bits[i] == options->experts.copy_bits[j])
                return moec_fail(err, MOEC_ERR_USAGE, "--copies names %u bits twice",
                                 options->experts.copy_bits[i]);
    return MOEC_OK;
}

/* What the plan's bundle has, and where its bytes go. */
static enum moec_status make_shares(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_compile_report *report = run->report;
    struct moec_bundle_plan *bundle = NULL;
    const struct moec_dense *dense = NULL;
    uint64_t *dense_bytes = NULL;
    MOEC_TRY(moec_compile_bundle_of(run, &report->plan, &bundle, &dense, err));
    MOEC_TRY(moec_compile_dense_bytes(run, &report->plan, dense, &dense_bytes, err));
    report->n_matrix = 0;
    for (uint32_t i = 0; i < dense->n_entries; i++)
        report->n_matrix += moec_role_is_quantisable((enum moec_role)dense->entries[i].role);
    const struct moec_bundle_shares_request request = {.bundle = bundle,
                                                       .config = moec_checkpoint_config(run->checkpoint),
                                                       .codecs = run->codecs,
                                                       .dense = dense,
                                                       .dense_bytes = dense_bytes,
                                                       .plan = &report->plan,
                                                       .copy_bits = run->options->experts.copy_bits,
                                                       .n_copy_bits = run->options->experts.n_copy_bits};
    const enum moec_status status = moec_bundle_shares_make(&request, &report->shares, err);
    free(dense_bytes);
    return status;
}

/* What the report shows of the plan that the search ended with. */
static enum moec_status note_choice(struct moec_compile_run *run, struct moec_error *err)
{
    if (run->profile == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_compile_note_choice(run, err));
    MOEC_TRY(moec_compile_measure_alike(run, err));
    return run->options->search.measure_uniform ? moec_compile_measure_uniform(run, err) : MOEC_OK;
}

/* A size alone is met whatever is lost: nothing else would tell. */
static void warn_of_loss(struct moec_compile_run *run)
{
    struct moec_compile_report *report = run->report;
    const struct moec_certificate *certificate = &report->certificate;
    const double loss = certificate->present ? certificate->loss : run->search_loss.loss;
    const double high = certificate->present ? certificate->loss_high : run->search_loss.high;
    const struct moec_trace_point *enough =
        moec_search_trace_smallest(&report->trace, MOEC_COMPILE_LARGE_LOSS);
    char advice[160] = "--max-loss 10% instead of --max-size finds the size that such a loss needs";
    if (run->profile == NULL || !isnan(run->options->target.max_loss) || !(high > MOEC_COMPILE_LARGE_LOSS))
        return;
    if (enough != NULL)
        (void)snprintf(advice, sizeof advice,
                       "the smallest measured bundle that loses at most 10%% has %" PRIu64
                       " bytes, and --max-loss 10%% looks for a smaller one",
                       enough->n_bytes);
    (void)snprintf(
        report->warning, sizeof report->warning,
        "the loss on the %s part is %.1f%% (upper bound %.1f%%), which is above 10%%, and no --max-loss "
        "was given: %s",
        certificate->present ? "certificate" : "search", 100 * loss, 100 * high, advice);
}

void moec_compile_finish(struct moec_compile_run *run)
{
    moec_compile_units_close(run, run->report->is_written);
    moec_compile_variants_release(run);
    moec_compile_dense_unbind(run);
    moec_model_free(run->original);
    moec_variants_free(run->variants);
    moec_neuron_order_release(&run->order);
    moec_dense_fit_free(run->fit);
    moec_compile_candidates_release(&run->candidates);
    moec_row_metric_free(run->rows);
}

enum moec_status moec_compile_start(struct moec_compile_run *run, struct moec_error *err)
{
    const struct moec_compile_options *options = run->options;
    const struct moec_config *config = moec_checkpoint_config(run->checkpoint);
    run->stopper = (struct moec_progress){.report = ask_to_go_on, .note = note, .context = run};
    *run->report = (struct moec_compile_report){
        .source_bytes = moec_checkpoint_weight_bytes(run->checkpoint),
    };
    MOEC_TRY(check_options(options, run->profile, err));
    if (options->experts.orders_neurons)
        MOEC_TRY(moec_compile_order_check(config, options->experts.group, err));
    /* A bundle whose tokenizer cannot be used cannot be run: known before any work. */
    MOEC_TRY(moec_model_check(run->checkpoint, false, err));
    MOEC_TRY(moec_checkpoint_digest(run->checkpoint, NULL, NULL, run->model_digest, err));
    if (run->profile != NULL)
        MOEC_TRY(check_profile(run->checkpoint, run->profile, run->model_digest, err));
    if (run->profile != NULL)
        MOEC_TRY(check_profile_chance(run, err));
    MOEC_TRY(moec_compile_frequent_choose(run, err));
    MOEC_TRY(moec_plan_create(&run->report->plan, config, err));
    if (options->target.rows != NULL)
        MOEC_TRY(moec_row_metric_open(options->target.rows, run->checkpoint, run->profile, &run->rows, err));
    char line[512];
    if (run->rows != NULL && moec_rows_note(moec_row_metric_rows(run->rows), line, sizeof line))
        note(run, line);
    MOEC_TRY(moec_compile_units_open(run, err));
    MOEC_TRY(moec_compile_dense_list(run, err));
    MOEC_TRY(plan_memory(run, err));
    MOEC_TRY(choose_codecs(run, err));
    MOEC_TRY(load_original(run, err));
    MOEC_TRY(moec_compile_order_make(run, err));
    moec_compile_begin(run, options->dense.by_gptq ? MOEC_STAGE_FIT_DENSE : MOEC_STAGE_HARM);
    return moec_compile_dense_fit(run, err);
}

/* The plan, and with a path its certificate. */
static enum moec_status choose_plan(struct moec_compile_run *run, struct moec_error *err)
{
    const struct moec_compile_options *options = run->options;
    const bool is_certified = run->profile != NULL && run->path != NULL;
    if (options->dense.bits == MOEC_DENSE_BITS_AUTO) {
        MOEC_TRY(moec_compile_dense_choose(run, err));
    } else {
        MOEC_TRY(moec_compile_dense_bind(run, options->dense.bits, err));
        MOEC_TRY(moec_compile_search(run, err));
    }
    moec_compile_begin(run, MOEC_STAGE_SEQUENCE);
    MOEC_TRY(note_choice(run, err));
    if (is_certified)
        MOEC_TRY(moec_compile_windows_choose(run, err));
    if (is_certified)
        MOEC_TRY(moec_compile_sequence_make(run, err));
    if (run->profile != NULL)
        run->report->mixing = moec_search_trace_mixing(&run->report->trace, &run->report->trace.chosen);
    moec_compile_part_release(&run->search);
    moec_compile_begin(run, MOEC_STAGE_CERTIFY);
    enum moec_status status = is_certified ? moec_compile_certify(run, err) : MOEC_OK;
    if (status == MOEC_OK && run->profile != NULL) /* the certificate may have chosen another plan */
        status = moec_compile_note_choice(run, err);
    if (status == MOEC_OK)
        status = moec_compile_note_smallest(run, err);
    if (status == MOEC_OK || status == MOEC_ERR_TARGET) {
        const enum moec_status noted = make_shares(run, status == MOEC_OK ? err : NULL);
        status = status == MOEC_OK ? noted : status;
    }
    return status;
}

void moec_compile_pack_begin(struct moec_compile_run *run)
{
    moec_variants_free(run->variants); /* packing encodes anew, with memory of its own */
    run->variants = NULL;
    moec_compile_begin(run, MOEC_STAGE_PACK);
}

enum moec_status moec_compile(const struct moec_compile_inputs *inputs,
                              const struct moec_compile_options *options,
                              const struct moec_compile_hooks *hooks, const char *path,
                              struct moec_compile_report *report, struct moec_error *err)
{
    struct moec_compile_run run = {.checkpoint = inputs->checkpoint,
                                   .profile = inputs->profile,
                                   .options = options,
                                   .hooks = hooks,
                                   .report = report,
                                   .path = path};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_compile_start(&run, err));
    MOEC_TRY_OUT(choose_plan(&run, err));
    warn_of_loss(&run);
    if (path == NULL || moec_ranks_own(options->by.ranks) != 0)
        goto out;
    moec_compile_pack_begin(&run);
    MOEC_TRY_OUT(moec_compile_write(&run, inputs->profile_digest, path, err));
out:
    moec_compile_finish(&run);
    return status;
}

void moec_compile_report_release(struct moec_compile_report *report)
{
    moec_plan_release(&report->plan);
    moec_search_trace_release(&report->trace);
    moec_bundle_shares_release(&report->shares);
}
