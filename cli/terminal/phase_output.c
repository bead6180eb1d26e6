/* The peak of products is measured after the last phase has ended, so that it counts in none. Ranks exchange
 * their phases as structs, before that. Of more ranks than MAX_SHOWN_RANKS only sums are shown. */
#include "cli/terminal/phase_output.h"

#include "cli/print/print.h"
#include "cli/terminal/terminal.h"
#include "formats/base/memory.h"
#include "profiler/common/product_peak.h"
#include "runtime/threads/parallel.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cli_phases_start(struct cli_phases *phases, struct cli_progress *progress)
{
    progress->phases = &phases->recorded;
    moec_phases_begin(&phases->recorded, "start");
}

/* What binds, with its bytes or weights where those tell more. */
static void bound_text(const struct moec_phase *phase, enum moec_phase_bound bound, char *text,
                       size_t capacity)
{
    const char *name = moec_phase_bound_name(bound);
    if (bound == MOEC_BOUND_FITTING)
        (void)snprintf(text, capacity, "%s at %.1f G/s a thread", name,
                       1e-9 * phase->fit_multiply_adds / phase->fit_seconds);
    else if (bound == MOEC_BOUND_DECODING)
        (void)snprintf(text, capacity, "%s of %.1f G weights", name, 1e-9 * phase->decoded_weights);
    else if (bound == MOEC_BOUND_ENCODING)
        (void)snprintf(text, capacity, "%s of %.0f MB", name, 1e-6 * phase->encoded_bytes);
    else if (bound == MOEC_BOUND_READING)
        (void)snprintf(text, capacity, "%s of %.0f MB", name, 1e-6 * phase->read_bytes);
    else
        (void)snprintf(text, capacity, "%s", name);
}

/* The two largest shares of the threads' time, the largest with what it worked on. */
static void shares_text(const struct moec_phase *phase, const struct moec_phase_parts *parts, char *text,
                        size_t capacity)
{
    char bound[64];
    int second = -1;
    bound_text(phase, parts->bound, bound, sizeof bound);
    for (int b = 0; b < MOEC_BOUND_COUNT; b++)
        if (b != (int)parts->bound && (second < 0 || parts->shares[b] > parts->shares[second]))
            second = b;
    (void)snprintf(text, capacity, "%.0f%% %s, %.0f%% %s", 100 * parts->shares[parts->bound], bound,
                   100 * parts->shares[second], moec_phase_bound_name((enum moec_phase_bound)second));
}

static void print_row(const struct cli_phases *phases, const struct moec_phase *phase)
{
    const struct moec_phase_parts parts = moec_phase_parts_of(phase, phases->n_threads, phases->peak);
    char shares[128];
    shares_text(phase, &parts, shares, sizeof shares);
    cli_print(stderr, "%-18.18s %7.2f %7.2f %8.1f %6.1f  %s\n", phase->name, phase->seconds,
              phase->processor_seconds, 1e-9 * phase->multiply_adds,
              phase->seconds > 0 ? 1e-9 * phase->multiply_adds / phase->seconds : 0, shares);
}

static void print_table(const struct cli_phases *phases)
{
    const struct moec_phase sum = moec_phases_sum(&phases->recorded);
    cli_print(stderr,
              "phases on %d thread%s; canonical products reach %.1f G multiply-adds a second\n"
              "%-18s %7s %7s %8s %6s  %s\n",
              phases->n_threads, phases->n_threads > 1 ? "s" : "", 1e-9 * phases->peak, "phase", "seconds",
              "of cpu", "G m-adds", "G/s", "largest shares of time");
    for (uint32_t i = 0; i < phases->recorded.n; i++)
        print_row(phases, &phases->recorded.items[i]);
    print_row(phases, &sum);
}

/* ---- of ranks ---- */

#define MAX_SHOWN_RANKS 8u /* by phase; of more, sums */

static enum moec_status share_peaks(struct cli_phases *phases, struct moec_ranks *ranks,
                                    struct moec_error *err)
{
    uint64_t *peaks = NULL;
    const uint32_t count = moec_ranks_count(ranks);
    MOEC_TRY(moec_alloc((void **)&peaks, count, sizeof *peaks, "peaks of ranks", err));
    peaks[moec_ranks_own(ranks)] = cli_peak_memory_bytes();
    const enum moec_status status = moec_ranks_gather(ranks, peaks, count, sizeof *peaks, err);
    for (uint32_t r = 0; r < count && status == MOEC_OK; r++) {
        phases->largest_peak_bytes =
            peaks[r] > phases->largest_peak_bytes ? peaks[r] : phases->largest_peak_bytes;
        phases->sum_peak_bytes += peaks[r];
    }
    phases->n_rank = count;
    free(peaks);
    return status;
}

enum moec_status cli_phases_share(struct cli_phases *phases, struct moec_ranks *ranks, struct moec_error *err)
{
    const uint32_t count = moec_ranks_count(ranks), own = moec_ranks_own(ranks);
    if (ranks == NULL)
        return MOEC_OK;
    MOEC_TRY(share_peaks(phases, ranks, err));
    if (phases->recorded.n == 0)
        return MOEC_OK;
    moec_phases_end(&phases->recorded);
    MOEC_TRY(moec_alloc((void **)&phases->ranks, count, sizeof *phases->ranks, "phases of ranks", err));
    struct cli_rank_phases *rank = &phases->ranks[own];
    (void)snprintf(rank->host, sizeof rank->host, "%s", moec_ranks_host(ranks));
    rank->peak_bytes = cli_peak_memory_bytes();
    rank->n = phases->recorded.n;
    memcpy(rank->items, phases->recorded.items, rank->n * sizeof *rank->items);
    return moec_ranks_gather(ranks, phases->ranks, count, sizeof *phases->ranks, err);
}

void cli_phases_release(struct cli_phases *phases)
{
    free(phases->ranks);
    phases->ranks = NULL;
}

static struct moec_phase sum_of(const struct cli_rank_phases *rank)
{
    struct moec_phases all = {.n = rank->n};
    memcpy(all.items, rank->items, rank->n * sizeof *rank->items);
    return moec_phases_sum(&all);
}

static void print_rank_row(uint32_t rank, const struct moec_phase *phase, const char *peak)
{
    cli_print(stderr, "%4" PRIu32 "  %-18.18s %7.2f %9.1f %11.1f %12.2f%s\n", rank, phase->name,
              phase->processor_seconds, 1e-6 * phase->read_bytes, 1e-6 * phase->received_bytes,
              phase->receive_seconds, peak);
}

static void print_ranks(const struct cli_phases *phases)
{
    if (phases->ranks == NULL)
        return;
    char peak[32];
    cli_print(stderr, "%4s  %-18s %7s %9s %11s %12s %9s\n", "rank", "phase", "of cpu", "MB read",
              "MB received", "s exchanging", "MiB peak");
    for (uint32_t r = 0; r < phases->n_rank; r++) {
        const struct moec_phase sum = sum_of(&phases->ranks[r]);
        for (uint32_t i = 0; i < phases->ranks[r].n && phases->n_rank <= MAX_SHOWN_RANKS; i++)
            print_rank_row(r, &phases->ranks[r].items[i], "");
        (void)snprintf(peak, sizeof peak, " %9.1f", (double)phases->ranks[r].peak_bytes / 1048576);
        print_rank_row(r, &sum, peak);
    }
    char largest[24], all[24];
    cli_print(stderr, "peak memory: %s of the largest rank, %s of all\n",
              cli_memory_text(largest, phases->largest_peak_bytes),
              cli_memory_text(all, phases->sum_peak_bytes));
}

void cli_phases_finish(struct cli_phases *phases, struct cli_progress *progress,
                       const struct moec_kernels *kernels, int n_threads)
{
    struct moec_error err = {0};
    if (progress->phases == NULL)
        return;
    moec_phases_end(&phases->recorded);
    progress->phases = NULL;
    cli_progress_end(progress);
    phases->n_threads = moec_pool_make(n_threads).n_threads;
    if (moec_product_peak(kernels, n_threads, &phases->peak, &err) != MOEC_OK)
        cli_print(stderr, "shares of products are unknown: %s\n", err.message);
    print_table(phases);
    print_ranks(phases);
}

static void put_phase(struct moec_json_out *list, const struct cli_phases *phases,
                      const struct moec_phase *phase)
{
    const struct moec_phase_parts parts = moec_phase_parts_of(phase, phases->n_threads, phases->peak);
    struct moec_json_out *node = moec_json_out_object(), *shares = moec_json_out_object();
    moec_json_out_string(node, "phase", phase->name);
    moec_json_out_double(node, "seconds", phase->seconds);
    moec_json_out_double(node, "processor_seconds", phase->processor_seconds);
    moec_json_out_double(node, "one_thread_seconds", phase->alone_seconds);
    moec_json_out_double(node, "multiply_adds", phase->multiply_adds);
    moec_json_out_double(node, "fit_seconds", phase->fit_seconds);
    moec_json_out_double(node, "fit_multiply_adds", phase->fit_multiply_adds);
    moec_json_out_double(node, "decode_seconds", phase->decode_seconds);
    moec_json_out_double(node, "decoded_weights", phase->decoded_weights);
    moec_json_out_double(node, "encode_seconds", phase->encode_seconds);
    moec_json_out_double(node, "encoded_bytes", phase->encoded_bytes);
    moec_json_out_double(node, "read_seconds", phase->read_seconds);
    moec_json_out_double(node, "read_bytes", phase->read_bytes);
    if (phases->ranks != NULL) {
        moec_json_out_double(node, "receive_seconds", phase->receive_seconds);
        moec_json_out_double(node, "received_bytes", phase->received_bytes);
    }
    for (int b = 0; b < MOEC_BOUND_COUNT; b++)
        moec_json_out_double(shares, moec_phase_bound_name((enum moec_phase_bound)b), parts.shares[b]);
    moec_json_out_node(node, "shares", shares);
    moec_json_out_string(node, "bound_by", moec_phase_bound_name(parts.bound));
    moec_json_out_node(list, NULL, node);
}

static struct moec_json_out *json_ranks(const struct cli_phases *phases)
{
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t r = 0; r < phases->n_rank; r++) {
        struct moec_json_out *node = moec_json_out_object(), *items = moec_json_out_array();
        moec_json_out_u64(node, "rank", r);
        moec_json_out_string(node, "host", phases->ranks[r].host);
        moec_json_out_u64(node, "peak_bytes", phases->ranks[r].peak_bytes);
        for (uint32_t i = 0; i < phases->ranks[r].n; i++)
            put_phase(items, phases, &phases->ranks[r].items[i]);
        moec_json_out_node(node, "phases", items);
        moec_json_out_node(list, NULL, node);
    }
    return list;
}

void cli_print_peak(const struct cli_phases *phases)
{
    char largest[24], all[24];
    if (phases->sum_peak_bytes == 0)
        cli_print(stdout, "peak memory: %s\n", cli_memory_text(all, cli_peak_memory_bytes()));
    else
        cli_print(stdout, "peak memory: %s of the largest of %" PRIu32 " ranks, %s of all\n",
                  cli_memory_text(largest, phases->largest_peak_bytes), phases->n_rank,
                  cli_memory_text(all, phases->sum_peak_bytes));
}

void cli_json_peak(struct moec_json_out *root, const struct cli_phases *phases)
{
    const bool is_alone = phases->sum_peak_bytes == 0;
    moec_json_out_u64(root, "peak_bytes", is_alone ? cli_peak_memory_bytes() : phases->largest_peak_bytes);
    if (!is_alone)
        moec_json_out_u64(root, "ranks_peak_bytes", phases->sum_peak_bytes);
}

void cli_json_phases(struct moec_json_out *root, const struct cli_phases *phases)
{
    if (phases->recorded.n == 0)
        return;
    const struct moec_phase sum = moec_phases_sum(&phases->recorded);
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t i = 0; i < phases->recorded.n; i++)
        put_phase(list, phases, &phases->recorded.items[i]);
    put_phase(list, phases, &sum);
    moec_json_out_u64(root, "threads", (uint64_t)phases->n_threads);
    moec_json_out_double(root, "peak_multiply_adds_per_second", phases->peak);
    moec_json_out_node(root, "phases", list);
    if (phases->ranks != NULL)
        moec_json_out_node(root, "ranks", json_ranks(phases));
}
