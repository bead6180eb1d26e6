/* For tests: what a model takes, beside what plans of memory count for it. */
#ifndef MOEC_RUNTIME_MODEL_TEST_HOOK_H
#define MOEC_RUNTIME_MODEL_TEST_HOOK_H

#include "runtime/forward/weights/model.h"

/* Bytes of the dense weights, or of their units that are kept, and of the tables made from them. */
uint64_t moec_model_bytes(const struct moec_model *model);

#endif
