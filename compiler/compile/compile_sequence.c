/* The plans that the certificate tests, and their order, fixed before its part of the data is read
 * (compiler/certify/sequence.h). */
#include "compiler/compile/compile_sequence.h"

#include "compiler/certify/sequence.h"
#include "compiler/compile/compile_dense_plan.h"
#include "compiler/compile/compile_scope.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- candidates ---- */

static void release(struct moec_compile_candidate *candidate)
{
    moec_plan_release(&candidate->plan);
}

void moec_compile_candidates_release(struct moec_compile_candidates *candidates)
{
    for (size_t i = 0; i < candidates->n_front; i++)
        release(&candidates->front[i]);
    for (uint32_t i = 0; i < candidates->n; i++)
        release(&candidates->sequence[i]);
    free(candidates->front);
    *candidates = (struct moec_compile_candidates){0};
}

static enum moec_status copy_plan(const struct moec_compile_run *run, const struct moec_plan *from,
                                  struct moec_plan *to, struct moec_error *err)
{
    MOEC_TRY(moec_plan_create(to, moec_checkpoint_config(run->checkpoint), err));
    moec_plan_copy(to, from);
    to->dense_bits = run->report->plan.dense_bits;
    return MOEC_OK;
}

enum moec_status moec_compile_candidates_start(struct moec_compile_run *run,
                                               const struct moec_policy_answer *answer,
                                               struct moec_error *err)
{
    struct moec_compile_candidates *candidates = &run->candidates;
    for (uint32_t i = 0; i < answer->n_plan; i++) {
        struct moec_compile_candidate *candidate = &candidates->sequence[i];
        *candidate = (struct moec_compile_candidate){0};
        MOEC_TRY(copy_plan(run, &answer->plans[i], &candidate->plan, err));
        candidates->n++;
        MOEC_TRY(moec_compile_size(run, &candidate->plan, &candidate->n_bytes, err));
    }
    return MOEC_OK;
}

/* Whether a is no larger than b and loses no more. */
static bool is_as_good(uint64_t a_bytes, const struct moec_loss *a, const struct moec_compile_candidate *b)
{
    return a_bytes <= b->n_bytes && a->loss <= b->search.loss;
}

static bool is_wanted(const struct moec_compile_run *run, uint64_t n_bytes, const struct moec_loss *loss)
{
    const uint64_t most = run->options->target.max_bytes;
    if (isnan(run->options->target.max_loss) || !moec_compile_meets(run, loss) ||
        (most > 0 && n_bytes > most))
        return false;
    for (size_t i = 0; i < run->candidates.n_front; i++) {
        const struct moec_compile_candidate *other = &run->candidates.front[i];
        if (other->n_bytes <= n_bytes && other->search.loss <= loss->loss)
            return false;
    }
    return true;
}

static enum moec_status add(struct moec_compile_run *run, const struct moec_plan *plan, uint64_t n_bytes,
                            const struct moec_loss *loss, bool is_measured, struct moec_error *err)
{
    struct moec_compile_candidates *candidates = &run->candidates;
    struct moec_compile_candidate added = {.n_bytes = n_bytes, .is_measured = is_measured, .search = *loss};
    void *front = candidates->front;
    size_t n = 0, at = 0;
    if (!is_wanted(run, n_bytes, loss))
        return MOEC_OK;
    for (size_t i = 0; i < candidates->n_front; i++) {
        struct moec_compile_candidate *other = &candidates->front[i];
        if (is_measured && is_as_good(n_bytes, loss, other)) /* what is foretold replaces nothing */
            release(other);
        else
            candidates->front[n++] = *other;
    }
    candidates->n_front = n;
    MOEC_TRY(moec_grow(&front, &candidates->front_capacity, n + 1, sizeof *candidates->front,
                       "plans of the search", err));
    candidates->front = front;
    MOEC_TRY(copy_plan(run, plan, &added.plan, err));
    while (at < n && candidates->front[at].n_bytes > n_bytes)
        at++;
    memmove(candidates->front + at + 1, candidates->front + at, (n - at) * sizeof *candidates->front);
    candidates->front[at] = added;
    candidates->n_front++;
    return MOEC_OK;
}

enum moec_status moec_compile_candidates_add(struct moec_compile_run *run, const struct moec_plan *plan,
                                             uint64_t n_bytes, const struct moec_loss *loss,
                                             struct moec_error *err)
{
    return add(run, plan, n_bytes, loss, true, err);
}

/* ---- the sequence ---- */

/* All experts at these bits; dense weights no smaller than that. */
static enum moec_status make_uniform(struct moec_compile_run *run, uint32_t bits,
                                     struct moec_compile_candidate *candidate, struct moec_error *err)
{
    *candidate = (struct moec_compile_candidate){0};
    MOEC_TRY(copy_plan(run, &run->report->plan, &candidate->plan, err));
    moec_plan_fill(&candidate->plan, bits);
    memset(candidate->plan.dense, candidate->plan.dense_bits < bits ? (int)bits : 0, candidate->plan.n_dense);
    return moec_compile_size(run, &candidate->plan, &candidate->n_bytes, err);
}

static enum moec_status size_uniform(struct moec_compile_run *run, uint32_t bits, uint64_t *n_bytes,
                                     struct moec_error *err)
{
    struct moec_compile_candidate candidate;
    const enum moec_status status = make_uniform(run, bits, &candidate, err);
    *n_bytes = candidate.n_bytes;
    release(&candidate);
    return status;
}

static struct moec_sequence_spacing spacing_of(const struct moec_compile_run *run,
                                               const struct moec_loss *last)
{
    const double target = run->options->target.max_loss;
    return moec_sequence_spacing_of(
        run->rows != NULL ? target : log1p(target), last, moec_compile_part_count(run, MOEC_PART_SEARCH),
        moec_compile_part_count(run, MOEC_PART_CERTIFICATE), run->options->target.confidence);
}

static bool fits(const struct moec_compile_run *run, const struct moec_compile_candidate *candidate)
{
    return run->options->target.max_bytes == 0 || candidate->n_bytes <= run->options->target.max_bytes;
}

/* Puts a candidate, taken over, before the others, if it is larger. */
static void put_first(struct moec_compile_candidates *candidates, struct moec_compile_candidate *candidate)
{
    if (candidates->n == MOEC_MAX_SEQUENCE || candidate->n_bytes <= candidates->sequence[0].n_bytes) {
        release(candidate);
        return;
    }
    memmove(candidates->sequence + 1, candidates->sequence, candidates->n * sizeof *candidates->sequence);
    candidates->sequence[0] = *candidate;
    candidates->n++;
}

/* The difference (moec_loss) that a plan of uniform bits is expected to have: that of the smallest plan, whose
 * experts have `last_bits` on average, where a bit more has a quarter of the squared error
 * (compiler/policy/harm.h). */
static double expect(const struct moec_compile_run *run, double bits, double last_bits)
{
    return fmax(run->search_loss.difference, 0) * pow(0.25, bits - last_bits);
}

/* Bits of a weight of an expert, on average. */
static double mean_bits(const struct moec_compile_run *run, const struct moec_plan *plan)
{
    double sum = 0;
    for (size_t i = 0; i < moec_plan_count(plan); i++)
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
            sum += moec_codec_bits(run->codecs[plan->experts[i].codecs[p]]);
    return sum / (double)moec_plan_count(plan) / MOEC_PROJECTION_COUNT;
}

/* The safest plan goes first: all experts at 8 bits, or at the source's where 8 are not expected to pass. */
static enum moec_status add_safest(struct moec_compile_run *run, const struct moec_sequence_spacing *spacing,
                                   struct moec_error *err)
{
    static const uint32_t widths[] = {8, 16};
    struct moec_compile_candidates *candidates = &run->candidates;
    const double last_bits = mean_bits(run, &run->report->plan);
    for (size_t i = 0; i < 2; i++) {
        struct moec_compile_candidate safest;
        const enum moec_status status = make_uniform(run, widths[i], &safest, err);
        const bool is_larger = status == MOEC_OK && safest.n_bytes > candidates->sequence[0].n_bytes;
        if (status != MOEC_OK || !is_larger || !fits(run, &safest)) {
            release(&safest);
            MOEC_TRY(status);
            continue;
        }
        put_first(candidates, &safest);
        if (expect(run, widths[i], last_bits) <= moec_sequence_certain(spacing, 2))
            return MOEC_OK;
    }
    return MOEC_OK;
}

/* A search measures little above what it ends with: uniform bitwidths stand in. Their losses are foretold. */
static enum moec_status add_uniform(struct moec_compile_run *run, struct moec_error *err)
{
    static const uint32_t widths[] = {3, 4};
    const struct moec_plan *last = &run->report->plan;
    const double last_bits = mean_bits(run, last);
    for (size_t i = 0; i < 2; i++) {
        struct moec_compile_candidate candidate;
        struct moec_loss loss = {.loss = NAN};
        enum moec_status status = make_uniform(run, widths[i], &candidate, err);
        if (status == MOEC_OK) {
            memcpy(candidate.plan.dense, last->dense, last->n_dense);
            status = moec_compile_size(run, &candidate.plan, &candidate.n_bytes, err);
        }
        loss.difference = expect(run, widths[i], last_bits);
        loss.loss = run->rows != NULL ? loss.difference : expm1(loss.difference);
        if (status == MOEC_OK && candidate.n_bytes > run->report->n_bytes && fits(run, &candidate))
            status = add(run, &candidate.plan, candidate.n_bytes, &loss, false, err);
        release(&candidate);
        MOEC_TRY(status);
    }
    return MOEC_OK;
}

static enum moec_status add_between(struct moec_compile_run *run, const struct moec_sequence_spacing *spacing,
                                    uint64_t safest_bytes, struct moec_error *err)
{
    struct moec_compile_candidates *candidates = &run->candidates;
    struct moec_sequence_candidate *front = NULL;
    bool *taken = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(
        moec_alloc((void **)&front, candidates->n_front + 1, sizeof *front, "plans of the search", err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&taken, candidates->n_front + 1, sizeof *taken, "plans of the search", err));
    for (size_t at = 0; at < candidates->n_front; at++)
        front[at] = (struct moec_sequence_candidate){.n_bytes = candidates->front[at].n_bytes,
                                                     .difference = candidates->front[at].search.difference};
    moec_sequence_choose(front, candidates->n_front, spacing, candidates->sequence[0].n_bytes, safest_bytes,
                         taken);
    for (size_t at = candidates->n_front; at-- > 0;) {
        struct moec_compile_candidate added = candidates->front[at];
        if (!taken[at])
            continue;
        added.plan = (struct moec_plan){0};
        MOEC_TRY_OUT(copy_plan(run, &candidates->front[at].plan, &added.plan, err));
        put_first(candidates, &added);
    }
out:
    free(front);
    free(taken);
    return status;
}

enum moec_status moec_compile_sequence_make(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_compile_candidates *candidates = &run->candidates;
    const struct moec_compile_options *options = run->options;
    struct moec_compile_candidate *last = &candidates->sequence[candidates->n - 1];
    const bool is_own = candidates->n > 1;
    uint64_t safest_bytes = 0;
    last->search = run->search_loss;
    last->is_measured = true;
    if (isnan(options->target.max_loss) || options->target.confidence == MOEC_CONFIDENCE_POINT) {
        /* One test, of the policy's plan. */
        for (uint32_t i = 0; i + 1 < candidates->n; i++)
            release(&candidates->sequence[i]);
        candidates->sequence[0] = *last;
        candidates->n = 1;
        return MOEC_OK;
    }
    const struct moec_sequence_spacing spacing = spacing_of(run, &run->search_loss);
    if (!is_own) {
        MOEC_TRY(add_uniform(run, err));
        MOEC_TRY(size_uniform(run, 8, &safest_bytes, err));
        MOEC_TRY(add_between(run, &spacing, safest_bytes, err));
    }
    return add_safest(run, &spacing, err);
}
