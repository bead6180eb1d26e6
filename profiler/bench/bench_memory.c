/* Groups are filled in the order of rows, each with as many as fit. A row never goes back to an earlier
 * group. What is larger than all memory fails alone and takes none. */
#include "profiler/bench/bench_memory.h"

#include <inttypes.h>

#define GIB(bytes) ((double)(bytes) / (double)(1u << 30))

void moec_bench_make_groups(struct moec_bench *bench, const uint64_t *row_bytes, uint64_t available_bytes)
{
    const bool is_alone = bench->options.engine.device.name != NULL; /* as if the device had nobody else */
    uint64_t taken = 0;
    bench->n_group = 1;
    for (uint32_t r = 0; r < bench->n_row; r++) {
        struct moec_bench_row *row = &bench->rows[r];
        const bool is_limited = available_bytes > 0;
        row->group = bench->n_group - 1;
        if (is_limited && row_bytes[r] > available_bytes) {
            (void)moec_fail(
                &row->error, MOEC_ERR_LIMIT,
                "the row needs about %.2f GiB, but the system or its cgroup limit leaves only %.2f GiB",
                GIB(row_bytes[r]), GIB(available_bytes));
            continue;
        }
        if ((is_limited && row_bytes[r] > available_bytes - taken) || (is_alone && r > 0)) {
            row->group = bench->n_group++;
            taken = 0;
        }
        taken += row_bytes[r];
    }
}
