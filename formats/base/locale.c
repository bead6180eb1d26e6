/* One locale for all threads, made once and never freed. Without memory for it threads keep the one they
 * have. */
#include "formats/base/locale.h"

#include <pthread.h>

static locale_t plain;
static pthread_once_t plain_once = PTHREAD_ONCE_INIT;

static void make_plain(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

locale_t moec_locale_enter(void)
{
    (void)pthread_once(&plain_once, make_plain);
    return plain != (locale_t)0 ? uselocale(plain) : (locale_t)0;
}

void moec_locale_leave(locale_t before)
{
    if (before != (locale_t)0)
        (void)uselocale(before);
}
