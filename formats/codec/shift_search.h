/* The search of shift codes by how many states it takes at a time (internal to formats/codec, and for its test). */
#ifndef MOEC_FORMATS_SHIFT_SEARCH_H
#define MOEC_FORMATS_SHIFT_SEARCH_H

#include "formats/codec/shift.h"

#include <stdbool.h>

/* As moec_shift_search, with 4 or 16 states at a time: the same codes. False, and nothing is written, where the
 * processor or the compiler lacks what 16 need. Thread rule: pure. */
bool moec_shift_search_in(uint32_t lanes, uint32_t bits, const float *weights, size_t n, float scale,
                          struct moec_shift_choices *choices, uint8_t *codes);

#endif
