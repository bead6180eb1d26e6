/* Text for people: a few paragraphs that say in words and numbers what was found. Terminals wrap them,
 * reports put them first, --json lists them. No markup, no line breaks within a paragraph.
 * Thread rule: plain data. */
#ifndef MOEC_PROFILER_PARAGRAPHS_H
#define MOEC_PROFILER_PARAGRAPHS_H

#include "formats/base/error.h"

#include <stdint.h>

#define MOEC_MAX_PARAGRAPHS  16
#define MOEC_PARAGRAPH_BYTES 1024

struct moec_paragraphs {
    uint32_t n;
    char items[MOEC_MAX_PARAGRAPHS][MOEC_PARAGRAPH_BYTES];
};

/* Appends to the last paragraph, or begins a new one; what does not fit is cut. */
void moec_paragraph_add(struct moec_paragraphs *paragraphs, const char *format, ...) MOEC_PRINTF(2, 3);
void moec_paragraph_begin(struct moec_paragraphs *paragraphs, const char *format, ...) MOEC_PRINTF(2, 3);

#endif
