/* What a search with decisions keeps for the case that it is interrupted: losses of candidates, and before the
 * first window of the certificate part is read, what will be tested on it, in which order, and what stops it. */
#include "compiler/certify/promise.h"
#include "compiler/tune/tune_internal.h"
#include "formats/base/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- keys ---- */

static void add_word(struct moec_sha256 *sha, const char *word)
{
    moec_sha256_update(sha, word, strlen(word) + 1);
}

static void digest_candidate(const struct tune *tune, const struct moec_tune_candidate *candidate,
                             uint8_t digest[static MOEC_SHA256_BYTES])
{
    const struct moec_decision_settings *settings = &candidate->settings;
    const uint64_t numbers[] = {
        candidate->share,   settings->n_slots,     settings->n_low_slots,     settings->low_bits,
        settings->keep_top, settings->decode_only, settings->starts_frequent, tune->options->trial.n_prompt};
    struct moec_sha256 sha;
    moec_sha256_init(&sha);
    moec_sha256_update(&sha, tune->options->draft_digests[candidate->draft], MOEC_SHA256_BYTES);
    add_word(&sha, settings->route);
    add_word(&sha, settings->precision);
    add_word(&sha, settings->prefill);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        moec_sha256_update_u64(&sha, numbers[i]);
    moec_sha256_finish(&sha, digest);
}

static void name_run(const struct tune *tune, enum moec_part part,
                     const struct moec_tune_candidate *candidate, char key[static MOEC_JOURNAL_MAX_KEY])
{
    uint8_t digest[MOEC_SHA256_BYTES];
    char hex[2 * MOEC_SHA256_BYTES + 1];
    digest_candidate(tune, candidate, digest);
    moec_sha256_hex(digest, hex);
    (void)snprintf(key, MOEC_JOURNAL_MAX_KEY, "run/%d/%" PRIu32 "/%s", (int)part,
                   moec_trial_count(&tune->trial, part), hex);
}

/* ---- runs ---- */

/* Numbers of a run that a candidate's place, settings and share do not say. */
#define N_NUMBER 20
#define N_PART   3

struct kept {
    double numbers[N_NUMBER];
    char evict[16], predict[16];
};

static void list_parts(struct kept *kept, struct moec_unit_part parts[static N_PART])
{
    parts[0] = (struct moec_unit_part){kept->numbers, sizeof kept->numbers};
    parts[1] = (struct moec_unit_part){kept->evict, sizeof kept->evict};
    parts[2] = (struct moec_unit_part){kept->predict, sizeof kept->predict};
}

static void gather(const struct moec_tune_candidate *candidate, const struct moec_loss *loss,
                   struct kept *kept)
{
    const struct moec_foretold *foretold = &candidate->foretold;
    const struct moec_decision_traffic *traffic = &candidate->traffic;
    *kept = (struct kept){.numbers = {loss->reference,
                                      loss->compiled,
                                      loss->loss,
                                      loss->low,
                                      loss->high,
                                      loss->mean_kl,
                                      loss->n_window,
                                      (double)loss->n_token,
                                      loss->n_unit,
                                      loss->difference,
                                      loss->error,
                                      loss->skewness,
                                      (double)traffic->n_taken,
                                      (double)traffic->n_missed,
                                      traffic->token_bytes,
                                      candidate->token_misses,
                                      foretold->token_ns,
                                      foretold->read_bytes,
                                      foretold->stall_ns,
                                      foretold->reads}};
    memcpy(kept->evict, foretold->evict, sizeof kept->evict);
    memcpy(kept->predict, foretold->predict, sizeof kept->predict);
}

static void scatter(const struct kept *kept, struct moec_tune_candidate *candidate, struct moec_loss *loss)
{
    const double *n = kept->numbers;
    *loss = (struct moec_loss){.reference = n[0],
                               .compiled = n[1],
                               .loss = n[2],
                               .low = n[3],
                               .high = n[4],
                               .mean_kl = n[5],
                               .n_window = (uint32_t)n[6],
                               .n_token = (uint64_t)n[7],
                               .n_unit = (uint32_t)n[8],
                               .difference = n[9],
                               .error = n[10],
                               .skewness = n[11]};
    candidate->traffic.n_taken = (uint64_t)n[12];
    candidate->traffic.n_missed = (uint64_t)n[13];
    candidate->traffic.token_bytes = n[14];
    candidate->token_misses = n[15];
    candidate->kept_share = 1; /* runs with a plan are not kept */
    candidate->foretold =
        (struct moec_foretold){.token_ns = n[16], .read_bytes = n[17], .stall_ns = n[18], .reads = n[19]};
    memcpy(candidate->foretold.evict, kept->evict, sizeof kept->evict);
    memcpy(candidate->foretold.predict, kept->predict, sizeof kept->predict);
}

enum moec_status moec_tune_find(const struct tune *tune, enum moec_part part,
                                struct moec_tune_candidate *candidate, struct moec_loss *loss, bool *found,
                                struct moec_error *err)
{
    char key[MOEC_JOURNAL_MAX_KEY];
    struct kept kept;
    struct moec_unit_part parts[N_PART];
    uint64_t cost = 0;
    *found = false;
    if (tune->options->units == NULL || candidate->share > 0)
        return MOEC_OK;
    name_run(tune, part, candidate, key);
    list_parts(&kept, parts);
    MOEC_TRY(
        moec_unit_find(tune->options->units, &(struct moec_unit){key, parts, N_PART}, &cost, found, err));
    if (*found)
        scatter(&kept, candidate, loss);
    return MOEC_OK;
}

enum moec_status moec_tune_keep(const struct tune *tune, enum moec_part part,
                                const struct moec_tune_candidate *candidate, const struct moec_loss *loss,
                                struct moec_error *err)
{
    char key[MOEC_JOURNAL_MAX_KEY];
    struct kept kept;
    struct moec_unit_part parts[N_PART];
    if (tune->options->units == NULL || candidate->share > 0)
        return MOEC_OK;
    name_run(tune, part, candidate, key);
    gather(candidate, loss, &kept);
    list_parts(&kept, parts);
    return moec_unit_keep(tune->options->units, &(struct moec_unit){key, parts, N_PART}, 0, err);
}

/* ---- the certificate ---- */

/* The windows of the certificate part in their order, as many as are taken. */
static enum moec_status digest_windows(const struct tune *tune, uint8_t digest[static MOEC_SHA256_BYTES],
                                       struct moec_error *err)
{
    const struct moec_trial_inputs *inputs = tune->trial.inputs;
    struct moec_windows part = {0};
    MOEC_TRY(moec_windows_part(inputs->windows, MOEC_PART_CERTIFICATE, &part, err));
    part.n_window = moec_trial_count(&tune->trial, MOEC_PART_CERTIFICATE);
    moec_promise_digest_windows(inputs->data_digest, &part, digest);
    moec_windows_release(&part);
    return MOEC_OK;
}

enum moec_status moec_tune_fix_sequence(const struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_report *report = tune->report;
    uint8_t digests[MOEC_MAX_SEQUENCE][MOEC_SHA256_BYTES], order[MOEC_SHA256_BYTES], all[MOEC_SHA256_BYTES];
    char key[MOEC_JOURNAL_MAX_KEY], hex[2 * MOEC_SHA256_BYTES + 1];
    double stops[] = {tune->options->trial.max_loss, tune->options->trial.confidence};
    struct moec_sha256 sha;
    uint64_t cost = 0;
    bool found = false;
    if (tune->options->units == NULL)
        return MOEC_OK;
    MOEC_TRY(digest_windows(tune, order, err));
    for (uint32_t i = 0; i < report->n_sequence; i++)
        digest_candidate(tune, &report->candidates[report->sequence[i]], digests[i]);
    const size_t n_bytes = report->n_sequence * sizeof *digests;
    moec_sha256_init(&sha);
    moec_sha256_update(&sha, order, sizeof order);
    moec_sha256_update(&sha, stops, sizeof stops);
    moec_sha256_update(&sha, digests, n_bytes);
    moec_sha256_finish(&sha, all);
    moec_sha256_hex(all, hex);
    (void)snprintf(key, sizeof key, "sequence/%s", hex);
    const struct moec_unit_part parts[] = {{order, sizeof order}, {stops, sizeof stops}, {digests, n_bytes}};
    const struct moec_unit unit = {key, parts, 3};
    MOEC_TRY(moec_unit_find(tune->options->units, &unit, &cost, &found, err));
    return found ? MOEC_OK : moec_unit_keep(tune->options->units, &unit, 0, err);
}
