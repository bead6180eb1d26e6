/* Libraries that a program opens when it turns out to need them: the only file that includes dlfcn.h. In programs
 * without dynamic linking nothing calls these. Thread rule: any thread; what moec_library_problem answers is the
 * caller's last problem. */
#ifndef MOEC_FORMATS_LIBRARY_H
#define MOEC_FORMATS_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* `name` from `folder` (NULL = none), else from where the system looks. NULL where there is none; a file that is in the
 * folder and cannot be used is not passed over. It stays open. `is_global`: its plug-ins see its symbols. */
void *moec_library_open(const char *folder, const char *name, bool is_global);

/* The address of a symbol, or NULL. */
const void *moec_library_symbol(void *library, const char *name);

/* Why the last of these calls failed, in words of the system. */
const char *moec_library_problem(void);

/* The folder of the program or library that this file is linked into; false where it is not known. */
bool moec_library_own_folder(char *folder, size_t n_bytes);

#endif
