/* One screen: file, experts, dense weights, search, certificate, what to do next. Comments show lines as
 * they are printed. JSON has the plan itself too. */
#include "cli/output/compile_output.h"
#include "cli/options/options.h"
#include "cli/print/print.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/terminal.h"
#include "compiler/fit/coactivation.h"
#include "profiler/evaluate/chance.h"

#include <inttypes.h>
#include <math.h>

/* "  90 at 4 bits  6 in int3 symmetric g64" */
static void print_counts(const struct moec_compile_report *report, const uint32_t count[MOEC_CODEC_TABLE])
{
    char text[40];
    for (uint32_t number = 0; number < MOEC_CODEC_TABLE; number++)
        if (count[number] > 0 && number < MOEC_CODEC_FIRST_OTHER &&
            !moec_codec_traits(report->codecs[number])->is_exact)
            cli_print(stdout, "  %" PRIu32 " at %" PRIu32 " bit%s", count[number], number,
                      number == 1 ? "" : "s");
        else if (count[number] > 0)
            cli_print(stdout, "  %" PRIu32 " in %s", count[number],
                      moec_codec_name(report->codecs[number], text));
}

/* "experts:  90 at 4 bits  6 whose projections differ, 2.33 bits on average" */
static void print_experts(const struct moec_compile_report *report)
{
    const struct moec_plan *plan = &report->plan;
    uint32_t count[MOEC_CODEC_TABLE] = {0}, n_mixed = 0, n_weights = 0;
    double mixed_bits = 0;
    for (size_t i = 0; i < moec_plan_count(plan); i++) {
        const struct moec_variant variant = plan->experts[i];
        if (moec_variant_is_uniform(variant)) {
            count[variant.codecs[0]]++;
            continue;
        }
        n_mixed++;
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++, n_weights++)
            mixed_bits += moec_codec_code_bits(report->codecs[variant.codecs[p]]);
    }
    cli_print(stdout, "experts:");
    print_counts(report, count);
    if (n_mixed > 0)
        cli_print(stdout, "  %" PRIu32 " whose projections differ, %.2f bits on average", n_mixed,
                  mixed_bits / n_weights);
}

/* "\ndense weights:  12 at 4 bits  2 in int3 symmetric g64": matrices that have codecs of their own. */
static bool print_dense_matrices(const struct moec_compile_report *report)
{
    const struct moec_plan *plan = &report->plan;
    uint32_t count[MOEC_CODEC_TABLE] = {0}, n_own = 0;
    for (uint32_t i = 0; i < report->n_matrix; i++) {
        count[plan->dense[i] != 0 ? plan->dense[i] : plan->dense_bits]++;
        n_own += plan->dense[i] != 0;
    }
    if (n_own == 0)
        return false;
    cli_print(stdout, "\ndense weights:");
    print_counts(report, count);
    cli_print(stdout, "\n");
    return true;
}

/* "\ndense weights: 8 bits by gptq (auto; 4 bits: misses the target, 16 bits: 1.20 MB)" */
static void print_dense(const struct cli_compile_result *result)
{
    const struct moec_compile_report *report = result->report;
    if (print_dense_matrices(report))
        return;
    printf("\ndense weights: %" PRIu32 " bits%s", report->plan.dense_bits,
           report->plan.dense_bits >= 16    ? ""
           : result->options->dense.by_gptq ? " by gptq"
                                            : " by the linear quantizer");
    for (uint32_t i = 0; i < report->n_dense_trial; i++) {
        const struct moec_dense_trial *trial = &report->dense_trials[i];
        char size[24];
        printf("%s%" PRIu32 " bits: %s", i == 0 ? " (auto; " : ", ", trial->bits,
               trial->meets         ? cli_size_text(size, trial->n_bytes)
               : trial->is_measured ? "misses the target"
                                    : "never smaller");
    }
    printf("%s\n", report->n_dense_trial > 0 ? ")" : "");
}

/* "plan 4 of 6 is the last that was proven with 95% confidence; the next (2.36 MB) may lose 5.210%" */
static void print_sequence(const struct moec_certificate *certificate)
{
    uint32_t n_passed = 0;
    while (n_passed < certificate->n_sequence &&
           certificate->sequence[n_passed].result == MOEC_SEQUENCE_PASSED)
        n_passed++;
    const struct moec_sequence_step *failed = &certificate->sequence[n_passed];
    char size[24];
    if (n_passed == 0)
        cli_print(stdout, "\n             none of %" PRIu32 " plans is proven with %g%% confidence",
                  certificate->n_sequence, 100 * certificate->confidence);
    else
        cli_print(stdout,
                  "\n             plan %" PRIu32 " of %" PRIu32
                  " (counted from the safest) is the last proven to stay within the "
                  "limit, with %g%% confidence",
                  n_passed, certificate->n_sequence, 100 * certificate->confidence);
    if (n_passed == 0 || n_passed == certificate->n_sequence)
        return;
    cli_print(stdout, "; the next, %s, ", cli_size_text(size, failed->n_bytes));
    if (isnan(failed->high))
        cli_print(stdout, "loses %.3f%% on the first half of the windows", 100 * failed->loss);
    else
        cli_print(stdout, "could lose up to %.3f%%", 100 * failed->high);
}

/* "2 bits (int2 trellis channel)", or "gate int2 trellis channel, up ..." where projections differ. */
static void spell_single(const struct cli_compile_result *result, char *text, size_t capacity)
{
    static const char *const names[MOEC_PROJECTION_COUNT] = {"gate", "up", "down"};
    const struct moec_variant variant = result->report->mixing.single.alike;
    const struct moec_codec *codecs = result->report->codecs;
    char name[40];
    size_t used = 0;
    if (moec_variant_is_uniform(variant)) {
        const struct moec_codec codec = codecs[variant.codecs[0]];
        (void)snprintf(text, capacity, "%" PRIu32 " bits (%s)", moec_codec_code_bits(codec),
                       moec_codec_name(codec, name));
        return;
    }
    for (int p = result->config->mlp.plain ? MOEC_PROJECTION_UP : MOEC_PROJECTION_GATE;
         p < MOEC_PROJECTION_COUNT && used < capacity; p++)
        used += (size_t)snprintf(text + used, capacity - used, "%s%s %s", used > 0 ? ", " : "", names[p],
                                 moec_codec_name(codecs[variant.codecs[p]], name));
}

#define LITTLE 0.005 /* a gain under this is none */

/* What mixing gains over one plan for all experts, and whether other targets would find anything smaller. */
static void print_limits(const struct cli_compile_result *result)
{
    const struct moec_compile_report *report = result->report;
    const struct moec_mixing_gain *mixing = &report->mixing;
    char single[160], size[24], mixed[24];
    if (mixing->is_known) {
        spell_single(result, single, sizeof single);
        cli_print(stdout, "mixing bitwidths by expert ");
        if (mixing->saving < LITTLE)
            cli_print(stdout, "gains nothing over one plan for all:\n");
        else
            cli_print(stdout, "gains %.1f%% over one plan for all:\n", 100 * mixing->saving);
        cli_print(stdout, "        all alike %s at %.2f%% loss, mixed %s at %.2f%% (search part)\n",
                  cli_size_text(size, mixing->single.n_bytes), 100 * mixing->single.loss,
                  cli_size_text(mixed, mixing->mixed.n_bytes), 100 * mixing->mixed.loss);
        cli_print(stdout, "        all alike: %s\n", single);
    }
    if (report->uses_smallest && !isnan(result->options->target.max_loss))
        cli_print(stdout, "the smallest codes are in use at %.1f%% loss; a larger --max-loss gains nothing\n",
                  100 * (report->certificate.present ? report->certificate.loss : report->trace.chosen.loss));
}

static void print_next(const struct cli_compile_result *result)
{
    if (!result->report->is_written || result->is_quiet)
        return;
    cli_print(stdout, "next: moec run ");
    cli_print_word(stdout, result->paths.bundle);
    cli_print(stdout, " -p \"...\"\n");
    if (!moec_config_is_encoder_decoder(result->config) && !moec_config_routes_by_token(result->config))
        cli_print(stdout,
                  "      moec fit makes the fastest bundle for a device that cannot hold all experts\n");
}

static void print_result(const struct cli_compile_result *result)
{
    const struct moec_compile_report *report = result->report;
    const struct moec_certificate *certificate = &report->certificate;
    const enum moec_arithmetic arithmetic = moec_arithmetic_certified(certificate);
    char size[24], source[24];
    cli_print(stdout, "%s: %s, %.1f%% of the %s of weights it came from\n",
              report->is_written ? result->paths.bundle : "plan (nothing written)",
              cli_size_text(size, report->n_bytes),
              100 * (double)report->n_bytes / (double)report->source_bytes,
              cli_size_text(source, report->source_bytes));
    print_experts(report);
    print_dense(result);
    if (result->options->experts.orders_neurons)
        cli_print(stdout,
                  "neurons: the %.0f%% of an expert that a token needs most lie in %.1f ranges on average, "
                  "%.1f in the checkpoint's order\n",
                  100 * MOEC_COACTIVATION_SHARE, report->runs_after, report->runs_before);
    print_limits(result);
    cli_print(stdout, "search: policy %s, %" PRIu32 " measurements, %.1f s\n", result->options->search.policy,
              report->n_evaluations, result->seconds);
    cli_print_peak(result->phases);
    if (result->paths.page != NULL)
        cli_print(stdout, "report: %s\n", result->paths.page);
    if (!certificate->present) {
        cli_print(stdout, "certificate: none, no loss was measured%s\n",
                  report->is_written ? "" : " on the certificate part");
        return;
    }
    cli_print(stdout, "certificate: %s %.4f -> %.4f, loss %.3f%% (%.3f%% to %.3f%%)", certificate->metric,
              certificate->reference, certificate->compiled, 100 * certificate->loss,
              100 * certificate->loss_low, 100 * certificate->loss_high);
    if (!isnan(certificate->target))
        cli_print(stdout, ", target at most %.3f%%%s", 100 * certificate->target,
                  certificate->missed ? ": MISSED" : "");
    if (certificate->is_chance)
        cli_print(stdout, "\n             the certificate promises nothing: " MOEC_CHANCE_MARK);
    if (arithmetic != MOEC_ARITHMETIC_CANONICAL)
        cli_print(stdout, "\n             in %s arithmetic, with which moec run%s computes this bundle",
                  moec_arithmetic_name(arithmetic),
                  arithmetic == MOEC_ARITHMETIC_BF16 ? " --device cuda" : "");
    if (certificate->confidence == MOEC_CONFIDENCE_POINT)
        cli_print(stdout, "\n             one evaluation, a point estimate: no interval is promised");
    else if (!isnan(certificate->target) && certificate->n_sequence > 0)
        print_sequence(certificate);
    if (report->n_reuse > 0)
        cli_print(stdout,
                  "\n             %" PRIu32
                  " other bundle%s in this folder ('%s') certified on the same part: each\n"
                  "             promise holds by itself, but the best of several has none (--seed draws\n"
                  "             other windows)",
                  report->n_reuse, report->n_reuse == 1 ? "" : "s", report->reuse);
    if (certificate->n_token == 0) {
        cli_print(stdout, "\n             %" PRIu32 " rows of '%s' that the search never saw\n",
                  certificate->n_window, certificate->data_name);
        return;
    }
    cli_print(stdout,
              "\n             %" PRIu32
              " windows of '%s' that the search never saw; mean KL divergence %.5f nats per token\n",
              certificate->n_window, certificate->data_name, certificate->mean_kl);
}

void cli_print_compile(const struct cli_compile_result *result)
{
    print_result(result);
    print_next(result);
}

/* Bits of each dense matrix of the bundle, in the order of the table; the codec where it is one that has no bitwidth to
 * itself. */
static struct moec_json_out *json_dense_matrices(const struct moec_compile_report *report)
{
    struct moec_json_out *array = moec_json_out_array();
    char text[40];
    for (uint32_t i = 0; i < report->n_matrix; i++) {
        const uint8_t number = report->plan.dense[i];
        if (number >= MOEC_CODEC_FIRST_OTHER)
            moec_json_out_string(array, NULL, moec_codec_name(report->codecs[number], text));
        else
            moec_json_out_u64(array, NULL, number != 0 ? number : report->plan.dense_bits);
    }
    return array;
}

static struct moec_json_out *json_dense(const struct cli_compile_result *result)
{
    const struct moec_compile_report *report = result->report;
    struct moec_json_out *node = moec_json_out_object(), *trials = moec_json_out_array();
    moec_json_out_u64(node, "bits", report->plan.dense_bits);
    if (report->plan.dense_bits < 16)
        moec_json_out_string(node, "quantizer", result->options->dense.by_gptq ? "gptq" : "linear");
    for (uint32_t i = 0; i < report->n_dense_trial; i++) {
        const struct moec_dense_trial *trial = &report->dense_trials[i];
        struct moec_json_out *row = moec_json_out_object();
        moec_json_out_u64(row, "bits", trial->bits);
        moec_json_out_bool(row, "measured", trial->is_measured);
        moec_json_out_bool(row, "within_target", trial->meets);
        if (trial->meets) {
            moec_json_out_u64(row, "bundle_bytes", trial->n_bytes);
            moec_json_out_double(row, "search_loss", trial->loss);
            moec_json_out_double(row, "search_loss_high", trial->loss_high);
        }
        moec_json_out_node(trials, NULL, row);
    }
    moec_json_out_node(node, "trials", trials);
    moec_json_out_node(node, "matrices", json_dense_matrices(report));
    return node;
}

static struct moec_json_out *json_fit(const struct moec_compile_fit_counts *fit)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "experts", fit->n_expert);
    moec_json_out_u64(node, "expert_matrices", fit->n_matrix);
    moec_json_out_u64(node, "experts_without_tokens", fit->n_unseen);
    moec_json_out_bool(node, "experts_too_wide", fit->has_wide_experts);
    moec_json_out_u64(node, "dense_matrices", fit->n_dense);
    moec_json_out_u64(node, "dense_matrices_not_fitted", fit->n_plain);
    return node;
}

/* Both plans: bytes and loss of the bundle on the search part, and what all experts of the single one have.
 */
static struct moec_json_out *json_mixing(const struct cli_compile_result *result)
{
    const struct moec_compile_report *report = result->report;
    const struct moec_mixing_gain *mixing = &report->mixing;
    const struct moec_trace_point *const points[] = {&mixing->single, &mixing->mixed};
    static const char *const names[] = {"single", "mixed"};
    struct moec_json_out *node = moec_json_out_object();
    for (size_t i = 0; i < 2; i++) {
        struct moec_json_out *plan = moec_json_out_object();
        moec_json_out_u64(plan, "bundle_bytes", points[i]->n_bytes);
        moec_json_out_double(plan, "search_loss", points[i]->loss);
        moec_json_out_double(plan, "search_kl", points[i]->kl);
        if (i == 0) {
            struct moec_json_out *codecs = moec_json_out_array();
            char text[40];
            const int first = result->config->mlp.plain ? MOEC_PROJECTION_UP : MOEC_PROJECTION_GATE;
            for (int p = first; p < MOEC_PROJECTION_COUNT; p++)
                moec_json_out_string(codecs, NULL,
                                     moec_codec_name(report->codecs[points[i]->alike.codecs[p]], text));
            moec_json_out_u64(plan, "bits", moec_variant_bits(points[i]->alike, report->codecs));
            moec_json_out_node(plan, "codes", codecs);
        }
        moec_json_out_node(node, names[i], plan);
    }
    moec_json_out_double(node, "saving", mixing->saving);
    return node;
}

/* How many different plans were measured on each part. */
static struct moec_json_out *json_measured(const struct moec_search_trace *trace)
{
    static const char *const names[MOEC_TRACE_N_PART] = {"search", "select", "certificate"};
    uint64_t count[MOEC_TRACE_N_PART] = {0};
    struct moec_json_out *node = moec_json_out_object();
    for (size_t i = 0; i < trace->n; i++)
        count[trace->points[i].part]++;
    for (int part = 0; part < MOEC_TRACE_N_PART; part++)
        moec_json_out_u64(node, names[part], count[part]);
    return node;
}

enum moec_status cli_print_compile_json(const struct cli_compile_result *result, struct moec_error *err)
{
    const struct moec_compile_report *report = result->report;
    const struct moec_certificate *certificate = &report->certificate;
    struct moec_json_out *root = moec_json_out_object(), *layers = moec_json_out_array();
    moec_json_out_u64(root, "bundle_bytes", report->n_bytes);
    moec_json_out_u64(root, "source_bytes", report->source_bytes);
    moec_json_out_bool(root, "written", report->is_written);
    moec_json_out_string(root, "policy", result->options->search.policy);
    moec_json_out_u64(root, "evaluations", report->n_evaluations);
    moec_json_out_node(root, "measured", json_measured(&report->trace));
    if (report->fit.n_expert > 0)
        moec_json_out_node(root, "fitted", json_fit(&report->fit));
    if (result->options->experts.orders_neurons) {
        moec_json_out_double(root, "active_ranges_before", report->runs_before);
        moec_json_out_double(root, "active_ranges", report->runs_after);
    }
    moec_json_out_u64(root, "resumed_units", report->n_resumed);
    if (report->scope > 0)
        moec_json_out_u64(root, "scope", report->scope);
    if (result->forecast != NULL)
        moec_json_out_node(
            root, "forecast",
            cli_json_compile_forecast(result->forecast, moec_ranks_count(result->options->by.ranks)));
    moec_json_out_double(root, "seconds", result->seconds);
    cli_json_peak(root, result->phases);
    cli_json_phases(root, result->phases);
    moec_json_out_double(root, "max_loss", result->options->target.max_loss);
    moec_json_out_bool(root, "smallest_codes_used_up", report->uses_smallest);
    if (report->mixing.is_known)
        moec_json_out_node(root, "mixing", json_mixing(result));
    if (report->warning[0] != '\0')
        moec_json_out_string(root, "warning", report->warning);
    if (certificate->present) {
        moec_json_out_string(root, "metric", certificate->metric);
        if (moec_arithmetic_certified(certificate) != MOEC_ARITHMETIC_CANONICAL)
            moec_json_out_string(root, "arithmetic", certificate->arithmetic);
        moec_json_out_double(root, "reference", certificate->reference);
        moec_json_out_double(root, "compiled", certificate->compiled);
        moec_json_out_double(root, "loss", certificate->loss);
        moec_json_out_double(root, "loss_low", certificate->loss_low);
        moec_json_out_double(root, "loss_high", certificate->loss_high);
        moec_json_out_double(root, "mean_kl", certificate->mean_kl);
        moec_json_out_u64(root, "windows", certificate->n_window);
        moec_json_out_bool(root, "missed", certificate->missed);
        if (certificate->is_chance)
            moec_json_out_bool(root, "no_better_than_chance", true);
        moec_json_out_u64(root, "certified_before", report->n_reuse);
        moec_json_out_node(
            root, "sequence",
            cli_json_sequence(report->trace.sequence, report->trace.n_sequence, "bundle_bytes"));
    }
    for (uint32_t s = 0; s < report->plan.n_layer; s++) {
        struct moec_json_out *row = moec_json_out_array();
        for (uint32_t e = 0; e < report->plan.n_expert; e++)
            cli_json_variant(row, report->plan.experts[s * report->plan.n_expert + e], report->codecs,
                             result->config->mlp.plain);
        moec_json_out_node(layers, NULL, row);
    }
    moec_json_out_node(root, "assignment", layers);
    moec_json_out_node(root, "dense", json_dense(result));
    return cli_print_json(root, err);
}
