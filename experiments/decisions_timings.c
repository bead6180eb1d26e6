#include "experiments/decisions_timings.h"

#include "experiments/result.h"
#include "formats/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads every result of a folder: `count` says how many entries one has at most, `take` adds them. */
struct folder_reader {
    uint64_t (*count)(const struct moec_json *root);
    void (*take)(void *list, const struct moec_json *root, const char *file);
    size_t entry_bytes;
};

/* `entries` and what `take` fills belong to `list`. */
static enum moec_status read_folder(const char *folder, const struct folder_reader *reader, void *list,
                                    void **entries, struct moec_error *err)
{
    char(*names)[64] = NULL;
    struct moec_json **roots = NULL;
    uint32_t n = 0;
    uint64_t n_entry = 1; /* so that an empty folder has an array, too */
    MOEC_TRY(experiment_list(folder, &names, &n, err));
    enum moec_status status =
        moec_alloc((void **)&roots, (uint64_t)n + 1, sizeof *roots, "results of a folder", err);
    for (uint32_t i = 0; i < n && status == MOEC_OK; i++) {
        status = experiment_load(folder, names[i], &roots[i], err);
        n_entry += status == MOEC_OK ? reader->count(roots[i]) : 0;
    }
    if (status == MOEC_OK)
        status = moec_alloc(entries, n_entry, reader->entry_bytes, "rows of results", err);
    for (uint32_t i = 0; i < n && roots != NULL; i++) {
        if (status == MOEC_OK)
            reader->take(list, roots[i], names[i]);
        moec_json_free(roots[i]);
    }
    free(roots);
    free(names);
    return status;
}

static uint64_t count_rows(const struct moec_json *root)
{
    return moec_json_length(moec_json_find(root, "rows"));
}

/* ---- moec bench ---- */

static double number_of_text(const struct moec_json *row, const char *key)
{
    char text[48];
    experiment_text(row, key, text, sizeof text);
    return text[0] != '\0' ? strtod(text, NULL) : (double)NAN;
}

static void take_timings(void *list, const struct moec_json *root, const char *file)
{
    struct decisions_timings *timings = list;
    const struct moec_json *rows = moec_json_find(root, "rows");
    for (uint64_t r = 0; r < count_rows(root); r++) {
        const struct moec_json *row = moec_json_at(rows, r);
        struct decisions_timing *timing = &timings->rows[timings->n++];
        *timing = (struct decisions_timing){
            .memory_percent = number_of_text(row, "memory"),
            .rate = number_of_text(row, "storage"),
            .prompt_tokens = experiment_whole(root, "prompt_tokens"),
            .n_ahead = experiment_whole(row, "preload_ahead"),
            .ttft_ms = experiment_number(row, "ttft_ms"),
            .prompt_bytes = experiment_number(row, "prompt_bytes"),
            .prompt_compute_ms = experiment_number(row, "prompt_compute_ms"),
            .prompt_transfer_ms = experiment_number(row, "prompt_transfer_ms"),
            .prompt_floor_ms = experiment_number(row, "prompt_floor_ms"),
            .tpot_ms = experiment_number(row, "tpot_ms_median"),
            .compute_ms = experiment_number(row, "compute_ms"),
            .stall_ms = experiment_number(row, "stall_ms"),
            .token_bytes = experiment_number(row, "bytes_per_token"),
            .hit_rate = experiment_number(row, "hit_rate"),
        };
        (void)snprintf(timing->file, sizeof timing->file, "%s", file);
        experiment_text(row, "mode", timing->mode, sizeof timing->mode);
        experiment_text(row, "predict", timing->predict, sizeof timing->predict);
    }
}

enum moec_status decisions_timings_read(const char *folder, struct decisions_timings *timings,
                                        struct moec_error *err)
{
    static const struct folder_reader reader = {count_rows, take_timings, sizeof *timings->rows};
    *timings = (struct decisions_timings){.n = 0};
    return read_folder(folder, &reader, timings, (void **)&timings->rows, err);
}

static bool is_close(double a, double b)
{
    return fabs(a - b) < 1e-6;
}

const struct decisions_timing *decisions_timing_find(const struct decisions_timings *timings,
                                                     const char *file, const char *mode,
                                                     double memory_percent, double rate)
{
    for (uint32_t r = 0; r < timings->n; r++) {
        const struct decisions_timing *row = &timings->rows[r];
        if (strcmp(row->file, file) == 0 && strcmp(row->mode, mode) == 0 && is_close(row->rate, rate) &&
            (isnan(row->memory_percent) || is_close(row->memory_percent, memory_percent)) &&
            isfinite(row->tpot_ms))
            return row;
    }
    return NULL;
}

/* ---- moec simulate ---- */

static void take_evictions(void *list, const struct moec_json *root, const char *file)
{
    struct decisions_evictions *evictions = list;
    const struct moec_json *rows = moec_json_find(root, "rows");
    const double bound = experiment_number(moec_json_at(moec_json_find(root, "bounds"), 0), "hit_rate_bound");
    for (uint64_t r = 0; r < count_rows(root); r++) {
        const struct moec_json *row = moec_json_at(rows, r);
        struct decisions_eviction *eviction = &evictions->rows[evictions->n++];
        *eviction =
            (struct decisions_eviction){.memory_percent = 100 * experiment_number(row, "buffer_share"),
                                        .hit_rate = experiment_number(row, "hit_rate"),
                                        .bound = bound,
                                        .token_bytes = experiment_number(row, "bytes_per_token"),
                                        .stall_ms = experiment_number(row, "stall_ms")};
        if (strncmp(file, "policies-", 9) == 0)
            experiment_text(row, "evict", eviction->policy, sizeof eviction->policy);
        else
            (void)snprintf(eviction->policy, sizeof eviction->policy, "%.*s",
                           (int)(strrchr(file, '-') != NULL ? strrchr(file, '-') - file : 0), file);
    }
}

enum moec_status decisions_evictions_read(const char *folder, struct decisions_evictions *evictions,
                                          struct moec_error *err)
{
    static const struct folder_reader reader = {count_rows, take_evictions, sizeof *evictions->rows};
    *evictions = (struct decisions_evictions){.n = 0};
    return read_folder(folder, &reader, evictions, (void **)&evictions->rows, err);
}

const struct decisions_eviction *decisions_eviction_find(const struct decisions_evictions *evictions,
                                                         const char *policy, double memory_percent)
{
    for (uint32_t r = 0; r < evictions->n; r++)
        if (strcmp(evictions->rows[r].policy, policy) == 0 &&
            fabs(evictions->rows[r].memory_percent - memory_percent) < 0.5)
            return &evictions->rows[r];
    return NULL;
}
