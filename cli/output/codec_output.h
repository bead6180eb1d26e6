/* Which codecs a bundle uses, where: of the projections of its experts, and of its dense matrices. */
#ifndef MOEC_CLI_CODEC_OUTPUT_H
#define MOEC_CLI_CODEC_OUTPUT_H

#include "formats/bundle/bundle.h"
#include "formats/json/json_write.h"

/* A line for each codec of the compiled assignment: "   3 bits: int3 symmetric g64: gate 20, up 20, down 5".
 */
void cli_print_codecs(const struct moec_bundle *bundle);
/* The same as an array of codec, bits and a count for each projection. */
struct moec_json_out *cli_json_codecs(const struct moec_bundle *bundle);

/* A line for each codec of the matrices that --dense-bits applies to: how many, their bytes, their roles. */
void cli_print_dense_codecs(const struct moec_dense *dense);
/* An array of these matrices: role, layer (null: of none), codec, bits, rows, columns and bytes. */
struct moec_json_out *cli_json_dense_matrices(const struct moec_dense *dense);

#endif
