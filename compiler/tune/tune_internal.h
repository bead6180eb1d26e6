/* What the files of `moec tune` share; no other file includes it.
 *
 *   tune_search.c   candidates, measured on the search part, and which of them are tested
 *   tune_policy.c   the same, asked for by a policy
 *   tune_fit.c      the same, by the time that tokens take on a device
 *   tune.c          measuring one, and the tests
 *
 * Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_TUNE_INTERNAL_H
#define MOEC_COMPILER_TUNE_INTERNAL_H

#include "compiler/sparsify/sparsity_fit.h"
#include "compiler/tune/tune.h"
#include "runtime/forward/sparsity.h"
#include "runtime/policy/route_settings.h"

/* Passes of the certificate part: the original, and without plan or decisions too. */
#define MOEC_TUNE_MAX_TESTS (MOEC_MAX_SEQUENCE + 3)

struct tune {
    const struct moec_tune_options *options;
    const struct moec_tune_drafts *drafts; /* NULL: one bundle, which is open */
    struct moec_tune_report *report;
    struct moec_trial trial;
    uint32_t draft;                                       /* that is open */
    enum moec_part part;                                  /* that is open; MOEC_PART_ALL: none */
    struct moec_route route;                              /* of the run at work; the scorer borrows it */
    struct moec_sparsity *sparsity;                       /* likewise; NULL: all neurons */
    struct moec_sparsity_plan plan;                       /* where one is searched: the one of `sparsity` */
    struct moec_sparsity_fit *fits[MOEC_TUNE_MAX_DRAFTS]; /* of drafts that were searched */
    char name[MOEC_TUNE_NAME_BYTES];
};

static inline uint32_t moec_tune_draft_count(const struct tune *tune)
{
    return tune->drafts != NULL ? tune->drafts->n : 1;
}

/* ---- tune.c ---- */

/* Opens a part for a draft, unless it is open. Errors: those of moec_trial_open and of drafts. */
MOEC_WARN_UNUSED enum moec_status moec_tune_open(struct tune *tune, uint32_t draft, enum moec_part part,
                                                 struct moec_error *err);
/* The scorer decides as a candidate of the draft that is open does. Errors: those of the scorer. */
MOEC_WARN_UNUSED enum moec_status
moec_tune_set_up(struct tune *tune, const struct moec_tune_candidate *candidate, struct moec_error *err);
/* The loss on the open part, of which `candidate` receives traffic and kept_share. */
MOEC_WARN_UNUSED enum moec_status moec_tune_measure(struct tune *tune, struct moec_tune_candidate *candidate,
                                                    struct moec_loss *loss, struct moec_error *err);
/* Whole bytes a token, with a fit whole nanoseconds; at least one: what a sequence has is compared by ratio. */
uint64_t moec_tune_bytes(const struct moec_tune_candidate *candidate);

/* ---- tune_search.c ---- */

/* Measures the draft that is open without decisions and plan, as the report's plain. */
MOEC_WARN_UNUSED enum moec_status moec_tune_try_plain(struct tune *tune, struct moec_error *err);
/* Measures settings and a share of the draft that is open, as the report's next candidate; whether the target
 * is spent then. Where there is no more room it is as if it were. */
MOEC_WARN_UNUSED enum moec_status moec_tune_try_next(struct tune *tune,
                                                     const struct moec_decision_settings *settings,
                                                     uint32_t share, bool *is_spent, struct moec_error *err);

/* What would only show after the search. */
MOEC_WARN_UNUSED enum moec_status moec_tune_check(const struct tune *tune, struct moec_error *err);
/* Fills the report's plain and candidates. */
MOEC_WARN_UNUSED enum moec_status moec_tune_search(struct tune *tune, struct moec_error *err);
/* The sequence: the front's safest, some between, and its smallest. */
MOEC_WARN_UNUSED enum moec_status moec_tune_sequence_make(struct tune *tune, struct moec_error *err);
/* Of drafts, whose bits were fitted to the search part: the front is measured on the selection part, and the
 * sequence made anew. */
MOEC_WARN_UNUSED enum moec_status moec_tune_select(struct tune *tune, struct moec_error *err);

/* ---- tune_policy.c ---- */

/* Candidates and sequence as a policy has them. Errors: those of moec_decision_policy_run; MOEC_ERR_TARGET.
 */
MOEC_WARN_UNUSED enum moec_status moec_tune_policy(struct tune *tune, struct moec_error *err);

/* ---- tune_fit.c ---- */

/* Fills the report's plain and candidates: bits alone, and beside them routes and skips whose strength
 * follows the loss that is left. Where memory holds every expert of a draft, the fastest candidate is the
 * one of these that loses least, and nothing decides. Errors: those of measuring and foretelling. */
MOEC_WARN_UNUSED enum moec_status moec_tune_fit_search(struct tune *tune, struct moec_error *err);

#endif
