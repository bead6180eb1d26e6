/* Runs the sequence on the certificate part, in an order that compile_sequence.c fixed. The digest of the
 * part is taken, and the windows fixed in the journal, before the first test: resuming cannot change them.
 * A plan that is measured out of turn stays "not tested", for a loss beyond the first failure proves
 * nothing. */
#include "compiler/compile/compile_certificate.h"

#include "compiler/certify/promise.h"
#include "compiler/certify/sequence.h"
#include "compiler/compile/compile_note.h"
#include "compiler/compile/compile_part.h"
#include "compiler/compile/compile_windows.h"
#include "formats/base/printable.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_NEIGHBOURS 100 /* bundles that are looked at */

static void fill_certificate(struct moec_compile_run *run, const struct moec_loss *loss)
{
    const struct moec_profile *profile = run->profile;
    struct moec_promise promise = {.metric = profile->metric,
                                   .data_name = profile->data_name,
                                   .data_digest = profile->data_digest,
                                   .seq_len_tokens = profile->seq_len_tokens,
                                   .arithmetic = run->options->by.arithmetic,
                                   .target = run->options->target.max_loss,
                                   .confidence = run->options->target.confidence,
                                   .is_chance = run->is_chance};
    if (run->rows != NULL) {
        const struct moec_rows *rows = moec_row_metric_rows(run->rows);
        promise.metric = moec_task_metric_name(run->options->target.rows->task.metric);
        promise.data_name = rows->name;
        promise.data_digest = rows->digest;
        promise.seq_len_tokens = 0;
    }
    moec_promise_certify(&promise, loss, &run->search_loss, &run->report->certificate);
}

/* ---- the tests ---- */

struct tests {
    struct moec_compile_run *run;
    struct moec_compile_part *part;
    struct moec_loss passed, failed; /* of the last plan that passed, and of one that was not proven */
};

static enum moec_status measure_whole(const struct tests *tests, uint32_t at, struct moec_loss *loss,
                                      struct moec_error *err)
{
    const struct moec_plan *plan = &tests->run->candidates.sequence[at].plan;
    MOEC_TRY(moec_compile_part_measure(tests->run, tests->part, plan, loss, err));
    return moec_compile_note(tests->run, MOEC_TRACE_CERTIFICATE, plan, loss, false, err);
}

/* The test of the safest plan does not end early: where it fails, its loss says what could be promised instead. */
static enum moec_status measure(void *context, uint32_t at, struct moec_loss *loss, struct moec_error *err)
{
    const struct tests *tests = context;
    const struct moec_plan *plan = &tests->run->candidates.sequence[at].plan;
    if (at == 0)
        return measure_whole(tests, at, loss, err);
    MOEC_TRY(moec_compile_part_test(tests->run, tests->part, plan, loss, err));
    return moec_compile_note(tests->run, MOEC_TRACE_CERTIFICATE, plan, loss, false, err);
}

/* Windows of a test; 0 of rows. */
static uint32_t count_windows(const struct tests *tests)
{
    return tests->run->rows == NULL ? tests->part->measured.windows.n_window : 0;
}

static void say_test(const struct tests *tests, uint32_t at, const struct moec_loss *loss, bool has_passed)
{
    const struct moec_compile_run *run = tests->run;
    const struct moec_search_trace *trace = &run->report->trace;
    const uint64_t n_bytes = trace->sequence[at].n_bytes;
    if (loss->n_window < count_windows(tests)) {
        moec_compile_say(
            run,
            "test %" PRIu32 " of %" PRIu32 ": %" PRIu64 " bytes, loss %.3f%% on the first %" PRIu32
            " of %" PRIu32 " windows: above the target already, so not proven",
            at + 1, trace->n_sequence, n_bytes, 100 * loss->loss, loss->n_window, count_windows(tests));
        return;
    }
    moec_compile_say(run,
                     "test %" PRIu32 " of %" PRIu32 ": %" PRIu64
                     " bytes, loss %.3f%% on the certificate part, at most %.3f%%: %s",
                     at + 1, trace->n_sequence, n_bytes, 100 * loss->loss, 100 * loss->high,
                     isnan(run->options->target.max_loss) ? "measured"
                     : has_passed                         ? "proven"
                                                          : "not proven");
}

static void take(void *context, uint32_t at, const struct moec_loss *loss)
{
    struct tests *tests = context;
    const bool has_passed = tests->run->report->trace.sequence[at].result == MOEC_SEQUENCE_PASSED;
    say_test(tests, at, loss, has_passed);
    if (has_passed)
        tests->passed = *loss;
    else
        tests->failed = *loss;
}

static bool has_p_values(const struct moec_compile_run *run)
{
    return run->rows == NULL && run->options->target.confidence != MOEC_CONFIDENCE_POINT;
}

static enum moec_status test_all(struct tests *tests, uint32_t *n_passed, struct moec_error *err)
{
    const struct moec_compile_run *run = tests->run;
    struct moec_search_trace *trace = &run->report->trace;
    trace->n_sequence = run->candidates.n;
    for (uint32_t i = 0; i < trace->n_sequence; i++) {
        const struct moec_compile_candidate *candidate = &run->candidates.sequence[i];
        trace->sequence[i] =
            moec_sequence_step_of(candidate->n_bytes, candidate->is_measured ? &candidate->search : NULL);
    }
    const struct moec_sequence_tests sequence = {.steps = trace->sequence,
                                                 .n = trace->n_sequence,
                                                 .target = run->options->target.max_loss,
                                                 .has_p = has_p_values(run),
                                                 .n_window = count_windows(tests),
                                                 .measure = measure,
                                                 .judged = take,
                                                 .context = tests};
    return moec_sequence_test(&sequence, n_passed, err);
}

/* ---- the part, and who used it before ---- */

static void digest_rows(const struct moec_row_metric *metric, uint8_t digest[static MOEC_SHA256_BYTES])
{
    struct moec_sha256 sha;
    uint32_t n = 0;
    const uint64_t *rows = moec_row_metric_chosen(metric, MOEC_PART_CERTIFICATE, &n);
    moec_sha256_init(&sha);
    moec_sha256_update(&sha, moec_row_metric_rows(metric)->digest, MOEC_SHA256_BYTES);
    for (uint32_t i = 0; i < n; i++)
        moec_sha256_update_u64(&sha, rows[i]);
    moec_sha256_finish(&sha, digest);
}

/* Of all windows of the part, in their order: a certificate on the first of them warns of one on more. */
static enum moec_status digest_part(const struct moec_compile_run *run,
                                    uint8_t digest[static MOEC_SHA256_BYTES], struct moec_error *err)
{
    struct moec_windows part = {0};
    MOEC_TRY(moec_windows_from_profile(run->profile, MOEC_PART_CERTIFICATE, &part, err));
    moec_promise_digest_windows(run->profile->data_digest, &part, digest);
    moec_windows_release(&part);
    return MOEC_OK;
}

/* Made by the same options: the same promise once more. */
static bool is_same_promise(const struct moec_compile_run *run, const struct moec_bundle *bundle)
{
    const struct moec_provenance *theirs = &bundle->provenance;
    const char *slash = strrchr(run->options->search.policy, '/'), *ours = run->options->source.options;
    return strcmp(theirs->policy, slash != NULL ? slash + 1 : run->options->search.policy) == 0 &&
           strncmp(theirs->options, ours, strlen(ours)) == 0;
}

/* Counts the bundles beside the one to be written that were certified on the same part. Files that cannot be
 * read say nothing. */
static void count_reuses(struct moec_compile_run *run)
{
    const char *slash = strrchr(run->path, '/');
    char folder[4096], path[4608];
    uint32_t n_file = 0;
    struct moec_compile_report *report = run->report;
    (void)snprintf(folder, sizeof folder, "%.*s", slash != NULL ? (int)(slash - run->path + 1) : 2,
                   slash != NULL ? run->path : "./");
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    while (entries != NULL && n_file < MAX_NEIGHBOURS && (entry = readdir(entries)) != NULL) {
        const char *end = strrchr(entry->d_name, '.');
        struct moec_bundle *bundle = NULL;
        if (end == NULL || strcmp(end, ".moec") != 0)
            continue;
        n_file++;
        (void)snprintf(path, sizeof path, "%s%s", folder, entry->d_name);
        if (moec_bundle_open(path, &bundle, NULL) != MOEC_OK)
            continue;
        if (!is_same_promise(run, bundle) &&
            moec_promise_is_of_part(&bundle->certificate, run->report->certificate.part_digest)) {
            (void)moec_printable(entry->d_name, strlen(entry->d_name), false, report->reuse,
                                 sizeof report->reuse);
            report->n_reuse++;
        }
        moec_bundle_close(bundle);
    }
    if (entries != NULL)
        (void)closedir(entries);
}

/* ---- the result ---- */

/* The loss of the smallest plan, which no test may have come to. */
static enum moec_status measure_last(struct tests *tests, struct moec_error *err)
{
    const struct moec_compile_run *run = tests->run;
    struct moec_sequence_step *step = &run->report->trace.sequence[run->candidates.n - 1];
    if (step->result != MOEC_SEQUENCE_NOT_TESTED)
        return MOEC_OK;
    MOEC_TRY(measure_whole(tests, run->candidates.n - 1, &tests->failed, err));
    moec_sequence_judge(step, &tests->failed, run->options->target.max_loss, has_p_values(run));
    /* Measured, but out of turn: no test. */
    step->result = MOEC_SEQUENCE_NOT_TESTED;
    return MOEC_OK;
}

/* The plan that is written becomes the report's. */
static void choose(struct moec_compile_run *run, uint32_t at, const struct moec_loss *loss)
{
    struct moec_compile_report *report = run->report;
    const struct moec_compile_candidate *chosen = &run->candidates.sequence[at];
    moec_plan_copy(&report->plan, &chosen->plan);
    report->n_bytes = chosen->n_bytes;
    if (chosen->is_measured)
        run->search_loss = chosen->search;
    run->has_unmeasured = !chosen->is_measured;
    report->trace.sequence[at].is_chosen = true;
    fill_certificate(run, loss);
    report->certificate.n_sequence = report->trace.n_sequence;
    memcpy(report->certificate.sequence, report->trace.sequence, sizeof report->trace.sequence);
}

static enum moec_status refuse(const struct moec_compile_run *run, const struct moec_loss *loss,
                               struct moec_error *err)
{
    char advice[MOEC_SEQUENCE_ADVICE_BYTES];
    const bool is_point = run->options->target.confidence == MOEC_CONFIDENCE_POINT;
    if (is_point)
        return moec_fail(err, MOEC_ERR_TARGET,
                         "the loss on the certificate part of the data is %.3f%%, but the target "
                         "is %.3f%%, so nothing was written. Ask for --max-loss "
                         "%.3f%%, profile more samples, or give --accept-miss",
                         100 * loss->loss, 100 * run->options->target.max_loss, ceil(1e5 * loss->loss) / 1e3);
    return moec_fail(
        err, MOEC_ERR_TARGET,
        "the safest of %" PRIu32 " plans has a loss of %.3f%% on the certificate part of the data "
        "(upper bound with %g%% confidence: %.3f%%), but the target is %.3f%%, so nothing was written: %s",
        run->candidates.n, 100 * loss->loss, 100 * run->options->target.confidence, 100 * loss->high,
        100 * run->options->target.max_loss,
        moec_sequence_advice(loss, run->options->target.max_loss, run->rows != NULL ? "rows" : "windows",
                             advice));
}

enum moec_status moec_compile_certify(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_compile_part part = {0};
    struct tests tests = {.run = run, .part = &part};
    uint32_t n_passed = 0;
    enum moec_status status = MOEC_OK;
    uint8_t *digest = run->report->certificate.part_digest;
    MOEC_TRY_OUT(moec_compile_part_open(run, MOEC_PART_CERTIFICATE, &part, err));
    if (run->rows != NULL)
        digest_rows(run->rows, digest);
    else
        MOEC_TRY_OUT(digest_part(run, digest, err));
    MOEC_TRY_OUT(moec_compile_windows_fix(run, err));
    if (!isnan(run->options->target.max_loss))
        count_reuses(run);
    MOEC_TRY_OUT(test_all(&tests, &n_passed, err));
    if (n_passed > 0) {
        choose(run, n_passed - 1, &tests.passed);
        goto out;
    }
    if (!run->options->target.accept_miss) {
        choose(run, 0, &tests.failed);
        run->report->trace.sequence[0].is_chosen = false;
        status = refuse(run, &tests.failed, err);
        goto out;
    }
    MOEC_TRY_OUT(measure_last(&tests, err));
    choose(run, run->candidates.n - 1, &tests.failed);
    run->report->certificate.missed = true;
    moec_compile_say(
        run,
        "not even the safest plan was proven to meet the target; the smallest plan is written anyway and "
        "marked (--accept-miss)");
out:
    moec_compile_part_release(&part);
    return status;
}
