/* Phases in a fixed order, each of which may read what earlier ones left. Windows that certify are drawn and
 * kept, but never measured: n_window ends before them. The journal's description must name every option that
 * changes a result, or an interrupted run would mix two jobs. */
#include "profiler/profile/profile_run.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/common/processor_time.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/load_model.h"
#include "profiler/profile/codes_study.h"
#include "profiler/profile/mixed.h"
#include "profiler/profile/model_check.h"
#include "profiler/profile/profile_cost.h"
#include "profiler/profile/quantizer_choice.h"
#include "profiler/profile/weight_studies.h"
#include "profiler/profile/work_plan.h"
#include "profiler/routing/up_study.h"
#include "profiler/sensitivity/fast_sensitivity.h"
#include "profiler/sensitivity/gain_plan.h"
#include "runtime/engine/memory_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Dictionaries have neither 5 and 6 bits nor groups of 16, and the study of quantisers measures them too. */
static enum moec_status check_dictionaries(const struct moec_profile_options *options, struct moec_error *err)
{
    const bool is_one = moec_scheme_is_dictionary(options->codes.scheme);
    const bool is_studied = (options->measures.studies >> MOEC_WEIGHT_STUDY_QUANTIZERS & 1u) != 0;
    const char *subject = is_one ? moec_quantizer_name(options->codes.quantizer) : "the study 'quantizers'";
    bool has_others = options->codes.group == 16;
    for (uint32_t i = 0; i < options->codes.n_bits; i++)
        has_others = has_others || options->codes.bits[i] == 1 || options->codes.bits[i] == 5 ||
                     options->codes.bits[i] == 6;
    if (has_others && (is_one || is_studied))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "%s: the quantizers outlier and log have only 2, 3, 4 or 8 bits and no groups of "
                         "16; leave out other bitwidths and groups of 16",
                         subject);
    return MOEC_OK;
}

static enum moec_status check_trellis(const struct moec_profile_options *options, struct moec_error *err)
{
    bool has_path = options->codes.n_bits == 0;
    for (uint32_t i = 0; i < options->codes.n_bits; i++)
        has_path = has_path || moec_quantizer_makes_path(options->codes.quantizer, options->codes.bits[i]);
    if (options->codes.quantizer == MOEC_QUANTIZER_TRELLIS && !has_path)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the quantizer trellis has codes of 2, 3 and 4 bits, but none of these is among the "
                         "bitwidths: add one, or use hqq");
    return MOEC_OK;
}

static enum moec_status check_options(const struct moec_profile_job *job, struct moec_error *err)
{
    const struct moec_profile_options *options = job->options;
    const uint32_t baseline = options->codes.baseline_bits;
    if (baseline != 4 && baseline != 16)
        return moec_fail(err, MOEC_ERR_USAGE, "the baseline has %" PRIu32 " bits, expected 4 or 16",
                         baseline);
    const bool has_sensitivity = options->measures.sensitivity != MOEC_SENSITIVITY_NONE;
    if ((options->codes.n_bits == 0 && has_sensitivity) || options->codes.n_bits > MOEC_PROFILE_MAX_BITS)
        return moec_fail(err, MOEC_ERR_USAGE, "%" PRIu32 " bitwidths are given, expected 1..%d",
                         options->codes.n_bits, MOEC_PROFILE_MAX_BITS);
    MOEC_TRY(check_dictionaries(options, err));
    MOEC_TRY(check_trellis(options, err));
    bool has_other = false;
    for (uint32_t i = 0; i < options->codes.n_bits; i++) {
        const uint32_t bits = options->codes.bits[i];
        if (!moec_profile_has_bits(bits))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "the bitwidth %" PRIu32 " is not supported, expected 1, 2, 3, 4, 5, 6, 8 or 16",
                             bits);
        for (uint32_t j = 0; j < i; j++) {
            if (options->codes.bits[j] == bits)
                return moec_fail(err, MOEC_ERR_USAGE, "the bitwidth %" PRIu32 " is given twice", bits);
        }
        has_other = has_other || bits != baseline;
    }
    if (!has_other && has_sensitivity)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the only bitwidth given is %" PRIu32 ", which is the baseline's: give another one "
                         "to measure",
                         baseline);
    if (moec_config_moe_count(job->config) == 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "the model in '%s' has no layer with experts",
                         moec_checkpoint_folder(job->checkpoint));
    if (options->measures.sensitivity == MOEC_SENSITIVITY_FAST && moec_config_is_encoder_decoder(job->config))
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the model '%s' has an encoder, whose errors --sensitivity fast cannot estimate: "
                         "use --sensitivity exact",
                         moec_checkpoint_folder(job->checkpoint));
    if (options->data.seq_len_tokens > job->config->n_position)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "windows have %" PRIu32 " tokens, more than the %" PRIu32 " positions of the model: "
                         "lower --seq-len",
                         options->data.seq_len_tokens, job->config->n_position);
    return MOEC_OK;
}

static enum moec_status read_windows(struct moec_profile_job *job, struct moec_error *err)
{
    const struct moec_profile_options *options = job->options;
    MOEC_TRY(moec_windows_need_task(job->config, &options->data.task, "a profile", err));
    MOEC_TRY(moec_model_tokenizer(job->checkpoint, &job->tokenizer, err));
    MOEC_TRY(moec_rows_read(&options->data.task, options->data.path,
                            moec_rows_budget(options->memory.limit_bytes), &job->rows, err));
    char line[512];
    if (moec_rows_note(&job->rows, line, sizeof line))
        moec_progress_note(options->progress, "%s", line);
    const struct moec_pool pool = moec_pool_make(options->by.n_threads);
    struct moec_windows_options windows = {.seq_len_tokens = options->data.seq_len_tokens,
                                           .has_parts = true,
                                           .parts = options->data.parts,
                                           .seed = options->data.seed,
                                           .memory_bytes = moec_rows_budget(options->memory.limit_bytes)};
    moec_windows_options_for(job->config, &windows);
    windows.parts.min_part_windows = MOEC_MIN_PART_WINDOWS;
    MOEC_TRY(moec_windows_make(&job->rows, job->tokenizer, &windows, &pool, &job->windows, err));
    moec_rows_drop_texts(&job->rows);
    return MOEC_OK;
}

static void copy_text(char *to, size_t room, const char *from)
{
    (void)snprintf(to, room, "%s", from);
}

/* Bitwidths in increasing order, with and without the baseline's. */
static void sort_bits(const struct moec_profile_options *options, struct moec_profile *profile)
{
    for (uint32_t bits = 1; bits <= 16; bits++) {
        bool asked = false;
        for (uint32_t b = 0; b < options->codes.n_bits; b++)
            asked = asked || options->codes.bits[b] == bits;
        if (!asked)
            continue;
        profile->uniform_bits[profile->n_uniform++] = bits;
        if (bits != options->codes.baseline_bits && options->measures.sensitivity != MOEC_SENSITIVITY_NONE)
            profile->bits[profile->n_bits++] = bits;
    }
}

/* They are the first. */
static uint32_t count_search(const struct moec_windows *windows)
{
    uint32_t n = 0;
    while (n < windows->n_window && moec_part_has(MOEC_PART_SEARCH, windows->part, n))
        n++;
    return n;
}

/* Those that certify are the last, and nobody looks at them before a certificate needs them. */
static uint32_t count_measured(const struct moec_windows *windows)
{
    uint32_t n = windows->n_window;
    while (n > 0 && moec_part_has(MOEC_PART_CERTIFICATE, windows->part, n - 1))
        n--;
    return n;
}

static void copy_windows(const struct moec_windows *windows, struct moec_profile *profile)
{
    const size_t n = windows->n_window;
    memcpy(profile->window_tokens, windows->tokens,
           n * moec_windows_stride(windows) * sizeof *windows->tokens);
    if (windows->source != NULL)
        memcpy(profile->window_source, windows->source, n * sizeof *windows->source);
    memcpy(profile->window_length, windows->length, n * sizeof *windows->length);
    memcpy(profile->window_scored, windows->scored, n * sizeof *windows->scored);
    memcpy(profile->window_index, windows->index, n * sizeof *windows->index);
    memcpy(profile->window_document, windows->document, n * sizeof *windows->document);
    memcpy(profile->window_part, windows->part, n * sizeof *windows->part);
}

static enum moec_status describe(struct moec_profile_job *job, struct moec_error *err)
{
    const struct moec_profile_options *options = job->options;
    struct moec_windows *windows = &job->windows;
    struct moec_profile *profile = job->profile;
    const uint32_t n_drawn = windows->n_window, n_measured = count_measured(windows);
    job->pass = moec_cost_pass(job->config, windows);
    windows->n_window = n_measured;
    *profile = (struct moec_profile){.seq_len_tokens = options->data.seq_len_tokens,
                                     .seed = options->data.seed,
                                     .baseline_bits = options->codes.baseline_bits,
                                     .quantizer = (uint8_t)options->codes.quantizer,
                                     .scheme = (uint8_t)options->codes.scheme,
                                     .group = (uint16_t)options->codes.group,
                                     .config = *job->config,
                                     .n_moe_layer = moec_config_moe_count(job->config),
                                     .n_expert = job->config->n_expert,
                                     .top_k = job->config->top_k,
                                     .n_window = n_measured,
                                     .n_drawn = n_drawn,
                                     .n_window_available = windows->n_available,
                                     .n_document = windows->n_document,
                                     .parts_by_document = windows->by_document,
                                     .n_trace_token = moec_windows_token_count(windows)};
    sort_bits(options, profile);
    copy_text(profile->moec_version, sizeof profile->moec_version, MOEC_VERSION);
    copy_text(profile->arithmetic, sizeof profile->arithmetic,
              moec_arithmetic_certificate_name(options->by.arithmetic));
    copy_text(profile->task, sizeof profile->task, options->data.task.name);
    copy_text(profile->metric, sizeof profile->metric, moec_task_metric_name(MOEC_TASK_METRIC_PERPLEXITY));
    copy_text(profile->data_name, sizeof profile->data_name, job->rows.name);
    memcpy(profile->data_digest, job->rows.digest, sizeof profile->data_digest);
    MOEC_TRY(moec_checkpoint_digest(job->checkpoint, NULL, NULL, profile->model_digest, err));
    profile->n_sensitivity_window = options->measures.n_sensitivity_window > 0
                                        ? options->measures.n_sensitivity_window
                                        : MOEC_DEFAULT_SENSITIVITY_WINDOWS;
    const uint32_t n_search = count_search(windows);
    if (profile->n_sensitivity_window > n_search)
        profile->n_sensitivity_window = n_search;
    MOEC_TRY(moec_windows_first(windows, profile->n_sensitivity_window, &job->sensitivity_windows, err));
    MOEC_TRY(moec_profile_allocate(profile, err));
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        profile->moe_layers[s] = moec_config_moe_layer(job->config, s);
    windows->n_window = n_drawn;
    copy_windows(windows, profile);
    windows->n_window = n_measured;
    return MOEC_OK;
}

/* "2,3,4" */
static void list_bits(const uint32_t *bits, uint32_t n, char text[static 4 * MOEC_PROFILE_MAX_BITS])
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t b = 0; b < n; b++)
        used += (size_t)snprintf(text + used, 4, "%s%" PRIu32, b > 0 ? "," : "", bits[b] % 100);
}

void moec_profile_describe_task(const struct moec_task *task, struct moec_job_text *text)
{
    struct moec_sha256 digest;
    uint8_t sha256[MOEC_SHA256_BYTES];
    char hex[2 * MOEC_SHA256_BYTES + 1];
    /* Templates with their NULs, so that what ends one cannot begin the next. */
    moec_sha256_init(&digest);
    moec_sha256_update(&digest, task->prompt, strlen(task->prompt) + 1);
    moec_sha256_update(&digest, task->reference, strlen(task->reference) + 1);
    if (moec_task_metric_kind(task->metric) == MOEC_TASK_KIND_CHOICE) {
        moec_sha256_update(&digest, task->choices_field, strlen(task->choices_field) + 1);
        for (uint32_t i = 0; i < task->n_choice; i++)
            moec_sha256_update(&digest, task->choices[i], strlen(task->choices[i]) + 1);
        moec_sha256_update(&digest, task->choice, strlen(task->choice) + 1);
        moec_sha256_update(&digest, task->label, strlen(task->label) + 1);
    }
    if (task->right[0] != '\0')
        moec_sha256_update(&digest, task->right, strlen(task->right) + 1);
    if (task->reshape != NULL)
        moec_sha256_update(&digest, task->script_digest, sizeof task->script_digest);
    moec_sha256_finish(&digest, sha256);
    moec_sha256_hex(sha256, hex);
    moec_job_line(text, "task", "%s (format %d, split %d, metric %d, delimiter %d, templates %.16s)",
                  task->name, (int)task->format, (int)task->split, (int)task->metric, task->delimiter, hex);
}

/* Everything that the profile depends on: a journal is this job's when all of it is the same. */
static void describe_job(const struct moec_profile_job *job, struct moec_job_text *text)
{
    const struct moec_profile *profile = job->profile;
    char hex[2 * MOEC_SHA256_BYTES + 1], bits[4 * MOEC_PROFILE_MAX_BITS];
    moec_job_line(text, "moec", "%s", profile->moec_version);
    moec_job_line(text, "arithmetic", "%s", profile->arithmetic);
    if (job->options->by.arithmetic == MOEC_ARITHMETIC_BF16) /* the order of its sums is the device's own */
        moec_job_line(text, "device", "%s", moec_gpu_place_info(job->options->memory.place)->name);
    moec_sha256_hex(profile->model_digest, hex);
    moec_job_line(text, "model", "%s", hex);
    moec_sha256_hex(profile->data_digest, hex);
    moec_job_line(text, "data", "%s", hex);
    moec_job_line(text, "data-name", "%s", profile->data_name);
    moec_profile_describe_task(&job->options->data.task, text);
    moec_job_line(text, "seq-len", "%" PRIu32, profile->seq_len_tokens);
    const struct moec_part_request *parts = &job->options->data.parts;
    moec_job_line(text, "samples",
                  "%" PRIu32 " (search %" PRIu32 ", certificate %" PRIu32 ", select %" PRIu32 ")",
                  parts->n_window, parts->n_part[MOEC_PART_SEARCH], parts->n_part[MOEC_PART_CERTIFICATE],
                  parts->no_select ? UINT32_MAX : parts->n_part[MOEC_PART_SELECT]);
    moec_job_line(text, "measured", "%" PRIu32 " of %" PRIu32 " windows", profile->n_window,
                  profile->n_drawn);
    moec_job_line(text, "sensitivity-samples", "%" PRIu32, profile->n_sensitivity_window);
    moec_job_line(text, "seed", "%" PRIu64, profile->seed);
    list_bits(profile->uniform_bits, profile->n_uniform, bits);
    moec_job_line(text, "bits", "%s", bits);
    moec_job_line(text, "baseline", "%" PRIu32, profile->baseline_bits);
    moec_job_line(text, "quantizer", "%s", moec_quantizer_name((enum moec_quantizer)profile->quantizer));
    if (profile->quantizer == MOEC_QUANTIZER_TRELLIS) /* whose codes were others before */
        moec_job_line(text, "paths", "%s", moec_scheme_name(MOEC_SCHEME_SHIFT));
    moec_job_line(text, "scheme", "%s",
                  job->options->codes.any_scheme ? "any"
                                                 : moec_scheme_name((enum moec_scheme)profile->scheme));
    moec_job_line(text, "group", "%u", (unsigned)profile->group);
    if (job->options->measures.sensitivity == MOEC_SENSITIVITY_AUTO)
        moec_job_line(text, "sensitivity", "auto within %.0f s", job->options->measures.time_limit_seconds);
    else
        moec_job_line(text, "sensitivity", "%d", (int)job->options->measures.sensitivity);
}

static enum moec_status open_units(struct moec_profile_job *job, struct moec_error *err)
{
    const struct moec_profile_options *options = job->options;
    struct moec_job_text *text = NULL;
    if (options->journal.path == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&text, 1, sizeof *text, "the description of a job", err));
    describe_job(job, text);
    const struct moec_units_place place = {options->journal.path, options->journal.mode, options->by.ranks};
    const enum moec_status status = moec_units_open_shared(&place, text, options->progress, &job->units, err);
    free(text);
    return status;
}

/* Of the arrays that are filled from now on. */
static uint64_t result_bytes(const struct moec_profile_job *job)
{
    const struct moec_profile *profile = job->profile;
    const uint64_t n_expert = (uint64_t)profile->n_moe_layer * profile->n_expert;
    const uint64_t trace = profile->n_trace_token * profile->n_moe_layer * profile->top_k;
    const bool may_estimate = job->options->measures.sensitivity == MOEC_SENSITIVITY_FAST ||
                              job->options->measures.sensitivity == MOEC_SENSITIVITY_AUTO;
    const uint64_t estimates =
        may_estimate ? moec_fast_sensitivity_bytes(job->config, &job->sensitivity_windows, profile->n_bits)
                     : 0;
    return 2 * n_expert * profile->n_bits * profile->n_sensitivity_window * sizeof(double) +
           2 * trace * sizeof(uint16_t) + estimates;
}

/* What a run wants of memory; base_bytes is the caller's. */
static struct moec_work_request work_request(const struct moec_profile_job *job,
                                             const struct moec_profile_options *options)
{
    /* Of the study of up projections one rank's values stand there twice (profiler/routing/up_study.c). */
    const uint64_t n_rank = moec_ranks_count(options->by.ranks),
                   told = n_rank > 1 ? moec_up_study_bytes(job->config, 1) / n_rank : 0;
    const bool has_dense_study = moec_weight_study_wanted(MOEC_WEIGHT_STUDY_DENSE, options);
    struct moec_work_request request = {
        .checkpoint = job->checkpoint,
        .windows = &job->windows,
        .bytes = {.work = options->memory.limit_bytes,
                  .result = result_bytes(job) + moec_weight_studies_bytes(job->profile, options),
                  .exchange = moec_ranks_buffer_bytes(options->by.ranks) + told},
        .n_threads = options->by.n_threads,
        .evaluations =
            {
                .arithmetic = options->by.arithmetic,
                .n_arithmetic = 1,
                .dense_bits = 16,
                .n_models = has_dense_study ? 2 : 1,
                .n_passes = 2, /* the scorer's, and that of the phase at work */
                .n_states = 3,
                .traces = true,
                .sweeps = true,
            },
        .folder = options->memory.spill_folder};
    /* Beside the scorer's: local errors take a perturbed model along for each layer, on part of the windows;
     * an exact sweep has its rows to itself. */
    if (options->measures.sensitivity == MOEC_SENSITIVITY_FAST) {
        struct moec_gain_plan gains;
        const uint64_t n_row = moec_windows_scored_count(&job->windows);
        moec_gain_plan_make(job->config, &job->sensitivity_windows, &gains);
        request.evaluations.n_states +=
            (uint32_t)((moec_gain_plan_rows(&gains, &job->sensitivity_windows) + n_row - 1) / n_row);
        request.evaluations.sweeps = false;
    }
    return request;
}

static enum moec_status plan_memory(struct moec_profile_job *job, struct moec_profile_options *options,
                                    struct moec_error *err)
{
    struct moec_work_request request = work_request(job, options);
    struct moec_work_plan *plan = &job->plan;
    if (options->memory.limit_bytes == 0)
        return MOEC_OK;
    MOEC_TRY(moec_memory_resident_bytes(&request.bytes.base, err));
    MOEC_TRY(moec_work_plan_make(&request, plan, err));
    options->memory.work_bytes = plan->sweep_bytes;
    options->memory.cache_bytes = plan->cache_bytes;
    job->dense_keep_bytes = plan->dense_bytes;
    job->work = plan->work;
    job->windows.work = &job->work;
    job->sensitivity_windows.work = &job->work;
    return MOEC_OK;
}

/* An expert whose projections differ may come from two records. */
static enum moec_status enter_device(struct moec_profile_job *job, struct moec_error *err)
{
    struct moec_gpu_place *place = job->options->memory.place;
    const uint64_t record =
        moec_variants_record_bytes(job->variants, moec_variants_source_bits(job->variants));
    if (place == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_gpu_place_load(place, job->model, 2 * record, err));
    const uint32_t n_tok = moec_gpu_place_batch_tokens(place, job->model), planned = job->work.batch_tokens;
    job->work.batch_tokens = planned > 0 && planned < n_tok ? planned : n_tok;
    job->windows.work = &job->work;
    job->sensitivity_windows.work = &job->work;
    return MOEC_OK;
}

static enum moec_status open_model(struct moec_profile_job *job, struct moec_error *err)
{
    const struct moec_profile_options *options = job->options;
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    MOEC_TRY(moec_load_model(job->checkpoint, 16, 0, job->dense_keep_bytes, &job->model, err));
    MOEC_TRY(moec_variants_create(job->checkpoint,
                                  &(struct moec_variants_options){options->codes.scheme, options->codes.group,
                                                                  options->memory.cache_bytes,
                                                                  options->by.n_threads},
                                  &job->variants, err));
    MOEC_TRY(moec_profile_codecs(job->profile, codecs, err));
    MOEC_TRY(moec_variants_set_codecs(job->variants, codecs, err));
    MOEC_TRY(enter_device(job, err));
    const struct moec_scorer_options scoring = {.by = options->by, .variants = job->variants};
    return moec_scorer_create(job->model, moec_variants_experts(job->variants), &job->windows, &scoring,
                              &job->scorer, err);
}

static void copy_measure(const struct moec_measure *from, uint32_t n_window, struct moec_measure *to)
{
    memcpy(to->nll, from->nll, n_window * sizeof *to->nll);
    memcpy(to->kl, from->kl, n_window * sizeof *to->kl);
}

/* Whole models at one bitwidth; that of the baseline comes out of the sensitivity sweep, and those of auto
 * were measured to choose. */
static enum moec_status measure_uniform(struct moec_profile_job *job, struct moec_error *err)
{
    struct moec_profile *profile = job->profile;
    for (uint32_t u = 0; u < profile->n_uniform; u++) {
        if (profile->uniform_bits[u] == profile->baseline_bits ||
            (profile->quantizer == MOEC_QUANTIZER_AUTO && profile->uniform_bits[u] < 16))
            continue;
        MOEC_TRY(moec_variants_assign_all(job->variants, profile->uniform_bits[u], err));
        char key[MOEC_JOURNAL_MAX_KEY];
        (void)snprintf(key, sizeof key, "uniform/%" PRIu32, profile->uniform_bits[u]);
        MOEC_TRY(moec_job_score(job, key, &profile->uniform[u], err));
    }
    return MOEC_OK;
}

/* All experts at the baseline, on all windows. At the source's own bits that is the original, where the
 * arithmetic is too. */
static enum moec_status measure_baseline(struct moec_profile_job *job, struct moec_error *err)
{
    struct moec_profile *profile = job->profile;
    if (profile->baseline_bits == moec_variants_source_bits(job->variants) &&
        job->options->by.arithmetic == MOEC_ARITHMETIC_CANONICAL) {
        copy_measure(&profile->reference, profile->n_window, &profile->baseline);
        return MOEC_OK;
    }
    MOEC_TRY(moec_variants_assign_all(job->variants, profile->baseline_bits, err));
    return moec_job_score(job, "baseline", &profile->baseline, err);
}

static enum moec_status measure_sensitivity(struct moec_profile_job *job, struct moec_error *err)
{
    struct moec_profile *profile = job->profile;
    MOEC_TRY(measure_baseline(job, err));
    if (profile->sensitivity == MOEC_SENSITIVITY_FAST)
        MOEC_TRY(moec_job_estimate_sensitivity(job, err));
    else if (profile->sensitivity == MOEC_SENSITIVITY_EXACT)
        MOEC_TRY(moec_job_measure_sensitivity(job, err));
    for (uint32_t u = 0; u < profile->n_uniform; u++) {
        if (profile->uniform_bits[u] == profile->baseline_bits)
            copy_measure(&profile->baseline, profile->n_window, &profile->uniform[u]);
    }
    return MOEC_OK;
}

static void count_cost(struct moec_profile_job *job)
{
    struct moec_profile *profile = job->profile;
    profile->cost_passes = (double)moec_job_multiply_adds(job) / (double)job->pass;
    profile->naive_passes = (double)profile->n_moe_layer * profile->n_expert * profile->n_bits;
}

/* Tells progress what is left from a phase on. */
static void expect_from(const struct moec_profile_job *job, enum moec_profile_phase phase)
{
    struct moec_profile_cost cost;
    moec_profile_cost_estimate(job, &cost);
    moec_progress_expect(job->options->progress, moec_profile_cost_from(&cost, phase));
}

/* `options` are the job's: from here on progress goes through the units. */
static enum moec_status run(struct moec_profile_job *job, struct moec_profile_options *options,
                            struct moec_error *err)
{
    MOEC_TRY(check_options(job, err));
    moec_weight_studies_limit(job->config, options);
    MOEC_TRY(read_windows(job, err));
    MOEC_TRY(
        moec_ranks_same(options->by.ranks, "other data", job->rows.digest, sizeof job->rows.digest, err));
    MOEC_TRY(describe(job, err));
    MOEC_TRY(moec_ranks_same(options->by.ranks, "another checkpoint", job->profile->model_digest,
                             sizeof job->profile->model_digest, err));
    MOEC_TRY(open_units(job, err));
    options->progress = moec_units_progress(job->units, options->progress);
    MOEC_TRY(plan_memory(job, options, err));
    MOEC_TRY(open_model(job, err));
    expect_from(job, MOEC_PHASE_ROUTING);
    MOEC_TRY(moec_job_measure_original(job, err));
    MOEC_TRY(moec_quantizer_choose(job, err));
    MOEC_TRY(moec_job_choose_sensitivity(job, err));
    expect_from(job, MOEC_PHASE_WHOLE);
    MOEC_TRY(measure_uniform(job, err));
    expect_from(job, MOEC_PHASE_SENSITIVITY);
    MOEC_TRY(measure_sensitivity(job, err));
    expect_from(job, MOEC_PHASE_MIXED);
    if (job->profile->sensitivity != MOEC_SENSITIVITY_NONE) {
        MOEC_TRY(moec_job_studies(job, "mixed", moec_mixed_measure, err));
        MOEC_TRY(moec_job_studies(job, "codes", moec_codes_measure, err));
    }
    expect_from(job, MOEC_PHASE_STUDIES);
    MOEC_TRY(moec_weight_studies_run(job, err));
    count_cost(job);
    return moec_profile_check(job->profile, "the profile just measured", err);
}

static void release_job(struct moec_profile_job *job)
{
    moec_units_close(job->units);
    moec_scorer_free(job->scorer);
    moec_variants_free(job->variants);
    moec_model_free(job->model);
    moec_windows_release(&job->windows);
    moec_windows_release(&job->sensitivity_windows);
    moec_rows_release(&job->rows);
    moec_tokenizer_free(job->tokenizer);
}

enum moec_status moec_profile_run(struct moec_checkpoint *checkpoint,
                                  const struct moec_profile_options *options, struct moec_profile *profile,
                                  struct moec_error *err)
{
    struct moec_profile_options own_options = *options;
    struct moec_profile_job job = {.checkpoint = checkpoint,
                                   .config = moec_checkpoint_config(checkpoint),
                                   .options = &own_options,
                                   .profile = profile};
    *profile = (struct moec_profile){0};
    enum moec_status status = run(&job, &own_options, err);
    release_job(&job);
    if (status != MOEC_OK)
        moec_profile_release(profile);
    return status;
}

/* ---- before a run ---- */

#define PACE_WINDOWS 4 /* to time the original on */

/* The original's evaluation, at the pace of a few windows: one alone would decode its weights for itself. */
static enum moec_status time_pass(struct moec_profile_job *job, struct moec_profile_forecast *forecast,
                                  struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_windows few = {0};
    double *nll = NULL;
    const struct moec_scorer_options scoring = {
        .by = {.kernels = job->options->by.kernels, .n_threads = job->options->by.n_threads}};
    const uint32_t n = job->windows.n_window < PACE_WINDOWS ? job->windows.n_window : PACE_WINDOWS;
    MOEC_TRY_OUT(moec_windows_first(&job->windows, n, &few, err));
    MOEC_TRY_OUT(moec_alloc((void **)&nll, n, sizeof *nll, "window losses", err));
    MOEC_TRY_OUT(open_model(job, err));
    moec_scorer_free(job->scorer);
    job->scorer = NULL;
    MOEC_TRY_OUT(moec_scorer_create(job->model, moec_variants_experts(job->variants), &few, &scoring,
                                    &job->scorer, err));
    MOEC_TRY_OUT(moec_variants_assign_all(job->variants, moec_variants_source_bits(job->variants), err));
    const uint64_t start_ns = moec_now_ns(), start_processor_ns = moec_processor_ns();
    MOEC_TRY_OUT(moec_scorer_set_reference(job->scorer, job->model, moec_variants_experts(job->variants), nll,
                                           NULL, err));
    const double scale = 1e-9 * (double)job->pass / (double)moec_scorer_multiply_adds(job->scorer);
    forecast->seconds_per_pass = scale * (double)(moec_now_ns() - start_ns);
    forecast->core_seconds_per_pass = scale * (double)(moec_processor_ns() - start_processor_ns);
out:
    moec_scorer_free(job->scorer);
    job->scorer = NULL;
    moec_windows_release(&few);
    free(nll);
    return status;
}

/* Hidden states beside what the plan keeps in memory. */
static uint64_t spilled_bytes(const struct moec_profile_job *job)
{
    const uint64_t all = 3 * moec_windows_token_count(&job->windows) * job->config->n_embd * sizeof(float);
    const uint64_t kept = job->windows.work != NULL ? job->work.states_bytes : all;
    return all > kept ? all - kept : 0;
}

/* With AUTO as moec_job_choose_sensitivity will choose, as far as can be known. In passes over all windows that
 * were drawn, where the run itself counts in those that it measures. */
static void fill_phases(const struct moec_profile_job *job, struct moec_profile_cost *cost,
                        struct moec_profile_forecast *forecast)
{
    const enum moec_sensitivity_mode mode = job->options->measures.sensitivity;
    const double limit = job->options->measures.time_limit_seconds;
    const double share = (double)moec_cost_pass(job->config, &job->windows) / (double)job->pass;
    for (int phase = 0; phase < MOEC_PHASE_COUNT; phase++)
        cost->passes[phase] *= share;
    cost->exact_passes *= share;
    cost->fast_passes *= share;
    forecast->is_exact =
        mode == MOEC_SENSITIVITY_EXACT || moec_config_is_encoder_decoder(job->config) ||
        (mode == MOEC_SENSITIVITY_AUTO && cost->exact_passes * forecast->seconds_per_pass <= limit);
    if (mode != MOEC_SENSITIVITY_NONE) {
        forecast->exact_passes = cost->exact_passes;
        forecast->fast_passes = cost->fast_passes;
        cost->passes[MOEC_PHASE_SENSITIVITY] = forecast->is_exact ? cost->exact_passes : cost->fast_passes;
        cost->passes[MOEC_PHASE_MIXED] = forecast->is_exact ? cost->passes[MOEC_PHASE_MIXED] : 0;
    }
    for (int phase = 0; phase < MOEC_PHASE_COUNT; phase++) {
        if (cost->passes[phase] <= 0)
            continue;
        forecast->phases[forecast->n_phase].name = moec_profile_phase_name((enum moec_profile_phase)phase);
        forecast->phases[forecast->n_phase++].passes = cost->passes[phase];
    }
}

/* 0 where memory has no limit, and so no plan. */
static enum moec_status estimate_memory(const struct moec_profile_job *job,
                                        const struct moec_profile_options *options,
                                        struct moec_profile_forecast *forecast, struct moec_error *err)
{
    const struct moec_profile *profile = job->profile;
    const struct moec_work_request request = work_request(job, options);
    const struct moec_work_load load = {
        .bits = profile->uniform_bits,
        .n_bits = profile->n_uniform,
        .sensitivity_windows =
            options->measures.sensitivity == MOEC_SENSITIVITY_NONE ? NULL : &job->sensitivity_windows,
        .is_exact = forecast->is_exact};
    if (options->memory.limit_bytes == 0)
        return MOEC_OK;
    forecast->memory_limit_bytes = job->plan.limit_bytes;
    return moec_work_plan_peak(&request, &job->plan, &load, &forecast->memory_bytes, err);
}

static enum moec_status fill_forecast(struct moec_profile_job *job, struct moec_profile_options *options,
                                      struct moec_profile_forecast *forecast, struct moec_error *err)
{
    struct moec_profile_cost cost;
    MOEC_TRY(check_options(job, err));
    moec_weight_studies_limit(job->config, options);
    MOEC_TRY(read_windows(job, err));
    MOEC_TRY(describe(job, err));
    MOEC_TRY(plan_memory(job, options, err));
    MOEC_TRY(time_pass(job, forecast, err));
    moec_profile_cost_estimate(job, &cost);
    fill_phases(job, &cost, forecast);
    forecast->n_window = job->profile->n_drawn;
    for (int part = 0; part < MOEC_PART_COUNT; part++)
        forecast->n_part[part] = moec_profile_part_count(job->profile, (enum moec_part)part);
    MOEC_TRY(estimate_memory(job, options, forecast, err));
    forecast->profile_bytes = result_bytes(job) + moec_weight_studies_bytes(job->profile, options);
    forecast->spill_bytes = spilled_bytes(job);
    return MOEC_OK;
}

enum moec_status moec_profile_estimate(struct moec_checkpoint *checkpoint,
                                       const struct moec_profile_options *options,
                                       struct moec_profile_forecast *forecast, struct moec_error *err)
{
    struct moec_profile profile = {0};
    struct moec_profile_options own_options = *options;
    struct moec_profile_job job = {.checkpoint = checkpoint,
                                   .config = moec_checkpoint_config(checkpoint),
                                   .options = &own_options,
                                   .profile = &profile};
    *forecast = (struct moec_profile_forecast){0};
    const enum moec_status status = fill_forecast(&job, &own_options, forecast, err);
    release_job(&job);
    moec_profile_release(&profile);
    return status;
}

enum moec_status moec_profile_count_parts(struct moec_checkpoint *checkpoint,
                                          const struct moec_profile_options *options,
                                          uint32_t n_part[static MOEC_PART_COUNT], struct moec_error *err)
{
    struct moec_profile_job job = {
        .checkpoint = checkpoint, .config = moec_checkpoint_config(checkpoint), .options = options};
    enum moec_status status = check_options(&job, err);
    if (status == MOEC_OK)
        status = read_windows(&job, err);
    memset(n_part, 0, MOEC_PART_COUNT * sizeof *n_part);
    for (uint32_t w = 0; status == MOEC_OK && w < job.windows.n_window; w++)
        n_part[job.windows.part[w]]++;
    release_job(&job);
    return status;
}
