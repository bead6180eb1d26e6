/* A phase that adds studies is one unit of the journal: what was not there before it, known by name and
 * values. Restoring decodes the same studies, from the first rank to all. Costs are what this run did, what
 * units say, and less what was only repeated. */
#include "profiler/profile/profile_job.h"

#include "formats/base/memory.h"
#include "formats/profile/study_bytes.h"

#include <string.h>

struct moec_sensitivity_subject moec_job_subject(const struct moec_profile_job *job)
{
    const struct moec_profile *profile = job->profile;
    return (struct moec_sensitivity_subject){.model = job->model,
                                             .variants = job->variants,
                                             .windows = &job->sensitivity_windows,
                                             .baseline_bits = profile->baseline_bits,
                                             .bits = profile->bits,
                                             .n_bits = profile->n_bits};
}

uint64_t moec_job_multiply_adds(const struct moec_profile_job *job)
{
    const uint64_t scored = job->scorer != NULL ? moec_scorer_multiply_adds(job->scorer) : 0;
    return job->multiply_adds + scored - job->repeated_multiply_adds;
}

enum moec_status moec_job_score(struct moec_profile_job *job, const char *key,
                                const struct moec_measure *measure, struct moec_error *err)
{
    return moec_job_score_first(job, key, job->windows.n_window, measure, err);
}

enum moec_status moec_job_score_first(struct moec_profile_job *job, const char *key, uint32_t n_window,
                                      const struct moec_measure *measure, struct moec_error *err)
{
    const struct moec_scorer_variation variation = {.n_window = n_window};
    const uint64_t n_bytes = n_window * sizeof(double);
    const struct moec_unit_part parts[] = {{measure->nll, n_bytes}, {measure->kl, n_bytes}};
    const uint32_t n_part = measure->kl != NULL ? 2 : 1;
    bool found = false;
    const struct moec_unit unit = {key, parts, n_part};
    MOEC_TRY(moec_unit_find(job->units, &unit, &job->multiply_adds, &found, err));
    if (found)
        return MOEC_OK;
    const uint64_t before = moec_scorer_multiply_adds(job->scorer);
    MOEC_TRY(moec_scorer_run_varied(job->scorer, &variation, measure, job->options->progress, err));
    return moec_unit_keep(job->units, &unit, moec_scorer_multiply_adds(job->scorer) - before, err);
}

/* ---- progress ---- */

static enum moec_status report_scaled(void *context, const char *phase, double done, double total)
{
    const struct moec_job_progress *scaled = context;
    const double scale = total > 0 ? scaled->passes / total : 0;
    return scaled->outer->report(scaled->outer->context, phase, scale * done, scale * total);
}

static void pass_note(void *context, const char *line)
{
    const struct moec_job_progress *scaled = context;
    moec_progress_note(scaled->outer, "%s", line);
}

const struct moec_progress *moec_job_progress_scale(const struct moec_profile_job *job, double passes,
                                                    struct moec_job_progress *scaled)
{
    *scaled = (struct moec_job_progress){
        .progress = {.report = report_scaled, .note = pass_note, .context = scaled},
        .outer = job->options->progress,
        .passes = passes};
    return scaled->outer != NULL && scaled->outer->report != NULL ? &scaled->progress : scaled->outer;
}

/* ---- studies ---- */

/* Bytes of a record's studies, from the first rank to all; *bytes is the caller's. */
static enum moec_status read_studies(const struct moec_profile_job *job, size_t record, uint8_t **bytes,
                                     uint64_t *n_bytes, uint64_t *cost, struct moec_error *err)
{
    struct moec_ranks *ranks = job->options->by.ranks;
    const bool is_here = moec_ranks_own(ranks) == 0;
    uint64_t told[2] = {0};
    if (is_here) {
        MOEC_TRY(moec_unit_part_bytes(job->units, record, 0, &told[0], err));
        MOEC_TRY(moec_unit_cost(job->units, record, &told[1], err));
    }
    MOEC_TRY(moec_ranks_spread(ranks, 0, told, sizeof told, err));
    *n_bytes = told[0];
    *cost = told[1];
    MOEC_TRY(moec_alloc((void **)bytes, *n_bytes, 1, "kept studies", err));
    if (is_here)
        MOEC_TRY(moec_unit_read_part(job->units, record, 0, *bytes, *n_bytes, err));
    return moec_ranks_spread(ranks, 0, *bytes, *n_bytes, err);
}

static enum moec_status restore_studies(struct moec_profile_job *job, size_t record, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint64_t n_bytes = 0, cost = 0;
    uint8_t *bytes = NULL;
    MOEC_TRY_OUT(read_studies(job, record, &bytes, &n_bytes, &cost, err));
    for (uint64_t at = 0, used = 0; at < n_bytes; at += used)
        MOEC_TRY_OUT(moec_study_decode(bytes + at, n_bytes - at, &job->profile->studies, &used, err));
    job->multiply_adds += cost;
out:
    free(bytes);
    return status;
}

/* A study as it stood before a phase. */
struct before {
    char name[sizeof((struct moec_study *)0)->name];
    const double *values;
};

static bool is_old(const struct moec_study *study, const struct before *before, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (before[i].values == study->values && strcmp(before[i].name, study->name) == 0)
            return true;
    return false;
}

static enum moec_status keep_studies(struct moec_profile_job *job, const char *key,
                                     const struct before *before, uint32_t n_before, uint64_t multiply_adds,
                                     struct moec_error *err)
{
    const struct moec_studies *studies = &job->profile->studies;
    uint64_t n_bytes = 0, at = 0;
    uint8_t *bytes = NULL;
    for (uint32_t i = 0; i < studies->n; i++)
        n_bytes += is_old(&studies->items[i], before, n_before) ? 0 : moec_study_bytes(&studies->items[i]);
    MOEC_TRY(moec_alloc((void **)&bytes, n_bytes, 1, "studies to keep", err));
    for (uint32_t i = 0; i < studies->n; i++) {
        if (is_old(&studies->items[i], before, n_before))
            continue;
        moec_study_encode(&studies->items[i], bytes + at);
        at += moec_study_bytes(&studies->items[i]);
    }
    const struct moec_unit_part part = {bytes, n_bytes};
    const enum moec_status status =
        moec_unit_keep(job->units, &(struct moec_unit){key, &part, 1}, multiply_adds, err);
    free(bytes);
    return status;
}

enum moec_status moec_job_studies(struct moec_profile_job *job, const char *key,
                                  enum moec_status (*phase)(struct moec_profile_job *job,
                                                            struct moec_error *err),
                                  struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_studies *studies = &job->profile->studies;
    const uint32_t n_before = studies->n;
    const uint64_t cost_before = moec_job_multiply_adds(job);
    struct before *before = NULL;
    size_t cursor = 0, record = 0;
    if (job->units == NULL)
        return phase(job, err);
    bool found =
        moec_ranks_own(job->options->by.ranks) == 0 && moec_unit_next(job->units, key, &cursor, &record);
    MOEC_TRY(moec_ranks_spread(job->options->by.ranks, 0, &found, sizeof found, err));
    if (found)
        return restore_studies(job, record, err);
    MOEC_TRY(moec_alloc((void **)&before, n_before, sizeof *before, "names of studies", err));
    for (uint32_t i = 0; i < n_before; i++) {
        memcpy(before[i].name, studies->items[i].name, sizeof before[i].name);
        before[i].values = studies->items[i].values;
    }
    MOEC_TRY_OUT(phase(job, err));
    status = keep_studies(job, key, before, n_before, moec_job_multiply_adds(job) - cost_before, err);
out:
    free(before);
    return status;
}
