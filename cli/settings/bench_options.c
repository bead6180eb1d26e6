/* Lists of modes and policies are cut at commas in a copy that stays with the options: names in the bench
 * point into it. A memory in percent is a share of the experts, another one a budget for the process. */
#include "cli/settings/bench_options.h"

#include "cli/settings/device_options.h"
#include "cli/settings/engine_options.h"
#include "cli/settings/route_options.h"
#include "formats/base/memory.h"
#include "runtime/kernels/kernels.h"
#include "runtime/policy/evict/evict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cli_bench_memory(const char *text, struct moec_bench_memory *out)
{
    struct moec_bench_memory memory = {0};
    char *end = NULL;
    const double percent = strtod(text, &end);
    const bool is_percent = end != text && strcmp(end, "%") == 0;
    if (strlen(text) >= sizeof memory.name)
        return false;
    (void)snprintf(memory.name, sizeof memory.name, "%s", text);
    if (is_percent && isfinite(percent) && percent > 0 && percent <= 100)
        memory.share = percent / 100;
    else if (is_percent || !cli_parse_size(text, &memory.bytes) || memory.bytes == 0)
        return false;
    *out = memory;
    return true;
}

/* Cuts a copy of the option's list at its commas; items point into it. */
static enum moec_status read_list(const struct cli_args *args, const char *name, char **copy,
                                  const char **items, uint32_t *n, struct moec_error *err)
{
    const char *text = cli_text(args, name);
    *n = 0;
    if (text == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_strndup(copy, text, strlen(text), err));
    for (char *at = *copy;;) {
        char *comma = strchr(at, ',');
        if (comma != NULL)
            *comma = '\0';
        if (*at == '\0' || *n == MOEC_BENCH_MAX_LIST)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "option '--%s' is '%s', expected 1 to %d names, separated by commas", name, text,
                             MOEC_BENCH_MAX_LIST);
        items[(*n)++] = at;
        if (comma == NULL)
            return MOEC_OK;
        at = comma + 1;
    }
}

static enum moec_status read_memories(const struct cli_args *args, struct moec_bench_options *out,
                                      struct moec_error *err)
{
    const char *items[MOEC_BENCH_MAX_LIST] = {NULL};
    char *copy = NULL;
    enum moec_status status = read_list(args, "memory", &copy, items, &out->n_memory, err);
    for (uint32_t i = 0; status == MOEC_OK && i < out->n_memory; i++) {
        if (cli_bench_memory(items[i], &out->memories[i]))
            status = cli_check_size_unit("memory", items[i], out->memories[i].bytes, err);
        else
            status = moec_fail(err, MOEC_ERR_USAGE,
                               "option '--memory' has '%s', expected a share of the experts "
                               "such as 25%% or a memory budget for the process such as 64MiB",
                               items[i]);
    }
    free(copy);
    return status;
}

static enum moec_status read_storages(const struct cli_args *args, struct moec_bench_options *out,
                                      struct moec_error *err)
{
    out->n_storage = cli_count(args, "emulate-storage");
    for (uint32_t i = 0; i < out->n_storage; i++) {
        const char *text = cli_repeat(args, "emulate-storage", i);
        MOEC_TRY(moec_emulation_parse(text, &out->storages[i].emulation, err));
        (void)snprintf(out->storages[i].name, sizeof out->storages[i].name, "%s", text);
    }
    if (out->n_storage == 0)
        out->n_storage = 1; /* the device itself */
    return MOEC_OK;
}

static enum moec_status read_policies(const struct cli_args *args, struct cli_bench_options *out,
                                      struct moec_error *err)
{
    struct moec_bench_options *bench = &out->bench;
    struct moec_evict_choice evict;
    MOEC_TRY(read_list(args, "modes", &out->lists[0], bench->modes, &bench->n_mode, err));
    if (bench->n_mode == 1 && strcmp(bench->modes[0], "all") == 0)
        bench->n_mode = 0;
    MOEC_TRY(read_list(args, "evict", &out->lists[1], bench->evicts, &bench->n_evict, err));
    for (uint32_t i = 0; i < bench->n_evict; i++)
        MOEC_TRY(moec_evict_read(bench->evicts[i], &evict, err));
    bench->against_none = cli_has(args, "against-none");
    bench->ablation = cli_has(args, "ablation");
    return MOEC_OK;
}

enum moec_status cli_read_bench_options(const struct cli_args *args, struct cli_bench_options *out,
                                        struct moec_error *err)
{
    const struct moec_kernels *kernels = NULL;
    *out = (struct cli_bench_options){
        .bench = {.path = args->positional[0], .n_sample = 8, .prompt_tokens = 64, .n_tokens = 32}};
    struct moec_bench_options *bench = &out->bench;
    bench->engine = moert_options_default();
    MOEC_TRY(read_policies(args, out, err));
    MOEC_TRY(cli_read_pass(args, &bench->engine, err));
    MOEC_TRY(cli_check_pure(args, "moec bench", err));
    bench->engine.storage.io = cli_text(args, "io");
    MOEC_TRY(read_memories(args, bench, err));
    MOEC_TRY(read_storages(args, bench, err));
    MOEC_TRY(cli_u32(args, "samples", 1, 1u << 16, &bench->n_sample, err));
    MOEC_TRY(cli_u32(args, "prompt-tokens", 1, 1u << 20, &bench->prompt_tokens, err));
    MOEC_TRY(cli_u32(args, "tokens", 1, 1u << 20, &bench->n_tokens, err));
    if (bench->engine.device.name == NULL)
        MOEC_TRY(cli_use_arithmetic(NULL, cli_arithmetic(args, NULL), err));
    return moec_kernels_find(bench->engine.cpu, &kernels, err);
}

void cli_bench_options_release(struct cli_bench_options *options)
{
    free(options->lists[0]);
    free(options->lists[1]);
    *options = (struct cli_bench_options){0};
}
