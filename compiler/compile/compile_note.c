/* A measurement becomes a point of the trace; one of the search part may become a candidate of the
 * sequence too. Plans whose experts are all alike are told by their codes, dense matrices with codecs of
 * their own by a digest. */
#include "compiler/compile/compile_note.h"

#include "compiler/compile/compile_dense_plan.h"
#include "compiler/compile/compile_sequence.h"
#include "formats/base/digest.h"

/* What plan and loss are in a trace, but for the size. */
static struct moec_trace_point point_of(const struct moec_compile_run *run, enum moec_trace_part part,
                                        const struct moec_plan *plan, const struct moec_loss *loss)
{
    const struct moec_variant first = plan->experts[0];
    struct moec_trace_point point = {.part = part,
                                     .is_alike = true,
                                     .alike = first,
                                     .dense_bits = run->report->plan.dense_bits,
                                     .loss = loss->loss,
                                     .low = loss->low,
                                     .high = loss->high,
                                     .kl = loss->mean_kl};
    for (size_t i = 1; i < moec_plan_count(plan); i++)
        point.is_alike = point.is_alike && moec_variant_equal(plan->experts[i], first);
    if (!point.is_alike)
        point.alike = (struct moec_variant){{0}};
    if (point.is_alike && moec_variant_is_uniform(first) && first.codecs[0] < MOEC_CODEC_FIRST_OTHER)
        point.uniform_bits = first.codecs[0];
    for (uint32_t i = 0; i < plan->n_dense; i++)
        if (plan->dense[i] != 0)
            point.dense_bits = 0;
    if (point.dense_bits == 0)
        point.dense_digest = moec_crc32c(0, plan->dense, plan->n_dense);
    return point;
}

enum moec_status moec_compile_note(struct moec_compile_run *run, enum moec_trace_part part,
                                   const struct moec_plan *plan, const struct moec_loss *loss, bool is_extra,
                                   struct moec_error *err)
{
    struct moec_trace_point point = point_of(run, part, plan, loss);
    point.is_extra = is_extra;
    MOEC_TRY(moec_compile_size(run, plan, &point.n_bytes, err));
    if (part == MOEC_TRACE_SEARCH && !is_extra)
        MOEC_TRY(moec_compile_candidates_add(run, plan, point.n_bytes, loss, err));
    return moec_search_trace_add(&run->report->trace, &point, err);
}

enum moec_status moec_compile_note_choice(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_search_trace *trace = &run->report->trace;
    const struct moec_certificate *certificate = &run->report->certificate;
    trace->chosen = point_of(run, MOEC_TRACE_SEARCH, &run->report->plan, &run->search_loss);
    trace->has_chosen = true;
    if (run->has_unmeasured) {
        trace->chosen.part = MOEC_TRACE_CERTIFICATE;
        trace->chosen.loss = certificate->loss;
        trace->chosen.low = certificate->loss_low;
        trace->chosen.high = certificate->loss_high;
        trace->chosen.kl = certificate->mean_kl;
    }
    return moec_compile_size(run, &run->report->plan, &trace->chosen.n_bytes, err);
}
