/* Ranks compare program and command line right after they have joined, so that none works at another job. A
 * silenced rank keeps its stderr aside, for a failure that nobody else can tell. Ranks of a machine are
 * counted by host name, and those with the same processors share them. */
#include "cli/options/started_ranks.h"

#include "cli/print/print.h"
#include "formats/base/digest.h"
#include "formats/base/memory.h"
#include "profiler/common/openmp.h"
#include "profiler/ranks/ranks_library.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct starter {
    const char *name, *own, *count; /* of variables */
} starters[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"mpirun", "PMI_RANK", "PMI_SIZE"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
};

static bool read_number(const char *name, uint32_t *out)
{
    const char *text = getenv(name);
    char *end = NULL;
    if (text == NULL || *text < '0' || *text > '9')
        return false;
    errno = 0;
    const unsigned long value = strtoul(text, &end, 10);
    *out = (uint32_t)value;
    return errno == 0 && *end == '\0' && value <= UINT32_MAX;
}

struct cli_started_ranks cli_started_ranks(void)
{
    for (size_t i = 0; i < sizeof starters / sizeof *starters; i++) {
        struct cli_started_ranks started = {.starter = starters[i].name};
        if (read_number(starters[i].own, &started.own) && read_number(starters[i].count, &started.count) &&
            started.count > 1)
            return started;
    }
    return (struct cli_started_ranks){.count = 1};
}

/* srun gives each task what the job has asked for; there is nothing to undo. */
void cli_ranks_unbind(const struct cli_started_ranks *started)
{
    cpu_set_t all;
    if (started->starter == NULL || strcmp(started->starter, "mpirun") != 0)
        return;
    memset(&all, 0xff, sizeof all);
    (void)sched_setaffinity(0, sizeof all, &all); /* the kernel takes those that there are */
}

/* Only one rank is to be seen. */
static void silence(void)
{
    const int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fflush(stdout);
    (void)fflush(stderr);
    (void)dup2(fd, STDOUT_FILENO);
    (void)dup2(fd, STDERR_FILENO);
    (void)close(fd);
}

static int own_stderr = -1; /* of a rank that is not seen */

void cli_ranks_begin(const struct cli_started_ranks *started)
{
    if (started->own == 0)
        return;
    own_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    silence();
}

/* Nobody but this rank knows of it. */
static enum moec_status fail_alone(enum moec_status status)
{
    if (own_stderr >= 0)
        (void)dup2(own_stderr, STDERR_FILENO);
    return status;
}

/* Everything that ranks are told has to be the same, the program first. */
static enum moec_status compare(struct moec_ranks *ranks, const struct cli_args *args, struct moec_error *err)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    struct moec_sha256 sha;
    MOEC_TRY(moec_ranks_same(ranks, "another version of moec", MOEC_VERSION, sizeof MOEC_VERSION, err));
    moec_sha256_init(&sha);
    for (int i = 1; i < args->argc; i++)
        moec_sha256_update(&sha, args->argv[i], strlen(args->argv[i]) + 1);
    moec_sha256_finish(&sha, digest);
    return moec_ranks_same(ranks, "another command line", digest, sizeof digest, err);
}

struct place {
    char host[MOEC_RANKS_HOST_BYTES];
    cpu_set_t processors;
};

/* Ranks of this machine share its memory, and those with the same processors share these. */
static enum moec_status share_machine(struct moec_ranks *ranks, uint32_t *n_local, struct moec_error *err)
{
    struct place *places = NULL;
    const uint32_t count = moec_ranks_count(ranks), own = moec_ranks_own(ranks);
    uint32_t n_sharing = 0;
    MOEC_TRY(moec_alloc((void **)&places, count, sizeof *places, "places of ranks", err));
    (void)snprintf(places[own].host, sizeof places[own].host, "%s", moec_ranks_host(ranks));
    (void)sched_getaffinity(0, sizeof places[own].processors, &places[own].processors);
    const enum moec_status status = moec_ranks_gather(ranks, places, count, sizeof *places, err);
    *n_local = 0;
    for (uint32_t r = 0; r < count && status == MOEC_OK; r++) {
        const bool is_here = strcmp(places[r].host, places[own].host) == 0;
        *n_local += is_here;
        n_sharing += is_here && CPU_EQUAL(&places[r].processors, &places[own].processors);
    }
    free(places);
    if (status == MOEC_OK)
        moec_openmp_share(n_sharing);
    return status;
}

enum moec_status cli_ranks_join(const struct cli_started_ranks *started, const struct cli_args *args,
                                struct moec_ranks **out, uint32_t *n_local, struct moec_error *err)
{
    if (started->starter == NULL)
        return MOEC_OK;
    if (!args->command->shares_work)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "%s started %" PRIu32
            " ranks, but 'moec %s' runs in one process only: start it without %s. Only moec compile, moec "
            "profile and moec eval run on several ranks",
            started->starter, started->count, args->command->name, started->starter);
    if (cli_has(args, "device"))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "several ranks can work only on CPUs: leave out --device, or start 'moec %s' without %s",
            args->command->name, started->starter);
    if (strcmp(started->starter, "srun") == 0 && getenv("PMIX_NAMESPACE") == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "srun started %" PRIu32
                         " ranks that cannot see each other: give srun --mpi=pmix, or start them with mpirun",
                         started->count);
    const enum moec_status status = moec_ranks_join(started->count, out, err);
    if (status != MOEC_OK)
        return fail_alone(status);
    MOEC_TRY(compare(*out, args, err));
    MOEC_TRY(share_machine(*out, n_local, err));
    if (!cli_has(args, "quiet"))
        cli_print(stderr, "%" PRIu32 " ranks share the work, %" PRIu32 " of them here, on '%s'\n",
                  moec_ranks_count(*out), *n_local, moec_ranks_host(*out));
    return MOEC_OK;
}

void cli_ranks_fail(const struct cli_args *args, const struct moec_error *err)
{
    struct moec_error other = {0};
    const enum moec_status told = moec_ranks_leave(args->ranks, err, &other);
    (void)told; /* this rank's own is the message, whatever another's is */
}

int cli_ranks_leave(const struct cli_args *args, int status)
{
    struct moec_error err = {0};
    if (moec_ranks_leave(args->ranks, NULL, &err) != MOEC_OK && status == CLI_OK)
        status = cli_fail(args, &err);
    moec_ranks_free(args->ranks);
    return status;
}
