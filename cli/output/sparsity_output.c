#include "cli/output/sparsity_output.h"

#include "cli/output/sequence_output.h"
#include "cli/print/print.h"
#include "cli/terminal/json_output.h"
#include "profiler/evaluate/chance.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/kernels/arithmetic.h"

#include <inttypes.h>

struct moec_json_out *cli_json_plan(const struct moec_sparsity_plan *plan)
{
    struct moec_json_out *node = moec_json_out_object(), *without = moec_json_out_object();
    moec_json_out_string(node, "by", moec_sparsity_by_name(plan->by));
    moec_json_out_string(node, "projection", plan->is_at_gate ? "gate" : "up");
    moec_json_out_double(node, "active_share", plan->traffic.active_share);
    moec_json_out_double(node, "expert_bytes_per_token", plan->traffic.token_bytes);
    cli_json_certificate(node, &plan->certificate, "sparse", "expert_bytes_per_token");
    moec_json_out_double(without, "loss", plan->plain_loss);
    moec_json_out_double(without, "loss_low", plan->plain_low);
    moec_json_out_double(without, "loss_high", plan->plain_high);
    moec_json_out_double(without, "expert_bytes_per_token", plan->traffic.dense_token_bytes);
    moec_json_out_node(node, "without", without);
    return node;
}

void cli_print_left_out(const struct moec_sparsity_plan *plan)
{
    static const char *const words[MOEC_SPARSITY_BY_COUNT] = {
        ", one share for all experts", ", a threshold for each expert",
        " times each neuron's harm and the token's weight"};
    cli_print(stdout,
              "  left out   by %s%s\n"
              "  active     %.1f%% of neurons\n"
              "  decoded    %.1f KiB of expert weights a token, with all neurons %.1f KiB\n",
              plan->is_at_gate ? "|act(gate . x)|" : "|up . x|", words[plan->by],
              100 * plan->traffic.active_share, plan->traffic.token_bytes / 1024,
              plan->traffic.dense_token_bytes / 1024);
}

void cli_print_plan(const struct moec_sparsity_plan *plan)
{
    const struct moec_certificate *certificate = &plan->certificate;
    const enum moec_arithmetic arithmetic = moec_arithmetic_certified(certificate);
    cli_print_left_out(plan);
    cli_print(stdout, "  loss       %.3f%% (%g%% interval %.3f%% to %.3f%%) against the original",
              100 * certificate->loss, cli_interval_percent(certificate), 100 * certificate->loss_low,
              100 * certificate->loss_high);
    if (certificate->n_sequence > 0)
        cli_print(stdout, ",\n             limit %.3f%%\n", 100 * certificate->target);
    else
        cli_print(stdout, ";\n             the promise is about the loss with decisions\n");
    cli_print_wrapped(
        stdout, 13, "             with all neurons %.3f%% (%.3f%% to %.3f%%); %" PRIu32 " windows of '%s'\n",
        100 * plan->plain_loss, 100 * plan->plain_low, 100 * plan->plain_high, certificate->n_window,
        certificate->data_name);
    if (certificate->is_chance)
        cli_print(stdout, "             the certificate promises nothing: " MOEC_CHANCE_MARK "\n");
    if (arithmetic != MOEC_ARITHMETIC_CANONICAL)
        cli_print(stdout, "             in %s arithmetic\n", moec_arithmetic_name(arithmetic));
}

static const double shares[] = {0.5, 0.7, 0.9};
#define N_SHARE (sizeof shares / sizeof *shares)

static struct moec_parts_estimate estimate(const struct moec_bundle *bundle,
                                           const struct moec_record_parts *parts, double share)
{
    const struct moec_emulation device = {0};
    return moec_parts_estimate_make(bundle, parts, &device, share);
}

struct moec_json_out *cli_json_parts(const struct moec_bundle *bundle, const struct moec_record_parts *parts)
{
    struct moec_json_out *node = moec_json_out_object(), *list = moec_json_out_array();
    const struct moec_record_layout *layout = moec_bundle_layout(bundle, 0, 0, 0);
    moec_json_out_u64(node, "unit_bytes", parts->unit_bytes);
    moec_json_out_u64(node, "pair_bytes", layout->pair_stride_bytes);
    moec_json_out_u64(node, "unit_neurons", moec_parts_unit_neurons(parts, layout));
    moec_json_out_bool(node, "turnover_measured", parts->turnover.n_share > 0);
    for (size_t i = 0; i < N_SHARE; i++) {
        const struct moec_parts_estimate made = estimate(bundle, parts, shares[i]);
        struct moec_json_out *item = moec_json_out_object();
        moec_json_out_double(item, "left_out", shares[i]);
        moec_json_out_double(item, "record_bytes", made.whole_bytes);
        moec_json_out_double(item, "read_bytes", made.read_bytes);
        moec_json_out_double(item, "reads", made.n_reads);
        moec_json_out_bool(item, "pays", made.pays);
        moec_json_out_node(list, NULL, item);
    }
    moec_json_out_node(node, "expected", list);
    return node;
}

static void print_estimate(const struct moec_parts_estimate *made, double share)
{
    cli_print(stdout, "             %.0f%% left out: ", 100 * share);
    if (made->pays)
        cli_print(stdout, "%.1f of %.1f KiB are read of an expert, by %.0f requests\n",
                  made->read_bytes / 1024, made->whole_bytes / 1024, made->n_reads);
    else
        cli_print(stdout,
                  "whole records are read: parts would take %.1f of %.1f KiB, but %.0f requests "
                  "cost more time\n",
                  made->read_bytes / 1024, made->whole_bytes / 1024, made->n_reads);
}

void cli_print_parts(const struct moec_bundle *bundle, const struct moec_record_parts *parts,
                     const struct moec_sparsity_plan *plan)
{
    const struct moec_record_layout *layout = moec_bundle_layout(bundle, 0, 0, 0);
    cli_print(stdout,
              "  parts      of the up projection, and of up to %" PRIu32
              " neurons, whose pairs take %zu bytes each;\n"
              "             from storage, %s:\n",
              moec_parts_unit_neurons(parts, layout), layout->pair_stride_bytes,
              parts->turnover.n_share > 0 ? "as neurons were active together on the text of the thresholds"
                                          : "assuming that neurons are active at random");
    for (size_t i = 0; i < N_SHARE; i++) {
        const struct moec_parts_estimate made = estimate(bundle, parts, shares[i]);
        print_estimate(&made, shares[i]);
    }
    if (plan->n_layer > 0) {
        const double share = 1 - plan->traffic.active_share;
        const struct moec_parts_estimate made = estimate(bundle, parts, share);
        print_estimate(&made, share);
    }
}
