/* A bundle and what decides in it, measured against the original model on one part of the windows after the
 * other: losses on the search part for a choice among candidates, and on the certificate part the tests of a
 * sequence. What the candidates are is the caller's: it sets the scorer up before each measurement. Thread
 * rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_TRIAL_H
#define MOEC_COMPILER_TRIAL_H

#include "compiler/certify/measured_part.h"
#include "compiler/certify/sequence.h"
#include "profiler/common/progress.h"
#include "profiler/evaluate/source.h"
#include "runtime/kernels/arithmetic.h"

struct moec_trial_inputs {
    const struct moec_source *bundle; /* serves low copies where they are searched with (serve_low) */
    const struct moec_source *original;
    const struct moec_windows *windows; /* with parts */
    const uint8_t *data_digest;         /* (MOEC_SHA256_BYTES) */
    const char *data_name;
};

struct moec_trial_options {
    const struct moec_kernels *kernels;
    int n_threads;                   /* as moec_pool_make */
    uint64_t reference_bytes;        /* that the original's probabilities may take */
    enum moec_arithmetic arithmetic; /* that the bundle is measured in; the original's is canonical */
    uint32_t n_prompt;               /* tokens of a window that are a prompt's, for decisions */
    double max_loss;                 /* 0.02 is 2 % */
    double confidence;               /* 0.5 < c < 1 */
    bool goes_on_by_chance;          /* where the original predicts the text no better than chance */
    struct moec_sparsity *sparsity;  /* of every measurement, not of the original's; borrowed, NULL = none */
};

/* What the original gave on a part; owned. */
struct moec_trial_original {
    struct moec_scorer_reference *reference;
    double *nll; /* (W) */
};

/* Progress is in windows; a phase has a name of its own. */
struct moec_trial {
    const struct moec_trial_inputs *inputs; /* all borrowed */
    const struct moec_trial_options *options;
    const struct moec_progress *progress;   /* not NULL */
    uint32_t n_search, n_select, n_certify; /* windows of these parts */
    /* Of a part no more windows than these are taken, the first ones; 0 = all. Set before the part is opened. */
    uint32_t most_search, most_select, most_certify;
    bool leaves_original; /* parts that are opened from now on are for runs alone, not for losses */
    /* Of the part that is open: */
    struct moec_measured_part measured;
    const char *phase;
    enum moec_part part;
    struct moec_trial_original kept[MOEC_PART_COUNT]; /* by part: what moec_trial_leave kept */
};

void moec_trial_init(const struct moec_trial_inputs *inputs, const struct moec_trial_options *options,
                     const struct moec_progress *progress, struct moec_trial *trial);

/* Evaluates the original on the part, unless it was left before. The certificate part is the last: what is kept of
 * others is freed then. Errors: those of the scorer and of
 * `progress`, MOEC_ERR_MISMATCH (profiler/evaluate/chance.h). */
MOEC_WARN_UNUSED enum moec_status moec_trial_open(struct moec_trial *trial, enum moec_part part,
                                                  struct moec_error *err);
void moec_trial_close(struct moec_trial *trial);
/* Windows of a part that are taken. */
uint32_t moec_trial_count(const struct moec_trial *trial, enum moec_part part);
/* Closes the part, but when it is opened again, also for another bundle and after other parts, the original is not
 * evaluated anew. */
void moec_trial_leave(struct moec_trial *trial);

/* A run of the bundle as the scorer is set up now, with a variation, into `measure`. */
MOEC_WARN_UNUSED enum moec_status moec_trial_run(struct moec_trial *trial,
                                                 const struct moec_scorer_variation *variation,
                                                 const struct moec_measure *measure, struct moec_error *err);

/* The loss of the bundle as the scorer is set up now. And of the losses that are there already. */
MOEC_WARN_UNUSED enum moec_status moec_trial_measure(struct moec_trial *trial, struct moec_loss *loss,
                                                     struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_trial_weigh(const struct moec_trial *trial, struct moec_loss *loss,
                                                   struct moec_error *err);

/* Says what is still to come at most: passes of search and certificate part. And a line for people. */
void moec_trial_expect(const struct moec_trial *trial, double n_search, double n_certify);
void moec_trial_say(const struct moec_trial *trial, const char *line);

/* A sequence of candidates in the order of their tests. */
struct moec_trial_sequence {
    uint32_t n;                                        /* 1 to MOEC_MAX_SEQUENCE */
    uint64_t n_bytes[MOEC_MAX_SEQUENCE];               /* (n) */
    const struct moec_loss *search[MOEC_MAX_SEQUENCE]; /* (n), on the search part */
    const char *(*name)(void *context, uint32_t i);    /* for people; valid until the next call */
    enum moec_status (*prepare)(void *context, uint32_t i, struct moec_error *err); /* sets the scorer up */
    /* Of who knows losses from before: opens the part and measures, in place of `prepare`; NULL = no one does. */
    enum moec_status (*measure)(void *context, uint32_t i, struct moec_loss *loss, struct moec_error *err);
    void (*passed)(void *context, uint32_t i); /* after its test, in which it was proven */
    void *context;
};

/* On the open certificate part: tests until one fails. `first` is the loss of the first, `n_passed` how many
 * were proven; where any was, the certificate is that of the last of them, with the sequence. */
MOEC_WARN_UNUSED enum moec_status
moec_trial_test(struct moec_trial *trial, const struct moec_trial_sequence *sequence, struct moec_loss *first,
                uint32_t *n_passed, struct moec_certificate *certificate, struct moec_error *err);

/* A sequence of which nothing passed, on the certificate part. */
struct moec_trial_missed {
    const char *kind, *mildest;     /* of candidates ("sparsity plan"), and what the first is called */
    const struct moec_loss *safest; /* of the first */
    const char *alone;              /* what the bundle itself is ("With all neurons") */
    const struct moec_loss *plain;  /* which loses this */
};

/* MOEC_ERR_TARGET, with what would help. */
MOEC_WARN_UNUSED enum moec_status moec_trial_refuse(const struct moec_trial *trial,
                                                    const struct moec_trial_missed *missed,
                                                    struct moec_error *err);

/* The certificate of one measurement on the open certificate part, without a sequence of tests; `search` is
 * what another part said before. */
void moec_trial_certify(const struct moec_trial *trial, const struct moec_loss *loss,
                        const struct moec_loss *search, struct moec_certificate *certificate);

/* Whether the bundle's own certificate was made on the same windows: each promise then holds by itself. */
bool moec_trial_is_reused(const struct moec_trial *trial, const struct moec_certificate *certificate);

#endif
