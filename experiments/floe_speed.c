#include "experiments/floe_speed.h"

#include "experiments/result.h"

#include <math.h>
#include <string.h>

#define PAIR_BYTES 2304 /* gate row and down column of OLMoE-1B-7B at INT4 in groups of 32 */

static const char *const shares[FLOE_SHARES] = {"25", "50", "75", "100"};
static const char *const lengths[] = {"16:32", "64:64", "128:64", "64:128"};

/* ---- reading ---- */

/* The first row of a bench: `key`, or NaN. */
static enum moec_status read_row(const char *folder, const char *kind, const char *what, const char *key,
                                 double *out, struct moec_error *err)
{
    char name[64];
    struct moec_json *root = NULL;
    (void)snprintf(name, sizeof name, "%s-%s", kind, what);
    MOEC_TRY(experiment_load(folder, name, &root, err));
    *out = experiment_number(moec_json_at(moec_json_find(root, "rows"), 0), key);
    moec_json_free(root);
    return MOEC_OK;
}

static enum moec_status read_rate(const char *folder, const char *kind, const char *length, double *out,
                                  struct moec_error *err)
{
    MOEC_TRY(read_row(folder, kind, length, "tpot_ms_mean", out, err));
    *out = 1000 / *out;
    return MOEC_OK;
}

static enum moec_status read_transfers(const char *folder, struct floe_speed *speed, struct moec_error *err)
{
    struct moec_json *root = NULL;
    MOEC_TRY(experiment_load(folder, "transfers", &root, err));
    const struct moec_json *reads = moec_json_find(root, "reads");
    const size_t n = reads == NULL ? 0 : moec_json_length(reads);
    for (size_t i = 0; i < n && i < FLOE_READS; i++) {
        const struct moec_json *read = moec_json_at(reads, i);
        speed->reads[i].n_bytes = experiment_number(read, "bytes");
        speed->reads[i].bytes_per_second = experiment_number(read, "bytes_per_second");
        speed->n_read++;
    }
    moec_json_free(root);
    return MOEC_OK;
}

enum moec_status floe_speed_read(const char *folder, struct floe_speed *speed, struct moec_error *err)
{
    *speed = (struct floe_speed){0};
    for (size_t s = 0; s < FLOE_SHARES; s++) {
        MOEC_TRY(read_row(folder, "decoding-plan", shares[s], "tpot_ms_median", &speed->plan_ms[s], err));
        MOEC_TRY(read_row(folder, "decoding-none", shares[s], "tpot_ms_median", &speed->none_ms[s], err));
        MOEC_TRY(read_row(folder, "decoding-static", shares[s], "tpot_ms_median", &speed->static_ms[s], err));
    }
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        double plan, fixed, resident;
        MOEC_TRY(read_rate(folder, "length-plan", lengths[l], &plan, err));
        MOEC_TRY(read_rate(folder, "length-static", lengths[l], &fixed, err));
        MOEC_TRY(read_rate(folder, "length-int2", lengths[l], &resident, err));
        if (!isfinite(plan) || !isfinite(fixed) || !isfinite(resident))
            continue;
        (void)snprintf(speed->lengths[speed->n_length].length, sizeof speed->lengths->length, "%s",
                       lengths[l]);
        speed->lengths[speed->n_length].plan = plan;
        speed->lengths[speed->n_length].fixed = fixed;
        speed->lengths[speed->n_length++].resident = resident;
    }
    return read_transfers(folder, speed, err);
}

/* ---- tables ---- */

static enum moec_status put_lengths(const struct floe_speed *speed, const struct experiment_page *page,
                                    struct moec_error *err)
{
    static const char *const headings[] = {
        "prompt:decoded",          "tokens/s",     "bits alone, LRU and gate",
        "two bits, all in memory", "times faster", "of two bits, %"};
    struct experiment_table table;
    char name[64];
    if (speed->n_length == 0)
        return MOEC_OK;
    experiment_page_heading(page, "Fig. 6: tokens a second by length, a quarter of the experts' memory");
    MOEC_TRY(experiment_page_begin(page, &table, name, "lengths", headings,
                                   sizeof headings / sizeof *headings, err));
    for (uint32_t l = 0; l < speed->n_length; l++) {
        experiment_table_cell(&table, "%s", speed->lengths[l].length);
        experiment_table_number(&table, speed->lengths[l].plan, 1, 0);
        experiment_table_number(&table, speed->lengths[l].fixed, 1, 0);
        experiment_table_number(&table, speed->lengths[l].resident, 1, 0);
        experiment_table_number(&table, speed->lengths[l].plan / speed->lengths[l].fixed, 1, 2);
        experiment_table_number(&table, speed->lengths[l].plan / speed->lengths[l].resident, 100, 0);
        experiment_table_end_row(&table);
    }
    static const char *const paper[] = {
        "Mixtral-8x7B, the paper's mean", "–", "Mixtral-Offloading", "HQQ INT2 on the GPU", "2.60", "91"};
    for (size_t c = 0; c < sizeof paper / sizeof *paper; c++)
        experiment_table_cell(&table, "%s", paper[c]);
    experiment_table_end_row(&table);
    return experiment_page_end(page, &table, err);
}

static enum moec_status put_memory(const struct floe_speed *speed, const struct experiment_page *page,
                                   struct moec_error *err)
{
    static const char *const headings[] = {
        "memory for experts, %",         "ms a token",     "with all neurons", "bits alone, LRU and gate",
        "times faster than all neurons", "than bits alone"};
    struct experiment_table table;
    char name[64];
    if (!isfinite(speed->plan_ms[0]))
        return MOEC_OK;
    experiment_page_heading(page, "Fig. 8: decoding by memory, on storage of 550 MB/s, 80 us");
    experiment_page_paragraph(page, "Records are read whole from storage: what a plan saves here is memory "
                                    "bandwidth and computing.");
    MOEC_TRY(experiment_page_begin(page, &table, name, "decoding", headings,
                                   sizeof headings / sizeof *headings, err));
    for (size_t s = 0; s < FLOE_SHARES; s++) {
        experiment_table_cell(&table, "%s", shares[s]);
        experiment_table_number(&table, speed->plan_ms[s], 1, 3);
        experiment_table_number(&table, speed->none_ms[s], 1, 3);
        experiment_table_number(&table, speed->static_ms[s], 1, 3);
        experiment_table_number(&table, speed->none_ms[s] / speed->plan_ms[s], 1, 2);
        experiment_table_number(&table, speed->static_ms[s] / speed->plan_ms[s], 1, 2);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

static double fastest(const struct floe_speed *speed)
{
    double most = NAN;
    for (uint32_t i = 0; i < speed->n_read; i++)
        most = fmax(most, speed->reads[i].bytes_per_second);
    return most;
}

static enum moec_status put_transfers(const struct floe_speed *speed, const struct experiment_page *page,
                                      struct moec_error *err)
{
    static const char *const headings[] = {"KiB a request", "pairs of OLMoE-1B-7B", "MB/s",
                                           "of the fastest, %"};
    struct experiment_table table;
    char name[64];
    if (speed->n_read == 0)
        return MOEC_OK;
    experiment_page_heading(page, "Fig. 7: bandwidth by the size of a request, this machine's storage");
    experiment_page_paragraph(
        page, "Random reads past the page cache, 32 at once, where the paper copies to a GPU. A "
              "pair is a gate row beside its down column, at INT4; apart from each other they "
              "would be requests of half the size.");
    MOEC_TRY(experiment_page_begin(page, &table, name, "transfers", headings,
                                   sizeof headings / sizeof *headings, err));
    for (uint32_t i = 0; i < speed->n_read; i++) {
        experiment_table_number(&table, speed->reads[i].n_bytes, 1.0 / 1024, 0);
        experiment_table_number(&table, speed->reads[i].n_bytes, 1.0 / PAIR_BYTES, 1);
        experiment_table_number(&table, speed->reads[i].bytes_per_second, 1e-6, 0);
        experiment_table_number(&table, speed->reads[i].bytes_per_second / fastest(speed), 100, 0);
        experiment_table_end_row(&table);
    }
    return experiment_page_end(page, &table, err);
}

enum moec_status floe_speed_put(const struct floe_speed *speed, const struct experiment_page *page,
                                struct moec_error *err)
{
    MOEC_TRY(put_lengths(speed, page, err));
    MOEC_TRY(put_transfers(speed, page, err));
    return put_memory(speed, page, err);
}

/* ---- sentences of the paper ---- */

static void find_lengths(const struct floe_speed *speed, struct experiment_claims *findings)
{
    struct experiment_claim *resident =
        experiment_claim_add(findings, "Fig. 6", "91 % of the speed of two bits with all experts in memory");
    struct experiment_claim *others = experiment_claim_add(
        findings, "Fig. 6", "2.60 times faster than a cache of quantised experts with the next layer's gate");
    struct experiment_claim *longer =
        experiment_claim_add(findings, "Fig. 6", "longer outputs for fixed inputs give more tokens a second");
    double of_resident = 0, of_others = 0, at_64 = NAN, at_128 = NAN;
    if (speed->n_length == 0)
        return;
    for (uint32_t l = 0; l < speed->n_length; l++) {
        of_resident += speed->lengths[l].plan / speed->lengths[l].resident / speed->n_length;
        of_others += speed->lengths[l].plan / speed->lengths[l].fixed / speed->n_length;
        if (strcmp(speed->lengths[l].length, "64:64") == 0)
            at_64 = speed->lengths[l].plan;
        if (strcmp(speed->lengths[l].length, "64:128") == 0)
            at_128 = speed->lengths[l].plan;
    }
    experiment_claim_say(resident, "%.0f %%, the mean over lengths, with a quarter of the memory",
                         100 * of_resident);
    experiment_claim_decide(resident, of_resident >= 0.91);
    experiment_claim_say(others, "%.2f times, the mean over lengths, against bits alone of the same promise",
                         of_others);
    experiment_claim_decide(others, of_others >= 2.6);
    if (!isfinite(at_64) || !isfinite(at_128))
        return;
    experiment_claim_say(longer, "%.0f tokens/s for 64 of output behind 64, %.0f for 128", at_64, at_128);
    experiment_claim_decide(longer, at_128 > at_64);
}

static void find_transfers(const struct floe_speed *speed, struct experiment_claims *findings)
{
    struct experiment_claim *layout = experiment_claim_add(
        findings, "Fig. 7", "gate rows beside down columns improve the efficiency for all chunk sizes");
    double least = NAN, least_bytes = NAN;
    for (uint32_t i = 0; i + 1 < speed->n_read; i++) {
        const double gain = speed->reads[i + 1].bytes_per_second / speed->reads[i].bytes_per_second;
        if (!isfinite(least) || gain < least) {
            least = gain;
            least_bytes = speed->reads[i + 1].n_bytes;
        }
    }
    if (!isfinite(least))
        return;
    experiment_claim_say(layout,
                         "requests of twice the size read at least %.2f times as fast, least at %.0f KiB",
                         least, least_bytes / 1024);
    experiment_claim_decide(layout, least > 1);
}

static void find_memory(const struct floe_speed *speed, struct experiment_claims *findings)
{
    struct experiment_claim *claim = experiment_claim_add(
        findings, "Fig. 8",
        "more memory gives more speed, up to that of two bits with all experts in memory");
    bool is_so = true;
    for (size_t s = 0; s < FLOE_SHARES; s++) {
        if (!isfinite(speed->plan_ms[s]))
            return;
        is_so = is_so && (s == 0 || speed->plan_ms[s] <= speed->plan_ms[s - 1]);
    }
    if (speed->n_length == 0)
        return;
    const double resident = speed->lengths[0].resident, most = 1000 / speed->plan_ms[FLOE_SHARES - 1];
    experiment_claim_say(claim, "%.2f, %.2f, %.2f and %.2f ms a token; %.0f tokens/s against %.0f at last",
                         speed->plan_ms[0], speed->plan_ms[1], speed->plan_ms[2], speed->plan_ms[3], most,
                         resident);
    experiment_claim_decide(claim, is_so && most >= resident);
}

void floe_speed_find(const struct floe_speed *speed, struct experiment_claims *findings)
{
    find_lengths(speed, findings);
    find_transfers(speed, findings);
    find_memory(speed, findings);
}
