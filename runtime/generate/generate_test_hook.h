/* For tests: the score of a beam search, which transformers tells too; generating goes by the text alone. */
#ifndef MOEC_RUNTIME_GENERATE_TEST_HOOK_H
#define MOEC_RUNTIME_GENERATE_TEST_HOOK_H

#include "runtime/generate/generate.h"

/* Of the text that was found: its log probability / (tokens ^ length_penalty). */
float moec_generator_score(const struct moec_generator *generator);

#endif
