/* The bench: how fast a bundle decodes in the run modes of EdgeMoE's evaluation (section IV-A), at several
 * expert buffers, beside the floor of each.
 *
 * A row is a mode with a buffer, an eviction and a predictor on a storage device. Each row has a
 * process of its own with one engine (profiler/bench/bench_worker.h). All rows run in one go, sample by
 * sample, in an order that turns from sample to sample, one at a time, so that other work on the machine
 * affects all of them alike. Where there is not memory for all of them at once, they do so in groups
 * (profiler/bench/bench_memory.h), one group after the other.
 *
 * A sample is a prompt and the tokens that follow it in the data; of an encoder-decoder model a source and
 * the target, and the time of its prompt includes encoding. Decoding is teacher-forced: after each answer the
 * data's own token is fed, not the chosen one, so that every row computes the same tokens although precisions
 * differ; rows of equal precision must give equal logits, and one that does not has failed. End tokens are
 * tokens like others. A first sample, not counted, fills caches and learns times.
 *
 *     TTFT   time of the prompt's step; one number a sample
 *     TPOT   time of each later step with the choice of a token; all tokens of all samples together
 *     floor  max(compute, bytes/bandwidth) of each token, and the mean of these: the median TPOT of the same
 *            precisions with everything resident, measured in the same run, and the bytes read while that
 *            token was decoded at the bandwidth of the device, which is measured before each round of samples
 *            and after it where it may change (--io direct; the better of the two counts). A token's experts
 *            are known only when the token before it is, so what one token leaves idle no other can use. Of
 *            prompts likewise, from the median TTFT and the bytes read for each
 *
 * Thread rule: moec_bench_run from a process without other threads (it forks). */
#ifndef MOEC_PROFILER_BENCH_H
#define MOEC_PROFILER_BENCH_H

#include "profiler/bench/bench_result.h"

/* Runs everything. A row that fails says so in its error and counts in n_failed; the others continue. A trace
 * that cannot be written costs nothing of what was measured: trace_error and n_untraced say so. Amounts
 * of progress are samples. Errors: MOEC_ERR_USAGE (options), MOEC_ERR_LIMIT (too little data),
 * MOEC_ERR_CANCELLED, those of the bundle. On failure `bench` is empty. */
MOEC_WARN_UNUSED enum moec_status moec_bench_run(const struct moec_bench_options *options,
                                                 const struct moec_progress *progress,
                                                 struct moec_bench *bench, struct moec_error *err);
void moec_bench_release(struct moec_bench *bench);

#endif
