#include "cli/terminal/json_output.h"

#include <stdio.h>
#include <stdlib.h>

enum moec_status cli_print_json(struct moec_json_out *root, struct moec_error *err)
{
    char *text = NULL;
    enum moec_status status = moec_json_out_text(root, &text, err);
    if (status == MOEC_OK)
        fputs(text, stdout);
    free(text);
    moec_json_out_free(root);
    return status;
}

void cli_json_variant(struct moec_json_out *array, struct moec_variant variant,
                      const struct moec_codec codecs[static MOEC_CODEC_TABLE], bool is_plain)
{
    uint32_t bits[MOEC_PROJECTION_COUNT];
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
        bits[p] = moec_codec_bits(codecs[variant.codecs[p]]);
    if (bits[0] == bits[1] && bits[1] == bits[2]) {
        moec_json_out_u64(array, NULL, bits[0]);
        return;
    }
    struct moec_json_out *node = moec_json_out_object();
    if (!is_plain)
        moec_json_out_u64(node, "gate", bits[MOEC_PROJECTION_GATE]);
    moec_json_out_u64(node, "up", bits[MOEC_PROJECTION_UP]);
    moec_json_out_u64(node, "down", bits[MOEC_PROJECTION_DOWN]);
    moec_json_out_node(array, NULL, node);
}

void cli_json_loss(struct moec_json_out *node, const struct moec_loss *loss)
{
    moec_json_out_double(node, "loss", loss->loss);
    moec_json_out_double(node, "loss_low", loss->low);
    moec_json_out_double(node, "loss_high", loss->high);
    moec_json_out_double(node, "mean_kl", loss->mean_kl);
}

struct moec_json_out *cli_json_sequence(const struct moec_sequence_step *steps, uint32_t n_step,
                                        const char *bytes_key)
{
    static const char *const results[] = {"not tested", "passed", "failed"};
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t i = 0; i < n_step; i++) {
        const struct moec_sequence_step *step = &steps[i];
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_u64(node, bytes_key, step->n_bytes);
        moec_json_out_double(node, "search_loss", step->search_loss);
        moec_json_out_double(node, "search_loss_high", step->search_high);
        moec_json_out_double(node, "loss", step->loss);
        moec_json_out_double(node, "loss_high", step->high);
        moec_json_out_double(node, "p_value", step->p_value);
        moec_json_out_string(node, "result", results[step->result]);
        moec_json_out_bool(node, "chosen", step->is_chosen);
        moec_json_out_node(list, NULL, node);
    }
    return list;
}

void cli_json_certificate(struct moec_json_out *node, const struct moec_certificate *certificate,
                          const char *measured_key, const char *bytes_key)
{
    char digest[2 * MOEC_SHA256_BYTES + 1];
    moec_sha256_hex(certificate->data_digest, digest);
    moec_json_out_string(node, "metric", certificate->metric);
    moec_json_out_double(node, "reference", certificate->reference);
    moec_json_out_double(node, measured_key, certificate->compiled);
    moec_json_out_double(node, "loss", certificate->loss);
    moec_json_out_double(node, "loss_low", certificate->loss_low);
    moec_json_out_double(node, "loss_high", certificate->loss_high);
    moec_json_out_double(node, "search_loss", certificate->search_loss);
    moec_json_out_double(node, "search_loss_high", certificate->search_loss_high);
    moec_json_out_double(node, "target", certificate->target);
    moec_json_out_double(node, "confidence", certificate->confidence);
    moec_json_out_double(node, "mean_kl", certificate->mean_kl);
    moec_json_out_u64(node, "windows", certificate->n_window);
    moec_json_out_u64(node, "tokens", certificate->n_token);
    moec_json_out_u64(node, "seq_len_tokens", certificate->seq_len_tokens);
    moec_json_out_string(node, "data", certificate->data_name);
    moec_json_out_string(node, "data_sha256", digest);
    moec_json_out_string(node, "arithmetic", certificate->arithmetic);
    if (certificate->is_chance)
        moec_json_out_bool(node, "no_better_than_chance", true);
    if (certificate->n_sequence > 0)
        moec_json_out_node(node, "sequence",
                           cli_json_sequence(certificate->sequence, certificate->n_sequence, bytes_key));
}
