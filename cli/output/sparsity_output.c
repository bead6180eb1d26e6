#include "cli/output/sparsity_output.h"

#include "cli/output/json_output.h"
#include "cli/print/print.h"

#include <inttypes.h>

struct moec_json_out *cli_json_plan(const struct moec_sparsity_plan *plan)
{
    struct moec_json_out *node = moec_json_out_object(), *without = moec_json_out_object();
    moec_json_out_string(node, "by", moec_sparsity_by_name(plan->by));
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

void cli_print_plan(const struct moec_sparsity_plan *plan)
{
    static const char *const words[MOEC_SPARSITY_BY_COUNT] = {
        "by |up . x|, one share for all experts", "by |up . x|, a threshold for each expert",
        "by |up . x|, weighed by each neuron's harm and the token's gate weight"};
    const struct moec_certificate *certificate = &plan->certificate;
    cli_print(stdout,
              "  left out   %s\n"
              "  active     %.1f%% of neurons\n"
              "  decoded    %.1f KiB of expert weights a token, with all neurons %.1f KiB\n",
              words[plan->by], 100 * plan->traffic.active_share, plan->traffic.token_bytes / 1024,
              plan->traffic.dense_token_bytes / 1024);
    cli_print(stdout,
              "  loss       %.3f%% (90%% interval %.3f%% to %.3f%%) against the original, asked for at most "
              "%.3f%%\n"
              "             with all neurons %.3f%% (%.3f%% to %.3f%%); %" PRIu32 " windows of '%s'\n",
              100 * certificate->loss, 100 * certificate->loss_low, 100 * certificate->loss_high,
              100 * certificate->target, 100 * plan->plain_loss, 100 * plan->plain_low,
              100 * plan->plain_high, certificate->n_window, certificate->data_name);
    if (moec_certificate_is_int8(certificate))
        cli_print(stdout, "             in int8 arithmetic\n");
}
