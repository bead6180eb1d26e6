/* ROUGE: how much of a reference summary a candidate contains.
 *
 * Lin, "ROUGE: a package for automatic evaluation of summaries", 2004: ROUGE-1 and ROUGE-2 count the words
 * and pairs of neighbouring words that both texts have (each as often as it occurs in both), ROUGE-L the
 * longest common subsequence of words. Equal to Python's rouge-score 0.1.2, with and without its stemmer:
 * text is put in lower case, words are separated by everything but a-z and 0-9, words of more than three
 * letters are stemmed on request, and ROUGE-L takes the whole text as one sentence.
 * Thread rule: pure functions. */
#ifndef MOEC_PROFILER_ROUGE_H
#define MOEC_PROFILER_ROUGE_H

#include "formats/base/error.h"

#include <stddef.h>

enum moec_rouge_kind {
    MOEC_ROUGE_1 = 0,
    MOEC_ROUGE_2 = 1,
    MOEC_ROUGE_L = 2,
};
#define MOEC_ROUGE_KINDS 3

struct moec_rouge {
    double precision; /* common / those of the candidate */
    double recall;    /* common / those of the reference */
    double f1;        /* their harmonic mean, 0 where both are */
};

/* A candidate text and the reference that it is compared with, both UTF-8 (invalid bytes separate words). */
struct moec_rouge_texts {
    const char *reference;
    size_t reference_bytes;
    const char *candidate;
    size_t candidate_bytes;
    bool stem; /* words are compared by their stems (Porter's) */
};

/* Scores a candidate against its reference: scores (MOEC_ROUGE_KINDS). A text without words scores 0. Takes
 * time in proportion to the product of their lengths. Errors: MOEC_ERR_MEMORY, MOEC_ERR_LIMIT for a text over
 * 2 GiB. */
MOEC_WARN_UNUSED enum moec_status moec_rouge_measure(const struct moec_rouge_texts *texts,
                                                     struct moec_rouge scores[MOEC_ROUGE_KINDS],
                                                     struct moec_error *err);

#endif
