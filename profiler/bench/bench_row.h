/* What a bench's rows come to once they have run (internal to profiler/bench/, and for tests). */
#ifndef MOEC_PROFILER_BENCH_ROW_H
#define MOEC_PROFILER_BENCH_ROW_H

#include "profiler/bench/bench_result.h"

/* Computes every row's figures, and fails rows whose logits are not those of their precisions: within a copy
 * all rows must agree with the first that has run. Needs room for n_sample x n_tokens numbers. */
MOEC_WARN_UNUSED enum moec_status moec_bench_summarise(struct moec_bench *bench, struct moec_error *err);

/* Time of one sample from its prompt to its last token, ms. */
double moec_bench_sample_ms(const struct moec_bench *bench, const struct moec_bench_row *row,
                            uint32_t sample);

/* Counters of all samples, while decoding or over the prompts. */
struct moec_bench_counters moec_bench_count(const struct moec_bench *bench, const struct moec_bench_row *row,
                                            bool is_decode);

/* How the medians of two rows compare: b's TPOT by a's, so that 2 means that a is twice as fast. NaN when one
 * of them is not there. */
double moec_bench_speedup(const struct moec_bench_row *a, const struct moec_bench_row *b);

/* Of what preloads could have hidden, the share that they hid: (stall without - stall with) / min(stall
 * without, compute of a token). NaN for rows that have no twin without predictions, or where there was
 * nothing to hide. */
double moec_bench_hidden_share(const struct moec_bench *bench, const struct moec_bench_row *row);

/* A ratio that EdgeMoE's evaluation reports: the mode edgemoe against a baseline, same memory and storage. */
struct moec_bench_ratio {
    const struct moec_bench_row *row, *against;
    double speedup;
};
/* All of them, in the order of the table; at most `most`. Returns how many. */
uint32_t moec_bench_ratios(const struct moec_bench *bench, struct moec_bench_ratio *ratios, uint32_t most);

#endif
