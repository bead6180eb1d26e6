/* A verb that lacks an option leaves it out of its table, and what reads it here asks the table first: so one
 * function serves run, chat and serve, and its first half the rows of a bench, and eval. */
#include "cli/settings/engine_options.h"

#include "cli/settings/device_options.h"
#include "cli/settings/route_options.h"
#include "runtime/storage/reader.h"

#include <string.h>

#define MOST_PRELOADS 65536u
#define MOST_CONTEXT  (1u << 24)
#define MOST_THREADS  256u

/* Absent where the verb does not offer the option either. */
static const char *text_of(const struct cli_args *args, const char *name)
{
    return cli_offers(args, name) ? cli_text(args, name) : NULL;
}

static enum moec_status u32_of(const struct cli_args *args, const char *name, uint32_t min, uint32_t max,
                               uint32_t *out, struct moec_error *err)
{
    return cli_offers(args, name) ? cli_u32(args, name, min, max, out, err) : MOEC_OK;
}

enum moec_status cli_read_threads(const struct cli_args *args, int *n_threads, struct moec_error *err)
{
    uint32_t n = 0;
    MOEC_TRY(cli_u32(args, "threads", 1, MOST_THREADS, &n, err));
    *n_threads = (int)n;
    return MOEC_OK;
}

enum moec_status cli_read_kernels(const struct cli_args *args, const struct moec_kernels **kernels,
                                  struct moec_error *err)
{
    return moec_kernels_find(cli_has(args, "cpu") ? cli_text(args, "cpu") : "auto", kernels, err);
}

enum moec_status cli_read_pass(const struct cli_args *args, struct moert_options *engine,
                               struct moec_error *err)
{
    MOEC_TRY(cli_read_device(args, &engine->device.name, &engine->device.vram_bytes,
                             &engine->device.cooperates, &engine->device.transfer, err));
    MOEC_TRY(cli_read_decisions(args, &engine->decisions, err));
    engine->buffer.predict = text_of(args, "predict");
    MOEC_TRY(u32_of(args, "preload-count", 1, MOST_PRELOADS, &engine->buffer.preload_count, err));
    MOEC_TRY(u32_of(args, "preload-ahead", 1, MOEC_GATES_AHEAD, &engine->buffer.preload_ahead, err));
    engine->arithmetic = cli_text(args, "arithmetic");
    engine->sessions.kv = cli_text(args, "kv");
    MOEC_TRY(cli_read_threads(args, &engine->n_threads, err));
    if (cli_has(args, "cpu"))
        engine->cpu = cli_text(args, "cpu");
    return MOEC_OK;
}

static enum moec_status read_emulation(const struct cli_args *args, struct moert_options *engine,
                                       struct moec_error *err)
{
    struct moec_emulation emulation;
    const char *text = text_of(args, "emulate-storage");
    if (text == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_emulation_parse(text, &emulation, err));
    engine->storage.emulate_bytes_per_second = emulation.bytes_per_second;
    engine->storage.emulate_latency_ns = emulation.latency_ns;
    engine->storage.emulate_request_ns = emulation.request_ns;
    return MOEC_OK;
}

/* What --io means to libmoert, which maps nothing unless it is asked to. */
static const char *read_io(const struct cli_args *args)
{
    const char *way = text_of(args, "io");
    return way == NULL || strcmp(way, "auto") == 0 ? "auto+mapped" : way;
}

enum moec_status cli_read_engine(const struct cli_args *args, struct moert_options *engine,
                                 struct moec_error *err)
{
    *engine = moert_options_default();
    MOEC_TRY(cli_bytes(args, "memory", &engine->memory_bytes, err));
    if (cli_has(args, "memory") && engine->memory_bytes == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "option '--memory' is 0; leave it out for no limit");
    MOEC_TRY(cli_u32(args, "ctx", 1, MOST_CONTEXT, &engine->sessions.n_context, err));
    MOEC_TRY(cli_read_pass(args, engine, err));
    MOEC_TRY(u32_of(args, "copy", 0, MOEC_MAX_COPIES - 1, &engine->copy, err));
    engine->buffer.mode = text_of(args, "mode");
    engine->buffer.evict = text_of(args, "evict");
    engine->storage.io = read_io(args);
    return read_emulation(args, engine, err);
}
