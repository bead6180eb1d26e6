/* Which quantizer encodes experts, and with `auto` the choice of one for each bitwidth by measuring.
 *
 * Candidates are the linear quantizer and HQQ, symmetric and asymmetric (one scheme alone when the user named
 * it), all with the group that the user named. Each is measured as a whole model, every expert at that
 * bitwidth, and the candidate of least
 *
 *     mean KL(original || model) over the search part  x  4^(stored bits of a weight)
 *
 * is taken: one more bit halves the step of a quantizer and quarters the error's square, which KL follows, so
 * the second factor is what the zero points of the asymmetric scheme have to earn. The certificate part is
 * not looked at. Thread rule: one thread. */
#ifndef MOEC_PROFILER_QUANTIZER_CHOICE_H
#define MOEC_PROFILER_QUANTIZER_CHOICE_H

#include "profiler/profile/profile_job.h"

/* What choosing costs: a pass for each candidate at each bitwidth, 0 where the quantizer is given. */
double moec_quantizer_choice_passes(const struct moec_profile_job *job);

/* Nothing unless the profile's quantizer is MOEC_QUANTIZER_AUTO: then measures the candidates at every
 * bitwidth of the profile below 16, the baseline's included, gives the job's variants the codecs chosen,
 * fills profile->choices and profile->uniform at these bitwidths, and adds the studies candidate/loss, kl,
 * loss_low and loss_high. The job's reference is measured. */
MOEC_WARN_UNUSED enum moec_status moec_quantizer_choose(struct moec_profile_job *job, struct moec_error *err);

#endif
