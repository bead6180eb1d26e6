/* What a compile keeps for the case that it is interrupted: units of work in a journal
 * (profiler/common/unit.h) whose job is the model, the windows or rows that everything is measured on, and the revision
 * of what fits encode.
 * Targets, policy and dense weights are no part of it, because each unit's key names what it depends on. */
#include "compiler/compile/compile_units.h"

#include "compiler/compile/compile_scope.h"
#include "compiler/fit/gptq.h"
#include "formats/base/bytes.h"
#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "profiler/profile/profile_run.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the job ---- */

static void add_number(struct moec_sha256 *sha, uint64_t value)
{
    uint8_t bytes[8];
    moec_put_u64(bytes, value);
    moec_sha256_update(sha, bytes, sizeof bytes);
}

static void add_double(struct moec_sha256 *sha, double value)
{
    uint8_t bytes[8];
    moec_put_f64(bytes, value);
    moec_sha256_update(sha, bytes, sizeof bytes);
}

/* Tokens and parts of all windows, original losses of the measured ones, and what the profile lends to the search. */
static void digest_windows(const struct moec_profile *profile, char hex[static 2 * MOEC_SHA256_BYTES + 1])
{
    uint8_t digest[MOEC_SHA256_BYTES];
    const uint32_t stride = moec_profile_window_stride(profile);
    const size_t n_expert = (size_t)profile->n_moe_layer * profile->n_expert;
    struct moec_sha256 sha;
    moec_sha256_init(&sha);
    add_number(&sha, profile->n_drawn);
    for (uint32_t w = 0; w < profile->n_drawn; w++) {
        add_number(&sha, profile->window_part != NULL ? profile->window_part[w] : w & 1u);
        add_number(&sha, profile->window_document != NULL ? profile->window_document[w] : w);
        add_number(&sha, moec_profile_source(profile, w));
        add_number(&sha, profile->window_length[w]);
        for (uint32_t t = 0; t < profile->window_length[w]; t++)
            add_number(&sha, profile->window_tokens[(size_t)w * stride + t]);
        if (w < profile->n_window)
            add_double(&sha, profile->reference.nll[w]);
    }
    for (size_t i = 0; i < n_expert; i++)
        add_number(&sha, profile->activations[i]);
    moec_sha256_finish(&sha, digest);
    moec_sha256_hex(digest, hex);
}

static void digest_rows(const struct moec_row_metric *rows, char hex[static 2 * MOEC_SHA256_BYTES + 1])
{
    uint8_t digest[MOEC_SHA256_BYTES];
    struct moec_sha256 sha;
    moec_sha256_init(&sha);
    moec_sha256_update(&sha, moec_row_metric_rows(rows)->digest, MOEC_SHA256_BYTES);
    for (int part = 0; part < MOEC_PART_COUNT; part++) {
        uint32_t n = 0;
        const uint64_t *chosen = moec_row_metric_chosen(rows, (enum moec_part)part, &n);
        add_number(&sha, n);
        for (uint32_t i = 0; i < n; i++)
            add_number(&sha, chosen[i]);
    }
    moec_sha256_finish(&sha, digest);
    moec_sha256_hex(digest, hex);
}

static void describe_job(const struct moec_compile_run *run, struct moec_job_text *text)
{
    char hex[2 * MOEC_SHA256_BYTES + 1];
    const struct moec_row_metric_options *rows = run->options->target.rows;
    moec_job_line(text, "moec", "%s", MOEC_VERSION);
    moec_job_line(text, "fit", "revision %u", MOEC_GPTQ_REVISION);
    moec_job_line(text, "arithmetic", "%s", run->profile->arithmetic);
    moec_sha256_hex(run->model_digest, hex);
    moec_job_line(text, "model", "%s", hex);
    digest_windows(run->profile, hex);
    moec_job_line(text, "windows", "%s", hex);
    if (run->options->experts.orders_neurons)
        moec_job_line(text, "neurons", "ordered 1");
    if (rows == NULL)
        return;
    digest_rows(run->rows, hex);
    moec_job_line(text, "rows", "%s", hex);
    moec_profile_describe_task(&rows->task, text);
    moec_job_line(text, "context", "%" PRIu32, rows->n_context);
}

enum moec_status moec_compile_units_open(struct moec_compile_run *run, struct moec_error *err)
{
    const char *path = run->options->journal.path;
    struct moec_units_summary summary = {0};
    struct moec_job_text *text = NULL;
    if (path == NULL || run->profile == NULL)
        return moec_compile_scope_take(run, 0, err);
    MOEC_TRY(moec_alloc((void **)&text, 1, sizeof *text, "the description of a job", err));
    describe_job(run, text);
    const enum moec_units_mode mode = !run->options->journal.stays ? MOEC_UNITS_AUTO
                                      : moec_path_exists(path)     ? MOEC_UNITS_RESUME
                                                                   : MOEC_UNITS_NEW;
    struct moec_ranks *ranks = run->options->by.ranks;
    const struct moec_units_place place = {path, mode, ranks};
    const enum moec_status status = moec_units_open_shared(&place, text, &run->stopper, &run->units, err);
    free(text);
    MOEC_TRY(status);
    if (run->units != NULL && moec_ranks_own(ranks) == 0 && moec_units_look(path, &summary, NULL) != MOEC_OK)
        summary.n_unit = 0;
    MOEC_TRY(moec_ranks_spread(ranks, 0, &summary.n_unit, sizeof summary.n_unit, err));
    return moec_compile_scope_take(run, summary.n_unit, err);
}

void moec_compile_units_close(struct moec_compile_run *run, bool is_finished)
{
    run->report->n_resumed = moec_units_found_count(run->units);
    if (is_finished && !run->options->journal.stays)
        moec_units_discard(run->units);
    else
        moec_units_close(run->units);
    run->units = NULL;
}

/* ---- keys ---- */

uint32_t moec_compile_units_crc(const struct moec_compile_run *run)
{
    uint8_t bytes[MOEC_CODEC_TABLE][6];
    for (uint32_t number = 0; number < MOEC_CODEC_TABLE; number++) {
        const struct moec_codec codec = run->codecs[number];
        bytes[number][0] = codec.dtype;
        bytes[number][1] = codec.scheme;
        bytes[number][2] = codec.quantizer;
        bytes[number][3] = run->offer.fitted[number];
        moec_put_u16(bytes[number] + 4, codec.group);
    }
    uint32_t crc =
        moec_crc32c((run->fit != NULL ? 1u : 0) + 4u * run->options->by.arithmetic, bytes, sizeof bytes);
    const uint32_t n_frequent = moec_checkpoint_config(run->checkpoint)->n_frequent;
    if (n_frequent > 0) { /* numbers of dense matrices are then of others */
        uint8_t number[4];
        moec_put_u32(number, n_frequent);
        crc = moec_crc32c(crc, number, sizeof number);
    }
    if (run->options->by.arithmetic == MOEC_ARITHMETIC_BF16) { /* the order of its sums is the device's own */
        const struct moec_gpu_info *device = moec_gpu_place_info(run->options->memory.place);
        crc = moec_crc32c(crc, device->name, strlen(device->name));
    }
    return crc;
}

void moec_compile_units_name(const struct moec_compile_run *run, enum moec_part part,
                             const struct moec_plan *plan, char key[static MOEC_JOURNAL_MAX_KEY])
{
    moec_compile_units_name_first(run, part, moec_compile_part_count(run, part), plan, key);
}

void moec_compile_units_name_first(const struct moec_compile_run *run, enum moec_part part, uint32_t n,
                                   const struct moec_plan *plan, char key[static MOEC_JOURNAL_MAX_KEY])
{
    uint8_t digest[MOEC_SHA256_BYTES];
    char hex[2 * MOEC_SHA256_BYTES + 1];
    struct moec_sha256 sha;
    moec_sha256_init(&sha);
    add_number(&sha, moec_compile_units_crc(run));
    add_number(&sha, run->report->plan.dense_bits);
    moec_sha256_update(&sha, plan->dense, plan->n_dense);
    for (size_t i = 0; i < moec_plan_count(plan); i++)
        moec_sha256_update(&sha, plan->experts[i].codecs, sizeof plan->experts[i].codecs);
    moec_sha256_finish(&sha, digest);
    moec_sha256_hex(digest, hex);
    (void)snprintf(key, MOEC_JOURNAL_MAX_KEY, "plan/%d/%" PRIu32 "/%s", (int)part, n, hex);
}
