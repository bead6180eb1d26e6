/* The study `codes`: whole models with all experts in the codes that moec compile gives them by default, of
 * which the verdict says what one plan for all experts takes. Sensitivities and uniform bitwidths are of the
 * profile's own codes, by default linear ones.
 *
 * Here rows alone choose the codes, as with --quantizer trellis (2 bits) and hqq; compile fits them to data
 * by GPTQ, after which they lose less. Measured from the fewest bits on until the smallest of the verdict's
 * losses is met; what is left out is NaN. One evaluation each, usually two, of MOEC_CODES_WINDOWS windows: what
 * all experts lose together is far less noisy than what one does. */
#ifndef MOEC_PROFILER_CODES_STUDY_H
#define MOEC_PROFILER_CODES_STUDY_H

#include "profiler/profile/profile_job.h"

#define MOEC_CODES_COUNT   4
#define MOEC_CODES_WINDOWS 128

/* Those of a profile, the first of its measured ones. */
uint32_t moec_codes_windows(const struct moec_profile *profile);

/* By rising bits: 2, 3, 4, 8. Errors: none of an index under MOEC_CODES_COUNT. */
MOEC_WARN_UNUSED enum moec_status moec_codes_codec(uint32_t index, struct moec_codec *codec,
                                                   struct moec_error *err);

/* Adds codes/loss (with kl, loss_low, loss_high), codes/bits and codes/bytes to the profile, whose reference
 * is measured. Leaves the variants assigned somehow. */
MOEC_WARN_UNUSED enum moec_status moec_codes_measure(struct moec_profile_job *job, struct moec_error *err);

#endif
