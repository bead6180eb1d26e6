#include "profiler/common/paragraphs.h"

#include <stdio.h>
#include <string.h>

static void append(struct moec_paragraphs *paragraphs, const char *format, va_list arguments)
{
    char *text = paragraphs->items[paragraphs->n - 1];
    const size_t used = strlen(text);
    (void)vsnprintf(text + used, MOEC_PARAGRAPH_BYTES - used, format, arguments);
}

void moec_paragraph_add(struct moec_paragraphs *paragraphs, const char *format, ...)
{
    va_list arguments;
    if (paragraphs->n == 0)
        return;
    va_start(arguments, format);
    append(paragraphs, format, arguments);
    va_end(arguments);
}

void moec_paragraph_begin(struct moec_paragraphs *paragraphs, const char *format, ...)
{
    va_list arguments;
    if (paragraphs->n < MOEC_MAX_PARAGRAPHS)
        paragraphs->items[paragraphs->n++][0] = '\0';
    va_start(arguments, format);
    append(paragraphs, format, arguments);
    va_end(arguments);
}
