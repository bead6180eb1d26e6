/* What a profile says of single experts as one long table, a line for each expert and bitwidth, for pandas, R
 * or a spreadsheet:
 *
 *     layer,expert,bits,loss,low,high,kl,tokens
 *
 * layer and expert count from 0 as in the model. loss is that of the whole model against the original when
 * this expert alone has `bits` and all others the baseline's; 0.02 is 2 %. low and high are its one-sided 95
 * % ends, paired by window, and empty for estimates (--sensitivity fast). kl is the mean KL divergence from
 * the original, nats a token. tokens is how many chose the expert in the profiled data; where none did,
 * nothing is known and loss to kl are empty. Thread rule: pure function. */
#ifndef MOEC_PROFILER_EXPERT_TABLE_H
#define MOEC_PROFILER_EXPERT_TABLE_H

#include "formats/profile/profile.h"

/* Writes the table, whole or not at all. Errors: MOEC_ERR_USAGE for a name that does not end in .csv,
 * MOEC_ERR_IO, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_expert_table_write(const struct moec_profile *profile,
                                                          const char *path, struct moec_error *err);

#endif
