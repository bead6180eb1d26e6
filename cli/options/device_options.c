#include "cli/options/device_options.h"

enum moec_status cli_read_device(const struct cli_args *args, const char **device, uint64_t *vram_bytes,
                                 bool *cooperates, struct moec_error *err)
{
    *device = cli_text(args, "device");
    *vram_bytes = 0;
    *cooperates = cli_has(args, "cooperate");
    MOEC_TRY(cli_bytes(args, "vram", vram_bytes, err));
    if (cli_has(args, "vram") && (*device == NULL || *vram_bytes == 0))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "option '--vram' limits a device's memory: give --device too, and a size above 0");
    if (*cooperates && *device == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--cooperate lets the processor help a device: give --device too");
    return MOEC_OK;
}
