/* Sets of characters that the tokenizer's steps ask for one character at a time.
 *
 * Each equals the set of the `tokenizers` library 0.22 on all code points assigned in Unicode 13; later ones
 * follow utf8proc's tables (Unicode 15 in 2.8). Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_UNICODE_SETS_H
#define MOEC_RUNTIME_UNICODE_SETS_H

#include <stdbool.h>
#include <stdint.h>

/* White_Space: 25 characters. Rust's char::is_whitespace and the library's \s. */
bool moec_unicode_is_space(uint32_t code_point);

/* General category N. Rust's char::is_numeric. */
bool moec_unicode_is_numeric(uint32_t code_point);

/* \w of Rust's regex crate: Alphabetic, M, Nd, Pc, Join_Control. */
bool moec_unicode_is_word(uint32_t code_point);

/* The library's punctuation: the ASCII symbols and general category P
 * of Unicode 8 (unicode_categories 0.1.1). */
bool moec_unicode_is_punctuation(uint32_t code_point);

/* Characters that the library's normalizers leave alone, with combining class 0, although utf8proc 2.8
 * decomposes or reorders them: its tables are those of Unicode 9, and these came later. */
bool moec_unicode_is_inert(uint32_t code_point);

#endif
