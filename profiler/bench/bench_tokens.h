/* The token sequences that a bench computes: equal for all its rows, on every machine. */
#ifndef MOEC_PROFILER_BENCH_TOKENS_H
#define MOEC_PROFILER_BENCH_TOKENS_H

#include "formats/bundle/bundle.h"
#include "profiler/bench/bench_worker.h"
#include "profiler/tasks/rows.h"

/* Fills tokens->tokens, name and digest; the counts are the caller's. `rows` are cut into windows as
 * everywhere (profiler/evaluate/windows.h); of those that are full n_sample are taken at even distances, and
 * one more for the sample that is not counted (the first again where there is none left). Of an
 * encoder-decoder model a window's source is the prompt and its target what follows, each cut to the sample's
 * length. Without rows a text that moec brings is used, as often as needed; a bundle without tokenizer then
 * gets pseudo-random ids. Errors: MOEC_ERR_USAGE for empty samples, MOEC_ERR_LIMIT with too little data,
 * MOEC_ERR_UNSUPPORTED for rows without a tokenizer. */
MOEC_WARN_UNUSED enum moec_status moec_bench_tokens_make(const struct moec_bundle *bundle,
                                                         const struct moec_rows *rows,
                                                         struct moec_bench_tokens *tokens,
                                                         struct moec_error *err);
void moec_bench_tokens_release(struct moec_bench_tokens *tokens);

#endif
