/* What the files of `moec tune` share; no other file includes it.
 *
 *   tune_search.c   candidates, measured on the search part, and which of them are tested
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
/* Whole bytes a token, at least one: sizes of a sequence are compared by ratio. */
uint64_t moec_tune_bytes(const struct moec_tune_candidate *candidate);

/* ---- tune_search.c ---- */

/* What would only show after the search. */
MOEC_WARN_UNUSED enum moec_status moec_tune_check(const struct tune *tune, struct moec_error *err);
/* Fills the report's plain and candidates. */
MOEC_WARN_UNUSED enum moec_status moec_tune_search(struct tune *tune, struct moec_error *err);
/* The sequence: the front's safest, some between, and its smallest. */
MOEC_WARN_UNUSED enum moec_status moec_tune_sequence_make(struct tune *tune, struct moec_error *err);

#endif
