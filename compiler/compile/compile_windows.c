/* The windows that the certificate is tested on: the first of its part, in the order that was drawn from the seed
 * before anything was evaluated. How many is settled here, from what the other parts have shown
 * (compiler/certify/prefix.h), before any of them has been through a model. */
#include "compiler/compile/compile_windows.h"

#include "compiler/certify/prefix.h"
#include "compiler/compile/compile_scope.h"
#include "compiler/compile/compile_units.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Adds what a measurement says of the error of a loss: its variance a window, by windows. */
static void add_error(const struct moec_loss *loss, double *variance, uint32_t *n)
{
    if (loss->n_window == 0 || loss->n_unit < 2)
        return;
    *variance += loss->error * loss->error * (double)loss->n_window * loss->n_window;
    *n += loss->n_window;
}

enum moec_status moec_compile_windows_expect(const struct moec_compile_run *run, uint32_t *n,
                                             struct moec_error *err)
{
    struct moec_windows part = {0};
    double variance = 0;
    uint32_t n_measured = 0;
    if (run->rows != NULL || run->options->target.takes_all_certificate) {
        *n = moec_compile_part_count(run, MOEC_PART_CERTIFICATE);
        return MOEC_OK;
    }
    MOEC_TRY(moec_windows_from_profile(run->profile, MOEC_PART_CERTIFICATE, &part, err));
    add_error(&run->search_loss, &variance, &n_measured);
    add_error(&run->select_loss, &variance, &n_measured);
    const uint32_t most = run->scope.n_certify;
    const struct moec_prefix_request request = {.n_window = part.n_window < most ? part.n_window : most,
                                                .documents = part.by_document ? part.document : NULL,
                                                .target = run->options->target.max_loss,
                                                .confidence = run->options->target.confidence,
                                                .error = n_measured > 0 ? sqrt(variance) / n_measured : 0,
                                                .n_measured = n_measured};
    *n = moec_prefix_choose(&request);
    moec_windows_release(&part);
    return MOEC_OK;
}

/* ---- what is kept ---- */

static void name_windows(uint32_t n, char key[static MOEC_JOURNAL_MAX_KEY])
{
    (void)snprintf(key, MOEC_JOURNAL_MAX_KEY, "certificate/%" PRIu32, n);
}

/* The most windows that a compile with this journal has tested on. */
static enum moec_status find_before(struct moec_compile_run *run, uint32_t n_part, uint32_t *n,
                                    struct moec_error *err)
{
    char key[MOEC_JOURNAL_MAX_KEY];
    uint8_t order[MOEC_SHA256_BYTES];
    const struct moec_unit_part kept = {order, sizeof order};
    for (uint32_t size = MOEC_PREFIX_LEAST; *n < n_part; size *= 2) {
        const uint32_t tried = size < n_part ? size : n_part;
        uint64_t cost = 0;
        bool found = false;
        name_windows(tried, key);
        MOEC_TRY(moec_unit_find(run->units, &(struct moec_unit){key, &kept, 1}, &cost, &found, err));
        if (found && tried > *n)
            *n = tried;
        if (size >= n_part)
            break;
    }
    return MOEC_OK;
}

enum moec_status moec_compile_windows_choose(struct moec_compile_run *run, struct moec_error *err)
{
    const uint32_t n_part = moec_compile_part_count(run, MOEC_PART_CERTIFICATE);
    uint32_t n = 0;
    MOEC_TRY(moec_compile_windows_expect(run, &n, err));
    if (run->rows == NULL)
        MOEC_TRY(find_before(run, n_part, &n, err));
    run->n_certify = n;
    if (n < n_part)
        moec_compile_say(
            run,
            "the certificate uses the first %" PRIu32 " of %" PRIu32
            " windows of its part: the losses on the other parts show that these are enough for this target",
            n, n_part);
    return MOEC_OK;
}

static void digest_sequence(const struct moec_compile_run *run, uint8_t digest[static MOEC_SHA256_BYTES])
{
    char key[MOEC_JOURNAL_MAX_KEY];
    struct moec_sha256 sha;
    moec_sha256_init(&sha);
    for (uint32_t i = 0; i < run->candidates.n; i++) {
        moec_compile_units_name(run, MOEC_PART_CERTIFICATE, &run->candidates.sequence[i].plan, key);
        moec_sha256_update(&sha, key, strlen(key) + 1);
    }
    moec_sha256_finish(&sha, digest);
}

/* Keeps a unit of n bytes unless there is one. */
static enum moec_status keep_once(struct moec_compile_run *run, const char *key, void *bytes, size_t n,
                                  struct moec_error *err)
{
    uint8_t before[MOEC_SHA256_BYTES];
    const struct moec_unit_part read = {before, n}, kept = {bytes, n};
    uint64_t cost = 0;
    bool found = false;
    MOEC_TRY(moec_unit_find(run->units, &(struct moec_unit){key, &read, 1}, &cost, &found, err));
    return found ? MOEC_OK : moec_unit_keep(run->units, &(struct moec_unit){key, &kept, 1}, 0, err);
}

enum moec_status moec_compile_windows_fix(struct moec_compile_run *run, struct moec_error *err)
{
    uint8_t sequence[MOEC_SHA256_BYTES];
    char key[MOEC_JOURNAL_MAX_KEY], hex[2 * MOEC_SHA256_BYTES + 1];
    name_windows(run->n_certify, key);
    MOEC_TRY(keep_once(run, key, run->report->certificate.part_digest, MOEC_SHA256_BYTES, err));
    digest_sequence(run, sequence);
    moec_sha256_hex(sequence, hex);
    (void)snprintf(key, sizeof key, "sequence/%s", hex);
    return keep_once(run, key, &run->n_certify, sizeof run->n_certify, err);
}
