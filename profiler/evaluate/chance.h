/* Whether a model says anything of the text that it is measured on. One that guesses evenly among its tokens
 * has a perplexity of its vocabulary's size; what reaches it has no accuracy to lose, so a loss against it
 * promises nothing: most often the tokenizer is another model's, weights were read wrongly, or the text is
 * none. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_CHANCE_H
#define MOEC_PROFILER_CHANCE_H

#include "formats/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* What the original scores, and what guessing would. */
struct moec_chance {
    bool is_accuracy; /* else perplexity, of which less is better */
    double original;
    double guessing; /* size of the vocabulary, or the share of right choices at random */
    const char *data_name;
    const char *subject; /* NULL: "the original" */
};

/* Also true of a NaN. */
bool moec_chance_is(const struct moec_chance *chance);

/* MOEC_ERR_MISMATCH with both numbers and the likely causes where the original is no better than chance. With
 * `goes_on` that is MOEC_OK, and the sentence is in `note`, which is "" otherwise. */
#define MOEC_CHANCE_NOTE_BYTES 768
MOEC_WARN_UNUSED enum moec_status moec_chance_check(const struct moec_chance *chance, bool goes_on,
                                                    char note[static MOEC_CHANCE_NOTE_BYTES],
                                                    struct moec_error *err);

/* The words that mark a result which was made all the same. */
#define MOEC_CHANCE_MARK "the original predicts this text no better than chance"

#endif
