/* What is searched narrows from --with by the bundle's plan and its low copies. Each drops what only the
 * default asked for, and refuses what was named. A plan and decisions are written through a file beside the
 * output, so that nothing has its name before both are there. The bundle is closed before that, as it may be
 * the output. A checkpoint's words go to moec fit. */
#include "cli/options/inputs.h"
#include "cli/options/outputs.h"
#include "cli/output/decisions_output.h"
#include "cli/output/sequence_output.h"
#include "cli/output/sparsity_output.h"
#include "cli/print/print.h"
#include "cli/settings/device_options.h"
#include "cli/settings/lua_policy.h"
#include "cli/settings/original.h"
#include "cli/settings/route_options.h"
#include "cli/settings/trial_options.h"
#include "cli/terminal/data_note.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "compiler/policy/decision_policy.h"
#include "compiler/sparsify/sparsify_table.h"
#include "compiler/tune/tune.h"
#include "formats/base/memory.h"
#include "formats/bundle/bundle_fit.h"
#include "formats/bundle/bundle_sparsity.h"
#include "profiler/bench/bench_tokens.h"
#include "runtime/experts/low_copy.h"
#include "runtime/forward/moe/sparsity.h"
#include "runtime/policy/decide/route.h"
#include "runtime/policy/decide/route_settings.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REPLAYED_TOKENS 8192u /* generated ones, of which the bytes that a run reads are told */
#define LEAST_SAMPLES   16u   /* of windows that are as long as asked; else of shorter ones */
#define LEAST_LENGTH    16u   /* tokens of those */

static const struct cli_option options[] = {
    CLI_DATA_OPTIONS,
    {"profile", 0, "PROFILE.h5", NULL,
     "With a checkpoint: its measurements, from moec profile, instead of --data.",
     CLI_INPUT | CLI_RARE | CLI_OF_LOSS},
    {"reference", 0, "MODEL", NULL,
     "The checkpoint from which the bundle was compiled, to measure losses against.",
     CLI_INPUT | CLI_OF_LOSS},
    {"max-loss", 0, "LOSS", NULL, "Largest loss of bits and settings, such as 2%.", CLI_OF_LOSS},
    {"with", 0, CLI_LIST, "route|rank|skip|precision|prefill|sparsity",
     "Settings to search (default: route,skip; also precision if moec compile --copies made low "
     "copies):\n"
     "route\tcache-prior: prefer experts in the cache\n"
     "skip\tskip cache misses of little weight\n"
     "precision\thobbit: experts of little weight in a low copy; fate: those that the layer before "
     "did not predict\n"
     "prefill\tunpopular: a prompt's rarest experts in a low copy\n"
     "sparsity\tleave out neurons; not with low copies" CLI_RESEARCH
     "rank\tmax-rank instead of route: prefers cached experts among the router's best",
     CLI_OF_LOSS},
    {"policy", 0, "POLICY", NULL,
     "Your own search, a Lua file, instead of tune's. Or prior, a built-in search for the strongest "
     "preference for cached experts (route cache-prior) within the loss. --with names the settings that "
     "it may use. The result is certified in the same way.",
     CLI_RARE | CLI_OF_LOSS},
    {"block-tokens", 0, "L", NULL,
     "With prefill: how many tokens a block has (default 512). Give at least as many as a chunk of "
     "a prompt has.",
     CLI_RARE | CLI_OF_DECISIONS},
    {"decide", 0, "WHEN", "all|decode",
     "For which tokens the settings decide, in the proof and later in runs:\n"
     "all\tfor all tokens (default with prefill or a plan alone)\n"
     "decode\tonly for generated tokens, not for a prompt's (default otherwise)",
     CLI_RARE | CLI_OF_DECISIONS},
    {"prompt-tokens", 0, "P", NULL,
     "How many tokens at the start of each window count as a prompt (default: with prefill alone "
     "all, else half). With --decide all, give this option only if precision or prefill is searched.",
     CLI_RARE | CLI_OF_DECISIONS},
    {"slots", 0, "N|PERCENT", NULL,
     "Experts of each layer that the logical cache holds (default " MOEC_ROUTE_SLOTS
     "): about as many as memory will hold.",
     CLI_OF_DECISIONS},
    {"low-slots", 0, "N|PERCENT", NULL,
     "With precision or prefill: how many low copies of each layer the logical cache holds too "
     "(default " MOEC_ROUTE_LOW_SLOTS ").",
     CLI_RARE | CLI_OF_DECISIONS},
    {"low-bits", 0, "B", NULL,
     "With precision or prefill: bitwidth of the low copies (default: the smallest that the bundle "
     "has).",
     CLI_RARE | CLI_OF_DECISIONS},
    {"device-file", 0, "DEVICE.json", NULL,
     "With precision: a file of moec device. fate then predicts at most as many experts as this "
     "device reads while it computes a layer (default: a quarter of a layer's experts).",
     CLI_INPUT | CLI_RARE | CLI_OF_DECISIONS},
    {"keep-top", 0, "J", NULL,
     "With route or rank: a token always takes the router's J best experts (default 0).",
     CLI_RARE | CLI_OF_DECISIONS},
    {"cache-start", 0, "HOW", "empty|frequency",
     "What the logical cache holds at first:\n"
     "empty\tnothing (default)\n"
     "frequency\tthe experts that the bundle's profile used most",
     CLI_RARE | CLI_OF_DECISIONS},
    {"confidence", 0, "C", NULL,
     "Confidence of the interval whose upper end must be within --max-loss (default 0.95).",
     CLI_RARE | CLI_OF_LOSS},
    CLI_CERTIFIED_ARITHMETIC_OPTION(CLI_RARE),
    CLI_SAMPLES_OPTIONS,
    {"trust-profile", 0, NULL, NULL,
     "Use a profile that another program has changed, although its checksum no longer matches.", CLI_RARE},
    {"output", 'o', "OUT.moec", NULL,
     "The bundle with settings (default: MODEL.moec itself, which needs --force).",
     CLI_OUTPUT | CLI_IN_PLACE | CLI_OF_OUTPUT},
    {"accept-slower", 0, NULL, NULL,
     "Write the settings even if a token reads no fewer bytes with them than without them.",
     CLI_RARE | CLI_OF_LOSS},
    {"json", 0, NULL, NULL, "Print the result as JSON.", CLI_OF_OUTPUT},
    CLI_OFFLINE_DEVICE_OPTIONS(CLI_RARE),
    CLI_ANYWAY_OPTION,
    CLI_MACHINE_OPTIONS,
    {0},
};

struct tune_job {
    const struct cli_args *args;
    struct {
        struct cli_measure_options measure;
        struct moec_tune_options tune;
    } options;
    struct {
        struct moec_source bundle, original;
        const struct moec_config *config; /* of the bundle */
        struct moec_sparsity *sparsity;   /* by the bundle's plan; NULL = it has none */
    } models;
    struct {
        struct moec_device device;    /* of --device-file, owned */
        struct moec_work_memory work; /* batches that a device has room for */
    } on;
    struct cli_part_windows data;
    struct {
        const char *path;
        struct moec_sparsity_table table; /* where the bundle gets a plan */
        char *staging; /* owned: a file beside the output while a plan and decisions are written; or NULL */
    } written;
    struct {
        struct moec_tune_report report;
        /* What a run reads in a buffer of buffer_bytes, which has room for the slots: with the settings, and
         * before them where there is a bundle without; NaN where no replay tells. */
        double read_bytes, before_bytes;
        uint64_t buffer_bytes;
        struct moec_bench_tokens samples; /* that were replayed, owned */
    } found;
    struct cli_progress progress;
};

static void begin_progress(struct tune_job *job)
{
    const char *policy = job->options.tune.policy;
    cli_progress_init(&job->progress, "tune", NULL, job->options.measure.is_quiet);
    job->progress.is_verbose = job->options.measure.is_verbose;
    /* Who writes a policy wants to read its log. */
    job->progress.has_notes = policy != NULL && strchr(policy, '.') != NULL;
}

/* ---- inputs ---- */

/* What a bundle needs, and what means nothing to it. */
static enum moec_status check_bundle(const struct tune_job *job, struct moec_error *err)
{
    static const char *const idle[] = {"profile", "trust-profile"};
    if (job->options.measure.data.path == NULL)
        return moec_fail(err, MOEC_ERR_USAGE, "nothing to measure on: give --data FILE");
    MOEC_TRY(cli_need_reference(job->args, err));
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        if (cli_has(job->args, idle[i]))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--%s applies only to a checkpoint, whose bits are "
                             "searched, but '%s' is a bundle: leave the option out",
                             idle[i], job->args->positional[0]);
    return MOEC_OK;
}

static enum moec_status read_options(struct tune_job *job, struct moec_error *err)
{
    const struct cli_args *args = job->args;
    MOEC_TRY(cli_read_measure_options(args, &job->options.measure, err));
    job->options.tune.trial = cli_trial_options(&job->options.measure);
    MOEC_TRY(check_bundle(job, err));
    job->options.tune.policy = cli_text(args, "policy");
    job->options.tune.seed = job->options.measure.data.seed;
    if (job->options.tune.policy != NULL)
        MOEC_TRY(cli_check_policy("decisions", job->options.tune.policy, moec_decision_policy_check, err));
    if (!cli_has(args, "max-loss"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "no loss target: give the total loss allowed with --max-loss, such as 2%%");
    MOEC_TRY(cli_fraction(args, "max-loss", &job->options.tune.trial.max_loss, err));
    return cli_double(args, "confidence", 0.5001, 0.9999, &job->options.tune.trial.confidence, err);
}

static bool takes_low(const struct tune_job *job)
{
    return job->options.tune.with_precision || job->options.tune.with_prefill;
}

/* Whether some precision changes something: by weights, or by what is foreseen. */
static bool has_precision(const struct moec_config *config)
{
    static const struct moec_precision fate = {.kind = MOEC_PRECISION_FATE, .width = 1};
    return config->top_k > 1 || moec_precision_check(&fate, config, &(struct moec_error){0}) == MOEC_OK;
}

/* The bundle's copy that would be the low one. Without --with, a bundle that has none is searched without. */
static enum moec_status read_low(struct tune_job *job, struct moec_error *err)
{
    struct moec_decision_settings *shared = &job->options.tune.shared;
    const struct moec_bundle *bundle = job->models.bundle.bundle;
    const char *slots = cli_text(job->args, "low-slots");
    uint32_t low = 0;
    const bool is_asked = cli_has(job->args, "with") || slots != NULL || shared->low_bits > 0;
    struct moec_error ignored = {0};
    const enum moec_status found =
        moec_low_copy_find(bundle, 0, shared->low_bits, &low, is_asked ? err : &ignored);
    if (found != MOEC_OK || !has_precision(&bundle->config))
        job->options.tune.with_precision = false;
    if (found != MOEC_OK || !takes_low(job)) {
        job->options.tune.with_prefill = false;
        return is_asked && found != MOEC_OK ? found : MOEC_OK;
    }
    shared->low_bits = bundle->copy_bits[low];
    MOEC_TRY(moec_route_read_slots(slots != NULL ? slots : MOEC_ROUTE_LOW_SLOTS, &bundle->config,
                                   &shared->n_low_slots, err));
    return moec_source_serve_low(&job->models.bundle, shared->low_bits, err);
}

/* Times of moec fit are those of its own settings. */
static enum moec_status check_fit(const struct moec_bundle *bundle, struct moec_error *err)
{
    struct moec_bundle_fit fit;
    MOEC_TRY(moec_bundle_load_fit(bundle, &fit, err));
    if (!moec_bundle_fit_is_there(&fit))
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "moec fit made '%s' for one device and has already chosen its settings: run moec fit again for "
        "another device, or tune a bundle of moec compile",
        bundle->file.path);
}

/* A bundle that leaves out neurons does so in every candidate, and takes its experts in one precision. */
static enum moec_status use_plan(struct tune_job *job, struct moec_error *err)
{
    struct moec_certificate certificate = job->models.bundle.bundle->certificate;
    MOEC_TRY(check_fit(job->models.bundle.bundle, err));
    MOEC_TRY(moec_sparsity_open_planned(job->models.bundle.bundle, &job->models.sparsity, &certificate, err));
    job->options.tune.trial.sparsity = job->models.sparsity;
    job->options.tune.trial.arithmetic = cli_arithmetic(job->args, &certificate);
    if (job->models.sparsity != NULL && job->options.tune.with_sparsity)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the bundle '%s' already has a sparsity plan, which stays in use: leave sparsity "
                         "out of --with, or tune the bundle from before it got the plan",
                         job->models.bundle.path);
    if (job->models.sparsity == NULL || !takes_low(job))
        return MOEC_OK;
    if (cli_has(job->args, "with") || cli_has(job->args, "low-slots") || cli_has(job->args, "low-bits"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "low-precision copies of experts do not work with the sparsity plan of the "
                         "bundle '%s', which holds only for the compiled assignment: search --with route, "
                         "or tune the bundle from before moec sparsify --max-loss",
                         job->models.bundle.path);
    job->options.tune.with_precision = job->options.tune.with_prefill = false;
    return MOEC_OK;
}

/* Which tokens are a prompt's; it makes a difference with a prefill, and where prompts are left out. */
static enum moec_status read_prompt(struct tune_job *job, struct moec_error *err)
{
    const uint32_t n = job->options.measure.data.seq_len_tokens;
    const bool is_alone = !moec_tune_has_routes(&job->options.tune) && !job->options.tune.with_precision;
    const bool is_given = cli_has(job->args, "prompt-tokens");
    job->options.tune.block_tokens = MOEC_PREFILL_TOKENS;
    const bool leaves_out = job->options.tune.shared.decode_only;
    const bool has_prompts = takes_low(job) || leaves_out;
    if (!job->options.tune.with_prefill && cli_has(job->args, "block-tokens"))
        return moec_fail(err, MOEC_ERR_USAGE, "--block-tokens does nothing without --with prefill");
    if (!has_prompts && is_given)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--prompt-tokens has no effect if prompts and generated tokens are decided alike: leave it out, "
            "or give --decide decode, or search --with precision or prefill");
    if (!has_prompts)
        return MOEC_OK;
    MOEC_TRY(cli_u32(job->args, "block-tokens", 1, MOEC_MAX_POSITIONS, &job->options.tune.block_tokens, err));
    if (moec_prefill_window(job->models.config) == 0)
        return MOEC_OK;
    job->options.tune.trial.n_prompt = is_alone ? n : n / 2;
    MOEC_TRY(cli_u32(job->args, "prompt-tokens", 1, leaves_out ? n - 1 : n, &job->options.tune.trial.n_prompt,
                     err));
    if (!job->options.tune.with_prefill || job->models.bundle.bundle->paths.n_layer > 0 ||
        job->options.tune.block_tokens < job->options.tune.trial.n_prompt)
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "the bundle '%s' does not record how often calibration used each expert, so moec cannot tell "
        "which experts are unpopular in the first %" PRIu32 " tokens of a prompt. Compile the model with "
        "--profile, or give --block-tokens less than the prompt's %" PRIu32 " tokens",
        job->models.bundle.path, job->options.tune.block_tokens, job->options.tune.trial.n_prompt);
}

/* What is searched. */
static enum moec_status read_with(struct tune_job *job, struct moec_error *err)
{
    const char *with = cli_has(job->args, "with") ? cli_text(job->args, "with") : "route,skip,precision";
    struct moec_tune_options *tune = &job->options.tune;
    tune->with_route = strstr(with, "route") != NULL;
    tune->with_rank = strstr(with, "rank") != NULL;
    tune->with_skip = strstr(with, "skip") != NULL;
    tune->with_precision = strstr(with, "precision") != NULL;
    tune->with_prefill = strstr(with, "prefill") != NULL;
    tune->with_sparsity = strstr(with, "sparsity") != NULL;
    if (tune->with_route && tune->with_rank)
        return moec_fail(err, MOEC_ERR_USAGE, "--with %s has both route and rank, expected only one of them",
                         with);
    if (tune->with_sparsity && takes_low(job))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--with %s combines low-precision copies of experts (precision or prefill) with "
                         "sparsity, but a sparsity plan holds only for the compiled assignment: leave "
                         "out one of the two",
                         with);
    if (tune->with_sparsity)
        MOEC_TRY(moec_sparsity_check_config(job->models.config, err));
    if (!takes_low(job) && (cli_has(job->args, "low-slots") || cli_has(job->args, "low-bits")))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--low-slots and --low-bits apply only to precision and prefill, but --with is "
                         "%s: leave them out",
                         with);
    if (tune->shared.decode_only && tune->with_prefill)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--decide decode leaves out prompts, but prefill in --with "
                         "%s applies only to prompts: leave out one of the two",
                         with);
    if (tune->shared.decode_only && !moec_tune_has_routes(tune) && !tune->with_precision)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--decide decode applies only with --with route, rank, skip or precision, but --with is "
            "%s: leave out --decide",
            with);
    if (!moec_tune_has_routes(tune) && cli_has(job->args, "keep-top"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--keep-top applies only to route, rank and skip, but --with is %s: leave the "
                         "option out",
                         with);
    return MOEC_OK;
}

/* Of what candidates share, what none of them could have is refused before anything is measured. */
static enum moec_status check_shared(const struct tune_job *job, struct moec_error *err)
{
    const struct moec_tune_options *tune = &job->options.tune;
    struct moec_decision_settings settings = tune->shared;
    struct moec_route route;
    if (tune->with_rank)
        (void)snprintf(settings.route, sizeof settings.route, "max-rank:%" PRIu32,
                       job->models.config->top_k + 1);
    else if (tune->with_route)
        (void)snprintf(settings.route, sizeof settings.route, "cache-prior:0.1");
    else if (tune->with_skip)
        (void)snprintf(settings.route, sizeof settings.route, "top-k:skip:0.1");
    if (tune->with_precision)
        (void)snprintf(settings.precision, sizeof settings.precision, "%s",
                       job->models.config->top_k > 1 ? "hobbit" : "fate:1");
    if (tune->with_prefill)
        (void)snprintf(settings.prefill, sizeof settings.prefill, "unpopular");
    return moec_route_from_settings(&settings, job->models.config, &job->models.bundle.bundle->paths,
                                    job->args->positional[0], &route, err);
}

/* What limits the experts that are foreseen. */
static enum moec_status read_device_file(struct tune_job *job, struct moec_error *err)
{
    const char *path = cli_text(job->args, "device-file");
    if (path == NULL)
        return MOEC_OK;
    if (!job->options.tune.with_precision)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--device-file serves only '--with precision': add that option, or remove --device-file. Precision "
            "needs a bundle with low-precision copies of experts (moec compile --copies)");
    MOEC_TRY(moec_device_load(path, &job->on.device, err));
    job->options.tune.device = &job->on.device;
    bool is_same = job->on.device.n_layer == job->models.config->n_layer;
    for (uint32_t layer = 0; is_same && layer < job->models.config->n_layer; layer++)
        is_same = job->on.device.layers[layer].is_moe == moec_config_is_moe(job->models.config, layer);
    if (is_same)
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "the device file '%s' was made for a model whose MoE layers differ from those of '%s': make one for "
        "this model with moec device",
        path, job->args->positional[0]);
}

/* Where nobody says whose experts are decided: a prompt reads nearly all experts of a layer whatever it is
 * given, so deciding about it costs loss and saves little. */
static bool decides_generated(const struct moec_tune_options *tune, const struct moec_config *config)
{
    return moec_prefill_window(config) > 0 && !tune->with_prefill &&
           (moec_tune_has_routes(tune) || tune->with_precision);
}

static enum moec_status read_settings(struct tune_job *job, struct moec_error *err)
{
    const struct cli_args *args = job->args;
    const char *slots = cli_has(args, "slots") ? cli_text(args, "slots") : MOEC_ROUTE_SLOTS;
    const char *start = cli_text(args, "cache-start");
    struct moec_decision_settings *shared = &job->options.tune.shared;
    shared->decode_only = cli_has(args, "decide") && strcmp(cli_text(args, "decide"), "decode") == 0;
    MOEC_TRY(read_with(job, err));
    if (!cli_has(args, "decide"))
        shared->decode_only = decides_generated(&job->options.tune, job->models.config);
    MOEC_TRY(moec_route_read_slots(slots, job->models.config, &shared->n_slots, err));
    MOEC_TRY(cli_u32(args, "keep-top", 0, MOEC_MAX_TOP_K, &shared->keep_top, err));
    MOEC_TRY(cli_u32(args, "low-bits", 1, 16, &shared->low_bits, err));
    shared->starts_frequent = start != NULL && strcmp(start, "frequency") == 0;
    MOEC_TRY(use_plan(job, err));
    if (takes_low(job))
        MOEC_TRY(read_low(job, err));
    MOEC_TRY(read_device_file(job, err));
    MOEC_TRY(check_shared(job, err));
    return read_prompt(job, err);
}

static enum moec_status offload(struct tune_job *job, struct moec_source *source, struct moec_error *err)
{
    return job->options.measure.memory.place != NULL
               ? moec_source_offload(source, job->options.measure.memory.place, err)
               : MOEC_OK;
}

static enum moec_status open_source(struct tune_job *job, const char *path, struct moec_source *source,
                                    struct moec_error *err)
{
    const struct cli_measure_options *measure = &job->options.measure;
    return moec_source_open(path, measure->memory.work_bytes, measure->by.n_threads,
                            measure->data.seq_len_tokens, source, err);
}

/* The bundle that is tuned, the original, and the windows. */
static enum moec_status open_bundle(struct tune_job *job, struct moec_error *err)
{
    MOEC_TRY(open_source(job, job->args->positional[0], &job->models.bundle, err));
    job->models.config = job->models.bundle.config;
    MOEC_TRY(read_settings(job, err));
    MOEC_TRY(cli_use_arithmetic(job->options.measure.memory.place, job->options.tune.trial.arithmetic, err));
    MOEC_TRY(cli_open_original(&job->options.measure, &job->models.bundle, cli_text(job->args, "reference"),
                               &job->models.original, err));
    MOEC_TRY(offload(job, &job->models.bundle, err));
    MOEC_TRY(offload(job, &job->models.original, err));
    MOEC_TRY(cli_part_windows_make(&job->options.measure, &job->models.bundle, "tune", &job->data, err));
    cli_note_data(&job->progress, &job->data.rows);
    return MOEC_OK;
}

/* ---- result ---- */

static struct moec_json_out *json_candidate(const struct moec_tune_candidate *candidate)
{
    struct moec_json_out *node = moec_json_out_object();
    cli_json_settings(node, &candidate->settings);
    moec_json_out_double(node, "left_out", candidate->share * 1e-3);
    cli_json_loss(node, &candidate->search);
    moec_json_out_double(node, "missed_share", moec_decision_missed_share(&candidate->traffic));
    moec_json_out_double(node, "missed_bytes_per_token", candidate->traffic.token_bytes);
    moec_json_out_double(node, "computed_share", candidate->kept_share);
    moec_json_out_bool(node, "on_front", candidate->is_on_front);
    return node;
}

static enum moec_status print_json(const struct tune_job *job, struct moec_error *err)
{
    const struct moec_tune_report *report = &job->found.report;
    struct moec_json_out *root = moec_json_out_object(), *list = moec_json_out_array(),
                         *tests = moec_json_out_array();
    moec_json_out_string(root, "file", job->written.path);
    if (moec_decision_settings_are_on(&report->decisions.settings))
        moec_json_out_node(root, "decisions", cli_json_decisions(&report->decisions));
    else
        moec_json_out_null(root, "decisions");
    if (report->plan.n_layer > 0)
        moec_json_out_node(root, "plan", cli_json_plan(&report->plan));
    else
        moec_json_out_null(root, "plan");
    moec_json_out_double(root, "read_bytes_per_token", report->after.read_bytes);
    moec_json_out_double(root, "read_bytes_per_token_before", report->before.read_bytes);
    if (!isnan(job->found.read_bytes)) {
        moec_json_out_double(root, "run_read_bytes_per_token", job->found.read_bytes);
        moec_json_out_u64(root, "run_buffer_bytes", job->found.buffer_bytes);
        moec_json_out_u64(root, "run_samples", job->found.samples.n_sample);
        moec_json_out_u64(root, "run_prompt_tokens", job->found.samples.prompt_tokens);
        moec_json_out_u64(root, "run_tokens", job->found.samples.n_tokens);
    }
    moec_json_out_double(root, "computed_share", report->after.computed_share);
    moec_json_out_bool(root, "bundle_certified_on_same_windows", report->is_reused);
    moec_json_out_node(root, "without", json_candidate(&report->plain[0]));
    for (uint32_t i = 0; i < report->n_candidate; i++)
        moec_json_out_node(list, NULL, json_candidate(&report->candidates[i]));
    moec_json_out_node(root, "candidates", list);
    for (uint32_t i = 0; i < report->n_sequence; i++)
        moec_json_out_u64(tests, NULL, report->sequence[i]);
    moec_json_out_node(root, "sequence", tests);
    return cli_print_json(root, err);
}

/* What a run reads in a buffer that has room for the slots, else what the search part says of both. */
static void print_costs(const struct tune_job *job)
{
    const struct moec_tune_cost before = job->found.report.before, after = job->found.report.after;
    const bool is_replayed = !isnan(job->found.read_bytes);
    const double n_before = is_replayed ? job->found.before_bytes : before.read_bytes;
    const struct moec_bench_tokens *told = &job->found.samples;
    char earlier[32] = "", computed[64] = "", buffer[64] = "", samples[80] = "", size[24];
    if (isfinite(n_before))
        (void)snprintf(earlier, sizeof earlier, " (%.1f without the settings)", n_before / 1024);
    if (after.computed_share < 1)
        (void)snprintf(computed, sizeof computed, "; the model uses %.0f%% of what is read",
                       100 * after.computed_share);
    if (is_replayed) {
        (void)snprintf(buffer, sizeof buffer, " in a buffer of %s",
                       cli_memory_text(size, job->found.buffer_bytes));
        (void)snprintf(samples, sizeof samples,
                       "; %" PRIu32 " samples, prompts of %" PRIu32 " tokens and %" PRIu32 " after them",
                       told->n_sample, told->prompt_tokens, told->n_tokens);
    }
    cli_print_wrapped(stdout, 13, "  read       %.1f KiB of experts a token%s%s%s%s\n",
                      (is_replayed ? job->found.read_bytes : after.read_bytes) / 1024, buffer, earlier,
                      computed, samples);
    if (after.computed_share < 1)
        cli_print_wrapped(
            stdout, 13,
            "             (experts are read whole: moec sparsify --parts lets a run read parts)\n");
}

static void print_result(const struct tune_job *job)
{
    const struct moec_tune_report *report = &job->found.report;
    const bool has_decisions = moec_decision_settings_are_on(&report->decisions.settings);
    char name[MOEC_TUNE_NAME_BYTES];
    cli_print_wrapped(stdout, 4, "wrote '%s', %s %s; %" PRIu32 " measurements\n", job->written.path,
                      has_decisions ? "which decides by" : "whose plan has",
                      moec_tune_name(&report->winner.settings, report->winner.share, name),
                      report->n_candidate + 1);
    if (report->plan.n_layer > 0 && has_decisions)
        cli_print_left_out(&report->plan);
    else if (report->plan.n_layer > 0)
        cli_print_plan(&report->plan);
    if (has_decisions)
        cli_print_decisions(&report->decisions);
    if (report->plan.n_layer > 0 || !isnan(job->found.read_bytes))
        print_costs(job);
    cli_print_sequence(&report->certificate, "setting", report->is_reused);
}

/* ---- work ---- */

/* The bundle that won with its plan and decisions; nothing appears under the output's name before all of it
 * is there. */
static enum moec_status write_winner(struct tune_job *job, struct moec_error *err)
{
    const struct moec_tune_report *report = &job->found.report;
    const bool has_decisions = moec_decision_settings_are_on(&report->decisions.settings);
    const char *path = job->args->positional[0];
    if (report->plan.n_layer > 0) {
        if (has_decisions && asprintf(&job->written.staging, "%s.planned", job->written.path) < 0) {
            job->written.staging = NULL;
            return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: path of a file beside the output");
        }
        const char *out = has_decisions ? job->written.staging : job->written.path;
        MOEC_TRY(moec_bundle_put_sparsity(path, &job->written.table, &report->plan, false, out, err));
        path = out;
    }
    return has_decisions ? moec_bundle_put_decisions(path, &report->decisions, job->written.path, err)
                         : MOEC_OK;
}

/* A plan stands beside thresholds for --sparsity, which are the bundle's own where it has some. */
static enum moec_status fill_table(struct tune_job *job, const struct moec_trial_inputs *inputs,
                                   const struct moec_progress *progress, struct moec_error *err)
{
    if (job->found.report.plan.n_layer == 0)
        return MOEC_OK;
    MOEC_TRY(moec_bundle_load_sparsity(job->models.bundle.bundle, &job->written.table, err));
    if (job->written.table.n_layer > 0)
        return MOEC_OK;
    return moec_sparsify_table_fill(inputs, &job->options.tune.trial, false, progress, &job->written.table,
                                    err);
}

static enum moec_status tune_models(struct tune_job *job, struct moec_error *err)
{
    const struct moec_trial_inputs inputs =
        cli_trial_inputs(&job->data, &job->models.bundle, &job->models.original);
    const struct moec_progress progress = cli_progress_observer(&job->progress);
    const enum moec_status status =
        moec_tune(&inputs, &job->options.tune, NULL, &progress, &job->found.report, err);
    MOEC_TRY(cli_interrupt_search(status, err));
    return fill_table(job, &inputs, &progress, err);
}

/* ---- what a run reads ---- */

static uint32_t count_windows(const struct moec_windows *windows, uint32_t n_tokens)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < windows->n_window; w++)
        n += windows->length[w] >= n_tokens;
    return n;
}

/* The samples that moec bench takes of the same data, so that both tell the same; none where texts are too short. */
static enum moec_status take_samples(struct tune_job *job, uint32_t n_prompt, struct moec_error *err)
{
    const struct cli_measure_options *measure = &job->options.measure;
    const struct moec_windows *windows = &job->data.windows;
    struct moec_bench_tokens *samples = &job->found.samples;
    struct moec_rows rows = {0};
    uint32_t n = windows->seq_len_tokens;
    while (n > LEAST_LENGTH && count_windows(windows, n) < LEAST_SAMPLES) {
        n /= 2;
        n_prompt = n_prompt > 1 ? n_prompt / 2 : 1;
    }
    samples->prompt_tokens = n_prompt < n ? n_prompt : n - 1;
    samples->n_tokens = n - samples->prompt_tokens;
    samples->n_sample = (REPLAYED_TOKENS - 1) / samples->n_tokens + 1;
    if (samples->n_sample > count_windows(windows, n))
        samples->n_sample = count_windows(windows, n);
    if (samples->n_sample == 0)
        return MOEC_OK;
    MOEC_TRY(moec_rows_read(&measure->data.task, measure->data.path,
                            moec_rows_budget(measure->memory.work_bytes), &rows, err));
    const enum moec_status status = moec_bench_tokens_make(job->models.bundle.bundle, &rows, samples, err);
    moec_rows_release(&rows);
    return status;
}

/* What runs with the settings and without them read, records and prompts as they are: the logical cache alone
 * knows neither what a prompt displaces nor what more room holds. */
static enum moec_status replay(struct tune_job *job, struct moec_error *err)
{
    const struct moec_decision_settings *settings = &job->found.report.winner.settings;
    const char *path = job->args->positional[0];
    /* A prompt's chunk is recorded with one prediction for all of its tokens. Fate asks one for each, and decides about
     * a prompt's tokens as about generated ones: they pass one by one. */
    const bool one_by_one = strncmp(settings->precision, "fate", 4) == 0 && !settings->decode_only;
    const uint32_t n_prompt =
        job->options.tune.trial.n_prompt > 0 && !one_by_one ? job->options.tune.trial.n_prompt : 1;
    struct moec_foretell_setup setup = {.n_threads = job->options.measure.by.n_threads,
                                        .tokens = &job->found.samples};
    struct moec_foretell *recorded[2] = {NULL, NULL};
    struct moec_foretold told;
    enum moec_status status = MOEC_OK;
    char *trace = NULL;
    MOEC_TRY(take_samples(job, n_prompt, err));
    if (job->found.samples.n_sample == 0)
        return MOEC_OK;
    if (asprintf(&trace, "%s.recording", job->written.path) < 0)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: path of a file beside the output");
    setup.trace = trace;
    MOEC_TRY_OUT(moec_foretell_record(&setup, path, settings, cli_interrupt_is_asked, &recorded[0], err));
    MOEC_TRY_OUT(moec_foretell_slots_bytes(recorded[0], settings, &job->found.buffer_bytes, err));
    MOEC_TRY_OUT(moec_foretell_time(recorded[0], job->found.buffer_bytes, &told, err));
    job->found.read_bytes = told.read_bytes;
    MOEC_TRY_OUT(moec_foretell_record(&setup, path, NULL, cli_interrupt_is_asked, &recorded[1], err));
    MOEC_TRY_OUT(moec_foretell_time(recorded[1], job->found.buffer_bytes, &told, err));
    job->found.before_bytes = told.read_bytes;
out:
    moec_foretell_free(recorded[0]);
    moec_foretell_free(recorded[1]);
    free(trace);
    return status;
}

/* A plan's runs compute other experts, a prefill's other prompts, an encoder's other steps. */
static bool can_replay(const struct tune_job *job)
{
    const struct moec_config *config = job->models.config;
    return moec_decision_settings_are_on(&job->found.report.decisions.settings) &&
           job->found.report.plan.n_layer == 0 && job->models.sparsity == NULL &&
           job->found.report.decisions.settings.prefill[0] == '\0' &&
           job->options.tune.trial.arithmetic == MOEC_ARITHMETIC_CANONICAL &&
           job->options.measure.memory.place == NULL && !moec_config_is_encoder_decoder(config) &&
           !moec_config_routes_by_token(config);
}

/* A result that takes longer than what went in is no gain, whatever it was searched by. */
static enum moec_status check_gain(const struct tune_job *job, struct moec_error *err)
{
    const struct moec_tune_cost before = job->found.report.before, after = job->found.report.after;
    char name[MOEC_TUNE_NAME_BYTES];
    if (moec_tune_is_better(after, before) || cli_has(job->args, "accept-slower"))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_TARGET,
                     "the settings %s read %.1f KiB of experts per token, and %s %.1f KiB. "
                     "This is not a gain, so nothing was written: %s, or give --accept-slower",
                     moec_tune_name(&job->found.report.winner.settings, job->found.report.winner.share, name),
                     after.read_bytes / 1024, "the bundle without these settings reads",
                     before.read_bytes / 1024,
                     job->found.report.winner.share > 0 ? "search without sparsity (--with route)"
                                                        : "ask for a larger --max-loss or other --with");
}

static enum moec_status tune(struct tune_job *job, struct moec_error *err)
{
    MOEC_TRY(read_options(job, err));
    MOEC_TRY(cli_output_or_input(job->args, &job->written.path, err));
    begin_progress(job);
    MOEC_TRY(
        cli_open_place(job->args, cli_arithmetic(job->args, NULL), &job->options.measure.memory.place, err));
    MOEC_TRY(open_bundle(job, err));
    if (job->options.measure.memory.place != NULL) {
        job->on.work.batch_tokens =
            moec_gpu_place_batch_tokens(job->options.measure.memory.place, job->models.bundle.model);
        job->data.windows.work = &job->on.work;
    }
    MOEC_TRY(tune_models(job, err));
    MOEC_TRY(check_gain(job, err));
    if (can_replay(job))
        MOEC_TRY(replay(job, err));
    moec_source_close(&job->models.bundle);
    MOEC_TRY(write_winner(job, err));
    cli_progress_end(&job->progress);
    if (cli_has(job->args, "json"))
        return print_json(job, err);
    print_result(job);
    return MOEC_OK;
}

/* ---- of a checkpoint ---- */

#define N_FIXED_WORDS 4
#define MOST_WORDS    (N_FIXED_WORDS + CLI_MAX_OPTIONS * CLI_MAX_REPEATS)

/* Whether moec fit searches this, too: routes and skips are what it searches anyway. */
static bool goes_to_fit(const struct cli_args *args, const struct cli_args *fit, const char *name)
{
    const char *value = cli_text(args, name);
    if (strcmp(name, "with") == 0)
        return strcmp(value, "route,skip") == 0 || strcmp(value, "skip,route") == 0;
    if (strcmp(name, "decide") == 0)
        return strcmp(value, "decode") == 0;
    return strcmp(name, "device-file") != 0 && cli_offers(fit, name);
}

/* The same command line for moec fit. Errors: MOEC_ERR_USAGE for what a checkpoint is no longer tuned with. */
static enum moec_status words_for_fit(const struct cli_args *args, char **words, int *n,
                                      struct moec_error *err)
{
    const struct cli_args fit = {.command = &cli_command_fit};
    const struct cli_option *table = args->command->options;
    const char *fixed[N_FIXED_WORDS] = {"fit", args->positional[0], "--objective", "bytes"};
    for (*n = 0; *n < N_FIXED_WORDS; ++*n)
        words[*n] = (char *)fixed[*n];
    for (uint32_t o = 0; table[o].name != NULL; o++) {
        if (args->n_values[o] > 0 && !goes_to_fit(args, &fit, table[o].name))
            return moec_fail(
                err, MOEC_ERR_USAGE,
                "--%s does not apply to a checkpoint: run 'moec compile %s' with a smaller --max-loss, "
                "then tune the bundle with this option",
                table[o].name, args->positional[0]);
        if (strcmp(table[o].name, "with") == 0 || strcmp(table[o].name, "decide") == 0)
            continue;
        for (uint32_t v = 0; v < args->n_values[o]; v++) {
            const bool has_value = table[o].argument != NULL;
            if (asprintf(&words[*n], "--%s%s%s", table[o].name, has_value ? "=" : "",
                         has_value ? args->values[o][v] : "") < 0)
                return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: words of a command");
            ++*n;
        }
    }
    return MOEC_OK;
}

/* For one release, since commands that tuned a checkpoint are written down. */
static int tune_checkpoint(const struct cli_args *args)
{
    struct moec_error err = {0};
    struct cli_args fit;
    char *words[MOST_WORDS] = {NULL};
    int n = 0, status = CLI_OK;
    if (words_for_fit(args, words, &n, &err) != MOEC_OK) {
        status = cli_interrupt_fail(args, &err);
    } else {
        cli_print(
            stderr,
            "tune: for a checkpoint, 'moec fit %s --objective bytes' runs instead; the next release of moec "
            "tune will take only bundles\n",
            args->positional[0]);
        if (cli_parse(&fit, args->program, &cli_command_fit, (struct cli_words){n, words, 1}, &status)) {
            fit.is_forced = args->is_forced;
            status = cli_command_fit.run(&fit);
        }
    }
    for (int i = N_FIXED_WORDS; i < n; i++)
        free(words[i]);
    return status;
}

static int run_tune(const struct cli_args *args)
{
    if (cli_is_checkpoint(args->positional[0]))
        return tune_checkpoint(args);
    struct tune_job job = {.args = args, .found = {.read_bytes = NAN, .before_bytes = NAN}};
    struct moec_error err = {0};
    const enum moec_status status = tune(&job, &err);
    cli_progress_end(&job.progress);
    moec_tune_report_release(&job.found.report);
    moec_bench_tokens_release(&job.found.samples);
    moec_sparsity_table_release(&job.written.table);
    cli_part_windows_release(&job.data);
    moec_source_close(&job.models.original);
    moec_source_close(&job.models.bundle);
    moec_sparsity_free(job.models.sparsity);
    moec_device_release(&job.on.device);
    if (job.written.staging != NULL)
        (void)unlink(job.written.staging);
    free(job.written.staging);
    moec_gpu_place_free(job.options.measure.memory.place);
    return status == MOEC_OK ? CLI_OK : cli_interrupt_fail(args, &err);
}

const struct cli_command cli_command_tune = {
    .name = "tune",
    .model = CLI_BUNDLE_OR_CHECKPOINT,
    .summary = "find routing, precision and sparsity settings within a loss",
    .usage = "MODEL --data FILE",
    .about = "Searches for settings of --route, --precision and --prefill, and for sparsity plans, with "
             "which a token reads the fewest bytes of experts. tune proves that bundle and settings "
             "together lose at most --max-loss against the original, and writes the settings into the "
             "bundle. moec run, chat, serve, eval and bench then use them. --decide none turns decisions "
             "off, and --sparsity none the plan.",
    .details =
        "The data is divided into the same three parts as by moec compile with the same --seed. "
        "Settings are measured on the search part. tune keeps those that no other setting beats in "
        "both loss and bytes read. tune tests up to 8 of these settings on the certificate part, from "
        "the safest to the one that reads least, until one fails, and writes the last one that passed. "
        "If none passes, nothing is written and the exit status is 1. A bundle compiled with "
        "--max-loss 2% leaves no loss for decisions at 2%: compile with a smaller loss, or let moec "
        "fit choose bits and decisions together.\n"
        "Bytes are those of experts that a logical cache of --slots experts misses; bytes that a "
        "searched plan leaves out do not count. If the bundle has its own sparsity plan, the plan "
        "stays in use and its loss counts. docs/decisions.md describes the search.",
    .examples = "moec compile MODEL --data calibration.txt --max-loss 1% -o model.moec\n"
                "moec tune model.moec --data calibration.txt --reference MODEL --max-loss 2% -o tuned.moec",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_tune,
    .is_offline = true,
};
