/* `moec fit`: the fastest bundle of a checkpoint for a device's memory and storage, within a loss. */
#include "cli/options/inputs.h"
#include "cli/options/outputs.h"
#include "cli/output/fit_output.h"
#include "cli/output/fit_page.h"
#include "cli/print/print.h"
#include "cli/settings/lua_policy.h"
#include "cli/settings/trial_options.h"
#include "cli/terminal/checkpoint_note.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "cli/verbs/fit_device.h"
#include "cli/verbs/fit_drafts.h"
#include "cli/verbs/run_profile.h"
#include "compiler/certify/promise.h"
#include "compiler/policy/decision_policy.h"
#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/bundle/bundle_digest.h"
#include "runtime/policy/decide/route_settings.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_MEASURED  24u /* candidates */
#define SEARCH_WINDOWS 64u /* that each of them is run on at most */

static const struct cli_option options[] = {
    CLI_DATA_OPTIONS,
    {"max-loss", 0, "LOSS", NULL, "Accuracy that bits and settings together may lose, such as 2% or 0.02.",
     CLI_OF_LOSS},
    {"objective", 0, "WHAT", "time|bytes",
     "What the search minimises:\n"
     "time\ttime of a generated token on the device (default)\n"
     "bytes\tbytes of experts that a generated token reads, for any device: give --slots instead of "
     "--memory and the device",
     CLI_RARE | CLI_OF_LOSS},
    {"slots", 0, "N|PERCENT", NULL,
     "With --objective bytes: how many experts of each layer will be in memory (default " MOEC_ROUTE_SLOTS
     ").",
     CLI_RARE | CLI_OF_MEMORY},
    {"with", 0, CLI_LIST, "route|skip|prefill",
     "Settings to search besides bits: route,skip (default). fit refuses other lists; for prefill, "
     "the message names another command.",
     CLI_RARE | CLI_OF_LOSS},
    {"policy", 0, "POLICY", NULL,
     "Your own search, a Lua file, instead of fit's. Or prior, a built-in search for the strongest "
     "preference for cached experts (route cache-prior) within the loss. The result is certified in the "
     "same way.",
     CLI_RARE | CLI_OF_LOSS},
    {"memory", 0, "SIZE", NULL, "The limit that you will give to moec-run on the device, such as 600MiB.",
     CLI_OF_MEMORY},
    {"storage", 0, "STORAGE", NULL,
     "The device's storage: sd, emmc, sata, ufs or nvme for a usual one of its kind, or bandwidth "
     "and latency, such as 100MB/s,200us. Computing is then measured on this machine.",
     CLI_OF_MEMORY},
    {"device-file", 0, "DEVICE.json", NULL,
     "Instead of --storage: a description that moec device or moec-run --describe-device made on "
     "the device.",
     CLI_INPUT | CLI_OF_MEMORY},
    {"ctx", 0, "TOKENS", NULL,
     "Size of the KV cache in tokens (default 2048, or the model's limit if that is less).", CLI_OF_MEMORY},
    {"tokens", 'n', "N", NULL, "Count memory for a text of N tokens after a short prompt.", CLI_OF_MEMORY},
    {"profile", 0, "PROFILE.h5", NULL,
     "Instead of --data: measurements of the checkpoint, from moec profile.",
     CLI_INPUT | CLI_RARE | CLI_OF_LOSS},
    {"confidence", 0, "C", NULL,
     "Confidence of the interval whose upper end must be within --max-loss (default 0.95).",
     CLI_RARE | CLI_OF_LOSS},
    CLI_SAMPLES_OPTIONS,
    {"trust-profile", 0, NULL, NULL,
     "Use a profile that another program has changed, although its checksum no longer matches.", CLI_RARE},
    {"output", 'o', "OUT.moec", NULL, "The bundle to write.", CLI_OUTPUT | CLI_OF_OUTPUT},
    {"report", 0, "FILE.html", NULL, "Write a page about the search.", CLI_OUTPUT | CLI_OF_OUTPUT},
    {"json", 0, NULL, NULL, "Print the result as JSON.", CLI_OF_OUTPUT},
    CLI_ANYWAY_OPTION,
    CLI_MACHINE_OPTIONS,
    {0},
};

struct fit_job {
    const struct cli_args *args;
    const char *output;
    struct cli_measure_options measure;
    struct fit_memory memory;
    uint32_t n_slots; /* by bytes: of each layer */
    struct cli_fit_drafts drafts;
    struct moec_checkpoint *checkpoint; /* while the drafts are made */
    struct moec_source bundle, original;
    struct fit_device device;
    struct fit_room rooms[CLI_MAX_DRAFTS];              /* of the drafts */
    char *journal;                                      /* owned: path of what the search keeps */
    struct moec_progress journal_notes;                 /* that `units` reports to */
    uint8_t digests[CLI_MAX_DRAFTS][MOEC_SHA256_BYTES]; /* of the drafts */
    struct moec_units *units;
    struct moec_tune_fit fit;
    struct moec_tune_options tune;
    struct moec_tune_report report;
    struct cli_fit_result result;
    struct cli_progress progress;
    struct moec_claim page_claim;
};

static void begin_progress(struct fit_job *job)
{
    const char *policy = job->tune.policy;
    cli_progress_init(&job->progress, "fit", NULL, job->measure.is_quiet);
    job->progress.is_verbose = job->measure.is_verbose;
    /* Who writes a policy wants to read its log. */
    job->progress.has_notes = policy != NULL && strchr(policy, '.') != NULL;
}

/* ---- what is asked ---- */

static enum moec_status need(const struct cli_args *args, const char *option, const char *what,
                             struct moec_error *err)
{
    if (cli_has(args, option))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE, "%s", what);
}

static enum moec_status check_device(const struct cli_args *args, struct moec_error *err)
{
    MOEC_TRY(need(
        args, "memory",
        "--memory is missing: give the memory that moec-run may take on the device, such as --memory 600MiB",
        err));
    if (cli_has(args, "slots"))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--slots applies only to --objective bytes: without that option, --memory decides how many "
            "experts stay in memory");
    if (cli_has(args, "storage") != cli_has(args, "device-file"))
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "describe the device by one of two options: --device-file DEVICE.json, or --storage with "
        "sd, emmc, sata, ufs, nvme or RATE,LATENCY");
}

static enum moec_status check_bytes(const struct cli_args *args, struct moec_error *err)
{
    static const char *const idle[] = {"memory", "storage", "device-file", "ctx", "tokens"};
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        if (cli_has(args, idle[i]))
            return moec_fail(
                err, MOEC_ERR_USAGE,
                "--%s describes a device, but --objective bytes is for any device: leave out one of the two",
                idle[i]);
    return MOEC_OK;
}

/* The experts of a fit have hardly more bits than the smallest low copy, so a prefill would save a prompt next to
 * nothing (docs/measured/fit.md). */
static enum moec_status check_with(const struct cli_args *args, struct moec_error *err)
{
    const char *with = cli_has(args, "with") ? cli_text(args, "with") : "route,skip";
    if (strstr(with, "prefill") != NULL)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--with %s: moec fit does not search prefill, because a prefill reads copies of 2 bits or "
            "more, and the experts of a fit have hardly more than 2 bits. For experts of more bits, run "
            "'moec compile %s --data FILE --policy uniform --bits 4 --copies 2', then 'moec tune' on the "
            "bundle with '--with prefill'",
            with, args->positional[0]);
    if (strstr(with, "route") != NULL && strstr(with, "skip") != NULL)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "--with %s: moec fit searches route and skip together: leave the option out", with);
}

static enum moec_status read_options(struct fit_job *job, struct moec_error *err)
{
    const struct cli_args *args = job->args;
    MOEC_TRY(check_with(args, err));
    MOEC_TRY(cli_read_measure_options(args, &job->measure, err));
    if (cli_has(args, "profile") == (job->measure.data.path != NULL))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the loss is measured on your text: give either --data FILE or --profile");
    MOEC_TRY(need(args, "max-loss",
                  "--max-loss is missing: give the largest loss allowed, such as --max-loss 2%", err));
    MOEC_TRY(need(args, "output", "name the bundle with -o MODEL.moec", err));
    job->fit.by_bytes = cli_has(args, "objective") && strcmp(cli_text(args, "objective"), "bytes") == 0;
    MOEC_TRY(job->fit.by_bytes ? check_bytes(args, err) : check_device(args, err));
    job->output = cli_text(args, "output");
    job->result.page = cli_text(args, "report");
    job->tune.trial = cli_trial_options(&job->measure);
    job->tune.seed = job->measure.data.seed;
    job->tune.policy = cli_text(args, "policy");
    if (job->tune.policy != NULL)
        MOEC_TRY(cli_check_policy("decisions", job->tune.policy, moec_decision_policy_check, err));
    MOEC_TRY(cli_fraction(args, "max-loss", &job->tune.trial.max_loss, err));
    MOEC_TRY(cli_double(args, "confidence", 0.5001, 0.9999, &job->tune.trial.confidence, err));
    return job->fit.by_bytes ? MOEC_OK : fit_read_memory(args, &job->memory, err);
}

/* ---- drafts, device and rooms ---- */

static enum moec_status open_source(struct fit_job *job, const char *path, struct moec_source *source,
                                    struct moec_error *err)
{
    const struct cli_measure_options *measure = &job->measure;
    return moec_source_open(path, measure->memory.work_bytes, measure->by.n_threads,
                            measure->data.seq_len_tokens, source, err);
}

static enum moec_status open_draft(void *context, uint32_t draft, struct moec_error *err)
{
    struct fit_job *job = context;
    moec_source_close(&job->bundle);
    return open_source(job, job->drafts.paths[draft], &job->bundle, err);
}

/* By bytes: of each layer; fewer than one token takes could not be decided about. */
static enum moec_status read_slots(struct fit_job *job, const struct moec_config *config,
                                   struct moec_error *err)
{
    const char *slots = cli_has(job->args, "slots") ? cli_text(job->args, "slots") : MOEC_ROUTE_SLOTS;
    struct moec_decision_settings settings = {.route = "top-k"};
    struct moec_route route;
    MOEC_TRY(moec_route_read_slots(slots, config, &settings.n_slots, err));
    job->n_slots = settings.n_slots;
    return moec_route_from_settings(&settings, config, NULL, job->args->positional[0], &route, err);
}

/* Whether there may be a bundle for this device, or of so many slots: before any work. */
static enum moec_status admit(struct fit_job *job, const struct moec_config *config, struct moec_error *err)
{
    const char *path = job->args->positional[0];
    MOEC_TRY(fit_check_model(config, path, err));
    if (job->fit.by_bytes)
        return read_slots(job, config, err);
    MOEC_TRY(fit_admit(&job->memory, job->checkpoint, path, err));
    return fit_device_check(job->args, &job->device, config, err);
}

static enum moec_status make_drafts(struct fit_job *job, struct moec_error *err)
{
    struct cli_fit_drafts *drafts = &job->drafts;
    const char *path = job->args->positional[0];
    drafts->output = job->output;
    drafts->measure = &job->measure;
    drafts->progress = &job->progress;
    drafts->max_loss = job->tune.trial.max_loss;
    drafts->confidence = job->tune.trial.confidence;
    drafts->profile = cli_text(job->args, "profile");
    drafts->trusts_profile = cli_has(job->args, "trust-profile");
    MOEC_TRY(moec_checkpoint_open(path, &job->checkpoint, err));
    cli_say_checkpoint(&job->progress, job->checkpoint);
    moec_checkpoint_choose_rope(job->checkpoint, job->measure.data.seq_len_tokens);
    MOEC_TRY(admit(job, moec_checkpoint_config(job->checkpoint), err));
    if (job->result.page != NULL)
        MOEC_TRY(moec_claim_take(&job->page_claim, job->result.page, err));
    MOEC_TRY(cli_fit_drafts_make(drafts, job->checkpoint, err));
    moec_checkpoint_close(job->checkpoint);
    job->checkpoint = NULL;
    job->measure.data.seq_len_tokens = drafts->windows.seq_len_tokens;
    cli_progress_end(&job->progress);
    begin_progress(job);
    return open_source(job, path, &job->original, err);
}

static enum moec_status record(const struct fit_job *job, uint32_t draft, const struct moec_foretell_run *ran,
                               struct moec_foretell **out, struct moec_error *err)
{
    return moec_foretell_recorded(job->fit.by_bytes ? NULL : &job->device.described, job->drafts.paths[draft],
                                  ran, out, err);
}

/* What experts have of the device's memory; by bytes as much as holds the slots. */
static enum moec_status buffer_of(const struct fit_job *job, uint32_t draft,
                                  const struct moec_foretell *recorded,
                                  const struct moec_decision_settings *settings, uint64_t *out,
                                  struct moec_error *err)
{
    *out = job->rooms[draft].buffer_bytes;
    return job->fit.by_bytes ? moec_foretell_slots_bytes(recorded, settings, out, err) : MOEC_OK;
}

static enum moec_status foretell(void *context, uint32_t draft, const struct moec_foretell_run *ran,
                                 struct moec_foretold *out, struct moec_error *err)
{
    struct fit_job *job = context;
    struct moec_foretell *recorded = NULL;
    uint64_t buffer_bytes = 0;
    MOEC_TRY(record(job, draft, ran, &recorded, err));
    enum moec_status status = buffer_of(job, draft, recorded, ran->settings, &buffer_bytes, err);
    if (status == MOEC_OK)
        status = moec_foretell_time(recorded, buffer_bytes, out, err);
    moec_foretell_free(recorded);
    return status;
}

/* Whether a plan that the loss allows runs in the memory. */
static enum moec_status check_rooms(const struct fit_job *job, struct moec_error *err)
{
    uint64_t least_bytes = UINT64_MAX;
    char asked[24], least[24];
    for (uint32_t i = 0; i < job->drafts.n; i++) {
        if (job->rooms[i].n_slots > 0)
            return MOEC_OK;
        least_bytes = job->rooms[i].least_bytes < least_bytes ? job->rooms[i].least_bytes : least_bytes;
    }
    return moec_fail(err, MOEC_ERR_BUDGET,
                     "no bundle of '%s' that loses at most %g%% runs in %s of memory: give --memory %s, or a "
                     "larger --max-loss",
                     job->args->positional[0], 100 * job->tune.trial.max_loss,
                     cli_memory_text(asked, job->memory.request.budget_bytes),
                     cli_budget_text(least, least_bytes));
}

/* ---- looks ---- */

static void add_look(struct cli_fit_result *result, const char *name, double amount)
{
    struct cli_fit_look *look = &result->looks[result->n_look++];
    (void)snprintf(look->name, sizeof look->name, "%s", name);
    look->amount = amount;
}

/* The winner as it will run, in a buffer of so many bytes: its time, or what it reads. */
static enum moec_status foretell_winner(const struct fit_job *job, const struct moec_foretell *recorded,
                                        uint64_t buffer_bytes, double *amount, struct moec_error *err)
{
    const struct moec_foretold *chosen = &job->result.foretold;
    struct moec_foretold foretold;
    MOEC_TRY(moec_foretell_with(recorded, buffer_bytes, chosen->evict, chosen->predict, &foretold, err));
    *amount = job->fit.by_bytes ? foretold.read_bytes : foretold.token_ns;
    return MOEC_OK;
}

/* What a token would take with half and twice the memory, and from half and twice the storage. */
static enum moec_status look_around(struct fit_job *job, struct moec_foretell *recorded,
                                    struct moec_error *err)
{
    static const struct {
        const char *memory, *storage;
        double factor;
    } around[] = {{"with half the memory", "from half the storage", 0.5},
                  {"with twice the memory", "from twice the storage", 2}};
    const char *path = job->drafts.paths[job->report.winner.draft];
    const uint64_t buffer_bytes = job->rooms[job->report.winner.draft].buffer_bytes;
    for (size_t i = 0; i < 2; i++) {
        struct fit_memory memory = job->memory;
        struct fit_room room;
        double token_ns = NAN;
        memory.request.budget_bytes = (uint64_t)((double)memory.request.budget_bytes * around[i].factor);
        MOEC_TRY(fit_room_find(&memory, path, &room, err));
        if (room.buffer_bytes > 0)
            MOEC_TRY(foretell_winner(job, recorded, room.buffer_bytes, &token_ns, err));
        add_look(&job->result, around[i].memory, token_ns);
    }
    for (size_t i = 0; i < 2; i++) {
        double token_ns = NAN;
        fit_device_scale(&job->device, around[i].factor);
        enum moec_status status = moec_foretell_move(recorded, &job->device.described, err);
        fit_device_scale(&job->device, 1 / around[i].factor);
        MOEC_TRY(status);
        MOEC_TRY(foretell_winner(job, recorded, buffer_bytes, &token_ns, err));
        add_look(&job->result, around[i].storage, token_ns);
    }
    return MOEC_OK;
}

static const char *name_without(const struct moec_decision_settings *settings)
{
    return strncmp(settings->route, "top-k", 5) == 0 ? "without the prior" : "without the skip";
}

/* The winner, whose eviction and predictor are chosen, with other memory and storage; then without one of its
 * decisions. */
static enum moec_status look(void *context, uint32_t draft, const struct moec_foretell_run *ran,
                             struct moec_error *err)
{
    const struct moec_decision_settings *settings = ran->settings;
    struct fit_job *job = context;
    struct moec_foretell *recorded = NULL;
    uint64_t buffer_bytes = 0;
    double amount = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(record(job, draft, ran, &recorded, err));
    MOEC_TRY_OUT(buffer_of(job, draft, recorded, settings, &buffer_bytes, err));
    if (strcmp(settings->route, job->report.winner.settings.route) != 0) {
        MOEC_TRY_OUT(foretell_winner(job, recorded, buffer_bytes, &amount, err));
        add_look(&job->result, name_without(settings), amount);
        goto out;
    }
    job->result.all_bytes = moec_foretell_all_bytes(recorded);
    job->result.fit.buffer_bytes = buffer_bytes;
    if (job->fit.by_bytes) {
        status = moec_foretell_time(recorded, buffer_bytes, &job->result.foretold, err);
        goto out;
    }
    MOEC_TRY_OUT(moec_foretell_best(recorded, buffer_bytes, &job->result.foretold, err));
    MOEC_TRY_OUT(foretell_winner(job, recorded, job->result.all_bytes, &job->result.fit.resident_ns, err));
    status = look_around(job, recorded, err);
out:
    moec_foretell_free(recorded);
    return status;
}

/* ---- what is kept ---- */

static enum moec_status digest_draft(const char *path, uint8_t digest[static MOEC_SHA256_BYTES],
                                     struct moec_error *err)
{
    struct moec_bundle *bundle = NULL;
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    moec_bundle_digest(bundle, digest);
    moec_bundle_close(bundle);
    return MOEC_OK;
}

/* What times and losses depend on beside a candidate. */
static enum moec_status describe_job(const struct fit_job *job, struct moec_job_text *text,
                                     struct moec_error *err)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    char hex[2 * MOEC_SHA256_BYTES + 1], *device = NULL;
    struct moec_sha256 sha;
    moec_job_line(text, "moec", "%s", MOEC_VERSION);
    moec_promise_digest_windows(job->drafts.data_digest, &job->drafts.windows, digest);
    moec_sha256_hex(digest, hex);
    moec_job_line(text, "windows", "%s", hex);
    moec_job_line(text, "confidence", "%.9g", job->tune.trial.confidence);
    moec_job_line(text, "foretold times", "revision %u", MOEC_FORETELL_REVISION);
    if (job->fit.by_bytes) {
        moec_job_line(text, "slots", "%" PRIu32, job->n_slots);
        return MOEC_OK;
    }
    MOEC_TRY(moec_device_write(&job->device.described, &device, err));
    moec_sha256_init(&sha);
    moec_sha256_update(&sha, device, strlen(device));
    moec_sha256_finish(&sha, digest);
    free(device);
    moec_sha256_hex(digest, hex);
    moec_job_line(text, "device", "%s", hex);
    moec_job_line(text, "memory", "%" PRIu64 " of a context of %" PRIu32, job->memory.request.budget_bytes,
                  job->memory.n_context);
    return MOEC_OK;
}

/* What becomes of a journal is said in any case; the search's other notes are for --verbose. */
static void show_note(void *context, const char *line)
{
    cli_progress_note(context, line);
}

static enum moec_status open_journal(struct fit_job *job, struct moec_error *err)
{
    struct moec_job_text *text = NULL;
    job->journal_notes = cli_progress_observer(&job->progress);
    job->journal_notes.note = show_note;
    for (uint32_t i = 0; i < job->drafts.n; i++)
        MOEC_TRY(digest_draft(job->drafts.paths[i], job->digests[i], err));
    if (asprintf(&job->journal, "%s.search.journal", job->output) < 0) {
        job->journal = NULL;
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: path of a file beside the output");
    }
    MOEC_TRY(moec_alloc((void **)&text, 1, sizeof *text, "the description of a job", err));
    enum moec_status status = describe_job(job, text, err);
    if (status == MOEC_OK)
        status = moec_units_open(job->journal, MOEC_UNITS_AUTO, text, &job->journal_notes, &job->units, err);
    free(text);
    job->tune.units = job->units;
    job->tune.draft_digests = job->digests;
    return status;
}

static void close_journal(struct fit_job *job, bool is_finished)
{
    if (is_finished)
        moec_units_discard(job->units);
    else
        moec_units_close(job->units);
    free(job->journal);
}

/* What each draft has room for on the device. */
static enum moec_status find_rooms(struct fit_job *job, struct moec_error *err)
{
    const struct cli_fit_drafts *drafts = &job->drafts;
    const struct moec_progress progress = cli_progress_observer(&job->progress);
    const struct moec_device_options how = {.n_threads = job->measure.by.n_threads, .progress = &progress};
    MOEC_TRY(fit_device_open(job->args, drafts->paths[0], job->output, &how, &job->device, err));
    for (uint32_t i = 0; i < drafts->n; i++) {
        MOEC_TRY(fit_room_find(&job->memory, drafts->paths[i], &job->rooms[i], err));
        job->fit.n_slots[i] = job->rooms[i].n_slots;
        job->fit.holds_all[i] = job->rooms[i].holds_all;
        if (job->tune.shared.n_slots <
            job->rooms[i].n_slots) /* each plan has its own; this is checked alone */
            job->tune.shared.n_slots = job->rooms[i].n_slots;
    }
    return check_rooms(job, err);
}

static enum moec_status prepare(struct fit_job *job, struct moec_error *err)
{
    job->tune.shared.n_slots = job->n_slots;
    for (uint32_t i = 0; i < job->drafts.n; i++) {
        job->fit.n_slots[i] = job->n_slots;
        job->fit.holds_all[i] = job->n_slots >= job->original.config->n_expert;
    }
    if (!job->fit.by_bytes)
        MOEC_TRY(find_rooms(job, err));
    job->tune.trial.n_prompt = job->measure.data.seq_len_tokens / 2;
    job->fit.foretell = foretell;
    job->fit.look = look;
    job->fit.context = job;
    job->fit.n_measured = MOST_MEASURED;
    job->fit.n_search = SEARCH_WINDOWS;
    job->fit.takes_all_certificate = cli_has(job->args, "certificate-samples");
    job->tune.with_route = job->tune.with_skip = true;
    job->tune.shared.decode_only = true;
    job->tune.fit = &job->fit;
    return open_journal(job, err);
}

/* ---- the result ---- */

static void fill_result(struct fit_job *job)
{
    const struct moec_tune_report *report = &job->report;
    const struct moec_foretold *foretold = &job->result.foretold;
    const struct moec_tune_candidate *compiled =
        report->compiled != MOEC_TUNE_NO_DRAFT ? &report->plain[report->compiled] : NULL;
    struct moec_bundle_fit *fit = &job->result.fit;
    job->result.file = job->output;
    job->result.memory = cli_text(job->args, "memory");
    job->result.report = report;
    job->result.by_bytes = job->fit.by_bytes;
    job->result.compiled_read_bytes = compiled != NULL ? compiled->foretold.read_bytes : 0;
    if (job->fit.by_bytes)
        return;
    fit->memory_bytes = job->memory.request.budget_bytes;
    fit->n_context = job->memory.n_context;
    fit->token_ns = foretold->token_ns;
    fit->compiled_ns = compiled != NULL ? compiled->foretold.token_ns : 0;
    fit_device_speed(&job->device, &fit->bytes_per_second, &fit->latency_ns);
    (void)snprintf(fit->evict, sizeof fit->evict, "%s", foretold->evict);
    (void)snprintf(fit->predict, sizeof fit->predict, "%s", foretold->predict);
}

static enum moec_status write_winner(struct fit_job *job, struct moec_error *err)
{
    const struct moec_tune_report *report = &job->report;
    const bool decides = moec_decision_settings_are_on(&report->decisions.settings);
    struct moec_file file;
    MOEC_TRY(moec_bundle_put_fit(
        job->drafts.paths[report->winner.draft], job->fit.by_bytes ? NULL : &job->result.fit,
        decides ? &report->decisions : NULL, &report->certificate, job->output, err));
    MOEC_TRY(moec_file_open(&file, job->output, err));
    job->result.file_bytes = file.n_bytes;
    moec_file_close(&file);
    return MOEC_OK;
}

/* --report, also where nothing is proven, which is when it is needed most. `status` of the fit. */
static enum moec_status write_page(const struct fit_job *job, enum moec_status status, struct moec_error *err)
{
    struct moec_error failed = {0};
    char model[256];
    if (job->result.page == NULL || (status != MOEC_OK && status != MOEC_ERR_TARGET))
        return status;
    cli_base_name(job->args->positional[0], model, sizeof model);
    const struct cli_fit_page page = {.result = &job->result,
                                      .model = model,
                                      .data = job->drafts.data_name,
                                      .max_loss = job->tune.trial.max_loss,
                                      .confidence = job->tune.trial.confidence,
                                      .failure = status == MOEC_OK ? NULL : err->message};
    const enum moec_status written = cli_fit_page_write(&page, job->result.page, &failed);
    if (written != MOEC_OK && status == MOEC_OK)
        *err = failed;
    else if (written != MOEC_OK)
        cli_print(stderr, "the report was not written: %s\n", failed.message);
    return status == MOEC_OK ? written : status;
}

static enum moec_status fit(struct fit_job *job, struct moec_error *err)
{
    MOEC_TRY(read_options(job, err));
    begin_progress(job);
    MOEC_TRY(make_drafts(job, err));
    MOEC_TRY(prepare(job, err));
    const struct moec_trial_inputs inputs = {.bundle = &job->bundle,
                                             .original = &job->original,
                                             .windows = &job->drafts.windows,
                                             .data_digest = job->drafts.data_digest,
                                             .data_name = job->drafts.data_name};
    const struct moec_progress progress = cli_progress_observer(&job->progress);
    const struct moec_tune_drafts drafts = {.n = job->drafts.n, .open = open_draft, .context = job};
    enum moec_status status = moec_tune(&inputs, &job->tune, &drafts, &progress, &job->report, err);
    status = cli_interrupt_search(status, err);
    moec_source_close(&job->bundle);
    fill_result(job);
    if (status == MOEC_OK)
        status = write_winner(job, err);
    MOEC_TRY(write_page(job, status, err));
    cli_progress_end(&job->progress);
    if (cli_has(job->args, "json"))
        return cli_print_fit_json(&job->result, err);
    cli_print_fit(&job->result);
    return MOEC_OK;
}

static int run_fit(const struct cli_args *args)
{
    struct fit_job job = {.args = args};
    struct moec_error err = {0};
    const enum moec_status status = fit(&job, &err);
    cli_progress_end(&job.progress);
    moec_tune_report_release(&job.report);
    moec_source_close(&job.original);
    moec_source_close(&job.bundle);
    moec_checkpoint_close(job.checkpoint);
    fit_device_release(&job.device, status == MOEC_OK);
    cli_fit_drafts_release(&job.drafts, status == MOEC_OK);
    moec_claim_release(&job.page_claim);
    close_journal(&job, status == MOEC_OK);
    return status == MOEC_OK ? CLI_OK : cli_interrupt_fail(args, &err);
}

const struct cli_command cli_command_fit = {
    .name = "fit",
    .model = CLI_CHECKPOINT,
    .summary = "compile the fastest bundle for a device, within a loss",
    .usage = "MODEL --data FILE",
    .about = "Chooses bits, routes, skipped experts, eviction and prediction together, so that a token "
             "takes the least time with the device's memory and storage. fit proves that all of these "
             "together lose at most --max-loss. moec run, chat, bench and moec-run take the settings from "
             "the bundle.",
    .details =
        "If no bundle of the model fits into --memory, fit refuses the command at once. fit makes five "
        "plans of bits, which lose from a tenth to all of --max-loss. If all experts of a plan fit "
        "into memory, fit takes the plan with the least loss, and no routes. Otherwise it tries each "
        "plan with routes that prefer experts in memory and skip others, in as many slots as memory "
        "leaves: at most 24 combinations. For each combination, fit runs text on this machine, and "
        "replays the routers' choices on the described device. fit then tests the best plans and "
        "settings on text that the search has not used, from the safest to the fastest, until one "
        "fails, and writes the last one that passed.\n"
        "The bundle that moec compile would write is always a candidate. fit writes no bundle for "
        "which it predicts a token over 2 % slower than with that one. After Ctrl-C, the same command "
        "continues the work. docs/fit.md describes the search.\n"
        "--objective bytes needs no device: it finds the bundle with which a token reads the fewest "
        "bytes of experts, with --slots experts of each layer in memory.",
    .examples = "moec fit MODEL --data mytext.txt --max-loss 2% --memory 600MiB --storage sd -o model.moec\n"
                "moec-run model.moec -p \"Once upon a time\" --memory 600MiB",
    .more_examples = "moec fit MODEL --data mytext.txt --max-loss 2% --memory 64MiB --storage 100MB/s,200us "
                     "-o model.moec\n"
                     "moec-run --describe-device first.moec -o card.json    # on the device\n"
                     "moec fit MODEL --data mytext.txt --max-loss 2% --memory 600MiB --device-file card.json "
                     "-o model.moec",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_fit,
    .is_offline = true,
};
