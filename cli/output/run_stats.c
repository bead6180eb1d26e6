/* Text is written into memory and then wrapped under its label. JSON goes straight to the stream, where a
 * node knows only whether it needs a comma. Counters of layers are read once and summed here. Storage is
 * slower than fitted if it was busy twice as long as its bytes and latencies take. It is faster if it took
 * less than half of its bytes alone; few reads say nothing. */
#include "cli/output/run_stats.h"

#include "cli/print/print.h"
#include "cli/terminal/terminal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LABEL_COLUMNS 10 /* of each line's first word */

static double rate(double n, double seconds)
{
    return seconds > 0 ? n / seconds : 0;
}

static double tpot_ms(const struct run_figures *figures)
{
    return figures->n_decode_tokens > 0 ? 1000 * figures->decode_seconds / (double)figures->n_decode_tokens
                                        : 0;
}

static double hit_rate(const struct moert_stats *stats)
{
    const uint64_t n_asked = stats->hits + stats->late + stats->misses;
    return n_asked > 0 ? (double)stats->hits / (double)n_asked : 0;
}

/* ---- text ---- */

#define FEW_READS 32u

int run_stats_storage_differs(const struct moert_info *info, const struct moert_stats *stats)
{
    if (info->storage.fitted_bytes_per_second == 0 || stats->n_reads < FEW_READS)
        return 0;
    const double bytes_ns = 1e9 * (double)stats->read_bytes / (double)info->storage.fitted_bytes_per_second;
    const double most_ns = bytes_ns + (double)stats->n_reads * (double)info->storage.fitted_latency_ns;
    const double busy_ns = (double)stats->busy_ns;
    return busy_ns > 2 * most_ns ? 1 : 2 * busy_ns < bytes_ns ? -1 : 0;
}

static void print_fitted(FILE *out, const struct moert_info *info, const struct moert_stats *stats)
{
    const int differs = run_stats_storage_differs(info, stats);
    if (differs != 0)
        fprintf(out,
                "          %s as the storage that the bundle was fitted for: %.6g MB/s here, fitted for %.6g "
                "MB/s after %.6g us;\n          moec fit with --device-file finds what suits this device\n",
                differs > 0 ? "less than half as fast" : "more than twice as fast",
                rate((double)stats->read_bytes, (double)stats->busy_ns * 1e-9) / 1e6,
                (double)info->storage.fitted_bytes_per_second / 1e6,
                (double)info->storage.fitted_latency_ns / 1e3);
}

static void print_experts(FILE *out, const struct moert_engine *engine)
{
    const struct moert_info info = moert_engine_info(engine);
    const struct moert_stats stats = moert_engine_stats(engine);
    char a[24], b[24];
    fprintf(out,
            "experts   %" PRIu64 " hits, %" PRIu64 " late, %" PRIu64 " misses (%.1f%% hits), %" PRIu64
            " evicted\n          mode %s, eviction %s\n",
            stats.hits, stats.late, stats.misses, 100 * hit_rate(&stats), stats.evictions, info.experts.mode,
            info.experts.evict);
    fprintf(out, "preloads  %" PRIu64 " useful, %" PRIu64 " wasted; prediction %s", stats.useful_preloads,
            stats.wasted_preloads, info.experts.predict);
    if (info.experts.preload_count > 0)
        fprintf(out, ", %" PRIu32 " a layer", info.experts.preload_count);
    if (info.experts.preload_ahead > 1)
        fprintf(out, ", up to %" PRIu32 " layers ahead", info.experts.preload_ahead);
    fprintf(out, "\nstorage   %s read, %s of it preloads; waited %.3f s, computed %.3f s\n",
            cli_memory_text(a, stats.read_bytes), cli_memory_text(b, stats.preload_bytes),
            (double)stats.stall_ns * 1e-9, (double)stats.compute_ns * 1e-9);
    if (stats.pair_bytes > 0)
        fprintf(out, "          %s of it neurons alone; %" PRIu64 " requests\n",
                cli_memory_text(a, stats.pair_bytes), stats.n_reads);
    fprintf(out, "          %s\n", info.storage.io);
    print_fitted(out, &info, &stats);
    if (stats.stall_ns > stats.compute_ns)
        fprintf(out,
                "          most of the time is waiting: moec fit makes the fastest bundle for this device\n");
}

static void print_memory(FILE *out, const struct moert_engine *engine, uint64_t budget_bytes)
{
    const struct moert_info info = moert_engine_info(engine);
    const char *kv = strcmp(info.compute.kv, "f16") == 0    ? ", F16"
                     : strcmp(info.compute.kv, "int8") == 0 ? ", INT8"
                                                            : "";
    char a[24], b[24], c[24];
    fprintf(out, "memory    base %s, dense %s, KV cache %s (%" PRIu32 " tokens%s)",
            cli_memory_text(a, info.memory.base_bytes), cli_memory_text(b, info.memory.dense_bytes),
            cli_memory_text(c, info.memory.kv_bytes), info.compute.n_context, kv);
    fprintf(out, ", scratch %s, expert buffer %s", cli_memory_text(a, info.memory.scratch_bytes),
            cli_memory_text(b, info.memory.expert_buffer_bytes));
    if (info.memory.kv_lent_bytes > 0)
        fprintf(out, " + %s that KV does not fill yet", cli_memory_text(a, info.memory.kv_lent_bytes));
    fprintf(out, " of %s\n", cli_memory_text(a, info.buffer.all_bytes));
    if (info.model.rope_limit > 0)
        fprintf(out, "          RoPE for contexts of %s%" PRIu32 " tokens\n",
                info.model.rope_context == 0 ? "up to " : "more than ", info.model.rope_limit);
    fprintf(out, "          peak %s%s%s; one token's experts: %s\n",
            cli_memory_text(a, cli_peak_memory_bytes()), budget_bytes > 0 ? " of budget " : "",
            budget_bytes > 0 ? cli_memory_text(b, budget_bytes) : "",
            cli_memory_text(c, info.buffer.working_set_bytes));
}

static void print_device(FILE *out, const struct moert_engine *engine, const struct moert_info *info)
{
    const struct moert_pool_stats stats = moert_engine_pool_stats(engine);
    const uint64_t n_asked = stats.hits + stats.late + stats.misses;
    char a[24], b[24];
    if (info->device.name == NULL)
        return;
    fprintf(out, "device    %s: %s planned of its memory, %s of it for experts\n", info->device.name,
            cli_memory_text(a, info->device.vram_bytes), cli_memory_text(b, info->device.vram_pool_bytes));
    fprintf(out,
            "          %" PRIu64 " hits, %" PRIu64 " late, %" PRIu64 " misses (%.1f%% hits), %" PRIu64
            " evicted there; %s copied to it\n",
            stats.hits, stats.late, stats.misses, 100 * rate((double)stats.hits, (double)n_asked),
            stats.evictions, cli_memory_text(a, stats.copied_bytes));
    if (stats.record_bytes > 0)
        fprintf(out,
                "          of neurons alone, gathered %s at a time; whole records of these experts: %s\n",
                cli_memory_text(a, stats.chunk_bytes), cli_memory_text(b, stats.record_bytes));
    if (stats.computed_by_cpu > 0)
        fprintf(out, "          %" PRIu64 " of the misses were computed by the processor\n",
                stats.computed_by_cpu);
    if (stats.useful_guesses + stats.wasted_guesses > 0)
        fprintf(out, "          of that %s prefetched: %" PRIu64 " useful, %" PRIu64 " wasted\n",
                cli_memory_text(a, stats.guessed_bytes), stats.useful_guesses, stats.wasted_guesses);
}

static bool are_on(const struct moert_decisions *decisions)
{
    return decisions->route != NULL || decisions->precision != NULL || decisions->prefill != NULL ||
           decisions->replay != NULL;
}

/* By what the expert buffer holds, now or when a file was recorded. */
static bool look_at_buffer(const struct moert_decisions *decisions)
{
    return decisions->replay != NULL ||
           (decisions->precision != NULL && strncmp(decisions->precision, "shared", strlen("shared")) == 0);
}

static void print_shared(FILE *out, const struct moert_engine *engine,
                         const struct moert_decisions *decisions, const struct moert_decided *decided)
{
    const struct moert_info info = moert_engine_info(engine);
    char high[24], low[24];
    const double n_taken = (double)decided->n_taken, n = n_taken + (double)decided->n_skipped;
    fprintf(out, "precision %s, %.1f%% of the experts high, %.1f%% low, %.1f%% skipped\n",
            decisions->replay != NULL ? "as recorded" : decisions->precision,
            100 * rate(n_taken - (double)decided->n_low, n), 100 * rate((double)decided->n_low, n),
            100 * rate((double)decided->n_skipped, n));
    if (decisions->replay != NULL)
        fprintf(out, "          in '%s'\n", decisions->replay);
    else if (decisions->record != NULL)
        fprintf(out,
                "          decided by the experts in memory; --replay-decisions '%s' gives the same text\n",
                decisions->record);
    else
        fprintf(out, "          decided by the experts in memory: the next run may give another text; "
                     "--record-decisions FILE keeps the decisions\n");
    fprintf(out, "          high copies have %s of memory, low ones %s\n",
            cli_memory_text(high, info.memory.expert_buffer_bytes - info.buffer.low_pool_bytes),
            cli_memory_text(low, info.buffer.low_pool_bytes));
}

/* Those in use: asked for, or the bundle's. */
static struct moert_decisions decisions_of(const struct moert_engine *engine,
                                           const struct run_figures *figures, bool *are_tuned)
{
    const struct moert_decisions tuned = moert_engine_tuned(engine);
    *are_tuned = are_on(&tuned);
    return *are_tuned ? tuned : figures->decisions;
}

/* Whether memory has what the logical cache has: else it costs time, not words. */
static void print_logical(FILE *out, const struct moert_engine *engine)
{
    const struct moert_info info = moert_engine_info(engine);
    const uint64_t needed = info.buffer.logical_cache_bytes + info.buffer.logical_passing_bytes;
    char a[24], b[24];
    if (info.buffer.logical_cache_bytes == 0)
        return;
    fprintf(out, "          it may hold %s, ", cli_memory_text(a, info.buffer.logical_cache_bytes));
    if (info.buffer.keeps_logical_cache && info.memory.expert_buffer_bytes >= needed)
        fputs("which stay in memory\n", out);
    else if (info.buffer.keeps_logical_cache)
        fprintf(out, "which stay in memory; a prompt may read some again, unless the buffer has %s\n",
                cli_memory_text(b, needed));
    else
        fprintf(
            out,
            "which is more than the buffer: some experts are read again; --memory %s would hold them all\n",
            cli_memory_text(b, info.memory.total_bytes - info.memory.expert_buffer_bytes + needed));
}

static void print_decisions(FILE *out, const struct moert_engine *engine, const struct run_figures *figures)
{
    bool are_tuned = false;
    const struct moert_decided *decided = &figures->decided;
    const struct moert_decisions used = decisions_of(engine, figures, &are_tuned), *decisions = &used;
    const double n_taken = (double)decided->n_taken, n = n_taken + (double)decided->n_skipped;
    char bytes[24];
    if (!are_on(decisions))
        return;
    if (look_at_buffer(decisions)) {
        print_shared(out, engine, decisions, decided);
        return;
    }
    fprintf(out, "route     %s, %.1f%% of %" PRIu64 " experts taken missed the logical cache\n",
            decisions->route != NULL ? decisions->route : "top-k",
            100 * rate((double)decided->n_missed, n_taken), decided->n_taken);
    print_logical(out, engine);
    if (decisions->prefill != NULL)
        fprintf(out, "prompt    with prefill %s\n", decisions->prefill);
    else if (decisions->decode_only)
        fprintf(out, "prompt    left to the router\n");
    if (decisions->precision != NULL || decisions->prefill != NULL)
        fprintf(out, "precision %s, %.1f%% of the experts high, %.1f%% low, %.1f%% skipped\n",
                decisions->precision != NULL ? decisions->precision : "one for all generated tokens",
                100 * rate(n_taken - (double)decided->n_low, n), 100 * rate((double)decided->n_low, n),
                100 * rate((double)decided->n_skipped, n));
    fprintf(out, "missed    %s a token by the logical cache\n",
            cli_memory_text(bytes, (uint64_t)decided->missed_bytes));
    if (are_tuned)
        fprintf(out,
                "          decided by the bundle's settings (moec inspect); --decide none turns them off\n");
}

/* The arithmetic stands beside the certified one unless both are the usual one. */
static void print_kernels(FILE *out, const struct moert_info *info)
{
    const char *certified = info->compute.certified_arithmetic;
    const bool is_certified = certified != NULL && strcmp(certified, info->compute.arithmetic) == 0;
    fprintf(out, "kernels   %s, %s arithmetic", info->compute.cpu, info->compute.arithmetic);
    if (is_certified && strcmp(certified, "canonical") != 0)
        fprintf(out, " as certified");
    else if (certified != NULL && !is_certified)
        fprintf(out, " (certified: %s)", certified);
    fprintf(out, ", %" PRIu32 " threads\n", info->compute.n_threads);
}

static void print_neurons(FILE *out, const struct moert_engine *engine, const struct run_figures *figures)
{
    const struct moert_neurons neurons = moert_engine_neurons(engine);
    if (neurons.n_neuron == 0)
        return;
    if (neurons.is_planned)
        fputs("sparsity  the bundle's plan", out);
    else
        fprintf(out, "sparsity  %g", figures->decisions.sparsity);
    fprintf(out, ", %.1f%% of neurons were active, %.1f%% of the experts' weights used\n",
            100 * rate((double)neurons.n_active, (double)neurons.n_neuron),
            100 * rate((double)neurons.active_bytes, (double)neurons.dense_bytes));
}

static void print_text(FILE *out, const struct moert_engine *engine, const struct run_figures *figures)
{
    const struct moert_info info = moert_engine_info(engine);
    const double n_prompt = (double)figures->n_prompt_tokens, n_decode = (double)figures->n_decode_tokens;
    fprintf(out, "\nprefill   %.0f tokens in %.3f s (TTFT), %.1f tokens/s, chunks of %" PRIu32 "\n", n_prompt,
            figures->prefill_seconds, rate(n_prompt, figures->prefill_seconds), info.compute.prefill_tokens);
    fprintf(out, "decode    %.0f tokens in %.3f s, %.2f ms a token (TPOT), %.1f tokens/s\n", n_decode,
            figures->decode_seconds, tpot_ms(figures), rate(n_decode, figures->decode_seconds));
    if (figures->drafts)
        fprintf(out, "drafts    %" PRIu64 " tokens, %" PRIu64 " accepted\n", figures->n_drafted,
                figures->n_accepted);
    print_decisions(out, engine, figures);
    print_neurons(out, engine, figures);
    print_experts(out, engine);
    print_memory(out, engine, figures->budget_bytes);
    print_device(out, engine, &info);
    print_kernels(out, &info);
}

void run_stats_print_text(FILE *out, const struct moert_engine *engine, const struct run_figures *figures)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *memory = open_memstream(&text, &n_bytes);
    if (memory != NULL)
        print_text(memory, engine, figures);
    if (memory == NULL || fclose(memory) != 0)
        cli_put(out, "(out of memory)\n");
    else
        cli_put_wrapped(out, LABEL_COLUMNS, text);
    free(text);
}

/* ---- JSON ---- */

/* An object or array being written. */
struct node {
    FILE *out;
    bool has_member;
};

static void print_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void print_key(struct node *node, const char *key)
{
    if (node->has_member)
        fputs(", ", node->out);
    node->has_member = true;
    if (key == NULL)
        return;
    print_string(node->out, key);
    fputs(": ", node->out);
}

static void put_u64(struct node *node, const char *key, uint64_t value)
{
    print_key(node, key);
    fprintf(node->out, "%" PRIu64, value);
}

/* Finite; the locale is the program's, which is C. */
static void put_double(struct node *node, const char *key, double value)
{
    print_key(node, key);
    fprintf(node->out, "%.9g", value);
}

static void put_text(struct node *node, const char *key, const char *value)
{
    print_key(node, key);
    print_string(node->out, value);
}

static void put_text_or_null(struct node *node, const char *key, const char *value)
{
    print_key(node, key);
    if (value != NULL)
        print_string(node->out, value);
    else
        fputs("null", node->out);
}

static struct node open_node(struct node *parent, const char *key, char bracket)
{
    print_key(parent, key);
    fputc(bracket, parent->out);
    return (struct node){.out = parent->out};
}

static void close_node(const struct node *node, char bracket)
{
    fputc(bracket, node->out);
}

static void put_counters(struct node *node, const struct moert_stats *stats)
{
    put_u64(node, "demands", stats->hits + stats->late + stats->misses);
    put_u64(node, "hits", stats->hits);
    put_u64(node, "late", stats->late);
    put_u64(node, "misses", stats->misses);
    put_u64(node, "useful_preloads", stats->useful_preloads);
    put_u64(node, "wasted_preloads", stats->wasted_preloads);
    put_u64(node, "evictions", stats->evictions);
    put_u64(node, "reads", stats->n_reads);
    put_u64(node, "read_bytes", stats->read_bytes);
    put_u64(node, "pair_bytes", stats->pair_bytes);
    put_u64(node, "preload_bytes", stats->preload_bytes);
    put_u64(node, "read_ns", stats->read_ns);
    put_u64(node, "busy_ns", stats->busy_ns);
    put_u64(node, "stall_ns", stats->stall_ns);
    put_u64(node, "compute_ns", stats->compute_ns);
}

static void put_speed(struct node *root, const struct run_figures *figures)
{
    put_u64(root, "prompt_tokens", figures->n_prompt_tokens);
    put_double(root, "ttft_ms", 1000 * figures->prefill_seconds);
    put_u64(root, "decode_tokens", figures->n_decode_tokens);
    put_double(root, "tpot_ms", tpot_ms(figures));
    if (figures->drafts) {
        struct node draft = open_node(root, "draft", '{');
        put_u64(&draft, "drafted_tokens", figures->n_drafted);
        put_u64(&draft, "accepted_tokens", figures->n_accepted);
        close_node(&draft, '}');
    }
}

static void put_memory(struct node *root, const struct moert_info *info, uint64_t budget_bytes)
{
    struct node memory = open_node(root, "memory", '{');
    put_u64(&memory, "budget_bytes", budget_bytes);
    put_u64(&memory, "peak_bytes", cli_peak_memory_bytes());
    put_u64(&memory, "planned_bytes", info->memory.total_bytes);
    put_u64(&memory, "base_bytes", info->memory.base_bytes);
    put_u64(&memory, "dense_bytes", info->memory.dense_bytes);
    put_u64(&memory, "kv_bytes", info->memory.kv_bytes);
    put_u64(&memory, "kv_lent_bytes", info->memory.kv_lent_bytes);
    put_u64(&memory, "scratch_bytes", info->memory.scratch_bytes);
    put_u64(&memory, "table_bytes", info->memory.table_bytes);
    put_u64(&memory, "expert_buffer_bytes", info->memory.expert_buffer_bytes);
    if (info->buffer.low_pool_bytes > 0)
        put_u64(&memory, "low_pool_bytes", info->buffer.low_pool_bytes);
    put_u64(&memory, "expert_total_bytes", info->buffer.all_bytes);
    put_u64(&memory, "working_set_bytes", info->buffer.working_set_bytes);
    if (info->buffer.logical_cache_bytes > 0) {
        put_u64(&memory, "logical_cache_bytes", info->buffer.logical_cache_bytes);
        put_u64(&memory, "logical_passing_bytes", info->buffer.logical_passing_bytes);
        print_key(&memory, "keeps_logical_cache");
        fputs(info->buffer.keeps_logical_cache ? "true" : "false", memory.out);
    }
    if (info->model.rope_limit > 0) {
        put_u64(&memory, "rope_limit_tokens", info->model.rope_limit);
        put_u64(&memory, "rope_context_tokens", info->model.rope_context);
    }
    close_node(&memory, '}');
}

static void put_device(struct node *root, const struct moert_engine *engine, const struct moert_info *info)
{
    const struct moert_pool_stats stats = moert_engine_pool_stats(engine);
    if (info->device.name == NULL)
        return;
    struct node device = open_node(root, "device", '{');
    put_text(&device, "name", info->device.name);
    put_u64(&device, "planned_bytes", info->device.vram_bytes);
    put_u64(&device, "pool_bytes", info->device.vram_pool_bytes);
    put_u64(&device, "hits", stats.hits);
    put_u64(&device, "late", stats.late);
    put_u64(&device, "misses", stats.misses);
    put_u64(&device, "computed_by_cpu", stats.computed_by_cpu);
    put_u64(&device, "evictions", stats.evictions);
    put_u64(&device, "copied_bytes", stats.copied_bytes);
    if (stats.record_bytes > 0) {
        put_u64(&device, "record_bytes", stats.record_bytes);
        put_u64(&device, "chunk_bytes", stats.chunk_bytes);
        put_double(&device, "gathered_bytes_per_second", stats.gathered_bytes_per_second);
    }
    put_u64(&device, "guessed_bytes", stats.guessed_bytes);
    put_u64(&device, "useful_guesses", stats.useful_guesses);
    put_u64(&device, "wasted_guesses", stats.wasted_guesses);
    close_node(&device, '}');
}

static void add_counters(struct moert_stats *sum, const struct moert_stats *one)
{
    sum->hits += one->hits;
    sum->late += one->late;
    sum->misses += one->misses;
    sum->useful_preloads += one->useful_preloads;
    sum->wasted_preloads += one->wasted_preloads;
    sum->evictions += one->evictions;
    sum->read_bytes += one->read_bytes;
    sum->preload_bytes += one->preload_bytes;
    sum->read_ns += one->read_ns;
    sum->busy_ns += one->busy_ns;
    sum->stall_ns += one->stall_ns;
    sum->compute_ns += one->compute_ns;
    sum->n_reads += one->n_reads;
    sum->pair_bytes += one->pair_bytes;
}

/* Layers, and their sum: records may still be read meanwhile, and the figures are to add up. */
static void put_experts(struct node *root, const struct moert_engine *engine, uint32_t n_moe_layer)
{
    struct moert_stats sum = {0};
    struct node layers = open_node(root, "layers", '[');
    for (uint32_t ordinal = 0; ordinal < n_moe_layer; ordinal++) {
        const struct moert_stats stats = moert_engine_layer_stats(engine, ordinal);
        struct node layer = open_node(&layers, NULL, '{');
        put_u64(&layer, "layer", moert_engine_moe_layer(engine, ordinal));
        put_counters(&layer, &stats);
        close_node(&layer, '}');
        add_counters(&sum, &stats);
    }
    close_node(&layers, ']');
    struct node experts = open_node(root, "experts", '{');
    put_counters(&experts, &sum);
    put_double(&experts, "hit_rate", hit_rate(&sum));
    close_node(&experts, '}');
    const struct moert_info info = moert_engine_info(engine);
    if (info.storage.fitted_bytes_per_second == 0)
        return;
    const int differs = run_stats_storage_differs(&info, &sum);
    struct node fitted = open_node(root, "fitted_storage", '{');
    put_u64(&fitted, "bytes_per_second", info.storage.fitted_bytes_per_second);
    put_u64(&fitted, "latency_ns", info.storage.fitted_latency_ns);
    put_text(&fitted, "here", differs > 0 ? "slower" : differs < 0 ? "faster" : "alike");
    close_node(&fitted, '}');
}

static void put_decisions(struct node *root, const struct moert_engine *engine,
                          const struct run_figures *figures)
{
    bool are_tuned = false;
    const struct moert_decided *decided = &figures->decided;
    const struct moert_decisions used = decisions_of(engine, figures, &are_tuned), *decisions = &used;
    if (!are_on(decisions))
        return;
    put_text(root, "decisions_of", are_tuned ? "bundle" : "options");
    if (decisions->route != NULL)
        put_text(root, "route", decisions->route);
    put_text(root, "decide", decisions->decode_only ? "decode" : "all");
    put_u64(root, "experts_taken", decided->n_taken);
    if (look_at_buffer(decisions)) {
        put_text(root, "decisions_file",
                 decisions->replay != NULL   ? "replayed"
                 : decisions->record != NULL ? "recorded"
                                             : "none");
    } else {
        put_u64(root, "experts_missed", decided->n_missed);
        put_double(root, "missed_bytes_per_token", decided->missed_bytes);
    }
    if (decisions->precision != NULL)
        put_text(root, "precision", decisions->precision);
    if (decisions->prefill != NULL)
        put_text(root, "prefill", decisions->prefill);
    if (decisions->precision == NULL && decisions->prefill == NULL && decisions->replay == NULL)
        return;
    put_u64(root, "experts_low", decided->n_low);
    if (!look_at_buffer(decisions))
        put_u64(root, "experts_low_missed", decided->n_low_missed);
    put_u64(root, "experts_skipped", decided->n_skipped);
}

void run_stats_print_json(FILE *out, const struct moert_engine *engine, const struct run_figures *figures)
{
    const struct moert_info info = moert_engine_info(engine);
    struct node root = {.out = out};
    fputc('{', out);
    put_text(&root, "mode", info.experts.mode);
    put_u64(&root, "copy", info.experts.copy);
    put_u64(&root, "bits", info.experts.bits);
    put_text(&root, "evict", info.experts.evict);
    put_text(&root, "predict", info.experts.predict);
    put_u64(&root, "preload_count", info.experts.preload_count);
    put_u64(&root, "preload_ahead", info.experts.preload_ahead);
    put_text(&root, "io", info.storage.io);
    put_text(&root, "cpu", info.compute.cpu);
    put_text(&root, "arithmetic", info.compute.arithmetic);
    put_text_or_null(&root, "certified_arithmetic", info.compute.certified_arithmetic);
    put_text(&root, "kv", info.compute.kv);
    put_u64(&root, "threads", info.compute.n_threads);
    put_u64(&root, "prefill_chunk_tokens", info.compute.prefill_tokens);
    put_speed(&root, figures);
    put_memory(&root, &info, figures->budget_bytes);
    put_device(&root, engine, &info);
    put_decisions(&root, engine, figures);
    const struct moert_neurons neurons = moert_engine_neurons(engine);
    if (neurons.n_neuron > 0) {
        if (neurons.is_planned)
            put_text(&root, "sparsity", "plan");
        else
            put_double(&root, "sparsity", figures->decisions.sparsity);
        put_u64(&root, "neurons", neurons.n_neuron);
        put_u64(&root, "active_neurons", neurons.n_active);
        put_u64(&root, "dense_weight_bytes", neurons.dense_bytes);
        put_u64(&root, "active_weight_bytes", neurons.active_bytes);
    }
    put_experts(&root, engine, info.layers.n_moe);
    print_key(&root, "context_full");
    fputs(figures->is_context_full ? "true" : "false", out);
    if (figures->note[0] != '\0')
        put_text(&root, "note", figures->note);
    fputs("}\n", out);
}
