#include "formats/base/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_PATH 4096

void *moec_library_open(const char *folder, const char *name, bool is_global)
{
    char path[MAX_PATH];
    const int flags = RTLD_NOW | RTLD_NODELETE | (is_global ? RTLD_GLOBAL : RTLD_LOCAL);
    if (folder != NULL) {
        const int n = snprintf(path, sizeof path, "%s/%s", folder, name);
        if (n > 0 && n < MAX_PATH && access(path, F_OK) == 0)
            return dlopen(path, flags);
    }
    return dlopen(name, flags);
}

const void *moec_library_symbol(void *library, const char *name)
{
    return dlsym(library, name);
}

const char *moec_library_problem(void)
{
    return dlerror();
}

bool moec_library_own_folder(char *folder, size_t n_bytes)
{
    Dl_info own;
    const char *slash =
        dladdr((const void *)&moec_library_own_folder, &own) != 0 ? strrchr(own.dli_fname, '/') : NULL;
    const int n =
        slash != NULL ? snprintf(folder, n_bytes, "%.*s", (int)(slash - own.dli_fname), own.dli_fname) : -1;
    return n >= 0 && (size_t)n < n_bytes;
}
