/* Whether a checkpoint that opens can also be measured: what profile, compile and doctor refuse before they
 * read weights, in the same words. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_MODEL_CHECK_H
#define MOEC_PROFILER_MODEL_CHECK_H

#include "formats/checkpoint/checkpoint.h"
#include "runtime/text/tokenizer.h"

/* Makes the checkpoint's tokenizer, which borrows the checkpoint; the caller frees it (moec_tokenizer_free).
 * Errors: MOEC_ERR_UNSUPPORTED where it has none, and for one that cannot be used, prefixed with its name. */
MOEC_WARN_UNUSED enum moec_status moec_model_tokenizer(const struct moec_checkpoint *checkpoint,
                                                       struct moec_tokenizer **out, struct moec_error *err);

/* The same without keeping it; a checkpoint may be without one where `needs_text` is false. */
MOEC_WARN_UNUSED enum moec_status moec_model_check(const struct moec_checkpoint *checkpoint, bool needs_text,
                                                   struct moec_error *err);

#endif
