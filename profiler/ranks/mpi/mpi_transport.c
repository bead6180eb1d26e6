/* MPI as the way between ranks (profiler/ranks/ranks.h), in a library of its own.
 *
 * MPI's own waiting spins, on a core that another rank may want. Here a call begins and is asked now and then
 * whether it is done, with a sleep between. */
#include "profiler/ranks/ranks_library.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#define TEXT(number)   TEXT_OF(number)
#define TEXT_OF(value) #value
#if defined(OMPI_MAJOR_VERSION)
#define MPI_NAME                                                                                             \
    "Open MPI " TEXT(OMPI_MAJOR_VERSION) "." TEXT(OMPI_MINOR_VERSION) "." TEXT(OMPI_RELEASE_VERSION)
#else
#define MPI_NAME "MPI " TEXT(MPI_VERSION) "." TEXT(MPI_SUBVERSION)
#endif

#define SPINS         64         /* questions without a sleep: most meetings end in them */
#define NAP_NS        20000      /* the first of a wait that goes on: a sixteenth longer each time, */
#define LONG_NAP_NS   1000000    /* up to this, so that waiting takes no processor and little longer */
#define MESSAGE_BYTES (1u << 28) /* of one call, whose counts are int */

static enum moec_status fail_mpi(struct moec_error *err, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    (void)MPI_Error_string(code, text, &n);
    return moec_fail(err, MOEC_ERR_IO, "MPI cannot %s: %s", what, text);
}

static enum moec_status complete(MPI_Request *request, const char *what, struct moec_error *err)
{
    struct timespec nap = {.tv_nsec = NAP_NS};
    for (unsigned n = 0;; n++) {
        int is_done = 0;
        const int code = MPI_Test(request, &is_done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            return fail_mpi(err, what, code);
        if (is_done)
            return MOEC_OK;
        if (n < SPINS) {
            (void)sched_yield();
            continue;
        }
        (void)nanosleep(&nap, NULL);
        nap.tv_nsec += nap.tv_nsec < LONG_NAP_NS ? nap.tv_nsec / 16 : 0;
    }
}

static enum moec_status gather(void *context, const void *own, void *all, uint64_t n_bytes,
                               struct moec_error *err)
{
    MPI_Datatype piece;
    MPI_Request request;
    (void)context;
    if (n_bytes > INT32_MAX)
        return moec_fail(err, MOEC_ERR_LIMIT, "%llu bytes are too many for a message to all ranks",
                         (unsigned long long)n_bytes);
    /* One element a rank: counts of bytes of all ranks together could pass an int. */
    MPI_Type_contiguous((int)n_bytes, MPI_BYTE, &piece);
    MPI_Type_commit(&piece);
    const int code = MPI_Iallgather(own, 1, piece, all, 1, piece, MPI_COMM_WORLD, &request);
    enum moec_status status = code == MPI_SUCCESS ? complete(&request, "reach all ranks", err)
                                                  : fail_mpi(err, "reach all ranks", code);
    MPI_Type_free(&piece);
    return status;
}

static enum moec_status spread(void *context, uint32_t from, void *data, uint64_t n_bytes,
                               struct moec_error *err)
{
    (void)context;
    for (uint64_t at = 0; at < n_bytes;) {
        MPI_Request request;
        const uint64_t left = n_bytes - at, n = left < MESSAGE_BYTES ? left : MESSAGE_BYTES;
        const int code =
            MPI_Ibcast((uint8_t *)data + at, (int)n, MPI_BYTE, (int)from, MPI_COMM_WORLD, &request);
        if (code != MPI_SUCCESS)
            return fail_mpi(err, "reach all ranks", code);
        MOEC_TRY(complete(&request, "reach all ranks", err));
        at += n;
    }
    return MOEC_OK;
}

/* MPI_Finalize waits for all ranks; without it the starter ends those that are left. */
static void close_ranks(void *context, bool in_order)
{
    (void)context;
    if (in_order)
        (void)MPI_Finalize();
}

static enum moec_status open_ranks(struct moec_ranks_transport *out, struct moec_error *err)
{
    int own = 0, count = 1, provided = 0, n = 0;
    char host[MPI_MAX_PROCESSOR_NAME] = "";
    const int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    if (code != MPI_SUCCESS)
        return fail_mpi(err, "start", code);
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &own);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &count);
    (void)MPI_Get_processor_name(host, &n);
    *out = (struct moec_ranks_transport){.own = (uint32_t)own,
                                         .count = (uint32_t)count,
                                         .gather = gather,
                                         .spread = spread,
                                         .close = close_ranks};
    (void)snprintf(out->host, sizeof out->host, "%.*s", (int)sizeof out->host - 1, host);
    return MOEC_OK;
}

extern const struct moec_ranks_entry moec_ranks_entry __attribute__((visibility("default")));
const struct moec_ranks_entry moec_ranks_entry = {
    .version = MOEC_VERSION, .open = open_ranks, .mpi = MPI_NAME};
