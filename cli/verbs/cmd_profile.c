/* A journal is neither continued nor replaced unless --resume says so. It goes once the profile is written,
 * and before anything is drawn or printed. The first rank alone claims the name, writes and prints. */
#include "cli/options/nearest.h"
#include "cli/options/outputs.h"
#include "cli/output/compare_output.h"
#include "cli/output/figure_output.h"
#include "cli/output/forecast_output.h"
#include "cli/output/routing_report.h"
#include "cli/output/study_output.h"
#include "cli/output/verdict_output.h"
#include "cli/print/print.h"
#include "cli/settings/device_options.h"
#include "cli/settings/measure_options.h"
#include "cli/settings/route_options.h"
#include "cli/terminal/checkpoint_note.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/phase_output.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "cli/verbs/profile_weights.h"
#include "cli/verbs/run_profile.h"
#include "formats/base/claim.h"
#include "formats/profile/profile_h5.h"
#include "profiler/common/available_memory.h"
#include "profiler/common/unit.h"
#include "profiler/evaluate/metrics.h"
#include "profiler/profile/weight_studies.h"
#include "profiler/profile/work_plan.h"
#include "profiler/report/expert_table.h"
#include "profiler/report/heatmap.h"
#include "profiler/report/terminal_heatmap.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct cli_option options[] = {
    CLI_DATA_OPTIONS,
    CLI_SAMPLES_OPTIONS,
    CLI_SENSITIVITY_SAMPLES_OPTION,
    {"bits", 0, CLI_LIST, "1|2|3|4|5|6|8",
     "Bitwidths to measure: any of 1, 2, 3, 4, 5, 6 and 8 (default 2,3,4,8).", CLI_OF_BITS},
    CLI_QUANTISER_OPTIONS(0),
    CLI_SENSITIVITY_OPTIONS(0, "weights|",
                            "weights\ta first look at weights alone: needs no --data, makes no profile\n",
                            "Estimate sensitivities if measuring takes longer (default 30min)."),
    {"output", 'o', "PROFILE.h5", NULL, "The profile to write (HDF5).", CLI_OUTPUT | CLI_OF_OUTPUT},
    {"resume", 0, NULL, NULL, "Continue an interrupted run.", 0},
    {"dry-run", 0, NULL, NULL, "Show what a run would take; measure nothing.", CLI_OF_OUTPUT},
    {"heatmap", 0, "FILE", NULL, "Sensitivities as .png, .svg, .pdf, .csv; repeatable.",
     CLI_REPEATS | CLI_OUTPUT | CLI_OF_OUTPUT},
    CLI_FIGURE_OPTIONS,
    {"table", 0, "FILE.csv", NULL, "Write the loss of every expert at every bitwidth.",
     CLI_OUTPUT | CLI_OF_OUTPUT},
    {"show", 0, "PROFILE.h5", NULL, "Show this profile instead of measuring.", CLI_INPUT | CLI_OF_OUTPUT},
    {"compare", 0, "A.h5", NULL,
     "Compare two profiles of models of the same shape (--compare A.h5 B.h5): rank correlations, "
     "the loss on one of bitwidths chosen from the other, and the experts that differ most. --plots "
     "draws the comparison.",
     CLI_RARE | CLI_INPUT | CLI_OF_LOSS},
    {"study", 0, "LIST", NULL,
     "Further studies, separated by commas, with the passes over the data that each costs (b: "
     "number of bitwidths):\n"
     "projections\tgate, up or down of all experts: 3 b\n"
     "layers\tall experts of a layer: half a pass x MoE layers x b\n"
     "dense\texperts alone, and all weights: b\n"
     "quantizers\tquantisers and group sizes: 15 b\n"
     "ranks\texperts dropped or replaced by rank: 4 x top-k\n"
     "sparsity\tsmallest activations set to zero: 16\n"
     "choices\tevery other expert instead of a token's last: half a pass x MoE layers x experts\n"
     "all, none\tall but choices; none (default)\n"
     "With --show: print these studies of the profile, by name (rank/loss), by group (rank) or all "
     "of them; list prints the names.",
     CLI_RARE | CLI_OF_LOSS},
    {"arithmetic", 0, "HOW", "canonical|int8|bf16",
     "How products are computed, except those of the original and its routing, which are always "
     "canonical. Losses are against the original and include this rounding:\n"
     "canonical\twith unrounded activations (default)\n"
     "int8\twith activations rounded to INT8\n"
     "bf16\twith activations and weights rounded to BF16, on a GPU's tensor cores",
     CLI_RARE | CLI_OF_LOSS},
    CLI_ANYWAY_OPTION,
    {"projections", 0, NULL, NULL,
     "Also measure each projection of every expert alone; takes up to three times as long as "
     "measuring experts.",
     CLI_RARE | CLI_OF_LOSS},
    {"show-bits", 0, "BITS", "1|2|3|4|5|6|8",
     "Bitwidth for --show and --heatmap: 1, 2, 3, 4, 5, 6 or 8 (default: the lowest in the profile).",
     CLI_RARE | CLI_OF_OUTPUT},
    {"color", 0, "WHEN", "auto|always|never", "Colour on the terminal: auto (default), always or never.",
     CLI_RARE | CLI_OF_OUTPUT},
    {"trust-profile", 0, NULL, NULL,
     "Show a profile that another program has changed, although its checksum no longer matches.", CLI_RARE},
    {"json", 0, NULL, NULL, "Print the result as JSON, including the verdict; also with --show.",
     CLI_RARE | CLI_OF_OUTPUT},
    CLI_OFFLINE_DEVICE_OPTIONS(CLI_RARE),
    CLI_MACHINE_OPTIONS,
    {0},
};

static const uint32_t profiled_bits[] = {1, 2, 3, 4, 5, 6, 8, 0};

#define STUDY_LIST_BYTES 1024

struct profile_job {
    const struct cli_args *args;
    struct cli_measure_options measure;
    struct moec_checkpoint *checkpoint;
    struct moec_profile profile;
    struct cli_progress progress;
    struct cli_phases phases;
    struct moec_claim claim; /* of the output and its journal */
    char *journal;           /* path, owned; NULL without -o */
    uint32_t show_bits;      /* 0 = the lowest */
    double seconds;
};

/* Heatmaps, and the table of the same. */
static enum moec_status draw_heatmaps(const struct profile_job *job, struct moec_error *err)
{
    if (cli_has(job->args, "table"))
        MOEC_TRY(moec_expert_table_write(&job->profile, cli_text(job->args, "table"), err));
    for (uint32_t i = 0; i < cli_count(job->args, "heatmap"); i++)
        MOEC_TRY(moec_heatmap_write(&job->profile, job->show_bits, cli_repeat(job->args, "heatmap", i), err));
    return MOEC_OK;
}

static enum moec_status show_profile(const struct profile_job *job, struct moec_error *err)
{
    const char *colour = cli_text(job->args, "color");
    struct cli_terminal terminal = cli_terminal_detect(colour != NULL ? colour : "auto");
    struct moec_terminal shown = {
        .columns = (uint32_t)terminal.columns,
        .colour = (enum moec_terminal_colour)terminal.colour,
        .utf8 = terminal.is_utf8,
    };
    char *text = NULL;
    MOEC_TRY(moec_terminal_heatmap(&job->profile, job->show_bits, &shown, &text, err));
    fputs(text, stdout);
    free(text);
    return MOEC_OK;
}

/* Experts that the data never reached, by name, and what is assumed for them. */
static void print_unreached(const struct moec_profile *profile, bool is_verbose)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        for (uint32_t e = 0; e < profile->n_expert; e++)
            n += !moec_profile_expert_reached(profile, s, e);
    if (n == 0 && !is_verbose)
        return;
    if (n == 0) {
        cli_print(stdout, "experts: the data reached all %" PRIu32 "\n",
                  profile->n_moe_layer * profile->n_expert);
        return;
    }
    cli_print(stdout,
              "experts: the data never reached %" PRIu32 " of %" PRIu32
              "; searches treat each as the most sensitive expert of its layer:\n",
              n, profile->n_moe_layer * profile->n_expert);
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        for (uint32_t e = 0; e < profile->n_expert; e++)
            if (!moec_profile_expert_reached(profile, s, e))
                cli_print(stdout, "  layer %" PRIu32 " expert %" PRIu32 "\n", profile->moe_layers[s], e);
}

static enum moec_status loss_of(const struct moec_profile *profile, const struct moec_measure *measure,
                                struct moec_loss *loss, struct moec_error *err)
{
    struct moec_loss_options loss_options = moec_loss_options_default();
    const struct moec_loss_windows windows = moec_profile_loss_windows(profile, MOEC_PART_ALL);
    return moec_loss_measure(&windows,
                             &(struct moec_paired_nll){profile->reference.nll, measure->nll, measure->kl},
                             &loss_options, loss, err);
}

static uint32_t stdout_columns(const struct profile_job *job)
{
    const char *colour = cli_text(job->args, "color");
    return (uint32_t)cli_terminal_detect(colour != NULL ? colour : "auto").columns;
}

/* Names of the studies that this run measured, "" for none; of loss studies those of `datasets`. */
static void measured_studies(const struct profile_job *job, const char *const *datasets, uint32_t n_dataset,
                             char *list, size_t capacity)
{
    size_t used = 0;
    list[0] = '\0';
    for (uint32_t s = 0; s < MOEC_WEIGHT_STUDY_EXPERT_PROJECTIONS; s++) {
        const char *group = moec_weight_study_group((enum moec_weight_study)s);
        for (uint32_t d = 0; d < n_dataset && (job->measure.measures.studies >> s & 1u) != 0; d++) {
            char name[64];
            (void)snprintf(name, sizeof name, "%s/%s", group, datasets[d]);
            /* What makes no sense for the model was left out. */
            if (moec_studies_find(&job->profile.studies, name) != NULL)
                used += (size_t)snprintf(list + used, capacity - used, "%s%s", used > 0 ? "," : "", name);
        }
    }
}

static enum moec_status print_measured_studies(const struct profile_job *job, struct moec_error *err)
{
    static const char *const loss = "loss";
    char list[STUDY_LIST_BYTES];
    measured_studies(job, &loss, 1, list, sizeof list);
    if (list[0] == '\0')
        return MOEC_OK;
    (void)putchar('\n');
    MOEC_TRY(cli_print_studies(&job->profile.studies, list, stdout_columns(job), err));
    (void)putchar('\n');
    return MOEC_OK;
}

/* What --quantizer auto chose, and between what. */
static enum moec_status print_choices(const struct profile_job *job, struct moec_error *err)
{
    const struct moec_profile *profile = &job->profile;
    const struct moec_study *study = moec_studies_find(&profile->studies, "candidate/kl");
    if (profile->quantizer != MOEC_QUANTIZER_AUTO || study == NULL)
        return MOEC_OK;
    (void)putchar('\n');
    MOEC_TRY(cli_print_studies(&profile->studies, "candidate/kl", stdout_columns(job), err));
    cli_print(stdout, "\nquantizer:");
    for (uint64_t i = 0; i < study->axes[1].n; i++) {
        const uint32_t bits = (uint32_t)moec_study_axis_value(&study->axes[1], i);
        cli_print(stdout, "%s %s %s at %" PRIu32 " bit%s", i > 0 ? "," : "",
                  moec_quantizer_name((enum moec_quantizer)profile->choices[bits].quantizer),
                  moec_scheme_name((enum moec_scheme)profile->choices[bits].scheme), bits,
                  bits == 1 ? "" : "s");
    }
    cli_print(stdout, "\n\n");
    return MOEC_OK;
}

/* "parts: 256 windows search, 128 select, 512 certify (not measured)", and how many single experts were measured on. */
static void print_parts(const struct moec_profile *profile, bool is_verbose)
{
    cli_print(stdout, "parts: %" PRIu32 " windows search, %" PRIu32 " select, %" PRIu32 " certify%s%s\n",
              moec_profile_part_count(profile, MOEC_PART_SEARCH),
              moec_profile_part_count(profile, MOEC_PART_SELECT),
              moec_profile_part_count(profile, MOEC_PART_CERTIFICATE),
              profile->n_window < profile->n_drawn ? " (not measured)" : "",
              profile->parts_by_document ? ", no document in two parts" : "");
    if (profile->n_bits > 0 && is_verbose)
        cli_print(stdout, "single experts: measured on %s %" PRIu32 " windows\n",
                  profile->n_sensitivity_window < profile->n_window ? "the first" : "all",
                  profile->n_sensitivity_window);
}

/* A row of the table of whole models. */
static enum moec_status print_whole(const struct moec_profile *profile, uint32_t bits,
                                    const struct moec_measure *measure, struct moec_error *err)
{
    struct moec_loss loss;
    char interval[48];
    MOEC_TRY(loss_of(profile, measure, &loss, err));
    (void)snprintf(interval, sizeof interval, "%.3f%% to %.3f%%", 100 * loss.low, 100 * loss.high);
    cli_print(stdout, "%2" PRIu32 " bit%-9s %9.3f%%   %-24s %10.5f%s\n", bits, bits == 1 ? "" : "s",
              100 * loss.loss, interval, loss.mean_kl, bits == profile->baseline_bits ? "   (baseline)" : "");
    return MOEC_OK;
}

static enum moec_status print_wholes(const struct moec_profile *profile, struct moec_error *err)
{
    bool has_baseline = false;
    for (uint32_t u = 0; u < profile->n_uniform; u++)
        has_baseline = has_baseline || profile->uniform_bits[u] == profile->baseline_bits;
    cli_print(stdout, "\nall experts at       loss   90%% interval              KL, nats\n");
    for (uint32_t u = 0; u < profile->n_uniform; u++)
        MOEC_TRY(print_whole(profile, profile->uniform_bits[u], &profile->uniform[u], err));
    if (!has_baseline)
        MOEC_TRY(print_whole(profile, profile->baseline_bits, &profile->baseline, err));
    (void)putchar('\n');
    return MOEC_OK;
}

/* What took how long, and where the profile is. */
static void print_end(const struct profile_job *job, bool is_verbose)
{
    const struct moec_profile *profile = &job->profile;
    const struct moec_study *studies = moec_studies_find(&profile->studies, "cost/studies");
    const double extra = studies != NULL ? studies->values[0] : 0, passes = profile->cost_passes - extra;
    cli_print(stdout, "\ncost: %.1f passes", passes);
    if (profile->naive_passes > 0)
        cli_print(stdout, " instead of %.0f (%.2f)", profile->naive_passes, passes / profile->naive_passes);
    if (studies != NULL)
        cli_print(stdout, ", and %.1f for studies", extra);
    cli_print(stdout, ", %.1f s\n", job->seconds);
    cli_print_peak(&job->phases);
    if (cli_has(job->args, "output"))
        cli_print(stdout, "wrote '%s'\nnext: moec profile --show %s%s\n", cli_text(job->args, "output"),
                  cli_text(job->args, "output"), is_verbose ? "" : " --verbose");
}

static enum moec_status print_report(const struct profile_job *job, struct moec_error *err)
{
    const struct moec_profile *profile = &job->profile;
    const bool is_verbose = job->measure.is_verbose;
    struct moec_loss loss;
    MOEC_TRY(loss_of(profile, &profile->baseline, &loss, err));
    cli_print_wrapped(stdout, 4,
                      "perplexity of the original: %.4f on %" PRIu32 " of %" PRIu64 " windows (%" PRIu64
                      " tokens scored)\n",
                      loss.reference, profile->n_window, profile->n_window_available, loss.n_token);
    print_parts(profile, is_verbose);
    MOEC_TRY(print_wholes(profile, err));
    print_unreached(profile, is_verbose);
    cli_print(stdout, "sensitivity: %s (%s)\n",
              profile->sensitivity == MOEC_SENSITIVITY_FAST   ? "estimated from local errors"
              : profile->sensitivity == MOEC_SENSITIVITY_NONE ? "not measured"
                                                              : "measured",
              profile->sensitivity_choice);
    MOEC_TRY(cli_print_verdict(profile, is_verbose, err));
    if (is_verbose)
        cli_print_routing(profile, "\n");
    MOEC_TRY(print_choices(job, err));
    MOEC_TRY(print_measured_studies(job, err));
    print_end(job, is_verbose);
    return MOEC_OK;
}

static struct moec_json_out *json_loss(const struct moec_loss *loss)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_double(node, "value", loss->compiled);
    cli_json_loss(node, loss);
    return node;
}

static struct moec_json_out *json_uniform(const struct moec_profile *profile)
{
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t u = 0; u < profile->n_uniform; u++) {
        struct moec_loss loss = {0};
        if (loss_of(profile, &profile->uniform[u], &loss, NULL) != MOEC_OK)
            continue;
        struct moec_json_out *node = json_loss(&loss);
        moec_json_out_u64(node, "bits", profile->uniform_bits[u]);
        if (profile->uniform_bits[u] < 16) {
            const struct moec_quantizer_choice choice =
                moec_profile_quantizer(profile, profile->uniform_bits[u]);
            moec_json_out_string(node, "quantizer",
                                 moec_quantizer_name((enum moec_quantizer)choice.quantizer));
            moec_json_out_string(node, "scheme", moec_scheme_name((enum moec_scheme)choice.scheme));
        }
        moec_json_out_node(list, NULL, node);
    }
    return list;
}

static struct moec_json_out *json_unreached(const struct moec_profile *profile)
{
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        for (uint32_t e = 0; e < profile->n_expert; e++)
            if (!moec_profile_expert_reached(profile, s, e)) {
                struct moec_json_out *node = moec_json_out_object();
                moec_json_out_u64(node, "layer", profile->moe_layers[s]);
                moec_json_out_u64(node, "expert", e);
                moec_json_out_node(list, NULL, node);
            }
    return list;
}

/* What was asked for, as an array. */
static enum moec_status json_measured_studies(const struct profile_job *job, struct moec_json_out **out,
                                              struct moec_error *err)
{
    static const char *const datasets[] = {"loss", "loss_low", "loss_high", "kl"};
    char list[STUDY_LIST_BYTES];
    measured_studies(job, datasets, sizeof datasets / sizeof *datasets, list, sizeof list);
    const size_t used = strlen(list);
    if (job->measure.measures.projections &&
        moec_studies_find(&job->profile.studies, "projection/expert_loss") != NULL)
        (void)snprintf(list + used, sizeof list - used, "%sprojection/expert_loss", used > 0 ? "," : "");
    *out = moec_json_out_array();
    if (list[0] == '\0')
        return MOEC_OK;
    moec_json_out_free(*out);
    return cli_json_studies(&job->profile.studies, list, out, err);
}

static struct moec_json_out *json_parts(const struct moec_profile *profile)
{
    struct moec_json_out *node = moec_json_out_object();
    for (int p = 0; p < MOEC_PART_COUNT; p++)
        moec_json_out_u64(node, moec_part_name((enum moec_part)p),
                          moec_profile_part_count(profile, (enum moec_part)p));
    moec_json_out_u64(node, "sensitivity", profile->n_bits > 0 ? profile->n_sensitivity_window : 0);
    moec_json_out_u64(node, "measured", profile->n_window);
    moec_json_out_bool(node, "by_document", profile->parts_by_document);
    return node;
}

static enum moec_status print_json(const struct profile_job *job, struct moec_error *err)
{
    const struct moec_profile *profile = &job->profile;
    struct moec_loss loss;
    MOEC_TRY(loss_of(profile, &profile->baseline, &loss, err));
    struct moec_json_out *studies = NULL;
    MOEC_TRY(json_measured_studies(job, &studies, err));
    struct moec_json_out *root = moec_json_out_object();
    moec_json_out_string(root, "metric", profile->metric);
    moec_json_out_double(root, "value", loss.reference);
    if (moec_profile_is_chance(profile))
        moec_json_out_bool(root, "no_better_than_chance", true);
    moec_json_out_u64(root, "tokens", loss.n_token);
    moec_json_out_u64(root, "samples", profile->n_window);
    moec_json_out_node(root, "parts", json_parts(profile));
    moec_json_out_u64(root, "baseline_bits", profile->baseline_bits);
    moec_json_out_node(root, "baseline", json_loss(&loss));
    moec_json_out_node(root, "uniform", json_uniform(profile));
    moec_json_out_node(root, "unreached", json_unreached(profile));
    moec_json_out_string(root, "sensitivity",
                         profile->sensitivity == MOEC_SENSITIVITY_FAST   ? "fast"
                         : profile->sensitivity == MOEC_SENSITIVITY_NONE ? "none"
                                                                         : "exact");
    moec_json_out_string(root, "sensitivity_choice", profile->sensitivity_choice);
    struct moec_json_out *routing = cli_json_routing(profile);
    if (routing != NULL)
        moec_json_out_node(root, "routing", routing);
    moec_json_out_node(root, "studies", studies);
    moec_json_out_double(root, "cost_passes", profile->cost_passes);
    moec_json_out_double(root, "naive_passes", profile->naive_passes);
    if (!cli_has(job->args, "show")) {
        moec_json_out_double(root, "seconds", job->seconds);
        cli_json_peak(root, &job->phases);
        cli_json_phases(root, &job->phases);
    }
    const enum moec_status status = cli_json_verdict(root, profile, err);
    if (status != MOEC_OK) {
        moec_json_out_free(root);
        return status;
    }
    return cli_print_json(root, err);
}

static enum moec_status show_studies(const struct profile_job *job, struct moec_error *err)
{
    const char *list = cli_text(job->args, "study");
    if (!cli_has(job->args, "json"))
        return cli_print_studies(&job->profile.studies, list, stdout_columns(job), err);
    struct moec_json_out *studies = NULL;
    MOEC_TRY(cli_json_studies(&job->profile.studies, list, &studies, err));
    struct moec_json_out *root = moec_json_out_object();
    moec_json_out_node(root, "studies", studies);
    return cli_print_json(root, err);
}

static enum moec_status show(struct profile_job *job, struct moec_error *err)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    if (job->args->n_positional > 0 || cli_has(job->args, "data") || cli_has(job->args, "output"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--show takes a profile and nothing to measure: leave out MODEL, --data and -o");
    MOEC_TRY(moec_profile_read(cli_text(job->args, "show"), cli_has(job->args, "trust-profile"),
                               &job->profile, digest, err));
    MOEC_TRY(draw_heatmaps(job, err));
    const bool is_json = cli_has(job->args, "json");
    if (cli_has(job->args, "study")) {
        MOEC_TRY(show_studies(job, err));
    } else if (is_json) {
        MOEC_TRY(print_json(job, err));
    } else {
        if (job->profile.n_bits > 0)
            MOEC_TRY(show_profile(job, err));
        const bool is_verbose = cli_has(job->args, "verbose");
        print_parts(&job->profile, is_verbose);
        MOEC_TRY(cli_print_verdict(&job->profile, is_verbose, err));
        if (is_verbose)
            cli_print_routing(&job->profile, "\n");
    }
    return cli_write_figures(job->args, &job->profile, is_json, err);
}

/* Of several ranks the first one alone writes. */
static bool writes(const struct profile_job *job)
{
    return moec_ranks_own(job->args->ranks) == 0;
}

/* The journal stands beside the profile. One that is there already holds work that nobody asked to go on with
 * or to throw away. */
static enum moec_status find_journal(struct profile_job *job, struct moec_error *err)
{
    const char *output = cli_text(job->args, "output");
    struct moec_units_summary found;
    const bool resumes = cli_has(job->args, "resume");
    job->measure.journal.mode = resumes ? MOEC_UNITS_RESUME : MOEC_UNITS_NEW;
    if (output == NULL)
        return resumes
                   ? moec_fail(err, MOEC_ERR_USAGE, "--resume needs the profile's name: give -o PROFILE.h5")
                   : MOEC_OK;
    if (asprintf(&job->journal, "%s.journal", output) < 0) {
        job->journal = NULL;
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: path of the journal");
    }
    job->measure.journal.path = job->journal;
    if (!writes(job))
        return MOEC_OK;
    MOEC_TRY(cli_check_output(job->args, "output", job->journal, err));
    MOEC_TRY(moec_claim_take(&job->claim, output, err));
    if (resumes || !moec_path_exists(job->journal))
        return MOEC_OK;
    MOEC_TRY(moec_units_look(job->journal, &found, err));
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "an interrupted run left '%s' with %" PRIu64
        " units of work (%s, %.1f of %.1f passes): continue with --resume, or delete this file to start over",
        job->journal, found.n_unit, found.n_unit > 0 ? found.phase : "nothing", found.done_passes,
        found.total_passes);
}

/* What to type after a run that ended early with something in its journal. */
static void print_resume(const struct profile_job *job, enum moec_status status)
{
    struct moec_units_summary kept;
    if (status != MOEC_ERR_CANCELLED && status != MOEC_ERR_IO && status != MOEC_ERR_MEMORY)
        return;
    if (job->journal == NULL || !writes(job) || moec_units_look(job->journal, &kept, NULL) != MOEC_OK ||
        kept.n_unit == 0)
        return;
    cli_print(stderr, "%" PRIu64 " units of work are kept in '%s'; continue with:\n  ", kept.n_unit,
              job->journal);
    cli_print_again(stderr, job->args, "resume");
    fputc('\n', stderr);
}

/* Where nobody says how much memory there is to work in. */
static void choose_memory(struct profile_job *job)
{
    if (cli_has(job->args, "work-memory"))
        return;
    char chosen[24], given[24], line[128];
    const uint64_t all = moec_available_bytes("/proc", "/sys/fs/cgroup"),
                   available = all / job->args->n_local_ranks, /* each has a part */
        least = job->measure.memory.work_bytes;
    job->measure.memory.work_bytes = moec_work_plan_default_bytes(job->checkpoint, least, available);
    if (job->measure.memory.work_bytes == least || !job->measure.is_verbose)
        return;
    (void)snprintf(line, sizeof line, "work memory: %s of %s that are free, for all experts at all bitwidths",
                   cli_memory_text(chosen, job->measure.memory.work_bytes),
                   cli_memory_text(given, available));
    cli_progress_note(&job->progress, line);
}

/* What is measured exactly only within --time-limit is not long. */
static enum moec_status warn_long(struct profile_job *job, uint32_t n_bits, struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(job->checkpoint);
    const struct moec_forecast_request request = {.config = config,
                                                  .kernels = job->measure.by.kernels,
                                                  .n_threads = job->measure.by.n_threads,
                                                  .seq_len_tokens = job->measure.data.seq_len_tokens,
                                                  .n_bits = n_bits};
    const bool is_exact =
        job->measure.measures.sensitivity == MOEC_SENSITIVITY_EXACT || moec_config_is_encoder_decoder(config);
    return cli_warn_long_profile(&job->progress, &request, job->measure.data.parts.n_window, is_exact, err);
}

static enum moec_status estimate(struct profile_job *job, const struct cli_numbers *bits,
                                 struct moec_error *err)
{
    struct moec_profile_forecast forecast;
    cli_progress_init(&job->progress, "profile", NULL, job->measure.is_quiet);
    MOEC_TRY(moec_checkpoint_open(job->args->positional[0], &job->checkpoint, err));
    cli_say_checkpoint(&job->progress, job->checkpoint);
    choose_memory(job);
    MOEC_TRY(cli_estimate_profile(job->checkpoint, &job->measure, bits, &job->progress, &forecast, err));
    if (cli_has(job->args, "json"))
        return cli_print_forecast_json(&forecast, err);
    cli_print_forecast(&forecast);
    return MOEC_OK;
}

/* --study: a word that is none is answered with the one that was meant. */
static enum moec_status read_studies(const char *list, uint32_t *studies, struct moec_error *err)
{
    struct moec_error own = {0};
    char word[64];
    if (moec_weight_studies_parse(list, studies, &own) == MOEC_OK)
        return MOEC_OK;
    for (const char *at = list; *at != '\0'; at += *at == ',') {
        const size_t n = strcspn(at, ",");
        uint32_t one = 0;
        (void)snprintf(word, sizeof word, "%.*s", (int)n, at);
        at += n;
        if (moec_weight_studies_parse(word, &one, NULL) == MOEC_OK)
            continue;
        struct cli_nearest nearest = cli_nearest_of(word, strlen(word));
        for (int s = 0; s < MOEC_WEIGHT_STUDY_EXPERT_PROJECTIONS; s++) {
            const char *name = moec_weight_study_name((enum moec_weight_study)s);
            cli_nearest_offer(&nearest, name, strlen(name));
        }
        if (nearest.best != NULL)
            return moec_fail(err, MOEC_ERR_USAGE, "%s; did you mean '%s'?", own.message, nearest.best);
        break;
    }
    return moec_fail(err, MOEC_ERR_USAGE, "%s", own.message);
}

static enum moec_status write_results(const struct profile_job *job, struct moec_error *err)
{
    const struct cli_args *args = job->args;
    if (cli_has(args, "output"))
        MOEC_TRY(moec_profile_write(&job->profile, cli_text(args, "output"), err));
    if (job->journal != NULL)
        (void)unlink(job->journal);
    MOEC_TRY(draw_heatmaps(job, err));
    MOEC_TRY(cli_has(args, "json") ? print_json(job, err) : print_report(job, err));
    return cli_write_figures(args, &job->profile, cli_has(args, "json"), err);
}

static enum moec_status measure(struct profile_job *job, struct moec_error *err)
{
    uint32_t numbers[MOEC_PROFILE_MAX_BITS] = {2, 3, 4, 8};
    struct cli_numbers bits = {numbers, 4, MOEC_PROFILE_MAX_BITS};
    const struct cli_args *args = job->args;
    if (args->n_positional == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "missing argument: expected MODEL, or --show PROFILE.h5");
    MOEC_TRY(cli_read_measure_options(args, &job->measure, err));
    if (cli_has(args, "study"))
        MOEC_TRY(read_studies(cli_text(args, "study"), &job->measure.measures.studies, err));
    job->measure.measures.projections = cli_has(args, "projections");
    MOEC_TRY(cli_u32_list(args, "bits", profiled_bits, &bits, err));
    if (cli_profile_wants_weights(args)) {
        cli_progress_init(&job->progress, "profile", NULL, job->measure.is_quiet);
        return cli_profile_weights(args, &job->measure, &bits, job->show_bits, &job->progress, err);
    }
    if (job->measure.data.path == NULL)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "nothing to measure on: give --data FILE, or --sensitivity weights for a first look");
    job->measure.by.arithmetic = cli_arithmetic(args, NULL);
    MOEC_TRY(cli_open_place(args, job->measure.by.arithmetic, &job->measure.memory.place, err));
    if (cli_has(args, "dry-run"))
        return estimate(job, &bits, err);
    if (!cli_has(args, "output") && !cli_has(args, "heatmap") && !cli_has(args, "table") &&
        !cli_wants_figures(args))
        return moec_fail(err, MOEC_ERR_USAGE, "name the profile with -o PROFILE.h5");
    MOEC_TRY(find_journal(job, err));
    cli_progress_init(&job->progress, "profile", NULL, job->measure.is_quiet);
    job->progress.ranks = args->ranks;
    job->progress.is_verbose = job->measure.is_verbose;
    if (job->measure.is_verbose)
        cli_phases_start(&job->phases, &job->progress);
    double start = cli_seconds();
    MOEC_TRY(moec_checkpoint_open(args->positional[0], &job->checkpoint, err));
    cli_say_checkpoint(&job->progress, job->checkpoint);
    moec_checkpoint_choose_rope(job->checkpoint, job->measure.data.seq_len_tokens);
    choose_memory(job);
    MOEC_TRY(warn_long(job, bits.n, err));
    MOEC_TRY(cli_run_profile(job->checkpoint, &job->measure, &bits, &job->progress, &job->profile, err));
    job->seconds = cli_seconds() - start;
    MOEC_TRY(cli_phases_share(&job->phases, args->ranks, err));
    cli_phases_finish(&job->phases, &job->progress, job->measure.by.kernels, job->measure.by.n_threads);
    return writes(job) ? write_results(job, err) : MOEC_OK;
}

/* What looks at profiles or foretells is no work to share. */
static enum moec_status check_ranks(const struct cli_args *args, struct moec_error *err)
{
    static const char *const alone[] = {"show", "compare", "dry-run"};
    const char *name = cli_profile_wants_weights(args) ? "sensitivity weights" : NULL;
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++)
        name = cli_has(args, alone[i]) ? alone[i] : name;
    if (args->ranks == NULL || name == NULL)
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "several ranks were started, but --%s runs in one process only: start moec without mpirun or srun",
        name);
}

static int run_profile(const struct cli_args *args)
{
    struct profile_job job = {.args = args};
    struct moec_error err = {0};
    enum moec_status status = cli_u32(args, "show-bits", 1, 8, &job.show_bits, &err);
    if (status == MOEC_OK)
        status = check_ranks(args, &err);
    if (status == MOEC_OK)
        status = cli_check_figures(args, &err);
    if (status == MOEC_OK)
        status = cli_has(args, "compare") ? cli_compare_profiles(args, &err)
                 : cli_has(args, "show")  ? show(&job, &err)
                                          : measure(&job, &err);
    cli_progress_end(&job.progress);
    cli_phases_release(&job.phases);
    moec_profile_release(&job.profile);
    moec_checkpoint_close(job.checkpoint);
    moec_gpu_place_free(job.measure.memory.place);
    const int result = status == MOEC_OK ? CLI_OK : cli_interrupt_fail(args, &err);
    print_resume(&job, status);
    moec_claim_release(&job.claim);
    free(job.journal);
    return result;
}

const struct cli_command cli_command_profile = {
    .name = "profile",
    .model = CLI_CHECKPOINT,
    .summary = "measure what each expert loses at each bitwidth, and the routing",
    .usage = "MODEL",
    .about = "Measures the loss of MODEL, a Hugging Face folder or GGUF file, when one expert at a time is "
             "quantised to each bitwidth, and records how tokens are routed. Half of the text's windows are "
             "kept for moec compile, to prove its result. Most others guide its search; the rest choose "
             "among settings.",
    .details =
        "--verbose also prints the basis of the verdict, as --report does: spread, noise, additivity, "
        "coverage and routing. At the end, --verbose prints a table of phases: what each phase "
        "computed, and what limited its speed. --json then has this table too.\n"
        "The sensitivity of an expert is the loss of the whole model when that expert alone has the "
        "bitwidth and all others have the baseline. What the change cannot affect is not computed "
        "again. --sensitivity fast estimates these losses from the errors of single experts' outputs. "
        "This takes 4 evaluations of the windows for sensitivities, whatever the number of layers.\n"
        "The verdict is also about the codes that moec compile uses by default. For these, the whole "
        "model is measured from 2 bits up, until it loses at most 1%: one to four more passes, usually "
        "two.\n"
        "The profile also holds the loss of the whole model at each bitwidth, the routing of every "
        "token, and the table of expert paths. Its studies of routing cover load, margins, popularity "
        "of paths, predictions by path, frequency and the next layer's gate, gate weights compared "
        "with outputs, and sizes of up projections. formats/profile/PROFILE.md describes the file.\n"
        "--resume continues from the journal PROFILE.h5.journal of a run with the same options; "
        "threads and working memory may differ. Without a journal, the run starts from the beginning. "
        "While a run works, its lock .PROFILE.h5.moec-lock beside the profile keeps a second run with "
        "the same output from starting.\n"
        "Encoder-decoder models need a task whose rows have a prompt and a reference (samsum, "
        "dialogsum, xsum, or your own). The prompt is the source, and the tokens of the reference are "
        "scored. Layers are numbered through both stacks, first the encoder's, then the decoder's.",
    .examples = "moec profile MODEL --data calibration.txt -o profile.h5 --heatmap heatmap.png\n"
                "moec profile MODEL --data calibration.txt -o profile.h5 --resume\n"
                "moec profile --show profile.h5",
    .more_examples =
        "moec profile MODEL --data calibration.txt --sensitivity fast -o profile.h5\n"
        "moec profile MODEL --data chat.jsonl.zst --bits 2,4 --group 64 --samples 128 -o profile.h5\n"
        "moec profile MODEL --data calibration.txt --study ranks,sparsity -o profile.h5\n"
        "moec profile SWITCH --task samsum --data train.csv --samples 300 -o profile.h5\n"
        "moec profile --show profile.h5 --study rank/loss\n"
        "moec profile --show profile.h5 --heatmap heatmap.svg --show-bits 3\n"
        "moec profile --show profile.h5 --plots plots --plot-format pdf,csv\n"
        "moec profile --compare news.h5 chat.h5 --plots comparison",
    .n_positional_min = 0,
    .n_positional_max = 1,
    .options = options,
    .run = run_profile,
    .is_offline = true,
    .shares_work = true,
};
