#include "compiler/compile_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void fill_certificate(struct moec_compile_run *run, const struct moec_loss *loss)
{
    const struct moec_profile *profile = run->profile;
    struct moec_certificate *certificate = &run->report->certificate;
    *certificate = (struct moec_certificate){
        .present = true,
        .reference = loss->reference,
        .compiled = loss->compiled,
        .loss = loss->loss,
        .loss_low = loss->low,
        .loss_high = loss->high,
        .search_loss = run->search_loss.loss,
        .search_loss_high = run->search_loss.high,
        .target = run->options->max_loss,
        .confidence = run->options->confidence,
        .mean_kl = loss->mean_kl,
        .n_window = loss->n_window,
        .n_token = loss->n_token,
        .seq_len_tokens = profile->seq_len_tokens,
        .missed = !isnan(run->options->max_loss) && loss->loss > run->options->max_loss,
    };
    memcpy(certificate->metric, profile->metric, sizeof certificate->metric);
    memcpy(certificate->data_digest, profile->data_digest, sizeof certificate->data_digest);
    memcpy(certificate->data_name, profile->data_name, sizeof certificate->data_name);
    if (run->rows != NULL) {
        const struct moec_rows *rows = moec_row_metric_rows(run->rows);
        certificate->seq_len_tokens = 0;
        (void)snprintf(certificate->metric, sizeof certificate->metric, "%s",
                       moec_task_metric_name(run->options->rows->task.metric));
        memcpy(certificate->data_digest, rows->digest, sizeof certificate->data_digest);
        memcpy(certificate->data_name, rows->name, sizeof certificate->data_name);
    }
    memcpy(certificate->arithmetic, profile->arithmetic, sizeof certificate->arithmetic);
}

/* One plan is tested: a sequence of one. */
static void note_test(struct moec_compile_run *run, const struct moec_loss *loss)
{
    const bool missed = run->report->certificate.missed;
    run->report->trace.n_sequence = 1;
    run->report->trace.sequence[0] = (struct moec_sequence_step){
        .n_bytes = run->report->n_bytes,
        .search_loss = run->search_loss.loss,
        .search_high = run->search_loss.high,
        .loss = loss->loss,
        .low = loss->low,
        .high = loss->high,
        .kl = loss->mean_kl,
        .result = missed ? MOEC_SEQUENCE_FAILED : MOEC_SEQUENCE_PASSED,
        .is_chosen = !missed || run->options->accept_miss,
    };
}

enum moec_status moec_compile_certify(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_compile_part part = {0};
    struct moec_loss loss;
    enum moec_status status = moec_compile_part_open(run, MOEC_PART_CERTIFICATE, &part, err);
    if (status == MOEC_OK)
        status = moec_compile_part_measure(run, &part, &run->report->plan, &loss, err);
    if (status == MOEC_OK)
        status = moec_compile_note(run, MOEC_TRACE_CERTIFICATE, &run->report->plan, &loss, false, err);
    moec_compile_part_release(&part);
    if (status != MOEC_OK)
        return status;
    fill_certificate(run, &loss);
    note_test(run, &loss);
    if (!run->report->certificate.missed)
        return MOEC_OK;
    if (run->options->accept_miss) {
        moec_compile_say(
            run, "the certificate misses the target; written all the same and marked (--accept-miss)");
        return MOEC_OK;
    }
    return moec_fail(err, MOEC_ERR_TARGET,
                     "the loss on the certificate part is %.3f%% (from %.3f%% to %.3f%%), the target is "
                     "%.3f%%; nothing was "
                     "written. Profile more samples, so that the two parts differ less, raise --confidence, "
                     "give --accept-miss, or --max-loss %.3f%%, which these %" PRIu32 " %s meet",
                     100 * loss.loss, 100 * loss.low, 100 * loss.high, 100 * run->options->max_loss,
                     ceil(1e5 * loss.loss) / 1e3, loss.n_window, run->rows != NULL ? "rows" : "windows");
}
