/* One compile makes all drafts, from the same measurements and fitted weights. The profile measures neither
 * single experts nor whole models, as hull needs none. Drafts are removed in any case, journals only once the
 * work is finished. */
#include "cli/verbs/fit_drafts.h"

#include "cli/output/compile_forecast.h"
#include "cli/print/print.h"
#include "cli/terminal/interrupt.h"
#include "cli/verbs/run_profile.h"
#include "formats/base/file.h"
#include "formats/profile/profile_h5.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of the loss in all, what a draft's bits spend. The last one is what compile would write; the others are compared on
 * as many windows as fit takes, and may spend a little more or less. */
static const struct share {
    double loss;
    uint32_t n_search; /* windows; 0 = as many as compile takes */
    double tolerance;
} shares[] = {{0.1, 64, 0.15}, {0.25, 64, 0.15}, {0.5, 64, 0.15}, {0.75, 64, 0.15}, {1, 0, 0}};
#define N_SHARE (sizeof shares / sizeof *shares)
_Static_assert(N_SHARE <= CLI_MAX_DRAFTS, "there is room for all drafts");

/* Compiles of the same model that a fit takes the processor time of (docs/measured/fit.md). */
#define COMPILES 2.5

/* ---- what compile says ---- */

static void show_log(void *context, const char *line)
{
    struct cli_fit_drafts *drafts = context;
    if (drafts->measure->is_verbose)
        cli_progress_note(drafts->progress, line);
}

static void show_note(void *context, const char *line)
{
    struct cli_fit_drafts *drafts = context;
    cli_progress_note(drafts->progress, line);
}

static void show_progress(void *context, const char *phase, double done, double total)
{
    struct cli_fit_drafts *drafts = context;
    cli_progress_show(drafts->progress, phase, done, total);
}

static void expect_passes(void *context, double passes)
{
    struct cli_fit_drafts *drafts = context;
    cli_progress_expect(drafts->progress, passes);
}

static bool is_cancelled(void *context)
{
    (void)context;
    return cli_interrupt_signal() != 0;
}

/* ---- what it takes ---- */

static void fill_options(const struct cli_fit_drafts *drafts, uint32_t group,
                         struct moec_compile_options *options)
{
    const struct cli_measure_options *measure = drafts->measure;
    *options = (struct moec_compile_options){
        .search = {.policy = "hull", .offers_variants = true, .seed = measure->data.seed},
        .target = {.max_loss = drafts->max_loss,
                   .confidence = drafts->confidence,
                   .goes_on_by_chance = measure->data.goes_on_by_chance},
        .dense = {.bits = 16, .is_planned = true},
        .experts = {.quantizer = measure->codes.quantizer, .scheme = measure->codes.scheme, .group = group},
        .by = {.n_threads = measure->by.n_threads, .kernels = measure->by.kernels},
        .memory = {.place = measure->memory.place,
                   .work_bytes = measure->memory.work_bytes,
                   .spill_folder = measure->memory.spill_folder},
        .journal.path = drafts->journal};
}

/* Where it may take hours, before data is read. */
static enum moec_status warn_long(const struct cli_fit_drafts *drafts,
                                  const struct moec_checkpoint *checkpoint, struct moec_error *err)
{
    const struct cli_measure_options *measure = drafts->measure;
    struct moec_compile_options options;
    fill_options(drafts, measure->codes.group, &options);
    struct moec_compile_request request = {.config = moec_checkpoint_config(checkpoint),
                                           .options = &options,
                                           .seq_len_tokens = measure->data.seq_len_tokens};
    cli_default_parts(measure->data.parts.n_window, request.n_part);
    return cli_warn_long_compile(drafts->progress, &request, COMPILES, err);
}

/* ---- the profile ---- */

/* hull ranks no experts and measures no whole models of a profile. */
static enum moec_status get_profile(struct cli_fit_drafts *drafts, struct moec_checkpoint *checkpoint,
                                    struct moec_profile *profile, uint8_t digest[static MOEC_SHA256_BYTES],
                                    struct moec_error *err)
{
    struct cli_measure_options *measure = drafts->measure;
    if (drafts->profile != NULL)
        return moec_profile_read(drafts->profile, drafts->trusts_profile, profile, digest, err);
    MOEC_TRY(warn_long(drafts, checkpoint, err));
    measure->measures.sensitivity = MOEC_SENSITIVITY_NONE;
    measure->codes.baseline_bits = 16;
    measure->journal.path = drafts->profile_journal;
    measure->journal.mode = MOEC_UNITS_AUTO;
    memset(digest, 0, MOEC_SHA256_BYTES);
    return cli_run_profile(checkpoint, measure, &(struct cli_numbers){0}, drafts->progress, profile, err);
}

static enum moec_status name_file(const char *output, const char *suffix, char **path, struct moec_error *err)
{
    if (asprintf(path, "%s.%s", output, suffix) >= 0)
        return MOEC_OK;
    *path = NULL;
    return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: path of a file beside the output");
}

/* ---- the drafts ---- */

static enum moec_status compile(struct cli_fit_drafts *drafts, struct moec_checkpoint *checkpoint,
                                const struct moec_profile *profile,
                                const uint8_t digest[static MOEC_SHA256_BYTES], struct moec_error *err)
{
    const struct moec_compile_hooks hooks = {.log = show_log,
                                             .note = show_note,
                                             .progress = show_progress,
                                             .expect = expect_passes,
                                             .cancelled = is_cancelled,
                                             .context = drafts};
    struct moec_compile_draft made[N_SHARE] = {0};
    struct moec_compile_options options;
    struct moec_compile_report report = {0};
    char source_name[256], options_text[128], *paths[N_SHARE] = {NULL};
    enum moec_status status = MOEC_OK;
    cli_base_name(moec_checkpoint_folder(checkpoint), source_name, sizeof source_name);
    (void)snprintf(options_text, sizeof options_text, "max-loss=%.9g in all confidence=%g copies=0",
                   drafts->max_loss, drafts->confidence);
    fill_options(drafts, profile->group, &options);
    options.source.options = options_text;
    options.source.model = source_name;
    for (uint32_t i = 0; i < N_SHARE; i++) {
        char suffix[16];
        (void)snprintf(suffix, sizeof suffix, "draft-%" PRIu32, i + 1);
        MOEC_TRY_OUT(name_file(drafts->output, suffix, &paths[i], err));
        made[i].max_loss = shares[i].loss * drafts->max_loss;
        made[i].pair_share = 1;
        made[i].n_search = shares[i].n_search;
        made[i].loss_tolerance = shares[i].tolerance;
        made[i].path = paths[i];
    }
    const struct moec_compile_inputs inputs = {checkpoint, profile, digest};
    const struct moec_compile_draft_list list = {made, N_SHARE};
    status = moec_compile_drafts(&inputs, &options, &hooks, &list, &report, err);
out:
    for (uint32_t i = 0; i < N_SHARE; i++) {
        if (made[i].is_written)
            drafts->paths[drafts->n++] = paths[i];
        else
            free(paths[i]);
        moec_compile_draft_release(&made[i]);
    }
    moec_compile_report_release(&report);
    return status;
}

enum moec_status cli_fit_drafts_make(struct cli_fit_drafts *drafts, struct moec_checkpoint *checkpoint,
                                     struct moec_error *err)
{
    struct moec_profile profile = {0};
    uint8_t digest[MOEC_SHA256_BYTES];
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_claim_take(&drafts->claim, drafts->output, err));
    MOEC_TRY(name_file(drafts->output, "journal", &drafts->journal, err));
    MOEC_TRY(name_file(drafts->output, "profile.journal", &drafts->profile_journal, err));
    cli_interrupt_catch();
    MOEC_TRY_OUT(get_profile(drafts, checkpoint, &profile, digest, err));
    moec_checkpoint_choose_rope(checkpoint, profile.seq_len_tokens); /* as it was measured */
    MOEC_TRY_OUT(moec_windows_from_profile(&profile, MOEC_PART_ALL, &drafts->windows, err));
    memcpy(drafts->data_digest, profile.data_digest, sizeof drafts->data_digest);
    (void)snprintf(drafts->data_name, sizeof drafts->data_name, "%s", profile.data_name);
    status = compile(drafts, checkpoint, &profile, digest, err);
out:
    moec_profile_release(&profile);
    return status;
}

void cli_fit_drafts_release(struct cli_fit_drafts *drafts, bool is_finished)
{
    for (uint32_t i = 0; i < drafts->n; i++) {
        (void)unlink(drafts->paths[i]);
        free(drafts->paths[i]);
    }
    for (int i = 0; i < 2; i++) {
        const char *journal = i == 0 ? drafts->journal : drafts->profile_journal;
        if (journal == NULL || !moec_path_exists(journal))
            continue;
        if (is_finished)
            (void)unlink(journal);
        else
            cli_print(stderr,
                      "finished work is kept in '%s': the same command continues from this file, also with "
                      "another target; delete the file if you will not continue\n",
                      journal);
    }
    free(drafts->journal);
    free(drafts->profile_journal);
    moec_windows_release(&drafts->windows);
    moec_claim_release(&drafts->claim);
}
