/* A bundle's sparsity plan and what is promised of it, as moec sparsify and inspect show them. Thread
 * rule: main thread. */
#ifndef MOEC_CLI_SPARSITY_OUTPUT_H
#define MOEC_CLI_SPARSITY_OUTPUT_H

#include "formats/bundle/record_parts.h"
#include "formats/bundle/sparsity_plan.h"
#include "formats/json/json_write.h"

/* Kind, certificate, and what the bundle reads and loses with it and without. */
struct moec_json_out *cli_json_plan(const struct moec_sparsity_plan *plan);
/* Indented lines; without the loss. */
void cli_print_left_out(const struct moec_sparsity_plan *plan);
void cli_print_plan(const struct moec_sparsity_plan *plan);

/* What can be read of a bundle's records alone, and what that is expected to save where storage reads at 550
 * MB/s or is faster, at some sparsities and, where the bundle has one, with its plan. */
struct moec_json_out *cli_json_parts(const struct moec_bundle *bundle, const struct moec_record_parts *parts);
void cli_print_parts(const struct moec_bundle *bundle, const struct moec_record_parts *parts,
                     const struct moec_sparsity_plan *plan);

#endif
