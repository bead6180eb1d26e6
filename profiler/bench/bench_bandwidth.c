/* The best of some measurements counts, for others who read can only lower the rate. Rows of one storage and
 * copy share a measurement, which the first of them makes. Rates before and after a round are compared, and a
 * sample gets the better of both. */
#include "profiler/bench/bench_bandwidth.h"

#include "profiler/device/bandwidth.h"

#include <math.h>
#include <string.h>

#define BANDWIDTH_NS 100000000u /* to measure it for */
#define N_FIRST      4 /* measurements; the best counts, as what else reads is not the device's fault */

static enum moec_status measure(const struct moec_bundle *bundle, struct moec_bench *bench,
                                const struct moec_bench_row *row, uint32_t n, struct moec_error *err)
{
    struct moec_record_io io = {0};
    double best = 0;
    MOEC_TRY(moec_io_find(
        bench->options.engine.storage.io != NULL ? bench->options.engine.storage.io : "auto", &io.io, err));
    for (uint32_t i = 0; i < n; i++) {
        double measured = 0;
        MOEC_TRY(moec_bandwidth_measure(bundle, row->copy, &io, BANDWIDTH_NS, &measured, err));
        best = fmax(best, measured);
    }
    bench->bandwidth[row->storage][row->copy] = best;
    return MOEC_OK;
}

static double emulated(const struct moec_bench *bench, const struct moec_bench_row *row)
{
    return (double)bench->options.storages[row->storage].emulation.bytes_per_second;
}

enum moec_status moec_bench_bandwidth_find(const struct moec_bundle *bundle, struct moec_bench *bench,
                                           struct moec_error *err)
{
    for (uint32_t r = 0; r < bench->n_row; r++) {
        const struct moec_bench_row *row = &bench->rows[r];
        if (row->storage == bench->options.n_storage)
            continue;
        double *bandwidth = &bench->bandwidth[row->storage][row->copy];
        if (emulated(bench, row) > 0)
            *bandwidth = emulated(bench, row);
        else if (*bandwidth <= 0)
            MOEC_TRY(measure(bundle, bench, row, N_FIRST, err));
    }
    return MOEC_OK;
}

static bool changes(const struct moec_bench *bench, const struct moec_bench_row *row, uint32_t group)
{
    return row->group == group && row->storage < bench->options.n_storage && emulated(bench, row) <= 0 &&
           bench->options.engine.storage.io != NULL &&
           strcmp(bench->options.engine.storage.io, "direct") == 0;
}

/* Of rows of one storage and copy the first. */
static bool is_first(const struct moec_bench *bench, uint32_t r, uint32_t group)
{
    for (uint32_t i = 0; i < r; i++)
        if (bench->rows[i].group == group && bench->rows[i].storage == bench->rows[r].storage &&
            bench->rows[i].copy == bench->rows[r].copy)
            return false;
    return true;
}

enum moec_status moec_bench_bandwidth_follow(struct moec_bench *bench, uint32_t group, uint32_t sample,
                                             struct moec_error *err)
{
    struct moec_bundle *bundle = NULL;
    enum moec_status status = MOEC_OK;
    double before[MOEC_BENCH_MAX_LIST][MOEC_MAX_COPIES];
    memcpy(before, bench->bandwidth, sizeof before);
    for (uint32_t r = 0; r < bench->n_row; r++) {
        if (!changes(bench, &bench->rows[r], group) || !is_first(bench, r, group))
            continue;
        if (bundle == NULL)
            MOEC_TRY_OUT(moec_bundle_open(bench->options.path, &bundle, err));
        MOEC_TRY_OUT(measure(bundle, bench, &bench->rows[r], 1, err));
    }
    for (uint32_t r = 0; r < bench->n_row; r++) {
        const struct moec_bench_row *row = &bench->rows[r];
        if (row->group == group && row->storage < bench->options.n_storage && row->bytes_per_second != NULL)
            row->bytes_per_second[sample] =
                fmax(before[row->storage][row->copy], bench->bandwidth[row->storage][row->copy]);
    }
out:
    moec_bundle_close(bundle);
    return status;
}
