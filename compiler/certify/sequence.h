/* Fixed-sequence testing (Learn then Test, arXiv:2110.01052): candidates in an order that is fixed before the
 * certificate part is read, from the safest to the smallest, each tested at one level until the first fails.
 * What is written is the last that passed. Each test costs an evaluation, so candidates stand close where
 * tests are likely to fail, just under the target, and far apart where they are not. Thread rule: pure
 * functions. */
#ifndef MOEC_COMPILER_SEQUENCE_H
#define MOEC_COMPILER_SEQUENCE_H

#include "formats/bundle/bundle.h"
#include "profiler/evaluate/metrics.h"

/* Candidates between the safest and the smallest. */
#define MOEC_SEQUENCE_MAX_BETWEEN 5

/* What the sequence is made for: losses as the intervals see them. */
struct moec_sequence_spacing {
    double target;        /* in the loss's own terms: ln(1 + target) of perplexity */
    double search_error;  /* standard error of a loss just under the target */
    double certify_error; /* the same on the certificate part */
    double reach;         /* of the certificate's interval, in its errors */
};

/* From the loss of the smallest candidate on the search part, and the units (windows, rows) of both parts. */
struct moec_sequence_spacing moec_sequence_spacing_of(double target, const struct moec_loss *last,
                                                      uint32_t n_search, uint32_t n_certify,
                                                      double confidence);

/* The difference (moec_loss) below which the certificate proves a candidate by so many standard errors of
 * both estimates. */
double moec_sequence_certain(const struct moec_sequence_spacing *spacing, double errors);

/* A candidate that was measured on the search part. */
struct moec_sequence_candidate {
    uint64_t n_bytes;
    double difference; /* of struct moec_loss */
};

/* Marks in `taken` (n) which of a front, by falling bytes and rising loss, stand between the smallest, of
 * least_bytes, and the safest, of most_bytes: by the chance to pass, then those that are far in size from
 * their neighbours. At most MOEC_SEQUENCE_MAX_BETWEEN. */
void moec_sequence_choose(const struct moec_sequence_candidate *front, size_t n,
                          const struct moec_sequence_spacing *spacing, uint64_t least_bytes,
                          uint64_t most_bytes, bool *taken);

/* A candidate that is to be tested; `search` NULL: it was not measured. */
struct moec_sequence_step moec_sequence_step_of(uint64_t n_bytes, const struct moec_loss *search);

/* A test may end early as failed, never as passed: that can only make a sequence shorter, so the level stays. It
 * looks once, at the first half of its windows, and ends if their loss is above the target. A plan whose loss on
 * them equals the target would pass on all with a chance of 5 %: the loss on all would have to be 1.645 of its
 * standard errors below the target, so that of the other half 2.33 errors of a half below it, and the losses of
 * two halves differ by 1.41 such errors. */
/* Windows of n after which a test looks; 0: n are too few to be run in two parts. */
uint32_t moec_sequence_look(uint32_t n_window);
/* Whether a test that has seen so much ends as failed; false without a target (NaN). */
bool moec_sequence_ends(const struct moec_loss *seen, double target);

/* What its test says: passed where the upper end is within the target, or there is none (NaN). `has_p`: the
 * loss is one of moec_loss_measure with an interval. */
void moec_sequence_judge(struct moec_sequence_step *step, const struct moec_loss *loss, double target,
                         bool has_p);

/* A sequence and who tests it. */
struct moec_sequence_tests {
    struct moec_sequence_step *steps; /* (n) in the order of the tests, as moec_sequence_step_of makes them */
    uint32_t n;
    double target; /* NaN: none, so that every candidate passes */
    bool has_p;    /* as moec_sequence_judge */
    /* Windows of a whole test; a loss on fewer is of a test that ended early. 0: all tests are whole. */
    uint32_t n_window;
    /* The loss of candidate i on the certificate part. */
    enum moec_status (*measure)(void *context, uint32_t i, struct moec_loss *loss, struct moec_error *err);
    /* After each test; steps[i] has its result. Of a test that ended early it has the loss on the windows seen, but
     * no ends of an interval, KL or p. */
    void (*judged)(void *context, uint32_t i, const struct moec_loss *loss);
    void *context;
};

/* Tests from the first candidate on until one fails: those after it are not measured and prove nothing.
 * `n_passed`: how many were proven, so that the last of them is the one to write. Errors: those of
 * `measure`. */
MOEC_WARN_UNUSED enum moec_status moec_sequence_test(const struct moec_sequence_tests *tests,
                                                     uint32_t *n_passed, struct moec_error *err);

#define MOEC_SEQUENCE_ADVICE_BYTES 256
/* What would suffice where the safest, of this loss, misses the target: with how many `unit` ("windows") its proof is
 * likely, or that no number of them helps; and the target that the present ones prove. */
const char *moec_sequence_advice(const struct moec_loss *loss, double target, const char *unit,
                                 char text[static MOEC_SEQUENCE_ADVICE_BYTES]);

#endif
