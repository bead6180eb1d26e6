/* The drafts of `moec fit`: bundles beside the output whose bits lose several shares of what may be lost in all, for a
 * search that gives the rest to decisions. Nothing of them stays. Thread rule: main thread. */
#ifndef MOEC_CLI_FIT_DRAFTS_H
#define MOEC_CLI_FIT_DRAFTS_H

#include "cli/settings/measure_options.h"
#include "cli/terminal/progress_line.h"
#include "compiler/compile/compile.h"
#include "formats/base/claim.h"
#include "profiler/evaluate/windows.h"

#define CLI_MAX_DRAFTS 5

struct cli_fit_drafts {
    const char *output;                  /* borrowed */
    struct cli_measure_options *measure; /* borrowed */
    struct cli_progress *progress;       /* borrowed */
    double max_loss;                     /* in all */
    double confidence;                   /* of the search's intervals */
    const char *profile;                 /* --profile, or NULL: made of measure->data */
    bool trusts_profile;
    /* What follows is filled. */
    char *paths[CLI_MAX_DRAFTS]; /* (n), owned: of files that there are */
    uint32_t n;
    char *journal, *profile_journal; /* owned */
    struct moec_windows windows;     /* of all parts, as in the profile */
    uint8_t data_digest[MOEC_SHA256_BYTES];
    char data_name[256];
    struct moec_claim claim; /* of the output */
};

/* Profiles `checkpoint` where there is no profile, compiles the drafts, and writes them. An interruption
 * keeps journals, from which the same command goes on. Errors: those of a profile and of moec_compile_drafts;
 * MOEC_ERR_CANCELLED after a signal. */
MOEC_WARN_UNUSED enum moec_status cli_fit_drafts_make(struct cli_fit_drafts *drafts,
                                                      struct moec_checkpoint *checkpoint,
                                                      struct moec_error *err);
/* Removes the drafts, and with is_finished what would go on after an interruption. */
void cli_fit_drafts_release(struct cli_fit_drafts *drafts, bool is_finished);

#endif
