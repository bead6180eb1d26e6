/* MPI is a library of its own, opened only when ranks were started. It is taken only from a build of the
 * same version, and only when it sees as many ranks as were started. */
#include "profiler/ranks/ranks_library.h"

#include "formats/base/library.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY  "libmoec-mpi.so"
#define MAX_PATH 4096

/* Beside this program, as it is built, or in lib/ beside its folder, as it is installed. MPI's own plug-ins look for
 * the library's symbols. */
static void *open_library(void)
{
    static const char *const places[] = {"", "/../lib"};
    char program[MAX_PATH], path[MAX_PATH + 64];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(program, '/');
    for (size_t i = 0; slash != NULL && i < sizeof places / sizeof *places; i++) {
        (void)snprintf(path, sizeof path, "%.*s%s/" LIBRARY, (int)(slash - program), program, places[i]);
        if (access(path, F_OK) != 0)
            continue;
        *strrchr(path, '/') = '\0';
        return moec_library_open(path, LIBRARY, true);
    }
    return moec_library_open(NULL, LIBRARY, true);
}

static const struct moec_ranks_entry *entry_of(void *library)
{
    return library != NULL ? moec_library_symbol(library, "moec_ranks_entry") : NULL;
}

static bool is_of_this_version(const struct moec_ranks_entry *entry)
{
    return entry != NULL && strcmp(entry->version, MOEC_VERSION) == 0;
}

const char *moec_ranks_mpi(void)
{
    const struct moec_ranks_entry *entry = entry_of(open_library());
    return is_of_this_version(entry) ? entry->mpi : NULL;
}

enum moec_status moec_ranks_join(uint32_t started, struct moec_ranks **out, struct moec_error *err)
{
    struct moec_ranks_transport transport = {0};
    void *library = open_library();
    if (library == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%" PRIu32 " ranks were started, but '%s' cannot be opened (%s): build moec where "
                         "libopenmpi-dev is installed (make MPI=1), or start moec without mpirun",
                         started, LIBRARY, moec_library_problem());
    const struct moec_ranks_entry *entry = entry_of(library);
    if (!is_of_this_version(entry))
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "the library '%s' has version '%s', but this program has version '%s': build the library again",
            LIBRARY, entry != NULL ? entry->version : "none", MOEC_VERSION);
    MOEC_TRY(entry->open(&transport, err));
    if (transport.count != started) {
        const uint32_t seen = transport.count;
        transport.close(transport.context, true);
        return moec_fail(
            err, MOEC_ERR_MISMATCH,
            "%" PRIu32 " ranks were started, but MPI reports %" PRIu32
            ": start them with the mpirun of the MPI that '%s' was built with, or with srun --mpi=pmix",
            started, seen, LIBRARY);
    }
    return moec_ranks_create(&transport, out, err);
}
