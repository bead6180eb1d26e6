#include "cli/options/policy_options.h"

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
