/* Standard files come first, so that nothing that is opened later takes their place. The C library read the
 * default stack of threads when the program started. So raising the limit does not change that default, which
 * is set beside it. */
#include "cli/options/process.h"

#include "cli/print/print.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#define WANTED_STACK_BYTES  (8u << 20)
#define WANTED_THREAD_BYTES (1u << 20)
#define WANTED_FILES        65536u /* shards of a checkpoint and all else */

static void open_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd)
            break; /* nothing can be opened here: neither can outputs */
}

/* Sets the soft limit to `wanted` or the hard one where it is less; false where nothing is to be raised. */
static bool lift(struct rlimit *limit, rlim_t wanted)
{
    if (limit->rlim_cur == RLIM_INFINITY || limit->rlim_cur >= wanted)
        return false;
    const rlim_t before = limit->rlim_cur;
    limit->rlim_cur = limit->rlim_max == RLIM_INFINITY || limit->rlim_max > wanted ? wanted : limit->rlim_max;
    return limit->rlim_cur > before;
}

static void raise_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && lift(&limit, WANTED_FILES))
        (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* What the main thread's stack may take then. */
static rlim_t raise_stack(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0)
        return RLIM_INFINITY;
    const rlim_t before = limit.rlim_cur;
    return lift(&limit, WANTED_STACK_BYTES) && setrlimit(RLIMIT_STACK, &limit) == 0 ? limit.rlim_cur : before;
}

/* The C library took the default of threads from the limit when the program started. */
static void raise_threads(void)
{
    pthread_attr_t attributes;
    size_t n_bytes = 0;
    if (pthread_getattr_default_np(&attributes) != 0)
        return;
    if (pthread_attr_getstacksize(&attributes, &n_bytes) == 0 && n_bytes < WANTED_THREAD_BYTES &&
        pthread_attr_setstacksize(&attributes, WANTED_THREAD_BYTES) == 0)
        (void)pthread_setattr_default_np(&attributes);
    (void)pthread_attr_destroy(&attributes);
}

bool cli_prepare_process(const char *program, uint64_t least_stack_bytes)
{
    open_standard_files();
    (void)signal(SIGXFSZ, SIG_IGN);
    raise_files();
    const rlim_t stack_bytes = raise_stack();
    raise_threads();
    if (stack_bytes == RLIM_INFINITY || stack_bytes >= least_stack_bytes)
        return true;
    cli_print(stderr,
              "%s: the stack may take only %" PRIu64 " KiB, expected at least %" PRIu64
              "; raise its limit: ulimit -s %u\n",
              program, (uint64_t)stack_bytes >> 10, least_stack_bytes >> 10, WANTED_STACK_BYTES >> 10);
    return false;
}
