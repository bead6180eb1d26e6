/* Every row with its figures, counters and samples, in the order of the bench. Rows of the reference stand
 * apart from the others. Times are in milliseconds; what was not measured is null or absent. */
#include "profiler/bench/bench_json.h"

#include "profiler/bench/bench_row.h"
#include "profiler/common/machine.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/moert.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#define MAX_RATIOS 256

/* Of a device's pool too, where there is one. */
static struct moec_json_out *counters_node(struct moec_bench_counters c, bool has_pool)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "hits", c.hits);
    moec_json_out_u64(node, "late", c.late);
    moec_json_out_u64(node, "misses", c.misses);
    moec_json_out_u64(node, "useful_preloads", c.useful_preloads);
    moec_json_out_u64(node, "wasted_preloads", c.wasted_preloads);
    moec_json_out_u64(node, "read_bytes", c.read_bytes);
    moec_json_out_double(node, "stall_ms", (double)c.stall_ns * 1e-6);
    moec_json_out_double(node, "compute_ms", (double)c.compute_ns * 1e-6);
    if (!has_pool)
        return node;
    moec_json_out_u64(node, "pool_hits", c.pool_hits);
    moec_json_out_u64(node, "pool_late", c.pool_late);
    moec_json_out_u64(node, "pool_misses", c.pool_misses);
    moec_json_out_u64(node, "copied_bytes", c.copied_bytes);
    if (c.record_bytes > 0)
        moec_json_out_u64(node, "record_bytes", c.record_bytes);
    return node;
}

static struct moec_json_out *samples_node(const struct moec_bench *bench, const struct moec_bench_row *row)
{
    struct moec_json_out *samples = moec_json_out_array();
    const uint32_t n = bench->tokens.n_tokens;
    for (uint32_t s = 0; s < bench->tokens.n_sample; s++) {
        struct moec_json_out *sample = moec_json_out_object(), *times = moec_json_out_array(),
                             *reads = moec_json_out_array();
        moec_json_out_double(sample, "latency_ms", moec_bench_sample_ms(bench, row, s));
        moec_json_out_double(sample, "ttft_ms", (double)row->samples[s].prefill_ns * 1e-6);
        for (uint32_t i = 0; i < n; i++) {
            const struct moec_bench_token *token = &row->decoded[(uint64_t)s * n + i];
            moec_json_out_double(times, NULL, (double)token->ns * 1e-6);
            moec_json_out_u64(reads, NULL, token->read_bytes);
        }
        moec_json_out_node(sample, "token_ms", times);
        moec_json_out_node(sample, "token_read_bytes", reads);
        moec_json_out_node(samples, NULL, sample);
    }
    return samples;
}

static void put_figures(struct moec_json_out *node, const struct moec_bench *bench,
                        const struct moec_bench_row *row)
{
    const struct moec_bench_figures *f = &row->figures;
    const struct moec_bench_row *without = &bench->rows[row->pair];
    moec_json_out_double(node, "ttft_ms", f->ttft_ms);
    moec_json_out_double(node, "tpot_ms_median", f->tpot_ms_median);
    moec_json_out_double(node, "tpot_ms_p95", f->tpot_ms_p95);
    moec_json_out_double(node, "tpot_ms_mean", f->tpot_ms_mean);
    moec_json_out_double(node, "hit_rate", f->hit_rate);
    moec_json_out_double(node, "late_rate", f->late_rate);
    moec_json_out_double(node, "miss_rate", f->miss_rate);
    moec_json_out_double(node, "bytes_per_token", f->bytes_per_token);
    moec_json_out_double(node, "stall_ms", f->stall_ms);
    moec_json_out_double(node, "compute_ms", f->compute_ms);
    moec_json_out_double(node, "transfer_ms", f->transfer_ms);
    moec_json_out_double(node, "floor_ms", f->floor_ms);
    moec_json_out_double(node, "prompt_bytes", f->prompt_bytes);
    moec_json_out_double(node, "prompt_compute_ms", f->prompt_compute_ms);
    moec_json_out_double(node, "prompt_transfer_ms", f->prompt_transfer_ms);
    moec_json_out_double(node, "prompt_floor_ms", f->prompt_floor_ms);
    moec_json_out_double(node, "joules_per_token", f->joules_per_token);
    if (!isnan(f->skip_rate)) {
        moec_json_out_double(node, "decided_miss_rate", f->decided_miss_rate);
        moec_json_out_double(node, "low_rate", f->low_rate);
        moec_json_out_double(node, "skip_rate", f->skip_rate);
    }
    if (without != row) {
        moec_json_out_double(node, "tpot_of_no_preloads", 1 / moec_bench_speedup(row, without));
        moec_json_out_double(node, "hidden_share", moec_bench_hidden_share(bench, row));
    }
}

/* Rows tell when they compute otherwise than usual. */
static bool is_faster(const struct moec_bench_row *row)
{
    return strcmp(row->opened.arithmetic, moec_arithmetic_name(MOEC_ARITHMETIC_CANONICAL)) != 0;
}

static struct moec_json_out *row_node(const struct moec_bench *bench, const struct moec_bench_row *row)
{
    const struct moec_bench_options *options = &bench->options;
    struct moec_json_out *node = moec_json_out_object();
    const bool is_process = row->memory < options->n_memory && options->memories[row->memory].share <= 0;
    const bool has_pool = row->opened.device[0] != '\0';
    moec_json_out_string(node, "name", row->name);
    moec_json_out_string(node, "mode", row->label);
    moec_json_out_string_or_null(
        node, "memory", row->memory < options->n_memory ? options->memories[row->memory].name : NULL);
    moec_json_out_u64(node, "memory_bytes", row->memory_bytes);
    moec_json_out_string(node, "memory_of", is_process ? "process" : "experts");
    moec_json_out_string_or_null(
        node, "storage", row->storage < options->n_storage ? options->storages[row->storage].name : NULL);
    moec_json_out_double(node, "bandwidth_bytes_per_second", row->figures.bytes_per_second);
    moec_json_out_u64(node, "copy", row->copy);
    if (is_faster(row))
        moec_json_out_string(node, "arithmetic", row->opened.arithmetic);
    moec_json_out_string_or_null(node, "evict", row->opened.evict);
    moec_json_out_string_or_null(node, "predict", row->opened.predict);
    moec_json_out_u64(node, "preload_count", row->engine.buffer.preload_count);
    moec_json_out_u64(node, "preload_ahead", row->engine.buffer.preload_ahead);
    moec_json_out_string_or_null(node, "io", row->opened.reader);
    if (has_pool) {
        moec_json_out_string(node, "device", row->opened.device);
        moec_json_out_u64(node, "vram_bytes", row->opened.vram_bytes);
        moec_json_out_u64(node, "vram_pool_bytes", row->opened.vram_pool_bytes);
    }
    const bool is_traced = row->error.status == MOEC_OK && row->trace_error.status == MOEC_OK;
    moec_json_out_string_or_null(node, "trace", is_traced ? row->trace : NULL);
    if (row->trace_error.status != MOEC_OK)
        moec_json_out_string(node, "trace_error", row->trace_error.message);
    moec_json_out_string_or_null(node, "bundle_decisions", row->opened.tuned);
    moec_json_out_string_or_null(node, "warning", row->opened.warning);
    put_figures(node, bench, row);
    moec_json_out_u64(node, "expert_buffer_bytes", row->opened.expert_buffer_bytes);
    moec_json_out_u64(node, "expert_total_bytes", row->opened.expert_total_bytes);
    moec_json_out_u64(node, "working_set_bytes", row->opened.working_set_bytes);
    if (row->opened.logical_cache_bytes > 0) {
        moec_json_out_u64(node, "logical_cache_bytes", row->opened.logical_cache_bytes);
        moec_json_out_u64(node, "logical_passing_bytes", row->opened.logical_passing_bytes);
        moec_json_out_bool(node, "keeps_logical_cache", row->opened.keeps_logical_cache);
    }
    moec_json_out_u64(node, "peak_memory_bytes", row->peak_bytes);
    moec_json_out_string_or_null(node, "error", row->error.status != MOEC_OK ? row->error.message : NULL);
    if (row->error.status == MOEC_OK && row->samples != NULL) {
        moec_json_out_node(node, "prefill", counters_node(moec_bench_count(bench, row, false), has_pool));
        moec_json_out_node(node, "decode", counters_node(moec_bench_count(bench, row, true), has_pool));
        moec_json_out_node(node, "samples", samples_node(bench, row));
    }
    return node;
}

static struct moec_json_out *ratios_node(const struct moec_bench *bench)
{
    struct moec_bench_ratio ratios[MAX_RATIOS];
    struct moec_json_out *list = moec_json_out_array();
    const uint32_t n = moec_bench_ratios(bench, ratios, MAX_RATIOS);
    for (uint32_t i = 0; i < n; i++) {
        const struct moec_bench_options *options = &bench->options;
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_string(node, "mode", ratios[i].row->label);
        moec_json_out_string(node, "against", ratios[i].against->label);
        moec_json_out_string(node, "memory", options->memories[ratios[i].row->memory].name);
        moec_json_out_string_or_null(node, "storage", options->storages[ratios[i].row->storage].name);
        moec_json_out_double(node, "speedup", ratios[i].speedup);
        moec_json_out_node(list, NULL, node);
    }
    return list;
}

static void put_machine(struct moec_json_out *root, const struct moec_bench *bench)
{
    char processor[128];
    struct utsname system = {0};
    struct moec_json_out *device = moec_json_out_object(), *versions = moec_json_out_object();
    const struct moec_bench_row *first = bench->rows; /* says how engines opened */
    moec_machine_processor(processor, sizeof processor);
    moec_json_out_string(device, "processor", processor);
    if (uname(&system) == 0)
        moec_json_out_string(device, "system", system.release);
    moec_json_out_string(device, "machine", system.machine);
    moec_json_out_node(root, "device", device);
    moec_json_out_u64(root, "threads", first->opened.n_threads);
    moec_json_out_string_or_null(root, "cpu", first->opened.cpu);
    if (bench->options.engine.arithmetic != NULL || is_faster(first))
        moec_json_out_string(root, "arithmetic", first->opened.arithmetic);
    if (bench->options.engine.sessions.kv != NULL)
        moec_json_out_string(root, "kv", first->opened.kv);
    moec_json_out_string_or_null(
        root, "io", bench->options.engine.storage.io != NULL ? bench->options.engine.storage.io : "auto");
    moec_json_out_string(versions, "moec", moert_version());
    moec_json_out_string(versions, "arithmetic", "canonical-f32");
    moec_json_out_node(root, "versions", versions);
}

static void put_decisions(struct moec_json_out *root, const struct moert_decisions *decisions)
{
    if (decisions->route == NULL && decisions->precision == NULL && decisions->prefill == NULL)
        return;
    moec_json_out_string_or_null(root, "route", decisions->route);
    moec_json_out_string_or_null(root, "slots", decisions->slots);
    moec_json_out_u64(root, "keep_top", decisions->keep_top);
    moec_json_out_string(root, "cache_start", decisions->starts_frequent ? "frequency" : "empty");
    if (decisions->precision != NULL)
        moec_json_out_string(root, "precision", decisions->precision);
    if (decisions->prefill != NULL)
        moec_json_out_string(root, "prefill", decisions->prefill);
    if (decisions->precision == NULL && decisions->prefill == NULL)
        return;
    moec_json_out_string_or_null(root, "low_slots", decisions->low_slots);
    moec_json_out_u64(root, "low_bits", decisions->low_bits);
}

struct moec_json_out *moec_bench_json(const struct moec_bench *bench)
{
    const struct moec_bench_options *options = &bench->options;
    char digest[2 * MOEC_SHA256_BYTES + 1];
    struct moec_json_out *root = moec_json_out_object(), *emulation = moec_json_out_array();
    struct moec_json_out *rows = moec_json_out_array(), *references = moec_json_out_array();
    moec_sha256_hex(bench->tokens.digest, digest);
    moec_json_out_string(root, "model", options->path);
    put_machine(root, bench);
    for (uint32_t s = 0; s < options->n_storage; s++)
        if (options->storages[s].name[0] != '\0')
            moec_json_out_string(emulation, NULL, options->storages[s].name);
    moec_json_out_node(root, "emulation", emulation);
    moec_json_out_string(root, "data", bench->tokens.name);
    moec_json_out_string(root, "data_sha256", digest);
    moec_json_out_bool(root, "teacher_forced", true);
    moec_json_out_u64(root, "samples", bench->tokens.n_sample);
    moec_json_out_u64(root, "prompt_tokens", bench->tokens.prompt_tokens);
    put_decisions(root, &bench->options.engine.decisions);
    if (bench->options.engine.decisions.sparsity > 0)
        moec_json_out_double(root, "sparsity", bench->options.engine.decisions.sparsity);
    moec_json_out_u64(root, "tokens", bench->tokens.n_tokens);
    moec_json_out_u64(root, "expert_total_bytes", bench->expert_total_bytes);
    moec_json_out_string_or_null(root, "left_out", bench->left_out);
    for (uint32_t r = 0; r < bench->n_row; r++)
        moec_json_out_node(bench->rows[r].kind == MOEC_BENCH_REFERENCE ? references : rows, NULL,
                           row_node(bench, &bench->rows[r]));
    moec_json_out_node(root, "rows", rows);
    moec_json_out_node(root, "references", references);
    moec_json_out_node(root, "ratios", ratios_node(bench));
    return root;
}
