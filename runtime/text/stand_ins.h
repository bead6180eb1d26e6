/* Characters that the tokenizers library knows (Oniguruma 6.9.10, Unicode 16) and PCRE2 10.42 (Unicode 14)
 * does not: patterns are matched on a text where others of the same class stand in for them, so that letters
 * of 2022 are letters. A stand-in has the same general category and as many bytes, is Han where they are, and
 * is the nearest one before them. A later PCRE2 finds the same. Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_STAND_INS_H
#define MOEC_RUNTIME_STAND_INS_H

#include <stddef.h>
#include <stdint.h>

/* Where the first such character of valid UTF-8 begins; n_bytes without one. */
size_t moec_stand_ins_find(const char *text, size_t n_bytes);

/* Puts stand-ins in their place. */
void moec_stand_ins_put(char *text, size_t n_bytes);

#endif
