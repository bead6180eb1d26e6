/* Where MPI is found: libmoec-mpi.so, which is built beside moec where MPI is installed and opened when
 * mpirun or srun has started the program, so that moec itself links nothing of MPI. It has one symbol,
 * `moec_ranks_entry`. Thread rule: the main thread, once. */
#ifndef MOEC_PROFILER_RANKS_LIBRARY_H
#define MOEC_PROFILER_RANKS_LIBRARY_H

#include "profiler/ranks/ranks.h"

struct moec_ranks_entry {
    const char *version; /* of its build: structs of another one may differ */
    enum moec_status (*open)(struct moec_ranks_transport *out, struct moec_error *err);
    const char *mpi; /* that it was built with: "Open MPI 4.1.4" */
};

/* The library's MPI, or NULL where there is no library of this version. */
const char *moec_ranks_mpi(void);

/* Joins the other ranks, of which `started` says how many there are to be. Errors: MOEC_ERR_UNSUPPORTED where
 * the library is missing or of another version, MOEC_ERR_MISMATCH where MPI sees another number, and MPI's.
 */
MOEC_WARN_UNUSED enum moec_status moec_ranks_join(uint32_t started, struct moec_ranks **out,
                                                  struct moec_error *err);

#endif
