#include "profiler/ranks/ranks_library.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY  "libmoec-mpi.so"
#define MAX_PATH 4096

/* From beside this program, from lib/ beside its folder, else from where the system looks. A file that is there
 * and cannot be used is not passed over. MPI's own plug-ins look for its symbols, which are therefore global. */
static void *open_library(void)
{
    static const char *const places[] = {"", "../lib/"};
    char program[MAX_PATH], path[MAX_PATH + 64];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(program, '/');
    for (size_t i = 0; slash != NULL && i < sizeof places / sizeof *places; i++) {
        (void)snprintf(path, sizeof path, "%.*s/%s%s", (int)(slash - program), program, places[i], LIBRARY);
        if (access(path, F_OK) == 0)
            return dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    }
    return dlopen(LIBRARY, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
}

const char *moec_ranks_mpi(void)
{
    void *library = open_library();
    const struct moec_ranks_entry *entry = library != NULL ? dlsym(library, "moec_ranks_entry") : NULL;
    return entry != NULL && strcmp(entry->version, MOEC_VERSION) == 0 ? entry->mpi : NULL;
}

enum moec_status moec_ranks_join(uint32_t started, struct moec_ranks **out, struct moec_error *err)
{
    struct moec_ranks_transport transport = {0};
    void *library = open_library();
    if (library == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%" PRIu32 " ranks were started, but '%s' cannot be opened (%s): build moec where "
                         "libopenmpi-dev is installed (make MPI=1), or start it without mpirun",
                         started, LIBRARY, dlerror());
    const struct moec_ranks_entry *entry = dlsym(library, "moec_ranks_entry");
    if (entry == NULL || strcmp(entry->version, MOEC_VERSION) != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "'%s' has version '%s', expected '%s': build it again",
                         LIBRARY, entry != NULL ? entry->version : "none", MOEC_VERSION);
    MOEC_TRY(entry->open(&transport, err));
    if (transport.count != started) {
        const uint32_t seen = transport.count;
        transport.close(transport.context, true);
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "%" PRIu32 " ranks were started, but MPI sees %" PRIu32 ": start them by the mpirun "
                         "of the MPI that '%s' was built with, or by srun --mpi=pmix",
                         started, seen, LIBRARY);
    }
    return moec_ranks_create(&transport, out, err);
}
