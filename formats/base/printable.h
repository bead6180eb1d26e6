/* Foreign text made safe for messages: names from files and text from scripts could otherwise move the
 * cursor, recolour the terminal or forge lines. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_PRINTABLE_H
#define MOEC_FORMATS_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

/* Writes n bytes of text and a NUL into out[capacity], which must not overlap it: control characters (C0, DEL
 * and C1; '\n' and '\t' stay where `keeps_lines`), line and paragraph separators, characters that change the
 * direction of writing, and bytes that are not valid UTF-8 become \xNN; everything else stays. Text that does
 * not fit is cut after a whole character. Applying it twice changes nothing. Returns the bytes that the whole
 * result needs, without the NUL; capacity 0 writes nothing. */
size_t moec_printable(const char *text, size_t n, bool keeps_lines, char *out, size_t capacity);

#endif
