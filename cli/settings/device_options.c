#include "cli/settings/device_options.h"

#include "runtime/forward/attention/kv_state.h"

#include <string.h>

cli_device_file_reader *cli_device_file;
cli_shape_reader *cli_shape;

static enum moec_status read_device(const struct cli_args *args, const char **device, uint64_t *vram_bytes,
                                    struct moec_error *err)
{
    *device = cli_text(args, "device");
    *vram_bytes = 0;
    if (*device != NULL && strstr(*device, ".json") != NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--device is '%s', expected a GPU such as 'cuda'; a file made by moec device "
                         "goes with --device-file, if the command has this option",
                         *device);
    MOEC_TRY(cli_bytes(args, "vram", vram_bytes, err));
    if (cli_has(args, "vram") && (*device == NULL || *vram_bytes == 0))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "option '--vram' limits a device's memory: give --device too, and a size above 0");
    return MOEC_OK;
}

enum moec_status cli_read_device(const struct cli_args *args, const char **device, uint64_t *vram_bytes,
                                 bool *cooperates, struct moert_transfer *transfer, struct moec_error *err)
{
    const bool has_transfer = cli_offers(args, "cooperate");
    const char *path = has_transfer ? cli_text(args, "device-file") : NULL;
    MOEC_TRY(read_device(args, device, vram_bytes, err));
    *cooperates = has_transfer && cli_has(args, "cooperate");
    *transfer = (struct moert_transfer){.copies_whole = has_transfer && cli_has(args, "whole-records")};
    if (*cooperates && *device == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--cooperate lets the processor help a device: give --device too");
    if (path != NULL && !*cooperates)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--device-file gives the times by which --cooperate decides: give --cooperate too");
    if (path != NULL && cli_device_file == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "moec-run cannot read device files: use 'moec run' with --device-file");
    if (path != NULL)
        MOEC_TRY(cli_device_file(path, transfer, err));
    if (transfer->copies_whole && *device == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--whole-records applies only to copies to a device: give --device too");
    return MOEC_OK;
}

enum moec_status cli_use_arithmetic(struct moec_gpu_place *place, enum moec_arithmetic arithmetic,
                                    struct moec_error *err)
{
    return place != NULL ? moec_gpu_place_take_arithmetic(place, arithmetic, err)
                         : moec_arithmetic_check_processor(arithmetic, err);
}

enum moec_status cli_open_device(const struct moert_device_options *device, const char *kv_name,
                                 enum moec_arithmetic arithmetic, struct moec_gpu_place **out,
                                 struct moec_error *err)
{
    struct moec_codec kv = {0};
    *out = NULL;
    if (device->name != NULL) {
        MOEC_TRY(moec_kv_read(kv_name, &kv, err));
        if (kv.dtype != MOEC_DTYPE_F32)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                             "device '%s' stores keys and values only as F32: give --kv f32", device->name);
        MOEC_TRY(moec_gpu_place_open(device->name, NULL, device->vram_bytes, out, err));
    }
    return cli_use_arithmetic(*out, arithmetic, err);
}

enum moec_status cli_open_place(const struct cli_args *args, enum moec_arithmetic arithmetic,
                                struct moec_gpu_place **out, struct moec_error *err)
{
    struct moert_device_options device = {0};
    *out = NULL;
    MOEC_TRY(read_device(args, &device.name, &device.vram_bytes, err));
    return cli_open_device(&device, NULL, arithmetic, out, err);
}
