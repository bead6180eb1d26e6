/* MPI as the way between ranks (profiler/ranks/ranks.h), in a library of its own.
 *
 * MPI's own waiting spins, on a core that another rank may want. Here a call begins and is asked now and then
 * whether it is done, with a sleep between. */
#include "profiler/ranks/ranks_library.h"

#include <math.h>
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
#define PASS_TAG      1          /* of messages from one rank to another */
#define TELL_TAG      2          /* of those about how far a rank is; the last one is NaN */

/* One process is one rank. */
static void (*waits)(void *context); /* called now and then while this rank waits; NULL: nobody */
static void *waiting;
static double told; /* is being sent */
static MPI_Request telling = MPI_REQUEST_NULL;

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
        if (waits != NULL)
            waits(waiting);
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

static enum moec_status pass(void *context, uint32_t from, uint32_t to, void *data, uint64_t n_bytes,
                             struct moec_error *err)
{
    int own = 0;
    (void)context;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &own);
    for (uint64_t at = 0; at < n_bytes;) {
        MPI_Request request;
        const uint64_t left = n_bytes - at, n = left < MESSAGE_BYTES ? left : MESSAGE_BYTES;
        uint8_t *bytes = (uint8_t *)data + at;
        const int code =
            (uint32_t)own == from
                ? MPI_Isend(bytes, (int)n, MPI_BYTE, (int)to, PASS_TAG, MPI_COMM_WORLD, &request)
                : MPI_Irecv(bytes, (int)n, MPI_BYTE, (int)from, PASS_TAG, MPI_COMM_WORLD, &request);
        if (code != MPI_SUCCESS)
            return fail_mpi(err, "reach another rank", code);
        MOEC_TRY(complete(&request, "reach another rank", err));
        at += n;
    }
    return MOEC_OK;
}

static void tell(void *context, double done)
{
    int is_sent = 0;
    (void)context;
    if (MPI_Test(&telling, &is_sent, MPI_STATUS_IGNORE) != MPI_SUCCESS || !is_sent)
        return;
    told = done;
    (void)MPI_Isend(&told, 1, MPI_DOUBLE, 0, TELL_TAG, MPI_COMM_WORLD, &telling);
}

static bool hear(void *context, uint32_t *from, double *done)
{
    int is_there = 0;
    MPI_Status message;
    (void)context;
    if (MPI_Iprobe(MPI_ANY_SOURCE, TELL_TAG, MPI_COMM_WORLD, &is_there, &message) != MPI_SUCCESS || !is_there)
        return false;
    *from = (uint32_t)message.MPI_SOURCE;
    return MPI_Recv(done, 1, MPI_DOUBLE, message.MPI_SOURCE, TELL_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE) ==
           MPI_SUCCESS;
}

static void on_wait(void *context, void (*function)(void *), void *argument)
{
    (void)context;
    waits = function;
    waiting = argument;
}

/* Nothing that was told may be under way at the end: each rank's last word is NaN. */
static void end_telling(void)
{
    struct moec_error ignored = {0};
    int own = 0, count = 1;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &own);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &count);
    if (own != 0) {
        (void)complete(&telling, "end", &ignored);
        (void)MPI_Send(&(double){NAN}, 1, MPI_DOUBLE, 0, TELL_TAG, MPI_COMM_WORLD);
        return;
    }
    for (int r = 1; r < count; r++)
        for (double done = 0; !isnan(done);)
            if (MPI_Recv(&done, 1, MPI_DOUBLE, r, TELL_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE) != MPI_SUCCESS)
                return;
}

/* MPI_Finalize waits for all ranks; without it the starter ends those that are left. */
static void close_ranks(void *context, bool in_order)
{
    (void)context;
    waits = NULL;
    if (!in_order)
        return;
    end_telling();
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
                                         .pass = pass,
                                         .tell = tell,
                                         .hear = hear,
                                         .on_wait = on_wait,
                                         .close = close_ranks};
    (void)snprintf(out->host, sizeof out->host, "%.*s", (int)sizeof out->host - 1, host);
    return MOEC_OK;
}

extern const struct moec_ranks_entry moec_ranks_entry __attribute__((visibility("default")));
const struct moec_ranks_entry moec_ranks_entry = {
    .version = MOEC_VERSION, .open = open_ranks, .mpi = MPI_NAME};
