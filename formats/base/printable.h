/* Foreign text as it may stand in a message: names from files, words of scripts and whatever else somebody
 * else wrote could otherwise move the cursor, recolour the terminal or forge lines. Thread rule: pure
 * functions. */
#ifndef MOEC_FORMATS_PRINTABLE_H
#define MOEC_FORMATS_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

/* Writes n bytes of text and a NUL into out[capacity], which must not overlap it: control characters (C0, DEL
 * and C1; '\n' and '\t' stay where `keeps_lines`), line and paragraph separators, what turns the direction of
 * writing, and bytes that are no valid UTF-8 become \xNN, all else stays. What has no room is cut behind a
 * whole character. Text that has passed once stays as it is. Returns the bytes that the whole result takes,
 * without the NUL; capacity 0 writes nothing. */
size_t moec_printable(const char *text, size_t n, bool keeps_lines, char *out, size_t capacity);

#endif
