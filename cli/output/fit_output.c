#include "cli/output/fit_output.h"

#include "cli/print/print.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/terminal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static double milliseconds(double ns)
{
    return 1e-6 * ns;
}

const char *cli_fit_bound_by(const struct cli_fit_result *result)
{
    return result->fit.token_ns > 2 * result->fit.resident_ns ? "storage" : "computing";
}

const char *cli_fit_why_plain(const struct cli_fit_result *result)
{
    const struct moec_tune_report *report = result->report;
    const struct moec_certificate *certificate = &report->certificate;
    if (moec_tune_is_compiled(report))
        return "nothing better was proven: the bits are those that moec compile alone would write";
    if (!moec_decision_settings_are_on(&report->winner.settings) && certificate->n_sequence > 1 &&
        certificate->sequence[0].is_chosen)
        return "nothing better was proven: the bits are those of the safest plan";
    return NULL;
}

/* Milliseconds, or KiB. */
static double unit_of(const struct cli_fit_result *result, double amount)
{
    return result->by_bytes ? amount / 1024 : milliseconds(amount);
}

/* Plans and settings that were tested, from the safest to the one that takes or reads least. */
static void print_front(const struct cli_fit_result *result)
{
    const struct moec_tune_report *report = result->report;
    char name[MOEC_TUNE_NAME_BYTES];
    cli_print(stdout, "  tested       loss, at most   %s a token\n", result->by_bytes ? "KiB read" : "ms");
    for (uint32_t i = 0; i < report->n_sequence; i++) {
        const struct moec_tune_candidate *candidate = &report->candidates[report->sequence[i]];
        const struct moec_sequence_step *step = &report->certificate.sequence[i];
        const bool is_tested = i < report->certificate.n_sequence && !isnan(step->high);
        char high[24] = "-";
        if (is_tested)
            (void)snprintf(high, sizeof high, "%.3f%%", 100 * step->high);
        cli_print(
            stdout, "  %s plan %" PRIu32 "  %14s %12.3f   %s\n", is_tested && step->is_chosen ? "*" : " ",
            candidate->draft + 1, high,
            unit_of(result, result->by_bytes ? candidate->foretold.read_bytes : candidate->foretold.token_ns),
            moec_tune_name(&candidate->settings, 0, name));
    }
}

/* Two a line: they come in pairs, but for decisions of which there is one. */
static void print_looks(const struct cli_fit_result *result)
{
    if (result->n_look > 0)
        cli_print(stdout, "  foretold, and not certified:\n");
    for (uint32_t i = 0; i < result->n_look; i++) {
        const struct cli_fit_look *look = &result->looks[i];
        const bool ends = i % 2 == 1 || i + 1 == result->n_look;
        if (isnan(look->amount))
            cli_print(stdout, "    %-22s %12s%s", look->name, "does not run", ends ? "\n" : "");
        else
            cli_print(stdout, "    %-22s %9.3f %s%s", look->name, unit_of(result, look->amount),
                      result->by_bytes ? "KiB" : "ms", ends ? "\n" : "");
    }
}

/* What the device and the objective are about. */
static void print_time(const struct cli_fit_result *result)
{
    const struct moec_bundle_fit *fit = &result->fit;
    char buffer[24], all[24];
    cli_print(stdout, "  memory     %s, of which experts have %s of %s\n", result->memory,
              cli_memory_text(buffer, fit->buffer_bytes), cli_memory_text(all, result->all_bytes));
    cli_print(stdout, "  token      %.3f ms expected, %.0f a second: %s binds; %.1f KiB read\n",
              milliseconds(fit->token_ns), fit->token_ns > 0 ? 1e9 / fit->token_ns : 0,
              cli_fit_bound_by(result), result->foretold.read_bytes / 1024);
    if (fit->compiled_ns > 0)
        cli_print(stdout, "  beside     %.3f ms as moec compile alone would write it, %.2f times as long\n",
                  milliseconds(fit->compiled_ns), fit->token_ns > 0 ? fit->compiled_ns / fit->token_ns : 0);
    else
        cli_print(stdout, "  beside     a bundle of moec compile alone, which does not run in this memory\n");
    cli_print(stdout, "             %.3f ms with every expert in memory\n", milliseconds(fit->resident_ns));
}

static void print_bytes(const struct cli_fit_result *result)
{
    char buffer[24], all[24];
    cli_print(stdout, "  read       %.1f KiB of experts a token where %s of %s are in memory\n",
              result->foretold.read_bytes / 1024, cli_memory_text(buffer, result->fit.buffer_bytes),
              cli_memory_text(all, result->all_bytes));
    cli_print(stdout, "  beside     %.1f KiB as moec compile alone would write it\n",
              result->compiled_read_bytes / 1024);
}

void cli_print_fit(const struct cli_fit_result *result)
{
    const struct moec_tune_report *report = result->report;
    const struct moec_bundle_fit *fit = &result->fit;
    const struct moec_decision_settings *settings = &report->winner.settings;
    char size[24], name[MOEC_TUNE_NAME_BYTES];
    cli_print(stdout, "wrote '%s', %s\n", result->file, cli_size_text(size, result->file_bytes));
    cli_print(stdout, "  loss       at most %.3f%%, with %g%% confidence (measured: %.3f%%)\n",
              100 * report->certificate.loss_high, 100 * report->certificate.confidence,
              100 * report->certificate.loss);
    if (result->by_bytes)
        print_bytes(result);
    else
        print_time(result);
    cli_print(stdout, "  settings   %s", moec_tune_name(settings, 0, name));
    if (moec_decision_settings_are_on(settings))
        cli_print(stdout, " by %" PRIu32 " experts a layer", settings->n_slots);
    if (!result->by_bytes)
        cli_print(stdout, "; --evict %s --predict %s", fit->evict, fit->predict);
    cli_print(stdout, "\n");
    if (cli_fit_why_plain(result) != NULL)
        cli_print(stdout, "             %s\n", cli_fit_why_plain(result));
    print_front(result);
    print_looks(result);
    if (result->page != NULL)
        cli_print(stdout, "report: %s\n", result->page);
    if (!result->by_bytes)
        cli_print(stdout, "next: moec-run %s -p \"...\" --memory %s\n", result->file, result->memory);
}

static struct moec_json_out *json_candidate(const struct moec_tune_candidate *candidate)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "plan", candidate->draft);
    moec_json_out_string(node, "route", candidate->settings.route);
    moec_json_out_u64(node, "slots", candidate->settings.n_slots);
    moec_json_out_double(node, "loss", candidate->search.loss);
    moec_json_out_double(node, "chosen_loss", candidate->chosen.loss);
    moec_json_out_double(node, "token_ms", milliseconds(candidate->foretold.token_ns));
    moec_json_out_double(node, "read_bytes", candidate->foretold.read_bytes);
    moec_json_out_string(node, "evict", candidate->foretold.evict);
    moec_json_out_string(node, "predict", candidate->foretold.predict);
    return node;
}

enum moec_status cli_print_fit_json(const struct cli_fit_result *result, struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object(), *list = moec_json_out_array(),
                         *tests = moec_json_out_array(), *looks = moec_json_out_object();
    const struct moec_tune_report *report = result->report;
    moec_json_out_string(root, "file", result->file);
    moec_json_out_u64(root, "file_bytes", result->file_bytes);
    moec_json_out_string(root, "objective", result->by_bytes ? "bytes" : "time");
    moec_json_out_u64(root, "memory_bytes", result->fit.memory_bytes);
    moec_json_out_u64(root, "buffer_bytes", result->fit.buffer_bytes);
    moec_json_out_double(root, "loss", report->certificate.loss);
    moec_json_out_double(root, "loss_high", report->certificate.loss_high);
    moec_json_out_double(root, "token_ms", milliseconds(result->fit.token_ns));
    moec_json_out_double(root, "compiled_token_ms", milliseconds(result->fit.compiled_ns));
    moec_json_out_double(root, "resident_token_ms", milliseconds(result->fit.resident_ns));
    moec_json_out_double(root, "stall_ms", milliseconds(result->foretold.stall_ns));
    moec_json_out_double(root, "read_bytes_per_token", result->foretold.read_bytes);
    moec_json_out_double(root, "compiled_read_bytes_per_token", result->compiled_read_bytes);
    moec_json_out_node(root, "winner", json_candidate(&report->winner));
    for (uint32_t i = 0; i < report->n_candidate; i++)
        moec_json_out_node(list, NULL, json_candidate(&report->candidates[i]));
    moec_json_out_node(root, "candidates", list);
    for (uint32_t i = 0; i < report->n_sequence; i++)
        moec_json_out_u64(tests, NULL, report->sequence[i]);
    moec_json_out_node(root, "sequence", tests);
    for (uint32_t i = 0; i < result->n_look; i++)
        moec_json_out_double(looks, result->looks[i].name,
                             result->by_bytes ? result->looks[i].amount
                                              : milliseconds(result->looks[i].amount));
    moec_json_out_node(root, "looks", looks);
    return cli_print_json(root, err);
}
