/* What the files of `moec tune` share; no other file includes it.
 *
 *   tune_search.c   candidates, measured on the search part, and which of them are tested
 *   tune_policy.c   the same, asked for by a policy
 *   tune_fit.c      the same, by the time that tokens take on a device
 *   tune_units.c    what is kept of both
 *   tune.c          measuring one, and the tests
 *
 * Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_TUNE_INTERNAL_H
#define MOEC_COMPILER_TUNE_INTERNAL_H

#include "compiler/sparsify/sparsity_fit.h"
#include "compiler/tune/tune.h"
#include "runtime/forward/moe/sparsity.h"
#include "runtime/policy/decide/route_settings.h"

/* Passes of the certificate part: the original, and without plan or decisions too. */
#define MOEC_TUNE_MAX_TESTS (MOEC_MAX_SEQUENCE + 3)

struct tune {
    const struct moec_tune_options *options;
    const struct moec_tune_drafts *drafts; /* NULL: one bundle, which is open */
    struct moec_tune_report *report;
    struct moec_trial trial;
    uint32_t draft;                         /* that is open */
    enum moec_part part;                    /* that is open; MOEC_PART_ALL: none */
    struct moec_route route;                /* of the run at work; the scorer borrows it */
    struct moec_sparsity *sparsity;         /* likewise; NULL: all neurons */
    struct moec_sparsity_plan plan;         /* where one is searched: the one of `sparsity` */
    struct moec_sparsity_fit *sparsity_fit; /* where a plan is searched; NULL until then */
    char name[MOEC_TUNE_NAME_BYTES + 24];
    struct moec_tune_candidate tested; /* as the test at work sees it */
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
/* The loss on a part, which is opened unless what was kept says it; of it `candidate` receives traffic and
 * kept_share, and with a fit on the search part the time that is foretold. */
MOEC_WARN_UNUSED enum moec_status moec_tune_measure(struct tune *tune, enum moec_part part,
                                                    struct moec_tune_candidate *candidate,
                                                    struct moec_loss *loss, struct moec_error *err);
/* Runs a candidate on the search part for what its routers choose alone. `ran` is the caller's. */
MOEC_WARN_UNUSED enum moec_status moec_tune_record(struct tune *tune,
                                                   const struct moec_tune_candidate *candidate,
                                                   struct moec_replay *ran, struct moec_error *err);
/* What candidates are compared by: bytes a token, or with a fit by time nanoseconds. */
double moec_tune_amount(const struct tune *tune, const struct moec_tune_candidate *candidate);
/* The same as a whole number, at least one: what a sequence has is compared by ratio. */
uint64_t moec_tune_whole(const struct tune *tune, const struct moec_tune_candidate *candidate);

/* ---- tune_units.c ---- */

/* Fills loss, traffic, kept_share and what is foretold, where these were kept. */
MOEC_WARN_UNUSED enum moec_status moec_tune_find(const struct tune *tune, enum moec_part part,
                                                 struct moec_tune_candidate *candidate,
                                                 struct moec_loss *loss, bool *found, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_tune_keep(const struct tune *tune, enum moec_part part,
                                                 const struct moec_tune_candidate *candidate,
                                                 const struct moec_loss *loss, struct moec_error *err);
/* Keeps the windows of the certificate part, the report's sequence and what ends it, before any of these windows is
 * read. */
MOEC_WARN_UNUSED enum moec_status moec_tune_fix_sequence(const struct tune *tune, struct moec_error *err);

/* ---- tune_search.c ---- */

/* Measures the draft that is open without decisions and plan, as the report's plain. */
MOEC_WARN_UNUSED enum moec_status moec_tune_try_plain(struct tune *tune, struct moec_error *err);
/* Measures settings and a share of the draft that is open, as the report's next candidate; whether the target
 * is spent then. Where there is no more room it is as if it were. */
MOEC_WARN_UNUSED enum moec_status moec_tune_try_next(struct tune *tune,
                                                     const struct moec_decision_settings *settings,
                                                     uint32_t share, bool *is_spent, struct moec_error *err);

/* Measures what a plan of sparsity is made from, once, on the search part that is open. */
MOEC_WARN_UNUSED enum moec_status moec_tune_fit_sparsity(struct tune *tune, struct moec_error *err);
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
/* Whether a candidate may be tested: not where it decides and is foretold slower than the draft that compile would
 * write. Without a fit all may. */
bool moec_tune_fit_admits(const struct tune *tune, const struct moec_tune_candidate *candidate);
/* Measures every draft's bits alone, as the report's plain and candidates, and finds what compile would write. */
MOEC_WARN_UNUSED enum moec_status moec_tune_fit_try_plain(struct tune *tune, struct moec_error *err);
/* Settings between two candidates of one draft, of which the first is `within` the loss and the other `beyond` it, by
 * their chosen losses: where the loss is expected at the aim. False where no such try pays, or there are none. */
bool moec_tune_fit_between(const struct moec_tune_candidate *within, const struct moec_tune_candidate *beyond,
                           double target, struct moec_decision_settings *out);
/* Settings for a first or a stronger try beside a candidate within the loss, of whose draft nothing that was tried is
 * faster: along the ray that saved most time for the loss it added. False where too little loss is left, memory holds
 * all experts, or the try was made. */
bool moec_tune_fit_further(const struct tune *tune, const struct moec_tune_candidate *within,
                           struct moec_decision_settings *out);
/* What the selection part shows of a draft's bits, which were fitted to the search part, moves where the loss is spent:
 * tries once between the fastest that is tested and what follows it, or where nothing of its draft does, with a route
 * that decides more, on both parts, as the report's next candidate and on its front. */
MOEC_WARN_UNUSED enum moec_status moec_tune_fit_refine(struct tune *tune, bool *is_added,
                                                       struct moec_error *err);
/* Puts the draft of the lowest upper end alone at the head of the sequence, so that something is written wherever it is
 * proven; what is no faster goes. Then adds the draft that compile would write, unless a candidate with bits that lose
 * less makes it pointless. A policy's sequence whose last would go stays as it is. */
void moec_tune_fit_complete(const struct tune *tune);
/* How many windows of the certificate part the sequence is tested on. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_tune_fit_choose_windows(struct tune *tune, struct moec_error *err);
/* After the tests, of which n_passed were proven: refuses a winner that is slower than that draft, unless the
 * certificate part refutes the draft. */
MOEC_WARN_UNUSED enum moec_status moec_tune_fit_check_winner(struct tune *tune, uint32_t n_passed,
                                                             struct moec_error *err);
/* MOEC_ERR_TARGET, where not even the head of the sequence, bits alone, was proven: `safest` is its loss. */
MOEC_WARN_UNUSED enum moec_status
moec_tune_fit_refuse(const struct tune *tune, const struct moec_loss *safest, struct moec_error *err);
/* Has the fit look at the winner, and at its draft with a part of its decisions, on the search part. */
MOEC_WARN_UNUSED enum moec_status moec_tune_fit_look(struct tune *tune, struct moec_error *err);

#endif
