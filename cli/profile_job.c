#include "cli/profile_job.h"
#include "profiler/profile_run.h"

#include <stdio.h>
#include <string.h>

static void show_digest(void *context, uint64_t done, uint64_t total)
{
    struct cli_progress *progress = context;
    progress->unit = "MB";
    cli_progress_show(progress, "reading the model", (double)done / 1e6, (double)total / 1e6);
}

static enum moec_status show_passes(void *context, const char *phase, double done, double total)
{
    struct cli_progress *progress = context;
    progress->unit = "passes";
    cli_progress_show(progress, phase, done, total);
    return MOEC_OK;
}

enum moec_status cli_run_profile(struct moec_checkpoint *checkpoint,
                                 const struct cli_measure_options *measure, const uint32_t *bits,
                                 uint32_t n_bits, struct cli_progress *progress, struct moec_profile *profile,
                                 struct moec_error *err)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    MOEC_TRY(moec_checkpoint_digest(checkpoint, show_digest, progress, digest, err));
    struct moec_progress passes = {.report = show_passes, .context = progress};
    struct moec_profile_options options = {
        .task = measure->task,
        .data_path = measure->data,
        .seq_len_tokens = measure->seq_len_tokens,
        .n_sample = measure->n_sample,
        .seed = measure->seed,
        .bits = bits,
        .n_bits = n_bits,
        .baseline_bits = measure->baseline_bits,
        .scheme = measure->scheme,
        .group = measure->group,
        .kernels = measure->kernels,
        .n_threads = measure->n_threads,
        .memory_bytes = measure->work_bytes,
        .spill_folder = measure->spill_folder,
        .progress = &passes,
    };
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
    (void)snprintf(name, capacity, "%.*s", (int)(end - start), path + start);
}
