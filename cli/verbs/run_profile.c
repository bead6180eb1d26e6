/* A run, its forecast and the counting of parts take their options from one place, so that the three agree. A
 * signal ends the program as usual until measuring begins, for there is nothing to lose before. */
#include "cli/verbs/run_profile.h"
#include "cli/terminal/interrupt.h"
#include "formats/base/printable.h"
#include "profiler/profile/model_check.h"
#include "profiler/profile/profile_run.h"
#include "profiler/profile/weight_studies.h"

#include <stdio.h>
#include <string.h>

static void show_digest(void *context, uint64_t done, uint64_t total)
{
    struct cli_progress *progress = context;
    cli_progress_prepare(progress, "reading the model", done, total);
}

static enum moec_status show_passes(void *context, const char *phase, double done, double total)
{
    struct cli_progress *progress = context;
    cli_progress_show(progress, phase, done, total);
    return cli_interrupt_status();
}

static void expect_passes(void *context, double passes)
{
    cli_progress_expect(context, passes);
}

static void show_note(void *context, const char *line)
{
    cli_progress_tell(context, line);
}

/* What the studies that were asked for are going to cost. */
static void announce_studies(const struct moec_config *config, const struct moec_profile_options *options,
                             struct cli_progress *progress)
{
    char line[512];
    size_t used = 0;
    const char *before = "studies: ";
    double all = 0;
    for (uint32_t s = 0; s < MOEC_WEIGHT_STUDY_COUNT; s++) {
        const enum moec_weight_study study = (enum moec_weight_study)s;
        if (!moec_weight_study_wanted(study, options))
            continue;
        const double passes = moec_weight_study_passes(study, config, options);
        const bool is_most = study == MOEC_WEIGHT_STUDY_EXPERT_PROJECTIONS;
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s %s%.0f", before,
                                 moec_weight_study_name(study), is_most ? "at most " : "", passes);
        all += passes;
        before = ", ";
    }
    if (all <= 0)
        return;
    (void)snprintf(line + used, sizeof line - used, "; in all %.0f passes beside the sensitivities", all);
    cli_progress_note(progress, line);
}

static struct moec_profile_options options_of(const struct cli_measure_options *measure,
                                              const struct cli_numbers *bits,
                                              const struct moec_progress *progress)
{
    struct moec_profile_options options = {
        .data = measure->data,
        .codes = measure->codes,
        .measures = measure->measures,
        .by = measure->by,
        .memory = {.limit_bytes = measure->memory.work_bytes,
                   .spill_folder = measure->memory.spill_folder,
                   .place = measure->memory.place},
        .journal = measure->journal,
        .progress = progress,
    };
    options.codes.bits = bits->all;
    options.codes.n_bits = bits->n;
    return options;
}

static struct moec_progress progress_of(struct cli_progress *progress)
{
    return (struct moec_progress){
        .report = show_passes, .note = show_note, .expect = expect_passes, .context = progress};
}

enum moec_status cli_estimate_profile(struct moec_checkpoint *checkpoint,
                                      const struct cli_measure_options *measure,
                                      const struct cli_numbers *bits, struct cli_progress *progress,
                                      struct moec_profile_forecast *forecast, struct moec_error *err)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    const struct moec_progress passes = progress_of(progress);
    const struct moec_profile_options options = options_of(measure, bits, &passes);
    MOEC_TRY(moec_model_check(checkpoint, true, err));
    MOEC_TRY(moec_checkpoint_digest(checkpoint, show_digest, progress, digest, err));
    MOEC_TRY(moec_profile_estimate(checkpoint, &options, forecast, err));
    cli_progress_end(progress);
    return MOEC_OK;
}

enum moec_status cli_count_parts(struct moec_checkpoint *checkpoint,
                                 const struct cli_measure_options *measure, const struct cli_numbers *bits,
                                 struct cli_progress *progress, uint32_t n_part[static MOEC_PART_COUNT],
                                 struct moec_error *err)
{
    const struct moec_progress passes = progress_of(progress);
    const struct moec_profile_options options = options_of(measure, bits, &passes);
    MOEC_TRY(moec_model_check(checkpoint, true, err));
    return moec_profile_count_parts(checkpoint, &options, n_part, err);
}

enum moec_status cli_run_profile(struct moec_checkpoint *checkpoint,
                                 const struct cli_measure_options *measure, const struct cli_numbers *bits,
                                 struct cli_progress *progress, struct moec_profile *profile,
                                 struct moec_error *err)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    MOEC_TRY(moec_model_check(checkpoint, true, err));
    MOEC_TRY(moec_checkpoint_digest(checkpoint, show_digest, progress, digest, err));
    const struct moec_progress passes = progress_of(progress);
    struct moec_profile_options options = options_of(measure, bits, &passes);
    moec_weight_studies_limit(moec_checkpoint_config(checkpoint), &options);
    announce_studies(moec_checkpoint_config(checkpoint), &options, progress);
    /* Before, there is nothing to lose, and a signal ends the program as usual. */
    cli_interrupt_catch();
    MOEC_TRY(moec_profile_run(checkpoint, &options, profile, err));
    cli_progress_end(progress);
    return MOEC_OK;
}

void cli_base_name(const char *path, char *name, size_t capacity)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    (void)moec_printable(path + start, end - start, false, name, capacity);
}
