/* Two passes over rows: first what each has alone, then floors, which need the medians of resident rows. NaN
 * is what was not measured and must go through every sum and maximum; fmax would lose it. Rows of one copy
 * and one set of decisions must agree in every sample's CRC of logits. */
#include "profiler/bench/bench_row.h"

#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static bool is_measured(const struct moec_bench_row *row)
{
    return row != NULL && row->error.status == MOEC_OK && row->samples != NULL;
}

static const struct moec_bench_figures no_figures = {
    .ttft_ms = NAN,
    .tpot_ms_median = NAN,
    .tpot_ms_p95 = NAN,
    .tpot_ms_mean = NAN,
    .hit_rate = NAN,
    .late_rate = NAN,
    .miss_rate = NAN,
    .bytes_per_token = NAN,
    .stall_ms = NAN,
    .compute_ms = NAN,
    .bytes_per_second = NAN,
    .transfer_ms = NAN,
    .floor_ms = NAN,
    .prompt_bytes = NAN,
    .prompt_compute_ms = NAN,
    .prompt_transfer_ms = NAN,
    .prompt_floor_ms = NAN,
    .joules_per_token = NAN,
    .decided_miss_rate = NAN,
    .low_rate = NAN,
    .skip_rate = NAN,
};

double moec_bench_sample_ms(const struct moec_bench *bench, const struct moec_bench_row *row, uint32_t sample)
{
    const uint32_t n = bench->tokens.n_tokens;
    uint64_t ns = row->samples[sample].prefill_ns;
    for (uint32_t i = 0; i < n; i++)
        ns += row->decoded[(uint64_t)sample * n + i].ns;
    return (double)ns * 1e-6;
}

struct moec_bench_counters moec_bench_count(const struct moec_bench *bench, const struct moec_bench_row *row,
                                            bool is_decode)
{
    struct moec_bench_counters sum = {0};
    for (uint32_t s = 0; s < bench->tokens.n_sample; s++) {
        const struct moec_bench_counters *c = is_decode ? &row->samples[s].decode : &row->samples[s].prefill;
        sum.hits += c->hits;
        sum.late += c->late;
        sum.misses += c->misses;
        sum.useful_preloads += c->useful_preloads;
        sum.wasted_preloads += c->wasted_preloads;
        sum.read_bytes += c->read_bytes;
        sum.stall_ns += c->stall_ns;
        sum.compute_ns += c->compute_ns;
        sum.n_taken += c->n_taken;
        sum.n_decided_miss += c->n_decided_miss;
        sum.n_low += c->n_low;
        sum.n_skipped += c->n_skipped;
        sum.pool_hits += c->pool_hits;
        sum.pool_late += c->pool_late;
        sum.pool_misses += c->pool_misses;
        sum.copied_bytes += c->copied_bytes;
        sum.record_bytes += c->record_bytes;
    }
    return sum;
}

/* ---- times and counters of one row ---- */

static void summarise_times(const struct moec_bench *bench, struct moec_bench_row *row, double *values,
                            double *scratch)
{
    const uint32_t n_sample = bench->tokens.n_sample;
    const uint64_t n_token = (uint64_t)n_sample * bench->tokens.n_tokens;
    double sum = 0;
    for (uint32_t s = 0; s < n_sample; s++)
        values[s] = (double)row->samples[s].prefill_ns * 1e-6;
    row->figures.ttft_ms = moec_quantile_of_finite(values, n_sample, 0.5, scratch);
    for (uint64_t i = 0; i < n_token; i++) {
        values[i] = (double)row->decoded[i].ns * 1e-6;
        sum += values[i];
    }
    row->figures.tpot_ms_median = moec_quantile_of_finite(values, n_token, 0.5, scratch);
    row->figures.tpot_ms_p95 = moec_quantile_of_finite(values, n_token, 0.95, scratch);
    row->figures.tpot_ms_mean = sum / (double)n_token;
}

static void summarise_counters(const struct moec_bench *bench, struct moec_bench_row *row)
{
    struct moec_bench_figures *figures = &row->figures;
    const struct moec_bench_counters c = moec_bench_count(bench, row, true);
    const double n_token = (double)bench->tokens.n_sample * bench->tokens.n_tokens;
    const double n_asked = (double)(c.hits + c.late + c.misses);
    double joules = 0;
    for (uint32_t s = 0; s < bench->tokens.n_sample; s++) {
        joules += row->samples[s].decode_joules;
        if (row->peak_bytes < row->samples[s].peak_bytes)
            row->peak_bytes = row->samples[s].peak_bytes;
    }
    figures->hit_rate = n_asked > 0 ? (double)c.hits / n_asked : NAN;
    figures->late_rate = n_asked > 0 ? (double)c.late / n_asked : NAN;
    figures->miss_rate = n_asked > 0 ? (double)c.misses / n_asked : NAN;
    const double n_taken = (double)c.n_taken, n_chosen = (double)(c.n_taken + c.n_skipped);
    figures->decided_miss_rate = n_taken > 0 ? (double)c.n_decided_miss / n_taken : NAN;
    figures->low_rate = n_chosen > 0 ? (double)c.n_low / n_chosen : NAN;
    figures->skip_rate = n_chosen > 0 ? (double)c.n_skipped / n_chosen : NAN;
    figures->bytes_per_token = (double)c.read_bytes / n_token;
    figures->prompt_bytes = (double)moec_bench_count(bench, row, false).read_bytes / bench->tokens.n_sample;
    figures->stall_ms = (double)c.stall_ns * 1e-6 / n_token;
    figures->joules_per_token = joules / n_token;
    figures->useful_preloads = c.useful_preloads;
    figures->wasted_preloads = c.wasted_preloads;
}

/* ---- rows beside each other ---- */

static void check_logits(struct moec_bench *bench, struct moec_bench_row *row)
{
    const struct moec_bench_row *first = bench->rows;
    while (!is_measured(first) || first->copy != row->copy ||
           strcmp(first->opened.tuned, row->opened.tuned) != 0)
        first++;
    for (uint32_t s = 0; s < bench->tokens.n_sample; s++)
        if (first->samples[s].logits_crc != row->samples[s].logits_crc) {
            (void)moec_fail(&row->error, MOEC_ERR_MISMATCH,
                            "logits of sample %" PRIu32 " differ from those of row '%s', but both rows use "
                            "the same weights and must agree",
                            s, first->name);
            return;
        }
}

/* The row of the same copy that has everything resident. */
static const struct moec_bench_row *find_resident(const struct moec_bench *bench, uint32_t copy)
{
    for (uint32_t r = 0; r < bench->n_row; r++) {
        const struct moec_bench_row *row = &bench->rows[r];
        if (row->storage == bench->options.n_storage && row->copy == copy && is_measured(row))
            return row;
    }
    return NULL;
}

/* fmax would take a number over NaN, and a floor of which one side is unknown is none. */
static double larger_of(double compute_ms, double transfer_ms)
{
    return isnan(compute_ms) || isnan(transfer_ms) ? (double)NAN : fmax(compute_ms, transfer_ms);
}

/* Each token and prompt with the device's rate around its sample. */
static void average_floors(const struct moec_bench *bench, struct moec_bench_row *row)
{
    struct moec_bench_figures *figures = &row->figures;
    const uint64_t n_sample = bench->tokens.n_sample, n_token = bench->tokens.n_tokens;
    double read_ms = 0, floor_ms = 0, prompt_read_ms = 0, prompt_floor_ms = 0;
    for (uint64_t s = 0; s < n_sample; s++) {
        const double rate = row->bytes_per_second[s], ms_per_byte = rate > 0 ? 1000 / rate : 0;
        for (uint64_t i = s * n_token; i < (s + 1) * n_token; i++) {
            const double ms = (double)row->decoded[i].read_bytes * ms_per_byte;
            read_ms += ms;
            floor_ms += larger_of(figures->compute_ms, ms);
        }
        const double ms = (double)row->samples[s].prefill.read_bytes * ms_per_byte;
        prompt_read_ms += ms;
        prompt_floor_ms += larger_of(figures->prompt_compute_ms, ms);
    }
    figures->transfer_ms = read_ms / (double)(n_sample * n_token);
    figures->floor_ms = floor_ms / (double)(n_sample * n_token);
    figures->prompt_transfer_ms = prompt_read_ms / (double)n_sample;
    figures->prompt_floor_ms = prompt_floor_ms / (double)n_sample;
}

static void set_floor(const struct moec_bench *bench, struct moec_bench_row *row, double *scratch)
{
    struct moec_bench_figures *figures = &row->figures;
    const struct moec_bench_row *resident = find_resident(bench, row->copy);
    if (resident != NULL) {
        figures->compute_ms = resident->figures.tpot_ms_median;
        figures->prompt_compute_ms = resident->figures.ttft_ms;
    }
    if (row->storage < bench->options.n_storage)
        figures->bytes_per_second =
            moec_quantile_of_finite(row->bytes_per_second, bench->tokens.n_sample, 0.5, scratch);
    average_floors(bench, row);
}

enum moec_status moec_bench_summarise(struct moec_bench *bench, struct moec_error *err)
{
    const uint64_t n = (uint64_t)bench->tokens.n_sample * bench->tokens.n_tokens;
    double *values = NULL;
    MOEC_TRY(moec_alloc((void **)&values, 2 * n, sizeof *values, "times", err));
    bench->n_failed = 0;
    for (uint32_t r = 0; r < bench->n_row; r++) {
        struct moec_bench_row *row = &bench->rows[r];
        row->figures = no_figures;
        if (!is_measured(row))
            continue;
        summarise_times(bench, row, values, values + n);
        summarise_counters(bench, row);
        check_logits(bench, row);
    }
    for (uint32_t r = 0; r < bench->n_row; r++) {
        if (is_measured(&bench->rows[r]))
            set_floor(bench, &bench->rows[r], values);
        bench->n_failed += bench->rows[r].error.status != MOEC_OK;
    }
    free(values);
    return MOEC_OK;
}

const struct moec_bench_row *moec_bench_find(const struct moec_bench *bench, const char *label,
                                             uint32_t memory, uint32_t storage)
{
    for (uint32_t r = 0; r < bench->n_row; r++) {
        const struct moec_bench_row *row = &bench->rows[r];
        if (row->kind == MOEC_BENCH_ROW && strcmp(row->label, label) == 0 && row->memory == memory &&
            row->storage == storage && (!row->is_variant || memory == bench->options.n_memory))
            return is_measured(row) ? row : NULL;
    }
    return NULL;
}

double moec_bench_speedup(const struct moec_bench_row *a, const struct moec_bench_row *b)
{
    return is_measured(a) && is_measured(b) ? b->figures.tpot_ms_median / a->figures.tpot_ms_median
                                            : (double)NAN;
}

double moec_bench_hidden_share(const struct moec_bench *bench, const struct moec_bench_row *row)
{
    const struct moec_bench_row *without = &bench->rows[row->pair];
    if (without == row || !is_measured(row) || !is_measured(without))
        return NAN;
    const double most = fmin(without->figures.stall_ms, row->figures.compute_ms);
    return most > 0 ? (without->figures.stall_ms - row->figures.stall_ms) / most : (double)NAN;
}

uint32_t moec_bench_ratios(const struct moec_bench *bench, struct moec_bench_ratio *ratios, uint32_t most)
{
    static const char *const baselines[] = {"io-exp", "io-qexp", "sti", "io-exp+lru", "io-qexp+lru"};
    const struct moec_bench_options *options = &bench->options;
    uint32_t n = 0;
    for (uint32_t s = 0; s < options->n_storage; s++)
        for (uint32_t m = 0; m < options->n_memory; m++) {
            const struct moec_bench_row *row = moec_bench_find(bench, "edgemoe", m, s);
            for (uint32_t b = 0; b < 5 && row != NULL; b++) {
                const struct moec_bench_row *against =
                    moec_bench_find(bench, baselines[b], b < 2 ? options->n_memory : m, s);
                if (against != NULL && n < most)
                    ratios[n++] = (struct moec_bench_ratio){
                        .row = row, .against = against, .speedup = moec_bench_speedup(row, against)};
            }
        }
    return n;
}
