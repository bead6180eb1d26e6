/* OpenMP under offline work (D11): the only file that includes omp.h.
 *
 * Profiling, evaluating, quantising and packing work in regions of milliseconds and more. There OpenMP costs
 * nothing and brings what people expect of it on clusters: OMP_NUM_THREADS, OMP_PROC_BIND, OMP_PLACES.
 * Portions are handed out dynamically. Results do not depend on which runs a region. Tokens that are decoded
 * keep to the thread team (runtime/threads/parallel.h), and so does everything in a build for
 * ThreadSanitizer, which cannot see into OpenMP. Thread rule: main thread. */
#ifndef MOEC_PROFILER_OPENMP_H
#define MOEC_PROFILER_OPENMP_H

#include "runtime/threads/parallel.h"

/* From now on moec_parallel_for runs on OpenMP. Call it before anything else uses threads. By default there
 * are as many threads as OpenMP says where the user told it (`is_told`: OMP_NUM_THREADS is set, which is the
 * program's to know), else no more than moec_cpu_count. */
void moec_openmp_use(bool is_told);

/* So many processes share this one's processors: each has a part of them by default, at least one. */
void moec_openmp_share(uint32_t n_process);

/* Name and version of the specification, for --version: "OpenMP    201511"; "OpenMP    off" in a build for
 * ThreadSanitizer. */
const char *moec_openmp_version(void);

#endif
