/* Two numbers of threads meet here: OpenMP's own, and the processors that this process may use. What the user
 * told OpenMP wins; otherwise the smaller one counts, also for processes that share a machine. */
#include "profiler/common/openmp.h"

#include "formats/base/sanitizers.h"

#if MOEC_HAS_TSAN

void moec_openmp_use(bool is_told)
{
    (void)is_told;
}

void moec_openmp_share(uint32_t n_process)
{
    (void)n_process;
}

const char *moec_openmp_version(void)
{
    return "OpenMP    off";
}

#else

#include <omp.h>

static bool says_threads; /* OMP_NUM_THREADS or its like does */

static int default_threads(void)
{
    const int n = omp_get_max_threads(), n_cpu = moec_cpu_count();
    return says_threads || n < n_cpu ? n : n_cpu;
}

static void run(int n_threads, size_t n_items, size_t n_at_once, moec_parallel_body *body, void *context)
{
#pragma omp parallel for num_threads(n_threads) schedule(dynamic, n_at_once)
    for (size_t item = 0; item < n_items; item++)
        body(context, item, omp_get_thread_num());
}

void moec_openmp_use(bool is_told)
{
    says_threads = is_told;
    static const struct moec_parallel_runner runner = {.default_threads = default_threads, .run = run};
    moec_parallel_use(&runner);
}

void moec_openmp_share(uint32_t n_process)
{
    const int n = moec_cpu_count() / (int)n_process;
    if (!says_threads)
        omp_set_num_threads(n > 1 ? n : 1);
}

#define TEXT(number)   TEXT_OF(number)
#define TEXT_OF(value) #value

const char *moec_openmp_version(void)
{
    return "OpenMP    " TEXT(_OPENMP);
}

#endif
