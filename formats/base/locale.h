/* The C locale for the calling thread, whatever the program has set: elsewhere a number may have a decimal
 * comma, and what a template or a policy says must not depend on that. Thread rule: any thread; others keep
 * their locale. */
#ifndef MOEC_FORMATS_LOCALE_H
#define MOEC_FORMATS_LOCALE_H

#include <locale.h>

/* Returns what the thread had, for moec_locale_leave. */
locale_t moec_locale_enter(void);
void moec_locale_leave(locale_t before);

#endif
