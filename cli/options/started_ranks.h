/* What mpirun or srun says in the environment, and what follows for a program that shares its work with
 * others: one rank prints and writes, all have a part of the machine. Thread rule: the main thread, before
 * there are others. */
#ifndef MOEC_CLI_STARTED_RANKS_H
#define MOEC_CLI_STARTED_RANKS_H

#include "cli/options/options.h"
#include "profiler/ranks/ranks.h"

struct cli_started_ranks {
    const char *starter; /* "mpirun" or "srun"; NULL = neither, or it started one process alone */
    uint32_t own, count; /* this rank's number; 0 and 1 without a starter */
};

struct cli_started_ranks cli_started_ranks(void);

/* From here on only the first rank's output is seen, and messages of those that cannot join. */
void cli_ranks_begin(const struct cli_started_ranks *started);

/* Lets this process use all of the machine's processors: mpirun gives each rank a few of its own choice. */
void cli_ranks_unbind(const struct cli_started_ranks *started);

/* Joins the ranks for a verb that shares its work. `*out` is NULL where there is one rank; `*n_local` of them
 * are on this machine. Errors: those of moec_ranks_join, MOEC_ERR_USAGE for a verb that does not share,
 * MOEC_ERR_MISMATCH where ranks have other versions or command lines. */
MOEC_WARN_UNUSED enum moec_status cli_ranks_join(const struct cli_started_ranks *started,
                                                 const struct cli_args *args, struct moec_ranks **out,
                                                 uint32_t *n_local, struct moec_error *err);

/* Tells the others that this rank failed, and why: a cli_failed. */
void cli_ranks_fail(const struct cli_args *args, const struct moec_error *err);

/* Ends the work of all ranks together, and what they shared. The status of this one. */
int cli_ranks_leave(const struct cli_args *args, int status);

#endif
