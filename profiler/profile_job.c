#include "profiler/profile_job.h"

uint64_t moec_job_multiply_adds(const struct moec_profile_job *job)
{
    return job->multiply_adds + (job->scorer != NULL ? moec_scorer_multiply_adds(job->scorer) : 0);
}

enum moec_status moec_job_score(struct moec_profile_job *job, const char *key,
                                const struct moec_measure *measure, struct moec_error *err)
{
    const uint64_t n_bytes = job->windows.n_window * sizeof(double);
    const struct moec_unit_part parts[] = {{measure->nll, n_bytes}, {measure->kl, n_bytes}};
    const uint32_t n_part = measure->kl != NULL ? 2 : 1;
    bool found = false;
    MOEC_TRY(moec_unit_find(job->units, key, parts, n_part, &job->multiply_adds, &found, err));
    if (found)
        return MOEC_OK;
    const uint64_t before = moec_scorer_multiply_adds(job->scorer);
    MOEC_TRY(moec_scorer_run(job->scorer, measure, job->options->progress, err));
    return moec_unit_keep(job->units, key, parts, n_part, moec_scorer_multiply_adds(job->scorer) - before,
                          err);
}
