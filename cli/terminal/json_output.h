/* What verbs print under --json. */
#ifndef MOEC_CLI_JSON_OUTPUT_H
#define MOEC_CLI_JSON_OUTPUT_H

#include "formats/bundle/bundle.h"
#include "formats/json/json_write.h"
#include "formats/model/record.h"
#include "profiler/evaluate/metrics.h"

/* Prints the tree to standard output and frees it in every case. */
MOEC_WARN_UNUSED enum moec_status cli_print_json(struct moec_json_out *root, struct moec_error *err);

/* Adds the bits of a variant of this table of codecs to an array: a number, or where the projections differ
 * an object of gate (not in plain MLPs), up and down. */
void cli_json_variant(struct moec_json_out *array, struct moec_variant variant,
                      const struct moec_codec codecs[static MOEC_CODEC_TABLE], bool is_plain);

/* Members loss, loss_low, loss_high, mean_kl. */
void cli_json_loss(struct moec_json_out *node, const struct moec_loss *loss);

/* The tests of a certificate, as an array; `bytes_key` names what their bytes are. */
struct moec_json_out *cli_json_sequence(const struct moec_sequence_step *steps, uint32_t n_step,
                                        const char *bytes_key);

/* Members metric, reference, loss and so on; `measured_key` names what stands beside the reference. */
void cli_json_certificate(struct moec_json_out *node, const struct moec_certificate *certificate,
                          const char *measured_key, const char *bytes_key);

#endif
