/* Inputs are opened in the order in which they need each other: routing, bundle, decisions, model, device.
 * Decisions replace the recording by one of what tokens decide, which counts from the same step. Preloads
 * without a count are bounded by times where there are some, else by top-k. A bundle is written before
 * anything is printed of it. */
#include "cli/output/figure_output.h"
#include "cli/output/simulate_output.h"
#include "cli/output/tiers_output.h"
#include "cli/print/print.h"
#include "cli/settings/policy_options.h"
#include "cli/settings/route_options.h"
#include "cli/settings/simulate_options.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/progress_line.h"
#include "cli/verbs/commands.h"
#include "cli/verbs/simulate_decided.h"
#include "formats/bundle/bundle_evict.h"
#include "formats/profile/profile_h5.h"
#include "formats/trace/trace_json.h"
#include "profiler/routing/path_study.h"
#include "profiler/simulate/simulate_figures.h"
#include "profiler/simulate/simulate_text.h"
#include "runtime/engine/mode.h"

#include <string.h>

static const struct cli_option options[] = {
    {"model", 'm', "MODEL.moec", NULL, "Bundle that gives record sizes and the path table.",
     CLI_INPUT | CLI_OF_DATA},
    {"device-file", 0, "DEVICE.json", NULL, "A file of moec device, to predict time per token.",
     CLI_INPUT | CLI_OF_DATA},
    {"emulate-storage", 0, "STORAGE", NULL, "Other storage, such as 550MB/s,80us,10us.", CLI_OF_MEMORY},
    {"memory", 0, "LIST", NULL,
     "Buffer sizes, with commas: 64MiB, 25% of all experts, or all sizes (default 10%,25%,50%).",
     CLI_OF_MEMORY},
    {"evict", 0, "LIST", NULL, "Evictions, with commas, or all (default lru,hobbit):\n" CLI_EVICT_VALUES,
     CLI_OF_MEMORY},
    {"search-evict", 0, NULL, NULL,
     "With --evict hobbit: for each size, find the weights with which misses cost the least time. Without "
     "--device-file and --emulate-storage: the weights with which the fewest bytes are read.",
     CLI_RARE | CLI_OF_MEMORY},
    {"output", 'o', "OUT.moec", NULL,
     "Write the bundle of --model with the weights that --search-evict found; --evict hobbit then "
     "uses them. Needs one size of --memory, and --device-file or --emulate-storage.",
     CLI_RARE | CLI_OUTPUT | CLI_OF_OUTPUT},
    {"predict", 0, "LIST", NULL,
     "Predictors, with commas, or all (default none, and that of moec run):\n" CLI_PREDICT_VALUES,
     CLI_OF_MEMORY},
    {"vram", 0, "LIST", NULL,
     "With a --device-file of a GPU: sizes of the pool of experts in the GPU's memory. The buffer "
     "of --memory (default all) is then in pinned memory.",
     CLI_RARE | CLI_OF_MEMORY},
    {"modes", 0, "LIST", NULL,
     "With --vram: how experts get to the GPU, with commas (default all): on-demand, layer-wise, "
     "cache, preload, cooperative, resident.",
     CLI_RARE | CLI_OF_MEMORY},
    CLI_ROUTE_OPTIONS(CLI_RARE, "", ""),
    CLI_SIMULATED_DECIDE_OPTION(CLI_RARE),
    {"plots", 0, "FOLDER", NULL, "Draw hit rates and times against memory.", CLI_OF_OUTPUT},
    {"json", 0, NULL, NULL, "Print everything as JSON.", CLI_OF_OUTPUT},
    {"bits", 0, "BITS", "2|3|4|5|6|8|16",
     "Bitwidth of every expert: 2, 3, 4 (default), 5, 6, 8 or 16. With --model: use the bundle's "
     "copy at this bitwidth instead of the compiled assignment.",
     CLI_RARE | CLI_OF_MEMORY},
    {"preload-count", 0, "N", NULL,
     "Read N predicted experts for each layer, however long that takes. By default as many as there "
     "is time for; without --device-file, as many as a token uses in a layer.",
     CLI_RARE | CLI_OF_MEMORY},
    {"preload-ahead", 0, "P", NULL, CLI_PRELOAD_AHEAD, CLI_RARE | CLI_OF_MEMORY},
    {"prompt-tokens", 0, "P", NULL,
     "For a profile: the first P tokens of each window are a prompt, read in one chunk; the others "
     "are decoded (default 0). Rates count decoded tokens only. Not for encoder-decoder models.",
     CLI_RARE | CLI_OF_DATA},
    {"against", 0, "RESULT.json", NULL,
     "With --model: simulate each row of a result of moec bench, or the run of a result of moec run "
     "--stats json, and show times, waiting, hits and bytes of both. The result and the routing "
     "should come from the same data or prompt. Computing times are those of --device-file, or of "
     "the trace.",
     CLI_RARE | CLI_INPUT | CLI_OF_DATA},
    {"trust-profile", 0, NULL, NULL,
     "Read a profile that another program has changed, without checking its checksum.",
     CLI_RARE | CLI_OF_DATA},
    {"plot-format", 0, CLI_LIST, "png|svg|pdf|csv",
     "Formats for --plots: png, svg, pdf, csv, separated by commas (default png,svg,csv).",
     CLI_RARE | CLI_OF_OUTPUT},
    {"threads", 't', "N", NULL, "Threads (default: OMP_NUM_THREADS, else all cores).", 0},
    {"quiet", 'q', NULL, NULL, "Show no progress.", 0},
    {0},
};

/* Everything that one call holds. */
struct simulated_routing {
    bool is_trace;
    struct moec_profile profile;
    struct moec_replay replay;
    struct moec_recording recording;
    bool decides;
    struct simulate_decided decided; /* where it decides, what the recording is of */
};

struct simulated_bundle {
    struct moec_bundle *bundle;   /* NULL without --model */
    uint32_t copy, low;           /* those that run */
    struct moec_bundle_evict own; /* of it */
    struct moec_simulated_model model;
    struct moec_simulated_model described_sizes; /* of the bundle's assignment */
};

struct simulated_machine {
    struct moec_device described;
    bool is_emulated;
    struct moec_emulation emulation;
    struct moec_simulated_device device;
};

struct job {
    const struct cli_args *args;
    struct cli_simulate_options options;
    struct simulated_routing routing;
    struct simulated_bundle of;
    struct simulated_machine on;
    struct moec_simulate_sweep sweep;
    struct cli_progress progress;
    char note[640];
};

static void release(struct job *job)
{
    moec_simulated_device_release(&job->on.device);
    moec_device_release(&job->on.described);
    moec_simulated_model_release(&job->of.model);
    moec_simulated_model_release(&job->of.described_sizes);
    moec_recording_release(&job->routing.recording);
    moec_simulated_decisions_release(&job->routing.decided.decided);
    moec_replay_release(&job->routing.replay);
    moec_profile_release(&job->routing.profile);
    moec_bundle_close(job->of.bundle);
}

/* ---- inputs ---- */

/* A trace is text that begins with a brace; a profile with its magic. */
static enum moec_status is_trace(const char *path, bool *out, struct moec_error *err)
{
    struct moec_file file;
    char first = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_file_open(&file, path, err));
    if (file.n_bytes > 0)
        status = moec_file_read(&file, 0, &first, 1, err);
    *out = first == '{';
    moec_file_close(&file);
    return status;
}

static enum moec_status open_routing(struct job *job, struct moec_error *err)
{
    const char *path = job->args->positional[0];
    const uint32_t prompt = job->options.prompt_tokens;
    uint8_t digest[MOEC_SHA256_BYTES];
    MOEC_TRY(is_trace(path, &job->routing.is_trace, err));
    if (!job->routing.is_trace) {
        MOEC_TRY(
            moec_profile_read(path, cli_has(job->args, "trust-profile"), &job->routing.profile, digest, err));
        MOEC_TRY(moec_replay_from_profile(&job->routing.profile, prompt, &job->routing.replay, err));
        return moec_recording_make(&job->routing.replay, &job->routing.profile, prompt,
                                   &job->routing.recording, err);
    }
    const bool has_tokens = cli_has(job->args, "prompt-tokens");
    if (has_tokens || cli_has(job->args, "trust-profile"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--%s applies only to profiles, but the file '%s' is a trace, which is replayed "
                         "as recorded: leave the option out",
                         has_tokens ? "prompt-tokens" : "trust-profile", path);
    MOEC_TRY(moec_replay_load(path, &job->routing.replay, err));
    MOEC_TRY(moec_recording_make(&job->routing.replay, NULL, 0, &job->routing.recording, err));
    if (!cli_has(job->args, "against") || job->routing.replay.n_encoder > 0)
        return MOEC_OK;
    return moec_agreement_count(cli_text(job->args, "against"), &job->routing.recording, err);
}

/* What weights for a bundle need to be found by. */
static enum moec_status check_output(const struct job *job, struct moec_error *err)
{
    const struct cli_args *args = job->args;
    if (!cli_has(args, "output"))
        return MOEC_OK;
    if (!job->options.searches_evict || !cli_has(args, "model") || cli_has(args, "bits"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--output writes the compiled bundle of --model with the eviction weights "
                         "that --search-evict finds: give --model and --search-evict, and leave out --bits");
    if (job->options.n_budget != 1)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--output writes eviction weights for a single "
                         "buffer size: give one size, such as --memory 50%%");
    if (cli_has(args, "device-file") || cli_has(args, "emulate-storage"))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "--output chooses the weights of hobbit's eviction by the time that misses cost, so "
                     "it needs the device's times: give --device-file DEVICE.json, or --emulate-storage");
}

/* The bundle's own weights, for words that have none. */
static enum moec_status take_weights(struct job *job, struct moec_error *err)
{
    MOEC_TRY(moec_bundle_load_evict(job->of.bundle, &job->of.own, err));
    if (moec_bundle_evict_is_there(&job->of.own))
        job->options.own_weights = job->of.own.weights;
    return MOEC_OK;
}

static enum moec_status open_bundle(struct job *job, struct moec_error *err)
{
    if (!cli_has(job->args, "model"))
        return MOEC_OK;
    MOEC_TRY(moec_bundle_open(cli_text(job->args, "model"), &job->of.bundle, err));
    MOEC_TRY(take_weights(job, err));
    if (job->options.bits > 0)
        MOEC_TRY(moec_bundle_find_copy(job->of.bundle, job->options.bits, &job->of.copy, err));
    job->of.low = job->routing.replay.low_copy;
    if (job->of.low >= job->of.bundle->n_copy)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "the routing in '%s' was recorded with precision copy %u of the experts, which the bundle "
            "'%s' does not have: give --model the bundle that the recording was made with",
            job->args->positional[0], (unsigned)job->of.low, job->of.bundle->file.path);
    return MOEC_OK;
}

/* By which copies of a trace of two were asked for. */
static enum moec_status read_precision(struct job *job, struct moec_error *err)
{
    struct moec_precision *precision = &job->sweep.preload.precision;
    if (job->routing.replay.precision[0] == '\0')
        return MOEC_OK;
    MOEC_TRY(moec_precision_read(job->routing.replay.precision, precision, err));
    if (job->routing.replay.paths->scores != NULL)
        moec_precision_know_scores(precision, job->routing.replay.paths->scores);
    return MOEC_OK;
}

/* From here on the recording is of what tokens decide. */
static enum moec_status decide(struct job *job, struct moec_error *err)
{
    const char *path = job->args->positional[0];
    if (!job->routing.decides && job->routing.replay.n_form == 1)
        return MOEC_OK;
    if (cli_has(job->args, "vram"))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--vram simulates only the recorded routing with experts in one precision: leave "
            "out --vram; or, to keep it, give a trace without experts in low precision, and leave "
            "out --route, --precision and --prefill");
    if (!job->routing.decides)
        return read_precision(job, err);
    if (job->of.bundle == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--route, --precision and --prefill need the "
                         "routers of a bundle: give --model MODEL.moec");
    job->routing.decided.low = job->of.copy;
    MOEC_TRY(cli_decide_recorded(job->args, job->of.bundle, path, &job->routing.recording,
                                 &job->routing.decided, err));
    job->of.low = job->routing.decided.low;
    job->sweep.preload.precision = job->routing.decided.route.precision;
    const uint64_t first_counted = job->routing.recording.counted.first;
    moec_recording_release(&job->routing.recording);
    MOEC_TRY(
        moec_recording_make(&job->routing.decided.decided.replay, NULL, 0, &job->routing.recording, err));
    moec_recording_count_from(&job->routing.recording, first_counted);
    job->routing.recording.known.logical =
        job->routing.decided.route.n_slots > 0 ? &job->routing.decided.decided.logical : NULL;
    job->routing.recording.known.forms =
        job->routing.decided.decided.forms.rows != NULL ? &job->routing.decided.decided.forms : NULL;
    return MOEC_OK;
}

static enum moec_status make_model(struct job *job, struct moec_error *err)
{
    const uint32_t bits = job->options.bits;
    if (job->routing.is_trace && bits > 0 && job->of.bundle == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--bits chooses one of the copies of --model: with a trace, give --model too");
    if (job->routing.is_trace && job->of.bundle == NULL)
        return moec_simulated_model_of_trace(&job->routing.replay, &job->of.model, err);
    if (job->of.bundle == NULL)
        return moec_simulated_model_of_profile(&job->routing.profile, bits > 0 ? bits : 4, &job->of.model,
                                               err);
    MOEC_TRY(moec_simulated_model_of_bundle(job->of.bundle, 0, job->of.low, &job->routing.recording,
                                            &job->of.described_sizes, err));
    return moec_simulated_model_of_bundle(job->of.bundle, job->of.copy, job->of.low, &job->routing.recording,
                                          &job->of.model, err);
}

static enum moec_status open_model(struct job *job, struct moec_error *err)
{
    MOEC_TRY(make_model(job, err));
    moec_simulated_model_pool(&job->of.model, &job->sweep.preload.precision);
    return MOEC_OK;
}

/* As asked for, else as the bundle says, else as the profile does. */
static enum moec_status choose_shallow(struct job *job, struct moec_error *err)
{
    struct moec_simulated_model *model = &job->of.model;
    const uint32_t n_layer = model->shape.n_layer - model->shape.n_encoder;
    if (model->shape.n_shallow == 0 && !job->routing.is_trace)
        model->shape.n_shallow = moec_path_study_shallow_layers(&job->routing.profile);
    if (job->of.bundle != NULL) /* of which --against makes models of its own */
        job->of.bundle->paths.n_shallow = model->shape.n_shallow;
    for (uint32_t i = 0; i < job->options.n_policy; i++) {
        const struct moec_evict_choice *policy = &job->options.policies[i];
        if (policy->n_shallow > n_layer)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--evict has '%s', expected 1 to %u shallow layers (the number of MoE layers)",
                             policy->word, (unsigned)n_layer);
        if (policy->ops == &moec_evict_fate && policy->n_shallow == 0 && model->shape.n_shallow == 0)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "eviction 'fate' needs the number of shallow layers, but neither the "
                             "recording '%s' nor a bundle of --model states it: give this number, such as "
                             "fate:2",
                             job->args->positional[0]);
    }
    return MOEC_OK;
}

static enum moec_status open_device(struct job *job, struct moec_error *err)
{
    const bool has_device = cli_has(job->args, "device-file"),
               is_emulated = cli_has(job->args, "emulate-storage");
    job->on.is_emulated = is_emulated;
    if (is_emulated && !has_device && !job->routing.replay.has_times)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--emulate-storage needs --device-file or a trace, to know how long computing takes");
    if (is_emulated)
        MOEC_TRY(moec_emulation_parse(cli_text(job->args, "emulate-storage"), &job->on.emulation, err));
    if (has_device)
        MOEC_TRY(moec_device_load(cli_text(job->args, "device-file"), &job->on.described, err));
    job->sweep.has_times = has_device || is_emulated;
    return moec_simulated_device_make(
        &(struct moec_simulated_hardware){.device = has_device ? &job->on.described : NULL,
                                          .described =
                                              job->of.bundle != NULL ? &job->of.described_sizes : NULL,
                                          .storage = is_emulated ? &job->on.emulation : NULL},
        &job->routing.recording, &job->of.model, &job->on.device, err);
}

/* ---- the sweep ---- */

static void say(struct job *job, const char *text)
{
    const size_t used = strlen(job->note);
    (void)snprintf(job->note + used, sizeof job->note - used, "%s%s", used > 0 ? "; " : "", text);
}

/* How moec run predicts what was recorded, where nobody says how. */
static enum moec_status find_default(const struct job *job, const struct moec_predict_ops **out,
                                     struct moec_error *err)
{
    struct moec_mode_facts facts = {.is_taught = job->routing.recording.replay->has_next_learned};
    if (job->of.bundle != NULL)
        facts = moec_mode_facts_of(job->of.bundle, false);
    facts.decides = job->routing.decides || job->routing.replay.precision[0] != '\0';
    return moec_predict_find(moec_mode_predict(moec_modes, facts), out, err);
}

/* None, and beside it what moec run takes; where the recording has not what that needs, paths. */
static enum moec_status choose_usual(struct job *job, struct moec_error *err)
{
    struct moec_simulate_sweep *sweep = &job->sweep;
    const struct moec_predict_ops *own = NULL;
    char text[224];
    MOEC_TRY(find_default(job, &own, err));
    sweep->preload.predictors[sweep->preload.n_predictor++] = &moec_predict_none;
    if (moec_simulated_can_predict(&job->routing.recording, &job->of.model, own)) {
        sweep->preload.predictors[sweep->preload.n_predictor++] = own;
        return MOEC_OK;
    }
    const bool has_paths =
        moec_simulated_can_predict(&job->routing.recording, &job->of.model, &moec_predict_path);
    if (has_paths)
        sweep->preload.predictors[sweep->preload.n_predictor++] = &moec_predict_path;
    (void)snprintf(text, sizeof text, "moec run uses predictor '%s', whose data is in %s%s", own->name,
                   own->knows_tokens ? "no recording" : "traces of moec run --trace only",
                   has_paths ? ": 'path' is shown instead" : "");
    say(job, text);
    return MOEC_OK;
}

static enum moec_status choose_predictors(struct job *job, struct moec_error *err)
{
    struct moec_simulate_sweep *sweep = &job->sweep;
    char text[128];
    for (uint32_t i = 0; i < job->options.n_predictor; i++) {
        sweep->preload.predictors[sweep->preload.n_predictor++] = job->options.predictors[i];
        if (!moec_simulated_can_predict(&job->routing.recording, &job->of.model, job->options.predictors[i]))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "the recording '%s' does not have what the predictor '%s' needs. 'gate' and "
                             "'learned' need a trace of moec run --trace ('learned': of a bundle with a "
                             "predictor of moec predict). 'path' needs a path table (moec compile "
                             "--profile). 'token' needs the model's tables, which no recording has",
                             job->args->positional[0], job->options.predictors[i]->name);
    }
    if (job->options.n_predictor == 0 && !job->options.is_every_predictor)
        return choose_usual(job, err);
    for (uint32_t i = 0; job->options.n_predictor == 0 && moec_predictors[i] != NULL; i++) {
        if (moec_simulated_can_predict(&job->routing.recording, &job->of.model, moec_predictors[i])) {
            sweep->preload.predictors[sweep->preload.n_predictor++] = moec_predictors[i];
            continue;
        }
        (void)snprintf(text, sizeof text, "predictor '%s' is left out: the routing was recorded without %s",
                       moec_predictors[i]->name,
                       moec_predictors[i]->knows_tokens      ? "the tables of layers that route by token"
                       : moec_predictors[i]->needs_next_gate ? "the next layer's gate"
                       : moec_predictors[i]->needs_learned   ? "a learned predictor"
                                                             : "a path table");
        say(job, text);
    }
    return MOEC_OK;
}

/* Walks need the gates of as many layers, and a predictor that asks them. */
static enum moec_status check_ahead(const struct job *job, struct moec_error *err)
{
    const struct moec_simulate_sweep *sweep = &job->sweep;
    const uint32_t told = job->routing.recording.replay->gates_ahead;
    uint32_t n_gated = 0;
    for (uint32_t i = 0; i < sweep->preload.n_predictor; i++)
        n_gated += sweep->preload.predictors[i]->needs_next_gate;
    if (sweep->preload.ahead > 0 && n_gated == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "--preload-ahead applies only to --predict gate and path+gate");
    if (sweep->preload.ahead > told)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--preload-ahead %u needs router gates for that many layers ahead, "
                         "but the recording has %u: record again with moec run --trace",
                         (unsigned)sweep->preload.ahead, (unsigned)told);
    return MOEC_OK;
}

static enum moec_status plan(struct job *job, struct moec_error *err)
{
    struct moec_simulate_sweep *sweep = &job->sweep;
    char text[96];
    sweep->recording = &job->routing.recording;
    sweep->model = &job->of.model;
    sweep->device = &job->on.device;
    cli_set_policies(&job->options, job->of.model.shape.n_shallow, sweep);
    if (job->options.is_every_policy && job->of.model.shape.n_shallow == 0)
        say(job,
            "policy 'fate' is left out: the number of shallow layers is unknown; give it in --evict, such "
            "as fate:2");
    for (uint32_t i = 0; i < sweep->evict.n; i++)
        if (sweep->evict.all[i].ops == &moec_evict_fate) {
            const uint32_t n_own = sweep->evict.all[i].n_shallow;
            (void)snprintf(text, sizeof text, "%.24s keeps the experts of the first %u of %u MoE layers",
                           sweep->evict.all[i].word,
                           (unsigned)(n_own > 0 ? n_own : job->of.model.shape.n_shallow),
                           (unsigned)(job->of.model.shape.n_layer - job->of.model.shape.n_encoder));
            say(job, text);
        }
    cli_set_budgets(&job->options, sweep);
    MOEC_TRY(choose_predictors(job, err));
    sweep->preload.ahead = job->options.preload_ahead;
    MOEC_TRY(check_ahead(job, err));
    sweep->preload.count = job->options.preload_count;
    if (sweep->preload.count == 0 && !sweep->has_times) {
        sweep->preload.count = job->of.model.shape.top_k;
        if (sweep->preload.n_predictor == 1 && sweep->preload.predictors[0] == &moec_predict_none)
            return MOEC_OK;
        (void)snprintf(text, sizeof text, "predictors prefetch %u experts a layer (without --device-file)",
                       (unsigned)sweep->preload.count);
        say(job, text);
    }
    return MOEC_OK;
}

static enum moec_status show(void *context, uint64_t n_done, uint64_t n_all)
{
    struct job *job = context;
    cli_progress_show(&job->progress, "simulate", (double)n_done, (double)n_all);
    return cli_interrupt_status();
}

static enum moec_status draw(const struct job *job, const struct moec_simulation *simulation,
                             struct moec_error *err)
{
    struct moec_figures figures = {0};
    if (!cli_has(job->args, "plots"))
        return MOEC_OK;
    MOEC_TRY(moec_simulate_figures(simulation, job->args->positional[0], &figures, err));
    enum moec_status status = cli_write_plots(job->args, &figures, cli_has(job->args, "json"), err);
    moec_figures_release(&figures);
    return status;
}

/* Before anything is printed, which would be of a file that is not there. */
static enum moec_status write_weights(const struct job *job, const struct moec_simulation *simulation,
                                      struct moec_error *err)
{
    if (!cli_has(job->args, "output"))
        return MOEC_OK;
    const struct moec_found_weights *found = &simulation->found[0];
    const double n_token = (double)job->routing.recording.counted.n_decoded;
    struct moec_bundle_evict evict = {.buffer_bytes = simulation->sweep.budgets.bytes[0],
                                      .lost_ns = found->lost_ns / n_token,
                                      .lost_by_lru_ns = found->lost_by_lru_ns / n_token};
    memcpy(evict.weights, found->weights, sizeof evict.weights);
    return moec_bundle_put_evict(job->of.bundle->file.path, &evict, cli_text(job->args, "output"), err);
}

static enum moec_status simulate(struct job *job, struct moec_error *err)
{
    struct moec_simulation simulation = {0};
    struct moec_paragraphs text = {0};
    enum moec_status status = MOEC_OK;
    const struct moec_simulated_decisions *decided =
        job->routing.decides ? &job->routing.decided.decided : NULL;
    cli_progress_init(&job->progress, "simulate", "runs",
                      cli_has(job->args, "quiet") || cli_has(job->args, "json"));
    status = moec_simulate(&job->sweep, job->options.n_threads, show, job, &simulation, err);
    cli_progress_end(&job->progress);
    MOEC_TRY(status);
    MOEC_TRY_OUT(write_weights(job, &simulation, err));
    moec_simulation_describe(&simulation, &text);
    if (cli_has(job->args, "json"))
        MOEC_TRY_OUT(
            cli_print_simulation_json(&simulation, job->args->positional[0], &text, job->note, decided, err));
    else
        cli_print_simulation(&simulation, job->args->positional[0], &text, job->note, decided);
    if (cli_has(job->args, "output") && !cli_has(job->args, "json"))
        cli_print(stdout, "\nwrote '%s', whose --evict hobbit takes these weights\n",
                  cli_text(job->args, "output"));
    MOEC_TRY_OUT(draw(job, &simulation, err));
out:
    moec_simulation_release(&simulation);
    return status;
}

/* ---- three tiers ---- */

/* The predictor of the mode that preloads: the first that was named, else gates where they were recorded,
 * else the path table; NULL without either. */
static const struct moec_predict_ops *find_predictor(const struct job *job)
{
    const struct moec_predict_ops *const usual[] = {&moec_predict_gate, &moec_predict_path,
                                                    &moec_predict_frequency};
    for (uint32_t i = 0; i < job->options.n_predictor; i++)
        if (job->options.predictors[i] != &moec_predict_none)
            return job->options.predictors[i];
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (moec_simulated_can_predict(&job->routing.recording, &job->of.model, usual[i]))
            return usual[i];
    return NULL;
}

static enum moec_status plan_tiers(struct job *job, struct moec_tiers_sweep *sweep, struct moec_error *err)
{
    struct moec_simulate_sweep policies = {0};
    char text[128];
    if (!cli_has(job->args, "device-file"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--vram needs a device file of a GPU: give --device-file "
                         "DEVICE.json, made by moec device --device cuda");
    if (cli_has(job->args, "plots") || cli_has(job->args, "search-evict") ||
        cli_has(job->args, "preload-ahead") || job->options.is_every_budget)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--plots, --search-evict, --preload-ahead and '--memory all' do not work "
                         "with the three tiers of --vram: leave out either these options or --vram");
    cli_set_policies(&job->options, job->of.model.shape.n_shallow, &policies);
    sweep->recording = &job->routing.recording;
    sweep->model = &job->of.model;
    sweep->device = &job->on.device;
    sweep->evict.weights = policies.evict.weights;
    sweep->evict.n = policies.evict.n;
    memcpy(sweep->evict.all, policies.evict.all, sizeof policies.evict.all);
    sweep->preload.predictor = find_predictor(job);
    sweep->preload.count = job->options.preload_count;
    cli_set_tiers(&job->options, sweep);
    for (uint32_t i = 0; i < job->options.n_mode; i++)
        sweep->modes.all[sweep->modes.n++] = job->options.modes[i];
    for (int mode = 0; mode < MOEC_TIERS_MODES && job->options.n_mode == 0; mode++)
        if (mode != MOEC_TIERS_PRELOAD || sweep->preload.predictor != NULL)
            sweep->modes.all[sweep->modes.n++] = (enum moec_tiers_mode)mode;
    (void)snprintf(text, sizeof text, "the mode preload predicts by '%s', %u for each layer",
                   sweep->preload.predictor != NULL ? sweep->preload.predictor->name : "none",
                   (unsigned)(sweep->preload.count > 0 ? sweep->preload.count : job->of.model.shape.top_k));
    say(job, text);
    return MOEC_OK;
}

static enum moec_status simulate_tiers(struct job *job, struct moec_error *err)
{
    struct moec_tiers_sweep sweep = {0};
    struct moec_simulated_gpu gpu = {0};
    struct moec_tiers tiers = {0};
    const char *source = job->args->positional[0], *name = job->on.described.gpu.name;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(plan_tiers(job, &sweep, err));
    MOEC_TRY(moec_simulated_gpu_make(&job->on.described.gpu, &job->of.model,
                                     job->of.bundle != NULL ? &job->of.described_sizes : NULL, &gpu, err));
    sweep.gpu = &gpu;
    cli_progress_init(&job->progress, "simulate", "runs",
                      cli_has(job->args, "quiet") || cli_has(job->args, "json"));
    status = moec_tiers_run(&sweep, job->options.n_threads, show, job, &tiers, err);
    cli_progress_end(&job->progress);
    if (status == MOEC_OK && cli_has(job->args, "json"))
        status = cli_print_tiers_json(&tiers, source, name, job->note, err);
    else if (status == MOEC_OK)
        cli_print_tiers(&tiers, source, name, job->note);
    moec_tiers_release(&tiers);
    moec_simulated_gpu_release(&gpu);
    return status;
}

/* That of the run to compare with: as asked for, or of a trace that has what a run by its buffer took. */
static const char *measured_precision(const struct job *job)
{
    const bool is_shared = job->sweep.preload.precision.kind == MOEC_PRECISION_SHARED;
    return is_shared ? job->routing.replay.precision : cli_text(job->args, "precision");
}

static enum moec_status compare(const struct job *job, struct moec_error *err)
{
    struct moec_agreement agreement;
    enum moec_status status = MOEC_OK;
    const bool has_device = cli_has(job->args, "device-file");
    if (job->of.bundle == NULL || (!has_device && !job->routing.replay.has_times))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--against needs a bundle and the computing times of the "
                         "bench's machine: give --model, and --device-file or a trace");
    const struct moec_agreement_setup setup = {
        .path = cli_text(job->args, "against"),
        .recording = &job->routing.recording,
        .bundle = job->of.bundle,
        .low = job->of.low,
        .device = has_device ? &job->on.described : NULL,
        .emulation = job->on.is_emulated ? &job->on.emulation : NULL,
        .decided = {.counts = job->routing.decides ? &job->routing.decided.decided : NULL,
                    .route = cli_text(job->args, "route"),
                    .precision = measured_precision(job)},
        .prefetches = job->sweep.preload.precision};
    MOEC_TRY(moec_agreement_make(&setup, &agreement, err));
    if (cli_has(job->args, "json"))
        status = cli_print_agreement_json(&agreement, job->routing.decides, err);
    else
        cli_print_agreement(&agreement, job->routing.decides);
    moec_agreement_release(&agreement);
    return status;
}

static int run_simulate(const struct cli_args *args)
{
    struct moec_error err = {0};
    struct job job = {.args = args};
    enum moec_status status = MOEC_OK;
    cli_interrupt_catch();
    MOEC_TRY_OUT(cli_read_simulate_options(args, &job.options, &err));
    MOEC_TRY_OUT(check_output(&job, &err));
    MOEC_TRY_OUT(cli_check_figures(args, &err));
    MOEC_TRY_OUT(cli_check_simulated_decisions(args, &job.routing.decides, &err));
    MOEC_TRY_OUT(open_routing(&job, &err));
    MOEC_TRY_OUT(open_bundle(&job, &err));
    MOEC_TRY_OUT(decide(&job, &err));
    MOEC_TRY_OUT(open_model(&job, &err));
    MOEC_TRY_OUT(choose_shallow(&job, &err));
    MOEC_TRY_OUT(open_device(&job, &err));
    if (cli_has(args, "against")) {
        MOEC_TRY_OUT(compare(&job, &err));
    } else if (cli_has(args, "vram")) {
        MOEC_TRY_OUT(simulate_tiers(&job, &err));
    } else {
        MOEC_TRY_OUT(plan(&job, &err));
        MOEC_TRY_OUT(simulate(&job, &err));
    }
out:
    release(&job);
    return status == MOEC_OK ? CLI_OK : cli_interrupt_fail(args, &err);
}

const struct cli_command cli_command_simulate = {
    .name = "simulate",
    .summary = "predict hits and times of cache policies from recorded routing",
    .usage = "PROFILE.h5|TRACE",
    .about = "Replays recorded routing with several evictions, predictors and buffer sizes, next to "
             "Belady's bound. The output shows the size below which lru has no hits, the gain of "
             "predictions and, with --device-file, the time per token.",
    .details =
        "The runtime's own code makes the decisions. Without predictions, or with --preload-count, the "
        "counts are exactly those of a run with the same routing. lru has no hits in a buffer smaller "
        "than one token's working set (MoE layers x experts per token).\n"
        "The windows of a profile are decoded token by token, one window after the other, with one "
        "buffer that starts with the most used experts. An encoder reads each source at once, before "
        "its target. A trace of moec run --trace is replayed as recorded. The predictor gate needs the "
        "trace of a run that predicted by gate.\n"
        "Without --model, record sizes and path table are those of the trace; in a profile, every "
        "expert has --bits bits. --device-file also limits preloads to the available time. By default "
        "simulate tries a few policies, predictors and sizes, within seconds. all tries every policy "
        "or predictor, and as sizes 5% to 100% in steps of 5.\n"
        "--route, --precision and --prefill need a trace that moec run or bench recorded with "
        "--trace-scores. The runtime's decisions are made from the recorded router scores, and their "
        "experts go through the buffer. In a real run, decisions change hidden states from the second "
        "MoE layer on, and also the text. The result is therefore a first estimate; --against compares "
        "it with a real run.\n"
        "--vram simulates a GPU: experts in its memory, in pinned memory and in storage; copies over "
        "the bus; and the modes with which HOBBIT, Fate and FloE compare.",
    .examples = "moec simulate profile.h5 --model model.moec --plots plots\n"
                "moec device model.moec -o device.json\n"
                "moec simulate profile.h5 --model model.moec --device-file device.json",
    .more_examples =
        "moec simulate profile.h5 --model model.moec --memory 25%,50%,64MiB "
        "--evict lru,edgemoe --predict none,path\n"
        "moec simulate profile.h5 --model model.moec "
        "--device-file device.json --emulate-storage 550MB/s,80us\n"
        "moec run model.moec -p \"Once\" --trace trace.json --trace-scores\n"
        "moec simulate trace.json --model model.moec --route cache-prior:0.15 --slots 50% --evict lru "
        "--predict none\n"
        "moec simulate profile.h5 --model model.moec --device-file gpu.json --vram 10%,25%,50% --evict lru",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_simulate,
    .is_offline = true,
};
