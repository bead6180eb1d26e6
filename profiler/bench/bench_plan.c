/* Resident rows come first, then those of each storage, and references last. A row that predicts is followed
 * at once by its twin without predictions: the two are a pair by their places. Each copy that is run gets a
 * resident row, named or as a reference, for floors are computed from it. */
#include "profiler/bench/bench_plan.h"

#include "formats/base/memory.h"
#include "runtime/engine/mode.h"
#include "runtime/experts/expert_cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PROCESS_BYTES ((uint64_t)32 << 20) /* program, KV cache and activations, about */

/* What a mode holds of the experts. */
enum holds {
    HOLDS_ALL,
    HOLDS_NONE, /* a layer's experts while they are computed */
    HOLDS_BUFFER,
};

static enum holds holds_of(const struct moec_mode *mode)
{
    const bool has_buffer = mode->streams_all || mode->keeps;
    return mode->is_resident ? HOLDS_ALL : has_buffer ? HOLDS_BUFFER : HOLDS_NONE;
}

/* The copy that a mode runs; false when the bundle has none. */
static bool find_copy(const struct moec_bundle *bundle, const struct moec_mode *mode, uint32_t *copy)
{
    *copy = 0;
    return mode->bits == 0 || moec_bundle_find_copy(bundle, mode->bits, copy, NULL) == MOEC_OK;
}

/* ---- rows ---- */

struct plan {
    const struct moec_bundle *bundle;
    struct moec_bench *bench;
    uint64_t total_bytes, layer_bytes; /* of all experts, and what one layer's choices take at most; copy 0 */
};

static enum moec_status add_row(struct plan *plan, const struct moec_bench_row *row, struct moec_error *err)
{
    struct moec_bench *bench = plan->bench;
    if (bench->n_row == MOEC_BENCH_MAX_ROWS)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the bench would have more than %d rows: "
                         "name fewer modes, memories, storages or policies",
                         MOEC_BENCH_MAX_ROWS);
    bench->rows[bench->n_row] = *row;
    bench->rows[bench->n_row].pair = bench->n_row;
    bench->n_row++;
    return MOEC_OK;
}

static void set_memory(const struct plan *plan, struct moec_bench_row *row, uint32_t memory)
{
    const struct moec_bench_options *options = &plan->bench->options;
    row->memory = memory;
    if (memory == options->n_memory)
        return;
    const struct moec_bench_memory *asked = &options->memories[memory];
    row->memory_bytes =
        asked->share > 0 ? (uint64_t)((double)plan->total_bytes * asked->share) : asked->bytes;
    if (asked->share > 0)
        row->engine.buffer.size_bytes = row->memory_bytes;
    else
        row->engine.memory_bytes = row->memory_bytes;
}

static void set_storage(const struct plan *plan, struct moec_bench_row *row, uint32_t storage)
{
    const struct moec_bench_options *options = &plan->bench->options;
    row->storage = storage;
    if (storage == options->n_storage)
        return;
    row->engine.storage.emulate_bytes_per_second = options->storages[storage].emulation.bytes_per_second;
    row->engine.storage.emulate_latency_ns = options->storages[storage].emulation.latency_ns;
    row->engine.storage.emulate_request_ns = options->storages[storage].emulation.request_ns;
}

MOEC_PRINTF(4, 5)
static void name_row(const struct plan *plan, struct moec_bench_row *row, uint32_t storage,
                     const char *format, ...)
{
    const struct moec_bench_options *options = &plan->bench->options;
    char what[MOEC_BENCH_NAME];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(what, sizeof what, format, list);
    va_end(list);
    const bool is_told = storage < options->n_storage && options->n_storage > 1;
    (void)snprintf(row->name, sizeof row->name, "%.*s%s%s", (int)sizeof row->name - 34, what,
                   is_told ? " at " : "", is_told ? options->storages[storage].name : "");
}

static struct moec_bench_row start_row(const struct plan *plan, const char *mode, uint32_t copy)
{
    const struct moec_bench_options *options = &plan->bench->options;
    struct moec_bench_row row = {
        .mode = mode,
        .label = mode,
        .copy = copy,
        .memory = options->n_memory,
        .storage = options->n_storage,
        .engine = options->engine,
    };
    row.engine.buffer = (struct moert_buffer_options){.mode = mode, .keeps_size = true};
    return row;
}

/* A row, and beside it the same without predictions. */
static enum moec_status add_with_twin(struct plan *plan, const struct moec_mode *mode,
                                      struct moec_bench_row *row, struct moec_error *err)
{
    const struct moec_bench_options *options = &plan->bench->options;
    const char *predict =
        row->engine.buffer.predict != NULL
            ? row->engine.buffer.predict
            : moec_mode_predict(mode, moec_mode_facts_of(plan->bundle, options->engine.device.name != NULL));
    const char *evict =
        row->engine.buffer.evict != NULL ? row->engine.buffer.evict : moec_mode_evict(mode, plan->bundle);
    const char *memory = options->memories[row->memory].name;
    MOEC_TRY(add_row(plan, row, err));
    if (!options->against_none || strcmp(predict, "none") == 0)
        return MOEC_OK;
    struct moec_bench_row twin = *row;
    twin.engine.buffer.mode = twin.mode = twin.label = "cache"; /* which takes any policies */
    twin.engine.buffer.evict = evict;
    twin.engine.buffer.predict = "none";
    twin.engine.buffer.preload_count = twin.engine.buffer.preload_ahead = 0;
    twin.is_variant = true;
    name_row(plan, &twin, row->storage, "cache %s %s", memory, evict);
    MOEC_TRY(add_row(plan, &twin, err));
    plan->bench->rows[plan->bench->n_row - 2].pair = plan->bench->n_row - 1;
    return MOEC_OK;
}

static enum moec_status add_buffered(struct plan *plan, const struct moec_mode *mode, uint32_t copy,
                                     uint32_t memory, uint32_t storage, struct moec_error *err)
{
    const struct moec_bench_options *options = &plan->bench->options;
    const char *name = options->memories[memory].name;
    struct moec_bench_row row = start_row(plan, mode->name, copy);
    set_memory(plan, &row, memory);
    set_storage(plan, &row, storage);
    name_row(plan, &row, storage, "%s %s", mode->name, name);
    if (!mode->takes_any) {
        if (strcmp(mode->predict, "none") != 0)
            row.engine.buffer.preload_count = options->engine.buffer.preload_count;
        return add_with_twin(plan, mode, &row, err);
    }
    row.engine.buffer.predict = options->engine.buffer.predict;
    row.engine.buffer.preload_count = options->engine.buffer.preload_count;
    row.engine.buffer.preload_ahead = options->engine.buffer.preload_ahead;
    for (uint32_t e = 0; e < options->n_evict || e == 0; e++) {
        row.engine.buffer.evict =
            e < options->n_evict ? options->evicts[e] : moec_mode_evict(mode, plan->bundle);
        row.is_variant = e > 0;
        name_row(plan, &row, storage, "%s %s %s%s%s", mode->name, name, row.engine.buffer.evict,
                 options->engine.buffer.predict != NULL ? " " : "",
                 options->engine.buffer.predict != NULL ? options->engine.buffer.predict : "");
        MOEC_TRY(add_with_twin(plan, mode, &row, err));
    }
    return MOEC_OK;
}

/* EdgeMoE's Fig. 18: mixed bitwidths alone, then with preloads; what room two layers' choices need keeps
 * nothing from token to token. The other two of its bars are io-exp and edgemoe. */
static enum moec_status add_ablation(struct plan *plan, uint32_t storage, struct moec_error *err)
{
    static const char *const labels[] = {"quantised", "quantised+preloads"};
    for (int preloads = 0; preloads < 2; preloads++) {
        struct moec_bench_row row = start_row(plan, "cache", 0);
        set_storage(plan, &row, storage);
        row.label = labels[preloads];
        row.is_variant = true;
        row.engine.buffer.evict = "fifo";
        row.engine.buffer.predict = preloads ? "path" : "none";
        row.engine.buffer.preload_count = preloads ? plan->bench->options.engine.buffer.preload_count : 0;
        row.engine.buffer.size_bytes = row.memory_bytes = 2 * plan->layer_bytes;
        name_row(plan, &row, storage, "%s", row.label);
        MOEC_TRY(add_row(plan, &row, err));
    }
    return MOEC_OK;
}

static enum moec_status add_mode(struct plan *plan, const struct moec_mode *mode, uint32_t memory,
                                 uint32_t storage, struct moec_error *err)
{
    const struct moec_bench_options *options = &plan->bench->options;
    const bool has_memory = memory < options->n_memory, is_streamed = storage < options->n_storage;
    const enum holds holds = holds_of(mode);
    uint32_t copy = 0;
    if (!find_copy(plan->bundle, mode, &copy) || (holds == HOLDS_ALL) == is_streamed ||
        (holds == HOLDS_BUFFER) != has_memory)
        return MOEC_OK;
    if (has_memory)
        return add_buffered(plan, mode, copy, memory, storage, err);
    struct moec_bench_row row = start_row(plan, mode->name, copy);
    set_storage(plan, &row, storage);
    name_row(plan, &row, storage, "%s", mode->name);
    const struct moec_record_sizes sizes = moec_record_sizes_of(plan->bundle, copy);
    row.memory_bytes = sizes.all_bytes;
    if (holds == HOLDS_NONE) /* room for one layer's choices: what is not kept needs none */
        row.engine.buffer.size_bytes = row.memory_bytes = plan->bundle->config.top_k * sizes.largest_bytes;
    return add_row(plan, &row, err);
}

/* One resident row for each copy that has none yet: the floor's compute. */
static enum moec_status add_references(struct plan *plan, struct moec_error *err)
{
    const uint32_t n_row = plan->bench->n_row, n_storage = plan->bench->options.n_storage;
    for (uint32_t copy = 0; copy < plan->bundle->n_copy; copy++) {
        bool is_used = false, is_there = false;
        for (uint32_t r = 0; r < n_row; r++) {
            is_used |= plan->bench->rows[r].copy == copy;
            is_there |= plan->bench->rows[r].copy == copy && plan->bench->rows[r].storage == n_storage;
        }
        if (!is_used || is_there)
            continue;
        struct moec_bench_row row = start_row(plan, NULL, copy);
        row.kind = MOEC_BENCH_REFERENCE;
        row.mode = row.label = "resident";
        row.engine.buffer.mode = "cache";
        row.engine.buffer.predict = "none";
        row.engine.device.vram_bytes = 0;
        row.memory_bytes = moec_record_sizes_of(plan->bundle, copy).all_bytes;
        row.engine.copy = copy;
        name_row(plan, &row, n_storage, "resident, copy %" PRIu32, copy);
        MOEC_TRY(add_row(plan, &row, err));
    }
    return MOEC_OK;
}

/* ---- modes ---- */

static void leave_out(struct moec_bench *bench, const char *name)
{
    const size_t used = strlen(bench->left_out);
    (void)snprintf(bench->left_out + used, sizeof bench->left_out - used, "%s%s", used > 0 ? ", " : "", name);
}

static bool is_named(const struct moec_bench_options *options, const char *name)
{
    for (uint32_t i = 0; i < options->n_mode; i++)
        if (strcmp(options->modes[i], name) == 0)
            return true;
    return false;
}

/* The modes to run: those named, or all that the bundle has the copies for and a device can do; mode cache,
 * which is a frame for policies, only where policies are named or fitted, and modes by name only where they
 * are. */
static enum moec_status choose_modes(struct plan *plan, const struct moec_mode **modes, uint32_t *n,
                                     struct moec_error *err)
{
    const struct moec_bench_options *options = &plan->bench->options;
    const bool has_policies = options->n_evict > 0 || options->engine.buffer.predict != NULL ||
                              plan->bundle->fitted_evict[0] != '\0';
    uint32_t copy = 0;
    *n = 0;
    for (uint32_t i = 0; i < options->n_mode; i++) { /* unknown names and missing copies, in full words */
        const struct moec_mode_request request = {.mode = options->modes[i]};
        struct moec_mode_choice choice;
        MOEC_TRY(moec_mode_choose(plan->bundle, &request, &choice, err));
    }
    for (const struct moec_mode *mode = moec_modes; mode->name != NULL; mode++) {
        const bool can_run = options->engine.device.name == NULL || !mode->streams_all;
        const bool is_all =
            options->n_mode == 0 && can_run && !mode->by_name && (!mode->takes_any || has_policies);
        if (!is_all && !is_named(options, mode->name))
            continue;
        if (find_copy(plan->bundle, mode, &copy) && *n < MOEC_BENCH_MAX_LIST)
            modes[(*n)++] = mode;
        else
            leave_out(plan->bench, mode->name);
    }
    return MOEC_OK;
}

static enum moec_status check(const struct plan *plan, const struct moec_mode *const *modes, uint32_t n,
                              struct moec_error *err)
{
    const struct moec_bench_options *options = &plan->bench->options;
    bool needs_memory = options->ablation, takes_any = false,
         predicts = options->engine.buffer.predict != NULL;
    for (uint32_t m = 0; m < n; m++) {
        needs_memory |= holds_of(modes[m]) == HOLDS_BUFFER;
        takes_any |= modes[m]->takes_any;
        predicts |= strcmp(modes[m]->predict, "none") != 0;
    }
    if (needs_memory && options->n_memory == 0)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--memory is missing: give shares of the experts or sizes for the whole process, such as "
            "--memory 25%%,50%%,64MiB");
    if (!takes_any && (options->n_evict > 0 || options->engine.buffer.predict != NULL))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--evict and --predict apply only to mode cache, which is not among --modes");
    if (options->ablation && plan->bundle->paths.n_layer == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--ablation needs a path table, but the bundle '%s' does not have one: compile "
                         "the model with --profile",
                         plan->bundle->file.path);
    if (options->engine.buffer.preload_ahead > 0 && !takes_any)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--preload-ahead applies only to mode cache with --predict gate or path+gate: add "
                         "cache to --modes");
    if (!predicts && (options->engine.buffer.preload_count > 0 || options->against_none))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--preload-count and --against-none apply only to modes that predict: give mode "
                         "edgemoe, or cache with --predict");
    return MOEC_OK;
}

static enum moec_status add_rows(struct plan *plan, const struct moec_mode *const *modes, uint32_t n,
                                 struct moec_error *err)
{
    const struct moec_bench_options *options = &plan->bench->options;
    for (uint32_t m = 0; m < n; m++) /* resident ones are the same on every storage */
        MOEC_TRY(add_mode(plan, modes[m], options->n_memory, options->n_storage, err));
    for (uint32_t s = 0; s < options->n_storage; s++) {
        for (uint32_t m = 0; m < n; m++)
            MOEC_TRY(add_mode(plan, modes[m], options->n_memory, s, err));
        if (options->ablation)
            MOEC_TRY(add_ablation(plan, s, err));
        for (uint32_t b = 0; b < options->n_memory; b++)
            for (uint32_t m = 0; m < n; m++)
                MOEC_TRY(add_mode(plan, modes[m], b, s, err));
    }
    return add_references(plan, err);
}

enum moec_status moec_bench_plan(const struct moec_bundle *bundle, struct moec_bench *bench,
                                 struct moec_error *err)
{
    const struct moec_mode *modes[MOEC_BENCH_MAX_LIST];
    const struct moec_record_sizes sizes = moec_record_sizes_of(bundle, 0);
    struct plan plan = {
        .bundle = bundle,
        .bench = bench,
        .total_bytes = sizes.all_bytes,
        .layer_bytes = bundle->config.top_k * sizes.largest_bytes,
    };
    uint32_t n = 0;
    bench->expert_total_bytes = sizes.all_bytes;
    MOEC_TRY(choose_modes(&plan, modes, &n, err));
    MOEC_TRY(check(&plan, modes, n, err));
    MOEC_TRY(moec_alloc((void **)&bench->rows, MOEC_BENCH_MAX_ROWS, sizeof *bench->rows, "rows", err));
    return add_rows(&plan, modes, n, err);
}

uint64_t moec_bench_row_bytes(const struct moec_bundle *bundle, const struct moec_bench_row *row)
{
    const uint64_t process = moec_bundle_dense_bytes(bundle) + PROCESS_BYTES;
    return row->engine.memory_bytes > 0 ? row->engine.memory_bytes : process + row->memory_bytes;
}
