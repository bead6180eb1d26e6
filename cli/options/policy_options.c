#include "cli/options/policy_options.h"

#include "runtime/storage/reader.h"

#include <string.h>

enum moec_status cli_read_evict_weights(const struct cli_args *args, bool is_hobbit_named, float *weights,
                                        struct moec_error *err)
{
    float read[MOEC_EVICT_WEIGHTS];
    const char *text = cli_text(args, "evict-weights");
    if (text == NULL)
        return MOEC_OK;
    if (!is_hobbit_named)
        return moec_fail(err, MOEC_ERR_USAGE, "--evict-weights does nothing without --evict hobbit");
    MOEC_TRY(moec_evict_read_weights(text, read, err));
    if (weights != NULL)
        memcpy(weights, read, sizeof read);
    return MOEC_OK;
}

enum moec_status cli_read_shallow_layers(const struct cli_args *args, bool is_fate_named, uint32_t *n,
                                         struct moec_error *err)
{
    if (cli_has(args, "shallow-layers") && !is_fate_named)
        return moec_fail(err, MOEC_ERR_USAGE, "--shallow-layers does nothing without --evict fate");
    return cli_u32(args, "shallow-layers", 1, 1024, n, err);
}

const char *cli_read_run_io(const struct cli_args *args)
{
    const char *way = cli_offers(args, "io") ? cli_text(args, "io") : NULL;
    return way == NULL || strcmp(way, "auto") == 0 ? "auto+mapped" : way;
}

enum moec_status cli_read_emulation(const struct cli_args *args, struct moert_options *engine,
                                    struct moec_error *err)
{
    struct moec_emulation emulation;
    if (!cli_has(args, "emulate-storage"))
        return MOEC_OK;
    MOEC_TRY(moec_emulation_parse(cli_text(args, "emulate-storage"), &emulation, err));
    engine->emulate_bytes_per_second = emulation.bytes_per_second;
    engine->emulate_latency_ns = emulation.latency_ns;
    engine->emulate_request_ns = emulation.request_ns;
    return MOEC_OK;
}
