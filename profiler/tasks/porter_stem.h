/* The Porter stemmer, as used for scoring summaries.
 *
 * M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the deviations of NLTK's
 * PorterStemmer in its default mode, which Python's rouge-score uses: a table of irregular forms, -ies and
 * -ied of four-letter words to -ie, y to i after a consonant that is not the word's first letter, -alli
 * before the rest of step 2, -fulli and -logi. Snowball's "porter" (libstemmer) follows the author's own
 * later version and differs on about one English word in fifty, "journey" among them, so it cannot be used.
 * Thread rule: a pure function. */
#ifndef MOEC_PROFILER_PORTER_STEM_H
#define MOEC_PROFILER_PORTER_STEM_H

#include <stddef.h>

/* Stems word[n_bytes] of a-z and 0-9 in place and returns its new length, never more than n_bytes. Words of
 * one or two letters stay as they are. Takes time in proportion to the length. */
size_t moec_porter_stem(char *word, size_t n_bytes);

#endif
