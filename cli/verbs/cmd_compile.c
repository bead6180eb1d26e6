/* Checks go from cheap to costly: words, names and journals, headers, sizes, then data. A profile is read
 * before sizes are checked, since it may have measured smaller codes; data is profiled after that. RoPE is
 * chosen for the text that is going to be measured, then for what the profile measured. The first rank alone
 * claims names and writes. The profile's journal goes once the bundle is written; whoever fails is told of
 * the journals. */
#include "cli/options/outputs.h"
#include "cli/output/compile_forecast.h"
#include "cli/output/compile_output.h"
#include "cli/print/print.h"
#include "cli/settings/compile_rules.h"
#include "cli/settings/device_options.h"
#include "cli/settings/lua_policy.h"
#include "cli/settings/measure_options.h"
#include "cli/settings/route_options.h"
#include "cli/terminal/checkpoint_note.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/phase_output.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "cli/verbs/run_profile.h"
#include "compiler/compile/compile.h"
#include "compiler/page/compile_page.h"
#include "compiler/policy/policy.h"
#include "formats/base/claim.h"
#include "formats/profile/profile_h5.h"
#include "profiler/evaluate/continuation.h"
#include "profiler/profile/model_check.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct cli_option options[] = {
    {"profile", 0, "PROFILE.h5", NULL, "Measurements of this model, from moec profile.",
     CLI_INPUT | CLI_OF_LOSS},
    {"max-loss", 0, "LOSS", NULL, "Accuracy that may be lost, such as 2% or 0.02.", CLI_OF_LOSS},
    {"max-size", 0, "SIZE", NULL, "Largest bundle, such as 20MB.", CLI_OF_LOSS},
    {"output", 'o', "MODEL.moec", NULL, "The bundle to write.", CLI_OUTPUT | CLI_OF_OUTPUT},
    {"policy", 0, "POLICY", NULL,
     "How to search (default hull):\n"
     "hull\tleast harm per saved byte, in all weights\n"
     "edgemoe\tfewer bits for the least important experts\n"
     "marginal\tthe least loss for each byte saved\n"
     "uniform\t--bits for every expert\n"
     "FILE.lua\tyour own search (lua/README.md)" CLI_RESEARCH
     "edgemoe-literal\tas edgemoe, but ranks experts as the paper does",
     CLI_INPUT | CLI_BUILT_IN | CLI_OF_LOSS},
    {"preset", 0, "NAME", "paper",
     "paper: the setting of EdgeMoE's paper, which is --policy edgemoe-literal, --quantizer linear, "
     "--scheme symmetric, --group channel, --dense-bits 16 and --confidence point: the certificate "
     "is then one evaluation without an interval, and the measured loss itself must be within "
     "--max-loss.",
     CLI_RARE | CLI_OF_RESEARCH},
    {"bits", 0, "BITS", "1|2|3|4|5|6|8|16", "For --policy uniform: 1, 2, 3, 4, 5, 6, 8 or 16.", CLI_OF_BITS},
    {"dense-bits", 0, "BITS", "4|8|16|32|auto",
     "Bits of weights outside experts (hull chooses them):\n"
     "16\tdefault of other policies; F32 becomes BF16\n"
     "32\tF32 weights stay F32\n"
     "8, 4\tquantised by --dense-quantizer\n"
     "auto\tthe bits that give the smallest bundle",
     CLI_OF_BITS},
    {"copies", 0, CLI_LIST, "2|3|4|8|16", "Bitwidths of extra copies of experts, such as 2,4.", CLI_OF_BITS},
    {"order-neurons", 0, NULL, NULL,
     "Reorder each expert's neurons, so that neurons which the same tokens of the search part "
     "activate become neighbours. After moec sparsify --parts, a run then reads fewer and longer "
     "ranges from storage. Size, and speed in memory, stay the same.",
     CLI_RARE | CLI_OF_BITS},
    {"report", 0, "FILE.html", NULL, "A page about the search; costs up to 4 evaluations.",
     CLI_OUTPUT | CLI_OF_OUTPUT},
    {"dry-run", 0, NULL, NULL, "Search and print the plan; write nothing.", CLI_OF_OUTPUT},
    CLI_DATA_OPTIONS,
    CLI_SAMPLES_OPTIONS,
    CLI_SENSITIVITY_SAMPLES_OPTION,
    {"metric", 0, "NAME",
     "perplexity|rouge-1|rouge-2|rouge-l|exact-match|accuracy|accuracy-bytes|accuracy-tokens|right-mass",
     "The metric that --max-loss limits:\n"
     "perplexity\tof windows of text (default)\n"
     "rouge-1, rouge-2, rouge-l\toverlap with reference summaries\n"
     "exact-match\tshare of answers that equal the reference\n"
     "accuracy\tshare of right choices, by likelihood\n"
     "accuracy-bytes\tas accuracy, but by likelihood per byte\n"
     "accuracy-tokens\tas accuracy, but by likelihood per token\n"
     "right-mass\tthe right choices' share of all likelihoods\n"
     "Every metric except perplexity is measured on rows of --data, with a --task of that metric. Rows "
     "are drawn for the three parts of the data like windows. If --profile was made with the same data, "
     "an encoder-decoder model uses the profile's rows; a decoder-only model uses only rows that the "
     "profile did not use.",
     CLI_RARE | CLI_OF_LOSS},
    {"ctx", 0, "TOKENS", NULL,
     "With --metric: limit on the tokens of a row's prompt and answer (default 2048, or the model's "
     "limit if that is less).",
     CLI_RARE | CLI_OF_LOSS},
    CLI_QUANTISER_OPTIONS(CLI_RARE),
    CLI_SENSITIVITY_OPTIONS(
        CLI_RARE, "", "",
        "With policy hull: limit, by a forecast, on the time of the whole compile on this machine. To meet it, "
        "compile uses fewer windows in search and tests, then fewer bitwidths; the promise is the same. With "
        "other policies: if measuring experts would take longer, compile estimates their sensitivities "
        "(default 30min)."),
    {"dense-quantizer", 0, "NAME", "linear|gptq",
     "How dense weights are encoded at 8 and 4 bits:\n"
     "gptq\tcodes compensate each other's errors on the search part (default if there is a profile "
     "or data)\n"
     "linear\teach weight is rounded by itself",
     CLI_RARE | CLI_OF_BITS},
    {"confidence", 0, "C", NULL,
     "Confidence of the interval whose upper end must be within --max-loss (default 0.95), or:\n"
     "point\tno interval: the measured loss itself must be within --max-loss",
     CLI_RARE | CLI_OF_LOSS},
    CLI_CERTIFIED_ARITHMETIC_OPTION(CLI_RARE),
    CLI_ANYWAY_OPTION,
    {"accept-miss", 0, NULL, NULL,
     "Write the bundle even if its certificate misses the target, and mark the bundle.",
     CLI_RARE | CLI_OF_LOSS},
    {"journal", 0, "FILE", NULL,
     "Keep measurements and fitted weights in FILE, also after the bundle is written. Later "
     "compiles of the same model and windows, with other targets, policies or outputs, continue "
     "from FILE. By default the journal is MODEL.moec.journal, and compile removes it after writing "
     "the bundle.",
     CLI_RARE},
    {"trust-profile", 0, NULL, NULL,
     "Use a profile that another program has changed, although its checksum no longer matches.", CLI_RARE},
    {"json", 0, NULL, NULL, "Print the result as JSON.", CLI_OF_OUTPUT},
    CLI_OFFLINE_DEVICE_OPTIONS(CLI_RARE),
    CLI_MACHINE_OPTIONS,
    {0},
};

struct compile_job {
    const struct cli_args *args; /* with what --preset stands for */
    struct cli_measure_options measure;
    struct moec_compile_options compile;
    struct moec_row_metric_options rows;
    struct moec_checkpoint *checkpoint;
    struct moec_profile profile;
    bool has_profile;
    uint8_t profile_digest[MOEC_SHA256_BYTES];
    char options_text[512];
    struct cli_progress progress;
    struct cli_phases phases;
    struct moec_compile_report report;
    struct cli_compile_forecast forecast; /* windows 0: none was asked for */
    struct moec_claim claim;              /* of the output */
    struct moec_claim report_claim;
    /* Paths of journals, owned: of the compile (NULL where --journal names it), and of the profile that it
     * makes; NULL with --dry-run. */
    char *journal, *profile_journal;
    double seconds;
};

static enum moec_status read_confidence(const struct cli_args *args, double *confidence,
                                        struct moec_error *err)
{
    *confidence = 0.95;
    const char *text = cli_text(args, "confidence");
    if (text != NULL && strcmp(text, "point") == 0)
        *confidence = MOEC_CONFIDENCE_POINT;
    else
        MOEC_TRY(cli_double(args, "confidence", 0.5001, 0.9999, confidence, err));
    return MOEC_OK;
}

/* "quantizer=hqq scheme=asymmetric", or what auto chose: "quantizer=auto 2=hqq-asymmetric 3=..." */
static void spell_quantizer(const struct compile_job *job, char *text, size_t capacity)
{
    static const uint32_t widths[] = {1, 2, 3, 4, 5, 6, 8};
    const struct moec_profile *profile = &job->profile;
    enum moec_quantizer quantizer = job->compile.experts.quantizer;
    enum moec_scheme scheme = job->compile.experts.scheme;
    if (job->has_profile) {
        quantizer = (enum moec_quantizer)profile->quantizer;
        scheme = (enum moec_scheme)profile->scheme;
    }
    size_t used = (size_t)snprintf(text, capacity, "quantizer=%s", moec_quantizer_name(quantizer));
    if (quantizer != MOEC_QUANTIZER_AUTO) {
        (void)snprintf(text + used, capacity - used, " scheme=%s", moec_scheme_name(scheme));
        return;
    }
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const struct moec_quantizer_choice choice = profile->choices[widths[i]];
        bool is_measured = widths[i] != 1 && widths[i] != 5 && widths[i] != 6;
        for (uint32_t u = 0; u < profile->n_uniform; u++)
            is_measured = is_measured || profile->uniform_bits[u] == widths[i];
        if (!is_measured)
            continue;
        used += (size_t)snprintf(text + used, capacity - used, " %" PRIu32 "=%s-%s", widths[i],
                                 moec_quantizer_name((enum moec_quantizer)choice.quantizer),
                                 moec_scheme_name((enum moec_scheme)choice.scheme));
    }
}

/* The options that shaped the bundle, in one fixed spelling, for its provenance. */
static void spell_options(struct compile_job *job)
{
    const struct moec_compile_options *compile = &job->compile;
    char arithmetic[32] = "";
    if (compile->by.arithmetic != MOEC_ARITHMETIC_CANONICAL)
        (void)snprintf(arithmetic, sizeof arithmetic, " arithmetic=%s",
                       moec_arithmetic_name(compile->by.arithmetic));
    char loss[32] = "none", size[32] = "none", bits[32] = "", copies[64] = "none", quantizer[192],
         dense[40] = "auto";
    if (!isnan(compile->target.max_loss))
        (void)snprintf(loss, sizeof loss, "%.9g", compile->target.max_loss);
    if (compile->target.max_bytes > 0)
        (void)snprintf(size, sizeof size, "%" PRIu64, compile->target.max_bytes);
    if (compile->search.bits > 0)
        (void)snprintf(bits, sizeof bits, " bits=%" PRIu32, compile->search.bits);
    for (uint32_t i = 0; i < compile->experts.n_copy_bits; i++) {
        size_t used = i == 0 ? 0 : strlen(copies);
        (void)snprintf(copies + used, sizeof copies - used, "%s%u", i > 0 ? "," : "",
                       compile->experts.copy_bits[i]);
    }
    spell_quantizer(job, quantizer, sizeof quantizer);
    if (compile->dense.is_planned)
        (void)snprintf(dense, sizeof dense, "each");
    else if (compile->dense.bits != MOEC_DENSE_BITS_AUTO)
        (void)snprintf(dense, sizeof dense, "%" PRIu32, compile->dense.bits);
    if (compile->dense.bits < 16)
        (void)snprintf(dense + strlen(dense), sizeof dense - strlen(dense), " dense-quantizer=%s",
                       compile->dense.by_gptq ? "gptq" : "linear");
    char metric[64] = "";
    if (compile->target.rows != NULL)
        (void)snprintf(metric, sizeof metric, " metric=%s task=%.24s",
                       moec_task_metric_name(compile->target.rows->task.metric),
                       compile->target.rows->task.name);
    (void)snprintf(
        job->options_text, sizeof job->options_text,
        "max-loss=%s%s max-size=%s%s dense-bits=%s copies=%s confidence=%g %s group=%" PRIu32 "%s%s", loss,
        metric, size, bits, dense, copies, compile->target.confidence, quantizer, compile->experts.group,
        arithmetic, compile->experts.orders_neurons ? " " MOEC_OPTION_ORDER_NEURONS : "");
}

static const char *policy_of(const struct cli_args *args)
{
    return cli_has(args, "policy") ? cli_text(args, "policy") : "hull";
}

/* Policies that may ask for variants: hull, and files of the user's. */
static bool may_ask_for_variants(const char *policy)
{
    return strcmp(policy, "hull") == 0 || strchr(policy, '.') != NULL;
}

static enum moec_status read_dense(const struct cli_args *args, struct moec_compile_options *compile,
                                   struct moec_error *err)
{
    const char *bits = cli_text(args, "dense-bits"), *quantizer = cli_text(args, "dense-quantizer");
    const bool has_data = cli_has(args, "profile") || cli_has(args, "data");
    const bool is_hull = strcmp(compile->search.policy, "hull") == 0,
               is_auto = bits != NULL && strcmp(bits, "auto") == 0;
    compile->dense.bits = 16;
    compile->search.offers_variants = has_data && may_ask_for_variants(compile->search.policy);
    compile->dense.is_planned = compile->search.offers_variants && (bits == NULL || (is_hull && is_auto));
    if (compile->dense.is_planned)
        return quantizer == NULL
                   ? MOEC_OK
                   : moec_fail(err, MOEC_ERR_USAGE,
                               "--dense-quantizer applies to dense weights at 8 or 4 bits: give "
                               "--dense-bits 8 or 4");
    if (is_auto)
        compile->dense.bits = MOEC_DENSE_BITS_AUTO;
    else
        MOEC_TRY(cli_u32(args, "dense-bits", 4, 32, &compile->dense.bits, err));
    if (quantizer != NULL && compile->dense.bits >= 16)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--dense-quantizer applies to dense weights at 8 or 4 bits: give --dense-bits 8, 4 or auto");
    compile->dense.by_gptq =
        compile->dense.bits < 16 && (quantizer != NULL ? strcmp(quantizer, "gptq") == 0 : has_data);
    return MOEC_OK;
}

/* --metric, and the rows that it is measured on. */
static enum moec_status read_metric(struct compile_job *job, struct moec_error *err)
{
    const struct cli_args *args = job->args;
    const char *name = cli_text(args, "metric");
    if (name == NULL || strcmp(name, moec_task_metric_name(MOEC_TASK_METRIC_PERPLEXITY)) == 0) {
        if (cli_has(args, "ctx"))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--ctx applies only with a --metric that is measured on rows: leave --ctx out");
        return MOEC_OK;
    }
    enum moec_task_metric metric = MOEC_TASK_METRIC_PERPLEXITY;
    while (strcmp(name, moec_task_metric_name(metric)) != 0) /* the table allows only these names */
        metric++;
    if (job->measure.data.path == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--metric %s is measured on rows: give --data and --task, even with --profile",
                         name);
    if (moec_task_metric_kind(metric) != moec_task_metric_kind(job->measure.data.task.metric))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--metric %s does not fit task '%s', which is measured by %s: give a --task with "
                         "this metric",
                         name, job->measure.data.task.name,
                         moec_task_metric_name(job->measure.data.task.metric));
    job->rows = (struct moec_row_metric_options){.task = job->measure.data.task,
                                                 .data_path = job->measure.data.path,
                                                 .seed = job->measure.data.seed,
                                                 .memory_bytes = job->measure.memory.work_bytes};
    job->rows.task.metric = metric;
    job->rows.parts = job->measure.data.parts;
    job->compile.target.rows = &job->rows;
    return cli_u32(args, "ctx", 2, 1u << 24, &job->rows.n_context, err);
}

static enum moec_status read_compile_options(struct compile_job *job, struct moec_error *err)
{
    static const uint32_t allowed[] = {2, 3, 4, 8, 16, 0};
    const struct cli_args *args = job->args;
    struct moec_compile_options *compile = &job->compile;
    uint32_t copies[MOEC_MAX_COPIES - 1];
    struct cli_numbers list = {copies, 0, MOEC_MAX_COPIES - 1};
    *compile = (struct moec_compile_options){
        .search = {.policy = policy_of(args), .measure_uniform = cli_has(args, "report")},
        .target = {.max_loss = NAN,
                   .takes_all_certificate = cli_has(args, "certificate-samples"),
                   .accept_miss = cli_has(args, "accept-miss")},
        .experts.orders_neurons = cli_has(args, "order-neurons"),
        .by.arithmetic = cli_arithmetic(args, NULL),
    };
    MOEC_TRY(cli_read_measure_options(args, &job->measure, err));
    compile->target.goes_on_by_chance = job->measure.data.goes_on_by_chance;
    MOEC_TRY(cli_fraction(args, "max-loss", &compile->target.max_loss, err));
    MOEC_TRY(cli_bytes(args, "max-size", &compile->target.max_bytes, err));
    MOEC_TRY(cli_u32(args, "bits", 1, 16, &compile->search.bits, err));
    MOEC_TRY(read_dense(args, compile, err));
    MOEC_TRY(cli_u32_list(args, "copies", allowed, &list, err));
    compile->experts.n_copy_bits = list.n;
    for (uint32_t i = 0; i < compile->experts.n_copy_bits; i++)
        compile->experts.copy_bits[i] = (uint8_t)copies[i];
    MOEC_TRY(read_confidence(args, &compile->target.confidence, err));
    if (cli_has(args, "max-size") && compile->target.max_bytes == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "option '--max-size' is 0, expected a size such as 20MB");
    if (!cli_has(args, "output") && !cli_has(args, "dry-run"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "name the bundle with -o MODEL.moec, or ask for the plan with --dry-run");
    MOEC_TRY(read_metric(job, err));
    if (compile->target.rows != NULL && cli_has(args, "time-limit") &&
        strcmp(compile->search.policy, "hull") == 0)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--time-limit works only for compiles that measure perplexity, because only their cost is "
            "known in advance: leave out either --time-limit or --metric");
    if (cli_has(args, "profile") && job->measure.data.path != NULL && compile->target.rows == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "give either --profile or --data: a profile holds its own windows; give both only "
                         "with a --metric that is measured on rows");
    if (job->measure.codes.quantizer == MOEC_QUANTIZER_AUTO && job->measure.data.path == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--quantizer auto needs data to measure on: give --data, or a --profile that was "
                         "made with --quantizer auto");
    MOEC_TRY(cli_open_place(args, compile->by.arithmetic, &job->measure.memory.place, err));
    compile->memory.place = job->measure.memory.place;
    compile->experts.quantizer = job->measure.codes.quantizer;
    compile->experts.scheme = job->measure.codes.scheme;
    compile->experts.group = job->measure.codes.group;
    compile->by.n_threads = job->measure.by.n_threads;
    compile->by.kernels = job->measure.by.kernels;
    compile->memory.work_bytes = job->measure.memory.work_bytes;
    compile->memory.spill_folder = job->measure.memory.spill_folder;
    compile->search.seed = job->measure.data.seed;
    return MOEC_OK;
}

/* Policies of moec that search without a ranking of experts, or rank them themselves. */
static bool needs_sensitivities(const struct compile_job *job)
{
    static const char *const without[] = {"hull", "uniform"};
    if (cli_has(job->args, "sensitivity"))
        return true;
    for (size_t i = 0; i < sizeof without / sizeof *without; i++)
        if (strcmp(job->compile.search.policy, without[i]) == 0)
            return false;
    return true;
}

/* What a compile is going to take, if its profile is there, or with one of these bitwidths: said where it is long or
 * asked for, and cut to --time-limit. */
static enum moec_status limit(struct compile_job *job, const uint32_t n_part[static MOEC_PART_COUNT],
                              uint32_t seq_len_tokens, struct moec_error *err)
{
    struct moec_compile_request request = {.config = moec_checkpoint_config(job->checkpoint),
                                           .options = &job->compile,
                                           .seq_len_tokens = seq_len_tokens};
    memcpy(request.n_part, n_part, sizeof request.n_part);
    if (!cli_has(job->args, "time-limit"))
        return cli_estimate_compile(&request, job->has_profile, &job->forecast, err);
    MOEC_TRY(cli_limit_compile(&job->progress, &request, job->has_profile,
                               job->measure.measures.time_limit_seconds, &job->forecast, err));
    job->compile.target.scope = job->forecast.scope;
    return MOEC_OK;
}

/* Whether a forecast is asked for, of a policy whose stages are known. */
static bool wants_forecast(const struct compile_job *job)
{
    return job->compile.search.offers_variants && !needs_sensitivities(job) &&
           job->compile.target.rows == NULL &&
           (cli_has(job->args, "dry-run") || cli_has(job->args, "time-limit"));
}

static void print_forecast(const struct compile_job *job)
{
    if (cli_has(job->args, "dry-run") && !cli_has(job->args, "json") && !job->measure.is_quiet)
        cli_print_compile_forecast(&job->forecast, job->measure.by.n_threads,
                                   moec_ranks_count(job->args->ranks));
    (void)fflush(stdout); /* long before the rest */
}

/* Before data is measured. */
static enum moec_status estimate(struct compile_job *job, const struct cli_numbers *bits,
                                 struct moec_error *err)
{
    struct moec_compile_request request = {.config = moec_checkpoint_config(job->checkpoint),
                                           .options = &job->compile,
                                           .seq_len_tokens = job->measure.data.seq_len_tokens};
    cli_default_parts(job->measure.data.parts.n_window, request.n_part);
    if (!needs_sensitivities(job) && !cli_has(job->args, "time-limit"))
        MOEC_TRY(cli_warn_long_compile(&job->progress, &request, 1, err));
    if (wants_forecast(job)) {
        MOEC_TRY(cli_count_parts(job->checkpoint, &job->measure, bits, &job->progress, request.n_part, err));
        MOEC_TRY(limit(job, request.n_part, job->measure.data.seq_len_tokens, err));
        print_forecast(job);
    }
    const struct moec_compile_forecast forecast = moec_compile_estimate(&request);
    const double measured = request.n_part[MOEC_PART_SEARCH] + request.n_part[MOEC_PART_SELECT];
    const double weights = forecast.weights / forecast.window_multiply_adds;
    cli_progress_later(&job->progress, (forecast.windows + forecast.others + weights) / measured);
    return MOEC_OK;
}

/* With the windows of a profile that is there. */
static enum moec_status estimate_profiled(struct compile_job *job, struct moec_error *err)
{
    uint32_t n_part[MOEC_PART_COUNT];
    if (!wants_forecast(job))
        return MOEC_OK;
    for (int part = 0; part < MOEC_PART_COUNT; part++)
        n_part[part] = moec_profile_part_count(&job->profile, (enum moec_part)part);
    MOEC_TRY(limit(job, n_part, job->profile.seq_len_tokens, err));
    print_forecast(job);
    return MOEC_OK;
}

static enum moec_status get_profile(struct compile_job *job, struct moec_error *err)
{
    const char *path = cli_text(job->args, "profile");
    if (path != NULL) {
        MOEC_TRY(moec_profile_read(path, cli_has(job->args, "trust-profile"), &job->profile,
                                   job->profile_digest, err));
        job->has_profile = true;
        MOEC_TRY(estimate_profiled(job, err));
    } else if (job->measure.data.path != NULL) {
        uint32_t numbers[] = {2, 3, 4, 8};
        struct cli_numbers bits = {numbers, 4, 4};
        if (!needs_sensitivities(job)) {
            /* Nor whole models, which cost a pass over all windows each, but for auto to choose by. */
            job->measure.measures.sensitivity = MOEC_SENSITIVITY_NONE;
            bits.n = job->measure.codes.quantizer == MOEC_QUANTIZER_AUTO ? bits.n : 0;
            job->measure.codes.baseline_bits =
                cli_has(job->args, "baseline") ? job->measure.codes.baseline_bits : 16;
        }
        MOEC_TRY(estimate(job, &bits, err));
        MOEC_TRY(cli_run_profile(job->checkpoint, &job->measure, &bits, &job->progress, &job->profile, err));
        job->has_profile = true;
    }
    if (!job->has_profile)
        return MOEC_OK;
    job->compile.experts.group = job->profile.group;
    if (path != NULL && cli_has(job->args, "preset") &&
        (job->profile.quantizer != MOEC_QUANTIZER_LINEAR || job->profile.scheme != MOEC_SCHEME_SYMMETRIC ||
         job->profile.group != 0))
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "--preset paper needs linear symmetric codes with one scale per "
                         "channel, but '%s' measured others: profile with --quantizer "
                         "linear --scheme symmetric --group channel, or leave out --preset",
                         path);
    return MOEC_OK;
}

/* How the search goes; who writes a policy wants to read its log. */
static void show_log(void *context, const char *line)
{
    struct compile_job *job = context;
    if (job->measure.is_verbose || strchr(job->compile.search.policy, '.') != NULL)
        cli_progress_note(&job->progress, line);
}

static void show_note(void *context, const char *line)
{
    struct compile_job *job = context;
    cli_progress_note(&job->progress, line);
}

static void show_progress(void *context, const char *phase, double done, double total)
{
    struct compile_job *job = context;
    cli_progress_show(&job->progress, phase, done, total);
}

static void expect_passes(void *context, double passes)
{
    struct compile_job *job = context;
    cli_progress_later(&job->progress, 0);
    cli_progress_expect(&job->progress, passes);
}

static bool is_cancelled(void *context)
{
    (void)context;
    return cli_interrupt_signal() != 0;
}

/* --report, also of a target that was missed, which is when it is needed most. `status` of the compile. */
static enum moec_status write_report(const struct compile_job *job, const uint8_t *model_digest,
                                     enum moec_status status, struct moec_error *err)
{
    const char *path = cli_text(job->args, "report");
    struct moec_error failed = {0};
    if (path == NULL || moec_ranks_own(job->args->ranks) != 0 ||
        (status != MOEC_OK && status != MOEC_ERR_TARGET))
        return status;
    const struct moec_compile_page page = {
        .report = &job->report,
        .options = &job->compile,
        .config = moec_checkpoint_config(job->checkpoint),
        .profile = job->has_profile ? &job->profile : NULL,
        .model_digest = model_digest,
        .failure = status == MOEC_OK ? NULL : err->message,
    };
    const enum moec_status written = moec_compile_page_write(&page, path, &failed);
    if (written == MOEC_OK)
        return status;
    if (status == MOEC_OK)
        *err = failed;
    else
        cli_print(stderr, "the report was not written: %s\n", failed.message);
    return status == MOEC_OK ? written : status;
}

static enum moec_status name_journal(const char *output, const char *suffix, char **path,
                                     struct moec_error *err)
{
    if (asprintf(path, "%s.%s", output, suffix) >= 0)
        return MOEC_OK;
    *path = NULL;
    return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: path of the journal");
}

/* A journal that the user names is never replaced, so what is no journal is refused before any work. */
static enum moec_status check_journal(const struct cli_args *args, const char *path, struct moec_error *err)
{
    struct moec_units_summary summary;
    MOEC_TRY(cli_check_output(args, "journal", path, err));
    return moec_path_exists(path) ? moec_units_look(path, &summary, err) : MOEC_OK;
}

/* Claims the bundle's name and those of the journals beside it. */
static enum moec_status claim_names(struct compile_job *job, struct moec_error *err)
{
    const char *output = cli_text(job->args, "output");
    MOEC_TRY(moec_claim_take(&job->claim, output, err));
    if (job->journal != NULL)
        MOEC_TRY(cli_check_output(job->args, "output", job->journal, err));
    return cli_check_output(job->args, "output", job->profile_journal, err);
}

/* The journals beside the bundle, or the one that the user names. Of several ranks the first one alone writes. */
static enum moec_status claim_output(struct compile_job *job, struct moec_error *err)
{
    const char *journal = cli_text(job->args, "journal");
    const bool writes = moec_ranks_own(job->args->ranks) == 0;
    job->compile.by.ranks = job->args->ranks;
    job->compile.journal.path = journal;
    job->compile.journal.stays = journal != NULL;
    if (journal != NULL && writes)
        MOEC_TRY(check_journal(job->args, journal, err));
    if (writes && cli_has(job->args, "report"))
        MOEC_TRY(moec_claim_take(&job->report_claim, cli_text(job->args, "report"), err));
    if (cli_has(job->args, "dry-run"))
        return MOEC_OK;
    if (journal == NULL) {
        MOEC_TRY(name_journal(cli_text(job->args, "output"), "journal", &job->journal, err));
        job->compile.journal.path = job->journal;
    }
    MOEC_TRY(name_journal(cli_text(job->args, "output"), "profile.journal", &job->profile_journal, err));
    job->measure.journal.path = job->profile_journal;
    job->measure.journal.mode = MOEC_UNITS_AUTO;
    return writes ? claim_names(job, err) : MOEC_OK;
}

static uint64_t count_kept(const char *journal)
{
    struct moec_units_summary summary;
    return journal != NULL && moec_units_look(journal, &summary, NULL) == MOEC_OK ? summary.n_unit : 0;
}

/* The journals: nobody needs them once the bundle is written, and who failed is told of them. */
static void leave_journals(struct compile_job *job, enum moec_status status)
{
    const uint64_t n_kept = count_kept(job->journal), n_profile = count_kept(job->profile_journal);
    if (status == MOEC_OK && job->report.is_written && n_profile > 0)
        (void)unlink(job->profile_journal);
    if (status != MOEC_OK && n_kept + n_profile > 0)
        cli_print(
            stderr,
            "%" PRIu64
            " units of work are kept in '%s': a compile of the same model, data and output continues from "
            "this file, also with another target or policy; delete the file if you will not compile again\n",
            n_kept + n_profile, n_kept > 0 ? job->journal : job->profile_journal);
    free(job->journal);
    free(job->profile_journal);
}

/* Sampling is of who runs the model: a bundle has none of it, and who expects it must hear so. */
static void say_sampling(const struct compile_job *job)
{
    const char *sampling = moec_checkpoint_sampling(job->checkpoint);
    if (sampling[0] != '\0' && !job->measure.is_quiet)
        cli_print(
            stderr,
            "moec compile: note: the model's generation_config.json recommends sampling (%s), but bundles "
            "do not store this: moec run is greedy unless you give options of sampling (--temp, --top-k, "
            "--top-p, --min-p, --typical-p)\n",
            sampling);
}

/* The longest text that the model is measured on before it is written, but for a profile's. */
static uint32_t measured_tokens(const struct compile_job *job)
{
    if (job->measure.data.path == NULL)
        return 0;
    if (job->compile.target.rows == NULL)
        return job->measure.data.seq_len_tokens;
    return job->rows.n_context > 0 ? job->rows.n_context : MOEC_CONTINUATION_CONTEXT;
}

/* A size that no bundle has is refused before data is read. */
static enum moec_status check_size(const struct compile_job *job, struct moec_error *err)
{
    struct moec_compile_least least;
    char dense[96] = "all other weights add to this";
    if (job->compile.target.max_bytes == 0)
        return MOEC_OK;
    MOEC_TRY(moec_compile_find_least(job->checkpoint, job->has_profile ? &job->profile : NULL, &job->compile,
                                     &least, err));
    if (job->compile.target.max_bytes >= least.least_bytes)
        return MOEC_OK;
    if (least.dense_bytes > 0)
        (void)snprintf(dense, sizeof dense, "all other weights need at least %" PRIu64 " bytes more",
                       least.dense_bytes);
    return moec_fail(err, MOEC_ERR_TARGET,
                     "--max-size is %" PRIu64 " bytes, but in every bundle of this model "
                     "the experts alone take %" PRIu64 " bytes or more (all in %s codes); %s",
                     job->compile.target.max_bytes, least.least_bytes, least.codes, dense);
}

/* Of --order-neurons, where it would change nothing. */
static enum moec_status check_order(const struct compile_job *job, struct moec_error *err)
{
    if (!job->compile.experts.orders_neurons)
        return MOEC_OK;
    if (!cli_has(job->args, "profile") && job->measure.data.path == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--order-neurons needs data that shows which neurons "
                         "are active together: give --data or --profile");
    return moec_compile_order_check(moec_checkpoint_config(job->checkpoint), job->compile.experts.group, err);
}

/* Ranks choose alike only from the same model, */
static enum moec_status compare_models(const struct compile_job *job, struct moec_error *err)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    if (job->args->ranks == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_checkpoint_digest(job->checkpoint, NULL, NULL, digest, err));
    return moec_ranks_same(job->args->ranks, "another checkpoint", digest, sizeof digest, err);
}

/* and the same measurements; how much is cut to a time, the first one says. */
static enum moec_status compare_measured(struct compile_job *job, struct moec_error *err)
{
    struct moec_ranks *ranks = job->args->ranks;
    const struct moec_profile *profile = &job->profile;
    uint8_t measured[MOEC_SHA256_BYTES] = {0};
    struct moec_sha256 sha;
    if (job->has_profile) {
        moec_sha256_init(&sha);
        moec_sha256_update(&sha, profile->window_index, profile->n_drawn * sizeof *profile->window_index);
        moec_sha256_update(&sha, profile->reference.nll, profile->n_window * sizeof(double));
        moec_sha256_finish(&sha, measured);
    }
    MOEC_TRY(moec_ranks_same(ranks, "another profile, or other data,", measured, sizeof measured, err));
    return moec_ranks_spread(ranks, 0, &job->compile.target.scope, sizeof job->compile.target.scope, err);
}

static enum moec_status compile(struct compile_job *job, struct moec_error *err)
{
    MOEC_TRY(read_compile_options(job, err));
    MOEC_TRY(cli_check_policy("policies", job->compile.search.policy, moec_policy_check, err));
    cli_progress_init(&job->progress, "compile", NULL, job->measure.is_quiet);
    job->progress.ranks = job->args->ranks;
    job->progress.is_verbose = job->measure.is_verbose;
    if (job->measure.is_verbose)
        cli_phases_start(&job->phases, &job->progress);
    MOEC_TRY(claim_output(job, err));
    MOEC_TRY(moec_checkpoint_open(job->args->positional[0], &job->checkpoint, err));
    cli_say_checkpoint(&job->progress, job->checkpoint);
    MOEC_TRY(compare_models(job, err));
    moec_checkpoint_choose_rope(job->checkpoint, measured_tokens(job));
    MOEC_TRY(moec_model_check(job->checkpoint, job->measure.data.path != NULL, err));
    MOEC_TRY(check_order(job, err));
    if (cli_has(job->args, "profile")) /* which may have measured smaller codes */
        MOEC_TRY(get_profile(job, err));
    MOEC_TRY(check_size(job, err));
    say_sampling(job);
    if (!job->has_profile)
        MOEC_TRY(get_profile(job, err));
    if (job->has_profile) /* the bundle keeps the angles that it was measured with */
        moec_checkpoint_choose_rope(job->checkpoint, job->profile.seq_len_tokens);
    /* The digest is read at once and cannot be stopped: until it is there a signal ends the program as usual.
     */
    uint8_t digest[MOEC_SHA256_BYTES];
    MOEC_TRY(moec_checkpoint_digest(job->checkpoint, NULL, NULL, digest, err));
    MOEC_TRY(compare_measured(job, err));
    cli_interrupt_catch();
    spell_options(job);
    char source_name[256];
    cli_base_name(moec_checkpoint_folder(job->checkpoint), source_name, sizeof source_name);
    job->compile.source.options = job->options_text;
    job->compile.source.model = source_name;
    struct moec_compile_hooks hooks = {.log = show_log,
                                       .note = show_note,
                                       .progress = show_progress,
                                       .expect = expect_passes,
                                       .cancelled = is_cancelled,
                                       .context = job};
    double start = cli_seconds();
    enum moec_status status =
        moec_compile(&(struct moec_compile_inputs){job->checkpoint, job->has_profile ? &job->profile : NULL,
                                                   job->profile_digest},
                     &job->compile, &hooks,
                     cli_has(job->args, "dry-run") ? NULL : cli_text(job->args, "output"), &job->report, err);
    job->seconds = cli_seconds() - start;
    if (status == MOEC_OK)
        status = cli_phases_share(&job->phases, job->args->ranks, err);
    cli_phases_finish(&job->phases, &job->progress, job->measure.by.kernels, job->measure.by.n_threads);
    cli_progress_end(&job->progress);
    return write_report(job, digest, status, err);
}

static enum moec_status print_result(const struct compile_job *job, struct moec_error *err)
{
    const struct cli_compile_result result = {
        .report = &job->report,
        .options = &job->compile,
        .config = moec_checkpoint_config(job->checkpoint),
        .phases = &job->phases,
        .paths = {.bundle = cli_text(job->args, "output"), .page = cli_text(job->args, "report")},
        .seconds = job->seconds,
        .forecast = job->forecast.counted.all > 0 ? &job->forecast : NULL,
        .is_quiet = job->measure.is_quiet};
    if (cli_has(job->args, "json"))
        return cli_print_compile_json(&result, err);
    cli_print_compile(&result);
    return MOEC_OK;
}

static int run_compile(const struct cli_args *args)
{
    struct cli_args filled = *args;
    struct compile_job job = {.args = &filled};
    struct moec_error err = {0};
    enum moec_status status = cli_compile_preset(&filled, &err);
    if (status == MOEC_OK)
        status = cli_compile_check_used(args, policy_of(&filled), &err);
    if (status == MOEC_OK)
        status = compile(&job, &err);
    if (status == MOEC_OK)
        status = print_result(&job, &err);
    if (status == MOEC_OK && job.report.warning[0] != '\0')
        cli_print(stderr, "moec compile: WARNING: %s\n", job.report.warning);
    cli_progress_end(&job.progress);
    const int result = status == MOEC_OK ? CLI_OK : cli_interrupt_fail(args, &err);
    leave_journals(&job, status);
    moec_claim_release(&job.claim);
    moec_claim_release(&job.report_claim);
    moec_compile_report_release(&job.report);
    cli_phases_release(&job.phases);
    moec_profile_release(&job.profile);
    moec_checkpoint_close(job.checkpoint);
    moec_gpu_place_free(job.measure.memory.place);
    return result;
}

const struct cli_command cli_command_compile = {
    .name = "compile",
    .model = CLI_CHECKPOINT,
    .summary = "find and write the smallest bundle of a model within a loss",
    .usage = "MODEL",
    .about = "Finds the smallest bundle of MODEL, a Hugging Face folder or GGUF file, whose loss stays "
             "within --max-loss. Half of the text's windows only prove the loss: compile tests plans (bits "
             "for all weights) on them, from the safest to the smallest, and writes the last plan that "
             "passes. If none passes, it writes nothing and the exit status is 1.",
    .details =
        "--verbose ends with a table of phases: what each phase computed, and what limited its speed. "
        "--json then has this table too.\n"
        "With --metric rouge-2, or another metric of the task, --max-loss limits the loss of that "
        "metric. compile measures it by generating text, or scoring choices, for rows of --data, which "
        "need not be the profile's data.\n"
        "--max-size limits the size of the bundle, with --max-loss or instead of it. If --max-size is "
        "given alone, any loss is accepted; a warning says if the upper end of the loss is above 10%. "
        "Without --profile, compile first profiles --data. Policy uniform needs neither profile nor "
        "data.\n"
        "--dense-bits applies to attention, embedding, head, shared experts and dense MLPs. auto tries "
        "every bitwidth, and takes the one with the smallest bundle within --max-loss.\n"
        "--report shows every measurement of the search as a curve of size against loss, compared with "
        "uniform bits (all experts at 2, 3, 4 or 8 bits, which may take up to four more evaluations). "
        "The page also has the size of each part of the bundle, the bits of every expert, the tests of "
        "the certificate, and all settings. The page is also written if the target is missed.\n"
        "A policy may give each projection of an expert its own bitwidth; lua/README.md tells how.\n"
        "While a compile runs, its lock .MODEL.moec.moec-lock beside the bundle keeps a second compile "
        "with the same output from starting.",
    .examples = "moec compile MODEL --data mytext.txt --max-loss 2% -o model.moec\n"
                "moec compile MODEL --policy uniform --bits 4 -o int4.moec",
    .more_examples = "moec compile MODEL --profile profile.h5 --max-loss 5% --dry-run --report report.html\n"
                     "moec compile MODEL --profile profile.h5 --max-loss 2% --max-size 20MB --policy "
                     "marginal -o model.moec\n"
                     "moec compile MODEL --profile profile.h5 --max-loss 2% --dense-bits auto -o model.moec\n"
                     "moec compile SWITCH --profile samsum.h5 --metric rouge-2 --task samsum --data "
                     "train.csv --max-loss 2% -o model.moec",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_compile,
    .is_offline = true,
    .shares_work = true,
};
