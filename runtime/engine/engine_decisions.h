/* What an engine decides about each token, and in which arithmetic: by its options, or as its bundle is
 * certified. */
#ifndef MOEC_RUNTIME_ENGINE_DECISIONS_H
#define MOEC_RUNTIME_ENGINE_DECISIONS_H

#include "runtime/engine/engine.h"
#include "runtime/moert.h"

/* Fills the engine's route and, with low copies, which these are: by the options' decisions, else by the
 * bundle's own settings where its compiled assignment runs, whose arithmetic it takes too. The mode is
 * chosen. Errors: MOEC_ERR_USAGE for settings that contradict each other, the model, the mode or the bundle.
 */
MOEC_WARN_UNUSED enum moec_status moec_engine_decide(struct moert_engine *engine,
                                                     const struct moert_options *options,
                                                     const struct moec_config *config,
                                                     struct moec_error *err);

/* Runs in the certificate's arithmetic, unless options say otherwise: in the canonical one where that is
 * bf16 and the engine is not on a device. */
void moec_engine_take_arithmetic(struct moert_engine *engine, const struct moec_certificate *certificate);

#endif
