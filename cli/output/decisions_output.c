#include "cli/output/decisions_output.h"

#include "cli/output/sequence_output.h"
#include "cli/print/print.h"
#include "cli/terminal/json_output.h"
#include "profiler/evaluate/chance.h"
#include "runtime/kernels/arithmetic.h"

#include <inttypes.h>

/* ---- for programs ---- */

void cli_json_settings(struct moec_json_out *node, const struct moec_decision_settings *settings)
{
    moec_json_out_string_or_null(node, "route", settings->route);
    moec_json_out_string_or_null(node, "precision", settings->precision);
    moec_json_out_string_or_null(node, "prefill", settings->prefill);
    moec_json_out_u64(node, "slots", settings->n_slots);
    moec_json_out_u64(node, "low_slots", settings->n_low_slots);
    moec_json_out_u64(node, "low_bits", settings->low_bits);
    moec_json_out_u64(node, "keep_top", settings->keep_top);
    moec_json_out_string(node, "cache_start", settings->starts_frequent ? "frequency" : "empty");
    moec_json_out_string(node, "decide", settings->decode_only ? "decode" : "all");
}

static void put_traffic(struct moec_json_out *node, const struct moec_decision_traffic *traffic)
{
    moec_json_out_u64(node, "experts_taken", traffic->n_taken);
    moec_json_out_u64(node, "experts_missed", traffic->n_missed);
    moec_json_out_double(node, "missed_bytes_per_token", traffic->token_bytes);
}

struct moec_json_out *cli_json_decisions(const struct moec_bundle_decisions *decisions)
{
    struct moec_json_out *node = moec_json_out_object(), *without = moec_json_out_object();
    cli_json_settings(node, &decisions->settings);
    if (moec_decision_settings_tell_prompts(&decisions->settings))
        moec_json_out_u64(node, "prompt_tokens", decisions->prompt_tokens);
    put_traffic(node, &decisions->traffic);
    cli_json_certificate(node, &decisions->certificate, "decided", "missed_bytes_per_token");
    moec_json_out_double(without, "loss", decisions->plain_loss);
    moec_json_out_double(without, "loss_low", decisions->plain_low);
    moec_json_out_double(without, "loss_high", decisions->plain_high);
    put_traffic(without, &decisions->plain_traffic);
    moec_json_out_node(node, "without", without);
    return node;
}

/* ---- for people ---- */

void cli_print_decisions(const struct moec_bundle_decisions *decisions)
{
    const struct moec_decision_settings *settings = &decisions->settings;
    const struct moec_certificate *certificate = &decisions->certificate;
    const enum moec_arithmetic arithmetic = moec_arithmetic_certified(certificate);
    if (settings->route[0] != '\0' && settings->keep_top > 0)
        cli_print(stdout, "  route      %s, the best %" PRIu32 " in any case\n", settings->route,
                  settings->keep_top);
    else
        cli_print(stdout, "  route      %s\n",
                  settings->route[0] != '\0' ? settings->route : "the router's own");
    if (settings->prefill[0] != '\0')
        cli_print(stdout, "  prefill    %s, certified for prompts of %" PRIu32 " tokens\n", settings->prefill,
                  decisions->prompt_tokens);
    if (moec_decision_settings_take_low(settings))
        cli_print_wrapped(stdout, 13,
                          "  precision  %s, low copies of %" PRIu32
                          " bits, of which the logical cache holds %" PRIu32 " a layer\n",
                          settings->precision[0] != '\0' ? settings->precision
                                                         : "one for all generated tokens",
                          settings->low_bits, settings->n_low_slots);
    if (settings->prefill[0] == '\0' && !settings->decode_only && moec_decision_settings_name_block(settings))
        cli_print_wrapped(stdout, 13,
                          "  prompts    are decided by blocks; certified for windows whose first %" PRIu32
                          " tokens are a prompt\n",
                          decisions->prompt_tokens);
    if (settings->decode_only)
        cli_print_wrapped(stdout, 13,
                          "  prompts    keep the router's choice; certified for windows whose first "
                          "%" PRIu32 " tokens are a prompt\n",
                          decisions->prompt_tokens);
    cli_print(stdout, "  cache      %" PRIu32 " experts a layer, %s\n", settings->n_slots,
              settings->starts_frequent ? "those of calibration at first" : "empty at first");
    cli_print_wrapped(
        stdout, 13,
        "  missed     %.1f KiB of experts a token (%.1f%% of those chosen); without these settings "
        "%.1f KiB (%.1f%%)\n",
        decisions->traffic.token_bytes / 1024, 100 * moec_decision_missed_share(&decisions->traffic),
        decisions->plain_traffic.token_bytes / 1024,
        100 * moec_decision_missed_share(&decisions->plain_traffic));
    cli_print_wrapped(stdout, 13,
                      "  loss       %.3f%% (%g%% interval %.3f%% to %.3f%%) against "
                      "the original, limit %.3f%%\n"
                      "             without these settings %.3f%% (%.3f%% to %.3f%%); %" PRIu32
                      " windows of '%s'\n",
                      100 * certificate->loss, cli_interval_percent(certificate), 100 * certificate->loss_low,
                      100 * certificate->loss_high, 100 * certificate->target, 100 * decisions->plain_loss,
                      100 * decisions->plain_low, 100 * decisions->plain_high, certificate->n_window,
                      certificate->data_name);
    if (certificate->is_chance)
        cli_print(stdout, "             the certificate promises nothing: " MOEC_CHANCE_MARK "\n");
    if (arithmetic != MOEC_ARITHMETIC_CANONICAL)
        cli_print(stdout, "             in %s arithmetic\n", moec_arithmetic_name(arithmetic));
}
