/* The modes: tables of all rows, times and reads apart so that each fits the line, then what rows gain over
 * each other. A row that failed prints its error in the first table and is left out of the others. The
 * kernels: a table for one thread and one for all, then several tokens and sparse experts. */
#include "cli/output/bench_output.h"

#include "cli/print/print.h"
#include "cli/terminal/terminal.h"
#include "profiler/bench/bench_row.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_RATIOS 256

/* A number of so many columns, "-" where there is none. */
static void print_number(int width, int decimals, double value)
{
    if (isnan(value))
        cli_print(stdout, " %*s", width, "-");
    else
        cli_print(stdout, " %*.*f", width, decimals, value);
}

static int name_width(const struct moec_bench *bench)
{
    size_t width = 4;
    for (uint32_t r = 0; r < bench->n_row; r++)
        width = strlen(bench->rows[r].name) > width ? strlen(bench->rows[r].name) : width;
    return (int)width;
}

static void print_times(const struct moec_bench *bench)
{
    const int width = name_width(bench);
    cli_print(stdout, "%-*s %9s %9s %9s %9s %9s %9s\n", width, "row", "TTFT", "floor", "TPOT", "p95", "floor",
              "stall");
    cli_print(stdout, "%-*s %9s %9s %9s %9s %9s %9s\n", width, "", "ms", "ms", "ms", "ms", "ms", "ms/token");
    for (uint32_t r = 0; r < bench->n_row; r++) {
        const struct moec_bench_row *row = &bench->rows[r];
        const struct moec_bench_figures *f = &row->figures;
        if (row->error.status != MOEC_OK) {
            cli_print_wrapped(stdout, 4, "%-*s failed: %s\n", width, row->name, row->error.message);
            continue;
        }
        cli_print(stdout, "%-*s", width, row->name);
        print_number(9, 2, f->ttft_ms);
        print_number(9, 2, f->prompt_floor_ms);
        print_number(9, 3, f->tpot_ms_median);
        print_number(9, 3, f->tpot_ms_p95);
        print_number(9, 3, f->floor_ms);
        print_number(9, 3, f->stall_ms);
        cli_print(stdout, "\n");
    }
}

static void print_reads(const struct moec_bench *bench)
{
    const int width = name_width(bench);
    if (bench->n_failed == bench->n_row)
        return;
    cli_print(stdout, "\n%-*s %9s %9s %9s %9s\n", width, "row", "hits", "late", "read", "peak");
    cli_print(stdout, "%-*s %9s %9s %9s %9s\n", width, "", "%", "%", "KB/token", "MiB");
    for (uint32_t r = 0; r < bench->n_row; r++) {
        const struct moec_bench_row *row = &bench->rows[r];
        if (row->error.status != MOEC_OK)
            continue;
        cli_print(stdout, "%-*s", width, row->name);
        print_number(9, 1, 100 * row->figures.hit_rate);
        print_number(9, 1, 100 * row->figures.late_rate);
        print_number(9, 1, row->figures.bytes_per_token / 1000);
        print_number(9, 1, (double)row->peak_bytes / (1u << 20));
        cli_print(stdout, "\n");
    }
}

/* What a device's pool had when routers asked while decoding. */
static void print_pools(const struct moec_bench *bench)
{
    const int width = name_width(bench);
    const double n_token = (double)bench->tokens.n_sample * bench->tokens.n_tokens;
    if (bench->options.engine.device.name == NULL || bench->n_failed == bench->n_row)
        return;
    cli_print(stdout, "\n%-*s %9s %6s %6s %9s %9s\n", width, "pool on the device", "pool", "hits", "late",
              "copied", "whole");
    cli_print(stdout, "%-*s %9s %6s %6s %9s %9s\n", width, "", "MiB", "%", "%", "KB/token", "KB/token");
    for (uint32_t r = 0; r < bench->n_row; r++) {
        const struct moec_bench_row *row = &bench->rows[r];
        if (row->error.status != MOEC_OK)
            continue;
        const struct moec_bench_counters c = moec_bench_count(bench, row, true);
        const double asked = (double)(c.pool_hits + c.pool_late + c.pool_misses);
        cli_print(stdout, "%-*s", width, row->name);
        print_number(9, 1, (double)row->opened.vram_pool_bytes / (1u << 20));
        print_number(6, 1, 100 * (double)c.pool_hits / asked);
        print_number(6, 1, 100 * (double)c.pool_late / asked);
        print_number(9, 1, (double)c.copied_bytes / n_token / 1000);
        print_number(9, 1, (double)(c.record_bytes > 0 ? c.record_bytes : c.copied_bytes) / n_token / 1000);
        cli_print(stdout, "\n");
    }
}

static void print_ratios(const struct moec_bench *bench)
{
    struct moec_bench_ratio ratios[MAX_RATIOS];
    const uint32_t n = moec_bench_ratios(bench, ratios, MAX_RATIOS);
    char text[1024];
    for (uint32_t i = 0, end = 0; i < n; i = end) {
        size_t length =
            (size_t)snprintf(text, sizeof text, "%s is faster per token than", ratios[i].row->name);
        for (end = i; end < n && ratios[end].row == ratios[i].row && length < sizeof text; end++)
            length += (size_t)snprintf(text + length, sizeof text - length, "%s %s %.2f times",
                                       end > i ? "," : "", ratios[end].against->label, ratios[end].speedup);
        cli_print_wrapped(stdout, 2, "\n%s", text);
    }
    if (n > 0)
        cli_print(stdout, "\n");
}

static void print_pairs(const struct moec_bench *bench)
{
    bool is_first = true;
    for (uint32_t r = 0; r < bench->n_row; r++) {
        const struct moec_bench_row *row = &bench->rows[r], *without = &bench->rows[row->pair];
        const double hidden = moec_bench_hidden_share(bench, row);
        char hides[64] = "";
        if (without == row || row->error.status != MOEC_OK || without->error.status != MOEC_OK)
            continue;
        if (!isnan(hidden))
            (void)snprintf(hides, sizeof hides, "; preloads hide %.0f %% of the waiting that they could hide",
                           100 * hidden);
        cli_print_wrapped(stdout, 2,
                          "%s%s takes %.3f times as long as without preloads%s; %" PRIu64 " preloads were "
                          "useful, %" PRIu64 " wasted\n",
                          is_first ? "\n" : "", row->name, 1 / moec_bench_speedup(row, without), hides,
                          row->figures.useful_preloads, row->figures.wasted_preloads);
        is_first = false;
    }
}

/* Rows in whose memory decisions find less than they look at. */
static void print_logical(const struct moec_bench *bench)
{
    bool is_first = true;
    char size[24];
    for (uint32_t r = 0; r < bench->n_row; r++) {
        const struct moec_bench_opened *opened = &bench->rows[r].opened;
        if (opened->logical_cache_bytes == 0 || opened->keeps_logical_cache)
            continue;
        cli_print_wrapped(
            stdout, 2,
            "%s%s has no room for all experts of the logical cache (%s): this row is slower, but its output "
            "is the same\n",
            is_first ? "\n" : "", bench->rows[r].name, cli_size_text(size, opened->logical_cache_bytes));
        is_first = false;
    }
}

/* Energy needs counters that most machines do not give to everyone. */
static void print_energy(const struct moec_bench *bench)
{
    bool is_known = false;
    for (uint32_t r = 0; r < bench->n_row; r++)
        is_known |= !isnan(bench->rows[r].figures.joules_per_token);
    if (!is_known) {
        cli_print(stdout,
                  "\nenergy per token: not available (no RAPL counters that this process may read)\n");
        return;
    }
    cli_print(stdout, "\nenergy per token, of everything on the machine:\n");
    for (uint32_t r = 0; r < bench->n_row; r++)
        if (!isnan(bench->rows[r].figures.joules_per_token))
            cli_print(stdout, "  %-*s %9.4f J\n", name_width(bench), bench->rows[r].name,
                      bench->rows[r].figures.joules_per_token);
}

/* What mode cache predicts by, where nobody said so: the bundle decides. */
static void print_prediction(const struct moec_bench *bench)
{
    for (uint32_t r = 0; r < bench->n_row && bench->options.engine.buffer.predict == NULL; r++) {
        const struct moec_bench_row *row = &bench->rows[r];
        if (row->mode == NULL || strcmp(row->mode, "cache") != 0 || row->is_variant ||
            row->opened.n_threads == 0 || row->opened.predict[0] == '\0')
            continue;
        cli_print(stdout, "mode cache predicts by '%s'%s\n", row->opened.predict,
                  strcmp(row->opened.predict, "learned") == 0 ? ", which moec predict trained for the bundle"
                                                              : "");
        return;
    }
}

void cli_print_bench(const struct moec_bench *bench)
{
    const struct moec_bench_row *opened = NULL;
    char total[24];
    for (uint32_t r = 0; r < bench->n_row && opened == NULL; r++)
        if (bench->rows[r].opened.n_threads > 0)
            opened = &bench->rows[r];
    cli_print_wrapped(
        stdout, 2, "%s: all experts %s; %" PRIu32 " samples of %" PRIu32 " + %" PRIu32 " tokens from '%s'\n",
        bench->options.path, cli_size_text(total, bench->expert_total_bytes), bench->tokens.n_sample,
        bench->tokens.prompt_tokens, bench->tokens.n_tokens, bench->tokens.name);
    if (opened != NULL) {
        const char *arithmetic = opened->opened.arithmetic;
        const bool is_usual = strcmp(arithmetic, "canonical") == 0;
        const bool keeps_all = strcmp(opened->opened.kv, "f32") == 0;
        cli_print_wrapped(stdout, 2,
                          "kernels %s%s%s%s%s%s, %" PRIu32 " threads; all rows decode the tokens of the "
                          "data, and take turns\n",
                          opened->opened.cpu, is_usual ? "" : ", ", is_usual ? "" : arithmetic,
                          is_usual ? "" : " arithmetic", keeps_all ? "" : ", keys and values as ",
                          keeps_all ? "" : opened->opened.kv, opened->opened.n_threads);
    }
    print_prediction(bench);
    if (bench->options.engine.device.name != NULL)
        cli_print(stdout, "on %s, one row at a time\n",
                  opened != NULL ? opened->opened.device : bench->options.engine.device.name);
    else if (bench->n_group > 1)
        cli_print(stdout, "memory is not enough for all rows at once: the rows ran in %" PRIu32 " groups\n",
                  bench->n_group);
    if (bench->left_out[0] != '\0')
        cli_print_wrapped(
            stdout, 2,
            "left out: %s (the bundle has no copies at the bitwidths that these modes need: compile with "
            "--copies 4,8,16)\n",
            bench->left_out);
    for (uint32_t r = 0; r < bench->n_row; r++)
        if (bench->rows[r].opened.tuned[0] != '\0') {
            cli_print(stdout,
                      "rows of the bundle's assignment use the bundle's decision settings, %s (--decide none "
                      "turns them off)\n",
                      bench->rows[r].opened.tuned);
            break;
        }
    cli_print(stdout, "\n");
    print_times(bench);
    print_reads(bench);
    print_pools(bench);
    print_ratios(bench);
    print_pairs(bench);
    print_logical(bench);
    print_energy(bench);
}

/* A line has a codec's rates of one kernel by numbers of tokens. */
static void print_token_rates(const struct moec_kernel_bench *bench)
{
    const struct moec_token_rate *rates = bench->token_rates;
    uint32_t n = 0; /* numbers of tokens */
    while (2 * n < bench->n_token_rate && strcmp(rates[2 * n].codec, rates[0].codec) == 0)
        n++;
    cli_print(
        stdout,
        "\nSeveral tokens on %d thread%s, in %% of the %.0f G multiply-adds a second that registers alone "
        "reach:\n%-30s %6s",
        bench->n_threads, bench->n_threads > 1 ? "s" : "", bench->peak_products_per_second * 1e-9, "codec",
        "tokens");
    for (uint32_t t = 0; t < n; t++)
        cli_print(stdout, " %5" PRIu32, rates[2 * t].n_tokens);
    cli_print(stdout, "\n");
    for (uint32_t i = 0; i + 2 * n <= bench->n_token_rate; i += 2 * n) {
        for (uint32_t k = 0; k < 2; k++) {
            cli_print(stdout, "%-30s %6s", rates[i].codec, rates[i + k].kernel);
            for (uint32_t t = 0; t < n; t++)
                cli_print(stdout, " %5.0f", 100 * rates[i + 2 * t + k].peak_share);
            cli_print(stdout, "\n");
        }
    }
}

/* Codecs come with their two kernels on one thread, then on all where there are more. */
void cli_print_kernel_bench(const struct moec_kernel_bench *bench)
{
    const uint32_t n_team = bench->n_threads > 1 ? 2 : 1;
    cli_print(stdout, "instruction set %s, %s arithmetic, matrices of %.0f MiB, last cache %.0f MiB%s\n",
              bench->set, bench->arithmetic, (double)bench->matrix_bytes / (1 << 20),
              (double)bench->cache_bytes / (1 << 20),
              bench->is_short ? ", and memory has no room for four times as much" : "");
    for (uint32_t team = 0; team < n_team; team++) {
        const int n_threads = team == 0 ? 1 : bench->n_threads;
        cli_print(stdout, "\n%d thread%s: memory is read at %.1f GB/s\n", n_threads, n_threads > 1 ? "s" : "",
                  bench->read_bytes_per_second[team] * 1e-9);
        cli_print(stdout, "%-30s %20s %21s\n", "", "dot (gate, up, head)", "weighted sum (down)");
        cli_print(stdout, "%-30s %6s %4s %9s %6s %4s %9s\n", "codec", "GB/s", "%", "Gweights", "GB/s", "%",
                  "Gweights");
        for (uint32_t i = 2 * team; i + 1 < bench->n_rate; i += 2 * n_team) {
            cli_print(stdout, "%-30s", bench->rates[i].codec);
            for (uint32_t k = 0; k < 2; k++) {
                const struct moec_kernel_rate *rate = &bench->rates[i + k];
                cli_print(stdout, " %6.1f %4.0f %9.1f", rate->bytes_per_second * 1e-9, 100 * rate->read_share,
                          rate->weights_per_second * 1e-9);
            }
            cli_print(stdout, "\n");
        }
    }
    cli_print(stdout,
              "\n%%: of the rate at which memory is read in the same turns; Gweights: 10^9 a second.\n"
              "A parallel region in which all threads meet takes %.2f us on %d thread%s.\n",
              bench->region_ns * 1e-3, bench->n_threads, bench->n_threads > 1 ? "s" : "");
    print_token_rates(bench);
    cli_print(stdout, "\nOne token's expert that leaves neurons out, beside itself with all of them:\n");
    cli_print(stdout, "%-20s %-20s %8s %7s %9s %8s %7s\n", "up", "gate and down", "sparsity", "threads",
              "dense us", "bytes", "faster");
    for (uint32_t i = 0; i < bench->n_expert_rate; i++) {
        const struct moec_expert_rate *rate = &bench->expert_rates[i];
        cli_print(stdout, "%-20s %-20s %8.1f %7d %9.1f %7.0f%% %6.2fx\n", rate->up, rate->pairs,
                  rate->sparsity, rate->n_threads, rate->dense_ns * 1e-3, 100 * rate->bytes_share,
                  rate->speedup);
    }
}
